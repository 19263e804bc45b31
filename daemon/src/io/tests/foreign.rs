//! Files that the ring must not see. The tests of the whole system have a file system that makes a
//! thread hang.

use piped_core::io::{Done, Io, Op, Resource, Token};

use super::files::exercise_file;
use super::{driver, expect_silence, filled_file, finish, load, open, pattern, segment, span};

#[test]
fn foreign_files_are_written_and_read_back_and_the_ring_sees_none_of_it() {
    let directory = tempfile::tempdir().unwrap();
    for direct in [false, true] {
        let Some(fd) = open(&directory.path().join(format!("{direct}")), direct) else { continue };
        let mut io = driver();
        let file = io.add_foreign_file(fd).unwrap();
        exercise_file(&mut io, file);
        let counters = io.counters();
        assert_eq!((counters.files_fixed, counters.files_plain), (0, 0));
        assert_eq!(io.holds(), (0, 0));
    }
}

#[test]
fn as_many_as_the_driver_takes_end_once_each() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let bytes = pattern(128 * 512, 5);
    filled_file(&path, &bytes);
    let mut io = driver();
    let file = io.add_foreign_file(open(&path, false).unwrap()).unwrap();
    let memory = segment(&mut io, 128 * 512);
    for round in 0..4 {
        for number in 0..128 {
            let (offset, into) = (number * 512, span(memory, number * 512, 512));
            assert!(io.push(Token(round << 32 | number), Op::Read { file, offset, into }));
        }
        assert!(!io.push(Token(7), Op::Nop), "the driver is full");
        let mut dones = finish(&mut io, 128);
        dones.sort_by_key(|done| done.token);
        for (number, done) in (0..).zip(dones) {
            assert_eq!(done, Done { token: Token(round << 32 | number), result: 512 });
        }
        assert_eq!(load(&mut io, span(memory, 0, 128 * 512)), bytes);
        io.store(&pattern(128 * 512, 9), span(memory, 0, 128 * 512));
    }
    expect_silence(&mut io);
}

#[test]
fn a_foreign_file_is_closed_after_its_last_operation_and_errors_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    filled_file(&path, &pattern(512, 5));
    let mut io = driver();
    let readable = std::fs::File::open(&path).unwrap();
    let file = io.add_foreign_file(std::os::fd::OwnedFd::from(readable)).unwrap();
    let memory = segment(&mut io, 4096);
    assert!(io.push(Token(1), Op::Write { file, offset: 0, from: span(memory, 0, 512) }));
    assert!(io.push(Token(2), Op::Read { file, offset: 0, into: span(memory, 4000, 512) }));
    assert!(io.push(Token(3), Op::Read { file, offset: 0, into: span(memory, 0, 512) }));
    io.cancel(Token(3));
    io.release(Resource::File(file));
    io.release(Resource::Segment(memory));
    let mut dones = finish(&mut io, 3);
    dones.sort_by_key(|done| done.token);
    assert_eq!(dones[0].result, -libc::EBADF);
    assert_eq!(dones[1].result, -libc::EFAULT, "the span is not inside");
    assert!([512, -libc::ECANCELED].contains(&dones[2].result), "{dones:?}");
    assert_eq!(io.holds(), (0, 0));
}

#[test]
fn a_driver_that_goes_leaves_nothing_that_others_use() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    filled_file(&path, &pattern(1 << 16, 5));
    for _ in 0..20 {
        let mut io = driver();
        let file = io.add_foreign_file(open(&path, false).unwrap()).unwrap();
        let memory = segment(&mut io, 1 << 16);
        for number in 0..64 {
            let into = span(memory, number * 1024, 1024);
            assert!(io.push(Token(number), Op::Read { file, offset: 0, into }));
        }
        drop(io);
    }
}
