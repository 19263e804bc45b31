//! When something goes otherwise than the times say: what is not chosen is not measured, so it is
//! tried now and then, at distances that double.

/// The most from one trial to the next.
pub(super) const TRY_MOST: u32 = 1024;

/// From a change of what was measured to the next trial.
pub(super) const TRY_CHANGED: u32 = 16;

/// Where one is on the way to the next trial.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tries {
    since: u32,
    until: u32,
}

impl Tries {
    /// The first trial is the one of that number.
    pub(super) const fn first(until: u32) -> Self {
        Self { since: 0, until }
    }

    /// Whether this one is a trial. The next comes after twice as many, and after `most` at most.
    pub(super) fn take(&mut self, most: u32) -> bool {
        self.since += 1;
        let tries = self.since >= self.until;
        if tries {
            *self = Self::first((2 * self.until).min(most));
        }
        tries
    }

    /// What was measured has changed: trials are as often again as after any change.
    pub(super) fn note_change(&mut self) {
        self.until = TRY_CHANGED;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_are_ever_more_seldom_until_something_changes() {
        let mut tries = Tries::first(1);
        let next = |tries: &mut Tries| (1..).find(|_| tries.take(8)).expect("some time");
        assert_eq!([(); 6].map(|()| next(&mut tries)), [1, 2, 4, 8, 8, 8]);
        tries.note_change();
        assert_eq!([(); 2].map(|()| next(&mut tries)), [TRY_CHANGED, 8]);
    }
}
