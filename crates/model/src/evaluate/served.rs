//! The latency of a plan where stages have one server between them.
//!
//! The recurrence goes stage by stage, and a stage knows nothing of those behind it. A shared
//! server does: when it begins a fragment of one stage depends on which fragments of the others
//! wait for it. So this one goes from start to start in the order of time:
//!
//! ```text
//! ready(i,j) = max(arrive(i,j), depart(i-w,j), start(i-1,j))
//! start(i,j) = max(ready(i,j), free of the stage's server)
//! ```
//!
//! Of the next fragments of all stages, as far as it is known when they are ready, the one with the
//! least `start` starts; among equal ones that with the least `ready`, and among these the one of
//! the latest stage. Nothing that is not known yet could start before it: it waits for a fragment
//! that has not started.

use core::num::NonZeroU32;

use super::within::check_room;
use super::{EvaluateFault, check, plan_within, views};
use crate::plan::Plan;
use crate::servers::Servers;
use crate::simulate;
use crate::stage::{Buffers, STAGES_MAX, StageCost};

/// [`super::lists`] where stages share servers. Takes time in proportion to the number of fragments
/// of all stages times the number of stages.
///
/// # Errors
/// As [`super::lists`].
///
/// ```
/// use piped_model::evaluate::{lists, served};
/// use piped_model::servers::Servers;
/// use piped_model::stage::Stage;
/// let step = Stage { latency: 0.0, overhead: 10.0, per_byte: 0.0, window: None };
/// let sizes: [&[u64]; 3] = [&[8, 8]; 3];
/// // A thread, a wire, and the thread again: 10 for each visit of the thread, and for the last
/// // fragment nothing overlaps.
/// let thread = Servers::of(["thread", "wire", "thread"]);
/// assert_eq!(lists(&[step; 3], &sizes, None)?, 40.0);
/// assert_eq!(served(&[step; 3], &sizes, None, &thread)?, 40.0);
/// assert_eq!(served(&[step; 3], &sizes, None, &Servers::of([0, 0, 0]))?, 60.0);
/// # Ok::<(), piped_model::evaluate::EvaluateFault>(())
/// ```
pub fn served<C: StageCost>(
    path: &[C],
    sizes: &[&[u64]],
    depth: Option<NonZeroU32>,
    servers: &Servers,
) -> Result<f64, EvaluateFault> {
    check(path.len(), sizes)?;
    if path.len() > STAGES_MAX {
        return Err(EvaluateFault::Stages(path.len(), STAGES_MAX));
    }
    let mut free = [0.0_f64; STAGES_MAX];
    let mut stages: Vec<Progress<'_>> = sizes.iter().map(|list| Progress::new(list)).collect();
    loop {
        let ready = |stage: usize| {
            let before = stage.checked_sub(1).map(|before| &stages[before]);
            let limit = if stage == 0 { depth } else { None };
            stages[stage].ready(&path[stage], before, limit)
        };
        let starts = (0..path.len()).filter_map(|stage| {
            let ready = ready(stage)?;
            Some((ready.max(free[servers.first(stage)]), ready, stage))
        });
        let next = starts.min_by(|a: &(f64, f64, usize), b| {
            a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(b.2.cmp(&a.2))
        });
        let Some((start, _, stage)) = next else { break };
        free[servers.first(stage)] = stages[stage].serve(&path[stage], start);
    }
    Ok(stages.last().and_then(|stage| stage.departures.last()).map_or(0.0, |&(_, left)| left))
}

/// Latency in seconds of a plan on a path with these buffers and servers.
///
/// # Errors
/// As [`super::plan_within`].
///
/// ```
/// use piped_model::evaluate::{plan, plan_on};
/// use piped_model::plan::{Algorithm, Plan};
/// use piped_model::servers::Servers;
/// use piped_model::stage::{Buffers, Stage};
/// let step = Stage { latency: 0.0, overhead: 10.0, per_byte: 0.0, window: None };
/// let halves = Plan::uniform(3, 8, 16, Algorithm::Fixed);
/// let (open, apart) = (Buffers::UNLIMITED, Servers::APART);
/// assert_eq!(plan_on(&[step; 3], &halves, &open, &apart), plan(&[step; 3], &halves));
/// let one = Servers::of(["thread"; 3]);
/// assert_eq!(plan_on(&[step; 3], &halves, &open, &one), Ok(60.0));
/// ```
pub fn plan_on<C: StageCost>(
    path: &[C],
    plan: &Plan,
    buffers: &Buffers,
    servers: &Servers,
) -> Result<f64, EvaluateFault> {
    if !servers.is_shared(path.len()) || plan.total_bytes() == 0 {
        return plan_within(path, plan, buffers);
    }
    let covered = plan.levels.last().map_or(0, |level| level.stages.end);
    if covered != path.len() {
        return Err(EvaluateFault::Stages(covered, path.len()));
    }
    let depth = Some(plan.depth);
    views(path.len(), plan, |sizes| {
        if !buffers.limited() {
            return served(path, sizes, depth, servers);
        }
        check(path.len(), sizes)?;
        // Whether they fit does not depend on servers.
        check_room(sizes, buffers)?;
        let run = simulate::run_on(path, sizes, depth, buffers, servers);
        run.map(|run| run.seconds).map_err(|_| EvaluateFault::Stages(path.len(), sizes.len()))
    })
}

/// The latency, in seconds, of `bytes` in fragments of one size, of which at most `walked_max` are
/// looked at one by one: the others are taken to leave at the interval of the last half of these.
/// `walk`: the exact latency of so many bytes.
///
/// ```
/// use piped_model::evaluate::steadily;
/// let walk = |bytes: u64| 10.0 + bytes.div_ceil(100) as f64;
/// assert_eq!(steadily(100, 1950, 8, walk), 30.0);
/// ```
pub fn steadily(size: u64, bytes: u64, walked_max: u64, walk: impl Fn(u64) -> f64) -> f64 {
    let count = bytes.div_ceil(size.max(1)).max(1);
    let Some(more) = count.checked_sub(walked_max).filter(|&more| more > 0) else {
        return walk(bytes);
    };
    let half = walked_max / 2;
    let all = walk(bytes - more * size);
    let interval = (all - walk(bytes - (more + half) * size)) / half as f64;
    all + more as f64 * interval
}

/// How far one stage is.
struct Progress<'a> {
    sizes: &'a [u64],
    /// For each fragment that has been served, where it ends and when it departs.
    departures: Vec<(u128, f64)>,
    /// When the last one started.
    started: f64,
}

impl<'a> Progress<'a> {
    fn new(sizes: &'a [u64]) -> Self {
        Self { sizes, departures: Vec::with_capacity(sizes.len()), started: 0.0 }
    }

    /// When the next fragment could start if the server were free; `None` if there is none, or if
    /// that is not known yet.
    fn ready<C: StageCost>(
        &self,
        cost: &C,
        before: Option<&Self>,
        depth: Option<NonZeroU32>,
    ) -> Option<f64> {
        let number = self.departures.len();
        let size = *self.sizes.get(number)?;
        let end = self.end() + u128::from(size);
        let arrival = match before {
            None => 0.0,
            Some(before) => {
                let place = before.departures.partition_point(|&(there, _)| there < end);
                before.departures.get(place)?.1
            }
        };
        let window = cost.stage_at(size as f64).narrowed(depth).window;
        let slot = window.and_then(|window| number.checked_sub(window.get() as usize));
        let slot = slot.map_or(0.0, |before| self.departures[before].1);
        Some(arrival.max(slot).max(self.started))
    }

    fn end(&self) -> u128 {
        self.departures.last().map_or(0, |&(end, _)| end)
    }

    /// Serves the next fragment from `start` on; returns when its server is free.
    fn serve<C: StageCost>(&mut self, cost: &C, start: f64) -> f64 {
        let size = self.sizes[self.departures.len()];
        let stage = cost.stage_at(size as f64);
        self.started = start;
        let free = start + stage.occupancy(size as f64);
        self.departures.push((self.end() + u128::from(size), free + stage.latency));
        free
    }
}
