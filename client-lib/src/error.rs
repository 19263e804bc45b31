//! Errors, one enum for each thing the application asks for. Each text names the cause and, if
//! there is one, the fix. `Debug` says that text, too: a program prints it when its `main` ends
//! with the error.

mod os;

use std::path::PathBuf;
use std::{fmt, io};

use piped_core::status::Status;
use piped_ring::handshake::HandshakeFault;
use piped_ring::{AreaFault, AttachFault, OutOfRange, SegmentFault};

use crate::buffer::Buffer;
use crate::socket::SocketOrigin;
use crate::told::debug_is_told;

pub use os::{errno_of, kind_of};

debug_is_told! {
    LendError,
    PartError,
    SessionError, ConnectError, ReconnectError, QueueError, AllocateError, OpenError, ExportError,
    SubmitFault, PiecesFault, PiecesError, BuffersFault, BuffersError, Cause, RequestError,
    OutOfBuffer,
}

/// A question over the control socket was not answered with what was asked for.
///
/// ```
/// use piped_client::{SessionError, Status};
/// let message = "`data` is not an export of this node; see [exports] in piped.toml".to_owned();
/// let error = SessionError::Refused { status: Status::NotFound, message: message.clone() };
/// assert_eq!(error.to_string(), message);
/// ```
#[derive(thiserror::Error)]
pub enum SessionError {
    /// The daemon said no; the text is its reason.
    #[error("{message}")]
    Refused {
        /// The kind of reason.
        status: Status,
        /// The cause and the fix, in the daemon's words.
        message: String,
    },
    /// The daemon ended, or ended this session.
    #[error("the daemon closed the session; connect again, its log says why")]
    Disconnected,
    /// No answer in the time the builder allowed.
    #[error(
        "no answer in time: is the daemon overloaded or stopped, or a peer that it asks for this \
             not reachable (see `pipectl peers`)?"
    )]
    TimedOut,
    /// A name or path cannot be sent; nothing was asked.
    #[error(transparent)]
    Unsendable(HandshakeFault),
    /// A message of the daemon is not of the protocol; the session is over.
    #[error("the daemon's answer cannot be read: {0}")]
    Protocol(HandshakeFault),
    /// The answer belongs to another question.
    #[error("the daemon answered something else than was asked; update the older of the two")]
    Unexpected,
    /// The kernel refused a call.
    #[error("talking to the daemon failed: {0}")]
    System(#[from] io::Error),
}

impl SessionError {
    /// The error number of Linux that says the same, if there is one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        os::of_session(self)
    }
}

/// Why there is no connection.
#[derive(thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens there, or this user may not connect.
    #[error("cannot connect to piped at {path}{origin}: {source}; is the daemon running, and is \
             this user in `[access]` of its configuration?", path = path.display())]
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// Where the path is from.
        origin: SocketOrigin,
        /// The error that the kernel gave.
        source: io::Error,
    },
    /// The daemon did not make a session.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The arena cannot be mapped.
    #[error(transparent)]
    Memory(#[from] SegmentFault),
    /// A queue cannot be used.
    #[error(transparent)]
    Queue(#[from] AttachFault),
}

/// Why there is no connection again.
#[derive(thiserror::Error)]
pub enum ReconnectError {
    /// The client keeps nothing of what it would need.
    #[error("this client does not reconnect; build it with `ClientBuilder::reconnect`")]
    NotAsked,
    /// No daemon was there in the time it may take.
    #[error("no daemon was found within {within:?}{}; is it being restarted?", last.as_ref()
        .map(|last| format!(" (at last: {last})")).unwrap_or_default())]
    Away {
        /// The time that the builder allowed.
        within: std::time::Duration,
        /// The error of the last attempt; `None`: another thread made it.
        #[source]
        last: Option<ConnectError>,
    },
    /// A daemon is there and will not have this client.
    #[error(transparent)]
    Connect(ConnectError),
}

/// Why there is no further queue.
#[derive(thiserror::Error)]
pub enum QueueError {
    /// The daemon did not make one.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The new queue cannot be used.
    #[error(transparent)]
    Attach(#[from] AttachFault),
}

/// Why there is no buffer.
#[derive(thiserror::Error)]
pub enum AllocateError {
    /// A buffer of zero bytes, or of more than a segment can have.
    #[error("a buffer of {0} bytes; ask for at least 1 and at most 2^40")]
    Length(u64),
    /// The arena is full and the daemon did not let it grow.
    #[error("the arena is full and did not grow: {0}")]
    Session(#[from] SessionError),
    /// The new segment cannot be mapped.
    #[error(transparent)]
    Memory(#[from] SegmentFault),
}

/// Why something was not opened.
#[derive(thiserror::Error)]
pub enum OpenError {
    /// The file could not be opened here.
    #[error("cannot open {path}: {source}", path = path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error that the kernel gave.
        source: io::Error,
    },
    /// The directory is not there in which the file was looked for, or was to be made.
    #[error("cannot open {path}: its directory is not there", path = path.display())]
    NoDirectory {
        /// The path of the file.
        path: PathBuf,
    },
    /// An option that this kind of thing does not have.
    #[error("the option `{0}` is for local files only; leave it out")]
    Option(&'static str),
    /// Permissions that no file is made with.
    #[error("the mode {0:#o} has more than permission bits; at most 0o777")]
    Mode(u32),
    /// The daemon did not open it.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl OpenError {
    /// The error number of Linux that says the same, if there is one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        os::of_open(self)
    }
}

/// Why a region was not exported.
#[derive(thiserror::Error)]
#[error("the region was not exported: {cause}")]
pub struct ExportError {
    /// The reason why it failed.
    #[source]
    pub cause: SessionError,
    /// The memory, if the daemon certainly does not offer it to others.
    pub buffer: Option<Buffer>,
}

/// Why a request did not enter the queue.
///
/// ```
/// use piped_client::SubmitFault;
/// assert!(SubmitFault::Full.to_string().contains("take some"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SubmitFault {
    /// The queue is full: as many requests as it is deep are under way, or finished and not yet
    /// taken.
    #[error("the queue is full; take some finished requests first, or ask for more depth")]
    Full,
    /// The daemon is gone.
    #[error("the daemon closed the session; connect again, its log says why")]
    Disconnected,
    /// The handle or the buffer belongs to another connection.
    #[error("the handle or buffer belongs to another client; open and allocate on this one")]
    Foreign,
    /// A handle was open at the daemon before, and could not be opened again at this one.
    #[error(
        "the handle could not be opened again when the client reconnected; its file or region \
             is gone or denied: open it anew to hear why"
    )]
    HandleLost,
    /// The buffer is of the connection before, and the new arena has no room for it.
    #[error(
        "the buffer cannot move to the arena of the new connection: drop some buffers or raise \
             `client.arena_bytes_max` of the daemon, or, if it is pinned, drop the pin"
    )]
    NoRoom,
    /// The buffer is of memory that was lent to the daemon before, and could not be lent to this
    /// one.
    #[error(
        "the memory of the buffer could not be lent again when the client reconnected; lend it \
             anew to hear why"
    )]
    NotLent,
    /// The piece does not lie inside the buffer, or the pieces do not.
    #[error("a piece of the buffer is empty or ends behind its end")]
    Piece,
    /// The table of pieces is another client's, or of the daemon before.
    #[error("the table of pieces lies in the memory of another session; make it anew")]
    TableLost,
    /// The buffer has no room for the call, or a path of the call is too long.
    #[error(
        "a path of the call is longer than 1024 bytes, or the buffer is too short for the call"
    )]
    Call,
}

impl SubmitFault {
    /// Why a buffer of an earlier connection is of no use at this one.
    pub(crate) fn without(buffer: &Buffer) -> Self {
        if buffer.is_lent() { Self::NotLent } else { Self::NoRoom }
    }
}

/// Why memory was not lent.
#[derive(thiserror::Error)]
pub enum LendError {
    /// The daemon is older than this library.
    #[error("the daemon takes no memory of programs; update it")]
    Unsupported,
    /// The daemon did not take it.
    #[error("the daemon did not take the memory: {0}")]
    Session(#[from] SessionError),
    /// The descriptor is not of memory that can be lent.
    #[error(transparent)]
    Memory(#[from] SegmentFault),
    /// The area of private memory cannot be lent.
    #[error(transparent)]
    Area(#[from] AreaFault),
    /// The process was forked from the one that connected.
    #[error("this process was forked from the one that connected; connect here as well")]
    Forked,
}

/// Why a part of lent memory is no buffer.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// Nothing, or not inside the memory.
    #[error(transparent)]
    Outside(#[from] OutOfBuffer),
    /// Some of it is in another buffer, or was lost with its daemon.
    #[error("some of the {length} bytes at {offset} are in another buffer; drop that first")]
    Taken {
        /// Where the part starts, in bytes.
        offset: u64,
        /// Length of the part in bytes.
        length: u64,
    },
}

/// Why pieces are no table.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PiecesFault {
    /// None, or too many.
    #[error("a table has 1 to 65536 rows, and this one {0}; `Piece::repeat` says many in one")]
    Rows(usize),
    /// A row of nothing, or beyond what can be said.
    #[error("row {0} moves nothing, or ends beyond 2^64 in the file or beyond 2^32 in the buffer")]
    Row(usize),
    /// More than one request moves.
    #[error("the pieces have {0} bytes together; one request moves 1 GiB at most")]
    Bytes(u64),
}

/// Why there is no table of pieces.
#[derive(thiserror::Error)]
pub enum PiecesError {
    /// The pieces make no table.
    #[error(transparent)]
    Fault(#[from] PiecesFault),
    /// The arena has no room for the table.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
}

/// Why buffers are no payload of one request.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BuffersFault {
    /// None, or too many.
    #[error("one request takes 1 to 1024 buffers, and these are {0}")]
    Count(usize),
    /// More than their list has room for.
    #[error("the list was made for fewer than these {0} buffers")]
    Room(usize),
    /// More than one request moves.
    #[error("the buffers have {0} bytes together; one request moves 1 GiB at most")]
    Bytes(u64),
}

/// Why several buffers did not become one payload.
#[derive(thiserror::Error)]
pub enum BuffersError {
    /// The buffers are no payload.
    #[error(transparent)]
    Fault(#[from] BuffersFault),
    /// The arena has no room for the list of them.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
}

/// A request that did not enter the queue, with its buffer.
#[derive(thiserror::Error)]
#[error("{fault}")]
pub struct SubmitError<B> {
    /// The reason of the refusal.
    pub fault: SubmitFault,
    /// The payload of the request, given back.
    pub buffer: B,
}

impl<B> fmt::Debug for SubmitError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a request ended without having done everything.
///
/// ```
/// use piped_client::{Cause, Status};
/// assert_eq!(
///     Cause::Status(Status::NoSpace).to_string(),
///     "no space left on the device; free some, what is written so far stays"
/// );
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Cause {
    /// The daemon said so.
    #[error("{0}{fix}", fix = fix(*.0))]
    Status(Status),
    /// The daemon said so with a number this version does not know.
    #[error("the daemon reports status {0}, which this library does not know; update the library")]
    Unknown(u16),
    /// The daemon ended, or ended this session, before it answered.
    #[error("the daemon closed the session before the request was over; connect again")]
    Disconnected,
    /// The daemon broke the rules of the queue, which cannot be used any more.
    #[error("the daemon's completions contradict what was submitted; connect again and report it")]
    Broken,
    /// The request never entered the queue.
    #[error(transparent)]
    NotSubmitted(#[from] SubmitFault),
    /// The request was waited for on a queue it was not submitted to.
    #[error("the request was submitted to another queue; wait for it there")]
    OtherQueue,
    /// The runtime of the task's queue does not watch it (any more): nobody would wake the task.
    #[error("no runtime waits for the queue; make the queue inside the runtime that uses it")]
    NoRuntime,
}

impl Cause {
    /// The error number of Linux that says the same, if there is one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Status(status) => status.errno(),
            _ => None,
        }
    }
}

fn fix(status: Status) -> &'static str {
    match status {
        Status::BadHandle => "; was the handle closed?",
        Status::Denied => "; open it with that access, or see the export's permissions",
        Status::DeadlineExceeded => "; allow more time, or see `pipectl explain last`",
        Status::Io => "; the daemon's log names the device",
        Status::NoSpace => "; free some, what is written so far stays",
        Status::NotPermitted => "; check its owner and permissions there",
        Status::PeerLost => "; see `pipectl status` for its lanes",
        Status::OutcomeUnknown => "; look before doing it again",
        Status::Corrupt => "; do not change a buffer that is being sent, or suspect the network",
        Status::Closed => "; connect again",
        Status::TooLong => "; receive it into a longer one",
        _ => "",
    }
}

/// Where the buffer of a failed request is.
#[derive(Debug)]
pub enum BufferState {
    /// The request had none.
    None,
    /// The buffer, free again.
    Returned(Buffer),
    /// The kernel may still touch it: [`crate::Queue::poll_released`] gives it back, once.
    Held,
    /// Nobody will say when it is free: the daemon is gone. It is not used again.
    Lost,
}

/// A request that ended without having done everything.
///
/// ```
/// use piped_client::{BufferState, Cause, RequestError, Status};
/// let cause = Cause::Status(Status::DeadlineExceeded);
/// let error = RequestError { cause, bytes: 4096, buffer: BufferState::Held };
/// assert_eq!(error.status(), Some(Status::DeadlineExceeded));
/// assert!(error.to_string().starts_with("the deadline passed"));
/// assert_eq!(format!("{error:?}"), error.to_string(), "what `main` and `unwrap` print");
/// ```
#[derive(thiserror::Error)]
#[error("{cause} ({bytes} bytes were done)")]
pub struct RequestError {
    /// The reason why it failed.
    pub cause: Cause,
    /// Contiguous bytes done from the request's start.
    pub bytes: u64,
    /// What became of the request's buffer.
    pub buffer: BufferState,
}

impl RequestError {
    /// The daemon's status, if it gave one that this version knows.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self.cause {
            Cause::Status(status) => Some(status),
            _ => None,
        }
    }

    /// The buffer, if it is here.
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        match self.buffer {
            BufferState::Returned(buffer) => Some(buffer),
            _ => None,
        }
    }
}

/// An access beyond the end of a buffer or region, or to lent memory that somebody has cut.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at {offset} are not inside a buffer of {buffer_bytes} bytes{}", match
    buffer_bytes { 0 => ": somebody has cut the memory", _ => "" })]
pub struct OutOfBuffer {
    /// Where the access starts, bytes.
    pub offset: u64,
    /// Length of the access in bytes.
    pub length: u64,
    /// The buffer's length, bytes; 0 of lent memory that somebody has cut.
    pub buffer_bytes: u64,
}

impl From<OutOfRange> for OutOfBuffer {
    fn from(fault: OutOfRange) -> Self {
        let OutOfRange { offset, length, segment_bytes } = fault;
        Self { offset, length, buffer_bytes: segment_bytes }
    }
}
