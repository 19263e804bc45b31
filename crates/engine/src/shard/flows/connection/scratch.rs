//! A lane's scratch: little while it rests, more while it works; and it moves when its segment is
//! to go.
//!
//! A lane that says nothing costs [`LANE_RESTING_BYTES`] of staging, and with that it can do all
//! that a lane does but send what is encrypted; it receives in smaller bites. With its first
//! request a lane gets what makes it fast; one that encrypts gets that when it comes up, if there
//! is as much. One that has had nothing to do for [`LANE_REST_TIME`] gives that back, and what it
//! took from the heap.
//!
//! There is, as long as transfers keep what they need at least (see [`crate::shard::buffers`]) and
//! one more lane can begin to work; and, where some nodes have keys, as long as plain lanes have no
//! more than their share. A lane that finds none takes it from lanes that rest again.
//!
//! A lane lives as long as its peer, so a segment that holds its scratch would never drain. It is
//! moved while the kernel has neither a send nor a receive of the lane: sends stop after the batch
//! that is under way, and only then is the receive taken back, so that a peer that waits for us to
//! read is not waited for. Without room for a new scratch the lane goes on as it is, and tries
//! again.

use piped_core::io::{Io, Token};
use piped_core::limits::PLAIN_STAGING_DIVISOR;
#[cfg(doc)]
use piped_core::limits::{LANE_REST_TIME, LANE_RESTING_BYTES};
use piped_core::units::Nanos;

use crate::shard::Shard;
use crate::shard::buffers::{Scratch, Size};
use crate::shard::connections::{Lane, LaneState, Rest};
use crate::shard::keys::LaneKey;
use crate::shard::sched::Work;

impl Shard {
    /// Scratch for a lane that comes up. One that encrypts cannot send without more, and does not
    /// wait for that in the midst of its work if there is enough now.
    pub(in crate::shard) fn first_scratch(&mut self, encrypts: bool) -> Option<Scratch> {
        if encrypts && self.cx.buffers.may_grow(Scratch::footprint_of(Size::Working, true)) {
            let working = self.cx.buffers.take_scratch(Size::Working, true);
            if working.is_some() {
                return working;
            }
        }
        if !self.may_rest(encrypts, false) {
            return None;
        }
        self.cx.buffers.take_scratch(Size::Resting, encrypts)
    }

    /// The size that a lane's scratch should have, where it has another one.
    fn size_wanted(&self, lane: &Lane) -> Option<Size> {
        let works = lane.is_at_work();
        let gives_back = lane.gives_back || lane.rest() == Rest::Due;
        match lane.scratch.size() {
            Size::Resting if works && self.may_work(lane) => Some(Size::Working),
            Size::Working if gives_back && !works && !lane.has_frames() => Some(Size::Resting),
            _ => None,
        }
    }

    /// Whether there is staging for a lane that has begun to work.
    fn may_work(&self, lane: &Lane) -> bool {
        let encrypts = lane.sender.seal().moves_payloads();
        let more = Scratch::footprint_of(Size::Working, encrypts) - lane.scratch.footprint();
        self.cx.buffers.may_grow(more) && (!lane.is_beside_keys() || self.is_plain_share(more))
    }

    /// Whether there is staging for one more lane that rests. If those that have worked have it,
    /// they are asked for it before it is used up; and if all of them rested, one that needs the
    /// most must be able to work.
    pub(in crate::shard) fn may_rest(&mut self, encrypts: bool, beside_keys: bool) -> bool {
        let rest = Scratch::footprint_of(Size::Resting, encrypts);
        if !self.cx.buffers.may_grow(self.cx.buffers.next_rest()) {
            self.ask_back(false);
        }
        let encrypts =
            encrypts || self.lanes.iter().any(|(_, it)| it.sender.seal().moves_payloads());
        let work = Scratch::footprint_of(Size::Working, encrypts);
        let all = rest * (u64::from(self.lanes.len()) + 1) + work;
        self.cx.buffers.may_rest(all) && (!beside_keys || self.is_plain_share(rest))
    }

    /// Whether plain lanes have no more than their share beside keys, with so many bytes more.
    fn is_plain_share(&self, more: u64) -> bool {
        let lanes = self.lanes.iter().map(|(_, lane)| lane).filter(|lane| lane.is_unproven());
        let plain: u64 = lanes.map(|lane| lane.scratch.footprint()).sum();
        plain + more <= self.cx.buffers.staging().kept_bytes() / PLAIN_STAGING_DIVISOR
    }

    /// Lanes that have worked are asked for what they had for it, once they rest; `plain`: only
    /// those that stand beside keys.
    pub(in crate::shard) fn ask_back(&mut self, plain: bool) {
        let mut from = 0;
        let has = |lane: &Lane| {
            let may = !plain || lane.is_beside_keys();
            may && lane.state == LaneState::Up
                && lane.scratch.size() == Size::Working
                && !lane.gives_back
        };
        while let Some(key) = self.lanes.next_from(&mut from, has) {
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.gives_back = true;
            }
            self.cx.sched.make_ready(Work::Lane(key));
        }
    }

    /// Lanes that have had nothing to do for long have a turn, in which they give back what they do
    /// not need.
    pub(in crate::shard) fn rest_lanes(&mut self, now: Nanos) {
        for key in self.lanes.take_rested(now) {
            self.cx.sched.make_ready(Work::Lane(key));
        }
    }

    /// Notes whether a lane is busy, and has one that rests give back its memory of the heap.
    fn note_rest<I: Io>(&mut self, key: LaneKey, io: &mut I) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let is_busy = lane.is_busy();
        match lane.rest() {
            Rest::Done | Rest::Due if is_busy => {
                lane.end_rest();
                self.lanes.watch_rest(|| io.now());
            }
            Rest::Due if lane.scratch.size() == Size::Resting => {
                lane.shrink();
            }
            _ => {}
        }
    }

    /// Gives a lane's scratch back with the lane.
    pub(in crate::shard) fn bury_scratch(&mut self, lane: &Lane) {
        for scratch in [Some(lane.scratch), lane.next_scratch].into_iter().flatten() {
            self.cx.free_scratch(scratch);
        }
    }

    /// Moves a lane's scratch if that has to be. `false`: the lane must not begin a send or a
    /// receive now.
    pub(in crate::shard) fn move_scratch<I: Io>(&mut self, key: LaneKey, io: &mut I) -> bool {
        self.note_rest(key, io);
        let Some(lane) = self.lanes.get(key) else { return true };
        let encrypts = lane.sender.seal().moves_payloads();
        if lane.scratch.size() == Size::Resting && lane.is_at_work() && !self.may_work(lane) {
            self.ask_back(lane.is_beside_keys());
            if encrypts {
                self.cx.sched.starve(Work::Lane(key));
            }
        }
        let Some(lane) = self.lanes.get(key) else { return true };
        let leaves = self.cx.buffers.is_leaving(lane.scratch);
        let wanted = self.size_wanted(lane);
        if !leaves && wanted.is_none() {
            if let Some(unused) = self.lanes.get_mut(key).and_then(|lane| lane.next_scratch.take())
            {
                self.cx.free_scratch(unused);
            }
            return true;
        }
        let size = wanted.unwrap_or(lane.scratch.size());
        let is_right = |next: &Scratch| next.size() == size && !self.cx.buffers.is_leaving(*next);
        let next = match lane.next_scratch.filter(is_right) {
            Some(next) => next,
            None => {
                if let Some(unused) = self.lanes.get_mut(key).and_then(|l| l.next_scratch.take()) {
                    self.cx.buffers.give_back_scratch(unused);
                }
                let Some(next) = self.cx.buffers.take_scratch(size, encrypts) else {
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
        if lane.send.is_some() {
            return false;
        }
        if !lane.sender.is_between_batches() {
            // The rest of a batch lies in the old one.
            return true;
        }
        if let Some(op) = lane.receiving.operation() {
            io.cancel(Token(op.to_bits()));
            return false;
        }
        if !lane.receiver.move_to(next.of_receiver(), io) {
            return true;
        }
        lane.sender.move_to(next.of_sender(), next.room());
        (lane.next_scratch, lane.gives_back) = (None, false);
        self.cx.buffers.note_moved(leaves);
        let old = std::mem::replace(&mut lane.scratch, next);
        self.cx.free_scratch(old);
        self.note_rest(key, io);
        true
    }

    /// Lanes whose scratch is to go have a turn.
    pub(in crate::shard) fn move_scratches(&mut self) {
        let mut from = 0;
        let open = |lane: &crate::shard::Lane| lane.state != LaneState::Closing;
        while let Some(key) = self.lanes.next_from(&mut from, open) {
            if self.lanes.get(key).is_some_and(|lane| self.cx.buffers.is_leaving(lane.scratch)) {
                self.cx.sched.make_ready(Work::Lane(key));
            }
        }
    }
}
