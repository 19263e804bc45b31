//! How much the samples of a stage differ, counted while it works.
//!
//! A stall of one in two hundred is known by twenty samples only after four thousand, so samples
//! count for long. They are of one machine in one state, though. So what is counted is compared
//! with what was before, an earlier run's included, and where the two contradict each other the
//! latter goes.

use super::cell::MEMORY;
use crate::spread::{BINS, Spread, bin, in_unit};

/// Samples that count: beyond them all counts are halved.
const SAMPLES_MAX: f32 = 16_384.0;

/// Samples that are counted by themselves, before they are added to those before them.
const FRESH: u32 = 1024;

/// Samples from which on a spread is believed, and compared with those before.
const ENOUGH: u32 = 64;

/// Samples that a spread of an earlier run counts as, at most.
const KEPT_SAMPLES: f32 = 1024.0;

/// Two distributions contradict each other if somewhere the parts beyond differ by so many
/// deviations and samples.
const DEVIATIONS: f32 = 4.0;
const SAMPLES_APART: f32 = 4.0;

/// Samples that are held back. So many may pass before a change of cost is noticed, and what was
/// seen of the new cost until then says nothing of how much samples differ.
const HELD: usize = 16;

/// Factors between the unit and the shortest time that is expected, beyond which lateness is
/// counted in another unit: a finer one at once, a coarser one after [`FRESH`] samples.
const FINER: f64 = 1.25;
const COARSER: f64 = 2.0;

/// What takes more than so many times as long as expected met an outage: the device stood still,
/// and all that were there waited for it, however they were cut.
const OUTAGE: f64 = 512.0;

type Counts = [f32; BINS];

/// Counts of samples by their lateness. Constant memory; a sample is a logarithm and an addition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sketch {
    /// Samples that were compared with those before them.
    settled: Counts,
    fresh: Counts,
    fresh_count: u32,
    /// What lateness is counted in, in seconds: about the shortest time that is expected. That of a
    /// long fragment is the same number of seconds.
    unit: f64,
    /// The shortest time, in seconds, that was expected of the fresh samples.
    shortest: f64,
    /// The mean of what was expected, in seconds, of some samples.
    mean: f64,
    held: [u8; HELD],
    seen: u32,
}

impl Default for Sketch {
    fn default() -> Self {
        Self {
            settled: [0.0; BINS],
            fresh: [0.0; BINS],
            fresh_count: 0,
            unit: 0.0,
            shortest: f64::INFINITY,
            mean: 0.0,
            held: [0; HELD],
            seen: 0,
        }
    }
}

impl Sketch {
    /// Takes a sample of a fragment that met no other, in seconds, and what was expected of it.
    pub(super) fn observe(&mut self, seconds: f64, expected: f64) {
        if seconds > expected * OUTAGE {
            return;
        }
        if self.unit <= 0.0 {
            self.unit = expected;
        } else if expected * FINER < self.unit {
            self.count_in(expected);
        }
        self.shortest = self.shortest.min(expected);
        let place = self.seen as usize % HELD;
        if self.seen as usize >= HELD {
            self.fresh[usize::from(self.held[place])] += 1.0;
            self.fresh_count += 1;
            self.review();
        }
        self.held[place] = bin(1.0 + (seconds - expected) / self.unit) as u8;
        self.seen = self.seen.saturating_add(1);
        self.mean += (expected - self.mean) / f64::from(self.seen).min(MEMORY);
    }

    /// Counts lateness in another unit from now on.
    fn count_in(&mut self, unit: f64) {
        let by = self.unit / unit;
        self.settled = in_unit(&self.settled, by);
        self.fresh = in_unit(&self.fresh, by);
        // What is held back is little: it counts where it was.
        self.unit = unit;
    }

    /// Compares the fresh samples with the settled ones, as soon as there are enough, and again
    /// whenever they are twice as many.
    fn review(&mut self) {
        if self.fresh_count < ENOUGH || !self.fresh_count.is_power_of_two() {
            return;
        }
        if contradict(&self.settled, &self.fresh) {
            self.settled = [0.0; BINS];
        }
        if self.fresh_count < FRESH {
            return;
        }
        self.settled = self.all();
        (self.fresh, self.fresh_count) = ([0.0; BINS], 0);
        let shortest = core::mem::replace(&mut self.shortest, f64::INFINITY);
        if shortest > self.unit * COARSER {
            self.count_in(shortest);
        }
        if total(&self.settled) > SAMPLES_MAX {
            self.settled.iter_mut().for_each(|count| *count /= 2.0);
        }
    }

    fn all(&self) -> Counts {
        core::array::from_fn(|place| self.settled[place] + self.fresh[place])
    }

    /// Some samples of what was kept: enough to be believed, few enough to fade soon.
    pub(super) fn begin(spread: &Spread) -> Self {
        let (unit, settled) = spread.counts(KEPT_SAMPLES);
        Self { settled, unit, mean: unit, ..Self::default() }
    }

    /// The stage's cost has changed: what is held back was of the new one.
    pub(super) fn change(&mut self) {
        self.seen = 0;
    }

    /// What is known of the spread; `None` while that is little, or if samples do not differ.
    pub(super) fn spread(&self) -> Option<Spread> {
        let counts = self.all();
        if total(&counts) < ENOUGH as f32 {
            return None;
        }
        Spread::of_counts(self.mean, &in_unit(&counts, self.unit / self.mean))
    }
}

fn total(counts: &Counts) -> f32 {
    counts.iter().sum()
}

/// Whether two counts cannot be of one distribution. Its bins are as wide as what is expected may
/// be wrong by, so nothing contradicts that lies in the next one.
fn contradict(old: &Counts, new: &Counts) -> bool {
    let [all_old, all_new] = [old, new].map(total);
    if all_old < ENOUGH as f32 {
        return false;
    }
    let beyond = |counts: &Counts| {
        let mut beyond = [0.0; BINS];
        let mut sum = 0.0;
        for (beyond, count) in beyond.iter_mut().zip(counts).rev() {
            sum += count;
            *beyond = sum;
        }
        beyond
    };
    let [old, new] = [old, new].map(beyond);
    // By how many more than can be chance.
    let apart = |old: f32, new: f32| {
        let share = (old + new) / (all_old + all_new);
        let variance = share * (1.0 - share) * all_new * (1.0 + all_new / all_old);
        let chance = SAMPLES_APART + DEVIATIONS * variance.sqrt();
        (new - all_new * old / all_old).abs() > chance
    };
    (1..BINS - 1).any(|place| {
        let expected = [old[place - 1], old[place + 1]].map(|old| all_new * old / all_old);
        let found = new[place];
        found > expected[0] && apart(old[place - 1], found)
            || found < expected[1] && apart(old[place + 1], found)
    })
}

#[cfg(test)]
mod tests {
    use piped_core::noise::Noise;

    use super::*;

    const EXPECTED: f64 = 100e-6;

    /// Samples of which so many in ten thousand take 40 times as long, and the others as said.
    fn take(sketch: &mut Sketch, count: u32, stalls: u64, usual: f64, noise: &mut Noise) {
        for _ in 0..count {
            let times = if noise.below(10_000) < stalls { 40.0 } else { usual };
            sketch.observe(times * EXPECTED, EXPECTED);
        }
    }

    fn share(sketch: &Sketch) -> f64 {
        sketch.spread().map_or(0.0, |spread| 1.0 - spread.part_within(10.0 * EXPECTED))
    }

    #[test]
    fn what_is_rare_is_known_well_after_many_samples() {
        let mut worst = 0.0_f64;
        for seed in 1..=20 {
            let (mut sketch, mut noise) = (Sketch::default(), Noise(seed));
            take(&mut sketch, 12_000, 50, 1.0, &mut noise);
            // However often counts were halved.
            for _ in 0..20 {
                take(&mut sketch, 4000, 50, 1.0, &mut noise);
                worst = worst.max((share(&sketch) / 0.005 - 1.0).abs());
            }
        }
        assert!(worst < 0.5, "{worst}");
    }

    #[test]
    fn outages_of_a_device_are_no_spread_of_its_fragments() {
        let mut sketch = Sketch::default();
        for number in 0..4000 {
            let times = if number % 12 == 0 { 100_000.0 } else { 1.0 };
            sketch.observe(times * EXPECTED, EXPECTED);
        }
        assert_eq!(sketch.spread(), None);
        take(&mut sketch, 4000, 500, 1.0, &mut Noise(1));
        assert!(share(&sketch) > 0.03, "stalls of single fragments are");
    }

    #[test]
    fn what_contradicts_the_samples_replaces_what_was_before() {
        for seed in 1..=20 {
            let mut noise = Noise(seed);
            let mut stalling = Sketch::default();
            take(&mut stalling, 16_000, 500, 1.0, &mut noise);
            let was = stalling.spread().expect("it stalls");
            for (mut sketch, within) in [(stalling, 1024), (Sketch::begin(&was), 1024)] {
                let mut calm = sketch;
                take(&mut calm, within + 1100, 0, 1.0, &mut noise);
                assert_eq!(calm.spread(), None, "seed {seed}: {}", share(&calm));
                // What goes on is not forgotten.
                take(&mut sketch, within + 1100, 500, 1.0, &mut noise);
                let samples = sketch.spread().expect("it stalls").samples();
                assert!(samples > 2000.0, "seed {seed}: {samples}");
            }
        }
    }

    #[test]
    fn an_earlier_run_counts_as_long_as_nothing_contradicts_it() {
        let kept = Spread::lognormal(EXPECTED, 1.0, (0.0, 1.0)).expect("it differs");
        let mut sketch = Sketch::begin(&kept);
        assert_eq!(sketch.spread().map(|spread| spread.samples().round()), Some(1024.0));
        for _ in 0..HELD as u32 + ENOUGH {
            sketch.observe(EXPECTED, EXPECTED);
        }
        assert_eq!(sketch.spread(), None, "fragments are alike on this machine");
    }

    /// A cost that is a little wrong is no other distribution.
    #[test]
    fn a_shift_of_one_bin_is_no_contradiction() {
        let (mut sketch, mut noise) = (Sketch::default(), Noise(1));
        for usual in [1.0, 1.12, 1.0, 1.12] {
            take(&mut sketch, 2000, 50, usual, &mut noise);
        }
        assert!(sketch.spread().expect("it stalls").samples() > 7000.0);
        take(&mut sketch, 2000, 50, 1.5, &mut noise);
        assert!(sketch.spread().expect("it stalls").samples() < 2500.0);
    }

    #[test]
    fn how_late_long_fragments_are_does_not_depend_on_the_short_ones() {
        let mut sketch = Sketch::default();
        for number in 0..4000 {
            // 5 ms late, whatever is expected.
            let expected = if number % 2 == 0 { 10.0 * EXPECTED } else { EXPECTED };
            let late = if number % 100 < 2 { 5e-3 } else { 0.0 };
            sketch.observe(expected + late, expected);
        }
        let spread = sketch.spread().expect("it stalls");
        let late = spread.quantile(0.99);
        assert!((late / 5e-3 - 1.0).abs() < 0.2, "{late}");
        assert!((1.0 - spread.part_within(1e-3) - 0.02).abs() < 0.002);
    }
}
