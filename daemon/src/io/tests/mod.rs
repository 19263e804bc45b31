//! The driver against the real kernel.

mod bounds;
mod files;
mod foreign;
mod holding;
mod lending;
mod lifecycle;
mod limits;
mod loose;
mod sockets;
mod tiers;
mod trying;
mod wake;

use std::fs::File;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use piped_core::ids::{SegmentId, SocketId};
use piped_core::io::{Done, Io, Op, Span, Token};
use piped_core::units::Nanos;
use piped_ring::Segment;
use rustix::fs::{Mode, OFlags};

use super::{UringConfig, UringIo};

/// Time after which a necessary event has not happened. Never reached by a test that passes.
pub(super) const PATIENCE: Nanos = Nanos::from_millis(20_000);

/// Configuration of a small driver.
pub(super) fn config() -> UringConfig {
    UringConfig {
        ops_max: 128,
        sq_entries: 16,
        files_max: 32,
        segments_max: 8,
        watches_max: 8,
        ..UringConfig::default()
    }
}

pub(super) fn driver() -> UringIo {
    UringIo::new(&config()).expect("io_uring is there")
}

/// Waits until `count` operations have ended; returns them in the order of their ends.
pub(super) fn finish(io: &mut UringIo, count: usize) -> Vec<Done> {
    let mut dones = Vec::new();
    let until = io.now() + PATIENCE;
    while dones.len() < count {
        assert!(io.now() < until, "{} of {count} have ended: {dones:?}", dones.len());
        io.wait(Some(until)).unwrap();
        io.poll_dones(&mut |done| dones.push(done));
    }
    assert_eq!(dones.len(), count, "{dones:?}");
    dones
}

/// Does one operation, and returns its result.
pub(super) fn run(io: &mut UringIo, op: Op) -> i32 {
    let token = Token(0x5eed_0000_0000_0001);
    assert!(io.push(token, op));
    let done = finish(io, 1)[0];
    assert_eq!(done.token, token);
    done.result
}

/// Releases the rest, and checks that nothing more comes.
pub(super) fn expect_silence(io: &mut UringIo) {
    // A no-op pushed last comes back after everything that was due before it.
    assert!(io.push(Token(u64::MAX), Op::Nop));
    assert_eq!(finish(io, 1), [Done { token: Token(u64::MAX), result: 0 }]);
    assert_eq!(io.counters().in_flight, 0);
}

pub(super) fn segment(io: &mut UringIo, bytes: u64) -> SegmentId {
    io.add_segment(Arc::new(Segment::create(bytes).unwrap())).unwrap()
}

pub(super) fn span(segment: SegmentId, offset: u64, length: u32) -> Span {
    Span { segment, offset, length }
}

/// Bytes that differ from place to place.
pub(super) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

pub(super) fn load(io: &mut UringIo, from: Span) -> Vec<u8> {
    let mut bytes = vec![0; from.length as usize];
    io.load(from, &mut bytes);
    bytes
}

/// Opens a file for reading and writing, made if need be. `None` if the file system has no
/// O_DIRECT.
pub(super) fn open(path: &Path, direct: bool) -> Option<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let flags = if direct { flags | OFlags::DIRECT } else { flags };
    match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => Some(fd),
        Err(error) if direct => {
            println!("skipped: no O_DIRECT on {} ({error})", path.display());
            None
        }
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Makes a file with this content.
pub(super) fn filled_file(path: &Path, bytes: &[u8]) {
    File::create(path).unwrap().write_all(bytes).unwrap();
}

/// Makes a socket of the driver's with the other end.
pub(super) fn socket(io: &mut UringIo) -> (SocketId, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    theirs.set_nodelay(true).unwrap();
    // The control thread's sockets do not block either.
    ours.set_nonblocking(true).unwrap();
    (io.add_socket(ours.into()).unwrap(), theirs)
}
