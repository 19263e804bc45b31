//! Costs of tiles, as measured, and how high tiles should be.
//!
//! The model wants two lines in the height: what a process does for a tile itself, and what handing
//! its border on takes. The first is measured while the loop runs, on tiles of two heights at
//! least, because its fixed part is what height is about: it has everything in it that a tile costs
//! whatever its height, also what the daemon takes from the computation where they share a CPU.
//! Pauses come from outside, so the line is the median of all pairs (Theil and Sen) and not the
//! least squares. The second is measured once, before the loop, with nothing else on the way.

use piped_model::tile::{Grid, Schedule, Tiling};

use super::TileHeight;
use super::link::SLOTS;

/// `fixed + unit · height`, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    fixed: f64,
    unit: f64,
}

impl Line {
    /// Through two points; neither part is negative.
    fn through((low, at_low): (f64, f64), (high, at_high): (f64, f64)) -> Self {
        let unit = if high > low { ((at_high - at_low) / (high - low)).max(0.0) } else { 0.0 };
        Self { fixed: (at_low - unit * low).max(0.0), unit }
    }
}

/// Tiles that the line is made of.
const RECENT: usize = 32;

/// A tile that was computed: seconds without what was waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileSample {
    pub(super) height: u64,
    /// Seconds in the caller's function.
    pub(super) compute: f64,
    /// Seconds around the computation of a tile.
    pub(super) around: f64,
}

/// How long tiles took.
#[derive(Debug, Default)]
pub(super) struct Computation {
    /// The oldest at `next` when there are enough.
    recent: Vec<TileSample>,
    next: usize,
}

impl Computation {
    pub(super) fn handle_tile(&mut self, sample: TileSample) {
        if self.recent.len() < RECENT {
            self.recent.push(sample);
        } else {
            self.recent[self.next] = sample;
            self.next = (self.next + 1) % RECENT;
        }
    }

    /// `None`: they were all of one height.
    ///
    /// What is around the computation has a line of its own: its fixed part is what heights are
    /// chosen for, and would be lost in the computation's noise, which is larger than all of it.
    pub(super) fn line(&self) -> Option<Line> {
        let [compute, around] = [self.of(|it| it.compute)?, self.of(|it| it.around)?];
        Some(Line { fixed: compute.fixed + around.fixed, unit: compute.unit + around.unit })
    }

    fn of(&self, seconds: fn(&TileSample) -> f64) -> Option<Line> {
        let point = |sample: &TileSample| (sample.height as f64, seconds(sample));
        let mut slopes = Vec::with_capacity(RECENT * RECENT / 2);
        for (place, (height, seconds)) in self.recent.iter().map(point).enumerate() {
            for (other, others) in self.recent[..place].iter().map(point) {
                if height != other {
                    slopes.push((seconds - others) / (height - other));
                }
            }
        }
        let unit = median(&mut slopes)?.max(0.0);
        let fixed = self.recent.iter().map(point).map(|(height, seconds)| seconds - unit * height);
        Some(Line { fixed: median(&mut fixed.collect::<Vec<_>>())?.max(0.0), unit })
    }
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Puts of borders, timed.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkSample {
    /// Number of messages, one to each neighbour without waiting in between.
    pub(super) count: u64,
    pub(super) rows: u64,
    /// Seconds until the messages were submitted.
    pub(super) submit: f64,
    /// Seconds until the neighbours had the messages.
    pub(super) seconds: f64,
}

/// Costs of handing a border on: all borders of a tile together, each line in seconds for a height
/// in rows.
///
/// From [`crate::TilePipeline::link_costs`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkCosts {
    /// One that is alone, fixed part.
    pub alone_seconds: f64,
    /// One that is alone, for each row.
    pub alone_row_seconds: f64,
    /// Between the ends of two that follow each other, fixed part: latency is not in it.
    pub next_seconds: f64,
    /// Between the ends of two that follow each other, for each row.
    pub next_row_seconds: f64,
    /// On the application's thread.
    pub submit_seconds: f64,
}

impl LinkCosts {
    /// The lines through samples of borders of one row and of `many`.
    pub(super) fn of(samples: &[LinkSample], many: u64) -> Self {
        let of = |count, rows, what: fn(&LinkSample) -> f64| {
            let those = samples.iter().filter(|it| (it.count, it.rows) == (count, rows));
            median(&mut those.map(what).collect::<Vec<_>>()).unwrap_or(0.0)
        };
        let one = |rows| (rows as f64, of(1, rows, |it| it.seconds));
        let next = |rows| {
            let (rows_f, alone) = one(rows);
            (rows_f, (of(2, rows, |it| it.seconds) - alone).max(0.0))
        };
        let (alone, next) = (Line::through(one(1), one(many)), Line::through(next(1), next(many)));
        Self {
            alone_seconds: alone.fixed,
            alone_row_seconds: alone.unit,
            next_seconds: next.fixed,
            next_row_seconds: next.unit,
            submit_seconds: of(1, 1, |it| it.submit),
        }
    }

    /// The model of a loop with tiles that cost their process that.
    pub(super) fn tiling(&self, grid: Grid, depth: u64, tile: Line, schedule: Schedule) -> Tiling {
        // A slot is free again a round trip after it was sent to, and until then there are only the
        // others: so a plane takes its part of that at least. Without overlap the sender waits for
        // the latency, too, and pays the fixed part of a tile as well.
        let cycle = |next: f64, alone: f64| next.max(alone / SLOTS as f64);
        let (comm_startup, comm) = match schedule {
            Schedule::Overlapping => (
                cycle(self.next_seconds, self.alone_seconds),
                cycle(self.next_row_seconds, self.alone_row_seconds),
            ),
            Schedule::NonOverlapping => (self.alone_seconds + tile.fixed, self.alone_row_seconds),
        };
        let (compute, start_dma) = (tile.unit, tile.fixed);
        Tiling { depth: depth as f64, grid, compute, comm_startup, comm, start_dma, sync: 0.0 }
    }
}

/// Tiles at the beginning that are low and of different heights, so that there is a line.
const FIRST: [u64; 2] = [1, 4];
/// At first every second tile of so many has half the height; then one in so many, for computations
/// that change.
const ALTERNATING: u64 = 8;
const EXPLORING: u64 = 8;
/// Tiles between two choices.
const CHOICE: u64 = 8;

/// How high the next tile is, for the process that nobody is before.
#[derive(Debug)]
pub(super) struct Chooser {
    depth: u64,
    height_max: u64,
    height: TileHeight,
    grid: Grid,
    schedule: Schedule,
    /// `None`: nobody is after it either.
    links: Option<LinkCosts>,
    tiles: u64,
    chosen: u64,
}

impl Chooser {
    /// `height_max` is at least 1.
    pub(super) fn new(
        (depth, height_max): (u64, u64),
        height: TileHeight,
        (grid, schedule): (Grid, Schedule),
        links: Option<LinkCosts>,
    ) -> Self {
        Self { depth, height_max, height, grid, schedule, links, tiles: 0, chosen: 0 }
    }

    pub(super) fn next(&mut self, computation: &Computation) -> u64 {
        let height = match (self.height, &self.links) {
            (TileHeight::Fixed(height), _) => height,
            // Nobody waits for it, so the fewer the better.
            (TileHeight::Auto, None) => self.height_max,
            (TileHeight::Auto, Some(links)) => {
                if (self.tiles < CHOICE || self.tiles.is_multiple_of(CHOICE))
                    && let Some(line) = computation.line()
                {
                    let tiling = links.tiling(self.grid, self.depth, line, self.schedule);
                    self.chosen = tiling.best_whole_height(self.schedule).height;
                }
                self.explore()
            }
        };
        self.tiles += 1;
        height.clamp(1, self.height_max)
    }

    fn explore(&self) -> u64 {
        if self.chosen == 0 {
            return FIRST[(self.tiles % 2) as usize];
        }
        let half = match self.tiles {
            ..=ALTERNATING => self.tiles % 2 == 1,
            _ => self.tiles.is_multiple_of(EXPLORING),
        };
        if half { self.chosen.div_ceil(2) } else { self.chosen }
    }
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU32;

    use super::*;

    const GRID: Grid = Grid { x: NonZeroU32::new(2).unwrap(), y: NonZeroU32::MIN };
    const LINKS: LinkCosts = LinkCosts {
        alone_seconds: 100e-6,
        alone_row_seconds: 1e-6,
        next_seconds: 10e-6,
        next_row_seconds: 1e-6,
        submit_seconds: 2e-6,
    };

    /// Plays a loop in which a tile takes `fixed + unit · height`, with a pause now and then.
    fn played(chooser: &mut Chooser, tiles: usize, (fixed, unit): (f64, f64)) -> Vec<u64> {
        let mut computation = Computation::default();
        (0..tiles)
            .map(|number| {
                let height = chooser.next(&computation);
                let pause = if number % 7 == 3 { 5e-3 } else { 0.0 };
                let compute = unit * height as f64 + pause;
                computation.handle_tile(TileSample { height, compute, around: fixed });
                height
            })
            .collect()
    }

    fn chooser(height: TileHeight, links: Option<LinkCosts>) -> Chooser {
        Chooser::new((100_000, 50_000), height, (GRID, Schedule::Overlapping), links)
    }

    #[test]
    fn the_height_is_the_models_for_what_was_measured_whatever_pauses_there_were() {
        let heights = played(&mut chooser(TileHeight::Auto, Some(LINKS)), 64, (30e-6, 2e-6));
        let line = Line { fixed: 30e-6, unit: 2e-6 };
        let tiling = LINKS.tiling(GRID, 100_000, line, Schedule::Overlapping);
        let best = tiling.best_whole_height(Schedule::Overlapping).height;
        assert_eq!(heights[..2], FIRST);
        let last = heights[60] as f64;
        assert!((last / best as f64 - 1.0).abs() < 0.02, "{last} is not {best}");
    }

    #[test]
    fn a_height_that_is_given_is_kept_and_one_process_takes_all_at_once() {
        let fixed = played(&mut chooser(TileHeight::Fixed(70), Some(LINKS)), 9, (1e-6, 1e-6));
        assert_eq!(fixed, [70; 9]);
        let alone = played(&mut chooser(TileHeight::Auto, None), 2, (1e-6, 1e-6));
        assert_eq!(alone, [50_000; 2]);
        let none = played(&mut chooser(TileHeight::Fixed(0), None), 1, (1e-6, 1e-6));
        assert_eq!(none, [1], "a tile has a row at least, or the loop would never end");
    }

    #[test]
    fn what_is_around_the_computation_is_not_lost_in_its_noise() {
        let mut computation = Computation::default();
        for number in 0..RECENT as u64 {
            let height = if number % 3 == 0 { 500 } else { 1000 };
            // Computations of a millisecond that differ by a tenth, the lower ones slower than they
            // should be less often.
            let noise = [0.0, 0.9e-4, 0.4e-4, -0.6e-4][number as usize % 4];
            let compute = 1e-6 * height as f64 + noise;
            computation.handle_tile(TileSample { height, compute, around: 20e-6 });
        }
        let line = computation.line().expect("two heights");
        assert!(line.fixed >= 20e-6, "{line:?}");
    }

    #[test]
    fn low_tiles_pay_for_the_round_trip_of_their_slots() {
        let line = Line { fixed: 0.0, unit: 2e-6 };
        let tiling = LINKS.tiling(GRID, 100_000, line, Schedule::Overlapping);
        let low = tiling.plane_seconds(Schedule::Overlapping, 1.0);
        assert!((low - 51e-6).abs() < 1e-9, "half of 100 us and a row: {low}");
        // From 50 rows on the computation covers it.
        assert_eq!(tiling.best_whole_height(Schedule::Overlapping).height, 50, "{tiling:?}");
    }

    #[test]
    fn links_are_lines_through_what_was_measured() {
        let sample = |count, rows: u64| {
            let seconds = 90e-6 + count as f64 * (10e-6 + 1e-6 * rows as f64);
            LinkSample { count, rows, submit: 2e-6, seconds }
        };
        let samples = [sample(1, 1), sample(2, 1), sample(1, 101), sample(2, 101)];
        let costs = LinkCosts::of(&samples, 101);
        let found = [costs.alone_seconds, costs.next_seconds, costs.next_row_seconds];
        for (found, wanted) in found.into_iter().zip([100e-6, 10e-6, 1e-6]) {
            assert!((found - wanted).abs() < 1e-9, "{costs:?}");
        }
        // Where a border has one row at most there is no line, but a time.
        let costs = LinkCosts::of(&samples[..2], 1);
        assert!((costs.alone_seconds - 101e-6).abs() < 1e-9, "{costs:?}");
    }
}
