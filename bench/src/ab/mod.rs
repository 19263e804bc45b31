//! `bench ab`: one build against another, in pairs.
//!
//! ```text
//!                 ┌─ OLD/bench ab-arm ── OLD/piped (a) ── OLD/piped (b)
//!  bench ab ──────┤         tasks by name, one arm at a time
//!                 └─ NEW/bench ab-arm ── NEW/piped (a) ── NEW/piped (b)
//! ```
//!
//! Both builds run all the time, and take turns of a tenth of a second, so a longer disturbance of
//! the machine hits both. The one that waits sleeps. The tasks are in [`tasks`], the counts in
//! [`counts`]. Where the CPU counts no instructions, those of a get are counted in [`stepped`].

pub(crate) mod arm;
pub(crate) mod counts;
pub(crate) mod process;
pub(crate) mod protocol;
mod report;
pub(crate) mod stepped;
mod tasks;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use piped_core::modes::Profile;

use self::counts::Counts;
use self::process::{Arm, PROCESSES};
use self::protocol::Measured;
use self::report::{Counting, Process};
use self::tasks::{COPIED, TASKS};
use crate::contest::{self, Rounds};
use crate::failure::{Doing as _, Failure};
use crate::machine::Machine;
use crate::nodes::profile_name;
use crate::raw::disk::make_file;
use crate::report::{Report, Row, Unit};
use crate::stats::{Bar, Interval, Verdict};
use crate::{clock, rows};

/// Largest ratio for a new build; anything above is no longer noise.
const BAR: Bar = Bar::AtMost(1.02);

/// Length of a turn, in seconds.
const TURN: f64 = 0.1;

/// Compares two builds. DIR has the release binaries of one: `bench`, `piped` and `pipectl`, as
/// `cargo build --release --target-dir … -p piped -p pipectl -p bench` puts them into `release`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The build to compare with.
    #[arg(long, value_name = "DIR")]
    old: PathBuf,
    /// The build that is compared. Default: the directory of this program.
    #[arg(long, value_name = "DIR")]
    new: Option<PathBuf>,
    /// Only rows with a name that contains one of these, separated by commas or given again.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Rounds of a row, fixed beforehand: a turn of each build.
    #[arg(long, default_value_t = contest::ROUNDS_MAX,
        value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: u32,
    /// Profile of all daemons. With a profile that spins, a daemon also spins while the other build
    /// has its turn.
    #[arg(long, default_value_t = Profile::Balanced, value_parser = profile)]
    profile: Profile,
    /// One JSON document instead of tables.
    #[arg(long)]
    json: bool,
    /// Directory for the files that are read and copied, on a real disk. Default: beside this
    /// program.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// A profile by its word in the configuration.
pub(crate) fn profile(text: &str) -> Result<Profile, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

/// Measures both builds and prints the comparison.
pub(crate) fn run(arguments: Arguments) -> Result<u8, Failure> {
    let Arguments { old, new, only, rounds, profile, json, dir } = arguments;
    let wanted = |name: &str| only.is_empty() || only.iter().any(|part| name.contains(part));
    let names: Vec<&str> =
        TASKS.iter().map(|(name, _)| *name).filter(|name| wanted(name)).collect();
    if names.is_empty() {
        let all: Vec<&str> = TASKS.iter().map(|(name, _)| *name).collect();
        return Err(Failure::new(format!("no such row; there are {}", all.join(", "))));
    }
    crate::hear_interrupts()?;
    let begun = clock::now();
    let new = crate::beside_this(new)?;
    let data = rows::make_data(&crate::beside_this(dir)?)?;
    if names.iter().any(|name| name.starts_with("cp")) {
        let (name, bytes) = COPIED;
        make_file(&data.path().join(name), bytes).doing("a file to copy")?;
    }
    let start = |name: &'static str, build: &Path| {
        let arm = Arm::start(name, build, profile, data.path());
        arm.map(RefCell::new).map_err(|failure| failure.within(format!("{name} build")))
    };
    let arms = [start("old", &old)?, start("new", &new)?];
    let missing = counts::missing();
    let mut report = Report::new("ab", Machine::here(), rounds);
    let mut processes = Vec::new();
    for name in names {
        eprintln!("bench: {name}");
        let found = measure(&arms, name, rounds, missing.is_none());
        contest::check()?;
        let mut row = match found {
            Ok(found) => {
                report.rounds_discarded += found.rounds.discarded;
                processes.extend(found.processes(name));
                found.row(name, profile)
            }
            Err(failure) => {
                let bar = Bar::AtMost(f64::NAN);
                let mut row = Row::unchecked(name, "-", Unit::FineRatio, bar, failure.to_string());
                row.verdict = Verdict::Invalid;
                row
            }
        };
        row.command = format!("bench ab --old {} --only {name}", old.display());
        eprintln!("bench: {name}: {}", row.in_short());
        report.rows.push(row);
    }
    drop(arms);
    let counting = match missing {
        None => Counting::Hardware,
        Some(missing) if report.rows.iter().any(|row| row.name == stepped::TASK) => {
            eprintln!("bench: {}, step by step", stepped::TASK);
            let count = |name, build: &Path| stepped::count(name, build, profile, data.path());
            let counts = count("old", &old).and_then(|old| Ok([old, count("new", &new)?]));
            contest::check()?;
            match counts {
                Ok(counts) => {
                    processes.extend(stepped::processes(&counts));
                    Counting::Steps { missing }
                }
                Err(failure) => {
                    Counting::Nothing { missing: format!("{missing}; by steps: {failure}") }
                }
            }
        }
        Some(missing) => Counting::Nothing { missing },
    };
    report.seconds = begun.elapsed().as_secs_f64();
    let text = match json {
        true => report::json(&report, &processes, &counting),
        false => report::text(&report, &processes, &counting),
    };
    print!("{text}");
    Ok(report.exit_code())
}

/// Results of the rounds of a row.
struct Found {
    rounds: Rounds,
    /// Turns of each arm, by the number of the round less 1.
    turns: [Vec<Turn>; 2],
}

/// One turn: the client's measurement, and the work of each process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) measured: Measured,
    pub(crate) counts: [Counts; PROCESSES.len()],
}

fn measure(
    arms: &[RefCell<Arm>; 2],
    task: &str,
    rounds: u32,
    with_hardware: bool,
) -> Result<Found, Failure> {
    let turns = [RefCell::default(), RefCell::default()];
    let mut contestants: Vec<_> = arms
        .iter()
        .zip(&turns)
        .map(|(arm, turns): (_, &RefCell<Vec<Turn>>)| {
            contest::Arm::variant(arm.borrow().name.to_owned(), move || {
                let turn = arm.borrow_mut().turn(task, TURN, with_hardware)?;
                turns.borrow_mut().push(turn);
                Ok(turn.measured.seconds)
            })
        })
        .collect();
    // Sessions are opened, and the estimators see the paths.
    contest::run_long(1, &mut contestants)?;
    turns.iter().for_each(|turns| turns.borrow_mut().clear());
    let rounds = contest::run_long(rounds, &mut contestants)?;
    drop(contestants);
    Ok(Found { rounds, turns: turns.map(RefCell::into_inner) })
}

impl Found {
    fn row(&self, name: &str, profile: Profile) -> Row {
        let told = |arm| self.rounds.all_of(arm).map_or(f64::NAN, |it| it.median * 1e6);
        let note = format!("old {:.2} us, new {:.2} us", told(0), told(1));
        let profile = profile_name(profile);
        match self.rounds.all_ratio(1, 0) {
            Ok(found) => Row::judged(name, &profile, Unit::FineRatio, found, BAR, note)
                .with_arms(&self.rounds, Unit::Seconds),
            Err(failure) => {
                Row::unchecked(name, &profile, Unit::FineRatio, BAR, failure.to_string())
            }
        }
    }

    /// Work of each process for a request.
    fn processes(&self, row: &str) -> Vec<Process> {
        let figures = |what: &'static str, of: fn(&Counts) -> Option<f64>| {
            PROCESSES.iter().enumerate().filter_map(move |(number, process)| {
                let per_request = |turn: &Turn| {
                    Some(of(&turn.counts[number])? / turn.measured.requests.max(1) as f64)
                };
                let pairs: Vec<(f64, f64)> = self
                    .rounds
                    .kept
                    .iter()
                    .filter_map(|round| {
                        let [old, new] = &self.turns;
                        let number = round.number as usize - 1;
                        Some((per_request(old.get(number)?)?, per_request(new.get(number)?)?))
                    })
                    .collect();
                let of_all = |of: fn(&(f64, f64)) -> f64| {
                    Interval::of_median(&pairs.iter().map(of).collect::<Vec<_>>())
                };
                Some(Process {
                    row: row.to_owned(),
                    process,
                    what,
                    old: of_all(|(old, _)| *old)?,
                    new: of_all(|(_, new)| *new)?,
                    ratio: of_all(|(old, new)| new / old).filter(Interval::is_finite),
                })
            })
        };
        figures("cpu_seconds", |counts| Some(counts.cpu_seconds))
            .chain(figures("instructions", |counts| Some(counts.hardware?[0])))
            .chain(figures("cycles", |counts| Some(counts.hardware?[1])))
            .collect()
    }
}
