//! `Call::Stat`: what is known of a file or directory.

use std::os::fd::{AsFd, BorrowedFd};

use piped_core::call::{FileKind, Stat};
use rustix::fs::{AtFlags, FileType, OFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::{Errno, Result};

use super::{place, put};

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::DIOALIGN);

pub(super) fn answer(file: BorrowedFd<'_>, path: &[u8], answer: &mut [u8]) -> Result<usize> {
    if path.is_empty() {
        return put(&of(file)?.to_bytes(), answer);
    }
    let place = place::open(file, path, OFlags::PATH | OFlags::NOFOLLOW)?;
    put(&of(place.as_fd())?.to_bytes(), answer)
}

pub(super) fn answer_at_once(
    file: BorrowedFd<'_>,
    path: &[u8],
    answer: &mut [u8],
) -> Option<Result<usize>> {
    let found = match path {
        [] => of(file),
        _ => place::open_at_once(file, path)?.and_then(|place| of(place.as_fd())),
    };
    Some(found.and_then(|stat| put(&stat.to_bytes(), answer)))
}

/// What is known of something open.
fn of(file: BorrowedFd<'_>) -> Result<Stat> {
    rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, WANTED).map(|facts| from(&facts))
}

/// What is known of a name in a directory, which is not followed. `None` of a mount: it is another
/// directory that lies there.
pub(super) fn of_name(directory: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<Option<Stat>> {
    // A server of a file system that is mounted there is not asked.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let facts = rustix::fs::statx(directory, name, flags, WANTED)?;
    let is_mount = facts.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    Ok((!is_mount).then(|| from(&facts)))
}

fn from(facts: &Statx) -> Stat {
    let told = facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let direct = |align: u32| if told { align } else { 0 };
    Stat {
        kind: kind(FileType::from_raw_mode(facts.stx_mode.into())),
        mode: u32::from(facts.stx_mode) & 0o7777,
        user: facts.stx_uid,
        group: facts.stx_gid,
        links: facts.stx_nlink,
        length: facts.stx_size,
        // Blocks of 512 bytes, whatever the file system's are.
        allocated: facts.stx_blocks.saturating_mul(512),
        inode: facts.stx_ino,
        modified: (facts.stx_mtime.tv_sec, facts.stx_mtime.tv_nsec),
        changed: (facts.stx_ctime.tv_sec, facts.stx_ctime.tv_nsec),
        direct_offset: direct(facts.stx_dio_offset_align),
        direct_memory: direct(facts.stx_dio_mem_align),
    }
}

pub(super) const fn kind(kind: FileType) -> FileKind {
    match kind {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Link,
        _ => FileKind::Other,
    }
}

/// The length of an open file in bytes.
pub(super) fn length(file: BorrowedFd<'_>) -> Result<u64> {
    let facts = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::SIZE)?;
    if facts.stx_mask & StatxFlags::SIZE.bits() == 0 { Err(Errno::IO) } else { Ok(facts.stx_size) }
}
