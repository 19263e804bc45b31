//! The requests of a queue between submission and the moment their result is taken.
//!
//! A slab of as many places as the queue is deep, made once: no request allocates. A place owns
//! the request's buffer and its handles, so whatever the application drops, the daemon never sees a
//! number that stands for something else meanwhile. Pure: completions come in, results go out.
//!
//! ```text
//! Free ─reserve─► Underway ─finished──────► Finished ─take──► Free
//!                     └─finished, held─► FinishedHeld ─take─► Held ─released─► Free
//!                                            └─released──► Finished
//! ```
//!
//! An abandoned request (its `Pending` was dropped) goes the same way without stopping to be taken.
//! One that outlives its daemon is `Parked` until it is `Underway` at the next one.

mod results;

use std::collections::VecDeque;
use std::sync::Arc;

use piped_core::status::Status;
use piped_ring::{CompletionEntry, CompletionKind};

use crate::buffer::Buffer;
use crate::error::{Cause, RequestError};
use crate::handle::HandleCore;
use crate::pieces::Pieces;
use crate::request::Done;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// The `user_data` of requests that nobody waits for: cancels. No place has it, since places are
/// fewer than 2^32 - 1.
pub(crate) const UNTRACKED: u64 = u64::MAX;

/// The party that takes the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The holder of the `Pending`.
    Pending,
    /// The caller that polls the queue.
    Detached,
    /// Nobody takes the result.
    Nobody,
}

/// The part of a request that its place keeps.
#[derive(Debug)]
pub(crate) struct Loan {
    pub(crate) owner: Owner,
    pub(crate) buffer: Option<Buffer>,
    /// Bytes are written into the buffer, not read from it.
    pub(crate) fills: bool,
    pub(crate) handles: [Option<Arc<HandleCore>>; 2],
    /// The table of its pieces, which the daemon reads.
    pub(crate) pieces: Option<Pieces>,
    /// The most bytes it can move.
    pub(crate) length: u64,
    /// The offset of the piece's first byte in the buffer.
    pub(crate) start: u64,
    pub(crate) tag: u64,
    /// Whether the request outlives its daemon.
    pub(crate) again: bool,
}

/// A result as it leaves the table.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) tag: u64,
    pub(crate) result: Result<Done<Option<Buffer>>, RequestError>,
}

/// The daemon said something that contradicts what was submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contradiction;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Underway,
    /// The request's daemon is gone, and it waits for the next.
    Parked,
    Finished,
    FinishedHeld,
    Held,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    state: State,
    /// The next place of the list it is in: the free ones, or the detached finished ones.
    next: u32,
    cancelled: bool,
    /// The buffer is gone for good.
    lost: bool,
    failure: Option<Cause>,
    bytes: u64,
    value: u64,
    loan: Loan,
}

const EMPTY: Loan = Loan {
    owner: Owner::Nobody,
    buffer: None,
    fills: false,
    handles: [None, None],
    pieces: None,
    length: 0,
    start: 0,
    tag: 0,
    again: false,
};

#[derive(Debug)]
pub(crate) struct Table {
    places: Vec<Place>,
    free: u32,
    ready: u32,
    ready_last: u32,
    /// Places that are `Underway` or `Parked`.
    underway: u32,
    detached_underway: u32,
    /// Places that are `Parked`.
    parked: u32,
    /// Places that are `FinishedHeld` or `Held`.
    held: u32,
    /// Places of requests that ended and have a `Pending`, for whoever wakes its owner; `None`:
    /// owners look themselves.
    ended: Option<Vec<u32>>,
    /// Buffers that were released, for the next call that asks. Bounded: the oldest goes back to
    /// the arena.
    released: VecDeque<(u32, u32, u64, Buffer)>,
}

impl Table {
    pub(crate) fn new(entries: u32) -> Self {
        let place = |number: u32| Place {
            generation: 0,
            state: State::Free,
            next: if number + 1 < entries { number + 1 } else { NONE },
            cancelled: false,
            lost: false,
            failure: None,
            bytes: 0,
            value: 0,
            loan: EMPTY,
        };
        Self {
            places: (0..entries).map(place).collect(),
            free: if entries == 0 { NONE } else { 0 },
            ready: NONE,
            ready_last: NONE,
            underway: 0,
            detached_underway: 0,
            parked: 0,
            held: 0,
            ended: None,
            released: VecDeque::with_capacity(entries as usize),
        }
    }

    /// Keeps from now on which requests with a `Pending` ended.
    #[cfg(feature = "async")]
    pub(crate) fn tell_ended(&mut self) {
        self.ended = Some(Vec::with_capacity(self.places.len()));
    }

    /// The place of a request with a `Pending` that ended. It may be another's by now.
    #[cfg(feature = "async")]
    pub(crate) fn pop_ended(&mut self) -> Option<u32> {
        self.ended.as_mut()?.pop()
    }

    /// Takes the result of a request with a `Pending` out of a place, if there is one. The place is
    /// free for others then, and the `Pending` must not mark it.
    #[cfg(feature = "async")]
    pub(crate) fn take_out(&mut self, slot: u32) -> Option<(u32, Taken)> {
        let place = self.places.get(slot as usize)?;
        let generation = place.generation;
        let owned = place.loan.owner == Owner::Pending;
        let taken = if owned { self.take(slot, generation) } else { None };
        taken.map(|taken| (generation, taken))
    }

    /// Bytes of the memory of requests that wait for the next daemon.
    #[cfg(feature = "async")]
    pub(crate) fn parked_bytes(&self) -> usize {
        let parked = self.places.iter().filter(|place| place.state == State::Parked);
        parked.filter_map(|place| place.loan.buffer.as_ref()).map(Buffer::capacity).sum()
    }

    /// Number of places in the table.
    pub(crate) fn len(&self) -> u32 {
        self.places.len() as u32
    }

    /// Requests the daemon has not ended.
    pub(crate) fn underway(&self) -> u32 {
        self.underway
    }

    /// Whether the daemon owes a completion.
    pub(crate) fn expects(&self) -> bool {
        self.underway + self.held > 0
    }

    /// Whether the daemon owes the release of a buffer.
    pub(crate) fn expects_release(&self) -> bool {
        self.held > 0
    }

    pub(crate) fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Requests under way that [`Self::pop_ready`] will give.
    pub(crate) fn detached_underway(&self) -> u32 {
        self.detached_underway
    }

    pub(crate) fn has_ready(&self) -> bool {
        self.ready != NONE
    }

    pub(crate) fn has_free(&self) -> bool {
        self.free != NONE
    }

    /// Take a place: its number and generation. There is one: see [`Self::has_free`].
    #[inline]
    pub(crate) fn reserve(&mut self, loan: Loan) -> (u32, u32) {
        let slot = self.free;
        let place = &mut self.places[slot as usize];
        self.free = place.next;
        self.underway += 1;
        self.detached_underway += u32::from(loan.owner == Owner::Detached);
        place.state = State::Underway;
        place.next = NONE;
        place.cancelled = false;
        place.lost = false;
        place.failure = None;
        (place.bytes, place.value) = (0, 0);
        place.loan = loan;
        (slot, place.generation)
    }

    /// Undo a reservation that was not submitted.
    pub(crate) fn unreserve(&mut self, slot: u32) -> Option<Buffer> {
        let place = &mut self.places[slot as usize];
        let buffer = place.loan.buffer.take();
        self.underway -= 1;
        self.detached_underway -= u32::from(place.loan.owner == Owner::Detached);
        self.vacate(slot);
        buffer
    }

    /// The request's own value in the ring.
    pub(crate) fn user_data(slot: u32, generation: u32) -> u64 {
        u64::from(generation) << 32 | u64::from(slot)
    }

    /// Takes a completion that the daemon reported.
    pub(crate) fn handle_completion(
        &mut self,
        entry: &CompletionEntry,
    ) -> Result<(), Contradiction> {
        let kind = CompletionKind::from_u8(entry.kind).ok_or(Contradiction)?;
        let slot = entry.user_data as u32;
        let generation = (entry.user_data >> 32) as u32;
        let place = self.places.get_mut(slot as usize).ok_or(Contradiction)?;
        if place.generation != generation {
            return Err(Contradiction);
        }
        match (place.state, kind) {
            (State::Underway, CompletionKind::Finished) => {
                place.end(entry)?;
                self.finish(slot, State::Finished);
            }
            (State::Underway, CompletionKind::FinishedHeld) => {
                place.end(entry)?;
                // What was done needs no memory any more.
                place.failure.ok_or(Contradiction)?;
                self.finish(slot, State::FinishedHeld);
            }
            // Before anybody took the result: it will say that the buffer is here.
            (State::FinishedHeld, CompletionKind::Released) => {
                place.state = State::Finished;
                self.held -= 1;
            }
            (State::Held, CompletionKind::Released) => self.release(slot),
            _ => return Err(Contradiction),
        }
        Ok(())
    }

    /// The daemon is gone: everything under way ends so, or (`park`) waits for the next one if it
    /// was asked to. Buffers that somebody may still be filling (the kernel outlives the daemon by
    /// the requests it cannot revoke) are not used again.
    pub(crate) fn fail_all(&mut self, cause: Cause, park: bool) {
        for slot in 0..self.places.len() as u32 {
            let place = &mut self.places[slot as usize];
            let state = place.state;
            let wanted = !place.cancelled && place.loan.owner != Owner::Nobody;
            if park && state == State::Underway && place.loan.again && wanted {
                self.park(slot);
                continue;
            }
            if matches!(state, State::Underway | State::FinishedHeld | State::Held)
                && place.loan.fills
                && let Some(buffer) = place.loan.buffer.take()
            {
                place.lost = true;
                buffer.retire();
            }
            match state {
                State::Underway => {
                    place.failure = Some(cause);
                    self.finish(slot, State::Finished);
                }
                State::FinishedHeld => {
                    place.state = State::Finished;
                    self.held -= 1;
                }
                State::Held => self.release(slot),
                State::Free | State::Finished | State::Parked => {}
            }
        }
    }

    /// Requests that wait for the next daemon.
    pub(crate) fn parked(&self) -> u32 {
        self.parked
    }

    /// The first of them from `slot` on.
    pub(crate) fn next_parked(&self, slot: u32) -> Option<u32> {
        let is_parked = |slot: &u32| self.places[*slot as usize].state == State::Parked;
        (slot..self.len()).find(is_parked).filter(|_| self.parked > 0)
    }

    /// A request under way waits for the next daemon.
    pub(crate) fn park(&mut self, slot: u32) {
        self.places[slot as usize].state = State::Parked;
        self.parked += 1;
    }

    /// The value in the ring of the request in a place, and what it has.
    pub(crate) fn loan(&mut self, slot: u32) -> (u64, &mut Loan) {
        let place = &mut self.places[slot as usize];
        (Self::user_data(slot, place.generation), &mut place.loan)
    }

    /// A request that waited for it is at the next daemon.
    pub(crate) fn unpark(&mut self, slot: u32) {
        self.parked -= 1;
        self.places[slot as usize].state = State::Underway;
    }

    /// A request ends that waited for the next daemon. `begun`: one had it.
    pub(crate) fn end_parked(&mut self, slot: u32, cause: Cause, begun: bool) {
        self.parked -= 1;
        let place = &mut self.places[slot as usize];
        place.failure = Some(cause);
        if begun
            && place.loan.fills
            && let Some(buffer) = place.loan.buffer.take()
        {
            place.lost = true;
            buffer.retire();
        }
        self.finish(slot, State::Finished);
    }

    /// The value of a request that is to be cancelled; once for each.
    pub(crate) fn cancel(&mut self, slot: u32, generation: u32) -> Option<u64> {
        self.place(slot, generation)?;
        let place = &mut self.places[slot as usize];
        if place.state != State::Underway || place.cancelled {
            return None;
        }
        place.cancelled = true;
        Some(Self::user_data(slot, generation))
    }

    /// The place of a request that waits for the next daemon.
    pub(crate) fn parked_place(&self, slot: u32, generation: u32) -> Option<u32> {
        self.place(slot, generation).filter(|place| place.state == State::Parked).map(|_| slot)
    }

    /// Whether the request with that value in the ring is not over.
    pub(crate) fn is_underway(&self, user_data: u64) -> bool {
        self.place(user_data as u32, (user_data >> 32) as u32)
            .is_some_and(|place| place.state == State::Underway)
    }

    /// The most that a request moves, and what it did if it is over. `None`: no such request.
    pub(crate) fn progress(&self, slot: u32, generation: u32) -> Option<(u64, Option<u64>)> {
        let place = self.place(slot, generation)?;
        let done = (place.state != State::Underway).then_some(place.bytes);
        Some((place.loan.length, done))
    }

    /// Copy landed bytes of a read out: those of `to` from `offset` that are below `watermark`.
    pub(crate) fn copy_landed(
        &self,
        slot: u32,
        generation: u32,
        (offset, watermark): (u64, u64),
        to: &mut [u8],
    ) -> usize {
        let Some(place) = self.place(slot, generation) else { return 0 };
        let Some(buffer) = place.loan.buffer.as_ref().filter(|buffer| {
            let is_range = place.loan.pieces.is_none() && buffer.parts().is_none();
            place.loan.fills && is_range
        }) else {
            return 0;
        };
        let there = watermark.min(place.loan.length).saturating_sub(offset);
        let count = usize::try_from(there).unwrap_or(usize::MAX).min(to.len());
        // If there are any, `offset` is below the length, and the sum inside the buffer.
        let whole = count == 0 || buffer.load_landed(place.loan.start + offset, &mut to[..count]);
        if whole { count } else { 0 }
    }

    fn place(&self, slot: u32, generation: u32) -> Option<&Place> {
        let place = self.places.get(slot as usize)?;
        (place.state != State::Free && place.generation == generation).then_some(place)
    }

    /// A request under way is over.
    fn finish(&mut self, slot: u32, state: State) {
        let place = &mut self.places[slot as usize];
        place.state = state;
        // Handles are done with, also if nobody takes the result for long.
        place.loan.handles = [None, None];
        self.underway -= 1;
        self.held += u32::from(state == State::FinishedHeld);
        self.detached_underway -= u32::from(place.loan.owner == Owner::Detached);
        self.settle(slot);
    }

    /// The buffer of a held request is free.
    fn release(&mut self, slot: u32) {
        self.held -= 1;
        let place = &mut self.places[slot as usize];
        let wanted = place.loan.owner != Owner::Nobody;
        let (generation, tag) = (place.generation, place.loan.tag);
        if let Some(buffer) = place.loan.buffer.take().filter(|_| wanted) {
            if self.released.len() == self.released.capacity() {
                self.released.pop_front();
            }
            self.released.push_back((slot, generation, tag, buffer));
        }
        self.vacate(slot);
    }

    /// Free a place; what it still has is dropped.
    fn vacate(&mut self, slot: u32) {
        let place = &mut self.places[slot as usize];
        // What it owns; the rest is overwritten by the next.
        (place.loan.buffer, place.loan.pieces) = (None, None);
        place.loan.handles = [None, None];
        place.state = State::Free;
        place.generation = place.generation.wrapping_add(1);
        place.next = self.free;
        self.free = slot;
    }
}

impl Place {
    /// Note how the request ended.
    fn end(&mut self, entry: &CompletionEntry) -> Result<(), Contradiction> {
        // Applications index their buffers with it.
        if entry.bytes > self.loan.length {
            return Err(Contradiction);
        }
        self.failure = match Status::from_u16(entry.status) {
            Some(Status::Ok) => None,
            Some(status) => Some(Cause::Status(status)),
            None => Some(Cause::Unknown(entry.status)),
        };
        (self.bytes, self.value) = (entry.bytes, entry.value);
        Ok(())
    }
}
