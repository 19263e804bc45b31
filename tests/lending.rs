//! Lanes that lend their memory to the kernel, between real daemons on loopback: what arrives is
//! what was sent, and everything that was lent comes back, whoever dies meanwhile. There the kernel
//! copies what it is lent, so the lanes stop lending by themselves.
#![forbid(unsafe_code)]

use std::process::Child;

use piped_client::{Buffer, Client, ClientBuilder, Handle, OpenOptions, Pending, Queue, Request};
use piped_client::{RequestError, Waited};
use rustix::process::Signal;
use serde_json::Value;
use system_tests::process::{BLOCKS_BYTES, Daemon, PATIENCE, Pair, Programs, eventually, pattern};

const ON: &str = "[planner]\nzero_copy = \"on\"\n";

/// Both lend, or decide.
fn start(programs: &Programs, directory: &std::path::Path, more: &str) -> Pair {
    let mut pair = Pair::start_with(programs, directory, more);
    pair.settings[1].push_str(more);
    kill_and_restart(&mut pair);
    pair.alpha.await_lanes();
    pair
}

fn kill_and_restart(pair: &mut Pair) {
    pair.beta.process.signal(Signal::KILL);
    let settings = pair.settings[1].clone();
    pair.beta.restart(&settings);
}

struct Session {
    client: Client,
    queue: Queue,
    blocks: Handle,
    new: Handle,
}

fn session(alpha: &Daemon) -> Session {
    let client = ClientBuilder::new().arena_bytes(64 << 20).connect(alpha.client_socket());
    let client = client.expect("it serves");
    let queue = client.queue().expect("a queue");
    let open = |path, options| client.open_export(Some("beta"), "data", path, options);
    let blocks = open("blocks", OpenOptions::read()).expect("it is there");
    let new = open("new", OpenOptions::read_write().create(true)).expect("made");
    Session { client, queue, blocks, new }
}

impl Session {
    fn read(&mut self, at: usize, length: usize) -> Pending<Buffer> {
        let buffer = self.client.allocate(length).expect("memory");
        self.queue.submit(Request::read(&self.blocks, at as u64, buffer)).expect("room")
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Pending<Buffer> {
        let mut buffer = self.client.allocate(bytes.len()).expect("memory");
        buffer.as_mut_slice().copy_from_slice(bytes);
        self.queue.submit(Request::write(&self.new, at as u64, buffer)).expect("room")
    }

    fn end(&mut self, pending: Pending<Buffer>) -> Result<Vec<u8>, RequestError> {
        match pending.wait_for(&mut self.queue, PATIENCE) {
            Waited::Ended(result) => result.map(|done| done.payload.as_slice().to_vec()),
            Waited::Underway(_) => panic!("a request did not end in {PATIENCE:?}"),
        }
    }
}

const SIZES: [usize; 6] = [4096, 20_000, 64 << 10, 250_000, 1 << 20, 3 << 20];

/// Reads and writes of many sizes, several at a time; all bytes are compared.
fn move_much(session: &mut Session, root: &std::path::Path, rounds: usize) {
    let expected = pattern(BLOCKS_BYTES);
    for round in 0..rounds {
        let mut asked = Vec::new();
        for (number, length) in SIZES.into_iter().enumerate() {
            let at = (round * 77_777 + number * 4_096) % (BLOCKS_BYTES - length);
            asked.push((at, length, session.read(at, length)));
        }
        let turned: Vec<u8> = expected.iter().map(|byte| byte ^ round as u8).collect();
        let halves = [0, BLOCKS_BYTES / 2].map(|at| {
            let bytes = &turned[at..at + BLOCKS_BYTES / 2];
            session.write(at, bytes)
        });
        session.queue.flush();
        for (at, length, pending) in asked {
            let bytes = session.end(pending).expect("read");
            assert!(bytes == expected[at..at + length], "round {round}: {length} bytes at {at}");
        }
        for pending in halves {
            session.end(pending).expect("written");
        }
        assert!(std::fs::read(root.join("new")).expect("there") == turned, "round {round}");
    }
}

fn nothing_is_lent(node: &Daemon) {
    for what in ["lent", "transfers", "serves"] {
        eventually(what, || (node.number(what) == 0).then_some(()));
    }
}

fn lent(node: &Daemon) -> u64 {
    node.number("sends_zero_copy") + node.number("sends_copied")
}

#[test]
fn what_is_lent_arrives_and_comes_back() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = start(&programs, directory.path(), ON);
    let mut session = session(&pair.alpha);
    move_much(&mut session, &directory.path().join("root"), 12);
    for node in [&pair.alpha, &pair.beta] {
        nothing_is_lent(node);
        assert!(lent(node) >= 12, "{}", lent(node));
        assert_eq!((node.number("corrupt_frames"), node.number("retries")), (0, 0));
    }
}

/// A program of its own that writes for ever, to be killed.
const WRITER: &str = "PIPED_TEST_WRITER";

#[test]
fn a_writer_to_be_killed() {
    let Ok(socket) = std::env::var(WRITER) else { return };
    let client = ClientBuilder::new().arena_bytes(64 << 20).connect(&socket).expect("it serves");
    let mut queue = client.queue().expect("a queue");
    let options = OpenOptions::read_write().create(true);
    let file = client.open_export(Some("beta"), "data", "killed", options).expect("made");
    println!("writes");
    loop {
        let pending: Vec<Pending<Buffer>> = (0..8)
            .map(|number| {
                let buffer = client.allocate(1 << 20).expect("memory");
                queue.submit(Request::write(&file, number << 20, buffer)).expect("room")
            })
            .collect();
        for pending in pending {
            let _ = pending.wait_for(&mut queue, PATIENCE);
        }
    }
}

fn writer(alpha: &Daemon) -> Child {
    let this = std::env::current_exe().expect("this program");
    let mut program = std::process::Command::new(this);
    program.args(["--exact", "a_writer_to_be_killed", "--nocapture"]);
    program.env(WRITER, alpha.client_socket());
    program.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    program.spawn().expect("it starts")
}

#[test]
fn a_killed_client_leaves_nothing_lent() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = start(&programs, directory.path(), ON);
    let mut session = session(&pair.alpha);
    let lost = pair.alpha.number("lanes_lost");
    for round in 0..4 {
        let before = lent(&pair.alpha);
        let mut writer = writer(&pair.alpha);
        eventually("it writes", || (lent(&pair.alpha) > before + 8).then_some(()));
        writer.kill().expect("it runs");
        writer.wait().expect("it ran");
        // Who lives goes on meanwhile.
        move_much(&mut session, &directory.path().join("root"), 1);
        eventually("its session is over", || (pair.alpha.number("sessions") == 1).then_some(()));
        nothing_is_lent(&pair.alpha);
        assert_eq!(pair.alpha.number("lanes_lost"), lost, "round {round}");
    }
}

#[test]
fn a_killed_peer_and_a_daemon_that_stops_leave_nothing_lent() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut pair = start(&programs, directory.path(), ON);
    let mut session = session(&pair.alpha);
    let bytes = pattern(BLOCKS_BYTES);
    for _ in 0..2 {
        let pending: Vec<_> = (0..4).map(|_| session.write(0, &bytes)).collect();
        session.queue.flush();
        // It is killed, with what it lent and was lent.
        kill_and_restart(&mut pair);
        for pending in pending {
            session.end(pending).expect("it was asked again");
        }
        assert!(std::fs::read(directory.path().join("root/new")).expect("there") == bytes);
        nothing_is_lent(&pair.alpha);
    }
    move_much(&mut session, &directory.path().join("root"), 2);
}

/// What `pipectl peers --json` says of the lanes that lent something.
fn states(node: &Daemon) -> Vec<String> {
    let output = node.pipectl(["peers", "--json"]).output().expect("pipectl starts");
    let peers: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let peers = peers["peers"].as_array().expect("peers").clone();
    let lanes = peers.iter().flat_map(|peer| peer["lanes"].as_array().expect("lanes"));
    let states = lanes.filter_map(|lane| lane["zero_copy"]["state"].as_str());
    states.map(str::to_owned).collect()
}

#[test]
fn where_the_kernel_copies_lanes_stop_lending_by_themselves() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let pair = start(&programs, directory.path(), "");
    let mut session = session(&pair.alpha);
    move_much(&mut session, &directory.path().join("root"), 12);
    for node in [&pair.alpha, &pair.beta] {
        let states = states(node);
        // A lane that has had fewer long sends than it tries knows nothing yet.
        let knows = |it: &&String| *it != "trying";
        assert!(states.iter().filter(knows).count() > 0, "{states:?}");
        assert!(states.iter().filter(knows).all(|it| it == "copied"), "{states:?}");
        // Four tries on each lane; a pause of ten seconds may have passed on a slow machine, and
        // more.
        let (tried, plain) = (lent(node), node.number("sends_plain"));
        assert!((4..=64).contains(&tried) && plain > 2 * tried, "{tried} of {plain}");
        assert_eq!(node.number("sends_zero_copy"), 0, "loopback copies");
    }
    let table = pair.beta.pipectl(["peers"]).output().expect("pipectl starts");
    let table = String::from_utf8(table.stdout).expect("text");
    assert!(
        table.contains("Sends without a copy") && table.contains("off: the kernel copies"),
        "{table}"
    );
    // Switched off by a reload, or on.
    let config = directory.path().join("alpha.toml");
    if let Ok(text) = std::fs::read_to_string(&config) {
        std::fs::write(&config, text + "[planner]\nzero_copy = \"on\"\n").expect("written");
        let before = lent(&pair.alpha);
        let reload = pair.alpha.pipectl(["config", "reload"]).output().expect("pipectl starts");
        assert!(reload.status.success(), "{reload:?}");
        // The shard is told after the answer.
        eventually("it lends again", || {
            move_much(&mut session, &directory.path().join("root"), 1);
            (lent(&pair.alpha) > before).then_some(())
        });
    }
}
