//! Sessions and handles of clients: what they have, and what goes when they do.

use piped_core::ids::{HandleId, RegionId, SegmentId, SessionId};
use piped_core::io::{Io, Resource};
use piped_core::status::Status;

use crate::command::{ChannelTarget, Event, RegionTarget, Target};
use crate::shard::Shard;
use crate::shard::clients::HandleKind;
use crate::shard::cx::Cx;
use crate::shard::requests::Waiter;

impl Shard {
    /// Ends all that a session has under way; its memory goes back once the kernel is done with it.
    pub(in crate::shard) fn close_session<I: Io>(&mut self, session: SessionId, io: &mut I) {
        let Some(segments) = self.clients.close(session) else { return };
        // The other shards of the session close it as well.
        self.away.forget(session);
        self.asks.forget(session);
        let mut from = 0;
        while let Some(key) = self.transfers.next_from(&mut from, |t| t.session == session) {
            if let Some(transfer) = self.transfers.get_mut(key) {
                if transfer.waiter.is_client() {
                    let waiter = std::mem::replace(&mut transfer.waiter, Waiter::Nobody);
                    let (told, operation) = (transfer.told, transfer.kind);
                    if !told {
                        self.leave_asks(waiter, session, operation);
                    }
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
    pub(in crate::shard) fn drain_session<I: Io>(&mut self, session: SessionId, io: &mut I) {
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

    /// Takes a segment out of a client's arena, and ends what still uses it.
    pub(in crate::shard) fn take_back<I: Io>(
        &mut self,
        session: SessionId,
        number: u32,
        io: &mut I,
    ) {
        let Some(segment) = self.clients.remove_segment(session, number) else { return };
        let mut from = 0;
        while let Some(key) = self.transfers.next_from(&mut from, |it| {
            it.session == session && it.body.uses(&self.bodies, |id| id == segment)
        }) {
            self.give_up(key, Status::BadBuffer, io);
        }
        self.end_region_users(|region| region.segment == segment, io);
        self.release_unused(session, segment, io);
    }

    /// Counts what uses a segment that left the arena of a session, and releases it if that is
    /// nothing.
    fn release_unused<I: Io>(&mut self, session: SessionId, segment: SegmentId, io: &mut I) {
        let uses = |id: SegmentId| id == segment;
        let transfers = self.transfers.iter().filter(|(_, it)| {
            it.body.uses(&self.bodies, uses)
                || it.body.regions(&self.bodies).any(|region| uses(region.segment))
        });
        let serves = self.serves.iter().filter(|(_, it)| it.region_segment().is_some_and(uses));
        let count = (transfers.count() + serves.count()) as u32;
        if self.clients.count_uses(session, segment, count) {
            io.release(Resource::Segment(segment));
        }
    }

    /// Something that used a segment is over, which goes if it waited for that.
    pub(in crate::shard) fn end_use<I: Io>(&mut self, segment: SegmentId, io: &mut I) {
        if let Some(session) = self.clients.end_use(segment) {
            self.release_unused(session, segment, io);
        }
    }

    /// A peer's request for a region of a client's is over, for which the client's memory may have
    /// waited.
    pub(in crate::shard) fn leave_region<I: Io>(&mut self, region: RegionTarget, io: &mut I) {
        self.end_use(region.segment, io);
        if let Some(session) = self.clients.closing_with(region.segment) {
            self.drain_session(session, io);
        }
        self.drain_region(region.region);
    }

    pub(in crate::shard) fn install_handle(
        &mut self,
        session: SessionId,
        id: HandleId,
        target: Target,
    ) {
        if let Target::File(file) = target {
            self.cx.driver.open_file(&file);
        }
        if let Target::Channel(channel) = target {
            self.open_channel(channel);
        }
        if let Target::Region(region) = target
            && region.home == self.cx.relays.own()
            && self.clients.owns(session, region.segment)
        {
            self.notifications.open(region.region);
        }
        self.handles.add(session, id, HandleKind::Local(target));
    }

    /// Running requests end first.
    pub(in crate::shard) fn close_handle<I: Io>(
        &mut self,
        session: SessionId,
        id: HandleId,
        io: &mut I,
    ) {
        if let Some(kind) = self.handles.close(session, id) {
            self.release_kind(kind, io);
        }
    }

    pub(in crate::shard) fn release_kind<I: Io>(&mut self, kind: HandleKind, io: &mut I) {
        match kind {
            HandleKind::Local(target) => self.release_target(target, io),
            HandleKind::Remote(remote) => self.close_remote(*remote, io.now()),
            HandleKind::Replicas(replicas) => self.release_replicas(&replicas, io),
            HandleKind::Ended(kind) => self.release_kind(*kind, io),
            HandleKind::AtHome | HandleKind::Gone => {}
        }
    }

    pub(in crate::shard) fn release_target<I: Io>(&mut self, target: Target, io: &mut I) {
        if let Target::File(file) = target {
            self.cx.driver.close_file(file.buffered);
            io.release(Resource::File(file.buffered));
            if let Some((direct, _)) = file.direct {
                io.release(Resource::File(direct));
            }
        }
        if let Target::Directory(directory) = target {
            io.release(Resource::File(directory.directory));
        }
        if let Target::Channel(ChannelTarget { channel, receives: true, home, .. }) = target
            && home == self.cx.relays.own()
        {
            self.close_channel(channel, io);
        }
    }

    /// A transfer that used the handle is over.
    pub(in crate::shard) fn leave_handle<I: Io>(
        &mut self,
        session: SessionId,
        id: HandleId,
        io: &mut I,
    ) {
        if let Some(kind) = self.handles.leave(session, id) {
            self.release_kind(kind, io);
        }
    }

    /// Marks every handle of a region, and ends the requests that use it.
    pub(in crate::shard) fn revoke_region<I: Io>(&mut self, region: RegionId, io: &mut I) {
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
    pub(in crate::shard) fn drain_region(&mut self, region: RegionId) {
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
}
