//! A lane's scratch moves when its segment is to go.
//!
//! A lane lives as long as its peer, so a segment that holds its scratch would never drain. It is moved
//! while the kernel has neither a send nor a receive of the lane: sends stop after the batch that is
//! under way, and only then is the receive taken back, so that a peer that waits for us to read is not
//! waited for. Without room for a new scratch the lane goes on as it is, and tries again.

use super::lane::{LaneState, SCRATCH_BYTES, scratch_parts};
use super::slab::Key;
use super::{Shard, Work};
use crate::io::{Io, Token};

impl Shard {
    /// Moves a lane's scratch if that has to be. `false`: the lane must not begin a send or a receive now.
    pub(super) fn move_scratch<I: Io>(&mut self, key: Key, io: &mut I) -> bool {
        let Some(lane) = self.lanes.get(key) else { return true };
        if !self.staging.is_leaving(lane.scratch) {
            if let Some(unused) = self.lanes.get_mut(key).and_then(|lane| lane.next_scratch.take())
            {
                self.free_staging(unused);
            }
            return true;
        }
        let next = match lane.next_scratch.filter(|&next| !self.staging.is_leaving(next)) {
            Some(next) => next,
            None => {
                if let Some(unused) = self.lanes.get_mut(key).and_then(|l| l.next_scratch.take()) {
                    self.give_back(unused);
                }
                let Some(next) = self.staging.allocate_scratch(SCRATCH_BYTES) else {
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
        let (receive, send) = scratch_parts(next);
        if !lane.receiver.move_to(receive, io) {
            return true;
        }
        lane.sender.move_to(send);
        lane.next_scratch = None;
        self.scratches_moved += 1;
        let old = std::mem::replace(&mut lane.scratch, next);
        self.free_staging(old);
        true
    }

    /// Lanes whose scratch is to go have a turn.
    pub(super) fn move_scratches(&mut self) {
        let mut from = 0;
        let open = |lane: &super::Lane| lane.state != LaneState::Closing;
        while let Some(key) = self.lanes.next_from(from, open) {
            from = key.index() + 1;
            if self.lanes.get(key).is_some_and(|lane| self.staging.is_leaving(lane.scratch)) {
                self.make_ready(Work::Lane(key));
            }
        }
    }
}
