//! The black box as a procedure that asks for its measurements.
//!
//! Sans-IO: [`Search::poll_wanted`] says what to measure, [`Search::handle`] takes what came out,
//! and that is all. It begins with the ends of the range and a few sizes between (Wang et al.,
//! section 5.3.2), and then asks where its own picture is weakest:
//!
//! 1. Where two straight pieces cross, the crossing itself is measured: a third stage that is the
//!    slowest only between them shows nowhere as much as there.
//! 2. Where a piece has two sizes only, the middle between them is measured: any two sizes lie on a
//!    line.
//! 3. Where a size does not lie on its piece, both gaps beside it are bisected.
//! 4. When everything fits, the ends of each piece are measured again until `g_b` and `sum_{j!=b}
//!    G` are as precise as was asked.
//!
//! Bisecting until the sizes are close, as the paper has it, needs `log2(range / resolution)` sizes
//! for each transition, and with noise takes chance for bottlenecks; crossing lines needs a size or
//! two, and its resolution is that of the lines.

use std::collections::VecDeque;

use super::Sample;
use super::black_box::{self, BlackBox, BlackBoxFault};
use super::clear_box::Timing;
use super::figure::Figure;
use super::line::{Noise, Options};

/// How a packet is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// With nothing else on its way; wanted is its latency.
    Alone,
    /// One of many of this size, sent as fast as possible; wanted is the (mean) time between
    /// departures.
    Backlogged,
}

/// A measurement to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wanted {
    /// Size of the packet, or of each packet, in bytes.
    pub bytes: u64,
    /// How the packets are sent.
    pub mode: Mode,
}

/// What a search looks for, and how much it may ask.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchOptions {
    /// The smallest packet, in bytes, at least 1.
    pub smallest: u64,
    /// The largest packet, in bytes.
    pub largest: u64,
    /// Every size is a multiple of this, in bytes, as a device wants it; 0 is 1.
    pub unit: u64,
    /// Measurements of a size at a time, at least 2: one cannot tell noise from a bend.
    pub repeats: u32,
    /// The most measurements altogether.
    pub samples_max: u32,
    /// Half the width of the intervals of `g_b` and `sum_{j!=b} G`, relative to them, that is good
    /// enough.
    pub precision: f64,
    /// Confidence of these intervals.
    pub confidence: f64,
    /// How lines are fitted.
    pub fit: Options,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self {
            smallest: 512,
            largest: 1 << 20,
            unit: 1,
            repeats: 8,
            samples_max: 4000,
            precision: 0.1,
            confidence: 0.95,
            fit: Options { robust: true, noise: Noise::Proportional },
        }
    }
}

/// Sizes to begin with.
const SIZES_FIRST: u32 = 6;
/// Sizes closer together than this factor are one.
const RESOLUTION: f64 = 1.05;
/// A size this far from a crossing is clear of it, though the crossing is not known exactly.
const CLEAR: f64 = 1.25;
/// A size this near to a crossing is at it.
const NEAR: f64 = 1.02;
/// How sure it has to be that a size does not lie on its piece.
const MISFIT_SURE: f64 = 0.999;
/// A part of the time that no bisection is made for.
const FIT_TOLERANCE: f64 = 2e-3;
/// If `g_b` is below this part of the time at the smallest size of its range, it need not be known
/// better.
const OVERHEAD_SHARE: f64 = 0.2;

/// Finds the bottlenecks of a pipeline over a range of sizes by measurements that it asks for. See
/// the module.
///
/// ```
/// use piped_model::estimate::{Mode, Sample, Search, SearchOptions};
/// // Two stages, us and us per byte: the first is the slowest up to 5000 bytes.
/// let us = |bytes: u64| [20.0 + bytes as f64 * 1e-3, 10.0 + bytes as f64 * 3e-3];
/// let stages = |bytes: u64| us(bytes).map(|us| us * 1e-6);
/// let mut search = Search::new(SearchOptions { largest: 65_536, ..SearchOptions::default() });
/// while let Some(wanted) = search.poll_wanted() {
///     let [a, b] = stages(wanted.bytes);
///     search.handle(match wanted.mode {
///         Mode::Alone => Sample::Alone { bytes: wanted.bytes, seconds: a + b },
///         Mode::Backlogged => Sample::Backlogged { bytes: wanted.bytes, seconds: a.max(b) },
///     });
/// }
/// let found = search.outcome()?;
/// assert!(search.is_precise());
/// assert!((found.bottlenecks[1].from_bytes.unwrap().value - 5000.0).abs() < 1e-3);
/// # Ok::<(), piped_model::estimate::black_box::BlackBoxFault>(())
/// ```
#[derive(Debug, Clone)]
pub struct Search {
    options: SearchOptions,
    alone: Vec<Timing>,
    backlogged: Vec<Timing>,
    plan: VecDeque<Wanted>,
    taken: u32,
    precise: bool,
}

impl Search {
    /// A search that has measured nothing.
    #[must_use]
    pub fn new(options: SearchOptions) -> Self {
        let unit = options.unit.max(1);
        let smallest = options.smallest.max(1).next_multiple_of(unit);
        let mut search = Self {
            options: SearchOptions {
                smallest,
                largest: (options.largest / unit * unit).max(smallest),
                unit,
                repeats: options.repeats.max(2),
                ..options
            },
            alone: Vec::new(),
            backlogged: Vec::new(),
            plan: VecDeque::new(),
            taken: 0,
            precise: false,
        };
        search.begin();
        search
    }

    /// What to measure next; `None` when the search is over. The same again until it has been
    /// measured.
    #[must_use]
    pub fn poll_wanted(&self) -> Option<Wanted> {
        self.plan.front().copied()
    }

    /// A measurement. One that was not asked for is learned from as well; one that no clock gives
    /// is not, but counts as one of [`SearchOptions::samples_max`], so that a search ends whatever
    /// comes.
    pub fn handle(&mut self, sample: Sample) {
        let (bytes, seconds) = sample.measured();
        let mode = match sample {
            Sample::Alone { .. } | Sample::Met { .. } => Mode::Alone,
            Sample::Backlogged { .. } => Mode::Backlogged,
        };
        self.taken = self.taken.saturating_add(1);
        if seconds.is_finite() && seconds > 0.0 {
            let timings = if mode == Mode::Alone { &mut self.alone } else { &mut self.backlogged };
            timings.push(Timing { bytes, seconds });
            if self.plan.front() == Some(&Wanted { bytes, mode }) {
                self.plan.pop_front();
            }
        }
        if self.taken >= self.options.samples_max {
            self.plan.clear();
        } else if self.plan.is_empty() {
            self.advance();
        }
    }

    /// Whether the search ended because everything fits and is as precise as was asked, and not
    /// because it had asked enough.
    #[must_use]
    pub fn is_precise(&self) -> bool {
        self.precise
    }

    /// The black box by what has been measured so far.
    ///
    /// # Errors
    /// If there is too little of it.
    pub fn outcome(&self) -> Result<BlackBox, BlackBoxFault> {
        black_box::fit(&self.alone, &self.backlogged, self.options.fit)
    }

    fn begin(&mut self) {
        let (low, high) = (self.options.smallest as f64, self.options.largest as f64);
        for step in 0..SIZES_FIRST {
            let size = low * (high / low).powf(f64::from(step) / f64::from(SIZES_FIRST - 1));
            self.want(size, Mode::Backlogged);
            if step % 2 == 0 || step == SIZES_FIRST - 1 {
                self.want(size, Mode::Alone);
            }
        }
    }

    /// Ask for a size, as often as it has been measured already and at least once over.
    fn want(&mut self, size: f64, mode: Mode) {
        let unit = self.options.unit;
        let bytes = (size / unit as f64).round() as u64 * unit;
        let bytes = bytes.clamp(self.options.smallest, self.options.largest);
        let wanted = Wanted { bytes, mode };
        if self.plan.contains(&wanted) {
            return;
        }
        let timings = if mode == Mode::Alone { &self.alone } else { &self.backlogged };
        let known = timings.iter().filter(|it| it.bytes == bytes).count() as u32;
        let times = known.max(self.options.repeats);
        self.plan.extend((0..times.min(self.options.samples_max)).map(|_| wanted));
    }

    /// Look at what is known, and ask for what is missing. Nothing to ask for ends the search.
    fn advance(&mut self) {
        let Ok(found) = self.outcome() else { return };
        let sizes = self.sizes();
        let near = |size: f64| sizes.iter().any(|&it| it.max(size) / it.min(size) < NEAR);
        let inside = self.options.smallest as f64..=self.options.largest as f64;
        let crossings = found.bottlenecks.iter().filter_map(|it| it.from_bytes.map(|at| at.value));
        let wanted: Vec<f64> = crossings
            .filter(|at| inside.contains(at) && !near(*at))
            .chain(unproven(&found, &sizes))
            .chain(self.misfits(&found, &sizes))
            .collect();
        for size in wanted {
            self.want(size, Mode::Backlogged);
        }
        if self.plan.is_empty() {
            self.sharpen(&found);
        }
    }

    /// The different sizes measured back to back, in order.
    fn sizes(&self) -> Vec<f64> {
        let mut sizes: Vec<f64> = self.backlogged.iter().map(|it| it.bytes as f64).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        sizes
    }

    /// The middles of the gaps beside sizes that do not lie on the pieces.
    fn misfits(&self, found: &BlackBox, sizes: &[f64]) -> Vec<f64> {
        let mut middles = Vec::new();
        for (place, &size) in sizes.iter().enumerate() {
            let line = found.bottleneck_at(size).line.at(size);
            let here = self.backlogged.iter().filter(|it| it.bytes as f64 == size);
            let times: Vec<f64> = here.map(|it| it.seconds).collect();
            let Some(measured) = self.typical(&times) else { continue };
            // By the size's own scatter: that of a line through points it does not fit is too wide.
            // Every size is looked at, round after round: a high confidence keeps chance out.
            let doubt = measured.half_width(MISFIT_SURE).max(FIT_TOLERANCE * line.abs());
            if (measured.value - line).abs() <= doubt {
                continue;
            }
            let neighbours = [place.checked_sub(1), Some(place + 1)].into_iter().flatten();
            for &other in neighbours.filter_map(|it| sizes.get(it)) {
                let ratio = size.max(other) / size.min(other);
                let middle = (size * other).sqrt();
                if ratio > RESOLUTION && (middle - size.min(other)).abs() >= 1.0 {
                    middles.push(middle);
                }
            }
        }
        middles
    }

    /// What a size typically takes: outliers are left out where the lines leave them out.
    fn typical(&self, times: &[f64]) -> Option<Figure> {
        if !self.options.fit.robust || times.len() < 5 {
            return Figure::mean(times);
        }
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let cut = sorted.len() / 5;
        let middle = Figure::mean(&sorted[cut..sorted.len() - cut])?;
        // What was cut off on both sides would have made the error wider (Tukey and McLaughlin
        // 1963).
        let all = Figure::mean(&winsorised(&sorted, cut))?;
        let share = middle.freedom as f64 + 1.0;
        Some(Figure { error: all.error * sorted.len() as f64 / share, ..middle })
    }

    /// Measure the ends of what is not precise yet once more.
    fn sharpen(&mut self, found: &BlackBox) {
        let [low, high] = found.range;
        let within = |figure: Figure, scale: f64| {
            figure.half_width(self.options.confidence) <= self.options.precision * scale
        };
        let mut wanted = Vec::new();
        let starts: Vec<Option<f64>> =
            found.bottlenecks.iter().map(|it| it.from_bytes.map(|at| at.value)).collect();
        self.precise = true;
        for (place, it) in found.bottlenecks.iter().enumerate() {
            let start = starts[place];
            let end = starts.get(place + 1).copied().flatten();
            let floor = OVERHEAD_SHARE * it.line.at(start.unwrap_or(low));
            let overhead = it.line.intercept.value.abs().max(floor);
            let others = within(it.others_per_byte, it.others_per_byte.value.abs());
            if others && within(it.line.intercept, overhead) {
                continue;
            }
            self.precise = false;
            if !others && found.total.slope.error > it.line.slope.error {
                wanted.extend([(low, Mode::Alone), (high, Mode::Alone)]);
                continue;
            }
            let first = start.map_or(low, |at| self.settled(at * CLEAR, at * CLEAR * CLEAR));
            let last = end.map_or(high, |at| self.settled(at / CLEAR / CLEAR, at / CLEAR));
            wanted.extend([(first, Mode::Backlogged), (last, Mode::Backlogged)]);
        }
        for (size, mode) in wanted {
            self.want(size, mode);
        }
    }

    /// The size in a range that has been measured most, or its middle. Crossings move a little with
    /// every fit; what is measured should not, or it never adds up.
    fn settled(&self, from: f64, to: f64) -> f64 {
        let count = |size: f64| self.backlogged.iter().filter(|it| it.bytes as f64 == size).count();
        let inside = self.sizes().into_iter().filter(|it| (from..=to).contains(it));
        inside.max_by_key(|it| count(*it)).unwrap_or((from * to).sqrt())
    }
}

/// The middles of the pieces that have two sizes only.
fn unproven(found: &BlackBox, sizes: &[f64]) -> Vec<f64> {
    let starts = found.bottlenecks.iter().map(|it| it.from_bytes.map_or(0.0, |at| at.value));
    let starts: Vec<f64> = starts.collect();
    let pieces = starts.iter().enumerate().filter_map(|(place, &start)| {
        let end = starts.get(place + 1).copied().unwrap_or(f64::INFINITY);
        let own: Vec<f64> =
            sizes.iter().copied().filter(|it| (start / NEAR..=end * NEAR).contains(it)).collect();
        let (&first, &last) = (own.first()?, own.last()?);
        (own.len() < 3 && last / first > RESOLUTION).then(|| (first * last).sqrt())
    });
    pieces.collect()
}

/// Sorted values with those before and behind the cut moved to it.
fn winsorised(sorted: &[f64], cut: usize) -> Vec<f64> {
    let (low, high) = (sorted.get(cut), sorted.get(sorted.len().saturating_sub(cut + 1)));
    let (Some(&low), Some(&high)) = (low, high) else { return Vec::new() };
    sorted.iter().map(|it| it.clamp(low, high)).collect()
}
