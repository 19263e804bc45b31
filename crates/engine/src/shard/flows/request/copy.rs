//! Copies between two handles: chunks through staging, each a child read and a child write.
//!
//! The children are ordinary transfers, so alignment, planning, retries and lanes are theirs; the
//! copy only keeps a few chunks under way so that both ends work at the same time. The write goes
//! on with what the read has in place: its plan's pieces leave as soon as their bytes are there.
//! Only where the source may end within the chunk the write waits for the read's end, because a
//! write says its length first. A chunk's staging is freed when both children are over, whatever
//! ended them.

mod middle;

use piped_core::ids::SessionId;
use piped_core::io::Io;
use piped_core::limits::{COPY_CHUNKS, COPY_SHARE};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::tally::Operation;

use crate::shard::Shard;
use crate::shard::clients::Place;
use crate::shard::driver::Direction;
use crate::shard::flows::request::resolve::body_for;
use crate::shard::keys::{CopyKey, TransferKey, kind};
use crate::shard::pins::Pin;
use crate::shard::sched::Work;

use crate::command::Target;
use crate::shard::buffers::{Run, footprint_of};
use crate::shard::requests::{Body, Chunk, Ended, Start, Waiter};

impl Shard {
    pub(in crate::shard) fn drive_copy<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        for chunk in 0..COPY_CHUNKS {
            if !self.drive_chunk(key, chunk, io) || !self.store_chunk(key, chunk, io) {
                return self.cx.sched.starve(Work::Transfer(key));
            }
        }
        let Some(transfer) = self.transfers.get(key) else { return };
        let Body::Copy(copy) = transfer.body else { return };
        if self.bodies[copy].is_over(transfer.length) {
            self.decide(key, Status::Ok, io);
        }
    }

    /// Starts what a chunk can start; `false` if there is no room for it.
    fn drive_chunk<I: Io>(&mut self, key: TransferKey, index: usize, io: &mut I) -> bool {
        let Some(transfer) = self.transfers.get_mut(key) else { return true };
        let (session, length) = (transfer.session, transfer.length);
        let Body::Copy(copy) = transfer.body else { return true };
        let copy = &self.bodies[copy];
        match copy.chunk(index) {
            Some(chunk) if chunk.wants_write() => {
                self.start_half(key, index, chunk, Direction::Write, io.now())
            }
            Some(_) => true,
            None => {
                let Some((start, want)) = copy.next_chunk(length) else { return true };
                if !self.may_copy(key, u64::from(want)) {
                    return false;
                }
                if !self.may_stage_copy(session, footprint_of(want)) {
                    return false;
                }
                let Some(run) = self.cx.buffers.take_run(want) else { return false };
                let source_has_it = self.source_has(key, start + u64::from(want));
                let chunk = Chunk::new(run, start, want, source_has_it);
                if self.start_half(key, index, chunk, Direction::Read, io.now()) {
                    self.note_copy_staging(session, run, true);
                    self.cx.sched.give(Work::Transfer(key));
                    return self.drive_chunk(key, index, io);
                }
                self.cx.buffers.give_back(run);
                false
            }
        }
    }

    /// Whether a copy may have so many bytes of staging more. A session leaves a part to the
    /// others' copies, for its own may hang at a device that stalls.
    pub(in crate::shard) fn may_copy(&mut self, key: TransferKey, want: u64) -> bool {
        let left = self.cx.buffers.left_for_copies();
        let session = self.transfers.get(key).map(|copy| copy.session);
        let holdings = session.and_then(|session| self.clients.holdings(session));
        let own = holdings.map_or(0, |holdings| holdings.copy_bytes);
        want <= left && (own == 0 || own + want <= COPY_SHARE * left)
    }

    fn count_copy_of(&mut self, session: SessionId, bytes: i64) {
        self.cx.buffers.count_copy(bytes);
        if let Some(holdings) = self.clients.holdings(session) {
            holdings.copy_bytes = holdings.copy_bytes.saturating_add_signed(bytes);
        }
    }

    /// Makes the child transfer of one half of a chunk.
    fn start_half(
        &mut self,
        key: TransferKey,
        index: usize,
        mut chunk: Chunk,
        direction: Direction,
        now: Nanos,
    ) -> bool {
        let Some(transfer) = self.transfers.get(key) else { return true };
        let (session, class, deadline) = (transfer.session, transfer.class, transfer.deadline);
        let Body::Copy(copy) = transfer.body else { return true };
        let copy = &self.bodies[copy];
        let (kind, (place, offset)) = match direction {
            Direction::Read => (Operation::Read, copy.source()),
            Direction::Write => (Operation::Write, copy.sink()),
        };
        let (start, length) = chunk.range();
        let length = u64::from(length);
        let (from, memory) = (offset + start, chunk.memory());
        let body = match place {
            // A body may be kept only where its transfer finds room.
            Place::Replicas(_) if self.transfers.room() == 0 => return false,
            Place::Replicas(replicas) => {
                self.by_replicas((session, replicas), (from, length), (class, memory), now)
            }
            _ => body_for(place, direction, false, from, length, memory),
        };
        // Beyond the end of a region the copy ends; where its handle is gone, it was given up.
        let body = body.unwrap_or(Body::Settled);
        let waiter = Waiter::Copy { parent: key, chunk: index as u8 };
        let handles = [None, None];
        let child = Start { waiter, session, handles, kind, class, deadline, length, body };
        let Some(child) = self.start_transfer(child, now) else { return false };
        self.cx.watch.begin_part(child, key, Some(start));
        if !self.has_middle(key) {
            // Also what a source had that was shorter than it was told.
            chunk.store_all();
        }
        match direction {
            Direction::Read => chunk.begin_read(child),
            Direction::Write => {
                let available = chunk.begin_write(child);
                if let Some(child) = self.transfers.get_mut(child) {
                    child.available = available;
                }
            }
        }
        let Some(transfer) = self.transfers.get_mut(key) else { return true };
        if let Body::Copy(copy) = transfer.body {
            self.bodies[copy].keep_chunk(index, chunk);
            self.transfers.keep_pinned(child, key);
        }
        self.cx.sched.make_ready(Work::Transfer(child));
        true
    }

    /// Whether the source was so long when it was opened. If it is cut off meanwhile, what was
    /// written of the chunk counts, and the destination may be as long as the chunk.
    fn source_has(&self, key: TransferKey, end: u64) -> bool {
        let Some(transfer) = self.transfers.get(key) else { return false };
        let Body::Copy(copy) = transfer.body else { return false };
        let (place, offset) = self.bodies[copy].source();
        let length = match place {
            Place::Local(Target::Region(region)) => region.length,
            Place::Local(Target::Channel(_) | Target::Directory(_)) => 0,
            Place::Local(Target::File(file)) => {
                let grown = self.cx.driver.length_of(file.buffered);
                file.length.max(grown)
            }
            Place::Remote(_, handle) => {
                self.handles.remote(transfer.session, handle).map_or(0, |remote| remote.length)
            }
            Place::Replicas(handle) => {
                self.handles.replicas(transfer.session, handle).map_or(0, |it| it.length())
            }
        };
        offset.saturating_add(end) <= length
    }

    /// Bytes of the copy that a write is a part of, if its plan begins with the read of a file of
    /// ours.
    pub(in crate::shard) fn read_with(&self, waiter: Waiter) -> Option<u64> {
        let Waiter::Copy { parent, .. } = waiter else { return None };
        let transfer = self.transfers.get(parent)?;
        let Body::Copy(copy) = transfer.body else { return None };
        let (source, _) = self.bodies[copy].source();
        matches!(source, Place::Local(Target::File(_))).then_some(transfer.length)
    }

    /// More of a chunk is read: its write goes on.
    pub(in crate::shard) fn note_chunk_read(&mut self, parent: TransferKey, index: u8, bytes: u64) {
        let Some(transfer) = self.transfers.get_mut(parent) else { return };
        let Body::Copy(copy) = transfer.body else { return };
        let Some(chunk) = self.bodies[copy].chunk_mut(index) else { return };
        chunk.note_read(bytes);
        let (start, _) = chunk.range();
        match self.has_middle(parent) {
            true => self.cx.sched.make_ready(Work::Transfer(parent)),
            false => self.note_stored(parent, index, start, bytes as u32),
        }
    }

    /// More of a chunk is in its place: who waits for the copy sees it move, however long a chunk
    /// takes.
    pub(in crate::shard) fn note_chunk_written(
        &mut self,
        parent: TransferKey,
        index: u8,
        write: TransferKey,
        bytes: u64,
    ) {
        let Some(transfer) = self.transfers.get_mut(parent) else { return };
        let Body::Copy(copy) = transfer.body else { return };
        let Some(chunk) = self.bodies[copy].chunk_mut(index) else { return };
        if chunk.writing() != Some(write) {
            return;
        }
        let Some((from, to)) = chunk.land(bytes) else { return };
        let inserted = self.transfers.land(parent, from, to);
        debug_assert!(inserted.is_ok(), "each byte is counted once");
        self.tell_progress(parent);
    }

    /// A child is over and does not touch the chunk's staging any more.
    pub(in crate::shard) fn handle_child<I: Io>(
        &mut self,
        child: TransferKey,
        (parent, pin): (TransferKey, Option<Pin<kind::Transfer>>),
        index: u8,
        (status, bytes): (Status, u64),
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get(parent) else { return };
        let (session, mut given_up) = (transfer.session, transfer.status.is_some());
        let Body::Copy(copy_key) = transfer.body else { return };
        let copy = &mut self.bodies[copy_key];
        let Some(chunk) = copy.chunk_mut(index) else { return };
        let ended = chunk.end(child, (status, bytes));
        let sibling = chunk.in_vain(ended);
        match ended {
            Ended::Read | Ended::Revoked => {}
            Ended::Short => copy.cut_off(index, bytes),
            Ended::Written => {
                // Chunks are written in any order; the watermark tells how far the copy is.
                if let Some((from, to)) = chunk.land(bytes) {
                    let inserted = self.transfers.land(parent, from, to);
                    debug_assert!(inserted.is_ok(), "each byte is counted once");
                }
            }
            Ended::Failed => {
                self.transfers.end_with(parent, status);
                given_up = true;
            }
        }
        if let Some(run) = self.bodies[copy_key].take_over(index, given_up) {
            self.note_copy_staging(session, run, false);
            self.cx.free_staging(run);
        } else if ended == Ended::Read {
            self.note_chunk_read(parent, index, bytes);
        }
        self.tell_progress(parent);
        self.transfers.unpin(pin, &mut self.cx.sched);
        self.cx.sched.make_ready(Work::Transfer(parent));
        if let Some(sibling) = sibling {
            let why = if ended == Ended::Short { Status::Cancelled } else { status };
            self.give_up(sibling, why, io);
        }
    }

    /// Gives up on the children of a copy or of a vectored request.
    pub(in crate::shard) fn give_up_children<I: Io>(
        &mut self,
        key: TransferKey,
        status: Status,
        io: &mut I,
    ) {
        let body = self.transfers.get(key).map(|transfer| &transfer.body);
        if !matches!(body, Some(Body::Copy(_) | Body::Vector(_))) {
            return;
        }
        let mut from = 0;
        let child = |waiter| {
            matches!(waiter, Waiter::Copy { parent, .. } | Waiter::Vector { parent, .. }
                if parent == key)
        };
        while let Some(child) = self.transfers.next_from(&mut from, |t| child(t.waiter)) {
            self.give_up(child, status, io);
        }
    }

    /// Frees the chunks that were between their halves when the copy ended.
    pub(in crate::shard) fn free_chunks(&mut self, session: SessionId, copy: CopyKey) {
        for run in self.bodies[copy].take_all() {
            self.note_copy_staging(session, run, false);
            self.cx.free_staging(run);
        }
    }

    /// Whether copies of a session may have so many bytes of staging more: one chunk always.
    pub(in crate::shard) fn may_stage_copy(&mut self, session: SessionId, bytes: u64) -> bool {
        let most = self.cx.limits.client.staging;
        self.clients
            .holdings(session)
            .is_none_or(|state| state.staging.now == 0 || state.staging.now + bytes <= most)
    }

    pub(in crate::shard) fn note_copy_staging(
        &mut self,
        session: SessionId,
        run: Run,
        taken: bool,
    ) {
        let length = i64::from(run.span.length);
        self.count_copy_of(session, if taken { length } else { -length });
        if let Some(state) = self.clients.holdings(session) {
            match taken {
                true => state.staging.add(run.footprint()),
                false => state.staging.sub(run.footprint()),
            }
        }
    }
}
