//! Shapes made better: cuts moved together by a linear program, then by steps of the allowed grid.

use core::num::NonZeroU32;

use super::shape::{self, Shape};
use super::{Level, Task};
use crate::fixed::Constraints;
use crate::rounding;
use crate::search::layout::Times;
use crate::search::polish::Polish;
use crate::stage::{Stage, StageCost};

/// Segments up to which the linear program moves each cut.
const SEGMENTS_MAX: u32 = 24;

/// Shapes that are improved.
const STARTS: usize = 2;

/// Fragments looked at while cuts are moved by steps of the grid: about a tenth of a millisecond.
const STEPS_WORK: u64 = 20_000;

/// Steps, in units of the grid.
const STEPS: [i64; 4] = [-4, 4, -1, 1];

/// Gains below this part are not worth a step.
const WORTH: f64 = 1e-4;

impl<C: StageCost> Task<'_, C> {
    /// Each stage as the line that its cost is at its level's size, with latency as overhead where
    /// one fragment has to be through before the next.
    pub(super) fn lines(&self, size: impl Fn(usize) -> f64) -> Vec<Stage> {
        let mut lines = Vec::with_capacity(self.path.len());
        for (index, level) in self.levels.iter().enumerate() {
            let size = size(index);
            lines.extend(self.path[level.stages.clone()].iter().map(|cost| cost.stage_at(size)));
        }
        let limits = Constraints { depth_max: self.depth_max, ..Constraints::default() };
        rounding::folded(&lines, &limits)
    }
}

/// A path of straight costs, and the memory to evaluate shapes on it.
pub(super) struct Lines<'a> {
    stages: Vec<Stage>,
    levels: &'a [Level],
    bytes: u64,
    times: Times,
}

impl<'a> Lines<'a> {
    /// The best that comes out of the best of `starts`.
    pub(super) fn search<C: StageCost>(task: &Task<'a, C>, starts: Vec<Shape>) -> Option<Shape> {
        let mut starts: Vec<(f64, Shape)> = starts
            .into_iter()
            .map(|shape| (Self::new(task, &shape).seconds(&shape), shape))
            .collect();
        starts.sort_by(|a, b| a.0.total_cmp(&b.0));
        starts.dedup_by(|a, b| a.1 == b.1);
        let mut best = starts.first().cloned()?;
        let polishable = |shape: &Shape| shape.layout(task.levels).last() <= SEGMENTS_MAX;
        for (_, shape) in starts.into_iter().filter(|(_, shape)| polishable(shape)).take(STARTS) {
            let mut lines = Self::new(task, &shape);
            let shape = lines.polished(shape);
            let seconds = lines.seconds(&shape);
            if seconds < best.0 {
                best = (seconds, shape);
            }
        }
        let mut lines = Self::new(task, &best.1);
        Some(lines.stepped(best.1))
    }

    fn new<C: StageCost>(task: &Task<'a, C>, shape: &Shape) -> Self {
        let mean = |level: usize| task.bytes as f64 / shape.lists[level].len() as f64;
        Self {
            stages: task.lines(mean),
            levels: task.levels,
            bytes: task.bytes,
            times: Times::new(task.path.len()),
        }
    }

    fn seconds(&mut self, shape: &Shape) -> f64 {
        self.times.forward(&self.stages, &shape.layout(self.levels), NonZeroU32::MAX)
    }

    /// With all cuts where they are best for this pattern, as far as the levels allow.
    fn polished(&mut self, shape: Shape) -> Shape {
        let mut layout = shape.layout(self.levels);
        let blocks = vec![1; layout.last() as usize];
        let least = self.levels.iter().map(|level| level.constraints().fit(1));
        let smallest = least.min().filter(|&least| least > 1).unwrap_or(0) as f64;
        let crossed = layout.positions.windows(2).any(|pair| pair[1] - pair[0] < smallest);
        let polish = Polish {
            path: &self.stages,
            depth: NonZeroU32::MAX,
            blocks: &blocks,
            smallest: if crossed { 0.0 } else { smallest },
            hopeless: f64::INFINITY,
        };
        polish.run(&mut layout, &mut self.times);
        let settled = Shape::settled(&layout, self.levels, self.bytes);
        if self.seconds(&settled) < self.seconds(&shape) { settled } else { shape }
    }

    /// With cuts moved by steps of the grid as long as that brings something.
    fn stepped(&mut self, mut shape: Shape) -> Shape {
        let end = self.times.work + STEPS_WORK;
        let mut known = self.seconds(&shape);
        let mut better = true;
        while better {
            better = false;
            for position in self.movable(&shape) {
                for step in STEPS {
                    if self.times.work > end {
                        return shape;
                    }
                    let Some(moved) = self.moved(&shape, position, step) else { continue };
                    let seconds = self.seconds(&moved);
                    if seconds < known * (1.0 - WORTH) {
                        (known, shape, better) = (seconds, moved, true);
                        break;
                    }
                }
            }
        }
        shape
    }

    /// Cuts of levels that tell all their sizes.
    fn movable(&self, shape: &Shape) -> Vec<u64> {
        let mut positions = Vec::new();
        for (list, level) in shape.lists.iter().zip(self.levels) {
            if list.len() <= level.explicit_max {
                let ends = list.iter().scan(0, |end, &size| {
                    *end += size;
                    Some(*end)
                });
                positions.extend(ends.take(list.len() - 1));
            }
        }
        positions.sort_unstable();
        positions.dedup();
        positions
    }

    /// All cuts at a position moved by so many units, if the levels allow it.
    fn moved(&self, shape: &Shape, position: u64, step: i64) -> Option<Shape> {
        let mut moved = shape.clone();
        let mut unit = 1;
        let mut places = Vec::new();
        for (index, (list, level)) in shape.lists.iter().zip(self.levels).enumerate() {
            let mut end = 0;
            for (place, size) in list.iter().enumerate().take(list.len() - 1) {
                end += size;
                if end == position {
                    unit = shape::multiple(unit, level.alignment);
                    places.push((index, place));
                }
            }
        }
        let by = step.checked_mul(i64::try_from(unit).ok()?)?;
        for (index, place) in places {
            let list = &mut moved.lists[index];
            list[place] = list[place].checked_add_signed(by)?;
            list[place + 1] = list[place + 1].checked_sub_signed(by)?;
            if !shape::allowed(&self.levels[index], list) {
                return None;
            }
        }
        Some(moved)
    }
}
