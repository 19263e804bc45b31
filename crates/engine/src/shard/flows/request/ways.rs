//! A read of a peer that is reached on two ways: one of them, or divided between both.
//!
//! A divided read is a vectored one of two pieces, each a transfer of its own with its own plan: it
//! ends when both have, fails with the first that does, and is cancelled with both. What waits for
//! a lane that is down, or had asked on one that is lost, goes the other way, from where it was.
//! Only reads do: what changes something at the peer goes one way, so that the old never lands
//! after the new.

use piped_core::ids::PeerId;
use piped_core::limits::{WAY_SILENT, WAYS_BYTES_MIN};
use piped_core::link::LaneClass;
use piped_core::request::Class;
use piped_core::units::Nanos;
use piped_report::tally::Operation;

use crate::shard::Shard;
use crate::shard::clients::Place;
use crate::shard::connections::{LaneState, lane_class};
use crate::shard::driver::Direction;
use crate::shard::keys::{LaneKey, TransferKey};
use crate::shard::peers::{Choice, Peer, Taken, Way};
use crate::shard::requests::{Body, RemoteBody, RemoteOp, Transfer, VectorBody, Waiter};

impl Shard {
    /// Which lanes a request may take, the better one first. Messages must keep their order, so
    /// they are asked for on one.
    fn lanes_of(&self, transfer: &Transfer, body: &RemoteBody) -> [Option<LaneClass>; 2] {
        let first = match (body.op, body.way) {
            (RemoteOp::Send, _) => LaneClass::Latency,
            (_, Some(_)) => LaneClass::Bulk,
            (_, None) => lane_class(transfer.class, transfer.length),
        };
        let has_ways = self.peers.get(body.peer).is_some_and(Peer::has_ways);
        let second = (has_ways && body.op == RemoteOp::Read).then_some(LaneClass::Second);
        match body.way {
            Some(Way::Second) if second.is_some() => [second, Some(first)],
            _ => [Some(first), second],
        }
    }

    /// The lane that a request takes, if one that it may take is up.
    pub(in crate::shard) fn lane_for(
        &self,
        transfer: &Transfer,
        body: &RemoteBody,
    ) -> Option<LaneKey> {
        let state = self.peers.get(body.peer)?;
        let mut lanes = self.lanes_of(transfer, body).into_iter().flatten();
        lanes.find_map(|class| self.lane_up_of(state, class))
    }

    pub(in crate::shard) fn lane_up_of(&self, peer: &Peer, class: LaneClass) -> Option<LaneKey> {
        let is_up =
            |&lane: &LaneKey| self.lanes.get(lane).is_some_and(|lane| lane.state == LaneState::Up);
        peer.lane(class).filter(is_up)
    }

    /// Whether the lanes that a transfer may take were lost or refused, and none is back. The
    /// second one is dialled beside the first only, so nobody waits for it.
    pub(in crate::shard) fn peer_is_lost(&self, key: TransferKey) -> bool {
        let Some(transfer) = self.transfers.get(key) else { return false };
        let Body::Remote(body) = &transfer.body else { return false };
        let Some(state) = self.peers.there(body.peer) else {
            return true;
        };
        let is_lost = |class| {
            let lane = state.lane(class).and_then(|lane| self.lanes.get(lane));
            match lane.map(|lane| lane.state) {
                Some(LaneState::Up) => false,
                Some(LaneState::Closing) => true,
                _ => class == LaneClass::Second || state.has_failed(class),
            }
        };
        self.lanes_of(transfer, body).into_iter().flatten().all(is_lost)
    }

    /// Whether something is heard on a lane where something was asked for. It takes seconds until a
    /// wire on which nothing arrives counts as lost, and a read on both waits for the slower one.
    pub(in crate::shard) fn answers(&self, lane: LaneKey, now: Nanos) -> bool {
        self.lanes.get(lane).is_some_and(|lane| {
            // What was asked first is answered first; before that nothing has to be heard.
            let first = lane.asking().and_then(|asking| asking.outstanding.first());
            let asked = first.and_then(|first| self.transfers.get(*first)?.remote());
            asked.is_none_or(|asked| now.since(lane.heard.max(asked.sent_at)) < WAY_SILENT)
        })
    }

    /// What a client's request becomes: a long read of a peer that is reached on two ways goes one
    /// of them or both.
    pub(in crate::shard) fn by_ways(
        &mut self,
        (operation, class, length): (Operation, Class, u64),
        remote: RemoteBody,
        now: Nanos,
    ) -> Body {
        let body = Body::Remote(remote);
        let is_read = remote.op == RemoteOp::Read && remote.enclosed.is_none();
        if !is_read || length < WAYS_BYTES_MIN || lane_class(class, length) != LaneClass::Bulk {
            return body;
        }
        let Some(state) = self.peers.get(remote.peer) else { return body };
        let answers = |class| self.lane_up_of(state, class).is_some_and(|it| self.answers(it, now));
        let [first, second] = [LaneClass::Bulk, LaneClass::Second].map(answers);
        let may_split = self.transfers.room() > 1;
        let Some(ways) = self.peers.get_mut(remote.peer).and_then(Peer::ways_mut) else {
            return body;
        };
        let choice = match (first, second) {
            (true, true) if may_split => ways.choose(operation, remote.offset, length),
            (false, true) => Choice::Whole(Way::Second),
            _ => Choice::Whole(Way::Alone),
        };
        match choice {
            Choice::Split(cut) => {
                let place = Place::Remote(remote.peer, remote.handle);
                let (ends, range) = ((place, Direction::Read), (remote.offset, length));
                let vector = VectorBody::by_ways(ends, range, remote.memory, cut);
                Body::Vector(self.bodies.keep_vector(vector))
            }
            Choice::Whole(way) => Body::Remote(RemoteBody { way: Some(way), ..remote }),
        }
    }

    /// A read, or a part of one, ended well: what its way took.
    pub(in crate::shard) fn note_way(&mut self, key: TransferKey, now: Nanos) {
        let Some(lane) = self.remote_lane(key).and_then(|lane| self.lanes.get(lane)) else {
            return;
        };
        let only = lane.asking().is_none_or(|asking| asking.outstanding.len() <= 1);
        let Some((peer, taken)) = self.taken(key, lane.class) else { return };
        if let Some(ways) = self.peers.get_mut(peer).and_then(Peer::ways_mut) {
            ways.note(if only { taken } else { taken.in_company() }, now);
        }
    }

    /// A read, or a part of one, was given up, or its lane was lost: its way takes at least so
    /// long.
    pub(in crate::shard) fn note_way_unfinished(
        &mut self,
        key: TransferKey,
        class: LaneClass,
        now: Nanos,
    ) {
        let Some((peer, taken)) = self.taken(key, class) else { return };
        if let Some(ways) = self.peers.get_mut(peer).and_then(Peer::ways_mut) {
            ways.note_unfinished(taken, now);
        }
    }

    /// The lane that a request to a peer went out on.
    pub(in crate::shard) fn remote_lane(&self, key: TransferKey) -> Option<LaneKey> {
        self.transfers.get(key)?.remote()?.lane
    }

    /// What a transfer took of its way; none if it took a lane of the other one, or more than one.
    fn taken(&self, key: TransferKey, class: LaneClass) -> Option<(PeerId, Taken)> {
        let transfer = self.transfers.get(key)?;
        let &RemoteBody { peer, way, sent_at, alone, .. } = transfer.remote()?;
        let way = way?;
        let is_its = (class == LaneClass::Second) == (way == Way::Second);
        if !is_its || transfer.attempts.is_repeated() {
            return None;
        }
        let whole = match transfer.waiter {
            Waiter::Vector { parent, .. } => self.transfers.get(parent)?.length,
            _ => transfer.length,
        };
        let bytes = (whole, transfer.length);
        Some((peer, Taken::new((transfer.kind, way), bytes, (sent_at, alone))))
    }
}
