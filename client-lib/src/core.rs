//! A queue's inside: the ring, the table of its requests, and how to wait.
//!
//! It outlives the [`crate::Queue`] it is in: the daemon gives queues for the session's life, and a
//! dropped queue's requests still own memory that the daemon may be using. So it goes back to the
//! client, and the next `Client::queue` carries on with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use piped_core::status::Status;
use piped_ring::{ClientQueue, Descriptor, Opcode, Spin, Spinner};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::arena::Arena;
use crate::clock;
use crate::connection::{Connection, Link, Shared};
use crate::control::Control;
use crate::drops::Drops;
use crate::error::{Cause, SubmitError, SubmitFault};
use crate::handle::HandleCore;
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
    link: Arc<Link>,
    /// Of the connection it is at.
    generation: u32,
    deadline_default_ns: u64,
    /// What to submit again, by place; empty in a client that does not reconnect.
    again: Vec<Again>,
    spinner: Spinner,
    number: u32,
    unflushed: bool,
    /// Targets of cancels that found no room; a request is cancelled once.
    owed: Vec<u64>,
    /// Cancels the daemon has not answered.
    cancels: u32,
    /// Why there is nothing to expect from the daemon any more.
    dead: Option<Cause>,
    /// When that was found out.
    dead_since_ns: u64,
    idle_looks: u32,
    /// Something was completed since [`Self::arm`] last said no.
    news: bool,
    counters: QueueCounters,
}

/// A request that outlives its daemon.
#[derive(Debug, Clone, Copy)]
struct Again {
    descriptor: Descriptor,
    /// When its deadline passes.
    expires_ns: u64,
    /// A daemon had it.
    begun: bool,
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
    /// Requests that outlived a daemon and were submitted to the next.
    pub resubmitted: u64,
    /// Times the daemon slept and had to be woken: a system call each.
    pub doorbells: u64,
    /// Times this side slept: a system call each, three if it was for longer than about 100 ms. A sleep that
    /// may not last so long, for its request's time is over before, is two.
    pub sleeps: u64,
}

/// Verbs that write the buffer.
const FILLS: [u8; 3] = [Opcode::Read as u8, Opcode::Recv as u8, Opcode::ReadV as u8];

impl Core {
    pub(crate) fn new(
        ring: ClientQueue,
        connection: &Connection,
        shared: &Shared,
        spin_ns: u64,
    ) -> Self {
        // Unique in the process, so that a number of one queue means nothing to another.
        static NUMBERS: AtomicU32 = AtomicU32::new(0);
        let entries = ring.entries();
        let table = Table::new((entries - 1).max(1));
        let descriptor = Descriptor::new(Opcode::Nop, 0);
        let nothing = Again { descriptor, expires_ns: 0, begun: false };
        let again = if shared.settings.reconnect.is_some() { table.len() } else { 0 };
        Self {
            ring,
            table,
            drops: Arc::new(Drops::new(entries)),
            control: Arc::clone(&connection.control),
            arena: Arc::clone(&connection.arena),
            link: Arc::clone(&shared.link),
            generation: connection.generation,
            deadline_default_ns: connection.welcome.deadline_default_ns,
            again: vec![nothing; again as usize],
            spinner: Spinner::new(spin_ns),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            unflushed: false,
            owed: Vec::with_capacity(entries as usize),
            cancels: 0,
            dead: None,
            dead_since_ns: 0,
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
        let Request { mut descriptor, handles, piece, pieces, tag, again, payload } = request;
        let foreign = handles.iter().flatten().any(|it| !Arc::ptr_eq(&it.link, &self.link));
        let again = again && !self.again.is_empty();
        let placed = self.place_handles(&mut descriptor, &handles);
        if placed == Err(SubmitFault::Disconnected) && !foreign {
            self.lose_daemon();
        }
        // What outlives a daemon can also begin without one.
        let parks = again && self.dead == Some(Cause::Disconnected);
        let mut buffer = payload.stow();
        let fault = match (&buffer, placed) {
            _ if self.dead.is_some() && !parks => Err(SubmitFault::Disconnected),
            _ if foreign => Err(SubmitFault::Foreign),
            _ if pieces.as_ref().is_some_and(|it| !it.table.is_of(&self.arena)) => {
                Err(SubmitFault::TableLost)
            }
            (_, Err(fault)) if !parks => Err(fault),
            (Some(buffer), _) if !buffer.is_of_client(self.arena.client()) => {
                Err(SubmitFault::Foreign)
            }
            // A queue that is connected has them brought to its arena before.
            (Some(buffer), _) if !parks && !buffer.is_of(&self.arena) => Err(SubmitFault::NoRoom),
            (Some(buffer), _) => {
                let piece = piece.unwrap_or(0..buffer.len());
                let (segment, offset) = buffer.place();
                descriptor.segment = segment;
                descriptor.buffer_offset = offset + piece.start as u64;
                descriptor.length = piece.len() as u64;
                let room = pieces.as_ref().map_or(1, crate::Pieces::room);
                let inside = piece.len() as u64 >= room && piece.end <= buffer.len();
                if inside { Ok(piece.start as u64) } else { Err(SubmitFault::Piece) }
            }
            (None, _) => Ok(0),
        };
        let result = fault.and_then(|start| {
            if !self.table.has_free() {
                self.collect_drops();
            }
            if !self.table.has_free() || !(parks || self.has_room()) {
                return Err(SubmitFault::Full);
            }
            let (slot, generation) = self.table.reserve(Loan {
                owner,
                buffer: buffer.take(),
                fills: FILLS.contains(&descriptor.opcode),
                handles,
                length: pieces.as_ref().map_or(descriptor.length, crate::Pieces::bytes),
                pieces,
                start,
                tag,
                again,
            });
            if parks {
                self.table.park(slot);
            } else if self.enter(descriptor, slot, generation).is_err() {
                // Not with an honest daemon: there is room for all that is not answered.
                buffer = self.table.unreserve(slot);
                return Err(SubmitFault::Full);
            }
            self.counters.submitted += 1;
            if again {
                let deadline_ns = match descriptor.deadline_ns {
                    0 => self.deadline_default_ns,
                    deadline_ns => deadline_ns,
                };
                let expires_ns = clock::now_ns().saturating_add(deadline_ns);
                self.again[slot as usize] = Again { descriptor, expires_ns, begun: !parks };
            }
            Ok(self.id(slot, generation))
        });
        result.map_err(|fault| {
            let payload = B::unstow(buffer).expect("a refused request still has its buffer");
            SubmitError { fault, buffer: payload }
        })
    }

    /// Writes the handles' numbers into a descriptor.
    fn place_handles(
        &self,
        descriptor: &mut Descriptor,
        handles: &[Option<Arc<HandleCore>>; 2],
    ) -> Result<(), SubmitFault> {
        let numbers = [&mut descriptor.handle_a, &mut descriptor.handle_b];
        for (number, handle) in numbers.into_iter().zip(handles) {
            let Some(handle) = handle else { continue };
            let (generation, at) = handle.place();
            match generation.cmp(&self.generation) {
                std::cmp::Ordering::Equal => *number = at,
                std::cmp::Ordering::Less => return Err(SubmitFault::HandleLost),
                // It is open at the next daemon already, so this queue's is gone: the queue may not know yet.
                std::cmp::Ordering::Greater => return Err(SubmitFault::Disconnected),
            }
        }
        Ok(())
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

    /// Put a request that has its place in the table into the ring.
    fn enter(
        &mut self,
        mut descriptor: Descriptor,
        slot: u32,
        generation: u32,
    ) -> Result<(), piped_ring::Full> {
        descriptor.slot = slot;
        descriptor.user_data = Table::user_data(slot, generation);
        self.ring.submit(descriptor)?;
        self.unflushed = true;
        Ok(())
    }

    /// Ask the daemon to give up on a request. `false`: it is over, or was asked already.
    pub(crate) fn cancel(&mut self, id: RequestId) -> bool {
        let Some((slot, generation)) = self.names(id) else { return false };
        if let Some(slot) = self.table.parked_place(slot, generation) {
            self.end_parked(slot, Cause::Status(Status::Cancelled));
            return true;
        }
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
    pub(crate) fn lose_daemon(&mut self) {
        self.reap_entries();
        if self.dead.is_none() {
            self.die(Cause::Disconnected);
        }
    }

    fn die(&mut self, cause: Cause) {
        self.dead = Some(cause);
        self.dead_since_ns = clock::now_ns();
        let park = cause == Cause::Disconnected && !self.again.is_empty();
        self.table.fail_all(cause, park);
        self.owed.clear();
        self.news = true;
    }

    /// The generation of its connection.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether a buffer lies in the memory of its connection.
    pub(crate) fn has(&self, buffer: &crate::Buffer) -> bool {
        buffer.is_of(&self.arena)
    }

    /// Whether it can go on with a ring: places have numbers below its length.
    pub(crate) fn fits(&self, ring: &ClientQueue) -> bool {
        ring.entries() > self.table.len()
    }

    /// Go on at another connection. What waited for it is submitted.
    pub(crate) fn reattach(&mut self, ring: ClientQueue, shared: &Shared, connection: &Connection) {
        // What was dropped meanwhile does not go along.
        self.collect_drops();
        self.lose_daemon();
        self.owed.clear();
        self.ring = ring;
        self.control = Arc::clone(&connection.control);
        self.arena = Arc::clone(&connection.arena);
        self.generation = connection.generation;
        self.deadline_default_ns = connection.welcome.deadline_default_ns;
        (self.unflushed, self.cancels, self.dead) = (false, 0, None);
        let (mut from, mut gone) = (0, false);
        while let Some(slot) = self.table.next_parked(from) {
            from = slot + 1;
            match self.submit_again(slot, shared, connection) {
                Ok(()) => self.counters.resubmitted += 1,
                // This daemon is gone too: it goes on waiting.
                Err(Cause::NotSubmitted(SubmitFault::Disconnected)) => gone = true,
                Err(cause) => self.end_parked(slot, cause),
            }
        }
        self.flush();
        if gone {
            self.lose_daemon();
        }
    }

    fn submit_again(
        &mut self,
        slot: u32,
        shared: &Shared,
        connection: &Connection,
    ) -> Result<(), Cause> {
        let Again { mut descriptor, expires_ns, .. } = self.again[slot as usize];
        descriptor.deadline_ns = expires_ns.saturating_sub(clock::now_ns());
        if descriptor.deadline_ns == 0 {
            return Err(Cause::Disconnected);
        }
        let (_, loan) = self.table.loan(slot);
        let handles = loan.handles.clone();
        self.place_handles(&mut descriptor, &handles)?;
        let (user_data, loan) = self.table.loan(slot);
        let filled = if loan.fills { loan.start..loan.start + loan.length } else { 0..0 };
        if let Some(buffer) = loan.buffer.take() {
            match shared.bring(buffer, connection, filled) {
                Ok(buffer) => {
                    let (segment, offset) = buffer.place();
                    (descriptor.segment, descriptor.buffer_offset) = (segment, offset + loan.start);
                    loan.buffer = Some(buffer);
                }
                Err(buffer) => {
                    loan.buffer = Some(buffer);
                    return Err(SubmitFault::NoRoom.into());
                }
            }
        }
        (descriptor.slot, descriptor.user_data) = (slot, user_data);
        // There is room: the ring is new and longer than the table.
        self.ring.submit(descriptor).map_err(|_| SubmitFault::Full)?;
        self.unflushed = true;
        self.again[slot as usize].begun = true;
        self.table.unpark(slot);
        Ok(())
    }

    fn end_parked(&mut self, slot: u32, cause: Cause) {
        self.table.end_parked(slot, cause, self.again[slot as usize].begun);
        self.news = true;
    }

    /// When the first of the requests expires that wait for a daemon.
    pub(crate) fn parked_until_ns(&self) -> Option<u64> {
        let parked = std::iter::successors(self.table.next_parked(0), |slot| {
            self.table.next_parked(slot + 1)
        });
        parked.map(|slot| self.again[slot as usize].expires_ns).min()
    }

    /// When its daemon was lost.
    pub(crate) fn dead_since_ns(&self) -> u64 {
        self.dead_since_ns
    }

    /// Requests whose time is over wait for no daemon any more; nor do others, if `all`.
    pub(crate) fn expire_parked(&mut self, all: bool) {
        let now_ns = clock::now_ns();
        let mut from = 0;
        while let Some(slot) = self.table.next_parked(from) {
            from = slot + 1;
            if all || self.again[slot as usize].expires_ns <= now_ns {
                self.end_parked(slot, Cause::Disconnected);
            }
        }
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
