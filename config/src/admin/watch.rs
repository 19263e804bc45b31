//! Bodies of what looks on: `stat`, `peers`, `transfers`, `exports`. They only tell; nothing is changed.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `GET`: a page of HTML, no JSON. Also on `[metrics] address`.
pub const PAGE: &str = "/";
/// `GET`: text for Prometheus, no JSON. Also on `[metrics] address`.
pub const METRICS: &str = "/metrics";
/// `GET`: [`Stat`].
pub const STAT: &str = "/v1/stat";
/// `GET`: [`Peers`].
pub const PEERS: &str = "/v1/peers";
/// `GET`: [`Transfers`] that run.
pub const TRANSFERS: &str = "/v1/transfers";
/// `GET`: [`Transfers`] that ended, the latest first.
pub const TRANSFERS_ENDED: &str = "/v1/transfers/ended";
/// `GET`: [`Exports`].
pub const EXPORTS: &str = "/v1/exports";

/// What was done since the start, to be subtracted from what it is later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stat {
    /// Since the daemon started, in seconds.
    pub uptime_seconds: f64,
    /// Staging memory, in bytes.
    pub staging_bytes: u64,
    /// Of it in use now, in bytes.
    pub staging_used_bytes: u64,
    /// Kinds of transfers of which there were any.
    pub operations: Vec<OperationStat>,
}

/// A kind of transfers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationStat {
    /// `read`, `write`, `get`, `put`, `copy` or `sync`.
    pub operation: String,
    /// `local` or `remote`.
    pub route: String,
    /// `latency` or `bulk`.
    pub class: String,
    /// Those that ended well.
    pub completed: u64,
    /// Those that ended otherwise.
    pub failed: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Times of those that ended well: how many took at most so many seconds (none: without bound) and more
    /// than the bound before. Places where there are none are left out.
    pub latency: Vec<(Option<f64>, u64)>,
}

/// The peers. `L` is `piped_report::shard::LaneReport`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Peers<L = Value> {
    /// One entry a peer, role and shard.
    pub peers: Vec<PeerEntry<L>>,
}

/// A peer as one shard has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerEntry<L = Value> {
    /// The shard.
    pub shard: u32,
    /// Its name.
    pub name: String,
    /// True if it connected to us and is served, false if we ask it.
    pub inbound: bool,
    /// Where it listens, of those we ask.
    pub address: Option<String>,
    /// Its lanes.
    pub lanes: Vec<L>,
}

/// Transfers. `T` is `piped_report::shard::TransferReport`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transfers<T = Value> {
    /// How many there are; more than are listed if they are too many.
    pub total: u32,
    /// They.
    pub transfers: Vec<TransferEntry<T>>,
}

/// A transfer and its shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransferEntry<T = Value> {
    /// The shard.
    pub shard: u32,
    /// The transfer.
    #[serde(flatten)]
    pub transfer: T,
}

/// What this node offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exports {
    /// Directories.
    pub exports: Vec<ExportReport>,
    /// Memory regions of clients.
    pub regions: Vec<RegionReport>,
    /// Channels that clients receive on.
    pub channels: Vec<ChannelReport>,
}

/// A directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportReport {
    /// Its name.
    pub name: String,
    /// The directory.
    pub path: String,
    /// Whether files may be read.
    pub read: bool,
    /// Whether files may be written and created.
    pub write: bool,
    /// Local users that may use it.
    pub users: Vec<String>,
    /// Groups whose members may. Both empty: all that `[access]` admits.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Peers that may use it; empty: all that may connect.
    pub peers: Vec<String>,
}

/// A channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelReport {
    /// Its name.
    pub name: String,
    /// The session that receives.
    pub session: u32,
}

/// A memory region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionReport {
    /// Its name.
    pub name: String,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Whether others may get from it.
    pub read: bool,
    /// Whether others may put into it.
    pub write: bool,
    /// The session that offers it.
    pub session: u32,
}
