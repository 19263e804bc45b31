//! Opening things for clients and peers: files that were passed, files below exports, regions,
//! channels.
//!
//! ```text
//!   client: passed fds ──► file::inspect ─┐
//!   client, peer: path ──► Exports::open… ┼─► Source ──► shard ──► engine Target
//!   client, peer: name ──► Regions::find ─┤
//!   client, peer: name ──► Channels::find ┘
//! ```
//!
//! Everything here may block in a file system, so it runs on the control thread's blocking pool,
//! never on the control thread itself and never on a shard.

pub(crate) mod below;
pub mod directory;
pub(crate) mod echo;
pub mod export;
pub mod file;
mod file_system;

use std::io;
use std::sync::Arc;

use piped_control::channels::ChannelSource;
use piped_control::fault::OpenFault;
use piped_core::status::Status;
use piped_ring::Segment;

use self::directory::OpenedDirectory;
use self::file::OpenedFile;
use crate::closing::Account;

/// A region of a local client, with its memory.
pub type RegionSource = piped_control::regions::RegionSource<Arc<Segment>>;

/// Something opened that a shard can make a handle of.
#[derive(Debug)]
pub enum Source {
    /// A file of an export or of this machine.
    File(OpenedFile),
    /// A directory of an export.
    Directory(OpenedDirectory),
    /// A region of a local client.
    Region(RegionSource),
    /// An end of a channel of a local client.
    Channel(ChannelSource),
}

impl Source {
    /// Makes what another shard gets of it, with descriptors of its own from an account.
    ///
    /// # Errors
    /// The account has no room for them, or the process may not open more files.
    pub fn again(&self, account: &Arc<Account>) -> Result<Self, OpenFault> {
        let room = |files: u32| account.try_room(files).ok_or_else(no_room);
        Ok(match self {
            Self::File(file) => {
                let mut room = room(1 + u32::from(file.direct.is_some()))?;
                Self::File(file.again(&mut room).map_err(|error| again_fault(&error))?)
            }
            Self::Directory(directory) => {
                let fd = directory.fd.again(&mut room(1)?).map_err(|error| again_fault(&error))?;
                Self::Directory(OpenedDirectory { fd, ..*directory })
            }
            Self::Region(region) => Self::Region(region.clone()),
            Self::Channel(channel) => Self::Channel(*channel),
        })
    }
}

/// The fault of an open for which the account of a session has no room.
pub(crate) fn no_room() -> OpenFault {
    let text = "as many files of this session are open or not closed yet as may be; close some";
    OpenFault::new(Status::WouldBlock, text)
}

fn again_fault(error: &io::Error) -> OpenFault {
    OpenFault::new(Status::WouldBlock, format!("the daemon cannot open the file again: {error}"))
}
