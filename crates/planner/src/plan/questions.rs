//! Questions for plans with separate sizes at each level, from their being put to their answers.

use std::collections::VecDeque;

use piped_core::limits::QUESTIONS_MAX;

use super::PlanKey;
use crate::planned::PathCosts;
use crate::solve::{PlanRequest, Runs};

/// The shortest transfer, in bytes, for which separate sizes for each level are computed.
pub(super) const QUESTION_BYTES_MIN: u64 = 8192;

/// Questions of one connection that may be open at once.
pub(super) const QUESTIONS_PER_LANE_MAX: usize = QUESTIONS_MAX / 4;

/// Open questions: those that the driver has not fetched, and those without an answer.
#[derive(Debug)]
pub(super) struct Questions {
    /// All questions that are not answered.
    open: VecDeque<Open>,
    /// Questions that the driver has not fetched.
    unfetched: VecDeque<Box<PlanRequest>>,
    tickets: u64,
}

/// An open question about a path and size class.
#[derive(Debug)]
struct Open {
    ticket: u64,
    key: PlanKey,
    /// The `renewal` of the plans that the question was put for.
    renewal: u64,
}

impl Questions {
    pub(super) fn new() -> Self {
        let (open, unfetched) =
            (VecDeque::with_capacity(QUESTIONS_MAX), VecDeque::with_capacity(QUESTIONS_MAX));
        Self { open, unfetched, tickets: 0 }
    }

    /// Whether the question about these plans is open.
    pub(super) fn is_open(&self, key: &PlanKey) -> bool {
        self.open.iter().any(|open| open.key == *key)
    }

    /// Whether another question may be put by the connection that these keys belong to.
    pub(super) fn has_room(&self, is_of_lane: impl Fn(&PlanKey) -> bool) -> bool {
        let of_lane = self.open.iter().filter(|open| is_of_lane(&open.key)).count();
        of_lane < QUESTIONS_PER_LANE_MAX && self.open.len() < QUESTIONS_MAX
    }

    /// Puts a question. `renewal`: that of the plans it is put for; `serial`: whether plans that
    /// ask for one fragment at a time are wanted too.
    pub(super) fn put(
        &mut self,
        (key, renewal): (PlanKey, u64),
        costs: &PathCosts,
        runs: Runs,
        bytes: u64,
        serial: bool,
    ) {
        self.tickets += 1;
        let ticket = self.tickets;
        self.open.push_back(Open { ticket, key, renewal });
        let request = PlanRequest::new(ticket, costs, runs, bytes, serial);
        self.unfetched.push_back(Box::new(request));
    }

    /// The next question for the driver to have solved.
    pub(super) fn fetch(&mut self) -> Option<Box<PlanRequest>> {
        self.unfetched.pop_front()
    }

    /// Closes the question of this ticket, and returns what it was put for.
    pub(super) fn close(&mut self, ticket: u64) -> Option<(PlanKey, u64)> {
        let place = self.open.iter().position(|open| open.ticket == ticket)?;
        self.open.remove(place).map(|open| (open.key, open.renewal))
    }
}
