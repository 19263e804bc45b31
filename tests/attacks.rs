//! One attack each at a real daemon: what it costs the attacker, what is counted, and that nobody
//! else notices and nothing is left.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use piped_client::Client;
use piped_core::access::{Access, Creation};
use piped_core::status::Status;
use piped_ring::handshake::{Hello, MESSAGE_BYTES_MAX, Reply, Request, fds};
use piped_ring::testing::Word;
use piped_ring::{Descriptor, Opcode};
use piped_sim::Random;
use system_tests::attack::{
    Abuse, Attacker, FDS_MAX, Footprint, HELLO, Neighbour, Targets, ask, connect, made_up_files,
    read_to_end, rewrite, send_raw, wrong_files_of,
};
use system_tests::process::{Daemon, PATIENCE, Pair, Programs, eventually};

/// Two nodes, and what the first one has without the attackers.
struct Scene {
    pair: Pair,
    targets: Targets,
    before: Footprint,
    /// Serves as neighbour: asks for nothing much, must be answered.
    client: Client,
    directory: tempfile::TempDir,
}

impl Scene {
    /// `None`: the programs are not there.
    fn start() -> Option<Self> {
        Self::start_with("")
    }

    /// `peer`: further keys of beta in the configuration of alpha.
    fn start_with(peer: &str) -> Option<Self> {
        let programs = Programs::find()?;
        let directory = tempfile::tempdir().expect("a directory");
        let pair = Pair::start_with(&programs, directory.path(), peer);
        let targets = Targets { file: directory.path().join("root/blocks"), victim: "" };
        let client = Client::connect(pair.alpha.client_socket()).expect("it serves");
        // What the pools of the runtime and the lanes keep, they have after a first client.
        drop(Attacker::connect(&pair.alpha));
        eventually("it is gone", || (pair.alpha.number("sessions") == 1).then_some(()));
        let before = Footprint::settled(&pair.alpha);
        Some(Self { pair, targets, before, client, directory })
    }

    fn alpha(&self) -> &Daemon {
        &self.pair.alpha
    }

    fn run(&self, abuse: Abuse) {
        abuse.run(self.alpha(), &self.targets, &mut Random::new(1));
    }

    fn evicted(&self, label: &str) -> u64 {
        let status = self.alpha().status();
        status["evicted"][label].as_u64().unwrap_or(0)
    }

    fn await_refused(&self, label: &str, count: u64) {
        eventually("the refusal is counted", || {
            (self.alpha().status()["refused"][label] == count).then_some(())
        });
    }

    fn await_evicted(&self, label: &str, count: u64) {
        eventually("the eviction is counted", || (self.evicted(label) == count).then_some(()));
    }

    fn check_unharmed(self) {
        let mut queue = self.client.queue().expect("a queue");
        for _ in 0..100 {
            queue.nop().expect("served");
        }
        drop(queue);
        // Its queue stays in its session.
        let before = Footprint {
            files: self.before.files + 4,
            mappings: self.before.mappings + 1,
            ..self.before
        };
        before.await_again(self.alpha());
        let log = self.alpha().log();
        assert!(!log.contains("panicked"), "{log}");
    }
}

#[test]
fn impossible_indices_evict_their_writer_by_name() {
    let Some(scene) = Scene::start() else { return };
    let attacker = Attacker::connect(scene.alpha());
    attacker.raw.set(Word::SubmissionTail, attacker.raw.get(Word::SubmissionTail).wrapping_sub(1));
    rustix::io::write(attacker.raw.to_daemon(), &1_u64.to_ne_bytes()).expect("rung");
    attacker.await_end();
    scene.await_evicted("submission_ring", 1);
    // What it shares is its own as long as it holds the socket.
    drop(attacker);
    let mut attacker = Attacker::connect(scene.alpha());
    attacker
        .raw
        .set(Word::CompletionHead, attacker.raw.get(Word::CompletionHead).wrapping_add(1 << 20));
    // The head is looked at when room is short.
    eventually("it is", || {
        attacker.submit((0..64).map(|number| Descriptor::new(Opcode::Nop, number)));
        (scene.evicted("completion_ring") == 1).then_some(())
    });
    attacker.await_end();
    drop(attacker);
    scene.run(Abuse::QueueHoles);
    scene.await_evicted("submission_ring", 2);
    scene.check_unharmed();
}

#[test]
fn garbage_in_descriptors_ends_as_requests_that_are_refused() {
    let Some(scene) = Scene::start() else { return };
    let mut attacker = Attacker::connect(scene.alpha());
    let mut random = Random::new(1);
    for _ in 0..200 {
        let count = attacker.submit((0..32).map(|_| {
            let words = std::array::from_fn(|_| random.below(u64::MAX));
            // A verb there is, so that the fields are looked at.
            let opcode = random.below(Opcode::ALL.len() as u64) as u8;
            Descriptor { opcode, flags: 0, class: 0, ..Descriptor::from_words(words) }
        }));
        let statuses = attacker.reap(count);
        let done = statuses.iter().filter(|status| **status == Status::Ok).count();
        assert_eq!((statuses.len() as u64, done), (count, 0), "{statuses:?}");
    }
    attacker.submit([Descriptor::new(Opcode::Nop, 1)]);
    assert_eq!(attacker.reap(1), [Status::Ok], "its queue is sound");
    drop(attacker);
    for seed in 0..10 {
        Abuse::Descriptors.run(scene.alpha(), &scene.targets, &mut Random::new(seed));
    }
    let status = scene.alpha().status();
    assert_eq!(status["shards"][0]["reactor"]["evictions"], 0, "{status}");
    scene.check_unharmed();
}

#[test]
fn what_is_no_file_for_the_purpose_is_refused_with_its_reason_and_closed() {
    let Some(scene) = Scene::start() else { return };
    let attacker = Attacker::connect(scene.alpha());
    for (what, file, access) in wrong_files_of(&scene.targets) {
        let open = Request::OpenFile { access, direct: false };
        let (status, message) = attacker.open(&open, &[file.as_fd()]).expect_err(what);
        let expected = [Status::Denied, Status::Invalid, Status::IsDirectory];
        assert!(expected.contains(&status), "{what}: {status:?} {message}");
        assert!(message.len() > 10, "{what}: {message}");
    }
    // A ring of the kernel's, which newer ones do not even pass on.
    match io_uring::IoUring::new(2) {
        Ok(ring) => {
            let ring = duplicate(ring.as_raw_fd());
            let open = Request::OpenFile { access: Access::READ_WRITE, direct: false };
            let mut message = [0; MESSAGE_BYTES_MAX];
            let length = open.encode(7, &mut message).expect("it fits");
            if fds::send(&attacker.socket, &message[..length], &[ring.as_fd()]).is_ok() {
                let answer = fds::receive(&attacker.socket, &mut message).expect("an answer");
                let (_, reply) = Reply::parse(&message[..answer.length]).expect("well-formed");
                assert!(matches!(reply, Reply::Refused { .. }), "{reply:?}");
            }
        }
        Err(error) => eprintln!("skipped: no io_uring for a test: {error}"),
    }
    // Two files that are not one.
    let [one, other] = ["root/blocks", "other"].map(|name| scene.directory.path().join(name));
    std::fs::write(&other, b"other").expect("written");
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT;
    let direct = rustix::fs::open(&other, flags, rustix::fs::Mode::empty());
    if let Ok(direct) = direct {
        let buffered = File::open(one).expect("there");
        let open = Request::OpenFile { access: Access::READ, direct: true };
        let refused = attacker.open(&open, &[direct.as_fd(), buffered.as_fd()]).expect_err("two");
        assert_eq!(refused.0, Status::Invalid, "{refused:?}");
    }
    drop(attacker);
    scene.check_unharmed();
}

/// They are the client's to read, and what they say depends on who reads.
#[test]
fn files_that_the_kernel_makes_up_are_not_read_or_written_for_others() {
    let Some(scene) = Scene::start() else { return };
    let attacker = Attacker::connect(scene.alpha());
    let files = made_up_files(scene.alpha().process.0.id());
    for (what, file, access) in &files {
        let open = Request::OpenFile { access: *access, direct: false };
        let (status, message) = attacker.open(&open, &[file.as_fd()]).expect_err(what);
        assert_eq!(status, Status::Denied, "{what}: {message}");
        assert!(message.contains("file system"), "{what}: {message}");
    }
    drop(files);
    // Files of disks and of memory are what they were.
    let memory =
        rustix::fs::memfd_create(c"mine", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    rustix::io::write(&memory, b"bytes").expect("written");
    let disk = File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).expect("there");
    for file in [memory, disk.into()] {
        let open = Request::OpenFile { access: Access::READ, direct: false };
        attacker.open(&open, &[file.as_fd()]).expect("a file");
    }
    drop(attacker);
    scene.check_unharmed();
}

/// Another descriptor of what a number of this process stands for.
fn duplicate(number: RawFd) -> OwnedFd {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let this = pidfd_open(getpid(), PidfdFlags::empty()).expect("this process");
    pidfd_getfd(this, number, PidfdGetfdFlags::empty()).expect("a descriptor of ours")
}

#[test]
fn long_messages_many_descriptors_and_large_numbers_are_turned_away_by_name() {
    let Some(scene) = Scene::start() else { return };
    let null = File::open("/dev/null").expect("there");
    let socket = connect(scene.alpha());
    send_raw(&socket, &[0xff; MESSAGE_BYTES_MAX + 1], &[]);
    read_to_end(&socket);
    scene.await_refused("malformed", 1);
    let socket = connect(scene.alpha());
    send_raw(&socket, &[1; 64], &vec![null.as_fd(); FDS_MAX]);
    read_to_end(&socket);
    scene.await_refused("malformed", 2);
    let socket = connect(scene.alpha());
    send_raw(&socket, &[0xff; 64], &[]);
    read_to_end(&socket);
    scene.await_refused("malformed", 3);
    let attacker = Attacker::connect(scene.alpha());
    send_raw(&attacker.socket, &[0xff; 100], &[]);
    attacker.await_end();
    drop(attacker);
    scene.await_evicted("message", 1);
    let attacker = Attacker::connect(scene.alpha());
    let open = Request::OpenFile { access: Access::READ, direct: false };
    let mut message = [0; MESSAGE_BYTES_MAX];
    let length = open.encode(1, &mut message).expect("it fits");
    send_raw(&attacker.socket, &message[..length], &[]);
    attacker.await_end();
    drop(attacker);
    scene.await_evicted("descriptors", 1);
    for absurd in [
        Hello { arena_bytes: u64::MAX, ..HELLO },
        Hello { entries: u32::MAX, ..HELLO },
        Hello { queues: u32::MAX, ..HELLO },
        Hello { class: 255, ..HELLO },
    ] {
        let reply = eventually("a place", || {
            let socket = connect(scene.alpha());
            ask(&socket, &Request::Hello(absurd), &[]).map(|(reply, _)| reply)
        });
        assert!(matches!(reply, Reply::Refused { .. }), "{absurd:?}: {reply:?}");
    }
    // A class that there is not is none of the protocol's.
    scene.await_refused("limits", 3);
    scene.await_refused("malformed", 4);
    scene.check_unharmed();
}

#[test]
fn a_name_that_is_none_is_not_asked_for_at_a_peer() {
    let Some(scene) = Scene::start() else { return };
    let attacker = Attacker::connect(scene.alpha());
    let (peer, name, access) = ("beta".to_owned(), String::new(), Access::READ);
    let (export, path, create) = (name.clone(), b"blocks".to_vec(), Creation::No);
    let opens = [
        Request::OpenExport {
            peer: peer.clone(),
            export: export.clone(),
            path: path.clone(),
            access,
            create,
        },
        Request::OpenDirectory { peer: peer.clone(), export, path, access },
        Request::OpenRegion { peer: peer.clone(), name: name.clone(), access },
        Request::OpenChannel { peer, name },
    ];
    for open in opens {
        let (status, message) = attacker.open(&open, &[]).expect_err("it has no name");
        assert_eq!(status, Status::Invalid, "{message}");
    }
    // Others have their requests on these lanes.
    assert_eq!(scene.alpha().number("lanes_lost"), 0);
}

#[test]
fn a_buffer_rewritten_while_it_is_sent_costs_its_own_request_and_no_lane() {
    let Some(scene) = Scene::start_with("checksum = \"payload\"\n") else { return };
    let neighbour = Neighbour::start(&scene.pair, scene.directory.path());
    let lanes = |daemon: &Daemon| daemon.status()["shards"][0]["peers"][0]["lanes"].clone();
    let epochs = |daemon: &Daemon| {
        let lanes = lanes(daemon);
        let lanes = lanes.as_array().expect("a list").iter();
        lanes.map(|lane| lane["epoch"].as_u64().expect("a number")).collect::<Vec<_>>()
    };
    let before = epochs(scene.alpha());
    let mut attacker = Attacker::connect(scene.alpha());
    let export = |name: &str| Request::OpenExport {
        peer: "beta".to_owned(),
        export: "data".to_owned(),
        path: name.into(),
        access: Access::READ_WRITE,
        create: Creation::OPEN,
    };
    let target = attacker.open(&export("rewritten"), &[]).expect("made");
    eventually("a checksum was wrong", || {
        rewrite(&mut attacker, target, 1);
        (scene.pair.beta.number("corrupt_frames") > 0).then_some(())
    });
    neighbour.await_served();
    let served = neighbour.stop();
    assert_eq!(served.wrong, 0, "{served:?}");
    assert!(served.requests > 0);
    assert_eq!(epochs(scene.alpha()), before, "no lane was lost");
    drop(attacker);
    scene.check_unharmed();
}

#[test]
fn holes_in_an_arena_under_transfers_are_zeros_to_their_owner_alone() {
    let Some(scene) = Scene::start() else { return };
    let neighbour = Neighbour::start(&scene.pair, scene.directory.path());
    for seed in 0..10 {
        Abuse::ArenaHoles.run(scene.alpha(), &scene.targets, &mut Random::new(seed));
    }
    neighbour.await_served();
    let served = neighbour.stop();
    assert_eq!(served.wrong, 0, "{served:?}");
    scene.check_unharmed();
}

#[test]
fn a_memfd_cannot_be_resized_or_sealed_by_who_was_passed_it() {
    let Some(scene) = Scene::start() else { return };
    scene.run(Abuse::Memory);
    scene.check_unharmed();
}

#[test]
fn who_never_reaps_waits_for_itself_alone_and_is_served_when_it_does() {
    let Some(scene) = Scene::start() else { return };
    let mut attacker = Attacker::connect(scene.alpha());
    let nops = || (0..64).map(|number| Descriptor::new(Opcode::Nop, number));
    let mut submitted = 0;
    eventually("its requests are left lying", || {
        submitted += attacker.submit(nops());
        let status = scene.alpha().status();
        let stalls = status["shards"][0]["reactor"]["stalls"].as_u64().expect("a number");
        (stalls > 0).then_some(())
    });
    assert!(submitted >= 128, "its completion ring took {submitted}");
    let mut queue = scene.client.queue().expect("a queue");
    for _ in 0..100 {
        queue.nop().expect("served");
    }
    drop(queue);
    // Not evicted: what it did is no fault.
    let statuses = attacker.reap(submitted);
    assert!(statuses.iter().all(|status| *status == Status::Ok), "{statuses:?}");
    attacker.submit(nops());
    assert_eq!(attacker.reap(64).len(), 64);
    drop(attacker);
    scene.check_unharmed();
}

#[test]
fn who_rings_without_end_keeps_nobody_from_being_served() {
    let Some(scene) = Scene::start() else { return };
    let neighbour = Neighbour::start(&scene.pair, scene.directory.path());
    std::thread::scope(|scope| {
        let ringing = scope.spawn(|| {
            let attacker = Attacker::connect(scene.alpha());
            let end = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
            let stop = std::sync::Arc::clone(&end);
            (attacker, end, stop)
        });
        let (attacker, end, stop) = ringing.join().expect("connected");
        let bell = scope.spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let _ = rustix::io::write(attacker.raw.to_daemon(), &1_u64.to_ne_bytes());
            }
        });
        neighbour.await_served();
        end.store(true, std::sync::atomic::Ordering::SeqCst);
        bell.join().expect("it only rings");
    });
    assert_eq!(neighbour.stop().wrong, 0);
    scene.check_unharmed();
}

#[test]
fn opens_and_closes_without_end_keep_nobody_from_being_served() {
    let Some(scene) = Scene::start() else { return };
    let neighbour = Neighbour::start(&scene.pair, scene.directory.path());
    for seed in 0..10 {
        Abuse::Flood.run(scene.alpha(), &scene.targets, &mut Random::new(seed));
    }
    neighbour.await_served();
    assert_eq!(neighbour.stop().wrong, 0);
    scene.check_unharmed();
}

#[test]
fn who_does_not_take_its_answers_is_evicted_as_deaf() {
    let Some(scene) = Scene::start() else { return };
    let attacker = Attacker::connect(scene.alpha());
    rustix::net::sockopt::set_socket_recv_buffer_size(&attacker.socket, 1).expect("small");
    let mut message = [0; MESSAGE_BYTES_MAX];
    let length = Request::AddQueue.encode(1, &mut message).expect("it fits");
    let close = Request::CloseHandle { handle: 1 };
    let wanted = close.encode(2, &mut message).unwrap_or(length);
    let timeout = Some(std::time::Duration::from_millis(200));
    let side = rustix::net::sockopt::Timeout::Send;
    rustix::net::sockopt::set_socket_timeout(&attacker.socket, side, timeout).expect("a timeout");
    eventually("it is deaf", || {
        for _ in 0..500 {
            send_raw(&attacker.socket, &message[..wanted], &[]);
            if scene.evicted("deaf") > 0 {
                return Some(());
            }
        }
        None
    });
    assert!(PATIENCE.as_secs() > 10, "the daemon gives it 5 s");
    attacker.await_end();
    drop(attacker);
    scene.check_unharmed();
}
