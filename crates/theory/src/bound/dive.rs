//! From the bound to a plan: what would have to be true is made true, a stage at a time.
//!
//! At the bound nothing speaks against each stage by itself. The cuts that a stage would then have
//! are fixed, the least latency of which nothing speaks against them is looked for, and the next
//! stage is cut for that one. What comes out has its cuts where the bound is hard to keep: a good
//! place for a search to start from.

use super::pass::Pass;
use super::ranges::{Ranges, Run};
use super::table::Table;

/// A latency is looked for to this part, and at first so far from the last one.
const STEP: f64 = 2e-4;

/// Sweeps over the stages for each latency.
const SWEEPS: usize = 3;

/// Stages that are cut one after the other.
#[derive(Debug)]
pub(super) struct Dive<'a> {
    table: &'a Table,
    /// Cuts of stages that are no longer free.
    fixed: Vec<Option<Vec<u32>>>,
    pass: Pass,
    /// What is known for the least limit that is not refuted.
    kept: Ranges,
    trial: Ranges,
}

impl<'a> Dive<'a> {
    pub(super) fn new(table: &'a Table) -> Self {
        let (kept, trial) = Default::default();
        let fixed = vec![None; table.costs().len()];
        Self { table, fixed, pass: Pass::default(), kept, trial }
    }

    /// The orders in which stages are worth being fixed: from both ends, and from the slowest on.
    pub(super) fn orders(table: &Table) -> [Vec<usize>; 3] {
        let stages = table.costs().len();
        let eighth = (table.cells() / 8).max(1);
        let takes = |stage: &usize| table.costs()[*stage].at(eighth).unwrap_or(0.0);
        let slowest = (0..stages).max_by(|a, b| takes(a).total_cmp(&takes(b))).unwrap_or(0);
        let mut outwards: Vec<usize> = (0..stages).collect();
        outwards.sort_by_key(|stage| stage.abs_diff(slowest));
        [(0..stages).collect(), (0..stages).rev().collect(), outwards]
    }

    /// Cuts of every stage, in cells, fixed in this order; `least`: a latency that no plan keeps.
    pub(super) fn run(mut self, order: &[usize], least: f64) -> Option<Vec<Vec<u32>>> {
        let mut limit = least;
        for &stage in order {
            limit = self.kept_from(limit)?;
            self.fixed[stage] = Some(self.cuts(stage)?);
        }
        self.fixed.into_iter().collect()
    }

    /// The least latency from this one on of which nothing is known against it.
    fn kept_from(&mut self, least: f64) -> Option<f64> {
        let (mut low, mut high) = (least, least);
        let last = self.table.costs().len() - 1;
        loop {
            self.table.ranges(&mut self.trial, (0, last), self.table.cells(), high);
            if self.is_open() {
                break;
            }
            (low, high) = (high, 2.0 * high - least + STEP * least);
            if !high.is_finite() {
                return None;
            }
        }
        while high - low > STEP * least {
            let middle = f64::midpoint(low, high);
            self.trial.clone_from(&self.kept);
            self.trial.lower(middle);
            if self.is_open() { high = middle } else { low = middle }
        }
        Some(high)
    }

    /// Whether nothing is known against the limit; then what was found is kept.
    fn is_open(&mut self) -> bool {
        let run = Run::fixed(self.table.costs(), &self.fixed);
        let open = self.trial.sweep(run, &mut self.pass, SWEEPS);
        if open {
            core::mem::swap(&mut self.kept, &mut self.trial);
        }
        open
    }

    /// The cuts of a stage within its neighbours' times.
    fn cuts(&mut self, stage: usize) -> Option<Vec<u32>> {
        let cost = &self.table.costs()[stage];
        self.pass.cuts(cost, self.kept.neighbours(stage, false))
    }
}
