//! The copied bytes: all up to an offset, and ranges beyond it.

use std::collections::BTreeMap;

/// Set of the bytes that are copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Copied {
    /// Offset before which all are copied.
    done: u64,
    /// Ranges beyond it, by start; none touch.
    islands: BTreeMap<u64, u64>,
}

impl Copied {
    /// Set of the first `done` bytes.
    pub(super) fn up_to(done: u64) -> Self {
        Self { done, islands: BTreeMap::new() }
    }

    /// Offset before which all bytes are copied.
    pub(super) fn contiguous(&self) -> u64 {
        self.done
    }

    /// Number of copied bytes, wherever they are.
    pub(super) fn bytes(&self) -> u64 {
        self.done + self.islands.iter().map(|(start, end)| end - start).sum::<u64>()
    }

    /// Adds bytes from `start` on, which were not in the set.
    pub(super) fn insert(&mut self, start: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut end = start + bytes;
        if let Some(next) = self.islands.remove(&end) {
            end = next;
        }
        if start <= self.done {
            self.done = self.done.max(end);
        } else if let Some((_, before)) =
            self.islands.range_mut(..start).next_back().filter(|(_, before)| **before == start)
        {
            *before = end;
        } else {
            self.islands.insert(start, end);
        }
    }

    /// The first gap at or behind `at`: its start, and its end if copied bytes follow.
    pub(super) fn gap(&self, at: u64) -> (u64, Option<u64>) {
        let at = at.max(self.done);
        let within = self.islands.range(..=at).next_back().map_or(at, |(_, &end)| end.max(at));
        (within, self.islands.range(within..).next().map(|(&start, _)| start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ended_early_is_gone_on_with_where_it_ended() {
        let mut copied = Copied::up_to(10);
        copied.insert(20, 5);
        copied.insert(30, 10);
        assert_eq!((copied.contiguous(), copied.bytes()), (10, 25));
        assert_eq!(copied.gap(0), (10, Some(20)));
        assert_eq!(copied.gap(20), (25, Some(30)));
        assert_eq!(copied.gap(33), (40, None));
        copied.insert(10, 10);
        assert_eq!((copied.contiguous(), copied.bytes()), (25, 35));
        copied.insert(25, 5);
        assert_eq!(copied, Copied::up_to(40));
    }

    /// Compares with a set of blocks, inserted in many orders.
    #[test]
    fn it_is_the_set_of_what_was_inserted() {
        const BLOCKS: usize = 24;
        // Every multiplier that is prime to the number gives another order.
        for step in (1..BLOCKS).filter(|step| step % 2 > 0 && step % 3 > 0) {
            for first in 0..BLOCKS {
                let (mut copied, mut blocks) = (Copied::default(), [false; BLOCKS]);
                for count in 1..=BLOCKS {
                    let block = (first + count * step) % BLOCKS;
                    copied.insert(block as u64 * 4, 4);
                    blocks[block] = true;
                    check(&copied, &blocks, 4 * count as u64);
                }
            }
        }
    }

    fn check(copied: &Copied, blocks: &[bool], bytes: u64) {
        let place = |block: usize| block as u64 * 4;
        let free_from = |at: usize| (at..blocks.len()).find(|&at| !blocks[at]);
        let free_or_end = |at| free_from(at).unwrap_or(blocks.len());
        assert_eq!(copied.bytes(), bytes);
        assert_eq!(copied.contiguous(), place(free_or_end(0)));
        for at in 0..blocks.len() {
            let free = free_or_end(at);
            let taken = (free..blocks.len()).find(|&at| blocks[at]);
            assert_eq!(copied.gap(place(at)), (place(free), taken.map(place)), "{blocks:?}");
        }
    }
}
