//! What is left of a copy: its chunks, each between the read that fills it and the write that
//! empties it.

use std::sync::Arc;

use piped_core::limits::{COPY_CHUNKS, FRAGMENT_BYTES_MAX};
use piped_core::status::Status;
use piped_planner::planned::Planned;
use piped_report::tally::Route;

use super::super::arena::Memory;
use super::super::buffers::Run;
use super::super::clients::Place;
use super::super::keys::TransferKey;
use crate::command::{RegionTarget, Target};

/// What is left of a copy.
#[derive(Debug)]
pub(in crate::shard) struct CopyBody {
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

/// A part of a copy in staging: a read fills it, and a write empties it.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Chunk {
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
pub(in crate::shard) enum Ended {
    /// The chunk has all its bytes.
    Read,
    /// The source ended within it.
    Short,
    /// The chunk is at the other end.
    Written,
    /// The write of more than there was.
    Revoked,
    /// One of its halves failed, and so the copy.
    Failed,
}

impl Chunk {
    /// A chunk that is about to be read. Its write follows the read where the source is known to
    /// have all of it.
    pub(in crate::shard) fn new(run: Run, start: u64, length: u32, source_has_it: bool) -> Self {
        Self {
            run,
            start,
            length,
            read: 0,
            passed: 0,
            stored: 0,
            written: 0,
            landed: 0,
            reading: None,
            write: if source_has_it { Write::Wanted } else { Write::After },
        }
    }

    /// Where it begins in the copy, and how many bytes it has.
    pub(in crate::shard) fn range(&self) -> (u64, u32) {
        (self.start, self.length)
    }

    /// The staging that it lies in, as the memory of a request.
    pub(in crate::shard) fn memory(&self) -> Memory {
        self.run.memory()
    }

    /// Whether its write is to be started.
    pub(in crate::shard) fn wants_write(&self) -> bool {
        match self.write {
            Write::Wanted => true,
            Write::After => self.reading.is_none(),
            Write::Running(_) | Write::Revoked(_) | Write::Over => false,
        }
    }

    /// A child fills it.
    pub(in crate::shard) fn begin_read(&mut self, child: TransferKey) {
        self.reading = Some(child);
    }

    /// A child empties it. How many bytes it may send at once.
    pub(in crate::shard) fn begin_write(&mut self, child: TransferKey) -> u64 {
        self.write = Write::Running(child);
        self.stored.into()
    }

    /// The child that empties it.
    pub(in crate::shard) fn writing(&self) -> Option<TransferKey> {
        match self.write {
            Write::Running(write) => Some(write),
            _ => None,
        }
    }

    /// The first `bytes` of it are read.
    pub(in crate::shard) fn note_read(&mut self, bytes: u64) {
        self.read = self.read.max(bytes as u32);
    }

    /// What was read up to `end` may be sent. How much may be, all in all.
    pub(in crate::shard) fn note_stored(&mut self, end: u32) -> u64 {
        self.stored = self.stored.max(end);
        self.stored.into()
    }

    /// Nothing stands between its halves: what is read may be sent.
    pub(in crate::shard) fn store_all(&mut self) {
        self.stored = self.read;
    }

    /// What has been read, but was left before a delay that is no more.
    pub(in crate::shard) fn left_behind(&self) -> Option<u32> {
        (self.stored < self.read && self.passed > 0).then_some(self.read)
    }

    /// Where what comes to the delay next begins.
    pub(in crate::shard) fn passing(&self) -> Option<u32> {
        let at = self.passed.max(self.stored);
        (at < self.length).then_some(at)
    }

    /// Whether its bytes up to `end` are read.
    pub(in crate::shard) fn has_read(&self, end: u32) -> bool {
        end <= self.read
    }

    /// What was read up to `end` has come to the delay.
    pub(in crate::shard) fn pass(&mut self, end: u32) {
        self.passed = end;
    }

    /// So many bytes of it are written. Returns how many that are more than were before: a chunk
    /// that is written anew counts once.
    fn note_written(&mut self, bytes: u64) -> u64 {
        let more = bytes.saturating_sub(u64::from(self.written));
        self.written = self.written.saturating_add(more as u32);
        more
    }

    /// The first `bytes` of it are in place. What of the copy that adds, from where to where.
    pub(in crate::shard) fn land(&mut self, bytes: u64) -> Option<(u64, u64)> {
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

    /// A child is over, its read or its write.
    pub(in crate::shard) fn end(
        &mut self,
        child: TransferKey,
        (status, bytes): (Status, u64),
    ) -> Ended {
        match self.reading == Some(child) {
            true => self.end_read(status, bytes as u32),
            false => self.end_write(status),
        }
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

    /// The other child, which would wait for bytes that do not come.
    pub(in crate::shard) fn in_vain(&self, ended: Ended) -> Option<TransferKey> {
        match (ended, self.write) {
            (Ended::Failed, Write::Running(write)) | (Ended::Short, Write::Revoked(write)) => {
                Some(write)
            }
            (Ended::Failed, _) => self.reading,
            _ => None,
        }
    }
}

impl CopyBody {
    /// A copy of which nothing has begun.
    pub(in crate::shard) fn new(from: (Place, u64), to: (Place, u64)) -> Self {
        let plans = [const { None }; COPY_CHUNKS];
        Self { from, to, chunks: [None; COPY_CHUNKS], plans, next: 0, end: u64::MAX }
    }

    /// Whether all its chunks are over, of `length` bytes or of as many as its source had.
    pub(in crate::shard) fn is_over(&self, length: u64) -> bool {
        self.next >= self.end.min(length) && self.chunks.iter().all(Option::is_none)
    }

    /// Where the next chunk begins, and how long it is.
    pub(in crate::shard) fn next_chunk(&self, length: u64) -> Option<(u64, u32)> {
        let left = length.min(self.end).checked_sub(self.next).filter(|&left| left > 0)?;
        Some((self.next, left.min(u64::from(FRAGMENT_BYTES_MAX)) as u32))
    }

    /// A chunk under way.
    pub(in crate::shard) fn chunk(&self, index: usize) -> Option<Chunk> {
        self.chunks[index]
    }

    /// The mutable form of [`Self::chunk`].
    pub(in crate::shard) fn chunk_mut(&mut self, index: u8) -> Option<&mut Chunk> {
        self.chunks.get_mut(usize::from(index))?.as_mut()
    }

    /// Keeps a chunk of which a half has begun; the copy goes on behind it.
    pub(in crate::shard) fn keep_chunk(&mut self, index: usize, chunk: Chunk) {
        self.next = self.next.max(chunk.start + u64::from(chunk.length));
        self.chunks[index] = Some(chunk);
    }

    /// The source ended within a chunk: the copy ends there. Its plan was of more bytes.
    pub(in crate::shard) fn cut_off(&mut self, index: u8, bytes: u64) {
        let start = self.chunk(index.into()).map_or(u64::MAX, |chunk| chunk.start);
        self.end = self.end.min(start.saturating_add(bytes));
        self.plans[usize::from(index)] = None;
    }

    /// Forgets a chunk that is over. Returns its staging.
    pub(in crate::shard) fn take_over(&mut self, index: u8, failed: bool) -> Option<Run> {
        let place = &mut self.chunks[usize::from(index)];
        let over = place.take_if(|chunk| chunk.is_over(failed))?;
        self.plans[usize::from(index)] = None;
        Some(over.run)
    }

    /// Forgets all chunks. Returns their staging.
    pub(in crate::shard) fn take_all(&mut self) -> impl Iterator<Item = Run> + use<> {
        std::mem::take(&mut self.chunks).into_iter().flatten().map(|chunk| chunk.run)
    }

    /// A chunk's plan, where one is for both halves.
    pub(in crate::shard) fn plan_of(&self, chunk: u8) -> Option<Arc<Planned>> {
        self.plans.get(usize::from(chunk))?.clone()
    }

    /// Keeps a plan for both halves of a chunk.
    pub(in crate::shard) fn set_plan(&mut self, chunk: u8, planned: Arc<Planned>) {
        if let Some(place) = self.plans.get_mut(usize::from(chunk)) {
            *place = Some(planned);
        }
    }

    /// So many bytes of a chunk are written. Returns how many that are more than were before.
    pub(in crate::shard) fn note_written(&mut self, chunk: u8, bytes: u64) -> u64 {
        self.chunk_mut(chunk).map_or(0, |chunk| chunk.note_written(bytes))
    }

    /// The regions of this node at its ends.
    pub(in crate::shard) fn regions(&self) -> impl Iterator<Item = RegionTarget> + use<> {
        [self.from.0, self.to.0].into_iter().filter_map(|place| match place {
            Place::Local(Target::Region(region)) => Some(region),
            _ => None,
        })
    }

    /// What it reads, from which byte on.
    pub(in crate::shard) fn source(&self) -> (Place, u64) {
        self.from
    }

    /// What it writes, from which byte on.
    pub(in crate::shard) fn sink(&self) -> (Place, u64) {
        self.to
    }

    /// Whether neither of its ends is here.
    pub(in crate::shard) fn is_between_peers(&self) -> bool {
        let is_here = |place: Place| matches!(place, Place::Local(_));
        !is_here(self.from.0) && !is_here(self.to.0)
    }

    /// Whether its bytes stay on this node.
    pub(in crate::shard) fn place(&self) -> Route {
        match (self.from.0, self.to.0) {
            (Place::Local(_), Place::Local(_)) => Route::Local,
            _ => Route::Remote,
        }
    }

    /// The way of its bytes, for `explain`.
    pub(in crate::shard) fn route(&self) -> &'static str {
        match (self.from.0, self.to.0) {
            (Place::Local(_), Place::Local(_)) => "local -> staging -> local",
            (Place::Remote(..), Place::Local(_)) => "peer -> lane -> staging -> local",
            (Place::Replicas(_), Place::Local(_)) => "replicas -> lanes -> staging -> local",
            (Place::Replicas(_), _) => "replicas -> lanes -> staging -> lane -> peer",
            (Place::Local(_), _) => "local -> staging -> lane -> peer",
            (Place::Remote(..), _) => "peer -> lane -> staging -> lane -> peer",
        }
    }
}
