//! `Call::Link`: one more name of a file.

use std::os::fd::BorrowedFd;

use rustix::fs::AtFlags;
use rustix::io::Result;

use super::place::Place;

pub(super) fn answer(directory: BorrowedFd<'_>, from: &[u8], to: &[u8]) -> Result<()> {
    let (from, to) = (Place::find(directory, from)?, Place::find(directory, to)?.for_new()?);
    // Without AT_SYMLINK_FOLLOW the name of a link is one more name of the link.
    rustix::fs::linkat(from.parent(), from.name(), to.parent(), to.name(), AtFlags::empty())
}
