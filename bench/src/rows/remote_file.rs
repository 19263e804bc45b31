//! A read of a file at another node, where disk and network should overlap: against the slower of the
//! two alone, and against a transfer in one piece.

use std::collections::BTreeMap;

use piped_client::OpenOptions;
use piped_config::{PlannerMode, Profile};

use crate::contest::{Arm, Rounds};
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::machine;
use crate::nodes::{EXPORT, PEER, Pair, profile_name};
use crate::raw::Wait;
use crate::report::{Row, Unit};
use crate::rows::{Bench, FILE_NAME, MIB, MOMENT, floor};
use crate::stats::{Bar, Better, Random};

const PROFILE: Profile = Profile::Balanced;

/// Reads that are asked how they were cut.
const EXPLANATIONS: usize = 15;

/// How the serving daemon cuts a read, by its own explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cut {
    fragment: usize,
    /// By how much each fragment is shorter than the one before.
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

fn open(pair: &Pair) -> Result<(Asker, piped_client::Handle), Failure> {
    let asker = Asker::connect(&pair.a, Place::BesideShard, 16 << 20)?;
    let open = asker.client.open_export(Some(PEER), EXPORT, FILE_NAME, OpenOptions::read());
    Ok((asker, open.doing("open")?))
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
    let cpus = bench.cpus;
    bench.with_both(PROFILE, |bench, server, pair| {
        let (mut asker, handle) = open(pair)?;
        let ask = Ask { handle: &handle, block: MIB, depth: 1 };
        let cut = warmed(pair, &mut asker, ask)?;
        let mut arms = floor::net_chunks(server, cpus, (MIB, 1), floor::p50);
        let nets = arms.len();
        for cpu in [cpus.first, cpus.second] {
            for wait in [Wait::Block, Wait::Spin] {
                let disk = &disk;
                let mut random = Random::new(cpu as u64);
                arms.push(Arm::variant(format!("CPU {cpu}, {}", wait.name()), move || {
                    machine::pin(cpu)?;
                    let Cut { fragment, shrink, depth } = cut;
                    let sizes = (fragment, shrink);
                    let timing = disk.read_cut(MIB, sizes, depth, wait, MOMENT, &mut random)?;
                    Ok(timing.p50())
                }));
            }
        }
        let subject = arms.len();
        arms.push(Arm::subject("piped", || Ok(asker.reads(ask, 2 * MOMENT)?.p50())));
        let rounds = bench.rounds(&mut arms)?;
        let net = rounds.best(0..nets, Better::Smaller)?;
        let disk = rounds.best(nets..subject, Better::Smaller)?;
        let found = rounds.even(|round| {
            Some(round.values[subject]? / round.values[net]?.max(round.values[disk]?))
        })?;
        let bar = Bar::AtMost(1.15);
        let note = format!(
            "piped {}; disk alone {} ({}), net alone {} ({})",
            micros(&rounds, subject)?,
            micros(&rounds, disk)?,
            cut.in_words(),
            micros(&rounds, net)?,
            rounds.names[net]
        );
        let row = Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds);
        Ok(bench.judged(row, &["check-disk-1m-4", "check-net-1m"]))
    })
}

pub(super) fn against_whole(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    bench.with_both(PROFILE, |bench, _, pair| {
        let (asker, handle) = open(pair)?;
        let ask = Ask { handle: &handle, block: MIB, depth: 1 };
        let asker = std::cell::RefCell::new(asker);
        let cut = warmed(pair, &mut asker.borrow_mut(), ask)?;
        let measure = |mode| {
            let asker = &asker;
            let admin = &pair.b.admin;
            move || {
                admin.set_planner(mode)?;
                // The first reads after the switch meet plans of the other mode.
                asker.borrow_mut().reads(ask, MOMENT / 5)?;
                Ok(asker.borrow_mut().reads(ask, 2 * MOMENT)?.p50())
            }
        };
        let mut arms = [
            Arm::variant("auto".to_owned(), measure(PlannerMode::Auto)),
            Arm::variant("whole".to_owned(), measure(PlannerMode::Whole)),
        ];
        let rounds = bench.rounds(&mut arms);
        // Whatever happened, the daemon is left as others expect it.
        pair.b.admin.set_planner(PlannerMode::Auto)?;
        let rounds = rounds?;
        let found = rounds.ratio(0, 1)?;
        let note = format!(
            "auto {} ({}), whole {}",
            micros(&rounds, 0)?,
            cut.in_words(),
            micros(&rounds, 1)?
        );
        let bar = Bar::AtMost(0.85);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

fn micros(rounds: &Rounds, arm: usize) -> Result<String, Failure> {
    Ok(floor::in_words(rounds.value(arm)?.median))
}
