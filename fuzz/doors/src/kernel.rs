//! A kernel that does nothing by itself and believes nobody: every operation waits until it is told
//! to end, and every span is checked against its segment and against what other operations own.

use std::collections::{BTreeMap, VecDeque};

use piped_core::access::Alignment;
use piped_core::ids::{FileId, SegmentId, SocketId};
use piped_core::io::{Done, Io, NOTICE_COPIED, NOTICE_IN_PLACE, Op, Resource, Span, Spans, Token};
use piped_core::request::Update;
use piped_core::units::Nanos;

use crate::signed::crc32c;

const EBADF: i32 = -9;
const EINVAL: i32 = -22;
const ENOSPC: i32 = -28;
const ECANCELED: i32 = -125;
const ECONNRESET: i32 = -104;

/// The longest file, in bytes.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// How an operation ends that is told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All of it, as far as there are bytes.
    Whole,
    /// At most so many bytes of it, at least one.
    Short(u32),
    /// Not at all: a negative errno.
    Failed(i32),
}

/// The kernel under a shard, at the hands of the input.
#[derive(Debug, Default)]
pub struct Kernel {
    now: Nanos,
    segments: BTreeMap<SegmentId, Segment>,
    inodes: Vec<Vec<u8>>,
    files: BTreeMap<FileId, File>,
    sockets: BTreeMap<SocketId, Socket>,
    ops: Vec<(Token, Op)>,
    /// Memory lent by sends that have ended, by the names of their notices.
    lent: Vec<(Token, Spans)>,
    dones: VecDeque<Done>,
    ops_max: usize,
    made: u32,
}

#[derive(Debug)]
struct Segment {
    bytes: Vec<u8>,
    /// Nobody but the shard may have it touched: no two operations own the same byte.
    private: bool,
}

#[derive(Debug, Clone, Copy)]
struct File {
    inode: usize,
    direct: Option<Alignment>,
}

#[derive(Debug, Default)]
struct Socket {
    /// Bytes that have arrived.
    arrived: Vec<u8>,
    /// Whether nothing more will come.
    ended: bool,
    /// Bytes that were sent.
    sent: Vec<u8>,
}

impl Kernel {
    /// One that takes so many operations at once.
    #[must_use]
    pub fn new(ops_max: usize) -> Self {
        // Not zero, which the engine takes for "at once".
        Self { ops_max, now: Nanos(1), ..Self::default() }
    }

    /// Lets so much time pass.
    pub fn wait(&mut self, time: Nanos) {
        self.now = Nanos(self.now.0.saturating_add(time.0));
    }

    /// Registers memory. `private`: no client has it.
    pub fn add_segment(&mut self, bytes: Vec<u8>, private: bool) -> SegmentId {
        let id = SegmentId(self.number());
        self.segments.insert(id, Segment { bytes, private });
        id
    }

    /// Makes a file with these bytes.
    pub fn add_inode(&mut self, bytes: Vec<u8>) -> usize {
        self.inodes.push(bytes);
        self.inodes.len() - 1
    }

    /// Opens a file that was made.
    pub fn open(&mut self, inode: usize, direct: Option<Alignment>) -> FileId {
        let id = FileId(self.number());
        self.files.insert(id, File { inode, direct });
        id
    }

    /// Makes a connected socket.
    pub fn connect(&mut self) -> SocketId {
        let id = SocketId(self.number());
        self.sockets.insert(id, Socket::default());
        id
    }

    fn number(&mut self) -> u32 {
        self.made += 1;
        self.made
    }

    /// Bytes arrive at a socket, if it is still there.
    pub fn arrive(&mut self, socket: SocketId, bytes: &[u8]) {
        if let Some(socket) = self.sockets.get_mut(&socket) {
            socket.arrived.extend(bytes);
        }
    }

    /// The other side hangs up.
    pub fn hang_up(&mut self, socket: SocketId) {
        if let Some(socket) = self.sockets.get_mut(&socket) {
            socket.ended = true;
        }
    }

    /// Takes the bytes that were sent on a socket since the last call.
    pub fn take_sent(&mut self, socket: SocketId) -> Vec<u8> {
        self.sockets.get_mut(&socket).map(|it| std::mem::take(&mut it.sent)).unwrap_or_default()
    }

    /// Whether the socket is open.
    #[must_use]
    pub fn is_open(&self, socket: SocketId) -> bool {
        self.sockets.contains_key(&socket)
    }

    /// Files and sockets that are open.
    #[must_use]
    pub fn open_count(&self) -> (usize, usize) {
        (self.files.len(), self.sockets.len())
    }

    /// Operations that have not ended, and loans.
    #[must_use]
    pub fn ops(&self) -> usize {
        self.ops.len() + self.lent.len()
    }

    /// Memory, as its owner sees it.
    #[must_use]
    pub fn bytes(&self, span: Span) -> &[u8] {
        let start = span.offset as usize;
        let segment = self.segments.get(&span.segment).expect("a segment that is registered");
        &segment.bytes[start..start + span.length as usize]
    }

    fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        let start = span.offset as usize;
        let segment = self.segments.get_mut(&span.segment).expect("a segment that is registered");
        &mut segment.bytes[start..start + span.length as usize]
    }

    /// Whether operations have ended that nobody was told of.
    #[must_use]
    pub fn has_dones(&self) -> bool {
        !self.dones.is_empty()
    }

    /// The next operation that has ended.
    pub fn poll_done(&mut self) -> Option<Done> {
        self.dones.pop_front()
    }

    /// Ends operation number `which` of those that wait, if it can end so: a receive needs bytes.
    pub fn end(&mut self, which: usize, end: End) -> bool {
        let Some(&(token, op)) = self.ops.get(which) else {
            return self.let_go(which - self.ops.len(), end);
        };
        let result = match (end, op) {
            (End::Failed(errno), _) => Some(errno),
            (End::Whole, op) => self.execute(op, 1 << 30),
            (End::Short(most), op) => self.execute(op, most.max(1)),
        };
        if let Some(result) = result {
            self.ops.remove(which);
            self.dones.push_back(Done { token, result });
            if let Op::SendZeroCopy { spans, notice, .. } = op {
                self.lent.push((notice, spans));
            }
        }
        result.is_some()
    }

    /// Ends a loan: the kernel has copied, or not.
    fn let_go(&mut self, which: usize, end: End) -> bool {
        if which >= self.lent.len() {
            return false;
        }
        let (token, _) = self.lent.remove(which);
        let result = if end == End::Whole { NOTICE_IN_PLACE } else { NOTICE_COPIED };
        self.dones.push_back(Done { token, result });
        true
    }

    fn execute(&mut self, op: Op, most: u32) -> Option<i32> {
        Some(match op {
            Op::Read { file, offset, into } => self.read(file, offset, into.part(0, most)),
            Op::Write { file, offset, from } => self.write(file, offset, from.part(0, most)),
            Op::Sync { .. } | Op::Nop => 0,
            Op::Allocate { file, offset, length } => match offset.checked_add(length) {
                Some(end) if end <= FILE_BYTES_MAX => {
                    self.extend(file, end as usize);
                    0
                }
                _ => ENOSPC,
            },
            Op::Send { socket, spans } | Op::SendZeroCopy { socket, spans, .. } => {
                self.send(socket, &spans, most)
            }
            Op::Receive { socket, spans, whole } => {
                return self.receive(socket, &spans, whole, most);
            }
        })
    }

    fn extend(&mut self, file: FileId, length: usize) {
        let file = self.files[&file];
        let inode = &mut self.inodes[file.inode];
        inode.resize(inode.len().max(length), 0);
    }

    /// A transfer that is not aligned is refused, as a kernel with O_DIRECT does, and the engine
    /// must not ask for one.
    fn check_direct(&self, file: FileId, offset: u64, memory: Span) {
        if let Some(alignment) = self.files[&file].direct {
            let of_file = u64::from(alignment.offset);
            assert!(offset.is_multiple_of(of_file), "a direct offset of {offset}");
            assert!(u64::from(memory.length).is_multiple_of(of_file), "{memory:?}");
            assert!(memory.offset.is_multiple_of(u64::from(alignment.memory)), "{memory:?}");
        }
    }

    fn read(&mut self, file: FileId, offset: u64, into: Span) -> i32 {
        let Some(opened) = self.files.get(&file).copied() else { return EBADF };
        let content = &self.inodes[opened.inode];
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let end = start.saturating_add(into.length as usize).min(content.len());
        let bytes = content[start..end].to_vec();
        self.bytes_mut(into.part(0, bytes.len() as u32)).copy_from_slice(&bytes);
        bytes.len() as i32
    }

    fn write(&mut self, file: FileId, offset: u64, from: Span) -> i32 {
        let Some(opened) = self.files.get(&file).copied() else { return EBADF };
        let Some(end) = offset.checked_add(from.length.into()) else { return EINVAL };
        if end > FILE_BYTES_MAX {
            return ENOSPC;
        }
        let bytes = self.bytes(from).to_vec();
        self.extend(file, end as usize);
        self.inodes[opened.inode][offset as usize..end as usize].copy_from_slice(&bytes);
        bytes.len() as i32
    }

    fn send(&mut self, socket: SocketId, spans: &Spans, most: u32) -> i32 {
        let mut bytes: Vec<u8> = Vec::new();
        for span in spans.as_slice() {
            bytes.extend(self.bytes(*span));
        }
        bytes.truncate(most as usize);
        let Some(socket) = self.sockets.get_mut(&socket) else { return EBADF };
        if socket.ended {
            return ECONNRESET;
        }
        socket.sent.extend(&bytes);
        bytes.len() as i32
    }

    fn receive(&mut self, socket: SocketId, spans: &Spans, whole: bool, most: u32) -> Option<i32> {
        let Some(from) = self.sockets.get_mut(&socket) else { return Some(EBADF) };
        let wanted = (spans.bytes() as usize).min(if whole { usize::MAX } else { most as usize });
        let enough = if whole { wanted } else { 1 };
        if from.arrived.len() < enough && !from.ended {
            return None;
        }
        let bytes: Vec<u8> = from.arrived.drain(..wanted.min(from.arrived.len())).collect();
        let mut left = &bytes[..];
        for span in spans.as_slice() {
            let (now, later) = left.split_at(left.len().min(span.length as usize));
            self.bytes_mut(span.part(0, now.len() as u32)).copy_from_slice(now);
            left = later;
        }
        Some(bytes.len() as i32)
    }

    /// Spans of an operation, and whether it writes them.
    fn spans_of(op: &Op) -> (Spans, bool) {
        match op {
            Op::Read { into, .. } => (Spans::from_iter([*into]), true),
            Op::Write { from, .. } => (Spans::from_iter([*from]), false),
            Op::Send { spans, .. } | Op::SendZeroCopy { spans, .. } => (*spans, false),
            Op::Receive { spans, .. } => (*spans, true),
            Op::Sync { .. } | Op::Allocate { .. } | Op::Nop => (Spans::new(), false),
        }
    }

    /// Panics unless the span lies in a segment, and in private memory nobody writes what others
    /// use.
    fn check_span(&self, span: Span, writes: bool) {
        let segment = self.segments.get(&span.segment);
        let segment = segment.unwrap_or_else(|| panic!("{span:?} is in no segment"));
        let end = span.offset.checked_add(span.length.into());
        let inside = end.is_some_and(|end| end <= segment.bytes.len() as u64);
        assert!(inside, "{span:?} is outside of its {} bytes", segment.bytes.len());
        if !segment.private {
            return;
        }
        let lent = self.lent.iter().map(|&(token, spans)| (token, (spans, false)));
        let ops = self.ops.iter().map(|(token, op)| (*token, Self::spans_of(op)));
        for (token, (spans, other_writes)) in ops.chain(lent) {
            for other in spans.as_slice() {
                let overlap = other.segment == span.segment
                    && other.offset < span.offset + u64::from(span.length)
                    && span.offset < other.offset + u64::from(other.length);
                let may = !overlap || !(writes || other_writes);
                assert!(may, "{span:?} belongs to {token:?}: {spans:?}");
            }
        }
    }
}

impl Io for Kernel {
    fn now(&mut self) -> Nanos {
        // Every look at the clock takes a while.
        self.now = self.now + Nanos(40);
        self.now
    }

    fn push(&mut self, token: Token, op: Op) -> bool {
        if self.ops() >= self.ops_max {
            return false;
        }
        assert!(self.ops.iter().all(|(other, _)| *other != token), "{token:?} is under way");
        let (spans, writes) = Self::spans_of(&op);
        for span in spans.as_slice() {
            self.check_span(*span, writes);
        }
        match op {
            Op::Read { file, offset, into } => self.check_direct(file, offset, into),
            Op::Write { file, offset, from } => self.check_direct(file, offset, from),
            Op::Sync { file } | Op::Allocate { file, .. } => {
                assert!(self.files.contains_key(&file), "{file:?} is not open");
            }
            Op::Send { socket, spans }
            | Op::SendZeroCopy { socket, spans, .. }
            | Op::Receive { socket, spans, .. } => {
                assert!(self.is_open(socket), "{socket:?} is not open");
                assert!(spans.bytes() > 0, "an empty operation");
            }
            Op::Nop => {}
        }
        self.ops.push((token, op));
        true
    }

    fn cancel(&mut self, token: Token) {
        if let Some(which) = self.ops.iter().position(|(other, _)| *other == token)
            && !matches!(self.ops[which].1, Op::Write { .. } | Op::Sync { .. })
        {
            self.end(which, End::Failed(ECANCELED));
        }
    }

    fn release(&mut self, resource: Resource) {
        match resource {
            Resource::File(file) => {
                assert!(self.files.remove(&file).is_some(), "{file:?} is closed twice");
            }
            Resource::Socket(socket) => {
                assert!(self.sockets.remove(&socket).is_some(), "{socket:?} is closed twice");
                let uses = |op: &Op| match op {
                    Op::Send { socket: it, .. }
                    | Op::SendZeroCopy { socket: it, .. }
                    | Op::Receive { socket: it, .. } => *it == socket,
                    _ => false,
                };
                while let Some(which) = self.ops.iter().position(|(_, op)| uses(op)) {
                    self.end(which, End::Failed(ECONNRESET));
                }
            }
            Resource::Segment(segment) => {
                let ops = self.ops.iter().map(|(token, op)| (*token, Self::spans_of(op).0));
                for (token, spans) in ops.chain(self.lent.iter().copied()) {
                    let free = spans.as_slice().iter().all(|span| span.segment != segment);
                    assert!(free, "{segment:?} is given back under {token:?}: {spans:?}");
                }
                assert!(self.segments.remove(&segment).is_some(), "{segment:?} is freed twice");
            }
        }
    }

    fn copy(&mut self, from: Span, to: Span) {
        assert_eq!(from.length, to.length);
        let apart = from.segment != to.segment
            || from.offset + u64::from(from.length) <= to.offset
            || to.offset + u64::from(to.length) <= from.offset;
        assert!(apart, "a copy onto itself: {from:?} {to:?}");
        self.check_span(from, false);
        self.check_span(to, true);
        let bytes = self.bytes(from).to_vec();
        self.bytes_mut(to).copy_from_slice(&bytes);
    }

    fn load(&mut self, from: Span, to: &mut [u8]) {
        self.check_span(from, false);
        to.copy_from_slice(self.bytes(from));
    }

    fn store(&mut self, from: &[u8], to: Span) {
        self.check_span(to, true);
        self.bytes_mut(to).copy_from_slice(from);
    }

    fn update(&mut self, at: Span, update: Update) -> u64 {
        assert_eq!((u64::from(at.length), at.offset % Update::BYTES), (Update::BYTES, 0), "{at:?}");
        self.check_span(at, true);
        let bytes = self.bytes_mut(at);
        let word = u64::from_ne_bytes((&*bytes).try_into().expect("8 bytes"));
        bytes.copy_from_slice(&update.of(word).to_ne_bytes());
        word
    }

    fn spend(&mut self, _: Nanos) {}

    fn sends_without_copy(&self) -> bool {
        true
    }

    fn hand_over(&mut self) -> bool {
        true
    }

    fn crc32c(&mut self, span: Span) -> u32 {
        self.check_span(span, false);
        crc32c(self.bytes(span))
    }
}
