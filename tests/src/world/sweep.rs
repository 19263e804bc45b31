//! Very many worlds of all kinds, on all CPUs: `bench simulate`.
//!
//! A seed says everything of its world, its kind too, so any of them can be lived again alone.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use piped_core::units::Nanos;

use super::Options;
use super::runner::{End, Life};
use crate::operators::network;

/// A kind of world.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The name, for people.
    pub name: &'static str,
    life: Life,
    /// How many of so many seeds in a row.
    share: u64,
}

/// All kinds. Most worlds have all faults.
pub const KINDS: [Kind; 11] = [
    Kind { name: "stormy", life: Life::World(Options::stormy), share: 9 },
    Kind { name: "sick disks", life: Life::World(Options::sick_disks), share: 3 },
    Kind { name: "scarce", life: Life::World(Options::scarce), share: 3 },
    Kind { name: "changing limits", life: Life::World(Options::limited), share: 2 },
    Kind { name: "dialled", life: Life::World(Options::dialled), share: 2 },
    Kind { name: "lending", life: Life::World(Options::lending), share: 3 },
    Kind { name: "one-sided", life: Life::World(Options::one_sided), share: 4 },
    Kind { name: "operated", life: Life::World(Options::operated), share: 6 },
    Kind { name: "networks", life: Life::Network(network::Options::wild), share: 2 },
    Kind { name: "key changes", life: Life::Network(network::Options::careful), share: 1 },
    Kind { name: "calm", life: Life::World(Options::calm), share: 1 },
];

/// What must have happened in some of that many worlds or more, else they test nothing.
const MUST_SEE: [&str; 65] = [
    "calls of files",
    "locks",
    "refused for a lock",
    "calls of names",
    "client came anew",
    "client died with calls in flight",
    "connection cut",
    "corrupt frames",
    "device stalled with calls in flight",
    "dial cleared that held something",
    "dial forbidden",
    "dial set with calls in flight",
    "directories listed",
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
    "ended for want of a right",
    "failed with a part done",
    "forbidden connection seen",
    "handshake failed",
    "held buffers",
    "lanes lost",
    "lanes without checksums of payloads",
    "lent when a lane was closed",
    "message received",
    "message received at the end",
    "mispredicted bounces",
    "moved in pieces",
    "names changed",
    "names made stable before a crash",
    "no room for one more offer",
    "node crashed with calls of its peer in flight",
    "nodes can be connected",
    "nodes cannot be connected",
    "not allowed at the end",
    "notifications counted",
    "open at the end",
    "puts before a signal taken while they were under way",
    "retries",
    "right gone while it was opened",
    "scratches moved",
    "sends copied all the same",
    "sends refused",
    "sends without a copy",
    "receive given up",
    "region withdrawn",
    "reload refused",
    "serial plans",
    "session ended by its node",
    "signals taken",
    "stalled messages",
    "turned away at the door",
    "unaligned bounces",
    "waited for a limit",
    "words added to",
    "words not as expected",
    "words swapped",
    "writes before a signal seen while they were under way",
];
/// The number of worlds that [`MUST_SEE`] is for.
const MUST_SEE_WORLDS: u64 = 10_000;

/// One world in so many is lived twice: a run that cannot be repeated cannot be debugged.
const REPEATED: u64 = 64;

/// Failures kept; more would tell nothing new.
const FAILURES_MAX: usize = 20;

/// The seeds to live.
#[derive(Debug, Clone, Copy)]
pub struct Sweep {
    /// The first seed of them.
    pub from: u64,
    /// How many seeds there are.
    pub seeds: u64,
    /// How many at once.
    pub threads: usize,
}

/// A world that broke a promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The seed of the world.
    pub seed: u64,
    /// The kind of the world.
    pub kind: &'static str,
    /// The promise that was broken.
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
    /// The number of simulated events.
    pub events: u64,
    /// The time that passed in the worlds.
    pub time: Nanos,
    /// Worlds that failed, by seed; the first of them if there are very many.
    pub failures: Vec<Failed>,
    /// How many worlds have failed.
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
        Kind::of(seed).life.live(seed, true).map(drop)
    }
}

fn live_seed(seed: u64) -> Result<End, String> {
    let life = Kind::of(seed).life;
    let end = life.live(seed, false)?;
    if seed.is_multiple_of(REPEATED) {
        match life.live(seed, false) {
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
