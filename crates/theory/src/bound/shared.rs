//! Stages that share a server: what it has to do, after what comes before and until what is behind.

use super::cost::{Cost, Piece};
use super::pass::Neighbours;
use super::table::Table;

impl Table {
    /// The bound of the work of a server for these stages, `own`, in rising order. `latencies`: of
    /// each stage.
    pub(super) fn of_server(&mut self, own: &[usize], latencies: &[f64]) -> f64 {
        let (Some(&first), Some(&last)) = (own.first(), own.last()) else { return 0.0 };
        let stages = self.costs.len();
        let mut most = 0.0_f64;
        for (place, &pivot) in own.iter().enumerate() {
            // What comes behind the pivot, seen from the begin, or before it, seen from the end.
            let behind = self.of_work(pivot, 0..pivot, &own[place + 1..], last + 1..stages);
            let waits = latencies[..pivot].iter().chain(&latencies[last..]).sum::<f64>();
            let before = self.of_work(pivot, pivot + 1..stages, &own[..place], 0..first);
            let mirrored = latencies[..first].iter().chain(&latencies[pivot..]).sum::<f64>();
            most = most.max(behind + waits).max(before + mirrored);
        }
        most
    }

    /// The pivot's fragments and the `others`' work on the same bytes, once these have passed the
    /// `run` of stages, and what every transfer takes in the stages of `rest`.
    fn of_work(
        &mut self,
        pivot: usize,
        run: core::ops::Range<usize>,
        others: &[usize],
        rest: core::ops::Range<usize>,
    ) -> f64 {
        let lines: Vec<(f64, f64)> =
            others.iter().map(|&at| self.costs[at].line(self.cells)).collect();
        let more: f64 = lines.iter().map(|(_, per_cell)| per_cell).sum();
        let pieces = self.costs[pivot].pieces.iter();
        let pieces =
            pieces.map(|piece| Piece { per_cell: piece.per_cell + more, ..*piece }).collect();
        let cost = Cost { pieces, ..self.costs[pivot] };
        let tail = &self.nothing;
        let release = if run.is_empty() {
            tail
        } else {
            &self.runs[run.start * self.costs.len() + run.end - 1]
        };
        self.pass.run(&cost, Neighbours { release, tail, limit: f64::INFINITY });
        let moved = |stages: &mut dyn Iterator<Item = usize>| -> f64 {
            stages.map(|stage| self.costs[stage].loss).sum()
        };
        let loss = moved(&mut run.clone().chain([pivot]).chain(others.iter().copied()));
        let once = lines.iter().map(|(overhead, _)| overhead).sum::<f64>();
        let crossing: f64 = rest.map(|stage| self.costs[stage].line(self.cells).0).sum();
        self.pass.finish[self.cells] + once + crossing - loss
    }
}
