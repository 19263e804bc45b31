//! Which executions of a stage say something about its cost.
//!
//! A stage that was empty when a fragment arrived shows `L + g + xG`, but not if others joined it
//! and were told of with it: a device that tells of all at the end was never seen serving one. A
//! stage that had work all the time since the departure before shows `g + xG` between two
//! departures. Between the two lies a fragment that arrived while the one before was in its latency
//! but no longer in service: its gap holds idle time, and taking it for occupancy would stick at
//! too large a `g` as long as the depth stays small. It is recognised by its sojourn: it took no
//! longer than a fragment alone.
//!
//! Gaps are no samples one by one. Completions are seen in batches (one system call reaps many),
//! and a device that serves several fragments at once ends them in clusters: many short gaps and a
//! few long ones, of which a robust estimator would throw the long ones away and believe the short
//! ones. So gaps are added up, as many as there are fragments in the stage (no cluster is larger)
//! and at least [`GAPS_PER_SAMPLE`], and their mean is the sample. The first cluster of a stage
//! that was empty has its long gap before its first departure: what that took beyond the time of
//! one alone.

use piped_core::units::Nanos;

/// Departures closer together than this were seen together.
const BATCH_GAP: Nanos = Nanos(4_000);
/// A departure that follows another within this part of its sojourn was told of with it.
const TOLD_WITH: u64 = 8;
/// Departures of a backlogged stage whose mean gap is a sample, at least and at most.
const GAPS_PER_SAMPLE: u32 = 8;
const GAPS_PER_SAMPLE_MAX: u32 = 64;
/// A fragment has waited if its sojourn is this much longer than one alone.
const WAITED: f64 = 1.25;

/// What one execution, or several in a row, say about a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sample {
    /// The stage was empty: `seconds` is `L + g + bytes·G`.
    Alone {
        /// The fragment's size in bytes.
        bytes: u64,
        /// Time from the fragment's arrival to its departure, in seconds.
        seconds: f64,
    },
    /// The stage was never idle between departures: `seconds` is `g + bytes·G`.
    Backlogged {
        /// Size in bytes (the mean of several).
        bytes: u64,
        /// Departure to departure (the mean of several).
        seconds: f64,
    },
    /// The stage was empty, and others that came later left sooner or together with it: `seconds`
    /// says how long fragments may take, and nothing of what they cost in the mean.
    Met {
        /// The fragment's size in bytes.
        bytes: u64,
        /// Time from the fragment's arrival to its departure, in seconds.
        seconds: f64,
    },
}

impl Sample {
    /// The size in bytes and the time in seconds, of whatever kind it is.
    #[must_use]
    pub const fn measured(self) -> (u64, f64) {
        let (Self::Alone { bytes, seconds }
        | Self::Backlogged { bytes, seconds }
        | Self::Met { bytes, seconds }) = self;
        (bytes, seconds)
    }
}

/// A fragment inside the stage, from [`Meter::arrive`] to [`Meter::depart`] or [`Meter::abandon`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a fragment that never departs keeps the stage from being seen empty"]
pub struct Ticket {
    arrived: Nanos,
    /// The fragment's number, if the stage was empty when it arrived.
    alone_as: Option<u64>,
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
/// use piped_core::units::Nanos;
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
    last_departure: Option<Nanos>,
    /// Since when the stage is not empty, until something leaves it.
    filled: Option<Nanos>,
    /// The last departure of a fragment that says nothing about the fragment behind it.
    silent: Option<Nanos>,
    /// The first to leave a stage that was empty, if it was not alone there, until the next
    /// departure tells whether it was told of with others.
    first: Option<First>,
    gaps: Gaps,
}

/// The value of [`Meter::first`].
#[derive(Debug, Clone, Copy)]
struct First {
    bytes: u64,
    /// Time from the first arrival to this departure.
    waited: Nanos,
    /// Whether it was the first to arrive, too.
    in_turn: bool,
    /// Whether it is known to have taken no longer than one alone.
    in_time: bool,
    /// Fragments that it left behind.
    behind: u32,
    /// What it waited beyond the time of one alone, if that is known and much.
    excess: Nanos,
}

/// Gaps of a backlogged stage that are no sample yet, of fragments of about one size.
#[derive(Debug, Clone, Copy, Default)]
struct Gaps {
    count: u32,
    /// Number of departures that make a sample.
    goal: u32,
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
        if self.inside == 0 {
            self.filled = Some(now);
        }
        self.inside = self.inside.saturating_add(1);
        Ticket { arrived: now, alone_as }
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
        let inside = self.inside;
        self.inside = self.inside.saturating_sub(1);
        let sojourn = now.since(ticket.arrived);
        let last = self.last_departure.replace(now);
        let filled = self.filled.take();
        if ticket.alone_as == Some(self.arrivals) {
            self.silent = Some(now);
            return Some(Sample::Alone { bytes, seconds: sojourn.seconds() });
        }
        if let Some(filled) = filled {
            let waited = now.since(filled);
            let excess = alone_seconds.map_or(Nanos::ZERO, |alone| beyond(waited, alone));
            let in_turn = ticket.alone_as.is_some();
            let in_time = alone_seconds.is_some() && excess == Nanos::ZERO;
            let behind = self.inside;
            self.first = Some(First { bytes, waited, in_turn, in_time, behind, excess });
            if excess == Nanos::ZERO {
                self.silent = Some(now);
            }
            return None;
        }
        let last = last?;
        let alone = self.first.take().and_then(|first| {
            if now.since(last).0 * TOLD_WITH >= first.waited.0 {
                let seconds = first.waited.seconds();
                return first.in_turn.then_some(Sample::Alone { bytes: first.bytes, seconds });
            }
            self.gaps.wait(first);
            // Only late ones would count otherwise.
            let counts = first.in_turn && first.in_time;
            counts.then_some(Sample::Met { bytes: first.bytes, seconds: first.waited.seconds() })
        });
        if ticket.arrived > last {
            self.silent = Some(now);
            return alone;
        }
        // It met no other but those that left sooner, and was not told of with the last of them.
        if ticket.alone_as.is_some() && now.since(last).0 * TOLD_WITH >= sojourn.0 {
            self.silent = Some(now);
            return alone.or(Some(Sample::Met { bytes, seconds: sojourn.seconds() }));
        }
        if alone_seconds.is_some_and(|alone| beyond(sojourn, alone) == Nanos::ZERO) {
            self.silent = Some(now);
            return alone;
        }
        // Seen together with one that says nothing of service: no time passed to be shared out.
        let together = BATCH_GAP.max(Nanos(sojourn.0 / TOLD_WITH));
        if self.silent.is_some_and(|silent| now.since(silent) <= together) {
            return alone;
        }
        self.gaps.add(bytes, now.since(last), inside).or(alone)
    }

    /// A fragment has ended in another way (error, cancel): no sample, and none from its
    /// neighbours.
    pub fn abandon(&mut self, ticket: Ticket, now: Nanos) {
        let _ = ticket;
        self.inside = self.inside.saturating_sub(1);
        (self.first, self.filled) = (None, None);
        self.gaps = Gaps::default();
        self.last_departure = Some(now);
    }
}

/// How much longer a sojourn is than that of one alone; nothing if it is not much longer.
fn beyond(sojourn: Nanos, alone_seconds: f64) -> Nanos {
    let seconds = sojourn.seconds();
    if seconds < WAITED * alone_seconds {
        return Nanos::ZERO;
    }
    Nanos::from_seconds(seconds - alone_seconds)
}

impl Gaps {
    /// Within an octave the cost is straight enough for the mean of sizes to cost the mean.
    fn keep_to(&mut self, bytes: u64) {
        let mean = self.bytes.checked_div(u64::from(self.count)).unwrap_or(bytes);
        if bytes > mean.saturating_mul(2) || bytes < mean / 2 {
            *self = Self::default();
        }
    }

    /// The gaps to come are of fragments that were served while the first one waited.
    fn wait(&mut self, first: First) {
        self.keep_to(first.bytes);
        if first.excess > Nanos::ZERO && self.count == 0 {
            self.goal = first.behind;
        }
        self.time = self.time + first.excess;
    }

    /// A gap with so many fragments `inside` at its end.
    fn add(&mut self, bytes: u64, gap: Nanos, inside: u32) -> Option<Sample> {
        self.keep_to(bytes);
        if self.goal == 0 {
            self.goal = inside.max(GAPS_PER_SAMPLE);
        }
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        self.time = self.time + gap;
        if self.count < self.goal.min(GAPS_PER_SAMPLE_MAX) {
            return None;
        }
        let Self { count, bytes, time, .. } = core::mem::take(self);
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
    fn a_cluster_larger_than_the_least_sample_shows_its_mean() {
        // 32 at a time, 1 us apart, every 512 us: 16 us a fragment, and nothing else is ever said.
        let mut meter = Meter::new();
        let mut tickets: std::collections::VecDeque<Ticket> =
            (0..32).map(|_| meter.arrive(at(0))).collect();
        let mut samples = Vec::new();
        for round in 0..40 {
            for place in 0..32 {
                let now = at(512 * (round + 1) + place);
                let ticket = tickets.pop_front().expect("as many as arrived");
                samples.extend(meter.depart(ticket, 100, now, Some(90e-6)));
                tickets.push_back(meter.arrive(now));
            }
        }
        assert!(samples.len() > 35, "{samples:?}");
        for sample in &samples {
            let Sample::Backlogged { seconds, .. } = sample else { panic!("{sample:?}") };
            // The first has one gap less, and what it waited less than one alone.
            assert!((seconds - 16e-6).abs() < 3.5e-6, "{seconds}");
        }
    }

    #[test]
    fn bursts_that_end_at_once_show_what_they_took_beyond_one_alone() {
        // 16 at once take 90 + 15 * 20 us, all told of at the end, in any order.
        let mut meter = Meter::new();
        let mut samples = Vec::new();
        for burst in 0..10 {
            let mut tickets = [0; 16].map(|_| meter.arrive(at(1000 * burst)));
            if burst % 2 == 1 {
                tickets.reverse();
            }
            for ticket in tickets {
                samples.extend(meter.depart(ticket, 100, at(1000 * burst + 390), Some(90e-6)));
            }
        }
        assert_eq!(samples, [backlogged(20).expect("one"); 10]);
    }

    #[test]
    fn a_gap_that_may_hold_idle_time_takes_its_cluster_with_it() {
        // Four at a time take as long as one alone: depth hides in the latency, nobody waits.
        let mut meter = Meter::new();
        let mut tickets: std::collections::VecDeque<Ticket> =
            (0..4).map(|_| meter.arrive(at(0))).collect();
        for round in 0..40 {
            for place in 0..4 {
                // The last of a cluster looks as if it had waited.
                let now = at(100 * (round + 1) + 3 * place);
                let ticket = tickets.pop_front().expect("as many as arrived");
                let alone = if place == 3 { 70e-6 } else { 90e-6 };
                // The first one met an empty stage, and took no longer than one alone.
                let first = (round, place) == (0, 1);
                let met = first.then_some(Sample::Met { bytes: 100, seconds: 100e-6 });
                assert_eq!(meter.depart(ticket, 100, now, Some(alone)), met);
                tickets.push_back(meter.arrive(now));
            }
        }
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
    fn overtaken_fragments_say_nothing_of_costs_and_failed_ones_nothing() {
        let mut meter = Meter::new();
        let (slow, fast) = (meter.arrive(at(0)), meter.arrive(at(1)));
        assert_eq!(meter.depart(fast, 100, at(50), None), None);
        let overtaken = Sample::Met { bytes: 100, seconds: at(90).seconds() };
        assert_eq!(meter.depart(slow, 100, at(90), None), Some(overtaken));
        let failed = meter.arrive(at(100));
        let behind = meter.arrive(at(100));
        meter.abandon(failed, at(120));
        assert_eq!(meter.depart(behind, 100, at(150), None), None);
        assert_eq!(meter.inside(), 0);
    }

    /// Were only those counted that are late, all would seem to be.
    #[test]
    fn one_that_left_with_others_counts_if_it_was_in_time() {
        let left = |first: u64, next: u64, alone: Option<f64>| {
            let mut meter = Meter::new();
            let (one, other) = (meter.arrive(at(0)), meter.arrive(at(0)));
            assert_eq!(meter.depart(one, 100, at(first), alone), None);
            meter.depart(other, 100, at(next), alone)
        };
        let met = Some(Sample::Met { bytes: 100, seconds: at(90).seconds() });
        assert_eq!(left(90, 100, Some(87e-6)), met);
        assert_eq!(left(90, 110, Some(87e-6)), alone(90), "that is a cost");
        // How long the device waited to tell of them is not known.
        assert!(matches!(left(200, 210, Some(87e-6)), Some(Sample::Backlogged { .. })));
        assert_eq!(left(90, 100, None), None);
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
        let mut samples = Vec::new();
        for (ticket, late) in tickets.into_iter().zip([0, 0, 1].into_iter().cycle()) {
            samples.extend(meter.depart(ticket, 100, at(391 + late), Some(90e-6)));
        }
        let [Sample::Backlogged { seconds, .. }] = samples[..] else { panic!("{samples:?}") };
        assert!((seconds - 20e-6).abs() < 1e-6, "{seconds}");
        let next = meter.arrive(at(500));
        assert!(matches!(meter.depart(next, 100, at(590), None), Some(Sample::Alone { .. })));
    }
}
