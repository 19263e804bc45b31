//! Who has sent what, and who waits for what: a channel's messages without a receive, and its
//! receives without a message.
//!
//! Messages keep the order in which they came, receives the one in which they were asked for. A
//! receive takes the first message of its tag, a message the first receive that takes its tag; so
//! of the two lists of a channel no entry of one fits one of the other. What went back (its receive
//! was given up) goes to its old place.

use std::collections::VecDeque;

use piped_core::ids::{ChannelId, SessionId};
use piped_core::units::Nanos;

use super::arrivals::Came;
use super::early::Piece;
use super::keys::{LaneKey, LinkKey, ServedKey, TransferKey};

/// A message that is to be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Envelope {
    /// Its place among the channel's messages.
    pub(super) order: u64,
    pub(super) tag: u64,
    /// The message's length in bytes.
    pub(super) length: u32,
    pub(super) data: Data,
    /// When a message for which there is early-arrival memory came; none for other messages.
    pub(super) came: Option<Came>,
}

/// Where a message lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Data {
    /// In early-arrival memory; its sender is done with it.
    Here(Piece),
    /// With a transfer of this shard.
    Local(TransferKey),
    /// Only announced: the bytes are still at a peer.
    Peer(Mail),
}

/// A message that a peer has announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mail {
    /// What it was sent by.
    pub(super) served: ServedKey,
    /// The peer, and the lane on which it was announced last.
    pub(super) link: LinkKey,
    pub(super) lane: LaneKey,
    /// The peer's name for it, on that lane.
    pub(super) wire: u64,
    pub(super) sequence: u32,
    /// Its sender has given it up by then.
    pub(super) deadline: Nanos,
    /// The peer waits to be told that it is asked for.
    pub(super) waits: bool,
}

/// A message that a peer has announced, in the books of what it was sent by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MailPlace {
    pub(super) sequence: u32,
    pub(super) channel: ChannelId,
    pub(super) order: u64,
    /// The receive that has it; without one it waits.
    pub(super) receive: Option<TransferKey>,
}

/// A receive that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Posted {
    /// Its place among the channel's receives.
    pub(super) order: u64,
    pub(super) transfer: TransferKey,
    /// The tag it takes; any without.
    pub(super) tag: Option<u64>,
}

impl Posted {
    fn takes(&self, tag: u64) -> bool {
        self.tag.is_none_or(|wanted| wanted == tag)
    }
}

/// A channel of this node: messages without a receive, and receives without a message.
#[derive(Debug)]
pub(super) struct Channel {
    /// The session that receives from the channel.
    pub(super) owner: SessionId,
    waiting: VecDeque<Envelope>,
    posted: VecDeque<Posted>,
    orders: u64,
}

impl Channel {
    pub(super) fn new(owner: SessionId) -> Self {
        Self { owner, waiting: VecDeque::new(), posted: VecDeque::new(), orders: 0 }
    }

    /// The place of what comes now.
    pub(super) fn next_order(&mut self) -> u64 {
        self.orders += 1;
        self.orders
    }

    /// The receive that a message of this tag goes to.
    pub(super) fn receive_for(&self, tag: u64) -> Option<Posted> {
        self.posted.iter().find(|posted| posted.takes(tag)).copied()
    }

    /// The message that a receive gets; it waits no longer.
    pub(super) fn take_message(&mut self, tag: Option<u64>) -> Option<Envelope> {
        let fits = |envelope: &Envelope| tag.is_none_or(|wanted| wanted == envelope.tag);
        let at = self.waiting.iter().position(fits)?;
        self.waiting.remove(at)
    }

    /// Has a receive wait.
    pub(super) fn post(&mut self, posted: Posted) {
        let at = self.posted.partition_point(|other| other.order < posted.order);
        self.posted.insert(at, posted);
    }

    /// Takes a receive off the line of those that wait. Returns `false` if the receive was not in
    /// it.
    pub(super) fn unpost(&mut self, transfer: TransferKey) -> bool {
        let before = self.posted.len();
        self.posted.retain(|posted| posted.transfer != transfer);
        self.posted.len() < before
    }

    /// Has a message wait.
    pub(super) fn wait(&mut self, envelope: Envelope) {
        let at = self.waiting.partition_point(|other| other.order < envelope.order);
        self.waiting.insert(at, envelope);
    }

    /// A message that waits, by its place.
    pub(super) fn message_mut(&mut self, order: u64) -> Option<&mut Envelope> {
        let at = self.waiting.binary_search_by_key(&order, |envelope| envelope.order).ok()?;
        self.waiting.get_mut(at)
    }

    /// The same; it waits no longer.
    pub(super) fn remove(&mut self, order: u64) -> Option<Envelope> {
        let at = self.waiting.binary_search_by_key(&order, |envelope| envelope.order).ok()?;
        self.waiting.remove(at)
    }

    /// The messages that wait, in their order.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Envelope> {
        self.waiting.iter()
    }

    /// Everything that waits, for a channel that is no more.
    pub(super) fn into_parts(self) -> (VecDeque<Envelope>, VecDeque<Posted>) {
        (self.waiting, self.posted)
    }
}

#[cfg(test)]
mod tests {
    use super::super::slab::Key;
    use super::*;

    fn key<T>(number: u64) -> Key<T> {
        Key::from_bits(number)
    }

    fn envelope(order: u64, tag: u64) -> Envelope {
        Envelope { order, tag, length: 1, data: Data::Local(key(order)), came: None }
    }

    fn posted(order: u64, tag: Option<u64>) -> Posted {
        Posted { order, transfer: key(order), tag }
    }

    #[test]
    fn messages_of_a_tag_come_in_their_order() {
        let mut channel = Channel::new(SessionId(1));
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
        let mut channel = Channel::new(SessionId(1));
        for (order, tag) in [(1, Some(7)), (2, None), (3, Some(8))] {
            channel.post(posted(order, tag));
        }
        let first = |channel: &Channel, tag| channel.receive_for(tag).map(|it| it.order);
        assert_eq!(first(&channel, 8), Some(2));
        assert_eq!(first(&channel, 7), Some(1));
        assert!(channel.unpost(key(2)));
        assert!(!channel.unpost(key(2)));
        assert_eq!(first(&channel, 8), Some(3));
        assert_eq!(first(&channel, 9), None);
    }
}
