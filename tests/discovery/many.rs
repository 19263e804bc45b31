//! Many nodes that all read from all others, while one after the other restarts somewhere else. Each
//! is on a host of its own, or, without root, on loopback.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use piped_client::{ClientBuilder, Handle, OpenOptions, Request};
use rustix::process::Signal;
use system_tests::hosts::Hosts;
use system_tests::keys::Key;
use system_tests::process::{Daemon, Programs, eventually, free_address, pause};

const NODES: usize = 20;
const BLOCK: usize = 16 << 10;
/// Longer than a restart of a node, and of those that are asked meanwhile.
const LATE: Duration = Duration::from_secs(60);

/// Port of each node on its own host, and of the places to which it moves one after the other.
const PORT: u16 = 7440;

struct Cluster {
    daemons: Vec<Daemon>,
    keys: Vec<Key>,
    directory: PathBuf,
    /// After the daemons, which are there: fields are dropped in this order.
    hosts: Option<Hosts>,
    /// How often each node has moved.
    moves: [u16; NODES],
}

fn name(node: usize) -> String {
    format!("n{node:02}")
}

/// What a node offers: its number, everywhere.
fn content(node: usize) -> Vec<u8> {
    vec![node as u8 + 1; BLOCK]
}

impl Cluster {
    fn start(programs: &Programs, directory: &Path) -> Self {
        let keys = (0..NODES).map(|node| Key::make(programs, directory, &name(node)));
        let hosts = Hosts::up("many", NODES);
        if hosts.is_none() {
            eprintln!("all nodes are on loopback");
        }
        let mut cluster = Self {
            daemons: Vec::new(),
            keys: keys.collect(),
            directory: directory.to_owned(),
            hosts,
            moves: [0; NODES],
        };
        fs::create_dir(directory.join("nodes")).expect("made");
        for node in 0..NODES {
            let data = directory.join(name(node));
            fs::create_dir(&data).expect("made");
            fs::write(data.join("block"), content(node)).expect("written");
            let address = cluster.moved(node);
            let settings = cluster.settings(node, address);
            let command = cluster.command(programs, node);
            let daemon = Daemon::start_by(command, programs, directory, &name(node), &settings);
            give_staging(&daemon);
            cluster.daemons.push(daemon);
        }
        cluster
    }

    /// A new place for a node, of which the others hear.
    fn moved(&mut self, node: usize) -> SocketAddr {
        self.moves[node] += 1;
        let on_host = |hosts: &Hosts| hosts.address(node, PORT + self.moves[node]);
        let address = self.hosts.as_ref().map_or_else(free_address, on_host);
        let nodes = self.directory.join("nodes");
        let made = nodes.join(format!(".{}", name(node)));
        fs::write(&made, format!("address = \"{address}\"\n")).expect("written");
        fs::rename(made, nodes.join(format!("{}.toml", name(node)))).expect("renamed");
        address
    }

    fn settings(&self, node: usize, address: SocketAddr) -> String {
        let others = (0..NODES).filter(|other| *other != node);
        let peers: String = others.map(|it| self.keys[it].peer(&name(it), None)).collect();
        let directory = self.directory.display();
        self.keys[node].security("integrity")
            + &peers
            + &format!(
                "[listen]\naddress = \"{address}\"\n[discovery]\nfiles = \"{directory}/nodes\"\n\
                 [exports.data]\npath = \"{directory}/{}\"\n",
                name(node)
            )
    }

    /// The daemon of a node, to be started.
    fn command(&self, programs: &Programs, node: usize) -> Command {
        let hosts = self.hosts.as_ref();
        hosts.map_or_else(|| programs.piped(), |hosts| hosts.inside(node, &programs.piped))
    }

    /// The daemon of a node ends, and starts again somewhere else.
    fn restart(&mut self, programs: &Programs, node: usize) {
        self.daemons[node].process.signal(Signal::TERM);
        let address = self.moved(node);
        let settings = self.settings(node, address);
        let command = self.command(programs, node);
        self.daemons[node].restart_by(command, &settings);
        give_staging(&self.daemons[node]);
    }
}

/// Room for the lanes of all, and of all to it.
fn give_staging(daemon: &Daemon) {
    let set = daemon.pipectl(["limits", "set", "global.staging=48MiB"]).output();
    assert!(set.expect("pipectl starts").status.success());
}

/// Reads from all others in turn until it is told to stop; panics if a request fails.
fn read_from_all(socket: &Path, node: usize, rounds: &AtomicU64, stop: &AtomicBool) {
    let builder = ClientBuilder::new().arena_bytes(4 << 20).depth(4).reconnect(LATE);
    let client = builder.connect(socket).expect("it serves");
    let open = |other: usize| -> Handle {
        let options = OpenOptions::read;
        let open = || client.open_export(Some(&name(other)), "data", "block", options()).ok();
        eventually("a node is found", open)
    };
    let others: Vec<(usize, Handle)> =
        (0..NODES).filter(|it| *it != node).map(|it| (it, open(it))).collect();
    let mut queue = client.queue().expect("a queue");
    let mut buffer = client.allocate(BLOCK).expect("memory");
    while !stop.load(Ordering::Relaxed) {
        for (other, file) in &others {
            let read = Request::read(file, 0, buffer).resubmit().deadline(LATE);
            let done = queue.run(read).unwrap_or_else(|error| {
                panic!("{} asks {}: {error}", name(node), name(*other));
            });
            buffer = done.payload;
            assert!(buffer.as_slice() == content(*other), "what {} has", name(*other));
            pause();
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn all_nodes_restart_one_after_the_other_and_no_request_fails() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a folder");
    let mut cluster = Cluster::start(&programs, directory.path());
    let rounds: Vec<AtomicU64> = (0..NODES).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let sockets: Vec<PathBuf> = cluster.daemons.iter().map(Daemon::client_socket).collect();
    std::thread::scope(|scope| {
        let (rounds, stop) = (&rounds, &stop);
        let readers: Vec<_> = sockets
            .iter()
            .enumerate()
            .map(|(node, socket)| {
                scope.spawn(move || read_from_all(socket, node, &rounds[node], stop))
            })
            .collect();
        let all_go_on = || {
            let before: Vec<u64> = rounds.iter().map(|it| it.load(Ordering::Relaxed)).collect();
            eventually("all go on", || {
                assert!(readers.iter().all(|reader| !reader.is_finished()), "all still read");
                let on = |(now, before): (&AtomicU64, &u64)| now.load(Ordering::Relaxed) > *before;
                rounds.iter().zip(&before).all(on).then_some(())
            });
        };
        let restarted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            all_go_on();
            for node in 0..NODES {
                cluster.restart(&programs, node);
                all_go_on();
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(why) = restarted {
            std::panic::resume_unwind(why);
        }
    });
    let lanes = |daemon: &Daemon| daemon.json(&["peers"])["peers"].as_array().map_or(0, Vec::len);
    assert!(cluster.daemons.iter().all(|daemon| lanes(daemon) >= NODES - 1));
}
