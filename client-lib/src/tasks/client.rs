//! A session for tasks: what goes over the control socket, without blocking.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use piped_core::access::Access;
use piped_ring::ClientQueue;
use piped_ring::handshake::Request;

use super::queue::AsyncQueue;
use super::runtime::Runtime;
use super::session::Session;
use super::waiting::Waiting;
use crate::buffer::Buffer;
use crate::client::{Client, ClientBuilder};
use crate::clock;
use crate::connection::{Connection, FIRST, Growth, Shared, next_client};
use crate::control::{Control, lock};
use crate::error::{
    AllocateError, ConnectError, ExportError, OpenError, PiecesError, QueueError, ReconnectError,
    SessionError,
};
use crate::handle::{Handle, RegionExport, RegionOptions, Way, read_done};
use crate::open::{OpenOptions, questions};
use crate::origin::Origin;
use crate::path::PathCosts;
use crate::pieces::{Piece, Pieces};
use crate::reconnect::Reconnected;
use crate::socket::{SocketOrigin, default_socket};

/// A session with a daemon, for tasks: [`Client`], with futures for all that waits for an answer.
/// Cheap to clone, for all tasks.
///
/// Dropping one of these futures undoes what it began: what was opened meanwhile is closed, memory
/// and queues are for the next one that asks. Dropping a [`Handle`] or a buffer never blocks; a
/// [`RegionExport`] does, until the daemon has let go of it: see [`Self::close_region`].
///
/// ```no_run
/// # #[cfg(feature = "tokio")]
/// # async fn read() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{AsyncClient, OpenOptions};
/// let client = AsyncClient::connect("/run/piped/client.sock").await?;
/// let file = client.open_file("/srv/data/blocks", OpenOptions::read()).await?;
/// let queue = client.queue().await?;
/// let (buffer, bytes) = queue.read(&file, 0, client.allocate(1 << 20).await?).await?;
/// println!("{:?}", &buffer.as_slice()[..bytes.min(16)]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct AsyncClient {
    session: Session,
}

impl AsyncClient {
    /// Connect from within a tokio runtime, with the defaults of [`ClientBuilder`].
    ///
    /// # Errors
    /// See [`ConnectError`].
    #[cfg(feature = "tokio")]
    pub async fn connect(path: impl Into<PathBuf>) -> Result<Self, ConnectError> {
        let runtime = super::TokioRuntime::current().map_err(SessionError::from)?;
        Self::open(ClientBuilder::new(), Some(path), Arc::new(runtime)).await
    }

    /// Connect from within a tokio runtime to the daemon that [`crate::SOCKET_VARIABLE`] names, or
    /// else the one at [`crate::DEFAULT_SOCKET`].
    ///
    /// # Errors
    /// See [`ConnectError`].
    #[cfg(feature = "tokio")]
    pub async fn connect_default() -> Result<Self, ConnectError> {
        let runtime = super::TokioRuntime::current().map_err(SessionError::from)?;
        Self::open(ClientBuilder::new(), None::<PathBuf>, Arc::new(runtime)).await
    }

    /// Connects for tasks of a runtime, which the program brings.
    ///
    /// ```no_run
    /// # async fn connect(
    /// #     runtime: std::sync::Arc<dyn piped_client::Runtime>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use piped_client::{AsyncClient, ClientBuilder};
    /// let builder = ClientBuilder::new().arena_bytes(64 << 20);
    /// let client = AsyncClient::open(builder, Some("/run/piped/client.sock"), runtime).await?;
    /// # let _ = client;
    /// # Ok(()) }
    /// ```
    ///
    /// Without a path: to the daemon that [`crate::SOCKET_VARIABLE`] names, or else the one at
    /// [`crate::DEFAULT_SOCKET`].
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn open(
        builder: ClientBuilder,
        path: Option<impl Into<PathBuf>>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Self, ConnectError> {
        let settings = builder.settings(match path {
            Some(path) => (path.into(), SocketOrigin::Given),
            None => default_socket(std::env::var_os(crate::SOCKET_VARIABLE)),
        });
        let waiting = Waiting::new(runtime).map_err(SessionError::from)?;
        let deadline_ns = clock::now_ns().saturating_add(clock::nanos(settings.timeout));
        let control = loop {
            let tried = Control::try_connect(&settings.path, settings.timeout);
            if let Some(control) = tried.map_err(|source| settings.no_socket(source))? {
                break Arc::new(control);
            }
            // Too many wait for the daemon already; nothing tells when there are fewer.
            waiting.pause(deadline_ns).await?;
        };
        let hello = Request::Hello(settings.hello);
        let answer = waiting.ask(&control, &hello, &[]).await?;
        let client = next_client();
        let connection = Connection::begin(control, answer, client, FIRST)?;
        let client = Client::new(Shared::new(settings, connection, client));
        Ok(Self { session: Session::new(client, waiting) })
    }

    /// The client for threads, of the same session. Its calls may block.
    #[must_use]
    pub fn client(&self) -> &Client {
        self.session.client()
    }

    /// Makes a queue, for all tasks.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub async fn queue(&self) -> Result<AsyncQueue, QueueError> {
        let connection = self.connection();
        let idle = lock(&connection.idle).pop();
        let core = match idle {
            Some(core) => core,
            None => self.client().core(&connection, self.ring(&connection).await?),
        };
        let queue = self.client().lend(&connection, core);
        Ok(AsyncQueue::start(queue, self.session.clone()).map_err(SessionError::from)?)
    }

    async fn ring(&self, connection: &Connection) -> Result<ClientQueue, QueueError> {
        if let Some(ring) = connection.spare_ring() {
            return Ok(ring);
        }
        connection.attach_ring(self.waiting().ask_for_ring(connection).await?)
    }

    /// Allocates a buffer of `length` bytes. The arena grows if it must and may.
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub async fn allocate(&self, length: usize) -> Result<Buffer, AllocateError> {
        self.session.allocate(length).await
    }

    /// A table of pieces for vectored requests, as [`Client::pieces`] makes it.
    ///
    /// # Errors
    /// See [`PiecesError`].
    pub async fn pieces(&self, pieces: &[Piece]) -> Result<Pieces, PiecesError> {
        let entries = Pieces::entries(pieces)?;
        let table = self.allocate(size_of_val(entries.as_slice())).await?;
        Ok(Pieces::new(table, pieces, &entries))
    }

    /// Open a local file with this process's rights, past the page cache where that can be. The
    /// kernel may take long for that, so it is done where it may block.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open_file(
        &self,
        path: impl Into<PathBuf>,
        options: OpenOptions,
    ) -> Result<Handle, OpenError> {
        let path = path.into();
        let opened = self.waiting().unblock(move || {
            let file = OwnedFd::from(options.open_local(&path)?);
            let direct = options.open_direct(file.as_fd());
            Ok::<_, OpenError>((file, direct))
        });
        let (file, direct) = opened.await.ok_or_else(no_runtime)??;
        self.pass(options, file, direct).await
    }

    /// Pass on a local file that is open already; `access` is at most what it was opened for.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open_fd(&self, file: impl AsFd, access: Access) -> Result<Handle, OpenError> {
        let options = OpenOptions::new(access);
        let file = file.as_fd().try_clone_to_owned().map_err(SessionError::from)?;
        let opened = self.waiting().unblock(move || {
            let direct = options.open_direct(file.as_fd());
            (file, direct)
        });
        let (file, direct) = opened.await.ok_or_else(no_runtime)?;
        self.pass(options, file, direct).await
    }

    async fn pass(
        &self,
        options: OpenOptions,
        file: OwnedFd,
        direct: Option<OwnedFd>,
    ) -> Result<Handle, OpenError> {
        let connection = self.connection();
        let request = options.file_question(direct.is_some());
        let answer = match &direct {
            Some(direct) => {
                let fds = [direct.as_fd(), file.as_fd()];
                self.waiting().ask(&connection.control, &request, &fds).await
            }
            None => self.waiting().ask(&connection.control, &request, &[file.as_fd()]).await,
        };
        let at = (&*connection, &self.client().shared().link);
        Ok(options.passed(at, answer?, file.as_fd(), direct)?)
    }

    /// Open a file below an export of a peer, or of this node (`None`).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open_export(
        &self,
        peer: Option<&str>,
        export: &str,
        path: impl AsRef<Path>,
        options: OpenOptions,
    ) -> Result<Handle, OpenError> {
        let request = options.export_question(peer, export, path.as_ref())?;
        self.open_named(request).await
    }

    /// Open a directory below an export of a peer, or of this node (`None`), as
    /// [`Client::open_directory`] does.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open_directory(
        &self,
        peer: Option<&str>,
        export: &str,
        path: impl AsRef<Path>,
        access: Access,
    ) -> Result<Handle, OpenError> {
        self.open_named(questions::directory(peer, export, path.as_ref(), access)).await
    }

    /// Open a region that a client of a peer, or of this node (`None`), exports.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open_region(
        &self,
        peer: Option<&str>,
        name: &str,
        access: Access,
    ) -> Result<Handle, OpenError> {
        self.open_named(questions::region(peer, name, access)).await
    }

    /// Open a channel on which a client of a peer, or of this node (`None`), receives.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open_channel(&self, peer: Option<&str>, name: &str) -> Result<Handle, OpenError> {
        self.open_named(questions::channel(peer, name)).await
    }

    /// Receive messages under a name, from clients of this node and of others.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn offer_channel(&self, name: &str) -> Result<Handle, OpenError> {
        self.open_named(questions::offered_channel(name)).await
    }

    async fn open_named(&self, request: Request) -> Result<Handle, OpenError> {
        let connection = self.connection();
        let link = &self.client().shared().link;
        let answer = self.waiting().ask(&connection.control, &request, &[]).await?;
        let origin = link.reopens().then(|| Origin::named(&request));
        Ok(Handle::from_answer((&connection, link), answer, origin)?)
    }

    /// Let others reach a buffer by name, as [`Client::export_region`] does. If this is dropped
    /// before its end, the memory is not used again: the daemon may have shown it to others.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub async fn export_region(
        &self,
        name: &str,
        buffer: Buffer,
        options: impl Into<RegionOptions>,
    ) -> Result<RegionExport, ExportError> {
        let options = options.into();
        self.session.make_room_for(&buffer).await;
        let connection = self.connection();
        let buffer = self.client().shared().bring_exported(buffer, &connection, Growth::None)?;
        let (request, shared) = RegionExport::question(name, buffer, options);
        let answer = self.waiting().ask(&connection.control, &request, &[]).await;
        let at = (&*connection, &self.client().shared().link);
        RegionExport::from_answer(at, answer, shared)
            .map_err(|(cause, buffer)| ExportError { cause, buffer })
    }

    /// End the export of a region and take the memory back, as [`RegionExport::close`] does.
    ///
    /// # Errors
    /// The daemon did not confirm that nobody touches the memory any more; it is not used again.
    pub async fn close_region(&self, region: RegionExport) -> Result<Buffer, SessionError> {
        let (control, request) = region.handle().core.close_question()?;
        read_done(self.waiting().ask_or_tell(&control, request).await?)?;
        Ok(region.reclaim())
    }

    /// The cost of reading from the handle at present, as [`Handle::read_costs`] has it.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub async fn read_costs(&self, handle: &Handle) -> Result<Option<PathCosts>, SessionError> {
        self.session.costs(handle, Way::Read).await
    }

    /// The cost of writing to the handle, as [`Handle::write_costs`] has it.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub async fn write_costs(&self, handle: &Handle) -> Result<Option<PathCosts>, SessionError> {
        self.session.costs(handle, Way::Write).await
    }

    /// Go on with the next daemon, as [`Client::reconnect`] does, on a thread that may block.
    /// Requests with [`crate::Request::resubmit`] have it done by themselves.
    ///
    /// # Errors
    /// See [`ReconnectError`].
    pub async fn reconnect(&self) -> Result<Reconnected, ReconnectError> {
        let client = self.client().clone();
        let done = self.waiting().unblock(move || client.reconnect()).await;
        // Before queues go on there. If it cannot be watched, the next question says so.
        let _ = self.waiting().watch(&self.connection().control);
        done.unwrap_or_else(|| Err(ReconnectError::Connect(no_runtime().into())))
    }

    fn connection(&self) -> Arc<Connection> {
        self.client().shared().connection()
    }

    fn waiting(&self) -> &Arc<Waiting> {
        self.session.waiting()
    }
}

fn no_runtime() -> SessionError {
    SessionError::System(io::Error::other("the runtime has ended"))
}
