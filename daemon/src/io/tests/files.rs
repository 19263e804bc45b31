use piped_core::ids::{FileId, SegmentId, SocketId};
use piped_core::io::{Done, Io, Op, Resource, Spans, Token};

use super::{
    config, driver, expect_silence, filled_file, finish, load, open, pattern, run, segment, span,
};
use crate::io::{OpKind, UringConfig, UringIo};

const BLOCK: u32 = 4096;

/// Does every file operation once, and compares the data.
pub(super) fn exercise(io: &mut UringIo, direct: bool) {
    let directory = tempfile::tempdir().unwrap();
    let Some(fd) = open(&directory.path().join("file"), direct) else { return };
    let file = io.add_file(fd).unwrap();
    exercise_file(io, file);
    assert_eq!(io.counters().registered_bytes, 0);
    assert_eq!(io.holds(), (0, 0));
}

/// Does so with an empty file, and closes it.
pub(super) fn exercise_file(io: &mut UringIo, file: FileId) {
    let memory = segment(io, 1 << 18);
    while io.poll_registration() {}
    let bytes = pattern(16 * BLOCK as usize, 7);
    let (source, target) = (span(memory, 0, 16 * BLOCK), span(memory, 1 << 17, 16 * BLOCK));
    io.store(&bytes, source);

    let length = u64::from(64 * BLOCK);
    assert_eq!(run(io, Op::Allocate { file, offset: 0, length }), 0);
    let offset = u64::from(8 * BLOCK);
    assert_eq!(run(io, Op::Write { file, offset, from: source }), 16 * BLOCK as i32);
    assert_eq!(run(io, Op::Sync { file }), 0);
    assert_eq!(run(io, Op::Read { file, offset, into: target }), 16 * BLOCK as i32);
    assert_eq!(load(io, target), bytes);
    assert_eq!(io.crc32c(source), io.crc32c(target));

    // Allocated blocks that were never written read as zeros; the file ends where it was told to.
    assert_eq!(run(io, Op::Read { file, offset: 0, into: target.part(0, BLOCK) }), BLOCK as i32);
    assert_eq!(load(io, target.part(0, BLOCK)), vec![0; BLOCK as usize]);
    let end = length - u64::from(BLOCK);
    assert_eq!(run(io, Op::Read { file, offset: end, into: target }), BLOCK as i32);
    assert_eq!(run(io, Op::Read { file, offset: length, into: target }), 0);

    io.release(Resource::File(file));
    io.release(Resource::Segment(memory));
    assert_eq!(io.counters().misuses, 0);
}

#[test]
fn buffered_files_are_written_and_read_back() {
    exercise(&mut driver(), false);
}

#[test]
fn direct_files_are_written_and_read_back() {
    exercise(&mut driver(), true);
}

#[test]
fn a_segment_works_before_and_after_its_registration() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    filled_file(&path, &pattern(BLOCK as usize, 3));
    let mut io = driver();
    let file = io.add_file(open(&path, false).unwrap()).unwrap();
    let memory = segment(&mut io, 1 << 16);
    let read = Op::Read { file, offset: 0, into: span(memory, 0, BLOCK) };

    assert_eq!(run(&mut io, read), BLOCK as i32);
    let before = io.counters();
    assert_eq!((before.buffers_plain, before.buffers_fixed), (1, 0));
    assert!(!io.poll_registration(), "one small segment is registered in one turn");
    assert_eq!(io.counters().registered_bytes, 1 << 16);
    assert_eq!(run(&mut io, read), BLOCK as i32);
    let after = io.counters();
    assert_eq!((after.buffers_plain, after.buffers_fixed), (1, 1));
    assert_eq!(after.files_plain, 0, "files are registered at once");
}

#[test]
fn a_turn_registers_no_more_than_its_share() {
    let mut io = driver();
    // The last one is more than a turn's share by itself, and goes alone.
    for kibibytes in [24, 24, 24, 24, 100, 4] {
        segment(&mut io, kibibytes << 10);
    }
    let mut steps = Vec::new();
    loop {
        let (submitter, counters) = (io.ring.submitter(), &mut io.counters);
        let more = io.memory.register_some(64 << 10, &submitter, counters);
        steps.push(counters.registered_bytes >> 10);
        if !more {
            break;
        }
    }
    assert_eq!(steps, [48, 96, 196, 200]);
}

#[test]
fn a_long_segment_is_registered_and_taken_out_piece_by_piece() {
    const PIECE: u64 = crate::io::REGISTRATION_BYTES_PER_TURN;
    let mut io = driver();
    let long = segment(&mut io, 2 * PIECE + 4096);
    let mut steps = Vec::new();
    while io.poll_registration() {
        steps.push(io.counters().registered_bytes);
    }
    assert_eq!(steps, [PIECE, 2 * PIECE]);
    assert_eq!(io.counters().registered_bytes, 2 * PIECE + 4096);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let bytes = pattern(8192, 5);
    filled_file(&path, &bytes);
    let file = io.add_file(open(&path, false).unwrap()).unwrap();
    // In one piece, in the last, and across two pieces: that one pins its own pages.
    for (number, offset) in [4096, 2 * PIECE - 4096, 2 * PIECE - 8192].into_iter().enumerate() {
        let into = span(long, offset, 8192);
        let into = if number == 0 { span(long, offset, 4096) } else { into };
        assert_eq!(run(&mut io, Op::Read { file, offset: 0, into }), into.length as i32);
        assert_eq!(super::load(&mut io, into), bytes[..into.length as usize]);
    }
    assert_eq!((io.counters().buffers_plain, io.counters().buffers_fixed), (1, 2));
    io.release(Resource::Segment(long));
    // First the short one and a whole one, which use up the turn's share; then the other.
    assert_eq!(io.counters().registered_bytes, PIECE);
    assert!(!io.poll_registration(), "the last one");
    assert_eq!(io.counters().registered_bytes, 0);
}

#[test]
fn many_reads_are_submitted_by_one_system_call() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let bytes = pattern(64 * BLOCK as usize, 11);
    filled_file(&path, &bytes);
    let mut io = UringIo::new(&UringConfig { sq_entries: 64, ..config() }).unwrap();
    let file = io.add_file(open(&path, false).unwrap()).unwrap();
    let memory = segment(&mut io, 1 << 18);
    io.poll_registration();
    let before = io.counters();
    for index in 0..64 {
        let offset = u64::from(index * BLOCK);
        let into = span(memory, offset, BLOCK);
        assert!(io.push(Token(u64::from(index)), Op::Read { file, offset, into }));
    }
    assert_eq!(io.counters().syscalls(), before.syscalls(), "pushing is free");
    io.wait(None).unwrap();
    assert_eq!(io.counters().enters, before.enters + 1);
    assert_eq!(io.counters().ops_of(OpKind::Read), 64);
    let mut count = 0;
    io.poll_dones(&mut |done| {
        assert_eq!(done.result, BLOCK as i32);
        count += 1;
    });
    finish(&mut io, 64 - count);
    assert_eq!(load(&mut io, span(memory, 0, 64 * BLOCK)), bytes);
    let calls = io.counters().syscalls() - before.syscalls();
    assert!(calls <= 6, "{calls} system calls for 64 reads");
}

#[test]
fn mistakes_above_end_as_errors_and_touch_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    filled_file(&path, b"x");
    let mut io = driver();
    let file = io.add_file(open(&path, false).unwrap()).unwrap();
    let memory = segment(&mut io, 4096);
    let good = span(memory, 0, 16);
    let (fault, bad) = (-libc::EFAULT, -libc::EBADF);
    for (op, errno) in [
        (Op::Read { file, offset: 0, into: span(memory, 4090, 7) }, fault),
        (Op::Read { file, offset: 0, into: span(memory, u64::MAX, 7) }, fault),
        (Op::Write { file, offset: 0, from: span(SegmentId(77), 0, 1) }, fault),
        (Op::Write { file: FileId(5), offset: 0, from: good }, bad),
        (Op::Sync { file: FileId(u32::MAX) }, bad),
        // A file is no socket, even if the number is right.
        (Op::Send { socket: SocketId(file.0), spans: Spans::from_iter([good]) }, bad),
    ] {
        assert_eq!(run(&mut io, op), errno, "{op:?}");
    }
    assert_eq!(io.counters().misuses, 6);
    let mut bytes = [1; 8];
    io.load(span(memory, 4095, 8), &mut bytes);
    assert_eq!(bytes, [0; 8], "no bytes of elsewhere");
    io.store(&bytes, span(memory, 4095, 8));
    io.copy(good, span(memory, 4095, 16));
    assert_eq!(io.crc32c(span(memory, 1, 4096)), 0);
    assert_eq!(io.counters().misuses, 10);
    // Everything half borrowed was returned.
    io.release(Resource::File(file));
    io.release(Resource::Segment(memory));
    assert_eq!(io.holds(), (0, 0));
    io.release(Resource::File(file));
    assert_eq!(io.counters().misuses, 11);
}

#[test]
fn a_full_driver_says_so_and_takes_nothing() {
    let mut io = UringIo::new(&UringConfig { ops_max: 8, sq_entries: 2, ..config() }).unwrap();
    for round in 0..10 {
        for token in 0..8 {
            assert!(io.push(Token(round * 100 + token), Op::Nop), "{token}");
        }
        assert!(!io.push(Token(99), Op::Nop));
        let mut tokens: Vec<u64> = finish(&mut io, 8).iter().map(|done| done.token.0).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (round * 100..round * 100 + 8).collect::<Vec<_>>());
    }
    expect_silence(&mut io);
}

#[test]
fn completions_that_overflow_their_queue_are_not_lost() {
    let mut io = UringIo::with_completions(&UringConfig { sq_entries: 4, ..config() }, 4).unwrap();
    for token in 0..100 {
        assert!(io.push(Token(token), Op::Nop), "{token}");
    }
    let mut tokens: Vec<u64> = Vec::new();
    while tokens.len() < 100 {
        io.submit().unwrap();
        io.poll_dones(&mut |Done { token, .. }| tokens.push(token.0));
    }
    tokens.sort_unstable();
    assert_eq!(tokens, (0..100).collect::<Vec<_>>());
    assert!(io.counters().overflows > 0, "the test did not overflow anything");
}
