//! Which operations wait for a turn, which wait for more of their kind, and which go first.

use std::os::fd::OwnedFd;

use piped_core::io::{Io, Op, Spans, Token};
use piped_core::units::Nanos;

use super::*;

/// Driver with `count` reads in the kernel that end when somebody writes to the returned pipe.
fn busy(io: &mut UringIo, count: u64) -> OwnedFd {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let file = io.add_file(reader).unwrap();
    let memory = segment(io, 1 << 16);
    for token in 0..count {
        let into = span(memory, token * 8, 1);
        assert!(io.push(Token(token), Op::Read { file, offset: 0, into }));
    }
    io.submit().unwrap();
    writer
}

fn a_file_operation(io: &mut UringIo, token: u64) -> OwnedFd {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let file = io.add_file(reader).unwrap();
    let memory = segment(io, 4096);
    assert!(io.push(Token(token), Op::Read { file, offset: 0, into: span(memory, 0, 1) }));
    writer
}

#[test]
fn file_operations_wait_for_more_while_the_device_is_busy_but_not_for_long() {
    let mut io = driver();
    let others = busy(&mut io, 8);
    let mine = a_file_operation(&mut io, 100);
    let enters = io.counters().enters;
    for now in [0, 1_000, 4_999] {
        assert!(!io.submit_soon(Nanos(now)).unwrap(), "at {now} ns");
    }
    assert_eq!(io.counters().enters, enters);
    assert!(io.submit_soon(Nanos(5_000)).unwrap(), "its time is over");
    rustix::io::write(&mine, &[1]).unwrap();
    assert_eq!(finish(&mut io, 1)[0].token, Token(100));
    rustix::io::write(&others, &[1; 8]).unwrap();
    finish(&mut io, 8);
    expect_silence(&mut io);
}

#[test]
fn nothing_is_held_for_an_idle_device_or_beside_something_urgent() {
    let mut io = driver();
    let alone = a_file_operation(&mut io, 1);
    assert!(io.submit_soon(Nanos(0)).unwrap(), "the device has nothing to do");
    rustix::io::write(&alone, &[1]).unwrap();
    finish(&mut io, 1);

    let others = busy(&mut io, 8);
    let (socket, _theirs) = socket(&mut io);
    let memory = segment(&mut io, 4096);
    let spans = Spans::from_iter([span(memory, 0, 1)]);
    let mine = a_file_operation(&mut io, 100);
    assert!(io.push(Token(101), Op::Send { socket, spans }));
    assert!(io.submit_soon(Nanos(10)).unwrap(), "a send does not wait");
    rustix::io::write(&mine, &[1]).unwrap();
    rustix::io::write(&others, &[1; 8]).unwrap();
    finish(&mut io, 10);
    expect_silence(&mut io);
}

#[test]
fn who_sleeps_takes_what_is_held_along() {
    let mut io = driver();
    let others = busy(&mut io, 8);
    let mine = a_file_operation(&mut io, 100);
    rustix::io::write(&mine, &[1]).unwrap();
    assert!(!io.submit_soon(Nanos(0)).unwrap());
    assert_eq!(finish(&mut io, 1)[0].token, Token(100), "the wait submitted it");
    rustix::io::write(&others, &[1; 8]).unwrap();
    finish(&mut io, 8);
    expect_silence(&mut io);
}

#[test]
fn a_socket_released_with_a_receive_that_was_not_submitted_ends_it() {
    let mut io = driver();
    let (socket, _theirs) = socket(&mut io);
    let memory = segment(&mut io, 4096);
    let spans = Spans::from_iter([span(memory, 0, 100)]);
    assert!(io.push(Token(7), Op::Receive { socket, spans, whole: false }));
    io.release(piped_core::io::Resource::Socket(socket));
    let done = finish(&mut io, 1)[0];
    assert_eq!((done.token, done.result), (Token(7), 0), "shut down: the stream's end");
    expect_silence(&mut io);
}

#[test]
fn more_receives_than_the_queue_holds_all_go() {
    let mut io = driver();
    let mut theirs = Vec::new();
    let memory = segment(&mut io, 4096);
    for token in 0..24 {
        let (socket, other) = socket(&mut io);
        theirs.push(other);
        let spans = Spans::from_iter([span(memory, token * 8, 1)]);
        assert!(io.push(Token(token), Op::Receive { socket, spans, whole: true }));
    }
    for other in &mut theirs {
        other.write_all(&[1]).unwrap();
    }
    let mut tokens: Vec<u64> = finish(&mut io, 24).iter().map(|done| done.token.0).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (0..24).collect::<Vec<_>>());
    expect_silence(&mut io);
}
