//! The planner: stages with their meters (`stages`), and fragment sizes from their costs.
//!
//! Every stage execution passes a meter; those that say something (an empty stage, or a busy one)
//! become samples. An estimate is *published* only when it moved by more than a few percent
//! (`REPUBLISH` in `stage.rs`) or rests on a size that was guessed before, and plans are made anew
//! only when the costs of their whole path have moved (`moved`): a quiet system plans each (path,
//! size class) once and a look-up is a hash.
//!
//! The side that holds the data plans. What it cannot time itself, the wire as its receiver sees
//! it, comes as reports; a report is a claim and is bounded before it is used.

mod draft;
mod stages;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use piped_core::ids::DeviceId;
use piped_core::limits::{DEPTH_MAX, FRAGMENT_BYTES_MAX, QUESTIONS_MAX};
use piped_core::link::{LaneClass, ReportedStage};
use piped_core::modes::{CalibrationMode, ForcedPlan, PlannerMode};
use piped_core::sizes::Sizes;
use piped_core::units::Nanos;
use piped_model::estimate::{Estimator, Meter, Sample, Summary, Ticket};
use piped_model::plan::Algorithm;
use piped_model::stage::{Stage, StageCost};
use piped_report::dial::DialPlace;
use piped_report::shard::{ServedWith, StageReport, StageResource, device_name};

pub use self::draft::{Draft, Part};

use super::candidates::{Serial, per_byte, propose};
use super::guard::Guard;
use super::outlook::{Outlook, Track, Tracks};
use super::planned::{Candidates, Choice, Cut, PathCosts, Planned, STAGES_MAX};
use super::priors::{Memory, known};
use super::servers::Servers;
use super::stage::StageIndex;
use super::stage::{
    CHECK_PRIOR, COPY_PRIOR, DIAL_PRIOR, DIAL_PRIOR_WEIGHT, DISK_PRIOR, NET_PRIOR, PRIOR_WEIGHT,
    PROBE_BYTES, SYNC_PRIOR, StageState,
};
use super::told::{TOLD_WEIGHT_MIN, Told, behind};
use crate::kept::{KeptStage, KnownStage};
use crate::solve::{PlanAnswer, PlanRequest, Runs, SOLVED_MAX};

/// Plans kept, and those of one lane: a busy node has tens. Beyond that the one that was used
/// longest ago goes, of the lane that has its share, so that no peer takes what was learned about
/// others.
const PLANS_MAX: usize = 1024;
const PLANS_PER_LANE_MAX: usize = 256;

/// Questions that one lane may have open.
const QUESTIONS_PER_LANE_MAX: usize = QUESTIONS_MAX / 4;

/// What a transfer took, and by which plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Its length in bytes.
    pub length: u64,
    /// The number of its plan.
    pub plan: u32,
    /// How long it took.
    pub time: Nanos,
    /// It waited for nobody: what it took says something of what was promised.
    pub alone: bool,
}

/// Stages with what they cost, and the plans that were made from it. See the module.
#[derive(Debug)]
pub struct Planner {
    mode: PlannerMode,
    calibration: CalibrationMode,
    /// What simulations want instead of plans.
    forced: Option<Cut>,
    serial_first: bool,
    stages: Vec<StageState>,
    index: HashMap<StageResource, StageIndex>,
    /// What stages that are not there begin with.
    memory: Memory,
    /// Which of them have one server.
    servers: Servers,
    /// Places of stages that are gone.
    free: Vec<StageIndex>,
    copy: StageIndex,
    check: StageIndex,
    plans: HashMap<PlanKey, Cached>,
    /// Plans that were given out.
    uses: u64,
    tracks: Tracks,
    /// Plans that were replaced, in that order: the memory of the next ones, once no transfer and
    /// no record of one uses them.
    retired: VecDeque<Arc<Planned>>,
    /// Questions that were put out and not answered.
    asked: VecDeque<Asked>,
    /// Questions to be put out.
    questions: VecDeque<Box<PlanRequest>>,
    tickets: u64,
}

/// A question about a path and size class.
#[derive(Debug)]
struct Asked {
    ticket: u64,
    key: PlanKey,
    /// Of the plans it was put for.
    renewal: u64,
}

/// The stages of a path, in order; the rest is [`StageIndex::NONE`].
pub type Path = [StageIndex; STAGES_MAX];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PlanKey {
    path: Path,
    class: u16,
    /// Of a mode that leaves no choice. What `auto` has measured waits for its return.
    forced: bool,
    /// For a lane that others keep busy.
    busy: bool,
}

/// The plans of a path and size class.
#[derive(Debug)]
struct Cached {
    /// Of the published costs they were made from, or that are as good as those.
    versions: [u32; STAGES_MAX],
    /// Differs where they were made anew.
    renewal: u64,
    /// Transfers since.
    served: u32,
    /// A request of this length was planned.
    length: u64,
    guard: Guard,
    costs: Arc<PathCosts>,
    /// Plans with sizes of their own for each level: the last answer, of costs that may be a little
    /// older.
    nested: Vec<Choice>,
    /// Where it is told what transfers took against their predictions.
    track: usize,
    /// What the plan they are compared by is predicted to take, in seconds.
    reference: f64,
    /// The planner's uses when it was used last.
    used: u64,
    /// There was no room for its question.
    is_unasked: bool,
}

/// Transfers below this are not cut so finely that it would take long to think about.
const QUESTION_BYTES_MIN: u64 = 8192;

/// Costs of a path that moved by less than the first fraction leave its plans as they are, those
/// that moved by more than the other change them at once.
const MOVED_LITTLE: f64 = 0.02;
const MOVED_MUCH: f64 = 0.2;

/// Between the two so many transfers have the plans there are: to make them takes as long as a
/// short transfer.
const SERVED_MIN: u32 = 16;

/// Replaced plans kept for their memory.
const RETIRED_MAX: usize = 1024;

/// Where what transfers took is told; on a busy lane others are waited for.
fn track_class(key: &PlanKey) -> u16 {
    key.class | u16::from(key.busy) << 15
}

/// The shortest of the lengths that share a plan.
fn class_length(length: u64) -> u64 {
    let length = length.max(8);
    // Its three bits below the highest make the class.
    let others = 60 - length.leading_zeros();
    length >> others << others
}

/// Lengths within an eighth of a power of two share a plan.
fn size_class(length: u64) -> u16 {
    let log = 63 - length.max(8).leading_zeros();
    ((log << 3) | ((length.max(8) >> (log - 3)) & 7) as u32) as u16
}

impl Cached {
    /// By how much the path's costs have moved since its plans were made.
    fn moved(&self, versions: &[u32; STAGES_MAX], stages: &[StageState]) -> f64 {
        match self.versions == *versions {
            true => 0.0,
            false => moved(&self.costs, stages, self.length),
        }
    }

    /// Whether the next transfer gets one of the plans there are, by how much their costs have
    /// moved.
    fn may_stay(&self, moved: f64) -> bool {
        moved <= MOVED_LITTLE || moved <= MOVED_MUCH && self.served < SERVED_MIN
    }

    /// The same, for the next transfer.
    fn stays(&mut self, versions: &[u32; STAGES_MAX], stages: &[StageState]) -> bool {
        let moved = self.moved(versions, stages);
        if moved <= MOVED_LITTLE {
            self.versions = *versions;
        }
        self.may_stay(moved)
    }

    /// The plan of the next transfer, or which candidate's has to be made for it.
    fn choose(&mut self, tracks: &Tracks, live: bool) -> Result<Arc<Planned>, usize> {
        let guard = &mut self.guard;
        // Nobody learns from variety where nothing is learned.
        let index = if live { guard.choose() } else { guard.favourite() };
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
            plans: HashMap::with_capacity(PLANS_MAX),
            uses: 0,
            tracks: Tracks::default(),
            retired: VecDeque::with_capacity(RETIRED_MAX),
            asked: VecDeque::with_capacity(QUESTIONS_MAX),
            questions: VecDeque::with_capacity(QUESTIONS_MAX),
            tickets: 0,
        };
        planner.copy = planner.stage(StageResource::Copy, || String::from("copy"), COPY_PRIOR);
        planner.check = planner.stage(StageResource::Check, || String::from("check"), CHECK_PRIOR);
        planner
    }

    /// How sizes are chosen now.
    pub fn mode(&self) -> PlannerMode {
        self.mode
    }

    /// Chooses sizes in another way from now on.
    pub fn set_mode(&mut self, mode: PlannerMode) {
        self.mode = mode;
        self.plans.retain(|key, _| !key.forced);
    }

    /// Whether costs follow what is measured.
    pub fn calibration(&self) -> CalibrationMode {
        self.calibration
    }

    /// Takes this plan for everything; without one it chooses again.
    pub fn force(&mut self, plan: Option<ForcedPlan>) {
        self.forced = plan.map(|ForcedPlan { source, lane, sink, depth }| Cut {
            source,
            lane,
            sink,
            depth: depth.clamp(1, DEPTH_MAX),
        });
    }

    /// Follows samples or not from now on.
    pub fn set_calibration(&mut self, calibration: CalibrationMode) {
        self.calibration = calibration;
    }

    /// The path of what a peer reads here: our disk (or nothing, for memory), the checksum, the
    /// lane, and the checksum there, which is taken to cost what it costs here.
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
            busy: false,
        }
    }

    /// The plan for a request over these stages.
    pub fn plan(&mut self, path: Path, length: u64) -> Arc<Planned> {
        self.plan_by(self.key(path, length), length)
    }

    /// The same where other requests keep the path busy: what overlaps then are requests, and a
    /// fragment only costs what it costs. So there are as few as can be.
    pub fn plan_busy(&mut self, path: Path, length: u64) -> Arc<Planned> {
        self.plan_by(PlanKey { busy: true, ..self.key(path, length) }, length)
    }

    fn plan_by(&mut self, key: PlanKey, length: u64) -> Arc<Planned> {
        if let Some(cut) = self.forced {
            return self.make_forced(cut, key.path, length);
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
                let chosen = cached.choose(&self.tracks, live);
                if cached.is_unasked {
                    self.ask(key);
                }
                chosen
            }
            None => {
                self.renew(key, versions, length);
                self.plans.get_mut(&key).expect("made above").choose(&self.tracks, live)
            }
        };
        chosen.unwrap_or_else(|index| self.make(key, index))
    }

    /// A plan that was not chosen by its costs: nothing is promised of it.
    fn make_forced(&self, cut: Cut, path: Path, length: u64) -> Arc<Planned> {
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
        };
        let (costs, candidates) = (Arc::new(self.costs(path)), Candidates::default());
        Arc::new(Planned::new(choice, false, &costs, candidates, Outlook::default()))
    }

    /// Of the costs that plans over a path see now.
    fn versions(&self, path: &Path) -> [u32; STAGES_MAX] {
        let mut versions = [0; STAGES_MAX];
        for (version, index) in versions.iter_mut().zip(path) {
            if *index == StageIndex::NONE {
                break;
            }
            *version = self.stages.get(usize::from(index.0)).map_or(0, |state| state.version);
        }
        versions
    }

    /// A candidate in the form the engine executes, with what is known of all of them now.
    fn make(&mut self, key: PlanKey, index: usize) -> Arc<Planned> {
        let store_first = self.mode == PlannerMode::Whole;
        let cached = self.plans.get_mut(&key).expect("chosen from");
        let Cached { guard, costs, track, reference, .. } = cached;
        retire(&mut self.retired, guard.planned(index).take());
        let candidates = guard.seen().collect();
        let (choice, outlook) = (guard.plan(index), self.tracks[*track].outlook(*reference));
        let planned = Planned::new(choice, store_first, costs, candidates, outlook);
        let planned = keep(&mut self.retired, planned);
        *guard.planned(index) = Some(Arc::clone(&planned));
        planned
    }

    /// Predictions from the costs as published now.
    fn renew(&mut self, key: PlanKey, versions: [u32; STAGES_MAX], length: u64) {
        if !self.plans.contains_key(&key) {
            self.make_room(&key.path);
        }
        let track = self.tracks.place(key.path, track_class(&key));
        let costs = Arc::new(self.costs(key.path));
        let cached = self.plans.entry(key).or_insert_with(|| Cached {
            versions,
            renewal: 0,
            served: 0,
            reference: 0.0,
            length,
            guard: Guard::new(),
            costs: Arc::clone(&costs),
            nested: Vec::with_capacity(SOLVED_MAX),
            track,
            used: 0,
            is_unasked: false,
        });
        let changed = cached.costs.changes() != costs.changes();
        (cached.versions, cached.renewal, cached.served) = (versions, self.uses, 0);
        cached.length = length;
        cached.reference = costs.reference(class_length(length));
        if changed {
            self.tracks[cached.track].change(cached.reference);
        }
        cached.costs = costs;
        cached.used = self.uses;
        self.propose(key, changed);
        self.ask(key);
    }

    /// Room for one more plan of this path.
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

    /// The lane that a path passes, or none.
    fn lane_of(&self, path: &Path) -> StageIndex {
        let is_lane = |stage: &&StageIndex| {
            self.stages.get(usize::from(stage.0)).is_some_and(|state| state.is_lane)
        };
        path.iter().find(is_lane).copied().unwrap_or(StageIndex::NONE)
    }

    /// Fills a guard with candidates. `changed`: some cost is not what it was.
    fn propose(&mut self, key: PlanKey, changed: bool) {
        // An answer may come for what is not the mode any more.
        let mode = match self.mode {
            _ if key.busy && !key.forced => PlannerMode::Whole,
            _ if !key.forced => PlannerMode::Auto,
            mode => mode,
        };
        let serial = self.serial(&key.path);
        let Some(cached) = self.plans.get_mut(&key) else { return };
        let Cached { guard, costs, length, nested, .. } = cached;
        let old = costs.with(|costs| propose(guard, changed, mode, costs, *length, serial, nested));
        for planned in old {
            retire(&mut self.retired, Some(planned));
        }
    }

    /// Whether plans that ask for one fragment at a time are candidates. Without a stage behind the
    /// device there is nothing to overlap.
    fn serial(&self, path: &Path) -> Serial {
        match self.is_device(path[0]) && path[1] != StageIndex::NONE {
            false => Serial::Never,
            true if self.serial_first => Serial::First,
            true => Serial::Offered,
        }
    }

    /// Puts the question for sizes of their own for each level, unless it is put already.
    fn ask(&mut self, key: PlanKey) {
        let runs = self.runs(&key.path);
        let lane = self.lane_of(&key.path);
        let of_lane = |asked: &&Asked| self.lane_of(&asked.key.path) == lane;
        let has_share = self.asked.iter().filter(of_lane).count() >= QUESTIONS_PER_LANE_MAX;
        let is_full = has_share || self.asked.len() >= QUESTIONS_MAX;
        let Some(length) = self.plans.get(&key).map(|cached| cached.length) else { return };
        if !self.may_ask(&key, length, runs) || self.asked.iter().any(|asked| asked.key == key) {
            return;
        }
        let Some(cached) = self.plans.get_mut(&key) else { return };
        cached.is_unasked = is_full;
        if is_full {
            return;
        }
        let Some(cached) = self.plans.get(&key) else { return };
        self.tickets += 1;
        let ticket = self.tickets;
        self.asked.push_back(Asked { ticket, key, renewal: cached.renewal });
        self.questions.push_back(Box::new(PlanRequest {
            ticket,
            costs: cached.costs.iter().map(|(_, cost)| *cost).collect(),
            runs,
            bytes: cached.length,
            serial: asks_serial(self.serial(&key.path), &cached.guard),
        }));
    }

    /// Whether sizes of their own for each level may be better.
    fn may_ask(&self, key: &PlanKey, length: u64, runs: Runs) -> bool {
        let wanted = self.mode == PlannerMode::Auto && !key.busy && !key.forced && runs.lane > 0;
        wanted && length >= QUESTION_BYTES_MIN && runs.source + runs.lane + runs.sink >= 2
    }

    /// The next question to be put out.
    pub fn poll_question(&mut self) -> Option<Box<PlanRequest>> {
        self.questions.pop_front()
    }

    /// An answer. Costs may have moved meanwhile: its plans are candidates until the next one
    /// comes. One that nobody asked for, or for a path that is gone, is ignored.
    pub fn handle_answer(&mut self, answer: &PlanAnswer) {
        let Some(place) = self.asked.iter().position(|asked| asked.ticket == answer.ticket) else {
            return;
        };
        let Some(Asked { key, renewal, .. }) = self.asked.remove(place) else { return };
        let Some(solved) = &answer.solved else { return };
        let Some(cached) = self.plans.get_mut(&key) else { return };
        let pace = cached.costs.with(|costs| per_byte(costs, cached.length));
        let solved = solved.iter().take(SOLVED_MAX);
        cached.nested.clear();
        cached.nested.extend(solved.map(|plan| Choice::nested(plan, cached.length, pace)));
        let is_old = cached.renewal != renewal;
        self.propose(key, false);
        if is_old {
            self.ask(key);
        }
    }

    /// The levels of a path: where bytes are read from a device, where they are written to one, and
    /// what is between.
    fn runs(&self, path: &Path) -> Runs {
        let state = |index: &StageIndex| self.stages.get(usize::from(index.0));
        let at_device = |index: &StageIndex| state(index).is_some_and(|state| state.at_device);
        let used = path.iter().position(|&index| index == StageIndex::NONE).unwrap_or(STAGES_MAX);
        let mut at = [false; STAGES_MAX];
        at.iter_mut().zip(path).for_each(|(at, index)| *at = at_device(index));
        runs_of(&at[..used])
    }

    fn costs(&self, path: Path) -> PathCosts {
        let mut costs = PathCosts::default();
        for index in path {
            if let Some(state) = self.stages.get(usize::from(index.0)) {
                costs.push(index, state.published);
            }
        }
        costs
    }

    /// What a transfer really took.
    pub fn observe_outcome(&mut self, path: Path, outcome: Outcome) {
        let Outcome { length, plan, time, alone } = outcome;
        let key = self.key(path, length);
        if self.calibration == CalibrationMode::Live
            && let Some(cached) = self.plans.get_mut(&key)
        {
            let predicted = cached.guard.predicted(plan, length);
            if let Some(predicted) = predicted.filter(|_| alone) {
                self.tracks[cached.track].observe(time.seconds(), predicted, cached.reference);
            }
            cached.guard.observe(plan, time.seconds());
        }
    }
}

/// By how much a path costs something else now, alone or at its slowest stage, at the size where
/// that is most. What is noise to a stage of a microsecond is nothing to a path of a millisecond.
fn moved(costs: &PathCosts, stages: &[StageState], length: u64) -> f64 {
    let sizes = PROBE_BYTES.into_iter().take_while(|&bytes| bytes <= length as f64);
    let sizes = sizes.chain([(length as f64).min(FRAGMENT_BYTES_MAX.into())]);
    let at = |bytes: f64| {
        let (mut way, mut way_moved) = (0.0, 0.0);
        let (mut slowest, mut slowest_now) = (0.0_f64, 0.0_f64);
        for (index, old) in costs.iter() {
            let Some(state) = stages.get(usize::from(index.0)) else { return f64::INFINITY };
            let (old, new) = (old.stage_at(bytes), state.published.stage_at(bytes));
            let (from, to) = (old.alone(bytes), new.alone(bytes));
            (way, way_moved) = (way + from.max(to), way_moved + (from - to).abs());
            slowest = slowest.max(old.occupancy(bytes));
            slowest_now = slowest_now.max(new.occupancy(bytes));
        }
        let part = |moved: f64, of: f64| if of > 0.0 { moved / of } else { 0.0 };
        part(way_moved, way).max(part((slowest - slowest_now).abs(), slowest.max(slowest_now)))
    };
    sizes.map(at).fold(0.0, f64::max)
}

/// The levels of stages in order: at a device or not.
fn runs_of(at_device: &[bool]) -> Runs {
    let source = at_device.iter().take_while(|&&at| at).count();
    let sink = at_device[source..].iter().rev().take_while(|&&at| at).count();
    Runs { source, lane: at_device.len() - source - sink, sink }
}

/// Never better in the model: for devices where one fragment at a time was found to be in practice.
fn asks_serial(serial: Serial, guard: &Guard) -> bool {
    match serial {
        Serial::Never => false,
        Serial::First => true,
        Serial::Offered => guard.plan(guard.favourite()).cut.depth == 1,
    }
}

/// A path of these stages, without those that are none.
pub fn path_of(stages: impl IntoIterator<Item = StageIndex>) -> Path {
    let mut path = [StageIndex::NONE; STAGES_MAX];
    let mut there = stages.into_iter().filter(|&stage| stage != StageIndex::NONE);
    for (place, stage) in path.iter_mut().zip(&mut there) {
        *place = stage;
    }
    debug_assert!(there.next().is_none(), "a path of more than {STAGES_MAX} stages");
    path
}

/// Shares a plan, in the memory of one that nobody uses any more if there is one.
fn keep(retired: &mut VecDeque<Arc<Planned>>, planned: Planned) -> Arc<Planned> {
    // Records of finished transfers hold plans for a while: look at a few, the oldest first.
    for _ in 0..retired.len().min(4) {
        let Some(mut old) = retired.pop_front() else { break };
        if let Some(place) = Arc::get_mut(&mut old) {
            *place = planned;
            return old;
        }
        retired.push_back(old);
    }
    Arc::new(planned)
}

fn retire(retired: &mut VecDeque<Arc<Planned>>, planned: Option<Arc<Planned>>) {
    if retired.len() < RETIRED_MAX {
        retired.extend(planned);
    }
}

#[cfg(test)]
mod tests;
