//! `pipectl model blackbox`: a pipeline's parameters from measurements at its ends.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use piped_cli::failure::Failure;
use piped_cli::output::{self, Output};
use piped_cli::table::Column::{Number, Text};
use piped_config::measured::{self, KbArgs, Size};
use piped_config::units;
use piped_model::estimate::Outlier;
use piped_model::estimate::black_box::{self, BlackBox, Bottleneck};
use piped_model::estimate::clear_box::Timing;
use piped_model::fixed::Constraints;
use serde::Serialize;

use super::estimates::{FitArgs, Interval, OutlierRow, print_outliers};
use super::measurements::{self, Columns, Line};
use super::micros;

const AFTER_HELP: &str = "\
The file has a line for each measurement, and names its columns in the first one:
  mode   alone: the latency of a packet with nothing else on its way;
         backlogged: the time between departures of packets sent as fast as possible
  bytes  the size of the packet [bytes, or as in 4KiB]
  time   what it took [us, or as in 4ms]
Empty lines and lines that begin with # are ignored. At least two sizes of each mode are needed;
several measurements of a size, or more sizes, give the intervals something to go by. Outliers are
told from the rest by five of a size, or by three where few are wrong, and are listed. Example, the
GAM of the paper, which 4 KiB pass best in five fragments:
  pipectl model blackbox --csv FILE --kb 1024 --bytes 4KiB
  mode,bytes,time
  alone,1KiB,92.2
  alone,2KiB,157.1
  alone,4KiB,286.9
  backlogged,1KiB,32.4
  backlogged,2KiB,57.3
  backlogged,4KiB,107.1";

const COLUMNS: Columns = Columns { required: &["mode", "bytes", "time"], optional: &[] };

/// Arguments of `pipectl model blackbox`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = AFTER_HELP, allow_negative_numbers = true)]
pub(crate) struct BlackboxArgs {
    /// The measurements, as below; - is stdin
    #[arg(long, value_name = "FILE")]
    csv: PathBuf,

    /// Also tell the best fixed fragment size for a transfer of this size
    #[arg(long, value_name = "SIZE", value_parser = measured::size)]
    bytes: Option<Size>,

    #[command(flatten)]
    fit: FitArgs,

    #[command(flatten)]
    kb: KbArgs,
}

/// The answer as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(rename = "sum_g_us")]
    total_overhead: Interval,
    #[serde(rename = "sum_G_us_per_kb")]
    total_per_byte: Interval,
    bottlenecks: Vec<Row>,
    plan: Option<PlanReport>,
    measurements: [usize; 2],
    outliers: usize,
    outlier_measurements: Vec<OutlierRow>,
    confidence_percent: f64,
    kb: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    /// `null` for the first.
    from_bytes: Option<Interval>,
    #[serde(rename = "g_us")]
    overhead: Interval,
    #[serde(rename = "G_us_per_kb")]
    per_byte: Interval,
    #[serde(rename = "others_g_us")]
    others_overhead: Interval,
    #[serde(rename = "others_G_us_per_kb")]
    others_per_byte: Interval,
}

#[derive(Debug, Serialize)]
struct PlanReport {
    bytes: u64,
    fragments: u64,
    fragment_bytes: u64,
    latency_us: f64,
}

/// A line of the file.
#[derive(Debug, Clone, Copy)]
struct Measured {
    mode: Mode,
    timing: Timing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Alone,
    Backlogged,
}

pub(crate) fn run(args: &BlackboxArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let all = measurements::read(&args.csv, COLUMNS, |line| measured(line, args))?;
    let of = |mode: Mode| all.iter().filter(|it| it.mode == mode).map(|it| it.timing).collect();
    let (alone, backlogged): (Vec<Timing>, Vec<Timing>) = (of(Mode::Alone), of(Mode::Backlogged));
    let found = black_box::fit(&alone, &backlogged, args.fit.options())
        .map_err(|fault| Failure::usage(format!("{}: {fault}", args.csv.display())))?;
    let plan = args.bytes.map(|bytes| plan(&found, bytes, args)).transpose()?;
    let report = report(&found, plan, &all, args);
    if json { output::json(report) } else { print(&report, args.fit, output) }
}

fn measured(line: &Line<'_>, args: &BlackboxArgs) -> Result<Measured, String> {
    let bytes = line.read("bytes", |text| measured::size(text)?.whole_bytes(args.kb.kb))?;
    let seconds = line.read("time", positive)?;
    let mode = line.read("mode", |text| match text {
        "alone" => Ok(Mode::Alone),
        "backlogged" => Ok(Mode::Backlogged),
        other => Err(format!("`{other}` is no mode: write alone or backlogged")),
    })?;
    Ok(Measured { mode, timing: Timing { bytes, seconds } })
}

/// A time that something took.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    let seconds = measured::time(text)?;
    if seconds > 0.0 {
        Ok(seconds)
    } else {
        Err(format!("`{text}` is no time that anything takes"))
    }
}

fn plan(found: &BlackBox, bytes: Size, args: &BlackboxArgs) -> Result<PlanReport, Failure> {
    let bytes = bytes.whole_bytes(args.kb.kb);
    let bytes = bytes.map_err(|error| Failure::usage(format!("--bytes: {error}")))?;
    let best = found.fixed(bytes, &Constraints::default()).ok_or_else(|| {
        Failure::failed(
            "the pipeline has much more latency than its bottleneck explains, and so no fixed-size \
             plan by these measurements: are the times between departures those of packets sent as \
             fast as possible?",
        )
    })?;
    Ok(PlanReport {
        bytes,
        fragments: best.count,
        fragment_bytes: best.fragment_bytes,
        latency_us: micros(best.predicted_seconds),
    })
}

/// The lines of one mode that are outliers.
fn outliers<'a>(
    mode: Mode,
    outliers: &'a [Outlier],
    all: &'a [Measured],
) -> impl Iterator<Item = OutlierRow> + 'a {
    let own: Vec<usize> = (0..all.len()).filter(|&at| all[at].mode == mode).collect();
    outliers.iter().map(move |it| {
        let place = own[it.index];
        let timing = all[place].timing;
        let name = if mode == Mode::Alone { "alone" } else { "backlogged" };
        let what = format!("{name}, {} bytes", timing.bytes);
        OutlierRow::new(place + 1, what, timing.seconds, it.times)
    })
}

fn report(
    found: &BlackBox,
    plan: Option<PlanReport>,
    all: &[Measured],
    args: &BlackboxArgs,
) -> Report {
    let per_kb = 1e6 * args.kb.kb.bytes();
    let fit = args.fit;
    let row = |it: &Bottleneck| Row {
        from_bytes: it.from_bytes.map(|from| fit.interval(from, 1.0)),
        overhead: fit.interval(it.line.intercept, 1e6),
        per_byte: fit.interval(it.line.slope, per_kb),
        others_overhead: fit.interval(it.others_overhead, 1e6),
        others_per_byte: fit.interval(it.others_per_byte, per_kb),
    };
    let backlogged = found.bottlenecks.iter().map(|it| it.line.samples).sum();
    let outlier_rows =
        OutlierRow::in_order(outliers(Mode::Alone, &found.alone_outliers, all).chain(outliers(
            Mode::Backlogged,
            &found.backlogged_outliers,
            all,
        )));
    Report {
        total_overhead: fit.interval(found.total.intercept, 1e6),
        total_per_byte: fit.interval(found.total.slope, per_kb),
        bottlenecks: found.bottlenecks.iter().map(row).collect(),
        plan,
        measurements: [found.total.samples, backlogged],
        outliers: outlier_rows.len(),
        outlier_measurements: outlier_rows,
        confidence_percent: fit.confidence,
        kb: args.kb.kb.bytes(),
    }
}

fn print(report: &Report, fit: FitArgs, output: &Output) -> Result<(), Failure> {
    let [alone, backlogged] = report.measurements;
    output.prose(
        &format!(
            "{alone} packets alone and {backlogged} times between departures, {} of them outliers; \
             intervals of {} %.",
            report.outliers, report.confidence_percent
        ),
        0,
    )?;
    let mut rows = Vec::new();
    let mut row = |what: String, unit: &str, figure: &Interval| {
        let [value, range] = figure.cells();
        rows.push(vec![what, value, range, unit.to_owned()]);
    };
    row("sum g".to_owned(), "us", &report.total_overhead);
    row("sum G".to_owned(), "us/KB", &report.total_per_byte);
    for (place, it) in report.bottlenecks.iter().enumerate() {
        let of =
            if report.bottlenecks.len() == 1 { String::new() } else { format!(" {}", place + 1) };
        if let Some(from) = &it.from_bytes {
            row(format!("bottleneck{of} from"), "bytes", from);
        }
        row(format!("bottleneck{of} g"), "us", &it.overhead);
        row(format!("bottleneck{of} G"), "us/KB", &it.per_byte);
        row(format!("others' G{of}"), "us/KB", &it.others_per_byte);
    }
    output.table(&[Text("what"), Number("value"), Text("interval"), Text("unit")], rows)?;
    print_outliers(&report.outlier_measurements, fit, output)?;
    if let Some(plan) = &report.plan {
        output.prose(
            &format!(
                "{} is best sent in {} fragments of {} bytes: {}.",
                units::bytes(plan.bytes),
                plan.fragments,
                plan.fragment_bytes,
                units::seconds(plan.latency_us * 1e-6)
            ),
            0,
        )?;
    }
    Ok(())
}
