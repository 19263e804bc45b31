//! Descriptors that the service manager passed, see sd_listen_fds(3).

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Takes them; the second time there are none. To be called before the process opens anything: until then, whatever has
/// one of their numbers was there when the program began.
///
/// # Errors
/// The environment names descriptors that are not there.
pub(crate) fn take() -> io::Result<Vec<OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    // Only if they are for this process; each is open, and closed should the process run a program.
    let numbers = sd_notify::listen_fds()?;
    // SAFETY: each number is an open descriptor (`listen_fds` has just set a flag of it). The service manager opened them
    // for this process, which is told so by its number, so nobody else here owns them; and they are taken once (`TAKEN`).
    Ok(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect())
}
