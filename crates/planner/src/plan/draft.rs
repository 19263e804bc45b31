//! A plan that no transfer uses: it is made from copies, and leaves no trace in the planner.

use super::stages::disk_name;
use super::*;
use piped_model::estimate::Estimate;

use crate::candidates::{per_byte, propose};
use crate::cost::PathCost;
use crate::draft::Forecast;
use crate::planned::shrink;
use crate::schedule::{self, Level};
use crate::solve::solve;

/// A copy of what a shard knows of a path. See [`crate::draft`].
#[derive(Debug)]
pub struct Draft {
    mode: PlannerMode,
    live: bool,
    forced: Option<Arc<Planned>>,
    length: u64,
    /// The length in bytes, of the same size class, that the plans are made for.
    planned_length: u64,
    costs: Arc<PathCosts>,
    stages: Vec<StageReport>,
    at_device: Vec<bool>,
    serial: Serial,
    guard: Guard,
    nested: Vec<Choice>,
    track: Track,
    /// Whether there is no plan for the present costs.
    is_old: bool,
    /// Whether a stage has changed since there was a plan.
    is_changed: bool,
    /// The levels for a question about separate sizes, if one is open or would be put.
    question: Option<Runs>,
    /// Whether this node plans on the path.
    is_planned: bool,
}

/// A stage of a path for a draft.
#[derive(Debug, Clone)]
pub enum Part {
    /// A stage that is in use.
    There(StageIndex),
    /// The reads (`false`) or writes (`true`) of a device that was not used yet, with the costs
    /// they would begin with.
    Disk(DeviceId, bool),
}

impl Planner {
    /// The stage of a device; [`Part::Disk`] if the device was not used yet.
    pub fn disk_part(&self, device: DeviceId, write: bool) -> Part {
        let known = self.index.get(&StageResource::Disk { device, write });
        known.map_or(Part::Disk(device, write), |&index| Part::There(index))
    }

    /// Costs on a path of requests between two lengths in bytes: the pace of the slowest stage, as
    /// the line through both lengths, and the latency of all stages. `None` where the slowest stage
    /// was never measured. (A tangent somewhere in between would have an overhead as uncertain as
    /// the whole time there.)
    pub fn cost(&self, parts: &[Part], (short, long): (f64, f64)) -> Option<PathCost> {
        let states = parts.iter().filter_map(|part| match part {
            Part::There(index) => self.stages.get(usize::from(index.0)),
            Part::Disk(..) => None,
        });
        let stages: Vec<&Estimate> = states.map(|state| &*state.published).collect();
        let pace = |stage: &Estimate, bytes: f64| stage.stage_at(bytes).interval(bytes);
        let slowest = stages
            .iter()
            .copied()
            .max_by(|one, other| pace(one, long).total_cmp(&pace(other, long)))?;
        let [least, most] = [short, long].map(|bytes| pace(slowest, bytes));
        let per_byte_seconds = ((most - least) / (long - short)).max(0.0);
        let latency = |stage: &Estimate| {
            let alone = stage.stage_at(short).alone(short);
            alone - if core::ptr::eq(stage, slowest) { least } else { 0.0 }
        };
        (slowest.confidence > 0.0).then(|| PathCost {
            overhead_seconds: (least - short * per_byte_seconds).max(0.0),
            latency_seconds: stages.iter().copied().map(latency).sum::<f64>().max(0.0),
            per_byte_seconds,
            confidence: slowest.confidence,
        })
    }

    /// Copies what is known of a path for a transfer of `length` bytes. `planned`: this node plans
    /// on the path.
    pub fn draft(&self, parts: Vec<Part>, length: u64, planned: bool) -> Draft {
        let mut costs = PathCosts::default();
        let (mut stages, mut at_device) = (Vec::new(), Vec::new());
        let mut is_used = true;
        let mut path = Vec::new();
        let is_none = |part: &Part| matches!(part, Part::There(StageIndex::NONE));
        for part in parts.into_iter().filter(|part| !is_none(part)).take(STAGES_MAX) {
            let fresh;
            let (index, state) = match part {
                Part::There(index) => (index, self.stages.get(usize::from(index.0))),
                Part::Disk(device, write) => {
                    is_used = false;
                    fresh = self.disk_to_be(device, write);
                    (StageIndex::PEER, Some(&fresh))
                }
            };
            let Some(state) = state else { continue };
            costs.push(index, state);
            let with = self.served_with(index, state);
            stages.push(StageReport { with, ..state.report(&state.published) });
            at_device.push(state.at_device);
            path.push(index);
        }
        let costs = costs.bound(length);
        let path = path_of(path);
        let key = self.key(path, length);
        let versions = self.versions(&path);
        let cached = self.plans.get(&key).filter(|_| is_used);
        let stays = |cached: &Cached| cached.may_stay(cached.moved(&versions, &self.stages));
        let is_old = cached.is_none_or(|cached| !stays(cached));
        if let Some(cached) = cached.filter(|_| !is_old) {
            // Plans stay while costs move a little: these are theirs.
            stages = self.describe(&cached.costs);
        }
        let is_changed = cached.is_some_and(|cached| !cached.costs.is_as_before(&costs));
        let first = at_device.first().copied().unwrap_or(false);
        let runs = Runs::of(&at_device);
        let planned_length = cached.filter(|_| !is_old).map_or(length, |cached| cached.length);
        let is_asked = self.questions.is_open(&key);
        let may_ask = self.may_ask(&key, planned_length, runs);
        let mut guard = cached.map_or_else(Guard::new, |cached| cached.guard.clone());
        if is_old {
            guard.expect_unseen(near::unseen(self, &key));
        }
        Draft {
            mode: self.mode,
            live: self.calibration == CalibrationMode::Live,
            forced: self
                .forced
                .map(|cut| Arc::new(Planned::forced(cut, self.costs(path, length), length))),
            length,
            planned_length,
            serial: match first && at_device.len() > 1 {
                false => Serial::Never,
                true if self.serial_first => Serial::First,
                true => Serial::Offered,
            },
            costs: match cached.filter(|_| !is_old) {
                Some(cached) => Arc::clone(&cached.costs),
                None => Arc::new(costs),
            },
            stages,
            at_device,
            guard,
            nested: cached.map_or_else(Vec::new, |cached| cached.nested.clone()),
            track: self.tracks.find(path, key.class).cloned().unwrap_or_default(),
            is_old,
            is_changed,
            question: ((is_old || is_asked) && may_ask).then_some(runs),
            is_planned: planned,
        }
    }

    fn disk_to_be(&self, device: DeviceId, write: bool) -> StageState {
        let resource = StageResource::Disk { device, write };
        let mut state = StageState::new(&resource, disk_name(device, write), DISK_PRIOR);
        self.memory.apply(&resource, &mut state);
        state
    }
}

impl Draft {
    /// The plan that the transfer would get. Takes up to some milliseconds.
    #[must_use]
    pub fn forecast(mut self) -> Forecast {
        if !self.is_planned || self.stages.is_empty() {
            return self.told(None, None);
        }
        if let Some(forced) = self.forced.clone() {
            return self.told(Some(&forced), None);
        }
        if self.is_old {
            if self.is_changed {
                self.track.change(self.reference());
            }
            self.propose(self.is_changed);
        }
        if let Some(runs) = self.question {
            self.nested = self.solve(runs);
            self.propose(false);
        }
        let usual = self.guard.favourite();
        let next = if self.live { self.guard.choose() } else { usual };
        let planned = self.make(usual);
        let trial = (next != usual).then(|| self.guard.seen_at(next));
        self.told(Some(&planned), trial)
    }

    fn propose(&mut self, changed: bool) {
        let Self { guard, mode, costs, planned_length, serial, nested, .. } = self;
        let old = propose(guard, changed, *mode, costs, *planned_length, *serial, nested);
        old.for_each(drop);
        let (reference, bytes) = (self.reference(), class_length(self.planned_length));
        self.track.learn(changed, |plan| self.guard.predicted(plan, bytes), reference);
    }

    fn solve(&self, runs: Runs) -> Vec<Choice> {
        let length = self.planned_length;
        let serial = self.serial.is_asked(&self.guard);
        let request = PlanRequest::new(0, &self.costs, runs, length, serial);
        let pace = self.costs.with(|costs| per_byte(costs, length));
        let solved = solve(&request).solved.into_iter().flatten().take(SOLVED_MAX);
        let choice = |plan| Choice::nested(&plan, length, pace).at_work(&self.costs, runs);
        solved.map(choice).collect()
    }

    fn make(&self, index: usize) -> Planned {
        let store_first = self.mode == PlannerMode::Whole;
        let candidates = self.guard.seen().collect();
        let choice = self.guard.plan(index);
        let outlook = self.track.outlook(self.reference());
        Planned::new(choice, store_first, &self.costs, candidates, outlook)
    }

    fn reference(&self) -> f64 {
        self.costs.reference(class_length(self.planned_length))
    }

    fn told(self, planned: Option<&Planned>, trial: Option<super::super::guard::Seen>) -> Forecast {
        let bytes = self.length;
        let levels = Level::of(&self.at_device);
        let seconds = |time: Nanos| time.seconds();
        let trial = trial.map(|seen| Candidates::from_iter([seen]).report(None));
        Forecast {
            bytes,
            chosen: planned.map_or_else(String::new, |plan| plan.chosen.to_string()),
            levels: planned
                .map_or_else(Vec::new, |plan| schedule::levels(plan, &levels, (0, bytes))),
            fragment_bytes: planned.map_or(0, |plan| plan.cut.source.first()),
            shrink_bytes: planned.map_or(0, |plan| shrink(&plan.cut, bytes)),
            fragments: planned.map_or(0, |plan| plan.cut.source.count(bytes) as u32),
            depth: planned.map_or(0, |plan| plan.cut.depth),
            predicted_seconds: planned.map_or(0.0, |plan| seconds(plan.predicted_for(bytes))),
            margin_seconds: planned.map_or(0.0, |plan| seconds(plan.margin)),
            stages: self.stages,
            candidates: planned.map(|plan| plan.compared()).unwrap_or_default(),
            trial: trial.and_then(|mut one| one.pop()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A planner with a measured path: a disk, the checksum, a lane, the checksum there.
    fn planner() -> (Planner, Path) {
        let mut planner = Planner::new(PlannerMode::Auto, CalibrationMode::Live, false);
        let disk = planner.disk_stage(DeviceId(1), false);
        let net = planner.net_stages("beta", LaneClass::Bulk, false).1;
        let check = planner.check_stage();
        let path = path_of([disk, check, net, check]);
        for (stage, (overhead, per_byte)) in [(disk, (500, 8)), (check, (1, 1)), (net, (40, 8))] {
            for round in 0..100 {
                for bytes in [4096_u32, 16 << 10, 64 << 10, 256 << 10] {
                    let time = overhead * 1000 + round % 2 * 1000 + u64::from(bytes) * per_byte;
                    planner.sample_alone(stage, bytes, Nanos(time + 50_000));
                    planner.sample_backlogged(stage, bytes, Nanos(time));
                }
            }
        }
        (planner, path)
    }

    /// The same with time of the thread for each fragment read and sent.
    fn of_one_thread() -> (Planner, Path) {
        let (mut planner, [disk, check, net, ..]) = planner();
        let [read, sent] =
            [DialPlace::Copy, DialPlace::Check].map(|place| planner.dial_stage(&place, true));
        for (stage, micros) in [(read, 900), (sent, 800)] {
            (0..100).for_each(|round| {
                planner.sample_backlogged(stage, 65_536, Nanos(micros * 1000 + round % 2));
            });
        }
        let path = path_of([disk, read, check, sent, net, check]);
        (planner, path)
    }

    fn parts(planner: &Planner, path: &Path) -> Vec<Part> {
        let rest = path.iter().skip(1).map(|&stage| Part::There(stage));
        std::iter::once(planner.disk_part(DeviceId(1), false)).chain(rest).collect()
    }

    fn forecast(planner: &Planner, path: &Path, length: u64) -> Forecast {
        planner.draft(parts(planner, path), length, true).forecast()
    }

    fn answer(planner: &mut Planner) {
        while let Some(question) = planner.poll_question() {
            planner.handle_answer(&solve(&question));
        }
    }

    /// What a transfer gets, in a forecast's words.
    fn words(planned: &Planned) -> (String, u64, u32) {
        (planned.chosen.to_string(), planned.cut.source.first(), planned.cut.depth)
    }

    #[test]
    fn the_next_transfer_gets_what_was_said() {
        gets_what_was_said(planner(), 30_000);
        gets_what_was_said(of_one_thread(), 600_000);
    }

    #[test]
    fn work_of_the_thread_for_each_fragment_adds_up() {
        let (mut planner, path) = of_one_thread();
        for (length, fragment) in [(1 << 20, 64 << 10), (512 << 20, 1 << 20)] {
            planner.set_mode(PlannerMode::Fixed(fragment));
            let predicted = planner.plan(path, length).predicted.seconds();
            // The checksum here is the thread's too, the peer's is not.
            let (count, bytes) = ((length / u64::from(fragment)) as f64, length as f64);
            let thread = (1700e-6 + 1e-6) * count + 1e-9 * bytes;
            let disk = 500e-6 * count + 8e-9 * bytes;
            let least = thread.max(disk);
            assert!((0.95 * least..1.3 * least).contains(&predicted), "{predicted} {least}");
        }
        planner.set_mode(PlannerMode::Auto);
        let first = planner.plan(path, 1 << 20);
        assert!(first.cut.source.first() >= 128 << 10, "{:?}", first.cut);
    }

    /// `unknown`: nanoseconds of each fragment that the model knows nothing of.
    fn gets_what_was_said((mut planner, path): (Planner, Path), unknown: u64) {
        let mut vetoed = 0;
        for length in [64 << 10, 1 << 20, 4 << 20] {
            // Nobody has asked for any yet.
            let said = forecast(&planner, &path, length);
            planner.plan(path, length);
            answer(&mut planner);
            let usual = planner.plan(path, length);
            assert_eq!((said.chosen, said.fragment_bytes, said.depth), words(&usual), "{length}");
            assert_eq!(said.predicted_seconds, usual.predicted_for(length).seconds());
            // From then on, trials and vetoes included.
            let mut trials = 0;
            for round in 0..200 {
                let said = forecast(&planner, &path, length);
                let next = match said.trial {
                    Some(trial) => (trial.algorithm, trial.fragment_bytes, trial.depth),
                    None => (said.chosen, said.fragment_bytes, said.depth),
                };
                let planned = planner.plan(path, length);
                trials += u32::from(planned.cut.number() != usual.cut.number());
                vetoed += said.candidates.iter().filter(|candidate| candidate.vetoed).count();
                assert_eq!(next, words(&planned), "{length} {round}");
                // What fewer fragments need is less in practice than the model says.
                let time = Nanos(planned.predicted.0 + unknown * planned.cut.source.count(length));
                let outcome = Outcome { length, plan: planned.cut.number(), time, alone: true };
                planner.observe_outcome(path, outcome);
                answer(&mut planner);
            }
            assert!(trials > 5, "{length}: {trials}");
        }
        assert!(vetoed > 0, "cut or not, what was proposed was kept");
    }

    #[test]
    fn drafts_leave_no_trace() {
        let (mut planner, path) = planner();
        planner.plan(path, 1 << 20);
        let before = format!("{planner:?}");
        for length in 1..100 {
            forecast(&planner, &path, length << 14);
            let unused = vec![planner.disk_part(DeviceId(77), true)];
            let said = planner.draft(unused, length << 14, true).forecast();
            assert_eq!(said.stages[0].name, "disk 0:77 write");
            assert!(said.predicted_seconds > 0.0 && said.stages[0].confidence == 0.0);
        }
        assert_eq!(format!("{planner:?}"), before);
    }

    #[test]
    fn a_paths_cost_is_its_slowest_stages_pace_and_everybodys_latency() {
        let (planner, path) = planner();
        let parts = parts(&planner, &path);
        let between = (4096.0, 262_144.0);
        // The disk: 500 us, or 1000 us more every other time, and 8 ns a byte, which the net also
        // takes.
        let cost = planner.cost(&parts, between).expect("it was measured");
        assert!((cost.per_byte_seconds - 8e-9).abs() < 0.5e-9, "{cost:?}");
        assert!((450e-6..1100e-6).contains(&cost.overhead_seconds), "{cost:?}");
        // Of disk and net 50 us each, and what a get of 4 KiB takes in the others.
        assert!((100e-6..300e-6).contains(&cost.latency_seconds), "{cost:?}");
        assert!(cost.confidence > 0.0);
        let net = planner.cost(&parts[1..], between).expect("it was measured");
        assert!(net.overhead_seconds < 100e-6 && net.latency_seconds < cost.latency_seconds);
        // Nobody has used it.
        assert_eq!(planner.cost(&[planner.disk_part(DeviceId(77), true)], between), None);
        assert_eq!(planner.cost(&[], between), None);
        let unused = Planner::new(PlannerMode::Auto, CalibrationMode::Live, false);
        assert_eq!(unused.cost(&[Part::There(unused.copy_stage())], between), None);
    }

    #[test]
    fn modes_that_leave_no_choice_are_said_as_they_are() {
        let (mut planner, path) = planner();
        planner.set_mode(PlannerMode::Fixed(128 << 10));
        let said = forecast(&planner, &path, 1 << 20);
        assert_eq!((said.fragment_bytes, said.fragments), (128 << 10, 8));
        planner.set_mode(PlannerMode::Whole);
        let said = forecast(&planner, &path, 1 << 20);
        let planned = planner.plan(path, 1 << 20);
        assert_eq!(said.fragments, 1);
        assert_eq!(said.predicted_seconds, planned.predicted_for(1 << 20).seconds());
    }
}
