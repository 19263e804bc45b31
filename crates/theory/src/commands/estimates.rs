//! What estimating commands share: how measurements are fitted, and figures with their intervals.

use clap::{Args as ClapArgs, ValueEnum};
use piped_cli::failure::Failure;
use piped_cli::output::Output;
use piped_cli::table::Column::{Number, Text};
use piped_model::estimate::{Figure, Noise, Options};
use serde::Serialize;

use super::micros;

/// How lines are fitted.
#[derive(Debug, Clone, Copy, ClapArgs)]
pub(super) struct FitArgs {
    /// Let outliers count like all measurements: least squares and means. Without it they are told
    /// from the others, named, and ignored: up to a third of the measurements may be wrong
    #[arg(long)]
    least_squares: bool,

    /// Withstand outliers, which is the default now: for scripts that were made before
    #[arg(long, hide = true, conflicts_with = "least_squares")]
    pub(super) robust: bool,

    /// How the errors of measurements scatter
    #[arg(long, value_enum, value_name = "NOISE", default_value_t = NoiseWord::Proportional)]
    pub(super) noise: NoiseWord,

    /// Confidence of the intervals, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 95.0, value_parser = percent)]
    pub(super) confidence: f64,
}

/// [`Noise`] as words of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum NoiseWord {
    /// By about equal times, whether they are short or long
    Constant,
    /// By a part of the time that was measured
    Proportional,
}

impl FitArgs {
    pub(super) fn options(self) -> Options {
        let noise = match self.noise {
            NoiseWord::Constant => Noise::Constant,
            NoiseWord::Proportional => Noise::Proportional,
        };
        Options { robust: self.robust || !self.least_squares, noise }
    }

    /// A figure in another unit, with its interval.
    pub(super) fn interval(self, figure: Figure, scale: f64) -> Interval {
        let figure = figure.times(scale);
        let [low, high] = figure.interval(self.confidence / 100.0);
        Interval { value: figure.value, low, high }
    }
}

/// A measurement that the others contradict.
#[derive(Debug, Clone, Serialize)]
pub(super) struct OutlierRow {
    /// Which of the file's measurements, from 1.
    measurement: usize,
    what: String,
    time_us: f64,
    /// How many times as long as expected by the others.
    times: f64,
}

impl OutlierRow {
    /// The outlier that is the `measurement` of that place, from 1.
    pub(super) fn new(measurement: usize, what: String, seconds: f64, times: f64) -> Self {
        Self { measurement, what, time_us: micros(seconds), times }
    }

    /// Outliers of several kinds in the order of the file.
    pub(super) fn in_order(rows: impl Iterator<Item = Self>) -> Vec<Self> {
        let mut rows: Vec<Self> = rows.collect();
        rows.sort_by_key(|it| it.measurement);
        rows
    }
}

/// Outliers that are listed for people: more are counted.
const LISTED: usize = 20;

/// Lists outliers, if there are any, and says what became of them.
pub(super) fn print_outliers(
    outliers: &[OutlierRow],
    fit: FitArgs,
    output: &Output,
) -> Result<(), Failure> {
    if outliers.is_empty() {
        return Ok(());
    }
    output.heading("Outliers")?;
    let row = |it: &OutlierRow| {
        let times = format!("{:.2}", it.times);
        vec![it.measurement.to_string(), it.what.clone(), short(it.time_us), times]
    };
    let rows = outliers.iter().take(LISTED).map(row).collect();
    let columns =
        [Number("measurement"), Text("what"), Number("us"), Number("times as long as expected")];
    output.table(&columns, rows)?;
    let more = outliers.len().saturating_sub(LISTED);
    if more > 0 {
        output.prose(&format!("And {more} more: --json has all."), 0)?;
    }
    output.prose(
        match fit.least_squares {
            false => "The others contradict these, and they were ignored.",
            true => {
                "The others contradict these, but they count (--least-squares): the figures may be \
                 far off."
            }
        },
        0,
    )
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').parse::<f64>();
    let number = number.ok().filter(|it| (50.0..=99.99).contains(it));
    number.ok_or_else(|| "write a number from 50 to 99.99, as in 95".to_owned())
}

/// A figure as JSON has it; unbounded ends are `null`.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Interval {
    pub(super) value: f64,
    low: f64,
    high: f64,
}

impl Interval {
    /// The value and its interval, in table cells.
    pub(super) fn cells(&self) -> [String; 2] {
        let range = if self.low.is_finite() && self.high.is_finite() {
            format!("{} .. {}", short(self.low), short(self.high))
        } else {
            "unknown: too few measurements".to_owned()
        };
        [short(self.value), range]
    }
}

/// Five significant digits, or so.
fn short(number: f64) -> String {
    let digits = match number.abs() {
        v if v >= 1000.0 => 1,
        v if v >= 10.0 => 3,
        _ => 4,
    };
    format!("{number:.digits$}")
}
