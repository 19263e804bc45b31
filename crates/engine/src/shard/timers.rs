//! Deadlines: a binary heap that knows where each entry is, so that the usual end of a deadline, a
//! completed request, takes it out again in O(log n) and without a heap allocation.
//!
//! Why not a heap with lazy removal: at a million requests a second and a deadline of 30 s it would
//! hold thirty million corpses.

use piped_core::units::Nanos;

const ABSENT: u32 = u32::MAX;

/// Times by slot number; at most one per slot.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: Vec<(Nanos, u32)>,
    /// Where a slot's entry stands in the heap, or `ABSENT`.
    place: Vec<u32>,
}

impl Timers {
    pub(crate) fn with_capacity(slots: u32) -> Self {
        Self { heap: Vec::with_capacity(slots as usize), place: vec![ABSENT; slots as usize] }
    }

    /// Sets or moves the time of `slot`.
    pub(crate) fn set(&mut self, slot: u32, at: Nanos) {
        self.clear(slot);
        self.place[slot as usize] = self.heap.len() as u32;
        self.heap.push((at, slot));
        self.up(self.heap.len() - 1);
    }

    pub(crate) fn clear(&mut self, slot: u32) {
        let position = self.place[slot as usize];
        if position == ABSENT {
            return;
        }
        self.place[slot as usize] = ABSENT;
        let position = position as usize;
        self.heap.swap_remove(position);
        if position < self.heap.len() {
            self.place[self.heap[position].1 as usize] = position as u32;
            self.up(position);
            self.down(position);
        }
    }

    /// The earliest time of all timers; none if no timer is set.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.heap.first().map(|&(at, _)| at)
    }

    /// Takes a slot whose time has come.
    pub(crate) fn take_due(&mut self, now: Nanos) -> Option<u32> {
        let &(at, slot) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.clear(slot);
        Some(slot)
    }

    fn up(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.heap[parent].0 <= self.heap[position].0 {
                break;
            }
            self.swap(parent, position);
            position = parent;
        }
    }

    fn down(&mut self, mut position: usize) {
        loop {
            let mut least = position;
            for child in [2 * position + 1, 2 * position + 2] {
                if child < self.heap.len() && self.heap[child].0 < self.heap[least].0 {
                    least = child;
                }
            }
            if least == position {
                break;
            }
            self.swap(least, position);
            position = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.place[self.heap[a].1 as usize] = a as u32;
        self.place[self.heap[b].1 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against the obvious: a list that is searched.
        #[test]
        fn behaves_like_a_searched_list(
            ops in prop::collection::vec((0u8..4, 0u32..8, 0u64..50), 1..200),
        ) {
            let mut timers = Timers::with_capacity(8);
            let mut oracle: Vec<Option<u64>> = vec![None; 8];
            for (op, slot, at) in ops {
                match op {
                    0 | 1 => {
                        timers.set(slot, Nanos(at));
                        oracle[slot as usize] = Some(at);
                    }
                    2 => {
                        timers.clear(slot);
                        oracle[slot as usize] = None;
                    }
                    _ => {
                        let taken = timers.take_due(Nanos(at));
                        let due = oracle.iter().flatten().min().is_some_and(|&first| first <= at);
                        prop_assert_eq!(taken.is_some(), due);
                        if let Some(slot) = taken {
                            let earliest = oracle.iter().flatten().min().copied();
                            prop_assert_eq!(oracle[slot as usize], earliest);
                            oracle[slot as usize] = None;
                        }
                    }
                }
                prop_assert_eq!(timers.next().map(|n| n.0), oracle.iter().flatten().min().copied());
            }
        }
    }
}
