//! `bench scale`: very many nodes in virtual time, with the engine and the control thread that
//! ship.
//!
//! The worlds are in `system-tests`. This file says which are run, and judges what they show. All
//! figures are virtual time, counts and bytes of the heap as they were asked for: a seed gives the
//! same ones on every machine. What a run takes here goes to the log alone. Each world is played by
//! a process of its own.

mod apart;
mod churn;
mod plot;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use system_tests::scale::{File, Peers, Scene};

pub(crate) use self::apart::play;
use self::apart::{Play, World};
use self::table::{Idle, Played, Study};
use crate::failure::{Doing as _, Failure};
use crate::{contest, hear_interrupts, readme};

/// Sizes of worlds that rest, as parts of the whole number of nodes.
const PARTS: [usize; 4] = [8, 4, 2, 1];

/// Nodes of further worlds, with `--docs`, and how many others each of them asks. All of them know
/// each other where they are only found.
const MANY: usize = 1000;
const MANY_ASK: usize = 16;

/// With `--docs`, how many others a node asks in a world with disasters, and for how many bytes at
/// once.
const DISASTERS_ASK: usize = 4;
const DISASTERS_BLOCK: u64 = 16 << 10;

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
    /// broadcast, incast, replicas, restarts, partition, discovery.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Instead of scenes: so many worlds with restarts, partitions, jumping clocks and lost
    /// sources, from that seed on. Exit code: 0 all kept their promises, 1 some did not, 2 the run
    /// was interrupted.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Number of such worlds at once. Default: one on each CPU.
    #[arg(long, value_name = "N", requires = "seeds",
        value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Draw scale.svg in that directory.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Write the tables into docs/benchmarks.md below the current directory, and draw
    /// docs/figures/scale.svg. With `--seeds`: write the table of disasters, of nodes that ask few.
    #[arg(long, conflicts_with_all = ["nodes", "peers", "seed", "block", "staging", "only"])]
    docs: bool,
}

impl Arguments {
    fn world(&self, play: Play, nodes: usize) -> World {
        let world = World::new(play, nodes).with_blocks(self.block << 10).with_seed(self.seed);
        let world = self.peers.map_or(world, |peers| world.asking(peers.into()));
        self.staging.map_or(world, |mib| world.with_staging(mib << 20))
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part))
    }
}

/// Plays the scenes. Returns the exit code: 0 all bars hold, 1 some do not, 2 interrupted.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, Failure> {
    hear_interrupts()?;
    let nodes = usize::from(arguments.nodes);
    if let Some(seeds) = arguments.seeds {
        let mut world = arguments.world(Play::Churn(File::OfEach), nodes);
        if arguments.docs {
            world = world.asking(DISASTERS_ASK).with_blocks(DISASTERS_BLOCK);
        }
        let lived = churn::live(world, seeds, arguments.threads)?;
        let text = lived.markdown(&world);
        print!("{text}");
        if arguments.docs && lived.is_whole(seeds) {
            readme::write_part(Path::new("."), "docs/benchmarks.md", "disasters", &text)?;
        }
        return Ok(lived.exit_code(seeds));
    }
    let scene = |scene, nodes| arguments.world(Play::Scene(scene), nodes);
    let mut study = Study::new(scene(Scene::AllToAll, nodes).options());
    if arguments.wants("idle") {
        let idle = |peers, nodes| arguments.world(Play::Idle(peers), nodes);
        let alone = idle(Peers::Connected, 2).asking(0).figures();
        let alone = alone.map_err(Failure::new)?;
        for (peers, part) in Peers::ALL.into_iter().flat_map(|it| PARTS.map(|part| (it, part))) {
            let world = idle(peers, (nodes / part).max(2));
            study.add_idle(Idle::new((world.options(), peers), world.figures(), &alone));
        }
        if arguments.docs {
            let world = idle(Peers::Found, MANY);
            study.add_idle(Idle::new((world.options(), Peers::Found), world.figures(), &alone));
        }
    }
    let wanted = Scene::ALL.into_iter().filter(|scene| arguments.wants(scene.name()));
    let mut worlds: Vec<(Scene, World)> = wanted.map(|it| (it, scene(it, nodes))).collect();
    if arguments.docs {
        let many = |it| (it, scene(it, MANY).asking(MANY_ASK));
        worlds.extend([Scene::AllToAll, Scene::Discovery].map(many));
    }
    for (scene, world) in worlds {
        study.add(Played::new(scene, world.options(), world.figures()));
    }
    print!("{}", study.text());
    for directory in arguments.plots.iter().map(PathBuf::as_path) {
        write(directory, &study)?;
    }
    if contest::interrupted() {
        return Ok(2);
    }
    if arguments.docs {
        write(Path::new("docs/figures"), &study)?;
        readme::write_part(Path::new("."), "docs/benchmarks.md", "scale", &study.markdown())?;
    }
    Ok(u8::from(!study.all_hold()))
}

fn write(directory: &Path, study: &Study) -> Result<(), Failure> {
    fs::create_dir_all(directory).doing(directory.display())?;
    let path = directory.join("scale.svg");
    fs::write(&path, plot::svg(study)?).doing(path.display())
}
