//! What operators and the network do to nodes.

use piped_config::{Config, NodeKey, Peer, Principal};
use piped_core::link::Protection;
use piped_core::units::Nanos;
use piped_sim::Notice;

use super::{JUDGED_EVERY, KEYS, NAMES, NEIGHBOUR, Network, address_of};

/// Something that somebody does.
#[derive(Debug)]
pub(super) enum Act {
    /// All connections between two nodes are cut.
    Cut(usize, usize),
    /// An operator changes the files of a node and reloads.
    Change(usize),
    /// A key change as the documents say, its first step: a peer of the node trusts the new key as
    /// well.
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

impl Network {
    pub(super) fn plan(&mut self) {
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

    /// Peers announce the next key, in any order; the node switches; peers forget the old one. When
    /// it is over.
    pub(super) fn plan_key_change(&mut self, node: usize, from: Nanos) -> Nanos {
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

    pub(super) fn act(&mut self, act: Act) {
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
    pub(super) fn change_peer(&mut self, node: usize, peer: usize, change: impl FnOnce(&mut Peer)) {
        let setup = &self.controls.nodes[node].setup;
        let (mut config, own) = (setup.config.clone(), setup.own.clone());
        if let Some(peer) = config.peers.get_mut(NAMES[peer]).filter(|_| own.is_some()) {
            change(peer);
            self.reload(node, &config, own);
        }
    }

    /// An operator changes one thing, sensible or not.
    pub(super) fn change(&mut self, node: usize) {
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

    /// The daemon takes other files, or refuses them; one that does not run has them when it
    /// starts.
    pub(super) fn reload(&mut self, node: usize, config: &Config, own: Option<NodeKey>) {
        let now = self.kernel.now();
        let outcome = self.controls.reload(node, config, own.as_ref(), &self.kernel);
        self.kernel.note(|| format!("{now}: reload of {}: {outcome:?}", NAMES[node]));
        let what = if outcome.is_ok() { "reload" } else { "reload refused" };
        *self.controls.seen.entry(what).or_default() += 1;
    }
}
