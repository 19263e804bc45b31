//! Messages that other shards take for their receives, before a transfer stands for that.

use std::collections::VecDeque;

use crate::relay::Relay;

/// Takes in the order in which they came, each with the shard that it is of. Each stands for a
/// receive of another shard, so there are no more than those have.
#[derive(Debug, Default)]
pub(in crate::shard) struct Takes(VecDeque<(u16, Relay)>);

impl Takes {
    pub(in crate::shard) fn push(&mut self, shard: u16, take: Relay) {
        debug_assert!(matches!(take, Relay::Take { .. }));
        self.0.push_back((shard, take));
    }

    pub(in crate::shard) fn pop(&mut self) -> Option<(u16, Relay)> {
        self.0.pop_front()
    }

    /// Takes out the one for a receive that is given up.
    pub(in crate::shard) fn remove(&mut self, shard: u16, of: u64) -> Option<Relay> {
        let is_it = |(other, take): &(u16, Relay)| {
            *other == shard && matches!(take, Relay::Take { receive, .. } if *receive == of)
        };
        let at = self.0.iter().position(is_it)?;
        self.0.remove(at).map(|(_, take)| take)
    }

    pub(in crate::shard) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
