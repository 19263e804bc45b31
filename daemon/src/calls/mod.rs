//! What calls do to files and names: one verb is one file, and [`place`] finds what a path means.
//!
//! A call comes with the descriptor of its handle: of a directory (opened with O_PATH), or of a
//! regular file through the page cache, open for what the handle may do. Whether the handle may do
//! it is decided before ([`Call::writes`] and its sisters); here the file system decides. Answers
//! are bytes, whose encoding is `piped_core::call`'s.

mod advise;
mod allocate;
mod copy;
mod digest;
mod extents;
mod link;
mod list;
mod lock;
pub(crate) mod make_directory;
pub(crate) mod place;
mod remove;
mod rename;
mod space;
mod stat;
mod sync;
#[cfg(test)]
mod tests;
mod trim;
mod truncate;
mod zero;

use std::cell::RefCell;
use std::os::fd::BorrowedFd;

use piped_core::call::{Call, Lock, Range};
use rustix::io::{Errno, Result};

/// Memory of a thread for one call, in bytes: what is hashed, or read of a directory, at once.
const SCRATCH_BYTES: usize = 1 << 20;

/// Room of a file on its device: the bytes of the file that it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Room {
    /// Bytes were written to it.
    Written(std::ops::Range<u64>),
    /// Nothing was written to it, so that it reads as zeros.
    Unwritten(std::ops::Range<u64>),
}

/// The driver's question to a file system: the first piece of a range (offset, length) that has
/// room, which may begin before and end behind it. `None`: all of it has none.
pub(crate) type NextRoom = fn(BorrowedFd<'_>, u64, u64) -> Result<Option<Room>>;

/// The driver's call that sets the lock of a range (length 0: to the end of all) without waiting.
pub(crate) type SetLock = fn(BorrowedFd<'_>, Range, Lock) -> Result<()>;

/// What the driver asks of the kernel for calls, since no safe library does.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    pub(crate) next_room: NextRoom,
    pub(crate) set_lock: SetLock,
}

/// Carries out a call and writes its answer, and returns how long that is. May block for as long as
/// a file system likes.
///
/// # Errors
/// What the file system says; EMSGSIZE if there is no room for the answer.
pub(crate) fn answer(
    file: BorrowedFd<'_>,
    call: &Call<'_>,
    answer: &mut [u8],
    kernel: Kernel,
) -> Result<usize> {
    match *call {
        Call::Stat { path } => stat::answer(file, path, answer),
        Call::List { path, cookie, stats } => list::answer(file, path, cookie, stats, answer),
        Call::Space => space::answer(file, answer),
        Call::MakeDirectory { path, mode, parents } => {
            make_directory::answer(file, path, mode, parents).map(nothing)
        }
        Call::Remove { path, kind } => remove::answer(file, path, kind).map(nothing),
        Call::Rename { from, to, over, durable } => {
            rename::answer(file, from, to, over, durable).map(nothing)
        }
        Call::Link { from, to } => link::answer(file, from, to).map(nothing),
        Call::Truncate { length } => truncate::answer(file, length).map(nothing),
        Call::Allocate { range, keep_length } => {
            allocate::answer(file, range, keep_length).map(nothing)
        }
        Call::Zero { range, release } => zero::answer(file, range, release).map(nothing),
        Call::Trim { range } => trim::answer(file, range).map(nothing),
        Call::Extents { range } => extents::answer(file, range, answer, kernel.next_room),
        Call::Sync { range, data_only } => sync::answer(file, range, data_only).map(nothing),
        Call::Advise { range, advice } => advise::answer(file, range, advice).map(nothing),
        Call::Digest { range } => digest::answer(file, range, answer),
        Call::Copy { from, to, range, durable } => {
            copy::answer(file, (from, to), (range, durable), answer)
        }
        Call::Lock { range, lock } => lock::answer(file, range, lock, kernel.set_lock).map(nothing),
    }
}

/// Carries out a call at once, as [`answer`] does; `None` if it might have to wait.
pub(crate) fn answer_at_once(
    file: BorrowedFd<'_>,
    call: &Call<'_>,
    answer: &mut [u8],
    kernel: Kernel,
) -> Option<Result<usize>> {
    match *call {
        Call::Stat { path } => stat::answer_at_once(file, path, answer),
        Call::Lock { range, lock } => {
            Some(lock::answer(file, range, lock, kernel.set_lock).map(nothing))
        }
        _ => None,
    }
}

/// The length of an answer that says nothing but that it was done.
const fn nothing((): ()) -> usize {
    0
}

/// Writes an answer of fixed length.
fn put(bytes: &[u8], answer: &mut [u8]) -> Result<usize> {
    answer.get_mut(..bytes.len()).ok_or(Errno::MSGSIZE)?.copy_from_slice(bytes);
    Ok(bytes.len())
}

/// Writes all bytes from a place on.
fn write_all(file: BorrowedFd<'_>, mut bytes: &[u8], mut at: u64) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => (at, bytes) = (at + written as u64, &bytes[written..]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The byte behind a range, of ranges that a file can have.
fn end_of(range: Range) -> Result<u64> {
    range.end().ok_or(Errno::INVAL)
}

/// Lends memory of the thread, which is empty and has room for [`SCRATCH_BYTES`].
fn with_scratch<T>(work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        scratch.reserve_exact(SCRATCH_BYTES);
        work(scratch)
    })
}
