//! Dials: how a connection to a peer comes about, one step after the other.
//!
//! ```text
//!   begin ─► wait ─► look the host up ─► connect ─┬────────► prove ─► deliver to the shard
//!                         │                  ▲ ▲  └► ask ────▲ │
//!                         │    next address  │ │ next proof    │
//!                         └──────► fail ◄────┴─┴───────────────┘
//! ```
//!
//! A node of the cluster proves the key of its certificate. If that is not known, the node is asked
//! for it first: anybody may say it, and only its owner can prove the key in it.
//!
//! Where nobody answers at a peer's address, its second address is looked up as well, if the peer
//! has a key: by that it proves there that it is the same.
//!
//! A shard asks for a connection and says how long to wait first (its back-off). The driver asks
//! for the next [`Step`], performs it, and hands back how it went as a [`Progress`]. Each step
//! takes time, and a reload may come in between. So what was decided at the beginning is compared
//! with the configuration again before the next step, and a connection that the configuration of
//! now would not have is not delivered.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use piped_config::{CertificateFault, HostPort, NodeCertificate, Peer, PublicKey};
use piped_core::ids::PeerId;
use piped_core::link::LaneClass;
use piped_core::units::Nanos;

use crate::control::Control;
use crate::journal::Cause;
use crate::keyring::{Keyring, Refusal};
use crate::note::Note;
use crate::times::Times;

/// How long a dial may take after its back-off, to look up, connect and prove; as long again at a
/// second address.
pub const DIAL_TIME: Nanos = Nanos::from_millis(5_000);

/// A dial under way.
#[derive(Debug)]
pub struct Dial {
    /// The shard that asked.
    pub shard: usize,
    /// The peer to dial.
    pub peer: PeerId,
    /// Which of the connections to the peer.
    pub class: LaneClass,
    after: Nanos,
    until: Nanos,
    name: String,
    /// The peer as it was configured when its host was looked up.
    target: Peer,
    /// Whether the second address is its last resort, and was not looked up yet.
    has_resort: bool,
    /// Addresses that were not tried yet.
    addresses: VecDeque<SocketAddr>,
    address: Option<SocketAddr>,
    /// Proofs that were not tried at this address yet.
    proofs: VecDeque<Proof>,
    /// The certificate by which the key counts that is being proved.
    shown: Option<NodeCertificate>,
    /// Whether the peer proved itself by a certificate.
    is_member: bool,
    /// The keyring under which it did, or by its key.
    proven: Option<Rc<Keyring>>,
    /// The keyring of the proof under way.
    keyring: Option<Rc<Keyring>>,
    /// Why the last proof at this address failed.
    unproven: Option<String>,
    fault: DialFault,
}

/// How a peer may prove itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// By a key that the configuration names.
    Pinned(PublicKey),
    /// The same, and this node shows no certificate: releases before clusters take none.
    Bare(PublicKey),
    /// By the key of the certificate that is known.
    Member,
    /// By the key of a certificate that it is asked for.
    Asked,
    /// Not at all: the connection is plain.
    Plain,
}

/// What the driver of a dial does next.
#[derive(Debug)]
pub enum Step {
    /// Wait until this time.
    Wait(Nanos),
    /// Look up the addresses of a host.
    Resolve(HostPort),
    /// Connect to an address, anew if there is a connection already.
    Connect(SocketAddr),
    /// Ask the other side for its certificate.
    Ask,
    /// Prove the key of this node, and have the peer prove this one.
    Prove {
        /// The keyring of the proof. A reload makes another one.
        keyring: Rc<Keyring>,
        /// The key that the peer has to have.
        key: PublicKey,
        /// Whether this node shows its certificate, if it has one.
        shows: bool,
        /// The shard that is named to the peer: the one that asked for the connection.
        shard: usize,
    },
    /// Give the connection to the shard that asked, at once.
    Deliver,
    /// Tell the shard that asked that there is no connection.
    Fail(DialFault),
}

/// How a step went.
#[derive(Debug)]
pub enum Progress {
    /// The dial was taken up.
    Begun,
    /// The wait is over.
    Waited,
    /// The host was looked up, or cannot be.
    Resolved(Result<Vec<SocketAddr>, String>),
    /// There is a connection, or none.
    Connected(Result<(), String>),
    /// The other side showed these bytes as its certificate, or nothing.
    Showed(Result<Vec<u8>, String>),
    /// Both sides proved their keys, or did not.
    Proved(Result<(), String>),
    /// The time of the dial is over.
    Late,
}

/// Why a dial led to no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DialFault {
    /// The peer left the configuration, or is another one now.
    #[error("the peer is not in the configuration any more, or has another address or key")]
    Changed,
    /// The host has no address.
    #[error("the peer's host has no address")]
    NoAddress,
    /// The connection would be plain where it may not be.
    #[error("the connection would be plain, and the address is not in listen.allow_plain")]
    Plain,
    /// The peer did not answer in time.
    #[error("the peer did not answer in time")]
    Late,
    /// A step failed, with the cause.
    #[error("{0}")]
    Failed(String),
}

impl Dial {
    /// A dial that a shard asked for.
    pub(crate) fn new(shard: usize, peer: PeerId, class: LaneClass, after: Nanos) -> Self {
        Self {
            shard,
            peer,
            class,
            after,
            until: Nanos::MAX,
            name: String::new(),
            target: Peer::default(),
            has_resort: false,
            addresses: VecDeque::new(),
            address: None,
            proofs: VecDeque::new(),
            shown: None,
            is_member: false,
            proven: None,
            keyring: None,
            unproven: None,
            fault: DialFault::NoAddress,
        }
    }

    /// The name of the peer; empty if it had left when the dial began.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When the dial ends whatever comes of it; it counts from the end of its back-off.
    #[must_use]
    pub const fn until(&self) -> Nanos {
        self.until
    }

    /// Nobody is there: the second address, or no connection.
    fn leave_host(&mut self, fault: DialFault, now: Nanos) -> Step {
        if !std::mem::take(&mut self.has_resort) {
            return Step::Fail(fault);
        }
        self.until = now + DIAL_TIME;
        (self.address, self.unproven, self.keyring) = (None, None, None);
        Step::Resolve(self.target.second_address.clone())
    }
}

impl<M: Clone> Control<M> {
    /// Takes how a step of a dial went; the next one.
    pub fn advance(&mut self, dial: &mut Dial, progress: Progress, times: Times) -> Step {
        let now = times.now;
        match progress {
            Progress::Begun => {
                self.peers().name(dial.peer).unwrap_or_default().clone_into(&mut dial.name);
                Step::Wait(dial.after)
            }
            Progress::Waited => {
                let Some(target) = self.peers().target(dial.peer) else {
                    return Step::Fail(DialFault::Changed);
                };
                dial.until = now + DIAL_TIME;
                dial.target = target.clone();
                let host = match dial.class {
                    LaneClass::Latency | LaneClass::Bulk => &target.address,
                    LaneClass::Second => &target.second_address,
                };
                let is_other = *host != target.second_address;
                let has_resort = is_other && !target.second_address.is_empty();
                let host = host.clone();
                dial.has_resort = has_resort && self.must_prove(&dial.target);
                Step::Resolve(host)
            }
            Progress::Resolved(Ok(addresses)) => {
                dial.addresses = addresses.into();
                self.next_address(dial, times)
            }
            Progress::Connected(Ok(())) => self.connected(dial, times),
            Progress::Showed(Ok(shown)) => self.showed(dial, &shown, times),
            Progress::Showed(Err(why)) => self.unproven(dial, why, times),
            Progress::Proved(Ok(())) => self.proved(dial, times),
            Progress::Proved(Err(why)) => self.unproven(dial, why, times),
            Progress::Connected(Err(why)) => {
                dial.fault = DialFault::Failed(why);
                self.leave_address(dial, times)
            }
            Progress::Resolved(Err(why)) => dial.leave_host(DialFault::Failed(why), now),
            Progress::Late => dial.leave_host(DialFault::Late, now),
        }
    }

    /// Whether a connection that is to be delivered may still be: the shards may have been told
    /// otherwise while the driver waited to tell them.
    #[must_use]
    pub fn may_deliver(&self, dial: &Dial) -> bool {
        let keyring = self.keyring();
        let is_same = dial.proven.as_ref().is_none_or(|proven| Rc::ptr_eq(proven, &keyring));
        let counts = !dial.is_member || self.members().certificate(&dial.name).is_some();
        is_same && counts && self.is_still(dial)
    }

    fn next_address(&mut self, dial: &mut Dial, times: Times) -> Step {
        while let Some(address) = dial.addresses.pop_front() {
            if !self.may_be_dialled(&dial.target, address) {
                self.note_of_peer(Cause::Dial, &dial.name, times.now, |peer, left_out| {
                    Note::DialForbidden { peer, address, left_out }
                });
                dial.fault = DialFault::Plain;
                continue;
            }
            dial.address = Some(address);
            dial.proofs = self.proofs(dial, times);
            return Step::Connect(address);
        }
        dial.leave_host(dial.fault.clone(), times.now)
    }

    /// The proofs to try, one after the other.
    fn proofs(&self, dial: &Dial, times: Times) -> VecDeque<Proof> {
        // A peer that changes its key may have either.
        let keyring = self.keyring();
        let shows = keyring.identity().is_some_and(|identity| identity.certificate().is_some());
        let pinned = dial.target.keys().map(Proof::Pinned);
        let bare = dial.target.keys().map(Proof::Bare).filter(|_| shows);
        let pinned: VecDeque<Proof> = pinned.chain(bare).collect();
        match (pinned.is_empty(), self.must_prove(&dial.target)) {
            (false, _) => pinned,
            (true, false) => [Proof::Plain].into(),
            (true, true) => {
                // It may have another certificate by now than the one that is known.
                let known = self.members().certificate(&dial.name);
                match known.is_some_and(|it| it.subject().is_in_last_third(times.calendar)) {
                    true => [Proof::Asked, Proof::Member].into(),
                    false => [Proof::Member, Proof::Asked].into(),
                }
            }
        }
    }

    fn connected(&mut self, dial: &mut Dial, times: Times) -> Step {
        if !self.is_still(dial) {
            return Step::Fail(DialFault::Changed);
        }
        dial.shown = None;
        match dial.proofs.pop_front() {
            // A reload may have begun a cluster meanwhile.
            Some(Proof::Plain) if self.must_prove(&dial.target) => Step::Fail(DialFault::Changed),
            Some(Proof::Plain) => Step::Deliver,
            Some(Proof::Pinned(key)) => self.prove(dial, (key, true), times),
            Some(Proof::Bare(key)) => self.prove(dial, (key, false), times),
            Some(Proof::Member) => {
                let known = self.members().certificate(&dial.name).cloned();
                // Without another connection: nothing was said on this one.
                match known.filter(|it| self.counts(it, times).is_ok()) {
                    Some(known) => self.prove_member(dial, known, times),
                    None => self.connected(dial, times),
                }
            }
            Some(Proof::Asked) => Step::Ask,
            None => self.leave_address(dial, times),
        }
    }

    /// Whether a certificate counts.
    fn counts(&self, shown: &NodeCertificate, times: Times) -> Result<(), Refusal> {
        let keyring = self.keyring();
        let identity = keyring.identity().ok_or(Refusal::Unknown)?;
        identity.check(shown, times.calendar)
    }

    fn showed(&mut self, dial: &mut Dial, shown: &[u8], times: Times) -> Step {
        if shown.is_empty() {
            let why = "it has no certificate, and no key in [peers] here: `piped join` there";
            return self.unproven(dial, why.to_owned(), times);
        }
        let name = dial.name.clone();
        let read = NodeCertificate::from_bytes(shown).map_err(CertificateFault::Unreadable);
        let checked = read.map_err(Refusal::from).and_then(|shown| {
            self.counts(&shown, times)?;
            match shown.subject().name == name {
                true => Ok(shown),
                false => Err(CertificateFault::OtherName(shown.subject().name.clone()).into()),
            }
        });
        match checked {
            Ok(shown) => self.prove_member(dial, shown, times),
            Err(why) => self.unproven(dial, why.to_string(), times),
        }
    }

    fn prove_member(&mut self, dial: &mut Dial, shown: NodeCertificate, times: Times) -> Step {
        let key = shown.subject().key;
        dial.shown = Some(shown);
        self.prove(dial, (key, true), times)
    }

    fn prove(&mut self, dial: &mut Dial, (key, shows): (PublicKey, bool), times: Times) -> Step {
        let keyring = self.keyring();
        if keyring.identity().is_none() {
            // A configuration that has the one key without the other is refused.
            return self.unproven(dial, "this node has no key".to_owned(), times);
        }
        dial.keyring = Some(Rc::clone(&keyring));
        Step::Prove { keyring, key, shows, shard: dial.shard }
    }

    fn proved(&mut self, dial: &mut Dial, times: Times) -> Step {
        let keyring = dial.keyring.take();
        if !keyring.is_some_and(|keyring| Rc::ptr_eq(&keyring, &self.keyring())) {
            // What was agreed on is not what is to be now.
            let why = "the configuration was loaded again meanwhile".to_owned();
            return self.unproven(dial, why, times);
        }
        if !self.is_still(dial) {
            return Step::Fail(DialFault::Changed);
        }
        if let Some(shown) = dial.shown.take() {
            dial.is_member = true;
            self.enter_member(shown, times.now);
        }
        dial.proven = Some(self.keyring());
        Step::Deliver
    }

    fn unproven(&mut self, dial: &mut Dial, why: String, times: Times) -> Step {
        dial.unproven = Some(why);
        match dial.address.filter(|_| !dial.proofs.is_empty()) {
            Some(address) => Step::Connect(address),
            None => self.leave_address(dial, times),
        }
    }

    fn leave_address(&mut self, dial: &mut Dial, times: Times) -> Step {
        if let (Some(error), Some(address)) = (dial.unproven.take(), dial.address) {
            dial.fault = DialFault::Failed(error.clone());
            self.note_of_peer(Cause::Dial, &dial.name, times.now, |peer, left_out| {
                Note::NotConnected { peer, address, error, left_out }
            });
        }
        self.next_address(dial, times)
    }

    /// Whether the configuration still has the peer as it is being dialled, and the network for it.
    fn is_still(&self, dial: &Dial) -> bool {
        let same = self.peers().target(dial.peer) == Some(&dial.target);
        same && dial.address.is_some_and(|it| self.may_be_dialled(&dial.target, it))
    }

    /// Whether the connection would be sealed, or may be plain.
    fn may_be_dialled(&self, target: &Peer, address: SocketAddr) -> bool {
        let has_key = self.keyring().identity().is_some();
        self.must_prove(target) || self.config().listen.admits_plain(address.ip(), has_key)
    }

    /// Whether a peer has to prove itself: by the key of its entry, or by a certificate wherever
    /// there is a cluster.
    fn must_prove(&self, target: &Peer) -> bool {
        target.key.is_some() || self.keyring().has_cluster()
    }
}

#[cfg(test)]
mod tests {
    use piped_config::{Config, NodeKey, SigningKey, UnixTime};

    use super::*;
    use crate::control::Live;

    /// A node that asks another one with two addresses, and a dial of it.
    fn dialled(class: LaneClass, with_key: bool) -> (Control<()>, Dial) {
        let key: PublicKey = "3q2+7wABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhs=".parse().expect("a key");
        let peer = Peer {
            address: "one:1".parse().expect("an address"),
            second_address: "two:1".parse().expect("an address"),
            key: with_key.then_some(key),
            ..Peer::default()
        };
        let mut config = Config::default();
        config.peers.insert("beta".to_owned(), peer);
        let live = Live { config: Rc::new(config), ..Live::default_for_tests() };
        let dial = Dial::new(0, PeerId(0), class, Nanos::ZERO);
        (Control::new(1, live), dial)
    }

    fn host(step: Step) -> String {
        match step {
            Step::Resolve(host) => host.as_str().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    /// The steps of a dial of which all addresses fail.
    fn hosts(class: LaneClass, with_key: bool, failed: impl Fn() -> Progress) -> Vec<String> {
        let (mut control, mut dial) = dialled(class, with_key);
        let mut now = Nanos::from_millis(1);
        let times = |now| Times { now, calendar: UnixTime(7) };
        let mut hosts = vec![host(control.advance(&mut dial, Progress::Waited, times(now)))];
        loop {
            now = now + Nanos::from_millis(4_000);
            match control.advance(&mut dial, failed(), times(now)) {
                Step::Fail(_) => return hosts,
                step => hosts.push(host(step)),
            }
            assert_eq!(dial.until(), now + DIAL_TIME, "it has its time");
        }
    }

    #[test]
    fn a_dial_does_not_end_plain_in_a_cluster_that_began_meanwhile() {
        let (mut control, mut dial) = dialled(LaneClass::Bulk, false);
        let times = Times { now: Nanos::from_millis(1), calendar: UnixTime(7) };
        control.advance(&mut dial, Progress::Waited, times);
        let near = Progress::Resolved(Ok(vec!["127.0.0.1:1".parse().expect("an address")]));
        assert!(matches!(control.advance(&mut dial, near, times), Step::Connect(_)));
        let mut config = Config::clone(control.config());
        config.cluster.keys = vec![SigningKey::generate().expect("random").public()];
        let own = NodeKey::generate().expect("random");
        let keyring = Keyring::new(&config, Some(own)).expect("it has a key");
        control.replace_keyring(Rc::new(keyring));
        let step = control.advance(&mut dial, Progress::Connected(Ok(())), times);
        assert!(matches!(step, Step::Fail(DialFault::Changed)), "{step:?}");
    }

    #[test]
    fn a_peer_with_a_key_is_dialled_at_its_second_address_when_the_first_is_gone() {
        let ways = [
            || Progress::Resolved(Err("no such host".to_owned())),
            || Progress::Resolved(Ok(Vec::new())),
            || Progress::Connected(Err("refused".to_owned())),
            || Progress::Proved(Err("somebody else".to_owned())),
            || Progress::Late,
        ];
        for failed in ways {
            for class in [LaneClass::Latency, LaneClass::Bulk] {
                assert_eq!(hosts(class, true, failed), ["one:1", "two:1"]);
                assert_eq!(hosts(class, false, failed), ["one:1"], "anybody may be there");
            }
            assert_eq!(hosts(LaneClass::Second, true, failed), ["two:1"]);
        }
    }
}
