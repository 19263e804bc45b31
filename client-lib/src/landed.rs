//! What of a request that is under way is in place: a read's bytes are there before its end.

use std::ops::Range;

use crate::core::Core;
use crate::request::RequestId;

/// Contiguous bytes in place from the request's start; 0 for one that is not of this queue.
pub(crate) fn progress(core: &Core, id: RequestId) -> u64 {
    let Some((slot, generation)) = core.names(id) else { return 0 };
    match core.table.progress(slot, generation) {
        Some((_, Some(done))) => done,
        Some((length, None)) => core.ring().progress(slot).min(length),
        None => 0,
    }
}

/// The first bytes beyond the contiguous ones that are in place; empty if there are none.
pub(crate) fn beyond_progress(core: &Core, id: RequestId) -> Range<u64> {
    let progress = progress(core, id);
    let landed = core.names(id).and_then(|(slot, generation)| {
        let (length, done) = core.table.progress(slot, generation)?;
        let landed = core.ring().landed(slot);
        (done.is_none() && landed.end <= length).then_some(landed)
    });
    landed.filter(|it| progress <= it.start && it.start < it.end).unwrap_or(progress..progress)
}

/// Copies the bytes from an offset of the request on that are in place. Returns how many.
pub(crate) fn copy(core: &Core, id: RequestId, offset: u64, to: &mut [u8]) -> usize {
    // In this order: what has landed may become a part of the progress meanwhile.
    let (watermark, landed) = (progress(core, id), beyond_progress(core, id));
    let watermark = if landed.contains(&offset) { landed.end } else { watermark };
    core.names(id).map_or(0, |(slot, generation)| {
        core.table.copy_landed(slot, generation, (offset, watermark), to)
    })
}
