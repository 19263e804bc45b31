//! Message strip mining: a remote array fetched in strips, each computed on while the next ones are
//! on their way.
//!
//! `N` bytes are cut into strips `S_1..S_m`. Issuing a get costs `o` of the processor, a strip
//! occupies the network for `G·S` and is there `L` later, computing on it takes `K·S`. The program
//! is that of the paper's figures 4 and 5 ("Message Strip-Mining Heuristics for High Speed
//! Networks", section 2), unrolled `U` times:
//!
//! ```text
//! get S_1;  then in each round: issue the next strip; for the one before: sync, compute   (U = 1)
//! get S_1;  then in each round: issue the next U strips; for each of the U before: sync, compute
//! ```
//!
//! The *cost* of a program is its total time less the computation, `total - K·N` (equation 2:
//! issues and waits). One get of everything costs `o + L + G·N`.
//!
//! Issuing `U` gets together is figure 5 ([`Unrolling::Grouped`]). Its strips are on their way in
//! groups, and each group waits for the latency of its own: more of them share one latency, but it
//! is never hidden. One get for each strip that is done, `U` ahead of it ([`Unrolling::Rolling`]),
//! hides it; for `U = 1` the two are one.
//!
//! # Two networks
//!
//! The paper's equations (1)-(2) let each strip have the network's whole bandwidth as soon as it is
//! issued, whatever else is on its way ([`Network::Literal`]). With `K < G` the total then falls
//! below the wire time `G·N`, which no network can do; [`StripModel::beats_the_wire`] tells.
//! [`Network::Serial`] sends one strip after the other, and is the one to plan with; the literal
//! one is there to compare with the paper.
//!
//! # What is optimal
//!
//! With `U = 1`, `L = 0` the best sizes let the processor wait once, for the first strip, and keep
//! the network busy from then on ([`StripModel::optimal`]):
//!
//! ```text
//! serial    S_{i+1} = (o + K·S_i)/G                              last  S_m = K·S_{m-1}/G
//! literal   S_2 = (1 + K/G)·S_1, then S_{i+1} = (o + K·S_i)/G    the last step without o
//! ```
//!
//! For `K < G` the serial sizes converge to `S* = o/(G-K)` ([`StripModel::rule_strip`]) and the
//! cost tends to `o + (G-K)·N + K²·o/(G(G-K))` ([`StripModel::limit_seconds`]). Strips of `S*`
//! throughout, and of `sqrt(N·o/G)` where `K >= G`, are the rule to remember ([`Policy::Rule`]).
//!
//! Without latency unrolling brings next to nothing (a few issues fall into the wait for the first
//! strip); with it, rolling, it pays until about `U = 1 + L / max(G·S, o + K·S)`
//! ([`StripModel::unroll_depth`]). It needs memory for `U + 1` strips
//! ([`StripModel::memory_bytes`]).
//!
//! Units: bytes, seconds, seconds per byte. Sizes are real numbers; [`crate::rounding::sizes`]
//! makes whole bytes of them, and [`StripModel::cost_seconds`] says what those cost.

use core::fmt;
use core::num::NonZeroU32;

mod policy;
mod simulate;

pub use self::policy::{Policy, STRIPS_MAX, Strips};

/// How strips share the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// One after the other, in the order of their gets.
    Serial,
    /// Each as if it were alone: equations (1)-(2) as printed.
    Literal,
}

/// Which gets are issued when there are `U` of them ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unrolling {
    /// One before each sync: `U` strips behind the one that is waited for are always on their way.
    Rolling,
    /// `U` together before each `U` syncs: the paper's figure 5.
    Grouped,
}

/// A loop over remote data, and the network it is fetched by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StripModel {
    /// `o`: what a get costs the processor, in seconds, positive: else ever smaller strips cost
    /// ever less.
    pub issue: f64,
    /// `G`: the network's inverse bandwidth, in seconds per byte, positive.
    pub per_byte: f64,
    /// `K`: the computation, in seconds per byte.
    pub compute: f64,
    /// `L`: from a strip's last byte leaving the network until it is there, in seconds. 0 in the
    /// paper.
    pub latency: f64,
    /// `U`: how many gets are issued ahead of the strip that is waited for.
    pub unroll: NonZeroU32,
    /// The order in which the gets are issued.
    pub unrolling: Unrolling,
    /// How strips share the network.
    pub network: Network,
}

/// A parameter of a [`StripModel`] that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StripFault {
    /// The name of the parameter.
    pub parameter: &'static str,
    /// The value it was given.
    pub value: f64,
}

impl fmt::Display for StripFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is {}: give a finite number that is not negative, o and G above 0",
            self.parameter, self.value
        )
    }
}

impl std::error::Error for StripFault {}

impl StripModel {
    /// `o` in seconds, `G` and `K` in seconds per byte, on a serial network without latency, not
    /// unrolled.
    ///
    /// # Errors
    /// If one is negative or not finite, or `o` or `G` is 0.
    ///
    /// ```
    /// use piped_model::strip::StripModel;
    /// let model = StripModel::new(5e-6, 6.089e-9, 4.06e-9)?;
    /// assert!((model.rule_strip(65536.0) - 5000.0 / 2.029).abs() < 1e-6);
    /// assert!(StripModel::new(5e-6, 0.0, 4.06e-9).is_err());
    /// # Ok::<(), piped_model::strip::StripFault>(())
    /// ```
    pub fn new(issue: f64, per_byte: f64, compute: f64) -> Result<Self, StripFault> {
        let (unroll, unrolling) = (NonZeroU32::MIN, Unrolling::Rolling);
        let (latency, network) = (0.0, Network::Serial);
        Self { issue, per_byte, compute, latency, unroll, unrolling, network }.checked()
    }

    /// The model itself, if its parameters make sense.
    ///
    /// # Errors
    /// As [`StripModel::new`].
    pub fn checked(self) -> Result<Self, StripFault> {
        let parameters = [
            ("the issue cost (o)", self.issue),
            ("the inverse bandwidth (G)", self.per_byte),
            ("the computation (K)", self.compute),
            ("the latency (L)", self.latency),
        ];
        for (parameter, value) in parameters {
            let positive = parameter.ends_with("(o)") || parameter.ends_with("(G)");
            if !value.is_finite() || value < 0.0 || (positive && value == 0.0) {
                return Err(StripFault { parameter, value });
            }
        }
        Ok(self)
    }

    /// What fetching these strips costs beside the computation, in seconds: total time less `K·N`
    /// (equation 2; the recurrences of the serial network, or equation 1). 0 for no strips.
    ///
    /// ```
    /// use piped_model::strip::StripModel;
    /// let model = StripModel::new(5e-6, 6e-9, 4e-9)?;
    /// // Two strips: the second get, the wait for the first strip (24 us), then for the second.
    /// let cost = model.cost_seconds(&[4000.0, 2000.0]);
    /// assert!((cost - (5.0 + 24.0) * 1e-6).abs() < 1e-12);
    /// assert!((model.cost_seconds(&[6000.0]) - model.vectorised_seconds(6000.0)).abs() < 1e-12);
    /// # Ok::<(), piped_model::strip::StripFault>(())
    /// ```
    #[must_use]
    pub fn cost_seconds(&self, sizes: &[f64]) -> f64 {
        let unroll = self.unroll.get() as usize;
        // How far the strip at each place of the current rounds has come, and the network's and
        // processor's clocks.
        let mut there = vec![0.0; (unroll + 1).min(sizes.len())];
        let places = there.len().max(1);
        let (mut processor, mut computed, mut link) = (0.0_f64, 0.0, 0.0_f64);
        let mut issued = 0;
        let mut issue = |until: usize, processor: &mut f64, there: &mut [f64]| {
            for next in issued..until.min(sizes.len()) {
                *processor += self.issue;
                let start = match self.network {
                    Network::Serial => processor.max(link),
                    Network::Literal => *processor,
                };
                link = start + self.per_byte * sizes[next];
                there[next % places] = link + self.latency;
            }
            issued = issued.max(until);
        };
        issue(1, &mut processor, &mut there);
        for (strip, size) in sizes.iter().enumerate() {
            if self.unrolling == Unrolling::Rolling || strip % unroll == 0 {
                issue(strip + unroll + 1, &mut processor, &mut there);
            }
            processor = processor.max(there[strip % places]) + self.compute * size;
            computed += self.compute * size;
        }
        processor - computed
    }

    /// What one get of everything costs, in seconds: `o + L + G·N` (section 3, "with message
    /// vectorization").
    #[must_use]
    pub fn vectorised_seconds(&self, bytes: f64) -> f64 {
        self.issue + self.latency + self.wire_seconds(bytes)
    }

    /// How long the bytes occupy the network, in seconds: `G·N`, which no program can be faster
    /// than.
    #[must_use]
    pub fn wire_seconds(&self, bytes: f64) -> f64 {
        self.per_byte * bytes
    }

    /// Whether a program of this cost would be over before its bytes are through the network: what
    /// the literal equations promise where `K < G`, and no network can do. Total time,
    /// `cost + K·N`, against [`Self::wire_seconds`].
    #[must_use]
    pub fn beats_the_wire(&self, bytes: f64, cost_seconds: f64) -> bool {
        let wire = self.wire_seconds(bytes);
        cost_seconds + self.compute * bytes < wire * (1.0 - 1e-9)
    }

    /// The strip of the rule, in bytes: `S* = o/(G-K)` if `K < G`, otherwise `sqrt(N·o/G)`
    /// (docs/theory.md §14). As a fixed size it costs `(K/G)·S*/N` over the optimum at most, as a
    /// part of it, where `N` is several `S*`.
    #[must_use]
    pub fn rule_strip(&self, bytes: f64) -> f64 {
        let gap = self.per_byte - self.compute;
        if gap > 0.0 { self.issue / gap } else { (bytes * self.issue / self.per_byte).sqrt() }
    }

    /// What the optimal cost tends to as `N` grows, in seconds: `o + (G-K)·N + K²·o/(G(G-K))`. Only
    /// for `K < G`, on the serial network, without latency; nothing otherwise.
    #[must_use]
    pub fn limit_seconds(&self, bytes: f64) -> Option<f64> {
        let (g, k) = (self.per_byte, self.compute);
        let applies = k < g && self.latency == 0.0 && self.network == Network::Serial;
        applies.then(|| self.issue + (g - k) * bytes + k * k * self.issue / (g * (g - k)))
    }

    /// Up to which `U` unrolling pays with strips of this size: `1 + L / max(G·S, o + K·S)`, a real
    /// number.
    ///
    /// ```
    /// use piped_model::strip::StripModel;
    /// let model = StripModel { latency: 40e-6, ..StripModel::new(5e-6, 6e-9, 4e-9)? };
    /// // A strip every 15 us: 40 us of latency want 2.67 more of them on their way.
    /// assert!((model.unroll_depth(2500.0) - (1.0 + 40.0 / 15.0)).abs() < 1e-9);
    /// # Ok::<(), piped_model::strip::StripFault>(())
    /// ```
    #[must_use]
    pub fn unroll_depth(&self, strip_bytes: f64) -> f64 {
        let each = (self.per_byte * strip_bytes).max(self.issue + self.compute * strip_bytes);
        if self.latency > 0.0 { 1.0 + self.latency / each } else { 1.0 }
    }

    /// The memory that a program with this largest strip needs, in bytes: `(U+1)·S`, but never
    /// more than everything.
    #[must_use]
    pub fn memory_bytes(&self, largest_strip: f64, bytes: f64) -> f64 {
        (largest_strip * (f64::from(self.unroll.get()) + 1.0)).min(bytes)
    }
}
