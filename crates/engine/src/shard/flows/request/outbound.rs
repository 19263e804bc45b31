//! What peers answer to what this node asked.

use piped_core::ids::{HandleId, PeerId};
use piped_core::io::Io;
use piped_core::limits;
use piped_core::limits::FRAGMENT_BYTES_MIN;
use piped_core::link::LaneClass;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::stage::StageIndex;
use piped_report::shard::Held;
use piped_report::tally::RetryReason;
use piped_wire::{LastPart, Message, OUTCOME_NANOS_MAX, OUTCOME_NANOS_MIN};

use crate::shard::Shard;
use crate::shard::clients::RemoteHandle;
use crate::shard::connections::{Arrived, Lane, LaneState, Role, Target};
use crate::shard::faults::PeerFault;
use crate::shard::keys::{LaneKey, Subject, TransferKey};
use crate::shard::peers::Peer;
use crate::shard::requests::{Body, Ending, RemoteOp, Transfer, Vouched};
use crate::shard::sched::Work;
use crate::shard::slab::Key;
use crate::shard::watch::{Spot, Told};

impl Shard {
    /// A frame on a lane we dialled. An error is the peer's fault and closes the lane.
    pub(in crate::shard) fn handle_answer<I: Io>(
        &mut self,
        key: LaneKey,
        peer: PeerId,
        arrived: Arrived,
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let Arrived { frame, intact, copied, .. } = arrived;
        let Some(lane) = self.lanes.get_mut(key) else { return Ok(()) };
        let greeting = lane.state == LaneState::Greeting;
        if frame.epoch != lane.epoch {
            return Err(PeerFault::OtherEpoch);
        }
        let Role::Asking(asking) = &mut lane.role else { return Ok(()) };
        match frame.message {
            Message::HelloAck { incarnation, credit_bytes, requests_max, sums } if greeting => {
                let is_keyed = lane.sender.seal().protection().is_some();
                if !sums && (asking.insists_on_sums() || is_keyed) {
                    return Err(PeerFault::NoSums);
                }
                let state = self.peers.get(peer);
                if lane.class == LaneClass::Second
                    && state.is_none_or(|state| state.incarnation() != incarnation)
                {
                    // Handles are those of the daemon that opened them.
                    return Err(PeerFault::OtherDaemon);
                }
                lane.state = LaneState::Up;
                asking.window.open(credit_bytes);
                let held = Held::Credit(asking.window.window());
                asking.requests_max = requests_max.min(limits::SERVES_PER_LANE);
                lane.set_sums(sums);
                self.cx.planner.hold(lane.stage_out, held);
                self.lane_up(key, peer, incarnation, io);
                Ok(())
            }
            Message::HelloRefused { .. } if greeting => Err(PeerFault::Refused),
            _ if greeting => Err(PeerFault::FrameBeforeHelloAck),
            Message::Data { transfer, offset, fragment, backlogged, service_us, last } => {
                let arrival = Arrival {
                    lane: key,
                    offset,
                    payload: frame.payload,
                    fragment,
                    backlogged,
                    service_us,
                    intact,
                    copied,
                };
                let key = Key::from_bits(transfer);
                asking.note_answer(key, last.is_some())?;
                let target = self.lanes.take_target(arrival.lane);
                self.handle_data(key, arrival, last, target, io);
                Ok(())
            }
            Message::End { transfer, status, bytes, service_us, predicted_us, .. } => {
                let last = LastPart {
                    status,
                    bytes,
                    predicted_us,
                    margin_percent: 0,
                    company: false,
                    plan: 0,
                };
                let transfer = Key::from_bits(transfer);
                asking.note_answer(transfer, true)?;
                let reads = |t: &Transfer| matches!(&t.body, Body::Remote(b) if b.op.fills());
                // One that is not known any more may have been a write.
                let wrote = self.transfers.get(transfer).is_none_or(|t| !reads(t));
                if wrote && status != Status::Ok {
                    asking.window.note_failed();
                }
                asking.note_end(status);
                self.handle_end(transfer, key, Ending { last, service_us }, io)
            }
            Message::Updated { transfer, status, value } => {
                let transfer = Key::from_bits(transfer);
                asking.note_answer(transfer, true)?;
                self.handle_updated(transfer, key, (status, value), io)
            }
            Message::Queued { transfer } => self.handle_queued(key, transfer, io),
            Message::Ready { transfer, status, handle } => {
                self.handle_ready(key, (transfer, status, handle), io)
            }
            Message::Opened { ticket, status, handle, length } => {
                asking.opens = asking.opens.checked_sub(1).ok_or(PeerFault::UnaskedOpened)?;
                self.handle_opened(peer, ticket, status, handle, length, io);
                Ok(())
            }
            Message::Credit { bytes, window } => {
                asking.window.receive(bytes, window);
                let held = Held::Credit(asking.window.window());
                self.cx.planner.hold(lane.stage_out, held);
                self.note_taken(key, bytes);
                self.cx.sched.wake_starved();
                Ok(())
            }
            Message::Report { .. } => {
                let peer = self.peers.get(peer).map(Peer::name);
                let of = lane.reported(peer);
                lane.reports.hear(frame.message, of, &mut self.cx.planner, io.now());
                Ok(())
            }
            Message::Pong { .. } => Ok(()),
            _ => Err(PeerFault::RequestAmongAnswers),
        }
    }

    /// A piece of a read is in place (or was damaged on the way).
    fn handle_data<I: Io>(
        &mut self,
        key: TransferKey,
        arrival: Arrival,
        last: Option<LastPart>,
        target: Target,
        io: &mut I,
    ) {
        let now = io.now();
        self.time_arrival(key, arrival, now);
        let landed = match target {
            Target::Transfer(pin) => {
                let is_its = pin.key() == key;
                self.transfers.unpin(pin, &mut self.cx.sched);
                is_its
            }
            _ => false,
        };
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        if transfer.status.is_some() || !landed && arrival.payload > 0 {
            return;
        }
        let Body::Remote(body) = &transfer.body else { return };
        if body.lane != Some(arrival.lane) || !body.op.fills() {
            return;
        }
        transfer.plans.hear_piece(arrival.fragment, arrival.payload);
        transfer.attempts.note_fragment(arrival.copied > 0, arrival.intact);
        let peer = Spot::Peer(body.peer);
        self.cx.watch.moved(Subject::Transfer(key), peer, arrival.payload.into());
        let end = arrival.offset + u64::from(arrival.payload);
        let moved = arrival.intact && self.transfers.land(key, arrival.offset, end) == Ok(true);
        if self.cx.dials.any() {
            let transfer = self.transfers.get(key).filter(|_| moved);
            let watermark = transfer.map(|transfer| transfer.landed.watermark());
            let (lane, bytes) = (arrival.lane, arrival.payload);
            return self.dial_data(key, lane, bytes, (watermark, last), io);
        }
        match last {
            Some(last) => self.end_read(key, last, now, io),
            None if moved => self.tell_progress(key),
            None => {}
        }
    }

    /// The last piece is here: a read ends with what is contiguous.
    pub(in crate::shard) fn end_read<I: Io>(
        &mut self,
        key: TransferKey,
        last: LastPart,
        now: Nanos,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        if transfer.attempts.is_damaged() {
            return self.retry_corrupt(key, io);
        }
        let is_call = transfer.remote().is_some_and(|it| it.op == RemoteOp::Call);
        if !is_call {
            transfer.plans.hear_last(last);
        }
        let complete = transfer.landed.watermark() >= last.bytes.min(transfer.length);
        let status = match last.status {
            // The peer counted more than it sent.
            Status::Ok if !complete => Status::Corrupt,
            status => status,
        };
        if is_call {
            return self.end_remote_call(key, status, io);
        }
        if status == Status::Ok && last.bytes == transfer.length {
            self.note_read(key, now);
            self.note_way(key, now);
        }
        self.decide(key, status, io);
    }

    /// A payload did not match its checksum: once the peer has sent all it will, the rest is asked
    /// for again, a bounded number of times. The lane lives; a client that rewrites its buffer
    /// while it is sent does this, too.
    fn retry_corrupt<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        // A notification behind a write that failed was not done, and is not.
        if let Some(body) = transfer.remote_mut() {
            body.vouched = Vouched::Nothing;
        }
        if !transfer.attempts.end_damaged() {
            return self.decide(key, Status::Corrupt, io);
        }
        self.leave_lane(key, false);
        self.ask_again(key, RetryReason::Corrupt);
        self.cx.sched.make_ready(Work::Transfer(key));
    }

    /// A request ended at the peer.
    fn handle_end<I: Io>(
        &mut self,
        key: TransferKey,
        lane: LaneKey,
        ending: Ending,
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let last = ending.last;
        let Some(transfer) = self.transfers.get_mut(key) else { return Ok(()) };
        let Body::Remote(body) = transfer.body else {
            return Err(PeerFault::ForeignEnd);
        };
        if body.lane != Some(lane) || transfer.status.is_some() {
            return Ok(());
        }
        match body.op {
            RemoteOp::Read if self.cx.dials.any() => {
                self.dial_data(key, lane, 0, (None, Some(last)), io);
            }
            RemoteOp::Read => self.end_read(key, last, io.now(), io),
            RemoteOp::Once => return Err(PeerFault::EndOfOnce),
            RemoteOp::Write { .. } if last.bytes > transfer.length => {
                return Err(PeerFault::EndBeyondWrite);
            }
            // Believed, it would be told to a client for whom Ok of a write means all of it.
            RemoteOp::Write { .. } if last.status == Status::Ok && last.bytes < transfer.length => {
                return Err(PeerFault::EndShortOfWrite);
            }
            RemoteOp::Write { .. } if body.once.is_some_and(|once| self.bodies[once].is_sent()) => {
                // What comes of it depends on the notification behind it, whose answer is under
                // way.
                let once = body.once.map(|once| &mut self.bodies[once]);
                if !once.is_some_and(|once| once.note_write(ending)) {
                    return Err(PeerFault::EndTwice);
                }
            }
            _ if last.status == Status::Corrupt => self.retry_corrupt(key, io),
            RemoteOp::Call => self.end_read(key, last, io.now(), io),
            _ if body.message.is_some() => self.end_send(key, last.status, io),
            RemoteOp::Send => return Err(PeerFault::EndOfNoMessage),
            RemoteOp::Sync => {
                let status = match last.status {
                    Status::Ok => self.vouch(key, body),
                    status => status,
                };
                self.decide(key, status, io);
            }
            RemoteOp::Write { .. } => self.end_write(key, ending, io),
        }
        Ok(())
    }

    /// A write has ended at the peer, and nothing else of it is under way there.
    pub(in crate::shard) fn end_write<I: Io>(
        &mut self,
        key: TransferKey,
        ending: Ending,
        io: &mut I,
    ) {
        let Ending { last, service_us } = ending;
        if last.status == Status::Corrupt {
            return self.retry_corrupt(key, io);
        }
        let now = io.now();
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let Body::Remote(body) = transfer.body else { return };
        let durable = body.op == RemoteOp::Write { durable: true };
        transfer.plans.hear_last(last);
        let length = transfer.length;
        let moved = self.transfers.land(key, 0, last.bytes);
        debug_assert!(moved.is_ok(), "a write lands once, at its end");
        // A write that failed was fast for another reason, and a durable one waits for a sync.
        if last.status == Status::Ok && last.bytes == length && !durable {
            self.time_write(key, body, service_us, now);
        }
        if last.status == Status::Ok && durable {
            self.time_durable(key, body, now);
        }
        // What was counted of a write that failed counts, too: its sync may be what failed.
        if last.bytes > 0 && !(durable && last.status == Status::Ok) {
            self.note_unsynced(key, body, now);
        }
        // The peer took `service_us` for what followed the last piece.
        let piece = (0, u32::try_from(length).unwrap_or(u32::MAX));
        let times = (Some(now - Nanos::from_micros(service_us.into())), now);
        self.cx.watch.pass_stage(Subject::Transfer(key), StageIndex::PEER, piece, times);
        if last.status == Status::Ok && self.notify_after_write(key, io) {
            return;
        }
        self.decide(key, last.status, io);
    }

    /// A write was done, as is known from what was done behind it.
    pub(in crate::shard) fn end_landed<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let (landed, length) = (transfer.landed.watermark(), transfer.length);
        let Body::Remote(body) = transfer.body else { return };
        let inserted = self.transfers.land(key, landed, length);
        debug_assert!(inserted.is_ok(), "a write has no extents");
        if length > 0 {
            self.note_unsynced(key, body, io.now());
        }
        // Its own notification may be still to come: it was told to wait.
        if !self.notify_after_write(key, io) {
            self.decide(key, Status::Ok, io);
        }
    }

    pub(in crate::shard) fn remote_of(
        &mut self,
        key: TransferKey,
        handle: HandleId,
    ) -> Option<&mut RemoteHandle> {
        let session = self.transfers.get(key)?.session;
        self.handles.remote_mut(session, handle)
    }

    /// A peer gave credit back: so many bytes of writes are where they belong, those that were
    /// asked for first to begin with.
    fn note_taken(&mut self, lane: LaneKey, mut bytes: u64) {
        let mut at = 0;
        while bytes > 0
            && let Some(&key) =
                self.lanes.get(lane).and_then(|lane| lane.asking()?.outstanding.get(at))
        {
            at += 1;
            let Some(transfer) = self.transfers.get_mut(key) else { continue };
            let Body::Remote(body) = &mut transfer.body else { continue };
            if !matches!(body.op, RemoteOp::Write { .. }) {
                continue;
            }
            let taken = bytes.min(body.next.saturating_sub(body.taken));
            body.taken += taken;
            bytes -= taken;
            let all = body.taken;
            if taken > 0 {
                self.transfers.note_moved(key, all, &mut self.bodies);
            }
        }
    }

    /// Gives the planner what an arrival says about the wire, and those who look on where it was.
    fn time_arrival(&mut self, key: TransferKey, arrival: Arrival, now: Nanos) {
        let Some(lane) = self.lanes.get_mut(arrival.lane) else { return };
        let stage = lane.stage_in;
        if arrival.payload == 0 {
            return;
        }
        let checked = lane.receiver.checked();
        let burst = lane.receiving.arrive(arrival.payload, arrival.backlogged, now);
        self.cx.planner.note_work(checked.time());
        self.cx.planner.arrived(stage, arrival.payload, arrival.backlogged, now);
        if let Some((bytes, time)) = checked.mean() {
            self.cx.planner.sample_check(bytes, time);
        }
        if let Some((bytes, time)) = burst {
            self.cx.planner.sample_backlogged(stage, bytes, time);
            self.report_stages(arrival.lane, now);
        }
        let Some(transfer) = self.transfers.get(key) else { return };
        let Body::Remote(body) = transfer.body else { return };
        let service = Nanos::from_micros(arrival.service_us.into());
        // The request's way there counts as the network's, for no clock says when it arrived.
        let (subject, piece) = (Subject::Transfer(key), (arrival.offset, arrival.payload));
        let given = (body.sent_at + service).min(now - checked.time());
        let times = (Some(body.sent_at), given);
        self.cx.watch.pass_stage(subject, StageIndex::PEER, piece, times);
        let (stages, times) =
            ([stage, self.cx.planner.check_stage()], (Some(given), checked.time(), now));
        self.cx.watch.pass_wire(subject, stages, piece, times);
        if arrival.backlogged {
            return;
        }
        let Some(transfer) = self.transfers.get(key) else { return };
        if body.alone && transfer.landed.watermark() == 0 && arrival.offset == 0 {
            // The checksums are a stage of their own, here and there.
            let seconds = now.since(body.sent_at).since(service).since(checked.time());
            self.cx.planner.sample_alone(stage, arrival.payload, seconds);
            self.report_stages(arrival.lane, now);
        }
    }

    /// A read that was alone on its lane shows what the peer's plan is good for; told with the next
    /// request. What has no choice of fragments is not worth a frame.
    fn note_read(&mut self, key: TransferKey, now: Nanos) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let Body::Remote(body) = &transfer.body else { return };
        let told = transfer.plans.told().filter(|told| told.plan > 0);
        let has_company = !self.cx.watch.is_alone(Subject::Transfer(key));
        let number = self.handles.remote(transfer.session, body.handle).and_then(|it| it.number);
        if let (Some(Told { plan, .. }), Some((handle, _)), Some(lane)) = (told, number, body.lane)
            && body.alone
            && !transfer.attempts.is_repeated()
            && body.enclosed.is_none()
            && transfer.length > OUTCOME_BYTES_MIN
            && let Some(asking) = self.lanes.get_mut(lane).and_then(Lane::asking_mut)
        {
            let latency_ns = now.since(body.sent_at).0.clamp(OUTCOME_NANOS_MIN, OUTCOME_NANOS_MAX);
            let length = transfer.length;
            let company = has_company || told.is_some_and(|told| told.company);
            asking.outcome = Some(Message::Outcome { handle, length, plan, latency_ns, company });
        }
    }
}

/// Reads up to this length have no choice of fragments.
const OUTCOME_BYTES_MIN: u64 = FRAGMENT_BYTES_MIN as u64;

/// A frame of data as it came.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    lane: LaneKey,
    offset: u64,
    payload: u32,
    fragment: u32,
    backlogged: bool,
    service_us: u32,
    intact: bool,
    copied: u32,
}
