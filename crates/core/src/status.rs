//! How requests and opens end: one list of numbers for the rings of clients, the frames of peers,
//! JSON and C.

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// Why a request or an open did not do all it was asked. Numbers never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "snake_case"))]
#[repr(u16)]
pub enum Status {
    /// Everything was done (for reads: up to the end of the file).
    #[error("ok")]
    Ok = 0,
    /// The verb or a flag is not served by this daemon.
    #[error("this daemon does not serve that verb or flag; compare versions")]
    Unsupported = 1,
    /// A field makes no sense: a length, an offset, a table.
    #[error("a length or offset of the request is out of range")]
    Invalid = 2,
    /// No such handle in this session (or it was closed).
    #[error("no such handle in this session")]
    BadHandle = 3,
    /// The buffer is not inside the arena.
    #[error("the buffer does not lie inside the arena")]
    BadBuffer = 4,
    /// The handle was not opened for that.
    #[error("the handle was not opened for this kind of access, or permission was denied")]
    Denied = 5,
    /// The deadline passed.
    #[error("the deadline passed")]
    DeadlineExceeded = 6,
    /// The client cancelled it.
    #[error("cancelled")]
    Cancelled = 7,
    /// The device failed.
    #[error("input/output error")]
    Io = 8,
    /// No space on the device.
    #[error("no space left on the device")]
    NoSpace = 9,
    /// The peer is not reachable, or was lost and did not come back in time.
    #[error("the peer is not reachable")]
    PeerLost = 10,
    /// The other end of a region or channel is gone.
    #[error("its owner is gone, or access was taken back")]
    Gone = 11,
    /// No such export, file, region or channel.
    #[error("no such export, file, region or channel")]
    NotFound = 12,
    /// A limit is reached; try again when something completed.
    #[error("a limit is reached; try again when something completed")]
    WouldBlock = 13,
    /// It may or may not have happened (only for operations that must not be repeated).
    #[error("the outcome is unknown: a daemon restarted in between")]
    OutcomeUnknown = 14,
    /// A checksum did not match more often than retries allow.
    #[error("payload checksum mismatch")]
    Corrupt = 15,
    /// The session is being closed.
    #[error("the session is closed")]
    Closed = 16,
    /// The message is longer than the buffer; it can still be received.
    #[error("the message is longer than the buffer")]
    TooLong = 17,
    /// No such export, or none for this user or node. As the two below only in answers to opens,
    /// and only for clients that can read it; others are told `NotFound`.
    #[error("no such export, or none for you")]
    NoExport = 18,
    /// The directory is not there in which the file was to be made. Others are told `NotFound`.
    #[error("the directory in which the file was to be made is not there")]
    NoDirectory = 19,
    /// It is a directory, where a file was to be opened. Others are told `Denied`.
    #[error("it is a directory")]
    IsDirectory = 20,
}

impl Status {
    /// All of them, each at the place of its number.
    pub const ALL: [Self; 21] = [
        Self::Ok,
        Self::Unsupported,
        Self::Invalid,
        Self::BadHandle,
        Self::BadBuffer,
        Self::Denied,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::Io,
        Self::NoSpace,
        Self::PeerLost,
        Self::Gone,
        Self::NotFound,
        Self::WouldBlock,
        Self::OutcomeUnknown,
        Self::Corrupt,
        Self::Closed,
        Self::TooLong,
        Self::NoExport,
        Self::NoDirectory,
        Self::IsDirectory,
    ];

    /// How many of them, the first ones, a request can end with. Frames of peers and counts of
    /// requests have these alone; the rest are answers to opens of clients.
    pub const OF_REQUESTS: usize = 18;

    /// The status of a number, `None` if this version does not know it.
    #[must_use]
    pub fn from_u16(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its name, as in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unsupported => "unsupported",
            Self::Invalid => "invalid",
            Self::BadHandle => "bad_handle",
            Self::BadBuffer => "bad_buffer",
            Self::Denied => "denied",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Cancelled => "cancelled",
            Self::Io => "io",
            Self::NoSpace => "no_space",
            Self::PeerLost => "peer_lost",
            Self::Gone => "gone",
            Self::NotFound => "not_found",
            Self::WouldBlock => "would_block",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Corrupt => "corrupt",
            Self::Closed => "closed",
            Self::TooLong => "too_long",
            Self::NoExport => "no_export",
            Self::NoDirectory => "no_directory",
            Self::IsDirectory => "is_directory",
        }
    }
}

const _: () = {
    let mut number = 0;
    while number < Status::ALL.len() {
        assert!(Status::ALL[number] as usize == number);
        number += 1;
    }
};

const _: () = assert!(Status::TooLong as usize + 1 == Status::OF_REQUESTS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_their_own_places() {
        for (number, status) in Status::ALL.iter().enumerate() {
            assert_eq!(*status as usize, number);
            assert_eq!(Status::from_u16(number as u16), Some(*status));
        }
        assert_eq!(Status::from_u16(Status::ALL.len() as u16), None);
    }
}
