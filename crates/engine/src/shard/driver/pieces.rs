//! How one fragment of a file is cut into what may go direct and what may not.
//!
//! O_DIRECT wants file offsets, lengths and memory addresses aligned; clients' ranges need not be.
//! The aligned middle goes direct. An unaligned edge of a *read* is bounced: the aligned block
//! around it is read into staging and the wanted part copied. An unaligned edge of a *write* goes
//! through the page cache by the second descriptor, never by read-modify-write: the neighbouring
//! bytes may be another client's, written at this very moment. The page cache reads and writes
//! whole pages, so no page is written both ways: one that is in the cache when its neighbouring
//! bytes go direct keeps the old ones, and puts them back later.

use piped_core::access::Alignment;
use piped_core::io::Span;
use piped_core::limits::OPS_PER_JOB;

/// Which way a job moves bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Direction {
    Read,
    Write,
}

/// How a piece travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// O_DIRECT between the device and the memory named.
    Direct,
    /// Through the page cache.
    Buffered,
    /// O_DIRECT between the device and staging, and a copy: `skip` bytes into the aligned block.
    Bounced { skip: u32, block: u32 },
}

/// A part of a job that is one operation at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) way: Way,
    /// Bytes from the job's start.
    pub(super) start: u32,
    pub(super) length: u32,
}

/// Pieces that a job has at most.
pub(super) const PIECES_MAX: usize = OPS_PER_JOB as usize;

/// What the page cache reads and writes at once, at least; where it is more, the driver says so as
/// the alignment.
const PAGE_BYTES: u64 = 4096;

/// The pieces of a job, in order and without gaps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pieces {
    items: [Option<Piece>; PIECES_MAX],
}

impl Pieces {
    fn push(&mut self, way: Way, start: u64, end: u64) {
        if start < end {
            let piece = Piece { way, start: start as u32, length: (end - start) as u32 };
            let free = self.items.iter_mut().find(|item| item.is_none());
            *free.expect("a fragment has a head, a middle and a tail") = Some(piece);
        }
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Piece> {
        self.items.into_iter().flatten()
    }
}

/// Cuts the file range at `offset` of `span.length` bytes.
pub(super) fn cut(
    direction: Direction,
    direct: Option<Alignment>,
    offset: u64,
    span: Span,
) -> Pieces {
    let mut pieces = Pieces::default();
    let length = u64::from(span.length);
    let Some(alignment) = direct else {
        pieces.push(Way::Buffered, 0, length);
        return pieces;
    };
    let block = match direction {
        Direction::Read => u64::from(alignment.offset.max(1)),
        // A device of 512-byte sectors takes a part of a page.
        Direction::Write => u64::from(alignment.offset).max(PAGE_BYTES),
    };
    let end = offset + length;
    let (middle, tail) =
        (offset.next_multiple_of(block).min(end), (end / block * block).max(offset));
    let memory_fits =
        (span.offset + (middle - offset)).is_multiple_of(u64::from(alignment.memory.max(1)));
    match direction {
        Direction::Read if memory_fits && middle < tail => {
            pieces.push(bounce(offset, block, offset, middle), 0, middle - offset);
            pieces.push(Way::Direct, middle - offset, tail - offset);
            pieces.push(bounce(tail, block, tail, end), tail - offset, length);
        }
        Direction::Read => pieces.push(bounce(offset, block, offset, end), 0, length),
        Direction::Write if memory_fits && middle < tail => {
            pieces.push(Way::Buffered, 0, middle - offset);
            pieces.push(Way::Direct, middle - offset, tail - offset);
            pieces.push(Way::Buffered, tail - offset, length);
        }
        Direction::Write => pieces.push(Way::Buffered, 0, length),
    }
    pieces
}

fn bounce(from: u64, block: u64, start: u64, end: u64) -> Way {
    let aligned = from / block * block;
    Way::Bounced {
        skip: (start - aligned) as u32,
        block: (end.next_multiple_of(block) - aligned) as u32,
    }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::SegmentId;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Pieces cover the range without gap or overlap, direct ones are aligned in file and
        /// memory, and writes never touch a byte outside the range.
        #[test]
        fn pieces_cover_and_align(
            offset in 0u64..40_000,
            length in 1u32..40_000,
            memory in 0u64..9_000,
            block in prop::sample::select(vec![512u32, 4096]),
            aligned_memory: bool,
            write: bool,
        ) {
            let memory = if aligned_memory { memory / 4096 * 4096 + offset % 4096 } else { memory };
            let alignment = Alignment { offset: block, memory: 512 };
            let span = Span { segment: SegmentId(0), offset: memory, length };
            let direction = if write { Direction::Write } else { Direction::Read };
            let mut at = 0;
            // The last page that went direct, or through the page cache.
            let mut before = None;
            for piece in cut(direction, Some(alignment), offset, span).iter() {
                prop_assert_eq!(piece.start, at);
                at += piece.length;
                let file_offset = offset + u64::from(piece.start);
                let last = file_offset + u64::from(piece.length) - 1;
                if write {
                    prop_assert!(before != Some(file_offset / PAGE_BYTES), "written both ways");
                }
                before = Some(last / PAGE_BYTES);
                match piece.way {
                    Way::Direct => {
                        prop_assert_eq!(file_offset % u64::from(block), 0);
                        prop_assert_eq!(piece.length % block, 0);
                        prop_assert_eq!((memory + u64::from(piece.start)) % 512, 0);
                    }
                    Way::Buffered => prop_assert!(write),
                    Way::Bounced { skip, block: bytes } => {
                        prop_assert!(!write);
                        prop_assert_eq!((file_offset - u64::from(skip)) % u64::from(block), 0);
                        prop_assert_eq!(bytes % block, 0);
                        prop_assert!(skip + piece.length <= bytes);
                        prop_assert!(bytes < skip + piece.length + block);
                    }
                }
            }
            prop_assert_eq!(at, length);
        }
    }

    #[test]
    fn without_direct_io_everything_is_buffered() {
        let span = Span { segment: SegmentId(0), offset: 3, length: 100 };
        let pieces: Vec<_> = cut(Direction::Write, None, 7, span).iter().collect();
        assert_eq!(pieces, [Piece { way: Way::Buffered, start: 0, length: 100 }]);
    }
}
