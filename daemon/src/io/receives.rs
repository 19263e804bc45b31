//! Receives that the kernel does not have yet: some are tried by plain calls first.
//!
//! A receive in the ring costs a submission, a poll that the kernel arms, and the work to go on
//! with it when something comes. While a shard spins it looks around all the time, and a call that
//! does not wait finds the bytes as soon. So the receive of a connection that has just been busy is
//! tried in each turn. After some turns without anything, and before the thread sleeps, it goes to
//! the ring.
//!
//! What goes to the ring is queued behind all other operations: sends are waited for, and a receive
//! that finds nothing yet only costs the kernel time.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::counters::UringCounters;
use super::ops::{Addresses, Ops};
use super::tables::Descriptors;

/// Connections that are tried at once: each costs a call a turn.
const CONNECTIONS_MAX: usize = 2;

/// Turns after which a receive goes to the ring: more than the answer of a node on this machine
/// takes.
const TURNS_MAX: u32 = 256;

/// Results of a call that found nothing.
const NOTHING: [i32; 2] = [-libc::EAGAIN, -libc::EINTR];

/// A receive that is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Try {
    index: u32,
    turns: u32,
}

/// Receives, by the places of their operations. At most as many as there are operations.
#[derive(Debug)]
pub(super) struct Receives {
    tried: Vec<Try>,
    /// For the ring, with its next submission.
    late: VecDeque<u32>,
}

impl Receives {
    pub(super) fn new(ops_max: u32) -> Self {
        Self {
            tried: Vec::with_capacity(CONNECTIONS_MAX),
            late: VecDeque::with_capacity(ops_max as usize),
        }
    }

    /// Takes a receive: to be tried, if it may be and there is a place; else for the ring.
    pub(super) fn begin(&mut self, index: u32, may_try: bool) {
        if may_try && self.tried.len() < CONNECTIONS_MAX {
            self.tried.push(Try { index, turns: 0 });
        } else {
            self.late.push_back(index);
        }
    }

    /// Tries the receives from `from` on, which counts what was tried in this turn. The first one
    /// that ended, with its result.
    pub(super) fn poll(
        &mut self,
        from: &mut usize,
        ops: &mut Ops,
        descriptors: &Descriptors,
        counters: &mut UringCounters,
    ) -> Option<(u32, i32)> {
        while let Some(Try { index, turns }) = self.tried.get_mut(*from) {
            let index = *index;
            let socket = ops.slot(index).descriptor.and_then(|id| descriptors.socket(id));
            // A socket that was given back is shut down: nothing comes any more.
            let result = socket.map_or(0, |socket| {
                counters.other_syscalls += 1;
                receive(socket, ops.addresses(index))
            });
            if !NOTHING.contains(&result) {
                self.tried.remove(*from);
                return Some((index, result));
            }
            *turns += 1;
            if *turns < TURNS_MAX {
                *from += 1;
            } else {
                self.tried.remove(*from);
                self.late.push_back(index);
            }
        }
        None
    }

    /// The thread does not look any more: all go to the ring.
    pub(super) fn end_tries(&mut self) {
        self.late.extend(self.tried.drain(..).map(|it| it.index));
    }

    /// Forgets a receive that is tried. `false` if it is none of these.
    pub(super) fn forget(&mut self, index: u32) -> bool {
        let before = self.tried.len();
        self.tried.retain(|it| it.index != index);
        self.tried.len() < before
    }

    /// Whether none is to go to the ring.
    pub(super) fn is_empty(&self) -> bool {
        self.late.is_empty()
    }

    /// The receive that goes to the ring next; [`Self::pop`] must follow once it is there.
    pub(super) fn first(&self) -> Option<u32> {
        self.late.front().copied()
    }

    pub(super) fn pop(&mut self) {
        self.late.pop_front();
    }
}

/// One call that does not wait: the bytes received, or a negative errno.
fn receive(socket: BorrowedFd<'_>, into: Addresses) -> i32 {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the addresses are those that the ring would get: memory that the operation has on
    // loan until its end, and a header that lies in the slab of operations. Nothing else uses
    // either while the call runs.
    let received = unsafe {
        match into {
            Addresses::One(address, length) => {
                libc::recv(socket.as_raw_fd(), address.cast(), length as usize, flags)
            }
            Addresses::Many(header) => libc::recvmsg(socket.as_raw_fd(), header, flags),
        }
    };
    match received {
        -1 => -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        bytes => i32::try_from(bytes).unwrap_or(i32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_are_tried_and_the_rest_is_for_the_ring() {
        let mut receives = Receives::new(8);
        receives.begin(5, false);
        for index in 6..9 {
            receives.begin(index, true);
        }
        assert!(!receives.forget(5) && receives.forget(6), "one of these was tried");
        receives.begin(9, true);
        receives.end_tries();
        let mut queued = Vec::new();
        while let Some(index) = receives.first() {
            queued.push(index);
            receives.pop();
        }
        assert_eq!(queued, [5, 8, 7, 9]);
        assert!(receives.is_empty() && !receives.forget(7));
    }
}
