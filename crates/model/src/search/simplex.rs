//! The least maximum of linear functions over sizes that add up: a linear program that grows by a
//! row at a time.
//!
//! Wanted are shares `s >= 0`, `sum s = 1`, for which the largest of `c_p·s` over the rows `p` is
//! least. With all `c > 0`, `z = s/t` turns it into: maximise `sum z` under `c_p·z <= 1`; then
//! `t = 1/sum z` (a matrix game, as in every book on linear programming). A new row leaves the old
//! solution dual feasible, so a few steps of the dual simplex method repair it. The table holds one
//! row for each basic variable and one column for each of the others; rows whose slack is basic say
//! nothing and can be dropped when there are many.

/// Below this a coefficient is rounding.
const TINY: f64 = 1e-11;

/// What a row or column of the table stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Variable {
    Share(usize),
    Slack,
}

/// `basic = bound - sum(coefficient · nonbasic)`, a row.
#[derive(Debug, Clone)]
struct Row {
    basic: Variable,
    bound: f64,
    coefficients: Vec<f64>,
}

#[derive(Debug, Clone)]
pub(super) struct MinMax {
    rows: Vec<Row>,
    columns: Vec<Variable>,
    /// What one more of a nonbasic variable adds to `sum z`; none is positive once there is a row.
    prices: Vec<f64>,
    total: f64,
}

impl MinMax {
    pub(super) fn new(shares: usize) -> Self {
        Self {
            rows: Vec::new(),
            columns: (0..shares).map(Variable::Share).collect(),
            prices: vec![1.0; shares],
            total: 0.0,
        }
    }

    /// One more linear function; its coefficients must be positive. The least maximum with it, or
    /// `None` if the arithmetic has broken down.
    pub(super) fn add(&mut self, function: &[f64]) -> Option<f64> {
        debug_assert!(!function.iter().any(|value| value.is_nan()), "{function:?}");
        let first = self.rows.is_empty();
        let row = self.expressed(function);
        self.rows.push(row);
        if first {
            let cheapest =
                (0..function.len()).min_by(|&a, &b| function[a].total_cmp(&function[b]))?;
            self.pivot(0, cheapest);
        }
        for _ in 0..4 * (self.rows.len() + self.columns.len()) {
            let leaving = (0..self.rows.len())
                .min_by(|&a, &b| self.rows[a].bound.total_cmp(&self.rows[b].bound))?;
            if self.rows[leaving].bound >= -TINY {
                self.forget();
                return (self.total > 0.0).then(|| 1.0 / self.total);
            }
            let coefficients = &self.rows[leaving].coefficients;
            let ratio = |column: usize| self.prices[column] / coefficients[column];
            let entering = (0..coefficients.len())
                .filter(|&column| coefficients[column] < -TINY)
                .min_by(|&a, &b| ratio(a).total_cmp(&ratio(b)))?;
            self.pivot(leaving, entering);
        }
        None
    }

    /// The shares that reach the least maximum.
    pub(super) fn shares(&self, shares: &mut [f64]) {
        shares.fill(0.0);
        for row in &self.rows {
            if let Variable::Share(index) = row.basic {
                shares[index] = row.bound.max(0.0) / self.total;
            }
        }
    }

    /// `slack = 1 - function·z` with basic shares replaced by their rows.
    fn expressed(&self, function: &[f64]) -> Row {
        let mut bound = 1.0;
        let mut coefficients: Vec<f64> = self
            .columns
            .iter()
            .map(|column| if let Variable::Share(index) = *column { function[index] } else { 0.0 })
            .collect();
        for row in &self.rows {
            if let Variable::Share(index) = row.basic {
                bound -= function[index] * row.bound;
                for (coefficient, other) in coefficients.iter_mut().zip(&row.coefficients) {
                    *coefficient -= function[index] * other;
                }
            }
        }
        Row { basic: Variable::Slack, bound, coefficients }
    }

    fn pivot(&mut self, leaving: usize, entering: usize) {
        let mut row = self.rows.swap_remove(leaving);
        let by = row.coefficients[entering];
        row.coefficients[entering] = 1.0;
        for coefficient in &mut row.coefficients {
            *coefficient /= by;
        }
        row.bound /= by;
        core::mem::swap(&mut row.basic, &mut self.columns[entering]);
        for other in &mut self.rows {
            let times = core::mem::replace(&mut other.coefficients[entering], 0.0);
            if times != 0.0 {
                other.bound -= times * row.bound;
                for (old, new) in other.coefficients.iter_mut().zip(&row.coefficients) {
                    *old -= times * new;
                }
            }
        }
        let price = core::mem::replace(&mut self.prices[entering], 0.0);
        self.total += price * row.bound;
        for (old, new) in self.prices.iter_mut().zip(&row.coefficients) {
            *old -= price * new;
        }
        self.rows.push(row);
    }

    fn forget(&mut self) {
        if self.rows.len() > 3 * self.columns.len() + 8 {
            self.rows.retain(|row| row.basic != Variable::Slack || row.bound < 1e-3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_maximum_of_two_lines_is_where_they_cross() {
        let mut lines = MinMax::new(2);
        assert_eq!(lines.add(&[1.0, 3.0]), Some(1.0));
        // s + 3(1-s) = 4s + (1-s)/2 at s = 5/11.
        let least = lines.add(&[4.0, 0.5]).unwrap();
        let mut shares = [0.0; 2];
        lines.shares(&mut shares);
        assert!((shares[0] - 5.0 / 11.0).abs() < 1e-9 && (least - 23.0 / 11.0).abs() < 1e-9);
        // A function below the others changes nothing.
        assert!((lines.add(&[0.1, 0.1]).unwrap() - least).abs() < 1e-9);
    }

    #[test]
    fn random_functions_are_never_above_the_least_maximum_by_a_better_point() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / f64::from(1 << 24)
        };
        for _ in 0..200 {
            let functions: Vec<[f64; 3]> =
                (0..6).map(|_| core::array::from_fn(|_| 0.1 + random())).collect();
            let mut program = MinMax::new(3);
            let mut least = 0.0;
            for function in &functions {
                least = program.add(function).unwrap();
            }
            let highest = |shares: [f64; 3]| {
                let value =
                    |function: &[f64; 3]| function.iter().zip(shares).map(|(c, s)| c * s).sum();
                functions.iter().map(value).fold(0.0, f64::max)
            };
            let mut shares = [0.0; 3];
            program.shares(&mut shares);
            assert!((highest(shares) - least).abs() < 1e-9);
            for a in 0..=20 {
                for b in 0..=20 - a {
                    let point = [f64::from(a), f64::from(b), f64::from(20 - a - b)];
                    assert!(highest(point.map(|part| part / 20.0)) >= least - 1e-9);
                }
            }
        }
    }
}
