//! Real daemons of which several have one file: it is read from all of them, and from those that
//! are left when some are slow or gone.
#![forbid(unsafe_code)]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use piped_client::{Calls, Client, Handle, OpenOptions, Queue};
use system_tests::keys::Key;
use system_tests::process::{
    BLOCKS_BYTES, Daemon, Programs, eventually, free_address, now, pattern, words,
};
use system_tests::proxy::Proxy;
use tempfile::TempDir;

/// Nodes that have the file, each behind a wire of its own, and one that reads it.
struct Scene {
    client: Client,
    alpha: Daemon,
    nodes: Vec<Daemon>,
    wires: Vec<Proxy>,
    directory: TempDir,
}

const NAMES: [&str; 3] = ["beta", "gamma", "delta"];

fn export(path: &Path, name: &str, content: &[u8]) -> String {
    let root = path.join(format!("root-{name}"));
    fs::create_dir_all(&root).expect("made");
    fs::write(root.join("blocks"), content).expect("written");
    format!("[exports.data]\npath = {root:?}\n")
}

impl Scene {
    /// So many nodes that have the file; none if there are no programs.
    fn of(nodes: usize) -> Option<Self> {
        Self::with(&vec![pattern(BLOCKS_BYTES); nodes])
    }

    /// As many nodes as there are contents of the file.
    fn with(contents: &[Vec<u8>]) -> Option<Self> {
        let programs = &Programs::find()?;
        let directory = tempfile::tempdir().expect("a folder");
        let path = directory.path();
        let mut more = String::new();
        let (mut nodes, mut wires) = (Vec::new(), Vec::new());
        for (name, content) in NAMES.into_iter().zip(contents) {
            let address = free_address();
            let listen = format!("[listen]\naddress = \"{address}\"\n");
            nodes.push(Daemon::start(
                programs,
                path,
                name,
                &(listen + &export(path, name, content)),
            ));
            let wire = Proxy::start(address);
            more += &format!("[peers.{name}]\naddress = \"{}\"\n", wire.address());
            wires.push(wire);
        }
        let alpha = Daemon::start(programs, path, "alpha", &more);
        alpha.await_lanes();
        let client = Client::connect(alpha.client_socket()).expect("it serves");
        Some(Self { client, alpha, nodes, wires, directory })
    }

    /// The file of some nodes, open, and a queue to read it.
    fn open(&self, nodes: &str) -> (Handle, Queue) {
        (open(&self.client, nodes), self.client.queue().expect("a queue"))
    }

    /// Waits until the client has nothing open, as the daemon sees it.
    fn await_closed(&self) {
        eventually("all handles are closed", || {
            let handles = self.alpha.json(&["handles"]);
            handles["handles"].as_array().is_some_and(Vec::is_empty).then_some(())
        });
    }

    /// Bytes that came over each wire so far.
    fn came(&self) -> Vec<u64> {
        self.wires.iter().map(|wire| wire.bytes()[1]).collect()
    }
}

/// Reads all of a file, and compares.
fn read(client: &Client, queue: &mut Queue, file: &Handle) {
    let buffer = client.allocate(BLOCKS_BYTES).expect("memory");
    let (buffer, bytes) = queue.read(file, 0, buffer).expect("read");
    assert_eq!(bytes, BLOCKS_BYTES);
    assert!(buffer.as_slice() == pattern(BLOCKS_BYTES), "the bytes of the file");
}

fn open(client: &Client, nodes: &str) -> Handle {
    let open = || client.open_export(Some(nodes), "data", "blocks", OpenOptions::read()).ok();
    eventually("it is open", open)
}

#[test]
fn a_file_of_several_nodes_comes_from_all_and_from_those_that_are_left() {
    let Some(mut scene) = Scene::of(3) else { return };
    let client = scene.client.clone();
    let (file, mut queue) = scene.open("beta,gamma,delta");
    assert_eq!(file.len(), BLOCKS_BYTES as u64);
    (0..24).for_each(|_| read(&client, &mut queue, &file));
    let came = scene.came();
    assert!(came.iter().all(|bytes| *bytes > BLOCKS_BYTES as u64 / 4), "each had parts: {came:?}");

    // A node that stands still, and its wires with it: others bring what it does not.
    scene.nodes[0].process.freeze();
    // It is asked for a part at some time, however well the others do.
    eventually("parts went on at others", || {
        (0..8).for_each(|_| read(&client, &mut queue, &file));
        let retries = &scene.alpha.status()["shards"][0]["reasons"]["retries"];
        retries["replica"].as_u64().filter(|moved| *moved > 0)
    });

    // One whose connections are cut while parts are under way.
    for _ in 0..6 {
        scene.wires[1].cut();
        read(&client, &mut queue, &file);
    }
    // A node that died, and one that comes back.
    scene.nodes.remove(2);
    (0..4).for_each(|_| read(&client, &mut queue, &file));
}

#[test]
fn a_node_that_comes_back_is_asked_again() {
    let Some(mut scene) = Scene::of(2) else { return };
    let client = scene.client.clone();
    let (file, mut queue) = scene.open("beta,gamma");
    (0..4).for_each(|_| read(&client, &mut queue, &file));
    scene.wires[1].pause(true);
    scene.wires[1].cut();
    (0..4).for_each(|_| read(&client, &mut queue, &file));
    let before = scene.came()[1];
    scene.wires[1].pause(false);
    eventually("it brings something again", || {
        read(&client, &mut queue, &file);
        (scene.came()[1] > before + BLOCKS_BYTES as u64 / 16).then_some(())
    });
    let _ = scene.nodes.pop();
    read(&client, &mut queue, &file);
}

/// Nobody brings anything for a while: a read is as patient then as one of a single node.
#[test]
fn a_read_outlasts_a_time_when_all_nodes_stand_still() {
    let Some(scene) = Scene::of(2) else { return };
    let client = scene.client.clone();
    let (file, mut queue) = scene.open("beta,gamma");
    (0..4).for_each(|_| read(&client, &mut queue, &file));
    scene.wires.iter().for_each(|wire| wire.pause(true));
    let begun = now();
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| read(&client, &mut queue, &file));
        // Longer than any part of it is waited for where another node would begin.
        eventually("some seconds have passed", || {
            (begun.elapsed() > Duration::from_secs(3)).then_some(())
        });
        scene.wires.iter().for_each(|wire| wire.pause(false));
        reads.join().expect("read");
    });
}

/// Files that have become shorter are replicas no more: what they miss comes from others, and where
/// there is none the read fails; it does not end as if the file were shorter.
#[test]
fn a_file_that_is_cut_off_is_no_replica() {
    let Some(scene) = Scene::of(2) else { return };
    let client = scene.client.clone();
    let (file, mut queue) = scene.open("beta,gamma");
    (0..4).for_each(|_| read(&client, &mut queue, &file));
    let cut = |name: &str| {
        let blocks = scene.directory.path().join(format!("root-{name}/blocks"));
        let blocks = fs::File::options().write(true).open(blocks).expect("there");
        blocks.set_len(4096).expect("cut off");
    };
    cut("beta");
    (0..4).for_each(|_| read(&client, &mut queue, &file));
    cut("gamma");
    let buffer = client.allocate(BLOCKS_BYTES).expect("memory");
    let failed = queue.read(&file, 0, buffer).expect_err("nobody has it");
    assert!(failed.to_string().contains("checksum"), "{failed}");
}

/// What an operator takes back of one node is read from the others, and closed.
#[test]
fn a_handle_of_one_node_may_be_ended() {
    let Some(scene) = Scene::of(2) else { return };
    let client = scene.client.clone();
    let (file, mut queue) = scene.open("beta,gamma");
    read(&client, &mut queue, &file);
    let of = |node: &Daemon| node.json(&["handles"])["handles"].as_array().map_or(0, Vec::len);
    let number = scene.alpha.json(&["handles"])["handles"][0]["handle"].to_string();
    let ended = scene.alpha.pipectl(["handle", "end", &number]).output().expect("pipectl starts");
    assert!(ended.status.success(), "{}", words(&ended));
    eventually("the other node has closed it", || {
        (scene.nodes.iter().map(of).sum::<usize>() == 1).then_some(())
    });
    (0..4).for_each(|_| read(&client, &mut queue, &file));
}

#[test]
fn programs_copy_from_all_nodes_and_calls_go_to_one() {
    let Some(scene) = Scene::of(2) else { return };
    let copy = scene.directory.path().join("copy");
    let output = scene.alpha.pipectl(["cp", "beta,gamma:data/blocks"]).arg(&copy).output();
    let output = output.expect("pipectl starts");
    assert!(output.status.success(), "{}", words(&output));
    assert!(fs::read(&copy).expect("made") == pattern(BLOCKS_BYTES), "the bytes of the file");
    let (file, mut queue) = scene.open("beta,gamma");
    let digest = Calls::new(&mut queue, &file).digest(0..BLOCKS_BYTES as u64);
    assert_eq!(digest.expect("a call").0, *blake3::hash(&pattern(BLOCKS_BYTES)).as_bytes());
    drop(queue);
    drop(file);
    scene.await_closed();
}

#[test]
fn what_is_no_replica_is_told() {
    let contents = [pattern(BLOCKS_BYTES), pattern(BLOCKS_BYTES), pattern(BLOCKS_BYTES / 2)];
    let Some(scene) = Scene::with(&contents) else { return };
    let client = &scene.client;
    let refused = |nodes: &str, options: OpenOptions| {
        let opened = client.open_export(Some(nodes), "data", "blocks", options);
        opened.map(|_| ()).expect_err("it is refused").to_string()
    };
    let read = OpenOptions::read;
    let cases = [
        ("beta,gamma", OpenOptions::read_write(), "read only"),
        ("beta,beta", read(), "name each node once"),
        ("beta,", read(), "name each node once"),
        ("a,b,c,d,e,f,g,h,i", read(), "at most 8"),
        ("here,there", read(), "there is no peer `here`"),
        ("beta,delta", read(), "the files are not the same"),
        ("*", read(), "discovery knows no node"),
    ];
    for (nodes, options, words) in cases {
        let said = refused(nodes, options);
        assert!(said.contains(words), "{nodes}: {said}");
    }
    // One of the nodes is none: the others have it.
    let file = open(client, "nobody,gamma");
    read_once(client, &file);
    drop(file);
    scene.await_closed();
}

fn read_once(client: &Client, file: &Handle) {
    read(client, &mut client.queue().expect("a queue"), file);
}

/// Who has the export is heard of, and this node has it, too.
#[test]
fn all_nodes_that_are_known_to_have_an_export_are_one_place() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a folder");
    let path = directory.path();
    let found = path.join("found");
    fs::create_dir(&found).expect("made");
    let keys = ["alpha", "beta", "gamma"].map(|name| Key::make(&programs, path, name));
    let start = |number: usize, name: &str, address: SocketAddr| {
        let more = keys[number].security("integrity")
            + &keys[0].peer("alpha", None)
            + &format!("[listen]\naddress = \"{address}\"\n")
            + &export(path, name, &pattern(BLOCKS_BYTES));
        let entry = format!("address = \"{address}\"\nexports = [\"data\"]\n");
        fs::write(found.join(format!("{name}.toml")), entry).expect("written");
        Daemon::start(&programs, path, name, &more)
    };
    let _nodes = [start(1, "beta", free_address()), start(2, "gamma", free_address())];
    let more = keys[0].security("integrity")
        + &keys[1].peer("beta", None)
        + &keys[2].peer("gamma", None)
        + &format!("[discovery]\nfiles = {found:?}\n")
        + &export(path, "alpha", &pattern(BLOCKS_BYTES));
    let alpha = Daemon::start(&programs, path, "alpha", &more);
    let client = Client::connect(alpha.client_socket()).expect("it serves");
    let handles = |client: &Client| {
        let file = open(client, "*");
        read_once(client, &file);
        let handles = alpha.json(&["handles"])["handles"].as_array().map_or(0, Vec::len);
        drop(file);
        handles
    };
    eventually("both others are heard of", || (handles(&client) == 3).then_some(()));
}
