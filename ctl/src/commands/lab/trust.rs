//! Who a node of a lab is, and why the others believe it: a cluster's key has signed theirs, or
//! each has the keys of all others.

use std::net::SocketAddr;
use std::path::Path;

use piped_config::{Cluster, HostPort, NodeKey, PublicKey, Sources, cluster_drop_in};
use serde::{Deserialize, Serialize};

use super::site::Site;
use crate::commands::cluster::making::{self, Wanted};
use crate::commands::keys;
use crate::daemon::{MAIN_FILE, Setting, quoted};
use crate::failure::Failure;

/// Name of the file with a node's private key, in the node's directory.
const KEY_FILE: &str = "node.key";

/// Why nodes believe each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Trust {
    /// The key of a cluster, which the first node has, signed theirs.
    Cluster,
    /// Each has the keys of all others in its configuration.
    Pinned,
}

/// A node and its public key.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    name: String,
    key: PublicKey,
}

impl Identity {
    /// Makes a node's key, in its directory.
    pub(super) fn make(name: &str, directory: &Path) -> Result<Self, Failure> {
        let key = NodeKey::generate().map_err(|error| Failure::io("no key was made", &error))?;
        key.write(&directory.join(KEY_FILE), None).map_err(keys::refused)?;
        Ok(Self { name: name.to_owned(), key: key.public() })
    }

    fn wanted(&self) -> Wanted<'_> {
        Wanted::new((self.key, &self.name), &[], Cluster::VALIDITY)
    }

    fn sources(&self, site: &Site) -> Sources {
        Sources { file: Some(site.node(&self.name).join(MAIN_FILE)), ..Sources::default() }
    }
}

/// Has a node prove itself by its key.
pub(super) fn prove(setting: &mut Setting, directory: &Path) -> Result<(), Failure> {
    setting.set("security.key_file", quoted(&directory.join(KEY_FILE))?);
    Ok(())
}

/// Has a node trust all others by their keys.
pub(super) fn pin(setting: &mut Setting, all: &[Identity]) {
    let others = all.iter().filter(|other| other.name != setting.name());
    let tables = others.map(|it| format!("[peers.{}]\nkey = \"{}\"\n", it.name, it.key));
    let tables: String = tables.collect();
    setting.add_tables(&tables);
}

/// Begins a cluster with the first node, whose file has the cluster's key, and signs the keys of
/// the others. They renew their certificates at `signer`, where the first one listens.
pub(super) fn sign(site: &Site, signer: SocketAddr, all: &[Identity]) -> Result<(), Failure> {
    let Some((first, others)) = all.split_first() else { return Ok(()) };
    let begun = making::begin(&first.sources(site), first.wanted(), None, None)?;
    let at = signer.to_string().parse::<HostPort>();
    let at = at.map_err(|error| Failure::failed(error.to_string()))?;
    let drop_in = cluster_drop_in(&[begun.key().public()], None, Some((&at, first.key)));
    for other in others {
        let certificate = other.wanted().signed(begun.key())?;
        making::take_in(&other.sources(site), &certificate, &drop_in)?;
    }
    Ok(())
}
