//! Answers of calls as threads make them, each in private memory.
//!
//! A call lies in the daemon's own memory, and nobody writes it while its operation has it. It is
//! copied all the same before it is parsed. An answer is made in private memory and copied from
//! there, since a client may rewrite its own at any time.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use piped_core::call::{ANSWER_BYTES_MAX, CALL_BYTES_MAX, Call};
use piped_ring::Segment;

use super::memory::BAD_SPAN;
use super::{fiemap, locks};
use crate::calls::{self, Kernel};

/// What calls ask of the kernel through this driver.
pub(crate) const KERNEL: Kernel = Kernel { next_room: fiemap::next, set_lock: locks::set };

/// A piece of a segment, which keeps the segment mapped.
#[derive(Debug)]
pub(super) struct Part {
    segment: Arc<Segment>,
    offset: u64,
    length: usize,
}

impl Part {
    pub(super) fn new(segment: Arc<Segment>, offset: u64, length: u32) -> Self {
        Self { segment, offset, length: length as usize }
    }
}

/// A call for a thread that may hang.
#[derive(Debug)]
pub(super) struct Asked {
    call: Part,
    answer: Part,
}

/// Memory of a thread that carries out calls, taken with the first.
#[derive(Debug, Default)]
pub(super) struct Room(Vec<u8>);

impl Asked {
    pub(super) fn new(call: Part, answer: Part) -> Self {
        Self { call, answer }
    }

    /// Carries the call out: the bytes of the answer, or a negative errno.
    pub(super) fn answer(&self, file: BorrowedFd<'_>, room: &mut Room) -> i32 {
        let mut bytes = [0; CALL_BYTES_MAX];
        let Some(bytes) = bytes.get_mut(..self.call.length) else { return -libc::EINVAL };
        if self.call.segment.load(self.call.offset, bytes).is_err() {
            return BAD_SPAN;
        }
        let Ok(call) = Call::parse(bytes) else { return -libc::EINVAL };
        room.0.resize(ANSWER_BYTES_MAX as usize, 0);
        let answer = &mut room.0[..self.answer.length.min(ANSWER_BYTES_MAX as usize)];
        let result = calls::answer(file, &call, answer, KERNEL);
        said(result, answer, |answer| self.answer.segment.store(self.answer.offset, answer).is_ok())
    }
}

/// The result of a call whose answer is stored.
pub(super) fn said(
    result: rustix::io::Result<usize>,
    answer: &[u8],
    store: impl FnOnce(&[u8]) -> bool,
) -> i32 {
    match result {
        Ok(0) => 0,
        Ok(bytes) => {
            let answer = &answer[..bytes.min(answer.len())];
            if store(answer) { answer.len() as i32 } else { BAD_SPAN }
        }
        Err(errno) => -errno.raw_os_error(),
    }
}
