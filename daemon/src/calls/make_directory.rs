//! `Call::MakeDirectory`: one directory, or all on the way to one.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};

use super::place::{self, Place};

/// Permissions that a new directory can have: no set-user-ID.
const MODES: u32 = 0o1777;

/// What the daemon needs of directories on the way, to make the next one there.
const PASS: Mode = Mode::WUSR.union(Mode::XUSR);

pub(super) fn answer(
    directory: BorrowedFd<'_>,
    path: &[u8],
    mode: u32,
    parents: bool,
) -> Result<()> {
    if mode & !MODES != 0 {
        return Err(Errno::INVAL);
    }
    let mode = Mode::from_raw_mode(mode);
    if parents {
        return all(directory, path, mode);
    }
    let last = path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
    make(directory, &path[..last], mode)
}

/// Makes the directories of a path that are not there yet.
pub(crate) fn all(directory: BorrowedFd<'_>, path: &[u8], mode: Mode) -> Result<()> {
    match place::open(directory, path, OFlags::PATH | OFlags::DIRECTORY) {
        // What is no directory is told from a way that leads through one by making the rest.
        Err(Errno::NOENT | Errno::NOTDIR) => {}
        found => return found.map(drop),
    }
    let is_end = |&at: &usize| at > 0 && path[at - 1] != b'/';
    let slashes = (0..path.len()).filter(|&at| path[at] == b'/');
    for end in slashes.chain([path.len()]).filter(is_end) {
        let part = &path[..end];
        let is_last = path[end..].iter().all(|&byte| byte == b'/');
        // What is there has its name already, whatever that is; and so has `.`.
        match place::open(directory, part, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(_) => continue,
            Err(Errno::NOENT) => {}
            // Something else has the name, or the handle is of a file.
            Err(Errno::NOTDIR) if is_last => {
                return Place::find(directory, part).and(Err(Errno::EXIST));
            }
            Err(error) => return Err(error),
        }
        let mode = if is_last { mode } else { mode | PASS };
        match make(directory, part, mode) {
            // Somebody else may have made it just now.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
    match place::open(directory, path, OFlags::PATH | OFlags::DIRECTORY) {
        Err(Errno::NOTDIR) => Err(Errno::EXIST),
        found => found.map(drop),
    }
}

fn make(directory: BorrowedFd<'_>, path: &[u8], mode: Mode) -> Result<()> {
    let place = Place::find(directory, path)?.for_new()?;
    rustix::fs::mkdirat(place.parent(), place.name(), mode)
}
