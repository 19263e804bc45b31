//! What a shard has to tell the other shards of its node, until the driver takes it.
//!
//! There is no bound of its own on what waits: each entry stands for something that has one, a
//! request, an announced message or a receive, and there are a few entries of each at most. So what
//! finds the driver's queue full waits here, in order, and nothing is refused or lost.

use std::collections::VecDeque;

use crate::relay::Relay;

/// What is for other shards, by shard. Alone on its node, a shard has none.
#[derive(Debug, Default)]
pub(super) struct Relays {
    own: u16,
    to: Vec<VecDeque<Relay>>,
}

impl Relays {
    /// This shard is one of so many.
    pub(super) fn new(own: u16, shards: u16) -> Self {
        Self { own, to: (0..shards).map(|_| VecDeque::new()).collect() }
    }

    /// Whether the node has no other shard.
    pub(super) fn is_alone(&self) -> bool {
        self.to.len() < 2
    }

    /// The shard's own number.
    pub(super) fn own(&self) -> u16 {
        self.own
    }

    /// A shard that is not there is told nothing.
    pub(super) fn tell(&mut self, to: u16, relay: Relay) {
        debug_assert!(to != self.own, "a shard tells itself nothing: {relay:?}");
        if let Some(queue) = self.to.get_mut(usize::from(to)) {
            queue.push_back(relay);
        }
    }

    /// Tells all other shards.
    pub(super) fn tell_all(&mut self, relay: Relay) {
        let others = (0..self.to.len() as u16).filter(|&to| to != self.own);
        others.for_each(|to| self.to[usize::from(to)].push_back(relay));
    }

    pub(super) fn poll(&mut self, to: u16) -> Option<Relay> {
        self.to.get_mut(usize::from(to))?.pop_front()
    }

    /// How many wait for the driver to take them to a shard.
    pub(super) fn waiting(&self, to: u16) -> usize {
        self.to.get(usize::from(to)).map_or(0, VecDeque::len)
    }

    /// How many wait for the driver to take them.
    pub(super) fn len(&self) -> usize {
        self.to.iter().map(VecDeque::len).sum()
    }
}
