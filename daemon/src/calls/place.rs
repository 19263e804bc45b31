//! Where paths of calls lead: beneath the directory of a handle, on its mount, or nowhere.
//!
//! The kernel resolves them in one call, so links and directories that others exchange meanwhile
//! lead beneath the directory as well. A call that changes names gets the parent directory and the
//! last name, which it uses as it is: the kernel follows no link there.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::{Errno, Result};

/// Attempts at an open that a rename disturbed.
pub(crate) const OPEN_ATTEMPTS: u32 = 8;

/// How paths are resolved.
const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);

/// The error of a path that cannot lie below a directory. The kernel has it for a descriptor that
/// may not do what is asked, and so it becomes `Denied`.
const OUTSIDE: Errno = Errno::BADF;

/// The reason why a path cannot lie below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadPath {
    /// The path begins at the root.
    Absolute,
    /// The path has a zero byte.
    Zero,
    /// One of its parts is `..`.
    Parent,
}

/// The path is one that can lie below a directory. The kernel would refuse most of the others too;
/// refused here they are refused on every kernel.
pub(crate) fn check(path: &[u8]) -> std::result::Result<(), BadPath> {
    if path.starts_with(b"/") {
        return Err(BadPath::Absolute);
    }
    if path.contains(&0) {
        return Err(BadPath::Zero);
    }
    if path.split(|&byte| byte == b'/').any(|part| part == b"..") {
        return Err(BadPath::Parent);
    }
    Ok(())
}

impl From<BadPath> for Errno {
    fn from(path: BadPath) -> Self {
        match path {
            BadPath::Absolute | BadPath::Parent => OUTSIDE,
            BadPath::Zero => Self::INVAL,
        }
    }
}

/// Opens what a path leads to; an empty path is the directory itself.
pub(super) fn open(directory: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    check(path)?;
    let path = if path.is_empty() { b"." } else { path };
    for _ in 0..OPEN_ATTEMPTS {
        match rustix::fs::openat2(directory, path, flags | OFlags::CLOEXEC, Mode::empty(), BENEATH)
        {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::XDEV) => return Err(leaves(directory, path)),
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens what a path leads to without asking a device or a server; `None` if they must be asked.
pub(super) fn open_at_once(directory: BorrowedFd<'_>, path: &[u8]) -> Option<Result<OwnedFd>> {
    if let Err(bad) = check(path) {
        return Some(Err(bad.into()));
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let cached = BENEATH | ResolveFlags::CACHED;
    match rustix::fs::openat2(directory, path, flags, Mode::empty(), cached) {
        Err(Errno::AGAIN | Errno::INTR | Errno::XDEV | Errno::NOSYS | Errno::INVAL) => None,
        other => Some(other),
    }
}

/// Opens a directory for reading its names, or for syncing them.
pub(super) fn read_directory(directory: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    open(directory, path, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Opens a file once more: with an offset of its own, and with the daemon's rights.
pub(super) fn open_again(file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
}

/// Whether a link leads out, or the path crosses to another mount: the kernel does not tell.
fn leaves(directory: BorrowedFd<'_>, path: &[u8]) -> Errno {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut here: Option<OwnedFd> = None;
    for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        let at = here.as_ref().map_or(directory, AsFd::as_fd);
        match rustix::fs::openat2(at, part, flags, Mode::empty(), BENEATH) {
            Ok(place) if kind_of(&place) == Ok(FileType::Symlink) => return Errno::LOOP,
            Ok(place) => here = Some(place),
            Err(error) => return error,
        }
    }
    // It is another path by now.
    Errno::LOOP
}

fn kind_of(place: &OwnedFd) -> Result<FileType> {
    let facts = rustix::fs::statx(place, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE)?;
    Ok(FileType::from_raw_mode(facts.stx_mode.into()))
}

/// A name in a directory.
#[derive(Debug)]
pub(super) struct Place<'a> {
    parent: OwnedFd,
    name: &'a [u8],
}

impl<'a> Place<'a> {
    /// Resolves the directory of a path.
    ///
    /// # Errors
    /// There is none, or the path ends in no name: with a slash or a dot.
    pub(super) fn find(directory: BorrowedFd<'_>, path: &'a [u8]) -> Result<Self> {
        check(path)?;
        let (parent, name) = split(path);
        if name.is_empty() || name == b"." {
            return Err(Errno::INVAL);
        }
        let parent = open(directory, parent, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Self { parent, name })
    }

    /// The place for something that gets the name: not one that no client could open, or that
    /// commands a terminal.
    ///
    /// # Errors
    /// The name has control characters.
    pub(super) fn for_new(self) -> Result<Self> {
        if piped_text::is_name(self.name) { Ok(self) } else { Err(Errno::INVAL) }
    }

    /// The directory that has the name.
    pub(super) fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    /// The name: one component, neither `.` nor `..`.
    pub(super) const fn name(&self) -> &'a [u8] {
        self.name
    }
}

/// The path of the parent, and the last name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}
