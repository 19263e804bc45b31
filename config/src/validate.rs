//! Checks of relations between values, and of names, that types cannot express.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use piped_core::limits::PEERS_DIALLED_MAX;
use piped_core::link::Protection;
use piped_core::modes::{EagerMode, PlannerMode};

use crate::cluster::GROUP_MARK;
use crate::discovery::{Discovery, Endpoint, Etcd};
use crate::log_level;
use crate::modes::{AutoPath, ShardCount, Spin};
use crate::node_key::PublicKey;
use crate::quantity::{Bytes, Period};
use crate::schema::Config;

/// A value that cannot work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Name of the key to change.
    pub key: String,
    /// Problem with the value, and the fix.
    pub problem: String,
}

/// Longest path of a unix socket (`sun_path` less its terminating zero).
const SOCKET_PATH_MAX: usize = 107;
/// Most peers of a node, in the configuration and found. How many are dialled at a time,
/// [`PEERS_DIALLED_MAX`] bounds.
pub const PEERS_MAX: usize = 1024;
/// Longest node, peer or export name: it travels in one handshake message.
pub(crate) const NAME_MAX: usize = 64;
/// Bounds of the ring (its layout has the same limits).
const QUEUE_ENTRIES_MAX: u32 = 4096;
const QUEUES_MAX: u32 = 64;
const SHARDS_MAX: u32 = 64;
/// Bounds of io_uring's submission queue.
const IO_ENTRIES: core::ops::RangeInclusive<u32> = 64..=32768;
const PAGE: u64 = 4096;
const FRAGMENT_MIN: Bytes = Bytes::kib(4);
const FRAGMENT_MAX: Bytes = Bytes::mib(1);
/// A longer message would delay urgent ones.
const EAGER_MAX: Bytes = Bytes(256 << 10);

/// A longer spin is a busy loop by mistake.
const SPIN_MAX: Period = Period(core::time::Duration::from_millis(10));

/// Most addresses at which a node says that it is.
const ADVERTISED_MAX: usize = 2;
/// Most members of an etcd, or name servers, that are named.
const SERVERS_MAX: usize = 16;
/// Longest name of records, and longest prefix of keys.
const RECORDS_NAME_MAX: usize = 253;
/// Shortest and longest lease of a node's entry in an etcd.
const LEASES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(3600)];

/// Faults found so far.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    pub(crate) fn check(&mut self, holds: bool, key: &str, problem: impl FnOnce() -> String) {
        if !holds {
            self.0.push(Fault { key: key.to_owned(), problem: problem() });
        }
    }

    pub(crate) fn first(&self) -> Option<&Fault> {
        self.0.first()
    }

    pub(crate) fn within(&mut self, value: u32, from: u32, to: u32, key: &str) {
        self.check((from..=to).contains(&value), key, || {
            format!("is {value}: choose a number from {from} to {to}")
        });
    }

    fn power_of_two(&mut self, value: u32, from: u32, to: u32, key: &str) {
        self.check(value.is_power_of_two() && (from..=to).contains(&value), key, || {
            format!("is {value}: choose a power of two from {from} to {to}")
        });
    }

    fn socket_path(&mut self, path: &Path, key: &str) {
        self.check(path.is_absolute(), key, || {
            format!("is `{}`: write an absolute path", path.display())
        });
        let length = path.as_os_str().len();
        self.check(length <= SOCKET_PATH_MAX, key, || {
            format!(
                "has {length} bytes: the kernel takes at most {SOCKET_PATH_MAX}; choose a shorter \
                 path"
            )
        });
    }

    fn name(&mut self, name: &str, key: &str) {
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        self.check(begins_well && name.len() <= NAME_MAX && name.chars().all(letter), key, || {
            format!(
                "has the name `{name}`: use at most {NAME_MAX} letters, digits, `-`, `_` or `.`, \
                 beginning with a letter or digit"
            )
        });
    }
}

impl Config {
    /// Checks bounds, relations, names and networks, which types cannot.
    ///
    /// # Errors
    ///
    /// The first [`Fault`], naming the key and the fix.
    pub fn validate(&self) -> Result<(), Fault> {
        self.faults().into_iter().next().map_or(Ok(()), Err)
    }

    /// Everything that [`Self::validate`] would report, one after the other.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Faults::default();
        self.check_doors(&mut faults);
        self.check_client(&mut faults);
        self.check_machine(&mut faults);
        // `auto` takes no more shards than the limits are enough for.
        let least = match self.shards.count {
            ShardCount::Auto => 1,
            ShardCount::Fixed(count) => count,
        };
        self.limits.check(least, &mut faults);
        self.check_network(&mut faults);
        self.check_exports(&mut faults);
        self.check_log(&mut faults);
        faults.0
    }

    fn check_log(&self, faults: &mut Faults) {
        let checked = log_level::check(&self.log.level);
        faults.check(checked.is_ok(), "log.level", || checked.unwrap_err());
    }

    fn check_doors(&self, faults: &mut Faults) {
        if !self.node.name.is_empty() {
            faults.name(&self.node.name, "node.name");
        }
        if let AutoPath::At(path) = &self.node.state_dir {
            faults.check(path.is_absolute(), "node.state_dir", || {
                format!("is `{}`: write an absolute path, auto, or nothing", path.display())
            });
        }
        faults.socket_path(&self.client.socket, "client.socket");
        faults.socket_path(&self.admin.socket, "admin.socket");
        faults.check(self.client.socket != self.admin.socket, "admin.socket", || {
            "is also client.socket: give the two doors two paths".to_owned()
        });
        let metrics = self.metrics.address.filter(|address| address.port() > 0);
        faults.check(
            metrics.is_none() || metrics != self.listen.address,
            "metrics.address",
            || "is also listen.address: give the two doors two ports".to_owned(),
        );
    }

    fn check_client(&self, faults: &mut Faults) {
        let client = &self.client;
        faults.within(client.queues_max, 1, QUEUES_MAX, "client.queues_max");
        faults.power_of_two(client.entries_max, 1, QUEUE_ENTRIES_MAX, "client.entries_max");
        faults.check(client.arena_bytes_max.0 >= PAGE, "client.arena_bytes_max", || {
            format!("is {}: a client needs at least one page, 4KiB", client.arena_bytes_max)
        });
        faults.check(client.deadline_default.nanos() > 0, "client.deadline_default", || {
            "is 0: every request would be late; write a duration such as 30s".to_owned()
        });
    }

    fn check_machine(&self, faults: &mut Faults) {
        let shards = &self.shards;
        if let ShardCount::Fixed(count) = shards.count {
            faults.within(count, 1, SHARDS_MAX, "shards.count");
        }
        if !shards.cpus.is_empty() {
            faults.check(shards.pin, "shards.cpus", || {
                "names CPUs, but shards.pin is false: set it true or leave the list empty"
                    .to_owned()
            });
            let distinct: BTreeSet<u32> = shards.cpus.iter().copied().collect();
            let few = distinct.len() <= SHARDS_MAX as usize;
            let differ = few && distinct.len() == shards.cpus.len();
            let wanted = match shards.count {
                ShardCount::Auto => shards.cpus.len() as u32,
                ShardCount::Fixed(count) => count,
            };
            let enough = differ && u32::try_from(distinct.len()) == Ok(wanted);
            faults.check(enough, "shards.cpus", || {
                format!("must name {wanted} different CPUs, one a shard, or none")
            });
        }
        if let EagerMode::Fixed(most) = self.planner.eager {
            let most = Bytes(most.into());
            faults.check(most <= EAGER_MAX, "planner.eager", || {
                format!("is {most}: choose up to {EAGER_MAX}, or others wait behind messages")
            });
        }
        if let Spin::For(spin) = shards.spin {
            faults.check(spin <= SPIN_MAX, "shards.spin", || {
                format!("is {spin}: spinning longer than {SPIN_MAX} only burns a CPU")
            });
        }
        faults.power_of_two(self.io.entries, *IO_ENTRIES.start(), *IO_ENTRIES.end(), "io.entries");
        if let PlannerMode::Fixed(size) = self.planner.mode {
            let checked = check_fragment(Bytes(size.into()));
            faults.check(checked.is_ok(), "planner.mode", || checked.unwrap_err());
        }
    }

    fn check_network(&self, faults: &mut Faults) {
        if let AutoPath::At(path) = &self.security.key_file {
            faults.check(path.is_absolute(), "security.key_file", || {
                format!("is `{}`: write an absolute path, auto, or nothing", path.display())
            });
        }
        let mut keys = BTreeMap::new();
        faults.check(self.peers.len() <= PEERS_MAX, "peers", || {
            format!("are {}: a node asks at most {PEERS_MAX} others", self.peers.len())
        });
        check_discovery(&self.discovery, self.listen.address, faults);
        self.cluster.check(faults);
        let dialled = self.peers.values().filter(|peer| !peer.address.is_empty()).count();
        faults.check(dialled <= PEERS_DIALLED_MAX as usize, "peers", || {
            format!(
                "are {dialled} with an address: a node keeps connections to at most \
                 {PEERS_DIALLED_MAX}; leave out addresses that a source of [discovery] gives"
            )
        });
        for (name, peer) in &self.peers {
            let key = format!("peers.{name}.address");
            faults.name(name, &format!("peers.{name}"));
            faults.check(*name != self.node.name, &format!("peers.{name}"), || {
                "has this node's own name: a peer is another node".to_owned()
            });
            let has_proof = peer.key.is_some() || self.cluster.is_on();
            faults.check(!peer.address.is_empty() || has_proof, &key, || {
                "is not set: write where the peer listens, as in \"10.9.0.2:7440\"; or `key`, if \
                 it only connects to this node"
                    .to_owned()
            });
            let second = format!("peers.{name}.second_address");
            faults.check(
                peer.second_address.is_empty() || !peer.address.is_empty(),
                &second,
                || "is set without `address`: write the peer's first address there".to_owned(),
            );
            faults.check(
                peer.second_address.is_empty() || peer.second_address != peer.address,
                &second,
                || "is the same as `address`: write one that another link leads to".to_owned(),
            );
            for (key, address) in [(&key, &peer.address), (&second, &peer.second_address)] {
                let literal = address.as_str().parse::<SocketAddr>().map(|a| a.ip());
                let needs_key =
                    literal.is_ok_and(|ip: IpAddr| !self.listen.admits_plain(ip, false));
                faults.check(has_proof || !needs_key, key, || {
                    format!(
                        "is {address}, outside loopback, and the peer has no key, so lanes to it \
                         would be plain: run `pipectl keys trust {name} KEY`, or add its network \
                         to listen.allow_plain if you trust everybody in it; nodes of a cluster \
                         need neither: `piped join`"
                    )
                });
            }
            let next = format!("peers.{name}.next_key");
            faults.check(peer.next_key.is_none() || peer.key.is_some(), &next, || {
                "is set without `key`: write the key that the node has now there, and here the one \
                 it will have"
                    .to_owned()
            });
            faults.check(peer.next_key.is_none() || peer.next_key != peer.key, &next, || {
                "is the same as `key`: remove it, if the node has changed its key".to_owned()
            });
            for (field, key) in peer.named_keys() {
                let twin = keys.insert(key, name).unwrap_or(name);
                faults.check(twin == name, &format!("peers.{name}.{field}"), || {
                    format!(
                        "is also that of `{twin}`: a key belongs to one node, because it proves \
                         which node it is"
                    )
                });
            }
        }
    }

    /// Checks settings that depend on whether the node has a key of its own.
    ///
    /// # Errors
    ///
    /// The first [`Fault`].
    pub fn check_own_key(&self, own: Option<PublicKey>) -> Result<(), Fault> {
        self.own_key_faults(own).into_iter().next().map_or(Ok(()), Err)
    }

    /// Everything that [`Self::check_own_key`] would report, one after the other.
    #[must_use]
    pub fn own_key_faults(&self, own: Option<PublicKey>) -> Vec<Fault> {
        let mut faults = Faults::default();
        let is_encrypted = self.security.mode == Protection::Encrypted;
        faults.check(own.is_some() || !is_encrypted, "security.mode", || {
            "is \"encrypted\", but this node has no key, so all lanes would be plain: run `pipectl \
             keys generate`, and `pipectl keys trust` for each peer; or leave the mode out"
                .to_owned()
        });
        if let Some(address) = self.listen.address {
            faults.check(own.is_some() || self.listen.may_be_plain(), "listen.address", || {
                format!(
                    "is {address}, outside loopback, and this node has no key, so lanes would be \
                     plain: run `pipectl keys generate`; or name networks in which you trust every \
                     node, as in listen.allow_plain = [\"10.9.0.0/24\"], or listen on 127.0.0.1"
                )
            });
        }
        faults.check(own.is_some() || !self.cluster.is_on(), "cluster.keys", || {
            "are set, but this node has no key of its own to prove its identity: run `pipectl keys \
             generate`"
                .to_owned()
        });
        for (name, peer) in &self.peers {
            faults.check(peer.key.is_none() || own.is_some(), &format!("peers.{name}.key"), || {
                "is set, but this node has no key of its own to prove its identity: run `pipectl \
                 keys generate`"
                    .to_owned()
            });
            for (field, key) in peer.named_keys() {
                faults.check(Some(key) != own, &format!("peers.{name}.{field}"), || {
                    "is this node's own: write the one that `pipectl keys show` prints on the \
                     other node"
                        .to_owned()
                });
            }
        }
        faults.0
    }

    fn check_exports(&self, faults: &mut Faults) {
        for (name, export) in &self.exports {
            let key = |field: &str| format!("exports.{name}.{field}");
            faults.name(name, &format!("exports.{name}"));
            faults.check(export.path.is_absolute(), &key("path"), || {
                let path = export.path.display();
                format!("is `{path}`: write the absolute path of a directory, as in \"/srv/data\"")
            });
            faults.check(export.read || export.write, &key("read"), || {
                "and `write` are both false: allow one, or remove the export".to_owned()
            });
            faults.check(export.write || !export.names, &key("names"), || {
                "is true without `write`, which it needs: allow that, or take this back".to_owned()
            });
            for peer in &export.peers {
                let group = peer.strip_prefix(GROUP_MARK);
                faults.name(group.unwrap_or(peer), &key("peers"));
                faults.check(group.is_none() || self.cluster.is_on(), &key("peers"), || {
                    format!("names the group {peer}, but nodes have groups in a cluster only")
                });
            }
        }
    }
}

/// Checks the name of a node.
///
/// # Errors
///
/// The problem with the name, and the fix.
pub fn check_node_name(name: &str) -> Result<(), String> {
    let mut faults = Faults::default();
    faults.name(name, "NAME");
    faults.first().map_or(Ok(()), |fault| Err(format!("the node {}", fault.problem)))
}

fn check_discovery(discovery: &Discovery, listen: Option<SocketAddr>, faults: &mut Faults) {
    let is_set = |path: &Path| !path.as_os_str().is_empty();
    let Etcd { ca_file, certificate_file, key_file, password_file, .. } = &discovery.etcd;
    for (key, path) in [
        ("discovery.files", &discovery.files),
        ("discovery.etcd.ca_file", ca_file),
        ("discovery.etcd.certificate_file", certificate_file),
        ("discovery.etcd.key_file", key_file),
        ("discovery.etcd.password_file", password_file),
    ] {
        faults.check(!is_set(path) || path.is_absolute(), key, || {
            format!("is `{}`: write an absolute path, or nothing", path.display())
        });
    }
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_name = discovery.dns.len() <= RECORDS_NAME_MAX && discovery.dns.chars().all(letter);
    faults.check(is_name, "discovery.dns", || {
        "is not a name of records: write it as in \"_piped._tcp.storage.example\"".to_owned()
    });
    let servers = &discovery.dns_servers;
    faults.check(servers.is_empty() || !discovery.dns.is_empty(), "discovery.dns_servers", || {
        "is set without `dns`: write the name of the records there".to_owned()
    });
    faults.check(servers.len() <= SERVERS_MAX, "discovery.dns_servers", || {
        format!("names {}: at most {SERVERS_MAX} are asked", servers.len())
    });
    let are_addresses = discovery.advertise.iter().all(|address| !address.is_empty())
        && discovery.advertise.len() <= ADVERTISED_MAX;
    faults.check(are_addresses, "discovery.advertise", || {
        "is not one address or two: write host:port, and a second one by way of another link"
            .to_owned()
    });
    check_etcd(&discovery.etcd, faults);
    let listens_at_all = listen.is_some_and(|address| address.ip().is_unspecified());
    let is_told = !listens_at_all || !discovery.advertise.is_empty();
    faults.check(discovery.etcd.endpoints.is_empty() || is_told, "discovery.advertise", || {
        "is empty, and listen.address is all of this machine's: write where other nodes find \
         this one, as in [\"10.9.0.2:7440\"]"
            .to_owned()
    });
}

fn check_etcd(etcd: &Etcd, faults: &mut Faults) {
    let endpoints = &etcd.endpoints;
    faults.check(endpoints.len() <= SERVERS_MAX, "discovery.etcd.endpoints", || {
        format!("names {}: at most {SERVERS_MAX} are asked", endpoints.len())
    });
    let is_prefix = (1..=RECORDS_NAME_MAX).contains(&etcd.prefix.len());
    faults.check(is_prefix, "discovery.etcd.prefix", || {
        "is empty or long: write what the keys of one cluster begin with, as in \"/piped/\""
            .to_owned()
    });
    let has = |path: &Path| !path.as_os_str().is_empty();
    let is_secure = endpoints.iter().any(Endpoint::is_secure);
    faults.check(!is_secure || has(&etcd.ca_file), "discovery.etcd.ca_file", || {
        "is empty, and an endpoint is https: write the file with the certificates that vouch \
         for the members"
            .to_owned()
    });
    let together = has(&etcd.certificate_file) == has(&etcd.key_file);
    faults.check(together, "discovery.etcd.key_file", || {
        "and certificate_file belong together: set both, or none".to_owned()
    });
    let together = etcd.user.is_empty() != has(&etcd.password_file);
    faults.check(together, "discovery.etcd.password_file", || {
        "and user belong together: set both, or none".to_owned()
    });
    let is_private = etcd.user.is_empty() || endpoints.iter().all(Endpoint::keeps_secrets);
    faults.check(is_private, "discovery.etcd.user", || {
        "would send its password in the clear: write https:// endpoints".to_owned()
    });
    let [least, most] = LEASES;
    faults.check((least..=most).contains(&etcd.lease.0), "discovery.etcd.lease", || {
        format!("is {}: choose from 5s to 1h", etcd.lease)
    });
}

/// Checks a fragment size for the engine; also for the admin API's `fixed`.
pub(crate) fn check_fragment(size: Bytes) -> Result<(), String> {
    if (FRAGMENT_MIN..=FRAGMENT_MAX).contains(&size) { Ok(()) } else { Err(out_of_bounds(size)) }
}

/// Why a fragment size cannot be.
pub(crate) fn out_of_bounds(size: Bytes) -> String {
    format!("is fixed:{size}: choose a size from {FRAGMENT_MIN} to {FRAGMENT_MAX}")
}

/// Checks a planner mode that came over the admin API.
///
/// # Errors
///
/// The problem and the fix, if the fixed size is out of bounds.
pub fn check_planner_mode(mode: PlannerMode) -> Result<(), String> {
    match mode {
        PlannerMode::Auto | PlannerMode::Whole => Ok(()),
        PlannerMode::Fixed(size) => check_fragment(Bytes(size.into())),
    }
}
