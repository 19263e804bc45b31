//! A link with a latency, where the kernel has none to give (netem): a relay of TCP connections.
//!
//! Bytes of one direction leave one after the other at the link's rate, whatever connections they
//! belong to, and arrive a fixed time later. On both sides of the relay is loopback, so TCP sees
//! neither rate nor latency and its window need not grow: that favours all contestants alike.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::net::sockopt::set_socket_linger;

use crate::clock;
use crate::failure::{Doing as _, Failure};
use crate::machine;

/// The most bytes that leave as one.
const PIECE_BYTES: usize = 32 << 10;

/// Pieces of a connection that are on the link at most. A gigabit has 20 of whole length in 5 ms;
/// if there are more, the sender waits.
const PIECES: usize = 1024;

/// How late a thread may wake without a loss for the rate: longer than the kernel's timers err,
/// shorter than the latency.
const LATE: Duration = Duration::from_millis(1);

/// When bytes of one direction leave, by a clock that its caller has.
#[derive(Debug)]
struct Pace {
    /// Bytes that leave in a second.
    rate: u64,
    /// When all bytes so far have left.
    free: Duration,
}

impl Pace {
    fn new(rate: u64) -> Self {
        Self { rate, free: Duration::ZERO }
    }

    /// When `bytes` that came at `now` have left, behind all that came before them.
    fn leave(&mut self, now: Duration, bytes: usize) -> Duration {
        let nanos = bytes as u64 * 1_000_000_000 / self.rate;
        self.free = self.free.max(now.saturating_sub(LATE)) + Duration::from_nanos(nanos);
        self.free
    }
}

/// One direction of the link.
#[derive(Debug)]
struct Way {
    pace: Mutex<Pace>,
    latency: Duration,
    begun: Instant,
}

/// Bytes on the link, and when they arrive. No bytes: the sender has closed its side.
type Piece = (Duration, Vec<u8>);

impl Way {
    fn new(rate: u64, latency: Duration) -> Self {
        Self { pace: Mutex::new(Pace::new(rate)), latency, begun: clock::now() }
    }

    /// Takes what a socket has and puts it on the link, until the socket ends.
    fn take(&self, mut from: &TcpStream, link: &SyncSender<Piece>) {
        loop {
            let mut bytes = vec![0; PIECE_BYTES];
            // A connection that breaks off has ended, for who is at the other side.
            let count = from.read(&mut bytes).unwrap_or(0);
            bytes.truncate(count);
            let ended = bytes.is_empty();
            let now = self.begun.elapsed();
            // What leaves a little early, by the pace, does not arrive early.
            let left = self.pace.lock().leave(now, bytes.len()).max(now);
            self.wait(left);
            if link.send((left + self.latency, bytes)).is_err() || ended {
                return;
            }
        }
    }

    /// Hands over what arrives. If nobody takes it, the sender is told by the end of `from`.
    fn give(&self, link: &Receiver<Piece>, from: &TcpStream, mut to: &TcpStream) {
        for (arrives, bytes) in link {
            self.wait(arrives);
            if bytes.is_empty() {
                break;
            }
            if to.write_all(&bytes).is_err() {
                // Its close is then a reset, which a sender sees that waits for room.
                let _ = set_socket_linger(from, Some(Duration::ZERO));
                let _ = from.shutdown(Shutdown::Both);
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }

    fn wait(&self, until: Duration) {
        let now = self.begun.elapsed();
        if until > now {
            clock::pause(until - now);
        }
    }
}

/// A link to an address; its connections end when it is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    listener: TcpListener,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a link to `target` with `rate` bytes per second in each direction.
    pub(crate) fn start(target: SocketAddr, rate: u64, latency: Duration) -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).doing("the relay")?;
        let address = listener.local_addr()?;
        let accepting = listener.try_clone()?;
        let ways = [Way::new(rate, latency), Way::new(rate, latency)];
        let thread = Some(thread::spawn(move || accept(&accepting, target, &ways)));
        Ok(Self { listener, address, thread })
    }

    /// Address of the link's near end.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // A listener that is shut down wakes who accepts.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Carries the connections that come, until the listener is shut down.
fn accept(listener: &TcpListener, target: SocketAddr, [there, back]: &[Way; 2]) {
    // Who made the relay may be pinned beside a shard.
    let _ = machine::unpin();
    // A connection that has ended is closed, as nobody else has its sockets.
    let mut sockets: Vec<Weak<TcpStream>> = Vec::new();
    thread::scope(|scope| {
        while let Ok((near, _)) = listener.accept() {
            // Without a target, the near end is closed by its drop.
            let Ok(far) = TcpStream::connect(target) else { continue };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let (near, far) = (Arc::new(near), Arc::new(far));
            sockets.extend([Arc::downgrade(&near), Arc::downgrade(&far)]);
            scope.spawn(move || {
                let (near, far) = (&*near, &*far);
                thread::scope(|scope| {
                    for (way, from, to) in [(there, near, far), (back, far, near)] {
                        let (link, arrivals) = sync_channel(PIECES);
                        scope.spawn(move || way.take(from, &link));
                        scope.spawn(move || way.give(&arrivals, from, to));
                    }
                });
            });
        }
        for socket in sockets.iter().filter_map(Weak::upgrade) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A server that answers each connection with what came, when all of it has come.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("bound");
        thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.expect("a connection");
                thread::spawn(move || {
                    let mut bytes = Vec::new();
                    socket.read_to_end(&mut bytes).expect("all of it");
                    socket.write_all(&bytes).expect("somebody reads it");
                });
            }
        });
        address
    }

    /// What comes back of what is sent, and how long it took.
    fn round_trip(relay: &Relay, bytes: &[u8]) -> (Vec<u8>, Duration) {
        let begun = clock::now();
        let mut socket = TcpStream::connect(relay.address()).expect("it listens");
        socket.write_all(bytes).expect("it is read");
        socket.shutdown(Shutdown::Write).expect("it is open");
        let mut back = Vec::new();
        socket.read_to_end(&mut back).expect("the way back is open");
        (back, begun.elapsed())
    }

    #[test]
    fn bytes_leave_one_after_the_other_at_the_rate() {
        let mut pace = Pace::new(1_000_000);
        let second = Duration::from_secs(1);
        // Two connections have bytes at the same time: the second's leave behind the first's.
        let left: Vec<Duration> =
            [3000, 2000, 1000].map(|bytes| pace.leave(second, bytes)).to_vec();
        let expected = [3, 5, 6].map(|after| second - LATE + after * MILLISECOND);
        assert_eq!(left, expected);
        // Bytes that come later than the link is free leave when they come, or up to LATE before.
        let later = 2 * second;
        assert_eq!(pace.leave(later, 1000), later - LATE + MILLISECOND);
    }

    #[test]
    fn who_wakes_late_loses_nothing_of_the_rate() {
        let mut pace = Pace::new(1_000_000);
        let mut now = Duration::from_secs(1);
        let begun = now;
        for _ in 0..1000 {
            now = pace.leave(now, 1000) + LATE / 2;
        }
        assert_eq!(now, begun - LATE + 1000 * MILLISECOND + LATE / 2);
        // Who wakes later than that does: rates are no debts of the link.
        for _ in 0..1000 {
            now = pace.leave(now, 1000) + 2 * LATE;
        }
        assert!(now - begun > 2999 * MILLISECOND, "{now:?}");
    }

    #[test]
    fn bytes_come_in_order_both_ways_and_so_does_the_end() {
        let relay = Relay::start(echo(), 1 << 40, Duration::ZERO).expect("a port");
        let bytes: Vec<u8> = (0..3_000_001u32).map(|place| (place % 251) as u8).collect();
        thread::scope(|scope| {
            for part in [&bytes[..], &bytes[7..1_000_000], &[]] {
                let relay = &relay;
                scope.spawn(move || assert!(round_trip(relay, part).0 == part, "other bytes"));
            }
        });
    }

    #[test]
    fn no_round_trip_is_shorter_than_the_latency_of_both_ways() {
        let relay = Relay::start(echo(), 1 << 40, 20 * MILLISECOND).expect("a port");
        let (back, took) = round_trip(&relay, b"x");
        assert_eq!(back, b"x");
        assert!(took >= 40 * MILLISECOND, "{took:?}");
    }

    #[test]
    fn connections_share_the_rate() {
        // The tests of time check lower bounds, which no load of the machine breaks.
        let relay = Relay::start(echo(), 1_000_000, Duration::ZERO).expect("a port");
        let begun = clock::now();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| round_trip(&relay, &[1; 50_000]).0);
            }
        });
        let took = begun.elapsed();
        assert!(took >= 99 * MILLISECOND, "{took:?} for 100 kB at 1 MB/s");
    }

    #[test]
    fn a_target_that_is_gone_ends_the_connection() {
        // A port that has a connection and no listener: nobody else is given it meanwhile.
        let connection = TcpStream::connect(echo()).expect("it listens");
        let nobody = connection.local_addr().expect("connected");
        let relay = Relay::start(nobody, 1 << 40, Duration::ZERO).expect("a port");
        let mut socket = TcpStream::connect(relay.address()).expect("the relay is there");
        assert_eq!(socket.read(&mut [0; 1]).unwrap_or(0), 0);
    }

    #[test]
    fn a_receiver_that_is_gone_ends_the_sender() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let target = listener.local_addr().expect("bound");
        let relay = Relay::start(target, 1 << 40, Duration::ZERO).expect("a port");
        let mut socket = TcpStream::connect(relay.address()).expect("the relay is there");
        drop(listener.accept().expect("it came"));
        // However much the sockets between hold: a sender that is not told would write for ever.
        while socket.write(&[1; 65536]).is_ok() {}
    }

    #[test]
    fn a_relay_that_is_dropped_ends_its_connections() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let target = listener.local_addr().expect("bound");
        let relay = Relay::start(target, 1 << 40, Duration::ZERO).expect("a port");
        let mut near = TcpStream::connect(relay.address()).expect("the relay is there");
        let (mut far, _) = listener.accept().expect("it came");
        drop(relay);
        assert_eq!(near.read(&mut [0; 1]).unwrap_or(0), 0);
        assert_eq!(far.read(&mut [0; 1]).unwrap_or(0), 0);
    }
}
