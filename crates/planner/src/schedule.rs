//! The schedule that a plan predicts: when each fragment is in each stage, by the costs that the
//! plan was made from.

use std::num::NonZeroU32;

use piped_core::sizes::Sizes;
use piped_model::simulate;
use piped_model::stage::{Buffers, StageCost};
use piped_report::shard::Passing;
use piped_report::trace::LevelSizes;

use super::planned::{CUT_BYTES, Planned, level_end};
use super::stage::StageIndex;

/// The level whose fragment sizes a stage moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Stages where bytes are read from a device.
    Source,
    /// Stages between the devices, or on the way to the other node.
    Lane,
    /// Stages where bytes are written to a device.
    Sink,
}

impl Level {
    /// The level's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Lane => "lane",
            Self::Sink => "sink",
        }
    }

    /// Levels of a path's stages, from which of them are devices. Devices before all other stages
    /// are read.
    pub fn of(devices: &[bool]) -> Vec<Self> {
        let first_other = devices.iter().position(|device| !device).unwrap_or(devices.len());
        let level = |(place, &device): (usize, &bool)| match device {
            true if place < first_other => Self::Source,
            true => Self::Sink,
            false => Self::Lane,
        };
        devices.iter().enumerate().map(level).collect()
    }
}

/// The stages of a transfer in reports: the plan's path in its order, then other stages that were
/// passed.
#[derive(Debug)]
pub struct Rows {
    /// Names of all rows, in order.
    pub names: Vec<String>,
    /// Levels of the plan's stages, which are the first rows.
    pub levels: Vec<Level>,
    stages: Vec<StageIndex>,
}

impl Rows {
    /// The rows of a plan and of the stages that were passed. `name`: gives a stage's name, and
    /// whether it is a device.
    pub fn new<'a>(
        plan: Option<&Planned>,
        seen: impl Iterator<Item = StageIndex>,
        name: impl Fn(StageIndex) -> (&'a str, bool),
    ) -> Self {
        let mut stages: Vec<StageIndex> = Vec::new();
        let (mut names, mut devices) = (Vec::new(), Vec::new());
        for (stage, _) in plan.into_iter().flat_map(|plan| plan.path.iter()) {
            let (name, device) = name(stage);
            // The other side's, taken to cost what ours does.
            let again = stages.contains(&stage);
            names.push(if again { format!("{name} (peer)") } else { name.to_owned() });
            devices.push(device);
            stages.push(stage);
        }
        for stage in seen {
            if !stages.contains(&stage) {
                stages.push(stage);
                names.push(name(stage).0.to_owned());
            }
        }
        Self { names, levels: Level::of(&devices), stages }
    }

    /// A stage's index among the rows.
    pub fn of(&self, stage: StageIndex) -> usize {
        self.stages.iter().position(|&row| row == stage).unwrap_or(0)
    }
}

/// Most sizes that a report lists for a level; the number of fragments is reported besides.
const SIZES_TOLD: usize = 64;

/// The sizes of the levels that a request passes.
pub fn levels(plan: &Planned, levels: &[Level], range: (u64, u64)) -> Vec<LevelSizes> {
    let all = [Level::Source, Level::Lane, Level::Sink];
    let passed = all.into_iter().filter(|level| levels.contains(level));
    let told = passed.map(|level| {
        let sizes = sizes(plan, level);
        let (level, count) = (level.name().to_owned(), count(sizes, range));
        LevelSizes { level, sizes: cut(sizes, range).take(SIZES_TOLD).collect(), count }
    });
    told.collect()
}

/// A fragment in a stage as predicted; times are in seconds from the transfer's start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Promised {
    /// The stage's index in the path.
    pub stage: usize,
    /// Where the fragment begins, in bytes from the transfer's start.
    pub offset: u64,
    /// Length of the fragment in bytes.
    pub bytes: u64,
    /// When the fragment reaches the stage.
    pub arrived: f64,
    /// When the fragment leaves the stage.
    pub departed: f64,
}

fn sizes(plan: &Planned, level: Level) -> &Sizes {
    match level {
        Level::Source => &plan.cut.source,
        Level::Lane => &plan.cut.lane,
        Level::Sink => &plan.cut.sink,
    }
}

/// Sizes of the fragments of a request, which is given as offset and length.
fn cut(sizes: &Sizes, (offset, bytes): (u64, u64)) -> impl Iterator<Item = u64> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let end = level_end(sizes, offset, start, bytes);
        let size = end.checked_sub(start).filter(|&size| size > 0)?;
        start = end;
        Some(size)
    })
}

/// Number of fragments of a request, which is given as offset and length.
fn count(sizes: &Sizes, (offset, bytes): (u64, u64)) -> u64 {
    if bytes <= CUT_BYTES {
        return 1;
    }
    let skip = offset % CUT_BYTES;
    sizes.count(skip + bytes) + 1 - sizes.count(skip + 1)
}

/// The schedule of a request; `None` if it has more than `most` visits, or if nothing is known of
/// its stages. `owed`: credit that its peer owes, in bytes.
pub fn schedule(
    plan: &Planned,
    levels: &[Level],
    range: (u64, u64),
    owed: u64,
    most: usize,
) -> Option<Vec<Promised>> {
    let count = |&level: &Level| count(sizes(plan, level), range);
    let fits = levels.iter().map(count).sum::<u64>() <= most as u64;
    if !fits || levels.is_empty() || range.1 == 0 {
        return None;
    }
    let lists: Vec<Vec<u64>> =
        levels.iter().map(|&level| cut(sizes(plan, level), range).collect()).collect();
    plan.path.with(|costs| {
        if costs.len() != lists.len() {
            return None;
        }
        match plan.store_first {
            true => Some(one_by_one(costs, &lists)),
            false => {
                flowing(costs, &lists, NonZeroU32::new(plan.cut.depth), &plan.path.owing(owed))
            }
        }
    })
}

/// Sums of a schedule for one stage, as a transfer keeps them of its measurements.
pub fn passing(promised: &[Promised], stage: usize) -> Option<Passing> {
    let (mut fragments, mut busy, mut last) = (0, 0.0, 0.0_f64);
    for it in promised.iter().filter(|it| it.stage == stage) {
        fragments += 1;
        busy += (it.departed - it.arrived.max(last)).max(0.0);
        last = last.max(it.departed);
    }
    (fragments > 0).then_some(Passing { fragments, busy_seconds: busy, last_seconds: last })
}

/// The schedule where each stage has the whole request to itself.
fn one_by_one<C: StageCost>(path: &[C], lists: &[Vec<u64>]) -> Vec<Promised> {
    let mut promised = Vec::new();
    let mut before = 0.0;
    for (stage, (cost, sizes)) in path.iter().zip(lists).enumerate() {
        let run = simulate::run(&[cost], &[sizes], None, &Buffers::UNLIMITED);
        let mut offset = 0;
        let arrived = before;
        for visit in run.into_iter().flat_map(|trace| trace.visits) {
            before = arrived + visit.departed;
            let bytes = visit.bytes;
            promised.push(Promised { stage, offset, bytes, arrived, departed: before });
            offset += bytes;
        }
    }
    promised
}

fn flowing<C: StageCost>(
    path: &[C],
    lists: &[Vec<u64>],
    depth: Option<NonZeroU32>,
    buffers: &Buffers,
) -> Option<Vec<Promised>> {
    let views: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    let run = simulate::run(path, &views, depth, buffers).ok()?;
    // Departures by stage and fragment, as (end in bytes, time).
    let mut departures: Vec<Vec<(u64, f64)>> =
        lists.iter().map(|sizes| Vec::with_capacity(sizes.len())).collect();
    for visit in &run.visits {
        // In the order of the fragments: a stage serves one after the other.
        let end = departures[visit.stage].last().map_or(0, |&(end, _)| end) + visit.bytes;
        departures[visit.stage].push((end, visit.departed));
    }
    let promised = departures.iter().enumerate().flat_map(|(stage, fragments)| {
        let departures = &departures;
        fragments.iter().enumerate().map(move |(index, &(end, departed))| {
            let offset = index.checked_sub(1).map_or(0, |before| fragments[before].0);
            let arrived = match stage.checked_sub(1) {
                // It comes when one of those before it has gone.
                None => depth
                    .and_then(|depth| index.checked_sub(depth.get() as usize))
                    .map_or(0.0, |before| fragments[before].1),
                Some(before) => {
                    let all = &departures[before];
                    let its = all.partition_point(|&(there, _)| there < end);
                    all.get(its).map_or(0.0, |&(_, left)| left)
                }
            };
            Promised { stage, offset, bytes: end - offset, arrived, departed }
        })
    });
    Some(promised.collect())
}

#[cfg(test)]
mod tests {
    use piped_model::stage::Stage;

    use super::*;

    const STEP: Stage = Stage { latency: 1.0, overhead: 2.0, per_byte: 1.0, window: None };

    #[test]
    fn a_fragment_arrives_with_its_last_byte() {
        let lists = [vec![2, 2, 2], vec![3, 3]];
        let two = NonZeroU32::new(2);
        let all = flowing(&[STEP; 2], &lists, two, &Buffers::UNLIMITED).expect("it moves");
        let of = |stage: usize| -> Vec<(u64, f64, f64)> {
            let its = all.iter().filter(|it| it.stage == stage);
            its.map(|it| (it.offset, it.arrived, it.departed)).collect()
        };
        // One every 4; the third comes when the first has gone.
        assert_eq!(of(0), [(0, 0.0, 5.0), (2, 0.0, 9.0), (4, 5.0, 13.0)]);
        assert_eq!(of(1), [(0, 9.0, 15.0), (3, 13.0, 20.0)]);
        let sums = [0, 1].map(|stage| passing(&all, stage).expect("it has fragments"));
        let sums = sums.map(|it| (it.fragments, it.busy_seconds, it.last_seconds));
        assert_eq!(sums, [(3, 13.0, 13.0), (2, 11.0, 20.0)]);
        assert_eq!(passing(&all, 2), None);
    }

    #[test]
    fn stored_first_a_stage_begins_when_the_one_before_has_all() {
        let all = one_by_one(&[STEP; 2], &[vec![3, 3], vec![6]]);
        let times: Vec<_> = all.iter().map(|it| (it.stage, it.arrived, it.departed)).collect();
        assert_eq!(times, [(0, 0.0, 6.0), (0, 0.0, 11.0), (1, 11.0, 20.0)]);
    }

    #[test]
    fn as_many_fragments_are_told_as_there_are() {
        let all = [Sizes::equal(4096), Sizes::equal(65_536), Sizes::equal(1 << 20)];
        for sizes in all {
            for offset in [0, 1, 904, 4095, 4096, 5000, 1 << 30] {
                for bytes in [1, 4096, 4097, 65_536, 131_072, 1_000_000] {
                    let told = cut(&sizes, (offset, bytes)).count() as u64;
                    assert_eq!(count(&sizes, (offset, bytes)), told, "{bytes} at {offset}");
                }
            }
        }
    }

    #[test]
    fn devices_before_the_lane_are_read_and_others_written() {
        use Level::{Lane, Sink, Source};
        assert_eq!(Level::of(&[true, false, false]), [Source, Lane, Lane]);
        assert_eq!(Level::of(&[false, true]), [Lane, Sink]);
        assert_eq!(Level::of(&[true]), [Source]);
    }
}
