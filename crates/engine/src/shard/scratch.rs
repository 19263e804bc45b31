//! A lane's scratch: little while it rests, more while it works; and it moves when its segment is
//! to go.
//!
//! A lane that says nothing costs a granule of staging, and with that it can do all that a lane
//! does but send what is encrypted; it receives in smaller bites. With its first request a lane
//! gets what makes it fast; one that encrypts gets that when it comes up, if there is as much.
//! There is, as long as transfers keep what they need at least ([`STAGING_LEAST`]) and one more
//! lane can begin to work; and, where some nodes have keys, as long as plain lanes have no more
//! than their share. A lane that finds none takes it from lanes that rest again.
//!
//! A lane lives as long as its peer, so a segment that holds its scratch would never drain. It is
//! moved while the kernel has neither a send nor a receive of the lane: sends stop after the batch
//! that is under way, and only then is the receive taken back, so that a peer that waits for us to
//! read is not waited for. Without room for a new scratch the lane goes on as it is, and tries
//! again.

use piped_core::io::{Io, Span, Token};
use piped_core::limits::{GRANULE_BYTES, PLAIN_STAGING_DIVISOR, STAGING_LEAST};
use piped_wire::{Receiver, SEALED_ROOM_BYTES, Sender};

use super::Shard;
use super::keys::LaneKey;
use super::lane::{Lane, LaneState};
use super::sched::Work;
use super::staging::{Run, footprint_of};

/// What a lane has of staging for itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scratch {
    frames: Run,
    /// For what it encrypts, while it works.
    room: Option<Run>,
    size: Size,
}

/// How much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// Enough to wait.
    Resting,
    /// Enough to be fast.
    Working,
}

impl Scratch {
    /// For a receiver and a sender.
    const FRAMES_BYTES: u32 = Receiver::SCRATCH_BYTES + Sender::SCRATCH_BYTES;

    fn bytes_of_receiver(self) -> u32 {
        match self.size {
            Size::Resting => RESTING_BYTES - RESTING_BYTES_SENT,
            Size::Working => Receiver::SCRATCH_BYTES,
        }
    }

    pub(super) fn of_receiver(self) -> Span {
        self.frames.span.part(0, self.bytes_of_receiver())
    }

    pub(super) fn of_sender(self) -> Span {
        self.frames.span.part(self.bytes_of_receiver(), u32::MAX)
    }

    pub(super) fn is_resting(self) -> bool {
        self.size == Size::Resting
    }

    /// What it takes of staging, in bytes.
    pub(super) fn footprint(self) -> u64 {
        self.runs().map(Run::footprint).sum()
    }

    fn footprint_of(size: Size, encrypts: bool) -> u64 {
        match size {
            Size::Resting => footprint_of(RESTING_BYTES),
            Size::Working if encrypts => {
                footprint_of(Self::FRAMES_BYTES) + footprint_of(SEALED_ROOM_BYTES)
            }
            Size::Working => footprint_of(Self::FRAMES_BYTES),
        }
    }

    pub(super) fn room(self) -> Option<Span> {
        self.room.map(|room| room.span)
    }

    fn runs(self) -> impl Iterator<Item = Run> {
        [Some(self.frames), self.room].into_iter().flatten()
    }
}

/// What a lane has at rest: the least there is to have.
const RESTING_BYTES: u32 = GRANULE_BYTES;
/// Of that for frames that are sent: 64 without payloads, and one by value.
const RESTING_BYTES_SENT: u32 = 16 * 1024;
const _: () = assert!(RESTING_BYTES - RESTING_BYTES_SENT >= Receiver::SCRATCH_BYTES_LEAST);
/// Of staging, as a divisor, what lanes at work leave for those that come up while they are asked
/// for theirs.
const RESTING_DIVISOR: u64 = 16;

impl Shard {
    /// Scratch for a lane; none without staging for it.
    pub(super) fn allocate_scratch(&mut self, size: Size, encrypts: bool) -> Option<Scratch> {
        let bytes = match size {
            Size::Resting => RESTING_BYTES,
            Size::Working => Scratch::FRAMES_BYTES,
        };
        let frames = self.cx.buffers.staging.allocate_scratch(bytes)?;
        if !encrypts || size == Size::Resting {
            return Some(Scratch { frames, room: None, size });
        }
        let room = self.cx.buffers.staging.allocate_scratch(SEALED_ROOM_BYTES);
        if room.is_none() {
            self.give_back(frames);
        }
        room.map(|room| Scratch { frames, room: Some(room), size })
    }

    /// Scratch for a lane that comes up. One that encrypts cannot send without more, and does not
    /// wait for that in the midst of its work if there is enough now.
    pub(super) fn first_scratch(&mut self, encrypts: bool) -> Option<Scratch> {
        if encrypts && self.may_grow(Scratch::footprint_of(Size::Working, true)) {
            let working = self.allocate_scratch(Size::Working, true);
            if working.is_some() {
                return working;
            }
        }
        if !self.may_rest(encrypts, false) {
            return None;
        }
        self.allocate_scratch(Size::Resting, encrypts)
    }

    /// The size that a lane's scratch should have, where it has another one.
    fn size_wanted(&self, lane: &Lane) -> Option<Size> {
        let works = lane.is_at_work();
        match lane.scratch.size {
            Size::Resting if works && self.may_work(lane) => Some(Size::Working),
            Size::Working if lane.gives_back && !works => Some(Size::Resting),
            _ => None,
        }
    }

    /// Whether there is staging for a lane that has begun to work.
    fn may_work(&self, lane: &Lane) -> bool {
        let encrypts = lane.sender.moves_payloads();
        let more = Scratch::footprint_of(Size::Working, encrypts) - lane.scratch.footprint();
        self.may_grow(more) && (!lane.is_beside_keys() || self.is_plain_share(more))
    }

    /// Whether there is staging for one more lane that rests. If those that have worked have it,
    /// they are asked for it before it is used up; and if all of them rested, one that needs the
    /// most must be able to work.
    pub(super) fn may_rest(&mut self, encrypts: bool, beside_keys: bool) -> bool {
        let rest = Scratch::footprint_of(Size::Resting, encrypts);
        if !self.may_grow(rest) {
            self.ask_back(false);
        }
        let kept = self.cx.buffers.staging.kept_bytes();
        let encrypts = encrypts || self.lanes.iter().any(|(_, it)| it.sender.moves_payloads());
        let work = Scratch::footprint_of(Size::Working, encrypts);
        let all = rest * (u64::from(self.lanes.len()) + 1) + work + STAGING_LEAST;
        self.cx.buffers.staging.scratch_bytes() + rest + STAGING_LEAST <= kept
            && all + kept / RESTING_DIVISOR <= kept
            && (!beside_keys || self.is_plain_share(rest))
    }

    /// Whether lanes may have so much more of staging for work: some is left for lanes that come
    /// up.
    fn may_grow(&self, more: u64) -> bool {
        let kept = self.cx.buffers.staging.kept_bytes();
        self.cx.buffers.staging.scratch_bytes() + more + STAGING_LEAST + kept / RESTING_DIVISOR
            <= kept
    }

    /// Whether plain lanes have no more than their share beside keys, with so many bytes more.
    fn is_plain_share(&self, more: u64) -> bool {
        let lanes = self.lanes.iter().map(|(_, lane)| lane).filter(|lane| lane.is_unproven());
        let plain: u64 = lanes.map(|lane| lane.scratch.footprint()).sum();
        plain + more <= self.cx.buffers.staging.kept_bytes() / PLAIN_STAGING_DIVISOR
    }

    /// Lanes that have worked are asked for what they had for it, once they rest; `plain`: only
    /// those that stand beside keys.
    pub(super) fn ask_back(&mut self, plain: bool) {
        let mut from = 0;
        let has = |lane: &Lane| {
            let may = !plain || lane.is_beside_keys();
            may && lane.state == LaneState::Up && !lane.scratch.is_resting() && !lane.gives_back
        };
        while let Some(key) = self.lanes.next_from(from, has) {
            from = key.index() + 1;
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.gives_back = true;
            }
            self.cx.sched.make_ready(Work::Lane(key));
        }
    }

    /// Gives a lane's scratch back with the lane.
    pub(super) fn bury_scratch(&mut self, lane: &Lane) {
        self.free_scratch(lane.scratch);
        if let Some(next) = lane.next_scratch {
            self.free_scratch(next);
        }
    }

    pub(super) fn free_scratch(&mut self, scratch: Scratch) {
        for run in scratch.runs() {
            self.free_staging(run);
        }
    }

    fn is_leaving(&self, scratch: Scratch) -> bool {
        scratch.runs().any(|run| self.cx.buffers.staging.is_leaving(run))
    }

    /// Moves a lane's scratch if that has to be. `false`: the lane must not begin a send or a
    /// receive now.
    pub(super) fn move_scratch<I: Io>(&mut self, key: LaneKey, io: &mut I) -> bool {
        let Some(lane) = self.lanes.get(key) else { return true };
        let encrypts = lane.sender.moves_payloads();
        if lane.scratch.is_resting() && lane.is_at_work() && !self.may_work(lane) {
            self.ask_back(lane.is_beside_keys());
            if encrypts {
                self.cx.sched.starve(Work::Lane(key));
            }
        }
        let Some(lane) = self.lanes.get(key) else { return true };
        let leaves = self.is_leaving(lane.scratch);
        let wanted = self.size_wanted(lane);
        if !leaves && wanted.is_none() {
            if let Some(unused) = self.lanes.get_mut(key).and_then(|lane| lane.next_scratch.take())
            {
                self.free_scratch(unused);
            }
            return true;
        }
        let size = wanted.unwrap_or(lane.scratch.size);
        let is_right = |next: &Scratch| next.size == size && !self.is_leaving(*next);
        let next = match lane.next_scratch.filter(is_right) {
            Some(next) => next,
            None => {
                if let Some(unused) = self.lanes.get_mut(key).and_then(|l| l.next_scratch.take()) {
                    unused.runs().for_each(|run| self.give_back(run));
                }
                let Some(next) = self.allocate_scratch(size, encrypts) else {
                    if size == Size::Working {
                        self.ask_back(false);
                    }
                    if leaves || encrypts || size == Size::Resting {
                        self.cx.sched.starve(Work::Lane(key));
                    }
                    return true;
                };
                next
            }
        };
        let Some(lane) = self.lanes.get_mut(key) else { return true };
        lane.next_scratch = Some(next);
        if lane.sending {
            return false;
        }
        if !lane.sender.is_between_batches() {
            // The rest of a batch lies in the old one.
            return true;
        }
        if lane.receiving {
            if let Some(op) = lane.receive_op {
                io.cancel(Token(op.to_bits()));
            }
            return false;
        }
        if !lane.receiver.move_to(next.of_receiver(), io) {
            return true;
        }
        lane.sender.move_to(next.of_sender(), next.room());
        (lane.next_scratch, lane.gives_back) = (None, false);
        self.cx.buffers.scratches_moved += u64::from(leaves);
        let old = std::mem::replace(&mut lane.scratch, next);
        self.free_scratch(old);
        true
    }

    /// Lanes whose scratch is to go have a turn.
    pub(super) fn move_scratches(&mut self) {
        let mut from = 0;
        let open = |lane: &super::Lane| lane.state != LaneState::Closing;
        while let Some(key) = self.lanes.next_from(from, open) {
            from = key.index() + 1;
            if self.lanes.get(key).is_some_and(|lane| self.is_leaving(lane.scratch)) {
                self.cx.sched.make_ready(Work::Lane(key));
            }
        }
    }
}
