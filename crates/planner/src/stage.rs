//! A stage as the planner keeps it: its meter, its estimator, and the cost that plans see.

use std::num::NonZeroU32;
use std::sync::Arc;

use piped_core::link::{LaneClass, ReportedStage};
use piped_model::estimate::{Estimate, Estimator, Meter};
use piped_model::spread::Spread;
use piped_model::stage::{Stage, StageCost};
use piped_report::dial::DialPlace;
use piped_report::shard::{Held, StageLine, StageReport, StageResource, StageTime};

use super::common::Common;
use super::told::TOLD_WEIGHT_MIN;

/// A stage's index in the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageIndex(pub u16);

impl StageIndex {
    /// The index of no stage.
    pub const NONE: Self = Self(u16::MAX);

    /// Stands for a peer's own account of its time, which is shown and not planned with.
    pub const PEER: Self = Self(u16::MAX - 1);
}

/// What a fragment waited for in a delay injection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// No other: its time is that of one alone.
    Alone,
    /// The one before, which kept the injection busy: the gap between both is its occupancy.
    Waited,
    /// A slower one before, where none overtakes: its time is that of the other.
    HeldBack,
}

/// A cost that moved by less than this fraction counts as unchanged.
const REPUBLISH: f64 = 0.05;

/// Fragment sizes at which two costs are compared; `SHOWN_BYTES` is the one that reports show.
pub(super) const PROBE_BYTES: [f64; 5] = [4096.0, 16_384.0, SHOWN_BYTES, 262_144.0, 1_048_576.0];
const SHOWN_BYTES: f64 = 65_536.0;

/// Costs to begin with, of a modern SSD and a loopback connection. They are wrong for most
/// machines, and replaced by measurements within a few requests.
pub(super) const DISK_PRIOR: Stage =
    Stage { latency: 60e-6, overhead: 17e-6, per_byte: 0.5e-9, window: NonZeroU32::new(32) };
pub(super) const NET_PRIOR: Stage =
    Stage { latency: 20e-6, overhead: 5e-6, per_byte: 0.3e-9, window: None };
pub(super) const CHECK_PRIOR: Stage =
    Stage { latency: 0.0, overhead: 0.2e-6, per_byte: 0.06e-9, window: None };
pub(super) const COPY_PRIOR: Stage =
    Stage { latency: 0.0, overhead: 1e-6, per_byte: 0.1e-9, window: None };

/// First costs of a read from the page cache: one operation, and a copy by the kernel.
pub(super) const CACHE_PRIOR: Stage =
    Stage { latency: 2e-6, overhead: 2e-6, per_byte: 0.1e-9, window: None };

/// First costs of a delay injection. Time that is not seen to occupy an injection is latency,
/// because one of latency alone never has two fragments that wait. The prior is longer than most
/// injections, since errors count relative to expectations. A long transfer has hundreds of
/// fragments, so even a thousandth of a long latency would be much if it occupied the injection.
pub(super) const DIAL_PRIOR: Stage =
    Stage { latency: 1e-3, overhead: 1e-8, per_byte: 1e-14, window: None };

/// First costs of the thread's time at a delay injection, which occupies the thread: it has no
/// latency that a sample could disprove.
pub(super) const HOST_PRIOR: Stage =
    Stage { latency: 0.0, overhead: 1e-3, per_byte: 1e-12, window: None };

/// First costs of a sync. Time that is not seen to depend on bytes is latency: a request asks for
/// one sync and waits for it.
pub(super) const SYNC_PRIOR: Stage =
    Stage { latency: 1e-3, overhead: 1e-6, per_byte: 1e-12, window: None };

/// How many samples the prior counts as.
pub(super) const PRIOR_WEIGHT: f64 = 2.0;

/// How many samples the prior of a delay injection counts as: few, since an injection can have any
/// cost.
pub(super) const DIAL_PRIOR_WEIGHT: f64 = 0.02;

/// Note in reports for a stage that began with costs of an earlier run.
const KEPT_NOTE: &str = "kept from earlier, little measured since";

#[derive(Debug)]
pub(super) struct StageState {
    pub(super) name: String,
    pub(super) is_device: bool,
    /// Whether the stage is a connection, whose peer owns the plans over it.
    pub(super) is_lane: bool,
    /// Whether the stage is a connection for urgent requests.
    pub(super) is_urgent: bool,
    /// Whether the stage is a device, or a delay injection on one.
    pub(super) at_device: bool,
    /// Whether each fragment is an operation of a device, or of a delay injection that stands for
    /// one, which takes a time of its own.
    draws: bool,
    /// Whether the shard's thread does the work, so that it is timed by itself.
    pub(super) on_thread: bool,
    pub(super) meter: Meter,
    pub(super) estimator: Common<Estimator>,
    /// The cost that plans see. Those that were made from it share it.
    pub(super) published: Arc<Estimate>,
    /// Number of publications so far.
    pub(super) version: u32,
    pub(super) samples: u64,
    /// Samples from before the stage was dropped and came back.
    pub(super) samples_before: u64,
    pub(super) looked_at: u64,
    /// Changes of cost that the estimator had noticed at the last look.
    pub(super) changes: u64,
    /// Number of sizes and kinds of samples that the published cost rests on.
    pub(super) known: usize,
    /// Size of the last sample, in bytes.
    pub(super) last_bytes: u64,
    pub(super) reported: bool,
    /// What the connection lets be under way at once, if the stage is one.
    held: Option<Held>,
}

/// What stages without measurements know.
#[derive(Debug, Clone)]
pub(super) struct Beginning {
    prior: Stage,
    weight: f64,
    estimator: Arc<Estimator>,
    published: Arc<Estimate>,
}

impl Beginning {
    /// A stage with that prior, which counts as much as one of its kind does.
    fn of(prior: Stage, weight: f64) -> Self {
        let estimator = Estimator::new(prior.window).with_prior(prior, weight);
        let published = Arc::new(estimator.estimate());
        Self { prior, weight, estimator: Arc::new(estimator), published }
    }
}

/// One beginning for all stages of a kind: there are as many as priors.
#[derive(Debug, Default)]
pub(super) struct Beginnings(Vec<Beginning>);

impl Beginnings {
    /// A stage without measurements, with its prior.
    pub(super) fn begin(&mut self, of: &StageResource, name: String, prior: Stage) -> StageState {
        let weight = prior_weight(of);
        let is_like = |it: &&Beginning| (it.prior, it.weight) == (prior, weight);
        let known = self.0.iter().find(is_like).cloned();
        let beginning = known.unwrap_or_else(|| {
            let beginning = Beginning::of(prior, weight);
            self.0.push(beginning.clone());
            beginning
        });
        StageState::with(of, name, beginning)
    }
}

/// How many samples the prior of a stage counts as.
fn prior_weight(resource: &StageResource) -> f64 {
    match resource {
        StageResource::Dial { .. }
        | StageResource::Peer { .. }
        | StageResource::Sync { .. }
        | StageResource::PeerSync { .. } => DIAL_PRIOR_WEIGHT,
        _ => PRIOR_WEIGHT,
    }
}

impl StageState {
    /// A stage without measurements, with its prior.
    pub(super) fn new(resource: &StageResource, name: String, prior: Stage) -> Self {
        Self::with(resource, name, Beginning::of(prior, prior_weight(resource)))
    }

    fn with(resource: &StageResource, name: String, beginning: Beginning) -> Self {
        let Beginning { estimator, published, .. } = beginning;
        Self {
            name,
            is_device: matches!(resource, StageResource::Disk { .. } | StageResource::Cache { .. }),
            is_lane: matches!(resource, StageResource::Net { .. }),
            is_urgent: matches!(resource, StageResource::Net { class: LaneClass::Latency, .. }),
            at_device: matches!(
                resource,
                StageResource::Disk { .. }
                    | StageResource::Cache { .. }
                    | StageResource::Dial { place: DialPlace::Disk { .. } | DialPlace::Copy, .. }
                    | StageResource::Peer {
                        stage: ReportedStage::DiskWrite | ReportedStage::DialDiskWrite,
                        ..
                    }
            ),
            draws: matches!(
                resource,
                StageResource::Disk { .. }
                    | StageResource::Dial { place: DialPlace::Disk { .. }, host: false }
            ),
            on_thread: matches!(
                resource,
                StageResource::Check | StageResource::Copy | StageResource::Dial { host: true, .. }
            ),
            meter: Meter::new(),
            published,
            estimator: Common::Shared(estimator),
            version: 0,
            samples: 0,
            samples_before: 0,
            looked_at: 0,
            changes: 0,
            known: 0,
            last_bytes: 0,
            reported: false,
            held: None,
        }
    }

    /// What the connection lets be under way at once.
    pub(super) fn held(&self) -> Option<Held> {
        self.held
    }

    /// What the connection lets be under way at once, from now on.
    pub(super) fn hold(&mut self, held: Held) {
        let held = Some(held.acted_by());
        // A peer may say another window with each frame.
        self.version = self.version.wrapping_add(u32::from(self.held != held));
        self.held = held;
    }

    /// Publishes the present estimate, if it differs from the published one.
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
        let spreads_alike = match (&self.published.spread, &estimate.spread) {
            (Some(old), Some(new)) => old.is_like(new),
            (old, new) => old.is_none() && new.is_none(),
        };
        if moved || !spreads_alike || known > self.known {
            self.known = known.max(self.known);
            let mut now = estimate;
            if spreads_alike {
                now.spread = self.published.spread;
            }
            match Arc::get_mut(&mut self.published) {
                Some(published) => *published = now,
                None => self.published = Arc::new(now),
            }
            self.version += 1;
        }
    }

    /// The cost that plans are made from.
    pub(super) fn planned_with(&self) -> Arc<Estimate> {
        let mut cost = Arc::clone(&self.published);
        if cost.spread.is_some() && !self.draws {
            Arc::make_mut(&mut cost).spread = None;
        }
        cost
    }

    /// How much fragments differ, if that is a matter of how bytes are cut. A device takes its own
    /// time for each fragment, and so does a delay injection at one. What delays a wire or a thread
    /// (a copy from the page cache) comes with time or with bytes: it is shown, and not planned
    /// with.
    pub(super) fn spread(&self) -> Option<&Spread> {
        self.published.spread.as_ref().filter(|_| self.draws)
    }

    /// The published cost, with the present number of samples.
    pub(super) fn report_now(&self) -> StageReport {
        let [samples_alone, samples_backlogged] = self.estimator.samples();
        StageReport { samples_alone, samples_backlogged, ..self.report(&self.published) }
    }

    pub(super) fn report(&self, now: &Estimate) -> StageReport {
        let line = now.stage_at(SHOWN_BYTES);
        let mut note = if self.estimator.is_kept() {
            String::from(KEPT_NOTE)
        } else if now.samples_alone + now.samples_backlogged == 0 {
            String::from("no samples yet: the prior")
        } else if !now.identifiable {
            String::from("sizes vary too little to tell g from G")
        } else {
            String::from("at 64 KiB")
        };
        if let Some(spread) = now.spread {
            let [cv, stalls, times] = spread.in_words();
            note += &format!("; fragments differ by {:.0} %", cv * 100.0);
            if stalls > 0.0 {
                note += &format!(", and {:.2} % take {times:.0} times as long", stalls * 100.0);
            }
        }
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
            lines: now.curve.lines().map(line_of).collect(),
            at_device: self.at_device,
            held: self.held,
        }
    }
}

fn line_of((bytes, line): (f64, Stage)) -> StageLine {
    StageLine {
        bytes,
        latency_seconds: line.latency,
        overhead_seconds: line.overhead,
        per_byte_seconds: line.per_byte,
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

#[cfg(test)]
mod tests {
    use piped_core::ids::DeviceId;
    use piped_model::estimate::Sample;

    use super::*;

    #[test]
    fn only_what_a_device_does_with_each_fragment_is_planned_with() {
        let of_wire = StageResource::Net {
            peer: "beta".to_owned(),
            class: LaneClass::Latency,
            outbound: true,
            incoming: false,
        };
        let of_disk = StageResource::Disk { device: DeviceId(1), write: false };
        let dialled = |place, host| StageResource::Dial { place, host };
        let at_disk = || DialPlace::Disk { device: DeviceId(1), write: false };
        let at_wire = DialPlace::Net { peer: "beta".to_owned() };
        for (resource, counts) in [
            (of_wire, false),
            (of_disk, true),
            (dialled(at_disk(), false), true),
            (dialled(at_disk(), true), false),
            (dialled(at_wire, false), false),
        ] {
            let mut state = StageState::new(&resource, String::new(), DISK_PRIOR);
            // Every other one takes three times as long.
            for number in 0..2_000 {
                let seconds = if number % 2 == 0 { 50e-6 } else { 150e-6 };
                state.estimator.own().observe(Sample::Alone { bytes: 65_536, seconds });
            }
            state.publish();
            assert!(state.published.spread.is_some(), "{resource}: it is shown");
            assert_eq!(state.planned_with().spread.is_some(), counts, "{resource}");
            assert_eq!(state.spread().is_some(), counts, "{resource}");
        }
    }
}
