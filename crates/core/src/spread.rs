//! How much the latency of one operation differs from the next one's, where delays are made up: by
//! simulated disks and by delay injections.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// Latencies that differ: lognormal, but for stalls.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields, default))]
pub struct LatencySpread {
    /// Standard deviation of a latency that is no stall, as a part of the mean.
    pub cv: f64,
    /// The part of the operations that stall.
    pub stalls: f64,
    /// The latency of a stall, as a multiple of the mean of others.
    pub times: f64,
}

// What passed `check` has no number that is none.
impl Eq for LatencySpread {}

/// The largest coefficient of variation: what lies beyond is all stalls.
const CV_MAX: f64 = 10.0;
/// The longest stall, as a multiple of the mean.
const TIMES_MAX: f64 = 1e6;

/// Why latencies cannot differ so.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "a spread of cv {}, stalls {}, times {}: give cv up to 10; stalls as a part of the operations \
     (0.005), and with it times, as a multiple of L from 1 to a million (50)", .0.cv, .0.stalls,
     .0.times
)]
pub struct SpreadFault(LatencySpread);

impl LatencySpread {
    /// All operations take what they cost.
    pub const NONE: Self = Self { cv: 0.0, stalls: 0.0, times: 0.0 };

    /// Whether all operations take what they cost.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// The spread, if latencies can differ so. Stalls have a length, and a length has stalls.
    ///
    /// ```
    /// use piped_core::spread::LatencySpread;
    /// assert!(LatencySpread { cv: 1.0, stalls: 0.005, times: 50.0 }.check().is_ok());
    /// assert!(LatencySpread { cv: f64::NAN, ..LatencySpread::NONE }.check().is_err());
    /// assert!(LatencySpread { stalls: 0.005, ..LatencySpread::NONE }.check().is_err());
    /// ```
    ///
    /// # Errors
    /// A number is out of its range, or none.
    pub fn check(self) -> Result<Self, SpreadFault> {
        let stalls = match self.stalls {
            0.0 => self.times == 0.0,
            _ => (0.0..1.0).contains(&self.stalls) && (1.0..=TIMES_MAX).contains(&self.times),
        };
        match stalls && (0.0..=CV_MAX).contains(&self.cv) {
            true => Ok(self),
            false => Err(SpreadFault(self)),
        }
    }

    /// The latency of one operation. `unit` draws evenly from what lies between 0 and 1, and not at
    /// all where all operations are alike, so that the rest of a run does not change.
    pub fn draw(&self, mean: Nanos, mut unit: impl FnMut() -> f64) -> Nanos {
        let is_stall = self.stalls > 0.0 && unit() < self.stalls;
        let usual = if self.cv > 0.0 { lognormal(self.cv, [unit(), unit()]) } else { 1.0 };
        Nanos::from_seconds(mean.seconds() * if is_stall { self.times } else { usual })
    }
}

/// A lognormal number of mean 1 with this standard deviation, by the method of Box and Muller.
fn lognormal(deviation: f64, [radius, angle]: [f64; 2]) -> f64 {
    let variance = (deviation * deviation).ln_1p();
    let normal = (-2.0 * radius.ln()).sqrt() * (core::f64::consts::TAU * angle).cos();
    (variance.sqrt() * normal - variance / 2.0).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;

    const MEAN: Nanos = Nanos::from_micros(70);

    fn drawn(spread: LatencySpread, seed: u64) -> Vec<f64> {
        let mut noise = Noise::of_seed(seed);
        let mut times: Vec<f64> =
            (0..40_000).map(|_| spread.draw(MEAN, || noise.unit()).seconds()).collect();
        times.sort_by(f64::total_cmp);
        times
    }

    #[test]
    fn latencies_have_the_mean_the_deviation_and_the_stalls_that_were_set() {
        for seed in 0..4 {
            let usual = drawn(LatencySpread { cv: 1.0, ..LatencySpread::NONE }, seed);
            let count = usual.len() as f64;
            let mean = usual.iter().sum::<f64>() / count;
            let variance = usual.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count;
            assert!((mean / 70e-6 - 1.0).abs() < 0.03, "{mean}");
            assert!((variance.sqrt() / mean - 1.0).abs() < 0.15, "{variance}");
            // The median of a lognormal of cv 1 is the mean by the root of 2.
            assert!((usual[20_000] / 70e-6 * 2_f64.sqrt() - 1.0).abs() < 0.03);
            let stalled = drawn(LatencySpread { stalls: 0.005, times: 50.0, cv: 0.0 }, seed);
            let stalls = stalled.iter().filter(|&&time| time > 71e-6).count();
            assert!((150..250).contains(&stalls), "{stalls}");
            assert!((stalled[39_999] / 3.5e-3 - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn no_difference_draws_nothing() {
        let never = || panic!("drawn");
        assert_eq!(LatencySpread::NONE.draw(MEAN, never), MEAN);
    }

    #[test]
    fn what_no_latency_does_is_refused_with_what_can_be() {
        let none = LatencySpread::NONE;
        for wrong in [
            LatencySpread { cv: -0.1, ..none },
            LatencySpread { cv: 10.1, ..none },
            LatencySpread { cv: f64::INFINITY, ..none },
            LatencySpread { stalls: f64::NAN, times: 50.0, ..none },
            LatencySpread { stalls: 1.0, times: 50.0, ..none },
            LatencySpread { stalls: -0.5, times: 50.0, ..none },
            LatencySpread { stalls: 0.1, times: 0.5, ..none },
            LatencySpread { stalls: 0.1, times: 1.1e6, ..none },
            LatencySpread { stalls: 0.1, times: f64::NAN, ..none },
            LatencySpread { times: 50.0, ..none },
            LatencySpread { times: f64::NAN, ..none },
        ] {
            let fault = wrong.check().expect_err("no latency does that").to_string();
            assert!(fault.contains("give cv up to 10"), "{fault}");
        }
        for right in [
            none,
            LatencySpread { cv: 10.0, ..none },
            LatencySpread { cv: 0.5, stalls: 0.999, times: 1.0 },
        ] {
            assert_eq!(right.check(), Ok(right));
        }
    }
}
