//! `pipectl simulate`: the effect of another disk or link. The daemon's own engine runs in virtual
//! time, over disks, links and dials of a file, beside the model's times for exactly the same
//! plans.

use std::cmp::Ordering;
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use piped_core::limits::FRAGMENT_BYTES_MAX;
use piped_core::request::Verb;
use piped_model::evaluate;
use piped_model::room::Room;
use piped_model::servers::Servers;
use piped_model::stage::{Buffers, STAGES_MAX, Stage};
use piped_report::trace::TransferTrace;
use piped_theory::bound;
use serde::Serialize;

use self::scenario::{Scenario, Transfer};
use self::world::World;
use crate::commands::certificate::Certificate;
use crate::commands::trace::{Files, runs};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

mod check;
#[cfg(test)]
mod company;
#[cfg(test)]
mod copies;
#[cfg(test)]
mod rooms;
pub(super) mod scenario;
#[cfg(test)]
mod servers;
#[cfg(test)]
mod split;
#[cfg(test)]
mod spread;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod ways;
pub(super) mod world;

const AFTER_HELP: &str = "\
A scenario is TOML: [nodes.NAME]; [nodes.NAME.disks.NAME] with L, g, G, window;
[[links]] and [[dials]] with L, g, G; [[transfers]] with node, read, write or
copy, bytes, planner or plan, count, at_once. Examples: docs/scenarios/ of the source,
/usr/share/doc/piped/scenarios/ of the package.";

/// Arguments of `pipectl simulate`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct SimulateArgs {
    /// File with the machines and the transfers
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,

    #[command(flatten)]
    files: Files,
}

/// Result of a simulation.
#[derive(Debug, Serialize)]
struct Report {
    title: String,
    /// Whether equal operations differ in time.
    #[serde(skip)]
    spreads: bool,
    transfers: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    bytes: u64,
    count: u32,
    /// How many began together each time. Times are means over these.
    at_once: u64,
    /// Virtual time of the last transfer, in seconds.
    measured_seconds: f64,
    /// Time of the first transfer.
    first_seconds: f64,
    /// Median time of the latter half.
    median_seconds: f64,
    /// Mean time of the latter half.
    mean_seconds: f64,
    /// Time that 99 in 100 of the latter half do not exceed.
    p99_seconds: f64,
    /// Prediction of the engine for the last transfer, from its measured costs; absent if there was
    /// none.
    predicted_seconds: Option<f64>,
    /// Time of the same plan by the recurrence, with the costs of the scenario; of several at once,
    /// mean time if all have this plan and pass in turn. Absent for copies in several chunks, and
    /// for copies without a given plan.
    model_seconds: Option<f64>,
    /// How near that is to what is possible with these costs.
    possible: Option<Certificate>,
    /// Planner, or entry of the scenario, that chose the plan.
    chosen: String,
    depth: u32,
    levels: Vec<piped_report::trace::LevelSizes>,
    /// The last transfer, as each node saw it.
    traces: Vec<Seen>,
}

#[derive(Debug, Serialize)]
struct Seen {
    node: String,
    #[serde(flatten)]
    trace: TransferTrace,
}

pub(crate) fn run(output: &Output, args: &SimulateArgs, json: bool) -> Result<(), Failure> {
    let file = args.scenario.display();
    let text = std::fs::read_to_string(&args.scenario)
        .map_err(|error| Failure::io(format_args!("cannot read {file}"), &error))?;
    let wrong = |error: String| Failure::usage(format!("{file}: {error}"));
    let scenario = scenario::parse(&text).map_err(wrong)?;
    check::check(&scenario).map_err(wrong)?;
    let files = args.files.open()?;
    // Faults from here on are not mistakes in the file.
    let failed = |error: String| Failure::failed(format!("{file}: {error}"));
    let report = simulate(&scenario).map_err(failed)?;
    let traces = report.transfers.iter().flat_map(|row| &row.traces);
    let traces: Vec<TransferTrace> = traces
        .map(|seen| {
            let mut trace = seen.trace.clone();
            trace.route = format!("{} (at {})", trace.route, seen.node);
            trace
        })
        .collect();
    if json {
        output::json(&report)?;
        return files.write(&report.title, &traces);
    }
    show(output, &report)?;
    files.write_and_tell(output, &report.title, &traces)
}

/// Runs all transfers of a scenario.
fn simulate(scenario: &Scenario) -> Result<Report, String> {
    check::check(scenario)?;
    let mut world = World::new(scenario)?;
    let mut transfers = Vec::new();
    for (number, transfer) in scenario.transfers.iter().enumerate() {
        let row = row(&mut world, scenario, transfer, number);
        transfers.push(row.map_err(|error| format!("transfer {}: {error}", number + 1))?);
    }
    Ok(Report { title: scenario.title.clone(), spreads: scenario.spreads(), transfers })
}

fn row(
    world: &mut World,
    scenario: &Scenario,
    transfer: &Transfer,
    number: usize,
) -> Result<Row, String> {
    let (bytes, count) = (transfer.bytes()?, transfer.count()?);
    let node = world.find(&transfer.node)?;
    let verbs: Vec<Verb> = (0..transfer.at_once()?)
        .map(|place| verb(world, transfer, node, (place * bytes, bytes)))
        .collect::<Result<_, _>>()?;
    world.plan(transfer.planner, transfer.plan()?);
    let mut times = Vec::with_capacity(count as usize);
    for left in (0..count).rev() {
        if left == 0 {
            world.record();
        }
        times.push(world.run(node, &verbs, transfer.class)?);
    }
    let traces = world.recorded();
    let planner = traces.iter().map(|(_, trace)| trace).find(|trace| !trace.levels.is_empty());
    let model = model(world, scenario, transfer, planner)?;
    let mut later = times[times.len() / 2..].to_vec();
    later.sort_by(f64::total_cmp);
    Ok(Row {
        name: transfer.title(number),
        bytes,
        count,
        at_once: transfer.at_once()?,
        measured_seconds: times[times.len() - 1],
        first_seconds: times[0],
        median_seconds: later[later.len() / 2],
        mean_seconds: later.iter().sum::<f64>() / later.len() as f64,
        p99_seconds: later[(later.len() * 99).div_ceil(100) - 1],
        predicted_seconds: planner.map(|it| it.predicted_seconds).filter(|&known| known > 0.0),
        model_seconds: model.map(|(seconds, _)| seconds),
        possible: model.and_then(|(_, possible)| possible),
        chosen: match (transfer.plan()?, planner) {
            (Some(_), _) => "as given".to_owned(),
            (None, Some(trace)) => trace.chosen.clone(),
            (None, None) => "none needed".to_owned(),
        },
        depth: planner.map_or(0, |trace| trace.depth),
        levels: planner.map_or_else(Vec::new, |trace| trace.levels.clone()),
        traces: traces.into_iter().map(|(node, trace)| Seen { node, trace }).collect(),
    })
}

/// A transfer of `bytes` from `offset` on.
fn verb(
    world: &mut World,
    transfer: &Transfer,
    node: usize,
    (offset, bytes): (u64, u64),
) -> Result<Verb, String> {
    let buffer = World::buffer(offset, bytes);
    match (&transfer.read, &transfer.write, &transfer.copy) {
        (Some(from), None, None) => {
            Ok(Verb::Read { handle: world.open(node, from)?, offset, buffer, wanted: 0 })
        }
        (None, Some(to), None) => Ok(Verb::Write {
            handle: world.open(node, to)?,
            offset,
            buffer,
            durable: false,
            notify: None,
        }),
        (None, None, Some([from, to])) => {
            let (from, to) = (world.open(node, from)?, world.open(node, to)?);
            Ok(Verb::Copy { from, from_offset: offset, to, to_offset: offset, length: bytes })
        }
        _ => Err("say one of read, write and copy".to_owned()),
    }
}

/// Time of a plan by the recurrence, with the costs of the scenario, and the least there is.
/// `planned` is that of the node that holds the data.
fn model(
    world: &World,
    scenario: &Scenario,
    transfer: &Transfer,
    planned: Option<&TransferTrace>,
) -> Result<Option<(f64, Option<Certificate>)>, String> {
    let (path, given, bytes) =
        (path(world, scenario, transfer)?, transfer.plan()?, transfer.bytes()?);
    let one_chunk = transfer.copy.is_none() || bytes <= FRAGMENT_BYTES_MAX.into();
    // Each half of a copy between peers has its own node's plan, and several chunks are under way
    // at once.
    if path.is_empty()
        || path.len() > STAGES_MAX
        || !one_chunk
        || transfer.copy.is_some() && given.is_none()
    {
        return Ok(None);
    }
    let mut lists: Vec<Vec<u64>> = Vec::new();
    for level in path.iter().map(|leg| leg.at.level) {
        lists.push(match (given, planned) {
            (Some(given), _) => {
                let sizes = match level {
                    "source" => given.source,
                    "sink" => given.sink,
                    _ => given.lane,
                };
                sizes.of(bytes).collect()
            }
            (None, Some(planned)) => {
                let own = planned.levels.iter().find(|one| one.level == level);
                let Some(level) = own.or(planned.levels.first()) else { return Ok(None) };
                all_sizes(&level.sizes, level.count, planned.bytes)
            }
            (None, None) => return Ok(None),
        });
    }
    let costs: Vec<Stage> = path.iter().map(|leg| leg.stage).collect();
    let servers = servers(&path);
    let owed = planned.map_or(0, |planned| planned.owed_bytes);
    let buffers = buffers(world, transfer, &path, owed)?;
    let views: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    // Depth belongs to the device that is read.
    let depth = planned.and_then(|planned| NonZeroU32::new(planned.depth));
    let depth = depth.filter(|_| path[0].at.level == "source");
    let seconds = match u32::try_from(transfer.at_once()?) {
        Ok(at_once @ 2..) if !servers.is_shared(costs.len()) => {
            evaluate::in_turn(&costs, &views, depth, at_once)
        }
        Ok(2..) => return Ok(None),
        _ => evaluate::lists_on(&costs, &views, depth, &buffers, &servers),
    };
    let seconds = seconds.map_err(|fault| fault.to_string())?;
    // What is possible for a mean of several is not known.
    let possible = (transfer.at_once()? < 2)
        .then(|| Certificate::new(seconds, bound::within(&costs, bytes, &servers, &buffers)));
    Ok(Some((seconds, possible)))
}

/// All sizes, of which the first ones were reported.
fn all_sizes(told: &[u64], count: u64, bytes: u64) -> Vec<u64> {
    let mut sizes = told.to_vec();
    let repeated = told.last().copied().unwrap_or(bytes).max(1);
    let mut left = bytes.saturating_sub(sizes.iter().sum());
    while left > 0 && (sizes.len() as u64) < count {
        let size = repeated.min(left);
        sizes.push(size);
        left -= size;
    }
    sizes
}

/// Where a stage is.
#[derive(Debug, Clone, Copy)]
struct At {
    /// The level of the fragments that pass it.
    level: &'static str,
    /// Before the wire, the wire itself, or behind it.
    wire: Ordering,
}

impl At {
    const SOURCE: Self = Self { level: "source", wire: Ordering::Less };
    const SENT: Self = Self { level: "lane", wire: Ordering::Less };
    const WIRE: Self = Self { level: "lane", wire: Ordering::Equal };
    const RECEIVED: Self = Self { level: "lane", wire: Ordering::Greater };
    const SINK: Self = Self { level: "sink", wire: Ordering::Greater };
}

/// A stage of a transfer.
#[derive(Debug, Clone)]
struct Leg {
    at: At,
    stage: Stage,
    /// The node whose thread serves it.
    thread: Option<String>,
}

/// Which stages share a server: those of one node's thread, which works in turns.
fn servers(path: &[Leg]) -> Servers {
    let names = path.iter().enumerate().map(|(place, leg)| match &leg.thread {
        Some(node) => (node.as_str(), 0),
        None => ("", place),
    });
    let on_threads = (0..path.len()).filter(|&stage| path[stage].thread.is_some());
    on_threads.fold(Servers::of(names), Servers::in_turns)
}

/// What a node lets be under way of what others read and write there.
/// `owed`: credit of earlier writes that it has not given back.
fn buffers(world: &World, transfer: &Transfer, path: &[Leg], owed: u64) -> Result<Buffers, String> {
    let (end, reads) = match (&transfer.read, &transfer.write) {
        (Some(end), None) => (end, true),
        (None, Some(end)) => (end, false),
        _ => return Ok(Buffers::UNLIMITED),
    };
    let node = end.split(':').next().unwrap_or(end);
    if node == transfer.node {
        return Ok(Buffers::UNLIMITED);
    }
    let at_device: Vec<bool> = path.iter().map(|leg| leg.at.level != "lane").collect();
    let before = path.partition_point(|leg| leg.at.wire < Ordering::Equal);
    let behind = path.partition_point(|leg| leg.at.wire <= Ordering::Equal);
    let held = world.held(world.find(node)?, reads);
    let rooms = held.rooms(&at_device, before..behind, owed);
    // Credit goes back by the wire.
    let back = path[before..behind].iter().map(|leg| leg.stage.alone(0.0)).sum();
    let told = |room: &Room| match room.batch {
        ..=1 => *room,
        _ => Room { back, ..*room },
    };
    Ok(rooms.rooms().map(told).fold(Buffers::UNLIMITED, Buffers::over))
}

/// Stages that a transfer passes, with their levels. Stages without cost are left out.
fn path(world: &World, scenario: &Scenario, transfer: &Transfer) -> Result<Vec<Leg>, String> {
    let asker = transfer.node.as_str();
    let (from, to) = match (&transfer.read, &transfer.write, &transfer.copy) {
        (Some(from), _, _) => (from.as_str(), asker),
        (None, Some(to), _) => (asker, to.as_str()),
        (None, None, Some([from, to])) => (from.as_str(), to.as_str()),
        (None, None, None) => return Ok(Vec::new()),
    };
    let split = |what: &'_ str| match what.split_once(':') {
        Some((node, disk)) => (node.to_owned(), Some(disk.to_owned())),
        None => (what.to_owned(), None),
    };
    let ((from, source), (to, sink)) = (split(from), split(to));
    let mut path: Vec<Leg> = Vec::new();
    let dial = |path: &mut Vec<_>, at, node: &str, stages: &[String]| {
        for stage in stages {
            if let Some([host, own]) = scenario.dial(node, stage)? {
                path.push(Leg { at, stage: host, thread: Some(node.to_owned()) });
                path.push(Leg { at, stage: own, thread: None });
                break;
            }
        }
        Ok::<_, String>(())
    };
    let device = |path: &mut Vec<_>, at, owner: &str, disk: Option<&str>, way| {
        let Some(disk) = disk else { return Ok(()) };
        let stage = world.disk(world.find(owner)?, disk)?;
        path.push(Leg { at, stage, thread: None });
        dial(path, at, owner, &[format!("disk:{disk}:{way}"), format!("disk:{disk}")])
    };
    device(&mut path, At::SOURCE, &from, source.as_deref(), "read")?;
    // A copy passes the node that asked for it.
    let hops: &[[&str; 2]] = match (from == asker, to == asker) {
        (true, true) => &[],
        (false, false) => &[[&from, asker], [asker, &to]],
        _ => &[[&from, &to]],
    };
    // What goes two ways is no one pipeline.
    if transfer.read.is_some() && hops.iter().any(|[from, to]| scenario.has_second(from, to)) {
        return Ok(Vec::new());
    }
    for (place, [from, to]) in hops.iter().enumerate() {
        if place > 0 {
            dial(&mut path, At::SOURCE, from, &["copy".to_owned()])?;
        }
        dial(&mut path, At::SENT, from, &["check".to_owned()])?;
        dial(&mut path, At::SENT, from, &[format!("send:{to}")])?;
        let link = scenario.link(from, to)?;
        path.extend(link.map(|stage| Leg { at: At::WIRE, stage, thread: None }));
        dial(&mut path, At::RECEIVED, to, &[format!("net:{from}")])?;
        dial(&mut path, At::RECEIVED, to, &[format!("receive:{from}")])?;
    }
    device(&mut path, At::SINK, &to, sink.as_deref(), "write")?;
    path.retain(|leg| leg.stage.alone(1.0) > 0.0);
    Ok(path)
}

fn show(output: &Output, report: &Report) -> Result<(), Failure> {
    if !report.title.is_empty() {
        output.prose(&report.title, 0)?;
    }
    let time = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), units::seconds);
    let row = |row: &Row| {
        let levels = row.levels.iter();
        let mut levels: Vec<String> =
            levels.map(|one| format!("{} {}", one.level, runs(&one.sizes, one.count))).collect();
        levels.push(format!("{} at once", row.depth));
        let mut cells = vec![
            row.name.clone(),
            units::bytes(row.bytes),
            row.count.to_string(),
            units::seconds(row.first_seconds),
            units::seconds(row.median_seconds),
            units::seconds(row.measured_seconds),
        ];
        if report.spreads {
            cells.extend([row.mean_seconds, row.p99_seconds].map(units::seconds));
        }
        cells.extend([
            time(row.predicted_seconds),
            time(row.model_seconds),
            row.possible.map_or_else(|| "-".to_owned(), |it| format!("{:.1} %", it.within * 100.0)),
            format!("{}: {}", row.chosen, levels.join("; ")),
        ]);
        cells
    };
    let mut columns = vec![
        Text("TRANSFER"),
        Number("BYTES"),
        Number("COUNT"),
        Number("FIRST"),
        Number("MEDIAN"),
        Number("LAST"),
    ];
    if report.spreads {
        columns.extend([Number("MEAN"), Number("P99")]);
    }
    columns.extend([Number("PREDICTED"), Number("MODEL"), Number("WITHIN"), Text("LAST PLAN")]);
    output.table(&columns, report.transfers.iter().map(row).collect())?;
    output.prose(LEGEND, 0)
}

const LEGEND: &str = "\
     Virtual time. MEDIAN, MEAN, P99: of the latter half. PREDICTED: of the last one, \
     with the costs that the engine had measured. MODEL: the same plan by the recurrence, \
     with the costs of the scenario. WITHIN: no plan is faster than that by more.";
