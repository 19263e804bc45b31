//! Peers that break the rules, against real daemons, while an honest pair moves data that is
//! compared: only the lane that did it is lost, with a reason, and counted.

mod support;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use piped_config::{Config, Peer, Period};
use piped_core::access::{Access, Access as Rights, Creation, OpenKind};
use piped_core::link::{Checksum, LaneClass, ReportedStage};
use piped_core::request::Class;
use piped_core::status::{Status, Status as Ended};
use piped_ring::handshake::{Hello, Request};
use piped_ring::{CompletionKind, Descriptor, Opcode};
use piped_sim::Random;
use piped_wire::{Asker, HEADER_BYTES, LastPart, Message};
use support::peer::{RawPeer, free_address};
use support::{Client, HELLO, PATIENCE, World, eventually, pause};

const FILE_BYTES: usize = 1 << 20;
const ARENA: Hello = Hello { arena_bytes: 2 << 20, ..HELLO };
const BOTH: Rights = Rights::READ_WRITE;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 4096) as u8).collect()
}

fn beta(address: SocketAddr) -> World {
    World::start(|dir, config| {
        config.node.name = "beta".to_owned();
        config.listen.address = Some(address);
        // Each lane has a part of it for its life.
        config.limits.global.staging = piped_config::Bytes::mib(64);
        let root = dir.join("root");
        std::fs::create_dir(&root).expect("made");
        std::fs::write(root.join("data"), pattern(FILE_BYTES)).expect("written");
        std::fs::write(root.join("mine"), pattern(FILE_BYTES)).expect("written");
        let open = piped_config::Export { path: root, write: true, ..Default::default() };
        config.exports.insert("data".to_owned(), open);
    })
}

fn alpha(peers: &[(&str, SocketAddr)], change: impl FnOnce(&Path, &mut Config)) -> World {
    World::start(|dir, config| {
        for (name, address) in peers {
            let address = address.to_string().parse().expect("host:port");
            let peer = Peer { address, ..Peer::default() };
            config.peers.insert((*name).to_owned(), peer);
        }
        change(dir, config);
    })
}

fn open_file(client: &Client, peer: &str, path: &str, access: Access) -> u32 {
    let (peer, export, path) = (peer.to_owned(), "data".to_owned(), path.into());
    client.open(&Request::OpenExport { peer, export, path, access, create: Creation::OPEN }, &[])
}

/// A client that reads and writes a file of beta and compares, until it is told to stop.
struct Honest {
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Honest {
    fn start(alpha: &World) -> Self {
        let mut client = alpha.client(ARENA);
        let handle = open_file(&client, "beta", "honest", Access::READ_WRITE);
        let (rounds, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (Arc::clone(&rounds), Arc::clone(&stop));
        let work = move || {
            let mut random = Random::new(7);
            while !stopped.load(Ordering::Relaxed) {
                let length = random.length(256 << 10).max(1);
                let offset = random.below(1 << 20);
                let mut bytes = vec![0; length as usize];
                random.fill(&mut bytes);
                client.segments[0].store(0, &bytes).expect("inside");
                for (opcode, buffer_offset) in [(Opcode::Write, 0), (Opcode::Read, 1 << 20)] {
                    let request = Descriptor {
                        handle_a: handle,
                        offset_a: offset,
                        buffer_offset,
                        length,
                        // Whatever the others are allowed.
                        deadline_ns: PATIENCE.as_nanos() as u64,
                        ..Descriptor::new(opcode, 1)
                    };
                    let entry = client.run(request);
                    assert_eq!((entry.status, entry.bytes), (Status::Ok as u16, length));
                }
                let mut back = vec![0; length as usize];
                client.segments[0].load(1 << 20, &mut back).expect("inside");
                if back != bytes {
                    let wrong: Vec<usize> =
                        (0..bytes.len()).filter(|at| back[*at] != bytes[*at]).collect();
                    let (first, last) = (wrong[0], wrong[wrong.len() - 1]);
                    panic!(
                        "{} of {length} bytes at {offset} are not those that were written: from \
                         {first} to {last}, {:?} for {:?}",
                        wrong.len(),
                        &back[first..(first + 16).min(back.len())],
                        &bytes[first..(first + 16).min(bytes.len())]
                    );
                }
                counted.fetch_add(1, Ordering::Relaxed);
            }
        };
        Self { rounds, stop, thread: Some(std::thread::spawn(work)) }
    }

    /// It has gone on, unharmed, for some rounds that began after the call.
    fn check(&self, what: &str) {
        let before = self.rounds.load(Ordering::Relaxed);
        eventually(&format!("the honest go on after {what}"), || {
            let over = self.thread.as_ref().is_some_and(JoinHandle::is_finished);
            assert!(!over, "{what} disturbed the honest");
            (self.rounds.load(Ordering::Relaxed) > before + 3).then_some(())
        });
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("it ends once").join().expect("all it moved was right");
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn counter(world: &World, what: &str) -> u64 {
    let (_, body) = world.http("GET", "/v1/status", "");
    body["shards"][0]["counters"][what].as_u64().expect("a count")
}

/// The epochs of the lanes to (or, `inbound`, from) a node.
fn epochs(world: &World, name: &str, inbound: bool) -> Vec<u64> {
    let (_, body) = world.http("GET", "/v1/status", "");
    let peers = body["shards"][0]["peers"].as_array().expect("peers").clone();
    let one = peers.iter().find(|peer| peer["name"] == name && peer["inbound"] == inbound);
    let lanes = one.expect("it is known")["lanes"].as_array().expect("lanes").clone();
    lanes.iter().map(|lane| lane["epoch"].as_u64().expect("a number")).collect()
}

/// A node, an honest pair at work, and what nobody may have lost at the end.
struct Scene {
    beta: World,
    alpha: World,
    honest: Honest,
    address: SocketAddr,
}

impl Scene {
    fn start() -> Self {
        let address = free_address();
        let beta = beta(address);
        let alpha = alpha(&[("beta", address)], |_, _| {});
        let honest = Honest::start(&alpha);
        Self { beta, alpha, honest, address }
    }

    fn end(self) {
        assert_eq!(epochs(&self.alpha, "beta", false), [1, 1], "no honest lane was lost");
        assert_eq!(epochs(&self.beta, "alpha", true), [1, 1]);
        assert_eq!(counter(&self.alpha, "retries"), 0);
        self.honest.end();
        self.alpha.stop().expect("a clean end");
        self.beta.stop().expect("a clean end");
    }
}

/// A request to write 1 MiB in one piece.
fn write_of(transfer: u64, handle: u32) -> Message {
    Message::Write {
        transfer,
        handle,
        offset: 0,
        length: 1 << 20,
        asker: Asker::alone(Class::Bulk),
        durable: false,
        pieces: false,
        fragment: 1 << 20,
        time_left_us: u32::MAX,
    }
}

/// Every kind of frame, with values as absurd as its fields allow.
fn every_kind(random: &mut Random) -> Vec<(Message, Vec<u8>)> {
    let absurd = |random: &mut Random| {
        let some = [0, 1, u64::MAX, i64::MAX as u64, 1 << 62, u64::from(u32::MAX), random.bits()];
        *random.pick(&some)
    };
    let mut next = || absurd(random);
    let [a, b, c, d] = std::array::from_fn(|_| next());
    let (offset, length) = (a % (1 << 63), b % (1 << 63));
    let (class, status) = (Class::Bulk, Ended::Io);
    let bytes = vec![0x5a; (c % 9000) as usize + 1];
    let part = LastPart {
        status: Ended::Ok,
        bytes: a,
        predicted_us: b as u32,
        margin_percent: 0,
        company: false,
        plan: c as u32,
    };
    let (transfer, handle, time_left_us) = (a, b as u32, c as u32);
    let stages = ReportedStage::ALL;
    let (checksum, sums) = (Checksum::ALL[a as usize % 3], b % 2 == 0);
    vec![
        (Message::Hello { incarnation: a, lane: LaneClass::Bulk, checksum }, b"mallory".to_vec()),
        (
            Message::HelloAck { incarnation: a, credit_bytes: b, requests_max: c as u32, sums },
            vec![],
        ),
        (Message::HelloRefused { status }, vec![]),
        (
            Message::Open {
                ticket: a,
                kind: OpenKind::Region,
                access: BOTH,
                create: Creation::OPEN,
                name_length: 1,
            },
            bytes[..bytes.len().min(1152)].to_vec(),
        ),
        (Message::Opened { ticket: a, status: Ended::Ok, handle, length: c }, vec![]),
        (Message::Close { handle }, vec![]),
        (
            Message::Read {
                transfer,
                handle,
                offset,
                length,
                asker: Asker::alone(class),
                from: (length / 2) as u32,
                pieces: false,
                time_left_us,
            },
            vec![],
        ),
        (
            Message::Data {
                transfer,
                offset,
                fragment: b as u32,
                backlogged: true,
                service_us: c as u32,
                last: (d % 2 == 0).then_some(part),
            },
            bytes.clone(),
        ),
        (
            Message::End {
                transfer,
                status,
                bytes: b,
                service_us: c as u32,
                fragment: d as u32,
                predicted_us: a as u32,
            },
            vec![],
        ),
        (
            Message::Write {
                transfer,
                handle,
                offset,
                length,
                asker: Asker::alone(class),
                durable: true,
                pieces: false,
                fragment: d as u32,
                time_left_us,
            },
            vec![],
        ),
        (Message::WriteData { transfer, offset, backlogged: true }, bytes),
        (Message::Sync { transfer, handle, time_left_us }, vec![]),
        (Message::Cancel { transfer }, vec![]),
        (Message::Credit { bytes: a, window: b.max(1) }, vec![]),
        (
            Message::Report {
                stage: stages[(d % 7) as usize],
                handle,
                backlogged: a % 2 == 0,
                last: b % 2 == 0,
                weight: c as u8,
                size_bytes: d as u32,
                spread_bytes: a as u32,
                cost_ps: b,
                slope_fs: c,
                deviation_pm: d as u32,
            },
            vec![],
        ),
        (
            Message::Outcome {
                handle,
                length: a.max(1),
                plan: (b as u32).max(1),
                latency_ns: c.clamp(100, 1_000_000_000_000),
                company: false,
            },
            vec![],
        ),
        (Message::Ping { nonce: a }, vec![]),
        (Message::Pong { nonce: a }, vec![]),
    ]
}

#[test]
fn garbage_from_a_peer_that_asks_costs_its_lane() {
    let scene = Scene::start();
    let mut faults = counter(&scene.beta, "peer_faults");
    let mut charge = |what: &str, lanes: u64| {
        faults += lanes;
        eventually(&format!("{what} is counted"), || {
            let now = counter(&scene.beta, "peer_faults");
            assert!(now <= faults, "{what}: {now} faults of {faults}");
            (now == faults).then_some(())
        });
        scene.honest.check(what);
    };
    // Before Hello, and after it.
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut peer = RawPeer::dial(scene.address);
        if seed % 2 == 0 {
            peer.epoch = seed as u32 + 1;
            peer.hello("mallory", 1, LaneClass::Latency);
            assert!(matches!(peer.receive(), Message::HelloAck { .. }), "seed {seed}");
        }
        let mut bytes = vec![0; HEADER_BYTES + random.below(100_000) as usize];
        random.fill(&mut bytes);
        let _ = peer.try_send(&bytes);
        peer.await_end("garbage");
    }
    charge("garbage", 60);
    // Each kind of frame instead of Hello.
    let mut instead = 0;
    for (message, payload) in every_kind(&mut Random::new(1)) {
        if matches!(message, Message::Hello { .. }) {
            continue;
        }
        let mut peer = RawPeer::dial(scene.address);
        let frame = peer.frame(message, &payload);
        let _ = peer.try_send(&frame);
        peer.await_end("a frame before Hello");
        instead += 1;
    }
    charge("frames before Hello", instead);
    // What only the other side may say, on a lane that is up; and a second Hello.
    let mut answers = 0;
    for (message, payload) in every_kind(&mut Random::new(2)) {
        use Message::{Credit, Data, End, Hello, HelloAck, HelloRefused, Opened, Pong};
        let theirs = matches!(
            message,
            Hello { .. }
                | HelloAck { .. }
                | HelloRefused { .. }
                | Opened { .. }
                | Data { .. }
                | End { .. }
                | Credit { .. }
                | Pong { .. }
        );
        if !theirs {
            continue;
        }
        let mut peer = RawPeer::dial(scene.address);
        peer.epoch = 1;
        peer.hello(&format!("answers-{answers}"), 1, LaneClass::Latency);
        assert!(matches!(peer.receive(), Message::HelloAck { .. }));
        let frame = peer.frame(message, &payload);
        let _ = peer.try_send(&frame);
        peer.await_end("an answer instead of a question");
        answers += 1;
    }
    assert_eq!(answers, 8);
    charge("answers instead of questions", answers);
    // Epochs that are over, names that are none.
    let mut first = RawPeer::dial(scene.address);
    first.epoch = 1000;
    first.hello("mallory", 1, LaneClass::Latency);
    assert!(matches!(first.receive(), Message::HelloAck { .. }));
    for epoch in [0, 1, 999, 1000] {
        let mut late = RawPeer::dial(scene.address);
        late.epoch = epoch;
        late.hello("mallory", 1, LaneClass::Latency);
        late.await_end("an epoch that is over");
    }
    let mut named = RawPeer::dial(scene.address);
    named.send(
        Message::Hello { incarnation: 1, lane: LaneClass::Bulk, checksum: Checksum::Payload },
        b"\xff\xfe",
    );
    named.await_end("a name that is no text");
    charge("old epochs", 5);
    // The good lane of that name is still there: frames of another epoch end it.
    first.send(Message::Ping { nonce: 4 }, &[]);
    assert_eq!(first.receive(), Message::Pong { nonce: 4 });
    first.epoch = 999;
    first.send(Message::Ping { nonce: 4 }, &[]);
    first.await_end("a frame of another epoch");
    charge("a frame of another epoch", 1);
    scene.end();
}

#[test]
fn absurd_requests_are_refused_or_cost_the_lane() {
    let scene = Scene::start();
    let mut seen = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut peer = RawPeer::dial(scene.address);
        peer.epoch = seed as u32 + 1;
        // Another incarnation now and then: a restart, whose handles are new.
        peer.hello("mallory", seed / 8, LaneClass::Latency);
        assert!(matches!(peer.receive(), Message::HelloAck { .. }), "seed {seed}");
        let handle = peer.open(OpenKind::File, BOTH, "data", "mine");
        for round in 0..50 {
            let kinds = every_kind(&mut random);
            let (mut message, payload) = random.pick(&kinds).clone();
            // Half of them name something that is there.
            match &mut message {
                Message::Read { handle: of, .. }
                | Message::Write { handle: of, .. }
                | Message::Sync { handle: of, .. }
                | Message::Close { handle: of }
                | Message::Outcome { handle: of, .. }
                    if random.chance(0.5) =>
                {
                    *of = handle;
                }
                _ => {}
            }
            // A write of exabytes that is allowed would be one to this file system.
            let mut frame = peer.frame(message, &payload);
            if round % 5 == 0 {
                // Bent, but its checksum is right: the parser behind it has to find out.
                let at = random.below(60) as usize;
                frame[at] ^= 1 << random.below(8);
                let crc = crc32c(&frame[..60]);
                frame[60..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
            }
            seen += 1;
            if peer.try_send(&frame).is_err() {
                break;
            }
        }
        drop(peer);
    }
    assert!(seen > 40, "{seen}");
    assert!(counter(&scene.beta, "peer_faults") > 10);
    scene.honest.check("absurd requests");
    eventually("nothing of them is left", || {
        let (_, body) = scene.beta.http("GET", "/v1/status", "");
        (body["shards"][0]["serves"].as_u64() <= Some(1)).then_some(())
    });
    let mine = std::fs::metadata(scene.beta.path("root").join("mine")).expect("there");
    assert!(mine.len() < 1 << 40, "nobody wrote there: {}", mine.len());
    scene.end();
}

#[test]
fn floods_and_peers_that_do_not_read_cost_only_themselves() {
    let scene = Scene::start();
    let address = scene.address;
    // Reads on and on and takes nothing of it.
    let mut deaf = RawPeer::connect(address, "deaf");
    let handle = deaf.open(OpenKind::File, BOTH, "data", "data");
    for transfer in 0..24 {
        let (offset, length, class) = (0, FILE_BYTES as u64, Class::Bulk);
        let (from, time_left_us) = (0, u32::MAX);
        let read = Message::Read {
            transfer,
            handle,
            offset,
            length,
            asker: Asker::alone(class),
            from,
            pieces: false,
            time_left_us,
        };
        deaf.send(read, &[]);
    }
    // Half frames, and silence.
    let mut silent: Vec<RawPeer> = (0..8)
        .map(|number| {
            let mut peer = RawPeer::connect(address, &format!("silent-{number}"));
            let handle = peer.open(OpenKind::File, BOTH, "data", "mine");
            peer.send(write_of(1, handle), &[]);
            let data = Message::WriteData { transfer: 1, offset: 0, backlogged: false };
            let frame = peer.frame(data, &vec![0xee; 1 << 20]);
            let cut = [10, HEADER_BYTES, HEADER_BYTES + 70_000][number % 3];
            peer.try_send(&frame[..cut]).expect("sent");
            peer
        })
        .collect();
    scene.honest.check("peers that do not read and half frames");
    // Reports, pings and credit on and on.
    let mut loud = RawPeer::connect(address, "loud");
    let mut random = Random::new(3);
    let mut flood = Vec::new();
    for _ in 0..2000 {
        let reports = every_kind(&mut random);
        for (message, _) in reports {
            if matches!(message, Message::Report { .. }) {
                flood.extend(loud.frame(message, &[]));
            }
        }
    }
    for round in 0..40 {
        loud.try_send(&flood).expect("reports are no fault");
        if round % 10 == 0 {
            scene.honest.check("a flood of reports");
        }
    }
    let (_, stages) = scene.beta.http("GET", "/v1/stages", "");
    let text = stages.to_string();
    assert!(!text.contains("NaN") && !text.contains("null,\"overhead"), "{text}");
    // A number that is under way already: the last straw.
    let before = counter(&scene.beta, "peer_faults");
    let handle = loud.open(OpenKind::File, BOTH, "data", "data");
    for _ in 0..2 {
        loud.send(write_of(9, handle), &[]);
    }
    loud.await_end("the same number twice");
    assert_eq!(counter(&scene.beta, "peer_faults"), before + 1);
    scene.honest.check("the same number twice");
    for peer in &mut silent {
        // Still there: their time is not over.
        peer.stream.set_nonblocking(true).expect("set");
    }
    drop((silent, deaf));
    eventually("nothing of them is left", || {
        let (_, body) = scene.beta.http("GET", "/v1/status", "");
        (body["shards"][0]["serves"].as_u64() <= Some(1)).then_some(())
    });
    let mine = std::fs::read(scene.beta.path("root").join("mine")).expect("there");
    assert!(mine == pattern(FILE_BYTES), "of half a frame nothing is written");
    scene.end();
}

/// How a hostile acceptor answers a connection.
type Answer = fn(&mut RawPeer, &mut Random);

fn welcome(peer: &mut RawPeer, credit_bytes: u64, requests_max: u32) {
    let _ =
        peer.try_send(&peer.frame(
            Message::HelloAck { incarnation: 3, credit_bytes, requests_max, sums: true },
            &[],
        ));
}

/// Says that it has opened what it is asked for, and hands over each request.
fn serve(peer: &mut RawPeer, mut answer: impl FnMut(&mut RawPeer, Message) -> bool) {
    while let Ok(Some((message, _))) = peer.try_receive() {
        match message {
            Message::Open { ticket, .. } => {
                let (status, handle, length) = (Ended::Ok, 1, u64::MAX);
                let opened = peer.frame(Message::Opened { ticket, status, handle, length }, &[]);
                let _ = peer.try_send(&opened);
            }
            Message::Read { .. } | Message::Write { .. } if !answer(peer, message) => return,
            _ => {}
        }
    }
}

fn last_part(bytes: u64) -> Option<LastPart> {
    Some(LastPart {
        status: Ended::Ok,
        bytes,
        predicted_us: u32::MAX,
        margin_percent: u8::MAX,
        company: true,
        plan: u32::MAX,
    })
}

fn data(transfer: u64, offset: u64, last: Option<LastPart>) -> Message {
    let (fragment, service_us) = (0, u32::MAX);
    Message::Data { transfer, offset, fragment, backlogged: true, service_us, last }
}

const ATTACKS: [(&str, Answer); 13] = [
    ("hangs up", |_, _| {}),
    ("garbage instead of welcome", |peer, random| {
        let mut bytes = vec![0; 5000];
        random.fill(&mut bytes);
        let _ = peer.try_send(&bytes);
        peer.await_end("garbage");
    }),
    ("an epoch that is another", |peer, _| {
        peer.epoch += 1;
        welcome(peer, 1 << 20, 16);
        peer.await_end("another epoch");
    }),
    ("each kind of frame", |peer, random| {
        welcome(peer, 1 << 20, 16);
        for (message, payload) in every_kind(random) {
            let frame = peer.frame(message, &payload);
            if peer.try_send(&frame).is_err() {
                break;
            }
        }
        peer.await_end("each kind of frame");
    }),
    ("no credit, no requests", |peer, _| {
        welcome(peer, 0, 0);
        serve(peer, |_, message| panic!("it may not ask: {message:?}"));
    }),
    ("all the credit there is, and no answer", |peer, _| {
        welcome(peer, u64::MAX, u32::MAX);
        serve(peer, |_, _| true);
    }),
    ("half an answer", |peer, _| {
        welcome(peer, 1 << 20, 16);
        serve(peer, |peer, message| {
            let Message::Read { transfer, length, .. } = message else { return true };
            let frame = peer.frame(data(transfer, 0, last_part(length)), &vec![0xbb; 4096]);
            let _ = peer.try_send(&frame[..HEADER_BYTES + 1000]);
            true
        });
    }),
    ("damaged answers", |peer, _| {
        welcome(peer, 1 << 20, 16);
        serve(peer, |peer, message| {
            let Message::Read { transfer, .. } = message else { return true };
            let mut frame = peer.frame(data(transfer, 0, last_part(4096)), &vec![0xcc; 4096]);
            frame[HEADER_BYTES] ^= 1;
            let _ = peer.try_send(&frame);
            true
        });
    }),
    ("answers beyond the request", |peer, _| {
        welcome(peer, 1 << 20, 16);
        serve(peer, |peer, message| {
            let Message::Read { transfer, .. } = message else { return true };
            let frame = peer.frame(data(transfer, 4096, None), &vec![0xbb; 1 << 20]);
            let _ = peer.try_send(&frame);
            peer.await_end("beyond the request");
            false
        });
    }),
    ("answers to what was not asked", |peer, _| {
        welcome(peer, 1 << 20, 16);
        for number in 0..1000 {
            let frame = peer.frame(data(number << 32, 0, last_part(4096)), &vec![0xbb; 4096]);
            let _ = peer.try_send(&frame);
        }
        peer.await_end("not asked");
    }),
    ("the same answer twice", |peer, _| {
        welcome(peer, 1 << 20, 16);
        serve(peer, |peer, message| {
            let Message::Read { transfer, .. } = message else { return true };
            let frame = peer.frame(data(transfer, 0, None), &vec![0xbb; 4096]);
            let _ = peer.try_send(&[frame.clone(), frame].concat());
            peer.await_end("twice");
            false
        });
    }),
    ("a read that ends with less than it says", |peer, _| {
        welcome(peer, 1 << 20, 16);
        serve(peer, |peer, message| {
            let Message::Read { transfer, .. } = message else { return true };
            let frame = peer.frame(data(transfer, 0, last_part(u64::MAX)), &[]);
            let _ = peer.try_send(&frame);
            true
        });
    }),
    ("a flood of reports, and no answer", |peer, random| {
        welcome(peer, 1 << 20, 16);
        for _ in 0..3000 {
            let (message, _) = every_kind(random).swap_remove(14);
            assert!(matches!(message, Message::Report { .. }));
            let frame = peer.frame(message, &[]);
            if peer.try_send(&frame).is_err() {
                return;
            }
        }
        serve(peer, |_, _| true);
    }),
];

#[test]
fn a_peer_that_answers_with_attacks_costs_its_lane_and_serves_again_when_it_is_well() {
    let address = free_address();
    let beta = beta(address);
    let gamma_address = free_address();
    let gamma = self::beta(gamma_address);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mallory = listener.local_addr().expect("bound");
    // Which of the attacks; beyond them a real node.
    let attack = Arc::new(AtomicU64::new(0));
    let (chosen, stopped) = (Arc::clone(&attack), Arc::new(AtomicBool::new(false)));
    let stop = Arc::clone(&stopped);
    let accepting = std::thread::spawn(move || {
        let mut lanes = Vec::new();
        for (number, stream) in listener.incoming().enumerate() {
            let stream = stream.expect("a connection");
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let chosen = Arc::clone(&chosen);
            lanes.push(std::thread::spawn(move || {
                attend(stream, &chosen, gamma_address, number as u64);
            }));
        }
        lanes.into_iter().for_each(|lane| lane.join().expect("no attack panics"));
    });
    let alpha = alpha(&[("beta", address), ("mallory", mallory)], |_, config| {
        config.client.deadline_default = Period::seconds(1);
    });
    let honest = Honest::start(&alpha);
    let mut client = alpha.client(ARENA);
    let sentinel = vec![0x11; 2 << 20];
    for (number, (what, _)) in ATTACKS.iter().enumerate() {
        attack.store(number as u64, Ordering::Relaxed);
        client.segments[0].store(0, &sentinel).expect("inside");
        // Whether it opens or not, it ends, with an error that has a type.
        let (peer, export, path) = ("mallory".to_owned(), "data".to_owned(), "data".into());
        let access = Access::READ_WRITE;
        let open = Request::OpenExport { peer, export, path, access, create: Creation::No };
        if let (piped_ring::handshake::Reply::Opened { handle, .. }, _) = client.ask(&open, &[]) {
            for opcode in [Opcode::Read, Opcode::Write] {
                let request =
                    Descriptor { handle_a: handle, length: 4096 * 5, ..Descriptor::new(opcode, 1) };
                let entry = client.run(request);
                if entry.kind == CompletionKind::FinishedHeld as u8 {
                    let released =
                        eventually("its buffer is free again", || client.queues[0].reap());
                    assert_eq!(released.kind, CompletionKind::Released as u8, "{what}");
                }
                let typed =
                    [Status::DeadlineExceeded, Status::PeerLost, Status::Corrupt, Status::Io];
                assert!(
                    typed.iter().any(|status| entry.status == *status as u16),
                    "{what}: {entry:?}"
                );
                assert!(entry.bytes <= 4096, "{what}: one piece at most was right");
            }
            client.ask(&Request::CloseHandle { handle }, &[]);
        }
        let mut bytes = vec![0; 2 << 20];
        client.segments[0].load(4096 * 5, &mut bytes[4096 * 5..]).expect("inside");
        assert!(
            bytes[4096 * 5..].iter().all(|byte| *byte == 0x11),
            "{what}: nothing lands beside what was asked"
        );
        honest.check(what);
    }
    assert!(counter(&alpha, "peer_faults") > 5);
    assert_eq!(epochs(&alpha, "beta", false), [1, 1], "no honest lane was lost");
    // It is well again, and nobody is asked to do anything.
    attack.store(u64::MAX, Ordering::Relaxed);
    let handle = eventually("it is reached without help", || {
        let (peer, export, path) = ("mallory".to_owned(), "data".to_owned(), "data".into());
        let access = Access::READ;
        let open = Request::OpenExport { peer, export, path, access, create: Creation::No };
        match client.ask(&open, &[]).0 {
            piped_ring::handshake::Reply::Opened { handle, .. } => Some(handle),
            _ => None,
        }
    });
    let read = Descriptor { handle_a: handle, length: 1 << 20, ..Descriptor::new(Opcode::Read, 1) };
    eventually("and serves", || (client.run(read).status == Status::Ok as u16).then_some(()));
    let mut bytes = vec![0; FILE_BYTES];
    client.segments[0].load(0, &mut bytes).expect("inside");
    assert!(bytes == pattern(FILE_BYTES));
    honest.end();
    drop(client);
    alpha.stop().expect("a clean end");
    stopped.store(true, Ordering::Relaxed);
    let _ = TcpStream::connect(mallory);
    accepting.join().expect("no attack panics");
    beta.stop().expect("a clean end");
    gamma.stop().expect("a clean end");
}

/// One connection to the peer under test: an attack as long as that is the one, or a relay.
fn attend(stream: TcpStream, chosen: &AtomicU64, well: SocketAddr, number: u64) {
    let attack = chosen.load(Ordering::Relaxed);
    let Some((_, answer)) = ATTACKS.get(attack as usize) else {
        return relay(stream, well);
    };
    let watched = stream.try_clone().expect("a descriptor");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while chosen.load(Ordering::Relaxed) == attack && !over.load(Ordering::Relaxed) {
                pause();
            }
            let _ = watched.shutdown(std::net::Shutdown::Both);
        });
        let mut peer = RawPeer::over(stream);
        if let Ok(Some((Message::Hello { .. }, _))) = {
            // Its epoch is the lane's.
            let mut header = [0; HEADER_BYTES];
            let peeked = peer.stream.peek(&mut header);
            if let (Ok(HEADER_BYTES), Ok(frame)) = (peeked, piped_wire::Frame::parse(&header)) {
                peer.epoch = frame.epoch;
            }
            peer.try_receive()
        } {
            answer(&mut peer, &mut Random::new(number));
        }
        over.store(true, Ordering::Relaxed);
    });
}

fn relay(stream: TcpStream, to: SocketAddr) {
    let Ok(other) = TcpStream::connect(to) else { return };
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.flush();
        let _ = to.shutdown(std::net::Shutdown::Both);
        let _ = from.shutdown(std::net::Shutdown::Both);
    };
    let back = (other.try_clone().expect("one"), stream.try_clone().expect("one"));
    let thread = std::thread::spawn(move || copy(back.0, back.1));
    copy(stream, other);
    let _ = thread.join();
}

fn crc32c(bytes: &[u8]) -> u32 {
    let segment = piped_ring::Segment::create(bytes.len() as u64).expect("memory");
    segment.store(0, bytes).expect("inside");
    segment.crc32c(0, bytes.len() as u64).expect("inside")
}

#[test]
fn names_that_no_library_would_send_open_nothing_and_cost_nobody_anything() {
    let scene = Scene::start();
    let mut peer = RawPeer::connect(scene.address, "mallory");
    let longest = "n".repeat(1024);
    for (ticket, (path, expected)) in [
        ("data", Ended::Ok),
        ("da\0ta", Ended::Invalid),
        ("\0", Ended::Invalid),
        ("\u{1b}[2J", Ended::Invalid),
        ("two\nlines", Ended::Invalid),
        ("rubout\u{7f}", Ended::Invalid),
        ("", Ended::Invalid),
        (&longest, Ended::NameTooLong),
        ("/etc/passwd", Ended::Denied),
        ("../data", Ended::Denied),
        ("..", Ended::Denied),
        (".", Ended::IsDirectory),
    ]
    .into_iter()
    .enumerate()
    {
        for (made, create) in [(0, Creation::No), (1, Creation::OPEN)] {
            // What may not be read may not be made either.
            let (ticket, kind, access) = (2 * ticket as u64 + made, OpenKind::File, BOTH);
            let open = Message::Open { ticket, kind, access, create, name_length: 4 };
            peer.send(open, &[b"data", path.as_bytes()].concat());
            match peer.receive() {
                Message::Opened { ticket: of, status, .. } => {
                    assert_eq!((of, status), (ticket, expected), "{path:?}");
                }
                other => panic!("{path:?}: {other:?}"),
            }
        }
    }
    for kind in [OpenKind::Region, OpenKind::Channel, OpenKind::File] {
        let (access, ticket) = (Rights::READ, 1000 + kind as u64);
        let open = Message::Open { ticket, kind, access, create: Creation::No, name_length: 3 };
        peer.send(open, b"a\nb");
        let opened = peer.receive();
        assert!(matches!(opened, Message::Opened { status: Ended::Invalid, .. }), "{opened:?}");
    }
    let root = std::fs::read_dir(scene.beta.path("root")).expect("a directory");
    let mut names: Vec<_> = root.map(|entry| entry.expect("read").file_name()).collect();
    names.sort();
    assert_eq!(names, ["data", "honest", "mine"], "nothing was made");
    scene.end();
}
