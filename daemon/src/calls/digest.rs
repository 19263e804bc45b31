//! `Call::Digest`: BLAKE3 of a range.

use std::os::fd::BorrowedFd;

use piped_core::call::{DIGEST_BYTES_MAX, Range};
use rustix::io::{Errno, Result};

use super::{SCRATCH_BYTES, end_of, put, with_scratch};

pub(super) fn answer(file: BorrowedFd<'_>, range: Range, answer: &mut [u8]) -> Result<usize> {
    end_of(range)?;
    if range.length > DIGEST_BYTES_MAX {
        return Err(Errno::INVAL);
    }
    let digest = with_scratch(|bytes| {
        let mut hasher = blake3::Hasher::new();
        let (mut at, mut left) = (range.offset, range.length);
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(SCRATCH_BYTES);
            match rustix::io::pread(file, &mut bytes.spare_capacity_mut()[..wanted], at) {
                // The file ends before the range does.
                Ok(([], _)) => return Err(Errno::INVAL),
                Ok((read, _)) => {
                    hasher.update(read);
                    (at, left) = (at + read.len() as u64, left - read.len() as u64);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(hasher.finalize())
    })?;
    put(digest.as_bytes(), answer)
}
