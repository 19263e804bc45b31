//! `bench truth`: the model, and the sizes that it leads to, against this machine.
//!
//! For each path, load and length: the candidates that the planner compares, with what it predicts
//! and what they take ([`candidates`]); and `auto` against every size set by hand ([`sweep`]). Then
//! `auto` against other programs with their own size set by hand ([`knobs`]). Loads are on real
//! daemons: a shaped link between namespaces, a competitor, delays that the daemons inject
//! ([`scene`]).

mod candidates;
mod knobs;
mod plot;
mod scene;
mod sweep;
mod table;

use std::fs;
use std::path::{Path as FilePath, PathBuf};

use self::scene::{BLOCKS, Load, Nodes, Path};
use self::sweep::Effort;
use self::table::Study;
use crate::failure::{Doing as _, Failure};
use crate::machine::{Cpus, Machine};
use crate::nodes::profile_name;
use crate::report::{Report, Row, Unit};
use crate::rig::PROFILE;
use crate::rows::{KIB, MIB};
use crate::stats::{Bar, Verdict};
use crate::{clock, contest, readme};

/// Lengths of a quick run.
const QUICK: [usize; 2] = [64 * KIB, MIB];

/// Arguments of `bench truth`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    run: crate::Run,
    /// Only transfers of 64 KiB and 1 MiB, in few rounds, and other programs only where --only
    /// names them: three minutes instead of twenty-five.
    #[arg(long, conflicts_with = "docs")]
    quick: bool,
    /// Write every size, candidate and setting to truth.csv in that directory, and draw truth.svg.
    /// With --docs, both are also written to docs/figures.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

pub(crate) fn run(arguments: Arguments) -> Result<u8, Failure> {
    let Arguments { run, quick, plots } = arguments;
    if run.docs && !run.only.is_empty() {
        return Err(Failure::new("--docs needs all rows of one run: leave --only out"));
    }
    crate::hear_interrupts()?;
    let begun = clock::now();
    let effort = Effort::new(run.rounds, quick);
    let blocks = if quick { &QUICK[..] } else { &BLOCKS };
    let directory = crate::beside_this(run.dir)?;
    let report = Report::new("truth", Machine::here(), effort.rounds());
    // First: what measures is kept on one CPU.
    let cpus = Cpus::here();
    let without_others = quick && run.only.is_empty();
    let mut measured = Measured { report, study: Study::default(), only: run.only, cpus, effort };
    let data = scene::make_data(&directory)?;
    for load in Load::ALL {
        measured.cells(load, blocks, data.path())?;
    }
    if !without_others {
        measured.knobs(data.path())?;
    }
    let Measured { mut report, study, .. } = measured;
    report.rows.extend(study.of_model());
    if report.rows.is_empty() {
        return Err(Failure::new("no such row; names are as in file-quiet-1m and nbdcopy-256m"));
    }
    report.seconds = begun.elapsed().as_secs_f64();
    print!("{}", if run.json { report.json() } else { report.text() });
    if let Some(directory) = plots {
        write(&directory, &study)?;
    }
    if run.docs {
        write(FilePath::new("docs/figures"), &study)?;
        let part = study.markdown(&report.machine, report.rounds, report.rounds_discarded);
        readme::write_part(FilePath::new("."), "docs/benchmarks.md", "truth", &part)?;
    }
    Ok(report.exit_code())
}

fn write(directory: &FilePath, study: &Study) -> Result<(), Failure> {
    fs::create_dir_all(directory).doing(directory.display())?;
    for (name, text) in [("truth.csv", study.csv()), ("truth.svg", plot::svg(study)?)] {
        let path = directory.join(name);
        fs::write(&path, text).doing(path.display())?;
    }
    Ok(())
}

/// Results of the run so far.
struct Measured {
    report: Report,
    study: Study,
    only: Vec<String>,
    cpus: Cpus,
    effort: Effort,
}

impl Measured {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part))
    }

    /// Measures the cells of a load, on daemons of their own.
    fn cells(&mut self, load: Load, blocks: &[usize], data: &FilePath) -> Result<(), Failure> {
        let paths = Path::ALL.into_iter().filter(|path| load.is_on(*path));
        let cells = paths.flat_map(|path| blocks.iter().map(move |block| (path, *block)));
        let cells: Vec<(Path, usize)> =
            cells.filter(|(path, block)| self.wants(&sweep::name(*path, load, *block))).collect();
        if cells.is_empty() {
            return Ok(());
        }
        let nodes = match Nodes::start(load, self.cpus, data) {
            Ok(nodes) => nodes,
            Err(failure) => return self.add(load.name(), Err(failure), Verdict::Unchecked),
        };
        for (path, block) in cells {
            let caller = nodes.caller(path, block);
            let effort = self.effort;
            let cell = caller.and_then(|caller| sweep::measure(&caller, (path, load), effort));
            let row = cell.map(|cell| {
                self.report.rounds_discarded += cell.discarded;
                let row = table::row_of_cell(&cell);
                self.study.cells.push(cell);
                row
            });
            self.add(&sweep::name(path, load, block), row, Verdict::Invalid)?;
        }
        Ok(())
    }

    fn knobs(&mut self, data: &FilePath) -> Result<(), Failure> {
        for knob in knobs::KNOBS {
            if !self.wants(knob.name) {
                continue;
            }
            let (cpus, effort) = (self.cpus, self.effort);
            let nodes = Nodes::start(Load::Quiet, cpus, data);
            let sweep = nodes.and_then(|nodes| knob.measure(&nodes, cpus, data, effort));
            let row = sweep.map(|sweep| {
                self.report.rounds_discarded += sweep.discarded;
                let row = table::row_of_sweep(&sweep);
                self.study.sweeps.push(sweep);
                row
            });
            self.add(knob.name, row, Verdict::Unchecked)?;
        }
        Ok(())
    }

    /// Adds a row, or one of that verdict with the reason why there is none, and shows it: a run of
    /// many minutes that is broken off has printed its results so far.
    fn add(
        &mut self,
        name: &str,
        row: Result<Row, Failure>,
        otherwise: Verdict,
    ) -> Result<(), Failure> {
        contest::check()?;
        let mut row = row.unwrap_or_else(|failure| {
            let (profile, bar) = (profile_name(PROFILE), Bar::AtMost(f64::NAN));
            let mut row = Row::unchecked(name, &profile, Unit::Ratio, bar, failure.to_string());
            row.verdict = otherwise;
            row
        });
        row.command = format!("bench truth --only {name}");
        eprintln!("bench: {name}: {}", row.in_short());
        self.report.rows.push(row);
        Ok(())
    }
}
