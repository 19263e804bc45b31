//! The client of a node: what it has, what it has asked for, and what must come out.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use piped_core::ids::{HandleId, QueueId, SessionId};
use piped_core::request::{BufferState, Completion, Origin, Progress, Request, Update, Verb};
use piped_core::status::Status;

use crate::input::pattern;

/// The session of the client.
pub const SESSION: SessionId = SessionId(1);
/// A file it may read and write, with O_DIRECT where that is aligned.
pub const FILE: HandleId = HandleId(1);
/// A file that it may only read.
pub const READ_ONLY: HandleId = HandleId(2);
/// Handle of the client's own region.
pub const OWN_REGION: HandleId = HandleId(3);
/// Something at a peer, once it is opened there.
pub const REMOTE: HandleId = HandleId(4);
/// The client's own channel: the end that receives.
pub const INBOX: HandleId = HandleId(1000);
/// Handle of the channel's end that sends.
pub const OUTBOX: HandleId = HandleId(1001);

/// Bytes of the client's memory.
pub const SEGMENT_BYTES: u64 = 128 * 1024;
/// The offered part of it.
pub const REGION_RANGE: core::ops::Range<u64> = 64 * 1024 + 8..96 * 1024 + 8;

/// Contents of the client's memory, of the file it may write and of the one it may not.
pub(crate) static CONTENTS: LazyLock<[Vec<u8>; 3]> = LazyLock::new(|| {
    [(SEGMENT_BYTES as usize, 1), (70_001, 2), (100_000, 3)]
        .map(|(length, salt)| (0..length).map(|at| pattern(at, salt)).collect())
});

/// Requests and where they may write, while they are in execution and after.
#[derive(Debug)]
pub(crate) struct Books {
    asked: BTreeMap<u32, Asked>,
    /// Where in the segment requests or peers may have written: from, to, and which request.
    touched: Vec<(u64, u64, u32)>,
}

/// A request as its client remembers it.
#[derive(Debug, Clone, Copy)]
struct Asked {
    request: Request,
    state: State,
    progress: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Held,
    Over,
}

impl Books {
    /// The books of a client that has asked for nothing yet.
    pub(crate) fn new() -> Self {
        let touched = vec![(REGION_RANGE.start, REGION_RANGE.end, u32::MAX)];
        Self { asked: BTreeMap::new(), touched }
    }

    /// How many requests there were.
    pub(crate) fn count(&self) -> u64 {
        self.asked.len() as u64
    }

    /// Enters a request, and gives it its place among them.
    pub(crate) fn ask(&mut self, request: Request, user_data: u64) -> Origin {
        let slot = self.asked.len() as u32;
        self.asked.insert(slot, Asked { request, state: State::Running, progress: 0 });
        let filled = match request.verb {
            Verb::Read { buffer, .. }
            | Verb::Receive { buffer, .. }
            | Verb::Call { buffer, .. } => Some(buffer),
            _ => None,
        };
        if let Some(buffer) = filled
            && buffer.segment == 0
            && let Some(end) = buffer.offset.checked_add(buffer.length)
            && end <= SEGMENT_BYTES
        {
            self.touched.push((buffer.offset, end, slot));
        }
        Origin { session: SESSION, queue: QueueId(0), slot, user_data }
    }

    /// Checks how far a request is said to be.
    pub(crate) fn go_on(&mut self, progress: &Progress) {
        let asked = self.asked.get_mut(&progress.origin.slot).expect("was asked");
        assert_eq!(asked.state, State::Running, "progress of {asked:?}");
        assert!(progress.bytes >= asked.progress, "{asked:?} falls back");
        assert!(progress.bytes <= length(&asked.request.verb), "{asked:?}");
        let (from, to) = progress.landed;
        let inside = from >= progress.bytes && to <= length(&asked.request.verb);
        assert!(inside && from <= to, "{asked:?}: {progress:?}");
        asked.progress = progress.bytes;
    }

    /// Checks the end of a request; `memory`: all of the client's, if it is still there.
    pub(crate) fn end(&mut self, completion: Completion, memory: Option<&[u8]>) {
        let (origin, status, bytes, buffer) = match completion {
            Completion::Finished { origin, status, bytes, buffer, .. } => {
                (origin, status, bytes, buffer)
            }
            Completion::Released { origin } => {
                let asked = self.asked.get_mut(&origin.slot).expect("was asked");
                assert_eq!(asked.state, State::Held, "{asked:?} is released");
                asked.state = State::Over;
                return;
            }
        };
        let asked = self.asked.get_mut(&origin.slot).expect("was asked");
        assert_eq!(asked.state, State::Running, "{asked:?} ends twice");
        let verb = asked.request.verb;
        assert!(bytes >= asked.progress && bytes <= length(&verb), "{asked:?}");
        if status == Status::Ok && matches!(verb, Verb::Write { .. }) {
            assert_eq!(bytes, length(&verb), "a write is done, but not all of it");
        }
        let kept = buffer == BufferState::Held;
        check_once(verb, status, kept);
        asked.state = if kept { State::Held } else { State::Over };
        if let Some(memory) = memory.filter(|_| bytes > 0) {
            self.check_content(origin.slot, verb, bytes as usize, memory);
        }
    }

    /// Bytes that are reported read of the file that nobody writes are there, unless another
    /// request had the same buffer.
    fn check_content(&self, slot: u32, verb: Verb, bytes: usize, memory: &[u8]) {
        let Verb::Read { handle: READ_ONLY, offset, buffer, .. } = verb else { return };
        let overlaps = |(start, end, other): &(u64, u64, u32)| {
            *other != slot && *start < buffer.offset + buffer.length && buffer.offset < *end
        };
        if self.touched.iter().any(overlaps) {
            return;
        }
        let right = memory[buffer.offset as usize..][..bytes].iter().enumerate();
        let wrong = right.into_iter().find(|(at, byte)| **byte != pattern(offset as usize + at, 3));
        assert!(wrong.is_none(), "{verb:?} has {wrong:?} of {bytes}");
    }

    /// Every request has ended, and nothing but destinations of reads and the region was written.
    pub(crate) fn check(&self, memory: &[u8]) {
        for (slot, asked) in &self.asked {
            assert_eq!(asked.state, State::Over, "request {slot} never ends: {asked:?}");
        }
        let mut touched: Vec<_> = self.touched.iter().map(|(from, to, _)| (*from, *to)).collect();
        touched.sort_unstable();
        touched.push((SEGMENT_BYTES, SEGMENT_BYTES));
        let mut kept_from = 0;
        for (from, to) in touched {
            let kept = kept_from..from.max(kept_from as u64) as usize;
            let whole = memory[kept.clone()] == CONTENTS[0][kept.clone()];
            assert!(whole, "memory was written that nobody offered, somewhere in {kept:?}");
            kept_from = kept_from.max(to as usize);
        }
    }
}

/// A request that moves no bytes keeps no memory, and is done to regions only; the client waits on
/// its own.
fn check_once(verb: Verb, status: Status, kept: bool) {
    let handle = match verb {
        Verb::Update { handle, offset, .. } => {
            let aligned = offset.is_multiple_of(Update::BYTES);
            assert!(status != Status::Ok || aligned, "{verb:?} of no word");
            handle
        }
        Verb::Notify { handle, .. } => handle,
        Verb::Wait { handle, count, .. } => {
            let own = handle == OWN_REGION && count > 0;
            assert!(status != Status::Ok || own, "{verb:?} ends well");
            handle
        }
        Verb::Flush { .. } | Verb::Nop | Verb::Cancel { .. } => {
            return assert!(!kept, "{verb:?} keeps memory");
        }
        _ => return,
    };
    assert!(!kept, "{verb:?} keeps memory");
    let is_region = ![FILE, READ_ONLY, INBOX, OUTBOX].contains(&handle);
    assert!(status != Status::Ok || is_region, "{verb:?} ends well");
}

fn length(verb: &Verb) -> u64 {
    match verb {
        Verb::Read { buffer, .. }
        | Verb::Write { buffer, .. }
        | Verb::Send { buffer, .. }
        | Verb::Receive { buffer, .. }
        | Verb::Call { buffer, .. } => buffer.length,
        Verb::Copy { length, .. } => *length,
        Verb::Vector { bytes, .. } => *bytes,
        Verb::Nop
        | Verb::Update { .. }
        | Verb::Notify { .. }
        | Verb::Wait { .. }
        | Verb::Flush { .. }
        | Verb::Sync { .. }
        | Verb::Cancel { .. }
        | Verb::Unsupported => 0,
    }
}
