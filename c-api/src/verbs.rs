//! Requests of C programs: a verb with its operands and options, submitted or run to its end.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::without_provenance_mut;
use std::time::Duration;

use client_lib::{Buffer, Class, Payload, Request, Tag};
use zerocopy::{FromBytes, IntoBytes};

use crate::asking::Carried;
use crate::border::{self, Out, call, put, wanted};
use crate::client::class;
use crate::ending::piped_result;
use crate::fault::Fault;
use crate::handle::{HANDLES, piped_handle};
use crate::pieces::{PIECES, piped_pieces};
use crate::queue::{asking, piped_queue};
use crate::status::piped_status;

/// A write with this flag completes when its bytes are on stable storage.
pub const PIPED_DURABLE: u32 = 1;
/// A request with this flag ends with PIPED_WOULD_BLOCK where it would have to wait: for a limit,
/// for a sender, or for room for what it sends.
pub const PIPED_NO_WAIT: u32 = 2;
/// A read or write with this flag is submitted again if the daemon ends before it does, within its
/// deadline. The client was connected with reconnect_ns.
pub const PIPED_RESUBMIT: u32 = 4;
/// Detached: piped_next gives the result, in the order in which requests end, and not piped_wait.
pub const PIPED_DETACHED: u32 = 8;
/// A receive with this flag takes the next message, whatever its tag.
pub const PIPED_ANY_TAG: u32 = 16;
/// A read, write, atomic or notification with this flag begins when all of these that this queue
/// asked of the same node before are over. Without the flag the daemon does requests in any order,
/// and only notifications wait for writes.
pub const PIPED_FENCE: u32 = 32;
/// A write to a region with this flag notifies the exporter of notify_id, after this write and all
/// writes that this queue asked of that node before. The request ends after the notification. A
/// write that fails notifies nobody.
pub const PIPED_NOTIFY: u32 = 64;

/// Not a flag of C: the verb has `wanted_offset`.
const WANTED: u32 = 1 << 31;

/// Flags that every verb can have.
const ANY: u32 = PIPED_NO_WAIT | PIPED_DETACHED;
const OF_READ: u32 = ANY | PIPED_RESUBMIT | PIPED_FENCE | WANTED;
const OF_WRITE: u32 = ANY | PIPED_RESUBMIT | PIPED_FENCE | PIPED_DURABLE | PIPED_NOTIFY;
const OF_READ_PIECES: u32 = ANY | PIPED_FENCE;
const OF_WRITE_PIECES: u32 = ANY | PIPED_FENCE | PIPED_DURABLE;
const OF_BUFFERS: u32 = ANY | PIPED_FENCE;
const OF_SEND: u32 = ANY;
const OF_RECEIVE: u32 = ANY | PIPED_ANY_TAG;
const OF_WORD: u32 = ANY | PIPED_FENCE;
const KNOWN: u32 = OF_WRITE | OF_RECEIVE;

/// Options of a request. Set size to sizeof; 0 is always the default. All options have their
/// defaults where NULL is given instead.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
pub struct piped_request_options {
    /// Set to sizeof(struct piped_request_options).
    pub size: u32,
    /// Flags of the request: PIPED_DURABLE and so on.
    pub flags: u32,
    /// A number of the program's own, given back in piped_result.
    pub tag: u64,
    /// The longest time from its submission, in nanoseconds. Default: the daemon's.
    pub deadline_ns: u64,
    /// How urgent the request is (piped_class).
    pub request_class: u32,
    /// With PIPED_NOTIFY, the notification that the exporter gets.
    pub notify_id: u32,
    /// Move only a piece of the buffer, from this byte of the buffer.
    pub piece_offset: u64,
    /// Length of the piece in bytes; 0: up to the buffer's end.
    pub piece_length: u64,
    /// For a read, the byte that is wanted first, from the start of the request. The page about it
    /// travels before the rest; piped_landed says when it is there.
    pub wanted_offset: u64,
}

/// One request: a verb and its operands. A function piped_prep_VERB fills it; piped_submit and
/// piped_run copy it, so it can be changed and used again. Objects are named by their pointers.
/// Fields that the verb has no use for are ignored.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes)]
#[repr(C)]
pub struct piped_request {
    /// Set to sizeof(struct piped_request).
    pub size: u32,
    /// The verb: PIPED_VERB_READ and so on.
    pub verb: u32,
    /// The piped_handle it is about; a copy's source.
    pub handle: u64,
    /// The piped_handle that a copy writes to.
    pub to: u64,
    /// The piped_buffer that it fills or sends.
    pub buffer: u64,
    /// The piped_pieces of a request of many pieces.
    pub pieces: u64,
    /// Where in `handle`, in bytes.
    pub offset: u64,
    /// Where in `to`, in bytes.
    pub to_offset: u64,
    /// How many bytes a copy moves.
    pub length: u64,
    /// Further operands of the verb: a message's tag; the addend; the expected and the desired
    /// word; the notification and how many of it.
    pub operands: [u64; 2],
    /// The piped_buffers of a request of several buffers.
    pub buffers: u64,
}

/// The verb of piped_prep_nop.
pub const PIPED_VERB_NOP: u32 = 0;
/// The verb of piped_prep_read.
pub const PIPED_VERB_READ: u32 = 1;
/// The verb of piped_prep_write.
pub const PIPED_VERB_WRITE: u32 = 2;
/// The verb of piped_prep_read_pieces.
pub const PIPED_VERB_READ_PIECES: u32 = 3;
/// The verb of piped_prep_write_pieces.
pub const PIPED_VERB_WRITE_PIECES: u32 = 4;
/// The verb of piped_prep_copy.
pub const PIPED_VERB_COPY: u32 = 5;
/// The verb of piped_prep_sync.
pub const PIPED_VERB_SYNC: u32 = 6;
/// The verb of piped_prep_send.
pub const PIPED_VERB_SEND: u32 = 7;
/// The verb of piped_prep_receive.
pub const PIPED_VERB_RECEIVE: u32 = 8;
/// The verb of piped_prep_fetch_add.
pub const PIPED_VERB_FETCH_ADD: u32 = 9;
/// The verb of piped_prep_compare_swap.
pub const PIPED_VERB_COMPARE_SWAP: u32 = 10;
/// The verb of piped_prep_notify.
pub const PIPED_VERB_NOTIFY: u32 = 11;
/// The verb of piped_prep_wait_notified.
pub const PIPED_VERB_WAIT_NOTIFIED: u32 = 12;
/// The verb of piped_prep_flush.
pub const PIPED_VERB_FLUSH: u32 = 13;
/// The verb of piped_prep_read_buffers.
pub const PIPED_VERB_READ_BUFFERS: u32 = 14;
/// The verb of piped_prep_write_buffers.
pub const PIPED_VERB_WRITE_BUFFERS: u32 = 15;

/// Options of a request, as C gave them.
#[derive(Debug)]
pub(crate) struct Choices {
    options: piped_request_options,
    class: Class,
}

impl Choices {
    fn of(options: *const piped_request_options) -> Result<Self, Fault> {
        let options = border::sized(options)?;
        if options.flags & !KNOWN != 0 {
            let text = "a flag that this version does not have";
            return Err(Fault::told(piped_status::PIPED_UNSUPPORTED, text));
        }
        if options.notify_id != 0 && options.flags & PIPED_NOTIFY == 0 {
            return Err(Fault::argument("notify_id without PIPED_NOTIFY"));
        }
        Ok(Self { options, class: class(options.request_class)? })
    }

    /// Checks that a verb with these flags can have what was chosen.
    fn only(&self, flags: u32) -> Result<(), Fault> {
        if self.options.flags & !flags != 0 {
            return Err(Fault::argument("a flag that this verb does not have"));
        }
        if self.options.wanted_offset != 0 && flags & WANTED == 0 {
            return Err(Fault::argument("wanted_offset is for reads"));
        }
        Ok(())
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.has(PIPED_DETACHED)
    }

    pub(crate) fn tag(&self) -> u64 {
        self.options.tag
    }

    fn has(&self, flag: u32) -> bool {
        self.options.flags & flag != 0
    }

    /// The piece in a buffer of that length, if the options name one. The queue refuses a piece
    /// beyond the buffer when the request is submitted.
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

    /// Applies the options that every request has.
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

    /// Applies the options that only requests with a buffer have.
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

    /// Refuses the options that only a request with one buffer can have.
    pub(crate) fn without_buffer(&self) -> Result<(), Fault> {
        if (self.options.piece_offset, self.options.piece_length) == (0, 0) {
            return Ok(());
        }
        Err(Fault::argument("an option for requests with one buffer"))
    }
}

/// How a request is asked for: submitted with a number, or run to its result.
#[derive(Debug)]
enum Way<'a> {
    Submit(Out<'a, u64>),
    Run(Out<'a, piped_result>),
}

/// A queue that is asked for something, with the options of the request.
#[derive(Debug)]
struct Ask<'a> {
    queue: *mut piped_queue,
    choices: Choices,
    way: Way<'a>,
}

impl Ask<'_> {
    /// Asks for what `make` makes of a buffer, or of nothing, by a verb that can have `flags`.
    fn of<B: Carried>(
        self,
        name: B::Name,
        flags: u32,
        make: impl FnOnce(B) -> Request<B>,
    ) -> Result<(), Fault> {
        let Self { queue, choices, way } = self;
        choices.only(flags)?;
        match way {
            Way::Submit(number) => {
                // Nobody could wait for the request otherwise.
                if !choices.is_detached() {
                    wanted(&number)?;
                }
                let given = asking(queue, |asking| asking.submit(name, &choices, make))?;
                if number.is_some() { put(number, given) } else { Ok(()) }
            }
            Way::Run(result) => {
                let ended = asking(queue, |asking| asking.run(name, &choices, make))?;
                if result.is_some() {
                    put(result, ended)?;
                }
                match ended.status {
                    piped_status::PIPED_OK => Ok(()),
                    status => Err(Fault::of_result(status)),
                }
            }
        }
    }
}

/// The pointer that a field of a request stands for.
fn pointer<T>(field: u64) -> *mut T {
    without_provenance_mut(field as usize)
}

fn ask(
    queue: *mut piped_queue,
    request: *const piped_request,
    options: *const piped_request_options,
    way: Way<'_>,
) -> Result<(), Fault> {
    if request.is_null() {
        return Err(Fault::fixed(piped_status::PIPED_NULL));
    }
    let asked = border::sized(request)?;
    let ask = Ask { queue, choices: Choices::of(options)?, way };
    if asked.verb == PIPED_VERB_NOP {
        return ask.of((), ANY, |()| Request::nop());
    }
    let handle = HANDLES.get(pointer::<piped_handle>(asked.handle))?;
    let (buffer, offset, [first, second]) = (pointer(asked.buffer), asked.offset, asked.operands);
    match asked.verb {
        PIPED_VERB_READ => ask.of(buffer, OF_READ, |buffer| Request::read(&handle, offset, buffer)),
        PIPED_VERB_WRITE => {
            ask.of(buffer, OF_WRITE, |buffer| Request::write(&handle, offset, buffer))
        }
        PIPED_VERB_READ_PIECES => {
            let pieces = PIECES.get(pointer::<piped_pieces>(asked.pieces))?;
            let make = |buffer| Request::read_pieces(&handle, &pieces, buffer);
            ask.of(buffer, OF_READ_PIECES, make)
        }
        PIPED_VERB_WRITE_PIECES => {
            let pieces = PIECES.get(pointer::<piped_pieces>(asked.pieces))?;
            let make = |buffer| Request::write_pieces(&handle, &pieces, buffer);
            ask.of(buffer, OF_WRITE_PIECES, make)
        }
        PIPED_VERB_READ_BUFFERS => {
            let make = |buffers| Request::read_buffers(&handle, offset, buffers);
            ask.of(pointer(asked.buffers), OF_BUFFERS, make)
        }
        PIPED_VERB_WRITE_BUFFERS => {
            let make = |buffers| Request::write_buffers(&handle, offset, buffers);
            ask.of(pointer(asked.buffers), OF_BUFFERS, make)
        }
        PIPED_VERB_COPY => {
            let to = HANDLES.get(pointer::<piped_handle>(asked.to))?;
            let make = |()| Request::copy(&handle, offset, &to, asked.to_offset, asked.length);
            ask.of((), ANY, make)
        }
        PIPED_VERB_SYNC => ask.of((), ANY, |()| Request::sync(&handle)),
        PIPED_VERB_SEND => ask.of(buffer, OF_SEND, |buffer| Request::send(&handle, first, buffer)),
        PIPED_VERB_RECEIVE => {
            let tag = if ask.choices.has(PIPED_ANY_TAG) { Tag::Any } else { Tag::Is(first) };
            ask.of(buffer, OF_RECEIVE, |buffer| Request::receive(&handle, tag, buffer))
        }
        PIPED_VERB_FETCH_ADD => {
            ask.of((), OF_WORD, |()| Request::fetch_add(&handle, offset, first))
        }
        PIPED_VERB_COMPARE_SWAP => {
            ask.of((), OF_WORD, |()| Request::compare_swap(&handle, offset, first, second))
        }
        PIPED_VERB_NOTIFY => {
            let id = notification(first)?;
            ask.of((), OF_WORD, |()| Request::notify(&handle, id))
        }
        PIPED_VERB_WAIT_NOTIFIED => {
            let id = notification(first)?;
            ask.of((), ANY, |()| Request::wait(&handle, id, second))
        }
        PIPED_VERB_FLUSH => ask.of((), ANY, |()| Request::flush(&handle)),
        _ => {
            let text = "a verb that this version does not have";
            Err(Fault::told(piped_status::PIPED_UNSUPPORTED, text))
        }
    }
}

fn notification(operand: u64) -> Result<u32, Fault> {
    u32::try_from(operand).map_err(|_| Fault::argument("a notification's id has 32 bits"))
}

/// Submit a request. `options` may be NULL. `number` is the request's number for piped_wait and
/// others; it may be NULL if the request is detached. The daemon sees the request after
/// piped_queue_flush, or with the next look for results. If the call fails, nothing was submitted
/// and the buffer is where it was.
#[unsafe(no_mangle)]
pub extern "C" fn piped_submit(
    queue: *mut piped_queue,
    request: *const piped_request,
    options: *const piped_request_options,
    number: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| ask(queue, request, options, Way::Submit(number)))
}

/// Submit a request and wait for its end. `options` and `result` may be NULL. The call returns the
/// result's status. A failure before the submission (a misuse, PIPED_FULL, PIPED_DISCONNECTED)
/// leaves `result` as it was and the buffer where it was.
#[unsafe(no_mangle)]
pub extern "C" fn piped_run(
    queue: *mut piped_queue,
    request: *const piped_request,
    options: *const piped_request_options,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| ask(queue, request, options, Way::Run(result)))
}
