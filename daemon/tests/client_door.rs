//! The client door of a real daemon: the handshake, requests over the ring, and everybody who must
//! not get in or must be thrown out.

mod support;

use std::fs::File;
use std::io::ErrorKind;

use piped_core::access::{Access, Creation};
use piped_core::status::Status;
use piped_ring::handshake::{Hello, MESSAGE_BYTES_MAX, PathCosts, Reply, Request, fds};
use piped_ring::{Descriptor, Opcode};
use rustix::fs::{FileType, Mode};
use support::{Client, HELLO, World, attach, eventually, passed, run};

fn status(number: u16) -> Status {
    Status::from_u16(number).expect("a status")
}

#[test]
fn a_client_is_welcomed_and_its_nops_complete() {
    let world = World::start(|_, _| {});
    let mut client = world.client(Hello { queues: 2, ..HELLO });
    assert_eq!((client.welcome.segments, client.welcome.queues), (1, 2));
    assert_eq!(client.welcome.shard_cpu, -1, "not pinned");
    assert_eq!(client.welcome.deadline_default_ns, 30_000_000_000);
    assert_eq!(client.segments[0].len(), HELLO.arena_bytes);
    for number in 0..1000 {
        let entry = run(
            &mut client.queues[number % 2],
            Descriptor::new(Opcode::Nop, number as u64 ^ 0xabcd_0000_0000_0000),
        );
        assert_eq!(entry.user_data, number as u64 ^ 0xabcd_0000_0000_0000);
        assert_eq!(status(entry.status), Status::Ok);
    }
    assert_eq!(world.sessions(), 1);
    drop(client);
    eventually("the session drains", || (world.sessions() == 0).then_some(()));
    world.stop().expect("a clean end");
}

#[test]
fn a_full_ring_of_requests_completes_each_once() {
    let world = World::start(|_, _| {});
    let mut client = world.client(HELLO);
    let queue = &mut client.queues[0];
    let mut seen = vec![0_u32; 64 * 40];
    for round in 0..40_u64 {
        for number in 0..64 {
            queue.submit(Descriptor::new(Opcode::Nop, round * 64 + number)).expect("room");
        }
        queue.flush();
        let mut left = 64;
        while left > 0 {
            match queue.reap() {
                Some(entry) => {
                    seen[entry.user_data as usize] += 1;
                    left -= 1;
                }
                None => queue.wait(None).expect("the daemon is there"),
            }
        }
    }
    assert!(seen.iter().all(|count| *count == 1));
}

#[test]
fn unknown_verbs_bad_fields_and_bad_handles_complete_with_their_status() {
    let world = World::start(|_, _| {});
    let mut client = world.client(HELLO);
    let mut end = |descriptor| status(client.run(descriptor).status);
    let nop = Descriptor::new(Opcode::Nop, 1);
    assert_eq!(end(Descriptor { opcode: 200, ..nop }), Status::Unsupported);
    assert_eq!(end(Descriptor { opcode: Opcode::FetchAdd as u8, ..nop }), Status::BadHandle);
    assert_eq!(end(Descriptor { flags: 0x80, ..nop }), Status::Unsupported);
    assert_eq!(end(Descriptor { class: 9, ..nop }), Status::Invalid);
    assert_eq!(end(Descriptor { reserved: 1, ..nop }), Status::Invalid);
    let read = Descriptor { handle_a: 999, length: 4096, ..Descriptor::new(Opcode::Read, 1) };
    assert_eq!(end(read), Status::BadHandle);
    assert_eq!(end(Descriptor { segment: 7, ..read }), Status::BadBuffer);
    assert_eq!(end(nop), Status::Ok, "the client lives");
}

#[test]
fn a_passed_file_is_written_and_read() {
    let world = World::start(|_, _| {});
    let mut client = world.client(HELLO);
    let path = world.path("data");
    let options =
        || File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let file = options().expect("a file");
    let open = Request::OpenFile { access: Access::READ_WRITE, direct: false };
    let handle = client.open(&open, &passed([&file]));
    client.segments[0].store(4096, b"through the ring").expect("inside");
    let write = Descriptor {
        handle_a: handle,
        offset_a: 100,
        buffer_offset: 4096,
        length: 16,
        ..Descriptor::new(Opcode::Write, 5)
    };
    let entry = client.run(write);
    assert_eq!((status(entry.status), entry.bytes), (Status::Ok, 16));
    assert_eq!(&std::fs::read(&path).expect("there")[100..], b"through the ring");
    let read = Descriptor { opcode: Opcode::Read as u8, buffer_offset: 8192, length: 64, ..write };
    let entry = client.run(read);
    assert_eq!((status(entry.status), entry.bytes), (Status::Ok, 16), "up to the file's end");
    let mut got = [0; 16];
    client.segments[0].load(8192, &mut got).expect("inside");
    assert_eq!(&got, b"through the ring");
    assert_eq!(client.ask(&Request::CloseHandle { handle }, &[]).0, Reply::Done);
    assert_eq!(status(client.run(read).status), Status::BadHandle);
    assert_eq!(client.refused(&Request::CloseHandle { handle }).0, Status::BadHandle);
}

#[test]
fn what_a_path_costs_is_told_once_it_was_measured() {
    let world = World::start(|_, _| {});
    let mut client = world.client(HELLO);
    let ask = |handle| Request::PathCosts { handle, write: false };
    assert_eq!(client.refused(&ask(99)).0, Status::BadHandle);
    let path = world.path("data");
    std::fs::write(&path, vec![7; 1 << 16]).expect("written");
    let file = File::open(&path).expect("there");
    let open = Request::OpenFile { access: Access::READ, direct: false };
    let handle = client.open(&open, &passed([&file]));
    let told = |client: &Client| match client.ask(&ask(handle), &[]).0 {
        Reply::PathCosts(costs) => costs,
        other => panic!("{other:?}"),
    };
    assert_eq!(told(&client), PathCosts::UNKNOWN, "nobody has read anything");
    let mut reads = 0;
    while told(&client).confidence_ppm == 0 {
        let length = 4096 << (reads % 4);
        let read = Descriptor { handle_a: handle, length, ..Descriptor::new(Opcode::Read, 5) };
        assert_eq!(status(client.run(read).status), Status::Ok);
        reads += 1;
        assert!(reads < 1000, "so many reads of some sizes say nothing");
    }
    assert_eq!(client.ask(&Request::CloseHandle { handle }, &[]).0, Reply::Done);
    assert_eq!(client.refused(&ask(handle)).0, Status::BadHandle);
}

#[test]
fn what_is_no_regular_file_is_not_taken() {
    let world = World::start(|_, _| {});
    let client = world.client(HELLO);
    let directory = File::open(world.dir.path()).expect("open");
    let null = File::open("/dev/null").expect("open");
    for (file, why) in [(&directory, Status::IsDirectory), (&null, Status::Denied)] {
        let open = Request::OpenFile { access: Access::READ, direct: false };
        let (reply, _) = client.ask(&open, &passed([file]));
        assert!(matches!(reply, Reply::Refused { status, .. } if status == why), "{reply:?}");
    }
}

#[test]
fn exports_serve_regular_files_below_them_and_nothing_else() {
    let world = World::start(|dir, config| {
        let root = dir.join("root");
        std::fs::create_dir(&root).expect("made");
        std::fs::write(root.join("data"), vec![7; 10_000]).expect("written");
        std::fs::write(dir.join("secret"), b"secret").expect("written");
        std::os::unix::fs::symlink("../secret", root.join("link")).expect("linked");
        let fifo = root.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, fifo, FileType::Fifo, Mode::RUSR, 0).expect("made");
        let export =
            piped_config::Export { path: root, write: false, ..piped_config::Export::default() };
        config.exports.insert("data".to_owned(), export);
    });
    let mut client = world.client(HELLO);
    let open = |path: &str, access| Request::OpenExport {
        peer: String::new(),
        export: "data".to_owned(),
        path: path.into(),
        access,
        create: Creation::No,
    };
    for (path, expected) in [
        ("link", Status::Loop),
        ("../secret", Status::Denied),
        ("/etc/passwd", Status::Denied),
        ("fifo", Status::Denied),
        (".", Status::IsDirectory),
        ("", Status::Invalid),
        ("missing", Status::NotFound),
    ] {
        let (status, message) = client.refused(&open(path, Access::READ));
        assert_eq!(status, expected, "{path:?}: {message}");
        assert!(!message.is_empty());
    }
    assert_eq!(client.refused(&open("data", Access::READ_WRITE)).0, Status::Denied);
    let handle = client.open(&open("data", Access::READ), &[]);
    let read = Descriptor {
        handle_a: handle,
        length: 10_000,
        deadline_ns: 10_000_000_000,
        ..Descriptor::new(Opcode::Read, 1)
    };
    let entry = client.run(read);
    assert_eq!((status(entry.status), entry.bytes), (Status::Ok, 10_000));
    let mut got = vec![0; 10_000];
    client.segments[0].load(0, &mut got).expect("inside");
    assert!(got.iter().all(|byte| *byte == 7));
    let nowhere = Request::OpenExport {
        peer: "nobody".to_owned(),
        export: "data".to_owned(),
        path: "data".into(),
        access: Access::READ,
        create: Creation::No,
    };
    assert_eq!(client.refused(&nowhere).0, Status::NotFound);
}

#[test]
fn a_region_is_shared_by_name_and_ends_with_its_owner() {
    for shards in [1, 2] {
        let world = World::start(|_, config| config.shards.count = shards.into());
        let owner = world.client(HELLO);
        let mut user = world.client(HELLO);
        let offer = Request::ExportRegion {
            name: "grid".to_owned(),
            segment: 0,
            offset: 8192,
            length: 4096,
            access: Access::READ,
            audience: Default::default(),
        };
        let open =
            |access| Request::OpenRegion { peer: String::new(), name: "grid".to_owned(), access };
        assert_eq!(user.refused(&open(Access::READ)).0, Status::NotFound);
        owner.segments[0].store(8192, b"shared").expect("inside");
        owner.open(&offer, &[]);
        assert_eq!(user.refused(&offer).0, Status::WouldBlock, "the name is taken");
        assert_eq!(user.refused(&open(Access::READ_WRITE)).0, Status::Denied);
        let handle = user.open(&open(Access::READ), &[]);
        let get = Descriptor { handle_a: handle, length: 6, ..Descriptor::new(Opcode::Read, 1) };
        let entry = user.run(get);
        assert_eq!((status(entry.status), entry.bytes), (Status::Ok, 6), "{shards} shards");
        let mut got = [0; 6];
        user.segments[0].load(0, &mut got).expect("inside");
        assert_eq!(&got, b"shared");
        drop(owner);
        eventually("the region is gone", || {
            (status(user.run(get).status) == Status::Gone).then_some(())
        });
        assert_eq!(user.refused(&open(Access::READ)).0, Status::NotFound);
        world.stop().expect("a clean end");
    }
}

#[test]
fn arenas_and_queues_grow_up_to_their_limits() {
    let world = World::start(|_, config| config.client.queues_max = 2);
    let mut client = world.client(HELLO);
    let (reply, mut fds) = client.ask(&Request::AddQueue, &[]);
    assert_eq!(reply, Reply::Queue { queue: 1 });
    let mut queue = attach(fds.drain(..));
    assert_eq!(status(run(&mut queue, Descriptor::new(Opcode::Nop, 3)).status), Status::Ok);
    assert_eq!(client.refused(&Request::AddQueue).0, Status::WouldBlock);
    let (reply, fds) = client.ask(&Request::GrowArena { bytes: 4 << 20 }, &[]);
    assert_eq!((reply, fds.len()), (Reply::Segment { segment: 1 }, 1));
    assert_eq!(client.refused(&Request::GrowArena { bytes: 4 << 20 }).0, Status::WouldBlock);
    let file = File::open("/proc/self/exe").expect("this test");
    let open = Request::OpenFile { access: Access::READ, direct: false };
    let handle = client.open(&open, &passed([&file]));
    let into = Descriptor {
        handle_a: handle,
        segment: 1,
        buffer_offset: (4 << 20) - 4096,
        length: 4096,
        ..Descriptor::new(Opcode::Read, 1)
    };
    let entry = client.run(into);
    assert_eq!((status(entry.status), entry.bytes), (Status::Ok, 4096));
}

#[test]
fn greedy_hellos_are_refused_with_their_key() {
    let world = World::start(|_, config| config.limits.global.sessions = 1);
    for (hello, key) in [
        (Hello { arena_bytes: u64::MAX, ..HELLO }, "client.arena_bytes_max"),
        (Hello { entries: 1 << 20, ..HELLO }, "client.entries_max"),
        (Hello { queues: 1000, ..HELLO }, "queues"),
    ] {
        // A refused session drains, and its socket is closed, before its place is free.
        let message = eventually("a place", || {
            let (reply, _) = world.connect().ask(&Request::Hello(hello), &[]);
            let Reply::Refused { message, .. } = reply else { panic!("{reply:?}") };
            (!message.contains("limits.global.sessions")).then_some(message)
        });
        assert!(message.contains(key), "{message}");
    }
    eventually("nothing is left of them", || (world.sessions() == 0).then_some(()));
    let _only = eventually("a place", || {
        let socket = world.connect();
        matches!(socket.ask(&Request::Hello(HELLO), &[]).0, Reply::Welcome(_)).then_some(socket)
    });
    let (reply, _) = world.connect().ask(&Request::Hello(HELLO), &[]);
    let Reply::Refused { status, message } = reply else { panic!("{reply:?}") };
    assert_eq!(status, Status::WouldBlock);
    assert!(message.contains("limits.global.sessions"), "{message}");
}

#[test]
fn a_stranger_is_refused_and_told_the_key() {
    let world = World::start(|_, config| {
        config.access.users = vec![piped_config::Principal::Id(12_345)];
    });
    // The daemon's own user, and root, are admitted whoever is named.
    let (reply, _) = world.connect().ask(&Request::Hello(HELLO), &[]);
    assert!(matches!(reply, Reply::Welcome(_)), "{reply:?}");
    eventually("it has left", || (world.sessions() == 0).then_some(()));
    let asked = world.as_stranger(|| world.connect().ask(&Request::Hello(HELLO), &[]));
    let Some((reply, fds)) = asked else { return };
    let Reply::Refused { status, message } = reply else { panic!("{reply:?}") };
    assert_eq!(status, Status::Denied);
    assert!(message.contains("[access]"), "{message}");
    assert!(fds.is_empty());
    assert_eq!(world.sessions(), 0);
}

#[test]
fn garbage_before_and_after_hello_ends_the_connection_and_nothing_else() {
    let world = World::start(|_, _| {});
    let mut good = world.client(HELLO);
    // Oversized: longer than any message may be.
    let socket = world.connect();
    socket.send(&[0xff; 8192], &[]);
    assert!(socket.receive().is_none(), "hung up");
    // Too short, of an unknown kind, of the wrong kind.
    for message in [&[1, 2, 3][..], &[0xff; 64], &[2, 0, 0, 0, 9, 0, 0, 0]] {
        let socket = world.connect();
        socket.send(message, &[]);
        match socket.receive() {
            Some((_, Reply::Refused { status: Status::Invalid, .. }, _)) => {
                assert!(socket.receive().is_none(), "hung up");
            }
            other => panic!("{message:?}: {other:?}"),
        }
    }
    // Descriptors where none belong.
    let null = File::open("/dev/null").expect("open");
    let socket = world.connect();
    let mut hello = [0; MESSAGE_BYTES_MAX];
    let length = Request::Hello(HELLO).encode(77, &mut hello).expect("it fits");
    match fds::send(&socket.0, &hello[..length], &passed([&null])) {
        Ok(()) => {
            let reply = socket.receive();
            let is_refused =
                matches!(reply, Some((77, Reply::Refused { status: Status::Invalid, .. }, _)));
            assert!(is_refused, "{reply:?}");
        }
        // Before the connection has a place the kernel refuses it, from Linux 6.16 on.
        Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied),
    }
    // Hello twice is a request like any other; garbage is not.
    let bad = world.client(HELLO);
    assert_eq!(bad.refused(&Request::Hello(HELLO)).0, Status::Invalid);
    bad.socket.send(&[0xff; 100], &[]);
    assert!(matches!(bad.socket.receive(), Some((_, Reply::Refused { .. }, _))));
    assert!(bad.socket.receive().is_none(), "hung up");
    eventually("only the good one is left", || (world.sessions() == 1).then_some(()));
    assert_eq!(status(good.run(Descriptor::new(Opcode::Nop, 1)).status), Status::Ok);
}

#[test]
fn a_client_that_breaks_its_ring_is_evicted_with_a_count() {
    let world = World::start(|_, _| {});
    let mut good = world.client(HELLO);
    let socket = world.connect();
    let (reply, fds) = socket.ask(&Request::Hello(HELLO), &[]);
    assert!(matches!(reply, Reply::Welcome(_)));
    // Every word of the queue is nonsense, the indices among them; then the bell.
    let memory =
        piped_ring::Segment::from_fd(fds[1].try_clone().expect("one more")).expect("memory");
    let length = usize::try_from(memory.len()).expect("small");
    memory.store(0, &vec![0x5a; length]).expect("all of it");
    rustix::io::write(&fds[2], &1_u64.to_ne_bytes()).expect("rung");
    assert!(socket.receive().is_none(), "hung up");
    eventually("the session drains", || (world.sessions() == 1).then_some(()));
    let (_, status_body) = world.http("GET", "/v1/status", "");
    assert_eq!(status_body["shards"][0]["reactor"]["evictions"], 1, "{status_body}");
    assert_eq!(status(good.run(Descriptor::new(Opcode::Nop, 1)).status), Status::Ok);
}

#[test]
fn a_client_that_dies_with_work_under_way_leaks_nothing() {
    let world = World::start(|_, config| config.limits.global.sessions = 2);
    let path = world.path("data");
    std::fs::write(&path, vec![1; 1 << 20]).expect("written");
    for _ in 0..20 {
        let mut client = world.client(HELLO);
        let file = File::open(&path).expect("open");
        let open = Request::OpenFile { access: Access::READ, direct: false };
        let handle = client.open(&open, &passed([&file]));
        for number in 0..32 {
            let read = Descriptor {
                handle_a: handle,
                offset_a: number * 4096,
                length: 1 << 20,
                ..Descriptor::new(Opcode::Read, number)
            };
            client.queues[0].submit(read).expect("room");
        }
        client.queues[0].flush();
        drop(client);
        eventually("it drains", || (world.sessions() == 0).then_some(()));
    }
    let (_, body) = world.http("GET", "/v1/status", "");
    let shard = &body["shards"][0];
    assert_eq!(
        (&shard["sessions"], &shard["transfers"], &shard["ops"]),
        (&0.into(), &0.into(), &0.into())
    );
    world.stop().expect("a clean end");
}
