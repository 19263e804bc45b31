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
mod owners;
mod reason;
pub mod region;

use piped_core::status::Status;
use piped_ring::handshake::FEATURE_OPEN_REASONS;

use self::channel::ChannelSource;
use self::file::OpenedFile;
pub(crate) use self::reason::Asked;
pub use self::reason::Reason;
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

/// Why something was not opened. The text goes to the client; a peer gets a status alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct OpenFault {
    /// The kind of reason.
    pub status: Status,
    /// What the status leaves open.
    pub reason: Option<Reason>,
    /// Cause and fix.
    pub text: String,
}

impl OpenFault {
    /// A fault of a kind, with cause and fix.
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, reason: None, text: text.into() }
    }

    /// A fault that can be told more exactly.
    pub fn told(reason: Reason, text: impl Into<String>) -> Self {
        Self { status: reason.coarse(), reason: Some(reason), text: text.into() }
    }

    /// What a peer is told of it.
    #[must_use]
    pub fn for_peer(&self) -> Status {
        self.reason.map_or(self.status, Reason::for_peer)
    }

    /// What a client is told of it that has these features.
    #[must_use]
    pub fn for_client(&self, features: u64) -> Status {
        match self.reason {
            Some(reason) if features & FEATURE_OPEN_REASONS != 0 => match reason {
                Reason::NoExport => Status::NoExport,
                Reason::NoDirectory => Status::NoDirectory,
                Reason::IsDirectory => Status::IsDirectory,
            },
            _ => self.status,
        }
    }
}
