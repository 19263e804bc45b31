//! The mapping and its userfaultfd: the one module of this package with `unsafe`.
//!
//! The kernel's part of the bargain: a thread that touches a page that is not there, or writes to
//! one that is protected, waits, and a message comes out of a descriptor. The rest of the package
//! answers it by [`Mapping::install`] or [`Mapping::unprotect`].
//!
//! The safe functions here are sound because none of them changes a byte that a thread can see. A
//! page appears where there was none, and until it does nobody reads; it disappears while it is
//! protected, and comes back with the same bytes. For users of the memory it is like swapping. The
//! kernel reads the bytes of a page (`/proc/self/mem`), not this program, so the application's
//! `&mut [u8]` is the only way by which Rust code gets at them. Every range is checked against the
//! mapping before the kernel hears of it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::ptr::NonNull;
use std::sync::Arc;

use linux_raw_sys::general as raw;
use rustix::ioctl::{self, IoctlOutput, Opcode, Updater, opcode};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, UserfaultfdFlags};

use crate::error::{MapError, Need};
use crate::limits::FAULTS_PER_READ;

/// Bytes of a page: what faults one at a time. Huge pages are off in the mapping.
pub const PAGE: usize = 4096;

const TYPE: u8 = 0xAA;
const API: Opcode = opcode::read_write::<raw::uffdio_api>(TYPE, raw::_UFFDIO_API as u8);
const REGISTER: Opcode =
    opcode::read_write::<raw::uffdio_register>(TYPE, raw::_UFFDIO_REGISTER as u8);
const WAKE: Opcode = opcode::read::<raw::uffdio_range>(TYPE, raw::_UFFDIO_WAKE as u8);
const COPY: Opcode = opcode::read_write::<raw::uffdio_copy>(TYPE, raw::_UFFDIO_COPY as u8);
const PROTECT: Opcode =
    opcode::read_write::<raw::uffdio_writeprotect>(TYPE, raw::_UFFDIO_WRITEPROTECT as u8);
const POISON: Opcode = opcode::read_write::<raw::uffdio_poison>(TYPE, raw::_UFFDIO_POISON as u8);
/// The request `USERFAULTFD_IOC_NEW` of `/dev/userfaultfd`.
const NEW: Opcode = opcode::none(TYPE, 0);

/// Mode of a protection: `UFFDIO_WRITEPROTECT_MODE_WP`.
const MODE_PROTECT: u64 = 1;
/// The flag `UFFD_USER_MODE_ONLY` of the call.
const USER_MODE_ONLY: u32 = 1;

/// A message: 32 bytes, of which these are what a page fault says.
const MESSAGE: usize = 32;
const FLAGS: Range<usize> = 8..16;
const ADDRESS: Range<usize> = 16..24;

/// A thread waits for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    /// By its number in the mapping.
    pub(crate) page: u32,
    /// To write to it.
    pub(crate) write: bool,
}

/// The pager's side of the mapping.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    /// Length in bytes: whole pages.
    length: usize,
    uffd: OwnedFd,
    /// Memory of this process, as the kernel reads it.
    memory: File,
    features: Features,
}

// SAFETY: the pointer is an address range that lives as long as the value; no method of `Mapping`
// goes through it to the bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above; the kernel takes all calls on the descriptor from any thread at any time.
unsafe impl Sync for Mapping {}

/// The application's side: the bytes. There is one for each mapping.
#[derive(Debug)]
pub(crate) struct View {
    mapping: Arc<Mapping>,
    /// Bytes, at most those of the mapping.
    length: usize,
    writable: bool,
}

/// Features that this kernel lets this process use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Faults of system calls (`read(2)` into the mapping) are served too; otherwise such calls
    /// fail with EFAULT.
    pub kernel_faults: bool,
    /// Writes can be noticed (Linux 5.7).
    pub write_protect: bool,
    /// A page that cannot be had is SIGBUS (Linux 6.6); otherwise SIGSEGV.
    pub poison: bool,
}

impl Mapping {
    /// Maps `length` bytes, rounded up to whole pages, none of which is there yet.
    pub(crate) fn new(
        length: usize,
        writable: bool,
        user_mode_only: bool,
    ) -> Result<(Arc<Self>, View), MapError> {
        let (uffd, features) = open(user_mode_only)?;
        if writable && !features.write_protect {
            return Err(MapError::Kernel { need: Need::WriteProtect });
        }
        let bytes = length.max(1).next_multiple_of(PAGE);
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // Reserved without a claim on memory: what is there at a time has the pager's own limit.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps with nothing.
        let start =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) };
        let start = NonNull::new(start.map_err(io::Error::from)?.cast::<u8>());
        let start = start.ok_or_else(|| io::Error::other("the kernel mapped address 0"))?;
        let memory = File::open("/proc/self/mem")?;
        // From here on its drop unmaps.
        let mapping = Self { start, length: bytes, uffd, memory, features };
        // A child would see zeros where nothing is there: it shall see nothing.
        for advice in [Advice::LinuxDontFork, Advice::LinuxNoHugepage] {
            match mapping.advise(mapping.pages(), advice) {
                // A kernel without huge pages.
                Err(error) if error.raw_os_error() == Some(22) => {}
                done => done?,
            }
        }
        mapping.register(writable)?;
        let mapping = Arc::new(mapping);
        Ok((Arc::clone(&mapping), View { mapping, length, writable }))
    }

    fn register(&self, writable: bool) -> io::Result<()> {
        let protect = if writable { raw::UFFDIO_REGISTER_MODE_WP } else { 0 };
        let mode = u64::from(raw::UFFDIO_REGISTER_MODE_MISSING | protect);
        let range = self.range(self.pages());
        let mut register = raw::uffdio_register { range, mode, ioctls: 0 };
        // SAFETY: the opcode takes this struct, and the range is this mapping.
        unsafe { ioctl::ioctl(&self.uffd, Updater::<REGISTER, _>::new(&mut register)) }?;
        Ok(())
    }

    pub(crate) fn features(&self) -> Features {
        self.features
    }

    /// Readable when threads wait.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.uffd.as_fd()
    }

    /// All pages of the mapping.
    pub(crate) fn pages(&self) -> Range<u32> {
        0..(self.length / PAGE) as u32
    }

    /// Takes messages, without waiting for one.
    pub(crate) fn take_faults(&self, faults: &mut Vec<Fault>) -> io::Result<()> {
        let mut messages = [0; FAULTS_PER_READ * MESSAGE];
        let bytes = match rustix::io::read(&self.uffd, &mut messages) {
            Ok(bytes) => bytes,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        let word = |message: &[u8], place: Range<usize>| {
            u64::from_ne_bytes(message[place].try_into().expect("eight bytes"))
        };
        for message in messages[..bytes].chunks_exact(MESSAGE) {
            // No other events were asked for.
            if u32::from(message[0]) == raw::UFFD_EVENT_PAGEFAULT {
                let into = word(message, ADDRESS).wrapping_sub(self.start.as_ptr() as u64);
                let flags = word(message, FLAGS);
                let writes = raw::UFFD_PAGEFAULT_FLAG_WRITE | raw::UFFD_PAGEFAULT_FLAG_WP;
                let write = flags & u64::from(writes) != 0;
                faults.push(Fault { page: (into / PAGE as u64) as u32, write });
            }
        }
        Ok(())
    }

    /// Puts pages where there are none and wakes the threads that wait for them. Protected ones
    /// tell of the first write. `bytes` are those of whole pages, from `first` on.
    pub(crate) fn install(&self, first: u32, bytes: &[u8], protected: bool) -> io::Result<()> {
        let pages = first..first + (bytes.len() / PAGE) as u32;
        let range = self.range(pages);
        let mode = if protected { u64::from(raw::UFFDIO_COPY_MODE_WP) } else { 0 };
        let mut done = 0;
        while done < range.len {
            let (dst, src) = (range.start + done, bytes.as_ptr() as u64 + done);
            let mut copy = raw::uffdio_copy { dst, src, len: range.len - done, mode, copy: 0 };
            // SAFETY: the opcode takes this struct; the source is the slice, of which `range.len -
            // done` bytes are left; the destination is inside the mapping, and the kernel fills
            // only pages that are not there, which nobody can have read.
            let copied = unsafe { ioctl::ioctl(&self.uffd, Updater::<COPY, _>::new(&mut copy)) };
            match copied {
                Ok(()) => return Ok(()),
                // Part of it, or somebody changes the address space at this moment.
                Err(rustix::io::Errno::AGAIN) => done += u64::try_from(copy.copy).unwrap_or(0),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// From here on nobody writes to these pages, which are there, before [`Self::unprotect`].
    pub(crate) fn protect(&self, pages: Range<u32>) -> io::Result<()> {
        self.set_protection(pages, MODE_PROTECT)
    }

    /// Lets waiting threads write to the pages, and wakes them.
    pub(crate) fn unprotect(&self, pages: Range<u32>) -> io::Result<()> {
        self.set_protection(pages, 0)
    }

    fn set_protection(&self, pages: Range<u32>, mode: u64) -> io::Result<()> {
        let range = self.range(pages);
        loop {
            let mut protect = raw::uffdio_writeprotect { range, mode };
            // SAFETY: the opcode takes this struct, and the range is inside the mapping.
            let set = unsafe { ioctl::ioctl(&self.uffd, Updater::<PROTECT, _>::new(&mut protect)) };
            match set {
                Err(rustix::io::Errno::AGAIN) => {}
                set => return Ok(set?),
            }
        }
    }

    /// Copies out of pages that are there and protected. The kernel reads, as when it swaps.
    pub(crate) fn read(&self, first: u32, to: &mut [u8]) -> io::Result<()> {
        let end = u64::from(first) * PAGE as u64 + to.len() as u64;
        assert!(end <= self.length as u64, "a read inside the mapping");
        let at = self.start.as_ptr() as u64 + u64::from(first) * PAGE as u64;
        self.memory.read_exact_at(to, at)
    }

    /// Takes protected pages away: a thread that touches them next waits for them to come back.
    pub(crate) fn forget(&self, pages: Range<u32>) -> io::Result<()> {
        self.advise(pages, Advice::LinuxDontNeed)
    }

    fn advise(&self, pages: Range<u32>, advice: Advice) -> io::Result<()> {
        let range = self.range(pages);
        let start = self.start.as_ptr().wrapping_add((range.start - self.base()) as usize);
        // SAFETY: the range is inside the mapping. DontNeed takes only pages away that the pager
        // brings back with the same bytes before anybody reads them; the others change no byte.
        unsafe { rustix::mm::madvise(start.cast(), range.len as usize, advice) }?;
        Ok(())
    }

    /// Wakes the threads that wait for this page; they touch it again.
    pub(crate) fn wake(&self, page: u32) -> io::Result<()> {
        let mut range = self.range(page..page + 1);
        // SAFETY: the opcode takes this struct; nothing changes but which threads wait.
        unsafe { ioctl::ioctl(&self.uffd, Updater::<WAKE, _>::new(&mut range)) }?;
        Ok(())
    }

    /// Nobody gets this page any more: a thread that waits for it, or touches it later, gets a
    /// signal.
    pub(crate) fn poison(&self, page: u32) -> io::Result<()> {
        let range = self.range(page..page + 1);
        if self.features.poison {
            let mut poison = raw::uffdio_poison { range, mode: 0, updated: 0 };
            // SAFETY: the opcode takes this struct, and the range is inside the mapping.
            unsafe { ioctl::ioctl(&self.uffd, Updater::<POISON, _>::new(&mut poison)) }?;
            return Ok(());
        }
        self.forbid(page..page + 1)
    }

    /// Takes access to the pages away: this works in every kernel, with another signal.
    pub(crate) fn forbid(&self, pages: Range<u32>) -> io::Result<()> {
        let mut range = self.range(pages);
        let start = self.start.as_ptr().wrapping_add((range.start - self.base()) as usize);
        // SAFETY: the range is inside the mapping. No byte is changed; to touch one is a signal.
        unsafe {
            rustix::mm::mprotect(start.cast(), range.len as usize, MprotectFlags::empty())?;
            ioctl::ioctl(&self.uffd, Updater::<WAKE, _>::new(&mut range))?;
        }
        Ok(())
    }

    fn base(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// The addresses of pages, for the kernel.
    fn range(&self, pages: Range<u32>) -> raw::uffdio_range {
        assert!(pages.end <= self.pages().end, "pages of the mapping");
        let start = self.base() + u64::from(pages.start) * PAGE as u64;
        raw::uffdio_range { start, len: (pages.end - pages.start) as u64 * PAGE as u64 }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and nobody has it any more: a `View` holds an `Arc`
        // of this value, and what it lends ends before it does.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

impl View {
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as `self.mapping` lives, and readable. Only `bytes_mut` lets
        // anybody write, and it needs `&mut self`. A page that is not there comes before the read
        // of it goes on, always with the bytes that it had.
        unsafe { std::slice::from_raw_parts(self.mapping.start.as_ptr(), self.length) }
    }

    /// `None` if it was mapped for reading only.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above; `&mut self` is the only way to write, and this view the only one of the
        // mapping.
        self.writable.then(|| unsafe {
            std::slice::from_raw_parts_mut(self.mapping.start.as_ptr(), self.length)
        })
    }
}

/// The features that the kernel would let this process use, or why it does not.
///
/// ```
/// match remote_pager::probe(true) {
///     Ok(features) => println!("{features:?}"),
///     Err(error) => println!("no: {error}"),
/// }
/// ```
///
/// # Errors
/// See [`MapError`].
pub fn probe(user_mode_only: bool) -> Result<Features, MapError> {
    open(user_mode_only).map(|(_, features)| features)
}

/// A userfaultfd with settled version and features.
fn open(user_mode_only: bool) -> Result<(OwnedFd, Features), MapError> {
    // What there is is asked of one descriptor, and wanted of another.
    let offered = settle(&create(user_mode_only)?, 0)?;
    let wanted = u64::from(raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP | raw::UFFD_FEATURE_POISON);
    let uffd = create(user_mode_only)?;
    settle(&uffd, offered & wanted)?;
    let has = |feature: u32| offered & u64::from(feature) != 0;
    let features = Features {
        kernel_faults: !user_mode_only,
        write_protect: has(raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP),
        poison: has(raw::UFFD_FEATURE_POISON),
    };
    Ok((uffd, features))
}

/// The features that there are; those `wanted` are on.
fn settle(uffd: &OwnedFd, wanted: u64) -> Result<u64, MapError> {
    let mut api = raw::uffdio_api { api: u64::from(raw::UFFD_API), features: wanted, ioctls: 0 };
    // SAFETY: the opcode takes this struct and nothing else.
    unsafe { ioctl::ioctl(uffd, Updater::<API, _>::new(&mut api)) }.map_err(io::Error::from)?;
    Ok(api.features)
}

fn create(user_mode_only: bool) -> Result<OwnedFd, MapError> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    let user = UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    let flags = if user_mode_only { flags | user } else { flags };
    // The device first: it is how an administrator gives this right to some, without a capability.
    if !user_mode_only
        && let Ok(device) = File::options().read(true).write(true).open("/dev/userfaultfd")
    {
        // SAFETY: the opcode takes flags by value and makes a descriptor.
        return Ok(unsafe { ioctl::ioctl(device, New(flags.bits())) }.map_err(io::Error::from)?);
    }
    // SAFETY: what the descriptor may do to memory is what this module does with it.
    match unsafe { rustix::mm::userfaultfd(flags) } {
        Ok(uffd) => Ok(uffd),
        Err(rustix::io::Errno::PERM) => Err(MapError::Denied { user_mode_only }),
        Err(rustix::io::Errno::NOSYS) => Err(MapError::Kernel { need: Need::Userfaultfd }),
        Err(rustix::io::Errno::INVAL) if user_mode_only => {
            Err(MapError::Kernel { need: Need::UserModeOnly })
        }
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// `USERFAULTFD_IOC_NEW`: flags go in by value, a descriptor comes out.
struct New(u32);

// SAFETY: the call reads no memory, and its result is a new descriptor that nobody else owns.
unsafe impl ioctl::Ioctl for New {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        NEW
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<OwnedFd> {
        // SAFETY: the kernel just made it for this call.
        Ok(unsafe { OwnedFd::from_raw_fd(output) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None, with the reason printed, where the kernel gives none.
    fn mapping(pages: usize, writable: bool) -> Option<(Arc<Mapping>, View)> {
        match Mapping::new(pages * PAGE, writable, true) {
            Ok(made) => Some(made),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    fn faults(mapping: &Mapping) -> Vec<Fault> {
        let mut faults = Vec::new();
        while faults.is_empty() {
            mapping.take_faults(&mut faults).expect("messages");
            std::thread::yield_now();
        }
        faults
    }

    #[test]
    fn who_touches_a_page_gets_what_is_installed_and_a_first_write_is_told() {
        let Some((mapping, mut view)) = mapping(3, true) else { return };
        std::thread::scope(|scope| {
            let touching = scope.spawn(move || {
                let bytes = view.bytes_mut().expect("writable");
                let found = bytes[PAGE];
                bytes[PAGE + 1] = 9;
                (found, bytes[PAGE + 2], view)
            });
            assert_eq!(faults(&mapping), [Fault { page: 1, write: false }]);
            mapping.install(1, &[7; PAGE], true).expect("installed");
            assert_eq!(faults(&mapping), [Fault { page: 1, write: true }]);
            mapping.unprotect(1..2).expect("unprotected");
            let (found, neighbour, view) = touching.join().expect("no panic");
            assert_eq!((found, neighbour), (7, 7));
            mapping.protect(1..2).expect("protected");
            let mut page = [0; PAGE];
            mapping.read(1, &mut page).expect("it is there");
            assert_eq!(page[..3], [7, 9, 7]);
            // What was taken away faults again.
            mapping.forget(1..2).expect("forgotten");
            let touching = scope.spawn(move || view.bytes()[PAGE + 1]);
            assert_eq!(faults(&mapping), [Fault { page: 1, write: false }]);
            mapping.install(1, &page, false).expect("installed");
            assert_eq!(touching.join().expect("no panic"), 9);
        });
    }

    #[test]
    fn a_read_only_mapping_has_no_mutable_bytes() {
        let Some((_, mut view)) = mapping(1, false) else { return };
        assert!(view.bytes_mut().is_none());
    }
}
