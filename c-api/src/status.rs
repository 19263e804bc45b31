//! Results of calls and requests: one list of numbers for both.

use client_lib::{Cause, Status, SubmitFault};

/// How a call or a request ended. 0 is success. Up to 63 are the daemon's reasons; the others are
/// this library's. Numbers keep their meaning; there may be more of them in later versions.
#[expect(non_camel_case_types, reason = "named as in C")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum piped_status {
    /// Everything was done (reads: up to the end of the file).
    PIPED_OK = 0,
    /// The daemon, or this library, does not know that verb, flag or option.
    PIPED_UNSUPPORTED = 1,
    /// A length or offset of the request is out of the daemon's range.
    PIPED_INVALID = 2,
    /// The daemon has no such handle open for this session.
    PIPED_BAD_HANDLE = 3,
    /// The buffer does not lie inside the arena, or somebody has cut the memory lent for it.
    PIPED_BAD_BUFFER = 4,
    /// The handle was not opened for this kind of access, or permission was denied.
    PIPED_DENIED = 5,
    /// The request's deadline passed.
    PIPED_DEADLINE_EXCEEDED = 6,
    /// The request was cancelled.
    PIPED_CANCELLED = 7,
    /// The device reported an error.
    PIPED_IO = 8,
    /// No space left on the device.
    PIPED_NO_SPACE = 9,
    /// The peer is not reachable, or was lost and did not come back in time.
    PIPED_PEER_LOST = 10,
    /// The owner of the region or channel is gone, or took access back.
    PIPED_GONE = 11,
    /// No such export, file, region or channel.
    PIPED_NOT_FOUND = 12,
    /// A limit is reached, or the request would have to wait and was asked not to.
    PIPED_WOULD_BLOCK = 13,
    /// The operation may or may not have happened, because a daemon restarted in between.
    PIPED_OUTCOME_UNKNOWN = 14,
    /// A checksum did not match more often than retries allow.
    PIPED_CORRUPT = 15,
    /// The session is being closed.
    PIPED_CLOSED = 16,
    /// The message is longer than the buffer; it can still be received.
    PIPED_TOO_LONG = 17,
    /// No such export, or none for this user or node.
    PIPED_NO_EXPORT = 18,
    /// There is no directory where the file was looked for, or was to be made.
    PIPED_NO_DIRECTORY = 19,
    /// A directory is there, where a file is needed.
    PIPED_IS_DIRECTORY = 20,
    /// Something has that name already.
    PIPED_EXISTS = 21,
    /// No directory is there, or a part of the path is none.
    PIPED_NOT_DIRECTORY = 22,
    /// The directory has names in it.
    PIPED_NOT_EMPTY = 23,
    /// The file system can only be read.
    PIPED_READ_ONLY = 24,
    /// Larger than the file system or the call allows.
    PIPED_TOO_LARGE = 25,
    /// The file system does not permit it to the daemon's user, or here to this process.
    PIPED_NOT_PERMITTED = 26,
    /// A link in the path leads out of the export, or too far.
    PIPED_LOOP = 27,
    /// The two names, or the path and its directory, lie on different mounts.
    PIPED_CROSS_DEVICE = 28,
    /// A name is too long for the file system.
    PIPED_NAME_TOO_LONG = 29,
    /// Another handle, or a program on that node, has locked the range or a part of it.
    PIPED_LOCKED = 30,
    /// The daemon gave a reason that this library does not know; update the library.
    PIPED_UNKNOWN = 63,

    /// A pointer that must not be NULL is.
    PIPED_NULL = 64,
    /// The pointer was not given out by this library.
    PIPED_NOT_OURS = 65,
    /// The pointer stands for another kind of object.
    PIPED_WRONG_KIND = 66,
    /// The object was freed, or the request's result was taken.
    PIPED_STALE = 67,
    /// Another thread is using the object: a queue is for one thread at a time.
    PIPED_BUSY = 68,
    /// The request has not ended yet; or a request that has not ended has the buffer.
    PIPED_UNDERWAY = 69,
    /// The buffer's request has ended, and the kernel may still touch the buffer: see
    /// piped_wait_released.
    PIPED_HELD = 70,
    /// The buffer went with its queue or its daemon, or the tiled loop failed before, and can only
    /// be freed.
    PIPED_LOST = 71,
    /// The buffer is offered as a region: piped_region_close gives it back.
    PIPED_EXPORTED = 72,
    /// The request was submitted to another queue.
    PIPED_OTHER_QUEUE = 73,
    /// The request is detached: piped_next gives its result.
    PIPED_DETACHED_REQUEST = 74,
    /// There is nothing to wait for.
    PIPED_IDLE = 75,
    /// An argument makes no sense; the message says which.
    PIPED_ARGUMENT = 76,
    /// A length or offset is not inside the buffer or region.
    PIPED_RANGE = 77,
    /// As many requests are under way, or ended and not taken, as the queue is deep.
    PIPED_FULL = 78,
    /// The handle or buffer belongs to another client.
    PIPED_FOREIGN = 79,
    /// The handle could not be opened again when the client reconnected.
    PIPED_HANDLE_LOST = 80,
    /// The new connection's arena has no room for the buffer.
    PIPED_NO_ROOM = 81,
    /// The daemon ended, or ended the session.
    PIPED_DISCONNECTED = 82,
    /// The daemon sent bytes outside of the protocol; connect again, and report it.
    PIPED_BROKEN = 83,
    /// The daemon did not answer in the time the options allow.
    PIPED_TIMED_OUT = 84,
    /// The client was not connected with reconnect_ns.
    PIPED_NOT_RECONNECTING = 85,
    /// The operating system refused; the message says what.
    PIPED_SYSTEM = 86,
    /// This process has as many objects of the kind as it can have.
    PIPED_LIMIT = 87,
    /// This library failed inside, or did so in an earlier call on the object. The object can be
    /// freed. A bug: report the message.
    PIPED_INTERNAL = 88,
    /// The table of pieces is another client's, or of the daemon before; make it anew.
    PIPED_TABLE_LOST = 89,
    /// The buffer is of memory that could not be lent again when the client reconnected; lend it
    /// anew to hear why.
    PIPED_NOT_LENT = 90,
    /// Some of the part of lent memory is in another buffer, or was lost with its daemon.
    PIPED_TAKEN = 91,
}

use piped_status::*;

impl piped_status {
    /// All statuses, in the order of their numbers.
    pub(crate) const ALL: [Self; 60] = [
        PIPED_OK,
        PIPED_UNSUPPORTED,
        PIPED_INVALID,
        PIPED_BAD_HANDLE,
        PIPED_BAD_BUFFER,
        PIPED_DENIED,
        PIPED_DEADLINE_EXCEEDED,
        PIPED_CANCELLED,
        PIPED_IO,
        PIPED_NO_SPACE,
        PIPED_PEER_LOST,
        PIPED_GONE,
        PIPED_NOT_FOUND,
        PIPED_WOULD_BLOCK,
        PIPED_OUTCOME_UNKNOWN,
        PIPED_CORRUPT,
        PIPED_CLOSED,
        PIPED_TOO_LONG,
        PIPED_NO_EXPORT,
        PIPED_NO_DIRECTORY,
        PIPED_IS_DIRECTORY,
        PIPED_EXISTS,
        PIPED_NOT_DIRECTORY,
        PIPED_NOT_EMPTY,
        PIPED_READ_ONLY,
        PIPED_TOO_LARGE,
        PIPED_NOT_PERMITTED,
        PIPED_LOOP,
        PIPED_CROSS_DEVICE,
        PIPED_NAME_TOO_LONG,
        PIPED_LOCKED,
        PIPED_UNKNOWN,
        PIPED_NULL,
        PIPED_NOT_OURS,
        PIPED_WRONG_KIND,
        PIPED_STALE,
        PIPED_BUSY,
        PIPED_UNDERWAY,
        PIPED_HELD,
        PIPED_LOST,
        PIPED_EXPORTED,
        PIPED_OTHER_QUEUE,
        PIPED_DETACHED_REQUEST,
        PIPED_IDLE,
        PIPED_ARGUMENT,
        PIPED_RANGE,
        PIPED_FULL,
        PIPED_FOREIGN,
        PIPED_HANDLE_LOST,
        PIPED_NO_ROOM,
        PIPED_DISCONNECTED,
        PIPED_BROKEN,
        PIPED_TIMED_OUT,
        PIPED_NOT_RECONNECTING,
        PIPED_SYSTEM,
        PIPED_LIMIT,
        PIPED_INTERNAL,
        PIPED_TABLE_LOST,
        PIPED_NOT_LENT,
        PIPED_TAKEN,
    ];

    /// The meaning of the status, and what to do about it.
    pub(crate) fn text(self) -> &'static std::ffi::CStr {
        match self {
            PIPED_OK => c"done",
            PIPED_UNSUPPORTED => c"that verb, flag or option is not known; compare versions",
            PIPED_INVALID => c"a length or offset of the request is out of the daemon's range",
            PIPED_BAD_HANDLE => c"the daemon has no such handle open; was it closed?",
            PIPED_BAD_BUFFER => {
                c"the buffer does not lie inside the arena, or somebody has cut its memory"
            }
            PIPED_DENIED => {
                c"not opened for this kind of access, or permission denied; \
                   see the export's permissions"
            }
            PIPED_DEADLINE_EXCEEDED => {
                c"the deadline passed; allow more time, or see `pipectl explain last`"
            }
            PIPED_CANCELLED => c"cancelled",
            PIPED_IO => c"input/output error; the daemon's log names the device",
            PIPED_NO_SPACE => {
                c"no space left on the device; free some, what is written so far stays"
            }
            PIPED_PEER_LOST => c"the peer is not reachable; see `pipectl status` for its lanes",
            PIPED_GONE => c"its owner is gone, or access was taken back",
            PIPED_NOT_FOUND => c"no such export, file, region or channel",
            PIPED_WOULD_BLOCK => c"a limit is reached; try again when something completed",
            PIPED_OUTCOME_UNKNOWN => c"it may or may not have happened; look before doing it again",
            PIPED_CORRUPT => {
                c"payload checksum mismatch; do not change a buffer that is being sent"
            }
            PIPED_CLOSED => c"the session is closed; connect again",
            PIPED_TOO_LONG => {
                c"the message is longer than the buffer; receive it into a longer one"
            }
            PIPED_NO_EXPORT => c"no such export, or none for you; see [exports] of that node",
            PIPED_NO_DIRECTORY => c"the directory of the file is not there; make it first",
            PIPED_IS_DIRECTORY => c"it is a directory; name a file in it",
            PIPED_EXISTS => c"something has that name already",
            PIPED_NOT_DIRECTORY => c"it is no directory, or a part of its path is none",
            PIPED_NOT_EMPTY => c"the directory is not empty",
            PIPED_READ_ONLY => c"the file system is read only",
            PIPED_TOO_LARGE => c"larger than the file system or the call allows",
            PIPED_NOT_PERMITTED => {
                c"the file system does not permit it; check its owner and permissions"
            }
            PIPED_LOOP => c"a link in the path leads out of the export, or too far",
            PIPED_CROSS_DEVICE => c"it lies on another mount; open a directory there",
            PIPED_NAME_TOO_LONG => c"a name is too long for the file system",
            PIPED_LOCKED => c"somebody else has locked the range, or a part of it",
            PIPED_UNKNOWN => c"a reason that this library does not know; update the library",
            PIPED_NULL => c"a pointer that must not be NULL is",
            PIPED_NOT_OURS => c"the pointer was not given out by this library",
            PIPED_WRONG_KIND => c"the pointer stands for another kind of object",
            PIPED_STALE => c"the object was freed, or the request's result was taken already",
            PIPED_BUSY => {
                c"another thread is using the object; a queue is for one thread at a time"
            }
            PIPED_UNDERWAY => c"the request is under way; wait for it",
            PIPED_HELD => c"the kernel may still touch the buffer; wait until it is released",
            PIPED_LOST => c"it went with its queue, its daemon or an earlier failure; free it",
            PIPED_EXPORTED => c"the buffer is offered as a region; close the region first",
            PIPED_OTHER_QUEUE => c"the request was submitted to another queue; wait for it there",
            PIPED_DETACHED_REQUEST => c"the request is detached; piped_next gives its result",
            PIPED_IDLE => c"there is nothing to wait for",
            PIPED_ARGUMENT => c"an argument makes no sense",
            PIPED_RANGE => c"a length or offset is not inside the buffer or region",
            PIPED_FULL => {
                c"the queue is full; take some finished requests first, or ask for more depth"
            }
            PIPED_FOREIGN => {
                c"the handle or buffer belongs to another client; open and allocate on this one"
            }
            PIPED_HANDLE_LOST => {
                c"the handle could not be opened again when the client reconnected; open it anew"
            }
            PIPED_NO_ROOM => c"the arena of the new connection has no room for the buffer",
            PIPED_DISCONNECTED => c"the daemon closed the session; connect again, its log says why",
            PIPED_BROKEN => c"what came from the daemon is not of the protocol; connect again",
            PIPED_TIMED_OUT => c"no answer in time; is the daemon or a peer overloaded or stopped?",
            PIPED_NOT_RECONNECTING => {
                c"the client does not reconnect; connect it with reconnect_ns"
            }
            PIPED_SYSTEM => c"the operating system refused",
            PIPED_LIMIT => c"too many objects of that kind; free some",
            PIPED_INTERNAL => c"this library failed inside; free the object, and report it",
            PIPED_TABLE_LOST => c"the table of pieces is of another session; make it anew",
            PIPED_NOT_LENT => c"the memory could not be lent again when the client reconnected",
            PIPED_TAKEN => c"some of the memory is in another buffer; free that first",
        }
    }
}

/// The number's meaning, for messages.
pub(crate) fn of_number(number: i32) -> Option<piped_status> {
    piped_status::ALL.into_iter().find(|status| *status as i32 == number)
}

impl From<Status> for piped_status {
    /// The daemon's reasons have the same numbers here; the test below holds them together.
    fn from(status: Status) -> Self {
        of_number(status as i32).unwrap_or(PIPED_UNKNOWN)
    }
}

/// The error number of Linux that says the same as `status` (ENOENT, ENOSPC ...); 0 of PIPED_OK and
/// where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn piped_status_errno(status: i32) -> std::ffi::c_int {
    let known = u16::try_from(status).ok().and_then(Status::from_u16);
    known.and_then(client_lib::errno_of).unwrap_or(0)
}

impl From<SubmitFault> for piped_status {
    fn from(fault: SubmitFault) -> Self {
        match fault {
            SubmitFault::Full => PIPED_FULL,
            SubmitFault::Disconnected => PIPED_DISCONNECTED,
            SubmitFault::Foreign => PIPED_FOREIGN,
            SubmitFault::HandleLost => PIPED_HANDLE_LOST,
            SubmitFault::NoRoom => PIPED_NO_ROOM,
            SubmitFault::NotLent => PIPED_NOT_LENT,
            SubmitFault::Piece => PIPED_RANGE,
            SubmitFault::TableLost => PIPED_TABLE_LOST,
            SubmitFault::Call => PIPED_INVALID,
        }
    }
}

impl From<Cause> for piped_status {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Status(status) => status.into(),
            Cause::Unknown(_) => PIPED_UNKNOWN,
            Cause::Disconnected => PIPED_DISCONNECTED,
            Cause::Broken => PIPED_BROKEN,
            Cause::NotSubmitted(fault) => fault.into(),
            Cause::OtherQueue => PIPED_OTHER_QUEUE,
            // Of tasks, which C does not have.
            Cause::NoRuntime => PIPED_INTERNAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemons_numbers_are_the_rings() {
        for status in Status::ALL {
            assert_eq!(piped_status::from(status) as i32, status as i32, "{status}");
        }
    }

    #[test]
    fn every_number_has_a_text_of_its_own() {
        let mut texts: Vec<_> = piped_status::ALL.into_iter().map(piped_status::text).collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), piped_status::ALL.len());
        assert!(of_number(44).is_none());
    }

    #[test]
    fn numbers_of_the_kernel_are_those_of_the_daemons_reasons() {
        assert_eq!(piped_status_errno(PIPED_NO_SPACE as i32), 28);
        assert_eq!(piped_status_errno(PIPED_CROSS_DEVICE as i32), 18);
        for status in [PIPED_OK as i32, PIPED_FULL as i32, 44, -1] {
            assert_eq!(piped_status_errno(status), 0);
        }
    }
}
