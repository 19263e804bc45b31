//! The control socket: questions and answers that may be slow, from several threads at once.
//!
//! Every question has a number that its answer repeats. So a thread that waits for a peer to be
//! dialled does not hold up one that opens a local file. The library has no thread for reading. Of
//! the threads that wait, one reads and puts the answers of the others into their boxes; when it
//! has its own, the next one reads. There are as many boxes as threads that wait.
//!
//! Tasks ask without waiting ([`asked`]): whoever reads wakes them.

#[cfg(feature = "async")]
mod asked;
mod mail;
#[cfg(feature = "async")]
mod watched;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use piped_ring::handshake::fds::{self, ReceiveFault};
use piped_ring::handshake::{
    FEATURE_LENDING, FEATURE_NAPS, FEATURE_PATH_COSTS, MESSAGE_BYTES_MAX, Reply, Request,
};
use piped_text::shown;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, getpid};

#[cfg(feature = "async")]
pub(crate) use self::asked::Asked;
use self::mail::{Gone, Mail};
#[cfg(feature = "async")]
pub(crate) use self::watched::Watched;
use crate::clock;
use crate::error::SessionError;

/// An answer with what came along.
pub(crate) type Answer = (Reply, Vec<OwnedFd>);

#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
    /// The process that connected. A forked one shares the socket with it, and would take its
    /// answers and close its handles.
    process: Pid,
    timeout_ns: AtomicU64,
    /// Features beyond the first version that both sides have: `FEATURE_*`; 0 before the Welcome.
    features: AtomicU64,
    /// The next question's number; held while sending, so that numbers go out in order.
    next: Mutex<u32>,
    mail: Mutex<Mail>,
    arrived: Condvar,
    /// What is to be told when the socket has room.
    owed: Mutex<Vec<Request>>,
    /// Runtimes that call when there is something to read: telling does not wait then.
    watches: AtomicU32,
}

/// How a message is sent where the socket has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Waits until there is room.
    Waits,
    /// Leaves the message unsent then.
    AtOnce,
}

impl Control {
    /// Events that tell of the socket's end: when a session is over, the daemon still waits for
    /// this side to hang up.
    pub(crate) const END: PollFlags = PollFlags::RDHUP.union(PollFlags::HUP).union(PollFlags::ERR);

    pub(crate) fn connect(path: &Path, timeout: Duration) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        // Bounds sending (and connecting); receiving is bounded by polling first.
        set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self::new(socket, timeout))
    }

    /// Connects without waiting; `None` if too many already wait for the daemon to accept them.
    #[cfg(feature = "async")]
    pub(crate) fn try_connect(path: &Path, timeout: Duration) -> io::Result<Option<Self>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        // Threads wait on it, too.
        rustix::io::ioctl_fionbio(&socket, false)?;
        set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
        Ok(Some(Self::new(socket, timeout)))
    }

    /// How long what is asked may take, in nanoseconds.
    #[cfg(feature = "async")]
    pub(crate) fn timeout_ns(&self) -> u64 {
        self.timeout_ns.load(Ordering::Relaxed)
    }

    /// A connected socket, of which sending waits `timeout` at most.
    fn new(socket: OwnedFd, timeout: Duration) -> Self {
        let timeout_ns = AtomicU64::new(clock::nanos(timeout));
        Self {
            socket,
            process: getpid(),
            timeout_ns,
            features: AtomicU64::new(0),
            next: Mutex::new(1),
            mail: Mutex::default(),
            arrived: Condvar::new(),
            owed: Mutex::default(),
            watches: AtomicU32::new(0),
        }
    }

    /// How long what is asked from now on may take.
    pub(crate) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        // Relaxed: a number of its own.
        self.timeout_ns.store(clock::nanos(timeout), Ordering::Relaxed);
        Ok(set_socket_timeout(&self.socket, Timeout::Send, Some(timeout))?)
    }

    /// Sets the features that the Welcome named.
    pub(crate) fn set_features(&self, features: u64) {
        // Relaxed: a number of its own.
        self.features.store(features, Ordering::Relaxed);
    }

    /// Whether the daemon answers what a path costs.
    pub(crate) fn tells_costs(&self) -> bool {
        self.has(FEATURE_PATH_COSTS)
    }

    /// Whether the daemon wakes clients that sleep on a queue's flag.
    pub(crate) fn has_naps(&self) -> bool {
        self.has(FEATURE_NAPS)
    }

    /// Whether the daemon takes memory of programs.
    pub(crate) fn takes_memory(&self) -> bool {
        self.has(FEATURE_LENDING)
    }

    fn has(&self, feature: u64) -> bool {
        self.features.load(Ordering::Relaxed) & feature != 0
    }

    /// Ask, and wait for the answer. A refusal is an error.
    pub(crate) fn ask(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Answer, SessionError> {
        let deadline_ns = clock::now_ns().saturating_add(self.timeout_ns.load(Ordering::Relaxed));
        let sequence = self.send(request, fds, true, Patience::Waits)?;
        let sequence = sequence.ok_or(SessionError::TimedOut)?;
        // Those that found the socket in use.
        self.tell_owed();
        let answer = self.await_answer(sequence, deadline_ns);
        lock(&self.mail).forget(sequence);
        checked(answer?)
    }

    /// Say, and do not wait for the answer; nobody misses it. Runs nobody's code, so a queue's lock
    /// may be held. A forked process says nothing: what is open is its parent's.
    ///
    /// What finds no room in a socket that a runtime watches is sent when the daemon has answered
    /// something, or something is asked or told; otherwise this waits for room. Answers that are
    /// there already are read first, so that they do not pile up if nobody ever asks anything. Not
    /// while tasks wait: their runtime calls, and wakes them.
    pub(crate) fn tell(&self, request: Request) {
        if !self.is_own() {
            return;
        }
        lock(&self.owed).push(request);
        self.take_in(Mail::has_no_wakers);
        self.tell_owed();
    }

    /// Takes in all answers that are there, unless somebody else does, and sends what is owed.
    #[cfg(feature = "async")]
    pub(crate) fn read_waiting(&self) {
        self.take_in(|_| true);
        self.tell_owed();
    }

    /// Takes in all answers that are there, unless somebody else does; if the mail `may` be read.
    fn take_in(&self, may: impl Fn(&Mail) -> bool) {
        // Once more after the last: whoever came meanwhile found a reader, and left it to that.
        while self.poll(0)
            && let Some(mut mail) = self.try_reading(&may)
        {
            while self.poll(0) && self.read_one(&mut mail) {}
            self.stop_reading(mail, false);
        }
    }

    /// Whether this is the process that connected.
    pub(crate) fn is_own(&self) -> bool {
        self.process == getpid()
    }

    /// Tells what is owed: of a socket that is watched as far as it has room.
    fn tell_owed(&self) {
        // Relaxed: a number of its own.
        self.tell_owed_with(match self.watches.load(Ordering::Relaxed) {
            0 => Patience::Waits,
            _ => Patience::AtOnce,
        });
    }

    fn tell_owed_with(&self, patience: Patience) {
        // Held until the end: one that is added meanwhile is its adder's.
        let mut owed = lock(&self.owed);
        while let Some(request) = owed.last() {
            // An error means that the daemon is gone, and with it what it was to be told about.
            if let (Ok(None), Patience::AtOnce) =
                (self.send(request, &[], false, patience), patience)
            {
                return;
            }
            owed.pop();
        }
    }

    /// Whether the daemon holds its end open.
    pub(crate) fn is_open(&self) -> bool {
        if lock(&self.mail).is_over() {
            return false;
        }
        let mut polled = [PollFd::new(&self.socket, Self::END)];
        let _ = rustix::event::poll(&mut polled, Some(&Timespec::default()));
        !polled[0].revents().intersects(Self::END)
    }

    /// The socket, for waiting for its end.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a message; its number, or `None` if there is no room for it.
    fn send(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        wanted: bool,
        patience: Patience,
    ) -> Result<Option<u32>, SessionError> {
        // Before any lock: at the fork, another thread may have had it.
        if !self.is_own() {
            return Err(forked());
        }
        let mut message = [0; MESSAGE_BYTES_MAX];
        let mut next = match (patience, self.next.try_lock()) {
            (_, Ok(next)) => next,
            // Somebody who has patience sends, and may wait for room.
            (Patience::AtOnce, Err(TryLockError::WouldBlock)) => return Ok(None),
            _ => lock(&self.next),
        };
        let sequence = *next;
        let length = request.encode(sequence, &mut message).map_err(SessionError::Unsendable)?;
        // 0 stands for "nobody" in the boxes.
        *next = next.checked_add(1).unwrap_or(1);
        if wanted {
            lock(&self.mail).expect(sequence);
        }
        let sent = match patience {
            Patience::Waits => fds::send(&self.socket, &message[..length], fds),
            Patience::AtOnce => fds::try_send(&self.socket, &message[..length], fds),
        };
        let Err(error) = sent else { return Ok(Some(sequence)) };
        lock(&self.mail).forget(sequence);
        match error.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                Err(SessionError::Disconnected)
            }
            _ => Err(SessionError::System(error)),
        }
    }

    fn await_answer(&self, sequence: u32, deadline_ns: u64) -> Result<Answer, SessionError> {
        let mut mail = lock(&self.mail);
        loop {
            if let Some(answer) = mail.take(sequence) {
                return answer;
            }
            let left_ns = deadline_ns.saturating_sub(clock::now_ns());
            if left_ns == 0 {
                return Err(SessionError::TimedOut);
            }
            if mail.is_read() {
                let left = Duration::from_nanos(left_ns);
                let woken = self.arrived.wait_timeout(mail, left);
                mail = woken.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                mail.set_reading(true);
                drop(mail);
                let readable = self.poll(left_ns);
                mail = lock(&self.mail);
                if readable {
                    self.read_one(&mut mail);
                }
                self.stop_reading(mail, true);
                mail = lock(&self.mail);
            }
        }
    }

    /// Become the reader, if there is none and the mail `may` be read.
    fn try_reading(&self, may: impl Fn(&Mail) -> bool) -> Option<MutexGuard<'_, Mail>> {
        if !self.is_own() {
            return None;
        }
        let mut mail = lock(&self.mail);
        if mail.is_read() || mail.is_over() || !may(&mail) {
            return None;
        }
        mail.set_reading(true);
        Some(mail)
    }

    /// Let the next one read, and send back what nobody waits for any more. `more`: there may be
    /// something to read, for a task as well.
    fn stop_reading(&self, mut mail: MutexGuard<'_, Mail>, more: bool) {
        mail.set_reading(false);
        let late = mail.take_late();
        let woken = mail.take_wakers(more);
        drop(mail);
        self.arrived.notify_all();
        // Not under the lock: a waker may drop the task that it wakes.
        woken.into_iter().for_each(std::task::Waker::wake);
        if !late.is_empty() {
            lock(&self.owed).extend(late);
            self.tell_owed();
        }
    }

    /// Read one message, which is there: `mail` may be locked meanwhile. `false`: the end.
    fn read_one(&self, mail: &mut Mail) -> bool {
        let mut message = [0; MESSAGE_BYTES_MAX];
        let received = match fds::receive(&self.socket, &mut message) {
            Ok(received) => received,
            // More descriptors than this process may open: the answer is lost, its asker times out.
            Err(ReceiveFault::TooManyFds) => return true,
            Err(_) => {
                mail.end(Gone::Closed);
                return false;
            }
        };
        match Reply::parse(&message[..received.length]) {
            Ok((sequence, reply)) => mail.deliver(sequence, (reply, received.fds)),
            Err(fault) => mail.end(Gone::Fault(fault)),
        }
        !mail.is_over()
    }

    /// Wait for something to read (or the end), `timeout_ns` at most.
    fn poll(&self, timeout_ns: u64) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        let timeout = Timespec::try_from(Duration::from_nanos(timeout_ns)).ok();
        rustix::event::poll(&mut polled, timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }
}

/// Why a forked process asks nothing.
fn forked() -> SessionError {
    let text = "this process was forked from the client's; connect again here";
    SessionError::System(io::Error::new(io::ErrorKind::NotConnected, text))
}

/// An answer that is what it says. A refusal is an error.
fn checked((reply, fds): Answer) -> Result<Answer, SessionError> {
    reply.check_fds(&fds).map_err(|_| SessionError::Unexpected)?;
    match reply {
        Reply::Refused { status, message } => {
            // The daemon's words may repeat a peer's or another client's.
            let message = shown(&message).into_owned();
            Err(SessionError::Refused { status, message })
        }
        reply => Ok((reply, fds)),
    }
}

/// A panic while holding one of our locks leaves nothing half done: every change is one assignment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, feature = "async"))]
pub(crate) mod testing {
    use std::sync::Arc;

    use super::*;

    /// A control socket, and the daemon's end of it, which never waits.
    pub(crate) fn pair() -> (Arc<Control>, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (ours, daemon) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)
            .expect("descriptors are left");
        rustix::io::ioctl_fionbio(&daemon, true).expect("a socket");
        let timeout = Duration::from_secs(60);
        set_socket_timeout(&ours, Timeout::Send, Some(timeout)).expect("a socket");
        (Arc::new(Control::new(ours, timeout)), daemon)
    }

    /// The messages that are there, with their numbers.
    pub(crate) fn received(daemon: &OwnedFd) -> Vec<(u32, Request)> {
        let mut message = [0; MESSAGE_BYTES_MAX];
        let next = || {
            let length = fds::receive(daemon, &mut message).ok()?.length;
            Some(Request::parse(&message[..length]).expect("a request of ours"))
        };
        std::iter::from_fn(next).collect()
    }

    pub(crate) fn answer(daemon: &OwnedFd, sequence: u32, reply: &Reply) {
        let mut message = [0; MESSAGE_BYTES_MAX];
        let length = reply.encode(sequence, &mut message).expect("a reply");
        fds::send(daemon, &message[..length], &[]).expect("room");
    }

    /// Whether a task was woken.
    #[derive(Debug, Default)]
    pub(crate) struct Woken(AtomicU32);

    impl Woken {
        pub(crate) fn count(&self) -> u32 {
            self.0.load(Ordering::SeqCst)
        }
    }

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}
