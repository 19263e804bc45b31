//! What happens on a lane: it is made, receives, and ends; what it sends is in `sending`.

use piped_core::ids::{SessionId, SocketId};
use piped_core::io::{Io, Op, Resource, Span, Token};
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::request::Class;
use piped_core::units::Nanos;
use piped_report::shard::LaneReport;
use piped_report::tally::LaneLoss;
use piped_wire::{Frame, LaneKeys, Message, Seal, Step};

use crate::command::Event;
use crate::shard::Shard;
use crate::shard::connections::{
    Arrived, Asking, Destination, Lane, LaneState, LostLane, PeerLane, Role, Serving, Target,
};
use crate::shard::driver::{ECANCELED, OpOwner};
use crate::shard::fair::Party;
use crate::shard::faults::PeerFault;
use crate::shard::keys::{LaneKey, ServeKey, Subject, TransferKey};
use crate::shard::sched::Work;

/// For what a lane sends, and for what it receives.
fn seals_of(keys: Option<LaneKeys>) -> (Seal, Seal) {
    match keys {
        None => (Seal::PLAIN, Seal::PLAIN),
        Some(LaneKeys { protection, send, receive }) => {
            (Seal::keyed(protection, send), Seal::keyed(protection, receive))
        }
    }
}

/// Frames handled before others get a turn.
const FRAMES_PER_TURN: usize = 64;

impl Shard {
    /// Makes a lane over a connected socket. `None` without staging or a place for it; the socket
    /// is closed then.
    pub(in crate::shard) fn make_lane<I: Io>(
        &mut self,
        role: Role,
        class: LaneClass,
        socket: SocketId,
        epoch: u32,
        keys: Option<LaneKeys>,
        io: &mut I,
    ) -> Option<LaneKey> {
        let (seals, unseals) = seals_of(keys);
        let is_served = !matches!(role, Role::Asking(_));
        let room = (is_served || self.lanes.dialled() < limits::LANES_DIALLED_MAX)
            && self.lanes.room() > 0;
        let scratch = room.then(|| self.first_scratch(seals.moves_payloads())).flatten();
        let Some(scratch) = scratch else {
            io.release(Resource::Socket(socket));
            return None;
        };
        let lane = Lane::new(role, (class, socket, epoch), (seals, unseals), scratch, io.now());
        let key = self.lanes.begin(lane)?;
        self.lanes.watch_rest(|| io.now());
        self.cx.sched.begin(Work::Lane(key), Party::NOBODY, Class::Latency);
        self.cx.sched.make_ready(Work::Lane(key));
        Some(key)
    }

    pub(in crate::shard) fn drive_lane<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if lane.state == LaneState::Closing {
            return self.bury_lane(key, io);
        }
        if lane.serving().is_some_and(|serving| serving.overrun) {
            self.close_lane(key, LaneLoss::Unread, "it does not read what it waits for", io);
            return self.bury_lane(key, io);
        }
        self.give_owed(key, io);
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

    /// Handles the end of a receive: bytes came in, or the connection failed.
    pub(in crate::shard) fn handle_received<I: Io>(
        &mut self,
        key: LaneKey,
        result: i32,
        io: &mut I,
    ) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        lane.receiving.end();
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
        let dead = match lane.receiving.target() {
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
    pub(in crate::shard) fn cancel_landing<I: Io>(
        &mut self,
        key: LaneKey,
        serve: ServeKey,
        io: &mut I,
    ) {
        let Some(lane) = self.lanes.get(key) else { return };
        if matches!(lane.receiving.target(), Target::ServeRegion(pin) if pin.key() == serve)
            && let Some(op) = lane.receiving.operation()
        {
            io.cancel(Token(op.to_bits()));
        }
    }

    /// Unpins what the payload at hand was meant for.
    fn drop_target<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        match self.lanes.take_target(key) {
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
            if lane.receiving.operation().is_some() || lane.state == LaneState::Closing {
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
                    lane.receiving.count_frame();
                    if copied > 0 && matches!(lane.receiving.target(), Target::Transfer(_)) {
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
        // What lands in memory that vanishes is lost, and may be the next header.
        let prediction = self.predict(key).filter(|(_, span)| !io.is_loose(span.segment));
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let watch = lane.receiving.wait(lane.receiver.inside_frame(), || io.now());
        let (spans, whole) = lane.receiver.poll_receive(prediction.map(|(_, span)| span));
        let op = Op::Receive { socket: lane.socket, spans, whole };
        if watch {
            self.lanes.watch_frame(key, io.now() + limits::FRAME_TIME);
        }
        // Only a receive of a header may write the predicted buffer; the rest of a payload has its
        // own target.
        let predicted = prediction.filter(|_| !whole).map(|(transfer, _)| transfer);
        if let Some(op) = self.cx.driver.start_op(OpOwner::LaneReceive(key), op, io) {
            let pin = predicted.and_then(|transfer| self.transfers.pin(transfer));
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.receiving.begin(op);
                if let Some(asking) = lane.asking_mut() {
                    asking.predicted = pin;
                }
            }
        } else if let Some(lane) = self.lanes.get_mut(key) {
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
    pub(in crate::shard) fn may_ask<I: Io>(
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
        let op = lane.receiving.operation().filter(|_| clash && !asking.mixed);
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
                lane.receiving.land(target);
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

    fn close_faulty<I: Io>(&mut self, key: LaneKey, fault: PeerFault, io: &mut I) {
        self.close_lane(key, fault.loss(), fault.to_string(), io);
    }

    /// Looks whether a lane still waits for the rest of a frame. One look every
    /// [`limits::FRAME_TIME`], while there is something to look at: a timer for each frame would be
    /// moved with each.
    pub(in crate::shard) fn expire_frame<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let Some(since) = lane.receiving.end_watch() else { return };
        let end = since + limits::FRAME_TIME;
        if io.now() >= end {
            return self.close_lane(
                key,
                LaneLoss::Stalled,
                "it began a frame and did not go on",
                io,
            );
        }
        lane.receiving.watch();
        self.lanes.watch_frame(key, end);
    }

    pub(in crate::shard) fn report_lane(
        &self,
        class: LaneClass,
        (lane, epoch, last_loss): (Option<LaneKey>, u32, Option<LaneLoss>),
    ) -> LaneReport {
        let lane = lane.and_then(|key| self.lanes.get(key));
        let up = lane.filter(|lane| lane.state == LaneState::Up);
        LaneReport {
            class,
            up: up.is_some(),
            epoch,
            frames_sent: lane.map_or(0, |lane| lane.sender.frames_sent()),
            frames_received: lane.map_or(0, |lane| lane.receiving.frames()),
            requests: lane.map_or(0, |lane| match &lane.role {
                Role::Asking(asking) => asking.outstanding.len() as u32,
                Role::Serving(serving) => serving.serves.len() as u32,
                Role::Stranger(_) => 0,
            }),
            last_loss,
            pace: lane.and_then(|lane| lane.pacer.rate()),
            protection: lane.and_then(|lane| lane.sender.seal().protection()),
            sums: up.map(Lane::has_sums),
            zero_copy: lane.and_then(|lane| {
                lane.zero_copy.report(self.lanes.zero_copy(), lane.sender.is_lending())
            }),
            messages: None,
        }
    }

    /// When something last came by one of these lanes.
    pub(in crate::shard) fn heard_by(&self, lanes: impl Iterator<Item = LaneKey>) -> Option<Nanos> {
        lanes.filter_map(|key| self.lanes.get(key)).map(|lane| lane.heard).max()
    }

    /// Says something on a lane that is up. What finds no room there is not said.
    pub(in crate::shard) fn tell(&mut self, key: LaneKey, message: Message) {
        if let Some(lane) = self.lanes.get_mut(key).filter(|lane| lane.state == LaneState::Up) {
            lane.push(message);
            self.cx.sched.make_ready(Work::Lane(key));
        }
    }

    /// Ends a lane: its socket goes at once, the rest when the kernel is done with its memory.
    pub(in crate::shard) fn close_lane<I: Io>(
        &mut self,
        key: LaneKey,
        loss: LaneLoss,
        reason: impl Into<String>,
        io: &mut I,
    ) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if lane.state == LaneState::Closing {
            return;
        }
        lane.state = LaneState::Closing;
        lane.loss = loss;
        lane.reason = reason.into();
        io.release(Resource::Socket(lane.socket));
        self.lanes.stop_times(key);
        self.cx.watch.counters.peer_faults += u64::from(loss.is_fault());
        for end in self.cx.driver.cancel_stalled_of(key) {
            self.handle_done(end, io);
        }
        self.cx.sched.make_ready(Work::Lane(key));
    }

    /// Forgets a closed lane once the kernel is done with it.
    fn bury_lane<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        let Some(lane) = self.lanes.get(key) else { return };
        if lane.send.is_some() || lane.receiving.operation().is_some() || lane.sender.is_lending() {
            return;
        }
        self.drop_target(key, io);
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let unsent = lane.sender.drain();
        let unsent: Vec<Subject> = unsent.filter_map(Subject::of).collect();
        let unsent = unsent.into_iter().chain(lane.waiting.drain());
        // Of a batch that was lent in part.
        self.free_frames(key);
        for owner in unsent {
            self.handle_frame_taken(key, owner, io.now());
            self.free_frame(owner);
        }
        self.end_serves_of(key);
        let Some(lane) = self.lanes.end(key) else { return };
        self.cx.sched.end(Work::Lane(key));
        lane.reports.forget(&mut self.cx.planner);
        self.bury_scratch(&lane);
        if let Role::Asking(asking) = &lane.role
            && let Some(peer) = self.peers.get_mut(asking.peer)
        {
            peer.note_heard(lane.heard);
        }
        let lost = LostLane { key, class: lane.class, loss: lane.loss };
        let peer = match lane.role {
            Role::Asking(asking) => self.outbound_lane_lost(asking.peer, lost, io.now()),
            Role::Serving(serving) => self.inbound_lane_lost(serving.link, lost, io.now()),
            Role::Stranger(_) => String::from("(unknown)"),
        };
        let frames = [lane.sender.frames_sent(), lane.receiving.frames()];
        self.cx.watch.note_lost(lane.loss, frames);
        self.cx.event(Event::LaneDown { peer, class: lane.class, reason: lane.reason });
    }
}
