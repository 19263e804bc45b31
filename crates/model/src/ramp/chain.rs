//! Sizes that follow `x_{i+1} = a·x_i + b`: equations 14 to 18 without division by `a - 1`.

/// The recurrence of equation 14. `ratio` is `a >= 0`, `step` is `b` in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    pub(super) ratio: f64,
    pub(super) step: f64,
}

/// Below this value of `i·|a - 1|` the closed forms lose digits and a series is used.
const NEAR_ONE: f64 = 0.5;

impl Chain {
    /// `(p, q)` such that `x_i = p·x_0 + q` (equation 17).
    pub(super) fn term(&self, index: u64) -> (f64, f64) {
        (self.power(index), self.step * self.ones(index))
    }

    /// `(p, q)` such that the sum of the first `count` sizes is `p·x_0 + q` (equation 18).
    pub(super) fn sum(&self, count: u64) -> (f64, f64) {
        (self.ones(count), self.step * self.sum_of_ones(count))
    }

    fn power(&self, exponent: u64) -> f64 {
        self.ratio.powf(exponent as f64)
    }

    /// `1 + a + … + a^(i-1) = (a^i - 1)/(a - 1)`.
    fn ones(&self, count: u64) -> f64 {
        let off = self.ratio - 1.0;
        if off.abs() * (count as f64) < NEAR_ONE {
            return binomials(count, off, 1);
        }
        (self.power(count) - 1.0) / off
    }

    /// The sum of [`Self::ones`] over `0..count`: `(ones(count) - count)/(a - 1)`.
    fn sum_of_ones(&self, count: u64) -> f64 {
        let off = self.ratio - 1.0;
        if off.abs() * (count as f64) < NEAR_ONE {
            return binomials(count, off, 2);
        }
        (self.ones(count) - count as f64) / off
    }
}

/// `sum over n >= from of C(count, n)·off^(n - from)`, by
/// `(1 + off)^count = sum C(count, n)·off^n`.
fn binomials(count: u64, off: f64, from: u64) -> f64 {
    let count = count as f64;
    let mut choose = 1.0;
    for n in 0..from {
        choose *= (count - n as f64) / (n + 1) as f64;
    }
    let (mut sum, mut term, mut n) = (0.0, choose, from as f64);
    while term.abs() > f64::EPSILON * 0.01 * choose.abs() {
        sum += term;
        term *= off * (count - n) / (n + 1.0);
        n += 1.0;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_forms_are_the_recurrence_also_near_one() {
        for ratio in
            [0.0, 1e-9, 0.3, 0.999, 1.0 - 1e-6, 1.0 - 1e-12, 1.0, 1.0 + 1e-13, 1.0 + 1e-4, 1.5]
        {
            for step in [0.0, -3.0, 250.0] {
                let chain = Chain { ratio, step };
                let (mut size, mut total) = (1000.0, 0.0);
                for index in 0..60 {
                    let (p, q) = chain.term(index);
                    let (scale, error) = (p * 1000.0 + q.abs(), (p * 1000.0 + q - size).abs());
                    assert!(
                        error <= 1e-11 * scale + f64::MIN_POSITIVE,
                        "a = {ratio}, b = {step}, i = {index}"
                    );
                    let (p, q) = chain.sum(index);
                    let (scale, error) = (p * 1000.0 + q.abs(), (p * 1000.0 + q - total).abs());
                    assert!(error <= 1e-11 * scale, "a = {ratio}, b = {step}, sum of {index}");
                    total += size;
                    size = ratio * size + step;
                }
            }
        }
    }
}
