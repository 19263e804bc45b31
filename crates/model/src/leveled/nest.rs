//! The search: shapes whose levels differ.
//!
//! One level is taken as *slow* and cut anew between the others, which have one small size each (or
//! two levels are, the first and the last, around a fast one in the middle). For that a slow level
//! of several stages is its slowest stage with the others' time as latency: what their sizes cost
//! there is small against it, and what comes out is evaluated as it is. Each stage is the line that
//! its cost is at a typical size.

use super::grid;
use super::lines::Lines;
use super::shape::{self, Shape};
use super::{FRAGMENTS_MAX, Level, Task};
use crate::fixed::Constraints;
use crate::hierarchical::{self, Real};
use crate::plan::Algorithm;
use crate::ramp;
use crate::rounding;
use crate::search::layout::{Layout, Times};
use crate::stage::{Stage, StageCost};
use core::num::NonZeroU32;

/// Numbers of sub-fragments tried.
const COUNTS: [u64; 13] = [2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 90, 128];

/// Some of them, that tell which levels are worth being tried as the slow ones.
const FEW: [u64; 4] = [4, 11, 32, 90];

/// Candidates are pursued if their results are not above the best one by more than this factor.
const PROMISING: f64 = 1.1;

/// Then the best is changed by these factors.
const NEARER: [f64; 6] = [0.71, 1.41, 0.84, 1.19, 0.92, 1.09];

/// Which levels are slow.
type Slow = &'static [usize];

/// Ways to take a path of so many levels.
const WAYS: [&[Slow]; 4] = [&[], &[], &[&[0], &[1]], &[&[1], &[0, 2]]];

/// The shapes that are worth an exact evaluation, with what chose them. `typical`: a good fragment
/// size if all had the same, in bytes; `known`: the latency that these have, in seconds.
pub(super) fn shapes<C: StageCost>(
    task: &Task<'_, C>,
    typical: f64,
    known: f64,
) -> Vec<(Algorithm, Shape)> {
    let mut found = Vec::new();
    found.extend(ramp(task, typical));
    let mut nest = Nest { task, typical, times: Times::new(task.path.len()), best: Vec::new() };
    nest.scan();
    for Found { shape, .. } in &nest.best {
        found.push((Algorithm::ReleaseCurve, shape.clone()));
    }
    if let Some(Found { slow, size, .. }) = nest.best.first() {
        found.extend(hierarchies(task, slow, *size, nest.typical));
    }
    let seconds = found.iter().filter_map(|(_, shape)| task.seconds(shape, NonZeroU32::MAX));
    let known = seconds.fold(known, f64::min);
    found.extend(grid::best(task, known).map(|shape| (Algorithm::Searched, shape)));
    let same = |factor: f64| {
        let unit = task.common().fit((typical * factor) as u64);
        let list = |level| shape::equal(level, task.bytes, unit);
        Shape { lists: task.levels.iter().map(list).collect() }
    };
    let mut starts: Vec<Shape> = found.iter().map(|(_, shape)| shape.clone()).collect();
    starts.extend([1.0, 0.7].map(same));
    found.extend(Lines::search(task, starts).map(|shape| (Algorithm::Searched, shape)));
    found
}

/// Sizes, equal in all levels, that change so that the slowest stage and the slowest ones before
/// and behind it do not wait for each other.
fn ramp<C: StageCost>(task: &Task<'_, C>, typical: f64) -> Option<(Algorithm, Shape)> {
    let lines = task.lines(|_| typical);
    let occupancy = |&stage: &usize| lines[stage].occupancy(typical);
    let slowest = (0..lines.len()).max_by(|a, b| occupancy(a).total_cmp(&occupancy(b)))?;
    let runs = [&lines[..slowest], &lines[slowest..=slowest], &lines[slowest + 1..]];
    let runs = runs.into_iter().filter(|run| !run.is_empty());
    let path: Vec<Stage> = runs.map(|run| single(run, typical)).collect();
    let most = task.levels.iter().map(|level| level.explicit_max as u64).min()?;
    let bytes = task.bytes as f64;
    let (algorithm, real) = match path.len() {
        2 => (Algorithm::RampUp, ramp::up_real(&path, bytes, most)?),
        3 => (Algorithm::RampUpDown, ramp::up_down_real(&path, bytes, most)?),
        _ => return None,
    };
    let Constraints { smallest, largest, alignment, .. } = task.common();
    let list = |level: &Level| {
        let common = Level { smallest, largest, alignment, ..level.clone() };
        shape::rounded(&common, task.bytes, &real.sizes)
    };
    Some((algorithm, Shape { lists: task.levels.iter().map(list).collect() }))
}

/// Large fragments in the slow level (the slower one of two), cut into equal ones beside it.
fn hierarchies<C: StageCost>(
    task: &Task<'_, C>,
    slow: Slow,
    size: u64,
    typical: f64,
) -> Vec<(Algorithm, Shape)> {
    let lines = task.lines(|level| if slow.contains(&level) { typical } else { size as f64 });
    let (path, places) = reduced(task.levels, &lines, slow, typical);
    let occupancy = |&level: &usize| path[places[level]].occupancy(typical);
    let slowest = slow.iter().copied().max_by(|a, b| occupancy(a).total_cmp(&occupancy(b)));
    let Some(slowest) = slowest else { return Vec::new() };
    let most = COUNTS[COUNTS.len() - 1];
    let bytes = task.bytes as f64;
    let shape = |real: Real| {
        let large = shape::rounded(&task.levels[slowest], task.bytes, &real.sizes);
        let pieces = |level: &Level, counts: &[u64]| {
            let limits = level.constraints();
            // Rounding may have made one more or one less of them.
            let counts = counts.iter().chain(counts.last().into_iter().cycle());
            let all = large.iter().zip(counts);
            let list: Vec<u64> =
                all.flat_map(|(&size, &count)| rounding::pieces(size, count, &limits)).collect();
            let mean = task.bytes.div_ceil(list.len().max(1) as u64);
            if shape::allowed(level, &list) { list } else { shape::equal(level, task.bytes, mean) }
        };
        let lists = task.levels.iter().enumerate().map(|(index, level)| match index {
            before if before < slowest => pieces(level, &real.before),
            behind if behind > slowest => pieces(level, &real.after),
            _ => large.clone(),
        });
        Shape { lists: lists.collect() }
    };
    let fixed = hierarchical::fixed_real(&path, places[slowest], bytes, most);
    let ramp = hierarchical::ramp_real(&path, places[slowest], bytes, most);
    let fixed = fixed.map(|real| (Algorithm::HierarchicalFixed, shape(real)));
    let ramp = ramp.map(|real| (Algorithm::HierarchicalRamp, shape(real)));
    fixed.into_iter().chain(ramp).collect()
}

/// Several stages as one: the slowest, with what the others take as latency.
fn single(stages: &[Stage], typical: f64) -> Stage {
    let slowest =
        stages.iter().max_by(|a, b| a.occupancy(typical).total_cmp(&b.occupancy(typical)));
    let slowest = slowest.copied().unwrap_or(Stage::FREE);
    let all: f64 = stages.iter().map(|stage| stage.alone(typical)).sum();
    Stage { latency: all - slowest.occupancy(typical), ..slowest }
}

/// The path with each slow level as one stage, and the first stage of each level in it.
fn reduced(
    levels: &[Level],
    lines: &[Stage],
    slow: Slow,
    typical: f64,
) -> (Vec<Stage>, [usize; super::LEVELS_MAX]) {
    let mut path = Vec::with_capacity(lines.len());
    let mut places = [0; super::LEVELS_MAX];
    for (index, level) in levels.iter().enumerate() {
        places[index] = path.len();
        let stages = &lines[level.stages.clone()];
        if slow.contains(&index) {
            path.push(single(stages, typical));
        } else {
            path.extend(stages);
        }
    }
    (path, places)
}

/// What was found for one choice of slow levels.
struct Found {
    seconds: f64,
    slow: Slow,
    /// The others' fragments, in bytes.
    size: u64,
    shape: Shape,
}

struct Nest<'t, 'a, C> {
    task: &'t Task<'a, C>,
    /// A slow level's fragments, in bytes.
    typical: f64,
    times: Times,
    /// For each choice of slow levels, the best first.
    best: Vec<Found>,
}

impl<C: StageCost> Nest<'_, '_, C> {
    fn scan(&mut self) {
        for slow in WAYS[self.task.levels.len()] {
            FEW.into_iter().for_each(|count| self.attempt(slow, self.task.bytes.div_ceil(count)));
        }
        self.sort();
        for slow in self.best.iter().map(|found| found.slow).collect::<Vec<_>>() {
            for count in COUNTS.into_iter().filter(|count| !FEW.contains(count)) {
                self.attempt(slow, self.task.bytes.div_ceil(count));
            }
        }
        self.sort();
        let Some(Found { slow, shape, .. }) = self.best.first() else { return };
        let slow = *slow;
        let fragments: usize = slow.iter().map(|&level| shape.lists[level].len()).sum();
        self.typical = self.task.bytes as f64 * slow.len() as f64 / fragments.max(1) as f64;
        for factor in NEARER {
            let size = self.best[0].size as f64 * factor;
            self.attempt(slow, size as u64);
        }
    }

    /// The best first, without those that are far behind it.
    fn sort(&mut self) {
        self.best.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let best = self.best.first().map_or(0.0, |found| found.seconds);
        self.best.retain(|found| found.seconds <= best * PROMISING);
    }

    /// Fragments of about `size` bytes beside the slow levels.
    fn attempt(&mut self, slow: Slow, size: u64) {
        let Some((seconds, shape)) = self.grouped(slow, size.max(1)) else { return };
        let found = Found { seconds, slow, size, shape };
        match self.best.iter_mut().find(|known| known.slow == slow) {
            Some(known) if known.seconds <= seconds => {}
            Some(known) => *known = found,
            None => self.best.push(found),
        }
    }

    fn grouped(&mut self, slow: Slow, size: u64) -> Option<(f64, Shape)> {
        let Task { levels, bytes, .. } = *self.task;
        let is_slow = |level: usize| slow.contains(&level);
        let fitted = |level: &Level| level.constraints().fit(size).min(bytes);
        let mut fine = levels.iter().enumerate().filter(|(index, _)| !is_slow(*index));
        if fine.any(|(_, level)| bytes.div_ceil(fitted(level)) > FRAGMENTS_MAX) {
            return None;
        }
        let lines =
            self.task.lines(|level| if is_slow(level) { self.typical } else { size as f64 });
        let (path, places) = reduced(levels, &lines, slow, self.typical);
        let ends: Vec<Vec<u64>> =
            (0..levels.len()).map(|index| ends(levels, bytes, slow, index, fitted)).collect();
        let (mut layout, open) = laid_out(&ends, &places[..levels.len()], path.len());
        let times = &mut self.times;
        for &level in slow.iter().filter(|_| slow.len() > 1) {
            layout.cuts[places[level]] = sparse(&layout.positions, &open[level], self.typical);
        }
        times.forward(&path, &layout, NonZeroU32::MAX);
        let mut seconds = None;
        // The last one first: it is to be cut for what the first one can do, not the other way
        // round.
        for &level in slow.iter().rev().chain(slow.iter().rev().filter(|_| slow.len() > 1)) {
            times.backward(&path, &layout, places[level] + 1);
            let limits = tellable(&levels[level], bytes);
            let at = &open[level];
            let found = times.regroup_at(&path, &mut layout, &limits, places[level], at)?;
            seconds = Some(found);
            if slow.len() > 1 {
                times.forward(&path, &layout, NonZeroU32::MAX);
            }
        }
        let list = |index: usize| layout.sizes(&layout.cuts[places[index]]);
        let shape = Shape { lists: (0..levels.len()).map(list).collect() };
        let all = levels.iter().zip(&shape.lists);
        let allowed = all.into_iter().all(|(level, list)| shape::allowed(level, list));
        seconds.filter(|_| allowed).map(|seconds| (seconds, shape))
    }
}

/// A level's limits with fragments no smaller than can be told.
fn tellable(level: &Level, bytes: u64) -> Constraints {
    let limits = level.constraints();
    let smallest = limits.fit(bytes.div_ceil(level.explicit_max as u64));
    Constraints { smallest: limits.smallest.max(smallest), ..limits }
}

/// Where a level's fragments may end. A fine level's end at multiples of its size. A slow level's
/// end as near to those as its alignment allows, on the side where nothing has to wait for the rest
/// of a small fragment.
fn ends(
    levels: &[Level],
    bytes: u64,
    slow: Slow,
    index: usize,
    fitted: impl Fn(&Level) -> u64,
) -> Vec<u64> {
    let every = |level: &Level| {
        let size = fitted(level);
        (1..bytes.div_ceil(size)).map(move |count| count * size)
    };
    let level = &levels[index];
    let unit = level.alignment.max(1);
    let mut ends: Vec<u64> = Vec::new();
    if slow.contains(&index) {
        let neighbour = |index: Option<usize>| {
            let index = index.filter(|near| !slow.contains(near));
            index.and_then(|near| levels.get(near))
        };
        let before = neighbour(index.checked_sub(1)).into_iter().flat_map(every);
        ends.extend(before.map(|end| end / unit * unit));
        let behind = neighbour(Some(index + 1)).into_iter().flat_map(every);
        ends.extend(behind.map(|end| end.div_ceil(unit) * unit));
        ends.sort_unstable();
    } else {
        ends.extend(every(level));
    }
    ends.retain(|&end| end > 0 && end < bytes);
    ends.push(bytes);
    ends.dedup();
    ends
}

/// Levels' ends as cuts among common positions, a level's for all its stages; and for each level
/// its cuts.
fn laid_out(ends: &[Vec<u64>], places: &[usize], stages: usize) -> (Layout, Vec<Vec<u32>>) {
    let mut all: Vec<u64> = ends.iter().flatten().copied().collect();
    all.sort_unstable();
    all.dedup();
    let mut cuts = Vec::with_capacity(stages);
    let mut open = Vec::with_capacity(ends.len());
    for (index, ends) in ends.iter().enumerate() {
        let mut at = 0;
        let on = ends.iter().map(|&end| {
            while all[at] < end {
                at += 1;
            }
            at as u32 + 1
        });
        let on: Vec<u32> = on.collect();
        let next = places.get(index + 1).copied().unwrap_or(stages);
        cuts.resize(next, on.clone());
        open.push(on);
    }
    let mut positions = Vec::with_capacity(all.len() + 1);
    positions.push(0.0);
    positions.extend(all.iter().map(|&end| end as f64));
    (Layout { positions, cuts }, open)
}

/// The cuts that are about `size` bytes apart.
fn sparse(positions: &[f64], open: &[u32], size: f64) -> Vec<u32> {
    let mut begin = 0.0;
    let mut kept: Vec<u32> = Vec::new();
    for (place, &at) in open.iter().enumerate() {
        let end = positions[at as usize];
        if end - begin >= size || place + 1 == open.len() {
            begin = end;
            kept.push(at);
        }
    }
    kept
}
