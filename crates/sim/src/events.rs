//! The queue of future events, in the order of time, and of insertion at equal times.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use piped_core::units::Nanos;

/// Events in the order of their times.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    count: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Nanos,
    number: u64,
    event: E,
}

impl<E> EventQueue<E> {
    /// A queue without events.
    #[must_use]
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), count: 0 }
    }

    /// Adds an event at a time, which may be in the past.
    pub fn push(&mut self, at: Nanos, event: E) {
        self.count += 1;
        self.heap.push(Reverse(Entry { at, number: self.count, event }));
    }

    /// Time of the next event, if there is one.
    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// The next event, if it is not after `until`.
    pub fn pop(&mut self, until: Nanos) -> Option<(Nanos, E)> {
        if self.next_at()? > until {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.event))
    }

    /// How many events were ever pushed: the measure of a run's length.
    #[must_use]
    pub const fn pushed(&self) -> u64 {
        self.count
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}
