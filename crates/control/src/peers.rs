//! The peers that this node dials, by number.

use std::collections::{BTreeMap, BTreeSet};

use piped_config::{Config, HostPort, PEERS_MAX, Peer};
use piped_core::ids::PeerId;
use piped_core::link::{Checksum, Dialling};
use piped_engine::command::Command;

use crate::discovery::Discovery;
use crate::members::Members;

/// The peers by number. A peer keeps its number as long as the daemon runs, also if the peer leaves
/// the configuration: shards know it by that.
#[derive(Debug, Default)]
pub struct Peers {
    known: Vec<Known>,
    /// Where each name stands among these.
    places: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct Known {
    name: String,
    /// None for a peer that left the configuration.
    target: Option<Peer>,
    /// Whether its address is one that a source gave, and not the operator.
    is_found: bool,
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
    /// The peer left the configuration.
    Removed(PeerId),
    /// The peer has other addresses, or checksums of its connections cover something else.
    Changed(PeerId),
}

impl Peers {
    /// Numbers the peers of a configuration.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut peers = Self::default();
        peers.follow(config, &Discovery::default(), None);
        peers
    }

    /// Whether there are numbers enough for the peers of a configuration.
    #[must_use]
    pub fn has_room_for(&self, config: &Config) -> bool {
        // Each of them may be found one day.
        let new = config.peers.keys().filter(|name| self.find(name).is_none());
        self.known.len() + new.count() <= PEERS_MAX
    }

    /// Takes the peers of a configuration, and addresses that sources give; what is different, by
    /// number.
    ///
    /// A peer whose address was found keeps it until another one is found: a node that is not named
    /// any more may be where it was, and what is open there stays open.
    ///
    /// In a cluster each node that is found is a peer, as long as there are numbers.
    pub fn follow(
        &mut self,
        config: &Config,
        discovery: &Discovery,
        roll: Option<Roll<'_>>,
    ) -> Vec<Moved> {
        let mut moved = Vec::new();
        let members = roll.map(|roll| roll.members);
        let unlisted = Peer::default();
        let wanted = |name: &str| {
            let own = roll.is_some_and(|roll| roll.own == Some(name));
            config.peers.get(name).or_else(|| members.filter(|_| !own).map(|_| &unlisted))
        };
        let located = |name: &str, peer| located(name, peer, discovery, members);
        let dialled = |is_found: bool| match is_found {
            true => config.discovery.connect,
            false => Dialling::Always,
        };
        for (place, known) in self.known.iter_mut().enumerate() {
            let id = PeerId(place as u32);
            let peer = wanted(&known.name);
            let (next, is_found) = match peer.and_then(|peer| located(&known.name, peer)) {
                Some((peer, is_found)) => (Some(peer), is_found),
                None => {
                    let last = known.target.as_ref().filter(|_| known.is_found);
                    let can_prove = |peer: &&Peer| peer.key.is_some() || members.is_some();
                    let stays = peer.filter(can_prove).zip(last);
                    let at = |(peer, last): (&Peer, &Peer)| {
                        found_at(peer, &last.address, &last.second_address)
                    };
                    (stays.map(at), true)
                }
            };
            moved.extend(match (&known.target, &next) {
                (None, Some(_)) => Some(Moved::Added(id)),
                (Some(_), None) => Some(Moved::Removed(id)),
                (Some(one), Some(other)) => {
                    let addresses =
                        |peer: &Peer| (peer.address.clone(), peer.second_address.clone());
                    let seen = |peer: &Peer| (addresses(peer), peer.plain_checksum());
                    let is_same = seen(one) == seen(other) && known.dialling == dialled(is_found);
                    (!is_same).then_some(Moved::Changed(id))
                }
                (None, None) => None,
            });
            (known.target, known.is_found) = (next, is_found);
            known.dialling = dialled(is_found);
        }
        let found = members.map_or_else(BTreeSet::new, |_| discovery.names());
        let listed: BTreeSet<&String> = config.peers.keys().collect();
        // Those of the configuration may be found one day, and have their numbers then.
        let to_come = listed.iter().filter(|name| self.find(name).is_none()).count();
        let mut room = PEERS_MAX.saturating_sub(self.known.len() + to_come);
        for name in listed.iter().chain(found.difference(&listed)).copied() {
            let is_listed = config.peers.contains_key(name);
            if (is_listed || room > 0)
                && self.find(name).is_none()
                && let Some((peer, is_found)) = wanted(name).and_then(|it| located(name, it))
            {
                moved.push(Moved::Added(PeerId(self.known.len() as u32)));
                room -= usize::from(!is_listed);
                let (name, target, dialling) = (name.clone(), Some(peer), dialled(is_found));
                self.places.insert(name.clone(), self.known.len());
                self.known.push(Known { name, target, is_found, dialling });
            }
        }
        moved
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// The number of a peer of the configuration.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<PeerId> {
        let place = self.find(name)?;
        self.known[place].target.is_some().then_some(PeerId(place as u32))
    }

    /// The name of a peer, also of one that left.
    #[must_use]
    pub fn name(&self, peer: PeerId) -> Option<&str> {
        self.known.get(peer.0 as usize).map(|known| known.name.as_str())
    }

    /// What a shard is told of a peer; nothing of a number that no peer has.
    pub(crate) fn introduce(&self, peer: PeerId) -> Option<Command> {
        let name = self.name(peer)?.to_owned();
        let target = self.target(peer);
        let checksum = target.map_or_else(Checksum::default, |target| target.checksum);
        let second = target.is_some_and(|target| !target.second_address.is_empty());
        let dialling = self.known.get(peer.0 as usize).map(|known| known.dialling);
        let dialling = dialling.unwrap_or_default();
        Some(Command::AddPeer { peer, name, checksum, second, dialling })
    }

    /// What a shard is told of a peer that moved.
    pub(crate) fn tell(&self, moved: Moved) -> Vec<Command> {
        match moved {
            Moved::Added(peer) => self.introduce(peer).into_iter().collect(),
            Moved::Removed(peer) => vec![Command::RemovePeer { peer }],
            Moved::Changed(peer) => {
                self.introduce(peer).into_iter().chain([Command::RedialPeer { peer }]).collect()
            }
        }
    }

    /// Address, keys and checksums of a peer; none if it left.
    #[must_use]
    pub fn target(&self, peer: PeerId) -> Option<&Peer> {
        self.known.get(peer.0 as usize)?.target.as_ref()
    }

    /// The names of the peers of the configuration.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let known = self.known.iter().filter(|known| known.target.is_some());
        known.map(|known| known.name.as_str())
    }
}

/// A peer that this node connects to, with its address, and whether that was found; others only
/// connect to it. What the operator wrote goes before what a source says.
fn located(
    name: &str,
    peer: &Peer,
    discovery: &Discovery,
    members: Option<&Members>,
) -> Option<(Peer, bool)> {
    if !peer.address.is_empty() {
        return Some((peer.clone(), false));
    }
    let (_, found) = discovery.find(name, peer, members)?;
    Some((found_at(peer, &found.address, &found.second_address), true))
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
    fn a_peer_keeps_its_number_while_it_comes_and_goes() {
        let mut peers = Peers::new(&with_peers(&[("b", "h:1"), ("d", "h:2")]));
        let [b, d, c] = [0, 1, 2].map(PeerId);
        assert_eq!((peers.by_name("b"), peers.by_name("d")), (Some(b), Some(d)));
        let next = with_peers(&[("b", "h:9"), ("c", "h:3")]);
        let moved = peers.follow(&next, &Discovery::default(), None);
        assert_eq!(moved, [Moved::Changed(b), Moved::Removed(d), Moved::Added(c)]);
        assert_eq!((peers.by_name("d"), peers.name(d)), (None, Some("d")));
        assert_eq!(peers.target(d), None);
        assert_eq!(peers.names().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(peers.follow(&next, &Discovery::default(), None), []);
        assert_eq!(
            peers.follow(&with_peers(&[("d", "h:2")]), &Discovery::default(), None).len(),
            3
        );
        assert_eq!(peers.by_name("d"), Some(d));
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

    #[test]
    fn there_are_only_so_many_numbers() {
        let names: Vec<String> = (0..PEERS_MAX).map(|number| format!("p{number}")).collect();
        let all: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "h:1")).collect();
        let peers = Peers::new(&with_peers(&all));
        assert!(peers.has_room_for(&with_peers(&all)));
        assert!(!peers.has_room_for(&with_peers(&[("another", "h:1")])));
    }
}
