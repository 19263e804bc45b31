//! Bodies of commands that only look: `stat`, `peers`, `transfers`, `exports`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Path of the status page: `GET` answers HTML, not JSON. Also on `[metrics] address`.
pub const PAGE: &str = "/";
/// Path of the metrics: `GET` answers text for Prometheus, not JSON. Also on `[metrics] address`.
pub const METRICS: &str = "/metrics";
/// Path of [`Stat`], read with `GET`.
pub const STAT: &str = "/v1/stat";
/// Path of [`Peers`], read with `GET`.
pub const PEERS: &str = "/v1/peers";
/// Path of the running [`Transfers`], read with `GET`.
pub const TRANSFERS: &str = "/v1/transfers";
/// Path of the ended [`Transfers`], the latest first, read with `GET`.
pub const TRANSFERS_ENDED: &str = "/v1/transfers/ended";
/// Path of [`Exports`], read with `GET`.
pub const EXPORTS: &str = "/v1/exports";

/// Sums since the start; the difference of two reports is the work between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stat {
    /// Seconds since the daemon started.
    pub uptime_seconds: f64,
    /// Size of staging memory, in bytes.
    pub staging_bytes: u64,
    /// Staging in use now, in bytes.
    pub staging_used_bytes: u64,
    /// Kinds of transfers that have occurred.
    pub operations: Vec<OperationStat>,
}

/// One kind of transfers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationStat {
    /// Operation: `read`, `write`, `get`, `put`, `copy` or `sync`.
    pub operation: String,
    /// Whether it is `local` or `remote`.
    pub route: String,
    /// Class of requests: `latency` or `bulk`.
    pub class: String,
    /// Transfers that ended well.
    pub completed: u64,
    /// Transfers that ended otherwise.
    pub failed: u64,
    /// Bytes moved by them.
    pub bytes: u64,
    /// Histogram of the times of those that ended well: an upper bound in seconds (none for the
    /// last bucket) and the number of transfers in the bucket. Empty buckets are left out.
    pub latency: Vec<(Option<f64>, u64)>,
}

/// The peers. `L` is `piped_report::shard::LaneReport`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Peers<L = Value> {
    /// Entries, one for each peer, role and shard.
    pub peers: Vec<PeerEntry<L>>,
}

/// One peer as one shard has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerEntry<L = Value> {
    /// Number of the shard.
    pub shard: u32,
    /// Name of the peer.
    pub name: String,
    /// Whether the peer connected to us and is served; otherwise we ask it.
    pub inbound: bool,
    /// Address where the peer listens, for peers that we ask.
    pub address: Option<String>,
    /// Seconds since something last came from the peer on a connection: a handshake, a frame. None
    /// if nothing did, or if it connected to us and has no connection any more.
    #[serde(default)]
    pub heard_seconds_ago: Option<f64>,
    /// Lanes to or from the peer.
    pub lanes: Vec<L>,
}

/// A list of transfers. `T` is `piped_report::shard::TransferReport`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transfers<T = Value> {
    /// Number of transfers, also of those that are too many to be listed.
    pub total: u32,
    /// Transfers that are listed.
    pub transfers: Vec<TransferEntry<T>>,
}

/// One transfer and its shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransferEntry<T = Value> {
    /// Number of the shard.
    pub shard: u32,
    /// Report of the transfer.
    #[serde(flatten)]
    pub transfer: T,
}

/// Everything that this node offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exports {
    /// Directories that are offered.
    pub exports: Vec<ExportReport>,
    /// Memory regions that clients offer.
    pub regions: Vec<RegionReport>,
    /// Channels that clients receive on.
    pub channels: Vec<ChannelReport>,
}

/// One directory that is offered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportReport {
    /// Name of the export.
    pub name: String,
    /// Path of the directory.
    pub path: String,
    /// Whether its files may be read.
    pub read: bool,
    /// Whether its files may be written and created.
    pub write: bool,
    /// Whether names below it may be made, removed and changed.
    #[serde(default)]
    pub names: bool,
    /// Local users that may use it.
    pub users: Vec<String>,
    /// Groups that may use it. Both lists empty: all users that `[access]` admits.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Peers that may use it; empty for all that may connect.
    pub peers: Vec<String>,
}

/// One channel that a client receives on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelReport {
    /// Name of the channel.
    pub name: String,
    /// Session that receives on it.
    pub session: u32,
}

/// One memory region that a client offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionReport {
    /// Name of the region.
    pub name: String,
    /// Length of the region, in bytes.
    pub bytes: u64,
    /// Whether others may get from it.
    pub read: bool,
    /// Whether others may put into it.
    pub write: bool,
    /// Session that offers the region.
    pub session: u32,
}
