//! `Call::Advise`: what the page cache is told.

use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;

use piped_core::call::{Advice, Range};
use rustix::io::Result;

use super::end_of;

/// Most bytes that are read ahead for one call.
const AHEAD_BYTES_MAX: u64 = 1 << 30;

pub(super) fn answer(file: BorrowedFd<'_>, range: Range, advice: Advice) -> Result<()> {
    end_of(range)?;
    let Range { offset, length } = range;
    let (length, advice) = match advice {
        // The others are done at once, and leave nothing that could be taken back.
        Advice::Normal => return Ok(()),
        Advice::WillNeed => {
            let ahead = if length == 0 { AHEAD_BYTES_MAX } else { length.min(AHEAD_BYTES_MAX) };
            (ahead, rustix::fs::Advice::WillNeed)
        }
        Advice::DontNeed => (length, rustix::fs::Advice::DontNeed),
    };
    rustix::fs::fadvise(file, offset, NonZeroU64::new(length), advice)
}
