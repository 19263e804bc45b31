//! Memory that a client lends: a file of a tmpfs that the client made.
//!
//! The daemon believes nothing that is said of it. Only memory answers the question for seals, so
//! no other file system is asked anything that could take long.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;

use rustix::fs::{FileType, OFlags, SealFlags};

use crate::guard;
use crate::mapping::{HUGE_PAGE_BYTES, Mapping};
use crate::segment::{SEGMENT_BYTES_MAX, Segment, SegmentFault, is_tmpfs, pieces};
use crate::tenure::{LentKind, Tenure};

/// Maps memory that a client lends, of `bytes` bytes as it says. The descriptor is not kept.
///
/// # Errors
/// See [`SegmentFault`].
pub fn map(fd: impl AsFd, bytes: u64, kind: LentKind) -> Result<Segment, SegmentFault> {
    let fd = fd.as_fd();
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| SegmentFault::NotMemory)?;
    let is_file =
        |stat: &rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let stat = rustix::fs::fstat(fd).map_err(std::io::Error::from)?;
    if !is_file(&stat) || !is_tmpfs(fd)? {
        return Err(SegmentFault::NotMemory);
    }
    let mode = rustix::fs::fcntl_getfl(fd).map_err(std::io::Error::from)? & OFlags::RWMODE;
    if mode != OFlags::RDWR || seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(SegmentFault::ReadOnly);
    }
    if kind == LentKind::Sealed && !seals.contains(SealFlags::SHRINK) {
        return Err(SegmentFault::NotSealed);
    }
    // Sealed memory is at least that long from now on: the seal was seen before.
    let stat = rustix::fs::fstat(fd).map_err(std::io::Error::from)?;
    let length = u64::try_from(stat.st_size).unwrap_or(0);
    if !(1..=SEGMENT_BYTES_MAX).contains(&length) {
        return Err(SegmentFault::Length(length));
    }
    if length != bytes {
        return Err(SegmentFault::OtherLength { said: bytes, is: length });
    }
    let map = Mapping::shared(fd, length)?;
    let tenure = match kind {
        LentKind::Sealed => Tenure::Open,
        LentKind::Loose => {
            let mut here = 0;
            // Between two bytes of this process: the call itself is tried, not the memory.
            guard::copy(&raw const here, &raw mut here, 1).map_err(SegmentFault::Unguarded)?;
            Tenure::Loose { torn: AtomicBool::new(false) }
        }
    };
    Ok(Segment::lasting(map, None, tenure))
}

/// Brings lent memory into huge pages and makes the pages that sealed memory lacks. Loose memory
/// gets a huge page where all of its small ones are there: what its owner has left out stays out.
/// In pieces, each while the value that `turn` gave is held.
pub fn settle<T>(segment: &Segment, mut turn: impl FnMut() -> T) {
    let (map, is_loose) = (segment.mapping(), segment.is_loose());
    for piece in pieces(map.len()) {
        let _turn = turn();
        if piece.len() == HUGE_PAGE_BYTES && (!is_loose || map.is_resident(piece.clone())) {
            if !is_loose {
                // A huge page is made where a small one is.
                let _ = map.populate_part(piece.start..piece.start + 1);
            }
            // What cannot be in huge pages stays in small ones.
            let _ = map.collapse_part(piece.clone());
        }
        if !is_loose {
            // Missing pages would be made on the shard's thread when they are pinned.
            let _ = map.populate_part(piece);
        }
    }
}
