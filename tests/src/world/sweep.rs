//! Very many worlds of all kinds, on all CPUs: `bench simulate`.
//!
//! A seed says everything of its world, its kind too, so any of them can be lived again alone.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use piped_core::units::Nanos;
use piped_sim::Random;

use super::Options;
use super::runner::{End, live};

/// A kind of world.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Its name, for people.
    pub name: &'static str,
    /// The options of a world.
    pub options: fn(&mut Random) -> Options,
    /// Of so many seeds in a row, how many.
    share: u64,
}

/// All kinds. Most worlds have all faults.
pub const KINDS: [Kind; 8] = [
    Kind { name: "stormy", options: Options::stormy, share: 9 },
    Kind { name: "sick disks", options: Options::sick_disks, share: 3 },
    Kind { name: "scarce", options: Options::scarce, share: 3 },
    Kind { name: "changing limits", options: Options::limited, share: 2 },
    Kind { name: "dialled", options: Options::dialled, share: 2 },
    Kind { name: "lending", options: Options::lending, share: 3 },
    Kind { name: "one-sided", options: Options::one_sided, share: 4 },
    Kind { name: "calm", options: Options::calm, share: 1 },
];

/// What must have happened in some of that many worlds or more, else they test nothing.
const MUST_SEE: [&str; 41] = [
    "client died with calls in flight",
    "corrupt frames",
    "device stalled with calls in flight",
    "dial cleared that held something",
    "dial set with calls in flight",
    "discarded bytes",
    "ended Cancelled",
    "ended DeadlineExceeded",
    "ended Gone",
    "ended Io",
    "ended NoSpace",
    "ended Ok",
    "ended OutcomeUnknown",
    "ended PeerLost",
    "ended behind a fence",
    "failed with a part done",
    "held buffers",
    "lanes lost",
    "lent when a lane was closed",
    "message received",
    "message received at the end",
    "mispredicted bounces",
    "moved in pieces",
    "node crashed with calls of its peer in flight",
    "notifications counted",
    "puts before a signal taken while they were under way",
    "retries",
    "scratches moved",
    "sends copied all the same",
    "sends refused",
    "sends without a copy",
    "receive given up",
    "serial plans",
    "signals taken",
    "stalled messages",
    "unaligned bounces",
    "waited for a limit",
    "words added to",
    "words not as expected",
    "words swapped",
    "writes before a signal seen while they were under way",
];
/// See [`MUST_SEE`].
const MUST_SEE_WORLDS: u64 = 10_000;

/// One world in so many is lived twice: a run that cannot be repeated cannot be debugged.
const REPEATED: u64 = 64;

/// Failures kept; more would tell nothing new.
const FAILURES_MAX: usize = 20;

/// The seeds to live.
#[derive(Debug, Clone, Copy)]
pub struct Sweep {
    /// The first.
    pub from: u64,
    /// How many.
    pub seeds: u64,
    /// How many at once.
    pub threads: usize,
}

/// A world that broke a promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Its seed.
    pub seed: u64,
    /// Its kind.
    pub kind: &'static str,
    /// The promise.
    pub message: String,
}

/// What became of them.
#[derive(Debug, Default)]
pub struct Swept {
    /// Worlds lived, those that failed included.
    pub worlds: u64,
    /// How many of each kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// How often things happened.
    pub seen: BTreeMap<&'static str, u64>,
    /// Simulated events.
    pub events: u64,
    /// Simulated time.
    pub time: Nanos,
    /// Worlds that failed, by seed; the first of them if there are very many.
    pub failures: Vec<Failed>,
    /// How many failed.
    pub failed: u64,
}

impl Kind {
    /// The kind of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut place = seed % KINDS.iter().map(|kind| kind.share).sum::<u64>();
        for kind in KINDS {
            if place < kind.share {
                return kind;
            }
            place -= kind.share;
        }
        unreachable!("the shares add up to the whole")
    }
}

impl Sweep {
    /// Lives all of them, or those before `stop`. `lived` counts on the way.
    #[must_use]
    pub fn run(&self, stop: &AtomicBool, lived: &AtomicU64) -> Swept {
        let next = AtomicU64::new(self.from);
        let end = self.from.saturating_add(self.seeds);
        let all = Mutex::new(Swept::default());
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    let mut mine = Swept::default();
                    while !stop.load(Ordering::Relaxed) {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= end {
                            break;
                        }
                        mine.add(seed, live_seed(seed));
                        lived.fetch_add(1, Ordering::Relaxed);
                    }
                    all.lock().expect("nobody panics with it").merge(mine);
                });
            }
        });
        let mut all = all.into_inner().expect("nobody panics with it");
        all.failures.sort_by_key(|failed| failed.seed);
        all
    }

    /// Lives the world of one seed, and shows its last events.
    ///
    /// # Errors
    /// The promise that it breaks.
    pub fn replay(seed: u64) -> Result<(), String> {
        live(Kind::of(seed).options, seed, true).map(drop)
    }
}

fn live_seed(seed: u64) -> Result<End, String> {
    let options = Kind::of(seed).options;
    let end = live(options, seed, false)?;
    if seed.is_multiple_of(REPEATED) {
        match live(options, seed, false) {
            Ok(again) if again == end => {}
            Ok(again) => return Err(format!("the second run differs: {end:?}, {again:?}")),
            Err(message) => return Err(format!("only the second run fails: {message}")),
        }
    }
    Ok(end)
}

impl Swept {
    /// What none of very many worlds saw, although some must.
    #[must_use]
    pub fn unseen(&self) -> Vec<&'static str> {
        if self.worlds < MUST_SEE_WORLDS {
            return Vec::new();
        }
        let saw = |what: &&str| self.seen.get(what).is_some_and(|&count| count > 0);
        MUST_SEE.into_iter().filter(|what| !saw(what)).collect()
    }

    fn add(&mut self, seed: u64, end: Result<End, String>) {
        let kind = Kind::of(seed).name;
        self.worlds += 1;
        *self.kinds.entry(kind).or_default() += 1;
        match end {
            Ok(end) => {
                self.events += end.events;
                self.time = self.time + end.at;
                add_counts(&mut self.seen, end.seen);
            }
            Err(message) => self.add_failures(1, vec![Failed { seed, kind, message }]),
        }
    }

    fn add_failures(&mut self, count: u64, failures: Vec<Failed>) {
        self.failed += count;
        self.failures.extend(failures);
        self.failures.truncate(FAILURES_MAX);
    }

    fn merge(&mut self, other: Self) {
        self.worlds += other.worlds;
        self.events += other.events;
        self.time = self.time + other.time;
        add_counts(&mut self.kinds, other.kinds);
        add_counts(&mut self.seen, other.seen);
        self.add_failures(other.failed, other.failures);
    }
}

fn add_counts(counts: &mut BTreeMap<&'static str, u64>, more: BTreeMap<&'static str, u64>) {
    for (what, count) in more {
        *counts.entry(what).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_lives_every_seed_once_however_many_threads_share_them() {
        let lived = AtomicU64::new(0);
        let run =
            |threads| Sweep { from: 5, seeds: 40, threads }.run(&AtomicBool::new(false), &lived);
        let (one, three) = (run(1), run(3));
        assert_eq!((one.worlds, three.worlds, lived.load(Ordering::Relaxed)), (40, 40, 80));
        assert_eq!((one.failed, one.seen, one.events), (three.failed, three.seen, three.events));
        assert_eq!(one.kinds.len(), KINDS.len());
    }

    #[test]
    fn a_sweep_that_is_stopped_says_what_it_has_done() {
        let swept = Sweep { from: 0, seeds: 1 << 40, threads: 2 }
            .run(&AtomicBool::new(true), &AtomicU64::new(0));
        assert_eq!((swept.worlds, swept.failed), (0, 0));
        assert!(swept.unseen().is_empty(), "of few worlds nothing is asked");
    }
}
