//! What reads took of late that came from the page cache and from the device.

use piped_model::ways;

/// Parts that a way is known by. After a change half of them tell of it.
const RECENT: usize = 8;

/// What one way took in the last reads of a file that came both ways.
///
/// What a stage costs is known from all that pass it, and changes slowly. How long the last parts
/// took beside what those costs say is known at once.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::shard) struct Recent {
    /// Bytes of each part and its seconds; the oldest is the next to be overwritten.
    parts: [(u32, f32); RECENT],
    count: usize,
    oldest: usize,
}

impl Recent {
    /// A part of so many bytes took so long.
    pub(super) fn learn(&mut self, bytes: u64, seconds: f64) {
        let next = (self.oldest + self.count) % RECENT;
        self.parts[next] = (bytes as u32, seconds as f32);
        if self.count < RECENT {
            self.count += 1;
        } else {
            self.oldest = (self.oldest + 1) % RECENT;
        }
    }

    /// Nothing was measured meanwhile: the oldest part is of long ago.
    pub(super) fn forget_one(&mut self) {
        self.count = self.count.saturating_sub(1);
        self.oldest = (self.oldest + 1) % RECENT;
    }

    /// How many times as long parts took as is expected of their bytes, in seconds.
    pub(in crate::shard) fn factor(&self, expected: impl Fn(u64) -> f64) -> f64 {
        if self.count == 0 {
            return 1.0;
        }
        let mut factors = [0.0; RECENT];
        for (number, factor) in factors[..self.count].iter_mut().enumerate() {
            let (bytes, seconds) = self.parts[(self.oldest + number) % RECENT];
            *factor = f64::from(seconds) / expected(bytes.into()).max(f64::MIN_POSITIVE);
        }
        ways::middle(&mut factors[..self.count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_parts_tell_and_one_that_is_held_up_does_not() {
        let expected = |bytes: u64| bytes as f64 * 1e-9;
        let mut recent = Recent::default();
        assert_eq!(recent.factor(expected), 1.0);
        let near = |factor: f64, wanted: f64| (factor - wanted).abs() < 1e-3;
        (0..20).for_each(|_| recent.learn(1000, 1e-6));
        assert!(near(recent.factor(expected), 1.0));
        recent.learn(1000, 1e-3);
        assert!(near(recent.factor(expected), 1.0));
        (0..6).for_each(|_| recent.learn(2000, 4e-6));
        assert!(near(recent.factor(expected), 2.0));
        // Once the costs of the stage have followed, there is nothing to add.
        assert!(near(recent.factor(|bytes| bytes as f64 * 2e-9), 1.0));
        (0..8).for_each(|_| recent.forget_one());
        assert_eq!(recent.factor(expected), 1.0);
        recent.forget_one();
        recent.learn(1000, 3e-6);
        assert!(near(recent.factor(expected), 3.0));
    }
}
