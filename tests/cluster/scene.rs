//! Nodes of a cluster, each with its files in a folder of its own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Output;

use piped_client::{Client, Handle, OpenOptions};
use system_tests::process::{
    BLOCKS_BYTES, Daemon, Programs, eventually, free_address, pattern, words,
};
use tempfile::TempDir;

/// A folder for a node of each name.
pub(crate) struct Site {
    pub(crate) programs: Programs,
    directory: TempDir,
}

impl Site {
    pub(crate) fn new() -> Option<Self> {
        let programs = Programs::find()?;
        Some(Self { programs, directory: tempfile::tempdir().expect("a folder") })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The folder of a node, with the file that its daemon will have, and something to offer.
    pub(crate) fn folder(&self, node: &str) -> PathBuf {
        let folder = self.directory.path().join(node);
        if !folder.exists() {
            fs::create_dir_all(folder.join("data")).expect("made");
            let fill =
                if node == "mallory" { vec![0; BLOCKS_BYTES] } else { pattern(BLOCKS_BYTES) };
            fs::write(folder.join("data/blocks"), fill).expect("written");
            fs::write(folder.join(format!("{node}.toml")), "").expect("written");
            fs::create_dir(folder.join("conf.d")).expect("made");
            let state = format!("[node]\nstate_dir = \"{}\"\n", folder.join("state").display());
            fs::write(folder.join("conf.d/10-state.toml"), state).expect("written");
        }
        folder
    }

    fn file(&self, node: &str) -> PathBuf {
        self.folder(node).join(format!("{node}.toml"))
    }

    /// `pipectl cluster` on files alone.
    pub(crate) fn cluster(&self, node: &str, arguments: &[&str]) -> Output {
        let mut command = self.programs.pipectl();
        command.arg("cluster").args(arguments).arg("--config").arg(self.file(node));
        command.output().expect("it starts")
    }

    /// Begins a cluster with a node: the cluster's key.
    pub(crate) fn init(&self, node: &str) -> String {
        let done = self.cluster(node, &["init", "--name", node]);
        assert!(done.status.success(), "{}", words(&done));
        String::from_utf8(done.stdout).expect("text").trim().to_owned()
    }

    /// `piped join` of a node, as a name.
    pub(crate) fn join(&self, node: &str, name: &str, target: &str) -> Output {
        let mut command = self.programs.piped();
        command.args(["join", target, "--name", name, "--config"]).arg(self.file(node));
        command.output().expect("it starts")
    }

    /// A node joins at a daemon that signs, with a token of its own.
    pub(crate) fn join_at(&self, node: &str, issuer: &Daemon, options: &[&str]) {
        let target = token(issuer, options);
        let done = self.join(node, node, &target);
        assert!(done.status.success(), "{}", words(&done));
    }

    /// A daemon of the node that listens there, offers its folder as these lines say, and has more
    /// tables.
    pub(crate) fn start(&self, node: &str, at: SocketAddr, rights: &str, more: &str) -> Daemon {
        let folder = self.folder(node);
        let text = self.text(node, at, rights, more);
        Daemon::start(&self.programs, &folder, node, &text)
    }

    pub(crate) fn text(&self, node: &str, at: SocketAddr, rights: &str, more: &str) -> String {
        let data = self.folder(node).join("data");
        format!(
            "[listen]\naddress = \"{at}\"\n[exports.data]\npath = \"{}\"\n{rights}{more}",
            data.display()
        )
    }
}

/// A token that was made there, and where it is good.
pub(crate) fn token(issuer: &Daemon, options: &[&str]) -> String {
    let made = issuer.pipectl(["cluster", "token", "create"]).args(options).output();
    let made = made.expect("it starts");
    assert!(made.status.success(), "{}", words(&made));
    let line = String::from_utf8(made.stdout).expect("text");
    line.trim().strip_prefix("piped join ").expect("a command").to_owned()
}

/// Where nodes listen.
pub(crate) fn addresses<const N: usize>() -> [SocketAddr; N] {
    [(); N].map(|()| free_address())
}

pub(crate) fn client(node: &Daemon) -> Client {
    let builder = piped_client::ClientBuilder::new().timeout(std::time::Duration::from_secs(2));
    builder.connect(node.client_socket()).expect("it serves")
}

fn opened(client: &Client, peer: &str) -> Result<Handle, piped_client::OpenError> {
    client.open_export(Some(peer), "data", "blocks", OpenOptions::read())
}

/// Reads what a peer offers, once that can be.
pub(crate) fn reads(node: &Daemon, peer: &str) {
    let client = client(node);
    let mut queue = client.queue().expect("a queue");
    eventually(&format!("{peer} is read"), || {
        let file = opened(&client, peer).ok()?;
        let buffer = client.allocate(BLOCKS_BYTES).expect("memory");
        let (buffer, bytes) = queue.read(&file, 0, buffer).ok()?;
        (bytes == BLOCKS_BYTES).then(|| assert!(buffer.as_slice() == pattern(BLOCKS_BYTES)))
    });
}

/// What a node is told that may not have what a peer offers.
pub(crate) fn is_refused(node: &Daemon, peer: &str) -> String {
    opened(&client(node), peer).map(|_| ()).expect_err("it may not").to_string()
}

/// A daemon ends, and is there again with another configuration.
pub(crate) fn restart(node: &mut Daemon, text: &str) {
    node.process.signal(rustix::process::Signal::TERM);
    node.restart(text);
}

pub(crate) fn reload(node: &Daemon) {
    let done = node.pipectl(["config", "reload"]).output().expect("it starts");
    assert!(done.status.success(), "{}", words(&done));
}

/// What the log of a node says at last.
pub(crate) fn logged(node: &Daemon, text: &str) {
    eventually(text, || node.log().contains(text).then_some(()));
}

/// A table that says where a peer is, and not which key it has.
pub(crate) fn peer(name: &str, at: SocketAddr) -> String {
    format!("[peers.{name}]\naddress = \"{at}\"\n")
}
