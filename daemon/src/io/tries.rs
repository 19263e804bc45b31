//! Receives that are tried by plain calls while the thread looks around anyway.
//!
//! A receive in the ring costs a submission, a poll that the kernel arms, and the work to go on
//! with it when something comes. While a shard spins it looks around all the time, and a call that
//! does not wait finds the bytes as soon. So the receive of a connection that has just been busy is
//! tried in each turn. After some turns without anything, and before the thread sleeps, it goes to
//! the ring.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::ops::Addresses;

/// Connections that are tried at once: each costs a call a turn.
const CONNECTIONS_MAX: usize = 2;

/// Turns after which a receive goes to the ring: more than the answer of a node on this machine
/// takes.
const TURNS_MAX: u32 = 256;

/// A receive that the kernel does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Try {
    index: u32,
    turns: u32,
}

/// The receives that are tried.
#[derive(Debug, Default)]
pub(super) struct Tries {
    all: Vec<Try>,
}

impl Tries {
    /// Takes a receive, if there is a place.
    pub(super) fn take(&mut self, index: u32) -> bool {
        let has_room = self.all.len() < CONNECTIONS_MAX;
        if has_room {
            self.all.push(Try { index, turns: 0 });
        }
        has_room
    }

    /// The receive at a place, counting from 0.
    pub(super) fn at(&self, place: usize) -> Option<u32> {
        self.all.get(place).map(|it| it.index)
    }

    /// A try found nothing. Whether the receive is to go to the ring.
    pub(super) fn missed(&mut self, place: usize) -> bool {
        self.all.get_mut(place).is_some_and(|it| {
            it.turns += 1;
            it.turns >= TURNS_MAX
        })
    }

    pub(super) fn remove(&mut self, place: usize) {
        self.all.remove(place);
    }

    /// Forgets a receive. `false` if it is none of these.
    pub(super) fn forget(&mut self, index: u32) -> bool {
        let before = self.all.len();
        self.all.retain(|it| it.index != index);
        self.all.len() < before
    }

    /// Takes all of them out.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.all.drain(..).map(|it| it.index)
    }
}

/// One call that does not wait: the bytes received, or a negative errno.
pub(super) fn receive(socket: BorrowedFd<'_>, into: Addresses) -> i32 {
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
    fn a_few_are_tried_for_a_while() {
        let mut tries = Tries::default();
        assert!(tries.take(7) && tries.take(8));
        assert!(!tries.take(9), "two have places");
        assert_eq!((tries.at(0), tries.at(1), tries.at(2)), (Some(7), Some(8), None));
        assert!((1..TURNS_MAX).all(|_| !tries.missed(0)));
        assert!(tries.missed(0), "its time is over");
        assert!(!tries.missed(1), "not that of the other one");
        tries.remove(0);
        assert!(!tries.forget(7) && tries.forget(8));
        assert!(tries.take(9));
        assert_eq!(tries.drain().collect::<Vec<_>>(), [9]);
        assert_eq!(tries.at(0), None);
    }
}
