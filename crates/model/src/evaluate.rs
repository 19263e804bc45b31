//! The latency of a plan, exactly.
//!
//! Two ways that agree. One is the recurrence itself, for any list of fragments per stage
//! ([`lists`], [`same_sizes`], [`parts`], [`plan`], and with finite buffers [`within()`]). The
//! other is a closed form for equal fragments ([`equal`] over the reals, [`uniform`] over bytes
//! with a shorter last fragment). It takes tens of nanoseconds and does not allocate, so that every
//! request can ask it.

use core::fmt;
use core::num::NonZeroU32;

use crate::plan::Plan;
use crate::serial::RAMP_MAX;
use crate::stage::StageCost;

mod closed;
mod company;
mod delay;
mod gate;
mod late;
mod served;
mod within;

pub use closed::{equal, uniform};
pub use company::{in_turn, work};
pub use delay::delay;
pub use late::{LATE_FRAGMENTS_MAX, Late, STALLED_TIMES, late};
pub use served::{lists_on, plan_on, served, served_within, steadily};
pub use within::{plan_within, room_needed, within};

/// Fragment lists that cannot be evaluated on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvaluateFault {
    /// Not one list of fragments per stage (given, wanted).
    Stages(usize, usize),
    /// A stage without fragments, or a fragment without bytes.
    Empty {
        /// The index of the stage.
        stage: usize,
    },
    /// A stage that moves another number of bytes than the first one.
    Bytes {
        /// The index of the stage.
        stage: usize,
    },
    /// A buffer in which the next fragment cannot be put together: all would wait forever.
    Buffer {
        /// The stage behind it.
        stage: usize,
        /// How much it holds, in bytes.
        bytes: u64,
        /// How much these fragments need, in bytes.
        needed: u64,
    },
    /// A room over several stages in which fragments wait for bytes behind themselves, or for room
    /// that other limits never give.
    Room {
        /// The stage that waits for room.
        first: usize,
        /// The last stage of the room.
        last: usize,
        /// How much it holds, in bytes.
        bytes: u64,
    },
}

impl fmt::Display for EvaluateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stages(given, wanted) => {
                write!(
                    f,
                    "{given} lists of fragments for a path of {wanted} stages: give one per stage"
                )
            }
            Self::Empty { stage } => {
                write!(f, "stage {stage} has no fragment or an empty one: sizes must be positive")
            }
            Self::Bytes { stage } => {
                write!(f, "the fragments of stage {stage} do not add up to those of stage 0")
            }
            Self::Buffer { stage, bytes, needed } => write!(
                f,
                "the buffer before stage {stage} holds {bytes} bytes, and these fragments wait in \
                 it forever: give it {needed}, or cut smaller fragments"
            ),
            Self::Room { first, last, bytes } => write!(
                f,
                "the room of {bytes} bytes over stages {first} to {last} is too small for these \
                 fragments, which wait forever: give it more, or cut smaller fragments"
            ),
        }
    }
}

impl std::error::Error for EvaluateFault {}

/// Latency in seconds of one list of fragment sizes per stage, in bytes, by the recurrence.
///
/// Bytes are cut anew at each boundary: a fragment may start when all its bytes have left the stage
/// before. `depth` as in [`equal`]. Allocates; meant for planning and checking.
///
/// # Errors
/// If there is not one list per stage, a size is 0, or the sums differ.
///
/// ```
/// use piped_model::evaluate::lists;
/// use piped_model::stage::Stage;
/// let slow = Stage { latency: 0.0, overhead: 10.0, per_byte: 1.0, window: None };
/// // Two halves through the first stage, reassembled for the second: 2 * (10 + 50) + 10 + 100.
/// assert_eq!(lists(&[slow, slow], &[&[50, 50], &[100]], None)?, 230.0);
/// # Ok::<(), piped_model::evaluate::EvaluateFault>(())
/// ```
pub fn lists<C: StageCost>(
    path: &[C],
    sizes: &[&[u64]],
    depth: Option<NonZeroU32>,
) -> Result<f64, EvaluateFault> {
    Ok(departures(path, sizes, depth)?.last().map_or(0.0, |&(_, left)| left))
}

/// Where each fragment of the last stage ends, in bytes, and when it leaves.
fn departures<C: StageCost>(
    path: &[C],
    sizes: &[&[u64]],
    depth: Option<NonZeroU32>,
) -> Result<Vec<(u128, f64)>, EvaluateFault> {
    check(path.len(), sizes)?;
    let mut before: Vec<(u128, f64)> = Vec::new();
    for (stage, (cost, list)) in path.iter().zip(sizes).enumerate() {
        let mut server = Server::new(list.len());
        let mut departures = Vec::with_capacity(list.len());
        let mut end = 0_u128;
        let mut source = 0;
        for &size in *list {
            end += u128::from(size);
            while source < before.len() && before[source].0 < end {
                source += 1;
            }
            let arrival = before.get(source).map_or(0.0, |&(_, left)| left);
            let outstanding = if stage == 0 { depth } else { None };
            departures.push((end, server.pass(cost, size as f64, arrival, outstanding)));
        }
        before = departures;
    }
    Ok(before)
}

/// Whether there is one list per stage, all sizes are positive, and the sums are the same.
fn check(stages: usize, sizes: &[&[u64]]) -> Result<(), EvaluateFault> {
    if stages != sizes.len() || stages == 0 {
        return Err(EvaluateFault::Stages(sizes.len(), stages));
    }
    let total = sum(sizes[0]);
    for (stage, list) in sizes.iter().enumerate() {
        if list.is_empty() || list.contains(&0) {
            return Err(EvaluateFault::Empty { stage });
        }
        if sum(list) != total {
            return Err(EvaluateFault::Bytes { stage });
        }
    }
    Ok(())
}

fn sum(sizes: &[u64]) -> u128 {
    sizes.iter().map(|&size| u128::from(size)).sum()
}

/// Latency in seconds of the same fragments in every stage, sizes in real bytes, by the recurrence.
///
/// ```
/// use piped_model::evaluate::{equal, same_sizes};
/// use piped_model::stage::Stage;
/// let path = [Stage { latency: 1.0, overhead: 2.0, per_byte: 0.1, window: None }; 3];
/// assert!((same_sizes(&path, &[2.5; 4], None) - equal(&path, 10.0, 4, None)).abs() < 1e-9);
/// ```
#[must_use]
pub fn same_sizes<C: StageCost>(path: &[C], sizes: &[f64], depth: Option<NonZeroU32>) -> f64 {
    let mut times = vec![0.0_f64; sizes.len()];
    for (stage, cost) in path.iter().enumerate() {
        let mut server = Server::new(sizes.len());
        let outstanding = if stage == 0 { depth } else { None };
        for (time, &size) in times.iter_mut().zip(sizes) {
            *time = server.pass(cost, size, *time, outstanding);
        }
    }
    times.last().copied().unwrap_or(0.0)
}

/// Latency in seconds of one list of real fragment sizes per stage, in bytes, by the recurrence:
/// [`lists`] for the theory's results before they are rounded.
///
/// A fragment waits for the one before it in which its last byte is; ends that differ by less than
/// a billionth of the transfer are the same end. Sums have to agree as closely.
///
/// # Errors
/// If there is not one list per stage, a size is negative or not finite, or the sums differ.
///
/// ```
/// use piped_model::evaluate::{lists, parts};
/// use piped_model::stage::Stage;
/// let slow = Stage { latency: 0.0, overhead: 10.0, per_byte: 1.0, window: None };
/// let thirds = [100.0 / 3.0; 3];
/// assert!((parts(&[slow, slow], &[&thirds, &[100.0]], None)? - 240.0).abs() < 1e-9);
/// # Ok::<(), piped_model::evaluate::EvaluateFault>(())
/// ```
pub fn parts<C: StageCost>(
    path: &[C],
    sizes: &[&[f64]],
    depth: Option<NonZeroU32>,
) -> Result<f64, EvaluateFault> {
    if path.len() != sizes.len() || path.is_empty() {
        return Err(EvaluateFault::Stages(sizes.len(), path.len()));
    }
    let total: f64 = sizes[0].iter().sum();
    let near = total * 1e-9;
    let mut before: Vec<(f64, f64)> = Vec::new();
    for (stage, (cost, list)) in path.iter().zip(sizes).enumerate() {
        if list.is_empty() || list.iter().any(|&size| !(size.is_finite() && size >= 0.0)) {
            return Err(EvaluateFault::Empty { stage });
        }
        let mut server = Server::new(list.len());
        let mut departures = Vec::with_capacity(list.len());
        let (mut end, mut source) = (0.0_f64, 0);
        for &size in *list {
            end += size;
            while source + 1 < before.len() && before[source].0 < end - near {
                source += 1;
            }
            let arrival = before.get(source).map_or(0.0, |&(_, left)| left);
            let outstanding = if stage == 0 { depth } else { None };
            departures.push((end, server.pass(cost, size, arrival, outstanding)));
        }
        if (end - total).abs() > near {
            return Err(EvaluateFault::Bytes { stage });
        }
        before = departures;
    }
    Ok(before.last().map_or(0.0, |&(_, left)| left))
}

/// Like [`same_sizes`] for at most [`RAMP_MAX`] fragments (later ones are ignored), without
/// allocation.
///
/// ```
/// use piped_model::evaluate::{few, same_sizes};
/// use piped_model::stage::Stage;
/// use std::num::NonZeroU32;
/// let window = NonZeroU32::new(2);
/// let path = [Stage { latency: 1.0, overhead: 2.0, per_byte: 0.1, window }; 3];
/// let one = NonZeroU32::new(1);
/// assert_eq!(few(&path, &[5, 3, 2], one), same_sizes(&path, &[5.0, 3.0, 2.0], one));
/// ```
#[must_use]
pub fn few<C: StageCost>(path: &[C], sizes: &[u64], depth: Option<NonZeroU32>) -> f64 {
    let count = sizes.len().min(RAMP_MAX);
    // When each fragment has left the stages so far.
    let mut times = [0.0_f64; RAMP_MAX];
    for (stage, cost) in path.iter().enumerate() {
        let depth = if stage == 0 { depth } else { None };
        let mut free = 0.0_f64;
        for (fragment, &size) in sizes[..count].iter().enumerate() {
            let stage = cost.stage_at(size as f64);
            let window = stage.window.map_or(usize::MAX, |window| window.get() as usize);
            let window = window.min(depth.map_or(usize::MAX, |depth| depth.get() as usize));
            let slot = fragment.checked_sub(window).map_or(0.0, |before| times[before]);
            let start = times[fragment].max(free).max(slot);
            free = start + stage.occupancy(size as f64);
            times[fragment] = free + stage.latency;
        }
    }
    times[count.saturating_sub(1)]
}

/// Latency in seconds of a plan on a path.
///
/// # Errors
/// If the plan's levels do not cover exactly the path's stages.
///
/// ```
/// use piped_model::evaluate::{plan, uniform};
/// use piped_model::plan::{Algorithm, Plan};
/// use piped_model::stage::Stage;
/// use std::num::NonZeroU32;
/// let path = [Stage { latency: 70.0, overhead: 17.0, per_byte: 0.01, window: None }; 2];
/// let two = NonZeroU32::new(2).unwrap();
/// let chosen = Plan { depth: two, ..Plan::uniform(2, 4096, 10_000, Algorithm::Fixed) };
/// assert_eq!(plan(&path, &chosen)?, uniform(&path, 4096, 10_000, Some(two)));
/// # Ok::<(), piped_model::evaluate::EvaluateFault>(())
/// ```
pub fn plan<C: StageCost>(path: &[C], plan: &Plan) -> Result<f64, EvaluateFault> {
    let covered = plan.levels.last().map_or(0, |level| level.stages.end);
    if covered != path.len() {
        return Err(EvaluateFault::Stages(covered, path.len()));
    }
    if let [level] = &*plan.levels
        && let crate::plan::Sizes::Uniform { fragment_bytes, total_bytes } = level.sizes
    {
        return Ok(uniform(path, fragment_bytes, total_bytes, Some(plan.depth)));
    }
    if plan.total_bytes() == 0 {
        return Ok(uniform(path, 1, 0, Some(plan.depth)));
    }
    views(path.len(), plan, |sizes| lists(path, sizes, Some(plan.depth)))
}

/// Hands `evaluate` a plan's sizes, one list per stage.
fn views(
    stages: usize,
    plan: &Plan,
    evaluate: impl FnOnce(&[&[u64]]) -> Result<f64, EvaluateFault>,
) -> Result<f64, EvaluateFault> {
    let mut expanded: Vec<Vec<u64>> = Vec::with_capacity(plan.levels.len());
    let mut sizes: Vec<usize> = Vec::with_capacity(stages);
    for (index, level) in plan.levels.iter().enumerate() {
        expanded.push(level.sizes.iter().map(|fragment| fragment.length).collect());
        sizes.extend(level.stages.clone().map(|_| index));
    }
    let sizes: Vec<&[u64]> = sizes.iter().map(|&index| expanded[index].as_slice()).collect();
    evaluate(&sizes)
}

/// One stage of the recurrence: when it is free, and when the fragments in it have departed.
struct Server {
    free: f64,
    departures: Vec<f64>,
}

impl Server {
    fn new(fragments: usize) -> Self {
        Self { free: 0.0, departures: Vec::with_capacity(fragments) }
    }

    /// The departure of the next fragment.
    fn pass<C: StageCost>(
        &mut self,
        cost: &C,
        size: f64,
        arrival: f64,
        depth: Option<NonZeroU32>,
    ) -> f64 {
        let stage = cost.stage_at(size).narrowed(depth);
        let slot = stage
            .window
            .and_then(|window| self.departures.len().checked_sub(window.get() as usize))
            .map_or(0.0, |index| self.departures[index]);
        let start = arrival.max(self.free).max(slot);
        self.free = start + stage.occupancy(size);
        let departure = self.free + stage.latency;
        self.departures.push(departure);
        departure
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Algorithm, Level, Levels, Sizes};
    use crate::stage::Stage;

    const SLOW: Stage = Stage { latency: 0.0, overhead: 10.0, per_byte: 1.0, window: None };

    #[test]
    fn lists_that_do_not_fit_are_refused() {
        assert_eq!(lists(&[SLOW], &[], None), Err(EvaluateFault::Stages(0, 1)));
        assert_eq!(lists::<Stage>(&[], &[], None), Err(EvaluateFault::Stages(0, 0)));
        assert_eq!(lists(&[SLOW], &[&[]], None), Err(EvaluateFault::Empty { stage: 0 }));
        assert_eq!(lists(&[SLOW], &[&[1, 0]], None), Err(EvaluateFault::Empty { stage: 0 }));
        let unequal = lists(&[SLOW, SLOW], &[&[3], &[1, 1]], None);
        assert_eq!(unequal, Err(EvaluateFault::Bytes { stage: 1 }));
    }

    #[test]
    fn nested_plans_are_cut_anew_between_levels() {
        let sizes = [
            Sizes::Uniform { fragment_bytes: 25, total_bytes: 100 },
            Sizes::list(&[50, 50]).unwrap(),
        ];
        let [fine, coarse] = sizes;
        let levels = [Level { stages: 0..2, sizes: fine }, Level { stages: 2..3, sizes: coarse }];
        let nested = Plan {
            levels: Levels::new(&levels).unwrap(),
            depth: NonZeroU32::new(4).unwrap(),
            ..Plan::uniform(3, 1, 1, Algorithm::HierarchicalFixed)
        };
        let by_hand =
            lists(&[SLOW; 3], &[&[25; 4], &[25; 4], &[50; 2]], NonZeroU32::new(4)).unwrap();
        assert_eq!(plan(&[SLOW; 3], &nested), Ok(by_hand));
        assert_eq!(plan(&[SLOW; 2], &nested), Err(EvaluateFault::Stages(3, 2)));
    }
}
