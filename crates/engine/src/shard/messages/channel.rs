//! Who has sent what, and who waits for what: a channel's messages without a receive, and its
//! receives without a message.
//!
//! Messages keep the order in which they came, receives the one in which they were asked for. A
//! receive takes the first message of its tag, a message the first receive that takes its tag; so
//! of the two lists of a channel no entry of one fits one of the other. What went back (its receive
//! was given up) goes to its old place.

use std::collections::VecDeque;

use piped_core::ids::SessionId;

use super::super::keys::TransferKey;
use super::arrivals::Came;
use super::early::Piece;
use super::mails::MailKey;

/// A message that is to be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Envelope {
    /// Its place among the channel's messages.
    pub(in crate::shard) order: u64,
    pub(in crate::shard) tag: u64,
    /// The message's length in bytes.
    pub(in crate::shard) length: u32,
    /// The place that it has in a channel of another shard, once it was taken; else 0.
    pub(in crate::shard) place: u64,
    pub(in crate::shard) data: Data,
    /// When a message for which there is early-arrival memory came; none for other messages.
    pub(in crate::shard) came: Option<Came>,
}

/// Where a message lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Data {
    /// In early-arrival memory; its sender is done with it.
    Here(Piece),
    /// With a transfer of this shard.
    Local(TransferKey),
    /// Only announced: the bytes are still at a peer.
    Peer(MailKey),
    /// Another shard has it, under a number of its own.
    Shard(u16, u64),
}

/// A receive that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Posted {
    /// Its place among the channel's receives.
    order: u64,
    transfer: TransferKey,
    /// The tag it takes; any without.
    tag: Option<u64>,
}

/// A channel of this node: messages without a receive, and receives without a message.
#[derive(Debug)]
pub(in crate::shard) struct Channel {
    /// The session that receives from the channel.
    owner: SessionId,
    /// The shard that it belongs to, if that is another one: messages wait here until it takes
    /// them, and no receive does.
    home: Option<u16>,
    waiting: VecDeque<Envelope>,
    posted: VecDeque<Posted>,
    orders: u64,
}

impl Channel {
    pub(super) fn new(owner: SessionId, home: Option<u16>) -> Self {
        Self { owner, home, waiting: VecDeque::new(), posted: VecDeque::new(), orders: 0 }
    }

    /// The session that receives.
    pub(in crate::shard) fn owner(&self) -> SessionId {
        self.owner
    }

    /// The shard that it belongs to, if that is another one.
    pub(in crate::shard) fn home(&self) -> Option<u16> {
        self.home
    }

    /// The place of what comes now.
    pub(in crate::shard) fn next_order(&mut self) -> u64 {
        self.orders += 1;
        self.orders
    }

    fn place_for(&self, tag: u64) -> Option<usize> {
        self.posted.iter().position(|posted| posted.tag.is_none_or(|wanted| wanted == tag))
    }

    /// The receive that a message of this tag goes to.
    pub(in crate::shard) fn receive_for(&self, tag: u64) -> Option<TransferKey> {
        self.place_for(tag).map(|at| self.posted[at].transfer)
    }

    /// The receive that a message of this tag goes to; it waits no longer.
    pub(in crate::shard) fn take_receive(&mut self, tag: u64) -> Option<TransferKey> {
        let at = self.place_for(tag)?;
        self.posted.remove(at).map(|posted| posted.transfer)
    }

    /// The message that a receive gets; it waits no longer.
    pub(in crate::shard) fn take_message(&mut self, tag: Option<u64>) -> Option<Envelope> {
        let fits = |envelope: &Envelope| tag.is_none_or(|wanted| wanted == envelope.tag);
        let at = self.waiting.iter().position(fits)?;
        self.waiting.remove(at)
    }

    /// Has a receive wait for a message of a tag, or for any, at its place among the receives.
    pub(in crate::shard) fn post(&mut self, transfer: TransferKey, tag: Option<u64>, order: u64) {
        let at = self.posted.partition_point(|other| other.order < order);
        self.posted.insert(at, Posted { order, transfer, tag });
    }

    /// Takes a receive off the line of those that wait.
    pub(in crate::shard) fn unpost(&mut self, transfer: TransferKey) {
        self.posted.retain(|posted| posted.transfer != transfer);
    }

    pub(in crate::shard) fn wait(&mut self, envelope: Envelope) {
        let at = self.waiting.partition_point(|other| other.order < envelope.order);
        self.waiting.insert(at, envelope);
    }

    /// A message that waited, by its place; it waits no longer.
    pub(in crate::shard) fn remove(&mut self, order: u64) -> Option<Envelope> {
        let at = self.waiting.binary_search_by_key(&order, |envelope| envelope.order);
        at.ok().and_then(|at| self.waiting.remove(at))
    }

    /// A message that waits, by its place.
    pub(in crate::shard) fn at(&self, order: u64) -> Option<Envelope> {
        let at = self.waiting.binary_search_by_key(&order, |envelope| envelope.order);
        at.ok().and_then(|at| self.waiting.get(at)).copied()
    }

    /// A message that waits is somewhere else now.
    pub(in crate::shard) fn change(&mut self, envelope: Envelope) {
        let at = self.waiting.binary_search_by_key(&envelope.order, |waiting| waiting.order);
        if let Some(waiting) = at.ok().and_then(|at| self.waiting.get_mut(at)) {
            *waiting = envelope;
        }
    }

    /// Takes out a message that another shard offered, by its number there.
    pub(in crate::shard) fn take_offered(&mut self, shard: u16, number: u64) -> Option<Envelope> {
        let offered = Data::Shard(shard, number);
        let at = self.waiting.iter().position(|envelope| envelope.data == offered)?;
        self.waiting.remove(at)
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &Envelope> {
        self.waiting.iter()
    }

    /// All that waited in a channel that is no more: messages, and receives.
    pub(in crate::shard) fn into_parts(
        self,
    ) -> (VecDeque<Envelope>, impl Iterator<Item = TransferKey>) {
        (self.waiting, self.posted.into_iter().map(|posted| posted.transfer))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::slab::Key;
    use super::*;

    fn key<T>(number: u64) -> Key<T> {
        Key::from_bits(number)
    }

    fn envelope(order: u64, tag: u64) -> Envelope {
        let data = Data::Local(key(order));
        Envelope { order, tag, length: 1, place: 0, data, came: None }
    }

    #[test]
    fn messages_of_a_tag_come_in_their_order() {
        let mut channel = Channel::new(SessionId(1), None);
        for (order, tag) in [(1, 7), (2, 8), (3, 7)] {
            channel.wait(envelope(order, tag));
        }
        assert_eq!(channel.take_message(Some(7)).map(|it| it.order), Some(1));
        assert_eq!(channel.take_message(None).map(|it| it.order), Some(2));
        assert_eq!(channel.take_message(Some(8)), None);
        // One that went back is before those that came later.
        channel.wait(envelope(1, 7));
        assert_eq!(channel.take_message(Some(7)).map(|it| it.order), Some(1));
        assert_eq!(channel.take_message(Some(7)).map(|it| it.order), Some(3));
    }

    #[test]
    fn a_message_goes_to_the_first_receive_that_takes_its_tag() {
        let mut channel = Channel::new(SessionId(1), None);
        for (order, tag) in [(1, Some(7)), (2, None), (3, Some(8))] {
            channel.post(key(order), tag, order);
        }
        assert_eq!(channel.receive_for(8), Some(key(2)));
        assert_eq!(channel.receive_for(7), Some(key(1)));
        channel.unpost(key(2));
        channel.unpost(key(2));
        assert_eq!(channel.receive_for(8), Some(key(3)));
        assert_eq!(channel.receive_for(9), None);
        assert_eq!(channel.take_receive(8), Some(key(3)));
        assert_eq!(channel.take_receive(8), None);
    }
}
