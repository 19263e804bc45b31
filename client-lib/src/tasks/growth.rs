//! How the arena grows for tasks: one question for all that wait for memory.
//!
//! The question is nobody's. Each task that waits is woken by its answer, and the first that is
//! polled takes it in. So none waits for another to be polled, and one that is dropped leaves the
//! question to the others.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use piped_ring::handshake::Request;

use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::control::{Asked, lock};
use crate::error::{AllocateError, SessionError};

/// The question under way, and tasks that wait for its answer.
#[derive(Debug, Default)]
pub(super) struct Growth {
    asked: Mutex<Option<(Asked, Request)>>,
    wakers: Arc<Wakers>,
}

/// Tasks that wait for memory.
#[derive(Debug, Default)]
struct Wakers(Mutex<Vec<Waker>>);

impl Wakers {
    fn add(&self, waker: &Waker) {
        let mut wakers = lock(&self.0);
        if !wakers.iter().any(|it| it.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *lock(&self.0));
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// What has come of waiting for memory.
#[derive(Debug)]
pub(super) enum Grown {
    /// A buffer from memory that was there.
    Buffer(Buffer),
    /// A question was answered.
    Answered(Result<(), AllocateError>),
    /// The socket has no room for the question.
    NotAsked,
}

impl Growth {
    /// Waits for memory: asks the question, unless one is under way, and takes in its answer.
    pub(super) fn poll_grown(
        &self,
        connection: &Connection,
        length: usize,
        question: &Request,
        cx: &Context<'_>,
    ) -> Poll<Result<Grown, AllocateError>> {
        // First of all: what changes from now on wakes this task.
        self.wakers.add(cx.waker());
        let mut place = lock(&self.asked);
        if let Some(buffer) = connection.allocate_at_once(length)? {
            return Poll::Ready(Ok(Grown::Buffer(buffer)));
        }
        let stale = place.take_if(|(asked, _)| !asked.is_of(&connection.control));
        if place.is_none() {
            let asked = Asked::send(&connection.control, question, &[])?;
            *place = asked.map(|asked| (asked, question.clone()));
        }
        let Some((asked, _)) = place.as_mut() else { return Poll::Ready(Ok(Grown::NotAsked)) };
        asked.set_waker(&Waker::from(Arc::clone(&self.wakers)));
        drop(place);
        drop(stale);
        connection.control.read_waiting();
        let mut place = lock(&self.asked);
        let answer = place.as_mut().and_then(|(asked, _)| asked.take());
        let Some(answer) = answer else { return Poll::Pending };
        let asked = place.take();
        // Under the lock: the next task finds the memory, and does not ask for more.
        let grown = answer.map_err(AllocateError::from);
        let mut grown = grown.and_then(|answer| connection.add_segment(answer));
        let was_ours = asked.as_ref().is_some_and(|(_, asked)| asked == question);
        if !was_ours && is_refusal(&grown) {
            // Another task wanted more than there is, which says nothing of this one.
            grown = Ok(());
        }
        drop(place);
        drop(asked);
        Arc::clone(&self.wakers).wake();
        Poll::Ready(Ok(Grown::Answered(grown)))
    }
}

/// Whether the daemon answered that it may not be so much.
pub(super) fn is_refusal(grown: &Result<(), AllocateError>) -> bool {
    matches!(grown, Err(AllocateError::Session(SessionError::Refused { .. })))
}
