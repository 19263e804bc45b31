//! The connection to a daemon.

use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use piped_ring::handshake::{Access, FDS_PER_QUEUE, Hello, Reply, Request, Welcome};
use piped_ring::layout::ENTRIES_MAX;
use piped_ring::segment::SEGMENT_BYTES_MAX;
use piped_ring::{AttachFault, ClientQueue, Profile, QueueFds, Segment};

use crate::affinity;
use crate::arena::{Arena, PAGE_BYTES};
use crate::buffer::Buffer;
use crate::control::{Control, lock};
use crate::core::Core;
use crate::error::{AllocateError, ConnectError, ExportError, OpenError, QueueError, SessionError};
use crate::handle::{Handle, OpenOptions, RegionExport};
use crate::queue::Queue;
use crate::request::Class;

/// How a queue waits: how long it looks for completions before it sleeps.
///
/// More spinning threads than CPUs are worse than none, so every policy gives up spinning when it
/// notices that the thread loses its CPU while it spins.
///
/// ```
/// use std::time::Duration;
/// use piped_client::WaitPolicy;
/// let never = WaitPolicy::Custom { spin: Duration::ZERO };
/// assert_ne!(never, WaitPolicy::Latency);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Spin briefly where a CPU is to spare.
    Balanced,
    /// Spin long.
    Latency,
    /// Never spin.
    Throughput,
    /// Spin as long as that at most.
    Custom {
        /// The longest spin; zero sleeps at once.
        spin: Duration,
    },
}

impl WaitPolicy {
    pub(crate) fn spin_ns(self) -> u64 {
        let profile = match self {
            Self::Balanced => Profile::Balanced,
            Self::Latency => Profile::Latency,
            Self::Throughput => Profile::Throughput,
            Self::Custom { spin } => return crate::clock::nanos(spin),
        };
        // One CPU is the shard's.
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        profile.budgets(cpus - 1).client_ns
    }
}

/// What to ask of the daemon when connecting.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Class, ClientBuilder};
/// let client = ClientBuilder::new()
///     .arena_bytes(64 << 20)
///     .depth(64)
///     .class(Class::Latency)
///     .connect("/run/piped/client.sock")?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    arena_bytes: u64,
    depth: u32,
    class: Class,
    weight: u32,
    wait: Option<WaitPolicy>,
    timeout: Duration,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            arena_bytes: 16 << 20,
            depth: 255,
            class: Class::Session,
            weight: 0,
            wait: None,
            timeout: Duration::from_secs(30),
        }
    }
}

impl ClientBuilder {
    /// The defaults: 16 MiB of arena, 255 requests a queue, class, weight and waiting as the daemon
    /// says.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of the arena's first segment, and the least it grows by later.
    #[must_use]
    pub fn arena_bytes(self, arena_bytes: u64) -> Self {
        Self { arena_bytes, ..self }
    }

    /// Requests each queue can have under way. Its rings have the next power of two above, and use
    /// it: one entry is for cancels, so 255 is as dear as 128.
    #[must_use]
    pub fn depth(self, depth: u32) -> Self {
        Self { depth, ..self }
    }

    /// The class of requests that name none.
    #[must_use]
    pub fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// The share among sessions of the same class; 0 is the daemon's default. A daemon of this version
    /// takes all sessions in turn, whatever their weight.
    #[must_use]
    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// How queues wait. Without, as the daemon recommends.
    #[must_use]
    pub fn wait(self, policy: WaitPolicy) -> Self {
        Self { wait: Some(policy), ..self }
    }

    /// How long opening, growing and connecting may take. Data requests have deadlines.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Connect to the daemon that listens on a unix socket.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(self, path: impl AsRef<Path>) -> Result<Client, ConnectError> {
        let path = path.as_ref();
        let control = Control::connect(path, self.timeout)
            .map_err(|source| ConnectError::Socket { path: PathBuf::from(path), source })?;
        let hello = Hello {
            features: 0,
            arena_bytes: self.arena_bytes.max(1).next_multiple_of(PAGE_BYTES),
            entries: self.depth.clamp(1, ENTRIES_MAX - 1).saturating_add(1).next_power_of_two(),
            queues: 1,
            weight: self.weight,
            class: self.class.number(),
        };
        let (reply, fds) = control.ask(&Request::Hello(hello), &[])?;
        let Reply::Welcome(welcome) = reply else {
            return Err(SessionError::Unexpected.into());
        };
        let mut fds = fds.into_iter();
        let arena = Arc::new(Arena::default());
        for (number, fd) in (0..welcome.segments).zip(&mut fds) {
            arena.add(number, Segment::from_fd(fd)?);
        }
        let shared = Arc::new(Shared {
            control: Arc::new(control),
            arena,
            welcome,
            spin_ns: self.wait.map_or(welcome.client_spin_ns, WaitPolicy::spin_ns),
            arena_bytes: hello.arena_bytes,
            growing: Mutex::new(()),
            idle: Mutex::default(),
        });
        for _ in 0..welcome.queues {
            let core = shared.attach(&mut fds)?;
            lock(&shared.idle).push(core);
        }
        Ok(Client { shared })
    }
}

/// A session with a daemon: memory, handles, queues. Cheap to clone, for all threads.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Client, OpenOptions};
/// let client = Client::connect("/run/piped/client.sock")?;
/// let file = client.open_file("/srv/data/blocks", OpenOptions::read())?;
/// let mut queue = client.queue()?;
/// let (buffer, bytes) = queue.read(&file, 0, client.allocate(1 << 20)?)?;
/// println!("{:?}", &buffer.as_slice()[..bytes.min(16)]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    control: Arc<Control>,
    arena: Arc<Arena>,
    welcome: Welcome,
    spin_ns: u64,
    arena_bytes: u64,
    /// Held while the arena grows, so that threads that want memory at once let it grow once.
    growing: Mutex<()>,
    /// Queues that no thread has; their last requests may still be under way.
    idle: Mutex<Vec<Core>>,
}

impl Client {
    /// Connect with the defaults of [`ClientBuilder`].
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ConnectError> {
        ClientBuilder::new().connect(path)
    }

    /// A buffer of `length` bytes. The arena grows if it has to and may.
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub fn allocate(&self, length: usize) -> Result<Buffer, AllocateError> {
        let bytes = length as u64;
        if !(1..=SEGMENT_BYTES_MAX).contains(&bytes) {
            return Err(AllocateError::Length(bytes));
        }
        if let Some(buffer) = self.shared.arena.allocate(bytes) {
            return Ok(buffer);
        }
        let _growing = lock(&self.shared.growing);
        // Buffers of dropped queues may have become free; and another thread may have been first.
        lock(&self.shared.idle).iter_mut().for_each(Core::reap);
        if let Some(buffer) = self.shared.arena.allocate(bytes) {
            return Ok(buffer);
        }
        self.shared.grow(bytes.next_multiple_of(PAGE_BYTES))?;
        // The others can only take what was free before; this segment they cannot have seen for
        // longer than the blink of an eye, so a second failure means that they are many.
        self.shared.arena.allocate(bytes).ok_or_else(|| {
            let message = "other threads took the memory that was added; try again".to_owned();
            let status = piped_ring::Status::WouldBlock;
            AllocateError::Session(SessionError::Refused { status, message })
        })
    }

    /// A queue, for one thread. Dropped ones are used again.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn queue(&self) -> Result<Queue, QueueError> {
        let idle = lock(&self.shared.idle).pop();
        let mut core = match idle {
            Some(core) => core,
            None => {
                let (reply, fds) = self.shared.control.ask(&Request::AddQueue, &[])?;
                let Reply::Queue { .. } = reply else {
                    return Err(SessionError::Unexpected.into());
                };
                self.shared.attach(&mut fds.into_iter())?
            }
        };
        // A thread that shares its only CPU with the shard would spin in its way.
        let beside = self.shared.shard_cpu().is_some_and(affinity::is_pinned_to);
        core.spin_limit(if beside { 0 } else { self.shared.spin_ns });
        Ok(Queue::new(core, Arc::clone(&self.shared)))
    }

    /// Open a local file with this process's rights, past the page cache where that can be.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_file(
        &self,
        path: impl AsRef<Path>,
        options: OpenOptions,
    ) -> Result<Handle, OpenError> {
        options.open_path(&self.shared.control, path.as_ref())
    }

    /// Pass on a local file that is open already; `access` is at most what it was opened for. Its
    /// offset and flags are left alone.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_fd(&self, file: impl AsFd, access: Access) -> Result<Handle, OpenError> {
        Ok(OpenOptions::new(access).pass(&self.shared.control, file.as_fd())?)
    }

    /// Open a file below an export of a peer, or of this node (`None`).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_export(
        &self,
        peer: Option<&str>,
        export: &str,
        path: &str,
        options: OpenOptions,
    ) -> Result<Handle, OpenError> {
        options.open_export(&self.shared.control, peer, export, path)
    }

    /// Let others reach a buffer by name, here and on other nodes.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub fn export_region(
        &self,
        name: &str,
        buffer: Buffer,
        access: Access,
    ) -> Result<RegionExport, ExportError> {
        if !buffer.is_of(&self.shared.arena) {
            let message =
                "the buffer belongs to another client; allocate it on this one".to_owned();
            let status = piped_ring::Status::BadBuffer;
            let cause = SessionError::Refused { status, message };
            return Err(ExportError { cause, buffer: Some(buffer) });
        }
        RegionExport::open(&self.shared.control, name, buffer, access)
            .map_err(|(cause, buffer)| ExportError { cause, buffer })
    }

    /// Open a region that a client of a peer, or of this node (`None`), exports.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_region(
        &self,
        peer: Option<&str>,
        name: &str,
        access: Access,
    ) -> Result<Handle, OpenError> {
        let peer = peer.unwrap_or_default().to_owned();
        let request = Request::OpenRegion { peer, name: name.to_owned(), access };
        Ok(Handle::ask(&self.shared.control, &request, &[])?)
    }

    /// The session's number, as the admin API's `/v1/clients` shows it.
    #[must_use]
    pub fn session(&self) -> u32 {
        self.shared.welcome.session
    }

    /// The time that requests get which name none.
    #[must_use]
    pub fn deadline_default(&self) -> Duration {
        Duration::from_nanos(self.shared.welcome.deadline_default_ns)
    }

    /// The CPU of the shard that serves this session, if it has one of its own.
    #[must_use]
    pub fn shard_cpu(&self) -> Option<u32> {
        self.shared.shard_cpu()
    }

    /// Move the calling thread to [`Self::shard_cpu`], where it is woken fastest; queues it takes
    /// afterwards do not spin. `false`: the shard has no CPU of its own. See
    /// [`Queue::pin_to_shard`].
    ///
    /// # Errors
    /// The kernel does not allow this thread on that CPU.
    pub fn pin_current_thread_to_shard(&self) -> io::Result<bool> {
        let Some(cpu) = self.shard_cpu() else { return Ok(false) };
        affinity::pin_current_thread(cpu).map(|()| true)
    }

    /// Whether the daemon holds the session open.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.control.is_open()
    }
}

impl Shared {
    pub(crate) fn shard_cpu(&self) -> Option<u32> {
        u32::try_from(self.welcome.shard_cpu).ok()
    }

    /// Take back the inside of a dropped queue.
    pub(crate) fn keep_queue(&self, mut core: Core) {
        core.orphan();
        // The daemon gave it for the session's life; one it took back is of no use.
        if !core.is_dead() {
            lock(&self.idle).push(core);
        }
    }

    /// Add a segment with room for `bytes`: a large one, or else exactly that.
    fn grow(&self, bytes: u64) -> Result<(), AllocateError> {
        let ask = |bytes| self.control.ask(&Request::GrowArena { bytes }, &[]);
        let answer = match ask(bytes.max(self.arena_bytes)) {
            Err(SessionError::Refused { .. }) if bytes < self.arena_bytes => ask(bytes),
            answer => answer,
        };
        let (Reply::Segment { segment }, fds) = answer? else {
            return Err(SessionError::Unexpected.into());
        };
        let fd = fds.into_iter().next().ok_or(SessionError::Unexpected)?;
        self.arena.add(segment, Segment::from_fd(fd)?);
        Ok(())
    }

    fn attach(&self, fds: &mut impl Iterator<Item = OwnedFd>) -> Result<Core, AttachFault> {
        let mut next = || fds.next().expect("the reply's descriptors were counted");
        let fds = QueueFds { memory: next(), to_daemon: next(), to_client: next() };
        let ring = ClientQueue::attach(fds)?;
        Ok(Core::new(ring, Arc::clone(&self.control), Arc::clone(&self.arena), self.spin_ns))
    }
}

const _: () = assert!(FDS_PER_QUEUE == 3, "`attach` takes that many");
