//! How well the costs of a stage are known.

use super::{Cell, Estimator, REGIMES};

/// Samples at which a cell is half believed.
const CONFIDENCE_HALF: f64 = 8.0;

impl Estimator {
    /// Backlogged samples give the cost, alone samples the latency on top; the nearest regime with
    /// samples counts, at half for each step away unless all are on one line.
    pub(super) fn confidence(&self, place: usize, straight: bool, identifiable: bool) -> f64 {
        let belief = |cells: &[Cell; REGIMES]| {
            let count = self.samples_alone + self.samples_backlogged;
            let mut best = 0.0_f64;
            for (other, cell) in cells.iter().enumerate() {
                let weight = cell.weight_now(count);
                let steps = other.abs_diff(place) as i32;
                let nearness = if straight && identifiable { 0.9_f64 } else { 0.5 }.powi(steps);
                best = best.max(nearness * weight / (weight + CONFIDENCE_HALF));
            }
            best
        };
        let (alone, backlogged) = (belief(&self.alone), belief(&self.backlogged));
        let split = if identifiable { 1.0 } else { 0.75 };
        split * backlogged * (0.5 + 0.5 * alone) + (1.0 - backlogged) * 0.25 * alone
    }

    /// Two standard errors of the mean cost at a regime, relative to it.
    pub(super) fn relative_error(&self, place: usize) -> f64 {
        let nearest =
            self.cells().min_by_key(|(other, alone, ..)| (other.abs_diff(place), u8::from(*alone)));
        nearest.map_or(0.0, |(_, _, moments, deviation)| {
            2.0 * deviation / moments.weight.max(1.0).sqrt()
        })
    }
}
