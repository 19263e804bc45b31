//! Lower bounds of every run of stages and many sizes, on a grid.

use super::cost::Cost;
use super::pass::{Neighbours, Pass};

/// Sweeps over the stages for a run, and for the whole path.
pub(super) const SWEEPS: usize = 4;
const SWEEPS_WHOLE: usize = 6;

/// Bisection ends where a run's bound is known to this part.
const TOLERANCE: f64 = 4e-4;

/// The bound for the whole path.
const TOLERANCE_WHOLE: f64 = 5e-5;

/// Sweeps that raise nothing by this part are the last.
const WORTH: f64 = 1e-4;

/// Lower bounds of the latencies of runs of stages, for every number of cells.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) costs: Vec<Cost>,
    pub(super) cells: usize,
    /// Values by first stage, last stage and cells.
    pub(super) runs: Vec<Vec<f64>>,
    /// The earliest times at which stages may have passed on so many cells.
    pub(super) early: Vec<Vec<f64>>,
    /// The least times that stages and all behind them take for the last so many cells.
    pub(super) late: Vec<Vec<f64>>,
    pub(super) nothing: Vec<f64>,
    pub(super) pass: Pass,
    /// Cuts of stages that are no longer free.
    pub(super) fixed: Vec<Option<Vec<u32>>>,
}

impl Table {
    /// The table for all runs but the whole path; `stride`: from size to size that is looked at.
    pub(super) fn new(costs: Vec<Cost>, cells: usize, stride: usize) -> Self {
        let stages = costs.len();
        let mut table = Self {
            costs,
            cells,
            runs: vec![Vec::new(); stages * stages],
            early: vec![Vec::new(); stages],
            late: vec![Vec::new(); stages],
            nothing: vec![0.0; cells + 1],
            pass: Pass::default(),
            fixed: vec![None; stages],
        };
        for length in 1..=stages {
            for first in 0..=stages - length {
                let values = table.run(first, first + length - 1, stride);
                let place = table.place(first, first + length - 1);
                table.runs[place] = values;
            }
        }
        table
    }

    fn place(&self, first: usize, last: usize) -> usize {
        first * self.costs.len() + last
    }

    pub(super) fn of(&self, first: usize, last: usize) -> &[f64] {
        &self.runs[self.place(first, last)]
    }

    /// What the moves of cuts to the grid add to a path through these stages.
    ///
    /// All cuts move down, or all up: the first stage's begin and the last one's end stay.
    pub(super) fn loss(&self) -> f64 {
        let ends = self.costs[0].loss.max(self.costs[self.costs.len() - 1].loss);
        self.costs.iter().map(|cost| cost.loss).sum::<f64>() - ends
    }

    /// The bounds of a run of stages; all shorter ones are known.
    fn run(&mut self, first: usize, last: usize, stride: usize) -> Vec<f64> {
        let none = self.nothing.clone();
        let mut values = none.clone();
        // With an end of the run as pivot one pass tells all sizes.
        for pivot in if first == last { vec![first] } else { vec![last, first] } {
            let others = match pivot {
                _ if first == last => &none[..],
                pivot if pivot == last => &self.runs[first * self.costs.len() + last - 1],
                _ => &self.runs[(first + 1) * self.costs.len() + last],
            };
            let neighbours = Neighbours { release: others, tail: &none, limit: f64::INFINITY };
            self.pass.run(&self.costs[pivot], neighbours);
            self.pass.raise(&mut values);
        }
        if last < first + 2 || last - first + 1 == self.costs.len() {
            return values;
        }
        // More bytes never take less time, nor does each cell add less than at one of the ends, or
        // more than in all stages.
        let run = &self.costs[first..=last];
        let slope = run[0].growth.0.max(run[run.len() - 1].growth.0).max(0.0);
        let steep: f64 = run.iter().map(|cost| cost.growth.1).sum();
        let (mut before, mut excess) = (0, 0.0);
        for size in 1..=self.cells {
            let looked_at =
                size % stride == 0 || size == self.cells || size < stride && size.is_power_of_two();
            if !looked_at {
                continue;
            }
            let known = values[size].max(values[before] + slope * (size - before) as f64);
            let found = self.least(first, last, size, known, excess);
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

    /// The bound for a run and a size, at least `known`, near that and `excess`.
    fn least(&mut self, first: usize, last: usize, size: usize, known: f64, excess: f64) -> f64 {
        let step = (known * TOLERANCE).max(f64::MIN_POSITIVE);
        let guess = (known + excess - step / 2.0).max(known);
        let (mut low, mut high, mut more) = (known, f64::INFINITY, step);
        let mut limit = guess.max(known + step / 2.0);
        loop {
            if self.feasible(first, last, size, limit, SWEEPS) {
                high = limit;
            } else {
                low = limit;
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

    /// The bound of the whole path, on the grid.
    pub(super) fn whole(&mut self) -> f64 {
        let last = self.costs.len() - 1;
        let mut low = self.of(0, last)[self.cells];
        // One fragment everywhere is a plan.
        let mut high: f64 = self.costs.iter().filter_map(|cost| cost.at(self.cells)).sum();
        while high - low > TOLERANCE_WHOLE * high {
            let middle = f64::midpoint(low, high);
            if self.feasible(0, last, self.cells, middle, SWEEPS_WHOLE) {
                high = middle
            } else {
                low = middle
            }
        }
        low
    }

    /// Whether nothing speaks against a plan of a run of stages that keeps the limit.
    pub(super) fn feasible(
        &mut self,
        first: usize,
        last: usize,
        size: usize,
        limit: f64,
        sweeps: usize,
    ) -> bool {
        for stage in first..=last {
            let (before, behind) = (self.place(first, stage), self.place(stage, last));
            for (place, times) in
                [(before, &mut self.early[stage]), (behind, &mut self.late[stage])]
            {
                times.clear();
                // The run itself is not known yet.
                times.extend(self.runs[place].iter().take(size + 1));
                times.resize(size + 1, 0.0);
            }
        }
        self.swept(first, last, limit, sweeps)
    }

    /// The same, from what is known of the neighbours' times.
    pub(super) fn swept(&mut self, first: usize, last: usize, limit: f64, sweeps: usize) -> bool {
        let worth = limit * WORTH;
        for sweep in 0..sweeps {
            let mut most = 0.0_f64;
            for stage in first..last {
                let Some(raised) = self.pass(first, last, stage, limit, false) else {
                    return false;
                };
                most = most.max(raised);
            }
            if sweep > 0 && most < worth {
                break;
            }
            most = 0.0;
            for stage in (first + 1..=last).rev() {
                let Some(raised) = self.pass(first, last, stage, limit, true) else { return false };
                most = most.max(raised);
            }
            if most < worth {
                break;
            }
        }
        true
    }

    /// A stage cut within its neighbours' times, seen from the begin or from the end.
    fn pass(
        &mut self,
        first: usize,
        last: usize,
        stage: usize,
        limit: f64,
        backwards: bool,
    ) -> Option<f64> {
        let size = self.early[first].len() - 1;
        let none = &self.nothing[..=size];
        let before = if stage == first { none } else { &self.early[stage - 1] };
        let behind = if stage == last { none } else { &self.late[stage + 1] };
        let (release, tail) = if backwards { (behind, before) } else { (before, behind) };
        let neighbours = Neighbours { release, tail, limit };
        let cost = &self.costs[stage];
        let kept = match &self.fixed[stage] {
            None => self.pass.run(cost, neighbours),
            Some(cuts) => {
                let cuts = cuts.iter().map(|&cut| cut as usize);
                if backwards {
                    let begins = cuts.rev().skip(1).map(|cut| size - cut).chain([size]);
                    self.pass.walk(cost, neighbours, begins)
                } else {
                    self.pass.walk(cost, neighbours, cuts)
                }
            }
        };
        let known = if backwards { &mut self.late[stage] } else { &mut self.early[stage] };
        kept.then(|| self.pass.raise(known))
    }
}
