//! What one party has in execution, a client or a peer, and what of it waits for a limit.
//!
//! A request beyond a limit waits in the order in which it came, behind those of its own party
//! only; its deadline runs. One that is larger than a limit is done alone.

use std::collections::VecDeque;

use piped_report::shard::{Gauge, PartyUse};

use super::rate::Throttle;
use super::slab::Key;

/// How a request stands with the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Admission {
    /// The request is part of another one, or was answered already, and counts nowhere.
    #[default]
    Free,
    /// So many bytes wait.
    Waits(u64),
    /// So many bytes are in execution.
    Runs(u64),
}

/// Requests in execution and those that wait, of one party.
#[derive(Debug)]
pub(super) struct Account<K> {
    requests: Gauge,
    in_flight: Gauge,
    waiting: VecDeque<(Key<K>, u64)>,
    /// What it moves in a second.
    pub(super) throttle: Throttle,
}

impl<K> Default for Account<K> {
    fn default() -> Self {
        let (requests, in_flight) = Default::default();
        let (waiting, throttle) = Default::default();
        Self { requests, in_flight, waiting, throttle }
    }
}

impl<K> Account<K> {
    /// Whether a request of so many bytes may run now.
    pub(super) fn has_room(&self, bytes: u64, requests_max: u32, in_flight_max: u64) -> bool {
        let fits = self.in_flight.now.saturating_add(bytes) <= in_flight_max;
        self.requests.now < u64::from(requests_max) && (fits || self.in_flight.now == 0)
    }

    /// A request of so many bytes comes, and waits behind the others.
    pub(super) fn wait(&mut self, key: Key<K>, bytes: u64) {
        self.waiting.push_back((key, bytes));
    }

    /// The request that is the first of those that wait, and its bytes.
    pub(super) fn first(&self) -> Option<(Key<K>, u64)> {
        self.waiting.front().copied()
    }

    /// How many requests wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The first of those that wait runs from now on.
    pub(super) fn start_first(&mut self) -> Option<(Key<K>, u64)> {
        let first = self.waiting.pop_front()?;
        self.enter(first.1);
        Some(first)
    }

    /// A request of so many bytes runs from now on.
    pub(super) fn enter(&mut self, bytes: u64) {
        self.requests.add(1);
        self.in_flight.add(bytes);
    }

    /// A request that stood so with the limits is over.
    pub(super) fn leave(&mut self, key: Key<K>, admission: Admission) {
        match admission {
            Admission::Free => {}
            Admission::Waits(_) => self.waiting.retain(|&(other, _)| other != key),
            Admission::Runs(bytes) => {
                self.requests.sub(1);
                self.in_flight.sub(bytes);
            }
        }
    }

    /// Requests in execution, and their bytes.
    pub(super) fn in_use(&self) -> (Gauge, Gauge) {
        (self.requests, self.in_flight)
    }

    /// What a party has of what is limited, as far as it is counted here.
    pub(super) fn report(&self, name: String) -> PartyUse {
        PartyUse {
            name,
            early_arrival: Gauge::default(),
            staging: Gauge::default(),
            in_flight: self.in_flight,
            rate: self.throttle.shown(),
            requests: self.requests,
            waiting: self.waiting.len() as u32,
            handles: 0,
        }
    }
}
