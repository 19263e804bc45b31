//! A plan while it is being made: positions, and where each stage cuts among them.
//!
//! What a planner changes is either *where* the cuts are (the positions, which stages share) or
//! *which* of them a stage uses. Both directions of the recurrence are kept: when a fragment leaves
//! ([`Times::forward`]) and how long it takes from a fragment's begin of service to the transfer's
//! end ([`Times::backward`]). With these two one stage can be cut anew, optimally for the others as
//! they are ([`crate::grouping`]).

use core::num::NonZeroU32;
use core::ops::Range;

use crate::fixed::Constraints;
use crate::grouping::{Grouping, Scratch};
use crate::stage::Stage;

/// Byte counts up to here are exact as floats.
pub const BYTES_MAX: u64 = 1 << 53;

/// Cuts of every stage among common positions.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// Rising from 0 to the size of the transfer.
    pub positions: Vec<f64>,
    /// For each stage, where its fragments end, as indices into the positions; the last is the last
    /// position.
    pub cuts: Vec<Vec<u32>>,
}

impl Layout {
    /// A layout with equal cuts in all stages.
    #[must_use]
    pub fn common(positions: Vec<f64>, stages: usize) -> Self {
        let cuts: Vec<u32> = (1..positions.len() as u32).collect();
        Self { positions, cuts: vec![cuts; stages] }
    }

    /// The index of the last position.
    #[must_use]
    pub fn last(&self) -> u32 {
        self.positions.len() as u32 - 1
    }

    /// Positions on whole multiples of the alignment, without those that nobody uses and those that
    /// fell together.
    pub fn tidy(&mut self, alignment: u64) {
        let unit = alignment.max(1) as f64;
        let last = self.last() as usize;
        let mut used = vec![false; last + 1];
        for &at in self.cuts.iter().flatten() {
            used[at as usize] = true;
        }
        used[last] = true;
        let end = self.positions[last];
        let mut kept = vec![0.0];
        let mut new = vec![0_u32; last + 1];
        for at in 1..=last {
            let place = if at == last { end } else { (self.positions[at] / unit).round() * unit };
            let place = place.min(end);
            if used[at] && place > kept[kept.len() - 1] {
                kept.push(place);
            }
            new[at] = kept.len() as u32 - 1;
        }
        self.positions = kept;
        for cuts in &mut self.cuts {
            for at in cuts.iter_mut() {
                *at = new[*at as usize];
            }
            cuts.retain(|&at| at > 0);
            cuts.dedup();
        }
    }

    /// Whether all fragments are as the constraints want them.
    #[must_use]
    pub fn allowed(&self, constraints: &Constraints) -> bool {
        let (smallest, largest) = range(constraints);
        let last = self.last();
        self.cuts.iter().all(|cuts| {
            let mut begin = 0.0;
            cuts.len() <= constraints.fragments_max.max(1) as usize
                && cuts.iter().all(|&at| {
                    let end = self.positions[at as usize];
                    let size = end - core::mem::replace(&mut begin, end);
                    size > 0.0 && size <= largest && (size >= smallest || at == last)
                })
        })
    }

    /// The sizes by run of stages that cut alike.
    #[must_use]
    pub fn parts(&self) -> Vec<(Range<usize>, Vec<u64>)> {
        let mut parts = Vec::new();
        let mut begin = 0;
        for stage in 1..=self.cuts.len() {
            if stage == self.cuts.len() || self.cuts[stage] != self.cuts[begin] {
                parts.push((begin..stage, self.sizes(&self.cuts[begin])));
                begin = stage;
            }
        }
        parts
    }

    /// The sizes in bytes between these cuts.
    #[must_use]
    pub fn sizes(&self, cuts: &[u32]) -> Vec<u64> {
        let mut begin = 0.0;
        let size = |&at: &u32| {
            let end = self.positions[at as usize];
            (end - core::mem::replace(&mut begin, end)) as u64
        };
        cuts.iter().map(size).collect()
    }
}

/// The allowed sizes, as multiples of the alignment.
fn range(constraints: &Constraints) -> (f64, f64) {
    (constraints.fit(1) as f64, constraints.fit(u64::MAX) as f64)
}

/// A regrouping is as good as possible to this part.
const REGROUP: f64 = 2e-4;

/// The fragment served before in the same stage, as what a fragment waited for.
const OWN: u32 = u32::MAX;

/// Times of a layout's fragments. The memory is used again for the next layout.
#[derive(Debug, Clone, Default)]
pub struct Times {
    /// Departures, by stage and fragment.
    depart: Vec<Vec<f64>>,
    /// What it waited for last: [`OWN`], or a fragment of the stage before.
    cause: Vec<Vec<u32>>,
    /// Times from the begin of service to the end of the transfer, by stage and fragment.
    tail: Vec<Vec<f64>>,
    candidates: Vec<u32>,
    places: Vec<f64>,
    release: Vec<f64>,
    after: Vec<f64>,
    scratch: Scratch,
    found: Vec<u32>,
    /// Fragments looked at so far: the measure of work.
    pub work: u64,
}

impl Times {
    /// Memory for a path of so many stages.
    #[must_use]
    pub fn new(stages: usize) -> Self {
        Self {
            depart: vec![Vec::new(); stages],
            cause: vec![Vec::new(); stages],
            tail: vec![Vec::new(); stages],
            ..Self::default()
        }
    }

    /// The latency, by the recurrence.
    pub fn forward(&mut self, path: &[Stage], layout: &Layout, depth: NonZeroU32) -> f64 {
        for stage in 0..path.len() {
            self.forward_stage(path, layout, depth, stage);
        }
        self.depart[path.len() - 1].last().copied().unwrap_or(0.0)
    }

    /// The departures of one stage, by those of the stage before.
    pub fn forward_stage(
        &mut self,
        path: &[Stage],
        layout: &Layout,
        depth: NonZeroU32,
        stage: usize,
    ) {
        let cost = path[stage];
        let mut window = cost.window.map_or(usize::MAX, |window| window.get() as usize);
        if stage == 0 {
            window = window.min(depth.get() as usize);
        }
        let cuts = &layout.cuts[stage];
        self.work += cuts.len() as u64;
        let mut depart = core::mem::take(&mut self.depart[stage]);
        let mut cause = core::mem::take(&mut self.cause[stage]);
        depart.clear();
        cause.clear();
        let (mut free, mut begin, mut source) = (0.0_f64, 0.0, 0);
        for (fragment, &at) in cuts.iter().enumerate() {
            let end = layout.positions[at as usize];
            let mut start = free;
            let mut reason = OWN;
            if stage > 0 {
                let before = &layout.cuts[stage - 1];
                while before[source] < at {
                    source += 1;
                }
                let arrival = self.depart[stage - 1][source];
                if arrival > free || fragment == 0 {
                    (start, reason) = (arrival, source as u32);
                }
            }
            if let Some(slot) = fragment.checked_sub(window) {
                start = start.max(depart[slot]);
            }
            free = start + cost.occupancy(end - begin);
            begin = end;
            depart.push(free + cost.latency);
            cause.push(reason);
        }
        self.depart[stage] = depart;
        self.cause[stage] = cause;
    }

    /// The tails of the stages from `first` on; windows are not looked at.
    pub fn backward(&mut self, path: &[Stage], layout: &Layout, first: usize) {
        for stage in (first..path.len()).rev() {
            self.backward_stage(path, layout, stage);
        }
    }

    fn backward_stage(&mut self, path: &[Stage], layout: &Layout, stage: usize) {
        let cost = path[stage];
        let cuts = &layout.cuts[stage];
        self.work += cuts.len() as u64;
        let mut tail = core::mem::take(&mut self.tail[stage]);
        tail.clear();
        tail.resize(cuts.len(), 0.0);
        let behind = layout.cuts.get(stage + 1);
        let mut user = behind.map_or(0, |behind| behind.len() - 1);
        let mut next = 0.0_f64;
        for fragment in (0..cuts.len()).rev() {
            let begin = if fragment == 0 { 0 } else { cuts[fragment - 1] };
            let mut rest = cost.latency;
            if let Some(behind) = behind {
                // The first one behind that has bytes of this fragment.
                while user > 0 && behind[user - 1] > begin {
                    user -= 1;
                }
                rest += self.tail[stage + 1][user];
            }
            let size = layout.positions[cuts[fragment] as usize] - layout.positions[begin as usize];
            next = cost.occupancy(size) + rest.max(next);
            tail[fragment] = next;
        }
        self.tail[stage] = tail;
    }

    /// Cuts one stage anew, at its neighbours' cuts and its own: the best for the neighbours as
    /// they are. `forward` up to the stage before and `backward` from the stage behind must be up
    /// to date. The latency that this reaches, if it is below `known`.
    pub fn regroup(
        &mut self,
        path: &[Stage],
        layout: &mut Layout,
        constraints: &Constraints,
        stage: usize,
        known: f64,
    ) -> Option<f64> {
        self.offer(layout, stage);
        self.group(path, layout, constraints, stage, known)
    }

    /// Cuts one stage anew as [`Self::regroup`] does, but only at some of these positions, rising
    /// and without 0.
    pub fn regroup_at(
        &mut self,
        path: &[Stage],
        layout: &mut Layout,
        constraints: &Constraints,
        stage: usize,
        positions: &[u32],
    ) -> Option<f64> {
        self.candidates.clear();
        self.candidates.push(0);
        self.candidates.extend(positions);
        self.group(path, layout, constraints, stage, f64::MAX)
    }

    /// Cuts a stage anew at some of the candidates.
    fn group(
        &mut self,
        path: &[Stage],
        layout: &mut Layout,
        constraints: &Constraints,
        stage: usize,
        known: f64,
    ) -> Option<f64> {
        self.gather(layout, path[stage].latency, stage);
        let (smallest, largest) = range(constraints);
        let grouping = Grouping {
            overhead: path[stage].overhead,
            per_byte: path[stage].per_byte,
            positions: &self.places,
            release: &self.release,
            tail: &self.after,
            smallest,
            largest,
        };
        self.work += self.places.len() as u64;
        let better = known * (1.0 - REGROUP);
        if !grouping.feasible(better, &mut self.scratch) {
            return None;
        }
        // The stage's own bytes, what was needed before the first and is needed after the last of
        // them.
        let last = self.places.len() - 1;
        let own = path[stage].occupancy(self.places[last]);
        let low = own.max(self.release[last]) + self.after[last - 1];
        let high = better.min((own + self.release[last] + self.after[0]) * (1.0 + 1e-9));
        let high = if grouping.feasible(high, &mut self.scratch) { high } else { better };
        let (seconds, _) = grouping.least(low.min(high), high, REGROUP, &mut self.scratch)?;
        self.work += 12 * self.places.len() as u64;
        if !grouping.cuts(seconds, &mut self.scratch, &mut self.found) {
            return None;
        }
        let cuts = &mut layout.cuts[stage];
        cuts.clear();
        cuts.extend(self.found.iter().map(|&at| self.candidates[at as usize]));
        Some(seconds)
    }

    /// Offers the places where a stage may cut: where it does, and where its neighbours do.
    fn offer(&mut self, layout: &Layout, stage: usize) {
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.push(0);
        let near = stage.saturating_sub(1)..(stage + 2).min(layout.cuts.len());
        candidates.extend(layout.cuts[near].iter().flatten());
        candidates.sort_unstable();
        candidates.dedup();
    }

    /// What is before and behind the positions where a stage may cut.
    fn gather(&mut self, layout: &Layout, latency: f64, stage: usize) {
        let before =
            stage.checked_sub(1).map(|before| (&layout.cuts[before], &self.depart[before]));
        let behind = layout.cuts.get(stage + 1).map(|behind| (behind, &self.tail[stage + 1]));
        let Self { candidates, places, release, after, .. } = self;
        places.clear();
        release.clear();
        after.clear();
        let (mut source, mut user) = (0, 0);
        for &at in candidates.iter() {
            places.push(layout.positions[at as usize]);
            release.push(before.map_or(0.0, |(cuts, depart)| {
                while cuts[source] < at {
                    source += 1;
                }
                if at == 0 { 0.0 } else { depart[source] }
            }));
            after.push(
                latency
                    + behind.map_or(0.0, |(cuts, tail)| {
                        while user + 1 < cuts.len() && cuts[user] <= at {
                            user += 1;
                        }
                        tail[user]
                    }),
            );
        }
    }

    /// The critical path of the last [`Self::forward`], windows aside: adds to `weights` what each
    /// byte between two positions costs along it (seconds per byte), and returns what does not
    /// depend on sizes.
    pub fn critical(&self, path: &[Stage], layout: &Layout, weights: &mut [f64]) -> f64 {
        let mut fixed = 0.0;
        let mut fragment = layout.cuts[path.len() - 1].len() - 1;
        for stage in (0..path.len()).rev() {
            let (cost, cuts) = (path[stage], &layout.cuts[stage]);
            fixed += cost.latency;
            let end = cuts[fragment] as usize;
            fixed += cost.overhead;
            while self.cause[stage][fragment] == OWN && fragment > 0 {
                fragment -= 1;
                fixed += cost.overhead;
            }
            let begin = if fragment == 0 { 0 } else { cuts[fragment - 1] as usize };
            for weight in &mut weights[begin..end] {
                *weight += cost.per_byte;
            }
            fragment = self.cause[stage][fragment] as usize;
        }
        fixed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate;

    fn stages() -> [Stage; 4] {
        [(3.0, 0.1), (1.0, 0.4), (9.0, 0.2), (2.0, 0.3)].map(|(overhead, per_byte)| Stage {
            latency: overhead / 2.0,
            overhead,
            per_byte,
            window: None,
        })
    }

    fn layout() -> Layout {
        Layout {
            positions: vec![0.0, 7.0, 20.0, 21.0, 40.0, 66.0, 90.0],
            cuts: vec![vec![1, 2, 4, 6], vec![1, 3, 4, 5, 6], vec![4, 6], vec![2, 4, 5, 6]],
        }
    }

    #[test]
    fn both_directions_and_the_critical_path_tell_the_latency_of_the_recurrence() {
        let (path, layout) = (stages(), layout());
        let mut times = Times::new(4);
        let forward = times.forward(&path, &layout, NonZeroU32::MAX);
        times.backward(&path, &layout, 0);
        let lists: Vec<Vec<u64>> = layout.cuts.iter().map(|cuts| layout.sizes(cuts)).collect();
        let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
        let exact = evaluate::lists(&path, &lists, None).unwrap();
        assert!((forward - exact).abs() < 1e-9);
        assert!((times.tail[0][0] - exact).abs() < 1e-9);
        let mut weights = vec![0.0; 6];
        let fixed = times.critical(&path, &layout, &mut weights);
        let sizes = layout.positions.windows(2).map(|pair| pair[1] - pair[0]);
        let along: f64 = sizes.zip(&weights).map(|(size, weight)| size * weight).sum();
        assert!((fixed + along - exact).abs() < 1e-9);
    }

    #[test]
    fn regrouping_takes_what_it_says() {
        let path = stages();
        let mut times = Times::new(4);
        let mut improved = 0;
        for stage in 0..4 {
            let mut layout = layout();
            let before = times.forward(&path, &layout, NonZeroU32::MAX);
            times.backward(&path, &layout, 0);
            let limits = Constraints::default();
            if let Some(found) = times.regroup(&path, &mut layout, &limits, stage, before) {
                let after = times.forward(&path, &layout, NonZeroU32::MAX);
                assert!(
                    after <= found * (1.0 + 1e-9) && found < before,
                    "{after} {found} {before}"
                );
                improved += 1;
            }
        }
        assert!(improved > 0);
    }

    #[test]
    fn tidying_drops_what_nobody_uses_and_what_falls_together() {
        let mut layout = Layout {
            positions: vec![0.0, 3.9, 4.2, 10.0, 13.0],
            cuts: vec![vec![1, 4], vec![2, 4]],
        };
        layout.tidy(4);
        assert_eq!(layout.positions, [0.0, 4.0, 13.0]);
        assert_eq!(layout.cuts, [[1, 2], [1, 2]]);
        let limits = Constraints { alignment: 4, smallest: 4, ..Constraints::default() };
        assert!(layout.allowed(&limits));
        assert!(!layout.allowed(&Constraints { largest: 8, ..limits }));
    }
}
