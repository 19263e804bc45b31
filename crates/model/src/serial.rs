//! Fragments one at a time at the first stage, each shorter than the one before.
//!
//! Several fragments outstanding hide a device's latency, as long as the device tells of each when
//! it is there. Some devices tell only when they have nothing left to do, such as a virtual disk
//! whose host answers once its queue is empty. They tell of all fragments at the end, and nothing
//! overlaps. Such a device has to be asked for one fragment after the other. Then its latency is
//! part of what a fragment costs: `L + g + xG` is the occupancy, and few fragments are best.
//!
//! With so few the first and the last count. While the first stage works on fragment `i + 1`, the
//! ones behind it work on fragment `i`; nobody waits if both take the same time, which makes the
//! sizes a ramp (Theorem 3: `x_{i+1} = a·x_i + b`, `a = G_1/G_0`, `b = (g_1 - g_0)/G_0`). As the
//! latency is in `g_0`, `b` is negative and sizes fall. For stages of like bandwidth (`a` near 1)
//! they fall by the same amount each, and this is what is searched: one number per count of
//! fragments, whatever the number of stages and however their costs bend.

use core::num::NonZeroU32;

use crate::evaluate;
use crate::fixed::{Constraints, FixedBest, margin};
use crate::plan::Algorithm;
use crate::stage::StageCost;

/// The most fragments of a ramp. More are equal: their first and last hardly count.
pub const RAMP_MAX: usize = 8;

/// Differences tried for a count of fragments.
const STEPS: u64 = 32;

/// Sizes that fall by the same amount from one fragment to the next.
///
/// ```
/// use piped_model::serial::Ramp;
/// let ramp = Ramp { first: 400, shrink: 100, least: 50 };
/// assert_eq!(ramp.sizes(1000), Some(([400, 300, 200, 100, 0, 0, 0, 0], 4)));
/// assert_eq!((ramp.end(0), ramp.end(399), ramp.end(400), ramp.end(950)), (400, 400, 700, 1000));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ramp {
    /// The first fragment, in bytes; > 0.
    pub first: u64,
    /// By how much each fragment is shorter than the one before, in bytes; 0 for equal fragments.
    pub shrink: u64,
    /// No fragment but the last is shorter than this, in bytes; 0 is 1.
    pub least: u64,
}

impl Ramp {
    /// Equal sizes, in bytes.
    #[must_use]
    pub const fn equal(size: u64) -> Self {
        Self { first: size, shrink: 0, least: 1 }
    }

    /// Where the fragment that holds byte `at` ends. Takes a step for each fragment before it,
    /// unless they are equal.
    #[must_use]
    pub fn end(&self, at: u64) -> u64 {
        let least = self.least.max(1);
        let (mut end, mut size) = (0, self.first.max(1));
        loop {
            if size <= least || self.shrink == 0 {
                return end + ((at - end) / size + 1) * size;
            }
            end += size;
            if at < end {
                return end;
            }
            size = size.saturating_sub(self.shrink).max(least);
        }
    }

    /// How many fragments `bytes` are cut into. Takes a step for each that is shorter than the one
    /// before.
    #[must_use]
    pub fn count(&self, bytes: u64) -> u64 {
        let least = self.least.max(1);
        let (mut left, mut size, mut count) = (bytes, self.first.max(1), 0);
        while left > size && size > least && self.shrink > 0 {
            left -= size;
            count += 1;
            size = size.saturating_sub(self.shrink).max(least);
        }
        count + left.div_ceil(size).max(1)
    }

    /// The sizes that `bytes` are cut into, and how many there are; nothing if there are more than
    /// [`RAMP_MAX`].
    #[must_use]
    pub fn sizes(&self, bytes: u64) -> Option<([u64; RAMP_MAX], usize)> {
        let mut sizes = [0; RAMP_MAX];
        let mut start = 0;
        for count in 0..RAMP_MAX {
            let end = self.end(start).min(bytes);
            sizes[count] = end - start;
            start = end;
            if start == bytes {
                return Some((sizes, count + 1));
            }
        }
        None
    }
}

/// The best `count` fragments (or as many as the constraints allow) with one at a time at the first
/// stage. Does not allocate.
///
/// ```
/// use piped_model::fixed::{whole, Constraints};
/// use piped_model::serial::best;
/// use piped_model::stage::Stage;
/// let disk = Stage { latency: 40e-6, overhead: 6e-6, per_byte: 0.3e-9, window: None };
/// let net = Stage { latency: 10e-6, overhead: 5e-6, per_byte: 0.3e-9, window: None };
/// let limits = Constraints { smallest: 16384, alignment: 16384, ..Constraints::default() };
/// let plan = best(&[disk, net], 1 << 20, 3, &limits);
/// assert_eq!((plan.count, plan.depth.get()), (3, 1));
/// assert!(plan.shrink_bytes > 0);
/// let whole = whole(&[disk, net], 1 << 20, &limits);
/// assert!(plan.predicted_seconds < 0.8 * whole.predicted_seconds);
/// ```
#[must_use]
pub fn best<C: StageCost>(
    path: &[C],
    bytes: u64,
    count: u64,
    constraints: &Constraints,
) -> FixedBest {
    let unit = constraints.alignment.max(1);
    let constraints = &constraints.fitting(0..path.len());
    let count = count.max(1);
    let mut chosen = plan(path, bytes, constraints.fit(bytes.div_ceil(count)), 0, constraints);
    if count < 2 || count > RAMP_MAX as u64 {
        return chosen;
    }
    // At the steepest, the last fragment is the smallest allowed.
    let pairs = count * (count - 1) / 2;
    let spare = bytes.saturating_sub(count.saturating_mul(constraints.fit(1)));
    let steepest = spare / pairs / unit;
    let stride = steepest.div_ceil(STEPS).max(1);
    let mut steps = stride;
    while steps <= steepest {
        let shrink = steps * unit;
        let first = (bytes + shrink * pairs).div_ceil(count).div_ceil(unit) * unit;
        let next = plan(path, bytes, first, shrink, constraints);
        if next.count == count
            && first <= constraints.largest
            && next.predicted_seconds < chosen.predicted_seconds
        {
            chosen = next;
        }
        steps += stride;
    }
    chosen
}

/// The plan of falling fragments from `first` on, one at a time at the first stage.
fn plan<C: StageCost>(
    path: &[C],
    bytes: u64,
    first: u64,
    shrink: u64,
    constraints: &Constraints,
) -> FixedBest {
    let ramp = Ramp { first, shrink, least: constraints.fit(1) };
    let count = ramp.count(bytes);
    let mut best = FixedBest {
        algorithm: Algorithm::Serial,
        fragment_bytes: first,
        shrink_bytes: shrink,
        count,
        depth: NonZeroU32::MIN,
        predicted_seconds: seconds(path, bytes, &ramp),
        margin_seconds: margin(path, bytes as f64 / count as f64, count, NonZeroU32::MIN),
    };
    let Constraints { buffers, servers, .. } = constraints;
    if constraints.needs_walk(path.len()) {
        let plan = best.plan(path.len(), bytes);
        let walked = evaluate::plan_on(path, &plan, buffers, servers);
        best.predicted_seconds = walked.unwrap_or(f64::INFINITY);
    } else if buffers.limited() {
        // One at a time seldom waits for a room, and a walk for each candidate would be too much.
        best.predicted_seconds += evaluate::delay(path, first, bytes, buffers, servers);
    }
    best
}

/// The latency of `bytes` in these fragments, one at a time at the first stage, in seconds. Exact
/// for equal fragments and up to [`RAMP_MAX`]; more of different sizes are charged as equal ones.
#[must_use]
pub fn seconds<C: StageCost>(path: &[C], bytes: u64, ramp: &Ramp) -> f64 {
    let one = Some(NonZeroU32::MIN);
    match ramp.sizes(bytes) {
        Some((sizes, count)) if ramp.shrink > 0 => evaluate::few(path, &sizes[..count], one),
        _ => evaluate::uniform(path, ramp.first, bytes, one),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Stage;

    const LIMITS: Constraints = Constraints {
        smallest: 16 << 10,
        largest: 1 << 20,
        alignment: 16 << 10,
        depth_max: 32,
        fragments_max: u32::MAX,
        buffers: crate::stage::Buffers::UNLIMITED,
        servers: crate::servers::Servers::APART,
    };

    fn stage(latency: f64, overhead: f64, per_mib: f64) -> Stage {
        let per_byte = per_mib * 1e-6 / 1_048_576.0;
        Stage { latency: latency * 1e-6, overhead: overhead * 1e-6, per_byte, window: None }
    }

    #[test]
    fn sizes_cover_and_their_ends_agree() {
        for (first, shrink, least, bytes) in [
            (400, 100, 50, 1000),
            (400, 100, 50, 1100),
            (7, 0, 0, 50),
            (10, 9, 4, 25),
            (5, 1, 9, 1),
        ] {
            let ramp = Ramp { first, shrink, least };
            let (sizes, count) = ramp.sizes(bytes).expect("few");
            assert_eq!(sizes.iter().sum::<u64>(), bytes);
            let mut start = 0;
            for size in &sizes[..count] {
                assert!(*size > 0);
                for at in start..start + size {
                    assert_eq!(ramp.end(at).min(bytes), start + size, "{ramp:?} at {at}");
                }
                start += size;
            }
        }
        assert_eq!(Ramp { first: 7, shrink: 0, least: 0 }.sizes(100), None);
        assert_eq!(Ramp { first: 7, shrink: 0, least: 0 }.sizes(0), Some(([0; RAMP_MAX], 1)));
    }

    #[test]
    fn fragments_are_counted_however_many_there_are() {
        for (first, shrink, least) in [(400, 30, 50), (400, 0, 50), (7, 1, 3), (5, 9, 0), (5, 1, 9)]
        {
            let ramp = Ramp { first, shrink, least };
            assert_eq!(ramp.count(0), 1);
            let (mut start, mut count) = (0, 0);
            while start < 4000 {
                let end = ramp.end(start);
                count += 1;
                assert_eq!(ramp.count(start + 1), count, "{ramp:?}, {start}");
                assert_eq!(ramp.count(end), count, "{ramp:?}, {end}");
                start = end;
            }
            assert!(count > RAMP_MAX as u64);
        }
    }

    /// The optimum over all sizes of two stages: all times between the first fragment's and the
    /// last's are covered by both (Theorem 3), found by search over two free sizes.
    #[test]
    fn a_ramp_is_nearly_the_best_of_all_sizes() {
        let path = [stage(40.0, 6.0, 320.0), stage(0.0, 15.0, 330.0)];
        let total = 64_u64;
        let mut best_of_all = f64::INFINITY;
        for a in 1..total - 1 {
            for b in 1..total - a {
                let sizes = [a, b, total - a - b].map(|units| units * LIMITS.alignment);
                best_of_all = best_of_all.min(evaluate::few(&path, &sizes, Some(NonZeroU32::MIN)));
            }
        }
        let ramp = best(&path, 1 << 20, 3, &LIMITS);
        assert!(ramp.predicted_seconds <= best_of_all * 1.01, "{ramp:?} against {best_of_all}");
        let equal = plan(&path, 1 << 20, 352 << 10, 0, &LIMITS);
        assert!(ramp.predicted_seconds < 0.97 * equal.predicted_seconds, "{ramp:?}, {equal:?}");
    }

    #[test]
    fn a_slow_stage_behind_wants_no_falling_sizes() {
        let path = [stage(10.0, 5.0, 100.0), stage(0.0, 1.0, 900.0)];
        let plan = best(&path, 1 << 20, 4, &LIMITS);
        assert_eq!((plan.shrink_bytes, plan.fragment_bytes), (0, 256 << 10));
    }

    #[test]
    fn constraints_hold_and_the_promise_is_kept() {
        let path = [stage(46.0, 0.0, 322.0), stage(0.0, 15.0, 330.0), stage(0.0, 1.0, 60.0)];
        for bytes in [1, 5000, 65_536, 300_000, 1 << 20, (1 << 20) + 77, 8 << 20, 100 << 20] {
            for count in [0, 1, 2, 3, 4, 8, 9, 16, 200] {
                let plan = best(&path, bytes, count, &LIMITS);
                assert!(plan.fragment_bytes <= LIMITS.largest);
                assert_eq!(plan.fragment_bytes % LIMITS.alignment, 0);
                let ramp = Ramp {
                    first: plan.fragment_bytes,
                    shrink: plan.shrink_bytes,
                    least: LIMITS.smallest,
                };
                assert_eq!(plan.predicted_seconds, seconds(&path, bytes, &ramp));
                let listed = evaluate::plan(&path, &plan.plan(3, bytes)).expect("a plan");
                assert!((listed / plan.predicted_seconds - 1.0).abs() < 1e-12);
            }
        }
    }
}
