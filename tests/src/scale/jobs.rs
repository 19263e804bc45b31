//! What clients have asked for and what became of it.

use std::collections::{BTreeMap, VecDeque};

use piped_core::request::{BufferState, Class};
use piped_core::status::Status;
use piped_core::units::Nanos;

/// A part of what a node has, to be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) other: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) writes: bool,
    pub(crate) class: Class,
}

/// A request that is over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) node: usize,
    pub(crate) bytes: u64,
    pub(crate) status: Status,
    pub(crate) took: Nanos,
}

/// A request that is not over, or whose buffer the kernel still has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnderWay {
    pub(crate) node: usize,
    pub(crate) job: Job,
    /// The part of the client's arena that is its buffer.
    pub(crate) slot: u32,
    pub(crate) sent: Nanos,
}

/// All requests of a world, by number.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    under_way: BTreeMap<u64, UnderWay>,
    held: BTreeMap<u64, UnderWay>,
    ended: VecDeque<Ended>,
    made: u64,
}

impl Jobs {
    /// A request begins; its number.
    pub(super) fn begin(&mut self, it: UnderWay) -> u64 {
        self.made += 1;
        self.under_way.insert(self.made, it);
        self.made
    }

    /// A request ends; what it was, and whether its slot is free.
    ///
    /// # Panics
    /// If it has ended before.
    pub(super) fn end(
        &mut self,
        number: u64,
        (status, bytes, buffer): (Status, u64, BufferState),
        now: Nanos,
    ) -> (UnderWay, bool) {
        let it = self.under_way.remove(&number).expect("a request ends once");
        let is_free = buffer == BufferState::Returned;
        if !is_free {
            self.held.insert(number, it);
        }
        let took = now.since(it.sent);
        self.ended.push_back(Ended { node: it.node, bytes, status, took });
        (it, is_free)
    }

    /// The kernel is done with the buffer of a request that was over before.
    ///
    /// # Panics
    /// If it was told so before.
    pub(super) fn release(&mut self, number: u64) -> UnderWay {
        self.held.remove(&number).expect("a buffer is held once")
    }

    /// How many requests are under way.
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// The next request that is over.
    pub(super) fn poll_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// A node died with its client; how many requests died with it.
    pub(super) fn forget(&mut self, node: usize) -> u64 {
        let before = self.under_way.len();
        self.under_way.retain(|_, it| it.node != node);
        self.held.retain(|_, it| it.node != node);
        (before - self.under_way.len()) as u64
    }
}
