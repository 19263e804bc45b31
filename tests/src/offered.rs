//! Two nodes that each offer a directory below which names may change.

use std::fs;
use std::path::PathBuf;

use piped_client::Client;

use crate::process::{Daemon, Programs, free_address, pattern};

/// Bytes of the file `blocks` in each directory, which are [`pattern`]'s.
pub const LENGTH: usize = 100_000;

/// Both places that a client of `alpha` can ask.
pub const PLACES: [Option<&str>; 2] = [None, Some("beta")];

/// `alpha` asks `beta`, and both offer the export `data`: a file `blocks`, and a directory `below`.
#[derive(Debug)]
pub struct Offered {
    directory: tempfile::TempDir,
    alpha: Daemon,
    _beta: Daemon,
}

impl Offered {
    /// Starts both; `None` where the programs are not to be had.
    ///
    /// # Panics
    /// If one of them does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        let programs = Programs::find()?;
        let directory = tempfile::tempdir().expect("a directory");
        let offered = |name: &str| {
            let root = directory.path().join(name);
            fs::create_dir_all(root.join("below")).expect("made");
            fs::write(root.join("blocks"), pattern(LENGTH)).expect("written");
            format!("[exports.data]\npath = {root:?}\nwrite = true\nnames = true\n")
        };
        let address = free_address();
        let served = format!("{}[listen]\naddress = \"{address}\"\n", offered("beta-root"));
        let beta = Daemon::start(&programs, directory.path(), "beta", &served);
        let asks = format!("{}[peers.beta]\naddress = \"{address}\"\n", offered("alpha-root"));
        let alpha = Daemon::start(&programs, directory.path(), "alpha", &asks);
        alpha.await_lanes();
        Some(Self { directory, alpha, _beta: beta })
    }

    /// The node that clients ask.
    #[must_use]
    pub fn alpha(&self) -> &Daemon {
        &self.alpha
    }

    /// The directory that is offered at one of [`PLACES`].
    #[must_use]
    pub fn root(&self, peer: Option<&str>) -> PathBuf {
        self.directory.path().join(format!("{}-root", peer.unwrap_or("alpha")))
    }

    /// A client of `alpha`.
    ///
    /// # Panics
    /// If it is not served.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::connect(self.alpha.client_socket()).expect("it serves")
    }
}
