//! The shard's own buffers, and who has how much of them.

use piped_core::ids::SegmentId;

use super::sched::Sched;
use super::staging::{Run, Staging};

/// Staging, and the parts of it that are counted for their users.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    pub(super) staging: Staging,
    /// The bound of staging, in bytes; none until it is set, and then what was added counts.
    pub(super) staging_limit: Option<u64>,
    /// Segments of staging whose last use is over.
    pub(super) drained: Vec<SegmentId>,
    /// Scratches that had to move since start.
    pub(super) scratches_moved: u64,
    /// Staging that copies use.
    pub(super) copy_bytes: u64,
    /// Staging that tables of peers' requests use: of gets and of puts.
    pub(super) tables: [u64; 2],
}

impl Buffers {
    /// A run of staging; `None` if there is none so long now.
    pub(super) fn take_run(&mut self, bytes: u32) -> Option<Run> {
        self.staging.allocate(bytes)
    }

    /// Takes a run back, and wakes what waits for one.
    pub(super) fn free(&mut self, run: Run, sched: &mut Sched) {
        self.give_back(run);
        sched.wake_starved();
    }

    /// Takes a run back that was not used: what waits finds no more than before.
    pub(super) fn give_back(&mut self, run: Run) {
        self.drained.extend(self.staging.free(run));
    }
}
