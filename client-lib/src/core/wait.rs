//! How a queue waits: it spins, then sleeps until the daemon rings or is gone.

use std::time::Duration;

use piped_ring::{ClientQueue, Spin};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::Core;
use crate::control::Control;
use crate::{affinity, clock};

/// A wait this long may begin with a nap: its end is not missed for it.
const NAP_TIMEOUT_NS: u64 = 2 * ClientQueue::NAP.as_nanos() as u64;

impl Core {
    /// Wait until `ready`, spinning first. `false`: the time is over, or `ready` is not coming true
    /// because nothing is under way that could make it.
    pub(crate) fn wait_until(
        &mut self,
        timeout: Option<Duration>,
        ready: impl Fn(&Self) -> bool,
    ) -> bool {
        self.reap();
        if ready(self) {
            return true;
        }
        self.spin.begin_wait(affinity::is_on);
        let end_ns = timeout.map(|timeout| clock::now_ns().saturating_add(clock::nanos(timeout)));
        while self.dead.is_none() && (self.table.expects() || self.cancels > 0) {
            let now_ns = clock::now_ns();
            if end_ns.is_some_and(|end_ns| now_ns >= end_ns) {
                return false;
            }
            match self.spin.poll_idle(now_ns) {
                Spin::Again => std::hint::spin_loop(),
                Spin::Offer => self.spin.offer(clock::now_ns, rustix::thread::sched_yield),
                Spin::Sleep => {
                    self.sleep(now_ns, end_ns);
                    self.spin.handle_sleep(affinity::is_on);
                }
            }
            self.reap();
            if ready(self) {
                return true;
            }
        }
        ready(self)
    }

    fn sleep(&mut self, now_ns: u64, end_ns: Option<u64>) {
        self.flush();
        if !self.ring.prepare_sleep() {
            return;
        }
        self.counters.sleeps += 1;
        // Most sleeps are short, and one call is enough for them.
        if end_ns.is_none_or(|end_ns| end_ns.saturating_sub(now_ns) >= NAP_TIMEOUT_NS)
            && let Some(open) = self.ring.nap()
        {
            if !open {
                self.lose_daemon();
            }
            return;
        }
        self.sleep_long(end_ns);
    }

    /// Goes on with a sleep, and watches for all that can end it.
    fn sleep_long(&mut self, end_ns: Option<u64>) {
        let left = end_ns.map(|end_ns| end_ns.saturating_sub(clock::now_ns()));
        let timeout = left.and_then(|ns| Timespec::try_from(Duration::from_nanos(ns)).ok());
        let mut polled = [
            PollFd::from_borrowed_fd(self.ring.wait_fd(), PollFlags::IN),
            // Its end alone; answers on it belong to other threads.
            PollFd::from_borrowed_fd(self.control.fd(), Control::END),
        ];
        // An interruption by a signal is an early return, and the caller looks again anyway.
        let _ = rustix::event::poll(&mut polled, timeout.as_ref());
        let over = polled.iter().any(|fd| fd.revents().intersects(Control::END));
        if !self.ring.finish_sleep() || over {
            self.lose_daemon();
        }
    }

    /// Asks for a ring of the descriptor: see [`crate::Queue::arm`].
    pub(crate) fn arm(&mut self) -> bool {
        self.reap();
        if std::mem::take(&mut self.news) || self.dead.is_some() {
            return false;
        }
        self.ring.prepare_sleep()
    }

    /// Ends the wait for the descriptor: see [`crate::Queue::drain`].
    pub(crate) fn drain(&mut self) {
        if !self.ring.finish_sleep() {
            self.lose_daemon();
        }
        self.reap();
    }
}
