//! Strip mining on a shaped link: loops over another node's memory, by `auto`, by fixed strips,
//! after one get of everything, and against a bound for all orders of gets and computation.
//!
//! Both daemons are on one CPU and the application has the other to itself: its computation is to
//! overlap, and the other node's work on the same CPU would be foreign computation.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use piped_client::{StripPolicy, Strips, WaitPolicy};
use piped_core::modes::Profile;
use piped_model::strip::StripModel;

use crate::contest::{Arm, Rounds};
use crate::failure::Failure;
use crate::kernels::Kernel;
use crate::nodes::{PEER, profile_name};
use crate::report::{Row, Unit};
use crate::rig::GIGABIT;
use crate::rows::loops::{Loop, Remote};
use crate::rows::{Bench, KIB, MIB, MOMENT};
use crate::stats::{Bar, Better, Interval, median};
use crate::{clock, machine};

/// Profile of both daemons: they share a CPU, so neither may spin on it for long.
pub(super) const PROFILE: Profile = Profile::Throughput;

const BEST_BAR: f64 = 1.05;
const BALANCED_BAR: f64 = 0.7;
pub(super) const NEVER_WORSE_BAR: f64 = 1.02;
const BOUND_BAR: f64 = 1.10;

/// Computation on a byte, as a part of the link's time for it.
const RATIOS: [f64; 4] = [0.25, 0.5, 1.0, 2.0];
const BALANCED: usize = 2;

/// Fixed strips of the sweep: doubling from the least to half of everything, each with this many
/// ahead.
const STRIP_MIN: usize = 2 * KIB;
const UNROLLS: [u32; 3] = [2, 4, 8];

/// Rounds that choose which fixed strips to compare, and how much slower than the best one such may
/// look.
const CHOOSING: u32 = 5;
const WORTH: f64 = 1.08;

/// Loops of a measurement, at least, and those before it that let path and daemons settle.
const LOOPS_MIN: usize = 3;
const SETTLE: usize = 1;

/// Time of loops before anything is measured: the daemons learn the path.
const WARM: Duration = Duration::from_millis(1500);

/// Median of a moment's loops.
fn for_a_moment(one: impl Fn() -> Result<f64, Failure>, cpu: usize) -> Result<f64, Failure> {
    machine::pin(cpu)?;
    for _ in 0..SETTLE {
        one()?;
    }
    let begun = clock::now();
    let mut times = Vec::new();
    while times.len() < LOOPS_MIN || begun.elapsed() < MOMENT {
        times.push(one()?);
    }
    median(&times).ok_or_else(|| Failure::new("nothing was measured"))
}

/// Results of one kernel, size and computation.
#[derive(Debug)]
struct Scene {
    ratio: f64,
    rounds: Rounds,
    best: Interval,
    vectorised: Interval,
    bound: Interval,
    note: String,
}

/// Results of all computations of a kernel and size, kept for the rows that judge them.
#[derive(Debug, Default)]
pub(crate) struct Found(std::collections::BTreeMap<String, Rc<Vec<Scene>>>);

/// Indices of the arms in front of the sweep.
const AUTO: usize = 0;
const VECTORISED: usize = 1;
const GET: usize = 2;
const GET_QUARTER: usize = 3;
const GET_LEAST: usize = 4;
const COMPUTE: usize = 5;
const ISSUE: usize = 6;
const OTHERS: usize = 7;

/// Bytes of the smallest get: its time is the latency.
const LEAST: usize = 64;

/// Lower bound for all orders of gets and computation, by the round's own figures. On a network
/// that moves one byte after the other it is the least of the model's programs
/// ([`StripModel::optimal`]) and the latency of one get of everything; besides, nothing can be
/// computed before the smallest get has come. (The model's latency is another one: a shaped link
/// lets the first KiB pass unshaped, which makes up for it where the network takes the time.)
fn bound(bytes: f64, values: &[Option<f64>]) -> Option<f64> {
    let at = |arm: usize| values[arm];
    let per_byte = (at(GET)? - at(GET_QUARTER)?) / (0.75 * bytes);
    let (issue, compute) = (at(ISSUE)?, at(COMPUTE)? / bytes);
    let latency = (at(GET)? - per_byte * bytes - issue).max(0.0);
    let model = StripModel::new(issue, per_byte, compute).ok()?;
    let network = latency + model.optimal(bytes)?.cost_seconds + compute * bytes;
    Some(network.max(at(GET_LEAST)? + at(COMPUTE)?))
}

fn scene(
    bench: &mut Bench,
    remote: &Remote,
    (kernel, bytes, ratio): (Kernel, usize, f64),
    per_byte: f64,
) -> Result<Scene, Failure> {
    let cpu = bench.cpus.second;
    machine::pin(cpu)?;
    let it = Loop::new(remote, (kernel, bytes), ratio * per_byte)?;
    let it = &it;
    let fixed = |(strip, unroll): (usize, u32)| {
        let strips = Strips::new().policy(StripPolicy::Fixed(strip)).unroll(unroll);
        let name = format!("{} KiB, {unroll} ahead", strip / KIB);
        Arm::variant(name, move || for_a_moment(|| it.stripped(strips), cpu))
    };
    let sizes = std::iter::successors(Some(STRIP_MIN), |strip| Some(strip * 2));
    let sizes = sizes.take_while(|strip| *strip <= bytes / 2 && strip * 4096 >= bytes);
    let all = sizes.flat_map(|strip| UNROLLS.map(|unroll| (strip, unroll)));
    let mut sweep: Vec<Arm<'_>> = all.map(fixed).collect();
    let chosen = bench.chosen(CHOOSING, &mut sweep)?;
    let least = chosen.best_of_all(0..sweep.len(), Better::Smaller)?;
    let looked = |arm| chosen.all_of(arm).map_or(f64::INFINITY, |found| found.median);
    let most = looked(least) * WORTH;
    let sweep = sweep.into_iter().enumerate().filter(|(arm, _)| looked(*arm) <= most);
    let counts = RefCell::new(Vec::new());
    let auto = || {
        let found = for_a_moment(|| it.stripped(Strips::new()), cpu);
        counts.borrow_mut().push(it.strips() as f64);
        found
    };
    let get = move |bytes| move || for_a_moment(|| it.get(bytes), cpu);
    let mut arms = vec![
        Arm::variant("auto".to_owned(), auto),
        Arm::variant("vectorised".to_owned(), || for_a_moment(|| it.vectorised(), cpu)),
        Arm::variant("get".to_owned(), get(bytes)),
        Arm::variant("get of a quarter".to_owned(), get(bytes / 4)),
        Arm::variant("least get".to_owned(), get(LEAST)),
        Arm::variant("computation".to_owned(), || for_a_moment(|| it.computed(bytes), cpu)),
        Arm::variant("issue".to_owned(), || for_a_moment(|| it.issued(), cpu)),
    ];
    arms.extend(sweep.map(|(_, arm)| arm));
    let rounds = bench.rounds(&mut arms)?;
    let fixed = rounds.best(OTHERS..arms.len(), Better::Smaller)?;
    drop(arms);
    let best = rounds.ratio(AUTO, fixed)?;
    let vectorised = rounds.all_ratio(AUTO, VECTORISED)?;
    let bounds =
        rounds.all(|round| Some(round.values[AUTO]? / bound(bytes as f64, &round.values)?))?;
    let micros = |arm| rounds.all_of(arm).map_or(f64::NAN, |found| found.median * 1e6);
    let note = format!(
        "K = {ratio} G: auto {:.0} us in {:.0} strips, {} {:.0} us, vectorised {:.0} us, get {:.0} \
         us, of {LEAST} B {:.1} us, computation {:.0} us, issue {:.1} us",
        micros(AUTO),
        median(&counts.borrow()).unwrap_or(f64::NAN),
        rounds.names[fixed],
        micros(fixed),
        micros(VECTORISED),
        micros(GET),
        micros(GET_LEAST),
        micros(COMPUTE),
        micros(ISSUE),
    );
    eprintln!(
        "bench: {note}; best {:.3}, vectorised {:.3}, bound {:.3}",
        best.median, vectorised.median, bounds.median
    );
    Ok(Scene { ratio, rounds, best, vectorised, bound: bounds, note })
}

/// Results of a row's kernel and size, measured once for all of its rows.
fn scenes(bench: &mut Bench, kernel: Kernel, bytes: usize) -> Result<Rc<Vec<Scene>>, Failure> {
    let name = format!("{kernel:?} {bytes}");
    if let Some(found) = bench.strips.0.get(&name) {
        return Ok(Rc::clone(found));
    }
    let found = bench.with_rig_for_one(PROFILE, |bench, rig| {
        rig.set_rate(GIGABIT)?;
        let (asker, owner) = (&rig.pair.a, (&rig.pair.b, PEER));
        let remote = Remote::open(asker, owner, ("strips", 8 * MIB), WaitPolicy::Latency)?;
        machine::pin(bench.cpus.second)?;
        let probe = Loop::new(&remote, (kernel, bytes), 0.0)?;
        let begun = clock::now();
        while begun.elapsed() < WARM {
            probe.stripped(Strips::new())?;
            probe.vectorised()?;
        }
        let wire = 1.0 / GIGABIT as f64;
        let all =
            RATIOS.into_iter().map(|ratio| scene(bench, &remote, (kernel, bytes, ratio), wire));
        all.collect::<Result<Vec<_>, _>>()
    });
    machine::unpin()?;
    let found = Rc::new(found?);
    bench.strips.0.insert(name, Rc::clone(&found));
    Ok(found)
}

/// Measures the row with that name, such as `reduction-64k-best`.
pub(super) fn row(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let kernel =
        if name.starts_with("reduction") { Kernel::Reduction } else { Kernel::VectorToVector };
    let bytes = match name.split('-').nth(1).unwrap_or_default() {
        "64k" => 64 * KIB,
        "512k" => 512 * KIB,
        _ => 8 * MIB,
    };
    let scenes = scenes(bench, kernel, bytes)?;
    let (of, bar): (fn(&Scene) -> Interval, f64) = match name.rsplit('-').next() {
        Some("best") => (|scene| scene.best, BEST_BAR),
        Some("bound") => (|scene| scene.bound, BOUND_BAR),
        Some("balanced") => (|scene| scene.vectorised, BALANCED_BAR),
        _ => (|scene| scene.vectorised, NEVER_WORSE_BAR),
    };
    let judged: Vec<&Scene> = match name.ends_with("balanced") {
        true => scenes.iter().filter(|scene| scene.ratio == RATIOS[BALANCED]).collect(),
        false => scenes.iter().collect(),
    };
    // The one nearest to the bar, or farthest beyond.
    let worst = judged.iter().max_by(|one, other| of(one).high.total_cmp(&of(other).high));
    let worst = worst.ok_or_else(|| Failure::new("nothing was measured"))?;
    let figures: Vec<String> =
        judged.iter().map(|scene| format!("{:.2}", of(scene).median)).collect();
    let note = format!("{} for K of {RATIOS:?} G; the worst: {}", figures.join(", "), worst.note);
    let found = of(worst);
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, Bar::AtMost(bar), note)
        .with_arms(&worst.rounds, Unit::Seconds))
}
