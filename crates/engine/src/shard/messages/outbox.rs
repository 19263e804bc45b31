//! The messages that this node sends by one handle of a peer: in order, each with a number.

use std::collections::VecDeque;

use super::super::keys::TransferKey;
use super::super::numbers::Numbers;

/// The messages of a handle that wait to be asked for, and the numbers of those that were.
#[derive(Debug, Default)]
pub(in crate::shard) struct Outbox {
    /// In their order, each with its number if it was asked for before.
    waiting: VecDeque<(TransferKey, Option<u32>)>,
    numbers: Numbers,
}

impl Outbox {
    pub(in crate::shard) fn enter(&mut self, key: TransferKey) {
        self.waiting.push_back((key, None));
    }

    /// Whether it is a message's turn to be asked for. Those that have a number already are among
    /// those that may be under way.
    pub(in crate::shard) fn is_next(&self, key: TransferKey) -> bool {
        let first = self.waiting.front();
        first
            .is_some_and(|&(it, number)| it == key && (number.is_some() || !self.numbers.is_full()))
    }

    /// The number of the message whose turn it is, and the least that may be asked again.
    pub(in crate::shard) fn number(&self) -> (u32, u32) {
        let number = self.waiting.front().and_then(|&(_, number)| number);
        (number.unwrap_or(self.numbers.next()), self.numbers.oldest())
    }

    /// The message whose turn it was is asked for. The one behind it.
    pub(in crate::shard) fn note_asked(&mut self) -> Option<TransferKey> {
        if let Some((_, None)) = self.waiting.pop_front() {
            self.numbers.begin();
        }
        self.first()
    }

    fn first(&self) -> Option<TransferKey> {
        self.waiting.front().map(|&(key, _)| key)
    }

    /// A message is over, or given up. The one whose turn it is now.
    pub(in crate::shard) fn leave(
        &mut self,
        key: TransferKey,
        number: Option<u32>,
    ) -> Option<TransferKey> {
        self.waiting.retain(|&(other, _)| other != key);
        if let Some(number) = number {
            self.numbers.end(number);
        }
        self.first()
    }

    /// A message is to be asked for again: at its old place, which its number says. The one whose
    /// turn it is now.
    pub(in crate::shard) fn enter_again(
        &mut self,
        key: TransferKey,
        number: Option<u32>,
    ) -> Option<TransferKey> {
        let oldest = self.numbers.oldest();
        // Those without a number were never asked for and come after all that were.
        let rank = |number: Option<u32>| number.map_or(u32::MAX, |it| it.wrapping_sub(oldest));
        let at = self.waiting.partition_point(|&(_, other)| rank(other) < rank(number));
        self.waiting.insert(at, (key, number));
        self.first()
    }
}
