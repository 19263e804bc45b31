//! `pipectl model compound`: the line that stands for several stages taken as one.

use clap::Args as ClapArgs;
use piped_cli::failure::Failure;
use piped_cli::output::{self, Output};
use piped_config::measured::{self, Size};
use piped_model::estimate::clear_box::{self, Timing};
use piped_model::estimate::{Noise, Options};
use piped_model::fixed;
use serde::Serialize;

use super::micros;
use super::path::{LISTS, PathArgs};

const AFTER_HELP: &str = "\
In a hierarchy several stages are one compound stage, whose g and G are those of the line through
its own best latencies with fragments of one size (the pipeline paper, section 4.3.1). This is how
well one line fits. Example, footnote 1 of the paper: a mean of 5118 us, and errors of 65 us
  pipectl model compound --stages '36,36;26,124.5;37.5,124.5;37,39.5' --bytes 64KiB --sizes 1024";

/// Arguments of `pipectl model compound`.
#[derive(Debug, Clone, ClapArgs)]
#[command(after_help = format!("{LISTS}\n{AFTER_HELP}"))]
pub(crate) struct CompoundArgs {
    #[command(flatten)]
    path: PathArgs,

    /// The largest size that passes the stages at once
    #[arg(long, value_name = "SIZE", value_parser = measured::size)]
    bytes: Size,

    /// Sizes that the line is put through, equally far apart up to --bytes
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(2..=100_000))]
    sizes: u32,
}

/// The answer as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    sizes: usize,
    #[serde(rename = "g_us")]
    overhead: f64,
    #[serde(rename = "G_us_per_kb")]
    per_kb: f64,
    mean_latency_us: f64,
    /// Standard deviation of the latencies from the line.
    deviation_us: f64,
    largest_error_us: f64,
    kb: f64,
}

pub(crate) fn run(args: &CompoundArgs, output: &Output, json: bool) -> Result<(), Failure> {
    let path = args.path.path()?;
    let bytes = args.path.whole_bytes("--bytes", args.bytes)?;
    let best = |step: u32| {
        let size = (bytes as f64 * f64::from(step) / f64::from(args.sizes)).round().max(1.0);
        let found = fixed::optimum(&path, size, (1, size as u64), None);
        Timing { bytes: size as u64, seconds: found.predicted_seconds }
    };
    let timings: Vec<Timing> = (1..=args.sizes).map(best).collect();
    let options = Options { robust: false, noise: Noise::Constant };
    let line =
        clear_box::fit(&timings, options).map_err(|fault| Failure::usage(fault.to_string()))?;
    let errors = || timings.iter().map(|it| it.seconds - line.at(it.bytes as f64));
    let count = timings.len() as f64;
    let report = Report {
        sizes: timings.len(),
        overhead: micros(line.intercept.value),
        per_kb: micros(line.slope.value) * args.path.kb_bytes(),
        mean_latency_us: micros(timings.iter().map(|it| it.seconds).sum::<f64>() / count),
        deviation_us: micros((errors().map(|it| it * it).sum::<f64>() / count).sqrt()),
        largest_error_us: micros(errors().map(f64::abs).fold(0.0, f64::max)),
        kb: args.path.kb_bytes(),
    };
    if json {
        return output::json(report);
    }
    output.field("g", &format!("{:.1} us", report.overhead))?;
    output.field("G", &format!("{:.3} us/KB (KB = {} bytes)", report.per_kb, report.kb))?;
    output.field(
        "latency",
        &format!("{:.1} us in the mean of {} sizes", report.mean_latency_us, report.sizes),
    )?;
    output.field(
        "errors",
        &format!(
            "{:.1} us standard deviation, {:.1} us at most",
            report.deviation_us, report.largest_error_us
        ),
    )
}
