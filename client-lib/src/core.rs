//! A queue's inside: the ring, the table of its requests, and how to wait.
//!
//! It outlives the [`crate::Queue`] it is in: the daemon gives queues for the session's life, and a
//! dropped queue's requests still own memory that the daemon may be using. So it goes back to the
//! client, and the next `Client::queue` carries on with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use piped_ring::{ClientQueue, Descriptor, Opcode, Spin, Spinner};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::arena::Arena;
use crate::clock;
use crate::control::Control;
use crate::drops::Drops;
use crate::error::{Cause, SubmitError, SubmitFault};
use crate::request::{Request, RequestId, sealed};
use crate::table::{Loan, Owner, Table, UNTRACKED};

/// Looks in a row that found nothing, after which it is asked whether the daemon is there at all: a
/// system call every millisecond or so for those who only poll.
const IDLE_LOOKS_MAX: u32 = 1 << 16;

/// A wait this long may begin with a nap: its end is not missed for it.
const NAP_TIMEOUT_NS: u64 = 2 * ClientQueue::NAP.as_nanos() as u64;

#[derive(Debug)]
pub(crate) struct Core {
    ring: ClientQueue,
    pub(crate) table: Table,
    pub(crate) drops: Arc<Drops>,
    control: Arc<Control>,
    arena: Arc<Arena>,
    spinner: Spinner,
    number: u32,
    unflushed: bool,
    /// Targets of cancels that found no room; a request is cancelled once.
    owed: Vec<u64>,
    /// Cancels the daemon has not answered.
    cancels: u32,
    /// Why there is nothing to expect from the daemon any more.
    dead: Option<Cause>,
    idle_looks: u32,
    /// Something was completed since [`Self::arm`] last said no.
    news: bool,
    counters: QueueCounters,
}

/// What a queue did so far.
///
/// ```
/// assert_eq!(piped_client::QueueCounters::default().submitted, 0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueCounters {
    /// Requests submitted.
    pub submitted: u64,
    /// Requests that ended.
    pub completed: u64,
    /// Times the daemon slept and had to be woken: a system call each.
    pub doorbells: u64,
    /// Times this side slept: a system call each, three if it was for longer than about 100 ms. A sleep that
    /// may not last so long, for its request's time is over before, is two.
    pub sleeps: u64,
}

impl Core {
    pub(crate) fn new(
        ring: ClientQueue,
        control: Arc<Control>,
        arena: Arc<Arena>,
        spin_ns: u64,
    ) -> Self {
        // Unique in the process, so that a number of one queue means nothing to another.
        static NUMBERS: AtomicU32 = AtomicU32::new(0);
        let entries = ring.entries();
        Self {
            ring,
            table: Table::new((entries - 1).max(1)),
            drops: Arc::new(Drops::new(entries)),
            control,
            arena,
            spinner: Spinner::new(spin_ns),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            unflushed: false,
            owed: Vec::with_capacity(entries as usize),
            cancels: 0,
            dead: None,
            idle_looks: 0,
            news: false,
            counters: QueueCounters::default(),
        }
    }

    pub(crate) fn ring(&self) -> &ClientQueue {
        &self.ring
    }

    pub(crate) fn counters(&self) -> QueueCounters {
        self.counters
    }

    pub(crate) fn spin_limit(&mut self, spin_ns: u64) {
        self.spinner.set_limit(spin_ns);
    }

    pub(crate) fn spin_budget_ns(&self) -> u64 {
        self.spinner.budget_ns()
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.is_some()
    }

    /// Slot and generation of a request of this queue.
    pub(crate) fn names(&self, id: RequestId) -> Option<(u32, u32)> {
        (id.queue == self.number).then_some((id.slot, id.generation))
    }

    pub(crate) fn id(&self, slot: u32, generation: u32) -> RequestId {
        RequestId { queue: self.number, slot, generation }
    }

    pub(crate) fn submit<B: sealed::Payload>(
        &mut self,
        request: Request<B>,
        owner: Owner,
    ) -> Result<RequestId, SubmitError<B>> {
        let Request { mut descriptor, handles, piece, tag, payload } = request;
        let foreign = handles.iter().flatten().any(|it| !Arc::ptr_eq(&it.control, &self.control));
        let mut buffer = payload.stow();
        let fault = match &buffer {
            _ if self.dead.is_some() => Err(SubmitFault::Disconnected),
            _ if foreign => Err(SubmitFault::Foreign),
            Some(buffer) if !buffer.is_of(&self.arena) => Err(SubmitFault::Foreign),
            Some(buffer) => {
                let piece = piece.unwrap_or(0..buffer.len());
                let (segment, offset) = buffer.place();
                descriptor.segment = segment;
                descriptor.buffer_offset = offset + piece.start as u64;
                descriptor.length = piece.len() as u64;
                let inside = !piece.is_empty() && piece.end <= buffer.len();
                if inside { Ok(piece.start as u64) } else { Err(SubmitFault::Piece) }
            }
            None => Ok(0),
        };
        let result = fault.and_then(|start| {
            if !self.table.has_free() {
                self.collect_drops();
            }
            let loan = Loan {
                owner,
                buffer: buffer.take(),
                fills: descriptor.opcode == Opcode::Read as u8,
                handles,
                length: descriptor.length,
                start,
                tag,
            };
            self.enter(descriptor, loan).map_err(|returned| {
                buffer = returned;
                SubmitFault::Full
            })
        });
        result.map_err(|fault| {
            let payload = B::unstow(buffer).expect("a refused request still has its buffer");
            SubmitError { fault, buffer: payload }
        })
    }

    /// Before a submission that should not fail for it: wait until cancels have left room.
    pub(crate) fn make_room(&mut self) {
        if self.cancels > 0 && !self.has_room() {
            self.wait_until(None, |core| core.cancels == 0 || core.has_room());
        }
    }

    /// Whether the ring has room. The daemon takes no more descriptors than it has completions for,
    /// so what counts is what it did not answer yet. One entry is kept free of requests: a full
    /// queue can be cancelled too.
    fn has_room(&self) -> bool {
        self.table.underway() + self.cancels < self.ring.entries()
    }

    /// Put a checked request into table and ring; its buffer comes back if there is no place.
    fn enter(
        &mut self,
        mut descriptor: Descriptor,
        mut loan: Loan,
    ) -> Result<RequestId, Option<crate::Buffer>> {
        if !self.table.has_free() || !self.has_room() {
            return Err(loan.buffer.take());
        }
        let Some((slot, generation)) = self.table.reserve(loan) else {
            return Err(None);
        };
        descriptor.slot = slot;
        descriptor.user_data = Table::user_data(slot, generation);
        if self.ring.submit(descriptor).is_err() {
            // Not with an honest daemon: there is room for all that is not answered.
            return Err(self.table.unreserve(slot));
        }
        self.unflushed = true;
        self.counters.submitted += 1;
        Ok(self.id(slot, generation))
    }

    /// Ask the daemon to give up on a request. `false`: it is over, or was asked already.
    pub(crate) fn cancel(&mut self, id: RequestId) -> bool {
        let Some((slot, generation)) = self.names(id) else { return false };
        let target = self.table.cancel(slot, generation);
        target.map(|target| self.submit_cancel(target)).is_some()
    }

    fn submit_cancel(&mut self, target: u64) {
        let mut descriptor = Descriptor::new(Opcode::Cancel, UNTRACKED);
        descriptor.operand_a = target;
        if self.has_room() && self.ring.submit(descriptor).is_ok() {
            self.cancels += 1;
            self.unflushed = true;
        } else {
            self.owed.push(target);
        }
    }

    /// Let the daemon see what was submitted. Free if there is nothing.
    pub(crate) fn flush(&mut self) {
        if self.unflushed {
            self.unflushed = false;
            self.counters.doorbells += u64::from(self.ring.flush());
        }
    }

    /// Take in what the daemon completed, and what the application dropped.
    pub(crate) fn reap(&mut self) {
        self.collect_drops();
        self.flush();
        if self.reap_entries() {
            self.idle_looks = 0;
            self.spinner.handle_work();
            if !self.owed.is_empty() {
                self.cancel_owed();
                self.flush();
            }
        } else {
            self.idle_looks += 1;
            if self.idle_looks >= IDLE_LOOKS_MAX {
                self.idle_looks = 0;
                self.check_daemon();
            }
        }
    }

    fn reap_entries(&mut self) -> bool {
        if self.dead.is_some() {
            return false;
        }
        let mut found = false;
        // At most a ring of them, so this ends.
        while let Some(entry) = self.ring.reap() {
            found = true;
            if entry.user_data == UNTRACKED && self.cancels > 0 {
                self.cancels -= 1;
                continue;
            }
            if self.table.handle_completion(&entry).is_err() {
                self.die(Cause::Broken);
                return true;
            }
            // A release is not an end; telling them apart here is not worth a branch for a count.
            self.counters.completed += u64::from(entry.kind != RELEASED);
        }
        if self.ring.fault().is_some() {
            self.die(Cause::Broken);
        }
        self.news |= found;
        found
    }

    fn collect_drops(&mut self) {
        if !self.drops.any() {
            return;
        }
        // The marks are of this queue's `Pending`s, whose places stay taken until now.
        let drops = Arc::clone(&self.drops);
        drops.collect(|slot| {
            if let Some(target) = self.table.abandon(slot) {
                self.submit_cancel(target);
            }
        });
    }

    fn cancel_owed(&mut self) {
        // Each is tried once; what finds the ring full again is owed again, in the same room.
        for _ in 0..self.owed.len() {
            match self.owed.pop() {
                Some(target) if self.table.is_underway(target) => self.submit_cancel(target),
                _ => {}
            }
        }
    }

    fn check_daemon(&mut self) {
        if self.dead.is_none() && !self.control.is_open() {
            self.lose_daemon();
        }
    }

    /// The daemon is gone. What it completed before counts.
    fn lose_daemon(&mut self) {
        self.reap_entries();
        if self.dead.is_none() {
            self.die(Cause::Disconnected);
        }
    }

    fn die(&mut self, cause: Cause) {
        self.dead = Some(cause);
        self.table.fail_all(cause);
        self.owed.clear();
        self.news = true;
    }

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
        let end_ns = timeout.map(|timeout| clock::now_ns().saturating_add(clock::nanos(timeout)));
        while self.dead.is_none() && (self.table.expects() || self.cancels > 0) {
            let now_ns = clock::now_ns();
            if end_ns.is_some_and(|end_ns| now_ns >= end_ns) {
                return false;
            }
            match self.spinner.poll_idle(now_ns) {
                Spin::Again => std::hint::spin_loop(),
                Spin::Sleep => {
                    self.sleep(now_ns, end_ns);
                    self.spinner.handle_sleep();
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
            // Its end, which the kernel reports unasked; answers on it belong to other threads.
            PollFd::from_borrowed_fd(self.control.fd(), PollFlags::empty()),
        ];
        // An interruption by a signal is an early return, and the caller looks again anyway.
        let _ = rustix::event::poll(&mut polled, timeout.as_ref());
        let end = PollFlags::HUP | PollFlags::ERR;
        let over = polled.iter().any(|fd| fd.revents().intersects(end));
        if !self.ring.finish_sleep() || over {
            self.lose_daemon();
        }
    }

    /// See [`crate::Queue::arm`].
    pub(crate) fn arm(&mut self) -> bool {
        self.reap();
        if std::mem::take(&mut self.news) || self.dead.is_some() {
            return false;
        }
        self.ring.prepare_sleep()
    }

    /// See [`crate::Queue::drain`].
    pub(crate) fn drain(&mut self) {
        if !self.ring.finish_sleep() {
            self.lose_daemon();
        }
        self.reap();
    }

    /// The application dropped the queue: nobody takes results any more.
    pub(crate) fn orphan(&mut self) {
        self.reap();
        // The `Pending`s that are still around would mark places that are somebody else's by then.
        self.drops = Arc::new(Drops::new(self.ring.entries()));
        let owed = &mut self.owed;
        self.table.abandon_all(|target| owed.push(target));
        self.cancel_owed();
        self.flush();
    }
}

const RELEASED: u8 = piped_ring::CompletionKind::Released as u8;
