//! Whether two steps have one server, in worlds where it is known.

mod chance;

use chance::Chance;
use piped_model::estimate::shared::{Servers, Shared};

/// A busy step, and another one that works now and then.
struct World {
    chance: Chance,
    overhead: f64,
    per_byte: f64,
    /// Deviation of every gap, as a part of it.
    noise: f64,
    /// The other's work at a time, and how often.
    work: f64,
    often: f64,
    is_shared: bool,
}

impl World {
    fn any(seed: u64, is_shared: bool) -> Self {
        let mut chance = Chance::new(seed);
        let overhead = chance.log_between(2e-6, 500e-6);
        let per_byte = chance.log_between(0.05e-9, 5e-9);
        let work = overhead * chance.log_between(0.3, 3.0);
        let (noise, often) = (0.3 * chance.unit(), 0.1 + 0.8 * chance.unit());
        Self { chance, overhead, per_byte, noise, work, often, is_shared }
    }

    /// The other comes in bursts, as requests do.
    fn pass(&mut self, shared: &mut Shared, gaps: u32) {
        let mut busy = false;
        for gap in 0..gaps {
            if gap % 8 == 0 {
                busy = self.chance.unit() < self.often;
            }
            let bytes = self.chance.between(16, 65) << 10;
            let own = self.overhead + bytes as f64 * self.per_byte;
            let own = own * (1.0 + self.noise * self.chance.normal()).max(0.1);
            let work = if busy { self.work * (0.5 + self.chance.unit()) } else { 0.0 };
            let delay = if self.is_shared { work } else { 0.0 };
            shared.observe(bytes, own + delay, work);
        }
    }
}

#[test]
fn it_is_right_both_ways_or_says_nothing() {
    for is_shared in [true, false] {
        let (right, wrong) = match is_shared {
            true => (Servers::Shared, Servers::Separate),
            false => (Servers::Separate, Servers::Shared),
        };
        let mut decided = 0;
        for seed in 0..500 {
            let mut world = World::any(seed, is_shared);
            let mut shared = Shared::default();
            world.pass(&mut shared, 4096);
            assert_ne!(shared.servers(), wrong, "seed {seed}: {:?}", shared.slope());
            decided += u32::from(shared.servers() == right);
        }
        // In the others too little varies beside the noise.
        assert!(decided > 400, "{decided} of 500 decided");
    }
}

#[test]
fn it_follows_when_the_world_changes() {
    for seed in 0..50 {
        let mut world = World::any(seed, true);
        (world.noise, world.often, world.work) = (0.05, 0.5, world.overhead * 2.0);
        world.per_byte = world.overhead * 1e-6;
        let mut shared = Shared::default();
        world.pass(&mut shared, 4096);
        assert_eq!(shared.servers(), Servers::Shared, "seed {seed}");
        world.is_shared = false;
        world.pass(&mut shared, 32 * 1024);
        assert_eq!(shared.servers(), Servers::Separate, "seed {seed}: {:?}", shared.slope());
    }
}

#[test]
fn steps_that_always_come_together_decide_nothing() {
    let mut shared = Shared::default();
    let mut chance = Chance::new(1);
    for _ in 0..32_000 {
        let bytes = chance.between(16, 65) << 10;
        let work = bytes as f64 * 0.1e-9;
        shared.observe(bytes, 50e-6 * (1.0 + 0.1 * chance.normal()).max(0.1) + work, work);
    }
    assert_eq!((shared.servers(), shared.slope()), (Servers::Unknown, None));
}

/// What a thread does while the wire goes on by itself is in short gaps, and a long one follows:
/// together they take what the wire takes.
#[test]
fn what_is_seen_together_does_not_look_like_one_server() {
    let mut chance = Chance::new(7);
    let mut shared = Shared::default();
    let mut now = 0.0_f64;
    let mut seen = 0.0_f64;
    let mut late = false;
    for frame in 1..=32_000_u64 {
        let arrives = frame as f64 * 100e-6;
        if frame % 64 == 0 {
            late = chance.unit() < 0.5;
        }
        let work = if late { 60e-6 * chance.unit() * 2.0 } else { 5e-6 };
        // The thread sleeps until four are there.
        let batch = frame.div_ceil(4) as f64 * 400e-6;
        let at = now.max(arrives).max(batch) + work;
        shared.observe(65_536, at - seen, work);
        (now, seen) = (at, at);
    }
    assert_eq!(shared.servers(), Servers::Separate, "{:?}", shared.slope());
}

#[test]
fn absurd_gaps_change_nothing() {
    let mut world = World::any(3, true);
    let mut shared = Shared::default();
    world.pass(&mut shared, 4096);
    let before = (shared.servers(), shared.slope());
    for bad in [f64::NAN, -1.0, f64::INFINITY, 1e9] {
        for _ in 0..1000 {
            shared.observe(65_536, bad, 0.0);
            shared.observe(65_536, 1e-6, bad);
        }
    }
    assert_eq!((shared.servers(), shared.slope()), before);
}

#[test]
fn work_that_comes_with_something_slower_is_no_server() {
    // No work takes twelve times its time; what was found of other times does not hold then.
    let mut shared = Shared::default();
    for (times, expected) in [(1.0, Servers::Shared), (12.0, Servers::Unknown)] {
        for gap in 0..4096_u64 {
            let work = if gap % 37 < 18 { 20e-6 } else { 0.0 };
            shared.observe(65_536, 100e-6 + times * work, work);
        }
        assert_eq!(shared.servers(), expected, "{times}");
    }
}
