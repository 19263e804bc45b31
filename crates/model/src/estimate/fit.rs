//! Least squares for (`L`, `g`, `G`) with none of them negative.
//!
//! Alone samples are rows (1, 1, x), backlogged samples rows (0, 1, x) of one linear model, so both
//! kinds share `g` and `G`, and only `L` separates them. A weak pull to a prior fills the
//! directions in which the data say nothing (`L` against `g` without backlogged samples, `g`
//! against `G` with one size). With three unknowns, non-negativity needs no iteration: the optimum
//! is the best of the eight ways to hold some of them at zero.

use crate::stage::Stage;

type Vector = [f64; 3];

/// Normal equations in scaled unknowns: `L` and `g` in units of `seconds`, and `bytes·G` in the
/// same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fit {
    matrix: [Vector; 3],
    right: Vector,
    bytes: f64,
    seconds: f64,
}

/// A solution of the fit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Solution {
    /// The fitted costs, with no `window` set.
    pub(super) stage: Stage,
    /// Standard errors of `L`, `g` (seconds) and `G` (seconds per byte).
    pub(super) errors: Vector,
}

impl Fit {
    /// An empty system around a fragment of `bytes` that costs about `seconds`.
    pub(super) fn new(bytes: f64, seconds: f64) -> Self {
        Self {
            matrix: [[0.0; 3]; 3],
            right: [0.0; 3],
            bytes: bytes.max(1.0),
            seconds: seconds.max(1e-12),
        }
    }

    /// Add `weight` samples with the given means; `spread` and `product` are centred sums as a cell
    /// keeps them. `deviation` is the standard deviation of one sample in seconds.
    pub(super) fn add(&mut self, alone: bool, moments: &Moments, deviation: f64) {
        let precision = (self.seconds / deviation).powi(2);
        let row = [f64::from(u8::from(alone)), 1.0, moments.mean_bytes / self.bytes];
        let value = moments.mean_seconds / self.seconds;
        for (i, &left) in row.iter().enumerate() {
            for (j, &top) in row.iter().enumerate() {
                self.matrix[i][j] += precision * moments.weight * left * top;
            }
            self.right[i] += precision * moments.weight * left * value;
        }
        self.matrix[2][2] += precision * moments.spread / (self.bytes * self.bytes);
        self.right[2] += precision * moments.product / (self.bytes * self.seconds);
    }

    /// Pull every unknown towards the prior's with the given precision.
    pub(super) fn pull(&mut self, prior: &Stage, precision: f64) {
        let target = [prior.latency, prior.overhead, prior.per_byte * self.bytes];
        for (i, value) in target.into_iter().enumerate() {
            self.matrix[i][i] += precision;
            self.right[i] += precision * value / self.seconds;
        }
    }

    /// The standard error of `x·G` as a fraction of the cost, by what has been added so far.
    pub(super) fn slope_error(&self) -> f64 {
        let mut system = *self;
        for i in 0..3 {
            system.matrix[i][i] += 1e-9;
        }
        inverse_diagonal(&system.matrix)[2].max(0.0).sqrt()
    }

    /// The best parameters that are not negative.
    pub(super) fn solve(&self) -> Solution {
        let mut best = (0.0, [0.0; 3]);
        for mask in 1..8_u8 {
            let free = [mask & 1 != 0, mask & 2 != 0, mask & 4 != 0];
            let Some(point) = self.solve_for(free) else { continue };
            if point.iter().any(|&value| value < 0.0) {
                continue;
            }
            let cost = self.cost(&point);
            if cost < best.0 {
                best = (cost, point);
            }
        }
        let [latency, overhead, slope] = best.1;
        let errors = inverse_diagonal(&self.matrix).map(|variance| variance.max(0.0).sqrt());
        let unit = self.seconds;
        Solution {
            stage: Stage {
                latency: latency * unit,
                overhead: overhead * unit,
                per_byte: slope * unit / self.bytes,
                window: None,
            },
            errors: [errors[0] * unit, errors[1] * unit, errors[2] * unit / self.bytes],
        }
    }

    /// The squared error up to a constant.
    fn cost(&self, point: &Vector) -> f64 {
        let mut cost = 0.0;
        for (i, &left) in point.iter().enumerate() {
            let product: f64 = self.matrix[i].iter().zip(point).map(|(m, p)| m * p).sum();
            cost += left * (product - 2.0 * self.right[i]);
        }
        cost
    }

    /// Gaussian elimination with the other unknowns held at zero.
    fn solve_for(&self, free: [bool; 3]) -> Option<Vector> {
        let mut matrix = self.matrix;
        let mut right = self.right;
        for (i, row) in matrix.iter_mut().enumerate() {
            for (j, value) in row.iter_mut().enumerate() {
                if !(free[i] && free[j]) {
                    *value = f64::from(u8::from(i == j));
                }
            }
            if !free[i] {
                right[i] = 0.0;
            }
        }
        // Symmetric and positive (pulls and samples only add), so no pivoting is needed.
        for pivot in 0..3 {
            let top = matrix[pivot];
            if top[pivot] <= 1e-12 {
                return None;
            }
            for row in pivot + 1..3 {
                let factor = matrix[row][pivot] / top[pivot];
                for (value, above) in matrix[row].iter_mut().zip(top) {
                    *value -= factor * above;
                }
                right[row] -= factor * right[pivot];
            }
        }
        let mut point = [0.0; 3];
        for row in (0..3).rev() {
            let known: f64 = (row + 1..3).map(|column| matrix[row][column] * point[column]).sum();
            point[row] = (right[row] - known) / matrix[row][row];
        }
        point.iter().all(|value| value.is_finite()).then_some(point)
    }
}

/// What a group of samples adds up to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moments {
    pub(super) weight: f64,
    pub(super) mean_bytes: f64,
    pub(super) mean_seconds: f64,
    pub(super) spread: f64,
    pub(super) product: f64,
}

/// The diagonal of the inverse: the variances.
fn inverse_diagonal(m: &[Vector; 3]) -> Vector {
    let minor = |a: usize, b: usize| m[a][a] * m[b][b] - m[a][b] * m[b][a];
    let determinant = m[0][0] * minor(1, 2) - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
        + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0]);
    if determinant <= 0.0 {
        return [f64::INFINITY; 3];
    }
    [minor(1, 2) / determinant, minor(0, 2) / determinant, minor(0, 1) / determinant]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(mean_bytes: f64, mean_seconds: f64) -> Moments {
        Moments { weight: 1.0, mean_bytes, mean_seconds, spread: 0.0, product: 0.0 }
    }

    #[test]
    fn exact_samples_give_exact_parameters() {
        let truth = Stage { latency: 70e-6, overhead: 17e-6, per_byte: 0.4e-9, window: None };
        let mut fit = Fit::new(65536.0, 50e-6);
        for bytes in [4096.0, 65536.0] {
            fit.add(true, &at(bytes, truth.alone(bytes)), 1e-6);
            fit.add(false, &at(bytes, truth.occupancy(bytes)), 1e-6);
        }
        let found = fit.solve();
        assert!((found.stage.latency / truth.latency - 1.0).abs() < 1e-6, "{found:?}");
        assert!((found.stage.overhead / truth.overhead - 1.0).abs() < 1e-6);
        assert!((found.stage.per_byte / truth.per_byte - 1.0).abs() < 1e-6);
        assert!(found.errors.iter().all(|error| error.is_finite()));
        assert!(fit.slope_error() < 0.1);
    }

    #[test]
    fn a_negative_overhead_is_held_at_zero() {
        let mut fit = Fit::new(1000.0, 1.0);
        // The line through these has its intercept at -0.5.
        fit.add(false, &at(1000.0, 0.5), 0.01);
        fit.add(false, &at(2000.0, 1.5), 0.01);
        fit.pull(&Stage::FREE, 1e-3);
        let found = fit.solve().stage;
        assert_eq!(found.overhead, 0.0);
        assert!(found.per_byte > 0.5e-3 && found.per_byte < 0.75e-3, "{found:?}");
    }

    #[test]
    fn one_size_leaves_the_slope_to_the_prior() {
        let mut fit = Fit::new(1000.0, 1.0);
        fit.add(false, &at(1000.0, 1.0), 0.01);
        assert!(fit.slope_error() > 10.0);
        fit.pull(&Stage { latency: 0.0, overhead: 0.25, per_byte: 0.75e-3, window: None }, 0.5);
        let found = fit.solve().stage;
        assert!((found.overhead - 0.25).abs() < 1e-3, "{found:?}");
        assert!((found.per_byte - 0.75e-3).abs() < 1e-6);
    }
}
