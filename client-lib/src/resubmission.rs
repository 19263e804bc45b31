//! Requests that outlive their daemon: what a queue keeps of them to submit them to the next one.
//!
//! A queue of a client that does not reconnect keeps nothing here, and its requests end with their
//! daemon. Otherwise each request that asked for it ([`crate::Request::resubmit`]) is kept by its
//! place, and waits there, parked, while there is no daemon.

use std::sync::Arc;

use piped_ring::Descriptor;

use crate::clock;
use crate::connection::{Connection, Growth, Shared};
use crate::error::{Cause, SubmitFault};
use crate::handle::HandleCore;
use crate::table::{Loan, Table};

/// Requests that a queue can submit again, by their places.
#[derive(Debug)]
pub(crate) struct Resubmission {
    kept: Vec<Kept>,
    /// When the last daemon was lost.
    lost_ns: u64,
}

/// A request that outlives its daemon.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    descriptor: Descriptor,
    /// The time at which the request's deadline passes.
    expires_ns: u64,
    /// Whether a daemon had the request.
    begun: bool,
}

impl Resubmission {
    /// Room for a queue of so many places. With none no request outlives its daemon.
    pub(crate) fn new(places: u32) -> Self {
        Self { kept: vec![Kept::default(); places as usize], lost_ns: 0 }
    }

    /// Whether requests of this queue can outlive their daemon.
    pub(crate) fn is_possible(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Keeps a request that was submitted; `begun`: to a daemon.
    pub(crate) fn keep(
        &mut self,
        slot: u32,
        descriptor: Descriptor,
        deadline_default_ns: u64,
        begun: bool,
    ) {
        let deadline_ns = match descriptor.deadline_ns {
            0 => deadline_default_ns,
            deadline_ns => deadline_ns,
        };
        let expires_ns = clock::now_ns().saturating_add(deadline_ns);
        self.kept[slot as usize] = Kept { descriptor, expires_ns, begun };
    }

    /// The descriptor of a parked request for the daemon of `connection`, with the time that is
    /// left, its handles' new numbers and its buffer in the new arena. [`Self::begin`] follows.
    pub(crate) fn renew(
        &self,
        slot: u32,
        loan: &mut Loan,
        shared: &Shared,
        connection: &Connection,
        growth: Growth,
    ) -> Result<Descriptor, Cause> {
        let Kept { mut descriptor, expires_ns, begun } = self.kept[slot as usize];
        descriptor.deadline_ns = expires_ns.saturating_sub(clock::now_ns());
        if descriptor.deadline_ns == 0 {
            return Err(Cause::Disconnected);
        }
        place_handles(&mut descriptor, &loan.handles, connection.generation)?;
        // The kernel may still write for the daemon that is gone, and lent memory does not move.
        if begun && loan.fills && loan.buffer.as_ref().is_some_and(crate::Buffer::is_lent) {
            return Err(Cause::Disconnected);
        }
        // As a handle can be: this daemon is gone, too.
        if loan.buffer.as_ref().is_some_and(|buffer| buffer.is_ahead_of(&connection.arena)) {
            return Err(SubmitFault::Disconnected.into());
        }
        let filled = if loan.fills { loan.start..loan.start + loan.length } else { 0..0 };
        if let Some(buffer) = loan.buffer.take() {
            match shared.bring(buffer, connection, filled, growth) {
                Ok(buffer) => {
                    let (segment, offset) = buffer.place();
                    (descriptor.segment, descriptor.buffer_offset) = (segment, offset + loan.start);
                    loan.buffer = Some(buffer);
                }
                Err(buffer) => {
                    let fault = SubmitFault::without(&buffer);
                    loan.buffer = Some(buffer);
                    return Err(fault.into());
                }
            }
        }
        Ok(descriptor)
    }

    /// A parked request is at the next daemon.
    pub(crate) fn begin(&mut self, slot: u32, table: &mut Table) {
        self.kept[slot as usize].begun = true;
        table.unpark(slot);
    }

    /// A parked request ends without the next daemon.
    pub(crate) fn end(&self, slot: u32, table: &mut Table, cause: Cause) {
        table.end_parked(slot, cause, self.kept[slot as usize].begun);
    }

    /// Ends parked requests with a deadline that has passed; the others too, if `all`. Returns
    /// whether any ended.
    pub(crate) fn expire(&self, table: &mut Table, all: bool) -> bool {
        let now_ns = clock::now_ns();
        let (mut from, mut any) = (0, false);
        while let Some(slot) = table.next_parked(from) {
            from = slot + 1;
            if all || self.kept[slot as usize].expires_ns <= now_ns {
                self.end(slot, table, Cause::Disconnected);
                any = true;
            }
        }
        any
    }

    /// When the first parked request expires; `None` if there is none.
    pub(crate) fn parked_until_ns(&self, table: &Table) -> Option<u64> {
        let next = |from| table.next_parked(from);
        let parked = std::iter::successors(next(0), |slot| next(slot + 1));
        parked.map(|slot| self.kept[slot as usize].expires_ns).min()
    }

    /// The daemon is gone from now on.
    pub(crate) fn lose_daemon(&mut self) {
        self.lost_ns = clock::now_ns();
    }

    /// When the last daemon was lost.
    pub(crate) fn lost_ns(&self) -> u64 {
        self.lost_ns
    }
}

/// Writes the handles' numbers at the connection of that generation into a descriptor.
pub(crate) fn place_handles(
    descriptor: &mut Descriptor,
    handles: &[Option<Arc<HandleCore>>; 2],
    generation: u32,
) -> Result<(), SubmitFault> {
    let numbers = [&mut descriptor.handle_a, &mut descriptor.handle_b];
    for (number, handle) in numbers.into_iter().zip(handles) {
        let Some(handle) = handle else { continue };
        let (opened_at, at) = handle.place();
        match opened_at.cmp(&generation) {
            std::cmp::Ordering::Equal => *number = at,
            std::cmp::Ordering::Less => return Err(SubmitFault::HandleLost),
            // The handle is open at the next daemon already, so this queue's daemon is gone: the
            // queue may not know yet.
            std::cmp::Ordering::Greater => return Err(SubmitFault::Disconnected),
        }
    }
    Ok(())
}
