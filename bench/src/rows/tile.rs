//! Tiled loops on a shaped link, and loops on a node that serves others.
//!
//! Each node of a tiled loop has one CPU, for the daemon and for the application.

// The measured loop is the example's, which also has the code that checks it.
#[path = "../../../client-lib/examples/tiled_stencil/kernel.rs"]
mod kernel;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use piped_client::{
    Axes, ClientBuilder, Grid, Schedule, Tile, TileHeight, TileOptions, TilePipeline, TileReport,
};
use piped_core::modes::Profile;

use self::kernel::{Column, Space};
use crate::contest::{Arm, Rounds};
use crate::failure::{Doing as _, Failure, joined};
use crate::load::Ask;
use crate::machine::{self, Cpus};
use crate::nodes::{CALLER, PEER, profile_name};
use crate::report::{Row, Unit};
use crate::rig::{GIGABIT, PROFILE, Rig};
use crate::rows::region::Region;
use crate::rows::{Bench, KIB};
use crate::stats::{Bar, Better, Interval, median};
use crate::{clock, raw};

const OVERLAPPING_BAR: f64 = 0.8;
const HEIGHT_BAR: f64 = 1.05;
const SERVING_BAR: f64 = 1.10;

/// The loop: a column of 12 x 24 points for each of the two processes.
const SPACE: Space = Space { wide: Axes { x: 24, y: 24 }, depth: 32 * KIB, work: 1 };
const PROCESSES: Axes<u32> = Axes { x: 2, y: 1 };

/// Heights of the sweep.
const HEIGHTS: [u64; 7] = [128, 256, 512, 1024, 2048, 4096, 8192];

/// Runs before anything is measured: path and height settle.
const WARM: usize = 3;
/// Timings of the computation alone.
const TIMINGS: usize = 5;

/// One process of the loop.
struct Process {
    pipeline: TilePipeline,
    column: Column,
    cpu: usize,
}

impl Process {
    fn run(&mut self, height: TileHeight, schedule: Schedule) -> Result<TileReport, Failure> {
        machine::pin(self.cpu)?;
        let Self { pipeline, column, .. } = self;
        let depth = SPACE.depth as u64;
        pipeline.run(depth, height, schedule, |tile| column.compute(tile)).doing("a tiled loop")
    }
}

/// Both processes, one on each node.
struct Both(RefCell<[Process; 2]>);

impl Both {
    fn open(rig: &Rig, cpus: Cpus) -> Result<Self, Failure> {
        let places = [(&rig.pair.a, cpus.first, PEER), (&rig.pair.b, cpus.second, CALLER)];
        let grid = Grid { x: two(), y: core::num::NonZeroU32::MIN };
        let open = |at: u32| {
            let (node, cpu, other) = places[at as usize];
            let at = Axes { x: at, y: 0 };
            let column = Column::new(SPACE, PROCESSES, at);
            let options = TileOptions::new("bench", grid, at)
                .edge_bytes(column.edge_bytes())
                .height_max(HEIGHTS[HEIGHTS.len() - 1]);
            let client = ClientBuilder::new().connect(&node.client_socket).doing("connect")?;
            let pipeline = TilePipeline::open(&client, options, |_| Some(other.to_owned()));
            Ok::<_, Failure>(Process { pipeline: pipeline.doing("open")?, column, cpu })
        };
        let [first, second] = thread::scope(|scope| {
            let second = scope.spawn(|| open(1));
            [open(0), joined(second.join(), "a process of the loop")]
        });
        Ok(Self(RefCell::new([first?, second?])))
    }

    /// A run of both processes: the time from their common begin until both have ended, in seconds;
    /// and the report of the first.
    fn run(&self, height: TileHeight, schedule: Schedule) -> Result<(f64, TileReport), Failure> {
        let [first, second] = &mut *self.0.borrow_mut();
        let begun = clock::now();
        let (one, other) = thread::scope(|scope| {
            let other = scope.spawn(|| second.run(height, schedule));
            (first.run(height, schedule), joined(other.join(), "a process of the loop"))
        });
        let seconds = begun.elapsed().as_secs_f64();
        other?;
        Ok((seconds, one?))
    }

    /// Time of the computation of a row, in seconds, while both compute and nothing else goes on.
    /// The least counts, because disturbances do not belong to the loop.
    fn row_seconds(&self) -> Result<f64, Failure> {
        let [first, second] = &mut *self.0.borrow_mut();
        let mut times = Vec::new();
        for _ in 0..TIMINGS {
            let (one, other) = thread::scope(|scope| {
                let other = scope.spawn(|| alone(&mut second.column, second.cpu));
                (alone(&mut first.column, first.cpu), joined(other.join(), "a process of the loop"))
            });
            times.push(one?.midpoint(other?) / SPACE.depth as f64);
        }
        times.into_iter().min_by(f64::total_cmp).ok_or_else(|| Failure::new("nothing was timed"))
    }

    fn check(&self) -> Result<(), Failure> {
        let wanted = kernel::sequential(SPACE);
        for process in &*self.0.borrow() {
            if let Some(place) = process.column.differs_from(&wanted) {
                return Err(Failure::new(format!("the loop's point at {place:?} is another")));
            }
        }
        Ok(())
    }
}

fn two() -> core::num::NonZeroU32 {
    core::num::NonZeroU32::MIN.saturating_add(1)
}

/// Time of a column's computation without any communication, in seconds.
fn alone(column: &mut Column, cpu: usize) -> Result<f64, Failure> {
    machine::pin(cpu)?;
    let edge_bytes = column.edge_bytes();
    let height = HEIGHTS[3] as usize;
    let (before, mut after) = (vec![0; edge_bytes.x * height], vec![0; edge_bytes.x * height]);
    let begun = clock::now();
    for first in (0..SPACE.depth).step_by(height) {
        let rows = first as u64..SPACE.depth.min(first + height) as u64;
        let (before, after) = (Some(&before[..]), Some(&mut after[..]));
        let (before, after) = (Axes { x: before, y: None }, Axes { x: after, y: None });
        column.compute(&mut Tile { rows, before, after });
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Runs both processes over a link on which a row's border takes as long as its computation.
fn with_both<T>(
    bench: &mut Bench,
    body: impl FnOnce(&mut Bench, &Both, &str) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let cpus = bench.cpus;
    let found = bench.with_rig(|bench, rig| {
        rig.set_rate(GIGABIT)?;
        let both = Both::open(rig, cpus)?;
        let row = both.row_seconds()?;
        let edge_bytes = both.0.borrow()[0].column.edge_bytes().x;
        let rate = edge_bytes as f64 / row;
        rig.set_rate(rate as u64)?;
        for _ in 0..WARM {
            both.run(TileHeight::Auto, Schedule::Overlapping)?;
        }
        both.0.borrow_mut().iter_mut().for_each(|process| process.column.clear());
        both.run(TileHeight::Auto, Schedule::Overlapping)?;
        both.check()?;
        let scene = format!("{:.2} us a row, {:.0} MB/s", row * 1e6, rate / 1e6);
        body(bench, &both, &scene)
    });
    machine::unpin()?;
    found
}

fn sweep(both: &Both, schedule: Schedule) -> impl Iterator<Item = Arm<'_>> {
    HEIGHTS.into_iter().map(move |height| {
        let run = move || Ok(both.run(TileHeight::Fixed(height), schedule)?.0);
        Arm::variant(format!("{} {height}", schedule.name()), run)
    })
}

fn in_words(rounds: &Rounds, arm: usize) -> Result<String, Failure> {
    let found = rounds.value(arm)?;
    Ok(format!("{} {:.1} ms", rounds.names[arm], found.median * 1e3))
}

/// The overlapping schedule against the other one, each at its best height.
pub(super) fn overlapping(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    with_both(bench, |bench, both, scene| {
        let mut arms: Vec<Arm<'_>> =
            Schedule::ALL.into_iter().flat_map(|schedule| sweep(both, schedule)).collect();
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let each = HEIGHTS.len();
        let without = rounds.best(0..each, Better::Smaller)?;
        let with = rounds.best(each..2 * each, Better::Smaller)?;
        let found = rounds.ratio(with, without)?;
        let added = added(both, HEIGHTS[with - each])?;
        let note = format!(
            "{scene}; {}, {}; communication adds {:.0} % to the computation",
            in_words(&rounds, with)?,
            in_words(&rounds, without)?,
            added * 1e2
        );
        let bar = Bar::AtMost(OVERLAPPING_BAR);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// Time that communication adds to the computation of the first process, as a part of it.
fn added(both: &Both, height: u64) -> Result<f64, Failure> {
    let mut parts = Vec::new();
    for _ in 0..TIMINGS {
        let (_, report) = both.run(TileHeight::Fixed(height), Schedule::Overlapping)?;
        let alone = both.row_seconds()? * SPACE.depth as f64;
        parts.push(report.compute_seconds / alone - 1.0);
    }
    median(&parts).ok_or_else(|| Failure::new("nothing was timed"))
}

/// The height that the model predicts from measurements of the run, against the best of a sweep.
pub(super) fn height(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    with_both(bench, |bench, both, scene| {
        let schedule = Schedule::Overlapping;
        let tiling = both.0.borrow_mut()[0].pipeline.tiling(SPACE.depth as u64, schedule);
        let tiling = tiling.doing("the model")?;
        let tiling = tiling.ok_or_else(|| Failure::new("tiles were all of one height"))?;
        let predicted = tiling.best_whole_height(schedule);
        let mut arms: Vec<Arm<'_>> = sweep(both, schedule).collect();
        let subjects = arms.len();
        let height = TileHeight::Fixed(predicted.height);
        let run = |height| move || Ok(both.run(height, schedule)?.0);
        arms.push(Arm::subject(&format!("predicted {}", predicted.height), run(height)));
        arms.push(Arm::subject("auto", run(TileHeight::Auto)));
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let best = rounds.best(0..subjects, Better::Smaller)?;
        let found = rounds.ratio(subjects, best)?;
        let note = format!(
            "{scene}; {}, model {:.1} ms; {}; {}",
            in_words(&rounds, subjects)?,
            predicted.seconds * 1e3,
            in_words(&rounds, best)?,
            in_words(&rounds, subjects + 1)?,
        );
        let bar = Bar::AtMost(HEIGHT_BAR);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// Size and number of blocks at once: enough to fill the link.
const SERVED_BLOCK: usize = 256 * KIB;
const SERVED_DEPTH: usize = 4;
/// Time for which reads are under way before the loop begins.
const FLOWING: Duration = Duration::from_millis(50);
/// Part of the link's rate that counts as full.
const FULL: f64 = 0.9;

/// A loop of an application on a node while another node reads its memory as fast as the link can.
/// Every shard has a CPU of its own, and so has the application; the node that asks shares the
/// daemon's.
pub(super) fn beside_reads(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let cpu = bench.cpus.second;
    let profile = Profile::Throughput;
    let found = bench.with_rig_for_one(profile, |bench, rig| disturbed(bench, rig, cpu));
    machine::unpin()?;
    let Disturbed { rounds, ratio, note } = found?;
    let bar = Bar::AtMost(SERVING_BAR);
    Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, ratio, bar, note)
        .with_arms(&rounds, Unit::Seconds))
}

/// Such a loop on a node with one CPU: it loses what the daemon needs for the link's rate.
pub(super) fn on_daemons_cpu(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let cpu = bench.cpus.second;
    let found = bench.with_rig(|bench, rig| disturbed(bench, rig, cpu));
    machine::unpin()?;
    let Disturbed { rounds, ratio, note } = found?;
    Ok(Row::reported(name, &profile_name(PROFILE), Unit::Ratio, ratio, note)
        .with_arms(&rounds, Unit::Seconds))
}

/// Effect of reads on a loop.
struct Disturbed {
    rounds: Rounds,
    /// Time beside them against the time without.
    ratio: Interval,
    note: String,
}

fn disturbed(bench: &mut Bench, rig: &Rig, cpu: usize) -> Result<Disturbed, Failure> {
    rig.set_rate(GIGABIT)?;
    let Region { asker, handle, _export } = Region::open(&rig.pair)?;
    let asker = RefCell::new(asker);
    let column = RefCell::new(Column::new(SPACE, PROCESSES, Axes { x: 0, y: 0 }));
    let (rates, used) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let daemon = || {
        let time = raw::process_cpu_time(rig.pair.b.pid()).map(|time| time.as_secs_f64());
        time.ok_or_else(|| Failure::new("the daemon is not there"))
    };
    let undisturbed = || alone(&mut column.borrow_mut(), cpu);
    let beside = || {
        let (stop, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
        let (asker, column) = (&mut *asker.borrow_mut(), &mut *column.borrow_mut());
        let ask = Ask { handle: &handle, block: SERVED_BLOCK, depth: SERVED_DEPTH };
        thread::scope(|scope| {
            let reading = scope.spawn(|| {
                asker.reads_while(ask, |_, _| {
                    bytes.fetch_add(SERVED_BLOCK as u64, Ordering::Relaxed);
                    !stop.load(Ordering::Relaxed)
                })
            });
            clock::pause(FLOWING);
            let (before, begun, time) = (bytes.load(Ordering::Relaxed), clock::now(), daemon());
            let took = alone(column, cpu);
            let (moved, seconds) =
                (bytes.load(Ordering::Relaxed) - before, begun.elapsed().as_secs_f64());
            let time = daemon().and_then(|after| Ok(after - time?));
            stop.store(true, Ordering::Relaxed);
            joined(reading.join(), "the reader")?;
            rates.borrow_mut().push(moved as f64 / seconds);
            used.borrow_mut().push(time? / seconds);
            took
        })
    };
    let mut arms = [
        Arm::variant("undisturbed".to_owned(), undisturbed),
        Arm::variant("beside reads".to_owned(), beside),
    ];
    let rounds = bench.rounds(&mut arms)?;
    drop(arms);
    let middle = |values: &RefCell<Vec<f64>>| {
        median(&values.borrow()).ok_or_else(|| Failure::new("nothing was read"))
    };
    let (rate, used) = (middle(&rates)?, middle(&used)?);
    if rate < FULL * GIGABIT as f64 {
        let rate = rate / 1e6;
        return Err(Failure::new(format!("only {rate:.0} MB/s were read, not the link's rate")));
    }
    let note = format!(
        "{:.0} MB/s are read meanwhile, for which its daemon has {:.0} % of a CPU",
        rate / 1e6,
        used * 1e2
    );
    Ok(Disturbed { ratio: rounds.all_ratio(1, 0)?, rounds, note })
}
