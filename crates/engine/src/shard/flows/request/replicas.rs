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
use piped_core::limits::{REPLICA_PATIENCE, REPLICAS_MAX};
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
        for member in replicas.handles() {
            self.handles.enter(session, member);
        }
        self.handles.add(session, id, HandleKind::Replicas(Box::new(replicas)));
    }

    /// The handle of replicas is closed: so are those of the replicas.
    pub(in crate::shard) fn release_replicas<I: Io>(&mut self, replicas: &Replicas, io: &mut I) {
        for member in replicas.handles() {
            self.leave_handle(replicas.session(), member, io);
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

    /// The replicas that would begin with a read now, a bit for each.
    fn replicas_up(
        &self,
        session: SessionId,
        replicas: &Replicas,
        (class, length): (Class, u64),
        now: Nanos,
    ) -> u8 {
        let lane = lane_class(class, length);
        let is_up = |handle: HandleId| {
            let is_same = self.length_of(session, handle) == Some(replicas.length());
            is_same
                && self.handles.remote(session, handle).is_none_or(|remote| {
                    let peer = self.peers.get(remote.peer);
                    let up = peer.and_then(|peer| self.lane_up_of(peer, lane));
                    up.is_some_and(|lane| self.answers(lane, now))
                })
        };
        let up = replicas.handles().enumerate().filter(|(_, handle)| is_up(*handle));
        up.fold(0, |mask, (at, _)| mask | 1 << at)
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
        (class, length): (Class, u64),
        now: Nanos,
    ) -> HandleId {
        let Some(replicas) = self.handles.replicas(session, handle) else { return handle };
        let up = self.replicas_up(session, replicas, (class, length), now);
        let first = replicas.one(length, up, now).unwrap_or_default();
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
        let up = self.replicas_up(session, replicas, (class, 0), now);
        let open = replicas.handles().map(|it| self.length_of(session, it).map(|_| it));
        let open: [Option<HandleId>; REPLICAS_MAX] = first_of(open.flatten());
        let replicas = self.handles.replicas_mut(session, handle);
        let called = replicas.and_then(|it| it.called(up, now, |it| open.contains(&Some(it))));
        called.unwrap_or(handle)
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
        let ask = self.replicas_up(session, replicas, (class, range.1), now);
        let split = self.transfers.room() as usize > REPLICAS_MAX;
        let replicas = self.handles.replicas_mut(session, handle).ok_or(Status::BadHandle)?;
        let shares = replicas.choose(range, May::new(ask, split, now));
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
        let Some(row) = self.next_row(key, io).transpose()? else { return Ok(true) };
        let Some(vector) = self.vector_mut(key) else { return Ok(true) };
        let Place::Replicas(handle) = vector.end() else { return Ok(true) };
        let (piece, start) = vector.take_piece(row);
        let memory = vector.buffers().at(piece.at.into()).0;
        let member = vector.led().and_then(|led| led.member_at(start)).unwrap_or_default();
        let part = Part::new(start, piece.length).asked_of(By::new(member, io.now()));
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

    /// When another replica is asked for a piece that this one has not brought, if there is one:
    /// much later than it was expected.
    fn patience(
        &self,
        (key, handle): (TransferKey, HandleId),
        (member, bytes): (u8, u64),
        now: Nanos,
    ) -> Option<Nanos> {
        self.next_replica(key, member, now)?;
        let transfer = self.transfers.get(key)?;
        let replicas = self.handles.replicas(transfer.session, handle)?;
        let expected = replicas.expected(member, transfer.length, bytes);
        Some(now + REPLICA_PATIENCE + Nanos::from_seconds(LATE * expected))
    }

    /// Whether a piece that waits for a connection is better asked of another replica.
    pub(in crate::shard) fn may_go_elsewhere(&mut self, key: TransferKey, now: Nanos) -> bool {
        let waiter = self.transfers.get(key).map(|it| it.waiter);
        let Some(Waiter::Vector { parent, part }) = waiter else { return false };
        let by = self.vector_mut(parent).and_then(|vector| vector.part(part)?.by());
        by.is_some_and(|by| self.next_replica(parent, by.member(), now).is_some())
    }

    /// Another replica that answers, for a piece that one has not brought.
    fn next_replica(&self, key: TransferKey, member: u8, now: Nanos) -> Option<u8> {
        let transfer = self.transfers.get(key)?;
        let Body::Vector(vector) = transfer.body else { return None };
        let vector = &self.bodies[vector];
        let (Place::Replicas(handle), Some(led)) = (vector.end(), vector.led_by()) else {
            return None;
        };
        let replicas = self.handles.replicas(transfer.session, handle)?;
        let ask = (transfer.class, transfer.length);
        let up = self.replicas_up(transfer.session, replicas, ask, now);
        let others = up & !led.failed() & !(1 << member);
        led.may_move().then(|| replicas.one(transfer.length, others, now)).flatten()
    }

    /// A part of a read that a replica was asked for is over: how long it took, and whether what is
    /// left of it goes on at another one. `true`: it does.
    pub(in crate::shard) fn end_share(
        &mut self,
        key: TransferKey,
        part: &Part,
        (status, bytes): (Status, u64),
        now: Nanos,
    ) -> bool {
        let (Some(by), Some(transfer)) = (part.by(), self.transfers.get(key)) else {
            return false;
        };
        let (session, whole, ends) = (transfer.session, transfer.length, transfer.status.is_some());
        let Body::Vector(vector) = transfer.body else { return false };
        let vector = &self.bodies[vector];
        let Place::Replicas(handle) = vector.end() else { return false };
        let Some(replicas) = self.handles.replicas_mut(session, handle) else { return false };
        let from = vector.offset() + part.start();
        let there = replicas.length().saturating_sub(from).min(part.length().into());
        // One that has less than all had when they were opened is a replica no more.
        let is_cut = status == Status::Ok && bytes < there;
        let status = if is_cut { Status::Corrupt } else { status };
        let is_done = status == Status::Ok;
        let says_something = is_done || !matches!(status, Status::Cancelled | Status::Closed);
        let asked = part.length().into();
        if says_something {
            let times = (by.begun(), now);
            replicas.end(Brought::new(by.member(), (whole, asked), times, is_done));
        } else {
            replicas.give_up(by.member(), asked);
        }
        !is_done && !ends && says_something && self.goes_on(key, part, status, now)
    }

    /// Has what is left of a part go on at another replica, if there is one.
    fn goes_on(&mut self, key: TransferKey, part: &Part, status: Status, now: Nanos) -> bool {
        let Some(by) = part.by() else { return false };
        // What vanished here is missing to all of them.
        if matches!(status, Status::BadBuffer | Status::Cancelled | Status::Closed) {
            return false;
        }
        let Some(led) = self.vector_mut(key).and_then(VectorBody::led) else { return false };
        led.note_failed(by.member(), status);
        let Some(next) = self.next_replica(key, by.member(), now) else { return false };
        if let Some(vector) = self.vector_mut(key) {
            vector.ask_again(part, next);
        }
        self.cx.watch.note_retry(RetryReason::Replica);
        true
    }
}

/// As many as there is room for.
fn first_of(handles: impl Iterator<Item = HandleId>) -> [Option<HandleId>; REPLICAS_MAX] {
    let mut first = [None; REPLICAS_MAX];
    first.iter_mut().zip(handles).for_each(|(place, handle)| *place = Some(handle));
    first
}
