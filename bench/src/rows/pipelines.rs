//! The planner's plans against a bound that no plan can beat, and the planner's own time.
//!
//! Latencies here are computed, not measured: they are the same on every machine. The random
//! pipelines have stages of comparable cost, the hardest for a planner: no stage is the bottleneck
//! whatever the size.

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::OnceLock;

use piped_model::fixed::{self, Constraints};
use piped_model::reference::{PACKET_BYTES, network_disk, network_disk_network};
use piped_model::stage::{Path, Stage};
use piped_planner::probe::Probe;
use piped_planner::solve::solve;
use piped_theory::best::{self, Best};

use crate::clock;
use crate::contest::{self, Arm};
use crate::failure::Failure;
use crate::report::{Row, Unit};
use crate::rows::{Bench, Group, MOMENT, spread};
use crate::stats::{Bar, Interval, Random};

/// Rows of the planner's promises.
pub(crate) static PIPELINES: Group = Group {
    name: "pipelines",
    rows_stand_alone: false,
    entries: &[
        ("gap-mean", gap_mean),
        ("gap-worst", gap_worst),
        ("gap-long-mean", gap_mean),
        ("gap-long-worst", gap_worst),
        ("disk-5-plan", plan),
        ("disk-5-certified", certified_plan),
        ("disk-5-bound", bound),
        ("disk-5-gap", gap),
        ("disk-9-plan", plan),
        ("disk-9-certified", certified_plan),
        ("disk-9-bound", bound),
        ("disk-9-gap", gap),
        ("fixed-time", fixed_time),
        ("best-time", best_time),
        ("best-9-time", best_time),
        ("certified-time", certified_time),
        ("look-up-time", look_up_time),
        ("solve-time", solve_time),
        ("spread-cv-p99", spread::p99),
        ("spread-cv-mean", spread::mean),
        ("spread-stalls-p99", spread::p99),
        ("spread-stalls-mean", spread::mean),
    ],
};

/// The seed of the first pipeline of a distribution.
const SEED: u64 = 0x7069_7065_6c69_6e65;

/// A distribution of random pipelines, and what its certificates have to keep.
struct Distribution {
    count: u64,
    /// The fewest and the most stages.
    stages: (usize, usize),
    mean_most: f64,
    worst_most: f64,
    all: OnceLock<Vec<Pipeline>>,
}

static SHORT: Distribution = Distribution {
    count: 1000,
    stages: (3, 6),
    mean_most: 0.012,
    worst_most: 0.04,
    all: OnceLock::new(),
};
static LONG: Distribution = Distribution {
    count: 200,
    stages: (8, 12),
    mean_most: 0.025,
    worst_most: 0.07,
    all: OnceLock::new(),
};

/// What the paths of section 5.5 have to keep, in seconds.
struct Disk {
    path: fn() -> Path,
    /// Greatest latency of the plan, and of the one with a certificate.
    plan_most: f64,
    certified_most: f64,
    bound_least: f64,
    /// Greatest distance between the last two.
    gap_most: f64,
    best_seconds: f64,
}

const DISK_5: Disk = Disk {
    path: network_disk,
    plan_most: 23_860e-6,
    certified_most: 23_860e-6,
    bound_least: 23_300e-6,
    gap_most: 0.009,
    best_seconds: 0.5e-3,
};
const DISK_9: Disk = Disk {
    path: network_disk_network,
    plan_most: 29_500e-6,
    certified_most: 29_000e-6,
    bound_least: 28_400e-6,
    gap_most: 0.015,
    best_seconds: 1e-3,
};

const LOOK_UP_SECONDS: f64 = 200e-9;
const SOLVE_SECONDS: f64 = 1e-3;
const FIXED_SECONDS: f64 = 1e-6;
const CERTIFIED_SECONDS: f64 = 20e-3;

/// Calls between two looks at the clock if a call takes less than a microsecond.
const BATCH: u32 = 256;

/// A random pipeline, with the distance of its plan from its bound.
struct Pipeline {
    stages: Vec<Stage>,
    bytes: u64,
    gap: f64,
    /// Distance of the plan without a certificate, which is searched for a shorter time.
    quick: f64,
}

impl Distribution {
    fn of(name: &str) -> &'static Self {
        if name.contains("long") { &LONG } else { &SHORT }
    }

    /// All pipelines, sorted by their distances; computed once.
    fn pipelines(&self) -> Result<&[Pipeline], Failure> {
        if let Some(all) = self.all.get() {
            return Ok(all);
        }
        let mut random = Random::new(SEED);
        let mut all = Vec::new();
        for _ in 0..self.count {
            contest::check()?;
            let (stages, bytes) = draw(&mut random, self.stages);
            let found = planned(best::certified(&stages, bytes, &Constraints::default()))?;
            let gap = found.gap().ok_or_else(|| Failure::new("a certificate without a bound"))?;
            let quick = planned(best::best(&stages, bytes, &Constraints::default()))?;
            let ratio = quick.plan.predicted_seconds / found.plan.predicted_seconds;
            all.push(Pipeline { stages, bytes, gap, quick: (1.0 + gap) * ratio - 1.0 });
        }
        all.sort_by(|a, b| a.gap.total_cmp(&b.gap));
        Ok(self.all.get_or_init(|| all))
    }
}

fn planned(best: Option<Best>) -> Result<Best, Failure> {
    best.ok_or_else(|| Failure::new("the planner has no plan for a path with stages"))
}

/// Draws so many stages, `g = 10^U(0.3, 2.5)` us, `G = 10^U(0.5, 2)` us per 1000 bytes, 4 to 40 KB
/// log-uniform.
fn draw(random: &mut Random, (fewest, most): (usize, usize)) -> (Vec<Stage>, u64) {
    let mut unit = || random.below(1 << 53) as f64 / (1_u64 << 53) as f64;
    let count = fewest + (unit() * (most - fewest + 1) as f64) as usize;
    let stages = (0..count).map(|_| Stage {
        latency: 0.0,
        overhead: 10_f64.powf(0.3 + 2.2 * unit()) * 1e-6,
        per_byte: 10_f64.powf(0.5 + 1.5 * unit()) * 1e-9,
        window: None,
    });
    let stages = stages.collect();
    (stages, (4000.0 * 10_f64.powf(unit())).round() as u64)
}

pub(super) fn gap_mean(_: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let distribution = Distribution::of(name);
    let all = distribution.pipelines()?;
    let mean = |of: fn(&Pipeline) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    let at = |part: f64| all[((all.len() - 1) as f64 * part).round() as usize].gap * 100.0;
    let note = format!(
        "T / bound - 1 over {} random pipelines: {:.2} % at the 10th percentile, {:.2} % median, \
         {:.2} % at the 90th, {:.2} % at the 99th, {:.2} % worst; without a certificate {:.2} % on \
         average",
        all.len(),
        at(0.1),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
        mean(|pipeline| pipeline.quick) * 100.0,
    );
    let found = Interval::exact(mean(|pipeline| pipeline.gap));
    Ok(Row::judged(name, "-", Unit::Part, found, Bar::AtMost(distribution.mean_most), note))
}

pub(super) fn gap_worst(_: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let distribution = Distribution::of(name);
    let worst = distribution.pipelines()?.last();
    let worst = worst.ok_or_else(|| Failure::new("no pipelines"))?;
    let stage = |stage: &Stage| format!("{:.4},{:.4}", stage.overhead * 1e6, stage.per_byte * 1e9);
    let stages: Vec<String> = worst.stages.iter().map(stage).collect();
    let note = format!(
        "pipectl model plan --certificate --bytes {} --stages '{}'",
        worst.bytes,
        stages.join(";")
    );
    let found = Interval::exact(worst.gap);
    Ok(Row::judged(name, "-", Unit::Part, found, Bar::AtMost(distribution.worst_most), note))
}

fn disk(name: &str) -> Disk {
    if name.contains('9') { DISK_9 } else { DISK_5 }
}

pub(super) fn plan(_: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let disk = disk(name);
    let quick = planned(best::best(&(disk.path)(), PACKET_BYTES, &Constraints::default()))?;
    let micros = quick.plan.predicted_seconds * 1e6;
    let mut note = format!("us: best {micros:.1}");
    for candidate in &quick.candidates {
        let micros = candidate.predicted_seconds * 1e6;
        note += &format!(", {} {micros:.1}", candidate.algorithm);
    }
    let found = Interval::exact(quick.plan.predicted_seconds);
    Ok(Row::judged(name, "-", Unit::Seconds, found, Bar::AtMost(disk.plan_most), note))
}

fn certified(disk: &Disk) -> Result<Best, Failure> {
    planned(best::certified(&(disk.path)(), PACKET_BYTES, &Constraints::default()))
}

pub(super) fn certified_plan(_: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let disk = disk(name);
    let seconds = certified(&disk)?.plan.predicted_seconds;
    let note = format!("{:.1} us, the plan with a certificate", seconds * 1e6);
    let bar = Bar::AtMost(disk.certified_most);
    Ok(Row::judged(name, "-", Unit::Seconds, Interval::exact(seconds), bar, note))
}

pub(super) fn bound(_: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let disk = disk(name);
    let bound = piped_theory::bound::lower_bound(&(disk.path)(), PACKET_BYTES);
    let note = format!("{:.1} us that no plan can beat", bound * 1e6);
    let found = Interval::exact(bound);
    Ok(Row::judged(name, "-", Unit::Seconds, found, Bar::AtLeast(disk.bound_least), note))
}

pub(super) fn gap(_: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let disk = disk(name);
    let gap = certified(&disk)?.gap();
    let gap = gap.ok_or_else(|| Failure::new("a certificate without a bound"))?;
    let note = "T / bound - 1 of the plan with a certificate".to_owned();
    let bar = Bar::AtMost(disk.gap_most);
    Ok(Row::judged(name, "-", Unit::Part, Interval::exact(gap), bar, note))
}

pub(super) fn fixed_time(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (path, limits) = (network_disk(), Constraints::default());
    timed(bench, name, FIXED_SECONDS, BATCH, || {
        black_box(fixed::best(black_box(&path), PACKET_BYTES, &limits));
    })
}

pub(super) fn best_time(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let disk = disk(name);
    let (path, limits) = ((disk.path)(), Constraints::default());
    timed(bench, name, disk.best_seconds, 1, || {
        black_box(best::best(black_box(&path), PACKET_BYTES, &limits));
    })
}

pub(super) fn certified_time(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (path, limits) = (network_disk(), Constraints::default());
    timed(bench, name, CERTIFIED_SECONDS, 1, || {
        black_box(best::certified(black_box(&path), PACKET_BYTES, &limits));
    })
}

/// Time of a known plan for one more request, after a thousand that took the predicted time.
pub(super) fn look_up_time(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let probe = RefCell::new(probe()?);
    timed(bench, name, LOOK_UP_SECONDS, BATCH, || {
        black_box(probe.borrow_mut().look_up());
    })
}

/// Time of solving sizes for each level, beside the shard.
pub(super) fn solve_time(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let mut probe = Probe::new(1 << 20);
    probe.look_up();
    let question = probe.question().ok_or_else(|| Failure::new("nothing to be solved"))?;
    timed(bench, name, SOLVE_SECONDS, 1, || {
        black_box(solve(black_box(&question)));
    })
}

fn probe() -> Result<Probe, Failure> {
    let mut probe = Probe::new(1 << 20);
    probe.look_up();
    let question = probe.question().ok_or_else(|| Failure::new("nothing to be solved"))?;
    probe.answer(&solve(&question));
    (0..1000).for_each(|_| probe.observe());
    Ok(probe)
}

/// Median over rounds of the time of a call; the note has the calls' own distribution.
fn timed(
    bench: &mut Bench,
    name: &'static str,
    most: f64,
    batch: u32,
    call: impl Fn(),
) -> Result<Row, Failure> {
    let calls = RefCell::new(Vec::new());
    let measure = || {
        let (begun, mut count) = (clock::now(), 0);
        while begun.elapsed() < MOMENT {
            let before = clock::now();
            (0..batch).for_each(|_| call());
            calls.borrow_mut().push(before.elapsed().as_secs_f64() / f64::from(batch));
            count += batch;
        }
        Ok(begun.elapsed().as_secs_f64() / f64::from(count))
    };
    let rounds = bench.rounds(&mut [Arm::variant("planner".to_owned(), measure)])?;
    let found = rounds.all_of(0).ok_or_else(|| Failure::new("all rounds had stolen time"))?;
    let mut calls = calls.into_inner();
    calls.sort_unstable_by(f64::total_cmp);
    let at = |part: f64| calls[((calls.len() - 1) as f64 * part).round() as usize] * 1e6;
    let note = format!(
        "us a call{}: {:.2} fastest, {:.2} median, {:.2} at the 90th percentile, {:.2} at \
         the 99th",
        if batch > 1 { format!(" (of {batch})") } else { String::new() },
        at(0.0),
        at(0.5),
        at(0.9),
        at(0.99),
    );
    Ok(Row::judged(name, "-", Unit::Seconds, found, Bar::AtMost(most), note))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipelines_are_drawn_from_the_ranges_they_are_said_to_be() {
        let mut random = Random::new(SEED);
        for (fewest, most) in [SHORT.stages, LONG.stages] {
            let mut counts = [0; 13];
            for _ in 0..2000 {
                let (stages, bytes) = draw(&mut random, (fewest, most));
                counts[stages.len()] += 1;
                assert!((4000..=40_000).contains(&bytes));
                for stage in stages {
                    assert!((1.9e-6..=317e-6).contains(&stage.overhead));
                    assert!((3.1e-9..=100.1e-9).contains(&stage.per_byte));
                }
            }
            let drawn = &counts[fewest..=most];
            assert!(drawn.iter().all(|&count| count > 300), "{counts:?}");
            assert_eq!(drawn.iter().sum::<u32>(), 2000, "{counts:?}");
        }
    }
}
