//! Scratch of a lane: what it has of staging for itself, little while it rests and more while it
//! works.

use piped_core::io::Span;
use piped_core::limits::LANE_RESTING_BYTES;
use piped_wire::{INLINE_BYTES_MAX, Receiver, SEALED_ROOM_BYTES, Sender, WIRE_HEADER_BYTES_MAX};

use super::cells::Cell;
use super::staging::{Run, footprint_of};

/// What a lane has of staging for itself.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) enum Scratch {
    /// Enough to wait for a request: a part of a granule.
    Resting(Cell),
    /// Enough to be fast with requests.
    Working {
        /// For a receiver and a sender.
        frames: Run,
        /// For what it encrypts.
        room: Option<Run>,
    },
}

/// How much scratch there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Size {
    /// Enough to wait for a request.
    Resting,
    /// Enough to be fast with requests.
    Working,
}

/// The part of [`LANE_RESTING_BYTES`] for frames that are sent: one by value, and eight others,
/// which are as many as one send has with payloads.
const RESTING_BYTES_SENT: u32 = (INLINE_BYTES_MAX + 9 * WIRE_HEADER_BYTES_MAX) as u32;
const _: () = assert!(LANE_RESTING_BYTES - RESTING_BYTES_SENT >= Receiver::SCRATCH_BYTES_LEAST);

/// Bytes of frames, and of room for what is encrypted, while a lane works.
pub(super) const fn bytes_at_work(encrypts: bool) -> (u32, Option<u32>) {
    let frames = Receiver::SCRATCH_BYTES + Sender::SCRATCH_BYTES;
    (frames, if encrypts { Some(SEALED_ROOM_BYTES) } else { None })
}

impl Scratch {
    /// The part for what is received, and the part for what is sent.
    fn parts(self) -> (Span, Span) {
        let (span, received) = match self {
            Self::Resting(cell) => (cell.span(), LANE_RESTING_BYTES - RESTING_BYTES_SENT),
            Self::Working { frames, .. } => (frames.span, Receiver::SCRATCH_BYTES),
        };
        (span.part(0, received), span.part(received, u32::MAX))
    }

    pub(in crate::shard) fn of_receiver(self) -> Span {
        self.parts().0
    }

    pub(in crate::shard) fn of_sender(self) -> Span {
        self.parts().1
    }

    pub(in crate::shard) fn room(self) -> Option<Span> {
        match self {
            Self::Resting(_) => None,
            Self::Working { room, .. } => room.map(|room| room.span),
        }
    }

    pub(in crate::shard) fn size(self) -> Size {
        match self {
            Self::Resting(_) => Size::Resting,
            Self::Working { .. } => Size::Working,
        }
    }

    /// What a scratch takes of staging, in bytes; of a granule that it shares, its part.
    pub(in crate::shard) fn footprint(self) -> u64 {
        match self {
            Self::Resting(_) => LANE_RESTING_BYTES.into(),
            Self::Working { frames, room } => frames.footprint() + room.map_or(0, Run::footprint),
        }
    }

    /// What a scratch of that size would take of staging, in bytes.
    pub(in crate::shard) fn footprint_of(size: Size, encrypts: bool) -> u64 {
        match size {
            Size::Resting => LANE_RESTING_BYTES.into(),
            Size::Working => {
                let (frames, room) = bytes_at_work(encrypts);
                footprint_of(frames) + room.map_or(0, footprint_of)
            }
        }
    }
}
