//! The best fixed fragment size (Theorem 1, with a bottleneck that moves with the size).
//!
//! Over `k` equal fragments of `x = B/k` bytes the latency is
//!
//! ```text
//! T(k) = (k-1)·max_j(g_j + x·G_j) + sum_j (L_j + g_j + x·G_j)                (equations 10, 13)
//! ```
//!
//! the maximum of one curve per stage, each convex in `k`. So `T` is convex, and bisection on the
//! sign of `T(k+1) - T(k)` finds the best integer exactly: no square roots, no case distinction for
//! `g_b = 0` or a moving bottleneck, and the "false local minima" a stage-by-stage search falls
//! into do not exist. Where a window binds, or a cost bends with the size, convexity is lost, and a
//! set of counts is tried instead: all small ones, then geometrically spaced ones.
//!
//! The depth comes last: the fewest fragments outstanding at the first stage that still reach the
//! best latency within one percent, because outstanding fragments hold memory and queue places.

mod constraints;

use core::num::NonZeroU32;

pub use self::constraints::Constraints;
use crate::evaluate;
use crate::plan::{Algorithm, Level, Levels, Plan, Sizes};
use crate::serial::Ramp;
use crate::stage::{STAGES_MAX, Stage, StageCost};

/// The best number of equal fragments over the reals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Optimum {
    /// `k`, the number of fragments.
    pub count: u64,
    /// `x = B/k`, in bytes.
    pub fragment_bytes: f64,
    /// `T(k)`, the latency, in seconds.
    pub predicted_seconds: f64,
}

/// A plan of one size, or of sizes that fall from one, in whole bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FixedBest {
    /// What chose the size: `Whole`, `Static`, `Fixed` or `Serial`.
    pub algorithm: Algorithm,
    /// The first fragment, and where they do not shrink all but the last, in bytes.
    pub fragment_bytes: u64,
    /// By how much each fragment is shorter than the one before, in bytes: 0 but for those of
    /// [`crate::serial`].
    pub shrink_bytes: u64,
    /// The number of fragments, at least 1.
    pub count: u64,
    /// Fragments outstanding at the first stage.
    pub depth: NonZeroU32,
    /// The latency of this very plan, rounding included, in seconds.
    pub predicted_seconds: f64,
    /// Half the width of the prediction interval, in seconds: how far the uncertainty of the
    /// stages' costs moves the prediction.
    pub margin_seconds: f64,
}

impl FixedBest {
    /// The [`Plan`] of these fragments for `bytes` over `stages` stages. Allocates only for sizes
    /// that fall.
    #[must_use]
    pub fn plan(&self, stages: usize, bytes: u64) -> Plan {
        let mut plan = Plan {
            depth: self.depth,
            predicted_seconds: self.predicted_seconds,
            margin_seconds: self.margin_seconds,
            ..Plan::uniform(stages, self.fragment_bytes, bytes, self.algorithm)
        };
        let ramp = Ramp { first: self.fragment_bytes, shrink: self.shrink_bytes, least: 1 };
        if self.shrink_bytes > 0
            && let Some((sizes, count)) = ramp.sizes(bytes)
            && let Ok(sizes) = Sizes::list(&sizes[..count])
            && let Ok(levels) = Levels::new(&[Level { sizes, ..plan.levels[0].clone() }])
        {
            plan.levels = levels;
        }
        plan
    }
}

/// The best number of equal fragments over the reals, between `counts.0` and `counts.1`, with
/// `depth` fragments outstanding at the first stage.
///
/// Exact for stages of straight cost without a binding window. Otherwise exact among up to 64
/// fragments, and among larger counts within their spacing.
///
/// ```
/// use piped_model::fixed::optimum;
/// use piped_model::stage::Stage;
/// let gam = [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)]
///     .map(|(g, us)| Stage { latency: 0.0, overhead: g, per_byte: us / 1024.0, window: None });
/// assert_eq!(optimum(&gam, 4096.0, (1, 4096), None).count, 5);
/// ```
#[must_use]
pub fn optimum<C: StageCost>(
    path: &[C],
    bytes: f64,
    counts: (u64, u64),
    depth: Option<NonZeroU32>,
) -> Optimum {
    let fewest = counts.0.max(1);
    let most = counts.1.max(fewest);
    let latency = |count| evaluate::equal(path, bytes, count, depth);
    let straight = path.iter().all(|cost| cost.straight().is_some());
    let convex = straight.then(|| bisect(path, bytes, (fewest, most), depth));
    let count = match convex {
        Some(count) if !windows_matter(path, most, depth) => count,
        _ => scan((fewest, most), convex, latency),
    };
    Optimum { count, fragment_bytes: bytes / count as f64, predicted_seconds: latency(count) }
}

/// Whether some window could bind at some size with up to `most` fragments: with `w·g >= g + L` it
/// cannot at any, and a window that all fragments fit into never does.
fn windows_matter<C: StageCost>(path: &[C], most: u64, depth: Option<NonZeroU32>) -> bool {
    path.iter().enumerate().any(|(index, cost)| {
        let stage = limited(cost.stage_at(0.0), index, depth);
        stage.window.is_some_and(|window| {
            u64::from(window.get()) < most
                && stage.latency > f64::from(window.get() - 1) * stage.overhead
        })
    })
}

fn limited(stage: Stage, index: usize, depth: Option<NonZeroU32>) -> Stage {
    stage.narrowed(if index == 0 { depth } else { None })
}

/// The best count of the convex `T(k)`; with windows, of its convex upper bound in which a stage
/// departs every [`Stage::interval`].
fn bisect<C: StageCost>(
    path: &[C],
    bytes: f64,
    (fewest, most): (u64, u64),
    depth: Option<NonZeroU32>,
) -> u64 {
    let mut stages = [Stage::FREE; STAGES_MAX];
    let used = path.len().min(STAGES_MAX);
    for (index, (stage, cost)) in stages.iter_mut().zip(path).enumerate() {
        *stage = limited(cost.stage_at(bytes), index, depth);
    }
    let stages = &stages[..used];
    let latency = |count: u64| {
        let size = bytes / count as f64;
        let mut slowest = 0.0_f64;
        let mut crossing = 0.0;
        for stage in stages {
            slowest = slowest.max(stage.interval(size));
            crossing += stage.alone(size);
        }
        crossing + (count - 1) as f64 * slowest
    };
    // A gain below the arithmetic's own noise is none; more fragments must earn their keep.
    let one_more_pays = |count: u64| {
        let here = latency(count);
        latency(count + 1) < here - here * 1e-14
    };
    // The best count is mostly small against what is allowed: double first, then bisect.
    let (mut low, mut high, mut reach) = (fewest, most, fewest);
    while reach < high {
        if one_more_pays(reach) {
            low = reach + 1;
            reach = reach.saturating_mul(2).min(most);
        } else {
            high = reach;
        }
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if one_more_pays(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// Below this count every one is tried.
const DENSE_COUNTS: u64 = 64;

/// The best of a set of counts: the first [`DENSE_COUNTS`], then geometrically spaced ones, then
/// the neighbourhood of the best and of `hint`.
pub(crate) fn scan(
    (fewest, most): (u64, u64),
    hint: Option<u64>,
    latency: impl Fn(u64) -> f64,
) -> u64 {
    let mut best = (f64::INFINITY, fewest);
    let consider = |count: u64, best: &mut (f64, u64)| {
        let seconds = latency(count);
        if seconds < best.0 {
            *best = (seconds, count);
        }
    };
    let mut count = fewest;
    while count <= most {
        consider(count, &mut best);
        let step = if count < fewest.max(DENSE_COUNTS) { 1 } else { (count / 12).max(1) };
        count = count.saturating_add(step);
    }
    consider(most, &mut best);
    for centre in [Some(best.1), hint].into_iter().flatten() {
        if centre <= DENSE_COUNTS {
            continue;
        }
        let reach = (centre / 12).min(32);
        for near in centre.saturating_sub(reach).max(fewest)..=(centre + reach).min(most) {
            consider(near, &mut best);
        }
    }
    best.1
}

/// How much latency may be given away for a smaller depth.
const DEPTH_SLACK: f64 = 0.01;

/// The best fixed fragment size, and the smallest depth that reaches its latency within 1 %.
///
/// `path` may mix straight and bent costs (see [`StageCost`]). Does not allocate; microseconds at
/// most for straight costs, tens of them for bent ones.
///
/// ```
/// use piped_model::fixed::{best, Constraints};
/// use piped_model::stage::Stage;
/// let disk = Stage { latency: 70e-6, overhead: 17e-6, per_byte: 0.3e-9, window: None };
/// let net = Stage { latency: 4e-6, overhead: 2e-6, per_byte: 0.3e-9, window: None };
/// let limits = Constraints { smallest: 4096, alignment: 4096, ..Constraints::default() };
/// let plan = best(&[disk, net], 1 << 20, &limits);
/// assert_eq!(plan.fragment_bytes % 4096, 0);
/// assert!(plan.count > 1 && u64::from(plan.depth.get()) <= plan.count);
/// ```
#[must_use]
pub fn best<C: StageCost>(path: &[C], bytes: u64, constraints: &Constraints) -> FixedBest {
    let depth = Some(constraints.depth_limit());
    let constraints = &constraints.fitting(0..path.len());
    let (fewest, most) = constraints.counts(bytes);
    let mut real = optimum(path, bytes as f64, (fewest, most), depth);
    let latency = |size: u64| {
        let at = |depth: u32| seconds(path, size, bytes, NonZeroU32::new(depth), constraints);
        let depths = depths(path.len(), bytes.div_ceil(size.max(1)), constraints);
        depths.map(at).fold(f64::INFINITY, f64::min)
    };
    if constraints.needs_walk(path.len()) || constraints.buffers.limited() {
        // How much smaller fragments help where little fits between the stages, or where they wait
        // for a server of several, is on no simple curve.
        let most = most.min(BLOCKED_MAX.max(real.count)).max(fewest);
        let at = |count| latency(constraints.fit(bytes.div_ceil(count)));
        real.count = scan((fewest, most), Some(real.count), at);
    }
    // Rounding to the alignment moves the count, so the neighbours on both sides compete again.
    // So does the fewest possible: large fragments with a short tail are not equal fragments, and
    // where a window binds they can win.
    let fewest_size = constraints.fit(bytes);
    let mut chosen = (latency(fewest_size), fewest_size);
    for count in real.count.saturating_sub(1).max(fewest)..=(real.count + 1).min(most) {
        let up = constraints.fit(bytes.div_ceil(count));
        let down = constraints.fit(up.saturating_sub(constraints.alignment.max(1)));
        for size in [up, down] {
            let fits = bytes.div_ceil(size).max(1) <= most || size == up;
            let seconds = latency(size);
            if fits && (seconds < chosen.0 || (seconds == chosen.0 && size > chosen.1)) {
                chosen = (seconds, size);
            }
        }
    }
    finish(path, bytes, constraints, Algorithm::Fixed, chosen.1)
}

/// The depths to try for so many fragments, the deepest first. Where each stage has its own server
/// the deepest is never slower than another. A server of several stages may begin too much at the
/// first of them: there halves of the deepest are tried, too.
fn depths(
    stages: usize,
    count: u64,
    constraints: &Constraints,
) -> impl Iterator<Item = u32> + use<> {
    let deepest = constraints.depth_limit().get();
    let shared = constraints.servers.is_shared(stages);
    let used = u32::try_from(count).unwrap_or(u32::MAX).max(1);
    let first = if shared { deepest.min(used) } else { deepest };
    core::iter::successors(Some(first), move |&depth| (shared && depth > 1).then_some(depth / 2))
}

/// The most fragments tried where each try is a walk through all of them.
const BLOCKED_MAX: u64 = 1024;

/// The latency of fragments of one size, with what the buffers hold and servers that stages share;
/// infinite if the buffers cannot hold them. Exact but for more than [`WALKED_MAX`] fragments
/// between limited buffers or at shared servers, and as near as [`evaluate::delay`] for rooms.
fn seconds<C: StageCost>(
    path: &[C],
    size: u64,
    bytes: u64,
    depth: Option<NonZeroU32>,
    constraints: &Constraints,
) -> f64 {
    let Constraints { buffers, servers, .. } = constraints;
    if !constraints.needs_walk(path.len()) {
        let open = evaluate::uniform(path, size, bytes, depth);
        return open + evaluate::delay(path, size, bytes, buffers, servers);
    }
    let walk = |bytes| {
        let plan = Plan {
            depth: depth.unwrap_or(NonZeroU32::MAX),
            ..Plan::uniform(path.len(), size, bytes, Algorithm::Fixed)
        };
        evaluate::plan_on(path, &plan, buffers, servers).unwrap_or(f64::INFINITY)
    };
    evaluate::steadily(size, bytes, WALKED_MAX, walk)
}

/// The most fragments of one size that are looked at one by one.
const WALKED_MAX: u64 = 4096;

/// Everything in one fragment, or in the largest ones allowed.
#[must_use]
pub fn whole<C: StageCost>(path: &[C], bytes: u64, constraints: &Constraints) -> FixedBest {
    let constraints = &constraints.fitting(0..path.len());
    finish(path, bytes, constraints, Algorithm::Whole, constraints.fit(bytes))
}

/// A constant fragment size, as near to `size` as the constraints allow.
///
/// ```
/// use piped_model::fixed::{static_size, whole, Constraints};
/// use piped_model::stage::Stage;
/// let path = [Stage { latency: 0.0, overhead: 1e-6, per_byte: 1e-9, window: None }; 2];
/// let halves = static_size(&path, 8192, 4096, &Constraints::default());
/// assert_eq!((halves.count, halves.algorithm.to_string().as_str()), (2, "static-4096"));
/// let whole = whole(&path, 8192, &Constraints::default());
/// assert!(halves.predicted_seconds < whole.predicted_seconds);
/// ```
#[must_use]
pub fn static_size<C: StageCost>(
    path: &[C],
    bytes: u64,
    size: u64,
    constraints: &Constraints,
) -> FixedBest {
    let constraints = &constraints.fitting(0..path.len());
    finish(path, bytes, constraints, Algorithm::Static(size), constraints.fit(size))
}

/// The plans of fixed size to compare: whole, each of `static_sizes` below `bytes`, and the best
/// one last. Allocates; for people who want to see the choice.
///
/// ```
/// use piped_model::fixed::{candidates, Constraints};
/// use piped_model::stage::Stage;
/// let path = [Stage { latency: 0.0, overhead: 1e-6, per_byte: 1e-9, window: None }; 2];
/// let list = candidates(&path, 1 << 20, &Constraints::default(), &[4096, 65536, 1 << 24]);
/// let names: Vec<_> = list.iter().map(|plan| plan.algorithm.to_string()).collect();
/// assert_eq!(names, ["whole", "static-4096", "static-65536", "fixed"]);
/// ```
#[must_use]
pub fn candidates<C: StageCost>(
    path: &[C],
    bytes: u64,
    constraints: &Constraints,
    static_sizes: &[u64],
) -> Vec<FixedBest> {
    let mut list = Vec::with_capacity(static_sizes.len() + 2);
    list.push(whole(path, bytes, constraints));
    let smaller = static_sizes.iter().filter(|&&size| size < bytes);
    list.extend(smaller.map(|&size| static_size(path, bytes, size, constraints)));
    list.push(best(path, bytes, constraints));
    list
}

/// The range of fragment sizes around a plan's own with a latency within `slack` (0.02 is two
/// percent) of it at its depth. Varying sizes inside this range costs nearly nothing, and keeps `g`
/// and `G` distinguishable for the estimators (persistent excitation).
///
/// ```
/// use piped_model::fixed::{best, flat, Constraints};
/// use piped_model::stage::Stage;
/// let path = [Stage { latency: 0.0, overhead: 1e-6, per_byte: 1e-9, window: None }; 2];
/// let plan = best(&path, 1 << 20, &Constraints::default());
/// let (low, high) = flat(&path, 1 << 20, &Constraints::default(), &plan, 0.02);
/// assert!(low < plan.fragment_bytes && plan.fragment_bytes < high);
/// ```
#[must_use]
pub fn flat<C: StageCost>(
    path: &[C],
    bytes: u64,
    constraints: &Constraints,
    plan: &FixedBest,
    slack: f64,
) -> (u64, u64) {
    let bound = plan.predicted_seconds * (1.0 + slack);
    let constraints = &constraints.fitting(0..path.len());
    let (fewest, most) = constraints.counts(bytes);
    let within = |size: u64| {
        let count = bytes.div_ceil(size);
        (fewest..=most).contains(&count)
            && seconds(path, size, bytes, Some(plan.depth), constraints) <= bound
    };
    let mut low = plan.fragment_bytes;
    let mut high = plan.fragment_bytes;
    // Two octaves each way in steps of a tenth are more variation than any estimator needs.
    for percent in (25..100).step_by(5).rev() {
        let size =
            constraints.fit((plan.fragment_bytes as f64 * f64::from(percent) / 100.0) as u64);
        if !within(size) {
            break;
        }
        low = low.min(size);
    }
    for percent in (110..=400).step_by(10) {
        let size =
            constraints.fit((plan.fragment_bytes as f64 * f64::from(percent) / 100.0) as u64);
        if !within(size) {
            break;
        }
        high = high.max(size);
    }
    (low, high)
}

/// Choose the depth for a size and say what comes out.
fn finish<C: StageCost>(
    path: &[C],
    bytes: u64,
    constraints: &Constraints,
    algorithm: Algorithm,
    fragment_bytes: u64,
) -> FixedBest {
    let count = bytes.div_ceil(fragment_bytes).max(1);
    let limit = u32::try_from(count).unwrap_or(u32::MAX).min(constraints.depth_limit().get());
    let latency =
        |depth: u32| seconds(path, fragment_bytes, bytes, NonZeroU32::new(depth), constraints);
    let first = path.first().and_then(StageCost::straight);
    let least = if constraints.servers.is_shared(path.len()) {
        least_tried(depths(path.len(), count, constraints), latency)
    } else if first.is_some_and(|stage| stage.latency == 0.0) && !constraints.buffers.limited() {
        // A second fragment at the first stage would only wait for the first one.
        1
    } else {
        least_of(limit.max(1), latency)
    };
    let depth = NonZeroU32::new(least).unwrap_or(NonZeroU32::MIN);
    FixedBest {
        algorithm,
        fragment_bytes,
        shrink_bytes: 0,
        count,
        depth,
        predicted_seconds: latency(least),
        margin_seconds: margin(path, fragment_bytes.min(bytes) as f64, count, depth),
    }
}

/// The smallest depth up to `limit` that is nearly as good as that. A larger depth never makes the
/// recurrence slower, so bisection finds it.
fn least_of(limit: u32, latency: impl Fn(u32) -> f64) -> u32 {
    let bound = latency(limit) * (1.0 + DEPTH_SLACK);
    let (mut low, mut high) = (1, limit);
    while low < high {
        let middle = low + (high - low) / 2;
        if latency(middle) <= bound { high = middle } else { low = middle + 1 }
    }
    low
}

/// The smallest of some depths, the deepest first, that is nearly as good as the best of them.
fn least_tried(depths: impl Iterator<Item = u32>, latency: impl Fn(u32) -> f64) -> u32 {
    let tried: Vec<(u32, f64)> = depths.map(|depth| (depth, latency(depth))).collect();
    let least = tried.iter().map(|&(_, seconds)| seconds).fold(f64::INFINITY, f64::min);
    let near = |&&(_, seconds): &&(u32, f64)| seconds <= least * (1.0 + DEPTH_SLACK);
    tried.iter().rev().find(near).map_or(1, |&(depth, _)| depth)
}

/// How far the costs' uncertainties move the latency: each stage's part of it times its relative
/// error, added as independent errors are.
pub(crate) fn margin<C: StageCost>(path: &[C], size: f64, count: u64, depth: NonZeroU32) -> f64 {
    let interval =
        |index: usize, cost: &C| limited(cost.stage_at(size), index, Some(depth)).interval(size);
    let slowest = path.iter().enumerate().map(|(i, cost)| interval(i, cost)).fold(0.0, f64::max);
    let mut squares = 0.0;
    for (index, cost) in path.iter().enumerate() {
        let mut part = cost.stage_at(size).alone(size);
        if interval(index, cost) >= slowest {
            part += (count - 1) as f64 * slowest;
        }
        squares += (part * cost.relative_error(size)).powi(2);
    }
    squares.sqrt()
}
