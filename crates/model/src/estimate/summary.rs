//! What an estimator has learned, to be told to another one.

use super::Sample;
use super::cell::MEMORY;

/// What the samples of one kind in one size regime amount to. Told from one node to another (or
/// kept over a restart) it says what the samples would have said: a line at one size would not, for
/// where sizes vary too little, or only one kind of sample was seen, half of that line is the
/// prior's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// Times between departures of a busy stage (`g + xG`), or ways through an empty one
    /// (`L + g + xG`).
    pub backlogged: bool,
    /// How many samples the summary is worth.
    pub weight: f64,
    /// The samples' mean size, in bytes.
    pub bytes: f64,
    /// The standard deviation of the samples' sizes, in bytes.
    pub spread: f64,
    /// The samples' mean cost, in seconds.
    pub seconds: f64,
    /// Growth of the cost with the size, in seconds per byte; means nothing where `spread` is 0.
    pub slope: f64,
    /// The standard deviation of one sample, as a part of `seconds`.
    pub deviation: f64,
}

/// The longest cost that can be, in seconds, and the shortest of a fragment of no bytes and of a
/// byte.
const SECONDS_MAX: f64 = 10.0;
const SECONDS_MIN: f64 = 1e-7;
const PER_BYTE_MIN: f64 = 1e-12;

impl Summary {
    /// The mean of the samples.
    pub(super) fn sample(&self) -> Sample {
        let (bytes, seconds) = (self.bytes as u64, self.seconds);
        match self.backlogged {
            true => Sample::Backlogged { bytes, seconds },
            false => Sample::Alone { bytes, seconds },
        }
    }

    /// A claim within what can be, or none if it is no claim about a fragment of 1 to `largest`
    /// bytes.
    ///
    /// ```
    /// use piped_model::estimate::Summary;
    /// let claim = Summary {
    ///     backlogged: true, weight: 1e300, bytes: 4096.0, spread: -1.0, seconds: 0.0, slope: -3.0,
    ///     deviation: f64::NAN,
    /// };
    /// let bounded = claim.bounded(1 << 20).unwrap();
    /// assert!(bounded.seconds > 0.0 && bounded.weight <= 200.0 && bounded.deviation <= 2.0);
    /// assert_eq!((bounded.spread, bounded.slope), (0.0, 0.0));
    /// assert_eq!(Summary { bytes: 1e9, ..claim }.bounded(1 << 20), None);
    /// assert_eq!(Summary { seconds: f64::NAN, ..claim }.bounded(1 << 20), None);
    /// assert_eq!(Summary { weight: 0.0, ..claim }.bounded(1 << 20), None);
    /// ```
    #[must_use]
    pub fn bounded(self, largest: u64) -> Option<Self> {
        let Self { weight, bytes, seconds, .. } = self;
        let says = weight > 0.0 && !seconds.is_nan() && (1.0..=largest as f64).contains(&bytes);
        if !says {
            return None;
        }
        let seconds = seconds.clamp(SECONDS_MIN + bytes * PER_BYTE_MIN, SECONDS_MAX);
        let within = |value: f64, most: f64| if value > 0.0 { value.min(most) } else { 0.0 };
        Some(Self {
            weight: weight.min(MEMORY),
            // A regime spans a factor of four.
            spread: within(self.spread, bytes),
            seconds,
            slope: within(self.slope, 4.0 * seconds / bytes),
            deviation: if self.deviation.is_nan() { 2.0 } else { self.deviation.clamp(0.01, 2.0) },
            ..self
        })
    }
}
