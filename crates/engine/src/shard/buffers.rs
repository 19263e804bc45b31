//! The shard's own buffers, and who has how much of them.

use piped_core::ids::SegmentId;

use super::staging::Staging;

/// Staging, and the parts of it that are counted for their users.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    pub(super) staging: Staging,
    /// The bound of staging, in bytes; none until it is set, and then what was added counts.
    pub(super) staging_limit: Option<u64>,
    /// Segments of staging whose last use is over.
    pub(super) drained: Vec<SegmentId>,
    /// Scratches that had to move since start.
    pub(super) scratches_moved: u64,
    /// Staging that copies use.
    pub(super) copy_bytes: u64,
    /// Staging that tables of peers' requests use: of gets and of puts.
    pub(super) tables: [u64; 2],
}
