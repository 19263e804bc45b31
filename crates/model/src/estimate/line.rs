//! A straight line through measured points, with what is known of its errors.
//!
//! Ordinary or weighted least squares; or, against outliers, an MM-estimate. It begins with
//! repeated medians (Siegel 1982, half of the points may be wrong) and takes their residuals'
//! median as the scale. From there it uses Tukey's bisquare (Yohai 1987), which ignores what lies
//! far away and loses 5 % to least squares where nothing does. Its errors are Huber's (1981,
//! section 7.6). Trimming by residuals of a first least-squares fit, the obvious way, trims by a
//! line that the outliers have already moved.

#[cfg(feature = "serde")]
use serde::Serialize;

use super::figure::{Figure, freedom};

/// How the scatter of measured times depends on the times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(Serialize), serde(rename_all = "kebab-case"))]
pub enum Noise {
    /// Noise is the same at every size.
    #[default]
    Constant,
    /// A part of the time itself, as with machines that are shared: large times scatter more.
    Proportional,
}

/// How a line is fitted. The default withstands outliers, with noise that is the same at every
/// size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Withstand outliers (up to about 40 % of the points), at the price of 5 % wider intervals.
    pub robust: bool,
    /// How the measurements scatter.
    pub noise: Noise,
}

impl Default for Options {
    fn default() -> Self {
        Self { robust: true, noise: Noise::default() }
    }
}

/// `intercept + slope·x`. Of a stage's times in seconds against sizes in bytes: `g` and `G`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Line {
    /// The value at 0.
    pub intercept: Figure,
    /// The rise per unit of `x`.
    pub slope: Figure,
    /// The standard deviation of one point: in units of `y`, or relative to `y` for
    /// [`Noise::Proportional`].
    pub deviation: f64,
    /// The number of points.
    pub samples: usize,
    /// Points that were ignored as outliers (always 0 if not robust).
    pub outliers: usize,
    /// Where the line is known best: its `x`, and the value there.
    pub(super) centre_x: f64,
    centre: Figure,
    /// The squared errors of the value there and of the slope, in those of one point of this noise.
    doubts: [f64; 2],
}

impl Line {
    /// The value at `x`.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        self.intercept.value + self.slope.value * x
    }

    /// The value at `x` with its error (of the line, not of one more point).
    #[must_use]
    pub fn figure_at(&self, x: f64) -> Figure {
        let away = x - self.centre_x;
        let lever = if away == 0.0 { 0.0 } else { away * self.slope.error };
        Figure { value: self.at(x), error: self.centre.error.hypot(lever), ..self.centre }
    }

    /// The line as it may be, too: its height and its slope off by so many of their errors, if
    /// those are known.
    pub(super) fn shifted(&self, errors: [f64; 2]) -> Self {
        let by = |figure: Figure, errors: f64| match figure.error.is_finite() {
            true => Figure { value: figure.value + errors * figure.error, ..figure },
            false => figure,
        };
        let slope = by(self.slope, errors[1]);
        let centre = by(self.centre, errors[0]);
        let value = centre.value - slope.value * self.centre_x;
        Self { slope, centre, intercept: Figure { value, ..self.intercept }, ..*self }
    }

    /// Moves the line, whose errors stay: to where its value at 0 and its slope are neither below
    /// zero nor above what is given, by more than rounding.
    pub(super) fn move_to(&mut self, [height, slope]: [f64; 2], most: [f64; 2]) {
        self.slope.value = slope.min(most[1]).max(0.0);
        self.centre.value = height;
        self.intercept.value = (height - slope * self.centre_x).min(most[0]).max(0.0);
    }

    /// The squared errors of the height at the centre and of the slope, in those of one point.
    pub(super) fn doubts(&self) -> [f64; 2] {
        self.doubts
    }
}

/// Tukey's constant for 95 % efficiency.
pub(super) const TUKEY: f64 = 4.685;
/// Median absolute deviation to standard deviation, for the normal distribution.
pub(super) const TO_DEVIATION: f64 = 1.482_602;
/// The start looks at every pair of points: at most of this many of them.
const START_POINTS_MAX: usize = 400;
const ROUNDS_MAX: usize = 60;
/// Arithmetic alone scatters as much, relative to the values.
const ROUNDING: f64 = 1e-13;

/// How near a point is at so many deviations, 1 to 0: its square is the weight of the point by
/// Tukey's bisquare, and 1 less its third power the loss.
pub(super) fn bisquare(deviations: f64) -> f64 {
    let part = deviations / TUKEY;
    (1.0 - part * part).max(0.0)
}

/// Fit a line to finite points; `None` unless they have at least two different `x`.
pub(super) fn fit(points: &[(f64, f64)], options: Options) -> Option<Line> {
    let first = points.first()?.0;
    if points.iter().all(|&(x, _)| x == first) {
        return None;
    }
    let mut work = Work::new(points, options.noise);
    if options.robust {
        work.start_robust();
        Some(work.finish_robust())
    } else {
        Some(work.least_squares())
    }
}

/// Sums of one weighted fit.
#[derive(Clone, Copy)]
struct Sums {
    weight: f64,
    mean_x: f64,
    mean_y: f64,
    spread: f64,
    slope: f64,
}

struct Work<'a> {
    points: &'a [(f64, f64)],
    noise: Noise,
    /// The unit of residuals where noise is constant: the largest value.
    height: f64,
    /// The line of the last round.
    slope: f64,
    mean_x: f64,
    mean_y: f64,
}

impl<'a> Work<'a> {
    fn new(points: &'a [(f64, f64)], noise: Noise) -> Self {
        let height = points.iter().fold(0.0_f64, |most, point| most.max(point.1.abs()));
        let height = if height > 0.0 { height } else { 1.0 };
        Self { points, noise, height, slope: 0.0, mean_x: 0.0, mean_y: height }
    }

    fn at(&self, x: f64) -> f64 {
        self.mean_y + self.slope * (x - self.mean_x)
    }

    /// The unit in which a residual at `x` is counted.
    fn unit(&self, x: f64) -> f64 {
        match self.noise {
            Noise::Constant => self.height,
            // A line may pass zero; no point is a million times as precise as the others.
            Noise::Proportional => self.at(x).abs().max(1e-3 * self.height),
        }
    }

    fn residual(&self, (x, y): (f64, f64)) -> f64 {
        (y - self.at(x)) / self.unit(x)
    }

    /// One weighted fit; `robust` weighs a point by its residual.
    fn round(&self, robust: impl Fn(f64) -> f64) -> Option<Sums> {
        let weights = self.points.iter().map(|&point| {
            let unit = self.unit(point.0) / self.height;
            (point, robust(self.residual(point)) / (unit * unit))
        });
        let (mut weight, mut mean_x, mut mean_y) = (0.0, 0.0, 0.0);
        let (mut spread, mut product) = (0.0, 0.0);
        for ((x, y), w) in weights.filter(|it| it.1 > 0.0) {
            weight += w;
            let dx = x - mean_x;
            mean_x += dx * w / weight;
            mean_y += (y - mean_y) * w / weight;
            spread += w * dx * (x - mean_x);
            product += w * dx * (y - mean_y);
        }
        (spread > 0.0).then(|| Sums { weight, mean_x, mean_y, spread, slope: product / spread })
    }

    fn take(&mut self, sums: Sums) {
        (self.slope, self.mean_x, self.mean_y) = (sums.slope, sums.mean_x, sums.mean_y);
    }

    fn least_squares(&mut self) -> Line {
        // Weights by the values on the line need the line: a few rounds.
        let rounds = if self.noise == Noise::Constant { 1 } else { 12 };
        let mut last = None;
        for _ in 0..rounds {
            last = self.round(|_| 1.0);
            if let Some(sums) = last {
                self.take(sums);
            }
        }
        let left = freedom(self.points.len(), 2);
        let squares: f64 = self.points.iter().map(|&point| self.residual(point).powi(2)).sum();
        let variance = if left > 0 { squares / f64::from(left) } else { f64::INFINITY };
        self.line(last, variance, variance.sqrt(), 0)
    }

    /// Repeated medians: the median over points of the median slope to the others.
    fn start_robust(&mut self) {
        let stride = self.points.len().div_ceil(START_POINTS_MAX);
        let mut sorted: Vec<(f64, f64)> = self.points.to_vec();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let some: Vec<(f64, f64)> = sorted.into_iter().step_by(stride).collect();
        let mut slopes = Vec::with_capacity(some.len());
        let mut row = Vec::with_capacity(some.len());
        for &(x, y) in &some {
            row.clear();
            row.extend(some.iter().filter(|it| it.0 != x).map(|it| (it.1 - y) / (it.0 - x)));
            slopes.extend(median(&mut row));
        }
        let Some(slope) = median(&mut slopes) else { return };
        let mut heights: Vec<f64> = some.iter().map(|&(x, y)| y - slope * x).collect();
        self.slope = slope;
        (self.mean_x, self.mean_y) = (0.0, median(&mut heights).unwrap_or(0.0));
    }

    /// The bisquare from the start, at the start's scale.
    fn finish_robust(&mut self) -> Line {
        let mut sizes: Vec<f64> = self.points.iter().map(|&it| self.residual(it).abs()).collect();
        sizes.sort_by(f64::total_cmp);
        // Two parameters make two residuals small.
        let scale = median(&mut sizes[2.min(self.points.len() - 1)..]).unwrap_or(0.0);
        let scale = (TO_DEVIATION * scale).max(ROUNDING);
        let weight = |residual: f64| bisquare(residual / scale).powi(2);
        let mut last = self.round(weight);
        for _ in 0..ROUNDS_MAX {
            let Some(sums) = last else { return self.least_squares() };
            let moved = (sums.slope - self.slope).abs() * sums.spread.sqrt()
                + (sums.mean_y - self.at(sums.mean_x)).abs() * sums.weight.sqrt();
            self.take(sums);
            if moved <= 1e-9 * scale * self.height {
                break;
            }
            last = self.round(weight);
        }
        let parts = self.points.iter().map(|&point| self.residual(point) / scale);
        let (variance, outliers) = robust_variance(parts, 2);
        let variance = scale * scale * variance;
        self.line(self.round(|_| 1.0).and(last), variance, scale, outliers)
    }

    /// The line of the last round, with errors from `variance` (in units of residuals).
    fn line(&self, sums: Option<Sums>, variance: f64, deviation: f64, outliers: usize) -> Line {
        // The design with every point's own weight, not the robust one: Huber's formula.
        let design = self.round(|_| 1.0).or(sums);
        let left = freedom(self.points.len(), 2);
        let variance = variance * self.height * self.height;
        let (of_slope, of_centre, centre_x) = design.map_or((0.0, 0.0, 0.0), |design| {
            (variance / design.spread, variance / design.weight, design.mean_x)
        });
        let error = |square: f64| if left == 0 { f64::INFINITY } else { square.sqrt() };
        let figure = |value, square| Figure { value, error: error(square), freedom: left };
        Line {
            intercept: figure(self.at(0.0), of_centre + centre_x * centre_x * of_slope),
            slope: figure(self.slope, of_slope),
            deviation: match self.noise {
                Noise::Constant => deviation * self.height,
                Noise::Proportional => deviation,
            },
            samples: self.points.len(),
            outliers,
            centre_x,
            centre: figure(self.at(centre_x), of_centre),
            doubts: design.map_or([0.0; 2], |it| {
                [1.0 / it.weight, 1.0 / it.spread].map(|it| match self.noise {
                    Noise::Constant => it,
                    Noise::Proportional => it * self.height * self.height,
                })
            }),
        }
    }
}

/// Huber's estimate of the variance that takes the place of that of the residuals, both in
/// deviations, after so many `parameters` were taken from them; and how many of them count for
/// nothing.
pub(super) fn robust_variance(
    residuals: impl Iterator<Item = f64>,
    parameters: usize,
) -> (f64, usize) {
    let (mut total, mut outliers) = (0_usize, 0);
    let (mut squares, mut slopes, mut slope_squares) = (0.0, 0.0, 0.0);
    for residual in residuals {
        total += 1;
        let rest = bisquare(residual);
        if rest == 0.0 {
            outliers += 1;
            continue;
        }
        let part = residual / TUKEY;
        squares += (residual * rest * rest).powi(2);
        let slope = rest * (1.0 - 5.0 * part * part);
        slopes += slope;
        slope_squares += slope * slope;
    }
    let count = total as f64;
    let mean = slopes / count;
    let left = freedom(total, parameters);
    if left == 0 || mean <= 0.0 {
        return (f64::INFINITY, outliers);
    }
    let scatter = (slope_squares / count - mean * mean).max(0.0);
    let correction = 1.0 + parameters as f64 / count * scatter / (mean * mean);
    let variance = squares / f64::from(left) / (mean * mean);
    (variance * correction * correction, outliers)
}

/// The median, which reorders; `None` of none.
pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len() / 2;
    if values.is_empty() {
        return None;
    }
    let odd = values.len() % 2 == 1;
    let (below, &mut upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if odd {
        return Some(upper);
    }
    let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(0.5 * (lower + upper))
}
