//! Regular files, opened by a name that others may have put something else under.
//!
//! To open a pipe is to wait for its other end, and to open a device may have an effect by itself. So a file is opened
//! without waiting, and what was opened is looked at, not what the name led to before.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

use crate::failure::{Exit, Failure};

/// Whether a link at the end of the path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    Followed,
    /// The name is ours: whoever put a link there is somebody else.
    Refused,
}

/// Opens `path`, which is to be a regular file. The error is what the kernel says of the name.
pub(crate) fn open(
    path: &Path,
    options: &OpenOptions,
    links: Links,
) -> Result<(File, Metadata), Fault> {
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    flags.set(OFlags::NOFOLLOW, links == Links::Refused);
    let file = options.clone().custom_flags(flags.bits().cast_signed()).open(path);
    let file = file.map_err(|error| match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::LOOP) if links == Links::Refused => {
            Fault::Kind("a link, which is not followed here")
        }
        // A socket, or a pipe without a reader.
        Some(rustix::io::Errno::NXIO) => Fault::Kind(OTHER),
        _ => Fault::Io(error),
    })?;
    let metadata = file.metadata().map_err(Fault::Io)?;
    check(&metadata)?;
    // Of a regular file it would mean that reads do not wait for the disk.
    let waits = rustix::fs::fcntl_getfl(&file)
        .and_then(|flags| rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK));
    waits.map_err(|error| Fault::Io(error.into()))?;
    Ok((file, metadata))
}

/// Whether that is a regular file.
pub(crate) fn check(metadata: &Metadata) -> Result<(), Fault> {
    let kind = metadata.file_type();
    Err(Fault::Kind(match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "a directory; name a file (directories are not copied)",
        kind if kind.is_fifo() => "a pipe; only regular files are taken",
        kind if kind.is_block_device() || kind.is_char_device() => {
            "a device; only regular files are taken"
        }
        _ => OTHER,
    }))
}

const OTHER: &str = "no regular file, which is all that is taken";

/// Why there is no such file.
#[derive(Debug)]
pub(crate) enum Fault {
    Io(io::Error),
    /// It is something else.
    Kind(&'static str),
}

impl Fault {
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }

    /// For the user that named it.
    pub(crate) fn of(self, what: impl std::fmt::Display) -> Failure {
        match self {
            Self::Io(error) => Failure::io(what, &error),
            Self::Kind(kind) => Failure::new(Exit::Refused, format!("{what} is {kind}")),
        }
    }
}
