//! The way into a device: as much at once as it takes to keep it busy, when somebody else wants it,
//! too.
//!
//! What a device has been given it does in an order of its own. So while more than one party wants
//! it, it is given no more than it does in a short while, and the rest waits here, where the order
//! is ours ([`super::super::fair`]). One party alone waits for nobody.

use piped_core::request::Class;
use piped_core::units::Nanos;

use super::super::fair::{Fair, Flow, Party};
use super::super::keys::JobKey;

/// A party that asked within that time wants the device still: one that waits for one answer at a
/// time is away for a moment.
const RECENT: Nanos = Nanos::from_millis(100);

/// What a device is given at once: beside somebody urgent what it does in this time, else what it
/// does in that.
const URGENT_TIME: Nanos = Nanos::from_micros(1_000);
const BULK_TIME: Nanos = Nanos::from_micros(2_000);

/// What a device always has, in bytes: of one that was not seen yet nothing is known.
const INSIDE_MIN: u64 = 128 * 1024;

/// Parties that are remembered.
const SEEN_MAX: usize = 32;

/// How long a device is looked at for its rate, and what part of the best one is forgotten each
/// time: half of it in some seconds. Less inside may make the device slower, and then still less
/// would be let in.
const WINDOW: Nanos = Nanos::from_millis(20);
const AGEING: u64 = 256;

/// The way into one device.
#[derive(Debug, Default)]
pub(super) struct Gate {
    waiting: Fair<JobKey>,
    /// Bytes inside, of the latency class and of bulk.
    inside: [u64; 2],
    /// Parties that asked of late.
    seen: Vec<Seen>,
    rate: Rate,
    depth: Depth,
    /// Some of its work went past the page cache: only that says how fast it is.
    is_direct: bool,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    party: Party,
    class: Class,
    at: Nanos,
}

/// What it does in a while when it has enough to do: the best there was, which counts less as time
/// goes by.
#[derive(Debug, Default)]
struct Rate {
    /// Bytes, in the window at hand.
    bytes: u64,
    time: Nanos,
    /// Since when what is inside is worked on.
    since: Nanos,
    /// Bytes per second at best.
    best: u64,
}

impl Rate {
    /// The rate of a window that is over with this.
    fn add(&mut self, bytes: u32, now: Nanos) -> Option<u64> {
        self.bytes += u64::from(bytes);
        self.time = self.time + now.since(self.since);
        self.since = now;
        if self.time < WINDOW {
            return None;
        }
        let rate = self.in_window();
        self.best = rate.max(self.best - self.best / AGEING);
        (self.bytes, self.time) = (0, Nanos::ZERO);
        Some(rate)
    }

    fn in_window(&self) -> u64 {
        let rate = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.time.0.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// What it does in `time`, in bytes.
    fn within(&self, time: Nanos) -> u64 {
        let rate = if self.best == 0 { self.in_window() } else { self.best };
        let bytes = u128::from(rate) * u128::from(time.0) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// How much more than that a device wants inside: one that is slow to answer and does many at once
/// has nothing to do while answers are on their way. By turns it gets a quarter more, and keeps it
/// if it is so much faster then.
#[derive(Debug)]
struct Depth {
    /// What is let in, in percent of what the rate says.
    percent: u64,
    trial: bool,
    windows: u32,
    /// What it did without and with the quarter, in bytes per second, summed.
    sums: [u64; 2],
}

/// Windows of each, and the bounds.
const TRIAL_WINDOWS: u32 = 4;
const PERCENT_MAX: u64 = 6_400;

impl Default for Depth {
    fn default() -> Self {
        Self { percent: 100, trial: false, windows: 0, sums: [0; 2] }
    }
}

impl Depth {
    fn of(&self, bytes: u64) -> u64 {
        let percent = if self.trial { self.percent * 5 / 4 } else { self.percent };
        bytes.saturating_mul(percent) / 100
    }

    /// A window is over in which there was enough to do.
    fn add(&mut self, rate: u64) {
        self.sums[usize::from(self.trial)] += rate;
        self.windows += 1;
        if self.windows < TRIAL_WINDOWS {
            return;
        }
        self.windows = 0;
        if self.trial {
            let [without, with] = self.sums;
            self.sums = [0; 2];
            self.percent = match with > without + without / 8 {
                true => (self.percent * 5 / 4).min(PERCENT_MAX),
                false => (self.percent - self.percent / 16).max(100),
            };
        }
        self.trial = !self.trial;
    }
}

impl Gate {
    /// How many jobs wait here.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// A piece of work comes. Whether it goes in at once; else it waits.
    pub(super) fn arrive(&mut self, flow: Flow, bytes: u32, job: JobKey, now: Nanos) -> bool {
        self.see(flow, now);
        let class = flow.class;
        // Nobody of its class waits, and it is not the other's turn.
        let first = self.waiting.count(class) == 0
            && match class {
                Class::Latency => self.waiting.next_class(true) == Some(class),
                Class::Bulk => self.waiting.is_empty(),
            };
        if first && self.has_room(class, now) {
            self.waiting.book(class, bytes);
            self.enter(class, bytes, now);
            return true;
        }
        self.waiting.push(flow, bytes, job);
        false
    }

    /// The next of those that wait, if there is room for it.
    pub(super) fn poll(&mut self, now: Nanos) -> Option<JobKey> {
        let class = self.waiting.next_class(false)?;
        if !self.has_room(class, now) {
            return None;
        }
        let (bytes, job) = self.waiting.pop_of(class)?;
        self.enter(class, bytes, now);
        Some(job)
    }

    /// A piece of work is done. `direct`: by the device, and not by the page cache above it.
    pub(super) fn leave(&mut self, class: Class, bytes: u32, direct: bool, now: Nanos) {
        self.inside[class as usize] -= u64::from(bytes);
        self.is_direct |= direct;
        if direct == self.is_direct
            && let Some(rate) = self.rate.add(bytes, now)
            && !self.waiting.is_empty()
        {
            self.depth.add(rate);
        }
    }

    /// Takes out of those that wait who is not wanted any more.
    pub(super) fn remove(&mut self, unwanted: impl FnMut(&JobKey) -> bool) -> Vec<JobKey> {
        self.waiting.remove(unwanted)
    }

    fn enter(&mut self, class: Class, bytes: u32, now: Nanos) {
        if self.inside == [0, 0] {
            self.rate.since = now;
        }
        self.inside[class as usize] += u64::from(bytes);
    }

    fn has_room(&self, class: Class, now: Nanos) -> bool {
        let [urgent, bulk] = self.inside;
        let beside = match class {
            Class::Latency => urgent,
            Class::Bulk => urgent + bulk,
        };
        if beside == 0 {
            return true;
        }
        let mut recent = self.seen.iter().filter(|seen| now.since(seen.at) < RECENT);
        let alone = !self.is_shared(now);
        let hurry = class == Class::Bulk && recent.any(|seen| seen.class == Class::Latency);
        let time = if hurry { URGENT_TIME } else { BULK_TIME };
        alone || beside < self.depth.of(self.rate.within(time).max(INSIDE_MIN))
    }

    /// Whether more than one client, or one in both classes, has wanted the device of late.
    pub(super) fn is_shared(&self, now: Nanos) -> bool {
        self.seen.iter().filter(|seen| now.since(seen.at) < RECENT).count() > 1
    }

    fn see(&mut self, flow: Flow, now: Nanos) {
        let Flow { party, class, .. } = flow;
        let seen = Seen { party, class, at: now };
        let known = self.seen.iter_mut().find(|seen| (seen.party, seen.class) == (party, class));
        if let Some(known) = known {
            known.at = now;
        } else if self.seen.len() < SEEN_MAX {
            self.seen.push(seen);
        } else if let Some(oldest) = self.seen.iter_mut().min_by_key(|seen| seen.at) {
            *oldest = seen;
        }
    }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::SessionId;

    use super::super::super::slab::Key;
    use super::*;

    const PIECE: u32 = 1 << 20;
    /// Of a device that does a piece in half a millisecond.
    const PIECE_TIME: Nanos = Nanos::from_micros(500);

    fn flow(client: u32, class: Class) -> Flow {
        Flow { party: Party::Client(SessionId(client)), class, weight: 1 }
    }

    struct World {
        gate: Gate,
        jobs: u64,
        now: Nanos,
    }

    impl World {
        /// In which the device's rate is known.
        fn new() -> Self {
            let mut world = Self { gate: Gate::default(), jobs: 0, now: Nanos::from_millis(1) };
            for _ in 0..80 {
                assert!(world.arrive(flow(1, Class::Bulk), PIECE), "it is alone");
                world.now = world.now + PIECE_TIME;
                world.gate.leave(Class::Bulk, PIECE, true, world.now);
            }
            world
        }

        fn arrive(&mut self, flow: Flow, bytes: u32) -> bool {
            self.jobs += 1;
            let job = Key::from_bits(self.jobs);
            self.gate.arrive(flow, bytes, job, self.now)
        }
    }

    #[test]
    fn one_alone_waits_for_nobody() {
        let mut world = World::new();
        assert!((0..64).all(|_| world.arrive(flow(1, Class::Bulk), PIECE)));
    }

    #[test]
    fn two_are_given_what_the_device_does_in_a_while_and_the_rest_in_turn() {
        let mut world = World::new();
        let (one, two) = (flow(1, Class::Bulk), flow(2, Class::Bulk));
        assert!(world.arrive(two, PIECE), "nothing is inside");
        let inside = 1 + (0..32).filter(|_| world.arrive(one, PIECE)).count();
        // Two milliseconds of it.
        assert_eq!(inside, 4);
        assert!(!world.arrive(two, PIECE));
        assert_eq!(world.gate.poll(world.now), None);
        world.now = world.now + PIECE_TIME;
        world.gate.leave(Class::Bulk, PIECE, true, world.now);
        assert!(world.gate.poll(world.now).is_some());
        assert_eq!(world.gate.poll(world.now), None);
    }

    #[test]
    fn beside_somebody_urgent_little_bulk_is_inside_and_the_urgent_one_passes() {
        let mut world = World::new();
        let (bulk, urgent) = (flow(1, Class::Bulk), flow(2, Class::Latency));
        assert!(world.arrive(urgent, 4096));
        world.gate.leave(Class::Latency, 4096, true, world.now);
        let inside = (0..32).filter(|_| world.arrive(bulk, PIECE)).count();
        assert_eq!(inside, 2);
        assert!(world.arrive(urgent, 4096), "what waits is bulk");
        // Long after the last that was urgent, bulk has it for itself again.
        world.now = world.now + RECENT;
        assert!(world.gate.poll(world.now).is_some());
    }

    /// A device of so many bytes a second that takes `latency` besides, and clients that ask for
    /// the next piece when they have the last: what each gets in five seconds, after as many, in
    /// bytes.
    fn closed_loops(rate: u64, latency: Nanos, loops: &[(Flow, u32)]) -> Vec<u64> {
        let mut gate = Gate::default();
        let (begin, mut free) = (Nanos::from_millis(1), Nanos::from_millis(1));
        let mut now = begin;
        let mut inside = std::collections::BinaryHeap::new();
        let mut got = vec![0; loops.len()];
        let mut asking: Vec<usize> = (0..loops.len()).collect();
        let (half, end) = (Nanos::from_millis(5_000), Nanos::from_millis(10_000));
        while now.since(begin) < end {
            let mut entered = Vec::new();
            for of in asking.drain(..) {
                let (flow, bytes) = loops[of];
                let job = Key::from_bits(of as u64);
                if gate.arrive(flow, bytes, job, now) {
                    entered.push(job);
                }
            }
            while let Some(job) = gate.poll(now) {
                entered.push(job);
            }
            for job in entered {
                let of = job.to_bits() as usize;
                free = free.max(now) + Nanos(u64::from(loops[of].1) * 1_000_000_000 / rate);
                inside.push(std::cmp::Reverse((free + latency, of)));
            }
            let std::cmp::Reverse((at, of)) = inside.pop().expect("something is inside");
            now = at;
            got[of] += if now.since(begin) < half { 0 } else { u64::from(loops[of].1) };
            gate.leave(loops[of].0.class, loops[of].1, true, now);
            asking.push(of);
        }
        got
    }

    #[test]
    fn nobody_starves_however_much_is_urgent() {
        for (rate, urgent) in [(100_000_000, 6), (400_000_000, 16), (400_000_000, 10)] {
            let mut loops = vec![(flow(100, Class::Bulk), PIECE); 8];
            loops.extend((0..urgent).map(|client| (flow(client, Class::Latency), 64 * 1024)));
            let got = closed_loops(rate, Nanos::from_micros(50), &loops);
            let (bulk, urgent) = got.split_at(8);
            let all = got.iter().sum::<u64>() as f64;
            assert!(all > 0.9 * 5.0 * rate as f64, "{all} bytes");
            let bulk = bulk.iter().sum::<u64>() as f64 / all;
            assert!((0.15..0.35).contains(&bulk), "bulk has {bulk}");
            let least = *urgent.iter().min().expect("some") as f64;
            assert!(least > 0.5 * (all * (1.0 - bulk)) / urgent.len() as f64, "{urgent:?}");
        }
    }

    #[test]
    fn a_device_that_is_slow_to_answer_and_does_many_at_once_is_kept_busy() {
        // Finding out how much it wants takes a while, and longer where answers come in lumps.
        for (millis, least) in
            [(0, 4_000_000_000), (1, 4_000_000_000), (5, 3_500_000_000), (30, 1_000_000_000)]
        {
            let latency = Nanos::from_millis(millis);
            let reads = |client| vec![(flow(client, Class::Bulk), 256 * 1024); 128];
            let loops = [reads(1), reads(2)].concat();
            let got = closed_loops(1_000_000_000, latency, &loops);
            let all = got.iter().sum::<u64>();
            assert!(all > least, "{all} bytes in 5 s at {latency:?}");
        }
    }

    #[test]
    fn who_gives_up_waits_no_longer() {
        let mut world = World::new();
        assert!(world.arrive(flow(2, Class::Latency), 4096));
        while world.arrive(flow(1, Class::Bulk), PIECE) {}
        assert_eq!(world.gate.len(), 1);
        assert_eq!(world.gate.remove(|_| true).len(), 1);
        assert_eq!(world.gate.poll(world.now), None);
    }
}
