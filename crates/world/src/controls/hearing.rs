//! What nodes hear of each other, and whose certificates count by their calendars.

use std::collections::BTreeMap;

use piped_config::{Found, Revocations, UnixTime};
use piped_control::discovery::Source;
use piped_control::times::Times;
use piped_sim::SimKernel;

use super::{CALENDAR, Controls};

impl Controls {
    /// What both clocks of a node say.
    #[must_use]
    pub fn times_of(&self, node: usize, kernel: &SimKernel) -> Times {
        let passed = kernel.now().0 / 1_000_000_000;
        let calendar = UnixTime(CALENDAR + passed + self.nodes[node].ahead);
        Times { now: self.time_of(node, kernel), calendar }
    }

    /// The calendar of a node jumps ahead by so many seconds.
    pub fn jump(&mut self, node: usize, seconds: u64) {
        self.nodes[node].ahead += seconds;
    }

    /// A node that runs looks whose certificates count no more, as its driver does now and then.
    pub fn check_members(&mut self, node: usize, kernel: &SimKernel) {
        let times = self.times_of(node, kernel);
        if let Some(control) = &mut self.nodes[node].control {
            control.check_members(times);
        }
        self.settle_later(node, kernel);
        self.drain(node, kernel);
    }

    /// A node that runs hears a list of revoked keys. Whether it took it.
    pub fn hear_revocations(&mut self, node: usize, list: Revocations, kernel: &SimKernel) -> bool {
        let times = self.times_of(node, kernel);
        let control = self.nodes[node].control.as_mut();
        let taken = control.and_then(|control| control.hear_revocations(list, times)).is_some();
        self.settle_later(node, kernel);
        self.drain(node, kernel);
        taken
    }

    /// A source of discovery tells a node that runs all that it knows, or why it is away.
    pub fn hear(
        &mut self,
        node: usize,
        source: Source,
        said: Result<BTreeMap<String, Found>, String>,
        kernel: &SimKernel,
    ) {
        let now = self.time_of(node, kernel);
        let Some(control) = &mut self.nodes[node].control else { return };
        control.hear(source, said, now);
        self.settle_later(node, kernel);
    }
}
