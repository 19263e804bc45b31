//! Counts of values by size: log-spaced buckets, four to an octave, with no allocation and no float
//! on the data path. Readers turn them into seconds, quantiles or Prometheus' buckets.

/// A histogram of `BUCKETS` counts: one for values up to `2^FIRST`, four for each octave above, one
/// for all beyond.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram<const FIRST: u32, const BUCKETS: usize> {
    counts: [u64; BUCKETS],
    sum: u64,
}

/// Buckets to an octave. A quantile that is read from them is at most a quarter too high.
const STEPS: usize = 4;

/// Times in nanoseconds, from 1 us to 137 s.
pub type Latencies = Histogram<10, { 2 + 27 * STEPS }>;

/// Lengths in bytes, from 4 KiB to 1 MiB.
pub type Sizes = Histogram<12, { 2 + 8 * STEPS }>;

/// Ratios in 1/1024, from 1/64 to 64.
pub type Ratios = Histogram<4, { 2 + 12 * STEPS }>;

/// The value in [`Ratios`] that stands for a ratio of 1.
pub const RATIO_ONE: u64 = 1024;

impl<const FIRST: u32, const BUCKETS: usize> Default for Histogram<FIRST, BUCKETS> {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum: 0 }
    }
}

impl<const FIRST: u32, const BUCKETS: usize> Histogram<FIRST, BUCKETS> {
    /// Counts a value in its bucket.
    pub fn add(&mut self, value: u64) {
        self.counts[Self::place(value)] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    fn place(value: u64) -> usize {
        // A value on a bound belongs below it, as Prometheus wants it.
        let below = value.saturating_sub(1);
        if below >> FIRST == 0 {
            return 0;
        }
        let log = below.ilog2();
        let step = (below >> (log - STEPS.ilog2())) as usize % STEPS;
        (1 + (log - FIRST) as usize * STEPS + step).min(BUCKETS - 1)
    }

    /// The largest value of a bucket; `None` for the last bucket, which has no end.
    #[must_use]
    pub const fn bound(bucket: usize) -> Option<u64> {
        match bucket {
            0 => Some(1 << FIRST),
            _ if bucket + 1 >= BUCKETS => None,
            _ => {
                let (octave, step) = ((bucket - 1) / STEPS, (bucket - 1) % STEPS);
                Some(((STEPS + step + 1) as u64) << (FIRST as usize + octave) >> STEPS.ilog2())
            }
        }
    }

    /// All buckets: the largest value of each, and its count.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        self.counts.iter().enumerate().map(|(bucket, &count)| (Self::bound(bucket), count))
    }

    /// Number of values that were added.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the values that were added, saturating.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }
}

const _: () = assert!(STEPS.is_power_of_two());

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_rise_and_reach_what_is_said() {
        let bounds: Vec<u64> = (0..).map_while(Latencies::bound).collect();
        assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!((bounds[0], bounds[1], bounds[4]), (1024, 1280, 2048));
        assert_eq!(bounds.last(), Some(&(1 << 37)));
        assert_eq!((0..).map_while(Sizes::bound).last(), Some(1 << 20));
        assert_eq!((0..).map_while(Ratios::bound).last(), Some(64 * RATIO_ONE));
    }

    proptest! {
        #[test]
        fn a_value_lies_in_the_bucket_that_says_so(
            value in prop_oneof![any::<u64>(), 0..1_u64 << 40],
        ) {
            let mut histogram = Latencies::default();
            histogram.add(value);
            let mut below = 0;
            for (bound, count) in histogram.buckets() {
                let here = value > below && bound.is_none_or(|bound| value <= bound)
                    || value == 0 && below == 0;
                prop_assert_eq!(count, u64::from(here), "{} to {:?}", below, bound);
                below = bound.unwrap_or(u64::MAX);
            }
            prop_assert_eq!((histogram.count(), histogram.sum()), (1, value));
        }
    }

    #[test]
    fn what_is_merged_is_the_sum() {
        let (mut one, mut other) = (Sizes::default(), Sizes::default());
        one.add(5000);
        other.add(5000);
        other.add(1 << 30);
        one.merge(&other);
        assert_eq!((one.count(), one.sum()), (3, 10_000 + (1 << 30)));
        assert_eq!(one.buckets().map(|(_, count)| count).max(), Some(2));
    }
}
