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

/// Whether an open makes the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Creation {
    /// What is not there is not found.
    #[default]
    No,
    /// What is not there is made.
    Open(NewFile),
    /// A new one is made, and what is there already is an error.
    New(NewFile),
}

/// How a file is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NewFile {
    /// Permission bits, of which the daemon's umask takes some away.
    pub mode: u16,
    /// Whether directories on the way are made too.
    pub parents: bool,
}

impl NewFile {
    /// Permission bits that a file can be made with: no set-user-ID and the like.
    pub const MODES: u16 = 0o777;
    /// The daemon's user writes, its group reads; no directories are made.
    pub const PLAIN: Self = Self { mode: 0o640, parents: false };
}

impl Creation {
    /// What is not there is made as [`NewFile::PLAIN`] says.
    pub const OPEN: Self = Self::Open(NewFile::PLAIN);

    /// How the file is made, if it is.
    #[must_use]
    pub const fn made(self) -> Option<NewFile> {
        match self {
            Self::No => None,
            Self::Open(new) | Self::New(new) => Some(new),
        }
    }

    /// A number for the kind, the permission bits and whether directories are made, as messages
    /// have them.
    #[must_use]
    pub const fn parts(self) -> (u8, u16, bool) {
        match self {
            Self::No => (0, 0, false),
            Self::Open(NewFile { mode, parents }) => (1, mode, parents),
            Self::New(NewFile { mode, parents }) => (2, mode, parents),
        }
    }

    /// The inverse of [`Self::parts`]; `None` if it gives no such parts.
    #[must_use]
    pub const fn from_parts(kind: u8, mode: u16, parents: bool) -> Option<Self> {
        let new = NewFile { mode, parents };
        match kind {
            0 if mode == 0 && !parents => Some(Self::No),
            1 if mode & !NewFile::MODES == 0 => Some(Self::Open(new)),
            2 if mode & !NewFile::MODES == 0 => Some(Self::New(new)),
            _ => None,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_creation_is_its_parts() {
        let new = NewFile { mode: 0o600, parents: true };
        for creation in [Creation::No, Creation::OPEN, Creation::Open(new), Creation::New(new)] {
            let (kind, mode, parents) = creation.parts();
            assert_eq!(Creation::from_parts(kind, mode, parents), Some(creation));
        }
        for (kind, mode, parents) in
            [(0, 1, false), (0, 0, true), (1, 0o4755, false), (2, 0o1000, true), (3, 0, false)]
        {
            assert_eq!(Creation::from_parts(kind, mode, parents), None, "{kind} {mode:o}");
        }
    }
}
