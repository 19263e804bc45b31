//! Local regions: the daemon itself copies between two clients' memories, piece by piece, in turn,
//! and no more than so much in a turn of the shard, so that a long put does not hold up the others.

use piped_core::io::{Io, Span};
use piped_core::limits::COPY_BYTES_PER_TURN;
use piped_core::status::Status;

use crate::command::RegionTarget;
use crate::relay::{NotifyAsker, Relay};
use crate::shard::Shard;
use crate::shard::delays::{Effect, Hop};
use crate::shard::driver::Direction;
use crate::shard::keys::{Subject, TransferKey};
use crate::shard::requests::{Body, MemoryBody};
use crate::shard::sched::Work;

impl Shard {
    pub(in crate::shard) fn drive_memory<I: Io>(
        &mut self,
        key: TransferKey,
        mut body: MemoryBody,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        if transfer.landed.watermark() == transfer.length {
            return self.end_memory(key, io);
        }
        let now = io.now();
        if body.copied() == transfer.length || self.cx.dials.is_full() {
            // Its last pieces are in a dial, or it waits until they are not.
            if body.copied() < transfer.length {
                self.cx.sched.starve(Work::Transfer(key));
            }
            return;
        }
        let length = body.next_piece(transfer.length.min(transfer.available));
        if length == 0 || body.waits() {
            // What it writes is not read yet, or a piece of it has its place in the line.
            return;
        }
        if !self.may_move(Work::Transfer(key), now) {
            return;
        }
        self.charge(Work::Transfer(key), length.into(), now);
        body.set_waits(true);
        self.store_body(key, Body::Memory(body));
        let flow = self.flow_of(Work::Transfer(key));
        self.cx.sched.push_copy(flow, length, key);
    }

    /// Copies the next pieces, as many as a turn has room for.
    pub(in crate::shard) fn copy_pieces<I: Io>(&mut self, io: &mut I) {
        let mut copied = 0;
        while copied < COPY_BYTES_PER_TURN
            && let Some((bytes, key)) = self.cx.sched.poll_copy()
        {
            let Some(transfer) = self.transfers.get_mut(key) else { continue };
            let is_over = transfer.status.is_some();
            match &mut transfer.body {
                Body::Memory(body) => {
                    body.set_waits(false);
                    let body = *body;
                    if !is_over {
                        self.copy_piece(key, body, io);
                    }
                }
                Body::Vector(_) if !is_over => self.copy_rows(key, io),
                _ => {}
            }
            copied += if is_over { 0 } else { bytes };
        }
    }

    fn copy_piece<I: Io>(&mut self, key: TransferKey, mut body: MemoryBody, io: &mut I) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let length = body.next_piece(transfer.length.min(transfer.available));
        let (ours, theirs) = body.spans(length);
        if overlap(ours, theirs) {
            // A client that copies its region onto itself: the same bytes need no copy, shifted
            // ones have no defined result.
            if ours != theirs {
                return self.decide(key, Status::Invalid, io);
            }
        } else {
            let arrived = io.now();
            match body.direction() {
                Direction::Read => io.copy(theirs, ours),
                Direction::Write => io.copy(ours, theirs),
            }
            let now = io.now();
            self.cx.planner.sample_copy(length, now.since(arrived));
            let (of, times) = (Subject::Transfer(key), (Some(arrived), now));
            self.cx.watch.pass_stage(
                of,
                self.cx.planner.copy_stage(),
                (body.copied(), length),
                times,
            );
        }
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let (start, end) = body.pass(length);
        let over = end == transfer.length;
        transfer.body = Body::Memory(body);
        if !over {
            self.cx.sched.make_ready(Work::Transfer(key));
        }
        if self.cx.dials.any() {
            let effect = Effect::Copied { transfer: key, start, end };
            return self.pass(Hop::Copy, effect, length, io);
        }
        self.handle_copied(key, start, end, io);
    }

    /// A piece was copied, and has left the dial if there is one.
    pub(in crate::shard) fn handle_copied<I: Io>(
        &mut self,
        key: TransferKey,
        start: u64,
        end: u64,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get(key) else { return };
        if matches!(transfer.body, Body::Receive(_)) {
            return self.handle_message_copied(key, start, end, io);
        }
        if transfer.status.is_some() {
            return;
        }
        let whole = end == transfer.length;
        let inserted = self.transfers.land(key, start, end);
        debug_assert!(inserted.is_ok(), "a copy goes forward");
        if whole {
            self.end_memory(key, io);
        } else {
            self.tell_progress(key);
        }
    }

    /// All bytes are copied.
    fn end_memory<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        let Some(Body::Memory(body)) = self.transfers.get(key).map(|it| it.body) else { return };
        match body.notify() {
            // All puts before a notification on this node are over first.
            Some(_) if self.puts_before(key).next().is_some() => self.wait_in_order(key),
            Some(id) if body.region().home != self.cx.relays.own() => {
                self.notify_elsewhere(key, id)
            }
            Some(id) => {
                let serve = self.transfers.serves_waits(&mut self.cx.sched);
                let raised = self.notifications.raise(body.region().region, id, serve);
                self.decide(key, raised.err().unwrap_or(Status::Ok), io);
            }
            None => self.decide(key, Status::Ok, io),
        }
    }

    /// The exporter of a region is of another shard, which says what came of the notification. It
    /// sees all bytes of the put: what it is told comes after them.
    fn notify_elsewhere(&mut self, key: TransferKey, id: u32) {
        let Some(Body::Memory(body)) = self.transfers.get_mut(key).map(|it| &mut it.body) else {
            return;
        };
        let RegionTarget { region, home, .. } = body.region();
        if body.ask() {
            let asker = NotifyAsker::Request(key.to_bits());
            self.cx.relays.tell(home, Relay::Notify { asker, region, id });
        }
    }

    /// The shard of an exporter says what came of a notification.
    pub(in crate::shard) fn handle_notified<I: Io>(
        &mut self,
        key: TransferKey,
        status: Status,
        io: &mut I,
    ) {
        let body = self.transfers.get(key).map(|it| it.body);
        if matches!(body, Some(Body::Memory(body)) if body.is_asked()) {
            self.decide(key, status, io);
        }
    }
}

/// Whether two pieces of memory have bytes in common.
pub(in crate::shard) fn overlap(a: Span, b: Span) -> bool {
    a.segment == b.segment
        && a.offset < b.offset + u64::from(b.length)
        && b.offset < a.offset + u64::from(a.length)
}
