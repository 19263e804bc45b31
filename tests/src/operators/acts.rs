//! What operators and the network do to nodes.

mod plans;

use piped_config::{Config, Export, HostPort, NodeKey, Peer, Principal, UnixTime};
use piped_core::ids::SessionId;
use piped_core::link::{Checksum, Dialling, Protection};
use piped_core::units::Nanos;
use piped_sim::{EventQueue, Notice, Random, SimKernel};
use piped_world::controls::{CALENDAR, Controls, Setup};

use super::found::Directory;
use super::judge::Judge;
use super::{CLIENT, EXPORT, FOLDER, KEYS, NAMES, NEIGHBOUR, Options, address_of, cluster};

/// How often the connections that are open are judged.
pub(super) const JUDGED_EVERY: Nanos = Nanos::from_millis(250);

/// The furthest that a calendar jumps, in seconds.
const CALENDAR_JUMP_MAX: u64 = 150;

/// The furthest that a clock jumps.
const JUMP_MAX: Nanos = Nanos::from_millis(10_000);

/// Something that somebody does.
#[derive(Debug)]
pub enum Act {
    /// All connections between two nodes are cut.
    Cut(usize, usize),
    /// An operator changes the files of a node and reloads.
    Change(usize),
    /// A key change as the documents say, its first step: a peer of the node trusts the new key as
    /// well.
    Announce {
        /// The peer, which announces.
        peer: usize,
        /// The node that is to change its key.
        node: usize,
        /// The next key by its place among all.
        key: usize,
    },
    /// The second step of a key change: the node has the new key.
    Switch(usize, usize),
    /// The last step of a key change: a peer of the node trusts the old key no more.
    Forget {
        /// The peer, which forgets.
        peer: usize,
        /// The node that has changed its key.
        node: usize,
    },
    /// The daemon of a node dies.
    Crash(usize),
    /// The daemon of a node starts.
    Start(usize),
    /// The files of a node become such that all nodes trust each other.
    Reconcile(usize),
    /// An operator ends a session or a handle of a node.
    End(usize),
    /// Open connections are judged.
    Judge,
    /// A node looks where others say that they are.
    Look(usize),
    /// A node says where it is.
    Publish(usize),
    /// Somebody says something of where a node is.
    Lie(usize),
    /// A node reaches what it looks into no more, or again.
    CutOff(usize, bool),
    /// The clock of a node jumps ahead.
    Jump(usize),
    /// The calendar of a node of a cluster jumps ahead.
    Calendar(usize),
    /// A node of a cluster has another key and certificate, and the key that it had is revoked.
    Rekey(usize, usize),
}

/// What the world does itself for an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errand {
    /// The daemon of a node dies; its connections end so at their other ends.
    Crash(usize, Notice),
    /// The daemon of a node starts, if it does not run.
    Start(usize),
    /// Open connections are judged.
    Judge,
    /// A node runs with another configuration, or has ended something.
    Changed(usize),
}

/// What an act may touch.
#[derive(Debug)]
pub struct Scene<'a> {
    /// The kernel of all nodes.
    pub kernel: &'a mut SimKernel,
    /// The control threads of all nodes.
    pub controls: &'a mut Controls,
    /// The chance of the world.
    pub random: &'a mut Random,
}

/// The operators of some nodes, and what they are going to do.
#[derive(Debug)]
pub struct Operators {
    /// What they are up to.
    pub options: Options,
    /// What has been seen of connections.
    pub judge: Judge,
    acts: EventQueue<Act>,
    directory: Directory,
}

impl Operators {
    /// Operators that have all their plans.
    #[must_use]
    pub fn new(options: Options, random: &mut Random) -> Self {
        let (judge, acts) = (Judge::default(), plans::plan(options, random));
        Self { options, judge, acts, directory: Directory::default() }
    }

    /// When something is done next, if anything.
    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        self.acts.next_at()
    }

    /// The next act that is due.
    pub fn pop(&mut self, now: Nanos) -> Option<Act> {
        self.acts.pop(now).map(|(_, act)| act)
    }

    /// Nobody lies any more, and each node reaches the source and has looked.
    pub fn tell_the_truth(&mut self, scene: &mut Scene<'_>) {
        if self.options.moving {
            let times = (0..self.options.nodes).map(|it| scene.controls.times_of(it, scene.kernel));
            let latest = times.map(|times| times.calendar).max().unwrap_or_default();
            for node in 0..self.options.nodes {
                // Calendars are put right, and certificates renewed by them.
                let ahead = latest.since(scene.controls.times_of(node, scene.kernel).calendar);
                scene.controls.jump(node, ahead);
                cluster::renew(scene, node);
                self.directory.cut_off(node, false);
                self.directory.publish(node, scene);
            }
            (0..self.options.nodes).for_each(|node| self.directory.look(node, scene));
        }
    }

    /// Does an act; what is left to the world.
    pub fn act(&mut self, act: Act, scene: &mut Scene<'_>) -> Option<Errand> {
        let now = scene.kernel.now();
        scene.kernel.note(|| format!("{now}: {act:?}"));
        match act {
            Act::Judge => Some(Errand::Judge),
            Act::Cut(one, other) => {
                scene.cut(one, other);
                None
            }
            Act::Crash(node) if scene.controls.runs(node) => {
                let back = now + Nanos(scene.random.length(3_000_000_000));
                self.acts.push(back, Act::Start(node));
                let notice = Notice::Within(Nanos(scene.random.length(100_000_000)));
                Some(Errand::Crash(node, notice))
            }
            Act::Crash(_) => None,
            Act::Start(node) => {
                let often = if self.options.moving { 0.7 } else { 0.3 };
                let moves = scene.random.chance(often) && !self.options.careful;
                if moves && !scene.controls.runs(node) {
                    // It moves; the others hear of it when their operators say so.
                    let moved = scene.random.below(3) as u16;
                    let setup = &mut scene.controls.nodes[node].setup;
                    setup.address = address_of(node, self.options.one_machine, moved);
                    setup.config.listen.address = Some(setup.address);
                }
                Some(Errand::Start(node))
            }
            Act::Announce { peer, node, key } => {
                let key = Some(KEYS[key].public());
                scene.change_peer(peer, node, |it| it.next_key = key.filter(|_| it.key != key))
            }
            Act::Switch(node, key) => {
                let config = scene.controls.nodes[node].setup.config.clone();
                scene.reload(node, &config, Some(KEYS[key].clone()))
            }
            Act::Forget { peer, node } => {
                let key = scene.controls.nodes[node].setup.own.as_ref().map(NodeKey::public);
                scene.change_peer(peer, node, |it| (it.key, it.next_key) = (key, None))
            }
            Act::Reconcile(node) => {
                let setup = scene.controls.nodes[node].setup.clone();
                let mut config = self.mutual(node, &setup, scene.controls);
                for (name, peer) in &mut config.peers {
                    // Both sides name keys, or neither does.
                    let other = NAMES.iter().position(|it| it == name).expect("a node");
                    let there = &scene.controls.nodes[other].setup;
                    if setup.own.is_none() || there.own.is_none() {
                        peer.key = None;
                    }
                }
                scene.reload(node, &config, setup.own)
            }
            Act::Look(node) => {
                self.directory.look(node, scene);
                None
            }
            Act::Publish(node) => {
                cluster::renew(scene, node);
                self.directory.publish(node, scene);
                None
            }
            Act::Lie(node) => {
                self.directory.lie(node, self.options.nodes, scene.random);
                None
            }
            Act::CutOff(node, is_cut) => {
                self.directory.cut_off(node, is_cut);
                None
            }
            Act::Jump(node) => {
                let by = Nanos(scene.random.length(JUMP_MAX.0));
                for shard in scene.controls.nodes[node].setup.shards.clone() {
                    scene.kernel.put_clock_forward(shard, by);
                }
                None
            }
            Act::Calendar(node) => {
                scene.controls.jump(node, scene.random.below(CALENDAR_JUMP_MAX));
                None
            }
            Act::Rekey(node, key) => {
                let from = scene.controls.times_of(node, scene.kernel).calendar;
                let setup = &mut scene.controls.nodes[node].setup;
                let before = setup.own.clone().filter(|own| own.public() != KEYS[key].public())?;
                if self.directory.has_revoked(&KEYS[key].public()) {
                    return None;
                }
                self.directory.revoke(before.public());
                setup.certificate = Some(cluster::certificate(node, key, from, false));
                setup.own = Some(KEYS[key].clone());
                let (config, own) = (setup.config.clone(), setup.own.clone());
                scene.reload(node, &config, own)
            }
            Act::End(node) => scene.end(node).then_some(Errand::Changed(node)),
            Act::Change(node) => {
                let (config, own) = self.changed(node, scene);
                scene.reload(node, &config, own)
            }
        }
    }

    /// All nodes have keys, and trust each other.
    ///
    /// # Panics
    /// If one of them refuses that.
    pub fn make_peace(&self, scene: &mut Scene<'_>) {
        for node in 0..self.options.nodes {
            let setup = scene.controls.nodes[node].setup.clone();
            let mut config = self.mutual(node, &setup, scene.controls);
            for (name, peer) in &mut config.peers {
                let other = NAMES.iter().position(|it| it == name).expect("a node");
                peer.key = Some(KEYS[other].public());
            }
            let done = scene.reload(node, &config, Some(KEYS[node].clone()));
            assert_eq!(done, Some(Errand::Changed(node)), "{} takes its files", NAMES[node]);
        }
    }

    /// A node as it begins: it trusts the others.
    #[must_use]
    pub fn setup(&self, node: usize, shards: Vec<piped_sim::NodeId>, controls: &Controls) -> Setup {
        let one_machine = self.options.one_machine;
        let setup = Setup {
            name: NAMES[node].to_owned(),
            config: Config::default(),
            own: self.options.keyed.then(|| KEYS[node].clone()),
            certificate: self
                .options
                .cluster
                .then(|| cluster::certificate(node, node, UnixTime(CALENDAR), false)),
            shards,
            address: address_of(node, one_machine, 0),
            second: None,
            user: NEIGHBOUR + node as u32,
        };
        Setup { config: self.mutual(node, &setup, controls), ..setup }
    }

    /// Files with which a node trusts the others, and lets everybody have its own.
    fn mutual(&self, node: usize, setup: &Setup, controls: &Controls) -> Config {
        let one_machine = self.options.one_machine;
        let mut config = Config::default();
        config.security.mode = setup.config.security.mode;
        config.listen.address = Some(setup.address);
        if !one_machine {
            config.listen.allow_plain = vec!["10.0.0.0/8".parse().expect("a network")];
        }
        config.access.users = users().map(Principal::Id).collect();
        let data = Export { path: FOLDER.into(), write: true, ..Export::default() };
        config.exports.insert(EXPORT.to_owned(), data);
        if self.options.moving {
            config.discovery.files = "/nodes".into();
            // Nobody opens anything in these worlds.
            config.discovery.connect = Dialling::Always;
        }
        if self.options.cluster {
            config.cluster.keys = vec![cluster::public()];
            return config;
        }
        for other in (0..self.options.nodes).filter(|other| *other != node) {
            let (address, key) = match controls.nodes.get(other) {
                Some(there) => (there.setup.address, there.setup.own.as_ref().map(NodeKey::public)),
                None => {
                    let key = self.options.keyed.then(|| KEYS[other].public());
                    (address_of(other, one_machine, 0), key)
                }
            };
            // A node without a key cannot name those of others.
            let key = key.filter(|_| setup.own.is_some());
            let address = match self.options.moving {
                true => HostPort::default(),
                false => address.to_string().parse().expect("an address"),
            };
            let peer = Peer { address, key, checksum: self.checksum(), ..Peer::default() };
            config.peers.insert(NAMES[other].to_owned(), peer);
        }
        config
    }

    /// An operator changes one thing, sensible or not.
    fn changed(&self, node: usize, scene: &mut Scene<'_>) -> (Config, Option<NodeKey>) {
        let Scene { controls, random, .. } = scene;
        let setup = controls.nodes[node].setup.clone();
        let (mut config, mut own) = (setup.config, setup.own);
        if random.chance(0.4) {
            change_rights(&mut config, random);
            return (config, own);
        }
        let nodes = self.options.nodes;
        let other = (node + 1 + random.below(nodes as u64 - 1) as usize) % nodes;
        let there = &controls.nodes[other].setup;
        let (theirs, address) = (there.own.as_ref().map(NodeKey::public), there.address);
        let any = KEYS[random.below(KEYS.len() as u64) as usize].public();
        let moved = random.below(3) as u16;
        let peer = config.peers.entry(NAMES[other].to_owned());
        match random.below(12) {
            0 => {
                config.peers.remove(NAMES[other]);
            }
            1 | 2 => {
                let to = address.to_string().parse().expect("an address");
                let right = Peer { address: to, key: theirs, ..Peer::default() };
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
            11 => peer.or_default().checksum = *random.pick(&Checksum::ALL),
            8 => {
                let key = node + 3 * random.below(3) as usize;
                own = Some(KEYS[key].clone()).filter(|_| random.chance(0.8));
            }
            9 => {
                config.security.mode = match config.security.mode {
                    Protection::Integrity => Protection::Encrypted,
                    Protection::Encrypted => Protection::Integrity,
                }
            }
            _ => {
                let all = ["10.0.0.0/8", "127.0.0.0/8", "10.0.1.0/24"];
                let networks = all.iter().filter(|_| random.chance(0.5));
                config.listen.allow_plain =
                    networks.map(|it| it.parse().expect("a network")).collect();
            }
        }
        if config
            .peers
            .get(NAMES[other])
            .is_some_and(|it| it.address.is_empty() && it.key.is_none())
        {
            config.peers.remove(NAMES[other]);
        }
        if !self.options.may_do_without_sums {
            config.peers.values_mut().for_each(|peer| peer.checksum = Checksum::Payload);
        }
        (config, own)
    }

    /// What checksums cover until an operator changes that.
    fn checksum(&self) -> Checksum {
        if self.options.may_do_without_sums { Checksum::Auto } else { Checksum::Payload }
    }
}

/// An operator changes who may do what with what a node has.
fn change_rights(config: &mut Config, random: &mut Random) {
    let some = |random: &mut Random| -> Vec<Principal> {
        users().filter(|_| random.chance(0.6)).map(Principal::Id).collect()
    };
    if random.chance(0.25) {
        config.access.users = some(random);
        return;
    }
    if random.chance(0.2) {
        let most = random.below(4) as u32;
        let limits = &mut config.limits;
        (limits.client.regions, limits.user.regions) = (1 + most, 1 + random.below(8) as u32);
        return;
    }
    let export = config.exports.entry(EXPORT.to_owned()).or_insert_with(|| Export {
        path: FOLDER.into(),
        write: true,
        ..Export::default()
    });
    match random.below(7) {
        0 => export.users = if random.chance(0.5) { Vec::new() } else { some(random) },
        1 => {
            let peers = NAMES.iter().filter(|_| random.chance(0.5));
            export.peers = peers.map(|it| (*it).to_owned()).collect();
        }
        2 => export.write = !export.write,
        3 => export.path = if random.chance(0.5) { FOLDER } else { "/other" }.into(),
        4 => {
            config.exports.remove(EXPORT);
        }
        _ => {
            let all = Export { path: FOLDER.into(), write: true, ..Export::default() };
            config.exports.insert(EXPORT.to_owned(), all);
        }
    }
}

/// Users that have access to begin with: those of the nodes, and those of clients.
fn users() -> impl Iterator<Item = u32> {
    (NEIGHBOUR..NEIGHBOUR + 3).chain(CLIENT..CLIENT + 3)
}

impl Scene<'_> {
    /// All connections between two nodes end.
    fn cut(&mut self, one: usize, other: usize) {
        let notice = match self.random.below(4) {
            0 => Notice::Silent,
            _ => Notice::Within(Nanos(self.random.length(100_000_000))),
        };
        let ends = self.controls.ends(self.kernel).to_vec();
        for end in ends.iter().filter(|end| [end.node, end.other] == [one, other]) {
            self.kernel.reset(end.connection, notice);
            *self.controls.seen.entry("connection cut").or_default() += 1;
        }
    }

    /// The operator of a node changes what it says of a peer.
    fn change_peer(
        &mut self,
        node: usize,
        peer: usize,
        change: impl FnOnce(&mut Peer),
    ) -> Option<Errand> {
        let setup = &self.controls.nodes[node].setup;
        let (mut config, own) = (setup.config.clone(), setup.own.clone());
        change(config.peers.get_mut(NAMES[peer]).filter(|_| own.is_some())?);
        self.reload(node, &config, own)
    }

    /// The daemon takes other files, or refuses them; one that does not run has them when it
    /// starts.
    fn reload(&mut self, node: usize, config: &Config, own: Option<NodeKey>) -> Option<Errand> {
        let now = self.kernel.now();
        let outcome = self.controls.reload(node, config, own.as_ref(), self.kernel);
        self.kernel.note(|| format!("{now}: reload of {}: {outcome:?}", NAMES[node]));
        let what = if outcome.is_ok() { "reload" } else { "reload refused" };
        *self.controls.seen.entry(what).or_default() += 1;
        outcome.is_ok().then_some(Errand::Changed(node))
    }

    /// An operator ends a session or a handle, if the node runs.
    fn end(&mut self, node: usize) -> bool {
        let Some(control) = self.controls.control_mut(node) else { return false };
        let sessions: Vec<SessionId> = control.sessions().iter().map(|(id, _)| id).collect();
        let handles = control.holdings().report().handles;
        if self.random.chance(0.2) && !sessions.is_empty() {
            control.end_session(*self.random.pick(&sessions), "an operator wants it so");
        } else if !handles.is_empty() {
            control.end_handle(self.random.pick(&handles).handle);
        }
        self.controls.drain(node, self.kernel);
        true
    }
}
