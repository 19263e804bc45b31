//! What was measured of stages, in a form that outlives the daemon: plain numbers, and their
//! bounds.
//!
//! A shard hands them out and takes them to begin with; its driver keeps them meanwhile. What comes
//! back may have been written by anybody: [`KeptStage::check`] refuses what no stage can cost, and
//! what is left is a guess of limited weight.

use std::num::NonZeroU32;

use piped_model::estimate::{CostCurve, Estimate, Estimator, KnownSize, REGIMES};
use piped_model::stage::{Stage, StageCost as _};
use piped_report::shard::StageResource;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// The longest latency, in seconds: as of a peer's report.
const LATENCY_MAX: f64 = 10.0;
/// The longest overhead, in seconds.
const OVERHEAD_MAX: f64 = 1.0;
/// The slowest byte, in seconds.
const PER_BYTE_MAX: f64 = 1e-3;
/// The largest fragment: copies within memory are not cut as others are.
const BYTES_MAX: f64 = (1_u64 << 31) as f64;
/// More samples than anybody remembers.
const SAMPLES_MAX: f64 = 1e6;

/// What a stage costs, piece by piece, and how well that was known.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct KeptStage {
    /// In the order of their sizes; a cost without bends has one, at 0.
    pub lines: Vec<KeptLine>,
    /// The sizes it was measured at.
    pub sizes: Vec<KeptSize>,
    /// Whether sizes varied enough to tell `g` from `G`.
    pub identifiable: bool,
    /// 0 to 1, when it was kept. For people: to begin with it is believed less.
    pub confidence: f64,
}

// What passed `check` has no number that is none.
impl Eq for KeptStage {}

/// `L`, `g` and `G` near a size.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct KeptLine {
    /// In bytes.
    pub bytes: f64,
    /// In seconds.
    #[cfg_attr(feature = "serde", serde(rename = "L"))]
    pub latency: f64,
    /// In seconds.
    #[cfg_attr(feature = "serde", serde(rename = "g"))]
    pub overhead: f64,
    /// In seconds per byte.
    #[cfg_attr(feature = "serde", serde(rename = "G"))]
    pub per_byte: f64,
}

/// How well a size was known, in samples' worth.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct KeptSize {
    /// In bytes.
    pub bytes: f64,
    /// Of an empty stage.
    pub alone: f64,
    /// Of a busy one.
    pub backlogged: f64,
}

/// A stage, what is kept of it, and the samples it had since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownStage {
    /// What it stands for.
    pub what: StageResource,
    /// What is known.
    pub cost: KeptStage,
    /// None: all of it was kept before, and is no news.
    pub samples: u64,
}

/// A figure that no stage has.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KeptFault {
    /// Out of bounds.
    #[error("{name} is {value}, which cannot be (0 to {most})")]
    Bounds {
        /// Which.
        name: &'static str,
        /// What it says.
        value: f64,
        /// The most there can be.
        most: f64,
    },
    /// Too many, or none.
    #[error("it has {0} lines or sizes: 1 to {REGIMES} can be")]
    Count(usize),
    /// Not one after the other.
    #[error("its sizes are not in order")]
    Order,
}

impl KeptStage {
    /// What is known now, if anything was measured. `published`: the cost that plans see.
    pub(crate) fn of(estimator: &Estimator, published: &Estimate) -> Option<Self> {
        let lines = published.curve.lines().map(|(bytes, line)| KeptLine {
            bytes,
            latency: line.latency,
            overhead: line.overhead,
            per_byte: line.per_byte,
        });
        let sizes = estimator.known_sizes().map(|size| KeptSize {
            bytes: size.bytes,
            alone: size.alone.min(SAMPLES_MAX),
            backlogged: size.backlogged.min(SAMPLES_MAX),
        });
        let now = estimator.estimate();
        let (lines, sizes) = (lines.collect(), sizes.collect());
        let kept =
            Self { lines, sizes, identifiable: now.identifiable, confidence: now.confidence };
        kept.check().is_ok().then_some(kept)
    }

    /// Refuses what no stage can cost.
    ///
    /// # Errors
    /// Which figure is wrong.
    pub fn check(&self) -> Result<(), KeptFault> {
        for count in [self.lines.len(), self.sizes.len()] {
            if count == 0 || count > REGIMES {
                return Err(KeptFault::Count(count));
            }
        }
        within("confidence", self.confidence, 1.0)?;
        for line in &self.lines {
            within("bytes", line.bytes, BYTES_MAX)?;
            within("L", line.latency, LATENCY_MAX)?;
            within("g", line.overhead, OVERHEAD_MAX)?;
            within("G", line.per_byte, PER_BYTE_MAX)?;
        }
        for size in &self.sizes {
            within("bytes", size.bytes, BYTES_MAX)?;
            within("alone", size.alone, SAMPLES_MAX)?;
            within("backlogged", size.backlogged, SAMPLES_MAX)?;
        }
        let lines = self.lines.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
        let sizes = self.sizes.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
        if lines && sizes { Ok(()) } else { Err(KeptFault::Order) }
    }

    /// An estimator that begins with it, and the cost that plans begin with: exactly the one that
    /// was kept.
    pub(crate) fn begin(
        &self,
        estimator: Estimator,
        window: Option<NonZeroU32>,
    ) -> (Estimator, Estimate) {
        let stage = |line: &KeptLine| Stage {
            latency: line.latency,
            overhead: line.overhead,
            per_byte: line.per_byte,
            window,
        };
        let lines: Vec<(f64, Stage)> =
            self.lines.iter().map(|line| (line.bytes, stage(line))).collect();
        let sizes = self.sizes.iter().map(|size| KnownSize {
            bytes: size.bytes,
            alone: size.alone,
            backlogged: size.backlogged,
        });
        let sizes: Vec<KnownSize> = sizes.collect();
        let curve = CostCurve::of_lines(&lines, window);
        let estimator = estimator.with_kept(&curve, &sizes, self.identifiable);
        let mut published = estimator.estimate();
        if estimator.is_kept() {
            let bytes = published.bytes;
            published.stage = curve.stage_at(bytes as f64);
            published.curve = curve;
        }
        (estimator, published)
    }
}

fn within(name: &'static str, value: f64, most: f64) -> Result<(), KeptFault> {
    // Not a number is not within.
    if (0.0..=most).contains(&value) {
        Ok(())
    } else {
        Err(KeptFault::Bounds { name, value, most })
    }
}
