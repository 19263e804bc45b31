//! Messages between clients: what was sent, and what may be received.
//!
//! A message says in its first bytes who sent it and which it is, so a receiver's bytes tell what
//! must be in them. Each is received once at most; one that ended well is not lost; and of one
//! sender and tag a receive that was asked for earlier gets one that was sent earlier, as long as
//! no receive of the channel was given up (what it had goes to the next, behind those that others
//! have by then).

use std::collections::{BTreeMap, BTreeSet};

use piped_core::status::Status;

/// Bytes of a name: sender and number.
const NAME_BYTES: usize = 12;

/// The least length of a message.
pub(crate) const MESSAGE_BYTES_MIN: u64 = NAME_BYTES as u64;

/// Tags that clients use.
pub(crate) const TAGS: u64 = 3;

/// A message, by its sender and number.
type Name = (usize, u64);

#[derive(Debug)]
struct Sent {
    object: usize,
    tag: u64,
    data: Vec<u8>,
    /// How it ended for its sender.
    ended: Option<Status>,
    received: bool,
}

/// All messages of a world.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    sent: BTreeMap<Name, Sent>,
    /// By channel, sender and tag: which receive has got which message.
    order: BTreeMap<(usize, usize, u64), BTreeMap<u64, u64>>,
    /// Channels of which a receive was given up, or a message: a receive that had it is in its old
    /// place again, and gets what comes after others have got theirs.
    disordered: BTreeSet<usize>,
}

impl Messages {
    /// A message is about to be sent: its name is put into its bytes.
    pub(crate) fn send(&mut self, name: Name, object: usize, tag: u64, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&(name.0 as u32).to_le_bytes());
        bytes[4..NAME_BYTES].copy_from_slice(&name.1.to_le_bytes());
        let sent = Sent { object, tag, data: bytes.to_vec(), ended: None, received: false };
        self.sent.insert(name, sent);
    }

    /// A message is over for its sender.
    pub(crate) fn end(&mut self, name: Name, status: Status) {
        if let Some(sent) = self.sent.get_mut(&name) {
            sent.ended = Some(status);
            if status != Status::Ok {
                self.disordered.insert(sent.object);
            }
        }
    }

    /// A sender is no more.
    pub(crate) fn sender_died(&mut self, sender: usize) {
        let unfinished = self.sent.range((sender, 0)..=(sender, u64::MAX));
        let unfinished = unfinished.filter(|(_, sent)| sent.ended.is_none());
        self.disordered.extend(unfinished.map(|(_, sent)| sent.object));
    }

    /// A receive was given up.
    pub(crate) fn give_up(&mut self, object: usize) {
        self.disordered.insert(object);
    }

    /// The `number`th call of a channel's owner received this. Why that is wrong, if it is.
    pub(crate) fn receive(
        &mut self,
        object: usize,
        number: u64,
        tag: u64,
        bytes: &[u8],
    ) -> Result<(), String> {
        let Some((name, _)) = bytes.split_at_checked(NAME_BYTES) else {
            return Err(format!("{} bytes are no message", bytes.len()));
        };
        let sender = u32::from_le_bytes(name[..4].try_into().expect("4 bytes")) as usize;
        let which = u64::from_le_bytes(name[4..].try_into().expect("8 bytes"));
        let sent = self.sent.get_mut(&(sender, which));
        let sent = sent.ok_or(format!("nobody sent a message {which} of client {sender}"))?;
        if (sent.object, sent.tag) != (object, tag) {
            return Err(format!("it was sent to {} under tag {}", sent.object, sent.tag));
        }
        if sent.data != bytes {
            return Err(format!("{} bytes differ from those that were sent", bytes.len()));
        }
        if std::mem::replace(&mut sent.received, true) {
            return Err(format!("message {which} of client {sender} comes twice"));
        }
        let order = self.order.entry((object, sender, tag)).or_default();
        let before = order.range(..number).next_back().map(|(_, &sent)| sent);
        let after = order.range(number..).next().map(|(_, &sent)| sent);
        order.insert(number, which);
        let ordered =
            before.is_none_or(|sent| sent < which) && after.is_none_or(|sent| which < sent);
        if !ordered && !self.disordered.contains(&object) {
            return Err(format!("message {which} of client {sender} is out of order"));
        }
        Ok(())
    }

    /// How many messages of a channel are there for its receiver, and may be: those that ended
    /// well, and the others that were not received.
    pub(crate) fn left(&self, object: usize) -> (usize, usize) {
        let left = self.sent.values().filter(|sent| sent.object == object && !sent.received);
        let (well, perhaps): (Vec<_>, Vec<_>) = left.partition(|it| it.ended == Some(Status::Ok));
        (well.len(), perhaps.len())
    }
}
