//! Shapes made better where stages share servers: step by step, each judged by the walk through
//! all fragments that says what would happen.
//!
//! The other searches move cuts as if each stage had its own server. Where one thread reads, checks
//! and sends, that is off by more than a plan can win, so here nothing is assumed. A cut is moved,
//! taken away or made, in one level or in all of them at once, and stays so if that is better.

use core::num::NonZeroU32;

use super::Task;
use super::shape::{self, Shape};
use crate::stage::StageCost;

/// The parts of the transfer by which cuts are moved, the coarsest first.
const STEPS: [u64; 4] = [8, 16, 32, 64];

/// Fragments walked through, over all stages: some milliseconds.
const WORK: usize = 60_000;

/// Gains below this part are not worth a step.
const WORTH: f64 = 1e-4;

/// A change of one cut.
#[derive(Debug, Clone, Copy)]
enum Step {
    Remove(u64),
    Make(u64),
    Move(u64, u64),
}

/// The best that is reached from a shape, if it is better.
pub(super) fn climb<C: StageCost>(task: &Task<'_, C>, start: Shape) -> Option<Shape> {
    let depth = NonZeroU32::new(task.depth_max.max(1))?;
    let mut known = task.seconds(&start, depth)?;
    let (mut best, mut work, mut better) = (start, 0, false);
    for part in STEPS {
        let by = task.bytes.div_ceil(part);
        while let Some((seconds, shape)) = step(task, &best, by, known, depth, &mut work) {
            (known, best, better) = (seconds, shape, true);
        }
    }
    better.then_some(best)
}

/// The first step from a shape that is worth it.
fn step<C: StageCost>(
    task: &Task<'_, C>,
    from: &Shape,
    by: u64,
    known: f64,
    depth: NonZeroU32,
    work: &mut usize,
) -> Option<(f64, Shape)> {
    let levels = task.levels.len();
    let each = (0..levels).map(|level| level..level + 1);
    for changed in each.chain((levels > 1).then_some(0..levels)) {
        let cuts = cuts(from, changed.clone());
        let moves = cuts.iter().flat_map(|&at| {
            let [back, on] = [at.saturating_sub(by), at.saturating_add(by)];
            [Step::Remove(at), Step::Move(at, back), Step::Move(at, on)]
        });
        let mut ends = cuts.clone();
        ends.push(task.bytes);
        let mut begin = 0;
        let middles =
            ends.iter().map(|&end| u64::midpoint(core::mem::replace(&mut begin, end), end));
        let made: Vec<Step> = middles.map(Step::Make).collect();
        for step in moves.chain(made) {
            let mut shape = from.clone();
            for level in changed.clone() {
                apply(task, &mut shape, level, step);
            }
            let rules = task.levels.iter().zip(&shape.lists);
            if shape == *from || !rules.into_iter().all(|(level, list)| shape::allowed(level, list))
            {
                continue;
            }
            let levels = task.levels.iter().zip(&shape.lists);
            *work += levels.map(|(level, list)| level.stages.len() * list.len()).sum::<usize>();
            if *work > WORK {
                return None;
            }
            let seconds = task.seconds(&shape, depth)?;
            if seconds < known * (1.0 - WORTH) {
                return Some((seconds, shape));
            }
        }
    }
    None
}

/// Where some levels cut, in order.
fn cuts(shape: &Shape, levels: core::ops::Range<usize>) -> Vec<u64> {
    let mut all: Vec<u64> = shape.lists[levels].iter().flat_map(|list| ends(list)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Where the fragments of a level end but for the last.
fn ends(list: &[u64]) -> impl Iterator<Item = u64> + '_ {
    let mut end = 0;
    list.iter().take(list.len().saturating_sub(1)).map(move |size| {
        end += size;
        end
    })
}

fn apply<C: StageCost>(task: &Task<'_, C>, shape: &mut Shape, level: usize, step: Step) {
    let unit = task.levels[level].alignment.max(1);
    let mut cuts: Vec<u64> = ends(&shape.lists[level]).collect();
    let (gone, new) = match step {
        Step::Remove(at) => (Some(at), None),
        Step::Make(at) => (None, Some(at)),
        Step::Move(from, to) => (Some(from), Some(to).filter(|_| cuts.contains(&from))),
    };
    cuts.retain(|&at| Some(at) != gone);
    cuts.extend(new.map(|at| at / unit * unit).filter(|&at| at > 0 && at < task.bytes));
    cuts.sort_unstable();
    cuts.dedup();
    cuts.push(task.bytes);
    let mut begin = 0;
    shape.lists[level] =
        cuts.into_iter().map(|end| end - core::mem::replace(&mut begin, end)).collect();
}
