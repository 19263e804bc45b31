//! The handshake of a lane: two nodes prove who they are and agree on keys. Pure, but for the
//! system's randomness.
//!
//! ```text
//!   dials                                            listens
//!     preamble 8 │ ticket 16 │ e, es, s, ss   96  ──►   ticket right? decrypts? key trusted?
//!     keys ◄──  e, ee, se, protection         49  ◄──
//!     confirmation                            16  ──►   right: the peer is there. To its shard
//! ```
//!
//! `Noise_IK_25519_ChaChaPoly_BLAKE2s`: who dials knows whom, and is known, or not, by the first
//! message, before anything is kept for it. That message asks for nothing and can be repeated by
//! anybody who saw it; the confirmation cannot. The ticket is a MAC that needs this node's public
//! key and nothing else: it costs a stranger who has no idea whom he talks to, and who could
//! otherwise have us compute curves, nothing but his connection. The preamble is the prologue, so
//! both mean the same version and the same wish for protection.
//!
//! Noise's transport is not used: its messages are of at most 64 KiB with a tag behind each, and
//! frames must lie in memory as they are. Keys of frames are derived from what the handshake
//! leaves, one for each direction and protection.

use piped_config::{KEY_BYTES, NodeKey, PublicKey};
use piped_control::keyring::Identity;
use piped_core::link::Protection;
use piped_wire::frame::HANDSHAKE_MAGIC as MAGIC;
use piped_wire::{FrameKey, LaneKeys};
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";

const VERSION: u8 = 1;
const PREAMBLE_BYTES: usize = 8;
const TICKET_BYTES: usize = 16;
const TAG_BYTES: usize = 16;

/// Length of the first message of the dialling side: preamble, ticket, ephemeral key, sealed static
/// key, tag.
pub const FIRST_BYTES: usize =
    PREAMBLE_BYTES + TICKET_BYTES + KEY_BYTES + (KEY_BYTES + TAG_BYTES) + TAG_BYTES;

/// Length of the answer: ephemeral key, the protection, tag.
pub const ANSWER_BYTES: usize = KEY_BYTES + 1 + TAG_BYTES;

/// Length of the confirmation, which the dialling side sends last.
pub const CONFIRMATION_BYTES: usize = TAG_BYTES;

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeFault {
    /// The other side speaks another version, or another protocol.
    #[error(
        "it does not begin a handshake of this version; install the same release on both nodes"
    )]
    Version,
    /// The ticket of the handshake is not for this node.
    #[error(
        "it was meant for another node, or for an older key of this one; compare `pipectl keys \
         show` here with `key` in the other node's [peers]"
    )]
    Ticket,
    /// Something that should be sealed is not, or not by the key it names.
    #[error("it does not prove the key that it names, or was changed on the way")]
    Forged,
    /// The key is nobody's that this node trusts.
    #[error("the key {0} is not trusted here; if it should be: pipectl keys trust NAME {0}")]
    Untrusted(PublicKey),
    /// The other side wants less than is asked here.
    #[error("the other node answers with less protection than security.mode asks here")]
    Weak,
    /// The last word is wrong: somebody repeats a handshake that he saw.
    #[error(
        "it did not prove that it is there now: a handshake that was seen elsewhere is repeated"
    )]
    Repeated,
}

/// The keys that this node accepts, and the nodes they stand for.
pub trait Trust {
    /// The key with which this node proves its identity.
    fn own(&self) -> &NodeKey;
    /// The least protection that this node accepts.
    fn protection(&self) -> Protection;
    /// The name of the node with this key; `None` if the key is not trusted.
    fn node(&self, key: &PublicKey) -> Option<&str>;
}

impl Trust for Identity {
    fn own(&self) -> &NodeKey {
        Self::own(self)
    }

    fn protection(&self) -> Protection {
        Self::protection(self)
    }

    fn node(&self, key: &PublicKey) -> Option<&str> {
        Self::node(self, key)
    }
}

/// The side that dialled, waiting for the answer.
#[derive(Debug)]
pub struct Dialled {
    noise: Box<HandshakeState>,
    wish: Protection,
}

impl Dialled {
    /// Begins a handshake with the node of this key, and gives what to send.
    #[must_use]
    pub fn begin(own: &NodeKey, peer: PublicKey, wish: Protection) -> (Self, [u8; FIRST_BYTES]) {
        let preamble = preamble(wish);
        let builder = builder(own, &preamble);
        let noise = builder.remote_public_key(peer.as_bytes()).and_then(Builder::build_initiator);
        let mut noise = Box::new(noise.expect("keys of 32 bytes, set once"));
        let mut first = [0; FIRST_BYTES];
        first[..PREAMBLE_BYTES].copy_from_slice(&preamble);
        let message = &mut first[PREAMBLE_BYTES + TICKET_BYTES..];
        let length = noise.write_message(&[], message).expect("room for the first message");
        debug_assert_eq!(length, message.len());
        write_ticket(peer, &mut first);
        (Self { noise, wish }, first)
    }

    /// Takes the answer: the lane's keys, and the last word to send.
    ///
    /// # Errors
    /// The other side does not have the key, or offers too little.
    pub fn finish(
        mut self,
        answer: &[u8; ANSWER_BYTES],
    ) -> Result<(LaneKeys, [u8; CONFIRMATION_BYTES]), HandshakeFault> {
        let mut payload = [0; 1];
        let read = self.noise.read_message(answer, &mut payload);
        read.map_err(|_| HandshakeFault::Forged)?;
        let protection = protection_of(payload[0]).filter(|it| *it >= self.wish);
        let protection = protection.ok_or(HandshakeFault::Weak)?;
        let secrets = Secrets::of(&mut self.noise);
        let keys = secrets.keys(protection, true);
        let mut confirmation = [0; CONFIRMATION_BYTES];
        confirmation.copy_from_slice(&secrets.confirmation().as_bytes()[..CONFIRMATION_BYTES]);
        Ok((keys, confirmation))
    }
}

/// The side that listens, waiting for the last word.
#[derive(Debug)]
pub struct Answered {
    node: String,
    protection: Protection,
    secrets: Secrets,
}

/// Whether a connection begins as a handshake does, of any version.
#[must_use]
pub(crate) fn begins_handshake(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

impl Answered {
    /// Looks at what a stranger says first, and gives the answer. Nothing is kept of one that is
    /// refused.
    ///
    /// # Errors
    /// [`HandshakeFault`], the cheapest first.
    pub fn begin(
        trust: &impl Trust,
        first: &[u8; FIRST_BYTES],
    ) -> Result<(Self, [u8; ANSWER_BYTES]), HandshakeFault> {
        let (head, message) = first.split_at(PREAMBLE_BYTES + TICKET_BYTES);
        let (preamble, given) = head.split_at(PREAMBLE_BYTES);
        let wish = match preamble {
            [magic @ .., VERSION, wish] if magic == MAGIC => protection_of(*wish),
            _ => None,
        };
        let wish = wish.ok_or(HandshakeFault::Version)?;
        let own = trust.own();
        let right = ticket(own.public(), preamble, message);
        if !same(&right, given) {
            return Err(HandshakeFault::Ticket);
        }
        let mut noise =
            builder(own, preamble).build_responder().expect("a key of 32 bytes, set once");
        noise.read_message(message, &mut []).map_err(|_| HandshakeFault::Forged)?;
        let key = noise.get_remote_static().and_then(|key| key.first_chunk()).copied();
        let key = PublicKey::new(key.ok_or(HandshakeFault::Forged)?);
        let node = trust.node(&key).ok_or(HandshakeFault::Untrusted(key))?.to_owned();
        let protection = wish.max(trust.protection());
        let mut answer = [0; ANSWER_BYTES];
        let length = noise.write_message(&[number_of(protection)], &mut answer);
        assert_eq!(length.ok(), Some(ANSWER_BYTES), "room for the answer, and randomness");
        Ok((Self { node, protection, secrets: Secrets::of(&mut noise) }, answer))
    }

    /// Takes the last word: the node's name and the lane's keys.
    ///
    /// # Errors
    /// [`HandshakeFault::Repeated`].
    pub fn finish(
        self,
        confirmation: &[u8; CONFIRMATION_BYTES],
    ) -> Result<(String, LaneKeys), HandshakeFault> {
        if !same(&self.secrets.confirmation(), confirmation) {
            return Err(HandshakeFault::Repeated);
        }
        Ok((self.node, self.secrets.keys(self.protection, false)))
    }
}

fn preamble(wish: Protection) -> [u8; PREAMBLE_BYTES] {
    let mut preamble = [0; PREAMBLE_BYTES];
    preamble[..MAGIC.len()].copy_from_slice(&MAGIC);
    preamble[MAGIC.len()] = VERSION;
    preamble[MAGIC.len() + 1] = number_of(wish);
    preamble
}

const fn number_of(protection: Protection) -> u8 {
    match protection {
        Protection::Integrity => 1,
        Protection::Encrypted => 2,
    }
}

const fn protection_of(number: u8) -> Option<Protection> {
    match number {
        1 => Some(Protection::Integrity),
        2 => Some(Protection::Encrypted),
        _ => None,
    }
}

fn builder<'a>(own: &'a NodeKey, preamble: &'a [u8]) -> Builder<'a> {
    let builder = Builder::new(PATTERN.parse().expect("a pattern that snow knows"));
    let builder = builder.local_private_key(own.private()).and_then(|it| it.prologue(preamble));
    builder.expect("each is set once")
}

/// The ticket of a first message, which takes only a node's public key to compute.
fn ticket(of: PublicKey, preamble: &[u8], message: &[u8]) -> blake3::Hash {
    let key = blake3::derive_key("piped lanes 1: ticket of the first message", of.as_bytes());
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(preamble).update(message);
    hasher.finalize()
}

/// Gives a first message the ticket for the node of this key, as whoever knows that key can.
pub fn write_ticket(of: PublicKey, first: &mut [u8; FIRST_BYTES]) {
    let (head, message) = first.split_at_mut(PREAMBLE_BYTES + TICKET_BYTES);
    let (preamble, place) = head.split_at_mut(PREAMBLE_BYTES);
    place.copy_from_slice(&ticket(of, preamble, message).as_bytes()[..TICKET_BYTES]);
}

/// Compares the front of a hash in a time that tells nothing of it.
fn same(right: &blake3::Hash, given: &[u8]) -> bool {
    let mut padded = *right.as_bytes();
    padded[..given.len()].copy_from_slice(given);
    // Equality of hashes takes the same time whatever they are.
    *right == blake3::Hash::from_bytes(padded)
}

/// The secrets that a handshake leaves both sides with.
struct Secrets {
    /// Keys of the two directions: from the side that dialled, and to it.
    from_dialler: Zeroizing<[u8; KEY_BYTES]>,
    to_dialler: Zeroizing<[u8; KEY_BYTES]>,
    transcript: Vec<u8>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl Secrets {
    fn of(noise: &mut HandshakeState) -> Self {
        let (from_dialler, to_dialler) = noise.dangerously_get_raw_split();
        Self {
            from_dialler: Zeroizing::new(from_dialler),
            to_dialler: Zeroizing::new(to_dialler),
            transcript: noise.get_handshake_hash().to_vec(),
        }
    }

    fn keys(&self, protection: Protection, dialled: bool) -> LaneKeys {
        let context = match protection {
            Protection::Integrity => "piped lanes 1: frames, AEGIS-128X4 MAC",
            Protection::Encrypted => "piped lanes 1: frames, AEGIS-128X4 cipher",
        };
        let key = |secret: &[u8; KEY_BYTES]| {
            let derived = Zeroizing::new(blake3::derive_key(context, secret));
            FrameKey::new(*derived.first_chunk().expect("shorter than a hash"))
        };
        let (from_dialler, to_dialler) = (key(&self.from_dialler), key(&self.to_dialler));
        match dialled {
            true => LaneKeys { protection, send: from_dialler, receive: to_dialler },
            false => LaneKeys { protection, send: to_dialler, receive: from_dialler },
        }
    }

    /// Proof that the dialling side has its private key and heard the answer.
    fn confirmation(&self) -> blake3::Hash {
        let secret = self.from_dialler.as_slice();
        let key = Zeroizing::new(blake3::derive_key("piped lanes 1: confirmation", secret));
        blake3::keyed_hash(&key, &self.transcript)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Node {
        key: NodeKey,
        protection: Protection,
        trusted: Vec<(PublicKey, &'static str)>,
    }

    impl Trust for Node {
        fn own(&self) -> &NodeKey {
            &self.key
        }

        fn protection(&self) -> Protection {
            self.protection
        }

        fn node(&self, key: &PublicKey) -> Option<&str> {
            self.trusted.iter().find(|(known, _)| known == key).map(|(_, name)| *name)
        }
    }

    fn key() -> NodeKey {
        NodeKey::generate().expect("random")
    }

    /// A node that knows another as alpha.
    fn listener(protection: Protection) -> (Node, NodeKey) {
        let alpha = key();
        let trusted = vec![(alpha.public(), "alpha")];
        (Node { key: key(), protection, trusted }, alpha)
    }

    #[test]
    fn both_sides_have_the_same_keys_and_the_stronger_protection() {
        use Protection::{Encrypted, Integrity};
        for (wish, other, agreed) in [
            (Integrity, Integrity, Integrity),
            (Integrity, Encrypted, Encrypted),
            (Encrypted, Integrity, Encrypted),
            (Encrypted, Encrypted, Encrypted),
        ] {
            let (beta, alpha) = listener(other);
            let (dialled, first) = Dialled::begin(&alpha, beta.key.public(), wish);
            let (answered, answer) = Answered::begin(&beta, &first).expect("trusted");
            let (ours, confirmation) = dialled.finish(&answer).expect("it has the key");
            let (node, theirs) = answered.finish(&confirmation).expect("it is there");
            assert_eq!(node, "alpha");
            assert_eq!((ours.protection, theirs.protection), (agreed, agreed));
            assert_eq!((&ours.send, &ours.receive), (&theirs.receive, &theirs.send));
            assert_ne!(ours.send, ours.receive);
        }
    }

    #[test]
    fn no_two_handshakes_leave_the_same_keys() {
        let (beta, alpha) = listener(Protection::Integrity);
        let keys = || {
            let (dialled, first) = Dialled::begin(&alpha, beta.key.public(), Protection::Integrity);
            let (_, answer) = Answered::begin(&beta, &first).expect("trusted");
            dialled.finish(&answer).expect("it has the key").0
        };
        assert_ne!(keys(), keys());
    }

    #[test]
    fn every_bit_of_every_message_counts() {
        let (beta, alpha) = listener(Protection::Integrity);
        let begin = || Dialled::begin(&alpha, beta.key.public(), Protection::Integrity);
        for bit in 0..FIRST_BYTES * 8 {
            let (_, mut first) = begin();
            first[bit / 8] ^= 1 << (bit % 8);
            let fault = Answered::begin(&beta, &first).expect_err("changed");
            let expected = [HandshakeFault::Version, HandshakeFault::Ticket];
            assert!(expected.contains(&fault), "bit {bit}: {fault}");
        }
        for bit in 0..ANSWER_BYTES * 8 {
            let (dialled, first) = begin();
            let (_, mut answer) = Answered::begin(&beta, &first).expect("trusted");
            answer[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(dialled.finish(&answer).expect_err("changed"), HandshakeFault::Forged);
        }
        for bit in 0..CONFIRMATION_BYTES * 8 {
            let (dialled, first) = begin();
            let (answered, answer) = Answered::begin(&beta, &first).expect("trusted");
            let (_, mut confirmation) = dialled.finish(&answer).expect("it has the key");
            confirmation[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                answered.finish(&confirmation).expect_err("changed"),
                HandshakeFault::Repeated
            );
        }
    }

    #[test]
    fn a_first_message_that_was_seen_proves_nothing() {
        let (beta, alpha) = listener(Protection::Integrity);
        let (dialled, first) = Dialled::begin(&alpha, beta.key.public(), Protection::Integrity);
        let (_, answer) = Answered::begin(&beta, &first).expect("trusted");
        let (_, confirmation) = dialled.finish(&answer).expect("it has the key");
        // Somebody who saw all of that says it again.
        let (answered, _) =
            Answered::begin(&beta, &first).expect("it cannot be told from a new one");
        assert_eq!(answered.finish(&confirmation).expect_err("repeated"), HandshakeFault::Repeated);
    }

    #[test]
    fn who_is_not_trusted_or_takes_us_for_another_is_refused() {
        let (beta, alpha) = listener(Protection::Integrity);
        let mallory = key();
        let (_, first) = Dialled::begin(&mallory, beta.key.public(), Protection::Encrypted);
        let fault = Answered::begin(&beta, &first).expect_err("unknown");
        assert_eq!(fault, HandshakeFault::Untrusted(mallory.public()));
        let (_, first) = Dialled::begin(&alpha, key().public(), Protection::Integrity);
        assert_eq!(Answered::begin(&beta, &first).expect_err("not us"), HandshakeFault::Ticket);
        // With the right ticket, too.
        let (_, mut first) = Dialled::begin(&alpha, key().public(), Protection::Integrity);
        write_ticket(beta.key.public(), &mut first);
        assert_eq!(Answered::begin(&beta, &first).expect_err("not us"), HandshakeFault::Forged);
    }

    #[test]
    fn who_answers_without_the_key_or_with_less_than_asked_is_refused() {
        let (beta, alpha) = listener(Protection::Integrity);
        let impostor = Node { key: key(), ..listener(Protection::Integrity).0 };
        let (dialled, first) = Dialled::begin(&alpha, beta.key.public(), Protection::Encrypted);
        assert!(Answered::begin(&impostor, &first).is_err());
        let (_, answer) = Answered::begin(&beta, &first).expect("trusted");
        let (other, _) = Dialled::begin(&alpha, beta.key.public(), Protection::Encrypted);
        assert_eq!(other.finish(&answer).expect_err("another's answer"), HandshakeFault::Forged);
        // The answer is bound to the wish: no one in between can weaken it.
        dialled.finish(&answer).expect("its own answer");
        let (_, mut first) = Dialled::begin(&alpha, beta.key.public(), Protection::Encrypted);
        first[PREAMBLE_BYTES - 1] = number_of(Protection::Integrity);
        write_ticket(beta.key.public(), &mut first);
        assert_eq!(Answered::begin(&beta, &first).expect_err("weakened"), HandshakeFault::Forged);
    }
}
