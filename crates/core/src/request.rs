//! What clients ask and what they are told, as typed values. Nothing unchecked gets here: the
//! daemon turns a client's descriptors into [`Request`]s, and the shard checks them against the
//! session.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::ids::{HandleId, QueueId, SessionId};
use crate::status::Status;
use crate::units::Nanos;

/// Where the answer goes: the session, its queue, and the client's own words for the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The session that asked.
    pub session: SessionId,
    /// The queue that the request came by and its completion goes to.
    pub queue: QueueId,
    /// The client's index of the request's progress word.
    pub slot: u32,
    /// The client's own value, returned untouched.
    pub user_data: u64,
}

/// How urgent a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "lowercase"))]
pub enum Class {
    /// Somebody waits for the result, so the request goes first.
    Latency,
    /// Throughput matters more than the time of one request.
    Bulk,
}

/// A piece of the client's arena, in the client's words: its segment number, not a driver's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaBuffer {
    /// The segment's number in the session's arena.
    pub segment: u32,
    /// Bytes from the segment's start.
    pub offset: u64,
    /// Length of the piece in bytes.
    pub length: u64,
}

/// A table of pieces ([`crate::pieces::Row`]) in the client's arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The segment's number in the session's arena.
    pub segment: u32,
    /// Bytes from the segment's start.
    pub offset: u64,
    /// Number of rows in the table.
    pub rows: u32,
}

/// The memory of a vectored request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffers {
    /// One buffer and no more.
    One(ArenaBuffer),
    /// Several buffers, which count as one: a list of them
    /// ([`crate::pieces::BufferRow`]), with at most
    /// [`BUFFERS_MAX`](crate::limits::BUFFERS_MAX) rows.
    Several(Table),
}

/// A request as the daemon read it from a client's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What the daemon is to do.
    pub verb: Verb,
    /// How urgent the request is.
    pub class: Class,
    /// Time allowed from submission; `None` takes the configured default.
    pub deadline: Option<Nanos>,
    /// End with [`Status::WouldBlock`] instead of waiting for a limit, a sender or a receiver.
    pub no_wait: bool,
    /// Begin only when every earlier request of the same queue to the same node is over.
    pub fence: bool,
}

/// An atomic change of 8 bytes of a region, which are a word of the machine's byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Add this number, wrapping around.
    Add(u64),
    /// Replace the word if it has the expected value; otherwise leave it.
    CompareSwap {
        /// The value that the word must have.
        expected: u64,
        /// The value that replaces it.
        new: u64,
    },
}

impl Update {
    /// Bytes of a region that an update changes; their offset is a multiple of this number.
    pub const BYTES: u64 = 8;

    /// The word after the update.
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
    /// Completes at once, which shows the cost of the ring alone.
    Nop,
    /// Read from a file or region, local or remote.
    Read {
        /// The file or region that is read.
        handle: HandleId,
        /// Where to begin in the file or region, in bytes.
        offset: u64,
        /// The memory that the bytes go to.
        buffer: ArenaBuffer,
        /// The byte that the client wants first, counted from the start of the request.
        wanted: u64,
    },
    /// Read or write pieces of a file or region.
    Vector {
        /// The file or region that the pieces lie in.
        handle: HandleId,
        /// Whether the request reads; otherwise it writes.
        reads: bool,
        /// The memory that the bytes go to or come from.
        buffers: Buffers,
        /// The table of the pieces.
        table: Table,
        /// Bytes of all pieces together.
        bytes: u64,
    },
    /// Write to a file or region, local or remote.
    Write {
        /// The file or region that is written.
        handle: HandleId,
        /// Where to begin in the file or region, in bytes.
        offset: u64,
        /// The memory whose bytes are written.
        buffer: ArenaBuffer,
        /// The request completes only when the bytes are on stable storage.
        durable: bool,
        /// Regions only: the id that the exporter is notified of, after this put and all earlier
        /// puts of the same queue to the same node.
        notify: Option<u32>,
    },
    /// Change 8 bytes of a region and return what they were. The change happens exactly once,
    /// unless a daemon ends in between.
    Update {
        /// The region that is changed.
        handle: HandleId,
        /// Where in the region, in bytes: a multiple of [`Update::BYTES`].
        offset: u64,
        /// The change of the word.
        update: Update,
    },
    /// Notify the exporter of a region, after all earlier puts of the same queue to the same node.
    Notify {
        /// The region whose exporter is notified.
        handle: HandleId,
        /// The id to notify of, of the clients' choice.
        id: u32,
    },
    /// Wait for notifications on a region of this session, and take them.
    Wait {
        /// The region, by the handle its exporter has.
        handle: HandleId,
        /// The id whose notifications are taken.
        id: u32,
        /// How many notifications to wait for; at least 1.
        count: u64,
    },
    /// Wait for all earlier requests of the same queue to the same node.
    Flush {
        /// Any handle of that node.
        handle: HandleId,
    },
    /// Copy between two handles without passing through the client.
    Copy {
        /// The file or region that is read.
        from: HandleId,
        /// Where to begin reading, in bytes.
        from_offset: u64,
        /// The file or region that is written.
        to: HandleId,
        /// Where to begin writing, in bytes.
        to_offset: u64,
        /// Bytes to copy; the end of the source ends the copy early.
        length: u64,
    },
    /// Make all completed writes through a handle durable.
    Sync {
        /// The file whose writes become durable.
        handle: HandleId,
    },
    /// Make a call of a file or directory ([`crate::call::Call`]), local or remote.
    Call {
        /// The file or directory that the call is made of.
        handle: HandleId,
        /// The memory that the call lies at the start of, and that the answer goes to.
        buffer: ArenaBuffer,
        /// Bytes of the call.
        call_bytes: u32,
    },
    /// Send a message to a channel, local or remote.
    Send {
        /// The channel that gets the message.
        handle: HandleId,
        /// A number that the receiver can select messages by.
        tag: u64,
        /// The memory that the message lies in.
        buffer: ArenaBuffer,
    },
    /// Receive a message of a channel of this session.
    Receive {
        /// The channel that the message was sent to.
        handle: HandleId,
        /// The tag that the message must have; `None` takes any.
        tag: Option<u64>,
        /// The memory that the message goes to. A longer message is not received:
        /// [`Status::TooLong`].
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

/// The state of the buffer when a request completes.
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
    /// The request is over. Each request gets exactly one.
    Finished {
        /// The request that is over.
        origin: Origin,
        /// How the request ended.
        status: Status,
        /// Contiguous bytes done, from the request's start.
        bytes: u64,
        /// For a receive, the message's tag; for an update, the word before the change; for a wait,
        /// the notifications that are left; otherwise 0.
        value: u64,
        /// Whether the buffer may be used again.
        buffer: BufferState,
    },
    /// The buffer of a request that finished with [`BufferState::Held`] is free. Each such request
    /// gets exactly one.
    Released {
        /// The request that is over since its `Finished`.
        origin: Origin,
    },
}

/// The watermark of a request moved: `bytes` from its start are in place and will not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The request that made progress.
    pub origin: Origin,
    /// Contiguous bytes in place, from the request's start.
    pub bytes: u64,
    /// The first extent beyond the watermark that is in place: its start and end, in bytes from the
    /// request's start. Empty if there is none.
    pub landed: (u64, u64),
}
