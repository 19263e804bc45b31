use piped_core::ids::{DeviceId, HandleId};
use piped_core::modes::PlannerMode;
use piped_core::request::{ArenaBuffer, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::draft::{DraftAsk, Forecast};
use piped_report::shard::{Explanation, StageReport};

use super::World;

impl World {
    /// Stages with the measurements of a node.
    pub(in crate::commands) fn stages(&self, node: usize) -> Vec<StageReport> {
        self.machines.shards(node)[0].stages()
    }

    /// Explanation of a node's last transfer.
    pub(in crate::commands) fn explain(&self, node: usize) -> Explanation {
        self.machines.shards(node)[0].explain(None).expect("there was one")
    }

    /// Forecast of a node.
    pub(in crate::commands) fn draft(&self, node: usize, ask: &DraftAsk) -> Forecast {
        self.machines.shards(node)[0].draft(ask).expect("it leads somewhere").forecast()
    }

    /// Device number of a disk.
    pub(in crate::commands) fn device(&self, node: usize, disk: &str) -> DeviceId {
        self.nodes[node].disks[disk].0
    }

    /// Opens a handle on which every request is one fragment.
    pub(in crate::commands) fn open_whole(&mut self, node: &str, what: &str) -> (usize, HandleId) {
        self.plan(PlannerMode::Whole, None);
        let node = self.find(node).expect("a node");
        (node, self.open(node, what).expect("opened"))
    }

    /// Begins a read into piece `slot` of the arena, of pieces of that size, and returns its
    /// number.
    pub(in crate::commands) fn begin(
        &mut self,
        (node, handle): (usize, HandleId),
        bytes: u64,
        slot: u64,
    ) -> u64 {
        let buffer = ArenaBuffer { segment: 0, offset: slot * bytes, length: bytes };
        self.begin_any(node, Verb::Read { handle, offset: slot * bytes, buffer, wanted: 0 })
    }

    /// Runs until one of these has ended, or until `until`; returns its place.
    pub(in crate::commands) fn await_one(
        &mut self,
        node: usize,
        numbers: &[u64],
        until: Nanos,
    ) -> Option<usize> {
        loop {
            let ended = &mut self.nodes[node].ended;
            let found = numbers.iter().position(|number| ended.contains_key(number));
            if let Some(place) = found {
                let status = ended.remove(&numbers[place]).expect("it is there");
                assert_eq!(status, Status::Ok);
                return Some(place);
            }
            if self.now() >= until {
                return None;
            }
            self.step(until);
        }
    }
}
