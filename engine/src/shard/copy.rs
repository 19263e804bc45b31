//! Copies between two handles: chunks through staging, each a child read and then a child write.
//!
//! The children are ordinary transfers, so alignment, planning, retries and lanes are theirs; the copy
//! only keeps a few chunks under way so that both ends work at the same time. A chunk's staging is
//! freed when both children are over, whatever ended them.

use piped_model::units::Nanos;

use super::disk::Direction;
use super::session::{Place, body_for};
use super::slab::Key;
use super::staging::{Run, footprint_of};
use super::transfer::{Body, Memory, Start, Waiter};
use super::{Shard, Work};
use crate::command::{RegionTarget, Target};
use crate::ids::SessionId;
use crate::io::Io;
use crate::limits::{COPY_CHUNKS, COPY_SHARE, FRAGMENT_BYTES_MAX};
use crate::request::Status;
use crate::tally::{Operation, Route};

/// What is left of a copy.
#[derive(Debug)]
pub(super) struct CopyBody {
    from: (Place, u64),
    to: (Place, u64),
    chunks: [Option<Chunk>; COPY_CHUNKS],
    /// Bytes from the start for which a chunk was started.
    next: u64,
    /// The source ended here.
    end: u64,
}

#[derive(Debug, Clone, Copy)]
struct Chunk {
    run: Run,
    start: u64,
    length: u32,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Reading,
    /// Read; its write waits for room.
    Filled,
    Writing,
}

impl CopyBody {
    pub(super) fn new(from: (Place, u64), to: (Place, u64)) -> Self {
        Self { from, to, chunks: [None; COPY_CHUNKS], next: 0, end: u64::MAX }
    }

    pub(super) fn regions(&self) -> impl Iterator<Item = RegionTarget> {
        [self.from.0, self.to.0].into_iter().filter_map(|place| match place {
            Place::Local(Target::Region(region)) => Some(region),
            _ => None,
        })
    }

    pub(super) fn offset(&self) -> u64 {
        self.from.1
    }

    pub(super) fn place(&self) -> Route {
        match (self.from.0, self.to.0) {
            (Place::Local(_), Place::Local(_)) => Route::Local,
            _ => Route::Remote,
        }
    }

    pub(super) fn route(&self) -> &'static str {
        match (self.from.0, self.to.0) {
            (Place::Local(_), Place::Local(_)) => "local -> staging -> local",
            (Place::Remote(..), Place::Local(_)) => "peer -> lane -> staging -> local",
            (Place::Local(_), Place::Remote(..)) => "local -> staging -> lane -> peer",
            (Place::Remote(..), Place::Remote(..)) => "peer -> lane -> staging -> lane -> peer",
        }
    }
}

impl Shard {
    pub(super) fn drive_copy<I: Io>(&mut self, key: Key, io: &mut I) {
        for chunk in 0..COPY_CHUNKS {
            if !self.drive_chunk(key, chunk, io) {
                return self.starve(Work::Transfer(key));
            }
        }
        let Some(transfer) = self.transfers.get(key) else { return };
        let Body::Copy(copy) = &transfer.body else { return };
        let end = copy.end.min(transfer.length);
        if copy.next >= end && copy.chunks.iter().all(Option::is_none) {
            self.decide(key, Status::Ok, io);
        }
    }

    /// Starts what a chunk can start; `false` if there is no room for it.
    fn drive_chunk<I: Io>(&mut self, key: Key, index: usize, io: &mut I) -> bool {
        let Some(transfer) = self.transfers.get_mut(key) else { return true };
        let (session, length) = (transfer.session, transfer.length);
        let Body::Copy(copy) = &mut transfer.body else { return true };
        match copy.chunks[index] {
            Some(chunk) if chunk.step == Step::Filled => {
                self.start_half(key, index, chunk, Direction::Write, io.now())
            }
            Some(_) => true,
            None if copy.next >= length.min(copy.end) => true,
            None => {
                let start = copy.next;
                let want = (length.min(copy.end) - start).min(u64::from(FRAGMENT_BYTES_MAX)) as u32;
                if !self.may_copy(key, u64::from(want)) {
                    return false;
                }
                if !self.may_stage_copy(session, footprint_of(want)) {
                    return false;
                }
                let Some(run) = self.staging.allocate(want) else { return false };
                let chunk = Chunk { run, start, length: want, step: Step::Reading };
                if self.start_half(key, index, chunk, Direction::Read, io.now()) {
                    self.note_copy_staging(session, run, true);
                    if let Some(Body::Copy(copy)) = self.transfers.get_mut(key).map(|t| &mut t.body)
                    {
                        copy.next = start + u64::from(want);
                    }
                    return true;
                }
                self.give_back(run);
                false
            }
        }
    }

    /// Whether a copy may have so many bytes of staging more. Half of staging stays for peers' requests and
    /// unaligned edges; of the other half a session leaves a part to the others' copies, for its own may hang
    /// at a device that stalls.
    fn may_copy(&self, key: Key, want: u64) -> bool {
        let left = (self.staging.kept_bytes() / 2).saturating_sub(self.copy_bytes);
        let session = self.transfers.get(key).and_then(|copy| self.sessions.get(&copy.session));
        let own = session.map_or(0, |session| session.copy_bytes);
        want <= left && (own == 0 || own + want <= COPY_SHARE * left)
    }

    fn count_copy_of(&mut self, session: SessionId, bytes: i64) {
        self.copy_bytes = self.copy_bytes.saturating_add_signed(bytes);
        if let Some(session) = self.sessions.get_mut(&session) {
            session.copy_bytes = session.copy_bytes.saturating_add_signed(bytes);
        }
    }

    /// Makes the child transfer of one half of a chunk.
    fn start_half(
        &mut self,
        key: Key,
        index: usize,
        mut chunk: Chunk,
        direction: Direction,
        now: Nanos,
    ) -> bool {
        let Some(transfer) = self.transfers.get(key) else { return true };
        let (session, class, deadline) = (transfer.session, transfer.class, transfer.deadline);
        let Body::Copy(copy) = &transfer.body else { return true };
        let (kind, (place, offset), step) = match direction {
            Direction::Read => (Operation::Read, copy.from, Step::Reading),
            Direction::Write => (Operation::Write, copy.to, Step::Writing),
        };
        let memory = Memory { segment: chunk.run.span.segment, offset: chunk.run.span.offset };
        let length = u64::from(chunk.length);
        let at = offset + chunk.start;
        let body = match body_for(place, direction, false, at, length, memory) {
            Ok(body) => body,
            // Beyond the end of a region: the copy ends there.
            Err(_) => Body::Settled,
        };
        let waiter = Waiter::Copy { parent: key, chunk: index as u8 };
        let handles = [None, None];
        let start = Start { waiter, session, handles, kind, class, deadline, length, body };
        let Some(child) = self.start_transfer(start, now) else { return false };
        chunk.step = step;
        let Some(transfer) = self.transfers.get_mut(key) else { return true };
        if let Body::Copy(copy) = &mut transfer.body {
            copy.chunks[index] = Some(chunk);
            transfer.pins += 1;
        }
        self.make_ready(Work::Transfer(child));
        true
    }

    /// Where the piece of a child starts, counted from the copy's first byte.
    pub(super) fn chunk_start(&self, parent: Key, chunk: u8) -> u64 {
        let copy = self.transfers.get(parent).map(|transfer| &transfer.body);
        let Some(Body::Copy(copy)) = copy else { return 0 };
        copy.chunks.get(usize::from(chunk)).and_then(Option::as_ref).map_or(0, |it| it.start)
    }

    /// A child is over and nothing touches the chunk's staging.
    pub(super) fn handle_child(&mut self, parent: Key, index: u8, status: Status, bytes: u64) {
        let Some(transfer) = self.transfers.get_mut(parent) else { return };
        let Body::Copy(copy) = &mut transfer.body else { return };
        let Some(chunk) = copy.chunks[usize::from(index)].as_mut() else { return };
        let (run, start, wanted) = (chunk.run, chunk.start, u64::from(chunk.length));
        let session = transfer.session;
        let mut free = true;
        if status != Status::Ok {
            transfer.status.get_or_insert(status);
        } else if chunk.step == Step::Reading {
            if bytes < wanted {
                copy.end = copy.end.min(start + bytes);
            }
            if bytes > 0 && transfer.status.is_none() {
                chunk.length = bytes as u32;
                chunk.step = Step::Filled;
                free = false;
            }
        } else {
            // Chunks are written in any order; the watermark tells how far the copy is.
            let inserted = transfer.landed.insert(start, start + bytes);
            debug_assert!(inserted.is_ok(), "each chunk is written once");
        }
        if free {
            copy.chunks[usize::from(index)] = None;
            self.note_copy_staging(session, run, false);
            self.free_staging(run);
        }
        self.tell_progress(parent);
        self.unpin(parent);
        self.make_ready(Work::Transfer(parent));
    }

    /// Gives up on the children of a copy.
    pub(super) fn give_up_children<I: Io>(&mut self, key: Key, status: Status, io: &mut I) {
        if !matches!(self.transfers.get(key).map(|t| &t.body), Some(Body::Copy(_))) {
            return;
        }
        let mut from = 0;
        let child = |waiter| matches!(waiter, Waiter::Copy { parent, .. } if parent == key);
        while let Some(child) = self.transfers.next_from(from, |t| child(t.waiter)) {
            from = child.index() + 1;
            self.give_up(child, status, io);
        }
    }

    /// Frees the chunks that were between their halves when the copy ended.
    pub(super) fn free_chunks(&mut self, session: SessionId, body: &Body) {
        if let Body::Copy(copy) = body {
            for chunk in copy.chunks.into_iter().flatten() {
                self.note_copy_staging(session, chunk.run, false);
                self.free_staging(chunk.run);
            }
        }
    }

    /// Whether copies of a session may have so many bytes of staging more: one chunk always.
    fn may_stage_copy(&self, session: SessionId, bytes: u64) -> bool {
        let most = self.limits.client.staging;
        self.sessions
            .get(&session)
            .is_none_or(|state| state.staging.now == 0 || state.staging.now + bytes <= most)
    }

    fn note_copy_staging(&mut self, session: SessionId, run: Run, taken: bool) {
        let length = i64::from(run.span.length);
        self.count_copy_of(session, if taken { length } else { -length });
        if let Some(state) = self.sessions.get_mut(&session) {
            match taken {
                true => state.staging.add(run.footprint()),
                false => state.staging.sub(run.footprint()),
            }
        }
    }
}
