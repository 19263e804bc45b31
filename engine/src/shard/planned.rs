//! A plan in the form the engine executes, with what it was made from. Plain values: making one
//! takes no memory but its own.

use std::num::NonZeroU32;

use piped_model::estimate::Estimate;
use piped_model::evaluate;
use piped_model::fixed::FixedBest;
use piped_model::plan::Algorithm;
use piped_model::stage::StageCost;
use piped_model::units::Nanos;

use super::guard::{ARMS_MAX, Seen};
use super::plan::StageIndex;
use crate::limits::{DEPTH_MAX, FRAGMENT_BYTES_MAX};
use crate::report::Candidate;

/// Fragments and offsets are cut at multiples of this: every device's alignment divides it.
pub(super) const CUT_BYTES: u64 = 4096;

/// Stages a plan of this engine spans: a disk, the checksum here, a lane, the checksum there.
pub(super) const STAGES_MAX: usize = 4;

/// A device that serves several fragments at once is taken for a slower one while it gets few, and a plan
/// for the slower one would give it few for ever.
const DEPTH_MIN: u32 = 8;

/// Where stretches of `fragment` bytes end, counted from a request's start: at multiples of the
/// fragment behind the aligned offset, so that all inner fragments are aligned.
pub(super) fn boundary(fragment: u64, offset: u64, next: u64) -> u64 {
    let base = offset / CUT_BYTES * CUT_BYTES;
    let index = (offset + next - base) / fragment.max(1);
    (index + 1) * fragment.max(1) + base - offset
}

/// The stages of a path and what they cost, in order.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PathCosts {
    costs: [Option<(StageIndex, Estimate)>; STAGES_MAX],
}

impl PathCosts {
    pub(super) fn push(&mut self, stage: StageIndex, cost: Estimate) {
        if let Some(place) = self.costs.iter_mut().find(|place| place.is_none()) {
            *place = Some((stage, cost));
        }
    }

    /// Hands the costs alone to the model.
    pub(super) fn with<T>(&self, f: impl FnOnce(&[&Estimate]) -> T) -> T {
        let mut known = self.costs.iter().flatten().map(|(_, cost)| cost);
        let Some(first) = known.next() else { return f(&[]) };
        let mut costs = [first; STAGES_MAX];
        let mut used = 1;
        for (place, cost) in costs[1..].iter_mut().zip(known) {
            *place = cost;
            used += 1;
        }
        f(&costs[..used])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (StageIndex, Estimate)> {
        self.costs.into_iter().flatten()
    }
}

/// Plans that were compared, and what they took in practice.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Candidates {
    plans: [Option<Seen>; ARMS_MAX],
}

impl FromIterator<Seen> for Candidates {
    /// Each size once; at most [`ARMS_MAX`].
    fn from_iter<T: IntoIterator<Item = Seen>>(seen: T) -> Self {
        let mut candidates = Self::default();
        for one in seen {
            let same = |known: &Seen| known.plan.fragment_bytes == one.plan.fragment_bytes;
            if candidates.plans.iter().flatten().any(same) {
                continue;
            }
            if let Some(place) = candidates.plans.iter_mut().find(|place| place.is_none()) {
                *place = Some(one);
            }
        }
        candidates
    }
}

impl Candidates {
    pub(super) fn report(&self) -> Vec<Candidate> {
        let candidate = |seen: Seen| Candidate {
            algorithm: seen.plan.algorithm.to_string(),
            fragment_bytes: seen.plan.fragment_bytes,
            predicted_seconds: seen.plan.predicted_seconds,
            measured_seconds: seen.measured,
            vetoed: seen.vetoed,
        };
        self.plans.into_iter().flatten().map(candidate).collect()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Planned {
    /// Bytes of a fragment, and of the frame that carries it.
    pub(super) fragment: u32,
    /// Fragments under way at the first stage.
    pub(super) depth: u32,
    /// Store all, then forward (`planner = whole`).
    pub(super) store_first: bool,
    /// For a request of the length it was made for.
    pub(super) predicted: Nanos,
    pub(super) margin: Nanos,
    pub(super) chosen: Algorithm,
    pub(super) candidates: Candidates,
    pub(super) path: PathCosts,
}

impl Planned {
    pub(super) fn new(
        chosen: FixedBest,
        store_first: bool,
        length: u64,
        path: &PathCosts,
        candidates: Candidates,
    ) -> Self {
        let bytes = length as f64;
        let (depth, predicted) = match store_first {
            // One after the other: each stage has the whole request to itself.
            true => (DEPTH_MAX, path.iter().map(|(_, c)| c.stage_at(bytes).alone(bytes)).sum()),
            false => (chosen.depth.get(), chosen.predicted_seconds),
        };
        Self {
            fragment: chosen.fragment_bytes.min(u64::from(FRAGMENT_BYTES_MAX)) as u32,
            depth: depth.clamp(DEPTH_MIN, DEPTH_MAX),
            store_first,
            predicted: Nanos::from_seconds(predicted),
            margin: Nanos::from_seconds(chosen.margin_seconds),
            chosen: chosen.algorithm,
            candidates,
            path: *path,
        }
    }

    /// The end of the fragment that starts `next` bytes into a request at `offset`.
    pub(super) fn boundary(&self, offset: u64, next: u64) -> u64 {
        boundary(u64::from(self.fragment), offset, next)
    }

    /// The prediction for a request of another length in the same size class.
    pub(super) fn predicted_for(&self, length: u64) -> Nanos {
        if self.store_first {
            return self.predicted;
        }
        let depth = NonZeroU32::new(self.depth);
        let fragment = u64::from(self.fragment);
        Nanos::from_seconds(
            self.path.with(|costs| evaluate::uniform(costs, fragment, length, depth)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boundaries_are_aligned_and_cover() {
        for (fragment, offset, length) in [(16384, 0, 100_000), (16384, 5000, 70_000), (4096, 1, 5)]
        {
            let mut next = 0;
            while next < length {
                let end = boundary(fragment, offset, next).min(length);
                assert!(end > next && end - next <= fragment);
                assert!(end == length || (offset + end) % CUT_BYTES == 0);
                next = end;
            }
        }
    }
}
