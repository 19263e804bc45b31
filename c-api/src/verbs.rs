//! What can be asked: each verb submitted, and waited for.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::time::Duration;

use client_lib::{Buffer, Class, Payload, Request, Tag};
use zerocopy::{FromBytes, IntoBytes};

use crate::asking::Carried;
use crate::border::{self, Out, call, put, wanted};
use crate::buffer::piped_buffer;
use crate::client::class;
use crate::ending::piped_result;
use crate::fault::Fault;
use crate::handle::{HANDLES, piped_handle};
use crate::pieces::{PIECES, piped_pieces};
use crate::queue::{asking, piped_queue};
use crate::status::piped_status;

/// A write: completed means on stable storage.
pub const PIPED_DURABLE: u32 = 1;
/// End with PIPED_WOULD_BLOCK instead of waiting for a limit, for somebody to send, or for room for what is sent.
pub const PIPED_NO_WAIT: u32 = 2;
/// A read or write: submit it again if the daemon ends before it does, within its deadline. For clients that were
/// connected with reconnect_ns.
pub const PIPED_RESUBMIT: u32 = 4;
/// piped_next gives the result, in the order in which requests end, and not piped_wait.
pub const PIPED_DETACHED: u32 = 8;
/// A receive: the next message, whatever its tag.
pub const PIPED_ANY_TAG: u32 = 16;
/// A read, write, atomic or notification: begin only when all of these that this queue has asked of the same node before
/// are over. Without it requests are done in any order, and only notifications wait for writes.
pub const PIPED_FENCE: u32 = 32;
/// A write to a region: have its exporter notified of notify_id, after this write and all writes that this queue has asked
/// of that node before. The request is over when that is done, too. One that fails notifies nobody.
pub const PIPED_NOTIFY: u32 = 64;

/// No flag of C's: the verb has `wanted_offset`.
const WANTED: u32 = 1 << 31;

/// Flags that each verb can have.
const ANY: u32 = PIPED_NO_WAIT | PIPED_DETACHED;
const OF_READ: u32 = ANY | PIPED_RESUBMIT | PIPED_FENCE | WANTED;
const OF_WRITE: u32 = ANY | PIPED_RESUBMIT | PIPED_FENCE | PIPED_DURABLE | PIPED_NOTIFY;
const OF_READ_PIECES: u32 = ANY | PIPED_FENCE;
const OF_WRITE_PIECES: u32 = ANY | PIPED_FENCE | PIPED_DURABLE;
const OF_SEND: u32 = ANY;
const OF_RECEIVE: u32 = ANY | PIPED_ANY_TAG;
const OF_WORD: u32 = ANY | PIPED_FENCE;
const KNOWN: u32 = OF_WRITE | OF_RECEIVE;

/// What deviates from the defaults of a request. Set size to sizeof; 0 is always the default. Where NULL is given instead,
/// all are.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
pub struct piped_request_options {
    /// sizeof(struct piped_request_options).
    pub size: u32,
    /// PIPED_DURABLE and so on.
    pub flags: u32,
    /// A number of the program's own, for piped_result.
    pub tag: u64,
    /// The time it may take from its submission, in nanoseconds. Default: the daemon's.
    pub deadline_ns: u64,
    /// How urgent it is (piped_class).
    pub request_class: u32,
    /// With PIPED_NOTIFY, of what the exporter is notified.
    pub notify_id: u32,
    /// Move a piece of the buffer only, from this byte of it.
    pub piece_offset: u64,
    /// The piece's length; 0: up to the buffer's end.
    pub piece_length: u64,
    /// A read: the byte that is wanted first, from the start of the request. The page about it travels before the rest;
    /// piped_landed says when it is there.
    pub wanted_offset: u64,
}

/// Options that make sense for their verb.
#[derive(Debug)]
pub(crate) struct Choices {
    options: piped_request_options,
    class: Class,
}

/// What C gave, for a verb that can have `flags`.
fn given(options: *const piped_request_options, flags: u32) -> Result<Choices, Fault> {
    let options = border::sized(options)?;
    if options.flags & !KNOWN != 0 {
        let text = "a flag that this version does not have";
        return Err(Fault::told(piped_status::PIPED_UNSUPPORTED, text));
    }
    if options.flags & !flags != 0 {
        return Err(Fault::argument("a flag that this verb does not have"));
    }
    if options.notify_id != 0 && options.flags & PIPED_NOTIFY == 0 {
        return Err(Fault::argument("notify_id without PIPED_NOTIFY"));
    }
    if options.wanted_offset != 0 && flags & WANTED == 0 {
        return Err(Fault::argument("wanted_offset is for reads"));
    }
    Ok(Choices { options, class: class(options.request_class)? })
}

impl Choices {
    pub(crate) fn is_detached(&self) -> bool {
        self.has(PIPED_DETACHED)
    }

    pub(crate) fn tag(&self) -> u64 {
        self.options.tag
    }

    fn has(&self, flag: u32) -> bool {
        self.options.flags & flag != 0
    }

    /// The piece in a buffer of that length, if one is named. One beyond it is refused when it is submitted.
    fn piece(&self, buffer_bytes: usize) -> Option<Range<usize>> {
        let (offset, length) = (self.options.piece_offset, self.options.piece_length);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        match usize::try_from(length) {
            Ok(0) if offset == 0 => None,
            Ok(0) => Some(start..buffer_bytes),
            // Beyond any buffer.
            length => Some(start..start.saturating_add(length.unwrap_or(usize::MAX))),
        }
    }

    pub(crate) fn of_all<B: Payload>(&self, mut request: Request<B>) -> Request<B> {
        request = request.class(self.class);
        if self.options.deadline_ns > 0 {
            request = request.deadline(Duration::from_nanos(self.options.deadline_ns));
        }
        if self.has(PIPED_NO_WAIT) {
            request = request.no_wait();
        }
        if self.has(PIPED_FENCE) {
            request = request.fence();
        }
        request
    }

    /// Those that only requests with a buffer have.
    pub(crate) fn of_buffer(
        &self,
        mut request: Request<Buffer>,
        buffer_bytes: usize,
    ) -> Request<Buffer> {
        if let Some(piece) = self.piece(buffer_bytes) {
            request = request.piece(piece);
        }
        if self.has(PIPED_DURABLE) {
            request = request.durable();
        }
        if self.has(PIPED_RESUBMIT) {
            request = request.resubmit();
        }
        if self.options.wanted_offset != 0 {
            request = request.wanted_first(self.options.wanted_offset);
        }
        if self.has(PIPED_NOTIFY) {
            request = request.then_notify(self.options.notify_id);
        }
        request
    }

    /// Those of requests without a buffer: none.
    pub(crate) fn without_buffer(&self) -> Result<(), Fault> {
        if (self.options.piece_offset, self.options.piece_length) == (0, 0) {
            return Ok(());
        }
        Err(Fault::argument("an option for requests with a buffer; this verb has none"))
    }
}

/// Submit what `make` makes of a buffer, or of nothing.
fn submit<B: Carried>(
    queue: *mut piped_queue,
    name: B::Name,
    choices: &Choices,
    number: Out<'_, u64>,
    make: impl FnOnce(B) -> Request<B>,
) -> Result<(), Fault> {
    // Nobody could wait for it otherwise.
    if !choices.is_detached() {
        wanted(&number)?;
    }
    let given = asking(queue, |asking| asking.submit(name, choices, make))?;
    if number.is_some() { put(number, given) } else { Ok(()) }
}

/// The same, waiting for the result, which is the call's.
fn run<B: Carried>(
    queue: *mut piped_queue,
    name: B::Name,
    choices: &Choices,
    result: Out<'_, piped_result>,
    make: impl FnOnce(B) -> Request<B>,
) -> Result<(), Fault> {
    let ended = asking(queue, |asking| asking.run(name, choices, make))?;
    if result.is_some() {
        put(result, ended)?;
    }
    match ended.status {
        piped_status::PIPED_OK => Ok(()),
        status => Err(Fault::of_result(status)),
    }
}

fn message_of(choices: &Choices, tag: u64) -> Tag {
    if choices.has(PIPED_ANY_TAG) { Tag::Any } else { Tag::Is(tag) }
}

/// Fill `buffer` from `offset` of a file or region, and wait for it: as much as is there, up to the buffer's length.
///
/// As for all verbs: `options` may be NULL, and so may `result`. The call gives the result's status; what of it went
/// before the request was submitted (a misuse, PIPED_FULL, PIPED_DISCONNECTED) leaves `result` as it was and the buffer
/// where it was.
#[unsafe(no_mangle)]
pub extern "C" fn piped_read(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    offset: u64,
    buffer: *mut piped_buffer,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        let (handle, options) = (HANDLES.get(handle)?, given(options, OF_READ)?);
        run(queue, buffer, &options, result, |buffer| Request::read(&handle, offset, buffer))
    })
}

/// Submit a read. As for all verbs: `options` may be NULL; `request` is the request's number for piped_wait and others,
/// and may be NULL if it is detached. The daemon sees it after piped_queue_flush, or with the next look for results. If
/// the call fails nothing was submitted, and the buffer is where it was.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_read(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    offset: u64,
    buffer: *mut piped_buffer,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let (handle, options) = (HANDLES.get(handle)?, given(options, OF_READ)?);
        submit(queue, buffer, &options, request, |buffer| Request::read(&handle, offset, buffer))
    })
}

/// Write `buffer` at `offset` of a file or region, and wait for it.
#[unsafe(no_mangle)]
pub extern "C" fn piped_write(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    offset: u64,
    buffer: *mut piped_buffer,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        let (handle, options) = (HANDLES.get(handle)?, given(options, OF_WRITE)?);
        run(queue, buffer, &options, result, |buffer| Request::write(&handle, offset, buffer))
    })
}

/// Submit a write.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_write(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    offset: u64,
    buffer: *mut piped_buffer,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let (handle, options) = (HANDLES.get(handle)?, given(options, OF_WRITE)?);
        submit(queue, buffer, &options, request, |buffer| Request::write(&handle, offset, buffer))
    })
}

/// Fill `buffer` with pieces of a file or region, in one request, and wait for it. The result's bytes count them one behind
/// the other, in the table's order.
#[unsafe(no_mangle)]
pub extern "C" fn piped_read_pieces(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    pieces: *mut piped_pieces,
    buffer: *mut piped_buffer,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        let (handle, pieces) = (HANDLES.get(handle)?, PIECES.get(pieces)?);
        let make = |buffer| Request::read_pieces(&handle, &pieces, buffer);
        run(queue, buffer, &given(options, OF_READ_PIECES)?, result, make)
    })
}

/// Submit a read of pieces.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_read_pieces(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    pieces: *mut piped_pieces,
    buffer: *mut piped_buffer,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let (handle, pieces) = (HANDLES.get(handle)?, PIECES.get(pieces)?);
        let make = |buffer| Request::read_pieces(&handle, &pieces, buffer);
        submit(queue, buffer, &given(options, OF_READ_PIECES)?, request, make)
    })
}

/// Write pieces of `buffer` to a file or region, in one request, and wait for it. They are written in any order: pieces
/// that overlap in the file or region have no defined result.
#[unsafe(no_mangle)]
pub extern "C" fn piped_write_pieces(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    pieces: *mut piped_pieces,
    buffer: *mut piped_buffer,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        let (handle, pieces) = (HANDLES.get(handle)?, PIECES.get(pieces)?);
        let make = |buffer| Request::write_pieces(&handle, &pieces, buffer);
        run(queue, buffer, &given(options, OF_WRITE_PIECES)?, result, make)
    })
}

/// Submit a write of pieces.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_write_pieces(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    pieces: *mut piped_pieces,
    buffer: *mut piped_buffer,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let (handle, pieces) = (HANDLES.get(handle)?, PIECES.get(pieces)?);
        let make = |buffer| Request::write_pieces(&handle, &pieces, buffer);
        submit(queue, buffer, &given(options, OF_WRITE_PIECES)?, request, make)
    })
}

/// Copy `length` bytes between two handles, without passing through this process, and wait for it. The source's end ends
/// it early.
#[unsafe(no_mangle)]
pub extern "C" fn piped_copy(
    queue: *mut piped_queue,
    from: *mut piped_handle,
    from_offset: u64,
    to: *mut piped_handle,
    to_offset: u64,
    length: u64,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        let (from, to) = (HANDLES.get(from)?, HANDLES.get(to)?);
        let make = |()| Request::copy(&from, from_offset, &to, to_offset, length);
        run(queue, (), &given(options, ANY)?, result, make)
    })
}

/// Submit a copy.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_copy(
    queue: *mut piped_queue,
    from: *mut piped_handle,
    from_offset: u64,
    to: *mut piped_handle,
    to_offset: u64,
    length: u64,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let (from, to) = (HANDLES.get(from)?, HANDLES.get(to)?);
        let make = |()| Request::copy(&from, from_offset, &to, to_offset, length);
        submit(queue, (), &given(options, ANY)?, request, make)
    })
}

/// Bring what completed writes wrote to stable storage, and wait for it.
#[unsafe(no_mangle)]
pub extern "C" fn piped_sync(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        let handle = HANDLES.get(handle)?;
        run(queue, (), &given(options, ANY)?, result, |()| Request::sync(&handle))
    })
}

/// Submit a sync.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_sync(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let handle = HANDLES.get(handle)?;
        submit(queue, (), &given(options, ANY)?, request, |()| Request::sync(&handle))
    })
}

/// Send `buffer` to a channel under a tag, and wait until it has been taken in: a short message by the receiver's node, a
/// longer one by its receiver.
#[unsafe(no_mangle)]
pub extern "C" fn piped_send(
    queue: *mut piped_queue,
    channel: *mut piped_handle,
    message_tag: u64,
    buffer: *mut piped_buffer,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        let (channel, options) = (HANDLES.get(channel)?, given(options, OF_SEND)?);
        let make = |buffer| Request::send(&channel, message_tag, buffer);
        run(queue, buffer, &options, result, make)
    })
}

/// Submit a send.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_send(
    queue: *mut piped_queue,
    channel: *mut piped_handle,
    message_tag: u64,
    buffer: *mut piped_buffer,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let (channel, options) = (HANDLES.get(channel)?, given(options, OF_SEND)?);
        let make = |buffer| Request::send(&channel, message_tag, buffer);
        submit(queue, buffer, &options, request, make)
    })
}

/// Receive the next message of that tag, or of any (PIPED_ANY_TAG), into `buffer`, and wait for it. The result's value is
/// its tag. One that is longer than the buffer stays, and the request ends with PIPED_TOO_LONG.
#[unsafe(no_mangle)]
pub extern "C" fn piped_receive(
    queue: *mut piped_queue,
    channel: *mut piped_handle,
    message_tag: u64,
    buffer: *mut piped_buffer,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        let (channel, options) = (HANDLES.get(channel)?, given(options, OF_RECEIVE)?);
        let tag = message_of(&options, message_tag);
        let make = |buffer| Request::receive(&channel, tag, buffer);
        run(queue, buffer, &options, result, make)
    })
}

/// Submit a receive.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_receive(
    queue: *mut piped_queue,
    channel: *mut piped_handle,
    message_tag: u64,
    buffer: *mut piped_buffer,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let (channel, options) = (HANDLES.get(channel)?, given(options, OF_RECEIVE)?);
        let tag = message_of(&options, message_tag);
        let make = |buffer| Request::receive(&channel, tag, buffer);
        submit(queue, buffer, &options, request, make)
    })
}

/// Add `addend` to the 8 bytes at `offset` of a region, wrapping around, at once with everybody else who changes them so,
/// and wait for it. The result's value is what they were. They are a word of the exporter's byte order at a multiple of 8
/// bytes, and the region is open with PIPED_ATOMIC. It is done exactly once; PIPED_OUTCOME_UNKNOWN and a passed deadline
/// leave it open whether it was.
#[unsafe(no_mangle)]
pub extern "C" fn piped_fetch_add(
    queue: *mut piped_queue,
    region: *mut piped_handle,
    offset: u64,
    addend: u64,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        let (region, options) = (HANDLES.get(region)?, given(options, OF_WORD)?);
        run(queue, (), &options, result, |()| Request::fetch_add(&region, offset, addend))
    })
}

/// Submit a fetch_add.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_fetch_add(
    queue: *mut piped_queue,
    region: *mut piped_handle,
    offset: u64,
    addend: u64,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let (region, options) = (HANDLES.get(region)?, given(options, OF_WORD)?);
        submit(queue, (), &options, request, |()| Request::fetch_add(&region, offset, addend))
    })
}

/// Replace the 8 bytes at `offset` of a region by `desired` if they are `expected`, otherwise as piped_fetch_add. The
/// result's value is what they were, so it was done if that is `expected`.
#[unsafe(no_mangle)]
pub extern "C" fn piped_compare_swap(
    queue: *mut piped_queue,
    region: *mut piped_handle,
    offset: u64,
    expected: u64,
    desired: u64,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        let (region, options) = (HANDLES.get(region)?, given(options, OF_WORD)?);
        let make = |()| Request::compare_swap(&region, offset, expected, desired);
        run(queue, (), &options, result, make)
    })
}

/// Submit a compare_swap.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_compare_swap(
    queue: *mut piped_queue,
    region: *mut piped_handle,
    offset: u64,
    expected: u64,
    desired: u64,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let (region, options) = (HANDLES.get(region)?, given(options, OF_WORD)?);
        let make = |()| Request::compare_swap(&region, offset, expected, desired);
        submit(queue, (), &options, request, make)
    })
}

/// Notify the exporter of a region of `id`, after all writes that this queue has asked of that node before, and wait for
/// it. Exactly once, like an atomic. A write before it that fails does not hold it back; see PIPED_NOTIFY.
#[unsafe(no_mangle)]
pub extern "C" fn piped_notify(
    queue: *mut piped_queue,
    region: *mut piped_handle,
    id: u32,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        let (region, options) = (HANDLES.get(region)?, given(options, OF_WORD)?);
        run(queue, (), &options, result, |()| Request::notify(&region, id))
    })
}

/// Submit a notification.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_notify(
    queue: *mut piped_queue,
    region: *mut piped_handle,
    id: u32,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let (region, options) = (HANDLES.get(region)?, given(options, OF_WORD)?);
        submit(queue, (), &options, request, |()| Request::notify(&region, id))
    })
}

/// Wait until `count` notifications of `id` have come to a region of this client (piped_region_handle), and take them. The
/// result's value is how many are left. Several that wait for the same `id` are served in their order.
#[unsafe(no_mangle)]
pub extern "C" fn piped_wait_notified(
    queue: *mut piped_queue,
    region: *mut piped_handle,
    id: u32,
    count: u64,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        let (region, options) = (HANDLES.get(region)?, given(options, ANY)?);
        run(queue, (), &options, result, |()| Request::wait(&region, id, count))
    })
}

/// Submit a wait for notifications.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_wait_notified(
    queue: *mut piped_queue,
    region: *mut piped_handle,
    id: u32,
    count: u64,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let (region, options) = (HANDLES.get(region)?, given(options, ANY)?);
        submit(queue, (), &options, request, |()| Request::wait(&region, id, count))
    })
}

/// Wait for all reads, writes, atomics and notifications that this queue has asked of the handle's node before. Each of
/// them says itself how it ended. (piped_queue_flush is something else: it lets the daemon see what was submitted.)
#[unsafe(no_mangle)]
pub extern "C" fn piped_flush(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        let (handle, options) = (HANDLES.get(handle)?, given(options, ANY)?);
        run(queue, (), &options, result, |()| Request::flush(&handle))
    })
}

/// Submit a flush.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_flush(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let (handle, options) = (HANDLES.get(handle)?, given(options, ANY)?);
        submit(queue, (), &options, request, |()| Request::flush(&handle))
    })
}

/// Nothing: to the daemon and back.
#[unsafe(no_mangle)]
pub extern "C" fn piped_nop(
    queue: *mut piped_queue,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| run(queue, (), &given(options, ANY)?, result, |()| Request::nop()))
}

/// Submit nothing.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit_nop(
    queue: *mut piped_queue,
    options: *const piped_request_options,
    request: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| submit(queue, (), &given(options, ANY)?, request, |()| Request::nop()))
}
