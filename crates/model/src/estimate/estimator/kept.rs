//! To begin with what was measured another time.
//!
//! A machine that starts again is most likely what it was, so what was known of a stage is a good
//! guess, and nothing more: it counts as a few samples at each size that was known, as uncertain as
//! a cost that has just changed. Where the machine is another one, waiting for the mean to follow
//! is not enough: sizes that nobody uses now would keep their old costs, and a plan would avoid
//! what it wrongly believes dear. So the first samples are compared with what was kept, and as soon
//! as a few contradict it, all of it goes.

use super::super::cell::Cell;
use super::super::curve::CostCurve;
use super::super::sketch::Sketch;
use super::super::{REGIMES, Sample, regime};
use super::{Estimator, SECONDS_MAX};
use crate::spread::Spread;
use crate::stage::{Stage, StageCost};

/// What is kept of a size counts as this many samples of each kind, at most.
const WEIGHT: f64 = 4.0;
/// The relative deviation that a kept cost counts with: that of a cell whose cost has just changed.
const SCALE: f64 = 0.1;
/// Sizes around a known one, so that overhead and bandwidth are told apart as they were.
const AROUND: [f64; 2] = [0.8, 1.2];
/// A sample so many times longer or shorter contradicts what was kept.
const FAR: f64 = 2.0;
/// Contradicting samples, less those that agree, after which it is given up. Outliers come singly:
/// of ten in a hundred three together are one in a thousand.
const AGAINST: u8 = 3;
/// Samples after which what was kept is not doubted any more; ordinary changes are noticed as ever.
const CONFIRMED: u8 = 32;

/// How well a size is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KnownSize {
    /// The size in bytes.
    pub bytes: f64,
    /// Samples' worth of an empty stage.
    pub alone: f64,
    /// The number of samples of the busy stage.
    pub backlogged: f64,
}

/// What was kept of an earlier run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    curve: CostCurve,
    /// Which kinds of samples there were in which regime: alone, and backlogged.
    known: [[bool; 2]; REGIMES],
    against: u8,
    /// Samples until it is confirmed.
    left: u8,
    /// What to begin with without it.
    prior: (Option<Stage>, f64),
}

impl Kept {
    fn is_known(&self) -> bool {
        self.known.iter().flatten().any(|known| *known)
    }

    /// What a sample should have been; nothing if nobody knew.
    fn claim(&self, sample: Sample) -> Option<f64> {
        let (bytes, _) = sample.measured();
        let kind = usize::from(matches!(sample, Sample::Backlogged { .. }));
        if !self.known[regime(bytes)][kind] {
            return None;
        }
        let line = self.curve.stage_at(bytes as f64);
        let seconds =
            if kind == 0 { line.alone(bytes as f64) } else { line.occupancy(bytes as f64) };
        Some(seconds.max(super::CLOCK_SECONDS))
    }
}

impl Estimator {
    /// Begins with earlier knowledge: a cost, the sizes at which it was measured, and whether these
    /// varied enough to tell `g` from `G` ([`super::Estimate::identifiable`]). The kept cost
    /// replaces the prior. A few samples that contradict it remove it, and the prior is back.
    ///
    /// ```
    /// use piped_model::estimate::{CostCurve, Estimator, KnownSize, Sample};
    /// use piped_model::stage::Stage;
    /// let stage = Stage { latency: 60e-6, overhead: 20e-6, per_byte: 1e-9, window: None };
    /// let known = KnownSize { bytes: 65_536.0, alone: 200.0, backlogged: 200.0 };
    /// let curve = CostCurve::straight(stage);
    /// let mut estimator = Estimator::new(None).with_kept(&curve, &[known], true);
    /// assert!((estimator.estimate().stage.overhead / 20e-6 - 1.0).abs() < 0.02);
    /// assert!(estimator.is_kept() && estimator.samples() == [0, 0]);
    /// // The machine is another one.
    /// (0..4).for_each(|_| estimator.observe(Sample::Alone { bytes: 65_536, seconds: 1.5e-3 }));
    /// assert!(!estimator.is_kept());
    /// assert!((estimator.estimate().curve.alone(65_536.0) / 1.5e-3 - 1.0).abs() < 0.02);
    /// ```
    #[must_use]
    pub fn with_kept(mut self, curve: &CostCurve, sizes: &[KnownSize], identifiable: bool) -> Self {
        let mut kept = Kept {
            curve: *curve,
            known: [[false; 2]; REGIMES],
            against: 0,
            left: CONFIRMED,
            prior: (self.prior, self.prior_weight),
        };
        let mut most: Option<&KnownSize> = None;
        for size in sizes {
            let place = regime(size.bytes as u64);
            let line = curve.own_line(size.bytes);
            let cells = [&mut self.alone[place], &mut self.backlogged[place]];
            for (kind, (cell, weight)) in
                cells.into_iter().zip([size.alone, size.backlogged]).enumerate()
            {
                let at = |bytes: f64| match kind {
                    0 => line.alone(bytes),
                    _ => line.occupancy(bytes),
                };
                kept.known[place][kind] |= fill(cell, size.bytes, weight, identifiable, at);
            }
            if most.is_none_or(|most| total(most) < total(size)) {
                most = Some(size);
            }
        }
        if let Some(most) = most.filter(|_| kept.is_known()) {
            // Which sizes are in use, until the first sample says.
            self.recent[regime(most.bytes as u64)] = 1.0;
            // Its samples are in the cells; as prior it says how to split what they leave open.
            self.prior = curve.stage_at(most.bytes).checked().ok();
            self.prior_weight = 0.0;
            self.kept = Some(Box::new(kept));
        }
        self
    }

    /// Starts with how much fragments differed in an earlier run.
    #[must_use]
    pub fn with_spread(self, spread: &Spread) -> Self {
        Self { sketch: Sketch::begin(spread), ..self }
    }

    /// Whether it still rests on what was kept more than on what was measured since.
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// The sizes that are known by samples, to be kept.
    pub fn known_sizes(&self) -> impl Iterator<Item = KnownSize> + '_ {
        let both = self.alone.iter().zip(&self.backlogged);
        both.filter_map(|(alone, backlogged)| {
            let weight = alone.weight + backlogged.weight;
            (weight > 0.0).then(|| KnownSize {
                bytes: (alone.mean_bytes * alone.weight
                    + backlogged.mean_bytes * backlogged.weight)
                    / weight,
                alone: alone.weight,
                backlogged: backlogged.weight,
            })
        })
    }

    /// Compares a sample with what was kept.
    pub(super) fn test_kept(&mut self, sample: Sample) {
        let (_, seconds) = sample.measured();
        let Some(kept) = &mut self.kept else { return };
        let Some(claim) = kept.claim(sample).filter(|_| seconds > 0.0 && seconds < SECONDS_MAX)
        else {
            return;
        };
        if seconds > claim * FAR || seconds < claim / FAR {
            kept.against += 1;
        } else {
            kept.against = kept.against.saturating_sub(1);
        }
        kept.left -= 1;
        if kept.against >= AGAINST {
            let (prior, prior_weight) = kept.prior;
            *self = Self {
                prior,
                prior_weight,
                window: self.window,
                samples_alone: self.samples_alone,
                samples_backlogged: self.samples_backlogged,
                changes: self.changes + 1,
                ..Self::new(None)
            };
        } else if kept.left == 0 {
            self.kept = None;
        }
    }
}

fn total(size: &KnownSize) -> f64 {
    size.alone + size.backlogged
}

/// Some samples of a cost; `false` if there was none.
fn fill(cell: &mut Cell, bytes: f64, weight: f64, varied: bool, at: impl Fn(f64) -> f64) -> bool {
    let sizes = if varied { AROUND.map(|part| bytes * part) } else { [bytes; 2] };
    let samples = sizes.map(|size| (size, at(size).max(super::CLOCK_SECONDS)));
    let possible =
        |(size, seconds): &(f64, f64)| size.is_finite() && *size >= 0.0 && *seconds < SECONDS_MAX;
    if !samples.iter().all(possible) {
        return false;
    }
    let count = weight.clamp(0.0, WEIGHT).ceil() as usize;
    for &(size, seconds) in samples.iter().cycle().take(count) {
        cell.observe(size, seconds);
    }
    cell.doubt(WEIGHT);
    cell.scale = cell.scale.max(SCALE);
    count > 0
}
