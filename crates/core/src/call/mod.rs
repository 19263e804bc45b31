//! Calls: what is asked of a file or a directory of an export beside moving its bytes.
//!
//! A call is a few bytes of arguments and perhaps paths, and its answer a few bytes more. Both have
//! one encoding here, which clients put into their buffers, nodes send each other, and the driver
//! takes apart where the call is carried out. So what stands between them (rings, engine, frames)
//! moves calls without knowing them: one call more is a variant here and a file in the daemon.
//!
//! Everything is little-endian. A call is [`HEAD_BYTES`] bytes of fields, then its paths. Each call
//! has exactly one encoding: fields that it does not have are 0.

mod answer;

pub use answer::{
    Copied, Digest, Entries, Entry, EntryWriter, Extent, ExtentKind, FileKind, Space, Stat,
};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the fields before the paths.
pub const HEAD_BYTES: usize = 24;

/// The longest path of a call, in bytes.
pub const PATH_BYTES_MAX: usize = 1024;

/// The longest call, in bytes: two of the longest paths.
pub const CALL_BYTES_MAX: usize = HEAD_BYTES + 2 * PATH_BYTES_MAX;

/// The most bytes of an answer. Longer ones (directories, extents) are asked for in parts.
pub const ANSWER_BYTES_MAX: u64 = 256 * 1024;

/// The longest range that one [`Call::Digest`] reads, in bytes: about a second of a CPU.
pub const DIGEST_BYTES_MAX: u64 = 1 << 30;

/// The longest range that one [`Call::Copy`] copies, in bytes.
pub const COPY_BYTES_MAX: u64 = 1 << 30;

/// What is asked. Paths are those below the directory that the call is made of; an empty path is
/// the file or directory itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call<'a> {
    /// What is known of a file or directory. Answer: [`Stat`].
    Stat {
        /// The file or directory; links are not followed at its end.
        path: &'a [u8],
    },
    /// Names in a directory, from a place on. Answer: [`Entries`], as many as there is room for.
    List {
        /// The directory with the names.
        path: &'a [u8],
        /// Where to go on: 0 at first, then what the last answer said.
        cookie: u64,
        /// Each name comes with its [`Stat`].
        stats: bool,
    },
    /// Room on the file system. Answer: [`Space`].
    Space,
    /// Makes a directory, and those on the way.
    MakeDirectory {
        /// The path of the new directory.
        path: &'a [u8],
        /// Permission bits, of which the daemon's umask takes some away.
        mode: u32,
        /// Directories on the way are made too, and one that is there is no error.
        parents: bool,
    },
    /// Removes one name of something.
    Remove {
        /// The file, or the empty directory.
        path: &'a [u8],
        /// Which of the two it must be.
        kind: Removed,
    },
    /// Gives something another name, in one step that others see whole or not at all.
    Rename {
        /// The name that it has.
        from: &'a [u8],
        /// The name that it gets.
        to: &'a [u8],
        /// What becomes of something that has that name.
        over: Over,
        /// Ends when the change of names is on stable storage.
        durable: bool,
    },
    /// Gives a file one more name, which nothing else has.
    Link {
        /// A name that the file has.
        from: &'a [u8],
        /// The name that is added.
        to: &'a [u8],
    },
    /// Cuts a file off at a length, or makes it longer by zeros that take no room.
    Truncate {
        /// The new length in bytes.
        length: u64,
    },
    /// Makes sure that a range has room on the device.
    Allocate {
        /// Where the range begins.
        range: Range,
        /// The length of the file stays what it is.
        keep_length: bool,
    },
    /// Makes a range zeros; the file stays as long as it is, or becomes as long as the range needs.
    Zero {
        /// The bytes that become zeros.
        range: Range,
        /// Their room on the device is given up if that is faster or as fast.
        release: bool,
    },
    /// Gives up a range's room on the device; its bytes are zeros then. The length stays.
    Trim {
        /// The bytes that nobody needs.
        range: Range,
    },
    /// Where a file has data and where holes. Answer: [`Extent`]s in order, without gaps, as many
    /// as there is room for.
    Extents {
        /// The range that is asked for.
        range: Range,
    },
    /// Brings a range of a file, or the names in a directory, to stable storage.
    Sync {
        /// The bytes; the kernel may bring more. Length 0: to the end of the file.
        range: Range,
        /// Without what is not needed to read the data again, such as the time of the change.
        data_only: bool,
    },
    /// Tells the page cache what will be done with a range.
    Advise {
        /// The range that it is about. Length 0: to the end of the file.
        range: Range,
        /// What will be done.
        advice: Advice,
    },
    /// The BLAKE3 digest of a range that the file has. Answer: [`Digest`].
    Digest {
        /// The bytes: at most [`DIGEST_BYTES_MAX`].
        range: Range,
    },
    /// Copies a range of one file to the same range of another, without moving its bytes to whoever
    /// asks: by sharing their room where the file system can. Holes stay holes. Answer: [`Copied`].
    Copy {
        /// The file with the bytes; a link is not followed.
        from: &'a [u8],
        /// The file that gets them, which is there; a link is not followed.
        to: &'a [u8],
        /// The bytes: at most [`COPY_BYTES_MAX`], of which those are copied that the file has.
        range: Range,
        /// Ends when they are on stable storage.
        durable: bool,
    },
    /// Locks a range of a file against other handles, or gives the lock up. Programs on that node
    /// that lock with `fcntl` see it, and nobody else is held back: it is advice. The lock ends
    /// with the handle. Ends with `Locked` if another has the range.
    Lock {
        /// The bytes, whether the file has them or not. Length 0: all behind the offset.
        range: Range,
        /// Which lock the range has from then on.
        lock: Lock,
    },
}

/// A range of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    /// The first byte's offset in the file.
    pub offset: u64,
    /// The number of its bytes.
    pub length: u64,
}

impl Range {
    /// The byte behind the last one; `None` if a file cannot be so long.
    #[must_use]
    pub fn end(self) -> Option<u64> {
        self.offset.checked_add(self.length).filter(|&end| end <= i64::MAX as u64)
    }
}

/// What a name that is removed must stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Removed {
    /// Anything but a directory.
    #[default]
    File = 0,
    /// A directory, which is empty.
    Directory = 1,
    /// A file or a directory.
    Any = 2,
}

/// What becomes of something that has the new name of a [`Call::Rename`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Over {
    /// What was there loses its name: a file, or an empty directory for a directory.
    #[default]
    Replace = 0,
    /// The call fails, and nothing changes.
    Keep = 1,
    /// What was there gets the old name.
    Exchange = 2,
}

/// What the page cache is told of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Advice {
    /// Nothing in particular will be done.
    #[default]
    Normal = 0,
    /// The range will be read soon.
    WillNeed = 1,
    /// The range will not be needed soon; what of it is on the device leaves the cache.
    DontNeed = 2,
}

/// A lock that a range of a file can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Lock {
    /// The range is not locked by this handle.
    #[default]
    None = 0,
    /// Others can lock the range so too, and not alone. Needs a handle that may read.
    Shared = 1,
    /// No other can lock the range. Needs a handle that may write.
    Exclusive = 2,
}

/// What becomes of the locks of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locking {
    /// The handle has one, or may have.
    Some,
    /// The handle has none, for it gave up all.
    None,
    /// The handle has one less, or as many as before.
    Fewer,
}

/// Bytes that are no call: too short, of an unknown number, or with a field that it cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are no call that this version knows")]
pub struct NoCall;

/// The fields of every call, before its paths.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    number: u8,
    flags: u8,
    /// Bytes of the first path; the rest is the second one.
    first: U16,
    mode: U32,
    offset: U64,
    length: U64,
}

const _: () = assert!(size_of::<Head>() == HEAD_BYTES);

impl<'a> Call<'a> {
    /// Whether it changes names, so that it must not be done twice: a second removal fails, or
    /// removes what has come since. All others may be repeated.
    #[must_use]
    pub const fn is_once(&self) -> bool {
        matches!(
            self,
            Self::MakeDirectory { parents: false, .. }
                | Self::Remove { .. }
                | Self::Rename { .. }
                | Self::Link { .. }
        )
    }

    /// Whether it changes the file's bytes, its length or its room, and needs a handle that may
    /// write.
    #[must_use]
    pub const fn writes(&self) -> bool {
        matches!(
            self,
            Self::Truncate { .. }
                | Self::Allocate { .. }
                | Self::Zero { .. }
                | Self::Trim { .. }
                | Self::Copy { .. }
        )
    }

    /// What becomes of the locks of its handle, if that is what it is about.
    #[must_use]
    pub const fn locking(&self) -> Option<Locking> {
        match *self {
            Self::Lock { range: Range { offset: 0, length: 0 }, lock: Lock::None } => {
                Some(Locking::None)
            }
            Self::Lock { lock: Lock::None, .. } => Some(Locking::Fewer),
            Self::Lock { .. } => Some(Locking::Some),
            _ => None,
        }
    }

    /// Whether it changes names below a directory, and needs the right to do so.
    #[must_use]
    pub const fn changes_names(&self) -> bool {
        self.is_once() || matches!(self, Self::MakeDirectory { .. })
    }

    /// Whether it is about what a file holds, or what a directory has, and needs a handle that may
    /// read. What is known of the file or directory itself is for every handle.
    #[must_use]
    pub const fn reads(&self) -> bool {
        match self {
            Self::Digest { .. } | Self::Extents { .. } | Self::Advise { .. } => true,
            Self::List { .. } | Self::Copy { .. } => true,
            Self::Stat { path } => !path.is_empty(),
            _ => false,
        }
    }

    /// The least room that an answer needs, in bytes.
    #[must_use]
    pub const fn answer_bytes_min(&self) -> u64 {
        match self {
            Self::List { .. } => 8,
            Self::Extents { .. } => Extent::BYTES as u64,
            _ => self.answer_bytes_max(),
        }
    }

    /// The most bytes of its answer.
    #[must_use]
    pub const fn answer_bytes_max(&self) -> u64 {
        match self {
            Self::Stat { .. } => Stat::BYTES as u64,
            Self::Space => Space::BYTES as u64,
            Self::Digest { .. } => size_of::<Digest>() as u64,
            Self::Copy { .. } => Copied::BYTES as u64,
            Self::List { .. } | Self::Extents { .. } => ANSWER_BYTES_MAX,
            _ => 0,
        }
    }

    /// Writes the call, and returns its length in bytes.
    ///
    /// # Errors
    /// A path is too long, or the buffer is too small for the call.
    pub fn encode(&self, into: &mut [u8]) -> Result<usize, NoCall> {
        let (head, paths) = self.parts();
        let [first, second] = paths.map(<[u8]>::len);
        if first.max(second) > PATH_BYTES_MAX {
            return Err(NoCall);
        }
        let head = Head { first: U16::new(first as u16), ..head };
        let length = HEAD_BYTES + first + second;
        let into = into.get_mut(..length).ok_or(NoCall)?;
        into[..HEAD_BYTES].copy_from_slice(head.as_bytes());
        into[HEAD_BYTES..HEAD_BYTES + first].copy_from_slice(paths[0]);
        into[HEAD_BYTES + first..].copy_from_slice(paths[1]);
        Ok(length)
    }

    /// Reads a call. Its paths are not looked at: where they lead is known where they are walked.
    ///
    /// # Errors
    /// The bytes are no call, or not written as [`Self::encode`] writes it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, NoCall> {
        let (head, paths) = Head::read_from_prefix(bytes).map_err(|_| NoCall)?;
        let (first, second) = paths.split_at_checked(head.first.get().into()).ok_or(NoCall)?;
        if first.len().max(second.len()) > PATH_BYTES_MAX {
            return Err(NoCall);
        }
        let call = Self::of(head, first, second).ok_or(NoCall)?;
        let (again, paths) = call.parts();
        let again = Head { first: head.first, ..again };
        let same = again.as_bytes() == head.as_bytes() && paths == [first, second];
        same.then_some(call).ok_or(NoCall)
    }

    fn parts(&self) -> (Head, [&'a [u8]; 2]) {
        let none: [&[u8]; 2] = [&[], &[]];
        let head = |number, flags| Head { number, flags, ..Head::default() };
        let ranged = |number, flags: u8, range: Range| {
            let (offset, length) = (U64::new(range.offset), U64::new(range.length));
            (Head { offset, length, ..head(number, flags) }, none)
        };
        match *self {
            Self::Stat { path } => (head(1, 0), [path, &[]]),
            Self::List { path, cookie, stats } => {
                (Head { offset: U64::new(cookie), ..head(2, stats.into()) }, [path, &[]])
            }
            Self::Space => (head(3, 0), none),
            Self::MakeDirectory { path, mode, parents } => {
                (Head { mode: U32::new(mode), ..head(4, parents.into()) }, [path, &[]])
            }
            Self::Remove { path, kind } => (head(5, kind as u8), [path, &[]]),
            Self::Rename { from, to, over, durable } => {
                (head(6, over as u8 | u8::from(durable) << 7), [from, to])
            }
            Self::Link { from, to } => (head(7, 0), [from, to]),
            Self::Truncate { length } => ranged(8, 0, Range { offset: 0, length }),
            Self::Allocate { range, keep_length } => ranged(9, keep_length.into(), range),
            Self::Zero { range, release } => ranged(10, release.into(), range),
            Self::Trim { range } => ranged(11, 0, range),
            Self::Extents { range } => ranged(12, 0, range),
            Self::Sync { range, data_only } => ranged(13, data_only.into(), range),
            Self::Advise { range, advice } => ranged(14, advice as u8, range),
            Self::Digest { range } => ranged(15, 0, range),
            Self::Copy { from, to, range, durable } => {
                (ranged(16, durable.into(), range).0, [from, to])
            }
            Self::Lock { range, lock } => ranged(17, lock as u8, range),
        }
    }

    /// The call of these fields. Fields that it does not have are not looked at.
    fn of(head: Head, first: &'a [u8], second: &'a [u8]) -> Option<Self> {
        let range = Range { offset: head.offset.get(), length: head.length.get() };
        let set = head.flags == 1;
        Some(match head.number {
            1 => Self::Stat { path: first },
            2 => Self::List { path: first, cookie: range.offset, stats: set },
            3 => Self::Space,
            4 => Self::MakeDirectory { path: first, mode: head.mode.get(), parents: set },
            5 => {
                let kind = [Removed::File, Removed::Directory, Removed::Any];
                Self::Remove { path: first, kind: *kind.get(usize::from(head.flags))? }
            }
            6 => {
                let over = [Over::Replace, Over::Keep, Over::Exchange];
                let over = *over.get(usize::from(head.flags & 0x7f))?;
                Self::Rename { from: first, to: second, over, durable: head.flags & 0x80 != 0 }
            }
            7 => Self::Link { from: first, to: second },
            8 => Self::Truncate { length: range.length },
            9 => Self::Allocate { range, keep_length: set },
            10 => Self::Zero { range, release: set },
            11 => Self::Trim { range },
            12 => Self::Extents { range },
            13 => Self::Sync { range, data_only: set },
            14 => {
                let advice = [Advice::Normal, Advice::WillNeed, Advice::DontNeed];
                Self::Advise { range, advice: *advice.get(usize::from(head.flags))? }
            }
            15 => Self::Digest { range },
            16 => Self::Copy { from: first, to: second, range, durable: set },
            17 => {
                let lock = [Lock::None, Lock::Shared, Lock::Exclusive];
                Self::Lock { range, lock: *lock.get(usize::from(head.flags))? }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RANGE: Range = Range { offset: 4096, length: 12_345 };

    /// One of each call, with a value in each field.
    fn calls() -> Vec<Call<'static>> {
        let (from, to) = (&b"a/b"[..], &b"c"[..]);
        let mut all = vec![
            Call::Stat { path: from },
            Call::Stat { path: b"" },
            Call::List { path: from, cookie: 7, stats: true },
            Call::Space,
            Call::MakeDirectory { path: from, mode: 0o750, parents: true },
            Call::Link { from, to },
            Call::Truncate { length: 99 },
            Call::Allocate { range: RANGE, keep_length: true },
            Call::Zero { range: RANGE, release: false },
            Call::Trim { range: RANGE },
            Call::Extents { range: RANGE },
            Call::Sync { range: RANGE, data_only: true },
            Call::Digest { range: RANGE },
            Call::Copy { from, to, range: RANGE, durable: true },
        ];
        for kind in [Removed::File, Removed::Directory, Removed::Any] {
            all.push(Call::Remove { path: from, kind });
        }
        for over in [Over::Replace, Over::Keep, Over::Exchange] {
            for durable in [false, true] {
                all.push(Call::Rename { from, to, over, durable });
            }
        }
        for advice in [Advice::Normal, Advice::WillNeed, Advice::DontNeed] {
            all.push(Call::Advise { range: RANGE, advice });
        }
        for lock in [Lock::None, Lock::Shared, Lock::Exclusive] {
            all.push(Call::Lock { range: RANGE, lock });
        }
        all
    }

    #[test]
    fn a_call_means_the_same_there_and_back() {
        let mut bytes = [0xff; CALL_BYTES_MAX];
        for call in calls() {
            let length = call.encode(&mut bytes).expect("room");
            assert_eq!(Call::parse(&bytes[..length]), Ok(call));
            assert_eq!(call.encode(&mut bytes[..length - 1]), Err(NoCall), "{call:?}");
        }
    }

    #[test]
    fn long_paths_fit_and_longer_ones_do_not() {
        let (path, longer) = ([b'x'; PATH_BYTES_MAX], [b'x'; PATH_BYTES_MAX + 1]);
        let mut bytes = [0; CALL_BYTES_MAX];
        let fits = Call::Link { from: &path, to: &path };
        let length = fits.encode(&mut bytes).expect("room");
        assert_eq!(Call::parse(&bytes[..length]), Ok(fits));
        for call in [Call::Stat { path: &longer }, Call::Link { from: &path, to: &longer }] {
            assert_eq!(call.encode(&mut bytes), Err(NoCall));
        }
    }

    #[test]
    fn names_are_for_those_that_may_read() {
        for call in calls() {
            let is_by_name =
                matches!(call, Call::List { .. } | Call::Stat { path: b"a/b" } | Call::Copy { .. });
            let is_of_bytes =
                matches!(call, Call::Digest { .. } | Call::Extents { .. } | Call::Advise { .. });
            assert_eq!(call.reads(), is_by_name || is_of_bytes, "{call:?}");
            assert!(!call.writes() || !call.changes_names(), "{call:?}");
        }
    }

    proptest! {
        /// What is read is what was written: no bytes are a call in two ways.
        #[test]
        fn each_call_has_one_encoding(at in 0..24_usize, value: u8, which in 0..32_usize) {
            let call = calls()[which % calls().len()];
            let mut bytes = [0; CALL_BYTES_MAX];
            let length = call.encode(&mut bytes).expect("room");
            bytes[at] = value;
            if let Ok(read) = Call::parse(&bytes[..length]) {
                let mut again = [0; CALL_BYTES_MAX];
                let written = read.encode(&mut again).expect("it was read");
                prop_assert_eq!(&again[..written], &bytes[..length]);
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes: Vec<u8>) {
            let _ = Call::parse(&bytes);
        }
    }
}
