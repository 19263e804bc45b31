//! What frames say: the messages between two nodes, and the bounds of their payloads.

use piped_core::access::{Access, Creation, OpenKind};
use piped_core::call::{CALL_BYTES_MAX, HEAD_BYTES};
use piped_core::limits::{EAGER_BYTES_MAX, PART_ROWS, PAYLOAD_BYTES_MAX};
use piped_core::link::{Checksum, LaneClass, ReportedStage};
use piped_core::names::NODE_NAME_BYTES_MAX;
use piped_core::pieces::Row;
use piped_core::request::{Class, Update};
use piped_core::sizes::SIZES_MAX;
use piped_core::status::Status;

/// The version of the header, of its kinds, and of what they mean. A new kind needs a new version:
/// a peer that does not know the kind would lose its connections in the middle of work instead of
/// being told at Hello. Version 1, which was never released, had no [`Message::Outcome`].
pub(super) const VERSION: u8 = 12;

/// Handle of a [`Message::Close`] that closes every handle opened on an earlier epoch of the
/// connection.
pub const SWEEP: u32 = u32::MAX;

/// The longest export or region name together with its path, in bytes.
pub const OPEN_BYTES_MAX: u32 = 1152;

/// The longest table of pieces, in bytes.
pub const TABLE_BYTES_MAX: u32 = PART_ROWS * Row::WIRE_BYTES as u32;

/// The shortest time that a read can take, in nanoseconds.
pub const OUTCOME_NANOS_MIN: u64 = 100;

/// The longest time of a read, in nanoseconds, that says something about its plan.
pub const OUTCOME_NANOS_MAX: u64 = 1_000_000_000_000;

/// What a frame says. The side that dialled sends requests, and answers come back on the same
/// connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// First frame of the side that dialled. Payload: its node name in UTF-8, 1 to 64 bytes.
    Hello {
        /// Tells runs of the sender's daemon apart.
        incarnation: u64,
        /// Which of the two connections to the peer this one is.
        lane: LaneClass,
        /// What the sender wants checksums to cover, if the connection has no keys.
        checksum: Checksum,
    },
    /// The accepting side agrees to serve.
    HelloAck {
        /// Tells runs of the sender's daemon apart.
        incarnation: u64,
        /// Bytes of writes that may be under way before the first [`Message::Credit`].
        credit_bytes: u64,
        /// Requests that may be unfinished on the connection at once.
        requests_max: u32,
        /// Payloads of both directions have checksums from here on; always set on a connection with
        /// keys, whose tags cover payloads.
        sums: bool,
    },
    /// The accepting side refuses and closes the connection.
    HelloRefused {
        /// Why it refuses; never `Ok`.
        status: Status,
    },
    /// Open something. Payload: its name, then the path below it, 1 to 1152 bytes together.
    Open {
        /// The requester's number for the open; the answer repeats it.
        ticket: u64,
        /// A file below an export, or a region.
        kind: OpenKind,
        /// What the handle must allow.
        access: Access,
        /// Whether the file is made.
        create: Creation,
        /// How many bytes of the payload are the name; at least 1.
        name_length: u8,
    },
    /// The answer to [`Message::Open`].
    Opened {
        /// The number that the [`Message::Open`] had.
        ticket: u64,
        /// `Ok`, or why nothing was opened.
        status: Status,
        /// The responder's number for the handle; 0 unless `status` is `Ok`.
        handle: u32,
        /// Length of the file or region in bytes; 0 unless `status` is `Ok`.
        length: u64,
    },
    /// The requester does not need the handle any more.
    Close {
        /// The handle from [`Message::Opened`], or [`SWEEP`].
        handle: u32,
    },
    /// Ask for a range as [`Message::Data`]. Payload with `pieces`: the table of pieces
    /// ([`Row::to_wire`]), which are sent one after the other; `offset` is then 0.
    Read {
        /// The requester's number for the request.
        transfer: u64,
        /// The handle from [`Message::Opened`].
        handle: u32,
        /// Offset in the file or region, in bytes.
        offset: u64,
        /// Length of the whole request in bytes.
        length: u64,
        /// The client that the request is for.
        asker: Asker,
        /// Bytes from the request's start that are already in place; at most `length`.
        from: u32,
        /// The request is for pieces of a region instead of a range.
        pieces: bool,
        /// Time until the deadline in microseconds; no clock is shared between nodes.
        time_left_us: u32,
    },
    /// A piece of a read. Payload: the bytes; only the last piece may be empty. A read of at most
    /// 4096 bytes is one piece. Every other piece but the last ends at a multiple of 512 bytes, and
    /// from the second on at a multiple of `fragment`. Both are counted from the last multiple of
    /// 4096 bytes of the file or region before the request's offset. The receiver relies on this.
    Data {
        /// The requester's number from the [`Message::Read`].
        transfer: u64,
        /// Where the payload belongs, in bytes from the request's start.
        offset: u64,
        /// The plan's fragment size in bytes, for the receiver's prediction and `explain`. Where
        /// sizes differ, all of them are multiples of this.
        fragment: u32,
        /// The frame before this one had not left when this one was ready: a sample of g + xG.
        backlogged: bool,
        /// Time of the serving stage for the fragment, in microseconds.
        service_us: u32,
        /// The end of the read, so that a small read needs one frame.
        last: Option<LastPart>,
    },
    /// The end of a read, write or sync.
    End {
        /// The requester's number from the request.
        transfer: u64,
        /// `Ok`, or why the request ended early.
        status: Status,
        /// Contiguous bytes done from the request's start.
        bytes: u64,
        /// Time from the request, or the last piece of a write, to its end at the responder, in
        /// microseconds.
        service_us: u32,
        /// The plan's fragment size in bytes.
        fragment: u32,
        /// The latency that the responder's plan predicted, in microseconds.
        predicted_us: u32,
    },
    /// Announces a range that follows as [`Message::WriteData`]. Payload: the fragment sizes to
    /// write it in ([`piped_core::sizes::Sizes::encode`]); none if they are the frames' sizes. With
    /// `pieces`, the payload is a table as in [`Message::Read`].
    Write {
        /// The requester's number for the request.
        transfer: u64,
        /// The handle from [`Message::Opened`].
        handle: u32,
        /// Offset in the file or region, in bytes.
        offset: u64,
        /// Length of the whole request in bytes.
        length: u64,
        /// The client that the request is for.
        asker: Asker,
        /// End only when the bytes are on stable storage.
        durable: bool,
        /// The request is for pieces of a region instead of a range.
        pieces: bool,
        /// The longest payload of a [`Message::WriteData`], in bytes.
        fragment: u32,
        /// Time until the deadline in microseconds.
        time_left_us: u32,
    },
    /// A piece of a write. Payload: the bytes, at least one.
    WriteData {
        /// The requester's number from the [`Message::Write`].
        transfer: u64,
        /// Where the payload belongs, in bytes from the request's start.
        offset: u64,
        /// The frame before this one had not left when this one was ready.
        backlogged: bool,
    },
    /// Make all writes of a handle that have ended durable.
    Sync {
        /// The requester's number for the request.
        transfer: u64,
        /// The handle from [`Message::Opened`].
        handle: u32,
        /// Time until the deadline in microseconds.
        time_left_us: u32,
    },
    /// Make a call of a file or directory. Payload: the call ([`piped_core::call::Call::encode`]).
    /// The answer comes in one [`Message::Data`], or as [`Message::End`] if it is empty.
    Call {
        /// The requester's number for the request.
        transfer: u64,
        /// The handle from [`Message::Opened`].
        handle: u32,
        /// The most bytes of the answer.
        answer_max: u32,
        /// The client that the request is for.
        asker: Asker,
        /// The number of a call that must not be carried out twice: how many such calls the
        /// requester has made by this handle before. A repeated one keeps its number. And how many
        /// before this one may still be repeated.
        once: Option<(u32, u8)>,
        /// Time until the deadline in microseconds.
        time_left_us: u32,
    },
    /// A message for a channel. Payload: the message, at least one byte (eager); or nothing, which
    /// announces it (rendezvous). Answered at once, by [`Message::End`], [`Message::Queued`] or
    /// [`Message::Ready`].
    Send {
        /// The requester's number for the request.
        transfer: u64,
        /// The handle from [`Message::Opened`].
        handle: u32,
        /// A number that receivers can select messages by.
        tag: u64,
        /// Length of the message in bytes; at least 1.
        length: u32,
        /// How many messages the requester has sent by this handle before. A repeated message keeps
        /// its number.
        sequence: u32,
        /// All messages with a smaller `sequence` are over for the requester.
        oldest: u32,
        /// Time until the deadline in microseconds.
        time_left_us: u32,
    },
    /// An answer to [`Message::Send`]: nobody has asked for the message yet. One [`Message::Ready`]
    /// follows.
    Queued {
        /// The requester's number from the [`Message::Send`].
        transfer: u64,
    },
    /// An answer to [`Message::Send`], at once or after [`Message::Queued`]: write the message to
    /// this handle.
    Ready {
        /// The requester's number from the [`Message::Send`].
        transfer: u64,
        /// `Ok`, or why the message will never be received.
        status: Status,
        /// A region as long as the message; 0 unless `status` is `Ok`.
        handle: u32,
    },
    /// Change a word of a region, or notify its exporter. The responder does it exactly once,
    /// however often the frame is sent, and answers with [`Message::Updated`].
    Update {
        /// The requester's number for the request.
        transfer: u64,
        /// The handle from [`Message::Opened`].
        handle: u32,
        /// The change of the region, or the notification.
        change: Change,
        /// How many updates the requester has sent by this handle before. A repeated update keeps
        /// its number.
        sequence: u32,
        /// How many updates before this one may still be repeated.
        behind: u8,
    },
    /// The answer to [`Message::Update`].
    Updated {
        /// The requester's number from the [`Message::Update`].
        transfer: u64,
        /// How the update ended. `WouldBlock` answers a [`Change::Notify`]. After [`After::Writes`]
        /// it means: not now. After [`After::Known`]: the notification was not done. After
        /// [`After::Nothing`]: nobody takes notifications there, and no more ids are kept.
        status: Status,
        /// The word before the change; 0 unless `status` is `Ok`.
        value: u64,
    },
    /// Give up on a request, which still ends with [`Message::End`] or a last [`Message::Data`].
    Cancel {
        /// The requester's number for the request to give up.
        transfer: u64,
    },
    /// Allows more bytes of writes under way.
    Credit {
        /// How many more bytes of writes may be under way.
        bytes: u64,
        /// How many bytes may be under way in all from now on; at least 1.
        window: u64,
    },
    /// What this side measured of a stage at sizes of about one length, for the other side's plans
    /// (a `Summary` in the model). One of several reports that belong together.
    Report {
        /// The stage that was measured.
        stage: ReportedStage,
        /// The handle whose device the stage is; 0 for a stage of the network.
        handle: u32,
        /// True: times between departures of a busy stage. False: times through an empty one.
        backlogged: bool,
        /// The last of the reports that belong together.
        last: bool,
        /// The most samples that the report may count as; 0: the stage no longer exists.
        weight: u8,
        /// The samples' mean size in bytes.
        size_bytes: u32,
        /// The standard deviation of the samples' sizes, in bytes.
        spread_bytes: u32,
        /// The samples' mean cost in picoseconds.
        cost_ps: u64,
        /// Growth of the cost with the size, in femtoseconds per byte.
        slope_fs: u64,
        /// The standard deviation of one sample's cost, in thousandths of the mean cost.
        deviation_pm: u32,
    },
    /// Duration of a read, from its request to its last byte in place. The side that plans learns
    /// from it which plans are good. Sent with the next request.
    Outcome {
        /// The handle from [`Message::Opened`].
        handle: u32,
        /// Length of the read in bytes.
        length: u64,
        /// The plan's number, from the read's [`LastPart`].
        plan: u32,
        /// Duration of the read in nanoseconds.
        latency_ns: u64,
        /// Other requests shared a stage with the read, here or at the peer.
        company: bool,
    },
    /// Asks whether the peer's daemon is alive.
    Ping {
        /// Any number; the answer repeats it.
        nonce: u64,
    },
    /// The answer to [`Message::Ping`], at once.
    Pong {
        /// The number that the ping had.
        nonce: u64,
    },
}

impl Message {
    /// Whether the payload is bytes that clients move. Others (names, sizes, tables) say what is
    /// done, and have a checksum whatever two nodes agreed on.
    #[must_use]
    pub const fn carries_data(&self) -> bool {
        matches!(self, Self::Data { .. } | Self::WriteData { .. } | Self::Send { .. })
    }

    /// The least and the most payload bytes of this kind.
    pub(super) fn payload_bounds(&self) -> (u32, u32) {
        match self {
            Self::Hello { .. } => (1, NODE_NAME_BYTES_MAX),
            Self::Open { name_length, .. } => (u32::from(*name_length), OPEN_BYTES_MAX),
            Self::Data { last, .. } => (u32::from(last.is_none()), PAYLOAD_BYTES_MAX),
            Self::WriteData { .. } => (1, PAYLOAD_BYTES_MAX),
            Self::Read { pieces: true, .. } | Self::Write { pieces: true, .. } => {
                (Row::WIRE_BYTES as u32, TABLE_BYTES_MAX)
            }
            Self::Write { .. } => (0, 2 * SIZES_MAX as u32),
            Self::Call { .. } => (HEAD_BYTES as u32, CALL_BYTES_MAX as u32),
            Self::Send { .. } => (0, EAGER_BYTES_MAX),
            _ => (0, 0),
        }
    }
}

/// What a [`Message::Update`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Change the 8 bytes at this offset of the region.
    Word {
        /// Where the word lies in the region, in bytes: a multiple of 8.
        offset: u64,
        /// The change of the word.
        update: Update,
    },
    /// Notify the region's exporter.
    Notify {
        /// The id to notify of, of the clients' choice.
        id: u32,
        /// What must be over before the notification.
        after: After,
    },
}

/// What a notification must come after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// Nothing; all that had to come before is over.
    Nothing,
    /// Earlier writes of this client on this connection. A write that has not landed, or that
    /// failed unknown to the requester, delays the notification.
    Writes {
        /// The requester's number for the client.
        client: u32,
        /// How many writes have failed on this connection, as far as the requester knows.
        failed: u32,
    },
    /// The notification must not be done: the answer only says whether an earlier frame did it.
    Known,
}

/// The end of a read, carried by its last [`Message::Data`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastPart {
    /// `Ok`, or why the read ended early.
    pub status: Status,
    /// Contiguous bytes done from the request's start.
    pub bytes: u64,
    /// The latency that the responder's plan predicted, in microseconds.
    pub predicted_us: u32,
    /// Half the width of the prediction interval, in percent of the prediction; 255 means that or
    /// more.
    pub margin_percent: u8,
    /// Other requests shared the device or the connection, so the duration says little about the
    /// prediction.
    pub company: bool,
    /// The plan's number, which [`Message::Outcome`] repeats; 0 if the plan has none.
    pub plan: u32,
}

/// Which of a peer's clients a request is for, and its share. All clients of all nodes share what
/// they use in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// How urgent the request is.
    pub class: Class,
    /// The requester's number for the client: any number that all requests of the client share.
    pub client: u32,
    /// The client's weight beside other clients of the class; at least 1.
    pub weight: u8,
}

impl Asker {
    /// The only client of its node, with weight 1.
    #[must_use]
    pub const fn alone(class: Class) -> Self {
        Self { class, client: 0, weight: 1 }
    }
}
