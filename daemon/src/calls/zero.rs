//! `Call::Zero`: a range of zeros, by what the file system is best at.

use std::os::fd::BorrowedFd;

use piped_core::call::Range;
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, Result};

use super::trim::PUNCH;
use super::{end_of, stat, with_scratch, write_all};

/// Most zeros that one call writes, where the file system has nothing better, in bytes: about a
/// second of a disk.
const WRITTEN_BYTES_MAX: u64 = 1 << 30;

/// Zeros that are written at once, in bytes.
const CHUNK_BYTES: usize = 256 * 1024;

pub(super) fn answer(file: BorrowedFd<'_>, range: Range, release: bool) -> Result<()> {
    let Range { offset, length } = range;
    let end = end_of(range)?;
    let fallocate = |flags, offset, length| rustix::fs::fallocate(file, flags, offset, length);
    let all = FallocateFlags::empty();
    let zeroed = match release {
        // Room for the last byte makes the file as long as that, and never shorter.
        true => fallocate(PUNCH, offset, length).and_then(|()| match stat::length(file)? < end {
            true => fallocate(all, end - 1, 1),
            false => Ok(()),
        }),
        false => match fallocate(FallocateFlags::ZERO_RANGE, offset, length) {
            // tmpfs: nothing is there, and then there is room again.
            Err(Errno::OPNOTSUPP) => {
                fallocate(PUNCH, offset, length).and_then(|()| fallocate(all, offset, length))
            }
            other => other,
        },
    };
    match zeroed {
        Err(Errno::OPNOTSUPP) => write(file, range),
        other => other,
    }
}

/// Writes zeros, as many as one call may.
pub(super) fn write(file: BorrowedFd<'_>, range: Range) -> Result<()> {
    let end = end_of(range)?;
    match range.length {
        // As the file system says where it does it itself.
        0 => return Err(Errno::INVAL),
        length if length > WRITTEN_BYTES_MAX => return Err(Errno::FBIG),
        _ => {}
    }
    with_scratch(|zeros| {
        zeros.resize(CHUNK_BYTES, 0);
        let mut at = range.offset;
        while at < end {
            let left = usize::try_from(end - at).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            write_all(file, &zeros[..left], at)?;
            at += left as u64;
        }
        Ok(())
    })
}
