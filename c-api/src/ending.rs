//! How requests end: results, and what can be asked of a request that is under way.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::time::Duration;

use crate::border::{self, call, put, wanted};
use crate::buffer::{piped_buffer, piped_buffer_state};
use crate::buffers::piped_buffers;
use crate::queue::{asking, piped_queue};
use crate::records::Taken;
use crate::status::piped_status;

/// The result of a request.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct piped_result {
    /// The request's number, as its submission gave it.
    pub request: u64,
    /// The tag of its options.
    pub tag: u64,
    /// Contiguous bytes done from the request's start.
    pub bytes: u64,
    /// For a receive, the message's tag; for an atomic, what the word was; for a wait for
    /// notifications, how many are left; otherwise 0.
    pub value: u64,
    /// The request's buffer, or NULL.
    pub buffer: *mut piped_buffer,
    /// PIPED_OK, or why it did not do everything.
    pub status: piped_status,
    /// Where the buffer is, or all of several: PIPED_BUFFER_HERE unless status says otherwise.
    pub buffer_state: piped_buffer_state,
    /// The request's several buffers, or NULL.
    pub buffers: *mut piped_buffers,
    /// Reserved, and always 0.
    pub reserved: u64,
}

impl piped_result {
    pub(crate) const NOTHING: Self = Self {
        request: 0,
        tag: 0,
        bytes: 0,
        value: 0,
        buffer: std::ptr::null_mut(),
        status: piped_status::PIPED_OK,
        buffer_state: piped_buffer_state::PIPED_BUFFER_NONE,
        buffers: std::ptr::null_mut(),
        reserved: 0,
    };

    /// The part that is known however the request ended, but for where its memory is.
    pub(crate) fn of(request: u64, tag: u64, taken: Option<Taken>) -> Self {
        let known = Self { request, tag, ..Self::NOTHING };
        match taken {
            Some(Taken::Buffer(name)) => Self { buffer: name.pointer(), ..known },
            Some(Taken::Buffers(name)) => Self { buffers: name.pointer(), ..known },
            None => known,
        }
    }
}

/// The time limit of a call; none if it is negative.
pub(crate) fn timeout(timeout_ns: i64) -> Option<Duration> {
    u64::try_from(timeout_ns).ok().map(Duration::from_nanos)
}

/// Wait for the end of a request that is not detached, `timeout_ns` at most; negative: as long as
/// it takes; 0 only looks. PIPED_OK: it ended, and its number is stale from now on; how, is in
/// `result`. PIPED_UNDERWAY: not yet. Every request ends: at its deadline, or with the daemon.
#[unsafe(no_mangle)]
pub extern "C" fn piped_wait(
    queue: *mut piped_queue,
    request: u64,
    timeout_ns: i64,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        wanted(&result)?;
        put(result, asking(queue, |asking| asking.wait(request, timeout(timeout_ns)))?)
    })
}

/// The result of the next detached request that ends, waiting `timeout_ns` at most; negative: as
/// long as it takes; 0 only looks. PIPED_UNDERWAY: none has ended. PIPED_IDLE: none is under way.
#[unsafe(no_mangle)]
pub extern "C" fn piped_next(
    queue: *mut piped_queue,
    timeout_ns: i64,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        wanted(&result)?;
        put(result, asking(queue, |asking| asking.next(timeout(timeout_ns)))?)
    })
}

/// The next buffer that was PIPED_BUFFER_HELD and is free now, as a result with the request that
/// had it; waits `timeout_ns` at most (negative: as long as it takes; 0 only looks). Its status is
/// PIPED_LOST if the daemon is gone and nobody will say when the memory is free. PIPED_UNDERWAY:
/// none yet. PIPED_IDLE: none is held. Nobody has to call it: buffers are also found to be free
/// again by whatever else is asked of the queue.
#[unsafe(no_mangle)]
pub extern "C" fn piped_wait_released(
    queue: *mut piped_queue,
    timeout_ns: i64,
    result: Option<&mut MaybeUninit<piped_result>>,
) -> piped_status {
    call(|| {
        wanted(&result)?;
        put(result, asking(queue, |asking| asking.next_released(timeout(timeout_ns)))?)
    })
}

/// Let piped_next give the result of a request, instead of piped_wait.
#[unsafe(no_mangle)]
pub extern "C" fn piped_detach(queue: *mut piped_queue, request: u64) -> piped_status {
    call(|| asking(queue, |asking| asking.detach(request)))
}

/// Ask the daemon to give up on a request. It ends all the same, once, as what it is by then.
/// `asked`, which may be NULL, is false if it is over already or was cancelled before.
#[unsafe(no_mangle)]
pub extern "C" fn piped_cancel(
    queue: *mut piped_queue,
    request: u64,
    asked: Option<&mut MaybeUninit<bool>>,
) -> piped_status {
    call(|| {
        let done = asking(queue, |asking| {
            let id = asking.id(request)?;
            Ok(asking.queue.cancel(id))
        })?;
        if asked.is_some() { put(asked, done) } else { Ok(()) }
    })
}

/// Contiguous bytes in place from a request's start. They stay as they are, and never get fewer.
#[unsafe(no_mangle)]
pub extern "C" fn piped_progress(
    queue: *mut piped_queue,
    request: u64,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        let done = asking(queue, |asking| {
            let id = asking.id(request)?;
            Ok(asking.queue.progress(id))
        })?;
        put(bytes, done)
    })
}

/// The first bytes of a read beyond piped_progress that are in place, too, from `start` to before
/// `end`: with wanted_offset the part that was. The same number twice if there are none.
#[unsafe(no_mangle)]
pub extern "C" fn piped_landed(
    queue: *mut piped_queue,
    request: u64,
    start: Option<&mut MaybeUninit<u64>>,
    end: Option<&mut MaybeUninit<u64>>,
) -> piped_status {
    call(|| {
        wanted(&start)?;
        wanted(&end)?;
        let landed = asking(queue, |asking| {
            let id = asking.id(request)?;
            Ok(asking.queue.landed(id))
        })?;
        put(start, landed.start)?;
        put(end, landed.end)
    })
}

/// Copy bytes of a read that is under way: of `length` bytes from `offset` of the request those
/// that are in place. `copied` says how many; 0 if none are there yet.
#[unsafe(no_mangle)]
pub extern "C" fn piped_copy_landed(
    queue: *mut piped_queue,
    request: u64,
    offset: u64,
    to: *mut c_void,
    length: usize,
    copied: Option<&mut MaybeUninit<usize>>,
) -> piped_status {
    call(|| {
        let to = border::bytes_mut(to.cast(), length)?;
        let done = asking(queue, |asking| {
            let id = asking.id(request)?;
            Ok(asking.queue.copy_landed(id, offset, to))
        })?;
        put(copied, done)
    })
}
