//! When operators and the network do what.

use piped_core::units::Nanos;
use piped_sim::{EventQueue, Random};

use super::super::Options;
use super::{Act, JUDGED_EVERY};

/// How often nodes look where the others are.
const LOOKED_EVERY: Nanos = Nanos::from_millis(1_000);

/// Longer than nodes may be alone.
const LATE: Nanos = Nanos::from_millis(20_000);

/// All that is going to be done.
pub(super) fn plan(options: Options, random: &mut Random) -> EventQueue<Act> {
    let mut plans = Plans { options, acts: EventQueue::new() };
    plans.plan(random);
    plans.acts
}

/// What is going to be done, as far as it is planned.
struct Plans {
    options: Options,
    acts: EventQueue<Act>,
}

impl Plans {
    fn plan(&mut self, random: &mut Random) {
        let pause = self.options.pause_max.0;
        let mut at = Nanos::ZERO;
        for _ in 0..self.options.acts {
            // As likely in the middle of a handshake as long after it.
            at = at + Nanos(random.length(pause));
            let node = random.below(self.options.nodes as u64) as usize;
            if self.options.careful {
                at = self.plan_key_change(node, at, random);
                continue;
            }
            let other = (node + 1) % self.options.nodes;
            let act = match random.below(12) {
                _ if self.options.moving => self.plan_move(node, at, random),
                0 | 1 => Act::Cut(node, other),
                2 => Act::Crash(node),
                3 => {
                    self.plan_key_change(node, at, random);
                    continue;
                }
                4 => Act::End(node),
                _ => Act::Change(node),
            };
            self.acts.push(at, act);
        }
        if self.options.reconciled {
            at = at + Nanos::from_millis(1);
            for node in 0..self.options.nodes {
                let later = Nanos(random.length(pause));
                self.acts.push(at + later, Act::Reconcile(node));
            }
        }
        let end = at + self.options.pause_max;
        if self.options.moving {
            self.plan_looks(end, random);
        }
        let mut judged = JUDGED_EVERY;
        while judged < end {
            self.acts.push(judged, Act::Judge);
            judged = judged + JUDGED_EVERY;
        }
    }

    /// What happens to a node that moves, and to where it says so.
    fn plan_move(&mut self, node: usize, at: Nanos, random: &mut Random) -> Act {
        match random.below(8) {
            _ if self.options.cluster && random.chance(0.3) => match random.chance(0.5) {
                true => Act::Calendar(node),
                false => Act::Rekey(node, node + 3 * random.below(3) as usize),
            },
            0 => Act::Cut(node, (node + 1) % self.options.nodes),
            1 => {
                let later = Nanos(random.length(self.options.pause_max.0));
                self.acts.push(at + later, Act::CutOff(node, false));
                Act::CutOff(node, true)
            }
            2 | 3 => Act::Lie(node),
            4 => Act::Jump(node),
            _ => Act::Crash(node),
        }
    }

    /// Each node looks and publishes again and again, as daemons do.
    fn plan_looks(&mut self, end: Nanos, random: &mut Random) {
        for node in 0..self.options.nodes {
            let mut at = Nanos(random.length(LOOKED_EVERY.0));
            while at < end {
                self.acts.push(at, Act::Publish(node));
                self.acts.push(at, Act::Look(node));
                at = at + LOOKED_EVERY;
            }
        }
    }

    /// Peers announce the next key, in any order; the node switches; peers forget the old one. When
    /// it is over.
    fn plan_key_change(&mut self, node: usize, from: Nanos, random: &mut Random) -> Nanos {
        let pause = self.options.pause_max.0;
        let key = node + 3 * random.below(3) as usize;
        let nodes = self.options.nodes;
        let peers = || (0..nodes).filter(|other| *other != node);
        let mut announced = from;
        for peer in peers() {
            let at = from + Nanos(random.length(pause));
            self.acts.push(at, Act::Announce { peer, node, key });
            announced = announced.max(at);
        }
        let switched = announced + Nanos(random.length(pause));
        self.acts.push(switched, Act::Switch(node, key));
        let mut over = switched;
        for peer in peers() {
            // Some operators take their time, in which the next key must do.
            let late = if random.chance(0.3) { LATE } else { Nanos::ZERO };
            let at = switched + late + Nanos(random.length(pause));
            self.acts.push(at, Act::Forget { peer, node });
            over = over.max(at);
        }
        over
    }
}
