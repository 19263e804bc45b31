//! The peers that this node dials, by number.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use piped_config::{Config, HostPort, PEERS_MAX, Peer};
use piped_core::ids::PeerId;
use piped_core::limits::PEERS_ALWAYS_MAX;
use piped_core::link::Dialling;
use piped_engine::command::Command;

use crate::discovery::Discovery;
use crate::members::Members;

/// The peers by number. A peer has its number until it leaves, and nobody has it after that: shards
/// may have to end what they have with the one that left. Who comes back has another one.
#[derive(Debug, Default)]
pub struct Peers {
    known: BTreeMap<PeerId, Known>,
    by_name: BTreeMap<String, PeerId>,
    /// The number that is given next, if nobody has it.
    next: u32,
    /// Counts how often it was decided who is a peer.
    round: u64,
}

#[derive(Debug)]
struct Known {
    name: String,
    target: Peer,
    /// Whether its address is one that a source gave, and not the operator.
    is_found: bool,
    /// The last round in which the operator or a source named it.
    named: u64,
    dialling: Dialling,
}

/// The nodes of a cluster, as peers are made of them.
#[derive(Debug, Clone, Copy)]
pub struct Roll<'a> {
    /// Nodes whose certificates count.
    pub members: &'a Members,
    /// The name of this node, which is no peer of its own.
    pub own: Option<&'a str>,
}

/// What a configuration changes of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// The peer is new, or back.
    Added(PeerId),
    /// The peer left the configuration, or made room for another one.
    Removed(PeerId),
    /// The peer has other addresses, or checksums of its connections cover something else.
    Changed(PeerId),
    /// The peer is dialled at other times. Its connections stay.
    Rescheduled(PeerId),
}

impl Moved {
    const fn peer(self) -> PeerId {
        let (Self::Added(peer)
        | Self::Removed(peer)
        | Self::Changed(peer)
        | Self::Rescheduled(peer)) = self;
        peer
    }
}

impl Peers {
    /// Numbers the peers of a configuration.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut peers = Self::default();
        peers.follow(config, &Discovery::default(), None);
        peers
    }

    /// Takes the peers of a configuration, and addresses that sources give; what is different, by
    /// number. Who leaves comes before those who are new.
    ///
    /// A peer whose address was found keeps it until another one is found: a node that is not named
    /// any more may be where it was, and what is open there stays open.
    ///
    /// In a cluster each node that is found is a peer, as long as there is room. A node that no
    /// source names any more makes room for one that is.
    pub fn follow(
        &mut self,
        config: &Config,
        discovery: &Discovery,
        roll: Option<Roll<'_>>,
    ) -> Vec<Moved> {
        let unlisted = Peer::default();
        let wish = Wish { config, discovery, roll, unlisted: &unlisted };
        self.round += 1;
        let mut moved = self.move_known(&wish);
        let (listed, found) = wish.names();
        let is_new = |name: &&&String| !self.by_name.contains_key(name.as_str());
        let located = |name: &&String| Some(((*name).clone(), wish.located(name)?));
        let [new, more] = [&listed, &found].map(|names| {
            names.iter().filter(is_new).filter_map(located).collect::<Vec<(String, (Peer, bool))>>()
        });
        moved.extend(self.make_room(&listed, new.len(), more.len()));
        for (name, (target, is_found)) in new.into_iter().chain(more) {
            if self.known.len() >= PEERS_MAX {
                break;
            }
            let (id, named, dialling) = (self.number(), self.round, Dialling::default());
            self.by_name.insert(name.clone(), id);
            self.known.insert(id, Known { name, target, is_found, named, dialling });
            moved.push(Moved::Added(id));
        }
        moved.extend(self.schedule(config, &moved));
        moved
    }

    /// A number that nobody has, and that nobody had lately.
    fn number(&mut self) -> PeerId {
        loop {
            let id = PeerId(self.next);
            self.next = self.next.wrapping_add(1);
            if !self.known.contains_key(&id) {
                return id;
            }
        }
    }

    /// Has those who are known go where they are now, or leave.
    fn move_known(&mut self, wish: &Wish<'_>) -> Vec<Moved> {
        let (mut left, mut moved) = (Vec::new(), Vec::new());
        for (&id, known) in &mut self.known {
            let next = wish.located(&known.name);
            if next.is_some() {
                known.named = self.round;
            }
            let Some((target, is_found)) = next.or_else(|| wish.stays(known)) else {
                left.push(id);
                continue;
            };
            let seen =
                |it: &Peer| (it.address.clone(), it.second_address.clone(), it.plain_checksum());
            if seen(&known.target) != seen(&target) {
                moved.push(Moved::Changed(id));
            }
            (known.target, known.is_found) = (target, is_found);
        }
        let left: Vec<Moved> = left.into_iter().map(|id| self.remove(id)).collect();
        left.into_iter().chain(moved).collect()
    }

    /// Makes room for `new` more of the configuration in any case, and for `more` that are found as
    /// far as others are named no more. Who was not named for the longest goes first.
    fn make_room(&mut self, listed: &BTreeSet<&String>, new: usize, more: usize) -> Vec<Moved> {
        let over = |count: usize| (self.known.len() + count).saturating_sub(PEERS_MAX);
        let [must, may] = [over(new), over(new + more)];
        let unlisted = self.known.iter().filter(|(_, known)| !listed.contains(&known.name));
        let mut going: Vec<(u64, PeerId)> = unlisted.map(|(&id, it)| (it.named, id)).collect();
        going.sort_unstable();
        let goes = |(place, (named, _)): &(usize, (u64, PeerId))| {
            *place < must || *named < self.round && *place < may
        };
        let going: Vec<_> = going.into_iter().enumerate().filter(goes).collect();
        going.into_iter().map(|(_, (_, id))| self.remove(id)).collect()
    }

    /// Decides which peers are dialled always: those of the operator and, if so configured, the
    /// first ones that are found. Those that are named no more come last.
    fn schedule(&mut self, config: &Config, moved: &[Moved]) -> Vec<Moved> {
        let written = self.known.values().filter(|known| !known.is_found).count();
        let mut room = match config.discovery.connect {
            Dialling::Always => (PEERS_ALWAYS_MAX as usize).saturating_sub(written),
            Dialling::Used => 0,
        };
        let told: BTreeSet<PeerId> = moved.iter().map(|moved| moved.peer()).collect();
        let mut order: Vec<(PeerId, &mut Known)> =
            self.known.iter_mut().map(|(&id, known)| (id, known)).collect();
        order.sort_by_key(|(id, known)| (known.is_found, Reverse(known.named), *id));
        let mut rescheduled = Vec::new();
        for (id, known) in order {
            let dialling = match known.is_found && room == 0 {
                true => Dialling::Used,
                false => Dialling::Always,
            };
            room -= usize::from(known.is_found && room > 0);
            if std::mem::replace(&mut known.dialling, dialling) != dialling && !told.contains(&id) {
                rescheduled.push(Moved::Rescheduled(id));
            }
        }
        rescheduled
    }

    fn remove(&mut self, id: PeerId) -> Moved {
        if let Some(known) = self.known.remove(&id) {
            self.by_name.remove(&known.name);
        }
        Moved::Removed(id)
    }

    /// The number of a peer.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<PeerId> {
        self.by_name.get(name).copied()
    }

    /// The name of a peer; none of one that left.
    #[must_use]
    pub fn name(&self, peer: PeerId) -> Option<&str> {
        self.known.get(&peer).map(|known| known.name.as_str())
    }

    /// What a shard is told of all peers when it begins.
    pub(crate) fn introduce_all(&self) -> Vec<Command> {
        self.known.keys().filter_map(|&peer| self.introduce(peer)).collect()
    }

    /// What a shard is told of a peer; nothing of a number that no peer has.
    fn introduce(&self, peer: PeerId) -> Option<Command> {
        let Known { name, target, dialling, .. } = self.known.get(&peer)?;
        let (name, checksum, dialling) = (name.clone(), target.checksum, *dialling);
        let second = !target.second_address.is_empty();
        Some(Command::AddPeer { peer, name, checksum, second, dialling })
    }

    /// What a shard is told of a peer that moved.
    pub(crate) fn tell(&self, moved: Moved) -> Vec<Command> {
        match moved {
            Moved::Added(peer) | Moved::Rescheduled(peer) => {
                self.introduce(peer).into_iter().collect()
            }
            Moved::Removed(peer) => vec![Command::RemovePeer { peer }],
            Moved::Changed(peer) => {
                self.introduce(peer).into_iter().chain([Command::RedialPeer { peer }]).collect()
            }
        }
    }

    /// Whether a source names this node, and as many others are known as may be.
    #[must_use]
    pub fn leaves_out(&self, name: &str, discovery: &Discovery) -> bool {
        let is_named = || discovery.sources().any(|(_, heard)| heard.nodes().contains_key(name));
        self.known.len() >= PEERS_MAX && self.by_name(name).is_none() && is_named()
    }

    /// Address, keys and checksums of a peer; none if it left.
    #[must_use]
    pub fn target(&self, peer: PeerId) -> Option<&Peer> {
        self.known.get(&peer).map(|known| &known.target)
    }

    /// The names of the peers, by their numbers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.known.values().map(|known| known.name.as_str())
    }
}

/// What peers there are to be.
struct Wish<'a> {
    config: &'a Config,
    discovery: &'a Discovery,
    roll: Option<Roll<'a>>,
    /// What stands for the entry of a node of the cluster that the configuration does not name.
    unlisted: &'a Peer,
}

impl Wish<'_> {
    /// The names of the configuration, and others that were found.
    fn names(&self) -> (BTreeSet<&String>, BTreeSet<&String>) {
        let listed: BTreeSet<&String> = self.config.peers.keys().collect();
        let found = self.roll.map_or_else(BTreeSet::new, |_| self.discovery.names());
        let found = found.difference(&listed).copied().collect();
        (listed, found)
    }

    fn members(&self) -> Option<&Members> {
        self.roll.map(|roll| roll.members)
    }

    /// The entry of a node that may be a peer.
    fn entry(&self, name: &str) -> Option<&Peer> {
        let of_cluster = self.roll.filter(|roll| roll.own != Some(name)).map(|_| self.unlisted);
        self.config.peers.get(name).or(of_cluster)
    }

    /// A peer that this node connects to, with its address, and whether that was found; others only
    /// connect to it. What the operator wrote goes before what a source says.
    fn located(&self, name: &str) -> Option<(Peer, bool)> {
        let peer = self.entry(name)?;
        if !peer.address.is_empty() {
            return Some((peer.clone(), false));
        }
        let (_, found) = self.discovery.find(name, peer, self.members())?;
        Some((found_at(peer, &found.address, &found.second_address), true))
    }

    /// A peer that was found, and is not named any more, where it was.
    fn stays(&self, known: &Known) -> Option<(Peer, bool)> {
        let peer = self.entry(&known.name).filter(|_| known.is_found)?;
        let can_prove = peer.key.is_some() || self.roll.is_some();
        let Peer { address, second_address, .. } = &known.target;
        can_prove.then(|| (found_at(peer, address, second_address), true))
    }
}

/// A peer that is reached at other addresses than its own entry has.
fn found_at(peer: &Peer, address: &HostPort, second_address: &HostPort) -> Peer {
    let (address, second_address) = (address.clone(), second_address.clone());
    Peer { address, second_address, ..peer.clone() }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use piped_config::{Found, NodeKey};
    use piped_core::units::Nanos;

    use super::*;
    use crate::discovery::Source;

    pub(crate) fn with_peers(peers: &[(&str, &str)]) -> Config {
        let mut config = Config::default();
        for (name, address) in peers {
            let address = address.parse().expect("an address");
            config.peers.insert((*name).to_owned(), Peer { address, ..Peer::default() });
        }
        config
    }

    #[test]
    fn a_peer_has_its_number_until_it_leaves_and_comes_back_under_another() {
        let mut peers = Peers::new(&with_peers(&[("b", "h:1"), ("d", "h:2")]));
        let [b, d, c, again] = [0, 1, 2, 3].map(PeerId);
        assert_eq!((peers.by_name("b"), peers.by_name("d")), (Some(b), Some(d)));
        let next = with_peers(&[("b", "h:9"), ("c", "h:3")]);
        let moved = peers.follow(&next, &Discovery::default(), None);
        assert_eq!(moved, [Moved::Removed(d), Moved::Changed(b), Moved::Added(c)]);
        assert_eq!((peers.by_name("d"), peers.name(d), peers.target(d)), (None, None, None));
        assert_eq!(peers.names().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(peers.follow(&next, &Discovery::default(), None), []);
        let moved = peers.follow(&with_peers(&[("d", "h:2")]), &Discovery::default(), None);
        assert_eq!(moved, [Moved::Removed(b), Moved::Removed(c), Moved::Added(again)]);
        assert_eq!(peers.by_name("d"), Some(again));
    }

    #[test]
    fn a_peer_goes_where_it_is_found_and_stays_there_until_it_is_found_elsewhere() {
        let key = NodeKey::generate().expect("random").public();
        let mut config = with_peers(&[("beta", ""), ("fixed", "h:1")]);
        for peer in config.peers.values_mut() {
            peer.key = Some(key);
        }
        let mut discovery = Discovery::default();
        let mut peers = Peers::new(&config);
        let (fixed, beta) = (PeerId(0), PeerId(1));
        assert_eq!((peers.by_name("fixed"), peers.by_name("beta")), (Some(fixed), None));
        let at = |peers: &Peers, peer| peers.target(peer).map(|it| it.address.to_string());
        let said = [("beta", "b:1"), ("fixed", "other:1"), ("stranger", "s:1")];
        let said = said.map(|(name, at)| {
            let address = at.parse().expect("an address");
            (name.to_owned(), Found { address, ..Found::default() })
        });
        discovery.hear(Source::Files, Ok(said.into()), Nanos::ZERO);
        assert_eq!(peers.follow(&config, &discovery, None), [Moved::Added(beta)]);
        assert_eq!(at(&peers, beta).as_deref(), Some("b:1"));
        assert_eq!(at(&peers, fixed).as_deref(), Some("h:1"), "as the operator wrote");
        discovery.hear(Source::Files, Ok(BTreeMap::new()), Nanos::ZERO);
        assert_eq!(peers.follow(&config, &discovery, None), []);
        assert_eq!(at(&peers, beta).as_deref(), Some("b:1"));
        // What is trusted no more is left, found or not; and what the operator takes back is gone.
        config.peers.get_mut("beta").expect("there").key = None;
        config.peers.get_mut("fixed").expect("there").address = HostPort::default();
        let left = [Moved::Removed(fixed), Moved::Removed(beta)];
        assert_eq!(peers.follow(&config, &discovery, None), left);
    }

    /// Nodes that are found, `p` and these numbers.
    fn say(discovery: &mut Discovery, numbers: std::ops::Range<usize>) {
        let at = |number| Found {
            address: format!("h:{number}").parse().expect("an address"),
            ..Found::default()
        };
        let said = numbers.map(|number| (format!("p{number:05}"), at(1 + number))).collect();
        discovery.hear(Source::Files, Ok(said), Nanos::ZERO);
    }

    #[test]
    fn a_node_that_is_named_no_more_makes_room_for_one_that_is() {
        let (members, mut discovery) = (Members::default(), Discovery::default());
        let roll = Some(Roll { members: &members, own: None });
        let mut peers = Peers::default();
        let none = Config::default();
        say(&mut discovery, 0..PEERS_MAX + 9);
        assert_eq!(peers.follow(&none, &discovery, roll).len(), PEERS_MAX);
        assert_eq!((peers.names().count(), peers.by_name("p01030")), (PEERS_MAX, None));
        let leaves_out = |name: &str| peers.leaves_out(name, &discovery);
        assert_eq!(["p01030", "p00000", "nobody"].map(leaves_out), [true, false, false]);
        let mut follow = |peers: &mut Peers, config: &Config, numbers| {
            say(&mut discovery, numbers);
            peers.follow(config, &discovery, roll)
        };
        // As long as there is room, who is not named any more stays.
        let moved = follow(&mut peers, &none, 3..PEERS_MAX + 2);
        let removed = [0, 1].map(|number| Moved::Removed(PeerId(number)));
        let added = [0, 1].map(|number| Moved::Added(PeerId(PEERS_MAX as u32 + number)));
        assert_eq!(moved, [removed, added].concat());
        assert!(peers.by_name("p00002").is_some() && peers.by_name("p00001").is_none());
        // The configuration has room in any case: the last one and first of the others.
        let listed = with_peers(&[("x", "h:1"), ("y", "h:2")]);
        let moved = follow(&mut peers, &listed, 3..PEERS_MAX + 2);
        assert_eq!(moved[..2], [2, 3].map(|number| Moved::Removed(PeerId(number))));
        assert_eq!((moved.len(), peers.names().count()), (4, PEERS_MAX));
        assert_eq!(follow(&mut peers, &listed, 3..PEERS_MAX + 2), []);
    }

    #[test]
    fn who_was_named_lately_stays_the_longest_and_leaves_its_place_to_be_dialled_always() {
        let (members, mut discovery) = (Members::default(), Discovery::default());
        let roll = Some(Roll { members: &members, own: None });
        let mut config = Config::default();
        config.discovery.connect = Dialling::Always;
        let mut peers = Peers::default();
        let mut follow = |numbers| {
            say(&mut discovery, numbers);
            peers.follow(&config, &discovery, roll)
        };
        follow(0..PEERS_MAX);
        // The first half is named again, and then the second.
        follow(0..PEERS_MAX / 2);
        let moved = follow(PEERS_MAX / 2 + 10..PEERS_MAX + 10);
        let removed: Vec<Moved> = (512..522).map(|it| Moved::Removed(PeerId(it))).collect();
        assert_eq!(moved[..10], removed, "who was named in the round before stays");
        // All that are dialled always leave, and others are at once.
        let moved = follow(5000..5000 + PEERS_MAX);
        assert_eq!(moved.len(), 2 * PEERS_MAX);
        let always = peers.introduce_all();
        let is_always =
            |it: &Command| matches!(it, Command::AddPeer { dialling: Dialling::Always, .. });
        assert_eq!(always.iter().filter(|it| is_always(it)).count() as u32, PEERS_ALWAYS_MAX);
    }

    #[test]
    fn so_many_of_those_that_are_found_are_dialled_always() {
        let (members, mut discovery) = (Members::default(), Discovery::default());
        let roll = Some(Roll { members: &members, own: None });
        say(&mut discovery, 0..300);
        let mut config = with_peers(&[("x", "h:1"), ("y", "h:2")]);
        config.discovery.connect = Dialling::Always;
        let mut peers = Peers::default();
        peers.follow(&config, &discovery, roll);
        let always = |peers: &Peers| {
            let all = peers.introduce_all();
            let is_always =
                |it: &Command| matches!(it, Command::AddPeer { dialling: Dialling::Always, .. });
            all.iter().filter(|command| is_always(command)).count() as u32
        };
        assert_eq!(always(&peers), PEERS_ALWAYS_MAX);
        // One that leaves gives its place to the next.
        config.peers.remove("x");
        let next = Moved::Rescheduled(PeerId(PEERS_ALWAYS_MAX));
        assert_eq!(peers.follow(&config, &discovery, roll), [Moved::Removed(PeerId(0)), next]);
        // Others are named: those come first, although they are new.
        say(&mut discovery, 600..700);
        let moved = peers.follow(&config, &discovery, roll);
        let rested = moved.iter().filter(|it| matches!(it, Moved::Rescheduled(_))).count();
        assert_eq!((moved.len(), rested, always(&peers)), (200, 100, PEERS_ALWAYS_MAX));
        assert_eq!(peers.follow(&config, &discovery, roll), []);
        assert_eq!(always(&peers), PEERS_ALWAYS_MAX);
        config.discovery.connect = Dialling::Used;
        peers.follow(&config, &discovery, roll);
        assert_eq!(always(&peers), 1);
    }
}
