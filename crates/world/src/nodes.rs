//! Some nodes in one kernel: their control threads, their shards, and the turns of all.

use std::collections::{BTreeMap, VecDeque};

use piped_core::io::Io as _;
use piped_core::units::Nanos;
use piped_engine::command::{Command, Output};
use piped_engine::relay::Relay;
use piped_engine::shard::Shard;
use piped_planner::solve::solve;
use piped_sim::{EventQueue, Random, SimKernel};

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
    turns: Vec<Vec<Turn>>,
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
}

impl Turn {
    const NOW: Self = Self { now: true, at: None };
}

impl Nodes {
    /// A world without nodes yet.
    #[must_use]
    pub fn new(kernel: SimKernel, controls: Controls) -> Self {
        Self {
            kernel,
            controls,
            shards: Vec::new(),
            turns: Vec::new(),
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
        self.turns.push(vec![Turn::NOW; shards.len()]);
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
        self.turns[node] = vec![Turn::NOW; shards.len()];
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
        self.turns[node][shard] = Turn::NOW;
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
        let mut next = None;
        for node in 0..self.shards.len() {
            for shard in 0..self.shards[node].len() {
                let (busy, at) = self.turn(node, shard, told);
                worked |= busy;
                next = [next, at].into_iter().flatten().min();
            }
        }
        let relays = self.relays.next_at();
        let all = [next, relays, self.controls.next_at(), self.kernel.next_event()];
        let at = all.into_iter().flatten().min().map(|at| at.max(now));
        worked |= at == Some(now);
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

    /// One turn of a shard: whether it did something, and when it wants the next one. One for which
    /// nothing came and whose time has not come is left alone: most of many nodes are idle.
    fn turn(&mut self, node: usize, shard: usize, told: &mut Vec<Told>) -> (bool, Option<Nanos>) {
        let id = self.controls.nodes[node].setup.shards[shard];
        let (now, busy) = (self.kernel.now(), self.kernel.busy_until(id));
        if busy > now {
            return (false, Some(busy));
        }
        let last = self.turns[node][shard];
        let at = last.at.map(|at| self.kernel.world_time(id, at));
        if !last.now && !self.kernel.has_done(id) && at.is_none_or(|at| at > now) {
            return (false, at);
        }
        self.turns[node][shard].now = false;
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
        let turn = &mut self.turns[node][shard];
        (turn.now, turn.at) = (turn.now || worked, at);
        (worked, at.map(|at| self.kernel.world_time(id, at)))
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
