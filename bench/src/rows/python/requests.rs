//! Gets and reads of piped_io against the same by client-lib.
//!
//! Both are on the CPU of their daemon and sleep where they wait, so neither has a better place.

use piped_client::OpenOptions;
use serde_json::json;

use super::worker::Worker;
use super::{Environment, PROFILE};
use crate::contest::{Arm, Rounds};
use crate::failure::{Doing as _, Failure};
use crate::load::{Ask, Asker, Place};
use crate::nodes::{EXPORT, PEER, Pair, profile_name};
use crate::report::{Row, Unit};
use crate::rows::peers::clients::{SETTLE, WINDOW, together};
use crate::rows::peers::in_words;
use crate::rows::region::{NAME, Region};
use crate::rows::{Bench, FILE_NAME, KIB, MIB, MOMENT};
use crate::stats::Bar;

/// The most that Python may add to a get of 4 KiB, in seconds.
const SMALL_BAR: f64 = 8e-6;
/// The most that a get of 1 MiB may take, over that of client-lib.
const LARGE_BAR: f64 = 1.05;

/// Threads that read at once, and the length of their reads.
const THREADS: usize = 4;
const THREADS_BLOCK: usize = 256 * KIB;
/// The least that they may gain over one, over what as many threads of client-lib gain.
const THREADS_BAR: f64 = 0.9;

/// What Python adds to a get of 4 KiB of the other node's memory.
pub(super) fn small(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let rounds = gets(bench, 4 * KIB)?;
    let found = rounds.all(|round| Some(round.values[1]? - round.values[0]?))?;
    let (bar, note) = (Bar::AtMost(SMALL_BAR), format!("p50: {}", in_words(&rounds)));
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::Seconds, found, bar, note)
        .with_arms(&rounds, Unit::Seconds))
}

/// A get of 1 MiB in Python, over one by client-lib.
pub(super) fn large(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let rounds = gets(bench, MIB)?;
    let found = rounds.all_ratio(1, 0)?;
    let (bar, note) = (Bar::AtMost(LARGE_BAR), format!("p50: {}", in_words(&rounds)));
    Ok(Row::judged(name, &profile_name(PROFILE), Unit::FineRatio, found, bar, note)
        .with_arms(&rounds, Unit::Seconds))
}

/// Median times of gets by client-lib and by piped_io.
fn gets(bench: &mut Bench, block: usize) -> Result<Rounds, Failure> {
    let (python, cpu) = (bench.python()?, bench.cpus.first);
    bench.with_pair(PROFILE, |bench, pair| {
        let mut region = Region::open(pair)?;
        let mut worker = Worker::start(&python, &[cpu])?;
        let socket = &pair.a.client_socket;
        worker.ask(&json!(["open_regions", 1, block, socket, PEER, NAME]))?;
        let ask = Ask { handle: &region.handle, block, depth: 1 };
        let asker = &mut region.asker;
        let long = 5 * MOMENT;
        // The estimators see the lane first.
        asker.reads(ask, long)?;
        worker.ask(&json!(["p50", long.as_secs_f64()]))?;
        let mut arms = [
            Arm::variant("client-lib".to_owned(), || Ok(asker.reads(ask, MOMENT)?.p50())),
            Arm::variant("piped_io".to_owned(), || {
                worker.ask(&json!(["p50", MOMENT.as_secs_f64()]))
            }),
        ];
        bench.rounds(&mut arms)
    })
}

/// What four threads gain over one, of reads of the other node's file: Python's over client-lib's.
pub(super) fn threads(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let (python, cpu) = (bench.python()?, bench.cpus.first);
    bench.with_pair(PROFILE, |bench, pair| {
        let (mut one, mut all) = (readers(pair, 1)?, readers(pair, THREADS)?);
        let rust = |readers: &mut Vec<_>| together(readers, (THREADS_BLOCK, 1));
        let mut one_of_python = worker(&python, pair, cpu, 1)?;
        let mut all_of_python = worker(&python, pair, cpu, THREADS)?;
        let rate = json!(["rate", SETTLE.as_secs_f64(), WINDOW.as_secs_f64()]);
        let names = ["client-lib, 1", "client-lib, 4", "piped_io, 1", "piped_io, 4"];
        let [first, second, third, fourth] = names.map(str::to_owned);
        let mut arms = [
            Arm::variant(first, || rust(&mut one)),
            Arm::variant(second, || rust(&mut all)),
            Arm::variant(third, || one_of_python.ask(&rate)),
            Arm::variant(fourth, || all_of_python.ask(&rate)),
        ];
        // The estimators see disk and lane first.
        for arm in &mut arms {
            (arm.measure)()?;
        }
        let rounds = bench.rounds(&mut arms)?;
        drop(arms);
        let found = rounds.all(|round| {
            let gain = |one: usize, all: usize| Some(round.values[all]? / round.values[one]?);
            Some(gain(2, 3)? / gain(0, 1)?)
        })?;
        let told = |arm| rounds.all_of(arm).map_or(f64::NAN, |rate| rate.median);
        let note = format!(
            "reads of 256 KiB a second by 1 and {THREADS} threads: client-lib {:.0}, {:.0}; \
             piped_io {:.0}, {:.0}",
            told(0),
            told(1),
            told(2),
            told(3)
        );
        let bar = Bar::AtLeast(THREADS_BAR);
        Ok(Row::judged(name, &profile_name(PROFILE), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::PerSecond))
    })
}

/// Sessions of client-lib with the other node's file.
fn readers(pair: &Pair, count: usize) -> Result<Vec<(Asker, piped_client::Handle)>, Failure> {
    let reader = |_| {
        let asker = Asker::connect(&pair.a, Place::BesideShard, 16 * MIB as u64)?;
        let options = OpenOptions::read();
        let handle = asker.client.open_export(Some(PEER), EXPORT, FILE_NAME, options);
        Ok((asker, handle.doing("open")?))
    };
    (0..count).map(reader).collect()
}

/// A worker with as many such sessions.
fn worker(python: &Environment, pair: &Pair, cpu: usize, count: usize) -> Result<Worker, Failure> {
    let mut worker = Worker::start(python, &[cpu])?;
    let socket = &pair.a.client_socket;
    let file = json!(["open_files", count, THREADS_BLOCK, socket, PEER, EXPORT, FILE_NAME]);
    worker.ask(&file)?;
    Ok(worker)
}
