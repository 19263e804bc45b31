//! Some nodes that dial each other while operators change what they like, in virtual time, from one seed.
//!
//! What is judged: a connection that the configuration of its node forbids does not stay, however the reload came
//! between dial, handshake and door; and nodes that may be connected are, once nobody disturbs them any more.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use piped_config::{Config, NodeKey, Peer, Principal};
use piped_core::link::{LaneClass, Protection};
use piped_core::modes::{CalibrationMode, EagerMode, PlannerMode, ZeroCopyMode};
use piped_core::units::Nanos;
use piped_engine::command::{Command, Output};
use piped_engine::shard::{Shard, ShardConfig};
use piped_planner::solve::solve;
use piped_sim::{ConnectionId, Cost, EventQueue, Faults, Notice, Random, SimKernel};
use zeroize::Zeroizing;

use crate::controls::{Controls, End, Setup, Surroundings};

/// Nodes that may be connected are, so long after nobody disturbs them any more.
const REST: Nanos = Nanos::from_millis(60_000);

/// A connection that is forbidden is closed within that time.
const CLOSING: Nanos = Nanos::from_millis(3_000);

/// Nodes that trust each other are not without connections for longer.
const ALONE: Nanos = Nanos::from_millis(15_000);

/// How often the connections that are open are judged.
const JUDGED_EVERY: Nanos = Nanos::from_millis(250);

/// Staging of a shard.
const STAGING: u64 = 16 << 20;
const OPS_MAX: u32 = 256;

const NAMES: [&str; 3] = ["alpha", "beta", "gamma"];
const CLASSES: [LaneClass; 2] = [LaneClass::Latency, LaneClass::Bulk];

/// A user of the machine that nodes of one machine share.
const NEIGHBOUR: u32 = 1000;

/// What a network is made of.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Nodes, two or three.
    pub nodes: usize,
    /// Shards of each node.
    pub shards: usize,
    /// Things that operators and the network do.
    pub acts: u32,
    /// Nodes begin with keys.
    pub keyed: bool,
    /// All nodes are on one machine.
    pub one_machine: bool,
    /// Only key changes, done as the documents say.
    pub careful: bool,
    /// All nodes trust each other in the end.
    pub reconciled: bool,
    /// Faults of the kernel.
    pub faults: Faults,
    /// Delays and faults of dials.
    pub surroundings: Surroundings,
}

impl Options {
    /// Networks in which everything is tried.
    #[must_use]
    pub fn wild(random: &mut Random) -> Self {
        let mut rate = |most: f64| {
            if random.chance(0.5) { most * random.below(100) as f64 / 100.0 } else { 0.0 }
        };
        let (resolve_fails, connect_fails) = (rate(0.3), rate(0.3));
        let (handshake_hangs, reset) = (rate(0.2), rate(0.02));
        let delays = [random.length(500_000_000), random.length(200_000_000)];
        Self {
            nodes: random.between(2, 3) as usize,
            shards: random.between(1, 2) as usize,
            acts: random.between(1, 24) as u32,
            keyed: random.chance(0.7),
            one_machine: random.chance(0.3),
            careful: false,
            reconciled: random.chance(0.6),
            faults: Faults { reset, reset_notice_max: Nanos::from_millis(50), ..Faults::none() },
            surroundings: Surroundings {
                step_max: Nanos(delays[0]),
                mailbox_max: Nanos(delays[1]),
                resolve_fails,
                connect_fails,
                handshake_hangs,
                socket_buffer: 1 << random.between(14, 20),
                link: Cost {
                    latency: Nanos(random.between(1_000, 2_000_000)),
                    overhead: Nanos(random.between(500, 20_000)),
                    nanos_per_byte: random.between(1, 100) as f64 / 10.0,
                },
            },
        }
    }

    /// Networks whose nodes have keys, and change them as the documents say.
    #[must_use]
    pub fn careful(random: &mut Random) -> Self {
        let wild = Self::wild(random);
        let calm = Surroundings {
            resolve_fails: 0.0,
            connect_fails: 0.0,
            handshake_hangs: 0.0,
            ..wild.surroundings
        };
        Self {
            keyed: true,
            careful: true,
            reconciled: false,
            faults: Faults::none(),
            surroundings: calm,
            ..wild
        }
    }
}

/// Something that somebody does.
#[derive(Debug)]
enum Act {
    /// All connections between two nodes are cut.
    Cut(usize, usize),
    /// An operator changes the files of a node and reloads.
    Change(usize),
    /// A key change as the documents say, its first step: a peer of the node trusts the new key as well.
    Announce { peer: usize, node: usize, key: usize },
    /// The second: the node has the new key.
    Switch(usize, usize),
    /// The last: a peer of the node trusts the old key no more.
    Forget { peer: usize, node: usize },
    /// The daemon of a node dies.
    Crash(usize),
    /// The daemon of a node starts.
    Start(usize),
    /// The files of a node become such that all nodes trust each other.
    Reconcile(usize),
    /// Open connections are judged.
    Judge,
}

/// See the module.
#[derive(Debug)]
pub struct Network {
    /// The kernel of all nodes.
    pub kernel: SimKernel,
    /// Their control threads.
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
    /// A network whose whole course follows from the seed and the options.
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

    fn plan(&mut self) {
        let mut at = Nanos::ZERO;
        for _ in 0..self.options.acts {
            // As likely in the middle of a handshake as long after it.
            at = at + Nanos(self.random.length(8_000_000_000));
            let node = self.random.below(self.options.nodes as u64) as usize;
            if self.options.careful {
                at = self.plan_key_change(node, at);
                continue;
            }
            let other = (node + 1) % self.options.nodes;
            let act = match self.random.below(10) {
                0 | 1 => Act::Cut(node, other),
                2 => Act::Crash(node),
                3 => {
                    self.plan_key_change(node, at);
                    continue;
                }
                _ => Act::Change(node),
            };
            self.acts.push(at, act);
        }
        if self.options.reconciled {
            at = at + Nanos::from_millis(1);
            for node in 0..self.options.nodes {
                let later = Nanos(self.random.length(3_000_000_000));
                self.acts.push(at + later, Act::Reconcile(node));
            }
        }
        let end = at + Nanos::from_millis(4_000);
        let mut judged = JUDGED_EVERY;
        while judged < end {
            self.acts.push(judged, Act::Judge);
            judged = judged + JUDGED_EVERY;
        }
    }

    /// Peers announce the next key, in any order; the node switches; peers forget the old one. When it is over.
    fn plan_key_change(&mut self, node: usize, from: Nanos) -> Nanos {
        let key = node + 3 * self.random.below(3) as usize;
        let peers = || (0..self.options.nodes).filter(|other| *other != node);
        let mut announced = from;
        for peer in peers() {
            let at = from + Nanos(self.random.length(5_000_000_000));
            self.acts.push(at, Act::Announce { peer, node, key });
            announced = announced.max(at);
        }
        let switched = announced + Nanos(self.random.length(5_000_000_000));
        self.acts.push(switched, Act::Switch(node, key));
        let mut over = switched;
        for peer in peers() {
            let at = switched + Nanos(self.random.length(5_000_000_000));
            self.acts.push(at, Act::Forget { peer, node });
            over = over.max(at);
        }
        over
    }

    fn act(&mut self, act: Act) {
        let now = self.kernel.now();
        self.kernel.note(|| format!("{now}: {act:?}"));
        match act {
            Act::Judge => self.judge(),
            Act::Cut(one, other) => {
                let notice = match self.random.below(4) {
                    0 => Notice::Silent,
                    _ => Notice::Within(Nanos(self.random.length(100_000_000))),
                };
                let ends = self.controls.ends(&self.kernel).to_vec();
                for end in ends.iter().filter(|end| [end.node, end.other] == [one, other]) {
                    self.kernel.reset(end.connection, notice);
                    *self.controls.seen.entry("connection cut").or_default() += 1;
                }
            }
            Act::Crash(node) if self.controls.runs(node) => {
                self.controls.stop(node);
                for id in self.controls.nodes[node].setup.shards.clone() {
                    self.kernel.crash(id, Notice::Within(Nanos(self.random.length(100_000_000))));
                }
                self.shards[node].iter_mut().for_each(|shard| *shard = None);
                let back = now + Nanos(self.random.length(3_000_000_000));
                self.acts.push(back, Act::Start(node));
            }
            Act::Crash(_) => {}
            Act::Start(node) => {
                if self.random.chance(0.3) && !self.controls.runs(node) && !self.options.careful {
                    // It moves; the others hear of it when their operators say so.
                    let moved = self.random.below(3) as u16;
                    let setup = &mut self.controls.nodes[node].setup;
                    setup.address = address_of(node, self.options.one_machine, moved);
                    setup.config.listen.address = Some(setup.address);
                }
                self.start(node);
            }
            Act::Announce { peer, node, key } => {
                let key = Some(KEYS[key].public());
                self.change_peer(peer, node, |it| it.next_key = key.filter(|_| it.key != key));
            }
            Act::Switch(node, key) => {
                let config = self.controls.nodes[node].setup.config.clone();
                self.reload(node, &config, Some(KEYS[key].clone()));
            }
            Act::Forget { peer, node } => {
                let key = self.controls.nodes[node].setup.own.as_ref().map(NodeKey::public);
                self.change_peer(peer, node, |it| (it.key, it.next_key) = (key, None));
            }
            Act::Reconcile(node) => {
                let setup = self.controls.nodes[node].setup.clone();
                let mut config = self.mutual(node, &setup);
                config.security.mode = setup.config.security.mode;
                for (name, peer) in &mut config.peers {
                    // Both sides name keys, or neither does.
                    let other = NAMES.iter().position(|it| it == name).expect("a node");
                    let there = &self.controls.nodes[other].setup;
                    if setup.own.is_none() || there.own.is_none() {
                        peer.key = None;
                    }
                }
                self.reload(node, &config, setup.own);
            }
            Act::Change(node) => self.change(node),
        }
    }

    /// The operator of a node changes what it says of a peer.
    fn change_peer(&mut self, node: usize, peer: usize, change: impl FnOnce(&mut Peer)) {
        let setup = &self.controls.nodes[node].setup;
        let (mut config, own) = (setup.config.clone(), setup.own.clone());
        if let Some(peer) = config.peers.get_mut(NAMES[peer]).filter(|_| own.is_some()) {
            change(peer);
            self.reload(node, &config, own);
        }
    }

    /// An operator changes one thing, sensible or not.
    fn change(&mut self, node: usize) {
        let setup = self.controls.nodes[node].setup.clone();
        let (mut config, mut own) = (setup.config, setup.own);
        let other = (node + 1 + self.random.below(self.options.nodes as u64 - 1) as usize)
            % self.options.nodes;
        let there = &self.controls.nodes[other].setup;
        let (theirs, address) = (there.own.as_ref().map(NodeKey::public), there.address);
        let any = KEYS[self.random.below(KEYS.len() as u64) as usize].public();
        let moved = self.random.below(3) as u16;
        let peer = config.peers.entry(NAMES[other].to_owned());
        match self.random.below(12) {
            0 => {
                config.peers.remove(NAMES[other]);
            }
            1 | 2 => {
                let to = address.to_string().parse().expect("an address");
                let right = Peer { address: to, key: theirs, next_key: None };
                peer.insert_entry(right);
            }
            3 => {
                let to = address_of(other, self.options.one_machine, moved).to_string();
                peer.or_default().address = to.parse().expect("an address");
            }
            4 => peer.or_default().key = theirs,
            5 => peer.or_default().key = None,
            6 => peer.or_default().key = Some(any),
            7 => peer.or_default().next_key = Some(any),
            8 => {
                let key = node + 3 * self.random.below(3) as usize;
                own = Some(KEYS[key].clone()).filter(|_| self.random.chance(0.8));
            }
            9 => {
                config.security.mode = match config.security.mode {
                    Protection::Integrity => Protection::Encrypted,
                    Protection::Encrypted => Protection::Integrity,
                }
            }
            10 => {
                let all = ["10.0.0.0/8", "127.0.0.0/8", "10.0.1.0/24"];
                let networks = all.iter().filter(|_| self.random.chance(0.5));
                config.listen.allow_plain =
                    networks.map(|it| it.parse().expect("a network")).collect();
            }
            _ => {
                let users = (0..3).filter(|_| self.random.chance(0.5));
                config.access.users = users.map(|it| Principal::Id(NEIGHBOUR + it)).collect();
            }
        }
        if config
            .peers
            .get(NAMES[other])
            .is_some_and(|it| it.address.is_empty() && it.key.is_none())
        {
            config.peers.remove(NAMES[other]);
        }
        self.reload(node, &config, own);
    }

    /// The daemon takes other files, or refuses them; one that does not run has them when it starts.
    fn reload(&mut self, node: usize, config: &Config, own: Option<NodeKey>) {
        let now = self.kernel.now();
        let outcome = self.controls.reload(node, config, own.as_ref(), &self.kernel);
        self.kernel.note(|| format!("{now}: reload of {}: {outcome:?}", NAMES[node]));
        let what = if outcome.is_ok() { "reload" } else { "reload refused" };
        *self.controls.seen.entry(what).or_default() += 1;
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

    /// No connection stays that the configuration of its node forbids.
    fn judge(&mut self) {
        let now = self.kernel.now();
        let ends = self.controls.ends(&self.kernel).to_vec();
        let mut forbidden = BTreeMap::new();
        for end in &ends {
            let Err(why) = self.may_be(end) else { continue };
            let place = (end.node, end.connection);
            let since = *self.forbidden.get(&place).unwrap_or(&now);
            assert!(
                now.since(since) < CLOSING || !self.controls.is_told(end.node),
                "{} has had a connection with {} since {since} that it must not have: {why}; {end:?}",
                NAMES[end.node],
                NAMES[end.other]
            );
            *self.controls.seen.entry("forbidden connection seen").or_default() += 1;
            forbidden.insert(place, since);
        }
        self.forbidden = forbidden;
        if self.options.careful {
            self.judge_alone();
        }
    }

    /// Nodes that trust each other all the time are never without connections for long.
    fn judge_alone(&mut self) {
        let now = self.kernel.now();
        let mut alone = BTreeMap::new();
        for (from, to, shard) in self.missing() {
            let pair = (from, to, shard);
            let since = *self.alone.get(&pair).unwrap_or(&now);
            assert!(
                now.since(since) < ALONE,
                "shard {shard} of {} has not been connected with {} since {since}",
                NAMES[from],
                NAMES[to]
            );
            alone.insert(pair, since);
        }
        self.alone = alone;
    }

    /// Nodes that can be connected and are not: which dials, which is dialled, and the shard that has no connection.
    fn missing(&self) -> Vec<(usize, usize, usize)> {
        let mut missing = Vec::new();
        for from in 0..self.options.nodes {
            for to in (0..self.options.nodes).filter(|to| *to != from && self.can_dial(from, *to)) {
                let shards = 0..self.shards[from].len();
                missing.extend(
                    shards
                        .filter(|it| self.up(from, to, *it) != [true; 2])
                        .map(|it| (from, to, it)),
                );
            }
        }
        missing
    }

    /// Which of the connections of a shard to a node are up.
    fn up(&self, from: usize, to: usize, shard: usize) -> [bool; 2] {
        let Some(shard) = &self.shards[from][shard] else { return [false; 2] };
        let report = shard.report();
        let peer = report.peers.iter().find(|it| it.name == NAMES[to] && !it.inbound);
        CLASSES.map(|class| {
            let lanes = peer.iter().flat_map(|peer| &peer.lanes);
            lanes.filter(|lane| lane.class == class).any(|lane| lane.up)
        })
    }

    /// Whether a node may have a connection by its configuration of now.
    fn may_be(&self, end: &End) -> Result<(), &'static str> {
        let (here, there) =
            (&self.controls.nodes[end.node].setup, &self.controls.nodes[end.other].setup);
        if let Some((peer, _, address)) = end.dialled {
            let peers = self.controls.control(end.node).peers();
            let target = peers.target(peer).ok_or("the peer left")?;
            if target.address.as_str() != address.to_string() {
                return Err("the peer has another address");
            }
            let Some(sealed) = end.sealed else {
                let has_key = here.own.is_some();
                return match target.key {
                    Some(_) => Err("the peer has a key"),
                    None if here.config.listen.admits_plain(address.ip(), has_key) => Ok(()),
                    None => Err("its network is not one for plain connections"),
                };
            };
            if !target.keys().any(|key| key == sealed.keys[1]) {
                return Err("the peer has another key");
            }
            return here.check_own(&sealed.keys[0], sealed.protection);
        }
        let name = NAMES[end.other];
        let Some(sealed) = end.sealed else {
            let reserved = here.config.peers.get(name).is_some_and(|peer| peer.key.is_some());
            if reserved {
                return Err("the name is that of a node with a key");
            }
            return self.admits_plain(here, there);
        };
        let trusted =
            here.config.peers.get(name).is_some_and(|it| it.keys().any(|it| it == sealed.keys[0]));
        if !trusted {
            return Err("the key is not trusted");
        }
        here.check_own(&sealed.keys[1], sealed.protection)
    }

    fn admits_plain(&self, here: &Setup, from: &Setup) -> Result<(), &'static str> {
        let ip = from.address.ip();
        if !here.config.listen.admits_plain(ip, here.own.is_some()) {
            return Err("its network is not one for plain connections");
        }
        let named = here.config.access.users.contains(&Principal::Id(from.user));
        if here.address.ip() == ip && !named {
            return Err("its user has no access");
        }
        Ok(())
    }

    /// Whether one node can have connections to another by what both are configured to.
    fn can_dial(&self, from: usize, to: usize) -> bool {
        let (here, there) = (&self.controls.nodes[from].setup, &self.controls.nodes[to].setup);
        let Some(target) = here.config.peers.get(NAMES[to]) else { return false };
        if target.address.as_str() != there.address.to_string() {
            return false;
        }
        if target.key.is_none() {
            let reserved = there.config.peers.get(NAMES[from]).is_some_and(|it| it.key.is_some());
            let has_key = here.own.is_some();
            return !reserved
                && here.config.listen.admits_plain(there.address.ip(), has_key)
                && self.admits_plain(there, here).is_ok();
        }
        let Some((mine, theirs)) = here.own.as_ref().zip(there.own.as_ref()) else { return false };
        let known = there.config.peers.iter();
        let mut known = known.filter(|(_, peer)| peer.keys().any(|key| key == mine.public()));
        target.keys().any(|key| key == theirs.public())
            && known.next().is_some_and(|(name, _)| name == NAMES[from])
    }

    /// Nodes are connected if they can be, and else they are not.
    fn judge_lanes(&mut self) {
        for from in 0..self.options.nodes {
            for to in (0..self.options.nodes).filter(|to| *to != from) {
                let can = self.can_dial(from, to);
                *self
                    .controls
                    .seen
                    .entry(if can { "nodes can be connected" } else { "nodes cannot be connected" })
                    .or_default() += 1;
                for shard in 0..self.shards[from].len() {
                    let up = self.up(from, to, shard);
                    assert!(
                        up == [can; 2],
                        "{} and {} {} be connected, and lanes of {} are up: {up:?}; {:#?} {:#?}",
                        NAMES[from],
                        NAMES[to],
                        if can { "can" } else { "cannot" },
                        NAMES[from],
                        self.controls.nodes[from].setup,
                        self.controls.nodes[to].setup,
                    );
                }
            }
        }
    }
}

impl Setup {
    fn check_own(
        &self,
        key: &piped_config::PublicKey,
        protection: piped_core::link::Protection,
    ) -> Result<(), &'static str> {
        if self.own.as_ref().map(NodeKey::public) != Some(*key) {
            return Err("this node has another key");
        }
        if protection < self.config.security.mode {
            return Err("this node wants more protection");
        }
        Ok(())
    }
}

fn address_of(node: usize, one_machine: bool, moved: u16) -> SocketAddr {
    let ip = match one_machine {
        true => IpAddr::from([127, 0, 0, 1]),
        false => IpAddr::from([10, 0, node as u8, 1]),
    };
    (ip, 7000 + 10 * node as u16 + moved).into()
}
