//! The two completions of a send that lends its memory.
//!
//! The kernel's first completion has the number of bytes queued, and says whether a second one
//! comes. The second says that the kernel is done with the memory, and whether it copied after all.
//! The second returns what the operation borrowed, except for the socket. A socket may be closed
//! while memory is lent, and must be: a dead peer would otherwise keep the memory until the kernel
//! gives it up. See `Descriptors::lend_on`.

use io_uring::cqueue;
use piped_core::io::{Done, NOTICE_COPIED, NOTICE_IN_PLACE, Token};

use super::ops::Loan;
use super::uring::UringIo;

/// Flag `IORING_NOTIF_USAGE_ZC_COPIED`, from `linux/io_uring.h`.
const NOTIF_USAGE_COPIED: u32 = 1 << 31;

impl UringIo {
    /// Handles a completion, and returns how many ends that brought.
    pub(super) fn handle_lent(
        &mut self,
        index: u32,
        loan: Loan,
        cqe: &cqueue::Entry,
        sink: &mut impl FnMut(Done),
    ) -> u32 {
        let notice_comes = cqueue::more(cqe.flags());
        match (loan, cqueue::notif(cqe.flags())) {
            (Loan::Notice { socket }, true) => {
                sink(self.finish_loan(index, socket, usage(cqe.result())));
                1
            }
            // The kernel keeps the order, but memory is freed by it, so the code does not rely on
            // it.
            (Loan::Both(notice) | Loan::Bytes(notice, _), true) => {
                self.ops.slot(index).loan = Some(Loan::Bytes(notice, usage(cqe.result())));
                0
            }
            (Loan::Both(notice), false) => {
                let usage = (!notice_comes).then_some(NOTICE_IN_PLACE);
                self.tell_both(index, notice, cqe.result(), usage, sink)
            }
            (Loan::Bytes(notice, usage), false) => {
                self.tell_both(index, notice, cqe.result(), Some(usage), sink)
            }
            (Loan::Notice { .. }, false) => 0,
        }
    }

    /// Ends an operation that the kernel does not have.
    pub(super) fn end_refused(
        &mut self,
        index: u32,
        errno: i32,
        sink: &mut impl FnMut(Done),
    ) -> u32 {
        if let Some(Loan::Both(notice)) = self.ops.slot(index).loan {
            return self.tell_both(index, notice, errno, Some(NOTICE_IN_PLACE), sink);
        }
        sink(self.finish(index, errno));
        1
    }

    /// Reports the first end, which frees its socket and not its memory; and the second, if it is
    /// known.
    fn tell_both(
        &mut self,
        index: u32,
        notice: Token,
        result: i32,
        usage: Option<i32>,
        sink: &mut impl FnMut(Done),
    ) -> u32 {
        let revoked = result == -libc::EINTR && self.ops.slot(index).cancelled;
        let result = if revoked { -libc::ECANCELED } else { result };
        sink(Done { token: self.ops.token(index), result });
        self.ops.rename(index, notice);
        self.counters.lent += 1;
        let slot = self.ops.slot(index);
        let socket = slot.descriptor.take();
        slot.loan = Some(Loan::Notice { socket });
        if let Some(id) = socket {
            self.descriptors.lend_on(id, &self.ring.submitter(), &mut self.counters);
        }
        let Some(usage) = usage else { return 1 };
        sink(self.finish_loan(index, socket, usage));
        2
    }

    /// Handles the second end.
    fn finish_loan(&mut self, index: u32, socket: Option<u32>, usage: i32) -> Done {
        self.counters.lent -= 1;
        if let Some(id) = socket {
            self.descriptors.end_loan(id);
        }
        self.finish(index, usage)
    }
}

/// Meaning of a notification; the flag is in the sign's place.
fn usage(result: i32) -> i32 {
    if result as u32 & NOTIF_USAGE_COPIED != 0 { NOTICE_COPIED } else { NOTICE_IN_PLACE }
}
