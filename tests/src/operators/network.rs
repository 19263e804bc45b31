//! Some nodes that dial each other while operators change what they like, in virtual time, from one
//! seed.

use std::collections::BTreeMap;

use piped_core::link::LaneClass;
use piped_core::modes::{CalibrationMode, EagerMode, PlannerMode, ZeroCopyMode};
use piped_core::names::shard_name;
use piped_core::units::Nanos;
use piped_engine::command::Command;
use piped_engine::shard::{Shard, ShardConfig};
use piped_sim::{Cost, Faults, Random, SimKernel};
use piped_world::controls::{Controls, Surroundings};
use piped_world::nodes::Nodes;

use super::acts::JUDGED_EVERY;
use super::judge::{self, NAMING};
use super::{Errand, NAMES, Operators, Scene, options};

/// Nodes that may be connected are, so long after nobody disturbs them any more.
pub const REST: Nanos = Nanos::from_millis(60_000);

/// Staging of a shard.
const STAGING: u64 = 16 << 20;
const OPS_MAX: u32 = 256;

/// What a network is made of.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// What the operators of the nodes do.
    pub operators: options::Options,
    /// Shards of each node.
    pub shards: usize,
    /// Faults of the kernel.
    pub faults: Faults,
    /// Delays and faults of dials.
    pub surroundings: Surroundings,
}

impl Options {
    /// Networks in which everything is tried.
    #[must_use]
    pub fn wild(random: &mut Random) -> Self {
        let reset = if random.chance(0.5) { random.below(100) as f64 / 5_000.0 } else { 0.0 };
        Self {
            operators: options::Options::wild(random),
            shards: random.between(1, 2) as usize,
            faults: Faults { reset, reset_notice_max: Nanos::from_millis(50), ..Faults::none() },
            surroundings: surroundings(random),
        }
    }

    /// Networks of nodes that have keys, and change them as the documents say.
    #[must_use]
    pub fn careful(random: &mut Random) -> Self {
        let wild = Self::wild(random);
        Self {
            operators: options::Options::careful(random),
            faults: Faults::none(),
            surroundings: calmed(wild.surroundings),
            ..wild
        }
    }

    /// Networks of nodes that move, and find each other by a source that is not to be trusted.
    #[must_use]
    pub fn moving(random: &mut Random) -> Self {
        Self { operators: options::Options::moving(random), ..Self::wild(random) }
    }

    /// Networks of the nodes of a cluster, which trust what its key signed and nothing else.
    #[must_use]
    pub fn cluster(random: &mut Random) -> Self {
        Self { operators: options::Options::cluster(random), ..Self::wild(random) }
    }
}

/// Dials that take time and fail, by chance.
pub fn surroundings(random: &mut Random) -> Surroundings {
    let mut rate = |most: f64| {
        if random.chance(0.5) { most * random.below(100) as f64 / 100.0 } else { 0.0 }
    };
    let [resolve_fails, connect_fails, handshake_hangs] = [0.3, 0.3, 0.2].map(&mut rate);
    Surroundings {
        step_max: Nanos(random.length(500_000_000)),
        mailbox_max: Nanos(random.length(200_000_000)),
        resolve_fails,
        connect_fails,
        handshake_hangs,
        socket_buffer: 1 << random.between(14, 20),
        link: Cost {
            latency: Nanos(random.between(1_000, 2_000_000)),
            overhead: Nanos(random.between(500, 20_000)),
            nanos_per_byte: random.between(1, 100) as f64 / 10.0,
        },
    }
}

/// Dials that take as long, of which none fails.
#[must_use]
pub fn calmed(surroundings: Surroundings) -> Surroundings {
    let (resolve_fails, connect_fails, handshake_hangs) = (0.0, 0.0, 0.0);
    Surroundings { resolve_fails, connect_fails, handshake_hangs, ..surroundings }
}

/// A network of nodes, and the operators that change it.
#[derive(Debug)]
pub struct Network {
    nodes: Nodes,
    options: Options,
    operators: Operators,
    random: Random,
}

impl Network {
    /// A network. The whole course of it follows from the seed and the options.
    #[must_use]
    pub fn new(seed: u64, options: Options) -> Self {
        let mut random = Random::new(seed);
        let kernel = SimKernel::new(random.bits(), options.faults);
        let controls = Controls::new(random.bits(), options.surroundings);
        let operators = Operators::new(options.operators, &mut random);
        let mut network = Self { nodes: Nodes::new(kernel, controls), options, operators, random };
        for node in 0..options.operators.nodes {
            let ids = (0..options.shards).map(|_| network.nodes.kernel.add_node(OPS_MAX as usize));
            let ids = ids.collect();
            let setup = network.operators.setup(node, ids, &network.nodes.controls);
            let shards = network.made(node);
            network.nodes.add(setup, shards).expect("a sound configuration");
            network.give_staging(node);
        }
        network
    }

    /// The kernel of all nodes.
    pub const fn kernel(&mut self) -> &mut SimKernel {
        &mut self.nodes.kernel
    }

    /// How often something happened that a campaign wants to see.
    #[must_use]
    pub const fn seen(&self) -> &BTreeMap<&'static str, u64> {
        &self.nodes.controls.seen
    }

    /// The whole life of a network: operators do what they want, then nobody does anything.
    ///
    /// # Panics
    /// If a promise is broken.
    pub fn live(&mut self) {
        while let Some(at) = self.operators.next_at() {
            self.run(at);
            let Some(act) = self.operators.pop(at) else { continue };
            let Nodes { kernel, controls, .. } = &mut self.nodes;
            let mut scene = Scene { kernel, controls, random: &mut self.random };
            match self.operators.act(act, &mut scene) {
                Some(Errand::Judge) => self.judge(),
                Some(Errand::Crash(node, notice)) => {
                    self.nodes.stop(node);
                    for id in self.nodes.controls.nodes[node].setup.shards.clone() {
                        self.nodes.kernel.crash(id, notice);
                    }
                }
                Some(Errand::Start(node)) => self.start(node),
                Some(Errand::Changed(_)) | None => {}
            }
        }
        // From here on nothing goes wrong.
        self.nodes.kernel.set_faults(Faults::none());
        let calm = calmed(self.nodes.controls.surroundings);
        self.nodes.controls.surroundings = calm;
        for node in 0..self.options.operators.nodes {
            self.start(node);
        }
        let mut until = self.nodes.kernel.now() + REST;
        let Nodes { kernel, controls, .. } = &mut self.nodes;
        let mut scene = Scene { kernel, controls, random: &mut self.random };
        self.operators.tell_the_truth(&mut scene);
        self.run(until);
        self.judge();
        until = until + NAMING + JUDGED_EVERY;
        self.run(until);
        self.judge();
        let nodes = &self.nodes;
        let up = |from, to, shard: usize| up(&nodes.shards(from)[shard], to);
        let can = judge::judge_lanes(&nodes.controls, &up);
        if self.options.operators.moving {
            assert_eq!(can.get("nodes cannot be connected"), None, "each finds each: {can:?}");
        }
        for (what, count) in can {
            *self.nodes.controls.seen.entry(what).or_default() += count;
        }
        for node in 0..self.options.operators.nodes {
            let several = judge::judge_homes(self.nodes.shards(node));
            *self.nodes.controls.seen.entry(judge::SPREAD).or_default() += several;
        }
    }

    fn judge(&mut self) {
        let Nodes { kernel, controls, .. } = &mut self.nodes;
        self.operators.judge.judge(controls, kernel);
        if self.options.operators.careful {
            let nodes = &self.nodes;
            let up = |from, to, shard: usize| {
                nodes.shards(from).get(shard).map_or([false; 2], |it| up(it, to))
            };
            self.operators.judge.judge_alone(&nodes.controls, &up, nodes.kernel.now());
        }
    }

    fn start(&mut self, node: usize) {
        if !self.nodes.controls.runs(node) {
            let shards = self.made(node);
            self.nodes.start(node, shards);
            self.give_staging(node);
        }
    }

    /// New shards of a node, in the order of their numbers.
    fn made(&mut self, node: usize) -> Vec<Shard> {
        let incarnation = self.random.bits();
        let made = |shard| ShardConfig {
            node_name: shard_name(NAMES[node], shard),
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
        };
        (0..self.options.shards).map(made).map(Shard::new).collect()
    }

    fn give_staging(&mut self, node: usize) {
        for shard in 0..self.options.shards {
            let id = self.nodes.controls.nodes[node].setup.shards[shard];
            let segment = self.nodes.kernel.add_segment(id, STAGING);
            self.nodes.command(node, shard, Command::AddStaging { segment, length: STAGING });
        }
    }

    /// Everybody has turns until then.
    fn run(&mut self, until: Nanos) {
        let mut told = Vec::new();
        while self.nodes.step(until, &mut told) {}
        assert!(told.is_empty(), "nobody asks for anything, and is told {told:?}");
    }
}

/// Which of the connections of a shard to a node are up.
pub fn up(shard: &Shard, to: usize) -> [bool; 2] {
    let report = shard.report();
    let peer = report.peers.iter().find(|it| it.name == NAMES[to] && !it.inbound);
    [LaneClass::Latency, LaneClass::Bulk].map(|class| {
        let lanes = peer.iter().flat_map(|peer| &peer.lanes);
        lanes.filter(|lane| lane.class == class).any(|lane| lane.up)
    })
}
