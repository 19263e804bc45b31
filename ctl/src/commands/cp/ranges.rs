//! Which bytes are copied: all up to a place, and some beyond it.

use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Copied {
    /// All before it.
    done: u64,
    /// Beyond it, from where to where; none touch.
    islands: BTreeMap<u64, u64>,
}

impl Copied {
    /// The first `done` bytes.
    pub(super) fn up_to(done: u64) -> Self {
        Self { done, islands: BTreeMap::new() }
    }

    /// All before that are copied.
    pub(super) fn contiguous(&self) -> u64 {
        self.done
    }

    /// All of them, wherever they are.
    pub(super) fn bytes(&self) -> u64 {
        self.done + self.islands.iter().map(|(start, end)| end - start).sum::<u64>()
    }

    /// So many from `start` on are copied, too. They were not before.
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

    /// The first bytes at or behind `at` that are not copied: from where, and up to where if there are some behind them.
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

    /// Blocks in many orders: as a set of them would have it.
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
