//! `Call::Truncate`: a file gets another length.

use std::os::fd::BorrowedFd;

use rustix::io::Result;

pub(super) fn answer(file: BorrowedFd<'_>, length: u64) -> Result<()> {
    rustix::fs::ftruncate(file, length)
}
