//! The network's floor: request and response over one TCP connection on loopback between two
//! processes.
//!
//! The other process is this program again ([`serve`]). It blocks in `accept` between measurements,
//! because a server that spins while another arm is measured would be part of the other's figure.
//! Each connection begins with a [`Setup`], which has the answer's size, the [`Way`], and how to
//! wait.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::machine;
use crate::raw::child::{self, Listening};
use crate::raw::frames::{self, Calls};
use crate::raw::{Timing, Wait, pieces, turns};

/// Sizes of messages, and their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes of a request.
    pub(crate) request: usize,
    /// Bytes of a response.
    pub(crate) response: usize,
    /// Size of the pieces in which a response is sent and received.
    pub(crate) chunk: usize,
    /// Requests under way at once.
    pub(crate) depth: usize,
}

/// Calls by which messages travel, on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// io_uring, many operations in one call: [`pieces`].
    Pieces,
    /// io_uring, one message at a time: [`turns`].
    Turns,
    /// Turns with `send` and `recv`, without a ring.
    Sockets,
    /// Frames with a checksum: [`frames`].
    Frames(Calls),
}

impl Way {
    const ALL: [Self; 7] = [
        Self::Pieces,
        Self::Turns,
        Self::Sockets,
        Self::Frames(Calls::ALL[0]),
        Self::Frames(Calls::ALL[1]),
        Self::Frames(Calls::ALL[2]),
        Self::Frames(Calls::ALL[3]),
    ];

    /// Its place among all ways, by which the other process is told.
    fn number(self) -> usize {
        Self::ALL.iter().position(|way| *way == self).unwrap_or_default()
    }
}

/// Where the two processes run and how they wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) client_cpu: usize,
    pub(crate) server_cpu: usize,
    pub(crate) wait: Wait,
}

/// The first message of a connection: six little-endian words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Setup {
    shape: Shape,
    way: Way,
    cpu: usize,
    wait: Wait,
}

impl Setup {
    const BYTES: usize = 48;

    fn encode(self) -> [u8; Self::BYTES] {
        let words = [
            self.shape.request,
            self.shape.response,
            self.shape.chunk,
            self.cpu,
            usize::from(self.wait == Wait::Spin),
            self.way.number(),
        ];
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&(word as u64).to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: [u8; Self::BYTES]) -> io::Result<Self> {
        const MOST: usize = 64 << 20;
        let word = |number: usize| {
            let bytes = bytes[number * 8..][..8].try_into().expect("eight of them all");
            u64::from_le_bytes(bytes) as usize
        };
        let shape = Shape { request: word(0), response: word(1), chunk: word(2), depth: 1 };
        let sane = [shape.request, shape.response, shape.chunk];
        if sane.iter().any(|bytes| !(1..=MOST).contains(bytes)) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let wait = if word(4) == 1 { Wait::Spin } else { Wait::Block };
        let way = Way::ALL.get(word(5)).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { shape, way: *way, cpu: word(3), wait })
    }
}

/// The other process, which is ended when dropped.
#[derive(Debug)]
pub(crate) struct Server(Listening);

impl Server {
    /// Starts this program again as a server.
    pub(crate) fn start() -> io::Result<Self> {
        Listening::start(&["raw-server"]).map(Self)
    }

    /// Exchanges requests and responses over a new connection, for a while.
    pub(crate) fn exchange(
        &self,
        shape: Shape,
        way: Way,
        placement: Placement,
        duration: Duration,
    ) -> io::Result<Timing> {
        let address = (Ipv4Addr::LOCALHOST, self.0.port()).into();
        exchange(address, shape, way, placement, duration)
    }

    pub(super) fn port(&self) -> u16 {
        self.0.port()
    }
}

/// Sets a socket up as piped does for a lane that stays on the machine: pacing and probing would
/// only make it slower.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    Ok(rustix::net::sockopt::set_tcp_congestion(stream, "reno")?)
}

/// Opens a connection and tells the other side how to answer on it.
pub(super) fn connect(
    address: SocketAddr,
    shape: Shape,
    way: Way,
    (cpu, wait): (usize, Wait),
) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    prepare(&stream)?;
    stream.write_all(&Setup { shape, way, cpu, wait }.encode())?;
    // The other side is ready: its ring is made, its memory is there.
    stream.read_exact(&mut [0])?;
    Ok(stream)
}

fn exchange(
    address: SocketAddr,
    shape: Shape,
    way: Way,
    placement: Placement,
    duration: Duration,
) -> io::Result<Timing> {
    let Placement { client_cpu, server_cpu, wait } = placement;
    let stream = connect(address, shape, way, (server_cpu, wait))?;
    machine::pin(client_cpu)?;
    match way {
        Way::Frames(_) => Err(io::ErrorKind::Unsupported.into()),
        Way::Pieces => pieces::ask(&stream, shape, wait, duration),
        Way::Turns => turns::ask(&mut turns::Uring::new(&stream, shape, wait)?, shape, duration),
        Way::Sockets => turns::ask(&mut turns::Sockets::new(&stream, shape, wait), shape, duration),
    }
}

/// Main function of the other process: one connection after the other, until its parent ends.
pub(crate) fn serve() -> io::Result<()> {
    let listener = child::listen()?;
    loop {
        let (stream, _) = listener.accept()?;
        if let Err(error) = answer(stream) {
            eprintln!("raw server: {error}");
        }
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    prepare(&stream)?;
    let mut bytes = [0; Setup::BYTES];
    stream.read_exact(&mut bytes)?;
    let Setup { shape, way, cpu, wait } = Setup::decode(bytes)?;
    machine::pin(cpu)?;
    let ready = || (&stream).write_all(&[1]);
    match way {
        Way::Pieces => {
            let mut ring = pieces::answering(&stream, shape, wait)?;
            ready()?;
            pieces::answer(&mut ring, shape)
        }
        Way::Turns => {
            let mut side = turns::Uring::new(&stream, shape, wait)?;
            ready()?;
            turns::answer(&mut side, shape)
        }
        Way::Sockets => {
            let mut side = turns::Sockets::new(&stream, shape, wait);
            ready()?;
            turns::answer(&mut side, shape)
        }
        Way::Frames(calls) => {
            let mut side = frames::Side::answering(&stream, calls)?;
            ready()?;
            side.answer(shape.chunk)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const SHAPE: Shape = Shape { request: 16, response: 1 << 20, chunk: 1 << 16, depth: 1 };

    #[test]
    fn a_setup_survives_the_wire_and_nonsense_is_refused() {
        for way in Way::ALL {
            let setup = Setup { shape: SHAPE, way, cpu: 3, wait: Wait::Spin };
            assert_eq!(Setup::decode(setup.encode()).expect("just encoded"), setup);
        }
        let mut unknown =
            Setup { shape: SHAPE, way: Way::Pieces, cpu: 3, wait: Wait::Spin }.encode();
        unknown[40] = Way::ALL.len() as u8;
        assert!(Setup::decode(unknown).is_err());
        assert!(Setup::decode([0; Setup::BYTES]).is_err());
        assert!(Setup::decode([0xff; Setup::BYTES]).is_err());
    }

    #[test]
    fn responses_come_whole_by_every_way() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
        let address = listener.local_addr().expect("bound");
        let cpus = machine::Cpus::here();
        // Larger than a socket's buffers are at first, so that both sides meet parts of messages.
        let large = Shape { request: 1 << 20, response: 3 << 20, chunk: 3 << 20, depth: 1 };
        let get = |chunk, depth| Shape { request: 16, response: 4096, chunk, depth };
        for (way, shape, wait) in [
            (Way::Pieces, get(4096, 1), Wait::Block),
            (Way::Pieces, get(1000, 3), Wait::Block),
            (Way::Turns, get(4096, 1), Wait::Block),
            (Way::Turns, large, Wait::Block),
            (Way::Turns, large, Wait::Spin),
            (Way::Sockets, large, Wait::Block),
            (Way::Sockets, large, Wait::Spin),
        ] {
            let placement = Placement { client_cpu: cpus.second, server_cpu: cpus.first, wait };
            std::thread::scope(|scope| {
                let serving = scope.spawn(|| answer(listener.accept().expect("a client").0));
                let timing = exchange(address, shape, way, placement, Duration::from_millis(2));
                assert!(timing.expect("answered").count() >= shape.depth, "{way:?}");
                serving.join().expect("no panic").expect("ended by the client's end");
            });
        }
    }
}
