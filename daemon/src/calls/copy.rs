//! `Call::Copy`: bytes of one file in another, without passing through here where the kernel can.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use piped_core::call::{COPY_BYTES_MAX, Copied, Range};
use rustix::fs::{AtFlags, FallocateFlags, FileType, OFlags, SeekFrom, StatxFlags};
use rustix::io::{Errno, Result};

use super::extents::next;
use super::{SCRATCH_BYTES, end_of, place, put, stat, with_scratch, write_all, zero};

pub(super) fn answer(
    directory: BorrowedFd<'_>,
    (from, to): (&[u8], &[u8]),
    (range, durable): (Range, bool),
    answer: &mut [u8],
) -> Result<usize> {
    let end = end_of(range)?;
    if range.length > COPY_BYTES_MAX {
        return Err(Errno::INVAL);
    }
    let (from, from_is) = regular(directory, from, OFlags::RDONLY)?;
    let (to, to_is) = regular(directory, to, OFlags::WRONLY)?;
    if from_is == to_is {
        return Err(Errno::INVAL);
    }
    let end = end.min(stat::length(from.as_fd())?);
    let mut at = range.offset;
    while at < end {
        let data = next(&from, SeekFrom::Data(at), end)?;
        hole(to.as_fd(), at, data, end)?;
        let wanted = if data < end { next(&from, SeekFrom::Hole(data), end)? } else { end };
        at = copy(&from, &to, data, wanted)?;
        if at < wanted {
            // The file has become shorter.
            break;
        }
    }
    if durable {
        rustix::fs::fdatasync(&to)?;
    }
    put(&Copied(at.saturating_sub(range.offset)).to_bytes(), answer)
}

/// Opens a regular file, and tells which one: its device and inode. What else has the name is not
/// opened, for that alone could wait, or do something.
fn regular(directory: BorrowedFd<'_>, path: &[u8], how: OFlags) -> Result<(OwnedFd, [u64; 3])> {
    let found = place::open(directory, path, OFlags::PATH | OFlags::NOFOLLOW)?;
    let wanted = StatxFlags::TYPE | StatxFlags::INO;
    let facts = rustix::fs::statx(&found, c"", AtFlags::EMPTY_PATH, wanted)?;
    match FileType::from_raw_mode(facts.stx_mode.into()) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(Errno::ISDIR),
        FileType::Symlink => return Err(Errno::LOOP),
        _ => return Err(Errno::OPNOTSUPP),
    }
    let file = place::open_again(found.as_fd(), how)?;
    let device = [facts.stx_dev_major, facts.stx_dev_minor].map(u64::from);
    Ok((file, [device[0], device[1], facts.stx_ino]))
}

/// Where the source has a hole, the destination reads as zeros, and takes no room if it can. `end`:
/// where the copy ends; a hole there makes the destination as long.
fn hole(to: BorrowedFd<'_>, start: u64, until: u64, end: u64) -> Result<()> {
    let length = stat::length(to)?;
    let there = until.min(length);
    if start < there {
        zero::answer(to, Range { offset: start, length: there - start }, true)?;
    }
    match start < until && until == end && length < end {
        // Room for the last byte makes the file as long as that, and never shorter.
        true => match rustix::fs::fallocate(to, FallocateFlags::empty(), end - 1, 1) {
            Err(Errno::OPNOTSUPP) => zero::write(to, Range { offset: end - 1, length: 1 }),
            other => other,
        },
        false => Ok(()),
    }
}

/// Copies bytes, and returns where it has come to: less far where the source ends.
fn copy(from: &OwnedFd, to: &OwnedFd, mut at: u64, end: u64) -> Result<u64> {
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX);
        let (mut source, mut sink) = (at, at);
        match rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut sink), wanted) {
            Ok(0) => break,
            Ok(copied) => at += copied as u64,
            Err(Errno::INTR) => {}
            // Some file systems have no such call, or none for such a file.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV | Errno::INVAL) => {
                return by_hand(from, to, at, end);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(at)
}

fn by_hand(from: &OwnedFd, to: &OwnedFd, mut at: u64, end: u64) -> Result<u64> {
    with_scratch(|bytes| {
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(SCRATCH_BYTES);
            let read = match rustix::io::pread(from, &mut bytes.spare_capacity_mut()[..wanted], at)
            {
                Ok(([], _)) => break,
                Ok((read, _)) => read,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            };
            write_all(to.as_fd(), read, at)?;
            at += read.len() as u64;
        }
        Ok(at)
    })
}
