//! What this node offers of its files: which directory, to which users and peers.

use std::collections::BTreeMap;

use piped_config::{Export, Names};
use piped_core::access::{Access, Creation};
use piped_core::status::Status;

use crate::access::{Circle, Misnamed};
use crate::fault::OpenFault;
use crate::parties::{Asker, Credentials, NodeOf};

/// Which directory an export is: the name may stay and another directory come under it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    /// The device of the directory.
    pub device: u64,
    /// The number of the directory on its device.
    pub inode: u64,
}

/// The rights to one export.
#[derive(Debug, Clone)]
struct Grant {
    root: Root,
    offered: Access,
    /// Local users that may use it; empty: all that got in.
    users: Circle,
    /// Peers, and groups of them, that may use it; `None`: all that got in.
    peers: Option<Vec<String>>,
}

/// The rights to all exports, by name.
#[derive(Debug, Default)]
pub struct Grants {
    by_name: BTreeMap<String, Grant>,
}

impl Grants {
    /// Adds an export after its directory was opened.
    ///
    /// # Errors
    /// A user or a group that nobody is.
    pub fn add(
        &mut self,
        name: &str,
        export: &Export,
        names: &Names,
        root: Root,
    ) -> Result<(), Misnamed> {
        let grant = Grant {
            root,
            offered: Access {
                read: export.read,
                write: export.write,
                names: export.names,
                ..Access::NONE
            },
            users: Circle::new(&export.users, &export.groups, names)?,
            peers: (!export.peers.is_empty()).then(|| export.peers.clone()),
        };
        self.by_name.insert(name.to_owned(), grant);
        Ok(())
    }

    /// The one rule by which a party may use an export: at the open, and whenever that is decided
    /// anew. Returns all that the export offers.
    ///
    /// # Errors
    /// The export is not for the party that asks, or not for that.
    pub fn allow(
        &self,
        asker: Asker<'_>,
        name: &str,
        access: Access,
        create: Creation,
    ) -> Result<Access, OpenFault> {
        let offered = self.admitted(asker, name)?.offered;
        check_access(offered, access, create, name).map(|()| offered)
    }

    /// Which directory an export is now.
    #[must_use]
    pub fn root(&self, name: &str) -> Option<Root> {
        self.by_name.get(name).map(|export| export.root)
    }

    /// Whether what was opened below an export, when it was this directory, may still be used.
    ///
    /// # Errors
    /// As of an open; or the export is another directory now.
    pub fn still(
        &self,
        asker: Asker<'_>,
        name: &str,
        access: Access,
        root: Option<Root>,
    ) -> Result<(), OpenFault> {
        self.allow(asker, name, access, Creation::No)?;
        if self.root(name) != root {
            let text = format!("the export `{name}` is another directory now");
            return Err(OpenFault::new(Status::Gone, text));
        }
        Ok(())
    }

    fn admitted(&self, asker: Asker<'_>, name: &str) -> Result<&Grant, OpenFault> {
        // Not told apart: a party that may not use an export need not learn its name.
        let export = self.by_name.get(name).filter(|export| export.admits(asker));
        export.ok_or_else(|| {
            OpenFault::new(Status::NoExport, format!("no export `{name}` on this node for you"))
        })
    }
}

impl Grant {
    fn admits(&self, asker: Asker<'_>) -> bool {
        let user = |who: &Credentials| self.users.is_empty() || self.users.has(who);
        let peer = |node: NodeOf<'_>| self.peers.as_ref().is_none_or(|peers| node.is_in(peers));
        // Groups are proved, and never said.
        let named = |name| peer(NodeOf { name, groups: &[] });
        match asker {
            Asker::User(who) => user(who),
            Asker::Peer(node) => peer(node),
            // What it may do without a node of its own, and what its name may.
            Asker::Plain { name, user: Some(who) } => user(who) && named(name),
            // Where users are told apart, nobody gets in by saying nothing.
            Asker::Plain { name, user: None } => {
                named(name) && (self.users.is_empty() || self.peers.is_some())
            }
        }
    }
}

fn check_access(
    offered: Access,
    wanted: Access,
    create: Creation,
    name: &str,
) -> Result<(), OpenFault> {
    if !wanted.read && !wanted.write && !wanted.names {
        let text = "it is to be opened neither for reading nor for writing";
        return Err(OpenFault::new(Status::Invalid, text));
    }
    if wanted.read && !offered.read {
        return Err(OpenFault::denied(format!("the export `{name}` may not be read")));
    }
    if wanted.write && !offered.write {
        return Err(OpenFault::denied(format!("the export `{name}` may not be written")));
    }
    let new = create.made();
    let makes_directories = new.is_some_and(|new| new.parents);
    if (wanted.names || makes_directories) && !offered.names {
        let text = format!(
            "names below the export `{name}` may not be changed; see exports.{name}.names there"
        );
        return Err(OpenFault::denied(text));
    }
    if new.is_some() && !wanted.write {
        let text = "a file is created only when it is opened for writing";
        return Err(OpenFault::new(Status::Invalid, text));
    }
    Ok(())
}
