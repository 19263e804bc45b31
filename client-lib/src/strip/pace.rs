//! Costs of a loop over strips, from its own strips: the computation's `K`, the issue's `o`, the
//! path's `G` and `L`.
//!
//! Times come from the caller; nothing here reads a clock.

use super::size::Loop;
use crate::path::{Measured, PathCosts};
use crate::recent::Recent;

/// Bytes that are timed together: strips come a few at a time, and one that was waited for brings
/// others along.
const TIMED_BYTES: u64 = 24 << 10;

/// Times of the path from which they are believed rather than what was known before.
const ENOUGH: usize = 3;

/// Seconds that a request costs both daemons at least, whatever its length. Their stages time
/// fragments; nobody times the rest, from the ring to the peer and back to the ring.
const REQUEST_SECONDS: f64 = 5e-6;

/// `o` to begin with: a submission and, now and then, a system call. Replaced by the first round.
const ISSUE_PRIOR: f64 = 2e-6;

/// A path of which nobody knows anything: memory of another node on a fast network.
const PATH_PRIOR: PathCosts = PathCosts {
    overhead_seconds: 5e-6,
    latency_seconds: 100e-6,
    per_byte_seconds: 1e-9,
    confidence: 0.0,
};

/// The measurements of a loop, and the costs it was told of its path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pace {
    told: Option<PathCosts>,
    issue: Recent,
    compute: Recent,
    per_byte: Recent,
    /// Time of the path while it was busy, not counted yet: nanoseconds, and bytes that came
    /// meanwhile.
    busy: (u64, u64),
    /// Time of a strip that was alone on its way: from the issue to the last byte, and its bytes.
    alone: Option<(f64, f64)>,
    /// The last end of a strip that was seen, and bytes that have come since.
    seen: Option<(u64, u64)>,
}

/// A strip with an end that was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Landed {
    /// Length of the strip in bytes.
    pub(crate) bytes: u64,
    /// When the strip's request was issued, in nanoseconds.
    pub(crate) issued_ns: u64,
    /// When the strip was in place, in nanoseconds; `None` if it was there before anybody waited
    /// for it.
    pub(crate) landed_ns: Option<u64>,
    /// Whether no other strip was under way when this one was issued.
    pub(crate) alone: bool,
}

impl Pace {
    pub(crate) fn new(told: Option<PathCosts>, compute: Option<f64>) -> Self {
        let mut pace = Self {
            told,
            issue: Recent::default(),
            compute: Recent::default(),
            per_byte: Recent::default(),
            busy: (0, 0),
            alone: None,
            seen: None,
        };
        compute.into_iter().for_each(|compute| pace.compute.add(compute));
        pace
    }

    /// Takes the costs that the daemon reports of the path.
    pub(crate) fn handle_told(&mut self, told: PathCosts) {
        self.told = Some(told);
    }

    /// Whether anybody has said what the path costs.
    pub(crate) fn is_told(&self) -> bool {
        self.told.is_some()
    }

    /// The caller computed on so many bytes for so long.
    pub(crate) fn handle_computed(&mut self, bytes: u64, ns: u64) {
        if bytes > 0 {
            self.compute.add(seconds(ns) / bytes as f64);
        }
    }

    /// Takes how long it took to issue so many strips.
    pub(crate) fn handle_issued(&mut self, strips: u32, ns: u64) {
        if strips > 0 {
            self.issue.add(seconds(ns) / f64::from(strips));
        }
    }

    /// A strip is there, in the order of their gets. From one end that was seen to another the path
    /// had no pause if the request for the last strip had reached it before the first end; what
    /// came in between took all of that time.
    pub(crate) fn handle_landed(&mut self, strip: Landed) {
        let before = self.seen.map(|(at_ns, bytes)| (at_ns, bytes + strip.bytes));
        let Some(landed_ns) = strip.landed_ns else {
            self.seen = before;
            return;
        };
        self.seen = Some((landed_ns, 0));
        // What was asked for later had its own way to go while nothing came.
        let there_ns = strip.issued_ns.saturating_add((self.path().latency_seconds * 1e9) as u64);
        if let Some((at_ns, bytes)) = before.filter(|(at_ns, _)| there_ns <= *at_ns) {
            let (busy_ns, busy_bytes) =
                (self.busy.0 + landed_ns.saturating_sub(at_ns), self.busy.1 + bytes);
            self.busy = (busy_ns, busy_bytes);
            if busy_bytes >= TIMED_BYTES {
                self.per_byte.add(seconds(busy_ns) / busy_bytes as f64);
                self.busy = (0, 0);
            }
        }
        if strip.alone {
            let took = seconds(landed_ns.saturating_sub(strip.issued_ns));
            self.alone = Some((took, strip.bytes as f64));
        }
    }

    /// The median computation per byte, in seconds, once there is one.
    pub(crate) fn compute(&self) -> Option<f64> {
        self.compute.median()
    }

    /// The path as this loop sees it: what it measured where it has measured enough, or was told
    /// nothing.
    pub(crate) fn path(&self) -> PathCosts {
        let told = self.told.unwrap_or(PATH_PRIOR);
        let enough = if told.confidence > 0.0 { ENOUGH } else { 1 };
        let measured = self.per_byte.low().filter(|_| self.per_byte.seen() >= enough);
        let per_byte_seconds = measured.unwrap_or(told.per_byte_seconds);
        let latency_seconds = self.latency(per_byte_seconds).unwrap_or(told.latency_seconds);
        let confidence = if measured.is_some() { 1.0 } else { told.confidence };
        PathCosts { latency_seconds, per_byte_seconds, confidence, ..told }
    }

    /// The path's costs that were measured here, given once.
    pub(crate) fn take_measured(&mut self) -> Measured {
        let per_byte_seconds = self.per_byte.low();
        let latency_seconds = self.latency(self.path().per_byte_seconds);
        (self.per_byte, self.alone) = (Recent::default(), None);
        Measured { per_byte_seconds, latency_seconds }
    }

    /// Latency of the path: the time of a strip that was alone, without its bytes.
    fn latency(&self, per_byte_seconds: f64) -> Option<f64> {
        self.alone.map(|(took, bytes)| (took - per_byte_seconds * bytes).max(0.0))
    }

    /// The costs of the loop as far as they are known.
    pub(crate) fn known(&self) -> Loop {
        let path = self.path();
        Loop {
            issue: self.issue.median().unwrap_or(ISSUE_PRIOR).max(f64::MIN_POSITIVE),
            overhead: path.overhead_seconds.max(REQUEST_SECONDS),
            latency: path.latency_seconds,
            per_byte: path.per_byte_seconds,
            compute: self.compute(),
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: PathCosts = PathCosts {
        overhead_seconds: 4e-6,
        latency_seconds: 120e-6,
        per_byte_seconds: 8e-9,
        confidence: 0.9,
    };

    fn near(found: f64, wanted: f64) -> bool {
        (found - wanted).abs() <= wanted * 1e-9
    }

    fn landed(bytes: u64, issued_ns: u64, landed_ns: u64) -> Landed {
        Landed { bytes, issued_ns, landed_ns: Some(landed_ns), alone: false }
    }

    #[test]
    fn what_was_told_counts_until_enough_was_measured() {
        let mut pace = Pace::new(Some(TOLD), None);
        assert_eq!(pace.path(), TOLD);
        assert_eq!(pace.known().compute, None);
        // 32 KiB, 10 ns a byte apart: the first end is where the second strip's time begins.
        for number in 0..4_u64 {
            assert_eq!(pace.path(), TOLD, "{number}");
            pace.handle_landed(landed(32_768, 0, 200_000 + number * 327_680));
        }
        assert!(near(pace.path().per_byte_seconds, 10e-9));
        assert_eq!(pace.path().confidence, 1.0);
    }

    #[test]
    fn strips_that_come_together_are_one_arrival() {
        let mut pace = Pace::new(None, None);
        pace.handle_landed(landed(4096, 0, 100_000));
        for number in 1..100_u64 {
            // Of three that were there at once one was waited for.
            pace.handle_landed(Landed { landed_ns: None, ..landed(4096, 0, 0) });
            pace.handle_landed(Landed { landed_ns: None, ..landed(4096, 0, 0) });
            pace.handle_landed(landed(4096, 0, 100_000 + number * 122_880));
        }
        assert!(near(pace.path().per_byte_seconds, 10e-9), "{:?}", pace.path());
    }

    #[test]
    fn a_daemon_that_was_away_for_a_while_does_not_make_the_path_slow() {
        let mut pace = Pace::new(Some(TOLD), None);
        let mut now_ns = 0;
        for number in 0..20_u64 {
            now_ns += 262_144 + if number % 5 == 4 { 4_000_000 } else { 0 };
            pace.handle_landed(landed(32_768, 0, now_ns));
        }
        assert!(near(pace.path().per_byte_seconds, 8e-9), "{:?}", pace.path());
    }

    #[test]
    fn a_path_that_nobody_knows_is_learned_from_the_first_strips() {
        let mut pace = Pace::new(None, None);
        pace.handle_landed(Landed { alone: true, ..landed(10_000, 0, 300_000) });
        pace.handle_landed(landed(30_000, 1_000, 540_000));
        let path = pace.path();
        assert!(near(path.per_byte_seconds, 8e-9), "{path:?}");
        // 300 us less 80 us for the bytes.
        assert!(near(path.latency_seconds, 220e-6), "{path:?}");
    }

    #[test]
    fn ends_that_nobody_saw_and_gets_that_came_late_say_nothing_of_the_path() {
        let mut pace = Pace::new(Some(TOLD), None);
        for number in 1..20_u64 {
            // Issued after the last end that was seen: a round trip, and not the path's pace.
            let issued_ns = number * 1_000_000 - 1;
            pace.handle_landed(Landed { landed_ns: None, ..landed(1000, issued_ns, 0) });
            pace.handle_landed(landed(1000, issued_ns, number * 1_000_000));
        }
        assert_eq!(pace.path(), TOLD);
        assert_eq!(pace.take_measured(), Measured::default());
    }

    #[test]
    fn one_lost_time_slice_is_no_computation() {
        let mut pace = Pace::new(None, None);
        for ns in [4_000, 5_000, 9_000_000, 4_500] {
            pace.handle_computed(1000, ns);
        }
        assert!(near(pace.compute().expect("four samples"), 5e-9));
        pace.handle_computed(0, 77);
        assert!(near(pace.compute().expect("four samples"), 5e-9));
        pace.handle_issued(2, 9_000);
        assert!(near(pace.known().issue, 4.5e-6));
    }

    #[test]
    fn what_the_caller_says_it_computes_counts_from_the_start() {
        assert!(near(Pace::new(None, Some(3e-9)).compute().expect("said"), 3e-9));
        assert_eq!(Pace::new(None, Some(f64::NAN)).compute(), None);
    }
}
