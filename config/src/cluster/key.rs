//! The key of a cluster, which signs, and its public half, which each node knows.

use core::fmt;
use core::str::FromStr;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::node_key::KEY_BYTES;
use crate::secret_file::{KeyFileError, Secret, SecretKind};

/// Length of a signature in bytes (Ed25519, RFC 8032).
pub(super) const SIGNATURE_BYTES: usize = 64;

/// Beginning of the text of a public key: keys of nodes have none, so the two are not mixed up.
const PREFIX: &str = "ed25519:";

const FILE: SecretKind = SecretKind {
    head: "# Private key of this piped cluster: with it anybody can make nodes of the cluster. \
        Keep a copy where no node is.\n",
    prefix: "ed25519-private:",
    what: "private key of a cluster",
    maker: "pipectl cluster init",
};

/// Public half of a cluster's key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterKey([u8; KEY_BYTES]);

/// Text that is not the public key of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "is not the key of a cluster: write what `pipectl cluster init` printed, as in {PREFIX}..."
)]
pub struct NoClusterKey;

impl ClusterKey {
    /// Takes the bytes of a key.
    #[must_use]
    pub const fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(message, signature).is_ok()
    }
}

impl FromStr for ClusterKey {
    type Err = NoClusterKey;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let letters = text.strip_prefix(PREFIX).ok_or(NoClusterKey)?;
        let bytes = BASE64_STANDARD.decode(letters).map_err(|_| NoClusterKey)?;
        bytes.try_into().map(Self).map_err(|_| NoClusterKey)
    }
}

impl fmt::Display for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", BASE64_STANDARD.encode(self.0))
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterKey({self})")
    }
}

impl TryFrom<String> for ClusterKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map_err(|error| format!("`{text}` {error}"))
    }
}

impl From<ClusterKey> for String {
    fn from(key: ClusterKey) -> Self {
        key.to_string()
    }
}

/// Key of a cluster, both halves.
#[derive(Clone)]
pub struct SigningKey {
    seed: Secret,
    public: ClusterKey,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("public", &self.public).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Makes a new key from the system's randomness.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate() -> std::io::Result<Self> {
        let mut seed = Zeroizing::new([0; KEY_BYTES]);
        let filled = SystemRandom::new().fill(seed.as_mut_slice());
        filled.map_err(|_| std::io::Error::other("the system gives no randomness"))?;
        Ok(Self::of_seed(seed))
    }

    /// Makes the key with this private half.
    #[must_use]
    pub fn of_seed(seed: Zeroizing<[u8; KEY_BYTES]>) -> Self {
        let public = pair(&seed).public_key().as_ref().try_into();
        Self { public: ClusterKey(public.expect("as long as the private one")), seed }
    }

    /// Public half, which nodes trust.
    #[must_use]
    pub const fn public(&self) -> ClusterKey {
        self.public
    }

    /// Reads the file with a cluster's private key.
    ///
    /// # Errors
    /// [`KeyFileError`], with the fix.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        FILE.read(path).map(Self::of_seed)
    }

    /// Writes a new file that only the user and, if given, `group` can read. An existing file is
    /// not touched.
    ///
    /// # Errors
    /// [`KeyFileError`]; then no file is left behind.
    pub fn write(&self, path: &Path, group: Option<u32>) -> Result<(), KeyFileError> {
        FILE.write(path, &self.seed, group)
    }

    pub(super) fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let signature = pair(&self.seed).sign(message);
        signature.as_ref().try_into().expect("a signature of 64 bytes")
    }
}

fn pair(seed: &Secret) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(seed.as_slice()).expect("a seed of 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_signs_and_comes_back_from_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("cluster.key");
        let key = SigningKey::generate().expect("random");
        key.write(&path, None).expect("written");
        let again = SigningKey::read(&path).expect("a key");
        assert_eq!(again.public(), key.public());
        let signature = again.sign(b"text");
        assert!(key.public().has_signed(b"text", &signature));
        assert!(!key.public().has_signed(b"Text", &signature));
        let other = SigningKey::generate().expect("random").public();
        assert!(!other.has_signed(b"text", &signature));
        let shown = format!("{key:?} {}", key.public());
        let letters = BASE64_STANDARD.encode(key.seed.as_slice());
        assert!(!shown.contains(&letters) && shown.contains(&key.public().to_string()));
        // Neither kind of key is taken for the other.
        let error = crate::NodeKey::read(&path).expect_err("of a cluster").to_string();
        assert!(error.contains("pipectl keys generate"), "{error}");
        let node = folder.path().join("node.key");
        crate::NodeKey::generate().expect("random").write(&node, None).expect("written");
        let error = SigningKey::read(&node).expect_err("of a node").to_string();
        assert!(error.contains("pipectl cluster init"), "{error}");
    }

    #[test]
    fn text_of_a_key_is_read_back_and_other_text_is_refused() {
        let key = SigningKey::generate().expect("random").public();
        assert_eq!(key.to_string().parse(), Ok(key));
        let letters = key.to_string().split_off(PREFIX.len());
        for text in ["", "ed25519:", "ed25519:AAAA", letters.as_str()] {
            assert_eq!(text.parse::<ClusterKey>(), Err(NoClusterKey), "{text}");
        }
    }
}
