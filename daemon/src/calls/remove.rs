//! `Call::Remove`: a name goes, and the file with it if it was the last one.

use std::os::fd::BorrowedFd;

use piped_core::call::Removed;
use rustix::fs::AtFlags;
use rustix::io::{Errno, Result};

use super::place::Place;

pub(super) fn answer(directory: BorrowedFd<'_>, path: &[u8], kind: Removed) -> Result<()> {
    let place = Place::find(directory, path)?;
    let unlink = |flags| rustix::fs::unlinkat(place.parent(), place.name(), flags);
    match kind {
        Removed::File => unlink(AtFlags::empty()),
        Removed::Directory => unlink(AtFlags::REMOVEDIR),
        Removed::Any => match unlink(AtFlags::empty()) {
            // The two words of file systems for a directory; the second one has other meanings.
            Err(error @ (Errno::ISDIR | Errno::PERM)) => match unlink(AtFlags::REMOVEDIR) {
                Err(Errno::NOTDIR) => Err(error),
                other => other,
            },
            other => other,
        },
    }
}
