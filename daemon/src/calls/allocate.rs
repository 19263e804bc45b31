//! `Call::Allocate`: room for a range.

use std::os::fd::BorrowedFd;

use piped_core::call::Range;
use rustix::fs::FallocateFlags;
use rustix::io::Result;

use super::end_of;

pub(super) fn answer(file: BorrowedFd<'_>, range: Range, keep_length: bool) -> Result<()> {
    end_of(range)?;
    let flags = if keep_length { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
    rustix::fs::fallocate(file, flags, range.offset, range.length)
}
