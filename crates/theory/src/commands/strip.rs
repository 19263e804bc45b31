//! `pipectl model strip`: a remote array fetched in strips that are computed on meanwhile.

use std::num::NonZeroU32;

use clap::{Args as ClapArgs, ValueEnum};
use piped_cli::failure::Failure;
use piped_cli::output::{self, Output};
use piped_cli::table::Column::{self, Number, Text};
use piped_config::measured::{self, KbArgs, PerByte, Size};
use piped_config::units;
use piped_model::fixed::Constraints;
use piped_model::rounding;
use piped_model::strip::{Network, Policy, STRIPS_MAX, StripModel, Strips, Unrolling};
use serde::Serialize;

use super::micros;

const AFTER_HELP: &str = "\
Example, 64 KB by the paper's Myrinet
  pipectl model strip --bytes 64KB --o 5us --G 6.089us/KB --K 4.06us/KB";

/// Arguments of `pipectl model strip`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = AFTER_HELP, allow_negative_numbers = true)]
pub(crate) struct StripArgs {
    /// N: what is fetched
    #[arg(long, value_name = "SIZE", value_parser = measured::size)]
    bytes: Size,

    /// o: what a get costs the processor (us)
    #[arg(long = "o", value_name = "TIME", value_parser = measured::time)]
    issue: f64,

    /// G: the network's inverse bandwidth [us per KB, or as in 6us/KB or 164MB/s]
    #[arg(long = "G", value_name = "TIME/SIZE", value_parser = measured::per_byte)]
    per_byte: PerByte,

    /// K: the computation on what has been fetched [us per KB, or as in 4us/KB or 246MB/s]
    #[arg(long = "K", value_name = "TIME/SIZE", value_parser = measured::per_byte)]
    compute: PerByte,

    /// L: from a strip's last byte leaving the network until it is there (us)
    #[arg(long, value_name = "TIME", value_parser = measured::time, default_value = "0")]
    latency: f64,

    /// U: gets that are issued ahead of the strip that is waited for
    #[arg(long, value_name = "U", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    unroll: u32,

    /// Issue the U gets together, as the paper's figure 5 does, and not one by one
    #[arg(long)]
    grouped: bool,

    /// How strips share the network
    #[arg(long, value_enum, default_value_t = NetworkWord::Serial)]
    network: NetworkWord,

    /// f of the variable strategy, in which each strip is 1+f times the one before
    #[arg(long, value_name = "F", default_value_t = Policy::PAPER_GROWTH, value_parser = growth)]
    growth: f64,

    #[command(flatten)]
    kb: KbArgs,
}

/// [`Network`] as words of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum NetworkWord {
    /// One after the other
    Serial,
    /// Each as if it were alone: the paper's equations (1)-(2) as printed, too good to be true
    /// where K < G
    Literal,
}

impl From<NetworkWord> for Network {
    fn from(word: NetworkWord) -> Self {
        match word {
            NetworkWord::Serial => Self::Serial,
            NetworkWord::Literal => Self::Literal,
        }
    }
}

fn growth(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(growth) if (0.001..=1000.0).contains(&growth) => Ok(growth),
        _ => Err(format!("`{text}` is not between 0.001 and 1000: write a number, as in 0.45")),
    }
}

/// What `--json` prints. Costs are total times less the computation.
#[derive(Debug, Serialize)]
struct Report {
    bytes: f64,
    network: NetworkWord,
    unroll: u32,
    policies: Vec<PolicyRow>,
    /// What one get of everything costs.
    vectorised_us: f64,
    /// What is computed on the bytes: `K·N`.
    compute_us: f64,
    /// What the bytes need of the network: no total is below it.
    wire_us: f64,
    /// The strip of the rule.
    rule_bytes: f64,
    /// Up to which depth unrolling pays with that strip.
    unroll_depth: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

/// A strategy. Sizes over the reals, in bytes; and what comes of them in whole bytes.
#[derive(Debug, Serialize)]
struct PolicyRow {
    policy: &'static str,
    cost_us: f64,
    /// Microseconds with the computation.
    total_us: f64,
    strips: Vec<f64>,
    memory_bytes: f64,
    /// Figures in whole bytes, if N is a whole number of bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    whole: Option<Whole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

#[derive(Debug, Serialize)]
struct Whole {
    cost_us: f64,
    strips: Vec<u64>,
}

pub(crate) fn run(args: &StripArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let (model, bytes) = model(args)?;
    let report = report(args, &model, bytes);
    if json {
        return output::json(report);
    }
    table(output, &report)?;
    sentences(args, output, &model, &report)
}

fn model(args: &StripArgs) -> Result<(StripModel, f64), Failure> {
    let kb = args.kb.kb;
    let bytes = args.bytes.bytes(kb);
    if !(1.0..=9e15).contains(&bytes) {
        return Err(Failure::usage("--bytes: give at least 1 byte and at most 9 PB, as in 64KiB"));
    }
    let model = StripModel {
        issue: args.issue,
        per_byte: args.per_byte.seconds(kb),
        compute: args.compute.seconds(kb),
        latency: args.latency,
        unroll: NonZeroU32::new(args.unroll).unwrap_or(NonZeroU32::MIN),
        unrolling: if args.grouped { Unrolling::Grouped } else { Unrolling::Rolling },
        network: args.network.into(),
    };
    let model = model.checked().map_err(|error| Failure::usage(error.to_string()))?;
    Ok((model, bytes))
}

fn report(args: &StripArgs, model: &StripModel, bytes: f64) -> Report {
    let named = Policy::ALL.map(|policy| match policy {
        Policy::Variable { .. } => Policy::Variable { growth: args.growth },
        other => other,
    });
    let rows = named.iter().filter_map(|policy| {
        let strips = model.strips(*policy, bytes)?;
        Some(row(policy.name(), model, bytes, strips))
    });
    let policies: Vec<PolicyRow> = rows.collect();
    let names = policies.iter().filter(|row| row.warning.is_some()).map(|row| row.policy);
    let names: Vec<&str> = names.collect();
    let rule_bytes = model.rule_strip(bytes);
    Report {
        bytes,
        network: args.network,
        unroll: args.unroll,
        vectorised_us: micros(model.vectorised_seconds(bytes)),
        compute_us: micros(model.compute * bytes),
        wire_us: micros(model.wire_seconds(bytes)),
        rule_bytes,
        unroll_depth: model.unroll_depth(rule_bytes.min(bytes)),
        warning: (!names.is_empty())
            .then(|| format!("{}: {IMPOSSIBLE}; plan with --network serial", names.join(", "))),
        policies,
    }
}

const IMPOSSIBLE: &str = "the total is below the wire time G·N, which no network can do: the \
                          literal equations let all strips have the whole bandwidth at once";

fn row(policy: &'static str, model: &StripModel, bytes: f64, strips: Strips) -> PolicyRow {
    let Strips { sizes, cost_seconds } = strips;
    let whole = (bytes.fract() == 0.0).then(|| {
        let strips = rounding::sizes(&sizes, bytes as u64, &Constraints::default());
        let sizes: Vec<f64> = strips.iter().map(|size| *size as f64).collect();
        Whole { cost_us: micros(model.cost_seconds(&sizes)), strips }
    });
    let largest = sizes.iter().copied().fold(0.0, f64::max);
    PolicyRow {
        policy,
        cost_us: micros(cost_seconds),
        total_us: micros(cost_seconds + model.compute * bytes),
        memory_bytes: model.memory_bytes(largest, bytes),
        strips: sizes,
        whole,
        warning: model.beats_the_wire(bytes, cost_seconds).then(|| IMPOSSIBLE.to_owned()),
    }
}

/// Which columns there are; those of the second list only where there is room.
const COLUMNS: [Column; 5] =
    [Text("POLICY"), Number("COST"), Number("STRIPS"), Number("FIRST"), Number("LAST")];
const MORE: [Column; 2] = [Number("TOTAL"), Number("MEMORY")];
const WIDE: u16 = 75;

fn table(output: &Output, report: &Report) -> Result<(), Failure> {
    let micro = |us: f64| units::seconds(us * 1e-6);
    let size = |bytes: f64| units::bytes(bytes.round() as u64);
    let wide = output.width().is_none_or(|width| width >= WIDE);
    let row = |name: &str, cost: f64, mark: &str, strips: &[f64], memory: f64| {
        let mut row = vec![
            name.to_owned(),
            format!("{}{mark}", micro(cost)),
            strips.len().to_string(),
            size(strips.first().copied().unwrap_or(0.0)),
            size(strips.last().copied().unwrap_or(0.0)),
        ];
        if wide {
            row.extend([micro(cost + report.compute_us), size(memory)]);
        }
        row
    };
    let all = report.bytes;
    let mut rows = vec![row("one get", report.vectorised_us, "", &[all], all)];
    rows.extend(report.policies.iter().map(|policy| {
        let mark = if policy.warning.is_some() { "!" } else { "" };
        row(policy.policy, policy.cost_us, mark, &policy.strips, policy.memory_bytes)
    }));
    let columns: Vec<Column> =
        COLUMNS.into_iter().chain(MORE.into_iter().filter(|_| wide)).collect();
    output.table(&columns, rows)
}

const LEGEND: &str = "COST: the total time less the computation. FIRST, LAST: strips. MEMORY: U+1 \
                      of the largest strip.";

fn sentences(
    args: &StripArgs,
    output: &Output,
    model: &StripModel,
    report: &Report,
) -> Result<(), Failure> {
    output.line("")?;
    output.field("wire", &format!("{}, G·N", units::seconds(report.wire_us * 1e-6)))?;
    let formula =
        if model.compute < model.per_byte { "o/(G-K)" } else { "sqrt(N·o/G), as K >= G" };
    let rule = units::bytes(report.rule_bytes.round() as u64);
    output.field("rule", &format!("strips of {rule}, {formula}"))?;
    if model.latency > 0.0 {
        output.field("unroll", &format!("pays up to about {:.1}", report.unroll_depth))?;
    }
    let compute = units::seconds(report.compute_us * 1e-6);
    let part = report.compute_us / report.wire_us * 100.0;
    output.field("compute", &format!("{compute}, K·N: {part:.0} % of the wire"))?;
    if args.unroll > 1 || model.latency > 0.0 {
        output.prose("The optimal sizes are known without latency and with --unroll 1 only.", 0)?;
    }
    if report.bytes / report.rule_bytes > STRIPS_MAX as f64 {
        let most = units::count(STRIPS_MAX as u64);
        output.prose(&format!("Policies with more than {most} strips are not shown."), 0)?;
    }
    output.prose(LEGEND, 0)?;
    match &report.warning {
        Some(warning) => output.prose(&format!("! {warning}."), 2),
        None => Ok(()),
    }
}
