//! One fragment of a file: cut into what may go direct and what may not, pushed, put together.
//!
//! O_DIRECT wants file offsets, lengths and memory addresses aligned; clients' ranges need not be.
//! The aligned middle goes direct. An unaligned edge of a *read* is bounced: the aligned block
//! around it is read into staging and the wanted part copied. An unaligned edge of a *write* goes
//! through the page cache by the second descriptor, never by read-modify-write: the neighbouring
//! bytes may be another client's, written at this very moment. The page cache reads and writes
//! whole pages, so no page is written both ways: one that is in the cache when its neighbouring
//! bytes go direct keeps the old ones, and puts them back later.

use piped_core::access::Alignment;
use piped_core::ids::FileId;
use piped_core::io::{Io, Op, Span};
use piped_core::limits::{GRANULE_BYTES, OPS_PER_JOB};
use piped_core::status::Status;
use piped_model::estimate::Ticket;
use piped_planner::stage::StageIndex;

use super::Shard;
use super::company::Spot;
use super::devices::On;
use super::devices::Wanted;
use super::dial::{Effect, Hop};
use super::driver::Driver;
use super::fair::Flow;
use super::keys::{JobKey, ServeKey, TransferKey};
use super::ops::OpOwner;
use super::pins::AnyPin;
use super::sched::Work;
use super::staging::Run;
use crate::command::FileTarget;

/// Which way a job moves bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// How a piece travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// O_DIRECT between the device and the memory named.
    Direct,
    /// Through the page cache.
    Buffered,
    /// O_DIRECT between the device and staging, and a copy: `skip` bytes into the aligned block.
    Bounced { skip: u32, block: u32 },
}

/// A part of a job that is one operation at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) way: Way,
    /// Bytes from the job's start.
    pub(super) start: u32,
    pub(super) length: u32,
}

const PIECES_MAX: usize = OPS_PER_JOB as usize;

/// What the page cache reads and writes at once, at least; where it is more, the driver says so as
/// the alignment.
const PAGE_BYTES: u64 = 4096;

/// The pieces of a job, in order and without gaps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pieces {
    items: [Option<Piece>; PIECES_MAX],
}

impl Pieces {
    fn push(&mut self, way: Way, start: u64, end: u64) {
        if start < end {
            let piece = Piece { way, start: start as u32, length: (end - start) as u32 };
            let free = self.items.iter_mut().find(|item| item.is_none());
            *free.expect("a fragment has a head, a middle and a tail") = Some(piece);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Piece> {
        self.items.into_iter().flatten()
    }
}

/// Cuts the file range at `offset` of `span.length` bytes.
pub(super) fn cut(
    direction: Direction,
    direct: Option<Alignment>,
    offset: u64,
    span: Span,
) -> Pieces {
    let mut pieces = Pieces::default();
    let length = u64::from(span.length);
    let Some(alignment) = direct else {
        pieces.push(Way::Buffered, 0, length);
        return pieces;
    };
    let block = match direction {
        Direction::Read => u64::from(alignment.offset.max(1)),
        // A device of 512-byte sectors takes a part of a page.
        Direction::Write => u64::from(alignment.offset).max(PAGE_BYTES),
    };
    let end = offset + length;
    let (middle, tail) =
        (offset.next_multiple_of(block).min(end), (end / block * block).max(offset));
    let memory_fits =
        (span.offset + (middle - offset)).is_multiple_of(u64::from(alignment.memory.max(1)));
    match direction {
        Direction::Read if memory_fits && middle < tail => {
            pieces.push(bounce(offset, block, offset, middle), 0, middle - offset);
            pieces.push(Way::Direct, middle - offset, tail - offset);
            pieces.push(bounce(tail, block, tail, end), tail - offset, length);
        }
        Direction::Read => pieces.push(bounce(offset, block, offset, end), 0, length),
        Direction::Write if memory_fits && middle < tail => {
            pieces.push(Way::Buffered, 0, middle - offset);
            pieces.push(Way::Direct, middle - offset, tail - offset);
            pieces.push(Way::Buffered, tail - offset, length);
        }
        Direction::Write => pieces.push(Way::Buffered, 0, length),
    }
    pieces
}

fn bounce(from: u64, block: u64, start: u64, end: u64) -> Way {
    let aligned = from / block * block;
    Way::Bounced {
        skip: (start - aligned) as u32,
        block: (end.next_multiple_of(block) - aligned) as u32,
    }
}

/// Who waits for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobOwner {
    /// A fragment of a local transfer, `start` bytes into it.
    Transfer { transfer: TransferKey, start: u64 },
    /// A fragment of a peer's read, `start` bytes into it.
    ServeRead { serve: ServeKey, start: u64 },
    /// A fragment of a peer's write, `start` bytes into it. `paid`: its credit went back already.
    ServeWrite { serve: ServeKey, start: u64, paid: bool },
}

impl JobOwner {
    /// Where the fragment starts in its request.
    pub(super) fn start(self) -> u64 {
        match self {
            Self::Transfer { start, .. }
            | Self::ServeRead { start, .. }
            | Self::ServeWrite { start, .. } => start,
        }
    }

    pub(super) fn work(self) -> Work {
        match self {
            Self::Transfer { transfer, .. } => Work::Transfer(transfer),
            Self::ServeRead { serve, .. } | Self::ServeWrite { serve, .. } => Work::Serve(serve),
        }
    }
}

/// A fragment at a disk.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) owner: JobOwner,
    pin: Option<AnyPin>,
    direction: Direction,
    offset: u64,
    span: Span,
    on: On,
    /// Where a piece goes on that stopped where O_DIRECT cannot begin, and what it can begin at
    /// multiples of.
    buffered: FileId,
    unit: u32,
    stage: StageIndex,
    flow: Flow,
    /// It is with the device.
    ticket: Option<Ticket>,
    pieces: [Option<Progress>; PIECES_MAX],
    status: Status,
}

/// A piece and how far it is.
#[derive(Debug, Clone, Copy)]
struct Progress {
    piece: Piece,
    file: FileId,
    bounce: Option<Run>,
    /// Bytes of the job done by this piece; for a bounced piece only set at its end.
    done: u32,
    /// Bytes of the aligned block read so far.
    block_done: u32,
    ended: bool,
}

/// What became of a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobResult {
    /// Bytes that were asked for.
    pub(super) asked: u32,
    /// Contiguous bytes from its start.
    pub(super) bytes: u32,
    pub(super) status: Status,
}

impl Job {
    /// Staging that waits for the device.
    fn staging_bytes(&self) -> u64 {
        match self.owner {
            JobOwner::Transfer { .. } => 0,
            JobOwner::ServeRead { .. } | JobOwner::ServeWrite { .. } => {
                u64::from(self.span.length.next_multiple_of(GRANULE_BYTES))
            }
        }
    }
}

impl Shard {
    /// Starts a job, or says what it must wait for.
    pub(super) fn start_job<I: Io>(
        &mut self,
        owner: JobOwner,
        target: FileTarget,
        direction: Direction,
        offset: u64,
        span: Span,
        io: &mut I,
    ) -> Result<(), Wanted> {
        let on = On::from(&target);
        if !self.cx.driver.devices.has_room(on, self.cx.driver.ops.len()) {
            return Err(Wanted::Device(on));
        }
        let ops = OPS_PER_JOB + self.cx.driver.devices.reserved();
        if self.cx.driver.jobs.room() == 0
            || self.cx.driver.ops.room() < ops
            || self.cx.dials.is_full()
        {
            return Err(Wanted::Anything);
        }
        let now = io.now();
        let pieces = cut(direction, target.direct.map(|(_, alignment)| alignment), offset, span);
        let mut progress = [None; PIECES_MAX];
        for (place, piece) in progress.iter_mut().zip(pieces.iter()) {
            *place = Some(self.prepare_piece(target, piece));
        }
        let stage = self.cx.planner.disk_stage(target.device, direction == Direction::Write);
        let flow = self.flow_of(owner.work());
        let job = Job {
            owner,
            pin: self.pin_work(owner.work()),
            direction,
            offset,
            span,
            on,
            buffered: target.buffered,
            unit: target
                .direct
                .map_or(1, |(_, alignment)| alignment.offset.max(alignment.memory).max(1)),
            stage,
            flow,
            ticket: None,
            pieces: progress,
            status: Status::Ok,
        };
        self.cx.driver.devices.hold(on, job.staging_bytes());
        let Ok(key) = self.cx.driver.jobs.insert(job) else {
            unreachable!("room was checked above")
        };
        if self.cx.driver.devices.arrive(on, flow, span.length, key, now) {
            self.launch(key, io);
        } else {
            self.cx.watch.counters.turns_waited += 1;
        }
        Ok(())
    }

    /// Gives a job to its device.
    fn launch<I: Io>(&mut self, key: JobKey, io: &mut I) {
        let now = io.now();
        let Some(job) = self.cx.driver.jobs.get_mut(key) else { return };
        let (owner, stage, length) = (job.owner, job.stage, job.span.length);
        job.ticket = Some(self.cx.planner.arrive(stage, now));
        self.enter_stage(owner.into(), stage, (owner.start(), length), now);
        for index in 0..PIECES_MAX {
            self.push_piece(key, index, io);
        }
    }

    /// Jobs whose turn has come, as far as there is room for their operations.
    pub(super) fn launch_waiting<I: Io>(&mut self, io: &mut I) {
        while self.cx.driver.devices.reserved() > 0 && self.cx.driver.ops.room() >= OPS_PER_JOB {
            let Some(key) = self.cx.driver.devices.poll_any_job(io.now()) else { return };
            self.launch(key, io);
        }
    }

    /// What is given up does not go to its device any more.
    pub(super) fn drop_waiting<I: Io>(&mut self, work: Work, io: &mut I) {
        let Driver { devices, jobs, .. } = &mut self.cx.driver;
        let dropped =
            devices.remove_jobs(|&key| jobs.get(key).is_some_and(|job| job.owner.work() == work));
        for key in dropped {
            let Some(job) = self.cx.driver.jobs.remove(key) else { continue };
            self.cx.driver.devices.let_go(job.on, job.staging_bytes());
            for run in job.pieces.iter().flatten().filter_map(|progress| progress.bounce) {
                self.free_staging(run);
            }
            let result = JobResult { asked: job.span.length, bytes: 0, status: Status::Cancelled };
            self.handle_job((job.owner, job.pin), result, io);
        }
    }

    /// Chooses the descriptor, and staging where the piece needs it. Without staging a bounced read
    /// goes through the page cache: right, only slower.
    fn prepare_piece(&mut self, target: FileTarget, piece: Piece) -> Progress {
        let mut way = piece.way;
        let mut bounce = None;
        if let Way::Bounced { block, .. } = way {
            self.cx.watch.counters.bounced_unaligned += 1;
            bounce = self.cx.buffers.staging.allocate(block);
            if bounce.is_none() {
                way = Way::Buffered;
            }
        }
        let file = match (way, target.direct) {
            (Way::Direct | Way::Bounced { .. }, Some((direct, _))) => direct,
            _ => target.buffered,
        };
        let piece = Piece { way, ..piece };
        Progress { piece, file, bounce, done: 0, block_done: 0, ended: false }
    }

    /// Pushes what is left of a piece.
    fn push_piece<I: Io>(&mut self, key: JobKey, index: usize, io: &mut I) {
        let Some(job) = self.cx.driver.jobs.get_mut(key) else { return };
        let Some(progress) = job.pieces[index].as_mut() else { return };
        let piece = progress.piece;
        let at = job.offset + u64::from(piece.start);
        let (offset, span) = match (piece.way, progress.bounce) {
            (Way::Bounced { skip, block }, Some(run)) => {
                let done = progress.block_done;
                (at - u64::from(skip) + u64::from(done), run.span.part(done, block - done))
            }
            _ => (
                at + u64::from(progress.done),
                job.span.part(piece.start + progress.done, piece.length - progress.done),
            ),
        };
        let op = match job.direction {
            Direction::Read => Op::Read { file: progress.file, offset, into: span },
            Direction::Write => Op::Write { file: progress.file, offset, from: span },
        };
        let (owner, on) = (OpOwner::Piece { job: key, piece: index as u8 }, job.on);
        if self.start_granted_op(owner, on, op, io).is_none() {
            self.end_piece(key, index, Status::WouldBlock);
        }
    }

    /// Takes the end of a piece's operation: done, short, or failed.
    pub(super) fn handle_piece<I: Io>(
        &mut self,
        key: JobKey,
        index: usize,
        result: i32,
        io: &mut I,
    ) {
        let Some(job) = self.cx.driver.jobs.get_mut(key) else { return };
        let direction = job.direction;
        let Some(progress) = job.pieces[index].as_mut() else { return };
        if result < 0 {
            let status = super::ops::status_of(result);
            self.end_piece(key, index, status);
        } else {
            let more = progress.advance(result as u32);
            // Most likely the end of the file. If the device only did less than was asked, the rest
            // is where O_DIRECT cannot begin.
            if !progress.at().is_multiple_of(job.unit) {
                progress.file = job.buffered;
            }
            // A write that moves nothing would be pushed for ever: the kernel owes an error.
            let stuck = direction == Direction::Write && result == 0;
            match more {
                true if !stuck => self.push_piece(key, index, io),
                true => self.end_piece(key, index, Status::Io),
                false => self.end_piece(key, index, Status::Ok),
            }
        }
        self.finish_job_if_over(key, io);
    }

    fn end_piece(&mut self, key: JobKey, index: usize, status: Status) {
        let Some(job) = self.cx.driver.jobs.get_mut(key) else { return };
        if job.status == Status::Ok {
            job.status = status;
        }
        if let Some(progress) = job.pieces[index].as_mut() {
            progress.ended = true;
        }
    }

    fn finish_job_if_over<I: Io>(&mut self, key: JobKey, io: &mut I) {
        let Some(job) = self.cx.driver.jobs.get(key) else { return };
        if job.pieces.iter().flatten().any(|progress| !progress.ended) {
            return;
        }
        let Some(job) = self.cx.driver.jobs.remove(key) else { return };
        self.cx.driver.devices.let_go(job.on, job.staging_bytes());
        for progress in job.pieces.iter().flatten() {
            if let Some(run) = progress.bounce {
                if let Way::Bounced { skip, .. } = progress.piece.way {
                    let length = progress.done;
                    let to = job.span.part(progress.piece.start, length);
                    if length > 0 {
                        io.copy(run.span.part(skip, length), to);
                    }
                }
                self.free_staging(run);
            }
        }
        let mut bytes = 0;
        for progress in job.pieces.iter().flatten() {
            bytes += progress.done;
            if progress.done < progress.piece.length {
                break;
            }
        }
        let now = self.batch_time(io);
        let mut pieces = job.pieces.iter().flatten();
        let direct = pieces.all(|progress| progress.piece.way != Way::Buffered);
        self.cx.driver.devices.leave(job.on, job.flow.class, job.span.length, direct, now);
        if self.cx.driver.ops.room() >= OPS_PER_JOB
            && let Some(next) = self.cx.driver.devices.poll_job(job.on, now)
        {
            self.launch(next, io);
        }
        let stays = &self.cx.watch.observed.of(job.owner.into()).stays;
        self.cx.watch.company.moved(stays, Spot::Device(job.on.device()), bytes.into());
        let counts = job.status == Status::Ok && bytes == job.span.length;
        if let Some(ticket) = job.ticket {
            self.cx.planner.depart(job.stage, ticket, job.span.length, counts, now);
        }
        self.leave_stage(job.owner.into(), job.stage, Some(job.owner.start()), now);
        let result = JobResult { asked: job.span.length, bytes, status: job.status };
        if self.cx.dials.any() && bytes > 0 {
            let Job { on, direction, owner, pin, .. } = job;
            let effect = Effect::Job { device: on.device(), direction, owner, pin, result };
            return self.pass(Hop::Disk, effect, bytes, io);
        }
        self.handle_job((job.owner, job.pin), result, io);
    }

    pub(super) fn handle_job<I: Io>(
        &mut self,
        (owner, pin): (JobOwner, Option<AnyPin>),
        result: JobResult,
        io: &mut I,
    ) {
        let start = owner.start();
        match (owner, pin) {
            (JobOwner::Transfer { .. }, Some(AnyPin::Transfer(pin))) => {
                self.handle_fragment(pin, start, result, io);
            }
            (JobOwner::ServeRead { .. }, Some(AnyPin::Serve(pin))) => {
                self.handle_fragment_read(pin, start, result);
            }
            (JobOwner::ServeWrite { paid, .. }, Some(AnyPin::Serve(pin))) => {
                self.handle_fragment_written(pin, start, paid, result);
            }
            _ => {}
        }
        self.cx.sched.make_ready(owner.work());
    }
}

impl Progress {
    /// Books `bytes` of the operation. Returns whether the piece wants more.
    fn advance(&mut self, bytes: u32) -> bool {
        if let Way::Bounced { skip, block } = self.piece.way {
            self.block_done = (self.block_done + bytes).min(block);
            self.done = self.block_done.saturating_sub(skip).min(self.piece.length);
        } else {
            self.done = (self.done + bytes).min(self.piece.length);
        }
        bytes > 0 && self.done < self.piece.length
    }

    /// How far its operations are, from where the first one began.
    const fn at(&self) -> u32 {
        match self.piece.way {
            Way::Bounced { .. } => self.block_done,
            Way::Direct | Way::Buffered => self.done,
        }
    }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::SegmentId;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Pieces cover the range without gap or overlap, direct ones are aligned in file and
        /// memory, and writes never touch a byte outside the range.
        #[test]
        fn pieces_cover_and_align(
            offset in 0u64..40_000,
            length in 1u32..40_000,
            memory in 0u64..9_000,
            block in prop::sample::select(vec![512u32, 4096]),
            aligned_memory: bool,
            write: bool,
        ) {
            let memory = if aligned_memory { memory / 4096 * 4096 + offset % 4096 } else { memory };
            let alignment = Alignment { offset: block, memory: 512 };
            let span = Span { segment: SegmentId(0), offset: memory, length };
            let direction = if write { Direction::Write } else { Direction::Read };
            let mut at = 0;
            // The last page that went direct, or through the page cache.
            let mut before = None;
            for piece in cut(direction, Some(alignment), offset, span).iter() {
                prop_assert_eq!(piece.start, at);
                at += piece.length;
                let file_offset = offset + u64::from(piece.start);
                let last = file_offset + u64::from(piece.length) - 1;
                if write {
                    prop_assert!(before != Some(file_offset / PAGE_BYTES), "written both ways");
                }
                before = Some(last / PAGE_BYTES);
                match piece.way {
                    Way::Direct => {
                        prop_assert_eq!(file_offset % u64::from(block), 0);
                        prop_assert_eq!(piece.length % block, 0);
                        prop_assert_eq!((memory + u64::from(piece.start)) % 512, 0);
                    }
                    Way::Buffered => prop_assert!(write),
                    Way::Bounced { skip, block: bytes } => {
                        prop_assert!(!write);
                        prop_assert_eq!((file_offset - u64::from(skip)) % u64::from(block), 0);
                        prop_assert_eq!(bytes % block, 0);
                        prop_assert!(skip + piece.length <= bytes);
                        prop_assert!(bytes < skip + piece.length + block);
                    }
                }
            }
            prop_assert_eq!(at, length);
        }
    }

    #[test]
    fn without_direct_io_everything_is_buffered() {
        let span = Span { segment: SegmentId(0), offset: 3, length: 100 };
        let pieces: Vec<_> = cut(Direction::Write, None, 7, span).iter().collect();
        assert_eq!(pieces, [Piece { way: Way::Buffered, start: 0, length: 100 }]);
    }
}
