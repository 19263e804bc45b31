//! Regular files, opened by a name that may lead to something else by now.
//!
//! Opening a pipe would wait for its other end, and opening a device may have an effect. So a file
//! is opened without waiting, and then the opened file is checked, not the name.

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
    /// Refuse links, because the name is ours and only others put a link there.
    Refused,
}

/// Opens `path`, which has to be a regular file. The error is the kernel's about the name.
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
    // For a regular file the flag would mean that reads do not wait for the disk.
    let waits = rustix::fs::fcntl_getfl(&file)
        .and_then(|flags| rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK));
    waits.map_err(|error| Fault::Io(error.into()))?;
    Ok((file, metadata))
}

/// Checks that the file is regular.
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

/// Reason why there is no such file.
#[derive(Debug)]
pub(crate) enum Fault {
    Io(io::Error),
    /// The name leads to something else.
    Kind(&'static str),
}

impl Fault {
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }

    /// Failure for the user that named it.
    pub(crate) fn of(self, what: impl std::fmt::Display) -> Failure {
        match self {
            Self::Io(error) => Failure::io(what, &error),
            Self::Kind(kind) => Failure::new(Exit::Refused, format!("{what} is {kind}")),
        }
    }
}
