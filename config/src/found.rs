//! Nodes as others name them: in files of a directory, one node a file `NAME.toml`, or as JSON.
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

use crate::cluster::{NodeCertificate, NotSealed, Revocations};
use crate::network::HostPort;
use crate::node_key::PublicKey;
use crate::regular::read_text;
use crate::schema::{read_key, write_key};
use crate::validate::check_node_name;

/// Most files of the directory that are read at one time.
const FILES_MAX: usize = 8192;

/// Longest text about one node.
const TEXT_BYTES_MAX: usize = 4096;
/// Most bytes of names of exports that a node publishes.
const EXPORTS_BYTES_MAX: usize = 2048;

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
    /// Certificate that the node says it has; whether it counts, its reader decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<NodeCertificate>,
    /// Names of the directories that the node offers.
    pub exports: Vec<String>,
    /// Version of the node's daemon.
    pub version: String,
    /// Load of the node's CPUs in percent, over a minute; none if it is not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_percent: Option<u32>,
}

impl Found {
    /// Whether another word of the node leads to the same place and key.
    #[must_use]
    pub fn is_where(&self, other: &Self) -> bool {
        self.address == other.address
            && self.second_address == other.second_address
            && self.key == other.key
            && self.certificate == other.certificate
    }

    /// Takes the first names of a node's exports, as many as others read.
    #[must_use]
    pub fn with_exports<'a>(mut self, names: impl Iterator<Item = &'a str>) -> Self {
        let mut left = EXPORTS_BYTES_MAX;
        for name in names {
            // With its quotes and comma.
            let Some(after) = left.checked_sub(name.len() + 3) else { break };
            left = after;
            self.exports.push(name.to_owned());
        }
        self
    }

    /// Reads what a node has published under its name, as JSON. Fields of later versions are left
    /// out.
    ///
    /// # Errors
    /// Why it names no node.
    pub fn parse_json(name: &str, text: &[u8]) -> Result<Self, String> {
        check_name(name)?;
        check_length(text.len())?;
        let mut fields: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(text).map_err(|error| error.to_string())?;
        fields.retain(|field, _| FIELDS.contains(&field.as_str()));
        let found = serde_json::from_value(fields.into()).map_err(|error| error.to_string())?;
        Self::with_address(found)
    }

    fn with_address(found: Self) -> Result<Self, String> {
        match found.address.is_empty() {
            true => Err("has no `address`".to_owned()),
            false => Ok(found),
        }
    }
}

/// Fields of [`Found`] that this version knows.
const FIELDS: [&str; 7] =
    ["address", "second_address", "key", "certificate", "exports", "version", "load_percent"];

fn check_name(name: &str) -> Result<(), String> {
    check_node_name(name).map_err(|why| format!("the name of a node {why}"))
}

fn check_length(length: usize) -> Result<(), String> {
    match length > TEXT_BYTES_MAX {
        true => Err(format!("it is longer than {TEXT_BYTES_MAX} bytes")),
        false => Ok(()),
    }
}

/// The nodes of a directory, by name, and what is wrong with the files that name none. Files whose
/// names do not end in `.toml`, or begin with a dot, are left alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FoundNodes {
    /// Nodes by their names.
    pub nodes: BTreeMap<String, Found>,
    /// One line for each file that cannot be used, with its cause.
    pub wrong: Vec<String>,
    /// The list of revoked keys in the file [`Self::REVOKED`], whoever signed it.
    pub revocations: Option<Revocations>,
}

impl FoundNodes {
    /// Name of the file with a list of revoked keys. No node has it.
    pub const REVOKED: &'static str = "revoked";

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
            if path.file_name() == Some(OsStr::new(Self::REVOKED)) {
                match read_list(&path) {
                    Ok(list) => found.revocations = Some(list),
                    Err(why) => found.wrong.push(format!("{}: {why}", path.display())),
                }
            }
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

fn read_list(path: &Path) -> Result<Revocations, String> {
    let text = read_text(path).map_err(|error| error.to_string())?;
    text.parse().map_err(|error: NotSealed| error.to_string())
}

fn read_one(name: &str, path: &Path) -> Result<Found, String> {
    check_name(name)?;
    let text = read_text(path).map_err(|error| error.to_string())?;
    check_length(text.len())?;
    let found = toml_edit::de::from_str(&text).map_err(|error| error.message().to_owned())?;
    Found::with_address(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_publishes_is_what_others_read() {
        let names: Vec<String> = (0..400).map(|number| format!("export-{number:03}")).collect();
        let found = Found {
            address: "10.9.0.2:7440".parse().expect("an address"),
            version: "0.1.0".to_owned(),
            load_percent: Some(12),
            ..Found::default()
        };
        let found = found.with_exports(names.iter().map(String::as_str));
        assert!((100..200).contains(&found.exports.len()), "{}", found.exports.len());
        let text = serde_json::to_vec(&found).expect("plain data");
        assert_eq!(Found::parse_json("beta", &text), Ok(found.clone()));
        let busier = Found { load_percent: Some(90), exports: Vec::new(), ..found.clone() };
        let elsewhere = Found { address: "10.9.0.3:7440".parse().expect("one"), ..found.clone() };
        assert!(found.is_where(&busier) && !found.is_where(&elsewhere));
    }

    #[test]
    fn others_may_say_more_and_not_less_and_not_what_is_no_node() {
        let more = br#"{"address": "h:1", "zone": {"of": 7}}"#;
        assert!(Found::parse_json("beta", more).is_ok());
        let long = format!(r#"{{"address": "h:1", "version": "{}"}}"#, "x".repeat(5000));
        for (name, text) in [
            ("beta", &b"{}"[..]),
            ("beta", b"[]"),
            ("beta", br#"{"address": "h"}"#),
            ("beta", br#"{"address": "h:1", "key": "x"}"#),
            ("beta", br#"{"address": "h:1", "exports": "x"}"#),
            ("beta", long.as_bytes()),
            ("../beta", br#"{"address": "h:1"}"#),
            ("", br#"{"address": "h:1"}"#),
            ("beta", &[0xff, 0xfe]),
        ] {
            assert!(Found::parse_json(name, text).is_err(), "{name} {text:?}");
        }
    }
}
