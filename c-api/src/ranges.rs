//! Calls of files: their length, and what becomes of ranges of them.

use std::mem::MaybeUninit;
use std::time::Duration;

use client_lib::Extents;
use client_lib::call::{Advice, ExtentKind, Lock};

use crate::border::{self, call, put, wanted};
use crate::handle::piped_handle;
use crate::names::{calls, only};
use crate::queue::piped_queue;
use crate::status::piped_status;

/// For piped_allocate: the file does not become longer.
pub const PIPED_KEEP_LENGTH: u32 = 1;
/// For piped_zero: the range's room on the device is given up, if that is as fast.
pub const PIPED_RELEASE: u32 = 1;
/// For piped_sync_range: without what is not needed to read the data again.
pub const PIPED_DATA_ONLY: u32 = 1;
/// Bytes of a digest of piped_digest.
pub const PIPED_DIGEST_BYTES: usize = 32;

/// What a range of a file is.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum piped_extent_kind {
    /// Bytes on the device.
    PIPED_EXTENT_DATA = 0,
    /// Nothing: it reads as zeros and takes no room.
    PIPED_EXTENT_HOLE = 1,
    /// Room that nothing was written to: it reads as zeros.
    PIPED_EXTENT_ZERO = 2,
}

/// What the page cache is told of a range.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum piped_advice {
    /// Nothing in particular will be done.
    PIPED_ADVICE_NORMAL = 0,
    /// The range will be read soon.
    PIPED_ADVICE_WILL_NEED = 1,
    /// The range will not be needed soon.
    PIPED_ADVICE_DONT_NEED = 2,
}

/// A lock that a range of a file can have.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub enum piped_lock {
    /// The range is not locked by this handle.
    PIPED_LOCK_NONE = 0,
    /// Others can lock the range so too, and not alone. Needs a handle that may read.
    PIPED_LOCK_SHARED = 1,
    /// No other can lock the range. Needs a handle that may write.
    PIPED_LOCK_EXCLUSIVE = 2,
}

/// A range of a file that is all of one kind.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct piped_extent {
    /// Where its first byte lies.
    pub offset: u64,
    /// How many bytes it has.
    pub length: u64,
    /// What it is (piped_extent_kind).
    pub kind: u32,
    /// Reserved, and always 0.
    pub reserved: u32,
}

/// Cut a file off at a length, or make it longer by zeros that take no room.
#[unsafe(no_mangle)]
pub extern "C" fn piped_truncate(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    length: u64,
) -> piped_status {
    call(|| calls(queue, handle, |calls| calls.truncate(length)))
}

/// Make sure that a range of a file has room on the device. `flags`: PIPED_KEEP_LENGTH.
#[unsafe(no_mangle)]
pub extern "C" fn piped_allocate(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    offset: u64,
    length: u64,
    flags: u32,
) -> piped_status {
    call(|| {
        only(flags, PIPED_KEEP_LENGTH)?;
        let range = border::range(offset, length)?;
        calls(queue, handle, |calls| calls.allocate(range, flags != 0))
    })
}

/// Make a range of a file zeros. `flags`: PIPED_RELEASE.
#[unsafe(no_mangle)]
pub extern "C" fn piped_zero(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    offset: u64,
    length: u64,
    flags: u32,
) -> piped_status {
    call(|| {
        only(flags, PIPED_RELEASE)?;
        let range = border::range(offset, length)?;
        calls(queue, handle, |calls| calls.zero(range, flags != 0))
    })
}

/// Give up the room of a range on the device; its bytes are zeros then.
#[unsafe(no_mangle)]
pub extern "C" fn piped_trim(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    offset: u64,
    length: u64,
) -> piped_status {
    call(|| {
        let range = border::range(offset, length)?;
        calls(queue, handle, |calls| calls.trim(range))
    })
}

/// Where a file has data and where holes, in order: fills up to `capacity` places at `extents` and
/// says in `count` how many. The rest of the range is asked for from the end of the last one on; 0
/// are the end of the file.
#[unsafe(no_mangle)]
pub extern "C" fn piped_extents(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    offset: u64,
    length: u64,
    extents: *mut piped_extent,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> piped_status {
    call(|| {
        wanted(&count)?;
        let places = border::places(extents, capacity)?;
        let mut left = Extents::new(border::range(offset, length)?);
        let filled = calls(queue, handle, |calls| {
            let mut filled = 0;
            for place in places {
                let Some(extent) = left.next(calls)? else { break };
                let kind = match extent.kind {
                    ExtentKind::Data => piped_extent_kind::PIPED_EXTENT_DATA,
                    ExtentKind::Hole => piped_extent_kind::PIPED_EXTENT_HOLE,
                    ExtentKind::Zero => piped_extent_kind::PIPED_EXTENT_ZERO,
                };
                place.write(piped_extent {
                    offset: extent.offset,
                    length: extent.length,
                    kind: kind as u32,
                    reserved: 0,
                });
                filled += 1;
            }
            Ok(filled)
        })?;
        put(count, filled)
    })
}

/// Bring a range of a file to stable storage; of a directory, its names. Length 0: to the end of
/// the file. `flags`: PIPED_DATA_ONLY.
#[unsafe(no_mangle)]
pub extern "C" fn piped_sync_range(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    offset: u64,
    length: u64,
    flags: u32,
) -> piped_status {
    call(|| {
        only(flags, PIPED_DATA_ONLY)?;
        let range = border::range(offset, length)?;
        calls(queue, handle, |calls| calls.sync_range(range, flags != 0))
    })
}

/// Tell the page cache what will be done with a range (piped_advice). Length 0: to the end of the
/// file.
#[unsafe(no_mangle)]
pub extern "C" fn piped_advise(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    offset: u64,
    length: u64,
    advice: u32,
) -> piped_status {
    call(|| {
        let known = [
            (piped_advice::PIPED_ADVICE_NORMAL as u32, Advice::Normal),
            (piped_advice::PIPED_ADVICE_WILL_NEED as u32, Advice::WillNeed),
            (piped_advice::PIPED_ADVICE_DONT_NEED as u32, Advice::DontNeed),
        ];
        let advice = border::one_of(advice, known, "advice is none of piped_advice")?;
        let range = border::range(offset, length)?;
        calls(queue, handle, |calls| calls.advise(range, advice))
    })
}

/// The BLAKE3 digest of a range of a file, of 1 GiB at most: PIPED_DIGEST_BYTES bytes at `digest`.
#[unsafe(no_mangle)]
pub extern "C" fn piped_digest(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    offset: u64,
    length: u64,
    digest: Option<&mut MaybeUninit<[u8; PIPED_DIGEST_BYTES]>>,
) -> piped_status {
    call(|| {
        wanted(&digest)?;
        let range = border::range(offset, length)?;
        put(digest, calls(queue, handle, |calls| calls.digest(range))?.0)
    })
}

/// Lock a range of a file against other handles, or give the lock up (piped_lock). Length 0: all
/// behind the offset. Waits for at most `patience_ns`, then ends with PIPED_LOCKED if somebody else
/// has locked a part of it.
///
/// A lock is advice: reads and writes do not ask for it. Programs on the node with the file that
/// lock with fcntl see it. It ends with the handle; a handle that may have lost its locks with a
/// daemon or a connection serves nothing any more.
#[unsafe(no_mangle)]
pub extern "C" fn piped_lock_range(
    queue: *mut piped_queue,
    handle: *mut piped_handle,
    offset: u64,
    length: u64,
    lock: u32,
    patience_ns: u64,
) -> piped_status {
    call(|| {
        let known = [
            (piped_lock::PIPED_LOCK_NONE as u32, Lock::None),
            (piped_lock::PIPED_LOCK_SHARED as u32, Lock::Shared),
            (piped_lock::PIPED_LOCK_EXCLUSIVE as u32, Lock::Exclusive),
        ];
        let lock = border::one_of(lock, known, "lock is none of piped_lock")?;
        let (range, patience) = (border::range(offset, length)?, Duration::from_nanos(patience_ns));
        calls(queue, handle, |calls| calls.lock(range.clone(), lock, patience))
    })
}
