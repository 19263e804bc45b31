//! The parties that the control thread deals with, as the kernel tells them apart.

use std::fmt;

use piped_config::GROUP_MARK;
use piped_core::names::{is_shard_name, node_of};

/// The process at the other end of a unix socket, as it was when it connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The number of the process; 0 where it lives in a namespace that has none for us.
    pub pid: u32,
    /// The user of the process.
    pub uid: u32,
    /// The first group of the process.
    pub gid: u32,
    /// The other groups of the process.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// A user with one group and no process, for tests.
    #[must_use]
    pub const fn of(uid: u32, gid: u32) -> Self {
        Self { pid: 0, uid, gid, groups: Vec::new() }
    }
}

/// The holder of the other end of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FarEnd {
    /// A user of this machine.
    User(u32),
    /// No process holds that end, though it is on this machine, or the kernel cannot be asked for
    /// it.
    Nobody,
    /// Another machine has that end.
    Elsewhere,
}

/// A node that has proved its name, and what else its cluster says of it.
#[derive(Debug, Clone, Copy)]
pub struct NodeOf<'a> {
    /// The name of the node.
    pub name: &'a str,
    /// Groups that the node is in; none without a certificate.
    pub groups: &'a [String],
}

impl NodeOf<'_> {
    /// Whether a list of nodes and groups names this one.
    pub(crate) fn is_in<'n>(self, names: impl IntoIterator<Item = &'n String>) -> bool {
        names.into_iter().any(|name| match name.strip_prefix(GROUP_MARK) {
            Some(group) => self.groups.iter().any(|it| it == group),
            None => name == self.name,
        })
    }
}

/// The party that asks for something.
#[derive(Debug, Clone, Copy)]
pub enum Asker<'a> {
    /// A local client, by its user and groups.
    User(&'a Credentials),
    /// A node that has proved its name.
    Peer(NodeOf<'a>),
    /// A node that only says its name.
    Plain {
        /// The name that it says.
        name: &'a str,
        /// The user, if it runs on this machine.
        user: Option<&'a Credentials>,
    },
}

impl fmt::Display for Asker<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(who) => write!(f, "user {}", who.uid),
            Self::Peer(NodeOf { name, .. }) | Self::Plain { name, user: None } => {
                write!(f, "node `{name}`")
            }
            Self::Plain { name, user: Some(who) } => write!(f, "node `{name}` of user {}", who.uid),
        }
    }
}

/// The node of a name that one of its shards has; none for a name that no shard has.
#[must_use]
pub fn node_of_shard(peer: &str) -> Option<&str> {
    is_shard_name(peer).then(|| node_of(peer))
}

#[cfg(test)]
mod tests {
    use piped_core::names::shard_name;

    use super::*;

    #[test]
    fn the_name_of_a_shard_leads_back_to_its_node() {
        assert_eq!(shard_name("alpha", 0), "alpha");
        for shard in 0..3 {
            assert_eq!(node_of(&shard_name("alpha", shard)), "alpha");
        }
        assert_eq!(node_of_shard("alpha#1"), Some("alpha"));
        for odd in ["alpha#", "alpha#0", "alpha#01", "alpha#+1", "alpha#x", "alpha#64"] {
            assert_eq!(node_of_shard(odd), None, "{odd}");
        }
        assert_ne!(shard_name("alpha", 1), shard_name("alpha", 2));
    }
}
