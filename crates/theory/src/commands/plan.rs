//! `pipectl model plan`: what each planner makes of a path, and which is best.

use std::num::NonZeroU32;

use clap::Args as ClapArgs;
use piped_cli::failure::Failure;
use piped_cli::output::{self, Output};
use piped_cli::table::Column::{Number, Text};
use piped_config::measured::{self, Size};
use piped_model::evaluate::{self, LATE_FRAGMENTS_MAX};
use piped_model::fixed::Constraints;
use piped_model::plan::{Algorithm, Plan};
use piped_model::stage::{Path, STAGES_MAX, Spreading};
use serde::Serialize;

use super::micros;
use super::path::{LISTS, PathArgs, RoomArgs};
use super::spread::SpreadArgs;
use crate::best;

const AFTER_HELP: &str = "\
The candidates are those planners that have a plan for such a path: ramp-up for two stages,
ramp-up-down for three, hierarchical ones from three on; a plan of more than a million fragments is
left out. With --servers only plans of one size are made for the servers; the others are judged with
them.
With --spread a transfer waits for the latest of several fragments. All candidates of up to 64
fragments in a stage are judged by the mean over all transfers, or by --quantile, and so are plans
of one size in up to 16 fragments. Latencies L are then the means of those that do not stall.

Example, the network and the disk of the paper:
  pipectl model plan --stages '36,36;26,124.5;37.5,124.5;37,39.5;4ms,5MB/s' \\
    --bytes 64KiB --certificate
A disk whose latency varies as much as it is long, and stalls once in 200 reads:
  pipectl model plan --stages '5,0.5;3,0.8' --latency '70;5' --spread '1,0.005,50;0' \\
    --bytes 64KB --quantile 0.99
A thread that reads, checks and sends, with a wire behind it:
  pipectl model plan --stages '300,0.3;300,0.1;300,0.3;0,1' --servers 'thread;thread;thread;wire' \\
    --bytes 1MiB";

/// The most fragments of plans of one size that are judged by what latencies spread.
const SPREAD_COUNTS_MAX: u64 = 16;

/// The most fragments of one stage in a plan that is printed.
pub(super) const FRAGMENTS_MAX: u32 = 1 << 20;

/// Arguments of `pipectl model plan`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = format!("{LISTS} {AFTER_HELP}"))]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    path: PathArgs,

    #[command(flatten)]
    spread: SpreadArgs,

    /// Bytes of the transfer
    #[arg(long, value_name = "SIZE", value_parser = measured::size)]
    bytes: Size,

    #[command(flatten)]
    room: RoomArgs,

    /// Sizes but for the last of a stage are multiples of this [default: any]
    #[arg(long, value_name = "SIZE", value_parser = measured::size)]
    align: Option<Size>,

    /// Also compute a lower bound of every plan's latency, and how far the best plan is above it
    #[arg(long)]
    certificate: bool,
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
    /// The latency of means.
    latency_us: f64,
    /// What it takes where latencies spread.
    #[serde(flatten)]
    spread: Option<Taken>,
    /// For each stage its fragments in bytes.
    levels: Vec<Vec<u64>>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Taken {
    /// The mean over all transfers.
    mean_us: f64,
    /// The quantile that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    quantile_us: Option<f64>,
}

impl Candidate {
    /// The latency that it is judged by.
    fn judged_us(&self) -> f64 {
        self.spread.map_or(self.latency_us, |taken| taken.quantile_us.unwrap_or(taken.mean_us))
    }
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Certificate {
    lower_bound_us: f64,
    /// How far the best plan is above it, as a fraction of it.
    gap: f64,
}

pub(crate) fn run(args: &PlanArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let path = args.path.path()?;
    let bytes = args.path.whole_bytes("--bytes", args.bytes)?;
    let align = args.align.map(|align| args.path.whole_bytes("--align", align)).transpose()?;
    let limits = Constraints {
        alignment: align.unwrap_or(1),
        depth_max: args.room.depth().get(),
        fragments_max: FRAGMENTS_MAX,
        buffers: args.room.buffers(&args.path)?,
        servers: args.path.servers()?,
        ..Constraints::default()
    };
    let report = match args.spread.spreads(&path)? {
        None => report(&path, bytes, &limits, args.certificate),
        Some(costs) => spread_report(&path, &costs, bytes, &limits, args.spread.quantile),
    };
    let report = report.ok_or_else(|| {
        let room = if limits.buffers.limited() { ": give --buffers more room" } else { "" };
        Failure::failed(format!("no planner has a plan for this path{room}"))
    })?;
    if json { output::json(&report) } else { print(output, &report) }
}

/// Everything that is asked for. Nothing for a path without stages, which [`Path`] does not have.
fn report(path: &Path, bytes: u64, limits: &Constraints, certificate: bool) -> Option<Report> {
    let found = if certificate {
        best::certified(path, bytes, limits)?
    } else {
        best::best(path, bytes, limits)?
    };
    let plans: Vec<Plan> =
        found.candidates.iter().filter_map(|plan| deepest(path, limits, plan)).collect();
    let searched = deepest(path, limits, &found.plan);
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

/// What all plans take where latencies spread, the first of the best of them by mean or quantile.
fn spread_report(
    path: &Path,
    costs: &[Spreading],
    bytes: u64,
    limits: &Constraints,
    quantile: Option<f64>,
) -> Option<Report> {
    let means = report(path, bytes, limits, false)?;
    let fixed = (1..=SPREAD_COUNTS_MAX).map(|count| {
        let plan = Plan::uniform(path.len(), bytes.div_ceil(count).max(1), bytes, Algorithm::Fixed);
        let plan = deepest(path, limits, &plan)?;
        Some(candidate(path.len(), &plan))
    });
    let all = means.candidates.into_iter().chain([means.best]).chain(fixed.flatten());
    let judged = all.filter_map(|candidate| {
        let sizes: Vec<&[u64]> = candidate.levels.iter().map(Vec::as_slice).collect();
        if sizes.iter().any(|list| list.len() > LATE_FRAGMENTS_MAX) {
            return None;
        }
        let late = evaluate::late(costs, &sizes, None, quantile.unwrap_or(0.5));
        let late = late.unwrap_or_default();
        let taken = Taken {
            mean_us: candidate.latency_us + micros(late.mean),
            quantile_us: quantile.map(|_| candidate.latency_us + micros(late.quantile)),
        };
        Some(Candidate { spread: Some(taken), ..candidate })
    });
    let mut candidates: Vec<Candidate> = Vec::new();
    for one in judged {
        if candidates.iter().all(|known| known.levels != one.levels) {
            candidates.push(one);
        }
    }
    let best = candidates.iter().min_by(|a, b| a.judged_us().total_cmp(&b.judged_us()))?.clone();
    Some(Report { bytes, candidates, best, certificate: None })
}

/// The plan with as many fragments outstanding as are allowed: the daemon's planner takes fewer
/// where that costs less than a percent, but here nothing is to be saved. Where stages share a
/// server fewer can be better. Nothing if it is too long to be printed.
fn deepest(path: &Path, limits: &Constraints, plan: &Plan) -> Option<Plan> {
    let longest = plan.levels.iter().map(|level| level.sizes.count()).max()?;
    if longest > FRAGMENTS_MAX.into() {
        return None;
    }
    let judged = |depth| {
        let plan = Plan { depth, ..plan.clone() };
        let seconds = evaluate::plan_on(path, &plan, &limits.buffers, &limits.servers).ok()?;
        Some(Plan { predicted_seconds: seconds, ..plan })
    };
    let most = NonZeroU32::new(limits.depth_max).unwrap_or(NonZeroU32::MAX);
    let own = limits.servers.is_shared(path.len()).then(|| judged(plan.depth)).flatten();
    let plans = [judged(most), own].into_iter().flatten();
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
        spread: None,
        levels: (0..stages).map(sizes).collect(),
    }
}

fn print(output: &Output, report: &Report) -> Result<(), Failure> {
    let best = &report.best;
    let rows = report.candidates.iter().map(|one| {
        let least = best.judged_us();
        let behind = if least > 0.0 { (one.judged_us() / least - 1.0) * 100.0 } else { 0.0 };
        let mut cells = vec![one.algorithm.clone(), format!("{:.1}", one.latency_us)];
        let taken = one.spread.iter().flat_map(|it| [Some(it.mean_us), it.quantile_us]);
        cells.extend(taken.flatten().map(|us| format!("{us:.1}")));
        cells.extend([format!("{behind:.2} %"), counts(&one.levels)]);
        cells
    });
    let mut columns = vec![Text("ALGORITHM"), Number("LATENCY (us)")];
    if let Some(taken) = best.spread {
        columns.push(Number("MEAN (us)"));
        columns.extend(taken.quantile_us.map(|_| Number("QUANTILE (us)")));
    }
    columns.extend([Number("ABOVE BEST"), Text("FRAGMENTS IN EACH STAGE")]);
    output.table(&columns, rows.collect())?;
    output.heading(&format!("Best: {}, {:.3} us", best.algorithm, best.judged_us()))?;
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
