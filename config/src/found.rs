//! Nodes as files of a directory name them: one node a file, `NAME.toml`, that others write.
//!
//! ```toml
//! address = "10.9.0.2:7440"
//! key = "3q2+7wABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhs="
//! exports = ["data"]
//! ```

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::network::HostPort;
use crate::node_key::PublicKey;
use crate::regular::read_text;
use crate::schema::{read_key, write_key};
use crate::validate::check_node_name;

/// Most files of the directory that are read at one time.
const FILES_MAX: usize = 8192;

/// What a source of discovery says of a node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Found {
    /// Address where the node listens.
    pub address: HostPort,
    /// Second address, by way of another link; empty if it has none.
    pub second_address: HostPort,
    /// Public key that the node says it has. A peer is trusted by the configuration's key, never by
    /// this one.
    #[serde(serialize_with = "write_key", deserialize_with = "read_key")]
    pub key: Option<PublicKey>,
    /// Names of the directories that the node offers.
    pub exports: Vec<String>,
    /// Version of the node's daemon.
    pub version: String,
}

/// The nodes of a directory, by name, and what is wrong with the files that name none. Files whose
/// names do not end in `.toml`, or begin with a dot, are left alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundNodes {
    /// Nodes by their names.
    pub nodes: BTreeMap<String, Found>,
    /// One line for each file that cannot be used, with its cause.
    pub wrong: Vec<String>,
}

impl FoundNodes {
    /// Reads the files of a directory. May block in the file system.
    ///
    /// # Errors
    /// The directory cannot be read, or it has more files than anybody reads.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let mut found = Self::default();
        for (count, entry) in directory.read_dir()?.enumerate() {
            if count >= FILES_MAX {
                return Err(io::Error::other(format!("it has more than {FILES_MAX} files")));
            }
            let path = entry?.path();
            let Some(name) = node_of(&path) else { continue };
            match read_one(&name, &path) {
                Ok(node) => drop(found.nodes.insert(name, node)),
                Err(why) => found.wrong.push(format!("{}: {why}", path.display())),
            }
        }
        found.wrong.sort();
        Ok(found)
    }
}

fn node_of(path: &Path) -> Option<String> {
    let is_node = path.extension() == Some(OsStr::new("toml"));
    let stem = path.file_stem().filter(|_| is_node)?.to_string_lossy().into_owned();
    (!stem.starts_with('.')).then_some(stem)
}

fn read_one(name: &str, path: &Path) -> Result<Found, String> {
    check_node_name(name).map_err(|why| format!("the name of a node {why}"))?;
    let text = read_text(path).map_err(|error| error.to_string())?;
    let found: Found =
        toml_edit::de::from_str(&text).map_err(|error| error.message().to_owned())?;
    if found.address.is_empty() {
        return Err("has no `address`".to_owned());
    }
    Ok(found)
}
