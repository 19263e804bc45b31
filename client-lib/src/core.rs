//! The inside of a queue: the ring, the table of its requests, and how to wait.
//!
//! A core outlives the [`crate::Queue`] it is in: the daemon gives queues for the session's life,
//! and a dropped queue's requests still own memory that the daemon may be using. So the core goes
//! back to the client, and the next `Client::queue` carries on with it.

mod counters;
mod place;
mod spin;
mod wait;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use piped_core::status::Status;
use piped_ring::{ClientQueue, Descriptor, FLAG_BUFFERS, Opcode};

pub use self::counters::QueueCounters;
use self::place::{place_buffer, place_list};
use self::spin::WaitSpin;
use crate::arena::Arena;
use crate::connection::{Connection, Growth, Link, Shared};
use crate::control::Control;
use crate::drops::Drops;
use crate::error::{Cause, SubmitError, SubmitFault};
use crate::handle::HandleCore;
use crate::payload::sealed;
use crate::request::{Request, RequestId};
use crate::resubmission::{Resubmission, place_handles};
use crate::table::{Loan, Owner, Table, UNTRACKED};

/// Looks in a row that found nothing, before a look whether the daemon is there at all: a system
/// call every millisecond or so for a program that only polls.
const IDLE_LOOKS_MAX: u32 = 1 << 16;

#[derive(Debug)]
pub(crate) struct Core {
    ring: ClientQueue,
    pub(crate) table: Table,
    pub(crate) drops: Arc<Drops>,
    control: Arc<Control>,
    arena: Arc<Arena>,
    link: Arc<Link>,
    /// Generation of the connection that the queue is at.
    generation: u32,
    deadline_default_ns: u64,
    resubmission: Resubmission,
    spin: WaitSpin,
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

/// Verbs that write the buffer.
const FILLS: [Opcode; 4] = [Opcode::Read, Opcode::Recv, Opcode::ReadV, Opcode::Call];

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
        let outlives = if shared.settings.reconnect.is_some() { table.len() } else { 0 };
        Self {
            ring,
            table,
            drops: Arc::new(Drops::new(entries)),
            control: Arc::clone(&connection.control),
            arena: Arc::clone(&connection.arena),
            link: Arc::clone(&shared.link),
            generation: connection.generation,
            deadline_default_ns: connection.welcome.deadline_default_ns,
            resubmission: Resubmission::new(outlives),
            spin: WaitSpin::new(spin_ns, connection.shard_cpu()),
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
        self.spin.set_limit(spin_ns);
    }

    pub(crate) fn spin_budget_ns(&self) -> u64 {
        self.spin.budget_ns()
    }

    /// Whether this is the process that connected.
    pub(crate) fn is_own(&self) -> bool {
        self.control.is_own()
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
        let again = again && self.resubmission.is_possible();
        let mut buffer = payload.stow();
        let mut place = |core: &mut Self| {
            let pieces = pieces.as_ref();
            let memory = (buffer.as_ref(), pieces);
            let parks = core.admit(&mut descriptor, &handles, memory, again)?;
            let (arena, piece) = (&core.arena, piece.clone());
            let start = match &mut buffer {
                Some(buffer) if descriptor.flags & FLAG_BUFFERS != 0 => {
                    place_list(arena, &mut descriptor, buffer, pieces)?
                }
                Some(buffer) => place_buffer(arena, &mut descriptor, buffer, piece, pieces, parks)?,
                None => 0,
            };
            Ok((start, parks))
        };
        let placed = match place(self) {
            // Lent memory has gone ahead just now, which is seen the second time.
            Err(SubmitFault::Disconnected) if self.dead.is_none() => place(self),
            placed => placed,
        };
        let result = placed.and_then(|(start, parks)| {
            self.make_place(parks)?;
            let (slot, generation) = self.table.reserve(Loan {
                owner,
                buffer: buffer.take(),
                fills: FILLS.iter().any(|&it| it as u8 == descriptor.opcode),
                handles,
                length: match descriptor.flags & FLAG_BUFFERS {
                    0 => pieces.as_ref().map_or(descriptor.length, crate::Pieces::bytes),
                    _ => descriptor.operand_a,
                },
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
                self.resubmission.keep(slot, descriptor, self.deadline_default_ns, !parks);
            }
            Ok(self.id(slot, generation))
        });
        result.map_err(|fault| {
            let payload = B::unstow(buffer).expect("a refused request still has its buffer");
            SubmitError { fault, buffer: payload }
        })
    }

    /// Checks that a request can be submitted at this connection, and writes its handles' numbers
    /// into the descriptor. `true`: there is no daemon, and the request waits for the next one.
    fn admit(
        &mut self,
        descriptor: &mut Descriptor,
        handles: &[Option<Arc<HandleCore>>; 2],
        (buffer, pieces): (Option<&crate::Buffer>, Option<&crate::Pieces>),
        again: bool,
    ) -> Result<bool, SubmitFault> {
        let foreign = handles.iter().flatten().any(|it| !Arc::ptr_eq(&it.link, &self.link));
        let placed = match buffer.is_some_and(|buffer| buffer.is_ahead_of(&self.arena)) {
            // Of lent memory as of handles: this queue's daemon is gone.
            true => Err(SubmitFault::Disconnected),
            false => place_handles(descriptor, handles, self.generation),
        };
        if placed == Err(SubmitFault::Disconnected) && !foreign {
            self.lose_daemon();
        }
        // A request that outlives its daemon can also begin without one.
        let parks = again && self.dead == Some(Cause::Disconnected);
        if self.dead.is_some() && !parks {
            return Err(SubmitFault::Disconnected);
        }
        if foreign {
            return Err(SubmitFault::Foreign);
        }
        if pieces.is_some_and(|it| !it.table.is_of(&self.arena)) {
            return Err(SubmitFault::TableLost);
        }
        if parks { Ok(true) } else { placed.map(|()| false) }
    }

    /// Makes sure of a free place in the table, and of room in the ring for a request that does not
    /// wait for a daemon.
    fn make_place(&mut self, parks: bool) -> Result<(), SubmitFault> {
        if !self.table.has_free() {
            self.collect_drops();
        }
        let fits = self.table.has_free() && (parks || self.has_room());
        if fits { Ok(()) } else { Err(SubmitFault::Full) }
    }

    /// Whether a request could enter now, or be refused for another reason than a full queue.
    pub(crate) fn has_place(&mut self) -> bool {
        let dead = self.dead.is_some();
        (dead && !self.resubmission.is_possible()) || self.make_place(dead).is_ok()
    }

    /// Whether there is a place and room, as far as was looked.
    pub(crate) fn is_roomy(&self) -> bool {
        self.table.has_free() && self.has_room()
    }

    /// Whether the ring has room. The daemon takes no more descriptors than it has completions for,
    /// so what counts is what it did not answer yet. One entry is kept free of requests: a full
    /// queue can be cancelled too.
    pub(crate) fn has_room(&self) -> bool {
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
            self.spin.handle_work();
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
        // The marks are of this queue's `Pending`s: their places stay taken until now.
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

    /// Whether the daemon owes answers to cancels.
    pub(crate) fn awaits_cancels(&self) -> bool {
        self.cancels > 0
    }

    /// Finds out whether the daemon is there: a system call.
    pub(crate) fn check_daemon(&mut self) {
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
        self.resubmission.lose_daemon();
        let park = cause == Cause::Disconnected && self.resubmission.is_possible();
        self.table.fail_all(cause, park);
        self.owed.clear();
        self.news = true;
    }

    /// The generation of its connection.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether a buffer lies in the memory of its connection, or of a later one: then it does not
    /// move to this one.
    pub(crate) fn has(&self, buffer: &crate::Buffer) -> bool {
        buffer.is_of(&self.arena) || buffer.is_ahead_of(&self.arena)
    }

    /// Whether it can go on with a ring: places have numbers below its length.
    pub(crate) fn fits(&self, ring: &ClientQueue) -> bool {
        ring.entries() > self.table.len()
    }

    /// Go on at another connection. What waited for it is submitted.
    pub(crate) fn reattach(
        &mut self,
        ring: ClientQueue,
        shared: &Shared,
        connection: &Connection,
        growth: Growth,
    ) {
        // What was dropped meanwhile does not go along.
        self.collect_drops();
        self.lose_daemon();
        self.owed.clear();
        self.ring = ring;
        (self.control, self.arena) = (connection.control.clone(), connection.arena.clone());
        self.generation = connection.generation;
        self.deadline_default_ns = connection.welcome.deadline_default_ns;
        self.spin.set_shard(connection.shard_cpu());
        (self.unflushed, self.cancels, self.dead) = (false, 0, None);
        let (mut from, mut gone) = (0, false);
        while let Some(slot) = self.table.next_parked(from) {
            from = slot + 1;
            match self.resubmit(slot, shared, connection, growth) {
                Ok(()) => self.counters.resubmitted += 1,
                // This daemon is gone too: the request goes on waiting.
                Err(Cause::NotSubmitted(SubmitFault::Disconnected)) => gone = true,
                Err(cause) => self.end_parked(slot, cause),
            }
        }
        self.flush();
        if gone {
            self.lose_daemon();
        }
    }

    fn resubmit(
        &mut self,
        slot: u32,
        shared: &Shared,
        connection: &Connection,
        growth: Growth,
    ) -> Result<(), Cause> {
        let (user_data, loan) = self.table.loan(slot);
        let mut descriptor = self.resubmission.renew(slot, loan, shared, connection, growth)?;
        (descriptor.slot, descriptor.user_data) = (slot, user_data);
        // There is room: the ring is new and longer than the table.
        self.ring.submit(descriptor).map_err(|_| SubmitFault::Full)?;
        self.unflushed = true;
        self.resubmission.begin(slot, &mut self.table);
        Ok(())
    }

    fn end_parked(&mut self, slot: u32, cause: Cause) {
        self.resubmission.end(slot, &mut self.table, cause);
        self.news = true;
    }

    /// The earliest deadline of the requests that wait for a daemon.
    pub(crate) fn parked_until_ns(&self) -> Option<u64> {
        self.resubmission.parked_until_ns(&self.table)
    }

    /// The time at which the last daemon was lost.
    pub(crate) fn dead_since_ns(&self) -> u64 {
        self.resubmission.lost_ns()
    }

    /// Ends requests that wait for a daemon and are out of time; the others too, if `all`.
    pub(crate) fn expire_parked(&mut self, all: bool) {
        self.news |= self.resubmission.expire(&mut self.table, all);
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
