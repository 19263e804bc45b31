//! Boxes for answers: one for each asker that waits.

use std::task::Waker;

use piped_ring::handshake::{HandshakeFault, Reply, Request};

use super::Answer;
use crate::error::SessionError;

/// What came over the socket and was not fetched yet.
#[derive(Debug, Default)]
pub(super) struct Mail {
    /// Some thread reads the socket.
    reading: bool,
    /// Nothing more will come, and what ended it.
    gone: Option<Gone>,
    boxes: Vec<MailBox>,
}

/// The box of an asker.
#[derive(Debug)]
struct MailBox {
    /// Number of the question; 0: its asker gave up.
    sequence: u32,
    answer: Option<Answer>,
    /// The task that waits; a thread is waked by other means.
    waker: Option<Waker>,
}

/// Why nothing more will come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Gone {
    /// The daemon closed the socket.
    Closed,
    /// The last message was not of the protocol: nothing that follows can be trusted to be.
    Fault(HandshakeFault),
}

impl Mail {
    /// Whether somebody reads the socket.
    pub(super) fn is_read(&self) -> bool {
        self.reading
    }

    /// Somebody reads the socket, or stops it.
    pub(super) fn set_reading(&mut self, reading: bool) {
        self.reading = reading;
    }

    /// Whether nothing more will come.
    pub(super) fn is_over(&self) -> bool {
        self.gone.is_some()
    }

    /// Nothing more will come.
    pub(super) fn end(&mut self, gone: Gone) {
        self.gone = Some(gone);
    }

    /// Somebody waits for the answer to that question.
    pub(super) fn expect(&mut self, sequence: u32) {
        self.boxes.push(MailBox { sequence, answer: None, waker: None });
    }

    /// Nobody waits for it any more. Returns a waker that must not be dropped under a lock.
    pub(super) fn forget(&mut self, sequence: u32) -> Option<Waker> {
        let place = self.boxes.iter().position(|it| it.sequence == sequence)?;
        self.boxes.swap_remove(place).waker
    }

    /// The answer, or why there will be none.
    pub(super) fn take(&mut self, sequence: u32) -> Option<Result<Answer, SessionError>> {
        let place = self.boxes.iter_mut().find(|it| it.sequence == sequence);
        if let Some(answer) = place.and_then(|it| it.answer.take()) {
            return Some(Ok(answer));
        }
        match &self.gone {
            None => None,
            Some(Gone::Closed) => Some(Err(SessionError::Disconnected)),
            Some(Gone::Fault(fault)) => Some(Err(SessionError::Protocol(fault.clone()))),
        }
    }

    /// Gives an answer to the asker it belongs to. The answer to an asker that gave up stays if it
    /// opened or lent something, so that this is given back.
    pub(super) fn deliver(&mut self, sequence: u32, answer: Answer) {
        match self.boxes.iter_mut().find(|it| it.sequence == sequence) {
            Some(place) => place.answer = Some(answer),
            None if undo(&answer.0).is_some() => {
                self.boxes.push(MailBox { sequence: 0, answer: Some(answer), waker: None });
            }
            None => {}
        }
    }

    /// Requests that undo what late answers did.
    pub(super) fn take_late(&mut self) -> Vec<Request> {
        let mut late = Vec::new();
        self.boxes.retain(|it| match (it.sequence, &it.answer) {
            (0, Some((reply, _))) => {
                late.extend(undo(reply));
                false
            }
            _ => true,
        });
        late
    }

    /// Whether no task waits.
    pub(super) fn has_no_wakers(&self) -> bool {
        self.boxes.iter().all(|it| it.waker.is_none())
    }

    /// Tasks that have an answer, or will have none; all of them, if `more`.
    pub(super) fn take_wakers(&mut self, more: bool) -> Vec<Waker> {
        let all = more || self.gone.is_some();
        let boxes = self.boxes.iter_mut().filter(|it| all || it.answer.is_some());
        boxes.filter_map(|it| it.waker.take()).collect()
    }

    /// Notes the task that waits for an answer. Returns a waker that must not be dropped under a
    /// lock.
    #[cfg(feature = "async")]
    pub(super) fn set_waker(&mut self, sequence: u32, waker: &Waker) -> Option<Waker> {
        let place = self.boxes.iter_mut().find(|it| it.sequence == sequence)?;
        match &place.waker {
            Some(old) if old.will_wake(waker) => None,
            _ => place.waker.replace(waker.clone()),
        }
    }
}

/// The request that gives back what an answer brought.
fn undo(reply: &Reply) -> Option<Request> {
    match reply {
        Reply::Opened { handle, .. } => Some(Request::CloseHandle { handle: *handle }),
        Reply::Lent { segment } => Some(Request::TakeBack { segment: *segment }),
        _ => None,
    }
}
