//! What peers ask of us, as it comes in.

use piped_core::ids::RegionId;
use piped_core::io::{Io, Span};
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::request::Class;
use piped_core::sizes::{SIZES_MAX, Sizes};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::plan::Outcome;
use piped_text::is_name;
use piped_wire::frame::OPEN_BYTES_MAX;
use piped_wire::{Asker, Frame, Message};

use crate::command;
use crate::command::OpenRequest;
use crate::shard::Shard;
use crate::shard::clients::access_of;
use crate::shard::connections::{
    Arrived, Destination, Grant, Lane, LaneState, PeerLane, PeerRequest, Serving, Target,
    load_bytes,
};
use crate::shard::fair::Party;
use crate::shard::faults::PeerFault;
use crate::shard::flows::plan::facts;
use crate::shard::flows::service::update::Asked;
use crate::shard::keys::{LaneKey, ServedKey, Subject};
use crate::shard::links::{Holding, Link, Served};
use crate::shard::responder::{Ask, Serve, ServeOp, Sink, Table};
use crate::shard::sched::Work;
use crate::shard::watch::Kind;

impl Shard {
    /// A frame on a lane we accepted. An error is the peer's fault and closes the lane.
    pub(in crate::shard) fn handle_request<I: Io>(
        &mut self,
        on: PeerLane,
        arrived: Arrived,
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let PeerLane { lane: key, link } = on;
        let Arrived { frame, landed, intact, .. } = arrived;
        let Some(lane) = self.lanes.get_mut(key) else { return Ok(()) };
        if lane.state != LaneState::Up {
            return Err(PeerFault::RequestBeforeHelloAck);
        }
        if frame.epoch != lane.epoch {
            return Err(PeerFault::OtherEpoch);
        }
        if lane.class == LaneClass::Second && !goes_second(&frame.message) {
            return Err(PeerFault::NotOnSecond);
        }
        match frame.message {
            Message::Read {
                transfer,
                handle,
                offset,
                length,
                asker,
                from,
                pieces,
                time_left_us,
                ..
            } => {
                let ask = Ask { transfer, handle, offset, length, asker, time_left_us };
                let from = from.into();
                let table = self.table_of(on, frame, intact)?;
                if pieces && table.is_none() {
                    return self.refuse_pieces(key, transfer);
                }
                self.serve(on, (ask, table), ServeOp::Read { from }, io)
            }
            Message::Write {
                transfer,
                handle,
                offset,
                length,
                asker,
                durable,
                pieces,
                fragment,
                time_left_us,
            } => {
                let table = self.table_of(on, frame, intact)?;
                if pieces && table.is_none() {
                    return self.refuse_pieces(key, transfer);
                }
                let text = landed.filter(|_| intact && !pieces).map(|span| load_sizes(span, io));
                let sizes = match (text, frame.payload) {
                    _ if pieces => Sizes::equal(fragment.into()),
                    (Some(sizes), _) => sizes.ok_or(PeerFault::NoSizes)?,
                    (None, 0) => Sizes::equal(fragment.into()),
                    (None, _) => return Err(PeerFault::DamagedSizes),
                };
                let sink = Sink { sizes, frame: fragment };
                let ask = Ask { transfer, handle, offset, length, asker, time_left_us };
                self.serve(on, (ask, table), ServeOp::Write { durable, sink }, io)
            }
            Message::Sync { transfer, handle, time_left_us } => {
                let asker = Asker::alone(Class::Latency);
                let ask = Ask { transfer, handle, offset: 0, length: 0, asker, time_left_us };
                self.serve(on, (ask, None), ServeOp::Sync, io)
            }
            Message::Call { .. } => self.handle_call(on, &arrived, io),
            Message::WriteData { transfer, backlogged, .. } => {
                self.time_write_data(key, (transfer, frame.payload), backlogged, io.now());
                let target = self.lanes.take_target(key);
                self.handle_write_data(key, transfer, frame.payload, target, intact, io);
                Ok(())
            }
            Message::Send { .. } => self.handle_send(on, frame.message, intact, io),
            Message::Update { transfer, handle, change, sequence, behind } => {
                let asked = Asked { transfer, handle, change, sequence, behind };
                self.handle_update(on, asked, io)
            }
            Message::Cancel { transfer } => {
                let serve = lane.serving().and_then(|serving| serving.serve_of(transfer));
                if let Some(serve) = serve {
                    self.end_serve(serve, Status::Cancelled);
                    self.cx.sched.make_ready(Work::Serve(serve));
                }
                // It may be a message that was being written, or not yet.
                self.cancel_mail(key, transfer, io);
                Ok(())
            }
            Message::Open { .. } | Message::Close { .. } if lane.class != LaneClass::Latency => {
                Err(PeerFault::OpenOnBulk)
            }
            Message::Open { ticket, kind, access, create, name_length } => {
                let bytes = if intact { load_bytes(landed, OPEN_BYTES_MAX, io) } else { None };
                let bytes = bytes.ok_or(PeerFault::DamagedOpen)?;
                // No client of an honest node gets so far with it: its own daemon asks the same of
                // names. The lane is for others as well, so it is the open that is refused; nobody
                // else hears of the name.
                if !is_name(&bytes) {
                    let (status, handle, length) = (Status::Invalid, 0, 0);
                    self.tell(key, Message::Opened { ticket, status, handle, length });
                    return Ok(());
                }
                let split = bytes.split_at_checked(usize::from(name_length));
                let (name, path) = split.ok_or(PeerFault::CutOpen)?;
                // A path is bytes, as names of files are; names of exports, regions and channels
                // are text.
                let name = std::str::from_utf8(name).map_err(|_| PeerFault::OpenNotText)?;
                let (name, path) = (name.to_owned(), path.to_owned());
                let open = OpenRequest { kind, name, path, access, create };
                let opened = self.links.ask(on, ticket, open, &mut self.cx)?;
                if let Some(opened) = opened {
                    self.tell(key, opened);
                }
                Ok(())
            }
            Message::Close { handle } => {
                for served in self.links.close(link, handle) {
                    self.close_served(served, io);
                }
                Ok(())
            }
            Message::Report { .. } => {
                let peer = self.links.get(link).map(Link::name);
                let of = lane.reported(peer);
                lane.reports.hear(frame.message, of, &mut self.cx.planner, io.now());
                Ok(())
            }
            Message::Outcome { handle, length, plan, latency_ns, company } => {
                // It may have been closed or withdrawn meanwhile.
                let served = self.links.named(link, handle);
                if let Some(Ok(target)) = served.map(|(_, served)| served.target()) {
                    let time = Nanos(latency_ns);
                    let outcome = Outcome { length, plan, time, alone: !company };
                    self.handle_outcome(key, target, outcome);
                }
                Ok(())
            }
            Message::Ping { nonce } => {
                self.tell(key, Message::Pong { nonce });
                Ok(())
            }
            _ => Err(PeerFault::AnswerAmongRequests),
        }
    }

    /// Makes the serve of a request, or answers at once why not.
    pub(in crate::shard) fn serve<I: Io>(
        &mut self,
        on: PeerLane,
        (ask, table): (Ask, Option<Table>),
        op: ServeOp,
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let PeerLane { lane: key, link } = on;
        let now = io.now();
        let Some(lane) = self.lanes.get(key) else { return Ok(()) };
        let Some(serving) = lane.serving() else { return Ok(()) };
        if !serving.has_room() {
            return Err(PeerFault::TooManyRequests);
        }
        let room = self.may_hold(link, Holding::Serves);
        if serving.serve_of(ask.transfer).is_some() {
            return Err(PeerFault::RequestTwice);
        }
        let class_of_lane = lane.class;
        let checked = check(self.links.named(link, ask.handle), ask, op);
        let begun = checked.and_then(|(served, target)| {
            let deadline = now + Nanos::from_micros(ask.time_left_us.into());
            let served = (target, served);
            let mut serve = Serve::new(key, link, class_of_lane, ask, op, served, now, deadline);
            serve.table = table;
            let begun = if room { self.serves.begin(serve) } else { None };
            Ok((begun.ok_or(Status::WouldBlock)?, served.1))
        });
        let (serve, served) = match begun {
            Ok(begun) => begun,
            Err(status) => {
                if let Some(table) = table {
                    self.free_table(link, table.place);
                }
                self.free_called(link, op);
                return self.answer_end(key, ask.transfer, status, 0);
            }
        };
        let asker = ask.asker;
        let party = Party::Peer(link, asker.client);
        self.cx.sched.begin(Work::Serve(serve), party, asker.class);
        if let Some(known) = self.serves.get(serve) {
            let subject = Subject::Serve(serve);
            self.cx.watch.begin(subject, now, || Some(facts::head_of_serve(known, 0)));
            let spots = facts::spots_of_serve(known);
            let kind = Kind { class: asker.class, length: ask.length };
            self.cx.watch.enter(subject, spots, (Party::Peer(link, 0), kind), now);
        }
        self.links.note_use(served, true);
        if let Some(serving) = self.lanes.get_mut(key).and_then(Lane::serving_mut) {
            serving.serves.push(PeerRequest { wire: ask.transfer, serve });
        }
        if table.is_some() {
            self.check_table(serve, io);
        }
        self.enter_serve(serve);
        Ok(())
    }

    /// The table that came with a request.
    fn table_of(
        &mut self,
        on: PeerLane,
        frame: Frame,
        intact: bool,
    ) -> Result<Option<Table>, PeerFault> {
        let Target::Table(table) = self.lanes.take_target(on.lane) else { return Ok(None) };
        let serving = self.lanes.get(on.lane).and_then(Lane::serving);
        let is_new =
            |serving: &Serving| wire_of(frame).is_none_or(|wire| serving.serve_of(wire).is_none());
        if intact && serving.is_some_and(is_new) {
            return Ok(Some(Table::new(table, frame.payload)));
        }
        self.free_table(on.link, table);
        Err(PeerFault::DamagedTable)
    }

    /// A request of pieces for whose table there was no room.
    fn refuse_pieces(&mut self, key: LaneKey, transfer: u64) -> Result<(), PeerFault> {
        let serving = self.lanes.get(key).and_then(Lane::serving);
        if serving.is_some_and(|serving| !serving.has_room()) {
            return Err(PeerFault::TooManyRequests);
        }
        self.answer_end(key, transfer, Status::WouldBlock, 0)
    }

    /// Ends a request that nothing is to be done for any more.
    pub(in crate::shard) fn answer_end(
        &mut self,
        key: LaneKey,
        transfer: u64,
        status: Status,
        bytes: u64,
    ) -> Result<(), PeerFault> {
        let Some(lane) = self.lanes.get_mut(key) else { return Ok(()) };
        let (service_us, fragment, predicted_us) = (0, 0, 0);
        let end = Message::End { transfer, status, bytes, service_us, fragment, predicted_us };
        let pushed = lane.push(end);
        if let Some(serving) = lane.serving_mut() {
            serving.note_end(status);
        }
        self.cx.sched.make_ready(Work::Lane(key));
        pushed.then_some(()).ok_or(PeerFault::UnreadAnswers)
    }

    /// Where the payload of a request goes.
    pub(in crate::shard) fn destination_of_write(
        &mut self,
        on: PeerLane,
        frame: Frame,
        now: Nanos,
    ) -> Destination {
        let key = on.lane;
        let Message::WriteData { transfer, offset, .. } = frame.message else {
            return match frame.message {
                Message::Read { pieces: true, .. } | Message::Write { pieces: true, .. } => {
                    self.destination_of_table(on, frame)
                }
                Message::Open { .. } | Message::Write { .. } | Message::Call { .. } => {
                    Destination::Inline
                }
                Message::Send { .. } => self.destination_of_send(on, frame.message, now),
                _ => Destination::Fault(PeerFault::StrayPayload),
            };
        };
        let serving = self.lanes.get_mut(key).and_then(Lane::serving_mut);
        let Some(serving) = serving else { return Destination::Discard };
        let payload = u64::from(frame.payload);
        if serving.window.allows(payload).is_err() {
            return Destination::Fault(PeerFault::Overdrawn);
        }
        let chosen = match serving.serve_of(transfer) {
            Some(serve) => self.place_write(serve, offset, frame.payload),
            None => Destination::Discard,
        };
        if !matches!(chosen, Destination::Wait)
            && let Some(serving) = self.lanes.get_mut(key).and_then(Lane::serving_mut)
        {
            serving.window.take(payload);
        }
        chosen
    }

    /// Write bytes are off the lane: the peer may send as many again. `rest`: of a write that
    /// failed, whose peer waits for all of its credit before it predicts again.
    pub(in crate::shard) fn return_credit(&mut self, key: LaneKey, bytes: u32, rest: bool) {
        let serving = self.lanes.get_mut(key).and_then(Lane::serving_mut);
        let Some(serving) = serving else { return };
        serving.window.owe(bytes.into(), rest);
        self.cx.sched.make_ready(Work::Lane(key));
    }

    /// Gives back what is owed, when the peer's rate allows it: one that writes too fast has no
    /// credit for a while. `false`: not yet.
    pub(in crate::shard) fn give_owed<I: Io>(&mut self, key: LaneKey, io: &mut I) -> bool {
        let serving = self.lanes.get(key).and_then(Lane::serving);
        if !serving.is_some_and(|serving| serving.window.owes()) {
            return true;
        }
        let now = io.now();
        let may = self.may_move(Work::Lane(key), now);
        if may {
            self.give_all_owed(key, now);
        }
        may
    }

    /// Gives back what is owed, whatever the rate.
    pub(in crate::shard) fn give_all_owed(&mut self, key: LaneKey, now: Nanos) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let Some(serving) = lane.serving_mut() else { return };
        let (bytes, grant) = serving.window.settle();
        let pushed =
            grant.filter(|&Grant { bytes, window }| lane.push(Message::Credit { bytes, window }));
        if let Some(grant) = pushed
            && let Some(serving) = lane.serving_mut()
        {
            serving.window.note_given(grant);
            self.cx.sched.make_ready(Work::Lane(key));
        }
        self.charge(Work::Lane(key), bytes, now);
    }

    fn time_write_data(
        &mut self,
        key: LaneKey,
        (wire, payload): (u64, u32),
        backlogged: bool,
        now: Nanos,
    ) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let stage = lane.stage_in;
        self.cx.planner.arrived(stage, payload, backlogged, now);
        if let Some((bytes, time)) = lane.receiving.arrive(payload, backlogged, now) {
            self.cx.planner.sample_backlogged(stage, bytes, time);
            self.report_stages(key, now);
        }
        let Some(lane) = self.lanes.get(key) else { return };
        let Some(serve) = lane.serving().and_then(|serving| serving.serve_of(wire)) else {
            return;
        };
        // When it was sent only the peer knows: it counts from the one before it.
        let times = (None, lane.receiver.checked().time(), now);
        let stages = [stage, self.cx.planner.check_stage()];
        let offset = self.serves.get_mut(serve).map_or(0, |serve| {
            serve.write.note_piece(now);
            serve.landed_to()
        });
        self.cx.watch.pass_wire(Subject::Serve(serve), stages, (offset, payload), times);
    }
}

/// The requester's number of a read or write.
fn wire_of(frame: Frame) -> Option<u64> {
    match frame.message {
        Message::Read { transfer, .. } | Message::Write { transfer, .. } => Some(transfer),
        _ => None,
    }
}

fn check(
    named: Option<(ServedKey, &mut Served)>,
    ask: Ask,
    op: ServeOp,
) -> Result<(ServedKey, command::Target), Status> {
    let (key, served) = named.ok_or(Status::BadHandle)?;
    let target = served.target()?;
    let access = access_of(target);
    let allowed = match op {
        ServeOp::Read { .. } => access.read,
        ServeOp::Write { .. } => access.write,
        // The call's own bytes said what it takes.
        ServeOp::Sync | ServeOp::Call { .. } => true,
    };
    if !allowed {
        return Err(Status::Denied);
    }
    let end = ask.offset.checked_add(ask.length).ok_or(Status::Invalid)?;
    let bound = match target {
        command::Target::File(_) => i64::MAX as u64,
        // Only its bytes are for whoever receives.
        command::Target::Region(region)
            if region.region == RegionId::MESSAGE && op == ServeOp::Sync =>
        {
            return Err(Status::Invalid);
        }
        command::Target::Region(region) => region.length,
        command::Target::Directory(_) if matches!(op, ServeOp::Call { .. }) => i64::MAX as u64,
        command::Target::Channel(_) | command::Target::Directory(_) => {
            return Err(Status::Invalid);
        }
    };
    let sized = matches!(op, ServeOp::Sync | ServeOp::Call { .. })
        || (1..=limits::REQUEST_BYTES_MAX).contains(&ask.length);
    if end > bound || !sized {
        return Err(Status::Invalid);
    }
    Ok((key, target))
}

/// The sizes of a write's fragments, as they came.
fn load_sizes<I: Io>(span: Span, io: &mut I) -> Option<Sizes> {
    let mut bytes = [0; 2 * SIZES_MAX];
    let bytes = bytes.get_mut(..span.length as usize)?;
    io.load(span, bytes);
    Sizes::decode(bytes)
}

/// Whether a node may say this on a lane by way of a second address: what changes something here
/// goes one way, so that nothing old lands after something newer.
const fn goes_second(message: &Message) -> bool {
    matches!(
        message,
        Message::Read { .. }
            | Message::Cancel { .. }
            | Message::Outcome { .. }
            | Message::Report { .. }
            | Message::Ping { .. }
    )
}
