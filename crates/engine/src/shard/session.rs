//! Sessions and handles, and the step from a client's [`Request`] to a checked transfer.

use std::collections::BTreeMap;

use piped_core::access::{Access, OpenKind};
use piped_core::ids::{ChannelId, HandleId, PeerId, RegionId, SegmentId, SessionId};
use piped_core::io::{Io, Resource};
use piped_core::limits;
use piped_core::pieces::Row;
use piped_core::request::{
    ArenaBuffer, BufferState, Completion, Origin, Request, Table, Update, Verb,
};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::shard::Gauge;
use piped_report::tally::Operation;

use super::admission::{Account, weight};
use super::copy::CopyBody;
use super::devices::On;
use super::disk::Direction;
use super::keys::{TransferKey, kind};
use super::mail::{Outbox, Outgoing};
use super::notify::WaitBody;
use super::numbers::Numbers;
use super::once::{Once, What};
use super::order::{Course, Order};
use super::receive::{ReceiveBody, SendBody};
use super::sched::Work;
use super::transfer::{
    Body, FileBody, Memory, MemoryBody, RemoteBody, RemoteOp, Start, Transfer, Waiter,
};
use super::vector::VectorBody;
use super::{FileState, Shard};
use crate::command::{ChannelTarget, Event, OpenRequest, Output, RegionTarget, Target};

/// A client's connection.
#[derive(Debug)]
pub(super) struct Session {
    /// The arena, by the client's segment numbers.
    segments: Vec<(SegmentId, u64)>,
    closing: bool,
    /// Its share beside the others of a class.
    pub(super) weight: u8,
    /// Transfers that still use its memory.
    pub(super) transfers: u32,
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) bytes: u64,
    /// Staging that its copies have.
    pub(super) copy_bytes: u64,
    /// Its requests in execution, and those that wait for a limit.
    pub(super) account: Account<kind::Transfer>,
    /// Staging of its copies.
    pub(super) staging: Gauge,
    /// Messages for it that it has not asked for, in bytes of early-arrival memory.
    pub(super) early: Gauge,
    /// Its receives and waits that have not ended. They wait for others, so they have no place
    /// among its requests.
    pub(super) receives: u32,
    /// What its queues have asked of each node.
    pub(super) orders: BTreeMap<Course, Order>,
}

/// Something a client opened.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) kind: HandleKind,
    /// Transfers that use it.
    pub(super) uses: u32,
    closing: bool,
}

#[derive(Debug)]
pub(super) enum HandleKind {
    Local(Target),
    Remote(Box<RemoteHandle>),
    /// It was ended, and this is still in use by what ended with it.
    Ended(Box<Self>),
    /// The exporter of the region is gone, or the handle was ended.
    Gone,
}

/// A handle whose file or region lies at a peer.
#[derive(Debug)]
pub(super) struct RemoteHandle {
    pub(super) peer: PeerId,
    pub(super) open: OpenRequest,
    /// The peer's number for it, and the peer's incarnation that gave it.
    pub(super) number: Option<(u32, u64)>,
    pub(super) length: u64,
    /// The control thread's ticket until the first open ended.
    pub(super) ticket: Option<u64>,
    /// Names the open to the peer: sent again after a lost lane, it opens nothing twice.
    pub(super) wire_ticket: u64,
    /// The epoch of the latency lane on which the peer was last asked for it.
    pub(super) asked_epoch: u32,
    /// An open is under way: only then is an answer to it believed.
    pub(super) pending: bool,
    /// The peer's incarnation that counted bytes of the first write that no sync has covered, and
    /// when the last such write ended: a peer that restarted may have lost them.
    pub(super) unsynced: Option<(u64, Nanos)>,
    /// Of a channel, what is sent to it.
    pub(super) outbox: Outbox,
    /// Of a region, what is done once.
    pub(super) updates: Numbers,
}

/// What a verb resolves to: what it is, the handles it uses, its length and its work.
type Resolved = (Operation, [Option<HandleId>; 2], u64, Body);

/// What a handle resolves to when a request names it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Local(Target),
    Remote(PeerId, HandleId),
}

impl Shard {
    pub(super) fn open_session(&mut self, session: SessionId, weight: u8) {
        let value = Session {
            segments: Vec::new(),
            closing: false,
            weight: weight.max(1),
            transfers: 0,
            completed: 0,
            failed: 0,
            bytes: 0,
            copy_bytes: 0,
            account: Account::default(),
            staging: Gauge::default(),
            early: Gauge::default(),
            receives: 0,
            orders: BTreeMap::new(),
        };
        self.sessions.insert(session, value);
    }

    pub(super) fn add_segment(&mut self, session: SessionId, segment: SegmentId, length: u64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.segments.push((segment, length));
        }
    }

    /// Ends all that a session has under way; its memory goes back once the kernel is done with it.
    pub(super) fn close_session<I: Io>(&mut self, session: SessionId, io: &mut I) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        state.closing = true;
        let segments: Vec<SegmentId> = state.segments.iter().map(|&(id, _)| id).collect();
        let mut from = 0;
        while let Some(key) = self.transfers.next_from(from, |t| t.session == session) {
            from = key.index() + 1;
            if let Some(transfer) = self.transfers.get_mut(key) {
                if matches!(transfer.waiter, Waiter::Client(_)) {
                    transfer.waiter = Waiter::Nobody;
                }
                self.leave_client(key);
                self.give_up(key, Status::Closed, io);
            }
        }
        let handles: Vec<HandleId> =
            self.handles.keys().filter(|(s, _)| *s == session).map(|&(_, h)| h).collect();
        for handle in handles {
            self.close_handle(session, handle, io);
        }
        self.end_region_users(|region| segments.contains(&region.segment), io);
        self.drain_session(session, io);
    }

    /// Releases a closing session's memory if nothing uses it any more.
    pub(super) fn drain_session<I: Io>(&mut self, session: SessionId, io: &mut I) {
        let Some(state) = self.sessions.get(&session).filter(|state| state.closing) else { return };
        let served = |segment: SegmentId| {
            self.serves.iter().any(|(_, serve)| serve.region_segment() == Some(segment))
        };
        let busy = state.transfers > 0 || state.segments.iter().any(|&(id, _)| served(id));
        if busy {
            return;
        }
        for (segment, _) in self.sessions.remove(&session).expect("looked at above").segments {
            io.release(Resource::Segment(segment));
        }
        self.cx.event(Event::SessionDrained { session });
    }

    /// Drains every closing session that waited for a peer's request to end.
    pub(super) fn drain_sessions<I: Io>(&mut self, io: &mut I) {
        let closing: Vec<SessionId> =
            self.sessions.iter().filter(|(_, state)| state.closing).map(|(&id, _)| id).collect();
        for session in closing {
            self.drain_session(session, io);
        }
    }

    pub(super) fn install_handle(&mut self, session: SessionId, id: HandleId, target: Target) {
        if let Target::File(file) = target {
            let state = FileState { length: file.length, can_allocate: true, on: On::from(&file) };
            self.files.insert(file.buffered, state);
        }
        if let Target::Channel(ChannelTarget { channel, receives: true }) = target {
            self.open_channel(channel, session);
        }
        if let Target::Region(region) = target
            && self.owns(session, region.segment)
        {
            self.open_notifications(region.region);
        }
        let handle = Handle { kind: HandleKind::Local(target), uses: 0, closing: false };
        self.handles.insert((session, id), handle);
    }

    pub(super) fn install_remote(
        &mut self,
        session: SessionId,
        id: HandleId,
        remote: RemoteHandle,
    ) {
        let handle = Handle { kind: HandleKind::Remote(Box::new(remote)), uses: 0, closing: false };
        self.handles.insert((session, id), handle);
    }

    /// Running requests end first.
    pub(super) fn close_handle<I: Io>(&mut self, session: SessionId, id: HandleId, io: &mut I) {
        let Some(handle) = self.handles.get_mut(&(session, id)) else { return };
        handle.closing = true;
        if handle.uses == 0 {
            self.drop_handle(session, id, io);
        }
    }

    fn drop_handle<I: Io>(&mut self, session: SessionId, id: HandleId, io: &mut I) {
        let Some(handle) = self.handles.remove(&(session, id)) else { return };
        self.release_kind(handle.kind, io);
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
            self.files.remove(&file.buffered);
            io.release(Resource::File(file.buffered));
            if let Some((direct, _)) = file.direct {
                io.release(Resource::File(direct));
            }
        }
        if let Target::Channel(ChannelTarget { channel, receives: true }) = target {
            self.close_channel(channel, io);
        }
    }

    /// Nobody receives on a channel any more: handles to send to it serve nothing.
    pub(super) fn revoke_channel(&mut self, id: ChannelId) {
        let is_it = |target: Target| matches!(target, Target::Channel(it) if it.channel == id);
        for handle in self.handles.values_mut() {
            if matches!(handle.kind, HandleKind::Local(target) if is_it(target)) {
                handle.kind = HandleKind::Gone;
            }
        }
        self.revoke_served(is_it);
    }

    /// A transfer that used the handle is over.
    pub(super) fn leave_handle<I: Io>(&mut self, session: SessionId, id: HandleId, io: &mut I) {
        let Some(handle) = self.handles.get_mut(&(session, id)) else { return };
        handle.uses -= 1;
        if handle.closing && handle.uses == 0 {
            self.drop_handle(session, id, io);
        } else {
            self.release_ended(session, id, io);
        }
    }

    /// Marks every handle of a region, and ends the requests that use it.
    pub(super) fn revoke_region<I: Io>(&mut self, region: RegionId, io: &mut I) {
        self.end_region_users(|r| r.region == region, io);
        self.close_notifications(region, io);
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
            || self.is_served(is_it)
            || self.handles.values().any(
                |handle| matches!(handle.kind, HandleKind::Local(Target::Region(r)) if is_it(r)),
            );
        if !in_use {
            self.revoked.swap_remove(at);
            self.cx.event(Event::RegionDrained { region });
        }
    }

    /// Takes a request from a client's ring. Its end comes out of [`Shard::poll_output`].
    pub fn submit<I: Io>(&mut self, origin: Origin, request: Request, now: Nanos, io: &mut I) {
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
                    self.enter_order(transfer, (origin.queue, node));
                }
                self.enter_outbox(transfer);
                self.enter_company(transfer);
                self.enter_client(transfer, origin.session, bytes);
                if request.no_wait && self.waits_for_limit(transfer) {
                    self.clients.forget_wait();
                    self.decide(transfer, Status::WouldBlock, io);
                }
            }
            Err(status) => self.complete_at_once(origin, status),
        }
    }

    fn complete_at_once(&mut self, origin: Origin, status: Status) {
        self.cx.watch.tally.at_once[status as usize] += 1;
        match status {
            Status::Ok => self.cx.watch.counters.completed += 1,
            _ => self.cx.watch.counters.failed += 1,
        }
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
        let Some(key) = self.transfers.next_from(0, wanted) else { return Status::NotFound };
        self.give_up(key, Status::Cancelled, io);
        Status::Ok
    }

    /// The exporter of regions is gone: handles on them serve nothing any more.
    pub(super) fn revoke_handles(&mut self, wanted: impl Fn(RegionTarget) -> bool) {
        for handle in self.handles.values_mut() {
            if matches!(handle.kind, HandleKind::Local(Target::Region(r)) if wanted(r)) {
                handle.kind = HandleKind::Gone;
            }
        }
    }

    /// Checks a request against the session and makes its transfer, which counts as so many bytes.
    fn admit(
        &mut self,
        origin: Origin,
        request: Request,
        now: Nanos,
    ) -> Result<(TransferKey, u64), Status> {
        let session = self.sessions.get(&origin.session).ok_or(Status::Closed)?;
        if session.closing {
            return Err(Status::Closed);
        }
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
        match self.handles.get(&(session, handle)).map(|handle| &handle.kind) {
            Some(HandleKind::Remote(remote)) => Some(Some(remote.peer)),
            _ => Some(None),
        }
    }

    /// Whether a segment is of a session's arena.
    fn owns(&self, session: SessionId, segment: SegmentId) -> bool {
        let segments = self.sessions.get(&session).map(|session| &session.segments);
        segments.is_some_and(|segments| segments.iter().any(|&(id, _)| id == segment))
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
                let memory = self.memory_of(session, buffer)?;
                let place = self.bytes_of(session, handle, Access::READ)?;
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
                let kind = match self.is_region(session, handle) {
                    true => Operation::Get,
                    false => Operation::Read,
                };
                Ok((kind, [Some(handle), None], buffer.length, body))
            }
            Verb::Write { handle, offset, buffer, durable, notify } => {
                let memory = self.memory_of(session, buffer)?;
                let place = self.bytes_of(session, handle, Access::WRITE)?;
                let mut body =
                    body_for(place, Direction::Write, durable, offset, buffer.length, memory)?;
                let kind = match self.is_region(session, handle) {
                    true => Operation::Put,
                    false if notify.is_some() => return Err(Status::Invalid),
                    false => Operation::Write,
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
                let memory = self.memory_of(session, buffer)?;
                let wanted = if reads { Access::READ } else { Access::WRITE };
                let place = self.bytes_of(session, handle, wanted)?;
                if !(1..=limits::REQUEST_BYTES_MAX).contains(&bytes)
                    || !(1..=limits::TABLE_ROWS_MAX).contains(&table.rows)
                {
                    return Err(Status::Invalid);
                }
                let length = u64::from(table.rows) * Row::BYTES as u64;
                let Table { segment, offset, rows } = table;
                let at = self.memory_of(session, ArenaBuffer { segment, offset, length })?;
                let direction = if reads { Direction::Read } else { Direction::Write };
                let is_region = self.is_region(session, handle);
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
                let body = match self.region_of(session, handle, ATOMIC)? {
                    Place::Local(Target::Region(region)) => Body::Update { region, offset, update },
                    place => self.once_body(place, what)?,
                };
                Ok((Operation::Atomic, [Some(handle), None], 0, body))
            }
            Verb::Notify { handle, id } => {
                let body = match self.region_of(session, handle, Access::WRITE)? {
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
                let place = self.region_of(session, handle, Access::NONE)?;
                let Place::Local(Target::Region(target)) = place else {
                    return Err(Status::Invalid);
                };
                if count == 0 {
                    return Err(Status::Invalid);
                }
                if !self.owns(session, target.segment) {
                    return Err(Status::Denied);
                }
                let body = Body::Wait(WaitBody { region: target.region, id, count, no_wait });
                Ok((Operation::Wait, [Some(handle), None], 0, body))
            }
            Verb::Flush { handle } => {
                self.bytes_of(session, handle, Access::NONE)?;
                Ok((Operation::Flush, [Some(handle), None], 0, Body::Settled))
            }
            Verb::Sync { handle } => {
                let place = self.bytes_of(session, handle, Access::NONE)?;
                let unsynced = match self.handles.get(&(session, handle)).map(|it| &it.kind) {
                    Some(HandleKind::Remote(remote)) => remote.unsynced.map(|(first, _)| first),
                    _ => None,
                };
                Ok((Operation::Sync, [Some(handle), None], 0, sync_body(place, unsynced)))
            }
            Verb::Copy { from, from_offset, to, to_offset, length } => {
                let source = self.bytes_of(session, from, Access::READ)?;
                let sink = self.bytes_of(session, to, Access::WRITE)?;
                from_offset.checked_add(length).ok_or(Status::Invalid)?;
                to_offset.checked_add(length).ok_or(Status::Invalid)?;
                self.may_start()?;
                let copy = CopyBody::new((source, from_offset), (sink, to_offset));
                let body = Body::Copy(self.bodies.keep_copy(copy));
                Ok((Operation::Copy, [Some(from), Some(to)], length, body))
            }
            Verb::Send { handle, tag, buffer } => {
                let memory = self.memory_of(session, buffer)?;
                let body = match self.place_of(session, handle, Access::WRITE)? {
                    Place::Local(Target::Channel(ChannelTarget { channel, .. })) => {
                        Body::Send(SendBody::new(channel, tag, memory, no_wait))
                    }
                    Place::Remote(peer, handle) if self.is_channel(session, handle) => {
                        let body = RemoteBody::new(peer, handle, RemoteOp::Send, 0, memory);
                        Body::Remote(RemoteBody {
                            message: Some(Outgoing::new(tag, no_wait)),
                            ..body
                        })
                    }
                    Place::Local(_) | Place::Remote(..) => return Err(Status::Invalid),
                };
                Ok((Operation::Send, [Some(handle), None], buffer.length, body))
            }
            Verb::Receive { handle, tag, buffer } => {
                self.may_wait(session)?;
                let memory = self.memory_of(session, buffer)?;
                let Place::Local(Target::Channel(it)) =
                    self.place_of(session, handle, Access::READ)?
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

    /// Receives and waits of a session that have not ended.
    #[must_use]
    pub fn waits_of(&self, session: SessionId) -> u32 {
        self.sessions.get(&session).map_or(0, |it| it.receives)
    }

    /// Whether a session may have one more request that waits for others. Places are left for what
    /// they wait for, and for those of others.
    fn may_wait(&self, session: SessionId) -> Result<(), Status> {
        let own = self.sessions.get(&session).map_or(0, |it| it.receives);
        let room = own < self.cx.limits.client.requests
            && self.receives < self.cx.config.transfers_max / 2;
        room.then_some(()).ok_or(Status::WouldBlock)
    }

    /// A region.
    fn region_of(&self, session: SessionId, id: HandleId, wanted: Access) -> Result<Place, Status> {
        let place = self.bytes_of(session, id, wanted)?;
        self.is_region(session, id).then_some(place).ok_or(Status::Invalid)
    }

    /// A file or a region: with a channel nothing else can be done than to send and receive.
    fn bytes_of(&self, session: SessionId, id: HandleId, wanted: Access) -> Result<Place, Status> {
        match self.place_of(session, id, wanted)? {
            Place::Local(Target::Channel(_)) => Err(Status::Invalid),
            Place::Remote(..) if self.is_channel(session, id) => Err(Status::Invalid),
            place => Ok(place),
        }
    }

    /// Whether it is a channel of a peer.
    fn is_channel(&self, session: SessionId, id: HandleId) -> bool {
        let kind = self.handles.get(&(session, id)).map(|handle| &handle.kind);
        matches!(kind, Some(HandleKind::Remote(it)) if it.open.kind == OpenKind::Channel)
    }

    fn is_region(&self, session: SessionId, id: HandleId) -> bool {
        match self.handles.get(&(session, id)).map(|handle| &handle.kind) {
            Some(HandleKind::Local(target)) => matches!(target, Target::Region(_)),
            Some(HandleKind::Remote(remote)) => remote.open.kind == OpenKind::Region,
            Some(HandleKind::Ended(_) | HandleKind::Gone) | None => false,
        }
    }

    fn memory_of(&self, session: SessionId, buffer: ArenaBuffer) -> Result<Memory, Status> {
        let session = self.sessions.get(&session).ok_or(Status::Closed)?;
        let &(segment, length) =
            session.segments.get(buffer.segment as usize).ok_or(Status::BadBuffer)?;
        let end = buffer.offset.checked_add(buffer.length).ok_or(Status::BadBuffer)?;
        if end > length {
            return Err(Status::BadBuffer);
        }
        if buffer.length == 0 || buffer.length > limits::REQUEST_BYTES_MAX {
            return Err(Status::Invalid);
        }
        Ok(Memory { segment, offset: buffer.offset })
    }

    fn place_of(&self, session: SessionId, id: HandleId, wanted: Access) -> Result<Place, Status> {
        let handle = self.handles.get(&(session, id)).ok_or(Status::BadHandle)?;
        if handle.closing {
            return Err(Status::BadHandle);
        }
        let (place, access) = match &handle.kind {
            HandleKind::Local(target) => (Place::Local(*target), access_of(*target)),
            HandleKind::Remote(remote) if remote.ticket.is_some() => return Err(Status::BadHandle),
            HandleKind::Remote(remote) => (Place::Remote(remote.peer, id), remote.open.access),
            HandleKind::Ended(_) | HandleKind::Gone => return Err(Status::Gone),
        };
        access.allows(wanted).then_some(place).ok_or(Status::Denied)
    }

    /// Counts a transfer in at its session and handles.
    pub(super) fn enter(&mut self, session: SessionId, handles: [Option<HandleId>; 2]) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.transfers += 1;
        }
        for handle in handles.into_iter().flatten() {
            if let Some(handle) = self.handles.get_mut(&(session, handle)) {
                handle.uses += 1;
            }
        }
    }
}

pub(super) fn access_of(target: Target) -> Access {
    match target {
        Target::File(file) => file.access,
        Target::Region(region) => region.access,
        Target::Channel(ChannelTarget { receives: true, .. }) => Access::READ,
        Target::Channel(_) => Access::WRITE,
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
