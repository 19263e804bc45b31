//! A transfer with two ways: to a peer that is reached on two, divided between them; and from a
//! disk and its page cache.
//!
//! A divided transfer is a vectored one of two pieces, each a transfer of its own with its own
//! plan: it ends when both have, fails with the first that does, and is cancelled with both. A part
//! of a read whose lane is lost is asked for again on the other one, from where it was.

use piped_core::io::Io;
use piped_core::limits::WAYS_BYTES_MIN;
use piped_core::link::LaneClass;
use piped_core::request::Class;
use piped_core::units::Nanos;
use piped_report::tally::Operation;

use crate::command::Target;
use crate::shard::Shard;
use crate::shard::clients::Place;
use crate::shard::connections::{LaneState, lane_class};
use crate::shard::driver::Direction;
use crate::shard::keys::{LaneKey, TransferKey};
use crate::shard::peers::{Choice, Peer, Way};
use crate::shard::requests::{Body, FileBody, RemoteBody, RemoteOp, Transfer, VectorBody, Waiter};

/// Which lanes a request may take, the better one first. Messages must keep their order, so they
/// are asked for on one. A write waits for its own lane: that comes up again when what the peer had
/// of the lane's writes is over, which would else land after newer ones.
pub(in crate::shard) fn lanes_of(
    transfer: &Transfer,
    body: &RemoteBody,
) -> (LaneClass, Option<LaneClass>) {
    let (better, other) = match (body.op, body.way) {
        (RemoteOp::Send, _) => (LaneClass::Latency, None),
        (_, Some(Way::Second)) => (LaneClass::Second, Some(LaneClass::Bulk)),
        (_, Some(Way::Alone | Way::First)) => (LaneClass::Bulk, Some(LaneClass::Second)),
        (_, None) => (lane_class(transfer.class, transfer.length), None),
    };
    (better, other.filter(|_| body.op == RemoteOp::Read))
}

impl Shard {
    /// The lane that a request takes, if one that it may take is up.
    pub(in crate::shard) fn lane_for(
        &self,
        transfer: &Transfer,
        body: &RemoteBody,
    ) -> Option<LaneKey> {
        let state = self.peers.get(body.peer)?;
        let (better, other) = lanes_of(transfer, body);
        let mut lanes = [Some(better), other].into_iter().flatten();
        lanes.find_map(|class| state.lane(class).filter(|&lane| self.is_up(lane)))
    }

    fn is_up(&self, lane: LaneKey) -> bool {
        self.lanes.get(lane).is_some_and(|lane| lane.state == LaneState::Up)
    }

    /// What a client's request becomes: where its peer is reached on two ways, it goes one of them
    /// or both.
    pub(in crate::shard) fn by_ways(
        &mut self,
        (operation, class, length): (Operation, Class, u64),
        remote: RemoteBody,
    ) -> Body {
        let body = Body::Remote(remote);
        let direction = match remote.op {
            RemoteOp::Read => Direction::Read,
            RemoteOp::Write { durable: false } if remote.once.is_none() => Direction::Write,
            _ => return body,
        };
        if length < WAYS_BYTES_MIN || lane_class(class, length) != LaneClass::Bulk {
            return body;
        }
        let Some(state) = self.peers.get(remote.peer) else { return body };
        let is_up = |class| state.lane(class).is_some_and(|lane| self.is_up(lane));
        let (first, second) = (is_up(LaneClass::Bulk), is_up(LaneClass::Second));
        let has_room = self.transfers.room() > 0;
        let ways = self.peers.get_mut(remote.peer).and_then(Peer::ways_mut);
        let choice = match ways {
            Some(ways) if first && second => ways.choose(operation, remote.offset, length),
            // Writes wait for the lane on which those before them may have been.
            Some(_) if second && direction == Direction::Read => Choice::Whole(Way::Second),
            _ => return body,
        };
        match choice {
            Choice::Split(cut) if has_room => {
                let place = Place::Remote(remote.peer, remote.handle);
                let range = (remote.offset, length);
                let vector = VectorBody::by_ways((place, direction), range, remote.memory, cut);
                Body::Vector(self.bodies.keep_vector(vector))
            }
            // It is refused: there are as many as there may be.
            Choice::Split(_) => body,
            Choice::Whole(way) => Body::Remote(RemoteBody { way: Some(way), ..remote }),
        }
    }

    /// What a client's transfer with a file here becomes: a read of which the page cache has one
    /// end is cut there, so that the disk reads the other end while this one is copied.
    pub(in crate::shard) fn beside_cache<I: Io>(
        &mut self,
        file: FileBody,
        length: u64,
        io: &mut I,
    ) -> Body {
        let (target, range) = (file.target(), (file.offset(), length));
        let may_be_cut = file.direction() == Direction::Read
            && length >= WAYS_BYTES_MIN
            && self.transfers.room() > 0
            && self.cx.may_read_cache(&target);
        let border =
            may_be_cut.then(|| self.cx.driver.cache_border(target.buffered, range, io)).flatten();
        let Some(border) = border else { return Body::File(file) };
        let place = Place::Local(Target::File(target));
        let vector = VectorBody::beside_cache(place, range, file.memory(), border);
        Body::Vector(self.bodies.keep_vector(vector))
    }

    /// A transfer with a peer ended well: what its way took.
    pub(in crate::shard) fn note_way(&mut self, key: TransferKey, now: Nanos) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let (operation, length) = (transfer.kind, transfer.length);
        let Body::Remote(body) = transfer.body else { return };
        let RemoteBody { peer, lane, sent_at, alone, .. } = body;
        let Some((way, lane)) = body.way.zip(lane) else { return };
        let Some(lane) = self.lanes.get(lane) else { return };
        let is_its = (lane.class == LaneClass::Second) == (way == Way::Second);
        if !is_its || transfer.attempts.is_repeated() {
            return;
        }
        let whole = match transfer.waiter {
            Waiter::Vector { parent, .. } => self.transfers.get(parent).map(|whole| whole.length),
            _ => Some(length),
        };
        let bytes = (whole.unwrap_or(length), length);
        let alone = alone && lane.asking().is_none_or(|asking| asking.outstanding.len() <= 1);
        if let Some(ways) = self.peers.get_mut(peer).and_then(Peer::ways_mut) {
            ways.note((operation, way), bytes, (sent_at, now), alone);
        }
    }
}
