//! One message at a time, whole: the side that has sent waits for the other.
//!
//! Nothing can be batched, so the time from the arrival of a message to the next send decides. A
//! side that spins therefore asks with receives that do not wait (`MSG_DONTWAIT`): the one that
//! finds the message has it. A receive that waits in the kernel, while the completion queue is
//! polled, costs 7 % more: the arrival wakes a poll entry, that queues task work, which has to be
//! called for before the message is received. Multishot receives, linked send and receive, both in
//! one call, no DEFER_TASKRUN, poll first: none was better than this by more than 3 %.
//!
//! The second way does the same turns by `send` and `recv`, which are faster here: by 8 % (4 KiB,
//! two CPUs, spinning) and by 12 % (64 KiB, one CPU, blocking). That is what io_uring adds to a
//! call with one operation. A floor has no favourite.
//!
//! A message is received into the memory that the one before was sent from, as in every echo: other
//! memory would be in a farther cache.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags};

use crate::clock;
use crate::raw::net::Shape;
use crate::raw::ring::{Piece, Ring};
use crate::raw::{Timing, Wait};

/// One side of a connection, with memory for a message.
pub(super) trait Side {
    /// Sends the first `bytes` of the memory.
    fn send(&mut self, bytes: usize) -> io::Result<()>;

    /// Fills the first `bytes` of the memory. False if the other side has closed.
    fn receive(&mut self, bytes: usize) -> io::Result<bool>;
}

/// Asks for a while, and times the answers.
pub(super) fn ask(side: &mut impl Side, shape: Shape, duration: Duration) -> io::Result<Timing> {
    let mut latencies = Vec::with_capacity(1 << 16);
    let start = clock::now();
    let mut end = start;
    while end - start < duration {
        let begun = clock::now();
        side.send(shape.request)?;
        if !side.receive(shape.response)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        end = clock::now();
        latencies.push((end - begun).as_nanos() as u64);
    }
    Ok(Timing::new(latencies, end - start))
}

/// Answers until the other side closes.
pub(super) fn answer(side: &mut impl Side, shape: Shape) -> io::Result<()> {
    while side.receive(shape.request)? {
        side.send(shape.response)?;
    }
    Ok(())
}

fn memory_bytes(shape: Shape) -> usize {
    shape.request.max(shape.response)
}

/// Two operations of an io_uring a turn, one after the other.
#[derive(Debug)]
pub(super) struct Uring {
    ring: Ring,
    wait: Wait,
}

impl Uring {
    pub(super) fn new(stream: &TcpStream, shape: Shape, wait: Wait) -> io::Result<Self> {
        Ok(Self { ring: Ring::new(1, memory_bytes(shape), stream.as_fd(), wait)?, wait })
    }

    /// Result of the only operation.
    fn result(&mut self) -> io::Result<usize> {
        self.ring.submit_and_wait(1)?;
        self.ring.take().map_or(Err(io::ErrorKind::UnexpectedEof.into()), |(_, result)| result)
    }
}

impl Side for Uring {
    fn send(&mut self, bytes: usize) -> io::Result<()> {
        self.ring.send(Piece { start: 0, length: bytes }, false, 0)?;
        if self.result()? == bytes { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn receive(&mut self, bytes: usize) -> io::Result<bool> {
        received(bytes, |received| {
            let rest = Piece { start: received, length: bytes - received };
            match self.wait {
                Wait::Block => self.ring.receive(rest, false, 0)?,
                Wait::Spin => self.ring.receive_now(rest, 0)?,
            }
            self.result()
        })
    }
}

/// Two system calls a turn.
#[derive(Debug)]
pub(super) struct Sockets<'a> {
    stream: &'a TcpStream,
    memory: Vec<u8>,
    flags: RecvFlags,
}

impl<'a> Sockets<'a> {
    pub(super) fn new(stream: &'a TcpStream, shape: Shape, wait: Wait) -> Self {
        let flags = match wait {
            Wait::Block => RecvFlags::WAITALL,
            Wait::Spin => RecvFlags::DONTWAIT,
        };
        // Not zero, because pages that are only read would all be the one page of zeroes.
        Self { stream, memory: vec![1; memory_bytes(shape)], flags }
    }
}

impl Side for Sockets<'_> {
    fn send(&mut self, bytes: usize) -> io::Result<()> {
        let mut rest = &self.memory[..bytes];
        while !rest.is_empty() {
            let sent = rustix::net::send(self.stream, rest, SendFlags::NOSIGNAL)?;
            rest = &rest[sent..];
        }
        Ok(())
    }

    fn receive(&mut self, bytes: usize) -> io::Result<bool> {
        let Self { stream, memory, flags } = self;
        received(bytes, |received| {
            let rest = &mut memory[received..bytes];
            let (_, length) = rustix::net::recv(*stream, rest, *flags)?;
            Ok(length)
        })
    }
}

/// Calls `receive` with the bytes that have come until all have. False if the other side has
/// closed.
fn received(bytes: usize, mut receive: impl FnMut(usize) -> io::Result<usize>) -> io::Result<bool> {
    let mut received = 0;
    while received < bytes {
        match receive(received) {
            Ok(0) => return Ok(false),
            Ok(length) => received += length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
