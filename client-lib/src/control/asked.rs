//! Questions of tasks: sent without waiting, and answered by whoever reads.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use piped_ring::handshake::Request;

use super::{Answer, Control, Patience, checked, lock};
use crate::error::SessionError;

/// A question on its way. Dropped, it is forgotten: what its answer opens is closed again.
#[derive(Debug)]
pub(crate) struct Asked {
    control: Arc<Control>,
    /// 0: somebody else has it.
    sequence: u32,
}

impl Asked {
    /// Sends a question; `None` if the socket has no room for it.
    pub(crate) fn send(
        control: &Arc<Control>,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Option<Self>, SessionError> {
        control.tell_owed();
        let sent = control.send(request, fds, true, Patience::AtOnce)?;
        // Those that found the socket in use.
        control.tell_owed();
        Ok(sent.map(|sequence| Self { control: Arc::clone(control), sequence }))
    }

    /// The answer. A refusal is an error.
    pub(crate) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Answer, SessionError>> {
        self.set_waker(cx.waker());
        // The waker is there first: an answer that a thread reads from now on wakes this task.
        self.control.read_waiting();
        self.take().map_or(Poll::Pending, Poll::Ready)
    }

    /// Notes the task that the answer wakes. What is there may not have been read yet.
    pub(crate) fn set_waker(&mut self, waker: &Waker) {
        let old = lock(&self.control.mail).set_waker(self.sequence, waker);
        drop(old);
    }

    /// The answer, if it has been read.
    pub(crate) fn take(&mut self) -> Option<Result<Answer, SessionError>> {
        let taken = lock(&self.control.mail).take(self.sequence);
        taken.map(|answer| answer.and_then(checked))
    }

    /// Whether it was asked over that socket.
    pub(crate) fn is_of(&self, control: &Arc<Control>) -> bool {
        Arc::ptr_eq(&self.control, control)
    }

    /// Leaves the question to somebody else, whose task goes on with [`Self::adopt`].
    pub(crate) fn leave(mut self) -> u32 {
        std::mem::take(&mut self.sequence)
    }

    /// Goes on with a question that was left.
    pub(crate) fn adopt(control: &Arc<Control>, sequence: u32) -> Self {
        Self { control: Arc::clone(control), sequence }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if self.sequence != 0 {
            let mut mail = lock(&self.control.mail);
            // An answer that is here already is late as well.
            let answer = mail.take(self.sequence);
            let waker = mail.forget(self.sequence);
            if let Some(Ok(answer)) = answer {
                mail.deliver(self.sequence, answer);
            }
            let late = mail.take_late();
            drop(mail);
            drop(waker);
            late.into_iter().for_each(|unwanted| self.control.tell(unwanted));
        }
    }
}
