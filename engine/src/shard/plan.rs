//! The planner: stages with their meters, and fragment sizes from their costs.
//!
//! Every stage execution passes a meter; those that say something (an empty stage, or a busy one)
//! become samples. An estimate is *published* only when it moved by more than a few percent
//! ([`REPUBLISH`]): plans are cached under the version of the published costs, so a quiet system plans
//! each (path, size class) once and a look-up is a hash.
//!
//! The side that holds the data plans. What it cannot time itself, the wire as its receiver sees it,
//! comes as reports; a report is a claim and is bounded before it is used.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use piped_model::estimate::{Estimate, Estimator, Meter, Sample, Ticket};
use piped_model::evaluate;
use piped_model::fixed::{self, Constraints, FixedBest};
use piped_model::stage::{Stage, StageCost};
use piped_model::units::Nanos;

use super::Shard;
use super::disk::Direction;
use super::slab::Key;
use crate::command::{CalibrationMode, FileTarget, LaneClass, PlannerMode};
use crate::ids::{DeviceId, PeerId};
use crate::limits::{DEPTH_MAX, FRAGMENT_BYTES_MAX, FRAGMENT_BYTES_MIN};
use crate::report::{Candidate, StageReport};
use crate::wire::{Message, ReportedStage};

/// A stage's place in the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StageIndex(u16);

impl StageIndex {
    pub(super) const NONE: Self = Self(u16::MAX);
}

/// A cost that moved by less than this fraction is the same cost.
const REPUBLISH: f64 = 0.05;

/// Samples between two looks at a stage's estimate.
const SAMPLES_PER_LOOK: u64 = 16;

/// Samples between two reports to the sending side.
const SAMPLES_PER_REPORT: u64 = 64;

/// Fragments and offsets are cut at multiples of this: every device's alignment divides it.
const CUT_BYTES: u64 = 4096;

/// Plans kept; beyond that the cache starts over (a busy node has tens).
const PLANS_MAX: usize = 1024;

/// Fixed sizes shown beside the chosen one.
const STATIC_SIZES: [u64; 3] = [64 << 10, 256 << 10, 1 << 20];

/// Sizes at which two costs are compared.
const PROBE_BYTES: [f64; 4] = [4096.0, 65_536.0, 262_144.0, 1_048_576.0];

/// A modern SSD and a loopback connection, to begin with: wrong for most machines, and replaced by
/// what this one measures within a few requests.
const DISK_PRIOR: Stage =
    Stage { latency: 60e-6, overhead: 17e-6, per_byte: 0.5e-9, window: NonZeroU32::new(32) };
const NET_PRIOR: Stage = Stage { latency: 20e-6, overhead: 5e-6, per_byte: 0.3e-9, window: None };
const COPY_PRIOR: Stage = Stage { latency: 0.0, overhead: 1e-6, per_byte: 0.1e-9, window: None };

/// How many samples the prior is worth.
const PRIOR_WEIGHT: f64 = 2.0;

/// Where stretches of `fragment` bytes end, counted from a request's start: at multiples of the
/// fragment behind the aligned offset, so that all inner fragments are aligned.
pub(super) fn boundary(fragment: u64, offset: u64, next: u64) -> u64 {
    let base = offset / CUT_BYTES * CUT_BYTES;
    let index = (offset + next - base) / fragment.max(1);
    (index + 1) * fragment.max(1) + base - offset
}

/// A plan in the form the engine executes, with what it was made from.
#[derive(Debug)]
pub(super) struct Planned {
    /// Bytes of a fragment, and of the frame that carries it.
    pub(super) fragment: u32,
    /// Fragments under way at the first stage.
    pub(super) depth: u32,
    /// Store all, then forward (`planner = whole`).
    pub(super) store_first: bool,
    /// For a request of `length` bytes.
    pub(super) predicted: Nanos,
    pub(super) margin: Nanos,
    pub(super) chosen: String,
    pub(super) stages: Vec<StageReport>,
    pub(super) candidates: Vec<Candidate>,
    path: Vec<Estimate>,
}

impl Planned {
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
        Nanos::from_seconds(evaluate::uniform(&self.path, u64::from(self.fragment), length, depth))
    }
}

/// What names a stage.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Resource {
    Disk { device: DeviceId, write: bool },
    Net { peer: String, class: LaneClass, outbound: bool, incoming: bool },
    Copy,
}

#[derive(Debug)]
struct StageState {
    name: String,
    meter: Meter,
    estimator: Estimator,
    published: Estimate,
    /// Counts publications.
    version: u32,
    samples: u64,
    looked_at: u64,
    /// Size of the last sample.
    last_bytes: u64,
    reported: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Planner {
    mode: PlannerMode,
    calibration: CalibrationMode,
    stages: Vec<StageState>,
    index: HashMap<Resource, StageIndex>,
    copy: StageIndex,
    plans: HashMap<PlanKey, Arc<Planned>>,
    /// Fragment sizes peers used last, by peer and size class: where the next data will land.
    fragments: HashMap<(PeerId, u8), u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PlanKey {
    first: StageIndex,
    second: StageIndex,
    class: u16,
    versions: (u32, u32),
}

/// Lengths within an eighth of a power of two share a plan.
fn size_class(length: u64) -> u16 {
    let log = 63 - length.max(8).leading_zeros();
    ((log << 3) | ((length.max(8) >> (log - 3)) & 7) as u32) as u16
}

impl Planner {
    pub(super) fn new(mode: PlannerMode, calibration: CalibrationMode) -> Self {
        let mut planner = Self {
            mode,
            calibration,
            stages: Vec::new(),
            index: HashMap::new(),
            copy: StageIndex::NONE,
            plans: HashMap::new(),
            fragments: HashMap::new(),
        };
        planner.copy = planner.stage(Resource::Copy, || String::from("copy"), COPY_PRIOR);
        planner
    }

    pub(super) fn mode(&self) -> PlannerMode {
        self.mode
    }

    pub(super) fn set_mode(&mut self, mode: PlannerMode) {
        self.mode = mode;
        self.plans.clear();
    }

    pub(super) fn calibration(&self) -> CalibrationMode {
        self.calibration
    }

    pub(super) fn set_calibration(&mut self, calibration: CalibrationMode) {
        self.calibration = calibration;
    }

    fn stage(
        &mut self,
        resource: Resource,
        name: impl FnOnce() -> String,
        prior: Stage,
    ) -> StageIndex {
        if let Some(&index) = self.index.get(&resource) {
            return index;
        }
        let index = StageIndex(self.stages.len() as u16);
        let estimator = Estimator::new(prior.window).with_prior(prior, PRIOR_WEIGHT);
        self.stages.push(StageState {
            name: name(),
            meter: Meter::new(),
            published: estimator.estimate(),
            estimator,
            version: 0,
            samples: 0,
            looked_at: 0,
            last_bytes: 0,
            reported: false,
        });
        self.index.insert(resource, index);
        index
    }

    fn state(&mut self, index: StageIndex) -> Option<&mut StageState> {
        self.stages.get_mut(usize::from(index.0))
    }

    /// The stage of a device's reads or writes.
    pub(super) fn disk_stage(&mut self, device: DeviceId, write: bool) -> StageIndex {
        let name = || {
            let verb = if write { "write" } else { "read" };
            format!("disk {}:{} {verb}", device.0 >> 8, device.0 & 0xff)
        };
        self.stage(Resource::Disk { device, write }, name, DISK_PRIOR)
    }

    /// The stages of a lane: what we receive, and what the other side receives from us.
    pub(super) fn net_stages(
        &mut self,
        peer: &str,
        class: LaneClass,
        outbound: bool,
    ) -> (StageIndex, StageIndex) {
        let mut stage = |incoming: bool| {
            let resource = Resource::Net { peer: peer.to_owned(), class, outbound, incoming };
            let lane = match class {
                LaneClass::Latency => "latency",
                LaneClass::Bulk => "bulk",
            };
            let side = if outbound { "asked" } else { "served" };
            let way = if incoming { "in" } else { "out" };
            self.stage(resource, || format!("net {peer} {lane} {side} {way}"), NET_PRIOR)
        };
        (stage(true), stage(false))
    }

    pub(super) fn arrive(&mut self, stage: StageIndex, now: Nanos) -> Ticket {
        match self.state(stage) {
            Some(state) => state.meter.arrive(now),
            None => Meter::new().arrive(now),
        }
    }

    /// An execution of a stage ended. One that failed or came back short says nothing about cost.
    pub(super) fn depart(
        &mut self,
        stage: StageIndex,
        ticket: Ticket,
        bytes: u32,
        counts: bool,
        now: Nanos,
    ) {
        let Some(state) = self.state(stage) else { return };
        if !counts {
            return state.meter.abandon(ticket, now);
        }
        let bytes = u64::from(bytes);
        let alone = state.estimator.alone_seconds(bytes);
        if let Some(sample) = state.meter.depart(ticket, bytes, now, alone) {
            self.observe(stage, sample);
        }
    }

    pub(super) fn sample_copy(&mut self, bytes: u32, time: Nanos) {
        let sample = Sample::Backlogged { bytes: u64::from(bytes), seconds: time.seconds() };
        self.observe(self.copy, sample);
    }

    pub(super) fn sample_alone(&mut self, stage: StageIndex, bytes: u32, time: Nanos) {
        self.observe(stage, Sample::Alone { bytes: u64::from(bytes), seconds: time.seconds() });
    }

    pub(super) fn sample_backlogged(&mut self, stage: StageIndex, bytes: u32, time: Nanos) {
        self.observe(
            stage,
            Sample::Backlogged { bytes: u64::from(bytes), seconds: time.seconds() },
        );
    }

    fn observe(&mut self, stage: StageIndex, sample: Sample) {
        let calibration = self.calibration;
        let Some(state) = self.state(stage) else { return };
        if calibration == CalibrationMode::Off {
            return;
        }
        state.estimator.observe(sample);
        state.samples += 1;
        state.last_bytes = match sample {
            Sample::Alone { bytes, .. } | Sample::Backlogged { bytes, .. } => bytes,
        };
        let due =
            state.samples < SAMPLES_PER_LOOK || state.samples - state.looked_at >= SAMPLES_PER_LOOK;
        if calibration == CalibrationMode::Live && due && !state.reported {
            state.looked_at = state.samples;
            state.publish();
        }
    }

    /// A peer says what our data cost it. The figures are bounded, not believed.
    pub(super) fn handle_report(
        &mut self,
        peer: Option<PeerId>,
        net_out: StageIndex,
        message: Message,
    ) {
        let Message::Report { stage, latency_ns, overhead_ns, per_byte_ps, size_bytes, .. } =
            message
        else {
            return;
        };
        if stage != ReportedStage::Net || self.calibration != CalibrationMode::Live {
            let _ = peer;
            return;
        }
        let claimed = Stage {
            latency: (latency_ns as f64 * 1e-9).min(10.0),
            overhead: (overhead_ns as f64 * 1e-9).clamp(1e-7, 1.0),
            per_byte: (per_byte_ps as f64 * 1e-12).clamp(1e-12, 1e-3),
            window: None,
        };
        let Some(state) = self.state(net_out) else { return };
        let bytes = u64::from(size_bytes.max(1));
        // Fed as what it says about its size, so that several reports make a curve.
        state.reported = true;
        let alone = claimed.alone(bytes as f64);
        let backlogged = claimed.occupancy(bytes as f64);
        for _ in 0..4 {
            state.estimator.observe(Sample::Alone { bytes, seconds: alone });
            state.estimator.observe(Sample::Backlogged { bytes, seconds: backlogged });
        }
        state.publish();
    }

    /// A report about what this side receives, when enough was seen since the last.
    pub(super) fn report_due(&mut self, stage: StageIndex, reported: &mut u64) -> Option<Message> {
        let state = self.state(stage)?;
        if state.samples < *reported + SAMPLES_PER_REPORT && *reported > 0 || state.samples < 4 {
            return None;
        }
        *reported = state.samples;
        // At the size seen last: traffic of many sizes makes a curve, and nothing is extrapolated.
        let bytes = state.last_bytes;
        let estimate = state.estimator.estimate_for(bytes);
        let line = estimate.stage_at(bytes as f64);
        Some(Message::Report {
            stage: ReportedStage::Net,
            handle: 0,
            latency_ns: (line.latency * 1e9) as u64,
            overhead_ns: (line.overhead * 1e9) as u64,
            per_byte_ps: (line.per_byte * 1e12) as u64,
            window: 0,
            confidence: (estimate.confidence * 100.0).clamp(0.0, 100.0) as u8,
            size_bytes: bytes as u32,
        })
    }

    /// The fragment size a peer used last for requests of this length.
    pub(super) fn expected_fragment(&self, peer: PeerId, length: u64) -> u64 {
        let known = self.fragments.get(&(peer, (size_class(length) >> 3) as u8));
        known.map_or(u64::from(FRAGMENT_BYTES_MAX), |&bytes| u64::from(bytes))
    }

    pub(super) fn learn_fragment(&mut self, peer: PeerId, length: u64, fragment: u32) {
        self.fragments.insert((peer, (size_class(length) >> 3) as u8), fragment.max(1));
    }

    /// The plan for a request over one or two stages.
    fn plan(&mut self, first: StageIndex, second: StageIndex, length: u64) -> Arc<Planned> {
        let version = |index: StageIndex| {
            self.stages.get(usize::from(index.0)).map_or(0, |state| state.version)
        };
        let versions = (version(first), version(second));
        let key = PlanKey { first, second, class: size_class(length), versions };
        if let Some(planned) = self.plans.get(&key) {
            return Arc::clone(planned);
        }
        let planned = Arc::new(self.make_plan(first, second, length));
        if self.plans.len() >= PLANS_MAX {
            self.plans.clear();
        }
        self.plans.insert(key, Arc::clone(&planned));
        planned
    }

    fn make_plan(&self, first: StageIndex, second: StageIndex, length: u64) -> Planned {
        let stages: Vec<&StageState> = [first, second]
            .into_iter()
            .filter_map(|index| self.stages.get(usize::from(index.0)))
            .collect();
        let path: Vec<Estimate> = stages.iter().map(|state| state.published).collect();
        let constraints = Constraints {
            smallest: u64::from(FRAGMENT_BYTES_MIN),
            largest: u64::from(FRAGMENT_BYTES_MAX),
            alignment: CUT_BYTES,
            depth_max: DEPTH_MAX,
            fragments_max: u32::MAX,
        };
        let candidates = fixed::candidates(&path, length, &constraints, &STATIC_SIZES);
        let (chosen, store_first) = match self.mode {
            PlannerMode::Auto => (least(&candidates), false),
            PlannerMode::Fixed(bytes) => {
                (fixed::static_size(&path, length, u64::from(bytes), &constraints), false)
            }
            PlannerMode::Whole => (fixed::whole(&path, length, &constraints), true),
        };
        let (depth, predicted) = match store_first {
            // One after the other: each stage has the whole request to itself.
            true => (
                DEPTH_MAX,
                path.iter().map(|cost| cost.stage_at(length as f64).alone(length as f64)).sum(),
            ),
            false => (chosen.depth.get(), chosen.predicted_seconds),
        };
        Planned {
            fragment: chosen.fragment_bytes.min(u64::from(FRAGMENT_BYTES_MAX)) as u32,
            depth: depth.clamp(1, DEPTH_MAX),
            store_first,
            predicted: Nanos::from_seconds(predicted),
            margin: Nanos::from_seconds(chosen.margin_seconds),
            chosen: chosen.algorithm.to_string(),
            stages: stages.iter().map(|state| state.report()).collect(),
            candidates: candidates.iter().map(candidate).collect(),
            path,
        }
    }

    pub(super) fn report(&self) -> Vec<StageReport> {
        self.stages.iter().map(StageState::report).collect()
    }
}

/// The candidate with the least latency; of equals the first, which has the larger fragments.
fn least(candidates: &[FixedBest]) -> FixedBest {
    let mut best = candidates[0];
    for candidate in &candidates[1..] {
        if candidate.predicted_seconds < best.predicted_seconds {
            best = *candidate;
        }
    }
    best
}

fn candidate(plan: &FixedBest) -> Candidate {
    Candidate {
        algorithm: plan.algorithm.to_string(),
        fragment_bytes: plan.fragment_bytes,
        predicted_seconds: plan.predicted_seconds,
    }
}

impl StageState {
    /// Lets plans see the present estimate, if it differs from what they saw.
    fn publish(&mut self) {
        let estimate = self.estimator.estimate();
        let moved = PROBE_BYTES.iter().any(|&bytes| {
            let (old, new) = (self.published.stage_at(bytes), estimate.stage_at(bytes));
            differs(old.alone(bytes), new.alone(bytes))
                || differs(old.occupancy(bytes), new.occupancy(bytes))
        });
        if moved {
            self.published = estimate;
            self.version += 1;
        }
    }

    fn report(&self) -> StageReport {
        let estimate = &self.published;
        let line = estimate.stage_at(PROBE_BYTES[1]);
        let now = self.estimator.estimate();
        let note = if now.samples_alone + now.samples_backlogged == 0 {
            String::from("no samples yet: the prior")
        } else if !now.identifiable {
            String::from("sizes vary too little to tell g from G")
        } else {
            String::from("at 64 KiB")
        };
        StageReport {
            name: self.name.clone(),
            latency_seconds: line.latency,
            overhead_seconds: line.overhead,
            per_byte_seconds: line.per_byte,
            window: line.window.map(NonZeroU32::get),
            samples_alone: now.samples_alone,
            samples_backlogged: now.samples_backlogged,
            confidence: now.confidence,
            reported: self.reported,
            note,
        }
    }
}

fn differs(old: f64, new: f64) -> bool {
    (old - new).abs() > REPUBLISH * old.max(new)
}

impl Shard {
    /// The plan of a local file transfer: one stage, so only depth and the largest operation matter.
    pub(super) fn plan_local(
        &mut self,
        key: Key,
        target: FileTarget,
        direction: Direction,
        length: u64,
    ) -> Arc<Planned> {
        if let Some(planned) = self.transfers.get(key).and_then(|t| t.plan.clone()) {
            return planned;
        }
        let stage = self.planner.disk_stage(target.device, direction == Direction::Write);
        let planned = self.planner.plan(stage, StageIndex::NONE, length);
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.plan = Some(Arc::clone(&planned));
        }
        planned
    }

    /// The plan of a write to a peer: this side holds the data.
    pub(super) fn plan_write(&mut self, key: Key, peer: PeerId) -> Arc<Planned> {
        let transfer = self.transfers.get(key);
        if let Some(planned) = transfer.and_then(|t| t.plan.clone()) {
            return planned;
        }
        let length = transfer.map_or(0, |t| t.length);
        let class =
            transfer.map_or(LaneClass::Bulk, |t| super::remote::lane_class(t.class, t.length));
        let net = self
            .outbound
            .get(&peer)
            .and_then(|link| link.lane(class))
            .and_then(|lane| self.lanes.get(lane))
            .map_or(StageIndex::NONE, |lane| lane.stage_out);
        let planned = self.planner.plan(net, StageIndex::NONE, length);
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.plan = Some(Arc::clone(&planned));
        }
        planned
    }

    /// The plan of a peer's read: our disk (or nothing, for memory), then its lane.
    pub(super) fn plan_serve(
        &mut self,
        key: Key,
        device: Option<DeviceId>,
    ) -> Option<Arc<Planned>> {
        let serve = self.serves.get(key)?;
        if let Some(planned) = &serve.plan {
            return Some(Arc::clone(planned));
        }
        let length = serve.length;
        let net = self.lanes.get(serve.lane)?.stage_out;
        let planned = match device {
            Some(device) => {
                let disk = self.planner.disk_stage(device, false);
                self.planner.plan(disk, net, length)
            }
            None => self.planner.plan(net, StageIndex::NONE, length),
        };
        self.serves.get_mut(key)?.plan = Some(Arc::clone(&planned));
        Some(planned)
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

    #[test]
    fn size_classes_grow_with_the_size() {
        let sizes: Vec<u64> = (0..30).flat_map(|log| [(1 << log) + 7, 3 << log]).collect();
        for pair in sizes.windows(2) {
            if pair[0] < pair[1] {
                assert!(size_class(pair[0]) <= size_class(pair[1]));
            }
        }
        assert_ne!(size_class(1 << 20), size_class(3 << 19));
        assert_eq!(size_class(1 << 20), size_class((1 << 20) + 4096));
    }
}
