//! What the kernel has of a file in its page cache.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use piped_core::io::Cached;
use rustix::param::page_size;

/// Number of the call on all machines with the common table of calls; `libc` does not name it.
const SYS_CACHESTAT: libc::c_long = 451;

/// The kernel's `struct cachestat_range`, in bytes.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// The kernel's `struct cachestat`, in pages.
#[repr(C)]
#[derive(Default)]
struct Answer {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

const _: () = assert!(size_of::<Range>() == 16 && size_of::<Answer>() == 40);

/// How many pages of a range are in the page cache (`cachestat`). Reads nothing, and waits for
/// nothing.
///
/// # Errors
/// What the kernel says, `EPERM` for a file that this process neither
/// owns nor may write, since what is cached says what others read.
pub(super) fn holds(file: impl AsFd, offset: u64, length: u64) -> io::Result<Cached> {
    let Some(pages) = pages_of(offset, length, page_size() as u64) else {
        return Ok(Cached::default());
    };
    let answer = ask(file.as_fd().as_raw_fd(), Range { offset, length })?;
    Ok(Cached { pages, cached: answer.cached })
}

/// Why the kernel cannot be asked at all, if it cannot.
pub(super) fn lacks() -> Option<io::Error> {
    // A kernel that has the call says that there is no such file.
    let error = ask(-1, Range { offset: 0, length: 1 }).err()?;
    (error.raw_os_error() != Some(libc::EBADF)).then_some(error)
}

fn ask(fd: RawFd, range: Range) -> io::Result<Answer> {
    let mut answer = Answer::default();
    // SAFETY: the kernel reads `range` and writes `answer`, which have the sizes that it expects,
    // and keeps neither.
    let done = unsafe { libc::syscall(SYS_CACHESTAT, fd, &raw const range, &raw mut answer, 0) };
    if done == 0 { Ok(answer) } else { Err(io::Error::last_os_error()) }
}

/// Number of pages with a byte of the range; none for no bytes, or beyond the largest offset.
fn pages_of(offset: u64, length: u64, page: u64) -> Option<u64> {
    let last = offset.checked_add(length.checked_sub(1)?)?;
    Some(last / page - offset / page + 1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::fs::{Advice, fadvise};

    use super::*;

    #[test]
    fn pages_are_counted_by_their_ends() {
        let pages = |offset, length| pages_of(offset, length, 4096);
        assert_eq!(pages(0, 0), None);
        assert_eq!(pages(u64::MAX, 2), None);
        assert_eq!(pages(u64::MAX, 1), Some(1));
        assert_eq!(pages(0, 1), Some(1));
        assert_eq!(pages(0, 4096), Some(1));
        assert_eq!(pages(4095, 2), Some(2));
        assert_eq!(pages(8192, 12_288), Some(3));
    }

    #[test]
    fn what_was_written_is_there_until_it_is_dropped() {
        // On a disk: what a file of memory has cannot be dropped.
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).expect("a file");
        let page = page_size() as u64;
        file.write_all_at(&vec![7; 8 * page as usize], 0).expect("written");
        file.sync_all().expect("synced");
        if let Some(error) = lacks() {
            eprintln!("skipped: {error} (cachestat came with Linux 6.5)");
            return;
        }
        let holds = |offset, length| {
            let Cached { pages, cached } = holds(&file, offset, length).expect("it is ours");
            (cached, pages)
        };
        assert_eq!(holds(0, 8 * page), (8, 8));
        assert_eq!(holds(0, 9 * page), (8, 9), "none is beyond the end");
        fadvise(&file, 0, None, Advice::DontNeed).expect("dropped");
        assert_eq!(holds(0, page), (0, 1), "it is gone");
        file.write_all_at(&vec![7; 4 * page as usize], 4 * page).expect("written");
        assert_eq!(holds(0, 8 * page), (4, 8), "the first half is missing");
        assert_eq!(holds(4 * page, 4 * page), (4, 4), "the second is there");
        assert_eq!(holds(5 * page + 1, 100), (1, 1), "and each part of it");
    }
}
