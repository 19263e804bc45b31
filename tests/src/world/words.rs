//! Words that clients change at once with everybody else, and what they may be told of them.

use std::collections::{BTreeMap, BTreeSet};

use piped_core::status::Status;

/// A word that is only added to, and begins with 0. Addends are at least 1, so each of those that
/// were done has a piece of the number line of its own, from the word before it to the word after.
#[derive(Debug, Default)]
pub(super) struct Counter {
    /// Pieces whose adds ended well: from where, and how long.
    done: BTreeMap<u64, u64>,
    sum_done: u64,
    /// The sum of all additions that were asked for, however they ended.
    sum_asked: u64,
}

impl Counter {
    /// An add is asked for. The least that the word may be before it: all is done that ended well
    /// by now.
    pub(super) fn begin(&mut self, addend: u64) -> u64 {
        self.sum_asked += addend;
        self.sum_done
    }

    /// An add that began at `least` ended well, and was told that the word was `value`.
    pub(super) fn end(&mut self, addend: u64, least: u64, value: u64) -> Result<(), String> {
        if value < least {
            return Err(format!("the word was {value}, but adds up to {least} had ended before"));
        }
        if value + addend > self.sum_asked {
            let asked = self.sum_asked;
            return Err(format!("the word was {value}, {asked} were ever to be added"));
        }
        let before = self.done.range(..=value).next_back().map(|(&from, &long)| from + long);
        let after = self.done.range(value..).next().map(|(&from, _)| from);
        if before.is_some_and(|end| end > value) || after.is_some_and(|next| next < value + addend)
        {
            return Err(format!("{value} + {addend} is what another add has done"));
        }
        self.done.insert(value, addend);
        self.sum_done += addend;
        Ok(())
    }

    /// Why that is not what may be left of it, if so: each add that ended well is in it once, the
    /// others once at most.
    pub(super) fn judge(&self, word: u64) -> Result<(), String> {
        let (least, most) = (self.sum_done, self.sum_asked);
        let last = self.done.last_key_value().map_or(0, |(from, long)| from + long);
        (least.max(last)..=most)
            .contains(&word)
            .then_some(())
            .ok_or(format!("the word is {word}, not {least} to {most}, or below {last}"))
    }
}

/// A word that begins with 0, and that clients replace, if it is what they expect, by a value that
/// nobody else has used: the values it has had are a chain.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// Each value that was to be put there: what it was to replace, and whether it did, as far as
    /// that was told.
    swaps: BTreeMap<u64, (u64, Option<bool>)>,
    /// Values that somebody was told.
    seen: BTreeSet<u64>,
    /// The one that was told last.
    pub(super) told: u64,
}

impl Chain {
    /// A swap is asked for: `new` is the value it puts there.
    pub(super) fn begin(&mut self, expected: u64) -> u64 {
        let new = self.swaps.len() as u64 + 1;
        self.swaps.insert(new, (expected, None));
        new
    }

    /// A swap ended, and was told that the word was `value`.
    pub(super) fn end(&mut self, new: u64, value: u64) -> Result<(), String> {
        let expected = self.swaps[&new].0;
        let done = value == expected;
        self.see(value)?;
        if done && self.swaps.values().any(|&it| it == (expected, Some(true))) {
            return Err(format!("{expected} was replaced twice"));
        }
        if !done && self.seen.contains(&new) {
            return Err(format!("{new} was there, but its swap found {value} and not {expected}"));
        }
        self.swaps.insert(new, (expected, Some(done)));
        self.told = if done { new } else { value };
        Ok(())
    }

    fn see(&mut self, value: u64) -> Result<(), String> {
        if value != 0 {
            match self.swaps.get(&value) {
                None => return Err(format!("the word was {value}, which nobody put there")),
                Some((_, Some(false))) => {
                    return Err(format!("the word was {value}, whose swap did nothing"));
                }
                Some(_) => {}
            }
            self.seen.insert(value);
        }
        Ok(())
    }

    /// Why that is not what may be left of it, if so: back from it to the 0 lie all swaps that were
    /// done, and all values that were seen.
    pub(super) fn judge(&mut self, word: u64) -> Result<(), String> {
        self.see(word)?;
        let mut passed = BTreeSet::new();
        let mut at = word;
        while at != 0 {
            if !passed.insert(at) {
                return Err(format!("{at} was there twice"));
            }
            at = match self.swaps[&at] {
                (_, Some(false)) => return Err(format!("{at} was there, but did not get there")),
                (before, _) => before,
            };
        }
        let done = self.swaps.iter().filter(|(_, swap)| swap.1 == Some(true)).map(|(&new, _)| new);
        match done.chain(self.seen.iter().copied()).find(|value| !passed.contains(value)) {
            Some(lost) => Err(format!("{lost} was there, and does not lead to {word}")),
            None => Ok(()),
        }
    }
}

/// Notifications of one number, which several raise and take.
#[derive(Debug, Default)]
pub(super) struct Semaphore {
    /// Raised, as their askers were told.
    pub(super) raised: u64,
    /// Asked for, however they ended.
    pub(super) asked: u64,
    pub(super) taken: u64,
}

impl Semaphore {
    pub(super) fn end(&mut self, status: Status) {
        self.raised += u64::from(status == Status::Ok);
    }

    /// A wait took so many, and was told how many were left. Waits that run at once end in any
    /// order: of what others took, only `before`, what had been when it began, was taken for sure.
    pub(super) fn take(&mut self, before: u64, count: u64, left: u64) -> Result<(), String> {
        self.taken += count;
        let Self { asked, taken, .. } = *self;
        (taken.max(before + count + left) <= asked).then_some(()).ok_or(format!(
            "{taken} were taken, {before} before it began, and {left} were left, of {asked} that \
             were asked for"
        ))
    }

    /// The signals that must be there still.
    pub(super) fn due(&self) -> u64 {
        self.raised.saturating_sub(self.taken)
    }

    /// More than there can be.
    pub(super) fn too_many(&self) -> u64 {
        self.asked + 1 - self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_add_has_a_piece_of_its_own() {
        let mut counter = Counter::default();
        assert_eq!((counter.begin(3), counter.begin(1), counter.begin(2)), (0, 0, 0));
        counter.end(3, 0, 1).unwrap();
        assert!(counter.end(1, 0, 3).is_err(), "inside of another's");
        assert!(counter.end(2, 0, 0).is_err(), "over another's");
        counter.end(1, 0, 0).unwrap();
        assert_eq!(counter.begin(1), 4);
        assert!(counter.end(1, 4, 3).is_err(), "before what had ended");
        assert!(counter.end(1, 4, 7).is_err(), "more than was asked for");
        assert!(counter.judge(3).is_err() && counter.judge(8).is_err());
        counter.judge(4).unwrap();
        counter.judge(7).unwrap();
    }

    #[test]
    fn a_counter_is_not_below_what_was_told() {
        let mut counter = Counter::default();
        counter.begin(2);
        counter.begin(1);
        counter.end(1, 0, 2).unwrap();
        assert!(counter.judge(2).is_err());
        counter.judge(3).unwrap();
    }

    #[test]
    fn swaps_that_were_done_are_a_chain() {
        let mut chain = Chain::default();
        let [one, two, three] = [0, 0, 1].map(|expected| chain.begin(expected));
        assert_eq!((one, two, three), (1, 2, 3));
        chain.end(one, 0).unwrap();
        assert!(chain.end(two, 0).is_err(), "0 is replaced already");
        assert!(chain.end(two, 9).is_err(), "nobody's value");
        chain.end(two, 1).unwrap();
        assert_eq!(chain.told, 1);
        assert!(chain.judge(0).is_err() && chain.judge(2).is_err() && chain.judge(7).is_err());
        chain.judge(1).unwrap();
        // It was not told how it ended, and may have been done.
        chain.judge(3).unwrap();
        assert!(chain.judge(1).is_err(), "3 was seen since");
        assert!(chain.end(three, 2).is_err(), "2 was never there, and 3 was");
    }

    #[test]
    fn no_more_is_taken_than_was_raised() {
        let mut semaphore = Semaphore { asked: 3, ..Semaphore::default() };
        semaphore.end(Status::Ok);
        semaphore.end(Status::Cancelled);
        assert_eq!((semaphore.due(), semaphore.too_many()), (1, 4));
        semaphore.take(0, 2, 1).unwrap();
        assert_eq!((semaphore.due(), semaphore.too_many()), (0, 2));
        assert!(semaphore.take(2, 1, 1).is_err());
    }

    #[test]
    fn waits_end_in_any_order() {
        let mut semaphore = Semaphore { asked: 3, ..Semaphore::default() };
        semaphore.take(0, 1, 0).unwrap();
        // The last one is told first.
        semaphore.take(1, 1, 0).unwrap();
        semaphore.take(1, 1, 1).unwrap();
        assert!(semaphore.take(1, 1, 0).is_err(), "more than was asked for");
    }
}
