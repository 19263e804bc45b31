//! Paths below exports: which there can be, how they are resolved, and what is said of them.

use piped_control::fault::OpenFault;
use piped_core::status::Status;
use piped_text::shown_bytes;
use rustix::fs::ResolveFlags;
use rustix::io::Errno;

use crate::calls::place::{self, BadPath};

/// How opens resolve paths: also over mounts, which are the operator's.
pub(super) const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// The path is one that can lie below an export, and is not the export itself.
pub(crate) fn check_path(path: &[u8]) -> Result<(), OpenFault> {
    if path.is_empty() {
        return Err(OpenFault::new(
            Status::Invalid,
            "the path is empty; name a file below the export",
        ));
    }
    check_below(path)
}

/// The path is one that can lie below an export, or is the export itself.
pub(super) fn check_below(path: &[u8]) -> Result<(), OpenFault> {
    place::check(path).map_err(|bad| match bad {
        BadPath::Absolute => {
            OpenFault::denied("the path is absolute; name a file below the export")
        }
        BadPath::Zero => OpenFault::new(Status::Invalid, "the path has a zero byte"),
        BadPath::Parent => OpenFault::denied("the path has `..`; name a file below the export"),
    })
}

/// The word for making a file.
pub(super) const CREATE: &str = "create";
/// The word for making its directories.
pub(super) const CREATE_DIRECTORY: &str = "create the directory of";

/// What the kernel says of a path, with the fix.
pub(super) fn refused(what: &str, path: &[u8], error: Errno) -> OpenFault {
    let path = shown_bytes(path);
    let (status, why) = match (Status::of_errno(error.raw_os_error()), error) {
        // Nothing else that a file is made with can be missing.
        (Status::NotFound, _) if what == CREATE => {
            (Status::NoDirectory, "its directory is not there; make it first")
        }
        (status @ Status::NotFound, _) => (status, "no such file"),
        (status @ Status::NotDirectory, _) => {
            (status, "a part of the path is a file, not a directory")
        }
        // Opens cross mounts, so the kernel speaks of a link that leads out.
        (Status::CrossDevice, _) if what != CREATE_DIRECTORY => {
            (Status::Loop, "a link leads out of the export, or too far")
        }
        (Status::Loop, _) => (Status::Loop, "a link leads out of the export, or too far"),
        (status @ Status::NotPermitted, _) => {
            (status, "the daemon's user may not; check owner and permissions of the file")
        }
        (status @ Status::WouldBlock, Errno::MFILE | Errno::NFILE) => {
            (status, "too many open files; raise LimitNOFILE= of the unit")
        }
        // The verb is served, but not by this kernel.
        (_, Errno::NOSYS) => (Status::Io, "this kernel has no openat2; exports need Linux 5.6"),
        (status @ Status::Io, other) => {
            return OpenFault::new(status, format!("cannot {what} `{path}`: {other}"));
        }
        (status, _) => return OpenFault::new(status, format!("cannot {what} `{path}`: {status}")),
    };
    OpenFault::new(status, format!("cannot {what} `{path}`: {why}"))
}
