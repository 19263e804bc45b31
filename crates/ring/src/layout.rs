//! Layout of a queue's memory, byte for byte.
//!
//! Two programs that were compiled apart agree on these structs, so their sizes and offsets are
//! asserted here and change only together with [`VERSION`]. Everything is a whole number of 64-bit
//! words, because words are what both sides load and store: an entry is copied word by word through
//! atomics, which is a defined thing to do with memory that somebody else rewrites, and then parsed
//! from the private copy.

use core::mem::{align_of, offset_of, size_of};

use piped_core::status::Status;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

/// Version of the queue's memory and of the handshake. Both sides must have the same.
pub const VERSION: u32 = 4;

/// First word of a queue's memory: `piped-q1` read as little-endian bytes.
pub const QUEUE_MAGIC: u64 = u64::from_le_bytes(*b"piped-q1");

/// The most entries of a submission ring.
pub const ENTRIES_MAX: u32 = 4096;

/// 64-bit words of a [`Descriptor`].
pub const DESCRIPTOR_WORDS: usize = size_of::<Descriptor>() / 8;

/// 64-bit words of a [`CompletionEntry`].
pub const COMPLETION_WORDS: usize = size_of::<CompletionEntry>() / 8;

/// The indices' first value. They only ever count up; starting just below the wrap makes wrapping
/// an everyday event instead of one that happens after years.
pub const FIRST_INDEX: u64 = u64::MAX - 16;

/// A value of [`Descriptor::slot`] for requests without a progress word.
pub const SLOT_NONE: u32 = u32::MAX;

/// [`Descriptor::flags`]: a write completes when it is on stable storage.
pub const FLAG_DURABLE: u8 = 1 << 0;

/// [`Descriptor::flags`]: a receive takes a message of any tag.
pub const FLAG_ANY_TAG: u8 = 1 << 1;

/// [`Descriptor::flags`]: end with [`Status::WouldBlock`] instead of waiting for a limit, or for
/// somebody to send or to receive.
pub const FLAG_NO_WAIT: u8 = 1 << 2;

/// [`Descriptor::flags`]: begin only when all is over that this queue has asked of the same node
/// before.
pub const FLAG_FENCE: u8 = 1 << 3;

/// Flag of [`Opcode::ReadV`] and [`Opcode::WriteV`]: the memory is a list of buffers
/// ([`piped_core::pieces::BufferRow`]), which begins at `buffer_offset` of `segment` and has
/// `length` rows.
pub const FLAG_BUFFERS: u8 = 1 << 4;

/// [`Descriptor::class`]: what the session said in its Hello.
pub const CLASS_DEFAULT: u8 = 0;
/// [`Descriptor::class`]: somebody is blocked on it.
pub const CLASS_LATENCY: u8 = 1;
/// [`Descriptor::class`]: throughput matters more than latency.
pub const CLASS_BULK: u8 = 2;

/// The verb of a descriptor. Numbers never change; an unknown one completes with
/// [`Status::Unsupported`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Do nothing, and complete at once.
    Nop = 0,
    /// `handle_a` at `offset_a` into the buffer.
    Read = 1,
    /// The buffer into `handle_a` at `offset_a`.
    Write = 2,
    /// `length` bytes from `handle_a`/`offset_a` to `handle_b`/`offset_b`.
    Copy = 3,
    /// Completed writes of `handle_a` onto stable storage.
    Sync = 4,
    /// Give up on the request with `operand_a` as its `user_data`.
    Cancel = 5,
    /// Add `operand_a` to the 8 bytes at `offset_a` of `handle_a`; the old value comes back.
    FetchAdd = 6,
    /// Replace `operand_a` by `operand_b` there; the old value comes back.
    CompareSwap = 7,
    /// Notify the exporter of region `handle_a` of `notify_id`, after all earlier puts of this
    /// queue to its node.
    Notify = 8,
    /// Wait until `operand_a` notifications of `notify_id` have come to region `handle_a`, which is
    /// this session's, and take them.
    Wait = 9,
    /// A write to a region, and a notify behind it.
    PutNotify = 10,
    /// The buffer to channel `handle_a` under `tag`.
    Send = 11,
    /// A message of channel `handle_a` with `tag` (or any) into the buffer.
    Recv = 12,
    /// A read of the pieces of a table of [`Row`](piped_core::pieces::Row), of `operand_a` bytes in
    /// all, into the buffer.
    ReadV = 13,
    /// A write of the pieces of such a table, out of the buffer.
    WriteV = 14,
    /// Wait for all that this queue has asked of the node of `handle_a` before.
    Flush = 15,
    /// The call of `operand_a` bytes at the start of the buffer, of file or directory `handle_a`;
    /// its answer comes to the buffer.
    Call = 16,
}

impl Opcode {
    /// All of them, at the place of their number.
    pub const ALL: [Self; 17] = [
        Self::Nop,
        Self::Read,
        Self::Write,
        Self::Copy,
        Self::Sync,
        Self::Cancel,
        Self::FetchAdd,
        Self::CompareSwap,
        Self::Notify,
        Self::Wait,
        Self::PutNotify,
        Self::Send,
        Self::Recv,
        Self::ReadV,
        Self::WriteV,
        Self::Flush,
        Self::Call,
    ];

    /// The verb of a number, `None` if this version does not know it.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// One request, as the client writes it: 128 bytes, with fields for every verb. Fields a verb does
/// not use are zero. Nothing in it is believed before it was checked.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(8))]
pub struct Descriptor {
    /// Number of an [`Opcode`].
    pub opcode: u8,
    /// `FLAG_*`; an unknown one completes with [`Status::Unsupported`].
    pub flags: u8,
    /// Class of the request, `CLASS_*`.
    pub class: u8,
    /// Reserved, and always zero.
    pub reserved: u8,
    /// The request's progress word, below the queue's entries, or [`SLOT_NONE`].
    pub slot: u32,
    /// The client's own value; comes back in the completion.
    pub user_data: u64,
    /// The handle, or the source.
    pub handle_a: u32,
    /// The destination of a copy.
    pub handle_b: u32,
    /// Offset in `handle_a`, bytes.
    pub offset_a: u64,
    /// Offset in `handle_b`, bytes.
    pub offset_b: u64,
    /// The buffer's segment in the arena.
    pub segment: u32,
    /// The segment of the vector table.
    pub table_segment: u32,
    /// The buffer's offset in its segment, bytes.
    pub buffer_offset: u64,
    /// Length of the transfer in bytes.
    pub length: u64,
    /// Nanoseconds allowed from submission; 0 takes the session's default.
    pub deadline_ns: u64,
    /// First operand of an atomic; the target of a cancel; how many notifications a wait is for;
    /// bytes of all pieces of a vectored request; bytes of a call.
    pub operand_a: u64,
    /// Second operand of an atomic.
    pub operand_b: u64,
    /// The tag of a message.
    pub tag: u64,
    /// The critical part of a read: the offset, relative to `offset_a`, wanted first.
    pub wanted_offset: u64,
    /// The vector table's offset in its segment, bytes.
    pub table_offset: u64,
    /// Number of the notification.
    pub notify_id: u32,
    /// Rows of the vector table.
    pub table_count: u32,
    /// Reserved, and always zero.
    pub reserved_tail: u64,
}

impl Descriptor {
    /// A descriptor with everything zero but its verb and the client's value, and no progress word.
    #[must_use]
    pub fn new(opcode: Opcode, user_data: u64) -> Self {
        Self { opcode: opcode as u8, user_data, slot: SLOT_NONE, ..Self::default() }
    }

    /// The descriptor as the words of a ring entry.
    #[must_use]
    pub fn to_words(self) -> [u64; DESCRIPTOR_WORDS] {
        transmute!(self)
    }

    /// An entry from the words of a ring.
    #[must_use]
    pub fn from_words(words: [u64; DESCRIPTOR_WORDS]) -> Self {
        transmute!(words)
    }
}

/// The end of a request, or the later release of its buffer: 32 bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(8))]
pub struct CompletionEntry {
    /// Value of the descriptor's `user_data`.
    pub user_data: u64,
    /// Contiguous bytes done from the request's start.
    pub bytes: u64,
    /// For an atomic, what the word was; for a receive, the message's tag; for a wait, the
    /// notifications that are left.
    pub value: u64,
    /// Number of a [`Status`].
    pub status: u16,
    /// Number of a [`CompletionKind`].
    pub kind: u8,
    /// Reserved, and always zero.
    pub reserved: [u8; 5],
}

impl CompletionEntry {
    /// A request that is over.
    #[must_use]
    pub fn finished(user_data: u64, status: Status, bytes: u64) -> Self {
        Self { user_data, bytes, status: status as u16, ..Self::default() }
    }

    /// An entry like this one with another kind.
    #[must_use]
    pub fn with_kind(self, kind: CompletionKind) -> Self {
        Self { kind: kind as u8, ..self }
    }

    /// The entry as the words of a ring entry.
    #[must_use]
    pub fn to_words(self) -> [u64; COMPLETION_WORDS] {
        transmute!(self)
    }

    /// An entry from the words of a ring.
    #[must_use]
    pub fn from_words(words: [u64; COMPLETION_WORDS]) -> Self {
        transmute!(words)
    }
}

/// Kinds of completion entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CompletionKind {
    /// The request is over and its buffer is the client's again.
    Finished = 0,
    /// The request is over, but the kernel may still touch the buffer: a `Released` follows.
    FinishedHeld = 1,
    /// The buffer of an earlier `FinishedHeld` is the client's again.
    Released = 2,
}

impl CompletionKind {
    /// The kind of a number, `None` if this version does not know it.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Finished),
            1 => Some(Self::FinishedHeld),
            2 => Some(Self::Released),
            _ => None,
        }
    }
}

/// A word alone on its cache lines: 128 bytes, because neighbouring lines are fetched in pairs and
/// a word the other side writes would drag this one along.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
struct Line {
    word: u64,
    padding: [u64; 15],
}

/// The start of a queue's memory. Never made: it says where the words are (`offset_of!` below).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
struct QueueHeader {
    magic: u64,
    version: u64,
    entries: u64,
    constant_padding: [u64; 13],
    /// Written by the client: descriptors before it are complete.
    submission_tail: Line,
    /// Written by the daemon: descriptors before it were copied out.
    submission_head: Line,
    /// Written by the daemon: completions before it are complete.
    completion_tail: Line,
    /// Written by the client: completions before it were copied out.
    completion_head: Line,
    /// Not zero while the daemon sleeps, or is about to.
    daemon_asleep: Line,
    /// Not zero while the client sleeps, or is about to: 1 until its bell rings, 2 until this word
    /// is zero.
    client_asleep: Line,
    tail_padding: Line,
}

/// Word numbers of the header's fields.
pub(crate) mod word {
    use super::{QueueHeader, offset_of};

    pub(crate) const MAGIC: usize = offset_of!(QueueHeader, magic) / 8;
    pub(crate) const VERSION: usize = offset_of!(QueueHeader, version) / 8;
    pub(crate) const ENTRIES: usize = offset_of!(QueueHeader, entries) / 8;
    pub(crate) const SUBMISSION_TAIL: usize = offset_of!(QueueHeader, submission_tail) / 8;
    pub(crate) const SUBMISSION_HEAD: usize = offset_of!(QueueHeader, submission_head) / 8;
    pub(crate) const COMPLETION_TAIL: usize = offset_of!(QueueHeader, completion_tail) / 8;
    pub(crate) const COMPLETION_HEAD: usize = offset_of!(QueueHeader, completion_head) / 8;
    pub(crate) const DAEMON_ASLEEP: usize = offset_of!(QueueHeader, daemon_asleep) / 8;
    pub(crate) const CLIENT_ASLEEP: usize = offset_of!(QueueHeader, client_asleep) / 8;
}

const HEADER_WORDS: usize = size_of::<QueueHeader>() / 8;

/// Words of a slot: how far its request is, and the first bytes beyond that are there (their begin
/// in the upper half, their end in the lower one; no request is longer).
pub const PROGRESS_WORDS: usize = 2;

/// Where the parts of a queue with some number of entries are, in 64-bit words. The only way to get
/// one checks the number, so a layout's arithmetic cannot overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLayout {
    entries: u32,
}

impl QueueLayout {
    /// The layout for `entries` descriptors; `None` unless it is a power of two in
    /// 1..=[`ENTRIES_MAX`].
    #[must_use]
    pub fn new(entries: u32) -> Option<Self> {
        (entries.is_power_of_two() && entries <= ENTRIES_MAX).then_some(Self { entries })
    }

    /// Descriptors in the submission ring.
    #[must_use]
    pub fn entries(self) -> u32 {
        self.entries
    }

    /// Entries of the completion ring: two a request, its end and the release of its buffer.
    #[must_use]
    pub fn completions(self) -> u32 {
        2 * self.entries
    }

    /// Words of the whole memory that are used.
    #[must_use]
    pub fn words(self) -> usize {
        self.progress_start() + PROGRESS_WORDS * self.entries as usize
    }

    /// Bytes of the memory: the words, rounded up to whole pages.
    #[must_use]
    pub fn bytes(self) -> u64 {
        (self.words() as u64 * 8).next_multiple_of(4096)
    }

    pub(crate) fn descriptors_start(self) -> usize {
        HEADER_WORDS
    }

    pub(crate) fn completions_start(self) -> usize {
        self.descriptors_start() + self.entries as usize * DESCRIPTOR_WORDS
    }

    pub(crate) fn progress_start(self) -> usize {
        self.completions_start() + self.completions() as usize * COMPLETION_WORDS
    }

    /// The first progress word of a slot, `None` if there is no such slot. Behind it is that of
    /// what has landed beyond.
    pub(crate) fn progress(self, slot: u32) -> Option<usize> {
        (slot < self.entries).then(|| self.progress_start() + PROGRESS_WORDS * slot as usize)
    }
}

const _: () = {
    assert!(size_of::<Descriptor>() == 128 && align_of::<Descriptor>() == 8);
    assert!(offset_of!(Descriptor, slot) == 4);
    assert!(offset_of!(Descriptor, user_data) == 8);
    assert!(offset_of!(Descriptor, handle_a) == 16 && offset_of!(Descriptor, handle_b) == 20);
    assert!(offset_of!(Descriptor, offset_a) == 24 && offset_of!(Descriptor, offset_b) == 32);
    assert!(offset_of!(Descriptor, segment) == 40 && offset_of!(Descriptor, table_segment) == 44);
    assert!(offset_of!(Descriptor, buffer_offset) == 48 && offset_of!(Descriptor, length) == 56);
    assert!(offset_of!(Descriptor, deadline_ns) == 64);
    assert!(offset_of!(Descriptor, operand_a) == 72 && offset_of!(Descriptor, operand_b) == 80);
    assert!(offset_of!(Descriptor, tag) == 88 && offset_of!(Descriptor, wanted_offset) == 96);
    assert!(offset_of!(Descriptor, table_offset) == 104);
    assert!(offset_of!(Descriptor, notify_id) == 112 && offset_of!(Descriptor, table_count) == 116);
    assert!(offset_of!(Descriptor, reserved_tail) == 120);

    assert!(size_of::<CompletionEntry>() == 32 && align_of::<CompletionEntry>() == 8);
    assert!(offset_of!(CompletionEntry, bytes) == 8 && offset_of!(CompletionEntry, value) == 16);
    assert!(offset_of!(CompletionEntry, status) == 24 && offset_of!(CompletionEntry, kind) == 26);

    assert!(size_of::<Line>() == 128 && size_of::<QueueHeader>() == 1024);
    assert!(word::SUBMISSION_TAIL == 16 && word::SUBMISSION_HEAD == 32);
    assert!(word::COMPLETION_TAIL == 48 && word::COMPLETION_HEAD == 64);
    assert!(word::DAEMON_ASLEEP == 80 && word::CLIENT_ASLEEP == 96);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_their_own_places() {
        for (number, opcode) in Opcode::ALL.iter().enumerate() {
            assert_eq!(*opcode as usize, number);
            assert_eq!(Opcode::from_u8(number as u8), Some(*opcode));
        }
        assert_eq!(Opcode::from_u8(Opcode::ALL.len() as u8), None);
        for kind in
            [CompletionKind::Finished, CompletionKind::FinishedHeld, CompletionKind::Released]
        {
            assert_eq!(CompletionKind::from_u8(kind as u8), Some(kind));
        }
        assert_eq!(CompletionKind::from_u8(3), None);
    }

    #[test]
    fn only_powers_of_two_within_bounds_are_layouts() {
        for entries in [0, 3, 4097, 8192, u32::MAX] {
            assert_eq!(QueueLayout::new(entries), None, "{entries} entries");
        }
        for exponent in 0..=12 {
            let layout = QueueLayout::new(1 << exponent).expect("a power of two up to 4096");
            assert!(layout.words() as u64 * 8 <= layout.bytes());
            assert_eq!(layout.progress(layout.entries()), None);
            assert_eq!(
                layout.progress(layout.entries() - 1),
                Some(layout.words() - PROGRESS_WORDS)
            );
        }
    }
}
