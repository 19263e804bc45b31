//! The online estimator of one stage.

use core::num::NonZeroU32;

use super::cell::{Cell, MEMORY, Verdict};
use super::curve::{CostCurve, Node};
use super::fit::{Fit, Moments, Solution};
use super::sketch::Sketch;
use super::{REGIMES, Sample, Summary, regime};
use crate::spread::Spread;
use crate::stage::{Stage, StageCost};

mod belief;
mod kept;

pub use kept::KnownSize;

/// No cost is known better than this, in seconds, however alike its samples are.
const CLOCK_SECONDS: f64 = 1e-7;
/// Samples that make a cell worth a place of its own on the curve.
const NODE_WEIGHT_MIN: f64 = 3.0;
/// All regimes are on one line if none is off by more than this (and its own noise).
const STRAIGHT_TOLERANCE: f64 = 0.08;
/// How much a regime's samples count in the fit of the next one, where the cost bends: enough to
/// fill what its own sizes leave open, nothing against its own samples.
const NEIGHBOUR_WEIGHT: f64 = 1.0 / 256.0;
/// Precision of the pull to the prior split, as in `Fit::pull`; a sample at 10 % noise has 100.
const PULL: f64 = 0.5;
/// `g` and `G` are told apart if the error of `x·G` is below this part of the cost.
const IDENTIFIABLE_ERROR: f64 = 0.15;
/// How far a sample of the prior's may be off, as a part of the cost.
const PRIOR_DEVIATION: f64 = 0.2;
/// What is taken over tells of a change if it differs by so much, and by so many deviations of one
/// sample.
const ADOPTED_CHANGE: f64 = 0.15;
const CHANGE_DEVIATIONS: f64 = 1.0;
/// The relative error of a prior nobody has confirmed.
const UNKNOWN_ERROR: f64 = 0.5;

/// Learns `L`, `g` and `G` of one stage from samples. Constant memory; [`Estimator::observe`] does
/// not allocate and takes some tens of nanoseconds; [`Estimator::estimate`] takes a few
/// microseconds, so plan from a kept [`Estimate`].
///
/// ```
/// use piped_model::estimate::{Estimator, Sample};
/// let mut estimator = Estimator::new(None);
/// for i in 0..100_u64 {
///     let bytes = 60_000 + i % 7 * 2_000;
///     let occupancy = 17e-6 + bytes as f64 * 0.4e-9;
///     estimator.observe(Sample::Backlogged { bytes, seconds: occupancy });
///     estimator.observe(Sample::Alone { bytes, seconds: 70e-6 + occupancy });
/// }
/// let estimate = estimator.estimate();
/// assert!((estimate.stage.latency / 70e-6 - 1.0).abs() < 0.01);
/// assert!((estimate.stage.overhead / 17e-6 - 1.0).abs() < 0.01);
/// assert!(estimate.identifiable && estimate.confidence > 0.8);
/// ```
#[derive(Debug, Clone)]
pub struct Estimator {
    alone: [Cell; REGIMES],
    backlogged: [Cell; REGIMES],
    /// Decayed share of samples per regime: which sizes are in use.
    recent: [f64; REGIMES],
    window: Option<NonZeroU32>,
    prior: Option<Stage>,
    prior_weight: f64,
    samples_alone: u64,
    samples_backlogged: u64,
    changes: u64,
    /// What it began with, as long as few samples have confirmed it.
    kept: Option<Box<kept::Kept>>,
    sketch: Sketch,
}

/// What an [`Estimator`] knows, at one size and (as a [`StageCost`]) over all sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// `L`, `g`, `G` near [`Estimate::bytes`], and the window.
    pub stage: Stage,
    /// The size the numbers are for, in bytes.
    pub bytes: u64,
    /// 0 (only the prior, or nothing) to 1. Without backlogged samples at most 0.25: then the split
    /// between `L` and `g` is the prior's.
    pub confidence: f64,
    /// Alone samples seen since the start.
    pub samples_alone: u64,
    /// Backlogged samples seen since the start.
    pub samples_backlogged: u64,
    /// Changes of cost noticed since the start; a plan made before the last one is out of date.
    pub changes: u64,
    /// Standard error of `L`, in seconds.
    pub latency_error: f64,
    /// Standard error of `g`, in seconds.
    pub overhead_error: f64,
    /// Standard error of `G`, in seconds per byte.
    pub per_byte_error: f64,
    /// Whether sizes vary enough to tell `g` from `G`. If not, only `g + xG` at the sizes in use is
    /// known, and the split is the prior's.
    pub identifiable: bool,
    /// The cost over all sizes.
    pub curve: CostCurve,
    /// How much single fragments differ from it; `None` if they do not, or if that is not known.
    pub spread: Option<Spread>,
    /// Relative error of the cost, about two standard errors.
    error: f64,
}

impl StageCost for Estimate {
    fn stage_at(&self, bytes: f64) -> Stage {
        self.curve.stage_at(bytes)
    }

    fn relative_error(&self, bytes: f64) -> f64 {
        let _ = bytes;
        self.error
    }

    fn spread(&self) -> Option<&Spread> {
        self.spread.as_ref()
    }
}

/// The regimes' samples as one system, and how it was made.
struct Pooled {
    solution: Solution,
    identifiable: bool,
}

/// Longer than a fragment takes, in seconds: eleven days.
const SECONDS_MAX: f64 = 1e6;

impl Estimator {
    /// An estimator that knows nothing of a stage with this window.
    #[must_use]
    pub fn new(window: Option<NonZeroU32>) -> Self {
        Self {
            alone: [Cell::default(); REGIMES],
            backlogged: [Cell::default(); REGIMES],
            recent: [0.0; REGIMES],
            window,
            prior: None,
            prior_weight: 0.0,
            samples_alone: 0,
            samples_backlogged: 0,
            changes: 0,
            kept: None,
            sketch: Sketch::default(),
        }
    }

    /// Samples seen since the start: alone, and backlogged.
    #[must_use]
    pub const fn samples(&self) -> [u64; 2] {
        [self.samples_alone, self.samples_backlogged]
    }

    /// Changes of cost noticed since the start.
    #[must_use]
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Start from `prior` as if it came from `weight` samples of each kind. It also says how to
    /// split what samples leave open. One that is longer than anything takes is ignored.
    ///
    /// ```
    /// use piped_model::estimate::{Estimator, Sample};
    /// use piped_model::stage::Stage;
    /// let prior = Stage { latency: 60e-6, overhead: 20e-6, per_byte: 0.0, window: None };
    /// let mut estimator = Estimator::new(None).with_prior(prior, 4.0);
    /// assert!((estimator.estimate().stage.latency / 60e-6 - 1.0).abs() < 1e-9);
    /// // Alone samples only: the sum follows them, the split stays the prior's, and it says so.
    /// for _ in 0..100 {
    ///     estimator.observe(Sample::Alone { bytes: 4096, seconds: 160e-6 });
    /// }
    /// let estimate = estimator.estimate();
    /// assert!((estimate.stage.overhead / 40e-6 - 1.0).abs() < 0.05);
    /// assert!(estimate.confidence <= 0.25 && !estimate.identifiable);
    /// ```
    #[must_use]
    pub fn with_prior(mut self, prior: Stage, weight: f64) -> Self {
        self.prior = prior.checked().ok().filter(|prior| *prior == prior.at_most(SECONDS_MAX));
        self.prior_weight = if weight.is_finite() { weight.clamp(0.0, MEMORY) } else { 0.0 };
        self
    }

    /// Learn from a sample. One that is no number, not above zero or longer than anything takes is
    /// ignored: nothing costs nothing, a cost of zero would look infinitely precise, and sums of
    /// the longest would be infinite.
    pub fn observe(&mut self, sample: Sample) {
        let (bytes, seconds) = sample.measured();
        if !(seconds > 0.0 && seconds < SECONDS_MAX) {
            return;
        }
        // One that met others says how late fragments are, and nothing of costs.
        if !matches!(sample, Sample::Met { .. }) {
            self.test_kept(sample);
        }
        let place = regime(bytes);
        if !matches!(sample, Sample::Backlogged { .. }) && self.alone[place].is_settled() {
            self.sketch.observe(seconds, self.alone[place].predict(bytes as f64));
        }
        let (cells, others, count) = match sample {
            Sample::Alone { .. } => {
                (&mut self.alone, &mut self.backlogged, &mut self.samples_alone)
            }
            Sample::Backlogged { .. } => {
                (&mut self.backlogged, &mut self.alone, &mut self.samples_backlogged)
            }
            Sample::Met { .. } => return,
        };
        *count += 1;
        let verdict = cells[place].observe(bytes as f64, seconds);
        if verdict == Verdict::Changed {
            // What changed the cost here has changed the rest, as far as anyone knows: the other
            // kind of sample at this size has to prove itself anew, other sizes are doubted.
            self.changes += 1;
            self.sketch.change();
            others[place].doubt(1.0);
            for other in 0..REGIMES {
                if other != place {
                    cells[other].doubt(0.25 * cells[other].weight);
                    others[other].doubt(0.25 * others[other].weight);
                }
            }
        }
        let kept = 1.0 - 1.0 / MEMORY;
        self.prior_weight *= kept;
        for (other, share) in self.recent.iter_mut().enumerate() {
            *share = *share * kept + f64::from(u8::from(other == place));
        }
        cells[place].touched = self.samples_alone + self.samples_backlogged;
    }

    /// What was learned, by kind of sample and size regime: at most `2 * REGIMES`.
    pub fn summaries(&self) -> impl Iterator<Item = Summary> + '_ {
        let count = self.samples_alone + self.samples_backlogged;
        let both = [(false, &self.alone), (true, &self.backlogged)];
        both.into_iter().flat_map(move |(backlogged, cells)| {
            let known = cells.iter().filter(|cell| cell.weight > 0.0);
            known.map(move |cell| cell.summary(backlogged, cell.weight_now(count)))
        })
    }

    /// Take over what another estimator has learned of the same stage, instead of what is known
    /// here of that kind of sample in that regime. One that can not be ([`Summary::bounded`]) is
    /// ignored.
    ///
    /// ```
    /// use piped_model::estimate::{Estimator, Sample};
    /// let (mut here, mut there) = (Estimator::new(None), Estimator::new(None));
    /// for i in 0..100_u64 {
    ///     let bytes = 4096 << (i % 5 * 2);
    ///     let seconds = 90e-6 + bytes as f64 * 8e-9;
    ///     there.observe(Sample::Alone { bytes, seconds });
    /// }
    /// there.summaries().for_each(|summary| here.adopt(&summary));
    /// let (here, there) = (here.estimate(), there.estimate());
    /// assert!((here.stage.per_byte / 8e-9 - 1.0).abs() < 0.01);
    /// assert!((here.curve.alone(1e6) / there.curve.alone(1e6) - 1.0).abs() < 1e-6);
    /// ```
    pub fn adopt(&mut self, summary: &Summary) {
        let largest = 1 << (2 * REGIMES + 8);
        let Some(summary) = summary.bounded(largest) else { return };
        self.test_kept(summary.sample());
        let place = regime(summary.bytes as u64);
        let (cells, count) = match summary.backlogged {
            true => (&mut self.backlogged, &mut self.samples_backlogged),
            false => (&mut self.alone, &mut self.samples_alone),
        };
        let known = &cells[place];
        let expected = known.predict(summary.bytes);
        let doubt =
            ADOPTED_CHANGE.max(CHANGE_DEVIATIONS * known.deviation().max(summary.deviation));
        if known.weight >= NODE_WEIGHT_MIN && (summary.seconds / expected - 1.0).abs() > doubt {
            self.changes += 1;
        }
        cells[place].adopt(&summary);
        *count += 1;
        cells[place].touched = self.samples_alone + self.samples_backlogged;
        self.prior_weight *= (1.0 - 1.0 / MEMORY).powf(summary.weight);
        let kept = 1.0 - summary.weight / (2.0 * MEMORY);
        for (other, share) in self.recent.iter_mut().enumerate() {
            *share = *share * kept + if other == place { summary.weight } else { 0.0 };
        }
    }

    /// What a fragment of this size takes alone, in seconds, once there is any alone sample: the
    /// yardstick for [`super::Meter::depart`]. From another size it errs to the long side, where
    /// only fragments that certainly waited pass.
    ///
    /// ```
    /// use piped_model::estimate::{Estimator, Sample};
    /// let mut estimator = Estimator::new(None);
    /// assert_eq!(estimator.alone_seconds(4096), None);
    /// estimator.observe(Sample::Alone { bytes: 4096, seconds: 87e-6 });
    /// assert_eq!(estimator.alone_seconds(4096), Some(87e-6));
    /// assert_eq!(estimator.alone_seconds(40_960), Some(870e-6));
    /// assert_eq!(estimator.alone_seconds(512), Some(87e-6));
    /// ```
    #[must_use]
    pub fn alone_seconds(&self, bytes: u64) -> Option<f64> {
        let size = bytes as f64;
        let place = regime(bytes);
        if self.alone[place].weight > 0.0 {
            return Some(self.alone[place].predict(size));
        }
        let known = self.alone.iter().enumerate().filter(|(_, cell)| cell.weight > 0.0);
        let (_, cell) = known.min_by_key(|(other, _)| other.abs_diff(place))?;
        Some(cell.mean_seconds * (size / cell.mean_bytes.max(1.0)).max(1.0))
    }

    /// What is known at the sizes most in use of late.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        let mut place = None;
        for (index, &share) in self.recent.iter().enumerate() {
            if share > place.map_or(0.0, |best: usize| self.recent[best]) {
                place = Some(index);
            }
        }
        let bytes = place.map_or(65_536.0, |place| {
            let (a, b) = (&self.alone[place], &self.backlogged[place]);
            (a.mean_bytes * a.weight + b.mean_bytes * b.weight) / (a.weight + b.weight)
        });
        self.estimate_for(bytes.round() as u64)
    }

    /// What is known at a size. Sizes never seen are filled from their neighbours.
    #[must_use]
    pub fn estimate_for(&self, bytes: u64) -> Estimate {
        let place = regime(bytes);
        let size = (bytes as f64).max(1.0);
        let all = self.pool(size, place, 1.0);
        let straight = self.is_straight(&all.solution.stage);
        let here = if straight { all } else { self.pool(size, place, NEIGHBOUR_WEIGHT) };
        let stage = Stage { window: self.window, ..here.solution.stage };
        let curve = if straight { CostCurve::straight(stage) } else { self.bent() };
        let [latency_error, overhead_error, per_byte_error] = here.solution.errors;
        let confidence = self.confidence(place, straight, here.identifiable);
        Estimate {
            stage,
            bytes,
            confidence,
            samples_alone: self.samples_alone,
            samples_backlogged: self.samples_backlogged,
            changes: self.changes,
            latency_error,
            overhead_error,
            per_byte_error,
            identifiable: here.identifiable,
            curve,
            spread: self.sketch.spread(),
            error: self.relative_error(place) + UNKNOWN_ERROR * (1.0 - confidence),
        }
    }

    /// Every cell with samples: regime, kind (alone or not), moments, and one sample's relative
    /// deviation.
    fn cells(&self) -> impl Iterator<Item = (usize, bool, Moments, f64)> + '_ {
        let count = self.samples_alone + self.samples_backlogged;
        let both = [(true, &self.alone), (false, &self.backlogged)];
        both.into_iter().flat_map(move |(alone, cells)| {
            cells.iter().enumerate().filter(|(_, cell)| cell.weight > 0.0).map(
                move |(place, cell)| {
                    let weight = cell.weight_now(count);
                    let aged = weight / cell.weight;
                    let moments = Moments {
                        weight,
                        mean_bytes: cell.mean_bytes,
                        mean_seconds: cell.mean_seconds,
                        spread: cell.spread * aged,
                        product: cell.product * aged,
                    };
                    (place, alone, moments, cell.deviation())
                },
            )
        })
    }

    /// Fit all regimes around `size`, each step away from `place` counting `neighbour` times as
    /// much.
    fn pool(&self, size: f64, place: usize, neighbour: f64) -> Pooled {
        let split = self.split(place);
        // The unit of every unknown, and so of the pull: that of the largest, which is the whole
        // way through the stage. In units of a short occupancy the pull would hold a long latency
        // at nothing.
        let seen = self.alone_seconds(size as u64).unwrap_or(0.0);
        let unit = split.alone(size).max(seen).max(1e-12);
        let mut fit = Fit::new(size, unit);
        for (other, alone, moments, deviation) in self.cells() {
            let kernel = neighbour.powi(other.abs_diff(place) as i32);
            let noise = deviation * moments.mean_seconds.max(CLOCK_SECONDS);
            fit.add(alone, &moments, noise / kernel.sqrt());
        }
        let identifiable = fit.slope_error() < IDENTIFIABLE_ERROR * split.occupancy(size) / unit;
        if let Some(prior) = self.prior
            && self.prior_weight > 0.0
        {
            for alone in [true, false] {
                // A kind nobody has sampled follows the measured height of the other one.
                let sampled = if alone { self.samples_alone } else { self.samples_backlogged } > 0;
                let claim = if sampled { prior } else { split };
                let seconds = if alone { claim.alone(size) } else { claim.occupancy(size) };
                let moments = Moments {
                    weight: self.prior_weight,
                    mean_bytes: size,
                    mean_seconds: seconds,
                    spread: 0.0,
                    product: 0.0,
                };
                // What it says may be wrong by as much as it costs, or as was measured.
                fit.add(alone, &moments, PRIOR_DEVIATION * prior.alone(size).max(seen).max(1e-9));
            }
        }
        fit.pull(&split, PULL);
        Pooled { solution: fit.solve(), identifiable }
    }

    /// The prior's proportions at the measured height: what to believe in the directions the
    /// samples leave open. Without a prior, no latency and equal shares of overhead and bytes: to
    /// plan with all overhead would never cut, with none would cut to dust.
    fn split(&self, place: usize) -> Stage {
        let nearest =
            self.cells().min_by_key(|(other, alone, ..)| (other.abs_diff(place), u8::from(*alone)));
        let Some((_, alone, moments, _)) = nearest else {
            return self.prior.unwrap_or(Stage::FREE);
        };
        let halves =
            Stage { overhead: 0.5, per_byte: 0.5 / moments.mean_bytes.max(1.0), ..Stage::FREE };
        let shape = self.prior.filter(|prior| prior.alone(moments.mean_bytes) > 0.0);
        let shape = shape.unwrap_or(halves);
        let at = moments.mean_bytes;
        let height = if alone { shape.alone(at) } else { shape.occupancy(at) };
        let scale = if height > 0.0 { moments.mean_seconds / height } else { 1.0 };
        // Nobody has seen a fragment alone: that something is slow says little of how long it takes
        // besides.
        let latency = match alone {
            true => shape.latency * scale,
            false => (shape.latency * scale).min(shape.latency.max(moments.mean_seconds)),
        };
        Stage {
            latency,
            overhead: shape.overhead * scale,
            per_byte: shape.per_byte * scale,
            window: None,
        }
        .at_most(SECONDS_MAX)
    }

    /// Whether every regime with samples lies on this line.
    fn is_straight(&self, stage: &Stage) -> bool {
        self.cells().filter(|(_, _, moments, _)| moments.weight >= NODE_WEIGHT_MIN).all(
            |(_, alone, moments, deviation)| {
                let at = moments.mean_bytes;
                let line = if alone { stage.alone(at) } else { stage.occupancy(at) };
                let tolerance = STRAIGHT_TOLERANCE + 2.0 * deviation / moments.weight.sqrt();
                (line - moments.mean_seconds).abs() <= tolerance * moments.mean_seconds
            },
        )
    }

    /// The curve through all regimes with samples, each fitted by itself.
    fn bent(&self) -> CostCurve {
        let mut nodes = [Node::default(); REGIMES];
        let mut count = 0;
        for place in 0..REGIMES {
            let (a, b) = (&self.alone[place], &self.backlogged[place]);
            let weight = a.weight + b.weight;
            if weight < NODE_WEIGHT_MIN {
                continue;
            }
            let bytes = (a.mean_bytes * a.weight + b.mean_bytes * b.weight) / weight;
            let stage = self.pool(bytes.max(1.0), place, NEIGHBOUR_WEIGHT).solution.stage;
            nodes[count] = Node {
                bytes,
                occupancy: stage.occupancy(bytes),
                latency: stage.latency,
                slope: stage.per_byte,
                weight,
            };
            count += 1;
        }
        CostCurve::through(&nodes[..count], self.window)
    }
}
