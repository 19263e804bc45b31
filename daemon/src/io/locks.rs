//! Locks of open file descriptions, for which no safe library has a call.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use piped_core::call::{Lock, Range};
use rustix::io::{Errno, Result};

/// Sets the lock of a range without waiting for others. Length 0: all behind the offset.
///
/// # Errors
/// EAGAIN or EACCES if somebody else has locked a part of it, or what else the kernel says.
pub(crate) fn set(file: BorrowedFd<'_>, range: Range, lock: Lock) -> Result<()> {
    let kind = match lock {
        Lock::None => libc::F_UNLCK,
        Lock::Shared => libc::F_RDLCK,
        Lock::Exclusive => libc::F_WRLCK,
    };
    let place = |bytes: u64| libc::off_t::try_from(bytes).map_err(|_| Errno::INVAL);
    // SAFETY: the structure is plain numbers, of which all zeros is one.
    let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
    wanted.l_type = kind as _;
    wanted.l_whence = libc::SEEK_SET as _;
    wanted.l_start = place(range.offset)?;
    wanted.l_len = place(range.length)?;
    // SAFETY: the kernel reads the structure during the call, and the descriptor is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) } {
        0.. => Ok(()),
        _ => {
            let error = std::io::Error::last_os_error();
            Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        }
    }
}
