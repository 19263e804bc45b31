//! The release-curve planner: small equal sub-fragments in the fast stages, grouped optimally for
//! the slow one.
//!
//! Around a slow stage with a large overhead (a disk: few large fragments) lie faster ones with
//! small overheads (a network's stages: many small fragments). Hierarchical plans cut each large
//! fragment into small ones, and the fast stages drain between two of them. Here one small size is
//! used for the whole transfer, so the fast stages never drain; the times at which bytes reach the
//! slow stage are its *release curve*, and what the stages behind it still need, mirrored by
//! Theorem 2, is its *tail*. `grouping` finds the slow stage's fragments, the best ones for these
//! curves, in time proportional to the number of sub-fragments (docs/theory.md §6). What remains is
//! a scan over the sub-fragments' size on each side, and over the stage to be taken as the slow
//! one.
//!
//! The derivation has no windows and no limited buffers, but for a fragment having to fit; the plan
//! is evaluated with both.

use core::num::NonZeroU32;

use piped_model::fixed::Constraints;
use piped_model::plan::{Algorithm, Plan};
use piped_model::rounding;
use piped_model::search::layout::{BYTES_MAX, Layout, Times};
use piped_model::stage::{STAGES_MAX, Stage};

/// Numbers of sub-fragments tried on both sides.
const COUNTS: [u64; 13] = [2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 90, 128];

/// Some of them, that tell which stages are worth being tried as the slow one.
const FEW: [u64; 4] = [4, 11, 32, 90];

/// Candidates are pursued if their first results are not above the best one by more than this
/// factor.
const PROMISING: f64 = 1.1;

/// Then the best is changed by these factors, on each side alone.
const NEARER: [f64; 6] = [0.71, 1.41, 0.84, 1.19, 0.92, 1.09];

/// The best plan of this kind, whichever stage is the slow one. None for a path with less than two
/// stages, a transfer of less than two bytes or more than 2^53, or if the constraints leave no such
/// plan.
///
/// ```
/// use piped_model::{fixed, reference, fixed::Constraints};
/// use piped_theory::release;
/// let path = reference::network_disk();
/// let any = Constraints::default();
/// let plan = release::release_curve(&path, reference::PACKET_BYTES, &any).unwrap();
/// let fixed = fixed::best(&path, reference::PACKET_BYTES, &any);
/// assert!(plan.predicted_seconds < 0.76 * fixed.predicted_seconds);
/// ```
#[must_use]
pub fn release_curve(path: &[Stage], bytes: u64, constraints: &Constraints) -> Option<Plan> {
    let (_, layout) = layout(path, bytes, &constraints.fitting(0..path.len()))?;
    rounding::plan(path, &layout.parts(), Algorithm::ReleaseCurve, constraints)
}

/// The best layout of this kind and its latency, windows aside.
pub(crate) fn layout(
    path: &[Stage],
    bytes: u64,
    constraints: &Constraints,
) -> Option<(f64, Layout)> {
    if path.len() < 2 || !(2..=BYTES_MAX).contains(&bytes) {
        return None;
    }
    let mut scan = Scan {
        path,
        bytes,
        constraints,
        times: Times::new(path.len()),
        best: (f64::INFINITY, 0, 0, 0),
        layout: None,
    };
    let mut promise = [f64::INFINITY; STAGES_MAX];
    for (pivot, promise) in promise.iter_mut().enumerate().take(path.len()) {
        *promise = FEW
            .into_iter()
            .map(|count| scan.attempt(pivot, count, count, PROMISING))
            .fold(*promise, f64::min);
    }
    let best = promise.iter().copied().fold(f64::INFINITY, f64::min);
    for pivot in (0..path.len()).filter(|&pivot| promise[pivot] <= PROMISING * best) {
        for count in COUNTS {
            scan.attempt(pivot, count, count, 1.0);
        }
    }
    // Where nothing is allowed there is nothing near it.
    scan.layout.as_ref()?;
    let (_, pivot, ..) = scan.best;
    for factor in NEARER {
        let near = |count: u64| ((count as f64 * factor).round() as u64).max(1);
        if pivot > 0 {
            let (_, _, before, after) = scan.best;
            scan.attempt(pivot, near(before), after, 1.0);
        }
        if pivot + 1 < path.len() {
            let (_, _, before, after) = scan.best;
            scan.attempt(pivot, before, near(after), 1.0);
        }
    }
    let layout = scan.layout?;
    Some((scan.best.0, layout))
}

struct Scan<'a> {
    path: &'a [Stage],
    bytes: u64,
    constraints: &'a Constraints,
    times: Times,
    /// Latency, pivot, number of sub-fragments before and behind it.
    best: (f64, usize, u64, u64),
    layout: Option<Layout>,
}

impl Scan<'_> {
    /// `before` and `after` sub-fragments around the pivot. The latency, or infinity if it is not
    /// below `within` times the best: most are not, and one pass tells.
    fn attempt(&mut self, pivot: usize, before: u64, after: u64, within: f64) -> f64 {
        let size = |count: u64| self.constraints.fit(self.bytes.div_ceil(count)).min(self.bytes);
        let (small_before, small_after) = (size(before), size(after));
        // The constraints may ask for far more fragments than make sense here.
        let most = 2 * COUNTS[COUNTS.len() - 1];
        if self.bytes.div_ceil(small_before).max(self.bytes.div_ceil(small_after)) > most {
            return f64::INFINITY;
        }
        let stages = self.path.len();
        let mut layout = around(self.bytes, stages, pivot, small_before, small_after);
        for stage in 0..pivot {
            self.times.forward_stage(self.path, &layout, NonZeroU32::MAX, stage);
        }
        self.times.backward(self.path, &layout, pivot + 1);
        let known = (within * self.best.0).min(f64::MAX);
        let grouped = self.times.regroup(self.path, &mut layout, self.constraints, pivot, known);
        let Some(seconds) = grouped else { return f64::INFINITY };
        layout.tidy(self.constraints.alignment);
        if seconds < self.best.0 && layout.allowed(self.constraints) {
            self.best = (seconds, pivot, before, after);
            self.layout = Some(layout);
        }
        seconds
    }
}

/// Stages before `pivot` cut every `before` bytes, those after it every `after`, the pivot on all
/// of these.
fn around(bytes: u64, stages: usize, pivot: usize, before: u64, after: u64) -> Layout {
    let every = |size: u64| (1..bytes.div_ceil(size)).map(move |k| k * size);
    let mut ends: Vec<u64> = vec![bytes];
    if pivot > 0 {
        ends.extend(every(before));
    }
    if pivot + 1 < stages {
        ends.extend(every(after));
    }
    ends.sort_unstable();
    ends.dedup();
    let on = |size: u64| -> Vec<u32> {
        let ends = (1_u32..).zip(&ends);
        ends.filter(|&(_, &end)| end % size == 0 || end == bytes).map(|(at, _)| at).collect()
    };
    let all = (1..=ends.len() as u32).collect();
    let (fine, coarse) = (on(before), on(after));
    let mut cuts = vec![fine; pivot];
    cuts.push(all);
    cuts.resize(stages, coarse);
    let mut positions = vec![0.0];
    positions.extend(ends.iter().map(|&end| end as f64));
    Layout { positions, cuts }
}
