//! The table of pieces that came with a peer's request.

use piped_core::io::Io;
use piped_core::limits::{PART_BYTES, PART_PIECES};
use piped_core::pieces::Row;

use super::super::buffers::TableRun;
use crate::command::RegionTarget;

/// The table of a request, and how far it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Table {
    pub(in crate::shard) place: TableRun,
    rows: u32,
    next: u32,
    /// The row at hand, and bytes of it that are done.
    row: Option<Row>,
    done: u64,
}

impl Table {
    pub(in crate::shard) fn new(place: TableRun, bytes: u32) -> Self {
        Self { place, rows: bytes / Row::WIRE_BYTES as u32, next: 0, row: None, done: 0 }
    }

    fn row(&self, number: u32, io: &mut impl Io) -> Row {
        let mut bytes = [0; Row::WIRE_BYTES];
        let at = number * Row::WIRE_BYTES as u32;
        io.load(self.place.run.span.part(at, Row::WIRE_BYTES as u32), &mut bytes);
        Row::from_wire(&bytes)
    }

    /// Whether all its pieces lie in the region, are as many bytes as was said, and no more than a
    /// turn has time for.
    pub(in crate::shard) fn fits(
        &self,
        region: RegionTarget,
        length: u64,
        io: &mut impl Io,
    ) -> bool {
        let (mut bytes, mut pieces) = (0_u64, 0);
        for number in 0..self.rows {
            let row = self.row(number, io);
            if row.end().is_none_or(|end| end > region.length) {
                return false;
            }
            bytes = bytes.saturating_add(row.bytes());
            pieces += u64::from(row.count);
        }
        bytes == length && bytes <= PART_BYTES.into() && pieces <= PART_PIECES.into()
    }

    /// The next bytes that are one piece in the region: where, and at most how many.
    pub(in crate::shard) fn next(&mut self, most: u32, io: &mut impl Io) -> Option<(u64, u32)> {
        let row = match self.row {
            Some(row) if self.done < row.bytes() => row,
            _ => {
                let number = self.next;
                if number >= self.rows {
                    return None;
                }
                (self.next, self.done) = (number + 1, 0);
                *self.row.insert(self.row(number, io))
            }
        };
        let length = u64::from(row.length);
        let (piece, within) = (self.done / length, self.done % length);
        let bytes = (length - within).min(most.into());
        self.done += bytes;
        Some((row.offset + piece * row.stride + within, bytes as u32))
    }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::SegmentId;
    use piped_sim::{Faults, SimKernel};

    use super::super::super::buffers::TableOf;
    use super::*;

    #[test]
    fn a_table_is_walked_in_any_steps() {
        let rows = [
            Row { offset: 100, stride: 50, at: 0, at_stride: 0, length: 10, count: 3 },
            Row::single(7, 0, 5),
        ];
        let mut kernel = SimKernel::new(1, Faults::none());
        let node = kernel.add_node(16);
        let segment = kernel.add_segment(node, 1 << 20);
        let mut buffers = crate::shard::buffers::Buffers::default();
        buffers.add(segment, 1 << 20);
        let run = buffers.take_run(48).expect("room");
        let mut io = kernel.io(node);
        for (number, row) in rows.into_iter().enumerate() {
            io.store(&row.to_wire(), run.span.part(number as u32 * 24, 24));
        }
        let walk = |most: u32, io: &mut _| {
            let mut table = Table::new(TableRun { run, of: TableOf::Get }, 48);
            let mut seen = Vec::new();
            while let Some((offset, bytes)) = table.next(most, io) {
                seen.extend((0..u64::from(bytes)).map(|byte| offset + byte));
            }
            seen
        };
        let all = walk(u32::MAX, &mut io);
        assert_eq!((all.len(), all[10], all[30]), (35, 150, 7));
        for most in [1, 3, 7, 10] {
            assert_eq!(walk(most, &mut io), all, "{most} at a time");
        }
        let region = |length| RegionTarget {
            region: piped_core::ids::RegionId(1),
            segment: SegmentId(9),
            offset: 0,
            length,
            access: piped_core::access::Access::ALL,
            home: 0,
        };
        let table = Table::new(TableRun { run, of: TableOf::Put }, 48);
        assert!(table.fits(region(210), 35, &mut io));
        assert!(!table.fits(region(209), 35, &mut io), "the last piece ends behind the region");
        assert!(!table.fits(region(210), 34, &mut io) && !table.fits(region(210), 36, &mut io));
    }
}
