//! Where plain, authenticated and encrypted connections differ.
//!
//! A seal turns a frame into wire bytes and back. The payload keeps its length and its place. What
//! a seal must add (authentication tags for header and payload) stands in front, in a longer
//! header. The tags are known before the first byte leaves, because the payload is read for its
//! checksum at that time anyway. A trailer would instead cut every receive of a payload in two. So
//! the [`crate::Sender`] and the [`crate::Receiver`] are alike for all seals.
//!
//! ```text
//!   plain       header 64, with CRC32C of itself and of the payload   │ payload
//!   header      header 64, with CRC32C of itself                      │ payload
//!   integrity   header 64 │ payload's tag 16 │ tag of both 16         │ payload
//!   encrypted   as integrity, all but the last tag encrypted          │ payload, encrypted
//! ```
//!
//! The tags are those of AEGIS-128X4 (draft-irtf-cfrg-aegis-aead): its MAC, or the cipher. Each
//! direction has its key from the connection's handshake and counts its frames; the count is the
//! nonce and is not sent. A frame that was left out, repeated or taken from elsewhere thus fails
//! like one that was changed. A header that fails ends the connection. A payload that fails costs
//! its request alone: the payload may lie in memory of a client. That client can rewrite it between
//! the computation of its tag and its transmission, and must not end a connection that others use.

use core::fmt;

use aegis::aegis128x4::{Aegis128X4, Aegis128X4Mac};
use piped_core::io::{Io, Span};
use piped_core::limits::PAYLOAD_BYTES_MAX;
use piped_core::link::Protection;
use zeroize::Zeroize;

use crate::frame::{Frame, HEADER_BYTES, Message, PeerFault};

/// The longest header with what a seal adds to it, in bytes.
pub const WIRE_HEADER_BYTES_MAX: usize = SEALED_BYTES + TAG_BYTES;

/// Length of an authentication tag in bytes.
const TAG_BYTES: usize = 16;

/// Bytes under a header's tag: the header, and the payload's tag.
const SEALED_BYTES: usize = HEADER_BYTES + TAG_BYTES;

/// Payloads pass through private memory in pieces of this many bytes, which stay in the L1 cache.
const CHUNK_BYTES: usize = 8 * 1024;

/// Memory that an encrypted connection needs for its sends, in bytes: a batch, or one frame longer
/// than a batch.
pub const SEALED_ROOM_BYTES: u32 = PAYLOAD_BYTES_MAX;

const _: () = assert!(crate::BATCH_BYTES_MAX <= SEALED_ROOM_BYTES as u64);

type Cipher = Aegis128X4<TAG_BYTES>;
type Mac = Aegis128X4Mac<TAG_BYTES>;
type Tag = [u8; TAG_BYTES];
type Nonce = [u8; 16];

/// The key of one direction of a connection.
#[derive(Clone, PartialEq, Eq)]
pub struct FrameKey([u8; Self::BYTES]);

impl FrameKey {
    /// Length of a key in bytes.
    pub const BYTES: usize = 16;

    /// A key of 16 bytes that nobody else can know, for one direction of one connection.
    #[must_use]
    pub const fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }
}

impl Drop for FrameKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for FrameKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FrameKey(..)")
    }
}

/// The keys that a handshake leaves, for both directions of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneKeys {
    /// The protection that both sides agreed on.
    pub protection: Protection,
    /// Key of the frames that this side sends.
    pub send: FrameKey,
    /// Key of the frames that this side receives.
    pub receive: FrameKey,
}

/// The payload of a frame about to be sealed.
#[derive(Debug)]
pub(super) enum Body<'a> {
    /// The frame has no payload.
    Empty,
    /// A private copy of the payload, sealed in place.
    Bytes(&'a mut [u8]),
    /// A payload in registered memory that others may be able to rewrite.
    Memory(Span),
}

/// The protection of one direction of a connection, with its key and its count of frames if there
/// are any.
#[derive(Debug)]
pub enum Seal {
    /// Checksums alone: for loopback and for networks that the operator named.
    Plain {
        /// Whether payloads that clients move have checksums; all others have.
        sums: bool,
    },
    /// Authenticated by a key, and encrypted if the two nodes want that.
    Keyed(Box<Keyed>),
}

/// State of one direction of a connection with keys.
pub struct Keyed {
    protection: Protection,
    key: FrameKey,
    /// Frames so far, which is the next frame's nonce.
    frames: u64,
    /// Nonce and tag for the payload of the frame opened last.
    payload: (Nonce, Tag),
    /// A piece of a payload on its way through. Of [`CHUNK_BYTES`] from the first payload on, and
    /// empty after [`Seal::rest`].
    chunk: Vec<u8>,
    /// A payload that is decrypted and not verified yet; nobody else has seen it.
    unverified: Vec<u8>,
}

impl fmt::Debug for Keyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protection, frames, .. } = self;
        f.debug_struct("Keyed").field("protection", protection).field("frames", frames).finish()
    }
}

/// Which of a frame's two tags a nonce is for.
#[derive(Clone, Copy)]
enum Part {
    Header,
    Payload,
}

impl Seal {
    /// A seal without keys, with checksums of payloads.
    pub const PLAIN: Self = Self::Plain { sums: true };

    /// A seal with keys at the beginning of its direction.
    #[must_use]
    pub fn keyed(protection: Protection, key: FrameKey) -> Self {
        Self::Keyed(Box::new(Keyed {
            protection,
            key,
            frames: 0,
            payload: Default::default(),
            chunk: Vec::new(),
            unverified: Vec::new(),
        }))
    }

    /// Bytes in front of each payload: [`HEADER_BYTES`] and what the seal adds.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        match self {
            Self::Plain { .. } => HEADER_BYTES,
            Self::Keyed(_) => WIRE_HEADER_BYTES_MAX,
        }
    }

    /// The protection that the seal gives; `None` if it is plain.
    #[must_use]
    pub fn protection(&self) -> Option<Protection> {
        match self {
            Self::Plain { .. } => None,
            Self::Keyed(keyed) => Some(keyed.protection),
        }
    }

    /// Whether a payload that changed on the way is noticed, also one that clients move.
    #[must_use]
    pub const fn checks_payloads(&self) -> bool {
        match self {
            Self::Plain { sums } => *sums,
            Self::Keyed(_) => true,
        }
    }

    /// Whether the payload of a frame has a checksum, or a tag.
    pub(super) const fn checks(&self, message: &Message) -> bool {
        self.checks_payloads() || !message.carries_data()
    }

    /// Whether payloads have checksums from the next frame on. A seal with keys has tags, and stays
    /// as it is.
    pub(super) fn set_sums(&mut self, wanted: bool) {
        if let Self::Plain { sums } = self {
            *sums = wanted;
        }
    }

    /// Gives back the private memory that payloads pass through. The next one takes it again.
    pub(super) fn rest(&mut self) {
        if let Self::Keyed(keyed) = self {
            (keyed.chunk, keyed.unverified) = (Vec::new(), Vec::new());
        }
    }

    /// Whether payloads leave from other memory than they lie in, because they are encrypted.
    #[must_use]
    pub fn moves_payloads(&self) -> bool {
        matches!(self, Self::Keyed(keyed) if keyed.protection == Protection::Encrypted)
    }

    /// The memory that a payload leaves from: its own, or the front of `room` if it is encrypted.
    pub(super) fn place_of(&self, payload: Span, room: Option<Span>) -> Span {
        let room = room.filter(|_| self.moves_payloads());
        room.map_or(payload, |room| room.part(0, payload.length))
    }

    /// Write the wire header of a frame into `header` (of [`Self::header_bytes`]), and what is
    /// encrypted of a [`Body::Memory`] to its [place](Self::place_of). `frame.payload` is right,
    /// `frame.payload_crc` is not yet. Called once per frame, in the order of the stream.
    pub(super) fn seal<I: Io>(
        &mut self,
        io: &mut I,
        frame: Frame,
        body: Body<'_>,
        header: &mut [u8],
        room: Option<Span>,
    ) {
        match self {
            Self::Plain { .. } => {
                let has_sum = self.checks(&frame.message);
                let payload_crc = match body {
                    Body::Memory(span) if has_sum => io.crc32c(span),
                    Body::Bytes(bytes) if has_sum => crate::frame::crc32c(bytes),
                    Body::Empty | Body::Bytes(_) | Body::Memory(_) => 0,
                };
                header.copy_from_slice(&Frame { payload_crc, ..frame }.encode());
            }
            Self::Keyed(keyed) => keyed.seal(io, frame, body, header, room),
        }
    }

    /// Check a wire header of [`Self::header_bytes`] and parse it.
    ///
    /// # Errors
    /// The fault of the peer, which ends the connection.
    pub(super) fn open(&mut self, header: &mut [u8]) -> Result<Frame, PeerFault> {
        if let Self::Keyed(keyed) = self {
            keyed.open(header)?;
        }
        let header = header.first_chunk().expect("the receiver hands over `header_bytes`");
        let frame = Frame::parse(header)?;
        if !self.checks(&frame.message) && frame.payload_crc != 0 {
            return Err(PeerFault::UnaskedSum);
        }
        Ok(frame)
    }

    /// Check (and decrypt in place) the payload of the header that was opened last, which
    /// [`Self::checks`]. `false`: the
    /// payload is not what was sent, and nothing was decrypted.
    pub(super) fn open_payload<I: Io>(&mut self, io: &mut I, frame: &Frame, landed: Span) -> bool {
        match self {
            Self::Plain { .. } => io.crc32c(landed) == frame.payload_crc,
            Self::Keyed(keyed) => keyed.open_payload(io, landed),
        }
    }
}

impl Keyed {
    fn nonce(&self, part: Part) -> Nonce {
        let mut nonce = Nonce::default();
        nonce[..8].copy_from_slice(&self.frames.to_le_bytes());
        nonce[8] = part as u8;
        nonce
    }

    fn cipher(&self, nonce: &Nonce) -> Cipher {
        Cipher::new(&self.key.0, nonce)
    }

    fn mac(&self, nonce: &Nonce) -> Mac {
        Mac::new_with_nonce(&self.key.0, nonce)
    }

    /// Seals private bytes in place.
    fn seal_bytes(&self, part: Part, bytes: &mut [u8]) -> Tag {
        let nonce = self.nonce(part);
        match self.protection {
            Protection::Integrity => {
                let mut mac = self.mac(&nonce);
                mac.update(bytes);
                mac.finalize()
            }
            Protection::Encrypted => self.cipher(&nonce).encrypt_in_place(bytes, &[]),
        }
    }

    fn seal<I: Io>(
        &mut self,
        io: &mut I,
        frame: Frame,
        body: Body<'_>,
        header: &mut [u8],
        room: Option<Span>,
    ) {
        let payload_tag = match body {
            Body::Empty => Tag::default(),
            Body::Bytes(bytes) => self.seal_bytes(Part::Payload, bytes),
            Body::Memory(span) => self.seal_memory(io, span, room),
        };
        let (sealed, tag) = header.split_at_mut(SEALED_BYTES);
        sealed[..HEADER_BYTES].copy_from_slice(&frame.encode());
        sealed[HEADER_BYTES..].copy_from_slice(&payload_tag);
        tag.copy_from_slice(&self.seal_bytes(Part::Header, sealed));
        self.frames += 1;
    }

    /// Takes the memory for a piece of a payload, where there is none.
    fn take_chunk(&mut self) {
        if self.chunk.is_empty() {
            self.chunk = vec![0; CHUNK_BYTES];
        }
    }

    fn seal_memory<I: Io>(&mut self, io: &mut I, span: Span, room: Option<Span>) -> Tag {
        let nonce = self.nonce(Part::Payload);
        if self.protection == Protection::Integrity {
            return self.mac_memory(io, span, &nonce).finalize();
        }
        let room = room.expect("an encrypted lane has room for a batch").part(0, span.length);
        assert_eq!(room.length, span.length, "a batch is not longer than its room");
        self.take_chunk();
        let mut encryptor = self.cipher(&nonce).encryptor(&[]);
        for (plain, sealed) in pieces(span).zip(pieces(room)) {
            let bytes = &mut self.chunk[..plain.length as usize];
            io.load(plain, bytes);
            encryptor.update_in_place(bytes);
            io.store(bytes, sealed);
        }
        encryptor.finalize()
    }

    fn mac_memory<I: Io>(&mut self, io: &mut I, span: Span, nonce: &Nonce) -> Mac {
        self.take_chunk();
        let mut mac = self.mac(nonce);
        for piece in pieces(span) {
            let bytes = &mut self.chunk[..piece.length as usize];
            io.load(piece, bytes);
            mac.update(bytes);
        }
        mac
    }

    /// Checks and decrypts a header in place. Nothing of a header that fails is used.
    fn open(&mut self, header: &mut [u8]) -> Result<(), PeerFault> {
        let (sealed, tag) = header.split_at_mut(SEALED_BYTES);
        let tag: &Tag = tag.first_chunk().expect("a tag behind them");
        let nonce = self.nonce(Part::Header);
        let good = match self.protection {
            Protection::Integrity => {
                let mut mac = self.mac(&nonce);
                mac.update(sealed);
                mac.verify(tag).is_ok()
            }
            Protection::Encrypted => self.cipher(&nonce).decrypt_in_place(sealed, tag, &[]).is_ok(),
        };
        if !good {
            return Err(PeerFault::Seal);
        }
        let (_, payload_tag) = sealed.split_last_chunk().expect("behind the header");
        self.payload = (self.nonce(Part::Payload), *payload_tag);
        self.frames += 1;
        Ok(())
    }

    fn open_payload<I: Io>(&mut self, io: &mut I, landed: Span) -> bool {
        match self.protection {
            Protection::Integrity => {
                let (nonce, tag) = self.payload;
                self.mac_memory(io, landed, &nonce).verify(&tag).is_ok()
            }
            Protection::Encrypted => self.decrypt_payload(io, landed),
        }
    }

    /// Decrypts in private memory; only a payload with the right tag leaves it.
    fn decrypt_payload<I: Io>(&mut self, io: &mut I, landed: Span) -> bool {
        let length = landed.length as usize;
        self.take_chunk();
        if self.unverified.len() < length {
            self.unverified.resize(length, 0);
        }
        let (nonce, tag) = self.payload;
        let cipher = self.cipher(&nonce);
        let mut decryptor = cipher.decryptor(&[], &mut self.unverified[..length]);
        for piece in pieces(landed) {
            let bytes = &mut self.chunk[..piece.length as usize];
            io.load(piece, bytes);
            decryptor.update(bytes).expect("the payload's length is the room's");
        }
        match decryptor.finalize(&tag) {
            Ok(plain) => {
                io.store(plain, landed);
                true
            }
            Err(_) => false,
        }
    }
}

/// The span in pieces that fit a chunk.
fn pieces(span: Span) -> impl Iterator<Item = Span> {
    (0..span.length).step_by(CHUNK_BYTES).map(move |at| span.part(at, CHUNK_BYTES as u32))
}
