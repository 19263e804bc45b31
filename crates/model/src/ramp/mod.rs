//! Sizes that change so that nobody waits (Theorems 3 to 5).
//!
//! In two stages, stage 0 should finish a fragment just when stage 1 has finished the one before
//! (no stall): `g_0 + x_{i+1}·G_0 = g_1 + x_i·G_1`, hence
//!
//! ```text
//! x_{i+1} = a·x_i + b      a = G_1/G_0      b = (g_1 - g_0)/G_0        (equation 14)
//! T(k) = g_0 + x_0·G_0 + k·g_1 + B·G_1                                   (L = 0)
//! ```
//!
//! The sum over `k` fragments gives `x_0` (equation 18). In three stages with the slowest in the
//! middle, sizes go up to `x_c` so that stages 0 and 1 never wait. From there they go down so that
//! 1 and 2 do not. `x_c` belongs to both ramps: there are `k_1 + k_2 - 1` fragments (the paper's
//! `k_1 + k_2 = k` contradicts its own equations 19 and 22).
//!
//! By Theorem 2 a ramp may be solved from either end. It is solved from the larger end, where
//! `a <= 1` and errors shrink along the sizes; `a` near 1 is a matter of `chain`, and where both
//! `G` are 0 there is nothing to overlap and one fragment is best. A `k` for which a size would be
//! negative is infeasible; so are all larger ones (take away a fragment and all others grow), and
//! none is needed.
//!
//! Latencies add a constant. A window of one makes its stage's latency part of its overhead; wider
//! windows are not part of the theory: they count in the plan's exact evaluation, not in the choice
//! of sizes.

mod chain;
mod search;

use crate::evaluate;
use crate::fixed::Constraints;
use crate::plan::{Algorithm, Plan};
use crate::rounding;
use crate::stage::Stage;
use chain::Chain;

/// No ramp of more fragments than this is looked for: the lead of the first fragment is long
/// negligible.
pub const FRAGMENTS_MAX: u64 = 1 << 16;

/// How many times `B` the sizes may come to by what grows with the largest of them, before the
/// steps are taken off: so much does a rounding error grow, and the sum of the sizes is to be right
/// within 1e-9.
const GROWTH_MAX: f64 = 1e5;

/// A ramp over the reals.
#[derive(Debug, Clone, PartialEq)]
pub struct Real {
    /// `k_1`: the fragments up to the largest, that one included. For two stages all of them.
    pub up: u64,
    /// `k_2`: the fragments from the largest on, that one included. For two stages 1.
    pub down: u64,
    /// The sizes in bytes, not negative; their sum is `B` within rounding.
    pub sizes: Vec<f64>,
    /// Their exact latency (the recurrence, unbounded windows), in seconds.
    pub predicted_seconds: f64,
}

/// The best ramp of at most `most` fragments over two stages, over the reals (Theorem 4).
///
/// Optimal among all fragments that pass both stages unchanged, if the windows are unbounded.
/// `bytes` is `B`, positive. Nothing for a path of other than two stages.
///
/// ```
/// use piped_model::ramp;
/// use piped_model::reference::{KB, stage};
/// let path = [stage(15.9988, 39.5914, KB), stage(19.5443, 8.1594, KB)];
/// let best = ramp::up_real(&path, 19_999.7, 1000).unwrap();
/// assert_eq!(best.up, 3);
/// assert!((best.predicted_seconds * 1e6 - 865.734455).abs() < 1e-6);
/// assert!((best.sizes[0] - 15_859.939).abs() < 1e-3);
/// ```
#[must_use]
pub fn up_real(path: &[Stage], bytes: f64, most: u64) -> Option<Real> {
    let ramp = Up::new(path, bytes)?;
    let count = search::best_count(ramp.most(most), |count| ramp.latency(count));
    ramp.real(count)
}

/// The best ramp over two stages in whole bytes, with its exact latency.
///
/// Nothing for a path of other than two stages, or if more than [`FRAGMENTS_MAX`] fragments are
/// needed to keep each below the largest allowed. Where the constraints bind, other counts of
/// fragments are tried, and the best as rounded is taken.
///
/// ```
/// use piped_model::fixed::{self, Constraints};
/// use piped_model::ramp;
/// use piped_model::reference::{KB, stage};
/// let path = [stage(40.0, 100.0, KB), stage(400.0, 200.0, KB)];
/// let plan = ramp::up(&path, 65536, &Constraints::default()).unwrap();
/// let fixed = fixed::best(&path, 65536, &Constraints::default());
/// assert_eq!(plan.total_bytes(), 65536);
/// assert!(plan.predicted_seconds < 0.95 * fixed.predicted_seconds);
/// assert!(ramp::up(&path[..1], 65536, &Constraints::default()).is_none());
/// ```
#[must_use]
pub fn up(path: &[Stage], bytes: u64, constraints: &Constraints) -> Option<Plan> {
    let constraints = &constraints.fitting(0..path.len());
    if too_many(bytes, constraints) {
        return None;
    }
    let stages = rounding::folded(path, constraints);
    let ramp = Up::new(&stages, bytes as f64)?;
    let most = ramp.most(fragments_most(bytes, constraints));
    let best = search::best_count(most, |count| ramp.latency(count));
    let mut counts = vec![best, best.saturating_sub(1).max(1), (best + 1).min(most)];
    counts.extend(ramp.within(best, most, constraints));
    counts.sort_unstable();
    counts.dedup();
    let plans = counts.into_iter().filter_map(|count| {
        rounded(path, &ramp.real(count)?.sizes, bytes, Algorithm::RampUp, constraints)
    });
    plans.min_by(|a, b| a.predicted_seconds.total_cmp(&b.predicted_seconds))
}

/// The best ramp up and down of at most `most` fragments over three stages, over the reals (Theorem
/// 5).
///
/// Optimal among all fragments that pass all stages unchanged where the middle stage is the slowest
/// in `g` and `G`; elsewhere a candidate whose exact latency is given (over random paths it
/// averages 11.8 % above the optimum there: `crates/model/tests/lp.rs`). Nothing for a path of
/// other than three stages, or if the middle one has `G = 0` and others do not.
///
/// ```
/// use piped_model::ramp;
/// use piped_model::reference::{KB, stage};
/// let path = [(16.5702, 13.0546), (47.6582, 26.2288), (23.462, 18.8777)];
/// let path = path.map(|(g, per)| stage(g, per, KB));
/// let best = ramp::up_down_real(&path, 5460.6, 1000).unwrap();
/// assert_eq!((best.up, best.down, best.sizes.len()), (1, 2, 2));
/// assert!((best.predicted_seconds * 1e6 - 360.043632).abs() < 1e-6);
/// ```
#[must_use]
pub fn up_down_real(path: &[Stage], bytes: f64, most: u64) -> Option<Real> {
    let ramp = UpDown::new(path, bytes)?;
    let (up, down) = search::best_pair(ramp.most(most), |up, down| ramp.latency(up, down));
    ramp.real(up, down)
}

/// The best ramp up and down over three stages in whole bytes, with its exact latency.
///
/// Nothing where [`up_down_real`] has nothing, or if more than [`FRAGMENTS_MAX`] fragments are
/// needed.
///
/// ```
/// use piped_model::fixed::{self, Constraints};
/// use piped_model::ramp;
/// use piped_model::reference::{KB, stage};
/// let path = [stage(40.0, 100.0, KB), stage(400.0, 200.0, KB), stage(40.0, 100.0, KB)];
/// let plan = ramp::up_down(&path, 65536, &Constraints::default()).unwrap();
/// let fixed = fixed::best(&path, 65536, &Constraints::default());
/// assert!(plan.predicted_seconds < 0.95 * fixed.predicted_seconds);
/// ```
#[must_use]
pub fn up_down(path: &[Stage], bytes: u64, constraints: &Constraints) -> Option<Plan> {
    let constraints = &constraints.fitting(0..path.len());
    if too_many(bytes, constraints) {
        return None;
    }
    let stages = rounding::folded(path, constraints);
    let ramp = UpDown::new(&stages, bytes as f64)?;
    let most = ramp.most(fragments_most(bytes, constraints));
    let best = search::best_pair(most, |up, down| ramp.latency(up, down));
    let mut pairs = vec![best];
    for (up, down) in [(0, 1), (1, 0), (1, 1)] {
        pairs.push((best.0 + up, best.1 + down));
        pairs.push((best.0.saturating_sub(up).max(1), best.1.saturating_sub(down).max(1)));
    }
    pairs.extend(ramp.within(best, most, constraints));
    pairs.sort_unstable();
    pairs.dedup();
    let plans =
        pairs.into_iter().filter(|(up, down)| up + down - 1 <= most).filter_map(|(up, down)| {
            let sizes = ramp.real(up, down)?.sizes;
            rounded(path, &sizes, bytes, Algorithm::RampUpDown, constraints)
        });
    plans.min_by(|a, b| a.predicted_seconds.total_cmp(&b.predicted_seconds))
}

/// A plan with equal whole sizes in all stages.
fn rounded(
    path: &[Stage],
    real: &[f64],
    bytes: u64,
    algorithm: Algorithm,
    constraints: &Constraints,
) -> Option<Plan> {
    let sizes = rounding::sizes(real, bytes, constraints);
    rounding::plan(path, &[(0..path.len(), sizes)], algorithm, constraints)
}

/// How many fragments the constraints allow.
fn fragments_most(bytes: u64, constraints: &Constraints) -> u64 {
    (bytes / constraints.fit(1)).min(u64::from(constraints.fragments_max)).max(1)
}

/// Whether the constraints demand more fragments than a list of sizes should have. So many are as
/// good as equal, and equal ones need no list.
pub(crate) fn too_many(bytes: u64, constraints: &Constraints) -> bool {
    bytes.div_ceil(constraints.fit(u64::MAX)) > FRAGMENTS_MAX
}

/// A two-stage pipeline from the end at which the sizes are larger.
struct Up {
    /// The stages as given.
    path: [Stage; 2],
    /// The sizes come from the last one to the first.
    mirrored: bool,
    /// The two stages, the one with the larger `G` first.
    stages: [Stage; 2],
    bytes: f64,
    /// Nothing where both `G` are 0.
    chain: Option<Chain>,
}

impl Up {
    fn new(path: &[Stage], bytes: f64) -> Option<Self> {
        let &[first, second] = path else { return None };
        let mirrored = second.per_byte > first.per_byte;
        let stages = if mirrored { [second, first] } else { [first, second] };
        let [from, to] = stages;
        let chain = (from.per_byte > 0.0).then(|| Chain {
            ratio: to.per_byte / from.per_byte,
            step: (to.overhead - from.overhead) / from.per_byte,
        });
        Some(Self { path: [first, second], mirrored, stages, bytes, chain })
    }

    /// No `k` beyond this can be the best: `T(k) > k·max(g)`.
    fn most(&self, allowed: u64) -> u64 {
        let most = if self.chain.is_none() { 1 } else { allowed.clamp(1, FRAGMENTS_MAX) };
        let [from, to] = self.stages;
        bounded(most, self.latency(1), from.overhead.max(to.overhead))
    }

    /// `x_0` and `x_{k-1}` from the larger end, or nothing if one is negative.
    fn ends(&self, count: u64) -> Option<(f64, f64)> {
        let Some(chain) = self.chain else {
            return (count == 1).then_some((self.bytes, self.bytes));
        };
        let (p, q) = chain.sum(count);
        let first = (self.bytes - q) / p;
        let (p, q) = chain.term(count - 1);
        let last = p * first + q;
        (first >= 0.0 && last >= 0.0).then_some((first, last))
    }

    /// `T(k)` but for the latencies; infinite if infeasible.
    fn latency(&self, count: u64) -> f64 {
        let [from, to] = self.stages;
        self.ends(count).map_or(f64::INFINITY, |(first, _)| {
            from.occupancy(first) + count as f64 * to.overhead + self.bytes * to.per_byte
        })
    }

    fn real(&self, count: u64) -> Option<Real> {
        let (first, _) = self.ends(count)?;
        let mut sizes = series(first, count, self.chain);
        if self.mirrored {
            sizes.reverse();
        }
        let predicted_seconds = evaluate::same_sizes(&self.path, &sizes, None);
        Some(Real { up: count, down: 1, sizes, predicted_seconds })
    }

    /// Counts at the borders of what the constraints allow: the fewest fragments of which none is
    /// too large, the most of which none is too small. Both end sizes fall as the count grows.
    fn within(&self, best: u64, most: u64, constraints: &Constraints) -> Vec<u64> {
        let (smallest, largest) = allowed(constraints);
        let fits = |count| self.ends(count).is_none_or(|(a, b)| a.max(b) <= largest);
        let fine = |count| self.ends(count).is_some_and(|(a, b)| a.min(b) >= smallest);
        borders(best, most, fits, fine)
    }
}

/// A three-stage pipeline from its largest fragment.
struct UpDown {
    path: [Stage; 3],
    bytes: f64,
    /// Towards the first fragment and towards the last; nothing where all `G` are 0.
    chains: Option<(Chain, Chain)>,
}

/// The largest, first and last size.
struct Ends {
    centre: f64,
    first: f64,
    last: f64,
}

impl UpDown {
    fn new(path: &[Stage], bytes: f64) -> Option<Self> {
        let &[before, middle, after] = path else { return None };
        let chain = |other: Stage| Chain {
            ratio: other.per_byte / middle.per_byte,
            step: (other.overhead - middle.overhead) / middle.per_byte,
        };
        let chains = (middle.per_byte > 0.0).then(|| (chain(before), chain(after)));
        if chains.is_none() && before.per_byte + after.per_byte > 0.0 {
            return None;
        }
        Some(Self { path: [before, middle, after], bytes, chains })
    }

    fn most(&self, allowed: u64) -> u64 {
        let most = if self.chains.is_none() { 1 } else { allowed.clamp(1, FRAGMENTS_MAX) };
        let dearest = self.path.iter().map(|stage| stage.overhead).fold(0.0, f64::max);
        bounded(most, self.latency(1, 1), dearest)
    }

    fn ends(&self, up: u64, down: u64) -> Option<Ends> {
        let Some((left, right)) = self.chains else {
            let centre = self.bytes;
            return (up == 1 && down == 1).then_some(Ends { centre, first: centre, last: centre });
        };
        let ((p1, q1), (p2, q2)) = (left.sum(up), right.sum(down));
        let centre = (self.bytes - q1 - q2) / (p1 + p2 - 1.0);
        // Where a chain grows, so do the rounding errors of its first size: soon the sizes do not
        // add up to `B`.
        if (p1 + p2) * centre > GROWTH_MAX * self.bytes {
            return None;
        }
        let ((p1, q1), (p2, q2)) = (left.term(up - 1), right.term(down - 1));
        let ends = Ends { centre, first: p1 * centre + q1, last: p2 * centre + q2 };
        (centre >= 0.0 && ends.first >= 0.0 && ends.last >= 0.0).then_some(ends)
    }

    /// `T` but for the latencies, as if the middle stage were never idle; infinite if infeasible.
    fn latency(&self, up: u64, down: u64) -> f64 {
        let [before, middle, after] = self.path;
        self.ends(up, down).map_or(f64::INFINITY, |ends| {
            before.occupancy(ends.first)
                + (up + down - 1) as f64 * middle.overhead
                + self.bytes * middle.per_byte
                + after.occupancy(ends.last)
        })
    }

    fn real(&self, up: u64, down: u64) -> Option<Real> {
        let ends = self.ends(up, down)?;
        let mut sizes = series(ends.centre, up, self.chains.map(|(left, _)| left));
        sizes.reverse();
        sizes.extend(series(ends.centre, down, self.chains.map(|(_, right)| right)).split_off(1));
        let predicted_seconds = evaluate::same_sizes(&self.path, &sizes, None);
        Some(Real { up, down, sizes, predicted_seconds })
    }

    /// The allowed pairs near the best one, as [`Up::within`] finds them, along the line of equal
    /// ramps through it.
    fn within(&self, best: (u64, u64), most: u64, constraints: &Constraints) -> Vec<(u64, u64)> {
        let (smallest, largest) = allowed(constraints);
        let total = best.0 + best.1;
        let split = |sum: u64| {
            let up = (sum * best.0 / total).clamp(1, sum - 1);
            (up, sum - up)
        };
        let ends = |sum| {
            let (up, down) = split(sum);
            self.ends(up, down)
        };
        let fits = |sum| ends(sum).is_none_or(|e| e.centre.max(e.first).max(e.last) <= largest);
        let fine = |sum| ends(sum).is_some_and(|e| e.centre.min(e.first).min(e.last) >= smallest);
        borders(total, most + 1, |sum| sum >= 2 && fits(sum), |sum| sum < 2 || fine(sum))
            .into_iter()
            .filter(|&sum| sum >= 2)
            .map(split)
            .collect()
    }
}

fn allowed(constraints: &Constraints) -> (f64, f64) {
    (constraints.fit(1) as f64, constraints.fit(u64::MAX) as f64)
}

/// The least count from `best` up that `fits`, and the greatest one from `best` down that is
/// `fine`, if `best` itself is not.
fn borders(
    best: u64,
    most: u64,
    fits: impl Fn(u64) -> bool,
    fine: impl Fn(u64) -> bool,
) -> Vec<u64> {
    let mut counts = Vec::new();
    if !fits(best) {
        counts.push(search::first(best, most, fits));
    }
    if !fine(best) {
        counts.push(search::first(1, best, |count| !fine(count)).saturating_sub(1).max(1));
    }
    counts
}

/// `most`, or the largest count that `latency` of one fragment leaves room for at `overhead` each.
fn bounded(most: u64, latency: f64, overhead: f64) -> u64 {
    // Infinite where there is no overhead; the cast saturates.
    let room = latency / overhead;
    if room.is_nan() { most } else { most.min(room as u64).max(1) }
}

/// The sizes from `first` on. Sizes shrink with the chain, so rounding errors do too; one that is
/// less than nothing by such an error is nothing.
fn series(first: f64, count: u64, chain: Option<Chain>) -> Vec<f64> {
    let mut sizes = Vec::with_capacity(count as usize);
    let mut size = first;
    for _ in 0..count {
        sizes.push(size.max(0.0));
        if let Some(chain) = chain {
            size = chain.ratio * size + chain.step;
        }
    }
    sizes
}
