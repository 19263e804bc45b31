//! How near a plan is to what is possible: its latency by the model beside one that no plan beats.
//!
//! Both come from the costs that the daemon planned with, as it reports them: costs that bend, and
//! stages of one thread.

use std::fmt;
use std::num::NonZeroU32;

use piped_model::estimate::CostCurve;
use piped_model::evaluate;
use piped_model::servers::Servers;
use piped_model::stage::{Buffers, STAGES_MAX, Stage};
use piped_report::shard::StageReport;
use piped_report::trace::LevelSizes;
use piped_theory::bound;
use serde::Serialize;

use crate::units;

/// Fragments of all levels that are followed one by one, at most.
const FRAGMENTS_MAX: u64 = 1 << 18;

/// A plan's latency, and the least there is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Certificate {
    /// Latency of the plan by the model, in seconds.
    pub(crate) model_seconds: f64,
    /// A latency that no plan beats, in seconds.
    pub(crate) bound_seconds: f64,
    /// No plan is faster by more than this part of the bound.
    pub(crate) within: f64,
}

impl Certificate {
    pub(crate) fn new(model_seconds: f64, bound_seconds: f64) -> Self {
        let excess = model_seconds - bound_seconds;
        let within = if excess > 0.0 { excess / bound_seconds } else { 0.0 };
        Self { model_seconds, bound_seconds, within }
    }
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "within {:.1} % of what is possible: {} by these costs, where no plan takes less than \
             {}",
            self.within * 100.0,
            units::seconds(self.model_seconds),
            units::seconds(self.bound_seconds)
        )
    }
}

/// A plan of a daemon: its stages with their costs, and its sizes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned<'a> {
    pub(crate) bytes: u64,
    pub(crate) stages: &'a [StageReport],
    pub(crate) levels: &'a [LevelSizes],
    pub(crate) depth: u32,
    /// Credit for writes that the peer had not given back, in bytes.
    pub(crate) owed: u64,
}

impl Planned<'_> {
    /// The plan's certificate, or why there is none.
    pub(crate) fn certificate(&self) -> Result<Certificate, String> {
        let Self { bytes, stages, levels, depth, owed } = *self;
        if levels.is_empty() || stages.is_empty() {
            return Err("not known: this node did not plan it".to_owned());
        }
        let guessed = stages.iter().find(|it| it.samples_alone + it.samples_backlogged == 0);
        if let Some(stage) = guessed.filter(|it| !it.kept && !it.reported) {
            return Err(format!("not known: {} has not been measured yet", stage.name));
        }
        if let Some(stage) = stages.iter().find(|stage| stage.lines.is_empty()) {
            let name = &stage.name;
            return Err(format!("not known: the daemon does not tell how {name}'s cost bends"));
        }
        if levels.iter().map(|level| level.count).sum::<u64>() > FRAGMENTS_MAX {
            return Err("not known: too many fragments to follow one by one".to_owned());
        }
        let curves: Vec<CostCurve> = stages.iter().map(curve).collect();
        let lists: Option<Vec<Vec<u64>>> =
            levels_of(stages).into_iter().map(|level| self.sizes(level)).collect();
        let lists = lists.ok_or("not known: the plan has a level without sizes")?;
        let views: Vec<&[u64]> = lists.iter().map(Vec::as_slice).collect();
        let servers = servers(stages);
        let buffers = buffers(stages, owed);
        let depth = NonZeroU32::new(depth);
        let model = evaluate::lists_on(&curves, &views, depth, &buffers, &servers)
            .map_err(|fault| format!("not known: {fault}"))?;
        Ok(Certificate::new(model, bound::within(&curves, bytes, &servers, &buffers)))
    }

    /// All sizes of a level; those beyond what was told are like the last one.
    fn sizes(&self, level: &str) -> Option<Vec<u64>> {
        let own = self.levels.iter().find(|one| one.level == level).or(self.levels.first())?;
        let mut sizes = own.sizes.clone();
        let repeated = sizes.last().copied()?.max(1);
        let mut left = self.bytes.checked_sub(sizes.iter().sum())?;
        while left > 0 {
            let size = repeated.min(left);
            sizes.push(size);
            left -= size;
        }
        Some(sizes)
    }
}

fn curve(stage: &StageReport) -> CostCurve {
    let window = stage.window.and_then(NonZeroU32::new);
    let lines = stage.lines.iter().map(|line| {
        let cost = Stage {
            latency: line.latency_seconds,
            overhead: line.overhead_seconds,
            per_byte: line.per_byte_seconds,
            window,
        };
        (line.bytes, cost)
    });
    CostCurve::of_lines(&lines.collect::<Vec<_>>(), window)
}

/// The level of each stage: devices before all other stages are read, others are written.
fn levels_of(stages: &[StageReport]) -> Vec<&'static str> {
    let source = stages.iter().take_while(|stage| stage.at_device).count();
    let level = |(place, stage): (usize, &StageReport)| match stage.at_device {
        true if place < source => "source",
        true => "sink",
        false => "lane",
    };
    stages.iter().enumerate().map(level).collect()
}

/// What the path's connection lets be under way.
fn buffers(stages: &[StageReport], owed: u64) -> Buffers {
    let held = stages.iter().enumerate().find_map(|(wire, stage)| Some((wire, stage.held?)));
    let at_device: Vec<bool> = stages.iter().map(|stage| stage.at_device).collect();
    held.map_or(Buffers::UNLIMITED, |(wire, held)| held.rooms(&at_device, wire..wire + 1, owed))
}

/// Stages of the shard's thread have one server, which works in turns. One that comes again stands
/// for the peer's.
fn servers(stages: &[StageReport]) -> Servers {
    let on_thread = |place: usize| {
        let stage = &stages[place];
        let constructed = stage.with.iter().any(|it| it.one_server && it.measured.is_none());
        constructed && stages[..place].iter().all(|other| other.name != stage.name)
    };
    let places = 0..stages.len().min(STAGES_MAX);
    let servers = Servers::of(places.clone().map(|place| match on_thread(place) {
        true => None,
        false => Some(place),
    }));
    let shared = places.into_iter().find(|&place| servers.first(place) != place);
    shared.map_or(servers, |place| servers.in_turns(place))
}

#[cfg(test)]
mod tests {
    use piped_core::limits::FRAGMENT_BYTES_MAX;
    use piped_model::leveled::{self, Level, Task};
    use piped_report::shard::{ServedWith, StageLine};

    use super::*;

    /// A linear congruential generator: the upper bits, as a number from 0 to 1.
    struct Random(u64);

    impl Random {
        fn unit(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as f64 / (1_u64 << 31) as f64
        }

        fn power(&mut self, low: f64, high: f64) -> f64 {
            10_f64.powf(low + (high - low) * self.unit())
        }

        fn curve(&mut self) -> CostCurve {
            let pieces = 1 + (self.unit() * 3.0) as usize;
            let lines = [3000.0, 40_000.0, 500_000.0].map(|bytes| {
                let line = Stage {
                    latency: self.power(-7.0, -4.0),
                    overhead: self.power(-6.0, -3.5),
                    per_byte: self.power(-10.0, -8.0),
                    ..Stage::FREE
                };
                (bytes, line)
            });
            CostCurve::of_lines(&lines[..pieces], None)
        }
    }

    #[test]
    fn no_candidate_is_below_the_bound_of_the_same_costs() {
        for seed in 0..40 {
            let mut random = Random(seed);
            let stages = 2 + (random.unit() * 3.0) as usize;
            let path: Vec<CostCurve> = (0..stages).map(|_| random.curve()).collect();
            let servers = match seed % 2 {
                0 => Servers::APART,
                _ => Servers::APART.with(stages - 1, 0),
            };
            let bytes = random.power(4.0, 6.0) as u64;
            let most = FRAGMENT_BYTES_MAX.into();
            let level = |stages| Level { largest: most, ..Level::free(stages) };
            let levels = [level(0..1), level(1..stages)];
            let task = Task { servers, ..Task::new(&path, bytes, &levels, 32) };
            let bound = bound::of_costs(&path, bytes, &servers);
            for plan in leveled::candidates(&task) {
                let seconds = plan.predicted_seconds;
                assert!(bound <= seconds * (1.0 + 1e-9), "seed {seed}: {bound} above {plan:?}");
                assert!(bound > 0.0, "seed {seed}");
            }
        }
    }

    fn stage(name: &str, overhead: f64, per_byte: f64, at_device: bool) -> StageReport {
        StageReport {
            name: name.to_owned(),
            latency_seconds: 0.0,
            overhead_seconds: overhead,
            per_byte_seconds: per_byte,
            window: None,
            samples_alone: 50,
            samples_backlogged: 50,
            confidence: 0.9,
            reported: false,
            kept: false,
            note: String::new(),
            times: Vec::new(),
            relative_error: 0.0,
            with: Vec::new(),
            lines: vec![StageLine {
                bytes: 65_536.0,
                latency_seconds: 0.0,
                overhead_seconds: overhead,
                per_byte_seconds: per_byte,
            }],
            at_device,
            held: None,
        }
    }

    fn level(level: &str, sizes: &[u64], count: u64) -> LevelSizes {
        LevelSizes { level: level.to_owned(), sizes: sizes.to_vec(), count }
    }

    #[test]
    fn a_plan_is_told_apart_from_what_is_possible() {
        let stages = [stage("disk", 1e-3, 0.0, true), stage("net", 1e-3, 0.0, false)];
        let planned =
            |levels| Planned { bytes: 65_536, stages: &stages, levels, depth: 8, owed: 0 };
        // Whole is the best where only fragments cost.
        let whole = [level("source", &[65_536], 1), level("lane", &[65_536], 1)];
        let found = planned(&whole).certificate().expect("all is known");
        assert!((found.model_seconds - 2e-3).abs() < 1e-9 && found.within < 1e-6, "{found:?}");
        let words = "within 0.0 % of what is possible: 2.00 ms by these costs, where no plan \
                     takes less than 2.00 ms";
        assert_eq!(found.to_string(), words);
        // The last told size repeats: two fragments at the disk, four on the way.
        let halves = [level("source", &[32_768], 2), level("lane", &[16_384], 4)];
        let found = planned(&halves).certificate().expect("all is known");
        assert!((found.model_seconds - 5e-3).abs() < 1e-9, "{found:?}");
        assert!((found.within - 1.5).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn stages_of_the_thread_are_one_server() {
        let thread =
            || vec![ServedWith { name: "thread".to_owned(), one_server: true, measured: None }];
        let mut stages = ["copy", "check", "check"].map(|name| stage(name, 1e-3, 0.0, false));
        stages.iter_mut().for_each(|stage| stage.with = thread());
        let sizes = [level("lane", &[32_768], 2)];
        let planned = Planned { bytes: 65_536, stages: &stages, levels: &sizes, depth: 8, owed: 0 };
        // A turn of the thread with both fragments in both stages, then the peer's checks.
        let found = planned.certificate().expect("all is known");
        assert!((found.model_seconds - 6e-3).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn without_a_certificate_the_reason_is_said() {
        let known = stage("disk", 1e-3, 0.0, true);
        let sizes = [level("source", &[65_536], 1)];
        let why = |stage: StageReport, levels: &[LevelSizes]| {
            let planned = Planned { bytes: 65_536, stages: &[stage], levels, depth: 8, owed: 0 };
            planned.certificate().expect_err("something is not known")
        };
        assert!(why(known.clone(), &[]).contains("this node did not plan it"));
        let guess = StageReport { samples_alone: 0, samples_backlogged: 0, ..known.clone() };
        assert_eq!(why(guess, &sizes), "not known: disk has not been measured yet");
        let old = StageReport { lines: Vec::new(), ..known.clone() };
        assert!(why(old, &sizes).contains("does not tell how disk's cost bends"));
        let long = [level("source", &[512], 1 << 30)];
        assert!(why(known, &long).contains("too many fragments"));
    }
}
