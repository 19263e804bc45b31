//! Which executions of a stage say something about its cost.
//!
//! A stage that was empty when a fragment arrived shows `L + g + xG`. A stage that had work all the
//! time since the departure before shows `g + xG` between two departures. Between the two lies a
//! fragment that arrived while the one before was in its latency but no longer in service: its gap
//! holds idle time, and taking it for occupancy would stick at too large a `g` as long as the depth
//! stays small. It is recognised by its sojourn: it took no longer than a fragment alone.
//!
//! Completions are often seen in batches (one system call reaps many), with gaps of zero inside a
//! batch and a long one before it. A robust estimator would throw the long ones away as outliers and
//! believe the zeros. So departures at about the same time are one sample: the time since the batch
//! before, divided by their number. A batch is known to be complete only when the next departure
//! comes, so backlogged samples appear one departure late.

use crate::units::Nanos;

/// Departures closer together than this count as one batch.
const BATCH_GAP: Nanos = Nanos(1_000);
/// A batch ends here, so that a stage faster than the gap still gives samples.
const BATCH_COUNT_MAX: u32 = 64;
/// A fragment has waited if its sojourn is this much longer than one alone.
const WAITED: f64 = 1.25;

/// What one execution, or a batch of them, says about a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sample {
    /// The stage was empty: `seconds` is `L + g + bytes·G`.
    Alone {
        /// Size in bytes.
        bytes: u64,
        /// Arrival to departure.
        seconds: f64,
    },
    /// The stage was never idle since the departure before: `seconds` is `g + bytes·G`.
    Backlogged {
        /// Size in bytes (the mean of a batch).
        bytes: u64,
        /// Departure to departure (the mean of a batch).
        seconds: f64,
    },
}

/// A fragment inside the stage, from [`Meter::arrive`] to [`Meter::depart`] or [`Meter::abandon`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a fragment that never departs keeps the stage from being seen empty"]
pub struct Ticket {
    arrived: Nanos,
    /// Departures before the arrival, if the stage was empty then.
    alone_after: Option<u64>,
}

impl Ticket {
    /// When the fragment arrived.
    #[must_use]
    pub fn arrived(self) -> Nanos {
        self.arrived
    }
}

/// Classifies the executions of one stage. Constant memory, no clock: times are arguments.
///
/// ```
/// use piped_model::estimate::{Meter, Sample};
/// use piped_model::units::Nanos;
/// let at = Nanos::from_micros;
/// let mut meter = Meter::new();
/// // L = 70 us, g + xG = 20 us; all three arrive at once.
/// let tickets = [0; 3].map(|_| meter.arrive(at(0)));
/// assert_eq!(meter.depart(tickets[0], 4096, at(90), None), Some(Sample::Alone { bytes: 4096, seconds: 90e-6 }));
/// assert_eq!(meter.depart(tickets[1], 4096, at(110), None), None);
/// // The departure at 130 us completes the batch at 110 us.
/// assert_eq!(meter.depart(tickets[2], 4096, at(130), None), Some(Sample::Backlogged { bytes: 4096, seconds: 20e-6 }));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Meter {
    inside: u32,
    departures: u64,
    last_departure: Option<Nanos>,
    batch: Batch,
    /// A sample that was complete while another one was handed out.
    held: Option<Sample>,
}

/// Departures seen at about the same time.
#[derive(Debug, Clone, Copy, Default)]
struct Batch {
    /// The departure before the batch.
    start: Nanos,
    last: Nanos,
    count: u32,
    bytes: u64,
    /// Some departure in it was not backlogged.
    spoilt: bool,
}

impl Meter {
    /// A meter of an empty stage.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Fragments in the stage now.
    #[must_use]
    pub fn inside(&self) -> u32 {
        self.inside
    }

    /// A fragment enters the stage (or its queue).
    pub fn arrive(&mut self, now: Nanos) -> Ticket {
        let alone_after = (self.inside == 0).then_some(self.departures);
        self.inside = self.inside.saturating_add(1);
        Ticket { arrived: now, alone_after }
    }

    /// A fragment has left the stage with all its `bytes`. What is returned may be about an earlier
    /// one.
    ///
    /// `alone_seconds` is what is known of the time a fragment of this size takes alone
    /// ([`super::Estimator::alone_seconds`]); without it, everything that arrived before the last
    /// departure counts as backlogged.
    pub fn depart(
        &mut self,
        ticket: Ticket,
        bytes: u64,
        now: Nanos,
        alone_seconds: Option<f64>,
    ) -> Option<Sample> {
        self.inside = self.inside.saturating_sub(1);
        let sojourn = now.since(ticket.arrived).seconds();
        let same_batch = self.batch.count > 0
            && self.batch.count < BATCH_COUNT_MAX
            && now.since(self.batch.last) <= BATCH_GAP;
        let complete = if same_batch { None } else { self.batch.take() };
        // Overtaken fragments were not alone, whatever the stage looked like at their arrival.
        let alone = (ticket.alone_after == Some(self.departures))
            .then_some(Sample::Alone { bytes, seconds: sojourn });
        let backlogged = self.last_departure.is_some_and(|last| ticket.arrived <= last)
            && alone_seconds.is_none_or(|alone| sojourn >= WAITED * alone);
        if alone.is_none() {
            let start = self.last_departure.unwrap_or(now);
            self.batch.add(start, now, bytes, backlogged);
        }
        self.departures += 1;
        self.last_departure = Some(now);
        // At most one of the two waits: an alone sample opens no batch.
        let mut ready = [self.held.take(), complete, alone].into_iter().flatten();
        let first = ready.next();
        self.held = ready.next();
        first
    }

    /// A fragment has ended in another way (error, cancel): no sample, and none from its batch.
    pub fn abandon(&mut self, ticket: Ticket, now: Nanos) {
        let _ = ticket;
        self.inside = self.inside.saturating_sub(1);
        self.departures += 1;
        self.batch = Batch::default();
        self.last_departure = Some(now);
    }
}

impl Batch {
    fn add(&mut self, start: Nanos, now: Nanos, bytes: u64, backlogged: bool) {
        if self.count == 0 {
            self.start = start;
        }
        self.last = now;
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.spoilt |= !backlogged;
    }

    fn take(&mut self) -> Option<Sample> {
        let batch = core::mem::take(self);
        let elapsed = batch.last.since(batch.start);
        // Departures seen together with the one before them: no time passed that could be shared out.
        if batch.count == 0 || batch.spoilt || elapsed <= BATCH_GAP {
            return None;
        }
        Some(Sample::Backlogged {
            bytes: batch.bytes / u64::from(batch.count),
            seconds: elapsed.seconds() / f64::from(batch.count),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Nanos {
        Nanos::from_micros(micros)
    }

    fn backlogged(micros: u64) -> Option<Sample> {
        Some(Sample::Backlogged { bytes: 100, seconds: at(micros).seconds() })
    }

    fn alone(micros: u64) -> Option<Sample> {
        Some(Sample::Alone { bytes: 100, seconds: at(micros).seconds() })
    }

    #[test]
    fn one_at_a_time_is_always_alone() {
        let mut meter = Meter::new();
        for start in [0, 100, 200] {
            let ticket = meter.arrive(at(start));
            assert_eq!(meter.depart(ticket, 100, at(start + 87), Some(87e-6)), alone(87));
        }
        assert_eq!(meter.inside(), 0);
    }

    #[test]
    fn a_fragment_that_met_only_latency_is_no_sample() {
        // Two outstanding on L = 70, occupancy 17: departures every 43.5 us, nobody waits.
        let mut meter = Meter::new();
        let first = meter.arrive(at(0));
        let mut second = meter.arrive(at(44));
        assert_eq!(meter.depart(first, 100, at(87), Some(87e-6)), alone(87));
        let mut now = 131;
        for _ in 0..20 {
            let next = meter.arrive(at(now - 44));
            assert_eq!(meter.depart(second, 100, at(now), Some(87e-6)), None);
            second = next;
            now += 44;
        }
    }

    #[test]
    fn batched_completions_average_to_the_service_time() {
        let mut meter = Meter::new();
        let tickets: Vec<Ticket> = (0..8).map(|_| meter.arrive(at(0))).collect();
        assert_eq!(meter.depart(tickets[0], 100, at(20), None), alone(20));
        // Reaped three at 80 us, one at 100 us, three at 160 us.
        let times = [80, 80, 80, 100, 160, 160, 160];
        let samples: Vec<_> = tickets[1..]
            .iter()
            .zip(times)
            .map(|(ticket, time)| meter.depart(*ticket, 100, at(time), None))
            .collect();
        let twenty = backlogged(20);
        assert_eq!(samples, [None, None, None, twenty, twenty, None, None]);
    }

    #[test]
    fn no_sample_is_lost_when_two_are_complete_at_once() {
        let mut meter = Meter::new();
        let (a, b) = (meter.arrive(at(0)), meter.arrive(at(0)));
        assert_eq!(meter.depart(a, 100, at(20), None), alone(20));
        assert_eq!(meter.depart(b, 100, at(40), None), None);
        let c = meter.arrive(at(100));
        assert_eq!(meter.depart(c, 100, at(130), None), backlogged(20));
        let d = meter.arrive(at(200));
        assert_eq!(meter.depart(d, 100, at(250), None), alone(30));
    }

    #[test]
    fn overtaken_and_failed_fragments_give_nothing() {
        let mut meter = Meter::new();
        let (slow, fast) = (meter.arrive(at(0)), meter.arrive(at(1)));
        assert_eq!(meter.depart(fast, 100, at(50), None), None);
        assert_eq!(meter.depart(slow, 100, at(90), None), None);
        let failed = meter.arrive(at(100));
        let behind = meter.arrive(at(100));
        meter.abandon(failed, at(120));
        assert_eq!(meter.depart(behind, 100, at(150), None), None);
        assert_eq!(meter.inside(), 0);
    }

    #[test]
    fn a_stage_faster_than_the_batch_gap_still_gives_samples() {
        let mut meter = Meter::new();
        let tickets: Vec<Ticket> = (0..200).map(|_| meter.arrive(at(0))).collect();
        let samples: Vec<Sample> = tickets
            .iter()
            .zip(1_u64..)
            .filter_map(|(ticket, i)| meter.depart(*ticket, 100, Nanos(i * 500), None))
            .collect();
        assert!(samples.len() >= 3, "{samples:?}");
        for sample in &samples[1..] {
            let Sample::Backlogged { seconds, .. } = sample else { panic!("{sample:?}") };
            assert!((seconds - 0.5e-6).abs() < 1e-9, "{seconds}");
        }
    }

    #[test]
    fn what_departs_together_with_an_alone_fragment_is_no_sample() {
        let mut meter = Meter::new();
        let tickets = [0; 2].map(|_| meter.arrive(at(0)));
        assert!(matches!(meter.depart(tickets[0], 100, at(90), None), Some(Sample::Alone { .. })));
        assert_eq!(meter.depart(tickets[1], 100, at(90), None), None);
        let next = meter.arrive(at(200));
        assert!(matches!(meter.depart(next, 100, at(290), None), Some(Sample::Alone { .. })));
    }
}
