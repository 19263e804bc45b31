//! Regions of the second node, and clients of the first that open them.

use piped_client::{Access, Handle, RegionExport};

use crate::failure::{Doing as _, Failure};
use crate::load::{Asker, Place};
use crate::nodes::Pair;
use crate::raw::REGION_BYTES;
use crate::rows::region::{NAME, open_at};

/// Exports a region at B for requests of up to `block` bytes.
pub(crate) fn export(pair: &Pair, access: Access, block: usize) -> Result<RegionExport, Failure> {
    let bytes = REGION_BYTES.max(block);
    let owner = Asker::connect(&pair.b, Place::BesideShard, bytes as u64)?;
    let mut buffer = owner.client.allocate(bytes).doing("allocate")?;
    buffer.as_mut_slice().fill(0x5a);
    owner.client.export_region(NAME, buffer, access).doing("export")
}

/// Connects a client of A, and opens the region.
pub(crate) fn open(
    pair: &Pair,
    place: Place,
    access: Access,
    arena_bytes: usize,
) -> Result<(Asker, Handle), Failure> {
    let asker = Asker::connect(&pair.a, place, arena_bytes as u64)?;
    let handle = open_at(&asker, access)?;
    Ok((asker, handle))
}
