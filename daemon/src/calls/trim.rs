//! `Call::Trim`: room that is given up.

use std::os::fd::BorrowedFd;

use piped_core::call::Range;
use rustix::fs::FallocateFlags;
use rustix::io::Result;

use super::end_of;

/// How a range loses its room; the file keeps its length.
pub(super) const PUNCH: FallocateFlags =
    FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

pub(super) fn answer(file: BorrowedFd<'_>, range: Range) -> Result<()> {
    end_of(range)?;
    rustix::fs::fallocate(file, PUNCH, range.offset, range.length)
}
