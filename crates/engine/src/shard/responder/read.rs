//! How far a peer's read is: what was asked of the device, what is in staging, and what the lane
//! has taken.

use piped_core::limits::{DEPTH_MAX, EXTENTS_MAX, STRIPES_AHEAD_BYTES, STRIPES_MAX};
use piped_planner::planned::Planned;

use super::super::buffers::Blocks;
use super::super::landed::Extents;
use super::super::stripes::{Stripe, Stripes};
use super::Serve;

/// How far a read is, in bytes from the request's start.
#[derive(Debug)]
pub(in crate::shard) struct ReadState {
    /// Taken by the kernel, in whole frames.
    sent: u64,
    /// Bytes sent that the kernel has let go of.
    free: u64,
    /// Where the oldest fragment begins that is not sent.
    oldest: u64,
    /// Fragments from there on that were started.
    held: u32,
    /// Fragments at the device or its page cache.
    reading: u32,
    /// Fragments among these at the page cache, of a read that comes both ways.
    copying: u32,
    /// Parts of it come from the page cache and others from the device: which ones its blocks say.
    striped: bool,
    /// Before this byte all fragments of such a read were begun that come from the page cache.
    copied: u64,
    /// The source ends here.
    end: u64,
    /// A turn ended early for its reads, and nothing was sent since.
    handed_over: bool,
}

impl ReadState {
    /// A read of which the peer has the bytes before `from`.
    pub(in crate::shard) fn new(from: u64) -> Self {
        Self {
            sent: from,
            free: from,
            oldest: from,
            held: 0,
            reading: 0,
            copying: 0,
            striped: false,
            copied: from,
            end: u64::MAX,
            handed_over: false,
        }
    }

    /// Where the source ends, as far as that is known.
    pub(in crate::shard) fn end(&self) -> u64 {
        self.end
    }

    /// Fragments that were started and are not sent.
    pub(in crate::shard) fn held(&self) -> u32 {
        self.held
    }

    /// Fragments at the device, or at its page cache.
    pub(in crate::shard) fn reading(&self) -> u32 {
        self.reading
    }

    /// Whether parts of it come from the page cache and others from the device.
    pub(in crate::shard) fn is_striped(&self) -> bool {
        self.striped
    }

    /// These parts of it come from the page cache, and the others from the device.
    pub(in crate::shard) fn stripe(&mut self, blocks: &mut Blocks, stripes: Stripes) {
        self.striped = true;
        *blocks.stripes() = stripes;
    }

    fn stripe_at(&self, blocks: &mut Blocks, byte: u64) -> Option<Stripe> {
        if self.striped { blocks.stripes().at(byte) } else { None }
    }

    /// Whether a byte comes from the page cache, and others from the device.
    pub(in crate::shard) fn is_copied(&self, blocks: &mut Blocks, byte: u64) -> bool {
        self.stripe_at(blocks, byte).is_some_and(Stripe::is_cached)
    }

    /// Where the next fragment begins that comes from the page cache, if others come from the
    /// device and it has staging, as what is before `next` has.
    pub(in crate::shard) fn next_copy(&mut self, blocks: &mut Blocks, next: u64) -> Option<u64> {
        let next = next.min(self.end);
        while let Some(stripe) = self.stripe_at(blocks, self.copied).filter(|it| !it.is_cached()) {
            self.copied = stripe.range().1;
        }
        (self.striped && self.copied < next).then_some(self.copied)
    }

    /// Whether as much is read as may be, where byte `next` would be the next one and those before
    /// `done` have left: as many fragments as a plan of `depth` has at the device, and as many that
    /// are sent. A read that comes both ways has more, so that the device has work while what is
    /// before that comes from the page cache.
    pub(in crate::shard) fn is_ahead(&self, depth: u32, (next, done): (u64, u64)) -> bool {
        match self.striped {
            true => self.held >= DEPTH_MAX || next - done >= STRIPES_AHEAD_BYTES,
            false => self.held >= Planned::held_max(depth).min(DEPTH_MAX),
        }
    }

    /// Whether the device has as much as a plan of `depth` gives it.
    pub(in crate::shard) fn is_deep(&self, depth: u32) -> bool {
        self.reading - self.copying >= depth
    }

    /// Whether a read that comes both ways has as many fragments under way as it keeps account of.
    /// Before each extent that has landed there is one of them, or a part whose copies are not
    /// begun.
    pub(in crate::shard) fn is_scattered(&self) -> bool {
        self.striped && self.reading as usize + STRIPES_MAX >= EXTENTS_MAX
    }

    /// A fragment is at the device.
    pub(in crate::shard) fn begin_fragment(&mut self) {
        self.held += 1;
        self.reading += 1;
    }

    /// A fragment that is to come from the page cache has its staging.
    pub(in crate::shard) fn pass_fragment(&mut self) {
        self.held += 1;
    }

    /// The fragment that ends there is at the page cache.
    pub(in crate::shard) fn begin_copy(&mut self, end: u64) {
        self.copied = end;
        self.reading += 1;
        self.copying += 1;
    }

    /// A fragment is back from the device, or from its page cache if it is a copy.
    pub(in crate::shard) fn end_fragment(&mut self, is_copy: bool) {
        self.reading -= 1;
        self.copying -= u32::from(is_copy);
    }

    /// The source ends at `end`, or before.
    pub(in crate::shard) fn cut_off(&mut self, end: u64) {
        self.end = self.end.min(end);
    }

    /// The turn may end early for the reads of this request. `false`: one did, and nothing was sent
    /// since.
    pub(in crate::shard) fn hand_over(&mut self) -> bool {
        !std::mem::replace(&mut self.handed_over, true)
    }

    /// A frame is queued.
    pub(in crate::shard) fn note_queued(&mut self) {
        self.handed_over = false;
    }
}

impl Serve {
    /// All of it is in staging.
    pub(in crate::shard) fn note_gathered(&mut self, beyond: &mut Extents) {
        let from = self.landed.watermark();
        let inserted = self.landed.insert(beyond, from, self.ask.length);
        debug_assert!(inserted.is_ok(), "it was not there");
        self.next = self.ask.length;
    }

    /// Where the fragment ends that begins at `at`.
    pub(in crate::shard) fn source_end(
        &self,
        blocks: &mut Blocks,
        planned: &Planned,
        at: u64,
    ) -> u64 {
        let end = planned.source_end(self.ask.offset, at, self.ask.length);
        self.read.stripe_at(blocks, at).map_or(end, |stripe| end.min(stripe.range().1))
    }

    /// Where the frame ends that begins at `at`: where the plan says, or its block or the source
    /// ends.
    pub(in crate::shard) fn frame_end(
        &self,
        blocks: &mut Blocks,
        planned: &Planned,
        at: u64,
    ) -> u64 {
        let end = planned.lane_end(self.ask.offset, at, self.ask.length).min(self.read.end);
        blocks.at(at).map_or(end, |block| end.min(block.end))
    }

    /// Books the oldest frame that the kernel had as free. Returns the byte before which all are.
    pub(in crate::shard) fn note_frame_free(
        &mut self,
        blocks: &mut Blocks,
        planned: &Planned,
    ) -> u64 {
        let at = self.read.free;
        if let Some(block) = blocks.at(at) {
            block.frames -= 1;
        }
        self.read.free = self.frame_end(blocks, planned, at).max(at);
        self.read.free
    }

    /// Books the oldest frame as sent, and the fragments that it ends.
    pub(in crate::shard) fn note_frame_sent(&mut self, blocks: &mut Blocks, planned: &Planned) {
        let at = self.read.sent;
        self.read.sent = self.frame_end(blocks, planned, at).max(at);
        while self.read.held > 0 {
            let oldest = self.read.oldest;
            let end = self.source_end(blocks, planned, oldest);
            let end = blocks.at(oldest).map_or(end, |block| end.min(block.end));
            if end > self.read.sent {
                break;
            }
            self.read.oldest = end;
            self.read.held -= 1;
        }
    }
}
