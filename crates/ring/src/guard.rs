//! Copies of memory that may be gone, by the kernel, which says so.
//!
//! A load from a page behind the end of its file is a SIGBUS. The kernel's own copies are not: they
//! end with EFAULT. `process_vm_readv` on the own process copies from any address to any other.

use rustix::io::Errno;

/// Copies bytes; `Err` if some of the memory on either side is gone, or the call is not allowed.
/// Some of the bytes may have been copied then.
pub(crate) fn copy(from: *const u8, to: *mut u8, length: usize) -> Result<(), Errno> {
    let mut done = 0;
    while done < length {
        let left = length - done;
        let target = libc::iovec { iov_base: to.wrapping_add(done).cast(), iov_len: left };
        let source = from.wrapping_add(done).cast_mut().cast();
        let source = libc::iovec { iov_base: source, iov_len: left };
        // SAFETY: the kernel checks both ranges, and copies nothing where there is no memory. The
        // callers' ranges lie in their mappings or private buffers, so nothing else is changed.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &target, 1, &source, 1, 0) };
        match usize::try_from(copied) {
            Ok(0) => return Err(Errno::FAULT),
            Ok(copied) => done += copied,
            Err(_) => match last_error() {
                Errno::INTR => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// Whether every page of a range is there now.
pub(crate) fn is_there(start: *const u8, length: usize) -> bool {
    const PAGE_BYTES: usize = 4096;
    let mut byte = 0;
    let last = length.saturating_sub(1);
    let places = (0..length).step_by(PAGE_BYTES).chain([last]);
    length == 0
        || places.into_iter().all(|at| copy(start.wrapping_add(at), &raw mut byte, 1).is_ok())
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
