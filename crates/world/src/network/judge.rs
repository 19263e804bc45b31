//! What is judged: which connections there may be, and which there must be.

use std::collections::BTreeMap;

use piped_config::{NodeKey, Principal, PublicKey};
use piped_core::link::{LaneClass, Protection};
use piped_core::units::Nanos;

use super::{NAMES, Network};
use crate::controls::{End, Setup};

/// A connection that is forbidden is closed within that time.
pub(super) const CLOSING: Nanos = Nanos::from_millis(3_000);

/// Nodes that trust each other are not without connections for longer.
const ALONE: Nanos = Nanos::from_millis(15_000);

const CLASSES: [LaneClass; 2] = [LaneClass::Latency, LaneClass::Bulk];

impl Network {
    /// No connection stays that the configuration of its node forbids.
    pub(super) fn judge(&mut self) {
        let now = self.kernel.now();
        let ends = self.controls.ends(&self.kernel).to_vec();
        let mut forbidden = BTreeMap::new();
        for end in &ends {
            let Err(why) = self.may_be(end) else { continue };
            let place = (end.node, end.connection);
            let since = *self.forbidden.get(&place).unwrap_or(&now);
            assert!(
                now.since(since) < CLOSING || !self.controls.is_told(end.node),
                "{} has had a forbidden connection with {} since {since}: {why}; {end:?}",
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
    pub(super) fn judge_alone(&mut self) {
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

    /// Nodes that can be connected and are not: which dials, which is dialled, and the shard that
    /// has no connection.
    pub(super) fn missing(&self) -> Vec<(usize, usize, usize)> {
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
    pub(super) fn up(&self, from: usize, to: usize, shard: usize) -> [bool; 2] {
        let Some(shard) = &self.shards[from][shard] else { return [false; 2] };
        let report = shard.report();
        let peer = report.peers.iter().find(|it| it.name == NAMES[to] && !it.inbound);
        CLASSES.map(|class| {
            let lanes = peer.iter().flat_map(|peer| &peer.lanes);
            lanes.filter(|lane| lane.class == class).any(|lane| lane.up)
        })
    }

    /// Whether a node may have a connection by its configuration of now.
    pub(super) fn may_be(&self, end: &End) -> Result<(), &'static str> {
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

    pub(super) fn admits_plain(&self, here: &Setup, from: &Setup) -> Result<(), &'static str> {
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
    pub(super) fn can_dial(&self, from: usize, to: usize) -> bool {
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
    pub(super) fn judge_lanes(&mut self) {
        let nodes = self.options.nodes;
        let pairs = (0..nodes * nodes).map(|pair| (pair / nodes, pair % nodes));
        for (from, to) in pairs.filter(|(from, to)| from != to) {
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

impl Setup {
    fn check_own(&self, key: &PublicKey, protection: Protection) -> Result<(), &'static str> {
        if self.own.as_ref().map(NodeKey::public) != Some(*key) {
            return Err("this node has another key");
        }
        if protection < self.config.security.mode {
            return Err("this node wants more protection");
        }
        Ok(())
    }
}
