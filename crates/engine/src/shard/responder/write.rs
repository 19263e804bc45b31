//! Into which fragments a peer's write is cut at the device.

use piped_core::limits::FRAGMENT_BYTES_MAX;
use piped_core::sizes::Sizes;
use piped_planner::planned::level_end;

use super::super::buffers::Blocks;
use super::{Serve, ServeOp};

/// The fragments of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Sink {
    /// Sizes of the write's fragments at the device.
    pub(in crate::shard) sizes: Sizes,
    /// The longest frame that carries them, in bytes.
    pub(in crate::shard) frame: u32,
}

impl Serve {
    /// Where the fragment ends that byte `at` of a write belongs to.
    pub(in crate::shard) fn sink_end(&self, at: u64) -> u64 {
        match self.op {
            ServeOp::Write { sink, .. } => level_end(&sink.sizes, self.offset, at, self.length)
                .min(at.saturating_add(FRAGMENT_BYTES_MAX.into())),
            _ => self.length,
        }
    }

    /// What has landed of a fragment is one from now on. Whether there was any.
    pub(in crate::shard) fn close_fragment(&self, blocks: &mut Blocks) -> bool {
        let next = self.next;
        match blocks.last_mut() {
            Some(block) if block.start < next && next < block.end => {
                block.end = next;
                true
            }
            _ => false,
        }
    }
}
