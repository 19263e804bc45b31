//! Where a file has room on its device, by the map of its file system.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::io::{Errno, Result};
use rustix::ioctl::opcode;

use crate::calls::Room;

/// The kernel's `struct fiemap`, before its extents.
#[repr(C)]
#[derive(Default)]
struct Question {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
}

/// The kernel's `struct fiemap_extent`.
#[repr(C)]
#[derive(Default)]
struct Mapped {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_tail: [u32; 3],
}

/// Both, as the kernel reads and writes them.
#[repr(C)]
struct Map {
    question: Question,
    first: Mapped,
}

const _: () = assert!(size_of::<Question>() == 32 && size_of::<Mapped>() == 56);
const _: () = assert!(size_of::<Map>() == 88);

/// Room that was never written to (`FIEMAP_EXTENT_UNWRITTEN`).
const UNWRITTEN: u32 = 0x800;

/// The first piece of a range that has room; `None` if all of it has none.
///
/// # Errors
/// What the file system says: many have no map.
pub(crate) fn next(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<Option<Room>> {
    let question = Question { start: offset, length, room: 1, ..Question::default() };
    let mut map = Map { question, first: Mapped::default() };
    let ask = opcode::read_write::<Question>(b'f', 11);
    // SAFETY: the kernel reads and writes the question and as many extents behind it as `room`
    // says, which is one; both lie in `map`, borrowed for the call.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), ask as _, &raw mut map) };
    if done != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    let Mapped { logical, length, flags, .. } = map.first;
    let bytes = logical..logical.saturating_add(length);
    let room = if flags & UNWRITTEN != 0 { Room::Unwritten(bytes) } else { Room::Written(bytes) };
    Ok((map.question.mapped > 0).then_some(room))
}
