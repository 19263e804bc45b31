//! Gets by clients that were put on no CPU in particular, and gets after a pause.
//!
//! Who writes an application seldom knows the daemon's CPU, and waits as the daemon recommends. A
//! bad place must cost a factor that can be lived with, and a first request after a pause must not
//! cost more than waking what went to sleep.

use std::time::Duration;

use piped_client::{Access, Handle};

use crate::clock;
use crate::contest::Arm;
use crate::failure::Failure;
use crate::load::{Ask, Asker, Place, Way};
use crate::nodes::{Pair, profile_name};
use crate::raw::Timing;
use crate::report::{Row, Unit};
use crate::rows::peers::{in_words, profile_of, region};
use crate::rows::{Bench, KIB, MOMENT};
use crate::stats::Bar;

/// Largest ratio of the worst place of a client to the best.
const PLACE_BAR: f64 = 2.5;

/// Longest 99th percentile of a first get, in seconds.
const PAUSE_BAR: f64 = 500e-6;

const BLOCK: usize = 4 * KIB;

/// Gets of a round after pauses: two of them are above the 99th percentile.
const SAMPLES: usize = 200;

/// Rounds where each takes seconds.
const LONG_ROUNDS: u32 = 11;

/// Rounds where each takes a part of a second.
const SHORT_ROUNDS: u32 = 15;

/// Clients of A, one on each CPU.
fn on_each_cpu(bench: &Bench, pair: &Pair) -> Result<Vec<(Asker, Handle)>, Failure> {
    let mut cpus = vec![bench.cpus.first, bench.cpus.second];
    cpus.dedup();
    let usual = |cpu| region::open(pair, Place::Usual(cpu), Access::READ, 1 << 20);
    cpus.into_iter().map(usual).collect()
}

/// The median time of a get on the worst CPU against that at the best place: a CPU, or asleep
/// beside the shard. Without the last one, CPUs that are equally bad would pass.
pub(super) fn placement(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let profile = profile_of(name);
    bench.with_pair(profile, |bench, pair| {
        let _export = region::export(pair, Access::READ, BLOCK)?;
        let mut readers = on_each_cpu(bench, pair)?;
        let cpus = readers.len();
        readers.push(region::open(pair, Place::BesideShard, Access::READ, 1 << 20)?);
        let mut arms: Vec<Arm<'_>> = Vec::new();
        for (asker, handle) in &mut readers {
            let name = match arms.len() < cpus {
                true => format!("CPU {}", asker.cpu),
                false => format!("CPU {} asleep", asker.cpu),
            };
            let ask = Ask { handle, block: BLOCK, depth: 1 };
            arms.push(Arm::variant(name, move || Ok(asker.reads(ask, MOMENT)?.p50())));
        }
        let rounds = bench.rounds(&mut arms)?;
        let found =
            rounds.all(|round| Some(worst(&round.values[..cpus])? / best(&round.values)?))?;
        let note = format!("p50 of gets of 4 KiB by a client on {}", in_words(&rounds));
        let bar = Bar::AtMost(PLACE_BAR);
        Ok(Row::judged(name, &profile_name(profile), Unit::Ratio, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

/// The 99th percentile of a get that is the first after a pause, at the worse place.
pub(super) fn pause(bench: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let profile = profile_of(name);
    let (pause, most) = match name.split('-').nth(1) {
        Some("200us") => (Duration::from_micros(200), SHORT_ROUNDS),
        Some("1ms") => (Duration::from_millis(1), SHORT_ROUNDS),
        _ => (Duration::from_millis(10), LONG_ROUNDS),
    };
    bench.with_pair(profile, |bench, pair| {
        let _export = region::export(pair, Access::READ, BLOCK)?;
        let mut readers = on_each_cpu(bench, pair)?;
        let mut arms: Vec<Arm<'_>> = Vec::new();
        for (asker, handle) in &mut readers {
            let cpu = asker.cpu;
            let measure = move || Ok(gets_after(pause, asker, handle)?.percentile(0.99));
            arms.push(Arm::variant(format!("CPU {cpu}"), measure));
        }
        let count = bench.rounds_at_most(most);
        let rounds = bench.chosen(count, &mut arms)?;
        let found = rounds.all(|round| worst(&round.values))?;
        let note = format!(
            "{count} rounds of {SAMPLES} gets of 4 KiB, p99 by a client on {}",
            in_words(&rounds)
        );
        let bar = Bar::AtMost(PAUSE_BAR);
        Ok(Row::judged(name, &profile_name(profile), Unit::Seconds, found, bar, note)
            .with_arms(&rounds, Unit::Seconds))
    })
}

fn gets_after(pause: Duration, asker: &mut Asker, handle: &Handle) -> Result<Timing, Failure> {
    let begun = clock::now();
    let mut latencies_ns = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        clock::pause(pause);
        latencies_ns.push(asker.one(Way::Read, handle, BLOCK)?.as_nanos() as u64);
    }
    Ok(Timing::new(latencies_ns, begun.elapsed()))
}

fn worst(values: &[Option<f64>]) -> Option<f64> {
    values.iter().copied().flatten().reduce(f64::max)
}

fn best(values: &[Option<f64>]) -> Option<f64> {
    values.iter().copied().flatten().reduce(f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_and_the_best_place_are_of_those_that_took_part() {
        let values = [Some(2.0), None, Some(5.0), Some(3.0)];
        assert_eq!((worst(&values), best(&values)), (Some(5.0), Some(2.0)));
        assert_eq!((worst(&values[..2]), worst(&[None])), (Some(2.0), None));
    }
}
