//! Ways to die and to attack. Each runs from its Hello to its end, whatever the daemon says.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use piped_client::{ClientBuilder, OpenOptions, Request as Ask};
use piped_core::access::{Access, Creation};
use piped_ring::handshake::{Hello, MESSAGE_BYTES_MAX, Request};
use piped_ring::testing::{Word, abuse_memory, punch};
use piped_ring::{CompletionKind, Descriptor, Opcode};
use piped_sim::Random;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::{Attacker, FDS_MAX, HELLO, connect, read_to_end, send_raw};
use crate::process::{BLOCKS_BYTES, Daemon, Running, eventually, itself};

/// The environment variable that tells a process that it is to be killed, and what it talks to.
pub const VICTIM: &str = "SYSTEM_TESTS_VICTIM";

/// What an attacker may open.
#[derive(Debug)]
pub struct Targets {
    /// A local file that the attacker may open.
    pub file: PathBuf,
    /// The name of an `#[ignore]`d test of the running program that calls [`victim`].
    pub victim: &'static str,
}

/// A way in which an attacker misuses its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abuse {
    /// The attacker is killed (SIGKILL) with transfers of all kinds under way.
    Killed,
    /// Any word of its queue is anything.
    Indices,
    /// Descriptors that no library writes.
    Descriptors,
    /// The queue's pages are gone.
    QueueHoles,
    /// The arena's pages go while transfers run in them.
    ArenaHoles,
    /// Buffers are rewritten while they are sent.
    Rewriter,
    /// Everything a process can do to a memfd that it was passed.
    Memory,
    /// The attacker sends requests and takes no completion.
    NeverReaps,
    /// The attacker rings its doorbell again and again without requests.
    RingsWithoutEnd,
    /// Descriptors that are no files, or not open for what they are to be used for.
    WrongFiles,
    /// Long messages, many descriptors, large numbers.
    Oversized,
    /// Opens and closes one after the other, answers unread.
    Flood,
}

impl Abuse {
    /// All ways, in the order of the enum.
    pub const ALL: [Self; 12] = [
        Self::Killed,
        Self::Indices,
        Self::Descriptors,
        Self::QueueHoles,
        Self::ArenaHoles,
        Self::Rewriter,
        Self::Memory,
        Self::NeverReaps,
        Self::RingsWithoutEnd,
        Self::WrongFiles,
        Self::Oversized,
        Self::Flood,
    ];

    /// Does it once, at a daemon that has a peer `beta`.
    ///
    /// # Panics
    /// If the daemon hangs, or lets in what it must not.
    pub fn run(self, daemon: &Daemon, targets: &Targets, random: &mut Random) {
        match self {
            Self::Killed => killed(daemon, targets, random),
            Self::Indices => indices(daemon, random),
            Self::Descriptors => descriptors(daemon, targets, random),
            Self::QueueHoles => queue_holes(daemon),
            Self::ArenaHoles => arena_holes(daemon, targets, random),
            Self::Rewriter => rewriter(daemon),
            Self::Memory => memory(daemon),
            Self::NeverReaps => never_reaps(daemon),
            Self::RingsWithoutEnd => rings_without_end(daemon, random),
            Self::WrongFiles => wrong_files(daemon, targets),
            Self::Oversized => oversized(daemon, random),
            Self::Flood => flood(daemon, targets, random),
        }
    }
}

/// A process with 64 requests under way, killed while they are.
fn killed(daemon: &Daemon, targets: &Targets, random: &mut Random) {
    let mut command = itself(targets.victim);
    command.env(VICTIM, daemon.client_socket()).env("VICTIM_FILE", &targets.file);
    command.env("VICTIM_KIND", random.below(3).to_string());
    command.stderr(Stdio::null());
    let mut process = Running(command.spawn().expect("started"));
    let output = BufReader::new(process.0.stdout.take().expect("piped"));
    let works = output.lines().map_while(Result::ok).any(|line| line.ends_with("it works"));
    assert!(works, "the victim ended by itself: {}", daemon.log());
    process.signal(rustix::process::Signal::KILL);
    process.exit();
}

/// The life of one that is to be killed. Nothing, if this is no such process.
///
/// # Panics
/// If it is not served.
pub fn victim() {
    let Some(socket) = std::env::var_os(VICTIM) else { return };
    let builder = ClientBuilder::new().arena_bytes(16 << 20).depth(64);
    let client = builder.connect(Path::new(&socket)).expect("a place");
    let mut queue = client.queue().expect("a queue");
    let remote = || client.open_export(Some("beta"), "data", "blocks", OpenOptions::read());
    let (from, to) = match std::env::var("VICTIM_KIND").as_deref() {
        Ok("0") => {
            let file = std::env::var_os("VICTIM_FILE").expect("its file");
            (client.open_file(file, OpenOptions::read()).expect("there"), None)
        }
        Ok("1") => (remote().expect("there"), None),
        _ => {
            let options = OpenOptions::write().create(true);
            let to = client.open_export(Some("beta"), "data", "victim", options);
            (remote().expect("there"), Some(to.expect("made")))
        }
    };
    let mut done = 0;
    loop {
        while queue.underway() < 64 {
            let buffer = client.allocate(BLOCKS_BYTES / 64).expect("memory");
            let at = done % 64 * (BLOCKS_BYTES / 64) as u64;
            let request = match &to {
                Some(to) if done % 2 == 0 => Ask::write(to, at, buffer),
                _ => Ask::read(&from, at, buffer),
            };
            queue.submit_detached(request).expect("room");
        }
        queue.flush();
        let _ = queue.wait(Some(Duration::from_secs(1)));
        done += 1;
        if done == 100 {
            println!("it works");
            std::io::stdout().flush().expect("told");
        }
    }
}

fn indices(daemon: &Daemon, random: &mut Random) {
    let attacker = Attacker::connect(daemon);
    let word = Word::ALL[random.below(Word::ALL.len() as u64) as usize];
    attacker.raw.set(word, random.below(u64::MAX));
    // Whatever that was, this cannot be: the ring holds 64.
    let ahead = 1 + u64::from(HELLO.entries) + random.below(1 << 40);
    attacker
        .raw
        .set(Word::SubmissionTail, attacker.raw.get(Word::SubmissionHead).wrapping_add(ahead));
    ring_bell(attacker.raw.to_daemon());
    attacker.await_end();
}

/// A read handle for the local file and one for beta's, both read only.
fn open_both(attacker: &Attacker, targets: &Targets) -> [u32; 2] {
    let file = File::open(&targets.file).expect("there");
    let open = Request::OpenFile { access: Access::READ, direct: false };
    let local = attacker.open(&open, &[file.as_fd()]).expect("a regular file");
    let remote =
        attacker.open(&export("blocks", Access::READ, Creation::No), &[]).expect("exported");
    [local, remote]
}

fn export(path: &str, access: Access, create: Creation) -> Request {
    let (peer, export) = ("beta".to_owned(), "data".to_owned());
    Request::OpenExport { peer, export, path: path.into(), access, create }
}

fn descriptors(daemon: &Daemon, targets: &Targets, random: &mut Random) {
    let mut attacker = Attacker::connect(daemon);
    let handles = open_both(&attacker, targets);
    for _ in 0..8 {
        let all: Vec<Descriptor> = (0..32).map(|_| garbage(handles, random)).collect();
        let count = attacker.submit(all);
        // Each ends, and none is the daemon's end. Some are held and released later.
        let _ = attacker.reap(count.min(1));
    }
}

/// Anything at all; or nearly right, so that it gets further.
fn garbage(handles: [u32; 2], random: &mut Random) -> Descriptor {
    if random.below(2) == 0 {
        return Descriptor::from_words(std::array::from_fn(|_| random.below(u64::MAX)));
    }
    let [length, deadline] = [40, 34].map(|bits| 1_u64 << random.below(bits));
    Descriptor {
        handle_a: handles[random.below(2) as usize],
        handle_b: random.below(4) as u32,
        offset_a: random.below(2 * BLOCKS_BYTES as u64),
        buffer_offset: random.below(5 << 20),
        segment: random.below(8).saturating_sub(6) as u32,
        length: random.below(length),
        slot: random.below(80) as u32,
        opcode: random.below(Opcode::ALL.len() as u64) as u8,
        // Over before anything begins, among others.
        deadline_ns: random.below(deadline),
        ..Descriptor::new(Opcode::Nop, random.below(u64::MAX))
    }
}

fn queue_holes(daemon: &Daemon) {
    let mut attacker = Attacker::connect(daemon);
    // Past the index 0, which is where zeros seem to be.
    let nops = u64::from(HELLO.entries) / 2;
    attacker.submit((0..nops).map(|number| Descriptor::new(Opcode::Nop, number)));
    let _ = attacker.reap(nops);
    attacker.raw.punch().expect("holes may be punched into a memfd");
    ring_bell(attacker.raw.to_daemon());
    attacker.await_end();
}

fn arena_holes(daemon: &Daemon, targets: &Targets, random: &mut Random) {
    let mut attacker = Attacker::connect(daemon);
    let handles = open_both(&attacker, targets);
    for round in 0..4 {
        let read = |number: u64| Descriptor {
            handle_a: handles[number as usize % 2],
            offset_a: number * 65_536,
            buffer_offset: number * 65_536,
            length: 65_536,
            slot: number as u32,
            ..Descriptor::new(Opcode::Read, number)
        };
        let count = attacker.submit((0..32).map(read));
        for _ in 0..32 {
            punch(attacker.arena.fd(), random.below(1020) * 4096, 4 * 4096).expect("a hole");
        }
        if round < 3 {
            let _ = attacker.reap(count);
        }
    }
}

/// Writes to a file of its own at the peer, from memory that never stands still.
fn rewriter(daemon: &Daemon) {
    let mut attacker = Attacker::connect(daemon);
    let target =
        attacker.open(&export("rewritten", Access::READ_WRITE, Creation::OPEN), &[]).expect("made");
    rewrite(&mut attacker, target, 2);
}

/// Writes of 1 MiB, rewritten meanwhile by another thread. They end, well or not.
///
/// # Panics
/// If they do not end.
pub fn rewrite(attacker: &mut Attacker, target: u32, rounds: u32) {
    const STRIP: usize = 64 << 10;
    let over = AtomicBool::new(false);
    let Attacker { arena, ring, .. } = attacker;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_usize;
            while !over.load(Ordering::Relaxed) {
                let at = round * STRIP % (4 << 20);
                arena.store(at as u64, &[round as u8; STRIP]).expect("inside");
                // Each sweep writes something else than the one before.
                round += 1 + usize::from(at == 0);
            }
        });
        // Also if this panics: the scope waits for its thread.
        let _end = SetAtEnd(&over);
        for _ in 0..rounds {
            for number in 0..4 {
                let write = Descriptor {
                    handle_a: target,
                    offset_a: number << 20,
                    buffer_offset: number << 20,
                    length: 1 << 20,
                    slot: number as u32,
                    ..Descriptor::new(Opcode::Write, number)
                };
                ring.submit(write).expect("room");
            }
            ring.flush();
            let mut ended = 0;
            eventually("all end", || {
                // Some end while the lane still has them, and are released later.
                let entries = std::iter::from_fn(|| ring.reap());
                ended += entries.filter(|it| it.kind != CompletionKind::Released as u8).count();
                (ended == 4).then_some(())
            });
            ring.flush();
        }
    });
}

struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn memory(daemon: &Daemon) {
    let mut attacker = Attacker::connect(daemon);
    for memory in [attacker.arena.fd(), attacker.raw.memory()] {
        let length = rustix::fs::fstat(memory).expect("a file").st_size as u64;
        let done = abuse_memory(memory, length);
        assert!(!done.resized && !done.resealed, "{done:?}");
    }
    let nop = Descriptor::new(Opcode::Nop, 1);
    attacker.submit([nop]);
    let _ = attacker.reap(1);
}

fn never_reaps(daemon: &Daemon) {
    let mut attacker = Attacker::connect(daemon);
    // Until both rings are full and stay so: completions are not given back.
    for _ in 0..8 {
        let nops = (0..64).map(|number| Descriptor::new(Opcode::Nop, number));
        attacker.submit(nops);
        ring_bell(attacker.raw.to_daemon());
    }
}

fn rings_without_end(daemon: &Daemon, random: &mut Random) {
    let attacker = Attacker::connect(daemon);
    for _ in 0..20_000 {
        ring_bell(attacker.raw.to_daemon());
        if random.below(100) == 0 {
            // It says that it sleeps, as if there were somebody to be woken.
            attacker.raw.set(Word::ClientAsleep, 1);
        }
    }
}

fn ring_bell(bell: BorrowedFd<'_>) {
    // A full counter rings already.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

/// Descriptors with what is to be done with them; none can be.
#[must_use]
pub fn wrong_files_of(targets: &Targets) -> Vec<(&'static str, OwnedFd, Access)> {
    let open = |path: &Path, flags: OFlags| {
        rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).expect("it can be opened")
    };
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let family = AddressFamily::UNIX;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
    let file = targets.file.as_path();
    let directory = file.parent().expect("it lies somewhere");
    let (read, write) = (Access::READ, Access::WRITE);
    vec![
        ("a directory", open(directory, OFlags::RDONLY), read),
        ("the reading end of a pipe", reader, read),
        ("the writing end of a pipe", writer, write),
        ("a socket", socket.expect("a socket"), read),
        ("an eventfd", eventfd.expect("an eventfd"), Access::READ_WRITE),
        ("an epoll", epoll.expect("an epoll"), read),
        ("a place (O_PATH)", open(file, OFlags::PATH), read),
        ("a file for writing, to be read", open(file, OFlags::WRONLY), read),
        ("a file for reading, to be written", open(file, OFlags::RDONLY), write),
        ("a file for appending", open(file, OFlags::WRONLY | OFlags::APPEND), write),
        ("a device", open(Path::new("/dev/zero"), OFlags::RDWR), Access::READ_WRITE),
        ("a file without waiting", open(file, OFlags::RDONLY | OFlags::NONBLOCK), read),
        ("a direct file alone", open(file, OFlags::RDONLY | OFlags::DIRECT), read),
    ]
}

/// Regular files of file systems in which the kernel makes up what is read, or acts on what is
/// written, as whoever reads and writes; of those that this machine has. `pid`: a process whose own
/// such file is among them.
///
/// # Panics
/// If not even procfs is there.
#[must_use]
pub fn made_up_files(pid: u32) -> Vec<(String, OwnedFd, Access)> {
    let paths = [
        // Anybody may open it; the addresses in it are for whoever may trace the process when it is
        // read.
        format!("/proc/{pid}/stat"),
        "/proc/self/maps".to_owned(),
        "/proc/kallsyms".to_owned(),
        "/proc/self/comm".to_owned(),
        "/proc/self/coredump_filter".to_owned(),
        "/sys/kernel/mm/transparent_hugepage/enabled".to_owned(),
        "/sys/kernel/notes".to_owned(),
        "/sys/fs/cgroup/cgroup.procs".to_owned(),
        "/sys/fs/cgroup/unified/cgroup.procs".to_owned(),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned(),
        "/sys/kernel/debug/sched/features".to_owned(),
        "/sys/kernel/tracing/tracing_on".to_owned(),
        "/sys/kernel/security/lsm".to_owned(),
        "/proc/self/ns/mnt".to_owned(),
    ];
    let mut files = Vec::new();
    for path in paths {
        let ways = [
            (OFlags::RDONLY, Access::READ),
            (OFlags::WRONLY, Access::WRITE),
            (OFlags::RDWR, Access::READ_WRITE),
        ];
        for (flags, access) in ways {
            let file = rustix::fs::open(path.as_str(), flags | OFlags::CLOEXEC, Mode::empty());
            if let Ok(file) = file {
                files.push((format!("{path} for {access:?}"), file, access));
            }
        }
    }
    let written = files.iter().filter(|(.., access)| access.write).count();
    assert!(written > 0 && written < files.len(), "some to read and some to write: {files:?}");
    files
}

fn wrong_files(daemon: &Daemon, targets: &Targets) {
    let attacker = Attacker::connect(daemon);
    for (what, file, access) in made_up_files(daemon.process.0.id()) {
        let open = Request::OpenFile { access, direct: false };
        assert!(attacker.open(&open, &[file.as_fd()]).is_err(), "{what} was taken");
    }
    for (what, file, access) in wrong_files_of(targets) {
        let open = Request::OpenFile { access, direct: false };
        let opened = attacker.open(&open, &[file.as_fd()]);
        assert!(opened.is_err(), "{what} was taken");
    }
}

fn oversized(daemon: &Daemon, random: &mut Random) {
    let socket = connect(daemon);
    let null = File::open("/dev/null").expect("there");
    let mut hello = [0; MESSAGE_BYTES_MAX];
    match random.below(4) {
        0 => send_raw(
            &socket,
            &vec![0xff; MESSAGE_BYTES_MAX + 1 + random.below(60_000) as usize],
            &[],
        ),
        1 => send_raw(&socket, &[1; 64], &vec![null.as_fd(); FDS_MAX]),
        2 => {
            let absurd =
                Hello { arena_bytes: u64::MAX, entries: 1 << 31, queues: u32::MAX, ..HELLO };
            let length = Request::Hello(absurd).encode(1, &mut hello).expect("it fits");
            send_raw(&socket, &hello[..length], &[]);
        }
        _ => {
            // With a session first.
            let attacker = Attacker::connect(daemon);
            send_raw(&attacker.socket, &[0xff; 100], &vec![null.as_fd(); FDS_MAX]);
            attacker.await_end();
        }
    }
    // It may be at a place for handshakes until the daemon has said no.
    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Write);
    read_to_end(&socket);
}

fn flood(daemon: &Daemon, targets: &Targets, random: &mut Random) {
    let attacker = Attacker::connect(daemon);
    let file = File::open(&targets.file).expect("there");
    let mut message = [0; MESSAGE_BYTES_MAX];
    for number in 0..200 {
        let (request, files) = match random.below(3) {
            0 => (Request::CloseHandle { handle: random.below(200) as u32 }, vec![]),
            _ => (Request::OpenFile { access: Access::READ, direct: false }, vec![file.as_fd()]),
        };
        let length = request.encode(number, &mut message).expect("it fits");
        send_raw(&attacker.socket, &message[..length], &files);
        if random.below(3) == 0 {
            let mut answer = [0; MESSAGE_BYTES_MAX];
            let _ = piped_ring::handshake::fds::receive(&attacker.socket, &mut answer);
        }
    }
}
