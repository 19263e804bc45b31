//! A node's clock: ahead of the world's time by a random amount, and as coarse as it is set.

use piped_core::units::Nanos;

use super::kernel::SimKernel;
use super::net::NodeId;

/// The clock of one node, as a function of the world's time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    /// How far the clock is ahead of the world's time: nodes do not agree on the time.
    ahead: Nanos,
    /// Resolution of the clock, which shows multiples of this.
    tick: Nanos,
}

impl Clock {
    pub(super) const fn new(ahead: Nanos) -> Self {
        Self { ahead, tick: Nanos(1) }
    }

    /// The time that the clock shows at a time of the world.
    pub(super) fn shows(&self, at: Nanos) -> Nanos {
        let time = at + self.ahead;
        Nanos(time.0 / self.tick.0 * self.tick.0)
    }

    /// The time of the world at which the clock will show at least `shown`.
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

    /// Moves a node's clock ahead by this much.
    pub fn put_clock_forward(&mut self, node: NodeId, by: Nanos) {
        self.dones.stir(node);
        self.note(|| format!("the clock of {node:?} jumps by {by}"));
        let clock = &mut self.node_mut(node).clock;
        clock.ahead = clock.ahead + by;
    }

    /// Moves a node's clock back, at most to the world's time. No clock that a node should use does
    /// that.
    pub fn put_clock_back(&mut self, node: NodeId, by: Nanos) {
        self.dones.stir(node);
        self.note(|| format!("the clock of {node:?} goes back by {by}"));
        let clock = &mut self.node_mut(node).clock;
        clock.ahead = clock.ahead.since(by);
    }

    /// Sets the resolution of a node's clock. A shorter duration is measured as nothing or as a
    /// whole tick.
    pub fn set_clock_tick(&mut self, node: NodeId, tick: Nanos) {
        self.dones.stir(node);
        self.note(|| format!("the clock of {node:?} ticks every {tick}"));
        self.node_mut(node).clock.tick = tick.max(Nanos(1));
    }
}
