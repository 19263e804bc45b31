//! `L`, `g` and `G` of a stage from what happens in it, and of a network from what is measured at
//! it.
//!
//! *While it works:* [`Meter`] watches arrivals and departures and lets only two kinds of execution
//! through as samples: `alone` (the stage was empty: `L + g + xG`) and `backlogged` (it never ran
//! dry since the departure before: `g + xG`). [`Estimator`] turns samples into an [`Estimate`].
//! Everything else, the obvious "duration of each operation", mixes waiting into the cost and
//! cannot tell a latency that overlaps from an overhead that does not.
//!
//! Costs bend with the size (socket buffers, caches, queues), so the estimator keeps one cell of
//! weighted moments per size regime (factors of four) and kind of sample. Where all regimes lie on
//! one line, all of them are fitted together; where they do not, each is fitted by itself with its
//! neighbours as a faint hint, and the planner sees a [`CostCurve`] with the bends in it.
//!
//! Samples of empty stages also say how much single fragments differ from the mean: the estimator
//! counts them by their ratio to what was expected, and an estimate has them as a
//! [`crate::spread::Spread`]. Means of busy stages do not say it.
//!
//! A constant fragment size makes `g` and `G` indistinguishable. The estimator says so
//! ([`Estimate::identifiable`]) and then splits by its prior; vary the sizes within the plan's flat
//! region ([`crate::fixed::flat`]) to keep it informed.
//!
//! *From measurements made for it,* with confidence intervals and whatever outliers there are:
//! [`clear_box`] (a stage timed from inside), [`black_box`] (a pipeline from outside) with
//! [`Search`] (which asks for the measurements that it needs), and [`loggp`] (a network by bursts
//! of messages). [`active`] has these made on a path that others use, within bounds of time, bytes
//! and share.

pub mod active;
pub mod black_box;
pub mod clear_box;
pub mod loggp;
pub mod shared;

mod cell;
mod curve;
mod estimator;
mod figure;
mod fit;
mod limits;
mod line;
mod location;
mod meter;
mod screen;
mod search;
mod segments;
mod sketch;
mod summary;

pub use curve::CostCurve;
pub use estimator::{Estimate, Estimator, KnownSize};
pub use figure::Figure;
pub use line::{Line, Noise, Options};
pub use meter::{Meter, Sample, Ticket};
pub use search::{Mode, Search, SearchOptions, Wanted};
pub use segments::Outlier;
pub use summary::Summary;

/// The most size regimes a stage's cost is kept for.
pub const REGIMES: usize = 11;

/// The regime of a size. Their borders are `2 KiB * 4^n`, so that the sizes people use (4, 16, 64,
/// 256 KiB, 1 MiB) lie in the middle of one, with their variation.
///
/// ```
/// use piped_model::estimate::regime;
/// assert_eq!(regime(4096), regime(6000));
/// assert_eq!(regime(4096) + 1, regime(16384));
/// assert_eq!(regime(0), 0);
/// ```
#[must_use]
pub fn regime(bytes: u64) -> usize {
    // 512 = 2^9 is the first border: below it everything is overhead.
    let octave = (u64::BITS - bytes.leading_zeros()) as usize;
    (octave.saturating_sub(8) / 2).min(REGIMES - 1)
}

/// The smallest size of a regime but the first, in bytes.
fn border(regime: usize) -> f64 {
    2.0_f64.powi(2 * regime as i32 + 7)
}
