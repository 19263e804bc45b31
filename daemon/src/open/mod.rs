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

use std::sync::Arc;

use piped_control::channels::ChannelSource;
use piped_ring::Segment;

use self::directory::OpenedDirectory;
use self::file::OpenedFile;

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
