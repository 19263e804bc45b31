//! Messages of peers: which of them were taken in, and which are announced and not received.
//!
//! A message that is announced is in the books until it is received or lost: by what it was sent
//! by, by the lane and the peer's name for it, and by when its sender gives it up. Peers choose how
//! many there are and what they say of them, so nothing is searched for beyond what one handle may
//! have under way.

use std::collections::{BTreeMap, BTreeSet};

use piped_core::ids::ChannelId;
use piped_core::limits;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_wire::Message;

use super::super::keys::{LaneKey, LinkKey, ServedKey, TransferKey, kind};
use super::super::numbers::{Remembered, is_within};
use super::super::slab::Beside;
use super::arrivals::Came;

/// The name of a peer's message: what it was sent by, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::shard) struct MailKey {
    served: ServedKey,
    sequence: u32,
}

impl MailKey {
    pub(in crate::shard) const fn new(served: ServedKey, sequence: u32) -> Self {
        Self { served, sequence }
    }
}

/// A message that a peer has announced.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Mail {
    pub(in crate::shard) channel: ChannelId,
    /// Its place among the channel's messages.
    pub(in crate::shard) order: u64,
    pub(in crate::shard) link: LinkKey,
    /// The receive that has it, and the number by which the peer writes to that one's buffer;
    /// without one it waits.
    pub(in crate::shard) receive: Option<(TransferKey, u32)>,
    sequence: u32,
    said: Said,
    /// The peer waits to be told that it is asked for.
    waits: bool,
    /// The peer knows that nobody has asked for it yet.
    queued: bool,
}

/// What a peer said of a message when it announced it last: on which lane, its name for it there,
/// and by when its sender has given it up.
pub(in crate::shard) type Said = (LaneKey, u64, Nanos);

impl Mail {
    /// What its sender is told if nobody will ask for it, and on which lane; nothing if that one
    /// does not wait for a word.
    pub(in crate::shard) fn refusal(&self, status: Status) -> Option<(LaneKey, Message)> {
        let (lane, transfer, _) = self.said;
        self.waits.then_some((lane, Message::Ready { transfer, status, handle: 0 }))
    }
}

/// What was sent by one handle of a peer.
#[derive(Debug, Default)]
struct Sender {
    taken_in: Remembered<()>,
    /// No more than may be under way.
    mails: Vec<Mail>,
    /// The message whose bytes come in: one at a time, for they have one lane.
    arriving: Option<(u32, Came)>,
}

/// The messages of all peers.
#[derive(Debug)]
pub(in crate::shard) struct Mails {
    senders: Beside<kind::Served, Sender>,
    /// How many messages each peer has announced, by all its handles.
    announced: Beside<kind::Link, u32>,
    times: BTreeSet<(Nanos, MailKey)>,
    names: BTreeMap<(LaneKey, u64), MailKey>,
}

impl Mails {
    pub(in crate::shard) fn new() -> Self {
        Self {
            senders: Beside::with_capacity(limits::SERVED_MAX),
            announced: Beside::with_capacity(limits::LINKS_MAX),
            times: BTreeSet::new(),
            names: BTreeMap::new(),
        }
    }

    /// A peer may send by what it has open now. Whoever had its place left no message behind.
    pub(in crate::shard) fn begin(&mut self, served: ServedKey) {
        *self.senders.of_new(served) = Sender::default();
    }

    pub(in crate::shard) fn has_taken_in(&self, key: MailKey) -> bool {
        self.senders.get(key.served).is_none_or(|it| it.taken_in.has(key.sequence))
    }

    /// Records that a message was taken in, so that it is not received again if it comes once more.
    pub(in crate::shard) fn take_in(&mut self, key: MailKey) {
        self.strike(key);
        if let Some(sender) = self.senders.get_mut(key.served) {
            sender.taken_in.add(key.sequence, ());
        }
    }

    /// A message's bytes begin to come in; `None`: nobody receives it, or it came before.
    pub(in crate::shard) fn note_arriving(&mut self, key: MailKey, came: Option<Came>) {
        if let Some(sender) = self.senders.get_mut(key.served) {
            sender.arriving = came.map(|came| (key.sequence, came));
        }
    }

    /// What was noted of a message whose bytes have come in.
    pub(in crate::shard) fn take_arriving(&mut self, key: MailKey) -> Option<Came> {
        let (sequence, came) = self.senders.get_mut(key.served)?.arriving.take()?;
        (sequence == key.sequence).then_some(came)
    }

    pub(in crate::shard) fn get(&self, key: MailKey) -> Option<&Mail> {
        self.senders.get(key.served)?.mails.iter().find(|mail| mail.sequence == key.sequence)
    }

    fn get_mut(&mut self, key: MailKey) -> Option<&mut Mail> {
        let mails = &mut self.senders.get_mut(key.served)?.mails;
        mails.iter_mut().find(|mail| mail.sequence == key.sequence)
    }

    /// A peer announces a message for a place in a channel.
    pub(in crate::shard) fn announce(
        &mut self,
        key: MailKey,
        (channel, order): (ChannelId, u64),
        link: LinkKey,
        said: Said,
    ) {
        let (sequence, receive, waits, queued) = (key.sequence, None, true, false);
        let Some(sender) = self.senders.get_mut(key.served) else { return };
        sender.mails.push(Mail { channel, order, link, receive, sequence, said, waits, queued });
        *self.announced.of_new(link) += 1;
        self.enter(key, said);
    }

    /// A message is announced anew, if it was before: on a lane that is no more, or its write found
    /// its receive given up. Whether a receive has it.
    pub(in crate::shard) fn announce_again(&mut self, key: MailKey, said: Said) -> Option<bool> {
        let mail = self.get_mut(key)?;
        let old = std::mem::replace(&mut mail.said, said);
        (mail.waits, mail.queued) = (true, false);
        let is_received = mail.receive.is_some();
        self.leave(key, old);
        self.enter(key, said);
        Some(is_received)
    }

    fn enter(&mut self, key: MailKey, (lane, wire, deadline): Said) {
        self.times.insert((deadline, key));
        self.names.insert((lane, wire), key);
    }

    fn leave(&mut self, key: MailKey, (lane, wire, deadline): Said) {
        self.times.remove(&(deadline, key));
        self.names.remove(&(lane, wire));
    }

    /// Another receive has a message, or none has.
    pub(in crate::shard) fn give(&mut self, key: MailKey, receive: Option<(TransferKey, u32)>) {
        if let Some(mail) = self.get_mut(key) {
            mail.receive = receive;
        }
    }

    /// What a sender is to be told, and on which lane, because its message is asked for: where to
    /// write it. Without its lane now, it is told when it announces it again.
    pub(in crate::shard) fn ask_for(
        &mut self,
        key: MailKey,
        is_up: impl Fn(LaneKey) -> bool,
    ) -> Option<(LaneKey, Message)> {
        let mail = self.get_mut(key)?;
        let ((lane, transfer, _), (_, handle)) = (mail.said, mail.receive?);
        if !mail.waits || !is_up(lane) {
            return None;
        }
        mail.waits = false;
        Some((lane, Message::Ready { transfer, status: Status::Ok, handle }))
    }

    /// What a sender is to be told, and on which lane, because nobody has asked for its message
    /// yet; nothing if it knows that, or was told otherwise.
    pub(in crate::shard) fn queue(&mut self, key: MailKey) -> Option<(LaneKey, Message)> {
        let mail = self.get_mut(key)?;
        let (lane, transfer, _) = mail.said;
        if !mail.waits || std::mem::replace(&mut mail.queued, true) {
            return None;
        }
        Some((lane, Message::Queued { transfer }))
    }

    /// Takes a message out of the books: it is received, or lost.
    pub(in crate::shard) fn strike(&mut self, key: MailKey) -> Option<Mail> {
        let mails = &mut self.senders.get_mut(key.served)?.mails;
        let at = mails.iter().position(|mail| mail.sequence == key.sequence)?;
        let mail = mails.swap_remove(at);
        *self.announced.at_mut(mail.link) -= 1;
        self.leave(key, mail.said);
        Some(mail)
    }

    /// The message that a peer calls so on a lane.
    pub(in crate::shard) fn named(&self, lane: LaneKey, wire: u64) -> Option<MailKey> {
        self.names.get(&(lane, wire)).copied()
    }

    /// What a peer will not send again is forgotten: all before `oldest`. One of what is announced
    /// of that, for the caller to end.
    pub(in crate::shard) fn forget_before(&mut self, key: MailKey, oldest: u32) -> Option<MailKey> {
        let served = key.served;
        let sender = self.senders.get_mut(served)?;
        sender.taken_in.forget_before(oldest);
        let over = sender.mails.iter().find(|mail| !is_within(mail.sequence, oldest))?;
        Some(MailKey { served, sequence: over.sequence })
    }

    pub(in crate::shard) fn first_of(&self, served: ServedKey) -> Option<MailKey> {
        let mail = self.senders.get(served)?.mails.last()?;
        Some(MailKey { served, sequence: mail.sequence })
    }

    /// The message that its sender gives up next, and when.
    pub(in crate::shard) fn next_due(&self) -> Option<(Nanos, MailKey)> {
        self.times.first().copied()
    }

    /// Messages that a peer has announced and that are not received.
    pub(in crate::shard) fn of_link(&self, link: LinkKey) -> u32 {
        self.announced.get(link).copied().unwrap_or(0)
    }

    pub(in crate::shard) fn len(&self) -> usize {
        self.times.len()
    }
}
