//! Memory for weights: addresses for all of them at once, and shared pages part by part.
//!
//! A part is a memfd of its own, mapped where private anonymous memory was. So the daemon has one
//! part for as long as bytes travel into it, and not the whole memory. The pages are made here, on
//! a thread that does not hold the interpreter: they count as this process's, not the daemon's.
//!
//! Not done by lending the private memory itself ([`crate::client::Client`]'s `lend_private`): its
//! bytes, all zeros here, would be copied, while no thread of Python may run.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::lock;

/// Parts begin at a page of so many bytes and consist of such pages.
const PAGE: usize = 4096;

/// Bytes of a huge page: parts that begin at a multiple of them are made of huge pages.
const HUGE: usize = 2 << 20;

/// Addresses for bytes, and the pages behind them.
///
/// Before a part is made, its memory is private and zero. It has the buffer protocol.
#[pyclass(frozen, weakref, module = "piped_io")]
pub(crate) struct Span {
    area: Area,
    /// Parts that were made, by their starts: their ends. No byte is made twice.
    made: Mutex<BTreeMap<usize, usize>>,
}

/// A mapping of this process, which ends with this.
#[derive(Debug)]
struct Area {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: addresses have no thread. This gives no reference to the bytes, which Python's threads
// may change at any time.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

/// The result of a call that returns -1 for a failure.
fn checked(result: c_int) -> io::Result<c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The result of a mapping.
fn mapped(at: *mut c_void) -> io::Result<NonNull<u8>> {
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

impl Area {
    /// Private anonymous memory that begins at a huge page. No page of it is there yet.
    fn new(length: usize) -> io::Result<Self> {
        let room = length.checked_add(HUGE).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping, wherever the kernel likes.
        let made = unsafe { libc::mmap(std::ptr::null_mut(), room, READ_WRITE, PRIVATE, -1, 0) };
        let whole = Self { start: mapped(made)?, length: room };
        let before =
            whole.start.as_ptr().addr().next_multiple_of(HUGE) - whole.start.as_ptr().addr();
        let area = whole.cut(before..before + length);
        area.advise(0..length, libc::MADV_HUGEPAGE).or_else(|error| {
            match error.raw_os_error() {
                // A kernel without huge pages.
                Some(libc::EINVAL) => Ok(()),
                _ => Err(error),
            }
        })?;
        Ok(area)
    }

    /// Unmaps all but a part.
    fn cut(self, part: Range<usize>) -> Self {
        let whole = std::mem::ManuallyDrop::new(self);
        assert!(part.start <= part.end && part.end <= whole.length, "a part of the mapping");
        let at = |offset| whole.start.as_ptr().wrapping_add(offset).cast::<c_void>();
        for rest in [0..part.start, part.end..whole.length] {
            if !rest.is_empty() {
                // SAFETY: a piece of the mapping, which nobody else knows.
                unsafe { libc::munmap(at(rest.start), rest.len()) };
            }
        }
        // SAFETY: inside the mapping, so it is not null.
        let start = unsafe { NonNull::new_unchecked(at(part.start).cast()) };
        Self { start, length: part.len() }
    }

    fn at(&self, part: &Range<usize>) -> *mut c_void {
        assert!(part.start <= part.end && part.end <= self.length, "a part of the mapping");
        self.start.as_ptr().wrapping_add(part.start).cast()
    }

    /// Advises the kernel of a part. Advices that take bytes away are not given.
    fn advise(&self, part: Range<usize>, advice: c_int) -> io::Result<()> {
        // SAFETY: the part is inside the mapping, which is ours; no byte of it changes.
        checked(unsafe { libc::madvise(self.at(&part), part.len(), advice) }).map(drop)
    }

    /// Puts the pages of a file in the place of a part.
    ///
    /// Ends the process if the kernel takes the part away and has no memory to bring it back.
    fn replace(&self, part: &Range<usize>, file: &OwnedFd) -> io::Result<()> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the part is inside the mapping, which is ours. Nothing of Rust refers to its
        // bytes, and for Python they stay readable and writable all the time: the kernel takes
        // the old pages away and maps the new ones under one lock.
        let made = unsafe {
            libc::mmap(self.at(part), part.len(), READ_WRITE, flags, file.as_raw_fd(), 0)
        };
        let made = mapped(made).map(drop);
        if made.is_err() {
            self.restore(part);
        }
        made
    }

    /// Brings a part back that nothing took the place of.
    fn restore(&self, part: &Range<usize>) {
        // SAFETY: it writes nothing; it fails where something of the part is not mapped.
        if unsafe { libc::msync(self.at(part), part.len(), libc::MS_ASYNC) } == 0 {
            return;
        }
        let flags = PRIVATE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing is mapped there, or the call fails.
        let back = unsafe { libc::mmap(self.at(part), part.len(), READ_WRITE, flags, -1, 0) };
        if mapped(back).is_err() {
            // Nothing that relies on the memory may go on.
            std::process::abort();
        }
    }

    /// Makes the pages of a part: huge ones where it is aligned for them.
    fn populate(&self, part: &Range<usize>) -> io::Result<()> {
        let populate = |part| match self.advise(part, libc::MADV_POPULATE_WRITE) {
            // Before Linux 5.14 pages come at first touch.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            other => other,
        };
        if part.start.is_multiple_of(HUGE) {
            for start in part.clone().step_by(HUGE).filter(|start| start + HUGE <= part.end) {
                // A huge page is made where a small one is. What cannot be huge stays small.
                populate(start..start + PAGE)?;
                let _ = self.advise(start..start + HUGE, libc::MADV_COLLAPSE);
            }
        }
        populate(part.clone())
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// A memfd of so many bytes that nobody can make shorter or longer.
fn sealed(length: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a string, and the call changes no memory.
    let made = checked(unsafe { libc::memfd_create(c"piped-weights".as_ptr(), flags) })?;
    // SAFETY: the descriptor was made above, and nobody else has it.
    let file = unsafe { OwnedFd::from_raw_fd(made) };
    let bytes = libc::off_t::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: neither call changes memory of this process.
    unsafe {
        checked(libc::ftruncate(made, bytes))?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        checked(libc::fcntl(made, libc::F_ADD_SEALS, seals))?;
    }
    Ok(file)
}

impl Span {
    /// The part of so many bytes from `offset` on, which nobody else makes from now on.
    fn claim(&self, offset: usize, length: usize) -> PyResult<Range<usize>> {
        let end = offset.checked_add(length).filter(|end| *end <= self.area.length);
        let is_whole = offset.is_multiple_of(PAGE) && length.is_multiple_of(PAGE);
        let Some(end) = end.filter(|_| is_whole && length > 0) else {
            return Err(PyValueError::new_err("a part is whole pages inside the memory"));
        };
        let mut made = lock(&self.made);
        if made.range(..end).next_back().is_some_and(|(_, before)| *before > offset) {
            return Err(PyValueError::new_err("a part is made once, and these pages were"));
        }
        made.insert(offset, end);
        Ok(offset..end)
    }
}

#[pymethods]
impl Span {
    #[new]
    fn new(length: usize) -> PyResult<Self> {
        let whole = length.max(1).checked_next_multiple_of(PAGE);
        let whole = whole.ok_or_else(|| PyValueError::new_err("there are no such addresses"))?;
        Ok(Self { area: Area::new(whole)?, made: Mutex::default() })
    }

    fn __len__(&self) -> usize {
        self.area.length
    }

    /// Where the memory is mapped in this process.
    #[getter]
    fn address(&self) -> usize {
        self.area.start.as_ptr().addr()
    }

    /// Makes pages from `offset` on, zeroed and shared, and returns their memfd, which the caller
    /// lends and closes. Whole pages of which none was made before.
    fn make(&self, py: Python<'_>, offset: usize, length: usize) -> PyResult<i32> {
        py.detach(|| {
            let part = self.claim(offset, length)?;
            let file = sealed(length)?;
            self.area.replace(&part, &file)?;
            self.area.populate(&part)?;
            Ok(file.into_raw_fd())
        })
    }

    /// # Safety
    /// Python calls it with a view that is its own.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let area = &slf.get().area;
        let length = ffi::Py_ssize_t::try_from(area.length)?;
        // SAFETY: `view` is Python's to fill. It keeps this object, and with it the mapping.
        let filled = unsafe {
            let start = area.start.as_ptr().cast::<c_void>();
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 0, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
