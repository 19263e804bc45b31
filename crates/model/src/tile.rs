//! Nested loops cut into tiles that processors pass on to each other: how high a tile should be.
//!
//! An iteration space is cut along its two short dimensions over a grid of `p_x × p_y` processors.
//! Each has a column of height `D` and works through it in tiles of height `z`. A tile needs the
//! ones before it in all three dimensions, so the grid fills like a pipeline, plane by plane
//! (Sotiropoulos, Tsoukalas and Koziris, equations 1-3; docs/theory.md §16):
//!
//! ```text
//! non-overlapping   D/z +  (p_x-1) +  (p_y-1)  planes of  t_comp + t_comm
//! overlapping       D/z + 2(p_x-1) + 2(p_y-1)  planes of
//!                   t_start_dma + max(t_comp, t_comm) + t_sync
//! ```
//!
//! Overlapping, what is computed in one plane is sent in the next and used in the one after it:
//! twice the planes to fill, but a plane no longer pays for the communication. With `t_comp = a·z`
//! (`a = A·c`, the points of a unit of height times the computation of one) and `t_comm = u + b·z`
//! both are
//!
//! ```text
//! T(z) = (D/z + f)·(s + r·z)         z* = sqrt(D·s / (f·r))
//! ```
//!
//! which is Theorem 1 again: `D/z` fragments, a fixed cost `s` and a variable one `r`, the `f`
//! planes of filling in the place of the other stages. Overlapping, `f = 2·(p_x-1 + p_y-1)`,
//! `s = t_start_dma + t_sync` and `r = a`, as long as `t_comp >= t_comm`; else the link is the
//! bottleneck, and its `u` and `b` count. `T` is the maximum of both curves, each convex, so
//! [`Tiling::best_height`] is one of their minima or where they cross.
//!
//! Units: seconds; heights in whatever unit `D` is in (rows, planes of the iteration space).

use core::fmt;
use core::num::NonZeroU32;

/// Whether communication and computation of a processor overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// Receive, compute, send: one after the other.
    NonOverlapping,
    /// Receive the next tile's data and send the last one's while this one is computed, with double
    /// buffers.
    Overlapping,
}

impl Schedule {
    /// Both of the schedules.
    pub const ALL: [Self; 2] = [Self::NonOverlapping, Self::Overlapping];

    /// A word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NonOverlapping => "non-overlapping",
            Self::Overlapping => "overlapping",
        }
    }

    /// Planes between the computation of a tile and that of the neighbour that needs it.
    const fn distance(self) -> u64 {
        match self {
            Self::NonOverlapping => 1,
            Self::Overlapping => 2,
        }
    }
}

/// `t_start_dma` of the paper's cluster, in seconds: 49.2 us (section 5.2).
pub const PAPER_START_DMA: f64 = 49.2e-6;

/// `t_sync` of the paper's cluster, in seconds: four interrupts of 18.8 us (section 5.2).
pub const PAPER_SYNC: f64 = 4.0 * 18.8e-6;

/// Processors side by side: those that a column is not cut over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// `p_x`, processors along one dimension.
    pub x: NonZeroU32,
    /// `p_y`, processors along the other.
    pub y: NonZeroU32,
}

impl Grid {
    /// Planes that fill the pipeline: `p_x-1 + p_y-1`, twice that if communication overlaps.
    ///
    /// ```
    /// use core::num::NonZeroU32;
    /// use piped_model::tile::{Grid, Schedule};
    /// let three = NonZeroU32::new(3).unwrap();
    /// let grid = Grid { x: three, y: three };
    /// assert_eq!(grid.filling(Schedule::NonOverlapping), 4);
    /// assert_eq!(grid.filling(Schedule::Overlapping), 8);
    /// ```
    #[must_use]
    pub fn filling(&self, schedule: Schedule) -> u64 {
        let hops = u64::from(self.x.get() - 1) + u64::from(self.y.get() - 1);
        hops * schedule.distance()
    }

    /// Planes for columns of so many tiles: the formula.
    #[must_use]
    pub fn planes(&self, schedule: Schedule, tiles: u64) -> u64 {
        if tiles == 0 { 0 } else { tiles.saturating_add(self.filling(schedule)) }
    }
}

/// A tiled loop on a grid of processors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tiling {
    /// `D`: the height of a column, positive.
    pub depth: f64,
    /// The grid of processors.
    pub grid: Grid,
    /// `A·c`: the computation of a unit of height on one processor, in seconds.
    pub compute: f64,
    /// The fixed part of `t_comm`, in seconds.
    pub comm_startup: f64,
    /// The part of `t_comm` for each unit of height, in seconds.
    pub comm: f64,
    /// `t_start_dma`: what starting a transfer costs the processor, overlapping, in seconds.
    pub start_dma: f64,
    /// `t_sync`: what agreeing with the neighbours costs in each plane, overlapping, in seconds.
    pub sync: f64,
}

/// A parameter of a [`Tiling`] that makes no sense.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TileFault {
    /// The name of the parameter.
    pub parameter: &'static str,
    /// The value it was given.
    pub value: f64,
}

impl fmt::Display for TileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is {}: give a finite number that is not negative (the height of a column above 0)",
            self.parameter, self.value
        )
    }
}

impl std::error::Error for TileFault {}

/// A height, and what comes of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Height<N> {
    /// `z`, the height of a tile.
    pub height: N,
    /// `D/z`, the tiles of a column.
    pub tiles: N,
    /// The planes of the whole loop.
    pub planes: N,
    /// `T(z)`, the time, in seconds.
    pub seconds: f64,
}

impl Tiling {
    /// The tiling itself, if its parameters make sense.
    ///
    /// # Errors
    /// If one is negative or not finite, or `D` is 0.
    pub fn checked(self) -> Result<Self, TileFault> {
        let parameters = [
            ("the height of a column (D)", self.depth),
            ("the computation of a unit (A·c)", self.compute),
            ("the start-up of a communication", self.comm_startup),
            ("the communication of a unit", self.comm),
            ("t_start_dma", self.start_dma),
            ("t_sync", self.sync),
        ];
        for (index, (parameter, value)) in parameters.into_iter().enumerate() {
            if !value.is_finite() || value < 0.0 || (index == 0 && value == 0.0) {
                return Err(TileFault { parameter, value });
            }
        }
        Ok(self)
    }

    /// `t_comp` of tiles of this height, in seconds.
    #[must_use]
    pub fn compute_seconds(&self, height: f64) -> f64 {
        self.compute * height
    }

    /// `t_comm` of tiles of this height, in seconds.
    #[must_use]
    pub fn comm_seconds(&self, height: f64) -> f64 {
        self.comm_startup + self.comm * height
    }

    /// How long a plane takes with tiles of this height, in seconds (equations 1 and 2).
    #[must_use]
    pub fn plane_seconds(&self, schedule: Schedule, height: f64) -> f64 {
        let (compute, comm) = (self.compute_seconds(height), self.comm_seconds(height));
        match schedule {
            Schedule::NonOverlapping => compute + comm,
            Schedule::Overlapping => self.start_dma + compute.max(comm) + self.sync,
        }
    }

    /// The paper's time with tiles of this height, over the reals: `D/z` need not be whole.
    ///
    /// ```
    /// use core::num::NonZeroU32;
    /// use piped_model::tile::{Grid, PAPER_START_DMA, PAPER_SYNC, Schedule, Tiling};
    /// let three = NonZeroU32::new(3).unwrap();
    /// // 24 x 24 x 256K on 3 x 3 processors: 64 points a unit of height, here of 45 ns.
    /// let tiling = Tiling {
    ///     depth: 262_144.0,
    ///     grid: Grid { x: three, y: three },
    ///     compute: 64.0 * 45e-9,
    ///     comm_startup: 0.0,
    ///     comm: 0.4e-6,
    ///     start_dma: PAPER_START_DMA,
    ///     sync: PAPER_SYNC,
    /// };
    /// let best = tiling.best_height(Schedule::Overlapping);
    /// let closed = (262_144.0 * 124.4e-6 / (8.0 * 64.0 * 45e-9_f64)).sqrt();
    /// assert!((best.height - closed).abs() < 1e-6);
    /// assert!(best.seconds < tiling.at_height(Schedule::Overlapping, 2.0 * closed).seconds);
    /// assert!(best.seconds < tiling.best_height(Schedule::NonOverlapping).seconds);
    /// ```
    #[must_use]
    pub fn at_height(&self, schedule: Schedule, height: f64) -> Height<f64> {
        let tiles = self.depth / height;
        let planes = tiles + self.grid.filling(schedule) as f64;
        Height { height, tiles, planes, seconds: planes * self.plane_seconds(schedule, height) }
    }

    /// The height that takes least time, over the reals, at most `D`: `z* = sqrt(D·s/(f·r))` of the
    /// curve that is the bottleneck there, or where computation and communication cross.
    ///
    /// With one processor there is nothing to fill, and one tile is best. With no fixed cost ever
    /// lower tiles are ever better, and the height comes out as 0, the time as what it tends to.
    #[must_use]
    pub fn best_height(&self, schedule: Schedule) -> Height<f64> {
        let fixed = self.start_dma + self.sync;
        let curves = match schedule {
            Schedule::NonOverlapping => {
                let both = (self.comm_startup, self.compute + self.comm);
                [both, both]
            }
            Schedule::Overlapping => {
                [(fixed, self.compute), (fixed + self.comm_startup, self.comm)]
            }
        };
        let crossing = self.comm_startup / (self.compute - self.comm);
        let own = curves.map(|(fixed, unit)| self.minimum(schedule, fixed, unit));
        let heights = own.into_iter().chain([crossing]);
        let heights = heights.filter(|height| *height > 0.0).map(|height| height.min(self.depth));
        let free = self.plane_seconds(schedule, 0.0) <= 0.0;
        heights
            .map(|height| self.at_height(schedule, height))
            .chain(free.then(|| self.without_fixed_cost(schedule)))
            .min_by(|a, b| a.seconds.total_cmp(&b.seconds))
            .unwrap_or_else(|| self.at_height(schedule, self.depth))
    }

    /// `sqrt(D·s/(f·r))`: infinite if nothing grows with the height.
    fn minimum(&self, schedule: Schedule, fixed: f64, unit: f64) -> f64 {
        let growing = self.grid.filling(schedule) as f64 * unit;
        if growing > 0.0 { (self.depth * fixed / growing).sqrt() } else { f64::INFINITY }
    }

    /// The limit of ever lower tiles.
    fn without_fixed_cost(&self, schedule: Schedule) -> Height<f64> {
        let unit = self.plane_seconds(schedule, 1.0);
        let (tiles, planes) = (f64::INFINITY, f64::INFINITY);
        Height { height: 0.0, tiles, planes, seconds: self.depth * unit }
    }

    /// The time with tiles of a whole height: the last tile may be lower, but its plane takes as
    /// long as the others. `D` counts as the whole units it has; heights from 1 to `D`.
    #[must_use]
    pub fn at_whole_height(&self, schedule: Schedule, height: u64) -> Height<u64> {
        let depth = self.whole_depth();
        let height = height.clamp(1, depth);
        let tiles = depth.div_ceil(height);
        let planes = self.grid.planes(schedule, tiles);
        let seconds = planes as f64 * self.plane_seconds(schedule, height as f64);
        Height { height, tiles, planes, seconds }
    }

    /// The whole height that takes least time. Of the heights with the same number of tiles, the
    /// lowest is best. `T` is convex in that number but for the rounding, so those near the real
    /// optimum are tried.
    #[must_use]
    pub fn best_whole_height(&self, schedule: Schedule) -> Height<u64> {
        const NEAR: u64 = 64;
        let depth = self.whole_depth();
        let real = self.best_height(schedule).tiles.min(depth as f64) as u64;
        let counts = real.saturating_sub(NEAR).max(1)..=real.saturating_add(NEAR).min(depth);
        let of_counts = counts.map(|tiles| depth.div_ceil(tiles));
        // Where D/z changes by more than one from height to height, counts skip heights.
        let height = depth.div_ceil(real.max(1));
        let near = height.saturating_sub(NEAR).max(1)..=height.saturating_add(NEAR).min(depth);
        of_counts
            .chain(near)
            .map(|height| self.at_whole_height(schedule, height))
            .min_by(|a, b| a.seconds.total_cmp(&b.seconds))
            .unwrap_or_else(|| self.at_whole_height(schedule, depth))
    }

    fn whole_depth(&self) -> u64 {
        (self.depth as u64).max(1)
    }
}
