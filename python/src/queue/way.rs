//! A queue behind its Python object and its requests: who has it, and who waits.
//!
//! One thread alone waits with the queue locked, in one system call. As soon as another one wants
//! it, threads wait with the queue free: one for the descriptor, the others for that one. Nothing
//! of Python is dropped while the queue is locked: a finaliser may use the same queue.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use piped_client::{Client, Payload, Pending, RequestId, SubmitFault, Waited};
use pyo3::prelude::*;

use super::inner::Inner;
use super::state::State;
use crate::buffer::Buffer;
use crate::clock::{self, SLICE};
use crate::fault::Fault;
use crate::fork::Birth;
use crate::handle::Handle;
use crate::hearing::hear;
use crate::lock;
use crate::outcome::Kind;

/// Waits of a thread that was alone after which the queue counts as its own again.
const ALONE: u32 = 64;

/// States that the caller drops, without the queue and with the interpreter.
type Leavings = Vec<Arc<State>>;

/// A queue as its object and its requests have it.
pub(crate) struct Way {
    client: Client,
    born: Birth,
    inner: Mutex<Inner>,
    /// Cancels of threads that found the queue in use.
    cancels: Mutex<Vec<RequestId>>,
    /// Told when a thread has taken in what ended.
    looked: Condvar,
    /// Waits until the queue counts as one thread's own; 0: it does.
    shared: AtomicU32,
}

impl Way {
    pub(super) fn new(client: Client, queue: piped_client::Queue) -> Self {
        Self {
            client,
            born: Birth::now(),
            inner: Mutex::new(Inner::new(queue)),
            cancels: Mutex::default(),
            looked: Condvar::new(),
            shared: AtomicU32::new(0),
        }
    }

    /// The queue, for the process that made it.
    pub(super) fn own(&self) -> PyResult<&Self> {
        self.born.check().map(|()| self)
    }

    /// The queue, if no other thread has it.
    fn try_enter(&self) -> Option<MutexGuard<'_, Inner>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(self.entered(inner)),
            Err(TryLockError::Poisoned(inner)) => Some(self.entered(inner.into_inner())),
            Err(TryLockError::WouldBlock) => {
                // Relaxed: whoever waits too long looks again after a slice.
                self.shared.store(ALONE, Ordering::Relaxed);
                None
            }
        }
    }

    fn enter(&self) -> MutexGuard<'_, Inner> {
        self.try_enter().unwrap_or_else(|| self.entered(lock(&self.inner)))
    }

    /// This thread has the queue. Another one than the last shares it.
    fn entered<'a>(&'a self, mut inner: MutexGuard<'a, Inner>) -> MutexGuard<'a, Inner> {
        if !inner.is_used_by(this_thread()) {
            self.shared.store(ALONE, Ordering::Relaxed);
        }
        inner
    }

    /// Gives the queue free, and what of Python came up meanwhile.
    fn leave(&self, mut inner: MutexGuard<'_, Inner>) -> Leavings {
        let mut leavings = inner.take_leavings();
        drop(inner);
        // A thread that found the queue in use leaves its cancel, and tries once more.
        while !lock(&self.cancels).is_empty()
            && let Some(mut inner) = self.try_enter()
        {
            let cancels = std::mem::take(&mut *lock(&self.cancels));
            for request in cancels {
                inner.cancel(request);
            }
            leavings.append(&mut inner.take_leavings());
        }
        leavings
    }

    /// Does something with the queue. While another thread has it, the interpreter is free.
    pub(super) fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut Inner) -> T + Send,
    ) -> T {
        let acts = |mut inner: MutexGuard<'_, Inner>| (act(&mut inner), self.leave(inner));
        let (done, leavings) = match self.try_enter() {
            Some(inner) => acts(inner),
            None => py.detach(|| acts(self.enter())),
        };
        drop(leavings);
        done
    }

    /// Waits until it may be over, so long at most, by `wait` where the queue is this thread's own.
    fn wait<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        longest: Duration,
        wait: impl FnOnce(&mut Inner, Duration),
    ) -> MutexGuard<'a, Inner> {
        // The next daemon is looked for by a wait of the queue's own.
        if self.shared.load(Ordering::Relaxed) == 0 || inner.queue().is_disconnected() {
            wait(&mut inner, longest);
            return inner;
        }
        if inner.is_watched() {
            let woken = self.looked.wait_timeout(inner, longest);
            return woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.watch(inner, longest)
    }

    /// Waits for the descriptor, with the queue free.
    fn watch<'a>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        longest: Duration,
    ) -> MutexGuard<'a, Inner> {
        if !inner.queue().arm() {
            return inner;
        }
        // One of its own: a reconnect closes that of the queue.
        let Ok(bell) = inner.queue().as_fd().try_clone_to_owned() else { return inner };
        inner.set_watched(true);
        drop(inner);
        await_readable(&bell, longest);
        let mut inner = lock(&self.inner);
        inner.set_watched(false);
        inner.queue().drain();
        self.shared.fetch_sub(1, Ordering::Relaxed);
        inner
    }

    /// Looks for results until it is over, a slice at most.
    fn look(
        &self,
        longest: Duration,
        is_over: impl Fn(&mut Inner) -> bool,
        wait: impl FnOnce(&mut Inner, Duration),
    ) -> Leavings {
        let mut inner = self.enter();
        inner.harvest();
        if !is_over(&mut inner) {
            inner = self.wait(inner, longest, wait);
            inner.harvest();
        }
        self.tell();
        self.leave(inner)
    }

    /// Tells threads that wait for this one.
    fn tell(&self) {
        // A system call, and none is there where the queue is one thread's.
        if self.shared.load(Ordering::Relaxed) > 0 {
            self.looked.notify_all();
        }
    }

    /// Looks for results until a request has ended, a slice at most.
    pub(super) fn look_for(&self, py: Python<'_>, state: &State, longest: Duration) {
        let longest = longest.min(SLICE);
        drop(py.detach(|| self.look(longest, |_| state.is_over(), Inner::wait)));
    }

    /// Asks the daemon to end a request. Does not wait for the queue: where another thread has it,
    /// that one asks. `false`: it has ended.
    pub(super) fn cancel(&self, request: RequestId) -> bool {
        let Some(mut inner) = self.try_enter() else {
            lock(&self.cancels).push(request);
            // That thread may have left just now.
            self.try_enter().into_iter().for_each(|inner| drop(self.leave(inner)));
            return true;
        };
        let cancelled = inner.cancel(request);
        drop(self.leave(inner));
        cancelled
    }

    /// Waits until one more request has room, or for the time of the caller's own.
    pub(super) fn make_room(&self, py: Python<'_>, longest: Option<Duration>) -> PyResult<()> {
        let until = longest.and_then(|longest| clock::now().checked_add(longest));
        while !self.with(py, Inner::has_room) && until.is_none_or(|until| clock::now() < until) {
            drop(py.detach(|| self.look(SLICE, Inner::has_room, Inner::wait_for_room)));
            py.check_signals()?;
        }
        Ok(())
    }

    /// Submits a request whose end is looked for later.
    pub(super) fn submit<B: Payload + Send>(
        &self,
        py: Python<'_>,
        (request, kind): (piped_client::Request<B>, Kind),
        buffer: Option<&Bound<'_, Buffer>>,
    ) -> PyResult<Arc<State>> {
        let state = Arc::new(State::new(buffer.map(|buffer| buffer.clone().unbind())));
        match self.with(py, |inner| inner.enter(request, &state, kind)) {
            Ok(()) => Ok(state),
            Err((fault, memory)) => Err(match buffer {
                Some(buffer) => buffer.get().refuse(fault, memory),
                None => Fault::from(fault).into(),
            }),
        }
    }

    /// Submits a request of a buffer, when there is room, and waits for it: the short way, without
    /// an object for it. Returns the number of bytes.
    pub(super) fn run(
        &self,
        py: Python<'_>,
        (buffer, may_move): (&Bound<'_, Buffer>, bool),
        make: impl Fn(piped_client::Buffer) -> piped_client::Request<piped_client::Buffer> + Sync,
    ) -> PyResult<u64> {
        let (number, mut pending) = loop {
            let memory = buffer.get().take(may_move)?;
            match self.with(py, |inner| inner.begin(make(memory))) {
                Ok(begun) => break begun,
                Err((SubmitFault::Full, memory)) => {
                    memory.into_iter().for_each(|memory| buffer.get().put(memory));
                    self.make_room(py, None)?;
                }
                Err((fault, memory)) => return Err(buffer.get().refuse(fault, memory)),
            }
        };
        loop {
            let (waited, leavings) = py.detach(|| self.wait_for(pending));
            drop(leavings);
            let keep = |id| Arc::new(State::begun(id, buffer.clone().unbind()));
            pending = match waited {
                Waited::Ended(Ok(done)) => {
                    buffer.get().put(done.payload);
                    return Ok(done.bytes);
                }
                Waited::Ended(Err(error)) => {
                    let (fault, state) = (Fault::from(&error), keep(number.1));
                    self.with(py, |inner| inner.put_failed(number.0, &state, error.buffer));
                    return Err(fault.into());
                }
                Waited::Underway(pending) => pending,
            };
            if let Err(interrupted) = py.check_signals() {
                let state = keep(number.1);
                self.with(py, |inner| inner.abandon((number.0, pending), &state));
                return Err(interrupted);
            }
        }
    }

    /// Waits for a request's end, a slice at most.
    fn wait_for<B: Payload>(&self, pending: Pending<B>) -> (Waited<B>, Leavings) {
        let mut inner = self.enter();
        if self.shared.load(Ordering::Relaxed) == 0 {
            let waited = pending.wait_for(inner.queue(), SLICE);
            return (waited, self.leave(inner));
        }
        let mut waited = pending.wait_for(inner.queue(), Duration::ZERO);
        if let Waited::Underway(pending) = waited {
            inner = self.wait(inner, SLICE, Inner::wait);
            waited = pending.wait_for(inner.queue(), Duration::ZERO);
        }
        self.tell();
        (waited, self.leave(inner))
    }

    /// Submits a call of a file or directory.
    pub(super) fn submit_call(
        &self,
        py: Python<'_>,
        handle: &Handle,
        call: &piped_client::Call<'_>,
        (room, kind): (usize, Kind),
    ) -> PyResult<Arc<State>> {
        let handle = handle.open()?;
        let mut buffer = match self.with(py, |inner| inner.spare(room)).map_err(Fault::from)? {
            Some(spare) => spare,
            None => match py.detach(|| self.client.try_allocate(room)).map_err(Fault::from)? {
                Some(memory) => memory,
                None => {
                    let client = self.client.clone();
                    hear(py, move || client.allocate(room))?
                }
            },
        };
        if buffer.set_len(room).is_err() {
            return Err(Fault::unreadable().into());
        }
        let bytes = call.encode(buffer.as_mut_slice());
        let bytes = bytes.map_err(|_| Fault::from(SubmitFault::Call))?;
        self.submit(py, (piped_client::Request::call(&handle, buffer, bytes), kind), None)
    }
}

/// A number for the calling thread. Another one may have it when this one has ended.
fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// Waits until a descriptor is readable, so long at most.
fn await_readable(fd: &OwnedFd, longest: Duration) {
    let mut polled = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let milliseconds = longest.as_micros().div_ceil(1000);
    let milliseconds = libc::c_int::try_from(milliseconds).unwrap_or(libc::c_int::MAX);
    // SAFETY: one entry, which lives during the call. However it ends, the caller looks again.
    unsafe { libc::poll(&raw mut polled, 1, milliseconds) };
}
