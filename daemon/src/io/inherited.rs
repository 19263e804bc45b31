//! Descriptors that the service manager passed, see sd_listen_fds(3).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Takes the descriptors; the second time there are none. Call it before the process opens
/// anything: until then, whatever has one of their numbers was open at the start.
///
/// # Errors
/// The environment names descriptors that are not open.
pub(crate) fn take() -> io::Result<Vec<OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    // Each number is checked to be for this process and open, and is closed if the process runs a
    // program.
    let numbers = sd_notify::listen_fds()?;
    // SAFETY: each number is an open descriptor (`listen_fds` has just set a flag of it). The
    // service manager opened them for this process, which is told so by its number, so nobody else
    // here owns them; and they are taken once (`TAKEN`).
    Ok(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect())
}
