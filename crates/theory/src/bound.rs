//! A latency that no plan can beat, whatever it cuts where.
//!
//! # Why it is a bound
//!
//! *One stage between its neighbours.* Suppose that a plan keeps a latency `T`. Look at one stage
//! `s` of it, with cuts `X_0 = 0 < X_1 < ... < X_k = B`. Let `E(x)` be a time before which no plan
//! that keeps `T` has the bytes up to `x` through the stages before, and `D(x)` the least time that
//! such a plan still needs when the stages behind may begin with the bytes from `B - x` on. Then
//!
//! ```text
//! E(X_i) + sum_{i..m} (g_s + G_s·x) + D(B - X_{m-1}) <= T     for all i <= m
//! ```
//!
//! One pass over the positions (that of `piped_model::grouping`) says whether some cuts keep all
//! of this, and when the bytes up to each position have left the stage at the earliest, with all
//! deadlines before kept. That is `E` for the next stage. The same pass seen from the end
//! (Theorem 2) is `D` for the stage before. Both only grow, so the passes go to and fro over the
//! stages until nothing changes. If a pass finds no cuts, no plan keeps `T`. The bound is the
//! largest `T`, by bisection, for which that is found.
//!
//! *To begin with* `E(x)` is the bound of the shorter path before `s` with `x` bytes, and `D(x)`
//! that of the path behind. The table holds these for every run of stages, shorter runs first.
//! That is more than the passes see themselves: `E(x)` for one `x` may use that the bytes up to `x`
//! are all there is.
//!
//! *Sizes between.* Runs are looked at for some sizes. With a cell more a run takes no less time,
//! even the last stage's time of a cell more (leave the last cell out of a plan: each path through
//! the recurrence ends in that stage), and the same is true of the first stage (Theorem 2). It
//! takes at most the time of a cell in all stages more (put the cell into the last fragments). Both
//! say something of the sizes between. So does a pass with an end of the run as pivot, which tells
//! all sizes at once.
//!
//! *Grid*. All this is computed for cuts on a grid of cells of `h` bytes. Take any plan and move
//! every cut down to the grid, the same way in all stages: what waited for what still does, so it
//! is a plan on the grid (a fragment that vanishes takes its `g` with it). A critical path of it
//! passes every stage once, from the begin of one fragment to the end of another. Ends moved down,
//! and begins by less than `h`, that of the transfer not at all. Or move all cuts up. So the path,
//! and `T`, grew by at most
//!
//! ```text
//! loss = h · (G_0 + G_1 + ... + G_{n-1} - max(G_0, G_{n-1}))
//! ```
//!
//! which is subtracted, once. Transfers of no more bytes than cells are cut on bytes, and lose
//! nothing.
//!
//! *Latencies, windows, buffers, constraints*. A path passes the `L` of every stage exactly once,
//! so `sum L` is added. Windows, a depth, finite buffers, smallest sizes and alignments make
//! fragments wait for more or forbid plans: they never lower a latency. Rooms over several stages
//! raise it ([`within`]).
//!
//! *Costs that bend*. A cost `c(x)` is split into `Γ·x + r(x)`, `Γ` being the slope at usual
//! sizes. On the grid `m` cells cost `Γ·h·m` and the least `r` of any size within a cell of `h·m`,
//! which is no more than the fragment that was moved. The first part moves as above, with `Γ` for
//! `G`. Costs do not fall as fragments grow, so between two samples `r` is at least the cost at the
//! first less `Γ·x` at the second. What vanishes has less than a cell: `Γ` is taken so small that
//! its `r` is not below 0. Lines below these costs, each for a range of sizes, are what the passes
//! use.
//!
//! *Two cases*. For a short path whose bound is still far below a plan, the ranges of times that
//! the passes leave are cut: either the bytes up to some position have left a stage by some time,
//! or they have not. If passes refute one case, the other holds. "Not" says that a path up to there
//! is so long, which raises `E`. "By `t`" is a deadline, as if those bytes had another path of
//! length `T - t` from there to the end: a plan that keeps `T` and has sent them by `t` keeps `T`
//! with that path, too, and so does all that the passes derive from `D` raised to `T - t`. But only
//! for this `T`: another begins without these paths.
//!
//! *Bisection* over `T` goes on from what was found for a larger one. Without such cases `E` and
//! `D` are lengths of paths of every plan that keeps the larger `T`, so of every one that keeps
//! less.
//!
//! *Shared servers* make fragments wait for more, so the bound holds. There is another: let a
//! server work for stages `S`, `s` one of them. Once fragment `i` of `s` is there, at least
//! `E(X_i)` after the begin, the server has the fragments of `s` from `i` on to do, and the bytes
//! from `X_{i-1}` on for each later stage of `S`, which cannot have had them. Behind the last one
//! the last fragment has the rest of the path before it. The least of this over all cuts of `s` is
//! one pass, with the later stages' `G` added to that of `s` and their `g` once. The same is true
//! from the end. Here begins and sizes move too, so the loss has the `G` of all these stages.

mod cases;
mod cost;
mod dive;
mod pass;
mod ranges;
mod shared;
mod table;

use piped_model::fixed::{self, Constraints};
use piped_model::room::Room;
use piped_model::search::layout::Layout;
use piped_model::servers::Servers;
use piped_model::stage::{Buffers, Stage, StageCost};

use cases::Cases;
use cost::Cost;
use dive::Dive;
use table::Table;

/// Sizes for which runs of stages are looked at.
const SIZES: usize = 24;

/// Cells of the grid: time goes with these, and with the third power of the stages.
fn cells(stages: usize) -> usize {
    if stages <= 4 { 768 } else { 384 }
}

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
/// without stages. About 10 ms for five stages, some 70 ms for nine and
/// 200 ms for twelve.
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
    of_costs(path, bytes, &Servers::APART)
}

/// The bound for costs that may bend, and stages that may share servers, in seconds.
///
/// Costs may jump, but must not fall as fragments grow. They are looked at at 16 sizes to a cell
/// of the grid, so a latency that is less only between two of these is not seen.
///
/// ```
/// use piped_model::estimate::CostCurve;
/// use piped_model::{servers::Servers, stage::Stage};
/// use piped_theory::bound;
/// let stage = Stage { latency: 0.0, overhead: 10e-6, per_byte: 20e-9, window: None };
/// let straight = bound::lower_bound(&[stage; 3], 4096);
/// let curve = [CostCurve::straight(stage); 3];
/// let apart = bound::of_costs(&curve, 4096, &Servers::APART);
/// assert!(apart <= straight && apart > 0.99 * straight);
/// assert!(bound::of_costs(&curve, 4096, &Servers::of(["thread"; 3])) > 1.5 * straight);
/// ```
#[must_use]
pub fn of_costs<C: StageCost>(path: &[C], bytes: u64, servers: &Servers) -> f64 {
    Relaxed::on(path, bytes, cells(path.len()), servers).seconds
}

/// The bound with rooms over several stages, in seconds. Buffers between two stages are left out:
/// they never lower a latency.
///
/// A byte that lies a room and one more behind another enters when that one is known to have left,
/// which is a time through the room later; the first one only when a batch has left. So after `n`
/// such times all bytes beyond `n` rooms still have all stages from the room's first one on before
/// them.
///
/// ```
/// use piped_model::room::Room;
/// use piped_model::servers::Servers;
/// use piped_model::stage::{Buffers, Stage};
/// use piped_theory::bound;
/// let wire = Stage { latency: 10e-3, overhead: 0.0, per_byte: 1e-9, window: None };
/// let window = Buffers::UNLIMITED.over(Room::bytes(0, 0, 1_000_000));
/// let bound = |buffers| bound::within(&[wire], 3_500_000, &Servers::APART, buffers);
/// assert!((bound(&Buffers::UNLIMITED) - 13.5e-3).abs() < 1e-6);
/// assert!((bound(&window) - 40.5e-3).abs() < 1e-6);
/// ```
#[must_use]
pub fn within<C: StageCost>(path: &[C], bytes: u64, servers: &Servers, buffers: &Buffers) -> f64 {
    let open = of_costs(path, bytes, servers);
    let rooms = buffers.rooms().filter(|room| room.first <= room.last && room.last < path.len());
    rooms.map(|room| waiting(path, bytes, room)).fold(open, f64::max)
}

/// What is known of a path from the bytes of one room alone.
fn waiting<C: StageCost>(path: &[C], bytes: u64, room: &Room) -> f64 {
    let Room { first, last, .. } = *room;
    let times = bytes.saturating_sub(1) / room.bytes.max(1);
    if times == 0 {
        return 0.0;
    }
    let crossing =
        |stages: &[C]| stages.iter().map(|cost| cost.stage_at(1.0).alone(1.0)).sum::<f64>();
    let least = |path: &[C], bytes| of_costs(path, bytes, &Servers::APART);
    let batch = room.batch.saturating_sub(room.due).clamp(1, bytes);
    let later = (times - 1) as f64 * crossing(&path[first..=last]);
    let waits = times as f64 * room.back + least(&path[first..=last], batch) + later;
    crossing(&path[..first]) + waits + least(&path[first..], bytes - times * room.bytes)
}

/// The bound on a grid of so many cells: a bound on every grid, a closer one on a finer grid. Time
/// and memory grow with the cells. A number of 0 is taken as 1.
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
pub fn on_grid<C: StageCost>(path: &[C], bytes: u64, cells: usize) -> f64 {
    Relaxed::on(path, bytes, cells, &Servers::APART).seconds
}

/// A bound on a grid, and what else can be known from it.
#[derive(Debug)]
pub(crate) struct Relaxed {
    seconds: f64,
    /// None where there is nothing to be cut.
    table: Option<Table>,
    /// The least latency of all stages, in seconds.
    latency: f64,
    /// The bound of the whole path on the grid, in seconds.
    nested: f64,
    bytes: u64,
}

impl Relaxed {
    /// The bound of a path on the usual grid.
    pub(crate) fn new(path: &[Stage], bytes: u64, servers: &Servers) -> Self {
        Self::on(path, bytes, cells(path.len()), servers)
    }

    fn on<C: StageCost>(path: &[C], bytes: u64, cells: usize, servers: &Servers) -> Self {
        if bytes == 0 || path.is_empty() {
            let seconds = path.iter().map(|cost| cost.stage_at(0.0).alone(0.0)).sum();
            return Self { seconds, table: None, latency: seconds, nested: 0.0, bytes };
        }
        let (table, latencies) = on_cells(path, bytes, cells);
        let (nested, latency) = (table.whole(), latencies.iter().sum::<f64>());
        let mut seconds = nested - table.loss() + latency;
        let straight: Option<Vec<Stage>> = path.iter().map(StageCost::straight).collect();
        if let Some(path) = straight {
            seconds = seconds.max(weak(&path, bytes)).max(of_servers(&path, bytes, servers));
        }
        for server in 0..path.len() {
            let own: Vec<usize> =
                (server..path.len()).filter(|&stage| servers.first(stage) == server).collect();
            if own.len() > 1 {
                seconds = seconds.max(shared::of_server(&table, &own, &latencies));
            }
        }
        Self { seconds: seconds.max(0.0), table: Some(table), latency, nested, bytes }
    }

    /// The bound, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Layouts that are worth a search, for a path without shared servers.
    pub(crate) fn layouts(&self) -> impl Iterator<Item = Layout> {
        let dive = |table: &Table, order: Vec<usize>| {
            let cuts = Dive::new(table).run(&order, self.nested)?;
            let cell = self.bytes as f64 / table.cells() as f64;
            let positions = (0..=table.cells()).map(|at| at as f64 * cell).collect();
            Some(Layout { positions, cuts })
        };
        self.table.iter().flat_map(move |table| {
            Dive::orders(table).into_iter().filter_map(move |order| dive(table, order))
        })
    }

    /// A closer bound, that takes far longer, where the best plan known takes `seconds` and no
    /// server is shared.
    pub(crate) fn closer(&self, seconds: f64) -> f64 {
        let Some(table) = &self.table else { return self.seconds };
        let moved = self.latency - table.loss();
        let high = (seconds - moved).max(self.nested);
        self.seconds.max(Cases::new(table).bound(self.nested, high) + moved)
    }
}

/// The table of a path on a grid, and the least latency of each stage.
fn on_cells<C: StageCost>(path: &[C], bytes: u64, cells: usize) -> (Table, Vec<f64>) {
    let cells = cells.max(1).min(usize::try_from(bytes).unwrap_or(usize::MAX));
    let cell = bytes as f64 / cells as f64;
    let exact = cells as u64 == bytes;
    let usual = if path.iter().all(|cost| cost.straight().is_some()) {
        bytes
    } else {
        fixed::best(path, bytes, &Constraints::default()).fragment_bytes
    };
    let on_grid = |cost: &C| Cost::new(cost, cell, cells, exact, usual as f64);
    let (costs, latencies) = path.iter().map(on_grid).unzip();
    (Table::new(costs, cells, cells.div_ceil(SIZES)), latencies)
}

/// `max_j (g_j + B·G_j)`, all other overheads and all latencies once: equation 5, without the
/// first and last fragments' bytes.
fn weak(path: &[Stage], bytes: u64) -> f64 {
    let overheads: f64 = path.iter().map(|stage| stage.overhead).sum();
    let slowest = path.iter().map(|stage| stage.per_byte).fold(0.0, f64::max);
    let latencies: f64 = path.iter().map(|stage| stage.latency).sum();
    overheads + slowest * bytes as f64 + latencies
}

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;

#[cfg(test)]
mod tests {
    use super::common::{Random, exhaustive};
    use super::*;

    #[test]
    fn no_plan_of_a_tiny_transfer_is_below_the_closer_bound_on_any_grid() {
        let (mut closer, mut all) = (0, 0);
        for seed in 0..120 {
            let mut random = Random(seed);
            let stages = 3 + random.below(2) as usize;
            let bytes = [6, 5][stages - 3] - random.below(2);
            let stage = |_| Stage {
                overhead: random.power(-1.0, 1.0),
                per_byte: random.power(-1.0, 1.0),
                ..Stage::FREE
            };
            let path: Vec<Stage> = (0..stages).map(stage).collect();
            let optimum = exhaustive(&path, bytes, &Servers::APART);
            for cells in 1..=bytes as usize {
                let relaxed = Relaxed::on(&path, bytes, cells, &Servers::APART);
                // Whatever plan is known.
                for known in [1.0, 1.1, 2.0] {
                    let bound = relaxed.closer(known * optimum);
                    let what = format!("seed {seed}, {cells} cells, {bytes} bytes on {path:?}");
                    assert!(bound <= optimum * (1.0 + 1e-9), "{what}: {bound} {optimum}");
                    closer += u32::from(bound > relaxed.seconds() * 1.001);
                    all += 1;
                }
            }
        }
        assert!(closer * 50 > all, "{closer} of {all} are closer than without cases");
    }
}
