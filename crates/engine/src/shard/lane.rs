//! A lane: one connection with its sender and receiver, from the first byte to the last completion.
//!
//! The side that dialled asks, the side that accepted serves; which one a lane is says its `link`. A
//! lane that ends first waits for its operations at the kernel (they still touch memory), then gives
//! back what its queue held, and only then is its successor dialled: an old epoch is over before a new
//! one begins.

use piped_core::ids::{ChannelId, PeerId, SessionId, SocketId};
use piped_core::io::{Io, Op, Resource, Span, Token};
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::units::Nanos;
use piped_planner::stage::StageIndex;
use piped_report::shard::LaneReport;
use piped_report::tally::LaneLoss;
use piped_wire::{Frame, LaneKeys, Message, Owner, Receiver, Seal, Sender, Step};

use super::early::Piece;
use super::fair::Fair;
use super::ops::OpOwner;
use super::pace::Pacer;
use super::reports::Reports;
use super::scratch::Scratch;
use super::sending::{Sending, Waiting};
use super::serve_pieces::TableRun;
use super::slab::Key;
use super::zero_copy::ZeroCopy;
use super::{Shard, Work};
use crate::command::{Caller, Event, Expelled, Origin, Standing};

/// Whose lane it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// We dialled: we ask.
    Outbound(PeerId),
    /// They dialled: we serve.
    Inbound(Key),
    /// They dialled and have not said who they are.
    Stranger,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneState {
    /// Waits for the other side's Hello or HelloAck.
    Greeting,
    /// Its Hello was right, but work of its predecessor is not over: HelloAck waits.
    Fenced,
    Up,
    /// Waits for its operations at the kernel.
    Closing,
}

/// What the bytes of a receive are meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Nothing,
    /// A read's buffer.
    Transfer(Key),
    /// A region that a peer writes to.
    ServeRegion(Key),
    /// Staging for a write to a file.
    ServeStaging(Key),
    /// The buffer of a receive, for a message.
    Receive(Key),
    /// Early-arrival memory, for a message of a channel.
    Early(ChannelId, Piece),
    /// Staging for the table of a request.
    Table(TableRun),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) link: Link,
    pub(super) class: LaneClass,
    pub(super) socket: SocketId,
    pub(super) epoch: u32,
    pub(super) state: LaneState,
    /// Who may be at the other end.
    pub(super) caller: Option<Caller>,
    pub(super) sender: Sender,
    /// Frames of data that are not in its queue yet: that is short, and whose turn it is is decided late.
    pub(super) waiting: Fair<Waiting>,
    pub(super) receiver: Receiver,
    pub(super) scratch: Scratch,
    /// Where the scratch moves to, because its segment is to go.
    pub(super) next_scratch: Option<Scratch>,
    /// It rests, and others want what it had for work.
    pub(super) gives_back: bool,
    /// When it was last heard of.
    pub(super) heard: Nanos,
    pub(super) sending: bool,
    /// How the send under way goes.
    pub(super) send: Sending,
    /// Whether it may go without a copy.
    pub(super) zero_copy: ZeroCopy,
    /// How fast it may go.
    pub(super) pacer: Pacer,
    pub(super) receiving: bool,
    /// Where the payload of the frame at hand goes, from its header to its last byte.
    pub(super) payload_target: Target,
    /// The transfer whose buffer the receive under way may write, by prediction.
    predicted: Option<Key>,
    /// The receive under way.
    pub(super) receive_op: Option<Key>,
    /// Requests of more than one session are outstanding: nothing is predicted until there are none.
    mixed: bool,
    /// Opens sent and not answered.
    pub(super) opens: u32,
    /// Reads, writes and syncs asked and not answered (outbound), in the order they were sent.
    pub(super) outstanding: Vec<Key>,
    /// Requests being served (inbound), by the peer's number.
    pub(super) serves: Vec<(u64, Key)>,
    /// Write bytes we may still send (outbound), or owe the peer as credit (inbound).
    pub(super) credit: u64,
    /// The window: what may be under way by now (inbound), or what the peer said last (outbound).
    pub(super) credit_window: u64,
    /// The window the peer knows of (inbound).
    pub(super) told_window: u64,
    /// Credit that is not given back, because the window has become smaller (inbound).
    pub(super) withheld: u64,
    /// Write bytes the peer may still send before more credit (inbound).
    pub(super) granted: u64,
    /// Bytes of writes whose credit is to be given back, and whether it is the rest of one that failed (inbound).
    pub(super) owed: u32,
    pub(super) owes_rest: bool,
    /// Staging that its writes hold (inbound).
    pub(super) staged: u64,
    pub(super) requests_max: u32,
    pub(super) frames_received: u64,
    pub(super) burst: Burst,
    /// The stage this side's receives are a sample of.
    pub(super) stage_in: StageIndex,
    /// The stage this side's sends pass, as the other side reports it.
    pub(super) stage_out: StageIndex,
    /// What is told of stages, and what is heard.
    pub(super) reports: Reports,
    pub(super) queued: bool,
    /// It waits for staging with a frame at hand; its sends go on.
    pub(super) starved: bool,
    /// Its credit waits for its peer's rate.
    pub(super) put_off: bool,
    /// Requests given up here and not yet ended by the peer: they still count there.
    pub(super) abandoned: u32,
    /// Messages of ours that the peer knows of: of each it will say when it is asked for (outbound).
    pub(super) queued_sends: u32,
    /// There was no room for a word that the peer waits for: it is said again on the next lane (inbound).
    pub(super) overrun: bool,
    /// What the last read took, to be told with the next request (outbound).
    pub(super) outcome: Option<Message>,
    /// Requests that ended other than well: as they were told to the peer (inbound), or by it (outbound).
    pub(super) ends_failed: u32,
    /// A write ended other than well: credit for what it sent may still come (outbound).
    pub(super) write_failed: bool,
    /// The frame whose rest is waited for.
    partial: Option<Partial>,
    /// It is looked at when [`limits::FRAME_TIME`] is over.
    watched: bool,
    loss: LaneLoss,
    reason: String,
}

/// A frame of which a part is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Partial {
    /// How many came before it.
    number: u64,
    /// Its header is here.
    in_payload: bool,
    since: Nanos,
}

/// Frames of one size that came back to back. One gap says little: the kernel hands over several
/// frames at once, or the reactor was late; the mean over a burst is what the stage takes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Burst {
    /// The arrival before the burst.
    start: Nanos,
    last: Nanos,
    frames: u32,
    bytes: u64,
}

/// A burst this long is a sample.
const BURST_FRAMES: u32 = 8;

impl Burst {
    /// Books an arrival; what it returns is the mean size and time of a burst that is over.
    pub(super) fn arrive(
        &mut self,
        payload: u32,
        backlogged: bool,
        now: Nanos,
    ) -> Option<(u32, Nanos)> {
        let mean = self.bytes.checked_div(u64::from(self.frames)).unwrap_or(u64::from(payload));
        let alike = u64::from(payload).abs_diff(mean) * 8 <= mean;
        let over = !backlogged || !alike || self.frames == BURST_FRAMES;
        let sample = if over { self.take() } else { None };
        if over {
            *self = Self { start: if backlogged { self.last } else { now }, ..Self::default() };
        }
        if backlogged {
            self.frames += 1;
            self.bytes += u64::from(payload);
        }
        self.last = now;
        sample
    }

    fn take(&self) -> Option<(u32, Nanos)> {
        let frames = u64::from(self.frames);
        let bytes = self.bytes.checked_div(frames)?;
        Some((bytes as u32, Nanos(self.last.since(self.start).0 / frames)))
    }
}

/// Why a lane is lost whose frames are of another incarnation.
pub(super) const OTHER_EPOCH: &str = "a frame of another epoch";

/// For what a lane sends, and for what it receives.
fn seals_of(keys: Option<LaneKeys>) -> (Seal, Seal) {
    match keys {
        None => (Seal::Plain, Seal::Plain),
        Some(LaneKeys { protection, send, receive }) => {
            (Seal::keyed(protection, send), Seal::keyed(protection, receive))
        }
    }
}

/// Frames handled before others get a turn.
const FRAMES_PER_TURN: usize = 64;

impl Lane {
    /// Whether the other end connected to us and did not prove who it is.
    pub(super) fn is_unproven(&self) -> bool {
        matches!(self.caller, Some(Caller::Unproven { .. }))
    }

    /// Whether it has requests or opens under way, or wants what only a lane at work has.
    pub(super) fn is_at_work(&self) -> bool {
        let asks = !self.outstanding.is_empty() || self.opens > 0;
        asks || !self.serves.is_empty() || self.sender.wants_room()
    }

    /// Whether it encrypts, and has no room for payloads yet.
    pub(super) fn is_without_room(&self) -> bool {
        self.sender.moves_payloads() && self.scratch.is_resting()
    }

    /// Whether it is plain, where others prove who they are.
    pub(super) fn is_beside_keys(&self) -> bool {
        self.caller.as_ref().is_some_and(Caller::is_beside_keys)
    }

    pub(super) fn origin(&self) -> Option<Origin> {
        match self.caller.as_ref()?.standing() {
            Standing::Proven => None,
            Standing::Plain(origin) => Some(origin),
        }
    }

    /// Whether it is one of those that did not prove who they are, and close.
    pub(super) fn is_expelled_by(&self, plain: Expelled) -> bool {
        match self.origin() {
            None => false,
            Some(Origin::User(_)) => plain >= Expelled::Users,
            Some(Origin::Site(_)) => plain >= Expelled::Everybody,
        }
    }

    /// The link of a lane that we serve.
    pub(super) fn inbound(&self) -> Option<Key> {
        match self.link {
            Link::Inbound(link) => Some(link),
            Link::Outbound(_) | Link::Stranger => None,
        }
    }

    /// Whether a receive under way may write the transfer's buffer.
    pub(super) fn lands_in(&self, transfer: Key) -> bool {
        self.receiving
            && (self.predicted == Some(transfer)
                || self.payload_target == Target::Transfer(transfer)
                || self.payload_target == Target::Receive(transfer))
    }

    /// The peer answers a request, for the `last` time or not. One that was given up here counts no
    /// longer then; one that was not asked, or has been answered, is a fault.
    pub(super) fn note_answer(&mut self, transfer: Key, last: bool) -> Result<(), &'static str> {
        if self.outstanding.contains(&transfer) {
            return Ok(());
        }
        if self.abandoned == 0 {
            return Err("an answer to a request that was not asked, or is over");
        }
        self.abandoned -= u32::from(last);
        Ok(())
    }

    /// Whether the peer takes one more request.
    pub(super) fn has_room_for_request(&self) -> bool {
        self.outstanding.len() + (self.abandoned as usize) < self.requests_max as usize
    }

    /// Whether the peer may have one more request served.
    pub(super) fn has_room_for_serve(&self) -> bool {
        self.serves.len() < limits::SERVES_PER_LANE as usize
    }

    /// No request is outstanding any more: predictions are safe again.
    pub(super) fn forget_mixture(&mut self) {
        self.mixed &= !self.outstanding.is_empty();
    }

    /// Whether it has work beside the last request that came.
    pub(super) fn serves_others(&self) -> bool {
        self.serves.len() > 1 || self.has_frames()
    }

    /// Notes what is waited for by the receive that is about to be posted.
    fn note_partial(&mut self, now: Nanos) {
        let number = self.frames_received;
        let waits = |partial: Partial, in_payload| {
            (partial.number, partial.in_payload) == (number, in_payload)
        };
        self.partial = self.receiver.inside_frame().map(|in_payload| match self.partial {
            Some(partial) if waits(partial, in_payload) => partial,
            _ => Partial { number, in_payload, since: now },
        });
    }

    /// Queues a frame without payload. Control frames are few; a queue too full for them belongs to a
    /// peer that does not read, and the lane's fault is found by its timeout.
    pub(super) fn push(&mut self, message: Message) -> bool {
        self.sender.push(self.epoch, message, None, Owner::NONE).is_ok()
    }
}

impl Shard {
    /// Makes a lane over a connected socket. `None` without staging or a place for it; the socket is
    /// closed then.
    pub(super) fn make_lane<I: Io>(
        &mut self,
        link: Link,
        class: LaneClass,
        socket: SocketId,
        epoch: u32,
        keys: Option<LaneKeys>,
        io: &mut I,
    ) -> Option<Key> {
        let (seals, unseals) = seals_of(keys);
        let Some(scratch) = self.first_scratch(seals.moves_payloads()) else {
            io.release(Resource::Socket(socket));
            return None;
        };
        let (send, room) = (scratch.of_sender(), scratch.room());
        let lane = Lane {
            link,
            class,
            socket,
            epoch,
            state: LaneState::Greeting,
            caller: None,
            sender: Sender::with_seal(seals, send, room, limits::LANE_QUEUE),
            waiting: Fair::default(),
            receiver: Receiver::with_seal(unseals, scratch.of_receiver()),
            scratch,
            next_scratch: None,
            gives_back: false,
            heard: io.now(),
            sending: false,
            send: Sending::default(),
            zero_copy: ZeroCopy::new(),
            pacer: Pacer::default(),
            receiving: false,
            payload_target: Target::Nothing,
            predicted: None,
            receive_op: None,
            mixed: false,
            opens: 0,
            outstanding: Vec::with_capacity(limits::SERVES_PER_LANE as usize),
            serves: Vec::with_capacity(limits::SERVES_PER_LANE as usize),
            credit: 0,
            credit_window: 0,
            told_window: 0,
            withheld: 0,
            granted: 0,
            owed: 0,
            owes_rest: false,
            staged: 0,
            requests_max: 0,
            frames_received: 0,
            burst: Burst::default(),
            stage_in: StageIndex::NONE,
            stage_out: StageIndex::NONE,
            reports: Reports::new(),
            queued: false,
            starved: false,
            put_off: false,
            abandoned: 0,
            queued_sends: 0,
            overrun: false,
            outcome: None,
            ends_failed: 0,
            write_failed: false,
            partial: None,
            watched: false,
            loss: LaneLoss::Closed,
            reason: String::new(),
        };
        match self.lanes.insert(lane) {
            Ok(key) => {
                self.make_ready(Work::Lane(key));
                Some(key)
            }
            Err(lane) => {
                self.free_scratch(lane.scratch);
                io.release(Resource::Socket(socket));
                None
            }
        }
    }

    pub(super) fn drive_lane<I: Io>(&mut self, key: Key, io: &mut I) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.queued = false;
        if lane.state == LaneState::Closing {
            return self.bury_lane(key, io);
        }
        if lane.overrun {
            let reason = String::from("it does not read what it waits for");
            self.close_lane(key, LaneLoss::Unread, reason, io);
            return self.bury_lane(key, io);
        }
        self.give_owed(key, io.now());
        let mut may_send = self.move_scratch(key, io);
        if self.receive_frames(key, io) {
            // With its first request it may have begun to work: no receive has to be taken back now.
            may_send = self.move_scratch(key, io);
            self.post_receive(key, io);
        }
        if may_send {
            self.send_frames(key, io);
        }
    }

    /// Bytes came in.
    pub(super) fn handle_received<I: Io>(&mut self, key: Key, result: i32, io: &mut I) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.receiving = false;
        lane.receive_op = None;
        let predicted = lane.predicted.take();
        lane.receiver.handle_received(result.max(0) as u32);
        // We asked for an early end ourselves; nothing came, the stream goes on.
        if result <= 0 && result != super::ops::ECANCELED {
            let (loss, reason) = match result {
                0 => (LaneLoss::Closed, String::from("the peer closed the connection")),
                _ => {
                    let error = std::io::Error::from_raw_os_error(-result);
                    (LaneLoss::Receive, format!("receive failed ({error})"))
                }
            };
            self.close_lane(key, loss, reason, io);
        }
        self.forget_dead_target(key, io);
        // What lies in a predicted buffer and does not belong there leaves it before the buffer is
        // unpinned. The next receive has time until the lane's turn: who sees an answer often asks
        // again at once, and then it is known where the next one will land.
        self.receive_frames(key, io);
        if let Some(transfer) = predicted {
            self.unpin(transfer);
            self.settle(transfer, io);
        }
        if let Some(Link::Outbound(peer)) = self.lanes.get(key).map(|lane| lane.link) {
            self.open_waiting(peer, io);
        }
        self.make_ready(Work::Lane(key));
    }

    /// The rest of a payload whose owner is gone goes nowhere.
    fn forget_dead_target<I: Io>(&mut self, key: Key, io: &mut I) {
        let Some(lane) = self.lanes.get(key) else { return };
        let dead = match lane.payload_target {
            Target::Transfer(transfer) => {
                self.transfers.get(transfer).is_none_or(|t| t.status.is_some())
            }
            Target::ServeRegion(serve) => {
                self.serves.get(serve).is_none_or(|serve| serve.status.is_some())
            }
            Target::Receive(receive) => {
                self.transfers.get(receive).is_none_or(|t| t.status.is_some())
            }
            Target::Nothing | Target::ServeStaging(_) | Target::Early(..) | Target::Table(_) => {
                false
            }
        };
        if dead {
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.receiver.abandon();
            }
            self.drop_target(key, io);
        }
    }

    /// A write into a region ended while the peer still owes bytes of it: the region's memory must not
    /// wait for the peer.
    pub(super) fn cancel_landing<I: Io>(&mut self, key: Key, serve: Key, io: &mut I) {
        let Some(lane) = self.lanes.get(key) else { return };
        if lane.payload_target == Target::ServeRegion(serve)
            && let Some(op) = lane.receive_op
        {
            io.cancel(Token(op.to_bits()));
        }
    }

    /// Unpins what the payload at hand was meant for.
    fn drop_target<I: Io>(&mut self, key: Key, io: &mut I) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        match std::mem::replace(&mut lane.payload_target, Target::Nothing) {
            Target::Nothing => {}
            Target::Transfer(transfer) => self.unpin(transfer),
            Target::ServeRegion(serve) => self.unpin_serve(serve),
            Target::ServeStaging(serve) => self.drop_landing(serve),
            landed @ (Target::Receive(_) | Target::Early(..)) => self.drop_landed(landed, io),
            Target::Table(table) => {
                if let Some(link) = lane.inbound() {
                    self.free_table(link, table);
                }
            }
        }
    }

    /// Handles the frames that are here. Whether all are, and a receive may be posted.
    fn receive_frames<I: Io>(&mut self, key: Key, io: &mut I) -> bool {
        for _ in 0..FRAMES_PER_TURN {
            if self.dials.is_full() {
                self.starve(Work::Lane(key));
                return false;
            }
            let Some(lane) = self.lanes.get_mut(key) else { return false };
            if lane.receiving || lane.state == LaneState::Closing {
                return false;
            }
            match lane.receiver.poll_step(io) {
                Ok(Step::NeedMore) => return true,
                Ok(Step::Destination(frame)) => {
                    if !self.choose_destination(key, frame, io) {
                        self.starve(Work::Lane(key));
                        return false;
                    }
                }
                Ok(Step::Frame { frame, landed, intact, copied }) => {
                    lane.frames_received += 1;
                    if copied > 0 && matches!(lane.payload_target, Target::Transfer(_)) {
                        self.counters.bounced_mispredicted += 1;
                    }
                    self.handle_frame(key, frame, landed, intact, copied, io);
                }
                Err(fault) => {
                    self.close_lane(key, LaneLoss::Frame, fault.to_string(), io);
                    return false;
                }
            }
        }
        self.make_ready(Work::Lane(key));
        false
    }

    fn post_receive<I: Io>(&mut self, key: Key, io: &mut I) {
        let prediction = self.predict(key);
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.note_partial(io.now());
        if lane.partial.is_some() && !std::mem::replace(&mut lane.watched, true) {
            self.frame_times.set(key.index(), io.now() + limits::FRAME_TIME);
        }
        let (spans, whole) = lane.receiver.poll_receive(prediction.map(|(_, span)| span));
        lane.receiving = true;
        let op = Op::Receive { socket: lane.socket, spans, whole };
        // Only a receive of a header may write the predicted buffer; the rest of a payload has its
        // own target.
        lane.predicted = prediction.filter(|_| !whole).map(|(transfer, _)| transfer);
        let pinned = lane.predicted;
        if let Some(op) = self.start_op(OpOwner::LaneReceive(key), op, io) {
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.receive_op = Some(op);
            }
            if let Some(transfer) = pinned {
                self.pin(transfer);
            }
        } else if let Some(lane) = self.lanes.get_mut(key) {
            lane.receiving = false;
            lane.predicted = None;
            lane.receiver.handle_received(0);
            self.starve(Work::Lane(key));
        }
    }

    /// Where the next payload will go: to the read at hand when only one is outstanding. With several
    /// the order of answers is the peer's choice, and a wrong guess costs a copy.
    ///
    /// The client that owns the memory can read and rewrite what lands there before it is looked at.
    /// So it must be that client's, and payload: nothing of another session may be under way
    /// meanwhile (see [`Shard::may_ask`]), nor any other frame. A header that a client can rewrite
    /// would let it close the lane.
    fn predict(&self, key: Key) -> Option<(Key, Span)> {
        let lane = self.lanes.get(key)?;
        // Credit and reports come before the end of a write, but for one that failed.
        let stray = lane.write_failed && lane.credit < lane.credit_window;
        if lane.mixed || lane.opens > 0 || lane.abandoned > 0 || lane.queued_sends > 0 || stray {
            return None;
        }
        match lane.outstanding[..] {
            [transfer] => Some((transfer, self.next_arrival(transfer)?)),
            _ => None,
        }
    }

    /// Whether a request of this session (`None`: the daemon's own) may go out on a lane now. If a
    /// receive is posted into another session's memory, it is taken back first.
    pub(super) fn may_ask<I: Io>(
        &mut self,
        key: Key,
        session: Option<SessionId>,
        io: &mut I,
    ) -> bool {
        let Some(lane) = self.lanes.get(key) else { return false };
        let other = |transfer: &Key| {
            self.transfers.get(*transfer).is_some_and(|t| Some(t.session) != session)
        };
        // What came through a client's memory and is not parsed yet counts as under way.
        let clash = lane.predicted.as_ref().is_some_and(other) || lane.receiver.holds_tainted();
        let mixed = clash || lane.outstanding.iter().any(other);
        let op = lane.receive_op.filter(|_| clash && !lane.mixed);
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.mixed |= mixed;
        }
        if let Some(op) = op {
            io.cancel(Token(op.to_bits()));
        }
        !clash
    }

    /// Says where a payload goes. `false`: no staging for it now; ask again later.
    fn choose_destination<I: Io>(&mut self, key: Key, frame: Frame, io: &mut I) -> bool {
        let Some(lane) = self.lanes.get(key) else { return true };
        if lane.link != Link::Stranger && frame.epoch != lane.epoch {
            // Before anything is pinned for it.
            let reason = OTHER_EPOCH.to_owned();
            self.close_lane(key, LaneLoss::Epoch, reason, io);
            return true;
        }
        let chosen = match self.lanes.get(key).map(|lane| lane.link) {
            Some(Link::Outbound(_)) => self.destination_of_data(key, frame),
            Some(Link::Inbound(link)) => self.destination_of_write(key, link, frame, io.now()),
            _ => Destination::Inline,
        };
        let Some(lane) = self.lanes.get_mut(key) else { return true };
        match chosen {
            Destination::Land(target, span) => {
                lane.payload_target = target;
                lane.receiver.land(Some(span));
                match target {
                    Target::Transfer(transfer) => self.pin(transfer),
                    Target::ServeRegion(serve) | Target::ServeStaging(serve) => {
                        self.pin_serve(serve);
                    }
                    Target::Receive(receive) => self.pin(receive),
                    Target::Nothing | Target::Early(..) | Target::Table(_) => {}
                }
            }
            Destination::Inline => lane.receiver.land_inline(),
            Destination::Discard => {
                self.counters.discarded_bytes += u64::from(frame.payload);
                lane.receiver.land(None);
            }
            Destination::Wait => return false,
            Destination::Fault(reason) => {
                self.close_lane(key, LaneLoss::Protocol, reason.to_owned(), io);
            }
        }
        true
    }

    fn handle_frame<I: Io>(
        &mut self,
        key: Key,
        frame: Frame,
        landed: Option<Span>,
        intact: bool,
        copied: u32,
        io: &mut I,
    ) {
        let now = self.batch_time(io);
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.heard = now;
        let target = std::mem::replace(&mut lane.payload_target, Target::Nothing);
        if !intact {
            self.counters.corrupt_frames += 1;
        }
        let fault = match lane.link {
            Link::Stranger => self.handle_greeting(key, frame, landed, intact, io),
            Link::Outbound(peer) => {
                self.handle_answer(key, peer, frame, target, intact, copied, io)
            }
            Link::Inbound(link) => {
                self.handle_request(key, link, frame, target, landed, intact, io)
            }
        };
        if let Err(reason) = fault {
            let loss = if reason == OTHER_EPOCH { LaneLoss::Epoch } else { LaneLoss::Protocol };
            self.close_lane(key, loss, reason.to_owned(), io);
        }
    }

    /// Looks whether the lane in `slot` still waits for the rest of a frame. One look every
    /// [`limits::FRAME_TIME`], while there is something to look at: a timer for each frame would be moved
    /// with each.
    pub(super) fn expire_frame<I: Io>(&mut self, slot: u32, io: &mut I) {
        let Some(key) = self.lanes.next_from(slot, |_| true).filter(|key| key.index() == slot)
        else {
            return;
        };
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.watched = false;
        // Without a receive under way it is we who are late.
        let Some(partial) = lane.partial.filter(|_| lane.receiving) else { return };
        let end = partial.since + limits::FRAME_TIME;
        if io.now() >= end {
            let reason = String::from("it began a frame and did not go on");
            return self.close_lane(key, LaneLoss::Stalled, reason, io);
        }
        lane.watched = true;
        self.frame_times.set(slot, end);
    }

    pub(super) fn report_lane(
        &self,
        class: LaneClass,
        lane: Option<Key>,
        epoch: u32,
        last_loss: Option<LaneLoss>,
    ) -> LaneReport {
        let lane = lane.and_then(|key| self.lanes.get(key));
        LaneReport {
            class,
            up: lane.is_some_and(|lane| lane.state == LaneState::Up),
            epoch,
            frames_sent: lane.map_or(0, |lane| lane.sender.frames_sent()),
            frames_received: lane.map_or(0, |lane| lane.frames_received),
            requests: lane.map_or(0, |lane| (lane.outstanding.len() + lane.serves.len()) as u32),
            last_loss,
            pace: lane.and_then(|lane| lane.pacer.rate()),
            protection: lane.and_then(|lane| lane.sender.protection()),
            zero_copy: lane
                .and_then(|lane| lane.zero_copy.report(self.zero_copy, lane.sender.is_lending())),
            messages: None,
        }
    }

    /// Ends a lane: its socket goes at once, the rest when the kernel is done with its memory.
    pub(super) fn close_lane<I: Io>(
        &mut self,
        key: Key,
        loss: LaneLoss,
        reason: String,
        io: &mut I,
    ) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if lane.state == LaneState::Closing {
            return;
        }
        lane.state = LaneState::Closing;
        lane.loss = loss;
        lane.reason = reason;
        self.counters.peer_faults += u64::from(loss.is_fault());
        self.lane_times.clear(key.index());
        self.frame_times.clear(key.index());
        io.release(Resource::Socket(lane.socket));
        self.cancel_stalled_of(key, io);
        self.make_ready(Work::Lane(key));
    }

    /// Forgets a closed lane once the kernel is done with it.
    fn bury_lane<I: Io>(&mut self, key: Key, io: &mut I) {
        let Some(lane) = self.lanes.get(key) else { return };
        if lane.sending || lane.receiving || lane.sender.is_lending() {
            return;
        }
        self.drop_target(key, io);
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let unsent = lane.sender.drain();
        let waiting = lane.waiting.remove(|_| true).into_iter().map(|waiting| waiting.owner);
        let unsent: Vec<Owner> = unsent.chain(waiting).collect();
        // Of a batch that was lent in part.
        self.free_frames(key);
        for owner in unsent {
            self.handle_frame_taken(key, owner, io.now());
            self.free_frame(key, owner);
        }
        self.end_serves_of(key);
        let Some(lane) = self.lanes.remove(key) else { return };
        self.forget_reports(&lane.reports);
        self.bury_scratch(&lane);
        let peer = match lane.link {
            Link::Outbound(peer) => self.outbound_lane_lost(peer, lane.class, (key, lane.loss), io),
            Link::Inbound(link) => {
                self.inbound_lane_lost(link, lane.class, (key, lane.loss), io.now())
            }
            Link::Stranger => String::from("(unknown)"),
        };
        self.counters.lanes_lost += 1;
        self.tally.lanes_lost[lane.loss as usize] += 1;
        self.tally.frames[0] += lane.sender.frames_sent();
        self.tally.frames[1] += lane.frames_received;
        self.event(Event::LaneDown { peer, class: lane.class, reason: lane.reason });
    }
}

/// Where a payload goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Destination {
    Land(Target, Span),
    /// A few bytes to be read by the shard.
    Inline,
    /// Nobody wants it any more.
    Discard,
    /// No memory for it now.
    Wait,
    /// The peer must not send that.
    Fault(&'static str),
}
