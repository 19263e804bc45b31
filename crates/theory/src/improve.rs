//! From a layout to a better one, within a budget of work.
//!
//! *Regroup*: each stage is cut anew, optimally for the others, in turn. When that has nothing to
//! add, the pattern is changed: a position is left out, put in, or used by other stages. *Polish*:
//! all positions are moved, optimally for the new pattern; most changes are seen to be hopeless
//! after a few rows of the linear program. Work is counted in fragments looked at, not in time, so
//! that the same question has the same answer.

use core::num::NonZeroU32;
use core::ops::Range;

use piped_core::noise::Noise;
use piped_model::fixed::Constraints;
use piped_model::search::layout::{Layout, Times};
use piped_model::search::polish::Polish;
use piped_model::stage::Stage;

/// Gains below this part are not worth a change.
const WORTH: f64 = 3e-4;

/// How much is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Work, in fragments looked at.
    budget: u64,
    /// Positions up to which each may move by itself and patterns are changed.
    free: u32,
}

impl Effort {
    pub(crate) const fn new(budget: u64, free: u32) -> Self {
        Self { budget, free }
    }
}

/// Layouts with more positions have their fragments recut before single cuts are looked at.
const SINGLE_MAX: u32 = 12;

/// A search with what it has found.
#[derive(Debug)]
pub(crate) struct Search<'a> {
    path: &'a [Stage],
    constraints: &'a Constraints,
    depth: NonZeroU32,
    times: Times,
    effort: Effort,
    best: Option<(f64, Layout)>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(path: &'a [Stage], constraints: &'a Constraints, effort: Effort) -> Self {
        let depth = NonZeroU32::new(constraints.depth_max).unwrap_or(NonZeroU32::MIN);
        Self { path, constraints, depth, times: Times::new(path.len()), effort, best: None }
    }

    /// The best layout so far.
    pub(crate) fn into_best(self) -> Option<Layout> {
        Some(self.best?.1)
    }

    fn spent(&self) -> bool {
        self.times.work > self.effort.budget
    }

    /// The latency of the best layout, in seconds; without one infinite.
    pub(crate) fn known(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |(seconds, _)| *seconds)
    }

    /// Takes a layout if it is allowed and better than the best.
    fn offer(&mut self, layout: &Layout) -> f64 {
        let mut tidy = layout.clone();
        tidy.tidy(self.constraints.alignment);
        if !tidy.allowed(self.constraints) {
            return f64::INFINITY;
        }
        let seconds = self.times.forward(self.path, &tidy, self.depth);
        if seconds < self.known() {
            self.best = Some((seconds, tidy));
        }
        seconds
    }

    /// Tries equal fragments in all stages, and what becomes of them.
    pub(crate) fn equal(&mut self, bytes: u64, count: u32) {
        let positions = equal_positions(bytes, count, self.constraints.alignment);
        let layout = Layout::common(positions, self.path.len());
        // Other sizes save overlap, which is never more than a part.
        if self.times.forward(self.path, &layout, self.depth) < 1.3 * self.known() {
            self.descend(layout);
        }
    }

    /// Regroups until that brings nothing.
    pub(crate) fn descend(&mut self, mut layout: Layout) {
        let mut seconds = self.offer(&layout);
        while !self.spent() && layout.last() > 1 {
            self.regroup(&mut layout);
            let now = self.offer(&layout);
            layout.tidy(self.constraints.alignment);
            if now > seconds * (1.0 - WORTH) {
                break;
            }
            seconds = now;
        }
    }

    /// Each stage cut anew in turn.
    fn regroup(&mut self, layout: &mut Layout) {
        let mut known = self.times.forward(self.path, layout, self.depth);
        self.times.backward(self.path, layout, 0);
        for stage in 0..self.path.len() {
            let found = self.times.regroup(self.path, layout, self.constraints, stage, known);
            self.times.forward_stage(self.path, layout, self.depth, stage);
            known = found.unwrap_or(known);
        }
    }

    /// Moves the positions to where the latency is least, unless that turns out not to be below
    /// `hopeless`.
    fn polish(&mut self, layout: &mut Layout, hopeless: f64) -> f64 {
        let blocks = blocks(layout, self.effort.free);
        let polish = Polish {
            path: self.path,
            depth: self.depth,
            blocks: &blocks,
            smallest: self.least_segment(),
            hopeless,
        };
        polish.run(layout, &mut self.times)
    }

    /// Segments vanish where they may.
    fn least_segment(&self) -> f64 {
        let smallest = self.constraints.fit(1);
        if smallest <= self.constraints.alignment.max(1) { 0.0 } else { smallest as f64 }
    }

    /// Changes the pattern of the best layout as long as that brings something.
    pub(crate) fn vary(&mut self) {
        while !self.spent() {
            let Some((known, layout)) = self.best.clone() else { return };
            let last = layout.last();
            let better = last > SINGLE_MAX
                && self.first_better(known, &layout, Resize::all(&layout))
                || last <= self.effort.free
                    && self.first_better(known, &layout, Change::all(last, self.path.len() as u32))
                || last <= SINGLE_MAX && self.first_better(known, &layout, Resize::all(&layout));
            if !better {
                return;
            }
        }
    }

    /// Changes the best layout in a few places at once, at most `rounds` times, and sees what
    /// becomes of that: from one hill to another. Until the latency is at most `goal`.
    pub(crate) fn shake(&mut self, random: &mut Noise, rounds: u32, goal: f64) {
        for _ in 0..rounds {
            let Some((seconds, mut layout)) = self.best.clone() else { return };
            if seconds <= goal {
                return;
            }
            for _ in 0..2 + random.below(3) {
                let (last, stages) = (layout.last(), self.path.len() as u32);
                if last > SINGLE_MAX && random.below(2) == 0 {
                    let all: Vec<Resize> = Resize::all(&layout).collect();
                    all[random.below(all.len() as u64) as usize].apply(&mut layout);
                } else if last > 0 {
                    let all: Vec<Change> = Change::all(last, stages).collect();
                    all[random.below(all.len() as u64) as usize].apply(&mut layout);
                }
            }
            let mut other = Search::new(self.path, self.constraints, self.effort);
            other.descend(layout);
            other.vary();
            self.take(other);
        }
    }

    /// Takes what another search found if it is better.
    pub(crate) fn take(&mut self, other: Search<'_>) {
        if let Some(better) = other.best.filter(|(seconds, _)| *seconds < self.known()) {
            self.best = Some(better);
        }
    }

    /// Goes on from the first of the changes that brings something, if one does.
    fn first_better<A: Apply>(
        &mut self,
        known: f64,
        layout: &Layout,
        changes: impl Iterator<Item = A>,
    ) -> bool {
        for change in changes {
            if self.spent() {
                return false;
            }
            let mut changed = layout.clone();
            if !change.apply(&mut changed) {
                continue;
            }
            let goal = known * (1.0 - WORTH);
            if self.polish(&mut changed, goal) < goal && self.offer(&changed) < goal {
                let layout = self.best.clone().map_or(changed, |(_, layout)| layout);
                self.descend(layout);
                return true;
            }
        }
        false
    }
}

/// The stage with the fewest cuts.
fn coarsest(layout: &Layout) -> usize {
    let stages = 0..layout.cuts.len();
    stages.min_by_key(|&stage| layout.cuts[stage].len()).unwrap_or(0)
}

/// How many segments move together, along the layout. Where there are many positions, blocks end
/// where the stage with the fewest cuts has them.
fn blocks(layout: &Layout, free: u32) -> Vec<u32> {
    let last = layout.last();
    if last <= free {
        return vec![1; last as usize];
    }
    let mut begin = 0;
    let coarse = layout.cuts[coarsest(layout)].iter();
    let mut blocks: Vec<u32> =
        coarse.map(|&end| end - core::mem::replace(&mut begin, end)).collect();
    while blocks.len() > 2 * free as usize {
        blocks = blocks.chunks(2).map(|pair| pair.iter().sum()).collect();
    }
    blocks
}

trait Apply {
    /// Changes the pattern, or says that there is nothing to change.
    fn apply(self, layout: &mut Layout) -> bool;
}

/// A change of a layout of many positions: how finely one fragment of the coarsest stage is cut by
/// the others, or whether the coarsest stage cuts somewhere.
#[derive(Debug, Clone, Copy)]
enum Resize {
    /// Stages `from..to` cut the fragment in this place into so many, if they cut it at all.
    Segments { place: usize, from: usize, to: usize, count: u32 },
    /// The segment is cut in two.
    Halve { place: usize },
    /// The segment and the next become one.
    Join { place: usize },
}

impl Resize {
    fn all(layout: &Layout) -> impl Iterator<Item = Self> + use<> {
        let pivot = coarsest(layout);
        let (stages, coarse) = (layout.cuts.len(), &layout.cuts[pivot]);
        let mut changes = Vec::new();
        let mut begin = 0;
        for (place, &end) in coarse.iter().enumerate() {
            changes.push(Self::Halve { place });
            if place + 1 < coarse.len() {
                changes.push(Self::Join { place });
            }
            for (from, to) in [(0, stages), (0, pivot), (pivot + 1, stages)] {
                let inside = |cuts: &Vec<u32>| {
                    cuts.iter().filter(|&&at| begin < at && at <= end).count() as u32
                };
                let segments = layout.cuts[from..to].iter().map(inside).max().unwrap_or(0);
                for factor in [1.5, 0.67, 1.25, 0.8, 1.1, 0.9] {
                    let count = (f64::from(segments) * factor).round() as u32;
                    if count > 0 && count != segments && (from, to) != (0, pivot + 1) {
                        changes.push(Self::Segments { place, from, to, count });
                    }
                }
            }
            begin = end;
        }
        changes.into_iter()
    }
}

impl Apply for Resize {
    fn apply(self, layout: &mut Layout) -> bool {
        let coarse = coarsest(layout);
        let cuts = &mut layout.cuts[coarse];
        match self {
            Self::Join { place } => {
                cuts.remove(place);
                true
            }
            Self::Halve { place } => {
                let (begin, end) = (if place == 0 { 0 } else { cuts[place - 1] }, cuts[place]);
                insert(cuts, u32::midpoint(begin, end));
                end > begin + 1
            }
            Self::Segments { place, from, to, count } => {
                let (begin, end) = (if place == 0 { 0 } else { cuts[place - 1] }, cuts[place]);
                recut(layout, from..to, (begin, end), count);
                true
            }
        }
    }
}

/// `count` fragments between two positions, in those of the stages that cut there at all. Where the
/// sizes were uneven they stay so: the new cuts lie on the line through the old ones, more or less
/// densely.
fn recut(layout: &mut Layout, stages: Range<usize>, (begin, end): (u32, u32), count: u32) {
    let inside = |stage: &usize| {
        let cuts = &layout.cuts[*stage];
        cuts.partition_point(|&at| at < end) - cuts.partition_point(|&at| at <= begin)
    };
    let Some(finest) = stages.clone().max_by_key(inside) else { return };
    let cuts = layout.cuts[finest].iter().filter(|&&at| begin < at && at < end);
    let mut old = vec![layout.positions[begin as usize]];
    old.extend(cuts.map(|&at| layout.positions[at as usize]));
    old.push(layout.positions[end as usize]);
    let on_line = |k: u32| {
        let index = f64::from(k) * (old.len() - 1) as f64 / f64::from(count);
        let before = (index as usize).min(old.len() - 2);
        old[before] + (old[before + 1] - old[before]) * (index - before as f64)
    };
    let new: Vec<f64> = (1..count).map(on_line).collect();
    let mut merged = layout.positions[begin as usize + 1..end as usize].to_vec();
    merged.extend(&new);
    merged.sort_unstable_by(f64::total_cmp);
    merged.dedup();
    let place_of =
        |position: f64| begin + 1 + merged.partition_point(|&other| other < position) as u32;
    let more = begin + 1 + merged.len() as u32 - end;
    for (stage, cuts) in layout.cuts.iter_mut().enumerate() {
        let first = cuts.partition_point(|&at| at <= begin);
        let last = cuts.partition_point(|&at| at < end);
        for at in &mut cuts[first..last] {
            *at = place_of(layout.positions[*at as usize]);
        }
        for at in &mut cuts[last..] {
            *at += more;
        }
        if last > first && stages.contains(&stage) {
            cuts.splice(first..last, new.iter().map(|&position| place_of(position)));
        }
    }
    layout.positions.splice(begin as usize + 1..end as usize, merged);
    layout.tidy(1);
}

/// The positions at which equal fragments begin, as near as the alignment allows, and the end of
/// the last one: rising.
fn equal_positions(bytes: u64, count: u32, alignment: u64) -> Vec<f64> {
    let (whole, unit) = (bytes as f64, alignment.max(1) as f64);
    // The nearest multiple of the unit may lie behind the end.
    let at = |k: u32| ((whole * f64::from(k) / f64::from(count) / unit).round() * unit).min(whole);
    let mut positions: Vec<f64> = (0..count).map(at).collect();
    positions.push(whole);
    positions.dedup();
    positions
}

/// A change of a layout of few positions.
#[derive(Debug, Clone, Copy)]
enum Change {
    /// Stages `from..to` cut at the position if they did not, and do not if they did.
    Toggle { at: u32, from: u32, to: u32 },
    /// Stages `from..to` cut in the middle of the segment that ends at the position.
    Split { at: u32, from: u32, to: u32 },
    /// Nobody cuts at the position.
    Remove { at: u32 },
}

impl Change {
    fn all(last: u32, stages: u32) -> impl Iterator<Item = Self> {
        let singles = (1..last).flat_map(move |at| {
            (0..stages).map(move |from| Self::Toggle { at, from, to: from + 1 })
        });
        let splits = (1..=last).map(move |at| Self::Split { at, from: 0, to: stages });
        let removes = (1..last).map(|at| Self::Remove { at });
        let runs = (1..last).flat_map(move |at| {
            (1..stages).flat_map(move |middle| {
                let (up, down) = ((0, middle), (middle, stages));
                [up, down].map(|(from, to)| Self::Toggle { at, from, to })
            })
        });
        let halves = (1..=last).flat_map(move |at| {
            (1..stages).flat_map(move |middle| {
                let (up, down) = ((0, middle), (middle, stages));
                [up, down].map(|(from, to)| Self::Split { at, from, to })
            })
        });
        removes.chain(splits).chain(singles).chain(runs).chain(halves)
    }
}

impl Apply for Change {
    fn apply(self, layout: &mut Layout) -> bool {
        match self {
            Self::Toggle { at, from, to } => {
                let run = &mut layout.cuts[from as usize..to as usize];
                // The first stage decides for the run.
                match run[0].binary_search(&at) {
                    Ok(_) => run.iter_mut().for_each(|cuts| cuts.retain(|&other| other != at)),
                    Err(_) => run.iter_mut().for_each(|cuts| insert(cuts, at)),
                }
            }
            Self::Split { at, from, to } => {
                let middle =
                    f64::midpoint(layout.positions[at as usize - 1], layout.positions[at as usize]);
                layout.positions.insert(at as usize, middle);
                for (stage, cuts) in layout.cuts.iter_mut().enumerate() {
                    cuts.iter_mut().filter(|other| **other >= at).for_each(|other| *other += 1);
                    if (from..to).contains(&(stage as u32)) {
                        insert(cuts, at);
                    }
                }
            }
            Self::Remove { at } => {
                layout.cuts.iter_mut().for_each(|cuts| cuts.retain(|&other| other != at));
                layout.tidy(1);
            }
        }
        layout.last() > 0
    }
}

fn insert(cuts: &mut Vec<u32>, at: u32) {
    if let Err(place) = cuts.binary_search(&at) {
        cuts.insert(place, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_fragments_end_within_the_transfer_however_coarse_the_alignment() {
        let path = [Stage { overhead: 1e-6, per_byte: 1e-9, ..Stage::FREE }; 2];
        for alignment in [600, 1000, 1100, 1900, 4096] {
            let constraints = Constraints { alignment, ..Constraints::default() };
            for count in 1..32 {
                let positions = equal_positions(1000, count, alignment);
                assert!(positions.is_sorted_by(|a, b| a < b), "{alignment} {count}: {positions:?}");
                assert_eq!(positions.last(), Some(&1000.0), "{alignment} {count}");
                let mut search = Search::new(&path, &constraints, Effort::new(1000, 24));
                search.equal(1000, count);
            }
        }
    }
}
