//! Dials: stages that an operator makes slower.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `GET`: [`Dials`]. `PUT`: [`DialChange`], answered by [`Dials`].
pub const DIALS: &str = "/v1/dials";
/// `PUT`: [`DialClear`], answered by [`Dials`].
pub const DIALS_CLEAR: &str = "/v1/dials/clear";

/// The dials. `D` is `piped_report::dial::DialReport`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dials<D = Value> {
    /// `planner.allow_dials`.
    pub allowed: bool,
    /// Those that are set; of several shards each has its own.
    pub dials: Vec<D>,
}

/// A dial from now on (until the daemon ends); one that is there is replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DialChange {
    /// Which stage: `disk:MAJOR:MINOR` (or with `:read` or `:write` behind it), `send:PEER`, `net:PEER`,
    /// `receive:PEER`, `check` or `copy`.
    pub stage: String,
    /// `L` in nanoseconds.
    #[serde(default)]
    pub latency_ns: u64,
    /// `g` in nanoseconds.
    #[serde(default)]
    pub overhead_ns: u64,
    /// `G` in picoseconds a byte.
    #[serde(default)]
    pub per_byte_ps: u64,
    /// `o` in nanoseconds.
    #[serde(default)]
    pub host_ns: u64,
}

/// No dial any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DialClear {
    /// At that stage; without it, at none.
    #[serde(default)]
    pub stage: Option<String>,
}
