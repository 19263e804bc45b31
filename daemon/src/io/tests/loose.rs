//! Memory that can vanish: the kernel says so, and no connection is lost for it.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use piped_core::ids::{FileId, SegmentId};
use piped_core::io::{Io, NOTICE_COPIED, NOTICE_IN_PLACE, Op, Resource, Spans, Token};
use piped_ring::{LentKind, lent};
use rustix::fs::MemfdFlags;

use super::sockets::exercise_in;
use super::{driver, filled_file, finish, load, open, pattern, run, segment, socket, span};
use crate::io::UringIo;
use crate::io::bounce::BOUNCE_BYTES;

const EFAULT: i32 = -libc::EFAULT;

fn loose(io: &mut UringIo, bytes: u64) -> (OwnedFd, SegmentId) {
    let memory = rustix::fs::memfd_create(c"loose", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, bytes).unwrap();
    let segment = lent::map(&memory, bytes, LentKind::Loose).unwrap();
    (memory, io.add_segment(Arc::new(segment)).unwrap())
}

fn cut(memory: &OwnedFd, bytes: u64) {
    rustix::fs::ftruncate(memory, bytes).unwrap();
}

#[test]
fn streams_carry_what_lies_in_memory_that_could_vanish() {
    let mut io = driver();
    let (_memory, segment) = loose(&mut io, 1 << 16);
    exercise_in(&mut io, segment);
    assert_eq!(io.counters().registered_bytes, 0, "pinned pages would outlive a cut");
    assert_eq!(io.take_torn(), None);
    assert_eq!(io.counters().misuses, 0);
}

#[test]
fn what_is_longer_than_a_bounce_ends_short_and_in_order() {
    let mut io = driver();
    let (ours, mut theirs) = socket(&mut io);
    let plain = segment(&mut io, 4096);
    let bytes = pattern(3 * BOUNCE_BYTES as usize, 11);
    let (_memory, lent) = loose(&mut io, bytes.len() as u64);
    let whole = span(lent, 0, bytes.len() as u32);
    io.store(&bytes, whole);
    io.store(b"header", span(plain, 0, 6));
    // What follows a part that is left out is left out, too.
    let spans = [span(plain, 0, 6), whole.part(0, BOUNCE_BYTES + 100), span(plain, 0, 6)];
    let send = Op::Send { socket: ours, spans: Spans::from_iter(spans) };
    assert_eq!(run(&mut io, send), 6 + BOUNCE_BYTES as i32);
    let mut got = vec![0; 6 + BOUNCE_BYTES as usize];
    theirs.read_exact(&mut got).unwrap();
    assert_eq!(&got[..6], b"header");
    assert!(got[6..] == bytes[..BOUNCE_BYTES as usize]);
    let writer = std::thread::spawn({
        let bytes = bytes.clone();
        move || {
            theirs.write_all(&bytes).unwrap();
            theirs
        }
    });
    io.store(&vec![0; bytes.len()], whole);
    let mut done = 0;
    while done < whole.length {
        let rest = Spans::from_iter([whole.part(done, whole.length)]);
        let received = run(&mut io, Op::Receive { socket: ours, spans: rest, whole: true });
        assert!((1..=BOUNCE_BYTES as i32).contains(&received), "{received}");
        done += received as u32;
    }
    assert!(load(&mut io, whole) == bytes);
    drop(writer.join().unwrap());
}

#[test]
fn a_cut_is_an_error_of_files_and_zeros_for_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let mut io = driver();
    let (ours, mut theirs) = socket(&mut io);
    let (memory, lent) = loose(&mut io, 64 << 10);
    let (_other, whole) = loose(&mut io, 64 << 10);
    let all = span(lent, 0, 64 << 10);
    io.store(&[7; 64 << 10], all);
    let paths = [false, true].map(|direct| (directory.path().join("file"), direct));
    filled_file(&paths[0].0, &pattern(64 << 10, 3));
    let files = paths.map(|(path, direct)| open(&path, direct));
    let files: Vec<FileId> =
        files.into_iter().flatten().map(|it| io.add_file(it).unwrap()).collect();
    for file in &files {
        assert_eq!(run(&mut io, Op::Read { file: *file, offset: 0, into: all }), 64 << 10);
        assert_eq!(run(&mut io, Op::Write { file: *file, offset: 0, from: all }), 64 << 10);
    }
    cut(&memory, 4096);
    let gone = span(lent, 8192, 8192);
    for file in &files {
        assert_eq!(run(&mut io, Op::Read { file: *file, offset: 0, into: gone }), EFAULT);
        assert_eq!(run(&mut io, Op::Write { file: *file, offset: 0, from: gone }), EFAULT);
    }
    assert_eq!(io.take_torn(), None, "operations tell by themselves");
    assert!(io.is_loose(lent) && !io.is_torn(lent) && !io.is_torn(whole));
    // A frame that was promised is sent, whatever is in it.
    let send = Op::Send { socket: ours, spans: Spans::from_iter([gone]) };
    assert_eq!(run(&mut io, send), 8192);
    let mut got = vec![1; 8192];
    theirs.read_exact(&mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 0));
    assert!(io.is_torn(lent) && !io.is_torn(whole));
    assert_eq!((io.take_torn(), io.take_torn()), (Some(lent), None));
    // What was received is lost, and what is behind it is not.
    theirs.write_all(&pattern(12_288, 5)).unwrap();
    let spans = Spans::from_iter([gone, span(whole, 0, 4096)]);
    assert_eq!(run(&mut io, Op::Receive { socket: ours, spans, whole: true }), 12_288);
    assert_eq!(load(&mut io, span(whole, 0, 4096)), pattern(12_288, 5)[8192..]);
    assert_eq!(load(&mut io, gone), [0; 8192]);
    io.copy(gone, span(whole, 0, 8192));
    io.copy(span(whole, 0, 8192), gone);
    io.store(b"lost", gone.part(0, 4));
    let _ = io.crc32c(gone);
    assert_eq!(io.take_torn(), None, "it is told once");
    assert!(!io.is_torn(whole));
    assert_eq!(io.counters().misuses, 0, "it is nobody's fault here");
    for segment in [lent, whole] {
        io.release(Resource::Segment(segment));
    }
    for file in files {
        io.release(Resource::File(file));
    }
    io.release(Resource::Socket(ours));
    assert_eq!(io.holds(), (0, 0));
}

#[test]
fn a_send_that_lends_to_the_kernel_lends_the_copy() {
    let mut io = driver();
    if !io.sends_without_copy() {
        println!("skipped: this kernel sends with a copy");
        return;
    }
    let (ours, mut theirs) = socket(&mut io);
    let (memory, lent) = loose(&mut io, 64 << 10);
    let bytes = pattern(40_000, 9);
    io.store(&bytes, span(lent, 100, 40_000));
    let spans = Spans::from_iter([span(lent, 100, 40_000)]);
    let send = Op::SendZeroCopy { socket: ours, spans, notice: Token(2) };
    assert!(io.push(Token(1), send));
    // The kernel has the copy by now.
    cut(&memory, 0);
    let mut got = vec![0; 40_000];
    let reader = std::thread::spawn(move || {
        theirs.read_exact(&mut got).unwrap();
        got
    });
    let dones = finish(&mut io, 2);
    assert_eq!((dones[0].token, dones[0].result), (Token(1), 40_000));
    assert!([NOTICE_COPIED, NOTICE_IN_PLACE].contains(&dones[1].result), "{dones:?}");
    assert!(reader.join().unwrap() == bytes);
    assert_eq!(io.take_torn(), None);
}

#[test]
fn what_cannot_be_copied_is_zeros_and_not_what_was_there_before() {
    let mut io = driver();
    let staging = segment(&mut io, 16 << 10);
    for left in [0, 8192] {
        let (memory, lent) = loose(&mut io, 16 << 10);
        let (from, to) = (span(lent, 4096, 8192), span(staging, 100, 8192));
        io.store(&pattern(16 << 10, 3), span(staging, 0, 16 << 10));
        cut(&memory, left);
        io.copy(from, to);
        assert!(load(&mut io, to).iter().all(|byte| *byte == 0), "another client's bytes");
        assert_eq!(load(&mut io, span(staging, 0, 100)), pattern(16 << 10, 3)[..100]);
        assert_eq!(io.take_torn(), Some(lent));
    }
    assert_eq!(io.counters().misuses, 0);
}
