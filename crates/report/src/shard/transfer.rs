//! Transfers that run or have ended, and their explanation.

use piped_core::request::Class;
use piped_core::status::Status;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use super::StageReport;
use crate::tally::{HeldBy, Operation};
use crate::trace::LevelSizes;

/// A transfer, or a peer's request, that runs or has ended.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct TransferReport {
    /// The transfer's number for `explain`; 0 if it gets a number only at its end.
    pub id: u64,
    /// What the transfer does.
    pub operation: Operation,
    /// True if a peer asked for it.
    pub served: bool,
    /// Where the data comes from and goes to, in words.
    pub route: String,
    /// How urgent the request is.
    pub class: Class,
    /// The session of the client that asked; absent for a peer's request.
    pub session: Option<u32>,
    /// Bytes that the request is for.
    pub bytes: u64,
    /// Bytes in place. For a write to a peer, bytes that the peer has taken; for a peer's request,
    /// bytes handed to the connection or the device.
    pub bytes_done: u64,
    /// Seconds since the transfer began; once it has ended, its duration.
    pub age_seconds: f64,
    /// Seconds until the deadline, negative after it; absent once the transfer has ended.
    pub left_seconds: Option<f64>,
    /// Seconds since the transfer ended; absent while it runs.
    pub ended_seconds_ago: Option<f64>,
    /// How the transfer ended; absent while it runs. A transfer whose client got its status, but
    /// whose buffer is held, runs with a status.
    pub status: Option<Status>,
    /// How often the request was sent again.
    pub retries: u32,
}

/// One transfer explained: what was known, what was chosen, what was measured.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Explanation {
    /// The transfer's number, as `explain` takes it.
    pub id: u64,
    /// `read`, `write`, `copy` or `sync`.
    pub operation: String,
    /// Where the data came from and went to, in words.
    pub route: String,
    /// Bytes that the request was for.
    pub bytes: u64,
    /// How urgent the request was.
    pub class: Class,
    /// `Ok`, or why the transfer ended early.
    pub status: Status,
    /// True if this node planned the transfer; the node that holds the data plans a remote read.
    pub planned_here: bool,
    /// The stages as they were known at planning.
    pub stages: Vec<StageReport>,
    /// The candidates that the planner compared.
    pub candidates: Vec<Candidate>,
    /// The algorithm of the chosen plan.
    pub chosen: String,
    /// The first fragment's size in bytes. This and the next three are 0 without a plan, or if the
    /// peer that made it did not report them.
    pub fragment_bytes: u64,
    /// By how much each fragment is shorter than the one before, in bytes; 0 if they are equal.
    pub shrink_bytes: u64,
    /// Number of fragments of the plan.
    pub fragments: u32,
    /// Fragments under way at the first stage.
    pub depth: u32,
    /// Predicted latency in seconds.
    pub predicted_seconds: f64,
    /// Half-width of the prediction interval, in seconds.
    pub margin_seconds: f64,
    /// Measured latency in seconds.
    pub measured_seconds: f64,
    /// Fragment sizes at each level; empty without a plan of this node.
    #[cfg_attr(feature = "serde", serde(default))]
    pub levels: Vec<LevelSizes>,
    /// The stages that the transfer passed: predicted against measured.
    #[cfg_attr(feature = "serde", serde(default))]
    pub passed: Vec<StagePassed>,
    /// Copies that the transfer needed, by reason.
    pub bounces: Vec<String>,
    /// How often the request was sent again.
    pub retries: u32,
    /// Part of the prediction, in seconds, that is for the sync of a durable write; absent if none
    /// was predicted.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sync_seconds: Option<f64>,
    /// Credit for writes, in bytes, that the peer had not given back when the transfer was planned.
    #[cfg_attr(feature = "serde", serde(default))]
    pub owed_bytes: u64,
    /// What the transfer waited for; absent in answers of daemons that do not report it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub waiting: Option<Waiting>,
    /// By how much the transfer's own time exceeded the prediction, as a fraction of the
    /// prediction; absent if the two are not compared.
    #[cfg_attr(feature = "serde", serde(default))]
    pub deviation: Option<f64>,
    /// Why the two are not compared; empty if they are.
    #[cfg_attr(feature = "serde", serde(default))]
    pub not_compared: String,
}

/// What a request waited for. Its duration is the sum of three times: before it began, for others,
/// and its own.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Waiting {
    /// The request shared nothing: from submission to end, no other request was at its devices and
    /// peers, and nothing held it back.
    pub alone: bool,
    /// Seconds from submission to beginning, if something held the request back; otherwise 0.
    pub held_seconds: f64,
    /// What held the request back, at its beginning or later.
    pub held_by: Vec<HeldBy>,
    /// Unfinished requests of the same client (or the same peer) at the request's arrival.
    pub ahead_own: u32,
    /// Unfinished requests of other clients or peers at the request's arrival.
    pub ahead_others: u32,
    /// Requests of anybody that came while this one ran.
    pub joined: u32,
    /// The peer that served the request reports other requests there.
    pub at_peer: bool,
    /// Part of the running time, in seconds, that went to others: their share of the bytes that
    /// were moved there meanwhile.
    pub shared_seconds: f64,
    /// The device or peer where others had their share; empty if there was none.
    pub at: String,
    /// The rest of the running time, in seconds.
    pub own_seconds: f64,
}

/// A stage that a transfer passed. A stage is busy while it has a fragment of the transfer, or one
/// waits for it.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct StagePassed {
    /// Name of the stage, such as `disk:8:1 read`.
    pub name: String,
    /// Measurements on this node; absent for stages of the other side.
    pub measured: Option<Passing>,
    /// Predictions of the plan; absent for stages that the plan does not know, and without a plan.
    pub predicted: Option<Passing>,
    /// Confidence in the stage's costs at planning, from 0 (the prior) to 1; absent without a
    /// prediction.
    pub confidence: Option<f64>,
}

impl StagePassed {
    /// A stage without measurements and predictions yet.
    #[must_use]
    pub fn new(name: String) -> Self {
        Self { name, measured: None, predicted: None, confidence: None }
    }
}

/// The passage of a transfer through a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Passing {
    /// Fragments of the transfer that passed.
    pub fragments: u32,
    /// How long the stage was busy, in seconds.
    pub busy_seconds: f64,
    /// When the last fragment had left, in seconds from the transfer's start.
    pub last_seconds: f64,
}

/// A plan that the planner considered.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Candidate {
    /// The algorithm that chose the sizes.
    pub algorithm: String,
    /// The first fragment's size in bytes.
    pub fragment_bytes: u64,
    /// The first frame's payload in bytes; 0 where bytes are not cut anew for the connection.
    #[cfg_attr(feature = "serde", serde(default))]
    pub lane_bytes: u64,
    /// The first written fragment's size in bytes; 0 where the sink takes what arrives.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sink_bytes: u64,
    /// By how much each fragment is shorter than the one before, in bytes; 0 if they are equal.
    pub shrink_bytes: u64,
    /// Fragments under way at the first stage.
    pub depth: u32,
    /// Whether this is the transfer's plan.
    #[cfg_attr(feature = "serde", serde(default))]
    pub chosen: bool,
    /// The predicted latency in seconds.
    pub predicted_seconds: f64,
    /// Mean measured latency in seconds; absent until enough transfers tried the plan.
    pub measured_seconds: Option<f64>,
    /// Whether another candidate was faster in practice, so that this one is not chosen.
    pub vetoed: bool,
    /// The latency in seconds that the plan is judged by where fragments of a stage differ: for
    /// urgent requests a quantile, for others the mean with all stalls.
    #[cfg_attr(feature = "serde", serde(default))]
    pub judged_seconds: Option<f64>,
}
