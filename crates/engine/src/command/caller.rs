//! Nodes that connect to us: what is known of one, what it may have, and why it gets no place.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use piped_core::names::{is_shard_name, node_of, shard_name};

/// What is known of a peer that connected, before it says anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Nothing is proven: the lane is plain. The caller may give itself any name but those of nodes
    /// with keys.
    Unproven {
        /// Names of nodes that have keys: the caller may not take them.
        reserved: Arc<BTreeSet<String>>,
        /// The user or the address that the lane comes from.
        origin: Origin,
    },
    /// The caller proved by its key that it is this node, and said which of its shards. It may give
    /// itself no other name than that shard's.
    Proven {
        /// The name of the node that the key belongs to.
        node: String,
        /// The number of the shard there. Lanes of one shard meet on one of ours, so a shard that
        /// gave itself the name of another would have lanes of one name at two.
        shard: usize,
    },
}

impl Caller {
    /// Anybody, where no node has a key.
    #[must_use]
    pub fn anybody() -> Self {
        let origin = Origin::Site(Ipv4Addr::UNSPECIFIED.into());
        Self::Unproven { reserved: Arc::default(), origin }
    }

    /// What stands behind the name that the caller gives itself.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        match self {
            Self::Unproven { origin, .. } => Standing::Plain(*origin),
            Self::Proven { .. } => Standing::Proven,
        }
    }

    /// Whether there are nodes that have to prove who they are, and lanes and staging are kept for
    /// them.
    pub(crate) fn is_beside_keys(&self) -> bool {
        matches!(self, Self::Unproven { reserved, .. } if !reserved.is_empty())
    }

    /// Whether a lane may give itself this name, a node's or that of one of its shards.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) fn may_be(&self, name: &str) -> Result<(), &'static str> {
        let node = node_of(name);
        match self {
            Self::Unproven { reserved, .. } if reserved.contains(node) => {
                Err("it gives itself the name of a node that has a key, and did not prove it")
            }
            Self::Proven { node: proven, .. } if proven != node => Err(
                "its key is that of another name; give node.name there and [peers] here the same",
            ),
            // A name is a link with lanes, handles and memory: a node has as many as it can have
            // shards.
            Self::Proven { .. } if !is_shard_name(name) => Err("no shard has that name"),
            Self::Proven { node, shard } if shard_name(node, *shard) != name => {
                Err("it gives itself the name of another shard than in its handshake; install the \
                 same release on both nodes")
            }
            Self::Unproven { .. } | Self::Proven { .. } => Ok(()),
        }
    }
}

/// Where a plain lane comes from, as the kernel says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A user of this machine, by number: whose socket is at the other end.
    User(u32),
    /// Another machine: its address, or of IPv6 the network that is one caller's.
    Site(IpAddr),
}

/// What stands behind a node's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// A key proves the name.
    Proven,
    /// Only the caller's own word, from this user or address.
    Plain(Origin),
}

impl Standing {
    /// Whether two lanes under one name are of one node. What a user of this machine opened is for
    /// lanes of this user alone; on a plain network nobody can tell one machine from another.
    pub(crate) fn is_like(self, other: Self) -> bool {
        match (self, other) {
            (Self::Plain(Origin::Site(_)), Self::Plain(Origin::Site(_))) => true,
            (one, other) => one == other,
        }
    }

    /// Whether a plain lane does not leave this machine.
    pub(crate) const fn is_same_machine(self) -> bool {
        matches!(self, Self::Plain(Origin::User(_)))
    }
}

/// Why a connection got no lane, or a lane had to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Crowded {
    /// Its address or user has its share of plain lanes, and all of them work.
    Share,
    /// There are as many lanes or nodes as there may be, and all of them work.
    Full,
    /// There is no staging for it.
    Staging,
    /// Another one needed its place.
    Displaced,
}

/// Which plain lanes close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expelled {
    /// No plain lane closes.
    Nobody,
    /// Plain lanes of users of this machine.
    Users,
    /// All plain lanes, from this machine and from others.
    Everybody,
}
