//! What a plain and a sealed lane differ in.
//!
//! A seal turns a frame into wire bytes and back. The payload keeps its length and its place: what a
//! sealed lane must add (authentication tags for header and payload) stands in front, in a longer
//! header. The tags are known before the first byte leaves, because the payload is read for its
//! checksum then anyway; a trailer would instead cut every receive of a payload in two. So the
//! [`crate::wire::Sender`] and the [`crate::wire::Receiver`] are the same for every seal, and a lane's
//! kind is a type parameter that costs nothing on a plain lane.

use core::fmt::Debug;

use piped_model::units::Nanos;

use crate::io::{Io, Span};
use crate::wire::frame::{Frame, HEADER_BYTES, PeerFault};

/// The longest header with what a seal adds to it, in bytes.
pub const WIRE_HEADER_BYTES_MAX: usize = 128;

/// The payload of a frame about to be sealed.
#[derive(Debug)]
pub enum Body<'a> {
    /// No payload.
    Empty,
    /// A private copy, sealed in place.
    Bytes(&'a mut [u8]),
    /// Registered memory that others may be able to rewrite.
    Memory(Span),
}

/// One direction of a lane's protection, with its keys and counters if it has any.
pub trait Seal: Debug {
    /// Bytes in front of each payload; [`HEADER_BYTES`] and what the seal adds.
    const WIRE_HEADER_BYTES: usize;

    /// Write the wire header of a frame into `header` (of [`Self::WIRE_HEADER_BYTES`]) and say which
    /// memory to send for a [`Body::Memory`]: the same, or the seal's own with the encrypted bytes.
    /// `frame.payload` is right, `frame.payload_crc` is not yet. Called once per frame, in the order
    /// of the stream.
    fn seal<I: Io>(
        &mut self,
        io: &mut I,
        frame: Frame,
        body: Body<'_>,
        header: &mut [u8],
    ) -> Option<Span>;

    /// Check a wire header of [`Self::WIRE_HEADER_BYTES`] and parse it.
    ///
    /// # Errors
    /// The peer's fault; the lane ends.
    fn open(&mut self, header: &[u8]) -> Result<Frame, PeerFault>;

    /// Check (and decrypt in place) the payload that landed for the header opened last. `false`: it is
    /// not what was sent.
    fn open_payload<I: Io>(&mut self, io: &mut I, frame: &Frame, landed: Span) -> bool;
}

/// Payloads below this many bytes are not timed: their checksum takes hardly longer than two looks at
/// the clock.
const TIMED_BYTES_MIN: u32 = 4096;

/// What checking (and sealing) some payloads took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    frames: u32,
    bytes: u64,
    time: Nanos,
    /// The last one's beginning and end.
    last: Option<(Nanos, Nanos)>,
}

impl Checked {
    /// Checks or seals a payload of so many bytes, and times it if it is long.
    pub(super) fn timed<I: Io, T>(
        &mut self,
        io: &mut I,
        bytes: u32,
        check: impl FnOnce(&mut I) -> T,
    ) -> T {
        self.last = None;
        if bytes < TIMED_BYTES_MIN {
            return check(io);
        }
        let start = io.now();
        let checked = check(io);
        let end = io.now();
        self.frames += 1;
        self.bytes += u64::from(bytes);
        self.time = self.time + end.since(start);
        self.last = Some((start, end));
        checked
    }

    /// When the last payload's check began and ended, if it was timed.
    pub(super) fn last(&self) -> Option<(Nanos, Nanos)> {
        self.last
    }

    /// Mean size in bytes and mean time of a payload; `None` if there was none.
    #[must_use]
    pub fn mean(&self) -> Option<(u32, Nanos)> {
        let frames = u64::from(self.frames);
        let bytes = self.bytes.checked_div(frames)?;
        Some((bytes as u32, Nanos(self.time.0 / frames)))
    }

    /// Time of all payloads together.
    #[must_use]
    pub fn time(&self) -> Nanos {
        self.time
    }
}

/// No protection but checksums: for loopback and for networks the operator named.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

impl Seal for Plain {
    const WIRE_HEADER_BYTES: usize = HEADER_BYTES;

    fn seal<I: Io>(
        &mut self,
        io: &mut I,
        frame: Frame,
        body: Body<'_>,
        header: &mut [u8],
    ) -> Option<Span> {
        let (payload_crc, memory) = match body {
            Body::Empty => (0, None),
            Body::Bytes(bytes) => (crate::wire::frame::crc32c(bytes), None),
            Body::Memory(span) => (io.crc32c(span), Some(span)),
        };
        header.copy_from_slice(&Frame { payload_crc, ..frame }.encode());
        memory
    }

    fn open(&mut self, header: &[u8]) -> Result<Frame, PeerFault> {
        let header = header.first_chunk().expect("the receiver hands over WIRE_HEADER_BYTES");
        Frame::parse(header)
    }

    fn open_payload<I: Io>(&mut self, io: &mut I, frame: &Frame, landed: Span) -> bool {
        io.crc32c(landed) == frame.payload_crc
    }
}
