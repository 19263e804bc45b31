//! A stage, as the daemon has measured it.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// A pipeline stage as measured.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct StageReport {
    /// Its name, such as `disk:8:1 read` or `net:beta bulk in`.
    pub name: String,
    /// `L`: latency that overlaps with other fragments, in seconds.
    pub latency_seconds: f64,
    /// `g`: overhead per fragment that occupies the stage, in seconds.
    pub overhead_seconds: f64,
    /// `G`: inverse bandwidth, in seconds per byte.
    pub per_byte_seconds: f64,
    /// The most fragments in it at once; absent when unbounded.
    pub window: Option<u32>,
    /// Samples of an empty stage (`L + g + xG`).
    pub samples_alone: u64,
    /// Samples of a busy stage (`g + xG`).
    pub samples_backlogged: u64,
    /// 0 (the prior) to 1.
    pub confidence: f64,
    /// True if a peer reported it rather than this node measured it.
    pub reported: bool,
    /// True as long as it rests on what was measured earlier: by another run, or before its peer
    /// went.
    #[cfg_attr(feature = "serde", serde(default))]
    pub kept: bool,
    /// A sentence where the numbers need one, e.g. that g and G cannot be told apart yet.
    pub note: String,
    /// What fragments of a few sizes cost: where costs bend, no line has them all.
    #[cfg_attr(feature = "serde", serde(default))]
    pub times: Vec<StageTime>,
    /// How far these may be off, as a part of them (about two standard errors).
    #[cfg_attr(feature = "serde", serde(default))]
    pub relative_error: f64,
    /// What else its server serves, or does not, as far as is known.
    #[cfg_attr(feature = "serde", serde(default))]
    pub with: Vec<ServedWith>,
}

/// Whether a stage and something else have one server.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct ServedWith {
    /// The other: a stage, or `thread`, the shard's.
    pub name: String,
    /// They have.
    pub one_server: bool,
    /// The part of the other's work that lengthens the times between departures, its standard
    /// error, and the groups of gaps behind it; absent where it is so by construction.
    pub measured: Option<[f64; 3]>,
}

/// What a fragment of a size costs in a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct StageTime {
    /// Its size.
    pub bytes: u64,
    /// Through the empty stage: `L + g + xG`, in seconds.
    pub alone_seconds: f64,
    /// The time between two in a busy one: `g + xG`, more where the window binds, in seconds.
    pub busy_seconds: f64,
}
