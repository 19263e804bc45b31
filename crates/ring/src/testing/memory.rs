//! Attacks on a memfd by a process that it was passed to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// The attacks that the kernel let happen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryAbuse {
    /// The length changed: every mapping of it is a trap.
    pub resized: bool,
    /// More seals: a write of the daemon's could fail.
    pub resealed: bool,
    /// The memory was mapped to be executed, which is its owner's own affair.
    pub executable: bool,
}

/// Take pages out of a memfd.
///
/// # Errors
/// The error of the kernel.
pub fn punch(memory: impl AsFd, offset: u64, length: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(memory, flags, offset, length)?)
}

/// Try everything, by the descriptor and by one opened anew.
#[must_use]
pub fn abuse_memory(memory: BorrowedFd<'_>, length: u64) -> MemoryAbuse {
    let mut done = MemoryAbuse::default();
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memory));
    let reopened = rustix::fs::open(link, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let reopened = reopened.as_ref().map(AsFd::as_fd);
    for fd in [Ok(memory), reopened].into_iter().flatten() {
        for other in [0, 1, length / 2, length - 1, length + 1, 2 * length, 1 << 40] {
            done.resized |= rustix::fs::ftruncate(fd, other).is_ok();
        }
        let beyond = FallocateFlags::empty();
        done.resized |= rustix::fs::fallocate(fd, beyond, length, 4096).is_ok();
        for flags in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
            done.resized |= rustix::fs::fallocate(fd, flags, 0, 4096).is_ok();
        }
        for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::SHRINK, SealFlags::SEAL]
        {
            done.resealed |= rustix::fs::fcntl_add_seals(fd, seal).is_ok();
        }
        // Flags and locks of the open file, which the daemon shares but does not go by.
        let _ = rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK | OFlags::APPEND);
        let _ = rustix::fs::flock(fd, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        done.executable |= map_executable(fd, length as usize).is_ok();
        let _ = punch(fd, 0, length);
    }
    done
}

fn map_executable(memory: BorrowedFd<'_>, length: usize) -> io::Result<()> {
    let protection = ProtFlags::READ | ProtFlags::EXEC;
    // SAFETY: a new mapping at an address of the kernel's choice, which nobody uses and which is
    // given back at once.
    unsafe {
        let at =
            rustix::mm::mmap(ptr::null_mut(), length, protection, MapFlags::SHARED, memory, 0)?;
        rustix::mm::munmap(at, length)?;
    }
    Ok(())
}
