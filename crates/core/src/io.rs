//! The door to the kernel, as the engine sees it: operations out, completions in, memory by name.
//!
//! Two drivers stand behind [`Io`]: io_uring in the daemon and the simulated kernel. A driver owns
//! every file, socket and byte of memory; the engine holds ids. An operation owns its spans and its
//! socket or file from [`Io::push`] until its one [`Done`]. That holds also after [`Io::cancel`]
//! and when the request is gone, because the kernel may still be writing.

use crate::ids::{FileId, SegmentId, SocketId};
use crate::request::Update;
use crate::units::Nanos;

/// A piece of registered memory: `length` bytes at `offset` of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The segment that the bytes lie in.
    pub segment: SegmentId,
    /// Bytes from the segment's start.
    pub offset: u64,
    /// Length of the piece in bytes; may be 0.
    pub length: u32,
}

impl Span {
    /// The part of this span that starts `skip` bytes in and is at most `length` bytes long. Both
    /// are cut to what the span has.
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

    /// An empty list of spans.
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

    /// The sum of the spans' lengths in bytes.
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
        /// The file that is read.
        file: FileId,
        /// File offset in bytes.
        offset: u64,
        /// The memory that the bytes go to; its length is the most that is read.
        into: Span,
    },
    /// Write memory to a file.
    Write {
        /// The file that is written.
        file: FileId,
        /// File offset in bytes.
        offset: u64,
        /// The memory whose bytes are written.
        from: Span,
    },
    /// Flush a file's data (and what is needed to read it back) to stable storage.
    Sync {
        /// The file whose data are flushed.
        file: FileId,
    },
    /// Make sure that the range has blocks and that the file is at least that long (fallocate).
    Allocate {
        /// The file that gets blocks.
        file: FileId,
        /// File offset in bytes.
        offset: u64,
        /// Bytes of the range, from `offset` on.
        length: u64,
    },
    /// Carry out a call of a file or directory ([`crate::call::Call`]); `Done::result` is the
    /// number of the answer's bytes. The driver copies the call before it parses it.
    Call {
        /// The file or directory that the call is made of.
        file: FileId,
        /// The memory of the call's bytes.
        call: Span,
        /// The memory that the answer goes to; its length is the most that the answer has.
        answer: Span,
    },
    /// Send the spans in order as one run of stream bytes. The result may be short.
    Send {
        /// The connected socket that sends.
        socket: SocketId,
        /// The bytes to send, at most [`SPANS_PER_OP_MAX`] pieces.
        spans: Spans,
    },
    /// Receive stream bytes into the spans in order; result 0 means the other side closed.
    Receive {
        /// The connected socket that receives.
        socket: SocketId,
        /// The memory that the bytes go to, filled in order.
        spans: Spans,
        /// Wait until the spans are full (the result may still be short when the stream ends).
        whole: bool,
    },
    /// Send as [`Op::Send`] does, but without a copy into the socket where the kernel can: it reads
    /// the spans at every transmission of their bytes. The [`Done`] of the operation says how many
    /// bytes are queued. The spans stay lent until the [`Done`] of `notice`, which always comes
    /// later, also if nothing was queued. Only a driver with [`Io::sends_without_copy`] accepts
    /// this operation.
    SendZeroCopy {
        /// The connected socket that sends.
        socket: SocketId,
        /// The bytes to send; nobody may change them before the notice.
        spans: Spans,
        /// Name of the second [`Done`], whose result is [`NOTICE_IN_PLACE`] or [`NOTICE_COPIED`].
        notice: Token,
    },
    /// Do nothing, and end: measures the way through the driver and back.
    Nop,
}

/// Result of a notice: the kernel sent from the lent memory, or sent nothing at all.
pub const NOTICE_IN_PLACE: i32 = 0;

/// Result of a notice: the kernel copied after all, as it does when both ends are on one machine.
pub const NOTICE_COPIED: i32 = 1;

/// What the page cache has of a range of a file, in pages that have a byte of the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cached {
    /// All pages of the range; 0 if nothing is known of it.
    pub pages: u64,
    /// Pages of the range that are in the cache.
    pub cached: u64,
}

impl Cached {
    /// Whether all pages are there.
    #[must_use]
    pub const fn is_all(self) -> bool {
        self.pages > 0 && self.cached >= self.pages
    }

    /// Whether no page is there.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.cached == 0
    }

    /// What is known of the rest, if this is the range and `part` is a part of it that shares no
    /// page with the rest. Pages may have come and gone between the two looks.
    #[must_use]
    pub const fn without(self, part: Self) -> Self {
        let pages = self.pages.saturating_sub(part.pages);
        let cached = self.cached.saturating_sub(part.cached);
        Self { pages, cached: if cached < pages { cached } else { pages } }
    }
}

/// What the kernel knows of a socket's way to the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireState {
    /// Recent time from a byte's transmission to its acknowledgement.
    pub round_trip: Nanos,
    /// The shortest such time of late.
    pub round_trip_min: Nanos,
    /// Bytes that the other side has acknowledged since the socket was connected.
    pub acknowledged: u64,
    /// Bytes that are queued in the socket and not sent yet.
    pub unsent: u32,
}

/// The engine's name for an operation in flight. The driver hands it back untouched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// The end of an operation. The driver gives one for every accepted [`Io::push`];
/// [`Op::SendZeroCopy`] has two names and gets one for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Name of the operation that ended.
    pub token: Token,
    /// Bytes done, or a negative errno (`-125` is ECANCELED).
    pub result: i32,
}

/// Something the engine no longer needs; the driver frees it once no operation uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Close the file's descriptor.
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

    /// Hand an operation over. `false`: the driver is full and took nothing. Try again after the
    /// next completions. If only receives are in flight, the next completion may be far away.
    #[must_use]
    fn push(&mut self, token: Token, op: Op) -> bool;

    /// Ask for an early end of an operation. Its one [`Done`] still comes, perhaps with the result
    /// of an operation that nobody cancelled.
    fn cancel(&mut self, token: Token);

    /// Give a resource back.
    fn release(&mut self, resource: Resource);

    /// Copy memory to memory; both spans have the same length and do not overlap.
    fn copy(&mut self, from: Span, to: Span);

    /// Copy bytes out of shared memory into private memory. `to.len()` equals `from.length`.
    fn load(&mut self, from: Span, to: &mut [u8]);

    /// Copy bytes of private memory into shared memory. `from.len()` equals `to.length`.
    fn store(&mut self, from: &[u8], to: Span);

    /// Change a word of shared memory (8 bytes at a multiple of 8) atomically. Returns the word's
    /// value before the change.
    fn update(&mut self, at: Span, update: Update) -> u64;

    /// Keep the thread busy for this long: the host overhead of a delay injection.
    fn spend(&mut self, time: Nanos);

    /// Whether the driver accepts [`Op::SendZeroCopy`].
    fn sends_without_copy(&self) -> bool {
        false
    }

    /// Give the kernel what was pushed now instead of at the end of the turn. The duration of this
    /// call is then the cost of submission. `false`: no pushed operation has ended meanwhile, so
    /// the duration says little.
    fn hand_over(&mut self) -> bool {
        false
    }

    /// What the kernel knows of a socket's way to the other side; `None` where the socket has none.
    fn wire_state(&mut self, _socket: SocketId) -> Option<WireState> {
        None
    }

    /// What the page cache has of these bytes of a file, as far as the driver can tell. Only a
    /// hint: they may leave it at any time.
    fn cached(&mut self, _file: FileId, _offset: u64, _length: u64) -> Cached {
        Cached::default()
    }

    /// Limit what a socket hands to the wire to so many bytes per second; `None` lifts the limit.
    fn pace(&mut self, _socket: SocketId, _bytes_per_second: Option<u64>) {}

    /// Whether memory of a segment can vanish at any time, because others than its client can cut
    /// it. What lands there may be lost, so only its own client's payload may.
    fn is_loose(&self, _segment: SegmentId) -> bool {
        false
    }

    /// Whether an access has found that some memory of a segment has vanished. Copies from there
    /// were of zeros, and copies to there were lost.
    fn is_torn(&self, _segment: SegmentId) -> bool {
        false
    }

    /// CRC32C of a span, computed over private copies of its bytes.
    fn crc32c(&mut self, span: Span) -> u32;
}
