//! A real daemon in this process, in a directory of its own, and a client that speaks the handshake
//! by itself, so that it can also speak it wrongly.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod peer;

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use piped::{Daemon, DaemonError, Stopper};
use piped_config::{Config, Sources, Spin, load};
use piped_core::status::Status;
use piped_ring::handshake::{
    FDS_PER_QUEUE, Hello, MESSAGE_BYTES_MAX, Reply, Request, Welcome, fds,
};
use piped_ring::{ClientQueue, CompletionEntry, Descriptor, QueueFds, Segment};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Longer than anything takes; only a test that fails waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(2);

/// Asks again and again until there is an answer.
pub(crate) fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    for _ in 0..PATIENCE.as_millis() / STEP.as_millis() {
        if let Some(value) = poll() {
            return value;
        }
        pause();
    }
    panic!("not in {PATIENCE:?}: {what}");
}

#[expect(clippy::disallowed_methods, reason = "the one pause of the tests")]
pub(crate) fn pause() {
    std::thread::sleep(STEP);
}

/// A running daemon; stopped when dropped.
pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) config: Config,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), DaemonError>>>,
}

/// A configuration whose sockets are in `dir`.
pub(crate) fn config_in(dir: &Path) -> Config {
    let mut config = Config::default();
    config.node.name = "alpha".to_owned();
    config.client.socket = dir.join("client.sock");
    config.admin.socket = dir.join("admin.sock");
    config.client.arena_bytes_max = piped_config::Bytes::mib(8);
    config.limits.global.staging = piped_config::Bytes::mib(8);
    // Many daemons on few CPUs: none of them shall stay on one or spin.
    config.shards.pin = false;
    config.shards.spin = Spin::For(piped_config::Period::seconds(0));
    config
}

impl World {
    pub(crate) fn start(change: impl FnOnce(&Path, &mut Config)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = config_in(dir.path());
        change(dir.path(), &mut config);
        config.validate().expect("a valid configuration");
        let daemon = Daemon::new(config.clone());
        Self::run(dir, config, daemon)
    }

    /// With the sockets and the limits of [`config_in`], and a file with `text`.
    pub(crate) fn from_file(text: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("piped.toml");
        std::fs::write(&file, text).expect("written");
        let config = config_in(dir.path());
        let overrides = vec![
            format!("client.socket={}", config.client.socket.display()),
            format!("admin.socket={}", config.admin.socket.display()),
            "limits.global.staging=4MiB".to_owned(),
            "shards.pin=false".to_owned(),
            "shards.spin=0s".to_owned(),
        ];
        let sources = Sources { file: Some(file), env: Vec::new(), overrides };
        let loaded = load(&sources).expect("a valid configuration");
        let config = loaded.config.clone();
        Self::run(dir, config, Daemon::reloading(loaded, sources, None))
    }

    /// Puts another text into the file.
    pub(crate) fn rewrite(&self, text: &str) {
        std::fs::write(self.path("piped.toml"), text).expect("written");
    }

    fn run(dir: tempfile::TempDir, config: Config, daemon: Daemon) -> Self {
        let stopper = daemon.stopper();
        let thread = std::thread::spawn(move || daemon.run());
        let mut world = Self { dir, config, stopper, thread: Some(thread) };
        eventually("the daemon opens its doors", || {
            if world.thread.as_ref().is_some_and(JoinHandle::is_finished) {
                panic!("the daemon did not start: {:?}", world.end());
            }
            UnixStream::connect(&world.config.admin.socket).ok()
        });
        world
    }

    /// Stops it, and says how it ended.
    pub(crate) fn stop(mut self) -> Result<(), DaemonError> {
        self.stopper.stop();
        self.end()
    }

    fn end(&mut self) -> Result<(), DaemonError> {
        let thread = self.thread.take().expect("it ends once");
        thread.join().expect("the daemon does not panic")
    }

    /// Does something as a user that no list names, on a thread of its own. `None`, with the reason
    /// printed, where nobody may become another user.
    pub(crate) fn as_stranger<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Option<T> {
        use rustix::process::{Gid, Uid};
        use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.dir.path(), open).expect("ours");
        let (uid, gid) = (Uid::from_raw(4_000_000), Gid::from_raw(4_000_000));
        let become_it = move || {
            set_thread_groups(&[])?;
            set_thread_res_gid(gid, gid, gid)?;
            set_thread_res_uid(uid, uid, uid)
        };
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| match become_it() {
                Ok(()) => Some(work()),
                Err(error) => {
                    eprintln!("skipped: only root can be another user ({error})");
                    None
                }
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A raw client socket.
    pub(crate) fn connect(&self) -> Socket {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .expect("a socket");
        let address = SocketAddrUnix::new(&self.config.client.socket).expect("a short path");
        rustix::net::connect(&socket, &address).expect("the daemon listens");
        let timeout = Some(PATIENCE);
        rustix::net::sockopt::set_socket_timeout(
            &socket,
            rustix::net::sockopt::Timeout::Recv,
            timeout,
        )
        .expect("a timeout");
        Socket(socket)
    }

    /// A client with a session.
    pub(crate) fn client(&self, hello: Hello) -> Client {
        let socket = self.connect();
        let (reply, fds) = socket.ask(&Request::Hello(hello), &[]);
        let Reply::Welcome(welcome) = reply else { panic!("no Welcome: {reply:?}") };
        Client::new(socket, welcome, fds)
    }

    /// One HTTP request to the admin API: the status, and the body as JSON.
    pub(crate) fn http(&self, method: &str, path: &str, body: &str) -> (u16, serde_json::Value) {
        let mut stream = UnixStream::connect(&self.config.admin.socket).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: piped\r\nConnection: close\r\nContent-Length: \
             {}\r\n\r\n{body}",
            body.len()
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        (status, serde_json::from_str(body).expect("JSON"))
    }

    pub(crate) fn sessions(&self) -> usize {
        let (status, body) = self.http("GET", "/v1/clients", "");
        assert_eq!(status, 200);
        body["clients"].as_array().expect("a list").len()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) const HELLO: Hello =
    Hello { features: 0, arena_bytes: 1 << 20, entries: 64, queues: 1, weight: 0, class: 0 };

/// A socket to the client door.
pub(crate) struct Socket(pub(crate) OwnedFd);

impl Socket {
    pub(crate) fn send(&self, message: &[u8], passed: &[BorrowedFd<'_>]) {
        fds::send(&self.0, message, passed).expect("sent");
    }

    /// `None`: the daemon hung up.
    pub(crate) fn receive(&self) -> Option<(u32, Reply, Vec<OwnedFd>)> {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        match fds::receive(&self.0, &mut buffer) {
            Ok(received) => {
                let (sequence, reply) =
                    Reply::parse(&buffer[..received.length]).expect("a well-formed reply");
                reply.check_fds(&received.fds).expect("as many as it says");
                Some((sequence, reply, received.fds))
            }
            Err(fds::ReceiveFault::Closed) => None,
            Err(fault) => panic!("{fault}"),
        }
    }

    /// Whether something is there to be received.
    pub(crate) fn has_mail(&self) -> bool {
        let mut wanted = [PollFd::new(&self.0, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut wanted, Some(&now)).expect("poll") > 0
    }

    pub(crate) fn ask(
        &self,
        request: &Request,
        passed: &[BorrowedFd<'_>],
    ) -> (Reply, Vec<OwnedFd>) {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let length = request.encode(77, &mut buffer).expect("it fits");
        self.send(&buffer[..length], passed);
        let (sequence, reply, fds) = self.receive().expect("an answer");
        assert_eq!(sequence, 77, "the sequence number comes back");
        (reply, fds)
    }
}

/// A client with a session.
pub(crate) struct Client {
    pub(crate) socket: Socket,
    pub(crate) welcome: Welcome,
    pub(crate) segments: Vec<Segment>,
    pub(crate) queues: Vec<ClientQueue>,
}

impl Client {
    fn new(socket: Socket, welcome: Welcome, fds: Vec<OwnedFd>) -> Self {
        let mut fds = fds.into_iter();
        let segments = fds.by_ref().take(welcome.segments as usize);
        let segments = segments.map(|fd| Segment::from_fd(fd).expect("memory")).collect();
        let mut fds: Vec<OwnedFd> = fds.collect();
        assert_eq!(fds.len(), FDS_PER_QUEUE * welcome.queues as usize);
        let queues = (0..welcome.queues).map(|_| attach(fds.drain(..FDS_PER_QUEUE))).collect();
        Self { socket, welcome, segments, queues }
    }

    pub(crate) fn ask(
        &self,
        request: &Request,
        passed: &[BorrowedFd<'_>],
    ) -> (Reply, Vec<OwnedFd>) {
        self.socket.ask(request, passed)
    }

    /// Opens something that can be opened.
    pub(crate) fn open(&self, request: &Request, passed: &[BorrowedFd<'_>]) -> u32 {
        match self.ask(request, passed).0 {
            Reply::Opened { handle, .. } => handle,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    /// Tries to open something that cannot be opened.
    pub(crate) fn refused(&self, request: &Request) -> (Status, String) {
        match self.ask(request, &[]).0 {
            Reply::Refused { status, message } => (status, message),
            other => panic!("{request:?}: {other:?}"),
        }
    }

    /// Submits one request and waits for its completion.
    pub(crate) fn run(&mut self, descriptor: Descriptor) -> CompletionEntry {
        run(&mut self.queues[0], descriptor)
    }
}

/// A queue from its three descriptors.
pub(crate) fn attach(mut fds: impl Iterator<Item = OwnedFd>) -> ClientQueue {
    let mut next = || fds.next().expect("three");
    let fds = QueueFds { memory: next(), to_daemon: next(), to_client: next() };
    ClientQueue::attach(fds).expect("a queue")
}

/// Submits one request and waits for its completion.
pub(crate) fn run(queue: &mut ClientQueue, descriptor: Descriptor) -> CompletionEntry {
    queue.submit(descriptor).expect("room");
    queue.flush();
    loop {
        if let Some(entry) = queue.reap() {
            return entry;
        }
        assert!(queue.wait(Some(PATIENCE)).is_ok(), "the daemon is there");
    }
}

/// The descriptors of files, for passing.
pub(crate) fn passed<const N: usize>(files: [&std::fs::File; N]) -> [BorrowedFd<'_>; N] {
    files.map(|file| file.as_fd())
}
