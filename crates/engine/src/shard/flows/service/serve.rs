//! Work for a peer: its reads, writes and syncs of what we offer.
//!
//! Here is what all of them have in common, from the first look to the answer; how the bytes of a
//! read move is in `read`, of a write in `write`. What the kernel or the lane may still
//! touch is pinned, as for a transfer.

use piped_core::io::Io;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::tally::LaneLoss;
use piped_wire::Message;

use crate::command::{FileTarget, RegionTarget, Target};
use crate::shard::Shard;
use crate::shard::account::Admission;
use crate::shard::connections::Lane;
use crate::shard::flows::plan::facts;
use crate::shard::keys::{LaneKey, ServeKey};
use crate::shard::responder::ServeOp;
use crate::shard::sched::Work;

impl Shard {
    pub(in crate::shard) fn drive_serve<I: Io>(&mut self, key: ServeKey, io: &mut I) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        if serve.status.is_none() && io.now() > serve.deadline {
            serve.status = Some(Status::DeadlineExceeded);
        }
        if serve.status.is_some() {
            return self.wind_up(key, io);
        }
        if matches!(serve.admission, Admission::Waits(_)) {
            return;
        }
        match (serve.op, serve.target) {
            (ServeOp::Read { .. }, Target::File(file)) => self.serve_file(key, file, io),
            (ServeOp::Read { .. }, Target::Region(region)) if serve.table.is_some() => {
                self.serve_gathered(key, region, io);
            }
            (ServeOp::Read { .. }, Target::Region(region)) => self.serve_region(key, region, io),
            // It is looked at again when the old one is over.
            (ServeOp::Write { .. }, Target::File(file))
                if self.serves.is_behind_old(key, file.device) => {}
            (ServeOp::Write { durable, .. }, _) => self.serve_write(key, durable, io),
            (ServeOp::Call { .. }, _) => self.serve_call(key, io),
            (ServeOp::Sync, Target::File(file)) => self.serve_sync(key, file, io),
            // Nothing is served of a channel: its messages are taken in as they come.
            (_, Target::Channel(_) | Target::Directory(_)) => {
                self.end_serve(key, Status::Invalid);
                self.wind_up(key, io);
            }
            (ServeOp::Sync, Target::Region(_)) => {
                self.end_serve(key, Status::Ok);
                self.wind_up(key, io);
            }
        }
    }

    fn serve_sync<I: Io>(&mut self, key: ServeKey, file: FileTarget, io: &mut I) {
        let Some(serve) = self.serves.get_mut(key).filter(|serve| !serve.pins.any()) else {
            return;
        };
        if let Err(wanted) = self.cx.driver.start_sync((key, &mut serve.pins), file.buffered, io) {
            self.cx.want(Work::Serve(key), wanted);
        }
    }

    /// Says how a serve ends. The peer is told when nothing is under way any more.
    pub(in crate::shard) fn end_serve(&mut self, key: ServeKey, status: Status) {
        if let Some(serve) = self.serves.get_mut(key) {
            serve.status.get_or_insert(status);
        }
    }

    /// Answers the peer and forgets the serve, as far as that is possible now.
    pub(in crate::shard) fn wind_up<I: Io>(&mut self, key: ServeKey, io: &mut I) {
        self.cx.sched.leave_line(Work::Serve(key));
        self.free_unsent(key);
        let Some(serve) = self.serves.get_mut(key) else { return };
        if serve.pins.any() {
            let (lane, changes) = (serve.lane, serve.changes());
            // One that went well waits for its last frames as long as a dial has them.
            let given_up = serve.status != Some(Status::Ok);
            if changes {
                self.serves.note_old_write(key);
            }
            if given_up {
                self.drop_waiting(Work::Serve(key), io);
                self.hurry(Work::Serve(key), io);
            }
            return self.cancel_landing(lane, key, io);
        }
        let (lane_key, link, wire) = (serve.lane, serve.link, serve.ask.transfer);
        // Its credit comes before its end: behind that the peer may have a receive in a client's
        // memory.
        let now = io.now();
        let in_time = serve.status == Some(Status::Ok) && now < serve.deadline;
        if serve.writes()
            && !serve.reply.is_given()
            && let Some(serving) = self.lanes.get_mut(lane_key).and_then(Lane::serving_mut)
        {
            serving.window.end_write(serve.ask.length);
        }
        if !serve.reply.is_given() && serve.writes() && !self.give_owed(lane_key, io) {
            if in_time {
                return self.put_off(Work::Serve(key));
            }
            // What it holds is wanted by others: the peer has its credit, and pays for it later.
            self.give_all_owed(lane_key, now);
        }
        let Some(serve) = self.serves.get(key) else { return };
        if !serve.reply.is_given() {
            let status = serve.status.unwrap_or(Status::Ok);
            // The pieces of a write came over the wire, of which the requester knows.
            let begun = serve.started.max(serve.write.last_came());
            let service = now.since(begun).0 / 1_000;
            let message = Message::End {
                transfer: wire,
                status,
                bytes: match status {
                    Status::Ok => serve.done,
                    _ if serve.writes() => serve.landed.watermark(),
                    _ => 0,
                },
                service_us: u32::try_from(service).unwrap_or(u32::MAX),
                fragment: serve.plan.as_ref().map_or(0, |planned| planned.grid()),
                predicted_us: serve.plan.as_ref().map_or(0, |planned| micros(planned.predicted)),
            };
            let Some(lane) = self.lanes.get_mut(lane_key) else {
                return self.forget_serve(key, now, io);
            };
            if !lane.push(message) {
                return self.cx.sched.starve(Work::Serve(key));
            }
            if let Some(serving) = lane.serving_mut() {
                serving.note_end(status);
            }
            if let Some(serve) = self.serves.get_mut(key) {
                serve.reply.give();
            }
            self.cx.sched.make_ready(Work::Lane(lane_key));
        }
        if let Some(serving) = self.lanes.get_mut(lane_key).and_then(Lane::serving_mut) {
            serving.forget(key);
        }
        self.forget_serve(key, now, io);
        self.acknowledge_fenced(link);
    }

    /// The deadline of a serve has passed.
    pub(in crate::shard) fn expire_serve<I: Io>(&mut self, key: ServeKey, io: &mut I) {
        if self.is_unchoked(key, io.now()) {
            return;
        }
        self.end_serve(key, Status::DeadlineExceeded);
        self.cx.sched.make_ready(Work::Serve(key));
        self.watch_unread(key, io);
    }

    /// A serve is over and its frames wait for the peer to read: a peer that reads nothing loses
    /// the lane, and so does one that reads too slowly.
    pub(in crate::shard) fn watch_unread<I: Io>(&mut self, key: ServeKey, io: &mut I) {
        let Some(serve) = self.serves.get_mut(key).filter(|serve| serve.reply.has_frames()) else {
            return;
        };
        let lane_key = serve.lane;
        let Some(lane) = self.lanes.get(lane_key) else { return };
        match serve.reply.watch(lane.sender.frames_sent(), io.now()) {
            Some(next) => self.serves.look_at(key, next),
            None => {
                let reason = "the peer does not read what it asked for";
                self.close_lane(lane_key, LaneLoss::Unread, reason, io);
            }
        }
    }

    fn forget_serve<I: Io>(&mut self, key: ServeKey, now: Nanos, io: &mut I) {
        self.leave_serve(key);
        let Some(serve) = self.serves.end(key, &mut self.cx.sched) else { return };
        self.cx.sched.end(Work::Serve(key));
        self.free_called(serve.link, serve.op);
        if let Some(table) = serve.table {
            self.free_table(serve.link, table.place);
        }
        facts::end_serve(key, &serve, &mut self.cx, now);
        let status = serve.status.unwrap_or(Status::Ok);
        if let Some(receive) = self.links.receive_of(serve.served) {
            let whole = serve.writes() && serve.ask.offset == 0;
            let bytes = if whole && status == Status::Ok { serve.ask.length } else { 0 };
            self.handle_message_written(receive, serve.served, bytes, io);
        }
        self.links.note_use(serve.served, false);
        self.release_served(serve.served, io);
        if let Some(region) = serve.region() {
            self.leave_region(region, io);
        }
    }

    /// Frees the staging of an ended serve that nothing touches.
    fn free_unsent(&mut self, key: ServeKey) {
        loop {
            let Some((serve, blocks)) = self.serves.with_blocks(key) else { return };
            let Some(block) = blocks.take_idle() else { return };
            let (lane, link) = (serve.lane, serve.link);
            if !serve.writes() {
                self.free_read(link, block.run);
                continue;
            }
            // What has landed and will not be written has its credit still.
            let owed =
                serve.next.min(block.end).saturating_sub(serve.write.begun().max(block.start));
            if owed > 0 {
                self.return_credit(lane, owed as u32, true);
            }
            self.free_landed(key, block);
        }
    }

    /// The lane is gone: nobody waits for its serves; they end when the kernel is done.
    pub(in crate::shard) fn end_serves_of(&mut self, lane: LaneKey) {
        let mut from = 0;
        while let Some(key) = self.serves.next_from(&mut from, |serve| serve.lane == lane) {
            if let Some(serve) = self.serves.get_mut(key) {
                serve.status.get_or_insert(Status::Closed);
                serve.reply.give();
                // At once: what comes by the next lane may be the same call.
                if serve.changes() && !serve.writes() && serve.pins.any() {
                    self.serves.note_old_write(key);
                }
            }
            self.cx.sched.make_ready(Work::Serve(key));
        }
    }

    pub(in crate::shard) fn end_region_serves<I: Io>(
        &mut self,
        wanted: impl Fn(RegionTarget) -> bool,
        io: &mut I,
    ) {
        let mut from = 0;
        while let Some(key) =
            self.serves.next_from(&mut from, |serve| serve.region().is_some_and(&wanted))
        {
            self.end_serve(key, Status::Gone);
            self.cx.sched.make_ready(Work::Serve(key));
            // A region is revoked, and its session closed: its frames have their time only once.
            if self.serves.get(key).is_some_and(|serve| !serve.reply.is_watched()) {
                self.watch_unread(key, io);
            }
        }
    }
}

pub(in crate::shard) fn micros(time: Nanos) -> u32 {
    u32::try_from(time.0 / 1_000).unwrap_or(u32::MAX)
}
