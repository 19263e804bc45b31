//! What estimating commands share: how measurements are fitted, and figures with their intervals.

use clap::{Args as ClapArgs, ValueEnum};
use piped_model::estimate::{Figure, Noise, Options};
use serde::Serialize;

/// How lines are fitted.
#[derive(Debug, Clone, Copy, ClapArgs)]
pub(super) struct FitArgs {
    /// Withstand outliers: up to about 40 % of the measurements may be wrong
    #[arg(long)]
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
        Options { robust: self.robust, noise }
    }

    /// A figure in another unit, with its interval.
    pub(super) fn interval(self, figure: Figure, scale: f64) -> Interval {
        let figure = figure.times(scale);
        let [low, high] = figure.interval(self.confidence / 100.0);
        Interval { value: figure.value, low, high }
    }
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
