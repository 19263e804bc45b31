//! A stage's `g` and `G` from times measured inside it.
//!
//! The stage's code is instrumented, and packets of several sizes pass it one by one. A line
//! through time against size has `g` where it starts and `G` as its slope (Wang et al., section
//! 5.3.1). One size alone gives only their sum: that is said, with the sum ([`Fault::OneSize`]).

use core::fmt;

use super::figure::Figure;
use super::line::{self, Line, Options};
use crate::stage::Stage;

/// A measured time of a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// The fragment's size in bytes.
    pub bytes: u64,
    /// What it took, in seconds; finite and above 0.
    pub seconds: f64,
}

/// Measurements that give no line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// There are no measurements.
    Empty,
    /// A time that no clock gives.
    Time {
        /// Which measurement, from 0.
        index: usize,
        /// The seconds it gave.
        seconds: f64,
    },
    /// All have one size: only `g + xG` there is known, not how it divides into `g` and `G`.
    OneSize {
        /// The size in bytes.
        bytes: u64,
        /// `g + xG` in seconds.
        seconds: Figure,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "there are no measurements: give some of at least two sizes"),
            Self::Time { index, seconds } => {
                write!(f, "measurement {index} took {seconds} s: give a finite time above 0")
            }
            Self::OneSize { bytes, seconds } => write!(
                f,
                "all measurements are of {bytes} bytes: they give g + xG there ({:.6e} s), but not \
                 g and G apart; measure another size",
                seconds.value
            ),
        }
    }
}

impl std::error::Error for Fault {}

/// The line through times against sizes: `g` is [`Line::intercept`] in seconds, `G` is
/// [`Line::slope`] in seconds per byte, both with their errors (Wang et al., section 5.3.1).
///
/// # Errors
/// If there are no measurements, one has no time, or all have one size; the last with what is known
/// all the same.
///
/// ```
/// use piped_model::estimate::clear_box::{self, Fault, Timing};
/// use piped_model::estimate::Options;
/// let at = |bytes: u64| Timing { bytes, seconds: 7.5e-6 + bytes as f64 * 24.9e-6 / 1024.0 };
/// let line = clear_box::fit(&[at(128), at(1024), at(4096)], Options::default())?;
/// assert!((line.intercept.value / 7.5e-6 - 1.0).abs() < 1e-9);
/// assert!((line.slope.value * 1024.0 / 24.9e-6 - 1.0).abs() < 1e-9);
///
/// let Err(Fault::OneSize { seconds, .. }) = clear_box::fit(&[at(64), at(64)], Options::default())
/// else { panic!() };
/// assert!((seconds.value / at(64).seconds - 1.0).abs() < 1e-9);
/// # Ok::<(), Fault>(())
/// ```
pub fn fit(timings: &[Timing], options: Options) -> Result<Line, Fault> {
    let points = points(timings)?;
    line::fit(&points, options).ok_or_else(|| {
        let mut times: Vec<f64> = timings.iter().map(|it| it.seconds).collect();
        let mean = Figure::mean(&times).unwrap_or(Figure::exact(0.0));
        let value = if options.robust { line::median(&mut times) } else { None };
        Fault::OneSize {
            bytes: timings.first().map_or(0, |it| it.bytes),
            seconds: Figure { value: value.unwrap_or(mean.value), ..mean },
        }
    })
}

/// The measurements as points, checked.
pub(super) fn points(timings: &[Timing]) -> Result<Vec<(f64, f64)>, Fault> {
    if timings.is_empty() {
        return Err(Fault::Empty);
    }
    let bad = |it: &Timing| !(it.seconds.is_finite() && it.seconds > 0.0);
    if let Some(index) = timings.iter().position(bad) {
        return Err(Fault::Time { index, seconds: timings[index].seconds });
    }
    Ok(timings.iter().map(|it| (it.bytes as f64, it.seconds)).collect())
}

/// The stage to plan with: the line itself, or, where noise has put `g` or `G` below 0, the line of
/// the same height at `bytes` that has 0 there. `L` and the window are not known from this.
///
/// ```
/// use piped_model::estimate::clear_box::{self, Timing};
/// use piped_model::estimate::Options;
/// let timings = [(1000, 0.5), (2000, 1.5)].map(|(bytes, seconds)| Timing { bytes, seconds });
/// let line = clear_box::fit(&timings, Options::default())?;
/// assert!(line.intercept.value < 0.0);
/// let stage = clear_box::stage(&line, 1500.0);
/// assert_eq!((stage.overhead, stage.occupancy(1500.0)), (0.0, 1.0));
/// # Ok::<(), clear_box::Fault>(())
/// ```
#[must_use]
pub fn stage(line: &Line, bytes: f64) -> Stage {
    let height = line.at(bytes).max(0.0);
    let (overhead, per_byte) = (line.intercept.value, line.slope.value);
    let (overhead, per_byte) = if per_byte < 0.0 {
        (height, 0.0)
    } else if overhead < 0.0 && bytes > 0.0 {
        (0.0, height / bytes)
    } else {
        (overhead.max(0.0), per_byte)
    };
    Stage { overhead, per_byte, ..Stage::FREE }
}
