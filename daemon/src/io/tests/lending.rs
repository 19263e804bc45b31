//! Sends that lend their memory, on the real kernel. On loopback the kernel copies when the other
//! side receives; bytes that never leave the socket are not copied.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Weak};

use piped_core::ids::SocketId;
use piped_core::io::{Done, Io, NOTICE_COPIED, NOTICE_IN_PLACE, Op, Resource, Span, Spans, Token};
use piped_core::modes::IoFeature;
use piped_core::units::Nanos;
use piped_ring::Segment;

use super::{config, driver, expect_silence, finish, pattern, segment, socket, span};
use crate::io::{FeatureMask, UringConfig, UringIo, clock};

fn lend(io: &mut UringIo, token: u64, socket: SocketId, spans: impl IntoIterator<Item = Span>) {
    let (spans, notice) = (Spans::from_iter(spans), Token(token + 1000));
    assert!(io.push(Token(token), Op::SendZeroCopy { socket, spans, notice }));
}

fn done(token: u64, result: i32) -> Done {
    Done { token: Token(token), result }
}

#[test]
fn a_send_that_lends_ends_twice_and_what_it_sends_arrives() {
    for registered in [true, false] {
        let features = match registered {
            true => FeatureMask::ALL,
            false => FeatureMask::without(&[IoFeature::RegisteredBuffers, IoFeature::DeferTaskrun]),
        };
        let mut io = UringIo::new(&UringConfig { features, ..config() }).unwrap();
        assert!(io.sends_without_copy(), "{:?}", io.degraded());
        assert!(io.tier().iter().any(|name| name == "send_zero_copy"));
        let (ours, mut theirs) = socket(&mut io);
        let memory = segment(&mut io, 1 << 20);
        assert!(!io.poll_registration());
        let bytes = pattern(1 << 20, 3);
        io.store(&bytes, span(memory, 0, 1 << 20));
        let reader = std::thread::spawn(move || {
            let mut received = vec![0; (1 << 20) + 100];
            theirs.read_exact(&mut received).map(|()| received)
        });
        // One piece, and several.
        lend(&mut io, 1, ours, [span(memory, 0, 1 << 19)]);
        assert_eq!(finish(&mut io, 2), [done(1, 1 << 19), done(1001, NOTICE_COPIED)]);
        lend(&mut io, 2, ours, [span(memory, 7, 100), span(memory, 1 << 19, 1 << 19)]);
        assert_eq!(finish(&mut io, 2), [done(2, (1 << 19) + 100), done(1002, NOTICE_COPIED)]);
        let received = reader.join().unwrap().unwrap();
        assert!(received[..1 << 19] == bytes[..1 << 19]);
        assert!(received[1 << 19..][..100] == bytes[7..107]);
        assert!(received[(1 << 19) + 100..] == bytes[1 << 19..]);
        assert_eq!(io.counters().lent, 0);
        expect_silence(&mut io);
    }
}

/// Socket with much room on our side, and an other end that has next to none and does not read.
fn choked(io: &mut UringIo) -> (SocketId, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    ours.set_nonblocking(true).unwrap();
    (io.add_socket(ours.into()).unwrap(), theirs)
}

/// Two sends on such a socket with memory that the kernel keeps: some of the first has left, and
/// nothing of the second.
fn lend_two(io: &mut UringIo) -> (SocketId, TcpStream, Weak<Segment>) {
    let (ours, theirs) = choked(io);
    let memory = Arc::new(Segment::create(1 << 17).unwrap());
    let freed = Arc::downgrade(&memory);
    let id = io.add_segment(memory).unwrap();
    io.poll_registration();
    for token in [1, 2] {
        lend(io, token, ours, [span(id, 0, 1 << 16)]);
        assert_eq!(finish(io, 1), [done(token, 1 << 16)]);
    }
    io.release(Resource::Segment(id));
    assert_eq!((io.counters().lent, io.counters().in_flight), (2, 2));
    (ours, theirs, freed)
}

#[test]
fn memory_is_lent_until_the_kernel_lets_go_and_a_closed_socket_makes_it() {
    let mut io = driver();
    let (ours, mut theirs, freed) = lend_two(&mut io);
    let soon = io.now() + Nanos::from_millis(20);
    while io.now() < soon {
        io.wait(Some(soon)).unwrap();
        io.poll_dones(&mut |done| panic!("the other side has not got it: {done:?}"));
    }
    assert!(freed.upgrade().is_some(), "the kernel may still read it");
    io.release(Resource::Socket(ours));
    assert_eq!(io.holds().0, 0, "a socket that only lends is closed at once");
    let mut dones = finish(&mut io, 2);
    dones.sort_by_key(|done| done.token);
    assert_eq!(dones, [done(1001, NOTICE_COPIED), done(1002, NOTICE_IN_PLACE)]);
    assert!(freed.upgrade().is_none());
    assert_eq!((io.counters().lent, io.holds()), (0, (0, 0)));
    expect_silence(&mut io);
    // The other end reads what had arrived, and learns that the rest will not come.
    let rest = theirs.read_to_end(&mut Vec::new());
    assert_eq!(rest.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn memory_comes_back_when_the_other_side_reads() {
    let mut io = driver();
    let (_ours, mut theirs, freed) = lend_two(&mut io);
    let reader = std::thread::spawn(move || {
        theirs.read_exact(&mut vec![0; 1 << 17]).unwrap();
        theirs
    });
    let dones = finish(&mut io, 2);
    assert_eq!(dones, [done(1001, NOTICE_COPIED), done(1002, NOTICE_COPIED)]);
    assert!(freed.upgrade().is_none());
    drop(reader.join().unwrap());
}

#[test]
fn dropping_the_driver_ends_loans_and_frees_their_memory() {
    let mut io = driver();
    let (_, _theirs, freed) = lend_two(&mut io);
    let begin = clock::now();
    drop(io);
    assert!(clock::now().since(begin) < UringIo::SHUTDOWN_TIMEOUT, "it was waited for in vain");
    assert!(freed.upgrade().is_none());
}

#[test]
fn a_send_that_cannot_be_still_ends_twice() {
    let mut io = driver();
    let memory = segment(&mut io, 1 << 16);
    let good = span(memory, 0, 1 << 16);
    let (ours, theirs) = socket(&mut io);
    // Refused before the kernel sees them: no such socket, no memory, memory that does not exist.
    lend(&mut io, 1, SocketId(77), [good]);
    lend(&mut io, 2, ours, []);
    lend(&mut io, 3, ours, [span(memory, 1 << 16, 1)]);
    let refused = [-libc::EBADF, -libc::EINVAL, -libc::EFAULT];
    let expected: Vec<Done> = (1..4)
        .zip(refused)
        .flat_map(|(token, errno)| [done(token, errno), done(token + 1000, NOTICE_IN_PLACE)])
        .collect();
    assert_eq!(finish(&mut io, 6), expected);
    assert_eq!(io.counters().misuses, 3);
    // Refused by the kernel: the other end is closed.
    drop(theirs);
    let mut token = 10;
    loop {
        lend(&mut io, token, ours, [good]);
        let dones = finish(&mut io, 2);
        assert_eq!([dones[0].token, dones[1].token], [Token(token), Token(token + 1000)]);
        if dones[0].result < 0 {
            assert!([-libc::EPIPE, -libc::ECONNRESET].contains(&dones[0].result), "{dones:?}");
            break;
        }
        token += 1;
    }
    // Cancelled while it waits for room.
    let (ours, _theirs) = choked(&mut io);
    let much = segment(&mut io, 32 << 20);
    lend(&mut io, 500, ours, [span(much, 0, 32 << 20)]);
    io.submit().unwrap();
    io.cancel(Token(500));
    let sent = finish(&mut io, 1)[0];
    assert_eq!(sent.token, Token(500));
    assert!(sent.result == -libc::ECANCELED || sent.result < 32 << 20, "{sent:?}");
    io.release(Resource::Socket(ours));
    assert_eq!(finish(&mut io, 1)[0].token, Token(1500));
    expect_silence(&mut io);
}

#[test]
fn a_driver_without_it_says_so() {
    let features = FeatureMask::without(&[IoFeature::SendZeroCopy]);
    let io = UringIo::new(&UringConfig { features, ..config() }).unwrap();
    assert!(!io.sends_without_copy());
    let said = "send_zero_copy: switched off by [io] disable_features";
    assert!(io.degraded().iter().any(|line| line == said), "{:?}", io.degraded());
}

#[test]
fn what_is_handed_over_is_with_the_kernel_at_once() {
    let mut io = driver();
    let (ours, mut theirs) = socket(&mut io);
    let memory = segment(&mut io, 4096);
    let spans = Spans::from_iter([span(memory, 0, 100)]);
    assert!(!io.hand_over(), "nothing was pushed");
    let enters = io.counters().enters;
    assert!(io.push(Token(1), Op::Send { socket: ours, spans }));
    assert!(io.hand_over(), "a send with room ends within the call");
    assert_eq!(io.counters().enters, enters + 1);
    theirs.read_exact(&mut [0; 100]).unwrap();
    assert_eq!(finish(&mut io, 1), [done(1, 100)]);
}
