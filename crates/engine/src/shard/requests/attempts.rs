//! How often a transfer was tried, and what was wrong with what came.

use piped_core::limits;

/// The attempts of a transfer.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::shard) struct Attempts {
    /// Attempts after the first one.
    retries: u32,
    /// Attempts whose payload did not match its checksum.
    corrupt: u32,
    /// A payload of the present attempt did not match its checksum.
    damaged: bool,
    /// Fragments that arrived by way of a copy.
    mispredicted: u32,
}

impl Attempts {
    /// Attempts after the first one.
    pub(in crate::shard) fn retries(&self) -> u32 {
        self.retries
    }

    /// Whether it was sent more than once: then its time says nothing of the path.
    pub(in crate::shard) fn is_repeated(&self) -> bool {
        self.retries > 0
    }

    /// The transfer is to be tried again.
    pub(in crate::shard) fn repeat(&mut self) {
        self.retries += 1;
    }

    /// A fragment came. `copied`: by way of a copy; `intact`: its payload matches its checksum.
    pub(in crate::shard) fn note_fragment(&mut self, copied: bool, intact: bool) {
        self.mispredicted += u32::from(copied);
        self.damaged |= !intact;
    }

    /// Fragments that arrived by way of a copy.
    pub(in crate::shard) fn mispredicted(&self) -> u32 {
        self.mispredicted
    }

    /// Whether a payload of the present attempt did not match its checksum.
    pub(in crate::shard) fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// The present attempt is over, and was damaged. Whether there may be another one.
    pub(in crate::shard) fn end_damaged(&mut self) -> bool {
        self.damaged = false;
        self.corrupt += 1;
        self.corrupt <= limits::CORRUPT_RETRIES
    }
}
