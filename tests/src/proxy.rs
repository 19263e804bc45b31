//! A wire between two nodes that a test holds in its hand: it can be slow, stand still, be cut, and
//! change a byte.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Listens on loopback and passes on what comes, for as long as the test runs.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<Wire>,
}

#[derive(Debug, Default)]
struct Wire {
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes that each direction takes in a second, over all connections; 0 for no limit.
    rate: u64,
    /// One lock for each direction of a slow wire: the connection that holds it has bytes on the
    /// wire.
    turns: [Mutex<()>; 2],
}

#[derive(Debug, Default)]
struct State {
    paused: bool,
    /// Change a byte of the next large piece that goes back to who dialled.
    bend: bool,
    /// The bytes that have passed, from the dialling side and back.
    passed: [Vec<u8>; 2],
    /// The number of bytes that have passed in each direction.
    bytes: [u64; 2],
    /// The sockets of open connections.
    streams: Vec<TcpStream>,
}

/// Most bytes passed on at once.
const PIECE: usize = 64 << 10;

/// Most bytes of one connection on a slow wire at once.
const SLICE: usize = 4 << 10;

/// The first bytes of each direction, over all connections, that are remembered.
const REMEMBERED: usize = 16 << 20;

impl Wire {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a piece that passes, and remembers it while there is room.
    fn note(&self, back: bool, piece: &[u8]) {
        let mut state = self.state();
        state.bytes[usize::from(back)] += piece.len() as u64;
        let passed = &mut state.passed[usize::from(back)];
        let room = REMEMBERED.saturating_sub(passed.len());
        passed.extend(&piece[..piece.len().min(room)]);
    }

    /// Takes the time that so many bytes are on a slow wire.
    #[expect(clippy::disallowed_methods, reason = "a slow wire is one that takes time")]
    fn take_time(&self, back: bool, bytes: usize) {
        if self.rate > 0 {
            let _turn =
                self.turns[usize::from(back)].lock().unwrap_or_else(PoisonError::into_inner);
            std::thread::sleep(Duration::from_secs_f64(bytes as f64 / self.rate as f64));
        }
    }

    /// Waits while the wire stands still. Whether to change a byte of this piece.
    fn pass(&self, may_bend: bool) -> bool {
        let state = self.state();
        let mut state = self
            .changed
            .wait_while(state, |state| state.paused)
            .unwrap_or_else(PoisonError::into_inner);
        may_bend && std::mem::take(&mut state.bend)
    }
}

impl Proxy {
    /// A wire to `target`, which need not listen yet: each connection dials it.
    ///
    /// # Panics
    /// If there is no port.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        Self::slow(target, 0)
    }

    /// The same, and it takes so many bytes a second in each direction.
    ///
    /// # Panics
    /// If there is no port.
    #[must_use]
    pub fn slow(target: SocketAddr, rate: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("bound");
        let state = Arc::new(Wire { rate, ..Wire::default() });
        let wire = Arc::clone(&state);
        std::thread::spawn(move || {
            for from in listener.incoming().flatten() {
                // Without a target the other side sees the end at once, as it would of the
                // target's.
                if let Ok(to) = TcpStream::connect(target) {
                    connect(&from, &to, &wire);
                }
            }
        });
        Self { address, state }
    }

    /// The address that clients of the proxy connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Nothing passes any more, or again.
    pub fn pause(&self, paused: bool) {
        self.state.state().paused = paused;
        self.state.changed.notify_all();
    }

    /// Ends all connections there are. New ones pass.
    pub fn cut(&self) {
        for stream in std::mem::take(&mut self.state.state().streams) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// What somebody on the wire has seen: of who dialled, and of who answered.
    #[must_use]
    pub fn passed(&self) -> [Vec<u8>; 2] {
        self.state.state().passed.clone()
    }

    /// How many bytes have passed: of who dialled, and of who answered.
    #[must_use]
    pub fn bytes(&self) -> [u64; 2] {
        self.state.state().bytes
    }

    /// Changes a byte in the middle of the next large piece that goes back, most likely of a
    /// payload.
    pub fn bend(&self) {
        self.state.state().bend = true;
    }
}

fn connect(from: &TcpStream, to: &TcpStream, wire: &Arc<Wire>) {
    wire.state().streams.extend(from.try_clone());
    for (source, sink, back) in [(from, to, false), (to, from, true)] {
        let (Ok(source), Ok(sink)) = (source.try_clone(), sink.try_clone()) else { return };
        let wire = Arc::clone(wire);
        std::thread::spawn(move || pump(&source, &sink, back, &wire));
    }
}

fn pump(mut source: &TcpStream, mut sink: &TcpStream, back: bool, wire: &Wire) {
    // A frame must not wait for the acknowledgement of the one before.
    let _ = sink.set_nodelay(true);
    let mut piece = vec![0; if wire.rate > 0 { SLICE } else { PIECE }];
    while let Ok(length @ 1..) = source.read(&mut piece) {
        if wire.pass(back && length >= PIECE / 4) {
            piece[length / 2] ^= 0x55;
        }
        wire.take_time(back, length);
        wire.note(back, &piece[..length]);
        if sink.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    // The end of one side is the end of both, as it is for the nodes.
    let _ = (source.shutdown(Shutdown::Both), sink.shutdown(Shutdown::Both));
}
