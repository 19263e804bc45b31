//! How many bytes a second a client, or a peer, may have moved: `limits.client.rate`,
//! `limits.peer.rate`.
//!
//! What is moved puts off what comes next: a party that has had `b` bytes at a rate of `r` has the
//! next `b / r` seconds later, give or take a burst. So nothing is counted by the second, nobody
//! saves up more than the burst, and a rate that changes holds from the next piece on. A client
//! pays for what it reads and writes once: of a copy for the reads. What it reads from a peer it
//! pays for when it asks, because the bytes come by themselves.

use piped_core::units::Nanos;
use piped_report::shard::Gauge;

/// How far ahead of its rate a party may be.
const BURST: Nanos = Nanos::from_millis(5);

/// What is shown is the mean over so long.
const SHOWN: Nanos = Nanos::from_millis(1_000);

/// How many bytes a party may move per second, and what it has moved of late.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// When it has paid for what it has moved.
    paid: Nanos,
    /// For what is shown: bytes, and since when.
    since: Nanos,
    bytes: u64,
    shown: Gauge,
}

impl Throttle {
    /// When it may go on, if that is not now.
    pub(super) fn until(&self, now: Nanos) -> Option<Nanos> {
        let until = self.paid.since(BURST);
        (until > now).then_some(until)
    }

    /// Charges moved bytes at a rate in bytes per second, which is no bound if it is 0.
    pub(super) fn charge(&mut self, bytes: u64, rate: u64, now: Nanos) {
        self.turn(now);
        self.bytes += bytes;
        let time = (u128::from(bytes) * 1_000_000_000).checked_div(rate.into());
        self.paid = match time {
            None => now,
            Some(time) => self.paid.max(now) + Nanos(u64::try_from(time).unwrap_or(u64::MAX / 4)),
        };
    }

    /// Gives back bytes that were charged and not moved.
    pub(super) fn refund(&mut self, bytes: u64, rate: u64) {
        let time = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        self.paid = self.paid.since(Nanos(u64::try_from(time).unwrap_or(u64::MAX)));
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// What it has moved too much is paid for at another rate from now on.
    pub(super) fn rescale(&mut self, old: u64, new: u64, now: Nanos) {
        let debt = u128::from(self.paid.since(now).0) * u128::from(old) / u128::from(new.max(1));
        self.paid = match (old, new) {
            (0, _) | (_, 0) => now,
            _ => now + Nanos(u64::try_from(debt).unwrap_or(u64::MAX / 4)),
        };
    }

    fn turn(&mut self, now: Nanos) {
        let time = now.since(self.since);
        if time >= SHOWN {
            let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(time.0);
            self.shown.now = u64::try_from(rate).unwrap_or(u64::MAX);
            self.shown.high = self.shown.high.max(self.shown.now);
            (self.since, self.bytes) = (now, 0);
        }
    }

    /// Bytes a second, of late and at most.
    pub(super) fn shown(&self) -> Gauge {
        self.shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_holds_over_any_while_but_for_a_burst() {
        const RATE: u64 = 100_000_000;
        let mut throttle = Throttle::default();
        let (mut now, begin) = (Nanos::from_millis(7), Nanos::from_millis(7));
        let mut moved = 0;
        while now.since(begin) < Nanos::from_millis(2_000) {
            while throttle.until(now).is_none() {
                throttle.charge(250_000, RATE, now);
                moved += 250_000;
            }
            let allowed = (now.since(begin) + BURST).0 / 10 + 250_000;
            assert!(moved <= allowed, "{moved} of {allowed}");
            now = throttle.until(now).expect("it was moved until then");
        }
        assert!(moved >= 2 * RATE, "{moved}");
        let off = throttle.shown().now.abs_diff(RATE);
        assert!(off < RATE / 50, "{:?}", throttle.shown());
        // Who did nothing for long has saved up nothing.
        now = now + Nanos::from_millis(10_000);
        throttle.charge(2_000_000, RATE, now);
        assert_eq!(throttle.until(now), Some(now + Nanos::from_millis(15)));
        throttle.rescale(RATE, 2 * RATE, now);
        assert_eq!(throttle.until(now), Some(now + Nanos::from_millis(5)), "half as long");
        throttle.refund(1_000_000, 2 * RATE);
        assert_eq!(throttle.until(now), None);
        throttle.charge(1, 0, now);
        assert_eq!(throttle.until(now), None, "no rate, no debt");
    }
}
