//! Pieces of a region for a peer: a table of them comes with its request, and they travel one
//! behind the other.
//!
//! A get is gathered into a block of staging, from where frames leave as those of a file do; of a
//! put the bytes land in staging and are scattered as they come. A table is short and its request
//! is, too, so that a turn does a bounded amount; all tables together may have a part of staging
//! only, because a request that has its table waits for room for its bytes.

use piped_core::io::{Io, Span};
use piped_core::status::Status;
use piped_wire::{Frame, Message};

use crate::command::{RegionTarget, Target};
use crate::shard::Shard;
use crate::shard::buffers::{Block, TableOf, TableRun, footprint_of, run_bytes};
use crate::shard::connections::{Destination, LaneState, PeerLane, Serving, Target as Landing};
use crate::shard::keys::{LinkKey, ServeKey};
use crate::shard::links::Staged;
use crate::shard::responder::Serve;
use crate::shard::sched::Work;

impl Shard {
    /// Memory for a table that comes with a request, if there is room for it.
    pub(in crate::shard) fn stage_table(
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

    pub(in crate::shard) fn free_table(&mut self, link: LinkKey, table: TableRun) {
        if let Some(link) = self.links.get_mut(link) {
            *link.tables(table.of) -= table.run.footprint();
        }
        self.cx.buffers.free_table(table, &mut self.cx.sched);
    }

    /// Where the table of a request goes. One for which nothing can be done is not taken in; a put
    /// that finds no room is refused, for its bytes are behind it.
    pub(in crate::shard) fn destination_of_table(
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
    pub(in crate::shard) fn check_table<I: Io>(&mut self, key: ServeKey, io: &mut I) {
        let Some(serve) = self.serves.get(key) else { return };
        let (Target::Region(region), Some(table)) = (serve.target, serve.table) else {
            return self.end_serve(key, Status::Invalid);
        };
        if serve.ask.offset != 0 || !table.fits(region, serve.ask.length, io) {
            self.end_serve(key, Status::Invalid);
        }
    }

    /// A get of pieces.
    pub(in crate::shard) fn serve_gathered<I: Io>(
        &mut self,
        key: ServeKey,
        region: RegionTarget,
        io: &mut I,
    ) {
        let Some(planned) = self.plan_serve(key, None) else { return };
        let over = |it: &Serve| it.done == it.ask.length && !it.reply.has_frames();
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
        let Some(serve) = self.serves.get(key).filter(|serve| serve.next < serve.ask.length) else {
            return true;
        };
        let (Some(mut table), link, lane, length) =
            (serve.table, serve.link, serve.lane, serve.ask.length)
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
    pub(in crate::shard) fn scatter<I: Io>(
        &mut self,
        key: ServeKey,
        region: RegionTarget,
        io: &mut I,
    ) {
        while let Some((serve, blocks)) = self.serves.with_blocks(key)
            && let Some(mut table) = serve.table
        {
            let (start, landed) = (serve.write.begun(), serve.write.ready());
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
            serve.write.begin_to(end);
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
