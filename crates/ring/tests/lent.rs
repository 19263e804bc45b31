//! Memory that somebody else lends: what is taken, and what happens when it is cut.
#![cfg(not(loom))]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use piped_ring::{ExclusiveRange, LentKind, Segment, SegmentFault, lent};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};

const PAGE: u64 = 4096;

fn memfd(length: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(c"lent", flags).expect("a memfd");
    rustix::fs::ftruncate(&fd, length).expect("a length");
    rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
    fd
}

fn loose(length: u64) -> (OwnedFd, Segment) {
    let fd = memfd(length, SealFlags::empty());
    let segment = lent::map(&fd, length, LentKind::Loose).expect("memory");
    (fd, segment)
}

#[test]
fn memory_is_taken_as_it_is_and_not_as_it_is_said_to_be() {
    let shrink = SealFlags::SHRINK;
    for length in [1, PAGE, PAGE + 100, 5 << 20] {
        let fd = memfd(length, shrink);
        let segment = lent::map(&fd, length, LentKind::Sealed).expect("sealed");
        lent::settle(&segment, || ());
        assert_eq!(segment.len(), length);
        assert!(!segment.is_loose() && !segment.is_torn());
        segment.store(length - 1, b"x").expect("the last byte");
        assert!(segment.store(length, b"x").is_err());
    }
    let map = |fd: &OwnedFd, said, kind| lent::map(fd, said, kind);
    for seals in [SealFlags::empty(), SealFlags::GROW, SealFlags::SEAL] {
        let fault = map(&memfd(PAGE, seals), PAGE, LentKind::Sealed);
        assert!(matches!(fault, Err(SegmentFault::NotSealed)), "{seals:?}: {fault:?}");
    }
    for seals in [SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
        let fault = map(&memfd(PAGE, shrink | seals), PAGE, LentKind::Sealed);
        assert!(matches!(fault, Err(SegmentFault::ReadOnly)), "{seals:?}: {fault:?}");
    }
    for (is, said) in [(PAGE, 2 * PAGE), (2 * PAGE, PAGE), (PAGE, 0), (PAGE, u64::MAX)] {
        for kind in [LentKind::Sealed, LentKind::Loose] {
            let fault = map(&memfd(is, shrink), said, kind);
            assert!(matches!(fault, Err(SegmentFault::OtherLength { .. })), "{fault:?}");
        }
    }
    for length in [0, (1 << 40) + 1] {
        let fault = map(&memfd(length, shrink), length, LentKind::Sealed);
        assert!(matches!(fault, Err(SegmentFault::Length(_))), "{fault:?}");
    }
}

#[test]
fn what_is_not_memory_is_refused() {
    let open = |path: &str, flags| rustix::fs::open(path, flags, Mode::empty());
    let file = std::env::current_exe().expect("this test");
    let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
    let pidfd = {
        let own = rustix::process::getpid();
        rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).expect("a pidfd")
    };
    let huge = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let huge = rustix::fs::memfd_create(c"huge", huge).expect("a memfd");
    rustix::fs::ftruncate(&huge, 2 << 20).expect("a length");
    let others: Vec<(&str, OwnedFd)> = vec![
        ("a file of a disk", File::open(file).expect("opens").into()),
        ("of the kernel", open("/proc/self/mem", OFlags::RDWR).expect("opens")),
        ("a device", open("/dev/zero", OFlags::RDWR).expect("opens")),
        ("a directory", open("/dev/shm", OFlags::RDONLY).expect("opens")),
        ("a name", open("/dev/shm", OFlags::PATH).expect("opens")),
        ("a pipe", pipe),
        ("a process", pidfd),
        ("huge pages", huge),
    ];
    for (what, fd) in others {
        for kind in [LentKind::Sealed, LentKind::Loose] {
            let fault = lent::map(&fd, 2 << 20, kind);
            assert!(matches!(fault, Err(SegmentFault::NotMemory)), "{what}: {fault:?}");
        }
    }
    let path = Path::new("/dev/shm").join(format!("piped-test-{}", std::process::id()));
    let made = File::create(&path).expect("a file of memory");
    made.set_len(PAGE).expect("a length");
    let reader = File::open(&path).expect("opens");
    std::fs::remove_file(&path).expect("removed");
    for fd in [made.as_fd(), reader.as_fd()] {
        let fault = lent::map(fd, PAGE, LentKind::Loose);
        assert!(matches!(fault, Err(SegmentFault::ReadOnly)), "{fault:?}");
    }
}

#[test]
fn accesses_to_memory_that_was_cut_are_faults_and_no_signals() {
    for cut in [0, 1, PAGE, 3 * PAGE] {
        let (fd, segment) = loose(4 * PAGE);
        let (_other, whole) = loose(4 * PAGE);
        let mut bytes = vec![7; 4 * PAGE as usize];
        segment.store(0, &bytes).expect("all is there");
        let sum = segment.crc32c(0, 4 * PAGE).expect("all is there");
        assert_eq!(segment.crc32c(0, 4 * PAGE), Ok(sum));
        assert!(!segment.is_torn());
        rustix::fs::ftruncate(&fd, cut).expect("cut");
        assert!(segment.load(0, &mut bytes).is_err(), "{cut}");
        assert!(segment.is_torn());
        assert!(segment.store(3 * PAGE, b"late").is_err());
        assert!(segment.crc32c(0, 4 * PAGE).is_err());
        assert!(segment.copy(0, &whole, 0, 4 * PAGE).is_err());
        assert!(whole.copy(0, &segment, 0, 4 * PAGE).is_err());
        assert!(!whole.is_torn(), "the other one is whole");
        assert!(segment.copy(3 * PAGE, &segment, 0, PAGE).is_err());
        assert_eq!(rustix::fs::fstat(&fd).expect("known").st_size, cut as i64, "it does not grow");
        // What is left can be used, and what comes back, too.
        if cut > 0 {
            segment.load(0, &mut bytes[..1]).expect("a byte is left");
            assert_eq!(bytes[0], 7);
        }
        rustix::fs::ftruncate(&fd, 4 * PAGE).expect("long again");
        segment.load(0, &mut bytes).expect("there again");
        assert!(bytes[PAGE as usize * 3..].iter().all(|byte| *byte == 0));
        assert!(segment.is_torn(), "that it was cut is not forgotten");
    }
}

#[test]
fn whole_memory_is_whole_whichever_way_it_is_copied() {
    let (_one, a) = loose(3 * PAGE);
    let plain = Segment::create(3 * PAGE).expect("memory");
    let bytes: Vec<u8> = (0..3 * PAGE).map(|at| ((at * 31) >> 3) as u8).collect();
    plain.store(0, &bytes).expect("inside");
    plain.copy(10, &a, 20, 2 * PAGE).expect("inside");
    let mut back = vec![0; 2 * PAGE as usize];
    a.load(20, &mut back).expect("inside");
    assert_eq!(back, &bytes[10..][..2 * PAGE as usize]);
    assert_eq!(a.crc32c(20, 2 * PAGE), plain.crc32c(10, 2 * PAGE));
    assert!(a.load(3 * PAGE - 1, &mut [0; 2]).is_err(), "outside");
    assert!(a.fetch_add(0, 1).is_err() && a.compare_swap(8, 0, 1).is_err(), "no atomic words");
    assert!(!a.is_torn(), "an access outside says nothing of the memory");
    // Holes are no cut: they are filled at the next touch.
    let (fd, a) = loose(3 * PAGE);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&fd, hole, 0, 3 * PAGE).expect("a hole");
    a.load(0, &mut back).expect("zeros");
    assert!(!a.is_torn() && back.iter().all(|byte| *byte == 0));
}

#[test]
#[should_panic(expected = "read_at")]
fn nobody_looks_in_place_at_what_others_can_write() {
    let fd = memfd(PAGE, SealFlags::SHRINK);
    let range = ExclusiveRange::claim(lent::map(&fd, PAGE, LentKind::Sealed).expect("memory"));
    assert!(!range.is_sole());
    let _ = range.as_slice();
}
