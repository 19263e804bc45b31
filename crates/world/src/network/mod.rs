//! Some nodes that dial each other while operators change what they like, in virtual time, from one
//! seed.
//!
//! What is judged: a connection that the configuration of its node forbids does not stay, however
//! the reload came between dial, handshake and door; and nodes that may be connected are, once
//! nobody disturbs them any more.

mod acts;
mod judge;
mod options;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use piped_config::{Config, NodeKey, Peer, Principal};
use piped_core::modes::{CalibrationMode, EagerMode, PlannerMode, ZeroCopyMode};
use piped_core::units::Nanos;
use piped_engine::command::{Command, Output};
use piped_engine::shard::{Shard, ShardConfig};
use piped_planner::solve::solve;
use piped_sim::{ConnectionId, EventQueue, Faults, Random, SimKernel};
use zeroize::Zeroizing;

use self::acts::Act;
use self::judge::CLOSING;
pub use self::options::Options;
use crate::controls::{Controls, Setup};

/// Nodes that may be connected are, so long after nobody disturbs them any more.
const REST: Nanos = Nanos::from_millis(60_000);

/// How often the connections that are open are judged.
const JUDGED_EVERY: Nanos = Nanos::from_millis(250);

/// Staging of a shard.
const STAGING: u64 = 16 << 20;
const OPS_MAX: u32 = 256;

const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];

/// A user of the machine that nodes of one machine share.
const NEIGHBOUR: u32 = 1000;

/// A network of nodes, and the operators that change it.
#[derive(Debug)]
pub struct Network {
    /// The kernel of all nodes.
    pub kernel: SimKernel,
    /// The control threads of all nodes.
    pub controls: Controls,
    /// How it is made.
    pub options: Options,
    shards: Vec<Vec<Option<Shard>>>,
    random: Random,
    acts: EventQueue<Act>,
    /// Forbidden ends of connections, since when.
    forbidden: BTreeMap<(usize, ConnectionId), Nanos>,
    /// Shards that have no connection where there can be one, since when.
    alone: BTreeMap<(usize, usize, usize), Nanos>,
    turns_at_once: u32,
}

/// Keys for all: of each node, and some that are nobody's.
static KEYS: LazyLock<Vec<NodeKey>> = LazyLock::new(|| {
    let key = |number: u8| NodeKey::of_private(Zeroizing::new([number; 32]));
    (1..=9).map(key).collect()
});

impl Network {
    /// A network. The whole course of it follows from the seed and the options.
    #[must_use]
    pub fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let mut network = Self {
            kernel: SimKernel::new(random.bits(), options.faults),
            controls: Controls::new(random.bits(), options.surroundings),
            options,
            shards: Vec::new(),
            random,
            acts: EventQueue::new(),
            forbidden: BTreeMap::new(),
            alone: BTreeMap::new(),
            turns_at_once: 0,
        };
        for node in 0..options.nodes {
            network.add(node);
        }
        network.plan();
        network
    }

    /// The whole life of a network: operators do what they want, then nobody does anything.
    ///
    /// # Panics
    /// If a promise is broken.
    pub fn live(&mut self) {
        let all = Nanos::from_millis(3_600_000);
        let mut until = self.kernel.now() + all;
        while let Some(at) = self.acts.next_at().filter(|at| *at < until) {
            self.run(at);
            let (_, act) = self.acts.pop(at).expect("it was there");
            self.act(act);
        }
        // From here on nothing goes wrong.
        self.kernel.set_faults(Faults::none());
        let calm = &mut self.controls.surroundings;
        (calm.resolve_fails, calm.connect_fails, calm.handshake_hangs) = (0.0, 0.0, 0.0);
        for node in 0..self.options.nodes {
            self.start(node);
        }
        until = self.kernel.now() + REST;
        self.run(until);
        self.judge();
        self.run(until + CLOSING + JUDGED_EVERY);
        self.judge();
        self.judge_lanes();
    }

    fn add(&mut self, node: usize) {
        let ids =
            (0..self.options.shards).map(|_| self.kernel.add_node(OPS_MAX as usize)).collect();
        let own = self.options.keyed.then(|| KEYS[node].clone());
        let setup = Setup {
            name: NAMES[node].to_owned(),
            config: Config::default(),
            own,
            shards: ids,
            address: address_of(node, self.options.one_machine, 0),
            user: NEIGHBOUR + node as u32,
        };
        let setup = Setup { config: self.mutual(node, &setup), ..setup };
        self.shards.push(Vec::new());
        self.controls.add(setup, &self.kernel);
        self.start_shards(node);
    }

    /// Files with which a node trusts the others as they begin.
    fn mutual(&self, node: usize, setup: &Setup) -> Config {
        let mut config = Config::default();
        config.listen.address = Some(setup.address);
        if !self.options.one_machine {
            config.listen.allow_plain = vec!["10.0.0.0/8".parse().expect("a network")];
        }
        config.access.users = (0..3).map(|it| Principal::Id(NEIGHBOUR + it)).collect();
        for other in (0..self.options.nodes).filter(|other| *other != node) {
            let (address, key) = match self.controls.nodes.get(other) {
                Some(there) => (there.setup.address, there.setup.own.as_ref().map(NodeKey::public)),
                None => {
                    let key = self.options.keyed.then(|| KEYS[other].public());
                    (address_of(other, self.options.one_machine, 0), key)
                }
            };
            // A node without a key cannot name those of others.
            let key = key.filter(|_| setup.own.is_some());
            let address = address.to_string().parse().expect("an address");
            config.peers.insert(NAMES[other].to_owned(), Peer { address, key, next_key: None });
        }
        config
    }

    fn start_shards(&mut self, node: usize) {
        let place = &self.controls.nodes[node].setup;
        let ids = place.shards.clone();
        self.shards[node].clear();
        let incarnation = self.random.bits();
        for (shard, id) in ids.into_iter().enumerate() {
            let mut made = Shard::new(ShardConfig {
                node_name: self.controls.shard_name(node, shard),
                incarnation,
                seed: self.random.bits(),
                transfers_max: 16,
                ops_max: OPS_MAX,
                deadline_default: Nanos::from_millis(30_000),
                planner: PlannerMode::Auto,
                calibration: CalibrationMode::Off,
                zero_copy: ZeroCopyMode::Off,
                eager: EagerMode::Auto,
                serial_first: false,
            });
            let segment = self.kernel.add_segment(id, STAGING);
            let staging = Command::AddStaging { segment, length: STAGING };
            made.handle_command(staging, &mut self.kernel.io(id));
            self.shards[node].push(Some(made));
        }
    }

    fn start(&mut self, node: usize) {
        if self.controls.runs(node) {
            return;
        }
        for id in self.controls.nodes[node].setup.shards.clone() {
            self.kernel.restart(id);
        }
        self.controls.start(node, &self.kernel);
        self.start_shards(node);
    }

    /// Everybody has turns until then.
    fn run(&mut self, until: Nanos) {
        loop {
            let now = self.kernel.now();
            self.controls.advance(&mut self.kernel);
            let mut worked = false;
            while let Some((node, shard, command)) = self.controls.poll_command() {
                worked = true;
                let id = self.controls.nodes[node].setup.shards[shard];
                self.kernel.note(|| format!("{now}: {id:?} <- {command:?}"));
                if let Some(shard) = &mut self.shards[node][shard] {
                    shard.handle_command(command, &mut self.kernel.io(id));
                }
            }
            let mut next = [self.kernel.next_event(), self.controls.next_at()];
            for node in 0..self.shards.len() {
                for shard in 0..self.shards[node].len() {
                    let (busy, at) = self.turn(node, shard);
                    worked |= busy;
                    next[0] = [next[0], at].into_iter().flatten().min();
                }
            }
            next[1] = self.controls.next_at();
            let at = next.into_iter().chain([self.kernel.next_event()]).flatten().min();
            let at = at.map(|at| at.max(now));
            let again = worked || at == Some(now);
            self.turns_at_once = if again { self.turns_at_once + 1 } else { 0 };
            assert!(self.turns_at_once < 100_000, "the network spins at {now}");
            match at {
                _ if worked => self.kernel.advance(now),
                Some(at) if at <= until => self.kernel.advance(at),
                _ => return self.kernel.advance(until),
            }
        }
    }

    /// One turn of a shard: whether it did something, and when it wants the next one.
    fn turn(&mut self, node: usize, shard: usize) -> (bool, Option<Nanos>) {
        let id = self.controls.nodes[node].setup.shards[shard];
        let Some(it) = &mut self.shards[node][shard] else { return (false, None) };
        let busy = self.kernel.busy_until(id);
        if busy > self.kernel.now() {
            return (false, Some(busy));
        }
        let mut worked = false;
        while let Some(done) = self.kernel.poll_done(id) {
            it.handle_done(done, &mut self.kernel.io(id));
            worked = true;
        }
        it.drive(&mut self.kernel.io(id));
        let mut events = Vec::new();
        while let Some(output) = it.poll_output() {
            worked = true;
            match output {
                Output::Event(event) => events.push(event),
                Output::Plan(question) => {
                    let answer = Command::Planned(Box::new(solve(&question)));
                    it.handle_command(answer, &mut self.kernel.io(id));
                }
                Output::Completion(_) | Output::Progress(_) => {}
            }
        }
        let timeout = it.poll_timeout().map(|at| self.kernel.world_time(id, at));
        for event in events {
            let now = self.kernel.now();
            self.kernel.note(|| format!("{now}: {id:?} -> {event:?}"));
            self.controls.handle_event(node, shard, event, &self.kernel);
        }
        (worked, timeout)
    }
}

fn address_of(node: usize, one_machine: bool, moved: u16) -> SocketAddr {
    let ip = match one_machine {
        true => IpAddr::from([127, 0, 0, 1]),
        false => IpAddr::from([10, 0, node as u8, 1]),
    };
    (ip, 7000 + 10 * node as u16 + moved).into()
}
