//! Requests of many pieces: a table of rows in the client's memory, and what must be where
//! afterwards.

use std::ops::Range;

use piped_core::io::Span;
use piped_core::pieces::{BufferRow, Row};
use piped_core::request::{ArenaBuffer, Buffers, Table, Verb};
use piped_core::status::Status;

use super::{Effect, InFlight, World};

/// Rows of a table, pieces of a row, and bytes of a piece.
const ROWS: u64 = 6;
const PIECES: u64 = 20;
const LENGTH: u64 = 6000;

/// A request of many pieces, for its end.
#[derive(Debug, Default)]
pub(super) struct Scattered {
    object: usize,
    crashes: u32,
    rows: Vec<Row>,
    /// What the buffer of a write holds.
    written: Option<Vec<u8>>,
}

impl Scattered {
    /// Each piece: where in the object, and where in the buffer.
    fn pieces(&self) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        self.rows.iter().flat_map(|row| {
            let length = row.length as usize;
            row.pieces().map(move |(offset, at)| {
                let (offset, at) = (offset as usize, at as usize);
                (offset..offset + length, at..at + length)
            })
        })
    }
}

/// A buffer in so many parts, in order; fewer if it has fewer bytes.
fn parts_of(buffer: ArenaBuffer, parts: u64) -> Vec<BufferRow> {
    let parts = parts.min(buffer.length);
    let cut = |part: u64| buffer.length * part / parts;
    let part = |part: u64| BufferRow {
        offset: buffer.offset + cut(part),
        length: cut(part + 1) - cut(part),
        segment: buffer.segment,
        reserved: 0,
    };
    (0..parts).map(part).collect()
}

impl World {
    pub(super) fn prepare_pieces(
        &mut self,
        client: usize,
        number: u64,
        flight: &mut InFlight,
        (object, reads): (usize, bool),
        range: Range<u64>,
    ) {
        let handle = self.handle(client, object);
        let (rows, room) = self.invent_rows(range.clone());
        let buffer = self.take_buffer(client, flight, room, reads);
        let table = self.clients[client].pieces.pop().expect("a call of pieces needs two buffers");
        let (node, segment) = (self.nodes[self.clients[client].node].id, self.arena(client));
        let offset = u64::from(table) * self.piece_bytes();
        for (number, row) in rows.iter().enumerate() {
            let length = Row::BYTES as u32;
            let span = Span { segment, offset: offset + (number * Row::BYTES) as u64, length };
            self.kernel.bytes_mut(node, span).copy_from_slice(&row.to_client());
        }
        // Every third request has its memory in parts, of which the list lies behind the table.
        let parts =
            if number.is_multiple_of(3) { parts_of(buffer, 1 + number % 7) } else { vec![] };
        let list = offset + (rows.len() * Row::BYTES) as u64;
        for (number, part) in parts.iter().enumerate() {
            let length = BufferRow::BYTES as u32;
            let offset = list + (number * BufferRow::BYTES) as u64;
            let span = Span { segment, offset, length };
            self.kernel.bytes_mut(node, span).copy_from_slice(&part.to_client());
        }
        let length = (rows.len() * Row::BYTES + parts.len() * BufferRow::BYTES) as u32;
        let window = self.kernel.open_window(node, Span { segment, offset, length }, false);
        flight.table = Some((table, window));
        let table = Table { segment: 0, offset, rows: rows.len() as u32 };
        let bytes = rows.iter().map(Row::bytes).sum();
        flight.node = Some(self.objects[object].node);
        let buffers = match parts.len() as u32 {
            0 => Buffers::One(buffer),
            rows => Buffers::Several(Table { segment: 0, offset: list, rows }),
        };
        flight.verb = Verb::Vector { handle, reads, buffers, table, bytes };
        flight.length = bytes;
        let written =
            (!reads).then(|| self.kernel.bytes(node, flight.buffer.expect("taken above")).to_vec());
        let expected = &mut self.objects[object].expected;
        let scattered = Scattered { object, crashes: expected.crashes, rows, written };
        if !reads {
            scattered.pieces().for_each(|(there, _)| expected.begin_write(there));
        }
        flight.effect = Effect::Pieces(scattered);
        self.lock(client, number, object, range, !reads);
    }

    /// Rows with pieces of a range, none of which lies over another, and how long a buffer is for
    /// them.
    fn invent_rows(&mut self, range: Range<u64>) -> (Vec<Row>, u64) {
        let most = self.options.longest;
        let (mut rows, mut from, mut room) = (Vec::new(), range.start, 0);
        for _ in 0..1 + self.random.below(ROWS) {
            let from_here = range.end.saturating_sub(from).min(most - room);
            if from_here == 0 {
                break;
            }
            let length = self.random.length(LENGTH).clamp(1, from_here);
            let [stride, at_stride] = [(); 2].map(|()| length + self.random.below(64));
            let fit = (from_here - length) / stride.max(at_stride) + 1;
            let count = (1 + self.random.below(PIECES)).min(fit);
            let row = Row {
                offset: from,
                stride,
                at: room as u32,
                at_stride: at_stride as u32,
                length: length as u32,
                count: count as u32,
            };
            from = row.end().expect("inside") + self.random.below(5000);
            room = row.end_in_buffer();
            rows.push(row);
        }
        // The order of a table is not that of the bytes.
        if self.random.chance(0.5) {
            rows.reverse();
        }
        (rows, room.max(1))
    }

    /// What is known after its end. `buffer`: what the buffer has now.
    pub(super) fn judge_pieces(
        &mut self,
        scattered: &Scattered,
        (status, bytes): (Status, u64),
        buffer: &[u8],
        name: &str,
    ) {
        let expected = &mut self.objects[scattered.object].expected;
        if status != Status::Ok || expected.crashes != scattered.crashes {
            return;
        }
        let all: u64 = scattered.rows.iter().map(Row::bytes).sum();
        assert_eq!(bytes, all, "{name}: all of its pieces");
        for (there, here) in scattered.pieces() {
            match &scattered.written {
                Some(data) => expected.end_write(there.start, &data[here], None, false),
                None => {
                    let wrong = expected.difference(there.start, &buffer[here]);
                    assert!(wrong.is_none(), "{name}: the piece at {}: {wrong:?}", there.start);
                }
            }
        }
        self.tally("moved in pieces", 1);
    }
}
