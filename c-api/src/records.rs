//! The requests of a queue, as C names them: numbers that say which queue, which record and which
//! of its uses.
//!
//! ```text
//!  63      45 44        32 31             0
//!  ┌─────────┬────────────┬───────────────┐
//!  │  queue  │   record   │  generation   │
//!  └─────────┴────────────┴───────────────┘
//! ```
//!
//! A record keeps what client-lib has no place for: under which name a buffer came, and the
//! program's tag. Its number is the tag that client-lib sees. Made once, as many as a queue can
//! have under way or unreleased.

use std::sync::atomic::{AtomicU32, Ordering};

use client_lib::{Buffer, Buffers, Pending, RequestId};

use crate::buffer::{self, BufferName, Lent};
use crate::buffers::{self, BuffersName};
use crate::fault::Fault;
use crate::status::piped_status::{
    PIPED_DETACHED_REQUEST, PIPED_FULL, PIPED_NOT_OURS, PIPED_NULL, PIPED_OTHER_QUEUE, PIPED_STALE,
};

const RECORD_BITS: u32 = 13;
const SERIAL_BITS: u32 = 64 - 32 - RECORD_BITS;

/// The memory that a request took along, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Buffer(BufferName),
    Buffers(BuffersName),
}

impl Taken {
    /// Put the memory back under its name, or say where it is.
    pub(crate) fn settle(self, lent: Lent) -> Result<(), Fault> {
        match self {
            Self::Buffer(name) => buffer::settle(name.pointer(), lent),
            Self::Buffers(name) => buffers::settle(name.pointer(), lent),
        }
    }
}

/// A request that somebody waits for.
#[derive(Debug)]
pub(crate) enum Pend {
    Buffer(Pending<Buffer>),
    Buffers(Pending<Buffers>),
    Nothing(Pending<()>),
}

#[derive(Debug)]
pub(crate) enum State {
    Vacant,
    /// On its way in, or being waited for.
    Entered,
    Pending(Pend),
    Detached,
    /// Ended, with a buffer that is yet to be released.
    Held,
}

#[derive(Debug)]
pub(crate) struct Record {
    generation: u32,
    pub(crate) state: State,
    pub(crate) tag: u64,
    pub(crate) taken: Option<Taken>,
    /// client-lib's name of it, once it is submitted.
    pub(crate) id: Option<RequestId>,
}

#[derive(Debug)]
pub(crate) struct Records {
    serial: u32,
    records: Vec<Record>,
    vacant: Vec<u16>,
    /// Records in state `Detached`.
    pub(crate) detached: usize,
    /// Records in state `Held`.
    pub(crate) held: usize,
}

impl Records {
    /// Records for a queue of that depth.
    pub(crate) fn new(depth: u32) -> Self {
        static SERIALS: AtomicU32 = AtomicU32::new(0);
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed) % ((1 << SERIAL_BITS) - 1) + 1;
        // As many again may be released and not collected.
        let count = (2 * depth).min(1 << RECORD_BITS) as u16;
        let vacant =
            || Record { generation: 0, state: State::Vacant, tag: 0, taken: None, id: None };
        Self {
            serial,
            records: (0..count).map(|_| vacant()).collect(),
            vacant: (0..count).rev().collect(),
            detached: 0,
            held: 0,
        }
    }

    /// A record for a new request.
    pub(crate) fn enter(&mut self, tag: u64, taken: Option<Taken>) -> Result<usize, Fault> {
        let at = usize::from(self.vacant.pop().ok_or_else(|| Fault::fixed(PIPED_FULL))?);
        let record = &mut self.records[at];
        (record.state, record.tag, record.taken) = (State::Entered, tag, taken);
        Ok(at)
    }

    /// Frees the record of a request that is over: its number is stale from now on.
    pub(crate) fn vacate(&mut self, at: usize) {
        self.set(at, State::Vacant);
        let record = &mut self.records[at];
        record.generation = record.generation.wrapping_add(1);
        (record.taken, record.id) = (None, None);
        // A record's place fits: there are at most 2^13.
        self.vacant.push(at as u16);
    }

    pub(crate) fn set(&mut self, at: usize, state: State) -> State {
        let was = std::mem::replace(&mut self.records[at].state, state);
        let counts = |state: &State| {
            (matches!(state, State::Detached) as usize, matches!(state, State::Held) as usize)
        };
        let (before, after) = (counts(&was), counts(&self.records[at].state));
        self.detached = self.detached + after.0 - before.0;
        self.held = self.held + after.1 - before.1;
        was
    }

    pub(crate) fn at(&mut self, at: usize) -> &mut Record {
        &mut self.records[at]
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    /// The number that C knows the request by.
    pub(crate) fn number(&self, at: usize) -> u64 {
        let place = u64::from(self.serial) << RECORD_BITS | at as u64;
        place << 32 | u64::from(self.records[at].generation)
    }

    /// The record of a request with a result that was not taken.
    pub(crate) fn find(&self, number: u64) -> Result<usize, Fault> {
        let place = number >> 32;
        match (place >> RECORD_BITS) as u32 {
            0 if number == 0 => return Err(Fault::fixed(PIPED_NULL)),
            0 => return Err(Fault::fixed(PIPED_NOT_OURS)),
            serial if serial != self.serial => return Err(Fault::fixed(PIPED_OTHER_QUEUE)),
            _ => {}
        }
        let at = place as usize & ((1 << RECORD_BITS) - 1);
        let record = self.records.get(at).ok_or_else(|| Fault::fixed(PIPED_NOT_OURS))?;
        match record.state {
            State::Pending(_) | State::Detached if record.generation == number as u32 => Ok(at),
            _ => Err(Fault::fixed(PIPED_STALE)),
        }
    }

    /// Take the request to wait for it.
    pub(crate) fn take_pending(&mut self, at: usize) -> Result<Pend, Fault> {
        match self.set(at, State::Entered) {
            State::Pending(pend) => Ok(pend),
            state => {
                self.set(at, state);
                Err(Fault::fixed(PIPED_DETACHED_REQUEST))
            }
        }
    }

    /// The record that the release of a buffer belongs to. The tag is whatever the submitter on the
    /// queue chose.
    pub(crate) fn of_held(&self, tag: u64, id: RequestId) -> Option<usize> {
        let at = usize::try_from(tag).ok()?;
        let record = self.records.get(at)?;
        (matches!(record.state, State::Held) && record.id == Some(id)).then_some(at)
    }

    /// Records with a buffer that is yet to be released.
    pub(crate) fn held(&self) -> impl Iterator<Item = usize> {
        let is_held = |at: &usize| matches!(self.records[*at].state, State::Held);
        (0..self.records.len()).filter(is_held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_of_one_queue_and_of_one_request() {
        let (mut ours, mut theirs) = (Records::new(2), Records::new(2));
        let at = ours.enter(7, None).expect("room");
        let number = ours.number(at);
        assert_eq!(ours.find(number).expect_err("not submitted yet").status, PIPED_STALE);
        ours.set(at, State::Detached);
        assert_eq!(ours.find(number).expect("it is there"), at);
        assert_eq!(ours.take_pending(at).expect_err("detached").status, PIPED_DETACHED_REQUEST);
        assert_eq!((ours.detached, ours.held), (1, 0));
        assert_eq!(theirs.find(number).expect_err("ours").status, PIPED_OTHER_QUEUE);
        assert_eq!(ours.find(0).expect_err("nothing").status, PIPED_NULL);
        assert_eq!(ours.find(12_345).expect_err("made up").status, PIPED_NOT_OURS);
        ours.set(at, State::Held);
        assert_eq!((ours.detached, ours.held), (0, 1));
        assert_eq!(ours.held().collect::<Vec<_>>(), [at]);
        ours.vacate(at);
        assert_eq!((ours.detached, ours.held), (0, 0));
        assert_eq!(ours.find(number).expect_err("over").status, PIPED_STALE);
        assert_ne!(ours.enter(7, None).map(|at| ours.number(at)).expect("room"), number);
        for _ in 0..4 {
            theirs.enter(0, None).expect("twice the depth");
        }
        assert_eq!(theirs.enter(0, None).expect_err("no more").status, PIPED_FULL);
    }
}
