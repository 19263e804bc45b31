//! `Call::Sync`: a file, or the names in a directory, on stable storage.
//!
//! The kernel has no call that makes a range durable: `sync_file_range` leaves out the device's own
//! cache and the metadata by which the data is found. So a range is synced as the whole file.

use std::os::fd::BorrowedFd;

use piped_core::call::Range;
use rustix::fs::{FileType, OFlags};
use rustix::io::{Errno, Result};

use super::{end_of, place};

pub(super) fn answer(file: BorrowedFd<'_>, range: Range, data_only: bool) -> Result<()> {
    end_of(range)?;
    let synced = if data_only { rustix::fs::fdatasync(file) } else { rustix::fs::fsync(file) };
    match synced {
        // A directory that was opened by its place alone: names are synced by reading rights.
        Err(Errno::BADF) if is_directory(file)? => {
            let directory = place::open(file, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
            rustix::fs::fsync(directory)
        }
        other => other,
    }
}

fn is_directory(file: BorrowedFd<'_>) -> Result<bool> {
    let facts = rustix::fs::fstat(file)?;
    Ok(FileType::from_raw_mode(facts.st_mode) == FileType::Directory)
}
