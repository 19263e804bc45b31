//! Handles: open files, files of other nodes, and regions.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use piped_core::access::Access;
use piped_core::status::Status;
use piped_ring::handshake::{Audience, Reply, Request};

use crate::buffer::{Buffer, Shared};
use crate::clock;
use crate::connection::{Connection, Link};
use crate::control::{Answer, Control, lock};
use crate::error::{OutOfBuffer, SessionError};
use crate::origin::Origin;
use crate::path::{Known, Measured, PathCosts};

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
    /// Opens a thing that has a name.
    pub(crate) fn open(at: At<'_>, request: &Request) -> Result<Self, SessionError> {
        let answer = at.0.control.ask(request, &[])?;
        let origin = at.1.reopens().then(|| Origin::named(request));
        Self::from_answer(at, answer, origin)
    }

    pub(crate) fn from_answer(
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
            locked: AtomicBool::new(false),
            costs: Mutex::default(),
        });
        if core.origin.is_some() {
            link.remember(&core);
        }
        Ok(Self { core })
    }

    /// The handle's length in bytes when it was opened, the last time.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.core.length.load(Ordering::Relaxed)
    }

    /// Whether the file or region had no bytes when it was opened.
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

    /// The cost of reading from the handle at present, by the daemon's measurements. `None` where
    /// it has none, as for a disk of another node, or where the daemon is older than the question.
    /// The daemon is asked each time, over the control socket.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use piped_client::{Access, Client};
    /// let client = Client::connect("/run/piped/client.sock")?;
    /// let region = client.open_region(Some("beta"), "halo", Access::READ)?;
    /// if let Some(costs) = region.read_costs()? {
    ///     let (first, each) = (costs.latency_seconds * 1e6, costs.per_byte_seconds * 1e9);
    ///     println!("{first:.0} us and {each:.1} ns a byte");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn read_costs(&self) -> Result<Option<PathCosts>, SessionError> {
        self.core.ask_costs(Way::Read)
    }

    /// The cost of writing to the handle, as [`Self::read_costs`] has it for reading.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn write_costs(&self) -> Result<Option<PathCosts>, SessionError> {
        self.core.ask_costs(Way::Write)
    }

    /// The costs of the handle's path, as its users know them.
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
        self.keep_told(way, told)
    }

    /// The daemon has told them, or cannot. Returns what is known by now.
    pub(crate) fn keep_told(&self, way: Way, told: Option<PathCosts>) -> Option<PathCosts> {
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
    /// Where the handle is open: the generation of the connection (high half) and the daemon's
    /// number (low half), in one word, so that nobody sees a number of another connection.
    place: AtomicU64,
    direct_alignment: AtomicU32,
    length: AtomicU64,
    /// `None`: nobody opens it again.
    origin: Option<Origin>,
    closed: AtomicBool,
    /// A range may be locked: opened again, it would be without its locks.
    locked: AtomicBool,
    /// Costs of its path, for reading and for writing.
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
    /// Another attempt may succeed.
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

    /// Ranges of it are locked from now on, or (`false`) none is.
    pub(crate) fn note_locked(&self, locked: bool) {
        // Relaxed: who opens it again does so after its requests have ended.
        self.locked.store(locked, Ordering::Relaxed);
    }

    /// Open it at another connection.
    pub(crate) fn reopen(&self, connection: &Connection) -> Reopened {
        let origin = self.origin.as_ref().filter(|_| !self.locked.load(Ordering::Relaxed));
        let Some(origin) = origin else { return Reopened::Never };
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
        match self.costs_question(way)? {
            Some((control, request)) => read_costs(control.ask(&request, &[])?),
            None => Ok(None),
        }
    }

    /// What asks for the costs of its path; `None`: this daemon does not tell them.
    pub(crate) fn costs_question(
        &self,
        way: Way,
    ) -> Result<Option<(Arc<Control>, Request)>, SessionError> {
        let (generation, handle) = self.place();
        let control = self.link.control(generation).ok_or(SessionError::Disconnected)?;
        let request = Request::PathCosts { handle, write: way == Way::Write };
        Ok(control.tells_costs().then_some((control, request)))
    }

    /// Close it now, and know it.
    fn close(&self) -> Result<(), SessionError> {
        let (control, request) = self.close_question()?;
        read_done(control.ask(&request, &[])?)
    }

    /// What closes it; nothing else will from now on.
    pub(crate) fn close_question(&self) -> Result<(Arc<Control>, Request), SessionError> {
        // Relaxed: the flag guards nothing but itself.
        self.closed.store(true, Ordering::Relaxed);
        let (generation, handle) = self.place();
        let control = self.link.control(generation).ok_or(SessionError::Disconnected)?;
        Ok((control, Request::CloseHandle { handle }))
    }
}

/// What the answer says that a path costs.
pub(crate) fn read_costs((reply, _): Answer) -> Result<Option<PathCosts>, SessionError> {
    match reply {
        Reply::PathCosts(costs) => Ok(PathCosts::read(&costs)),
        _ => Err(SessionError::Unexpected),
    }
}

/// Whether the answer says that it is done.
pub(crate) fn read_done((reply, _): Answer) -> Result<(), SessionError> {
    if matches!(reply, Reply::Done) { Ok(()) } else { Err(SessionError::Unexpected) }
}

impl Drop for HandleCore {
    fn drop(&mut self) {
        let (generation, handle) = self.place();
        // One of a connection that is over is closed already.
        if !*self.closed.get_mut()
            && let Some(control) = self.link.control(generation)
        {
            control.tell(Request::CloseHandle { handle });
        }
    }
}

/// The rights of others on a region: which accesses, for which users and nodes.
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
    /// Options for a region that everybody may use whom the daemons admit.
    #[must_use]
    pub fn new(access: Access) -> Self {
        Self { access, audience: Audience::default() }
    }

    /// Only these users of this node, by their numbers; 16 at most. An empty list: no user.
    #[must_use]
    pub fn users(mut self, users: impl IntoIterator<Item = u32>) -> Self {
        self.audience.users = Some(users.into_iter().collect());
        self
    }

    /// Only these other nodes, by their names; 16 at most. An empty list: no node. A user that may
    /// use a peer's daemon may reach what is for the peer.
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
/// It ends with its daemon, and a reconnect does not offer it again: whether what is in the memory
/// is still what others shall see is the owner's to say. [`Self::read_at`] has it, and
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
    /// Taken by `close` and by dropping.
    shared: Option<Shared>,
}

impl RegionExport {
    pub(crate) fn open(
        at: At<'_>,
        name: &str,
        buffer: Buffer,
        options: RegionOptions,
    ) -> Result<Self, (SessionError, Option<Buffer>)> {
        let (request, shared) = Self::question(name, buffer, options);
        Self::from_answer(at, at.0.control.ask(&request, &[]), shared)
    }

    /// What asks the daemon for it, and the memory as it is from then on.
    pub(crate) fn question(
        name: &str,
        buffer: Buffer,
        RegionOptions { access, audience }: RegionOptions,
    ) -> (Request, Shared) {
        let (segment, offset) = buffer.place();
        let request = Request::ExportRegion {
            name: name.to_owned(),
            segment,
            offset,
            length: buffer.len() as u64,
            access,
            audience,
        };
        (request, buffer.share())
    }

    /// `shared` is lost if this fails and the daemon may have exported it all the same.
    pub(crate) fn from_answer(
        at: At<'_>,
        opened: Result<Answer, SessionError>,
        shared: Shared,
    ) -> Result<Self, (SessionError, Option<Buffer>)> {
        match opened.and_then(|answer| Handle::from_answer(at, answer, None)) {
            Ok(handle) => Ok(Self { handle, shared: Some(shared) }),
            // Refused, or not even sent: nobody touches it.
            Err(error @ (SessionError::Refused { .. } | SessionError::Unsendable(_))) => {
                Err((error, Some(shared.reclaim())))
            }
            Err(error) => Err((error, None)),
        }
    }

    /// The handle for requests of this client on its own region.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The region's length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared().length as usize
    }

    /// Whether the region has no bytes.
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
    pub fn close(self) -> Result<Buffer, SessionError> {
        self.handle.core.close()?;
        Ok(self.reclaim())
    }

    /// The memory, of which the daemon said that nobody touches it any more.
    pub(crate) fn reclaim(mut self) -> Buffer {
        let shared = self.shared.take().expect("only `close` takes it, and it consumes the export");
        shared.reclaim()
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
