//! `bench anatomy`: what each step of a request takes, in the client and in both daemons.
//!
//! ```text
//!  one CPU, one thread stepped at a time     instructions and system calls of each step
//!  two CPUs, full speed, in rounds           latency, CPU time, cycles, system calls, switches
//!  two CPUs, full speed, sampled             how the CPU time divides among the steps
//! ```
//!
//! A step is a set of modules ([`table`]). The line tables of the programs tell the module of each
//! instruction, so a step is what its source does, and no marks in the programs are needed.

mod budget;
mod calls;
mod census;
mod places;
mod report;
mod samples;
mod table;
mod work;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use piped_core::modes::Profile;

use self::budget::Budget;
use self::places::Places;
use self::report::{Document, Life, Process};
use self::samples::Looks;
use self::work::{Counters, Work};
use crate::ab::counts;
use crate::ab::process::{Arm, PROCESSES};
use crate::ab::stepped::Stepped;
use crate::failure::Failure;
use crate::lines::Tree;
use crate::machine::Machine;
use crate::{contest, readme, rows};

/// Seconds of requests before the rounds, for the estimators.
const WARM: f64 = 1.0;

/// Seconds of requests while the processes are looked at.
const SAMPLED: f64 = 4.0;

/// Reads that are stepped in each process. They take some seconds each, and no two have their
/// fragments come in alike.
const READS: usize = 7;

/// The document that has the tables.
const PERFORMANCE: &str = "docs/performance.md";

/// Requests with a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// A get of 4 KiB of another node's region.
    #[value(name = "get-4k")]
    Get,
    /// A read of 1 MiB of another node's file.
    #[value(name = "read-1m")]
    Read,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Get, Self::Read];

    /// Name as in `--only`.
    fn name(self) -> &'static str {
        match self {
            Self::Get => "get-4k",
            Self::Read => "read-1m",
        }
    }

    /// Its task of `bench ab`.
    fn task(self) -> &'static str {
        match self {
            Self::Get => "get-4k",
            Self::Read => "file-1m",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Get => "A get of 4 KiB of another node's region",
            Self::Read => "A read of 1 MiB of another node's file",
        }
    }
}

/// Measures what each step of a request takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Measure only this request.
    #[arg(long, value_enum)]
    only: Option<Kind>,
    /// Rounds for latency, CPU time and counts, a fifth of a second each.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(2..=31))]
    rounds: u32,
    /// Profile of the daemons.
    #[arg(long, default_value_t = Profile::Balanced, value_parser = crate::ab::profile)]
    profile: Profile,
    /// Directory with the binaries of a build, with line tables. Default: that of this program.
    #[arg(long, value_name = "DIR")]
    build: Option<PathBuf>,
    /// The source tree of that build.
    #[arg(long, value_name = "DIR", default_value = ".")]
    source: PathBuf,
    /// Directory for the file that is read, on a real disk. Default: beside this program.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// One JSON document instead of tables.
    #[arg(long)]
    json: bool,
    /// Write the tables into docs/performance.md below the current directory.
    #[arg(long)]
    docs: bool,
}

/// Measures, and prints the tables.
pub(crate) fn run(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { only, rounds, profile, build, source, dir, json, docs } = arguments;
    crate::hear_interrupts()?;
    let build = crate::beside_this(build)?;
    let data = rows::make_data(&crate::beside_this(dir)?)?;
    let event = census::event();
    let hardware = counts::missing();
    let setting = Setting {
        build: &build,
        data: data.path(),
        profile,
        rounds,
        counters: Counters { hardware: hardware.is_none(), calls: event.as_ref().ok().copied() },
    };
    let mut tree = Tree::new(&source);
    let mut document = Document::new(Machine::here(), profile, rounds);
    document.no_cycles = hardware;
    document.no_system_calls = event.err().map(|failure| failure.to_string());
    for kind in Kind::ALL.into_iter().filter(|kind| only.is_none_or(|only| only == *kind)) {
        let life = setting.life(kind, &mut tree, &mut document.no_times)?;
        document.lives.push(life);
    }
    print!("{}", if json { document.json()? } else { document.text() });
    if docs {
        let root = Path::new(".");
        readme::write_part(root, PERFORMANCE, "anatomy-steps", &table::markdown())?;
        for life in &document.lives {
            let name = format!("anatomy-{}", life.request);
            readme::write_part(root, PERFORMANCE, &name, &document.markdown(life))?;
        }
    }
    Ok(())
}

/// What is measured, and where.
struct Setting<'a> {
    build: &'a Path,
    data: &'a Path,
    profile: Profile,
    rounds: u32,
    counters: Counters,
}

impl Setting<'_> {
    fn life(
        &self,
        kind: Kind,
        tree: &mut Tree,
        no_times: &mut Option<String>,
    ) -> Result<Life, Failure> {
        let (mut budgets, idle): (Vec<Budget>, Vec<usize>) =
            self.stepped(kind, tree)?.into_iter().unzip();
        contest::check()?;
        eprintln!("bench: {}, at full speed", kind.name());
        let mut arm = Arm::start("only", self.build, self.profile, self.data)?;
        arm.ask(kind.task(), WARM)?;
        let work = Work::of(&mut arm, kind.task(), self.rounds, self.counters)?;
        contest::check()?;
        let mut covered = [None; PROCESSES.len()];
        match Looks::prepare(arm.processes()) {
            Ok(looks) => {
                let (turn, samples) = looks.during(&mut arm, kind.task(), SAMPLED)?;
                for ((place, found), cost) in samples.iter().enumerate().zip(&work.processes) {
                    let mut places = Places::of(arm.processes()[place], tree)?;
                    budgets[place].add(found, &mut places, cost.cpu_ns)?;
                    let looked = found.len() as f64 * samples::PERIOD as f64 / 1e9;
                    covered[place] = Some(looked / turn.counts[place].cpu_seconds);
                }
            }
            Err(failure) => *no_times = Some(failure.to_string()),
        }
        let processes = PROCESSES.into_iter().zip(budgets).zip(work.processes);
        let processes = processes.enumerate().map(|(place, ((process, budget), cost))| Process {
            process,
            idle_instructions: idle[place],
            cost,
            covered: covered[place],
            steps: budget.into_lines(),
        });
        Ok(Life {
            request: kind.name(),
            title: kind.title(),
            latency: work.latency,
            requests: work.requests,
            rounds_discarded: work.discarded,
            processes: processes.collect(),
        })
    }

    /// Instructions and system calls of a request in each process, and instructions when it is
    /// woken for nothing: of the request that takes the median of the recorded ones.
    fn stepped(&self, kind: Kind, tree: &mut Tree) -> Result<Vec<(Budget, usize)>, Failure> {
        let mut stepped = Stepped::start(kind.task(), "only", self.build, self.profile, self.data)?;
        let mut budgets = Vec::new();
        for (place, process) in PROCESSES.into_iter().enumerate() {
            eprintln!("bench: {}, {process}, step by step", kind.name());
            let requests = match kind {
                Kind::Get => stepped.requests(place)?,
                Kind::Read => stepped.recorded(place, READS)?,
            };
            let usual = &requests[requests.len() / 2];
            let mut places = Places::of(stepped.processes()[place], tree)?;
            budgets.push((Budget::of(usual.steps(), &mut places)?, usual.idle().len()));
        }
        Ok(budgets)
    }
}
