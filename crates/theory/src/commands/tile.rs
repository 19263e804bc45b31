//! `pipectl model tile`: how high the tiles of a nested loop should be that processors pass on to
//! each other.

use std::num::NonZeroU32;

use clap::Args as ClapArgs;
use piped_cli::failure::Failure;
use piped_cli::output::{self, Output};
use piped_cli::table::Column::{self, Number, Text};
use piped_config::measured;
use piped_config::units;
use piped_model::tile::{Grid, Schedule, Tiling};
use serde::Serialize;

use super::micros;

const AFTER_HELP: &str = "\
Both schedules start transfers and agree with their neighbours in each plane: what overlapping pays
beside the longer of computation and communication, the other one pays as the start-up of its
communication, unless --comm-startup says otherwise. Example, the paper's 24 x 24 x 256K points on
3 x 3 processors: 64 points a unit of height, of 45 ns each
  pipectl model tile --depth 256K --grid 3x3 --compute 2.88us --comm 0.4us";

/// Arguments of `pipectl model tile`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = AFTER_HELP, allow_negative_numbers = true)]
pub(crate) struct TileArgs {
    /// D: points along the longest dimension, which stays on one processor (512K are 512·1024)
    #[arg(long, value_name = "N", value_parser = points)]
    depth: u64,

    /// Processors along the other two dimensions
    #[arg(long, value_name = "PXxPY", value_parser = grid)]
    grid: Grid,

    /// A·c: the computation of a unit of height on one processor (us)
    #[arg(long, value_name = "TIME", value_parser = measured::time)]
    compute: f64,

    /// The communication of a unit of height with a neighbour (us)
    #[arg(long, value_name = "TIME", value_parser = measured::time, default_value = "0")]
    comm: f64,

    /// What a communication costs besides, in both schedules [us; default: --start-dma and --sync
    /// where it does not overlap, 0 where it does]
    #[arg(long, value_name = "TIME", value_parser = measured::time)]
    comm_startup: Option<f64>,

    /// What starting a transfer costs the processor (us); the paper's, unless given
    #[arg(long, value_name = "TIME", value_parser = measured::time, default_value = "49.2us")]
    start_dma: f64,

    /// What agreeing with the neighbours costs in each plane (us); the paper's, unless given
    #[arg(long, value_name = "TIME", value_parser = measured::time, default_value = "75.2us")]
    sync: f64,

    /// Tell what this height takes, and not the best one
    #[arg(long, value_name = "Z", value_parser = points)]
    height: Option<u64>,
}

fn points(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.trim().strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 10),
        None => (text.trim(), 0),
    };
    let points = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    match points {
        // Every whole number up to here is exact in a float.
        Some(points) if (1..=1 << 53).contains(&points) => Ok(points),
        _ => Err("write a whole number above 0, as in 262144 or 256K".to_owned()),
    }
}

fn grid(text: &str) -> Result<Grid, String> {
    let processors = |text: &str| text.trim().parse::<NonZeroU32>().ok();
    let pair = text.split_once(['x', 'X', '*']);
    let pair = pair.and_then(|(x, y)| Some(Grid { x: processors(x)?, y: processors(y)? }));
    pair.ok_or_else(|| "write two numbers of processors, as in 3x3".to_owned())
}

/// The answer as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    depth: u64,
    grid: [u32; 2],
    schedules: Vec<ScheduleRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

/// A schedule with tiles of a whole height: the one asked for, or the best.
#[derive(Debug, Serialize)]
struct ScheduleRow {
    schedule: &'static str,
    height: u64,
    tiles: u64,
    planes: u64,
    latency_us: f64,
    /// Computation of a plane.
    compute_us: f64,
    comm_us: f64,
    /// z* over the reals, and its time.
    best_height: f64,
    best_latency_us: f64,
}

/// The loop as this schedule has it.
fn tiling(args: &TileArgs, schedule: Schedule) -> Result<Tiling, Failure> {
    let usual = match schedule {
        Schedule::NonOverlapping => args.start_dma + args.sync,
        Schedule::Overlapping => 0.0,
    };
    let tiling = Tiling {
        depth: args.depth as f64,
        grid: args.grid,
        compute: args.compute,
        comm_startup: args.comm_startup.unwrap_or(usual),
        comm: args.comm,
        start_dma: args.start_dma,
        sync: args.sync,
    };
    tiling.checked().map_err(|error| Failure::usage(error.to_string()))
}

pub(crate) fn run(args: &TileArgs, output: &Output, json: bool) -> Result<(), Failure> {
    if let Some(height) = args.height.filter(|height| *height > args.depth) {
        return Err(Failure::usage(format!(
            "--height: {height} is more than the depth of {}: give at most that",
            args.depth
        )));
    }
    let row = |schedule| Ok(row(args, &tiling(args, schedule)?, schedule));
    let schedules = Schedule::ALL.into_iter().map(row).collect::<Result<Vec<_>, Failure>>()?;
    let link_bound =
        schedules.iter().any(|row| row.schedule == "overlapping" && row.comm_us > row.compute_us);
    let report = Report {
        depth: args.depth,
        grid: [args.grid.x.get(), args.grid.y.get()],
        schedules,
        warning: link_bound.then(|| LINK_BOUND.to_owned()),
    };
    if json {
        return output::json(report);
    }
    table(output, &report)?;
    output.line("")?;
    output.prose(LEGEND, 0)?;
    if report.schedules.iter().any(|row| row.best_height == 0.0) {
        output.prose(NO_STARTUP, 0)?;
    }
    report.warning.map_or(Ok(()), |warning| output.prose(&format!("! {warning}."), 2))
}

const LINK_BOUND: &str = "overlapping, a tile's communication takes longer than its computation: \
                          the link is the bottleneck, and z* = sqrt(D·s/(2·(px-1+py-1)·A·c)) does \
                          not hold";

const LEGEND: &str = "HEIGHT: of a tile, in whole points. COMP, COMM: of one tile. z*: the best \
                      height if it need not be whole.";

const NO_STARTUP: &str = "Non-overlapping, no tile is too low where a communication costs nothing \
                          besides its data (--comm-startup).";

fn row(args: &TileArgs, tiling: &Tiling, schedule: Schedule) -> ScheduleRow {
    let whole = match args.height {
        Some(height) => tiling.at_whole_height(schedule, height),
        None => tiling.best_whole_height(schedule),
    };
    let best = tiling.best_height(schedule);
    ScheduleRow {
        schedule: schedule.name(),
        height: whole.height,
        tiles: whole.tiles,
        planes: whole.planes,
        latency_us: micros(whole.seconds),
        compute_us: micros(tiling.compute_seconds(whole.height as f64)),
        comm_us: micros(tiling.comm_seconds(whole.height as f64)),
        best_height: best.height,
        best_latency_us: micros(best.seconds),
    }
}

const COLUMNS: [Column; 8] = [
    Text("SCHEDULE"),
    Number("TIME"),
    Number("HEIGHT"),
    Number("TILES"),
    Number("PLANES"),
    Number("COMP"),
    Number("COMM"),
    Number("z*"),
];

fn table(output: &Output, report: &Report) -> Result<(), Failure> {
    let micro = |us: f64| units::seconds(us * 1e-6);
    let rows = report.schedules.iter().map(|row| {
        vec![
            row.schedule.to_owned(),
            micro(row.latency_us),
            row.height.to_string(),
            row.tiles.to_string(),
            row.planes.to_string(),
            micro(row.compute_us),
            micro(row.comm_us),
            format!("{:.1}", row.best_height),
        ]
    });
    output.table(&COLUMNS, rows.collect())
}
