//! A latency that no plan can beat, whatever it cuts where.
//!
//! # Why it is a bound
//!
//! *One pivot* (docs/theory.md §6). Look at one stage `s` of any plan, with cuts
//! `X_0 = 0 < X_1 < ... < X_k = B`. Its fragment `i` cannot start before the bytes up to `X_i` have
//! passed the stages before, which takes at least `P(X_i)`, the least latency of that shorter path
//! with that smaller transfer. Fragments `i..=m` are served one after the other. Then the bytes
//! from `X_{m-1}` on have yet to pass the stages behind, which takes at least `Q(B - X_{m-1})`. So
//!
//! ```text
//! T >= max over i <= m of { P(X_i) + sum_{i..m} (g_s + G_s·x) + Q(B - X_{m-1}) }
//! ```
//!
//! and, as the plan is not known, the minimum of the right side over all cuts of `s`. It stays true
//! if lower bounds stand for `P` and `Q`. Every stage may be the pivot: the largest minimum counts.
//!
//! *Nested*. `P` and `Q` are latencies of runs of stages, so they have this bound themselves. The
//! table holds it for every run `i..=j` of stages and every size on a grid, shorter runs first,
//! with each stage of the run as pivot. Taking only single curves `P` and `Q` leaves 4 to 12 %
//! between bound and plan where stages are alike; the pivots inside remove most of it, because a
//! neighbour's overheads then count too.
//!
//! *Grid*. The minimum is taken over cuts on a grid of cells of `h` bytes. Take any plan and move
//! every cut to the nearest grid point, the same point in all stages: what waited for what still
//! does, so it is a plan on the grid (a fragment that vanishes takes its `g` with it). A critical
//! path of it passes every stage once, from the begin of one fragment to the end of another. Both
//! moved by at most `h/2` (the transfer's begin and end did not move), so the path, and `T`, grew
//! by at most
//!
//! ```text
//! loss = h/2 · (G_0 + 2·G_1 + ... + 2·G_{n-2} + G_{n-1})
//! ```
//!
//! which is subtracted, once. Transfers of no more bytes than cells are cut on bytes, and lose
//! nothing.
//!
//! *Latencies, windows, buffers, constraints*. A path passes the `L` of every stage exactly once,
//! so `sum L` is added. Windows, a depth, finite buffers, smallest sizes and alignments make
//! fragments wait for more or forbid plans: they never lower a latency.

use piped_model::grouping::{Grouping, Scratch};
use piped_model::servers::Servers;
use piped_model::stage::Stage;

/// Cells of the finest grid.
const CELLS_MAX: usize = 1024;

/// Cells of the coarsest grid.
const CELLS_MIN: usize = 192;

/// Steps that the table may take for each decision about all its sizes; bounds the time.
const STEPS: usize = 400_000;

/// Bisection ends where the bound is known to this part.
const TOLERANCE: f64 = 1e-4;

/// What the work of its busiest server alone takes, in seconds: a lower bound where stages share
/// servers, of every plan and every order in which a server may take its fragments.
///
/// A server works for each of its stages on all bytes and at least one fragment. It cannot begin
/// before the first byte has passed the stages before its first one, and what it does last is the
/// last fragment of its last stage, which has all stages behind that before it.
///
/// ```
/// use piped_model::{servers::Servers, stage::Stage};
/// use piped_theory::bound::of_servers;
/// let step = Stage { latency: 1.0, overhead: 10.0, per_byte: 0.5, window: None };
/// let thread = Servers::of(["disk", "thread", "thread", "wire"]);
/// // 11 before it, 2 visits of 100 bytes, 1 behind them, 11 more.
/// assert_eq!(of_servers(&[step; 4], 100, &thread), 11.0 + 2.0 * 60.0 + 1.0 + 11.0);
/// ```
#[must_use]
pub fn of_servers(path: &[Stage], bytes: u64, servers: &Servers) -> f64 {
    let crossing = |stages: &[Stage]| stages.iter().map(|it| it.latency + it.overhead).sum::<f64>();
    let bound = |first: usize| {
        let own = || (first..path.len()).filter(|&stage| servers.first(stage) == first);
        let last = own().next_back()?;
        let work = own().map(|stage| path[stage].occupancy(bytes as f64)).sum::<f64>();
        let around = crossing(&path[..first]) + path[last].latency + crossing(&path[last + 1..]);
        Some(work + around)
    };
    (0..path.len()).filter_map(bound).fold(0.0, f64::max)
}

/// A lower bound of the latency of every plan for `bytes` on `path`, in seconds; 0 for a path
/// without stages. Milliseconds for up to six stages, some tens of them for nine.
///
/// ```
/// use piped_model::{fixed::{self, Constraints}, stage::Stage};
/// use piped_theory::bound;
/// let gam = [(7.2, 7.2), (5.2, 24.9), (7.5, 24.9), (7.4, 7.9)]
///     .map(|(g, us)| (g * 1e-6, us * 1e-9))
///     .map(|(overhead, per_byte)| Stage { latency: 0.0, overhead, per_byte, window: None });
/// let plan = fixed::best(&gam, 4096, &Constraints::default());
/// let bound = bound::lower_bound(&gam, 4096);
/// assert!(bound < plan.predicted_seconds && plan.predicted_seconds < 1.1 * bound);
/// ```
#[must_use]
pub fn lower_bound(path: &[Stage], bytes: u64) -> f64 {
    on_grid(path, bytes, cells(path.len()))
}

/// The bound on a grid of so many cells: a bound on every grid, a closer one on a finer grid. Time
/// grows with the square of the cells, memory with the cells. A number of 0 is taken as 1.
///
/// ```
/// use piped_model::reference;
/// use piped_theory::bound;
/// let path = reference::network_disk();
/// let bound = |cells| bound::on_grid(&path, reference::PACKET_BYTES, cells);
/// let [coarse, fine] = [24, 192].map(bound);
/// assert!(coarse < fine && fine < 23.65e-3);
/// ```
#[must_use]
pub fn on_grid(path: &[Stage], bytes: u64, cells: usize) -> f64 {
    let latencies: f64 = path.iter().map(|stage| stage.latency).sum();
    if bytes == 0 || path.is_empty() {
        return path.iter().map(|stage| stage.alone(0.0)).sum();
    }
    let cells = cells.max(1).min(usize::try_from(bytes).unwrap_or(usize::MAX));
    let cell = bytes as f64 / cells as f64;
    let mut loss = 0.0;
    if cells as u64 != bytes {
        let ends = path[0].per_byte + path[path.len() - 1].per_byte;
        let twice: f64 = path.iter().map(|stage| 2.0 * stage.per_byte).sum();
        loss = cell / 2.0 * (twice - ends);
    }
    let nested = Table::new(path, cell, cells).whole() - loss;
    nested.max(weak(path, bytes)) + latencies
}

/// `max_j (g_j + B·G_j)` and all other overheads once: equation 5, without the first and last
/// fragments' bytes.
fn weak(path: &[Stage], bytes: u64) -> f64 {
    let overheads: f64 = path.iter().map(|stage| stage.overhead).sum();
    let slowest = path.iter().map(|stage| stage.per_byte).fold(0.0, f64::max);
    overheads + slowest * bytes as f64
}

/// The finest grid that the time permits. Its cost comes from the runs of stages with a pivot in
/// their middle.
fn cells(stages: usize) -> usize {
    let pivots: usize = (3..stages).map(|length| (stages + 1 - length) * (length - 2)).sum();
    let finest = (STEPS / pivots.max(1)).isqrt();
    finest.clamp(CELLS_MIN, CELLS_MAX)
}

/// Lower bounds of the latency of every run of stages and every number of cells.
struct Table<'a> {
    path: &'a [Stage],
    cells: usize,
    positions: Vec<f64>,
    nothing: Vec<f64>,
    /// Values by first stage, last stage and cell.
    rising: Vec<Vec<f64>>,
    /// The tail from all cells down to none: the tail seen from a position.
    falling: Vec<Vec<f64>>,
    scratch: Scratch,
}

impl<'a> Table<'a> {
    fn new(path: &'a [Stage], cell: f64, cells: usize) -> Self {
        let stages = path.len();
        let mut table = Self {
            path,
            cells,
            positions: (0..=cells).map(|at| at as f64 * cell).collect(),
            nothing: vec![0.0; cells + 1],
            rising: vec![Vec::new(); stages * stages],
            falling: vec![Vec::new(); stages * stages],
            scratch: Scratch::default(),
        };
        for length in 1..=stages {
            for first in 0..=stages - length {
                let bounds = table.run(first, first + length - 1);
                let place = table.place(first, first + length - 1);
                table.falling[place] = bounds.iter().rev().copied().collect();
                table.rising[place] = bounds;
            }
        }
        table
    }

    fn place(&self, first: usize, last: usize) -> usize {
        first * self.path.len() + last
    }

    fn whole(&self) -> f64 {
        self.rising[self.place(0, self.path.len() - 1)][self.cells]
    }

    /// The bounds of a run of stages; all shorter ones are known.
    fn run(&mut self, first: usize, last: usize) -> Vec<f64> {
        if first == last {
            let stage = self.path[first];
            let mut alone: Vec<f64> = self.positions.iter().map(|&x| stage.occupancy(x)).collect();
            alone[0] = 0.0;
            return alone;
        }
        // With an end of the run as pivot one pass tells all sizes; by Theorem 2 both ends are
        // alike.
        let mut bounds = self.end_pivot(last, self.place(first, last - 1));
        let other = self.end_pivot(first, self.place(first + 1, last));
        for (bound, other) in bounds.iter_mut().zip(other) {
            *bound = bound.max(other);
        }
        let sizes = if last - first + 1 == self.path.len() { self.cells } else { 1 }..=self.cells;
        for pivot in first + 1..last {
            let mut excess = 0.0;
            for size in sizes.clone() {
                let (old, new) = (
                    bounds[size],
                    self.middle_pivot(first, pivot, last, size, bounds[size], excess),
                );
                excess = new - old;
                bounds[size] = new;
            }
        }
        // More bytes never take less time.
        for size in 1..bounds.len() {
            bounds[size] = bounds[size].max(bounds[size - 1]);
        }
        bounds
    }

    fn end_pivot(&mut self, pivot: usize, others: usize) -> Vec<f64> {
        let stage = self.path[pivot];
        let grouping = Grouping {
            overhead: stage.overhead,
            per_byte: stage.per_byte,
            positions: &self.positions,
            release: &self.rising[others],
            tail: &self.nothing,
            smallest: 0.0,
            largest: f64::INFINITY,
        };
        let _ = grouping.feasible(f64::INFINITY, &mut self.scratch);
        self.scratch.finish().to_vec()
    }

    /// The bound with a pivot inside the run, or `known` if it is no better. `excess` is what the
    /// pivot gave for the size before: a guess where to look.
    fn middle_pivot(
        &mut self,
        first: usize,
        pivot: usize,
        last: usize,
        size: usize,
        known: f64,
        excess: f64,
    ) -> f64 {
        let stage = self.path[pivot];
        let grouping = Grouping {
            overhead: stage.overhead,
            per_byte: stage.per_byte,
            positions: &self.positions[..=size],
            release: &self.rising[self.place(first, pivot - 1)][..=size],
            tail: &self.falling[self.place(pivot + 1, last)][self.cells - size..],
            smallest: 0.0,
            largest: f64::INFINITY,
        };
        let (mut low, step) = (known, (known * TOLERANCE).max(f64::MIN_POSITIVE));
        if grouping.feasible(low + step, &mut self.scratch) {
            return low;
        }
        low += step;
        let mut high = low + excess.max(4.0 * step);
        while !grouping.feasible(high, &mut self.scratch) {
            high = low + 2.0 * (high - low);
            if !high.is_finite() {
                return low;
            }
        }
        while high - low > step {
            let middle = f64::midpoint(low, high);
            if grouping.feasible(middle, &mut self.scratch) { high = middle } else { low = middle }
        }
        low
    }
}
