//! When lanes that have nothing to do give back what they do not need.
//!
//! What a lane takes while it works it keeps, so that no request takes memory from the heap. A node
//! with hundreds of peers works with few of them at a time, so a lane that has had nothing to do
//! for [`LANE_REST_TIME`] gives back all but the least. The next request takes it again. A timer
//! for each lane would be moved with each frame; so all lanes are looked at now and then, as long
//! as some have something to give.

use piped_core::limits::LANE_REST_TIME;
use piped_core::units::Nanos;

/// The time after which lanes rest, and when to look.
#[derive(Debug)]
pub(super) struct Rests {
    after: Nanos,
    /// When to look, if some lane has something to give back then.
    look: Option<Nanos>,
}

impl Rests {
    pub(super) fn new() -> Self {
        Self { after: LANE_REST_TIME, look: None }
    }

    pub(super) fn after(&self) -> Nanos {
        self.after
    }

    pub(super) fn set_after(&mut self, time: Nanos) {
        self.after = time;
    }

    pub(super) fn next_look(&self) -> Option<Nanos> {
        self.look
    }

    pub(super) fn is_watched(&self) -> bool {
        self.look.is_some()
    }

    /// Lanes were looked at. `goes_on`: some may have something to give back later. There are four
    /// looks in the time after which a lane rests.
    pub(super) fn looked(&mut self, goes_on: bool, now: Nanos) {
        self.look = goes_on.then(|| now + Nanos(self.after.0 / 4));
    }
}
