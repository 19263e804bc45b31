//! What a planner decides: fragment sizes for each part of the path, and how many are under way.
//!
//! A plan is *nested*: a level gives the fragment sizes for a run of stages, and where two levels
//! meet the bytes are cut anew. A fragment enters a stage when all its bytes have left the stage
//! before. One level over all stages is the plain case. Sub-fragments that are reassembled are a
//! level of small sizes before a level of large ones. A plan is made once and shared (`Arc<Plan>`);
//! cloning it copies no list.

use core::fmt;
use core::num::NonZeroU32;
use core::ops::{Deref, Range};
use std::sync::Arc;

use crate::stage::STAGES_MAX;

/// How the sizes were chosen. Displayed as people name it on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The transfer in one fragment.
    Whole,
    /// A constant size in bytes, whatever the path.
    Static(u64),
    /// The best fixed size (Theorem 1).
    Fixed,
    /// One fragment at a time at the first stage, in sizes that fall (Theorem 3).
    Serial,
    /// Sizes that change geometrically (Theorems 3 and 4).
    RampUp,
    /// Up to the bottleneck, down after it (Theorem 5).
    RampUpDown,
    /// Fixed sizes at two levels (B of section 4.3).
    HierarchicalFixed,
    /// Ramps at the compound level (C and C' of section 4.3).
    HierarchicalRamp,
    /// Small sub-fragments, grouped optimally along the bottleneck's release curve.
    ReleaseCurve,
    /// A search that starts from the others.
    Searched,
}

impl fmt::Display for Algorithm {
    /// ```
    /// use piped_model::plan::Algorithm;
    /// assert_eq!(Algorithm::Static(4096).to_string(), "static-4096");
    /// assert_eq!(format!("{:>6}", Algorithm::Whole), " whole");
    /// ```
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Static(bytes) => return f.pad(&format!("static-{bytes}")),
            Self::Whole => "whole",
            Self::Fixed => "fixed",
            Self::Serial => "serial",
            Self::RampUp => "ramp-up",
            Self::RampUpDown => "ramp-up-down",
            Self::HierarchicalFixed => "hierarchical-fixed",
            Self::HierarchicalRamp => "hierarchical-ramp",
            Self::ReleaseCurve => "release-curve",
            Self::Searched => "searched",
        })
    }
}

/// One fragment's place in the transfer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    /// The byte at which it starts.
    pub offset: u64,
    /// How long it is; never 0 but for the one fragment of an empty transfer.
    pub length: u64,
}

/// Fragment sizes of one level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sizes {
    /// All of `fragment_bytes`, the last one what remains of `total_bytes`.
    Uniform {
        /// The size of all but the last, in bytes; > 0.
        fragment_bytes: u64,
        /// The sum, in bytes; 0 is one empty fragment.
        total_bytes: u64,
    },
    /// Each fragment has its own.
    List(SizeList),
}

/// An explicit list of fragment sizes, shared. Kept as running sums, so that any fragment's place
/// is found at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeList {
    ends: Arc<[u64]>,
}

/// Sizes or levels that make no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanFault {
    /// A list without a fragment, a fragment without bytes, or a sum beyond `u64`.
    Sizes,
    /// No level, more than [`STAGES_MAX`], a gap or an overlap between their stages.
    Levels,
    /// Levels that do not carry the same number of bytes.
    Totals,
}

impl fmt::Display for PlanFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sizes => "fragment sizes must be positive and their sum must fit 64 bits",
            Self::Levels => {
                return write!(
                    f,
                    "levels must cover the stages from 0 on, in order, without gap or overlap, at \
                     most {STAGES_MAX}"
                );
            }
            Self::Totals => "every level must carry the same number of bytes",
        })
    }
}

impl std::error::Error for PlanFault {}

impl Sizes {
    /// An explicit list of sizes in bytes.
    ///
    /// # Errors
    /// [`PlanFault::Sizes`] if it is empty, holds a 0, or its sum overflows.
    ///
    /// ```
    /// use piped_model::plan::{Fragment, Sizes};
    /// let sizes = Sizes::list(&[10, 20, 30])?;
    /// assert_eq!(sizes.total_bytes(), 60);
    /// assert_eq!(sizes.get(1), Some(Fragment { offset: 10, length: 20 }));
    /// assert!(Sizes::list(&[10, 0]).is_err());
    /// # Ok::<(), piped_model::plan::PlanFault>(())
    /// ```
    pub fn list(sizes: &[u64]) -> Result<Self, PlanFault> {
        if sizes.is_empty() {
            return Err(PlanFault::Sizes);
        }
        let mut ends = Vec::with_capacity(sizes.len());
        let mut end = 0_u64;
        for &size in sizes {
            end = end.checked_add(size).filter(|_| size > 0).ok_or(PlanFault::Sizes)?;
            ends.push(end);
        }
        Ok(Self::List(SizeList { ends: ends.into() }))
    }

    /// The number of fragments; at least 1.
    #[must_use]
    pub fn count(&self) -> u64 {
        match self {
            Self::Uniform { fragment_bytes, total_bytes } => {
                total_bytes.div_ceil((*fragment_bytes).max(1)).max(1)
            }
            Self::List(list) => list.ends.len() as u64,
        }
    }

    /// The sum of all fragments, in bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        match self {
            Self::Uniform { total_bytes, .. } => *total_bytes,
            Self::List(list) => list.ends.last().copied().unwrap_or(0),
        }
    }

    /// The largest fragment, in bytes.
    #[must_use]
    pub fn largest(&self) -> u64 {
        match self {
            Self::Uniform { fragment_bytes, total_bytes } => *fragment_bytes.min(total_bytes),
            Self::List(_) => self.iter().map(|fragment| fragment.length).max().unwrap_or(0),
        }
    }

    /// A fragment by its index, in constant time.
    ///
    /// ```
    /// use piped_model::plan::{Fragment, Sizes};
    /// let sizes = Sizes::Uniform { fragment_bytes: 4096, total_bytes: 10_000 };
    /// assert_eq!(sizes.count(), 3);
    /// assert_eq!(sizes.get(2), Some(Fragment { offset: 8192, length: 1808 }));
    /// assert_eq!(sizes.get(3), None);
    /// ```
    #[must_use]
    pub fn get(&self, index: u64) -> Option<Fragment> {
        if index >= self.count() {
            return None;
        }
        Some(match self {
            Self::Uniform { fragment_bytes, total_bytes } => {
                let offset = index * (*fragment_bytes).max(1);
                let length = (*fragment_bytes).max(1).min(total_bytes - offset);
                Fragment { offset, length }
            }
            Self::List(list) => {
                let index = index as usize; // below count(), which came from a usize
                let offset = if index == 0 { 0 } else { list.ends[index - 1] };
                Fragment { offset, length: list.ends[index] - offset }
            }
        })
    }

    /// The fragments in order, without allocation.
    pub fn iter(&self) -> impl Iterator<Item = Fragment> + '_ {
        (0..self.count()).map_while(|index| self.get(index))
    }
}

/// The fragment sizes of a run of stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// The stages, by index.
    pub stages: Range<usize>,
    /// The sizes they move.
    pub sizes: Sizes,
}

/// The levels of a plan, from the source to the destination; at least one. Derefs to `[Level]`.
#[derive(Debug, Clone)]
pub struct Levels {
    items: [Level; STAGES_MAX],
    count: usize,
}

impl Levels {
    const UNUSED: Level =
        Level { stages: 0..0, sizes: Sizes::Uniform { fragment_bytes: 1, total_bytes: 0 } };

    fn one(level: Level) -> Self {
        let mut items = [Self::UNUSED; STAGES_MAX];
        items[0] = level;
        Self { items, count: 1 }
    }

    /// Levels in the order of their stages.
    ///
    /// # Errors
    /// [`PlanFault::Levels`] if they do not cover the stages from 0 on without gap or overlap.
    /// [`PlanFault::Totals`] if they carry different numbers of bytes. [`PlanFault::Sizes`] if a
    /// uniform size is 0.
    pub fn new(levels: &[Level]) -> Result<Self, PlanFault> {
        let Some(first) = levels.first().filter(|_| levels.len() <= STAGES_MAX) else {
            return Err(PlanFault::Levels);
        };
        let mut next_stage = 0;
        let mut items = [Self::UNUSED; STAGES_MAX];
        for (level, item) in levels.iter().zip(&mut items) {
            if level.stages.start != next_stage || level.stages.is_empty() {
                return Err(PlanFault::Levels);
            }
            if matches!(level.sizes, Sizes::Uniform { fragment_bytes: 0, .. }) {
                return Err(PlanFault::Sizes);
            }
            if level.sizes.total_bytes() != first.sizes.total_bytes() {
                return Err(PlanFault::Totals);
            }
            next_stage = level.stages.end;
            *item = level.clone();
        }
        if next_stage > STAGES_MAX {
            return Err(PlanFault::Levels);
        }
        Ok(Self { items, count: levels.len() })
    }
}

impl Deref for Levels {
    type Target = [Level];
    fn deref(&self) -> &[Level] {
        &self.items[..self.count]
    }
}

impl PartialEq for Levels {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

/// The plan of a transfer.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The sizes, by run of stages.
    pub levels: Levels,
    /// The most fragments outstanding at the first stage.
    pub depth: NonZeroU32,
    /// What chose the sizes.
    pub algorithm: Algorithm,
    /// The predicted latency in seconds.
    pub predicted_seconds: f64,
    /// Half the width of the prediction's interval, in seconds.
    pub margin_seconds: f64,
}

impl Plan {
    /// A plan with one size in all of `stages` stages. Does not allocate.
    ///
    /// A `fragment_bytes` of 0 is taken as 1, `stages` is held to `1..=STAGES_MAX`.
    ///
    /// ```
    /// use piped_model::plan::{Algorithm, Plan};
    /// let plan = Plan::uniform(3, 65536, 1 << 20, Algorithm::Fixed);
    /// assert_eq!(plan.count(), 16);
    /// assert_eq!(plan.fragment_bytes(), 65536);
    /// ```
    #[must_use]
    pub fn uniform(stages: usize, fragment_bytes: u64, bytes: u64, algorithm: Algorithm) -> Self {
        Self {
            levels: Levels::one(Level {
                stages: 0..stages.clamp(1, STAGES_MAX),
                sizes: Sizes::Uniform { fragment_bytes: fragment_bytes.max(1), total_bytes: bytes },
            }),
            depth: NonZeroU32::MIN,
            algorithm,
            predicted_seconds: 0.0,
            margin_seconds: 0.0,
        }
    }

    /// Bytes of the transfer.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.levels.first().map_or(0, |level| level.sizes.total_bytes())
    }

    /// The largest fragment of any level, in bytes.
    #[must_use]
    pub fn fragment_bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.sizes.largest()).max().unwrap_or(0)
    }

    /// The number of fragments at the first stage.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.levels.first().map_or(0, |level| level.sizes.count())
    }

    /// The sizes a stage moves; `None` beyond the last stage.
    #[must_use]
    pub fn sizes_at(&self, stage: usize) -> Option<&Sizes> {
        self.levels.iter().find(|level| level.stages.contains(&stage)).map(|level| &level.sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(stages: Range<usize>, fragment_bytes: u64, total_bytes: u64) -> Level {
        Level { stages, sizes: Sizes::Uniform { fragment_bytes, total_bytes } }
    }

    #[test]
    fn levels_must_fit_together() {
        assert!(Levels::new(&[level(0..2, 4, 10), level(2..3, 10, 10)]).is_ok());
        assert_eq!(Levels::new(&[]), Err(PlanFault::Levels));
        assert_eq!(Levels::new(&[level(1..2, 4, 10)]), Err(PlanFault::Levels));
        let gap = [level(0..1, 4, 10), level(2..3, 4, 10)];
        assert_eq!(Levels::new(&gap), Err(PlanFault::Levels));
        let unequal = [level(0..1, 4, 10), level(1..2, 4, 11)];
        assert_eq!(Levels::new(&unequal), Err(PlanFault::Totals));
        assert_eq!(Levels::new(&[level(0..1, 0, 10)]), Err(PlanFault::Sizes));
        assert_eq!(Levels::new(&[level(0..STAGES_MAX + 1, 1, 10)]), Err(PlanFault::Levels));
    }

    #[test]
    fn the_fragments_of_any_sizes_tile_the_transfer() {
        let list = Sizes::list(&[5, 1, 7]).unwrap();
        let uniform = Sizes::Uniform { fragment_bytes: 4, total_bytes: 13 };
        let short = Sizes::Uniform { fragment_bytes: 100, total_bytes: 13 };
        for sizes in [list, uniform, short] {
            let mut end = 0;
            for fragment in sizes.iter() {
                assert_eq!(fragment.offset, end);
                assert!(fragment.length > 0 && fragment.length <= sizes.largest());
                end += fragment.length;
            }
            assert_eq!(end, sizes.total_bytes());
            assert_eq!(sizes.iter().count() as u64, sizes.count());
        }
    }

    #[test]
    fn an_empty_transfer_is_one_empty_fragment() {
        let plan = Plan::uniform(2, 0, 0, Algorithm::Whole);
        assert_eq!(plan.count(), 1);
        let sizes = plan.sizes_at(1).unwrap();
        assert_eq!(sizes.get(0), Some(Fragment { offset: 0, length: 0 }));
        assert!(plan.sizes_at(2).is_none());
    }

    #[test]
    fn sizes_beyond_64_bits_are_refused() {
        assert_eq!(Sizes::list(&[u64::MAX, 1]), Err(PlanFault::Sizes));
        assert_eq!(Sizes::list(&[]), Err(PlanFault::Sizes));
    }

    #[test]
    fn a_plan_is_shared_without_copying_its_list() {
        let sizes = Sizes::list(&[1, 2]).unwrap();
        let levels = Levels::new(&[Level { stages: 0..1, sizes }]).unwrap();
        let copy = levels.clone();
        let (Sizes::List(a), Sizes::List(b)) = (&levels[0].sizes, &copy[0].sizes) else {
            panic!("a list stays a list");
        };
        assert!(Arc::ptr_eq(&a.ends, &b.ends));
    }
}
