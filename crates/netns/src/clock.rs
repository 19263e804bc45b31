//! The only clock of this crate.

use std::time::{Duration, Instant};

/// Between two looks at something that gives no notice.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Polls until it is so, or the time is over; whether it is so.
#[expect(clippy::disallowed_methods, reason = "waits for other processes, which have no doorbell")]
pub(crate) fn poll(limit: Duration, is_so: impl Fn() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !is_so() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    true
}
