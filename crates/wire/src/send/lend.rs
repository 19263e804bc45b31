//! Batches that are lent to the kernel instead of copied.

use piped_core::io::{Io, Span, Spans};

use super::{BATCH_BYTES_MAX, Entry, Payload, Sender};
use crate::lent::{BOX_FRAMES, LENT_MAX, Lent};

/// The shortest payload, in bytes, that may be lent. A lending send costs one more completion and
/// the pinning of pages, which is too much for short frames.
pub const LEND_BYTES_MIN: u32 = 16 * 1024;

impl Entry {
    /// Whether the frame could be lent: nothing holds it, and its payload is long and lies in
    /// memory of its own.
    pub(super) fn is_lendable(&self) -> bool {
        let long = |span: Span| span.length >= LEND_BYTES_MIN;
        !self.held && matches!(self.payload, Payload::Memory(span) if long(span))
    }
}

impl Sender {
    /// Whether memory is lent to the kernel.
    #[must_use]
    pub fn is_lending(&self) -> bool {
        self.flights.any()
    }

    /// Sets whether payloads that could be lent begin a batch of their own.
    pub fn keep_apart(&mut self, apart: bool) {
        self.apart = apart;
    }

    /// Bytes of the next batch if it could be lent; otherwise 0.
    #[must_use]
    pub fn lendable(&self) -> u64 {
        let can = self.has_boxes() && self.flights.has_box();
        // What is encrypted lies in memory that the next batch wants.
        if self.in_flight || self.batch.frames > 0 || !can || self.seal.moves_payloads() {
            return 0;
        }
        let mut bytes = 0;
        for entry in self.queue.iter().take(BOX_FRAMES) {
            let wire_bytes = self.wire_bytes(entry);
            if !entry.is_lendable() || (bytes > 0 && bytes + wire_bytes > BATCH_BYTES_MAX) {
                break;
            }
            bytes += wire_bytes;
        }
        bytes
    }

    /// Whether the scratch memory has boxes for lent headers.
    fn has_boxes(&self) -> bool {
        self.scratch.length >= Self::SCRATCH_BYTES
    }

    /// The next send operation, which lends; `None` if [`Sender::lendable`] says 0. The memory is
    /// free when the [`Lent`] has been handed back, whatever becomes of the operation.
    pub fn poll_lend<I: Io>(&mut self, io: &mut I) -> Option<(Spans, Lent)> {
        if self.lendable() == 0 {
            return None;
        }
        let (number, place) = self.flights.begin()?;
        self.gather(Some((number, place)), io);
        let spans = self.rest_of_batch()?;
        Some((spans, self.flights.lend(number)))
    }

    /// Hands back what a send had lent, after the kernel's notification.
    pub fn take_back(&mut self, lent: Lent) {
        self.flights.take_back(lent);
    }

    /// Scratch for the headers of a batch; the boxes of lent batches lie at its end.
    pub(super) fn headers_of(&self, place: Option<usize>) -> Span {
        let boxes = if self.has_boxes() { Self::BOX_BYTES * LENT_MAX as u32 } else { 0 };
        let common = self.scratch.length - boxes;
        match place {
            Some(place) => {
                self.scratch.part(common + Self::BOX_BYTES * place as u32, Self::BOX_BYTES)
            }
            None => self.scratch.part(0, common),
        }
    }
}
