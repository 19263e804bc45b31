//! A lane's scratch, which moves when its segment is to go.
//!
//! A lane lives as long as its peer, so a segment that holds its scratch would never drain. It is moved
//! while the kernel has neither a send nor a receive of the lane: sends stop after the batch that is
//! under way, and only then is the receive taken back, so that a peer that waits for us to read is not
//! waited for. Without room for a new scratch the lane goes on as it is, and tries again.

use super::lane::LaneState;
use super::slab::Key;
use super::staging::Run;
use super::{Shard, Work};
use crate::io::{Io, Span, Token};
use crate::wire::{Receiver, SEALED_ROOM_BYTES, Sender};

/// What a lane has of staging for as long as it lives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scratch {
    frames: Run,
    /// For what it encrypts.
    room: Option<Run>,
}

impl Scratch {
    /// For a receiver and a sender.
    const FRAMES_BYTES: u32 = Receiver::SCRATCH_BYTES + Sender::SCRATCH_BYTES;

    pub(super) fn of_receiver(self) -> Span {
        self.frames.span.part(0, Receiver::SCRATCH_BYTES)
    }

    pub(super) fn of_sender(self) -> Span {
        self.frames.span.part(Receiver::SCRATCH_BYTES, Sender::SCRATCH_BYTES)
    }

    pub(super) fn room(self) -> Option<Span> {
        self.room.map(|room| room.span)
    }

    fn runs(self) -> impl Iterator<Item = Run> {
        [Some(self.frames), self.room].into_iter().flatten()
    }
}

impl Shard {
    /// Scratch for a lane; none without staging for it.
    pub(super) fn allocate_scratch(&mut self, encrypts: bool) -> Option<Scratch> {
        let frames = self.staging.allocate_scratch(Scratch::FRAMES_BYTES)?;
        if !encrypts {
            return Some(Scratch { frames, room: None });
        }
        let room = self.staging.allocate_scratch(SEALED_ROOM_BYTES);
        if room.is_none() {
            self.give_back(frames);
        }
        room.map(|room| Scratch { frames, room: Some(room) })
    }

    pub(super) fn free_scratch(&mut self, scratch: Scratch) {
        for run in scratch.runs() {
            self.free_staging(run);
        }
    }

    fn is_leaving(&self, scratch: Scratch) -> bool {
        scratch.runs().any(|run| self.staging.is_leaving(run))
    }

    /// Moves a lane's scratch if that has to be. `false`: the lane must not begin a send or a receive now.
    pub(super) fn move_scratch<I: Io>(&mut self, key: Key, io: &mut I) -> bool {
        let Some(lane) = self.lanes.get(key) else { return true };
        let encrypts = lane.scratch.room.is_some();
        if !self.is_leaving(lane.scratch) {
            if let Some(unused) = self.lanes.get_mut(key).and_then(|lane| lane.next_scratch.take())
            {
                self.free_scratch(unused);
            }
            return true;
        }
        let next = match lane.next_scratch.filter(|&next| !self.is_leaving(next)) {
            Some(next) => next,
            None => {
                if let Some(unused) = self.lanes.get_mut(key).and_then(|l| l.next_scratch.take()) {
                    unused.runs().for_each(|run| self.give_back(run));
                }
                let Some(next) = self.allocate_scratch(encrypts) else {
                    self.starve(Work::Lane(key));
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
        lane.next_scratch = None;
        self.scratches_moved += 1;
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
                self.make_ready(Work::Lane(key));
            }
        }
    }
}
