//! What `pipectl trace` shows: when each fragment of a transfer was in which stage, and when the
//! model predicted it there. Times are in nanoseconds from the transfer's start.

use piped_core::request::Class;
use piped_core::status::Status;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// How far a recording has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct TraceState {
    /// The recording's number; 0 if there was none since the start.
    pub recording: u64,
    /// Transfers that the recording was asked for.
    pub wanted: u32,
    /// Transfers that began since the recording did.
    pub begun: u32,
    /// Transfers in `begun` that ended.
    pub ended: u32,
    /// Whether the recording is over: it has enough transfers, or was stopped.
    pub over: bool,
}

/// A recorded transfer, or a peer's request.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct TransferTrace {
    /// The transfer's number for `explain`; 0 if it has none yet.
    pub id: u64,
    /// `read`, `write`, `get`, `put` or `copy`.
    pub operation: String,
    /// True if a peer asked for it.
    pub served: bool,
    /// Where the data comes from and goes to, in words.
    pub route: String,
    /// Bytes that the request was for.
    pub bytes: u64,
    /// How urgent the request was.
    pub class: Class,
    /// How the transfer ended; absent if it had not when the recording was stopped.
    pub status: Option<Status>,
    /// When the transfer began, in nanoseconds from the recording's first transfer.
    pub began_ns: u64,
    /// The algorithm that chose the sizes, or another origin of them.
    pub chosen: String,
    /// Fragments under way at the first stage; 0 without a plan of this node.
    pub depth: u32,
    /// Fragment sizes at each level of the plan.
    pub levels: Vec<LevelSizes>,
    /// Credit for writes, in bytes, that the peer had not given back when the transfer was planned.
    #[cfg_attr(feature = "serde", serde(default))]
    pub owed_bytes: u64,
    /// Predicted latency in seconds; 0 if nothing was predicted.
    pub predicted_seconds: f64,
    /// Half-width of the prediction interval, in seconds.
    pub margin_seconds: f64,
    /// Measured latency in seconds; absent if the transfer had not ended.
    pub measured_seconds: Option<f64>,
    /// The stages in the order of the path; stages that the plan does not know come last.
    pub stages: Vec<String>,
    /// Visits of fragments to stages, as they were measured.
    pub measured: Vec<Visit>,
    /// Visits as the model predicted them with the plan's costs; empty without a plan of this node.
    pub predicted: Vec<Visit>,
    /// Visits that found no room in the recording.
    pub lost: u32,
    /// What cannot be seen from this node, in sentences.
    pub notes: Vec<String>,
}

/// The sizes of one level of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct LevelSizes {
    /// The level's name: `source`, `lane` or `sink`.
    pub level: String,
    /// Fragment sizes in bytes, as many as are worth listing.
    pub sizes: Vec<u64>,
    /// Number of fragments at this level.
    pub count: u64,
}

/// The visit of a fragment to a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Visit {
    /// The stage, as an index of [`TransferTrace::stages`].
    pub stage: u32,
    /// Where the fragment starts in the transfer, in bytes.
    pub offset: u64,
    /// Length of the fragment in bytes.
    pub bytes: u64,
    /// When the stage could serve the fragment.
    pub arrived_ns: u64,
    /// When the fragment had left the stage; absent if it never did.
    pub departed_ns: Option<u64>,
}
