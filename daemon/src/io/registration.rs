//! The kernel's table of registered buffers: segments go in and out of it in pieces.
//!
//! Pinning a GiB takes milliseconds, which is an eternity to the other clients of the shard; a
//! piece takes some tens of microseconds. So a long segment becomes many of the kernel's buffers.
//! An operation across two of them, which is rare, pins its own pages.

use std::io;
use std::ptr;

use io_uring::Submitter;
use piped_ring::Segment;

/// The most bytes registered in one turn, and the most taken out.
pub const REGISTRATION_BYTES_PER_TURN: u64 = 16 << 20;

/// Size of one registered buffer.
pub(super) const PIECE_BYTES: u64 = REGISTRATION_BYTES_PER_TURN;

/// The kernel's limit for the table of registered buffers.
const BUFFERS_MAX: u32 = 1 << 14;

/// Places in the table for each segment; long segments take those of short ones.
const PIECES_PER_SEGMENT: u32 = 4;

// The kernel's limit for one registered buffer.
const _: () = assert!(PIECE_BYTES <= 1 << 30);

/// Free places of the table.
#[derive(Debug)]
pub(super) struct Registry {
    free: Vec<u16>,
}

/// Places of a segment's first pieces.
#[derive(Debug, Default)]
pub(super) struct Pieces(Vec<u16>);

/// Reason why a piece is not registered.
#[derive(Debug)]
pub(super) enum Refused {
    /// All places of the table are taken.
    Full,
    /// The kernel refused the piece.
    Kernel(io::Error),
}

impl Registry {
    /// Table for this many segments, or the kernel's refusal.
    pub(super) fn new(segments: u32, submitter: &Submitter<'_>) -> Result<Self, (u32, io::Error)> {
        let capacity = segments.saturating_mul(PIECES_PER_SEGMENT).min(BUFFERS_MAX);
        submitter
            .register_buffers_sparse(capacity)
            .or_else(|_| holes(submitter, capacity))
            .map_err(|error| (capacity, error))?;
        // Low places first; `BUFFERS_MAX` of them are numbered by 16 bits.
        Ok(Self { free: (0..capacity as u16).rev().collect() })
    }

    /// Registers the next piece of a segment, and returns its length.
    pub(super) fn add(
        &mut self,
        segment: &Segment,
        pieces: &mut Pieces,
        submitter: &Submitter<'_>,
    ) -> Result<u64, Refused> {
        let (start, length) = pieces.next(segment);
        let place = self.free.pop().ok_or(Refused::Full)?;
        if let Err(error) = register(submitter, place, segment, start, length) {
            self.free.push(place);
            return Err(Refused::Kernel(error));
        }
        pieces.0.push(place);
        Ok(length)
    }

    /// Takes the last piece out, and returns its length, 0 if there was none.
    pub(super) fn remove(
        &mut self,
        segment: &Segment,
        pieces: &mut Pieces,
        submitter: &Submitter<'_>,
    ) -> u64 {
        let Some(place) = pieces.0.pop() else { return 0 };
        // Within the table this cannot fail. If it did, the pages would stay pinned until the next
        // update of the place; the kernel holds pages and not addresses, so that is safe.
        let _ = unregister(submitter, place);
        self.free.push(place);
        pieces.next(segment).1
    }
}

impl Pieces {
    /// Place of a span's buffer, if one buffer has all of it.
    pub(super) fn of(&self, offset: u64, length: u32) -> Option<u16> {
        let piece = offset / PIECE_BYTES;
        let last = (offset + u64::from(length).saturating_sub(1)) / PIECE_BYTES;
        let place = self.0.get(usize::try_from(piece).ok()?).copied()?;
        (piece == last).then_some(place)
    }

    /// Whether the whole segment is registered.
    pub(super) fn cover(&self, segment: &Segment) -> bool {
        self.next(segment).1 == 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Length of the next piece.
    pub(super) fn next_bytes(&self, segment: &Segment) -> u64 {
        self.next(segment).1
    }

    /// Offset and length of the next piece.
    fn next(&self, segment: &Segment) -> (u64, u64) {
        let start = (self.0.len() as u64 * PIECE_BYTES).min(segment.len());
        (start, (segment.len() - start).min(PIECE_BYTES))
    }
}

fn register(
    submitter: &Submitter<'_>,
    place: u16,
    segment: &Segment,
    start: u64,
    length: u64,
) -> io::Result<()> {
    let iov_base = segment.as_ptr().wrapping_add(start as usize).cast();
    let iovec = libc::iovec { iov_base, iov_len: length as usize };
    // SAFETY: `Pieces::next` cut the piece out of the segment's mapping, which lives as long as its
    // `Arc`. The owner of the pieces holds that `Arc` until `Registry::remove` has taken the buffer
    // out of the kernel's table; besides, the kernel pins the pages themselves and not the address
    // range.
    unsafe { submitter.register_buffers_update(u32::from(place), &[iovec], None) }
}

fn unregister(submitter: &Submitter<'_>, place: u16) -> io::Result<()> {
    let hole = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    // SAFETY: an empty vector names no memory.
    unsafe { submitter.register_buffers_update(u32::from(place), &[hole], None) }
}

/// A table of holes, for kernels that have the table but not its sparse form.
fn holes(submitter: &Submitter<'_>, count: u32) -> io::Result<()> {
    let hole = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    // SAFETY: empty vectors name no memory.
    unsafe { submitter.register_buffers(&vec![hole; count as usize]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_a_buffer_if_one_piece_has_all_of_it() {
        let pieces = Pieces(vec![7, 3]);
        assert_eq!(pieces.of(0, 4096), Some(7));
        assert_eq!(pieces.of(PIECE_BYTES - 4096, 4096), Some(7));
        assert_eq!(pieces.of(PIECE_BYTES - 4096, 4097), None, "across two");
        assert_eq!(pieces.of(PIECE_BYTES, 4096), Some(3));
        assert_eq!(pieces.of(2 * PIECE_BYTES, 1), None, "not registered yet");
        assert_eq!(pieces.of(u64::MAX - 8, 1), None);
    }

    #[test]
    fn the_pieces_of_a_segment_are_its_whole() {
        let segment = Segment::create(PIECE_BYTES + 4096).expect("memory");
        let mut pieces = Pieces::default();
        assert_eq!(pieces.next(&segment), (0, PIECE_BYTES));
        pieces.0.push(0);
        assert_eq!(pieces.next(&segment), (PIECE_BYTES, 4096));
        assert!(!pieces.cover(&segment));
        pieces.0.push(1);
        assert!(pieces.cover(&segment) && !pieces.is_empty());
    }
}
