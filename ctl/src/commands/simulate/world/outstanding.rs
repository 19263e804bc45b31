use piped_core::ids::{DeviceId, HandleId, QueueId};
use piped_core::io::Io as _;
use piped_core::modes::PlannerMode;
use piped_core::request::{ArenaBuffer, Class, Origin, Request, Verb};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::draft::{DraftAsk, Forecast};
use piped_report::shard::{Explanation, StageReport};

use super::{SESSION, World};

impl World {
    pub(in crate::commands) fn now(&self) -> Nanos {
        self.kernel.now()
    }

    /// Stages with the measurements of a node.
    pub(in crate::commands) fn stages(&self, node: usize) -> Vec<StageReport> {
        self.nodes[node].shard.stages()
    }

    /// Explanation of a node's last transfer.
    pub(in crate::commands) fn explain(&self, node: usize) -> Explanation {
        self.nodes[node].shard.explain(None).expect("there was one")
    }

    /// Forecast of a node.
    pub(in crate::commands) fn draft(&self, node: usize, ask: &DraftAsk) -> Forecast {
        self.nodes[node].shard.draft(ask).expect("it leads somewhere").forecast()
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

    /// Begins any request, and returns its number.
    pub(in crate::commands) fn begin_any(&mut self, node: usize, verb: Verb) -> u64 {
        self.requests += 1;
        let number = self.requests;
        let origin = Origin { session: SESSION, queue: QueueId(0), slot: 0, user_data: number };
        let request =
            Request { verb, class: Class::Bulk, deadline: None, no_wait: false, fence: false };
        let id = self.nodes[node].id;
        let io = &mut self.kernel.io(id);
        let now = io.now();
        self.nodes[node].shard.submit(origin, request, now, io);
        number
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
                let (status, _) = ended.remove(&numbers[place]).expect("it is there");
                assert_eq!(status, Status::Ok);
                return Some(place);
            }
            if self.kernel.now() >= until {
                return None;
            }
            self.step(until);
        }
    }
}
