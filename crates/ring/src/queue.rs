//! A queue as the daemon and the client hold it: a half, its mapped memory and the doorbells.

use core::ops::Range;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::cursor::IndexFault;
use crate::doorbell::{ClientBell, DaemonBell, Drained, HEARING_TIME, Heard};
use crate::flag::Wake;
use crate::half::{ClientFault, ClientHalf, CompletionRingFull, Full, HeaderFault, ServerHalf};
use crate::layout::{CompletionEntry, Descriptor, FIRST_INDEX, QueueLayout};
use crate::nap;
use crate::segment::{Segment, SegmentFault};

/// Descriptors that the daemon passes to the client for a queue, in the order of
/// [`ServerQueue::fds`].
#[derive(Debug)]
pub struct QueueFds {
    /// The queue's sealed memory.
    pub memory: OwnedFd,
    /// The bell that wakes the daemon.
    pub to_daemon: OwnedFd,
    /// The bell that wakes the client.
    pub to_client: OwnedFd,
}

/// Why a client cannot use the queue it was passed.
#[derive(Debug, thiserror::Error)]
pub enum AttachFault {
    /// The memory is not acceptable.
    #[error(transparent)]
    Segment(#[from] SegmentFault),
    /// The memory is not a queue of this version.
    #[error(transparent)]
    Header(#[from] HeaderFault),
}

/// The daemon's side of a queue.
///
/// In a turn: [`Self::take`] and [`Self::post`] as often as wanted, then [`Self::publish`] once.
/// Before sleeping: [`Self::prepare_sleep`] on every queue; if one says `false`, do not sleep.
/// After sleeping: [`Self::finish_sleep`] on every queue, and [`Self::drain`] on those with a
/// [`Self::wake_fd`] that was polled readable.
#[derive(Debug)]
pub struct ServerQueue {
    half: ServerHalf,
    memory: Arc<Segment>,
    to_daemon: DaemonBell,
    to_client: ClientBell,
    client_end: ClientBell,
}

impl ServerQueue {
    /// A new queue. `entries`: a power of two up to [`crate::layout::ENTRIES_MAX`].
    ///
    /// # Errors
    /// `InvalidInput` for another number of entries, else what the kernel says: memory or file
    /// descriptors are short.
    pub fn create(entries: u32) -> io::Result<Self> {
        let layout = QueueLayout::new(entries).ok_or_else(|| {
            let cause = format!("a queue of {entries} entries; take a power of two up to 4096");
            io::Error::new(io::ErrorKind::InvalidInput, cause)
        })?;
        let memory = Arc::new(Segment::create(layout.bytes())?);
        let half = ServerHalf::create(layout, memory.words(), FIRST_INDEX);
        let (to_client, client_end) = ClientBell::pair()?;
        Ok(Self { half, memory, to_daemon: DaemonBell::create()?, to_client, client_end })
    }

    /// Memory of the queue, which the client has as well: the holder of this gives it back when
    /// both have done with it.
    #[must_use]
    pub fn memory(&self) -> Arc<Segment> {
        Arc::clone(&self.memory)
    }

    /// Descriptors to pass to the client: the memory, the bell to the daemon, the bell to the
    /// client.
    #[must_use]
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.memory.fd(), self.to_daemon.fd(), self.client_end.fd()]
    }

    /// The layout of the queue.
    #[must_use]
    pub fn layout(&self) -> QueueLayout {
        self.half.layout()
    }

    /// Requests taken with an end that was not posted yet.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.half.outstanding()
    }

    /// Copy the next descriptor out, once. `None` if there is none, or if the client has left so
    /// many completions unreaped that this request's might not find room.
    ///
    /// # Errors
    /// The client's indices are impossible: evict it.
    pub fn take(&mut self) -> Result<Option<Descriptor>, ClientFault> {
        self.half.take(self.memory.words())
    }

    /// Whether [`Self::take`] would find nothing, at one look. With an impossible index it is not
    /// empty: `take` says what is wrong.
    #[must_use]
    pub fn looks_empty(&self) -> bool {
        self.half.looks_empty(self.memory.words())
    }

    /// Whether the last [`Self::take`] left requests lying because the client does not reap: it
    /// waits for itself.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.half.is_stalled()
    }

    /// Write a completion; the client sees it after [`Self::publish`]. Whatever the client does,
    /// there is room for what taken requests are owed: one end each, and one release if the end
    /// said that the buffer is held.
    ///
    /// # Errors
    /// The ring is full: more than that was posted. The completion is lost.
    pub fn post(&mut self, entry: CompletionEntry) -> Result<(), CompletionRingFull> {
        self.half.post(self.memory.words(), entry)
    }

    /// Say how many bytes from a request's start are in place. A slot out of range is ignored. Not
    /// after the request's end: the slot may belong to the next request then.
    pub fn set_progress(&self, slot: u32, bytes: u64) {
        self.half.set_progress(self.memory.words(), slot, bytes);
    }

    /// Say which bytes beyond these are in place, as [`Self::set_progress`].
    pub fn set_landed(&self, slot: u32, landed: Range<u64>) {
        self.half.set_landed(self.memory.words(), slot, landed);
    }

    /// Let the client see what was posted and which places are free, and wake it if it sleeps.
    /// Returns whether that took a system call. Costs nothing if there is nothing new.
    pub fn publish(&mut self) -> bool {
        let wake = self.half.publish(self.memory.words());
        self.wake_client(wake)
    }

    /// Publish, and tell the client that the daemon is about to sleep. `false`: work arrived (or a
    /// fault that [`Self::take`] will report), do not sleep.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        let (wake, may_sleep) = self.half.prepare_sleep(self.memory.words());
        self.wake_client(wake);
        may_sleep
    }

    /// Tell the client that the daemon is up. May be called without a sleep.
    pub fn finish_sleep(&mut self) {
        self.half.finish_sleep(self.memory.words());
    }

    /// An eventfd that becomes readable when the client wakes the daemon. Wait for it with POLL or
    /// READ (8 bytes) on an io_uring; never `read(2)` it: the client shares its flags and can make
    /// it a blocking one.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.to_daemon.fd()
    }

    /// Silence [`Self::wake_fd`] after it was polled readable. Never waits.
    pub fn drain(&self) {
        self.to_daemon.drain();
    }

    fn wake_client(&self, wake: Wake) -> bool {
        match wake {
            Wake::Nobody => return false,
            Wake::Bell => self.to_client.ring(),
            Wake::Flag => nap::wake(self.half.client_flag(self.memory.words())),
        }
        true
    }
}

/// The client's side of a queue. One thread at a time uses it; a program with several threads takes
/// several queues.
#[derive(Debug)]
pub struct ClientQueue {
    half: ClientHalf,
    memory: Segment,
    to_daemon: DaemonBell,
    to_client: ClientBell,
    naps_on_flag: bool,
}

impl ClientQueue {
    /// Join a queue the daemon made.
    ///
    /// # Errors
    /// See [`AttachFault`].
    pub fn attach(fds: QueueFds) -> Result<Self, AttachFault> {
        let memory = Segment::from_fd(fds.memory)?;
        let half = ClientHalf::attach(memory.words())?;
        let to_daemon = DaemonBell::from_fd(fds.to_daemon);
        let to_client = ClientBell::from_fd(fds.to_client);
        Ok(Self { half, memory, to_daemon, to_client, naps_on_flag: false })
    }

    /// Sleep on the queue's flag in [`Self::nap`], of which the daemon knows
    /// ([`FEATURE_NAPS`](crate::handshake::FEATURE_NAPS)): that is a quicker end of the sleep.
    pub fn nap_on_flag(&mut self) {
        self.naps_on_flag = true;
    }

    /// Descriptors the queue holds; also the number of progress slots.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.half.layout().entries()
    }

    /// Write a descriptor and clear its progress word. The daemon sees it after [`Self::flush`].
    ///
    /// # Errors
    /// The ring is full: flush, reap, and try again.
    pub fn submit(&mut self, descriptor: Descriptor) -> Result<(), Full> {
        self.half.submit(self.memory.words(), descriptor)
    }

    /// Let the daemon see what was submitted and reaped, and wake it if it sleeps. Returns whether
    /// that took a system call.
    pub fn flush(&mut self) -> bool {
        let ring = self.half.flush(self.memory.words());
        self.ring_daemon(ring)
    }

    /// The next completion, if there is one.
    #[must_use]
    pub fn reap(&mut self) -> Option<CompletionEntry> {
        let (entry, ring) = self.half.reap(self.memory.words());
        self.ring_daemon(ring);
        entry
    }

    /// Contiguous bytes in place from the start of the request in that slot.
    #[must_use]
    pub fn progress(&self, slot: u32) -> u64 {
        self.half.progress(self.memory.words(), slot)
    }

    /// The first bytes beyond these that are in place; they may have been reached by the others
    /// since.
    #[must_use]
    pub fn landed(&self, slot: u32) -> Range<u64> {
        self.half.landed(self.memory.words(), slot)
    }

    /// Flush, and tell the daemon that the client is about to sleep. `false`: a completion is there
    /// (or [`Self::fault`]), do not sleep.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        let (ring, may_sleep) = self.half.prepare_sleep(self.memory.words());
        self.ring_daemon(ring);
        may_sleep
    }

    /// Tell the daemon that the client is up, and silence [`Self::wait_fd`]. Call it after every
    /// [`Self::prepare_sleep`] that said `true`. Returns whether the daemon is still there.
    pub fn finish_sleep(&mut self) -> bool {
        self.half.finish_sleep(self.memory.words());
        self.to_client.drain() == Drained::Open
    }

    /// The longest that [`Self::nap`] takes, but for what the kernel's coarse timer adds: less than
    /// as much again.
    pub const NAP: Duration = HEARING_TIME;

    /// Between `prepare_sleep` and `finish_sleep`: sleep until the daemon wakes the client, or
    /// [`Self::NAP`] is over. It is one system call, where polling [`Self::wait_fd`] and silencing
    /// it are two. `None`: no news, and the sleep may go on; else `finish_sleep` is done, and the
    /// value is its.
    pub fn nap(&mut self) -> Option<bool> {
        if self.naps_on_flag {
            return self.nap_quickly();
        }
        match self.to_client.hear() {
            Heard::Silence => None,
            Heard::Interrupted => Some(self.finish_sleep()),
            heard => {
                self.half.finish_sleep(self.memory.words());
                Some(heard == Heard::Rung)
            }
        }
    }

    fn nap_quickly(&mut self) -> Option<bool> {
        let words = self.memory.words();
        let Some((flag, value)) = self.half.begin_nap(words) else {
            return Some(self.finish_sleep());
        };
        let is_over = nap::sleep(flag, value, Self::NAP);
        match self.half.end_nap(words) {
            // Who was interrupted has other things to do.
            true if is_over => Some(self.finish_sleep()),
            true => None,
            false => Some(true),
        }
    }

    /// A descriptor that becomes readable when the daemon wakes the client; fit for poll, epoll and
    /// async runtimes (level- or edge-triggered), between `prepare_sleep` and `finish_sleep`. End
    /// of file on it means the daemon is gone.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.to_client.fd()
    }

    /// Sleep until the daemon posted something or `timeout` is over: `prepare_sleep`, poll,
    /// `finish_sleep`. May return early.
    ///
    /// # Errors
    /// `BrokenPipe` if the daemon closed the queue or is gone, else what poll says; being
    /// interrupted by a signal is an early return, not an error.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.prepare_sleep() {
            return Ok(());
        }
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut polled = [PollFd::from_borrowed_fd(self.to_client.fd(), PollFlags::IN)];
        let result = rustix::event::poll(&mut polled, timeout.as_ref());
        self.half.finish_sleep(self.memory.words());
        if self.to_client.drain() == Drained::Closed {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "the daemon closed the queue"));
        }
        match result {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The daemon's first action that it cannot have meant, if there was one: the queue is then of
    /// no more use.
    #[must_use]
    pub fn fault(&self) -> Option<IndexFault> {
        self.half.fault()
    }

    fn ring_daemon(&self, ring: bool) -> bool {
        if ring {
            self.to_daemon.ring();
        }
        ring
    }
}
