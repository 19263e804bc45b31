//! Some nodes in one kernel: their control threads, their shards, and the turns of all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use piped_core::io::Io as _;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Output};
use piped_engine::relay::Relay;
use piped_engine::shard::Shard;
use piped_planner::solve::solve;
use piped_sim::{EventQueue, NodeId, Random, SimKernel};

use crate::controls::{Controls, Setup};

/// Turns in a row without time passing that no sound world needs.
const TURNS_AT_ONCE_MAX: u32 = 100_000;

/// What a shard tells its clients: the node, the shard of it, and what.
pub type Told = (usize, usize, Output);

/// The nodes of a world.
#[derive(Debug)]
pub struct Nodes {
    /// The kernel of all nodes.
    pub kernel: SimKernel,
    /// The control threads of all nodes.
    pub controls: Controls,
    /// The shards of each node; none while its daemon is down, or where somebody plays them.
    shards: Vec<Vec<Shard>>,
    /// What is known of when each of them wants a turn.
    turns: Turns,
    /// How often each node has started: what its shards told each other before is void.
    lives: Vec<u32>,
    /// What shards tell each other, on its way.
    relays: EventQueue<Passed>,
    /// When the last of these arrives, of each node from one of its shards at another.
    arrivals: BTreeMap<(usize, u16, u16), Nanos>,
    random: Random,
    /// The longest that a relay is under way.
    relay_max: Nanos,
    /// Commands for shards that somebody plays.
    elsewhere: VecDeque<(usize, usize, Command)>,
    turns_at_once: u32,
}

/// A relay on its way: of which life of which node, from which shard to which.
#[derive(Debug)]
struct Passed {
    node: usize,
    life: u32,
    from: u16,
    to: u16,
    relay: Relay,
}

/// When a shard wants a turn, if nothing ends for it before.
#[derive(Debug, Clone, Copy)]
struct Turn {
    /// Something was fed to the shard, or its last turn did something.
    now: bool,
    /// The time of the next turn, as the shard's own clock shows it.
    at: Option<Nanos>,
    /// The time at which it is looked at again, as the world has it.
    look: Option<Nanos>,
}

/// The turns of all shards, by node and shard. Most of many nodes are idle, so a step looks only at
/// those for which something came or whose time has come.
#[derive(Debug, Default)]
struct Turns {
    of: Vec<Vec<Turn>>,
    /// Whom a name in the kernel is.
    names: BTreeMap<NodeId, (usize, usize)>,
    /// Shards to look at in this step or the next.
    awake: BTreeSet<(usize, usize)>,
    /// When to look at others.
    looks: BTreeSet<(Nanos, usize, usize)>,
}

impl Turns {
    /// So many shards of a node begin, or end if there are none.
    fn begin(&mut self, node: usize, shards: usize) {
        for shard in 0..self.of.get(node).map_or(0, Vec::len) {
            self.look_at((node, shard), None);
            self.awake.remove(&(node, shard));
        }
        self.of.resize_with(self.of.len().max(node + 1), Vec::new);
        self.of[node] = vec![Turn { now: true, at: None, look: None }; shards];
        self.awake.extend((0..shards).map(|shard| (node, shard)));
    }

    /// Something was fed to a shard.
    fn feed(&mut self, (node, shard): (usize, usize)) {
        self.of[node][shard].now = true;
        self.awake.insert((node, shard));
    }

    /// When to look at a shard again, in the world's time.
    fn look_at(&mut self, (node, shard): (usize, usize), at: Option<Nanos>) {
        let last = std::mem::replace(&mut self.of[node][shard].look, at);
        if last != at {
            last.map(|last| self.looks.remove(&(last, node, shard)));
            at.map(|at| self.looks.insert((at, node, shard)));
        }
    }

    /// The next shard after another one to look at now: something ended for it, was fed to it, or
    /// its time has come.
    fn next(
        &mut self,
        after: Option<(usize, usize)>,
        kernel: &mut SimKernel,
    ) -> Option<(usize, usize)> {
        let Self { of, names, awake, .. } = self;
        let runs = |(node, shard): &&(usize, usize)| of[*node].len() > *shard;
        awake.extend(kernel.take_stirred().filter_map(|id| names.get(&id).filter(runs)));
        while let Some(&(at, node, shard)) = self.looks.first()
            && at <= kernel.now()
        {
            self.look_at((node, shard), None);
            self.awake.insert((node, shard));
        }
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.awake.range((from, Bound::Unbounded)).next().copied();
        next.inspect(|next| {
            self.awake.remove(next);
        })
    }
}

impl Nodes {
    /// A world without nodes yet.
    #[must_use]
    pub fn new(kernel: SimKernel, controls: Controls) -> Self {
        Self {
            kernel,
            controls,
            shards: Vec::new(),
            turns: Turns::default(),
            lives: Vec::new(),
            relays: EventQueue::new(),
            arrivals: BTreeMap::new(),
            random: Random::new(0),
            relay_max: Nanos::ZERO,
            elsewhere: VecDeque::new(),
            turns_at_once: 0,
        }
    }

    /// A node whose daemon runs from now on, with these shards. Without any, the caller plays them:
    /// see [`Self::poll_elsewhere`].
    ///
    /// # Errors
    /// A daemon would not start with that configuration.
    pub fn add(&mut self, setup: Setup, shards: Vec<Shard>) -> Result<usize, String> {
        let node = self.shards.len();
        self.turns.begin(node, shards.len());
        let ids = setup.shards.iter().enumerate();
        self.turns.names.extend(ids.map(|(shard, id)| (*id, (node, shard))));
        self.shards.push(among(shards));
        self.lives.push(0);
        self.controls.add(setup, &self.kernel)
    }

    /// The daemon of a node starts again, with its files as they are.
    pub fn start(&mut self, node: usize, shards: Vec<Shard>) {
        for id in self.controls.nodes[node].setup.shards.clone() {
            self.kernel.restart(id);
        }
        self.controls.start(node, &self.kernel);
        self.turns.begin(node, shards.len());
        self.shards[node] = among(shards);
        self.lives[node] += 1;
    }

    /// From now on, what shards tell each other takes up to so long, as a seed says.
    pub fn delay_relays(&mut self, seed: u64, longest: Nanos) {
        (self.random, self.relay_max) = (Random::new(seed), longest);
    }

    /// Whether shards of a node have told each other something that has not arrived.
    #[must_use]
    pub fn relays_under_way(&self) -> bool {
        self.relays.next_at().is_some()
    }

    /// The daemon of a node is gone.
    pub fn stop(&mut self, node: usize) {
        self.controls.stop(node);
        self.shards[node].clear();
        self.turns.begin(node, 0);
    }

    /// The shards of a node that runs.
    #[must_use]
    pub fn shards(&self, node: usize) -> &[Shard] {
        &self.shards[node]
    }

    /// Calls a shard with its driver, if the node runs.
    pub fn with<T>(
        &mut self,
        node: usize,
        shard: usize,
        call: impl FnOnce(&mut Shard, &mut piped_sim::SimIo<'_>) -> T,
    ) -> Option<T> {
        let id = self.controls.nodes[node].setup.shards[shard];
        let place = self.shards[node].get_mut(shard)?;
        self.turns.feed((node, shard));
        Some(call(place, &mut self.kernel.io(id)))
    }

    /// What a shard is told that somebody plays: of which node, which of its shards, and what. Its
    /// answers go to [`Controls::handle_event`].
    pub fn poll_elsewhere(&mut self) -> Option<(usize, usize, Command)> {
        self.elsewhere.pop_front()
    }

    /// Tells a shard something at once.
    pub fn command(&mut self, node: usize, shard: usize, command: Command) {
        let now = self.kernel.now();
        self.kernel.note(|| format!("{now}: {node}.{shard} <- {command:?}"));
        if self.shards[node].is_empty() && self.controls.runs(node) {
            return self.elsewhere.push_back((node, shard, command));
        }
        self.with(node, shard, |shard, io| shard.handle_command(command, io));
    }

    /// Gives everybody a turn, or lets time pass. False when `until` is reached.
    ///
    /// # Panics
    /// If the nodes work for ever without time passing.
    pub fn step(&mut self, until: Nanos, told: &mut Vec<Told>) -> bool {
        let now = self.kernel.now();
        self.controls.advance(&mut self.kernel);
        let mut worked = false;
        while let Some((node, shard, command)) = self.controls.poll_command() {
            worked = true;
            self.command(node, shard, command);
        }
        worked |= self.deliver_relays(now);
        let mut last = None;
        while let Some(next) = self.turns.next(last, &mut self.kernel) {
            worked |= self.turn(next, told);
            last = Some(next);
        }
        let next = self.turns.looks.first().map(|(at, ..)| *at);
        let relays = self.relays.next_at();
        let all = [next, relays, self.controls.next_at(), self.kernel.next_event()];
        let at = all.into_iter().flatten().min().map(|at| at.max(now));
        worked |= at == Some(now) || !self.turns.awake.is_empty();
        self.turns_at_once = if worked { self.turns_at_once + 1 } else { 0 };
        assert!(self.turns_at_once < TURNS_AT_ONCE_MAX, "the nodes spin at {now}");
        match at {
            _ if worked => self.kernel.advance(now),
            Some(at) if at <= until => self.kernel.advance(at),
            _ => {
                self.kernel.advance(until);
                return false;
            }
        }
        true
    }

    /// One turn of a shard, if it wants one now. Returns whether it did something.
    fn turn(&mut self, (node, shard): (usize, usize), told: &mut Vec<Told>) -> bool {
        let id = self.controls.nodes[node].setup.shards[shard];
        let (now, busy) = (self.kernel.now(), self.kernel.busy_until(id));
        if busy > now {
            self.turns.look_at((node, shard), Some(busy));
            return false;
        }
        let last = self.turns.of[node][shard];
        let at = last.at.map(|at| self.kernel.world_time(id, at));
        if !last.now && !self.kernel.has_done(id) && at.is_none_or(|at| at > now) {
            self.turns.look_at((node, shard), at);
            return false;
        }
        self.turns.of[node][shard].now = false;
        let mut worked = false;
        let it = &mut self.shards[node][shard];
        while let Some(done) = self.kernel.poll_done(id) {
            it.handle_done(done, &mut self.kernel.io(id));
            worked = true;
        }
        let io = &mut self.kernel.io(id);
        worked |= it.is_due(io.now()) && !it.drive(io);
        while let Some(output) = self.shards[node][shard].poll_output() {
            worked = true;
            match output {
                Output::Event(event) => {
                    let now = self.kernel.now();
                    self.kernel.note(|| format!("{now}: {node}.{shard} -> {event:?}"));
                    self.controls.handle_event(node, shard, event, &self.kernel);
                }
                Output::Plan(question) => {
                    self.command(node, shard, Command::Planned(Box::new(solve(&question))));
                }
                Output::Completion(_) | Output::Progress(_) => told.push((node, shard, output)),
            }
        }
        worked |= self.pass_relays(node, shard);
        let at = self.shards[node][shard].poll_timeout();
        if worked {
            self.turns.feed((node, shard));
        }
        self.turns.of[node][shard].at = at;
        self.turns.look_at((node, shard), at.map(|at| self.kernel.world_time(id, at)));
        worked
    }

    /// Takes what a shard has for the others, each on its way in the order of its queue.
    fn pass_relays(&mut self, node: usize, shard: usize) -> bool {
        let (from, mut passed) = (shard as u16, false);
        for to in 0..self.shards[node].len() as u16 {
            while let Some(relay) = self.shards[node][shard].poll_relay(to) {
                let now = self.kernel.now();
                self.kernel.note(|| format!("{now}: {node}.{from} => {node}.{to} {relay:?}"));
                let last = self.arrivals.entry((node, from, to)).or_default();
                *last = (*last).max(now + self.random.up_to(self.relay_max));
                let life = self.lives[node];
                self.relays.push(*last, Passed { node, life, from, to, relay });
                passed = true;
            }
        }
        passed
    }

    fn deliver_relays(&mut self, now: Nanos) -> bool {
        let mut some = false;
        while let Some((_, Passed { node, life, from, to, relay })) = self.relays.pop(now) {
            if life == self.lives[node] {
                some = true;
                let to = usize::from(to);
                self.with(node, to, |shard, io| shard.handle_relay(from, relay, io));
            }
        }
        some
    }
}

/// The shards of one node, each with its number.
fn among(shards: Vec<Shard>) -> Vec<Shard> {
    let count = shards.len() as u16;
    let numbered = shards.into_iter().enumerate();
    numbered.map(|(own, shard)| shard.among(own as u16, count)).collect()
}

#[cfg(test)]
mod tests {
    use piped_sim::Faults;

    use super::*;

    /// Those to look at now, in their order.
    fn awake(turns: &mut Turns, kernel: &mut SimKernel) -> Vec<(usize, usize)> {
        let mut all = Vec::new();
        while let Some(next) = turns.next(all.last().copied(), kernel) {
            all.push(next);
        }
        all
    }

    #[test]
    fn a_shard_is_looked_at_when_it_was_fed_or_its_time_or_its_clock_has_come() {
        let mut kernel = SimKernel::new(1, Faults::none());
        let ids = [(); 3].map(|()| kernel.add_node(8));
        let mut turns = Turns::default();
        turns.begin(0, 2);
        turns.begin(1, 1);
        turns.names.extend([(ids[0], (0, 0)), (ids[1], (0, 1)), (ids[2], (1, 0))]);
        assert_eq!(awake(&mut turns, &mut kernel), [(0, 0), (0, 1), (1, 0)], "all begin");
        assert_eq!(awake(&mut turns, &mut kernel), []);
        turns.feed((1, 0));
        turns.look_at((0, 1), Some(Nanos(50)));
        assert_eq!(awake(&mut turns, &mut kernel), [(1, 0)]);
        kernel.advance(Nanos(50));
        assert_eq!(awake(&mut turns, &mut kernel), [(0, 1)]);
        // A time that was put off comes once.
        turns.look_at((0, 1), Some(Nanos(60)));
        turns.look_at((0, 1), Some(Nanos(70)));
        kernel.advance(Nanos(60));
        assert_eq!(awake(&mut turns, &mut kernel), []);
        kernel.put_clock_forward(ids[1], Nanos(1000));
        assert_eq!(awake(&mut turns, &mut kernel), [(0, 1)], "its own time may have come");
        // What is gone is left alone, and what comes back begins.
        turns.begin(0, 0);
        kernel.put_clock_forward(ids[1], Nanos(1000));
        kernel.advance(Nanos(70));
        assert_eq!(awake(&mut turns, &mut kernel), []);
        turns.begin(0, 2);
        assert_eq!(awake(&mut turns, &mut kernel), [(0, 0), (0, 1)]);
    }
}
