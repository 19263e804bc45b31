//! Operations on the daemon's half of a ring while the other side writes anything anywhere.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use piped_ring::testing::{Broken, Duel, Step, Tally};

use crate::clock;
use crate::contest::interrupted;
use crate::failure::{Doing as _, Failure};
use crate::report::{Row, Unit};
use crate::rows::Bench;
use crate::stats::{Bar, Interval, Random};

/// Operations to be survived in one run.
const BAR: u64 = 100_000_000;

/// Part of them against a client that writes from another thread at the same time. No seed repeats
/// such a run, so most are played in turns.
const AT_ONCE: u64 = BAR / 10;

/// Steps against one queue, before another size and another seed.
const STEPS: u64 = 1_000_000;

/// Seed of the first queue; the others follow.
const SEED: u64 = 1;

/// Measures the row, with all its queues.
pub(super) fn ring(_: &mut Bench, name: &'static str) -> Result<Row, Failure> {
    let begun = clock::now();
    let turns = played(BAR - AT_ONCE, in_turns)?;
    let seconds = begun.elapsed().as_secs_f64();
    let both = played(AT_ONCE, at_once)?;
    let total = turns.operations + both.operations;
    let note = format!(
        "{:.1} M/s in turns; {:.2e} at once with the client; {:.2e} descriptors taken, {:.2e} \
         completions posted, {:.2e} faults found",
        turns.operations as f64 / seconds / 1e6,
        both.operations as f64,
        (turns.taken + both.taken) as f64,
        (turns.posted + both.posted) as f64,
        (turns.faults + both.faults) as f64
    );
    let found = Interval::exact(total as f64);
    Ok(Row::judged(name, "-", Unit::Count, found, Bar::AtLeast(BAR as f64), note))
}

/// Plays queue after queue, on two threads, until there were this many operations.
fn played(wanted: u64, play: fn(u64) -> Result<Tally, Failure>) -> Result<Tally, Failure> {
    let (seed, done) = (AtomicU64::new(SEED), AtomicU64::new(0));
    let work = || {
        let mut sum = Tally::default();
        while done.load(Ordering::Relaxed) < wanted && !interrupted() {
            let tally = play(seed.fetch_add(1, Ordering::Relaxed))?;
            done.fetch_add(tally.operations, Ordering::Relaxed);
            sum = added(sum, tally);
        }
        Ok(sum)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mine: Result<Tally, Failure> = work();
        let other: Result<Tally, Failure> = other.join().expect("an error is no panic");
        Ok(added(mine?, other?))
    })
}

fn added(one: Tally, other: Tally) -> Tally {
    Tally {
        operations: one.operations + other.operations,
        taken: one.taken + other.taken,
        posted: one.posted + other.posted,
        faults: one.faults + other.faults,
    }
}

fn duel(random: &mut Random) -> Result<Duel, Failure> {
    Duel::new(1 << random.below(7)).doing("a queue")
}

fn in_turns(seed: u64) -> Result<Tally, Failure> {
    let mut random = Random::new(seed);
    let mut duel = duel(&mut random)?;
    for number in 0..STEPS {
        let step = Step::random(&mut |bound| random.below(bound));
        duel.play(step).map_err(|broken| told(broken, seed, number, step))?;
    }
    Ok(duel.tally())
}

/// Plays one seed with the client's steps on a thread of its own, as fast as it can.
fn at_once(seed: u64) -> Result<Tally, Failure> {
    let mut random = Random::new(seed);
    let mut duel = duel(&mut random)?;
    let client = duel.second_client().doing("a client")?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(!seed);
            while !over.load(Ordering::Relaxed) {
                client.play(Step::random(&mut |bound| random.below(bound)));
            }
        });
        let result = (0..STEPS).try_for_each(|number| {
            let step = Step::random(&mut |bound| random.below(bound));
            duel.play(step).map_err(|broken| told(broken, seed, number, step))
        });
        over.store(true, Ordering::Relaxed);
        result
    })?;
    Ok(duel.tally())
}

fn told(broken: Broken, seed: u64, number: u64, step: Step) -> Failure {
    Failure::new(format!("seed {seed}, step {number} ({step:?}): {broken}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_plays_the_same_again_and_much_of_it_is_work() {
        let tally = in_turns(7).expect("the half keeps its books");
        assert_eq!(in_turns(7).expect("again"), tally);
        // The queue was not spoilt by the first word, refusing everything since.
        for count in [tally.taken, tally.posted, tally.faults] {
            assert!(count > tally.operations / 100, "{tally:?}");
        }
    }
}
