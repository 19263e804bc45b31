//! Private memory of this process, as a program has before it knows of piped.

use std::ptr;

use piped_client::{Client, Lent};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::failure::{Doing as _, Failure};

/// Pages of this process. All of them are there.
#[derive(Debug)]
pub(crate) struct Area {
    start: *mut u8,
    length: usize,
}

impl Area {
    pub(crate) fn new(length: usize) -> Result<Self, Failure> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: new memory, wherever the kernel likes.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, prot, flags) };
        Ok(Self { start: start.doing("private memory")?.cast(), length })
    }

    /// Lends the area, which is given back with the result; drop that before the area.
    pub(crate) fn lend(&self, client: &Client) -> Result<Lent, Failure> {
        // SAFETY: nobody else knows the pages, and they are used through buffers alone. They stay
        // mapped until the area is dropped, which the callers do last.
        unsafe { client.lend_private(self.start, self.length) }.doing("lend private memory")
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the pages are this area's, and nothing of them is lent any more.
        let _ = unsafe { munmap(self.start.cast(), self.length) };
    }
}
