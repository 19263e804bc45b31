//! A directory of files says where beta is.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use piped_client::OpenOptions;
use system_tests::process::{BLOCKS_BYTES, pattern, words};
use system_tests::proxy::Proxy;

use crate::scene::{Scene, is_served_by, read};

/// The directory that alpha looks into.
struct Nodes(PathBuf);

impl Nodes {
    fn start() -> Option<(Scene, Self)> {
        let scene = Scene::start(|path| {
            let nodes = path.join("nodes");
            fs::create_dir(&nodes).expect("made");
            let alpha = format!("[discovery]\nfiles = \"{}\"\n", nodes.display());
            [alpha, String::new()]
        })?;
        let nodes = Self(scene.path().join("nodes"));
        Some((scene, nodes))
    }

    /// Says where beta is, as a program would: in one step.
    fn say(&self, address: SocketAddr, more: &str) {
        let made = self.0.join(".beta");
        fs::write(&made, format!("address = \"{address}\"\n{more}")).expect("written");
        fs::rename(made, self.0.join("beta.toml")).expect("renamed");
    }
}

#[test]
fn a_peer_is_followed_to_where_it_moves_and_what_is_open_there_stays() {
    let Some((scene, nodes)) = Nodes::start() else { return };
    let client = scene.client();
    let gone = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    assert!(gone.is_err(), "nobody has said where it is");
    let [first, second] = [(); 2].map(|()| Proxy::start(scene.addresses[0]));
    nodes.say(first.address(), "exports = [\"data\"]\n");
    let file = scene.open(&client);
    let report = scene.alpha.json(&["nodes"]);
    assert_eq!(report["nodes"][0]["dialled"], true, "{report}");
    assert_eq!(report["nodes"][0]["exports"][0], "data", "{report}");
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES));
    // It moves: what was its address leads nowhere.
    nodes.say(second.address(), "");
    drop(first);
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES), "by the same handle");
    // A source that is away, and a node that is named no more, change nothing.
    fs::remove_file(nodes.0.join("beta.toml")).expect("removed");
    fs::remove_dir(&nodes.0).expect("removed");
    scene.logged("the last known addresses stay");
    let shown = words(&scene.alpha.pipectl(["nodes"]).output().expect("pipectl starts"));
    assert!(shown.contains("away") && shown.contains("cannot be read"), "{shown}");
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES));
    drop(scene.others);
}

#[test]
fn whoever_writes_the_source_moves_addresses_and_nothing_else() {
    let Some((scene, nodes)) = Nodes::start() else { return };
    let client = scene.client();
    let [beta, mallory] = scene.addresses;
    // Mallory is where beta should be, and says so; its key is not beta's.
    nodes.say(mallory, "");
    scene.await_heard(mallory);
    let open = || client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    assert!(open().is_err());
    scene.logged("not connected");
    // With its own key it is another node, and with beta's it has not what belongs to it.
    nodes.say(beta, &format!("key = \"{}\"\n", scene.keys[2].public));
    assert!(open().is_err());
    // A name that nobody trusts is no peer.
    fs::rename(nodes.0.join("beta.toml"), nodes.0.join("mallory.toml")).expect("renamed");
    assert!(client.open_export(Some("mallory"), "data", "blocks", OpenOptions::read()).is_err());
    // Files that are no nodes are named in the log, and harm nobody.
    for (name, text) in [
        ("broken.toml", "address = "),
        ("wide.toml", "address = \"h:1\"\nsecret = 1\n"),
        ("none.toml", "exports = []\n"),
        ("-x.toml", "address = \"h:1\"\n"),
    ] {
        fs::write(nodes.0.join(name), text).expect("written");
    }
    std::os::unix::fs::symlink("/dev/zero", nodes.0.join("zero.toml")).expect("linked");
    for name in ["broken.toml", "wide.toml", "none.toml", "-x.toml", "zero.toml"] {
        scene.logged(name);
    }
    nodes.say(beta, &format!("key = \"{}\"\n", scene.keys[1].public));
    let file = scene.open(&client);
    assert!(read(&client, &file) == pattern(BLOCKS_BYTES));
    assert!(is_served_by(&scene.others[0]) && !is_served_by(&scene.others[1]));
}
