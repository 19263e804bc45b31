//! What `pipectl trace` shows: when each fragment of some transfers was in which stage, and when
//! the model had said it would be. Times are in nanoseconds from the transfer's start.

use piped_core::request::Class;
use piped_core::status::Status;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// How far a recording is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct TraceState {
    /// Its number; 0 if there was none since the start.
    pub recording: u64,
    /// Transfers it was asked to record.
    pub wanted: u32,
    /// Transfers that began since.
    pub begun: u32,
    /// Of them, those that ended.
    pub ended: u32,
    /// Nothing more is recorded: there are enough, or it was stopped.
    pub over: bool,
}

/// A recorded transfer, or a peer's request.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct TransferTrace {
    /// Its number, for `explain`; 0 if it has none yet.
    pub id: u64,
    /// `read`, `write`, `get`, `put` or `copy`.
    pub operation: String,
    /// True if a peer asked for it.
    pub served: bool,
    /// Where the data comes from and goes to, in words.
    pub route: String,
    /// Bytes asked for.
    pub bytes: u64,
    /// Its class.
    pub class: Class,
    /// How it ended; absent if it had not when the recording was stopped.
    pub status: Option<Status>,
    /// When it began, in nanoseconds since the first transfer of the recording did.
    pub began_ns: u64,
    /// The algorithm that chose its sizes, or who did.
    pub chosen: String,
    /// Fragments outstanding at the first stage; 0 without a plan of this side's.
    pub depth: u32,
    /// Its sizes, level by level.
    pub levels: Vec<LevelSizes>,
    /// Predicted latency in seconds; 0 if nothing was predicted.
    pub predicted_seconds: f64,
    /// Half-width of the prediction's interval, in seconds.
    pub margin_seconds: f64,
    /// Measured latency in seconds; absent if it had not ended.
    pub measured_seconds: Option<f64>,
    /// The stages, in the order of its path; those that the plan does not know stand at the end.
    pub stages: Vec<String>,
    /// What was seen.
    pub measured: Vec<Visit>,
    /// The same as the model has it, with the costs that the plan was made from; empty without a
    /// plan here.
    pub predicted: Vec<Visit>,
    /// Visits for which there was no room in the recording.
    pub lost: u32,
    /// What is not to be seen from here, in sentences.
    pub notes: Vec<String>,
}

/// The sizes of one level of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct LevelSizes {
    /// `source`, `lane` or `sink`.
    pub level: String,
    /// Sizes of its fragments in bytes, as many as are worth telling.
    pub sizes: Vec<u64>,
    /// How many there are.
    pub count: u64,
}

/// A fragment in a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Visit {
    /// The stage, by its place in [`TransferTrace::stages`].
    pub stage: u32,
    /// Where the fragment starts in the transfer, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it could be served.
    pub arrived_ns: u64,
    /// When it had left; absent if it never did.
    pub departed_ns: Option<u64>,
}
