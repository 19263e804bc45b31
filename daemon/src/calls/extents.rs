//! `Call::Extents`: where a file has data and where holes.
//!
//! The kernel's SEEK_DATA knows of data that is not on the device yet, and takes room that nothing
//! was written to for a hole. What of a hole has room is asked of the file system's own map.

use std::ops::Range as Bytes;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use piped_core::call::{Extent, ExtentKind, Range};
use rustix::fs::{OFlags, SeekFrom};
use rustix::io::{Errno, Result};

use super::{NextRoom, Room, end_of, place, put, stat};

pub(super) fn answer(
    file: BorrowedFd<'_>,
    range: Range,
    answer: &mut [u8],
    next_room: NextRoom,
) -> Result<usize> {
    let end = end_of(range)?.min(stat::length(file)?);
    let mut writer = Writer { answer, length: 0 };
    // Seeking moves the offset of an open file, which may be a client's.
    let Ok(own) = place::open_again(file, OFlags::RDONLY) else {
        // Without rights to it nobody can say more, and it is always true.
        writer.push(range.offset, end, ExtentKind::Data)?;
        return Ok(writer.length);
    };
    let mut at = range.offset;
    while at < end {
        let data = next(&own, SeekFrom::Data(at), end)?;
        if at < data && !hole(&own, at..data, next_room, &mut writer)? {
            break;
        }
        at = if data < end { next(&own, SeekFrom::Hole(data), end)? } else { end };
        if !writer.push(data, at, ExtentKind::Data)? {
            break;
        }
    }
    Ok(writer.length)
}

/// Where data, or a hole, begins; at most the end of the range.
pub(super) fn next(file: &OwnedFd, what: SeekFrom, end: u64) -> Result<u64> {
    match rustix::fs::seek(file, what) {
        Ok(at) => Ok(at.min(end)),
        // Nothing follows.
        Err(Errno::NXIO) => Ok(end),
        Err(error) => Err(error),
    }
}

/// Writes what is known of a hole; `false` if there is no room for all of it.
fn hole(
    file: &OwnedFd,
    Bytes { start: mut at, end }: Bytes<u64>,
    next_room: NextRoom,
    writer: &mut Writer<'_>,
) -> Result<bool> {
    // A file system without a map has told all that it knows.
    while let Ok(Some(room)) = next_room(file.as_fd(), at, end - at) {
        let (bytes, kind) = match room {
            Room::Unwritten(bytes) => (bytes, ExtentKind::Zero),
            // Somebody has written to it by now.
            Room::Written(bytes) => (bytes, ExtentKind::Data),
        };
        let (from, to) = (bytes.start.clamp(at, end), bytes.end.clamp(at, end));
        if !writer.push(at, from, ExtentKind::Hole)? || !writer.push(from, to, kind)? {
            return Ok(false);
        }
        if to == at || to == end {
            at = to;
            break;
        }
        at = to;
    }
    writer.push(at, end, ExtentKind::Hole)
}

/// Extents of an answer.
struct Writer<'a> {
    answer: &'a mut [u8],
    length: usize,
}

impl Writer<'_> {
    /// Adds an extent, unless it is empty; `false` if there is no room for it.
    fn push(&mut self, start: u64, end: u64, kind: ExtentKind) -> Result<bool> {
        if start >= end {
            return Ok(true);
        }
        let extent = Extent { offset: start, length: end - start, kind };
        match put(&extent.to_bytes(), &mut self.answer[self.length..]) {
            Ok(bytes) => self.length += bytes,
            Err(_) if self.length > 0 => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}
