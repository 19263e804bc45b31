//! What a handle stands for, and what is opened.

use piped_core::access::{Access, Alignment, Creation, OpenKind};
use piped_core::ids::{ChannelId, DeviceId, FileId, RegionId, SegmentId, SessionId};

/// A file the driver has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileTarget {
    /// Opened with O_DIRECT, if the file system can.
    pub direct: Option<(FileId, Alignment)>,
    /// Opened through the page cache.
    pub buffered: FileId,
    /// The device the file lies on: the resource of the disk stage.
    pub device: DeviceId,
    /// The file's length when it was opened, in bytes.
    pub length: u64,
    /// What the handle may do.
    pub access: Access,
    /// Whether the file lies on a file system that another program or machine answers for:
    /// operations may never end, and each keeps a thread of the driver busy.
    pub foreign: bool,
    /// Whether the page cache had what a read asks for when it began: then it goes through the
    /// cache. Only the shard sets it, for one request.
    pub cached: bool,
}

impl FileTarget {
    /// The file, whose bytes come through the page cache.
    #[must_use]
    pub const fn by_cache(self) -> Self {
        Self { direct: None, cached: true, ..self }
    }
}

/// A memory region of a local client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionTarget {
    /// The region's id, by which [`Command::RevokeRegion`](super::Command::RevokeRegion) names it.
    pub region: RegionId,
    /// The segment of the exporter's arena that the region lies in.
    pub segment: SegmentId,
    /// Where the region starts in the segment, in bytes.
    pub offset: u64,
    /// The region's length in bytes.
    pub length: u64,
    /// What the handle may do.
    pub access: Access,
    /// The shard that serves the exporter, who is notified there.
    pub home: u16,
}

/// A channel of a local client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelTarget {
    /// The channel, by its number on this node.
    pub channel: ChannelId,
    /// Whether this is the end that receives. Only one handle receives; the channel is no more when
    /// that handle is closed.
    pub receives: bool,
    /// The shard that serves whoever receives.
    pub home: u16,
    /// The session that receives.
    pub owner: SessionId,
}

/// A directory that the driver has open: what calls are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryTarget {
    /// The directory, as the driver has it.
    pub directory: FileId,
    /// The device that it lies on.
    pub device: DeviceId,
    /// What the handle may do: read and list, change files, change names.
    pub access: Access,
    /// Whether it lies on a file system that another program or machine answers for.
    pub foreign: bool,
}

/// What a local handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A file that the driver has open.
    File(FileTarget),
    /// A memory region of a client of this node.
    Region(RegionTarget),
    /// An end of a channel.
    Channel(ChannelTarget),
    /// A directory that the driver has open.
    Directory(DirectoryTarget),
}

/// What to open at a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRequest {
    /// A file below an export, or a region.
    pub kind: OpenKind,
    /// Export or region name.
    pub name: String,
    /// Path below the export, in whatever bytes; empty for a region, and for the export itself.
    pub path: Vec<u8>,
    /// What the handle shall be able to do.
    pub access: Access,
    /// Whether the file is made (write access only).
    pub create: Creation,
}
