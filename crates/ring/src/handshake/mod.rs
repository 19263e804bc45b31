//! The talk over the unix socket: which program is there, what memory there is, what is opened.
//!
//! One message is one SOCK_SEQPACKET record of at most [`MESSAGE_BYTES_MAX`] bytes: a header, a
//! body of fixed size, then the strings the body announces, and not a byte more. Both sides use the
//! one parser here; the daemon's counterpart is hostile. File descriptors ride along ([`fds`]); how
//! many a message must have is part of it ([`Request::fd_count`], [`Reply::fd_count`]).
//!
//! Slow things only: data requests go over the rings. Fixed structs instead of a self-describing
//! format, because each message then has exactly one encoding and its parser fits a page.

mod codec;
pub mod fds;
mod fields;
mod kind;

use std::os::fd::AsFd;

use piped_core::access::{Access, Creation};
use piped_core::limits::REPLICAS_MAX;
use piped_core::status::Status;

use crate::layout::VERSION;
use crate::tenure::LentKind;

/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 4096;

/// The longest name of a peer, an export or a region, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// The longest list of nodes that have a file, in bytes.
pub const NODES_BYTES_MAX: usize = REPLICAS_MAX * (NAME_BYTES_MAX + 1);

/// The longest path below an export, in bytes.
pub const PATH_BYTES_MAX: usize = 1024;

/// The longest text of a refusal, in bytes.
pub const TEXT_BYTES_MAX: usize = 512;

/// The most segments a Welcome brings; more come with GrowArena.
pub const WELCOME_SEGMENTS_MAX: u32 = 16;

/// The most queues a Welcome brings; more come with AddQueue.
pub const WELCOME_QUEUES_MAX: u32 = 16;

/// File descriptors of a queue: memory, bell to the daemon, bell to the client.
pub const FDS_PER_QUEUE: usize = 3;

/// The feature of both sides: [`Request::PathCosts`] is understood, and answered.
pub const FEATURE_PATH_COSTS: u64 = 1 << 0;
/// The feature of both sides: a client may sleep on the flag of a queue, and not only until its
/// bell rings ([`crate::ClientQueue::nap_on_flag`]).
pub const FEATURE_NAPS: u64 = 1 << 2;

/// The feature of both sides: [`Request::Lend`] and [`Request::TakeBack`] are understood.
pub const FEATURE_LENDING: u64 = 1 << 3;

/// The feature of both sides: all shards of the daemon serve the client's queues, by turns. Without
/// it one shard serves them all.
pub const FEATURE_SPREAD: u64 = 1 << 4;

/// The users and nodes that may open a region; without a list all that the daemon admits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Audience {
    /// Users of this node, by their numbers; [`AUDIENCE_MAX`] at most.
    pub users: Option<Vec<u32>>,
    /// Other nodes, by their names; as many.
    pub peers: Option<Vec<String>>,
}

/// The longest list of an [`Audience`].
pub const AUDIENCE_MAX: usize = 16;

/// The requests of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The first message of a session; answered by [`Reply::Welcome`].
    Hello(Hello),
    /// One more queue of the session's size; answered by [`Reply::Queue`].
    AddQueue,
    /// One more segment; answered by [`Reply::Segment`].
    GrowArena {
        /// Length of the segment in bytes.
        bytes: u64,
    },
    /// Memory of the client's own as one more segment. Passes its file. Only where both sides have
    /// [`FEATURE_LENDING`]. Answered by [`Reply::Lent`].
    Lend {
        /// Length of the memory in bytes.
        bytes: u64,
        /// How it is kept from shrinking.
        kind: LentKind,
    },
    /// The client lends a segment no longer. Answered by [`Reply::Done`] when requests that name it
    /// are refused; it is unmapped when the last one has ended.
    TakeBack {
        /// Number of the segment.
        segment: u32,
    },
    /// A local file the client opened. Passes the buffered descriptor, and before it the O_DIRECT
    /// one if there is one. Answered by [`Reply::Opened`].
    OpenFile {
        /// Access that the session asks for; the descriptors must allow it too.
        access: Access,
        /// Whether the first of two descriptors is an O_DIRECT one.
        direct: bool,
    },
    /// A file below an export. Answered by [`Reply::Opened`].
    OpenExport {
        /// The node that offers it; empty: this one. With commas, or `*` for all that are known to
        /// have the export: the nodes that have replicas of the file, which is read from all.
        peer: String,
        /// Name of the export.
        export: String,
        /// The path below it, in whatever bytes but control characters: names of files need not be
        /// text.
        path: Vec<u8>,
        /// Access that the session asks for.
        access: Access,
        /// Whether the file is made.
        create: Creation,
    },
    /// A directory below an export, for calls. Answered by [`Reply::Opened`].
    OpenDirectory {
        /// The node that offers it; empty: this one.
        peer: String,
        /// Name of the export.
        export: String,
        /// The path below it; empty: the export itself.
        path: Vec<u8>,
        /// Access that the session asks for.
        access: Access,
    },
    /// Offer a piece of the arena to others by name. Answered by [`Reply::Opened`].
    ExportRegion {
        /// Name of the new region.
        name: String,
        /// Segment of the region's memory.
        segment: u32,
        /// Bytes from the segment's start.
        offset: u64,
        /// Length of the region in bytes.
        length: u64,
        /// Access that others have to it.
        access: Access,
        /// The others that have this access.
        audience: Audience,
    },
    /// A region somebody offers. Answered by [`Reply::Opened`].
    OpenRegion {
        /// The node that offers it; empty: this one.
        peer: String,
        /// Name of the region there.
        name: String,
        /// Access that the session asks for.
        access: Access,
    },
    /// Receive messages under a name. Answered by [`Reply::Opened`].
    OfferChannel {
        /// Name of the new channel.
        name: String,
    },
    /// A channel to send to. Answered by [`Reply::Opened`].
    OpenChannel {
        /// The node of the receiver; empty: this one.
        peer: String,
        /// Name of the channel there.
        name: String,
    },
    /// Ask for the cost of moving bytes between memory of this node and a handle at present. Only
    /// where both sides have [`FEATURE_PATH_COSTS`]. Answered by [`Reply::PathCosts`].
    PathCosts {
        /// Number of the handle.
        handle: u32,
        /// Whether bytes go to the handle; otherwise they come from it.
        write: bool,
    },
    /// Give a handle back. Answered by [`Reply::Done`].
    CloseHandle {
        /// Number of the handle.
        handle: u32,
    },
}

/// Wishes of a client for its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Optional features the client can use, one bit each: `FEATURE_*`.
    pub features: u64,
    /// Bytes of the first segment.
    pub arena_bytes: u64,
    /// Entries of each queue: a power of two.
    pub entries: u32,
    /// How many queues it wants.
    pub queues: u32,
    /// Share among clients of a class, 1 to 255; 0 takes the default, which is 1.
    pub weight: u32,
    /// The class of requests that name none: a `CLASS_*`.
    pub class: u8,
}

/// The answers of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The session is made. Passes the segments, then three descriptors a queue.
    Welcome(Welcome),
    /// A queue. Passes its three descriptors.
    Queue {
        /// Number of the queue in the session.
        queue: u32,
    },
    /// A segment. Passes its memory.
    Segment {
        /// Number of the segment in the arena.
        segment: u32,
    },
    /// The lent memory can be used.
    Lent {
        /// Number of the segment among those of the arena.
        segment: u32,
    },
    /// A handle was opened.
    Opened {
        /// Number of the handle.
        handle: u32,
        /// Alignment for which transfers go past the page cache, bytes; 0: none do.
        direct_alignment: u32,
        /// Length of the opened object now, in bytes.
        length: u64,
    },
    /// The request was done.
    Done,
    /// Costs of a handle's path.
    PathCosts(PathCosts),
    /// Not done, and why.
    Refused {
        /// The kind of reason.
        status: Status,
        /// Cause and fix, for a human; at most [`TEXT_BYTES_MAX`] bytes are sent.
        message: String,
    },
}

/// Costs of a path, as far as the daemon has measured them: requests of `x` bytes that follow each
/// other are `overhead + x · G` apart, and a request that is alone takes `latency` longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathCosts {
    /// `g`: of a request, whatever its length, in nanoseconds.
    pub overhead_ns: u64,
    /// `L`: what a request takes besides, in nanoseconds.
    pub latency_ns: u64,
    /// `G`: of a mebibyte, in nanoseconds: a whole number that is exact enough also for memory.
    pub mebibyte_ns: u64,
    /// How well that is known: of [`Self::CERTAIN_PPM`]. 0: not at all, and the others mean
    /// nothing.
    pub confidence_ppm: u32,
}

impl PathCosts {
    /// The value of full confidence.
    pub const CERTAIN_PPM: u32 = 1_000_000;

    /// Costs of a path of which nothing is known.
    pub const UNKNOWN: Self =
        Self { overhead_ns: 0, latency_ns: 0, mebibyte_ns: 0, confidence_ppm: 0 };
}

/// Everything that a session got from its daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// The features both sides have.
    pub features: u64,
    /// The session's number, as metrics and `pipectl clients` show it.
    pub session: u32,
    /// Segments passed; at most [`WELCOME_SEGMENTS_MAX`].
    pub segments: u32,
    /// Queues passed; at most [`WELCOME_QUEUES_MAX`].
    pub queues: u32,
    /// The CPU of the session's shard, where a sleeping client is woken fastest; -1: any.
    pub shard_cpu: i32,
    /// How long the client should look for completions before it sleeps, nanoseconds.
    pub client_spin_ns: u64,
    /// The deadline of requests that name none, nanoseconds.
    pub deadline_default_ns: u64,
}

/// The other side does not keep to the protocol. The daemon ends such a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeFault {
    /// Not the length that its kind and strings make.
    #[error("a message of {actual} bytes where its kind and strings make {expected}")]
    Length {
        /// Bytes there should be.
        expected: usize,
        /// Bytes that there are.
        actual: usize,
    },
    /// The first message is not of this protocol.
    #[error("the first message does not start like piped's; is this the right socket?")]
    Magic,
    /// The other side has another version.
    #[error("the other side speaks version {0}, this one {VERSION}; update the older one")]
    Version(u32),
    /// An unknown kind of message.
    #[error("a message of unknown kind {0}; update the side that received it")]
    Kind(u16),
    /// A field has a value it cannot have.
    #[error("the field `{0}` has an impossible value")]
    Field(&'static str),
    /// A string is too long, not UTF-8, or has control characters.
    #[error(
        "the field `{field}` must be UTF-8 (but for paths) without control characters, at most \
             {max} bytes"
    )]
    Text {
        /// Name of the field.
        field: &'static str,
        /// Limit of the field in bytes.
        max: usize,
    },
    /// The wrong number of file descriptors.
    #[error("{actual} file descriptors came with a message that takes {expected}")]
    FdCount {
        /// How many there should be.
        expected: usize,
        /// How many there are.
        actual: usize,
    },
    /// The caller's buffer is too small for the message; take [`MESSAGE_BYTES_MAX`].
    #[error("a buffer of {0} bytes is too small for the message; take {MESSAGE_BYTES_MAX}")]
    Buffer(usize),
}

impl Request {
    /// Read a message: the client's sequence number, to be echoed, and the request.
    ///
    /// # Errors
    /// See [`HandshakeFault`].
    pub fn parse(message: &[u8]) -> Result<(u32, Self), HandshakeFault> {
        codec::parse_request(message)
    }

    /// Write the message, and return its length in bytes.
    ///
    /// # Errors
    /// A string is too long or malformed, or the buffer is too small.
    pub fn encode(&self, sequence: u32, into: &mut [u8]) -> Result<usize, HandshakeFault> {
        codec::encode_request(self, sequence, into)
    }

    /// How many file descriptors come with it.
    #[must_use]
    pub fn fd_count(&self) -> usize {
        match self {
            Self::OpenFile { direct, .. } => 1 + usize::from(*direct),
            Self::Lend { .. } => 1,
            _ => 0,
        }
    }

    /// Check what came along.
    ///
    /// # Errors
    /// [`HandshakeFault::FdCount`].
    pub fn check_fds(&self, fds: &[impl AsFd]) -> Result<(), HandshakeFault> {
        check_fds(self.fd_count(), fds)
    }
}

impl Reply {
    /// Read a message: the sequence number of the request it answers, and the reply.
    ///
    /// # Errors
    /// See [`HandshakeFault`].
    pub fn parse(message: &[u8]) -> Result<(u32, Self), HandshakeFault> {
        codec::parse_reply(message)
    }

    /// Write the message, and return its length in bytes. The text of a refusal is cut to what
    /// fits.
    ///
    /// # Errors
    /// A count is out of bounds, or the buffer is too small.
    pub fn encode(&self, sequence: u32, into: &mut [u8]) -> Result<usize, HandshakeFault> {
        codec::encode_reply(self, sequence, into)
    }

    /// How many file descriptors come with it.
    #[must_use]
    pub fn fd_count(&self) -> usize {
        match self {
            Self::Welcome(welcome) => {
                welcome.segments as usize + FDS_PER_QUEUE * welcome.queues as usize
            }
            Self::Queue { .. } => FDS_PER_QUEUE,
            Self::Segment { .. } => 1,
            Self::Lent { .. }
            | Self::Opened { .. }
            | Self::Done
            | Self::PathCosts(_)
            | Self::Refused { .. } => 0,
        }
    }

    /// Check what came along.
    ///
    /// # Errors
    /// [`HandshakeFault::FdCount`].
    pub fn check_fds(&self, fds: &[impl AsFd]) -> Result<(), HandshakeFault> {
        check_fds(self.fd_count(), fds)
    }
}

/// The sequence number of a message, if it is long enough to have one: for refusing a message that
/// does not parse.
#[must_use]
pub fn sequence(message: &[u8]) -> Option<u32> {
    codec::sequence(message)
}

fn check_fds(expected: usize, fds: &[impl AsFd]) -> Result<(), HandshakeFault> {
    let actual = fds.len();
    if expected == actual { Ok(()) } else { Err(HandshakeFault::FdCount { expected, actual }) }
}

// A Welcome with everything it may bring fits one control message.
const _: () = assert!(
    WELCOME_SEGMENTS_MAX as usize + FDS_PER_QUEUE * WELCOME_QUEUES_MAX as usize
        <= fds::FDS_PER_MESSAGE_MAX
);
