//! The parameters for fixed-size fragments, from outside the pipeline (Wang et al., section 5.3.2).
//!
//! Packets sent one at a time see the whole pipeline as one stage: a line through their latencies
//! has `(sum (L+g), sum G)`. Packets sent as fast as possible leave as often as the slowest stage
//! lets them: the time between departures has `(g_b, G_b)`. Theorem 1 needs no more than `g_b` and
//! `sum_{j!=b} G`, the difference of the slopes. Where another stage is the slowest at other sizes,
//! the times between departures are a convex bent line, and each straight piece is one bottleneck.
//!
//! [`fit`] reads all this from measurements that are there; [`super::Search`] asks for the ones it
//! needs.

use core::fmt;

#[cfg(feature = "serde")]
use serde::Serialize;

use super::clear_box::{self, Timing};
use super::figure::Figure;
use super::limits;
use super::line::{Line, Options};
use super::screen::Shape;
use super::segments::{self, Outlier, PIECES_MAX};
use crate::fixed::{self, Constraints, FixedBest};
use crate::plan::Algorithm;
use crate::stage::{STAGES_MAX, Stage};

/// Pipelines within the errors of the measurements that a plan is weighed for.
const DRAWS: usize = 64;
/// The root of `x^9 = x + 1`.
const ROOT: f64 = 1.085_070_245_491_451;

/// What can be known of a pipeline from outside.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct BlackBox {
    /// Latency of a packet alone against its size: `sum (L+g)` in seconds, `sum G` in seconds per
    /// byte.
    pub total: Line,
    /// The bottlenecks, by rising size; at least one.
    pub bottlenecks: Vec<Bottleneck>,
    /// The smallest and the largest size measured, in bytes.
    pub range: [f64; 2],
    /// Latencies of packets alone that the others contradict.
    pub alone_outliers: Vec<Outlier>,
    /// Times between departures that the others contradict.
    pub backlogged_outliers: Vec<Outlier>,
}

/// The slowest stage over a range of sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Bottleneck {
    /// The size in bytes from which on the stage is the slowest; `None` for the first one.
    pub from_bytes: Option<Figure>,
    /// Time between departures against size: `g_b` in seconds, `G_b` in seconds per byte.
    pub line: Line,
    /// `sum_{j!=b} G`, in seconds per byte.
    pub others_per_byte: Figure,
    /// `sum_{j!=b} (L+g)`, in seconds.
    pub others_overhead: Figure,
}

/// Measurements that say nothing of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BlackBoxFault {
    /// The latencies of packets alone.
    Alone(clear_box::Fault),
    /// The times between departures.
    Backlogged(clear_box::Fault),
}

impl fmt::Display for BlackBoxFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alone(fault) => write!(f, "latencies of packets alone: {fault}"),
            Self::Backlogged(fault) => write!(f, "times between departures: {fault}"),
        }
    }
}

impl std::error::Error for BlackBoxFault {}

/// The black box behind measurements: latencies of packets sent one at a time (`alone`), and times
/// between departures of packets of one size sent as fast as possible (`backlogged`).
///
/// # Errors
/// If either kind is missing, has a time that no clock gives, or only one size.
///
/// ```
/// use piped_model::estimate::clear_box::Timing;
/// use piped_model::estimate::{Options, black_box};
/// // GAM, us and us/KB: the bottleneck is (7.5, 24.9), the others' G add up to 40.0.
/// let gam = [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)];
/// let at = |bytes: u64, of: &dyn Fn(&[f64]) -> f64| {
///     let stages = gam.map(|(g, per_kb)| (g + bytes as f64 / 1024.0 * per_kb) * 1e-6);
///     Timing { bytes, seconds: of(&stages) }
/// };
/// let sizes = [128, 512, 1024, 4096];
/// let alone = sizes.map(|bytes| at(bytes, &|stages| stages.iter().sum()));
/// let slowest = |stages: &[f64]| stages.iter().copied().fold(0.0, f64::max);
/// let backlogged = sizes.map(|bytes| at(bytes, &slowest));
/// let found = black_box::fit(&alone, &backlogged, Options::default())?;
/// let bottleneck = found.bottlenecks[0];
/// assert!((bottleneck.line.intercept.value * 1e6 - 7.5).abs() < 1e-9);
/// assert!((bottleneck.others_per_byte.value * 1e6 * 1024.0 - 40.0).abs() < 1e-9);
/// // Enough for the plan of section 5.4: 4 KB go in five fragments.
/// assert_eq!(found.fixed(4096, &Default::default()).unwrap().count, 5);
/// # Ok::<(), black_box::BlackBoxFault>(())
/// ```
pub fn fit(
    alone: &[Timing],
    backlogged: &[Timing],
    options: Options,
) -> Result<BlackBox, BlackBoxFault> {
    // The one line is what says that there is one size only, and with what sum.
    let single = clear_box::fit(alone, options).map_err(BlackBoxFault::Alone)?;
    let points = clear_box::points(alone).map_err(BlackBoxFault::Alone)?;
    let (lines, alone_outliers) = segments::convex(&points, 1, Shape::Proportional, options);
    let sum = lines.first().copied().unwrap_or(single);
    let single = clear_box::fit(backlogged, options).map_err(BlackBoxFault::Backlogged)?;
    let points = clear_box::points(backlogged).map_err(BlackBoxFault::Backlogged)?;
    let sizes = points.iter().map(|it| it.0);
    let range = sizes.fold([f64::INFINITY, 0.0], |[low, high], x| [x.min(low), x.max(high)]);
    let mut most = PIECES_MAX;
    loop {
        let (mut lines, backlogged_outliers) =
            segments::convex(&points, most, Shape::Proportional, options);
        if lines.is_empty() {
            lines.push(single);
        }
        let mut total = sum;
        limits::keep(&mut total, &mut lines);
        let starts: Vec<Figure> =
            lines.windows(2).map(|pair| transition(&pair[0], &pair[1])).collect();
        let ordered = starts.windows(2).all(|pair| pair[0].value < pair[1].value);
        let inside = |it: &Figure| (range[0]..=range[1]).contains(&it.value);
        if !(ordered && starts.iter().all(inside)) {
            // Within the limits it is none of its own.
            most = lines.len() - 1;
            continue;
        }
        let rest = |sum: Figure, own: Figure| {
            let rest = sum.minus(own);
            Figure { value: rest.value.max(0.0), ..rest }
        };
        let bottlenecks = lines.iter().enumerate().map(|(place, line)| Bottleneck {
            from_bytes: place.checked_sub(1).map(|before| starts[before]),
            line: *line,
            others_per_byte: rest(total.slope, line.slope),
            others_overhead: rest(total.intercept, line.intercept),
        });
        return Ok(BlackBox {
            total,
            bottlenecks: bottlenecks.collect(),
            range,
            alone_outliers,
            backlogged_outliers,
        });
    }
}

/// The crossing of two lines, with its error from their errors there (first order).
fn transition(left: &Line, right: &Line) -> Figure {
    let at = segments::crossing(left, right);
    let steeper = right.slope.value - left.slope.value;
    let apart = left.figure_at(at).minus(right.figure_at(at)).times(1.0 / steeper);
    Figure { value: at, ..apart }
}

impl BlackBox {
    /// The bottleneck at a size.
    #[must_use]
    pub fn bottleneck_at(&self, bytes: f64) -> &Bottleneck {
        let starts = |it: &&Bottleneck| it.from_bytes.is_none_or(|from| from.value <= bytes);
        self.bottlenecks.iter().rfind(starts).unwrap_or(&self.bottlenecks[0])
    }

    /// Stages that look from outside like the pipeline: the bottlenecks, and what the others add up
    /// to in as many equal stages as keep them from being the slowest at any size measured. Theorem
    /// 1 does not ask for more: the latency of equal fragments depends on the slowest stage and on
    /// sums only. `None` if that takes more than [`STAGES_MAX`] stages.
    #[must_use]
    pub fn path(&self) -> Option<Vec<Stage>> {
        self.path_over(self.range)
    }

    /// The path where fragments of other sizes than those measured may be tried.
    fn path_over(&self, range: [f64; 2]) -> Option<Vec<Stage>> {
        let middle = 0.5 * (self.range[0] + self.range[1]);
        let total = clear_box::stage(&self.total, middle);
        let mut path = self.slowest_stages(total, middle);
        let sum = path.iter().fold(Stage::FREE, |sum, stage| sum.merge(*stage));
        let rest = Stage {
            overhead: (total.overhead - sum.overhead).max(0.0),
            per_byte: (total.per_byte - sum.per_byte).max(0.0),
            ..Stage::FREE
        };
        let slowest = |bytes: f64| path.iter().map(|it| it.occupancy(bytes)).fold(0.0, f64::max);
        let bends = self.bottlenecks.iter().filter_map(|it| it.from_bytes.map(|from| from.value));
        let needed = range.into_iter().chain(bends).map(|x| rest.occupancy(x) / slowest(x));
        // A part more for rounding must not cost a stage.
        let parts = (needed.fold(0.0, f64::max) - 1e-9).ceil().max(0.0);
        // Nothing is slower than the slowest, but a latency that no stage is occupied by is in the
        // sum, too.
        if parts.is_nan() || parts > (STAGES_MAX - path.len()) as f64 {
            return None;
        }
        let part =
            Stage { overhead: rest.overhead / parts, per_byte: rest.per_byte / parts, ..rest };
        path.extend((0..parts as usize).map(|_| part));
        Some(path)
    }

    /// The bottlenecks as stages, which together cost no more than `total`: one that was seen
    /// between two sizes close to its end may have the next one's slope in its line. The one with
    /// most samples is believed; the others get what it leaves of the slope, and keep the time at
    /// their centre.
    fn slowest_stages(&self, total: Stage, middle: f64) -> Vec<Stage> {
        let mut seen: Vec<_> = self.bottlenecks.iter().map(|it| &it.line).collect();
        seen.sort_by_key(|line| core::cmp::Reverse(line.samples));
        let mut left = f64::INFINITY;
        let stages = seen.into_iter().map(|line| {
            let own = clear_box::stage(line, middle);
            let per_byte = own.per_byte.min(left);
            left = (left.min(total.per_byte) - per_byte).max(0.0);
            let turned = (own.per_byte - per_byte) * line.centre_x;
            Stage { overhead: own.overhead + turned, per_byte, ..own }
        });
        stages.collect()
    }

    /// The best number of fragments for `bytes` (Theorem 1) through this black box, by what is
    /// known of it and how well, as equal as whole bytes and alignment let them be; `None` if
    /// [`BlackBox::path`] is.
    ///
    /// Sizes with a short last fragment ([`fixed::best`] tries them) are not: what they take
    /// depends on the stages' order, which is not seen from outside.
    #[must_use]
    pub fn fixed(&self, bytes: u64, constraints: &Constraints) -> Option<FixedBest> {
        // The artificial stages must be the slowest at no size that may be chosen, measured or not.
        let [least, most] =
            [self.range[0].min(constraints.fit(1) as f64), self.range[1].max(bytes as f64)];
        let path =
            self.path_over([least, most]).or_else(|| self.path_over([self.range[0], most]))?;
        let (smallest, largest) = (constraints.fit(1), constraints.fit(u64::MAX));
        let fewest = bytes.div_ceil(largest).max(1);
        let most = (bytes / smallest).min(constraints.fragments_max.into()).max(fewest);
        let count = self.count(bytes as f64, (fewest, most));
        let plan = fixed::static_size(&path, bytes, bytes.div_ceil(count), constraints);
        Some(FixedBest { algorithm: Algorithm::Fixed, ..plan })
    }

    /// The best fragment size over the reals, in bytes, by equation 6:
    /// `sqrt(B·g_b / sum_{j!=b} G)`, at the bottleneck that it has itself; at most `bytes`. `None`
    /// if both are zero.
    #[must_use]
    pub fn fragment_bytes(&self, bytes: f64) -> Option<f64> {
        let ends =
            self.bottlenecks.iter().skip(1).filter_map(|it| it.from_bytes.map(|at| at.value));
        let latency = |x: f64| {
            let here = self.bottleneck_at(x);
            (bytes / x - 1.0) * here.line.at(x) + self.total.at(x)
        };
        let candidates =
            self.bottlenecks.iter().zip(ends.clone().chain([f64::INFINITY])).filter_map(
                |(it, end)| {
                    let own = (bytes * it.line.intercept.value / it.others_per_byte.value).sqrt();
                    let start = it.from_bytes.map_or(0.0, |at| at.value);
                    (!own.is_nan()).then(|| own.clamp(start, end).min(bytes))
                },
            );
        candidates.min_by(|a, b| latency(*a).total_cmp(&latency(*b)))
    }

    /// The number of equal fragments that takes least, on the mean over the pipelines that the
    /// measurements allow: `(k - 1)·(g_b + x·G_b)` and the way of one fragment. The best number
    /// for the likeliest pipeline, the obvious one, is often a little too large, and that costs
    /// more than one too small: below a transition, and where `g_b` is not known from zero, times
    /// grow with the number, above it they hardly do.
    fn count(&self, bytes: f64, (fewest, most): (u64, u64)) -> u64 {
        let draws: Vec<Vec<Stage>> = (0..DRAWS).map(|draw| self.draw(draw)).collect();
        let latency = |count: u64| {
            let size = bytes / count as f64;
            let paces = draws
                .iter()
                .map(|stages| stages.iter().map(|it| it.occupancy(size)).fold(0.0, f64::max));
            let pace = paces.sum::<f64>() / DRAWS as f64;
            self.total.at(size) + (count - 1) as f64 * pace
        };
        let is_known = self.bottlenecks.iter().all(|it| it.line.slope.error.is_finite());
        // Of what is not measured nothing may be said then.
        let measured = ((bytes / self.range[0]) as u64).clamp(fewest, most);
        let (mut low, mut high) = (fewest, if is_known { most } else { measured });
        // Convex, as the latency through each pipeline is.
        while low < high {
            let middle = low + (high - low) / 2;
            if latency(middle) <= latency(middle + 1) { high = middle } else { low = middle + 1 }
        }
        high
    }

    /// The bottlenecks of one of the pipelines that the measurements allow. The same for the same
    /// `draw`: points that fill a cube evenly (an additive recurrence with powers of a root), two
    /// for each line, made normal by Box and Muller.
    fn draw(&self, draw: usize) -> Vec<Stage> {
        let mut part = 1.0;
        let mut unit = || {
            part /= ROOT;
            (0.5 + (draw + 1) as f64 * part).fract()
        };
        let lines = self.bottlenecks.iter().map(|it| {
            let (length, turn) = (unit(), unit());
            let length = (-2.0 * (1.0 - length).ln()).sqrt();
            let (sine, cosine) = (core::f64::consts::TAU * turn).sin_cos();
            let line = it.line.shifted([length * cosine, length * sine]);
            clear_box::stage(&line, line.centre_x)
        });
        lines.collect()
    }
}
