//! Steps in mid-run: the path changes under `auto`, which has to be as good as the best fixed size
//! for the new path within 50 transfers.
//!
//! A step counts only if the old plan, kept (`calibration = frozen`), becomes a quarter slower than
//! that best size. The others are shown, unchecked.

use std::cell::RefCell;

use piped_core::modes::{CalibrationMode, PlannerMode};

use super::dials::Dial;
use super::scene::{Caller, MEGABYTES, Pace, Scene};
use super::traffic::{Reader, Stream};
use super::{PROFILE, Rig, plot, sweep};
use crate::contest::{self, Arm};
use crate::failure::Failure;
use crate::load::Way;
use crate::nodes::profile_name;
use crate::report::{Row, Unit};
use crate::rows::{Bench, MIB};
use crate::stats::{self, Bar, Better, Verdict};

const BLOCK: usize = MIB;

/// Transfers for `auto` to get used to the new path, and number of those measured then.
const TRANSFERS: usize = 50;

/// Transfers on the old path before a step.
const BEFORE: usize = 200;

/// Rounds that choose the best fixed size on the new path; rounds that compare, of seconds each.
const CHOOSING: u32 = 3;
const COMPARING: u32 = 9;

const BAR: f64 = 1.10;
/// Ratio by which the old plan has to be worse for a step to count.
const MATTERS: f64 = 1.25;

/// State of a path.
#[derive(Debug, Clone, Copy, PartialEq)]
struct State {
    pace: Pace,
    /// Overhead of the disk's dial, in seconds.
    disk_overhead: f64,
    /// Bytes per second of the link; none is the pace's.
    rate: Option<u64>,
    /// Bytes per second of a competitor on the link, and whether there is one on the disk.
    stream: Option<u64>,
    reader: bool,
}

const QUICK: State =
    State { pace: Pace::Equal100, disk_overhead: 50e-6, rate: None, stream: None, reader: false };
const SLOW_DISK: State = State { disk_overhead: 4e-3, ..QUICK };
const SLOW_BOTH: State = State { rate: Some(25 * MEGABYTES), ..SLOW_DISK };
const STREAM: State = State { stream: Some(70 * MEGABYTES), ..QUICK };
const OWN: State = State { pace: Pace::EqualOwn, disk_overhead: 0.0, ..QUICK };
const READER: State = State { reader: true, ..OWN };

/// Steps by the name of the row: from where, and to where.
static STEPS: [(&str, State, State); 8] = [
    ("step-disk-slower", QUICK, SLOW_DISK),
    ("step-disk-faster", SLOW_DISK, QUICK),
    ("step-both-slower", QUICK, SLOW_BOTH),
    ("step-both-faster", SLOW_BOTH, QUICK),
    ("step-stream-comes", QUICK, STREAM),
    ("step-stream-goes", STREAM, QUICK),
    ("step-reader-comes", OWN, READER),
    ("step-reader-goes", READER, OWN),
];

/// Competitors that run now.
#[derive(Debug, Default)]
struct Others {
    stream: Option<Stream>,
    reader: Option<Reader>,
}

/// A path that changes.
struct Course<'a> {
    rig: &'a Rig,
    caller: Caller<'a>,
    others: RefCell<Others>,
}

impl<'a> Course<'a> {
    fn start(rig: &'a Rig, state: State) -> Result<Self, Failure> {
        let scene = Scene { way: Way::Read, block: BLOCK, pace: state.pace };
        let caller = Caller::start(rig, scene)?;
        let course = Self { rig, caller, others: RefCell::default() };
        course.turn(state)?;
        Ok(course)
    }

    /// Puts the path into that state.
    fn turn(&self, state: State) -> Result<(), Failure> {
        let rig = self.rig;
        rig.set_rate(match state.rate {
            Some(rate) => rate,
            None => state.pace.rate(rig)?,
        })?;
        let dial = Dial { overhead: state.disk_overhead, ..super::scene::DISK_100 };
        let dials = if dial.overhead > 0.0 { &[dial][..] } else { &[] };
        rig.set_dials(Way::Read, dials)?;
        let mut others = self.others.borrow_mut();
        *others = Others::default();
        others.stream = state.stream.map(|rate| Stream::start(&rig.link, rate)).transpose()?;
        others.reader = state.reader.then(|| Reader::start(rig.data.path())).transpose()?;
        Ok(())
    }

    /// Rate of the competitor on the link, in words; empty without one.
    fn shared(&self) -> String {
        let others = self.others.borrow();
        let rate = others.stream.as_ref().map(|stream| stream.rate() / MEGABYTES as f64);
        rate.map_or_else(String::new, |rate| format!("; the stream got {rate:.0} MB/s"))
    }

    /// Lets `auto` get used to `from`, then makes the step.
    fn step(&self, from: State, to: State, then: CalibrationMode) -> Result<(), Failure> {
        self.turn(from)?;
        self.rig.plan_by(PlannerMode::Auto)?;
        self.caller.some(BEFORE)?;
        self.rig.calibrate(then)?;
        self.turn(to)
    }
}

/// Stops all competitors, so that the next row has none.
impl Drop for Course<'_> {
    fn drop(&mut self) {
        let _ = self.rig.calibrate(CalibrationMode::Live);
    }
}

pub(super) fn step(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let &(_, from, to) = STEPS.iter().find(|step| step.0 == name).expect("a row of the table");
    let rounds = bench.rounds_at_most(COMPARING);
    let plots = bench.plots();
    bench.with_rig(|bench, rig| {
        let course = Course::start(rig, to)?;
        let caller = &course.caller;
        let by_hand = sweep::by_hand(BLOCK)
            .into_iter()
            .map(|mode| Arm::variant(mode.to_string(), move || caller.median_by(mode)));
        let best = bench.best(CHOOSING, by_hand.collect(), Better::Smaller)?;
        let taken = RefCell::new(Vec::new());
        let shared = RefCell::new(String::new());
        let auto = || {
            course.step(from, to, CalibrationMode::Live)?;
            let settling = caller.some(TRANSFERS)?;
            let settled = middle(&caller.some(TRANSFERS)?);
            taken.borrow_mut().push((settling, settled));
            shared.replace(course.shared());
            Ok(settled)
        };
        let frozen = || {
            course.step(from, to, CalibrationMode::Frozen)?;
            Ok(middle(&caller.few(TRANSFERS)?))
        };
        // One after the other, because each brings its own past.
        let mut arms = vec![
            Arm::variant("auto".to_owned(), auto),
            best,
            Arm::variant("frozen".to_owned(), frozen),
        ];
        let found = contest::run_in_order(rounds, &mut arms)?;
        drop(arms);
        bench.report.rounds_discarded += found.discarded;
        let ratio = found.all_ratio(0, 1)?;
        let kept = found.all_ratio(2, 1)?.median;
        let millis = |arm: usize| found.all_of(arm).map_or(f64::NAN, |one| one.median * 1e3);
        let mut note = format!(
            "auto {:.2} ms after {} transfers, {} {:.2} ms, frozen {:.2} ms ({kept:.2} x the best \
             by hand)",
            millis(0),
            settled_after(&taken.borrow(), millis(1) * 1e-3 * BAR),
            found.names[1],
            millis(1),
            millis(2)
        );
        note += &shared.borrow();
        if let Some(directory) = plots {
            plot::write(&directory, name, &timeline(&course, from, to)?)?;
        }
        let profile = profile_name(PROFILE);
        let mut row = Row::judged(name, &profile, Unit::Ratio, ratio, Bar::AtMost(BAR), note)
            .with_arms(&found, Unit::Seconds);
        if kept < MATTERS {
            row.verdict = Verdict::Unchecked;
            row.note += "; it does not count, the old plan is hardly worse";
        }
        Ok(row)
    })
}

fn middle(times: &[f64]) -> f64 {
    stats::median(times).unwrap_or(f64::NAN)
}

/// Transfers that are looked at together.
const WINDOW: usize = 5;

/// Number of transfers that `auto` needed until its next ones were within the bar, in the median
/// round.
fn settled_after(taken: &[(Vec<f64>, f64)], bar: f64) -> String {
    let needed = |(settling, settled): &(Vec<f64>, f64)| {
        let within = settling.windows(WINDOW).position(|times| middle(times) <= bar);
        within.or_else(|| (*settled <= bar).then_some(TRANSFERS)).map(|count| count as f64)
    };
    let counts: Vec<f64> = taken.iter().map(|one| needed(one).unwrap_or(f64::INFINITY)).collect();
    match stats::median(&counts) {
        Some(count) if count.is_finite() => format!("{count:.0}"),
        _ => format!("more than {}", 2 * TRANSFERS),
    }
}

/// Transfers of a picture before the step, after it, and after the way back.
const SHOWN: [usize; 3] = [60, 120, 120];

/// Course of the same path there and back, once with each calibration.
fn timeline(course: &Course<'_>, from: State, to: State) -> Result<Vec<plot::Run>, Failure> {
    let modes = [("live", CalibrationMode::Live), ("frozen", CalibrationMode::Frozen)];
    let run = |(name, mode)| {
        course.step(to, from, CalibrationMode::Live)?;
        course.caller.some(BEFORE)?;
        course.rig.calibrate(mode)?;
        let mut run = plot::Run::new(name);
        for (state, count) in [from, to, from].into_iter().zip(SHOWN) {
            course.turn(state)?;
            run.steps.push(run.points.len());
            for _ in 0..count {
                let seconds = course.caller.one()?;
                let explanation = course.caller.planner().admin.explain_last()?;
                let bytes = explanation["fragment_bytes"].as_u64().unwrap_or(0);
                run.points.push(plot::Point { seconds, fragment_bytes: bytes });
            }
        }
        Ok(run)
    };
    modes.into_iter().map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_until_it_has_settled_are_counted() {
        let slow_then = |count: usize| {
            let times = (0..TRANSFERS).map(|at| if at < count { 2.0 } else { 1.0 });
            (times.collect::<Vec<f64>>(), 1.0)
        };
        // The median of five is within the bar once three of them are.
        assert_eq!(settled_after(&[slow_then(0), slow_then(20), slow_then(21)], 1.1), "18");
        assert_eq!(settled_after(&[slow_then(TRANSFERS)], 1.1), "50");
        assert_eq!(settled_after(&[(vec![2.0; TRANSFERS], 2.0)], 1.1), "more than 100");
    }

    #[test]
    fn each_step_has_its_way_back() {
        for (name, from, to) in &STEPS {
            let back = STEPS.iter().any(|(_, back, there)| back == to && there == from);
            assert!(back, "{name}");
        }
    }
}
