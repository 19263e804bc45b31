//! Answers of calls, byte for byte.

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::NoCall;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum FileKind {
    /// Something else: a device, a FIFO, a socket.
    #[default]
    Other = 0,
    /// A file with bytes.
    File = 1,
    /// A directory, which has names.
    Directory = 2,
    /// A symbolic link, not followed.
    Link = 3,
}

impl FileKind {
    fn from_u8(number: u8) -> Option<Self> {
        [Self::Other, Self::File, Self::Directory, Self::Link].get(usize::from(number)).copied()
    }
}

/// What is known of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stat {
    /// The kind of thing there.
    pub kind: FileKind,
    /// Permission bits, and those beside them.
    pub mode: u32,
    /// The user that owns it, by number of its own node.
    pub user: u32,
    /// The group that owns it.
    pub group: u32,
    /// How many names it has.
    pub links: u32,
    /// Length of the file in bytes.
    pub length: u64,
    /// Room that it takes on the device, in bytes.
    pub allocated: u64,
    /// Number on its file system, the same for all its names.
    pub inode: u64,
    /// Time of the last change of its bytes: seconds since 1970, and nanoseconds of the second.
    pub modified: (i64, u32),
    /// Time of the last change of anything in this answer.
    pub changed: (i64, u32),
    /// What offsets and lengths of direct I/O must be multiples of, in bytes; 0: there is none.
    pub direct_offset: u32,
    /// What addresses of direct I/O must be multiples of, in bytes; 0: there is none.
    pub direct_memory: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct StatBytes {
    kind: u8,
    reserved: [u8; 3],
    mode: U32,
    user: U32,
    group: U32,
    length: U64,
    allocated: U64,
    inode: U64,
    modified: I64,
    changed: I64,
    modified_nanos: U32,
    changed_nanos: U32,
    direct_offset: U32,
    direct_memory: U32,
    links: U32,
    reserved_tail: U32,
}

impl Stat {
    /// Bytes of the answer.
    pub const BYTES: usize = size_of::<StatBytes>();

    /// Writes the answer's bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(StatBytes {
            kind: self.kind as u8,
            reserved: [0; 3],
            mode: self.mode.into(),
            user: self.user.into(),
            group: self.group.into(),
            length: self.length.into(),
            allocated: self.allocated.into(),
            inode: self.inode.into(),
            modified: self.modified.0.into(),
            changed: self.changed.0.into(),
            modified_nanos: self.modified.1.into(),
            changed_nanos: self.changed.1.into(),
            direct_offset: self.direct_offset.into(),
            direct_memory: self.direct_memory.into(),
            links: self.links.into(),
            reserved_tail: 0.into(),
        })
    }

    /// Reads the answer.
    ///
    /// # Errors
    /// It is not as long, or of no kind.
    pub fn parse(bytes: &[u8]) -> Result<Self, NoCall> {
        let it = StatBytes::read_from_bytes(bytes).map_err(|_| NoCall)?;
        Ok(Self {
            kind: FileKind::from_u8(it.kind).ok_or(NoCall)?,
            mode: it.mode.get(),
            user: it.user.get(),
            group: it.group.get(),
            links: it.links.get(),
            length: it.length.get(),
            allocated: it.allocated.get(),
            inode: it.inode.get(),
            modified: (it.modified.get(), it.modified_nanos.get()),
            changed: (it.changed.get(), it.changed_nanos.get()),
            direct_offset: it.direct_offset.get(),
            direct_memory: it.direct_memory.get(),
        })
    }
}

/// Room on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// All of it, in bytes.
    pub total: u64,
    /// What nothing takes, in bytes.
    pub free: u64,
    /// What of it the daemon may take, in bytes.
    pub available: u64,
    /// How many files there can be; 0: there is no such bound.
    pub files: u64,
    /// How many more there can be.
    pub files_free: u64,
}

impl Space {
    /// Bytes of the answer.
    pub const BYTES: usize = 40;

    /// Writes the answer's bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let fields = [self.total, self.free, self.available, self.files, self.files_free];
        zerocopy::transmute!(fields.map(U64::new))
    }

    /// Reads the answer.
    ///
    /// # Errors
    /// It is not as long.
    pub fn parse(bytes: &[u8]) -> Result<Self, NoCall> {
        let fields = <[U64; 5]>::read_from_bytes(bytes).map_err(|_| NoCall)?;
        let [total, free, available, files, files_free] = fields.map(U64::get);
        Ok(Self { total, free, available, files, files_free })
    }
}

/// The BLAKE3 digest of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

/// How much of a range was copied, in bytes: less than its length where the file with the bytes
/// ends before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Copied(pub u64);

impl Copied {
    /// Bytes of the answer.
    pub const BYTES: usize = 8;

    /// Writes the answer's bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0.to_le_bytes()
    }

    /// Reads the answer.
    ///
    /// # Errors
    /// It is not as long.
    pub fn parse(bytes: &[u8]) -> Result<Self, NoCall> {
        bytes.try_into().map(|bytes| Self(u64::from_le_bytes(bytes))).map_err(|_| NoCall)
    }
}

/// What a range of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExtentKind {
    /// Bytes on the device.
    Data = 0,
    /// Nothing: it reads as zeros, and takes no room.
    Hole = 1,
    /// Room on the device that nothing was written to: it reads as zeros.
    Zero = 2,
}

/// A range of a file that is all of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The first byte's offset in the file.
    pub offset: u64,
    /// The number of its bytes.
    pub length: u64,
    /// The kind of all these bytes.
    pub kind: ExtentKind,
}

impl Extent {
    /// Bytes of one extent of an answer.
    pub const BYTES: usize = 24;

    /// Writes one extent of an answer.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        zerocopy::transmute!([self.offset, self.length, self.kind as u64].map(U64::new))
    }

    /// Reads one extent of an answer.
    ///
    /// # Errors
    /// It is not as long, or of no kind.
    pub fn parse(bytes: &[u8]) -> Result<Self, NoCall> {
        let fields = <[U64; 3]>::read_from_bytes(bytes).map_err(|_| NoCall)?;
        let [offset, length, kind] = fields.map(U64::get);
        let kind = match kind {
            0 => ExtentKind::Data,
            1 => ExtentKind::Hole,
            2 => ExtentKind::Zero,
            _ => return Err(NoCall),
        };
        Ok(Self { offset, length, kind })
    }
}

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name: bytes without a slash.
    pub name: &'a [u8],
    /// What it stands for.
    pub kind: FileKind,
    /// What is known of it, if that was asked for and it was still there.
    pub stat: Option<Stat>,
}

/// Names of a directory, as an answer has them: where to go on (8 bytes, [`Entries::END`] behind
/// the last name), then each name with its length (2 bytes), its kind, and whether its [`Stat`]
/// follows.
#[derive(Debug, Clone, Copy)]
pub struct Entries<'a> {
    next: u64,
    rest: &'a [u8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct EntryHead {
    length: U16,
    kind: u8,
    has_stat: u8,
}

impl<'a> Entries<'a> {
    /// Where a listing goes on that is at its end.
    pub const END: u64 = u64::MAX;

    /// Reads an answer.
    ///
    /// # Errors
    /// It is too short, or an entry is malformed.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, NoCall> {
        let (next, rest) = U64::read_from_prefix(bytes).map_err(|_| NoCall)?;
        let mut at = rest;
        while !at.is_empty() {
            at = Self::split(at).ok_or(NoCall)?.1;
        }
        Ok(Self { next: next.get(), rest })
    }

    /// The place to go on at; none behind the last name.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        (self.next != Self::END).then_some(self.next)
    }

    /// The names, as the directory has them: in no order.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let mut rest = self.rest;
        std::iter::from_fn(move || {
            let (entry, behind) = Self::split(rest)?;
            rest = behind;
            Some(entry)
        })
    }

    fn split(bytes: &'a [u8]) -> Option<(Entry<'a>, &'a [u8])> {
        let (head, rest) = EntryHead::read_from_prefix(bytes).ok()?;
        let (name, rest) = rest.split_at_checked(head.length.get().into())?;
        let kind = FileKind::from_u8(head.kind)?;
        let (stat, rest) = match head.has_stat {
            0 => (None, rest),
            1 => {
                let (stat, rest) = rest.split_at_checked(Stat::BYTES)?;
                (Some(Stat::parse(stat).ok()?), rest)
            }
            _ => return None,
        };
        Some((Entry { name, kind, stat }, rest))
    }
}

/// An answer with names that is being written.
#[derive(Debug)]
pub struct EntryWriter<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl<'a> EntryWriter<'a> {
    /// An answer without names yet. `None`: there is no room for one.
    #[must_use]
    pub fn new(bytes: &'a mut [u8]) -> Option<Self> {
        (bytes.len() >= 8).then_some(Self { bytes, length: 8 })
    }

    /// Adds a name. `false`: there is no room for it, and nothing was added.
    #[must_use]
    pub fn push(&mut self, entry: Entry<'_>) -> bool {
        let Ok(length) = u16::try_from(entry.name.len()) else { return false };
        let has_stat = entry.stat.is_some().into();
        let head = EntryHead { length: length.into(), kind: entry.kind as u8, has_stat };
        let stat = entry.stat.map(Stat::to_bytes);
        let parts = [head.as_bytes(), entry.name, stat.as_ref().map_or(&[], |it| &it[..])];
        let end = self.length + parts.iter().map(|part| part.len()).sum::<usize>();
        let Some(mut place) = self.bytes.get_mut(self.length..end) else { return false };
        for part in parts {
            let (front, behind) = place.split_at_mut(part.len());
            front.copy_from_slice(part);
            place = behind;
        }
        self.length = end;
        true
    }

    /// Whether a name was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 8
    }

    /// Ends the answer: where to go on, [`Entries::END`] if nowhere. Returns its length in bytes.
    #[must_use]
    pub fn finish(self, next: u64) -> usize {
        self.bytes[..8].copy_from_slice(&next.to_le_bytes());
        self.length
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STAT: Stat = Stat {
        kind: FileKind::File,
        mode: 0o640,
        user: 1,
        group: 2,
        links: 3,
        length: 4,
        allocated: 5,
        inode: 6,
        modified: (-7, 8),
        changed: (9, 10),
        direct_offset: 512,
        direct_memory: 4,
    };

    #[test]
    fn answers_mean_the_same_there_and_back() {
        assert_eq!(Stat::parse(&STAT.to_bytes()), Ok(STAT));
        let space = Space { total: 1, free: 2, available: 3, files: 4, files_free: 5 };
        assert_eq!(Space::parse(&space.to_bytes()), Ok(space));
        for kind in [ExtentKind::Data, ExtentKind::Hole, ExtentKind::Zero] {
            let extent = Extent { offset: 1, length: 2, kind };
            assert_eq!(Extent::parse(&extent.to_bytes()), Ok(extent));
        }
    }

    #[test]
    fn names_that_do_not_fit_are_left_for_the_next_answer() {
        let mut bytes = [0; 8 + 2 * (4 + 3) + Stat::BYTES];
        let mut writer = EntryWriter::new(&mut bytes).expect("room");
        let plain = Entry { name: b"abc", kind: FileKind::Directory, stat: None };
        let full = Entry { name: b"def", kind: FileKind::File, stat: Some(STAT) };
        assert!(writer.is_empty());
        assert!(writer.push(plain) && writer.push(full) && !writer.push(plain));
        let length = writer.finish(77);
        assert_eq!(length, bytes.len());
        let entries = Entries::parse(&bytes).expect("as written");
        assert_eq!(entries.next(), Some(77));
        assert_eq!(entries.iter().collect::<Vec<_>>(), [plain, full]);
        for cut in 1..length {
            let whole = [8, 8 + 7].contains(&cut);
            assert_eq!(Entries::parse(&bytes[..cut]).is_ok(), whole, "{cut} bytes");
        }
        assert!(EntryWriter::new(&mut [0; 7]).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            let _ = (Stat::parse(&bytes), Extent::parse(&bytes), Space::parse(&bytes));
            if let Ok(entries) = Entries::parse(&bytes) {
                let _ = entries.iter().count();
            }
        }
    }
}
