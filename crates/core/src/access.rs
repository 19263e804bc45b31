//! What handles stand for, what they may be used for, and how devices want to be asked.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// What a handle may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Access {
    /// Reads and gets.
    pub read: bool,
    /// Writes and puts.
    pub write: bool,
    /// Atomics; of regions only.
    pub atomic: bool,
}

impl Access {
    /// Nothing.
    pub const NONE: Self = Self { read: false, write: false, atomic: false };
    /// Reads and gets.
    pub const READ: Self = Self { read: true, ..Self::NONE };
    /// Writes and puts.
    pub const WRITE: Self = Self { write: true, ..Self::NONE };
    /// Both.
    pub const READ_WRITE: Self = Self { read: true, ..Self::WRITE };
    /// Atomics as well.
    pub const ALL: Self = Self { atomic: true, ..Self::READ_WRITE };

    /// Whether all that is `wanted` is in it.
    #[must_use]
    pub const fn allows(self, wanted: Self) -> bool {
        (self.read || !wanted.read)
            && (self.write || !wanted.write)
            && (self.atomic || !wanted.atomic)
    }
}

/// The kinds of things a peer offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenKind {
    /// A file below an exported directory.
    File,
    /// A memory region.
    Region,
    /// A channel, to send to.
    Channel,
}

/// How a device wants its direct I/O aligned, in bytes (STATX_DIOALIGN); powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    /// Of file offsets and lengths.
    pub offset: u32,
    /// Of memory addresses. Segments start on a page, so offsets in them decide.
    pub memory: u32,
}
