//! Two cases: some bytes have left a stage by a time, or they have not.
//!
//! The times at a boundary are known as ranges. If the passes refute that the bytes up to some
//! position cross it in the first slice of their range, they cross it later, and the passes go on
//! with that. So with the last slice. This takes far longer than the passes alone.

use super::pass::Pass;
use super::ranges::{Ranges, Run};
use super::table::{SWEEPS, Table};

/// Positions at each boundary, and how often all are looked at.
const POSITIONS: usize = 32;
const ROUNDS: usize = 2;

/// The part of a range that is looked at, and how many are at a time. A small part is refuted more
/// often than a large one.
const SLICE: f64 = 1.0 / 16.0;
const SLICES: usize = 16;

/// Ranges below this part of the latency are left.
const NARROW: f64 = 1e-3;

/// Bisection ends where the bound is known to this part.
const TOLERANCE: f64 = 5e-4;

/// The whole path, looked at by cases.
#[derive(Debug)]
pub(super) struct Cases<'a> {
    table: &'a Table,
    pass: Pass,
}

impl<'a> Cases<'a> {
    pub(super) fn new(table: &'a Table) -> Self {
        Self { table, pass: Pass::default() }
    }

    /// A better bound of the whole path than `low`; not above `above`.
    pub(super) fn bound(&mut self, mut low: f64, above: f64) -> f64 {
        let mut high = above;
        while high - low > TOLERANCE * high {
            let middle = f64::midpoint(low, high);
            if self.refuted(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    fn refuted(&mut self, limit: f64) -> bool {
        let (cells, last) = (self.table.cells(), self.table.costs().len() - 1);
        let ranges = &mut Ranges::default();
        self.table.ranges(ranges, (0, last), cells, limit);
        if !self.swept(ranges, SWEEPS) {
            return true;
        }
        let mut places: Vec<usize> =
            (1..=POSITIONS).map(|place| cells * place / (POSITIONS + 1)).collect();
        places.retain(|&at| at > 0);
        places.dedup();
        (0..ROUNDS).any(|_| {
            (1..self.table.costs().len()).any(|boundary| {
                places.iter().any(|&at| {
                    self.narrow(ranges, boundary, at, false)
                        || self.narrow(ranges, boundary, at, true)
                })
            })
        })
    }

    fn swept(&mut self, ranges: &mut Ranges, sweeps: usize) -> bool {
        ranges.sweep(Run::free(self.table.costs()), &mut self.pass, sweeps)
    }

    /// Makes the range smaller in which so many cells cross a boundary, from below or from above.
    /// Whether none is left.
    fn narrow(&mut self, ranges: &mut Ranges, boundary: usize, at: usize, above: bool) -> bool {
        for _ in 0..SLICES {
            let (low, high) = ranges.range(boundary, at);
            if high - low < NARROW * ranges.limit() {
                return false;
            }
            let part = if above { 1.0 - SLICE } else { SLICE };
            let time = low + part * (high - low);
            let mut case = ranges.clone();
            suppose(&mut case, boundary, at, time, above);
            if self.swept(&mut case, SWEEPS) {
                return false;
            }
            suppose(ranges, boundary, at, time, !above);
            if !self.swept(ranges, 1) {
                return true;
            }
        }
        false
    }
}

/// So many cells cross a boundary after a time, or by then.
fn suppose(ranges: &mut Ranges, boundary: usize, at: usize, time: f64, after: bool) {
    if after {
        ranges.after(boundary, at, time);
    } else {
        ranges.by(boundary, at, time);
    }
}
