//! The one place of the library that reads a clock: how long to spin and to sleep is decided here,
//! on the application's threads, where nobody brings the time along.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds since the process first asked; never goes back.
pub(crate) fn now_ns() -> u64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    let instant = read();
    let origin = *ORIGIN.get_or_init(|| instant);
    nanos(instant.saturating_duration_since(origin))
}

/// A duration in whole nanoseconds. 2^64 of them are 584 years: it saturates only in theory.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleep. A signal may end it early.
pub(crate) fn nap(ns: u64) {
    if let Ok(time) = rustix::thread::Timespec::try_from(Duration::from_nanos(ns)) {
        let _ = rustix::thread::nanosleep(&time);
    }
}

#[expect(clippy::disallowed_methods, reason = "the clock's home in this crate")]
fn read() -> Instant {
    Instant::now()
}
