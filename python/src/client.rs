//! The connection to a daemon.

use std::os::fd::{BorrowedFd, RawFd};
use std::path::PathBuf;

use piped_client::{Access, ClientBuilder, OpenOptions, RegionOptions, WaitPolicy};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::{Buffer, bytes_of};
use crate::clock::span;
use crate::fault::Fault;
use crate::handle::{Handle, Region};
use crate::lent::Lent;
use crate::queue::{Queue, class_of};

/// A session with the daemon of this node: memory, handles, queues. For all threads.
///
/// Without a path it connects to the daemon that PIPED_CLIENT_SOCKET names, or else to the one of
/// the system.
#[pyclass(frozen, weakref, module = "piped_io")]
pub(crate) struct Client {
    client: piped_client::Client,
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

/// Borrows a descriptor of Python's for a call.
fn borrow<T>(fd: RawFd, call: impl FnOnce(BorrowedFd<'_>) -> T) -> PyResult<T> {
    if fd < 0 {
        return Err(PyValueError::new_err("the descriptor is closed"));
    }
    // SAFETY: it is no -1, and whoever calls keeps it open during the call, or the kernel says
    // that it is closed.
    Ok(call(unsafe { BorrowedFd::borrow_raw(fd) }))
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (
        socket=None, *, arena_bytes=16 << 20, depth=255, urgency=None, weight=0,
        timeout=30.0, reconnect=None, wait=None
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
    ) -> PyResult<Self> {
        let mut builder = ClientBuilder::new()
            .arena_bytes(arena_bytes)
            .depth(depth)
            .class(class_of(urgency)?)
            .weight(weight)
            .timeout(span(timeout)?);
        if let Some(within) = reconnect {
            builder = builder.reconnect(span(within)?);
        }
        if let Some(wait) = wait {
            builder = builder.wait(wait_of(wait)?);
        }
        let connected = py.detach(|| match socket {
            Some(path) => builder.connect(path),
            None => builder.connect_default(),
        });
        Ok(Self { client: connected.map_err(Fault::from)? })
    }

    /// A buffer of `length` bytes. The arena grows if it must and may.
    fn allocate(&self, py: Python<'_>, length: usize) -> PyResult<Buffer> {
        let memory = py.detach(|| self.client.allocate(length)).map_err(Fault::from)?;
        Ok(Buffer::new(&self.client, memory))
    }

    /// A queue. One that ended is used again.
    fn queue(&self, py: Python<'_>) -> PyResult<Queue> {
        let queue = py.detach(|| self.client.queue()).map_err(Fault::from)?;
        Ok(Queue::new(self.client.clone(), queue))
    }

    /// Lends a memfd that is sealed against shrinking.
    fn lend_memfd(&self, py: Python<'_>, fd: RawFd) -> PyResult<Lent> {
        let lent = borrow(fd, |fd| py.detach(|| self.client.lend_memfd(fd)))?;
        Ok(Lent::new(&self.client, lent.map_err(Fault::from)?, None))
    }

    /// Lends POSIX shared memory, or a file below /dev/shm.
    fn lend_shared(&self, py: Python<'_>, fd: RawFd) -> PyResult<Lent> {
        let lent = borrow(fd, |fd| py.detach(|| self.client.lend_shared(fd)))?;
        Ok(Lent::new(&self.client, lent.map_err(Fault::from)?, None))
    }

    /// Lends whole pages of private anonymous memory that an object has. No other thread may write
    /// it during the call.
    fn lend_private(&self, object: &Bound<'_, PyAny>) -> PyResult<Lent> {
        let owner = PyBuffer::<u8>::get(&bytes_of(object)?)?;
        if owner.readonly() || !owner.is_c_contiguous() {
            return Err(Fault::invalid("the object's bytes are read-only, or lie apart").into());
        }
        let (start, length) = (owner.buf_ptr().cast::<u8>(), owner.len_bytes());
        // SAFETY: this thread has the interpreter, so none of Python's writes the area during the
        // call, and that others do not is asked of the caller. The view, which the lent memory and
        // each buffer of it keep, keeps the area mapped. Buffers give no Rust reference into the
        // memory while Python may use it.
        let lent = unsafe { self.client.lend_private(start, length) };
        Ok(Lent::new(&self.client, lent.map_err(Fault::from)?, Some(owner)))
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
        let handle = py.detach(|| self.client.open_file(path, options)).map_err(Fault::from)?;
        Ok(Handle::new(handle))
    }

    /// Passes on a local file that is open already.
    #[pyo3(signature = (fd, access="r"))]
    fn open_fd(&self, py: Python<'_>, fd: RawFd, access: &str) -> PyResult<Handle> {
        let access = access_of(access)?;
        let handle = borrow(fd, |fd| py.detach(|| self.client.open_fd(fd, access)))?;
        Ok(Handle::new(handle.map_err(Fault::from)?))
    }

    /// Opens a file below an export of a peer, or of this node (None).
    #[pyo3(signature = (peer, export, path, access="r", *, create=None, mode=None, parents=false))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn open_export(
        &self,
        py: Python<'_>,
        peer: Option<&str>,
        export: &str,
        path: PathBuf,
        access: &str,
        create: Option<&str>,
        mode: Option<u32>,
        parents: bool,
    ) -> PyResult<Handle> {
        let options = options_of(access, create, mode)?.create_parents(parents);
        let opened = py.detach(|| self.client.open_export(peer, export, path, options));
        Ok(Handle::new(opened.map_err(Fault::from)?))
    }

    /// Opens a directory below an export of a peer, or of this node (None).
    #[pyo3(signature = (peer, export, path, access="r"))]
    fn open_directory(
        &self,
        py: Python<'_>,
        peer: Option<&str>,
        export: &str,
        path: PathBuf,
        access: &str,
    ) -> PyResult<Handle> {
        let access = access_of(access)?;
        let opened = py.detach(|| self.client.open_directory(peer, export, path, access));
        Ok(Handle::new(opened.map_err(Fault::from)?))
    }

    /// Lets others reach a buffer by name: everybody whom the daemons admit, or only these users of
    /// this node and these peers.
    #[pyo3(signature = (name, buffer, access="r", *, users=None, peers=None))]
    fn export_region(
        &self,
        py: Python<'_>,
        name: &str,
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
        let memory = buffer.take_whole()?;
        match py.detach(|| self.client.export_region(name, memory, options)) {
            Ok(export) => Ok(Region::new(&self.client, export)),
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
        peer: Option<&str>,
        name: &str,
        access: &str,
    ) -> PyResult<Handle> {
        let access = access_of(access)?;
        let opened = py.detach(|| self.client.open_region(peer, name, access));
        Ok(Handle::new(opened.map_err(Fault::from)?))
    }

    /// Receives messages under a name, from clients of this node and of others.
    fn offer_channel(&self, py: Python<'_>, name: &str) -> PyResult<Handle> {
        let opened = py.detach(|| self.client.offer_channel(name)).map_err(Fault::from)?;
        Ok(Handle::new(opened))
    }

    /// Opens a channel on which a client of a peer, or of this node (None), receives.
    fn open_channel(&self, py: Python<'_>, peer: Option<&str>, name: &str) -> PyResult<Handle> {
        let opened = py.detach(|| self.client.open_channel(peer, name)).map_err(Fault::from)?;
        Ok(Handle::new(opened))
    }

    /// Goes on with the next daemon, after the end of the one before: handles that were opened
    /// again, and those that could not be.
    fn reconnect(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.client.reconnect()).map_err(Fault::from)?;
        Ok(())
    }

    /// Whether the daemon holds the session open.
    #[getter]
    fn is_connected(&self) -> bool {
        self.client.is_connected()
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
    /// The client itself, for others of this module.
    pub(crate) fn inner(&self) -> &piped_client::Client {
        &self.client
    }
}
