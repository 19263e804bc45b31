//! A stage in virtual time: `L`, `g`, `G` and a window, served in the order of arrival.

use std::collections::VecDeque;

use piped_core::units::Nanos;

/// The cost of a fragment in a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// `L`: latency that overlaps with other fragments.
    pub latency: Nanos,
    /// `g`: time that each fragment occupies the stage for.
    pub overhead: Nanos,
    /// `G`: time that each byte occupies the stage for, in nanoseconds.
    pub nanos_per_byte: f64,
}

impl Cost {
    /// `g + xG`: how long `bytes` occupy the stage.
    #[must_use]
    pub fn occupancy(&self, bytes: u64) -> Nanos {
        self.overhead + self.transmission(bytes)
    }

    /// `xG`: the part of the occupancy that grows with `bytes`.
    #[must_use]
    pub fn transmission(&self, bytes: u64) -> Nanos {
        Nanos((bytes as f64 * self.nanos_per_byte).round() as u64)
    }
}

/// The times of a fragment in a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visit {
    /// When the stage began to serve the fragment.
    pub start: Nanos,
    /// When the fragment left: start + g + xG + L.
    pub depart: Nanos,
}

/// The resource of a stage: serves one fragment at a time, and holds at most `window` until they
/// depart.
///
/// `start(i) = max(arrive(i), start(i-1) + occupancy(i-1), depart(i-window))`, docs/theory.md §1.
#[derive(Debug, Clone)]
pub struct Server {
    window: Option<u32>,
    free_at: Nanos,
    empty_at: Nanos,
    /// The last `window` departures, oldest first.
    departures: VecDeque<Nanos>,
}

impl Server {
    /// A server that has nothing to do.
    #[must_use]
    pub fn new(window: Option<u32>) -> Self {
        Self { window, free_at: Nanos::ZERO, empty_at: Nanos::ZERO, departures: VecDeque::new() }
    }

    /// Serves a fragment. Arrivals must come in the order of time.
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

    /// When all fragments that have arrived will have left.
    #[must_use]
    pub fn empty_at(&self) -> Nanos {
        self.empty_at
    }

    /// Serves no fragment before `until`.
    pub fn block(&mut self, until: Nanos) {
        self.free_at = self.free_at.max(until);
    }
}
