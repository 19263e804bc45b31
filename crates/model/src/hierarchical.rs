//! Large fragments for the bottleneck, small ones for the stages beside it (section 4.3).
//!
//! A bottleneck with a large overhead wants large fragments, the faster stages want small ones. So
//! the stages before it become one *compound* stage, and those after it another. A fragment of the
//! bottleneck passes a compound stage in sub-fragments of equal size (Theorem 1). They are put
//! together before the bottleneck and cut anew behind it. Two ways to choose the bottleneck's
//! fragments:
//!
//! | | fragments at the bottleneck | paper |
//! | --- | --- | --- |
//! | [`fixed()`] | of equal size | algorithm B |
//! | [`ramp()`] | a ramp (Theorem 4) at either end, up and down (Theorem 5) elsewhere | C, C' |
//!
//! A ramp needs a compound stage's `g` and `G`. They are those of the straight line through its own
//! best latency over the range of fragment sizes in use. The range starts wide and is narrowed to
//! the sizes that come out until they stay. The model takes a compound stage to be free only when
//! its last stage is. The recurrence knows better, and its latency is what is reported.
//!
//! Neither is near-optimal (docs/theory.md §5), and both can lose to fixed fragments over all
//! stages as peers: take the minimum.

use core::cmp::Ordering;
use core::ops::Range;

use crate::evaluate;
use crate::fixed::{self, Constraints};
use crate::plan::{Algorithm, Plan};
use crate::ramp;
use crate::rounding;
use crate::stage::Stage;

/// A hierarchical plan over the reals.
#[derive(Debug, Clone, PartialEq)]
pub struct Real {
    /// The stage that moves the large fragments, by index.
    pub bottleneck: usize,
    /// The fragments of the bottleneck, in bytes.
    pub sizes: Vec<f64>,
    /// The number of equal sub-fragments of each fragment before the bottleneck.
    pub before: Vec<u64>,
    /// The number of equal sub-fragments of each fragment behind the bottleneck.
    pub after: Vec<u64>,
    /// The latency in seconds that the sizes were chosen by. The model takes a compound stage to be
    /// free only when its last stage is, and for ramps as straight as its line.
    pub model_seconds: f64,
    /// The exact latency of these very sizes (the recurrence), in seconds.
    pub predicted_seconds: f64,
}

/// The stages that are the slowest one for fragments of some size in `0..=bytes`, in order. At
/// least one of a path that has any.
///
/// ```
/// use piped_model::hierarchical::bottlenecks;
/// use piped_model::reference::{gms, network_disk};
/// assert_eq!(bottlenecks(&network_disk(), 65536), [4]);
/// // That of GMS moves (docs/theory.md §3).
/// assert_eq!(bottlenecks(&gms(), 8192), [1, 3]);
/// ```
#[must_use]
pub fn bottlenecks(path: &[Stage], bytes: u64) -> Vec<usize> {
    (0..path.len()).filter(|&index| slowest_somewhere(path, index, bytes as f64)).collect()
}

fn slowest_somewhere(path: &[Stage], index: usize, bytes: f64) -> bool {
    let (mut low, mut high) = (0.0_f64, bytes);
    let stage = path[index];
    for (other_index, other) in path.iter().enumerate() {
        let steeper = stage.per_byte - other.per_byte;
        let behind = other.overhead - stage.overhead;
        if steeper > 0.0 {
            low = low.max(behind / steeper);
        } else if steeper < 0.0 {
            high = high.min(behind / steeper);
        } else if behind > 0.0 || (behind == 0.0 && other_index < index) {
            return false;
        }
    }
    low <= high
}

/// Algorithm B over the reals: equal fragments of the bottleneck, and equal sub-fragments beside
/// it.
///
/// `k` is the best under the model (`T = (k-1)·max(C_1, t_b, C_2) + C_1 + t_b + C_2` with the
/// compound stages' best latencies `C(B/k)`), with at most `most` fragments at any stage. `most` is
/// taken as at least 1 and at most [`ramp::FRAGMENTS_MAX`] (a bottleneck with `g = 0` wants as many
/// as it may have). Nothing if the path has fewer than three stages (nothing to compound), no stage
/// `bottleneck`, or if `bytes` is not positive and finite.
///
/// ```
/// use piped_model::hierarchical::fixed_real;
/// use piped_model::reference::network_disk;
/// let b = fixed_real(&network_disk(), 4, 65536.0, 65536).unwrap();
/// assert_eq!(b.sizes.len(), 2);
/// assert!((b.predicted_seconds * 1e6 - 26277.4).abs() < 0.1);
/// ```
#[must_use]
pub fn fixed_real(path: &[Stage], bottleneck: usize, bytes: f64, most: u64) -> Option<Real> {
    let most = asked(bytes, most)?;
    let split = Split::new(path, bottleneck, &at_most(most))?;
    let count = split.best_count(bytes, (1, most));
    let sizes = vec![bytes / count as f64; usize::try_from(count).ok()?];
    split.real(path, sizes, split.model(bytes, count))
}

/// Algorithm C, or C' where the bottleneck is neither first nor last, over the reals: a ramp of the
/// bottleneck's fragments, equal sub-fragments beside it.
///
/// Of the ramps that the narrowing passes, the one of the least exact latency, with at most `most`
/// fragments at any stage; `most` and `bytes` as in [`fixed_real`]. Nothing if the path has fewer
/// than three stages, no stage `bottleneck`, or no ramp (see [`ramp::up_down_real`]).
///
/// ```
/// use piped_model::hierarchical::{fixed_real, ramp_real};
/// use piped_model::reference::network_disk;
/// let b = fixed_real(&network_disk(), 4, 65536.0, 65536).unwrap();
/// let c = ramp_real(&network_disk(), 4, 65536.0, 65536).unwrap();
/// assert!(b.predicted_seconds / c.predicted_seconds > 1.09);
/// ```
#[must_use]
pub fn ramp_real(path: &[Stage], bottleneck: usize, bytes: f64, most: u64) -> Option<Real> {
    let most = asked(bytes, most)?;
    let split = Split::new(path, bottleneck, &at_most(most))?;
    let ramps = split.ramps(bytes, most);
    let reals = ramps
        .into_iter()
        .filter_map(|ramp| split.real(path, ramp.sizes, ramp.predicted_seconds + split.latency));
    reals.min_by(|a, b| a.predicted_seconds.total_cmp(&b.predicted_seconds))
}

/// Algorithm B in whole bytes, with its exact latency: the best over all [`bottlenecks`].
///
/// Nothing if the path has fewer than three stages, or if more than [`ramp::FRAGMENTS_MAX`]
/// fragments are needed to keep each below the largest allowed.
///
/// ```
/// use piped_model::fixed::Constraints;
/// use piped_model::hierarchical::fixed;
/// use piped_model::reference::network_disk_network;
/// let b = fixed(&network_disk_network(), 65536, &Constraints::default()).unwrap();
/// assert!((b.predicted_seconds * 1e6 - 31447.7).abs() < 0.2);
/// assert_eq!(b.levels.len(), 3);
/// ```
#[must_use]
pub fn fixed(path: &[Stage], bytes: u64, constraints: &Constraints) -> Option<Plan> {
    best(path, bytes, constraints, |split, most| {
        let best = split.best_count(bytes as f64, (1, most));
        let counts = best.saturating_sub(1).max(1)..=(best + 1).min(most);
        let equal = |count| vec![bytes as f64 / count as f64; count as usize];
        (Algorithm::HierarchicalFixed, counts.map(equal).collect())
    })
}

/// Algorithm C or C' in whole bytes, with its exact latency: the best over all [`bottlenecks`].
///
/// Nothing where [`fixed()`] has nothing, or if there is no ramp for any bottleneck.
///
/// ```
/// use piped_model::fixed::Constraints;
/// use piped_model::hierarchical::{fixed, ramp};
/// use piped_model::reference::network_disk_network;
/// let free = Constraints::default();
/// let b = fixed(&network_disk_network(), 65536, &free).unwrap();
/// let c = ramp(&network_disk_network(), 65536, &free).unwrap();
/// assert!(b.predicted_seconds / c.predicted_seconds > 1.06);
/// ```
#[must_use]
pub fn ramp(path: &[Stage], bytes: u64, constraints: &Constraints) -> Option<Plan> {
    best(path, bytes, constraints, |split, most| {
        let ramps = split.ramps(bytes as f64, most);
        (Algorithm::HierarchicalRamp, ramps.into_iter().map(|ramp| ramp.sizes).collect())
    })
}

/// The most fragments that are looked at, if `bytes` is a transfer: what is asked for may not fit
/// in memory.
fn asked(bytes: f64, most: u64) -> Option<u64> {
    (bytes.is_finite() && bytes > 0.0).then(|| most.clamp(1, ramp::FRAGMENTS_MAX))
}

/// No more fragments than `most`, on any level.
fn at_most(most: u64) -> Constraints {
    let fragments_max = u32::try_from(most).unwrap_or(u32::MAX);
    Constraints { fragments_max, ..Constraints::default() }
}

/// The best plan among the lists of sizes that `choose` has for each bottleneck.
fn best(
    path: &[Stage],
    bytes: u64,
    constraints: &Constraints,
    choose: impl Fn(&Split, u64) -> (Algorithm, Vec<Vec<f64>>),
) -> Option<Plan> {
    if ramp::too_many(bytes, &constraints.fitting(0..path.len())) {
        return None;
    }
    let most = (bytes / constraints.fit(1)).min(u64::from(constraints.fragments_max));
    let most = most.clamp(1, ramp::FRAGMENTS_MAX);
    let mut found: Option<Plan> = None;
    for bottleneck in bottlenecks(&rounding::folded(path, constraints), bytes) {
        let split = Split::new(path, bottleneck, constraints)?;
        let (algorithm, lists) = choose(&split, most);
        for list in lists {
            let Some(plan) = split.plan(path, &list, bytes, algorithm, constraints) else {
                continue;
            };
            if found.as_ref().is_none_or(|best| plan.predicted_seconds < best.predicted_seconds) {
                found = Some(plan);
            }
        }
    }
    found
}

/// A path in three parts, without latencies and windows.
struct Split {
    stages: Vec<Stage>,
    bottleneck: usize,
    /// The sum of the latencies, in seconds.
    latency: f64,
    /// The most sub-fragments of the transfer.
    most: u64,
}

/// Sizes at which a compound stage is asked for its latency, to lay a line through them.
const SAMPLES: u32 = 9;

/// After so many turns the range of sizes has long settled, or goes back and forth.
const NARROWINGS: u32 = 6;

impl Split {
    fn new(path: &[Stage], bottleneck: usize, constraints: &Constraints) -> Option<Self> {
        if path.len() < 3 || bottleneck >= path.len() {
            return None;
        }
        let mut stages = rounding::folded(path, constraints);
        let latency = stages.iter().map(|stage| stage.latency).sum();
        for stage in &mut stages {
            stage.latency = 0.0;
        }
        Some(Self {
            stages,
            bottleneck,
            latency,
            most: u64::from(constraints.fragments_max).clamp(1, ramp::FRAGMENTS_MAX),
        })
    }

    fn before(&self) -> &[Stage] {
        &self.stages[..self.bottleneck]
    }

    fn after(&self) -> &[Stage] {
        &self.stages[self.bottleneck + 1..]
    }

    /// The best way of one of `fragments` through a compound stage: (sub-fragments, seconds).
    fn through(&self, compound: &[Stage], size: f64, fragments: u64) -> (u64, f64) {
        if let [only] = compound {
            return (1, only.occupancy(size));
        }
        let most = (self.most / fragments).max(1);
        let best = fixed::optimum(compound, size, (1, most), None);
        (best.count, best.predicted_seconds)
    }

    /// `T(k)` of equal fragments under the model, in seconds.
    fn model(&self, bytes: f64, count: u64) -> f64 {
        let size = bytes / count as f64;
        let slow = self.stages[self.bottleneck].occupancy(size);
        let (mut sum, mut slowest) = (slow, slow);
        for compound in [self.before(), self.after()] {
            if !compound.is_empty() {
                let (_, seconds) = self.through(compound, size, count);
                sum += seconds;
                slowest = slowest.max(seconds);
            }
        }
        self.latency + sum + (count - 1) as f64 * slowest
    }

    /// The best `k` of the model.
    fn best_count(&self, bytes: f64, (fewest, most): (u64, u64)) -> u64 {
        // k fragments cost the bottleneck k·g at least.
        let room = self.model(bytes, 1) / self.stages[self.bottleneck].overhead;
        let most = if room.is_nan() { most } else { most.min(room as u64) }.max(fewest);
        fixed::scan((fewest, most), None, |count| self.model(bytes, count))
    }

    /// The ramps that the narrowing passes.
    fn ramps(&self, bytes: f64, most: u64) -> Vec<ramp::Real> {
        let slow = self.stages[self.bottleneck];
        let mut range = (bytes / (most.min(64) as f64), bytes);
        let mut ramps: Vec<ramp::Real> = Vec::new();
        for _ in 0..NARROWINGS {
            let found = match (self.before(), self.after()) {
                (before, []) => ramp::up_real(&[self.line(before, range), slow], bytes, most),
                ([], after) => ramp::up_real(&[slow, self.line(after, range)], bytes, most),
                (before, after) => {
                    let path = [self.line(before, range), slow, self.line(after, range)];
                    ramp::up_down_real(&path, bytes, most)
                }
            };
            let Some(found) = found else { break };
            let low = found.sizes.iter().copied().fold(f64::INFINITY, f64::min);
            let high = found.sizes.iter().copied().fold(0.0, f64::max);
            let settled = ramps.last().is_some_and(|last| last.sizes == found.sizes);
            ramps.push(found);
            // A range of one size has no line.
            if settled || high - low <= 1e-9 * high {
                break;
            }
            range = (low, high);
        }
        ramps
    }

    /// A compound stage as a simple one: least squares through its best latencies over a range of
    /// sizes.
    fn line(&self, compound: &[Stage], (low, high): (f64, f64)) -> Stage {
        if let [only] = compound {
            return *only;
        }
        let sample = |index: u32| {
            let size = low + (high - low) * f64::from(index) / f64::from(SAMPLES - 1);
            (size, self.through(compound, size, 1).1)
        };
        let samples: Vec<(f64, f64)> = (0..SAMPLES).map(sample).collect();
        let count = f64::from(SAMPLES);
        let mean_size = samples.iter().map(|(size, _)| size).sum::<f64>() / count;
        let mean_seconds = samples.iter().map(|(_, seconds)| seconds).sum::<f64>() / count;
        let (mut both, mut squares) = (0.0, 0.0);
        for (size, seconds) in &samples {
            both += (size - mean_size) * (seconds - mean_seconds);
            squares += (size - mean_size).powi(2);
        }
        let per_byte = if squares > 0.0 { (both / squares).max(0.0) } else { 0.0 };
        let overhead = (mean_seconds - per_byte * mean_size).max(0.0);
        Stage { latency: 0.0, overhead, per_byte, window: None }
    }

    fn counts(&self, compound: &[Stage], sizes: &[f64]) -> Vec<u64> {
        let fragments = sizes.len() as u64;
        sizes.iter().map(|&size| self.through(compound, size, fragments).0).collect()
    }

    /// These fragments with their sub-fragments, evaluated on the path as it was given.
    fn real(&self, path: &[Stage], sizes: Vec<f64>, model_seconds: f64) -> Option<Real> {
        let before = self.counts(self.before(), &sizes);
        let after = self.counts(self.after(), &sizes);
        let cut = |counts: &[u64]| -> Vec<f64> {
            let pieces = sizes.iter().zip(counts);
            pieces.flat_map(|(size, &count)| vec![size / count as f64; count as usize]).collect()
        };
        let (lead, tail) = (cut(&before), cut(&after));
        let lists: Vec<&[f64]> = (0..path.len())
            .map(|stage| match stage.cmp(&self.bottleneck) {
                Ordering::Less => lead.as_slice(),
                Ordering::Equal => sizes.as_slice(),
                Ordering::Greater => tail.as_slice(),
            })
            .collect();
        let predicted_seconds = evaluate::parts(path, &lists, None).ok()?;
        let bottleneck = self.bottleneck;
        Some(Real { bottleneck, before, after, sizes, model_seconds, predicted_seconds })
    }

    /// These fragments and their sub-fragments in whole bytes.
    fn plan(
        &self,
        path: &[Stage],
        sizes: &[f64],
        bytes: u64,
        algorithm: Algorithm,
        constraints: &Constraints,
    ) -> Option<Plan> {
        // A large fragment is put together before the bottleneck and cut anew behind it.
        let beside = self.bottleneck..(self.bottleneck + 2).min(path.len());
        let large = rounding::sizes(sizes, bytes, &constraints.fitting(beside));
        let constraints = &constraints.fitting(0..path.len());
        let cut = |compound: &[Stage]| -> Vec<u64> {
            let pieces = |&size: &u64| {
                let (count, _) = self.through(compound, size as f64, large.len() as u64);
                rounding::pieces(size, count, constraints)
            };
            large.iter().flat_map(pieces).collect()
        };
        let mut parts: Vec<(Range<usize>, Vec<u64>)> = Vec::with_capacity(3);
        if self.bottleneck > 0 {
            parts.push((0..self.bottleneck, cut(self.before())));
        }
        let behind = self.bottleneck + 1;
        if behind < path.len() {
            let tail = cut(self.after());
            parts.push((self.bottleneck..behind, large));
            parts.push((behind..path.len(), tail));
        } else {
            parts.push((self.bottleneck..behind, large));
        }
        rounding::plan(path, &parts, algorithm, constraints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::{KB, stage};

    #[test]
    fn a_bottleneck_without_overhead_has_no_more_fragments_than_fit() {
        let path = [stage(0.0, 1.0, KB), stage(0.0, 1.0, KB), stage(0.0, 2.0, KB)];
        for bytes in [1e9, 1e12] {
            let best = fixed_real(&path, 2, bytes, u64::MAX).expect("three stages");
            assert!(best.sizes.len() as u64 <= ramp::FRAGMENTS_MAX, "{}", best.sizes.len());
            let best = ramp_real(&path, 2, bytes, u64::MAX).expect("three stages");
            assert!(best.sizes.len() as u64 <= ramp::FRAGMENTS_MAX, "{}", best.sizes.len());
        }
        assert_eq!(fixed_real(&path, 2, 1e3, 0), fixed_real(&path, 2, 1e3, 1));
        for bytes in [0.0, -1.0, f64::INFINITY, f64::NAN] {
            assert_eq!(fixed_real(&path, 2, bytes, 8), None, "{bytes}");
            assert_eq!(ramp_real(&path, 2, bytes, 8), None, "{bytes}");
        }
    }
}
