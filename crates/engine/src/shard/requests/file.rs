//! What is left of a transfer between a file of this node and memory.

use piped_core::io::Span;
use piped_core::limits::DEPTH_MAX;
use piped_core::sizes::Sizes;
use piped_core::units::Nanos;
use piped_planner::planned::{Planned, boundary};

use super::super::arena::Memory;
use super::super::driver::Direction;
use crate::command::FileTarget;

/// The least that a write has at its device at once: what is not read yet bounds it anyway.
const WRITES_AT_ONCE: u32 = 8;

/// Between a local file and memory.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct FileBody {
    target: FileTarget,
    direction: Direction,
    durable: bool,
    offset: u64,
    memory: Memory,
    /// Bytes from the start for which a fragment was started.
    next: u64,
    in_flight: u32,
    phase: Phase,
    /// A fragment came back short.
    ended: bool,
    /// Where the bytes of a read come from is decided.
    decided: bool,
    /// When the sync of a durable write began.
    syncing: Nanos,
}

/// What a transfer with a file is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Phase {
    /// An extending write gets its blocks first.
    Allocate,
    Allocating,
    Moving,
    Syncing,
}

impl FileBody {
    /// A transfer of which nothing has begun.
    pub(in crate::shard) fn new(
        target: FileTarget,
        direction: Direction,
        durable: bool,
        offset: u64,
        memory: Memory,
    ) -> Self {
        let phase = match direction {
            Direction::Read => Phase::Moving,
            Direction::Write => Phase::Allocate,
        };
        Self {
            target,
            direction,
            durable,
            offset,
            memory,
            next: 0,
            in_flight: 0,
            phase,
            ended: false,
            decided: false,
            syncing: Nanos::ZERO,
        }
    }

    /// The file, and the way to it.
    pub(in crate::shard) fn target(&self) -> FileTarget {
        self.target
    }

    /// Whether bytes go to the file or come from it.
    pub(in crate::shard) fn direction(&self) -> Direction {
        self.direction
    }

    /// Whether its bytes are to be on stable storage at its end.
    pub(in crate::shard) fn is_durable(&self) -> bool {
        self.durable
    }

    /// Where it begins in the file.
    pub(in crate::shard) fn offset(&self) -> u64 {
        self.offset
    }

    /// What it is at.
    pub(in crate::shard) fn phase(&self) -> Phase {
        self.phase
    }

    /// The transfer goes on with another phase.
    pub(in crate::shard) fn enter(&mut self, phase: Phase) {
        self.phase = phase;
    }

    /// The memory that its client gave.
    pub(in crate::shard) fn memory(&self) -> Memory {
        self.memory
    }

    /// The transfer takes this way to the file.
    pub(in crate::shard) fn go_by(&mut self, target: FileTarget) {
        (self.target, self.decided) = (target, true);
    }

    /// Whether it is to be seen where the bytes come from.
    pub(in crate::shard) fn seeks_way(&self) -> bool {
        self.direction == Direction::Read && !self.decided
    }

    /// The sizes of its fragments, and how many are at the device at once. What a write finds in
    /// memory is as much as was read: the device decides.
    fn cut<'a>(&self, planned: &'a Planned) -> (&'a Sizes, u32) {
        let cut = &planned.cut;
        match self.direction {
            Direction::Read => (&cut.source, cut.depth),
            Direction::Write => (&cut.sink, cut.depth.max(WRITES_AT_ONCE)),
        }
    }

    /// Bytes of `length` for which no fragment was started, and whether they are one at most.
    pub(in crate::shard) fn left(&self, planned: &Planned, length: u64) -> (u64, bool) {
        let is_last = boundary(self.cut(planned).0, self.offset, self.next) >= length;
        let left = if self.ended { 0 } else { length - self.next };
        (left, is_last)
    }

    /// The next fragment, from where to where, if it may be at the device with the others: as many
    /// as so many requests may have that are `together`. Only the first `available` of `length`
    /// bytes are there.
    pub(in crate::shard) fn next_fragment(
        &self,
        planned: &Planned,
        (length, available): (u64, u64),
        together: u32,
    ) -> Option<(u64, u64)> {
        let (sizes, depth) = self.cut(planned);
        let most = depth.max(DEPTH_MAX.min(depth.saturating_mul(together)));
        if self.next >= length || self.ended || self.in_flight >= most {
            return None;
        }
        let end = boundary(sizes, self.offset, self.next).min(length);
        (end <= available).then_some((self.next, end))
    }

    /// Where bytes of it lie in memory.
    pub(in crate::shard) fn span(&self, (start, end): (u64, u64)) -> Span {
        self.memory.span(start, (end - start) as u32)
    }

    /// The fragment that ends at `end` is at the device.
    pub(in crate::shard) fn begin_fragment(&mut self, end: u64) {
        self.next = end;
        self.in_flight += 1;
    }

    /// The device gave so many bytes of the fragment that begins at `start`. The next boundary
    /// tells whether that is less than was asked; only the last fragment may be shorter.
    pub(in crate::shard) fn end_fragment(
        &mut self,
        planned: Option<&Planned>,
        (start, bytes): (u64, u32),
        length: u64,
    ) {
        self.in_flight -= 1;
        let end = planned
            .map_or(length, |plan| boundary(self.cut(plan).0, self.offset, start).min(length));
        self.ended |= u64::from(bytes) < end - start;
    }

    /// Whether all bytes are moved, or all that the file has.
    pub(in crate::shard) fn is_moved(&self, length: u64) -> bool {
        self.in_flight == 0 && (self.next == length || self.ended)
    }

    /// The sync of a durable write begins.
    pub(in crate::shard) fn begin_sync(&mut self, now: Nanos) {
        (self.phase, self.syncing) = (Phase::Syncing, now);
    }

    /// When the sync of a durable write began.
    pub(in crate::shard) fn sync_began(&self) -> Nanos {
        self.syncing
    }
}
