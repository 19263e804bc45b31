//! The connection to a daemon.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;

use piped_client::{Access, ClientBuilder, OpenOptions, RegionOptions, WaitPolicy};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::{Buffer, bytes_of};
use crate::clock::span;
use crate::fault::Fault;
use crate::fork::Birth;
use crate::handle::{Handle, Region};
use crate::hearing::hear;
use crate::lent::Lent;
use crate::queue::{Queue, class_of};

/// A session with the daemon of this node: memory, handles, queues. For all threads.
///
/// Without a path it connects to the daemon that PIPED_CLIENT_SOCKET names, or else to the one of
/// the system. Ctrl-C ends calls that wait for the daemon; what one opens afterwards is closed.
/// A forked process cannot use it (ConnectionError).
#[pyclass(frozen, weakref, module = "piped_io")]
pub(crate) struct Client {
    client: piped_client::Client,
    born: Birth,
}

/// Accesses of a word: letters r (read), w (write), a (atomic), n (names).
fn access_of(letters: &str) -> PyResult<Access> {
    let mut access = Access::NONE;
    for letter in letters.chars() {
        match letter {
            'r' => access.read = true,
            'w' => access.write = true,
            'a' => access.atomic = true,
            'n' => access.names = true,
            _ => {
                return Err(PyValueError::new_err(
                    "an access is some of the letters r (read), w (write), a (atomic), n (names)",
                ));
            }
        }
    }
    Ok(access)
}

/// What opens a file: accesses, and whether it is made.
fn options_of(access: &str, create: Option<&str>, mode: Option<u32>) -> PyResult<OpenOptions> {
    let options = OpenOptions::new(access_of(access)?);
    let options = mode.map_or(options, |mode| options.mode(mode));
    Ok(match create {
        None => options,
        Some("open") => options.create(true),
        Some("new") => options.create_new(true),
        Some(_) => return Err(PyValueError::new_err("create is None, \"open\" or \"new\"")),
    })
}

/// How queues wait, by the name of a policy.
fn wait_of(name: &str) -> PyResult<WaitPolicy> {
    match name {
        "balanced" => Ok(WaitPolicy::Balanced),
        "latency" => Ok(WaitPolicy::Latency),
        "throughput" => Ok(WaitPolicy::Throughput),
        _ => Err(PyValueError::new_err("wait is \"balanced\", \"latency\" or \"throughput\"")),
    }
}

/// A descriptor of Python's for a call on another thread.
fn duplicate(fd: RawFd) -> PyResult<OwnedFd> {
    if fd < 0 {
        return Err(PyValueError::new_err("the descriptor is closed"));
    }
    // SAFETY: it is no -1, and this thread has the interpreter, without which nobody of Python's
    // closes it, or the kernel says that it is closed.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(borrowed.try_clone_to_owned()?)
}

/// Private memory that the daemon is ready to take, on its way between threads.
struct Offer(piped_client::PrivateOffer);

// SAFETY: an address and descriptors, which have no thread. The memory is touched by `take_over`
// alone.
unsafe impl Send for Offer {}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (
        socket=None, *, arena_bytes=16 << 20, depth=255, urgency=None, weight=0,
        timeout=30.0, reconnect=None, wait=None, spread=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn new(
        py: Python<'_>,
        socket: Option<PathBuf>,
        arena_bytes: u64,
        depth: u32,
        urgency: Option<&str>,
        weight: u32,
        timeout: f64,
        reconnect: Option<f64>,
        wait: Option<&str>,
        spread: bool,
    ) -> PyResult<Self> {
        let mut builder = ClientBuilder::new()
            .arena_bytes(arena_bytes)
            .depth(depth)
            .class(class_of(urgency)?)
            .weight(weight)
            .spread(spread)
            .timeout(span(timeout)?);
        if let Some(within) = reconnect {
            builder = builder.reconnect(span(within)?);
        }
        if let Some(wait) = wait {
            builder = builder.wait(wait_of(wait)?);
        }
        let client = hear(py, move || match socket {
            Some(path) => builder.connect(path),
            None => builder.connect_default(),
        })?;
        Ok(Self { client, born: Birth::now() })
    }

    /// A buffer of `length` bytes. The arena grows if it must and may.
    fn allocate(&self, py: Python<'_>, length: usize) -> PyResult<Buffer> {
        Ok(Buffer::new(self.memory(py, length)?))
    }

    /// A queue. One that ended is used again.
    fn queue(&self, py: Python<'_>) -> PyResult<Queue> {
        let client = self.own()?;
        let queue = hear(py, move || client.queue())?;
        Ok(Queue::new(self.own()?, queue))
    }

    /// Lends a memfd that is sealed against shrinking.
    fn lend_memfd(&self, py: Python<'_>, fd: RawFd) -> PyResult<Lent> {
        let (client, fd) = (self.own()?, duplicate(fd)?);
        Ok(Lent::new(hear(py, move || client.lend_memfd(fd))?, None))
    }

    /// Lends POSIX shared memory, or a file below /dev/shm.
    fn lend_shared(&self, py: Python<'_>, fd: RawFd) -> PyResult<Lent> {
        let (client, fd) = (self.own()?, duplicate(fd)?);
        Ok(Lent::new(hear(py, move || client.lend_shared(fd))?, None))
    }

    /// Lends whole pages of private anonymous memory that an object has. No other thread may write
    /// it during the call: where there is no interpreter's lock, that is the caller's to see to.
    fn lend_private(&self, object: &Bound<'_, PyAny>) -> PyResult<Lent> {
        let owner = PyBuffer::<u8>::get(&bytes_of(object)?)?;
        if owner.readonly() || !owner.is_c_contiguous() {
            return Err(Fault::invalid("the object's bytes are read-only, or lie apart").into());
        }
        let (start, length) = (owner.buf_ptr().expose_provenance(), owner.len_bytes());
        // The daemon is asked while other threads run, and moves nothing.
        let client = self.own()?;
        let offer = hear(object.py(), move || {
            let start = std::ptr::with_exposed_provenance_mut(start);
            client.offer_private(start, length).map(Offer)
        })?;
        // SAFETY: this thread has the interpreter, so none of Python's writes the area during the
        // call; that others do not, and that no thread does without such a lock, is asked of the
        // caller. The view, which the lent memory, each buffer and each region of it keep, keeps
        // the area mapped. Buffers give no Rust reference into the memory while Python may use it.
        let lent = unsafe { offer.0.take_over() };
        Ok(Lent::new(lent.map_err(Fault::from)?, Some(owner)))
    }

    /// Opens a local file with this process's rights.
    #[pyo3(signature = (path, access="r", *, create=None, mode=None, truncate=false, direct=true))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn open_file(
        &self,
        py: Python<'_>,
        path: PathBuf,
        access: &str,
        create: Option<&str>,
        mode: Option<u32>,
        truncate: bool,
        direct: bool,
    ) -> PyResult<Handle> {
        let options = options_of(access, create, mode)?.truncate(truncate).direct(direct);
        let client = self.own()?;
        Ok(Handle::new(hear(py, move || client.open_file(path, options))?))
    }

    /// Passes on a local file that is open already.
    #[pyo3(signature = (fd, access="r"))]
    fn open_fd(&self, py: Python<'_>, fd: RawFd, access: &str) -> PyResult<Handle> {
        let access = access_of(access)?;
        let (client, fd) = (self.own()?, duplicate(fd)?);
        Ok(Handle::new(hear(py, move || client.open_fd(fd, access))?))
    }

    /// Opens a file below an export of a peer, or of this node (None).
    #[pyo3(signature = (peer, export, path, access="r", *, create=None, mode=None, parents=false))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn open_export(
        &self,
        py: Python<'_>,
        peer: Option<String>,
        export: String,
        path: PathBuf,
        access: &str,
        create: Option<&str>,
        mode: Option<u32>,
        parents: bool,
    ) -> PyResult<Handle> {
        let options = options_of(access, create, mode)?.create_parents(parents);
        let client = self.own()?;
        let open = move || client.open_export(peer.as_deref(), &export, path, options);
        Ok(Handle::new(hear(py, open)?))
    }

    /// Opens a directory below an export of a peer, or of this node (None).
    #[pyo3(signature = (peer, export, path, access="r"))]
    fn open_directory(
        &self,
        py: Python<'_>,
        peer: Option<String>,
        export: String,
        path: PathBuf,
        access: &str,
    ) -> PyResult<Handle> {
        let access = access_of(access)?;
        let client = self.own()?;
        let open = move || client.open_directory(peer.as_deref(), &export, path, access);
        Ok(Handle::new(hear(py, open)?))
    }

    /// Lets others reach a buffer by name: everybody whom the daemons admit, or only these users of
    /// this node and these peers. At Ctrl-C the buffer is given back.
    #[pyo3(signature = (name, buffer, access="r", *, users=None, peers=None))]
    fn export_region(
        &self,
        py: Python<'_>,
        name: String,
        buffer: &Buffer,
        access: &str,
        users: Option<Vec<u32>>,
        peers: Option<Vec<String>>,
    ) -> PyResult<Region> {
        let mut options = RegionOptions::new(access_of(access)?);
        options = match users {
            Some(users) => options.users(users),
            None => options,
        };
        options = match peers {
            Some(peers) => options.peers(peers),
            None => options,
        };
        let client = self.own()?;
        let memory = buffer.take_whole()?;
        let export = move || Ok::<_, Fault>(client.export_region(&name, memory, options));
        match hear(py, export)? {
            Ok(export) => Ok(Region::new(export, buffer.owner())),
            Err(mut error) => {
                if let Some(memory) = error.buffer.take() {
                    buffer.put(memory);
                }
                Err(Fault::from(error).into())
            }
        }
    }

    /// Opens a region that a client of a peer, or of this node (None), exports.
    #[pyo3(signature = (peer, name, access="r"))]
    fn open_region(
        &self,
        py: Python<'_>,
        peer: Option<String>,
        name: String,
        access: &str,
    ) -> PyResult<Handle> {
        let (client, access) = (self.own()?, access_of(access)?);
        let open = move || client.open_region(peer.as_deref(), &name, access);
        Ok(Handle::new(hear(py, open)?))
    }

    /// Receives messages under a name, from clients of this node and of others.
    fn offer_channel(&self, py: Python<'_>, name: String) -> PyResult<Handle> {
        let client = self.own()?;
        Ok(Handle::new(hear(py, move || client.offer_channel(&name))?))
    }

    /// Opens a channel on which a client of a peer, or of this node (None), receives.
    fn open_channel(&self, py: Python<'_>, peer: Option<String>, name: String) -> PyResult<Handle> {
        let client = self.own()?;
        let open = move || client.open_channel(peer.as_deref(), &name);
        Ok(Handle::new(hear(py, open)?))
    }

    /// Goes on with the next daemon, after the end of the one before: handles that were opened
    /// again, and those that could not be.
    fn reconnect(&self, py: Python<'_>) -> PyResult<()> {
        let client = self.own()?;
        hear(py, move || client.reconnect()).map(drop)
    }

    /// Whether the daemon holds the session open, for this process.
    #[getter]
    fn is_connected(&self) -> bool {
        self.born == Birth::now() && self.client.is_connected()
    }

    /// The session's number, as `pipectl clients` shows it.
    #[getter]
    fn session(&self) -> u32 {
        self.client.session()
    }

    /// The number of the connection: another one after each reconnect.
    #[getter]
    fn generation(&self) -> u32 {
        self.client.generation()
    }

    /// Seconds that a request may take that names no timeout.
    #[getter]
    fn timeout_default(&self) -> f64 {
        self.client.deadline_default().as_secs_f64()
    }
}

impl Client {
    /// The client, for this process alone.
    pub(crate) fn own(&self) -> PyResult<piped_client::Client> {
        self.born.check()?;
        Ok(self.client.clone())
    }

    /// Memory of the arena, which grows if it must.
    fn memory(&self, py: Python<'_>, length: usize) -> PyResult<piped_client::Buffer> {
        let client = self.own()?;
        match py.detach(|| client.try_allocate(length)).map_err(Fault::from)? {
            Some(memory) => Ok(memory),
            None => hear(py, move || client.allocate(length)),
        }
    }
}
