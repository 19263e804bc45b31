//! What the command and its arms say to each other: one JSON document a line, through the arm's stdin and stdout.
//!
//! An arm may be of another build. What it says has a version, and that is the first thing it says.

use serde::{Deserialize, Serialize};

/// The version of these messages and of what a task does. Arms of different versions are not compared.
pub(super) const VERSION: u32 = 1;

/// The first words of an arm: its daemons run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    /// Process numbers of the daemon that the client asks and of the one that has the data.
    pub(super) daemons: [u32; 2],
}

/// What the command asks of an arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Question {
    /// A name in [`super::tasks::TASKS`].
    pub(super) task: String,
    /// How long to go on with it, seconds. A task that takes longer is done once.
    pub(super) seconds: f64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Measured(Measured),
    Failed { reason: String },
}

/// What a task measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Of one request: the median, or where many are under way at once, the mean.
    pub(super) seconds: f64,
    /// How many there were.
    pub(super) requests: u64,
}
