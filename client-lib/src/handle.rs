//! What a client has open: files, files of other nodes, regions.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use piped_core::access::Access;
use piped_core::status::Status;
use piped_ring::handshake::{Audience, Reply, Request};
use rustix::fs::{FileType, Mode, OFlags};

use crate::buffer::{Buffer, Shared};
use crate::clock;
use crate::connection::{Connection, Link};
use crate::control::{Answer, lock};
use crate::error::{OpenError, OutOfBuffer, SessionError};
use crate::origin::Origin;
use crate::path::{Known, Measured, PathCosts};

/// How to open a file.
///
/// ```
/// use piped_client::OpenOptions;
/// let options = OpenOptions::read_write().create(true).truncate(true);
/// assert!(options.access().read && options.access().write);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    access: Access,
    create: bool,
    truncate: bool,
    direct: bool,
}

impl OpenOptions {
    /// For these accesses; the file must be there.
    #[must_use]
    pub fn new(access: Access) -> Self {
        Self { access, create: false, truncate: false, direct: true }
    }

    /// For reading.
    #[must_use]
    pub fn read() -> Self {
        Self::new(Access::READ)
    }

    /// For writing.
    #[must_use]
    pub fn write() -> Self {
        Self::new(Access::WRITE)
    }

    /// For both.
    #[must_use]
    pub fn read_write() -> Self {
        Self::new(Access::READ_WRITE)
    }

    /// Make the file if it is not there. Off by default.
    #[must_use]
    pub fn create(self, create: bool) -> Self {
        Self { create, ..self }
    }

    /// Empty the file (local files only). Off by default.
    #[must_use]
    pub fn truncate(self, truncate: bool) -> Self {
        Self { truncate, ..self }
    }

    /// Go past the page cache where the file system can (local files; exports decide themselves).
    /// On by default.
    #[must_use]
    pub fn direct(self, direct: bool) -> Self {
        Self { direct, ..self }
    }

    /// The accesses.
    #[must_use]
    pub fn access(self) -> Access {
        self.access
    }

    pub(crate) fn open_export(
        self,
        at: At<'_>,
        peer: Option<&str>,
        export: &str,
        path: &Path,
    ) -> Result<Handle, OpenError> {
        if self.truncate {
            return Err(OpenError::Option("truncate"));
        }
        let request = Request::OpenExport {
            peer: peer.unwrap_or_default().to_owned(),
            export: export.to_owned(),
            path: path.as_os_str().as_bytes().to_owned(),
            access: self.access,
            create: self.create,
        };
        Ok(Handle::open(at, &request)?)
    }

    pub(crate) fn open_path(self, at: At<'_>, path: &Path) -> Result<Handle, OpenError> {
        let file = File::options()
            .read(self.access.read)
            .write(self.access.write)
            .create(self.create)
            .truncate(self.truncate)
            // A pipe is refused, not waited for.
            .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
            .open(path)
            .and_then(|file| {
                let flags = rustix::fs::fcntl_getfl(&file)?;
                rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
                Ok(file)
            })
            .map_err(|source| unopened(path, source))?;
        Ok(self.pass(at, file.as_fd())?)
    }

    /// Pass an open file to the daemon, and a second, direct descriptor of it if there can be one.
    /// Here and not in the daemon, because O_DIRECT is a property of the open file, which is the
    /// client's, and because opening again there would be with the daemon's rights.
    pub(crate) fn pass(self, at: At<'_>, file: BorrowedFd<'_>) -> Result<Handle, SessionError> {
        let access = match (self.access.read, self.access.write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
        // What is no file is refused by the daemon; opening it once more might wait.
        let is_file = rustix::fs::fstat(file)
            .is_ok_and(|facts| FileType::from_raw_mode(facts.st_mode) == FileType::RegularFile);
        let direct = (self.direct && is_file).then(|| {
            // Through /proc it is the same file, whatever became of its path.
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let flags = access | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOCTTY;
            rustix::fs::open(path, flags, Mode::empty())
        });
        // The file system has no direct access, or there is no /proc: through the page cache.
        let direct = direct.and_then(Result::ok);
        let request = Request::OpenFile { access: self.access, direct: direct.is_some() };
        let answer = match &direct {
            Some(direct) => at.0.control.ask(&request, &[direct.as_fd(), file]),
            None => at.0.control.ask(&request, &[file]),
        }?;
        let origin = match at.1.reopens() {
            true => {
                let file = file.try_clone_to_owned()?;
                Some(Origin::File { access: self.access, file, direct })
            }
            false => None,
        };
        Handle::from_answer(at, answer, origin)
    }
}

/// The kernel has one number for a file that is not there and for a directory.
fn unopened(path: &Path, source: io::Error) -> OpenError {
    let path = path.to_owned();
    let is_gone = |parent: &Path| {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        parent.metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    if source.kind() == io::ErrorKind::NotFound && path.parent().is_some_and(is_gone) {
        return OpenError::NoDirectory { path };
    }
    OpenError::File { path, source }
}

/// The connection at which something is opened, and the client it is for.
pub(crate) type At<'a> = (&'a Connection, &'a Arc<Link>);

/// Something open: a local file, a file of an export, a region. Cheap to clone; closed when the
/// last clone and the last request that uses it are gone. A client that reconnects opens it again:
/// a local file by its descriptor, what has a name by its name.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Client, OpenOptions};
/// let client = Client::connect("/run/piped/client.sock")?;
/// let here = client.open_file("/srv/data/blocks", OpenOptions::read())?;
/// let there = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read())?;
/// println!("{} bytes here, {} there", here.len(), there.len());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Handle {
    pub(crate) core: Arc<HandleCore>,
}

impl Handle {
    /// Open by name.
    pub(crate) fn open(at: At<'_>, request: &Request) -> Result<Self, SessionError> {
        let answer = at.0.control.ask(request, &[])?;
        let origin = at.1.reopens().then(|| Origin::named(request));
        Self::from_answer(at, answer, origin)
    }

    fn from_answer(
        (connection, link): At<'_>,
        answer: Answer,
        origin: Option<Origin>,
    ) -> Result<Self, SessionError> {
        let (Reply::Opened { handle, direct_alignment, length }, _) = answer else {
            return Err(SessionError::Unexpected);
        };
        let core = Arc::new(HandleCore {
            link: Arc::clone(link),
            place: AtomicU64::new(place(connection.generation, handle)),
            direct_alignment: AtomicU32::new(direct_alignment),
            length: AtomicU64::new(length),
            origin,
            closed: AtomicBool::new(false),
            costs: Mutex::default(),
        });
        if core.origin.is_some() {
            link.remember(&core);
        }
        Ok(Self { core })
    }

    /// Its length in bytes when it was opened, the last time.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.core.length.load(Ordering::Relaxed)
    }

    /// Whether it had no bytes when it was opened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Offsets and lengths at multiples of this many bytes go past the page cache, without a copy.
    /// 0: none do.
    #[must_use]
    pub fn direct_alignment(&self) -> u32 {
        self.core.direct_alignment.load(Ordering::Relaxed)
    }

    /// What reading from it costs at present, by the daemon's measurements; `None` where it has none, as of a disk of
    /// another node, or where the daemon is older than the question. Asked each time, over the control socket.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use piped_client::{Access, Client};
    /// let client = Client::connect("/run/piped/client.sock")?;
    /// let region = client.open_region(Some("beta"), "halo", Access::READ)?;
    /// if let Some(costs) = region.read_costs()? {
    ///     println!("{:.0} us and {:.1} ns a byte", costs.latency_seconds * 1e6, costs.per_byte_seconds * 1e9);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn read_costs(&self) -> Result<Option<PathCosts>, SessionError> {
        self.core.ask_costs(Way::Read)
    }

    /// The same of writing to it.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn write_costs(&self) -> Result<Option<PathCosts>, SessionError> {
        self.core.ask_costs(Way::Write)
    }

    /// What its users know of its path.
    pub(crate) fn known_costs(&self, way: Way) -> Known {
        lock(&self.core.costs)[way as usize]
    }

    /// One of them has measured it.
    pub(crate) fn keep_costs(&self, way: Way, measured: Measured) {
        lock(&self.core.costs)[way as usize].handle_measured(measured);
    }

    /// Asks the daemon for its users. One that cannot say is no failure of theirs.
    pub(crate) fn ask_costs(&self, way: Way) -> Option<PathCosts> {
        let told = self.core.ask_costs(way).ok().flatten();
        let known = &mut lock(&self.core.costs)[way as usize];
        known.handle_told(told, clock::now_ns());
        known.costs()
    }

    /// The number the daemon gave it, as its reports show it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.core.place.load(Ordering::Relaxed) as u32
    }
}

#[derive(Debug)]
pub(crate) struct HandleCore {
    pub(crate) link: Arc<Link>,
    /// Where it is open: the generation of the connection (high half) and the number the daemon gave
    /// it (low half), in one word, so that nobody sees a number of another connection.
    place: AtomicU64,
    direct_alignment: AtomicU32,
    length: AtomicU64,
    /// `None`: nobody opens it again.
    origin: Option<Origin>,
    closed: AtomicBool,
    /// What is known of its path, each way.
    costs: Mutex<[Known; 2]>,
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Read,
    Write,
}

/// How an attempt to open a handle again went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reopened {
    Yes,
    /// It is worth another attempt.
    NotNow,
    Never,
}

fn place(generation: u32, number: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(number)
}

impl HandleCore {
    /// The generation of the connection where it is open, and its number there.
    pub(crate) fn place(&self) -> (u32, u32) {
        // Relaxed: the word says all there is; the connection is found through its own lock.
        let place = self.place.load(Ordering::Relaxed);
        ((place >> 32) as u32, place as u32)
    }

    /// Open it at another connection.
    pub(crate) fn reopen(&self, connection: &Connection) -> Reopened {
        let Some(origin) = &self.origin else { return Reopened::Never };
        match origin.ask(&connection.control) {
            Ok((Reply::Opened { handle, direct_alignment, length }, _)) => {
                self.direct_alignment.store(direct_alignment, Ordering::Relaxed);
                self.length.store(length, Ordering::Relaxed);
                self.place.store(place(connection.generation, handle), Ordering::Relaxed);
                Reopened::Yes
            }
            // Its peer, or a place for it.
            Err(SessionError::Refused {
                status: Status::PeerLost | Status::DeadlineExceeded | Status::WouldBlock,
                ..
            }) => Reopened::NotNow,
            Err(SessionError::Refused { .. } | SessionError::Unsendable(_)) | Ok(_) => {
                Reopened::Never
            }
            Err(_) => Reopened::NotNow,
        }
    }

    fn ask_costs(&self, way: Way) -> Result<Option<PathCosts>, SessionError> {
        let (generation, handle) = self.place();
        let control = self.link.control(generation).ok_or(SessionError::Disconnected)?;
        if !control.tells_costs() {
            return Ok(None);
        }
        let request = Request::PathCosts { handle, write: way == Way::Write };
        match control.ask(&request, &[])?.0 {
            Reply::PathCosts(costs) => Ok(PathCosts::read(&costs)),
            _ => Err(SessionError::Unexpected),
        }
    }

    /// Close it now, and know it.
    fn close(&self) -> Result<(), SessionError> {
        // Relaxed: the flag guards nothing but itself.
        self.closed.store(true, Ordering::Relaxed);
        let (generation, handle) = self.place();
        let control = self.link.control(generation).ok_or(SessionError::Disconnected)?;
        match control.ask(&Request::CloseHandle { handle }, &[])?.0 {
            Reply::Done => Ok(()),
            _ => Err(SessionError::Unexpected),
        }
    }
}

impl Drop for HandleCore {
    fn drop(&mut self) {
        let (generation, handle) = self.place();
        // One of a connection that is over is closed already.
        if !*self.closed.get_mut()
            && let Some(control) = self.link.control(generation)
        {
            control.tell(&Request::CloseHandle { handle });
        }
    }
}

/// What others may do with a region, and who they are.
///
/// ```
/// use piped_client::{Access, RegionOptions};
/// // For programs of one user on this node, and for those of the node `beta`.
/// let options = RegionOptions::new(Access::ALL).users([1000]).peers(["beta"]);
/// assert_eq!(RegionOptions::from(Access::READ), RegionOptions::new(Access::READ));
/// # let _ = options;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionOptions {
    access: Access,
    audience: Audience,
}

impl RegionOptions {
    /// For everybody that the daemons admit.
    #[must_use]
    pub fn new(access: Access) -> Self {
        Self { access, audience: Audience::default() }
    }

    /// Of this node's users these alone, by their numbers; 16 at most. None: no user.
    #[must_use]
    pub fn users(mut self, users: impl IntoIterator<Item = u32>) -> Self {
        self.audience.users = Some(users.into_iter().collect());
        self
    }

    /// Of other nodes these alone, by their names; 16 at most. None: no node. Whoever may use a peer's daemon may reach
    /// what is for the peer.
    #[must_use]
    pub fn peers<N: Into<String>>(mut self, peers: impl IntoIterator<Item = N>) -> Self {
        self.audience.peers = Some(peers.into_iter().map(Into::into).collect());
        self
    }
}

impl From<Access> for RegionOptions {
    fn from(access: Access) -> Self {
        Self::new(access)
    }
}

/// Memory that others may read or write by name, until it is closed or dropped.
///
/// Others reach it at any time, so its bytes are copied in and out, never looked at in place.
/// Dropping waits until the daemon says that nobody touches the memory any more.
///
/// It ends with its daemon, and a reconnect does not offer it again: whether what is in the memory is
/// still what others shall see is the owner's to say. [`Self::read_at`] has it, and
/// [`crate::Client::export_region`] offers a new one, under the same name if you like.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Access, Client};
/// let client = Client::connect("/run/piped/client.sock")?;
/// let region = client.export_region("halo", client.allocate(1 << 20)?, Access::READ)?;
/// region.write_at(0, b"left edge")?;
/// let buffer = region.close()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct RegionExport {
    handle: Handle,
    /// Taken by `close`.
    shared: Option<Shared>,
}

impl RegionExport {
    /// `shared` is lost if this fails and the daemon may have exported it all the same.
    pub(crate) fn open(
        at: At<'_>,
        name: &str,
        buffer: Buffer,
        RegionOptions { access, audience }: RegionOptions,
    ) -> Result<Self, (SessionError, Option<Buffer>)> {
        let (segment, offset) = buffer.place();
        let request = Request::ExportRegion {
            name: name.to_owned(),
            segment,
            offset,
            length: buffer.len() as u64,
            access,
            audience,
        };
        let shared = buffer.share();
        let opened = at.0.control.ask(&request, &[]);
        match opened.and_then(|answer| Handle::from_answer(at, answer, None)) {
            Ok(handle) => Ok(Self { handle, shared: Some(shared) }),
            // Refused, or not even sent: nobody touches it.
            Err(error @ (SessionError::Refused { .. } | SessionError::Unsendable(_))) => {
                Err((error, Some(shared.reclaim())))
            }
            Err(error) => Err((error, None)),
        }
    }

    /// For requests of this client on its own region.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared().length as usize
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copy bytes out. Others may be writing them: whole words arrive whole, no more is promised.
    ///
    /// # Errors
    /// Not inside the region; nothing was copied.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> Result<(), OutOfBuffer> {
        self.check(offset, to.len())?;
        Ok(self.shared().range.load(offset as u64, to)?)
    }

    /// Copy bytes in. Others may be reading them.
    ///
    /// # Errors
    /// Not inside the region; nothing was copied.
    pub fn write_at(&self, offset: usize, from: &[u8]) -> Result<(), OutOfBuffer> {
        self.check(offset, from.len())?;
        Ok(self.shared().range.store(offset as u64, from)?)
    }

    /// End the export and take the memory back.
    ///
    /// # Errors
    /// The daemon did not confirm that nobody touches the memory any more; it is not used again.
    pub fn close(mut self) -> Result<Buffer, SessionError> {
        self.handle.core.close()?;
        let shared = self.shared.take().expect("only `close` takes it, and it consumes the export");
        Ok(shared.reclaim())
    }

    fn check(&self, offset: usize, length: usize) -> Result<(), OutOfBuffer> {
        let (offset, length, buffer_bytes) = (offset as u64, length as u64, self.shared().length);
        let inside = offset.checked_add(length).is_some_and(|end| end <= buffer_bytes);
        if inside { Ok(()) } else { Err(OutOfBuffer { offset, length, buffer_bytes }) }
    }

    fn shared(&self) -> &Shared {
        self.shared.as_ref().expect("only `close` takes it, and it consumes the export")
    }
}

impl Drop for RegionExport {
    fn drop(&mut self) {
        // Not after `close`, and not if that failed: then nobody knows whether it is free.
        if self.handle.core.closed.load(Ordering::Relaxed) {
            return;
        }
        if let (Ok(()), Some(shared)) = (self.handle.core.close(), self.shared.take()) {
            drop(shared.reclaim());
        }
    }
}
