//! Messages with a header, as daemons need them: a request is a header, a response is cut into
//! frames of a header and a payload.
//!
//! Headers are checked by both sides with CRC32C and payloads are not, as piped does between nodes
//! of one machine. The calls by which they travel are a choice ([`Calls`]); both sides spin.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::AsFd as _;

use crc_fast::CrcAlgorithm;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};

use crate::raw::ring::{Piece, Ring};
use crate::raw::{REGION_BYTES, Wait};

/// How an operation on a socket is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// By an operation of an io_uring.
    Uring,
    /// By a system call, which is repeated until there is something to receive.
    Call,
}

impl By {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Uring => "io_uring",
            Self::Call => "call",
        }
    }
}

/// How a side receives and sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) receive: By,
    pub(crate) send: By,
}

impl Calls {
    pub(crate) const ALL: [Self; 4] = [
        Self { receive: By::Uring, send: By::Uring },
        Self { receive: By::Uring, send: By::Call },
        Self { receive: By::Call, send: By::Uring },
        Self { receive: By::Call, send: By::Call },
    ];
}

pub(super) const HEADER_BYTES: usize = 64;
const MAGIC: u32 = 0x7261_7730;

/// Where things lie in a side's memory: two headers, and on another page the payload.
const REQUEST: Piece = Piece { start: 0, length: HEADER_BYTES };
const HEADER: Piece = Piece { start: HEADER_BYTES, length: HEADER_BYTES };
const PAYLOAD_START: usize = 4096;
const NOTHING: Piece = Piece { start: PAYLOAD_START, length: 0 };

/// Bytes of memory for a side that has `payload` bytes.
pub(super) const fn memory_bytes(payload: usize) -> usize {
    PAYLOAD_START + payload
}

/// What a header says: of a request, the place and length of what is wanted; of a frame, those of
/// its payload in the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    id: u64,
    offset: u64,
    length: u64,
}

impl Header {
    fn encode(self, bytes: &mut [u8]) {
        bytes.fill(0);
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        for (place, word) in bytes[8..].chunks_exact_mut(8).zip([self.id, self.offset, self.length])
        {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let (said, place) = bytes.split_at_mut(HEADER_BYTES - 4);
        place.copy_from_slice(&checksum(said).to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> io::Result<Self> {
        let half = |start: usize| {
            u32::from_le_bytes(bytes[start..][..4].try_into().expect("four of them all"))
        };
        let word = |start: usize| {
            u64::from_le_bytes(bytes[start..][..8].try_into().expect("eight of them all"))
        };
        let said = &bytes[..HEADER_BYTES - 4];
        if half(0) != MAGIC || half(HEADER_BYTES - 4) != checksum(said) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { id: word(8), offset: word(16), length: word(24) })
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    (crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) & 0xffff_ffff) as u32
}

/// One side of a connection, with its memory.
#[derive(Debug)]
pub(super) struct Side<'a> {
    ring: Ring,
    stream: &'a TcpStream,
    calls: Calls,
}

impl<'a> Side<'a> {
    /// Side over the memory of a ring that is made for `stream` and spins.
    pub(super) fn over(ring: Ring, stream: &'a TcpStream, calls: Calls) -> Self {
        Self { ring, stream, calls }
    }

    /// The side that has a region. Each word of it is its own offset.
    pub(super) fn answering(stream: &'a TcpStream, calls: Calls) -> io::Result<Self> {
        let mut ring = Ring::new(4, memory_bytes(REGION_BYTES), stream.as_fd(), Wait::Spin)?;
        let [_, region] = ring.bytes([HEADER, payload(0, REGION_BYTES)])?;
        for (number, word) in region.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(8 * number as u64).to_le_bytes());
        }
        Ok(Self::over(ring, stream, calls))
    }

    /// Answers until the other side closes, in frames of at most `chunk` bytes.
    pub(super) fn answer(&mut self, chunk: usize) -> io::Result<()> {
        while self.receive([REQUEST, NOTHING])? {
            let [request, _] = self.ring.bytes([REQUEST, NOTHING])?;
            let request = Header::decode(request)?;
            let start = usize::try_from(request.offset).unwrap_or(usize::MAX);
            let length = usize::try_from(request.length).unwrap_or(usize::MAX);
            if start.checked_add(length).is_none_or(|end| end > REGION_BYTES) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            for (done, size) in pieces(length, chunk) {
                let frame = [HEADER, payload(start + done, size)];
                let [header, _] = self.ring.bytes(frame)?;
                let (offset, length) = (done as u64, size as u64);
                Header { id: request.id, offset, length }.encode(header);
                self.send(frame)?;
            }
        }
        Ok(())
    }

    /// Asks for `length` bytes at an offset of the other side's region, and has them in this side's
    /// memory.
    pub(super) fn get(
        &mut self,
        id: u64,
        offset: u64,
        (length, chunk): (usize, usize),
    ) -> io::Result<()> {
        let [request, _] = self.ring.bytes([REQUEST, NOTHING])?;
        Header { id, offset, length: length as u64 }.encode(request);
        self.send([REQUEST, NOTHING])?;
        for (done, size) in pieces(length, chunk) {
            let frame = [HEADER, payload(done, size)];
            if !self.receive(frame)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let [header, _] = self.ring.bytes(frame)?;
            let wanted = Header { id, offset: done as u64, length: size as u64 };
            if Header::decode(header)? != wanted {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(())
    }

    fn send(&mut self, pieces: [Piece; 2]) -> io::Result<()> {
        let whole = pieces[0].length + pieces[1].length;
        if self.calls.send == By::Uring {
            self.ring.send_both(pieces, 0)?;
            let sent = self.result()?;
            return if sent == whole { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) };
        }
        let [first, second] = self.ring.bytes(pieces)?;
        let mut sent = 0;
        while sent < whole {
            let (first, second) = rest(first, second, sent);
            let parts = [IoSlice::new(first), IoSlice::new(second)];
            let mut none = SendAncillaryBuffer::default();
            sent += rustix::net::sendmsg(self.stream, &parts, &mut none, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// Fills both pieces. False if the other side has closed.
    fn receive(&mut self, pieces: [Piece; 2]) -> io::Result<bool> {
        let whole = pieces[0].length + pieces[1].length;
        if self.calls.receive == By::Uring {
            self.ring.receive_both(pieces, 0)?;
            return match self.result() {
                Ok(0) => Ok(false),
                Ok(received) if received == whole => Ok(true),
                Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
                Err(error) => Err(error),
            };
        }
        let [first, second] = self.ring.bytes(pieces)?;
        let mut received = 0;
        while received < whole {
            let (first, second) = rest(first, second, received);
            let mut parts = [IoSliceMut::new(first), IoSliceMut::new(second)];
            let mut none = RecvAncillaryBuffer::default();
            let flags = RecvFlags::DONTWAIT;
            match rustix::net::recvmsg(self.stream, &mut parts, &mut none, flags) {
                Ok(message) if message.bytes == 0 => return Ok(false),
                Ok(message) => received += message.bytes,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => std::hint::spin_loop(),
                Err(rustix::io::Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Result of the only operation.
    fn result(&mut self) -> io::Result<usize> {
        self.ring.submit_and_wait(1)?;
        self.ring.take().map_or(Err(io::ErrorKind::UnexpectedEof.into()), |(_, result)| result)
    }
}

const fn payload(start: usize, length: usize) -> Piece {
    Piece { start: PAYLOAD_START + start, length }
}

/// Starts and lengths of the frames of a response.
fn pieces(length: usize, chunk: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..length).step_by(chunk).map(move |start| (start, chunk.min(length - start)))
}

/// Two pieces without the first `done` bytes.
fn rest<'b>(
    first: &'b mut [u8],
    second: &'b mut [u8],
    done: usize,
) -> (&'b mut [u8], &'b mut [u8]) {
    let of_first = done.min(first.len());
    (&mut first[of_first..], &mut second[done - of_first..])
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn a_header_survives_and_any_changed_byte_is_found() {
        let header = Header { id: 7, offset: 1 << 40, length: 4096 };
        let mut bytes = [0xff; HEADER_BYTES];
        header.encode(&mut bytes);
        assert_eq!(Header::decode(&bytes).expect("just encoded"), header);
        for place in 0..HEADER_BYTES {
            bytes[place] ^= 1;
            assert!(Header::decode(&bytes).is_err(), "byte {place}");
            bytes[place] ^= 1;
        }
    }

    #[test]
    fn gets_have_the_regions_bytes_by_all_calls() {
        const LENGTH: usize = 1 << 20;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
        let address = listener.local_addr().expect("bound");
        for (calls, chunk) in Calls::ALL.into_iter().zip([LENGTH, 300_000, 65_536, LENGTH]) {
            std::thread::scope(|scope| {
                let serving = scope.spawn(|| {
                    let (stream, _) = listener.accept().expect("a client");
                    Side::answering(&stream, calls).and_then(|mut side| side.answer(chunk))
                });
                let stream = TcpStream::connect(address).expect("it listens");
                let ring = Ring::new(4, memory_bytes(LENGTH), stream.as_fd(), Wait::Spin);
                let mut side = Side::over(ring.expect("a ring"), &stream, calls);
                for (id, offset) in [(1, 0), (2, 4096), (3, (REGION_BYTES - LENGTH) as u64)] {
                    side.get(id, offset, (LENGTH, chunk)).expect("checked");
                    let [_, bytes] =
                        side.ring.bytes([HEADER, payload(0, LENGTH)]).expect("nothing under way");
                    assert_eq!(bytes[..8], offset.to_le_bytes());
                    assert_eq!(bytes[LENGTH - 8..], (offset + LENGTH as u64 - 8).to_le_bytes());
                }
                drop(side);
                drop(stream);
                serving.join().expect("no panic").expect("ended by the client's end");
            });
        }
    }
}
