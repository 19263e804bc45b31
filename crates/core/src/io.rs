//! The door to the kernel, as the engine sees it: operations out, completions in, memory by name.
//!
//! Two drivers stand behind [`Io`]: io_uring in the daemon and the simulated kernel. A driver owns
//! every file, socket and byte of memory; the engine holds ids. An operation owns its spans and its
//! socket or file from [`Io::push`] until its one [`Done`], also after [`Io::cancel`], also when
//! its owner is gone: the kernel may still be writing.

use crate::ids::{FileId, SegmentId, SocketId};
use crate::request::Update;
use crate::units::Nanos;

/// A piece of registered memory: `length` bytes at `offset` of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The segment.
    pub segment: SegmentId,
    /// Bytes from the segment's start.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

impl Span {
    /// The part of this span that starts `skip` bytes in and is at most `length` bytes long.
    #[must_use]
    pub fn part(self, skip: u32, length: u32) -> Self {
        let skip = skip.min(self.length);
        Self {
            offset: self.offset + u64::from(skip),
            length: length.min(self.length - skip),
            ..self
        }
    }
}

/// The most spans one [`Op::Send`] or [`Op::Receive`] carries.
pub const SPANS_PER_OP_MAX: usize = 16;

/// A short list of spans without a heap allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Spans {
    items: [Span; SPANS_PER_OP_MAX],
    count: u8,
}

impl Spans {
    const NONE: Span = Span { segment: SegmentId(u32::MAX), offset: 0, length: 0 };

    /// No span.
    #[must_use]
    pub const fn new() -> Self {
        Self { items: [Self::NONE; SPANS_PER_OP_MAX], count: 0 }
    }

    /// Append a span; `false` if the list is full. Empty spans are left out.
    pub fn push(&mut self, span: Span) -> bool {
        if span.length == 0 {
            return true;
        }
        let Some(place) = self.items.get_mut(usize::from(self.count)) else { return false };
        *place = span;
        self.count += 1;
        true
    }

    /// The spans in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Span] {
        &self.items[..usize::from(self.count)]
    }

    /// The sum of their lengths in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.as_slice().iter().map(|span| u64::from(span.length)).sum()
    }
}

impl core::fmt::Debug for Spans {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl Default for Spans {
    fn default() -> Self {
        Self::new()
    }
}

impl FromIterator<Span> for Spans {
    /// Collects at most [`SPANS_PER_OP_MAX`] spans; the rest is left out.
    fn from_iter<T: IntoIterator<Item = Span>>(iter: T) -> Self {
        let mut spans = Self::new();
        for span in iter {
            if !spans.push(span) {
                break;
            }
        }
        spans
    }
}

/// What the engine asks a driver to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Read from a file into memory; `Done::result` is the byte count, 0 at the end of the file.
    Read {
        /// Where from.
        file: FileId,
        /// File offset in bytes.
        offset: u64,
        /// Where to.
        into: Span,
    },
    /// Write memory to a file.
    Write {
        /// Where to.
        file: FileId,
        /// File offset in bytes.
        offset: u64,
        /// Where from.
        from: Span,
    },
    /// Flush a file's data (and what is needed to read it back) to stable storage.
    Sync {
        /// The file.
        file: FileId,
    },
    /// Make sure that the range has blocks and that the file is at least that long (fallocate).
    Allocate {
        /// The file.
        file: FileId,
        /// File offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Send the spans in order as one run of stream bytes. The result may be short.
    Send {
        /// The socket.
        socket: SocketId,
        /// What to send.
        spans: Spans,
    },
    /// Receive stream bytes into the spans in order; result 0 means the other side closed.
    Receive {
        /// The socket.
        socket: SocketId,
        /// Where to.
        spans: Spans,
        /// Wait until the spans are full (the result may still be short when the stream ends).
        whole: bool,
    },
    /// The same without a copy into the socket, where the kernel can: it reads the spans when it
    /// transmits and transmits again. The [`Done`] says how many bytes are queued; the spans stay
    /// lent until the one of `notice`, which always comes after it, also if nothing was queued.
    /// Only a driver that [`Io::sends_without_copy`] takes it.
    SendZeroCopy {
        /// The socket.
        socket: SocketId,
        /// What to send.
        spans: Spans,
        /// The name of its second end. The result is [`NOTICE_IN_PLACE`] or [`NOTICE_COPIED`].
        notice: Token,
    },
    /// Do nothing, and say so: a way through the driver and back.
    Nop,
}

/// The kernel sent out of the memory that it was lent (or did not come to send at all).
pub const NOTICE_IN_PLACE: i32 = 0;

/// The kernel copied after all, as it does for whoever is on the same machine.
pub const NOTICE_COPIED: i32 = 1;

/// What the kernel knows of a socket's way to the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireState {
    /// From a byte's way out to its acknowledgement, of late.
    pub round_trip: Nanos,
    /// The shortest of late.
    pub round_trip_min: Nanos,
    /// Bytes that the other side has acknowledged, ever.
    pub acknowledged: u64,
    /// Bytes that the socket has and could not send yet.
    pub unsent: u32,
}

/// The engine's name for an operation in flight. The driver hands it back untouched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// The end of an operation. Exactly one for every accepted [`Io::push`], but for
/// [`Op::SendZeroCopy`], which has two names and an end for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// The operation.
    pub token: Token,
    /// Bytes done, or a negative errno (`-125` is ECANCELED).
    pub result: i32,
}

/// Something the engine no longer needs; the driver frees it once no operation uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Close the file.
    File(FileId),
    /// Shut the socket down at once (its operations end with an error), then close it.
    Socket(SocketId),
    /// Unregister and unmap the segment. The engine sends this only when no operation uses it.
    Segment(SegmentId),
}

/// A driver: the kernel, or a simulated one.
///
/// Memory access goes through the driver too, because only it may touch memory that a client can
/// rewrite at any moment: bytes are copied to a private place before they are looked at.
pub trait Io {
    /// The time, from an origin of the driver's choice. Never goes back.
    fn now(&mut self) -> Nanos;

    /// Hand an operation over. `false`: the driver is full, nothing was taken, try after the next
    /// completions. There may be none for long, if all that is in flight are receives.
    #[must_use]
    fn push(&mut self, token: Token, op: Op) -> bool;

    /// Ask for an early end of an operation. It still ends with its one [`Done`], perhaps as if
    /// nothing had been asked.
    fn cancel(&mut self, token: Token);

    /// Give a resource back.
    fn release(&mut self, resource: Resource);

    /// Copy memory to memory; both spans have the same length and do not overlap.
    fn copy(&mut self, from: Span, to: Span);

    /// Copy out of shared memory. `to.len()` equals `from.length`.
    fn load(&mut self, from: Span, to: &mut [u8]);

    /// Copy into shared memory. `from.len()` equals `to.length`.
    fn store(&mut self, from: &[u8], to: Span);

    /// Change a word of shared memory (8 bytes at a multiple of 8) at once with everybody else.
    /// What it was.
    fn update(&mut self, at: Span, update: Update) -> u64;

    /// Spend so much of the thread's time on nothing: the host overhead of a dial.
    fn spend(&mut self, time: Nanos);

    /// Whether it takes [`Op::SendZeroCopy`].
    fn sends_without_copy(&self) -> bool {
        false
    }

    /// Give the kernel now what was pushed, instead of at the end of the turn, so that the time of
    /// this call is what it takes. `false`: nothing that was pushed has ended meanwhile, so it says
    /// little.
    fn hand_over(&mut self) -> bool {
        false
    }

    /// What the kernel knows of a socket's wire; nothing where there is none.
    fn wire_state(&mut self, _socket: SocketId) -> Option<WireState> {
        None
    }

    /// From now on a socket hands the wire at most so many bytes per second; as it likes without.
    fn pace(&mut self, _socket: SocketId, _bytes_per_second: Option<u64>) {}

    /// CRC32C of a span, computed over private copies of its bytes.
    fn crc32c(&mut self, span: Span) -> u32;
}
