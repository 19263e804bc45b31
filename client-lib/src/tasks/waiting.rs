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
use crate::control::{Answer, Asked, Control, Watched, lock};
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

    /// Has the socket of a session watched. Of one that is over its end is told at once.
    pub(super) fn watch(self: &Arc<Self>, control: &Arc<Control>) -> io::Result<()> {
        let ours = Arc::downgrade(control);
        if lock(&self.socket).as_ref().is_some_and(|(watched, _)| watched.ptr_eq(&ours)) {
            return Ok(());
        }
        let fd = control.fd().try_clone_to_owned()?;
        let (waiting, control_read) = (Arc::downgrade(self), ours.clone());
        let watched = Watched::new(control);
        let ready = Ready::new(move || {
            // Until nobody calls any more.
            let _watched = &watched;
            let Some(control) = control_read.upgrade() else { return false };
            match waiting.upgrade() {
                Some(waiting) => waiting.read(&control),
                None => {
                    control.read_waiting();
                    control.is_open()
                }
            }
        });
        let watch = self.runtime.watch(fd, ready)?;
        let mut socket = lock(&self.socket);
        // A session begins after the end of the one before. So one that is open is the newest, and
        // one that is over may be in nobody's place.
        let old = match control.is_open() {
            true => socket.replace((ours, watch)),
            false => Some((ours, watch)),
        };
        drop(socket);
        // Tasks that wait at a session that is over hear of it now: nobody watches it any more.
        // (Another task may have been first: then two watch one socket for a moment.)
        if let Some(control) = old.as_ref().and_then(|(control, _)| control.upgrade()) {
            self.read(&control);
        }
        drop(old);
        Ok(())
    }

    /// Takes in what has come over a socket. `false`: the session is over.
    fn read(&self, control: &Control) -> bool {
        control.read_waiting();
        let open = control.is_open();
        if !open {
            self.handle_end();
        }
        open
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

    /// Asks for what must not stay undone: if this fails or is dropped before the question is sent,
    /// the daemon is told.
    pub(super) async fn ask_or_tell(
        self: &Arc<Self>,
        control: &Arc<Control>,
        request: Request,
    ) -> Result<Answer, SessionError> {
        let deadline_ns = clock::now_ns().saturating_add(control.timeout_ns());
        let mut unasked = Unasked { control, request: Some(request.clone()) };
        let mut asked = self.send(control, &request, &[], deadline_ns).await?;
        unasked.request = None;
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

/// A question that is told if it is not asked.
struct Unasked<'a> {
    control: &'a Control,
    request: Option<Request>,
}

impl Drop for Unasked<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.control.tell(request);
        }
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

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::control::testing::{Woken, pair};

    /// Calls nobody, and knows which watches are left.
    #[derive(Default)]
    struct Idle(Mutex<Vec<(Weak<()>, Ready)>>);

    impl Idle {
        fn left(&self) -> Vec<bool> {
            lock(&self.0).iter().map(|(watch, _)| watch.strong_count() > 0).collect()
        }
    }

    impl Runtime for Idle {
        fn watch(&self, _: OwnedFd, ready: Ready) -> io::Result<Watch> {
            let watch = Arc::new(());
            lock(&self.0).push((Arc::downgrade(&watch), ready));
            Ok(Watch::new(watch))
        }
    }

    #[test]
    fn a_late_question_at_a_session_that_is_over_takes_no_watch_from_the_next() {
        let runtime = Arc::new(Idle::default());
        let waiting = Waiting::new(Arc::<Idle>::clone(&runtime)).expect("a timer");
        let ((old, daemon), (new, _next)) = (pair(), pair());
        waiting.watch(&old).expect("watched");
        let asked = Asked::send(&old, &Request::AddQueue, &[]).expect("it is there");
        let mut asked = asked.expect("room");
        let woken = Arc::new(Woken::default());
        asked.set_waker(&Waker::from(Arc::clone(&woken)));
        drop(daemon);
        assert_eq!((runtime.left(), woken.count()), (vec![true; 2], 0));
        waiting.watch(&new).expect("watched");
        assert_eq!(runtime.left(), [true, false, true]);
        assert_eq!(woken.count(), 1, "nobody else will say that the session is over");
        for _ in 0..2 {
            waiting.watch(&old).expect("it is not");
        }
        waiting.watch(&new).expect("watched as before");
        assert_eq!(runtime.left(), [true, false, true, false, false]);
        let late = Asked::send(&old, &Request::AddQueue, &[]);
        assert!(matches!(late, Err(SessionError::Disconnected)), "{late:?}");
    }
}
