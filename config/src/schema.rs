//! Every key. The shipped `piped.toml` explains them to operators; this file says what the daemon may rely
//! on. `tests/shipped.rs` keeps the two equal.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use piped_core::link::Protection;
use piped_core::modes::{
    CalibrationMode, EagerMode, IoFeature, PlannerMode, Profile, ZeroCopyMode,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::limits::Limits;
use crate::modes::{AutoPath, LandlockMode, Principal, Spin, SyscallsMode, eager, planner_form};
use crate::network::{HostPort, Network};
use crate::node_key::PublicKey;
use crate::quantity::{Bytes, Period};

/// The configuration of a daemon. [`Config::validate`] has been passed by everything [`crate::load`] returns.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Latency against CPU time, as one choice.
    pub profile: Profile,
    /// This node.
    pub node: Node,
    /// The client door and what one client may take.
    pub client: Client,
    /// The operator door.
    pub admin: Admin,
    /// The door of Prometheus.
    pub metrics: Metrics,
    /// Who may connect as a client.
    pub access: Access,
    /// What the daemon denies itself.
    pub sandbox: Sandbox,
    /// The data-plane threads.
    pub shards: Shards,
    /// What may be used at once.
    pub limits: Limits,
    /// io_uring.
    pub io: Io,
    /// How sizes are chosen.
    pub planner: Planner,
    /// The peer door.
    pub listen: Listen,
    /// How lanes are protected.
    pub security: Security,
    /// Nodes that this node asks, by name.
    pub peers: BTreeMap<String, Peer>,
    /// What this node offers, by name.
    pub exports: BTreeMap<String, Export>,
    /// Messages.
    pub log: Log,
}

/// `[node]`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Node {
    /// The name peers know this node by; empty: the host name.
    pub name: String,
    /// Where what was measured is kept over restarts; `auto`: where the service manager says (`STATE_DIRECTORY`).
    pub state_dir: AutoPath,
}

impl Node {
    /// The name, or `hostname` where none is configured.
    #[must_use]
    pub fn name_or<'a>(&'a self, hostname: &'a str) -> &'a str {
        if self.name.is_empty() { hostname } else { &self.name }
    }
}

/// `[client]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Client {
    /// The unix socket clients connect to.
    pub socket: PathBuf,
    /// Shared memory of one session.
    pub arena_bytes_max: Bytes,
    /// Queues of one session.
    pub queues_max: u32,
    /// Entries of one queue, a power of two.
    pub entries_max: u32,
    /// Deadline of a request that names none.
    pub deadline_default: Period,
}

impl Client {
    /// Where the daemon and its clients meet when nothing else is said.
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

/// `[admin]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// The unix socket of the admin API.
    pub socket: PathBuf,
    /// Users that may look at the running daemon.
    pub status_users: Vec<Principal>,
    /// Groups whose members may. Both lists empty: whom `[access]` admits.
    pub status_groups: Vec<Principal>,
    /// Users that may change it, beside root and the daemon's own.
    pub users: Vec<Principal>,
    /// Groups whose members may.
    pub groups: Vec<Principal>,
}

impl Admin {
    /// Where the daemon and `pipectl` meet when nothing else is said.
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

/// `[metrics]`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Where a Prometheus server reads `/metrics` by HTTP; none: only on the admin socket.
    #[serde(serialize_with = "write_address", deserialize_with = "read_address")]
    pub address: Option<SocketAddr>,
}

/// `[access]`: who may connect beside the daemon's own user and root.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// Users that may connect.
    pub users: Vec<Principal>,
    /// Groups whose members may connect.
    pub groups: Vec<Principal>,
}

/// `[sandbox]`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sandbox {
    /// Landlock.
    pub landlock: LandlockMode,
    /// A filter of system calls.
    pub syscalls: SyscallsMode,
}

/// `[shards]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shards {
    /// Data-plane threads.
    pub count: u32,
    /// Whether each stays on one CPU.
    pub pin: bool,
    /// The CPUs to pin to, one a shard; empty: the daemon chooses.
    pub cpus: Vec<u32>,
    /// How long a shard spins before it sleeps.
    pub spin: Spin,
}

impl Default for Shards {
    fn default() -> Self {
        Self { count: 1, pin: true, cpus: Vec::new(), spin: Spin::Auto }
    }
}

/// `[io]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Io {
    /// Features not to use even where the kernel has them.
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

/// `[planner]`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Planner {
    /// How fragment sizes are chosen.
    #[serde(deserialize_with = "planner_form")]
    pub mode: PlannerMode,
    /// Whether costs follow what is measured.
    pub calibration: CalibrationMode,
    /// Whether `pipectl dial` may make stages slower.
    pub allow_dials: bool,
    /// Whether lanes send without a copy.
    pub zero_copy: ZeroCopyMode,
    /// Which messages are sent without being announced first.
    #[serde(with = "eager")]
    pub eager: EagerMode,
}

/// `[listen]`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Listen {
    /// Where peers connect; none: nowhere.
    #[serde(serialize_with = "write_address", deserialize_with = "read_address")]
    pub address: Option<SocketAddr>,
    /// Networks whose nodes may talk to this one without keys; beside loopback, if this node has no key.
    pub allow_plain: Vec<Network>,
}

impl Listen {
    /// True if all who reach where a node without a key listens may be plain: it listens nowhere, where lanes may be plain, or everywhere
    /// and there are networks that it was told of (others are turned away one by one).
    #[must_use]
    pub fn may_be_plain(&self) -> bool {
        self.address.is_none_or(|address| match address.ip() {
            ip if ip.is_unspecified() => !self.allow_plain.is_empty(),
            ip => self.admits_plain(ip, false),
        })
    }

    /// True if a lane to or from `address` may be plain: it is in a network of `allow_plain`, or loopback, and this node
    /// has no key. One that has a key asks for keys: every user of a machine can use its loopback.
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
            "`{text}` is not an address to listen on: write an IP address and a port, as in 10.9.0.1:7440 \
             (0.0.0.0 for all), or \"\" for no listener"
        ))
    })
}

/// `[security]`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Security {
    /// What lanes of peers that have keys are protected against.
    pub mode: Protection,
    /// Where this node's private key is; `auto`: `node.key` beside the main file, if it is there.
    pub key_file: AutoPath,
}

impl Security {
    /// The name of the key file beside the main file.
    pub const KEY_FILE: &'static str = "node.key";

    /// Where this node's private key is; none: it has none. `main_file`: that of the configuration, if there is one.
    #[must_use]
    pub fn key_path(&self, main_file: Option<&Path>) -> Option<PathBuf> {
        match &self.key_file {
            AutoPath::None => None,
            AutoPath::At(path) => Some(path.clone()),
            AutoPath::Auto => {
                let beside = main_file?.parent()?.join(Self::KEY_FILE);
                // One that cannot be looked at is there: the daemon says so, instead of being plain.
                match beside.symlink_metadata() {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                    _ => Some(beside),
                }
            }
        }
    }
}

/// `[peers.NAME]`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Peer {
    /// Where it listens; empty for one that only connects to us, which then has a key.
    pub address: HostPort,
    /// Its public key: its lanes are authenticated, and nobody else can use its name.
    #[serde(serialize_with = "write_key", deserialize_with = "read_key")]
    pub key: Option<PublicKey>,
    /// The key it is about to change to: until then it may prove itself with either.
    #[serde(serialize_with = "write_key", deserialize_with = "read_key")]
    pub next_key: Option<PublicKey>,
}

impl Peer {
    /// The keys with which it may prove who it is; none: its lanes are plain.
    pub fn keys(&self) -> impl Iterator<Item = PublicKey> {
        self.named_keys().map(|(_, key)| key)
    }

    /// The same, with the field that has each.
    pub(crate) fn named_keys(&self) -> impl Iterator<Item = (&'static str, PublicKey)> {
        let fields = [("key", self.key), ("next_key", self.next_key)];
        fields.into_iter().filter_map(|(field, key)| Some((field, key?)))
    }
}

fn write_key<S: Serializer>(key: &Option<PublicKey>, to: S) -> Result<S::Ok, S::Error> {
    match key {
        Some(key) => to.collect_str(key),
        None => to.serialize_str(""),
    }
}

fn read_key<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PublicKey>, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| de::Error::custom(format!("`{text}` {error}")))
}

/// `[exports.NAME]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Export {
    /// The directory; never empty, always absolute after validation.
    pub path: PathBuf,
    /// Whether files below it may be read.
    pub read: bool,
    /// Whether files below it may be written and created.
    pub write: bool,
    /// Local users that may use it.
    pub users: Vec<Principal>,
    /// Groups whose members may. Both lists empty: all that `[access]` admits.
    pub groups: Vec<Principal>,
    /// Peers that may use it; empty: all that may connect.
    pub peers: Vec<String>,
}

impl Default for Export {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            read: true,
            write: false,
            users: Vec::new(),
            groups: Vec::new(),
            peers: Vec::new(),
        }
    }
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug` or `trace`, or directives such as `info,piped::peer=debug`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".to_owned() }
    }
}
