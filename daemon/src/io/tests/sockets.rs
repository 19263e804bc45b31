use std::io::{Read as _, Write as _};
use std::net::Shutdown;

use piped_core::ids::SegmentId;
use piped_core::io::{Done, Io, Op, Resource, SPANS_PER_OP_MAX, Spans, Token};
use piped_core::modes::IoFeature;

use super::{
    PATIENCE, config, driver, expect_silence, finish, load, pattern, run, segment, socket, span,
};
use crate::io::{FeatureMask, OpKind, UringConfig, UringIo};

/// Does sends and receives of every form, and compares the data.
pub(super) fn exercise(io: &mut UringIo) {
    let memory = segment(io, 1 << 16);
    exercise_in(io, memory);
}

/// Does so in a segment of at least 64 KiB.
pub(super) fn exercise_in(io: &mut UringIo, memory: SegmentId) {
    let (ours, mut theirs) = socket(io);
    while io.poll_registration() {}
    let bytes = pattern(1600, 5);
    io.store(&bytes, span(memory, 0, 1600));

    // Sixteen pieces, each with its own length, in the order given.
    let mut spans = Spans::new();
    let mut offset = 0;
    for index in 0..SPANS_PER_OP_MAX as u32 {
        assert!(spans.push(span(memory, offset, 20 + index * 10)));
        offset += u64::from(20 + index * 10);
    }
    assert_eq!(run(io, Op::Send { socket: ours, spans }), offset as i32);
    let mut received = vec![0; offset as usize];
    theirs.read_exact(&mut received).unwrap();
    assert_eq!(received, bytes[..offset as usize]);
    let one = Spans::from_iter([span(memory, 100, 50)]);
    assert_eq!(run(io, Op::Send { socket: ours, spans: one }), 50);
    theirs.read_exact(&mut received[..50]).unwrap();
    assert_eq!(received[..50], bytes[100..150]);

    // A receive that is not whole takes what is there.
    theirs.write_all(&bytes[..100]).unwrap();
    let into = span(memory, 8192, 1000);
    let spans = Spans::from_iter([into]);
    assert_eq!(run(io, Op::Receive { socket: ours, spans, whole: false }), 100);
    assert_eq!(load(io, into.part(0, 100)), bytes[..100]);

    // A whole one takes all of it, however it comes, scattered.
    let pieces = [into.part(0, 7), into.part(500, 300), into.part(900, 93)];
    let spans = Spans::from_iter(pieces);
    assert!(io.push(Token(9), Op::Receive { socket: ours, spans, whole: true }));
    io.submit().unwrap();
    theirs.write_all(&bytes[..150]).unwrap();
    io.poll_dones(&mut |done| panic!("not whole: {done:?}"));
    theirs.write_all(&bytes[150..151]).unwrap();
    io.submit().unwrap();
    io.poll_dones(&mut |done| panic!("not whole: {done:?}"));
    theirs.write_all(&bytes[151..400]).unwrap();
    assert_eq!(finish(io, 1), [Done { token: Token(9), result: 400 }]);
    let landed: Vec<u8> = pieces.iter().flat_map(|piece| load(io, *piece)).collect();
    assert_eq!(landed, bytes[..400]);

    // The end of the stream ends a whole receive short, and the next one with nothing.
    let receive = Op::Receive { socket: ours, spans: Spans::from_iter([into]), whole: true };
    theirs.write_all(&bytes[..30]).unwrap();
    theirs.shutdown(Shutdown::Write).unwrap();
    assert_eq!(run(io, receive), 30);
    assert_eq!(run(io, receive), 0);

    io.release(Resource::Socket(ours));
    io.release(Resource::Segment(memory));
    assert_eq!(io.holds(), (0, 0));
    assert_eq!(theirs.read(&mut received).unwrap(), 0, "closed");
}

#[test]
fn streams_carry_what_they_are_given() {
    exercise(&mut driver());
}

#[test]
fn a_shard_that_never_sleeps_gets_its_completions() {
    for features in [FeatureMask::ALL, FeatureMask::without(&[IoFeature::DeferTaskrun])] {
        let mut io = UringIo::new(&UringConfig { features, ..config() }).unwrap();
        let (ours, mut theirs) = socket(&mut io);
        let memory = segment(&mut io, 4096);
        let spans = Spans::from_iter([span(memory, 0, 100)]);
        assert!(io.push(Token(1), Op::Receive { socket: ours, spans, whole: true }));
        io.submit().unwrap();
        let enters = io.counters().enters;
        for _ in 0..100 {
            io.poll_dones(&mut |done| panic!("too early: {done:?}"));
        }
        assert_eq!(io.counters().enters, enters, "looking costs no system call");
        theirs.write_all(&[1; 100]).unwrap();
        let (mut results, until) = (Vec::new(), io.now() + PATIENCE);
        while results.is_empty() && io.now() < until {
            io.poll_dones(&mut |done| results.push(done.result));
        }
        assert_eq!(results, [100]);
        assert!(io.counters().enters <= enters + 2);
    }
}

#[test]
fn a_whole_receive_goes_on_where_the_kernel_ends_it_short() {
    let mut io = driver();
    io.ask_whole = false;
    exercise(&mut io);
    assert!(io.counters().continued > 0, "the kernel was asked for everything");
}

#[test]
fn an_empty_receive_is_not_mistaken_for_the_end_of_the_stream() {
    let mut io = driver();
    let (ours, _theirs) = socket(&mut io);
    let receive = Op::Receive { socket: ours, spans: Spans::new(), whole: false };
    assert_eq!(run(&mut io, receive), -libc::EINVAL);
}

#[test]
fn a_cancelled_receive_ends_once() {
    let mut io = driver();
    let (ours, mut theirs) = socket(&mut io);
    let memory = segment(&mut io, 4096);
    let spans = Spans::from_iter([span(memory, 0, 100)]);
    for (submitted, whole) in [(true, false), (false, false), (true, true), (false, true)] {
        assert!(io.push(Token(1), Op::Receive { socket: ours, spans, whole }));
        if submitted {
            // Until it is not tried by plain calls any more.
            for _ in 0..1000 {
                io.reap(&mut |done| panic!("nothing came: {done:?}"));
            }
            io.submit().unwrap();
        }
        io.cancel(Token(1));
        io.cancel(Token(1));
        io.cancel(Token(2));
        assert_eq!(finish(&mut io, 1), [Done { token: Token(1), result: -libc::ECANCELED }]);
        expect_silence(&mut io);
        // A late cancellation has no effect, not even on the next operation at that place.
        io.cancel(Token(1));
        theirs.write_all(b"abc").unwrap();
        let receive = Op::Receive { socket: ours, spans, whole: false };
        assert_eq!(run(&mut io, receive), 3);
    }
    assert_eq!(io.counters().cancels, 3, "the kernel did not have one of them");
    expect_silence(&mut io);
}

#[test]
fn a_cancelled_whole_receive_tells_what_it_has() {
    for ask_whole in [true, false] {
        let mut io = driver();
        io.ask_whole = ask_whole;
        let (ours, mut theirs) = socket(&mut io);
        let memory = segment(&mut io, 4096);
        let spans = Spans::from_iter([span(memory, 0, 100)]);
        theirs.write_all(b"abc").unwrap();
        assert!(io.push(Token(1), Op::Receive { socket: ours, spans, whole: true }));
        io.submit().unwrap();
        io.poll_dones(&mut |done| panic!("not whole: {done:?}"));
        io.cancel(Token(1));
        assert_eq!(finish(&mut io, 1), [Done { token: Token(1), result: 3 }]);
        expect_silence(&mut io);
    }
}

#[test]
fn a_released_socket_ends_its_operations_and_closes_after_the_last() {
    let mut io = driver();
    let (ours, mut theirs) = socket(&mut io);
    let memory = segment(&mut io, 4096);
    let spans = Spans::from_iter([span(memory, 0, 100)]);
    for token in 0..3 {
        let op = Op::Receive { socket: ours, spans, whole: token == 1 };
        assert!(io.push(Token(token), op));
    }
    io.submit().unwrap();
    io.release(Resource::Socket(ours));
    assert_eq!(io.holds().0, 1, "in use");
    // For new operations it is gone at once.
    assert!(io.push(Token(3), Op::Send { socket: ours, spans }));
    let dones = finish(&mut io, 4);
    for done in &dones {
        let expected = if done.token == Token(3) { -libc::EBADF } else { 0 };
        assert_eq!(done.result, expected, "{dones:?}");
    }
    assert_eq!(io.holds().0, 0);
    assert_eq!(theirs.read(&mut [0; 8]).unwrap(), 0, "the other side sees the end");
    expect_silence(&mut io);
}

#[test]
fn a_send_larger_than_the_socket_buffers_waits_for_the_reader() {
    let mut io = driver();
    let (ours, mut theirs) = socket(&mut io);
    let length: u32 = 24 << 20;
    let memory = segment(&mut io, u64::from(length));
    let bytes = pattern(length as usize, 13);
    io.store(&bytes, span(memory, 0, length));
    let reader = std::thread::spawn(move || {
        let mut received = vec![0; length as usize];
        theirs.read_exact(&mut received).map(|()| received)
    });
    let mut sent = 0;
    while sent < length {
        let spans = Spans::from_iter([span(memory, u64::from(sent), length - sent)]);
        let result = run(&mut io, Op::Send { socket: ours, spans });
        assert!(result > 0, "{result}");
        sent += result as u32;
    }
    assert!(reader.join().unwrap().unwrap() == bytes);
    println!("sends: {}", io.counters().ops_of(OpKind::Send));
}

#[test]
fn a_send_to_nobody_is_an_error() {
    let mut io = driver();
    let (ours, theirs) = socket(&mut io);
    drop(theirs);
    let memory = segment(&mut io, 4096);
    let spans = Spans::from_iter([span(memory, 0, 100)]);
    let mut result = 0;
    // The first sends may still go into the buffer, until the reset has come back.
    while result >= 0 {
        result = run(&mut io, Op::Send { socket: ours, spans });
    }
    assert!([-libc::EPIPE, -libc::ECONNRESET].contains(&result), "{result}");
}
