//! The frame: a 64-byte header with the same fields for all kinds, then the payload.
//!
//! One shape for all kinds keeps the parser short and lets a receiver ask for a header without
//! knowing what comes. A kind uses some of the fields; all others must be zero. That rule needs no
//! code per kind: the parser builds the typed [`Frame`], writes it out again and compares. A bit
//! without a meaning in this version is thus refused rather than ignored. A peer of a later version
//! raises the version byte, which is checked before anything that may move.
//!
//! The header's own checksum is CRC32C (Castagnoli) over its first 60 bytes. The payload's checksum
//! stands in the header, unless both nodes do without. A damaged payload is therefore known to
//! belong to a sound frame and costs only that request, while a damaged header costs the
//! connection.

use crc_fast::CrcAlgorithm;
use piped_core::call::ANSWER_BYTES_MAX;
use piped_core::pieces::Row;
use piped_core::request::Update;
use piped_core::status::Status;
use zerocopy::little_endian::U32;

pub use crate::fault::PeerFault;
pub use crate::header::HEADER_BYTES;
use crate::header::{FLAG_FOLLOWED, Header, MAGIC};
use crate::message::VERSION;
pub use crate::message::{
    After, Asker, Change, LastPart, Message, OPEN_BYTES_MAX, OUTCOME_NANOS_MAX, OUTCOME_NANOS_MIN,
    SWEEP, TABLE_BYTES_MAX,
};

/// First bytes of a handshake with keys; no frame begins with them.
pub const HANDSHAKE_MAGIC: [u8; 6] = *b"pipedK";

/// Bytes of the header under its checksum, which does not cover itself.
const CHECKED_BYTES: usize = HEADER_BYTES - size_of::<u32>();

/// A header, parsed and checked, or about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The connection's epoch; the receiver discards frames of an older one.
    pub epoch: u32,
    /// Kind of the frame, with the kind's fields.
    pub message: Message,
    /// Length of the payload in bytes.
    pub payload: u32,
    /// CRC32C of the payload; 0 without a payload, and where payloads have no checksums.
    pub payload_crc: u32,
    /// Another frame is in the same batch, which is sent to its end or the connection ends: so its
    /// header may be waited for together with the payload. False without a payload.
    pub followed: bool,
}

impl Frame {
    /// The header's bytes, with the header's checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes: [u8; HEADER_BYTES] = zerocopy::transmute!(self.header());
        let crc = crc32c(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Read and check a header.
    ///
    /// # Errors
    /// The first fault that is found. Nothing that follows in the stream can be trusted then.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, PeerFault> {
        let header: Header = zerocopy::transmute!(*bytes);
        if bytes.starts_with(&HANDSHAKE_MAGIC) {
            return Err(PeerFault::Handshake);
        }
        if header.magic.get() != MAGIC {
            return Err(PeerFault::BadMagic(header.magic.get()));
        }
        if header.version != VERSION {
            return Err(PeerFault::Version(header.version));
        }
        let computed = crc32c(&bytes[..CHECKED_BYTES]);
        let found = header.header_crc.get();
        if found != computed {
            return Err(PeerFault::HeaderChecksum { found, computed });
        }
        let frame = Self {
            epoch: header.epoch.get(),
            message: crate::header::read(&header)?,
            payload: header.payload_len.get(),
            payload_crc: header.payload_crc.get(),
            followed: header.has(FLAG_FOLLOWED),
        };
        frame.check(header.kind)?;
        // A field or flag that this kind does not use, or half of a u64 that holds a u32, differs
        // now.
        if frame.header() != (Header { header_crc: U32::ZERO, ..header }) {
            return Err(header.bad("reserved"));
        }
        Ok(frame)
    }

    /// The header without its checksum.
    fn header(&self) -> Header {
        let mut header = crate::header::write(&self.message);
        header.magic = MAGIC.into();
        header.version = VERSION;
        header.epoch = self.epoch.into();
        header.payload_len = self.payload.into();
        header.payload_crc = self.payload_crc.into();
        if self.followed {
            header.flags |= FLAG_FOLLOWED;
        }
        header
    }

    /// Checks what the types cannot say: lengths, and sums that must not overflow later.
    fn check(&self, kind: u8) -> Result<(), PeerFault> {
        let (least, limit) = self.message.payload_bounds();
        if self.payload > limit {
            return Err(PeerFault::PayloadTooLong { kind, length: self.payload, limit });
        }
        if self.payload < least {
            return Err(PeerFault::PayloadTooShort { kind, length: self.payload });
        }
        let bad = |field| Err(PeerFault::BadField { kind, field });
        if self.payload == 0 && self.payload_crc != 0 {
            return bad("payload_crc");
        }
        if self.payload == 0 && self.followed {
            return bad("followed");
        }
        match self.message {
            Message::HelloRefused { status: Status::Ok } => bad("status"),
            Message::Open { name_length: 0, .. } => bad("name_length"),
            Message::Opened { status, handle, length, .. }
                if status != Status::Ok && (handle != 0 || length != 0) =>
            {
                bad("status")
            }
            Message::Read { offset, length, .. } | Message::Write { offset, length, .. }
                if offset.checked_add(length).is_none() =>
            {
                bad("length")
            }
            Message::Read { length, from, .. } if u64::from(from) > length => bad("from"),
            Message::Read { offset: 1.., pieces: true, .. }
            | Message::Write { offset: 1.., pieces: true, .. } => bad("offset"),
            Message::Read { pieces: true, .. } | Message::Write { pieces: true, .. }
                if !self.payload.is_multiple_of(Row::WIRE_BYTES as u32) =>
            {
                bad("payload_len")
            }
            Message::Read { asker, .. }
            | Message::Write { asker, .. }
            | Message::Call { asker, .. }
                if asker.weight == 0 =>
            {
                bad("weight")
            }
            Message::Call { answer_max, .. } if u64::from(answer_max) > ANSWER_BYTES_MAX => {
                bad("answer_max")
            }
            Message::Send { length, .. }
                if length == 0 || self.payload > 0 && self.payload != length =>
            {
                bad("length")
            }
            Message::Ready { status, handle, .. } if status != Status::Ok && handle != 0 => {
                bad("status")
            }
            Message::Update { change: Change::Word { offset, .. }, .. }
                if offset % Update::BYTES != 0 || offset > u64::MAX - Update::BYTES =>
            {
                bad("offset")
            }
            Message::Updated { status, value, .. } if status != Status::Ok && value != 0 => {
                bad("status")
            }
            Message::Data { offset, .. } | Message::WriteData { offset, .. }
                if offset.checked_add(u64::from(self.payload)).is_none() =>
            {
                bad("offset")
            }
            Message::Credit { window: 0, .. } => bad("window"),
            Message::Outcome { length: 0, .. } => bad("length"),
            Message::Outcome { plan: 0, .. } => bad("plan"),
            Message::Outcome { latency_ns, .. }
                if !(OUTCOME_NANOS_MIN..=OUTCOME_NANOS_MAX).contains(&latency_ns) =>
            {
                bad("latency_ns")
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    // A 32-bit checksum in the library's 64-bit return type.
    (crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) & 0xffff_ffff) as u32
}
