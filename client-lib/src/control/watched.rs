//! A socket that a runtime watches.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::{Control, Patience};

/// A runtime calls [`Control::read_waiting`] until this is dropped.
#[derive(Debug)]
pub(crate) struct Watched(Weak<Control>);

impl Watched {
    pub(crate) fn new(control: &Arc<Control>) -> Self {
        // Relaxed: a number of its own.
        control.watches.fetch_add(1, Ordering::Relaxed);
        Self(Arc::downgrade(control))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(control) = self.0.upgrade() {
            control.watches.fetch_sub(1, Ordering::Relaxed);
            // The rest goes with what is asked or told next: a runtime's thread is not to wait.
            control.tell_owed_with(Patience::AtOnce);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use piped_ring::handshake::{Reply, Request};

    use super::*;
    use crate::control::Asked;
    use crate::control::testing::{Woken, answer, pair, received};

    /// More messages than a socket has room for.
    const FULL: u32 = 5000;

    fn closing(handle: u32) -> Request {
        Request::CloseHandle { handle }
    }

    #[test]
    fn telling_wakes_nobody_and_is_sent_at_once() {
        let (control, daemon) = pair();
        let _watched = Watched::new(&control);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let asked = Asked::send(&control, &Request::AddQueue, &[]).expect("it is there");
        let mut asked = asked.expect("room");
        assert!(asked.poll_answer(&mut Context::from_waker(&waker)).is_pending());
        let (sequence, _) = received(&daemon)[0].clone();
        answer(&daemon, sequence, &Reply::Done);
        control.tell(closing(7));
        assert_eq!(received(&daemon).len(), 1, "the answer holds up nothing");
        assert_eq!(woken.count(), 0, "a queue's lock may be held");
        // Its runtime calls, for it has something to read.
        control.read_waiting();
        assert_eq!(woken.count(), 1);
        let answered = asked.poll_answer(&mut Context::from_waker(&waker));
        assert!(matches!(answered, Poll::Ready(Ok((Reply::Done, _)))));
    }

    #[test]
    fn what_nobody_waits_for_is_read_by_who_tells() {
        for watched in [false, true] {
            let (control, daemon) = pair();
            let _watched = watched.then(|| Watched::new(&control));
            // Each answer is read before the next comes: they find room however many they are.
            for handle in 0..FULL {
                control.tell(closing(handle));
                let (sequence, told) = received(&daemon)[0].clone();
                assert_eq!(told, closing(handle));
                answer(&daemon, sequence, &Reply::Done);
            }
        }
    }

    #[test]
    fn nothing_stays_unsent_when_nobody_watches_any_more() {
        let (control, daemon) = pair();
        let [first, last] = [(), ()].map(|()| Watched::new(&control));
        (0..FULL).for_each(|handle| control.tell(closing(handle)));
        let mut told = received(&daemon).len();
        assert!(told < FULL as usize, "it never waits for room");
        drop(first);
        let more = received(&daemon).len();
        assert!(more > 0, "without a question or an answer");
        told += more;
        (FULL..2 * FULL).for_each(|handle| control.tell(closing(handle)));
        drop(last);
        // From here on telling waits, and the daemon reads.
        let reading = std::thread::spawn(move || {
            rustix::io::ioctl_fionbio(&daemon, false).expect("a socket");
            received(&daemon).len()
        });
        (2 * FULL..3 * FULL).for_each(|handle| control.tell(closing(handle)));
        // What is in the socket is read all the same.
        drop(control);
        assert_eq!(told + reading.join().expect("no panics"), 3 * FULL as usize);
    }
}
