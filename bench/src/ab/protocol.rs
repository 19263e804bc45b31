//! Messages between the command and its arms: one JSON document a line, through the arm's stdin and
//! stdout.
//!
//! An arm may be of another build, so its first message has the version of its messages.

use serde::{Deserialize, Serialize};

/// Version of these messages and of the tasks. Arms of different versions are not compared.
pub(super) const VERSION: u32 = 2;

/// First message of an arm: its daemons run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    /// Process numbers of the daemon that the client asks and of the one with the data.
    pub(super) daemons: [u32; 2],
}

/// A question of the command to an arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Question {
    /// Name of a task in [`super::tasks::TASKS`].
    pub(super) task: String,
    /// Seconds to go on with it. A task that takes longer is done once.
    pub(super) seconds: f64,
}

/// Answer of the arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Measured(Measured),
    Failed { reason: String },
}

/// Measurement of a task.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Time of one request: the median, or the mean if many are under way at once.
    pub(crate) seconds: f64,
    /// Number of requests measured.
    pub(crate) requests: u64,
}
