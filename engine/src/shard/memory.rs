//! Local regions: the daemon itself copies between two clients' memories, a bounded piece a turn, so
//! that a long put does not hold up the others on the shard.

use super::dial::{Effect, Hop};
use super::disk::Direction;
use super::slab::Key;
use super::trace::Subject;
use super::transfer::{Body, MemoryBody};
use super::{Shard, Work};
use crate::io::{Io, Span};
use crate::limits::MEMORY_BYTES_PER_TURN;
use crate::request::Status;

impl Shard {
    pub(super) fn drive_memory<I: Io>(&mut self, key: Key, mut body: MemoryBody, io: &mut I) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        if body.next == transfer.length || self.dials.is_full() {
            // Its last pieces are in a dial, or it waits until they are not.
            if body.next < transfer.length {
                self.starve(Work::Transfer(key));
            }
            return;
        }
        let end = transfer.length.min(transfer.available);
        let length = end.saturating_sub(body.next).min(u64::from(MEMORY_BYTES_PER_TURN)) as u32;
        if length == 0 {
            // What it writes is not read yet.
            return;
        }
        let ours = body.memory.span(body.next, length);
        let region = body.region;
        let theirs = Span {
            segment: region.segment,
            offset: region.offset + body.offset + body.next,
            length,
        };
        if overlap(ours, theirs) {
            // A client that copies its region onto itself: the same bytes need no copy, shifted
            // ones have no defined result.
            if ours != theirs {
                return self.decide(key, Status::Invalid, io);
            }
        } else {
            let arrived = io.now();
            match body.direction {
                Direction::Read => io.copy(theirs, ours),
                Direction::Write => io.copy(ours, theirs),
            }
            let now = io.now();
            self.planner.sample_copy(length, now.since(arrived));
            let (of, times) = (Subject::Transfer(key), (Some(arrived), now));
            self.pass_stage(of, self.planner.copy_stage(), (body.next, length), times);
        }
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let start = body.next;
        body.next += u64::from(length);
        let (end, over) = (body.next, body.next == transfer.length);
        transfer.body = Body::Memory(body);
        if !over {
            self.make_ready(Work::Transfer(key));
        }
        if self.dials.any() {
            let effect = Effect::Copied { transfer: key, start, end };
            return self.pass(Hop::Copy, effect, length, io);
        }
        self.handle_copied(key, start, end, io);
    }

    /// A piece was copied, and has left the dial if there is one.
    pub(super) fn handle_copied<I: Io>(&mut self, key: Key, start: u64, end: u64, io: &mut I) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        if matches!(transfer.body, Body::Receive(_)) {
            return self.handle_message_copied(key, start, end, io);
        }
        if transfer.status.is_some() {
            return;
        }
        let inserted = transfer.landed.insert(start, end);
        debug_assert!(inserted.is_ok(), "a copy goes forward");
        if end == transfer.length {
            self.decide(key, Status::Ok, io);
        } else {
            self.tell_progress(key);
        }
    }
}

/// Whether two pieces of memory have bytes in common.
pub(super) fn overlap(a: Span, b: Span) -> bool {
    a.segment == b.segment
        && a.offset < b.offset + u64::from(b.length)
        && b.offset < a.offset + u64::from(a.length)
}
