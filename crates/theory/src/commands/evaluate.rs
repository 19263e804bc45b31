//! `pipectl model evaluate`: what a plan given by hand takes, and what happens meanwhile.

use std::ops::Range;

use clap::{Args as ClapArgs, ValueEnum};
use piped_cli::failure::Failure;
use piped_cli::output::{self, Output};
use piped_cli::table::Column::Number;
use piped_config::measured::{self, Size};
use piped_model::plan::{Algorithm, Level, Levels, Plan, Sizes};
use piped_model::simulate::{self, Trace};
use piped_model::{evaluate, servers::Servers, stage::Buffers};
use serde::Serialize;

use super::micros;
use super::path::{LISTS, PathArgs, RoomArgs, items};
use super::plan::FRAGMENTS_MAX;

const AFTER_HELP: &str = "\
--fragments has one list for all stages, one for each with `;` between them, or one for each run of
stages, named as `model plan` names it:
  --fragments '16KiB, 48KiB'    --fragments '0-3: 8 x 8KiB; 4: 2 x 32KiB'
The sizes of a list are in order; with --bytes its last size repeats until the transfer is complete.
Latency is that of the recurrence; what each stage did is from a simulation of the same plan.

Example, algorithm B of the paper, 13 + 13 small fragments for 2 of the disk:
  pipectl model evaluate --stages '36,36;26,124.5;37.5,124.5;37,39.5;4ms,5MB/s' \\
    --fragments '0-3: 12 x 2521, 2516, 12 x 2521, 2516; 4: 2 x 32KiB'";

/// Arguments of `pipectl model evaluate`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = format!("{LISTS}\n{AFTER_HELP}"))]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    path: PathArgs,

    /// The fragments: of all stages, of each, or of runs of them
    #[arg(long, value_name = "SIZE,...;SIZE,...", value_parser = fragments)]
    fragments: Fragments,

    /// Bytes of the transfer, if they are not the sum of the fragments
    #[arg(long, value_name = "SIZE", value_parser = measured::size)]
    bytes: Option<Size>,

    #[command(flatten)]
    room: RoomArgs,

    /// Also list each fragment at each stage (--visits=csv: this list alone, for other programs)
    #[arg(long, value_name = "FORM", value_enum, num_args = 0..=1, require_equals = true,
          default_missing_value = "table")]
    visits: Option<Form>,
}

/// How a list of visits is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A table for people
    Table,
    /// Comma-separated values for programs
    Csv,
}

/// Lists of sizes, with the stages that each is of if that is told.
#[derive(Debug, Clone)]
struct Fragments(Vec<Given>);

#[derive(Debug, Clone)]
struct Given {
    stages: Option<Range<usize>>,
    /// Sizes, and how often each is repeated.
    sizes: Vec<(u32, Size)>,
}

fn fragments(text: &str) -> Result<Fragments, String> {
    items(text, ";", given).map(Fragments)
}

fn given(text: &str) -> Result<Given, String> {
    let (stages, sizes) = match text.split_once(':') {
        Some((stages, sizes)) => (Some(run_of_stages(stages.trim())?), sizes),
        None => (None, text),
    };
    let size = |item: &str| {
        let (times, size) = item.split_once('x').unwrap_or(("1", item));
        let times = times.trim().parse().ok().filter(|times| *times > 0);
        let times = times.ok_or_else(|| {
            format!("`{item}` is no number of fragments: write one, as in 20 x 4KiB")
        })?;
        Ok((times, measured::size(size)?))
    };
    Ok(Given { stages, sizes: items(sizes, ",", size)? })
}

/// Reads a run of stages: `0-3`, or `4` alone.
fn run_of_stages(text: &str) -> Result<Range<usize>, String> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let ends = match text.split_once('-') {
        Some((first, last)) => number(first).zip(number(last)),
        None => number(text).map(|stage| (stage, stage)),
    };
    let ends = ends.filter(|(first, last)| first <= last);
    let run = ends.map(|(first, last)| first..last.saturating_add(1));
    run.ok_or_else(|| format!("`{text}` is no run of stages: write their numbers, as in 0-3"))
}

/// The answer as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    bytes: u64,
    latency_us: f64,
    /// The stage that is busy for longest.
    bottleneck: usize,
    /// Equation 4 for it: before it begins, from there until it is done, and after that.
    before_us: f64,
    during_us: f64,
    after_us: f64,
    stages: Vec<StageRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    visits: Option<Vec<VisitRow>>,
}

#[derive(Debug, Serialize)]
struct StageRow {
    stage: usize,
    fragments: usize,
    first_started_us: f64,
    last_left_us: f64,
    /// How long its server worked for it.
    busy_us: f64,
}

/// A fragment at a stage.
#[derive(Debug, Clone, Copy, Serialize)]
struct VisitRow {
    stage: usize,
    fragment: usize,
    bytes: u64,
    started_us: f64,
    /// When it left the stage's server.
    left_us: f64,
    /// When it was behind the stage: `L` later.
    departed_us: f64,
}

pub(crate) fn run(args: &EvaluateArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let (path, servers) = (args.path.path()?, args.path.servers()?);
    let buffers = args.room.buffers(&args.path)?;
    let plan = plan(args, path.len())?;
    let report = report(args, &path, &plan, &buffers, &servers)?;
    if json {
        return output::json(&report);
    }
    match (args.visits, &report.visits) {
        (Some(Form::Csv), Some(visits)) => csv(output, visits),
        _ => print(output, &report),
    }
}

/// The plan that the arguments tell.
fn plan(args: &EvaluateArgs, stages: usize) -> Result<Plan, Failure> {
    let Fragments(lists) = &args.fragments;
    let bytes = args.bytes.map(|bytes| args.path.whole_bytes("--bytes", bytes)).transpose()?;
    let refuse = |reason: String| Failure::usage(format!("--fragments: {reason}"));
    let told = lists.iter().filter(|list| list.stages.is_some()).count();
    if told > 0 && told < lists.len() {
        return Err(refuse("some lists name their stages: let all do, or none".to_owned()));
    }
    if told == 0 && lists.len() != 1 && lists.len() != stages {
        return Err(refuse(format!(
            "{} lists for {stages} stages: give one for each, or one for all",
            lists.len()
        )));
    }
    let levels = lists.iter().enumerate().map(|(index, list)| {
        let own = if lists.len() == 1 { 0..stages } else { index..index + 1 };
        let sizes = sizes(args, &list.sizes, bytes)
            .map_err(|reason| refuse(format!("list {}: {reason}", index + 1)))?;
        let sizes = Sizes::list(&sizes).map_err(|fault| refuse(fault.to_string()))?;
        Ok(Level { stages: list.stages.clone().unwrap_or(own), sizes })
    });
    let levels = levels.collect::<Result<Vec<Level>, Failure>>()?;
    let covered = levels.last().map_or(0, |level| level.stages.end);
    if covered != stages {
        return Err(refuse(format!("the lists end with stage {covered}, and there are {stages}")));
    }
    let levels = Levels::new(&levels).map_err(|fault| refuse(fault.to_string()))?;
    let whole = Plan::uniform(stages, 1, 0, Algorithm::Searched);
    Ok(Plan { levels, depth: args.room.depth(), ..whole })
}

/// A list of sizes, in bytes; with `bytes`, the last one repeated until that many are there.
fn sizes(
    args: &EvaluateArgs,
    list: &[(u32, Size)],
    bytes: Option<u64>,
) -> Result<Vec<u64>, String> {
    const MANY: &str = "that are more fragments than can be looked at: give larger ones";
    let most = FRAGMENTS_MAX as usize;
    let mut sizes = Vec::new();
    for &(times, size) in list {
        let bytes = args.path.whole_bytes("a size", size).map_err(|it| it.to_string())?;
        if sizes.len() + times as usize > most {
            return Err(MANY.to_owned());
        }
        sizes.extend(std::iter::repeat_n(bytes, times as usize));
    }
    let given: u64 = sizes.iter().fold(0, |sum: u64, &size| sum.saturating_add(size));
    let (Some(bytes), Some(&last)) = (bytes, sizes.last()) else { return Ok(sizes) };
    let Some(rest) = bytes.checked_sub(given) else {
        return Err(format!("its sizes are {given} bytes, more than --bytes {bytes}"));
    };
    if rest.div_ceil(last) > (most - sizes.len()) as u64 {
        return Err(MANY.to_owned());
    }
    sizes.extend(std::iter::repeat_n(last, (rest / last) as usize));
    sizes.extend(Some(rest % last).filter(|rest| *rest > 0));
    Ok(sizes)
}

fn report(
    args: &EvaluateArgs,
    path: &piped_model::stage::Path,
    plan: &Plan,
    buffers: &Buffers,
    servers: &Servers,
) -> Result<Report, Failure> {
    let latency = evaluate::plan_on(path, plan, buffers, servers);
    let latency = latency.map_err(|fault| Failure::usage(fault.to_string()))?;
    let lists: Vec<Vec<u64>> = (0..path.len())
        .filter_map(|stage| Some(plan.sizes_at(stage)?.iter().map(|it| it.length).collect()))
        .collect();
    let lists: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    let trace = simulate::run_on(path, &lists, Some(plan.depth), buffers, servers);
    let trace = trace.map_err(|stuck| Failure::usage(stuck.to_string()))?;
    let stages: Vec<StageRow> = (0..path.len())
        .map(|stage| {
            let own = || trace.visits.iter().filter(move |visit| visit.stage == stage);
            let busy = own().map(|visit| path[stage].occupancy(visit.bytes as f64)).sum();
            StageRow {
                stage,
                fragments: own().count(),
                first_started_us: micros(own().map(|it| it.started).fold(f64::INFINITY, f64::min)),
                last_left_us: micros(own().map(|it| it.left).fold(0.0, f64::max)),
                busy_us: micros(busy),
            }
        })
        .collect();
    let slowest = stages.iter().max_by(|a, b| a.busy_us.total_cmp(&b.busy_us));
    let slowest = slowest.ok_or_else(|| Failure::failed("a path without stages"))?;
    Ok(Report {
        bytes: plan.total_bytes(),
        latency_us: micros(latency),
        bottleneck: slowest.stage,
        before_us: slowest.first_started_us,
        during_us: slowest.last_left_us - slowest.first_started_us,
        after_us: micros(latency) - slowest.last_left_us,
        visits: args.visits.map(|_| visits(&trace)),
        stages,
    })
}

/// All visits, stage by stage.
fn visits(trace: &Trace) -> Vec<VisitRow> {
    let mut rows: Vec<VisitRow> = trace
        .visits
        .iter()
        .map(|visit| VisitRow {
            stage: visit.stage,
            fragment: visit.fragment,
            bytes: visit.bytes,
            started_us: micros(visit.started),
            left_us: micros(visit.left),
            departed_us: micros(visit.departed),
        })
        .collect();
    rows.sort_by_key(|row| (row.stage, row.fragment));
    rows
}

fn print(output: &Output, report: &Report) -> Result<(), Failure> {
    output.field("latency", &format!("{:.3} us", report.latency_us))?;
    let Report { bottleneck, before_us, during_us, after_us, .. } = report;
    output.field(
        "parts",
        &format!(
            "T_f {before_us:.1} + T_b {during_us:.1} + T_l {after_us:.1} us: until stage \
             {bottleneck} begins, until it is done, and after that"
        ),
    )?;
    let rows = report.stages.iter().map(|row| {
        vec![
            row.stage.to_string(),
            row.fragments.to_string(),
            format!("{:.1}", row.first_started_us),
            format!("{:.1}", row.last_left_us),
            format!("{:.1}", row.busy_us),
        ]
    });
    let columns = [
        Number("STAGE"),
        Number("FRAGMENTS"),
        Number("BEGINS (us)"),
        Number("DONE (us)"),
        Number("BUSY (us)"),
    ];
    output.table(&columns, rows.collect())?;
    let Some(visits) = &report.visits else { return Ok(()) };
    output.heading("Each fragment at each stage")?;
    let rows = visits.iter().map(|visit| {
        vec![
            visit.stage.to_string(),
            visit.fragment.to_string(),
            visit.bytes.to_string(),
            format!("{:.3}", visit.started_us),
            format!("{:.3}", visit.left_us),
            format!("{:.3}", visit.departed_us),
        ]
    });
    let columns = [
        Number("STAGE"),
        Number("FRAGMENT"),
        Number("BYTES"),
        Number("STARTED (us)"),
        Number("LEFT (us)"),
        Number("BEHIND (us)"),
    ];
    output.table(&columns, rows.collect())
}

fn csv(output: &Output, visits: &[VisitRow]) -> Result<(), Failure> {
    let mut table = csv::Writer::from_writer(Vec::new());
    let written = visits.iter().try_for_each(|visit| table.serialize(visit));
    let bytes = written.and_then(|()| table.into_inner().map_err(|it| it.into_error().into()));
    let bytes = bytes.map_err(|error| Failure::failed(format!("cannot write CSV: {error}")))?;
    output.text(&String::from_utf8_lossy(&bytes))
}
