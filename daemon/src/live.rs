//! What a reload replaces: the configuration in effect, and what follows from it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use piped_config::{Admin, Client, Config, Export, Listen, Names, PEERS_MAX, Peer};
use piped_core::ids::PeerId;

use crate::client::access::Rules;
use crate::open::export::Exports;
use crate::peer::keyring::Keyring;

/// All of it, replaced as a whole.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    pub(crate) config: Rc<Config>,
    pub(crate) rules: Rc<Rules>,
    pub(crate) exports: Arc<Exports>,
    pub(crate) keyring: Rc<Keyring>,
    /// Users and groups, as they were read with it.
    pub(crate) names: Rc<Names>,
}

/// Exports that the sandbox keeps from becoming what the files say, and what they are until the restart.
pub(crate) type Outside = BTreeMap<String, Option<Export>>;

/// What an export is that runs as `running` and can become `next` only by a restart: what both give, so that what the
/// files do not give any more is taken back at once. `None`: nothing. Another directory is nothing that both give.
pub(crate) fn until_restart(
    running: Option<&Export>,
    next: &Export,
    is_same_directory: bool,
) -> Option<Export> {
    let running = running.filter(|running| is_same_directory && running.path == next.path)?;
    let (read, write) = (running.read && next.read, running.write && next.write);
    (read || write).then(|| Export { read, write, ..next.clone() })
}

/// What of `next` takes effect in a daemon that runs with `running`; the rest waits for a restart.
pub(crate) fn in_effect(running: &Config, next: &Config, outside: &Outside) -> Config {
    let (running, mut next) = (running.clone(), next.clone());
    for (name, export) in outside {
        next.exports.remove(name);
        next.exports.extend(export.clone().map(|export| (name.clone(), export)));
    }
    Config {
        client: Client { socket: running.client.socket, ..next.client },
        admin: Admin { socket: running.admin.socket, ..next.admin },
        access: next.access,
        planner: next.planner,
        listen: Listen { address: running.listen.address, ..next.listen },
        security: next.security,
        peers: next.peers,
        exports: next.exports,
        limits: next.limits,
        log: next.log,
        ..running
    }
}

/// The peers by number. A number stays its peer's as long as the daemon runs, also if the peer leaves
/// the configuration: shards know it by that.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    known: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    name: String,
    /// None: it left.
    target: Option<Peer>,
}

/// What became of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It is new, or back.
    Added(PeerId),
    /// It left.
    Removed(PeerId),
    /// It has another address.
    Readdressed(PeerId),
}

impl Peers {
    pub(crate) fn new(config: &Config) -> Self {
        let mut peers = Self::default();
        peers.follow(config);
        peers
    }

    /// Whether there are numbers enough for the peers of a configuration.
    pub(crate) fn has_room_for(&self, config: &Config) -> bool {
        let new = dialled(config).filter(|(name, _)| self.find(name).is_none());
        self.known.len() + new.count() <= PEERS_MAX
    }

    /// Takes a configuration's peers; what is different, by number.
    pub(crate) fn follow(&mut self, config: &Config) -> Vec<Moved> {
        let mut moved = Vec::new();
        for (place, known) in self.known.iter_mut().enumerate() {
            let id = PeerId(place as u32);
            let next =
                config.peers.get(&known.name).filter(|peer| !peer.address.is_empty()).cloned();
            moved.extend(match (&known.target, &next) {
                (None, Some(_)) => Some(Moved::Added(id)),
                (Some(_), None) => Some(Moved::Removed(id)),
                (Some(one), Some(other)) if one.address != other.address => {
                    Some(Moved::Readdressed(id))
                }
                _ => None,
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

    /// A peer of the configuration.
    pub(crate) fn by_name(&self, name: &str) -> Option<PeerId> {
        let place = self.find(name)?;
        self.known[place].target.is_some().then_some(PeerId(place as u32))
    }

    /// Also of one that left.
    pub(crate) fn name(&self, peer: PeerId) -> Option<&str> {
        self.known.get(peer.0 as usize).map(|known| known.name.as_str())
    }

    /// Where it listens, and its key; none if it left.
    pub(crate) fn target(&self, peer: PeerId) -> Option<&Peer> {
        self.known.get(peer.0 as usize)?.target.as_ref()
    }

    /// The names of those of the configuration.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let known = self.known.iter().filter(|known| known.target.is_some());
        known.map(|known| known.name.as_str())
    }
}

/// The peers that this node connects to; others only connect to it.
fn dialled(config: &Config) -> impl Iterator<Item = (&String, &Peer)> {
    config.peers.iter().filter(|(_, peer)| !peer.address.is_empty())
}

#[cfg(test)]
mod tests {
    use piped_config::{Bytes, Peer, Period};
    use piped_core::modes::{PlannerMode, Profile};

    use super::*;

    fn with_peers(peers: &[(&str, &str)]) -> Config {
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
        assert_eq!(moved, [Moved::Readdressed(b), Moved::Removed(d), Moved::Added(c)]);
        assert_eq!((peers.by_name("d"), peers.name(d)), (None, Some("d")));
        assert_eq!(peers.target(d), None);
        assert_eq!(peers.names().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(peers.follow(&next), []);
        assert_eq!(peers.follow(&with_peers(&[("d", "h:2")])).len(), 3);
        assert_eq!(peers.by_name("d"), Some(d));
    }

    #[test]
    fn exports_outside_of_the_sandbox_are_what_both_configurations_give() {
        let export = |path: &str| Export { path: path.into(), ..Export::default() };
        let (mut running, mut next) = (Config::default(), Config::default());
        running.exports.insert("moved".to_owned(), export("/one"));
        running.exports.insert("wider".to_owned(), export("/wider"));
        for (name, path) in
            [("moved", "/other"), ("new", "/new"), ("fine", "/fine"), ("wider", "/wider")]
        {
            next.exports.insert(name.to_owned(), export(path));
        }
        let wider = next.exports.get_mut("wider").expect("there");
        (wider.write, wider.users) = (true, vec![piped_config::Principal::Id(7)]);
        let waits = |name: &str| {
            let export = until_restart(running.exports.get(name), &next.exports[name], true);
            (name.to_owned(), export)
        };
        let outside = Outside::from(["moved", "new", "wider"].map(waits));
        let effect = in_effect(&running, &next, &outside);
        assert_eq!(effect.exports.keys().collect::<Vec<_>>(), ["fine", "wider"]);
        let wider = &effect.exports["wider"];
        assert_eq!((wider.read, wider.write), (true, false));
        assert_eq!(wider.users, next.exports["wider"].users, "nobody else from now on");
        let waiting = effect.changes_to(&next);
        let waits = |key: &str| waiting.iter().any(|it| it.key == key);
        assert!(waits("exports.moved.path") && waits("exports.new.path"));
        assert!(waits("exports.wider.write") && !waits("exports.wider.users"));
    }

    #[test]
    fn an_export_that_waits_for_a_restart_gives_no_more_than_before_and_no_more_than_after() {
        let export = |read, write| Export { path: "/a".into(), read, write, ..Export::default() };
        let (only_read, only_write) = (export(true, false), export(false, true));
        assert_eq!(until_restart(Some(&only_read), &only_write, true), None);
        assert_eq!(
            until_restart(Some(&export(true, true)), &only_write, true),
            Some(only_write.clone())
        );
        assert_eq!(until_restart(None, &only_write, true), None);
        // The name of the directory stayed, and another one has it.
        assert_eq!(until_restart(Some(&only_read), &only_read, false), None);
    }

    #[test]
    fn there_are_only_so_many_numbers() {
        let names: Vec<String> = (0..PEERS_MAX).map(|number| format!("p{number}")).collect();
        let all: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "h:1")).collect();
        let peers = Peers::new(&with_peers(&all));
        assert!(peers.has_room_for(&with_peers(&all)));
        assert!(!peers.has_room_for(&with_peers(&[("another", "h:1")])));
    }

    #[test]
    fn what_needs_a_restart_stays_as_it_runs() {
        let running = Config::default();
        let mut next = with_peers(&[("b", "h:1")]);
        next.profile = Profile::Latency;
        next.shards.count = 2;
        next.client.socket = "/elsewhere".into();
        next.listen.address = Some("127.0.0.1:1".parse().expect("an address"));
        let mut expected = with_peers(&[("b", "h:1")]);
        for config in [&mut next, &mut expected] {
            config.client.arena_bytes_max = Bytes::mib(1);
            config.client.deadline_default = Period::seconds(1);
            config.planner.mode = PlannerMode::Whole;
            config.log.level = "debug".to_owned();
            config.access.users = vec![piped_config::Principal::Id(7)];
            config.admin.groups = vec![piped_config::Principal::Id(8)];
            config.listen.allow_plain = vec!["10.0.0.0/8".parse().expect("a network")];
        }
        let effect = in_effect(&running, &next, &Outside::new());
        assert_eq!(effect, expected);
        let waiting: Vec<String> =
            effect.changes_to(&next).into_iter().map(|change| change.key).collect();
        let keys = ["client.socket", "listen.address", "profile", "shards.count"];
        assert_eq!(waiting, keys);
    }
}
