//! Messages that another shard takes for its receives, before a transfer stands for that.

use std::collections::VecDeque;

use piped_core::ids::ChannelId;
use piped_core::io::Span;

/// A message that is to come to a receive of another shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Take {
    /// The shard of the receive.
    pub(in crate::shard) shard: u16,
    /// Its number there.
    pub(in crate::shard) receive: u64,
    pub(in crate::shard) channel: ChannelId,
    /// The message's number here.
    pub(in crate::shard) number: u64,
    /// Its place in the channel's order.
    pub(in crate::shard) place: u64,
    pub(in crate::shard) into: Span,
}

/// Takes in the order in which they came. Each stands for a receive of another shard, so there are
/// no more than those have.
#[derive(Debug, Default)]
pub(in crate::shard) struct Takes(VecDeque<Take>);

impl Takes {
    pub(in crate::shard) fn push(&mut self, take: Take) {
        self.0.push_back(take);
    }

    pub(in crate::shard) fn pop(&mut self) -> Option<Take> {
        self.0.pop_front()
    }

    /// Takes out the one for a receive that is given up.
    pub(in crate::shard) fn remove(&mut self, shard: u16, receive: u64) -> Option<Take> {
        let at = self.0.iter().position(|it| (it.shard, it.receive) == (shard, receive))?;
        self.0.remove(at)
    }

    pub(in crate::shard) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
