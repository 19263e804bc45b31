//! Shared memory: a sealed memfd, mapped.
//!
//! The other side may write any byte of it at any time, so nobody gets a reference: bytes are
//! copied in and out through raw pointers, every access is checked against the length, and code
//! that wants to look at bytes looks at a private copy. The seals (SHRINK, GROW, SEAL) make the
//! length a fact for the mapping's life. Seals do not stop the punching of holes: on tmpfs a hole
//! reads as zeros and is filled again by the next touch, so only the client's own data suffer. On
//! hugetlb the touch could end in SIGBUS, and so such memory is refused.
//!
//! Memory that a client lends ([`crate::LentKind`]) may have no seals: its accesses go through the
//! kernel, which says if a page is gone.

use core::any::Any;
use core::mem::MaybeUninit;
use core::ptr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;

use crc_fast::{CrcAlgorithm, Digest};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};

#[cfg(not(loom))]
use crate::atomic::{AtomicU64, Ordering};
use crate::guard;
use crate::mapping::{HUGE_PAGE_BYTES, Mapping};
use crate::tenure::Tenure;

/// The longest segment: 1 TiB. A bound that keeps every sum of an offset and a length small, far
/// above what a machine has.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 40;

/// How much of a segment is made at a time. The kernel clears a huge page without letting anybody
/// else run, so it is one of them.
pub const PIECE_BYTES: usize = HUGE_PAGE_BYTES;

/// The shortest memory whose pages are to lie side by side if it has no huge page: a device takes
/// the pages of less in one request all the same.
const ADJACENT_BYTES_MIN: usize = 64 * 1024;

/// Bytes copied to a private place at a time for a checksum: small enough for the first cache.
const CHUNK_BYTES: usize = 8 * 1024;

/// Bytes of a cache line.
const CHUNK_ALIGN: usize = 64;

/// A private copy of at most [`CHUNK_BYTES`], with room to begin anywhere in a cache line.
#[repr(align(64))]
struct Chunk {
    _bytes: [u8; CHUNK_BYTES + CHUNK_ALIGN],
}

/// The length stays, which the seals demand as well.
const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// `f_type` of tmpfs, where memfds without hugetlb live.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// A piece of shared memory with a length that cannot change. When it is dropped, others that have
/// its memfd keep it; [`Segment::give_back`] takes it from them as well.
#[derive(Debug)]
pub struct Segment {
    map: Mapping,
    /// The memfd; private memory has none.
    fd: Option<OwnedFd>,
    /// The pages of the memfd were made here, and are charged to this process until they are given
    /// back.
    has_made: bool,
    /// Dropped with it, behind the mapping and the memfd.
    companion: Option<AssertUnwindSafe<Box<dyn Any + Send + Sync>>>,
    /// What others can do to it.
    tenure: Tenure,
}

/// An access that does not lie inside the segment, or in a part that somebody has cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{length} bytes at offset {offset} do not lie inside a segment of {segment_bytes} bytes, or \
     (of a word) not at a multiple of 8; a segment of 0 bytes is lent memory that was cut"
)]
pub struct OutOfRange {
    /// Where the access starts, bytes.
    pub offset: u64,
    /// Length of the segment in bytes.
    pub length: u64,
    /// The segment's length, bytes; 0 of one that somebody has cut.
    pub segment_bytes: u64,
}

/// Why a passed file descriptor is not taken as a segment.
#[derive(Debug, thiserror::Error)]
pub enum SegmentFault {
    /// Without the seals, the memory's length could change under the mapping.
    #[error("the memory is not sealed against shrinking and growing; pass a sealed memfd")]
    NotSealed,
    /// Not a file that has seals, or one on hugetlbfs.
    #[error("the file is not a memfd in ordinary pages; pass a sealed tmpfs memfd")]
    NotMemory,
    /// Zero or beyond [`SEGMENT_BYTES_MAX`].
    #[error("a segment of {0} bytes; it must be between 1 and {SEGMENT_BYTES_MAX}")]
    Length(u64),
    /// Not the length that was said with it.
    #[error("the memory has {is} bytes, and not {said}; lend it as it is")]
    OtherLength {
        /// Length that was said, in bytes.
        said: u64,
        /// Length of the file, in bytes.
        is: u64,
    },
    /// Opened for reading alone, or sealed against writing.
    #[error("the memory cannot be written; pass a descriptor opened for reading and writing")]
    ReadOnly,
    /// Copies that end where memory is gone are not allowed to this process.
    #[error(
        "memory without seals is copied by process_vm_readv, which this process may not use \
         ({0}); allow that call, or seal the memory"
    )]
    Unguarded(Errno),
    /// The kernel refused the mapping.
    #[error("mapping the segment failed: {0}; is the address space or the process limit used up?")]
    System(#[from] io::Error),
}

impl Segment {
    /// New memory of `length` bytes, zeroed, sealed, with all its pages there: huge ones where the
    /// kernel can.
    ///
    /// # Errors
    /// `InvalidInput` for a length of zero or beyond [`SEGMENT_BYTES_MAX`], else what the kernel
    /// says: usually that memory or file descriptors are short.
    pub fn create(length: u64) -> io::Result<Self> {
        Self::create_by(length, || ())
    }

    /// Creates a segment as [`Self::create`] does, in pieces of [`PIECE_BYTES`]. Each is made while
    /// the value that `turn` gave is held: a thread that makes a lot can let others go between
    /// them.
    ///
    /// # Errors
    /// As for [`Segment::create`].
    pub fn create_by<T>(length: u64, mut turn: impl FnMut() -> T) -> io::Result<Self> {
        let length = checked(length)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL;
        let fd = rustix::fs::memfd_create(c"piped", flags)
            // Kernels before 6.3 do not know NOEXEC_SEAL, which is only a second lock.
            .or_else(|_| rustix::fs::memfd_create(c"piped", flags - MemfdFlags::NOEXEC_SEAL))?;
        rustix::fs::ftruncate(&fd, length)?;
        let map = Mapping::shared(&fd, length)?;
        for piece in pieces(map.len()) {
            let _turn = turn();
            make(&fd, &map, piece)?;
        }
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok(Self { map, fd: Some(fd), has_made: true, companion: None, tenure: Tenure::Sole })
    }

    /// Has something dropped when this is gone, and not before: what counts the memory.
    pub fn keep(&mut self, companion: impl Any + Send + Sync) {
        // It is only dropped, so nothing broken of it is seen.
        self.companion = Some(AssertUnwindSafe(Box::new(companion)));
    }

    /// Gives the memory back in pieces, each after `turn`, also if others hold its memfd: they have
    /// zeros then, and what they touch again is charged to them. The value that `turn` gave is not
    /// held meanwhile: a process with the memfd can make the kernel wait there. Memory that others
    /// made is only unmapped.
    pub fn give_back<T>(self, mut turn: impl FnMut() -> T) {
        let Some(fd) = self.fd.as_ref().filter(|_| self.has_made) else { return };
        for piece in pieces(self.map.len()) {
            drop(turn());
            let (start, length) = (piece.start as u64, piece.len() as u64);
            // The seals allow it, and tmpfs can; if not, the pages live as long as the memfd does.
            let _ = retry_on_intr(|| rustix::fs::fallocate(fd, HOLE, start, length));
        }
    }

    /// New memory of `length` bytes that nobody else can map, zeroed, with all its pages there:
    /// huge ones where the system lets a program have them.
    ///
    /// # Errors
    /// As for [`Segment::create`].
    pub fn private(length: u64) -> io::Result<Self> {
        let map = Mapping::anonymous(checked(length)?)?;
        // Takes the pages here, where a lack of memory is an error and not a fault at first touch.
        match map.populate() {
            // Kernels before 5.14 do not know it: there the pages come at first touch.
            Err(Errno::INVAL) => {}
            populated => populated?,
        }
        Ok(Self::lasting(map, None, Tenure::Sole))
    }

    /// Map memory somebody passed to us.
    ///
    /// # Errors
    /// See [`SegmentFault`].
    pub fn from_fd(fd: OwnedFd) -> Result<Self, SegmentFault> {
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| SegmentFault::NotMemory)?;
        if !is_tmpfs(&fd)? {
            return Err(SegmentFault::NotMemory);
        }
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(SegmentFault::NotSealed);
        }
        // After the seals were seen, so that the length is a fact.
        let size = rustix::fs::fstat(&fd).map_err(io::Error::from)?.st_size;
        let length = u64::try_from(size).unwrap_or(0);
        if !(1..=SEGMENT_BYTES_MAX).contains(&length) {
            return Err(SegmentFault::Length(length));
        }
        let map = Mapping::shared(&fd, length)?;
        let _ = map.populate();
        Ok(Self::lasting(map, Some(fd), Tenure::Sole))
    }

    /// Memory whose pages others made.
    pub(crate) fn lasting(map: Mapping, fd: Option<OwnedFd>, tenure: Tenure) -> Self {
        Self { map, fd, has_made: false, companion: None, tenure }
    }

    /// The memfd, for passing on.
    ///
    /// # Panics
    /// If the memory is [`Segment::private`] or lent, which is never passed on.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("private memory is not passed on").as_fd()
    }

    /// Length of the segment in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Never true: there are no empty segments.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the segment is mapped, for handing to the kernel. Valid for [`Self::len`] bytes as
    /// long as the segment lives; the bytes behind it may change at any time.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr()
    }

    /// Copy bytes out of the segment.
    ///
    /// # Errors
    /// The range is not inside the segment; nothing was copied.
    pub fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.range(offset, to.len() as u64)?;
        if self.is_loose() {
            let loaded = guard::copy(from, to.as_mut_ptr(), to.len());
            return loaded.or_else(|_| self.tear(offset, to.len() as u64));
        }
        // SAFETY: `range` checked that `to.len()` bytes from `from` lie inside the mapping, which
        // lives as long as `self`; the seals checked or set at construction keep them backed. `to`
        // is a private `&mut`, so the two do not overlap. The other side may write meanwhile; the
        // bytes are plain data and are only looked at in the copy.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copy bytes into the segment.
    ///
    /// # Errors
    /// The range is not inside the segment; nothing was copied.
    pub fn store(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        let to = self.range(offset, from.len() as u64)?;
        if self.is_loose() {
            let stored = guard::copy(from.as_ptr(), to, from.len());
            return stored.or_else(|_| self.tear(offset, from.len() as u64));
        }
        // SAFETY: as in `load`, with the directions exchanged: `range` checked `from.len()` bytes
        // from `to`; no reference into the mapping exists anywhere (`view` makes some, of segments
        // that it took from everybody else, and of ranges that it does not write through here).
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// Copy `length` bytes from here to `other`, which may be the same segment, also overlapping.
    ///
    /// # Errors
    /// One of the ranges is not inside its segment; nothing was copied.
    pub fn copy(
        &self,
        offset: u64,
        other: &Self,
        other_offset: u64,
        length: u64,
    ) -> Result<(), OutOfRange> {
        let from = self.range(offset, length)?;
        let to = other.range(other_offset, length)?;
        if self.is_loose() || other.is_loose() {
            let copied = guard::copy(from, to, length as usize);
            // Which of the two it was is not known; the other one is asked when it is used.
            return copied.or_else(|_| match guard::is_there(from, length as usize) {
                false => self.tear(offset, length),
                true => other.tear(other_offset, length),
            });
        }
        // SAFETY: `range` checked `length` bytes on both sides, and that they fit a `usize` follows
        // from the mappings' lengths. `ptr::copy` allows overlap.
        unsafe { ptr::copy(from, to, length as usize) };
        Ok(())
    }

    /// Add to the 8 bytes at `offset`, wrapping around, as one atomic step. Returns what they were.
    ///
    /// # Errors
    /// They do not lie inside the segment at a multiple of 8; nothing was changed.
    #[cfg(not(loom))]
    pub fn fetch_add(&self, offset: u64, addend: u64) -> Result<u64, OutOfRange> {
        // What others do before and after is ordered by it, as they expect of an atomic.
        self.with_word(offset, |word| word.fetch_add(addend, Ordering::SeqCst))
    }

    /// Replace the 8 bytes at `offset` if they are what is expected, at once with everybody else;
    /// what they were.
    ///
    /// # Errors
    /// They do not lie inside the segment at a multiple of 8; nothing was changed.
    #[cfg(not(loom))]
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, OutOfRange> {
        self.with_word(offset, |word| {
            match word.compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(was) | Err(was) => was,
            }
        })
    }

    #[cfg(not(loom))]
    fn with_word<T>(
        &self,
        offset: u64,
        act: impl FnOnce(&AtomicU64) -> T,
    ) -> Result<T, OutOfRange> {
        let length = size_of::<AtomicU64>() as u64;
        let at = self.range(offset, length)?.cast::<AtomicU64>();
        // No call of the kernel changes a word of 8 bytes atomically and ends where it is gone.
        if !at.is_aligned() || self.is_loose() {
            return Err(OutOfRange { offset, length, segment_bytes: self.len() });
        }
        // SAFETY: `range` checked that 8 bytes from `at` lie inside the mapping, which lives as
        // long as `self`, and they are aligned. An atomic word may be changed by others, also in
        // other processes, while it is looked at; `load`, `store` and `copy` of the same bytes go
        // through no reference.
        Ok(act(unsafe { &*at }))
    }

    /// CRC32C (the iSCSI polynomial) of a range, each byte read once into a private copy.
    ///
    /// # Errors
    /// The range is not inside the segment.
    pub fn crc32c(&self, offset: u64, length: u64) -> Result<u32, OutOfRange> {
        let from = self.range(offset, length)?;
        // Inside the mapping, so it fits a `usize`.
        let length = length as usize;
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        let mut chunk = MaybeUninit::<Chunk>::uninit();
        let private = chunk.as_mut_ptr().cast::<u8>();
        // Copy and original at the same place of a cache line: a string copy to a target 1 to 15
        // bytes behind its source, modulo a page, is thirty times slower on AMD Zen 3 and 4.
        let shift = from.addr() % CHUNK_ALIGN;
        let mut done = 0;
        while done < length {
            let part = (length - done).min(CHUNK_BYTES);
            if self.is_loose()
                && guard::copy(from.wrapping_add(done), private.wrapping_add(shift), part).is_err()
            {
                return self.tear(offset, length as u64).map(|()| 0);
            }
            // SAFETY: `range` checked the source, which others may write meanwhile, as in `load`:
            // then the copy is of some mixture, and the checksum of that. `shift + part` bytes fit
            // a `Chunk`, which is nobody else's. The copy initializes exactly the bytes of the
            // slice, which ends before the next copy begins.
            let copied = unsafe {
                if !self.is_loose() {
                    ptr::copy_nonoverlapping(from.add(done), private.add(shift), part);
                }
                core::slice::from_raw_parts(private.add(shift), part)
            };
            digest.update(copied);
            done += part;
        }
        // A 32-bit checksum comes in the low half.
        Ok(digest.finalize() as u32)
    }

    /// Whether nobody else writes the memory unasked: a process may then look at it in place.
    pub(crate) fn is_sole(&self) -> bool {
        matches!(self.tenure, Tenure::Sole)
    }

    /// Whether others can take pages of the memory away, so that the CPU must not touch it and the
    /// kernel not pin it.
    #[must_use]
    pub fn is_loose(&self) -> bool {
        matches!(self.tenure, Tenure::Loose { .. })
    }

    /// Whether an access has found that some of the memory is gone.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.tenure.is_torn()
    }

    /// An access has found that some of the memory is gone.
    fn tear(&self, offset: u64, length: u64) -> Result<(), OutOfRange> {
        self.tenure.tear();
        Err(OutOfRange { offset, length, segment_bytes: 0 })
    }

    /// The mapping of the memory.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.map
    }

    /// The whole words of the segment, for the rings. Stays inside the crate.
    #[cfg(not(loom))]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        assert!(!self.is_loose(), "rings lie in memory of the daemon");
        let start = self.map.as_ptr().cast::<AtomicU64>();
        // SAFETY: mappings start at a page, so the pointer is aligned; `len / 8` words lie inside
        // the mapping, which lives as long as `self` and stays backed by the seals. Atomics may be
        // shared with writers, and this process makes no other kind of reference into the mapping.
        unsafe { core::slice::from_raw_parts(start, self.map.len() / 8) }
    }

    /// Where a range starts, if all of it is inside.
    fn range(&self, offset: u64, length: u64) -> Result<*mut u8, OutOfRange> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.len());
        if !inside {
            return Err(OutOfRange { offset, length, segment_bytes: self.len() });
        }
        // SAFETY: `offset <= len`, just checked, so the sum stays inside (or one past) the mapping.
        Ok(unsafe { self.map.as_ptr().add(offset as usize) })
    }
}

/// Whether a file lies on a tmpfs. Of a file that has seals the answer does not take long.
pub(crate) fn is_tmpfs(fd: impl AsFd) -> io::Result<bool> {
    #[allow(clippy::unnecessary_cast, reason = "the field's type differs between platforms")]
    let kind = rustix::fs::fstatfs(fd)?.f_type as i64;
    Ok(kind == TMPFS_MAGIC)
}

pub(crate) fn pieces(length: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length).step_by(PIECE_BYTES).map(move |start| start..length.min(start + PIECE_BYTES))
}

/// Makes the last piece of a memfd, which is shorter than a huge page, of small pages that lie side
/// by side: out of a huge page, of which the file then loses the rest.
fn make_adjacent(fd: &OwnedFd, piece: Range<usize>) -> io::Result<()> {
    let (start, end) = (piece.start, piece.start + HUGE_PAGE_BYTES);
    rustix::fs::ftruncate(fd, end as u64)?;
    // Without a huge page to spare the small ones come from anywhere.
    let _ = Mapping::shared(fd, end as u64).and_then(|map| {
        rustix::fs::fallocate(fd, FallocateFlags::empty(), start as u64, 1)?;
        map.collapse_part(start..end)
    });
    Ok(rustix::fs::ftruncate(fd, piece.end as u64)?)
}

/// Makes the pages of a piece of a memfd.
fn make(fd: &OwnedFd, map: &Mapping, piece: Range<usize>) -> io::Result<()> {
    let (start, length) = (piece.start as u64, piece.len() as u64);
    if piece.len() >= HUGE_PAGE_BYTES {
        // A huge page is made where a small one is; from one in each it takes a seventh of the time
        // that it takes from all of them.
        for start in piece.clone().step_by(HUGE_PAGE_BYTES) {
            rustix::fs::fallocate(fd, FallocateFlags::empty(), start as u64, 1)?;
        }
        // What cannot be in huge pages gets small ones below.
        let _ = map.collapse_part(piece.clone());
    } else if piece.len() >= ADJACENT_BYTES_MIN {
        make_adjacent(fd, piece.clone())?;
    }
    // Takes the pages here, where a lack of memory is an error and not a fault at first touch.
    rustix::fs::fallocate(fd, FallocateFlags::empty(), start, length)?;
    // The pages exist; without their table entries the first touch is slower, no more.
    let _ = map.populate_part(piece);
    Ok(())
}

fn checked(length: u64) -> io::Result<u64> {
    if (1..=SEGMENT_BYTES_MAX).contains(&length) {
        return Ok(length);
    }
    let fault = SegmentFault::Length(length);
    Err(io::Error::new(io::ErrorKind::InvalidInput, fault.to_string()))
}
