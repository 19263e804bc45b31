//! A peer that is killed, or stopped for a while, in the middle of every kind of request: each ends
//! with an error that has a type, or is done again; what another peer serves goes on untouched.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use piped_client::{
    Access, Buffer, Client, ClientBuilder, Done, Handle, OpenOptions, Pending, Queue, Request,
    RequestError, Status, Waited,
};
use rustix::process::Signal;
use system_tests::process::{
    BLOCKS_BYTES, Daemon, PATIENCE, Pair, Programs, eventually, free_address, pattern,
};

const BLOCK: usize = 64 << 10;
const EACH: usize = 8;
const LATE: Duration = Duration::from_secs(300);
const SOON: Duration = Duration::from_secs(1);

/// Alpha asks beta, which dies, and gamma, which does not.
struct Scene {
    pair: Pair,
    gamma: Daemon,
    client: Client,
    queue: Queue,
    handles: Handles,
    /// The owner of beta's region, and the region.
    owner: Option<(Client, piped_client::RegionExport)>,
}

/// What the client has open.
struct Handles {
    blocks: Handle,
    new: Handle,
    local: Handle,
    halo: Handle,
}

fn offer_halo(beta: &Daemon) -> (Client, piped_client::RegionExport) {
    let owner = Client::connect(beta.client_socket()).expect("it serves");
    let mut buffer = owner.allocate(BLOCKS_BYTES).expect("memory");
    buffer.as_mut_slice().copy_from_slice(&pattern(BLOCKS_BYTES));
    let region = owner.export_region("halo", buffer, Access::READ_WRITE).expect("offered");
    (owner, region)
}

impl Scene {
    fn start(programs: &Programs, directory: &Path) -> Self {
        let address = free_address();
        let root = directory.join("gamma-root");
        fs::create_dir(&root).expect("made");
        let settings = format!(
            "[listen]\naddress = \"{address}\"\n[exports.data]\npath = \"{}\"\nwrite = true\n",
            root.display()
        );
        let gamma = Daemon::start(programs, directory, "gamma", &settings);
        let more = format!("[peers.gamma]\naddress = \"{address}\"\n");
        let pair = Pair::start_with(programs, directory, &more);
        let owner = offer_halo(&pair.beta);
        let builder = ClientBuilder::new().arena_bytes(16 << 20);
        let client = builder.connect(pair.alpha.client_socket()).expect("it serves");
        let queue = client.queue().expect("a queue");
        let make = OpenOptions::read_write().create(true);
        let local = client.open_file(directory.join("local"), make).expect("made");
        let open = |path, options| client.open_export(Some("beta"), "data", path, options);
        let handles = Handles {
            blocks: open("blocks", OpenOptions::read()).expect("it is there"),
            new: open("new", make).expect("made"),
            local,
            halo: client.open_region(Some("beta"), "halo", Access::READ_WRITE).expect("offered"),
        };
        Self { pair, gamma, client, queue, handles, owner: Some(owner) }
    }

    /// Beta's region, after a restart.
    fn offer_again(&mut self) {
        self.owner = None;
        self.owner = Some(offer_halo(&self.pair.beta));
        self.handles.halo = eventually("it can be opened again", || {
            self.client.open_region(Some("beta"), "halo", Access::READ_WRITE).ok()
        });
    }

    fn buffer(&self, byte: u8) -> Buffer {
        let mut buffer = self.client.allocate(BLOCK).expect("memory");
        buffer.as_mut_slice().fill(byte);
        buffer
    }
}

/// Requests of one kind, under way.
enum Asked {
    Moves(Vec<Pending<Buffer>>),
    Others(Vec<Pending<()>>),
}

const KINDS: [&str; 6] = ["reads", "writes", "gets", "puts", "copies", "syncs"];

impl Scene {
    /// Asks beta for [`EACH`] of a kind. Each write and put writes its number.
    fn ask(&mut self, kind: &str, deadline: Duration) -> Asked {
        let at = |number: usize| (number * BLOCK) as u64;
        let mut moves = Vec::new();
        let mut others = Vec::new();
        for number in 0..EACH {
            let handles = &self.handles;
            let byte = number as u8 + 1;
            let moved = match kind {
                "reads" => Request::read(&handles.blocks, at(number), self.buffer(0)),
                "gets" => Request::read(&handles.halo, at(number), self.buffer(0)),
                "writes" => Request::write(&handles.new, at(number), self.buffer(byte)),
                "puts" => Request::write(&handles.halo, at(number + 16), self.buffer(byte)),
                _ => {
                    let request = match kind {
                        "copies" => Request::copy(
                            &handles.blocks,
                            at(number),
                            &handles.local,
                            at(number),
                            BLOCK as u64,
                        ),
                        _ => Request::sync(&handles.new),
                    };
                    let request = request.deadline(deadline);
                    others.push(self.queue.submit(request).expect("room"));
                    continue;
                }
            };
            moves.push(self.queue.submit(moved.deadline(deadline)).expect("room"));
        }
        self.queue.flush();
        if moves.is_empty() { Asked::Others(others) } else { Asked::Moves(moves) }
    }

    /// All ended well, and with the right bytes.
    fn check(&mut self, kind: &str, asked: Asked, directory: &Path) {
        let expected = pattern(BLOCKS_BYTES);
        match asked {
            Asked::Moves(moves) => {
                for (number, pending) in moves.into_iter().enumerate() {
                    let done = end(pending, &mut self.queue).unwrap_or_else(|error| {
                        panic!("{kind} {number}: {error}");
                    });
                    assert_eq!(done.bytes, BLOCK as u64);
                    if matches!(kind, "reads" | "gets") {
                        let block = &expected[number * BLOCK..(number + 1) * BLOCK];
                        assert!(done.payload.as_slice() == block, "{kind} {number}");
                    }
                }
            }
            Asked::Others(others) => {
                for pending in others {
                    end(pending, &mut self.queue).expect("done again");
                }
            }
        }
        let written = |path: &Path| {
            let bytes = fs::read(path).expect("there");
            (0..EACH).all(|it| {
                bytes[it * BLOCK..(it + 1) * BLOCK].iter().all(|byte| *byte == it as u8 + 1)
            })
        };
        match kind {
            "writes" => assert!(written(&directory.join("root/new")), "what was written"),
            "copies" => {
                let bytes = fs::read(directory.join("local")).expect("there");
                assert!(bytes[..EACH * BLOCK] == expected[..EACH * BLOCK], "what was copied");
            }
            _ => {}
        }
    }
}

fn end<B: piped_client::Payload>(
    pending: Pending<B>,
    queue: &mut Queue,
) -> Result<Done<B>, RequestError> {
    match pending.wait_for(queue, PATIENCE) {
        Waited::Ended(result) => result,
        Waited::Underway(_) => panic!("a request did not end in {PATIENCE:?}"),
    }
}

/// All of them ended in their time, most with an error that says why.
fn check_failed(kind: &str, asked: Asked, queue: &mut Queue) {
    let check = |error: RequestError| {
        let typed = [Status::PeerLost, Status::DeadlineExceeded, Status::OutcomeUnknown];
        assert!(error.status().is_some_and(|it| typed.contains(&it)), "{kind}: {error}");
    };
    match asked {
        Asked::Moves(moves) => moves.into_iter().for_each(|pending| {
            end(pending, queue).map(|_| ()).map_err(check).expect_err("nobody serves");
        }),
        Asked::Others(others) => others.into_iter().for_each(|pending| {
            end(pending, queue).map(|_| ()).map_err(check).expect_err("nobody serves");
        }),
    }
}

/// A client of alpha that works with gamma until it is told to stop, and compares.
fn work_with_gamma(client: &Client, rounds: &AtomicU64, stop: &AtomicBool) {
    let mut queue = client.queue().expect("a queue");
    let options = OpenOptions::read_write().create(true);
    let file = client.open_export(Some("gamma"), "data", "file", options).expect("made");
    let mut buffer = client.allocate(BLOCK).expect("memory");
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let at = number % 16 * BLOCK as u64;
        buffer.as_mut_slice().fill(number as u8);
        (buffer, _) = queue.write(&file, at, buffer).expect("gamma is well");
        buffer.as_mut_slice().fill(0);
        (buffer, _) = queue.read(&file, at, buffer).expect("gamma is well");
        assert!(buffer.as_slice().iter().all(|byte| *byte == number as u8), "what was written");
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

fn epochs(alpha: &Daemon, peer: &str) -> Vec<u64> {
    let status = alpha.status();
    let peers = status["shards"][0]["peers"].as_array().expect("peers");
    let one = peers.iter().find(|it| it["name"] == peer).expect("it is known");
    let lanes = one["lanes"].as_array().expect("lanes");
    lanes.iter().map(|lane| lane["epoch"].as_u64().expect("a number")).collect()
}

/// Runs `attack` for each kind while others work with gamma.
fn beside_gamma(attack: impl Fn(&mut Scene, &str, &Path)) {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let mut scene = Scene::start(&programs, directory.path());
    let other = Client::connect(scene.pair.alpha.client_socket()).expect("it serves");
    let (rounds, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let working = scope.spawn(|| work_with_gamma(&other, &rounds, &stop));
        // Also if an assertion fails.
        let _stop = OnDrop(|| stop.store(true, Ordering::Relaxed));
        for kind in KINDS {
            attack(&mut scene, kind, directory.path());
            let before = rounds.load(Ordering::Relaxed);
            eventually(&format!("work with gamma goes on after {kind}"), || {
                assert!(!working.is_finished(), "{kind} disturbed the others");
                (rounds.load(Ordering::Relaxed) > before).then_some(())
            });
        }
        stop.store(true, Ordering::Relaxed);
        working.join().expect("all it moved was right");
    });
    assert_eq!(epochs(&scene.pair.alpha, "gamma"), [1, 1], "none of its lanes was lost");
    assert_eq!(scene.pair.alpha.number("peer_faults"), 0, "nobody broke a rule");
    drop(scene.gamma);
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn a_peer_killed_in_the_middle_costs_time_or_a_typed_error() {
    beside_gamma(|scene, kind, directory| {
        if matches!(kind, "gets" | "puts") {
            // It ended with the daemon of the kind before.
            scene.offer_again();
        }
        if kind == "syncs" {
            // It says that a write before the restarts is in doubt, and then there is none left.
            let _ = scene.queue.sync(&scene.handles.new);
        }
        for deadline in [LATE, SOON] {
            let retries = scene.pair.alpha.number("retries");
            scene.pair.beta.process.freeze();
            let asked = scene.ask(kind, deadline);
            eventually(&format!("{kind} are under way"), || {
                let (alpha, least) = (&scene.pair.alpha, EACH as u64);
                (alpha.number("transfers") >= least || deadline == SOON).then_some(())
            });
            scene.pair.beta.process.signal(Signal::KILL);
            let mut asked = Some(asked);
            if deadline == SOON {
                scene.pair.beta.process.exit();
                check_failed(kind, asked.take().expect("just asked"), &mut scene.queue);
            }
            let settings = scene.pair.settings[1].clone();
            scene.pair.beta.restart(&settings);
            if matches!(kind, "gets" | "puts") {
                // A region ends with its owner's daemon.
                if let Some(Asked::Moves(moves)) = asked {
                    for pending in moves {
                        let error = end(pending, &mut scene.queue).expect_err("it is gone");
                        let gone = [Status::Gone, Status::NotFound, Status::BadHandle];
                        let told = error.status().is_some_and(|it| gone.contains(&it));
                        assert!(told, "{kind}: {error}");
                    }
                }
                scene.offer_again();
            } else if let Some(asked) = asked {
                scene.check(kind, asked, directory);
                let now = scene.pair.alpha.number("retries");
                assert!(now >= retries + EACH as u64, "{kind}: {now} after {retries}");
            }
            // The same session and handles, without help.
            let asked = scene.ask(kind, LATE);
            scene.check(kind, asked, directory);
        }
    });
}

#[test]
fn a_peer_stopped_in_the_middle_costs_time_or_a_typed_error() {
    beside_gamma(|scene, kind, directory| {
        let [alpha, lost] = [epochs(&scene.pair.alpha, "beta"), vec![1, 1]];
        assert_eq!(alpha, lost, "a stopped peer keeps its lanes for a while");
        scene.pair.beta.process.freeze();
        let patient = scene.ask(kind, LATE);
        let hasty = scene.ask(kind, Duration::from_millis(300));
        check_failed(kind, hasty, &mut scene.queue);
        scene.pair.beta.process.signal(Signal::CONT);
        scene.check(kind, patient, directory);
        let asked = scene.ask(kind, LATE);
        scene.check(kind, asked, directory);
        assert_eq!(scene.pair.alpha.number("retries"), 0, "{kind}: nothing was lost");
    });
}
