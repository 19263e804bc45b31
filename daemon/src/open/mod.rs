//! Opening things for clients and peers: files that were passed, files below exports, regions,
//! channels.
//!
//! ```text
//!   client: passed fds ──► file::inspect ─┐
//!   client, peer: path ──► Exports::open ─┼─► Source ──► shard ──► engine Target
//!   client, peer: name ──► Regions::find ─┤
//!   client, peer: name ──► Channels::find ┘
//! ```
//!
//! Everything here may block in a file system, so it runs on the control thread's blocking pool,
//! never on the control thread itself and never on a shard.

pub mod channel;
pub(crate) mod echo;
pub mod export;
pub mod file;
mod file_system;
pub mod region;

use piped_engine::request::Status;

use self::channel::ChannelSource;
use self::file::OpenedFile;
use self::region::RegionSource;

/// Something opened that a shard can make a handle of.
#[derive(Debug)]
pub enum Source {
    /// A file.
    File(OpenedFile),
    /// A region of a local client.
    Region(RegionSource),
    /// An end of a channel of a local client.
    Channel(ChannelSource),
}

/// Why something was not opened. The text goes to the client; a peer gets the status alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct OpenFault {
    /// The kind of reason.
    pub status: Status,
    /// Cause and fix.
    pub text: String,
}

impl OpenFault {
    /// A fault of a kind, with cause and fix.
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }
}
