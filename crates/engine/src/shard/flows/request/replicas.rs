//! A read of a file that several nodes have: each is asked for the share that it brings as soon as
//! the others do theirs.
//!
//! Such a read is a vectored one whose pieces are reads of their own, each by the handle of its
//! replica, with its own plan. A piece that fails, is too slow, or waits for a connection that is
//! lost goes on at another replica, from what has landed; the read fails when nobody is left. Of
//! what is not divided (calls, tables of pieces) one replica is asked.

use piped_core::access::Access;
use piped_core::ids::{HandleId, SessionId};
use piped_core::io::Io;
use piped_core::limits::REPLICA_PATIENCE;
use piped_core::request::{Class, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::tally::RetryReason;

use crate::command::Target;
use crate::shard::Shard;
use crate::shard::arena::Memory;
use crate::shard::clients::{Brought, HandleKind, May, Place, Replicas};
use crate::shard::connections::lane_class;
use crate::shard::driver::Direction;
use crate::shard::flows::request::resolve::body_for;
use crate::shard::keys::TransferKey;
use crate::shard::requests::{Body, By, Part, VectorBody, Waiter};

/// A replica is too slow if it takes so many times what is expected, and [`REPLICA_PATIENCE`].
const LATE: f64 = 8.0;

impl Shard {
    /// Makes one handle of those of a session that are replicas of a file of this length.
    pub(in crate::shard) fn join_handles(
        &mut self,
        (session, id): (SessionId, HandleId),
        members: &[HandleId],
        length: u64,
    ) {
        let replicas = Replicas::new(session, length, members);
        self.handles.add(session, id, HandleKind::Replicas(Box::new(replicas)));
    }

    /// The handle of replicas is closed: so are those of the replicas.
    pub(in crate::shard) fn release_replicas<I: Io>(&mut self, replicas: &Replicas, io: &mut I) {
        for member in replicas.handles() {
            self.close_handle(replicas.session(), member, io);
        }
    }

    /// How long a file is that can be read by a handle.
    fn length_of(&self, session: SessionId, handle: HandleId) -> Option<u64> {
        match self.handles.place(session, handle, Access::READ).ok()?.0 {
            Place::Local(Target::File(file)) => Some(file.length),
            Place::Remote(_, handle) => Some(self.handles.remote(session, handle)?.length),
            Place::Local(_) | Place::Replicas(_) => None,
        }
    }

    /// The replicas that a read may ask.
    fn may_ask_of(
        &self,
        session: SessionId,
        replicas: &Replicas,
        (class, length): (Class, u64),
        now: Nanos,
    ) -> May {
        let lane = lane_class(class, length);
        let is_up = |handle: HandleId| {
            self.handles.remote(session, handle).is_none_or(|remote| {
                let peer = self.peers.get(remote.peer);
                let up = peer.and_then(|peer| self.lane_up_of(peer, lane));
                up.is_some_and(|lane| self.answers(lane, now))
            })
        };
        let (mut up, mut open) = (0, 0);
        for (at, handle) in replicas.handles().enumerate() {
            if self.length_of(session, handle) == Some(replicas.length()) {
                open |= 1 << at;
                up |= u8::from(is_up(handle)) << at;
            }
        }
        May::new((up, open), now)
    }

    /// The verb by the handle of one replica, if it is none that is divided.
    pub(in crate::shard) fn by_one_replica(
        &mut self,
        session: SessionId,
        verb: Verb,
        class: Class,
        now: Nanos,
    ) -> Verb {
        match verb {
            Verb::Read { handle, offset, buffer, wanted } if wanted > 0 => {
                let handle = self.replica_for((session, handle), (class, buffer.length), now);
                Verb::Read { handle, offset, buffer, wanted }
            }
            Verb::Vector { handle, reads, buffers, table, bytes } => {
                let handle = self.replica_for((session, handle), (class, bytes), now);
                Verb::Vector { handle, reads, buffers, table, bytes }
            }
            Verb::Call { handle, buffer, call_bytes } => {
                let handle = self.replica_of_calls((session, handle), class, now);
                Verb::Call { handle, buffer, call_bytes }
            }
            Verb::Flush { handle } => {
                Verb::Flush { handle: self.replica_of_calls((session, handle), class, now) }
            }
            Verb::Sync { handle } => {
                Verb::Sync { handle: self.replica_of_calls((session, handle), class, now) }
            }
            verb => verb,
        }
    }

    /// The handle of the replica that has so many bytes first; any other handle is itself.
    fn replica_for(
        &self,
        (session, handle): (SessionId, HandleId),
        ask: (Class, u64),
        now: Nanos,
    ) -> HandleId {
        let Some(replicas) = self.handles.replicas(session, handle) else { return handle };
        let may = self.may_ask_of(session, replicas, ask, now);
        let first = replicas.one(ask.1, may).unwrap_or_default();
        replicas.handle(first).unwrap_or(handle)
    }

    /// The handle of the replica that calls are made of; any other handle is itself.
    fn replica_of_calls(
        &mut self,
        (session, handle): (SessionId, HandleId),
        class: Class,
        now: Nanos,
    ) -> HandleId {
        let Some(replicas) = self.handles.replicas(session, handle) else { return handle };
        let may = self.may_ask_of(session, replicas, (class, 0), now);
        let replicas = self.handles.replicas_mut(session, handle);
        replicas.and_then(|it| it.called(may)).unwrap_or(handle)
    }

    /// What the read of a range becomes, of a file that a handle's replicas have.
    pub(in crate::shard) fn by_replicas(
        &mut self,
        (session, handle): (SessionId, HandleId),
        range: (u64, u64),
        (class, memory): (Class, Memory),
        now: Nanos,
    ) -> Result<Body, Status> {
        let replicas = self.handles.replicas(session, handle).ok_or(Status::BadHandle)?;
        let may = self.may_ask_of(session, replicas, (class, range.1), now);
        let replicas = self.handles.replicas_mut(session, handle).ok_or(Status::BadHandle)?;
        let shares = replicas.choose(range, may);
        let vector = VectorBody::replicated(handle, range, memory, &shares);
        Ok(Body::Vector(self.bodies.keep_vector(vector)))
    }

    /// Asks a replica for the next piece of a read. `Ok(false)`: there is no room for it.
    pub(in crate::shard) fn start_share<I: Io>(
        &mut self,
        key: TransferKey,
        index: usize,
        io: &mut I,
    ) -> Result<bool, Status> {
        if self.transfers.room() == 0 {
            return Ok(false);
        }
        let Some((piece, part, memory)) = self.next_piece(key, io)? else { return Ok(true) };
        let Some(vector) = self.vector_mut(key) else { return Ok(true) };
        let Place::Replicas(handle) = vector.end() else { return Ok(true) };
        let member = vector.led().and_then(|led| led.member_at(part.start())).unwrap_or_default();
        let part = part.asked_of(By::new(member, io.now()));
        let Some(session) = self.transfers.get(key).map(|it| it.session) else { return Ok(true) };
        let replicas = self.handles.replicas(session, handle).ok_or(Status::Gone)?;
        let replica = replicas.handle(member).ok_or(Status::Gone)?;
        let place = self.handles.place(session, replica, Access::READ);
        let body = place.and_then(|(place, _)| {
            body_for(place, Direction::Read, false, piece.offset, piece.length.into(), memory)
        });
        let body = match body {
            Ok(body) => body,
            Err(status) if self.goes_on(key, &part, status, io.now()) => return Ok(true),
            Err(status) => return Err(status),
        };
        let until = self.patience((key, handle), (member, part.length().into()), io.now());
        if let Some(replicas) = self.handles.replicas_mut(session, handle) {
            replicas.begin(member, piece.length.into());
        }
        Ok(self.start_part(key, index, part, (body, Some(replica), until), io))
    }

    /// When it is looked whether another replica is to bring what this one has not: much later
    /// than it was expected.
    fn patience(
        &self,
        (key, handle): (TransferKey, HandleId),
        (member, bytes): (u8, u64),
        now: Nanos,
    ) -> Option<Nanos> {
        let transfer = self.transfers.get(key)?;
        let replicas = self.handles.replicas(transfer.session, handle)?;
        let expected = replicas.expected(member, transfer.length, bytes);
        Some(now + REPLICA_PATIENCE + Nanos::from_seconds(LATE * expected))
    }

    /// A part has taken much longer than was expected, and its request has time left. `true`: it is
    /// waited for, because nobody else would begin with it now.
    pub(in crate::shard) fn is_waited_for(&mut self, key: TransferKey, now: Nanos) -> bool {
        let Some(deadline) = self.transfers.get(key).map(|it| it.deadline) else { return false };
        let waits = now < deadline && !self.may_go_elsewhere(key, now);
        if waits {
            self.transfers.look_at(key, (now + REPLICA_PATIENCE).min(deadline));
        }
        waits
    }

    /// Whether another replica would begin now with what one has not brought of a part.
    pub(in crate::shard) fn may_go_elsewhere(&mut self, key: TransferKey, now: Nanos) -> bool {
        let waiter = self.transfers.get(key).map(|it| it.waiter);
        let Some(Waiter::Vector { parent, part }) = waiter else { return false };
        let by = self.vector_mut(parent).and_then(|vector| vector.part(part)?.by());
        by.is_some_and(|by| self.next_replica(parent, by.member(), now, May::at_once).is_some())
    }

    /// Another replica for a piece that one has not brought, of those that may be asked.
    fn next_replica(
        &self,
        key: TransferKey,
        member: u8,
        now: Nanos,
        of: impl Fn(May) -> May,
    ) -> Option<u8> {
        let transfer = self.transfers.get(key)?;
        let Body::Vector(vector) = transfer.body else { return None };
        let vector = &self.bodies[vector];
        let (Place::Replicas(handle), Some(led)) = (vector.end(), vector.led()) else {
            return None;
        };
        let replicas = self.handles.replicas(transfer.session, handle)?;
        let ask = (transfer.class, transfer.length);
        let may = self.may_ask_of(transfer.session, replicas, ask, now);
        let others = of(may.only(!led.failed() & !(1 << member)));
        led.may_move().then(|| replicas.one(transfer.length, others)).flatten()
    }

    /// A part of a read that a replica was asked for is over: how it ended, and with how many
    /// bytes. None if what is left of it goes on at another replica.
    pub(in crate::shard) fn end_share(
        &mut self,
        key: TransferKey,
        part: &Part,
        (status, bytes): (Status, u64),
        now: Nanos,
    ) -> Option<(Status, u64)> {
        let (Some(by), Some(transfer)) = (part.by(), self.transfers.get(key)) else {
            return Some((status, bytes));
        };
        let (session, whole, ends) = (transfer.session, transfer.length, transfer.status.is_some());
        let Body::Vector(vector) = transfer.body else { return Some((status, bytes)) };
        let vector = &self.bodies[vector];
        let Place::Replicas(handle) = vector.end() else { return Some((status, bytes)) };
        let Some(replicas) = self.handles.replicas_mut(session, handle) else {
            return Some((status, bytes));
        };
        let from = vector.offset() + part.start();
        let there = replicas.length().saturating_sub(from).min(part.length().into());
        let (landed, end) = part.rest();
        let (status, bytes) = match status {
            // One that has less than all had when they were opened is a replica no more.
            Status::Ok if bytes < there => (Status::Corrupt, bytes),
            Status::Ok => (status, bytes),
            // However it ended, all of it is here.
            _ if landed == end => (Status::Ok, part.length().into()),
            // Nobody here has said so: a peer has.
            Status::Cancelled | Status::Closed if !ends => (Status::Io, bytes),
            _ => (status, bytes),
        };
        let (asked, times) = (part.length().into(), (by.begun(), now));
        match (status == Status::Ok, ends) {
            // It ended because the read did.
            (false, true) => replicas.give_up(by.member(), asked),
            (is_done, _) => {
                replicas.end(Brought::new(by.member(), (whole, asked), times, is_done));
            }
        }
        let goes_on = status != Status::Ok && !ends && self.goes_on(key, part, status, now);
        (!goes_on).then_some((status, bytes))
    }

    /// Has what is left of a part go on at another replica, if there is one.
    fn goes_on(&mut self, key: TransferKey, part: &Part, status: Status, now: Nanos) -> bool {
        let Some(by) = part.by() else { return false };
        let Some(led) = self.vector_mut(key).and_then(VectorBody::led_mut) else { return false };
        led.note_failed(by.member(), status);
        // One that has to be waited for is better than none.
        let Some(next) = self.next_replica(key, by.member(), now, |may| may) else { return false };
        if let Some(vector) = self.vector_mut(key) {
            vector.ask_again(part, next);
        }
        self.cx.watch.note_retry(RetryReason::Replica);
        true
    }
}
