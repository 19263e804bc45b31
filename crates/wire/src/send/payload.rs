//! What a queued frame carries, and what it became.

use piped_core::io::Span;
use piped_core::units::Nanos;

use crate::frame::Message;
use crate::lent::Owner;

/// The queue has no room now; push again after a send has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lane's send queue is full; push again after a send has ended")]
pub struct Full;

/// Where a payload is until its frame is in a batch.
#[derive(Debug, Clone, Copy)]
pub(super) enum Payload {
    /// `length` bytes at the front of `Sender::inline` when the frame enters a batch.
    Inline { length: u32 },
    /// Registered memory, sent from where it lies.
    Memory(Span),
}

impl Payload {
    /// The payload's length in bytes.
    pub(super) fn length(self) -> u32 {
        match self {
            Self::Inline { length } => length,
            Self::Memory(span) => span.length,
        }
    }

    /// A payload that lies in memory, or none.
    pub(super) fn of_memory(span: Option<Span>) -> Self {
        let span = span.filter(|span| span.length > 0);
        span.map_or(Self::Inline { length: 0 }, Self::Memory)
    }
}

/// A frame that has entered the batch at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// The party that waits for the frame's memory.
    pub owner: Owner,
    /// Kind of the frame, with the kind's fields.
    pub message: Message,
    /// Length of the frame's payload in bytes.
    pub payload: u32,
    /// When the payload's checksum was begun and done, if that was timed.
    pub checked: Option<(Nanos, Nanos)>,
}
