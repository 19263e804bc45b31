//! `Call::Rename`: another name, in one step.

use std::os::fd::BorrowedFd;

use piped_core::call::Over;
use rustix::fs::RenameFlags;
use rustix::io::Result;

use super::place::{self, Place};

pub(super) fn answer(
    directory: BorrowedFd<'_>,
    from: &[u8],
    to: &[u8],
    over: Over,
    durable: bool,
) -> Result<()> {
    let (from, to) = (Place::find(directory, from)?, Place::find(directory, to)?);
    // Names that are exchanged are there.
    let to = if over == Over::Exchange { to } else { to.for_new()? };
    // Opened before: what cannot be synced is not renamed.
    let parents = match durable {
        true => Some([from.parent(), to.parent()].map(|it| place::read_directory(it, b""))),
        false => None,
    };
    let parents = match parents {
        Some([old, new]) => Some([old?, new?]),
        None => None,
    };
    let flags = match over {
        Over::Replace => RenameFlags::empty(),
        Over::Keep => RenameFlags::NOREPLACE,
        Over::Exchange => RenameFlags::EXCHANGE,
    };
    rustix::fs::renameat_with(from.parent(), from.name(), to.parent(), to.name(), flags)?;
    // The new name first: in between a crash leaves both rather than none.
    parents.iter().flatten().rev().try_for_each(rustix::fs::fsync)
}
