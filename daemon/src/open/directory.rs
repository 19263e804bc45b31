//! A directory as it is handed to a shard: what calls are made of.

use std::os::fd::BorrowedFd;

use piped_control::fault::OpenFault;
use piped_core::access::Access;
use piped_core::ids::DeviceId;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::below::{BENEATH, refused};
use super::file::{device_of, io};
use super::file_system::{self, Server};
use crate::calls::place::OPEN_ATTEMPTS;
use crate::closing::{HeldFile, Room};

/// A directory of an export, or below one.
#[derive(Debug)]
pub struct OpenedDirectory {
    /// The directory, opened by its place alone (O_PATH), which needs no right to read it. A ring
    /// takes no such descriptor.
    pub fd: HeldFile,
    /// The device that the directory lies on; its calls stay there.
    pub device: DeviceId,
    /// The kinds of access that it was opened for.
    pub access: Access,
    /// Whether another program or machine decides when calls end.
    pub foreign: bool,
}

impl OpenedDirectory {
    /// Opens a directory below another one, or that one itself (an empty path). Mounts on the way
    /// are crossed, as for files.
    ///
    /// # Errors
    /// It is not there, no directory, or on a file system that does not keep bytes.
    pub(super) fn open(
        directory: BorrowedFd<'_>,
        path: &[u8],
        access: Access,
        room: &mut Room,
    ) -> Result<Self, OpenFault> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let name = if path.is_empty() { b"." } else { path };
        let mut attempts = 0..OPEN_ATTEMPTS;
        let fd = loop {
            match rustix::fs::openat2(directory, name, flags, Mode::empty(), BENEATH) {
                Err(Errno::AGAIN | Errno::INTR) if attempts.next().is_some() => {}
                opened => break opened.map_err(|error| refused("open", path, error))?,
            }
        };
        let facts = rustix::fs::fstat(&fd).map_err(|error| io("fstat", error))?;
        let served = file_system::check(&fd, rustix::fs::major(facts.st_dev))?;
        let foreign = served == Server::Others;
        Ok(Self { fd: room.hold(fd), device: device_of(&facts), access, foreign })
    }
}
