//! A number with what is known of its error.

use core::f64::consts::{FRAC_2_PI, FRAC_PI_2};

#[cfg(feature = "serde")]
use serde::Serialize;

/// An estimated quantity: its value, its standard error, and the degrees of freedom behind that
/// error.
///
/// Units are those of the value. With no degrees of freedom nothing is known of the error, and
/// every interval is unbounded: two points always lie on a line.
///
/// ```
/// use piped_model::estimate::Figure;
/// let figure = Figure { value: 10.0, error: 1.0, freedom: 10 };
/// let [low, high] = figure.interval(0.95);
/// assert!((high - 10.0 - 2.2281).abs() < 1e-4 && (10.0 - low - 2.2281).abs() < 1e-4);
/// assert_eq!(Figure { freedom: 0, ..figure }.interval(0.95), [f64::NEG_INFINITY, f64::INFINITY]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Figure {
    /// The estimated value itself.
    pub value: f64,
    /// The standard error of the value, in the unit of the value; infinite where the data say
    /// nothing.
    pub error: f64,
    /// Degrees of freedom of the error.
    pub freedom: u32,
}

impl Figure {
    /// A number that is known.
    ///
    /// ```
    /// use piped_model::estimate::Figure;
    /// assert_eq!(Figure::exact(3.0).interval(0.99), [3.0, 3.0]);
    /// ```
    #[must_use]
    pub const fn exact(value: f64) -> Self {
        Self { value, error: 0.0, freedom: u32::MAX }
    }

    /// The mean of `values` and its error; `None` of none.
    ///
    /// ```
    /// use piped_model::estimate::Figure;
    /// let mean = Figure::mean(&[1.0, 2.0, 3.0]).unwrap();
    /// assert_eq!((mean.value, mean.freedom), (2.0, 2));
    /// assert!((mean.error - (1.0_f64 / 3.0).sqrt()).abs() < 1e-12);
    /// ```
    #[must_use]
    pub fn mean(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let count = values.len() as f64;
        let value = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|it| (it - value).powi(2)).sum();
        let freedom = freedom(values.len(), 1);
        let error =
            if freedom == 0 { f64::INFINITY } else { (squares / (count - 1.0) / count).sqrt() };
        Some(Self { value, error, freedom })
    }

    /// The two-sided confidence interval by Student's t; `confidence` between 0 and 1, as 0.95.
    #[must_use]
    pub fn interval(&self, confidence: f64) -> [f64; 2] {
        let half = self.half_width(confidence);
        [self.value - half, self.value + half]
    }

    /// Half the width of [`Figure::interval`].
    #[must_use]
    pub fn half_width(&self, confidence: f64) -> f64 {
        match self.error {
            0.0 if self.freedom > 0 => 0.0,
            _ if self.freedom == 0 => f64::INFINITY,
            error => error * student(confidence, self.freedom),
        }
    }

    /// The sum with an independent figure, by Welch and Satterthwaite.
    ///
    /// ```
    /// use piped_model::estimate::Figure;
    /// let a = Figure { value: 5.0, error: 3.0, freedom: 10 };
    /// let b = Figure { value: 2.0, error: 4.0, freedom: 10 };
    /// let sum = a.plus(b);
    /// assert_eq!((sum.value, sum.error), (7.0, 5.0));
    /// assert_eq!(a.minus(b).value, 3.0);
    /// ```
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let (a, b) = (self.error.powi(2), other.error.powi(2));
        let error = (a + b).sqrt();
        let part = |square: f64, freedom: u32| {
            if square == 0.0 { 0.0 } else { square * square / f64::from(freedom) }
        };
        let parts = part(a, self.freedom) + part(b, other.freedom);
        let freedom = if parts > 0.0 && error.is_finite() {
            // Rounded down: the wider interval. It is never below the smaller of the two, but in
            // floats it can be, and is no number where the squares overflow.
            (((a + b).powi(2) / parts) as u32).max(self.freedom.min(other.freedom))
        } else {
            self.freedom.min(other.freedom)
        };
        Self { value: self.value + other.value, error, freedom }
    }

    /// The difference to an independent figure.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.plus(other.times(-1.0))
    }

    /// The figure in another unit.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, error: self.error * factor.abs(), freedom: self.freedom }
    }
}

/// What remains of `samples` after `parameters` were taken from them.
pub(super) fn freedom(samples: usize, parameters: usize) -> u32 {
    u32::try_from(samples.saturating_sub(parameters)).unwrap_or(u32::MAX)
}

/// More degrees of freedom than this change the quantile by less than 0.15 %, to the wide side.
const FREEDOM_MAX: u32 = 1000;

/// Student's t: the `t` that bounds `confidence` of the distribution on both sides.
///
/// By the finite series for a whole number of degrees of freedom (Abramowitz and Stegun 26.7.3 and
/// 26.7.4) and bisection over the angle `atan(t / sqrt(freedom))`.
pub(super) fn student(confidence: f64, freedom: u32) -> f64 {
    let confidence = if confidence.is_nan() { 0.95 } else { confidence.clamp(0.0, 0.999_999_9) };
    let freedom = freedom.clamp(1, FREEDOM_MAX);
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if within(middle, freedom) < confidence { low = middle } else { high = middle }
    }
    high.tan() * f64::from(freedom).sqrt()
}

/// The probability of `|t| <= tan(angle)·sqrt(freedom)`.
fn within(angle: f64, freedom: u32) -> f64 {
    let (sine, cosine) = angle.sin_cos();
    let odd = freedom % 2 == 1;
    let mut term = if odd { cosine } else { 1.0 };
    let mut sum = if freedom == 1 { 0.0 } else { term };
    let mut power = if odd { 3 } else { 2 };
    while power + 2 <= freedom {
        term *= cosine * cosine * f64::from(power - 1) / f64::from(power);
        sum += term;
        power += 2;
    }
    if odd { FRAC_2_PI * (angle + sine * sum) } else { sine * sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (confidence, freedom, table) in [
            (0.95, 1, 12.706_2),
            (0.95, 2, 4.302_65),
            (0.95, 3, 3.182_45),
            (0.95, 4, 2.776_45),
            (0.95, 5, 2.570_58),
            (0.95, 10, 2.228_14),
            (0.95, 29, 2.045_23),
            (0.95, 120, 1.979_93),
            (0.99, 7, 3.499_48),
            (0.99, 8, 3.355_39),
            (0.5, 9, 0.702_722),
            (0.999, 30, 3.645_96),
        ] {
            let found = student(confidence, freedom);
            assert!((found / table - 1.0).abs() < 2e-6, "{confidence} {freedom}: {found} {table}");
        }
        // The normal distribution, nearly.
        assert!((student(0.95, u32::MAX) / 1.959_964 - 1.0).abs() < 2e-3);
    }

    #[test]
    fn errors_add_as_squares_and_freedom_by_the_weaker() {
        let sure = Figure { value: 1.0, error: 0.01, freedom: 1000 };
        let vague = Figure { value: 2.0, error: 1.0, freedom: 3 };
        let sum = sure.plus(vague);
        assert_eq!(sum.freedom, 3);
        assert_eq!(Figure::exact(4.0).plus(vague).freedom, 3);
        assert_eq!(Figure::exact(4.0).minus(Figure::exact(1.0)), Figure::exact(3.0));
        // Where the fourth powers leave the range of numbers something is known all the same.
        for error in [1e-100, 1e-81, 1e77, 1e100] {
            let far = Figure { value: 1.0, error, freedom: 7 };
            assert!(far.plus(far).freedom >= 7, "{:?}", far.plus(far));
        }
        // Nor does the rounding of a quotient take one away.
        for freedom in 1..=1000 {
            let alone = Figure { value: 1.0, error: 1.0, freedom };
            assert_eq!(alone.plus(Figure::exact(1.0)).freedom, freedom);
        }
        let unknown = Figure { value: 0.0, error: f64::INFINITY, freedom: 0 };
        assert_eq!(sure.plus(unknown).interval(0.9), [f64::NEG_INFINITY, f64::INFINITY]);
    }
}
