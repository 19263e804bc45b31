//! How far a peer's write is: what may go to the device, what is on its way there, and into which
//! fragments it is cut.

use piped_core::limits::FRAGMENT_BYTES_MAX;
use piped_core::sizes::Sizes;
use piped_core::units::Nanos;
use piped_planner::planned::level_end;

use super::super::buffers::Blocks;
use super::{Serve, ServeOp};

/// The fragments of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Sink {
    /// Sizes of the write's fragments at the device.
    pub(in crate::shard) sizes: Sizes,
    /// The longest frame that carries them, in bytes.
    pub(in crate::shard) frame: u32,
}

/// How far a write is, in bytes from the request's start.
#[derive(Debug, Default)]
pub(in crate::shard) struct WriteState {
    /// Bytes that have arrived and may go on; delay injection can hold the others.
    ready: u64,
    /// Bytes whose way to the device has begun.
    begun: u64,
    /// When the last piece came, whether delay injection holds it or not.
    last_came: Nanos,
    step: Step,
    /// The write waits for its device to take something, or did so a moment ago.
    choked: bool,
}

/// What the file needs beside the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Step {
    /// Its blocks are to be allocated.
    #[default]
    Wanted,
    Allocating,
    Allocated,
    /// The sync of a durable write runs since then.
    Syncing(Nanos),
}

/// Which step of a write is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum WriteStep {
    /// The allocation of its blocks.
    Allocation,
    /// The sync of a durable write, and when it began.
    Sync(Nanos),
}

impl WriteState {
    /// A piece has come.
    pub(in crate::shard) fn note_piece(&mut self, now: Nanos) {
        self.last_came = now;
    }

    /// When the last piece came; zero if none did.
    pub(in crate::shard) fn last_came(&self) -> Nanos {
        self.last_came
    }

    /// So many bytes have arrived.
    pub(in crate::shard) fn arrive(&mut self, bytes: u32) {
        self.ready += u64::from(bytes);
    }

    /// Bytes that have arrived and may go on.
    pub(in crate::shard) fn ready(&self) -> u64 {
        self.ready
    }

    /// Bytes whose way to the device has begun.
    pub(in crate::shard) fn begun(&self) -> u64 {
        self.begun
    }

    /// The bytes before `end` are on their way to the device.
    pub(in crate::shard) fn begin_to(&mut self, end: u64) {
        self.begun = end;
    }

    /// Whether the file's blocks are to be allocated.
    pub(in crate::shard) fn wants_allocation(&self) -> bool {
        self.step == Step::Wanted
    }

    /// The allocation of the file's blocks runs, or (`runs` is false) is not needed.
    pub(in crate::shard) fn allocate(&mut self, runs: bool) {
        self.step = if runs { Step::Allocating } else { Step::Allocated };
    }

    /// Whether a sync may begin: it has not, and no allocation runs.
    pub(in crate::shard) fn may_sync(&self) -> bool {
        self.step == Step::Allocated
    }

    /// The sync of a durable write begins.
    pub(in crate::shard) fn begin_sync(&mut self, now: Nanos) {
        self.step = Step::Syncing(now);
    }

    /// The step that ran is over. `None`: none ran.
    pub(in crate::shard) fn end_step(&mut self) -> Option<WriteStep> {
        match self.step {
            Step::Allocating => {
                self.step = Step::Allocated;
                Some(WriteStep::Allocation)
            }
            Step::Syncing(begun) => Some(WriteStep::Sync(begun)),
            Step::Wanted | Step::Allocated => None,
        }
    }

    /// The device took nothing now. Whether it did the last time that was looked at.
    pub(in crate::shard) fn choke(&mut self) -> bool {
        !std::mem::replace(&mut self.choked, true)
    }

    /// Whether it waited for its device since this was last asked.
    pub(in crate::shard) fn take_choked(&mut self) -> bool {
        std::mem::take(&mut self.choked)
    }
}

impl Serve {
    /// Where the fragment ends that byte `at` of a write belongs to.
    pub(in crate::shard) fn sink_end(&self, at: u64) -> u64 {
        match self.op {
            ServeOp::Write { sink, .. } => {
                level_end(&sink.sizes, self.ask.offset, at, self.ask.length)
                    .min(at.saturating_add(FRAGMENT_BYTES_MAX.into()))
            }
            _ => self.ask.length,
        }
    }

    /// What has landed of a fragment is one from now on. Whether there was any.
    pub(in crate::shard) fn close_fragment(&self, blocks: &mut Blocks) -> bool {
        let next = self.next;
        match blocks.last_mut() {
            Some(block) if block.start < next && next < block.end => {
                block.end = next;
                true
            }
            _ => false,
        }
    }
}
