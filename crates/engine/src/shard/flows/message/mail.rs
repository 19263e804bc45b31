//! Messages to channels of peers: in order, each taken in once.
//!
//! Who sends by one handle, and how often its lane is lost, must not change what a receiver sees:
//! messages are asked for on the latency lane in the order in which they were submitted, each with
//! its number, and those that are asked again after a lost lane have the numbers they had. A short
//! message travels with what asks for it (eager); a longer one is announced, and written like any
//! other write once the peer says where to.

use piped_core::ids::PeerId;
use piped_core::io::Io;
use piped_core::limits::{EAGER_BYTES_MAX, EAGER_BYTES_MIN, EAGER_TIME_MAX, HANDSHAKE_FIRST};
use piped_core::link::LaneClass;
use piped_core::modes::EagerMode;
use piped_core::status::Status;
use piped_report::shard::MessageReport;
use piped_report::tally::{MessageWay, RetryReason};
use piped_wire::{Message, Owner};

use crate::shard::Shard;
use crate::shard::connections::Lane;
use crate::shard::faults::PeerFault;
use crate::shard::keys::{LaneKey, Subject, TransferKey};
use crate::shard::messages::Outbox;
use crate::shard::peers::Peer;
use crate::shard::requests::{Body, Outgoing, RemoteBody, RemoteOp, Transfer};
use crate::shard::sched::Work;
use crate::shard::slab::Key;

impl Shard {
    /// The messages of the handle that a message is sent by; nothing for what is no message.
    pub(in crate::shard) fn outbox(&mut self, key: TransferKey) -> Option<&mut Outbox> {
        let body = self.transfers.get(key)?.remote()?;
        body.message?;
        let handle = body.handle;
        Some(&mut self.remote_of(key, handle)?.outbox)
    }

    /// Asks a peer to take a message.
    pub(in crate::shard) fn send_message<I: Io>(
        &mut self,
        key: TransferKey,
        lane_key: LaneKey,
        mut body: RemoteBody,
        (handle, incarnation): (u32, u64),
        io: &mut I,
    ) {
        let eager_most = self.eager_most(self.peers.get(body.peer));
        let Some(mut message) = body.message else { return };
        let Some(outbox) = self.outbox(key) else { return };
        let (sequence, oldest) = outbox.number();
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let Some(lane) = self.lanes.get_mut(lane_key) else { return };
        let left = transfer.deadline.since(io.now()).0 / 1_000;
        let length = transfer.length as u32;
        let eager = length <= eager_most;
        let frame = Message::Send {
            transfer: key.to_bits(),
            handle,
            tag: message.tag,
            length,
            sequence,
            oldest,
            time_left_us: u32::try_from(left).unwrap_or(u32::MAX).max(1),
        };
        let room = lane.has_room_for_request() && lane.has_room_for_data();
        let payload = eager.then(|| body.memory.span(0, length));
        let owner = if eager { Subject::Transfer(key).tag() } else { Owner::NONE };
        if !room || lane.sender.push(lane.epoch, frame, payload, owner).is_err() {
            return self.cx.sched.starve(Work::Transfer(key));
        }
        if eager {
            body.frames += 1;
            transfer.pins.take(key).into_frame();
        }
        body.alone = lane.asking_mut().is_some_and(|asking| asking.ask(key));
        body.lane = Some(lane_key);
        body.sent_at = io.now();
        let first = message.number.is_none();
        message.number.get_or_insert((sequence, incarnation));
        body.message = Some(message);
        transfer.body = Body::Remote(body);
        let way = if eager { MessageWay::Eager } else { MessageWay::Announced };
        self.cx.watch.tally.messages[way as usize] += u64::from(first);
        let next = self.outbox(key).and_then(Outbox::note_asked);
        self.wake_message(next);
        self.cx.sched.make_ready(Work::Lane(lane_key));
    }

    /// Whether a message may have been taken in by a daemon that is no more.
    pub(in crate::shard) fn is_of_old_peer(body: &RemoteBody, incarnation: u64) -> bool {
        let number = body.message.and_then(|message| message.number);
        number.is_some_and(|(_, of)| of != incarnation)
    }

    /// A message is over, or given up: those behind it go on.
    pub(in crate::shard) fn leave_outbox(
        &mut self,
        key: TransferKey,
        peer: PeerId,
        message: Outgoing,
    ) {
        // Who waits for its bytes waits no longer, whichever lane they took.
        let failed = self.transfers.get(key).is_some_and(|it| it.status != Some(Status::Ok));
        if message.slot.is_some()
            && failed
            && let Some(lane) = self.peers.lane(peer, LaneClass::Latency)
        {
            self.tell(lane, Message::Cancel { transfer: key.to_bits() });
        }
        let number = message.number;
        let number = number.map(|(number, _)| number);
        let next = self.outbox(key).and_then(|outbox| outbox.leave(key, number));
        self.wake_message(next);
    }

    /// A message's turn has come.
    fn wake_message(&mut self, next: Option<TransferKey>) {
        if let Some(next) = next {
            self.cx.sched.make_ready(Work::Transfer(next));
        }
    }

    /// A message is to be asked for again: at its old place, which its number says.
    pub(in crate::shard) fn send_again(&mut self, key: TransferKey) {
        let Some(body) = self.transfers.get_mut(key).and_then(Transfer::remote_mut) else { return };
        let Some(message) = &mut body.message else { return };
        (body.op, body.lane, message.slot, message.queued) = (RemoteOp::Send, None, None, false);
        let number = message.number.map(|(number, _)| number);
        let next = self.outbox(key).and_then(|outbox| outbox.enter_again(key, number));
        self.wake_message(next);
    }

    /// The peer says how it has ended, or that its write has.
    pub(in crate::shard) fn end_send<I: Io>(
        &mut self,
        key: TransferKey,
        status: Status,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let Body::Remote(body) = &transfer.body else { return };
        let (written, peer, sent_at) = (body.op != RemoteOp::Send, body.peer, body.sent_at);
        let length = transfer.length;
        match status {
            Status::Ok => {
                let inserted = self.transfers.land(key, 0, length);
                debug_assert!(inserted.is_ok(), "a message is taken in once");
                // A long one's answer waited for its bytes.
                if !written
                    && length <= u64::from(EAGER_BYTES_MIN)
                    && let Some(state) = self.peers.get_mut(peer)
                {
                    state.note_handshake(io.now().since(sent_at));
                }
                self.decide(key, Status::Ok, io);
            }
            // Whoever was to get it was given up; it is for the next.
            Status::BadHandle | Status::Cancelled | Status::Gone if written => {
                self.leave_lane(key, false);
                if let Some(transfer) = self.transfers.get_mut(key) {
                    transfer.attempts.repeat();
                }
                self.cx.watch.note_retry(RetryReason::LaneLost);
                self.send_again(key);
            }
            status => self.decide(key, status, io),
        }
    }

    /// The peer knows of a message; nobody has asked for it yet.
    pub(in crate::shard) fn handle_queued<I: Io>(
        &mut self,
        lane_key: LaneKey,
        wire: u64,
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let key = Key::from_bits(wire);
        let now = io.now();
        let sends = |body: &Body| matches!(body, Body::Remote(it) if it.message.is_some());
        let running = self.transfers.get(key).filter(|it| it.status.is_none());
        if running.is_some_and(|it| !sends(&it.body)) {
            return Err(PeerFault::AnswerToNoMessage);
        }
        let Some(asking) = self.lanes.get_mut(lane_key).and_then(Lane::asking_mut) else {
            return Ok(());
        };
        asking.note_answer(key, true)?;
        // Ready follows, also if it is given up here.
        asking.queued_sends += 1;
        asking.forget(key);
        let mut heard = None;
        if let Some(Body::Remote(body)) = self.transfers.get_mut(key).map(|it| &mut it.body)
            && body.lane == Some(lane_key)
            && let Some(message) = &mut body.message
        {
            message.queued = true;
            heard = Some((body.peer, now.since(body.sent_at), message.no_wait));
        }
        if let Some((peer, time, no_wait)) = heard {
            if let Some(state) = self.peers.get_mut(peer) {
                state.note_handshake(time);
            }
            if no_wait {
                self.give_up(key, Status::WouldBlock, io);
            }
        }
        self.cx.sched.wake_starved();
        Ok(())
    }

    /// The peer says where a message is to be written, or why it never will be.
    pub(in crate::shard) fn handle_ready<I: Io>(
        &mut self,
        lane_key: LaneKey,
        (wire, status, slot): (u64, Status, u32),
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let key = Key::from_bits(wire);
        let Some(asking) = self.lanes.get_mut(lane_key).and_then(Lane::asking_mut) else {
            return Ok(());
        };
        if asking.outstanding.contains(&key) {
            asking.forget(key);
        } else if asking.queued_sends > 0 {
            asking.queued_sends -= 1;
        } else {
            asking.note_answer(key, true)?;
        }
        let Some(transfer) = self.transfers.get_mut(key).filter(|it| it.status.is_none()) else {
            return Ok(());
        };
        let Body::Remote(body) = &mut transfer.body else {
            return Err(PeerFault::AnswerToNoMessage);
        };
        let Some(message) = body.message.as_mut().filter(|_| body.op == RemoteOp::Send) else {
            return Err(PeerFault::AnswerToNoMessage);
        };
        if body.lane != Some(lane_key) {
            return Ok(());
        }
        if status != Status::Ok {
            self.decide(key, status, io);
            return Ok(());
        }
        (message.slot, message.queued) = (Some(slot), false);
        (body.op, body.lane) = (RemoteOp::Write { durable: false }, None);
        (body.next, body.fragment_end) = (0, 0);
        self.cx.sched.make_ready(Work::Transfer(key));
        self.cx.sched.wake_starved();
        Ok(())
    }

    /// A message that the peer knows of is given up.
    pub(in crate::shard) fn cancel_queued(&mut self, key: TransferKey) {
        let Some(body) = self.transfers.get(key).and_then(Transfer::remote) else { return };
        let queued = body.message.is_some_and(|message| message.queued);
        if let Some(lane_key) = body.lane.filter(|_| queued) {
            self.tell(lane_key, Message::Cancel { transfer: key.to_bits() });
        }
    }

    /// What is done with messages to a peer, once some were sent.
    pub(in crate::shard) fn report_messages(&self, link: &Peer) -> Option<MessageReport> {
        let handshake = link.handshake()?;
        let eager_bytes = self.eager_most(Some(link));
        Some(MessageReport { eager_bytes, handshake_seconds: handshake.seconds() })
    }

    /// The longest message that is sent without being announced.
    ///
    /// Where its receiver has not asked for it yet, an eager message costs a copy out of
    /// early-arrival memory, and an announced one the hand-shake and the wire, which its bytes pass
    /// only then. And as messages pass the latency lane, none may hold it for long.
    pub(in crate::shard) fn eager_most(&self, link: Option<&Peer>) -> u32 {
        if let EagerMode::Fixed(bytes) = self.cx.config.eager {
            return bytes.min(EAGER_BYTES_MAX);
        }
        let handshake = link.and_then(Peer::handshake).unwrap_or(HANDSHAKE_FIRST);
        let lane = link.and_then(|link| self.lanes.get(link.lane(LaneClass::Latency)?));
        let fits = |bytes: u32| {
            let wire = lane.map_or(0.0, |lane| self.cx.planner.seconds(lane.stage_out, bytes));
            let copy = self.cx.planner.seconds(self.cx.planner.copy_stage(), bytes);
            wire <= EAGER_TIME_MAX.seconds() && copy <= handshake.seconds() + wire
        };
        // Doubling is fine enough: about the threshold both ways take about as long.
        let mut most = EAGER_BYTES_MIN;
        while most < EAGER_BYTES_MAX && fits(2 * most) {
            most *= 2;
        }
        most
    }
}
