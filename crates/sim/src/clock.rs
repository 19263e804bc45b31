//! A node's clock: ahead of the world's by what it likes, and no better than such clocks are.

use piped_core::units::Nanos;

use super::kernel::SimKernel;
use super::net::NodeId;

/// What a node takes for the time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// Nodes do not agree on the time.
    ahead: Nanos,
    /// It shows multiples of this.
    tick: Nanos,
}

impl Clock {
    pub(super) const fn new(ahead: Nanos) -> Self {
        Self { ahead, tick: Nanos(1) }
    }

    /// What it shows at a time of the world.
    pub(super) fn shows(&self, at: Nanos) -> Nanos {
        let time = at + self.ahead;
        Nanos(time.0 / self.tick.0 * self.tick.0)
    }

    /// When it will show at least so much, in the world's time.
    pub(super) fn when(&self, shown: Nanos) -> Nanos {
        Nanos(shown.0.div_ceil(self.tick.0).saturating_mul(self.tick.0)).since(self.ahead)
    }
}

impl SimKernel {
    /// A time of a node's clock in the world's time.
    #[must_use]
    pub fn world_time(&self, node: NodeId, time: Nanos) -> Nanos {
        self.nodes[node.0 as usize].clock.when(time)
    }

    /// A node's clock jumps ahead.
    pub fn put_clock_forward(&mut self, node: NodeId, by: Nanos) {
        self.note(|| format!("the clock of {node:?} jumps by {by}"));
        let clock = &mut self.node_mut(node).clock;
        clock.ahead = clock.ahead + by;
    }

    /// A node's clock goes back, to the world's time at most. No clock that a node should use does.
    pub fn put_clock_back(&mut self, node: NodeId, by: Nanos) {
        self.note(|| format!("the clock of {node:?} goes back by {by}"));
        let clock = &mut self.node_mut(node).clock;
        clock.ahead = clock.ahead.since(by);
    }

    /// A node's clock shows multiples of `tick` from now on: what is shorter takes no time, or all
    /// of it.
    pub fn set_clock_tick(&mut self, node: NodeId, tick: Nanos) {
        self.note(|| format!("the clock of {node:?} ticks every {tick}"));
        self.node_mut(node).clock.tick = tick.max(Nanos(1));
    }
}
