//! Quantities as types.
//!
//! Time between crates is a whole number of nanoseconds: it compares, sorts and subtracts exactly.
//! Inside the theory it is a float of seconds, because costs are averages. [`Nanos::seconds`] and
//! [`Nanos::from_seconds`] are the only crossing.

use core::fmt;
use core::ops::{Add, Sub};

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// A point in time or a duration, in nanoseconds from an origin the driver chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Nanos(pub u64);

impl Nanos {
    /// A duration of no time, or the origin of the clock.
    pub const ZERO: Self = Self(0);
    /// The latest point in time, which is never reached.
    pub const MAX: Self = Self(u64::MAX);

    /// A number of microseconds.
    ///
    /// ```
    /// use piped_core::units::Nanos;
    /// let start = Nanos::from_micros(5);
    /// assert_eq!((start + Nanos::from_millis(1)).since(start), Nanos(1_000_000));
    /// assert_eq!(start - Nanos::MAX, Nanos::ZERO);
    /// assert_eq!(Nanos::from_seconds(start.seconds()), start);
    /// assert_eq!(start.to_string(), "5.0 us");
    /// ```
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// A number of milliseconds as nanoseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Seconds, rounded to the nearest nanosecond; negative and NaN become zero.
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Self {
        Self((seconds * 1e9).round().max(0.0) as u64)
    }

    /// The time in seconds.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 * 1e-9
    }

    /// The time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Self;
    /// Saturates: a deadline beyond the end of time is never reached.
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Nanos {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.since(other)
    }
}

impl fmt::Display for Nanos {
    /// Microseconds with one decimal, the unit of the field's tables.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} us", self.0 as f64 / 1e3)
    }
}
