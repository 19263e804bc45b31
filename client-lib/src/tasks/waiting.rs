//! How the tasks of a client wait: for answers over the control socket, for their turn, for work
//! elsewhere.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, Waker};

use piped_ring::handshake::Request;

use super::growth::{Grown, Growth, is_refusal};
use super::runtime::{Ready, Runtime, Watch};
use super::timer::Timer;
use crate::buffer::Buffer;
use crate::clock;
use crate::connection::Connection;
use crate::control::{Answer, Asked, Control, lock};
use crate::error::{AllocateError, SessionError};

/// Until the next attempt to send over a socket that has no room.
const RETRY_NS: u64 = 5_000_000;

/// Something that ends with the session.
pub(super) trait Ends: Send + Sync {
    /// The session is over.
    fn handle_end(self: Arc<Self>);
}

/// What tasks wait with.
pub(super) struct Waiting {
    runtime: Arc<dyn Runtime>,
    timer: Arc<Timer>,
    _timer_watch: Watch,
    /// The control socket that is watched.
    socket: Mutex<Option<(Weak<Control>, Watch)>>,
    /// Queues that want to know when the session ends.
    queues: Mutex<Vec<Weak<dyn Ends>>>,
    growth: Growth,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("timer", &self.timer).finish_non_exhaustive()
    }
}

impl Waiting {
    pub(super) fn new(runtime: Arc<dyn Runtime>) -> io::Result<Arc<Self>> {
        let timer = Arc::new(Timer::new()?);
        let fd = timer.fd().try_clone_to_owned()?;
        let ringing = Arc::downgrade(&timer);
        let ready = Ready::new(move || {
            let timer = ringing.upgrade();
            timer.inspect(|timer| timer.handle_ring()).is_some()
        });
        let watch = runtime.watch(fd, ready)?;
        Ok(Arc::new(Self {
            runtime,
            timer,
            _timer_watch: watch,
            socket: Mutex::default(),
            queues: Mutex::default(),
            growth: Growth::default(),
        }))
    }

    pub(super) fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    /// A queue wants to know when the session ends.
    pub(super) fn add_queue(&self, queue: Weak<dyn Ends>) {
        let mut queues = lock(&self.queues);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(queue);
    }

    /// Has the socket of a session watched.
    pub(super) fn watch(self: &Arc<Self>, control: &Arc<Control>) -> io::Result<()> {
        let ours = Arc::downgrade(control);
        if lock(&self.socket).as_ref().is_some_and(|(watched, _)| watched.ptr_eq(&ours)) {
            return Ok(());
        }
        let fd = control.fd().try_clone_to_owned()?;
        let (waiting, watched) = (Arc::downgrade(self), ours.clone());
        let ready = Ready::new(move || {
            let Some(control) = watched.upgrade() else { return false };
            control.read_waiting();
            let open = control.is_open();
            if let Some(waiting) = waiting.upgrade().filter(|_| !open) {
                waiting.handle_end();
            }
            open
        });
        let watch = self.runtime.watch(fd, ready)?;
        control.set_watched();
        let old = lock(&self.socket).replace((ours, watch));
        // Another task may have been first: then two watch the socket for a moment.
        drop(old);
        Ok(())
    }

    /// The session is over.
    fn handle_end(&self) {
        let queues: Vec<_> = lock(&self.queues).iter().filter_map(Weak::upgrade).collect();
        queues.into_iter().for_each(|queue| queue.handle_end());
    }

    /// Ask, and wait for the answer. A refusal is an error.
    pub(super) async fn ask(
        self: &Arc<Self>,
        control: &Arc<Control>,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Answer, SessionError> {
        let deadline_ns = clock::now_ns().saturating_add(control.timeout_ns());
        let mut asked = self.send(control, request, fds, deadline_ns).await?;
        self.answer(&mut asked, deadline_ns).await
    }

    /// Asks for a ring, which the session has only so many of: if this is dropped, the next task
    /// that asks for one goes on waiting.
    pub(super) async fn ask_for_ring(
        self: &Arc<Self>,
        connection: &Connection,
    ) -> Result<Answer, SessionError> {
        let control = &connection.control;
        let deadline_ns = clock::now_ns().saturating_add(control.timeout_ns());
        let asked = match connection.take_left() {
            Some(sequence) => {
                self.watch(control)?;
                Asked::adopt(control, sequence)
            }
            None => self.send(control, &Request::AddQueue, &[], deadline_ns).await?,
        };
        let mut asked = Kept { asked: Some(asked), connection };
        let answer = self.answer(asked.get(), deadline_ns).await;
        if !matches!(answer, Err(SessionError::TimedOut)) {
            asked.done();
        }
        answer
    }

    /// Waits until the arena has memory for a buffer. The daemon is asked for much of it first.
    pub(super) async fn memory(
        self: &Arc<Self>,
        connection: &Connection,
        length: usize,
        [large, exact]: [Request; 2],
    ) -> Result<Buffer, AllocateError> {
        let control = &connection.control;
        self.watch(control).map_err(SessionError::from)?;
        let deadline_ns = clock::now_ns().saturating_add(control.timeout_ns());
        let mut end = self.timer.until(deadline_ns);
        let mut question = &large;
        loop {
            let grown = std::future::poll_fn(|cx| {
                match self.growth.poll_grown(connection, length, question, cx) {
                    Poll::Pending => end.poll(cx).map(|()| Err(SessionError::TimedOut.into())),
                    grown => grown,
                }
            });
            match grown.await? {
                Grown::Buffer(buffer) => return Ok(buffer),
                Grown::Answered(Ok(())) => {}
                Grown::Answered(refused) if is_refusal(&refused) && question != &exact => {
                    question = &exact;
                }
                Grown::Answered(Err(error)) => return Err(error),
                Grown::NotAsked => self.pause(deadline_ns).await?,
            }
        }
    }

    async fn send(
        self: &Arc<Self>,
        control: &Arc<Control>,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        deadline_ns: u64,
    ) -> Result<Asked, SessionError> {
        self.watch(control)?;
        loop {
            if let Some(asked) = Asked::send(control, request, fds)? {
                return Ok(asked);
            }
            self.pause(deadline_ns).await?;
        }
    }

    /// Waits a little, and not beyond a deadline.
    pub(super) async fn pause(&self, deadline_ns: u64) -> Result<(), SessionError> {
        let now_ns = clock::now_ns();
        if now_ns >= deadline_ns {
            return Err(SessionError::TimedOut);
        }
        self.timer.until((now_ns + RETRY_NS).min(deadline_ns)).await;
        Ok(())
    }

    async fn answer(&self, asked: &mut Asked, deadline_ns: u64) -> Result<Answer, SessionError> {
        let mut end = self.timer.until(deadline_ns);
        std::future::poll_fn(|cx| match asked.poll_answer(cx) {
            Poll::Pending => end.poll(cx).map(|()| Err(SessionError::TimedOut)),
            answer => answer,
        })
        .await
    }

    /// Runs work where it may block. `None`: the runtime ended before it did.
    pub(super) async fn unblock<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let place = Arc::new(Mutex::new(Handed { value: None, waker: None, over: false }));
        let hand = Hand(Arc::clone(&place));
        self.runtime.unblock(Box::new(move || {
            let value = work();
            lock(&hand.0).value = Some(value);
            drop(hand);
        }));
        std::future::poll_fn(move |cx| {
            let mut handed = lock(&place);
            if handed.over {
                return Poll::Ready(handed.value.take());
            }
            let old = handed.waker.replace(cx.waker().clone());
            drop(handed);
            drop(old);
            Poll::Pending
        })
        .await
    }
}

/// A question that is left to the next one when its task is dropped.
struct Kept<'a> {
    asked: Option<Asked>,
    connection: &'a Connection,
}

impl Kept<'_> {
    fn get(&mut self) -> &mut Asked {
        self.asked.as_mut().expect("only `done` takes it, and that is the end")
    }

    /// The answer was taken.
    fn done(&mut self) {
        self.asked = None;
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.connection.leave(asked.leave());
        }
    }
}

/// A result on its way from another thread.
struct Handed<T> {
    value: Option<T>,
    waker: Option<Waker>,
    over: bool,
}

/// The thread's end of it: dropped, the work is over, done or not.
struct Hand<T>(Arc<Mutex<Handed<T>>>);

impl<T> Drop for Hand<T> {
    fn drop(&mut self) {
        let mut handed = lock(&self.0);
        handed.over = true;
        let waker = handed.waker.take();
        drop(handed);
        waker.into_iter().for_each(Waker::wake);
    }
}
