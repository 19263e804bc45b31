//! The handshake between nodes with keys: whatever is changed in any of its messages, nobody is
//! taken for somebody else.
//!
//! The input is laid over the three messages of a true handshake, byte by byte; where it is zero, a
//! message is as it was. The first byte says whether the ticket is made right again, as a peer that
//! knows the node's public key can do.

use piped::peer::noise::{
    ANSWER_BYTES, Answered, CONFIRMATION_BYTES, Dialled, FIRST_BYTES, Trust, write_ticket,
};
use piped_config::{KEY_BYTES, NodeKey, PublicKey};
use piped_core::link::Protection;

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

    fn node(&self, key: &PublicKey) -> Option<&str> {
        (*key == self.trusted).then_some("alpha")
    }
}

fn key(byte: u8) -> NodeKey {
    NodeKey::of_private([byte; KEY_BYTES].into())
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
    let with_ticket = input.byte() % 2 == 1;
    let alpha = key(1);
    let beta = Node { own: key(2), trusted: alpha.public() };
    let (dialled, mut first) = Dialled::begin(&alpha, beta.own.public(), Protection::Integrity);
    let honest: [u8; FIRST_BYTES] = first;
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
        Ok((node, theirs)) => {
            assert!(!other_word && node == "alpha");
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
    seeds
}
