//! A node that looks for another one, and somebody with that one's name.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use piped_client::{Client, ClientBuilder, Handle, OpenOptions};
use system_tests::keys::Key;
use system_tests::process::{BLOCKS_BYTES, Daemon, Programs, eventually, free_address, pattern};

/// Alpha trusts beta by its key, and has no address of it.
pub(crate) struct Scene {
    pub(crate) alpha: Daemon,
    /// Beta and, with its name and another key, mallory.
    pub(crate) others: [Daemon; 2],
    /// Where the two listen.
    pub(crate) addresses: [SocketAddr; 2],
    /// Keys of alpha, beta and mallory.
    pub(crate) keys: [Key; 3],
    /// Tables of `[discovery]`: of alpha and of beta.
    sources: [String; 2],
    directory: tempfile::TempDir,
}

impl Scene {
    /// Starts the three. The argument gives the tables `[discovery]` of alpha and beta.
    pub(crate) fn start(sources: impl FnOnce(&Path) -> [String; 2]) -> Option<Self> {
        let programs = Programs::find()?;
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path();
        for (folder, bytes) in [("beta", pattern(BLOCKS_BYTES)), ("mallory", vec![0; BLOCKS_BYTES])]
        {
            fs::create_dir(path.join(folder)).expect("made");
            fs::write(path.join(folder).join("blocks"), bytes).expect("written");
        }
        let keys = ["alpha", "beta", "mallory"].map(|name| Key::make(&programs, path, name));
        let addresses = [free_address(), free_address()];
        let sources = sources(path);
        let beta = offering(path, &keys, 1, addresses[0]) + &sources[1];
        let mallory = offering(path, &keys, 2, addresses[1]);
        let others = [
            Daemon::start(&programs, path, "beta", &beta),
            Daemon::start(&programs, path, "mallory", &mallory),
        ];
        let alpha = keys[0].security("integrity") + &keys[1].peer("beta", None) + &sources[0];
        let alpha = Daemon::start(&programs, path, "alpha", &alpha);
        Some(Self { alpha, others, addresses, keys, sources, directory })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Beta ends, and is somewhere else.
    pub(crate) fn move_beta(&mut self) {
        self.addresses[0] = free_address();
        let table = offering(self.path(), &self.keys, 1, self.addresses[0]) + &self.sources[1];
        self.others[0].process.signal(rustix::process::Signal::TERM);
        self.others[0].restart(&table);
    }

    /// A client that waits for no answer for long: nobody is at a wrong address.
    pub(crate) fn client(&self) -> Client {
        let builder = ClientBuilder::new().timeout(Duration::from_secs(2));
        builder.connect(self.alpha.client_socket()).expect("it serves")
    }

    pub(crate) fn open(&self, client: &Client) -> Handle {
        let open = || client.open_export(Some("beta"), "data", "blocks", OpenOptions::read()).ok();
        eventually("it is open", open)
    }

    /// What the log of alpha says at last.
    pub(crate) fn logged(&self, words: &str) {
        eventually(words, || self.alpha.log().contains(words).then_some(()));
    }

    /// What alpha has heard of beta, by the source.
    pub(crate) fn heard(&self) -> Option<SocketAddr> {
        let report = self.alpha.json(&["nodes"]);
        let nodes = report["nodes"].as_array().expect("a list");
        let beta = nodes.iter().find(|it| it["node"] == "beta")?;
        beta["address"].as_str()?.parse().ok()
    }

    /// Waits until alpha has heard that beta is there.
    pub(crate) fn await_heard(&self, address: SocketAddr) {
        eventually("it is heard of", || (self.heard() == Some(address)).then_some(()));
    }
}

/// A node that offers the folder of its name to alpha.
fn offering(path: &Path, keys: &[Key; 3], place: usize, address: SocketAddr) -> String {
    let folder = path.join(["alpha", "beta", "mallory"][place]);
    let data = format!("[exports.data]\npath = \"{}\"\n", folder.display());
    keys[place].security("integrity")
        + &keys[0].peer("alpha", None)
        + &format!("[listen]\naddress = \"{address}\"\n{data}")
}

/// Reads all of the file, when the peer is there.
pub(crate) fn read(client: &Client, file: &Handle) -> Vec<u8> {
    let mut queue = client.queue().expect("a queue");
    eventually("it is read", || {
        let buffer = client.allocate(BLOCKS_BYTES).expect("memory");
        let (buffer, bytes) = queue.read(file, 0, buffer).ok()?;
        (bytes == BLOCKS_BYTES).then(|| buffer.as_slice().to_vec())
    })
}

/// Whether the node has ever had a connection with a proven key.
pub(crate) fn is_served_by(node: &Daemon) -> bool {
    node.json(&["peers"])["peers"].as_array().is_some_and(|peers| {
        peers.iter().any(|peer| peer["lanes"].as_array().is_some_and(|lanes| !lanes.is_empty()))
    })
}
