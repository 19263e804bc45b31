//! The planner: stages with their meters (`stages`), and fragment sizes from their costs.
//!
//! Every execution of a stage passes a meter; an execution of an empty or a busy stage becomes a
//! sample. An estimate is *published* only when it moved by more than a few percent (`REPUBLISH` in
//! `stage.rs`), or when it rests on a size that was guessed before. Plans are made anew only when
//! the costs of their whole path have moved (`moved`). A quiet system thus plans each (path, size
//! class) once, and a look-up is a hash.
//!
//! The side that holds the data plans. It cannot time the wire as its receiver sees it; that comes
//! as reports. A report is a claim and is bounded before it is used.

mod draft;
mod near;
mod questions;
mod retired;
mod stages;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use piped_core::ids::DeviceId;
use piped_core::limits::{DEPTH_MAX, FRAGMENT_BYTES_MAX};
use piped_core::link::{LaneClass, ReportedStage};
use piped_core::modes::{CalibrationMode, ForcedPlan, PlannerMode};
use piped_core::units::Nanos;
use piped_model::estimate::{Meter, Sample, Summary, Ticket};
use piped_model::stage::{Stage, StageCost};
use piped_report::dial::DialPlace;
use piped_report::shard::{Held, ServedWith, StageReport, StageResource, device_name};

pub use self::draft::{Draft, Part};
use self::questions::{QUESTION_BYTES_MIN, Questions};
use self::retired::Retired;
pub use super::path::{Path, path_of};
pub use super::planned::Outcome;

use super::candidates::{Serial, per_byte, propose};
use super::costs::{MOVED_LITTLE, MOVED_MUCH};
use super::guard::Guard;
use super::outlook::{Track, Tracks};
use super::path::{STAGES_MAX, class_length, size_class};
use super::planned::{Candidates, Choice, Cut, PathCosts, Planned};
use super::priors::{Memory, known};
use super::servers::Servers;
use super::stage::{
    CACHE_PRIOR, CHECK_PRIOR, COPY_PRIOR, DIAL_PRIOR, DISK_PRIOR, HOST_PRIOR, NET_PRIOR,
    SYNC_PRIOR, StageState,
};
use super::stage::{Passage, StageIndex};
use super::told::{TOLD_WEIGHT_MIN, Told, behind};
use crate::kept::{KeptStage, KnownStage};
use crate::solve::{PlanAnswer, PlanRequest, Runs, SOLVED_MAX};

/// Plans that are kept, in all and for one connection: a busy node has tens. Beyond that, the plan
/// that was used longest ago is dropped. A connection with its full share drops its own, so that no
/// peer displaces what was learned about others.
const PLANS_MAX: usize = 1024;
const PLANS_PER_LANE_MAX: usize = 256;

/// Stages with their costs, and the plans that were made from these.
#[derive(Debug)]
pub struct Planner {
    mode: PlannerMode,
    calibration: CalibrationMode,
    /// The plan that simulations set instead of computed ones.
    forced: Option<Cut>,
    serial_first: bool,
    stages: Vec<StageState>,
    index: HashMap<StageResource, StageIndex>,
    /// Costs that stages not yet in use will begin with.
    memory: Memory,
    /// Which of the stages share a server.
    servers: Servers,
    /// Indices of stages that are gone.
    free: Vec<StageIndex>,
    copy: StageIndex,
    check: StageIndex,
    plans: BTreeMap<PlanKey, Box<Cached>>,
    /// Number of plans that were given out.
    uses: u64,
    tracks: Tracks,
    retired: Retired,
    questions: Questions,
}

/// In the order in which keys differ soonest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PlanKey {
    class: u16,
    /// Whether the plan is one fragment, because that is asked for.
    whole: bool,
    path: Path,
    /// Whether a mode without choice made the plans. Meanwhile, measurements of `auto` are kept.
    forced: bool,
}

/// The plans of a path and size class.
#[derive(Debug)]
struct Cached {
    /// Versions of the published costs that the plans were made from, or that moved little since.
    versions: [u32; STAGES_MAX],
    /// A number that changes whenever the plans are made anew.
    renewal: u64,
    /// Transfers since the plans were made.
    served: u32,
    /// Length in bytes of the request that was planned for.
    length: u64,
    guard: Guard,
    costs: Arc<PathCosts>,
    /// Plans with separate sizes for each level, from the last answer; its costs may be a little
    /// older.
    nested: Vec<Choice>,
    /// Index of the track that learns latencies against predictions.
    track: usize,
    /// Predicted latency of what all plans are compared by, in seconds.
    reference: f64,
    /// The planner's `uses` when these plans were last used.
    used: u64,
    /// Whether there was no room for the plans' question.
    is_unasked: bool,
}

/// Transfers that get the old plans if costs moved by an amount in between. Making plans takes as
/// long as a short transfer.
const SERVED_MIN: u32 = 16;

/// The size class of a track; a bit keeps plans apart that are one fragment.
fn track_class(key: &PlanKey) -> u16 {
    key.class | u16::from(key.whole) << 15
}

impl Cached {
    /// By how much the path's costs have moved since its plans were made, as a fraction.
    fn moved(&self, versions: &[u32; STAGES_MAX], stages: &[StageState]) -> f64 {
        match self.versions == *versions {
            true => 0.0,
            false => self.costs.moved(stages, self.length),
        }
    }

    /// Whether the next transfer gets one of the present plans, given how much their costs have
    /// moved.
    fn may_stay(&self, moved: f64) -> bool {
        moved <= MOVED_LITTLE || moved <= MOVED_MUCH && self.served < SERVED_MIN
    }

    /// Decides for the next transfer whether the present plans stay, and notes costs that moved
    /// little.
    fn stays(&mut self, versions: &[u32; STAGES_MAX], stages: &[StageState]) -> bool {
        let moved = self.moved(versions, stages);
        if moved <= MOVED_LITTLE {
            self.versions = *versions;
        }
        self.may_stay(moved)
    }

    /// The plan of the next transfer, or the index of the candidate that must be made into one.
    fn choose(&mut self, tracks: &Tracks, live: bool, others: u32) -> Result<Arc<Planned>, usize> {
        let guard = &mut self.guard;
        let index = guard.pick(live, others);
        let is_stale = guard.is_stale(index);
        let planned = guard.planned(index).as_ref();
        let fresh =
            planned.filter(|planned| !is_stale && !planned.is_outdated(&tracks[self.track]));
        fresh.map(Arc::clone).ok_or(index)
    }
}

impl Planner {
    /// A planner that knows nothing yet. `serial_first`: begin with plans that ask devices for one
    /// fragment at a time.
    pub fn new(mode: PlannerMode, calibration: CalibrationMode, serial_first: bool) -> Self {
        let mut planner = Self {
            mode,
            calibration,
            forced: None,
            serial_first,
            stages: Vec::new(),
            index: HashMap::new(),
            memory: Memory::default(),
            servers: Servers::default(),
            free: Vec::new(),
            copy: StageIndex::NONE,
            check: StageIndex::NONE,
            plans: BTreeMap::new(),
            uses: 0,
            tracks: Tracks::default(),
            retired: Retired::new(),
            questions: Questions::new(),
        };
        planner.copy = planner.stage(StageResource::Copy, || String::from("copy"), COPY_PRIOR);
        planner.check = planner.stage(StageResource::Check, || String::from("check"), CHECK_PRIOR);
        planner
    }

    /// The stage of reads that the page cache answers for a device.
    pub fn cache_stage(&mut self, device: DeviceId) -> StageIndex {
        let name = || format!("page cache {} read", device_name(device));
        self.stage(StageResource::Cache { device }, name, CACHE_PRIOR)
    }

    /// How fragment sizes are chosen at present.
    pub fn mode(&self) -> PlannerMode {
        self.mode
    }

    /// Sets how fragment sizes are chosen from now on.
    pub fn set_mode(&mut self, mode: PlannerMode) {
        self.mode = mode;
        self.plans.retain(|key, _| !key.forced);
    }

    /// Whether costs follow what is measured.
    pub fn calibration(&self) -> CalibrationMode {
        self.calibration
    }

    /// Sets one plan for everything; with `None` the planner chooses again.
    pub fn force(&mut self, plan: Option<ForcedPlan>) {
        self.forced = plan.map(|ForcedPlan { source, lane, sink, depth }| Cut {
            source,
            lane,
            sink,
            depth: depth.clamp(1, DEPTH_MAX),
        });
    }

    /// Sets whether costs follow samples from now on.
    pub fn set_calibration(&mut self, calibration: CalibrationMode) {
        self.calibration = calibration;
    }

    /// What a connection lets be under way at once, from now on.
    pub fn hold(&mut self, stage: StageIndex, held: Held) {
        self.stages.get_mut(usize::from(stage.0)).into_iter().for_each(|state| state.hold(held));
    }

    /// The path of a peer's read here: this node's disk (absent for memory), the checksum, the
    /// connection, and the peer's checksum. The latter is assumed to cost what it costs here.
    /// Checksums of payloads are assumed to be wanted.
    pub fn path_out(&self, disk: Option<StageIndex>, net: StageIndex) -> Path {
        match disk {
            Some(disk) => path_of([disk, self.check, net, self.check]),
            None => path_of([self.check, net, self.check]),
        }
    }

    fn key(&self, path: Path, length: u64) -> PlanKey {
        PlanKey {
            path,
            class: size_class(length),
            forced: self.mode != PlannerMode::Auto,
            whole: false,
        }
    }

    /// The plan for a request over these stages.
    pub fn plan(&mut self, path: Path, length: u64) -> Arc<Planned> {
        self.plan_beside(path, length, 0)
    }

    /// The plan for a request beside so many others like it, which overlap with it, and wait for
    /// what its fragments cost.
    pub fn plan_beside(&mut self, path: Path, length: u64, others: u32) -> Arc<Planned> {
        self.plan_by(self.key(path, length), length, others)
    }

    /// The plan of one fragment, whatever the path's costs.
    pub fn plan_whole(&mut self, path: Path, length: u64) -> Arc<Planned> {
        self.plan_by(PlanKey { whole: true, ..self.key(path, length) }, length, 0)
    }

    fn plan_by(&mut self, key: PlanKey, length: u64, others: u32) -> Arc<Planned> {
        if let Some(cut) = self.forced {
            return Arc::new(Planned::forced(cut, self.costs(key.path, length), length));
        }
        let versions = self.versions(&key.path);
        let live = self.calibration == CalibrationMode::Live;
        self.uses += 1;
        let uses = self.uses;
        let stages = &self.stages;
        let known = self.plans.get_mut(&key);
        let known = known.and_then(|cached| cached.stays(&versions, stages).then_some(cached));
        let chosen = match known {
            Some(cached) => {
                (cached.used, cached.served) = (uses, cached.served.saturating_add(1));
                let chosen = cached.choose(&self.tracks, live, others);
                if cached.is_unasked {
                    self.ask(key);
                }
                chosen
            }
            None => {
                self.renew(key, versions, length);
                let cached = self.plans.get_mut(&key).expect("made above");
                cached.choose(&self.tracks, live, others)
            }
        };
        chosen.unwrap_or_else(|index| self.make(key, index))
    }

    /// Versions of the published costs that plans over a path see now.
    fn versions(&self, path: &Path) -> [u32; STAGES_MAX] {
        path.map(|index| self.stages.get(usize::from(index.0)).map_or(0, |state| state.version))
    }

    /// Makes a candidate into the form the engine executes, with present figures of all candidates.
    fn make(&mut self, key: PlanKey, index: usize) -> Arc<Planned> {
        let store_first = self.mode == PlannerMode::Whole;
        let cached = self.plans.get_mut(&key).expect("chosen from");
        let Cached { guard, costs, track, reference, .. } = &mut **cached;
        self.retired.add(guard.planned(index).take());
        let candidates = guard.seen().collect();
        let (choice, outlook) = (guard.plan(index), self.tracks[*track].outlook(*reference));
        let planned = Planned::new(choice, store_first, costs, candidates, outlook);
        let planned = self.retired.share(planned);
        *guard.planned(index) = Some(Arc::clone(&planned));
        planned
    }

    /// Makes the plans of a path and size class anew from the published costs.
    fn renew(&mut self, key: PlanKey, versions: [u32; STAGES_MAX], length: u64) {
        if !self.plans.contains_key(&key) {
            self.make_room(&key.path);
        }
        let track = self.tracks.place(key.path, track_class(&key));
        let costs = Arc::new(self.costs(key.path, length));
        let unseen = near::unseen(self, &key);
        let begun = || Cached {
            versions,
            renewal: 0,
            served: 0,
            reference: 0.0,
            length,
            guard: Guard::new(),
            costs: Arc::clone(&costs),
            nested: Vec::new(),
            track,
            used: 0,
            is_unasked: false,
        };
        let cached = self.plans.entry(key).or_insert_with(|| Box::new(begun()));
        let changed = !cached.costs.is_as_before(&costs);
        cached.guard.expect_unseen(unseen);
        (cached.versions, cached.renewal, cached.served) = (versions, self.uses, 0);
        (cached.length, cached.reference) = (length, costs.reference(class_length(length)));
        if changed {
            self.tracks[cached.track].change(cached.reference);
        }
        (cached.costs, cached.used) = (costs, self.uses);
        self.propose(key, changed);
        self.ask(key);
    }

    /// Makes room for one more plan of this path.
    fn make_room(&mut self, path: &Path) {
        let lane = self.lane_of(path);
        let is_of_lane = |key: &PlanKey| self.lane_of(&key.path) == lane;
        let of_lane = self.plans.keys().filter(|key| is_of_lane(key)).count();
        let has_share = lane != StageIndex::NONE && of_lane >= PLANS_PER_LANE_MAX;
        if !has_share && self.plans.len() < PLANS_MAX {
            return;
        }
        let may_go = self.plans.iter().filter(|(key, _)| !has_share || is_of_lane(key));
        let Some(key) = may_go.min_by_key(|(_, cached)| cached.used).map(|(&key, _)| key) else {
            return;
        };
        self.plans.remove(&key);
        if !self.plans.contains_key(&PlanKey { forced: !key.forced, ..key }) {
            self.tracks.remove(key.path, track_class(&key));
        }
    }

    /// The connection that a path passes; [`StageIndex::NONE`] if it passes none.
    fn lane_of(&self, path: &Path) -> StageIndex {
        let is_lane = |stage: &&StageIndex| {
            self.stages.get(usize::from(stage.0)).is_some_and(|state| state.is_lane)
        };
        path.iter().find(is_lane).copied().unwrap_or(StageIndex::NONE)
    }

    /// Fills a guard with candidates. `changed`: the costs have changed.
    fn propose(&mut self, key: PlanKey, changed: bool) {
        // An answer may come for what is not the mode any more.
        let mode = match self.mode {
            _ if key.whole && !key.forced => PlannerMode::Whole,
            _ if !key.forced => PlannerMode::Auto,
            mode => mode,
        };
        let serial = self.serial(&key.path);
        let Some(cached) = self.plans.get_mut(&key) else { return };
        let Cached { guard, costs, length, nested, track, reference, .. } = &mut **cached;
        let old = propose(guard, changed, mode, costs, *length, serial, nested);
        let now = |plan| guard.predicted(plan, class_length(*length));
        self.tracks[*track].learn(changed, now, *reference);
        for planned in old {
            self.retired.add(Some(planned));
        }
    }

    /// Whether plans that ask for one fragment at a time are candidates. Without a stage after the
    /// device there is nothing to overlap.
    fn serial(&self, path: &Path) -> Serial {
        match self.is_device(path[0]) && path[1] != StageIndex::NONE {
            false => Serial::Never,
            true if self.serial_first => Serial::First,
            true => Serial::Offered,
        }
    }

    /// Puts the question for separate sizes at each level, unless it is open already.
    fn ask(&mut self, key: PlanKey) {
        let (runs, serial) = (self.runs(&key.path), self.serial(&key.path));
        let lane = self.lane_of(&key.path);
        let has_room = self.questions.has_room(|other| self.lane_of(&other.path) == lane);
        let Some(length) = self.plans.get(&key).map(|cached| cached.length) else { return };
        if !self.may_ask(&key, length, runs) || self.questions.is_open(&key) {
            return;
        }
        let Some(cached) = self.plans.get_mut(&key) else { return };
        cached.is_unasked = !has_room;
        if has_room {
            let serial = serial.is_asked(&cached.guard);
            self.questions.put((key, cached.renewal), &cached.costs, runs, length, serial);
        }
    }

    /// Whether separate sizes at each level may be better.
    fn may_ask(&self, key: &PlanKey, length: u64, runs: Runs) -> bool {
        let wanted = self.mode == PlannerMode::Auto && !key.whole && !key.forced && runs.lane > 0;
        wanted && length >= QUESTION_BYTES_MIN && runs.source + runs.lane + runs.sink >= 2
    }

    /// The next question for the driver to have solved.
    pub fn poll_question(&mut self) -> Option<Box<PlanRequest>> {
        self.questions.fetch()
    }

    /// Takes an answer. Costs may have moved meanwhile: its plans are candidates until the next
    /// answer comes. An answer without a question, or for a path that is gone, is ignored.
    pub fn handle_answer(&mut self, answer: &PlanAnswer) {
        let Some((key, renewal)) = self.questions.close(answer.ticket) else { return };
        let Some(solved) = &answer.solved else { return };
        let runs = self.runs(&key.path);
        let Some(cached) = self.plans.get_mut(&key) else { return };
        let (length, costs) = (cached.length, &cached.costs);
        let pace = costs.with(|costs| per_byte(costs, length));
        let solved = solved.iter().take(SOLVED_MAX);
        cached.nested.clear();
        let choice = |plan| Choice::nested(plan, length, pace).at_work(costs, runs);
        cached.nested.extend(solved.map(choice));
        let is_old = cached.renewal != renewal;
        self.propose(key, false);
        if is_old {
            self.ask(key);
        }
    }

    /// The levels of a path: where bytes are read from a device, where they are written to one, and
    /// what is in between.
    fn runs(&self, path: &Path) -> Runs {
        let used = path.iter().take_while(|&&index| index != StageIndex::NONE);
        let state = |index: &StageIndex| self.stages.get(usize::from(index.0));
        let mut at_device = [false; STAGES_MAX];
        let mut count = 0;
        for (at, index) in at_device.iter_mut().zip(used) {
            *at = state(index).is_some_and(|state| state.at_device);
            count += 1;
        }
        Runs::of(&at_device[..count])
    }

    fn costs(&self, path: Path, length: u64) -> PathCosts {
        let mut costs = PathCosts::default();
        for index in path {
            if let Some(state) = self.stages.get(usize::from(index.0)) {
                costs.push(index, state);
            }
        }
        costs.bound(length)
    }

    /// Takes the measured latency of a transfer.
    pub fn observe_outcome(&mut self, path: Path, outcome: Outcome) {
        let Outcome { length, plan, time, alone } = outcome;
        let key = self.key(path, length);
        if self.calibration == CalibrationMode::Live
            && let Some(cached) = self.plans.get_mut(&key)
        {
            let predicted = |bytes| cached.guard.predicted(plan, bytes);
            let known = predicted(length).zip(predicted(class_length(length))).filter(|_| alone);
            if let Some((predicted, of_class)) = known {
                let track = &mut self.tracks[cached.track];
                track.observe((plan, of_class), time.seconds(), predicted, cached.reference);
            }
            cached.guard.observe(plan, time.seconds());
        }
    }
}

#[cfg(test)]
mod tests;
