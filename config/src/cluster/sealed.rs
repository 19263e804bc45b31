//! Statements that a cluster key has signed, as bytes and as text.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::key::{SIGNATURE_BYTES, SigningKey};
use crate::cluster::ClusterKey;

/// Bytes or text that are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no {0}: it was cut, changed, or is of a later version")]
pub struct NotSealed(&'static str);

impl NotSealed {
    /// What the bytes or the text should have been.
    pub(super) const fn no(what: &'static str) -> Self {
        Self(what)
    }
}

/// The signature of a statement: of its kind, and of its bytes as they are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Signature([u8; SIGNATURE_BYTES]);

impl std::fmt::Debug for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signature(..)")
    }
}

impl Signature {
    /// Signs the bytes of a statement. `kind` keeps one kind from being taken for another.
    pub(super) fn of(kind: &str, body: &[u8], by: &SigningKey) -> Self {
        Self(by.sign(&message(kind, body)))
    }

    /// The bytes of the signature.
    pub(super) const fn bytes(&self) -> &[u8; SIGNATURE_BYTES] {
        &self.0
    }

    /// Whether one of these keys signed that.
    pub(super) fn is_by(&self, kind: &str, body: &[u8], keys: &[ClusterKey]) -> bool {
        let message = message(kind, body);
        keys.iter().any(|key| key.has_signed(&message, &self.0))
    }
}

fn message(kind: &str, body: &[u8]) -> Vec<u8> {
    // No kind has a zero in its name, so no two of these are equal.
    [kind.as_bytes(), &[0], body].concat()
}

/// Reads what was written, piece by piece; each is none once too little is left.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether all was read.
    pub(super) const fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(length)?;
        self.0 = left;
        Some(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A text with its length before it.
    pub(super) fn text(&mut self) -> Option<&'a str> {
        let length = self.byte()?;
        std::str::from_utf8(self.take(length.into())?).ok()
    }

    pub(super) fn signature(&mut self) -> Option<Signature> {
        self.array().map(Signature)
    }
}

/// Bytes as one line of letters.
pub(super) fn letters(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// Bytes of such a line, which may have space and lines of comments around it.
pub(super) fn bytes_of(text: &str, most: usize) -> Option<Vec<u8>> {
    let mut lines = text.lines().map(str::trim);
    let line = lines.by_ref().find(|line| !line.is_empty() && !line.starts_with('#'))?;
    let is_all = lines.all(|line| line.is_empty() || line.starts_with('#'));
    // Four letters are three bytes.
    let fits = line.len() <= most.div_ceil(3) * 4;
    BASE64_STANDARD.decode(line).ok().filter(|bytes| is_all && fits && bytes.len() <= most)
}
