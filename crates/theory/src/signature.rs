//! The LogGP signature of a network: what bursts of messages show, forward and backward.
//!
//! A processor issues bursts of `M` messages with a computation of `D` between them; the clock
//! stops when the last one is issued, whatever is still on its way (Martin et al., section 2.3;
//! docs/theory.md §13). Every message is acknowledged, and taking an acknowledgement costs the
//! receive overhead. A burst of one costs the send overhead; a long one costs in the steady state,
//! for each message,
//!
//! ```text
//! max(g + x·G, o_s + o_r + D, (o_s + L + o_r) / w)
//! ```
//!
//! whichever is the slowest: the network, the processor, or the window of `w` messages that may be
//! outstanding. So `g` shows at `D = 0` only if it is the largest, and raising `o` or, with a fixed
//! window, `L` raises what looks like `g` (table 2.2 of the thesis: `L` = 105.5 us at `w` = 4 reads
//! as a gap of 27.7).
//!
//! What is modelled: the network takes a message when the one before has gone in, `g + x·G` after
//! its predecessor; the acknowledgement is there `L` later, and holds its place in the window until
//! it is taken. The processor looks once before each message, and for as long as it has to wait.
//!
//! Read back from its bursts ([`piped_model::estimate::loggp`]), a network is what it was:
//!
//! ```
//! use piped_model::estimate::loggp::{Burst, Gap, ReadOptions, read};
//! use piped_theory::signature::Network;
//! let network = Network {
//!     latency: 4.7e-6, send: 1.8e-6, receive: 4e-6, gap: 12.8e-6, per_byte: 0.0, window: None,
//! };
//! let mut bursts = Vec::new();
//! for delay in [0.0, 10e-6, 20e-6] {
//!     for (messages, seconds) in (1..=200).zip(network.bursts(0, delay)) {
//!         bursts.push(Burst { messages, delay, bytes: 0, seconds });
//!     }
//! }
//! let found = read(&bursts, &[21e-6], &ReadOptions::default())?;
//! let near = |figure: f64, truth: f64| (figure / truth - 1.0).abs() < 1e-3;
//! assert!(near(found.send.unwrap().value, 1.8e-6) && near(found.receive.unwrap().value, 4e-6));
//! assert!(near(found.latency.unwrap().value, 4.7e-6));
//! assert!(matches!(found.gap, Gap::Yes { gap } if near(gap.value, 12.8e-6)));
//! # Ok::<(), piped_model::estimate::loggp::ReadFault>(())
//! ```

use core::fmt;
use core::num::NonZeroU32;
use std::collections::VecDeque;

use piped_model::stage::StageFault;
use serde::Serialize;

/// The LogGP parameters of a network, in seconds and seconds per byte; all finite and not negative.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Network {
    /// `L`: from the network's taking a message to its being there.
    pub latency: f64,
    /// `o_s`: what the processor does to send a message.
    pub send: f64,
    /// `o_r`: what the processor does to receive one.
    pub receive: f64,
    /// `g`: the least time between two short messages in the network.
    pub gap: f64,
    /// `G`: what each byte adds to the gap.
    pub per_byte: f64,
    /// `w`: the most messages outstanding.
    pub window: Option<NonZeroU32>,
}

/// What limits a long burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The network: `g + x·G`.
    Gap,
    /// The processor: `o_s + o_r + D`.
    Overhead,
    /// The window: `(o_s + L + o_r) / w`.
    Window,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Gap => "gap",
            Self::Overhead => "overhead",
            Self::Window => "window",
        })
    }
}

impl Network {
    /// The network itself, if its parameters are costs.
    ///
    /// # Errors
    /// If a parameter is negative, infinite or not a number.
    pub fn checked(self) -> Result<Self, StageFault> {
        let parameters = [
            ("latency (L)", self.latency),
            ("send overhead (o_s)", self.send),
            ("receive overhead (o_r)", self.receive),
            ("gap (g)", self.gap),
            ("inverse bandwidth (G)", self.per_byte),
        ];
        let bad = parameters.into_iter().find(|it| !(it.1.is_finite() && it.1 >= 0.0));
        bad.map_or(Ok(self), |(parameter, value)| Err(StageFault { parameter, value }))
    }

    /// There and back without load: `2 (o_s + L + o_r)`, in seconds.
    #[must_use]
    pub fn round_trip(&self) -> f64 {
        2.0 * (self.send + self.latency + self.receive)
    }

    /// What each message of a long burst costs, in seconds, and what makes it: the formula of the
    /// module.
    ///
    /// ```
    /// use piped_theory::signature::{Limit, Network};
    /// // Figure 2.3 of the thesis, us: o_s = 1.8, o_r = 4, g = 12.8.
    /// let network = Network {
    ///     latency: 4.7e-6, send: 1.8e-6, receive: 4e-6, gap: 12.8e-6, per_byte: 0.0, window: None,
    /// };
    /// assert_eq!(network.steady(0, 0.0), (12.8e-6, Limit::Gap));
    /// let (interval, limit) = network.steady(0, 10e-6);
    /// assert!((interval - 15.8e-6).abs() < 1e-12 && limit == Limit::Overhead);
    /// assert!((network.round_trip() - 21e-6).abs() < 1e-12);
    /// ```
    #[must_use]
    pub fn steady(&self, bytes: u64, delay: f64) -> (f64, Limit) {
        let gap = (self.gap + bytes as f64 * self.per_byte, Limit::Gap);
        let overhead = (self.send + self.receive + delay, Limit::Overhead);
        let window = self.window.map(|window| {
            ((self.send + self.latency + self.receive) / f64::from(window.get()), Limit::Window)
        });
        let slower = if overhead.0 > gap.0 { overhead } else { gap };
        window.filter(|it| it.0 > slower.0).unwrap_or(slower)
    }

    /// The signature: how long a burst of 1 message takes until it is issued, of 2, and so on
    /// without end, in seconds. `delay` seconds are computed between messages of `bytes`.
    ///
    /// ```
    /// use piped_theory::signature::Network;
    /// let network = Network {
    ///     latency: 5e-6, send: 2e-6, receive: 4e-6, gap: 13e-6, per_byte: 0.0, window: None,
    /// };
    /// let bursts: Vec<f64> = network.bursts(0, 0.0).take(2000).collect();
    /// assert_eq!(bursts[0], 2e-6);
    /// assert!(((bursts[1999] - bursts[999]) / 1000.0 / 13e-6 - 1.0).abs() < 1e-3);
    /// ```
    #[must_use]
    pub fn bursts(&self, bytes: u64, delay: f64) -> Bursts {
        Bursts {
            network: *self,
            gap: self.gap + bytes as f64 * self.per_byte,
            delay,
            issued: 0,
            taken: 0,
            now: 0.0,
            gone_in: 0.0,
            arrivals: VecDeque::new(),
        }
    }
}

/// The iterator of [`Network::bursts`].
#[derive(Debug, Clone)]
pub struct Bursts {
    network: Network,
    gap: f64,
    delay: f64,
    /// Messages issued, and acknowledgements taken.
    issued: u64,
    taken: u64,
    /// The time of the processor.
    now: f64,
    /// The time at which the network took the last message.
    gone_in: f64,
    /// The times at which the acknowledgements arrive that are not taken yet.
    arrivals: VecDeque<f64>,
}

impl Bursts {
    /// Take the next acknowledgement, when it is there.
    fn take(&mut self) {
        if let Some(arrival) = self.arrivals.pop_front() {
            self.now = self.now.max(arrival) + self.network.receive;
            self.taken += 1;
        }
    }

    fn next_arrival(&self) -> f64 {
        self.arrivals.front().copied().unwrap_or(f64::INFINITY)
    }

    /// Waits until there is a place in the window and the network has taken the message before.
    fn wait(&mut self) {
        while let Some(window) = self.network.window
            && self.issued - self.taken >= u64::from(window.get())
        {
            self.take();
        }
        while self.now < self.gone_in {
            if self.next_arrival() < self.gone_in { self.take() } else { self.now = self.gone_in }
        }
    }
}

impl Iterator for Bursts {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        if self.issued > 0 {
            self.now += self.delay;
            if self.next_arrival() <= self.now {
                self.take();
            }
            self.wait();
        }
        self.now += self.network.send;
        let first = self.issued == 0;
        self.gone_in = if first { self.now } else { self.now.max(self.gone_in + self.gap) };
        self.arrivals.push_back(self.gone_in + self.network.latency);
        self.issued += 1;
        Some(self.now)
    }
}
