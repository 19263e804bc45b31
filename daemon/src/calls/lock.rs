//! `Call::Lock`: a lock of a range, which the kernel keeps with the open file.
//!
//! Locks of open file descriptions (`F_OFD_SETLK`) are those of each handle alone, are seen by all
//! programs of the node that lock with `fcntl`, and go with the last descriptor.

use std::os::fd::BorrowedFd;

use piped_core::call::{Lock, Range};
use rustix::io::{Errno, Result};

use super::{SetLock, end_of};

pub(super) fn answer(
    file: BorrowedFd<'_>,
    range: Range,
    lock: Lock,
    set_lock: SetLock,
) -> Result<()> {
    end_of(range)?;
    match set_lock(file, range, lock) {
        // It does not wait: a thread that waits for a lock would be missing for other calls.
        Err(Errno::AGAIN | Errno::ACCESS) => Err(Errno::DEADLK),
        other => other,
    }
}
