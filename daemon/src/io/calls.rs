//! Calls of files and directories: at once where that cannot block, else on a thread.
//!
//! The call lies in the daemon's own memory, and nobody writes it while the operation has it. It is
//! copied all the same before it is parsed. An answer is made in private memory and copied from
//! there, since a client may rewrite its own at any time.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use piped_core::call::{ANSWER_BYTES_MAX, CALL_BYTES_MAX, Call};
use piped_core::ids::FileId;
use piped_core::io::Span;
use piped_ring::Segment;

use super::aside::{self, Job};
use super::memory::BAD_SPAN;
use super::tables::{BAD_DESCRIPTOR, DescriptorKind};
use super::uring::UringIo;
use crate::calls;

/// The longest answer that the shard's own thread makes, in bytes.
const AT_ONCE_BYTES: usize = 1024;

/// A piece of a segment, which keeps the segment mapped.
#[derive(Debug)]
pub(super) struct Part {
    segment: Arc<Segment>,
    offset: u64,
    length: usize,
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
        let result = calls::answer(file, &call, answer, super::fiemap::next);
        said(result, answer, |answer| self.answer.segment.store(self.answer.offset, answer).is_ok())
    }
}

/// The result of a call whose answer is stored.
fn said(
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

impl UringIo {
    /// Carries a call out now, or gives it to a thread.
    pub(super) fn begin_call(&mut self, index: u32, file: FileId, call: Span, answer: Span) {
        match self.lend_call(index, file, call, answer) {
            Ok(Some(result)) => self.end_later(index, result),
            Ok(None) => {}
            Err(errno) => self.refuse(index, errno),
        }
    }

    /// Borrows what a call needs. Its result, if it was carried out at once.
    fn lend_call(
        &mut self,
        index: u32,
        FileId(file): FileId,
        call: Span,
        answer: Span,
    ) -> Result<Option<i32>, i32> {
        self.descriptors.lend(file, DescriptorKind::File)?;
        self.ops.slot(index).descriptor = Some(file);
        for span in [call, answer] {
            self.memory.lend(span)?;
            self.ops.slot(index).lend_segment(span.segment.0);
        }
        if let Some(result) = self.call_at_once(file, call, answer) {
            return Ok(Some(result));
        }
        let part = |span: Span| {
            let segment = self.memory.keep(span).ok_or(BAD_SPAN)?;
            Ok::<_, i32>(Part { segment, offset: span.offset, length: span.length as usize })
        };
        let asked = Asked { call: part(call)?, answer: part(answer)? };
        let file = self.descriptors.apart(file).ok_or(BAD_DESCRIPTOR)?;
        // Not a fault of whoever asked: there is no descriptor for the bell.
        if self.with_aside().is_err() {
            return Ok(Some(-libc::EAGAIN));
        }
        self.ops.slot(index).aside = true;
        if let Some(aside) = &mut self.aside {
            aside.start(Job { index, file, call: aside::Call::Answer(asked) });
        }
        Ok(None)
    }

    /// The result of a call that cannot block, on a file system that the kernel answers for.
    fn call_at_once(&self, file: u32, call: Span, answer: Span) -> Option<i32> {
        let file = self.descriptors.callee(file)?;
        let mut bytes = [0; CALL_BYTES_MAX];
        let bytes = bytes.get_mut(..call.length as usize)?;
        self.memory.segment(call)?.load(call.offset, bytes).ok()?;
        let call = Call::parse(bytes).ok()?;
        if call.answer_bytes_max() > AT_ONCE_BYTES as u64 {
            return None;
        }
        let mut room = [0; AT_ONCE_BYTES];
        let room = &mut room[..AT_ONCE_BYTES.min(answer.length as usize)];
        let result = calls::answer_at_once(file, &call, room)?;
        let segment = self.memory.segment(answer)?;
        Some(said(result, room, |said| segment.store(answer.offset, said).is_ok()))
    }
}
