//! Where C's names and client-lib's values meet: a request takes its buffer from its name, and the
//! buffer comes back under it with the result.

use std::collections::VecDeque;
use std::time::Duration;

use client_lib::{
    Buffer, BufferState, Buffers, Completed, Done, Payload, Pending, Queue, Released, Request,
    RequestError, SubmitError, Waited,
};

use crate::border;
use crate::buffer::piped_buffer_state::{
    self, PIPED_BUFFER_HELD, PIPED_BUFFER_HERE, PIPED_BUFFER_LOST, PIPED_BUFFER_NONE,
    PIPED_BUFFER_UNDERWAY,
};
use crate::buffer::{BufferName, Lent, lend, piped_buffer, settle};
use crate::buffers::{self, BuffersName, piped_buffers};
use crate::ending::piped_result;
use crate::fault::Fault;
use crate::records::{Pend, Records, State, Taken};
use crate::status::piped_status::{self, PIPED_IDLE, PIPED_UNDERWAY};
use crate::verbs::Choices;

/// A queue with what C knows of its requests.
#[derive(Debug)]
pub(crate) struct Asking {
    pub(crate) queue: Queue,
    pub(crate) records: Records,
    /// Buffers that are free again, for the next call that asks for one.
    released: VecDeque<Release>,
}

/// A buffer that is free again, or lost.
#[derive(Debug)]
struct Release {
    request: u64,
    tag: u64,
    taken: Option<Taken>,
    state: piped_buffer_state,
}

/// The memory that a request takes along: a buffer by its name, or nothing.
pub(crate) trait Carried: Payload {
    type Name: Copy;
    fn name(name: Self::Name) -> Option<Taken>;
    fn lend(name: Self::Name) -> Result<Self, Fault>;
    fn settle(name: Self::Name, payload: Self) -> Result<(), Fault>;
    fn into_buffer(self) -> Option<Buffer>;
    fn pend(pending: Pending<Self>) -> Pend;
    /// Whether the choices make sense for what it takes along.
    fn may(choices: &Choices) -> Result<(), Fault>;
    /// Make a request with the choices that only requests of this kind have.
    fn choose(self, choices: &Choices, make: impl FnOnce(Self) -> Request<Self>) -> Request<Self>;
}

impl Carried for Buffer {
    type Name = *mut piped_buffer;

    fn name(name: Self::Name) -> Option<Taken> {
        Some(Taken::Buffer(BufferName::of(name)))
    }

    fn lend(name: Self::Name) -> Result<Self, Fault> {
        lend(name, PIPED_BUFFER_UNDERWAY)
    }

    fn settle(name: Self::Name, payload: Self) -> Result<(), Fault> {
        settle(name, Lent::Here(payload))
    }

    fn into_buffer(self) -> Option<Buffer> {
        Some(self)
    }

    fn pend(pending: Pending<Self>) -> Pend {
        Pend::Buffer(pending)
    }

    fn may(_: &Choices) -> Result<(), Fault> {
        Ok(())
    }

    fn choose(self, choices: &Choices, make: impl FnOnce(Self) -> Request<Self>) -> Request<Self> {
        let buffer_bytes = self.len();
        choices.of_buffer(make(self), buffer_bytes)
    }
}

impl Carried for Buffers {
    type Name = *mut piped_buffers;

    fn name(name: Self::Name) -> Option<Taken> {
        Some(Taken::Buffers(BuffersName::of(name)))
    }

    fn lend(name: Self::Name) -> Result<Self, Fault> {
        buffers::lend(name)
    }

    fn settle(name: Self::Name, payload: Self) -> Result<(), Fault> {
        buffers::take_back(name, payload)
    }

    fn into_buffer(self) -> Option<Buffer> {
        Some(self.into_list())
    }

    fn pend(pending: Pending<Self>) -> Pend {
        Pend::Buffers(pending)
    }

    fn may(choices: &Choices) -> Result<(), Fault> {
        choices.without_buffer()
    }

    fn choose(self, _: &Choices, make: impl FnOnce(Self) -> Request<Self>) -> Request<Self> {
        make(self)
    }
}

impl Carried for () {
    type Name = ();

    fn name((): ()) -> Option<Taken> {
        None
    }

    fn lend((): ()) -> Result<Self, Fault> {
        Ok(())
    }

    fn settle((): (), (): Self) -> Result<(), Fault> {
        Ok(())
    }

    fn into_buffer(self) -> Option<Buffer> {
        None
    }

    fn pend(pending: Pending<Self>) -> Pend {
        Pend::Nothing(pending)
    }

    fn may(choices: &Choices) -> Result<(), Fault> {
        choices.without_buffer()
    }

    fn choose(self, _: &Choices, make: impl FnOnce(Self) -> Request<Self>) -> Request<Self> {
        make(self)
    }
}

type Ended = Result<Done<Option<Buffer>>, RequestError>;

impl Asking {
    pub(crate) fn new(queue: Queue) -> Self {
        let records = Records::new(queue.depth());
        let released = VecDeque::with_capacity(queue.depth() as usize);
        Self { queue, records, released }
    }

    /// Put a request into the queue. Its number.
    pub(crate) fn submit<B: Carried>(
        &mut self,
        name: B::Name,
        choices: &Choices,
        make: impl FnOnce(B) -> Request<B>,
    ) -> Result<u64, Fault> {
        let (at, request) = self.enter(name, choices, make)?;
        let submitted = if choices.is_detached() {
            self.queue.submit_detached(request).map(|id| (id, State::Detached))
        } else {
            let pending = self.queue.submit(request);
            pending.map(|pending| (pending.id(), State::Pending(B::pend(pending))))
        };
        match submitted {
            Ok((id, state)) => {
                self.records.at(at).id = Some(id);
                self.records.set(at, state);
                Ok(self.records.number(at))
            }
            Err(SubmitError { fault, buffer }) => {
                self.records.vacate(at);
                B::settle(name, buffer)?;
                Err(fault.into())
            }
        }
    }

    /// Submit a request and wait for it.
    pub(crate) fn run<B: Carried>(
        &mut self,
        name: B::Name,
        choices: &Choices,
        make: impl FnOnce(B) -> Request<B>,
    ) -> Result<piped_result, Fault> {
        if choices.is_detached() {
            return Err(Fault::argument("a request that is waited for cannot be detached"));
        }
        self.queue.make_room();
        let number = self.submit(name, choices, make)?;
        self.wait(number, None)
    }

    /// A record and a request that has its buffer.
    fn enter<B: Carried>(
        &mut self,
        name: B::Name,
        choices: &Choices,
        make: impl FnOnce(B) -> Request<B>,
    ) -> Result<(usize, Request<B>), Fault> {
        B::may(choices)?;
        self.collect_released()?;
        let at = self.records.enter(choices.tag(), B::name(name))?;
        let payload = B::lend(name).inspect_err(|_| self.records.vacate(at))?;
        let request = choices.of_all(payload.choose(choices, make));
        Ok((at, request.tag(at as u64)))
    }

    /// The result of a request, `timeout` at most (none: as long as it takes).
    pub(crate) fn wait(
        &mut self,
        number: u64,
        timeout: Option<Duration>,
    ) -> Result<piped_result, Fault> {
        let at = self.records.find(number)?;
        let waited = match self.records.take_pending(at)? {
            Pend::Buffer(pending) => self.wait_for(pending, timeout),
            Pend::Buffers(pending) => self.wait_for(pending, timeout),
            Pend::Nothing(pending) => self.wait_for(pending, timeout),
        };
        match waited {
            Ok(ended) => self.end(at, ended),
            Err(pend) => {
                self.records.set(at, State::Pending(pend));
                Err(Fault::fixed(PIPED_UNDERWAY))
            }
        }
    }

    fn wait_for<B: Carried>(
        &mut self,
        pending: Pending<B>,
        timeout: Option<Duration>,
    ) -> Result<Ended, Pend> {
        let waited = match timeout {
            None => Waited::Ended(pending.wait(&mut self.queue)),
            Some(timeout) => pending.wait_for(&mut self.queue, timeout),
        };
        match waited {
            Waited::Ended(result) => Ok(result.map(stowed)),
            Waited::Underway(pending) => Err(B::pend(pending)),
        }
    }

    /// The next detached request that ends.
    pub(crate) fn next(&mut self, timeout: Option<Duration>) -> Result<piped_result, Fault> {
        if self.records.detached == 0 {
            return Err(Fault::fixed(PIPED_IDLE));
        }
        let completed = match timeout {
            Some(Duration::ZERO) => self.queue.poll(),
            timeout => self.queue.wait(timeout),
        };
        let Completed { tag, result, .. } =
            completed.ok_or_else(|| Fault::fixed(PIPED_UNDERWAY))?;
        self.end(tag as usize, result)
    }

    /// Let `next` give the result of a request.
    pub(crate) fn detach(&mut self, number: u64) -> Result<(), Fault> {
        let at = self.records.find(number)?;
        match self.records.take_pending(at)? {
            Pend::Buffer(pending) => self.queue.detach(pending),
            Pend::Buffers(pending) => self.queue.detach(pending),
            Pend::Nothing(pending) => self.queue.detach(pending),
        };
        self.records.set(at, State::Detached);
        Ok(())
    }

    /// The name in client-lib of a request with a result that was not taken.
    pub(crate) fn id(&mut self, number: u64) -> Result<client_lib::RequestId, Fault> {
        let at = self.records.find(number)?;
        self.records.at(at).id.ok_or_else(|| Fault::fixed(piped_status::PIPED_STALE))
    }

    /// The next buffer that was held and is free now, or lost.
    pub(crate) fn next_released(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<piped_result, Fault> {
        self.collect_released()?;
        if self.released.is_empty() && self.records.held > 0 {
            let released = self.queue.wait_released(timeout);
            if let Some(released) = released {
                self.take_back(released)?;
            }
            self.collect_released()?;
        }
        let none = if self.records.held > 0 { PIPED_UNDERWAY } else { PIPED_IDLE };
        let release = self.released.pop_front().ok_or_else(|| Fault::fixed(none))?;
        let Release { request, tag, taken, state } = release;
        let status = match state {
            PIPED_BUFFER_HERE => piped_status::PIPED_OK,
            _ => piped_status::PIPED_LOST,
        };
        let of_request = piped_result::of(request, tag, taken);
        Ok(piped_result { buffer_state: state, status, ..of_request })
    }

    /// Buffers that are free again go back under their names as soon as anything is asked.
    fn collect_released(&mut self) -> Result<(), Fault> {
        if self.records.held == 0 {
            return Ok(());
        }
        self.take_released()?;
        // Those of a daemon that is gone, which nobody will release.
        let held: Vec<usize> = self.records.held().collect();
        for at in held {
            if !self.records.at(at).id.is_some_and(|id| self.queue.is_held(id)) {
                self.release(at, PIPED_BUFFER_LOST, Lent::Away(PIPED_BUFFER_LOST))?;
            }
        }
        Ok(())
    }

    /// The queue for a call. Its buffer is nobody's here: once released, that of one that failed is
    /// the arena's again with the next call.
    pub(crate) fn for_call(&mut self) -> Result<&mut Queue, Fault> {
        self.take_released()?;
        Ok(&mut self.queue)
    }

    fn take_released(&mut self) -> Result<(), Fault> {
        while let Some(released) = self.queue.poll_released() {
            self.take_back(released)?;
        }
        Ok(())
    }

    fn take_back(&mut self, released: Released) -> Result<(), Fault> {
        // Calls and loops over strips ask on this queue, too, and their buffers are nobody's here.
        match self.records.of_held(released.tag, released.id) {
            Some(at) => self.release(at, PIPED_BUFFER_HERE, Lent::Here(released.buffer)),
            None => Ok(()),
        }
    }

    fn release(&mut self, at: usize, state: piped_buffer_state, lent: Lent) -> Result<(), Fault> {
        let request = self.records.number(at);
        let (tag, taken) = (self.records.at(at).tag, self.records.at(at).taken);
        self.records.vacate(at);
        // Nobody has to ask: the buffers are where they belong, and what is told of them is
        // bounded.
        if self.released.len() == self.queue.depth() as usize {
            self.released.pop_front();
        }
        self.released.push_back(Release { request, tag, taken, state });
        taken.map_or(Ok(()), |taken| taken.settle(lent))
    }

    /// A request ended: its buffer goes where it belongs, its record is free or waits for the
    /// buffer.
    fn end(&mut self, at: usize, ended: Ended) -> Result<piped_result, Fault> {
        let (lent, bytes, value, status) = match ended {
            Ok(Done { bytes, value, payload }) => {
                (payload.map(Lent::Here), bytes, value, piped_status::PIPED_OK)
            }
            Err(error) => {
                border::remember(&error.to_string());
                let status = error.cause.into();
                let lent = match error.buffer {
                    BufferState::None => None,
                    BufferState::Returned(buffer) => Some(Lent::Here(buffer)),
                    BufferState::Held => Some(Lent::Away(PIPED_BUFFER_HELD)),
                    BufferState::Lost => Some(Lent::Away(PIPED_BUFFER_LOST)),
                };
                (lent, error.bytes, 0, status)
            }
        };
        let state = lent.as_ref().map_or(PIPED_BUFFER_NONE, Lent::state);
        let result = piped_result { bytes, value, status, ..self.result(at, state) };
        let taken = self.records.at(at).taken;
        if state == PIPED_BUFFER_HELD {
            self.records.set(at, State::Held);
        } else {
            self.records.vacate(at);
        }
        match taken.zip(lent) {
            Some((taken, lent)) => taken.settle(lent).map(|()| result),
            None => Ok(result),
        }
    }

    /// The part of a result that is known however the request ended.
    fn result(&mut self, at: usize, buffer_state: piped_buffer_state) -> piped_result {
        let request = self.records.number(at);
        let record = self.records.at(at);
        piped_result { buffer_state, ..piped_result::of(request, record.tag, record.taken) }
    }
}

impl Drop for Asking {
    /// Requests that are under way are cancelled, and their buffers go back to the arena by
    /// themselves.
    fn drop(&mut self) {
        for taken in self.records.all().filter_map(|record| record.taken) {
            // A name that is away cannot have been freed.
            let _ = taken.settle(Lent::Away(PIPED_BUFFER_LOST));
        }
    }
}

fn stowed<B: Carried>(done: Done<B>) -> Done<Option<Buffer>> {
    let Done { bytes, value, payload } = done;
    Done { bytes, value, payload: payload.into_buffer() }
}
