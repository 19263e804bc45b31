//! One session with one daemon: what a reconnect replaces, and what stays.
//!
//! ```text
//!  Client, Queue ──► Shared ──► Connection (control socket, arena, queues nobody has)
//!                      └──► Link ◄── Handle
//! ```
//!
//! A [`Connection`] ends with its daemon. [`Shared`] is the client and always has the newest one.
//! The [`Link`] stands for the client in its handles, which must not keep its memory. Connections
//! are told apart by their generation.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use piped_core::status::Status;
use piped_ring::handshake::{FDS_PER_QUEUE, Reply, Request, Welcome};
use piped_ring::segment::SEGMENT_BYTES_MAX;
use piped_ring::{AttachFault, ClientQueue, LentKind, QueueFds, Segment};

use crate::arena::{Arena, LentMemory, Loan, PAGE_BYTES};
use crate::buffer::Buffer;
use crate::buffers::bring_all;
use crate::control::{Answer, Control, lock};
use crate::core::Core;
use crate::error::{
    AllocateError, ConnectError, ExportError, LendError, QueueError, SessionError, SubmitFault,
};
use crate::handle::HandleCore;
use crate::settings::Settings;

/// One session with a daemon: its control socket, its arena and its rings.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) generation: u32,
    pub(crate) control: Arc<Control>,
    pub(crate) arena: Arc<Arena>,
    pub(crate) welcome: Welcome,
    /// Held while the arena grows, so that threads that want memory at once let it grow once.
    growing: Mutex<()>,
    /// Queues that no thread has; their last requests may still be under way.
    pub(crate) idle: Mutex<Vec<Core>>,
    /// Rings that no queue has yet.
    spare: Mutex<Vec<ClientQueue>>,
    /// Questions for a ring that tasks asked and were dropped before the answer.
    #[cfg(feature = "async")]
    left: Mutex<Vec<u32>>,
}

#[cfg(feature = "async")]
impl Connection {
    /// The number of a question for a ring that nobody waits for any more.
    pub(crate) fn take_left(&self) -> Option<u32> {
        lock(&self.left).pop()
    }

    /// Nobody waits for the answer to a question for a ring any more.
    pub(crate) fn leave(&self, sequence: u32) {
        lock(&self.left).push(sequence);
    }
}

impl Connection {
    /// CPU that the daemon's shard is pinned to.
    pub(crate) fn shard_cpu(&self) -> Option<u32> {
        u32::try_from(self.welcome.shard_cpu).ok()
    }

    /// A new session; `client` marks its memory.
    pub(crate) fn open(
        settings: &Settings,
        client: u32,
        generation: u32,
        timeout: Duration,
    ) -> Result<Self, ConnectError> {
        let control = Control::connect(&settings.path, timeout);
        let control = Arc::new(control.map_err(|source| settings.no_socket(source))?);
        let answer = control.ask(&Request::Hello(settings.hello), &[])?;
        Self::begin(control, answer, client, generation)
    }

    /// A session that the daemon welcomed.
    pub(crate) fn begin(
        control: Arc<Control>,
        (reply, fds): Answer,
        client: u32,
        generation: u32,
    ) -> Result<Self, ConnectError> {
        let Reply::Welcome(welcome) = reply else {
            return Err(SessionError::Unexpected.into());
        };
        control.set_features(welcome.features);
        let mut fds = fds.into_iter();
        let arena = Arc::new(Arena::new(client, generation, Arc::clone(&control)));
        for (number, fd) in (0..welcome.segments).zip(&mut fds) {
            arena.add(number, Segment::from_fd(fd)?);
        }
        let rings: Result<_, AttachFault> =
            (0..welcome.queues).map(|_| attach(&mut fds, &control)).collect();
        Ok(Self {
            generation,
            control,
            arena,
            welcome,
            growing: Mutex::new(()),
            idle: Mutex::default(),
            spare: Mutex::new(rings?),
            #[cfg(feature = "async")]
            left: Mutex::default(),
        })
    }

    /// A ring for a queue.
    pub(crate) fn ring(&self) -> Result<ClientQueue, QueueError> {
        match self.spare_ring() {
            Some(ring) => Ok(ring),
            None => self.attach_ring(self.control.ask(&Request::AddQueue, &[])?),
        }
    }

    /// A ring that no queue has yet. Never waits.
    pub(crate) fn spare_ring(&self) -> Option<ClientQueue> {
        lock(&self.spare).pop()
    }

    /// A ring is for the next queue that wants one.
    pub(crate) fn keep_ring(&self, ring: ClientQueue) {
        lock(&self.spare).push(ring);
    }

    /// The ring that the daemon added.
    pub(crate) fn attach_ring(&self, (reply, fds): Answer) -> Result<ClientQueue, QueueError> {
        let Reply::Queue { .. } = reply else {
            return Err(SessionError::Unexpected.into());
        };
        Ok(attach(&mut fds.into_iter(), &self.control)?)
    }

    /// Has rings for that many queues ready, so that none of them has to wait for its own.
    pub(crate) fn prepare_rings(&self, queues: usize) -> Result<(), QueueError> {
        while lock(&self.spare).len() < queues {
            self.keep_ring(self.attach_ring(self.control.ask(&Request::AddQueue, &[])?)?);
        }
        Ok(())
    }

    /// A buffer of `length` bytes. The arena grows by `step` or more if it has to and may.
    pub(crate) fn allocate(&self, length: usize, step: u64) -> Result<Buffer, AllocateError> {
        if let Some(buffer) = self.allocate_at_once(length)? {
            return Ok(buffer);
        }
        let _growing = lock(&self.growing);
        // Another thread may have been first.
        if let Some(buffer) = self.allocate_at_once(length)? {
            return Ok(buffer);
        }
        self.grow(length as u64, step)?;
        self.allocate_grown(length)
    }

    /// A buffer of `length` bytes, if the arena has the room. Never waits.
    pub(crate) fn allocate_at_once(&self, length: usize) -> Result<Option<Buffer>, AllocateError> {
        let bytes = length as u64;
        if !(1..=SEGMENT_BYTES_MAX).contains(&bytes) {
            return Err(AllocateError::Length(bytes));
        }
        let allocated = self.arena.allocate(bytes);
        if allocated.is_some() {
            return Ok(allocated);
        }
        // Buffers of dropped queues may have become free.
        lock(&self.idle).iter_mut().for_each(Core::reap);
        Ok(self.arena.allocate(bytes))
    }

    /// A buffer from an arena that has grown for it.
    pub(crate) fn allocate_grown(&self, length: usize) -> Result<Buffer, AllocateError> {
        // The others can only take what was free before; this segment they cannot have seen for
        // longer than the blink of an eye, so a second failure means that they are many.
        self.allocate_at_once(length)?.ok_or_else(|| {
            let message = "other threads took the memory that was added; try again".to_owned();
            let status = Status::WouldBlock;
            AllocateError::Session(SessionError::Refused { status, message })
        })
    }

    /// Add a segment with room for `bytes`: a large one, or else exactly that.
    fn grow(&self, bytes: u64, step: u64) -> Result<(), AllocateError> {
        let [large, exact] = growths(bytes, step);
        let answer = match self.control.ask(&large, &[]) {
            Err(SessionError::Refused { .. }) if large != exact => self.control.ask(&exact, &[]),
            answer => answer,
        };
        self.add_segment(answer?)
    }

    /// Adds the segment that the daemon granted.
    pub(crate) fn add_segment(&self, (reply, fds): Answer) -> Result<(), AllocateError> {
        let Reply::Segment { segment } = reply else {
            return Err(SessionError::Unexpected.into());
        };
        let fd = fds.into_iter().next().ok_or(SessionError::Unexpected)?;
        self.arena.add(segment, Segment::from_fd(fd)?);
        Ok(())
    }
}

/// Questions for a segment with room for `bytes`: for a large one, and for exactly that.
pub(crate) fn growths(bytes: u64, step: u64) -> [Request; 2] {
    let bytes = bytes.next_multiple_of(PAGE_BYTES);
    [bytes.max(step), bytes].map(|bytes| Request::GrowArena { bytes })
}

fn attach(
    fds: &mut impl Iterator<Item = OwnedFd>,
    control: &Control,
) -> Result<ClientQueue, AttachFault> {
    let mut next = || fds.next().expect("the reply's descriptors were counted");
    let fds = QueueFds { memory: next(), to_daemon: next(), to_client: next() };
    let mut queue = ClientQueue::attach(fds)?;
    if control.has_naps() {
        queue.nap_on_flag();
    }
    Ok(queue)
}

const _: () = assert!(FDS_PER_QUEUE == 3, "`attach` takes that many");

/// The client as its handles know it.
#[derive(Debug)]
pub(crate) struct Link {
    /// Generation and control socket of the newest connection, which may not serve queues yet.
    current: Mutex<(u32, Arc<Control>)>,
    /// Handles that a reconnect opens again; `None`: there is no reconnect.
    handles: Option<Mutex<Vec<Weak<HandleCore>>>>,
}

impl Link {
    /// Generation of the newest connection.
    pub(crate) fn generation(&self) -> u32 {
        lock(&self.current).0
    }

    /// Moves the link to another connection: handles are closed and opened there from now on.
    pub(crate) fn move_to(&self, connection: &Connection) {
        *lock(&self.current) = (connection.generation, Arc::clone(&connection.control));
    }

    /// The control socket of a connection, if that is the newest.
    pub(crate) fn control(&self, generation: u32) -> Option<Arc<Control>> {
        let current = lock(&self.current);
        (current.0 == generation).then(|| Arc::clone(&current.1))
    }

    /// Whether handles keep how they were opened.
    pub(crate) fn reopens(&self) -> bool {
        self.handles.is_some()
    }

    pub(crate) fn remember(&self, handle: &Arc<HandleCore>) {
        if let Some(handles) = &self.handles {
            let mut handles = lock(handles);
            // Those that are gone leave when the list would grow: it stays below twice the living.
            if handles.len() == handles.capacity() {
                handles.retain(|handle| handle.strong_count() > 0);
            }
            handles.push(Arc::downgrade(handle));
        }
    }

    pub(crate) fn handles(&self) -> Vec<Arc<HandleCore>> {
        let Some(handles) = &self.handles else { return Vec::new() };
        lock(handles).iter().filter_map(Weak::upgrade).collect()
    }
}

/// Whether the arena may grow for a buffer: that takes an answer of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// The caller waits for it.
    Waits,
    /// No; the caller must not wait.
    None,
}

/// Generation of a client's first connection.
pub(crate) const FIRST: u32 = 1;

/// A number for a client, unique in the process, so that one client's memory means nothing to
/// another.
pub(crate) fn next_client() -> u32 {
    static CLIENTS: AtomicU32 = AtomicU32::new(0);
    CLIENTS.fetch_add(1, Ordering::Relaxed)
}

/// The client behind all its clones, queues and handles.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    /// Marks the memory of all its connections.
    pub(crate) client: u32,
    pub(crate) link: Arc<Link>,
    connection: Mutex<Arc<Connection>>,
    /// Generation of `connection`, for a look without the lock.
    generation: AtomicU32,
    /// Queues that threads have.
    queues: AtomicUsize,
    /// Memory that the program lends, for a reconnect.
    lent: Mutex<Vec<Weak<LentMemory>>>,
    /// Held by the thread that reconnects. The next connection, while handles wait for their peers.
    pub(crate) reconnecting: Mutex<Option<Connection>>,
}

impl Shared {
    pub(crate) fn connect(settings: Settings) -> Result<Self, ConnectError> {
        let client = next_client();
        let connection = Connection::open(&settings, client, FIRST, settings.timeout)?;
        Ok(Self::new(settings, connection, client))
    }

    /// The client at its first connection.
    pub(crate) fn new(settings: Settings, connection: Connection, client: u32) -> Self {
        let generation = connection.generation;
        let link = Link {
            current: Mutex::new((generation, Arc::clone(&connection.control))),
            handles: settings.reconnect.map(|_| Mutex::default()),
        };
        Self {
            settings,
            client,
            link: Arc::new(link),
            connection: Mutex::new(Arc::new(connection)),
            generation: AtomicU32::new(generation),
            queues: AtomicUsize::new(0),
            lent: Mutex::default(),
            reconnecting: Mutex::new(None),
        }
    }

    /// The newest connection of the client.
    pub(crate) fn connection(&self) -> Arc<Connection> {
        Arc::clone(&lock(&self.connection))
    }

    /// The newest connection's generation: a load.
    pub(crate) fn generation(&self) -> u32 {
        // Acquire: pairs with the store in `replace`; a thread that sees the number finds the
        // connection.
        self.generation.load(Ordering::Acquire)
    }

    /// A new connection serves from now on. The old one goes with its last user.
    pub(crate) fn replace(&self, connection: Connection) {
        let generation = connection.generation;
        let old = std::mem::replace(&mut *lock(&self.connection), Arc::new(connection));
        self.generation.store(generation, Ordering::Release);
        // Not under the lock: queues that nobody has close handles when they go.
        drop(old);
    }

    /// A buffer of `length` bytes. The arena grows for it if it must and may.
    pub(crate) fn allocate(&self, length: usize) -> Result<Buffer, AllocateError> {
        self.connection().allocate(length, self.settings.hello.arena_bytes)
    }

    /// A buffer of `length` bytes from what the arena has. Never waits.
    pub(crate) fn allocate_here(&self, length: usize) -> Result<Buffer, AllocateError> {
        let allocated = self.connection().allocate_at_once(length)?;
        allocated.ok_or(AllocateError::Session(SessionError::TimedOut))
    }

    /// Moves a buffer of an earlier connection into the memory of this one, but for the bytes that
    /// were to be `filled`; the buffer as it is if it is of this one or of another client, and as
    /// an error if there is no room, if it is pinned, or if its memory is not lent to this one.
    pub(crate) fn bring(
        &self,
        buffer: Buffer,
        to: &Connection,
        filled: Range<u64>,
        growth: Growth,
    ) -> Result<Buffer, Buffer> {
        if !self.must_bring(&buffer, to) {
            return Ok(buffer);
        }
        if buffer.parts().is_some() {
            return bring_all(buffer, |part| self.bring(part, to, 0..0, growth));
        }
        if buffer.is_lent() || buffer.is_pinned() {
            return Err(buffer);
        }
        let room = match growth {
            Growth::Waits => to.allocate(buffer.capacity(), self.settings.hello.arena_bytes).ok(),
            Growth::None => to.allocate_at_once(buffer.capacity()).ok().flatten(),
        };
        let Some(mut new) = room else { return Err(buffer) };
        buffer.move_into(&mut new, filled);
        Ok(new)
    }

    /// Brings a buffer that is to be exported to the memory of the connection.
    pub(crate) fn bring_exported(
        &self,
        buffer: Buffer,
        to: &Connection,
        growth: Growth,
    ) -> Result<Buffer, ExportError> {
        let (status, message, buffer) = match self.bring(buffer, to, 0..0, growth) {
            Ok(buffer) if buffer.is_of(&to.arena) => return Ok(buffer),
            Ok(buffer) => {
                let text = "the buffer belongs to another client; allocate it on this one";
                (Status::BadBuffer, text.to_owned(), buffer)
            }
            Err(buffer) => (Status::WouldBlock, SubmitFault::without(&buffer).to_string(), buffer),
        };
        let cause = SessionError::Refused { status, message };
        Err(ExportError { cause, buffer: Some(buffer) })
    }

    /// Whether a buffer is of an earlier connection of this client than `to`.
    pub(crate) fn must_bring(&self, buffer: &Buffer, to: &Connection) -> bool {
        !buffer.is_of(&to.arena) && buffer.is_of_client(self.client)
    }

    /// Whether this is the process that connected. A forked one shares its socket with it, and
    /// would take its answers.
    pub(crate) fn check_process(&self) -> Result<(), LendError> {
        if self.connection().control.is_own() { Ok(()) } else { Err(LendError::Forked) }
    }

    /// Lends memory of the program to the daemon.
    pub(crate) fn loan(&self, fd: OwnedFd, terms: (u64, LentKind)) -> Result<Loan, LendError> {
        let connection = self.connection();
        Loan::new((self.client, connection.generation), &connection.control, fd, terms)
    }

    /// Keeps memory in mind that is lent, for a reconnect.
    pub(crate) fn remember_lent(&self, lent: &Arc<LentMemory>) {
        let mut all = lock(&self.lent);
        all.retain(|lent| lent.strong_count() > 0);
        all.push(Arc::downgrade(lent));
    }

    /// Lends all memory to the daemon of a connection that is not lent there yet. What it refuses
    /// is not lent any more.
    pub(crate) fn lend_again(&self, connection: &Connection) {
        let all: Vec<_> = lock(&self.lent).iter().filter_map(Weak::upgrade).collect();
        for lent in all {
            if lent.place().0 != connection.generation {
                lent.lend_again(connection.generation, &connection.control);
            }
        }
    }

    pub(crate) fn spin_ns(&self, connection: &Connection) -> u64 {
        self.settings.spin_ns.unwrap_or(connection.welcome.client_spin_ns)
    }

    pub(crate) fn shard_cpu(&self) -> Option<u32> {
        lock(&self.connection).shard_cpu()
    }

    /// Queues that threads have.
    pub(crate) fn queues(&self) -> usize {
        self.queues.load(Ordering::Relaxed)
    }

    /// A thread takes a queue.
    pub(crate) fn lend_queue(&self) {
        self.queues.fetch_add(1, Ordering::Relaxed);
    }

    /// Take back the inside of a dropped queue.
    pub(crate) fn keep_queue(&self, mut core: Core) {
        // The ring is the parent's, too, which goes on with it.
        if !core.is_own() {
            return;
        }
        self.queues.fetch_sub(1, Ordering::Relaxed);
        core.orphan();
        // The daemon gave it for the session's life; one it took back is of no use.
        let connection = self.connection();
        if !core.is_dead() && core.generation() == connection.generation {
            lock(&connection.idle).push(core);
        }
    }
}
