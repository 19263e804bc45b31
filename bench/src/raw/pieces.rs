//! Responses in pieces, several requests under way: as many operations in one system call as there
//! are.
//!
//! The receives of a response are one linked chain, each of which waits for its bytes
//! (`MSG_WAITALL`), and so are the sends: a kernel that has the whole chain goes on by itself. This
//! way moves most bytes; a single message arrives sooner by [`super::turns`].

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use crate::clock;
use crate::raw::net::Shape;
use crate::raw::ring::{Piece, Ring};
use crate::raw::{REGION_BYTES, Timing, Wait};

const SEND: u64 = 0;
const RECEIVE: u64 = 1;
/// Tag of the last piece of a response.
const RECEIVE_LAST: u64 = 2;

/// Asks for a while, and times the responses.
pub(super) fn ask(
    stream: &TcpStream,
    shape: Shape,
    wait: Wait,
    duration: Duration,
) -> io::Result<Timing> {
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

/// Size of the memory that answers come from, one response after the other: as much as the region
/// that piped is asked for. A response that never left the cache would be another measurement.
fn source_bytes(shape: Shape) -> usize {
    (REGION_BYTES / shape.response).max(1) * shape.response
}

/// Ring of the answering side.
pub(super) fn answering(stream: &TcpStream, shape: Shape, wait: Wait) -> io::Result<Ring> {
    let chunks = shape.response.div_ceil(shape.chunk);
    Ring::new(chunks as u32 + 1, source_bytes(shape) + shape.request, stream.as_fd(), wait)
}

/// Answers until the other side closes.
pub(super) fn answer(ring: &mut Ring, shape: Shape) -> io::Result<()> {
    let question = Piece { start: source_bytes(shape), length: shape.request };
    let mut sends = 0;
    let mut base = 0;
    loop {
        // Queued beside the answer to the one before: one system call for both. But they are not
        // waited for together, unless the answer is one piece: a ring that waits for several
        // completions is not woken for an unlinked operation that has to go on (a send that found
        // room again).
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
            ring.send(Piece { start: base + piece.start, ..piece }, !last, SEND)?;
            sends += 1;
        }
        base = (base + shape.response) % source_bytes(shape);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_response_once() {
        let shape = Shape { request: 1, response: 1000, chunk: 300, depth: 1 };
        let lengths: Vec<usize> = pieces(shape).map(|piece| piece.length).collect();
        assert_eq!(lengths, vec![300, 300, 300, 100]);
    }
}
