//! How much the samples of a stage differ, counted while it works.

use super::cell::MEMORY;
use crate::spread::{BINS, Spread, bin};

/// Samples that count: beyond them all counts are halved. Stalls of one in a hundred are known by
/// tens of samples, whatever else is forgotten.
const SAMPLES_MAX: u32 = 4096;

/// Samples from which on a spread is believed.
const ENOUGH: u32 = 64;

/// Samples that a spread of an earlier run counts as.
const KEPT_SAMPLES: u16 = 1024;

/// Samples that are held back. So many may pass before a change of cost is noticed, and what was
/// seen of the new cost until then says nothing of how much samples differ.
const HELD: usize = 16;

/// Counts of samples by their ratio to what was expected. Constant memory; a sample is a logarithm
/// and an addition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sketch {
    counts: [u16; BINS],
    total: u32,
    /// The mean of what was expected, in seconds.
    unit: f64,
    held: [u8; HELD],
    seen: u32,
}

impl Default for Sketch {
    fn default() -> Self {
        Self { counts: [0; BINS], total: 0, unit: 0.0, held: [0; HELD], seen: 0 }
    }
}

impl Sketch {
    /// Takes a sample of a fragment that met no other, in seconds, and what was expected of it.
    pub(super) fn observe(&mut self, seconds: f64, expected: f64) {
        let place = self.seen as usize % HELD;
        if self.seen as usize >= HELD {
            let bin = usize::from(self.held[place]);
            self.counts[bin] = self.counts[bin].saturating_add(1);
            self.total += 1;
        }
        self.held[place] = bin(seconds / expected) as u8;
        self.seen = self.seen.saturating_add(1);
        let weight = f64::from(self.seen).min(MEMORY);
        self.unit += (expected - self.unit) / weight;
        if self.total >= SAMPLES_MAX {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().map(|&count| u32::from(count)).sum();
        }
    }

    /// Some samples of what was kept: enough to be believed, few enough to fade soon.
    pub(super) fn begin(spread: &Spread) -> Self {
        let (unit, counts) = spread.counts(KEPT_SAMPLES);
        let total = counts.iter().map(|&count| u32::from(count)).sum();
        Self { counts, total, unit, ..Self::default() }
    }

    /// The stage's cost has changed: what is held back was of the new one.
    pub(super) fn change(&mut self) {
        self.seen = 0;
    }

    /// What is known of the spread; `None` while that is little, or if samples do not differ.
    pub(super) fn spread(&self) -> Option<Spread> {
        if self.total < ENOUGH {
            return None;
        }
        Spread::of_counts(self.unit, &self.counts)
    }
}
