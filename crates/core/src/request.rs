//! What clients ask and what they are told, as typed values. Nothing unchecked passes here: the
//! client door turns descriptors into [`Request`]s, the shard checks them against the session.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::ids::{HandleId, QueueId, SessionId};
use crate::status::Status;
use crate::units::Nanos;

/// Who waits for the answer: the session, its queue, and the client's own words for the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The session.
    pub session: SessionId,
    /// The queue the request came by, where its completion goes.
    pub queue: QueueId,
    /// The client's place for the request's progress word.
    pub slot: u32,
    /// The client's own value, returned untouched.
    pub user_data: u64,
}

/// How urgent a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum Class {
    /// Somebody is blocked on it: goes first.
    Latency,
    /// Throughput matters.
    Bulk,
}

/// A piece of the client's arena, in the client's words: its segment number, not a driver's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaBuffer {
    /// The segment's number in the session's arena.
    pub segment: u32,
    /// Bytes from the segment's start.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// A table of pieces ([`crate::pieces::Row`]) in the client's arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The segment's number in the session's arena.
    pub segment: u32,
    /// Bytes from the segment's start.
    pub offset: u64,
    /// Rows.
    pub rows: u32,
}

/// A request as it leaves the client door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What to do.
    pub verb: Verb,
    /// How urgent.
    pub class: Class,
    /// Time allowed from submission; `None` takes the configured default.
    pub deadline: Option<Nanos>,
    /// End with [`Status::WouldBlock`] instead of waiting for a limit, or for somebody to send or
    /// to receive.
    pub no_wait: bool,
    /// Begin only when all is over that the same queue has asked of the same node before.
    pub fence: bool,
}

/// What is done to 8 bytes of a region at once with everybody else, as words of the machine's byte
/// order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Add this, wrapping around.
    Add(u64),
    /// Replace what is expected; anything else stays.
    CompareSwap {
        /// What is replaced.
        expected: u64,
        /// By this.
        new: u64,
    },
}

impl Update {
    /// Bytes of a region that it changes; it lies at a multiple of them.
    pub const BYTES: u64 = 8;

    /// What it makes of a word.
    #[must_use]
    pub const fn of(self, word: u64) -> u64 {
        match self {
            Self::Add(addend) => word.wrapping_add(addend),
            Self::CompareSwap { expected, new } if word == expected => new,
            Self::CompareSwap { .. } => word,
        }
    }
}

/// The verbs of the shared-memory ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Completes at once: the ring's own cost.
    Nop,
    /// Read from a file or region, local or remote.
    Read {
        /// The file or region.
        handle: HandleId,
        /// Offset in it.
        offset: u64,
        /// Where to.
        buffer: ArenaBuffer,
        /// The byte that is wanted first, from the start of the request.
        wanted: u64,
    },
    /// Read or write pieces of a file or region.
    Vector {
        /// The file or region.
        handle: HandleId,
        /// It reads.
        reads: bool,
        /// Where to or from.
        buffer: ArenaBuffer,
        /// The table of them.
        table: Table,
        /// Bytes of all of them.
        bytes: u64,
    },
    /// Write to a file or region, local or remote.
    Write {
        /// The file or region.
        handle: HandleId,
        /// Offset in it.
        offset: u64,
        /// Where from.
        buffer: ArenaBuffer,
        /// Completed means on stable storage.
        durable: bool,
        /// Of a region: what its exporter is notified of, after this and all earlier puts of the
        /// same queue to the same node.
        notify: Option<u32>,
    },
    /// Change 8 bytes of a region and tell what they were. Exactly once, but where a daemon ended
    /// in between.
    Update {
        /// The region.
        handle: HandleId,
        /// Offset in it, a multiple of [`Update::BYTES`].
        offset: u64,
        /// What is done.
        update: Update,
    },
    /// Notify the exporter of a region, after all earlier puts of the same queue to the same node.
    Notify {
        /// The region.
        handle: HandleId,
        /// Of what.
        id: u32,
    },
    /// Wait for notifications on a region of this session, and take them.
    Wait {
        /// The region, as its exporter has it.
        handle: HandleId,
        /// Of what.
        id: u32,
        /// How many; at least 1.
        count: u64,
    },
    /// Nothing but to wait for what the same queue has asked of the same node before.
    Flush {
        /// Something of that node.
        handle: HandleId,
    },
    /// Copy between two handles without passing through the client.
    Copy {
        /// Where from.
        from: HandleId,
        /// Offset there.
        from_offset: u64,
        /// Where to.
        to: HandleId,
        /// Offset there.
        to_offset: u64,
        /// Bytes to copy; the end of the source ends the copy early.
        length: u64,
    },
    /// Make all completed writes of a handle durable.
    Sync {
        /// The file.
        handle: HandleId,
    },
    /// A message to a channel, local or remote.
    Send {
        /// The channel.
        handle: HandleId,
        /// What its receiver chooses by.
        tag: u64,
        /// The message.
        buffer: ArenaBuffer,
    },
    /// A message of a channel of this session.
    Receive {
        /// The channel.
        handle: HandleId,
        /// Which tag; any without.
        tag: Option<u64>,
        /// Where to. A longer message is not received: [`Status::TooLong`].
        buffer: ArenaBuffer,
    },
    /// Give up on an earlier request of the same queue, by its `user_data`.
    Cancel {
        /// The `user_data` of the request.
        target: u64,
    },
    /// A verb this version knows by number but does not serve; completes with `Unsupported`.
    Unsupported,
}

/// How the buffer stands when a request completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferState {
    /// The client may use it again.
    Returned,
    /// The kernel may still touch it: wait for the request's `Released` event.
    Held,
}

/// The end of a request, or the later release of its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// The request is over. Exactly one per request.
    Finished {
        /// Whose.
        origin: Origin,
        /// How it ended.
        status: Status,
        /// Contiguous bytes done from the request's start.
        bytes: u64,
        /// Of a receive, the message's tag; of an update, what the word was; of a wait, the
        /// notifications that are left; else 0.
        value: u64,
        /// Whether the buffer may be used again.
        buffer: BufferState,
    },
    /// The buffer of a request that finished with [`BufferState::Held`] is free. Exactly one.
    Released {
        /// Whose.
        origin: Origin,
    },
}

/// A request's watermark moved: `bytes` from its start are in place for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Whose.
    pub origin: Origin,
    /// Contiguous bytes in place.
    pub bytes: u64,
    /// The first extent behind them that is in place, too: from where to where, in bytes from the
    /// request's start. Empty if there is none.
    pub landed: (u64, u64),
}
