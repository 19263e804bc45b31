//! Lower bounds of every run of stages and many sizes, on a grid.

use super::cost::Cost;
use super::pass::{Neighbours, Pass};
use super::ranges::{Ranges, Run};

/// Sweeps over the stages for a run, and for the whole path.
pub(super) const SWEEPS: usize = 6;
const SWEEPS_WHOLE: usize = 6;

/// Bisection ends where a run's bound is known to this part.
const TOLERANCE: f64 = 4e-4;

/// The bound for the whole path.
const TOLERANCE_WHOLE: f64 = 5e-5;

/// Lower bounds of the latencies of runs of stages, for every number of cells.
#[derive(Debug)]
pub(super) struct Table {
    costs: Vec<Cost>,
    cells: usize,
    /// Values by first stage, last stage and cells.
    runs: Vec<Vec<f64>>,
    nothing: Vec<f64>,
}

impl Table {
    /// The table for all runs but the whole path; `stride`: from size to size that is looked at.
    pub(super) fn new(costs: Vec<Cost>, cells: usize, stride: usize) -> Self {
        let stages = costs.len();
        let (runs, nothing) = (vec![Vec::new(); stages * stages], vec![0.0; cells + 1]);
        let mut table = Self { costs, cells, runs, nothing };
        let mut search = Search::default();
        for length in 1..=stages {
            for first in 0..=stages - length {
                let values = table.run(&mut search, first, first + length - 1, stride);
                let place = table.place(first, first + length - 1);
                table.runs[place] = values;
            }
        }
        table
    }

    fn place(&self, first: usize, last: usize) -> usize {
        first * self.costs.len() + last
    }

    /// The stages of the path.
    pub(super) fn costs(&self) -> &[Cost] {
        &self.costs
    }

    /// Cells of the grid.
    pub(super) fn cells(&self) -> usize {
        self.cells
    }

    /// The bounds of a run by cells; a run of no stages takes no time.
    pub(super) fn of(&self, stages: core::ops::Range<usize>) -> &[f64] {
        if stages.is_empty() {
            &self.nothing
        } else {
            &self.runs[self.place(stages.start, stages.end - 1)]
        }
    }

    /// What the moves of cuts to the grid add to a path through these stages.
    ///
    /// All cuts move down, or all up: the first stage's begin and the last one's end stay.
    pub(super) fn loss(&self) -> f64 {
        let ends = self.costs[0].loss().max(self.costs[self.costs.len() - 1].loss());
        self.costs.iter().map(Cost::loss).sum::<f64>() - ends
    }

    /// The bounds of a run of stages; all shorter ones are known.
    fn run(&self, search: &mut Search, first: usize, last: usize, stride: usize) -> Vec<f64> {
        let none = &self.nothing[..];
        let mut values = none.to_vec();
        // With an end of the run as pivot one pass tells all sizes.
        let ends = [(last, first..last), (first, first + 1..last + 1)];
        for (pivot, others) in ends.into_iter().take(if first == last { 1 } else { 2 }) {
            let neighbours = Neighbours::new(self.of(others), none, f64::INFINITY);
            search.pass.run(&self.costs[pivot], neighbours);
            search.pass.raise(&mut values);
        }
        if last < first + 2 || last - first + 1 == self.costs.len() {
            return values;
        }
        // More bytes never take less time, nor does each cell add less than at one of the ends, or
        // more than in all stages.
        let run = &self.costs[first..=last];
        let slope = run[0].growth().0.max(run[run.len() - 1].growth().0).max(0.0);
        let steep: f64 = run.iter().map(|cost| cost.growth().1).sum();
        let (mut before, mut excess) = (0, 0.0);
        for size in 1..=self.cells {
            let looked_at =
                size % stride == 0 || size == self.cells || size < stride && size.is_power_of_two();
            if !looked_at {
                continue;
            }
            let known = values[size].max(values[before] + slope * (size - before) as f64);
            let found = search.least(self, (first, last), size, known, excess);
            excess = found - known;
            values[size] = found;
            for at in before + 1..size {
                let least = (values[before] + slope * (at - before) as f64)
                    .max(found - steep * (size - at) as f64);
                values[at] = values[at].max(least);
            }
            before = size;
        }
        values
    }

    /// The bound of the whole path, on the grid.
    pub(super) fn whole(&self) -> f64 {
        let last = self.costs.len() - 1;
        let low = self.of(0..last + 1)[self.cells];
        // One fragment everywhere is a plan.
        let high: f64 = self.costs.iter().filter_map(|cost| cost.at(self.cells)).sum();
        Search::default().between(self, low, high)
    }

    /// What is known of the times in a run before any pass over it.
    pub(super) fn ranges(
        &self,
        ranges: &mut Ranges,
        (first, last): (usize, usize),
        size: usize,
        limit: f64,
    ) {
        let stages = last - first + 1;
        let before = |boundary: usize| self.of(first..first + boundary);
        let behind = |boundary: usize| self.of(first + boundary..last + 1);
        ranges.begin(stages, size, limit, before, behind);
    }
}

/// The search for the least latency of which nothing is known against it.
#[derive(Debug, Default)]
struct Search {
    pass: Pass,
    /// What is known for the least limit that is not refuted.
    kept: Ranges,
    trial: Ranges,
}

impl Search {
    /// The bound for a run and a size, at least `known`, near that and `excess`.
    fn least(
        &mut self,
        table: &Table,
        run: (usize, usize),
        size: usize,
        known: f64,
        excess: f64,
    ) -> f64 {
        let step = (known * TOLERANCE).max(f64::MIN_POSITIVE);
        let guess = (known + excess - step / 2.0).max(known);
        let (mut low, mut high, mut more) = (known, f64::INFINITY, step);
        let mut limit = guess.max(known + step / 2.0);
        table.ranges(&mut self.kept, run, size, f64::INFINITY);
        let costs = &table.costs[run.0..=run.1];
        loop {
            if self.refutes(costs, limit, SWEEPS) {
                low = limit;
            } else {
                high = limit;
            }
            if high - low <= step || !low.is_finite() {
                return low;
            }
            if high.is_finite() {
                // The first miss is likely to be a small one.
                let near = high - more;
                more *= 4.0;
                limit = if near > low { near } else { f64::midpoint(low, high) };
            } else {
                limit = low + more;
                more *= 2.0;
            }
        }
    }

    /// The bound of the whole path between two.
    fn between(&mut self, table: &Table, mut low: f64, mut high: f64) -> f64 {
        table.ranges(&mut self.kept, (0, table.costs.len() - 1), table.cells, high);
        while high - low > TOLERANCE_WHOLE * high {
            let middle = f64::midpoint(low, high);
            if self.refutes(&table.costs, middle, SWEEPS_WHOLE) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Whether no plan keeps the limit. If that is open, what was found is kept for lower ones.
    fn refutes(&mut self, costs: &[Cost], limit: f64, sweeps: usize) -> bool {
        self.trial.clone_from(&self.kept);
        self.trial.lower(limit);
        let open = self.trial.sweep(Run::free(costs), &mut self.pass, sweeps);
        if open {
            core::mem::swap(&mut self.kept, &mut self.trial);
        }
        !open
    }
}
