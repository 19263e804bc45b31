//! Two real daemons over loopback: files and regions of one used by a client of the other.

mod support;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use piped_config::admin::ending::HANDLES_END;
use piped_config::{Config, Peer, Period};
use piped_core::access::{Access, Creation, OpenKind};
use piped_core::link::LaneClass;
use piped_core::request::Class;
use piped_core::status::Status;
use piped_ring::handshake::{Hello, MESSAGE_BYTES_MAX, Reply, Request};
use piped_ring::{Descriptor, FLAG_DURABLE, Opcode};
use piped_wire::{Asker, Message};
use support::peer::{RawPeer, free_address};
use support::{HELLO, World, eventually};

/// The node `beta`, which offers a directory.
fn beta(address: SocketAddr, shards: u32) -> World {
    World::start(|dir, config| {
        config.node.name = "beta".to_owned();
        config.listen.address = Some(address);
        config.shards.count = shards.into();
        let root = dir.join("root");
        std::fs::create_dir(&root).expect("made");
        std::fs::write(root.join("data"), pattern(3 << 20)).expect("written");
        let open = piped_config::Export { path: root, write: true, ..Default::default() };
        let closed = piped_config::Export { peers: vec!["gamma".to_owned()], ..open.clone() };
        config.exports.insert("data".to_owned(), open);
        config.exports.insert("closed".to_owned(), closed);
    })
}

/// The node `alpha`, which asks `beta`.
fn alpha(address: SocketAddr, change: impl FnOnce(&Path, &mut Config)) -> World {
    World::start(|dir, config| {
        let address = address.to_string().parse().expect("host:port");
        let peer = Peer { address, ..Peer::default() };
        config.peers.insert("beta".to_owned(), peer);
        change(dir, config);
    })
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 4096) as u8).collect()
}

fn file(export: &str, path: &str, access: Access, create: Creation) -> Request {
    let (peer, export, path) = ("beta".to_owned(), export.to_owned(), path.into());
    Request::OpenExport { peer, export, path, access, create }
}

const ARENA: Hello = Hello { arena_bytes: 4 << 20, ..HELLO };

#[test]
fn a_remote_file_is_read_and_written() {
    for shards in [1, 2] {
        let address = free_address();
        let beta = beta(address, shards);
        let alpha = alpha(address, |_, config| config.shards.count = shards.into());
        // One client for each shard of alpha.
        for client in 0..shards {
            let mut client = (alpha.client(ARENA), client);
            let (client, number) = (&mut client.0, client.1);
            let read_file = client.open(&file("data", "data", Access::READ, Creation::No), &[]);
            let read = Descriptor {
                handle_a: read_file,
                length: 4 << 20,
                ..Descriptor::new(Opcode::Read, 1)
            };
            let entry = client.run(read);
            assert_eq!((entry.status, entry.bytes), (Status::Ok as u16, 3 << 20));
            let mut got = vec![0; 3 << 20];
            client.segments[0].load(0, &mut got).expect("inside");
            assert!(got == pattern(3 << 20), "the bytes are those of the file");

            let name = format!("new-{number}");
            let made = client.open(&file("data", &name, Access::READ_WRITE, Creation::OPEN), &[]);
            let write = Descriptor {
                handle_a: made,
                buffer_offset: 100,
                length: 1 << 20,
                flags: FLAG_DURABLE,
                ..Descriptor::new(Opcode::Write, 2)
            };
            let entry = client.run(write);
            assert_eq!((entry.status, entry.bytes), (Status::Ok as u16, 1 << 20));
            let written = std::fs::read(beta.path("root").join(&name)).expect("there");
            assert!(written == pattern(3 << 20)[100..100 + (1 << 20)], "and of the buffer");
        }
    }
}

#[test]
fn a_peer_gets_what_is_offered_to_it_and_nothing_else() {
    let address = free_address();
    let beta = beta(address, 1);
    std::fs::write(beta.path("secret"), b"secret").expect("written");
    let alpha = alpha(address, |_, _| {});
    let client = alpha.client(ARENA);
    for (export, path, access, expected) in [
        ("data", "../secret", Access::READ, Status::Denied),
        ("data", "/etc/passwd", Access::READ, Status::Denied),
        ("data", ".", Access::READ, Status::IsDirectory),
        ("data", "missing", Access::READ, Status::NotFound),
        ("closed", "data", Access::READ, Status::NoExport),
        ("nothing", "data", Access::READ, Status::NoExport),
    ] {
        let (status, message) = client.refused(&file(export, path, access, Creation::No));
        assert_eq!(status, expected, "{export} {path}: {message}");
        // A path that leads nowhere below any export is refused here, without asking beta.
        let is_refused_here = path.starts_with('/') || path.contains("..");
        assert!(message.contains("beta") || is_refused_here, "{message}");
    }
}

#[test]
fn a_remote_region_is_got_and_put_until_its_owner_leaves() {
    let address = free_address();
    let beta = beta(address, 2);
    let alpha = alpha(address, |_, config| config.client.deadline_default = Period::seconds(10));
    // Two owners: one on each shard of beta, and only one of the two serves alpha.
    let owners = [beta.client(ARENA), beta.client(ARENA)];
    let mut client = alpha.client(ARENA);
    for (number, owner) in owners.into_iter().enumerate() {
        let name = format!("grid-{number}");
        let offer = Request::ExportRegion {
            name: name.clone(),
            segment: 0,
            offset: 4096,
            length: 1 << 20,
            access: Access::READ_WRITE,
            audience: Default::default(),
        };
        owner.segments[0].store(4096, &pattern(1 << 20)).expect("inside");
        owner.open(&offer, &[]);
        let open =
            Request::OpenRegion { peer: "beta".to_owned(), name, access: Access::READ_WRITE };
        let handle = client.open(&open, &[]);
        let get =
            Descriptor { handle_a: handle, length: 1 << 20, ..Descriptor::new(Opcode::Read, 1) };
        let entry = client.run(get);
        assert_eq!((entry.status, entry.bytes), (Status::Ok as u16, 1 << 20), "grid-{number}");
        let mut got = vec![0; 1 << 20];
        client.segments[0].load(0, &mut got).expect("inside");
        assert!(got == pattern(1 << 20));
        client.segments[0].store(0, b"put by alpha").expect("inside");
        let put = Descriptor {
            handle_a: handle,
            offset_a: 8,
            length: 12,
            ..Descriptor::new(Opcode::Write, 2)
        };
        assert_eq!(client.run(put).status, Status::Ok as u16);
        let mut got = [0; 12];
        owner.segments[0].load(4096 + 8, &mut got).expect("inside");
        assert_eq!(&got, b"put by alpha");
        drop(owner);
        eventually("the region is gone", || {
            (client.run(get).status == Status::Gone as u16).then_some(())
        });
        let status = client.refused(&open).0;
        assert_eq!(status, Status::NotFound);
    }
}

#[test]
fn the_region_for_calibrations_is_for_nodes_of_users_who_may_calibrate() {
    let address = free_address();
    let beta = World::start(|_, config| {
        config.node.name = "beta".to_owned();
        config.listen.address = Some(address);
        config.access.users = vec![piped_config::Principal::Id(4_000_000)];
    });
    let ask = |node: &str| {
        let mut peer = RawPeer::connect(address, node);
        let (kind, access) = (OpenKind::Region, piped_core::access::Access::READ);
        let name = "piped.echo";
        let name_length = name.len() as u8;
        let open = Message::Open { ticket: 1, kind, access, create: Creation::No, name_length };
        peer.send(open, name.as_bytes());
        match peer.receive() {
            Message::Opened { status, .. } => status,
            other => panic!("{other:?}"),
        }
    };
    use piped_core::status::Status;
    assert_eq!(ask("own"), Status::Ok);
    if let Some(status) = beta.as_stranger(|| ask("theirs")) {
        assert_eq!(status, Status::Denied);
    }
}

/// Ends, as an operator, the handle by which a region is offered.
fn end_offer_of(world: &World, name: &str) {
    let (status, handles) = world.http("GET", "/v1/handles", "");
    assert_eq!(status, 200, "{handles}");
    let mut all = handles["handles"].as_array().expect("a list").iter();
    let offer = all.find(|it| it["offers"] == true && it["name"] == name);
    let number = &offer.expect("it is listed")["handle"];
    let (status, body) = world.http("PUT", HANDLES_END, &format!("{{\"handle\":{number}}}"));
    assert_eq!(status, 200, "{body}");
}

#[test]
fn a_region_is_closed_when_a_slow_peer_uses_it_no_more() {
    let address = free_address();
    let beta = beta(address, 2);
    // Two owners: one on each shard of beta, and only one of the two serves the peer. Twice: the
    // second time an operator has ended the owner's handle before.
    let owners = [(); 4].map(|()| beta.client(REGION));
    for (number, owner) in owners.into_iter().enumerate() {
        let name = format!("grid-{number}");
        let offer = Request::ExportRegion {
            name: name.clone(),
            segment: 0,
            offset: 0,
            length: REGION.arena_bytes,
            access: Access::READ,
            audience: Default::default(),
        };
        let handle = owner.open(&offer, &[]);
        let mut peer = RawPeer::connect(address, &format!("peer-{number}"));
        let theirs = peer.open_region(&name);
        peer.send(
            Message::Read {
                transfer: 1,
                handle: theirs,
                offset: 0,
                length: REGION.arena_bytes,
                asker: Asker::alone(Class::Bulk),
                from: 0,
                pieces: false,
                time_left_us: 60_000_000,
            },
            &[],
        );
        eventually("the get is being served", || (serves(&beta) == 1).then_some(()));
        // The shard sends and answers in the same turns: the sockets are full when it has answered
        // often and sent nothing.
        let (mut sent, mut answers) = (0, 0);
        eventually("the sockets are full", || {
            let now = frames_sent(&beta);
            answers = if now == sent { answers + 1 } else { 0 };
            sent = now;
            (answers == 50).then_some(())
        });
        if number >= 2 {
            end_offer_of(&beta, &name);
        }
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let length = Request::CloseHandle { handle }.encode(7, &mut buffer).expect("it fits");
        owner.socket.send(&buffer[..length], &[]);
        let asker = beta.client(HELLO);
        let open = Request::OpenRegion { peer: String::new(), name, access: Access::READ };
        eventually("the region is withdrawn", || match asker.ask(&open, &[]).0 {
            Reply::Refused { status: Status::NotFound, .. } => Some(()),
            Reply::Opened { handle, .. } => {
                asker.ask(&Request::CloseHandle { handle }, &[]);
                None
            }
            other => panic!("{other:?}"),
        });
        // All shards have been asked since, and the peer has read nothing.
        assert_eq!(serves(&beta), 1);
        assert!(!owner.socket.has_mail(), "it is not closed while frames name its memory");
        // The peer's lane lives, and it reads that the region is gone.
        assert_eq!(peer.end_of_read(), Status::Gone);
        assert!(matches!(owner.socket.receive(), Some((7, Reply::Done, _))));
    }
}

#[test]
fn a_client_whose_requests_never_end_leaves_room_for_the_others() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    // Places for all that come below, however long those that have left take to be cleared away.
    let alpha = alpha(address, |_, config| {
        config.limits.global.sessions = 128;
        config.limits.user.sessions = 128;
    });
    // A peer that opens whatever is asked for and answers no read.
    let lanes = [(); 2].map(|()| {
        let (socket, _) = listener.accept().expect("alpha dials both lanes");
        let mut lane = RawPeer::over(socket);
        let Message::Hello { lane: class, .. } = lane.receive() else { panic!("no Hello") };
        let (credit_bytes, requests_max) = (1 << 20, 256);
        lane.send(
            Message::HelloAck { incarnation: 1, credit_bytes, requests_max, sums: true },
            &[],
        );
        (class, lane)
    });
    let hog = Hello { entries: 1024, queues: 2, ..HELLO };
    let mut hog = alpha.client(hog);
    let opener = std::thread::spawn(move || {
        let mut lanes = lanes;
        let latency = lanes.iter_mut().find(|(class, _)| *class == LaneClass::Latency);
        let (_, latency) = latency.expect("one of them");
        let ticket = loop {
            if let Message::Open { ticket, .. } = latency.receive() {
                break ticket;
            }
        };
        let (status, handle, length) = (Status::Ok, 0, 1 << 20);
        latency.send(Message::Opened { ticket, status, handle, length }, &[]);
        lanes
    });
    let handle = hog.open(&file("data", "data", Access::READ, Creation::No), &[]);
    let lanes = opener.join().expect("the peer answers");
    for number in 0..2048 {
        let read =
            Descriptor { handle_a: handle, length: 16, ..Descriptor::new(Opcode::Read, number) };
        hog.queues[number as usize % 2].submit(read).expect("room");
    }
    hog.queues.iter_mut().for_each(|queue| {
        queue.flush();
    });
    let taken = || {
        let (_, body) = alpha.http("GET", "/v1/status", "");
        body["shards"][0]["reactor"]["taken"].as_u64().expect("a count")
    };
    eventually("half of the places are taken", || (taken() > 1024).then_some(()));
    for number in 0..100 {
        let mut other = alpha.client(HELLO);
        let entry = other.run(Descriptor::new(Opcode::Nop, number));
        assert_eq!(entry.status, Status::Ok as u16);
    }
    let of_the_hog = taken() - 100;
    assert!(of_the_hog < 2048, "some of its requests wait in its rings: {of_the_hog}");
    assert!(hog.queues.iter_mut().all(|queue| queue.reap().is_none()), "none has ended");
    drop(lanes);
}

/// How many requests of peers beta serves.
fn serves(beta: &World) -> u64 {
    let (_, body) = beta.http("GET", "/v1/status", "");
    let shards = body["shards"].as_array().expect("shards");
    shards.iter().map(|shard| shard["serves"].as_u64().expect("a count")).sum()
}

/// How many frames beta has sent.
fn frames_sent(beta: &World) -> u64 {
    let (_, body) = beta.http("GET", "/v1/status", "");
    let list =
        |value: &serde_json::Value, name: &str| value[name].as_array().expect("a list").clone();
    let peers = list(&body, "shards").into_iter().flat_map(|shard| list(&shard, "peers"));
    let lanes = peers.flat_map(|peer| list(&peer, "lanes"));
    lanes.map(|lane| lane["frames_sent"].as_u64().expect("a count")).sum()
}

/// More than the sockets of a connection hold.
const REGION: Hello = Hello { arena_bytes: 8 << 20, ..HELLO };

#[test]
fn a_peer_that_is_not_there_is_an_error_in_time() {
    let alpha = alpha(free_address(), |_, config| {
        config.client.deadline_default = Period::seconds(1);
    });
    let client = alpha.client(ARENA);
    let (status, message) = client.refused(&file("data", "data", Access::READ, Creation::No));
    assert!(matches!(status, Status::PeerLost | Status::DeadlineExceeded), "{status:?} {message}");
    alpha.stop().expect("a clean end, also while it dials");
}

#[test]
fn a_node_that_comes_later_is_found() {
    let address = free_address();
    let alpha = alpha(address, |_, _| {});
    let client = alpha.client(ARENA);
    let beta = beta(address, 1);
    eventually("the lanes are up", || {
        let (_, body) = alpha.http("GET", "/v1/status", "");
        let lanes = body["shards"][0]["peers"][0]["lanes"].as_array().expect("lanes").clone();
        lanes.iter().all(|lane| lane["up"] == true).then_some(())
    });
    client.open(&file("data", "data", Access::READ, Creation::No), &[]);
    drop(beta);
}
