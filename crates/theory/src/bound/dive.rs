//! From the bound to a plan: what would have to be true is made true, a stage at a time.
//!
//! At the bound nothing speaks against each stage by itself. The cuts that a stage would then have
//! are fixed, the least latency of which nothing speaks against them is looked for, and the next
//! stage is cut for that one. What comes out has its cuts where the bound is hard to keep: a good
//! place for a search to start from.

use super::pass::Neighbours;
use super::table::Table;

/// A latency is looked for to this part, and at first so far from the last one.
const STEP: f64 = 2e-4;

/// Sweeps over the stages for each latency.
const SWEEPS: usize = 3;

impl Table {
    /// The orders in which stages are worth being fixed: from both ends, and from the slowest on.
    pub(super) fn orders(&self) -> [Vec<usize>; 3] {
        let stages = self.costs.len();
        let eighth = (self.cells / 8).max(1);
        let takes = |stage: &usize| self.costs[*stage].at(eighth).unwrap_or(0.0);
        let slowest = (0..stages).max_by(|a, b| takes(a).total_cmp(&takes(b))).unwrap_or(0);
        let mut outwards: Vec<usize> = (0..stages).collect();
        outwards.sort_by_key(|stage| stage.abs_diff(slowest));
        [(0..stages).collect(), (0..stages).rev().collect(), outwards]
    }

    /// Cuts of every stage, in cells, fixed in this order; `least`: a latency that no plan keeps.
    pub(super) fn dive(&mut self, order: &[usize], least: f64) -> Option<Vec<Vec<u32>>> {
        let mut limit = least;
        for &stage in order {
            limit = self.kept_from(limit)?;
            let cuts = self.cuts(stage, limit)?;
            self.fixed[stage] = Some(cuts);
        }
        self.fixed.iter_mut().map(Option::take).collect()
    }

    /// The least latency from this one on of which nothing is known against it.
    fn kept_from(&mut self, least: f64) -> Option<f64> {
        let last = self.costs.len() - 1;
        let (mut low, mut high) = (least, least);
        while !self.feasible(0, last, self.cells, high, SWEEPS) {
            (low, high) = (high, 2.0 * high - least + STEP * least);
            if !high.is_finite() {
                return None;
            }
        }
        while high - low > STEP * least {
            let middle = f64::midpoint(low, high);
            if self.feasible(0, last, self.cells, middle, SWEEPS) {
                high = middle
            } else {
                low = middle
            }
        }
        self.feasible(0, last, self.cells, high, SWEEPS).then_some(high)
    }

    /// The cuts of a stage that keep the limit within its neighbours' times.
    fn cuts(&mut self, stage: usize, limit: f64) -> Option<Vec<u32>> {
        let before = if stage == 0 { &self.nothing } else { &self.early[stage - 1] };
        let behind = self.late.get(stage + 1).unwrap_or(&self.nothing);
        let neighbours = Neighbours { release: before, tail: behind, limit };
        let cost = &self.costs[stage];
        if !self.pass.run(cost, neighbours) {
            return None;
        }
        let (mut cuts, mut end) = (Vec::new(), self.cells);
        let finish = &self.pass.finish;
        while end > 0 {
            cuts.push(end as u32);
            let near = |a: f64, b: f64| a <= b * (1.0 + 1e-9);
            end = (0..end).rev().find(|&begin| {
                let Some(takes) = cost.at(end - begin) else { return false };
                let done = finish[begin].max(before[end]) + takes;
                near(done, finish[end]) && near(done + behind[self.cells - begin], limit)
            })?;
        }
        cuts.reverse();
        Some(cuts)
    }
}
