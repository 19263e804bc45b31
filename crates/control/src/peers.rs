//! The peers that this node dials, by number.

use piped_config::{Config, PEERS_MAX, Peer};
use piped_core::ids::PeerId;
use piped_core::link::Checksum;
use piped_engine::command::Command;

/// The peers by number. A peer keeps its number as long as the daemon runs, also if the peer leaves
/// the configuration: shards know it by that.
#[derive(Debug, Default)]
pub struct Peers {
    known: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    name: String,
    /// None for a peer that left the configuration.
    target: Option<Peer>,
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
        peers.follow(config);
        peers
    }

    /// Whether there are numbers enough for the peers of a configuration.
    #[must_use]
    pub fn has_room_for(&self, config: &Config) -> bool {
        let new = dialled(config).filter(|(name, _)| self.find(name).is_none());
        self.known.len() + new.count() <= PEERS_MAX
    }

    /// Takes the peers of a configuration; what is different, by number.
    pub fn follow(&mut self, config: &Config) -> Vec<Moved> {
        let mut moved = Vec::new();
        for (place, known) in self.known.iter_mut().enumerate() {
            let id = PeerId(place as u32);
            let next =
                config.peers.get(&known.name).filter(|peer| !peer.address.is_empty()).cloned();
            moved.extend(match (&known.target, &next) {
                (None, Some(_)) => Some(Moved::Added(id)),
                (Some(_), None) => Some(Moved::Removed(id)),
                (Some(one), Some(other)) => {
                    let addresses =
                        |peer: &Peer| (peer.address.clone(), peer.second_address.clone());
                    let seen = |peer: &Peer| (addresses(peer), peer.plain_checksum());
                    (seen(one) != seen(other)).then_some(Moved::Changed(id))
                }
                (None, None) => None,
            });
            known.target = next;
        }
        for (name, peer) in dialled(config) {
            if self.find(name).is_none() {
                moved.push(Moved::Added(PeerId(self.known.len() as u32)));
                let (name, target) = (name.clone(), Some(peer.clone()));
                self.known.push(Known { name, target });
            }
        }
        moved
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.known.iter().position(|known| known.name == name)
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
        Some(Command::AddPeer { peer, name, checksum, second })
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

/// The peers that this node connects to; others only connect to it.
fn dialled(config: &Config) -> impl Iterator<Item = (&String, &Peer)> {
    config.peers.iter().filter(|(_, peer)| !peer.address.is_empty())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

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
        let moved = peers.follow(&next);
        assert_eq!(moved, [Moved::Changed(b), Moved::Removed(d), Moved::Added(c)]);
        assert_eq!((peers.by_name("d"), peers.name(d)), (None, Some("d")));
        assert_eq!(peers.target(d), None);
        assert_eq!(peers.names().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(peers.follow(&next), []);
        assert_eq!(peers.follow(&with_peers(&[("d", "h:2")])).len(), 3);
        assert_eq!(peers.by_name("d"), Some(d));
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
