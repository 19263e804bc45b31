//! A planner by itself, for benchmarks: the cost of a look-up, and the form of a question.

use piped_core::ids::DeviceId;
use piped_core::link::LaneClass;
use piped_core::modes::{CalibrationMode, PlannerMode};
use piped_core::units::Nanos;

use super::plan::{Outcome, Path, Planner, path_of};
use crate::solve::{PlanAnswer, PlanRequest};

/// A read of so many bytes from a slow disk, through a network of three stages.
#[derive(Debug)]
pub struct Probe {
    planner: Planner,
    path: Path,
    length: u64,
}

/// Overheads in microseconds and costs in nanoseconds per byte: the disk's, then the network's.
const COSTS: [(u64, u64); 4] = [(500, 8), (60, 5), (5, 8), (40, 5)];

impl Probe {
    /// A planner whose stages were measured with these costs.
    #[must_use]
    pub fn new(length: u64) -> Self {
        let mut planner = Planner::new(PlannerMode::Auto, CalibrationMode::Live, false);
        let mut stages = vec![planner.disk_stage(DeviceId(1), false)];
        for name in ["send", "net", "receive"] {
            stages.push(planner.net_stages(name, LaneClass::Bulk, true).1);
        }
        for (&stage, (overhead, per_byte)) in stages.iter().zip(COSTS) {
            for round in 0..400 {
                for bytes in [4096, 16 << 10, 64 << 10, 256 << 10] {
                    let time = Nanos((overhead + round % 2) * 1000 + bytes * per_byte);
                    planner.sample_alone(stage, bytes as u32, time);
                    planner.sample_backlogged(stage, bytes as u32, time);
                }
            }
        }
        Self { planner, path: path_of(stages), length }
    }

    /// The depth of the plan for one more request.
    pub fn look_up(&mut self) -> u32 {
        let Self { planner, path, length, .. } = self;
        planner.plan(*path, *length).cut.depth
    }

    /// Reports a transfer that took as long as predicted.
    pub fn observe(&mut self) {
        let Self { planner, path, length, .. } = self;
        let planned = planner.plan(*path, *length);
        let (plan, time) = (planned.cut.number(), planned.predicted);
        planner.observe_outcome(*path, Outcome { length: *length, plan, time, alone: true });
    }

    /// The next question of the planner, if there is one.
    pub fn question(&mut self) -> Option<Box<PlanRequest>> {
        self.planner.poll_question()
    }

    /// Hands the answer to a question to the planner.
    pub fn answer(&mut self, answer: &PlanAnswer) {
        self.planner.handle_answer(answer);
    }
}
