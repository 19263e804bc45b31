//! Peers that are found: a directory of files says where they are, and their keys say whether they
//! are the ones.
#![forbid(unsafe_code)]

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use piped_client::{Client, ClientBuilder, Handle, OpenOptions};
use system_tests::keys::Key;
use system_tests::process::{
    BLOCKS_BYTES, Daemon, Programs, eventually, free_address, pattern, words,
};
use system_tests::proxy::Proxy;

/// Alpha trusts beta by its key, and looks into a directory for its address.
struct Scene {
    alpha: Daemon,
    /// Beta and, with the name and another key, mallory.
    others: [Daemon; 2],
    /// Where the two listen.
    addresses: [SocketAddr; 2],
    keys: [Key; 3],
    nodes: PathBuf,
    _directory: tempfile::TempDir,
}

impl Scene {
    fn start() -> Option<Self> {
        let programs = Programs::find()?;
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path();
        let nodes = path.join("nodes");
        for (folder, bytes) in [("beta", pattern(BLOCKS_BYTES)), ("mallory", vec![0; BLOCKS_BYTES])]
        {
            fs::create_dir(path.join(folder)).expect("made");
            fs::write(path.join(folder).join("blocks"), bytes).expect("written");
        }
        fs::create_dir(&nodes).expect("made");
        let keys = ["alpha", "beta", "mallory"].map(|name| Key::make(&programs, path, name));
        let addresses = [free_address(), free_address()];
        let other = |place: usize, folder: &str| {
            keys[place + 1].security("integrity")
                + &keys[0].peer("alpha", None)
                + &format!(
                    "[listen]\naddress = \"{}\"\n[exports.data]\npath = \"{}\"\n",
                    addresses[place],
                    path.join(folder).display()
                )
        };
        let settings = keys[0].security("integrity")
            + &keys[1].peer("beta", None)
            + &format!("[discovery]\nfiles = \"{}\"\n", nodes.display());
        let others = [
            Daemon::start(&programs, path, "beta", &other(0, "beta")),
            Daemon::start(&programs, path, "mallory", &other(1, "mallory")),
        ];
        let alpha = Daemon::start(&programs, path, "alpha", &settings);
        Some(Self { alpha, others, addresses, keys, nodes, _directory: directory })
    }

    /// Says where beta is, as a program would: in one step.
    fn say(&self, address: SocketAddr, more: &str) {
        let made = self.nodes.join(".beta");
        fs::write(&made, format!("address = \"{address}\"\n{more}")).expect("written");
        fs::rename(made, self.nodes.join("beta.toml")).expect("renamed");
    }

    /// A client that waits for no answer for long: nobody is at a wrong address.
    fn client(&self) -> Client {
        let builder = ClientBuilder::new().timeout(Duration::from_secs(2));
        builder.connect(self.alpha.client_socket()).expect("it serves")
    }

    fn open(&self, client: &Client) -> Handle {
        let open = || client.open_export(Some("beta"), "data", "blocks", OpenOptions::read()).ok();
        eventually("it is open", open)
    }

    /// What the log of alpha says at last.
    fn logged(&self, words: &str) {
        eventually(words, || self.alpha.log().contains(words).then_some(()));
    }
}

/// Reads all of the file, when the peer is there.
fn read(client: &Client, file: &Handle) -> Vec<u8> {
    let mut queue = client.queue().expect("a queue");
    eventually("it is read", || {
        let buffer = client.allocate(BLOCKS_BYTES).expect("memory");
        let (buffer, bytes) = queue.read(file, 0, buffer).ok()?;
        (bytes == BLOCKS_BYTES).then(|| buffer.as_slice().to_vec())
    })
}

#[test]
fn a_peer_is_followed_to_where_it_moves_and_what_is_open_there_stays() {
    let Some(scene) = Scene::start() else { return };
    let client = scene.client();
    let gone = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    assert!(gone.is_err(), "nobody has said where it is");
    let [first, second] = [(); 2].map(|()| Proxy::start(scene.addresses[0]));
    scene.say(first.address(), "exports = [\"data\"]\n");
    let file = scene.open(&client);
    let nodes = scene.alpha.json(&["nodes"]);
    assert_eq!(nodes["nodes"][0]["dialled"], true, "{nodes}");
    assert_eq!(nodes["nodes"][0]["exports"][0], "data", "{nodes}");
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES));
    // It moves: what was its address leads nowhere.
    scene.say(second.address(), "");
    drop(first);
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES), "by the same handle");
    // A source that is away, and a node that is named no more, change nothing.
    fs::remove_file(scene.nodes.join("beta.toml")).expect("removed");
    fs::remove_dir(&scene.nodes).expect("removed");
    scene.logged("the last known addresses stay");
    let nodes = words(&scene.alpha.pipectl(["nodes"]).output().expect("pipectl starts"));
    assert!(nodes.contains("away") && nodes.contains("cannot be read"), "{nodes}");
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES));
    drop(scene.others);
}

#[test]
fn whoever_writes_the_source_moves_addresses_and_nothing_else() {
    let Some(scene) = Scene::start() else { return };
    let client = scene.client();
    let [beta, mallory] = scene.addresses;
    // Mallory is where beta should be, and says so; its key is not beta's.
    scene.say(mallory, "");
    scene.logged("not connected");
    let open = || client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    assert!(open().is_err());
    // With its own key it is another node, and with beta's it has not what belongs to it.
    scene.say(beta, &format!("key = \"{}\"\n", scene.keys[2].public));
    assert!(open().is_err());
    // A name that nobody trusts is no peer.
    fs::rename(scene.nodes.join("beta.toml"), scene.nodes.join("mallory.toml")).expect("renamed");
    assert!(client.open_export(Some("mallory"), "data", "blocks", OpenOptions::read()).is_err());
    // Files that are no nodes are named in the log, and harm nobody.
    for (name, text) in [
        ("broken.toml", "address = "),
        ("wide.toml", "address = \"h:1\"\nsecret = 1\n"),
        ("none.toml", "exports = []\n"),
        ("-x.toml", "address = \"h:1\"\n"),
    ] {
        fs::write(scene.nodes.join(name), text).expect("written");
    }
    std::os::unix::fs::symlink("/dev/zero", scene.nodes.join("zero.toml")).expect("linked");
    for name in ["broken.toml", "wide.toml", "none.toml", "-x.toml", "zero.toml"] {
        scene.logged(name);
    }
    scene.say(beta, &format!("key = \"{}\"\n", scene.keys[1].public));
    let file = scene.open(&client);
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES));
    assert!(is_served_by(&scene.others[0]) && !is_served_by(&scene.others[1]));
}

/// Whether the node has ever had a connection with a proven key.
fn is_served_by(node: &Daemon) -> bool {
    node.json(&["peers"])["peers"].as_array().is_some_and(|peers| {
        peers.iter().any(|peer| peer["lanes"].as_array().is_some_and(|lanes| !lanes.is_empty()))
    })
}
