//! A node's key, which proves its identity, and the file that holds it.
//!
//! Keys are Curve25519, as text in base64: 44 letters, the form WireGuard made familiar. The public
//! half goes into other nodes' configurations. The private half stays in a file that only the
//! daemon can read, and in memory that is wiped here (but not in the handshake's library, which
//! copies it). It has no `Display`, and `Debug` does not show it.

use core::fmt;
use core::str::FromStr;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver as _, DefaultResolver};
use snow::types::Dh;
use zeroize::Zeroizing;

use crate::secret_file::{KeyFileError, SecretKind, decode_secret};

/// Length of a key in bytes.
pub const KEY_BYTES: usize = 32;

/// Length of a key in base64.
const KEY_LETTERS: usize = 44;

const FILE: SecretKind = SecretKind {
    head: "# Private key of this piped node: with it anybody can pose as the node. `pipectl keys \
        show` prints the public one.\n",
    prefix: "",
    what: "private key",
    maker: "pipectl keys generate",
};

/// Public half of a key, by which others know a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; KEY_BYTES]);

impl PublicKey {
    /// Takes the bytes as they come in a handshake.
    #[must_use]
    pub const fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Whether a secret can be agreed on with the key. A few points of the curve give everybody the
    /// same secret.
    fn is_sound(&self) -> bool {
        let mut dh = curve();
        dh.set(&[1; KEY_BYTES]);
        let mut agreed = Zeroizing::new([0; KEY_BYTES]);
        dh.dh(&self.0, agreed.as_mut_slice()).is_ok() && *agreed != [0; KEY_BYTES]
    }

    /// Bytes of the key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

/// Text that is not a public key.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "is not a public key: write the {KEY_LETTERS} letters that `pipectl keys show` prints on the \
     other node"
)]
pub struct NoPublicKey;

impl FromStr for PublicKey {
    type Err = NoPublicKey;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        decode_secret(text).map(|bytes| Self(*bytes)).filter(Self::is_sound).ok_or(NoPublicKey)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl TryFrom<String> for PublicKey {
    type Error = NoPublicKey;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

fn curve() -> Box<dyn Dh> {
    DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("snow is built with it")
}

/// Key of a node, both halves.
#[derive(Clone)]
pub struct NodeKey {
    private: Zeroizing<[u8; KEY_BYTES]>,
    public: PublicKey,
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeKey").field("public", &self.public).finish_non_exhaustive()
    }
}

impl NodeKey {
    /// Makes a new key from the system's randomness.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn generate() -> std::io::Result<Self> {
        let none = || std::io::Error::other("the system gives no randomness");
        let mut random = DefaultResolver.resolve_rng().ok_or_else(none)?;
        let mut private = Zeroizing::new([0; KEY_BYTES]);
        random.try_fill_bytes(private.as_mut_slice()).map_err(|_| none())?;
        Ok(Self::of_private(private))
    }

    /// Makes the key with this private half.
    #[must_use]
    pub fn of_private(private: Zeroizing<[u8; KEY_BYTES]>) -> Self {
        let mut dh = curve();
        dh.set(private.as_slice());
        let public = dh.pubkey().first_chunk().expect("as long as the private one");
        Self { public: PublicKey(*public), private }
    }

    /// Public half, which others may know.
    #[must_use]
    pub const fn public(&self) -> PublicKey {
        self.public
    }

    /// Private half, for handshakes only.
    #[must_use]
    pub fn private(&self) -> &[u8; KEY_BYTES] {
        &self.private
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// [`KeyFileError`], with the fix.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        FILE.read(path).map(Self::of_private)
    }

    /// Reads the key file at that path, or makes one if nothing is there, as [`Self::write`] does;
    /// whether it was made.
    ///
    /// # Errors
    /// [`KeyFileError`], with the fix.
    pub fn read_or_make(path: &Path, group: Option<u32>) -> Result<(Self, bool), KeyFileError> {
        if path.symlink_metadata().is_ok() {
            return Self::read(path).map(|key| (key, false));
        }
        let key = Self::generate().map_err(FILE.io(path, "cannot be made"))?;
        key.write(path, group).map(|()| (key, true))
    }

    /// Writes a new key file that only the user and, if given, `group` can read. An existing file
    /// is not touched.
    ///
    /// # Errors
    /// [`KeyFileError`]; then no file is left behind.
    pub fn write(&self, path: &Path, group: Option<u32>) -> Result<(), KeyFileError> {
        FILE.write(path, &self.private, group)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    #[test]
    fn a_key_comes_back_from_its_file() {
        let folder = folder();
        let path = folder.path().join("node.key");
        let key = NodeKey::generate().expect("random");
        key.write(&path, None).expect("written");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let again = NodeKey::read(&path).expect("a key");
        assert_eq!((again.public(), again.private()), (key.public(), key.private()));
        let error = key.write(&path, None).expect_err("it is there");
        assert!(matches!(error, KeyFileError::Exists(_)), "{error}");
        assert_ne!(NodeKey::generate().expect("random").public(), key.public());
    }

    #[test]
    fn nothing_shows_the_private_half() {
        let key = NodeKey::generate().expect("random");
        let letters = BASE64_STANDARD.encode(key.private());
        let shown = format!("{key:?} {:?} {}", key.public(), key.public());
        assert!(!shown.contains(&letters) && shown.contains(&key.public().to_string()), "{shown}");
    }

    #[test]
    fn a_file_that_others_read_or_that_holds_no_key_is_refused() {
        let folder = folder();
        let path = folder.path().join("node.key");
        let key = NodeKey::generate().expect("random");
        key.write(&path, None).expect("written");
        let set_mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("ours");
        };
        for mode in [0o644, 0o660, 0o601] {
            set_mode(mode);
            let error = NodeKey::read(&path).expect_err("open");
            assert!(matches!(error, KeyFileError::Open { .. }), "{error}");
        }
        set_mode(0o640);
        NodeKey::read(&path).expect("the daemon's group may");
        let good = std::fs::read_to_string(&path).expect("there");
        let twice = format!("{good}\nb\n");
        for (content, place) in [
            ("", "node.key holds"),
            ("# only a comment\n", "node.key holds"),
            ("short\n", "node.key:1 holds"),
            ("#\n\na\nb\n", "node.key:3 holds"),
            (&twice, "node.key:4 holds"),
        ] {
            std::fs::write(&path, content).expect("written");
            let error = NodeKey::read(&path).expect_err("no key");
            assert!(error.to_string().contains(place), "{content:?}: {error}");
            assert!(matches!(error, KeyFileError::Content { .. }), "{error}");
        }
        let error = NodeKey::read(folder.path()).expect_err("a folder");
        assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
        let error = NodeKey::read(&folder.path().join("none")).expect_err("not there");
        assert!(error.to_string().contains("pipectl keys generate"), "{error}");
    }

    #[test]
    fn a_public_key_is_44_letters() {
        let key = NodeKey::generate().expect("random").public();
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(key.to_string().len(), KEY_LETTERS);
        // Points of small order: 0, 1, p - 1.
        let [mut one, mut last] = [[0; KEY_BYTES], [0xff; KEY_BYTES]];
        (one[0], last[0], last[31]) = (1, 0xec, 0x7f);
        let [zero, one, last] = [[0; KEY_BYTES], one, last].map(|key| BASE64_STANDARD.encode(key));
        for text in ["", "beta", &zero, &one, &last, &key.to_string()[1..], &format!("{key}=")] {
            assert_eq!(text.parse::<PublicKey>(), Err(NoPublicKey), "{text}");
        }
    }
}
