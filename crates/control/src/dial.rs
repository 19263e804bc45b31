//! Dials: how a connection to a peer comes about, one step after the other.
//!
//! ```text
//!   begin ─► wait ─► look the host up ─► connect ─► prove ─► deliver to the shard
//!                         │    next address ▲ ▲ next key │
//!                         └──────► fail ◄───┴─┴──────────┘
//! ```
//!
//! A shard asks for a connection and says how long to wait first (its back-off). The driver asks
//! for the next [`Step`], performs it, and hands back how it went as a [`Progress`]. Each step
//! takes time, and a reload may come in between. So what was decided at the beginning is compared
//! with the configuration again before the next step, and a connection that the configuration of
//! now would not have is not delivered.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use piped_config::{HostPort, Peer, PublicKey};
use piped_core::ids::PeerId;
use piped_core::link::LaneClass;
use piped_core::units::Nanos;

use crate::control::Control;
use crate::journal::Cause;
use crate::keyring::Keyring;
use crate::note::Note;

/// How long a dial may take after its back-off, to look up, connect and prove.
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
    /// The peer as it was configured when its host was looked up.
    target: Peer,
    /// Addresses that were not tried yet.
    addresses: VecDeque<SocketAddr>,
    address: Option<SocketAddr>,
    /// Keys that were not tried at this address yet; none: the connection is plain.
    keys: VecDeque<Option<PublicKey>>,
    /// The keyring of the proof under way.
    keyring: Option<Rc<Keyring>>,
    /// Why the last proof at this address failed.
    unproven: Option<String>,
    fault: DialFault,
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
    /// Prove the key of this node, and have the peer prove this one.
    Prove {
        /// The keyring of the proof. A reload makes another one.
        keyring: Rc<Keyring>,
        /// The key that the peer has to have.
        key: PublicKey,
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
            target: Peer::default(),
            addresses: VecDeque::new(),
            address: None,
            keys: VecDeque::new(),
            keyring: None,
            unproven: None,
            fault: DialFault::NoAddress,
        }
    }

    /// When the dial ends whatever comes of it; it counts from the end of its back-off.
    #[must_use]
    pub const fn until(&self) -> Nanos {
        self.until
    }
}

impl<M: Clone> Control<M> {
    /// Takes how a step of a dial went; the next one.
    pub fn advance(&mut self, dial: &mut Dial, progress: Progress, now: Nanos) -> Step {
        match progress {
            Progress::Begun => Step::Wait(dial.after),
            Progress::Waited => {
                let Some(target) = self.peers().target(dial.peer) else {
                    return Step::Fail(DialFault::Changed);
                };
                dial.until = now + DIAL_TIME;
                dial.target = target.clone();
                Step::Resolve(target.address.clone())
            }
            Progress::Resolved(Ok(addresses)) => {
                dial.addresses = addresses.into();
                self.next_address(dial, now)
            }
            Progress::Connected(Ok(())) => self.connected(dial, now),
            Progress::Proved(Ok(())) => self.proved(dial, now),
            Progress::Proved(Err(why)) => self.unproven(dial, why, now),
            Progress::Connected(Err(why)) => {
                dial.fault = DialFault::Failed(why);
                self.leave_address(dial, now)
            }
            Progress::Resolved(Err(why)) => Step::Fail(DialFault::Failed(why)),
            Progress::Late => Step::Fail(DialFault::Late),
        }
    }

    fn next_address(&mut self, dial: &mut Dial, now: Nanos) -> Step {
        while let Some(address) = dial.addresses.pop_front() {
            if !self.may_be_dialled(&dial.target, address) {
                let peer = self.name_of(dial.peer);
                self.note_of_peer(Cause::Dial, &peer, now, |peer, left_out| Note::DialForbidden {
                    peer,
                    address,
                    left_out,
                });
                dial.fault = DialFault::Plain;
                continue;
            }
            dial.address = Some(address);
            // A peer that changes its key may have either.
            dial.keys = dial.target.keys().map(Some).collect();
            if dial.keys.is_empty() {
                dial.keys.push_back(None);
            }
            return Step::Connect(address);
        }
        Step::Fail(dial.fault.clone())
    }

    fn connected(&mut self, dial: &mut Dial, now: Nanos) -> Step {
        if !self.is_still(dial) {
            return Step::Fail(DialFault::Changed);
        }
        let Some(key) = dial.keys.pop_front().flatten() else { return Step::Deliver };
        let keyring = self.keyring();
        if keyring.identity().is_none() {
            // A configuration that has the one key without the other is refused.
            return self.unproven(dial, "this node has no key".to_owned(), now);
        }
        dial.keyring = Some(Rc::clone(&keyring));
        Step::Prove { keyring, key }
    }

    fn proved(&mut self, dial: &mut Dial, now: Nanos) -> Step {
        let keyring = dial.keyring.take();
        if !keyring.is_some_and(|keyring| Rc::ptr_eq(&keyring, &self.keyring())) {
            // What was agreed on is not what is to be now.
            let why = "the configuration was loaded again meanwhile".to_owned();
            return self.unproven(dial, why, now);
        }
        if self.is_still(dial) { Step::Deliver } else { Step::Fail(DialFault::Changed) }
    }

    fn unproven(&mut self, dial: &mut Dial, why: String, now: Nanos) -> Step {
        dial.unproven = Some(why);
        match dial.address.filter(|_| !dial.keys.is_empty()) {
            Some(address) => Step::Connect(address),
            None => self.leave_address(dial, now),
        }
    }

    fn leave_address(&mut self, dial: &mut Dial, now: Nanos) -> Step {
        if let (Some(error), Some(address)) = (dial.unproven.take(), dial.address) {
            dial.fault = DialFault::Failed(error.clone());
            let peer = self.name_of(dial.peer);
            self.note_of_peer(Cause::Dial, &peer, now, |peer, left_out| Note::NotConnected {
                peer,
                address,
                error,
                left_out,
            });
        }
        self.next_address(dial, now)
    }

    /// Whether the configuration still has the peer as it is being dialled, and the network for it.
    fn is_still(&self, dial: &Dial) -> bool {
        let same = self.peers().target(dial.peer) == Some(&dial.target);
        same && dial.address.is_some_and(|it| self.may_be_dialled(&dial.target, it))
    }

    /// Whether the connection would be sealed, or may be plain.
    fn may_be_dialled(&self, target: &Peer, address: SocketAddr) -> bool {
        let has_key = self.keyring().identity().is_some();
        target.key.is_some() || self.config().listen.admits_plain(address.ip(), has_key)
    }

    fn name_of(&self, peer: PeerId) -> String {
        self.peers().name(peer).unwrap_or("?").to_owned()
    }
}
