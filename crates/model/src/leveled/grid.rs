//! All plans on a coarse grid, and the best of them.
//!
//! The transfer is cut into ten equal units, or where alignments allow only twelve at most into
//! these, and a level's fragments may end at any of them: 512 *ways* to cut a level. A way of the
//! first level makes a row of times `d(u)`: when unit `u` is out of it. A way of the last level
//! makes a row `t(u)`: how long it takes from when unit `u` is there to the end of the transfer.
//! Two such ways together take `max_u d(u) + t(u)`, and a level in the middle turns a row into
//! another one.
//!
//! Few ways have to be tried with each other. No way of the first level beats the least `d(u)` of
//! all of them, unit by unit. So a way of the last level that is too slow even behind that is in no
//! plan that beats the one known, and the same holds in the other direction. What is left is tried
//! in the order of what it promises like that, until no promise is below the best plan found.
//!
//! One and two levels are searched to the end. Of three levels two are chosen at a time, optimally
//! for the third, from several starts; then all are tried together as long as the work permits.
//!
//! Costs are taken at each size as they are, bends included. A window counts where it is one.

use core::num::NonZeroU32;

use super::shape::{self, Shape};
use super::{LEVELS_MAX, Level, Task};
use crate::stage::{STAGES_MAX, StageCost};

/// Grids of so many units are searched one after the other: the coarse one tells what need not be
/// looked at on the fine one.
const GRIDS: [u64; 2] = [5, 10];

/// Units up to which a transfer that can be cut at no other places is searched as it is.
const UNITS: usize = 12;

/// Rounds in which the ways of a path of three levels are thinned out.
const ROUNDS: usize = 3;

/// Ways of the last of three levels from which two levels at a time are chosen.
const STARTS: usize = 4;

/// Rows compared while three levels are tried together: about a third of a millisecond.
const WORK: usize = 40_000;

/// The work of leading a row through a level, in comparisons of rows.
const THROUGH_WORK: usize = 10;

/// A time for each unit, in seconds.
type Row = [f64; UNITS];

/// Where a level's fragments end: bit `u` is for the end of unit `u`.
type Way = u16;

/// How long a fragment occupies a stage, and how much later it is out of it, in seconds.
type Cost = (f64, f64);

/// The best shape on the grid, if its latency is below `known` seconds. Servers and wider windows
/// are not looked at.
pub(super) fn best<C: StageCost>(task: &Task<'_, C>, mut known: f64) -> Option<Shape> {
    let mut best = None;
    let aligned = task.levels.iter().map(|level| level.alignment).fold(1, shape::multiple);
    let all = task.bytes.div_ceil(aligned);
    let [coarse, fine] = GRIDS;
    for units in [coarse, if all <= UNITS as u64 { all } else { fine }] {
        let Some(grid) = Grid::new(task, units, aligned) else { continue };
        let ways: Vec<Vec<Way>> = task.levels.iter().map(|level| grid.ways(level)).collect();
        let Some((seconds, found)) = grid.search(task.levels, &ways, known) else { continue };
        let list = |&way: &Way| grid.fragments(way).map(|(begin, end)| grid.size(begin, end));
        let lists = found[..ways.len()].iter().map(|way| list(way).collect());
        (known, best) = (seconds, Some(Shape { lists: lists.collect() }));
    }
    best
}

struct Grid {
    bytes: u64,
    /// The bytes of a unit; the last one may be shorter.
    unit: u64,
    units: usize,
    /// For each stage, by number of units: of fragments in general, and of the last one.
    costs: Vec<[[Cost; UNITS + 1]; 2]>,
}

/// A way with its row and the least latency that a plan with it can have.
#[derive(Clone, Copy)]
struct Known {
    way: Way,
    row: Row,
    promise: f64,
}

impl Grid {
    fn new<C: StageCost>(task: &Task<'_, C>, most: u64, aligned: u64) -> Option<Self> {
        let Task { path, bytes, .. } = *task;
        let unit = bytes.div_ceil(most).div_ceil(aligned).checked_mul(aligned)?;
        let units = bytes.div_ceil(unit) as usize;
        let mut grid = Self { bytes, unit, units, costs: Vec::with_capacity(path.len()) };
        let one = NonZeroU32::new(task.depth_max).filter(|depth| depth.get() == 1);
        for (index, cost) in path.iter().enumerate() {
            let of = |size: u64| {
                let stage = cost.stage_at(size as f64).narrowed(one.filter(|_| index == 0));
                let busy = stage.occupancy(size as f64);
                match stage.window {
                    Some(NonZeroU32::MIN) => (busy + stage.latency, 0.0),
                    _ => (busy, stage.latency),
                }
            };
            let [mut inner, mut last] = [[(0.0, 0.0); UNITS + 1]; 2];
            let both = inner.iter_mut().zip(&mut last).enumerate().skip(1);
            for (count, (inner, last)) in both.take(units) {
                let size = unit.saturating_mul(count as u64);
                let short = grid.size(units - count, units);
                *inner = of(size);
                *last = if short == size { *inner } else { of(short) };
            }
            grid.costs.push([inner, last]);
        }
        (units > 1).then_some(grid)
    }

    fn size(&self, begin: usize, end: usize) -> u64 {
        self.unit.saturating_mul(end as u64).min(self.bytes) - self.unit * begin as u64
    }

    /// First units of a way's fragments, and first ones behind them.
    fn fragments(&self, way: Way) -> impl DoubleEndedIterator<Item = (usize, usize)> + use<> {
        let ends = (0..self.units).filter(move |unit| way >> unit & 1 == 1);
        let begin = move |end: usize| {
            let before = way & ((1 << end) - 1);
            (Way::BITS - before.leading_zeros()) as usize
        };
        ends.map(move |end| (begin(end), end + 1))
    }

    /// The ways that a level allows.
    fn ways(&self, level: &Level) -> Vec<Way> {
        let limits = level.constraints();
        let (smallest, largest) = (limits.fit(1), limits.fit(u64::MAX));
        let last = 1 << (self.units - 1);
        let allowed = |way: &Way| {
            way.count_ones() as usize <= level.explicit_max
                && self.fragments(*way).all(|(begin, end)| {
                    let size = self.size(begin, end);
                    size <= largest && (size >= smallest || end == self.units)
                })
        };
        (0..last).map(|inner| inner | last).filter(allowed).collect()
    }

    /// When each unit is out of a level, from when it is there.
    fn through(&self, level: &Level, way: Way, there: &Row) -> Row {
        let mut out = [0.0; UNITS];
        let costs = &self.costs[level.stages.clone()];
        let mut free = [0.0_f64; STAGES_MAX];
        for (begin, end) in self.fragments(way) {
            let kind = usize::from(end == self.units);
            let mut at = there[end - 1];
            for (free, costs) in free.iter_mut().zip(costs) {
                let (busy, late) = costs[kind][end - begin];
                *free = free.max(at) + busy;
                at = *free + late;
            }
            out[begin..end].fill(at);
        }
        out
    }

    /// How long it takes to the transfer's end from when each unit is there, from how long it takes
    /// behind the level.
    fn until_end(&self, level: &Level, way: Way, behind: &Row) -> Row {
        let mut rest = [0.0; UNITS];
        let costs = &self.costs[level.stages.clone()];
        let mut after = [0.0_f64; STAGES_MAX];
        for (begin, end) in self.fragments(way).rev() {
            let kind = usize::from(end == self.units);
            let mut left = behind[begin];
            for (after, costs) in after[..costs.len()].iter_mut().rev().zip(costs.iter().rev()) {
                let (busy, late) = costs[kind][end - begin];
                *after = busy + (late + left).max(*after);
                left = *after;
            }
            rest[begin..end].fill(left);
        }
        rest
    }

    /// The ways of the best plan that takes less than `known`, and its latency.
    fn search(
        &self,
        levels: &[Level],
        ways: &[Vec<Way>],
        mut known: f64,
    ) -> Option<(f64, [Way; LEVELS_MAX])> {
        let nothing = [0.0; UNITS];
        let row = |way: Way, row: Row| Known { way, row, promise: 0.0 };
        let (begin, end) = (levels.first()?, levels.last()?);
        let of_begin = ways[0].iter().map(|&way| row(way, self.through(begin, way, &nothing)));
        let first: Vec<Known> = of_begin.collect();
        if levels.len() == 1 {
            let least = first.iter().min_by(|a, b| self.total(a).total_cmp(&self.total(b)))?;
            return (self.total(least) < known).then_some((self.total(least), [least.way, 0, 0]));
        }
        let of_end = ways[levels.len() - 1].iter();
        let last: Vec<Known> =
            of_end.map(|&way| row(way, self.until_end(end, way, &nothing))).collect();
        if levels.len() == 2 {
            let [one, other] = self.pair(first, last, &mut known)?;
            return Some((known, [one.way, other.way, 0]));
        }
        let middle = ways[1].iter().map(|&way| row(way, nothing)).collect();
        self.three(&levels[1], first, middle, last, known)
    }

    /// The best ways known of three levels, if they take less than `known`.
    fn three(
        &self,
        between: &Level,
        mut first: Vec<Known>,
        mut middle: Vec<Known>,
        mut last: Vec<Known>,
        mut known: f64,
    ) -> Option<(f64, [Way; LEVELS_MAX])> {
        let mut best = None;
        for round in 0..ROUNDS {
            let (before, behind) = (least(&first), least(&last));
            middle.iter_mut().for_each(|way| way.row = self.through(between, way.way, &before));
            self.promising(&mut middle, &behind, known);
            self.promising(&mut last, &least(&middle), known);
            let behind = least(&last);
            middle.iter_mut().for_each(|way| way.row = self.until_end(between, way.way, &behind));
            self.promising(&mut first, &least(&middle), known);
            if round + 2 == ROUNDS {
                let apart = (last.len() / STARTS).max(1);
                for start in last.iter().step_by(apart) {
                    let found = self.in_turn(between, [&first, &middle, &last], start, &mut known);
                    best = found.or(best);
                }
            }
        }
        let (behind, mut work) = (least(&last), 0);
        for way in &middle {
            for one in &first {
                if way.promise >= known || one.promise >= known || work > WORK {
                    break;
                }
                work += 1;
                if self.both(&one.row, &way.row) >= known {
                    continue;
                }
                let row = self.through(between, way.way, &one.row);
                work += THROUGH_WORK;
                if self.both(&row, &behind) >= known {
                    continue;
                }
                work += last.len();
                if let Some(other) = self.partner(&row, &last, &mut known) {
                    best = Some([one.way, way.way, other.way]);
                }
            }
        }
        best.map(|best| (known, best))
    }

    /// Two of three levels chosen at a time, from a way of the last one, as long as that brings
    /// something.
    fn in_turn(
        &self,
        between: &Level,
        [first, middle, last]: [&[Known]; LEVELS_MAX],
        start: &Known,
        known: &mut f64,
    ) -> Option<[Way; LEVELS_MAX]> {
        let (mut best, mut end) = (None, *start);
        loop {
            let row = |way: &Known| self.until_end(between, way.way, &end.row);
            let behind = middle.iter().map(|way| Known { row: row(way), ..*way }).collect();
            let Some([one, way]) = self.pair(first.to_vec(), behind, known) else { break };
            best = Some([one.way, way.way, end.way]);
            let row = |way: &Known| self.through(between, way.way, &one.row);
            let before = middle.iter().map(|way| Known { row: row(way), ..*way }).collect();
            let Some([way, other]) = self.pair(before, last.to_vec(), known) else { break };
            best = Some([one.way, way.way, other.way]);
            end = other;
        }
        best
    }

    /// The best of all pairs that take less than `known`.
    fn pair(
        &self,
        mut first: Vec<Known>,
        mut last: Vec<Known>,
        known: &mut f64,
    ) -> Option<[Known; 2]> {
        for _ in 0..2 {
            self.promising(&mut last, &least(&first), *known);
            self.promising(&mut first, &least(&last), *known);
        }
        let mut best = None;
        for one in first {
            best = self.partner(&one.row, &last, known).map(|other| [one, other]).or(best);
        }
        best
    }

    fn total(&self, known: &Known) -> f64 {
        known.row[self.units - 1]
    }

    fn both(&self, there: &Row, rest: &Row) -> f64 {
        let both = there.iter().zip(rest).take(self.units);
        both.map(|(there, rest)| there + rest).fold(0.0, f64::max)
    }

    /// Keeps the ways that may take less than `known` with the least that there is on the other
    /// side, in the order of that.
    fn promising(&self, ways: &mut Vec<Known>, other: &Row, known: f64) {
        for way in ways.iter_mut() {
            way.promise = self.both(&way.row, other);
        }
        ways.retain(|way| way.promise < known);
        ways.sort_unstable_by(|a, b| a.promise.total_cmp(&b.promise));
    }

    /// The last level's way that takes less than all known ones.
    fn partner(&self, there: &Row, last: &[Known], known: &mut f64) -> Option<Known> {
        let mut found = None;
        for way in last {
            if way.promise >= *known {
                break;
            }
            let seconds = self.both(there, &way.row);
            if seconds < *known {
                (*known, found) = (seconds, Some(*way));
            }
        }
        found
    }
}

/// The least time of each unit.
fn least(ways: &[Known]) -> Row {
    let mut least = [f64::INFINITY; UNITS];
    for way in ways {
        for (least, time) in least.iter_mut().zip(&way.row) {
            *least = least.min(*time);
        }
    }
    least
}
