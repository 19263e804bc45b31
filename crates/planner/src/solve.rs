//! Plans whose levels differ, solved where no request waits for them.
//!
//! Whole, fixed and serial sizes are solved when a request wants them, in microseconds. Separate
//! sizes for each level take up to a millisecond, in which a shard would do nothing else. So the
//! shard puts a question and continues with the plan it has. Its driver calls [`solve`], a pure
//! function, and brings back the answer. A daemon has a thread for that; a simulated world answers
//! at once. An answer without a question is ignored.

use std::num::NonZeroU32;

use piped_core::limits::{DEPTH_MAX, FRAGMENT_BYTES_MAX};
use piped_core::sizes::{SIZES_MAX, Sizes, UNIT_BYTES};
use piped_model::estimate::Estimate;
use piped_model::evaluate;
use piped_model::leveled::{self, Level, Task, told};
use piped_model::plan::{Algorithm, Plan};
use piped_model::servers::Servers;
use piped_model::stage::Buffers;

use crate::costs::PathCosts;

/// The most plans of an answer.
pub const SOLVED_MAX: usize = 4;

/// Disk fragments are multiples of this many bytes, and no shorter: every device's alignment
/// divides it.
const DISK_BYTES: u64 = 4096;

/// The most frames that a transfer is cut into, because costs that the model does not know occur
/// for each.
const FRAMES_MAX: u64 = 256;

/// Fewest fragments under way in plans that do not ask for them one by one: they keep a device
/// busy.
pub(crate) const DEPTH_LEAST: u32 = 8;

/// Plans slower than the best one by more than this factor are left out of an answer.
const WORTH: f64 = 1.1;

/// Which stages of a path make its levels: numbers of stages where bytes are read, between the
/// devices, and where bytes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Runs {
    pub(crate) source: usize,
    pub(crate) lane: usize,
    pub(crate) sink: usize,
}

impl Runs {
    /// The levels of stages in order, from whether each is at a device.
    pub(crate) fn of(at_device: &[bool]) -> Self {
        let source = at_device.iter().take_while(|&&at| at).count();
        let sink = at_device[source..].iter().rev().take_while(|&&at| at).count();
        Self { source, lane: at_device.len() - source - sink, sink }
    }

    /// The level of a stage: 0, 1, 2 for source, lane and sink.
    pub(crate) fn level(&self, stage: usize) -> usize {
        usize::from(stage >= self.source) + usize::from(stage >= self.source + self.lane)
    }
}

/// A question: how should so many bytes pass these stages?
#[derive(Debug, Clone)]
pub struct PlanRequest {
    pub(crate) ticket: u64,
    pub(crate) costs: Vec<Estimate>,
    pub(crate) servers: Servers,
    pub(crate) buffers: Buffers,
    pub(crate) runs: Runs,
    pub(crate) bytes: u64,
    /// Whether the first stage is a device that may want one fragment at a time.
    pub(crate) serial: bool,
}

/// The answer to a [`PlanRequest`], known by its ticket.
#[derive(Debug, Clone)]
pub struct PlanAnswer {
    pub(crate) ticket: u64,
    /// Plans, the best first; `None` if the question was declined.
    pub(crate) solved: Option<Vec<Solved>>,
}

/// One plan of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Solved {
    pub(crate) algorithm: Algorithm,
    pub(crate) source: Sizes,
    pub(crate) lane: Sizes,
    pub(crate) sink: Sizes,
    pub(crate) depth: u32,
    pub(crate) predicted_seconds: f64,
    pub(crate) margin_seconds: f64,
}

impl PlanRequest {
    /// `serial`: whether the first stage is a device that may want one fragment at a time.
    pub(crate) fn new(
        ticket: u64,
        costs: &PathCosts,
        runs: Runs,
        bytes: u64,
        serial: bool,
    ) -> Self {
        let (servers, buffers) = (costs.servers(), *costs.buffers());
        let costs = costs.iter().map(|(_, cost)| *cost).collect();
        Self { ticket, costs, servers, buffers, runs, bytes, serial }
    }

    /// The answer of a driver that has no time: no plan.
    #[must_use]
    pub fn declined(&self) -> PlanAnswer {
        PlanAnswer { ticket: self.ticket, solved: None }
    }
}

// Questions are told apart by their tickets; costs are numbers that need not equal themselves.
impl PartialEq for PlanRequest {
    fn eq(&self, other: &Self) -> bool {
        (self.ticket, self.bytes) == (other.ticket, other.bytes)
    }
}

impl Eq for PlanRequest {}

impl PartialEq for PlanAnswer {
    fn eq(&self, other: &Self) -> bool {
        self.ticket == other.ticket
    }
}

impl Eq for PlanAnswer {}

/// Answers a question. A pure function that takes up to a millisecond, and up to a hundred where
/// stages share a server.
#[must_use]
pub fn solve(request: &PlanRequest) -> PlanAnswer {
    let Runs { source, lane, sink } = request.runs;
    let disk = |stages| Level {
        smallest: DISK_BYTES,
        largest: FRAGMENT_BYTES_MAX.into(),
        alignment: DISK_BYTES,
        explicit_max: SIZES_MAX,
        stages,
    };
    let frames = Level {
        smallest: request.bytes.div_ceil(FRAMES_MAX).max(UNIT_BYTES),
        alignment: UNIT_BYTES,
        ..disk(source..source + lane)
    };
    let all = [disk(0..source), frames, disk(source + lane..source + lane + sink)];
    let levels: Vec<Level> = all.iter().filter(|level| !level.stages.is_empty()).cloned().collect();
    let depths = [(DEPTH_MAX, true), (1, request.serial)];
    let mut solved: Vec<Solved> = Vec::with_capacity(SOLVED_MAX);
    for (depth_max, _) in depths.into_iter().filter(|&(_, wanted)| wanted) {
        let (path, servers, buffers) = (&request.costs[..], request.servers, request.buffers);
        let task = Task::new(path, request.bytes, &levels, depth_max);
        let task = Task { servers, buffers, ..task };
        let plans = leveled::candidates(&task);
        let best = plans.first().map_or(0.0, |plan| plan.predicted_seconds);
        let near = plans.iter().filter(|plan| plan.predicted_seconds <= best * WORTH);
        // Where stages share a server, the best of one size is on no curve, and is found here.
        let is_shared = servers.is_shared(path.len());
        let nested = near.filter(|plan| is_nested(plan) || is_shared && is_fixed(plan));
        let nested = nested.filter_map(|plan| executable(plan, &all, &task));
        let room = SOLVED_MAX / if request.serial { 2 } else { 1 };
        for (_, found) in (0..room).zip(nested) {
            if !solved.iter().any(|known| same_cut(known, &found)) {
                solved.push(found);
            }
        }
    }
    solved.sort_by(|a, b| a.predicted_seconds.total_cmp(&b.predicted_seconds));
    PlanAnswer { ticket: request.ticket, solved: Some(solved) }
}

/// Whether the plan has separate sizes for each level. All other plans were made when the request
/// came.
fn is_nested(plan: &Plan) -> bool {
    !matches!(
        plan.algorithm,
        Algorithm::Whole | Algorithm::Static(_) | Algorithm::Fixed | Algorithm::Serial
    )
}

fn is_fixed(plan: &Plan) -> bool {
    plan.algorithm == Algorithm::Fixed
}

fn same_cut(a: &Solved, b: &Solved) -> bool {
    (a.source, a.lane, a.sink, a.depth) == (b.source, b.lane, b.sink, b.depth)
}

/// The plan as the engine executes it. A level that the path does not have gets the sizes of its
/// neighbour.
fn executable(plan: &Plan, all: &[Level; 3], task: &Task<'_, Estimate>) -> Option<Solved> {
    let Task { path, depth_max, ref servers, ref buffers, .. } = *task;
    let sizes = |level: &Level| {
        let found = plan.levels.iter().find(|found| found.stages == level.stages)?;
        Sizes::list(told(&found.sizes))
    };
    let [source, lane, sink] = all.each_ref().map(sizes);
    let lane = lane.or(source).or(sink)?;
    let depth = plan.depth.get().max(DEPTH_LEAST).min(depth_max);
    let mut predicted_seconds = plan.predicted_seconds;
    if servers.is_shared(path.len())
        && let Some(depth) = NonZeroU32::new(depth).filter(|&depth| depth != plan.depth)
    {
        // More under way may be slower where stages share a server.
        let plan = Plan { depth, ..plan.clone() };
        let walked = evaluate::plan_on(path, &plan, buffers, servers);
        predicted_seconds = walked.unwrap_or(predicted_seconds);
    }
    Some(Solved {
        algorithm: plan.algorithm,
        source: source.unwrap_or(lane),
        lane,
        sink: sink.unwrap_or(lane),
        depth,
        predicted_seconds,
        margin_seconds: plan.margin_seconds,
    })
}
