//! How requests and opens end: one list of numbers for the rings of clients, the frames of peers,
//! JSON and C.

mod errno;

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
    /// This daemon does not serve the verb or a flag.
    #[error("this daemon does not serve that verb or flag; compare versions")]
    Unsupported = 1,
    /// A field makes no sense: a length, an offset, a table.
    #[error("a length or offset of the request is out of range")]
    Invalid = 2,
    /// No such handle in this session (or it was closed).
    #[error("no such handle in this session")]
    BadHandle = 3,
    /// The buffer does not lie inside the arena, or the memory that was lent for it has vanished.
    #[error("the buffer does not lie inside the arena, or somebody has cut its memory")]
    BadBuffer = 4,
    /// The handle, or the export, does not allow this kind of access.
    #[error("the handle was not opened for this kind of access, or permission was denied")]
    Denied = 5,
    /// The request's deadline passed before it was done.
    #[error("the deadline passed")]
    DeadlineExceeded = 6,
    /// The client cancelled the request.
    #[error("cancelled")]
    Cancelled = 7,
    /// The device reported an error.
    #[error("input/output error")]
    Io = 8,
    /// No space on the device.
    #[error("no space left on the device")]
    NoSpace = 9,
    /// The peer is not reachable, or was lost and did not come back in time.
    #[error("the peer is not reachable")]
    PeerLost = 10,
    /// The owner of a region or channel is gone, or access was taken back.
    #[error("its owner is gone, or access was taken back")]
    Gone = 11,
    /// No such export, file, region or channel.
    #[error("no such export, file, region or channel")]
    NotFound = 12,
    /// A limit is reached; try again when something completed.
    #[error("a limit is reached; try again when something completed")]
    WouldBlock = 13,
    /// The operation may or may not have happened; only operations that must not be repeated end
    /// so.
    #[error("the outcome is unknown: a daemon restarted in between")]
    OutcomeUnknown = 14,
    /// Payloads did not match their checksums more often than the retries allow.
    #[error("payload checksum mismatch")]
    Corrupt = 15,
    /// The session is being closed.
    #[error("the session is closed")]
    Closed = 16,
    /// The message is longer than the buffer and can still be received; or there is no room for an
    /// answer.
    #[error("the message is longer than the buffer")]
    TooLong = 17,
    /// No such export, or none for this user or node.
    #[error("no such export, or none for you")]
    NoExport = 18,
    /// The directory for the new file does not exist. Who may not read the export is told
    /// `NotFound`.
    #[error("the directory in which the file was to be made is not there")]
    NoDirectory = 19,
    /// A directory is there, where a file is needed. Who may not read the export is told `Denied`.
    #[error("it is a directory")]
    IsDirectory = 20,
    /// Something has that name already.
    #[error("something has that name already")]
    Exists = 21,
    /// No directory is there, or a part of the path is none. Who may not read the export is told
    /// `NotFound`.
    #[error("it is no directory, or a part of its path is none")]
    NotDirectory = 22,
    /// The directory has names in it.
    #[error("the directory is not empty")]
    NotEmpty = 23,
    /// The file system can only be read.
    #[error("the file system is read only")]
    ReadOnly = 24,
    /// The file would be larger, or have more names, than its file system or the call allows.
    #[error("larger than the file system or the call allows")]
    TooLarge = 25,
    /// The file system does not permit it to the user of the daemon that serves it.
    #[error("the file system does not permit it to the daemon's user")]
    NotPermitted = 26,
    /// A link in the path leads out of the export, or there are too many. Who may not read the
    /// export is told `Denied`.
    #[error("a link in the path leads out of the export, or too far")]
    Loop = 27,
    /// The two names, or the path and its directory, lie on different mounts. Who may not read the
    /// export is told `Denied`.
    #[error("it lies on another mount; open a directory there")]
    CrossDevice = 28,
    /// A name is longer than the file system can have.
    #[error("a name is too long for the file system")]
    NameTooLong = 29,
    /// Another handle, or a program on that node, has locked the range or a part of it.
    #[error("somebody else has locked the range, or a part of it")]
    Locked = 30,
}

impl Status {
    /// All statuses, each at the index of its number.
    pub const ALL: [Self; 31] = [
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
        Self::Exists,
        Self::NotDirectory,
        Self::NotEmpty,
        Self::ReadOnly,
        Self::TooLarge,
        Self::NotPermitted,
        Self::Loop,
        Self::CrossDevice,
        Self::NameTooLong,
        Self::Locked,
    ];

    /// The status of a number, `None` if this version does not know it.
    #[must_use]
    pub fn from_u16(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// What an error number of the kernel's means; `Io` without a better word.
    #[must_use]
    pub fn of_errno(errno: i32) -> Self {
        errno::status_of(errno)
    }

    /// The error number that says the same to a program; `None` if it went well.
    #[must_use]
    pub fn errno(self) -> Option<i32> {
        errno::errno_of(self)
    }

    /// The status as it is told to who may not read what a path leads through: without what lies
    /// there.
    #[must_use]
    pub const fn for_who_may_not_read(self) -> Self {
        match self {
            Self::NoDirectory | Self::NotDirectory => Self::NotFound,
            Self::IsDirectory | Self::Loop | Self::CrossDevice => Self::Denied,
            other => other,
        }
    }

    /// The status as JSON and metrics name it.
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
            Self::Exists => "exists",
            Self::NotDirectory => "not_directory",
            Self::NotEmpty => "not_empty",
            Self::ReadOnly => "read_only",
            Self::TooLarge => "too_large",
            Self::NotPermitted => "not_permitted",
            Self::Loop => "loop",
            Self::CrossDevice => "cross_device",
            Self::NameTooLong => "name_too_long",
            Self::Locked => "locked",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_read_learns_nothing_of_what_a_path_leads_through() {
        let told = Status::ALL.map(Status::for_who_may_not_read);
        let of = |status: Status| told[status as usize];
        assert_eq!([Status::NoDirectory, Status::NotDirectory].map(of), [Status::NotFound; 2]);
        let ways = [Status::IsDirectory, Status::Loop, Status::CrossDevice];
        assert_eq!(ways.map(of), [Status::Denied; 3]);
        let changed = Status::ALL.iter().zip(told).filter(|(status, told)| **status != *told);
        assert_eq!(changed.count(), 5, "all others are themselves");
    }

    #[test]
    fn numbers_are_their_own_places() {
        for (number, status) in Status::ALL.iter().enumerate() {
            assert_eq!(*status as usize, number);
            assert_eq!(Status::from_u16(number as u16), Some(*status));
        }
        assert_eq!(Status::from_u16(Status::ALL.len() as u16), None);
    }
}
