//! Where values stand on an axis, and its ticks: the coordinates that plotters draws with. Ticks
//! are ours because plotters knows no bytes and puts ticks of a logarithmic axis where they
//! collide.

use std::ops::Range;

use piped_config::units;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use super::chart::{Axis, Scale, Ticks};

/// More ticks than this are too many at half size.
const TICKS_MAX: usize = 9;

/// An axis with its range.
#[derive(Debug, Clone)]
pub(crate) struct Ruler {
    log: bool,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    bytes: bool,
    decimals: usize,
}

impl Ruler {
    /// The ruler that holds all of `values`.
    pub(crate) fn new(axis: &Axis, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let bytes = axis.ticks == Ticks::Bytes;
        match axis.scale {
            Scale::Log(base) => Self::log(low, high, f64::from(base), bytes),
            Scale::FromZero => Self::linear(low.min(0.0), high, bytes),
            Scale::Around => Self::linear(low, high, bytes),
        }
    }

    fn linear(low: f64, high: f64, bytes: bool) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        let step = nice_step((high - low) / 8.0);
        // Rounding noise must not add an interval.
        let first = (low / step + 1e-9).floor();
        let last = (high / step - 1e-9).ceil();
        let ticks: Vec<f64> = (first as i64..=last as i64).map(|i| i as f64 * step).collect();
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        Self { log: false, low: first * step, high: last * step, ticks, bytes, decimals }
    }

    /// The range is that of the values, with a little room; ticks are powers of the base.
    fn log(low: f64, high: f64, base: f64, bytes: bool) -> Self {
        let place = |value: f64| value.ln() / base.ln();
        let (first, last) = (place(low), place(high));
        let powers = (first - 1e-9).ceil() as i32..=(last + 1e-9).floor() as i32;
        let mut ticks: Vec<f64> = powers.map(|power| base.powi(power)).collect();
        if ticks.len() < 3 && !bytes {
            ticks = decades(low, high);
        }
        let every = ticks.len().div_ceil(TICKS_MAX);
        let ticks: Vec<f64> = ticks.into_iter().step_by(every.max(1)).collect();
        let room = if high > low { (high / low).powf(0.015) } else { 2.0 };
        Self { log: true, low: low / room, high: high * room, ticks, bytes, decimals: 0 }
    }

    fn text(&self, value: f64) -> String {
        if self.bytes {
            return units::bytes(value.round() as u64);
        }
        if self.log {
            // As short as it can be written, without the noise of powers.
            return ((value * 1e9).round() / 1e9).to_string();
        }
        format!("{value:.*}", self.decimals)
    }
}

/// 1, 2 and 5 times powers of ten.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
    all.filter(|tick| (low * 0.999..=high * 1.001).contains(tick)).collect()
}

/// The smallest of 1, 2 and 5 times a power of ten that is not below `step`.
fn nice_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= step * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * power
}

impl Ranged for Ruler {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let part = if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        limit.0 + (f64::from(limit.1 - limit.0) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

impl ValueFormatter<f64> for Ruler {
    fn format_ext(&self, value: &f64) -> String {
        self.text(*value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis, values: &[f64]) -> Vec<String> {
        let ruler = Ruler::new(axis, values.iter().copied());
        ruler.ticks.iter().map(|&tick| ruler.text(tick)).collect()
    }

    #[test]
    fn ticks_are_round_and_few() {
        let numbers = Axis::from_zero("");
        assert_eq!(texts(&numbers, &[3.0, 97.0]), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(texts(&numbers, &[0.1, 0.9]), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(
            texts(&Axis::around(""), &[101.0, 109.0]),
            ["101", "102", "103", "104", "105", "106", "107", "108", "109"]
        );
        let sizes = Axis::bytes("", 4);
        let wide = texts(&sizes, &[4096.0, 4_194_304.0]);
        assert_eq!(wide, ["4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB"]);
        assert_eq!(texts(&Axis::log("", 10), &[0.01, 100.0]), ["0.01", "0.1", "1", "10", "100"]);
        assert_eq!(texts(&Axis::log("", 10), &[1.0, 20.0]), ["1", "2", "5", "10", "20"]);
        assert!(texts(&Axis::log("", 2), &[1.0, 1e9]).len() <= TICKS_MAX);
    }

    #[test]
    fn every_value_is_inside() {
        for axis in [Axis::from_zero(""), Axis::around(""), Axis::log("", 10)] {
            for values in [[1.0, 1.0], [0.3, 7.1], [5.0, 12345.0]] {
                let ruler = Ruler::new(&axis, values.into_iter());
                for value in values {
                    assert!(
                        ruler.range().start <= value && value <= ruler.range().end,
                        "{ruler:?}"
                    );
                    assert!((0..=1000).contains(&ruler.map(&value, (0, 1000))), "{ruler:?}");
                }
            }
        }
    }
}
