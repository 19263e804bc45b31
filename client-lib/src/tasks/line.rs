//! Requests that wait for a place in a full queue, in the order in which they came.
//!
//! The line has the requests themselves, and whoever makes room submits the first of them. So a
//! task that does not poll its future holds up nobody.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use crate::buffer::Buffer;
use crate::error::RequestError;
use crate::pending::Pending;
use crate::queue::Queue;
use crate::request::{Done, Request};

/// A request of a line, whatever its payload.
pub(super) type AnyRequest = Request<Option<Buffer>>;

/// A request under way, whatever its payload.
pub(super) type AnyPending = Pending<Option<Buffer>>;

/// Result of a request, whatever its payload.
pub(super) type Ended = Result<Done<Option<Buffer>>, RequestError>;

/// Name of a request in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// Requests in a line. Wakers that come out of here must not be dropped under a lock.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: VecDeque<Waiting>,
    /// Requests that left at the front, until their tasks ask.
    entered: BTreeMap<Ticket, Result<AnyPending, RequestError>>,
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    request: AnyRequest,
    waker: Option<Waker>,
}

/// How a request left the line.
#[derive(Debug)]
pub(super) enum Left {
    /// The request still waits.
    Not,
    /// The request was submitted, or refused.
    Entered(Result<AnyPending, RequestError>),
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a place at the end.
    pub(super) fn join(&mut self, request: AnyRequest) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.waiting.push_back(Waiting { ticket, request, waker: None });
        ticket
    }

    /// Submits the first request. Returns its place and the task to wake at its end, or the task to
    /// wake now, for it was refused.
    pub(super) fn enter(&mut self, queue: &mut Queue) -> (Option<u32>, Option<Waker>) {
        let Some(Waiting { ticket, request, waker }) = self.waiting.pop_front() else {
            return (None, None);
        };
        let entered = queue.submit(request).map_err(RequestError::from);
        let slot = entered.as_ref().ok().map(|pending| pending.id().slot);
        self.entered.insert(ticket, entered);
        (slot, waker)
    }

    /// What became of a request, and a waker of its task that is of no more use.
    pub(super) fn ask(&mut self, ticket: Ticket, waker: &Waker) -> (Left, Option<Waker>) {
        if let Some(entered) = self.entered.remove(&ticket) {
            return (Left::Entered(entered), None);
        }
        let place = self.waiting.iter_mut().find(|it| it.ticket == ticket);
        let old = place.and_then(|place| place.waker.replace(waker.clone()));
        (Left::Not, old)
    }

    /// Leaves the line: the request, or the one that it has become.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Gone {
        let place = self.waiting.iter().position(|it| it.ticket == ticket);
        let mut gone = Gone::default();
        if let Some(waiting) = place.and_then(|place| self.waiting.remove(place)) {
            (gone.buffer, gone.waker) = (waiting.request.payload, waiting.waker);
        }
        gone.entered = self.entered.remove(&ticket).and_then(Result::ok);
        gone
    }

    /// Takes the wakers of all tasks.
    pub(super) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.waiting.iter_mut().filter_map(|it| it.waker.take())
    }
}

/// What a dropped task leaves, for being dropped outside of the lock.
#[derive(Debug, Default)]
pub(super) struct Gone {
    buffer: Option<Buffer>,
    waker: Option<Waker>,
    entered: Option<AnyPending>,
}

impl Gone {
    /// The request under way, if it was submitted already.
    pub(super) fn take_entered(&mut self) -> Option<AnyPending> {
        self.entered.take()
    }

    /// The request's buffer, and the waker of its task.
    pub(super) fn into_parts(self) -> (Option<Buffer>, Option<Waker>) {
        (self.buffer, self.waker)
    }
}
