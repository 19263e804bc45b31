//! Which executions of a stage say something about its cost.
//!
//! A stage that was empty when a fragment arrived shows `L + g + xG`, but not if others joined it and were
//! told of with it: a device that tells of all at the end was never seen serving one. A stage that had work
//! all the time since the departure before shows `g + xG` between two departures. Between the two lies a
//! fragment that arrived while the one before was in its latency but no longer in service: its gap
//! holds idle time, and taking it for occupancy would stick at too large a `g` as long as the depth
//! stays small. It is recognised by its sojourn: it took no longer than a fragment alone.
//!
//! Gaps are no samples one by one. Completions are seen in batches (one system call reaps many), and a
//! device that serves several fragments at once ends them in clusters: many short gaps and a few long
//! ones, of which a robust estimator would throw the long ones away and believe the short ones. So gaps
//! are added up until there are [`GAPS_PER_SAMPLE`], and their mean is the sample.

use crate::units::Nanos;

/// Departures closer together than this were seen together.
const BATCH_GAP: Nanos = Nanos(4_000);
/// A departure that follows another within this part of its sojourn was told of with it.
const TOLD_WITH: u64 = 8;
/// Departures of a backlogged stage whose mean gap is a sample.
const GAPS_PER_SAMPLE: u32 = 8;
/// A fragment has waited if its sojourn is this much longer than one alone.
const WAITED: f64 = 1.25;

/// What one execution, or several in a row, say about a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sample {
    /// The stage was empty: `seconds` is `L + g + bytes·G`.
    Alone {
        /// Size in bytes.
        bytes: u64,
        /// Arrival to departure.
        seconds: f64,
    },
    /// The stage was never idle between departures: `seconds` is `g + bytes·G`.
    Backlogged {
        /// Size in bytes (the mean of several).
        bytes: u64,
        /// Departure to departure (the mean of several).
        seconds: f64,
    },
}

/// A fragment inside the stage, from [`Meter::arrive`] to [`Meter::depart`] or [`Meter::abandon`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a fragment that never departs keeps the stage from being seen empty"]
pub struct Ticket {
    arrived: Nanos,
    /// Its number, if the stage was empty when it arrived.
    alone_as: Option<u64>,
    departures: u64,
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
/// // L = 70 us, g + xG = 20 us; all nine arrive at once.
/// let tickets = [0; 9].map(|_| meter.arrive(at(0)));
/// let samples: Vec<Sample> = tickets
///     .into_iter()
///     .zip(0..)
///     .filter_map(|(ticket, i)| meter.depart(ticket, 4096, at(90 + 20 * i), None))
///     .collect();
/// let (alone, backlogged) = (90e-6, 20e-6);
/// assert_eq!(samples, [
///     Sample::Alone { bytes: 4096, seconds: alone },
///     Sample::Backlogged { bytes: 4096, seconds: backlogged },
/// ]);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Meter {
    inside: u32,
    arrivals: u64,
    departures: u64,
    last_departure: Option<Nanos>,
    /// When a fragment departed last that says nothing of the one behind it.
    silent: Option<Nanos>,
    /// Size and sojourn of a fragment that others joined in an empty stage, until the next departure tells
    /// whether it was told of with them.
    joined: Option<(u64, Nanos)>,
    gaps: Gaps,
}

/// Gaps of a backlogged stage that are no sample yet, of fragments of about one size.
#[derive(Debug, Clone, Copy, Default)]
struct Gaps {
    count: u32,
    bytes: u64,
    time: Nanos,
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
        self.arrivals += 1;
        let alone_as = (self.inside == 0).then_some(self.arrivals);
        self.inside = self.inside.saturating_add(1);
        Ticket { arrived: now, alone_as, departures: self.departures }
    }

    /// A fragment has left the stage with all its `bytes`. What is returned may be about several.
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
        let last = self.last_departure.replace(now);
        let joined = self.joined.take().filter(|&(_, before)| {
            last.is_some_and(|last| now.since(last).0 * TOLD_WITH >= before.0)
        });
        let joined =
            joined.map(|(bytes, before)| Sample::Alone { bytes, seconds: before.seconds() });
        if ticket.alone_as == Some(self.arrivals) {
            self.silent = Some(now);
            self.departures += 1;
            return Some(Sample::Alone { bytes, seconds: sojourn });
        }
        // Overtaken fragments were not alone, whatever the stage looked like at their arrival.
        if ticket.alone_as.is_some() && ticket.departures == self.departures {
            self.joined = Some((bytes, now.since(ticket.arrived)));
        }
        self.departures += 1;
        let Some(last) = last.filter(|&last| ticket.arrived <= last) else {
            self.silent = Some(now);
            return joined;
        };
        if alone_seconds.is_some_and(|alone| sojourn < WAITED * alone) {
            return joined;
        }
        // Seen together with one that says nothing of service: no time passed to be shared out.
        if self.silent.is_some_and(|silent| now.since(silent) <= BATCH_GAP) {
            return joined;
        }
        self.gaps.add(bytes, now.since(last)).or(joined)
    }

    /// A fragment has ended in another way (error, cancel): no sample, and none from its neighbours.
    pub fn abandon(&mut self, ticket: Ticket, now: Nanos) {
        let _ = ticket;
        self.inside = self.inside.saturating_sub(1);
        self.departures += 1;
        self.joined = None;
        self.gaps = Gaps::default();
        self.last_departure = Some(now);
    }
}

impl Gaps {
    fn add(&mut self, bytes: u64, gap: Nanos) -> Option<Sample> {
        let mean = self.bytes.checked_div(u64::from(self.count)).unwrap_or(bytes);
        // Within an octave the cost is straight enough for the mean of sizes to cost the mean.
        if bytes > mean.saturating_mul(2) || bytes < mean / 2 {
            *self = Self::default();
        }
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.time = self.time + gap;
        if self.count < GAPS_PER_SAMPLE {
            return None;
        }
        let Self { count, bytes, time } = core::mem::take(self);
        Some(Sample::Backlogged {
            bytes: bytes / u64::from(count),
            seconds: time.seconds() / f64::from(count),
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
    fn the_longest_fragments_can_be_compared() {
        let mut meter = Meter::new();
        let tickets = [0; 9].map(|_| meter.arrive(at(0)));
        for (ticket, micros) in
            tickets.into_iter().zip([100, 120, 140, 160, 180, 200, 220, 240, 260])
        {
            meter.depart(ticket, u64::MAX, at(micros), None);
        }
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
        assert_eq!(meter.depart(first, 100, at(87), Some(87e-6)), None);
        let mut now = 131;
        for round in 0..20 {
            let next = meter.arrive(at(now - 44));
            let first = if round == 0 { alone(87) } else { None };
            assert_eq!(meter.depart(second, 100, at(now), Some(87e-6)), first, "round {round}");
            second = next;
            now += 44;
        }
    }

    #[test]
    fn batched_completions_average_to_the_service_time() {
        let mut meter = Meter::new();
        let tickets: Vec<Ticket> = (0..9).map(|_| meter.arrive(at(0))).collect();
        assert_eq!(meter.depart(tickets[0], 100, at(20), None), None);
        // Reaped three at 80 us, one at 100 us, four at 180 us.
        let times = [80, 80, 80, 100, 180, 180, 180, 180];
        let samples: Vec<_> = tickets[1..]
            .iter()
            .zip(times)
            .map(|(ticket, time)| meter.depart(*ticket, 100, at(time), None))
            .collect();
        assert_eq!((samples[0], &samples[1..7]), (alone(20), &[None; 6][..]));
        assert_eq!(samples[7], backlogged(20));
    }

    #[test]
    fn a_device_that_ends_fragments_in_clusters_shows_its_mean() {
        // Eight at once, 5 us apart, every 400 us: 50 us a fragment, though most gaps are 5 us.
        let mut meter = Meter::new();
        let mut tickets: std::collections::VecDeque<Ticket> =
            (0..8).map(|_| meter.arrive(at(0))).collect();
        let mut samples = Vec::new();
        for round in 0..40 {
            for place in 0..8 {
                let now = at(400 * (round + 1) + 5 * place);
                let ticket = tickets.pop_front().expect("as many as arrived");
                samples.extend(meter.depart(ticket, 100, now, Some(100e-6)));
                tickets.push_back(meter.arrive(now));
            }
        }
        for sample in &samples {
            let Sample::Backlogged { seconds, .. } = sample else { panic!("{sample:?}") };
            assert!((seconds - 50e-6).abs() < 6e-6, "{seconds}");
        }
        assert!(samples.len() > 30);
    }

    #[test]
    fn sizes_that_differ_are_not_averaged() {
        let mut meter = Meter::new();
        let tickets: Vec<Ticket> = (0..40).map(|_| meter.arrive(at(0))).collect();
        for (ticket, i) in tickets.into_iter().zip(1..) {
            let bytes = if i % 2 == 0 { 100 } else { 300 };
            let sample = meter.depart(ticket, bytes, at(20 * i), None);
            assert!(matches!(sample, None | Some(Sample::Alone { .. })), "{sample:?}");
        }
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
    fn a_device_that_tells_of_all_at_the_end_says_nothing_of_one() {
        let mut meter = Meter::new();
        let tickets = [0; 16].map(|_| meter.arrive(at(0)));
        for (ticket, late) in tickets.into_iter().zip([0, 0, 1].into_iter().cycle()) {
            assert_eq!(meter.depart(ticket, 100, at(400 + late), Some(90e-6)), None);
        }
        let next = meter.arrive(at(200));
        assert!(matches!(meter.depart(next, 100, at(290), None), Some(Sample::Alone { .. })));
    }
}
