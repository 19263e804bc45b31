//! The only clock of this program.

use std::time::{Duration, Instant};

#[expect(clippy::disallowed_methods, reason = "this program measures; it drives no state machine")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "waits for other processes, which have no doorbell")]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Polls `ready` until it has something or the time is over.
pub(crate) fn poll<T>(limit: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let end = now() + limit;
    loop {
        if let Some(found) = ready() {
            return Some(found);
        }
        if now() >= end {
            return None;
        }
        pause(Duration::from_millis(5));
    }
}
