//! Parts of a vectored request that travel under one frame: the pieces of a region of a peer, and
//! short buffers of a range of its file.

use piped_core::io::{Io, Span};
use piped_core::limits::{PART_BYTES, PART_PIECES, PART_ROWS};
use piped_core::pieces::Row;
use piped_core::status::Status;

use crate::shard::Shard;
use crate::shard::arena::Memory;
use crate::shard::buffers::{Run, footprint_of};
use crate::shard::clients::Place;
use crate::shard::driver::Direction;
use crate::shard::keys::TransferKey;
use crate::shard::requests::{Body, Order, Part, RemoteBody, RemoteOp};
use crate::shard::sched::Work;

/// Bytes of a row in a part's table: what the peer gets, and behind all of these where it lies in
/// the buffer.
const HERE_BYTES: usize = 16;

/// Shorter pieces of a peer's file are joined, if they go to several buffers: a copy of fewer bytes
/// costs less than a request of its own.
const JOINED_BYTES: u32 = 64 * 1024;

impl Shard {
    /// Whether the next piece goes to a short buffer of several, so that it is joined with those
    /// behind it.
    pub(in crate::shard) fn begins_short<I: Io>(&mut self, key: TransferKey, io: &mut I) -> bool {
        let several = self.vector_mut(key).is_some_and(|it| it.buffers().are_several());
        let Some(Ok(row)) = several.then(|| self.next_row(key, io)).flatten() else { return false };
        if let Some(vector) = self.vector_mut(key) {
            vector.put_back(row);
        }
        row.length < JOINED_BYTES
    }

    /// Starts the next pieces of a peer's region, or of a range of its file, as one transfer.
    /// `Ok(false)`: there is no room for it.
    pub(in crate::shard) fn start_packed<I: Io>(
        &mut self,
        key: TransferKey,
        index: usize,
        io: &mut I,
    ) -> Result<bool, Status> {
        let Some(transfer) = self.transfers.get(key) else { return Ok(true) };
        let (session, length) = (transfer.session, transfer.length);
        let Body::Vector(vector) = transfer.body else { return Ok(true) };
        let vector = &self.bodies[vector];
        let (direction, order) = (vector.direction(), vector.order());
        let Place::Remote(peer, handle) = vector.end() else { return Ok(true) };
        let start = vector.taken();
        let most = (length - start).min(PART_BYTES.into()) as u32;
        let table_bytes = PART_ROWS * (Row::WIRE_BYTES + HERE_BYTES) as u32;
        let wanted = footprint_of(table_bytes) + footprint_of(most.max(1));
        let room = self.transfers.room() > 0
            && self.may_copy(key, wanted)
            && self.may_stage_copy(session, wanted);
        let Some(table) = room.then(|| self.cx.buffers.take_run(table_bytes)).flatten() else {
            return Ok(false);
        };
        let Some(data) = self.cx.buffers.take_run(most.max(1)) else {
            self.cx.buffers.give_back(table);
            return Ok(false);
        };
        self.cx.sched.give(Work::Transfer(key));
        let filled = self.fill_table(key, table, order, io);
        let Filled { rows, bytes, offset, first, in_order } = match filled {
            Ok(filled) if filled.bytes > 0 => filled,
            other => {
                self.cx.buffers.give_back(table);
                self.cx.buffers.give_back(data);
                return other.map(|_| true);
            }
        };
        let data = if in_order {
            self.cx.buffers.give_back(data);
            None
        } else {
            Some(data)
        };
        self.note_copy_staging(session, table, true);
        if let Some(data) = data {
            self.note_copy_staging(session, data, true);
        }
        let part = Part::new(start, bytes).packed(table, rows, data);
        if direction == Direction::Write {
            self.move_part(key, part, bytes.into(), io);
        }
        let op = match direction {
            Direction::Read => RemoteOp::Read,
            Direction::Write => RemoteOp::Write { durable: false },
        };
        let packed = match data {
            Some(data) => data.memory(),
            None => first,
        };
        let (offset, enclosed) = match order {
            Order::Packed => (0, Some(table.span.part(0, rows * Row::WIRE_BYTES as u32))),
            Order::Single | Order::Placed => (offset, None),
        };
        let body = RemoteBody::new(peer, handle, op, offset, packed);
        let body = Body::Remote(RemoteBody { enclosed, ..body });
        Ok(self.start_part(key, index, part, (body, None, None), io))
    }

    /// Takes rows into a part's table, as many as a part has. Those that are joined are short, and
    /// lie one behind the other in the file.
    fn fill_table<I: Io>(
        &mut self,
        key: TransferKey,
        table: Run,
        order: Order,
        io: &mut I,
    ) -> Result<Filled, Status> {
        let mut filled =
            Filled { rows: 0, bytes: 0, offset: 0, first: Memory::NONE, in_order: true };
        let mut pieces = 0;
        while filled.rows < PART_ROWS && filled.bytes < PART_BYTES && pieces < PART_PIECES {
            let Some(row) = self.next_row(key, io).transpose()? else { break };
            let Some(vector) = self.vector_mut(key) else { break };
            if filled.rows == 0 {
                filled.offset = row.offset;
            }
            let joins =
                row.length < JOINED_BYTES && row.offset == filled.offset + u64::from(filled.bytes);
            let most = match order {
                Order::Packed => PART_PIECES - pieces,
                Order::Single | Order::Placed if joins => 1,
                Order::Single | Order::Placed => {
                    vector.put_back(row);
                    break;
                }
            };
            let (row, rest) = row.cut(PART_BYTES - filled.bytes, most);
            vector.take(row, rest);
            let (memory, _) = vector.buffers().at(row.at.into());
            if filled.rows == 0 {
                filled.first = memory;
            }
            let behind = memory == filled.first.skip(filled.bytes.into());
            filled.in_order &= behind && (row.count == 1 || row.at_stride == row.length);
            let at = filled.rows * Row::WIRE_BYTES as u32;
            io.store(&row.to_wire(), table.span.part(at, Row::WIRE_BYTES as u32));
            io.store(&here(row), here_span(table, filled.rows));
            filled.rows += 1;
            pieces += row.count;
            filled.bytes += row.bytes() as u32;
        }
        Ok(filled)
    }

    /// Copies the first `bytes` of a part between the client's memory and where they lie packed.
    pub(in crate::shard) fn move_part<I: Io>(
        &mut self,
        key: TransferKey,
        part: Part,
        bytes: u64,
        io: &mut I,
    ) {
        let Some((table, rows, data)) = part.packed_in() else { return };
        let Some(vector) = self.vector_mut(key) else { return };
        let mut packed = 0;
        for number in 0..rows {
            let mut row = [0; HERE_BYTES];
            io.load(here_span(table, number), &mut row);
            let row = from_here(&row);
            for (_, at) in row.pieces() {
                // The source may have had less; what is behind that was never filled.
                let left = bytes.saturating_sub(packed.into());
                let length = left.min(row.length.into()) as u32;
                let here = vector.buffers().span(at.into(), length);
                let there = data.span.part(packed, length);
                match vector.direction() {
                    Direction::Read => io.copy(there, here),
                    Direction::Write => io.copy(here, there),
                }
                packed += row.length;
            }
        }
    }
}

/// What a part's table became.
#[derive(Debug, Clone, Copy)]
struct Filled {
    rows: u32,
    bytes: u32,
    /// Where the first piece lies in the file or region.
    offset: u64,
    /// Where the first piece lies in the client's memory.
    first: Memory,
    /// All others lie behind it.
    in_order: bool,
}

/// Where a part's table says where a row lies in the buffer.
fn here_span(table: Run, number: u32) -> Span {
    let at = PART_ROWS * Row::WIRE_BYTES as u32 + number * HERE_BYTES as u32;
    table.span.part(at, HERE_BYTES as u32)
}

fn here(row: Row) -> [u8; HERE_BYTES] {
    let mut bytes = [0; HERE_BYTES];
    let values = [row.at, row.at_stride, row.length, row.count];
    for (place, value) in bytes.chunks_exact_mut(4).zip(values) {
        place.copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

fn from_here(bytes: &[u8; HERE_BYTES]) -> Row {
    let mut values = [0; 4];
    for (value, place) in values.iter_mut().zip(bytes.chunks_exact(4)) {
        *value = u32::from_ne_bytes(place.try_into().expect("4 bytes"));
    }
    let [at, at_stride, length, count] = values;
    Row { offset: 0, stride: 0, at, at_stride, length, count }
}
