//! A stage as the daemon has measured it.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::held::Held;

/// A pipeline stage with its measured costs.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct StageReport {
    /// Name of the stage, such as `disk:8:1 read` or `net:beta bulk in`.
    pub name: String,
    /// `L`: latency that overlaps with other fragments, in seconds.
    pub latency_seconds: f64,
    /// `g`: overhead per fragment that occupies the stage, in seconds.
    pub overhead_seconds: f64,
    /// `G`: inverse bandwidth, in seconds per byte.
    pub per_byte_seconds: f64,
    /// The most fragments in the stage at once; absent when unbounded.
    pub window: Option<u32>,
    /// Samples of the empty stage (`L + g + xG`).
    pub samples_alone: u64,
    /// Samples of the busy stage (`g + xG`).
    pub samples_backlogged: u64,
    /// Confidence in the costs, from 0 (the prior) to 1.
    pub confidence: f64,
    /// True if a peer reported the costs; false if this node measured them.
    pub reported: bool,
    /// True while the costs rest on earlier measurements: of another run, or before the peer was
    /// disconnected.
    #[cfg_attr(feature = "serde", serde(default))]
    pub kept: bool,
    /// A sentence for numbers that need one, e.g. that g and G cannot be told apart yet.
    pub note: String,
    /// Costs of fragments of a few sizes, for costs that no line describes.
    #[cfg_attr(feature = "serde", serde(default))]
    pub times: Vec<StageTime>,
    /// Relative error of these times (about two standard errors).
    #[cfg_attr(feature = "serde", serde(default))]
    pub relative_error: f64,
    /// What else the stage's server serves, or does not serve, as far as is known.
    #[cfg_attr(feature = "serde", serde(default))]
    pub with: Vec<ServedWith>,
    /// The cost that plans are made from, as straight pieces in the order of fragment sizes; one if
    /// it does not bend. Empty in answers of daemons that do not report it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub lines: Vec<StageLine>,
    /// Whether the stage is a device, or a delay injection on one. Stages of devices at both ends
    /// of a path are the levels `source` and `sink`, all others are the level `lane`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub at_device: bool,
    /// What the stage's connection lets be under way at once; absent without a limit.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub held: Option<Held>,
}

/// A straight piece of a stage's cost.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct StageLine {
    /// The fragment size that the piece was measured near, in bytes.
    pub bytes: f64,
    /// `L` there, in seconds.
    pub latency_seconds: f64,
    /// `g` there, in seconds.
    pub overhead_seconds: f64,
    /// `G` there, in seconds per byte.
    pub per_byte_seconds: f64,
}

/// Whether a stage and something else share one server.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct ServedWith {
    /// The other party: a stage, or `thread` for the shard's thread.
    pub name: String,
    /// Whether the two share one server.
    pub one_server: bool,
    /// Three measurements; absent where the answer is known by construction. They are the part of
    /// the other's work that lengthens the times between departures, its standard error, and the
    /// number of groups of gaps.
    pub measured: Option<[f64; 3]>,
}

/// The cost of a fragment of one size in a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct StageTime {
    /// Size of the fragment in bytes.
    pub bytes: u64,
    /// Time through the empty stage: `L + g + xG`, in seconds.
    pub alone_seconds: f64,
    /// Time between two fragments in the busy stage: `g + xG`, more where the window binds, in
    /// seconds.
    pub busy_seconds: f64,
}
