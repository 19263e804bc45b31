//! Hostile bytes at both unix sockets: the daemon lives, others are served, nothing piles up.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use piped_client::Client;
use piped_ring::handshake::{Hello, MESSAGE_BYTES_MAX, Request, fds};
use piped_sim::Random;
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use system_tests::process::{Daemon, PATIENCE, Programs, eventually};

/// Connections of each kind.
const ROUNDS: u64 = 200;
/// What the daemon's memory may grow by, whatever is sent to it: less than the 10 MB of one
/// request.
const GROWTH_KIB: u64 = 8 << 10;
/// Threads it may have for all of them: a few for each connection that is there at once, none for
/// each file.
const THREADS: u64 = 128;
/// What the kernel passes with one message at most.
const FDS_MAX: usize = 253;
const HELLO: Hello =
    Hello { features: 0, arena_bytes: 4096, entries: 64, queues: 1, weight: 0, class: 0 };

/// A daemon, and a client that must not notice anything.
struct Scene {
    daemon: Daemon,
    client: Client,
    files: usize,
    memory_kib: u64,
}

impl Scene {
    fn start(programs: &Programs, directory: &Path) -> Self {
        let daemon = Daemon::start(programs, directory, "alpha", "");
        let client = Client::connect(daemon.client_socket()).expect("it serves");
        let scene = Self { daemon, client, files: 0, memory_kib: 0 };
        scene.check_served();
        let (files, memory_kib) = (scene.files(), scene.status("VmHWM:"));
        Self { files, memory_kib, ..scene }
    }

    fn process(&self, what: &str) -> std::path::PathBuf {
        Path::new("/proc").join(self.daemon.process.0.id().to_string()).join(what)
    }

    fn files(&self) -> usize {
        fs::read_dir(self.process("fd")).expect("it lives").count()
    }

    /// A number of its `/proc/…/status`; of memory in KiB.
    fn status(&self, what: &str) -> u64 {
        let status = fs::read_to_string(self.process("status")).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix(what));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.expect("the kernel says it")
    }

    fn check_served(&self) {
        let mut queue = self.client.queue().expect("a queue");
        for _ in 0..100 {
            queue.nop().expect("served");
        }
    }

    fn check_unharmed(&self) {
        self.check_served();
        eventually("only the good client is left", || {
            let files = self.files();
            (self.daemon.number("sessions") == 1 && files <= self.files).then_some(())
        });
        let peak = self.status("VmHWM:");
        assert!(peak < self.memory_kib + GROWTH_KIB, "{peak} KiB, before {} KiB", self.memory_kib);
        // Idle ones end after ten seconds.
        let threads = self.status("Threads:");
        assert!(threads < THREADS, "{threads} threads");
        let log = self.daemon.log();
        assert!(!log.contains("panicked"), "{log}");
    }
}

fn client_socket(daemon: &Daemon) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .expect("a socket");
    let address = SocketAddrUnix::new(daemon.client_socket()).expect("a short path");
    rustix::net::connect(&socket, &address).expect("it listens");
    for side in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, side, Some(PATIENCE)).expect("a timeout");
    }
    socket
}

/// Sends a message that no library would send. The daemon may have hung up already.
fn send(socket: &OwnedFd, message: &[u8], passed: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !passed.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(passed)), "there is space for them");
    }
    let parts = [IoSlice::new(message)];
    let _ = rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL);
}

/// Everything that comes until the daemon hangs up.
fn read_to_end(socket: &OwnedFd) {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    loop {
        match fds::receive(socket, &mut buffer) {
            Ok(_) => {}
            Err(fds::ReceiveFault::Closed) => return,
            Err(fault) => panic!("the daemon does not hang up: {fault}"),
        }
    }
}

fn random_bytes(random: &mut Random, longest: u64) -> Vec<u8> {
    let mut bytes = vec![0; random.length(longest) as usize];
    random.fill(&mut bytes);
    bytes
}

#[test]
fn garbage_at_the_client_socket_harms_nobody() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let scene = Scene::start(&programs, directory.path());
    let null = File::open("/dev/null").expect("there");
    let mut hello = [0; MESSAGE_BYTES_MAX];
    let length = Request::Hello(HELLO).encode(1, &mut hello).expect("it fits");
    let hello = &hello[..length];
    for seed in 0..ROUNDS {
        let mut random = Random::new(seed);
        let socket = client_socket(&scene.daemon);
        // Half of them have a session first.
        if seed % 2 == 0 {
            // It may be turned away: places are free when the sockets before are closed, after
            // their end.
            let _ = fds::send(&socket, hello, &[]);
        }
        let mut message = match seed % 4 {
            // Well-formed, and then bent or cut.
            0 | 1 => hello.to_vec(),
            // Of any length, also longer than a message may be.
            _ => random_bytes(&mut random, 2 * MESSAGE_BYTES_MAX as u64),
        };
        if seed % 4 < 2 {
            message.truncate(random.below(length as u64 + 1) as usize);
            for byte in message.iter_mut().skip(1) {
                if random.below(4) == 0 {
                    *byte = random.below(256) as u8;
                }
            }
        }
        // Descriptors where none belong, also more than any message has.
        let passed = vec![null.as_fd(); random.below(FDS_MAX as u64 + 1) as usize];
        send(&socket, &message, &passed);
        let _ = fds::send(&socket, &[0xff; 3], &[]);
        read_to_end(&socket);
    }
    scene.check_unharmed();
}

#[test]
fn clients_that_say_nothing_or_leave_in_the_middle_harm_nobody() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let scene = Scene::start(&programs, directory.path());
    let mut hello = [0; MESSAGE_BYTES_MAX];
    let length = Request::Hello(HELLO).encode(1, &mut hello).expect("it fits");
    for round in 0..ROUNDS {
        drop(client_socket(&scene.daemon));
        let socket = client_socket(&scene.daemon);
        // It may be turned away: so many come at once.
        let _ = fds::send(&socket, &hello[..length], &[]);
        if round % 2 == 0 {
            // Leaves the Welcome and its memory unread.
            let mut polled = [PollFd::new(&socket, PollFlags::IN)];
            rustix::event::poll(&mut polled, None).expect("an answer, or the end");
        }
        drop(socket);
    }
    scene.check_unharmed();
    let log = scene.daemon.log();
    assert!(!log.contains("faulty message"), "to leave is no fault: {log}");
}

#[test]
fn garbage_at_the_admin_socket_harms_nobody() {
    let Some(programs) = Programs::find() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let scene = Scene::start(&programs, directory.path());
    let connect = || {
        let stream = UnixStream::connect(scene.daemon.admin_socket()).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    };
    // What comes back until the daemon hangs up, which it may do before all is sent.
    let answer = |parts: &mut dyn Iterator<Item = Vec<u8>>| {
        let mut stream = connect();
        for part in parts {
            if stream.write_all(&part).is_err() {
                break;
            }
        }
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer) {
            let hung_up = error.kind() == std::io::ErrorKind::ConnectionReset;
            assert!(hung_up, "the daemon does not hang up: {error}");
        }
        String::from_utf8_lossy(&answer).into_owned()
    };
    for seed in 0..ROUNDS {
        let mut random = Random::new(seed);
        let bytes = random_bytes(&mut random, 4096);
        let said = answer(&mut std::iter::once(bytes));
        assert!(!said.contains(" 200 "), "{seed}: {said}");
    }
    let megabytes = || std::iter::repeat_n(vec![b'x'; 1 << 20], 10);
    let begin = |text: &str| std::iter::once(text.as_bytes().to_vec());
    for (what, said) in [
        ("a long header", answer(&mut begin("GET /v1/status HTTP/1.1\r\nX: ").chain(megabytes()))),
        ("a long path", answer(&mut begin("GET /").chain(megabytes()))),
        ("a long method", answer(&mut megabytes())),
        (
            "a long body",
            answer(
                &mut begin(
                    "PUT /v1/planner HTTP/1.1\r\nHost: p\r\nContent-Length: 10485760\r\n\r\n",
                )
                .chain(megabytes()),
            ),
        ),
        (
            "a chunk without end",
            answer(
                &mut begin(
                    "PUT /v1/planner HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\n\r\n\
                     ffffffffffffffff\r\n",
                )
                .chain(megabytes()),
            ),
        ),
        (
            "a negative length",
            answer(&mut begin("PUT /v1/planner HTTP/1.1\r\nContent-Length: -1\r\n\r\n")),
        ),
        ("TLS", answer(&mut begin("\u{16}\u{3}\u{1}\u{2}\0\u{1}\0"))),
    ] {
        assert!(!said.contains(" 200 "), "{what}: {said}");
    }
    // Half a request each, held open: operators are still served when some of them go.
    let mut idle: Vec<UnixStream> = Vec::new();
    for _ in 0..16 {
        let mut stream = connect();
        stream.write_all(b"GET /v1/status HTTP/1.1\r\nHo").expect("sent");
        idle.push(stream);
    }
    assert_eq!(scene.daemon.number("sessions"), 1);
    drop(idle);
    scene.check_unharmed();
}
