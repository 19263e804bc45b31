//! The bodies of `/v1/limits`: limits in force, their use, and changes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Path of [`LimitsReport`], read with `GET`; `PUT` of a [`LimitsChange`] is answered by
/// [`LimitsChanged`].
pub const LIMITS: &str = "/v1/limits";

/// All limits and how much of each is used. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsReport {
    /// Every limit in force.
    pub limits: Vec<LimitRow>,
    /// State of staging memory.
    pub staging: StagingReport,
    /// Requests of clients that wait for a limit now.
    pub waiting: u64,
    /// Requests of clients and peers that had to wait for a limit, since start.
    pub waited: u64,
    /// Messages that found no unexpected-message buffer since start, and waited with their senders.
    pub stalled: u64,
    /// Users with sessions, or with shared memory of ended ones.
    #[serde(default)]
    pub users: Vec<UserRow>,
    /// Use by each session.
    pub clients: Vec<PartyRow>,
    /// Use by each peer that asks this node, one row a shard.
    pub peers: Vec<PartyRow>,
    /// File that `persist` writes; none if there is no configuration file.
    pub drop_in: Option<PathBuf>,
}

/// One limit and its use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRow {
    /// Name as in the configuration, without `limits.`: `global.staging`.
    pub name: String,
    /// Whether the limit is a number of bytes.
    pub is_bytes: bool,
    /// Limit that was asked for.
    pub limit: u64,
    /// Limit in force, where that is less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given: Option<LimitGiven>,
    /// Present use; for `user`, `client` and `peer` that of the heaviest one.
    pub used: u64,
    /// Highest use since start, by parties that still exist.
    pub high: u64,
}

/// Limit in force, where that is less than was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitGiven {
    /// Amount that is in force.
    pub amount: u64,
    /// Reason why the amount is smaller.
    pub because: String,
}

/// Staging memory of all shards, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagingReport {
    /// Staging that the shards have; above the limit only while some of it drains.
    pub owned_bytes: u64,
    /// Part of it that is given back after its last use.
    pub draining_bytes: u64,
    /// Memory that the process has mapped for staging.
    pub mapped_bytes: u64,
    /// Smallest size that can be set now.
    pub least_bytes: u64,
}

/// Present and highest use of something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// Amount in use now.
    pub used: u64,
    /// Highest amount in use so far.
    pub high: u64,
}

/// Use by all sessions of a user together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRow {
    /// Number of the user.
    pub uid: u32,
    /// Name of the user, if the system has one.
    pub user: Option<String>,
    /// Sessions, with ended ones that still hold memory or files.
    pub sessions: u64,
    /// Shared memory that is not given back yet, in bytes.
    pub arena_bytes: u64,
    /// Memory that clients lend, in bytes.
    #[serde(default)]
    pub lent_bytes: u64,
    /// Handles open in these sessions.
    pub handles: u64,
    /// Regions offered by these sessions.
    #[serde(default)]
    pub regions: u64,
    /// Channels that these sessions receive on.
    #[serde(default)]
    pub channels: u64,
}

/// Use by one session or one peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartyRow {
    /// Number of the session, or name of the peer.
    pub name: String,
    /// User of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
    /// Shard of the session or peer.
    pub shard: u32,
    /// Staging in use, in bytes.
    pub staging: Use,
    /// Bytes of requests in execution.
    pub in_flight: Use,
    /// Number of requests in execution.
    pub requests: Use,
    /// Requests that wait for a limit.
    pub waiting: u32,
    /// Number of open handles.
    pub handles: u32,
    /// Unexpected-message buffer in use, in bytes.
    pub early_arrival: Use,
    /// Bytes moved in a second.
    #[serde(default)]
    pub rate: Use,
}

/// Limits to change: all of them, or none if one cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsChange {
    /// New values by name: `global.staging` to `"64MiB"`, or to a number.
    pub set: BTreeMap<String, LimitValue>,
    /// Whether to write them into a drop-in too, so that they hold after a restart.
    #[serde(default)]
    pub persist: bool,
}

/// A value as an operator writes it: a number, or text with a unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a limit is a whole number, or text as in \"64MiB\"")]
pub enum LimitValue {
    /// Number without a unit.
    Number(u64),
    /// Text as in the configuration.
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

/// Answer that changed limits are in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsChanged {
    /// All limits as plain numbers, as they were asked for.
    pub limits: BTreeMap<String, u64>,
    /// Limits in force that are less than was asked for.
    #[serde(default)]
    pub given: BTreeMap<String, LimitGiven>,
    /// File that keeps the changed limits, if that was asked.
    pub persisted: Option<PathBuf>,
}
