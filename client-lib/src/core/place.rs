//! Where a request's memory lies, written into its descriptor.

use std::ops::Range;
use std::sync::Arc;

use piped_core::pieces::Row;
use piped_ring::Descriptor;

use crate::arena::Arena;
use crate::buffer::Buffer;
use crate::error::SubmitFault;
use crate::pieces::Pieces;

/// Writes the place of a buffer, or of the `piece` of it, into a descriptor. Returns where the
/// request's first byte is in the buffer.
pub(super) fn place_buffer(
    arena: &Arc<Arena>,
    descriptor: &mut Descriptor,
    buffer: &Buffer,
    piece: Option<Range<usize>>,
    pieces: Option<&Pieces>,
    parks: bool,
) -> Result<u64, SubmitFault> {
    if !buffer.is_of_client(arena.client()) {
        return Err(SubmitFault::Foreign);
    }
    // A connected queue has buffers brought to its arena before.
    if !parks && !buffer.is_of(arena) {
        return Err(elsewhere(arena, buffer));
    }
    let piece = piece.unwrap_or(0..buffer.len());
    let (segment, offset) = buffer.place();
    descriptor.segment = segment;
    descriptor.buffer_offset = offset + piece.start as u64;
    descriptor.length = piece.len() as u64;
    let room = pieces.map_or(1, Pieces::room);
    let inside = piece.len() as u64 >= room && piece.end <= buffer.len();
    if inside { Ok(piece.start as u64) } else { Err(SubmitFault::Piece) }
}

/// Writes where several buffers lie into their list, and the list's place into a descriptor.
pub(super) fn place_list(
    arena: &Arc<Arena>,
    descriptor: &mut Descriptor,
    list: &mut Buffer,
    pieces: Option<&Pieces>,
) -> Result<u64, SubmitFault> {
    if !list.is_of_client(arena.client()) {
        return Err(SubmitFault::Foreign);
    }
    if !list.is_of(arena) {
        return Err(elsewhere(arena, list));
    }
    let (rows, bytes) = list.write_list(descriptor.offset_a);
    let (segment, offset) = list.place();
    if pieces.is_none() {
        (descriptor.table_segment, descriptor.table_offset) = (segment, offset);
        (descriptor.table_count, descriptor.operand_a) = (1, bytes);
    }
    descriptor.segment = segment;
    descriptor.buffer_offset = offset + Row::BYTES as u64;
    descriptor.length = rows;
    let room = pieces.map_or(1, Pieces::room);
    if bytes >= room { Ok(0) } else { Err(SubmitFault::Piece) }
}

/// Why a buffer that is not of the arena's connection cannot be placed there.
fn elsewhere(arena: &Arc<Arena>, buffer: &Buffer) -> SubmitFault {
    match buffer.is_ahead_of(arena) {
        true => SubmitFault::Disconnected,
        false => SubmitFault::without(buffer),
    }
}
