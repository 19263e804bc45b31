//! A plan in the form the engine executes, with the costs it was made from. Plain values: making a
//! plan allocates nothing but itself.

use std::num::NonZeroU32;
use std::sync::Arc;

use piped_core::limits::{DEPTH_MAX, FRAGMENT_BYTES_MAX, FRAGMENT_BYTES_MIN};
use piped_core::sizes::Sizes;
use piped_core::units::Nanos;
use piped_model::evaluate;
use piped_model::fixed::FixedBest;
use piped_model::plan::Algorithm;
use piped_model::serial::{self, RAMP_MAX, Ramp};
use piped_model::stage::StageCost;
use piped_report::shard::Candidate;

pub use super::costs::PathCosts;
use super::guard::{ARMS_MAX, Seen};
use super::outlook::{Outlook, Track};
pub use super::path::STAGES_MAX;
use crate::solve::{Runs, Solved};

/// Fragments and offsets are cut at multiples of this many bytes, which every device's alignment
/// divides.
pub const CUT_BYTES: u64 = 4096;

/// Fragments of a serial plan are multiples of this many bytes, and no shorter.
pub(super) const SERIAL_BYTES: u32 = FRAGMENT_BYTES_MIN;

/// Fragments that a serial plan may hold after reading and before sending: the device works ahead
/// of the network.
const AHEAD: u32 = 4;

/// End of the fragment with byte `next` of a request at `offset`, both counted from the request's
/// start. Sizes count from the aligned offset, so that all inner fragments of a file are aligned.
pub fn boundary(sizes: &Sizes, offset: u64, next: u64) -> u64 {
    let skip = offset % CUT_BYTES;
    sizes.end(next + skip) - skip
}

/// End of the fragment with byte `at`, at most the request's `length`. A request of a page or less
/// is not cut; its receiver relies on that.
pub fn level_end(sizes: &Sizes, offset: u64, at: u64, length: u64) -> u64 {
    if length <= CUT_BYTES { length } else { boundary(sizes, offset, at).min(length) }
}

/// By how many bytes each fragment at the source is shorter than the one before.
pub fn shrink(cut: &Cut, bytes: u64) -> u64 {
    let mut sizes = cut.source.of(bytes);
    match (sizes.next(), sizes.next(), sizes.next()) {
        (Some(first), Some(second), Some(_)) => first.saturating_sub(second),
        _ => 0,
    }
}

/// How a plan cuts a request at each level, and how many fragments it has under way at the first
/// stage.
///
/// Between two levels, bytes are cut anew: frames and writes need not have the sizes of reads. A
/// level that a request does not pass has the sizes of its neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Fragments at the device that is read.
    pub source: Sizes,
    /// Payloads of frames, each part of one or more fragments.
    pub lane: Sizes,
    /// Fragments at the device that is written.
    pub sink: Sizes,
    /// The most fragments under way at the first stage.
    pub depth: u32,
}

impl Cut {
    /// A cut with equal lists of sizes at every level.
    pub fn same(sizes: Sizes, depth: u32) -> Self {
        Self { source: sizes, lane: sizes, sink: sizes, depth }
    }

    /// A number other than 0 that differs where plans do (but for one chance in 2^32). It names the
    /// plan to the peer, which reports the latency of transfers with it.
    pub fn number(&self) -> u32 {
        // FNV-1a.
        let mut hash = 0x811c_9dc5_u32;
        let mut add = |byte: u8| hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        for sizes in [&self.source, &self.lane, &self.sink] {
            let (bytes, length) = sizes.encode();
            bytes[..length].iter().copied().for_each(&mut add);
            add(0);
        }
        self.depth.to_le_bytes().into_iter().for_each(add);
        hash.max(1)
    }
}

impl From<&FixedBest> for Cut {
    fn from(plan: &FixedBest) -> Self {
        let bytes = |bytes: u64| bytes.min(FRAGMENT_BYTES_MAX.into());
        let (first, shrink) = (bytes(plan.fragment_bytes), bytes(plan.shrink_bytes));
        let least = u64::from(SERIAL_BYTES);
        let falling = (0..RAMP_MAX as u64)
            .map(|index| first.saturating_sub(index * shrink).max(least.min(first)));
        let sizes = match shrink {
            0 => Sizes::equal(first),
            _ => Sizes::list(falling.chain([least])).unwrap_or(Sizes::equal(first)),
        };
        Self::same(sizes, plan.depth.get().min(DEPTH_MAX))
    }
}

/// The latency of a transfer, and its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Length of the transfer in bytes.
    pub length: u64,
    /// The number of the transfer's plan ([`Cut::number`]).
    pub plan: u32,
    /// Time from the transfer's beginning to its end.
    pub time: Nanos,
    /// Whether the transfer waited for nobody, so that its latency says something about the
    /// prediction.
    pub alone: bool,
}

/// A plan that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    pub(super) cut: Cut,
    pub(super) algorithm: Algorithm,
    /// Number of fragments at each level: source, connection, sink.
    pub(super) counts: [u32; 3],
    /// The sizes as the model knows them; `None` where they differ between levels.
    pub(super) ramp: Option<Ramp>,
    /// Length in bytes of the request that the plan was made for.
    pub(super) length: u64,
    /// Time for one byte more or less, in seconds.
    pub(super) per_byte: f64,
    /// Predicted latency in seconds, with what the slowest fragments usually cost.
    pub(super) predicted_seconds: f64,
    pub(super) margin_seconds: f64,
    /// The part of the prediction that the slowest fragments cost, in seconds.
    pub(super) late_seconds: f64,
    /// The mean latency in seconds, stalls included.
    pub(super) mean_seconds: f64,
    /// How much longer the latency is that the plan is judged by, in seconds: see
    /// [`super::late`]. Outcomes say nothing of it.
    pub(super) tail_seconds: f64,
    /// How long the busiest server works for it, so that others wait.
    pub(super) work_seconds: f64,
}

impl Choice {
    /// Work of the busiest server as a part of the predicted latency.
    pub(super) fn part_of_work(&self) -> f64 {
        self.work_seconds / self.predicted_seconds
    }

    /// The latency in seconds that the plan is judged by.
    pub(super) fn judged(&self) -> f64 {
        self.predicted_seconds + self.tail_seconds
    }

    /// Whether fragments of the path's stages are known to differ.
    pub(super) fn is_spread(&self) -> bool {
        self.late_seconds != 0.0 || self.tail_seconds != 0.0
    }

    /// A plan with equal sizes at every level. `per_byte`: time of a byte at the slowest stage, in
    /// seconds.
    pub(super) fn fixed(plan: &FixedBest, length: u64, per_byte: f64) -> Self {
        let (first, shrink) = (plan.fragment_bytes, plan.shrink_bytes);
        Self {
            cut: Cut::from(plan),
            algorithm: plan.algorithm,
            counts: [u32::try_from(plan.count).unwrap_or(u32::MAX); 3],
            ramp: Some(Ramp { first, shrink, least: SERIAL_BYTES.into() }),
            length,
            per_byte,
            predicted_seconds: plan.predicted_seconds,
            margin_seconds: plan.margin_seconds,
            late_seconds: 0.0,
            mean_seconds: plan.predicted_seconds,
            tail_seconds: 0.0,
            work_seconds: 0.0,
        }
    }

    /// The plan, with what the path's busiest server works for it.
    pub(super) fn at_work(self, path: &PathCosts, runs: Runs) -> Self {
        let count = |stage| u64::from(self.counts[runs.level(stage)]);
        Self { work_seconds: path.work(self.length, count), ..self }
    }

    /// A plan with separate sizes for each level.
    pub(super) fn nested(plan: &Solved, length: u64, per_byte: f64) -> Self {
        let Solved { source, lane, sink, depth, .. } = *plan;
        let count = |sizes: Sizes| u32::try_from(sizes.count(length)).unwrap_or(u32::MAX);
        Self {
            cut: Cut { source, lane, sink, depth },
            algorithm: plan.algorithm,
            counts: [source, lane, sink].map(count),
            ramp: None,
            length,
            per_byte,
            predicted_seconds: plan.predicted_seconds,
            margin_seconds: plan.margin_seconds,
            late_seconds: 0.0,
            mean_seconds: plan.predicted_seconds,
            tail_seconds: 0.0,
            work_seconds: 0.0,
        }
    }

    /// The first size at each level, in bytes.
    pub(super) fn firsts(&self) -> [f64; 3] {
        [self.cut.source, self.cut.lane, self.cut.sink].map(|sizes| sizes.first() as f64)
    }

    /// How much the sizes of two plans differ, to find the nearest plan.
    pub(super) fn distance(&self, other: &Self) -> u64 {
        let firsts = self.firsts().into_iter().zip(other.firsts());
        let first: f64 = firsts.map(|(a, b)| (a - b).abs()).sum();
        let counts = self.counts.iter().zip(other.counts);
        first as u64 + counts.map(|(a, b)| u64::from(a.abs_diff(b))).sum::<u64>()
    }

    /// Predicted latency, in seconds, for a request of another length in the size class.
    pub(super) fn predicted_for(&self, length: u64) -> f64 {
        let more = (length as f64 - self.length as f64) * self.per_byte;
        (self.predicted_seconds + more).max(self.predicted_seconds / 2.0)
    }
}

/// A plan that was compared, and its latency in practice.
#[derive(Debug, Clone, Copy)]
struct Compared {
    number: u32,
    algorithm: Algorithm,
    firsts: [u64; 3],
    shrink: u64,
    depth: u32,
    predicted: f64,
    measured: Option<f64>,
    vetoed: bool,
    judged: Option<f64>,
}

/// The plans that were compared for a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Candidates {
    plans: [Option<Compared>; ARMS_MAX],
}

impl FromIterator<Seen> for Candidates {
    /// Takes the first `ARMS_MAX` candidates; the rest is left out.
    fn from_iter<T: IntoIterator<Item = Seen>>(seen: T) -> Self {
        let mut candidates = Self::default();
        for (place, Seen { plan, measured, vetoed }) in candidates.plans.iter_mut().zip(seen) {
            *place = Some(Compared {
                number: plan.cut.number(),
                algorithm: plan.algorithm,
                firsts: plan.firsts().map(|bytes| bytes as u64),
                shrink: plan.ramp.map_or(0, |ramp| ramp.shrink),
                depth: plan.cut.depth,
                predicted: plan.predicted_seconds,
                measured,
                vetoed,
                judged: plan.is_spread().then(|| plan.judged()),
            });
        }
        candidates
    }
}

impl Candidates {
    /// The candidates in the form of reports. `chosen`: number of the plan that is used.
    pub fn report(&self, chosen: Option<u32>) -> Vec<Candidate> {
        let candidate = |seen: Compared| Candidate {
            algorithm: seen.algorithm.to_string(),
            fragment_bytes: seen.firsts[0],
            lane_bytes: seen.firsts[1],
            sink_bytes: seen.firsts[2],
            shrink_bytes: seen.shrink,
            depth: seen.depth,
            chosen: Some(seen.number) == chosen,
            predicted_seconds: seen.predicted,
            measured_seconds: seen.measured,
            vetoed: seen.vetoed,
            judged_seconds: seen.judged,
        };
        self.plans.into_iter().flatten().map(candidate).collect()
    }
}

/// A plan as transfers execute it, with the candidates it was chosen from.
#[derive(Debug)]
pub struct Planned {
    /// Sizes at each level; one frame carries one fragment of the level between the devices.
    pub cut: Cut,
    choice: Choice,
    outlook: Outlook,
    /// Whether a stage begins only when the one before has everything (`planner = whole`).
    pub store_first: bool,
    /// Predicted latency for a request of the length that the plan was made for.
    pub predicted: Nanos,
    /// Half-width of the prediction interval.
    pub margin: Nanos,
    /// The algorithm that chose the sizes.
    pub chosen: Algorithm,
    /// The plans that this one was chosen from.
    pub candidates: Candidates,
    /// The stages of the plan, with the costs it was made from.
    pub path: Arc<PathCosts>,
}

impl Planned {
    /// The candidates in the form of reports, this plan marked as chosen.
    pub fn compared(&self) -> Vec<Candidate> {
        self.candidates.report(Some(self.choice.cut.number()))
    }

    /// A plan that was not chosen by its costs, without a prediction.
    pub(super) fn forced(cut: Cut, costs: PathCosts, length: u64) -> Self {
        let count = |sizes: Sizes| u32::try_from(sizes.count(length)).unwrap_or(u32::MAX);
        let choice = Choice {
            cut,
            algorithm: Algorithm::Static(cut.source.first()),
            counts: [cut.source, cut.lane, cut.sink].map(count),
            ramp: None,
            length,
            per_byte: 0.0,
            predicted_seconds: 0.0,
            margin_seconds: 0.0,
            late_seconds: 0.0,
            mean_seconds: 0.0,
            tail_seconds: 0.0,
            work_seconds: 0.0,
        };
        let (costs, candidates) = (Arc::new(costs), Candidates::default());
        Self::new(choice, false, &costs, candidates, Outlook::default())
    }

    pub(super) fn new(
        choice: Choice,
        store_first: bool,
        path: &Arc<PathCosts>,
        candidates: Candidates,
        outlook: Outlook,
    ) -> Self {
        let Choice { cut, length, algorithm, .. } = choice;
        let bytes = length as f64;
        let (cut, model) = match store_first {
            // One after the other: each stage has the whole request to itself.
            true => (
                Cut { depth: DEPTH_MAX, ..cut },
                path.iter().map(|(_, c)| c.stage_at(bytes).alone(bytes)).sum(),
            ),
            false => (cut, choice.predicted_seconds),
        };
        let predicted = model * outlook.bias;
        let margin = outlook.margin(choice.margin_seconds, predicted);
        Self {
            cut,
            choice,
            outlook,
            store_first,
            predicted: Nanos::from_seconds(predicted),
            margin: Nanos::from_seconds(margin),
            chosen: algorithm,
            candidates,
            path: Arc::clone(path),
        }
    }

    /// End of the read fragment with byte `at` of a request of `length` bytes at `offset`.
    pub fn source_end(&self, offset: u64, at: u64, length: u64) -> u64 {
        level_end(&self.cut.source, offset, at, length)
    }

    /// End of the frame with byte `at` of a request of `length` bytes at `offset`.
    pub fn lane_end(&self, offset: u64, at: u64, length: u64) -> u64 {
        level_end(&self.cut.lane, offset, at, length)
    }

    /// The next common end of a fragment and a frame after byte `at`. If that would be more than
    /// the longest fragment, the next end of a fragment.
    pub fn shared_end(&self, offset: u64, at: u64, length: u64) -> u64 {
        let most = at.saturating_add(FRAGMENT_BYTES_MAX.into());
        let mut end = self.source_end(offset, at, length);
        loop {
            let frame = self.lane_end(offset, end - 1, length);
            if frame <= end || frame > most {
                return end;
            }
            let further = self.source_end(offset, frame - 1, length);
            if further > most {
                return end;
            }
            end = further;
        }
    }

    /// Divisor, in bytes, of the end of every frame but the last: a frame ends where the plan says,
    /// or where a fragment does.
    pub fn grid(&self) -> u32 {
        let (mut a, mut b) = (self.cut.lane.grid(), self.cut.source.grid());
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a as u32
    }

    /// The margin in percent of the prediction, rounded up; 255 means that or more.
    pub fn margin_percent(&self) -> u8 {
        let percent = self.margin.0.saturating_mul(100).div_ceil(self.predicted.0.max(1));
        u8::try_from(percent).unwrap_or(u8::MAX)
    }

    /// Whether later measurements would change the prediction.
    pub(super) fn is_outdated(&self, track: &Track) -> bool {
        self.outlook.is_outdated(track)
    }

    /// Whether the first stage gets one fragment at a time.
    pub fn is_serial(&self) -> bool {
        self.cut.depth == 1
    }

    /// The most fragments that are read or being sent at once, with `depth` of them at the device:
    /// as many being sent as there. If one more could be read only after one is sent, a device that
    /// completes several together would get one at a time.
    pub fn held_max(depth: u32) -> u32 {
        if depth == 1 { AHEAD } else { 2 * depth }
    }

    /// Time that a write takes longer because the peer owes so many bytes of credit.
    pub fn owed(&self, length: u64, owed: u64) -> Nanos {
        Nanos::from_seconds(self.path.owed_seconds(self.cut.lane.first(), length, owed))
    }

    /// The prediction for a request of another length in the size class.
    pub fn predicted_for(&self, length: u64) -> Nanos {
        if self.store_first {
            return self.predicted;
        }
        let depth = NonZeroU32::new(self.cut.depth);
        let model = match self.choice.ramp {
            // A walk through all fragments for each request would be too much.
            _ if self.path.is_shared() => self.choice.predicted_for(length),
            Some(ramp) => {
                let means = self.path.with(|costs| match self.is_serial() {
                    true => serial::seconds(costs, length, &ramp),
                    false => evaluate::uniform(costs, ramp.first, length, depth),
                });
                means + self.choice.late_seconds + self.path.delay(ramp.first, length)
            }
            None => self.choice.predicted_for(length),
        };
        Nanos::from_seconds(model * self.outlook.bias)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serial(first: u64, shrink: u64) -> Cut {
        Cut::from(&FixedBest {
            algorithm: Algorithm::Serial,
            fragment_bytes: first,
            shrink_bytes: shrink,
            count: 0,
            depth: NonZeroU32::MIN,
            predicted_seconds: 0.0,
            margin_seconds: 0.0,
        })
    }

    #[test]
    fn plans_that_differ_have_other_numbers() {
        let sizes = [4096, 8192, 1 << 20].map(Sizes::equal);
        let mut numbers: Vec<u32> = Vec::new();
        for (source, lane) in sizes.into_iter().flat_map(|a| sizes.map(|b| (a, b))) {
            for depth in [1, 8, DEPTH_MAX] {
                numbers.push(Cut { source, lane, sink: lane, depth }.number());
                numbers.push(Cut { source, lane, sink: source, depth }.number());
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        // Where lane and source are alike both are the same plan.
        assert_eq!(numbers.len(), 9 * 6 - 3 * 3);
        assert!(numbers.iter().all(|&number| number != 0));
    }

    #[test]
    fn fragments_of_a_ramp_are_counted_however_many_there_are() {
        let cut = serial(400 << 10, 96 << 10);
        let counts = [1, 400 << 10, 1 << 20, 3 << 20].map(|bytes| cut.source.count(bytes));
        // 400, 304, 208 and 112 KiB are 1 MiB; the fifth of what is left has 16 KiB, and so have
        // all others.
        assert_eq!(counts, [1, 1, 4, 4 + 128]);
    }

    #[test]
    fn boundaries_are_aligned_and_cover() {
        for (fragment, offset, length) in [(16384, 0, 100_000), (16384, 5000, 70_000), (4096, 1, 5)]
        {
            let mut next = 0;
            while next < length {
                let end = boundary(&Sizes::equal(fragment), offset, next).min(length);
                assert!(end > next && end - next <= fragment);
                assert!(end == length || (offset + end) % CUT_BYTES == 0);
                next = end;
            }
        }
    }
}
