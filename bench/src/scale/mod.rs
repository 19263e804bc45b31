//! `bench scale`: very many nodes in virtual time, with the engine and the control thread that
//! ship.
//!
//! The worlds are in `system-tests`. This file says which are run, and judges what they show. All
//! figures are virtual time, counts and bytes of the heap as they were asked for: a seed gives the
//! same ones on every machine. What a run takes here goes to the log alone.

mod plot;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use piped_ring::allocations;
use system_tests::scale::{self, Figures, File, Machine, Options, Peers, Scene};
use system_tests::world::caught;

use self::table::{Idle, Played, Study};
use crate::contest::INTERRUPTED;
use crate::failure::{Doing as _, Failure};
use crate::{clock, hear_interrupts, raw, readme};

/// Sizes of worlds that rest, as parts of the whole number of nodes.
const PARTS: [usize; 4] = [8, 4, 2, 1];

/// Nodes of further worlds, with `--docs`, and how many others each of them asks.
const MANY: usize = 1000;
const MANY_ASK: usize = 16;

/// Arguments of `bench scale`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Number of nodes in each scene.
    #[arg(long, value_name = "N", default_value_t = 200,
        value_parser = clap::value_parser!(u16).range(2..=10_000))]
    nodes: u16,
    /// Number of others that each node asks, in scenes where all ask each other. Default: all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    peers: Option<u16>,
    /// Seed of all chance.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes of a block, in KiB.
    #[arg(long, value_name = "KIB", default_value_t = 64,
        value_parser = clap::value_parser!(u64).range(4..=1024))]
    block: u64,
    /// Staging of each node, in MiB. Default: as a daemon has it.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(4..))]
    staging: Option<u64>,
    /// Only scenes with a name that contains one of these, separated by commas: idle, all-to-all,
    /// broadcast, incast, restarts, partition, discovery.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Instead of scenes: so many worlds with restarts, partitions, jumping clocks and lost
    /// sources, from that seed on. Exit code: 0 all kept their promises, 1 some did not, 2 the run
    /// was interrupted.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Draw scale.svg in that directory.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Write the tables into docs/benchmarks.md below the current directory, and draw
    /// docs/figures/scale.svg.
    #[arg(long,
        conflicts_with_all = ["nodes", "peers", "seed", "block", "staging", "only", "seeds"])]
    docs: bool,
}

impl Arguments {
    fn options(&self, nodes: usize) -> Options {
        let mut machine = Machine::USUAL;
        machine.staging = self.staging.map_or(machine.staging, |mib| mib << 20);
        let all = Options::all(nodes, self.seed);
        Options {
            peers: self.peers.map_or(all.peers, usize::from),
            block: self.block << 10,
            machine,
            heap: allocations::held_by_this_thread,
            ..all
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part))
    }
}

/// Plays the scenes. Returns the exit code: 0 all bars hold, 1 some do not, 2 interrupted.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    hear_interrupts()?;
    if let Some(seeds) = arguments.seeds {
        return Ok(churn(arguments, seeds));
    }
    let nodes = usize::from(arguments.nodes);
    let mut study = Study::new(arguments.options(nodes));
    if arguments.wants("idle") {
        let alone = Options { peers: 0, ..arguments.options(2) };
        let alone = watched("nodes alone", || scale::idle(alone, Peers::Connected))?;
        for (peers, part) in Peers::ALL.into_iter().flat_map(|it| PARTS.map(|part| (it, part))) {
            let options = arguments.options((nodes / part).max(2));
            let name = format!("idle, {} nodes, {}", options.nodes, peers.name());
            let idle = watched(&name, || scale::idle(options, peers));
            let idle = idle.map_err(|error| error.to_string());
            study.add_idle(Idle::new((options, peers), idle, &alone));
        }
    }
    for scene in Scene::ALL.into_iter().filter(|scene| arguments.wants(scene.name())) {
        study.add(play(scene, arguments.options(nodes)));
    }
    if arguments.docs {
        let many = Options { peers: MANY_ASK, ..arguments.options(MANY) };
        for scene in [Scene::AllToAll, Scene::Broadcast] {
            study.add(play(scene, many));
        }
    }
    print!("{}", study.text());
    for directory in arguments.plots.iter().map(PathBuf::as_path) {
        write(directory, &study)?;
    }
    if arguments.docs {
        write(Path::new("docs/figures"), &study)?;
        readme::write_part(Path::new("."), "docs/benchmarks.md", "scale", &study.markdown())?;
    }
    let is_interrupted = INTERRUPTED.load(std::sync::atomic::Ordering::Relaxed);
    Ok(if is_interrupted { 2 } else { u8::from(!study.all_hold()) })
}

fn write(directory: &Path, study: &Study) -> Result<(), Failure> {
    fs::create_dir_all(directory).doing(directory.display())?;
    let path = directory.join("scale.svg");
    fs::write(&path, plot::svg(study)?).doing(path.display())
}

fn play(scene: Scene, options: Options) -> Played {
    let name = format!("{}, {} nodes", scene.name(), options.nodes);
    let found = watched(&name, || scene.play(options));
    Played::new(scene, options, found.map_err(|error| error.to_string()))
}

/// Runs a world, and says in the log what that took here.
fn watched(
    name: &str,
    world: impl FnOnce() -> Result<Figures, String>,
) -> Result<Figures, Failure> {
    if INTERRUPTED.load(std::sync::atomic::Ordering::Relaxed) {
        return Err(Failure::new("interrupted"));
    }
    let begun = clock::now();
    let mut found = Err(String::new());
    if let Some(broken) = caught(|| found = world()) {
        found = Err(format!("a promise was broken: {broken}"));
    }
    let seconds = begun.elapsed().as_secs_f64();
    raw::give_memory_back();
    match &found {
        Ok(it) => eprintln!(
            "bench: {name}: {} events in {seconds:.0} s; up {}, took {}, {:?} requests, {:?}",
            it.events, it.up, it.took, it.requests, it.costs
        ),
        Err(error) => eprintln!("bench: {name}: {error}"),
    }
    found.map_err(Failure::new)
}

/// Worlds with disasters, one after the other.
fn churn(arguments: &Arguments, seeds: u64) -> u8 {
    let (mut lived, mut failed, mut events) = (0, 0, 0);
    let (begun, mut simulated) = (clock::now(), Churn::default());
    for seed in arguments.seed..arguments.seed.saturating_add(seeds) {
        if INTERRUPTED.load(std::sync::atomic::Ordering::Relaxed) {
            break;
        }
        let options = Options { seed, ..arguments.options(usize::from(arguments.nodes)) };
        // Each second one has one file that all nodes have.
        let file = if seed % 2 == 0 { File::OfAll } else { File::OfEach };
        let mut told = Err(String::new());
        if let Some(broken) = caught(|| told = scale::churn(options, file)) {
            told = Err(broken);
        }
        lived += 1;
        match told {
            Ok(told) => {
                events += told.figures.events;
                simulated.add(&told);
                eprintln!("bench: seed {seed}: {told:?}", told = Churn::of(&told));
            }
            Err(error) => {
                failed += 1;
                println!("seed {seed}: {error}");
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{lived} worlds of {} nodes in {seconds:.0} s, {events} events: {failed} failed\n{:?}",
        arguments.nodes, simulated
    );
    match () {
        () if failed > 0 => 1,
        () if lived < seeds => 2,
        () => 0,
    }
}

/// What worlds with disasters went through.
#[derive(Debug, Default)]
struct Churn {
    restarts: u32,
    partitions: u32,
    jumps: u32,
    cuts: u32,
    losses: u32,
    requests: [u64; 2],
    dropped: u64,
    failures: std::collections::BTreeMap<String, u64>,
    /// The longest time until all connections were up again, in seconds.
    whole_again: f64,
}

impl Churn {
    fn of(told: &scale::Churned) -> Self {
        let mut churn = Self::default();
        churn.add(told);
        churn
    }

    fn add(&mut self, told: &scale::Churned) {
        let figures = &told.figures;
        self.restarts += told.restarts;
        self.partitions += told.partitions;
        self.jumps += told.jumps;
        self.cuts += told.cuts;
        self.losses += told.losses;
        self.requests = [0, 1].map(|kind| self.requests[kind] + figures.requests[kind]);
        self.dropped += figures.dropped;
        for (status, count) in &figures.failures {
            *self.failures.entry(status.clone()).or_default() += count;
        }
        self.whole_again = self.whole_again.max(figures.took.seconds());
    }
}
