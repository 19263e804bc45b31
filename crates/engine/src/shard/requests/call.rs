//! What is left of a client's call: its own copy of the call, and what is known of it.

use piped_core::access::Access;
use piped_core::ids::FileId;
use piped_core::io::Span;

use super::super::arena::Memory;
use super::super::buffers::Cell;
use super::super::call::Facts;
use super::super::driver::On;

/// A call of a file or directory, here or at a peer.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct CallBody {
    /// Where it is carried out, if that is here.
    local: Option<(FileId, On)>,
    /// The client's buffer: the call is at its start, and the answer will be.
    memory: Memory,
    bytes: u32,
    access: Access,
    is_directory: bool,
    taken: Option<Taken>,
    started: bool,
    /// Its number among those of its handle if it must not be carried out twice, and the peer's
    /// incarnation that was told it first.
    number: Option<(u32, u64)>,
}

/// A call that was copied and checked.
#[derive(Debug, Clone, Copy)]
struct Taken {
    cell: Cell,
    facts: Facts,
}

impl CallBody {
    /// A call that nobody has looked at, of something that the client may use so.
    pub(in crate::shard) fn new(
        local: Option<(FileId, On)>,
        (memory, bytes): (Memory, u32),
        (access, is_directory): (Access, bool),
    ) -> Self {
        let (taken, started, number) = (None, false, None);
        Self { local, memory, bytes, access, is_directory, taken, started, number }
    }

    /// Where it is carried out, if that is here.
    pub(in crate::shard) fn local(&self) -> Option<(FileId, On)> {
        self.local
    }

    /// The buffer that its client gave.
    pub(in crate::shard) fn memory(&self) -> Memory {
        self.memory
    }

    /// Where the client has the call.
    pub(in crate::shard) fn asked_at(&self) -> Span {
        self.memory.span(0, self.bytes)
    }

    /// What the client may do, and whether it is with a directory.
    pub(in crate::shard) fn rights(&self) -> (Access, bool) {
        (self.access, self.is_directory)
    }

    /// The copy that was checked; none yet.
    pub(in crate::shard) fn copy(&self) -> Option<Span> {
        self.taken.map(|taken| taken.cell.span().part(0, self.bytes))
    }

    /// What is known of it, once it was checked.
    pub(in crate::shard) fn facts(&self) -> Option<Facts> {
        self.taken.map(|taken| taken.facts)
    }

    /// The call was copied into a cell, and checked there.
    pub(in crate::shard) fn take(&mut self, cell: Cell, facts: Facts) {
        self.taken = Some(Taken { cell, facts });
    }

    /// The call is over: its cell, if it has one.
    pub(in crate::shard) fn give_back(&mut self) -> Option<Cell> {
        self.taken.take().map(|taken| taken.cell)
    }

    /// Whether the driver has it.
    pub(in crate::shard) fn is_started(&self) -> bool {
        self.started
    }

    /// The driver has it.
    pub(in crate::shard) fn start(&mut self) {
        self.started = true;
    }

    /// The number that it has, and the incarnation of the peer that was told it.
    pub(in crate::shard) fn number(&self) -> Option<(u32, u64)> {
        self.number
    }

    /// The peer is told its number.
    pub(in crate::shard) fn set_number(&mut self, number: (u32, u64)) {
        self.number = Some(number);
    }
}
