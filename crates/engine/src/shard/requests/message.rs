//! What is left of a message: of one to a channel of a peer, of one to a channel of this shard, and
//! of a request to receive one.

use piped_core::ids::ChannelId;
use piped_core::status::Status;

use super::super::arena::Memory;
use super::super::keys::{LinkKey, ServedKey};
use super::super::messages::Envelope;

/// What makes a transfer with a peer a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Outgoing {
    pub(in crate::shard) tag: u64,
    /// Its number among those of its handle, and the peer's incarnation that was told it first.
    pub(in crate::shard) number: Option<(u32, u64)>,
    /// The peer's number of what it is to be written to.
    pub(in crate::shard) slot: Option<u32>,
    /// The peer knows of it, and will say when it is asked for.
    pub(in crate::shard) queued: bool,
    /// The message ends with `WouldBlock` if the peer does not take it in or ask for it at once.
    pub(in crate::shard) no_wait: bool,
}

impl Outgoing {
    pub(in crate::shard) const fn new(tag: u64, no_wait: bool) -> Self {
        Self { tag, number: None, slot: None, queued: false, no_wait }
    }
}

/// A request to receive a message from a channel.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct ReceiveBody {
    pub(in crate::shard) channel: ChannelId,
    /// The tag it takes; any without.
    pub(in crate::shard) tag: Option<u64>,
    pub(in crate::shard) memory: Memory,
    /// Its place among the channel's receives; 0 until it has one.
    pub(in crate::shard) order: u64,
    pub(in crate::shard) from: Incoming,
    /// Bytes that were copied.
    pub(in crate::shard) next: u32,
    /// The receive ends with `WouldBlock` if no message is there now.
    pub(in crate::shard) no_wait: bool,
    /// How it is given up, once another shard that has its buffer says that no message came.
    pub(in crate::shard) ending: Option<Status>,
}

/// What a receive gets.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) enum Incoming {
    Nothing,
    /// A frame is landing in its buffer.
    Frame,
    /// A message, and if it is to be written by its sender, what to.
    Message(Envelope, Option<Slot>),
}

/// A receive's buffer as a peer writes to it.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Slot {
    pub(in crate::shard) link: LinkKey,
    pub(in crate::shard) served: ServedKey,
}

impl ReceiveBody {
    pub(in crate::shard) fn new(
        channel: ChannelId,
        tag: Option<u64>,
        memory: Memory,
        no_wait: bool,
    ) -> Self {
        let (order, from, next, ending) = (0, Incoming::Nothing, 0, None);
        Self { channel, tag, memory, order, from, next, no_wait, ending }
    }
}

/// A send on this shard, until somebody has received it.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct SendBody {
    pub(in crate::shard) channel: ChannelId,
    pub(in crate::shard) tag: u64,
    pub(in crate::shard) memory: Memory,
    /// Its place among the channel's messages; 0 until it has one.
    pub(in crate::shard) order: u64,
    /// The send ends with `WouldBlock` if no receive takes the message now.
    pub(in crate::shard) no_wait: bool,
    /// The channel's shard has said that no receive takes the message now.
    unasked: bool,
}

impl SendBody {
    pub(in crate::shard) fn new(
        channel: ChannelId,
        tag: u64,
        memory: Memory,
        no_wait: bool,
    ) -> Self {
        Self { channel, tag, memory, order: 0, no_wait, unasked: false }
    }

    /// The send, with a place among the channel's messages.
    pub(in crate::shard) fn at(self, order: u64) -> Self {
        Self { order, ..self }
    }

    /// The channel's shard says that no receive takes the message now.
    pub(in crate::shard) fn note_unasked(&mut self) {
        self.unasked = true;
    }

    /// Whether that was said, if its sender has not seen to it.
    pub(in crate::shard) fn take_unasked(&mut self) -> bool {
        std::mem::take(&mut self.unasked)
    }
}
