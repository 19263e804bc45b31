//! What most of some numbers scatter around, whatever the others are.
//!
//! An M-estimate with Tukey's bisquare, from the median and the median deviation from it (Huber
//! 1981): the location that goes with robust lines. A median alone, the obvious way, is a quarter
//! less precise where nothing is wrong.

use super::figure::{Figure, freedom};
use super::line::{TO_DEVIATION, bisquare, median, robust_variance};

const ROUNDS_MAX: usize = 60;
/// Arithmetic alone scatters as much, relative to the values.
const ROUNDING: f64 = 1e-13;

/// The location with its error, and the deviation of one value. `None` of none; with fewer than
/// three the mean, for nothing tells which of two is wrong.
pub(super) fn typical(values: &[f64]) -> Option<(Figure, f64)> {
    if values.len() < 3 {
        return Figure::mean(values).map(|mean| (mean, f64::INFINITY));
    }
    let mut at = median(&mut values.to_vec())?;
    let mut sizes: Vec<f64> = values.iter().map(|it| (it - at).abs()).collect();
    sizes.sort_by(f64::total_cmp);
    // One parameter makes one of them small.
    let scale = TO_DEVIATION * median(&mut sizes[1..])?;
    let scale = scale.max(ROUNDING * at.abs()).max(f64::MIN_POSITIVE);
    for _ in 0..ROUNDS_MAX {
        let weights = values.iter().map(|it| (it, bisquare((it - at) / scale).powi(2)));
        let (sum, weight) =
            weights.fold((0.0, 0.0), |(sum, all), (it, weight)| (sum + it * weight, all + weight));
        if weight <= 0.0 {
            break;
        }
        let moved = sum / weight - at;
        at += moved;
        if moved.abs() <= 1e-9 * scale {
            break;
        }
    }
    let (variance, _) = robust_variance(values.iter().map(|it| (it - at) / scale), 1);
    let error = scale * (variance / values.len() as f64).sqrt();
    Some((Figure { value: at, error, freedom: freedom(values.len(), 1) }, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_wrong_values_do_not_move_it() {
        let (typical, deviation) = super::typical(&[1.9, 2.0, 2.0, 2.1, 40.0]).expect("values");
        assert!((typical.value - 2.0).abs() < 1e-9 && typical.error < 0.1, "{typical:?}");
        assert!(deviation < 0.2, "{deviation}");
        let (exact, _) = super::typical(&[3.0, 3.0, 3.0, 9.0]).expect("values");
        assert_eq!((exact.value, exact.error), (3.0, 0.0));
        let two = super::typical(&[1.0, 3.0]).map(|it| it.0);
        assert_eq!(two, Figure::mean(&[1.0, 3.0]));
        assert_eq!(super::typical(&[]), None);
    }
}
