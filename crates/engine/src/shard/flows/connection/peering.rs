//! The peers that this node asks, as far as they come and go: their connections, and what is opened
//! there.

use std::collections::BTreeSet;

use piped_core::access::Creation;
use piped_core::ids::{HandleId, PeerId, SessionId, SocketId};
use piped_core::io::{Io, Resource};
use piped_core::limits::{self, PEERS_DIALLED_MAX, PEERS_RESTING_MAX};
use piped_core::link::{Checksum, Dialling, LaneClass};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::tally::{LaneLoss, RetryReason};
use piped_wire::frame::SWEEP;
use piped_wire::{LaneKeys, Message, Owner};

use crate::command::{Event, OpenRequest};
use crate::shard::Shard;
use crate::shard::clients::{HandleKind, RemoteHandle};
use crate::shard::connections::{Lane, LaneState, LostLane, Role};
use crate::shard::keys::LaneKey;
use crate::shard::peers::Peer;
use crate::shard::requests::Body;
use crate::shard::sched::Work;

impl Shard {
    pub(in crate::shard) fn remove_peer<I: Io>(&mut self, peer: PeerId, io: &mut I) {
        self.peers.remove(peer);
        for (ticket, session, handle) in self.handles.lose_peer(peer) {
            let result = Err(Status::PeerLost);
            self.cx.event(Event::RemoteOpened { ticket, session, handle, result });
        }
        let reason = "the peer was removed from the configuration";
        self.close_lanes_to(peer, LaneLoss::Reconfigured, reason, io);
        self.wake_waiting(peer);
        self.peers.forget_removed(peer, &mut self.cx);
    }

    /// A peer was dialled in vain.
    pub(in crate::shard) fn dial_failed(&mut self, peer: PeerId, class: LaneClass, now: Nanos) {
        self.peers.fail(peer, class, now, &mut self.cx);
        self.peers.forget_removed(peer, &mut self.cx);
    }

    pub(in crate::shard) fn redial_peer<I: Io>(&mut self, peer: PeerId, io: &mut I) {
        let reason = "the configuration has another address, key, mode or checksum for the peer, \
            or other networks for plain lanes";
        self.close_lanes_to(peer, LaneLoss::Reconfigured, reason, io);
    }

    /// Ends connections to peers at which nothing has been open for a while, if they are dialled
    /// when they are used.
    pub(in crate::shard) fn rest_peers<I: Io>(&mut self, now: Nanos, io: &mut I) {
        let in_use = self.handles.open_at_peers().map(|(_, peer)| peer).collect();
        for peer in self.peers.take_unused(&in_use, now) {
            let reason = "nothing has been open at the peer for a while";
            self.close_lanes_to(peer, LaneLoss::Unused, reason, io);
        }
        self.rest_surplus(&in_use, io);
    }

    /// A peer of the configuration. One that is always dialled goes before those at which nothing
    /// is open.
    pub(in crate::shard) fn add_peer<I: Io>(
        &mut self,
        about: (PeerId, bool),
        named: (String, Checksum),
        dialling: Dialling,
        io: &mut I,
    ) {
        self.peers.add(about, named, dialling, &mut self.cx);
        if self.peers.dialled() > PEERS_DIALLED_MAX {
            let in_use = self.handles.open_at_peers().map(|(_, peer)| peer).collect();
            self.rest_surplus(&in_use, io);
        }
    }

    /// Has peers rest at which nothing is open, while more are dialled than are to be.
    fn rest_surplus<I: Io>(&mut self, in_use: &BTreeSet<PeerId>, io: &mut I) {
        while self.peers.dialled() > PEERS_DIALLED_MAX && self.rest_idle(in_use, io) {}
    }

    /// Has the peer rest that has been idle for the longest. `false`: there is none.
    fn rest_idle<I: Io>(&mut self, in_use: &BTreeSet<PeerId>, io: &mut I) -> bool {
        let is_busy = |lane: LaneKey| self.lanes.get(lane).is_some_and(Lane::is_busy);
        let Some(idle) = self.peers.take_idle(in_use, is_busy, io.now()) else { return false };
        let reason = "nothing is open at the peer, and another one is dialled instead";
        self.close_lanes_to(idle, LaneLoss::Unused, reason, io);
        true
    }

    /// Whether a peer is dialled, or may be for a session. Where there is no place left, a peer at
    /// which nothing is open rests. Each user leaves some of the room that there is, so no user
    /// keeps the others from peers that nobody uses yet.
    fn may_dial<I: Io>(&mut self, peer: PeerId, session: SessionId, io: &mut I) -> bool {
        let dialled = self.peers.dialled();
        let is_dialled = self.peers.there(peer).is_some_and(Peer::is_wanted);
        // With so few, each user has left enough.
        if is_dialled || 8 * dialled < 7 * PEERS_DIALLED_MAX {
            return true;
        }
        let user = self.clients.user(session);
        let (mut in_use, mut of_user) = (BTreeSet::new(), BTreeSet::new());
        for (session, peer) in self.handles.open_at_peers() {
            in_use.insert(peer);
            let may_rest = self.peers.there(peer).is_some_and(Peer::may_rest);
            if may_rest && self.clients.user(session) == user {
                of_user.insert(peer);
            }
        }
        let left = PEERS_DIALLED_MAX.saturating_sub(self.peers.kept(&in_use));
        // As many as a user has, it leaves a seventh of.
        7 * left as usize > of_user.len()
            && (dialled < PEERS_DIALLED_MAX
                || self.rest_idle(&in_use, io)
                || dialled < PEERS_DIALLED_MAX + PEERS_RESTING_MAX)
    }

    fn close_lanes_to<I: Io>(&mut self, peer: PeerId, loss: LaneLoss, reason: &str, io: &mut I) {
        for class in LaneClass::ALL {
            if let Some(lane) = self.peers.lane(peer, class) {
                self.close_lane(lane, loss, reason, io);
            }
        }
    }

    pub(in crate::shard) fn lane_connected<I: Io>(
        &mut self,
        peer: PeerId,
        class: LaneClass,
        (socket, near, keys): (SocketId, bool, Option<LaneKeys>),
        io: &mut I,
    ) {
        let epoch = self.peers.get_mut(peer).and_then(|state| state.connected(class));
        let (Some(epoch), Some(state)) = (epoch, self.peers.get(peer)) else {
            self.peers.forget_removed(peer, &mut self.cx);
            return io.release(Resource::Socket(socket));
        };
        // Behind an address of another machine may be a forwarder, and behind that a node which
        // takes the connection for one of its own machine.
        let checksum = match state.checksum() {
            Checksum::Auto if !near => Checksum::Payload,
            checksum => checksum,
        };
        let name = state.name().to_owned();
        let role = Role::asking(peer, checksum == Checksum::Payload);
        let Some(key) = self.make_lane(role, class, socket, epoch, keys, io) else {
            return self.peers.fail(peer, class, io.now(), &mut self.cx);
        };
        let stages = self.cx.planner.net_stages(&name, class, true);
        let incarnation = self.cx.config.incarnation;
        let hello = Message::Hello { incarnation, lane: class, checksum };
        let Some(lane) = self.lanes.get_mut(key) else { return };
        (lane.stage_in, lane.stage_out) = stages;
        let node = self.cx.config.node_name.as_bytes();
        let pushed = lane.sender.push_inline(epoch, hello, node, Owner::NONE);
        debug_assert!(pushed.is_ok(), "the queue of a new lane is empty");
        if let Some(state) = self.peers.get_mut(peer) {
            state.enter(class, key);
        }
    }

    /// The kernel is done with a lane: those who asked on it ask again, and it is dialled anew.
    pub(in crate::shard) fn outbound_lane_lost(
        &mut self,
        peer: PeerId,
        lost: LostLane,
        now: Nanos,
    ) -> String {
        let LostLane { key, class, loss } = lost;
        let asked = |body: &Body| matches!(body, Body::Remote(remote) if remote.lane == Some(key));
        let (mut from, mut goes_elsewhere) = (0, false);
        while let Some(transfer) = self.transfers.next_from(&mut from, |t| asked(&t.body)) {
            self.note_way_unfinished(transfer, class, now);
            self.ask_again(transfer, RetryReason::LaneLost);
            goes_elsewhere |= self.may_go_elsewhere(transfer, now);
        }
        let Some(state) = self.peers.get_mut(peer) else { return String::new() };
        let name = state.name().to_owned();
        let has_ways = state.uses(LaneClass::Second);
        let comes_back = state.lose(class, loss);
        self.peers.fail(peer, class, now, &mut self.cx);
        if !comes_back || has_ways || goes_elsewhere {
            // No lane comes up for which they could wait, or some may go another way.
            self.wake_waiting(peer);
        }
        self.peers.forget_removed(peer, &mut self.cx);
        name
    }

    pub(in crate::shard) fn lane_up<I: Io>(
        &mut self,
        key: LaneKey,
        peer: PeerId,
        incarnation: u64,
        io: &mut I,
    ) {
        let Some(lane) = self.lanes.get(key) else { return };
        let (class, epoch) = (lane.class, lane.epoch);
        let Some(state) = self.peers.get_mut(peer) else { return };
        let is_new = state.note_up(class, incarnation);
        let (name, second) = (state.name().to_owned(), state.lane(LaneClass::Second));
        self.cx.event(Event::LaneUp { peer: name, class, epoch });
        if let Some(second) = second.filter(|_| is_new) {
            let reason = "behind the first address is another daemon now";
            self.close_lane(second, LaneLoss::Replaced, reason, io);
        }
        if class == LaneClass::Latency {
            self.peers.dial_second(peer, &mut self.cx);
            self.open_waiting(peer, io);
        }
        self.wake_waiting(peer);
    }

    /// Opens something at a peer for a client, now or when its latency lane is up.
    pub(in crate::shard) fn open_remote<I: Io>(
        &mut self,
        ticket: u64,
        session: SessionId,
        handle: HandleId,
        peer: PeerId,
        open: OpenRequest,
        io: &mut I,
    ) {
        if self.peers.there(peer).is_none() || !self.clients.has(session) {
            let result = Err(Status::NotFound);
            return self.cx.event(Event::RemoteOpened { ticket, session, handle, result });
        }
        if !self.may_dial(peer, session, io) {
            self.cx.watch.counters.peers_full += 1;
            let user = self.clients.user(session);
            return self.cx.event(Event::PeersFull { ticket, peer, user });
        }
        self.peers.note_used(peer, &mut self.cx);
        let remote = RemoteHandle::new(peer, open, ticket, self.cx.next_ticket());
        self.handles.add(session, handle, HandleKind::Remote(Box::new(remote)));
        self.ask_to_open(peer, io);
    }

    /// Asks for every handle of a peer once on each incarnation of the latency lane, and then has
    /// the peer forget the rest: closes and answers may have been lost with the lane before.
    pub(in crate::shard) fn open_waiting<I: Io>(&mut self, peer: PeerId, io: &mut I) {
        let Some(key) = self.peers.get(peer).and_then(Peer::lane_to_open) else { return };
        // The answers are the daemon's own. Without leave now, the next receive comes here again.
        if !self.may_ask(key, None, io) {
            return;
        }
        let Some(state) = self.peers.get_mut(peer) else { return };
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if lane.state != LaneState::Up {
            return;
        }
        let mut all = true;
        let epoch = lane.epoch;
        for (_, remote) in self.handles.at_peer(peer).filter(|(_, it)| it.asked_epoch != epoch) {
            if lane.asking().is_none_or(|asking| asking.opens >= limits::OPENS_PER_LANE)
                || !push_open(lane, remote.wire_ticket, &remote.open)
            {
                all = false;
                break;
            }
            remote.asked_epoch = lane.epoch;
            remote.pending = true;
            if let Some(asking) = lane.asking_mut() {
                asking.opens += 1;
            }
        }
        if all {
            state.note_asked(epoch, || lane.push(Message::Close { handle: SWEEP }));
        }
        self.cx.sched.make_ready(Work::Lane(key));
    }

    /// Asks a peer to open what is new, or what it had no room for.
    pub(in crate::shard) fn ask_to_open<I: Io>(&mut self, peer: PeerId, io: &mut I) {
        if let Some(state) = self.peers.get_mut(peer) {
            state.note_unasked();
        }
        self.open_waiting(peer, io);
    }

    pub(in crate::shard) fn handle_opened<I: Io>(
        &mut self,
        peer: PeerId,
        ticket: u64,
        status: Status,
        number: u32,
        length: u64,
        io: &mut I,
    ) {
        let Some(incarnation) = self.peers.get(peer).map(Peer::incarnation) else {
            return;
        };
        let is_it = |it: &RemoteHandle| it.wire_ticket == ticket && it.pending;
        let opened = self.handles.at_peer(peer).find(|(_, it)| is_it(it));
        let Some(((session, handle), remote)) = opened else {
            // Closed in the meantime: so is the peer's side.
            if status == Status::Ok {
                self.close_at(peer, number);
            }
            return;
        };
        remote.length = length;
        remote.pending = false;
        if status == Status::WouldBlock && remote.number.is_some() {
            // Too many at once: asked again, but not at once, or both would do nothing else.
            remote.asked_epoch = 0;
            if let Some(key) = self.peers.lane(peer, LaneClass::Latency) {
                self.lanes.look_at(key, self.peers.open_again_at(io.now()));
            }
            // More opens may have waited for room on the lane.
            return self.open_waiting(peer, io);
        }
        let first = remote.ticket.take();
        if status == Status::Ok {
            if remote.loses_locks_as((number, incarnation)) {
                // Others may have locked it meanwhile.
                self.handles.lose(session, handle);
                self.close_at(peer, number);
                self.wake_waiting(peer);
                return self.open_waiting(peer, io);
            }
            remote.number = Some((number, incarnation));
            // A file that was made is not made twice: it would be an empty one, or be in the way.
            remote.open.create = Creation::No;
        }
        let result = if status == Status::Ok { Ok(length) } else { Err(status) };
        if status != Status::Ok {
            // Gone at the peer: requests that wait for it must not wait until their deadline.
            self.handles.lose(session, handle);
        }
        if let Some(ticket) = first {
            self.cx.event(Event::RemoteOpened { ticket, session, handle, result });
        }
        self.wake_waiting(peer);
        // More opens may have waited for room on the lane.
        self.open_waiting(peer, io);
    }

    pub(in crate::shard) fn close_remote(&mut self, remote: RemoteHandle, now: Nanos) {
        self.peers.note_closed(remote.peer, now);
        let incarnation = self.peers.get(remote.peer).map(Peer::incarnation);
        if let Some((number, of)) = remote.number
            && incarnation == Some(of)
        {
            self.close_at(remote.peer, number);
        }
    }

    /// Has a peer forget a handle. Without a lane now, the next one's sweep does it.
    fn close_at(&mut self, peer: PeerId, handle: u32) {
        if let Some(lane) = self.peers.lane(peer, LaneClass::Latency) {
            self.tell(lane, Message::Close { handle });
        }
    }
}

fn push_open(lane: &mut Lane, ticket: u64, open: &OpenRequest) -> bool {
    let message = Message::Open {
        ticket,
        kind: open.kind,
        access: open.access,
        create: open.create,
        name_length: open.name.len() as u8,
    };
    let payload = [open.name.as_bytes(), &open.path].concat();
    lane.sender.push_inline(lane.epoch, message, &payload, Owner::NONE).is_ok()
}
