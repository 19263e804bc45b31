//! A plan in the form the engine executes, with what it was made from. Plain values: making one
//! takes no memory but its own.

use std::num::NonZeroU32;

use piped_model::estimate::Estimate;
use piped_model::evaluate;
use piped_model::fixed::FixedBest;
use piped_model::plan::Algorithm;
use piped_model::serial::{self, Ramp};
use piped_model::stage::StageCost;
use piped_model::units::Nanos;

use super::guard::{ARMS_MAX, Seen};
use super::plan::StageIndex;
use crate::limits::{DEPTH_MAX, FRAGMENT_BYTES_MAX, FRAGMENT_BYTES_MIN};
use crate::report::Candidate;

/// Fragments and offsets are cut at multiples of this: every device's alignment divides it.
pub(super) const CUT_BYTES: u64 = 4096;

/// Stages a plan of this engine spans: a disk, the checksum here, a lane, the checksum there.
pub(super) const STAGES_MAX: usize = 4;

/// Fragments of a serial plan are multiples of this, and no shorter.
pub(super) const SERIAL_BYTES: u32 = FRAGMENT_BYTES_MIN;

/// Fragments read and not sent that a serial plan may hold: the device works ahead of the network.
const AHEAD: u32 = 4;

/// Where the fragment ends that holds byte `next` of a request at `offset`, counted from the request's start.
/// Sizes count from the aligned offset, so that all inner fragments are aligned.
pub(super) fn boundary(sizes: Ramp, offset: u64, next: u64) -> u64 {
    let skip = offset % CUT_BYTES;
    sizes.end(next + skip) - skip
}

/// How a plan cuts requests, and how many fragments it has under way at the first stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Bytes of the first fragment.
    pub(super) fragment: u32,
    /// By how much each is shorter than the one before.
    pub(super) shrink: u32,
    pub(super) depth: u32,
}

impl Cut {
    /// As one number that is not 0: sizes are multiples of 4096 of at most 1 MiB. It names the plan to the
    /// peer, which says what a transfer with it took.
    pub(super) fn number(self) -> u32 {
        let pages = |bytes: u32| (bytes / CUT_BYTES as u32) & 0xfff;
        self.depth << 24 | pages(self.shrink) << 12 | pages(self.fragment)
    }

    /// What a [`Self::number`] stands for; `None` if no plan has it. A peer may send any.
    pub(super) fn of(number: u32) -> Option<Self> {
        let bytes = |pages: u32| (pages & 0xfff) * CUT_BYTES as u32;
        let cut =
            Self { fragment: bytes(number), shrink: bytes(number >> 12), depth: number >> 24 };
        let is_plan = (1..=FRAGMENT_BYTES_MAX).contains(&cut.fragment)
            && cut.shrink < cut.fragment
            && (1..=DEPTH_MAX).contains(&cut.depth);
        is_plan.then_some(cut)
    }

    /// Fragments of a request of `bytes` from an aligned offset.
    pub(super) fn count(self, bytes: u64) -> u32 {
        u32::try_from(self.ramp().count(bytes)).unwrap_or(u32::MAX)
    }

    fn ramp(self) -> Ramp {
        let Self { fragment, shrink, .. } = self;
        Ramp { first: fragment.into(), shrink: shrink.into(), least: SERIAL_BYTES.into() }
    }
}

impl From<&FixedBest> for Cut {
    fn from(plan: &FixedBest) -> Self {
        let bytes = |bytes: u64| bytes.min(FRAGMENT_BYTES_MAX.into()) as u32;
        Self {
            fragment: bytes(plan.fragment_bytes),
            shrink: bytes(plan.shrink_bytes),
            depth: plan.depth.get().min(DEPTH_MAX),
        }
    }
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
    /// At most [`ARMS_MAX`].
    fn from_iter<T: IntoIterator<Item = Seen>>(seen: T) -> Self {
        let mut candidates = Self::default();
        for (place, one) in candidates.plans.iter_mut().zip(seen) {
            *place = Some(one);
        }
        candidates
    }
}

impl Candidates {
    pub(super) fn report(&self) -> Vec<Candidate> {
        let candidate = |seen: Seen| Candidate {
            algorithm: seen.plan.algorithm.to_string(),
            fragment_bytes: seen.plan.fragment_bytes,
            shrink_bytes: seen.plan.shrink_bytes,
            depth: seen.plan.depth.get(),
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
    /// A fragment is the payload of one frame.
    pub(super) cut: Cut,
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
        let cut = Cut::from(&chosen);
        let (cut, predicted) = match store_first {
            // One after the other: each stage has the whole request to itself.
            true => (
                Cut { depth: DEPTH_MAX, ..cut },
                path.iter().map(|(_, c)| c.stage_at(bytes).alone(bytes)).sum(),
            ),
            false => (cut, chosen.predicted_seconds),
        };
        Self {
            cut,
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
        boundary(self.cut.ramp(), offset, next)
    }

    /// What all inner fragments end at multiples of.
    pub(super) fn grid(&self) -> u32 {
        if self.cut.shrink == 0 { self.cut.fragment } else { SERIAL_BYTES }
    }

    /// One fragment at a time at the first stage.
    pub(super) fn is_serial(&self) -> bool {
        self.cut.depth == 1
    }

    /// Fragments that are read or being sent at once. As many on their way as at the device: if one more could
    /// be read only when one is sent, a device that ends several together would get one at a time.
    pub(super) fn held_max(&self) -> u32 {
        if self.is_serial() { AHEAD } else { 2 * self.cut.depth }
    }

    /// The prediction for a request of another length in the same size class.
    pub(super) fn predicted_for(&self, length: u64) -> Nanos {
        if self.store_first {
            return self.predicted;
        }
        let depth = NonZeroU32::new(self.cut.depth);
        let ramp = self.cut.ramp();
        Nanos::from_seconds(self.path.with(|costs| match self.is_serial() {
            true => serial::seconds(costs, length, &ramp),
            false => evaluate::uniform(costs, ramp.first, length, depth),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_its_plan() {
        for (fragment, shrink, depth) in
            [(400 << 10, 96 << 10, 1), (4096, 0, 8), (1 << 20, 0, DEPTH_MAX), (1 << 20, 4096, 1)]
        {
            let cut = Cut { fragment, shrink, depth };
            assert_eq!(Cut::of(cut.number()), Some(cut));
        }
        let none = [0, 1, 1 << 24, 33 << 24 | 1, 1 << 24 | 257, 1 << 24 | 1 << 12 | 1, u32::MAX];
        assert!(none.iter().all(|&number| Cut::of(number).is_none()));
    }

    #[test]
    fn fragments_of_a_ramp_are_counted_however_many_there_are() {
        let cut = Cut { fragment: 400 << 10, shrink: 96 << 10, depth: 1 };
        let counts = [1, 400 << 10, 1 << 20, 3 << 20].map(|bytes| cut.count(bytes));
        // 400, 304, 208 and 112 KiB are 1 MiB; the fifth of what is left has 16 KiB, and so have all others.
        assert_eq!(counts, [1, 1, 4, 4 + 128]);
        assert_eq!(Cut { fragment: 4096, shrink: 0, depth: 1 }.count(u64::MAX), u32::MAX);
    }

    #[test]
    fn boundaries_are_aligned_and_cover() {
        for (fragment, offset, length) in [(16384, 0, 100_000), (16384, 5000, 70_000), (4096, 1, 5)]
        {
            let mut next = 0;
            while next < length {
                let end = boundary(Ramp::equal(fragment), offset, next).min(length);
                assert!(end > next && end - next <= fragment);
                assert!(end == length || (offset + end) % CUT_BYTES == 0);
                next = end;
            }
        }
    }
}
