//! The cluster as a node knows it: certificates, tokens, revoked keys.

use serde::{Deserialize, Serialize};

use crate::cluster::{ClusterKey, NodeCertificate, UnixTime};
use crate::node_key::PublicKey;

/// Path of [`ClusterReport`], read with `GET`.
pub const CLUSTER: &str = "/v1/cluster";
/// Path to make a token: `POST` of a [`NewToken`], answered by a [`MadeToken`].
pub const CLUSTER_TOKENS: &str = "/v1/cluster/tokens";
/// Path to end a token: `PUT` of an [`EndToken`], answered by [`super::ending::Ended`].
pub const CLUSTER_TOKENS_END: &str = "/v1/cluster/tokens/end";
/// Path to revoke a key: `POST` of a [`Revoke`], answered by [`Revoked`].
pub const CLUSTER_REVOKE: &str = "/v1/cluster/revoke";

/// What a node knows of its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClusterReport {
    /// Keys that sign for the cluster; none: there is no cluster.
    pub keys: Vec<ClusterKey>,
    /// Time of this node's calendar.
    pub now: UnixTime,
    /// This node's certificate, if it has one that counts.
    pub own: Option<MemberReport>,
    /// Whether this node signs for others.
    pub signs: bool,
    /// Address of the node that renews this one's certificate; empty for none.
    pub issuer: String,
    /// Why the certificate was not renewed when that was due.
    pub trouble: Option<String>,
    /// Nodes whose certificates were seen, by name.
    pub members: Vec<MemberReport>,
    /// Number of the list of revoked keys; 0 without one.
    pub revocations: u64,
    /// Keys that the cluster has revoked, and those that this node's operator has.
    pub revoked: Vec<PublicKey>,
    /// Tokens that are open, on a node that signs.
    pub tokens: Vec<TokenReport>,
}

/// One node, as its certificate says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Name of the node.
    pub name: String,
    /// Key of the node.
    pub key: PublicKey,
    /// Groups of the node.
    pub groups: Vec<String>,
    /// Time from which the certificate counts no more.
    pub until: UnixTime,
}

impl From<&NodeCertificate> for MemberReport {
    fn from(certificate: &NodeCertificate) -> Self {
        let subject = certificate.subject();
        Self {
            name: subject.name.clone(),
            key: subject.key,
            groups: subject.groups.clone(),
            until: subject.until,
        }
    }
}

/// A token that is open, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenReport {
    /// Number of the token.
    pub token: u64,
    /// The only name that a node may have that joins with it.
    pub name: Option<String>,
    /// Groups of a node that joins with it.
    pub groups: Vec<String>,
    /// How many nodes may join with it still.
    pub uses: u32,
    /// Seconds until it ends.
    pub seconds_left: u64,
}

/// Makes a token with which nodes join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// How many nodes may join with it, 1 to 1024.
    pub uses: u32,
    /// Seconds until it ends, up to a week.
    pub seconds: u64,
    /// The only name that a node may have that joins with it.
    #[serde(default)]
    pub name: Option<String>,
    /// Groups of a node that joins with it.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// Most nodes that join with one token, and the longest time for which it is open.
pub const TOKEN_USES_MAX: u32 = 1024;
/// Longest time for which a token is open, in seconds: a week.
pub const TOKEN_SECONDS_MAX: u64 = 7 * 86_400;

/// A token that was made. Nobody is told its secret again.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeToken {
    /// Number of the token, which is no secret.
    pub number: u64,
    /// The token itself, with its secret.
    pub token: String,
    /// Address at which this node listens; empty if it is not known here.
    pub at: String,
}

impl std::fmt::Debug for MadeToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MadeToken").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Ends a token: no node joins with it any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndToken {
    /// Number of the token.
    pub token: u64,
}

/// Revokes the key of a node, in the whole cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revoke {
    /// Name of the node, or its key.
    pub node: String,
}

/// The list of revoked keys with one more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// The key that counts no more.
    pub key: PublicKey,
    /// Number of the list.
    pub number: u64,
    /// The list as text, for nodes that hear of it by no source.
    pub list: String,
}
