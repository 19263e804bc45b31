//! Costs that new stages begin with: measurements of an earlier run, and of stages that were
//! dropped with their peer.
//!
//! Kept are costs that this node measures, or is told of a connection that it dialled: disks,
//! connections, copies, checksums. Costs of delay injections are not kept, since these end with the
//! daemon. A peer keeps the costs of its own stages, and reports them with the first bytes.

use std::collections::HashMap;
use std::sync::Arc;

use piped_core::limits::STAGES_REMEMBERED_MAX;
use piped_model::stage::Stage;
use piped_report::shard::StageResource;

use super::stage::{Beginnings, StageState};
use crate::kept::{KeptStage, KnownStage};

/// Costs of stages that do not exist at present, by their resource.
#[derive(Debug, Default)]
pub(super) struct Memory {
    stages: HashMap<StageResource, Remembered>,
    /// What all stages of a kind begin with that were never measured.
    beginnings: Beginnings,
    /// Number of entries so far, which tells the oldest entry.
    entered: u64,
}

#[derive(Debug)]
struct Remembered {
    cost: KeptStage,
    samples: u64,
    entered: u64,
}

impl Memory {
    /// Takes costs of an earlier run. They are a claim: impossible figures are left out.
    pub(super) fn take(&mut self, what: StageResource, cost: KeptStage) {
        if is_kept(&what) && cost.check().is_ok() {
            self.enter(what, cost, 0);
        }
    }

    /// Keeps the costs of a stage that is dropped.
    pub(super) fn keep(&mut self, what: &StageResource, state: &StageState) {
        if let Some(KnownStage { what, cost, samples }) = known(what, state) {
            self.enter(what, cost, samples);
        }
    }

    /// A new stage, with its kept costs if there are any.
    pub(super) fn begin(&mut self, of: &StageResource, name: String, prior: Stage) -> StageState {
        let mut state = self.beginnings.begin(of, name, prior);
        self.recall(of, &mut state);
        state
    }

    /// Gives a new stage its kept costs, and drops them here.
    pub(super) fn recall(&mut self, what: &StageResource, state: &mut StageState) {
        self.apply(what, state);
        self.stages.remove(what);
    }

    /// Gives the kept costs to a stage that is only looked at.
    pub(super) fn apply(&self, what: &StageResource, state: &mut StageState) {
        let Some(Remembered { cost, samples, .. }) = self.stages.get(what) else { return };
        let window = state.published.stage.window;
        let (estimator, published) = cost.begin((*state.estimator).clone(), window);
        (state.estimator, state.published) = (estimator.into(), Arc::new(published));
        state.samples_before = *samples;
    }

    /// All kept costs of stages that do not exist at present.
    pub(super) fn known(&self) -> impl Iterator<Item = KnownStage> + '_ {
        self.stages.iter().map(|(what, known)| KnownStage {
            what: what.clone(),
            cost: known.cost.clone(),
            samples: known.samples,
        })
    }

    /// Enters costs. Peers connect under any name, so beyond the limit the costs that uninvited
    /// peers left go first, then those of other peers, the oldest before the others.
    fn enter(&mut self, what: StageResource, cost: KeptStage, samples: u64) {
        self.entered += 1;
        let entered = self.entered;
        if self.stages.len() >= STAGES_REMEMBERED_MAX && !self.stages.contains_key(&what) {
            let rank = |what: &StageResource| match what {
                StageResource::Net { outbound, .. } => u8::from(*outbound),
                _ => 2,
            };
            let least = self.stages.iter().min_by_key(|(what, it)| (rank(what), it.entered));
            if let Some(least) = least.map(|(what, _)| what.clone()) {
                self.stages.remove(&least);
            }
        }
        self.stages.insert(what, Remembered { cost, samples, entered });
    }
}

/// Costs of a stage to keep; `None` if the stage is not kept or was not measured.
pub(super) fn known(what: &StageResource, state: &StageState) -> Option<KnownStage> {
    let cost = is_kept(what).then(|| KeptStage::of(&state.estimator, &state.published))??;
    let samples = state.samples_before + state.estimator.samples().iter().sum::<u64>();
    Some(KnownStage { what: what.clone(), cost, samples })
}

fn is_kept(what: &StageResource) -> bool {
    match what {
        StageResource::Disk { .. }
        | StageResource::Net { .. }
        | StageResource::Copy
        | StageResource::Check => true,
        StageResource::Peer { .. }
        | StageResource::Cache { .. }
        | StageResource::Dial { .. }
        | StageResource::Sync { .. }
        | StageResource::PeerSync { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::DeviceId;
    use piped_core::link::LaneClass;
    use piped_core::modes::{CalibrationMode, PlannerMode};
    use piped_core::units::Nanos;

    use super::super::plan::{Path, Planner, path_of};
    use super::*;
    use crate::solve::solve;

    fn planner() -> Planner {
        Planner::new(PlannerMode::Auto, CalibrationMode::Live, false)
    }

    /// A disk, the checksum, a lane, the checksum there.
    fn path(planner: &mut Planner) -> Path {
        let disk = planner.disk_stage(DeviceId(1), false);
        let net = planner.net_stages("beta", LaneClass::Bulk, false).1;
        let check = planner.check_stage();
        path_of([disk, check, net, check])
    }

    fn measure(planner: &mut Planner, times: u64) {
        let path = path(planner);
        let costs = [(500, 8), (1, 1), (40, 8)];
        for (stage, (overhead, per_byte)) in path.into_iter().zip(costs) {
            for round in 0..100 {
                for bytes in [4096_u32, 16 << 10, 64 << 10, 256 << 10] {
                    let noise = round % 2 * 1000;
                    let time = overhead * 1000 + noise + u64::from(bytes) * per_byte;
                    let latency = if overhead > 1 { 70_000 } else { 0 };
                    planner.sample_alone(stage, bytes, Nanos((time + latency) * times / 10));
                    planner.sample_backlogged(stage, bytes, Nanos(time * times / 10));
                }
            }
        }
    }

    /// What the next transfer gets once questions are answered: the number of its plan, and what it
    /// promises.
    fn plan(planner: &mut Planner, length: u64) -> (u32, Nanos) {
        let path = path(planner);
        planner.plan(path, length);
        while let Some(question) = planner.poll_question() {
            planner.handle_answer(&solve(&question));
        }
        let planned = planner.plan(path, length);
        (planned.cut.number(), planned.predicted)
    }

    /// As it would be written to a file and read again.
    fn kept(planner: &Planner) -> Vec<(StageResource, KeptStage)> {
        planner.known_stages().into_iter().map(|known| (known.what, known.cost)).collect()
    }

    #[test]
    fn the_first_plan_after_a_restart_is_the_last_one_before() {
        let mut before = planner();
        measure(&mut before, 10);
        let mut after = planner();
        after.take_kept(kept(&before));
        let mut without = planner();
        for length in [64 << 10, 256 << 10, 1 << 20, 4 << 20] {
            let (old, new) = (plan(&mut before, length), plan(&mut after, length));
            assert_eq!(new, old, "{length}");
            assert_ne!(new, plan(&mut without, length), "{length}");
        }
        let known = after.known_stages();
        assert!(!known.is_empty() && known.iter().all(|known| known.samples == 0), "no news");
        let disk = &after.report()[2];
        assert!(disk.kept && disk.confidence < 0.4 && disk.note.contains("kept"), "{disk:?}");
    }

    #[test]
    fn a_machine_that_has_changed_gets_the_plan_that_it_would_have_got_anyway() {
        let mut before = planner();
        measure(&mut before, 10);
        let mut after = planner();
        after.take_kept(kept(&before));
        let mut without = planner();
        for times in [1, 100] {
            measure(&mut after, times);
            measure(&mut without, times);
            let (one, other) = (plan(&mut after, 1 << 20), plan(&mut without, 1 << 20));
            // As near as published costs follow.
            let near = one.1.0.abs_diff(other.1.0) * 20 <= other.1.0;
            assert!(near, "{one:?} {other:?}");
            assert!(after.report().iter().all(|stage| !stage.kept));
        }
    }

    #[test]
    fn a_peer_that_comes_back_is_known() {
        let mut planner = planner();
        measure(&mut planner, 10);
        let old = plan(&mut planner, 1 << 20);
        let samples = |planner: &Planner| -> u64 {
            let known = planner.known_stages();
            let net = |known: &&KnownStage| matches!(&known.what, StageResource::Net { .. });
            known.iter().filter(net).map(|known| known.samples).sum()
        };
        let before = samples(&planner);
        assert!(before > 0);
        planner.forget_peer("beta", false);
        assert_eq!(samples(&planner), before, "news although the stage is gone");
        assert_eq!(plan(&mut planner, 1 << 20), old);
        assert_eq!(samples(&planner), before, "and when it is back");
    }

    #[test]
    fn what_peers_leave_behind_has_an_end_and_pushes_nothing_of_ours_out() {
        let mut planner = planner();
        measure(&mut planner, 10);
        let net = |peer: &str, outbound| StageResource::Net {
            peer: peer.to_owned(),
            class: LaneClass::Bulk,
            outbound,
            incoming: false,
        };
        let (_, cost) = kept(&planner).pop().expect("something");
        planner.take_kept(vec![(net("ours", true), cost)]);
        for peer in 0..2 * STAGES_REMEMBERED_MAX {
            let name = format!("stranger{peer}");
            let stage = planner.net_stages(&name, LaneClass::Bulk, false).1;
            planner.sample_alone(stage, 4096, Nanos(50_000));
            planner.forget_peer(&name, false);
        }
        let known = planner.known_stages();
        assert!(known.len() <= STAGES_REMEMBERED_MAX + 8, "{}", known.len());
        let has = |what| known.iter().any(|known| known.what == what);
        assert!(has(net("ours", true)));
        let last = format!("stranger{}", 2 * STAGES_REMEMBERED_MAX - 1);
        assert!(has(net(&last, false)) && !has(net("stranger0", false)));
    }

    #[test]
    fn what_no_stage_costs_is_not_taken() {
        let mut before = planner();
        measure(&mut before, 10);
        let wrong: [fn(&mut KeptStage); 8] = [
            |cost| cost.lines[0].latency = f64::NAN,
            |cost| cost.lines[0].overhead = -1e-6,
            |cost| cost.lines[0].per_byte = f64::INFINITY,
            |cost| cost.lines[0].latency = 11.0,
            |cost| cost.lines.clear(),
            |cost| cost.lines = vec![cost.lines[0]; 12],
            |cost| cost.sizes[0].alone = f64::NAN,
            |cost| cost.sizes.reverse(),
        ];
        let good = kept(&before);
        for (number, spoil) in wrong.into_iter().enumerate() {
            let mut after = planner();
            let spoilt = good.iter().cloned().map(|(what, mut cost)| {
                cost.sizes.push(crate::kept::KeptSize { bytes: 3e6, alone: 1.0, backlogged: 1.0 });
                spoil(&mut cost);
                (what, cost)
            });
            after.take_kept(spoilt.collect());
            assert!(after.known_stages().is_empty(), "{number}");
            assert_eq!(plan(&mut after, 1 << 20), plan(&mut planner(), 1 << 20), "{number}");
        }
    }

    #[test]
    fn plans_that_do_not_follow_stay_with_what_was_kept() {
        let mut before = planner();
        measure(&mut before, 10);
        let old = plan(&mut before, 1 << 20);
        let mut frozen = Planner::new(PlannerMode::Auto, CalibrationMode::Frozen, false);
        frozen.take_kept(kept(&before));
        assert_eq!(plan(&mut frozen, 1 << 20), old);
        measure(&mut frozen, 100);
        assert_eq!(plan(&mut frozen, 1 << 20), old);
        assert!(frozen.known_stages().is_empty(), "and nothing of it is kept");
    }
}
