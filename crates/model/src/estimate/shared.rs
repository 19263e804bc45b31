//! Whether two steps have one server.
//!
//! Where they have, what one does delays the other: the time between two departures of a busy step
//! is its own cost *and* the work of the other that fell into it. Where they have not, that work
//! costs it nothing. So the time between departures is regressed on the work of the other within
//! it, beside a line in the size:
//!
//! ```text
//! gap = g + x·G + slope·work          slope 1: one server; 0: each its own
//! ```
//!
//! The obvious sign, that their busy intervals never overlap, says nothing of steps that one
//! transfer passes one after the other. Steps that always come together (a checksum with every
//! frame) vary too little against each other: then nothing is decided, and it matters to nobody,
//! because what is measured of the one contains the other.
//!
//! Gaps are taken by groups. Departures that are seen together have short gaps and then a long one.
//! What a thread did in the short gaps, it did while the stage went on by itself. One by one they
//! look like one server.

/// Gaps of a group.
const GAPS: u32 = 16;
/// Groups that count: older ones fade.
const MEMORY: f64 = 256.0;
/// Groups before anything is said.
const GROUPS_MIN: f64 = 32.0;
/// Standard errors on both sides of the slope: one time in a hundred.
const SURE: f64 = 2.6;
/// No work delays anybody for longer than it takes: beyond this slope something else comes with the
/// work and costs the time (a device that ends many fragments late, and then there are many
/// checksums).
const TOO_MUCH: f64 = 1.5;
/// Work that varies by less than this part of the gap decides nothing: what else varies with it is
/// as large.
const VARIES: f64 = 0.03;

/// What is known of two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Servers {
    /// Nothing is known yet.
    #[default]
    Unknown,
    /// One server for both.
    Shared,
    /// Each has a server of its own.
    Separate,
}

/// Learns whether one step's work delays another. Constant memory; a gap is a few additions, each
/// sixteenth some tens of nanoseconds.
///
/// ```
/// use piped_model::estimate::shared::{Servers, Shared};
/// let mut shared = Shared::default();
/// for gap in 0..4096_u64 {
///     let work = if gap % 37 < 18 { 20e-6 } else { 0.0 };
///     shared.observe(65_536, 100e-6 + work, work);
/// }
/// assert_eq!(shared.servers(), Servers::Shared);
/// assert!((shared.slope().expect("known").0 - 1.0).abs() < 0.05);
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Shared {
    /// The group that is not full: gaps, and sums of size, work and gap.
    count: u32,
    sums: [f64; 3],
    /// Groups so far, fading.
    weight: f64,
    mean: [f64; 3],
    /// Sums of products around the means: size·size, size·work, size·gap, work·work, work·gap,
    /// gap·gap.
    products: [f64; 6],
    servers: Servers,
}

impl Shared {
    /// A gap of a busy step, in seconds, of a fragment of `bytes`, and what the other step worked
    /// in it. One that no clock gives ends the group it is in.
    pub fn observe(&mut self, bytes: u64, gap: f64, work: f64) {
        if ![gap, work].iter().all(|it| (0.0..1e3).contains(it)) {
            return self.begin_group();
        }
        self.count += 1;
        for (sum, value) in self.sums.iter_mut().zip([bytes as f64, work, gap]) {
            *sum += value;
        }
        if self.count == GAPS {
            let group = self.sums.map(|sum| sum / f64::from(GAPS));
            self.begin_group();
            self.add(group);
            self.decide();
        }
    }

    fn begin_group(&mut self) {
        (self.count, self.sums) = (0, [0.0; 3]);
    }

    fn add(&mut self, group: [f64; 3]) {
        const KEPT: f64 = 1.0 - 1.0 / MEMORY;
        self.weight = self.weight * KEPT + 1.0;
        let part = 1.0 / self.weight;
        let mut away = [0.0; 3];
        for ((away, mean), value) in away.iter_mut().zip(&mut self.mean).zip(group) {
            *away = value - *mean;
            *mean += part * *away;
        }
        let [size, work, gap] = away;
        let new = [size * size, size * work, size * gap, work * work, work * gap, gap * gap];
        for (product, new) in self.products.iter_mut().zip(new) {
            *product = *product * KEPT + (1.0 - part) * new;
        }
    }

    fn decide(&mut self) {
        let Some((slope, error)) = self.slope() else { return };
        let [low, high] = [slope - SURE * error, slope + SURE * error];
        if low > TOO_MUCH {
            self.servers = Servers::Unknown;
        } else if low > 0.5 {
            self.servers = Servers::Shared;
        } else if high < 0.5 {
            self.servers = Servers::Separate;
        }
        // What is not certain stays as it was.
    }

    /// How much of the other's work is in the gaps, 0 to 1, and its standard error; none before
    /// there is enough that varies.
    #[must_use]
    pub fn slope(&self) -> Option<(f64, f64)> {
        if self.weight < GROUPS_MIN {
            return None;
        }
        let [xx, xw, xy, ww, wy, yy] = self.products;
        // The line in the size, where sizes vary.
        let spread = self.mean[0] * 1e-6;
        let by_size = |a: f64, b: f64| if xx > spread * spread { a * b / xx } else { 0.0 };
        let [ww, wy, yy] = [ww - by_size(xw, xw), wy - by_size(xw, xy), yy - by_size(xy, xy)];
        let least = VARIES * self.mean[2];
        if ww <= least * least * self.weight {
            return None;
        }
        let slope = wy / ww;
        let rest = (yy - slope * wy).max(0.0) / (self.weight - 3.0);
        // Arithmetic alone leaves as much.
        let floor = 1e-6;
        Some((slope, (rest / ww).sqrt().max(floor)))
    }

    /// What is known by now. It stays until the opposite is certain.
    #[must_use]
    pub const fn servers(&self) -> Servers {
        self.servers
    }

    /// Groups it rests on, old ones counted less.
    #[must_use]
    pub const fn groups(&self) -> f64 {
        self.weight
    }
}
