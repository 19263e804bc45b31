//! Plans whose sizes change only where the executing program can cut anew.
//!
//! The planners of `piped_theory::best` may cut at every boundary between two stages. A program
//! cannot. It reads bytes from a device in one list of sizes, sends them in frames of another, and
//! writes them in a third. All stages in between see what the program made. So the stages of a path
//! come in *levels*, runs of stages that move the same fragments. Each level has rules of its own
//! for what it may cut.
//!
//! What is asked, in order:
//!
//! | candidate | sizes |
//! | --- | --- |
//! | whole, fixed, serial | the same in all levels |
//! | ramp-up, ramp-up-down | the same in all levels, for the slowest stage and those around it |
//! | hierarchical-fixed, hierarchical-ramp | large in one level, cut into equal ones beside it |
//! | release-curve | one small size beside the slow level, grouped optimally (`grouping`) |
//! | searched | the best of all plans on a grid of ten units (`grid`) |
//! | searched | the best of these, its cuts moved together (linear program, then grid steps) |
//! | searched | where stages share a server: the best, its cuts changed one by one (`climb`) |
//!
//! Costs may bend with the size. The search sees each stage as the line that holds at the sizes in
//! use; its results are evaluated with the costs as they are, windows and depth included. So the
//! list is never worse than its first three.

mod climb;
mod grid;
mod lines;
mod nest;
mod shape;

use core::cell::Cell;
use core::num::NonZeroU32;
use core::ops::Range;

use crate::evaluate;
use crate::fixed::{self, Constraints};
use crate::plan::{self, Algorithm, Levels, Plan, Sizes};
use crate::serial;
use crate::servers::Servers;
use crate::stage::{Buffers, STAGES_MAX, Stage, StageCost};
use shape::Shape;

/// What one level may cut. Some size has to be allowed by all levels of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// The stages of the level, by index.
    pub stages: Range<usize>,
    /// The smallest fragment but for the last, in bytes; 0 is 1.
    pub smallest: u64,
    /// The largest fragment, in bytes; not below the alignment.
    pub largest: u64,
    /// Sizes but for the last are multiples of this, in bytes; 0 is 1.
    pub alignment: u64,
    /// The most sizes that can be told; the last one told repeats. At least 1.
    pub explicit_max: usize,
}

impl Level {
    /// A level that may cut anywhere and tell 32 sizes.
    #[must_use]
    pub const fn free(stages: Range<usize>) -> Self {
        Self { stages, smallest: 1, largest: u64::MAX, alignment: 1, explicit_max: 32 }
    }

    fn constraints(&self) -> Constraints {
        let Self { smallest, largest, alignment, .. } = *self;
        Constraints { smallest, largest, alignment, ..Constraints::default() }
    }
}

/// What is to be planned.
#[derive(Debug, Clone, Copy)]
pub struct Task<'a, C> {
    /// The stages, in order.
    pub path: &'a [C],
    /// The transfer, in bytes.
    pub bytes: u64,
    /// One to three runs of stages that cover the path in order.
    pub levels: &'a [Level],
    /// The most fragments outstanding at the first stage; 0 is 1.
    pub depth_max: u32,
    /// Which stages have one server together. Cuts are moved as if each had its own, judged with
    /// these, and then moved step by step with these.
    pub servers: Servers,
    /// The room that fragments wait for. As with servers, plans are judged with it.
    pub buffers: Buffers,
}

impl<'a, C> Task<'a, C> {
    /// A task for stages that have servers of their own, and room for everything.
    #[must_use]
    pub const fn new(path: &'a [C], bytes: u64, levels: &'a [Level], depth_max: u32) -> Self {
        let (servers, buffers) = (Servers::APART, Buffers::UNLIMITED);
        Self { path, bytes, levels, depth_max, servers, buffers }
    }
}

/// The most levels: where bytes are read, sent, and written.
pub const LEVELS_MAX: usize = 3;

/// The most fragments of a level with sizes that differ.
const FRAGMENTS_MAX: u64 = 512;

/// Numbers of fragments that are asked for one by one.
const SERIAL_COUNTS: [u64; 3] = [2, 3, 4];

/// The candidates, the one of the least predicted latency first. Empty if the levels do not cover
/// the path.
///
/// ```
/// use piped_model::leveled::{self, Level, Task};
/// use piped_model::reference::{PACKET_BYTES, network_disk};
/// let path = network_disk();
/// let levels = [Level::free(0..4), Level::free(4..5)];
/// let plans = leveled::candidates(&Task::new(&path[..], PACKET_BYTES, &levels, 32));
/// let fixed = plans.iter().find(|plan| plan.algorithm.to_string() == "fixed").unwrap();
/// assert!(plans[0].predicted_seconds < 0.76 * fixed.predicted_seconds);
/// ```
#[must_use]
pub fn candidates<C: StageCost>(task: &Task<'_, C>) -> Vec<Plan> {
    if !task.is_whole() {
        return Vec::new();
    }
    let mut plans = task.of_one_size();
    // Where a transfer takes very many fragments its first and last hardly count.
    let fewest = |level: &Level| task.bytes.div_ceil(level.constraints().fit(u64::MAX));
    if task.bytes >= 2 && task.levels.iter().all(|level| fewest(level) <= FRAGMENTS_MAX / 2) {
        let typical =
            plans.iter().min_by(|a, b| a.predicted_seconds.total_cmp(&b.predicted_seconds));
        let known = typical.map_or(f64::INFINITY, |plan| plan.predicted_seconds);
        let typical = typical.map_or(task.bytes, Plan::fragment_bytes).min(task.bytes);
        // Overheads of 0 make ever more fragments pay, and a list has an end.
        let typical = typical.max(task.bytes.div_ceil(FRAGMENTS_MAX));
        let shapes = nest::shapes(task, typical as f64, known);
        plans.extend(
            shapes.into_iter().filter_map(|(algorithm, shape)| task.plan(algorithm, &shape)),
        );
    }
    plans.sort_by(|a, b| a.predicted_seconds.total_cmp(&b.predicted_seconds));
    if task.servers.is_shared(task.path.len())
        && let Some(shape) = plans.iter().find_map(|plan| task.shape(plan))
        && let Some(better) = climb::climb(task, shape)
        && let Some(plan) = task.plan(Algorithm::Searched, &better)
    {
        let place = plans.partition_point(|other| other.predicted_seconds < plan.predicted_seconds);
        plans.insert(place, plan);
    }
    plans
}

/// The sizes to be told for a level: the last one repeats, and the last fragment of a transfer is
/// what is left.
///
/// ```
/// use piped_model::{leveled::told, plan::Sizes};
/// assert_eq!(told(&Sizes::list(&[1, 2, 4, 4, 4, 3])?), [1, 2, 4]);
/// assert_eq!(told(&Sizes::list(&[1, 2, 4, 4, 5])?), [1, 2, 4, 4, 5]);
/// assert_eq!(told(&Sizes::Uniform { fragment_bytes: 7, total_bytes: 30 }), [7]);
/// # Ok::<(), piped_model::plan::PlanFault>(())
/// ```
#[must_use]
pub fn told(sizes: &Sizes) -> Vec<u64> {
    if let Sizes::Uniform { fragment_bytes, .. } = sizes {
        return vec![*fragment_bytes];
    }
    let mut list: Vec<u64> = sizes.iter().map(|fragment| fragment.length).collect();
    list.truncate(shape::told_count(&list));
    list
}

impl<C: StageCost> Task<'_, C> {
    fn is_whole(&self) -> bool {
        let mut next = 0;
        let in_order = self.levels.iter().all(|level| {
            let fits = level.stages.start == next && !level.stages.is_empty();
            next = level.stages.end;
            fits && level.explicit_max > 0
        });
        in_order
            && (1..=LEVELS_MAX).contains(&self.levels.len())
            && next == self.path.len()
            && next <= STAGES_MAX
    }

    /// What all levels may do.
    fn common(&self) -> Constraints {
        let Self { depth_max, servers, buffers, .. } = *self;
        let mut common = Constraints { depth_max, servers, buffers, ..Constraints::default() };
        for level in self.levels {
            common.smallest = common.smallest.max(level.smallest);
            common.largest = common.largest.min(level.largest);
            common.alignment = shape::multiple(common.alignment, level.alignment);
        }
        common
    }

    /// Plans with equal sizes everywhere.
    fn of_one_size(&self) -> Vec<Plan> {
        let Self { path, bytes, .. } = *self;
        let common = self.common();
        let mut list = vec![fixed::whole(path, bytes, &common), fixed::best(path, bytes, &common)];
        let serials = SERIAL_COUNTS.iter().filter(|&&count| bytes >= count * common.fit(1));
        list.extend(serials.map(|&count| serial::best(path, bytes, count, &common)));
        list.retain(|plan| plan.predicted_seconds.is_finite());
        let plans =
            list.into_iter().filter_map(|found| self.in_levels(found.plan(path.len(), bytes)));
        plans.collect()
    }

    /// A plan of one level as one of these levels.
    fn in_levels(&self, plan: Plan) -> Option<Plan> {
        let sizes = &plan.levels.first()?.sizes;
        let told = told(sizes).len();
        if self.levels.iter().any(|level| told > level.explicit_max) {
            return None;
        }
        let level =
            |level: &Level| plan::Level { stages: level.stages.clone(), sizes: sizes.clone() };
        let levels: Vec<plan::Level> = self.levels.iter().map(level).collect();
        Some(Plan { levels: Levels::new(&levels).ok()?, ..plan })
    }

    /// The sizes of a plan for these levels, if they are few enough to be changed one by one.
    fn shape(&self, plan: &Plan) -> Option<Shape> {
        let few = plan.levels.iter().all(|level| level.sizes.count() <= FRAGMENTS_MAX);
        let list = |level: &plan::Level| level.sizes.iter().map(|it| it.length).collect();
        (few && self.bytes > 1).then(|| Shape { lists: plan.levels.iter().map(list).collect() })
    }

    /// A shape with its exact latency, and no more depth than it needs.
    fn plan(&self, algorithm: Algorithm, shape: &Shape) -> Option<Plan> {
        let most = NonZeroU32::new(self.depth_max.max(1).min(shape.lists[0].len() as u32))?;
        let best = self.seconds(shape, most)?;
        let mut depth = self.depth_wanted(shape, best).min(most);
        let mut seconds = self.seconds(shape, depth)?;
        if seconds > best * (1.0 + 1e-3) {
            (depth, seconds) = (most, best);
        }
        let lists = shape.lists.iter().zip(self.levels);
        let levels: Option<Vec<plan::Level>> = lists
            .map(|(list, level)| {
                let sizes = shape::sizes(list)?;
                Some(plan::Level { stages: level.stages.clone(), sizes })
            })
            .collect();
        Some(Plan {
            levels: Levels::new(&levels?).ok()?,
            depth,
            algorithm,
            predicted_seconds: seconds,
            margin_seconds: self.margin(shape),
        })
    }

    /// The number of fragments that leave the first stage while one passes, at the transfer's pace.
    fn depth_wanted(&self, shape: &Shape, seconds: f64) -> NonZeroU32 {
        let list = &shape.lists[0];
        let size = list.iter().copied().max().unwrap_or(1) as f64;
        let stage = self.path[0].stage_at(size);
        if stage.latency == 0.0 {
            return NonZeroU32::MIN;
        }
        let pace = (seconds / list.len() as f64).max(stage.occupancy(size));
        let wanted = if pace > 0.0 { (stage.alone(size) / pace).ceil() + 1.0 } else { f64::MAX };
        NonZeroU32::new(wanted as u32).unwrap_or(NonZeroU32::MIN)
    }

    /// The exact latency of a shape.
    fn seconds(&self, shape: &Shape, depth: NonZeroU32) -> Option<f64> {
        let path: Vec<Memo<'_, C>> = self.path.iter().map(Memo::new).collect();
        let mut lists: Vec<&[u64]> = Vec::with_capacity(path.len());
        for (list, level) in shape.lists.iter().zip(self.levels) {
            lists.extend(level.stages.clone().map(|_| list.as_slice()));
        }
        let Self { servers, buffers, .. } = self;
        evaluate::lists_on(&path, &lists, Some(depth), buffers, servers).ok()
    }

    /// How far the costs' uncertainties move the latency: each stage's part of it times its
    /// relative error, added as independent errors are. The busiest stage's part is all its work,
    /// another's one fragment.
    fn margin(&self, shape: &Shape) -> f64 {
        let mut parts = [(0.0_f64, 0.0_f64, 0.0_f64); STAGES_MAX];
        for (list, level) in shape.lists.iter().zip(self.levels) {
            let mean = self.bytes as f64 / list.len() as f64;
            for index in level.stages.clone() {
                let cost = &self.path[index];
                let stage = cost.stage_at(mean);
                let busy = stage.occupancy(mean) * list.len() as f64;
                parts[index] = (busy + stage.latency, stage.alone(mean), cost.relative_error(mean));
            }
        }
        let busiest = parts.iter().map(|part| part.0).fold(0.0, f64::max);
        let square = |&(busy, alone, error): &(f64, f64, f64)| {
            (if busy >= busiest { busy } else { alone } * error).powi(2)
        };
        parts.iter().map(square).sum::<f64>().sqrt()
    }
}

/// A cost that remembers the size it was asked for last: most fragments are as long as the one
/// before.
struct Memo<'a, C> {
    cost: &'a C,
    last: Cell<(f64, Stage)>,
}

impl<'a, C: StageCost> Memo<'a, C> {
    fn new(cost: &'a C) -> Self {
        Self { cost, last: Cell::new((f64::NAN, Stage::FREE)) }
    }
}

impl<C: StageCost> StageCost for Memo<'_, C> {
    fn stage_at(&self, bytes: f64) -> Stage {
        let (size, stage) = self.last.get();
        if size == bytes {
            return stage;
        }
        let stage = self.cost.stage_at(bytes);
        self.last.set((bytes, stage));
        stage
    }
}
