//! One data-plane shard: sessions, handles, transfers, lanes and plans of one reactor thread.

use piped_model::units::Nanos;

use crate::command::{CalibrationMode, Command, Output, PlannerMode};
use crate::ids::SegmentId;
use crate::io::{Done, Io};
use crate::report::{Explanation, ShardReport, StageReport};
use crate::request::{Origin, Request};

/// Sizes and choices fixed when a shard is made. Memory is taken then, never per request.
#[derive(Debug, Clone)]
pub struct ShardConfig {
    /// This node's name, told to peers.
    pub node_name: String,
    /// Distinguishes this run of the daemon from earlier ones; random.
    pub incarnation: u64,
    /// Seed for jitter (back-off, persistent excitation); random in the daemon, fixed in tests.
    pub seed: u64,
    /// The most requests in execution.
    pub transfers_max: u32,
    /// The most operations at the driver.
    pub ops_max: u32,
    /// Deadline of requests that name none.
    pub deadline_default: Nanos,
    /// How sizes are chosen.
    pub planner: PlannerMode,
    /// Whether costs follow the samples.
    pub calibration: CalibrationMode,
}

/// A shard. Feed it with [`Shard::submit`], [`Shard::handle_command`] and [`Shard::handle_done`];
/// then call [`Shard::drive`], and take what it puts out with [`Shard::poll_output`].
#[derive(Debug)]
pub struct Shard {
    config: ShardConfig,
}

impl Shard {
    /// An empty shard.
    #[must_use]
    pub fn new(config: ShardConfig) -> Self {
        Self { config }
    }

    /// Take a request from a client's ring. Its end comes out of [`Shard::poll_output`].
    pub fn submit(&mut self, origin: Origin, request: Request, now: Nanos) {
        let _ = (origin, request, now);
    }

    /// Take a message of the control thread.
    pub fn handle_command<I: Io>(&mut self, command: Command, io: &mut I) {
        let _ = (command, io);
    }

    /// Take the end of an operation.
    pub fn handle_done<I: Io>(&mut self, done: Done, io: &mut I) {
        let _ = (done, io);
    }

    /// Push what can be pushed and expire what is due. Call after feeding and before waiting.
    pub fn drive<I: Io>(&mut self, io: &mut I) {
        let _ = io;
    }

    /// The next thing for a client or the control thread.
    pub fn poll_output(&mut self) -> Option<Output> {
        None
    }

    /// When [`Shard::drive`] must be called at the latest, if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        None
    }

    /// Whether anything is in execution; an idle shard may sleep without a spin.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        true
    }

    /// How many operations use a segment (for the shrinking of staging).
    #[must_use]
    pub fn segment_ops(&self, segment: SegmentId) -> u32 {
        let _ = segment;
        0
    }

    /// The shard at a glance.
    #[must_use]
    pub fn report(&self) -> ShardReport {
        ShardReport {
            planner: self.config.planner,
            calibration: self.config.calibration,
            sessions: 0,
            transfers: 0,
            serves: 0,
            ops: 0,
            staging_bytes: 0,
            staging_used_bytes: 0,
            counters: crate::report::Counters::default(),
            peers: Vec::new(),
        }
    }

    /// The stages with their measured costs.
    #[must_use]
    pub fn stages(&self) -> Vec<StageReport> {
        Vec::new()
    }

    /// A recent transfer by number, or the last one.
    #[must_use]
    pub fn explain(&self, id: Option<u64>) -> Option<Explanation> {
        let _ = id;
        None
    }
}
