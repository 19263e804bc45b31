//! Ranges of a segment with one owner each, so that the owner may look at the bytes in place.
//!
//! [`Segment`] hands out no references, because the other side may write at any time. The client's
//! side of an arena is different in one respect: it decides itself which bytes the daemon is asked
//! to touch and when. While nobody was asked to touch a range, its bytes are as private as any, and
//! an application that had to copy them out first would pay for nothing.
//!
//! So the ownership is made a value. [`ExclusiveRange::claim`] takes a segment whole, which ends
//! every other access to it through [`Segment`]; [`ExclusiveRange::split_off`] and
//! [`ExclusiveRange::join`] divide and unite ranges but never copy one. Two ranges therefore never
//! overlap, and the borrow checker's rules for a range are the rules for its bytes. A client that
//! asks the daemon to touch a range keeps the value to itself until the daemon said that it is
//! done. A client that lets others touch a range at any time (an exported region) turns it into a
//! [`SharedRange`], which copies in and out only.
//!
//! The daemon never uses this module: its counterpart is hostile.

use core::slice;
use std::sync::Arc;

use crate::segment::{OutOfRange, Segment};

/// A range of a segment that has no other owner in this process.
#[derive(Debug)]
pub struct ExclusiveRange {
    segment: Arc<Segment>,
    offset: u64,
    length: u64,
}

impl ExclusiveRange {
    /// All of a segment. The caller vouches for two things. Other processes that map the segment
    /// write to a range only when this process asked for it. And this process has no second mapping
    /// of it. The view is for the client's side of an arena: its daemon could hand it wrong bytes
    /// in simpler ways.
    ///
    /// ```
    /// use piped_ring::{ExclusiveRange, Segment};
    /// let mut low = ExclusiveRange::claim(Segment::create(8192)?);
    /// let mut high = low.split_off(4096);
    /// high.as_mut_slice().fill(7);
    /// assert!(low.join(high).is_ok());
    /// assert_eq!(low.as_slice()[4095..4097], [0, 7]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn claim(segment: Segment) -> Self {
        let length = segment.len();
        Self { segment: Arc::new(segment), offset: 0, length }
    }

    /// Where the view starts in its segment, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the range in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether the view has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Cut in two: `self` keeps the bytes before `at`, the rest is returned (empty if there is
    /// none).
    #[must_use]
    pub fn split_off(&mut self, at: u64) -> Self {
        let at = at.min(self.length);
        let rest = Self {
            segment: Arc::clone(&self.segment),
            offset: self.offset + at,
            length: self.length - at,
        };
        self.length = at;
        rest
    }

    /// Put back what follows directly.
    ///
    /// # Errors
    /// `next` does not start where `self` ends, in the same segment; it is returned.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        if !Arc::ptr_eq(&self.segment, &next.segment) || next.offset != self.offset + self.length {
            return Err(next);
        }
        self.length += next.length;
        Ok(())
    }

    /// Whether nobody else writes the bytes unasked. They can be looked at in place then.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        self.segment.is_sole()
    }

    /// The bytes of the range.
    ///
    /// # Panics
    /// If others can write them at any time: memory that was lent by a descriptor.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.expect_sole();
        // SAFETY: nobody else writes them unasked, see above. The range lies inside the mapping:
        // `claim` takes all of it, `split_off` and `join` keep the bounds. The mapping lives as
        // long as `self`, through the `Arc`, and stays backed: by its seals, or as who lent the
        // memory promised. Its bytes were initialised by the kernel. Nobody in this process writes
        // them: `claim` consumed the segment, ranges never overlap, and this one is borrowed. For
        // other processes see `claim`.
        unsafe { slice::from_raw_parts(self.start(), self.length as usize) }
    }

    /// The bytes, to be changed.
    ///
    /// # Panics
    /// As [`Self::as_slice`].
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.expect_sole();
        // SAFETY: as in `as_slice`; that this range is borrowed exclusively makes the bytes so.
        unsafe { slice::from_raw_parts_mut(self.start(), self.length as usize) }
    }

    /// Copy bytes out, also while the other side writes others of this range.
    ///
    /// # Errors
    /// Not inside the range; nothing was copied.
    pub fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), OutOfRange> {
        self.segment.load(self.place(offset, to.len() as u64)?, to)
    }

    /// Copy bytes in. Others may be reading them, or, of memory lent by a descriptor, writing them.
    ///
    /// # Errors
    /// Not inside the range; nothing was copied. Or some of the memory is gone.
    pub fn store(&mut self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.segment.store(self.place(offset, from.len() as u64)?, from)
    }

    /// Where the bytes are. Whoever uses the address answers for the others that do.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start()
    }

    fn expect_sole(&self) {
        assert!(
            self.is_sole(),
            "others can write this memory at any time, so there is no reference into it: copy the \
             bytes by `read_at` and `write_at`"
        );
    }

    /// Let others touch the range at any time.
    #[must_use]
    pub fn share(self) -> SharedRange {
        SharedRange(self)
    }

    fn start(&self) -> *mut u8 {
        self.segment.as_ptr().wrapping_add(self.offset as usize)
    }

    /// The offset in the segment of a piece of the range.
    fn place(&self, offset: u64, length: u64) -> Result<u64, OutOfRange> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        if !inside {
            return Err(OutOfRange { offset, length, segment_bytes: self.length });
        }
        Ok(self.offset + offset)
    }
}

/// A range that others may write at any time: bytes are copied in and out.
#[derive(Debug)]
pub struct SharedRange(ExclusiveRange);

impl SharedRange {
    /// Where the range starts in its segment, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// Length of the range in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.length
    }

    /// Whether the range has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }

    /// Copy bytes out of the range.
    ///
    /// # Errors
    /// Not inside the range; nothing was copied.
    pub fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), OutOfRange> {
        self.0.load(offset, to)
    }

    /// Copy bytes into the range.
    ///
    /// # Errors
    /// Not inside the range; nothing was copied.
    pub fn store(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        self.0.segment.store(self.0.place(offset, from.len() as u64)?, from)
    }

    /// Take the range back, after the other side said that nobody touches it any more.
    #[must_use]
    pub fn reclaim(self) -> ExclusiveRange {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_divide_and_unite_without_overlap() {
        let mut first = ExclusiveRange::claim(Segment::create(12_288).expect("memory"));
        let mut second = first.split_off(4096);
        let third = second.split_off(4096);
        assert_eq!((first.len(), second.len(), third.len()), (4096, 4096, 4096));
        let third = first.join(third).expect_err("the second lies between");
        second.as_mut_slice().fill(2);
        assert!(first.as_slice().iter().all(|byte| *byte == 0));
        assert!(second.join(third).is_ok());
        assert!(first.join(second).is_ok());
        assert_eq!(first.len(), 12_288);
        assert_eq!(first.as_slice()[4096..8192], [2; 4096]);
        assert!(first.split_off(u64::MAX).is_empty());
    }

    #[test]
    fn ranges_of_different_segments_do_not_join() {
        let mut here = ExclusiveRange::claim(Segment::create(4096).expect("memory"));
        let mut there = ExclusiveRange::claim(Segment::create(8192).expect("memory"));
        assert!(here.join(there.split_off(4096)).is_err());
    }

    #[test]
    fn copies_stay_inside_the_range() {
        let mut first = ExclusiveRange::claim(Segment::create(8192).expect("memory"));
        let second = first.split_off(4096);
        let shared = first.share();
        assert!(shared.store(4090, b"abcdef").is_ok());
        assert!(shared.store(4091, b"abcdef").is_err());
        assert!(shared.load(u64::MAX, &mut [0]).is_err());
        let mut back = [0; 6];
        assert!(shared.load(4090, &mut back).is_ok());
        assert_eq!(&back, b"abcdef");
        assert!(second.load(4091, &mut back).is_err());
        assert_eq!(&shared.reclaim().as_slice()[4090..], b"abcdef");
    }
}
