//! Messages that other shards take for their receives, before a transfer stands for that.

use std::collections::VecDeque;

use piped_core::limits::COPY_BYTES_PER_TURN;

use crate::relay::Relay;

/// Takes in the order in which they came, each with the shard that it is of. Each stands for a
/// receive of another shard, so there are no more than those have.
#[derive(Debug, Default)]
pub(in crate::shard) struct Takes {
    waiting: VecDeque<(u16, Relay)>,
    /// Bytes that were copied for takes since the turn began.
    copied: u32,
}

impl Takes {
    pub(in crate::shard) fn push(&mut self, shard: u16, take: Relay) {
        debug_assert!(matches!(take, Relay::Take { .. }));
        self.waiting.push_back((shard, take));
    }

    pub(in crate::shard) fn begin_turn(&mut self) {
        self.copied = 0;
    }

    /// Whether so many bytes may be copied for a take as soon as it comes. Many of these in one
    /// turn get places among the transfers, beside the work of others.
    pub(in crate::shard) fn may_copy(&mut self, bytes: u32) -> bool {
        let copied = self.copied + bytes;
        let may = copied <= COPY_BYTES_PER_TURN;
        if may {
            self.copied = copied;
        }
        may
    }

    pub(in crate::shard) fn pop(&mut self) -> Option<(u16, Relay)> {
        self.waiting.pop_front()
    }

    /// Takes out the one for a receive that is given up.
    pub(in crate::shard) fn remove(&mut self, shard: u16, of: u64) -> Option<Relay> {
        let is_it = |(other, take): &(u16, Relay)| {
            *other == shard && matches!(take, Relay::Take { receive, .. } if *receive == of)
        };
        let at = self.waiting.iter().position(is_it)?;
        self.waiting.remove(at).map(|(_, take)| take)
    }

    pub(in crate::shard) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
