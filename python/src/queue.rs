//! A queue of requests.

mod inner;
mod options;
mod request;
mod state;
mod way;

use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use piped_client::{Buffer as Memory, Client, Tag};
use pyo3::prelude::*;

use self::inner::Inner;
use self::options::Options;
pub(crate) use self::options::class_of;
pub(crate) use self::request::Request;
use self::way::Way;
use crate::buffer::Buffer;
use crate::clock::span;
use crate::handle::Handle;
use crate::outcome::Kind;

/// A buffer, and the piece of it that a request moves: its start, and its length or all.
type Piece<'a, 'py> = (&'a Bound<'py, Buffer>, usize, Option<usize>);

fn range((buffer, start, length): Piece<'_, '_>) -> Range<usize> {
    start..length.map_or_else(|| buffer.get().len(), |length| start.saturating_add(length))
}

/// Bytes between a piece of a buffer and a file or region.
struct Transfer {
    handle: piped_client::Handle,
    offset: u64,
    piece: Range<usize>,
    resubmit: bool,
}

impl Transfer {
    fn new(
        (handle, offset): (&Handle, u64),
        piece: Piece<'_, '_>,
        resubmit: bool,
    ) -> PyResult<Self> {
        Ok(Self { handle: handle.open()?, offset, piece: range(piece), resubmit })
    }

    fn dress(&self, request: piped_client::Request<Memory>) -> piped_client::Request<Memory> {
        let request = request.piece(self.piece.clone());
        if self.resubmit { request.resubmit() } else { request }
    }

    fn read(&self, memory: Memory) -> piped_client::Request<Memory> {
        self.dress(piped_client::Request::read(&self.handle, self.offset, memory))
    }

    fn write(&self, memory: Memory, durable: bool) -> piped_client::Request<Memory> {
        let request = piped_client::Request::write(&self.handle, self.offset, memory);
        let request = self.dress(request);
        if durable { request.durable() } else { request }
    }
}

/// Submits requests and gives their results: best one for each thread.
///
/// Threads may share it; that costs a wait a few system calls. When nobody has it or one of its
/// requests any more, what is under way is cancelled.
#[pyclass(frozen, weakref, module = "piped_io")]
pub(crate) struct Queue {
    way: Arc<Way>,
}

impl Queue {
    pub(crate) fn new(client: Client, queue: piped_client::Queue) -> Self {
        Self { way: Arc::new(Way::new(client, queue)) }
    }

    /// The queue, for the process that made it.
    fn own(&self) -> PyResult<&Arc<Way>> {
        self.way.own().map(|_| &self.way)
    }

    /// Submits a call of a file or directory.
    pub(crate) fn submit_call(
        slf: &Bound<'_, Self>,
        handle: &Handle,
        call: &piped_client::Call<'_>,
        answer: (usize, Kind),
    ) -> PyResult<Request> {
        let way = slf.get().own()?;
        way.submit_call(slf.py(), handle, call, answer).map(|state| Request::new(way, state))
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
        let (way, piece) = (self.own()?, (buffer, start, length));
        let transfer = Transfer::new((handle, offset), piece, resubmit)?;
        way.run(py, (buffer, resubmit), |memory| options.dress(transfer.read(memory)))
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
        let (way, piece) = (self.own()?, (buffer, start, length));
        let transfer = Transfer::new((handle, offset), piece, resubmit)?;
        way.run(py, (buffer, resubmit), |memory| options.dress(transfer.write(memory, durable)))
    }

    /// Submits a read; its result is the number of bytes read.
    #[pyo3(signature = (
        handle, offset, buffer, *, start=0, length=None, timeout=None, urgency=None,
        resubmit=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn submit_read(
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
    ) -> PyResult<Request> {
        let options = Options::new(timeout, urgency)?;
        let (way, piece) = (self.own()?, (buffer, start, length));
        let transfer = Transfer::new((handle, offset), piece, resubmit)?;
        let request = transfer.read(buffer.get().take(resubmit)?);
        Request::submit(way, py, (options.dress(request), Kind::Bytes), Some(buffer))
    }

    /// Submits a write; its result is the number of bytes written. `notify` tells the exporter of a
    /// region after it.
    #[pyo3(signature = (
        handle, offset, buffer, *, start=0, length=None, timeout=None, urgency=None,
        resubmit=false, durable=false, notify=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn submit_write(
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
        notify: Option<u32>,
    ) -> PyResult<Request> {
        let options = Options::new(timeout, urgency)?;
        let (way, piece) = (self.own()?, (buffer, start, length));
        let transfer = Transfer::new((handle, offset), piece, resubmit)?;
        let mut request = transfer.write(buffer.get().take(resubmit)?, durable);
        if let Some(id) = notify {
            request = request.then_notify(id);
        }
        Request::submit(way, py, (options.dress(request), Kind::Bytes), Some(buffer))
    }

    /// Submits a message to a channel, under a tag.
    #[pyo3(signature = (channel, tag, buffer, *, start=0, length=None, timeout=None))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn submit_send(
        &self,
        py: Python<'_>,
        channel: &Handle,
        tag: u64,
        buffer: &Bound<'_, Buffer>,
        start: usize,
        length: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Request> {
        let options = Options::new(timeout, None)?;
        let (way, channel) = (self.own()?, channel.open()?);
        let range = range((buffer, start, length));
        let memory = buffer.get().take(false)?;
        let request = piped_client::Request::send(&channel, tag, memory).piece(range);
        Request::submit(way, py, (options.dress(request), Kind::Nothing), Some(buffer))
    }

    /// Submits a receive of the next message with that tag, or of any; its result is the number of
    /// bytes and the tag.
    #[pyo3(signature = (channel, buffer, *, tag=None, timeout=None))]
    fn submit_receive(
        &self,
        py: Python<'_>,
        channel: &Handle,
        buffer: &Bound<'_, Buffer>,
        tag: Option<u64>,
        timeout: Option<f64>,
    ) -> PyResult<Request> {
        let options = Options::new(timeout, None)?;
        let (way, channel) = (self.own()?, channel.open()?);
        let tag = tag.map_or(Tag::Any, Tag::Is);
        let memory = buffer.get().take(false)?;
        let request = piped_client::Request::receive(&channel, tag, memory);
        Request::submit(way, py, (options.dress(request), Kind::Message), Some(buffer))
    }

    /// Submits a copy between two handles that does not pass through this process; its result is
    /// the number of bytes.
    #[pyo3(signature = (
        source, source_offset, target, target_offset, length, *, timeout=None,
        urgency=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
    fn submit_copy(
        &self,
        py: Python<'_>,
        source: &Handle,
        source_offset: u64,
        target: &Handle,
        target_offset: u64,
        length: u64,
        timeout: Option<f64>,
        urgency: Option<&str>,
    ) -> PyResult<Request> {
        let options = Options::new(timeout, urgency)?;
        let (source, target) = (source.open()?, target.open()?);
        let (from, to) = ((&source, source_offset), (&target, target_offset));
        let request = piped_client::Request::copy(from.0, from.1, to.0, to.1, length);
        Request::submit(self.own()?, py, (options.dress(request), Kind::Bytes), None)
    }

    /// Submits a sync: completed writes of the handle come to stable storage.
    #[pyo3(signature = (handle, *, timeout=None))]
    fn submit_sync(
        &self,
        py: Python<'_>,
        handle: &Handle,
        timeout: Option<f64>,
    ) -> PyResult<Request> {
        let options = Options::new(timeout, None)?;
        let request = piped_client::Request::sync(&handle.open()?);
        Request::submit(self.own()?, py, (options.dress(request), Kind::Nothing), None)
    }

    /// Submits a request that does nothing: the way to the daemon and back.
    #[pyo3(signature = (*, timeout=None))]
    fn submit_nop(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Request> {
        let options = Options::new(timeout, None)?;
        let request = piped_client::Request::nop();
        Request::submit(self.own()?, py, (options.dress(request), Kind::Nothing), None)
    }

    /// Submits an addition to 8 bytes of a region; its result is what they were.
    #[pyo3(signature = (region, offset, addend, *, timeout=None))]
    fn submit_fetch_add(
        &self,
        py: Python<'_>,
        region: &Handle,
        offset: u64,
        addend: u64,
        timeout: Option<f64>,
    ) -> PyResult<Request> {
        let options = Options::new(timeout, None)?;
        let request = piped_client::Request::fetch_add(&region.open()?, offset, addend);
        Request::submit(self.own()?, py, (options.dress(request), Kind::Value), None)
    }

    /// Submits a replacement of 8 bytes of a region if they are `expected`; its result is what they
    /// were.
    #[pyo3(signature = (region, offset, expected, new, *, timeout=None))]
    fn submit_compare_swap(
        &self,
        py: Python<'_>,
        region: &Handle,
        offset: u64,
        expected: u64,
        new: u64,
        timeout: Option<f64>,
    ) -> PyResult<Request> {
        let options = Options::new(timeout, None)?;
        let request = piped_client::Request::compare_swap(&region.open()?, offset, expected, new);
        Request::submit(self.own()?, py, (options.dress(request), Kind::Value), None)
    }

    /// Submits a notification of a region's exporter.
    #[pyo3(signature = (region, id, *, timeout=None))]
    fn submit_notify(
        &self,
        py: Python<'_>,
        region: &Handle,
        id: u32,
        timeout: Option<f64>,
    ) -> PyResult<Request> {
        let options = Options::new(timeout, None)?;
        let request = piped_client::Request::notify(&region.open()?, id);
        Request::submit(self.own()?, py, (options.dress(request), Kind::Nothing), None)
    }

    /// Submits a wait for `count` notifications of a region of this client; its result is how many
    /// are left.
    #[pyo3(signature = (region, id, count=1, *, timeout=None))]
    fn submit_wait(
        &self,
        py: Python<'_>,
        region: &Handle,
        id: u32,
        count: u64,
        timeout: Option<f64>,
    ) -> PyResult<Request> {
        let options = Options::new(timeout, None)?;
        let request = piped_client::Request::wait(&region.open()?, id, count);
        Request::submit(self.own()?, py, (options.dress(request), Kind::Value), None)
    }

    /// Requests that ended since the last time, from the first call on. Never waits.
    fn poll(&self, py: Python<'_>) -> PyResult<Vec<Request>> {
        let ended = self.own()?.with(py, Inner::take_ended);
        Ok(ended.into_iter().map(Request::ended).collect())
    }

    /// Waits until there is room for one more request, or `timeout` seconds are over.
    #[pyo3(signature = (timeout=None))]
    fn make_room(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.own()?.make_room(py, timeout.map(span).transpose()?)
    }

    /// Asks for the descriptor to be readable at the next end. False: something has ended already.
    fn arm(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.own()?.with(py, |inner| inner.queue().arm()))
    }

    /// Silences the descriptor after it was readable.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        self.own()?.with(py, |inner| inner.queue().drain());
        Ok(())
    }

    /// The descriptor that says when something has ended; another one after a reconnect.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.own()?.with(py, |inner| inner.queue().as_raw_fd()))
    }

    /// Whether it has no room for one more request.
    #[getter]
    fn is_full(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self.own()?.with(py, Inner::has_room))
    }

    /// Requests that were submitted and have not ended.
    #[getter]
    fn underway(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.own()?.with(py, |inner| inner.queue().underway()))
    }

    /// The most requests that can be under way.
    #[getter]
    fn depth(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.own()?.with(py, |inner| inner.queue().depth()))
    }

    /// Whether the daemon is known to be gone.
    #[getter]
    fn is_disconnected(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.own()?.with(py, |inner| inner.queue().is_disconnected()))
    }
}
