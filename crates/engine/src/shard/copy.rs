//! Copies between two handles: chunks through staging, each a child read and a child write.
//!
//! The children are ordinary transfers, so alignment, planning, retries and lanes are theirs; the
//! copy only keeps a few chunks under way so that both ends work at the same time. The write goes
//! on with what the read has in place: its plan's pieces leave as soon as their bytes are there.
//! Only where the source may end within the chunk the write waits for the read's end, because a
//! write says its length first. A chunk's staging is freed when both children are over, whatever
//! ended them.

mod middle;

use std::sync::Arc;

use piped_core::ids::SessionId;
use piped_core::io::Io;
use piped_core::limits::{COPY_CHUNKS, COPY_SHARE, FRAGMENT_BYTES_MAX};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::planned::Planned;
use piped_planner::stage::StageIndex;
use piped_report::tally::{Operation, Route};

use super::Shard;
use super::clients::Place;
use super::driver::Direction;
use super::keys::{CopyKey, TransferKey, kind};
use super::pins::Pin;
use super::sched::Work;
use super::session::body_for;

use super::arena::Memory;
use super::buffers::{Run, footprint_of};
use super::requests::{Body, Start, Waiter};
use crate::command::{RegionTarget, Target};

/// What is left of a copy.
#[derive(Debug)]
pub(super) struct CopyBody {
    from: (Place, u64),
    to: (Place, u64),
    chunks: [Option<Chunk>; COPY_CHUNKS],
    /// The chunks' plans, where one is for both halves.
    plans: [Option<Arc<Planned>>; COPY_CHUNKS],
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
    /// Bytes that are read.
    read: u32,
    /// Bytes read that have come to the delay injection between two peers, or that the write may
    /// send.
    passed: u32,
    stored: u32,
    /// Bytes that were in place at the other end, whichever write brought them there.
    written: u32,
    /// Bytes from its start that the copy counts as landed.
    landed: u32,
    reading: Option<TransferKey>,
    write: Write,
}

/// The second half of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Write {
    /// The write begins when the chunk is read.
    After,
    /// The write begins as soon as there is room for it, and follows the read.
    Wanted,
    Running(TransferKey),
    /// The source is shorter than was said: the write is given up, and begins anew.
    Revoked(TransferKey),
    Over,
}

/// What the end of a child means for its chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Read,
    /// The source ended within it.
    Short,
    Written,
    /// The write of more than there was.
    Revoked,
    Failed,
}

impl Chunk {
    fn wants_write(&self) -> bool {
        match self.write {
            Write::Wanted => true,
            Write::After => self.reading.is_none(),
            Write::Running(_) | Write::Revoked(_) | Write::Over => false,
        }
    }

    /// The first `bytes` of it are in place. What of the copy that adds, from where to where.
    fn land(&mut self, bytes: u64) -> Option<(u64, u64)> {
        let bytes = bytes.min(self.length.into()) as u32;
        let from = self.landed;
        self.landed = from.max(bytes);
        (bytes > from).then(|| (self.start + u64::from(from), self.start + u64::from(bytes)))
    }

    /// Whether nothing uses its staging, or will.
    fn is_over(&self, failed: bool) -> bool {
        let writes = match self.write {
            Write::Wanted | Write::After => !failed && self.length > 0,
            Write::Running(_) | Write::Revoked(_) => true,
            Write::Over => false,
        };
        self.reading.is_none() && !writes
    }

    fn end_read(&mut self, status: Status, bytes: u32) -> Ended {
        self.reading = None;
        if status != Status::Ok {
            return Ended::Failed;
        }
        self.read = bytes;
        if bytes >= self.length {
            return Ended::Read;
        }
        self.length = bytes;
        self.write = match self.write {
            Write::Running(write) => Write::Revoked(write),
            _ => Write::After,
        };
        Ended::Short
    }

    fn end_write(&mut self, status: Status) -> Ended {
        let revoked = matches!(self.write, Write::Revoked(_));
        self.write = if revoked { Write::After } else { Write::Over };
        match status {
            _ if revoked => Ended::Revoked,
            Status::Ok => Ended::Written,
            _ => Ended::Failed,
        }
    }
}

impl CopyBody {
    pub(super) fn new(from: (Place, u64), to: (Place, u64)) -> Self {
        let plans = [const { None }; COPY_CHUNKS];
        Self { from, to, chunks: [None; COPY_CHUNKS], plans, next: 0, end: u64::MAX }
    }

    pub(super) fn plan_of(&self, chunk: u8) -> Option<Arc<Planned>> {
        self.plans.get(usize::from(chunk))?.clone()
    }

    pub(super) fn set_plan(&mut self, chunk: u8, planned: Arc<Planned>) {
        if let Some(place) = self.plans.get_mut(usize::from(chunk)) {
            *place = Some(planned);
        }
    }

    /// So many bytes of a chunk are written. Returns how many that are more than were before: a
    /// chunk that is written anew counts once.
    pub(super) fn note_written(&mut self, chunk: u8, bytes: u64) -> u64 {
        let chunk = self.chunks.get_mut(usize::from(chunk)).and_then(Option::as_mut);
        let Some(Chunk { written, .. }) = chunk else { return 0 };
        let more = bytes.saturating_sub(u64::from(*written));
        *written = written.saturating_add(more as u32);
        more
    }

    pub(super) fn regions(&self) -> impl Iterator<Item = RegionTarget> + use<> {
        [self.from.0, self.to.0].into_iter().filter_map(|place| match place {
            Place::Local(Target::Region(region)) => Some(region),
            _ => None,
        })
    }

    pub(super) fn offset(&self) -> u64 {
        self.from.1
    }

    fn is_between_peers(&self) -> bool {
        matches!(self.ends(), (Place::Remote(..), Place::Remote(..)))
    }

    /// Where the bytes come from, and where they go.
    pub(super) fn ends(&self) -> (Place, Place) {
        (self.from.0, self.to.0)
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
    pub(super) fn drive_copy<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        for chunk in 0..COPY_CHUNKS {
            if !self.drive_chunk(key, chunk, io) || !self.store_chunk(key, chunk, io) {
                return self.cx.sched.starve(Work::Transfer(key));
            }
        }
        let Some(transfer) = self.transfers.get(key) else { return };
        let Body::Copy(copy) = transfer.body else { return };
        let copy = &self.bodies[copy];
        let end = copy.end.min(transfer.length);
        if copy.next >= end && copy.chunks.iter().all(Option::is_none) {
            self.decide(key, Status::Ok, io);
        }
    }

    /// Starts what a chunk can start; `false` if there is no room for it.
    fn drive_chunk<I: Io>(&mut self, key: TransferKey, index: usize, io: &mut I) -> bool {
        let Some(transfer) = self.transfers.get_mut(key) else { return true };
        let (session, length) = (transfer.session, transfer.length);
        let Body::Copy(copy) = transfer.body else { return true };
        let copy = &mut self.bodies[copy];
        match copy.chunks[index] {
            Some(chunk) if chunk.wants_write() => {
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
                let Some(run) = self.cx.buffers.take_run(want) else { return false };
                let streams = self.source_has(key, start + u64::from(want));
                let write = if streams { Write::Wanted } else { Write::After };
                let chunk = Chunk {
                    run,
                    start,
                    length: want,
                    read: 0,
                    passed: 0,
                    stored: 0,
                    written: 0,
                    landed: 0,
                    reading: None,
                    write,
                };
                if self.start_half(key, index, chunk, Direction::Read, io.now()) {
                    self.note_copy_staging(session, run, true);
                    if let Some(&Body::Copy(copy)) = self.transfers.get(key).map(|t| &t.body) {
                        self.bodies[copy].next = start + u64::from(want);
                    }
                    return self.drive_chunk(key, index, io);
                }
                self.cx.buffers.give_back(run);
                false
            }
        }
    }

    /// Whether a copy may have so many bytes of staging more. A session leaves a part to the
    /// others' copies, for its own may hang at a device that stalls.
    pub(super) fn may_copy(&mut self, key: TransferKey, want: u64) -> bool {
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
            Direction::Read => (Operation::Read, copy.from),
            Direction::Write => (Operation::Write, copy.to),
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
        self.cx.watch.begin_part(child, key, Some(chunk.start));
        if self.middle_of(key)[1] == StageIndex::NONE {
            // Also what a source had that was shorter than it was told.
            chunk.stored = chunk.read;
        }
        match direction {
            Direction::Read => chunk.reading = Some(child),
            Direction::Write => {
                chunk.write = Write::Running(child);
                if let Some(child) = self.transfers.get_mut(child) {
                    child.available = chunk.stored.into();
                }
            }
        }
        let Some(transfer) = self.transfers.get_mut(key) else { return true };
        if let Body::Copy(copy) = transfer.body {
            self.bodies[copy].chunks[index] = Some(chunk);
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
        let copy = &self.bodies[copy];
        let (place, offset) = copy.from;
        let length = match place {
            Place::Local(Target::Region(region)) => region.length,
            Place::Local(Target::Channel(_)) => 0,
            Place::Local(Target::File(file)) => {
                let grown = self.cx.driver.length_of(file.buffered);
                file.length.max(grown)
            }
            Place::Remote(_, handle) => {
                self.handles.remote(transfer.session, handle).map_or(0, |remote| remote.length)
            }
        };
        offset.saturating_add(end) <= length
    }

    /// Bytes of the copy that a write is a part of, if its plan begins with the read of a file of
    /// ours.
    pub(super) fn read_with(&self, waiter: Waiter) -> Option<u64> {
        let Waiter::Copy { parent, .. } = waiter else { return None };
        let transfer = self.transfers.get(parent)?;
        let Body::Copy(copy) = transfer.body else { return None };
        let copy = &self.bodies[copy];
        matches!(copy.from.0, Place::Local(Target::File(_))).then_some(transfer.length)
    }

    /// More of a chunk is read: its write goes on.
    pub(super) fn note_chunk_read(&mut self, parent: TransferKey, index: u8, bytes: u64) {
        let Some(transfer) = self.transfers.get_mut(parent) else { return };
        let Body::Copy(copy) = transfer.body else { return };
        let copy = &mut self.bodies[copy];
        let Some(chunk) = copy.chunks[usize::from(index)].as_mut() else { return };
        chunk.read = chunk.read.max(bytes as u32);
        let start = chunk.start;
        match self.middle_of(parent) {
            [_, StageIndex::NONE] => self.note_stored(parent, index, start, bytes as u32),
            _ => self.cx.sched.make_ready(Work::Transfer(parent)),
        }
    }

    /// More of a chunk is in its place: who waits for the copy sees it move, however long a chunk
    /// takes.
    pub(super) fn note_chunk_written(
        &mut self,
        parent: TransferKey,
        index: u8,
        write: TransferKey,
        bytes: u64,
    ) {
        let Some(transfer) = self.transfers.get_mut(parent) else { return };
        let Body::Copy(copy) = transfer.body else { return };
        let copy = &mut self.bodies[copy];
        let Some(chunk) = copy.chunks[usize::from(index)].as_mut() else { return };
        if chunk.write != Write::Running(write) {
            return;
        }
        let Some((from, to)) = chunk.land(bytes) else { return };
        let inserted = self.transfers.land(parent, from, to);
        debug_assert!(inserted.is_ok(), "each byte is counted once");
        self.tell_progress(parent);
    }

    /// A child is over and does not touch the chunk's staging any more.
    pub(super) fn handle_child<I: Io>(
        &mut self,
        child: TransferKey,
        (parent, pin): (TransferKey, Option<Pin<kind::Transfer>>),
        index: u8,
        (status, bytes): (Status, u64),
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get(parent) else { return };
        let (session, mut given_up) = (transfer.session, transfer.status.is_some());
        let Body::Copy(copy) = transfer.body else { return };
        let copy = &mut self.bodies[copy];
        let place = &mut copy.chunks[usize::from(index)];
        let Some(chunk) = place.as_mut() else { return };
        let ended = match chunk.reading == Some(child) {
            true => chunk.end_read(status, bytes as u32),
            false => chunk.end_write(status),
        };
        match ended {
            Ended::Read => {}
            Ended::Short => {
                copy.end = copy.end.min(chunk.start + bytes);
                // It was of more bytes.
                copy.plans[usize::from(index)] = None;
            }
            Ended::Written => {
                // Chunks are written in any order; the watermark tells how far the copy is.
                if let Some((from, to)) = chunk.land(bytes) {
                    let inserted = self.transfers.land(parent, from, to);
                    debug_assert!(inserted.is_ok(), "each byte is counted once");
                }
            }
            Ended::Revoked => {}
            Ended::Failed => {
                self.transfers.end_with(parent, status);
                given_up = true;
            }
        }
        let sibling = match (ended, chunk.write) {
            // It would wait for bytes that do not come.
            (Ended::Failed, Write::Running(write)) | (Ended::Short, Write::Revoked(write)) => {
                Some(write)
            }
            (Ended::Failed, _) => chunk.reading,
            _ => None,
        };
        if chunk.is_over(given_up) {
            let run = chunk.run;
            *place = None;
            copy.plans[usize::from(index)] = None;
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
    pub(super) fn give_up_children<I: Io>(&mut self, key: TransferKey, status: Status, io: &mut I) {
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
    pub(super) fn free_chunks(&mut self, session: SessionId, copy: CopyKey) {
        let chunks = std::mem::take(&mut self.bodies[copy].chunks);
        for chunk in chunks.into_iter().flatten() {
            self.note_copy_staging(session, chunk.run, false);
            self.cx.free_staging(chunk.run);
        }
    }

    /// Whether copies of a session may have so many bytes of staging more: one chunk always.
    pub(super) fn may_stage_copy(&mut self, session: SessionId, bytes: u64) -> bool {
        let most = self.cx.limits.client.staging;
        self.clients
            .holdings(session)
            .is_none_or(|state| state.staging.now == 0 || state.staging.now + bytes <= most)
    }

    pub(super) fn note_copy_staging(&mut self, session: SessionId, run: Run, taken: bool) {
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
