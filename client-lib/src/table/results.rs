//! Results on their way to the owner of the request: taken, polled for, or abandoned.

use super::{NONE, Owner, State, Table, Taken};
use crate::buffer::Buffer;
use crate::error::{BufferState, Cause, RequestError};
use crate::request::Done;

impl Table {
    /// Whether the result can be taken.
    pub(crate) fn is_finished(&self, slot: u32, generation: u32) -> bool {
        self.place(slot, generation)
            .is_some_and(|place| matches!(place.state, State::Finished | State::FinishedHeld))
    }

    /// Whether the result was taken and the buffer is yet to be released.
    pub(crate) fn is_held(&self, slot: u32, generation: u32) -> bool {
        self.place(slot, generation).is_some_and(|place| place.state == State::Held)
    }

    /// Take a result: of a `Pending`, after [`Self::is_finished`].
    pub(crate) fn take(&mut self, slot: u32, generation: u32) -> Option<Taken> {
        if !self.is_finished(slot, generation) {
            return None;
        }
        let place = &mut self.places[slot as usize];
        let tag = place.loan.tag;
        let bytes = place.bytes;
        let Some(cause) = place.failure else {
            let payload = place.loan.buffer.take();
            let value = place.value;
            self.vacate(slot);
            return Some(Taken { tag, result: Ok(Done { bytes, value, payload }) });
        };
        if place.state == State::FinishedHeld {
            place.state = State::Held;
            let had = place.loan.buffer.is_some();
            let buffer = if had { BufferState::Held } else { BufferState::None };
            return Some(Taken { tag, result: Err(RequestError { cause, bytes, buffer }) });
        }
        let buffer = match place.loan.buffer.take() {
            Some(buffer) => BufferState::Returned(buffer),
            None if place.lost => BufferState::Lost,
            None => BufferState::None,
        };
        self.vacate(slot);
        Some(Taken { tag, result: Err(RequestError { cause, bytes, buffer }) })
    }

    /// The oldest detached result.
    pub(crate) fn pop_ready(&mut self) -> Option<(u32, u32, Taken)> {
        let slot = self.ready;
        let place = self.places.get_mut(slot as usize)?;
        self.ready = place.next;
        place.next = NONE;
        let generation = place.generation;
        let taken = self.take(slot, generation)?;
        Some((slot, generation, taken))
    }

    /// The oldest released buffer.
    pub(crate) fn pop_released(&mut self) -> Option<(u32, u32, u64, Buffer)> {
        self.released.pop_front()
    }

    /// Let the queue's poller take the result.
    pub(crate) fn detach(&mut self, slot: u32, generation: u32) {
        if self.place(slot, generation).is_none() {
            return;
        }
        let place = &mut self.places[slot as usize];
        place.loan.owner = Owner::Detached;
        match place.state {
            State::Underway | State::Parked => self.detached_underway += 1,
            _ => self.settle(slot),
        }
    }

    /// Nobody will take the result. Returns what to cancel, if it is under way.
    pub(crate) fn abandon(&mut self, slot: u32) -> Option<u64> {
        let place = self.places.get_mut(slot as usize)?;
        let was = std::mem::replace(&mut place.loan.owner, Owner::Nobody);
        match place.state {
            State::Underway => {
                self.detached_underway -= u32::from(was == Owner::Detached);
                let generation = place.generation;
                self.cancel(slot, generation)
            }
            State::Parked => {
                self.detached_underway -= u32::from(was == Owner::Detached);
                self.end_parked(slot, Cause::Disconnected, true);
                None
            }
            // Detached ones that finished are in the list of the ready, and leave it here only if
            // the list is dropped whole (`abandon_all`).
            State::Finished | State::FinishedHeld => {
                self.settle(slot);
                None
            }
            State::Free | State::Held => None,
        }
    }

    /// Nobody will take any result: calls `cancel` with what to cancel.
    pub(crate) fn abandon_all(&mut self, mut cancel: impl FnMut(u64)) {
        (self.ready, self.ready_last) = (NONE, NONE);
        self.ended = None;
        for slot in 0..self.places.len() as u32 {
            if let Some(target) = self.abandon(slot) {
                cancel(target);
            }
        }
        self.released.clear();
    }

    /// Hand a request that is over to its owner.
    pub(super) fn settle(&mut self, slot: u32) {
        let place = &mut self.places[slot as usize];
        match (place.loan.owner, place.state) {
            (Owner::Pending, _) => self.ended.iter_mut().for_each(|ended| ended.push(slot)),
            (Owner::Detached, _) => self.push_ready(slot),
            (Owner::Nobody, State::FinishedHeld) => place.state = State::Held,
            (Owner::Nobody, _) => self.vacate(slot),
        }
    }

    fn push_ready(&mut self, slot: u32) {
        self.places[slot as usize].next = NONE;
        match self.ready {
            NONE => self.ready = slot,
            _ => self.places[self.ready_last as usize].next = slot,
        }
        self.ready_last = slot;
    }
}
