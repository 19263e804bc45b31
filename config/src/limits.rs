//! `[limits]`: how much all parties together, one user, one client or one peer may use at once.
//!
//! Every kind has one meaning in each scope (`global`, `user`, `client`, `peer`) or does not exist
//! there:
//!
//! - `staging`: staging memory of the daemon (`global`), the part held by the copies of one session
//!   (`client`) or by the requests of one peer (`peer`).
//! - `in_flight`: bytes of clients' requests in execution (`global`, `client`), bytes of one peer's
//!   reads (`peer`; its writes have credit).
//! - `sessions`: sessions (`global`), sessions of one user (`user`).
//! - `arena`: shared memory until it is given back, of all sessions (`global`) or of one user's
//!   (`user`); one session has `client.arena_bytes_max`.
//! - `lent`: memory of clients' own that they lend, of all sessions (`global`), of one user's
//!   (`user`), of one session (`client`).
//! - `handles`: open handles of all sessions (`global`), of one user's (`user`), of one session
//!   (`client`), and of one peer here (`peer`).
//! - `regions`, `channels`: regions offered and channels received on by all sessions (`global`), by
//!   one user's (`user`), by one session (`client`).
//! - `requests`: clients' requests in execution (`global`, `client`), one peer's reads and syncs in
//!   execution (`peer`).
//! - `early_arrival`: the part of staging for messages that nobody has asked for yet (`global`),
//!   and for one session (`client`).
//! - `rate`: bytes moved in a second for one session (`client`) or one peer (`peer`).
//!
//! At a limit of bytes in execution, requests or rate, work waits. At a limit of sessions, shared
//! or lent memory, handles, regions or channels, a new one is refused and the present ones stay. By
//! default a user has half of what all have, so nobody can keep all others out. Sessions are opened
//! on one thread for all shards, so limits of a user hold exactly and for the daemon as a whole.
//! Each shard knows only its own requests in execution: a user has at most the limit of a session,
//! times its sessions.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::quantity::{Bytes, MemoryLimit};
use crate::validate::Faults;

/// Table `[limits]` of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Limits of all parties together.
    pub global: GlobalLimits,
    /// Limits of one user, all of its sessions together.
    pub user: UserLimits,
    /// Limits of one client.
    pub client: ClientLimits,
    /// Limits of one peer that asks this node.
    pub peer: PeerLimits,
}

/// Table `[limits.global]` of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GlobalLimits {
    /// Staging buffers of all shards.
    pub staging: Bytes,
    /// Bytes of clients' requests in execution.
    pub in_flight: Bytes,
    /// Sessions at the same time.
    pub sessions: u32,
    /// Shared memory of all sessions.
    pub arena: MemoryLimit,
    /// Memory that all clients lend.
    pub lent: MemoryLimit,
    /// Handles of all sessions.
    pub handles: u32,
    /// Regions that all sessions offer.
    pub regions: u32,
    /// Channels that all sessions receive on.
    pub channels: u32,
    /// Clients' requests in execution.
    pub requests: u32,
    /// Part of staging for messages that nobody has asked for.
    pub early_arrival: Bytes,
}

/// Table `[limits.user]` of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserLimits {
    /// Sessions of one user.
    pub sessions: u32,
    /// Shared memory of these sessions together.
    pub arena: MemoryLimit,
    /// Memory that these sessions lend together.
    pub lent: MemoryLimit,
    /// Handles of these sessions together.
    pub handles: u32,
    /// Regions that these sessions offer together.
    pub regions: u32,
    /// Channels that these sessions receive on together.
    pub channels: u32,
}

/// Table `[limits.client]` of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientLimits {
    /// Staging of one session's copies.
    pub staging: Bytes,
    /// Bytes of one session's requests in execution.
    pub in_flight: Bytes,
    /// Memory that one session lends.
    pub lent: MemoryLimit,
    /// Handles of one session.
    pub handles: u32,
    /// Regions that one session offers.
    pub regions: u32,
    /// Channels that one session receives on.
    pub channels: u32,
    /// Requests of one session in execution.
    pub requests: u32,
    /// Messages that one session has not asked for.
    pub early_arrival: Bytes,
    /// Bytes moved for one session in a second; 0 is no bound.
    pub rate: Bytes,
}

/// Table `[limits.peer]` of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeerLimits {
    /// Staging of one peer's requests.
    pub staging: Bytes,
    /// Bytes of one peer's reads in execution.
    pub in_flight: Bytes,
    /// Handles that one peer has open here.
    pub handles: u32,
    /// One peer's reads and syncs in execution.
    pub requests: u32,
    /// Bytes moved here for one peer in a second; 0 is no bound.
    pub rate: Bytes,
}

impl Default for GlobalLimits {
    fn default() -> Self {
        Self {
            staging: Bytes::mib(64),
            in_flight: Bytes::gib(16),
            sessions: 64,
            arena: MemoryLimit::Auto,
            lent: MemoryLimit::Auto,
            handles: 65_536,
            regions: 4096,
            channels: 4096,
            requests: 2048,
            early_arrival: Bytes::mib(16),
        }
    }
}

impl Default for UserLimits {
    fn default() -> Self {
        Self {
            sessions: 32,
            arena: MemoryLimit::Auto,
            lent: MemoryLimit::Auto,
            handles: 32_768,
            regions: 2048,
            channels: 2048,
        }
    }
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            staging: Bytes::mib(32),
            in_flight: Bytes::gib(16),
            lent: MemoryLimit::Auto,
            handles: 4096,
            regions: 1024,
            channels: 1024,
            requests: 2048,
            early_arrival: Bytes::mib(8),
            rate: Bytes(0),
        }
    }
}

impl Default for PeerLimits {
    fn default() -> Self {
        Self {
            staging: Bytes::mib(64),
            in_flight: Bytes::gib(16),
            handles: 4096,
            requests: 512,
            rate: Bytes(0),
        }
    }
}

/// More staging would have more segments than a shard has places.
const STAGING_MAX: Bytes = Bytes::gib(16);
/// Least: a page of one session; most: more than any machine has.
const ARENA: (Bytes, Bytes) = (Bytes::kib(4), Bytes::gib(1 << 20));
const IN_FLIGHT: (Bytes, Bytes) = (Bytes::mib(4), Bytes::gib(1 << 20));
/// Bytes a second, where there is a bound.
const RATE: (Bytes, Bytes) = (Bytes(64 << 10), Bytes::gib(1 << 10));
/// The most sessions that the daemon's threads are planned for.
const SESSIONS_MAX: u32 = 4096;
/// The most sessions that the daemon's threads are planned for.
const HANDLES_MAX: u32 = 4096;
/// Regions of a node; each has a place in the tables of every shard that uses it.
const REGIONS_MAX: u32 = 4096;
/// Channels of a node.
const CHANNELS_MAX: u32 = 4096;
/// Requests of clients in execution on one shard.
const REQUESTS_MAX: u32 = 2048;
const PEER_REQUESTS_MAX: u32 = 512;

impl Limits {
    /// Unit in which a shard's staging grows and shrinks, and its minimum: a fragment of the
    /// longest kind each way, and memory for a few lanes.
    pub const STAGING_UNIT: Bytes = Bytes::mib(4);

    /// The most sessions that a configuration can allow.
    pub const SESSIONS_MAX: u32 = SESSIONS_MAX;

    /// Staging of one of `shards` shards in bytes: its share in whole units.
    #[must_use]
    pub fn staging_of_shard(&self, shards: u32) -> u64 {
        let unit = Self::STAGING_UNIT.0;
        self.global.staging.0 / u64::from(shards) / unit * unit
    }

    /// Replaces `auto` by shares of `bytes`, the memory of the machine: half of it for all clients,
    /// and half of that for one user. Memory that clients lend is theirs already, but what the
    /// daemon touches of it first is charged to the daemon: it has a quarter, and half of that for
    /// one user, a session too. The rest is for the daemon's own buffers, the page cache and other
    /// programs. A user at its limit leaves as much to the others.
    #[must_use]
    pub fn with_memory(mut self, bytes: u64) -> Self {
        self.global.arena = self.global.arena.or((bytes / 2).clamp(ARENA.0.0, ARENA.1.0));
        let half = (self.global.arena.bytes() / 2).max(ARENA.0.0);
        self.user.arena = self.user.arena.or(half);
        self.global.lent = self.global.lent.or((bytes / 4).clamp(ARENA.0.0, ARENA.1.0));
        let half = (self.global.lent.bytes() / 2).max(ARENA.0.0);
        self.user.lent = self.user.lent.or(half);
        self.client.lent = self.client.lent.or(self.user.lent.bytes());
        self
    }

    /// Checks bounds and relations of all limits.
    pub(crate) fn check(&self, shards: u32, faults: &mut Faults) {
        let Self { global, user, client, peer } = self;
        let least = Bytes(Self::STAGING_UNIT.0 * u64::from(shards));
        let fits = (least..=STAGING_MAX).contains(&global.staging);
        faults.check(fits, "limits.global.staging", || {
            format!(
                "is {}: choose from {least} ({} for each shard) to {STAGING_MAX}",
                global.staging,
                Self::STAGING_UNIT
            )
        });
        let mut bytes = |value: Bytes, from: Bytes, to: Bytes, key: &str| {
            faults.check((from..=to).contains(&value), key, || {
                format!("is {value}: choose a size from {from} to {to}")
            });
        };
        for (limit, key) in [
            (global.arena, "limits.global.arena"),
            (user.arena, "limits.user.arena"),
            (global.lent, "limits.global.lent"),
            (user.lent, "limits.user.lent"),
            (client.lent, "limits.client.lent"),
        ] {
            if let MemoryLimit::UpTo(most) = limit {
                bytes(most, ARENA.0, ARENA.1, key);
            }
        }
        bytes(client.staging, Bytes::mib(1), STAGING_MAX, "limits.client.staging");
        // Zero is allowed: then every message waits with its sender.
        bytes(global.early_arrival, Bytes(0), STAGING_MAX, "limits.global.early_arrival");
        bytes(client.early_arrival, Bytes(0), STAGING_MAX, "limits.client.early_arrival");
        for (rate, key) in [(client.rate, "limits.client.rate"), (peer.rate, "limits.peer.rate")] {
            // Zero is no bound; a value below the least is a mistake.
            let from = if rate.0 == 0 { Bytes(0) } else { RATE.0 };
            bytes(rate, from, RATE.1, key);
        }
        bytes(peer.staging, Self::STAGING_UNIT, STAGING_MAX, "limits.peer.staging");
        let (from, to) = IN_FLIGHT;
        bytes(global.in_flight, from, to, "limits.global.in_flight");
        bytes(client.in_flight, from, to, "limits.client.in_flight");
        bytes(peer.in_flight, from, to, "limits.peer.in_flight");
        let requests_max = REQUESTS_MAX * shards;
        for (value, to, key) in [
            (global.sessions, SESSIONS_MAX, "limits.global.sessions"),
            (user.sessions, SESSIONS_MAX, "limits.user.sessions"),
            (user.handles, SESSIONS_MAX * HANDLES_MAX, "limits.user.handles"),
            (global.handles, SESSIONS_MAX * HANDLES_MAX, "limits.global.handles"),
            (client.handles, HANDLES_MAX, "limits.client.handles"),
            (peer.handles, HANDLES_MAX, "limits.peer.handles"),
            (global.regions, REGIONS_MAX, "limits.global.regions"),
            (user.regions, REGIONS_MAX, "limits.user.regions"),
            (client.regions, REGIONS_MAX, "limits.client.regions"),
            (global.channels, CHANNELS_MAX, "limits.global.channels"),
            (user.channels, CHANNELS_MAX, "limits.user.channels"),
            (client.channels, CHANNELS_MAX, "limits.client.channels"),
            (client.requests, requests_max, "limits.client.requests"),
            (peer.requests, PEER_REQUESTS_MAX, "limits.peer.requests"),
        ] {
            faults.within(value, 1, to, key);
        }
        faults.within(global.requests, shards, requests_max, "limits.global.requests");
    }

    /// Checks limits for a daemon with this many shards.
    ///
    /// # Errors
    ///
    /// The first fault: the key, the problem, and the fix.
    pub fn validate(&self, shards: u32) -> Result<(), String> {
        let mut faults = Faults::default();
        self.check(shards, &mut faults);
        match faults.first() {
            Some(fault) => Err(format!("`{}` {}", fault.key, fault.problem)),
            None => Ok(()),
        }
    }

    /// All limits, each by its name behind `limits.`.
    #[must_use]
    pub fn entries(&self) -> [(&'static str, Amount); 30] {
        let Self { global, user, client, peer } = self;
        [
            ("global.staging", global.staging.into()),
            ("global.in_flight", global.in_flight.into()),
            ("global.sessions", global.sessions.into()),
            ("global.arena", global.arena.into()),
            ("global.lent", global.lent.into()),
            ("global.handles", global.handles.into()),
            ("global.regions", global.regions.into()),
            ("global.channels", global.channels.into()),
            ("global.requests", global.requests.into()),
            ("global.early_arrival", global.early_arrival.into()),
            ("user.sessions", user.sessions.into()),
            ("user.arena", user.arena.into()),
            ("user.lent", user.lent.into()),
            ("user.handles", user.handles.into()),
            ("user.regions", user.regions.into()),
            ("user.channels", user.channels.into()),
            ("client.staging", client.staging.into()),
            ("client.in_flight", client.in_flight.into()),
            ("client.lent", client.lent.into()),
            ("client.handles", client.handles.into()),
            ("client.regions", client.regions.into()),
            ("client.channels", client.channels.into()),
            ("client.requests", client.requests.into()),
            ("client.early_arrival", client.early_arrival.into()),
            ("client.rate", client.rate.into()),
            ("peer.staging", peer.staging.into()),
            ("peer.in_flight", peer.in_flight.into()),
            ("peer.handles", peer.handles.into()),
            ("peer.requests", peer.requests.into()),
            ("peer.rate", peer.rate.into()),
        ]
    }

    /// Changes one limit. `key` is a name of [`Limits::entries`], with or without `limits.` before
    /// it.
    ///
    /// # Errors
    ///
    /// A key that does not exist, with the nearest one; or a value that is no amount of its kind.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let key = key.strip_prefix("limits.").unwrap_or(key);
        let Self { global, user, client, peer } = self;
        let place = match key {
            "global.staging" => Place::Bytes(&mut global.staging),
            "global.in_flight" => Place::Bytes(&mut global.in_flight),
            "global.sessions" => Place::Count(&mut global.sessions),
            "global.arena" => Place::Memory(&mut global.arena),
            "global.lent" => Place::Memory(&mut global.lent),
            "global.handles" => Place::Count(&mut global.handles),
            "global.regions" => Place::Count(&mut global.regions),
            "global.channels" => Place::Count(&mut global.channels),
            "global.requests" => Place::Count(&mut global.requests),
            "global.early_arrival" => Place::Bytes(&mut global.early_arrival),
            "user.sessions" => Place::Count(&mut user.sessions),
            "user.arena" => Place::Memory(&mut user.arena),
            "user.lent" => Place::Memory(&mut user.lent),
            "user.handles" => Place::Count(&mut user.handles),
            "user.regions" => Place::Count(&mut user.regions),
            "user.channels" => Place::Count(&mut user.channels),
            "client.staging" => Place::Bytes(&mut client.staging),
            "client.in_flight" => Place::Bytes(&mut client.in_flight),
            "client.lent" => Place::Memory(&mut client.lent),
            "client.handles" => Place::Count(&mut client.handles),
            "client.regions" => Place::Count(&mut client.regions),
            "client.channels" => Place::Count(&mut client.channels),
            "client.requests" => Place::Count(&mut client.requests),
            "client.early_arrival" => Place::Bytes(&mut client.early_arrival),
            "client.rate" => Place::Bytes(&mut client.rate),
            "peer.staging" => Place::Bytes(&mut peer.staging),
            "peer.in_flight" => Place::Bytes(&mut peer.in_flight),
            "peer.handles" => Place::Count(&mut peer.handles),
            "peer.requests" => Place::Count(&mut peer.requests),
            "peer.rate" => Place::Bytes(&mut peer.rate),
            _ => return Err(unknown(key)),
        };
        match place {
            Place::Bytes(bytes) => {
                *bytes = value.trim().parse().map_err(|error| format!("`{key}`: {error}"))?;
            }
            Place::Memory(limit) => {
                *limit = value.trim().parse().map_err(|error| format!("`{key}`: {error}"))?;
            }
            Place::Count(count) => {
                let number = value.trim().parse();
                *count = number.map_err(|_| {
                    format!("`{key}`: `{value}` is not a number: write digits, as in 64")
                })?;
            }
        }
        Ok(())
    }
}

enum Place<'a> {
    Bytes(&'a mut Bytes),
    Memory(&'a mut MemoryLimit),
    Count(&'a mut u32),
}

fn unknown(key: &str) -> String {
    if key == "client.sessions" {
        return "`client.sessions` moved: write `user.sessions`".to_owned();
    }
    let keys = Limits::default().entries().map(|(key, _)| key);
    let nearest = keys.iter().min_by_key(|known| strsim::damerau_levenshtein(known, key));
    match nearest.filter(|known| strsim::damerau_levenshtein(known, key) <= 3) {
        Some(nearest) => format!("there is no limit `{key}`; did you mean `{nearest}`?"),
        None => format!("there is no limit `{key}`; there are: {}", keys.join(", ")),
    }
}

/// Amount that a limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// Limit as a number of bytes.
    Bytes(Bytes),
    /// Number of bytes, or a share of the machine's memory.
    Memory(MemoryLimit),
    /// Limit as a number of things.
    Count(u32),
}

impl Amount {
    /// Whether the amount is a number of bytes.
    #[must_use]
    pub fn is_bytes(self) -> bool {
        !matches!(self, Self::Count(_))
    }

    /// Amount as a plain number.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.0,
            Self::Memory(limit) => limit.bytes(),
            Self::Count(count) => count.into(),
        }
    }
}

impl From<Bytes> for Amount {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<MemoryLimit> for Amount {
    fn from(limit: MemoryLimit) -> Self {
        Self::Memory(limit)
    }
}

impl From<u32> for Amount {
    fn from(count: u32) -> Self {
        Self::Count(count)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Memory(limit) => limit.fmt(f),
            Self::Count(count) => count.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_can_be_set_to_what_it_shows_and_is_a_key_of_the_configuration() {
        let value = serde_json::to_value(Limits::default()).expect("plain data");
        let mut keys = 0;
        for (scope, kinds) in value.as_object().expect("scopes") {
            for kind in kinds.as_object().expect("kinds").keys() {
                let wanted = format!("{scope}.{kind}");
                assert!(
                    Limits::default().entries().iter().any(|(key, _)| *key == wanted),
                    "{wanted}"
                );
                keys += 1;
            }
        }
        assert_eq!(keys, Limits::default().entries().len());
        for (at, (key, _)) in Limits::default().entries().into_iter().enumerate() {
            let mut limits = Limits::default();
            let bytes = ["staging", "arena", "lent", "in_flight", "early_arrival", "rate"];
            let is_bytes = bytes.iter().any(|kind| key.ends_with(kind));
            let value = if is_bytes { "5MiB" } else { "5" };
            limits.set(&format!("limits.{key}"), value).expect("its kind");
            for (other, (key, amount)) in limits.entries().into_iter().enumerate() {
                assert_eq!(amount.to_string() == value, other == at, "{key}");
            }
        }
    }

    #[test]
    fn what_is_no_limit_or_no_amount_is_refused_with_advice() {
        let set = |key, value| Limits::default().set(key, value).expect_err("refused");
        assert!(set("global.stagign", "1MiB").contains("did you mean `global.staging`?"));
        assert!(set("peer.sessions", "1").contains("there is no limit `peer.sessions`"));
        assert!(set("client.sessions", "1").contains("write `user.sessions`"));
        assert!(set("turbulence", "1").contains("there are: global.staging"));
        assert!(set("global.staging", "64MB").contains("64MiB"));
        assert!(set("client.requests", "many").contains("not a number"));
        let mut limits = Limits::default();
        limits.set("global.staging", "4MiB").expect("a size");
        assert!(limits.validate(2).expect_err("4 for each").contains("8MiB"));
        assert_eq!(limits.validate(1), Ok(()));
    }

    #[test]
    fn what_is_left_to_the_machine_is_half_of_it_and_a_user_has_half_of_that() {
        let limits = Limits::default().with_memory(16 << 30);
        let arenas = |limits: &Limits| (limits.global.arena.bytes(), limits.user.arena.bytes());
        assert_eq!(arenas(&limits), (8 << 30, 4 << 30));
        let mut limits = Limits::default();
        limits.set("global.arena", "1GiB").expect("a size");
        assert_eq!(arenas(&limits.with_memory(16 << 30)), (1 << 30, 1 << 29));
        limits.set("user.arena", "2GiB").expect("a size");
        limits.set("global.arena", "auto").expect("left to the machine");
        assert_eq!(arenas(&limits.with_memory(16 << 30)), (8 << 30, 2 << 30));
        assert_eq!(limits.with_memory(0).validate(1), Ok(()));
        assert_eq!(limits.with_memory(u64::MAX).validate(1), Ok(()));
        assert!(set_and_check(limits, "user.arena", "1KiB").contains("choose a size from 4KiB"));
        assert!(set_and_check(limits, "client.lent", "1KiB").contains("choose a size from 4KiB"));
    }

    #[test]
    fn lent_memory_has_shares_of_its_own_and_a_session_may_have_its_users() {
        let mut limits = Limits::default();
        limits.set("global.lent", "2GiB").expect("a size");
        let with = limits.with_memory(16 << 30);
        let lent = |limits: Limits| {
            let Limits { global, user, client, .. } = limits;
            [global.lent, user.lent, client.lent].map(MemoryLimit::bytes)
        };
        assert_eq!(lent(with), [2 << 30, 1 << 30, 1 << 30]);
        assert_eq!(lent(Limits::default().with_memory(16 << 30)), [4 << 30, 2 << 30, 2 << 30]);
        assert_eq!(with.global.arena.bytes(), 8 << 30, "one is not taken from the other");
        limits.set("client.lent", "64MiB").expect("a size");
        assert_eq!(limits.with_memory(16 << 30).client.lent.bytes(), 64 << 20);
    }

    fn set_and_check(mut limits: Limits, key: &str, value: &str) -> String {
        limits.set(key, value).expect("its kind");
        limits.validate(1).expect_err("out of bounds")
    }

    /// One user has at most half of everything that is refused at its limit, and one session at
    /// most as much as its user.
    #[test]
    fn no_user_can_take_everything_by_default() {
        let limits = Limits::default().with_memory(16 << 30);
        let amount = |key: String| {
            let entries = limits.entries();
            entries.iter().find(|(name, _)| **name == key).map(|(_, amount)| amount.number())
        };
        for kind in ["sessions", "arena", "handles", "regions", "channels"] {
            let [global, user] = ["global", "user"].map(|scope| {
                amount(format!("{scope}.{kind}")).unwrap_or_else(|| panic!("{scope}.{kind}"))
            });
            assert!(2 * user <= global, "{kind}: {user} of {global}");
            if let Some(client) = amount(format!("client.{kind}")) {
                assert!(client <= user, "{kind}: {client} of {user}");
            }
        }
    }
}
