//! Measured costs of stages in a form that outlives the daemon: plain numbers with bounds.
//!
//! A shard hands these numbers out and takes them at its start; its driver keeps them in between.
//! The numbers that come back may have been written by anybody. [`KeptStage::check`] refuses what
//! no stage can cost; the rest is a guess of limited weight.

use std::num::NonZeroU32;

use piped_model::estimate::{CostCurve, Estimate, Estimator, KnownSize, REGIMES};
use piped_model::spread::Spread;
use piped_model::stage::{Stage, StageCost as _};
use piped_report::shard::StageResource;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// The longest latency in seconds, as in a peer's report.
const LATENCY_MAX: f64 = 10.0;
/// The longest overhead, in seconds.
const OVERHEAD_MAX: f64 = 1.0;
/// The slowest time per byte, in seconds.
const PER_BYTE_MAX: f64 = 1e-3;
/// The largest fragment in bytes: copies within memory are not cut as other transfers are.
const BYTES_MAX: f64 = (1_u64 << 31) as f64;
/// More samples than any estimator counts.
const SAMPLES_MAX: f64 = 1e6;

/// Costs of a stage, piece by piece, and how well they were known.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct KeptStage {
    /// Lines of the cost curve in the order of their sizes; a straight cost has one line, at 0.
    pub lines: Vec<KeptLine>,
    /// Sizes at which the stage was measured, in rising order.
    pub sizes: Vec<KeptSize>,
    /// How much single fragments differed, if they did.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub spread: Option<KeptSpread>,
    /// Whether sizes varied enough to tell `g` from `G`.
    pub identifiable: bool,
    /// Confidence when the costs were kept, 0 to 1. Only people read it; a start believes kept
    /// costs less.
    pub confidence: f64,
}

// What passed `check` has no number that is none.
impl Eq for KeptStage {}

/// The distribution of a fragment's time, as a multiple of its mean.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct KeptSpread {
    /// The mean time that multiples are of, in seconds.
    pub seconds: f64,
    /// Number of fragments that this was known of, at most a million.
    pub samples: f64,
    /// The part of the fragments in each bin of multiples and those before it
    /// ([`Spread::of_parts`]).
    pub parts: Vec<f64>,
}

/// `L`, `g` and `G` near one fragment size.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct KeptLine {
    /// The fragment size in bytes.
    pub bytes: f64,
    /// Latency that overlaps with other fragments, in seconds.
    #[cfg_attr(feature = "serde", serde(rename = "L"))]
    pub latency: f64,
    /// Overhead for each fragment, in seconds.
    #[cfg_attr(feature = "serde", serde(rename = "g"))]
    pub overhead: f64,
    /// Time for each byte, in seconds.
    #[cfg_attr(feature = "serde", serde(rename = "G"))]
    pub per_byte: f64,
}

/// How well the costs at one fragment size were known, as a number of samples.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct KeptSize {
    /// The fragment size in bytes.
    pub bytes: f64,
    /// Samples of the empty stage, at most a million.
    pub alone: f64,
    /// Samples of the busy stage, at most a million.
    pub backlogged: f64,
}

/// A stage with its kept costs and its number of samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownStage {
    /// The resource that the stage stands for.
    pub what: StageResource,
    /// The costs and how well they are known.
    pub cost: KeptStage,
    /// Samples since the daemon's start; 0: all of the costs were kept before, and are no news.
    pub samples: u64,
}

/// A figure that no stage can have.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KeptFault {
    /// A figure is out of its bounds.
    #[error("{name} is {value}, which cannot be (0 to {most})")]
    Bounds {
        /// Name of the figure, as in the file.
        name: &'static str,
        /// The value that was found.
        value: f64,
        /// The largest value there can be.
        most: f64,
    },
    /// There are too many lines or sizes, or none.
    #[error("it has {0} lines or sizes: 1 to {REGIMES} can be")]
    Count(usize),
    /// Lines or sizes do not follow in rising order.
    #[error("its sizes are not in order")]
    Order,
    /// Parts that make no distribution.
    #[error("its spread is none: parts rise from 0 to 1, one for each bin")]
    Spread,
}

impl KeptStage {
    /// The present costs if anything was measured. `published`: the cost that plans see.
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
        let spread = published.spread.map(|spread| {
            let (seconds, samples, parts) = spread.parts();
            KeptSpread { seconds, samples: samples.min(SAMPLES_MAX), parts: parts.collect() }
        });
        let kept = Self {
            lines: lines.collect(),
            sizes: sizes.collect(),
            spread,
            identifiable: now.identifiable,
            confidence: now.confidence,
        };
        kept.check().is_ok().then_some(kept)
    }

    /// Checks that all figures are within bounds.
    ///
    /// # Errors
    /// The first figure that is wrong.
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
        if let Some(spread) = &self.spread {
            within("spread", spread.seconds, LATENCY_MAX)?;
            within("samples", spread.samples, SAMPLES_MAX)?;
            spread.known().ok_or(KeptFault::Spread)?;
        }
        let lines = self.lines.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
        let sizes = self.sizes.windows(2).all(|pair| pair[0].bytes < pair[1].bytes);
        if lines && sizes { Ok(()) } else { Err(KeptFault::Order) }
    }

    /// An estimator that starts with the kept costs, and the cost that plans start with: exactly
    /// the kept one.
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
        let spread = self.spread.as_ref().and_then(KeptSpread::known);
        let estimator = match &spread {
            Some(spread) => estimator.with_spread(spread),
            None => estimator,
        };
        let mut published = estimator.estimate();
        published.spread = spread;
        if estimator.is_kept() {
            let bytes = published.bytes;
            published.stage = curve.stage_at(bytes as f64);
            published.curve = curve;
        }
        (estimator, published)
    }
}

impl KeptSpread {
    fn known(&self) -> Option<Spread> {
        Spread::of_parts(self.seconds, self.samples, &self.parts)
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
