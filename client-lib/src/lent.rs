//! Memory that the program owns and lends to the daemon.
//!
//! The daemon maps the same pages, so a buffer of such memory is as any other: nothing is copied for
//! a request. What the program has to do for that differs by the kind of memory
//! ([`crate::Client::lend_memfd`], [`crate::Client::lend_private`],
//! [`crate::Client::lend_shared`]).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use piped_ring::handshake::{Reply, Request};
use piped_ring::{Area, ExclusiveRange, LentKind, Segment};
use rustix::process::{Pid, getpid};

use crate::arena::{Arena, Free};
use crate::buffer::{Buffer, Home};
use crate::client::Client;
use crate::connection::{Connection, Link, Shared};
use crate::control::lock;
use crate::error::{LendError, OutOfBuffer, PartError, SessionError};

/// Stands for a segment number where there is none.
const NOWHERE: u32 = u32::MAX;

/// Memory of the program that is lent to the daemon, until this and all buffers of it are dropped.
///
/// The program keeps its own pointers and mappings. Who uses them while a request has a buffer of
/// the same bytes sees them change.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Client, OpenOptions};
/// let client = Client::connect("/run/piped/client.sock")?;
/// let file = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read())?;
/// let memory = std::fs::File::options().read(true).write(true).open("/dev/shm/cache.mmap")?;
/// let lent = client.lend_shared(&memory)?;
/// let (block, bytes) = client.queue()?.read(&file, 0, lent.buffer(4096, 65_536)?)?;
/// println!("{bytes} bytes are in the file of memory now, at {}", 4096);
/// # drop(block); Ok(()) }
/// ```
#[derive(Debug)]
pub struct Lent(Arc<LentCore>);

/// Lent memory behind its buffers.
#[derive(Debug)]
pub(crate) struct LentCore {
    asked: Asked,
    /// First address.
    start: usize,
    free: Mutex<Free>,
}

/// Memory that a daemon has taken. Given back when this is dropped.
#[derive(Debug)]
struct Asked {
    client: u32,
    kind: LentKind,
    fd: OwnedFd,
    /// Length in bytes.
    length: u64,
    /// Generation of the connection where it is lent, and its number there.
    place: AtomicU64,
    link: Arc<Link>,
    /// The process that lends it: a forked one has not.
    process: Pid,
}

fn place(generation: u32, number: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(number)
}

impl Lent {
    /// Lends a file of memory by its descriptor.
    pub(crate) fn by_file(
        shared: &Shared,
        file: &impl AsFd,
        kind: LentKind,
    ) -> Result<Self, LendError> {
        shared.check_process()?;
        let system = |error| SessionError::System(error);
        let length = rustix::fs::fstat(file).map_err(|error| system(error.into()))?.st_size;
        let length = u64::try_from(length).unwrap_or(0);
        let segment = Segment::lent(file, length, kind)?;
        let fd = file.as_fd().try_clone_to_owned().map_err(system)?;
        let asked = Asked::lend(shared, fd, length, kind)?;
        Ok(asked.over(shared, segment))
    }

    /// Length of the memory in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        // A mapping's length fits.
        self.0.asked.length as usize
    }

    /// Never true: no memory of no bytes is lent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.asked.length == 0
    }

    /// Where the memory is mapped in this process. Of private memory it is the program's own
    /// address. Of a descriptor's, it is a mapping that ends with this and all buffers of it.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.0.start)
    }

    /// A buffer of `length` bytes, at least 1, from `offset` on. Any bytes that are in no other
    /// buffer: what is not aligned for direct access goes by way of a copy, or of the page cache.
    ///
    /// # Errors
    /// See [`PartError`].
    pub fn buffer(&self, offset: usize, length: usize) -> Result<Buffer, PartError> {
        let (offset, length, buffer_bytes) = (offset as u64, length as u64, self.0.asked.length);
        let inside = offset.checked_add(length).is_some_and(|end| end <= buffer_bytes);
        if !inside || length == 0 {
            return Err(OutOfBuffer { offset, length, buffer_bytes }.into());
        }
        let range = lock(&self.0.free).take_at(offset, length);
        let range = range.ok_or(PartError::Taken { offset, length })?;
        Ok(Buffer::new(Home::Lent(Arc::clone(&self.0)), range, length))
    }
}

impl Client {
    /// Lends a memfd that is sealed against shrinking (F_SEAL_SHRINK), as it is now: what grows later
    /// is not lent. Others may have it mapped, and write it at any time: buffers give no reference
    /// into it ([`Buffer::try_slice`]).
    ///
    /// # Errors
    /// See [`LendError`].
    pub fn lend_memfd(&self, file: impl AsFd) -> Result<Lent, LendError> {
        Lent::by_file(&self.shared, &file, LentKind::Sealed)
    }

    /// Lends a file of memory that has no seals: POSIX shared memory, a file below `/dev/shm`.
    ///
    /// Anybody who may can cut such a file, under a request too. Then requests on it end with
    /// [`piped_core::status::Status::BadBuffer`], copies through buffers with [`OutOfBuffer`], and
    /// nobody dies of a signal, but who uses a pointer of its own. Regions in it have no atomic
    /// access, and its bytes are copied once between it and a socket.
    ///
    /// # Errors
    /// See [`LendError`].
    pub fn lend_shared(&self, file: impl AsFd) -> Result<Lent, LendError> {
        Lent::by_file(&self.shared, &file, LentKind::Loose)
    }

    /// Lends private anonymous memory of this process: whole pages, from a page on. Its bytes are
    /// moved into a memfd that is mapped in its place, so all pointers there stay good. That takes
    /// about as long as copying the bytes twice, once. Buffers are borrowed as those of the arena.
    ///
    /// Memory is refused that is not mapped, shared, of a file, locked, of hugetlbfs, lent already,
    /// or not readable and writable. The area stays mapped as it is when it is given back. A forked
    /// child does not have it, before or after: what it touches there faults.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::alloc::{Layout, alloc_zeroed};
    /// let client = piped_client::Client::connect("/run/piped/client.sock")?;
    /// let layout = Layout::from_size_align(1 << 20, 4096)?;
    /// // SAFETY: nobody else has the memory, which is never freed, and it is used by buffers alone.
    /// let lent = unsafe { client.lend_private(alloc_zeroed(layout), layout.size())? };
    /// assert!(lent.buffer(0, 512)?.as_slice().iter().all(|byte| *byte == 0));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`LendError`]. The area is as it was.
    ///
    /// # Safety
    /// The program must see to this, because nobody else can:
    /// - No thread writes the area during the call, and no system call or device does.
    /// - As long as the [`Lent`] or a buffer of it is left, the area stays mapped: it is not freed,
    ///   unmapped, moved, or protected.
    /// - While a buffer is borrowed ([`Buffer::as_slice`], [`Buffer::as_mut_slice`]), its bytes are
    ///   used as such a borrow allows: nobody writes them, and of a mutable one, nobody reads them
    ///   either.
    #[allow(unsafe_code, reason = "the program alone knows who uses its memory")]
    pub unsafe fn lend_private(&self, start: *mut u8, length: usize) -> Result<Lent, LendError> {
        self.shared.check_process()?;
        let area = Area::new(start, length)?;
        let system = |error| SessionError::System(error);
        let fd = area.fd().try_clone_to_owned().map_err(system)?;
        // Before the bytes move: if the daemon refuses, nothing has changed.
        let asked = Asked::lend(&self.shared, fd, length as u64, LentKind::Sealed)?;
        // SAFETY: what the function asks for is what the caller promises.
        let segment = unsafe { area.take_over()? };
        Ok(asked.over(&self.shared, segment))
    }
}

impl LentCore {
    pub(crate) fn client(&self) -> u32 {
        self.asked.client
    }

    /// The generation of the connection where it is lent, and its number there.
    pub(crate) fn place(&self) -> (u32, u32) {
        self.asked.place()
    }

    /// Whether requests of an arena's connection can name it.
    pub(crate) fn is_of(&self, arena: &Arena) -> bool {
        let (generation, number) = self.place();
        self.client() == arena.client() && generation == arena.generation() && number != NOWHERE
    }

    /// Takes a part back.
    pub(crate) fn release(&self, range: ExclusiveRange) {
        lock(&self.free).give_back(range);
    }

    /// Lends it to the daemon of another connection, which may refuse it.
    pub(crate) fn lend_again(&self, connection: &Connection) {
        if self.asked.ask(connection).is_err() {
            self.asked.place.store(place(connection.generation, NOWHERE), Ordering::Relaxed);
        }
    }
}

impl Asked {
    /// Lends memory to the client's daemon.
    fn lend(shared: &Shared, fd: OwnedFd, length: u64, kind: LentKind) -> Result<Self, LendError> {
        let connection = shared.connection();
        let asked = Self {
            client: shared.client,
            kind,
            fd,
            length,
            place: AtomicU64::new(place(connection.generation, NOWHERE)),
            link: Arc::clone(&shared.link),
            process: getpid(),
        };
        asked.ask(&connection)?;
        Ok(asked)
    }

    /// The memory as it is mapped here.
    fn over(self, shared: &Shared, segment: Segment) -> Lent {
        let start = segment.as_ptr().expose_provenance();
        let free = Mutex::new(Free::of(ExclusiveRange::claim(segment)));
        let core = Arc::new(LentCore { asked: self, start, free });
        shared.remember_lent(&core);
        Lent(core)
    }

    fn place(&self) -> (u32, u32) {
        // Relaxed: the word says all there is.
        let place = self.place.load(Ordering::Relaxed);
        ((place >> 32) as u32, place as u32)
    }

    fn ask(&self, connection: &Connection) -> Result<(), LendError> {
        if !connection.control.takes_memory() {
            return Err(LendError::Unsupported);
        }
        let request = Request::Lend { bytes: self.length, kind: self.kind };
        match connection.control.ask(&request, &[self.fd.as_fd()])?.0 {
            Reply::Lent { segment } => {
                self.place.store(place(connection.generation, segment), Ordering::Relaxed);
                Ok(())
            }
            _ => Err(SessionError::Unexpected.into()),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let (generation, segment) = self.place();
        // With its daemon's session it is given back already.
        if segment != NOWHERE
            && self.process == getpid()
            && let Some(control) = self.link.control(generation)
        {
            control.tell(Request::TakeBack { segment });
        }
    }
}
