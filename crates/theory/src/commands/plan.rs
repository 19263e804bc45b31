//! `pipectl model plan`: what each planner makes of a path, and which is best.

use std::num::NonZeroU32;

use clap::Args as ClapArgs;
use piped_cli::failure::Failure;
use piped_cli::output::{self, Output};
use piped_cli::table::Column::{Number, Text};
use piped_config::measured::{self, Kb, KbArgs, PerByte, Size};
use piped_model::evaluate;
use piped_model::fixed::Constraints;
use piped_model::plan::Plan;
use piped_model::servers::Servers;
use piped_model::stage::{Buffers, Path, STAGES_MAX, Stage};
use serde::Serialize;

use super::micros;
use crate::best;

const AFTER_HELP: &str = "\
A list has one item for each stage, from the source to the destination, with `;` between them (in
quotes, because of the shell); --latency and --window also take one item for all. The candidates
are those planners that have a plan for such a path: ramp-up for two stages, ramp-up-down for
three, hierarchical ones from three on; a plan of more than a million fragments is left out.
With --servers only plans of one size are made for the servers; the others are judged with them.

Example, the network and the disk of the paper:
  pipectl model plan --stages '36,36;26,124.5;37.5,124.5;37,39.5;4ms,5MB/s' \\
    --bytes 64KiB --certificate
A thread that reads, checks and sends, with a wire behind it:
  pipectl model plan --stages '300,0.3;300,0.1;300,0.3;0,1' --servers 'thread;thread;thread;wire' \\
    --bytes 1MiB";

/// The most fragments of one stage in a plan that is printed.
const FRAGMENTS_MAX: u32 = 1 << 20;

/// Arguments of `pipectl model plan`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct PlanArgs {
    /// Overhead g and inverse bandwidth G of each stage [us, us/KB]
    #[arg(long, value_name = "g,G;g,G;...", value_parser = stages)]
    stages: Stages,

    /// Latency L of each stage, or of all [us; default 0]
    #[arg(long, value_name = "L;L;...", value_parser = latencies)]
    latency: Option<Latencies>,

    /// The most fragments at once in each stage, or in all; `-` for no bound [default: no bound]
    #[arg(long, value_name = "N;N;...", value_parser = windows, allow_hyphen_values = true)]
    window: Option<Windows>,

    /// The server of each stage; stages with the same one are served by turns [default: each its
    /// own]
    #[arg(long, value_name = "NAME;NAME;...", value_parser = names)]
    servers: Option<Names>,

    /// Bytes of the transfer
    #[arg(long, value_name = "SIZE", value_parser = measured::size)]
    bytes: Size,

    /// Also compute a lower bound of every plan's latency, and how far the best plan is above it
    #[arg(long)]
    certificate: bool,

    #[command(flatten)]
    kb: KbArgs,
}

/// `g` in seconds and `G` of each stage.
#[derive(Debug, Clone)]
struct Stages(Vec<(f64, PerByte)>);

/// `L` of each stage, or of all, in seconds.
#[derive(Debug, Clone)]
struct Latencies(Vec<f64>);

/// The server of each stage.
#[derive(Debug, Clone)]
struct Names(Vec<String>);

/// `w` of each stage, or of all.
#[derive(Debug, Clone)]
struct Windows(Vec<Option<NonZeroU32>>);

fn stages(text: &str) -> Result<Stages, String> {
    let stage = |item: &str| {
        let (overhead, per_byte) = item
            .split_once(',')
            .ok_or_else(|| format!("`{item}` is not a stage: write g,G, as in 36,124.5"))?;
        Ok((measured::time(overhead)?, measured::per_byte(per_byte)?))
    };
    items(text, ";", stage).map(Stages)
}

fn latencies(text: &str) -> Result<Latencies, String> {
    items(text, ";,", measured::time).map(Latencies)
}

fn names(text: &str) -> Result<Names, String> {
    let name = |item: &str| match item {
        "" => Err(String::from("a server without a name: write one, as in thread;wire;thread")),
        _ => Ok(item.to_owned()),
    };
    items(text, ";,", name).map(Names)
}

fn windows(text: &str) -> Result<Windows, String> {
    let window = |item: &str| match item {
        "-" => Ok(None),
        _ => item.parse().map(Some).map_err(|_| {
            format!(
                "`{item}` is not a window: write how many fragments, at least 1, or - for no bound"
            )
        }),
    };
    items(text, ";,", window).map(Windows)
}

/// The items of a list, each read by `read`. A separator may end the list.
fn items<T>(
    text: &str,
    separators: &str,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let text = text.trim().trim_end_matches(|c| separators.contains(c));
    let read = |(index, item): (usize, &str)| {
        read(item.trim()).map_err(|error| format!("item {}: {error}", index + 1))
    };
    text.split(|c| separators.contains(c)).enumerate().map(read).collect()
}

/// The answer as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    bytes: u64,
    candidates: Vec<Candidate>,
    best: Candidate,
    #[serde(flatten)]
    certificate: Option<Certificate>,
}

#[derive(Debug, Clone, Serialize)]
struct Candidate {
    algorithm: String,
    latency_us: f64,
    /// For each stage its fragments in bytes.
    levels: Vec<Vec<u64>>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Certificate {
    lower_bound_us: f64,
    /// How far the best plan is above it, as a fraction of it.
    gap: f64,
}

pub(crate) fn run(args: &PlanArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let path = path(args).map_err(Failure::usage)?;
    let bytes = args.bytes.whole_bytes(args.kb.kb);
    let bytes = bytes.map_err(|error| Failure::usage(format!("--bytes: {error}")))?;
    let servers = servers(args, path.len()).map_err(Failure::usage)?;
    let report = report(&path, bytes, servers, args.certificate)
        .ok_or_else(|| Failure::failed("no planner has a plan for this path"))?;
    if json { output::json(&report) } else { print(output, &report) }
}

fn path(args: &PlanArgs) -> Result<Path, String> {
    let Stages(costs) = &args.stages;
    let latencies = each(args.latency.as_ref().map(|list| &*list.0), 0.0, costs.len());
    let latencies = latencies.map_err(|reason| format!("--latency: {reason}"))?;
    let windows = each(args.window.as_ref().map(|list| &*list.0), None, costs.len());
    let windows = windows.map_err(|reason| format!("--window: {reason}"))?;
    let kb: Kb = args.kb.kb;
    let stages: Vec<Stage> = costs
        .iter()
        .zip(latencies.into_iter().zip(windows))
        .map(|(&(overhead, per_byte), (latency, window))| Stage {
            latency,
            overhead,
            per_byte: per_byte.seconds(kb),
            window,
        })
        .collect();
    Path::new(&stages).map_err(|fault| format!("--stages: {fault}"))
}

fn servers(args: &PlanArgs, stages: usize) -> Result<Servers, String> {
    match &args.servers {
        None => Ok(Servers::APART),
        Some(Names(names)) if names.len() == stages => Ok(Servers::of(names)),
        Some(Names(names)) => {
            Err(format!("--servers: {} names for {stages} stages: give one for each", names.len()))
        }
    }
}

/// One item for each of `count` stages: those given, the one given, or `none`.
fn each<T: Copy>(list: Option<&[T]>, none: T, count: usize) -> Result<Vec<T>, String> {
    match list {
        None => Ok(vec![none; count]),
        Some(&[one]) => Ok(vec![one; count]),
        Some(list) if list.len() == count => Ok(list.to_vec()),
        Some(list) => Err(format!(
            "{} items for {count} stages: give one for each, or one for all",
            list.len()
        )),
    }
}

/// Everything that is asked for. Nothing for a path without stages, which [`Path`] does not have.
fn report(path: &Path, bytes: u64, servers: Servers, certificate: bool) -> Option<Report> {
    let limits = Constraints { fragments_max: FRAGMENTS_MAX, servers, ..Constraints::default() };
    let found = if certificate {
        best::certified(path, bytes, &limits)?
    } else {
        best::best(path, bytes, &limits)?
    };
    let plans: Vec<Plan> =
        found.candidates.iter().filter_map(|plan| unbounded(path, &servers, plan)).collect();
    let searched = unbounded(path, &servers, &found.plan);
    // In the order of their sophistication: of equals the simplest is the best.
    let best = plans
        .iter()
        .chain(&searched)
        .min_by(|a, b| a.predicted_seconds.total_cmp(&b.predicted_seconds))?;
    let certificate = found.lower_bound_seconds.map(|bound| {
        let above = best.predicted_seconds - bound;
        Certificate {
            lower_bound_us: micros(bound),
            gap: if above > 0.0 { above / bound } else { 0.0 },
        }
    });
    Some(Report {
        bytes,
        candidates: plans.iter().map(|plan| candidate(path.len(), plan)).collect(),
        best: candidate(path.len(), best),
        certificate,
    })
}

/// The plan with as many fragments outstanding as it has: the daemon's planner takes fewer where
/// that costs less than a percent, but here nothing is to be saved. Where stages share a server
/// fewer can be better. Nothing if it is too long to be printed.
fn unbounded(path: &Path, servers: &Servers, plan: &Plan) -> Option<Plan> {
    let longest = plan.levels.iter().map(|level| level.sizes.count()).max()?;
    if longest > FRAGMENTS_MAX.into() {
        return None;
    }
    let judged = |depth| {
        let plan = Plan { depth, ..plan.clone() };
        let seconds = evaluate::plan_on(path, &plan, &Buffers::UNLIMITED, servers).ok()?;
        Some(Plan { predicted_seconds: seconds, ..plan })
    };
    let own = servers.is_shared(path.len()).then(|| judged(plan.depth)).flatten();
    let plans = [judged(NonZeroU32::MAX), own].into_iter().flatten();
    plans.min_by(|a, b| a.predicted_seconds.total_cmp(&b.predicted_seconds))
}

fn candidate(stages: usize, plan: &Plan) -> Candidate {
    let sizes = |stage| {
        let level = plan.levels.iter().find(|level| level.stages.contains(&stage));
        level.map_or_else(Vec::new, |level| level.sizes.iter().map(|it| it.length).collect())
    };
    Candidate {
        algorithm: plan.algorithm.to_string(),
        latency_us: micros(plan.predicted_seconds),
        levels: (0..stages).map(sizes).collect(),
    }
}

fn print(output: &Output, report: &Report) -> Result<(), Failure> {
    let rows = report.candidates.iter().map(|one| {
        let best = report.best.latency_us;
        let behind = if best > 0.0 { (one.latency_us / best - 1.0) * 100.0 } else { 0.0 };
        vec![
            one.algorithm.clone(),
            format!("{:.1}", one.latency_us),
            format!("{behind:.2} %"),
            counts(&one.levels),
        ]
    });
    let columns = [
        Text("ALGORITHM"),
        Number("LATENCY (us)"),
        Number("ABOVE BEST"),
        Text("FRAGMENTS IN EACH STAGE"),
    ];
    output.table(&columns, rows.collect())?;
    let best = &report.best;
    output.heading(&format!("Best: {}, {:.3} us", best.algorithm, best.latency_us))?;
    let rows = runs(&best.levels).into_iter().map(|(first, last, sizes)| {
        let stages = if first == last { first.to_string() } else { format!("{first}-{last}") };
        vec![stages, listed(sizes)]
    });
    output.table(&[Text("STAGES"), Text("FRAGMENTS IN BYTES")], rows.collect())?;
    if let Some(certificate) = report.certificate {
        output.line(format_args!(
            "\nNo plan can take less than {:.3} us: the best one is within {:.2} % of what is \
             possible.",
            certificate.lower_bound_us,
            certificate.gap * 100.0
        ))?;
    }
    Ok(())
}

/// `21 21 21 4`.
fn counts(levels: &[Vec<u64>]) -> String {
    levels.iter().map(|sizes| sizes.len().to_string()).collect::<Vec<_>>().join(" ")
}

/// Stages one after the other that have the same fragments.
fn runs(levels: &[Vec<u64>]) -> Vec<(usize, usize, &[u64])> {
    let mut runs: Vec<(usize, usize, &[u64])> = Vec::with_capacity(STAGES_MAX);
    for (stage, sizes) in levels.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.2 == sizes => run.1 = stage,
            _ => runs.push((stage, stage, sizes)),
        }
    }
    runs
}

/// Sizes in order, repeated ones once: `20 x 3277, 2`.
fn listed(sizes: &[u64]) -> String {
    const PARTS_MAX: usize = 40;
    let equal: Vec<&[u64]> = sizes.chunk_by(|a, b| a == b).collect();
    let part = |run: &&[u64]| match run {
        [one] => one.to_string(),
        [first, ..] => format!("{} x {first}", run.len()),
        [] => String::new(),
    };
    let mut text = equal.iter().take(PARTS_MAX).map(part).collect::<Vec<_>>().join(", ");
    if equal.len() > PARTS_MAX {
        text.push_str(&format!(", ... ({} fragments, all of them with --json)", sizes.len()));
    }
    text
}
