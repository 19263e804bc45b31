//! Dials (delay injection): stages that an operator makes slower on purpose.

use piped_core::spread::LatencySpread;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Path of [`Dials`], read with `GET`; `PUT` of a [`DialChange`] is answered by [`Dials`].
pub const DIALS: &str = "/v1/dials";
/// Path to clear dials: `PUT` of a [`DialClear`], answered by [`Dials`].
pub const DIALS_CLEAR: &str = "/v1/dials/clear";

/// All dials. `D` is `piped_report::dial::DialReport`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dials<D = Value> {
    /// Whether `planner.allow_dials` is set.
    pub allowed: bool,
    /// Dials that are set; each of several shards has its own.
    pub dials: Vec<D>,
}

/// Dial to set until the daemon ends; an earlier one of the stage is replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DialChange {
    /// Stage to slow down: `disk:MAJOR:MINOR` (also with `:read` or `:write` behind it),
    /// `send:PEER`, `net:PEER`, `receive:PEER`, `check` or `copy`.
    pub stage: String,
    /// Added latency `L` in nanoseconds.
    #[serde(default)]
    pub latency_ns: u64,
    /// Added overhead `g` in nanoseconds.
    #[serde(default)]
    pub overhead_ns: u64,
    /// Added time `G` in picoseconds a byte.
    #[serde(default)]
    pub per_byte_ps: u64,
    /// Added host time `o` in nanoseconds.
    #[serde(default)]
    pub host_ns: u64,
    /// How much single latencies differ from `L`; left out where they do not.
    #[serde(default, skip_serializing_if = "LatencySpread::is_none")]
    pub spread: LatencySpread,
}

/// Request to clear dials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DialClear {
    /// Stage to clear; none for all of them.
    #[serde(default)]
    pub stage: Option<String>,
}
