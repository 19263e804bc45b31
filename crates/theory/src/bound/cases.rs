//! Two cases: some bytes have left a stage by a time, or they have not.
//!
//! The times of neighbours are known as ranges. If the passes refute that the bytes up to a
//! position leave a stage in the first quarter of their range, they leave it later, and the passes
//! go on with that. So with the last quarter. This takes far longer than the passes alone.

use super::table::{SWEEPS, Table};

/// Positions in each stage, and how often all are looked at.
const POSITIONS: usize = 8;
const ROUNDS: usize = 2;

/// How often a range is made smaller at a time.
const QUARTERS: usize = 5;

/// Ranges below this part of the latency are left.
const NARROW: f64 = 1e-3;

/// Bisection ends where the bound is known to this part.
const TOLERANCE: f64 = 5e-4;

impl Table {
    /// A better bound of the whole path than `low`; not above `above`.
    pub(super) fn by_cases(&mut self, mut low: f64, above: f64) -> f64 {
        let mut high = above;
        while high - low > TOLERANCE * high {
            let middle = f64::midpoint(low, high);
            if self.refuted(middle) { low = middle } else { high = middle }
        }
        low
    }

    fn refuted(&mut self, limit: f64) -> bool {
        let last = self.costs.len() - 1;
        if !self.feasible(0, last, self.cells, limit, SWEEPS) {
            return true;
        }
        let places = (1..=POSITIONS).map(|at| self.cells * at / (POSITIONS + 1));
        let places: Vec<usize> = places.filter(|&at| at > 0).collect();
        for _ in 0..ROUNDS {
            for stage in 0..last {
                for &at in &places {
                    if self.narrow(stage, at, limit, false) || self.narrow(stage, at, limit, true) {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Makes the range smaller in which the cells up to a position leave a stage, from below or
    /// from above. Whether none is left.
    fn narrow(&mut self, stage: usize, at: usize, limit: f64, above: bool) -> bool {
        let last = self.costs.len() - 1;
        // The fragment behind has a cell of these.
        let begun = self.cells + 1 - at;
        for _ in 0..QUARTERS {
            let (low, high) = (self.early[stage][at], limit - self.late[stage + 1][begun]);
            if high - low < NARROW * limit {
                return false;
            }
            let part = if above { 0.75 } else { 0.25 };
            let time = low + part * (high - low);
            let kept = (self.early.clone(), self.late.clone());
            self.suppose(stage, (at, begun), limit, time, above);
            let possible = self.swept(0, last, limit, SWEEPS);
            (self.early, self.late) = kept;
            if possible {
                return false;
            }
            self.suppose(stage, (at, begun), limit, time, !above);
            if !self.swept(0, last, limit, 1) {
                return true;
            }
        }
        false
    }

    /// The cells leave the stage after a time, or by then.
    fn suppose(&mut self, stage: usize, at: (usize, usize), limit: f64, time: f64, after: bool) {
        let (known, least) = if after {
            (&mut self.early[stage][at.0..], time)
        } else {
            (&mut self.late[stage + 1][at.1..], limit - time)
        };
        known.iter_mut().for_each(|known| *known = known.max(least));
    }
}
