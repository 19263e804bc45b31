//! A queue for many tasks.

use std::io;
use std::sync::Arc;

use super::driven::Driven;
use super::running::Running;
use super::session::Session;
use crate::buffer::Buffer;
use crate::core::QueueCounters;
use crate::error::{AllocateError, RequestError};
use crate::handle::Handle;
use crate::payload::Payload;
use crate::queue::Queue;
use crate::request::{Done, Released, Request, RequestId, Tag};

/// Submits requests of tasks and wakes these when they end, from [`AsyncClient::queue`]. Cheap to
/// clone, for all tasks of all threads. One queue is enough for many tasks; where threads get in
/// each other's way, each may have its own.
///
/// A future that is dropped cancels its request, and the request's buffer goes back to the arena
/// when the daemon is done with it. A request that finds the queue full waits until there is room,
/// behind those that came before. Nothing here spins or blocks a thread.
///
/// ```no_run
/// # async fn read(client: piped_client::AsyncClient) -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::OpenOptions;
/// let file = client.open_export(Some("beta"), "data", "blocks", OpenOptions::read()).await?;
/// let queue = client.queue().await?;
/// let buffer = client.allocate(1 << 16).await?;
/// let (buffer, bytes) = queue.read(&file, 0, buffer).await?;
/// println!("{:?}", &buffer.as_slice()[..bytes.min(16)]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct AsyncQueue {
    driven: Arc<Driven>,
}

impl AsyncQueue {
    pub(super) fn start(queue: Queue, session: Session) -> io::Result<Self> {
        Ok(Self { driven: Driven::start(queue, session)? })
    }

    /// Submit a request: at once if the queue has room, else when it is polled and has. Dropped, it
    /// is cancelled.
    pub fn submit<B: Payload>(&self, request: Request<B>) -> Running<B> {
        Running::start(Arc::clone(&self.driven), request)
    }

    /// Allocates a buffer of `length` bytes of the queue's client.
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub async fn allocate(&self, length: usize) -> Result<Buffer, AllocateError> {
        self.session().allocate(length).await
    }

    /// Submit any request and wait for its result.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn run<B: Payload>(&self, request: Request<B>) -> Result<Done<B>, RequestError> {
        if let Some(buffer) = request.payload.peek() {
            self.session().make_room_for(buffer).await;
        }
        self.submit(request).await
    }

    /// Read: the buffer and how many bytes of it were filled.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn read(
        &self,
        from: &Handle,
        offset: u64,
        buffer: Buffer,
    ) -> Result<(Buffer, usize), RequestError> {
        let done = self.run(Request::read(from, offset, buffer)).await?;
        Ok((done.payload, done.bytes as usize))
    }

    /// Write: the buffer and how many bytes of it were written.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn write(
        &self,
        to: &Handle,
        offset: u64,
        buffer: Buffer,
    ) -> Result<(Buffer, usize), RequestError> {
        let done = self.run(Request::write(to, offset, buffer)).await?;
        Ok((done.payload, done.bytes as usize))
    }

    /// Send a message to a channel; it was taken in.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn send(
        &self,
        to: &Handle,
        tag: u64,
        buffer: Buffer,
    ) -> Result<Buffer, RequestError> {
        Ok(self.run(Request::send(to, tag, buffer)).await?.payload)
    }

    /// Receive a message of a channel: the buffer, how many bytes of it are the message, and its
    /// tag.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn receive(
        &self,
        from: &Handle,
        tag: impl Into<Tag>,
        buffer: Buffer,
    ) -> Result<(Buffer, usize, u64), RequestError> {
        let done = self.run(Request::receive(from, tag, buffer)).await?;
        Ok((done.payload, done.bytes as usize, done.value))
    }

    /// Copy between two handles: bytes copied.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn copy(
        &self,
        from: (&Handle, u64),
        to: (&Handle, u64),
        length: u64,
    ) -> Result<u64, RequestError> {
        Ok(self.run(Request::copy(from.0, from.1, to.0, to.1, length)).await?.bytes)
    }

    /// Bring completed writes to stable storage.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn sync(&self, handle: &Handle) -> Result<(), RequestError> {
        self.run(Request::sync(handle)).await.map(|_| ())
    }

    /// Add to 8 bytes of a region, as [`Request::fetch_add`] says: what they were.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn fetch_add(
        &self,
        region: &Handle,
        offset: u64,
        addend: u64,
    ) -> Result<u64, RequestError> {
        Ok(self.run(Request::fetch_add(region, offset, addend)).await?.value)
    }

    /// Replace 8 bytes of a region if they are `expected`, as [`Request::compare_swap`] says: what
    /// they were.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn compare_swap(
        &self,
        region: &Handle,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, RequestError> {
        Ok(self.run(Request::compare_swap(region, offset, expected, new)).await?.value)
    }

    /// Notify the exporter of a region, as [`Request::notify`] says.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn notify(&self, region: &Handle, id: u32) -> Result<(), RequestError> {
        self.run(Request::notify(region, id)).await.map(|_| ())
    }

    /// Wait for notifications of a region of this client, as [`Request::wait`] says: how many are
    /// left.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn wait(&self, region: &Handle, id: u32, count: u64) -> Result<u64, RequestError> {
        Ok(self.run(Request::wait(region, id, count)).await?.value)
    }

    /// Go to the daemon and back, and do nothing.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn nop(&self) -> Result<(), RequestError> {
        self.run(Request::nop()).await.map(|_| ())
    }

    /// Ask the daemon to give up on a request. The request ends all the same, once, as what it is
    /// by then. `false`: it is over already, or was cancelled before.
    pub fn cancel(&self, request: RequestId) -> bool {
        self.driven.with(|state| state.queue().cancel(request))
    }

    /// Contiguous bytes in place from a request's start, as [`Queue::progress`] has them.
    #[must_use]
    pub fn progress(&self, request: RequestId) -> u64 {
        self.driven.with(|state| state.queue().progress(request))
    }

    /// Copy bytes of a read that is under way, as [`Queue::copy_landed`] does.
    #[must_use]
    pub fn copy_landed(&self, request: RequestId, offset: u64, to: &mut [u8]) -> usize {
        self.driven.with(|state| state.queue().copy_landed(request, offset, to))
    }

    /// The next buffer that was [`crate::BufferState::Held`] and is free now. Never waits.
    #[must_use]
    pub fn poll_released(&self) -> Option<Released> {
        self.driven.with(|state| state.queue().poll_released())
    }

    /// Requests the daemon has not ended yet.
    #[must_use]
    pub fn underway(&self) -> u32 {
        self.driven.with(|state| state.queue().underway())
    }

    /// The most requests that can be under way or not yet taken.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.driven.with(|state| state.queue().depth())
    }

    /// The queue's counters since it was made.
    #[must_use]
    pub fn counters(&self) -> QueueCounters {
        self.driven.with(|state| state.queue().counters())
    }

    /// Whether the daemon is known to be gone, as [`Queue::is_disconnected`] says.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.driven.with(|state| state.queue().is_disconnected())
    }

    /// The session that the queue is of.
    pub(crate) fn session(&self) -> &Session {
        self.driven.session()
    }
}
