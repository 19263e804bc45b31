//! A lane: one connection with its sender and receiver, from the first byte to the last completion.
//!
//! The side that dialled asks, the side that accepted serves: that is the lane's [`Role`]. A lane
//! that ends first waits for its operations at the kernel (they still touch memory), then gives
//! back what its queue held, and only then is its successor dialled: an old epoch is over before a
//! new one begins.

use piped_core::ids::{ChannelId, SessionId, SocketId};
use piped_core::io::{Io, Op, Resource, Span, Token};
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::request::Class;
use piped_core::units::Nanos;
use piped_planner::stage::StageIndex;
use piped_report::shard::LaneReport;
use piped_report::tally::LaneLoss;
use piped_wire::{Frame, LaneKeys, Message, Owner, Receiver, Seal, Sender, Step};

use super::Shard;
use super::buffers::{Scratch, Size, TableRun};
use super::driver::{ECANCELED, OpOwner};
use super::early::Piece;
use super::fair::Fair;
use super::faults::PeerFault;
use super::keys::{LaneKey, LinkKey, OpKey, ServeKey, TransferKey, kind};
use super::pace::Pacer;
use super::pins::Pin;
use super::reports::Reports;
use super::role::{Asking, PeerRequest, Role, Serving};
use super::sched::Work;
use super::sending::{FrameOwner, Sending, Waiting};
use super::zero_copy::ZeroCopy;
use crate::command::{Caller, Event, Expelled, Origin, Standing};

/// How far a lane is.
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
#[derive(Debug)]
pub(super) enum Target {
    Nothing,
    /// A read's buffer.
    Transfer(Pin<kind::Transfer>),
    /// A region that a peer writes to.
    ServeRegion(Pin<kind::Serve>),
    /// Staging for a write to a file.
    ServeStaging(Pin<kind::Serve>),
    /// The buffer of a receive, for a message.
    Receive(Pin<kind::Transfer>),
    /// Early-arrival memory, for a message of a channel.
    Early(ChannelId, Piece),
    /// Staging for the table of a request.
    Table(TableRun),
}

/// One connection of a peer link.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) role: Role,
    pub(super) class: LaneClass,
    pub(super) socket: SocketId,
    pub(super) epoch: u32,
    pub(super) state: LaneState,
    pub(super) sender: Sender,
    /// Frames of data that are not in its queue yet: that is short, and whose turn it is is decided
    /// late.
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
    /// The receive under way.
    pub(super) receive_op: Option<OpKey>,
    pub(super) frames_received: u64,
    pub(super) burst: Burst,
    /// The stage this side's receives are a sample of.
    pub(super) stage_in: StageIndex,
    /// The stage this side's sends pass, as the other side reports it.
    pub(super) stage_out: StageIndex,
    /// What is told of stages, and what is heard.
    pub(super) reports: Reports,
    /// The frame whose rest is waited for.
    partial: Option<Partial>,
    /// It is looked at when [`limits::FRAME_TIME`] is over.
    watched: bool,
    loss: LaneLoss,
    reason: String,
}

/// A frame as it came, and what became of its payload.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) frame: Frame,
    /// Where its payload lies.
    pub(super) landed: Option<Span>,
    /// Its payload matches its checksum.
    pub(super) intact: bool,
    /// Bytes of it that came by way of a copy.
    pub(super) copied: u32,
}

/// A lane on which a peer asks, and the node at its other end.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerLane {
    pub(super) lane: LaneKey,
    pub(super) link: LinkKey,
}

/// A lane that is no more.
#[derive(Debug, Clone, Copy)]
pub(super) struct LostLane {
    pub(super) key: LaneKey,
    pub(super) class: LaneClass,
    pub(super) loss: LaneLoss,
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
    pub(super) fn asking(&self) -> Option<&Asking> {
        match &self.role {
            Role::Asking(asking) => Some(asking),
            Role::Serving(_) | Role::Stranger(_) => None,
        }
    }

    pub(super) fn asking_mut(&mut self) -> Option<&mut Asking> {
        match &mut self.role {
            Role::Asking(asking) => Some(asking),
            Role::Serving(_) | Role::Stranger(_) => None,
        }
    }

    pub(super) fn serving(&self) -> Option<&Serving> {
        match &self.role {
            Role::Serving(serving) => Some(serving),
            Role::Asking(_) | Role::Stranger(_) => None,
        }
    }

    pub(super) fn serving_mut(&mut self) -> Option<&mut Serving> {
        match &mut self.role {
            Role::Serving(serving) => Some(serving),
            Role::Asking(_) | Role::Stranger(_) => None,
        }
    }

    /// The requests that are served on it.
    pub(super) fn serves(&self) -> &[PeerRequest] {
        self.serving().map_or(&[], |serving| &serving.serves)
    }

    pub(super) fn is_stranger(&self) -> bool {
        matches!(self.role, Role::Stranger(_))
    }

    /// Whether the other end connected to us and did not prove who it is.
    pub(super) fn is_unproven(&self) -> bool {
        matches!(self.role.caller(), Some(Caller::Unproven { .. }))
    }

    /// Whether it has requests or opens under way, or wants what only a lane at work has.
    pub(super) fn is_at_work(&self) -> bool {
        let works = match &self.role {
            Role::Asking(asking) => !asking.outstanding.is_empty() || asking.opens > 0,
            Role::Serving(serving) => !serving.serves.is_empty(),
            Role::Stranger(_) => false,
        };
        works || self.sender.wants_room()
    }

    /// Whether it encrypts, and has no room for payloads yet.
    pub(super) fn is_without_room(&self) -> bool {
        self.sender.moves_payloads() && self.scratch.size() == Size::Resting
    }

    /// Whether it is plain, where others prove who they are.
    pub(super) fn is_beside_keys(&self) -> bool {
        self.role.caller().is_some_and(Caller::is_beside_keys)
    }

    pub(super) fn origin(&self) -> Option<Origin> {
        match self.role.caller()?.standing() {
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
    pub(super) fn inbound(&self) -> Option<LinkKey> {
        self.serving().map(|serving| serving.link)
    }

    /// Whether a receive under way may write the transfer's buffer.
    pub(super) fn lands_in(&self, transfer: TransferKey) -> bool {
        let target = match &self.payload_target {
            Target::Transfer(pin) | Target::Receive(pin) => Some(pin),
            _ => None,
        };
        let predicted = self.asking().and_then(|asking| asking.predicted.as_ref());
        self.receiving && [target, predicted].into_iter().flatten().any(|it| it.key() == transfer)
    }

    /// Whether the peer takes one more request.
    pub(super) fn has_room_for_request(&self) -> bool {
        self.asking().is_some_and(Asking::has_room)
    }

    /// Whether it has work beside the last request that came.
    pub(super) fn serves_others(&self) -> bool {
        self.serves().len() > 1 || self.has_frames()
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

    /// Queues a frame without payload. Control frames are few; a queue too full for them belongs to
    /// a peer that does not read, and the lane's fault is found by its timeout.
    pub(super) fn push(&mut self, message: Message) -> bool {
        self.sender.push(self.epoch, message, None, Owner::NONE).is_ok()
    }
}

impl Shard {
    /// Makes a lane over a connected socket. `None` without staging or a place for it; the socket
    /// is closed then.
    pub(super) fn make_lane<I: Io>(
        &mut self,
        role: Role,
        class: LaneClass,
        socket: SocketId,
        epoch: u32,
        keys: Option<LaneKeys>,
        io: &mut I,
    ) -> Option<LaneKey> {
        let (seals, unseals) = seals_of(keys);
        let Some(scratch) = self.first_scratch(seals.moves_payloads()) else {
            io.release(Resource::Socket(socket));
            return None;
        };
        let (send, room) = (scratch.of_sender(), scratch.room());
        let lane = Lane {
            role,
            class,
            socket,
            epoch,
            state: LaneState::Greeting,
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
            receive_op: None,
            frames_received: 0,
            burst: Burst::default(),
            stage_in: StageIndex::NONE,
            stage_out: StageIndex::NONE,
            reports: Reports::new(),
            partial: None,
            watched: false,
            loss: LaneLoss::Closed,
            reason: String::new(),
        };
        match self.lanes.insert(lane) {
            Ok(key) => {
                self.cx.sched.begin(Work::Lane(key), Class::Latency);
                self.cx.sched.make_ready(Work::Lane(key));
                Some(key)
            }
            Err(lane) => {
                self.cx.free_scratch(lane.scratch);
                io.release(Resource::Socket(socket));
                None
            }
        }
    }

    pub(super) fn drive_lane<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if lane.state == LaneState::Closing {
            return self.bury_lane(key, io);
        }
        if lane.serving().is_some_and(|serving| serving.overrun) {
            let reason = String::from("it does not read what it waits for");
            self.close_lane(key, LaneLoss::Unread, reason, io);
            return self.bury_lane(key, io);
        }
        self.give_owed(key, io.now());
        let mut may_send = self.move_scratch(key, io);
        if self.receive_frames(key, io) {
            // With its first request it may have begun to work: no receive has to be taken back
            // now.
            may_send = self.move_scratch(key, io);
            self.post_receive(key, io);
        }
        if may_send {
            self.send_frames(key, io);
        }
    }

    /// Bytes came in.
    pub(super) fn handle_received<I: Io>(&mut self, key: LaneKey, result: i32, io: &mut I) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.receiving = false;
        lane.receive_op = None;
        let predicted = lane.asking_mut().and_then(|asking| asking.predicted.take());
        lane.receiver.handle_received(result.max(0) as u32);
        // We asked for an early end ourselves; nothing came, the stream goes on.
        if result <= 0 && result != ECANCELED {
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
        if let Some(pin) = predicted {
            let transfer = pin.key();
            self.transfers.unpin(pin, &mut self.cx.sched);
            self.settle(transfer, io);
        }
        if let Some(peer) = self.lanes.get(key).and_then(Lane::asking).map(|asking| asking.peer) {
            self.open_waiting(peer, io);
        }
        self.cx.sched.make_ready(Work::Lane(key));
    }

    /// The rest of a payload whose owner is gone goes nowhere.
    fn forget_dead_target<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        let Some(lane) = self.lanes.get(key) else { return };
        let dead = match &lane.payload_target {
            Target::Transfer(pin) | Target::Receive(pin) => {
                self.transfers.get(pin.key()).is_none_or(|t| t.status.is_some())
            }
            Target::ServeRegion(pin) => {
                self.serves.get(pin.key()).is_none_or(|serve| serve.status.is_some())
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

    /// A write into a region ended while the peer still owes bytes of it: the region's memory must
    /// not wait for the peer.
    pub(super) fn cancel_landing<I: Io>(&mut self, key: LaneKey, serve: ServeKey, io: &mut I) {
        let Some(lane) = self.lanes.get(key) else { return };
        if matches!(&lane.payload_target, Target::ServeRegion(pin) if pin.key() == serve)
            && let Some(op) = lane.receive_op
        {
            io.cancel(Token(op.to_bits()));
        }
    }

    /// Unpins what the payload at hand was meant for.
    fn drop_target<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        match self.take_target(key) {
            Target::Nothing => {}
            Target::Transfer(pin) => self.transfers.unpin(pin, &mut self.cx.sched),
            Target::ServeRegion(pin) => self.serves.unpin(pin, &mut self.cx.sched),
            Target::ServeStaging(pin) => self.drop_landing(pin),
            landed @ (Target::Receive(_) | Target::Early(..)) => self.drop_landed(landed, io),
            Target::Table(table) => {
                if let Some(link) = self.lanes.get(key).and_then(Lane::inbound) {
                    self.free_table(link, table);
                }
            }
        }
    }

    /// Handles the frames that are here. Whether all are, and a receive may be posted.
    fn receive_frames<I: Io>(&mut self, key: LaneKey, io: &mut I) -> bool {
        for _ in 0..FRAMES_PER_TURN {
            if self.cx.dials.is_full() {
                self.cx.sched.starve(Work::Lane(key));
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
                        self.cx.sched.starve(Work::Lane(key));
                        return false;
                    }
                }
                Ok(Step::Frame { frame, landed, intact, copied }) => {
                    lane.frames_received += 1;
                    if copied > 0 && matches!(lane.payload_target, Target::Transfer(_)) {
                        self.cx.watch.counters.bounced_mispredicted += 1;
                    }
                    let arrived = Arrived { frame, landed, intact, copied };
                    self.handle_frame(key, arrived, io);
                }
                Err(fault) => {
                    self.close_lane(key, LaneLoss::Frame, fault.to_string(), io);
                    return false;
                }
            }
        }
        self.cx.sched.make_ready(Work::Lane(key));
        false
    }

    fn post_receive<I: Io>(&mut self, key: LaneKey, io: &mut I) {
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
        let predicted = prediction.filter(|_| !whole).map(|(transfer, _)| transfer);
        if let Some(op) = self.cx.driver.start_op(OpOwner::LaneReceive(key), op, io) {
            let pin = predicted.and_then(|transfer| self.transfers.pin(transfer));
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.receive_op = Some(op);
                if let Some(asking) = lane.asking_mut() {
                    asking.predicted = pin;
                }
            }
        } else if let Some(lane) = self.lanes.get_mut(key) {
            lane.receiving = false;
            lane.receiver.handle_received(0);
            self.cx.sched.starve(Work::Lane(key));
        }
    }

    /// Where the next payload will go: to the read at hand when only one is outstanding. With
    /// several the order of answers is the peer's choice, and a wrong guess costs a copy.
    ///
    /// The client that owns the memory can read and rewrite what lands there before it is looked
    /// at. So it must be that client's, and payload: nothing of another session may be under way
    /// meanwhile (see [`Shard::may_ask`]), nor any other frame. A header that a client can rewrite
    /// would let it close the lane.
    fn predict(&self, key: LaneKey) -> Option<(TransferKey, Span)> {
        let transfer = self.lanes.get(key)?.asking()?.next_answered()?;
        Some((transfer, self.next_arrival(transfer)?))
    }

    /// Whether a request of this session (`None`: the daemon's own) may go out on a lane now. If a
    /// receive is posted into another session's memory, it is taken back first.
    pub(super) fn may_ask<I: Io>(
        &mut self,
        key: LaneKey,
        session: Option<SessionId>,
        io: &mut I,
    ) -> bool {
        let Some(lane) = self.lanes.get(key) else { return false };
        let Some(asking) = lane.asking() else { return false };
        let other = |transfer: &TransferKey| {
            self.transfers.get(*transfer).is_some_and(|t| Some(t.session) != session)
        };
        // What came through a client's memory and is not parsed yet counts as under way.
        let clash = asking.predicted.as_ref().is_some_and(|pin| other(&pin.key()))
            || lane.receiver.holds_tainted();
        let mixed = clash || asking.outstanding.iter().any(other);
        let op = lane.receive_op.filter(|_| clash && !asking.mixed);
        if let Some(asking) = self.lanes.get_mut(key).and_then(Lane::asking_mut) {
            asking.mixed |= mixed;
        }
        if let Some(op) = op {
            io.cancel(Token(op.to_bits()));
        }
        !clash
    }

    /// Says where a payload goes. `false`: no staging for it now; ask again later.
    fn choose_destination<I: Io>(&mut self, key: LaneKey, frame: Frame, io: &mut I) -> bool {
        let Some(lane) = self.lanes.get(key) else { return true };
        let chosen = match lane.role {
            Role::Stranger(_) => Destination::Inline,
            // Before anything is pinned for it.
            _ if frame.epoch != lane.epoch => Destination::Fault(PeerFault::OtherEpoch),
            Role::Asking(_) => self.destination_of_data(key, frame),
            Role::Serving(Serving { link, .. }) => {
                self.destination_of_write(PeerLane { lane: key, link }, frame, io.now())
            }
        };
        let Some(lane) = self.lanes.get_mut(key) else { return true };
        match chosen {
            Destination::Land(target, span) => {
                lane.payload_target = target;
                lane.receiver.land(Some(span));
            }
            Destination::Inline => lane.receiver.land_inline(),
            Destination::Discard => {
                self.cx.watch.counters.discarded_bytes += u64::from(frame.payload);
                lane.receiver.land(None);
            }
            Destination::Wait => return false,
            Destination::Fault(fault) => self.close_faulty(key, fault, io),
        }
        true
    }

    fn handle_frame<I: Io>(&mut self, key: LaneKey, arrived: Arrived, io: &mut I) {
        let now = self.cx.driver.batch_time(io);
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.heard = now;
        if !arrived.intact {
            self.cx.watch.counters.corrupt_frames += 1;
        }
        let handled = match lane.role {
            Role::Stranger(_) => self.handle_greeting(key, arrived, io),
            Role::Asking(Asking { peer, .. }) => self.handle_answer(key, peer, arrived, io),
            Role::Serving(Serving { link, .. }) => {
                self.handle_request(PeerLane { lane: key, link }, arrived, io)
            }
        };
        // Whatever the way out, what the payload was meant for is given back.
        self.drop_target(key, io);
        if let Err(fault) = handled {
            self.close_faulty(key, fault, io);
        }
    }

    /// What the payload at hand was meant for, for the handler of its frame.
    pub(super) fn take_target(&mut self, key: LaneKey) -> Target {
        let target = self.lanes.get_mut(key).map(|lane| &mut lane.payload_target);
        target.map_or(Target::Nothing, |it| std::mem::replace(it, Target::Nothing))
    }

    fn close_faulty<I: Io>(&mut self, key: LaneKey, fault: PeerFault, io: &mut I) {
        self.close_lane(key, fault.loss(), fault.to_string(), io);
    }

    /// Looks whether the lane in `slot` still waits for the rest of a frame. One look every
    /// [`limits::FRAME_TIME`], while there is something to look at: a timer for each frame would be
    /// moved with each.
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
        lane: Option<LaneKey>,
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
            requests: lane.map_or(0, |lane| match &lane.role {
                Role::Asking(asking) => asking.outstanding.len() as u32,
                Role::Serving(serving) => serving.serves.len() as u32,
                Role::Stranger(_) => 0,
            }),
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
        key: LaneKey,
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
        self.cx.watch.counters.peer_faults += u64::from(loss.is_fault());
        self.lane_times.clear(key.index());
        self.frame_times.clear(key.index());
        io.release(Resource::Socket(lane.socket));
        for end in self.cx.driver.cancel_stalled_of(key) {
            self.handle_done(end, io);
        }
        self.cx.sched.make_ready(Work::Lane(key));
    }

    /// Forgets a closed lane once the kernel is done with it.
    fn bury_lane<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        let Some(lane) = self.lanes.get(key) else { return };
        if lane.sending || lane.receiving || lane.sender.is_lending() {
            return;
        }
        self.drop_target(key, io);
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let unsent = lane.sender.drain();
        let waiting = lane.waiting.remove(|_| true).into_iter().map(|waiting| waiting.owner);
        let unsent = unsent.map(FrameOwner::of).chain(waiting);
        let unsent: Vec<FrameOwner> = unsent.flatten().collect();
        // Of a batch that was lent in part.
        self.free_frames(key);
        for owner in unsent {
            self.handle_frame_taken(key, owner, io.now());
            self.free_frame(owner);
        }
        self.end_serves_of(key);
        let Some(lane) = self.lanes.remove(key) else { return };
        self.cx.sched.end(Work::Lane(key));
        lane.reports.forget(&mut self.cx.planner);
        self.bury_scratch(&lane);
        let lost = LostLane { key, class: lane.class, loss: lane.loss };
        let peer = match lane.role {
            Role::Asking(asking) => self.outbound_lane_lost(asking.peer, lost, io),
            Role::Serving(serving) => self.inbound_lane_lost(serving.link, lost, io.now()),
            Role::Stranger(_) => String::from("(unknown)"),
        };
        let frames = [lane.sender.frames_sent(), lane.frames_received];
        self.cx.watch.note_lost(lane.loss, frames);
        self.cx.event(Event::LaneDown { peer, class: lane.class, reason: lane.reason });
    }
}

/// Where a payload goes.
#[derive(Debug)]
pub(super) enum Destination {
    Land(Target, Span),
    /// A few bytes to be read by the shard.
    Inline,
    /// Nobody wants it any more.
    Discard,
    /// No memory for it now.
    Wait,
    /// The peer must not send that.
    Fault(PeerFault),
}
