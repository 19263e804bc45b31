//! Who a node of a lab is, and whom it trusts. This alone knows that trust is a key for each pair:
//! the rest of the lab only adds what it says to a configuration.

use std::path::Path;

use piped_config::{KeyFileError, NodeKey, PublicKey};

use crate::daemon::{Setting, quoted};
use crate::failure::Failure;

/// Name of the file with a node's private key, in the node's directory.
const KEY_FILE: &str = "node.key";

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
        key.write(&directory.join(KEY_FILE), None)
            .map_err(|error: KeyFileError| Failure::failed(error.to_string()))?;
        Ok(Self { name: name.to_owned(), key: key.public() })
    }
}

/// Lets a node show itself by its key, and trust all others by theirs.
pub(super) fn trust_all(
    setting: &mut Setting,
    directory: &Path,
    all: &[Identity],
) -> Result<(), Failure> {
    setting.set("security.key_file", quoted(&directory.join(KEY_FILE))?);
    let others = all.iter().filter(|other| other.name != setting.name());
    let tables = others.map(|it| format!("[peers.{}]\nkey = \"{}\"\n", it.name, it.key));
    let tables: String = tables.collect();
    setting.add_tables(&tables);
    Ok(())
}
