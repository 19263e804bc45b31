//! `Call::Space`: room on the file system.

use std::os::fd::BorrowedFd;

use piped_core::call::Space;
use rustix::io::Result;

use super::put;

pub(super) fn answer(file: BorrowedFd<'_>, answer: &mut [u8]) -> Result<usize> {
    let facts = rustix::fs::fstatvfs(file)?;
    let bytes = |blocks: u64| blocks.saturating_mul(facts.f_frsize);
    let space = Space {
        total: bytes(facts.f_blocks),
        free: bytes(facts.f_bfree),
        available: bytes(facts.f_bavail),
        files: facts.f_files,
        files_free: facts.f_ffree,
    };
    put(&space.to_bytes(), answer)
}
