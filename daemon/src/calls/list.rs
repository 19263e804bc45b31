//! `Call::List`: names in a directory, from a place on.
//!
//! The directory is opened anew for each answer, so nothing is kept between two of them. The place
//! to go on at is the file system's own (`d_off` of getdents64).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use piped_core::call::{Entries, Entry, EntryWriter, FileKind};
use rustix::fs::{FileType, RawDir, RawDirEntry, SeekFrom};
use rustix::io::{Errno, Result};

use super::{place, stat, with_scratch};

/// What is read of a directory at once, in bytes: what does not fit into the answer is read again.
const READ_BYTES: usize = 32 * 1024;

pub(super) fn answer(
    file: BorrowedFd<'_>,
    path: &[u8],
    cookie: u64,
    stats: bool,
    answer: &mut [u8],
) -> Result<usize> {
    let directory = place::read_directory(file, path)?;
    if cookie != 0 {
        rustix::fs::seek(&directory, SeekFrom::Start(cookie))?;
    }
    with_scratch(|scratch| {
        let room = &mut scratch.spare_capacity_mut()[..READ_BYTES];
        let mut names = RawDir::new(&directory, room);
        let mut writer = EntryWriter::new(answer).ok_or(Errno::MSGSIZE)?;
        let mut next = cookie;
        loop {
            let name = match names.next() {
                None => return Ok(writer.finish(Entries::END)),
                Some(Ok(name)) => name,
                // It comes again, and first, with the next answer.
                Some(Err(_)) if !writer.is_empty() => return Ok(writer.finish(next)),
                Some(Err(error)) => return Err(error),
            };
            if ![&b"."[..], b".."].contains(&name.file_name().to_bytes())
                && !writer.push(entry(&directory, &name, stats))
            {
                return match writer.is_empty() {
                    true => Err(Errno::MSGSIZE),
                    false => Ok(writer.finish(next)),
                };
            }
            next = name.next_entry_cookie();
        }
    })
}

fn entry<'a>(directory: &OwnedFd, name: &'a RawDirEntry<'_>, stats: bool) -> Entry<'a> {
    let known = name.file_type();
    // Some file systems have no kinds in their directories. What is gone again has neither.
    let stat = (stats || known == FileType::Unknown)
        .then(|| stat::of_name(directory.as_fd(), name.file_name()).ok().flatten())
        .flatten();
    let kind = match (known, &stat) {
        (FileType::Unknown, Some(stat)) => stat.kind,
        (FileType::Unknown, None) => FileKind::Other,
        _ => stat::kind(known),
    };
    Entry { name: name.file_name().to_bytes(), kind, stat: stat.filter(|_| stats) }
}
