//! The memory of a vectored request: one buffer, or several that count as one.

use piped_core::ids::SegmentId;
use piped_core::io::{Io, Span};
use piped_core::limits::BUFFERS_MAX;
use piped_core::pieces::BufferRow;
use piped_core::request::ArenaBuffer;
use piped_core::status::Status;

use super::super::arena::Memory;

/// Where a request's bytes lie. Byte `at` counts from the start of the first buffer, and over all
/// of them.
#[derive(Debug)]
pub(in crate::shard) enum Buffers {
    /// The only buffer, and its length.
    One(Memory, u64),
    /// A list in the client's memory, with so many rows, that nobody has read yet.
    Listed(Memory, u32),
    /// All of them, in order.
    Several(Vec<Place>),
}

/// A buffer among others.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Place {
    /// The byte of the request at which it begins, and the one at which the next one does.
    start: u64,
    end: u64,
    memory: Memory,
}

impl Buffers {
    /// The list that is still to be read, and how many rows it has.
    pub(in crate::shard) fn unread(&self) -> Option<(Memory, u32)> {
        match *self {
            Self::Listed(at, rows) => Some((at, rows)),
            Self::One(..) | Self::Several(_) => None,
        }
    }

    /// Reads a list from a client's memory, which may change: each row is read once, and checked
    /// in the copy. `memory_of`: where a buffer of the client's lies, if it may have it there. The
    /// list of `places` is empty.
    pub(in crate::shard) fn read<I: Io>(
        (at, rows): (Memory, u32),
        mut places: Vec<Place>,
        memory_of: impl Fn(ArenaBuffer) -> Result<Memory, Status>,
        io: &mut I,
    ) -> Result<Self, Status> {
        debug_assert!(rows <= BUFFERS_MAX, "longer lists are refused at once");
        let mut start = 0;
        for row in 0..rows {
            let mut bytes = [0; BufferRow::BYTES];
            let skip = u64::from(row) * BufferRow::BYTES as u64;
            io.load(at.span(skip, BufferRow::BYTES as u32), &mut bytes);
            let BufferRow { segment, offset, length, reserved } = BufferRow::from_client(bytes);
            if reserved != 0 {
                return Err(Status::Invalid);
            }
            let memory = memory_of(ArenaBuffer { segment, offset, length })?;
            let end = start + length;
            places.push(Place { start, end, memory });
            start = end;
        }
        Ok(Self::Several(places))
    }

    /// Bytes of all of them.
    pub(in crate::shard) fn room(&self) -> u64 {
        match self {
            Self::One(_, room) => *room,
            Self::Listed(..) => 0,
            Self::Several(places) => places.last().map_or(0, |place| place.end),
        }
    }

    /// The memory from a byte on, and how much of it lies in one piece.
    pub(in crate::shard) fn at(&self, at: u64) -> (Memory, u64) {
        let (start, end, memory) = match self {
            Self::One(memory, room) => (0, *room, *memory),
            Self::Listed(..) => (at, at, Memory::NONE),
            Self::Several(places) => {
                let place = places.partition_point(|place| place.end <= at);
                let none = Place { start: at, end: at, memory: Memory::NONE };
                let place = places.get(place).copied().unwrap_or(none);
                (place.start, place.end, place.memory)
            }
        };
        let skip = at - start;
        (Memory { offset: memory.offset + skip, ..memory }, end.saturating_sub(at))
    }

    /// Bytes that lie in one piece of memory.
    pub(in crate::shard) fn span(&self, at: u64, length: u32) -> Span {
        self.at(at).0.span(0, length)
    }

    /// The segments of the buffers, or of their list.
    pub(in crate::shard) fn segments(&self) -> impl Iterator<Item = SegmentId> + '_ {
        let (one, several) = match self {
            Self::One(memory, _) | Self::Listed(memory, _) => (Some(memory.segment), &[][..]),
            Self::Several(places) => (None, &places[..]),
        };
        one.into_iter().chain(several.iter().map(|place| place.memory.segment))
    }

    /// Whether there are several.
    pub(in crate::shard) fn are_several(&self) -> bool {
        matches!(self, Self::Several(_))
    }

    /// The list, empty, for another request.
    pub(in crate::shard) fn take_places(&mut self) -> Vec<Place> {
        match self {
            Self::Several(places) => {
                places.clear();
                std::mem::take(places)
            }
            Self::One(..) | Self::Listed(..) => Vec::new(),
        }
    }
}
