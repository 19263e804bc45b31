//! Calls of files and directories: at once where that cannot block, else on a thread.

use piped_core::call::{CALL_BYTES_MAX, Call};
use piped_core::ids::FileId;
use piped_core::io::Span;

use super::answer::{Asked, KERNEL, Part, said};
use super::aside::{self, Job};
use super::memory::BAD_SPAN;
use super::tables::{BAD_DESCRIPTOR, DescriptorKind};
use super::uring::UringIo;
use crate::calls;

/// The longest answer that the shard's own thread makes, in bytes.
const AT_ONCE_BYTES: usize = 1024;

/// Carries a call out now, or gives it to a thread.
pub(super) fn begin(io: &mut UringIo, index: u32, file: FileId, call: Span, answer: Span) {
    match lend(io, index, file, call, answer) {
        Ok(Some(result)) => io.end_later(index, result),
        Ok(None) => {}
        Err(errno) => io.refuse(index, errno),
    }
}

/// Borrows what a call needs. Its result, if it was carried out at once.
fn lend(
    io: &mut UringIo,
    index: u32,
    FileId(file): FileId,
    call: Span,
    answer: Span,
) -> Result<Option<i32>, i32> {
    io.descriptors.lend(file, DescriptorKind::File)?;
    io.ops.slot(index).descriptor = Some(file);
    for span in [call, answer] {
        io.memory.lend(span)?;
        io.ops.slot(index).lend_segment(span.segment.0);
    }
    if let Some(result) = at_once(io, file, call, answer) {
        return Ok(Some(result));
    }
    let part = |span: Span| {
        let segment = io.memory.keep(span).ok_or(BAD_SPAN)?;
        Ok::<_, i32>(Part::new(segment, span.offset, span.length))
    };
    let asked = Asked::new(part(call)?, part(answer)?);
    let file = io.descriptors.apart(file).ok_or(BAD_DESCRIPTOR)?;
    // Not a fault of whoever asked: there is no descriptor for the bell.
    if io.with_aside().is_err() {
        return Ok(Some(-libc::EAGAIN));
    }
    io.ops.slot(index).aside = true;
    if let Some(aside) = &mut io.aside {
        aside.start(Job { index, file, call: aside::Call::Answer(asked) });
    }
    Ok(None)
}

/// The result of a call that cannot block, on a file system that the kernel answers for.
fn at_once(io: &UringIo, file: u32, call: Span, answer: Span) -> Option<i32> {
    let file = io.descriptors.callee(file)?;
    let mut bytes = [0; CALL_BYTES_MAX];
    let bytes = bytes.get_mut(..call.length as usize)?;
    io.memory.segment(call)?.load(call.offset, bytes).ok()?;
    let call = Call::parse(bytes).ok()?;
    if call.answer_bytes_max() > AT_ONCE_BYTES as u64 {
        return None;
    }
    let mut room = [0; AT_ONCE_BYTES];
    let room = &mut room[..AT_ONCE_BYTES.min(answer.length as usize)];
    let result = calls::answer_at_once(file, &call, room, KERNEL)?;
    let segment = io.memory.segment(answer)?;
    Some(said(result, room, |said| segment.store(answer.offset, said).is_ok()))
}
