//! What is left of a copy between a region of this node and a client's memory.

use piped_core::io::Span;
use piped_core::limits::COPY_PIECE_BYTES;

use super::super::arena::Memory;
use super::super::driver::Direction;
use crate::command::RegionTarget;

/// Between a local region and memory: the daemon copies, a piece a turn.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct MemoryBody {
    region: RegionTarget,
    direction: Direction,
    offset: u64,
    memory: Memory,
    next: u64,
    /// Its next piece waits for its turn.
    waits: bool,
    /// What the region's exporter is notified of at its end.
    notify: Option<u32>,
    /// The shard of the exporter is asked to notify it.
    asked: bool,
}

impl MemoryBody {
    /// A copy of which nothing has begun.
    pub(in crate::shard) fn new(
        (region, offset): (RegionTarget, u64),
        direction: Direction,
        memory: Memory,
    ) -> Self {
        Self {
            region,
            direction,
            offset,
            memory,
            next: 0,
            waits: false,
            notify: None,
            asked: false,
        }
    }

    /// The copy with a notification of the region's exporter at its end.
    pub(in crate::shard) fn notifying(self, notify: Option<u32>) -> Self {
        Self { notify, ..self }
    }

    /// The memory that its client gave.
    pub(in crate::shard) fn memory(&self) -> Memory {
        self.memory
    }

    /// The region at its other end.
    pub(in crate::shard) fn region(&self) -> RegionTarget {
        self.region
    }

    /// Whether bytes go to the region or come from it.
    pub(in crate::shard) fn direction(&self) -> Direction {
        self.direction
    }

    /// Where it begins in the region.
    pub(in crate::shard) fn offset(&self) -> u64 {
        self.offset
    }

    /// What the region's exporter is notified of at its end.
    pub(in crate::shard) fn notify(&self) -> Option<u32> {
        self.notify
    }

    /// The shard of the exporter is to be asked to notify it. `false`: it was asked before.
    pub(in crate::shard) fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// Whether the shard of the exporter was asked to notify it.
    pub(in crate::shard) fn is_asked(&self) -> bool {
        self.asked
    }

    /// Bytes from the start that are copied.
    pub(in crate::shard) fn copied(&self) -> u64 {
        self.next
    }

    /// How many bytes are copied next, of those that are there: the first `available`.
    pub(in crate::shard) fn next_piece(&self, available: u64) -> u32 {
        available.saturating_sub(self.next).min(COPY_PIECE_BYTES.into()) as u32
    }

    /// Where the next bytes lie in the client's memory and in the region.
    pub(in crate::shard) fn spans(&self, length: u32) -> (Span, Span) {
        let RegionTarget { segment, offset, .. } = self.region;
        let theirs = Span { segment, offset: offset + self.offset + self.next, length };
        (self.memory.span(self.next, length), theirs)
    }

    /// The next bytes are copied. Returns where they lie in the request.
    pub(in crate::shard) fn pass(&mut self, length: u32) -> (u64, u64) {
        let start = self.next;
        self.next += u64::from(length);
        (start, self.next)
    }

    /// Whether its next piece waits for its turn.
    pub(in crate::shard) fn waits(&self) -> bool {
        self.waits
    }

    /// Its next piece takes its place in the line, or has had its turn.
    pub(in crate::shard) fn set_waits(&mut self, waits: bool) {
        self.waits = waits;
    }
}
