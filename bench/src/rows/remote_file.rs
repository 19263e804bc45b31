//! A read of a file at another node, where disk and network should overlap: against the slower of
//! the two alone, and against a transfer in one piece.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use piped_client::{Handle, OpenOptions};
use piped_core::modes::{PlannerMode, Profile};

use crate::contest::{Arm, Rounds};
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::machine::Cpus;
use crate::nodes::{EXPORT, PEER, Pair};
use crate::report::{Row, Unit};
use crate::rows::{BEST_OF_TWO, Bench, FILE_NAME, MIB, MOMENT, floor};
use crate::stats::{Bar, Better};

/// Profile of the daemons with a CPU each.
const PROFILE: Profile = Profile::Balanced;

/// Reads that are asked how they were cut.
const EXPLANATIONS: usize = 15;

/// How the serving daemon cuts a read, by its own explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cut {
    fragment: usize,
    /// Difference in size from each fragment to the next.
    shrink: usize,
    depth: usize,
}

impl Cut {
    fn in_words(self) -> String {
        let less = match self.shrink {
            0 => String::new(),
            shrink => format!(", each {} less,", shrink >> 10),
        };
        format!("{} KiB{less} at depth {}", self.fragment >> 10, self.depth)
    }
}

/// A way to run piped, and a client that reads there.
struct Subject<'a> {
    name: &'static str,
    pair: &'a Pair,
    asker: RefCell<Asker>,
    handle: Handle,
    /// How most of its reads are cut.
    cut: Cut,
}

impl<'a> Subject<'a> {
    fn start(name: &'static str, pair: &'a Pair) -> Result<Self, Failure> {
        let mut asker = Asker::connect(&pair.a, Place::BesideShard, 16 << 20)?;
        let open = asker.client.open_export(Some(PEER), EXPORT, FILE_NAME, OpenOptions::read());
        let handle = open.doing("open")?;
        let cut = warmed(pair, &mut asker, Ask { handle: &handle, block: MIB, depth: 1 })?;
        Ok(Self { name, pair, asker: RefCell::new(asker), handle, cut })
    }

    fn reads(&self, duration: Duration) -> Result<f64, Failure> {
        let ask = Ask { handle: &self.handle, block: MIB, depth: 1 };
        Ok(self.asker.borrow_mut().reads(ask, duration)?.p50())
    }
}

/// Ways to run piped. A floor may choose its CPUs, so an operator of piped may, too: a shard for
/// each node on a CPU of its own, or both on the one that takes the disk's interrupts, where the
/// data stays in its cache.
fn subjects<'a>(apart: &'a Pair, beside: &'a Pair) -> Result<[Subject<'a>; 2], Failure> {
    Ok([
        Subject::start("balanced, two CPUs", apart)?,
        Subject::start("throughput, same CPU", beside)?,
    ])
}

fn start_beside(bench: &mut Bench) -> Result<Pair, Failure> {
    let one_cpu = Cpus { first: bench.cpus.second, second: bench.cpus.second };
    Pair::start(Profile::Throughput, one_cpu, &bench.data()?)
}

/// Lets the estimators see the disk and the lane, then asks how most reads are cut.
fn warmed(pair: &Pair, asker: &mut Asker, ask: Ask<'_>) -> Result<Cut, Failure> {
    pair.b.admin.set_planner(PlannerMode::Auto)?;
    asker.reads(ask, 10 * MOMENT)?;
    // Some reads try another plan than the one that is thought best.
    let mut seen = BTreeMap::new();
    for _ in 0..EXPLANATIONS {
        asker.reads(ask, MOMENT / 10)?;
        *seen.entry(explained(pair)?).or_insert(0) += 1;
    }
    let most = seen.into_iter().max_by_key(|&(_, times)| times);
    most.map(|(cut, _)| cut).ok_or_else(|| Failure::new("no read was explained"))
}

/// How the last read was cut.
fn explained(pair: &Pair) -> Result<Cut, Failure> {
    let explanation = pair.b.admin.explain_last()?;
    let figure = |name: &str| explanation[name].as_u64().filter(|figure| *figure > 0);
    match (figure("fragment_bytes"), figure("depth")) {
        (Some(fragment), Some(depth)) => Ok(Cut {
            fragment: (fragment as usize).clamp(4096, MIB),
            shrink: explanation["shrink_bytes"].as_u64().unwrap_or(0) as usize,
            depth: depth.min(256) as usize,
        }),
        _ => Err(Failure::new(format!("the explanation has no plan: {explanation}"))),
    }
}

pub(super) fn against_stages(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let disk = bench.disk()?;
    let beside = start_beside(bench)?;
    bench.with_both(PROFILE, |bench, server, pair| {
        let subjects = subjects(pair, &beside)?;
        let p50 = (floor::p50 as floor::Figure, Better::Smaller);
        let mut arms = floor::net_best_chunks(bench, server, (MIB, 1), p50)?;
        let nets = arms.len();
        for subject in &subjects {
            // The disk's part alone, cut as the daemon cuts it.
            let (disk, Cut { fragment, shrink, depth }) = (&disk, subject.cut);
            let ways = floor::disk_ways(bench.cpus, move |wait, random| {
                Ok(disk.read_cut(MIB, (fragment, shrink), depth, wait, MOMENT, random)?.p50())
            });
            arms.push(bench.best(floor::CHOOSING_FLOOR, ways, Better::Smaller)?);
        }
        let disks = arms.len();
        for subject in &subjects {
            let measure = || subject.reads(2 * MOMENT);
            arms.push(Arm::variant(format!("piped, {}", subject.name), measure));
        }
        let all = arms.len();
        let rounds = bench.rounds(&mut arms)?;
        let net = rounds.best(0..nets, Better::Smaller)?;
        let chosen = rounds.best(disks..all, Better::Smaller)?;
        let disk = chosen - subjects.len();
        let found = rounds.even(|round| {
            Some(round.values[chosen]? / round.values[net]?.max(round.values[disk]?))
        })?;
        let bar = Bar::AtMost(1.15);
        let note = format!(
            "{} {}; disk alone {} ({}, {}), net alone {} ({})",
            rounds.names[chosen],
            micros(&rounds, chosen)?,
            micros(&rounds, disk)?,
            subjects[chosen - disks].cut.in_words(),
            rounds.names[disk],
            micros(&rounds, net)?,
            rounds.names[net]
        );
        let row = Row::judged(name, BEST_OF_TWO, Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds);
        Ok(bench.judged(row, &["check-disk-1m-4", "check-net-1m"]))
    })
}

pub(super) fn against_whole(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let beside = start_beside(bench)?;
    bench.with_both(PROFILE, |bench, _, pair| {
        let subjects = subjects(pair, &beside)?;
        let mut arms = Vec::new();
        for mode in [PlannerMode::Auto, PlannerMode::Whole] {
            for subject in &subjects {
                arms.push(Arm::variant(format!("{mode}, {}", subject.name), move || {
                    subject.pair.b.admin.set_planner(mode)?;
                    // The first reads after the switch meet plans of the other mode.
                    subject.reads(MOMENT / 5)?;
                    subject.reads(2 * MOMENT)
                }));
            }
        }
        let rounds = bench.rounds(&mut arms);
        // Whatever happened, the daemon is left as others expect it.
        pair.b.admin.set_planner(PlannerMode::Auto)?;
        let rounds = rounds?;
        let auto = rounds.best(0..subjects.len(), Better::Smaller)?;
        let whole = auto + subjects.len();
        let found = rounds.ratio(auto, whole)?;
        let note = format!(
            "{} {} ({}), whole {}",
            rounds.names[auto],
            micros(&rounds, auto)?,
            subjects[auto].cut.in_words(),
            micros(&rounds, whole)?
        );
        let bar = Bar::AtMost(0.85);
        Ok(Row::judged(name, BEST_OF_TWO, Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

fn micros(rounds: &Rounds, arm: usize) -> Result<String, Failure> {
    Ok(floor::in_words(rounds.value(arm)?.median))
}
