//! Copies for sockets of memory that can vanish.
//!
//! A send whose memory vanishes ends with EFAULT in the middle of a frame, and a receive into such
//! memory loses what came. Both would cost the connection, which serves other clients as well. So
//! the socket gets memory of the daemon, and the bytes are copied before a send and after a
//! receive, by copies that end where memory is gone. What has vanished is sent as zeros.
//!
//! Operations on files need no copy: EFAULT ends one operation of the client that owns the memory.

use piped_core::io::{SPANS_PER_OP_MAX, Span};
use piped_ring::Segment;

use super::memory::{self, Memory};

/// Memory for one operation. A longer one ends short, as operations on sockets may, and its rest is
/// asked for again.
pub(super) const BOUNCE_BYTES: u32 = 64 << 10;

/// A part of a bounce, and its place in lent memory.
#[derive(Debug, Clone, Copy)]
struct Part {
    span: Span,
    /// Bytes of the operation before the part.
    before: u64,
    /// Offset in the bounce.
    at: u64,
}

/// Memory in place of spans that can vanish, for one operation.
#[derive(Debug)]
struct Bounce {
    memory: Segment,
    parts: [Option<Part>; SPANS_PER_OP_MAX],
    count: usize,
    used: u32,
}

/// Bounces of all operations: at most one for each, made when they are needed for the first time.
#[derive(Debug, Default)]
pub(super) struct Bounces {
    all: Vec<Bounce>,
    free: Vec<u16>,
}

impl Bounces {
    /// Takes a bounce. `None` if there is no memory for one more.
    pub(super) fn take(&mut self) -> Option<u16> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                let place = u16::try_from(self.all.len()).ok()?;
                let memory = Segment::private(u64::from(BOUNCE_BYTES)).ok()?;
                let parts = [None; SPANS_PER_OP_MAX];
                self.all.push(Bounce { memory, parts, count: 0, used: 0 });
                place
            }
        };
        let bounce = &mut self.all[usize::from(place)];
        (bounce.count, bounce.used) = (0, 0);
        Some(place)
    }

    /// Replaces a span, which is `before` bytes into the operation, by memory of a bounce, as far
    /// as there is room. The address, and the bytes there are.
    pub(super) fn replace(&mut self, place: u16, span: Span, before: u64) -> (*mut u8, u32) {
        let bounce = &mut self.all[usize::from(place)];
        let length = span.length.min(BOUNCE_BYTES - bounce.used);
        let at = u64::from(bounce.used);
        bounce.parts[bounce.count] = Some(Part { span: span.part(0, length), before, at });
        bounce.count += 1;
        bounce.used += length;
        (bounce.memory.as_ptr().wrapping_add(at as usize), length)
    }

    /// Copies what is to be sent into a bounce.
    pub(super) fn fill(&self, place: u16, memory: &mut Memory) {
        let bounce = &self.all[usize::from(place)];
        for Part { span, at, .. } in bounce.parts() {
            let length = u64::from(span.length);
            let copied =
                memory.segment(span).map(|from| from.copy(span.offset, &bounce.memory, at, length));
            if !matches!(copied, Some(Ok(()))) {
                memory::clear(&bounce.memory, at, length);
                memory.note_torn(span.segment.0);
            }
        }
    }

    /// Copies what was received, the first `bytes` of the operation, to the memory it is for.
    pub(super) fn empty(&self, place: u16, bytes: u64, memory: &mut Memory) {
        let bounce = &self.all[usize::from(place)];
        for Part { span, before, at } in bounce.parts() {
            let length = bytes.saturating_sub(before).min(span.length.into());
            let copied =
                memory.segment(span).map(|to| bounce.memory.copy(at, to, span.offset, length));
            if !matches!(copied, Some(Ok(()))) {
                memory.note_torn(span.segment.0);
            }
        }
    }

    /// Takes a bounce back that no operation uses.
    pub(super) fn give_back(&mut self, place: u16) {
        self.free.push(place);
    }
}

impl Bounce {
    fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        self.parts[..self.count].iter().copied().flatten()
    }
}
