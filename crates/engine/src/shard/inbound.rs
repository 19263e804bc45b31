//! Peers that ask us: who they are, and the requests that come in.

use piped_core::ids::{RegionId, SocketId};
use piped_core::io::{Io, Resource, Span};
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::names::{NODE_NAME_BYTES_MAX, is_node_name, node_of};
use piped_core::request::Class;
use piped_core::sizes::{SIZES_MAX, Sizes};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::plan::Outcome;
use piped_report::shard::{Gauge, PeerReport};
use piped_report::tally::LaneLoss;
use piped_text::is_name;
use piped_wire::frame::OPEN_BYTES_MAX;
use piped_wire::{Asker, Frame, LaneKeys, Message};

use super::Shard;
use super::account::Account;
use super::arrivals::Arriving;
use super::clients::access_of;
use super::connections::Grant;
use super::connections::{Arrived, Destination, Lane, LaneState, LostLane, PeerLane, Target};
use super::connections::{PeerRequest, Role, Serving};
use super::crowd::Holding;
use super::facts;
use super::fair::Party;
use super::faults::PeerFault;
use super::inbox::Sent;
use super::keys::{LaneKey, LinkKey, Subject, kind};
use super::once::Asked;
use super::reports::Reported;
use super::responder::{Serve, ServeOp};
use super::sched::Work;
use super::serve_pieces::Table;
use super::serve_write::Sink;
use super::served::{HandlePlace, Number, Served};
use crate::command;
use crate::command::{Caller, Crowded, Event, Expelled, OpenRequest, Standing};

/// A node that connected to us.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) name: String,
    /// What stands behind it: a lane under the same name that somebody else has is of another link.
    pub(super) standing: Standing,
    /// The peer proved nothing while other nodes have keys: some places are kept for those nodes.
    pub(super) beside_keys: bool,
    incarnation: u64,
    /// The incarnation of ours that it is told. Another one after it was forgotten: its handles
    /// went with it, and it asks for them again as it does after a restart.
    ours: u64,
    /// When its last lane was lost.
    pub(super) left: Nanos,
    pub(super) lanes: [InboundLane; 2],
    pub(super) handles: Vec<HandlePlace>,
    /// The peer's opens that are at the control thread.
    pub(super) opening: Vec<Opening>,
    /// Its reads and syncs in execution, and those that wait for a limit.
    pub(super) account: Account<kind::Serve>,
    /// Staging of its reads.
    pub(super) read_staging: Gauge,
    /// Staging of its writes, over both lanes.
    pub(super) write_staging: Gauge,
    /// Staging of its requests' tables, in bytes: of gets and of puts.
    pub(super) tables: [u64; 2],
    /// Messages that it has announced and that are not received.
    pub(super) mails: u32,
    /// The message whose bytes come in: one at a time, for they have one lane.
    pub(super) arriving: Option<Arriving>,
}

/// An open at the control thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opening {
    /// Our ticket for the open.
    pub(super) ours: u64,
    /// The peer's ticket for the open.
    pub(super) theirs: u64,
    /// The lane that waits for the answer.
    pub(super) lane: LaneKey,
}

#[derive(Debug, Default)]
pub(super) struct InboundLane {
    pub(super) lane: Option<LaneKey>,
    pub(super) epoch: u32,
    last_loss: Option<LaneLoss>,
}

impl Shard {
    /// A peer connected. Which lane it is says its first frame, and its name, as far as `caller`
    /// lets it.
    pub(super) fn lane_accepted<I: Io>(
        &mut self,
        (socket, keys): (SocketId, Option<LaneKeys>),
        caller: Caller,
        io: &mut I,
    ) {
        let stranger = |lane: &Lane| lane.is_stranger() && lane.state != LaneState::Closing;
        let unproven = |lane: &Lane| stranger(lane) && lane.is_unproven();
        let strangers = self.lanes.iter().filter(|(_, lane)| stranger(lane)).count();
        if strangers >= limits::STRANGERS_MAX {
            // Those who proved who they are stay.
            let leaves = self.lanes.next_from(0, unproven);
            let leaves = match caller {
                Caller::Proven { .. } => leaves.or_else(|| self.lanes.next_from(0, stranger)),
                Caller::Unproven { .. } => leaves,
            };
            let Some(leaves) = leaves else {
                self.refuse_lane(caller.standing(), Crowded::Full);
                return io.release(Resource::Socket(socket));
            };
            let reason = String::from("it did not say who it is");
            self.close_lane(leaves, LaneLoss::Silent, reason, io);
        }
        if let Err(why) = self.find_place(&caller, io) {
            self.refuse_lane(caller.standing(), why);
            return io.release(Resource::Socket(socket));
        }
        // Class and epoch are those of its Hello, once that is here.
        let (standing, role) = (caller.standing(), Role::Stranger(caller));
        let Some(key) = self.make_lane(role, LaneClass::Latency, socket, 0, keys, io) else {
            // There was a place: there is no staging. Whoever comes next finds some.
            self.displace(None, io);
            return self.refuse_lane(standing, Crowded::Staging);
        };
        self.lanes.look_at(key, io.now() + limits::HELLO_TIME);
    }

    /// A connection has had its time to say who it is; or, of those we dialled, the
    /// peer has had its time to make room for the opens it refused.
    pub(super) fn expire_lane_time<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        match self.lanes.get(key).and_then(Lane::asking).map(|asking| asking.peer) {
            Some(peer) => self.open_refused(peer, io),
            None => {
                let reason = String::from("it did not say in time who it is");
                self.close_lane(key, LaneLoss::Silent, reason, io);
            }
        }
    }

    /// The first frame of a connection to us must be a Hello that fits what we know of the node.
    pub(super) fn handle_greeting<I: Io>(
        &mut self,
        key: LaneKey,
        arrived: Arrived,
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let Arrived { frame, landed, intact, .. } = arrived;
        let Message::Hello { incarnation, lane: class } = frame.message else {
            return Err(PeerFault::NoHello);
        };
        if !intact {
            return Err(PeerFault::DamagedName);
        }
        let name = load_name(landed, io).ok_or(PeerFault::UnprintableName)?;
        let Some(caller) = self.lanes.get(key).and_then(|lane| lane.role.caller()) else {
            return Ok(());
        };
        let caller = caller.clone();
        caller.may_be(&name).map_err(PeerFault::NotItsName)?;
        let (standing, beside_keys) = (caller.standing(), caller.is_beside_keys());
        let is_same = |link: &Inbound| link.name == name && link.standing.is_like(standing);
        let link = match self.inbound.next_from(0, is_same) {
            Some(link) => link,
            None => {
                let new = if self.may_link(standing, beside_keys, io) {
                    self.new_inbound(name, standing, incarnation, io)
                } else {
                    None
                };
                let Some(new) = new else {
                    self.refuse_lane(standing, Crowded::Full);
                    return Err(PeerFault::NoPlace);
                };
                new
            }
        };
        self.fence(link, class, frame.epoch, incarnation, io)?;
        let Some(state) = self.inbound.get_mut(link) else { return Ok(()) };
        state.beside_keys = beside_keys;
        let name = state.name.clone();
        let place = &mut state.lanes[class as usize];
        (place.lane, place.epoch) = (Some(key), frame.epoch);
        let stages = self.cx.planner.net_stages(&name, class, false);
        self.lanes.stop_time(key);
        let Some(lane) = self.lanes.get_mut(key) else { return Ok(()) };
        lane.role = Role::serving(link, caller);
        lane.class = class;
        lane.epoch = frame.epoch;
        lane.state = LaneState::Fenced;
        (lane.stage_in, lane.stage_out) = stages;
        self.acknowledge(link, class);
        Ok(())
    }

    /// Closes the lanes that came from these nodes, if there are any, and with them those that have
    /// not said where they come from: what they may say was judged by what is not true any more.
    /// `plain`: also those that did not prove who they are.
    pub(super) fn expel_peers<I: Io>(&mut self, names: &[String], plain: Expelled, io: &mut I) {
        let is_named = |link: LinkKey| {
            let link = self.inbound.get(link);
            link.is_some_and(|link| names.iter().any(|name| name == node_of(&link.name)))
        };
        let expelled = |(_, lane): &(LaneKey, &Lane)| match &lane.role {
            Role::Asking(_) => false,
            _ if lane.is_expelled_by(plain) => true,
            Role::Serving(serving) => is_named(serving.link),
            Role::Stranger(_) => !names.is_empty(),
        };
        let lanes: Vec<LaneKey> = self.lanes.iter().filter(expelled).map(|(key, _)| key).collect();
        for lane in lanes {
            let reason = String::from("the configuration trusts this node no longer as it did");
            self.close_lane(lane, LaneLoss::Reconfigured, reason, io);
        }
    }

    fn new_inbound<I: Io>(
        &mut self,
        name: String,
        standing: Standing,
        incarnation: u64,
        io: &mut I,
    ) -> Option<LinkKey> {
        if self.inbound.room() == 0 {
            self.forget_inbound(standing, io);
        }
        let link = Inbound {
            name,
            standing,
            beside_keys: false,
            incarnation,
            ours: self.cx.config.incarnation.wrapping_add(self.links_made),
            left: io.now(),
            lanes: Default::default(),
            handles: Vec::new(),
            opening: Vec::new(),
            account: Account::default(),
            read_staging: Gauge::default(),
            write_staging: Gauge::default(),
            tables: [0; 2],
            mails: 0,
            arriving: None,
        };
        // A node that comes back with another standing holds numbers of the link that it had.
        self.links_made += 1;
        self.inbound.insert(link).ok()
    }

    /// Forgets the peer that left first, if nothing of it is under way: what is still to land of it
    /// must fence its return. For one that proved nothing, those that did not either go first, and
    /// no more of the others than are not kept for them.
    fn forget_inbound<I: Io>(&mut self, newcomer: Standing, io: &mut I) {
        let idle = self.inbound.iter().filter(|&(key, link)| self.has_left(key, link));
        let proven = |link: &Inbound| link.standing == Standing::Proven;
        let known = self.inbound.iter().filter(|(_, link)| proven(link)).count();
        let kept = newcomer != Standing::Proven
            && known <= (limits::LINKS_MAX / limits::PROVEN_SHARE) as usize;
        let oldest = idle
            .filter(|(_, link)| !kept || !proven(link))
            .min_by_key(|(_, link)| (newcomer != Standing::Proven && proven(link), link.left));
        if let Some((oldest, _)) = oldest {
            self.forget_link(oldest, io);
        }
    }

    /// Whether a node has no lane any more, and nothing of it is under way.
    pub(super) fn has_left(&self, key: LinkKey, link: &Inbound) -> bool {
        link.opening.is_empty()
            && !self.lanes.iter().any(|(_, lane)| lane.inbound() == Some(key))
            && !self.serves.iter().any(|(_, serve)| serve.link == key)
    }

    /// Forgets a node that has left, and all that it had open: if it comes again, it is told so.
    pub(super) fn forget_link<I: Io>(&mut self, link: LinkKey, io: &mut I) {
        let Some(mut link) = self.inbound.remove(link) else { return };
        // Somebody else may have the same name, and so the same stages.
        if self.inbound.iter().all(|(_, other)| other.name != link.name) {
            self.cx.planner.forget_served(&link.name);
        }
        for number in link.handles.iter_mut().filter_map(HandlePlace::take) {
            self.close_served(number.served, io);
        }
    }

    /// Ends whatever an older incarnation of the lane (or of the node) has under way.
    fn fence<I: Io>(
        &mut self,
        link: LinkKey,
        class: LaneClass,
        epoch: u32,
        incarnation: u64,
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let Some(state) = self.inbound.get_mut(link) else { return Ok(()) };
        let restarted = state.incarnation != incarnation;
        if !restarted && epoch <= state.lanes[class as usize].epoch {
            return Err(PeerFault::OldEpoch);
        }
        let old: Vec<LaneKey> = match restarted {
            true => state.lanes.iter().filter_map(|lane| lane.lane).collect(),
            false => state.lanes[class as usize].lane.into_iter().collect(),
        };
        if restarted {
            state.incarnation = incarnation;
            state.lanes = Default::default();
            state.opening.clear();
            let numbers: Vec<Number> =
                state.handles.iter_mut().filter_map(HandlePlace::take).collect();
            for number in numbers {
                self.close_served(number.served, io);
            }
        }
        for lane in old {
            let reason = String::from("a newer incarnation took its place");
            self.close_lane(lane, LaneLoss::Replaced, reason, io);
        }
        Ok(())
    }

    /// Says HelloAck once nothing of the lane's earlier incarnations is under way: an old write
    /// must not land after a newer one.
    fn acknowledge(&mut self, link: LinkKey, class: LaneClass) {
        let Some(state) = self.inbound.get(link) else { return };
        let Some(key) = state.lanes[class as usize].lane else { return };
        let older = self.lanes.iter().any(|(other, lane)| {
            other != key && lane.inbound() == Some(link) && lane.class == class
        });
        // Reads and syncs of the past change nothing, and their device may stall.
        let unfinished = self.serves.iter().any(|(_, serve)| {
            serve.writes()
                && serve.link == link
                && serve.class_of_lane == class
                && serve.lane != key
        });
        if older || unfinished {
            return;
        }
        let name = state.name.clone();
        let window = self.credit_window();
        let incarnation = state.ours;
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if lane.state != LaneState::Fenced {
            return;
        }
        let Some(serving) = lane.serving_mut() else { return };
        serving.window.open(window);
        lane.state = LaneState::Up;
        let requests_max = limits::SERVES_PER_LANE;
        lane.push(Message::HelloAck { incarnation, credit_bytes: window, requests_max });
        let epoch = lane.epoch;
        self.cx.sched.make_ready(Work::Lane(key));
        self.cx.event(Event::LaneUp { peer: name, class, epoch });
    }

    /// A serve or a lane of an older incarnation is over: a fenced lane may be up now.
    pub(super) fn acknowledge_fenced(&mut self, link: LinkKey) {
        for class in [LaneClass::Latency, LaneClass::Bulk] {
            let fenced = self
                .inbound
                .get(link)
                .and_then(|state| state.lanes[class as usize].lane)
                .and_then(|key| self.lanes.get(key))
                .is_some_and(|lane| lane.state == LaneState::Fenced);
            if fenced {
                self.acknowledge(link, class);
            }
        }
    }

    pub(super) fn inbound_lane_lost(
        &mut self,
        link: LinkKey,
        lost: LostLane,
        now: Nanos,
    ) -> String {
        let Some(state) = self.inbound.get_mut(link) else { return String::new() };
        let name = state.name.clone();
        state.left = now;
        let lane = &mut state.lanes[lost.class as usize];
        if lane.lane == Some(lost.key) {
            lane.lane = None;
            lane.last_loss = Some(lost.loss);
        }
        self.acknowledge_fenced(link);
        name
    }

    /// A frame on a lane we accepted. An error is the peer's fault and closes the lane.
    pub(super) fn handle_request<I: Io>(
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
            Message::WriteData { transfer, backlogged, .. } => {
                self.time_write_data(key, (transfer, frame.payload), backlogged, io.now());
                let target = self.lanes.take_target(key);
                self.handle_write_data(key, transfer, frame.payload, target, intact, io);
                Ok(())
            }
            Message::Send { .. } => match sent_of(frame.message, io.now()) {
                Some(sent) if self.may_send(key, sent) => {
                    let target = self.lanes.take_target(key);
                    self.handle_send(on, sent, (target, intact), io)
                }
                _ => Err(PeerFault::StrayMessage),
            },
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
                    lane.push(Message::Opened { ticket, status, handle, length });
                    self.cx.sched.make_ready(Work::Lane(key));
                    return Ok(());
                }
                let split = bytes.split_at_checked(usize::from(name_length));
                let (name, path) = split.ok_or(PeerFault::CutOpen)?;
                // A path is bytes, as names of files are; names of exports, regions and channels
                // are text.
                let name = std::str::from_utf8(name).map_err(|_| PeerFault::OpenNotText)?;
                let (name, path) = (name.to_owned(), path.to_owned());
                let open = OpenRequest { kind, name, path, access, create };
                self.handle_open(on, ticket, open)
            }
            Message::Close { handle } => {
                self.handle_close(link, handle, io);
                Ok(())
            }
            Message::Report { .. } => {
                let peer = self.inbound.get(link).map(|link| link.name.as_str());
                let of = Reported::of(lane, peer);
                lane.reports.hear(frame.message, of, &mut self.cx.planner, io.now());
                Ok(())
            }
            Message::Outcome { handle, length, plan, latency_ns, company } => {
                let served =
                    self.inbound.get_mut(link).and_then(|state| state.place(handle)?.number);
                let served = served.and_then(|number| self.served.get(number.served));
                // It may have been closed or withdrawn meanwhile.
                if let Some(target) = served.and_then(|served| served.target) {
                    let time = Nanos(latency_ns);
                    let outcome = Outcome { length, plan, time, alone: !company };
                    self.handle_outcome(key, target, outcome);
                }
                Ok(())
            }
            Message::Ping { nonce } => {
                lane.push(Message::Pong { nonce });
                self.cx.sched.make_ready(Work::Lane(key));
                Ok(())
            }
            _ => Err(PeerFault::AnswerAmongRequests),
        }
    }

    /// Makes the serve of a request, or answers at once why not.
    fn serve<I: Io>(
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
        let served_key = self
            .inbound
            .get_mut(link)
            .and_then(|state| state.place(ask.handle)?.number)
            .map(|number| number.served);
        let checked = check(served_key.and_then(|key| self.served.get(key)), ask, op);
        let refused = match (checked, served_key) {
            (Ok(_), Some(_)) if !room => Err(Status::WouldBlock),
            (Ok(target), Some(key)) => Ok((target, key)),
            (Err(status), _) => Err(status),
            (_, None) => Err(Status::BadHandle),
        };
        let (target, served_key) = match refused {
            Ok(found) => found,
            Err(status) => {
                if let Some(table) = table {
                    self.free_table(link, table.place);
                }
                return self.refuse(key, ask.transfer, status);
            }
        };
        let deadline = now + Nanos::from_micros(ask.time_left_us.into());
        let serve =
            Serve::new(key, link, class_of_lane, ask, op, (target, served_key), now, deadline);
        match self.serves.begin(serve) {
            Some(serve) => {
                self.cx.sched.begin(Work::Serve(serve), ask.asker.class);
                if let Some(known) = self.serves.get(serve) {
                    let (subject, head) =
                        (Subject::Serve(serve), || facts::head_of_serve(known, 0));
                    self.cx.watch.begin(subject, now, || Some(head()));
                    let spots = facts::spots_of_serve(known);
                    self.cx.watch.enter(subject, spots, Party::Peer(link, 0));
                }
                if let Some(served) = self.served.get_mut(served_key) {
                    served.uses += 1;
                }
                if let Some(serving) = self.lanes.get_mut(key).and_then(Lane::serving_mut) {
                    serving.serves.push(PeerRequest { wire: ask.transfer, serve });
                }
                if let Some(table) = table {
                    if let Some(serve) = self.serves.get_mut(serve) {
                        serve.table = Some(table);
                    }
                    self.check_table(serve, io);
                }
                self.enter_serve(serve);
                Ok(())
            }
            None => {
                if let Some(table) = table {
                    self.free_table(link, table.place);
                }
                self.refuse(key, ask.transfer, Status::WouldBlock)
            }
        }
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
        self.refuse(key, transfer, Status::WouldBlock)
    }

    fn refuse(&mut self, key: LaneKey, transfer: u64, status: Status) -> Result<(), PeerFault> {
        self.answer_end(key, transfer, status, 0)
    }

    /// Ends a request that nothing is to be done for any more.
    pub(super) fn answer_end(
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
    pub(super) fn destination_of_write(
        &mut self,
        on: PeerLane,
        frame: Frame,
        now: Nanos,
    ) -> Destination {
        let PeerLane { lane: key, link } = on;
        let Message::WriteData { transfer, offset, .. } = frame.message else {
            return match frame.message {
                Message::Read { pieces: true, .. } | Message::Write { pieces: true, .. } => {
                    self.destination_of_table(on, frame)
                }
                Message::Open { .. } | Message::Write { .. } => Destination::Inline,
                Message::Send { .. } => match sent_of(frame.message, now) {
                    Some(sent) if self.may_send(key, sent) => {
                        self.destination_of_send(link, sent, now)
                    }
                    // Before anything is pinned or taken for it.
                    _ => Destination::Fault(PeerFault::StrayMessage),
                },
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
    pub(super) fn return_credit(&mut self, key: LaneKey, bytes: u32, rest: bool) {
        let serving = self.lanes.get_mut(key).and_then(Lane::serving_mut);
        let Some(serving) = serving else { return };
        serving.window.owe(bytes.into(), rest);
        self.cx.sched.make_ready(Work::Lane(key));
    }

    /// Gives back what is owed, when the peer's rate allows it: one that writes too fast has no
    /// credit for a while. `false`: not yet.
    pub(super) fn give_owed(&mut self, key: LaneKey, now: Nanos) -> bool {
        let serving = self.lanes.get(key).and_then(Lane::serving);
        if !serving.is_some_and(|serving| serving.window.owes()) {
            return true;
        }
        let may = self.may_move(Work::Lane(key), now);
        if may {
            self.give_all_owed(key, now);
        }
        may
    }

    /// Gives back what is owed, whatever the rate.
    pub(super) fn give_all_owed(&mut self, key: LaneKey, now: Nanos) {
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
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if let Some((bytes, time)) = lane.burst.arrive(payload, backlogged, now) {
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
        let offset = self.serves.get(serve).map_or(0, |serve| serve.landed_to());
        self.cx.watch.pass_wire(Subject::Serve(serve), stages, (offset, payload), times);
    }

    pub(super) fn report_inbound(&self, link: &Inbound) -> PeerReport {
        let lanes = [LaneClass::Latency, LaneClass::Bulk].map(|class| {
            let state = &link.lanes[class as usize];
            self.report_lane(class, state.lane, state.epoch, state.last_loss)
        });
        PeerReport { name: link.name.clone(), inbound: true, lanes: lanes.into() }
    }
}

/// A message as its frame says it.
fn sent_of(message: Message, now: Nanos) -> Option<Sent> {
    let Message::Send { transfer, handle, tag, length, sequence, oldest, time_left_us, .. } =
        message
    else {
        return None;
    };
    let deadline = now + Nanos::from_micros(time_left_us.into());
    Some(Sent { transfer, handle, tag, length, sequence, oldest, deadline })
}

/// The requester's number of a read or write.
fn wire_of(frame: Frame) -> Option<u64> {
    match frame.message {
        Message::Read { transfer, .. } | Message::Write { transfer, .. } => Some(transfer),
        _ => None,
    }
}

/// What a request asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) transfer: u64,
    pub(super) handle: u32,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) asker: Asker,
    time_left_us: u32,
}

fn check(served: Option<&Served>, ask: Ask, op: ServeOp) -> Result<command::Target, Status> {
    let target = served.ok_or(Status::BadHandle)?.target.ok_or(Status::Gone)?;
    let access = access_of(target);
    let allowed = match op {
        ServeOp::Read { .. } => access.read,
        ServeOp::Write { .. } => access.write,
        ServeOp::Sync => true,
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
        command::Target::Channel(_) => return Err(Status::Invalid),
    };
    let sized = op == ServeOp::Sync || (1..=limits::REQUEST_BYTES_MAX).contains(&ask.length);
    if end > bound || !sized {
        return Err(Status::Invalid);
    }
    Ok(target)
}

/// Reads a node's name. The name is printed on operators' terminals, so nothing in it may move a
/// cursor or break a line.
fn load_name<I: Io>(landed: Option<Span>, io: &mut I) -> Option<String> {
    let name = load_text(landed, NODE_NAME_BYTES_MAX, io)?;
    is_node_name(&name).then_some(name)
}

/// The sizes of a write's fragments, as they came.
fn load_sizes<I: Io>(span: Span, io: &mut I) -> Option<Sizes> {
    let mut bytes = [0; 2 * SIZES_MAX];
    let bytes = bytes.get_mut(..span.length as usize)?;
    io.load(span, bytes);
    Sizes::decode(bytes)
}

fn load_text<I: Io>(landed: Option<Span>, longest: u32, io: &mut I) -> Option<String> {
    String::from_utf8(load_bytes(landed, longest, io)?).ok()
}

fn load_bytes<I: Io>(landed: Option<Span>, longest: u32, io: &mut I) -> Option<Vec<u8>> {
    let span = landed.filter(|span| span.length <= longest)?;
    let mut bytes = vec![0; span.length as usize];
    io.load(span, &mut bytes);
    Some(bytes)
}
