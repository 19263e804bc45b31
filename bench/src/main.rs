//! `bench`: piped measured against what the machine can do without it.
//!
//! `bench floors` compares each promise of the project (a bar) with a floor: the same work done by
//! raw io_uring, in the same run, in interleaved rounds, so that a noisy machine is noisy for both.
//! `bench service` compares piped undisturbed with piped disturbed, and with other programs.
//! `bench pipelines` holds the planner's plans against bounds that no plan can beat. `bench peers`
//! compares piped with other programs that do the same. `bench ab` compares two builds. See
//! [`stats`] for the verdicts, [`raw`] for the floors, [`rows`] for the bars.

mod ab;
mod admin;
mod anatomy;
mod bulk;
mod clock;
mod contest;
mod copiers;
mod dials;
mod failure;
mod flood;
mod kernels;
mod lines;
mod load;
mod machine;
mod nbd;
mod newcomer;
mod nodes;
mod outside;
mod raw;
mod readme;
mod report;
mod rig;
mod rows;
mod scale;
mod sensitivity;
mod simulate;
mod stats;
mod steps;
mod strace;
mod truth;
mod ucx;
mod walk;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use clap::{Args, Parser, Subcommand};
use piped_ring::allocations;

use crate::failure::{Doing as _, Failure};
use crate::rows::{Bench, Options};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Measurements of piped against floors.
#[derive(Debug, Parser)]
#[command(name = "bench", version)]
struct Arguments {
    #[command(subcommand)]
    group: Group,
}

#[derive(Debug, Subcommand)]
enum Group {
    /// Compare each promise with raw io_uring on this machine. Exit code: 0 all hold, 1 some fail,
    /// 2 none fails but some are undecided or invalid, 3 the run broke off.
    Floors(Run),
    /// Measure what an operator relies on: limits that change, neighbours that die, copies. Exit
    /// codes as of floors.
    Service(Run),
    /// Measure messages between clients: eager, by rendezvous, and by the measured threshold. Exit
    /// codes as of floors.
    Buffers(Run),
    /// Measure communication beside computation: strip mining, tiled loops. Needs root. Exit codes
    /// as of floors.
    Overlap(Run),
    /// Measure authenticated and encrypted lanes, and the effect of strangers that connect. Needs
    /// root. Exit codes as of floors.
    Security(Run),
    /// Measure memory that programs lend: reads into each kind beside the arena's own, and 1 GiB
    /// that is lent beside another client. Exit codes as of floors.
    Memory(Run),
    /// Measure two shards on two CPUs against one: reads of this node's disk, and messages between
    /// clients of both. Exit codes as of floors.
    Shards(Run),
    /// Measure gets of 4 KiB beside 1000 sessions that do nothing against beside one, and between
    /// nodes with 256 peers against nodes with one. Needs some GB of memory, and for the counts
    /// permission to trace. Exit codes as of floors.
    Crowd(Run),
    /// Measure the planner: how far from the best possible its plans are, how long it takes, and
    /// what it gains where a disk's latency differs from read to read. Exit codes as of floors.
    Pipelines(Run),
    /// Measure names of a peer's directory, and what is known of its files, against gets and the
    /// kernel here. Exit codes as of floors.
    Names(Run),
    /// Measure files of a peer as block devices: nbdkit with piped's plugin against servers of NBD
    /// at that peer. Needs nbdkit, and root for the link of 1 Gbit/s. Exit codes as of floors.
    Nbd(Run),
    /// Measure the Python package against the client of Rust, and against what Python programs load
    /// weights by. Needs python3 with venv, and PyPI the first time. Exit codes as of floors.
    Python(Run),
    /// Measure how soon a node follows what an etcd and a name server say of its peers. Needs
    /// etcd-server, etcd-client and dnsmasq-base. Exit codes as of floors.
    Discovery(Run),
    /// Measure piped beside other programs that do the same, where they are installed, and beside
    /// itself in other places. Exit codes as of floors.
    Peers(Run),
    /// Measure two nodes in network namespaces of their own, with link and disk as slow as a row
    /// wants them. Needs root. Exit codes as of floors.
    Rig(rig::Arguments),
    /// Compare dials with what calibration reads back, on two daemons. Exit code: 0 all holds, 1
    /// some does not, 3 the run broke off.
    Dials(dials::Arguments),
    /// Measure how much slower reads, gets and copies become when one parameter of one stage does,
    /// on two daemons.
    Sensitivity(sensitivity::Arguments),
    /// Hold the model against this machine: for each path, load and length its candidates,
    /// predicted and measured, and `auto` against every size set by hand; then against other
    /// programs' own sizes. Needs root for the link of 1 Gbit/s. Exit codes as of floors.
    Truth(truth::Arguments),
    /// Compare two builds in interleaved pairs: times, CPU time, and instructions where they can be
    /// counted. Exit codes as of floors.
    Ab(ab::Arguments),
    /// Record the way of one get of 4 KiB, step by step: its functions, and how often it returns to
    /// a file it had left.
    Walk(walk::Arguments),
    /// Measure what each step of a get of 4 KiB and of a read of 1 MiB takes in the client and in
    /// both daemons: instructions, system calls, time. Needs permission to trace.
    Anatomy(anatomy::Arguments),
    /// Play very many nodes in virtual time: what they move, how evenly, how soon they are whole
    /// again after disturbances, and what a peer costs. Exit code: 0 all bars hold, 1 some do not,
    /// 2 interrupted, 3 the run broke off.
    Scale(scale::Arguments),
    /// Run very many simulated worlds with faults. Exit code: 0 all kept their promises, 1 some did
    /// not, 2 none failed but the run was interrupted or saw too little, 3 the run broke off.
    Simulate(simulate::Arguments),
    /// Write the front page again: README's table from docs/benchmarks.md, its picture from
    /// docs/figures/sizes.json.
    Front(Front),
    /// Serve one build for the comparison.
    #[command(hide = true)]
    AbArm(ab::arm::Arguments),
    /// Serve as the other process of the network's floor.
    #[command(hide = true)]
    RawServer,
    /// Serve as the process that a client of the bare path asks.
    #[command(hide = true)]
    RawAsked {
        /// Memory that is shared with the client.
        memory: PathBuf,
    },
    /// Serve a file as barely as can be.
    #[command(hide = true)]
    RawFiles {
        /// Path of the file to serve.
        file: PathBuf,
    },
    /// Accept connections, read and close.
    #[command(hide = true)]
    Sink {
        /// Address to listen on.
        listen: std::net::SocketAddr,
    },
    /// Register memory as a client and wait to be killed.
    #[command(hide = true)]
    Newcomer {
        /// Socket of the daemon.
        socket: PathBuf,
    },
    /// Play a world of very many nodes.
    #[command(hide = true)]
    ScaleWorld {
        /// The world, as JSON.
        world: String,
    },
    /// Become a program that ends with its parent.
    #[command(hide = true)]
    UnderParent {
        /// A network namespace, by the file that stands for it.
        #[arg(long, value_name = "FILE")]
        namespace: Option<PathBuf>,
        #[arg(last = true)]
        program: Vec<OsString>,
    },
}

/// Options for measuring and showing rows.
#[derive(Debug, Args)]
struct Run {
    /// One JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Only rows with a name that contains one of these, separated by commas or given again.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Rounds of a row, fixed beforehand; rows of seconds a round take fewer, and say so.
    #[arg(long, default_value_t = contest::ROUNDS_MAX,
        value_parser = clap::value_parser!(u32).range(2..=31))]
    rounds: u32,
    /// Write the rows into docs/benchmarks.md below the current directory, between the group's
    /// markers, and README's table anew. `overlap`, `security`, `memory`, `names`, `discovery`,
    /// `crowd`, `peers` and `rig` may write some rows; the others write all.
    #[arg(long, alias = "readme")]
    docs: bool,
    /// Directory for the file that is read, on a real disk. Default: beside this program.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// The front page, below the current directory.
#[derive(Debug, Args)]
struct Front {
    /// Measure the picture's points first. Needs root; takes some minutes.
    #[arg(long)]
    measure: bool,
    /// Rounds of each curve.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(2..=31))]
    rounds: u32,
    /// A directory on the disk to use. Default: beside this program.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().group {
        Group::RawServer => raw::net::serve().map(|()| 0).map_err(Failure::from),
        Group::RawAsked { memory } => raw::path::serve(&memory).map(|()| 0).map_err(Failure::from),
        Group::RawFiles { file } => raw::files::serve(&file).map(|()| 0).map_err(Failure::from),
        Group::Sink { listen } => flood::sink(listen).map(|()| 0),
        Group::Newcomer { socket } => newcomer::live(&socket).map(|()| 0),
        Group::ScaleWorld { world } => scale::play(&world).map(|()| 0),
        Group::UnderParent { namespace, program } => {
            Err(nodes::become_child(namespace.as_deref(), &program).into())
        }
        Group::Floors(run) => measure(&rows::FLOORS, run, None),
        Group::Service(run) => measure(&rows::SERVICE, run, None),
        Group::Buffers(run) => measure(&rows::BUFFERS, run, None),
        Group::Overlap(run) => {
            rig::require_root().and_then(|()| measure(&rows::OVERLAP, run, None))
        }
        Group::Security(run) => {
            rig::require_root().and_then(|()| measure(&rows::SECURITY, run, None))
        }
        Group::Memory(run) => measure(&rows::MEMORY, run, None),
        Group::Shards(run) => measure(&rows::SHARDS, run, None),
        Group::Crowd(run) => measure(&rows::CROWD, run, None),
        Group::Pipelines(run) => measure(&rows::PIPELINES, run, None),
        Group::Names(run) => measure(&rows::NAMES, run, None),
        Group::Nbd(run) => measure(&rows::NBD, run, None),
        Group::Python(run) => measure(&rows::PYTHON, run, None),
        Group::Discovery(run) => measure(&rows::DISCOVERY, run, None),
        Group::Peers(run) => measure(&rows::PEERS, run, None),
        Group::Rig(arguments) => rig::run(arguments),
        Group::Dials(arguments) => dials::run(arguments),
        Group::Sensitivity(arguments) => sensitivity::run(arguments),
        Group::Truth(arguments) => truth::run(arguments),
        Group::Ab(arguments) => ab::run(arguments),
        Group::Walk(arguments) => walk::run(arguments).map(|()| 0),
        Group::Anatomy(arguments) => anatomy::run(arguments).map(|()| 0),
        Group::Front(arguments) => front(arguments).map(|()| 0),
        Group::AbArm(arguments) => ab::arm::serve(&arguments).map(|()| 0),
        Group::Scale(arguments) => scale::run(&arguments),
        Group::Simulate(arguments) => simulate::run(&arguments),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("bench: {failure}");
            ExitCode::from(3)
        }
    }
}

fn beside_this(dir: Option<PathBuf>) -> Result<PathBuf, Failure> {
    if let Some(dir) = dir {
        return Ok(dir);
    }
    let program = std::env::current_exe()?;
    Ok(program.parent().unwrap_or_else(|| Path::new(".")).to_owned())
}

fn measure(group: &'static rows::Group, run: Run, plots: Option<PathBuf>) -> Result<u8, Failure> {
    let Run { json, only, rounds, docs, dir } = run;
    if docs && !only.is_empty() && !group.rows_stand_alone {
        return Err(Failure::new("--docs needs all rows of one run: leave --only out"));
    }
    hear_interrupts()?;
    let begun = clock::now();
    let directory = beside_this(dir)?;
    let mut bench = Bench::new(group, Options { only, rounds, directory, plots, progress: true });
    bench.run()?;
    bench.report.seconds = begun.elapsed().as_secs_f64();
    print!("{}", if json { bench.report.json() } else { bench.report.text() });
    if docs {
        let names = if group.rows_stand_alone { group.names() } else { Vec::new() };
        readme::write_rows(Path::new("."), group.name, &names, &bench.report.markdown())?;
    }
    Ok(bench.report.exit_code())
}

fn front(arguments: Front) -> Result<(), Failure> {
    let docs = Path::new("docs");
    if arguments.measure {
        let directory = beside_this(arguments.dir)?;
        rig::sizes::measure(arguments.rounds, &directory, docs)?;
    }
    rig::sizes::draw(docs)?;
    readme::write_front(Path::new("."))
}

/// Ctrl-C and SIGTERM end the run between two measurements, the second time at once: everything
/// started is taken down by its owner, or by the kernel.
fn hear_interrupts() -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.doing("a runtime for signals")?;
    let (mut interrupt, mut terminate) = {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if contest::INTERRUPTED.swap(true, Ordering::Relaxed) {
                    std::process::exit(3);
                }
            }
        });
    });
    Ok(())
}
