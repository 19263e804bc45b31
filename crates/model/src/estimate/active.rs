//! The black box and the signature on a path that is in use: what to send, when to stop, when to
//! let others go first.
//!
//! Sans-IO like [`Search`]: [`Procedure::poll`] says what to do next, [`Procedure::handle`] takes
//! what came out, time is an argument. Who does it (a client of a daemon, a simulated world) sends
//! packets and looks at a clock.
//!
//! What is sent is bounded four ways. Runs are short: no more packets than are expected to take
//! [`Options::stretch_seconds`]. Between two runs the path is left alone, so that it is used for no
//! more than [`Options::share`] of the time. And there is an end of the time, and one of the bytes.
//!
//! In order: the ring alone, whose time is in every latency seen from outside; packets one at a
//! time and as fast as possible, of the sizes that [`Search`] asks for; bursts with delays for the
//! LogGP parameters. The search may take two thirds of the time and of the bytes; a path that is
//! not known as well as was asked by then is known less well.

use core::num::NonZeroU32;
use std::collections::VecDeque;

use piped_core::units::Nanos;

use super::Sample;
use super::line::{Noise, Options as Fit};
use super::location;
use super::loggp::{self, Burst, ReadOptions};
use super::search::{Mode, Search, SearchOptions};

mod found;

pub use self::found::{End, Found};
use self::found::{depth, interval, median};

/// Bounds of a procedure, and what it looks for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// The smallest packet, in bytes, at least 1.
    pub smallest: u64,
    /// The largest packet, in bytes.
    pub largest: u64,
    /// All are multiples of this.
    pub unit: u64,
    /// The most packets outstanding.
    pub depth: NonZeroU32,
    /// Bytes outstanding, at most; a packet that is larger is sent alone.
    pub in_flight: u64,
    /// The part of the time that the path may be used, above 0 and at most 1.
    pub share: f64,
    /// How long a run may be expected to take, in seconds. A run has at least [`PACKETS_MIN`]
    /// packets.
    pub stretch_seconds: f64,
    /// The end, in seconds from the beginning.
    pub seconds_max: f64,
    /// Bytes sent, at most.
    pub bytes_max: u64,
    /// The precision, as in [`SearchOptions::precision`].
    pub precision: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            smallest: 4096,
            largest: 1 << 20,
            unit: 4096,
            depth: NonZeroU32::new(32).expect("is not zero"),
            in_flight: 8 << 20,
            share: 0.25,
            stretch_seconds: 0.02,
            seconds_max: 10.0,
            bytes_max: 1 << 30,
            precision: 0.05,
        }
    }
}

/// Packets of the shortest run.
pub const PACKETS_MIN: u32 = 8;
/// The most packets of a run: more are several runs.
const PACKETS_MAX: u32 = 96;
/// Packets one at a time in a run; the first one only wakes everybody up.
const ALONE_PACKETS: u32 = 5;
/// Runs of the ring alone, and requests in each.
const RING_RUNS: u32 = 4;
const RING_PACKETS: u32 = 65;
/// What the search may use of time and bytes.
const SEARCH_SHARE: f64 = 2.0 / 3.0;
/// Messages of the longest burst.
const BURST_MAX: u32 = 64;
/// Delays, in steady intervals without delay.
const DELAYS: [f64; 4] = [0.0, 1.5, 2.5, 4.0];
/// No shorter delay is asked for, in seconds: its computation looks at a clock.
const DELAY_MIN: f64 = 2e-6;
/// Bursts of each kind.
const BURST_ROUNDS: u32 = 9;
/// Lengths of bursts of a kind.
const LENGTHS: u32 = 8;
/// Large messages: parts of the largest packet.
const LARGE: [u64; 3] = [16, 8, 4];

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// Make the run, then call [`Procedure::handle`].
    Run(Run),
    /// Do nothing until then.
    Pause(Nanos),
    /// The procedure is over: see [`Procedure::found`].
    Over,
}

/// Packets to send in a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Run {
    /// Requests that do nothing, one at a time. Wanted are their latencies.
    Ring {
        /// The number of packets.
        count: u32,
    },
    /// One at a time. Wanted are their latencies.
    Alone {
        /// The size of each packet, in bytes.
        bytes: u64,
        /// The number of packets.
        count: u32,
    },
    /// As fast as possible. The caller reports the times of their ends, from any origin.
    Backlogged {
        /// The size of each packet, in bytes.
        bytes: u64,
        /// The number of packets.
        count: u32,
        /// The most packets outstanding at once.
        depth: u32,
    },
    /// Issued with a computation between two; before each, what has ended is looked for once, and
    /// while the window is full it is waited for. Wanted is one number: the time until the last one
    /// was issued.
    Burst {
        /// The size of each packet, in bytes.
        bytes: u64,
        /// The number of packets.
        messages: u32,
        /// What is computed between two, in seconds.
        delay: f64,
        /// The most packets outstanding at once.
        window: u32,
    },
}

impl Run {
    /// The bytes that the run sends.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match *self {
            Self::Ring { .. } => 0,
            Self::Alone { bytes, count } | Self::Backlogged { bytes, count, .. } => {
                bytes.saturating_mul(count.into())
            }
            Self::Burst { bytes, messages, .. } => bytes.saturating_mul(messages.into()),
        }
    }
}

/// The procedure of the module.
#[derive(Debug)]
pub struct Procedure {
    options: Options,
    search: Search,
    searching: bool,
    /// Runs that are certain, the next one first.
    planned: VecDeque<Run>,
    ring: Vec<f64>,
    /// Latencies of the smallest packet.
    trips: Vec<f64>,
    /// What a packet takes, as far as is known: the largest one seen, in bytes and seconds.
    pace: (u64, f64),
    bursts: Vec<Burst>,
    burst_window: u32,
    began: Nanos,
    rest: Nanos,
    bytes: u64,
    runs: u32,
    used_seconds: f64,
    end: Option<(End, Nanos)>,
}

impl Procedure {
    /// One that begins now.
    #[must_use]
    pub fn new(options: Options, now: Nanos) -> Self {
        let unit = options.unit.max(1);
        let smallest = options.smallest.max(1).next_multiple_of(unit);
        let largest = (options.largest / unit * unit).max(smallest);
        let options = Options {
            smallest,
            largest,
            unit,
            share: if options.share > 0.0 { options.share.min(1.0) } else { 0.01 },
            ..options
        };
        let search = Search::new(SearchOptions {
            smallest,
            largest,
            unit,
            precision: options.precision,
            ..SearchOptions::default()
        });
        let alone = |bytes| Run::Alone { bytes, count: ALONE_PACKETS };
        let ring = (0..RING_RUNS).map(|_| Run::Ring { count: RING_PACKETS });
        Self {
            options,
            search,
            searching: true,
            planned: ring.chain([alone(smallest), alone(largest)]).collect(),
            ring: Vec::new(),
            trips: Vec::new(),
            pace: (largest, 0.0),
            bursts: Vec::new(),
            burst_window: 1,
            began: now,
            rest: now,
            bytes: 0,
            runs: 0,
            used_seconds: 0.0,
            end: None,
        }
    }

    /// What to do next. The same run again until it was handled.
    pub fn poll(&mut self, now: Nanos) -> Step {
        if self.end.is_some() {
            return Step::Over;
        }
        if now.since(self.began).seconds() >= self.options.seconds_max {
            self.end = Some((End::Time, now));
            return Step::Over;
        }
        if now < self.rest {
            let end = self.began + Nanos::from_seconds(self.options.seconds_max);
            return Step::Pause(self.rest.min(end));
        }
        if self.planned.is_empty() {
            self.plan(now);
        }
        let Some(&run) = self.planned.front() else {
            self.end = Some((End::Complete, now));
            return Step::Over;
        };
        if self.bytes.saturating_add(run.bytes()) > self.options.bytes_max {
            // What is left of the bytes may do for a shorter run of the next kind.
            if !self.searching {
                self.end = Some((End::Bytes, now));
                return Step::Over;
            }
            self.planned.clear();
            self.begin_bursts();
            return self.poll(now);
        }
        Step::Run(run)
    }

    /// What the run that was polled last took: see [`Run`]. `began` is when it began; `now` is its
    /// end.
    pub fn handle(&mut self, seconds: &[f64], began: Nanos, now: Nanos) {
        let Some(run) = self.planned.pop_front() else { return };
        let used = now.since(began).seconds();
        self.bytes = self.bytes.saturating_add(run.bytes());
        self.runs += 1;
        // The ring is not the path.
        if !matches!(run, Run::Ring { .. }) {
            self.used_seconds += used;
            let share = self.options.share;
            self.rest = now + Nanos::from_seconds(used * (1.0 - share) / share);
        }
        match run {
            Run::Ring { .. } => self.ring.extend(median(seconds)),
            Run::Alone { bytes, .. } => {
                let warm = seconds.get(1..).unwrap_or(seconds);
                for &seconds in warm {
                    self.search.handle(Sample::Alone { bytes, seconds });
                }
                if bytes == self.options.smallest {
                    self.trips.extend(median(warm));
                }
                if let Some(seconds) = median(warm) {
                    self.learn_pace(bytes, seconds);
                }
            }
            Run::Backlogged { bytes, .. } => {
                if let Some(seconds) = interval(seconds) {
                    self.search.handle(Sample::Backlogged { bytes, seconds });
                }
            }
            Run::Burst { bytes, messages, delay, .. } => {
                let taken = seconds.first().copied().filter(|it| it.is_finite() && *it > 0.0);
                let burst = |seconds| Burst { messages: messages.into(), delay, bytes, seconds };
                self.bursts.extend(taken.map(burst));
            }
        }
    }

    /// Ends the procedure now.
    pub fn stop(&mut self, now: Nanos) {
        self.end.get_or_insert((End::Stopped, now));
    }

    /// The part of its time that is over, 0 to 1, and what it is at, for people that wait.
    #[must_use]
    pub fn progress(&self, now: Nanos) -> (f64, &'static str) {
        let part = now.since(self.began).seconds() / self.options.seconds_max;
        let at = match (self.ring.len() < RING_RUNS as usize, self.searching) {
            (true, _) => "the ring alone",
            (false, true) => "packets alone and back to back",
            (false, false) => "bursts",
        };
        (part.clamp(0.0, 1.0), at)
    }

    /// What was found by now.
    #[must_use]
    pub fn found(&self, now: Nanos) -> Found {
        let (end, at) = self.end.unwrap_or((End::Stopped, now));
        let window = NonZeroU32::new(self.burst_window / 2);
        // An acknowledgement is a whole round trip away, and the reader's window is of half ones.
        let options = ReadOptions {
            fit: Fit { robust: true, noise: Noise::Constant },
            window: Some(window.unwrap_or(NonZeroU32::MIN)),
            all_steady: true,
            ..ReadOptions::default()
        };
        let network =
            (!self.bursts.is_empty()).then(|| loggp::read(&self.bursts, &self.trips, &options));
        Found {
            ring: location::typical(&self.ring).map(|it| it.0),
            black_box: self.search.outcome(),
            precise: self.search.is_precise(),
            network: network.and_then(Result::ok),
            short_bytes: self.options.smallest,
            bytes: self.bytes,
            runs: self.runs,
            used_seconds: self.used_seconds,
            outstanding: (self.options.depth.get(), self.options.in_flight),
            seconds: at.since(self.began).seconds(),
            end,
        }
    }

    fn plan(&mut self, now: Nanos) {
        if !self.searching {
            return;
        }
        let spent = now.since(self.began).seconds() / self.options.seconds_max;
        let sent = self.bytes as f64 / self.options.bytes_max.max(1) as f64;
        let wanted = self.search.poll_wanted();
        let Some(wanted) = wanted.filter(|_| spent.max(sent) < SEARCH_SHARE) else {
            return self.begin_bursts();
        };
        let bytes = wanted.bytes;
        self.planned.push_back(match wanted.mode {
            Mode::Alone => Run::Alone { bytes, count: self.count(bytes, ALONE_PACKETS).max(2) },
            Mode::Backlogged => {
                let depth = self.depth(bytes);
                Run::Backlogged { bytes, count: self.count(bytes, PACKETS_MAX), depth }
            }
        });
    }

    /// The number of packets that are expected to fit the stretch, at most `most`.
    fn count(&self, bytes: u64, most: u32) -> u32 {
        let fit = (self.options.stretch_seconds / self.expected(bytes).max(1e-9)) as u32;
        let within = (2 * self.options.in_flight / bytes.max(1)) as u32;
        fit.min(within).max(PACKETS_MIN).min(most)
    }

    fn depth(&self, bytes: u64) -> u32 {
        depth((self.options.depth.get(), self.options.in_flight), bytes)
    }

    /// What a packet takes at most, in seconds: alone, it takes longer than it occupies anything.
    fn expected(&self, bytes: u64) -> f64 {
        let (size, seconds) = self.pace;
        // Costs grow with the size, but not faster.
        let smallest = self.trips.first().copied().unwrap_or(seconds).min(seconds);
        let part = bytes as f64 / size.max(1) as f64;
        smallest + (seconds - smallest) * part.min(1.0)
    }

    fn learn_pace(&mut self, bytes: u64, seconds: f64) {
        if bytes >= self.pace.0 || self.pace.1 == 0.0 {
            self.pace = (bytes, seconds);
        }
    }

    /// The bursts, in rounds: what changes meanwhile changes all kinds alike.
    fn begin_bursts(&mut self) {
        self.searching = false;
        let short = self.options.smallest;
        let steady = self
            .search
            .outcome()
            .ok()
            .map(|it| it.bottleneck_at(short as f64).line.at(short as f64));
        let steady = steady.unwrap_or_else(|| self.expected(short)).max(DELAY_MIN);
        let longest = |interval: f64| {
            let fit = self.options.stretch_seconds / interval;
            (fit as u32).clamp(2 * PACKETS_MIN, BURST_MAX)
        };
        // Steady is what is left after the window is full: a small part of the shortest burst.
        let window = (longest(steady) / 4).min(self.options.depth.get());
        let mut kinds = vec![Run::Alone { bytes: short, count: ALONE_PACKETS }];
        for times in DELAYS {
            let delay = steady * times;
            let most = longest(steady + delay);
            // Those that the window lets through at once are not steady.
            let lengths = (1..=LENGTHS).map(|part| window + (most - window) * part / LENGTHS);
            for messages in [1].into_iter().chain(lengths) {
                kinds.push(Run::Burst { bytes: short, messages, delay, window });
            }
        }
        for part in LARGE {
            let bytes = self.options.largest / part / self.options.unit * self.options.unit;
            if bytes <= short {
                continue;
            }
            let most = longest(self.expected(bytes)).min(self.count(bytes, BURST_MAX));
            let window = window.min(self.depth(bytes)).min(most / 3).max(1);
            for part in 1..=LENGTHS / 2 {
                let messages = (window + (most - window) * part * 2 / LENGTHS).max(2);
                kinds.push(Run::Burst { bytes, messages, delay: 0.0, window });
            }
        }
        self.burst_window = window;
        self.planned = (0..BURST_ROUNDS).flat_map(|_| kinds.iter().copied()).collect();
    }
}
