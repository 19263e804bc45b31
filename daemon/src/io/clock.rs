//! The only place of the daemon that reads a clock; all others take `now` as an argument.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use piped_config::UnixTime;
use piped_control::times::Times;
use piped_core::units::Nanos;
use rustix::time::ClockId;

/// Time since the process first asked, from `CLOCK_MONOTONIC`. All threads share the origin, so
/// points in time may travel between shards and the control thread.
///
/// A shard that spins reads it twice a turn, so it is nanoseconds from the first: the standard
/// library's `Instant` subtracts seconds and nanoseconds apart, and multiplies in 128 bits.
#[must_use]
pub fn now() -> Nanos {
    static ORIGIN: OnceLock<u64> = OnceLock::new();
    let time = rustix::time::clock_gettime(ClockId::Monotonic);
    // 2^63 ns since the machine started are 292 years.
    let nanos = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    Nanos(nanos.saturating_sub(*ORIGIN.get_or_init(|| nanos)))
}

/// Sleeps for a while, on threads that nobody waits for; never on a shard's or the control thread.
#[expect(clippy::disallowed_methods, reason = "the clock's home")]
pub(crate) fn pause(time: Nanos) {
    std::thread::sleep(std::time::Duration::from_nanos(time.0));
}

/// Spends time on the caller's CPU, as a dial's host overhead.
pub(super) fn spin(time: Nanos) {
    let end = now() + time;
    while now() < end {
        std::hint::spin_loop();
    }
}

/// Seconds since 1970, for people and their programs. Of the daemon's decisions only those about
/// certificates go by it: all others go by [`now`].
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the clock's home")]
pub fn calendar() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// What both clocks say.
#[must_use]
pub(crate) fn times() -> Times {
    Times { now: now(), calendar: UnixTime(calendar() as u64) }
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
