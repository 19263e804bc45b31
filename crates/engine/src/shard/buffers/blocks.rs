//! Staging of a request of a peer's, in the order of its bytes.
//!
//! What a device is asked for and what a frame carries need not be cut alike, and both want their
//! bytes in one piece of memory. So staging is taken for a *block*: the least that whole fragments
//! and whole frames fill together. Bytes go on as soon as they may, within a block and across
//! blocks; its memory is free when nothing touches it any more.

use piped_core::io::Span;
use piped_core::limits::DEPTH_MAX;
use piped_planner::planned::CUT_BYTES;

use super::super::landed::Extents;
use super::super::stripes::Stripes;
use super::staging::Run;

/// A run of staging for the bytes `start..end` of a request.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Block {
    pub(in crate::shard) run: Run,
    pub(in crate::shard) start: u64,
    pub(in crate::shard) end: u64,
    /// Its first byte's place in the run: as far from a page as in the file, so that both are
    /// aligned together.
    skip: u32,
    /// Fragments of it at the device.
    pub(in crate::shard) jobs: u32,
    /// Frames of it that the kernel has, or that are landing.
    pub(in crate::shard) frames: u32,
    /// The device is charged with this block, and not the lane.
    pub(in crate::shard) paid: bool,
}

/// How many bytes of staging a block takes, from this offset in the file on.
pub(in crate::shard) fn run_bytes(offset: u64, bytes: u64) -> u32 {
    (offset % CUT_BYTES + bytes) as u32
}

impl Block {
    /// `offset`: of its first byte in the file; the run has [`run_bytes`].
    pub(in crate::shard) fn new(run: Run, offset: u64, start: u64, end: u64) -> Self {
        let skip = (offset % CUT_BYTES) as u32;
        Self { run, start, end, skip, jobs: 0, frames: 0, paid: false }
    }

    /// The memory of these bytes of the request, which lie in it.
    pub(in crate::shard) fn span(&self, start: u64, end: u64) -> Span {
        debug_assert!(self.start <= start && end <= self.end, "bytes of another block");
        self.run.span.part(self.skip + (start - self.start) as u32, (end - start) as u32)
    }

    /// Whether nothing touches it.
    pub(in crate::shard) fn is_idle(&self) -> bool {
        self.jobs == 0 && self.frames == 0
    }
}

/// The blocks of a request, in order and without gaps between them; as many as it may have
/// fragments.
#[derive(Debug)]
pub(in crate::shard) struct Blocks {
    ring: [Option<Block>; DEPTH_MAX as usize],
    first: u32,
    count: u32,
    /// What has landed of the request beyond its watermark.
    beyond: Extents,
    /// Which parts of a read come from the page cache, if it says that others do not.
    stripes: Stripes,
}

impl Default for Blocks {
    fn default() -> Self {
        Self {
            ring: [None; DEPTH_MAX as usize],
            first: 0,
            count: 0,
            beyond: Extents::default(),
            stripes: Stripes::NONE,
        }
    }
}

impl Blocks {
    /// Begins anew; what its last holder had is free.
    pub(in crate::shard) fn clear(&mut self) {
        debug_assert!(self.ring.iter().all(Option::is_none), "a request ended and kept staging");
        (self.first, self.count) = (0, 0);
    }

    pub(in crate::shard) fn beyond(&mut self) -> &mut Extents {
        &mut self.beyond
    }

    pub(in crate::shard) fn stripes(&mut self) -> &mut Stripes {
        &mut self.stripes
    }

    pub(in crate::shard) fn is_full(&self) -> bool {
        self.count == DEPTH_MAX
    }

    fn place(&self, index: u32) -> usize {
        ((self.first + index) % DEPTH_MAX) as usize
    }

    /// The caller looked whether there is room.
    pub(in crate::shard) fn push(&mut self, block: Block) {
        debug_assert!(!self.is_full());
        let place = self.place(self.count);
        self.ring[place] = Some(block);
        self.count += 1;
    }

    pub(in crate::shard) fn last_mut(&mut self) -> Option<&mut Block> {
        let place = self.place(self.count.checked_sub(1)?);
        self.ring[place].as_mut()
    }

    /// The block that holds this byte.
    pub(in crate::shard) fn at(&mut self, byte: u64) -> Option<&mut Block> {
        let index = (0..self.count).find(|&index| {
            self.ring[self.place(index)].is_some_and(|it| it.start <= byte && byte < it.end)
        })?;
        let place = self.place(index);
        self.ring[place].as_mut()
    }

    /// Takes the last one back, which was not used.
    pub(in crate::shard) fn pop_last(&mut self) -> Option<Block> {
        let place = self.place(self.count.checked_sub(1)?);
        self.count -= 1;
        self.ring[place].take()
    }

    /// Takes the first one out if it is as asked for.
    pub(in crate::shard) fn pop_if(&mut self, over: impl Fn(&Block) -> bool) -> Option<Block> {
        let place = self.place(0);
        let block = self.ring[place].filter(over)?;
        self.ring[place] = None;
        self.first = (self.first + 1) % DEPTH_MAX;
        self.count -= 1;
        Some(block)
    }

    /// Takes out one that nothing touches, wherever it is: the request is over, and the order as
    /// well.
    pub(in crate::shard) fn take_idle(&mut self) -> Option<Block> {
        // Without any there never was one: most requests of memory do not touch the ring.
        let ring = if self.count > 0 { &mut self.ring[..] } else { &mut [] };
        ring.iter_mut().find_map(|place| place.take_if(|block| block.is_idle()))
    }
}
