//! How fast a bulk lane may hand bytes to the wire, so that what is urgent does not wait behind
//! them.
//!
//! A TCP socket that is let do as it likes fills whatever queue is below it: the one of the network
//! device here, or that of the slowest link on the way. Frames of the latency lane pass through the
//! same queue, and no order of ours helps them there. So the bulk lane is paced to the rate that
//! the wire has been seen to take, which the kernel also takes as the measure of what it may have
//! in its device's queue (about a millisecond of it).
//!
//! What the wire takes is what was acknowledged while the socket had more than it could send. It is
//! offered a little more than that as long as the round trip says that the queue is short, so a
//! wire that has become faster is found within some tens of milliseconds; and a little less while
//! the queue is long, until it is drained. A queue that stays although we give way is somebody
//! else's: then we do not give way for a while, or he would have it all.

use piped_core::io::WireState;
use piped_core::units::Nanos;

/// Samples that the rate is the best of: as many as a slow one may be a hiccup.
const SAMPLES: usize = 8;

/// How long a socket must have had enough to send for a sample. Acknowledgements come in lumps of
/// 64 KiB.
const SAMPLE_TIME: Nanos = Nanos::from_millis(4);

/// Looks at the kernel's books are so far apart, or are two different windows.
const LOOK_TIME: Nanos = Nanos::from_millis(1);
const LOOK_TIME_MAX: Nanos = Nanos::from_millis(500);

/// The queue that is aimed at, as time: half of the bound for what is urgent.
const QUEUE_SHORT: Nanos = Nanos::from_micros(500);
const QUEUE_LONG: Nanos = Nanos::from_micros(1_000);

/// What the pacer offers, in percent of the wire's rate: to a short queue, to one that is neither
/// short nor long, and to one that is long.
const PROBE: u64 = 125;
const HOLD: u64 = 105;
const DRAIN: u64 = 90;

/// So many samples in a row it gives way to a long queue, and for so many it then does not.
const PATIENCE: u32 = 16;
const PAUSE: u32 = 256;

/// Without a sample for so long, nothing is known of the wire.
const FORGET_TIME: Nanos = Nanos::from_millis(2_000);

/// At this rate and above, what the kernel queues by itself is short enough, and pacing costs
/// timers.
const RATE_MAX: u64 = 2_500_000_000;

/// No wire is slower: a rate below would be that of a peer that does not read.
const RATE_MIN: u64 = 1_000_000;

/// A rate that differs by less than a part of this is the same.
const SAME: u64 = 50;

/// Measures how fast one lane's wire takes bytes, and sets the rate that the lane may offer.
#[derive(Debug, Default)]
pub(in crate::shard) struct Pacer {
    /// Where the window at hand began.
    window: Option<Look>,
    looked: Nanos,
    sampled: Nanos,
    /// Bytes per second, the newest last in turn.
    samples: [u64; SAMPLES],
    next: usize,
    /// The shortest round trip there was.
    shortest: Option<Nanos>,
    /// Samples for which it has given way, or (from [`PATIENCE`] on) has not.
    drains: u32,
    /// How long the queue was when it began to.
    drained_from: Nanos,
    set: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    at: Nanos,
    state: WireState,
}

impl Pacer {
    /// Whether it is time to look at the kernel's books.
    pub(in crate::shard) fn is_due(&self, now: Nanos) -> bool {
        now.since(self.looked) >= LOOK_TIME
    }

    /// The rate that the lane has, in bytes per second; none if it is not paced.
    pub(in crate::shard) fn rate(&self) -> Option<u64> {
        self.set
    }

    /// Books what the kernel says after a send. `Some` is a rate to be set from now on, or that
    /// there is none. `backlogged`: the lane has more to send at once, and had since the last look.
    pub(in crate::shard) fn look(
        &mut self,
        state: WireState,
        backlogged: bool,
        now: Nanos,
    ) -> Option<Option<u64>> {
        let since_last = now.since(self.looked);
        self.looked = now;
        let shortest =
            self.shortest.map_or(state.round_trip_min, |it| it.min(state.round_trip_min));
        self.shortest = Some(shortest);
        let look = Look { at: now, state };
        let busy = backlogged && state.unsent > 0;
        if !busy || since_last > LOOK_TIME_MAX {
            self.window = busy.then_some(look);
            return self.forget(now);
        }
        let Some(start) = self.window else {
            self.window = Some(look);
            return None;
        };
        let time = now.since(start.at);
        if time < SAMPLE_TIME {
            return None;
        }
        self.window = Some(look);
        let bytes = state.acknowledged.saturating_sub(start.state.acknowledged);
        let rate = u128::from(bytes) * 1_000_000_000 / u128::from(time.0.max(1));
        self.sample(u64::try_from(rate).unwrap_or(u64::MAX), state.round_trip.since(shortest), now)
    }

    fn forget(&mut self, now: Nanos) -> Option<Option<u64>> {
        if self.set.is_none() || now.since(self.sampled) < FORGET_TIME {
            return None;
        }
        self.samples = [0; SAMPLES];
        self.set = None;
        Some(None)
    }

    fn sample(&mut self, rate: u64, queue: Nanos, now: Nanos) -> Option<Option<u64>> {
        self.sampled = now;
        self.samples[self.next] = rate;
        self.next = (self.next + 1) % SAMPLES;
        let percent = self.percent(queue);
        let best = self.samples.into_iter().max().unwrap_or(rate).max(RATE_MIN);
        let wanted = Some(best.saturating_mul(percent) / 100).filter(|&rate| rate < RATE_MAX);
        let same = match (wanted, self.set) {
            (None, None) => true,
            (Some(new), Some(old)) => new.abs_diff(old) * SAME <= old,
            _ => false,
        };
        if same {
            return None;
        }
        self.set = wanted;
        Some(wanted)
    }

    /// What it may offer, by how long the queue is.
    fn percent(&mut self, queue: Nanos) -> u64 {
        if self.drains >= PATIENCE {
            self.drains = (self.drains + 1) % (PATIENCE + PAUSE);
            return HOLD;
        }
        if queue < QUEUE_LONG {
            self.drains = 0;
            return if queue < QUEUE_SHORT { PROBE } else { HOLD };
        }
        // A quarter less is enough to go on.
        if self.drains == 0 || queue.0 < self.drained_from.0 / 4 * 3 {
            self.drains = 0;
            self.drained_from = queue;
        }
        self.drains += 1;
        DRAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wire with a queue in front of it, fed at the pacer's rate, or at once what a socket may
    /// have under way.
    struct Wire {
        rate: u64,
        queue: f64,
        /// Bytes per second of somebody who keeps the queue as long as that, in bytes.
        other: f64,
        acknowledged: f64,
        now: Nanos,
        pacer: Pacer,
        longest: f64,
    }

    const STEP: Nanos = Nanos::from_micros(100);
    /// What a socket without a pace has in the queue.
    const WINDOW: f64 = 800_000.0;
    const ROUND_TRIP: Nanos = Nanos::from_micros(50);

    impl Wire {
        fn new(rate: u64) -> Self {
            let pacer = Pacer::default();
            let now = Nanos::from_millis(1);
            Self { rate, queue: 0.0, other: 0.0, acknowledged: 0.0, now, pacer, longest: 0.0 }
        }

        /// So long with enough to send; what got through, in bytes per second.
        fn run(&mut self, time: Nanos) -> f64 {
            let (begun, before) = (self.now, self.acknowledged);
            self.longest = 0.0;
            while self.now.since(begun) < time {
                let step = STEP.0 as f64 / 1e9;
                let room = self.rate as f64 * step;
                let offered = match self.pacer.rate() {
                    Some(rate) => rate as f64 * step,
                    None => (WINDOW - self.queue).max(room),
                };
                self.queue = (self.queue + offered).min(WINDOW);
                // Of what leaves, a part is ours.
                let ours = self.queue / (self.queue + self.other).max(1.0);
                let sent = self.queue.min(room * ours);
                self.queue -= sent;
                self.acknowledged += sent;
                self.now = self.now + STEP;
                let wait = (self.queue + self.other) / self.rate as f64;
                self.longest = self.longest.max(wait);
                if self.pacer.is_due(self.now) {
                    let state = WireState {
                        round_trip: ROUND_TRIP + Nanos((wait * 1e9) as u64),
                        round_trip_min: ROUND_TRIP,
                        acknowledged: self.acknowledged as u64,
                        unsent: 100_000,
                    };
                    self.pacer.look(state, true, self.now);
                }
            }
            (self.acknowledged - before) / (self.now.since(begun).0 as f64 / 1e9)
        }
    }

    #[test]
    fn the_queue_becomes_short_and_the_wire_stays_busy() {
        let mut wire = Wire::new(125_000_000);
        wire.run(Nanos::from_millis(100));
        let rate = wire.run(Nanos::from_millis(1_000));
        assert!(rate > 0.97 * 125e6, "{rate}");
        assert!(wire.longest < 2.5e-3, "{} s", wire.longest);
    }

    #[test]
    fn a_wire_that_becomes_faster_or_slower_is_followed() {
        let mut wire = Wire::new(125_000_000);
        wire.run(Nanos::from_millis(500));
        wire.rate = 1_250_000_000;
        wire.run(Nanos::from_millis(100));
        let rate = wire.run(Nanos::from_millis(200));
        assert!(rate > 0.9 * 1.25e9, "{rate}");
        wire.rate = 125_000_000;
        wire.run(Nanos::from_millis(200));
        let rate = wire.run(Nanos::from_millis(500));
        assert!(rate > 0.95 * 125e6 && wire.longest < 3e-3, "{rate} {}", wire.longest);
    }

    #[test]
    fn somebody_elses_queue_does_not_starve_it() {
        let mut wire = Wire::new(125_000_000);
        wire.run(Nanos::from_millis(500));
        // Twice as much as ours is to be, all the time.
        wire.other = 250_000.0;
        let rate = wire.run(Nanos::from_millis(5_000));
        assert!(rate > 0.1 * 125e6, "{rate}");
        wire.other = 0.0;
        wire.run(Nanos::from_millis(100));
        let rate = wire.run(Nanos::from_millis(500));
        assert!(rate > 0.9 * 125e6, "{rate}");
    }

    #[test]
    fn one_request_at_a_time_says_nothing_of_the_wire() {
        let mut wire = Wire::new(1_250_000_000);
        for _ in 0..1000 {
            // A MiB in two sends, and a while until the next is asked for.
            for backlogged in [true, false] {
                wire.acknowledged += 524_288.0;
                wire.now = wire.now + Nanos::from_micros(420);
                let state = WireState {
                    round_trip: ROUND_TRIP,
                    round_trip_min: ROUND_TRIP,
                    acknowledged: wire.acknowledged as u64,
                    unsent: 131_072,
                };
                wire.pacer.look(state, backlogged, wire.now);
            }
            wire.now = wire.now + Nanos::from_micros(1_000);
        }
        assert_eq!(wire.pacer.rate(), None);
    }

    #[test]
    fn a_fast_wire_is_not_paced() {
        let mut wire = Wire::new(5_000_000_000);
        wire.run(Nanos::from_millis(200));
        assert_eq!(wire.pacer.rate(), None);
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut wire = Wire::new(125_000_000);
        wire.run(Nanos::from_millis(200));
        assert!(wire.pacer.rate().is_some());
        let idle = WireState {
            round_trip: ROUND_TRIP,
            round_trip_min: ROUND_TRIP,
            acknowledged: wire.acknowledged as u64,
            unsent: 0,
        };
        let soon = wire.now + Nanos::from_millis(100);
        assert_eq!(wire.pacer.look(idle, false, soon), None);
        assert_eq!(wire.pacer.look(idle, false, soon + FORGET_TIME), Some(None));
        assert_eq!(wire.pacer.rate(), None);
    }
}
