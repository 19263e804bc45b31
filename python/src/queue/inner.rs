//! What a queue has under way, without Python: requests end where none can run.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use piped_client::{
    BufferState, Completed, Payload, Pending, RequestError, RequestId, SubmitError, SubmitFault,
};

use super::state::State;
use crate::fault::Fault;
use crate::outcome::{Kind, Outcome};

/// A request that was submitted, and how its answer is read.
struct Entry {
    state: Arc<State>,
    kind: Kind,
}

/// Why a request was refused, and its buffer.
pub(super) type Refused = (SubmitFault, Option<piped_client::Buffer>);

fn refused<B: Payload>(error: SubmitError<B>) -> Refused {
    let fault = error.fault;
    (fault, RequestError::from(error).into_buffer())
}

pub(super) struct Inner {
    queue: piped_client::Queue,
    /// What is under way, by the number that its request has.
    entries: HashMap<u64, Entry>,
    /// Requests under way that nobody waits for any more.
    abandoned: HashMap<u64, Arc<State>>,
    /// Requests that ended while the kernel had their buffers.
    held: HashMap<u64, Arc<State>>,
    /// Requests that ended since somebody asked; only if somebody does.
    ended: Option<Vec<Arc<State>>>,
    /// States that are done with. They have references of Python's, which are not dropped here.
    leavings: Vec<Arc<State>>,
    /// Buffers of calls that ended.
    spares: Vec<piped_client::Buffer>,
    next: u64,
    /// Whether a thread waits for the descriptor, with the queue free.
    watched: bool,
    /// The thread that used it last; 0: none has.
    user: usize,
}

impl Inner {
    pub(super) fn new(queue: piped_client::Queue) -> Self {
        Self {
            queue,
            entries: HashMap::new(),
            abandoned: HashMap::new(),
            held: HashMap::new(),
            ended: None,
            leavings: Vec::new(),
            spares: Vec::new(),
            next: 0,
            watched: false,
            user: 0,
        }
    }

    /// The queue, for what changes nothing here.
    pub(super) fn queue(&mut self) -> &mut piped_client::Queue {
        &mut self.queue
    }

    /// A thread uses it. Returns whether no other one did last.
    pub(super) fn is_used_by(&mut self, thread: usize) -> bool {
        let last = std::mem::replace(&mut self.user, thread);
        last == thread || last == 0
    }

    /// Whether a thread waits for the descriptor, with the queue free.
    pub(super) fn is_watched(&self) -> bool {
        self.watched
    }

    /// A thread waits for the descriptor, or no more.
    pub(super) fn set_watched(&mut self, watched: bool) {
        self.watched = watched;
    }

    /// States to be dropped where the queue is not locked.
    pub(super) fn take_leavings(&mut self) -> Vec<Arc<State>> {
        std::mem::take(&mut self.leavings)
    }

    /// Submits a request whose end is looked for later.
    pub(super) fn enter<B: Payload>(
        &mut self,
        request: piped_client::Request<B>,
        state: &Arc<State>,
        kind: Kind,
    ) -> Result<(), Refused> {
        let number = self.number();
        self.has_room();
        let id = self.queue.submit_detached(request.tag(number)).map_err(refused)?;
        state.begin(id);
        self.entries.insert(number, Entry { state: Arc::clone(state), kind });
        self.queue.flush();
        Ok(())
    }

    /// Submits a request that the caller waits for; its number and its name.
    pub(super) fn begin<B: Payload>(
        &mut self,
        request: piped_client::Request<B>,
    ) -> Result<((u64, RequestId), Pending<B>), Refused> {
        let number = self.number();
        self.has_room();
        let pending = self.queue.submit(request.tag(number)).map_err(refused)?;
        Ok(((number, pending.id()), pending))
    }

    /// Asks the daemon to end a request. `false`: it has ended.
    pub(super) fn cancel(&mut self, request: RequestId) -> bool {
        let cancelled = self.queue.cancel(request);
        self.queue.flush();
        cancelled
    }

    /// Nobody waits for a request any more; its buffer comes back all the same.
    pub(super) fn abandon<B: Payload>(
        &mut self,
        (number, pending): (u64, Pending<B>),
        state: &Arc<State>,
    ) {
        let request = self.queue.detach(pending);
        self.abandoned.insert(number, Arc::clone(state));
        self.cancel(request);
    }

    /// A buffer of an earlier call with so much room, if there is one; an error if the queue is
    /// full.
    pub(super) fn spare(
        &mut self,
        room: usize,
    ) -> Result<Option<piped_client::Buffer>, SubmitFault> {
        if !self.has_room() {
            return Err(SubmitFault::Full);
        }
        let fits = self.spares.iter().position(|spare| spare.capacity() >= room);
        Ok(fits.map(|place| self.spares.swap_remove(place)))
    }

    /// Waits until something ends, so long at most.
    pub(super) fn wait(&mut self, longest: Duration) {
        if let Some(completed) = self.queue.wait(Some(longest)) {
            self.settle(completed);
        }
    }

    /// Whether one more request has room, also by taking in what ended.
    pub(super) fn has_room(&mut self) -> bool {
        self.queue.has_room() || {
            self.harvest();
            self.queue.has_room()
        }
    }

    /// Waits until there may be room, so long at most.
    pub(super) fn wait_for_room(&mut self, longest: Duration) {
        let _ = self.queue.wait_for_room(longest);
    }

    /// Requests that ended since the last time, from the first time on.
    pub(super) fn take_ended(&mut self) -> Vec<Arc<State>> {
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
        if self.held.is_empty() {
            return;
        }
        while let Some(released) = self.queue.poll_released() {
            if let Some(state) = self.held.remove(&released.tag) {
                if let Some(buffer) = state.buffer() {
                    buffer.put(released.buffer);
                }
                self.leavings.push(state);
            }
        }
        // Nobody will say when buffers of a daemon that is gone are free.
        let queue = &self.queue;
        for (_, state) in self.held.extract_if(|_, it| !it.id().is_some_and(|id| queue.is_held(id)))
        {
            state.buffer().into_iter().for_each(crate::buffer::Buffer::lose);
            self.leavings.push(state);
        }
    }

    fn settle(&mut self, Completed { tag, result, .. }: Completed) {
        let Some(Entry { state, kind }) = self.entries.remove(&tag) else {
            // The wait for it was interrupted: only its buffer is awaited.
            if let Some(state) = self.abandoned.remove(&tag) {
                match (result, state.buffer()) {
                    (Ok(done), Some(buffer)) => {
                        done.payload.into_iter().for_each(|memory| buffer.put(memory));
                    }
                    (Err(error), _) => self.put_failed(tag, &state, error.buffer),
                    (Ok(_), None) => {}
                }
                self.leavings.push(state);
            }
            return;
        };
        let outcome = match result {
            Ok(done) => match (state.buffer(), done.payload) {
                (None, Some(answer)) => {
                    let bytes = usize::try_from(done.bytes).unwrap_or(usize::MAX);
                    let read = answer.as_slice().get(..bytes).ok_or_else(Fault::unreadable);
                    let outcome = read.and_then(|read| Outcome::read(kind, read));
                    self.spares.push(answer);
                    outcome
                }
                (buffer, memory) => {
                    if let Some((buffer, memory)) = buffer.zip(memory) {
                        buffer.put(memory);
                    }
                    Ok(Outcome::of(kind, done.bytes, done.value))
                }
            },
            Err(error) => {
                let fault = Fault::from(&error);
                self.put_failed(tag, &state, error.buffer);
                Err(fault)
            }
        };
        state.end(outcome);
        match &mut self.ended {
            Some(ended) => ended.push(state),
            None => self.leavings.push(state),
        }
    }

    /// What becomes of the buffer of a request that failed.
    pub(super) fn put_failed(&mut self, number: u64, state: &Arc<State>, memory: BufferState) {
        match (state.buffer(), memory) {
            (Some(buffer), BufferState::Returned(memory)) => buffer.put(memory),
            (None, BufferState::Returned(spare)) => self.spares.push(spare),
            (Some(buffer), BufferState::Held) => {
                buffer.hold();
                self.held.insert(number, Arc::clone(state));
            }
            (Some(buffer), BufferState::Lost) => buffer.lose(),
            (None, BufferState::Held | BufferState::Lost) | (_, BufferState::None) => {}
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // What is under way is cancelled with the queue, and gives its memory back to the arena.
        let entries = self.entries.values().map(|entry| &entry.state);
        for state in entries.chain(self.abandoned.values()).chain(self.held.values()) {
            state.buffer().into_iter().for_each(crate::buffer::Buffer::lose);
        }
    }
}
