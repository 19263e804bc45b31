//! The network's floor: request and response over one TCP connection on loopback between two
//! processes, each with a bare io_uring.
//!
//! The other process is this program again ([`serve`]). It blocks in `accept` between measurements,
//! because a server that spins while another arm is measured would be part of the other's figure.
//! Each connection begins with a [`Setup`], which says what to answer and how to wait.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::clock;
use crate::machine;
use crate::raw::ring::{Piece, Ring};
use crate::raw::{Timing, Wait};

/// What travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes of a request.
    pub(crate) request: usize,
    /// Bytes of a response.
    pub(crate) response: usize,
    /// The piece in which a response is sent and received.
    pub(crate) chunk: usize,
    /// Requests under way at once.
    pub(crate) depth: usize,
}

/// Where the two processes run and how they wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) client_cpu: usize,
    pub(crate) server_cpu: usize,
    pub(crate) wait: Wait,
}

/// The first message of a connection: five little-endian words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Setup {
    shape: Shape,
    cpu: usize,
    wait: Wait,
}

impl Setup {
    const BYTES: usize = 40;

    fn encode(self) -> [u8; Self::BYTES] {
        let words = [
            self.shape.request,
            self.shape.response,
            self.shape.chunk,
            self.cpu,
            usize::from(self.wait == Wait::Spin),
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
            let bytes = bytes[number * 8..][..8].try_into().expect("eight of forty bytes");
            u64::from_le_bytes(bytes) as usize
        };
        let shape = Shape { request: word(0), response: word(1), chunk: word(2), depth: 1 };
        let sane = [shape.request, shape.response, shape.chunk];
        if sane.iter().any(|bytes| !(1..=MOST).contains(bytes)) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let wait = if word(4) == 1 { Wait::Spin } else { Wait::Block };
        Ok(Self { shape, cpu: word(3), wait })
    }
}

/// The other process; ended when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts this program again as a server.
    pub(crate) fn start() -> io::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("raw-server")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().expect("its output was asked for");
        // Owned from here on, so that it ends also if it says nothing sensible.
        let mut server = Self { process, address: (Ipv4Addr::LOCALHOST, 0).into() };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let port =
            line.trim().parse().map_err(|_| io::Error::other("the raw server did not start"))?;
        server.address.set_port(port);
        Ok(server)
    }

    /// Requests and responses over a new connection, for a while.
    pub(crate) fn exchange(
        &self,
        shape: Shape,
        placement: Placement,
        duration: Duration,
    ) -> io::Result<Timing> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        let setup = Setup { shape, cpu: placement.server_cpu, wait: placement.wait };
        stream.write_all(&setup.encode())?;
        // It is ready: its ring is made, its memory is there.
        stream.read_exact(&mut [0])?;
        machine::pin(placement.client_cpu)?;
        ask(&stream, shape, placement.wait, duration)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const SEND: u64 = 0;
const RECEIVE: u64 = 1;
/// The last piece of a response.
const RECEIVE_LAST: u64 = 2;

fn ask(stream: &TcpStream, shape: Shape, wait: Wait, duration: Duration) -> io::Result<Timing> {
    let Shape { request, response, depth, .. } = shape;
    let chunks = response.div_ceil(shape.chunk);
    let mut ring =
        Ring::new((chunks + depth + 1) as u32, response + request, stream.as_fd(), wait)?;
    let question = Piece { start: response, length: request };
    let mut latencies = Vec::with_capacity(1 << 16);
    let mut begun = std::collections::VecDeque::with_capacity(depth);
    let start = clock::now();
    for _ in 0..depth {
        begun.push_back(start);
        ring.send(question, false, SEND)?;
    }
    receive_response(&mut ring, shape)?;
    let mut end: Instant = start;
    while !begun.is_empty() {
        // Everything that is under way has to end before there is something to do.
        ring.submit_and_wait(ring.in_flight())?;
        let mut received = 0;
        let mut complete = false;
        while let Some((tag, result)) = ring.take() {
            let bytes = result?;
            if tag == SEND && bytes != request {
                return Err(io::ErrorKind::WriteZero.into());
            }
            received += if tag == SEND { 0 } else { bytes };
            complete |= tag == RECEIVE_LAST;
        }
        if !complete || received != response {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        end = clock::now();
        let asked = begun.pop_front().expect("the loop's condition");
        latencies.push((end - asked).as_nanos() as u64);
        if end - start < duration {
            begun.push_back(clock::now());
            ring.send(question, false, SEND)?;
        }
        if !begun.is_empty() {
            receive_response(&mut ring, shape)?;
        }
    }
    Ok(Timing::new(latencies, end - start))
}

fn receive_response(ring: &mut Ring, shape: Shape) -> io::Result<()> {
    for piece in pieces(shape) {
        let last = piece.start + piece.length == shape.response;
        ring.receive(piece, !last, if last { RECEIVE_LAST } else { RECEIVE })?;
    }
    Ok(())
}

fn pieces(shape: Shape) -> impl Iterator<Item = Piece> {
    let Shape { response, chunk, .. } = shape;
    (0..response)
        .step_by(chunk)
        .map(move |start| Piece { start, length: chunk.min(response - start) })
}

/// The other process: one connection after the other, until its parent ends.
pub(crate) fn serve() -> io::Result<()> {
    use rustix::process::{Signal, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::TERM))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    loop {
        let (stream, _) = listener.accept()?;
        if let Err(error) = answer(stream) {
            eprintln!("raw server: {error}");
        }
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = [0; Setup::BYTES];
    stream.read_exact(&mut bytes)?;
    let Setup { shape, cpu, wait } = Setup::decode(bytes)?;
    machine::pin(cpu)?;
    let chunks = shape.response.div_ceil(shape.chunk);
    let memory = shape.response + shape.request;
    let mut ring = Ring::new(chunks as u32 + 1, memory, stream.as_fd(), wait)?;
    stream.write_all(&[1])?;
    let question = Piece { start: shape.response, length: shape.request };
    let mut sends = 0;
    loop {
        // Beside the answer to the one before: one system call for both. But not waited for together,
        // unless the answer is one piece: a ring that waits for several completions is not woken for
        // an unlinked operation that has to go on (a send that found room again).
        ring.receive(question, false, RECEIVE)?;
        ring.submit_and_wait(sends.max(1))?;
        let mut asked = false;
        while !asked || ring.in_flight() > 0 {
            while let Some((tag, result)) = ring.take() {
                match result {
                    Ok(bytes) if tag == RECEIVE && bytes < shape.request => return Ok(()),
                    Err(_) if tag == RECEIVE => return Ok(()),
                    result => drop(result?),
                }
                asked |= tag == RECEIVE;
            }
            if ring.in_flight() > 0 {
                ring.submit_and_wait(1)?;
            }
        }
        sends = 0;
        for piece in pieces(shape) {
            let last = piece.start + piece.length == shape.response;
            ring.send(piece, !last, SEND)?;
            sends += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setup_survives_the_wire_and_nonsense_is_refused() {
        let shape = Shape { request: 16, response: 1 << 20, chunk: 1 << 16, depth: 1 };
        let setup = Setup { shape, cpu: 3, wait: Wait::Spin };
        assert_eq!(Setup::decode(setup.encode()).expect("just encoded"), setup);
        assert!(Setup::decode([0; Setup::BYTES]).is_err());
        assert!(Setup::decode([0xff; Setup::BYTES]).is_err());
    }

    #[test]
    fn pieces_cover_a_response_once() {
        let shape = Shape { request: 1, response: 1000, chunk: 300, depth: 1 };
        let lengths: Vec<usize> = pieces(shape).map(|piece| piece.length).collect();
        assert_eq!(lengths, vec![300, 300, 300, 100]);
    }

    #[test]
    fn responses_come_whole_at_any_depth_and_chunk() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
        let address = listener.local_addr().expect("bound");
        for (chunk, depth) in [(4096, 1), (1000, 3)] {
            let there = std::thread::scope(|scope| {
                let serving = scope.spawn(|| answer(listener.accept().expect("a client").0));
                let shape = Shape { request: 16, response: 4096, chunk, depth };
                let mut stream = TcpStream::connect(address).expect("listening");
                let setup = Setup { shape, cpu: machine::Cpus::here().first, wait: Wait::Block };
                stream.write_all(&setup.encode()).expect("sent");
                stream.read_exact(&mut [0]).expect("ready");
                let timing =
                    ask(&stream, shape, Wait::Block, Duration::from_millis(2)).expect("answered");
                assert!(timing.count() >= depth);
                drop(stream);
                serving.join().expect("no panic")
            });
            there.expect("ended by the client's end");
        }
    }
}
