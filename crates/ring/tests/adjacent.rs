//! Where the pages of a segment lie in physical memory: a device takes those side by side as one.
#![forbid(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;

use piped_ring::{ExclusiveRange, Segment};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const HUGE_PAGE_BYTES: usize = 2 * MIB;
const PAGE_BYTES: usize = 4 * KIB;

/// Pages of some memory that do not lie behind the page before; `None` where the kernel does not
/// tell.
fn breaks(memory: &[u8]) -> Option<usize> {
    let mut entries = vec![0; 8 * memory.len() / PAGE_BYTES];
    let first = memory.as_ptr().addr() / PAGE_BYTES;
    File::open("/proc/self/pagemap").ok()?.read_exact_at(&mut entries, 8 * first as u64).ok()?;
    let frame = |entry: &[u8]| {
        let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
        Some(entry & ((1 << 55) - 1)).filter(|&frame| frame != 0)
    };
    let frames: Option<Vec<u64>> = entries.chunks_exact(8).map(frame).collect();
    Some(frames?.windows(2).filter(|pair| pair[1] != pair[0] + 1).count())
}

#[test]
fn pages_of_memory_that_is_shorter_than_a_huge_one_lie_side_by_side() {
    let memory = |length: usize| {
        let segment = Segment::create(length as u64).expect("memory");
        let fd = segment.fd().as_fd().try_clone_to_owned().expect("one more");
        (ExclusiveRange::claim(segment), rustix::fs::fstat(fd).expect("it is open").st_size)
    };
    match breaks(memory(HUGE_PAGE_BYTES).0.as_slice()) {
        Some(0) => {}
        Some(_) => return println!("skipped: the kernel has no huge page to spare"),
        None => return println!("skipped: only root sees where pages are"),
    }
    for length in [64 * KIB, MIB, HUGE_PAGE_BYTES + MIB] {
        let (range, file_bytes) = memory(length);
        let most = length / HUGE_PAGE_BYTES;
        assert!(breaks(range.as_slice()).expect("as before") <= most, "{length}");
        assert_eq!(file_bytes, length as i64);
        assert!(range.as_slice().iter().all(|&byte| byte == 0), "{length}");
    }
}
