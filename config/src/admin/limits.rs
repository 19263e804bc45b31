//! The bodies of `/v1/limits`: what is in force, what is used of it, and changes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `GET`: [`LimitsReport`]. `PUT`: [`LimitsChange`], answered by [`LimitsChanged`].
pub const LIMITS: &str = "/v1/limits";

/// What is limited, and how much of it is used. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsReport {
    /// Every limit in force.
    pub limits: Vec<LimitRow>,
    /// Staging memory.
    pub staging: StagingReport,
    /// Requests of clients that wait for a limit now.
    pub waiting: u64,
    /// Requests of clients and peers that had to wait for one, since start.
    pub waited: u64,
    /// Messages for which there was no early-arrival memory, since start: they waited with their senders.
    pub stalled: u64,
    /// The users that have sessions, or shared memory of some.
    #[serde(default)]
    pub users: Vec<UserRow>,
    /// The sessions.
    pub clients: Vec<PartyRow>,
    /// The peers that ask this node, once for each shard that they ask.
    pub peers: Vec<PartyRow>,
    /// The file that `persist` writes; none if there is no configuration file.
    pub drop_in: Option<PathBuf>,
}

/// A limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRow {
    /// As in the configuration, without `limits.`: `global.staging`.
    pub name: String,
    /// Whether it is a number of bytes.
    pub is_bytes: bool,
    /// What was asked for.
    pub limit: u64,
    /// What is in force of it, where that is less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<LimitGiven>,
    /// What is used now; of `user`, `client` and `peer` by the one that uses most.
    pub used: u64,
    /// The most that was used since start, by what is there now.
    pub high: u64,
}

/// What a limit comes to, where that is less than was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitGiven {
    /// What is in force.
    pub amount: u64,
    /// Why it is not what was asked for.
    pub because: String,
}

/// Staging memory of all shards, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagingReport {
    /// What the shards have. Above the limit only while some of it drains.
    pub owned_bytes: u64,
    /// Of that, what is given back after its last use.
    pub draining_bytes: u64,
    /// What the process has mapped for it.
    pub mapped_bytes: u64,
    /// The least that can be set now.
    pub least_bytes: u64,
}

/// How much there is of something, and the most there was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// Now.
    pub used: u64,
    /// The most since it is there.
    pub high: u64,
}

/// What all sessions of a user have together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRow {
    /// Its number.
    pub uid: u32,
    /// Its name, if the system has one for it.
    pub user: Option<String>,
    /// Sessions, also those that ended and are not given back yet.
    pub sessions: u64,
    /// Shared memory that is not given back yet, in bytes.
    pub arena_bytes: u64,
    /// What they have open.
    pub handles: u64,
    /// Regions that they offer.
    #[serde(default)]
    pub regions: u64,
    /// Channels that they receive on.
    #[serde(default)]
    pub channels: u64,
}

/// What a session or a peer uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartyRow {
    /// The session's number, or the peer's name.
    pub name: String,
    /// A session's user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// Its shard.
    pub shard: u32,
    /// Staging, in bytes.
    pub staging: Use,
    /// Bytes in execution.
    pub in_flight: Use,
    /// Requests in execution.
    pub requests: Use,
    /// Requests that wait for a limit.
    pub waiting: u32,
    /// What it has open.
    pub handles: u32,
    /// Messages that it has not asked for, in bytes of early-arrival memory.
    pub early_arrival: Use,
    /// Bytes moved in a second.
    #[serde(default)]
    pub rate: Use,
}

/// Limits to change: all of them, or, if one cannot be, none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsChange {
    /// `global.staging` to `"64MiB"`, or to a number.
    pub set: BTreeMap<String, LimitValue>,
    /// Write them into a drop-in of the configuration, too: they hold after a restart.
    #[serde(default)]
    pub persist: bool,
}

/// A value as it is written: a number, or text with a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a limit is a whole number, or text as in \"64MiB\"")]
pub enum LimitValue {
    /// Plain.
    Number(u64),
    /// As in the configuration.
    Text(String),
}

impl core::fmt::Display for LimitValue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// Changed limits are in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsChanged {
    /// All of them, as plain numbers, as they were asked for.
    pub limits: BTreeMap<String, u64>,
    /// What is in force of those that are not given as they were asked for.
    #[serde(default)]
    pub given: BTreeMap<String, LimitGiven>,
    /// The file that has the changed ones from now on, if that was asked.
    pub persisted: Option<PathBuf>,
}
