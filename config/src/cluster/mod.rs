//! Membership of nodes by signature: one key of the cluster signs the keys of its nodes.
//!
//! ```text
//!   cluster key ─signs─► certificate: key, name, groups, times   of one node
//!              └─signs─► revocations: keys that count no more    of the cluster
//! ```
//!
//! A node trusts the cluster's public key ([`Cluster::keys`]), and by it each node that shows a
//! certificate and proves the key in it.

mod certificate;
mod key;
mod revocations;
mod sealed;
mod token;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::certificate::{
    CERTIFICATE_BYTES_MAX, CertificateFault, GROUPS_MAX, NodeCertificate, Subject,
};
pub use self::key::{ClusterKey, NoClusterKey, SigningKey};
pub use self::revocations::{REVOKED_MAX, Revocations};
pub use self::sealed::NotSealed;
pub use self::token::{JoinToken, NoToken};

use crate::modes::AutoPath;
use crate::network::HostPort;
use crate::node_key::PublicKey;
use crate::quantity::Period;
use crate::schema::{read_key, write_key};
use crate::validate::Faults;

/// Most keys of a cluster that are trusted at one time: one, and its successors.
pub const CLUSTER_KEYS_MAX: usize = 4;

/// Beginning of the name of a group of nodes, where nodes are named too.
pub const GROUP_MARK: char = '@';

/// Shortest and longest time for which a certificate counts.
const VALIDITIES: [Duration; 2] = [Duration::from_secs(60), Cluster::VALIDITY_MAX.0];

/// Calendar time in whole seconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixTime(pub u64);

impl UnixTime {
    /// The time so much later; at the end of time that end.
    #[must_use]
    pub const fn after(self, period: Period) -> Self {
        Self(self.0.saturating_add(period.0.as_secs()))
    }

    /// Seconds from an earlier time to this one; 0 if that is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Table `[cluster]` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    /// Public keys of the cluster: a node that shows a certificate signed by one of them, and
    /// proves the key in it, is the node that the certificate names. Empty: no cluster.
    pub keys: Vec<ClusterKey>,
    /// File with this node's certificate; `auto` is `node.certificate` beside the main file.
    pub certificate_file: AutoPath,
    /// File with the cluster's private key, on a node that signs; empty on others.
    pub signing_key_file: AutoPath,
    /// How long a certificate counts that this node signs.
    pub validity: Period,
    /// Address of a node that signs, from which this one renews its certificate; empty for none.
    pub issuer: HostPort,
    /// Public key of the node that signs.
    #[serde(serialize_with = "write_key", deserialize_with = "read_key")]
    pub issuer_key: Option<PublicKey>,
    /// Keys of nodes that count no more, whatever certificate they show.
    pub revoked: Vec<PublicKey>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            certificate_file: AutoPath::Auto,
            signing_key_file: AutoPath::None,
            validity: Self::VALIDITY,
            issuer: HostPort::default(),
            issuer_key: None,
            revoked: Vec::new(),
        }
    }
}

impl Cluster {
    /// Name of the file with this node's certificate, beside the main file and in the directory of
    /// the state.
    pub const CERTIFICATE_FILE: &'static str = "node.certificate";

    /// Name of the file with the cluster's private key, beside the main file.
    pub const SIGNING_KEY_FILE: &'static str = "cluster.key";

    /// How long a certificate counts at most.
    pub const VALIDITY_MAX: Period = Period::seconds(3650 * 86_400);

    /// How long a certificate counts by default.
    pub const VALIDITY: Period = Period::seconds(30 * 24 * 3600);

    /// Whether nodes are trusted by certificates.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Path of this node's certificate as operators write it. `main_file` is that of the
    /// configuration, if there is one.
    #[must_use]
    pub fn certificate_path(&self, main_file: Option<&Path>) -> Option<PathBuf> {
        beside(&self.certificate_file, main_file, Self::CERTIFICATE_FILE)
    }

    /// Path of the cluster's private key, on a node that signs.
    #[must_use]
    pub fn signing_key_path(&self, main_file: Option<&Path>) -> Option<PathBuf> {
        beside(&self.signing_key_file, main_file, Self::SIGNING_KEY_FILE)
    }

    /// Checks bounds and relations, which types cannot.
    pub(crate) fn check(&self, faults: &mut Faults) {
        for (key, path) in [
            ("cluster.certificate_file", &self.certificate_file),
            ("cluster.signing_key_file", &self.signing_key_file),
        ] {
            let AutoPath::At(path) = path else { continue };
            faults.check(path.is_absolute(), key, || {
                format!("is `{}`: write an absolute path, auto, or nothing", path.display())
            });
        }
        faults.check(self.keys.len() <= CLUSTER_KEYS_MAX, "cluster.keys", || {
            format!("are {}: at most {CLUSTER_KEYS_MAX} are trusted", self.keys.len())
        });
        let signs = self.signing_key_file != AutoPath::None;
        let is_set = signs || !self.issuer.is_empty() || !self.revoked.is_empty();
        faults.check(self.is_on() || !is_set, "cluster.keys", || {
            "are not set, and without them no certificate counts: write what `pipectl cluster \
             init` printed"
                .to_owned()
        });
        let [least, most] = VALIDITIES;
        faults.check((least..=most).contains(&self.validity.0), "cluster.validity", || {
            format!("is {}: choose from 1m to 3650d", self.validity)
        });
        let together = self.issuer.is_empty() == self.issuer_key.is_none();
        faults.check(together, "cluster.issuer", || {
            "and issuer_key belong together: set both, or none".to_owned()
        });
        faults.check(self.revoked.len() <= REVOKED_MAX, "cluster.revoked", || {
            format!("are {}: at most {REVOKED_MAX} may be", self.revoked.len())
        });
    }
}

fn beside(path: &AutoPath, main_file: Option<&Path>, name: &str) -> Option<PathBuf> {
    match path {
        AutoPath::None => None,
        AutoPath::At(path) => Some(path.clone()),
        AutoPath::Auto => Some(main_file?.parent()?.join(name)),
    }
}
