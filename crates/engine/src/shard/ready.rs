//! Work that wants a turn, and work that waits until something ends.

use std::collections::VecDeque;

use piped_core::request::Class;

use super::Work;

/// The lists of work of a shard. A flag of what the work is for says that it is in one of them.
#[derive(Debug)]
pub(super) struct Ready {
    /// Transfers and serves that want a turn, of the latency class and of bulk.
    classes: [VecDeque<Work>; 2],
    /// Lanes that want one. They come last: a lane sends all that the others have queued, and posts
    /// its receive when it is known what will arrive.
    lanes: VecDeque<Work>,
    /// Work that found no staging or no place for an operation.
    starved: VecDeque<Work>,
}

impl Ready {
    /// Room for so much work, of which so many are lanes.
    pub(super) fn with_capacity(work: usize, lanes: usize) -> Self {
        Self {
            classes: [(); 2].map(|()| VecDeque::with_capacity(work)),
            lanes: VecDeque::with_capacity(lanes),
            starved: VecDeque::with_capacity(work),
        }
    }

    pub(super) fn push(&mut self, work: Work, class: Class) {
        self.classes[class as usize].push_back(work);
    }

    pub(super) fn push_lane(&mut self, work: Work) {
        self.lanes.push_back(work);
    }

    pub(super) fn push_starved(&mut self, work: Work) {
        self.starved.push_back(work);
    }

    /// What is urgent first; of four turns one is bulk's.
    pub(super) fn pop(&mut self, turn: usize) -> Option<Work> {
        let [urgent, bulk] = &mut self.classes;
        let (first, second) = if turn % 4 == 3 { (bulk, urgent) } else { (urgent, bulk) };
        first.pop_front().or_else(|| second.pop_front())
    }

    pub(super) fn pop_lane(&mut self) -> Option<Work> {
        self.lanes.pop_front()
    }

    pub(super) fn pop_starved(&mut self) -> Option<Work> {
        self.starved.pop_front()
    }

    /// How many lanes want a turn.
    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Whether nothing wants a turn.
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.classes.iter().all(VecDeque::is_empty)
    }
}
