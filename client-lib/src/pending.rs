//! A request under way, as a value.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::drops::Drops;
use crate::error::{BufferState, Cause, RequestError};
use crate::payload::{Payload, sealed};
use crate::queue::Queue;
use crate::request::{Done, RequestId};
use crate::table::Taken;

/// A request under way, from [`Queue::submit`].
///
/// Its buffer is the queue's until it ended. Dropped, it is cancelled, and its buffer goes back to
/// the arena when the daemon is done with it; [`Queue::detach`] lets it run on instead.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = piped_client::Client::connect("/run/piped/client.sock")?;
/// # let file = client.open_file("/srv/data/blocks", piped_client::OpenOptions::read())?;
/// let mut queue = client.queue()?;
/// let first = queue.submit_read(&file, 0, client.allocate(65536)?)?;
/// let second = queue.submit_read(&file, 65536, client.allocate(65536)?)?;
/// let first = first.wait(&mut queue)?;
/// println!("{} bytes, beginning with {:?}", first.bytes, &first.payload.as_slice()[..4]);
/// drop(second); // cancelled
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a request is cancelled when its `Pending` is dropped; `Queue::detach` lets it run on"]
pub struct Pending<B: Payload> {
    id: RequestId,
    /// `None`: the result was taken, or the queue's poller will take it.
    drops: Option<Arc<Drops>>,
    payload: PhantomData<fn() -> B>,
}

/// Outcome of a limited wait, [`Pending::wait_for`].
#[derive(Debug)]
pub enum Waited<B: Payload> {
    /// The request ended, with this result.
    Ended(Result<Done<B>, RequestError>),
    /// The request is still under way.
    Underway(Pending<B>),
}

impl<B: Payload> Pending<B> {
    pub(crate) fn new(id: RequestId, drops: Arc<Drops>) -> Self {
        Self { id, drops: Some(drops), payload: PhantomData }
    }

    /// The name of the request.
    #[must_use]
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Wait for its end. That comes: the daemon ends every request at its deadline, and the end of
    /// the daemon ends them all.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn wait(self, queue: &mut Queue) -> Result<Done<B>, RequestError> {
        match self.wait_within(queue, None) {
            Waited::Ended(result) => result,
            // Without a limit in time only a request that the queue does not know does not end.
            Waited::Underway(_) => Err(Self::other_queue()),
        }
    }

    /// Wait for its end, `timeout` at most; zero only looks.
    #[must_use]
    pub fn wait_for(self, queue: &mut Queue, timeout: Duration) -> Waited<B> {
        self.wait_within(queue, Some(timeout))
    }

    fn wait_within(self, queue: &mut Queue, timeout: Option<Duration>) -> Waited<B> {
        if !self.is_of(&queue.core().drops) {
            return Waited::Ended(Err(Self::other_queue()));
        }
        let RequestId { slot, generation, .. } = self.id;
        if !queue.core().table.is_finished(slot, generation) {
            queue.wait_until(timeout, |core| core.table.is_finished(slot, generation));
        }
        self.take(queue)
    }

    /// The result, if it is there.
    pub(crate) fn take(self, queue: &mut Queue) -> Waited<B> {
        let RequestId { slot, generation, .. } = self.id;
        let core = queue.core_mut();
        let Some(Taken { result, .. }) = core.table.take(slot, generation) else {
            return Waited::Underway(self);
        };
        self.disarm();
        Waited::Ended(result.map(|Done { bytes, value, payload }| {
            let payload = sealed::Payload::unstow(payload);
            let payload = payload.expect("a request that did everything still has its buffer");
            Done { bytes, value, payload }
        }))
    }

    /// Whether it was submitted to the queue with these marks.
    pub(crate) fn is_of(&self, drops: &Arc<Drops>) -> bool {
        self.drops.as_ref().is_some_and(|ours| Arc::ptr_eq(ours, drops))
    }

    /// Drop it without a mark.
    pub(crate) fn disarm(mut self) {
        self.drops = None;
    }

    fn other_queue() -> RequestError {
        RequestError { cause: Cause::OtherQueue, bytes: 0, buffer: BufferState::None }
    }
}

impl<B: Payload> From<&Pending<B>> for RequestId {
    fn from(pending: &Pending<B>) -> Self {
        pending.id
    }
}

impl<B: Payload> Drop for Pending<B> {
    fn drop(&mut self) {
        if let Some(drops) = &self.drops {
            drops.mark(self.id.slot);
        }
    }
}
