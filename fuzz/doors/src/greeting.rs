//! The handshake between nodes with keys: whatever is changed in any of its messages, nobody is
//! taken for somebody else.
//!
//! The input is laid over the three messages of a true handshake, byte by byte; where it is zero, a
//! message is as it was. The first byte says whether the ticket is made right again, as a peer that
//! knows the node's public key can do, whether a certificate comes with the first message, and in
//! its other six bits which shard dials.

use piped::peer::noise::{
    ANSWER_BYTES, Answered, CONFIRMATION_BYTES, Dialled, FIRST_BYTES, FIRST_BYTES_MAX, Proof,
    Trust, write_ticket,
};
use piped_config::{KEY_BYTES, NodeCertificate, NodeKey, PublicKey, SigningKey, Subject, UnixTime};
use piped_control::keyring::{Admitted, Refusal};
use piped_core::link::Protection;
use piped_core::names::SHARDS_MAX;

use crate::Seed;
use crate::input::Input;

/// A node that trusts one other.
struct Node {
    own: NodeKey,
    trusted: PublicKey,
}

impl Trust for Node {
    fn own(&self) -> &NodeKey {
        &self.own
    }

    fn protection(&self) -> Protection {
        Protection::Integrity
    }

    fn admit(&self, key: &PublicKey, shown: &[u8]) -> Result<Admitted, Refusal> {
        if *key != self.trusted {
            return Err(Refusal::Unknown);
        }
        let certificate = NodeCertificate::from_bytes(shown).ok();
        Ok(Admitted { node: "alpha".to_owned(), certificate })
    }
}

fn key(byte: u8) -> NodeKey {
    NodeKey::of_private([byte; KEY_BYTES].into())
}

/// A certificate of the first node, which is not looked at before the handshake holds.
fn certificate(of: &NodeKey) -> NodeCertificate {
    let (key, name) = (of.public(), "alpha".to_owned());
    let (from, until) = (UnixTime(1), UnixTime(2));
    let subject = Subject { key, name, groups: vec!["disks".to_owned()], from, until };
    NodeCertificate::issue(subject, &SigningKey::of_seed([3; KEY_BYTES].into())).expect("sound")
}

/// Lays some of the input over a message. Whether that changed it.
fn changed(input: &mut Input<'_>, message: &mut [u8]) -> bool {
    let mut changed = false;
    for place in message {
        let byte = input.byte();
        *place ^= byte;
        changed |= byte != 0;
    }
    changed
}

/// Checks the greeting door with an input.
pub fn check(input: &[u8]) {
    let mut input = Input::new(input);
    let kind = input.byte();
    let (with_ticket, with_certificate) = (kind & 1 != 0, kind & 2 != 0);
    let shard = usize::from(kind >> 2) % SHARDS_MAX;
    let alpha = key(1);
    let beta = Node { own: key(2), trusted: alpha.public() };
    let certificate = with_certificate.then(|| certificate(&alpha));
    let shown = certificate.as_ref().map(NodeCertificate::to_bytes).unwrap_or_default();
    let wish = Protection::Integrity;
    let (dialled, mut first) = Dialled::begin(&alpha, beta.own.public(), wish, shard, &shown);
    let is_bare = !with_certificate && shard == 0;
    assert!(first.len() <= FIRST_BYTES_MAX && is_bare == (first.len() == FIRST_BYTES));
    let honest = first.clone();
    changed(&mut input, &mut first);
    if with_ticket {
        write_ticket(beta.own.public(), &mut first);
    }
    let answered = Answered::begin(&beta, &first);
    // A ticket that was changed and made right again is as it was.
    assert_eq!(answered.is_ok(), first == honest, "{answered:?}");
    let Ok((answered, mut answer)) = answered else { return };
    let _: [u8; ANSWER_BYTES] = answer;
    let other_answer = changed(&mut input, &mut answer);
    let finished = dialled.finish(&answer);
    assert_eq!(finished.is_err(), other_answer, "{finished:?}");
    let Ok((keys, mut confirmation)) = finished else { return };
    let _: [u8; CONFIRMATION_BYTES] = confirmation;
    let other_word = changed(&mut input, &mut confirmation);
    match answered.finish(&confirmation) {
        Ok(Proof { admitted, shard: dialled, keys: theirs }) => {
            assert!(!other_word && admitted.node == "alpha" && admitted.certificate == certificate);
            assert_eq!(dialled, shard);
            assert_eq!((keys.send, keys.receive), (theirs.receive, theirs.send));
        }
        Err(_) => assert!(other_word),
    }
}

/// A true handshake, and one changed in each part of each message.
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let length = 1 + FIRST_BYTES + ANSWER_BYTES + CONFIRMATION_BYTES;
    let mut seeds = vec![("true".to_owned(), vec![0; length])];
    for (name, at) in [
        ("version", 7),
        ("wish", 8),
        ("ticket", 12),
        ("ephemeral", 40),
        ("static", 70),
        ("tag", 120),
        ("answer", 130),
        ("protection", 155),
        ("confirmation", 180),
    ] {
        for with_ticket in [0, 1] {
            let mut seed = vec![0; length];
            seed[0] = with_ticket;
            seed[at] = 1;
            seeds.push((format!("{name}-{with_ticket}"), seed));
        }
    }
    // The certificate moves what is behind it; the length of the message is behind the ticket.
    for (name, at) in [("", None), ("-length", Some(25)), ("-sealed", Some(150))] {
        let mut seed = vec![0; 512];
        seed[0] = 3;
        at.into_iter().for_each(|at: usize| seed[at] = 1);
        seeds.push((format!("certificate{name}"), seed));
    }
    // So does the number of a shard, which is the last before the tag: that of the last shard, with
    // and without a certificate, and the first number changed.
    for (name, kind, at) in [
        ("", (63 << 2) | 1, None),
        ("-certificate", (63 << 2) | 3, None),
        ("-flag", (1 << 2) | 1, Some(8)),
        ("-length", (1 << 2) | 1, Some(25)),
        ("-number", (1 << 2) | 1, Some(107)),
    ] {
        let mut seed = vec![0; 512];
        seed[0] = kind;
        at.into_iter().for_each(|at: usize| seed[at] = 8);
        seeds.push((format!("shard{name}"), seed));
    }
    seeds
}
