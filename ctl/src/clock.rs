//! The clock of the command line: `pipectl` measures, so it reads time; in this one place.

use std::time::{Duration, Instant};

/// Now.
#[expect(clippy::disallowed_methods, reason = "pipectl measures from outside the daemon")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits between two looks at something that gives no notice, such as a starting daemon.
#[expect(clippy::disallowed_methods, reason = "polling another process, with a deadline")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
