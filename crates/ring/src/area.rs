//! Private memory of the program that becomes shared memory in place.
//!
//! The bytes are moved into a sealed memfd, which is then mapped where they were: the program's
//! pointers stay valid. What a program may have done to its memory is read from the kernel's list
//! of mappings first, because a mapping of another kind would be replaced by one that behaves
//! otherwise: a file would no longer be written, shared memory no longer be shared.

use std::fmt::Write as _;
use std::os::fd::BorrowedFd;
use std::{fs, io, ptr};

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use crate::mapping::Mapping;
use crate::segment::Segment;
use crate::tenure::Tenure;

/// Private memory can be lent in multiples of so many bytes, from such an address on.
pub const AREA_PAGE_BYTES: usize = 4096;

/// Since Linux 5.4; the advice changes nothing that a program sees, and is refused for memory that
/// is locked or in huge pages of hugetlbfs.
const MADV_COLD: libc::c_int = 20;

/// Why private memory of the program cannot be lent.
#[derive(Debug, thiserror::Error)]
pub enum AreaFault {
    /// The area does not begin or end at a page, or has none.
    #[error(
        "the area of {length} bytes at {start:#x} is not whole pages of {AREA_PAGE_BYTES} bytes; \
         allocate it aligned, and lend whole pages"
    )]
    Pages {
        /// Address of the area.
        start: usize,
        /// Length of the area in bytes.
        length: usize,
    },
    /// Nothing is mapped at some address of the area.
    #[error("there is no memory at {0:#x}; lend what is mapped")]
    Gap(usize),
    /// Memory of another kind is mapped there.
    #[error("the memory at {start:#x} is {what}; lend private anonymous memory")]
    Kind {
        /// First address of the mapping.
        start: usize,
        /// The kind of that memory.
        what: String,
    },
    /// The kernel refused a step.
    #[error("{step} failed: {error}")]
    System {
        /// The step that failed.
        step: &'static str,
        /// Error of the kernel.
        error: io::Error,
    },
}

/// Private memory of the process, and the memfd that is to take its place.
#[derive(Debug)]
pub struct Area {
    start: *mut u8,
    length: usize,
    memfd: Segment,
}

impl Area {
    /// Makes a memfd for an area of private anonymous memory, which is left as it is.
    ///
    /// # Errors
    /// See [`AreaFault`].
    pub fn new(start: *mut u8, length: usize) -> Result<Self, AreaFault> {
        check(start.addr(), length)?;
        let memfd = Segment::create(length as u64)
            .map_err(|error| AreaFault::System { step: "making shared memory", error })?;
        Ok(Self { start, length, memfd })
    }

    /// The memfd, sealed, of the area's length.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memfd.fd()
    }

    /// Moves the bytes into the memfd and maps that over the area. The segment has the addresses of
    /// the area, which stays mapped to the memfd when the segment is dropped. A forked child has no
    /// such area.
    ///
    /// # Errors
    /// See [`AreaFault`]. The area is then as it was.
    ///
    /// # Safety
    /// - No thread of this process writes the area during the call.
    /// - As long as the segment lives, the area stays mapped. Its bytes are only used as those of
    ///   the [`crate::ExclusiveRange`] made of it: nobody writes what somebody borrows from a
    ///   range, and nobody reads what somebody borrows to change.
    ///
    /// # Panics
    /// Ends the process if the kernel takes the area away, and has no memory to bring it back.
    pub unsafe fn take_over(self) -> Result<Segment, AreaFault> {
        let Self { start, length, memfd } = self;
        // It may have changed since it was looked at.
        check(start.addr(), length)?;
        // SAFETY: the area is mapped and readable, as was checked, and written by nobody, as the
        // caller says. The memfd is as long, and nobody was asked to touch it yet.
        unsafe { ptr::copy_nonoverlapping(start, memfd.as_ptr(), length) };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // Mapped elsewhere and then moved: a child that shared these pages would change its
        // parent's data, and so none may have them, whenever it is forked.
        // SAFETY: a new mapping, wherever the kernel likes.
        let made = unsafe {
            rustix::mm::mmap(ptr::null_mut(), length, prot, MapFlags::SHARED, memfd.fd(), 0)
        };
        let made = made.map_err(|error| failed("mapping the memfd", error))?;
        // SAFETY: the mapping just made, which nobody knows.
        let alone = unsafe { rustix::mm::madvise(made, length, Advice::LinuxDontFork) };
        let onto = start.cast();
        // SAFETY: the area is private anonymous memory of the program, as was checked. The same
        // bytes take its place, and nobody writes meanwhile, as the caller says.
        let moved = alone.and_then(|()| unsafe {
            rustix::mm::mremap_fixed(made, length, length, MremapFlags::MAYMOVE, onto)
        });
        if let Err(error) = moved {
            // SAFETY: it was not moved, and nobody knows it.
            let _ = unsafe { rustix::mm::munmap(made, length) };
            restore(start, length, &memfd);
            return Err(failed("mapping over the area", error));
        }
        // SAFETY: mapped above, and the caller keeps it so.
        let map = unsafe { Mapping::of_program(start, length) };
        // Page tables, which the next touch would fill page by page.
        let _ = map.populate();
        Ok(Segment::lasting(map, None, Tenure::Sole))
    }
}

fn failed(step: &'static str, error: rustix::io::Errno) -> AreaFault {
    AreaFault::System { step, error: error.into() }
}

/// Brings an area back that nothing took the place of. The memfd has its bytes.
fn restore(start: *mut u8, length: usize, memfd: &Segment) {
    // Mostly the kernel finds that it cannot before it takes the old mapping away.
    if check(start.addr(), length).is_ok() {
        return;
    }
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
    // SAFETY: where the area was, which nobody uses during the call that failed.
    let back = unsafe { rustix::mm::mmap_anonymous(start.cast(), length, prot, flags) };
    if back.is_err() {
        // Nothing that relies on the area may go on.
        std::process::abort();
    }
    // SAFETY: the new memory is as long and nobody else's, and the memfd has the bytes.
    unsafe { ptr::copy_nonoverlapping(memfd.as_ptr(), start, length) };
}

/// Whether an area can be lent, as far as it can be found out.
fn check(start: usize, length: usize) -> Result<(), AreaFault> {
    let pages = AreaFault::Pages { start, length };
    let whole = start.is_multiple_of(AREA_PAGE_BYTES) && length.is_multiple_of(AREA_PAGE_BYTES);
    let Some(end) = start.checked_add(length).filter(|_| whole && length > 0 && start > 0) else {
        return Err(pages);
    };
    let system = |step| move |error| AreaFault::System { step, error };
    let maps = fs::read_to_string("/proc/self/maps");
    find_fault(&maps.map_err(system("reading /proc/self/maps"))?, start..end)?;
    let area = ptr::with_exposed_provenance_mut(start);
    // SAFETY: the advice changes no byte and no address, whatever is mapped there.
    if unsafe { libc::madvise(area, length, MADV_COLD) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EINVAL) => {
            let what = "locked (mlock), or in pages of hugetlbfs".to_owned();
            Err(AreaFault::Kind { start, what })
        }
        error => Err(system("asking for the kind of memory")(error)),
    }
}

/// The first fault of an area by the kernel's list of mappings, which is in order.
fn find_fault(maps: &str, area: std::ops::Range<usize>) -> Result<(), AreaFault> {
    let mut at = area.start;
    for line in maps.lines() {
        let Some(mapping) = Line::parse(line) else { continue };
        if mapping.end <= at {
            continue;
        }
        if mapping.start > at || at >= area.end {
            break;
        }
        if let Some(what) = mapping.fault() {
            return Err(AreaFault::Kind { start: mapping.start, what });
        }
        at = mapping.end;
    }
    if at < area.end { Err(AreaFault::Gap(at)) } else { Ok(()) }
}

/// A line of `/proc/self/maps`.
#[derive(Debug)]
struct Line<'a> {
    start: usize,
    end: usize,
    rights: &'a str,
    inode: &'a str,
    name: &'a str,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (rights, _offset, _device) = (fields.next()?, fields.next()?, fields.next()?);
        let (inode, name) = (fields.next()?, fields.next().unwrap_or_default().trim_start());
        Some(Self { start: number(start)?, end: number(end)?, rights, inode, name })
    }

    /// What keeps the mapping from being lent.
    fn fault(&self) -> Option<String> {
        let anonymous = ["", "[heap]"].contains(&self.name) || self.name.starts_with("[anon:");
        let what = match self.rights {
            _ if self.name.starts_with("/memfd:piped") => "lent already, or piped's own",
            "rw-s" | "r--s" | "rwxs" | "r-xs" => "shared",
            "rw-p" if anonymous && self.inode == "0" => return None,
            "rw-p" if self.name.starts_with('[') => "special",
            "rw-p" => "of a file",
            _ => "not readable and writable, or code",
        };
        let mut text = what.to_owned();
        if !self.name.is_empty() {
            let _ = write!(text, " ({})", self.name);
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::view::ExclusiveRange;

    const PAGE: usize = AREA_PAGE_BYTES;

    /// Private memory of so many pages.
    fn pages(count: usize, prot: ProtFlags, flags: MapFlags) -> *mut u8 {
        let null = ptr::null_mut();
        // SAFETY: new memory, wherever the kernel likes.
        let made = unsafe { rustix::mm::mmap_anonymous(null, count * PAGE, prot, flags) };
        made.expect("memory").cast()
    }

    const RW: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

    fn refused(start: *mut u8, length: usize) -> String {
        Area::new(start, length).expect_err("refused").to_string()
    }

    #[test]
    fn the_bytes_stay_where_they_are_and_are_shared_from_then_on() {
        let start = pages(3, RW, MapFlags::PRIVATE);
        // SAFETY: three pages that only this test knows.
        unsafe { ptr::write_bytes(start, 7, 3 * PAGE) };
        let area = Area::new(start, 3 * PAGE).expect("private memory");
        let fd = area.fd().try_clone_to_owned().expect("one more");
        // SAFETY: nobody else uses the memory, and it is never unmapped.
        let segment = unsafe { area.take_over() }.expect("lent");
        assert_eq!(segment.as_ptr(), start);
        let other = crate::lent::map(fd.as_fd(), 3 * PAGE as u64, crate::LentKind::Sealed);
        let other = other.expect("a sealed memfd");
        let mut bytes = [0; PAGE];
        other.load(PAGE as u64, &mut bytes).expect("inside");
        assert_eq!(bytes, [7; PAGE]);
        other.store(5, b"seen").expect("inside");
        let range = ExclusiveRange::claim(segment);
        assert_eq!(&range.as_slice()[4..10], b"\x07seen\x07");
        drop(range);
        // SAFETY: the memory stays mapped, and nobody writes now.
        let after = unsafe { start.add(5).read() };
        assert_eq!(after, b's', "given back, the bytes are there");
        assert!(refused(start, PAGE).contains("lent already"));
        assert!(refused(start.wrapping_add(PAGE), PAGE).contains("lent already"));
    }

    #[test]
    fn what_is_not_whole_pages_of_private_memory_is_refused_with_the_reason() {
        let area = pages(4, RW, MapFlags::PRIVATE);
        for (start, length) in [(area, 0), (area, 100), (area.wrapping_add(8), PAGE)] {
            assert!(refused(start, length).contains("whole pages"), "{length}");
        }
        let all = usize::MAX - PAGE + 1;
        assert!(refused(area, all).contains("whole pages"), "beyond the end of addresses");
        assert!(refused(ptr::null_mut(), PAGE).contains("whole pages"));
        let shared = pages(1, RW, MapFlags::SHARED);
        assert!(refused(shared, PAGE).contains("shared"));
        let constant = pages(1, ProtFlags::READ, MapFlags::PRIVATE);
        assert!(refused(constant, PAGE).contains("readable and writable"));
        // SAFETY: a page of this test alone.
        unsafe { rustix::mm::munmap(area.wrapping_add(PAGE).cast(), PAGE) }.expect("unmapped");
        assert!(refused(area, 4 * PAGE).contains("no memory"), "a gap");
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create(c"other", flags).expect("a file");
        rustix::fs::ftruncate(&file, PAGE as u64).expect("a page");
        let null = ptr::null_mut();
        // SAFETY: a new mapping of a file of this test alone.
        let mapped = unsafe { rustix::mm::mmap(null, PAGE, RW, MapFlags::PRIVATE, &file, 0) };
        assert!(refused(mapped.expect("mapped").cast(), PAGE).contains("of a file"));
    }

    #[test]
    fn locked_memory_is_refused() {
        let area = pages(2, RW, MapFlags::PRIVATE);
        // SAFETY: pages of this test alone.
        match unsafe { rustix::mm::mlock(area.cast(), PAGE) } {
            Ok(()) => assert!(refused(area, 2 * PAGE).contains("locked")),
            Err(error) => println!("skipped: this process may lock nothing: {error}"),
        }
    }

    #[test]
    fn a_list_of_mappings_is_walked_to_the_end_of_the_area() {
        let maps = "1000-3000 rw-p 00000000 00:00 0 \n\
                    3000-5000 rw-p 00000000 00:00 0                          [anon:x y]\n\
                    5000-6000 rw-p 00000000 00:00 0                          [stack]\n\
                    8000-9000 r-xp 00000000 08:01 77                         /bin/x\n";
        let fault = |area| find_fault(maps, area).map_err(|fault| fault.to_string());
        assert_eq!(fault(0x1000..0x5000), Ok(()));
        assert_eq!(fault(0x2000..0x4000), Ok(()));
        assert!(fault(0x4000..0x6000).expect_err("the stack").contains("[stack]"));
        assert!(fault(0x0000..0x2000).expect_err("nothing before").contains("0x0"));
        assert!(fault(0x6000..0x7000).expect_err("a gap").contains("0x6000"));
        assert!(fault(0x8000..0xa000).expect_err("code").contains("/bin/x"));
        assert!(find_fault("", 0..1).is_err() && find_fault("nonsense\n-\n", 0..1).is_err());
    }
}
