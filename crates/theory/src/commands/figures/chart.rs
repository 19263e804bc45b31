//! What a figure is before it is drawn: titles, axes with units, and data. Everything here is a
//! value; [`super::draw`] and [`super::files`] make pictures and tables of it.

/// One picture with its data.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    /// The stem of its files' names.
    pub(crate) name: &'static str,
    /// What it shows, in one line.
    pub(crate) title: String,
    /// The paper and the figure it corresponds to.
    pub(crate) source: &'static str,
    /// What the curves were computed with, for the picture itself.
    pub(crate) parameters: String,
    /// What is to be seen, and where it differs from the paper.
    pub(crate) caption: String,
    /// What the figure draws.
    pub(crate) content: Content,
}

/// The data of a figure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    /// Functions of one variable.
    Curves {
        /// The variable of all curves.
        x: Axis,
        /// The function's value for each curve.
        y: Axis,
        /// One or more curves, in the order of the legend.
        series: Vec<Series>,
    },
    /// Sums, as bars of stacked parts.
    Bars {
        /// What the bars measure; from 0.
        y: Axis,
        /// The parts' names, from below.
        parts: Vec<String>,
        /// The bars, from the left.
        bars: Vec<Bar>,
    },
}

/// A sum and its parts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bar {
    /// What it is the sum of.
    pub(crate) name: String,
    /// A second line below the name: what it belongs to.
    pub(crate) group: String,
    /// A value for each part.
    pub(crate) values: Vec<f64>,
    /// What no sum of its group can be below.
    pub(crate) least: f64,
}

/// One axis of a figure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    /// What the axis shows, with the unit in brackets.
    pub(crate) label: &'static str,
    /// How values become places.
    pub(crate) scale: Scale,
    /// How ticks are written.
    pub(crate) ticks: Ticks,
}

/// How values become places on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From 0, or from the least value if that is negative.
    FromZero,
    /// From the least value to the largest.
    Around,
    /// The logarithm of the values, with ticks at powers of this base.
    Log(u32),
}

/// How the numbers at ticks are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ticks {
    /// Plain numbers without a unit.
    Numbers,
    /// Bytes in IEC units.
    Bytes,
}

impl Axis {
    /// The label as the picture has it.
    pub(crate) fn shown(&self) -> String {
        match self.scale {
            Scale::Log(_) => format!("{}, log scale", self.label),
            Scale::FromZero | Scale::Around => self.label.to_owned(),
        }
    }

    /// An axis of plain numbers from 0.
    pub(crate) const fn from_zero(label: &'static str) -> Self {
        Self { label, scale: Scale::FromZero, ticks: Ticks::Numbers }
    }

    /// Numbers, the axis around them.
    pub(crate) const fn around(label: &'static str) -> Self {
        Self { label, scale: Scale::Around, ticks: Ticks::Numbers }
    }

    /// Numbers by their logarithm.
    pub(crate) const fn log(label: &'static str, base: u32) -> Self {
        Self { label, scale: Scale::Log(base), ticks: Ticks::Numbers }
    }

    /// Sizes in bytes by their logarithm; `base` is a power of two.
    pub(crate) const fn bytes(label: &'static str, base: u32) -> Self {
        Self { label, scale: Scale::Log(base), ticks: Ticks::Bytes }
    }
}

/// One curve, or points that belong together.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    /// The name in the legend.
    pub(crate) name: String,
    /// How it is drawn.
    pub(crate) mark: Mark,
    /// (x, y), in the order of x.
    pub(crate) points: Vec<(f64, f64)>,
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A line through all points.
    Line,
    /// A broken line: a bound, a comparison.
    Dashed,
    /// A line with its points: x is a whole number.
    Dots,
    /// Rings that mark places.
    Rings,
    /// Crosses that mark places: values that a paper prints.
    Crosses,
}

impl Series {
    /// `f` at the places `xs`; places where it is not defined are left out.
    pub(crate) fn of(
        name: impl Into<String>,
        mark: Mark,
        xs: impl IntoIterator<Item = f64>,
        f: impl Fn(f64) -> Option<f64>,
    ) -> Self {
        let points = xs.into_iter().filter_map(|x| Some((x, f(x)?))).collect();
        Self { name: name.into(), mark, points }
    }

    /// Whether another curve lies on this one at a fifth of its points or more; on the axis all do.
    pub(crate) fn coincides(&self, other: &Self) -> bool {
        let largest = self.points.iter().map(|point| point.1.abs()).fold(0.0, f64::max);
        let near = |a: &(f64, f64), b: &(f64, f64)| {
            a.0 == b.0 && (a.1 - b.1).abs() <= 0.004 * largest && a.1.abs() > 0.02 * largest
        };
        let on = self.points.iter().filter(|a| other.points.iter().any(|b| near(a, b))).count();
        let is_line = |one: &Self| matches!(one.mark, Mark::Line | Mark::Dashed | Mark::Dots);
        is_line(self) && is_line(other) && on * 5 >= self.points.len()
    }

    /// Points as they are given.
    pub(crate) fn at(name: impl Into<String>, mark: Mark, points: &[(f64, f64)]) -> Self {
        Self { name: name.into(), mark, points: points.to_vec() }
    }
}

/// `steps + 1` values from `from` to `to` with equal ratios between them.
pub(crate) fn geometric(from: f64, to: f64, steps: u32) -> Vec<f64> {
    let ratio = to / from;
    (0..=steps).map(|step| from * ratio.powf(f64::from(step) / f64::from(steps))).collect()
}

/// `steps + 1` values from `from` to `to` with equal differences between them.
pub(crate) fn linear(from: f64, to: f64, steps: u32) -> Vec<f64> {
    (0..=steps).map(|step| from + (to - from) * f64::from(step) / f64::from(steps)).collect()
}

#[cfg(test)]
impl Figure {
    /// The y of a series at an x that it has.
    pub(crate) fn value(&self, series: &str, x: f64) -> f64 {
        let Content::Curves { series: all, .. } = &self.content else { panic!("{}", self.name) };
        let found = all.iter().find(|one| one.name == series);
        let found = found.unwrap_or_else(|| panic!("{}: no series {series}", self.name));
        let near = |a: f64| (a - x).abs() <= 1e-9 * x.abs().max(1.0);
        let point = found.points.iter().find(|&&(a, _)| near(a));
        point.unwrap_or_else(|| panic!("{}: {series} has no {x}", self.name)).1
    }

    /// All points of a series.
    pub(crate) fn points(&self, series: &str) -> &[(f64, f64)] {
        let Content::Curves { series: all, .. } = &self.content else { panic!("{}", self.name) };
        &all.iter().find(|one| one.name == series).expect(series).points
    }
}
