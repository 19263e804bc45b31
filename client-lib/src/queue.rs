//! One thread's way to the daemon.

mod verbs;

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::connection::{Growth, Shared};
use crate::core::{Core, QueueCounters};
use crate::error::{AllocateError, RequestError, SubmitError, SubmitFault};
use crate::payload::Payload;
use crate::pending::Pending;
use crate::request::{Completed, Released, Request, RequestId};
use crate::table::Owner;
use crate::wait::WaitPolicy;
use crate::{affinity, clock, landed, reconnect};

/// Submits requests and gives their results: one for each thread, from [`crate::Client::queue`].
///
/// A request is *pending* or *detached*. A pending one is a value: wait for it with
/// [`Pending::wait`]; dropping it cancels it. The results of detached ones come from [`Self::poll`]
/// and [`Self::wait`], in the order they ended. The daemon sees submitted requests after
/// [`Self::flush`], which every look for results includes. A steady stream costs no system call and
/// no allocation.
///
/// A dropped queue cancels its requests. Their buffers return to the arena when the daemon is done.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use piped_client::{Client, OpenOptions, Request};
/// let client = Client::connect("/run/piped/client.sock")?;
/// let file = client.open_file("/srv/data/blocks", OpenOptions::read())?;
/// let mut queue = client.queue()?;
/// for number in 0..16 {
///     let request = Request::read(&file, number << 16, client.allocate(1 << 16)?).tag(number);
///     queue.submit_detached(request)?;
/// }
/// while let Some(completed) = queue.wait(None) {
///     println!("block {}: {} bytes", completed.tag, completed.result?.bytes);
/// }
/// # Ok(()) }
/// ```
///
/// A queue may move to another thread, and two threads cannot share it:
///
/// ```
/// fn may_move<T: Send>() {}
/// may_move::<piped_client::Queue>();
/// ```
/// ```compile_fail
/// fn may_be_shared<T: Sync>() {}
/// may_be_shared::<piped_client::Queue>();
/// ```
#[derive(Debug)]
pub struct Queue {
    /// Taken by dropping the queue.
    core: Option<Core>,
    shared: Arc<Shared>,
    /// Whether this side may wait for the daemon over the control socket.
    growth: Growth,
    /// `Send`, but not `Sync`: one thread at a time.
    one_thread: PhantomData<Cell<()>>,
}

impl Queue {
    pub(crate) fn new(core: Core, shared: Arc<Shared>) -> Self {
        shared.lend_queue();
        Self { core: Some(core), shared, growth: Growth::Waits, one_thread: PhantomData }
    }

    /// Nothing but waits waits: see [`Growth::None`].
    #[cfg(feature = "async")]
    pub(crate) fn never_wait(&mut self) {
        self.growth = Growth::None;
    }

    /// Submit a request. The returned value stands for it.
    ///
    /// # Errors
    /// See [`crate::SubmitFault`]; the buffer comes back.
    pub fn submit<B: Payload>(
        &mut self,
        request: Request<B>,
    ) -> Result<Pending<B>, SubmitError<B>> {
        let id = self.enter(request, Owner::Pending)?;
        Ok(Pending::new(id, Arc::clone(&self.core().drops)))
    }

    /// Submit a request with a result that [`Self::poll`] and [`Self::wait`] will give.
    ///
    /// # Errors
    /// See [`crate::SubmitFault`]; the buffer comes back.
    pub fn submit_detached<B: Payload>(
        &mut self,
        request: Request<B>,
    ) -> Result<RequestId, SubmitError<B>> {
        self.enter(request, Owner::Detached)
    }

    fn enter<B: Payload>(
        &mut self,
        mut request: Request<B>,
        owner: Owner,
    ) -> Result<RequestId, SubmitError<B>> {
        if self.refresh() {
            request = self.bring(request)?;
        }
        self.core_mut().submit(request, owner)
    }

    /// Brings the request's buffer into the memory of the queue's connection.
    fn bring<B: Payload>(&self, mut request: Request<B>) -> Result<Request<B>, SubmitError<B>> {
        let unstow = |buffer| B::unstow(buffer).expect("it had one");
        let Some(buffer) = request.payload.stow() else {
            request.payload = unstow(None);
            return Ok(request);
        };
        let brought = match self.core().has(&buffer) {
            true => Ok(buffer),
            false => self.shared.bring(buffer, &self.shared.connection(), 0..0, self.growth),
        };
        match brought {
            Ok(buffer) => {
                request.payload = unstow(Some(buffer));
                Ok(request)
            }
            Err(buffer) => {
                let fault = SubmitFault::without(&buffer);
                Err(SubmitError { fault, buffer: unstow(Some(buffer)) })
            }
        }
    }

    /// Goes on at the client's newest connection, if that is another one. Returns whether it is not
    /// the first: buffers may be of another.
    fn refresh(&mut self) -> bool {
        let generation = self.shared.generation();
        if self.core().generation() != generation {
            self.reattach();
        }
        generation > 1
    }

    #[cold]
    fn reattach(&mut self) {
        let shared = Arc::clone(&self.shared);
        let connection = shared.connection();
        let growth = self.growth;
        let ring = match growth {
            Growth::Waits => connection.ring().ok(),
            Growth::None => connection.spare_ring(),
        };
        let core = self.core_mut();
        match ring {
            Some(ring) if core.fits(&ring) => core.reattach(ring, &shared, &connection, growth),
            // Without a ring it is as it was: without a daemon.
            _ => core.lose_daemon(),
        }
    }

    /// Wait until `ready`; see [`Core::wait_until`]. Requests that outlive their daemon have the
    /// client reconnect.
    pub(crate) fn wait_until(
        &mut self,
        timeout: Option<Duration>,
        ready: impl Fn(&Core) -> bool,
    ) -> bool {
        self.refresh();
        // Before the first wait, which may take all of it.
        let end_ns = match (timeout, self.shared.settings.reconnect) {
            (Some(timeout), Some(_)) => Some(clock::now_ns().saturating_add(clock::nanos(timeout))),
            _ => None,
        };
        if self.core_mut().wait_until(timeout, &ready) {
            return true;
        }
        // A caller that only looks does not look for a daemon either.
        let looks = timeout == Some(Duration::ZERO);
        if looks || !self.core().is_dead() || self.core().table.parked() == 0 {
            return false;
        }
        self.wait_beyond(end_ns, ready)
    }

    /// The daemon is gone, and requests wait for the next.
    #[cold]
    fn wait_beyond(&mut self, end_ns: Option<u64>, ready: impl Fn(&Core) -> bool) -> bool {
        let within_ns = self.shared.settings.reconnect.map_or(0, clock::nanos);
        loop {
            let core = self.core();
            let patience_ns = core.dead_since_ns().saturating_add(within_ns);
            if let Some(expires_ns) = core.parked_until_ns().filter(|_| core.is_dead()) {
                let until_ns = expires_ns.min(patience_ns).min(end_ns.unwrap_or(u64::MAX));
                let found = self.shared.reconnect(until_ns, patience_ns);
                let hopeless = reconnect::is_hopeless(&found, patience_ns);
                self.core_mut().expire_parked(hopeless);
            }
            self.refresh();
            if self.core().is_dead() && self.core().table.parked() > 0 {
                // A daemon that has no queue for it, or ended again at once.
                clock::nap(reconnect::NAP_NS);
            }
            let left_ns = end_ns.map(|end_ns| end_ns.saturating_sub(clock::now_ns()));
            if self.core_mut().wait_until(left_ns.map(Duration::from_nanos), &ready) {
                return true;
            }
            let core = self.core();
            if left_ns == Some(0) || !core.is_dead() || core.table.parked() == 0 {
                return false;
            }
        }
    }

    /// Allocates a buffer of `length` bytes of the queue's client.
    ///
    /// # Errors
    /// See [`AllocateError`].
    pub fn allocate(&self, length: usize) -> Result<crate::Buffer, AllocateError> {
        self.shared.allocate(length)
    }

    /// Submit any request and wait for its result.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn run<B: Payload>(&mut self, request: Request<B>) -> Result<crate::Done<B>, RequestError> {
        self.make_room();
        match self.submit(request) {
            Ok(pending) => pending.wait(self),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Let the daemon see what was submitted: once for a batch. Every look for results does so,
    /// too.
    pub fn flush(&mut self) {
        self.core_mut().flush();
    }

    /// The next detached request that ended, if there is one. Never waits.
    #[must_use]
    pub fn poll(&mut self) -> Option<Completed> {
        if !self.core().table.has_ready() {
            self.look();
        }
        let core = self.core_mut();
        let (slot, generation, taken) = core.table.pop_ready()?;
        Some(Completed { id: core.id(slot, generation), tag: taken.tag, result: taken.result })
    }

    /// The next detached request that ends. `None`: the time is over, or no detached request is
    /// under way.
    #[must_use]
    pub fn wait(&mut self, timeout: Option<Duration>) -> Option<Completed> {
        if !self.core().table.has_ready() {
            let ended = |core: &Core| core.table.has_ready() || core.table.detached_underway() == 0;
            self.wait_until(timeout, ended);
        }
        self.poll()
    }

    /// Waits for one of several requests. Returns the place in `pending` of one that ended. `None`:
    /// the time is over, or none of them is a request of this queue.
    #[must_use]
    pub fn wait_any<B: Payload>(
        &mut self,
        pending: &[Pending<B>],
        timeout: Option<Duration>,
    ) -> Option<usize> {
        if !pending.iter().any(|one| one.is_of(&self.core().drops)) {
            return None;
        }
        let ended = |core: &Core, one: &Pending<B>| {
            let RequestId { slot, generation, .. } = one.id();
            one.is_of(&core.drops) && core.table.is_finished(slot, generation)
        };
        self.wait_until(timeout, |core| pending.iter().any(|one| ended(core, one)));
        pending.iter().position(|one| ended(self.core(), one))
    }

    /// The next buffer that was `BufferState::Held` and is free now. Never waits. Of buffers that
    /// nobody asks for, as many are kept as the queue is deep.
    #[must_use]
    pub fn poll_released(&mut self) -> Option<Released> {
        if !self.core().table.has_released() {
            self.look();
        }
        let core = self.core_mut();
        let (slot, generation, tag, buffer) = core.table.pop_released()?;
        Some(Released { id: core.id(slot, generation), tag, buffer })
    }

    /// The next buffer that was `BufferState::Held` and becomes free. `None`: the time is over,
    /// or no buffer is held (any more: those of a daemon that is gone are lost).
    #[must_use]
    pub fn wait_released(&mut self, timeout: Option<Duration>) -> Option<Released> {
        let ended = |core: &Core| core.table.has_released() || !core.table.expects_release();
        self.wait_until(timeout, ended);
        self.poll_released()
    }

    /// Whether the buffer of a request that ended is `BufferState::Held` still. `false` from its
    /// release on, or when its daemon is gone: then [`Self::poll_released`] gives it back or, if
    /// nobody will say when it is free, never does.
    #[must_use]
    pub fn is_held(&self, request: impl Into<RequestId>) -> bool {
        let core = self.core();
        let names = core.names(request.into());
        names.is_some_and(|(slot, generation)| core.table.is_held(slot, generation))
    }

    /// Takes in what ended, without waiting.
    pub(crate) fn look(&mut self) {
        self.refresh();
        let core = self.core_mut();
        core.reap();
        if core.is_dead() {
            core.expire_parked(false);
        }
    }

    /// Ask the daemon to give up on a request. The request ends all the same, once, as what it is
    /// by then. `false`: it is over already, or was cancelled before.
    pub fn cancel(&mut self, request: impl Into<RequestId>) -> bool {
        let core = self.core_mut();
        let cancelled = core.cancel(request.into());
        core.flush();
        cancelled
    }

    /// Contiguous bytes in place from a request's start. They stay as they are, and never get
    /// fewer. 0 for a request that is not of this queue (any more).
    #[must_use]
    pub fn progress(&self, request: impl Into<RequestId>) -> u64 {
        landed::progress(self.core(), request.into())
    }

    /// The first bytes of a read beyond [`Self::progress`] that are in place, too: after
    /// [`crate::Request::wanted_first`] the part around that byte. Empty if there are none, or the
    /// others have reached them.
    #[must_use]
    pub fn landed(&self, request: impl Into<RequestId>) -> Range<u64> {
        landed::beyond_progress(self.core(), request.into())
    }

    /// Copy bytes of a read that is under way: those from `offset` of the request that are in place
    /// already. Returns how many; 0 if none are there yet, or somebody has cut the lent memory.
    #[must_use]
    pub fn copy_landed(&self, request: impl Into<RequestId>, offset: u64, to: &mut [u8]) -> usize {
        landed::copy(self.core(), request.into(), offset, to)
    }

    /// Let [`Self::poll`] give the result of a pending request. A request of another queue is
    /// cancelled.
    pub fn detach<B: Payload>(&mut self, pending: Pending<B>) -> RequestId {
        let core = self.core_mut();
        let id = pending.id();
        if pending.is_of(&core.drops) {
            pending.disarm();
            core.table.detach(id.slot, id.generation);
        }
        id
    }

    /// Whether one more request would enter now, or be refused for another reason than a full
    /// queue. Results that nobody has taken and buffers that the kernel holds have their places
    /// still. A look at the queue's own memory, without one at the daemon's: [`Self::poll`] first.
    #[must_use]
    pub fn has_room(&mut self) -> bool {
        self.core_mut().has_place()
    }

    /// Waits until there is room for one more request, or a result that [`Self::poll`] gives; zero
    /// only looks. `false`: the time is over, or nothing is under way that could make room. Without
    /// a daemon there is room for requests that outlive it, and a refusal for others.
    pub fn wait_for_room(&mut self, timeout: Duration) -> bool {
        self.has_room()
            || self.wait_until(Some(timeout), |core| core.is_roomy() || core.table.has_ready())
            || self.has_room()
    }

    /// Waits until cancels that the daemon has not answered have left room for a request.
    /// [`Self::run`] does so by itself.
    pub fn make_room(&mut self) {
        let core = self.core_mut();
        if core.awaits_cancels() && !core.has_room() {
            core.wait_until(None, |core| !core.awaits_cancels() || core.has_room());
        }
    }

    /// Requests the daemon has not ended yet.
    #[must_use]
    pub fn underway(&self) -> u32 {
        self.core().table.underway()
    }

    /// The most requests that can be under way or not yet taken.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.core().table.len()
    }

    /// The queue's counters since it was made.
    #[must_use]
    pub fn counters(&self) -> QueueCounters {
        self.core().counters()
    }

    /// Whether the daemon is known to be gone. Then every request has ended, but for those that
    /// wait for the next daemon ([`Request::resubmit`]), and no others can be submitted. `false`
    /// again once the client has reconnected and the queue was used.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.core().is_dead()
    }

    /// A descriptor for poll, epoll or an async runtime, also through `AsFd`. It is readable when
    /// there is something to [`Self::poll`] for or the daemon is gone; see [`Self::arm`]. After
    /// [`crate::Client::reconnect`] it is another one, from the next use of the queue on.
    #[must_use]
    pub fn completion_fd(&self) -> BorrowedFd<'_> {
        self.core().ring().wait_fd()
    }

    /// Ask for [`Self::completion_fd`] to be rung. `false`: something ended since the last time;
    /// take it (poll the queue and look at its pending requests) and arm again. `true`: wait for
    /// the descriptor, then call [`Self::drain`]. Always `false` once [`Self::is_disconnected`].
    ///
    /// ```no_run
    /// # fn turn(queue: &mut piped_client::Queue, wait_readable: fn(std::os::fd::BorrowedFd<'_>)) {
    /// loop {
    ///     while let Some(completed) = queue.poll() {
    ///         println!("{:?} ended", completed.id);
    ///     }
    ///     if queue.arm() {
    ///         wait_readable(queue.completion_fd());
    ///         queue.drain();
    ///     }
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn arm(&mut self) -> bool {
        self.core_mut().arm()
    }

    /// Silence [`Self::completion_fd`] and take in what was completed, after it was readable (or
    /// the caller gave up waiting).
    pub fn drain(&mut self) {
        self.core_mut().drain();
    }

    /// Sets how to wait from now on.
    pub fn set_wait_policy(&mut self, policy: WaitPolicy) {
        self.core_mut().spin_limit(policy.spin_ns());
    }

    /// How long the queue looks for completions at present before it sleeps: the policy's longest
    /// spin, or less where spinning did not pay; nothing on the CPU of the daemon's shard.
    #[must_use]
    pub fn spin_budget(&self) -> Duration {
        Duration::from_nanos(self.core().spin_budget_ns())
    }

    /// Move the calling thread to the CPU of the daemon's shard and never spin. Where the daemon
    /// spins, a sleeping client beside it is woken fastest, and a client that spins there keeps the
    /// daemon from running. `false`: the shard has no CPU of its own.
    ///
    /// # Errors
    /// The kernel does not allow this thread on that CPU.
    pub fn pin_to_shard(&mut self) -> io::Result<bool> {
        let Some(cpu) = self.shared.shard_cpu() else { return Ok(false) };
        affinity::pin_current_thread(cpu)?;
        self.core_mut().spin_limit(0);
        Ok(true)
    }

    pub(crate) fn core(&self) -> &Core {
        self.core.as_ref().expect("a queue has its core until it is dropped")
    }

    pub(crate) fn core_mut(&mut self) -> &mut Core {
        self.core.as_mut().expect("a queue has its core until it is dropped")
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.core.take().into_iter().for_each(|core| self.shared.keep_queue(core));
    }
}

#[cfg(test)]
#[cfg(feature = "async")]
mod tests {
    use std::os::fd::OwnedFd;

    use piped_core::status::Status;
    use piped_ring::handshake::{Reply, Welcome};
    use piped_ring::{CompletionEntry, CompletionKind, Segment, ServerQueue};

    use super::*;
    use crate::connection::Connection;
    use crate::control::testing;
    use crate::error::BufferState;
    use crate::handle::Handle;
    use crate::{Client, ClientBuilder, SocketOrigin};

    /// A queue with one place, something open, and the daemon's side of them.
    fn queue() -> (Queue, Handle, ServerQueue, OwnedFd) {
        let (control, daemon) = testing::pair();
        let server = ServerQueue::create(2).expect("a queue");
        let memory = Segment::create(1 << 16).expect("memory");
        let fds = [memory.fd()].into_iter().chain(server.fds());
        let fds = fds.map(|fd| fd.try_clone_to_owned().expect("a descriptor")).collect();
        let welcome = Welcome {
            features: 0,
            session: 1,
            segments: 1,
            queues: 1,
            shard_cpu: -1,
            client_spin_ns: 0,
            deadline_default_ns: u64::MAX,
        };
        let settings = ClientBuilder::new().settings(("/nowhere".into(), SocketOrigin::Given));
        let begun = Connection::begin(control, (Reply::Welcome(welcome), fds), 1, 1);
        let client = Client::new(Shared::new(settings, begun.expect("a session"), 1));
        let at = (&*client.shared().connection(), &client.shared().link);
        let opened = Reply::Opened { handle: 1, direct_alignment: 0, length: 64 };
        let handle = Handle::from_answer(at, (opened, Vec::new()), None).expect("it is open");
        (client.queue().expect("its ring"), handle, server, daemon)
    }

    fn taken(server: &mut ServerQueue) -> u64 {
        server.take().expect("an honest client").expect("a request").user_data
    }

    fn post(server: &mut ServerQueue, request: u64, kind: CompletionKind) {
        let status = match kind {
            CompletionKind::FinishedHeld => Status::DeadlineExceeded,
            _ => Status::Ok,
        };
        let entry = CompletionEntry::finished(request, status, 0).with_kind(kind);
        server.post(entry).expect("room");
        server.publish();
    }

    #[test]
    fn a_buffer_that_the_kernel_holds_has_its_place_until_it_is_released() {
        let (mut queue, handle, mut server, _daemon) = queue();
        assert!(queue.has_room() && queue.wait_for_room(Duration::ZERO));
        let buffer = queue.allocate(64).expect("room");
        queue.submit_detached(Request::read(&handle, 0, buffer)).expect("room");
        queue.flush();
        assert!(!queue.has_room());
        let request = taken(&mut server);
        post(&mut server, request, CompletionKind::FinishedHeld);
        let ended = queue.wait(Some(Duration::from_secs(60))).expect("it ended");
        let error = ended.result.expect_err("at its deadline");
        assert!(matches!(error.buffer, BufferState::Held));
        assert_eq!(queue.underway(), 0);
        assert!(!queue.has_room() && !queue.wait_for_room(Duration::from_millis(1)));
        let refused = queue.submit(Request::nop()).expect_err("no place");
        assert_eq!(refused.fault, SubmitFault::Full);
        post(&mut server, request, CompletionKind::Released);
        assert!(queue.wait_for_room(Duration::from_secs(60)));
        assert!(queue.submit(Request::nop()).is_ok());
    }

    #[test]
    fn there_is_room_for_a_refusal_when_the_daemon_is_gone() {
        let (mut queue, _handle, server, daemon) = queue();
        let _waits = queue.submit(Request::nop()).expect("room");
        assert!(!queue.has_room());
        drop((server, daemon));
        assert!(queue.wait_for_room(Duration::from_secs(60)));
        let refused = queue.submit(Request::nop()).expect_err("nobody is there");
        assert_eq!(refused.fault, SubmitFault::Disconnected);
    }
}
