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
use piped_core::access::{Access, OpenKind};
use piped_core::limits::PAYLOAD_BYTES_MAX;
use piped_core::limits::{EAGER_BYTES_MAX, PART_ROWS};
use piped_core::link::LaneClass;
use piped_core::link::ReportedStage;
use piped_core::names::NODE_NAME_BYTES_MAX;
use piped_core::pieces::Row;
use piped_core::request::{Class, Update};
use piped_core::sizes::SIZES_MAX;
use piped_core::status::Status;
use zerocopy::little_endian::U32;

use crate::header::{Header, MAGIC, VERSION};

/// How a handshake begins, which no frame does.
pub const HANDSHAKE_MAGIC: [u8; 6] = *b"pipedK";

/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 64;

/// As the handle of [`Message::Close`]: all that was not asked for on this incarnation of the lane.
pub const SWEEP: u32 = u32::MAX;

/// The longest export or region name together with its path, in bytes.
pub const OPEN_BYTES_MAX: u32 = 1152;

/// The longest table of pieces, in bytes.
pub const TABLE_BYTES_MAX: u32 = PART_ROWS * Row::WIRE_BYTES as u32;

/// The checksum does not cover itself.
const CHECKED_BYTES: usize = HEADER_BYTES - size_of::<u32>();

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
    /// Send me this range as [`Message::Data`]. Payload: of `pieces`, the table of them
    /// ([`Row::to_wire`]), which are sent one behind the other; `offset` is 0 then.
    Read {
        /// The requester's number for it.
        transfer: u64,
        /// From [`Message::Opened`].
        handle: u32,
        /// Offset in the file or region, in bytes.
        offset: u64,
        /// Length of the whole request in bytes.
        length: u64,
        /// For whom.
        asker: Asker,
        /// Bytes from the request's start that are already in place; at most `length`.
        from: u32,
        /// Pieces of a region instead of a range.
        pieces: bool,
        /// Time until the deadline in microseconds; no clock is shared between nodes.
        time_left_us: u32,
    },
    /// A piece of a read. Payload: the bytes; may be empty only if it is the last. A read of at
    /// most 4096 bytes is one piece. Every other piece but the last ends at a multiple of 512
    /// bytes, and behind the first at a multiple of `fragment`, counted from the last multiple of
    /// 4096 bytes of the file or region before the request's offset: the receiver relies on it.
    Data {
        /// From the read.
        transfer: u64,
        /// Of the payload, from the request's start, in bytes.
        offset: u64,
        /// The plan's fragment size in bytes (for the receiver's prediction and `explain`); where
        /// sizes differ, what all of them are multiples of.
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
    /// I shall send this range as [`Message::WriteData`]. Payload: the sizes of the fragments in
    /// which it shall be written ([`piped_core::sizes::Sizes::encode`]); none if they are those of
    /// the frames. Or of `pieces`, as of [`Message::Read`].
    Write {
        /// The requester's number for it.
        transfer: u64,
        /// From [`Message::Opened`].
        handle: u32,
        /// Offset in the file or region, in bytes.
        offset: u64,
        /// Length of the whole request in bytes.
        length: u64,
        /// For whom.
        asker: Asker,
        /// Ended means on stable storage.
        durable: bool,
        /// Pieces of a region instead of a range.
        pieces: bool,
        /// The longest piece in bytes.
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
    /// A message for a channel. Payload: the message, at least one byte (eager); or nothing: it is
    /// announced. Answered at once, by [`Message::End`], [`Message::Queued`] or [`Message::Ready`].
    Send {
        /// The requester's number for it.
        transfer: u64,
        /// From [`Message::Opened`].
        handle: u32,
        /// What receivers choose by.
        tag: u64,
        /// Its length in bytes.
        length: u32,
        /// How many the requester has sent by this handle before. The same when it is sent again.
        sequence: u32,
        /// All before this one are over for the requester.
        oldest: u32,
        /// Time until the deadline in microseconds.
        time_left_us: u32,
    },
    /// An answer to [`Message::Send`]: nobody has asked for it yet. One [`Message::Ready`] follows.
    Queued {
        /// From the send.
        transfer: u64,
    },
    /// An answer to [`Message::Send`], at once or after [`Message::Queued`]: write it to this
    /// handle.
    Ready {
        /// From the send.
        transfer: u64,
        /// Ok, or why it never will be received.
        status: Status,
        /// A region as long as the message; 0 unless `status` is `Ok`.
        handle: u32,
    },
    /// Change a word of a region, or notify its exporter: at once, and once, however often it is
    /// sent. Answered by [`Message::Updated`].
    Update {
        /// The requester's number for it.
        transfer: u64,
        /// From [`Message::Opened`].
        handle: u32,
        /// What is done.
        change: Change,
        /// How many the requester has sent by this handle before. The same when it is sent again.
        sequence: u32,
        /// So many before it may be sent again still.
        behind: u8,
    },
    /// The answer to [`Message::Update`].
    Updated {
        /// From the update.
        transfer: u64,
        /// How it ended. `WouldBlock` of [`Change::Notify`]: after [`After::Writes`], not now;
        /// after [`After::Known`], it was not done; after [`After::Nothing`], nobody takes
        /// notifications there, and no more numbers are kept.
        status: Status,
        /// What the word was; 0 unless `status` is `Ok`.
        value: u64,
    },
    /// Give up on a request. It still ends with [`Message::End`] or a last [`Message::Data`].
    Cancel {
        /// The request.
        transfer: u64,
    },
    /// More write bytes may be under way.
    Credit {
        /// How many more.
        bytes: u64,
        /// How many there are in all from now on; at least 1.
        window: u64,
    },
    /// What this side measured of a stage at sizes of about one length, so that the other side can
    /// plan with it (a `Summary` of the theory). One of several that are told together.
    Report {
        /// Which stage.
        stage: ReportedStage,
        /// The handle whose device it is; 0 for the network.
        handle: u32,
        /// Times between departures of a busy stage, or ways through an empty one.
        backlogged: bool,
        /// The last of those that are told together.
        last: bool,
        /// How many samples it is worth, at most; 0: there is no such stage any more.
        weight: u8,
        /// The samples' mean size in bytes.
        size_bytes: u32,
        /// The standard deviation of their sizes in bytes.
        spread_bytes: u32,
        /// Their mean cost in picoseconds.
        cost_ps: u64,
        /// How it grows with their size, in femtoseconds per byte.
        slope_fs: u64,
        /// The standard deviation of one sample, in thousandths of the cost.
        deviation_pm: u32,
    },
    /// What a read took, from its request to its last byte in place, so that the side that plans
    /// learns which of its plans are good. Sent with the next request.
    Outcome {
        /// From [`Message::Opened`].
        handle: u32,
        /// Length of the read in bytes.
        length: u64,
        /// The plan's number, as it came with the last of the data.
        plan: u32,
        /// What it took, in nanoseconds.
        latency_ns: u64,
        /// Others were there with it, here or at the peer.
        company: bool,
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

/// What a [`Message::Update`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Change the 8 bytes at this offset of the region.
    Word {
        /// In bytes, a multiple of 8.
        offset: u64,
        /// How.
        update: Update,
    },
    /// Notify the region's exporter.
    Notify {
        /// Of what.
        id: u32,
        /// After what.
        after: After,
    },
}

/// What a notification comes after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Nothing: what it was to come after is over.
    Nothing,
    /// The writes of this client that were asked for on this lane before. Those of them that have
    /// not landed, or failed without the requester knowing, keep it from being done now.
    Writes {
        /// The requester's number for the client.
        client: u32,
        /// Writes that have failed on this lane as far as the requester knows.
        failed: u32,
    },
    /// It is not to be done: only told whether it was, when it was sent before.
    Known,
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
    /// Half the width of that prediction's interval, as percent of it; 255 is that or more.
    pub margin_percent: u8,
    /// Other requests were at the device or on the lane with it: what it took is not what was
    /// predicted.
    pub company: bool,
    /// The plan's number, which comes back with [`Message::Outcome`]; 0 if it has none.
    pub plan: u32,
}

/// For which of a peer's clients a request is, and how it stands with the others. What is shared is
/// shared between all clients of all nodes that want it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// How urgent.
    pub class: Class,
    /// The requester's number for the client; any, as long as it is the same for all of its
    /// requests.
    pub client: u32,
    /// The client's share beside others of the class; at least 1.
    pub weight: u8,
}

impl Asker {
    /// The only client of its node.
    #[must_use]
    pub const fn alone(class: Class) -> Self {
        Self { class, client: 0, weight: 1 }
    }
}

/// What a peer did wrong. The lane is closed; the peer may dial again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PeerFault {
    /// Not our protocol.
    #[error(
        "the stream does not carry piped frames (starts with {0:#06x}); check the peer's address and port"
    )]
    BadMagic(u16),
    /// A handshake of a node that has a key.
    #[error(
        "the peer proves itself by a key and wants the same of this node, which has none: run `pipectl keys \
         generate` here, and give the peer what it prints"
    )]
    Handshake,
    /// Another version of it.
    #[error(
        "the peer speaks frame version {0}, this daemon version {ours}; install the same release on both",
        ours = VERSION
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
    /// A header whose tag is wrong.
    #[error(
        "a frame is not the peer's, or not the next one: its bits, or the order of frames, changed on the way; \
         suspect memory, network card or a middlebox, or somebody on the network between the nodes"
    )]
    Seal,
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
            message: header.message()?,
            payload: header.payload_len.get(),
            payload_crc: header.payload_crc.get(),
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
            Message::Read { length, from, .. } if u64::from(from) > length => bad("from"),
            Message::Read { offset: 1.., pieces: true, .. }
            | Message::Write { offset: 1.., pieces: true, .. } => bad("offset"),
            Message::Read { pieces: true, .. } | Message::Write { pieces: true, .. }
                if !self.payload.is_multiple_of(Row::WIRE_BYTES as u32) =>
            {
                bad("payload_len")
            }
            Message::Read { asker, .. } | Message::Write { asker, .. } if asker.weight == 0 => {
                bad("weight")
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

/// No read takes less than this, in nanoseconds.
pub const OUTCOME_NANOS_MIN: u64 = 100;

/// A read that took longer, in nanoseconds, says nothing about its plan.
pub const OUTCOME_NANOS_MAX: u64 = 1_000_000_000_000;

impl Message {
    /// The least and the most payload bytes of this kind.
    fn payload_bounds(&self) -> (u32, u32) {
        match self {
            Self::Hello { .. } => (1, NODE_NAME_BYTES_MAX),
            Self::Open { name_length, .. } => (u32::from(*name_length), OPEN_BYTES_MAX),
            Self::Data { last, .. } => (u32::from(last.is_none()), PAYLOAD_BYTES_MAX),
            Self::WriteData { .. } => (1, PAYLOAD_BYTES_MAX),
            Self::Read { pieces: true, .. } | Self::Write { pieces: true, .. } => {
                (Row::WIRE_BYTES as u32, TABLE_BYTES_MAX)
            }
            Self::Write { .. } => (0, 2 * SIZES_MAX as u32),
            Self::Send { .. } => (0, EAGER_BYTES_MAX),
            _ => (0, 0),
        }
    }
}

pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    // A 32-bit checksum in the library's 64-bit return type.
    (crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) & 0xffff_ffff) as u32
}
