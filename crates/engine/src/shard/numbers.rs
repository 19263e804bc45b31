//! The numbers of what is asked of a peer by one handle and must be done once: messages, and
//! changes of words.
//!
//! What is sent again after a lost lane has the number it had, so that the peer knows it. A peer
//! remembers as many as may be under way, and forgets those before the oldest that may come again.

use std::collections::VecDeque;

use piped_core::limits::NUMBERS_PER_HANDLE;

/// The numbers of one handle, as the requester keeps them.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    next: u32,
    /// Numbers not over, or behind one that is not, each with whether it is over.
    under_way: VecDeque<(u32, bool)>,
}

impl Numbers {
    /// The next number, not given out yet.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// The least that may be asked again.
    pub(super) fn oldest(&self) -> u32 {
        self.under_way.front().map_or(self.next, |&(number, _)| number)
    }

    /// Whether there are as many as a peer remembers.
    pub(super) fn is_full(&self) -> bool {
        self.under_way.len() >= NUMBERS_PER_HANDLE as usize
    }

    pub(super) fn begin(&mut self) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.under_way.push_back((number, false));
        number
    }

    /// Ends a number: nothing will be asked again under it.
    pub(super) fn end(&mut self, number: u32) {
        if let Some(entry) = self.under_way.iter_mut().find(|(other, _)| *other == number) {
            entry.1 = true;
        }
        while self.under_way.pop_front_if(|(_, over)| *over).is_some() {}
    }
}

/// Whether a number is one of those that may be under way when `oldest` is.
pub(super) fn is_within(number: u32, oldest: u32) -> bool {
    number.wrapping_sub(oldest) < NUMBERS_PER_HANDLE
}

/// The asked side's: what was done, and what came of it.
#[derive(Debug)]
pub(super) struct Remembered<T> {
    /// No more than [`NUMBERS_PER_HANDLE`].
    done: Vec<(u32, T)>,
}

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self { done: Vec::new() }
    }
}

impl<T: Copy> Remembered<T> {
    /// Forgets what will not come again: all before `oldest`.
    pub(super) fn forget_before(&mut self, oldest: u32) {
        self.done.retain(|&(number, _)| is_within(number, oldest));
    }

    pub(super) fn get(&self, number: u32) -> Option<T> {
        self.done.iter().find(|(other, _)| *other == number).map(|&(_, result)| result)
    }

    pub(super) fn has(&self, number: u32) -> bool {
        self.get(number).is_some()
    }

    pub(super) fn add(&mut self, number: u32, result: T) {
        self.done.push((number, result));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_remembered_as_long_as_it_may_come_again() {
        let mut done = Remembered::default();
        for number in [u32::MAX - 1, u32::MAX, 0, 1] {
            done.add(number, number.wrapping_mul(3));
        }
        done.forget_before(u32::MAX);
        assert!(!done.has(u32::MAX - 1) && done.has(u32::MAX));
        assert_eq!(done.get(1), Some(3));
        done.forget_before(1);
        assert!(!done.has(0) && done.has(1));
        assert!(is_within(0, u32::MAX) && !is_within(u32::MAX, 0));
    }

    #[test]
    fn the_oldest_is_the_first_that_is_not_over() {
        let mut numbers = Numbers::default();
        let begun: Vec<u32> = (0..4).map(|_| numbers.begin()).collect();
        assert_eq!((begun, numbers.oldest()), (vec![0, 1, 2, 3], 0));
        numbers.end(1);
        assert_eq!(numbers.oldest(), 0);
        numbers.end(0);
        assert_eq!(numbers.oldest(), 2);
        numbers.end(3);
        numbers.end(2);
        assert_eq!((numbers.oldest(), numbers.next()), (4, 4));
        for _ in 0..NUMBERS_PER_HANDLE {
            assert!(!numbers.is_full());
            numbers.begin();
        }
        assert!(numbers.is_full());
    }
}
