//! Stages that share a server: what it has to do, after what comes before and until what is behind.

use core::ops::Range;

use super::pass::{Neighbours, Pass};
use super::table::Table;

/// The bound of the work of a server for these stages, `own`, in rising order. `latencies`: of each
/// stage.
pub(super) fn of_server(table: &Table, own: &[usize], latencies: &[f64]) -> f64 {
    let (Some(&first), Some(&last)) = (own.first(), own.last()) else { return 0.0 };
    let stages = table.costs().len();
    let mut most = 0.0_f64;
    for (place, &pivot) in own.iter().enumerate() {
        // What comes behind the pivot, seen from the begin, or before it, seen from the end.
        let behind = of_work(table, pivot, 0..pivot, &own[place + 1..], last + 1..stages);
        let waits = latencies[..pivot].iter().chain(&latencies[last..]).sum::<f64>();
        let before = of_work(table, pivot, pivot + 1..stages, &own[..place], 0..first);
        let mirrored = latencies[..first].iter().chain(&latencies[pivot..]).sum::<f64>();
        most = most.max(behind + waits).max(before + mirrored);
    }
    most
}

/// The pivot's fragments and the `others`' work on the same bytes, once these have passed the `run`
/// of stages, and what every transfer takes in the stages of `rest`.
fn of_work(
    table: &Table,
    pivot: usize,
    run: Range<usize>,
    others: &[usize],
    rest: Range<usize>,
) -> f64 {
    let (costs, cells) = (table.costs(), table.cells());
    let lines: Vec<(f64, f64)> = others.iter().map(|&at| costs[at].line(cells)).collect();
    let more: f64 = lines.iter().map(|(_, per_cell)| per_cell).sum();
    let mut pass = Pass::default();
    let neighbours = Neighbours::new(table.of(run.clone()), table.of(0..0), f64::INFINITY);
    pass.run(&costs[pivot].steeper(more), neighbours);
    let moved = run.chain([pivot]).chain(others.iter().copied());
    let loss: f64 = moved.map(|stage| costs[stage].loss()).sum();
    let once = lines.iter().map(|(overhead, _)| overhead).sum::<f64>();
    let crossing: f64 = rest.map(|stage| costs[stage].line(cells).0).sum();
    pass.end() + once + crossing - loss
}
