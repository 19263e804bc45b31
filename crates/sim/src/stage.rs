//! A stage in virtual time: `L`, `g`, `G` and a window, served first come first served.

use std::collections::VecDeque;

use piped_core::units::Nanos;

/// What a fragment costs in a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// `L`: overlaps with other fragments.
    pub latency: Nanos,
    /// `g`: occupies the stage, per fragment.
    pub overhead: Nanos,
    /// `G`: occupies the stage, in nanoseconds per byte.
    pub nanos_per_byte: f64,
}

impl Cost {
    /// `g + xG`.
    #[must_use]
    pub fn occupancy(&self, bytes: u64) -> Nanos {
        self.overhead + self.transmission(bytes)
    }

    /// `xG`.
    #[must_use]
    pub fn transmission(&self, bytes: u64) -> Nanos {
        Nanos((bytes as f64 * self.nanos_per_byte).round() as u64)
    }
}

/// A fragment's times in a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visit {
    /// When the stage began to serve it.
    pub start: Nanos,
    /// When it left: start + g + xG + L.
    pub depart: Nanos,
}

/// The resource: serves one fragment at a time, holds at most `window` until they depart.
///
/// `start(i) = max(arrive(i), start(i-1) + occupancy(i-1), depart(i-window))`, THEORY §1.
#[derive(Debug, Clone)]
pub struct Server {
    window: Option<u32>,
    free_at: Nanos,
    empty_at: Nanos,
    /// The last `window` departures, oldest first.
    departures: VecDeque<Nanos>,
}

impl Server {
    /// An idle server.
    #[must_use]
    pub fn new(window: Option<u32>) -> Self {
        Self { window, free_at: Nanos::ZERO, empty_at: Nanos::ZERO, departures: VecDeque::new() }
    }

    /// A fragment arrives. Arrivals must come in the order of time.
    pub fn visit(&mut self, arrival: Nanos, bytes: u64, cost: &Cost) -> Visit {
        let mut start = arrival.max(self.free_at);
        if let Some(window) = self.window
            && self.departures.len() >= window.max(1) as usize
            && let Some(oldest) = self.departures.pop_front()
        {
            start = start.max(oldest);
        }
        self.free_at = start + cost.occupancy(bytes);
        let depart = self.free_at + cost.latency;
        self.empty_at = self.empty_at.max(depart);
        if self.window.is_some() {
            self.departures.push_back(depart);
        }
        Visit { start, depart }
    }

    /// When all who have arrived will have left.
    #[must_use]
    pub fn empty_at(&self) -> Nanos {
        self.empty_at
    }

    /// Serve nobody before `until`.
    pub fn block(&mut self, until: Nanos) {
        self.free_at = self.free_at.max(until);
    }
}
