//! The connection to a daemon.

mod builder;

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use piped_core::access::Access;
use piped_ring::handshake::Request;
use piped_ring::{ClientQueue, LentKind};

pub use self::builder::ClientBuilder;
use crate::buffer::Buffer;
use crate::buffers::Buffers;
use crate::connection::{Connection, Growth, Shared};
use crate::control::lock;
use crate::core::Core;
use crate::error::{
    AllocateError, BuffersError, ConnectError, ExportError, LendError, OpenError, PiecesError,
    QueueError, ReconnectError,
};
use crate::handle::{Handle, RegionExport, RegionOptions};
use crate::lent::{Lent, PrivateOffer};
use crate::open::{OpenOptions, questions};
use crate::pieces::{Piece, Pieces};
use crate::queue::Queue;
use crate::reconnect::Reconnected;
use crate::{affinity, clock};

/// A session with a daemon: memory, handles, queues. Cheap to clone, for all threads.
///
/// A process that is forked does not have the client of its parent: what it drops changes nothing
/// for the parent, and what it asks is refused. Its copies of queues must not be used, which is not
/// checked: that would cost each request a system call.
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
    pub(crate) shared: Arc<Shared>,
}

impl Client {
    pub(crate) fn new(shared: Shared) -> Self {
        Self { shared: Arc::new(shared) }
    }

    /// The client behind all its clones.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Connect with the defaults of [`ClientBuilder`].
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ConnectError> {
        ClientBuilder::new().connect(path)
    }

    /// Connect with the defaults of [`ClientBuilder`], to the daemon that
    /// [`crate::SOCKET_VARIABLE`] names, or else the one at [`crate::DEFAULT_SOCKET`].
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect_default() -> Result<Self, ConnectError> {
        ClientBuilder::new().connect_default()
    }

    /// Go on with the next daemon, after the end of the one before: wait for it as long as
    /// [`ClientBuilder::reconnect`] allows, make a new session and open everything again. At once
    /// if the connection stands. Any thread may call it, several at a time: one does it for all.
    ///
    /// After a reconnection, objects of the old connection continue as follows:
    ///
    /// - **Handles** are open again: local files by the descriptors the client kept, exports and
    ///   regions by name (and a file that was made is not made again). [`Reconnected`] counts those
    ///   that could not be.
    /// - **Queues** carry on, each as soon as its thread uses it. [`Queue::completion_fd`] is
    ///   another descriptor then.
    /// - **Requests** that were under way have ended with [`crate::Cause::Disconnected`], but for
    ///   those with [`crate::Request::resubmit`], which are submitted again.
    /// - **Buffers** that the application holds keep their bytes. They lie in the memory of the old
    ///   session, and the first request that takes one moves it into the new: that copies it once,
    ///   and is refused with [`crate::SubmitFault::NoRoom`] if the new arena cannot have it. Those
    ///   of reads that ended with the daemon are [`crate::BufferState::Lost`], as without a
    ///   reconnect.
    /// - **Lent memory** is lent again and does not move; see [`crate::Lent`].
    /// - **Exported regions** are not offered again; see [`RegionExport`].
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use piped_client::{ClientBuilder, OpenOptions};
    /// let builder = ClientBuilder::new().reconnect(Duration::from_secs(10));
    /// let client = builder.connect("/run/piped/client.sock")?;
    /// let file = client.open_file("/srv/data/blocks", OpenOptions::read())?;
    /// let mut queue = client.queue()?;
    /// if queue.read(&file, 0, client.allocate(4096)?).is_err() && !client.is_connected() {
    ///     client.reconnect()?;
    ///     queue.read(&file, 0, client.allocate(4096)?)?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`ReconnectError`]. Everything is as before the call, and it may be called again.
    pub fn reconnect(&self) -> Result<Reconnected, ReconnectError> {
        let within = self.shared.settings.reconnect.map_or(0, clock::nanos);
        let until_ns = clock::now_ns().saturating_add(within);
        self.shared.reconnect(until_ns, until_ns)
    }

    /// Allocates a buffer of `length` bytes. The arena grows if it must and may.
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub fn allocate(&self, length: usize) -> Result<Buffer, AllocateError> {
        self.shared.allocate(length)
    }

    /// Allocates a buffer of `length` bytes if the arena has the room as it is: never waits.
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub fn try_allocate(&self, length: usize) -> Result<Option<Buffer>, AllocateError> {
        self.shared.connection().allocate_at_once(length)
    }

    /// Lends a sealed memfd; [`Lent`] has the rules.
    ///
    /// # Errors
    /// See [`LendError`].
    pub fn lend_memfd(&self, file: impl AsFd) -> Result<Lent, LendError> {
        Lent::by_file(&self.shared, &file, LentKind::Sealed)
    }

    /// Lends POSIX shared memory, or a file below `/dev/shm`; [`Lent`] has the rules.
    ///
    /// # Errors
    /// See [`LendError`].
    pub fn lend_shared(&self, file: impl AsFd) -> Result<Lent, LendError> {
        Lent::by_file(&self.shared, &file, LentKind::Loose)
    }

    /// Lends private memory of this process; [`Lent`] has the rules.
    ///
    /// # Errors
    /// See [`LendError`]. The area is as it was.
    ///
    /// # Safety
    /// Nothing writes the area during the call. It stays mapped until the [`Lent`] and all buffers
    /// of it are dropped. While a buffer is borrowed ([`crate::Buffer::as_slice`]), nobody else
    /// writes its bytes, and of a mutable borrow, nobody else reads them either.
    #[allow(unsafe_code, reason = "the program alone knows who uses its memory")]
    pub unsafe fn lend_private(&self, start: *mut u8, length: usize) -> Result<Lent, LendError> {
        // SAFETY: what the function asks for is what the caller promises.
        unsafe { self.offer_private(start, length)?.take_over() }
    }

    /// The first half of [`Self::lend_private`]: asks the daemon, and leaves the area as it is. The
    /// program may use it meanwhile; only [`PrivateOffer::take_over`] must have it alone.
    ///
    /// # Errors
    /// See [`LendError`].
    pub fn offer_private(&self, start: *mut u8, length: usize) -> Result<PrivateOffer, LendError> {
        PrivateOffer::new(&self.shared, start, length)
    }

    /// A table of pieces for vectored requests ([`crate::Request::read_pieces`]). It lies in the
    /// arena: 32 bytes for each.
    ///
    /// # Errors
    /// See [`PiecesError`].
    pub fn pieces(&self, pieces: &[Piece]) -> Result<Pieces, PiecesError> {
        let entries = Pieces::entries(pieces)?;
        let table = self.allocate(size_of_val(entries.as_slice()))?;
        Ok(Pieces::new(table, pieces, &entries))
    }

    /// Makes several buffers one payload, which a request fills or empties one behind the other
    /// ([`Request::read_buffers`](crate::Request::read_buffers)): 1024 at most, 1 GiB together. The
    /// list of them takes a page or more of the arena, and can be used again and again.
    ///
    /// # Errors
    /// See [`BuffersError`]; the buffers go back to the arena.
    pub fn buffers(&self, parts: Vec<Buffer>) -> Result<Buffers, BuffersError> {
        let list = self.allocate(Buffers::list_bytes(parts.len())?)?;
        Ok(Buffers::new(list, parts)?)
    }

    /// Makes a queue, for one thread. A dropped queue is used again.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn queue(&self) -> Result<Queue, QueueError> {
        let connection = self.shared.connection();
        let idle = lock(&connection.idle).pop();
        let core = idle.map_or_else(|| Ok(self.core(&connection, connection.ring()?)), Ok);
        core.map(|core| self.lend(&connection, core))
    }

    /// The inside of a new queue.
    pub(crate) fn core(&self, connection: &Connection, ring: ClientQueue) -> Core {
        Core::new(ring, connection, &self.shared, self.shared.spin_ns(connection))
    }

    /// A queue for the calling thread.
    pub(crate) fn lend(&self, connection: &Connection, mut core: Core) -> Queue {
        let spin_ns = self.shared.spin_ns(connection);
        // A thread that shares its only CPU with the shard would spin in its way.
        let beside = self.shared.shard_cpu().is_some_and(affinity::is_pinned_to);
        core.spin_limit(if beside { 0 } else { spin_ns });
        Queue::new(core, Arc::clone(&self.shared))
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
        options.open_path((&self.shared.connection(), &self.shared.link), path.as_ref())
    }

    /// Pass on a local file that is open already; `access` is at most what it was opened for. Its
    /// offset and flags are left alone.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_fd(&self, file: impl AsFd, access: Access) -> Result<Handle, OpenError> {
        let at = (&*self.shared.connection(), &self.shared.link);
        Ok(OpenOptions::new(access).pass(at, file.as_fd())?)
    }

    /// Open a file below an export of a peer, or of this node (`None`). The path is bytes, as file
    /// names are: anything that a directory there has, but for control characters.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_export(
        &self,
        peer: Option<&str>,
        export: &str,
        path: impl AsRef<Path>,
        options: OpenOptions,
    ) -> Result<Handle, OpenError> {
        let connection = self.shared.connection();
        options.open_export((&connection, &self.shared.link), peer, export, path.as_ref())
    }

    /// Open a directory below an export of a peer, or of this node (`None`); an empty path is the
    /// export itself. Calls are made of it ([`crate::Queue::call`]).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_directory(
        &self,
        peer: Option<&str>,
        export: &str,
        path: impl AsRef<Path>,
        access: Access,
    ) -> Result<Handle, OpenError> {
        self.open(&questions::directory(peer, export, path.as_ref(), access))
    }

    /// Let others reach a buffer by name, here and on other nodes: everybody with an [`Access`], or
    /// those that [`RegionOptions`] name.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub fn export_region(
        &self,
        name: &str,
        buffer: Buffer,
        options: impl Into<RegionOptions>,
    ) -> Result<RegionExport, ExportError> {
        let connection = self.shared.connection();
        let buffer = self.shared.bring_exported(buffer, &connection, Growth::Waits)?;
        let options = options.into();
        RegionExport::open((&connection, &self.shared.link), name, buffer, options)
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
        self.open(&questions::region(peer, name, access))
    }

    /// Receive messages under a name, from clients of this node and of others. The handle is for
    /// [`crate::Request::receive`]; the name is free again when its last clone is gone.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn offer_channel(&self, name: &str) -> Result<Handle, OpenError> {
        self.open(&questions::offered_channel(name))
    }

    /// Open a channel on which a client of a peer, or of this node (`None`), receives, for
    /// [`crate::Request::send`].
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use piped_client::Client;
    /// let client = Client::connect("/run/piped/client.sock")?;
    /// let mail = client.open_channel(Some("beta"), "mail")?;
    /// let mut buffer = client.allocate(5)?;
    /// buffer.as_mut_slice().copy_from_slice(b"hello");
    /// client.queue()?.send(&mail, 7, buffer)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_channel(&self, peer: Option<&str>, name: &str) -> Result<Handle, OpenError> {
        self.open(&questions::channel(peer, name))
    }

    fn open(&self, request: &Request) -> Result<Handle, OpenError> {
        Ok(Handle::open((&self.shared.connection(), &self.shared.link), request)?)
    }

    /// The session's number, as the admin API's `/v1/clients` shows it.
    #[must_use]
    pub fn session(&self) -> u32 {
        self.shared.connection().welcome.session
    }

    /// Counts the daemons that the client was connected to; 1 is the first. What one wrote and did
    /// not sync may be lost with a peer that has restarted, too: the next does not know of it.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.shared.connection().generation
    }

    /// The deadline of requests that name none.
    #[must_use]
    pub fn deadline_default(&self) -> Duration {
        Duration::from_nanos(self.shared.connection().welcome.deadline_default_ns)
    }

    /// The CPU of the shard that serves this session, if it has one of its own; of a client that
    /// several shards serve ([`ClientBuilder::spread`]) none.
    #[must_use]
    pub fn shard_cpu(&self) -> Option<u32> {
        self.shared.shard_cpu()
    }

    /// Move the calling thread to [`Self::shard_cpu`], where it is woken fastest, and where no wait
    /// spins. `false`: the shard has no CPU of its own. See [`Queue::pin_to_shard`].
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
        self.shared.connection().control.is_open()
    }
}
