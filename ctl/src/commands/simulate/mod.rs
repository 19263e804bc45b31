//! `pipectl simulate`: what would this disk or that link do? The daemon's own engine in virtual time, over disks,
//! links and dials that a file describes, beside what the model says of the same plan exactly.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use piped_engine::limits::FRAGMENT_BYTES_MAX;
use piped_engine::request::Verb;
use piped_engine::trace::TransferTrace;
use piped_model::evaluate;
use piped_model::stage::Stage;
use serde::Serialize;

use self::scenario::{Scenario, Transfer};
use self::world::World;
use crate::commands::trace::{Files, runs};
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

mod check;
#[cfg(test)]
mod copies;
pub(super) mod scenario;
#[cfg(test)]
mod servers;
pub(super) mod world;

const AFTER_HELP: &str = "\
A scenario is TOML: [nodes.NAME], [nodes.NAME.disks.NAME] with L, g, G and window, [[links]] and [[dials]] with L, g, G,
[[transfers]] with node, read, write or copy, bytes, planner or plan, count. Examples: docs/scenarios/.";

/// `pipectl simulate`
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct SimulateArgs {
    /// What there is and what is to be done
    #[arg(long, value_name = "FILE")]
    scenario: PathBuf,

    #[command(flatten)]
    files: Files,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Report {
    title: String,
    transfers: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    bytes: u64,
    count: u32,
    /// Virtual time of the last one, in seconds.
    measured_seconds: f64,
    /// Of the first one.
    first_seconds: f64,
    /// Of the latter half, the one in the middle.
    median_seconds: f64,
    /// What the engine expected of the last one, with the costs it had measured; absent if it expected nothing.
    predicted_seconds: Option<f64>,
    /// The same plan by the recurrence, with the costs of the scenario; absent for copies in several chunks, and for
    /// those whose plan is not given.
    model_seconds: Option<f64>,
    /// What chose the plan.
    chosen: String,
    depth: u32,
    levels: Vec<piped_engine::trace::LevelSizes>,
    /// The last one, as each node saw it.
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
    let report = simulate(&scenario).map_err(wrong)?;
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

/// Runs a scenario.
fn simulate(scenario: &Scenario) -> Result<Report, String> {
    check::check(scenario)?;
    let mut world = World::new(scenario)?;
    let mut transfers = Vec::new();
    for (number, transfer) in scenario.transfers.iter().enumerate() {
        let row = row(&mut world, scenario, transfer, number);
        transfers.push(row.map_err(|error| format!("transfer {}: {error}", number + 1))?);
    }
    Ok(Report { title: scenario.title.clone(), transfers })
}

fn row(
    world: &mut World,
    scenario: &Scenario,
    transfer: &Transfer,
    number: usize,
) -> Result<Row, String> {
    let (bytes, count) = (transfer.bytes()?, transfer.count()?);
    let node = world.find(&transfer.node)?;
    let verb = verb(world, transfer, node, bytes)?;
    world.plan(transfer.planner, transfer.plan()?);
    let mut times = Vec::with_capacity(count as usize);
    for left in (0..count).rev() {
        if left == 0 {
            world.record();
        }
        times.push(world.run(node, verb)?.seconds());
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
        measured_seconds: times[times.len() - 1],
        first_seconds: times[0],
        median_seconds: later[later.len() / 2],
        predicted_seconds: planner.map(|it| it.predicted_seconds).filter(|&known| known > 0.0),
        model_seconds: model,
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

fn verb(world: &mut World, transfer: &Transfer, node: usize, bytes: u64) -> Result<Verb, String> {
    let buffer = World::buffer(bytes);
    match (&transfer.read, &transfer.write, &transfer.copy) {
        (Some(from), None, None) => {
            Ok(Verb::Read { handle: world.open(node, from)?, offset: 0, buffer })
        }
        (None, Some(to), None) => {
            Ok(Verb::Write { handle: world.open(node, to)?, offset: 0, buffer, durable: false })
        }
        (None, None, Some([from, to])) => {
            let (from, to) = (world.open(node, from)?, world.open(node, to)?);
            Ok(Verb::Copy { from, from_offset: 0, to, to_offset: 0, length: bytes })
        }
        _ => Err("say one of read, write and copy".to_owned()),
    }
}

/// What the recurrence says of a plan with the costs of the scenario. `planned`: of the node that holds the data.
fn model(
    world: &World,
    scenario: &Scenario,
    transfer: &Transfer,
    planned: Option<&TransferTrace>,
) -> Result<Option<f64>, String> {
    let (path, given, bytes) =
        (path(world, scenario, transfer)?, transfer.plan()?, transfer.bytes()?);
    let one_chunk = transfer.copy.is_none() || bytes <= FRAGMENT_BYTES_MAX.into();
    // Each half of a copy between peers has a plan of its own node's; as many chunks as it has are under way at once.
    if path.is_empty() || !one_chunk || transfer.copy.is_some() && given.is_none() {
        return Ok(None);
    }
    let mut lists: Vec<Vec<u64>> = Vec::new();
    for (level, _) in &path {
        lists.push(match (given, planned) {
            (Some(given), _) => {
                let sizes = match *level {
                    "source" => given.source,
                    "sink" => given.sink,
                    _ => given.lane,
                };
                sizes.of(bytes).collect()
            }
            (None, Some(planned)) => {
                let own = planned.levels.iter().find(|one| one.level == *level);
                let Some(level) = own.or(planned.levels.first()) else { return Ok(None) };
                all_sizes(&level.sizes, level.count, planned.bytes)
            }
            (None, None) => return Ok(None),
        });
    }
    let costs: Vec<Stage> = path.iter().map(|&(_, stage)| stage).collect();
    let views: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
    // Depth is of the device that is read.
    let depth = planned.and_then(|planned| NonZeroU32::new(planned.depth));
    let depth = depth.filter(|_| path[0].0 == "source");
    evaluate::lists(&costs, &views, depth).map(Some).map_err(|fault| fault.to_string())
}

/// Sizes of which the first ones were told.
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

/// A stage of a transfer, and the level whose fragments pass it.
type Leg = (&'static str, Stage);

/// The stages that a transfer passes, with their levels. Those that cost nothing are left out.
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
    let dial = |node: &str, stage: &str| scenario.dial(node, stage);
    let mut path: Vec<(&'static str, Option<Stage>)> = Vec::new();
    let device = |path: &mut Vec<_>, level, owner: &str, disk: Option<&str>, way| {
        let Some(disk) = disk else { return Ok(()) };
        path.push((level, Some(world.disk(world.find(owner)?, disk)?)));
        let both = dial(owner, &format!("disk:{disk}"))?;
        path.push((level, dial(owner, &format!("disk:{disk}:{way}"))?.or(both)));
        Ok::<_, String>(())
    };
    device(&mut path, "source", &from, source.as_deref(), "read")?;
    // A copy passes the node that asked for it.
    let hops: &[[&str; 2]] = match (from == asker, to == asker) {
        (true, true) => &[],
        (false, false) => &[[&from, asker], [asker, &to]],
        _ => &[[&from, &to]],
    };
    for (place, [from, to]) in hops.iter().enumerate() {
        if place > 0 {
            path.push(("source", dial(from, "copy")?));
        }
        path.push(("lane", dial(from, "check")?));
        path.push(("lane", dial(from, &format!("send:{to}"))?));
        path.push(("lane", scenario.link(from, to)?));
        path.push(("lane", dial(to, &format!("net:{from}"))?));
        path.push(("lane", dial(to, &format!("receive:{from}"))?));
    }
    device(&mut path, "sink", &to, sink.as_deref(), "write")?;
    let costs = |stage: &Stage| stage.alone(1.0) > 0.0;
    Ok(path.into_iter().filter_map(|(level, stage)| Some((level, stage.filter(costs)?))).collect())
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
        vec![
            row.name.clone(),
            units::bytes(row.bytes),
            row.count.to_string(),
            units::seconds(row.first_seconds),
            units::seconds(row.median_seconds),
            units::seconds(row.measured_seconds),
            time(row.predicted_seconds),
            time(row.model_seconds),
            format!("{}: {}", row.chosen, levels.join("; ")),
        ]
    };
    let columns = [
        Text("TRANSFER"),
        Number("BYTES"),
        Number("COUNT"),
        Number("FIRST"),
        Number("MEDIAN"),
        Number("LAST"),
        Number("PREDICTED"),
        Number("MODEL"),
        Text("LAST PLAN"),
    ];
    output.table(&columns, report.transfers.iter().map(row).collect())?;
    output.prose(LEGEND, 0)
}

const LEGEND: &str = "Virtual time. MEDIAN: of the latter half. PREDICTED: of the last one, with the costs that the engine had \
                      measured. MODEL: the same plan by the recurrence, with the costs of the scenario.";

#[cfg(test)]
mod tests {
    use piped_config::{Bytes, PlannerMode};
    use piped_engine::sizes::Sizes;
    use piped_model::leveled::{self, Level, Task, told};

    use super::*;

    const PAPER: &str = include_str!("../../../../docs/scenarios/paper.toml");
    const THREE: &str = include_str!("../../../../docs/scenarios/three.toml");
    const DISK_TO_DISK: &str = include_str!("../../../../docs/scenarios/disk-to-disk.toml");
    const DISK_AND_LINK: &str = include_str!("../../../../docs/scenarios/disk-and-link.toml");

    fn deviation(row: &Row) -> f64 {
        row.measured_seconds / row.model_seconds.expect("a path") - 1.0
    }

    /// Each transfer takes what the model says of its plan.
    fn as_the_model_says(scenario: &Scenario) -> Report {
        let report = simulate(scenario).expect("it runs");
        for row in &report.transfers {
            assert!(deviation(row).abs() < 1e-3, "{}: {row:?}", row.name);
        }
        report
    }

    /// What the transfer took whose name begins so.
    fn micros(report: &Report, name: &str) -> f64 {
        let row = report.transfers.iter().find(|row| row.name.starts_with(name));
        row.expect("it is there").measured_seconds * 1e6
    }

    /// The engine that ships, over the stages of the paper's section 5.5.
    #[test]
    fn the_engine_takes_as_long_as_the_papers_model_says() {
        let scenario = scenario::parse(PAPER).expect("a scenario");
        let report = as_the_model_says(&scenario);
        let micros = |name: &str| micros(&report, name);
        // As computed for the paper; the others' sizes are multiples of 512 bytes here.
        assert!((micros("whole") / 38510.1 - 1.0).abs() < 1e-3, "{}", micros("whole"));
        assert!((micros("A") / 31876.9 - 1.0).abs() < 1e-3, "{}", micros("A"));
        assert!((micros("B") / 26277.4 - 1.0).abs() < 1e-2, "{}", micros("B"));
        assert!(micros("C") < 0.93 * micros("B"), "{} {}", micros("B"), micros("C"));
    }

    /// Network -> disk -> network: what is stored in the middle is cut anew before it and behind it.
    #[test]
    fn a_store_between_two_networks_takes_as_long_as_the_papers_model_says() {
        let scenario = scenario::parse(THREE).expect("a scenario");
        let report = as_the_model_says(&scenario);
        let micros = |name: &str| micros(&report, name);
        // As computed for the paper; sizes are multiples of 512 bytes here.
        assert!((micros("whole") / 59913.1 - 1.0).abs() < 1e-3, "{}", micros("whole"));
        assert!((micros("A") / 39557.8 - 1.0).abs() < 1e-2, "{}", micros("A"));
        assert!((micros("B") / 31447.7 - 1.0).abs() < 1.5e-2, "{}", micros("B"));
        assert!((micros("C'") / 29457.0 - 1.0).abs() < 1e-2, "{}", micros("C'"));
        // 6.3 to 6.8 % with sizes that need not be multiples of anything.
        let gain = micros("B") / micros("C'") - 1.0;
        assert!((0.06..0.08).contains(&gain), "{gain}");
        assert!(micros("best") < micros("C'"), "{} {}", micros("best"), micros("C'"));
    }

    /// Disk -> network -> disk, both ways: a copy's read and write as one pipeline.
    #[test]
    fn a_copy_from_disk_to_disk_takes_as_long_as_the_model_says() {
        let scenario = scenario::parse(DISK_TO_DISK).expect("a scenario");
        assert!(as_the_model_says(&scenario).transfers.len() >= 4);
    }

    /// The best plan there is with these limits, and the one that asks the disk for one at a time.
    #[test]
    fn the_engine_takes_as_long_as_said_of_solved_plans() {
        let mut scenario = scenario::parse(PAPER).expect("a scenario");
        scenario.transfers.truncate(1);
        let transfer = scenario.transfers[0].clone();
        let mut world = World::new(&scenario).expect("nodes");
        let path = path(&world, &scenario, &transfer).expect("a path");
        let costs: Vec<Stage> = path.iter().map(|&(_, stage)| stage).collect();
        let level = |stages, alignment| Level {
            smallest: alignment,
            largest: 1 << 20,
            alignment,
            explicit_max: 32,
            stages,
        };
        let levels = [level(0..1, 4096), level(1..costs.len(), 512)];
        let task = Task { path: &costs, bytes: 65536, levels: &levels, depth_max: 32 };
        let plans = leveled::candidates(&task);
        let node = world.find("home").expect("it is there");
        let verb = verb(&mut world, &transfer, node, 65536).expect("a read");
        assert!(plans.len() > 2, "{plans:?}");
        for plan in &plans {
            let sizes = |place: usize| {
                let sizes = plan.sizes_at(place).expect("a level");
                Sizes::list(told(sizes)).expect("as many as can be told")
            };
            let forced = piped_engine::command::ForcedPlan {
                source: sizes(0),
                lane: sizes(1),
                sink: sizes(1),
                depth: plan.depth.get(),
            };
            world.plan(transfer.planner, Some(forced));
            let measured = world.run(node, verb).expect("it ends").seconds();
            let off = measured / plan.predicted_seconds - 1.0;
            assert!(off.abs() < 1e-3, "{}: {measured} {plan:?}", plan.algorithm);
        }
        let best = plans[0].predicted_seconds * 1e6;
        assert!(best < 0.94 * 26277.4, "{best}: better than B");
    }

    #[test]
    fn scenarios_of_the_documentation_run_and_auto_is_the_best_there() {
        let mut scenario = scenario::parse(DISK_AND_LINK).expect("a scenario");
        scenario.seed = 7;
        let report = simulate(&scenario).expect("it runs");
        let median = |name: &str| {
            let row = report.transfers.iter().find(|row| row.name == name);
            row.expect("it is there").median_seconds
        };
        assert!(
            median("auto") < median("64 KiB") && median("64 KiB") < median("whole"),
            "{report:?}"
        );
        let again = simulate(&scenario).expect("it runs");
        let times = |report: &Report| -> Vec<f64> {
            report.transfers.iter().map(|row| row.measured_seconds).collect()
        };
        assert_eq!(times(&again), times(&report), "the same seed is the same world");
    }

    const QUICK: &str = "node = 'server'\nstage = 'disk:data:read'\ng = '50us'\nG = '100MB/s'\n";
    const SLOW: &str = "node = 'server'\nstage = 'disk:data:read'\ng = '4ms'\nG = '100MB/s'\n";

    /// Reads of one size over a disk and a link of 100 MB/s.
    struct Reads {
        world: World,
        node: usize,
        verb: Verb,
    }

    impl Reads {
        fn of(bytes: u64) -> Self {
            let scenario = format!(
                "[nodes.home]\n[nodes.server.disks.data]\nL = '0.1ms'\ng = '5us'\nG = '1.5GB/s'\nwindow = 32\n\
                 [[links]]\nnodes = ['server', 'home']\nL = '30us'\ng = '3us'\nG = '100MB/s'\n\
                 [[dials]]\n{QUICK}[[transfers]]\nnode = 'home'\nread = 'server:data'\nbytes = {bytes}\n"
            );
            let scenario = scenario::parse(&scenario).expect("a scenario");
            let mut world = World::new(&scenario).expect("nodes");
            let node = world.find("home").expect("it is there");
            let verb = verb(&mut world, &scenario.transfers[0], node, bytes).expect("a read");
            Self { world, node, verb }
        }

        fn median(&mut self, count: usize) -> f64 {
            let one = |_| self.world.run(self.node, self.verb).expect("it ends").seconds();
            let mut times: Vec<f64> = (0..count).map(one).collect();
            times.sort_by(f64::total_cmp);
            times[count / 2]
        }

        /// Of transfers that `auto` chooses the sizes of now, against the best size set by hand.
        fn against_the_best(&mut self) -> f64 {
            let auto = self.median(25);
            let sizes = [16, 32, 64, 128, 256, 512].map(|kib| PlannerMode::Fixed(Bytes(kib << 10)));
            let by_hand = sizes.into_iter().chain([PlannerMode::Whole]).map(|mode| {
                self.world.plan(mode, None);
                self.median(5)
            });
            let best = by_hand.fold(f64::INFINITY, f64::min);
            self.world.plan(PlannerMode::Auto, None);
            auto / best
        }
    }

    #[test]
    fn reads_that_are_all_of_one_size_find_their_fragments() {
        for kib in [32, 64, 128, 256] {
            let mut reads = Reads::of(kib << 10);
            reads.median(200);
            let ratio = reads.against_the_best();
            assert!(ratio <= 1.05, "{kib} KiB: {ratio} of the best by hand");
        }
    }

    #[test]
    fn a_path_that_changes_is_followed_within_tens_of_transfers() {
        let mut reads = Reads::of(1 << 20);
        reads.median(200);
        for step in [SLOW, QUICK] {
            let dial: scenario::Dial = toml_edit::de::from_str(step).expect("a dial");
            reads.world.dial(&dial).expect("it is set");
            reads.median(50);
            let ratio = reads.against_the_best();
            assert!(ratio <= 1.05, "{step}: {ratio} of the best by hand");
        }
    }

    #[test]
    fn what_is_wrong_with_a_scenario_is_said() {
        let node = "[nodes.a.disks.d]\ng = '1ms'\n";
        let read = "[[transfers]]\nnode = 'a'\nread = 'a:d'\nbytes = 4096\n";
        for (text, hint) in [
            (String::new(), "nodes"),
            (node.to_owned(), "transfers"),
            (format!("{node}{}", read.replace("'a:d'", "'a:e'")), "no disk `e`"),
            (format!("{node}{}", read.replace("'a:d'", "'b:d'")), "no node `b`"),
            (format!("{node}{}", read.replace("4096", "'1TiB'")), "at most"),
            (format!("{node}{read}write = 'a:d'\n"), "one of read, write and copy"),
            (format!("{node}{read}plan = {{ lane = [100] }}\n"), "multiples of 512"),
            (format!("{node}{read}count = 0\n"), "repeated"),
            (format!("{node}{read}colour = 1\n"), "colour"),
            (format!("{node}[[dials]]\nnode = 'a'\nstage = 'x'\n{read}"), "no stage"),
            (format!("{}{read}", node.replace("1ms", "1 fortnight")), "fortnight"),
        ] {
            let said = scenario::parse(&text).and_then(|it| simulate(&it).map(drop));
            let said = said.expect_err(&text);
            assert!(said.contains(hint), "{text}: {said}");
        }
        let whole = format!("{node}{read}");
        let row = simulate(&scenario::parse(&whole).expect("fine")).expect("it runs");
        assert!((row.transfers[0].measured_seconds - 1e-3).abs() < 1e-9, "{row:?}");
    }
}
