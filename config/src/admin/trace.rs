//! Bodies of `trace`: recorded fragments of a few transfers.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Path of recordings: `PUT` of a [`TraceBody`] and `GET` are answered with [`Traces`], which has
/// the transfers once the recording is over.
pub const TRACE: &str = "/v1/trace";

/// Recording to begin; it replaces the present one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceBody {
    /// Number of transfers to record; 0 stops the recording.
    pub transfers: u32,
}

/// A recording. `T` is `piped_report::trace::TransferTrace`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Traces<T = Value> {
    /// Number of the recording, so that a waiting operator notices when another one has begun the
    /// next; 0 if there was none.
    pub recording: u64,
    /// Number of transfers to record.
    pub wanted: u32,
    /// Transfers that began since the recording began.
    pub begun: u32,
    /// Recorded transfers that have ended.
    pub ended: u32,
    /// Whether the recording is over: it is complete or was stopped.
    pub over: bool,
    /// Recorded transfers in the order in which they began; empty before the recording is over.
    pub transfers: Vec<T>,
}
