//! The control socket: questions and answers that may be slow, from several threads at once.
//!
//! Every question has a number that its answer repeats. So a thread that waits for a peer to be
//! dialled does not hold up one that opens a local file. The library has no thread for reading. Of
//! the threads that wait, one reads and puts the answers of the others into their boxes; when it
//! has its own, the next one reads. There are as many boxes as threads that wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use piped_ring::handshake::fds::{self, ReceiveFault};
use piped_ring::handshake::{
    FEATURE_LENDING, FEATURE_NAPS, FEATURE_PATH_COSTS, HandshakeFault, MESSAGE_BYTES_MAX, Reply,
    Request,
};
use piped_text::shown;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::clock;
use crate::error::SessionError;

/// An answer with what came along.
pub(crate) type Answer = (Reply, Vec<OwnedFd>);

#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
    timeout_ns: AtomicU64,
    /// Features beyond the first version that both sides have: `FEATURE_*`; 0 before the Welcome.
    features: AtomicU64,
    /// The next question's number; held while sending, so that numbers go out in order.
    next: Mutex<u32>,
    mail: Mutex<Mail>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Mail {
    /// Some thread reads the socket.
    reading: bool,
    /// Nothing more will come, and what ended it.
    gone: Option<Gone>,
    boxes: Vec<(u32, Option<Answer>)>,
}

/// Why nothing more will come.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Gone {
    /// The daemon closed the socket.
    Closed,
    /// The last message was not of the protocol: nothing that follows can be trusted to be.
    Fault(HandshakeFault),
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
        let timeout_ns = AtomicU64::new(clock::nanos(timeout));
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self {
            socket,
            timeout_ns,
            features: AtomicU64::new(0),
            next: Mutex::new(1),
            mail: Mutex::default(),
            arrived: Condvar::new(),
        })
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
        let sequence = self.send(request, fds, true)?;
        let answer = self.await_answer(sequence, deadline_ns);
        lock(&self.mail).boxes.retain(|(number, _)| *number != sequence);
        let (reply, fds) = answer?;
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

    /// Say, and do not wait for the answer; nobody misses it. Answers that are there already are
    /// read first, so that they do not pile up if nobody ever asks anything.
    pub(crate) fn tell(&self, request: &Request) {
        while let Some(mut mail) = self.try_reading() {
            let read = self.poll(0) && self.read_one(&mut mail);
            self.stop_reading(mail);
            if !read {
                break;
            }
        }
        // An error means that the daemon is gone, and with it what it was to be told about.
        let _ = self.send(request, &[], false);
    }

    /// Whether the daemon holds its end open.
    pub(crate) fn is_open(&self) -> bool {
        if lock(&self.mail).gone.is_some() {
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

    fn send(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        wanted: bool,
    ) -> Result<u32, SessionError> {
        let mut message = [0; MESSAGE_BYTES_MAX];
        let mut next = lock(&self.next);
        let sequence = *next;
        let length = request.encode(sequence, &mut message).map_err(SessionError::Unsendable)?;
        // 0 stands for "nobody" in the boxes.
        *next = next.checked_add(1).unwrap_or(1);
        if wanted {
            lock(&self.mail).boxes.push((sequence, None));
        }
        let sent = fds::send(&self.socket, &message[..length], fds);
        sent.map_err(|error| {
            lock(&self.mail).boxes.retain(|(number, _)| *number != sequence);
            match error.kind() {
                io::ErrorKind::WouldBlock => SessionError::TimedOut,
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                    SessionError::Disconnected
                }
                _ => SessionError::System(error),
            }
        })?;
        Ok(sequence)
    }

    fn await_answer(&self, sequence: u32, deadline_ns: u64) -> Result<Answer, SessionError> {
        let mut mail = lock(&self.mail);
        loop {
            let place = mail.boxes.iter().position(|(number, _)| *number == sequence);
            if let Some(answer) = place.and_then(|place| mail.boxes[place].1.take()) {
                return Ok(answer);
            }
            match &mail.gone {
                None => {}
                Some(Gone::Closed) => return Err(SessionError::Disconnected),
                Some(Gone::Fault(fault)) => return Err(SessionError::Protocol(fault.clone())),
            }
            let left_ns = deadline_ns.saturating_sub(clock::now_ns());
            if left_ns == 0 {
                return Err(SessionError::TimedOut);
            }
            if mail.reading {
                let left = Duration::from_nanos(left_ns);
                let woken = self.arrived.wait_timeout(mail, left);
                mail = woken.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                mail.reading = true;
                drop(mail);
                let readable = self.poll(left_ns);
                mail = lock(&self.mail);
                if readable {
                    self.read_one(&mut mail);
                }
                self.stop_reading(mail);
                mail = lock(&self.mail);
            }
        }
    }

    /// Become the reader, if there is none.
    fn try_reading(&self) -> Option<MutexGuard<'_, Mail>> {
        let mut mail = lock(&self.mail);
        let free = !mail.reading && mail.gone.is_none();
        mail.reading |= free;
        free.then_some(mail)
    }

    /// Let the next one read, and send back what nobody waits for any more.
    fn stop_reading(&self, mut mail: MutexGuard<'_, Mail>) {
        mail.reading = false;
        let late = mail.take_late();
        drop(mail);
        self.arrived.notify_all();
        for unwanted in late {
            let _ = self.send(&unwanted, &[], false);
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
                mail.gone = Some(Gone::Closed);
                return false;
            }
        };
        match Reply::parse(&message[..received.length]) {
            Ok((sequence, reply)) => mail.deliver(sequence, (reply, received.fds)),
            Err(fault) => mail.gone = Some(Gone::Fault(fault)),
        }
        mail.gone.is_none()
    }

    /// Wait for something to read (or the end), `timeout_ns` at most.
    fn poll(&self, timeout_ns: u64) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        let timeout = Timespec::try_from(Duration::from_nanos(timeout_ns)).ok();
        rustix::event::poll(&mut polled, timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }
}

impl Mail {
    /// Gives an answer to the asker it belongs to. The answer to an asker that gave up stays if it
    /// opened or lent something, so that this is given back.
    fn deliver(&mut self, sequence: u32, answer: Answer) {
        match self.boxes.iter_mut().find(|(number, _)| *number == sequence) {
            Some((_, place)) => *place = Some(answer),
            None if undo(&answer.0).is_some() => {
                self.boxes.push((0, Some(answer)));
            }
            None => {}
        }
    }

    /// Requests that undo what late answers did.
    fn take_late(&mut self) -> Vec<Request> {
        let mut late = Vec::new();
        self.boxes.retain(|(number, answer)| match (number, answer) {
            (0, Some((reply, _))) => {
                late.extend(undo(reply));
                false
            }
            _ => true,
        });
        late
    }
}

/// The request that gives back what an answer brought.
fn undo(reply: &Reply) -> Option<Request> {
    match reply {
        Reply::Opened { handle, .. } => Some(Request::CloseHandle { handle: *handle }),
        Reply::Lent { segment } => Some(Request::TakeBack { segment: *segment }),
        _ => None,
    }
}

/// A panic while holding one of our locks leaves nothing half done: every change is one assignment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
