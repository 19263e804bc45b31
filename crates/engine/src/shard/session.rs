//! Sessions and handles, and the step from a client's [`Request`] to a checked transfer.

use piped_report::tally::{HeldBy, Operation};

use piped_core::access::{Access, OpenKind};
use piped_core::ids::{HandleId, PeerId, RegionId, SegmentId, SessionId};
use piped_core::io::{Io, Resource};
use piped_core::limits;
use piped_core::pieces::Row;
use piped_core::request::{
    ArenaBuffer, BufferState, Completion, Origin, Request, Table, Update, Verb,
};
use piped_core::status::Status;
use piped_core::units::Nanos;

use super::arena::Memory;
use super::clients::{HandleKind, Place, weight};
use super::copy::CopyBody;
use super::cx::Cx;
use super::driver::Direction;
use super::fair::Party;
use super::keys::{Subject, TransferKey};
use super::mail::Outgoing;
use super::notifications::Wait;
use super::once::{Once, What};
use super::receive::{ReceiveBody, SendBody};
use super::requests::{Body, FileBody, MemoryBody, RemoteBody, RemoteOp, Start, Transfer, Waiter};
use super::sched::Work;
use super::vector::VectorBody;
use super::{Due, Shard, facts};
use crate::command::{ChannelTarget, Event, Output, RegionTarget, Target};

/// What a verb resolves to: what it is, the handles it uses, its length and its work.
type Resolved = (Operation, [Option<HandleId>; 2], u64, Body);

impl Shard {
    /// Ends all that a session has under way; its memory goes back once the kernel is done with it.
    pub(super) fn close_session<I: Io>(&mut self, session: SessionId, io: &mut I) {
        let Some(segments) = self.clients.close(session) else { return };
        let mut from = 0;
        while let Some(key) = self.transfers.next_from(&mut from, |t| t.session == session) {
            if let Some(transfer) = self.transfers.get_mut(key) {
                if matches!(transfer.waiter, Waiter::Client(_)) {
                    transfer.waiter = Waiter::Nobody;
                }
                let Cx { limits, sched, .. } = &mut self.cx;
                self.clients.leave_limits(key, limits, sched);
                self.give_up(key, Status::Closed, io);
            }
        }
        for handle in self.handles.of(session) {
            self.close_handle(session, handle, io);
        }
        self.end_region_users(|region| segments.contains(&region.segment), io);
        self.drain_session(session, io);
    }

    /// Releases a closing session's memory if nothing uses it any more.
    pub(super) fn drain_session<I: Io>(&mut self, session: SessionId, io: &mut I) {
        let is_served = |segment: SegmentId| {
            self.serves.iter().any(|(_, serve)| serve.region_segment() == Some(segment))
        };
        let Some(segments) = self.clients.drain(session, is_served) else { return };
        self.messages.forget(session);
        for segment in segments {
            io.release(Resource::Segment(segment));
        }
        self.cx.event(Event::SessionDrained { session });
    }

    /// Drains every closing session that waited for a peer's request to end.
    pub(super) fn drain_sessions<I: Io>(&mut self, io: &mut I) {
        for session in self.clients.closing() {
            self.drain_session(session, io);
        }
    }

    pub(super) fn install_handle(&mut self, session: SessionId, id: HandleId, target: Target) {
        if let Target::File(file) = target {
            self.cx.driver.open_file(&file);
        }
        if let Target::Channel(ChannelTarget { channel, receives: true }) = target {
            self.messages.open(channel, session);
        }
        if let Target::Region(region) = target
            && self.clients.owns(session, region.segment)
        {
            self.notifications.open(region.region);
        }
        self.handles.add(session, id, HandleKind::Local(target));
    }

    /// Running requests end first.
    pub(super) fn close_handle<I: Io>(&mut self, session: SessionId, id: HandleId, io: &mut I) {
        if let Some(kind) = self.handles.close(session, id) {
            self.release_kind(kind, io);
        }
    }

    pub(super) fn release_kind<I: Io>(&mut self, kind: HandleKind, io: &mut I) {
        match kind {
            HandleKind::Local(target) => self.release_target(target, io),
            HandleKind::Remote(remote) => self.close_remote(*remote),
            HandleKind::Ended(kind) => self.release_kind(*kind, io),
            HandleKind::Gone => {}
        }
    }

    pub(super) fn release_target<I: Io>(&mut self, target: Target, io: &mut I) {
        if let Target::File(file) = target {
            self.cx.driver.close_file(file.buffered);
            io.release(Resource::File(file.buffered));
            if let Some((direct, _)) = file.direct {
                io.release(Resource::File(direct));
            }
        }
        if let Target::Channel(ChannelTarget { channel, receives: true }) = target {
            self.close_channel(channel, io);
        }
    }

    /// A transfer that used the handle is over.
    pub(super) fn leave_handle<I: Io>(&mut self, session: SessionId, id: HandleId, io: &mut I) {
        if let Some(kind) = self.handles.leave(session, id) {
            self.release_kind(kind, io);
        }
    }

    /// Marks every handle of a region, and ends the requests that use it.
    pub(super) fn revoke_region<I: Io>(&mut self, region: RegionId, io: &mut I) {
        self.end_region_users(|r| r.region == region, io);
        for key in self.notifications.close(region) {
            self.decide(key, Status::Gone, io);
        }
        if !self.revoked.contains(&region) {
            self.revoked.push(region);
        }
        self.drain_region(region);
    }

    /// Says that a revoked region is in use no more, once that is so.
    pub(super) fn drain_region(&mut self, region: RegionId) {
        let Some(at) = self.revoked.iter().position(|&revoked| revoked == region) else { return };
        let is_it = |target: RegionTarget| target.region == region;
        // Opens that were under way when it was revoked count; they are revoked in their turn.
        let in_use = self.transfers.iter().any(|(_, t)| t.body.regions(&self.bodies).any(is_it))
            || self.serves.iter().any(|(_, serve)| serve.region().is_some_and(is_it))
            || self.links.has_region(is_it)
            || self.handles.any(|target| matches!(target, Target::Region(r) if is_it(r)));
        if !in_use {
            self.revoked.swap_remove(at);
            self.cx.event(Event::RegionDrained { region });
        }
    }

    /// Takes a request from a client's ring. Its end comes out of [`Shard::poll_output`].
    pub fn submit<I: Io>(&mut self, origin: Origin, request: Request, now: Nanos, io: &mut I) {
        self.due = Due::Now;
        self.cx.watch.counters.requests += 1;
        let done = match request.verb {
            Verb::Nop => Err(Status::Ok),
            Verb::Unsupported => Err(Status::Unsupported),
            Verb::Cancel { target } => Err(self.cancel_by_client(origin, target, io)),
            _ => self.admit(origin, request, now),
        };
        match done {
            // It does nothing until there is a message, which must not wait for it to end.
            Ok((transfer, _))
                if matches!(request.verb, Verb::Receive { .. } | Verb::Wait { .. }) =>
            {
                self.cx.sched.make_ready(Work::Transfer(transfer));
            }
            Ok((transfer, bytes)) => {
                if let Some(node) = self.ordered(origin.session, request.verb) {
                    self.clients.enter_order(transfer, (origin.queue, node));
                }
                if let Some(outbox) = self.outbox(transfer) {
                    outbox.enter(transfer);
                }
                if let Some(known) = self.transfers.get(transfer) {
                    let spots =
                        facts::spots_of_transfer(&known.body, &self.bodies, &self.cx.driver);
                    let party = Party::Client(origin.session);
                    self.cx.watch.enter(Subject::Transfer(transfer), spots, party);
                }
                let Cx { limits, sched, .. } = &mut self.cx;
                self.clients.ask(transfer, bytes, limits, sched);
                if !self.clients.waits_for_limit(transfer) {
                    return;
                }
                if request.no_wait {
                    return self.decide(transfer, Status::WouldBlock, io);
                }
                self.cx.waited_for_limit += 1;
                self.cx.watch.hold(Work::Transfer(transfer), HeldBy::Limit);
            }
            Err(status) => self.complete_at_once(origin, status),
        }
    }

    fn complete_at_once(&mut self, origin: Origin, status: Status) {
        self.cx.watch.end_at_once(status);
        let buffer = BufferState::Returned;
        let finished = Completion::Finished { origin, status, bytes: 0, value: 0, buffer };
        self.cx.outputs.push_back(Output::Completion(finished));
    }

    fn cancel_by_client<I: Io>(&mut self, origin: Origin, target: u64, io: &mut I) -> Status {
        let wanted = |t: &Transfer| {
            matches!(t.waiter, Waiter::Client(o)
                if o.session == origin.session && o.queue == origin.queue && o.user_data == target)
                && t.status.is_none()
        };
        let Some(key) = self.transfers.next_from(&mut 0, wanted) else { return Status::NotFound };
        self.give_up(key, Status::Cancelled, io);
        Status::Ok
    }

    /// Checks a request against the session and makes its transfer, which counts as so many bytes.
    fn admit(
        &mut self,
        origin: Origin,
        request: Request,
        now: Nanos,
    ) -> Result<(TransferKey, u64), Status> {
        self.clients.may_ask(origin.session)?;
        let (kind, handles, length, body) =
            self.resolve(origin.session, request.verb, request.no_wait)?;
        let allowed = request.deadline.unwrap_or(self.cx.config.deadline_default);
        let allowed = allowed.min(limits::DEADLINE_MAX);
        let start = Start {
            waiter: Waiter::Client(origin),
            session: origin.session,
            handles,
            kind,
            class: request.class,
            deadline: now + allowed,
            length,
            body,
        };
        let bytes = weight(length, kind == Operation::Copy);
        let key = self.start_transfer(start, now).ok_or(Status::WouldBlock)?;
        let fence = request.fence || matches!(request.verb, Verb::Flush { .. });
        if let Some(transfer) = self.transfers.get_mut(key).filter(|_| fence) {
            transfer.fence = true;
        }
        Ok((key, bytes))
    }

    /// The node of a request that has its place among others of its queue; `None` inside is this
    /// one. Messages have an order of their own, and a copy belongs to two nodes.
    fn ordered(&self, session: SessionId, verb: Verb) -> Option<Option<PeerId>> {
        let handle = match verb {
            Verb::Read { handle, .. }
            | Verb::Write { handle, .. }
            | Verb::Vector { handle, .. }
            | Verb::Update { handle, .. }
            | Verb::Notify { handle, .. }
            | Verb::Flush { handle } => handle,
            _ => return None,
        };
        Some(self.handles.remote(session, handle).map(|remote| remote.peer))
    }

    /// Receives and waits of a session that have not ended.
    #[must_use]
    pub fn waits_of(&self, session: SessionId) -> u32 {
        self.clients.waits_of(session)
    }

    /// Whether a session may have one more request that waits for others. Places are left for what
    /// they wait for, and for those of others.
    fn may_wait(&self, session: SessionId) -> Result<(), Status> {
        let room = self.clients.waits_of(session) < self.cx.limits.client.requests
            && self.clients.waits() < self.cx.config.transfers_max / 2;
        room.then_some(()).ok_or(Status::WouldBlock)
    }

    /// Whether there is room for one more transfer: then a body of it may be kept.
    fn may_start(&self) -> Result<(), Status> {
        if self.transfers.room() > 0 { Ok(()) } else { Err(Status::WouldBlock) }
    }

    fn resolve(
        &mut self,
        session: SessionId,
        verb: Verb,
        no_wait: bool,
    ) -> Result<Resolved, Status> {
        match verb {
            Verb::Read { handle, offset, buffer, wanted } => {
                let memory = self.clients.memory_of(session, buffer)?;
                let (place, opened) = self.handles.place_of_bytes(session, handle, Access::READ)?;
                if wanted >= buffer.length {
                    return Err(Status::Invalid);
                }
                let mut body =
                    body_for(place, Direction::Read, false, offset, buffer.length, memory)?;
                if wanted > 0 {
                    let range = (offset, buffer.length);
                    self.may_start()?;
                    let vector = VectorBody::wanted_first(place, range, memory, wanted);
                    body = Body::Vector(self.bodies.keep_vector(vector));
                }
                let kind = match opened {
                    OpenKind::Region => Operation::Get,
                    _ => Operation::Read,
                };
                Ok((kind, [Some(handle), None], buffer.length, body))
            }
            Verb::Write { handle, offset, buffer, durable, notify } => {
                let memory = self.clients.memory_of(session, buffer)?;
                let (place, opened) =
                    self.handles.place_of_bytes(session, handle, Access::WRITE)?;
                let mut body =
                    body_for(place, Direction::Write, durable, offset, buffer.length, memory)?;
                let kind = match opened {
                    OpenKind::Region => Operation::Put,
                    _ if notify.is_some() => return Err(Status::Invalid),
                    _ => Operation::Write,
                };
                match (&mut body, notify) {
                    (Body::Memory(body), notify) => body.notify = notify,
                    (Body::Remote(body), Some(id)) => {
                        self.may_start()?;
                        let once = Once::new(What::Notify { id });
                        body.once = Some(self.bodies.keep_once(once));
                    }
                    _ => {}
                }
                Ok((kind, [Some(handle), None], buffer.length, body))
            }
            Verb::Vector { handle, reads, buffer, table, bytes } => {
                let memory = self.clients.memory_of(session, buffer)?;
                let wanted = if reads { Access::READ } else { Access::WRITE };
                let (place, opened) = self.handles.place_of_bytes(session, handle, wanted)?;
                if !(1..=limits::REQUEST_BYTES_MAX).contains(&bytes)
                    || !(1..=limits::TABLE_ROWS_MAX).contains(&table.rows)
                {
                    return Err(Status::Invalid);
                }
                let length = u64::from(table.rows) * Row::BYTES as u64;
                let Table { segment, offset, rows } = table;
                let at =
                    self.clients.memory_of(session, ArenaBuffer { segment, offset, length })?;
                let direction = if reads { Direction::Read } else { Direction::Write };
                let is_region = opened == OpenKind::Region;
                self.may_start()?;
                let body = Body::Vector(self.bodies.keep_vector(VectorBody::new(
                    (place, is_region),
                    direction,
                    (memory, buffer.length),
                    (at.segment, at.offset, rows),
                )));
                let kind = Self::vector_kind(direction, is_region);
                Ok((kind, [Some(handle), None], bytes, body))
            }
            Verb::Update { handle, offset, update } => {
                // A peer would take another one for a fault of this node's.
                if !offset.is_multiple_of(Update::BYTES) || offset > u64::MAX - Update::BYTES {
                    return Err(Status::Invalid);
                }
                let what = What::Word { offset, update };
                let body = match self.handles.place_of_region(session, handle, ATOMIC)? {
                    Place::Local(Target::Region(region)) => Body::Update { region, offset, update },
                    place => self.once_body(place, what)?,
                };
                Ok((Operation::Atomic, [Some(handle), None], 0, body))
            }
            Verb::Notify { handle, id } => {
                let body = match self.handles.place_of_region(session, handle, Access::WRITE)? {
                    Place::Local(Target::Region(region)) => {
                        let (direction, memory) = (Direction::Write, Memory::NONE);
                        let notify = Some(id);
                        let (offset, next, waits) = (0, 0, false);
                        Body::Memory(MemoryBody {
                            region,
                            direction,
                            offset,
                            memory,
                            next,
                            waits,
                            notify,
                        })
                    }
                    place => self.once_body(place, What::Notify { id })?,
                };
                Ok((Operation::Notify, [Some(handle), None], 0, body))
            }
            Verb::Wait { handle, id, count } => {
                self.may_wait(session)?;
                let place = self.handles.place_of_region(session, handle, Access::NONE)?;
                let Place::Local(Target::Region(target)) = place else {
                    return Err(Status::Invalid);
                };
                if count == 0 {
                    return Err(Status::Invalid);
                }
                if !self.clients.owns(session, target.segment) {
                    return Err(Status::Denied);
                }
                let body = Body::Wait(Wait::new(target.region, id, count, no_wait));
                Ok((Operation::Wait, [Some(handle), None], 0, body))
            }
            Verb::Flush { handle } => {
                self.handles.place_of_bytes(session, handle, Access::NONE)?;
                Ok((Operation::Flush, [Some(handle), None], 0, Body::Settled))
            }
            Verb::Sync { handle } => {
                let (place, _) = self.handles.place_of_bytes(session, handle, Access::NONE)?;
                let remote = self.handles.remote(session, handle);
                let unsynced = remote.and_then(|it| it.unsynced).map(|(first, _)| first);
                Ok((Operation::Sync, [Some(handle), None], 0, sync_body(place, unsynced)))
            }
            Verb::Copy { from, from_offset, to, to_offset, length } => {
                let (source, _) = self.handles.place_of_bytes(session, from, Access::READ)?;
                let (sink, _) = self.handles.place_of_bytes(session, to, Access::WRITE)?;
                from_offset.checked_add(length).ok_or(Status::Invalid)?;
                to_offset.checked_add(length).ok_or(Status::Invalid)?;
                self.may_start()?;
                let copy = CopyBody::new((source, from_offset), (sink, to_offset));
                let body = Body::Copy(self.bodies.keep_copy(copy));
                Ok((Operation::Copy, [Some(from), Some(to)], length, body))
            }
            Verb::Send { handle, tag, buffer } => {
                let memory = self.clients.memory_of(session, buffer)?;
                let body = match self.handles.place(session, handle, Access::WRITE)? {
                    (Place::Local(Target::Channel(ChannelTarget { channel, .. })), _) => {
                        Body::Send(SendBody::new(channel, tag, memory, no_wait))
                    }
                    (Place::Remote(peer, handle), OpenKind::Channel) => {
                        let body = RemoteBody::new(peer, handle, RemoteOp::Send, 0, memory);
                        Body::Remote(RemoteBody {
                            message: Some(Outgoing::new(tag, no_wait)),
                            ..body
                        })
                    }
                    _ => return Err(Status::Invalid),
                };
                Ok((Operation::Send, [Some(handle), None], buffer.length, body))
            }
            Verb::Receive { handle, tag, buffer } => {
                self.may_wait(session)?;
                let memory = self.clients.memory_of(session, buffer)?;
                let (Place::Local(Target::Channel(it)), _) =
                    self.handles.place(session, handle, Access::READ)?
                else {
                    return Err(Status::Invalid);
                };
                let body = Body::Receive(ReceiveBody::new(it.channel, tag, memory, no_wait));
                Ok((Operation::Receive, [Some(handle), None], buffer.length, body))
            }
            Verb::Nop | Verb::Cancel { .. } | Verb::Unsupported => Err(Status::Invalid),
        }
    }

    /// The body of what a peer does once.
    fn once_body(&mut self, place: Place, what: What) -> Result<Body, Status> {
        let Place::Remote(peer, handle) = place else { return Err(Status::Invalid) };
        self.may_start()?;
        let body = RemoteBody::new(peer, handle, RemoteOp::Once, 0, Memory::NONE);
        let once = Some(self.bodies.keep_once(Once::new(what)));
        Ok(Body::Remote(RemoteBody { once, ..body }))
    }
}

const ATOMIC: Access = Access { atomic: true, ..Access::NONE };

/// The body of a read or write between a place and memory.
pub(super) fn body_for(
    place: Place,
    direction: Direction,
    durable: bool,
    offset: u64,
    length: u64,
    memory: Memory,
) -> Result<Body, Status> {
    let end = offset.checked_add(length).ok_or(Status::Invalid)?;
    // A signed offset is the kernel's limit.
    if end > i64::MAX as u64 {
        return Err(Status::Invalid);
    }
    Ok(match place {
        Place::Local(Target::File(target)) => {
            Body::File(FileBody::new(target, direction, durable, offset, memory))
        }
        Place::Local(Target::Region(region)) => {
            if end > region.length {
                return Err(Status::Invalid);
            }
            let (next, waits, notify) = (0, false, None);
            Body::Memory(MemoryBody { region, direction, offset, memory, next, waits, notify })
        }
        Place::Local(Target::Channel(_)) => return Err(Status::Invalid),
        Place::Remote(peer, handle) => {
            let op = match direction {
                Direction::Read => RemoteOp::Read,
                Direction::Write => RemoteOp::Write { durable },
            };
            Body::Remote(RemoteBody::new(peer, handle, op, offset, memory))
        }
    })
}

fn sync_body(place: Place, unsynced: Option<u64>) -> Body {
    match place {
        Place::Local(Target::File(target)) => Body::Sync { file: target.buffered, started: false },
        // Memory has no stable storage; what was put is there.
        Place::Local(Target::Region(_) | Target::Channel(_)) => Body::Settled,
        Place::Remote(peer, handle) => {
            let body = RemoteBody::new(peer, handle, RemoteOp::Sync, 0, Memory::NONE);
            Body::Remote(RemoteBody { unsynced, ..body })
        }
    }
}
