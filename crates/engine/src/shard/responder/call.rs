//! A peer's call: its bytes here, and where its answer is made.

use piped_core::io::Span;

use super::super::buffers::{Cell, Run};
use super::super::call::Facts;

/// A call as it came, copied and checked.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Called {
    cell: Cell,
    bytes: u32,
    facts: Facts,
    /// The number under which its outcome is remembered, if it must not be carried out twice.
    number: Option<u32>,
    /// Staging for an answer that its cell has no room for.
    run: Option<Run>,
    /// Bytes of the answer, once it was carried out.
    answered: Option<u32>,
}

/// Where the answer begins in a cell: behind the longest call.
const ANSWER_AT: u32 = (piped_core::call::CALL_BYTES_MAX as u32).next_multiple_of(64);

/// The longest answer that a cell has room for.
const ANSWER_IN_CELL: u32 = piped_core::limits::CELL_BYTES - ANSWER_AT;

const _: () = assert!(piped_core::call::Stat::BYTES as u32 <= ANSWER_IN_CELL);

impl Called {
    /// A call whose bytes are in a cell.
    pub(in crate::shard) fn new(
        (cell, bytes): (Cell, u32),
        facts: Facts,
        number: Option<u32>,
    ) -> Self {
        Self { cell, bytes, facts, number, run: None, answered: None }
    }

    /// The bytes of the call.
    pub(in crate::shard) fn span(&self) -> Span {
        self.cell.span().part(0, self.bytes)
    }

    /// What is known of it.
    pub(in crate::shard) fn facts(&self) -> Facts {
        self.facts
    }

    /// The number under which its outcome is remembered.
    pub(in crate::shard) fn number(&self) -> Option<u32> {
        self.number
    }

    /// Staging that an answer of at most so many bytes takes beside the cell; 0: none.
    pub(in crate::shard) fn lacks(&self, most: u32) -> u32 {
        let bytes = self.facts.answer().min(most);
        if bytes <= ANSWER_IN_CELL || self.run.is_some() { 0 } else { bytes }
    }

    /// The answer goes there.
    pub(in crate::shard) fn answer_into(&mut self, run: Run) {
        self.run = Some(run);
    }

    /// Where the answer is made, of at most so many bytes.
    pub(in crate::shard) fn answer(&self, most: u32) -> Span {
        match self.run {
            Some(run) => run.span.part(0, most),
            None => self.cell.span().part(ANSWER_AT, most),
        }
    }

    /// Bytes of the answer; none before it was carried out.
    pub(in crate::shard) fn answered(&self) -> Option<u32> {
        self.answered
    }

    /// The call was carried out, with an answer of so many bytes.
    pub(in crate::shard) fn note_answer(&mut self, bytes: u32) {
        self.answered = Some(bytes);
    }

    /// What it takes of staging, to be given back.
    pub(in crate::shard) fn places(&self) -> (Cell, Option<Run>) {
        (self.cell, self.run)
    }
}
