//! The one place of the daemon that reads a clock; everybody else takes `now` as an argument.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use piped_core::units::Nanos;

/// Time since the process first asked, from `CLOCK_MONOTONIC`. All threads share the origin, so
/// points in time may travel between shards and the control thread.
#[must_use]
pub fn now() -> Nanos {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    let instant = read();
    let origin = *ORIGIN.get_or_init(|| instant);
    // 2^64 ns are 584 years: the conversion saturates only in theory.
    Nanos(u64::try_from(instant.saturating_duration_since(origin).as_nanos()).unwrap_or(u64::MAX))
}

#[expect(clippy::disallowed_methods, reason = "the clock's home")]
fn read() -> Instant {
    Instant::now()
}

/// Does nothing for a while: for threads that nobody waits for, never for a shard's or the control thread.
#[expect(clippy::disallowed_methods, reason = "the clock's home")]
pub(crate) fn pause(time: Nanos) {
    std::thread::sleep(std::time::Duration::from_nanos(time.0));
}

/// Spends time on the caller's CPU: what a dial's host overhead is.
pub(super) fn spin(time: Nanos) {
    let end = now() + time;
    while now() < end {
        std::hint::spin_loop();
    }
}

/// Seconds since 1970: for people and their programs, never for what the daemon decides.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the clock's home")]
pub fn calendar() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::now;

    #[test]
    fn it_never_goes_back_and_all_threads_share_the_origin() {
        let here = now();
        let there = std::thread::spawn(now).join().expect("the thread only reads the clock");
        assert!(there >= here);
        assert!(now() >= there);
    }
}
