//! One timer descriptor for all tasks of a client that wait for an answer only so long.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::clock;
use crate::control::lock;

const SECOND_NS: u64 = 1_000_000_000;

/// Times that tasks wait for.
#[derive(Debug)]
pub(super) struct Timer {
    fd: OwnedFd,
    times: Mutex<Times>,
}

#[derive(Debug, Default)]
struct Times {
    /// By time, and a number for those of the same.
    waiting: BTreeMap<(u64, u64), Waker>,
    next: u64,
}

impl Timer {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Self { fd, times: Mutex::default() })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Waits until a time of the library's clock, in nanoseconds.
    pub(super) fn until(&self, at_ns: u64) -> Until<'_> {
        Until { timer: self, at_ns, key: None }
    }

    /// The descriptor is readable: wakes those whose time has come.
    pub(super) fn handle_ring(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.fd, &mut count);
        let now_ns = clock::now_ns();
        let mut times = lock(&self.times);
        let later = times.waiting.split_off(&(now_ns.saturating_add(1), 0));
        let due = std::mem::replace(&mut times.waiting, later);
        self.set(&times, now_ns);
        drop(times);
        due.into_values().for_each(Waker::wake);
    }

    /// Has the descriptor ring at the first of the times.
    fn set(&self, times: &Times, now_ns: u64) {
        let Some(((at_ns, _), _)) = times.waiting.first_key_value() else { return };
        // Zero would be never.
        let left_ns = at_ns.saturating_sub(now_ns).clamp(1, i64::MAX as u64);
        let it_value = Timespec {
            tv_sec: (left_ns / SECOND_NS).cast_signed(),
            tv_nsec: (left_ns % SECOND_NS).cast_signed(),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval, it_value };
        let set = timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &value);
        debug_assert!(set.is_ok(), "{set:?}");
    }
}

/// A wait for a time. Dropped, it is over.
#[derive(Debug)]
pub(super) struct Until<'a> {
    timer: &'a Timer,
    at_ns: u64,
    key: Option<(u64, u64)>,
}

impl Until<'_> {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now_ns = clock::now_ns();
        if now_ns >= self.at_ns {
            return Poll::Ready(());
        }
        let mut times = lock(&self.timer.times);
        let key = *self.key.get_or_insert_with(|| {
            times.next += 1;
            (self.at_ns, times.next)
        });
        let old = times.waiting.insert(key, cx.waker().clone());
        if times.waiting.first_key_value().is_some_and(|(first, _)| *first == key) {
            self.timer.set(&times, now_ns);
        }
        drop(times);
        drop(old);
        Poll::Pending
    }
}

impl Future for Until<'_> {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Until::poll(&mut self, cx)
    }
}

impl Drop for Until<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waker = lock(&self.timer.times).waiting.remove(&key);
            drop(waker);
        }
    }
}
