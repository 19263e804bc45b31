//! A piece of memory that a request reads or fills.

use piped_core::ids::SegmentId;
use piped_core::io::Span;

/// Where a request's bytes lie, as far as its length goes: in a client's arena, or in staging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) segment: SegmentId,
    pub(super) offset: u64,
}

impl Memory {
    /// The memory of a request that moves no bytes.
    pub(super) const NONE: Self = Self { segment: SegmentId(u32::MAX), offset: 0 };

    /// The memory from its byte `bytes` on.
    pub(super) fn skip(self, bytes: u64) -> Self {
        Self { offset: self.offset + bytes, ..self }
    }

    /// So many bytes of it, `skip` bytes from its start.
    pub(super) fn span(self, skip: u64, length: u32) -> Span {
        Span { segment: self.segment, offset: self.offset + skip, length }
    }
}
