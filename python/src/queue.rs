//! A queue of requests.

mod inner;
mod options;
mod request;

use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use piped_client::{Client, Payload, RequestId, Tag, Waited};
use pyo3::prelude::*;

use self::inner::{Entry, Inner};
use self::options::Options;
pub(crate) use self::options::class_of;
pub(crate) use self::request::Request;
use crate::buffer::Buffer;
use crate::clock;
use crate::fault::Fault;
use crate::handle::Handle;
use crate::lock;
use crate::outcome::Kind;

/// A buffer, and the piece of it that a request moves: its start, and its length or all.
type Place<'a, 'py> = (&'a Bound<'py, Buffer>, usize, Option<usize>);

/// How long a wait goes on until signals are looked at.
const SLICE: Duration = Duration::from_millis(50);

/// Submits requests and gives their results: best one for each thread.
///
/// Threads may share it, and wait for each other then.
#[pyclass(frozen, weakref, module = "piped_io")]
pub(crate) struct Queue {
    client: Client,
    inner: Mutex<Inner>,
}

impl Queue {
    pub(crate) fn new(client: Client, queue: piped_client::Queue) -> Self {
        Self { client, inner: Mutex::new(Inner::new(queue)) }
    }

    /// Does something with the queue. While another thread has it, the interpreter is free.
    fn with<T: Send>(&self, py: Python<'_>, act: impl FnOnce(&mut Inner) -> T + Send) -> T {
        match self.inner.try_lock() {
            Ok(mut inner) => act(&mut inner),
            Err(_) => py.detach(|| act(&mut lock(&self.inner))),
        }
    }

    /// Looks for results until something ended, a while at most.
    pub(crate) fn look_until(
        &self,
        py: Python<'_>,
        until: Option<Instant>,
        is_over: impl Fn() -> bool + Send + Sync,
    ) {
        py.detach(|| {
            let mut inner = lock(&self.inner);
            inner.harvest();
            if !is_over() {
                let left = until.map(|until| until.saturating_duration_since(clock::now()));
                inner.wait(left.unwrap_or(SLICE).min(SLICE));
            }
        });
    }

    pub(crate) fn cancel_request(&self, py: Python<'_>, id: RequestId) -> bool {
        self.with(py, |inner| inner.cancel(id))
    }

    pub(crate) fn progress_of(&self, py: Python<'_>, id: RequestId) -> u64 {
        self.with(py, |inner| inner.queue().progress(id))
    }

    /// Waits until one more request has room.
    fn make_room(&self, py: Python<'_>) -> PyResult<()> {
        while self.with(py, Inner::is_full) {
            self.look_until(py, None, || false);
            py.check_signals()?;
        }
        Ok(())
    }

    /// Submits a request whose end is looked for later.
    fn submit<B: Payload + Send>(
        slf: &Bound<'_, Self>,
        (request, kind): (piped_client::Request<B>, Kind),
        buffer: Option<&Bound<'_, Buffer>>,
    ) -> PyResult<Py<Request>> {
        let py = slf.py();
        let kept = || buffer.map(|buffer| buffer.clone().unbind());
        let ours = Py::new(py, Request::new(slf.clone().unbind(), kept()))?;
        let entry = Entry::new(ours.clone_ref(py), kept(), kind);
        match slf.get().with(py, move |inner| inner.enter(request, entry)) {
            Ok(()) => Ok(ours),
            Err((fault, memory)) => {
                buffer.zip(memory).into_iter().for_each(|(buffer, it)| buffer.get().put(it));
                Err(fault.into())
            }
        }
    }

    /// Takes a buffer for a request of a piece of it, if there is room for one.
    fn take(
        &self,
        py: Python<'_>,
        (buffer, start, length): Place<'_, '_>,
        may_move: bool,
    ) -> PyResult<(piped_client::Buffer, Range<usize>)> {
        if self.with(py, Inner::is_full) {
            return Err(Fault::full().into());
        }
        let end = length.map_or_else(|| buffer.get().len(), |length| start.saturating_add(length));
        Ok((buffer.get().take(may_move)?, start..end))
    }

    /// A read into a piece of a buffer, which it takes.
    fn reading(
        &self,
        py: Python<'_>,
        (handle, offset): (&Handle, u64),
        place: Place<'_, '_>,
        resubmit: bool,
    ) -> PyResult<piped_client::Request<piped_client::Buffer>> {
        let handle = handle.open()?;
        let (memory, range) = self.take(py, place, resubmit)?;
        let request = piped_client::Request::read(&handle, offset, memory).piece(range);
        Ok(if resubmit { request.resubmit() } else { request })
    }

    /// A write of a piece of a buffer, which it takes.
    fn writing(
        &self,
        py: Python<'_>,
        (handle, offset): (&Handle, u64),
        place: Place<'_, '_>,
        (resubmit, durable): (bool, bool),
    ) -> PyResult<piped_client::Request<piped_client::Buffer>> {
        let handle = handle.open()?;
        let (memory, range) = self.take(py, place, resubmit)?;
        let request = piped_client::Request::write(&handle, offset, memory).piece(range);
        let request = if resubmit { request.resubmit() } else { request };
        Ok(if durable { request.durable() } else { request })
    }

    /// Submits a request and waits for it: the short way, without an object for it.
    fn run(
        &self,
        py: Python<'_>,
        request: piped_client::Request<piped_client::Buffer>,
        buffer: &Bound<'_, Buffer>,
    ) -> PyResult<u64> {
        let (number, mut pending) = match self.with(py, move |inner| inner.begin(request)) {
            Ok(submitted) => submitted,
            Err((fault, memory)) => {
                memory.into_iter().for_each(|memory| buffer.get().put(memory));
                return Err(fault.into());
            }
        };
        loop {
            let waited = py.detach(|| pending.wait_for(lock(&self.inner).queue(), SLICE));
            pending = match waited {
                Waited::Ended(Ok(done)) => {
                    buffer.get().put(done.payload);
                    return Ok(done.bytes);
                }
                Waited::Ended(Err(error)) => {
                    let fault = Fault::from(&error);
                    let kept = buffer.clone().unbind();
                    self.with(py, move |inner| inner.put_failed(number, Some(kept), error.buffer));
                    return Err(fault.into());
                }
                Waited::Underway(pending) => pending,
            };
            if let Err(interrupted) = py.check_signals() {
                let kept = buffer.clone().unbind();
                self.with(py, move |inner| inner.abandon((number, pending), kept));
                return Err(interrupted);
            }
        }
    }

    /// Submits a call of a file or directory.
    pub(crate) fn submit_call(
        slf: &Bound<'_, Self>,
        handle: &Handle,
        call: &piped_client::Call<'_>,
        (room, kind): (usize, Kind),
    ) -> PyResult<Py<Request>> {
        let (py, this) = (slf.py(), slf.get());
        let handle = handle.open()?;
        if this.with(py, Inner::is_full) {
            return Err(Fault::full().into());
        }
        let spare = this.with(py, |inner| inner.spare(room));
        let mut buffer = match spare {
            Some(spare) => spare,
            None => py.detach(|| this.client.allocate(room)).map_err(Fault::from)?,
        };
        if buffer.set_len(room).is_err() {
            return Err(Fault::unreadable().into());
        }
        let bytes = call.encode(buffer.as_mut_slice());
        let bytes = bytes.map_err(|_| Fault::from(piped_client::SubmitFault::Call))?;
        Self::submit(slf, (piped_client::Request::call(&handle, buffer, bytes), kind), None)
    }
}

#[pymethods]
impl Queue {
    /// Reads into the buffer from `offset` of a file or region, and waits: bytes read, fewer only
    /// at the end of the file. `start` and `length` say which piece of the buffer.
    #[pyo3(signature = (
        handle, offset, buffer, *, start=0, length=None, timeout=None, urgency=None,
        resubmit=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn read(
        &self,
        py: Python<'_>,
        handle: &Handle,
        offset: u64,
        buffer: &Bound<'_, Buffer>,
        start: usize,
        length: Option<usize>,
        timeout: Option<f64>,
        urgency: Option<&str>,
        resubmit: bool,
    ) -> PyResult<u64> {
        let options = Options::new(timeout, urgency)?;
        self.make_room(py)?;
        let request = self.reading(py, (handle, offset), (buffer, start, length), resubmit)?;
        self.run(py, options.dress(request), buffer)
    }

    /// Writes the buffer at `offset` of a file or region, and waits: bytes written.
    #[pyo3(signature = (
        handle, offset, buffer, *, start=0, length=None, timeout=None, urgency=None,
        resubmit=false, durable=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn write(
        &self,
        py: Python<'_>,
        handle: &Handle,
        offset: u64,
        buffer: &Bound<'_, Buffer>,
        start: usize,
        length: Option<usize>,
        timeout: Option<f64>,
        urgency: Option<&str>,
        resubmit: bool,
        durable: bool,
    ) -> PyResult<u64> {
        let options = Options::new(timeout, urgency)?;
        self.make_room(py)?;
        let (place, how) = ((buffer, start, length), (resubmit, durable));
        let request = self.writing(py, (handle, offset), place, how)?;
        self.run(py, options.dress(request), buffer)
    }

    /// Submits a read; its result is the number of bytes read.
    #[pyo3(signature = (
        handle, offset, buffer, *, start=0, length=None, timeout=None, urgency=None,
        resubmit=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn submit_read(
        slf: &Bound<'_, Self>,
        handle: &Handle,
        offset: u64,
        buffer: &Bound<'_, Buffer>,
        start: usize,
        length: Option<usize>,
        timeout: Option<f64>,
        urgency: Option<&str>,
        resubmit: bool,
    ) -> PyResult<Py<Request>> {
        let options = Options::new(timeout, urgency)?;
        let place = (buffer, start, length);
        let request = slf.get().reading(slf.py(), (handle, offset), place, resubmit)?;
        Self::submit(slf, (options.dress(request), Kind::Bytes), Some(buffer))
    }

    /// Submits a write; its result is the number of bytes written. `notify` tells the exporter of a
    /// region after it.
    #[pyo3(signature = (
        handle, offset, buffer, *, start=0, length=None, timeout=None, urgency=None,
        resubmit=false, durable=false, notify=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn submit_write(
        slf: &Bound<'_, Self>,
        handle: &Handle,
        offset: u64,
        buffer: &Bound<'_, Buffer>,
        start: usize,
        length: Option<usize>,
        timeout: Option<f64>,
        urgency: Option<&str>,
        resubmit: bool,
        durable: bool,
        notify: Option<u32>,
    ) -> PyResult<Py<Request>> {
        let options = Options::new(timeout, urgency)?;
        let (place, how) = ((buffer, start, length), (resubmit, durable));
        let mut request = slf.get().writing(slf.py(), (handle, offset), place, how)?;
        if let Some(id) = notify {
            request = request.then_notify(id);
        }
        Self::submit(slf, (options.dress(request), Kind::Bytes), Some(buffer))
    }

    /// Submits a message to a channel, under a tag.
    #[pyo3(signature = (channel, tag, buffer, *, start=0, length=None, timeout=None))]
    fn submit_send(
        slf: &Bound<'_, Self>,
        channel: &Handle,
        tag: u64,
        buffer: &Bound<'_, Buffer>,
        start: usize,
        length: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Py<Request>> {
        let options = Options::new(timeout, None)?;
        let channel = channel.open()?;
        let (memory, range) = slf.get().take(slf.py(), (buffer, start, length), false)?;
        let request = piped_client::Request::send(&channel, tag, memory).piece(range);
        Self::submit(slf, (options.dress(request), Kind::Nothing), Some(buffer))
    }

    /// Submits a receive of the next message with that tag, or of any; its result is the number of
    /// bytes and the tag.
    #[pyo3(signature = (channel, buffer, *, tag=None, timeout=None))]
    fn submit_receive(
        slf: &Bound<'_, Self>,
        channel: &Handle,
        buffer: &Bound<'_, Buffer>,
        tag: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<Py<Request>> {
        let options = Options::new(timeout, None)?;
        let channel = channel.open()?;
        let (memory, _) = slf.get().take(slf.py(), (buffer, 0, None), false)?;
        let tag = tag.map_or(Tag::Any, Tag::Is);
        let request = piped_client::Request::receive(&channel, tag, memory);
        Self::submit(slf, (options.dress(request), Kind::Message), Some(buffer))
    }

    /// Submits a copy between two handles that does not pass through this process; its result is
    /// the number of bytes.
    #[pyo3(signature = (
        source, source_offset, target, target_offset, length, *, timeout=None,
        urgency=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn submit_copy(
        slf: &Bound<'_, Self>,
        source: &Handle,
        source_offset: u64,
        target: &Handle,
        target_offset: u64,
        length: u64,
        timeout: Option<f64>,
        urgency: Option<&str>,
    ) -> PyResult<Py<Request>> {
        let options = Options::new(timeout, urgency)?;
        let (source, target) = (source.open()?, target.open()?);
        let (from, to) = ((&source, source_offset), (&target, target_offset));
        let request = piped_client::Request::copy(from.0, from.1, to.0, to.1, length);
        Self::submit(slf, (options.dress(request), Kind::Bytes), None)
    }

    /// Submits a sync: completed writes of the handle come to stable storage.
    #[pyo3(signature = (handle, *, timeout=None))]
    fn submit_sync(
        slf: &Bound<'_, Self>,
        handle: &Handle,
        timeout: Option<f64>,
    ) -> PyResult<Py<Request>> {
        let options = Options::new(timeout, None)?;
        let request = piped_client::Request::sync(&handle.open()?);
        Self::submit(slf, (options.dress(request), Kind::Nothing), None)
    }

    /// Submits a request that does nothing: the way to the daemon and back.
    #[pyo3(signature = (*, timeout=None))]
    fn submit_nop(slf: &Bound<'_, Self>, timeout: Option<f64>) -> PyResult<Py<Request>> {
        let options = Options::new(timeout, None)?;
        let request = piped_client::Request::nop();
        Self::submit(slf, (options.dress(request), Kind::Nothing), None)
    }

    /// Submits an addition to 8 bytes of a region; its result is what they were.
    #[pyo3(signature = (region, offset, addend, *, timeout=None))]
    fn submit_fetch_add(
        slf: &Bound<'_, Self>,
        region: &Handle,
        offset: u64,
        addend: u64,
        timeout: Option<f64>,
    ) -> PyResult<Py<Request>> {
        let options = Options::new(timeout, None)?;
        let request = piped_client::Request::fetch_add(&region.open()?, offset, addend);
        Self::submit(slf, (options.dress(request), Kind::Value), None)
    }

    /// Submits a replacement of 8 bytes of a region if they are `expected`; its result is what they
    /// were.
    #[pyo3(signature = (region, offset, expected, new, *, timeout=None))]
    fn submit_compare_swap(
        slf: &Bound<'_, Self>,
        region: &Handle,
        offset: u64,
        expected: u64,
        new: u64,
        timeout: Option<f64>,
    ) -> PyResult<Py<Request>> {
        let options = Options::new(timeout, None)?;
        let request = piped_client::Request::compare_swap(&region.open()?, offset, expected, new);
        Self::submit(slf, (options.dress(request), Kind::Value), None)
    }

    /// Submits a notification of a region's exporter.
    #[pyo3(signature = (region, id, *, timeout=None))]
    fn submit_notify(
        slf: &Bound<'_, Self>,
        region: &Handle,
        id: u32,
        timeout: Option<f64>,
    ) -> PyResult<Py<Request>> {
        let options = Options::new(timeout, None)?;
        let request = piped_client::Request::notify(&region.open()?, id);
        Self::submit(slf, (options.dress(request), Kind::Nothing), None)
    }

    /// Submits a wait for `count` notifications of a region of this client; its result is how many
    /// are left.
    #[pyo3(signature = (region, id, count=1, *, timeout=None))]
    fn submit_wait(
        slf: &Bound<'_, Self>,
        region: &Handle,
        id: u32,
        count: u64,
        timeout: Option<f64>,
    ) -> PyResult<Py<Request>> {
        let options = Options::new(timeout, None)?;
        let request = piped_client::Request::wait(&region.open()?, id, count);
        Self::submit(slf, (options.dress(request), Kind::Value), None)
    }

    /// Requests that ended since the last time, from the first call on. Never waits.
    fn poll(&self, py: Python<'_>) -> Vec<Py<Request>> {
        self.with(py, Inner::take_ended)
    }

    /// Asks for the descriptor to be readable at the next end. False: something has ended already.
    fn arm(&self, py: Python<'_>) -> bool {
        self.with(py, |inner| inner.queue().arm())
    }

    /// Silences the descriptor after it was readable.
    fn drain(&self, py: Python<'_>) {
        self.with(py, |inner| inner.queue().drain());
    }

    /// The descriptor that says when something has ended; another one after a reconnect.
    fn fileno(&self, py: Python<'_>) -> i32 {
        self.with(py, |inner| inner.queue().as_raw_fd())
    }

    /// Whether it has no room for one more request.
    #[getter]
    fn is_full(&self, py: Python<'_>) -> bool {
        self.with(py, Inner::is_full)
    }

    /// Requests that were submitted and have not ended.
    #[getter]
    fn underway(&self, py: Python<'_>) -> u32 {
        self.with(py, |inner| inner.queue().underway())
    }

    /// The most requests that can be under way.
    #[getter]
    fn depth(&self, py: Python<'_>) -> u32 {
        self.with(py, |inner| inner.queue().depth())
    }

    /// Whether the daemon is known to be gone.
    #[getter]
    fn is_disconnected(&self, py: Python<'_>) -> bool {
        self.with(py, |inner| inner.queue().is_disconnected())
    }
}
