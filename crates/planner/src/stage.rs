//! A stage as the planner keeps it: its meter, its estimator, and the cost that plans see.

use std::num::NonZeroU32;

use piped_model::estimate::{Estimate, Estimator, Meter};
use piped_model::stage::{Stage, StageCost};
use piped_report::shard::{StageReport, StageTime};

use super::told::TOLD_WEIGHT_MIN;

/// A stage's place in the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StageIndex(pub u16);

impl StageIndex {
    /// No stage at all.
    pub const NONE: Self = Self(u16::MAX);

    /// No stage of ours: what a peer says that it took. It is seen, not planned with.
    pub const PEER: Self = Self(u16::MAX - 1);
}

/// A cost that moved by less than this fraction is the same cost.
const REPUBLISH: f64 = 0.05;

/// Sizes at which two costs are compared, and the one that a stage's line is shown at.
pub(super) const PROBE_BYTES: [f64; 5] = [4096.0, 16_384.0, SHOWN_BYTES, 262_144.0, 1_048_576.0];
const SHOWN_BYTES: f64 = 65_536.0;

/// A modern SSD and a loopback connection, to begin with: wrong for most machines, and replaced by
/// what this one measures within a few requests.
pub(super) const DISK_PRIOR: Stage =
    Stage { latency: 60e-6, overhead: 17e-6, per_byte: 0.5e-9, window: NonZeroU32::new(32) };
pub(super) const NET_PRIOR: Stage =
    Stage { latency: 20e-6, overhead: 5e-6, per_byte: 0.3e-9, window: None };
pub(super) const CHECK_PRIOR: Stage =
    Stage { latency: 0.0, overhead: 0.2e-6, per_byte: 0.06e-9, window: None };
pub(super) const COPY_PRIOR: Stage =
    Stage { latency: 0.0, overhead: 1e-6, per_byte: 0.1e-9, window: None };

/// What is not seen to occupy a dial is latency: a dial of latency alone never has two that wait.
/// Longer than most are, for errors count as parts of what is expected.
pub(super) const DIAL_PRIOR: Stage =
    Stage { latency: 1e-3, overhead: 1e-6, per_byte: 1e-12, window: None };

/// What is not seen to depend on the bytes is latency: a sync is asked for once, and waited for.
pub(super) const SYNC_PRIOR: Stage =
    Stage { latency: 1e-3, overhead: 1e-6, per_byte: 1e-12, window: None };

/// How many samples the prior is worth.
pub(super) const PRIOR_WEIGHT: f64 = 2.0;

/// The same of a dial, which can be set to anything.
pub(super) const DIAL_PRIOR_WEIGHT: f64 = 0.02;

/// Of a stage that begins with what was known another time.
const KEPT_NOTE: &str = "kept from earlier, little measured since";

#[derive(Debug)]
pub(super) struct StageState {
    pub(super) name: String,
    pub(super) is_device: bool,
    /// It is a wire: who has it has what is planned for it.
    pub(super) is_lane: bool,
    /// It is a device, or a dial of one.
    pub(super) at_device: bool,
    /// The shard's thread does it, and it is timed by itself.
    pub(super) on_thread: bool,
    pub(super) meter: Meter,
    pub(super) estimator: Estimator,
    pub(super) published: Estimate,
    /// Counts publications.
    pub(super) version: u32,
    pub(super) samples: u64,
    /// Before it went and came back.
    pub(super) samples_before: u64,
    pub(super) looked_at: u64,
    /// Changes of cost that the estimator had noticed by then.
    pub(super) changes: u64,
    /// Sizes and kinds of samples that the published cost rests on.
    pub(super) known: usize,
    /// Size of the last sample.
    pub(super) last_bytes: u64,
    pub(super) reported: bool,
}

impl StageState {
    /// Lets plans see the present estimate, if it differs from what they saw.
    pub(super) fn publish(&mut self) {
        let estimate = self.estimator.estimate();
        let moved = PROBE_BYTES.iter().any(|&bytes| {
            let (old, new) = (self.published.stage_at(bytes), estimate.stage_at(bytes));
            differs(old.alone(bytes), new.alone(bytes))
                || differs(old.occupancy(bytes), new.occupancy(bytes))
        });
        // What was a guess may have been right. Whoever is told of the cost has to know that it is
        // none any more.
        let known = self.estimator.summaries().filter(|known| known.weight >= TOLD_WEIGHT_MIN);
        let known = known.count();
        if moved || known > self.known {
            self.known = known.max(self.known);
            self.published = estimate;
            self.version += 1;
        }
    }

    /// The published cost, and the samples there are by now.
    pub(super) fn report_now(&self) -> StageReport {
        let [samples_alone, samples_backlogged] = self.estimator.samples();
        StageReport { samples_alone, samples_backlogged, ..self.report(&self.published) }
    }

    pub(super) fn report(&self, now: &Estimate) -> StageReport {
        let line = now.stage_at(SHOWN_BYTES);
        let note = if self.estimator.is_kept() {
            String::from(KEPT_NOTE)
        } else if now.samples_alone + now.samples_backlogged == 0 {
            String::from("no samples yet: the prior")
        } else if !now.identifiable {
            String::from("sizes vary too little to tell g from G")
        } else {
            String::from("at 64 KiB")
        };
        StageReport {
            name: self.name.clone(),
            latency_seconds: line.latency,
            overhead_seconds: line.overhead,
            per_byte_seconds: line.per_byte,
            window: line.window.map(NonZeroU32::get),
            samples_alone: now.samples_alone,
            samples_backlogged: now.samples_backlogged,
            confidence: now.confidence,
            reported: self.reported,
            kept: self.estimator.is_kept(),
            note,
            times: PROBE_BYTES.map(|bytes| time_of(now, bytes)).to_vec(),
            relative_error: now.relative_error(SHOWN_BYTES),
            with: Vec::new(),
        }
    }
}

fn time_of(now: &Estimate, bytes: f64) -> StageTime {
    let line = now.stage_at(bytes);
    let [alone_seconds, busy_seconds] = [line.alone(bytes), line.interval(bytes)];
    StageTime { bytes: bytes as u64, alone_seconds, busy_seconds }
}

fn differs(old: f64, new: f64) -> bool {
    (old - new).abs() > REPUBLISH * old.max(new)
}
