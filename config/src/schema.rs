//! All keys of the configuration. The shipped `piped.toml` explains them to operators; this file
//! says what the daemon may rely on. `tests/shipped.rs` keeps the two equal.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use piped_core::link::{Checksum, Protection};
use piped_core::modes::{
    CalibrationMode, EagerMode, IoFeature, PlannerMode, Profile, ZeroCopyMode,
};
use piped_core::names::SHARDS_MAX;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::cluster::Cluster;
use crate::discovery::Discovery;
use crate::limits::Limits;
use crate::modes::{
    AutoPath, LandlockMode, Principal, ShardCount, Spin, SyscallsMode, eager, planner_form,
};
use crate::network::{HostPort, Network};
use crate::node_key::PublicKey;
use crate::quantity::{Bytes, Period};

/// The configuration of a daemon. Everything that [`crate::load`] returns has passed
/// [`Config::validate`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Latency against CPU time, as one choice.
    pub profile: Profile,
    /// Identity of this node.
    pub node: Node,
    /// Socket of clients, and limits of one client.
    pub client: Client,
    /// Socket and users of operators.
    pub admin: Admin,
    /// Address for a Prometheus server.
    pub metrics: Metrics,
    /// Users that may connect as clients.
    pub access: Access,
    /// Restrictions that the daemon puts on itself.
    pub sandbox: Sandbox,
    /// Threads that move data.
    pub shards: Shards,
    /// Limits of use at one time.
    pub limits: Limits,
    /// Settings of the io_uring rings.
    pub io: Io,
    /// Choice of fragment sizes.
    pub planner: Planner,
    /// Address and networks of peers.
    pub listen: Listen,
    /// Protection of lanes, and the key.
    pub security: Security,
    /// Nodes that this node asks, by name.
    pub peers: BTreeMap<String, Peer>,
    /// Sources that say where peers are.
    pub discovery: Discovery,
    /// Trust in nodes whose keys the cluster has signed.
    pub cluster: Cluster,
    /// Directories that this node offers, by name.
    pub exports: BTreeMap<String, Export>,
    /// Settings of the log.
    pub log: Log,
}

/// Table `[node]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Node {
    /// Name by which peers know this node; empty for the host name.
    pub name: String,
    /// Directory for persisted measurements; `auto` takes the service manager's
    /// (`STATE_DIRECTORY`).
    pub state_dir: AutoPath,
}

impl Node {
    /// Configured name, or `hostname` if there is none.
    #[must_use]
    pub fn name_or<'a>(&'a self, hostname: &'a str) -> &'a str {
        if self.name.is_empty() { hostname } else { &self.name }
    }
}

/// Table `[client]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Client {
    /// Unix socket that clients connect to.
    pub socket: PathBuf,
    /// Shared memory of one session.
    pub arena_bytes_max: Bytes,
    /// Queues of one session.
    pub queues_max: u32,
    /// Entries of one queue, a power of two.
    pub entries_max: u32,
    /// Deadline of a request without one.
    pub deadline_default: Period,
}

impl Client {
    /// Path of the socket for clients by default.
    pub const DEFAULT_SOCKET: &'static str = "/run/piped/client.sock";
}

impl Default for Client {
    fn default() -> Self {
        Self {
            socket: PathBuf::from(Self::DEFAULT_SOCKET),
            arena_bytes_max: Bytes::gib(1),
            queues_max: 16,
            entries_max: 1024,
            deadline_default: Period::seconds(30),
        }
    }
}

/// Table `[admin]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Unix socket of the admin API.
    pub socket: PathBuf,
    /// Users that may look at the running daemon.
    pub status_users: Vec<Principal>,
    /// Groups that may look. Both lists empty: all users that `[access]` admits.
    pub status_groups: Vec<Principal>,
    /// Users that may change it, beside root and the daemon's own user.
    pub users: Vec<Principal>,
    /// Groups that may change it.
    pub groups: Vec<Principal>,
}

impl Admin {
    /// Path of the admin socket by default.
    pub const DEFAULT_SOCKET: &'static str = "/run/piped/admin.sock";
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            socket: PathBuf::from(Self::DEFAULT_SOCKET),
            status_users: Vec::new(),
            status_groups: Vec::new(),
            users: Vec::new(),
            groups: Vec::new(),
        }
    }
}

/// Table `[metrics]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Address where a Prometheus server reads `/metrics` by HTTP; none: only the admin socket has
    /// them.
    #[serde(serialize_with = "write_address", deserialize_with = "read_address")]
    pub address: Option<SocketAddr>,
}

/// Table `[access]` of the file: users that may connect beside the daemon's own and root.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// Users that may connect.
    pub users: Vec<Principal>,
    /// Groups that may connect.
    pub groups: Vec<Principal>,
}

/// Table `[sandbox]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sandbox {
    /// Restriction of file access by Landlock.
    pub landlock: LandlockMode,
    /// Filter of system calls.
    pub syscalls: SyscallsMode,
}

/// CPUs for each shard, if the daemon chooses how many there are. One moves several GB/s; clients,
/// the network and the storage of the kernel work for it on the others.
const CPUS_PER_SHARD: usize = 4;

/// Least staging of a shard, if the daemon chooses how many there are: the credit of two peers that
/// write, and room for reads beside.
const STAGING_PER_SHARD: Bytes = Bytes::mib(16);

impl Config {
    /// Number of shards on a machine that lets the daemon use so many CPUs.
    ///
    /// `auto` is one for each four CPUs, and at least one: up to seven CPUs there is one, as a
    /// second would take a CPU from the clients that it is for. There are no more than have 16 MiB
    /// of staging each, and as many as `shards.cpus` names, if it names some.
    #[must_use]
    pub fn shard_count(&self, cpus: usize) -> u32 {
        match self.shards.count {
            ShardCount::Fixed(count) => count,
            ShardCount::Auto if !self.shards.cpus.is_empty() => self.shards.cpus.len() as u32,
            ShardCount::Auto => {
                let global = &self.limits.global;
                let by_cpus = (cpus / CPUS_PER_SHARD).min(SHARDS_MAX) as u32;
                let by_staging = global.staging.0 / STAGING_PER_SHARD.0;
                let by_staging = u32::try_from(by_staging).unwrap_or(u32::MAX);
                by_cpus.min(by_staging).min(global.requests).max(1)
            }
        }
    }
}

/// Table `[shards]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shards {
    /// Number of data-plane threads.
    pub count: ShardCount,
    /// Whether each thread stays on one CPU.
    pub pin: bool,
    /// CPUs to pin to, one a shard; empty if the daemon chooses.
    pub cpus: Vec<u32>,
    /// How long a shard spins before it sleeps.
    pub spin: Spin,
}

impl Default for Shards {
    fn default() -> Self {
        Self { count: ShardCount::Auto, pin: true, cpus: Vec::new(), spin: Spin::Auto }
    }
}

/// Table `[io]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Io {
    /// Features to avoid even where the kernel has them.
    pub disable_features: Vec<IoFeature>,
    /// Entries of a shard's submission queue, a power of two.
    pub entries: u32,
    /// Whether a kernel thread polls the submission queue.
    pub sqpoll: bool,
}

impl Default for Io {
    fn default() -> Self {
        Self { disable_features: Vec::new(), entries: 1024, sqpoll: false }
    }
}

/// Table `[planner]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Planner {
    /// How fragment sizes are chosen.
    #[serde(deserialize_with = "planner_form")]
    pub mode: PlannerMode,
    /// Whether costs follow measurements.
    pub calibration: CalibrationMode,
    /// Whether `pipectl dial` may make stages slower.
    pub allow_dials: bool,
    /// Whether lanes send without a copy.
    pub zero_copy: ZeroCopyMode,
    /// Which messages are sent without being announced first.
    #[serde(with = "eager")]
    pub eager: EagerMode,
}

/// Table `[listen]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Listen {
    /// Address where peers connect; none if they cannot.
    #[serde(serialize_with = "write_address", deserialize_with = "read_address")]
    pub address: Option<SocketAddr>,
    /// Networks in which lanes may be plain, without keys; beside loopback, if this node has no
    /// key.
    pub allow_plain: Vec<Network>,
}

impl Listen {
    /// Whether a node without a key may listen as configured. True if it listens nowhere, only
    /// where lanes may be plain, or everywhere with networks in `allow_plain` (other callers are
    /// turned away one by one).
    #[must_use]
    pub fn may_be_plain(&self) -> bool {
        self.address.is_none_or(|address| match address.ip() {
            ip if ip.is_unspecified() => !self.allow_plain.is_empty(),
            ip => self.admits_plain(ip, false),
        })
    }

    /// Whether a lane to or from `address` may be plain: the address is in a network of
    /// `allow_plain`, or is loopback and this node has no key. A node with a key asks for keys on
    /// loopback too, because every user of a machine can use it.
    #[must_use]
    pub fn admits_plain(&self, address: IpAddr, has_key: bool) -> bool {
        let address = address.to_canonical();
        let by_itself = !has_key && address.is_loopback();
        by_itself || self.allow_plain.iter().any(|network| network.contains(address))
    }
}

fn write_address<S: Serializer>(address: &Option<SocketAddr>, to: S) -> Result<S::Ok, S::Error> {
    match address {
        Some(address) => to.collect_str(address),
        None => to.serialize_str(""),
    }
}

fn read_address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        de::Error::custom(format!(
            "`{text}` is not an address to listen on: write an IP address and a port, as in \
             10.9.0.1:7440 (0.0.0.0 for all), or \"\" for no listener"
        ))
    })
}

/// Table `[security]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Security {
    /// Protection of lanes between peers that have keys.
    pub mode: Protection,
    /// File of this node's private key; `auto` is `node.key` beside the main file, if it exists.
    pub key_file: AutoPath,
}

impl Security {
    /// Name of the key file beside the main file.
    pub const KEY_FILE: &'static str = "node.key";

    /// Path at which a private key of this node is made, or is already.
    #[must_use]
    pub fn key_place(&self, main_file: &Path) -> PathBuf {
        let beside = || main_file.with_file_name(Self::KEY_FILE);
        self.key_path(Some(main_file)).unwrap_or_else(beside)
    }

    /// Path of this node's private key; none if it has none. `main_file` is that of the
    /// configuration, if there is one.
    #[must_use]
    pub fn key_path(&self, main_file: Option<&Path>) -> Option<PathBuf> {
        match &self.key_file {
            AutoPath::None => None,
            AutoPath::At(path) => Some(path.clone()),
            AutoPath::Auto => {
                let beside = main_file?.parent()?.join(Self::KEY_FILE);
                // A file that cannot be looked at counts as existing: the daemon reports it instead
                // of being plain.
                match beside.symlink_metadata() {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                    _ => Some(beside),
                }
            }
        }
    }
}

/// Table `[peers.NAME]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Peer {
    /// Address where the peer listens; empty for one that only connects to us, which then has a
    /// key.
    pub address: HostPort,
    /// Second address where the peer listens, by way of another link: long reads go over both at
    /// once. The peer proves itself there with the same key.
    pub second_address: HostPort,
    /// Public key of the peer: its lanes are authenticated, and nobody else can use its name.
    #[serde(serialize_with = "write_key", deserialize_with = "read_key")]
    pub key: Option<PublicKey>,
    /// Next key of the peer: until the change it may prove itself with either.
    #[serde(serialize_with = "write_key", deserialize_with = "read_key")]
    pub next_key: Option<PublicKey>,
    /// What checksums of plain lanes with the peer cover: `payload` for headers and payloads,
    /// `header` for headers alone, `auto` for payloads too unless both nodes are on this machine,
    /// in one network namespace. Payloads have checksums if one of the two nodes wants them. Names
    /// and tables of requests always have. Lanes with a key have authentication tags over all bytes
    /// instead.
    pub checksum: Checksum,
}

impl Peer {
    /// Keys with which the peer may prove its identity; none if its lanes are plain.
    pub fn keys(&self) -> impl Iterator<Item = PublicKey> {
        self.named_keys().map(|(_, key)| key)
    }

    /// What checksums of the peer's lanes cover if they are plain; none if it has a key, and its
    /// lanes have tags.
    #[must_use]
    pub fn plain_checksum(&self) -> Option<Checksum> {
        self.key.is_none().then_some(self.checksum)
    }

    /// Keys of the peer with the name of each field.
    pub(crate) fn named_keys(&self) -> impl Iterator<Item = (&'static str, PublicKey)> {
        let fields = [("key", self.key), ("next_key", self.next_key)];
        fields.into_iter().filter_map(|(field, key)| Some((field, key?)))
    }
}

pub(crate) fn write_key<S: Serializer>(key: &Option<PublicKey>, to: S) -> Result<S::Ok, S::Error> {
    match key {
        Some(key) => to.collect_str(key),
        None => to.serialize_str(""),
    }
}

pub(crate) fn read_key<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PublicKey>, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| de::Error::custom(format!("`{text}` {error}")))
}

/// Table `[exports.NAME]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Export {
    /// Directory; never empty, and absolute after validation.
    pub path: PathBuf,
    /// Whether files below it may be read.
    pub read: bool,
    /// Whether files below it may be written and created.
    pub write: bool,
    /// Whether names below it may be made, removed and changed: directories, renames, links.
    pub names: bool,
    /// Local users that may use it.
    pub users: Vec<Principal>,
    /// Groups that may use it. Both lists empty: all users that `[access]` admits.
    pub groups: Vec<Principal>,
    /// Peers that may use it, by their names, or by a group of nodes as in `@storage`; empty for
    /// all that may connect.
    pub peers: Vec<String>,
}

impl Default for Export {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            read: true,
            write: false,
            names: false,
            users: Vec::new(),
            groups: Vec::new(),
            peers: Vec::new(),
        }
    }
}

/// Table `[log]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Level: `error`, `warn`, `info`, `debug` or `trace`, or directives such as
    /// `info,piped::peer=debug`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".to_owned() }
    }
}
