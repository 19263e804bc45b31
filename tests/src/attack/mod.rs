//! Clients that keep to nothing, and what they leave behind: [`Attacker`] speaks the handshake by
//! itself and holds the raw memory of its queue; [`Abuse`] are the ways to die or to attack;
//! [`Footprint`] is what the kernel and the daemon say of the daemon.

mod abuse;
mod footprint;
mod neighbour;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use piped_core::status::Status;
use piped_ring::handshake::{FDS_PER_QUEUE, Hello, MESSAGE_BYTES_MAX, Reply, Request, fds};
use piped_ring::testing::HostileClient;
use piped_ring::{ClientQueue, CompletionKind, Descriptor, QueueFds, QueueLayout, Segment};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

pub use self::abuse::{Abuse, Targets, VICTIM, made_up_files, rewrite, victim, wrong_files_of};
pub use self::footprint::{Footprint, memory_kib};
pub use self::neighbour::{Neighbour, Served};
use crate::process::{Daemon, PATIENCE, eventually};

/// What an attacker asks for in its Hello.
pub const HELLO: Hello =
    Hello { features: 0, arena_bytes: 4 << 20, entries: 64, queues: 1, weight: 0, class: 0 };

/// What the kernel passes with one message at most.
pub const FDS_MAX: usize = fds::FDS_RECEIVED_MAX;

/// A session whose rings and memory the test accesses directly.
#[derive(Debug)]
pub struct Attacker {
    /// The connection to the daemon.
    pub socket: OwnedFd,
    /// The memory that the attacker shares with the daemon.
    pub arena: Segment,
    /// The queue, as an honest client uses it.
    pub ring: ClientQueue,
    /// The queue's memory, to write anything into it.
    pub raw: HostileClient,
}

impl Attacker {
    /// A session with [`HELLO`].
    ///
    /// # Panics
    /// If the daemon does not give it one.
    #[must_use]
    pub fn connect(daemon: &Daemon) -> Self {
        // Places are free only when those who were there before are gone entirely.
        eventually("the daemon has a place", || Self::try_connect(daemon, HELLO).ok())
    }

    /// A session, or the refusal.
    ///
    /// # Errors
    /// What the daemon says.
    ///
    /// # Panics
    /// If it says something that is no answer.
    pub fn try_connect(daemon: &Daemon, hello: Hello) -> Result<Self, String> {
        let socket = connect(daemon);
        let (reply, mut fds) =
            ask(&socket, &Request::Hello(hello), &[]).ok_or_else(|| "hung up".to_owned())?;
        match reply {
            Reply::Welcome(welcome) if welcome.segments == 1 && welcome.queues == 1 => {}
            other => return Err(format!("{other:?}")),
        }
        assert_eq!(fds.len(), 1 + FDS_PER_QUEUE);
        let arena = Segment::from_fd(fds.remove(0)).expect("a sealed memfd");
        let attach = || {
            let mut copies = fds.iter().map(|fd| fd.try_clone().expect("a descriptor is free"));
            let mut next = || copies.next().expect("three");
            QueueFds { memory: next(), to_daemon: next(), to_client: next() }
        };
        let layout = QueueLayout::new(hello.entries).expect("as granted");
        let raw = HostileClient::attach(attach(), layout).expect("the queue's memory");
        let ring = ClientQueue::attach(attach()).expect("a queue");
        Ok(Self { socket, arena, ring, raw })
    }

    /// Asks the daemon over the socket; `None` if it hung up.
    #[must_use]
    pub fn ask(&self, request: &Request, passed: &[BorrowedFd<'_>]) -> Option<Reply> {
        ask(&self.socket, request, passed).map(|(reply, _)| reply)
    }

    /// A handle, or the refusal.
    ///
    /// # Errors
    /// What the daemon says.
    ///
    /// # Panics
    /// If it says something that is no answer to this.
    pub fn open(
        &self,
        request: &Request,
        passed: &[BorrowedFd<'_>],
    ) -> Result<u32, (Status, String)> {
        match self.ask(request, passed) {
            Some(Reply::Opened { handle, .. }) => Ok(handle),
            Some(Reply::Refused { status, message }) => Err((status, message)),
            other => panic!("{request:?}: {other:?}"),
        }
    }

    /// Submits what fits, and rings.
    pub fn submit(&mut self, descriptors: impl IntoIterator<Item = Descriptor>) -> u64 {
        let mut count = 0;
        for descriptor in descriptors {
            if self.ring.submit(descriptor).is_err() {
                break;
            }
            count += 1;
        }
        self.ring.flush();
        count
    }

    /// The statuses of so many completions.
    ///
    /// # Panics
    /// If they do not come.
    #[must_use]
    pub fn reap(&mut self, count: u64) -> Vec<Status> {
        let mut statuses = Vec::new();
        eventually("all complete", || {
            while let Some(entry) = self.ring.reap() {
                if entry.kind == CompletionKind::Released as u8 {
                    continue;
                }
                statuses.push(Status::from_u16(entry.status).expect("a status"));
            }
            (statuses.len() as u64 >= count).then_some(())
        });
        self.ring.flush();
        statuses
    }

    /// Waits until the daemon hangs up.
    ///
    /// # Panics
    /// If it does not.
    pub fn await_end(&self) {
        read_to_end(&self.socket);
    }
}

/// A socket to the client door.
///
/// # Panics
/// If nobody listens.
#[must_use]
pub fn connect(daemon: &Daemon) -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("a socket");
    let address = SocketAddrUnix::new(daemon.client_socket()).expect("a short path");
    rustix::net::connect(&socket, &address).expect("it listens");
    for side in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, side, Some(PATIENCE)).expect("a timeout");
    }
    socket
}

/// Asks, and takes the answer; `None` if the daemon hung up.
///
/// # Panics
/// If the answer is none of the protocol's.
#[must_use]
pub fn ask(
    socket: &OwnedFd,
    request: &Request,
    passed: &[BorrowedFd<'_>],
) -> Option<(Reply, Vec<OwnedFd>)> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let length = request.encode(7, &mut buffer).expect("it fits");
    fds::send(socket, &buffer[..length], passed).ok()?;
    match fds::receive(socket, &mut buffer) {
        Ok(received) => {
            let (_, reply) = Reply::parse(&buffer[..received.length]).expect("a reply");
            Some((reply, received.fds))
        }
        Err(fds::ReceiveFault::Closed) => None,
        Err(fault) => panic!("no answer: {fault}"),
    }
}

/// Sends a message that no library would send. The daemon may have hung up already.
///
/// # Panics
/// For more descriptors than [`FDS_MAX`].
pub fn send_raw(socket: &OwnedFd, message: &[u8], passed: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !passed.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(passed)), "there is space for them");
    }
    let parts = [IoSlice::new(message)];
    let mut send = || rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL);
    if passed.is_empty() {
        let _ = send();
        return;
    }
    // From Linux 6.16 on nothing is passed before the connection has a place.
    eventually("descriptors may be passed", || (send() != Err(Errno::PERM)).then_some(()));
}

/// Takes everything that comes until the daemon hangs up.
///
/// # Panics
/// If it does not hang up.
pub fn read_to_end(socket: &OwnedFd) {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    loop {
        match fds::receive(socket, &mut buffer) {
            Ok(_) => {}
            Err(fds::ReceiveFault::Closed) => return,
            Err(fault) => panic!("the daemon does not hang up: {fault}"),
        }
    }
}
