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
//!
//! Of a server in turns all that is ready at such a `start` is taken together, at its next stages
//! too if these follow directly, and departs when the work on all of it is done. Where
//! such a server is directly behind the first stage, that stage gets a fragment more only between
//! its turns:
//!
//! ```text
//! ready(i,0) = max(start(i-1,0), depart(i-depth,0), end of the turn that runs then)
//! ```
//!
//! Where a room over several stages begins, `ready` also waits for that ([`crate::room`]).

use core::num::NonZeroU32;

use super::gate::Gate;
use super::within::{check_room, within};
use super::{EvaluateFault, check, lists, plan_within, views};
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
    served_within(path, sizes, depth, servers, &Buffers::UNLIMITED)
}

/// [`served`] with rooms over several stages; buffers between two of them do not count.
///
/// # Errors
/// As [`super::within()`].
///
/// ```
/// use piped_model::evaluate::served_within;
/// use piped_model::room::Room;
/// use piped_model::servers::Servers;
/// use piped_model::stage::{Buffers, Stage};
/// let step = Stage { latency: 0.0, overhead: 10.0, per_byte: 0.0, window: None };
/// let thread = Servers::of(["thread", "wire", "thread"]);
/// // Each fragment begins when the one before is through.
/// let one = Buffers::UNLIMITED.over(Room::bytes(0, 2, 8));
/// let sizes: [&[u64]; 3] = [&[8, 8, 8]; 3];
/// assert_eq!(served_within(&[step; 3], &sizes, None, &thread, &one)?, 90.0);
/// # Ok::<(), piped_model::evaluate::EvaluateFault>(())
/// ```
pub fn served_within<C: StageCost>(
    path: &[C],
    sizes: &[&[u64]],
    depth: Option<NonZeroU32>,
    servers: &Servers,
    buffers: &Buffers,
) -> Result<f64, EvaluateFault> {
    check(path.len(), sizes)?;
    if path.len() > STAGES_MAX {
        return Err(EvaluateFault::Stages(path.len(), STAGES_MAX));
    }
    let gates = Gate::all(sizes, buffers)?;
    let mut free = [0.0_f64; STAGES_MAX];
    let mut asking = Vec::new();
    let mut stages: Vec<Progress<'_>> = sizes.iter().map(|list| Progress::new(list)).collect();
    loop {
        let starts = (0..path.len()).filter_map(|stage| {
            let ready = ready(path, &stages, stage, depth, (&asking, &gates))?;
            Some((ready.max(free[servers.first(stage)]), ready, stage))
        });
        let next = starts.min_by(|a: &(f64, f64, usize), b| {
            a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)).then(b.2.cmp(&a.2))
        });
        let Some((start, _, stage)) = next else { break };
        let server = servers.first(stage);
        free[server] = match servers.works_in_turns(stage) {
            false => {
                let end = start + stages[stage].take(&path[stage], start, false);
                stages[stage].let_go(&path[stage], end);
                end
            }
            true => turn(path, &mut stages, start, (depth, &asking, &gates), servers, server),
        };
        if servers.asking(path.len()) == Some(server) {
            asking.push((start, free[server]));
        }
    }
    Ok(stages.last().and_then(|stage| stage.taken.last()).map_or(0.0, |it| it.departs))
}

/// When the next fragment of a stage could start if its server were free; `None` if there is none,
/// or if that is not known yet. `asking`: begin and end of the turns between which the first stage
/// gets more. `gates`: what those wait for that rooms hold back.
fn ready<C: StageCost>(
    path: &[C],
    stages: &[Progress<'_>],
    stage: usize,
    depth: Option<NonZeroU32>,
    (asking, gates): (&[(f64, f64)], &[Gate]),
) -> Option<f64> {
    let before = stage.checked_sub(1).map(|before| &stages[before]);
    let mut ready = stages[stage].ready(&path[stage], before)?;
    for Gate { last, back, waits, .. } in gates.iter().filter(|gate| gate.first == stage) {
        if let Some(leaver) = waits[stages[stage].taken.len()] {
            ready = ready.max(stages[*last].taken.get(leaver)?.departs + back);
        }
    }
    let first = &stages[0].taken;
    let slot = depth
        .filter(|_| stage == 0)
        .and_then(|depth| first.iter().nth_back(depth.get() as usize - 1));
    let Some(slot) = slot else { return Some(ready) };
    let turns = asking.partition_point(|&(began, _)| began < slot.departs);
    let turn_ends = turns.checked_sub(1).map_or(0.0, |turn| asking[turn].1);
    Some(ready.max(slot.departs).max(turn_ends))
}

/// Serves all that is ready for a server in turns at the start of a turn; returns when it ends.
fn turn<C: StageCost>(
    path: &[C],
    stages: &mut [Progress<'_>],
    start: f64,
    (depth, asking, gates): (Option<NonZeroU32>, &[(f64, f64)], &[Gate]),
    servers: &Servers,
    server: usize,
) -> f64 {
    let mut taken: Vec<usize> = Vec::new();
    let mut end = start;
    for stage in (0..stages.len()).filter(|&stage| servers.first(stage) == server) {
        let is_ready = |stages: &[Progress<'_>]| {
            ready(path, stages, stage, depth, (asking, gates)).is_some_and(|ready| ready <= start)
        };
        while is_ready(stages) {
            let is_next_own = stage + 1 < path.len() && servers.first(stage + 1) == server;
            end += stages[stage].take(&path[stage], start, is_next_own);
            taken.push(stage);
        }
    }
    for stage in taken {
        stages[stage].let_go(&path[stage], end);
    }
    end
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
    views(path.len(), plan, |sizes| lists_on(path, sizes, Some(plan.depth), buffers, servers))
}

/// [`super::lists`] on a path with these buffers and servers.
///
/// # Errors
/// As [`super::within()`].
pub fn lists_on<C: StageCost>(
    path: &[C],
    sizes: &[&[u64]],
    depth: Option<NonZeroU32>,
    buffers: &Buffers,
    servers: &Servers,
) -> Result<f64, EvaluateFault> {
    match (servers.is_shared(path.len()), buffers.limited()) {
        (false, false) => return lists(path, sizes, depth),
        (false, true) => return within(path, sizes, depth, buffers),
        (true, _) if !buffers.limits_boundaries() => {
            return served_within(path, sizes, depth, servers, buffers);
        }
        (true, _) => {}
    }
    check(path.len(), sizes)?;
    // Whether they fit does not depend on servers.
    check_room(sizes, buffers)?;
    let run = simulate::run_on(path, sizes, depth, buffers, servers);
    run.map(|run| run.seconds).map_err(|_| EvaluateFault::Stages(path.len(), sizes.len()))
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

/// A fragment that was taken into service.
struct Taken {
    /// Where it ends in the transfer.
    end: u128,
    started: f64,
    /// When the next stage may have it, and when it departs.
    there: f64,
    departs: f64,
}

/// How far one stage is.
struct Progress<'a> {
    sizes: &'a [u64],
    taken: Vec<Taken>,
    /// How many of them have left the server.
    left: usize,
}

impl<'a> Progress<'a> {
    fn new(sizes: &'a [u64]) -> Self {
        Self { sizes, taken: Vec::with_capacity(sizes.len()), left: 0 }
    }

    /// When the next fragment could start by what the stage and the one before say.
    fn ready<C: StageCost>(&self, cost: &C, before: Option<&Self>) -> Option<f64> {
        let number = self.taken.len();
        let size = *self.sizes.get(number)?;
        let end = self.end() + u128::from(size);
        let arrival = match before {
            None => 0.0,
            Some(before) => {
                let place = before.taken.partition_point(|it| it.end < end);
                before.taken.get(place)?.there
            }
        };
        let window = cost.stage_at(size as f64).window;
        let slot = window.and_then(|window| number.checked_sub(window.get() as usize));
        let slot = slot.map_or(0.0, |before| self.taken[before].departs);
        let started = self.taken.last().map_or(0.0, |it| it.started);
        Some(arrival.max(slot).max(started))
    }

    fn end(&self) -> u128 {
        self.taken.last().map_or(0, |it| it.end)
    }

    /// Takes the next fragment into service; returns how long that occupies the server. When the
    /// fragment departs is not known yet. `hands_on`: the server may go on with it at once.
    fn take<C: StageCost>(&mut self, cost: &C, start: f64, hands_on: bool) -> f64 {
        let size = self.sizes[self.taken.len()];
        let stage = cost.stage_at(size as f64);
        let there = if hands_on && stage.latency == 0.0 { start } else { f64::INFINITY };
        let end = self.end() + u128::from(size);
        self.taken.push(Taken { end, started: start, there, departs: f64::INFINITY });
        stage.occupancy(size as f64)
    }

    /// The server is done with the first fragment that it has.
    fn let_go<C: StageCost>(&mut self, cost: &C, at: f64) {
        let departs = at + cost.stage_at(self.sizes[self.left] as f64).latency;
        let taken = &mut self.taken[self.left];
        (taken.there, taken.departs) = (taken.there.min(departs), departs);
        self.left += 1;
    }
}
