//! Pieces of a region for a peer: a table of them comes with its request, and they travel one
//! behind the other.
//!
//! A get is gathered into a block of staging, from where frames leave as those of a file do; of a
//! put the bytes land in staging and are scattered as they come. A table is short and its request
//! is, too, so that a turn does a bounded amount; all tables together may have a part of staging
//! only, because a request that has its table waits for room for its bytes.

use piped_core::io::{Io, Span};
use piped_core::limits::{PART_BYTES, PART_PIECES};
use piped_core::pieces::Row;
use piped_core::status::Status;
use piped_wire::{Frame, Message};

use super::Shard;
use super::buffers::{Block, TableOf, TableRun, footprint_of, run_bytes};
use super::connections::{Destination, LaneState, PeerLane, Serving, Target as Landing};
use super::keys::{LinkKey, ServeKey};
use super::links::Staged;
use super::responder::Serve;
use super::sched::Work;
use crate::command::{RegionTarget, Target};

/// The table of a request, and how far it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) place: TableRun,
    rows: u32,
    next: u32,
    /// The row at hand, and bytes of it that are done.
    row: Option<Row>,
    done: u64,
}

impl Table {
    pub(super) fn new(place: TableRun, bytes: u32) -> Self {
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
    fn fits(&self, region: RegionTarget, length: u64, io: &mut impl Io) -> bool {
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
    fn next(&mut self, most: u32, io: &mut impl Io) -> Option<(u64, u32)> {
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

impl Shard {
    /// Memory for a table that comes with a request, if there is room for it.
    pub(super) fn stage_table(
        &mut self,
        link: LinkKey,
        bytes: u32,
        of: TableOf,
    ) -> Option<TableRun> {
        let own = self.links.get_mut(link)?.tables(of);
        let table = self.cx.buffers.take_table(bytes, of, (*own, self.cx.limits.peer.staging))?;
        *own += table.run.footprint();
        Some(table)
    }

    pub(super) fn free_table(&mut self, link: LinkKey, table: TableRun) {
        if let Some(link) = self.links.get_mut(link) {
            *link.tables(table.of) -= table.run.footprint();
        }
        self.cx.buffers.free_table(table, &mut self.cx.sched);
    }

    /// Where the table of a request goes. One for which nothing can be done is not taken in; a put
    /// that finds no room is refused, for its bytes are behind it.
    pub(super) fn destination_of_table(
        &mut self,
        PeerLane { lane, link }: PeerLane,
        frame: Frame,
    ) -> Destination {
        let Some(lane) = self.lanes.get(lane) else { return Destination::Discard };
        if lane.state != LaneState::Up || !lane.serving().is_some_and(Serving::has_room) {
            return Destination::Discard;
        }
        let of = match frame.message {
            Message::Write { .. } => TableOf::Put,
            _ => TableOf::Get,
        };
        match (self.stage_table(link, frame.payload, of), of) {
            (Some(table), _) => Destination::Land(Landing::Table(table), table.run.span),
            (None, TableOf::Get) => Destination::Wait,
            (None, TableOf::Put) => Destination::Discard,
        }
    }

    /// A request's table is here: whether it may be served.
    pub(super) fn check_table<I: Io>(&mut self, key: ServeKey, io: &mut I) {
        let Some(serve) = self.serves.get(key) else { return };
        let (Target::Region(region), Some(table)) = (serve.target, serve.table) else {
            return self.end_serve(key, Status::Invalid);
        };
        if serve.offset != 0 || !table.fits(region, serve.length, io) {
            self.end_serve(key, Status::Invalid);
        }
    }

    /// A get of pieces.
    pub(super) fn serve_gathered<I: Io>(
        &mut self,
        key: ServeKey,
        region: RegionTarget,
        io: &mut I,
    ) {
        let Some(planned) = self.plan_serve(key, None) else { return };
        let over = |it: &Serve| it.done == it.length && it.frames == 0 && it.lent == 0;
        if self.serves.get(key).is_some_and(over) {
            // Resumed with everything in place: only the end was lost.
            self.end_serve(key, Status::Ok);
            return self.wind_up(key, io);
        }
        if !self.gather(key, region, io) {
            return self.cx.sched.starve(Work::Serve(key));
        }
        self.send_frames_of(key, &planned, io);
    }

    /// Has the pieces one behind the other in staging. `false`: there is no room for them.
    fn gather<I: Io>(&mut self, key: ServeKey, region: RegionTarget, io: &mut I) -> bool {
        let Some(serve) = self.serves.get(key).filter(|serve| serve.next < serve.length) else {
            return true;
        };
        let (Some(mut table), link, lane, length) =
            (serve.table, serve.link, serve.lane, serve.length)
        else {
            return true;
        };
        // Asked again, it is told from the start: what has landed there, the other side leaves out.
        let bytes = run_bytes(0, length);
        let staged = self.may_stage_read(PeerLane { lane, link }, footprint_of(bytes));
        let Some(run) = staged.then(|| self.cx.buffers.take_run(bytes)).flatten() else {
            return false;
        };
        self.links.stage(link, Staged::Reads, run.footprint());
        let block = Block::new(run, 0, 0, length);
        let mut packed = 0;
        while let Some((offset, bytes)) = table.next(u32::MAX, io) {
            let to = block.span(packed, packed + u64::from(bytes));
            io.copy(piece_of(region, offset, bytes), to);
            packed += u64::from(bytes);
        }
        if let Some((serve, blocks)) = self.serves.with_blocks(key) {
            blocks.push(block);
            serve.note_gathered(blocks.beyond());
        }
        true
    }

    /// Brings what has landed of a put of pieces to its places.
    pub(super) fn scatter<I: Io>(&mut self, key: ServeKey, region: RegionTarget, io: &mut I) {
        while let Some((serve, blocks)) = self.serves.with_blocks(key)
            && let Some(mut table) = serve.table
        {
            let (start, landed) = (serve.begun, serve.ready);
            let Some(block) = blocks.at(start) else { return };
            let end = landed.min(block.end);
            if end <= start {
                return;
            }
            let mut done = start;
            while done < end
                && let Some((offset, bytes)) = table.next((end - done) as u32, io)
            {
                let from = block.span(done, done + u64::from(bytes));
                io.copy(from, piece_of(region, offset, bytes));
                done += u64::from(bytes);
            }
            serve.table = Some(table);
            serve.begun = end;
            serve.land(blocks.beyond(), start, (end - start) as u32);
            let lane = serve.lane;
            while let Some(block) =
                self.serves.blocks(key).pop_if(|it| it.is_idle() && it.end <= end)
            {
                self.free_landed(key, block);
            }
            self.return_credit(lane, (end - start) as u32, false);
        }
    }
}

fn piece_of(region: RegionTarget, offset: u64, length: u32) -> Span {
    Span { segment: region.segment, offset: region.offset + offset, length }
}

#[cfg(test)]
mod tests {
    use piped_core::ids::SegmentId;
    use piped_sim::{Faults, SimKernel};

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
        let mut buffers = super::super::buffers::Buffers::default();
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
        };
        let table = Table::new(TableRun { run, of: TableOf::Put }, 48);
        assert!(table.fits(region(210), 35, &mut io));
        assert!(!table.fits(region(209), 35, &mut io), "the last piece ends behind the region");
        assert!(!table.fits(region(210), 34, &mut io) && !table.fits(region(210), 36, &mut io));
    }
}
