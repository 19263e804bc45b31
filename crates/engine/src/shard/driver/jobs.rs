//! A fragment at a device: who it is for, how far its pieces are, and what becomes of it.

use piped_core::ids::{DeviceId, FileId};
use piped_core::io::{Io, Op, Span};
use piped_core::limits::{COPY_PIECE_BYTES, GRANULE_BYTES};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_model::estimate::Ticket;
use piped_planner::stage::StageIndex;
use piped_report::shard::Counters;

use super::super::buffers::{Buffers, Run};
use super::super::fair::Flow;
use super::super::keys::{ServeKey, Subject, TransferKey};
use super::super::pins::{AnyPin, Pins};
use super::super::watch::Spot;
use super::Lent;
use super::devices::On;
use super::ops::status_of;
use super::pieces::{Direction, PIECES_MAX, Piece, Way, cut};
use crate::command::FileTarget;

/// What a job is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum JobOwner {
    /// A fragment of a local transfer, `start` bytes into it.
    Transfer { transfer: TransferKey, start: u64 },
    /// A fragment of a peer's read, `start` bytes into it.
    ServeRead { serve: ServeKey, start: u64 },
    /// A fragment of a peer's write, `start` bytes into it. `paid`: its credit went back already.
    ServeWrite { serve: ServeKey, start: u64, paid: bool },
}

impl JobOwner {
    /// Where the fragment starts in its request.
    pub(in crate::shard) fn start(self) -> u64 {
        match self {
            Self::Transfer { start, .. }
            | Self::ServeRead { start, .. }
            | Self::ServeWrite { start, .. } => start,
        }
    }

    /// The request of the fragment.
    pub(in crate::shard) fn subject(self) -> Subject {
        match self {
            Self::Transfer { transfer, .. } => Subject::Transfer(transfer),
            Self::ServeRead { serve, .. } | Self::ServeWrite { serve, .. } => Subject::Serve(serve),
        }
    }

    /// Keeps the request's memory until the job is over.
    fn pin(self, pins: &mut Pins) -> AnyPin {
        match self {
            Self::Transfer { transfer, .. } => pins.take(transfer).into(),
            Self::ServeRead { serve, .. } | Self::ServeWrite { serve, .. } => {
                pins.take(serve).into()
            }
        }
    }
}

/// A fragment that is to go to a device.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Fragment {
    pub(in crate::shard) owner: JobOwner,
    pub(in crate::shard) flow: Flow,
    pub(in crate::shard) target: FileTarget,
    pub(in crate::shard) direction: Direction,
    /// Where it starts in the file.
    pub(in crate::shard) offset: u64,
    pub(in crate::shard) span: Span,
}

/// A fragment at a disk.
#[derive(Debug)]
pub(super) struct Job {
    fragment: Fragment,
    pin: AnyPin,
    stage: StageIndex,
    /// The job is with the device.
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
pub(in crate::shard) struct JobResult {
    /// Bytes that were asked for.
    pub(in crate::shard) asked: u32,
    /// Contiguous bytes from its start.
    pub(in crate::shard) bytes: u32,
    pub(in crate::shard) status: Status,
}

/// The end of a job.
#[derive(Debug)]
pub(in crate::shard) struct JobEnd {
    pub(in crate::shard) device: DeviceId,
    pub(in crate::shard) direction: Direction,
    pub(in crate::shard) owner: JobOwner,
    pub(in crate::shard) pin: AnyPin,
    pub(in crate::shard) result: JobResult,
}

impl Job {
    /// Cuts a fragment into pieces. A read that is not aligned gets staging; without any it goes
    /// through the page cache: right, only slower.
    pub(super) fn new(
        fragment: Fragment,
        stage: StageIndex,
        pins: &mut Pins,
        buffers: &mut Buffers,
        counters: &mut Counters,
    ) -> Self {
        let Fragment { owner, target, direction, offset, span, .. } = fragment;
        let alignment = target.direct.map(|(_, alignment)| alignment);
        let mut pieces = [None; PIECES_MAX];
        let cut = cut(direction, alignment, offset, span);
        for (place, mut piece) in pieces.iter_mut().zip(cut.iter()) {
            let mut bounce = None;
            if let Way::Bounced { block, .. } = piece.way {
                counters.bounced_unaligned += 1;
                bounce = buffers.take_run(block);
                if bounce.is_none() {
                    piece.way = Way::Buffered;
                }
            }
            let file = match (piece.way, target.direct) {
                (Way::Direct | Way::Bounced { .. }, Some((direct, _))) => direct,
                _ => target.buffered,
            };
            *place = Some(Progress { piece, file, bounce, done: 0, block_done: 0, ended: false });
        }
        let pin = owner.pin(pins);
        Self { fragment, pin, stage, ticket: None, pieces, status: Status::Ok }
    }

    pub(super) fn fragment(&self) -> &Fragment {
        &self.fragment
    }

    pub(super) fn on(&self) -> On {
        On::from(&self.fragment.target)
    }

    /// Staging that waits for the device.
    pub(super) fn staging_bytes(&self) -> u64 {
        match self.fragment.owner {
            JobOwner::Transfer { .. } => 0,
            JobOwner::ServeRead { .. } | JobOwner::ServeWrite { .. } => {
                u64::from(self.fragment.span.length.next_multiple_of(GRANULE_BYTES))
            }
        }
    }

    /// The device has it from now on.
    pub(super) fn arrive(&mut self, lent: &mut Lent<'_>, now: Nanos) {
        let Fragment { owner, span, .. } = self.fragment;
        self.ticket = Some(lent.planner.arrive(self.stage, now));
        let piece = (owner.start(), span.length);
        lent.watch.enter_stage(owner.subject(), self.stage, piece, now);
    }

    /// The operation for what is left of a piece.
    pub(super) fn next_op(&self, index: usize) -> Option<Op> {
        let Fragment { direction, target, offset, span, .. } = self.fragment;
        let progress = self.pieces[index].as_ref()?;
        let (file, piece) = (progress.file, progress.piece);
        let at = offset + u64::from(piece.start);
        let (offset, span) = match (piece.way, progress.bounce) {
            (Way::Bounced { skip, block }, Some(run)) => {
                let done = progress.block_done;
                (at - u64::from(skip) + u64::from(done), run.span.part(done, block - done))
            }
            _ => (
                at + u64::from(progress.done),
                span.part(piece.start + progress.done, piece.length - progress.done),
            ),
        };
        // What is in memory is copied by this thread, a piece a turn.
        let span = if target.cached { span.part(0, COPY_PIECE_BYTES) } else { span };
        Some(match direction {
            Direction::Read => Op::Read { file, offset, into: span },
            Direction::Write => Op::Write { file, offset, from: span },
        })
    }

    /// A piece's operation ended: done, short, or failed. Whether the piece wants another one.
    pub(super) fn advance(&mut self, index: usize, result: i32) -> bool {
        let Some(progress) = self.pieces[index].as_mut() else { return false };
        if result < 0 {
            self.end_piece(index, status_of(result));
            return false;
        }
        let more = progress.advance(result as u32);
        // Most likely the end of the file. If the device only did less than was asked, the rest is
        // where O_DIRECT cannot begin.
        let target = self.fragment.target;
        let unit = target.direct.map_or(1, |(_, it)| it.offset.max(it.memory).max(1));
        if !progress.at().is_multiple_of(unit) {
            progress.file = target.buffered;
        }
        // A write that moves nothing would be pushed for ever: the kernel owes an error.
        let stuck = self.fragment.direction == Direction::Write && result == 0;
        if !more || stuck {
            self.end_piece(index, if more { Status::Io } else { Status::Ok });
        }
        more && !stuck
    }

    /// Nothing more is done for a piece. A job has the status of what failed first.
    pub(super) fn end_piece(&mut self, index: usize, status: Status) {
        if self.status == Status::Ok {
            self.status = status;
        }
        if let Some(progress) = self.pieces[index].as_mut() {
            progress.ended = true;
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.pieces.iter().flatten().all(|progress| progress.ended)
    }

    /// Whether it went past the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.pieces.iter().flatten().all(|progress| progress.piece.way != Way::Buffered)
    }

    /// Contiguous bytes that are moved, from its start on.
    fn bytes(&self) -> u32 {
        let mut bytes = 0;
        for progress in self.pieces.iter().flatten() {
            bytes += progress.done;
            if progress.done < progress.piece.length {
                break;
            }
        }
        bytes
    }

    /// Puts what was bounced where it belongs, and gives the staging for that back.
    pub(super) fn unbounce<I: Io>(&self, lent: &mut Lent<'_>, io: &mut I) {
        for progress in self.pieces.iter().flatten() {
            let Some(run) = progress.bounce else { continue };
            if let Way::Bounced { skip, .. } = progress.piece.way
                && progress.done > 0
            {
                let to = self.fragment.span.part(progress.piece.start, progress.done);
                io.copy(run.span.part(skip, progress.done), to);
            }
            lent.buffers.free(run, lent.sched);
        }
    }

    /// The device is done with it: measures what it did.
    pub(super) fn depart(self, lent: &mut Lent<'_>, now: Nanos) -> JobEnd {
        let Fragment { owner, span, target, .. } = self.fragment;
        let (bytes, subject) = (self.bytes(), owner.subject());
        lent.watch.moved(subject, Spot::Device(target.device), bytes.into());
        if let Some(ticket) = self.ticket {
            let counts = self.status == Status::Ok && bytes == span.length;
            lent.planner.depart(self.stage, ticket, span.length, counts, now);
        }
        lent.watch.leave_stage(subject, self.stage, Some(owner.start()), now);
        let status = self.status;
        self.end(bytes, status)
    }

    /// The end of a job that has moved so many bytes.
    pub(super) fn end(self, bytes: u32, status: Status) -> JobEnd {
        let Fragment { owner, target, direction, span, .. } = self.fragment;
        let result = JobResult { asked: span.length, bytes, status };
        JobEnd { device: target.device, direction, owner, pin: self.pin, result }
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
