//! A request of a task, as a future.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::driven::{Driven, State};
use super::line::{AnyPending, AnyRequest, Ended, Left, Ticket};

use crate::error::{BufferState, Cause, RequestError};
use crate::payload::{Payload, sealed};
use crate::pending::Waited;
use crate::request::{Done, Request, RequestId};

/// A request of a task, from [`crate::AsyncQueue::submit`]: a future with its result.
///
/// Its buffer is the queue's until it ended. Dropped, it is cancelled, and the buffer goes back to
/// the arena when the daemon is done with it.
///
/// ```no_run
/// # async fn both(
/// #     queue: piped_client::AsyncQueue, file: piped_client::Handle,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::Request;
/// let buffers = (queue.allocate(4096).await?, queue.allocate(4096).await?);
/// let first = queue.submit(Request::read(&file, 0, buffers.0));
/// let second = queue.submit(Request::read(&file, 4096, buffers.1));
/// // Both are under way already.
/// let (first, second) = (first.await?, second.await?);
/// # let _ = (first, second);
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "a request is cancelled when its future is dropped"]
pub struct Running<B: Payload> {
    driven: Arc<Driven>,
    step: Step,
    payload: PhantomData<fn() -> B>,
}

#[derive(Debug)]
enum Step {
    /// The request is in the line.
    Waits(Ticket),
    Underway(AnyPending),
    /// Ended before anybody asked.
    Ended(Ended),
    Over,
}

/// A waker that is dropped when the lock is gone.
type Old = Option<Waker>;

impl<B: Payload> Running<B> {
    /// Submits a request, or has it wait in the line.
    pub(super) fn start(driven: Arc<Driven>, request: Request<B>) -> Self {
        let request = request.of_any();
        let (step, old) = driven.with(|state| begin(state, request));
        drop(old);
        Self { driven, step, payload: PhantomData }
    }

    /// The name of the request; `None` if it has no place in the queue yet, or is over.
    #[must_use]
    pub fn id(&self) -> Option<RequestId> {
        match &self.step {
            Step::Underway(pending) => Some(pending.id()),
            Step::Waits(_) | Step::Ended(_) | Step::Over => None,
        }
    }
}

impl<B: Payload> Future for Running<B> {
    type Output = Result<Done<B>, RequestError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { driven, step, .. } = &mut *self;
        let (next, old) = match std::mem::replace(step, Step::Over) {
            Step::Waits(ticket) => driven.with(|state| ask(state, ticket, cx.waker())),
            Step::Underway(pending) => driven.with(|state| look(state, pending, cx.waker())),
            ended => (ended, None),
        };
        drop(old);
        match next {
            Step::Ended(result) => Poll::Ready(result.map(|Done { bytes, value, payload }| {
                let payload = sealed::Payload::unstow(payload);
                let payload = payload.expect("a request that did everything still has its buffer");
                Done { bytes, value, payload }
            })),
            Step::Over => panic!("polled after its end"),
            next => {
                *step = next;
                Poll::Pending
            }
        }
    }
}

/// Submits a request, or puts it into the line.
fn begin(state: &mut State, request: AnyRequest) -> (Step, Old) {
    state.queue().look();
    if !state.is_watched() {
        let buffer = request.payload.map_or(BufferState::None, BufferState::Returned);
        return (Step::Ended(unwatched(buffer)), None);
    }
    let waits = state.waits_for_ring() || !state.line().is_empty();
    if waits || !state.queue().core_mut().has_place() {
        return (Step::Waits(state.join_line(request)), None);
    }
    match state.queue().submit(request) {
        Ok(pending) => {
            let old = state.waker(pending.id()).take();
            (Step::Underway(pending), old)
        }
        Err(refused) => (Step::Ended(Err(refused.into())), None),
    }
}

/// What became of a request in the line.
fn ask(state: &mut State, ticket: Ticket, waker: &Waker) -> (Step, Old) {
    state.queue().look();
    match state.line().ask(ticket, waker) {
        (Left::Entered(Ok(pending)), _) => look(state, pending, waker),
        (Left::Entered(Err(refused)), _) => (Step::Ended(Err(refused)), None),
        (Left::Not, _) if !state.is_watched() => {
            let (buffer, waker) = state.line().leave(ticket).into_parts();
            let buffer = buffer.map_or(BufferState::None, BufferState::Returned);
            (Step::Ended(unwatched(buffer)), waker)
        }
        (Left::Not, old) => (Step::Waits(ticket), old),
    }
}

/// Takes the result if it is there.
fn look(state: &mut State, pending: AnyPending, waker: &Waker) -> (Step, Old) {
    state.queue().look();
    let id = pending.id();
    if let Some(result) = state.take_ended(id) {
        pending.disarm();
        return (Step::Ended(result), None);
    }
    match pending.take(state.queue()) {
        Waited::Ended(result) => (Step::Ended(result), state.waker(id).take()),
        Waited::Underway(pending) if !state.is_watched() => {
            // Cancelled, and nobody will take the buffer back.
            drop(pending);
            (Step::Ended(unwatched(BufferState::Lost)), state.waker(id).take())
        }
        Waited::Underway(pending) => {
            let place = state.waker(id);
            let same = place.as_ref().is_some_and(|old| old.will_wake(waker));
            let old = if same { None } else { place.replace(waker.clone()) };
            (Step::Underway(pending), old)
        }
    }
}

fn unwatched(buffer: BufferState) -> Ended {
    Err(RequestError { cause: Cause::NoRuntime, bytes: 0, buffer })
}

impl<B: Payload> Drop for Running<B> {
    fn drop(&mut self) {
        let gone = match std::mem::replace(&mut self.step, Step::Over) {
            Step::Waits(ticket) => self.driven.with(|state| {
                let mut gone = state.line().leave(ticket);
                let old = gone.take_entered().and_then(|pending| cancel(state, pending));
                (Some(gone), old)
            }),
            Step::Underway(pending) => (None, self.driven.with(|state| cancel(state, pending))),
            Step::Ended(_) | Step::Over => (None, None),
        };
        drop(gone);
    }
}

/// Drops a request, and has the daemon hear of it at once.
fn cancel(state: &mut State, pending: AnyPending) -> Old {
    if let Some(result) = state.take_ended(pending.id()) {
        pending.disarm();
        // The arena's lock is none of ours.
        drop(result);
        return None;
    }
    let old = state.waker(pending.id()).take();
    drop(pending);
    // Takes its mark in.
    state.queue().look();
    old
}
