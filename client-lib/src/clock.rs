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

#[expect(clippy::disallowed_methods, reason = "the clock's home in this crate")]
fn read() -> Instant {
    Instant::now()
}
