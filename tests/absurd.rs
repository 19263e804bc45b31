//! Absurd samples on the whole engine: a disk that stalls, clocks that jump, go back or tick.
//! Whatever happened, a few ordinary transfers later plans, promises and times are those of a twin
//! of the world in which it did not.
//!
//! `PIPED_SIM_SEED=N` lives the worlds of one seed and shows what each event left behind.
#![forbid(unsafe_code)]

use piped_core::request::Class;
use piped_core::status::Status;
use piped_core::units::Nanos;
use system_tests::world::{Call, ClockStep, Options, World, caught};

const SEEDS: std::ops::Range<u64> = 0..8;
const LONGEST: u64 = 1 << 20;
const STALL: Nanos = Nanos::from_millis(10_000);
const HOURS: Nanos = Nanos::from_millis(5 * 3_600_000);

/// Transfers of each kind before the event.
const BEFORE: usize = 120;
/// After it; the first half is what it may take to get over it.
const AFTER: usize = 64;
/// The same where nothing was known before: so long it takes to try everything that is worth it.
const LONG_AFTER: usize = 240;

/// How much worse than the worst of the undisturbed lives it may be: in what the later transfers
/// take, in what all of them take, and in how far what is promised is off what they take.
const SLOWER: f64 = 1.3;
const PROMISE_OFF: f64 = 2.0;

/// A life without anything to tell, to be compared with.
struct Life {
    world: World,
    files: [usize; 2],
}

/// What the transfers of a kind did.
#[derive(Debug, Default, Clone)]
struct Kind {
    took: Vec<f64>,
    promised: Vec<f64>,
    /// The first size of each level, and the depth.
    plans: Vec<(Vec<u64>, u32)>,
}

const KINDS: [&str; 3] = ["local read", "read", "write"];

impl Life {
    fn new(seed: u64) -> Self {
        let deadline = Nanos::from_millis(100_000);
        let mut world =
            World::new(seed, Options { longest: LONGEST, deadline, ..Options::scripted() });
        let files = [world.file(0, 0), world.file(1, 0)];
        for file in files {
            world.wait_open(0, file);
            // All from the disk: what two ways take is no plan's affair.
            let inode = world.inode(file);
            world.kernel.set_cached(inode, false);
        }
        Self { world, files }
    }

    /// A read of a file here, a read of the peer's, and a write there.
    fn calls(&self) -> [Call; KINDS.len()] {
        let [local, remote] = self.files;
        let length = LONGEST / 2;
        let own = self.world.area(remote, Some(0)).start.next_multiple_of(4096);
        [
            Call::Read { object: local, offset: 0, length },
            Call::Read { object: remote, offset: 0, length },
            Call::Write { object: remote, offset: own, length: length / 2, durable: false },
        ]
    }

    /// All of them at once, with something that happens in their middle. How they end is not what
    /// is looked at.
    fn disturb(&mut self, happens: impl FnOnce(&mut World)) {
        // A device that ends nothing may refuse a peer's write.
        self.world.options.stalls = 1;
        let calls = self.calls().map(|call| self.world.call(0, call, Class::Bulk, None));
        self.world.run_for(Nanos::from_micros(300));
        happens(&mut self.world);
        for call in calls {
            self.world.wait(0, call);
        }
        // What a lane of which a clock that jumped took leave, too, needs time to come back.
        self.world.run_for(STALL);
    }

    /// Ordinary transfers, one after the other.
    fn ordinary(&mut self, count: usize) -> [Kind; KINDS.len()] {
        let mut kinds: [Kind; KINDS.len()] = Default::default();
        for _ in 0..count {
            let all = self.calls().into_iter().zip(kinds.iter_mut().zip([0, 1, 0]));
            for (call, (kind, planner)) in all {
                let number = self.world.call(0, call, Class::Bulk, None);
                let end = self.world.wait(0, number);
                assert_eq!(end.status, Status::Ok);
                kind.took.push(end.took.seconds());
                let told = self.world.shard(planner).explain(None).expect("it was planned here");
                kind.promised.push(told.predicted_seconds);
                let firsts = told.levels.iter().map(|level| level.sizes[0]).collect();
                kind.plans.push((firsts, told.depth));
            }
        }
        kinds
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

impl Kind {
    fn all(&self) -> f64 {
        self.took.iter().sum()
    }

    fn later(&self) -> f64 {
        median(&self.took[self.took.len() / 2..])
    }

    /// How many times what is promised of the later ones is what they take, or the other way round.
    fn promise_off(&self) -> f64 {
        let ratio = median(&self.promised[self.promised.len() / 2..]) / self.later();
        ratio.max(1.0 / ratio)
    }
}

fn judge(what: &str, found: &Kind, twins: &[[Kind; KINDS.len()]], place: usize, show: bool) {
    let worst =
        |of: fn(&Kind) -> f64| twins.iter().map(|kinds| of(&kinds[place])).fold(0.0, f64::max);
    let ratio = |of: fn(&Kind) -> f64| of(found) / worst(of);
    let (all, later, promise) = (ratio(Kind::all), ratio(Kind::later), ratio(Kind::promise_off));
    if show {
        eprintln!(
            "{what}: all {all:.3}, later {later:.3}, promise {promise:.3} {:?}",
            found.plans.last()
        );
    }
    let sane = |(firsts, depth): &(Vec<u64>, u32)| {
        firsts.iter().all(|first| (1024..=LONGEST).contains(first)) && (1..=32).contains(depth)
    };
    assert!(found.plans.iter().all(sane), "{what}: {:?}", found.plans);
    assert!(later <= SLOWER, "{what}: {later} times the slowest twin's");
    assert!(all <= SLOWER, "{what}: all of them {all} times the slowest twin's");
    assert!(promise <= PROMISE_OFF, "{what}: promises are off {promise} times the worst twin's");
}

/// Lives worlds of each seed with an event, and some without any that begin a few transfers apart:
/// which plans are tried when is chance.
fn lives(before: usize, after: usize, events: &[&dyn Fn(&mut Life)]) {
    let one = std::env::var("PIPED_SIM_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in one.map_or(SEEDS, |seed| seed..seed + 1) {
        let failure = caught(|| {
            let twins = [0, 1, 3].map(|more| {
                let mut life = Life::new(seed);
                life.ordinary(before + more);
                life.ordinary(after)
            });
            for event in events {
                let mut life = Life::new(seed);
                life.ordinary(before);
                event(&mut life);
                let found = life.ordinary(after);
                for (place, name) in KINDS.into_iter().enumerate() {
                    judge(name, &found[place], &twins, place, one.is_some());
                }
            }
        });
        if let Some(message) = failure {
            panic!("seed {seed}: {message}");
        }
    }
}

fn stall(world: &mut World) {
    for node in [0, 1] {
        let device = world.device(node);
        world.kernel.block_device(device, STALL);
    }
}

#[test]
fn a_disk_that_stalls_is_as_fast_as_before() {
    lives(
        BEFORE,
        AFTER,
        &[&|life| {
            life.disturb(stall);
            // Once more, before anything else: two samples in a row are still no change.
            life.disturb(stall);
            // And with nothing under way.
            stall(&mut life.world);
            life.disturb(|_| {});
        }],
    );
}

#[test]
fn a_disk_that_stalls_when_nothing_is_known_of_it_is_learned_all_the_same() {
    lives(0, LONG_AFTER, &[&|life| life.disturb(stall)]);
}

#[test]
fn a_disk_that_stalls_whatever_size_is_tried_is_as_fast_as_before() {
    // Each stall meets another transfer, and so sooner or later each of the sizes that are tried.
    lives(
        BEFORE,
        AFTER,
        &[&|life| {
            for _ in 0..16 {
                life.disturb(stall);
                life.ordinary(3);
            }
        }],
    );
}

#[test]
fn a_clock_that_jumps_by_hours_leaves_plans_as_they_were() {
    let jump = |node| {
        move |life: &mut Life| {
            life.disturb(|world| world.put_clock(node, ClockStep::Forward(HOURS)))
        }
    };
    lives(BEFORE, AFTER, &[&jump(0), &jump(1)]);
}

#[test]
fn a_clock_that_goes_back_leaves_plans_as_they_were() {
    let back = |node| {
        move |life: &mut Life| {
            life.world.put_clock(node, ClockStep::Forward(HOURS));
            life.ordinary(4);
            // By little, so that it shows the same again and again, and by much.
            for by in [1_000, 50_000, 300_000, 300_000, 1_000_000, HOURS.0 / 2] {
                life.disturb(|world| world.put_clock(node, ClockStep::Back(Nanos(by))));
                life.ordinary(3);
            }
        }
    };
    lives(BEFORE, AFTER, &[&back(0), &back(1)]);
}

#[test]
fn a_clock_that_ticks_for_a_while_leaves_plans_as_they_were() {
    // Everything takes no time, or ten milliseconds.
    let ticks = |node| {
        move |life: &mut Life| {
            life.disturb(|world| world.put_clock(node, ClockStep::Tick(Nanos::from_millis(10))));
            life.ordinary(8);
            life.disturb(|world| world.put_clock(node, ClockStep::Tick(Nanos(1))));
        }
    };
    lives(BEFORE, AFTER, &[&ticks(0), &ticks(1)]);
}
