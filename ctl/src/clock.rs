//! The clock of the command line: the only place where `pipectl` reads the time.

use std::time::{Duration, Instant};

#[expect(clippy::disallowed_methods, reason = "pipectl measures from outside the daemon")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Calendar time as seconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "certificates and support dumps say when they were made"
)]
pub(crate) fn calendar() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Waits between two polls of something that gives no notice, such as a starting daemon.
#[expect(clippy::disallowed_methods, reason = "polling another process, with a deadline")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
