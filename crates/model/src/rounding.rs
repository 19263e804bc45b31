//! The last step of a planner: real sizes become whole bytes, and the plan its own exact latency.
//!
//! The theory is in reals (docs/theory.md §1). Rounding each size by itself would lose or invent
//! bytes, and rounding ends would break the limits of a size; so a size is rounded together with
//! what rounding the sizes before it has left over. What comes out is evaluated as it is, never as
//! what it was made from.

use core::num::NonZeroU32;
use core::ops::Range;

use crate::evaluate;
use crate::fixed::Constraints;
use crate::plan::{Algorithm, Level, Levels, Plan, Sizes};
use crate::stage::Stage;

/// Sizes in whole bytes, each within the constraints, that add up to `bytes` exactly. The last may
/// be shorter than the smallest allowed and need not be aligned. Sizes above the largest allowed
/// are cut, so there may be more than in `real`, and sizes of less than the alignment vanish, so
/// there may be fewer. Empty for 0 bytes.
///
/// ```
/// use piped_model::fixed::Constraints;
/// use piped_model::rounding::sizes;
/// assert_eq!(sizes(&[2.5, 2.5, 5.0], 10, &Constraints::default()), [3, 2, 5]);
/// let limits = Constraints { alignment: 4, largest: 9, ..Constraints::default() };
/// assert_eq!(sizes(&[2.5, 22.5], 25, &limits), [4, 8, 8, 5]);
/// ```
#[must_use]
pub fn sizes(real: &[f64], bytes: u64, constraints: &Constraints) -> Vec<u64> {
    let unit = constraints.alignment.max(1);
    let (smallest, largest) = (constraints.fit(1), constraints.fit(u64::MAX));
    let mut rounded = Vec::with_capacity(real.len());
    let (mut end, mut ideal) = (0_u64, 0.0_f64);
    for &size in real {
        ideal += size.max(0.0);
        // Ideal ends beyond 2^53 have no exact float; nothing that long is planned in one piece.
        while end < bytes {
            let wanted = (ideal - end as f64) / unit as f64;
            if wanted < 0.5 {
                break;
            }
            let size = (wanted.round() as u64).saturating_mul(unit).clamp(smallest, largest);
            let size = size.min(bytes - end);
            rounded.push(size);
            end += size;
        }
    }
    // Less than the alignment is no fragment of its own where the last one can take it.
    let rest = bytes - end;
    if let Some(last) = rounded.last_mut()
        && rest < unit
        && *last + rest <= largest
    {
        *last += rest;
        return rounded;
    }
    while end < bytes {
        let size = largest.min(bytes - end);
        rounded.push(size);
        end += size;
    }
    rounded
}

/// A fragment of `size` bytes (itself within the constraints) in about `count` nearly equal pieces
/// that are: fewer where they would be too small, more where they would be too large. Only the last
/// may be unaligned, if `size` is.
///
/// ```
/// use piped_model::fixed::Constraints;
/// use piped_model::rounding::pieces;
/// assert_eq!(pieces(10, 3, &Constraints::default()), [4, 3, 3]);
/// let limits = Constraints { alignment: 4, smallest: 8, ..Constraints::default() };
/// assert_eq!(pieces(30, 4, &limits), [12, 8, 10]);
/// let limits = Constraints { alignment: 512, largest: 512, ..Constraints::default() };
/// assert_eq!(pieces(1025, 2, &limits), [512, 512, 1]);
/// ```
#[must_use]
pub fn pieces(size: u64, count: u64, constraints: &Constraints) -> Vec<u64> {
    let unit = constraints.alignment.max(1);
    let (units, rest) = (size / unit, size % unit);
    let most = units / (constraints.fit(1) / unit);
    // The rest goes with the last one, and that has to fit as well.
    let fewest = size.div_ceil(unit).div_ceil(constraints.fit(u64::MAX) / unit);
    let count = count.max(fewest).min(most.max(fewest)).max(1);
    let (base, longer) = (units / count, units % count);
    let mut list: Vec<u64> =
        (0..count).map(|index| (base + u64::from(index < longer)) * unit).collect();
    if let Some(last) = list.last_mut() {
        *last += rest;
    }
    list
}

/// A plan of these sizes, one list per run of stages, with its exact latency and the smallest depth
/// that costs nothing. An empty list stands for a transfer of 0 bytes.
///
/// Nothing if the lists make no plan for the path, or if the buffers cannot hold it.
///
/// ```
/// use piped_model::fixed::Constraints;
/// use piped_model::plan::Algorithm;
/// use piped_model::rounding::plan;
/// use piped_model::stage::Stage;
/// let path = [Stage { latency: 0.0, overhead: 10.0, per_byte: 1.0, window: None }; 2];
/// let parts = [(0..1, vec![50, 50]), (1..2, vec![100])];
/// let plan = plan(&path, &parts, Algorithm::HierarchicalFixed, &Constraints::default()).unwrap();
/// assert_eq!((plan.predicted_seconds, plan.total_bytes()), (230.0, 100));
/// ```
#[must_use]
pub fn plan(
    path: &[Stage],
    parts: &[(Range<usize>, Vec<u64>)],
    algorithm: Algorithm,
    constraints: &Constraints,
) -> Option<Plan> {
    let mut levels = Vec::with_capacity(parts.len());
    for (stages, list) in parts {
        levels.push(Level { stages: stages.clone(), sizes: compact(list)? });
    }
    let mut plan =
        Plan { levels: Levels::new(&levels).ok()?, ..Plan::uniform(path.len(), 1, 0, algorithm) };
    let most = u32::try_from(plan.count()).unwrap_or(u32::MAX).min(constraints.depth_max).max(1);
    let first = path.first()?;
    let mut latency = |depth: u32| {
        plan.depth = NonZeroU32::new(depth).unwrap_or(NonZeroU32::MIN);
        evaluate::plan_within(path, &plan, &constraints.buffers).ok()
    };
    let (mut low, mut high) = (1, most);
    let best = latency(most)?;
    if first.latency == 0.0 {
        // Without a latency nothing is gained by a second fragment at the first stage.
        high = 1;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if latency(middle)? <= best { high = middle } else { low = middle + 1 }
    }
    let seconds = latency(low)?;
    plan.predicted_seconds = seconds;
    Some(plan)
}

/// The list as equal sizes with a shorter last one, if it is so: such sizes evaluate and store as a
/// few numbers.
fn compact(list: &[u64]) -> Option<Sizes> {
    let Some((&last, rest)) = list.split_last() else {
        return Some(Sizes::Uniform { fragment_bytes: 1, total_bytes: 0 });
    };
    let first = rest.first().copied().unwrap_or(last);
    if first > 0 && last > 0 && last <= first && rest.iter().all(|&size| size == first) {
        let total_bytes = first.checked_mul(rest.len() as u64)?.checked_add(last)?;
        return Some(Sizes::Uniform { fragment_bytes: first, total_bytes });
    }
    Sizes::list(list).ok()
}

/// The stages as a planner without windows sees them: a window of one (or one outstanding fragment
/// at the first stage) makes the latency part of what a fragment occupies, exactly; wider windows
/// are left to the evaluation.
pub(crate) fn folded(path: &[Stage], constraints: &Constraints) -> Vec<Stage> {
    let one = |window: Option<NonZeroU32>| window == Some(NonZeroU32::MIN);
    let mut stages = Vec::with_capacity(path.len());
    for (index, stage) in path.iter().enumerate() {
        let serial = one(stage.window) || (index == 0 && constraints.depth_max <= 1);
        stages.push(if serial {
            Stage { latency: 0.0, overhead: stage.overhead + stage.latency, window: None, ..*stage }
        } else {
            Stage { window: None, ..*stage }
        });
    }
    stages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_keep_the_constraints_and_the_sum() {
        let limits =
            Constraints { smallest: 512, largest: 9000, alignment: 512, ..Constraints::default() };
        for bytes in [1, 511, 512, 513, 40_000, 123_457] {
            for real in
                [vec![bytes as f64], vec![0.1, bytes as f64 - 0.1], vec![bytes as f64 / 7.0; 7]]
            {
                let list = sizes(&real, bytes, &limits);
                assert_eq!(list.iter().sum::<u64>(), bytes);
                let (_, all_but_last) = list.split_last().expect("bytes, so a fragment");
                let within = |&size: &u64| (512..=9000).contains(&size) && size % 512 == 0;
                assert!(all_but_last.iter().all(within), "{list:?}");
            }
        }
        assert!(sizes(&[], 0, &limits).is_empty());
    }

    #[test]
    fn lists_that_are_equal_become_a_size_and_a_count() {
        let uniform =
            |fragment_bytes, total_bytes| Some(Sizes::Uniform { fragment_bytes, total_bytes });
        assert_eq!(compact(&[4, 4, 1]), uniform(4, 9));
        assert_eq!(compact(&[4]), uniform(4, 4));
        assert_eq!(compact(&[]), uniform(1, 0));
        assert_eq!(compact(&[4, 5]), Sizes::list(&[4, 5]).ok());
        assert_eq!(compact(&[4, 0]), None);
    }

    #[test]
    fn the_depth_is_the_smallest_that_costs_nothing() {
        let disk = Stage { latency: 70.0, overhead: 10.0, per_byte: 0.0, window: None };
        let parts = [(0..1, vec![1; 20])];
        let free = Constraints::default();
        let chosen = plan(&[disk], &parts, Algorithm::Fixed, &free).expect("a plan");
        assert_eq!((chosen.depth.get(), chosen.predicted_seconds), (8, 270.0));
        let limits = Constraints { depth_max: 2, ..free };
        let chosen = plan(&[disk], &parts, Algorithm::Fixed, &limits).expect("a plan");
        assert_eq!((chosen.depth.get(), chosen.predicted_seconds), (2, 810.0));
    }
}
