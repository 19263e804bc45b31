//! Receives that are tried by plain calls: what comes, what ends them, and when they go to the
//! ring.

use std::io::Write as _;

use piped_core::io::{Done, Io, Op, Resource, Spans, Token};

use super::{driver, finish, load, segment, socket, span};
use crate::io::UringIo;

const RECEIVE: Token = Token(3);

/// Ends that need no system call of the ring's.
fn reap(io: &mut UringIo) -> Vec<Done> {
    let mut dones = Vec::new();
    io.reap(&mut |done| dones.push(done));
    dones
}

/// The one end that there is without the ring. Loopback delivers before the writer's call returns.
fn reap_one(io: &mut UringIo) -> Done {
    let dones = reap(io);
    assert_eq!(dones.len(), 1, "{dones:?}");
    dones[0]
}

#[test]
fn what_comes_while_the_thread_looks_is_there_without_the_ring() {
    let mut io = driver();
    let (ours, mut theirs) = socket(&mut io);
    let memory = segment(&mut io, 1 << 16);
    let into = span(memory, 64, 100);
    let enters = io.counters().enters;
    for round in 0..3_u8 {
        let spans = Spans::from_iter([into.part(0, 7), into.part(7, 93)]);
        assert!(io.push(RECEIVE, Op::Receive { socket: ours, spans, whole: false }));
        assert_eq!(reap(&mut io), []);
        theirs.write_all(&[round; 40]).unwrap();
        assert_eq!(reap_one(&mut io), Done { token: RECEIVE, result: 40 });
        assert_eq!(load(&mut io, into.part(0, 40)), [round; 40]);
    }
    assert_eq!(io.counters().enters, enters);
    assert_eq!(io.counters().in_flight, 0);
}

#[test]
fn what_does_not_come_goes_to_the_ring() {
    let mut io = driver();
    let (ours, mut theirs) = socket(&mut io);
    let memory = segment(&mut io, 1 << 16);
    let spans = Spans::from_iter([span(memory, 0, 100)]);
    let receive = Op::Receive { socket: ours, spans, whole: false };
    // After so many looks, and before the thread sleeps.
    for looks in [1000, 1] {
        assert!(io.push(RECEIVE, receive));
        assert!((0..looks).all(|_| reap(&mut io).is_empty()));
        io.submit().unwrap();
        theirs.write_all(&[looks as u8; 30]).unwrap();
        assert_eq!(finish(&mut io, 1), [Done { token: RECEIVE, result: 30 }]);
    }
}

#[test]
fn a_cancellation_ends_it_at_once_and_nothing_is_lost() {
    let mut io = driver();
    let (ours, mut theirs) = socket(&mut io);
    let memory = segment(&mut io, 1 << 16);
    let spans = Spans::from_iter([span(memory, 0, 100)]);
    assert!(io.push(RECEIVE, Op::Receive { socket: ours, spans, whole: false }));
    io.cancel(RECEIVE);
    io.cancel(RECEIVE);
    theirs.write_all(&[1; 30]).unwrap();
    assert_eq!(reap(&mut io), [Done { token: RECEIVE, result: -libc::ECANCELED }]);
    assert!(io.push(Token(4), Op::Receive { socket: ours, spans, whole: false }));
    assert_eq!(reap_one(&mut io), Done { token: Token(4), result: 30 });
}

#[test]
fn a_socket_that_is_given_back_or_ends_is_the_end_of_it() {
    let mut io = driver();
    let memory = segment(&mut io, 1 << 16);
    let spans = Spans::from_iter([span(memory, 0, 100)]);
    let (ours, theirs) = socket(&mut io);
    assert!(io.push(RECEIVE, Op::Receive { socket: ours, spans, whole: false }));
    io.release(Resource::Socket(ours));
    assert_eq!(reap_one(&mut io), Done { token: RECEIVE, result: 0 });
    drop(theirs);
    let (ours, theirs) = socket(&mut io);
    assert!(io.push(RECEIVE, Op::Receive { socket: ours, spans, whole: false }));
    drop(theirs);
    assert_eq!(reap_one(&mut io), Done { token: RECEIVE, result: 0 });
    io.release(Resource::Socket(ours));
    // Dropped while it is tried: the driver waits for nobody.
    let (ours, _theirs) = socket(&mut io);
    assert!(io.push(RECEIVE, Op::Receive { socket: ours, spans, whole: false }));
}

#[test]
fn a_third_connection_has_the_ring() {
    let mut io = driver();
    let memory = segment(&mut io, 1 << 16);
    let mut pairs: Vec<_> = (0..3).map(|_| socket(&mut io)).collect();
    for (number, (ours, _)) in pairs.iter().enumerate() {
        let spans = Spans::from_iter([span(memory, 100 * number as u64, 100)]);
        let token = Token(number as u64);
        assert!(io.push(token, Op::Receive { socket: *ours, spans, whole: false }));
    }
    for (number, (_, theirs)) in pairs.iter_mut().enumerate() {
        theirs.write_all(&[number as u8; 10]).unwrap();
    }
    let tried = reap(&mut io);
    assert_eq!(tried.iter().map(|done| done.token).collect::<Vec<_>>(), [Token(0), Token(1)]);
    assert_eq!(finish(&mut io, 1), [Done { token: Token(2), result: 10 }]);
}
