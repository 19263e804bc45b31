//! A wire between two nodes that a test holds in its hand: it can stand still, be cut, and change a byte.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

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
}

#[derive(Debug, Default)]
struct State {
    paused: bool,
    /// Change a byte of the next large piece that goes back to who dialled.
    bend: bool,
    /// What has passed, from who dialled and back.
    passed: [Vec<u8>; 2],
    /// What passes now.
    streams: Vec<TcpStream>,
}

/// Most bytes passed on at once.
const PIECE: usize = 64 << 10;

/// The first bytes of each direction, over all connections, that are remembered.
const REMEMBERED: usize = 16 << 20;

impl Wire {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a piece.
    fn note(&self, back: bool, piece: &[u8]) {
        let passed = &mut self.state().passed[usize::from(back)];
        let room = REMEMBERED.saturating_sub(passed.len());
        passed.extend(&piece[..piece.len().min(room)]);
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
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("bound");
        let state: Arc<Wire> = Arc::default();
        let wire = Arc::clone(&state);
        std::thread::spawn(move || {
            for from in listener.incoming().flatten() {
                // Without a target the other side sees the end at once, as it would of the target's.
                if let Ok(to) = TcpStream::connect(target) {
                    connect(&from, &to, &wire);
                }
            }
        });
        Self { address, state }
    }

    /// Where to connect.
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

    /// Changes a byte in the middle of the next large piece that goes back, most likely of a payload.
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
    let mut piece = vec![0; PIECE];
    while let Ok(length @ 1..) = source.read(&mut piece) {
        if wire.pass(back && length >= PIECE / 4) {
            piece[length / 2] ^= 0x55;
        }
        wire.note(back, &piece[..length]);
        if sink.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    // The end of one side is the end of both, as it is for the nodes.
    let _ = (source.shutdown(Shutdown::Both), sink.shutdown(Shutdown::Both));
}
