//! A loop nest in three dimensions over a grid of processes on one node or several:
//!
//! ```text
//! tiled_stencil --node alpha=/run/a.sock [--node beta=/run/b.sock ..] [--grid 3x3]
//!     [--size 24x24x4096] [--heights 16,64,auto] [--schedule overlapping|non-overlapping|both]
//!     [--work 1] [--repeat 1] [--check yes|no] [--name stencil] [--rank R]
//! ```
//!
//! Process number `x + y · p_x` of the grid runs on the nodes by turns, which call each other by
//! the names given here. Without `--rank` the program starts itself once for each of them on this
//! machine, has them run every height step by step, and shows what they took beside the model; with
//! it, it is one of them, started by hand on its node with the same arguments. Every process
//! compares what it computed bit for bit with the sequential loop.

mod arguments;
mod kernel;
mod sweep;

use std::error::Error;
use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::process::ExitCode;
use std::time::Duration;

use piped_client::{
    Axes, ClientBuilder, Schedule, Tile, TileHeight, TileOptions, TilePipeline, Tiling,
};

use arguments::Arguments;
use kernel::Column;

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|it| it == "--help") {
        println!("{}", arguments::USAGE);
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::parse(std::env::args().skip(1));
    let done = arguments.and_then(|arguments| match arguments.rank {
        Some(rank) => {
            process(&arguments, rank).map_err(|error| format!("process {rank}: {error}").into())
        }
        None => sweep::run(&arguments),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tiled_stencil: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One process of the grid. Says a line of everything it did.
fn process(arguments: &Arguments, rank: u32) -> Result<(), Box<dyn Error>> {
    let (space, at) = (arguments.space, arguments.place(rank));
    let grid = Axes { x: arguments.grid.x.get(), y: arguments.grid.y.get() };
    let mut column = Column::new(space, grid, at);
    let wanted = arguments.check.then(|| kernel::sequential(space));
    let options = TileOptions::new(&arguments.name, arguments.grid, at)
        .edge_bytes(column.edge_bytes())
        .height_max(arguments.height_max())
        .patience(Duration::from_secs(20));
    let client = ClientBuilder::new().connect(&arguments.node(at).socket)?;
    let mut pipeline = TilePipeline::open(&client, options, |place| arguments.peer(at, place))?;
    for step in arguments.steps() {
        await_turn(arguments)?;
        column.clear();
        let depth = space.depth as u64;
        let report = pipeline.run(depth, step.height, step.schedule, |it| column.compute(it))?;
        if let Some(place) = wanted.as_deref().and_then(|all| column.differs_from(all)) {
            return Err(format!("the point at {place:?} is another").into());
        }
        say(&format!(
            "{} {} {} {} {}",
            report.tiles,
            report.height,
            report.seconds,
            report.compute_seconds,
            report.blocked_seconds
        ))?;
        await_turn(arguments)?;
        say(&alone(&mut column, depth, report.height).to_string())?;
        await_turn(arguments)?;
        // Only where nobody is before is a height chosen, so only there is it measured what for.
        let tiling = match (rank, step.height) {
            (0, TileHeight::Auto) => pipeline.tiling(depth, step.schedule)?,
            _ => None,
        };
        say(&tiling.map_or_else(String::new, described))?;
    }
    Ok(())
}

/// The computation without any communication, in seconds: what the communication adds to it is the
/// difference.
fn alone(column: &mut Column, depth: u64, height: u64) -> f64 {
    let edge = column.edge_bytes();
    let bytes = |edge: usize| vec![0; edge * height as usize];
    let (before, mut after) = ([bytes(edge.x), bytes(edge.y)], [bytes(edge.x), bytes(edge.y)]);
    let begun = now();
    let mut first = 0;
    while first < depth {
        let rows = first..depth.min(first + height);
        first = rows.end;
        let [x, y] = &mut after;
        column.compute(&mut Tile {
            rows,
            before: Axes { x: Some(&before[0]), y: Some(&before[1]) },
            after: Axes { x: Some(x), y: Some(y) },
        });
    }
    (now() - begun).as_secs_f64()
}

#[expect(clippy::disallowed_methods, reason = "a program that times itself")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// The numbers of a model, for [`sweep`].
fn described(tiling: Tiling) -> String {
    let Tiling { compute, comm_startup, comm, start_dma, sync, .. } = tiling;
    format!("{compute} {comm_startup} {comm} {start_dma} {sync}")
}

/// Processes that were started together take every step together.
fn await_turn(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    if arguments.turns && stdin().lock().read_line(&mut String::new())? == 0 {
        return Err("another process failed".into());
    }
    Ok(())
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// One run of all processes.
#[derive(Debug, Clone, Copy)]
struct Step {
    schedule: Schedule,
    height: TileHeight,
}
