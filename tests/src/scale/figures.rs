//! What a scene showed.

use std::collections::BTreeMap;

use piped_core::status::Status;
use piped_core::units::Nanos;
use serde::{Deserialize, Serialize};

/// What the nodes of a world cost while they rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// Bytes of the heap that the engines of all nodes have.
    pub engine: i64,
    /// Bytes of the heap that the control components of all nodes have.
    pub control: i64,
    /// Connections that are up, of the node that has the most, dialled and accepted.
    pub lanes: u32,
    /// Bytes of staging that connections have for themselves, of the node where they have the most.
    pub staging: u64,
}

/// Figures of one scene. Equal options and seeds give equal figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// How many nodes there were.
    pub nodes: usize,
    /// How many others each of them asked, at most.
    pub asked: usize,
    /// Time from the start of all daemons until all connections were up.
    pub up: Nanos,
    /// Time that was measured: of the work, or until all connections were up again.
    pub took: Nanos,
    /// What that would have taken at best, by the links and disks alone.
    pub best: Nanos,
    /// Requests that ended `Ok`, and those that did not.
    pub requests: [u64; 2],
    /// How those ended that did not end `Ok`.
    pub failures: BTreeMap<String, u64>,
    /// Requests that died with their own node.
    pub dropped: u64,
    /// Bytes that requests moved.
    pub bytes: u64,
    /// The longest time of a request that ended `Ok`.
    pub longest: Nanos,
    /// Bytes in a second of each node that had work, in the order of nodes.
    pub rates: Vec<f64>,
    /// Requests that ended in each [`Figures::BIN`] of a scene with a load that goes on.
    pub series: Vec<u32>,
    /// What the nodes cost at the end.
    pub costs: Costs,
    /// Events of the kernel, as a measure of the world's length.
    pub events: u64,
}

impl Figures {
    /// A part of time in which ends of requests are counted.
    pub const BIN: Nanos = Nanos::from_millis(250);

    /// A request has ended.
    pub(super) fn note(&mut self, status: Status, bytes: u64, took: Nanos) {
        if status == Status::Ok {
            self.requests[0] += 1;
            self.bytes += bytes;
            self.longest = self.longest.max(took);
        } else {
            self.requests[1] += 1;
            *self.failures.entry(format!("{status:?}")).or_default() += 1;
        }
    }

    /// Jain's index of fairness: 1 if all nodes had the same rate, `1 / n` if one had all.
    #[must_use]
    pub fn jain(&self) -> f64 {
        let sum: f64 = self.rates.iter().sum();
        let squares: f64 = self.rates.iter().map(|rate| rate * rate).sum();
        if squares > 0.0 { sum * sum / (self.rates.len() as f64 * squares) } else { 1.0 }
    }

    /// The rate of the slowest node over the mean of all.
    #[must_use]
    pub fn slowest(&self) -> f64 {
        let sum: f64 = self.rates.iter().sum();
        let least = self.rates.iter().copied().fold(f64::INFINITY, f64::min);
        if sum > 0.0 { least * self.rates.len() as f64 / sum } else { 1.0 }
    }

    /// What was measured over what is possible.
    #[must_use]
    pub fn over_best(&self) -> f64 {
        self.took.seconds() / self.best.seconds()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_one_for_equal_rates_and_falls_with_a_node_that_starves() {
        let of = |rates: &[f64]| Figures { rates: rates.to_vec(), ..Figures::default() };
        let (even, starved) = (of(&[3.0; 4]), of(&[4.0, 4.0, 4.0, 0.0]));
        assert!((even.jain() - 1.0).abs() < 1e-12 && (even.slowest() - 1.0).abs() < 1e-12);
        assert!((starved.jain() - 0.75).abs() < 1e-12, "{}", starved.jain());
        assert!(starved.slowest().abs() < 1e-12);
        assert!((of(&[]).jain() - 1.0).abs() < 1e-12, "nobody was treated worse");
    }
}
