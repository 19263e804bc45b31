//! Scratch of a lane: what it has of staging for itself, little while it rests and more while it
//! works.

use piped_core::io::Span;
use piped_core::limits::GRANULE_BYTES;
use piped_wire::{Receiver, SEALED_ROOM_BYTES, Sender};

use super::staging::{Run, footprint_of};

/// What a lane has of staging for itself.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Scratch {
    frames: Run,
    /// For what it encrypts, while it works.
    room: Option<Run>,
    size: Size,
}

/// How much scratch there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Size {
    /// Enough to wait for a request.
    Resting,
    /// Enough to be fast with requests.
    Working,
}

/// What a lane has at rest: the least there is to have.
const RESTING_BYTES: u32 = GRANULE_BYTES;
/// The part of that for frames that are sent: 64 without payloads, and one by value.
const RESTING_BYTES_SENT: u32 = 16 * 1024;
const _: () = assert!(RESTING_BYTES - RESTING_BYTES_SENT >= Receiver::SCRATCH_BYTES_LEAST);

impl Scratch {
    /// For a receiver and a sender.
    const FRAMES_BYTES: u32 = Receiver::SCRATCH_BYTES + Sender::SCRATCH_BYTES;

    pub(super) fn new(size: Size, frames: Run, room: Option<Run>) -> Self {
        Self { frames, room, size }
    }

    /// Bytes of frames, and of room for what is encrypted.
    pub(super) const fn bytes_of(size: Size, encrypts: bool) -> (u32, Option<u32>) {
        match size {
            Size::Resting => (RESTING_BYTES, None),
            Size::Working if encrypts => (Self::FRAMES_BYTES, Some(SEALED_ROOM_BYTES)),
            Size::Working => (Self::FRAMES_BYTES, None),
        }
    }

    fn bytes_of_receiver(self) -> u32 {
        match self.size {
            Size::Resting => RESTING_BYTES - RESTING_BYTES_SENT,
            Size::Working => Receiver::SCRATCH_BYTES,
        }
    }

    pub(in crate::shard) fn of_receiver(self) -> Span {
        self.frames.span.part(0, self.bytes_of_receiver())
    }

    pub(in crate::shard) fn of_sender(self) -> Span {
        self.frames.span.part(self.bytes_of_receiver(), u32::MAX)
    }

    pub(in crate::shard) fn room(self) -> Option<Span> {
        self.room.map(|room| room.span)
    }

    pub(in crate::shard) fn size(self) -> Size {
        self.size
    }

    /// What a scratch takes of staging, in bytes.
    pub(in crate::shard) fn footprint(self) -> u64 {
        self.runs().map(Run::footprint).sum()
    }

    /// What a scratch of that size would take of staging, in bytes.
    pub(in crate::shard) fn footprint_of(size: Size, encrypts: bool) -> u64 {
        let (frames, room) = Self::bytes_of(size, encrypts);
        footprint_of(frames) + room.map_or(0, footprint_of)
    }

    pub(super) fn runs(self) -> impl Iterator<Item = Run> {
        [Some(self.frames), self.room].into_iter().flatten()
    }
}
