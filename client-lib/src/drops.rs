//! How a queue learns that a `Pending` was dropped: one bit a place, and one that says "look".
//!
//! A `Pending` may be dropped anywhere, also on another thread than its queue's, so it cannot touch
//! the queue; it leaves a mark, and the queue collects the marks when it is used next.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(Debug)]
pub(crate) struct Drops {
    some: AtomicBool,
    marks: Box<[AtomicU64]>,
}

impl Drops {
    pub(crate) fn new(entries: u32) -> Self {
        let words = entries.div_ceil(64);
        Self {
            some: AtomicBool::new(false),
            marks: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The `Pending` of a place was dropped.
    pub(crate) fn mark(&self, slot: u32) {
        if let Some(word) = self.marks.get(slot as usize / 64) {
            word.fetch_or(1 << (slot % 64), Ordering::Relaxed);
            // *mark before look*: pairs with the Acquire swap in `collect`, without which the queue
            // could take "look" down and miss the mark that it stands for.
            self.some.store(true, Ordering::Release);
        }
    }

    /// Whether there may be marks: a load, for the usual case that there are none.
    pub(crate) fn any(&self) -> bool {
        self.some.load(Ordering::Relaxed)
    }

    /// Call `each` for every marked place, and take the marks down.
    pub(crate) fn collect(&self, mut each: impl FnMut(u32)) {
        if !self.some.swap(false, Ordering::Acquire) {
            return;
        }
        for (number, word) in self.marks.iter().enumerate() {
            let mut marks = word.swap(0, Ordering::Relaxed);
            while marks != 0 {
                each(number as u32 * 64 + marks.trailing_zeros());
                marks &= marks - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_collected_once() {
        let drops = Drops::new(130);
        let mut seen = Vec::new();
        for slot in [0, 63, 64, 129, 500] {
            drops.mark(slot);
        }
        drops.collect(|slot| seen.push(slot));
        assert_eq!(seen, [0, 63, 64, 129], "500 is no place of this queue");
        drops.collect(|slot| panic!("{slot} was collected already"));
    }
}
