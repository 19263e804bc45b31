//! Real daemons with two wires between them: what goes over both, over one when the other is cut or
//! gone, and what becomes of a second wire that leads to somebody else.
#![forbid(unsafe_code)]

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use piped_client::{Client, OpenOptions};
use system_tests::keys::Key;
use system_tests::process::{BLOCKS_BYTES, Daemon, Programs, eventually, free_address, pattern};
use system_tests::proxy::Proxy;

/// The keys of a node that asks, and of one that is asked.
struct Pair<'a> {
    programs: &'a Programs,
    path: &'a Path,
    keys: [Key; 2],
}

impl<'a> Pair<'a> {
    fn new(programs: &'a Programs, path: &'a Path) -> Self {
        fs::create_dir(path.join("root")).expect("made");
        fs::write(path.join("root/blocks"), pattern(BLOCKS_BYTES)).expect("written");
        let keys = ["alpha", "beta"].map(|name| Key::make(programs, path, name));
        Self { programs, path, keys }
    }

    /// The node that is asked. With several shards a node is on one of them, by whatever address it
    /// comes.
    fn beta(&self, address: SocketAddr) -> Daemon {
        let root = self.path.join("root");
        let mut command = self.programs.piped();
        command.args(["--set", "shards.count=2", "--set", "limits.global.staging=16MiB"]);
        let more = self.keys[1].security("integrity")
            + &self.keys[0].peer("alpha", None)
            + &format!("[listen]\naddress = \"{address}\"\n[exports.data]\npath = {root:?}\n");
        Daemon::start_by(command, self.programs, self.path, "beta", &more)
    }

    /// The node that asks, with the two addresses of the other.
    fn alpha(&self, [first, second]: [SocketAddr; 2]) -> Daemon {
        let more = self.keys[0].security("integrity")
            + &self.keys[1].peer("beta", Some(first))
            + &format!("second_address = \"{second}\"\n");
        Daemon::start(self.programs, self.path, "alpha", &more)
    }
}

/// A client of a node, with a file of the other open, that reads all of it.
fn reader(alpha: &Daemon) -> impl FnMut() {
    let client = Client::connect(alpha.client_socket()).expect("it serves");
    let open = || client.open_export(Some("beta"), "data", "blocks", OpenOptions::read()).ok();
    let file = eventually("it is open", open);
    let mut queue = client.queue().expect("a queue");
    let mut buffer = Some(client.allocate(BLOCKS_BYTES).expect("memory"));
    move || {
        let memory = buffer.take().expect("it came back");
        let (memory, bytes) = queue.read(&file, 0, memory).expect("read");
        assert_eq!(bytes, BLOCKS_BYTES);
        assert!(memory.as_slice() == pattern(BLOCKS_BYTES), "the bytes of the file");
        buffer = Some(memory);
    }
}

/// The second lane of a node to its only peer.
fn second(node: &Daemon) -> Option<serde_json::Value> {
    let peers = node.json(&["peers"]);
    let lanes = peers["peers"][0]["lanes"].as_array().cloned().unwrap_or_default();
    lanes.into_iter().find(|lane| lane["class"] == "second")
}

fn is_up(lane: &serde_json::Value) -> bool {
    lane["up"] == true
}

#[test]
fn a_long_read_goes_over_both_wires_and_over_one_when_the_other_is_cut() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a folder");
    let pair = Pair::new(&programs, directory.path());
    let address = free_address();
    let wires = [Proxy::start(address), Proxy::start(address)];
    let _beta = pair.beta(address);
    let alpha = pair.alpha([wires[0].address(), wires[1].address()]);
    eventually("the second lane is up", || second(&alpha).filter(is_up));
    let mut read = reader(&alpha);
    // The first goes whole, the second tries the other wire, and the others as that turned out.
    (0..16).for_each(|_| read());
    let came = |wire: &Proxy| wire.bytes()[1];
    assert!(came(&wires[1]) > BLOCKS_BYTES as u64 / 4, "{}", came(&wires[1]));

    for _ in 0..4 {
        wires[1].cut();
        read();
        read();
    }
    wires[1].pause(true);
    wires[1].cut();
    read();
    let before = came(&wires[0]);
    read();
    assert!(came(&wires[0]) - before > BLOCKS_BYTES as u64, "all of it, over the first");
}

/// Nobody is at the first address: all goes by the second, where the peer proves that it is it.
#[test]
fn a_peer_is_reached_at_its_second_address_alone() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a folder");
    let pair = Pair::new(&programs, directory.path());
    let address = free_address();
    let beta = pair.beta(address);
    let alpha = pair.alpha([free_address(), address]);
    eventually("the second lane is up", || second(&alpha).filter(is_up));
    let mut read = reader(&alpha);
    (0..4).for_each(|_| read());
    drop(beta);
}

/// The second address is that of another daemon, which offers the same: nothing is asked there.
#[test]
fn another_daemon_at_the_second_address_is_not_asked() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a folder");
    let path = directory.path();
    fs::create_dir_all(path.join("root")).expect("made");
    fs::create_dir_all(path.join("other")).expect("made");
    fs::write(path.join("root/blocks"), pattern(BLOCKS_BYTES)).expect("written");
    fs::write(path.join("other/blocks"), vec![7; BLOCKS_BYTES]).expect("written");
    let start = |name: &str, root: &str| {
        let address = free_address();
        let root = path.join(root);
        let more = format!("[listen]\naddress = \"{address}\"\n[exports.data]\npath = {root:?}\n");
        (address, Daemon::start(&programs, path, name, &more))
    };
    let ((first, _beta), (other, gamma)) = (start("beta", "root"), start("gamma", "other"));
    let more = format!("[peers.beta]\naddress = \"{first}\"\nsecond_address = \"{other}\"\n");
    let alpha = Daemon::start(&programs, path, "alpha", &more);
    let mut read = reader(&alpha);
    eventually("it has been tried twice", || {
        read();
        let lane = second(&alpha)?;
        assert!(!is_up(&lane), "{lane}");
        (lane["epoch"].as_u64()? > 2).then_some(())
    });
    assert!(gamma.log().contains("second address"), "{}", gamma.log());
}
