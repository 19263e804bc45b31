//! What a queue has under way, without Python: requests end where none can run.

use std::collections::HashMap;
use std::time::Duration;

use piped_client::{
    BufferState, Completed, Payload, Pending, RequestError, RequestId, SubmitError,
};
use pyo3::prelude::*;

use super::Request;
use crate::buffer::Buffer;
use crate::fault::Fault;
use crate::outcome::{Kind, Outcome};

/// A request that was submitted, and how its answer is read.
pub(super) struct Entry {
    request: Py<Request>,
    /// A reference of its own, since another one could only be had with the interpreter.
    buffer: Option<Py<Buffer>>,
    kind: Kind,
}

impl Entry {
    pub(super) fn new(request: Py<Request>, buffer: Option<Py<Buffer>>, kind: Kind) -> Self {
        Self { request, buffer, kind }
    }
}

/// Why a request was refused, and its buffer.
pub(super) type Refused = (Fault, Option<piped_client::Buffer>);

fn refused<B: Payload>(error: SubmitError<B>) -> Refused {
    let error = RequestError::from(error);
    (Fault::from(&error), error.into_buffer())
}

pub(super) struct Inner {
    queue: piped_client::Queue,
    /// What is under way, by the number that its request has.
    entries: HashMap<u64, Entry>,
    /// Buffers of requests that ended without them, or that nobody waits for any more.
    awaited: HashMap<u64, Py<Buffer>>,
    /// Requests that ended since somebody asked; only if somebody does.
    ended: Option<Vec<Py<Request>>>,
    /// Buffers of calls that ended.
    spares: Vec<piped_client::Buffer>,
    next: u64,
}

impl Inner {
    pub(super) fn new(queue: piped_client::Queue) -> Self {
        let (entries, awaited) = (HashMap::new(), HashMap::new());
        Self { queue, entries, awaited, ended: None, spares: Vec::new(), next: 0 }
    }

    /// The queue, for what changes nothing here.
    pub(super) fn queue(&mut self) -> &mut piped_client::Queue {
        &mut self.queue
    }

    /// Submits a request whose end is looked for later.
    pub(super) fn enter<B: Payload>(
        &mut self,
        request: piped_client::Request<B>,
        entry: Entry,
    ) -> Result<(), Refused> {
        let number = self.number();
        let id = self.queue.submit_detached(request.tag(number)).map_err(refused)?;
        entry.request.get().begin(id);
        self.entries.insert(number, entry);
        self.queue.flush();
        Ok(())
    }

    /// Submits a request that the caller waits for, and its number.
    pub(super) fn begin<B: Payload>(
        &mut self,
        request: piped_client::Request<B>,
    ) -> Result<(u64, Pending<B>), Refused> {
        let number = self.number();
        let pending = self.queue.submit(request.tag(number)).map_err(refused)?;
        Ok((number, pending))
    }

    /// Asks the daemon to end a request. `false`: it has ended.
    pub(super) fn cancel(&mut self, request: RequestId) -> bool {
        let cancelled = self.queue.cancel(request);
        self.queue.flush();
        cancelled
    }

    /// Nobody waits for a request any more; its buffer comes back to this one.
    pub(super) fn abandon<B: Payload>(
        &mut self,
        (number, pending): (u64, Pending<B>),
        buffer: Py<Buffer>,
    ) {
        let request = self.queue.detach(pending);
        self.awaited.insert(number, buffer);
        self.cancel(request);
    }

    /// A buffer of an earlier call with so much room.
    pub(super) fn spare(&mut self, room: usize) -> Option<piped_client::Buffer> {
        let fits = self.spares.iter().position(|spare| spare.capacity() >= room);
        fits.map(|place| self.spares.swap_remove(place))
    }

    /// Waits until something ends, so long at most.
    pub(super) fn wait(&mut self, longest: Duration) {
        if let Some(completed) = self.queue.wait(Some(longest)) {
            self.settle(completed);
        }
        self.harvest();
    }

    /// Requests that ended since the last time, from the first time on.
    pub(super) fn take_ended(&mut self) -> Vec<Py<Request>> {
        self.ended.get_or_insert_default();
        self.harvest();
        std::mem::take(self.ended.get_or_insert_default())
    }

    /// A number for a request.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes in what ended.
    pub(super) fn harvest(&mut self) {
        while let Some(completed) = self.queue.poll() {
            self.settle(completed);
        }
        while let Some(released) = self.queue.poll_released() {
            if let Some(buffer) = self.awaited.remove(&released.tag) {
                buffer.get().put(released.buffer);
            }
        }
    }

    fn settle(&mut self, Completed { tag, result, .. }: Completed) {
        let Some(Entry { request, buffer, kind }) = self.entries.remove(&tag) else {
            // The wait for it was interrupted: only its buffer is awaited.
            if let Some(buffer) = self.awaited.remove(&tag) {
                match result {
                    Ok(done) => done.payload.into_iter().for_each(|it| buffer.get().put(it)),
                    Err(error) => self.put_failed(tag, Some(buffer), error.buffer),
                }
            }
            return;
        };
        let outcome = match result {
            Ok(done) => match (buffer, done.payload) {
                (None, Some(answer)) => {
                    let bytes = usize::try_from(done.bytes).unwrap_or(usize::MAX);
                    let read = answer.as_slice().get(..bytes).ok_or_else(Fault::unreadable);
                    let outcome = read.and_then(|read| Outcome::read(kind, read));
                    self.spares.push(answer);
                    outcome
                }
                (buffer, memory) => {
                    if let Some((buffer, memory)) = buffer.zip(memory) {
                        buffer.get().put(memory);
                    }
                    Ok(Outcome::of(kind, done.bytes, done.value))
                }
            },
            Err(error) => {
                let fault = Fault::from(&error);
                self.put_failed(tag, buffer, error.buffer);
                Err(fault)
            }
        };
        request.get().end(outcome);
        if let Some(ended) = &mut self.ended {
            ended.push(request);
        }
    }

    /// What becomes of the buffer of a request that failed.
    pub(super) fn put_failed(
        &mut self,
        number: u64,
        buffer: Option<Py<Buffer>>,
        state: BufferState,
    ) {
        match (buffer, state) {
            (Some(buffer), BufferState::Returned(memory)) => buffer.get().put(memory),
            (None, BufferState::Returned(spare)) => self.spares.push(spare),
            (Some(buffer), BufferState::Held) => {
                buffer.get().hold();
                self.awaited.insert(number, buffer);
            }
            (Some(buffer), BufferState::Lost) => buffer.get().lose(),
            (None, BufferState::Held | BufferState::Lost) | (_, BufferState::None) => {}
        }
    }

    pub(super) fn is_full(&mut self) -> bool {
        if self.queue.underway() >= self.queue.depth() {
            self.harvest();
        }
        self.queue.underway() >= self.queue.depth()
    }
}
