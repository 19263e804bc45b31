//! Operations that the kernel refuses to the driver's ring, tried with entries that the driver
//! never builds.

use std::fs::File;
use std::os::fd::AsRawFd;

use io_uring::{opcode, squeue, types};
use piped_core::io::Op;
use piped_core::modes::IoFeature;

use super::{config, filled_file, open, run, segment, span};
use crate::io::restrict::{Bounds, LENDING, NEEDED};
use crate::io::ring::Patience;
use crate::io::{FeatureMask, UringConfig, UringIo};

/// Result that an entry ends with.
fn ends_with(io: &mut UringIo, entry: &squeue::Entry) -> i32 {
    // SAFETY: the entries below point to constants, or to buffers that outlive this call, which
    // waits for their end.
    assert!(unsafe { io.ring.push(entry) });
    io.enter(Patience::Forever);
    io.take_fault().expect("the ring serves");
    io.ring.pop().expect("a completion").result()
}

fn fixed(entry: squeue::Entry) -> squeue::Entry {
    entry.flags(squeue::Flags::FIXED_FILE)
}

/// Bounded driver; `None`, with the reason printed, if the kernel cannot bind a ring to registered
/// files.
fn bounded(config: &UringConfig) -> Option<UringIo> {
    let io = UringIo::new(config).unwrap();
    if io.bounds != Bounds::Files {
        eprintln!("skipped: {:?}", io.degraded());
        return None;
    }
    Some(io)
}

/// All shapes of rings: each must be bounded, whichever thread submits.
fn shapes() -> [UringConfig; 4] {
    let without = |features: &[IoFeature]| UringConfig {
        features: FeatureMask::without(features),
        ..config()
    };
    [
        config(),
        without(&[IoFeature::DeferTaskrun]),
        without(&[IoFeature::DeferTaskrun, IoFeature::CoopTaskrun, IoFeature::RingFd]),
        UringConfig { sqpoll_idle_ms: Some(1000), ..config() },
    ]
}

#[test]
fn an_operation_that_is_not_listed_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let outside = directory.path().join("outside");
    filled_file(&outside, b"secret");
    let path = std::ffi::CString::new(outside.to_str().unwrap()).unwrap();
    let at = types::Fd(libc::AT_FDCWD);
    for config in shapes() {
        let Some(mut io) = bounded(&config) else { return };
        for entry in [
            opcode::OpenAt::new(at, path.as_ptr()).build(),
            opcode::UnlinkAt::new(at, path.as_ptr()).build(),
            opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build(),
            opcode::FilesUpdate::new([0].as_ptr(), 1).build(),
            opcode::Close::new(types::Fd(0)).build(),
        ] {
            assert_eq!(ends_with(&mut io, &fixed(entry)), -libc::EACCES, "{:?}", io.tier());
        }
        assert!(outside.exists());
        // The ring is as good as before.
        assert_eq!(run(&mut io, Op::Nop), 0);
    }
}

#[test]
fn every_operation_that_is_not_listed_is_refused() {
    let Some(mut io) = bounded(&config()) else { return };
    let listed = |code: u8| NEEDED.iter().any(|(it, _)| *it == code) || LENDING.contains(&code);
    let mut unlisted = 0;
    for code in (0..=u8::MAX).filter(|&code| !listed(code)) {
        let mut bytes = [0_u8; 64];
        (bytes[0], bytes[1]) = (code, squeue::Flags::FIXED_FILE.bits());
        // SAFETY: `squeue::Entry` is the kernel's 64 plain bytes, of which all are given; no
        // address is in them.
        let entry: squeue::Entry = unsafe { std::mem::transmute(bytes) };
        let result = ends_with(&mut io, &entry);
        // The kernel knows no operation of that number, or does not let this ring have it.
        assert!([-libc::EACCES, -libc::EINVAL].contains(&result), "{code}: {result}");
        unlisted += usize::from(result == -libc::EACCES);
    }
    assert!(unlisted > 20, "{unlisted} are not all of them");
}

#[test]
fn a_descriptor_that_is_not_registered_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    filled_file(&path, b"0123456789");
    let stranger = File::open(&path).unwrap();
    for config in shapes() {
        let Some(mut io) = bounded(&config) else { return };
        let mut buffer = [0_u8; 10];
        let address = buffer.as_mut_ptr();
        let read = |number| opcode::Read::new(types::Fd(number), address, 10).build();
        let by_number = read(stranger.as_raw_fd());
        assert_eq!(ends_with(&mut io, &by_number), -libc::EACCES, "{:?}", io.tier());
        // There is nothing at that place.
        let nowhere = fixed(read(0));
        assert_eq!(ends_with(&mut io, &nowhere), -libc::EBADF);
        assert_eq!(buffer, [0; 10]);
        let segment = segment(&mut io, 4096);
        let file = io.add_file(open(&path, false).unwrap()).unwrap();
        let into = span(segment, 0, 10);
        assert_eq!(run(&mut io, Op::Read { file, offset: 0, into }), 10);
    }
}

#[test]
fn flags_and_registrations_that_are_not_listed_are_refused() {
    let Some(mut io) = bounded(&config()) else { return };
    let linked = opcode::Nop::new().build().flags(squeue::Flags::ASYNC);
    assert_eq!(ends_with(&mut io, &fixed(linked)), -libc::EACCES);
    let refused = |result: std::io::Result<()>| {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EACCES));
    };
    let stranger = File::open("/dev/null").unwrap();
    refused(io.ring.submitter().register_eventfd(stranger.as_raw_fd()));
    refused(io.ring.submitter().unregister_files());
    refused(io.ring.submitter().register_restrictions(&mut []));
}

/// The list costs nothing while the ring works: the same operations take as many system calls with
/// it.
#[test]
fn bounds_cost_no_system_call_of_an_operation() {
    let calls = |features| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        filled_file(&path, &[7; 4096]);
        let mut io = UringIo::new(&UringConfig { features, ..config() }).unwrap();
        let segment = segment(&mut io, 4096);
        while io.poll_registration() {}
        let file = io.add_file(open(&path, false).unwrap()).unwrap();
        let before = io.counters();
        for _ in 0..500 {
            let into = span(segment, 0, 4096);
            assert_eq!(run(&mut io, Op::Read { file, offset: 0, into }), 4096);
        }
        let after = io.counters();
        (after.enters - before.enters, after.other_syscalls - before.other_syscalls)
    };
    let bounded = calls(FeatureMask::ALL);
    let open = calls(FeatureMask::without(&[IoFeature::Restrictions]));
    assert_eq!(bounded, open);
}

#[test]
fn without_room_for_all_files_the_operations_are_listed_still() {
    let features = FeatureMask::without(&[IoFeature::RegisteredFiles]);
    let mut io = UringIo::new(&UringConfig { features, ..config() }).unwrap();
    if io.bounds == Bounds::None {
        eprintln!("skipped: {:?}", io.degraded());
        return;
    }
    assert_eq!(io.bounds, Bounds::Operations);
    assert!(io.degraded().iter().any(|line| line.starts_with("restrictions: ")));
    let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build();
    assert_eq!(ends_with(&mut io, &socket), -libc::EACCES);
    let stranger = File::open("/dev/null").unwrap();
    let mut buffer = [0_u8; 10];
    let number = types::Fd(stranger.as_raw_fd());
    let read = opcode::Read::new(number, buffer.as_mut_ptr(), 10).build();
    assert_eq!(ends_with(&mut io, &read), 0, "by number, which is all there is");
}
