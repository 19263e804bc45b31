//! The frame: a 64-byte header of fixed shape, then the payload.
//!
//! One shape for all kinds keeps the parser short and lets a receiver ask for a header without
//! knowing what comes. A kind uses some of the fields; all others must be zero. That rule needs no
//! code per kind: the parser builds the typed [`Frame`], writes it out again and compares, so a bit
//! without a meaning in this version is refused rather than ignored. A peer of a later version
//! raises the version byte, which is looked at before anything that may move.
//!
//! The header's own checksum is CRC32C (Castagnoli) over its first 60 bytes. The payload's checksum
//! stands in the header, so a damaged payload is known to belong to a sound frame and costs only
//! that request, while a damaged header costs the lane.

use crc_fast::CrcAlgorithm;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::command::{Access, LaneClass, OpenKind};
use crate::request::{Class, Status};

/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 64;

/// The longest payload of a frame in bytes. A lane is not blocked longer than this takes to send.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 20;

/// The longest node name in bytes.
pub const NODE_NAME_BYTES_MAX: u32 = 64;

/// The longest export or region name together with its path, in bytes.
pub const OPEN_BYTES_MAX: u32 = 1152;

/// `p` `D` on the wire.
const MAGIC: u16 = u16::from_le_bytes(*b"pD");
/// The version of this header and of the meaning of its kinds.
const VERSION: u8 = 1;
/// The checksum does not cover itself.
const CHECKED_BYTES: usize = HEADER_BYTES - size_of::<u32>();

const FLAG_READ: u16 = 1 << 0;
const FLAG_WRITE: u16 = 1 << 1;
const FLAG_CREATE: u16 = 1 << 2;
const FLAG_DURABLE: u16 = 1 << 3;
const FLAG_BACKLOGGED: u16 = 1 << 4;
const FLAG_LAST: u16 = 1 << 5;

const KIND_HELLO: u8 = 1;
const KIND_HELLO_ACK: u8 = 2;
const KIND_HELLO_REFUSED: u8 = 3;
const KIND_OPEN: u8 = 4;
const KIND_OPENED: u8 = 5;
const KIND_CLOSE: u8 = 6;
const KIND_READ: u8 = 7;
const KIND_DATA: u8 = 8;
const KIND_END: u8 = 9;
const KIND_WRITE: u8 = 10;
const KIND_WRITE_DATA: u8 = 11;
const KIND_SYNC: u8 = 12;
const KIND_CANCEL: u8 = 13;
const KIND_CREDIT: u8 = 14;
const KIND_REPORT: u8 = 15;
const KIND_PING: u8 = 16;
const KIND_PONG: u8 = 17;

/// A header, parsed and checked, or about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The lane's incarnation; the receiver fences frames of an older one.
    pub epoch: u32,
    /// What it says.
    pub message: Message,
    /// Length of the payload in bytes.
    pub payload: u32,
    /// CRC32C of the payload, 0 without one.
    pub payload_crc: u32,
}

/// What a frame says. Requests go from the side that dialled, answers come back on the same lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// First frame of the dialling side. Payload: its node name in UTF-8, 1 to 64 bytes.
    Hello {
        /// Distinguishes runs of the daemon.
        incarnation: u64,
        /// Which of the two lanes this connection is.
        lane: LaneClass,
    },
    /// The accepting side agrees.
    HelloAck {
        /// Distinguishes runs of the daemon.
        incarnation: u64,
        /// Write bytes that may be under way before the first [`Message::Credit`].
        credit_bytes: u64,
        /// Requests that may be outstanding on the lane.
        requests_max: u32,
    },
    /// The accepting side refuses and closes.
    HelloRefused {
        /// Why; never `Ok`.
        status: Status,
    },
    /// Open something. Payload: its name, then the path below it, 1 to 1152 bytes together.
    Open {
        /// Comes back in the answer.
        ticket: u64,
        /// A file below an export, or a region.
        kind: OpenKind,
        /// What the handle shall be able to do.
        access: Access,
        /// Create the file if it is not there.
        create: bool,
        /// How many bytes of the payload are the name; at least 1.
        name_length: u8,
    },
    /// The answer to [`Message::Open`].
    Opened {
        /// From the open.
        ticket: u64,
        /// How it ended.
        status: Status,
        /// The serving side's number for it; 0 unless `status` is `Ok`.
        handle: u32,
        /// Length of the file or region in bytes; 0 unless `status` is `Ok`.
        length: u64,
    },
    /// The handle is not needed any more.
    Close {
        /// From [`Message::Opened`].
        handle: u32,
    },
    /// Send me this range as [`Message::Data`].
    Read {
        /// The requester's number for it.
        transfer: u64,
        /// From [`Message::Opened`].
        handle: u32,
        /// Offset in the file or region, in bytes.
        offset: u64,
        /// Length of the whole request in bytes.
        length: u64,
        /// How urgent.
        class: Class,
        /// Bytes from the request's start that are already in place; at most `length`.
        from: u64,
        /// Time until the deadline in microseconds; no clock is shared between nodes.
        time_left_us: u32,
    },
    /// A piece of a read. Payload: the bytes; may be empty only if it is the last.
    Data {
        /// From the read.
        transfer: u64,
        /// Of the payload, from the request's start, in bytes.
        offset: u64,
        /// The plan's fragment size in bytes (for the receiver's prediction and `explain`).
        fragment: u32,
        /// The frame before it had not left when this one was ready: a sample of g + xG.
        backlogged: bool,
        /// How long the serving stage took for the fragment, in microseconds.
        service_us: u32,
        /// The end of the read in the same frame, so that a small read needs one.
        last: Option<LastPart>,
    },
    /// The end of a read, write or sync.
    End {
        /// From the request.
        transfer: u64,
        /// How it ended.
        status: Status,
        /// Contiguous bytes done from the request's start.
        bytes: u64,
        /// How long serving it took, in microseconds.
        service_us: u32,
        /// The plan's fragment size in bytes.
        fragment: u32,
        /// The latency the serving side's plan predicted, in microseconds.
        predicted_us: u32,
    },
    /// I shall send this range as [`Message::WriteData`].
    Write {
        /// The requester's number for it.
        transfer: u64,
        /// From [`Message::Opened`].
        handle: u32,
        /// Offset in the file or region, in bytes.
        offset: u64,
        /// Length of the whole request in bytes.
        length: u64,
        /// How urgent.
        class: Class,
        /// Ended means on stable storage.
        durable: bool,
        /// The plan's fragment size in bytes.
        fragment: u32,
        /// Time until the deadline in microseconds.
        time_left_us: u32,
    },
    /// A piece of a write. Payload: the bytes, at least one.
    WriteData {
        /// From the write.
        transfer: u64,
        /// Of the payload, from the request's start, in bytes.
        offset: u64,
        /// The frame before it had not left when this one was ready.
        backlogged: bool,
    },
    /// Make all writes of a handle that have ended durable.
    Sync {
        /// The requester's number for it.
        transfer: u64,
        /// From [`Message::Opened`].
        handle: u32,
        /// Time until the deadline in microseconds.
        time_left_us: u32,
    },
    /// Give up on a request. It still ends with [`Message::End`] or a last [`Message::Data`].
    Cancel {
        /// The request.
        transfer: u64,
    },
    /// More write bytes may be under way.
    Credit {
        /// How many more; at least 1.
        bytes: u64,
    },
    /// What the serving side measured of a stage, so that the requester can plan with it.
    Report {
        /// Which stage.
        stage: ReportedStage,
        /// The handle whose device it is; 0 for the network.
        handle: u32,
        /// `L` in nanoseconds.
        latency_ns: u64,
        /// `g` in nanoseconds.
        overhead_ns: u64,
        /// `G` in picoseconds per byte.
        per_byte_ps: u64,
        /// The most fragments in it at once; 0 is unbounded.
        window: u32,
        /// How sure, in percent; at most 100.
        confidence: u8,
        /// The fragment size in bytes the figures were measured around.
        size_bytes: u32,
    },
    /// Are you there?
    Ping {
        /// Comes back.
        nonce: u64,
    },
    /// I am.
    Pong {
        /// From the ping.
        nonce: u64,
    },
}

/// The end of a read, carried by its last [`Message::Data`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastPart {
    /// How it ended.
    pub status: Status,
    /// Contiguous bytes done from the request's start.
    pub bytes: u64,
    /// The latency the serving side's plan predicted, in microseconds.
    pub predicted_us: u32,
}

/// The stage a [`Message::Report`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReportedStage {
    /// Reads of the device below a handle.
    DiskRead,
    /// Writes to the device below a handle.
    DiskWrite,
    /// The lane itself, as the reporter receives.
    Net,
}

/// What a peer did wrong. The lane is closed; the peer may dial again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// Not our protocol.
    #[error(
        "the stream does not carry piped frames (starts with {0:#06x}); check the peer's address and port"
    )]
    BadMagic(u16),
    /// Another version of it.
    #[error(
        "the peer speaks frame version {0}, this daemon version 1; install the same release on both"
    )]
    Version(u8),
    /// Bits changed on the way.
    #[error(
        "header checksum is {found:#010x}, computed {computed:#010x}; suspect memory, network card or a middlebox"
    )]
    HeaderChecksum {
        /// As it stood in the header.
        found: u32,
        /// As the header's bytes have it.
        computed: u32,
    },
    /// A kind this version does not know.
    #[error("unknown frame kind {0}; compare the releases of both daemons")]
    UnknownKind(u8),
    /// A field has a value its kind does not allow.
    #[error(
        "frame kind {kind}: field `{field}` has a value that is not allowed; the peer's daemon is faulty or newer"
    )]
    BadField {
        /// Which kind of frame.
        kind: u8,
        /// Which field.
        field: &'static str,
    },
    /// A payload longer than the kind allows.
    #[error(
        "frame kind {kind}: payload of {length} bytes exceeds {limit}; the peer's daemon is faulty or newer"
    )]
    PayloadTooLong {
        /// Which kind of frame.
        kind: u8,
        /// The payload's length in bytes.
        length: u32,
        /// The most the kind allows, in bytes.
        limit: u32,
    },
    /// A payload shorter than the kind needs.
    #[error(
        "frame kind {kind}: payload of {length} bytes is too short; the peer's daemon is faulty"
    )]
    PayloadTooShort {
        /// Which kind of frame.
        kind: u8,
        /// The payload's length in bytes.
        length: u32,
    },
}

/// The header as it lies on the wire.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
struct Header {
    magic: U16,
    version: u8,
    kind: u8,
    flags: U16,
    class: u8,
    aux: u8,
    epoch: U32,
    payload_len: U32,
    transfer: U64,
    offset: U64,
    arg0: U64,
    arg1: U64,
    arg2: U32,
    payload_crc: U32,
    arg3: U32,
    header_crc: U32,
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

impl Frame {
    /// The header's bytes.
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
    /// The first thing wrong with it. Nothing of the stream behind it can be trusted then.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, PeerFault> {
        let header: Header = zerocopy::transmute!(*bytes);
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
            message: header.message()?,
            payload: header.payload_len.get(),
            payload_crc: header.payload_crc.get(),
        };
        frame.check(header.kind)?;
        // A field or flag that this kind does not use, or half of a u64 that holds a u32, differs now.
        if frame.header() != (Header { header_crc: U32::ZERO, ..header }) {
            return Err(header.bad("reserved"));
        }
        Ok(frame)
    }

    /// The header without its checksum.
    fn header(&self) -> Header {
        let mut header = self.message.header();
        header.magic = MAGIC.into();
        header.version = VERSION;
        header.epoch = self.epoch.into();
        header.payload_len = self.payload.into();
        header.payload_crc = self.payload_crc.into();
        header
    }

    /// What the types cannot say: lengths, and sums that must not overflow for whoever adds them.
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
            Message::Read { length, from, .. } if from > length => bad("from"),
            Message::Data { offset, .. } | Message::WriteData { offset, .. }
                if offset.checked_add(u64::from(self.payload)).is_none() =>
            {
                bad("offset")
            }
            Message::Credit { bytes: 0 } => bad("bytes"),
            Message::Report { confidence, .. } if confidence > 100 => bad("confidence"),
            _ => Ok(()),
        }
    }
}

impl Message {
    /// The least and the most payload bytes of this kind.
    fn payload_bounds(&self) -> (u32, u32) {
        match self {
            Self::Hello { .. } => (1, NODE_NAME_BYTES_MAX),
            Self::Open { name_length, .. } => (u32::from(*name_length), OPEN_BYTES_MAX),
            Self::Data { last, .. } => (u32::from(last.is_none()), PAYLOAD_BYTES_MAX),
            Self::WriteData { .. } => (1, PAYLOAD_BYTES_MAX),
            _ => (0, 0),
        }
    }

    /// The fields this message uses; all others are zero.
    fn header(&self) -> Header {
        match *self {
            Self::Hello { .. }
            | Self::HelloAck { .. }
            | Self::HelloRefused { .. }
            | Self::Credit { .. }
            | Self::Report { .. }
            | Self::Ping { .. }
            | Self::Pong { .. } => self.lane_header(),
            _ => self.request_header(),
        }
    }

    /// Messages about the lane as a whole.
    fn lane_header(&self) -> Header {
        let empty = Header::default();
        match *self {
            Self::Hello { incarnation, lane } => Header {
                kind: KIND_HELLO,
                arg0: incarnation.into(),
                class: lane_number(lane),
                ..empty
            },
            Self::HelloAck { incarnation, credit_bytes, requests_max } => Header {
                kind: KIND_HELLO_ACK,
                arg0: incarnation.into(),
                arg1: credit_bytes.into(),
                arg2: requests_max.into(),
                ..empty
            },
            Self::HelloRefused { status } => {
                Header { kind: KIND_HELLO_REFUSED, aux: status as u8, ..empty }
            }
            Self::Credit { bytes } => Header { kind: KIND_CREDIT, arg0: bytes.into(), ..empty },
            Self::Report {
                stage,
                handle,
                latency_ns,
                overhead_ns,
                per_byte_ps,
                window,
                confidence,
                size_bytes,
            } => Header {
                kind: KIND_REPORT,
                aux: stage_number(stage),
                class: confidence,
                transfer: latency_ns.into(),
                offset: overhead_ns.into(),
                arg0: per_byte_ps.into(),
                arg1: u64::from(size_bytes).into(),
                arg2: handle.into(),
                arg3: window.into(),
                ..empty
            },
            Self::Ping { nonce } => Header { kind: KIND_PING, arg0: nonce.into(), ..empty },
            Self::Pong { nonce } => Header { kind: KIND_PONG, arg0: nonce.into(), ..empty },
            _ => empty,
        }
    }

    /// Messages about one handle or one request.
    fn request_header(&self) -> Header {
        let empty = Header::default();
        match *self {
            Self::Open { ticket, kind, access, create, name_length } => Header {
                kind: KIND_OPEN,
                transfer: ticket.into(),
                aux: kind_number(kind),
                flags: (flag(access.read, FLAG_READ)
                    | flag(access.write, FLAG_WRITE)
                    | flag(create, FLAG_CREATE))
                .into(),
                arg2: u32::from(name_length).into(),
                ..empty
            },
            Self::Opened { ticket, status, handle, length } => Header {
                kind: KIND_OPENED,
                transfer: ticket.into(),
                aux: status as u8,
                arg0: length.into(),
                arg2: handle.into(),
                ..empty
            },
            Self::Close { handle } => Header { kind: KIND_CLOSE, arg2: handle.into(), ..empty },
            Self::Sync { transfer, handle, time_left_us } => Header {
                kind: KIND_SYNC,
                transfer: transfer.into(),
                arg2: handle.into(),
                arg3: time_left_us.into(),
                ..empty
            },
            Self::Cancel { transfer } => {
                Header { kind: KIND_CANCEL, transfer: transfer.into(), ..empty }
            }
            Self::End { transfer, status, bytes, service_us, fragment, predicted_us } => Header {
                kind: KIND_END,
                transfer: transfer.into(),
                aux: status as u8,
                arg0: bytes.into(),
                arg1: u64::from(predicted_us).into(),
                arg2: fragment.into(),
                arg3: service_us.into(),
                ..empty
            },
            _ => self.transfer_header(),
        }
    }

    /// Messages that move a request's bytes.
    fn transfer_header(&self) -> Header {
        let empty = Header::default();
        match *self {
            Self::Read { transfer, handle, offset, length, class, from, time_left_us } => Header {
                kind: KIND_READ,
                class: class_number(class),
                transfer: transfer.into(),
                offset: offset.into(),
                arg0: length.into(),
                arg1: from.into(),
                arg2: handle.into(),
                arg3: time_left_us.into(),
                ..empty
            },
            Self::Data { transfer, offset, fragment, backlogged, service_us, last } => Header {
                kind: KIND_DATA,
                flags: (flag(backlogged, FLAG_BACKLOGGED) | flag(last.is_some(), FLAG_LAST)).into(),
                aux: last.map_or(0, |last| last.status as u8),
                transfer: transfer.into(),
                offset: offset.into(),
                arg0: last.map_or(0, |last| last.bytes).into(),
                arg1: last.map_or(0, |last| u64::from(last.predicted_us)).into(),
                arg2: fragment.into(),
                arg3: service_us.into(),
                ..empty
            },
            Self::Write {
                transfer,
                handle,
                offset,
                length,
                class,
                durable,
                fragment,
                time_left_us,
            } => Header {
                kind: KIND_WRITE,
                flags: flag(durable, FLAG_DURABLE).into(),
                class: class_number(class),
                transfer: transfer.into(),
                offset: offset.into(),
                arg0: length.into(),
                arg1: u64::from(fragment).into(),
                arg2: handle.into(),
                arg3: time_left_us.into(),
                ..empty
            },
            Self::WriteData { transfer, offset, backlogged } => Header {
                kind: KIND_WRITE_DATA,
                flags: flag(backlogged, FLAG_BACKLOGGED).into(),
                transfer: transfer.into(),
                offset: offset.into(),
                ..empty
            },
            _ => empty,
        }
    }
}

impl Header {
    /// The typed message. Fields it does not use are looked at by the caller.
    fn message(&self) -> Result<Message, PeerFault> {
        Ok(match self.kind {
            KIND_HELLO => Message::Hello { incarnation: self.arg0.get(), lane: self.lane_class()? },
            KIND_HELLO_ACK => Message::HelloAck {
                incarnation: self.arg0.get(),
                credit_bytes: self.arg1.get(),
                requests_max: self.arg2.get(),
            },
            KIND_HELLO_REFUSED => Message::HelloRefused { status: self.status()? },
            KIND_CREDIT => Message::Credit { bytes: self.arg0.get() },
            KIND_REPORT => Message::Report {
                stage: self.stage()?,
                handle: self.arg2.get(),
                latency_ns: self.transfer.get(),
                overhead_ns: self.offset.get(),
                per_byte_ps: self.arg0.get(),
                window: self.arg3.get(),
                confidence: self.class,
                size_bytes: low_half(self.arg1),
            },
            KIND_PING => Message::Ping { nonce: self.arg0.get() },
            KIND_PONG => Message::Pong { nonce: self.arg0.get() },
            _ => return self.request_message(),
        })
    }

    fn request_message(&self) -> Result<Message, PeerFault> {
        let transfer = self.transfer.get();
        let handle = self.arg2.get();
        Ok(match self.kind {
            KIND_OPEN => Message::Open {
                ticket: transfer,
                kind: self.open_kind()?,
                access: Access { read: self.has(FLAG_READ), write: self.has(FLAG_WRITE) },
                create: self.has(FLAG_CREATE),
                name_length: u8::try_from(handle).map_err(|_| self.bad("name_length"))?,
            },
            KIND_OPENED => Message::Opened {
                ticket: transfer,
                status: self.status()?,
                handle,
                length: self.arg0.get(),
            },
            KIND_CLOSE => Message::Close { handle },
            KIND_SYNC => Message::Sync { transfer, handle, time_left_us: self.arg3.get() },
            KIND_CANCEL => Message::Cancel { transfer },
            KIND_END => Message::End {
                transfer,
                status: self.status()?,
                bytes: self.arg0.get(),
                service_us: self.arg3.get(),
                fragment: self.arg2.get(),
                predicted_us: low_half(self.arg1),
            },
            _ => return self.transfer_message(),
        })
    }

    fn transfer_message(&self) -> Result<Message, PeerFault> {
        let transfer = self.transfer.get();
        let offset = self.offset.get();
        Ok(match self.kind {
            KIND_READ => Message::Read {
                transfer,
                handle: self.arg2.get(),
                offset,
                length: self.arg0.get(),
                class: self.request_class()?,
                from: self.arg1.get(),
                time_left_us: self.arg3.get(),
            },
            KIND_DATA => Message::Data {
                transfer,
                offset,
                fragment: self.arg2.get(),
                backlogged: self.has(FLAG_BACKLOGGED),
                service_us: self.arg3.get(),
                last: if self.has(FLAG_LAST) { Some(self.last_part()?) } else { None },
            },
            KIND_WRITE => Message::Write {
                transfer,
                handle: self.arg2.get(),
                offset,
                length: self.arg0.get(),
                class: self.request_class()?,
                durable: self.has(FLAG_DURABLE),
                fragment: low_half(self.arg1),
                time_left_us: self.arg3.get(),
            },
            KIND_WRITE_DATA => {
                Message::WriteData { transfer, offset, backlogged: self.has(FLAG_BACKLOGGED) }
            }
            kind => return Err(PeerFault::UnknownKind(kind)),
        })
    }

    fn last_part(&self) -> Result<LastPart, PeerFault> {
        Ok(LastPart {
            status: self.status()?,
            bytes: self.arg0.get(),
            predicted_us: low_half(self.arg1),
        })
    }

    fn has(&self, flag: u16) -> bool {
        self.flags.get() & flag != 0
    }

    fn bad(&self, field: &'static str) -> PeerFault {
        PeerFault::BadField { kind: self.kind, field }
    }

    fn status(&self) -> Result<Status, PeerFault> {
        STATUSES.get(usize::from(self.aux)).copied().ok_or_else(|| self.bad("status"))
    }

    fn open_kind(&self) -> Result<OpenKind, PeerFault> {
        [OpenKind::File, OpenKind::Region]
            .into_iter()
            .find(|kind| kind_number(*kind) == self.aux)
            .ok_or_else(|| self.bad("kind"))
    }

    fn stage(&self) -> Result<ReportedStage, PeerFault> {
        [ReportedStage::DiskRead, ReportedStage::DiskWrite, ReportedStage::Net]
            .into_iter()
            .find(|stage| stage_number(*stage) == self.aux)
            .ok_or_else(|| self.bad("stage"))
    }

    fn request_class(&self) -> Result<Class, PeerFault> {
        [Class::Latency, Class::Bulk]
            .into_iter()
            .find(|class| class_number(*class) == self.class)
            .ok_or_else(|| self.bad("class"))
    }

    fn lane_class(&self) -> Result<LaneClass, PeerFault> {
        [LaneClass::Latency, LaneClass::Bulk]
            .into_iter()
            .find(|lane| lane_number(*lane) == self.class)
            .ok_or_else(|| self.bad("lane"))
    }
}

/// By number; the numbers are the ring's too and do not change.
const STATUSES: [Status; 17] = [
    Status::Ok,
    Status::Unsupported,
    Status::Invalid,
    Status::BadHandle,
    Status::BadBuffer,
    Status::Denied,
    Status::DeadlineExceeded,
    Status::Cancelled,
    Status::Io,
    Status::NoSpace,
    Status::PeerLost,
    Status::Gone,
    Status::NotFound,
    Status::WouldBlock,
    Status::OutcomeUnknown,
    Status::Corrupt,
    Status::Closed,
];

const _: () = {
    let mut number = 0;
    while number < STATUSES.len() {
        assert!(STATUSES[number] as usize == number);
        number += 1;
    }
};

const fn flag(set: bool, flag: u16) -> u16 {
    if set { flag } else { 0 }
}

/// The `u32` that a `u64` field holds. A non-zero upper half shows when the header is compared.
const fn low_half(field: U64) -> u32 {
    (field.get() & 0xffff_ffff) as u32
}

const fn class_number(class: Class) -> u8 {
    match class {
        Class::Latency => 1,
        Class::Bulk => 2,
    }
}

const fn lane_number(lane: LaneClass) -> u8 {
    match lane {
        LaneClass::Latency => 1,
        LaneClass::Bulk => 2,
    }
}

const fn kind_number(kind: OpenKind) -> u8 {
    match kind {
        OpenKind::File => 1,
        OpenKind::Region => 2,
    }
}

const fn stage_number(stage: ReportedStage) -> u8 {
    match stage {
        ReportedStage::DiskRead => 1,
        ReportedStage::DiskWrite => 2,
        ReportedStage::Net => 3,
    }
}

pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    // A 32-bit checksum in the library's 64-bit return type.
    (crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) & 0xffff_ffff) as u32
}
