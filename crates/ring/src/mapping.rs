//! Where memory is mapped: at addresses that let it lie in huge pages.
//!
//! A device takes a request as a list of physically contiguous pieces. In small pages 1 MiB is up
//! to 256 of them, in a huge page it is one; a virtio disk was seen at a third of its speed with
//! the former.

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use memmap2::{MmapOptions, MmapRaw};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// Size of a huge page on the processors that matter.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Since Linux 6.1. `libc` names it for glibc alone.
const MADV_COLLAPSE: libc::c_int = 25;

/// Readable and writable memory at a multiple of [`HUGE_PAGE_BYTES`], if it is at least as long as
/// one; otherwise at a page. Every byte of it is there as long as this is.
#[derive(Debug)]
pub(crate) struct Mapping {
    place: Place,
    length: usize,
}

/// Where the memory lies.
#[derive(Debug)]
enum Place {
    /// In addresses that nobody else is given, also before and behind the memory: an access that
    /// runs over its ends faults. Unmapped at the end, whatever lies there.
    Reserved {
        pages: MmapRaw,
        /// Where the memory starts in the mapped pages, in bytes.
        start: usize,
    },
    /// At addresses of the program, which stay mapped.
    Program(Address),
}

/// An address that the program vouched for.
#[derive(Debug, Clone, Copy)]
struct Address(*mut u8);

// SAFETY: an address belongs to no thread; what is done there is checked where it is done.
unsafe impl Send for Address {}
// SAFETY: as above; the address is only read.
unsafe impl Sync for Address {}

impl Mapping {
    /// Memory of this process alone.
    pub(crate) fn anonymous(length: u64) -> io::Result<Self> {
        let mapping = Self::fill(length, |at, length| {
            // SAFETY: see `fill`.
            unsafe { rustix::mm::mmap_anonymous(at, length, READ_WRITE, PRIVATE_HERE) }
        })?;
        if mapping.length >= HUGE_PAGE_BYTES {
            // Refused where they are switched off: small pages then.
            let _ = mapping.advise(Advice::LinuxHugepage, 0..mapping.length);
        }
        Ok(mapping)
    }

    /// The first `length` bytes of a file, shared with all that map it.
    pub(crate) fn shared(file: impl AsFd, length: u64) -> io::Result<Self> {
        Self::fill(length, |at, length| {
            // SAFETY: see `fill`.
            unsafe { rustix::mm::mmap(at, length, READ_WRITE, SHARED_HERE, &file, 0) }
        })
    }

    /// Reserves addresses and has `map` put `length` bytes of memory there. It may, for they are
    /// reserved for that and nobody has a pointer to them yet.
    fn fill(
        length: u64,
        map: impl FnOnce(*mut c_void, usize) -> rustix::io::Result<*mut c_void>,
    ) -> io::Result<Self> {
        let mapping = Self::reserve(length)?;
        if let Err(error) = map(mapping.as_ptr().cast(), mapping.length) {
            // Some kernels take away what was there before they find out that they cannot. Somebody
            // else may have been given those addresses by now, so they are not given back.
            std::mem::forget(mapping);
            return Err(error.into());
        }
        Ok(mapping)
    }

    /// Addresses for `length` bytes. There is no memory yet.
    fn reserve(length: u64) -> io::Result<Self> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        // Room to begin at a huge page.
        let slack = if length >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { 0 };
        let bytes = length.checked_add(slack).ok_or(Errno::OVERFLOW)?;
        let map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?;
        let reserved = MmapRaw::from(map);
        // SAFETY: nobody has a pointer there yet.
        unsafe {
            rustix::mm::mprotect(reserved.as_mut_ptr().cast(), bytes, MprotectFlags::empty())?;
        }
        let start = match slack {
            0 => 0,
            _ => reserved.as_ptr().addr().wrapping_neg() % HUGE_PAGE_BYTES,
        };
        Ok(Self { place: Place::Reserved { pages: reserved, start }, length })
    }

    /// Memory of the program, which stays mapped when this is dropped.
    ///
    /// # Safety
    /// The memory is there, readable and writable, as long as this is.
    pub(crate) unsafe fn of_program(start: *mut u8, length: usize) -> Self {
        Self { place: Place::Program(Address(start)), length }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        match &self.place {
            Place::Reserved { pages, start } => pages.as_mut_ptr().wrapping_add(*start),
            Place::Program(start) => start.0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Fill the page table now rather than at first touch.
    pub(crate) fn populate(&self) -> Result<(), Errno> {
        self.advise(Advice::LinuxPopulateWrite, 0..self.length)
    }

    /// Populates a part as [`Self::populate`] does all; the part is inside.
    pub(crate) fn populate_part(&self, part: Range<usize>) -> Result<(), Errno> {
        self.advise(Advice::LinuxPopulateWrite, part)
    }

    /// One of the advices above and below.
    fn advise(&self, advice: Advice, part: Range<usize>) -> Result<(), Errno> {
        assert!(part.start <= part.end && part.end <= self.length, "a part of the mapping");
        let start = self.as_ptr().wrapping_add(part.start);
        // SAFETY: none changes a byte of a shared mapping, and those used on private ones do not
        // there either; the part is inside the mapping, which is ours.
        unsafe { rustix::mm::madvise(start.cast(), part.len(), advice) }
    }

    /// Whether all pages of a part, which begins at a page, are in memory.
    pub(crate) fn is_resident(&self, part: Range<usize>) -> bool {
        const PAGE_BYTES: usize = 4096;
        assert!(part.start <= part.end && part.end <= self.length, "a part of the mapping");
        let mut pages = [0_u8; HUGE_PAGE_BYTES / PAGE_BYTES];
        let count = part.len().div_ceil(PAGE_BYTES);
        let start = self.as_ptr().wrapping_add(part.start);
        // SAFETY: the call reads page tables of the range, which is inside the mapping, and writes
        // a byte for each of its pages, for which the array has room: checked before.
        count <= pages.len()
            && unsafe { libc::mincore(start.cast(), part.len(), pages.as_mut_ptr()) } == 0
            && pages[..count].iter().all(|page| page & 1 != 0)
    }

    /// Bring a part of the memory, which begins at a huge page, into huge pages, as many whole ones
    /// as it has. The system's default for shared memory does not matter: it is for programs that
    /// do not ask.
    ///
    /// # Errors
    /// The kernel does not know how (before 6.1) or has none to spare: some of the memory, or all
    /// of it, stays in small pages and works as well.
    pub(crate) fn collapse_part(&self, part: Range<usize>) -> io::Result<()> {
        assert!(part.start <= part.end && part.end <= self.length, "a part of the mapping");
        let whole = part.len() - part.len() % HUGE_PAGE_BYTES;
        let start = self.as_ptr().wrapping_add(part.start);
        // SAFETY: the bytes stay what they are at the addresses they have; only the pages below
        // them are exchanged. The range is inside the mapping.
        match unsafe { libc::madvise(start.cast(), whole, MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const PRIVATE_HERE: MapFlags = MapFlags::PRIVATE.union(MapFlags::FIXED);
const SHARED_HERE: MapFlags = MapFlags::SHARED.union(MapFlags::FIXED);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_memory_begins_at_a_huge_page_and_short_memory_takes_no_more_than_its_length() {
        let huge = HUGE_PAGE_BYTES as u64;
        for length in [huge, huge + 1, 5 * huge - 4096] {
            let mapping = Mapping::anonymous(length).expect("memory");
            assert_eq!(mapping.as_ptr().addr() % HUGE_PAGE_BYTES, 0);
            assert_eq!(mapping.len() as u64, length);
            let Place::Reserved { pages, start } = &mapping.place else { panic!("not reserved") };
            assert!(start + mapping.length <= pages.len());
        }
        let mapping = Mapping::anonymous(4096).expect("memory");
        let Place::Reserved { pages, start } = &mapping.place else { panic!("not reserved") };
        assert_eq!((*start, pages.len()), (0, 4096));
    }

    #[test]
    fn what_lies_around_the_memory_is_not_for_use() {
        let length = HUGE_PAGE_BYTES as u64 + 4096;
        let mapping = Mapping::anonymous(length).expect("memory");
        let end = mapping.as_ptr().addr() + mapping.len();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the kernel's list");
        let behind = maps.lines().find(|line| line.starts_with(&format!("{end:x}-")));
        // Nothing is behind it if the whole slack is before it, or that is one with a neighbour's.
        assert!(behind.is_none_or(|line| line.contains(" ---p ")), "{behind:?}");
        assert!(maps.contains(&format!("-{end:x} rw-p ")), "{maps}");
    }

    #[test]
    fn memory_that_cannot_be_mapped_is_a_fault() {
        let reader = std::fs::File::open("/proc/self/maps").expect("a file");
        assert!(Mapping::shared(&reader, 4096).is_err(), "it cannot be mapped");
        assert!(Mapping::anonymous(u64::MAX).is_err());
    }

    /// KiB of shared memory that the page table maps as huge pages, of the mapping that begins at
    /// `start`.
    fn huge_kib(start: usize) -> u64 {
        let maps =
            std::fs::read_to_string("/proc/self/smaps").expect("the kernel's list of mappings");
        let from = maps.find(&format!("{start:x}-")).expect("ours is in it");
        let line = maps[from..].lines().find(|line| line.starts_with("ShmemPmdMapped:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)).expect("a figure");
        kib.parse().expect("a number")
    }

    #[test]
    fn shared_memory_is_in_huge_pages_where_the_kernel_can() {
        let length = 2 * HUGE_PAGE_BYTES as u64 + 4096;
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create(c"huge", flags).expect("a file in memory");
        rustix::fs::ftruncate(&file, length).expect("so long");
        let here = Mapping::shared(&file, length).expect("memory");
        here.populate().expect("pages");
        if let Err(error) = here.collapse_part(0..here.len()) {
            println!("skipped: this kernel gives no huge pages: {error}");
            return;
        }
        let there = Mapping::shared(&file, length).expect("the same memory");
        there.populate().expect("pages");
        for mapping in [&here, &there] {
            assert_eq!(huge_kib(mapping.as_ptr().addr()), 4096);
        }
    }
}
