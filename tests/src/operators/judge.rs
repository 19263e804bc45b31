//! What is judged: which connections there may be, which there must be, and which rights.

use std::collections::{BTreeMap, BTreeSet};

use piped_config::{HostPort, NodeKey, Principal, PublicKey};
use piped_core::limits::HELLO_TIME;
use piped_core::link::Protection;
use piped_core::names::node_of;
use piped_core::units::Nanos;
use piped_engine::shard::Shard;
use piped_sim::{ConnectionId, SimKernel};
use piped_world::controls::{Controls, End, OWN_USER, Setup};

use super::{EXPORT, FOLDER, NAMES, cluster};

/// A connection that is forbidden is closed within that time.
const CLOSING: Nanos = Nanos::from_millis(3_000);

/// A connection that is forbidden by a name which its other side may not have said yet, for that
/// has a time of its own, is closed within that time.
pub const NAMING: Nanos = Nanos(HELLO_TIME.0 + CLOSING.0);

/// Why a plain connection of a node with a key is forbidden.
const RESERVED: &str = "the name is that of a node with a key";

/// How worlds call it that several shards of a node serve the shards of another one.
pub const SPREAD: &str = "node served by several shards";

/// Nodes that trust each other are not without connections for longer.
const ALONE: Nanos = Nanos::from_millis(15_000);

/// Which connections of a node are up, by the node, the other node, and the shard.
pub type Up<'a> = dyn Fn(usize, usize, usize) -> [bool; 2] + 'a;

/// What was seen so far of what must not be.
#[derive(Debug, Default)]
pub struct Judge {
    /// Forbidden ends of connections, since when.
    forbidden: BTreeMap<(usize, ConnectionId), Nanos>,
    /// Shards that have no connection where there can be one, since when.
    alone: BTreeMap<(usize, usize, usize), Nanos>,
}

impl Judge {
    /// No connection stays that the configuration of its node forbids.
    ///
    /// # Panics
    /// If one does.
    pub fn judge(&mut self, controls: &mut Controls, kernel: &SimKernel) {
        let now = kernel.now();
        let ends = controls.ends(kernel).to_vec();
        let mut forbidden = BTreeMap::new();
        for end in &ends {
            let Err(why) = may_be(controls, end) else { continue };
            let place = (end.node, end.connection);
            let since = *self.forbidden.get(&place).unwrap_or(&now);
            let within = if why == RESERVED { NAMING } else { CLOSING };
            assert!(
                now.since(since) < within || !controls.is_told(end.node),
                "{} has had a forbidden connection with {} since {since}: {why}; {end:?}",
                NAMES[end.node],
                NAMES[end.other]
            );
            *controls.seen.entry("forbidden connection seen").or_default() += 1;
            forbidden.insert(place, since);
        }
        self.forbidden = forbidden;
    }

    /// Nodes that trust each other all the time are never without connections for long.
    ///
    /// # Panics
    /// If some are.
    pub fn judge_alone(&mut self, controls: &Controls, up: &Up<'_>, now: Nanos) {
        let mut alone = BTreeMap::new();
        for (from, to) in pairs(controls).filter(|(from, to)| can_dial(controls, *from, *to)) {
            for shard in 0..controls.nodes[from].setup.shards.len() {
                if up(from, to, shard) == [true; 2] {
                    continue;
                }
                let since = *self.alone.get(&(from, to, shard)).unwrap_or(&now);
                assert!(
                    now.since(since) < ALONE,
                    "shard {shard} of {} has not been connected with {} since {since}",
                    NAMES[from],
                    NAMES[to]
                );
                alone.insert((from, to, shard), since);
            }
        }
        self.alone = alone;
    }
}

/// Nodes are connected if they can be, and else they are not. How many of each there are.
///
/// # Panics
/// If it is otherwise.
pub fn judge_lanes(controls: &Controls, up: &Up<'_>) -> BTreeMap<&'static str, u64> {
    let mut seen = BTreeMap::new();
    for (from, to) in pairs(controls) {
        let can = can_dial(controls, from, to);
        let what = if can { "nodes can be connected" } else { "nodes cannot be connected" };
        *seen.entry(what).or_default() += 1;
        for shard in 0..controls.nodes[from].setup.shards.len() {
            let up = up(from, to, shard);
            assert!(
                up == [can; 2],
                "{} and {} {} be connected, and lanes of {} are up: {up:?}; {:#?} {:#?}",
                NAMES[from],
                NAMES[to],
                if can { "can" } else { "cannot" },
                NAMES[from],
                controls.nodes[from].setup,
                controls.nodes[to].setup,
            );
        }
    }
    seen
}

/// The proven lanes of one shard of another node are all at one shard of this node. How many nodes
/// several of these shards serve.
///
/// # Panics
/// If lanes of one shard are at two.
#[must_use]
pub fn judge_homes(shards: &[Shard]) -> u64 {
    let mut homes = BTreeMap::new();
    let mut by_node: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (home, shard) in shards.iter().enumerate() {
        for peer in shard.report().peers.into_iter().filter(|peer| peer.inbound) {
            if !peer.lanes.iter().any(|lane| lane.up && lane.protection.is_some()) {
                continue;
            }
            by_node.entry(node_of(&peer.name).to_owned()).or_default().insert(home);
            let name = peer.name.clone();
            let other = homes.insert(peer.name, home);
            assert!(other.is_none(), "{name} has lanes at shards {home} and {other:?}");
        }
    }
    by_node.values().filter(|homes| homes.len() > 1).count() as u64
}

fn pairs(controls: &Controls) -> impl Iterator<Item = (usize, usize)> + use<> {
    let nodes = controls.nodes.len();
    (0..nodes * nodes).map(move |it| (it / nodes, it % nodes)).filter(|(from, to)| from != to)
}

/// Whether a user of the machine of a node may be a client of it.
#[must_use]
pub fn admits_user(here: &Setup, user: u32) -> bool {
    [0, OWN_USER].contains(&user) || here.config.access.users.contains(&Principal::Id(user))
}

/// A party that asks a node for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Party<'a> {
    /// A user of the machine of the node.
    User(u32),
    /// Another node, by its key.
    Proven(&'a str),
    /// Another node, by its word; with its user where it is on the same machine.
    Plain(&'a str, Option<u32>),
}

/// A node as another one knows it, over a connection of now.
#[must_use]
pub fn party_of(controls: &Controls, from: usize, to: usize) -> Party<'static> {
    let (here, there) = (&controls.nodes[from].setup, &controls.nodes[to].setup);
    let has_key = here.config.peers.get(NAMES[to]).is_some_and(|peer| peer.key.is_some());
    let is_near = here.address.ip() == there.address.ip();
    match has_key {
        true => Party::Proven(NAMES[from]),
        false => Party::Plain(NAMES[from], is_near.then_some(here.user)),
    }
}

/// Whether a party may have anything of a node open.
#[must_use]
pub fn is_welcome(here: &Setup, party: Party<'_>) -> bool {
    match party {
        Party::User(user) | Party::Plain(_, Some(user)) => admits_user(here, user),
        Party::Proven(_) | Party::Plain(_, None) => true,
    }
}

/// Whether a party may have a file of a node open, for reading and writing.
#[must_use]
pub fn may_open(here: &Setup, party: Party<'_>) -> bool {
    let Some(export) = here.config.exports.get(EXPORT) else { return false };
    let user = |user| export.users.is_empty() || export.users.contains(&Principal::Id(user));
    let node = |name| export.peers.is_empty() || export.peers.iter().any(|it| it == name);
    let is_for = match party {
        Party::User(number) => user(number),
        Party::Proven(name) => node(name),
        Party::Plain(name, Some(number)) => user(number) && node(name),
        Party::Plain(name, None) => {
            node(name) && (export.users.is_empty() || !export.peers.is_empty())
        }
    };
    let whole = export.read && export.write && export.path.as_os_str() == FOLDER;
    is_welcome(here, party) && is_for && whole
}

/// Whether a node may have a connection by its configuration of now.
fn may_be(controls: &Controls, end: &End) -> Result<(), &'static str> {
    let (here, there) = (&controls.nodes[end.node].setup, &controls.nodes[end.other].setup);
    if let Some((peer, _, address)) = end.dialled {
        let peers = controls.control(end.node).peers();
        let target = peers.target(peer).ok_or("the peer left")?;
        let by_certificate = target.key.is_none() && here.config.cluster.is_on();
        if target.address.as_str() != address.to_string() {
            return Err("the peer has another address");
        }
        let Some(sealed) = end.sealed else {
            let has_key = here.own.is_some();
            return match target.key {
                Some(_) => Err("the peer has a key"),
                None if by_certificate => Err("the peer has to prove itself"),
                None if here.config.listen.admits_plain(address.ip(), has_key) => Ok(()),
                None => Err("its network is not one for plain connections"),
            };
        };
        if by_certificate {
            check_member(controls, end, &sealed.keys[1])?;
        } else if !target.keys().any(|key| key == sealed.keys[1]) {
            return Err("the peer has another key");
        }
        return check_own(here, &sealed.keys[0], sealed.protection);
    }
    let name = NAMES[end.other];
    let Some(sealed) = end.sealed else {
        let reserved = here.config.peers.get(name).is_some_and(|peer| peer.key.is_some());
        if reserved {
            return Err(RESERVED);
        }
        return admits_plain(here, there);
    };
    if here.config.cluster.is_on() {
        check_member(controls, end, &sealed.keys[0])?;
        return check_own(here, &sealed.keys[1], sealed.protection);
    }
    let trusted =
        here.config.peers.get(name).is_some_and(|it| it.keys().any(|it| it == sealed.keys[0]));
    if !trusted {
        return Err("the key is not trusted");
    }
    check_own(here, &sealed.keys[1], sealed.protection)
}

/// Whether the key at the other end of a connection is one that the cluster signed for that node,
/// and the node at this end has not heard otherwise.
fn check_member(controls: &Controls, end: &End, key: &PublicKey) -> Result<(), &'static str> {
    if !cluster::is_of(end.other, key) {
        return Err("the cluster signed that key for another node");
    }
    let control = controls.control(end.node);
    let keyring = control.keyring();
    if keyring.identity().is_none_or(|identity| identity.has_revoked(key)) {
        return Err("the key was revoked");
    }
    let known = control.members().certificate(NAMES[end.other]);
    known.map(|_| ()).ok_or("its certificate counts no more")
}

fn admits_plain(here: &Setup, from: &Setup) -> Result<(), &'static str> {
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
#[must_use]
pub fn can_dial(controls: &Controls, from: usize, to: usize) -> bool {
    let (here, there) = (&controls.nodes[from].setup, &controls.nodes[to].setup);
    if here.config.cluster.is_on() {
        // Both have certificates, which are put right in the end.
        return address_of_peer(controls, from, to) == Some(there.address.to_string());
    }
    let Some(target) = here.config.peers.get(NAMES[to]) else { return false };
    if address_of_peer(controls, from, to) != Some(there.address.to_string()) {
        return false;
    }
    if target.key.is_none() {
        let reserved = there.config.peers.get(NAMES[from]).is_some_and(|it| it.key.is_some());
        let has_key = here.own.is_some();
        return !reserved
            && here.config.listen.admits_plain(there.address.ip(), has_key)
            && admits_plain(there, here).is_ok();
    }
    let Some((mine, theirs)) = here.own.as_ref().zip(there.own.as_ref()) else { return false };
    let known = there.config.peers.iter();
    let mut known = known.filter(|(_, peer)| peer.keys().any(|key| key == mine.public()));
    target.keys().any(|key| key == theirs.public())
        && known.next().is_some_and(|(name, _)| name == NAMES[from])
}

/// Where a node dials another one: where its operator wrote, or else where it found it.
fn address_of_peer(controls: &Controls, from: usize, to: usize) -> Option<String> {
    let config = &controls.nodes[from].setup.config;
    let written = config.peers.get(NAMES[to]).map(|peer| &peer.address);
    let unlisted = config.cluster.is_on().then(HostPort::default);
    let written = written.or(unlisted.as_ref())?;
    if !written.is_empty() || !controls.runs(from) {
        return Some(written.to_string());
    }
    let peers = controls.control(from).peers();
    Some(peers.target(peers.by_name(NAMES[to])?)?.address.to_string())
}

fn check_own(here: &Setup, key: &PublicKey, protection: Protection) -> Result<(), &'static str> {
    if here.own.as_ref().map(NodeKey::public) != Some(*key) {
        return Err("this node has another key");
    }
    if protection < here.config.security.mode {
        return Err("this node wants more protection");
    }
    Ok(())
}
