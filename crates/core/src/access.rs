//! What handles stand for, what they may be used for, and how devices want to be asked.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// What a handle may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Access {
    /// Whether the handle may serve reads and gets.
    pub read: bool,
    /// Whether the handle may serve writes and puts.
    pub write: bool,
    /// Whether the handle may serve atomic updates; only regions have these.
    pub atomic: bool,
    /// Whether names below it may be made, changed and removed; only directories have these.
    pub names: bool,
}

impl Access {
    /// No access of any kind.
    pub const NONE: Self = Self { read: false, write: false, atomic: false, names: false };
    /// Reads and gets alone.
    pub const READ: Self = Self { read: true, ..Self::NONE };
    /// Writes and puts alone.
    pub const WRITE: Self = Self { write: true, ..Self::NONE };
    /// Reads, writes, gets and puts, but no atomic updates.
    pub const READ_WRITE: Self = Self { read: true, ..Self::WRITE };
    /// Every kind of access that bytes have, atomic updates included.
    pub const ALL: Self = Self { atomic: true, ..Self::READ_WRITE };

    /// Whether these rights include every right that is `wanted`.
    #[must_use]
    pub const fn allows(self, wanted: Self) -> bool {
        (self.read || !wanted.read)
            && (self.write || !wanted.write)
            && (self.atomic || !wanted.atomic)
            && (self.names || !wanted.names)
    }
}

/// The kinds of things a peer offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenKind {
    /// A file below an exported directory.
    File,
    /// A memory region that a client of the peer exports.
    Region,
    /// A channel, to send to.
    Channel,
    /// An exported directory, or one below it.
    Directory,
}

/// How a device wants its direct I/O aligned, in bytes (STATX_DIOALIGN); powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alignment {
    /// What file offsets and lengths must be multiples of.
    pub offset: u32,
    /// What memory addresses must be multiples of. Segments start on a page, so the offset in a
    /// segment decides.
    pub memory: u32,
}
