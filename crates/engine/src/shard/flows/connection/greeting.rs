//! Nodes that connect to us: who they are, whether they have a place, and when a new connection of
//! a node may begin.

use piped_core::ids::SocketId;
use piped_core::io::{Io, Resource, Span};
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::names::{NODE_NAME_BYTES_MAX, is_node_name, node_of};
use piped_core::units::Nanos;
use piped_report::shard::Held;
use piped_report::tally::LaneLoss;
use piped_wire::{LaneKeys, Message};

use crate::command::{Caller, Crowded, Event, Expelled, Standing};
use crate::shard::Shard;
use crate::shard::connections::{Arrived, Lane, LaneState, LostLane, Role, load_bytes};
use crate::shard::faults::PeerFault;
use crate::shard::keys::{LaneKey, LinkKey};
use crate::shard::links::Link;
use crate::shard::sched::Work;

impl Shard {
    /// A peer connected. Which lane it is says its first frame, and its name, as far as `caller`
    /// lets it.
    pub(in crate::shard) fn lane_accepted<I: Io>(
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
            let leaves = self.lanes.next_from(&mut 0, unproven);
            let leaves = match caller {
                Caller::Proven { .. } => leaves.or_else(|| self.lanes.next_from(&mut 0, stranger)),
                Caller::Unproven { .. } => leaves,
            };
            let Some(leaves) = leaves else {
                self.refuse_lane(caller.standing(), Crowded::Full);
                return io.release(Resource::Socket(socket));
            };
            self.close_lane(leaves, LaneLoss::Silent, "it did not say who it is", io);
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
    pub(in crate::shard) fn expire_lane_time<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        match self.lanes.get(key).and_then(Lane::asking).map(|asking| asking.peer) {
            Some(peer) => self.ask_to_open(peer, io),
            None => {
                self.close_lane(key, LaneLoss::Silent, "it did not say in time who it is", io);
            }
        }
    }

    /// The first frame of a connection to us must be a Hello that fits what we know of the node.
    pub(in crate::shard) fn handle_greeting<I: Io>(
        &mut self,
        key: LaneKey,
        arrived: Arrived,
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let Arrived { frame, landed, intact, .. } = arrived;
        let Message::Hello { incarnation, lane: class, checksum } = frame.message else {
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
        let is_same = |link: &Link| link.name() == name && link.standing().0.is_like(standing);
        let mut link = self.links.next_from(&mut 0, is_same);
        // What it has open is where its latency lane is. A second address may be that of another
        // place in the eyes of this node, or of another daemon's.
        let is_here = |link: &Link| link.is_beside(incarnation);
        if class == LaneClass::Second
            && !link.and_then(|it| self.links.get(it)).is_some_and(is_here)
        {
            return Err(PeerFault::SecondAlone);
        }
        if link.is_none() && self.may_link(standing, beside_keys, io) {
            if !self.links.has_room() {
                self.forget_inbound(standing, io);
            }
            let incarnations = (incarnation, self.cx.config.incarnation);
            link = self.links.begin(name, standing, incarnations, io.now());
        }
        let Some(link) = link else {
            self.refuse_lane(standing, Crowded::Full);
            return Err(PeerFault::NoPlace);
        };
        let Some(state) = self.links.get_mut(link) else { return Ok(()) };
        let (lanes, served) = state.fence(class, frame.epoch, incarnation)?;
        // Whatever an older incarnation of the lane (or of the node) has under way ends.
        for served in served {
            self.close_served(served, io);
        }
        for lane in lanes {
            self.close_lane(lane, LaneLoss::Replaced, "a newer incarnation took its place", io);
        }
        let Some(state) = self.links.get_mut(link) else { return Ok(()) };
        state.enter(class, key, frame.epoch, beside_keys);
        let name = state.name().to_owned();
        let near = standing.is_same_machine();
        let wishes = [checksum, self.peers.checksum_of(&name)];
        let stages = self.cx.planner.net_stages(&name, class, false);
        self.lanes.stop_time(key);
        let Some(lane) = self.lanes.get_mut(key) else { return Ok(()) };
        lane.role = Role::serving(link, caller, requests_max(class));
        lane.class = class;
        lane.epoch = frame.epoch;
        lane.state = LaneState::Fenced;
        lane.set_sums(wishes.iter().any(|wish| wish.covers_payloads(near)));
        (lane.stage_in, lane.stage_out) = stages;
        self.acknowledge(link, class);
        Ok(())
    }

    /// Closes the lanes that came from these nodes, if there are any, and with them those that have
    /// not said where they come from: what they may say was judged by what is not true any more.
    /// `plain`: also those that did not prove who they are.
    pub(in crate::shard) fn expel_peers<I: Io>(
        &mut self,
        names: &[String],
        plain: Expelled,
        io: &mut I,
    ) {
        let is_named = |link: LinkKey| {
            let link = self.links.get(link);
            link.is_some_and(|link| names.iter().any(|name| name == node_of(link.name())))
        };
        let expelled = |(_, lane): &(LaneKey, &Lane)| match &lane.role {
            Role::Asking(_) => false,
            _ if lane.is_expelled_by(plain) => true,
            Role::Serving(serving) => is_named(serving.link),
            Role::Stranger(_) => !names.is_empty(),
        };
        let lanes: Vec<LaneKey> = self.lanes.iter().filter(expelled).map(|(key, _)| key).collect();
        for lane in lanes {
            let reason = "the configuration trusts this node, or checks its frames, otherwise now";
            self.close_lane(lane, LaneLoss::Reconfigured, reason, io);
        }
    }

    /// Forgets the peer that left first, if nothing of it is under way: what is still to land of it
    /// must fence its return. For one that proved nothing, those that did not either go first, and
    /// no more of the others than are not kept for them.
    fn forget_inbound<I: Io>(&mut self, newcomer: Standing, io: &mut I) {
        let idle = self.links.iter().filter(|&(key, link)| self.has_left(key, link));
        let proven = |link: &Link| link.standing().0 == Standing::Proven;
        let known = self.links.iter().filter(|(_, link)| proven(link)).count();
        let kept = newcomer != Standing::Proven
            && known <= (limits::LINKS_MAX / limits::PROVEN_SHARE) as usize;
        let oldest = idle
            .filter(|(_, link)| !kept || !proven(link))
            .min_by_key(|(_, link)| (newcomer != Standing::Proven && proven(link), link.left()));
        if let Some((oldest, _)) = oldest {
            self.forget_link(oldest, io);
        }
    }

    /// Whether a node has no lane any more, and nothing of it is under way.
    pub(in crate::shard) fn has_left(&self, key: LinkKey, link: &Link) -> bool {
        !link.opens(None)
            && !self.lanes.iter().any(|(_, lane)| lane.inbound() == Some(key))
            && !self.serves.iter().any(|(_, serve)| serve.link == key)
    }

    /// Forgets a node that has left, and all that it had open: if it comes again, it is told so.
    pub(in crate::shard) fn forget_link<I: Io>(&mut self, link: LinkKey, io: &mut I) {
        let Some((name, served)) = self.links.end(link) else { return };
        // Somebody else may have the same name, and so the same stages.
        if let Some(name) = name {
            self.cx.planner.forget_peer(&name, false);
        }
        for served in served {
            self.close_served(served, io);
        }
    }

    /// A node that had locks has been away as long as they last: it loses what it had open.
    pub(in crate::shard) fn end_leases<I: Io>(&mut self, key: LinkKey, now: Nanos, io: &mut I) {
        match self.links.get(key) {
            Some(link) if self.has_left(key, link) => self.forget_link(key, io),
            // It is back, or something of it is still under way here.
            _ => self.links.watch_leases(key, now),
        }
    }

    /// Says HelloAck once nothing of the lane's earlier incarnations is under way: an old write
    /// must not land after a newer one.
    fn acknowledge(&mut self, link: LinkKey, class: LaneClass) {
        let Some(state) = self.links.get(link) else { return };
        let Some(key) = state.lane(class) else { return };
        if !self.lanes.get(key).is_some_and(|lane| lane.state == LaneState::Fenced) {
            return;
        }
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
        let (name, incarnation) = (state.name().to_owned(), state.incarnation_told());
        let (window, staging) = (self.credit_window(class), self.read_staging());
        let Some(lane) = self.lanes.get_mut(key) else { return };
        self.cx.planner.hold(lane.stage_out, Held::Staging(staging));
        let Some(serving) = lane.serving_mut() else { return };
        serving.window.open(window);
        lane.state = LaneState::Up;
        let requests_max = requests_max(class);
        let sums = lane.has_sums();
        lane.push(Message::HelloAck { incarnation, credit_bytes: window, requests_max, sums });
        let epoch = lane.epoch;
        self.cx.sched.make_ready(Work::Lane(key));
        self.cx.event(Event::LaneUp { peer: name, class, epoch });
    }

    /// A serve or a lane of an older incarnation is over: a fenced lane may be up now.
    pub(in crate::shard) fn acknowledge_fenced(&mut self, link: LinkKey) {
        for class in LaneClass::ALL {
            self.acknowledge(link, class);
        }
    }

    pub(in crate::shard) fn inbound_lane_lost(
        &mut self,
        link: LinkKey,
        lost: LostLane,
        now: Nanos,
    ) -> String {
        let Some(state) = self.links.get_mut(link) else { return String::new() };
        state.lose(lost.class, lost.key, lost.loss, now);
        let name = state.name().to_owned();
        self.links.watch_leases(link, now);
        self.acknowledge_fenced(link);
        name
    }
}

/// Requests that are served at once on a lane of a class.
const fn requests_max(class: LaneClass) -> u32 {
    match class {
        LaneClass::Latency | LaneClass::Bulk => limits::SERVES_PER_LANE,
        LaneClass::Second => limits::SERVES_OF_SECOND,
    }
}

/// Reads a node's name. The name is printed on operators' terminals, so nothing in it may move a
/// cursor or break a line.
fn load_name<I: Io>(landed: Option<Span>, io: &mut I) -> Option<String> {
    let name = String::from_utf8(load_bytes(landed, NODE_NAME_BYTES_MAX, io)?).ok()?;
    is_node_name(&name).then_some(name)
}
