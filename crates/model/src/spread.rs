//! How much fragments differ at a stage: the distribution behind its mean latency.
//!
//! A stage's costs are means. Single fragments come sooner or later than these, and a transfer of
//! several fragments waits for the latest. [`Spread`] is what is known of one fragment: a histogram
//! of its time as a multiple of its mean, in quarters of an octave, whose middle bin counts as no
//! difference at all. *How late* it is does not depend on its size, as far as is assumed: a device
//! that hesitates does so for long fragments as for short ones.

/// Bins of an octave of the ratio.
const STEPS: f64 = 4.0;
/// Bins below and above the middle one: from an eighth to 512 times the mean.
const BELOW: usize = 12;
const ABOVE: usize = 36;

/// The number of bins; the first and the last take whatever lies beyond.
pub(crate) const BINS: usize = BELOW + 1 + ABOVE;

/// Fragments of more than so many times the mean are stalls, where a spread is put into words.
pub const STALL_TIMES: f64 = 16.0;

/// Fragments that differ by less are alike: the coefficient of variation, stalls included. Clocks
/// and estimates differ by as much.
const ALIKE: f64 = 0.05;

/// Spreads are alike if the slowest of so many fragments is late by the same, in the mean.
const SLOWEST_OF: [i32; 3] = [1, 4, 16];

/// By how much that may differ, and by what factor the numbers of samples behind the two.
const ALIKE_PART: f64 = 0.1;
const ALIKE_SAMPLES: f64 = 2.0;

/// The bin of a time that is `ratio` times its mean.
pub(crate) fn bin(ratio: f64) -> usize {
    let steps = (STEPS * ratio.log2()).round() + BELOW as f64;
    // Not a number becomes 0.
    (steps as usize).min(BINS - 1)
}

/// Counts of the same lateness by multiples of another unit, which is `by` times shorter. Each is
/// shared out between two bins, so that the mean stays.
pub(crate) fn in_unit(counts: &[f32; BINS], by: f64) -> [f32; BINS] {
    let mut all = [0.0; BINS];
    for (place, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0.0) {
        let at = 1.0 + (ratio(place) - 1.0) * by;
        let near = bin(at);
        let next = if at > ratio(near) { near + 1 } else { near.saturating_sub(1) };
        let next = next.min(BINS - 1);
        let part = (at - ratio(near)) / (ratio(next) - ratio(near));
        let part = if next == near { 0.0 } else { part.clamp(0.0, 1.0) as f32 };
        all[near] += count * (1.0 - part);
        all[next] += count * part;
    }
    all
}

/// The ratio that the middle of a bin stands for.
fn ratio(bin: usize) -> f64 {
    ((bin as f64 - BELOW as f64) / STEPS).exp2()
}

/// The distribution of one fragment's lateness at a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Mean time in seconds that the ratios were of.
    unit: f64,
    /// The part of the fragments in each bin and those before it.
    below: [f32; BINS],
    /// Number of fragments that this is known of; infinite if it is known exactly.
    samples: f64,
}

impl Spread {
    /// A spread by counts of fragments in each bin. `None` if there are none, or if they do not
    /// differ.
    pub(crate) fn of_counts(unit: f64, counts: &[f32; BINS]) -> Option<Self> {
        let total: f32 = counts.iter().sum();
        let mut sum = 0.0;
        let below = counts.map(|count| {
            sum += count;
            sum / total.max(1.0)
        });
        Self { unit, below, samples: total.into() }.checked()
    }

    /// A lognormal latency of this mean, in seconds, and coefficient of variation; beside it, a
    /// part `stalled` of the fragments takes `times` as long as the mean. `None` if that is no
    /// difference.
    ///
    /// ```
    /// use piped_model::spread::Spread;
    /// let disk = Spread::lognormal(70e-6, 1.0, (0.005, 50.0)).expect("they differ");
    /// let [cv, stalled, times] = disk.in_words();
    /// assert!((cv - 1.0).abs() < 0.05 && (stalled - 0.005).abs() < 0.001);
    /// assert!((times / 50.0 - 1.0).abs() < 0.1);
    /// assert_eq!(Spread::lognormal(70e-6, 0.0, (0.0, 0.0)), None);
    /// ```
    #[must_use]
    pub fn lognormal(mean: f64, cv: f64, (stalled, times): (f64, f64)) -> Option<Self> {
        let variance = (cv * cv).ln_1p();
        let deviation = variance.sqrt().max(1e-9);
        let stall = bin(times);
        let mut below = [1.0; BINS];
        for (place, below) in below.iter_mut().enumerate().take(BINS - 1) {
            let edge = ratio(place) * (0.5 / STEPS).exp2();
            let usual = normal((edge.ln() + variance / 2.0) / deviation);
            let late = if place >= stall { stalled } else { 0.0 };
            *below = ((1.0 - stalled) * usual + late) as f32;
        }
        Self { unit: mean, below, samples: f64::INFINITY }.checked()
    }

    /// A spread by the mean time in seconds that ratios are of, the number of fragments that it is
    /// known of, and the part of them in each bin and those before it. `None` if that is none.
    #[must_use]
    pub fn of_parts(unit: f64, samples: f64, parts: &[f64]) -> Option<Self> {
        let is_whole = parts.is_sorted() && parts.first()? >= &0.0 && parts.last()? == &1.0;
        let mut below = [0.0; BINS];
        if !is_whole || parts.len() != BINS || samples.is_nan() || samples <= 0.0 {
            return None;
        }
        below.iter_mut().zip(parts).for_each(|(below, &part)| *below = part as f32);
        Self { unit, below, samples }.checked()
    }

    /// The unit, the samples and the parts that [`Spread::of_parts`] takes.
    pub fn parts(&self) -> (f64, f64, impl Iterator<Item = f64>) {
        (self.unit, self.samples, self.below.into_iter().map(f64::from))
    }

    /// Number of fragments that this is known of; infinite if it is known exactly.
    #[must_use]
    pub fn samples(&self) -> f64 {
        self.samples
    }

    /// The mean time in seconds that the ratios are of, and the fragments by bins, `most` of them.
    pub(crate) fn counts(&self, most: f32) -> (f64, [f32; BINS]) {
        let total = (self.samples as f32).min(most);
        let mut before = 0.0;
        let counts =
            self.below.map(|below| (below - core::mem::replace(&mut before, below)) * total);
        (self.unit, counts)
    }

    fn checked(self) -> Option<Self> {
        let known = self.unit.is_finite() && self.unit > 0.0;
        let [_, mean, squares] = self.moments(|_| true);
        (known && squares - mean * mean > ALIKE * ALIKE * mean * mean).then_some(self)
    }

    /// Sums of the shares of some ratios: by themselves, with the ratio, and with its square.
    fn moments(&self, is_meant: impl Fn(f64) -> bool) -> [f64; 3] {
        let mut sums = [0.0; 3];
        let mut before = 0.0;
        for (place, &below) in self.below.iter().enumerate() {
            let share = f64::from(below - core::mem::replace(&mut before, below));
            let ratio = ratio(place);
            if is_meant(ratio) {
                for (power, sum) in (0..).zip(&mut sums) {
                    *sum += share * ratio.powi(power);
                }
            }
        }
        sums
    }

    /// The part of the fragments that are late by at most so many seconds. Early ones are late by a
    /// negative time.
    #[must_use]
    pub fn part_within(&self, late: f64) -> f64 {
        let ratio = 1.0 + late / self.unit;
        if ratio <= 0.0 {
            return 0.0;
        }
        let place = STEPS as f32 * (ratio as f32).log2() + BELOW as f32 + 0.5;
        if place < 0.0 {
            return 0.0;
        }
        let bin = place as usize;
        if bin >= BINS {
            return 1.0;
        }
        let before = if bin == 0 { 0.0 } else { self.below[bin - 1] };
        let here = self.below[bin] - before;
        // What does not differ is not spread over the width of the bin.
        let part = if bin == BELOW { f32::from(late >= 0.0) } else { place - bin as f32 };
        f64::from(before + here * part)
    }

    /// The seconds of lateness between which the distribution is a line in their logarithm: a point
    /// between each two has the part of all fragments between them.
    pub(crate) fn edges(&self) -> impl Iterator<Item = f64> + '_ {
        let edge = |place: usize| (ratio(place) * (-0.5 / STEPS).exp2() - 1.0) * self.unit;
        let [below, above] = [0..BELOW + 1, BELOW + 1..BINS + 1];
        below.map(edge).chain([0.0]).chain(above.map(edge))
    }

    /// The lateness that no fragment is known to exceed, in seconds.
    pub(crate) fn latest(&self) -> f64 {
        let last = self.below.iter().position(|&below| below >= 1.0).unwrap_or(BINS - 1);
        (ratio(last) * (0.5 / STEPS).exp2() - 1.0) * self.unit
    }

    /// The lateness, in seconds, that this part of the fragments is within.
    #[must_use]
    pub fn quantile(&self, part: f64) -> f64 {
        let place = self.below.iter().position(|&below| f64::from(below) >= part);
        let place = place.unwrap_or(BINS - 1);
        if place == BELOW {
            return 0.0;
        }
        let before = if place == 0 { 0.0 } else { f64::from(self.below[place - 1]) };
        let here = f64::from(self.below[place]) - before;
        let within = if here > 0.0 { ((part - before) / here).clamp(0.0, 1.0) } else { 1.0 };
        (ratio(place) * ((within - 0.5) / STEPS).exp2() - 1.0) * self.unit
    }

    /// By how much the slowest of so many fragments is late, in the mean, in seconds.
    #[must_use]
    pub fn slowest(&self, count: i32) -> f64 {
        let mut before = 0.0;
        let shares = self.below.iter().enumerate().map(|(place, &below)| {
            let below = f64::from(below).powi(count);
            (below - core::mem::replace(&mut before, below)) * ratio(place)
        });
        (shares.sum::<f64>() - 1.0) * self.unit
    }

    /// Whether plans made with the one hold for the other: the slowest of several fragments are
    /// equally late, and neither is known much better. Means, because a quantile of what is rare
    /// jumps.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let [few, many] = [self.samples.min(other.samples), self.samples.max(other.samples)];
        let are_near = |count| {
            let [a, b] = [self, other].map(|it| it.unit + it.slowest(count));
            (a - b).abs() <= ALIKE_PART * a.max(b)
        };
        // Not so if only one is known exactly.
        many <= few * ALIKE_SAMPLES && SLOWEST_OF.into_iter().all(are_near)
    }

    /// The spread in three numbers: the coefficient of variation of fragments of at most
    /// [`STALL_TIMES`] the mean, the part of longer ones, and how many times the mean these take.
    #[must_use]
    pub fn in_words(&self) -> [f64; 3] {
        let [usual, long] = [true, false].map(|is| self.moments(|at| (at <= STALL_TIMES) == is));
        let [_, mean, squares] = usual.map(|sum| sum / usual[0].max(f64::MIN_POSITIVE));
        let cv = (squares - mean * mean).max(0.0).sqrt() / mean.max(f64::MIN_POSITIVE);
        let times = if long[0] > 0.0 { long[1] / long[0] } else { 0.0 };
        [cv, long[0].max(0.0), times]
    }
}

/// The standard normal distribution function, to 1e-7 (Abramowitz and Stegun, Handbook of
/// Mathematical Functions, 1964, 7.1.26).
pub(crate) fn normal(z: f64) -> f64 {
    let x = z.abs() / core::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let factors = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let tail = factors.into_iter().fold(0.0, |sum, factor| (sum + factor) * t) * (-x * x).exp();
    if z < 0.0 { tail / 2.0 } else { 1.0 - tail / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_what_that_part_is_within() {
        let spread = Spread::lognormal(1e-3, 1.5, (0.01, 40.0)).unwrap();
        for part in [0.02, 0.2, 0.5, 0.9, 0.985, 0.995] {
            let late = spread.quantile(part);
            // The middle bin is a point.
            assert!((spread.part_within(late) - part).abs() < 1e-4 || late == 0.0, "{part}");
        }
        let edges: Vec<f64> = spread.edges().collect();
        assert!(edges.windows(2).all(|pair| pair[0] < pair[1]), "{edges:?}");
        assert_eq!(edges.len(), BINS + 2);
    }

    #[test]
    fn what_does_not_differ_is_no_spread() {
        let mut counts = [0.0; BINS];
        assert_eq!(Spread::of_counts(1.0, &counts), None);
        counts[bin(1.05)] = 1000.0;
        assert_eq!(Spread::of_counts(1.0, &counts), None);
        counts[bin(2.0)] = 100.0;
        let spread = Spread::of_counts(1.0, &counts).unwrap();
        assert_eq!((spread.part_within(-1e-9), spread.quantile(0.5)), (0.0, 0.0));
        assert_eq!(Spread::of_counts(f64::NAN, &counts), None);
    }

    #[test]
    fn ratios_beyond_the_bins_are_in_the_outer_ones() {
        assert_eq!([0.0, -1.0, f64::NAN, 1.0, 1e300].map(bin), [0, 0, 0, BELOW, BINS - 1]);
    }
}
