//! From rounds to a verdict: medians, their bootstrap interval, and its position against a bar.
//!
//! Pairs instead of two averages: a disturbance of the machine lasts longer than a round, so it
//! hits both sides of a ratio within one. Medians instead of means: a disturbance of one side is an
//! outlier. The bootstrap (resample the rounds, take the median again) asks nothing of their
//! distribution; its seed is fixed, so the same rounds give the same verdict.

use serde::{Deserialize, Serialize};

/// Resamples of a bootstrap: enough that the interval's ends have settled to their third digit.
const RESAMPLES: usize = 4000;
const SEED: u64 = 0x7069_7065_6431_3131;

/// A median with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Interval {
    /// A count, which is known and not estimated.
    pub(crate) fn exact(value: f64) -> Self {
        Self { low: value, median: value, high: value }
    }

    /// Whether all of it is a number.
    pub(crate) fn is_finite(&self) -> bool {
        [self.low, self.median, self.high].iter().all(|end| end.is_finite())
    }

    /// Interval of the median of `samples`; none without samples.
    pub(crate) fn of_median(samples: &[f64]) -> Option<Self> {
        let center = median(samples)?;
        let mut random = Random::new(SEED);
        let mut resample = vec![0.0; samples.len()];
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                for place in &mut resample {
                    *place = samples[random.below(samples.len() as u64) as usize];
                }
                median(&resample).expect("as many as the samples, and there are some")
            })
            .collect();
        medians.sort_unstable_by(f64::total_cmp);
        let tail = RESAMPLES / 40;
        Some(Self { low: medians[tail], median: center, high: medians[RESAMPLES - 1 - tail] })
    }
}

/// Median of `values`; none without values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Requirement on a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bar {
    /// At most this value.
    AtMost(f64),
    /// At least this value.
    AtLeast(f64),
    /// Between these two values.
    Between(f64, f64),
}

/// Position of a figure against its bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The interval is inside the bar.
    Holds,
    /// The interval is outside the bar.
    Fails,
    /// The interval reaches over the bar: more rounds, or a quieter machine, would tell. Or the bar
    /// asks for more than this machine has.
    Undecided,
    /// The row was measured against a floor that an outside tool contradicts.
    Invalid,
    /// A tool was missing; the note names it.
    Unchecked,
    /// The row has no bar.
    Reported,
}

impl Bar {
    /// Verdict on a figure.
    pub(crate) fn judge(self, found: Interval) -> Verdict {
        let (low, high) = match self {
            Self::AtMost(most) => (f64::NEG_INFINITY, most),
            Self::AtLeast(least) => (least, f64::INFINITY),
            Self::Between(least, most) => (least, most),
        };
        if !found.is_finite() {
            Verdict::Undecided
        } else if low <= found.low && found.high <= high {
            Verdict::Holds
        } else if found.high < low || found.low > high {
            Verdict::Fails
        } else {
            Verdict::Undecided
        }
    }
}

/// Whether a larger figure is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    Smaller,
    Larger,
}

impl Better {
    fn is(self, one: f64, other: f64) -> bool {
        match self {
            Self::Smaller => one < other,
            Self::Larger => one > other,
        }
    }
}

/// One round: the figure of each arm, and the round's number from 1. An arm may sit out a round.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Round {
    pub(crate) number: u32,
    pub(crate) values: Vec<Option<f64>>,
}

impl Round {
    pub(crate) fn is_odd(&self) -> bool {
        self.number % 2 == 1
    }
}

/// Arm among `arms` that was best in the odd rounds. The even ones are for comparing with it: the
/// best of noisy medians is the luckiest one too, and would be compared with its luck.
pub(crate) fn best_on_odd(
    rounds: &[Round],
    arms: std::ops::Range<usize>,
    better: Better,
) -> Option<usize> {
    best_of(rounds.iter().filter(|round| round.is_odd()), arms, better)
}

/// Arm among `arms` that was best in these rounds. It must not be compared in them, see
/// [`best_on_odd`].
pub(crate) fn best_of<'a>(
    rounds: impl Iterator<Item = &'a Round> + Clone,
    arms: std::ops::Range<usize>,
    better: Better,
) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for arm in arms {
        let values: Vec<f64> = rounds.clone().filter_map(|round| round.values[arm]).collect();
        let Some(value) = median(&values) else { continue };
        if best.is_none_or(|(_, other)| better.is(value, other)) {
            best = Some((arm, value));
        }
    }
    best.map(|(arm, _)| arm)
}

/// Values of `of` for the even rounds; rounds without a value are left out.
pub(crate) fn on_even(rounds: &[Round], of: impl Fn(&Round) -> Option<f64>) -> Vec<f64> {
    rounds.iter().filter(|round| !round.is_odd()).filter_map(of).collect()
}

/// Random numbers from a seed (SplitMix64), for resampling and for offsets, where nobody is an
/// adversary.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Number below `bound`, which is not 0; the bias is below `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(number: u32, values: &[f64]) -> Round {
        Round { number, values: values.iter().copied().map(Some).collect() }
    }

    #[test]
    fn a_median_of_an_even_number_lies_between_the_middle_ones() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn the_interval_covers_the_true_median_about_95_times_in_100() {
        // Uniform on 0..1: the true median is 0.5. With 15 samples the bootstrap is known to be a
        // little narrow, and 1000 trials leave a standard error of 0.7 %.
        let mut random = Random::new(7);
        let covered = (0..1000)
            .filter(|_| {
                let samples: Vec<f64> =
                    (0..15).map(|_| random.below(1 << 32) as f64 / (1u64 << 32) as f64).collect();
                let found = Interval::of_median(&samples).expect("there are samples");
                assert!(found.low <= found.median && found.median <= found.high);
                found.low <= 0.5 && 0.5 <= found.high
            })
            .count();
        assert!((900..=985).contains(&covered), "{covered} of 1000 (seed 7)");
    }

    #[test]
    fn the_same_rounds_give_the_same_interval() {
        let samples = [1.0, 1.1, 0.9, 1.3, 1.0, 0.8];
        assert_eq!(Interval::of_median(&samples), Interval::of_median(&samples));
        assert_eq!(Interval::of_median(&[]), None);
        assert_eq!(Interval::of_median(&[2.0]), Some(Interval::exact(2.0)));
    }

    #[test]
    fn a_bar_holds_only_if_the_whole_interval_does() {
        let found = |low, high| Interval { low, median: (low + high) / 2.0, high };
        assert_eq!(Bar::AtMost(1.15).judge(found(0.9, 1.15)), Verdict::Holds);
        assert_eq!(Bar::AtMost(1.15).judge(found(1.1, 1.2)), Verdict::Undecided);
        assert_eq!(Bar::AtMost(1.15).judge(found(1.16, 1.2)), Verdict::Fails);
        assert_eq!(Bar::AtLeast(0.9).judge(found(0.9, 2.0)), Verdict::Holds);
        assert_eq!(Bar::AtLeast(0.9).judge(found(0.8, 0.95)), Verdict::Undecided);
        assert_eq!(Bar::AtLeast(0.9).judge(found(0.7, 0.8)), Verdict::Fails);
        assert_eq!(Bar::Between(0.85, 1.15).judge(found(0.9, 1.1)), Verdict::Holds);
        assert_eq!(Bar::Between(0.85, 1.15).judge(found(1.2, 1.3)), Verdict::Fails);
        assert_eq!(Bar::AtMost(0.0).judge(Interval::exact(0.0)), Verdict::Holds);
        assert_eq!(Bar::AtMost(1.0).judge(found(f64::NAN, 0.5)), Verdict::Undecided);
    }

    #[test]
    fn the_best_is_chosen_on_odd_rounds_only() {
        // Arm 0 is best in the even rounds, arm 1 in the odd ones.
        let rounds: Vec<Round> = (1..=6)
            .map(|number| {
                if number % 2 == 1 {
                    round(number, &[9.0, 5.0])
                } else {
                    round(number, &[1.0, 6.0])
                }
            })
            .collect();
        assert_eq!(best_on_odd(&rounds, 0..2, Better::Smaller), Some(1));
        assert_eq!(best_on_odd(&rounds, 0..2, Better::Larger), Some(0));
        assert_eq!(best_on_odd(&rounds, 0..0, Better::Smaller), None);
        assert_eq!(on_even(&rounds, |round| round.values[1]), vec![6.0, 6.0, 6.0]);
    }

    #[test]
    fn an_arm_that_sat_out_is_left_out() {
        let rounds = [
            Round { number: 1, values: vec![None, Some(2.0)] },
            Round { number: 2, values: vec![Some(1.0), None] },
        ];
        assert_eq!(best_on_odd(&rounds, 0..2, Better::Smaller), Some(1));
        assert_eq!(on_even(&rounds, |round| round.values[1]), Vec::<f64>::new());
    }
}
