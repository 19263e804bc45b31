//! Keys of nodes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::process::{Programs, words};

/// The key pair of a node, in a file.
#[derive(Debug)]
pub struct Key {
    /// The file with the private key.
    pub file: PathBuf,
    /// The public key, which other nodes know.
    pub public: String,
}

impl Key {
    /// A new one.
    ///
    /// # Panics
    /// If `pipectl` makes none.
    #[must_use]
    pub fn make(programs: &Programs, directory: &Path, name: &str) -> Self {
        let file = directory.join(format!("{name}.key"));
        let output = programs.pipectl().args(["keys", "generate", "--file"]).arg(&file).output();
        let output = output.expect("pipectl starts");
        assert!(output.status.success(), "{}", words(&output));
        let public = String::from_utf8(output.stdout).expect("text").trim().to_owned();
        Self { file, public }
    }

    /// The table of the node that has it.
    #[must_use]
    pub fn security(&self, mode: &str) -> String {
        format!("[security]\nmode = \"{mode}\"\nkey_file = \"{}\"\n", self.file.display())
    }

    /// The table of those that trust the node.
    #[must_use]
    pub fn peer(&self, name: &str, address: Option<SocketAddr>) -> String {
        let address = address.map_or(String::new(), |address| format!("address = \"{address}\"\n"));
        format!("[peers.{name}]\n{address}key = \"{}\"\n", self.public)
    }
}
