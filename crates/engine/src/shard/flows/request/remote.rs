//! The requester's side of a transfer with a peer: ask, send or land, retry on a new lane.

use piped_core::io::{Io, Span};
use piped_core::limits;
use piped_core::sizes::{Sizes, UNIT_BYTES};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::planned::{CUT_BYTES, boundary, level_end};
use piped_report::tally::{HeldBy, RetryReason};
use piped_wire::{After, Asker, Frame, Message, Owner, SPILL_BYTES};

use crate::shard::Shard;
use crate::shard::connections::{Destination, Lane, Target};
use crate::shard::fair::Flow;
use crate::shard::faults::PeerFault;
use crate::shard::keys::{LaneKey, Subject, TransferKey};
use crate::shard::pins::Pin;
use crate::shard::requests::{Body, RemoteBody, RemoteOp, Transfer, Vouched};
use crate::shard::sched::Work;
use crate::shard::slab::Key;
use crate::shard::watch::Spot;

impl Shard {
    pub(in crate::shard) fn drive_remote<I: Io>(
        &mut self,
        key: TransferKey,
        body: RemoteBody,
        io: &mut I,
    ) {
        match body.lane {
            None if body.op == RemoteOp::Once => self.ask_once(key, body, io),
            None => {
                if let Some(body) = self.with_call(key, body, io) {
                    self.ask(key, body, io);
                }
            }
            Some(lane) => self.send_write(key, lane, io),
        }
    }

    /// Sends of a write what it can, and the notification behind it.
    fn send_write<I: Io>(&mut self, key: TransferKey, lane: LaneKey, io: &mut I) {
        let was_sent = self.is_sent(key);
        self.send_data(key, lane, io.now());
        if !self.is_sent(key) {
            return;
        }
        // Once: the notification behind it may itself be what waits, for others.
        if !was_sent {
            self.clients.wake_order(key, &mut self.cx.sched);
        }
        let body = self.transfers.get(key).map(|transfer| &transfer.body);
        if matches!(body, Some(Body::Remote(body)) if body.once.is_some()) {
            self.send_behind_put(key, lane, io);
        }
    }

    /// Whether it is a write all of whose bytes are queued on a lane.
    fn is_sent(&self, key: TransferKey) -> bool {
        let Some(transfer) = self.transfers.get(key) else { return false };
        let Body::Remote(body) = &transfer.body else { return false };
        matches!(body.op, RemoteOp::Write { .. }) && body.next == transfer.length
    }

    /// Sends the request, if there is a lane for it now; a lane that comes up looks for those that
    /// wait.
    fn ask<I: Io>(&mut self, key: TransferKey, mut body: RemoteBody, io: &mut I) {
        let Some(transfer) = self.transfers.get(key) else { return };
        if body.vouched == Vouched::Landed {
            return self.end_landed(key, io);
        }
        let lane = self.lane_for(transfer, &body);
        let again = transfer.attempts.is_repeated();
        if again && body.vouched == Vouched::InDoubt {
            return self.decide(key, Status::OutcomeUnknown, io);
        }
        let Some(state) = self.peers.there(body.peer) else {
            return self.decide(key, Status::PeerLost, io);
        };
        if Self::is_of_old_peer(&body, state.incarnation()) {
            // It may have been taken in by a daemon that is no more.
            return self.decide(key, Status::OutcomeUnknown, io);
        }
        let incarnation = state.incarnation();
        let Some(lane_key) = lane else {
            if self.may_go_elsewhere(key, io.now()) {
                return self.decide(key, Status::PeerLost, io);
            }
            return self.cx.watch.hold(Work::Transfer(key), HeldBy::Peer);
        };
        let Some(transfer) = self.transfers.get(key) else { return };
        let number = match self.handles.remote(transfer.session, body.handle) {
            Some(remote) => match remote.number {
                Some((number, of)) if of == incarnation => number,
                // The peer restarted: the handle is being opened again.
                _ => return,
            },
            _ => return self.decide(key, Status::Gone, io),
        };
        let left = match body.op {
            // Asked again it is not paid for again.
            RemoteOp::Read => transfer.length - body.paid.max(transfer.landed.watermark()),
            RemoteOp::Send => transfer.length,
            // They pay as they go, or have nothing to pay for.
            RemoteOp::Write { .. } | RemoteOp::Sync | RemoteOp::Once | RemoteOp::Call => 0,
        };
        let (session, length) = (transfer.session, transfer.length);
        let ready = transfer.available.min(length);
        if body.op == RemoteOp::Send && !self.outbox(key).is_some_and(|it| it.is_next(key)) {
            return;
        }
        let number = body.message.and_then(|message| message.slot).unwrap_or(number);
        let now = io.now();
        if left > 0 && !self.may_move(Work::Transfer(key), now) {
            return;
        }
        if !self.may_ask(lane_key, Some(session), io) {
            return self.cx.sched.starve(Work::Transfer(key));
        }
        if body.op == RemoteOp::Send {
            return self.send_message(key, lane_key, body, (number, incarnation), io);
        }
        if !self.lanes.get(lane_key).is_some_and(Lane::has_room_for_request) {
            return self.cx.sched.starve(Work::Transfer(key));
        }
        if body.enclosed.is_some() && !self.has_room_for_table(lane_key, body.op) {
            // A part that ends frees staging, which wakes it.
            return self.cx.sched.starve(Work::Transfer(key));
        }
        if body.once.is_some_and(|once| self.bodies[once].number().is_some()) {
            // It went out on a lane that was lost: whether it was done, before its put goes again.
            return self.send_once(key, lane_key, After::Known, io);
        }
        if again && matches!(body.op, RemoteOp::Write { .. }) && self.may_be_notified_of(key) {
            return self.wait_in_order(key);
        }
        let once = match self.number_of_call(key, &body, incarnation) {
            Ok(once) => once,
            Err(Some(status)) => return self.decide(key, status, io),
            // One that ends wakes it.
            Err(None) => return self.cx.sched.starve(Work::Transfer(key)),
        };
        let message = self.request_message(key, body, (number, once), now);
        let sizes = self.sink_sizes(key, message).filter(|_| body.enclosed.is_none());
        let Some(lane) = self.lanes.get_mut(lane_key) else { return };
        let owner = Subject::Transfer(key);
        let pushed = match sizes.map(|sizes| sizes.encode()) {
            Some((bytes, length)) => {
                let sizes = &bytes[..length];
                lane.sender.push_inline(lane.epoch, message, sizes, Owner::NONE).is_ok()
            }
            None if body.enclosed.is_some() => {
                lane.sender.push(lane.epoch, message, body.enclosed, owner.tag()).is_ok()
            }
            None => lane.push(message),
        };
        if !pushed {
            return self.cx.sched.starve(Work::Transfer(key));
        }
        if let Some(outcome) = lane.asking_mut().and_then(|asking| asking.outcome.take()) {
            lane.push(outcome);
        }
        // What is enclosed is lent like the bytes of a write.
        let enclosed = u32::from(body.enclosed.is_some());
        body.frames += enclosed;
        body.alone = lane.asking_mut().is_some_and(|asking| asking.ask(key));
        body.lane = Some(lane_key);
        body.sent_at = now;
        body.ready = ready;
        (body.next, body.taken) = (0, 0);
        body.fragment_end = 0;
        if body.op == RemoteOp::Read && self.cx.limits.client.rate > 0 {
            body.paid = length;
        }
        self.store_body(key, Body::Remote(body));
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.begun = transfer.begun.min(body.sent_at);
            transfer.plans.forget_told();
            if enclosed > 0 {
                transfer.pins.take(key).into_frame();
            }
        }
        if body.call.is_some() {
            self.note_call_sent(key, incarnation);
        }
        self.charge(Work::Transfer(key), left, now);
        self.cx.sched.make_ready(Work::Lane(lane_key));
        if matches!(body.op, RemoteOp::Write { .. }) {
            self.send_write(key, lane_key, io);
        }
    }

    /// Whether the peer has room for one more table of a put: as many as are worth the credit that
    /// it gave, because of others it would have tables and no bytes.
    fn has_room_for_table(&self, lane: LaneKey, op: RemoteOp) -> bool {
        let Some(asking) = self.lanes.get(lane).and_then(Lane::asking) else { return false };
        let most = (asking.window.window() / u64::from(limits::PART_BYTES)).max(1);
        let has_table = |key: &&TransferKey| {
            let body = self.transfers.get(**key).and_then(Transfer::remote);
            body.is_some_and(|it| it.enclosed.is_some() && matches!(it.op, RemoteOp::Write { .. }))
        };
        let reads = !matches!(op, RemoteOp::Write { .. });
        reads || (asking.outstanding.iter().filter(has_table).count() as u64) < most
    }

    fn request_message(
        &mut self,
        key: TransferKey,
        body: RemoteBody,
        (handle, once): (u32, Option<(u32, u8)>),
        now: Nanos,
    ) -> Message {
        let planned = match body.op {
            RemoteOp::Write { .. } => Some(self.plan_write(key, body.peer)),
            _ => None,
        };
        let Flow { class, weight, .. } = self.flow_of(Work::Transfer(key));
        let transfer = self.transfers.get(key).expect("the caller looked it up");
        let asker = Asker { class, client: transfer.session.0, weight };
        let left = transfer.deadline.since(now).0 / 1_000;
        let time_left_us = u32::try_from(left).unwrap_or(u32::MAX).max(1);
        let (wire, offset, length) = (key.to_bits(), body.offset, transfer.length);
        match body.op {
            RemoteOp::Read => Message::Read {
                transfer: wire,
                handle,
                offset,
                length,
                asker,
                from: transfer.landed.watermark() as u32,
                pieces: body.enclosed.is_some(),
                time_left_us,
            },
            RemoteOp::Write { durable } => Message::Write {
                transfer: wire,
                handle,
                offset,
                length,
                asker,
                durable,
                pieces: body.enclosed.is_some(),
                fragment: planned.map_or(0, |planned| planned.cut.lane.largest() as u32),
                time_left_us,
            },
            RemoteOp::Sync => Message::Sync { transfer: wire, handle, time_left_us },
            RemoteOp::Call => Message::Call {
                transfer: wire,
                handle,
                answer_max: length as u32,
                asker,
                once,
                time_left_us,
            },
            RemoteOp::Send | RemoteOp::Once => unreachable!("they have ways of their own"),
        }
    }

    /// How the peer shall cut a write, if not as its frames are.
    fn sink_sizes(&self, key: TransferKey, message: Message) -> Option<Sizes> {
        let Message::Write { fragment, .. } = message else { return None };
        let sink = self.transfers.get(key)?.plans.own()?.cut.sink;
        (sink != Sizes::equal(fragment.into())).then_some(sink)
    }

    /// Queues as much of a write as credit and the lane's queue allow.
    fn send_data(&mut self, key: TransferKey, lane_key: LaneKey, now: Nanos) {
        let body = self.transfers.get(key).map(|transfer| &transfer.body);
        let Some(Body::Remote(RemoteBody { op: RemoteOp::Write { .. }, .. })) = body else {
            return;
        };
        if !self.may_move(Work::Transfer(key), now) {
            return;
        }
        let flow = self.flow_of(Work::Transfer(key));
        let (mut queued, mut is_read, mut has_credit) = (0, true, true);
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let (length, available) = (transfer.length, transfer.available);
        let planned = transfer.plans.own().cloned();
        let Body::Remote(body) = &mut transfer.body else { return };
        let Some(lane) = self.lanes.get_mut(lane_key) else { return };
        let most = lane.asking().map_or(0, |asking| asking.window.piece_max());
        while body.next < length && body.frames < limits::FRAMES_PER_OWNER {
            let (offset, at) = (body.offset, body.next);
            let end = |sizes| level_end(sizes, offset, at, length);
            let frame_end = planned.as_ref().map_or(length, |plan| end(&plan.cut.lane));
            let mut bytes = (frame_end - at).min(most);
            // What belongs to one fragment at the peer's device lands in one piece of memory there.
            if at < body.fragment_end {
                bytes = bytes.min(body.fragment_end - at);
            }
            if at + bytes > available {
                // It comes back when more is read.
                is_read = false;
                break;
            }
            if !lane.asking().is_some_and(|asking| asking.window.has(bytes)) {
                has_credit = body.next > 0;
                break;
            }
            let backlogged = lane.has_data();
            let message =
                Message::WriteData { transfer: key.to_bits(), offset: body.next, backlogged };
            let span = body.memory.span(body.next, bytes as u32);
            if !lane.push_data(flow, message, Some(span), Some(Subject::Transfer(key))) {
                break;
            }
            if at >= body.fragment_end {
                let fragment_end = planned.as_ref().map_or(length, |plan| end(&plan.cut.sink));
                body.fragment_end = fragment_end.max(at + bytes);
            }
            if let Some(asking) = lane.asking_mut() {
                asking.window.spend(bytes);
            }
            body.next += bytes;
            queued += bytes;
            body.frames += 1;
            transfer.pins.take(key).into_frame();
        }
        let more = is_read && body.next < length && body.frames == 0;
        self.cx.watch.moved(Subject::Transfer(key), Spot::Peer(body.peer), queued);
        if !has_credit {
            self.cx.watch.hold(Work::Transfer(key), HeldBy::Peer);
        }
        self.charge(Work::Transfer(key), queued, now);
        self.cx.sched.make_ready(Work::Lane(lane_key));
        if more {
            // No frame of ours will come back to wake us: credit or room on the lane will.
            self.cx.sched.starve(Work::Transfer(key));
        }
    }

    /// The kernel has a frame of a write (or never will): the next one may follow.
    pub(in crate::shard) fn handle_write_frame_taken(&mut self, key: TransferKey) {
        if let Some(body) = self.transfers.get_mut(key).and_then(Transfer::remote_mut) {
            body.frames -= 1;
        }
        self.cx.sched.make_ready(Work::Transfer(key));
    }

    /// The kernel is done with a frame of a write: its memory is free of it.
    pub(in crate::shard) fn handle_write_frame_sent(&mut self, key: TransferKey) {
        self.transfers.unpin(Pin::of_frame(key), &mut self.cx.sched);
        self.cx.sched.make_ready(Work::Transfer(key));
    }

    /// What is queued of a write that is given up stays here, with its credit.
    fn take_back_data(&mut self, key: TransferKey, lane_key: LaneKey) {
        let Some(lane) = self.lanes.get_mut(lane_key) else { return };
        let mut frames = 0;
        let taken = lane.take_back(Subject::Transfer(key));
        let Some(asking) = lane.asking_mut() else { return };
        for bytes in taken {
            asking.window.take_back(bytes.into());
            frames += 1;
        }
        for _ in 0..frames {
            self.handle_write_frame_taken(key);
            self.handle_write_frame_sent(key);
        }
    }

    /// Takes a transfer off its lane, because it is over or (`cancel`) because it is given up.
    pub(in crate::shard) fn leave_lane(&mut self, key: TransferKey, cancel: bool) {
        let Some(body) = self.transfers.get_mut(key).and_then(Transfer::remote_mut) else { return };
        let due =
            body.once.map_or(1, |once| self.bodies[once].answers_due(body.op == RemoteOp::Once));
        let Some(lane_key) = body.lane.take() else { return };
        let queued = body.frames > 0;
        let Some(lane) = self.lanes.get_mut(lane_key) else { return };
        let Some(asking) = lane.asking_mut() else { return };
        let asked = asking.forget(key);
        // What has been answered (and is in a dial still) is nothing to cancel.
        if cancel && asked {
            asking.abandon(due);
            lane.push(Message::Cancel { transfer: key.to_bits() });
            self.cx.sched.make_ready(Work::Lane(lane_key));
        }
        // Asked for again, it would send what is queued as if it were of the new attempt.
        if queued {
            self.take_back_data(key, lane_key);
        }
        self.cx.sched.wake_starved();
    }

    /// The lane a transfer went out on is gone: it waits for the next one. Bytes below the
    /// watermark stay, the rest comes again.
    pub(in crate::shard) fn ask_again(&mut self, key: TransferKey, reason: RetryReason) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let Body::Remote(body) = &mut transfer.body else { return };
        body.lane = None;
        (body.next, body.taken) = (0, 0);
        body.fragment_end = 0;
        if let Some(once) = body.once {
            self.bodies[once].forget_lane();
        }
        let (is_landed, is_message) = (body.vouched == Vouched::Landed, body.op == RemoteOp::Send);
        if transfer.status.is_none() {
            self.cx.watch.forget_stages(Subject::Transfer(key));
            transfer.landed.forget_extents();
            transfer.attempts.repeat();
            self.cx.watch.note_retry(reason);
            if is_message {
                self.send_again(key);
            }
            if is_landed {
                self.cx.sched.make_ready(Work::Transfer(key));
            }
        }
    }

    /// Where the next bytes of a read go, as far as they certainly are payload.
    pub(in crate::shard) fn next_arrival(&self, key: TransferKey) -> Option<Span> {
        let transfer = self.transfers.get(key)?;
        let Body::Remote(body) = &transfer.body else { return None };
        if body.op != RemoteOp::Read || transfer.status.is_some() {
            return None;
        }
        let start = transfer.landed.watermark();
        // A fragment that lies beyond a hole is not predicted; its guess is below it, and no
        // longer. Before the first piece says how long the others are, all that is known is that a
        // page is not cut. That is enough for a short read; of a long one it would cost a receive
        // more than to copy what comes with the header.
        let end = match transfer.plans.told() {
            Some(told) => {
                let pieces = Sizes::equal(told.fragment.into());
                level_end(&pieces, body.offset, start, transfer.length)
            }
            None if transfer.length <= CUT_BYTES => transfer.length,
            None => return None,
        };
        let length = (end - start).min(u64::from(SPILL_BYTES)) as u32;
        (length > 0).then(|| body.memory.span(start, length))
    }

    /// Where the payload of an answer goes.
    pub(in crate::shard) fn destination_of_data(
        &mut self,
        lane: LaneKey,
        frame: Frame,
    ) -> Destination {
        let Message::Data { transfer, offset, last, .. } = frame.message else {
            return Destination::Fault(PeerFault::StrayAnswerPayload);
        };
        let key = Key::from_bits(transfer);
        let Some(transfer) = self.transfers.get(key) else { return Destination::Discard };
        let Body::Remote(body) = &transfer.body else {
            return Destination::Fault(PeerFault::ForeignData);
        };
        if body.lane != Some(lane) || transfer.status.is_some() {
            return Destination::Discard;
        }
        if !body.op.fills() {
            return Destination::Fault(PeerFault::DataForNoRead);
        }
        // An answer is one piece.
        if body.op == RemoteOp::Call && (last.is_none() || offset > 0) {
            return Destination::Fault(PeerFault::DataCutWrong);
        }
        let end = offset.saturating_add(u64::from(frame.payload));
        if end > transfer.length || !self.transfers.is_open(key, offset, end) {
            return Destination::Fault(PeerFault::DataOutside);
        }
        // `next_arrival` relied on it, and does for the next piece.
        let told = transfer.plans.told().map_or(UNIT_BYTES, |told| told.fragment.into());
        let is_cut = |every| boundary(&Sizes::equal(every), body.offset, end - 1) == end;
        let is_page = transfer.length <= CUT_BYTES;
        if last.is_none() && (is_page || !(is_cut(UNIT_BYTES) && is_cut(told))) {
            return Destination::Fault(PeerFault::DataCutWrong);
        }
        let span = body.memory.span(offset, frame.payload);
        let pin = self.transfers.pin(key);
        pin.map_or(Destination::Discard, |pin| Destination::Land(Target::Transfer(pin), span))
    }

    /// Everything that waits for a lane to this peer may try again.
    pub(in crate::shard) fn wake_waiting(&mut self, peer: piped_core::ids::PeerId) {
        let waits = |body: &Body| {
            matches!(
                body,
                Body::Remote(remote) if remote.peer == peer && remote.lane.is_none()
            )
        };
        let mut from = 0;
        while let Some(key) = self.transfers.next_from(&mut from, |t| waits(&t.body)) {
            self.cx.sched.make_ready(Work::Transfer(key));
        }
    }
}
