//! Memory that the program owns and lends to the daemon.
//!
//! The daemon maps the same pages, so a buffer of such memory is as any other: nothing is copied
//! for a request. What the program has to do for that differs by the kind of memory
//! ([`crate::Client::lend_memfd`], [`crate::Client::lend_private`],
//! [`crate::Client::lend_shared`]).

use std::os::fd::AsFd;
use std::sync::Arc;

use piped_ring::{Area, LentKind, Segment, lent};

use crate::arena::{LentMemory, Loan};
use crate::buffer::{Buffer, Home};
use crate::connection::Shared;
use crate::error::{LendError, OutOfBuffer, PartError, SessionError};

/// Memory of the program that is lent to the daemon, until this and all buffers of it are dropped.
///
/// The program keeps its own pointers and mappings. Who uses them while a request has a buffer of
/// the same bytes sees them change. There are three kinds:
///
/// - [`crate::Client::lend_memfd`]: a memfd that is sealed against shrinking (F_SEAL_SHRINK), as
///   long as it is then. Others may write it at any time: buffers give no reference into it
///   ([`Buffer::try_slice`]).
/// - [`crate::Client::lend_shared`]: a file of memory without seals. Anybody who may can cut it,
///   also under a request. Requests on it then end with [`crate::Status::BadBuffer`], and nobody
///   dies of a signal but who uses a pointer of its own. Regions in it have no atomic access, and
///   its bytes are copied between it and sockets.
/// - [`crate::Client::lend_private`]: whole pages of private anonymous memory. Their bytes are
///   moved into a memfd that is mapped in their place, so pointers stay good. Memory is refused
///   that is not mapped, shared, of a file, locked, or lent already. The area stays mapped to the
///   memfd when it is given back. A forked child does not have it: what the child touches there
///   faults.
///
/// After a reconnect the memory is lent to the new daemon, and has not moved. Reads into it that
/// were under way have ended, also with [`crate::Request::resubmit`], and their parts of it are
/// lost: the kernel may still write there for the old daemon. If the new daemon refuses the memory,
/// requests are refused with [`crate::SubmitFault::NotLent`].
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
pub struct Lent(Arc<LentMemory>);

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
        let segment = lent::map(file, length, kind)?;
        let fd = file.as_fd().try_clone_to_owned().map_err(system)?;
        Ok(Self::over(shared, shared.loan(fd, (length, kind))?, segment))
    }

    fn over(shared: &Shared, loan: Loan, segment: Segment) -> Self {
        let memory = Arc::new(LentMemory::new(loan, segment));
        shared.remember_lent(&memory);
        Self(memory)
    }

    /// Length of the memory in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        // A mapping's length fits.
        self.0.len() as usize
    }

    /// Never true: no memory of no bytes is lent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Where the memory is mapped in this process. Of private memory it is the program's own
    /// address. Of a descriptor's, it is a mapping that ends with this and all buffers of it.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// A buffer of `length` bytes, at least 1, from `offset` on. Any bytes that are in no other
    /// buffer: what is not aligned for direct access goes by way of a copy, or of the page cache.
    ///
    /// # Errors
    /// See [`PartError`].
    pub fn buffer(&self, offset: usize, length: usize) -> Result<Buffer, PartError> {
        let (offset, length, buffer_bytes) = (offset as u64, length as u64, self.0.len());
        let inside = offset.checked_add(length).is_some_and(|end| end <= buffer_bytes);
        if !inside || length == 0 {
            return Err(OutOfBuffer { offset, length, buffer_bytes }.into());
        }
        let range = self.0.take(offset, length).ok_or(PartError::Taken { offset, length })?;
        Ok(Buffer::new(Home::Lent(Arc::clone(&self.0)), range, length))
    }
}

/// Private memory of the program that a daemon is ready to take, and that is as it was: made by
/// [`crate::Client::offer_private`]. Dropped, it is not lent.
///
/// ```no_run
/// # fn lend(block: &'static mut [u8]) -> Result<(), Box<dyn std::error::Error>> {
/// let client = piped_client::Client::connect("/run/piped/client.sock")?;
/// let offer = client.offer_private(block.as_mut_ptr(), block.len())?;
/// block[0] = 1; // It is the program's still.
/// // SAFETY: nobody else has the block, and it is there for good.
/// let lent = unsafe { offer.take_over()? };
/// # drop(lent); Ok(()) }
/// ```
#[derive(Debug)]
pub struct PrivateOffer {
    shared: Arc<Shared>,
    area: Area,
    loan: Loan,
}

impl PrivateOffer {
    /// Asks the daemon to take private memory of the process.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        start: *mut u8,
        length: usize,
    ) -> Result<Self, LendError> {
        shared.check_process()?;
        let area = Area::new(start, length)?;
        let fd = area.fd().try_clone_to_owned().map_err(SessionError::System)?;
        let loan = shared.loan(fd, (length as u64, LentKind::Sealed))?;
        Ok(Self { shared: Arc::clone(shared), area, loan })
    }

    /// Moves the bytes into the memory that the daemon has.
    ///
    /// # Errors
    /// See [`LendError`]. The area is as it was.
    ///
    /// # Safety
    /// As for [`crate::Client::lend_private`].
    #[allow(unsafe_code, reason = "the program alone knows who uses its memory")]
    pub unsafe fn take_over(self) -> Result<Lent, LendError> {
        let Self { shared, area, loan } = self;
        // SAFETY: what the function asks for is what the caller promises.
        let segment = unsafe { area.take_over()? };
        Ok(Lent::over(&shared, loan, segment))
    }
}
