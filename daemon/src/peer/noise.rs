//! The handshake of a lane: two nodes prove who they are and agree on keys. Pure, but for the
//! system's randomness.
//!
//! ```text
//!   dials                                            listens
//!     preamble 8 │ ticket 16 │ length 2 │
//!            e, es, s, ss, shard 1,
//!            certificate                 96 and more  ──►   ticket right? decrypts? key trusted?
//!     keys ◄──  e, ee, se, protection             49  ◄──
//!     confirmation                                16  ──►   right: the peer is there. To its shard
//! ```
//!
//! A node without a certificate leaves it out, and the first shard of a node its number. Without
//! both there is no length, either. The preamble says what is there, so each message has one form.
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

use piped_config::{KEY_BYTES, NodeKey, PublicKey, UnixTime};
use piped_control::keyring::{Admitted, Identity, Refusal};
use piped_core::link::Protection;
use piped_wire::frame::HANDSHAKE_MAGIC as MAGIC;
use piped_wire::{FrameKey, LaneKeys};
use snow::{Builder, HandshakeState, TransportState};
use zeroize::Zeroizing;

use super::payload::{PAYLOAD_BYTES_MAX, has_payload, parse_payload, payload_of, without_payload};

const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";

const VERSION: u8 = 1;
const PREAMBLE_BYTES: usize = 8;
const TICKET_BYTES: usize = 16;
const TAG_BYTES: usize = 16;

const LENGTH_BYTES: usize = 2;

/// Length of the head of a first message: preamble and ticket.
pub(super) const HEAD_BYTES: usize = PREAMBLE_BYTES + TICKET_BYTES;

/// Length of what is sealed of a first message without a certificate: ephemeral key, sealed static
/// key, tag.
const BARE_BYTES: usize = KEY_BYTES + (KEY_BYTES + TAG_BYTES) + TAG_BYTES;

/// Length of the first message of a node's first shard, if the node has no certificate.
pub const FIRST_BYTES: usize = HEAD_BYTES + BARE_BYTES;

/// Most bytes of what is sealed.
const SEALED_BYTES_MAX: usize = BARE_BYTES + PAYLOAD_BYTES_MAX;

/// Most bytes of a first message.
pub const FIRST_BYTES_MAX: usize = HEAD_BYTES + LENGTH_BYTES + SEALED_BYTES_MAX;

/// What the last byte of a preamble says instead of the protection and what comes along
/// ([`super::payload`]): the caller joins the cluster, and is nobody yet ([`super::join`]).
const JOINS: u8 = 0x20;
/// The caller asks for the certificate of this node, and begins then.
const ASKS: u8 = 0x40;

/// Length of the answer: ephemeral key, the protection, tag.
pub const ANSWER_BYTES: usize = KEY_BYTES + 1 + TAG_BYTES;

/// Length of the confirmation, which the dialling side sends last.
pub const CONFIRMATION_BYTES: usize = TAG_BYTES;

/// Why a handshake failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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
    #[error(
        "the key {0} is not trusted here: {1}; if it should be: pipectl keys trust NAME {0}, or \
         `piped join` there"
    )]
    Untrusted(PublicKey, Refusal),
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
    /// The node that has proved this key and shown these bytes as its certificate, if any.
    ///
    /// # Errors
    /// Why it is not trusted.
    fn admit(&self, key: &PublicKey, shown: &[u8]) -> Result<Admitted, Refusal>;
}

/// The identity of this node at a time of the calendar.
#[derive(Debug, Clone, Copy)]
pub(super) struct At<'a>(&'a Identity, UnixTime);

impl<'a> At<'a> {
    pub(super) const fn new(identity: &'a Identity, now: UnixTime) -> Self {
        Self(identity, now)
    }
}

impl Trust for At<'_> {
    fn own(&self) -> &NodeKey {
        self.0.own()
    }

    fn protection(&self) -> Protection {
        self.0.protection()
    }

    fn admit(&self, key: &PublicKey, shown: &[u8]) -> Result<Admitted, Refusal> {
        self.0.admit(key, shown, self.1)
    }
}

/// The side that dialled, waiting for the answer.
#[derive(Debug)]
pub struct Dialled {
    noise: Box<HandshakeState>,
    wish: Protection,
}

impl Dialled {
    /// Begins a handshake with the node of this key, and gives what to send. `shard`: the number of
    /// the shard that dials. `certificate`: the bytes of this node's own; empty if it has none.
    #[must_use]
    pub fn begin(
        own: &NodeKey,
        peer: PublicKey,
        wish: Protection,
        shard: usize,
        certificate: &[u8],
    ) -> (Self, Vec<u8>) {
        let (kind, payload) = payload_of(shard, certificate);
        let (noise, first) = begin(own, peer, number_of(wish) | kind, &payload);
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
    admitted: Admitted,
    shard: usize,
    protection: Protection,
    secrets: Secrets,
}

/// The outcome of a handshake, for the side that listens.
#[derive(Debug)]
pub struct Proof {
    /// The node that proved its name, and why it is trusted.
    pub admitted: Admitted,
    /// The shard of that node which dialled, below [`SHARDS_MAX`](piped_core::names::SHARDS_MAX).
    pub shard: usize,
    /// The keys of the lane.
    pub keys: LaneKeys,
}

/// What a connection begins as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beginning {
    /// Frames, without any proof.
    Plain,
    /// A handshake; its version and the rest are looked at when it is whole.
    Handshake,
    /// The question for this node's certificate.
    Asks,
    /// A node that joins the cluster.
    Joins,
}

/// What a connection begins as, by its first 8 bytes.
#[must_use]
pub(super) fn beginning(bytes: &[u8; PREAMBLE_BYTES]) -> Beginning {
    match bytes {
        [magic @ .., VERSION, ASKS] if *magic == MAGIC => Beginning::Asks,
        [magic @ .., VERSION, JOINS] if *magic == MAGIC => Beginning::Joins,
        bytes if bytes.starts_with(&MAGIC) => Beginning::Handshake,
        _ => Beginning::Plain,
    }
}

/// The bytes with which a caller asks for a certificate.
#[must_use]
pub(super) fn question() -> [u8; PREAMBLE_BYTES] {
    preamble(ASKS)
}

/// How many bytes follow the head of a first message, and then how many of them are the length.
#[must_use]
pub(super) const fn has_length(head: &[u8; HEAD_BYTES]) -> bool {
    has_payload(head[PREAMBLE_BYTES - 1])
}

/// The length of what is sealed, from the bytes that say it; `None`: no message has it.
#[must_use]
pub(super) fn sealed_length(bytes: [u8; LENGTH_BYTES]) -> Option<usize> {
    let length = usize::from(u16::from_le_bytes(bytes));
    (BARE_BYTES..=SEALED_BYTES_MAX).contains(&length).then_some(length)
}

/// Begins as the dialling side: the state, and the first message.
fn begin(
    own: &NodeKey,
    peer: PublicKey,
    kind: u8,
    payload: &[u8],
) -> (Box<HandshakeState>, Vec<u8>) {
    let preamble = preamble(kind);
    let builder = builder(own, &preamble);
    let noise = builder.remote_public_key(peer.as_bytes()).and_then(Builder::build_initiator);
    let mut noise = Box::new(noise.expect("keys of 32 bytes, set once"));
    let mut first = vec![0; HEAD_BYTES];
    first[..PREAMBLE_BYTES].copy_from_slice(&preamble);
    let sealed = BARE_BYTES + payload.len();
    if has_payload(kind) {
        first.extend((sealed as u16).to_le_bytes());
    }
    let start = first.len();
    first.resize(start + sealed, 0);
    let length = noise.write_message(payload, &mut first[start..]);
    assert_eq!(length.ok(), Some(sealed), "room for the first message");
    write_ticket(peer, &mut first);
    (noise, first)
}

/// What a first message says.
struct Opened {
    noise: HandshakeState,
    kind: u8,
    /// The key that the caller names.
    key: PublicKey,
    shard: usize,
    certificate: Vec<u8>,
}

/// Takes a first message apart, the cheapest first.
fn accept(own: &NodeKey, first: &[u8]) -> Result<Opened, HandshakeFault> {
    let (head, message) = first.split_at_checked(HEAD_BYTES).ok_or(HandshakeFault::Version)?;
    let (preamble, given) = head.split_at(PREAMBLE_BYTES);
    let kind = match preamble {
        [magic @ .., VERSION, kind] if magic == MAGIC => *kind,
        _ => return Err(HandshakeFault::Version),
    };
    let right = ticket(own.public(), preamble, message);
    if !same(&right, given) {
        return Err(HandshakeFault::Ticket);
    }
    let sealed = match has_payload(kind) {
        false => Some(message),
        true => message.split_first_chunk().and_then(|(length, sealed)| {
            (sealed_length(*length) == Some(sealed.len())).then_some(sealed)
        }),
    };
    let sealed = sealed.ok_or(HandshakeFault::Version)?;
    let mut noise = builder(own, preamble).build_responder().expect("a key of 32 bytes, set once");
    let mut payload = vec![0; sealed.len()];
    let read = noise.read_message(sealed, &mut payload).map_err(|_| HandshakeFault::Forged)?;
    payload.truncate(read);
    let key = noise.get_remote_static().and_then(|key| key.first_chunk()).copied();
    let key = PublicKey::new(key.ok_or(HandshakeFault::Forged)?);
    let said = parse_payload(kind, &payload);
    let (shard, certificate) = said.ok_or(HandshakeFault::Version)?;
    let certificate = certificate.to_vec();
    Ok(Opened { noise, kind, key, shard, certificate })
}

/// A node that joins, waiting for the answer.
#[derive(Debug)]
pub(super) struct Joining(Box<HandshakeState>);

impl Joining {
    /// Begins to join at the node of this key, and gives what to send.
    pub(super) fn begin(own: &NodeKey, issuer: PublicKey) -> (Self, Vec<u8>) {
        let (noise, first) = begin(own, issuer, JOINS, &[]);
        (Self(noise), first)
    }

    /// Takes the answer: from here on both sides speak in private.
    ///
    /// # Errors
    /// The other side does not have the key.
    pub(super) fn finish(
        mut self,
        answer: &[u8; ANSWER_BYTES],
    ) -> Result<TransportState, HandshakeFault> {
        let read = self.0.read_message(answer, &mut [0; 1]);
        read.map_err(|_| HandshakeFault::Forged)?;
        self.0.into_transport_mode().map_err(|_| HandshakeFault::Forged)
    }
}

/// Answers a node that joins: what to send, the key that it has, and the state in which both speak
/// in private. Whether it is there, and who it is, its first word says.
///
/// # Errors
/// [`HandshakeFault`], the cheapest first.
pub(super) fn welcome(
    own: &NodeKey,
    first: &[u8; FIRST_BYTES],
) -> Result<(TransportState, PublicKey, [u8; ANSWER_BYTES]), HandshakeFault> {
    let Opened { mut noise, kind, key, .. } = accept(own, first)?;
    if kind != JOINS {
        return Err(HandshakeFault::Version);
    }
    let mut answer = [0; ANSWER_BYTES];
    let length = noise.write_message(&[0], &mut answer);
    assert_eq!(length.ok(), Some(ANSWER_BYTES), "room for the answer, and randomness");
    let state = noise.into_transport_mode().map_err(|_| HandshakeFault::Forged)?;
    Ok((state, key, answer))
}

impl Answered {
    /// Looks at what a stranger says first, and gives the answer. Nothing is kept of one that is
    /// refused.
    ///
    /// # Errors
    /// [`HandshakeFault`], the cheapest first.
    pub fn begin(
        trust: &impl Trust,
        first: &[u8],
    ) -> Result<(Self, [u8; ANSWER_BYTES]), HandshakeFault> {
        // A wish that nobody knows is another version, whatever its ticket.
        let kind = first.get(PREAMBLE_BYTES - 1).map(|kind| without_payload(*kind));
        let wish = kind.and_then(protection_of).ok_or(HandshakeFault::Version)?;
        let opened = accept(trust.own(), first)?;
        let Opened { mut noise, key, shard, certificate, .. } = opened;
        let admitted = trust.admit(&key, &certificate);
        let admitted = admitted.map_err(|why| HandshakeFault::Untrusted(key, why))?;
        let protection = wish.max(trust.protection());
        let mut answer = [0; ANSWER_BYTES];
        let length = noise.write_message(&[number_of(protection)], &mut answer);
        assert_eq!(length.ok(), Some(ANSWER_BYTES), "room for the answer, and randomness");
        Ok((Self { admitted, shard, protection, secrets: Secrets::of(&mut noise) }, answer))
    }

    /// Takes the last word: who the other side is, and the lane's keys.
    ///
    /// # Errors
    /// [`HandshakeFault::Repeated`].
    pub fn finish(self, confirmation: &[u8; CONFIRMATION_BYTES]) -> Result<Proof, HandshakeFault> {
        if !same(&self.secrets.confirmation(), confirmation) {
            return Err(HandshakeFault::Repeated);
        }
        let keys = self.secrets.keys(self.protection, false);
        Ok(Proof { admitted: self.admitted, shard: self.shard, keys })
    }
}

const fn preamble(kind: u8) -> [u8; PREAMBLE_BYTES] {
    let mut preamble = [0; PREAMBLE_BYTES];
    let (magic, rest) = preamble.split_at_mut(MAGIC.len());
    magic.copy_from_slice(&MAGIC);
    rest.copy_from_slice(&[VERSION, kind]);
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
pub fn write_ticket(of: PublicKey, first: &mut [u8]) {
    let (head, message) = first.split_at_mut(HEAD_BYTES);
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
    use piped_config::{CERTIFICATE_BYTES_MAX, NodeCertificate, SigningKey, Subject};
    use piped_core::names::SHARDS_MAX;

    use super::super::payload::{CERTIFIED, NUMBER_BYTES, NUMBERED};
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

        fn admit(&self, key: &PublicKey, shown: &[u8]) -> Result<Admitted, Refusal> {
            let known = self.trusted.iter().find(|(known, _)| known == key);
            let (_, name) = known.ok_or(Refusal::Unknown)?;
            let certificate = NodeCertificate::from_bytes(shown).ok();
            Ok(Admitted { node: (*name).to_owned(), certificate })
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
            let (dialled, first) = Dialled::begin(&alpha, beta.key.public(), wish, 0, &[]);
            let (answered, answer) = Answered::begin(&beta, &first).expect("trusted");
            let (ours, confirmation) = dialled.finish(&answer).expect("it has the key");
            let proof = answered.finish(&confirmation).expect("it is there");
            let Proof { admitted, shard, keys: theirs } = proof;
            assert_eq!((admitted.node.as_str(), admitted.certificate), ("alpha", None));
            assert_eq!(shard, 0);
            assert_eq!((ours.protection, theirs.protection), (agreed, agreed));
            assert_eq!((&ours.send, &ours.receive), (&theirs.receive, &theirs.send));
            assert_ne!(ours.send, ours.receive);
        }
    }

    /// The last shard that a node can have.
    const SHARD: usize = SHARDS_MAX - 1;

    /// The longest certificate there is, of alpha.
    fn certificate(alpha: &NodeKey) -> Vec<u8> {
        let groups = ('a'..'i').map(|letter| letter.to_string().repeat(64)).collect();
        let (key, name) = (alpha.public(), "n".repeat(64));
        let subject = Subject { key, name, groups, from: UnixTime(1), until: UnixTime(2) };
        let by = SigningKey::generate().expect("random");
        NodeCertificate::issue(subject, &by).expect("sound").to_bytes()
    }

    #[test]
    fn a_certificate_comes_with_the_first_message_and_is_sealed() {
        let (beta, alpha) = listener(Protection::Integrity);
        let shown = certificate(&alpha);
        let wish = Protection::Integrity;
        let (dialled, first) = Dialled::begin(&alpha, beta.key.public(), wish, SHARD, &shown);
        assert_eq!((shown.len(), first.len()), (CERTIFICATE_BYTES_MAX, FIRST_BYTES_MAX));
        assert!(!first.windows(32).any(|window| shown.windows(32).any(|other| window == other)));
        let (answered, answer) = Answered::begin(&beta, &first).expect("trusted");
        let (_, confirmation) = dialled.finish(&answer).expect("it has the key");
        let proof = answered.finish(&confirmation).expect("it is there");
        let (shard, certificate) = (proof.shard, proof.admitted.certificate);
        assert_eq!((shard, certificate.map(|it| it.to_bytes())), (SHARD, Some(shown.clone())));
        for bit in 0..FIRST_BYTES_MAX * 8 {
            let mut first = Dialled::begin(&alpha, beta.key.public(), wish, SHARD, &shown).1;
            first[bit / 8] ^= 1 << (bit % 8);
            let fault = Answered::begin(&beta, &first).expect_err("changed");
            let expected = [HandshakeFault::Version, HandshakeFault::Ticket];
            assert!(expected.contains(&fault), "bit {bit}: {fault}");
            // With the right ticket, too.
            write_ticket(beta.key.public(), &mut first);
            assert!(bit / 8 >= PREAMBLE_BYTES || Answered::begin(&beta, &first).is_err(), "{bit}");
        }
        for length in 0..first.len() {
            assert!(Answered::begin(&beta, &first[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn the_shard_that_dials_is_known_and_the_first_one_says_nothing() {
        let (beta, alpha) = listener(Protection::Integrity);
        for shown in [Vec::new(), certificate(&alpha)] {
            let length = |shard| {
                let wish = Protection::Integrity;
                let (dialled, first) =
                    Dialled::begin(&alpha, beta.key.public(), wish, shard, &shown);
                let (answered, answer) = Answered::begin(&beta, &first).expect("trusted");
                let (_, confirmation) = dialled.finish(&answer).expect("it has the key");
                let proof = answered.finish(&confirmation).expect("it is there");
                assert_eq!(proof.shard, shard);
                assert_eq!(proof.admitted.certificate.is_some(), !shown.is_empty());
                first.len()
            };
            let bare = FIRST_BYTES + shown.len();
            let with_length = if shown.is_empty() { bare } else { bare + LENGTH_BYTES };
            assert_eq!(length(0), with_length, "as before shards had numbers");
            for shard in 1..SHARDS_MAX {
                assert_eq!(length(shard), bare + LENGTH_BYTES + NUMBER_BYTES);
            }
        }
    }

    #[test]
    fn each_first_message_has_one_form_whoever_makes_it() {
        let (beta, alpha) = listener(Protection::Integrity);
        let shown = certificate(&alpha);
        let numbered = |number: u8| [&[number][..], &shown].concat();
        let too_long = [&shown[..], &[0]].concat();
        for (kind, payload) in [
            // The first shard has no number, and these have no shard.
            (NUMBERED, vec![0]),
            (NUMBERED, vec![SHARDS_MAX as u8]),
            (NUMBERED, vec![u8::MAX]),
            (NUMBERED | CERTIFIED, numbered(0)),
            (NUMBERED | CERTIFIED, numbered(SHARDS_MAX as u8)),
            // Less or more came along than the preamble says.
            (NUMBERED, Vec::new()),
            (NUMBERED, vec![1, 1]),
            (NUMBERED, numbered(1)),
            (CERTIFIED, Vec::new()),
            (NUMBERED | CERTIFIED, Vec::new()),
            (NUMBERED | CERTIFIED, vec![1]),
            (CERTIFIED, too_long),
            (0, vec![1]),
            (0, shown.clone()),
        ] {
            let kind = kind | number_of(Protection::Integrity);
            let first = begin(&alpha, beta.key.public(), kind, &payload).1;
            let fault = Answered::begin(&beta, &first).expect_err("nobody sends that");
            assert_eq!(fault, HandshakeFault::Version, "{kind:#x} {:?}", payload.first());
        }
        // A node that joins has no shard.
        let first = begin(&alpha, beta.key.public(), JOINS | NUMBERED, &[1]).1;
        assert_eq!(Answered::begin(&beta, &first).expect_err("both"), HandshakeFault::Version);
        let first = first[..FIRST_BYTES].try_into().expect("its front");
        assert!(welcome(&beta.key, first).is_err());
    }

    #[test]
    fn nobody_on_the_way_makes_it_another_shard() {
        let (beta, alpha) = listener(Protection::Integrity);
        let wish = Protection::Integrity;
        let (_, mut first) = Dialled::begin(&alpha, beta.key.public(), wish, 5, &[]);
        first[PREAMBLE_BYTES - 1] &= !NUMBERED;
        write_ticket(beta.key.public(), &mut first);
        assert_eq!(Answered::begin(&beta, &first).expect_err("changed"), HandshakeFault::Forged);
        let (_, mut first) = Dialled::begin(&alpha, beta.key.public(), wish, 5, &[]);
        // The number is in the last bytes, before the tag.
        let at = first.len() - TAG_BYTES - NUMBER_BYTES;
        first[at] ^= 1;
        write_ticket(beta.key.public(), &mut first);
        assert_eq!(Answered::begin(&beta, &first).expect_err("changed"), HandshakeFault::Forged);
    }

    #[test]
    fn who_joins_speaks_in_private_with_the_issuer_alone() {
        let (issuer, other, node) = (key(), key(), key());
        let (joining, first) = Joining::begin(&node, issuer.public());
        let first = first.as_slice().try_into().expect("without a certificate");
        let (mut theirs, caller, answer) = welcome(&issuer, first).expect("a node");
        assert_eq!(caller, node.public());
        let mut ours = joining.finish(&answer).expect("it has the key");
        let mut sealed = [0; 64];
        let length = ours.write_message(b"token", &mut sealed).expect("room");
        let mut read = [0; 64];
        let length = theirs.read_message(&sealed[..length], &mut read).expect("ours");
        assert_eq!(&read[..length], b"token");
        assert_eq!(welcome(&other, first).expect_err("not it"), HandshakeFault::Ticket);
        let mut stolen = *first;
        write_ticket(other.public(), &mut stolen);
        assert_eq!(welcome(&other, &stolen).expect_err("not it"), HandshakeFault::Forged);
        // A handshake is not taken for it, nor it for one.
        let wish = Protection::Integrity;
        let (_, lane) = Dialled::begin(&node, issuer.public(), wish, 0, &[]);
        let lane = lane.as_slice().try_into().expect("without a certificate");
        assert_eq!(welcome(&issuer, lane).expect_err("a lane"), HandshakeFault::Version);
        let (beta, alpha) = listener(wish);
        let (_, joins) = Joining::begin(&alpha, beta.key.public());
        assert_eq!(Answered::begin(&beta, &joins).expect_err("joins"), HandshakeFault::Version);
    }

    #[test]
    fn no_two_handshakes_leave_the_same_keys() {
        let (beta, alpha) = listener(Protection::Integrity);
        let keys = || {
            let (dialled, first) =
                Dialled::begin(&alpha, beta.key.public(), Protection::Integrity, 0, &[]);
            let (_, answer) = Answered::begin(&beta, &first).expect("trusted");
            dialled.finish(&answer).expect("it has the key").0
        };
        assert_ne!(keys(), keys());
    }

    #[test]
    fn every_bit_of_every_message_counts() {
        let (beta, alpha) = listener(Protection::Integrity);
        let begin = || Dialled::begin(&alpha, beta.key.public(), Protection::Integrity, 0, &[]);
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
        let (dialled, first) =
            Dialled::begin(&alpha, beta.key.public(), Protection::Integrity, 0, &[]);
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
        let (_, first) = Dialled::begin(&mallory, beta.key.public(), Protection::Encrypted, 0, &[]);
        let fault = Answered::begin(&beta, &first).expect_err("unknown");
        assert_eq!(fault, HandshakeFault::Untrusted(mallory.public(), Refusal::Unknown));
        let (_, first) = Dialled::begin(&alpha, key().public(), Protection::Integrity, 0, &[]);
        assert_eq!(Answered::begin(&beta, &first).expect_err("not us"), HandshakeFault::Ticket);
        // With the right ticket, too.
        let (_, mut first) = Dialled::begin(&alpha, key().public(), Protection::Integrity, 0, &[]);
        write_ticket(beta.key.public(), &mut first);
        assert_eq!(Answered::begin(&beta, &first).expect_err("not us"), HandshakeFault::Forged);
    }

    #[test]
    fn who_answers_without_the_key_or_with_less_than_asked_is_refused() {
        let (beta, alpha) = listener(Protection::Integrity);
        let impostor = Node { key: key(), ..listener(Protection::Integrity).0 };
        let (dialled, first) =
            Dialled::begin(&alpha, beta.key.public(), Protection::Encrypted, 0, &[]);
        assert!(Answered::begin(&impostor, &first).is_err());
        let (_, answer) = Answered::begin(&beta, &first).expect("trusted");
        let (other, _) = Dialled::begin(&alpha, beta.key.public(), Protection::Encrypted, 0, &[]);
        assert_eq!(other.finish(&answer).expect_err("another's answer"), HandshakeFault::Forged);
        // The answer is bound to the wish: no one in between can weaken it.
        dialled.finish(&answer).expect("its own answer");
        let (_, mut first) =
            Dialled::begin(&alpha, beta.key.public(), Protection::Encrypted, 0, &[]);
        first[PREAMBLE_BYTES - 1] = number_of(Protection::Integrity);
        write_ticket(beta.key.public(), &mut first);
        assert_eq!(Answered::begin(&beta, &first).expect_err("weakened"), HandshakeFault::Forged);
    }
}
