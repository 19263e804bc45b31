//! The keys of nodes that count no more before their certificates end, as the cluster says.
//!
//! ```text
//!   version 1 │ number 8 │ count 2 │ (key 32 │ until 8)… │ signature 64
//! ```
//!
//! Keys are in order. A list with a higher number replaces one with a lower number. A key leaves
//! the list when the certificates that it could show have ended.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;

use super::UnixTime;
use super::key::{ClusterKey, SIGNATURE_BYTES, SigningKey};
use super::sealed::{NotSealed, Reader, Signature, bytes_of, letters};
use crate::node_key::{KEY_BYTES, PublicKey};

/// Most keys that are revoked at one time.
pub const REVOKED_MAX: usize = 512;

const BYTES_MAX: usize = 1 + 8 + 2 + REVOKED_MAX * (KEY_BYTES + 8) + SIGNATURE_BYTES;
const VERSION: u8 = 1;
const KIND: &str = "piped revocations";
const NO_LIST: NotSealed = NotSealed::no("list of revoked keys");

/// A signed list. That it was read proves nothing; see [`Self::is_by`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocations {
    number: u64,
    keys: BTreeMap<PublicKey, UnixTime>,
    signature: Signature,
}

impl Revocations {
    /// Signs a list of keys, each with the time when it may be forgotten.
    ///
    /// # Errors
    /// There are too many.
    pub fn issue(
        number: u64,
        keys: BTreeMap<PublicKey, UnixTime>,
        by: &SigningKey,
    ) -> Result<Self, String> {
        if keys.len() > REVOKED_MAX {
            return Err(format!(
                "a list has {REVOKED_MAX} keys at most, and each stays until its certificate would \
                 have ended: make another key for the cluster"
            ));
        }
        let signature = Signature::of(KIND, &body(number, &keys), by);
        Ok(Self { number, keys, signature })
    }

    /// Which of several lists it is: a higher number is a later list.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The keys, each with the time when it may be forgotten.
    #[must_use]
    pub const fn keys(&self) -> &BTreeMap<PublicKey, UnixTime> {
        &self.keys
    }

    /// Whether one of these keys signed the list.
    #[must_use]
    pub fn is_by(&self, keys: &[ClusterKey]) -> bool {
        self.signature.is_by(KIND, &body(self.number, &self.keys), keys)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::of(bytes);
        let version = reader.byte()?;
        let number = reader.number()?;
        let count = usize::from(u16::from_le_bytes(reader.array()?));
        let mut list = Vec::with_capacity(count.min(REVOKED_MAX));
        for _ in 0..count {
            list.push((PublicKey::new(reader.array()?), UnixTime(reader.number()?)));
        }
        let signature = reader.signature()?;
        let in_order = list.is_sorted_by(|(one, _), (next, _)| one < next);
        let is_whole = version == VERSION && reader.is_at_end() && in_order;
        let keys = list.into_iter().collect();
        (is_whole && count <= REVOKED_MAX).then_some(Self { number, keys, signature })
    }
}

fn body(number: u64, keys: &BTreeMap<PublicKey, UnixTime>) -> Vec<u8> {
    let mut body = vec![VERSION];
    body.extend(number.to_le_bytes());
    // At most as many as a list has.
    body.extend((keys.len() as u16).to_le_bytes());
    for (key, until) in keys {
        body.extend(key.as_bytes());
        body.extend(until.0.to_le_bytes());
    }
    body
}

impl FromStr for Revocations {
    type Err = NotSealed;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        bytes_of(text, BYTES_MAX).and_then(|bytes| Self::from_bytes(&bytes)).ok_or(NO_LIST)
    }
}

impl fmt::Display for Revocations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes =
            [body(self.number, &self.keys).as_slice(), self.signature.bytes().as_slice()].concat();
        f.write_str(&letters(&bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeKey;

    fn keys(count: usize) -> BTreeMap<PublicKey, UnixTime> {
        let key = |number| (NodeKey::generate().expect("random").public(), UnixTime(number));
        (0..count as u64).map(key).collect()
    }

    #[test]
    fn a_list_is_read_back_and_belongs_to_the_key_that_signed_it() {
        let by = SigningKey::generate().expect("random");
        let other = SigningKey::generate().expect("random").public();
        for count in [0, 3, REVOKED_MAX] {
            let list = Revocations::issue(7, keys(count), &by).expect("so many may be");
            let text = format!("# revoked\n{list}\n");
            let read: Revocations = text.parse().expect("a list");
            assert_eq!(read, list);
            assert!(read.is_by(&[other, by.public()]) && !read.is_by(&[other]));
        }
        assert!(Revocations::issue(7, keys(REVOKED_MAX + 1), &by).is_err());
    }

    #[test]
    fn a_list_that_was_changed_is_none_or_nobodys() {
        let by = SigningKey::generate().expect("random");
        let list = Revocations::issue(7, keys(2), &by).expect("so many may be");
        let bytes = bytes_of(&list.to_string(), BYTES_MAX).expect("letters");
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let read = Revocations::from_bytes(&changed);
            assert!(read.is_none_or(|read| !read.is_by(&[by.public()])), "{bit}");
        }
        assert!("".parse::<Revocations>().is_err() && "AAAA".parse::<Revocations>().is_err());
        let twice = format!("{list}\n{list}");
        assert!(twice.parse::<Revocations>().is_err());
    }
}
