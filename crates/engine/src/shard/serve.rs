//! Work for a peer: its reads, writes and syncs of what we offer.
//!
//! Here is what all of them have in common, from the first look to the answer; how the bytes of a
//! read move is in `serve_read`, of a write in `serve_write`. What the kernel or the lane may still
//! touch is pinned, as for a transfer.

use std::sync::Arc;

use piped_core::ids::SegmentId;
use piped_core::io::Io;
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::planned::Planned;
use piped_report::tally::{LaneLoss, Operation};
use piped_wire::Message;

use super::Shard;
use super::account::Admission;
use super::facts;
use super::fair::{Flow, Party};
use super::inbound::Ask;
use super::keys::{LaneKey, LinkKey, ServeKey, ServedKey};
use super::landed::{Extents, Landed};
use super::lane::Lane;
use super::pins::{Pin, Pins};
use super::requests::file_of;
use super::sched::Work;
use super::serve_pieces::Table;
use super::serve_read::ReadState;
use super::serve_write::Sink;
use super::watch::OBSERVED_BYTES;
use crate::command::{FileTarget, RegionTarget, Target};

/// What the peer asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServeOp {
    /// `from`: bytes it has already.
    Read {
        from: u64,
    },
    Write {
        durable: bool,
        sink: Sink,
    },
    Sync,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Serve {
    pub(super) lane: LaneKey,
    pub(super) link: LinkKey,
    pub(super) class_of_lane: LaneClass,
    pub(super) admission: Admission,
    pub(super) wire: u64,
    /// The peer's number of what it asked for.
    pub(super) handle: u32,
    pub(super) op: ServeOp,
    pub(super) target: Target,
    pub(super) served: ServedKey,
    pub(super) offset: u64,
    pub(super) length: u64,
    /// For which of the peer's clients.
    pub(super) flow: Flow,
    pub(super) started: Nanos,
    pub(super) deadline: Nanos,
    pub(super) plan: Option<Arc<Planned>>,
    /// When the sync of a durable write began.
    pub(super) syncing: Nanos,
    /// The pieces it is of, if it is no range.
    pub(super) table: Option<Table>,
    /// How far a read is.
    pub(super) read: ReadState,
    /// Bytes from the request's start for which a fragment was started (read) or that arrived
    /// (write).
    pub(super) next: u64,
    /// Of those of a write, the bytes that may go on: all, but for what dials hold.
    pub(super) ready: u64,
    /// Bytes queued on the lane (read) or on the device (write).
    pub(super) done: u64,
    /// Bytes of a write whose way to the device has begun.
    pub(super) begun: u64,
    /// The bytes that are in staging (read), or in place (write).
    pub(super) landed: Landed,
    /// Frames of a read that are queued on its lane.
    pub(super) frames: u32,
    /// Those that the kernel has taken and not let go of.
    pub(super) lent: u32,
    /// It is over and has frames queued.
    pub(super) unread: Option<Unread>,
    pub(super) allocation: Allocation,
    pub(super) pins: Pins,
    pub(super) status: Option<Status>,
    /// The peer was told how it ended (or nobody is left to tell).
    pub(super) answered: bool,
    /// It waits, or waited a moment ago, for its device to take something.
    pub(super) hurried: bool,
}

/// What a peer has read of a serve that is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unread {
    /// Frames its lane had sent when that was last looked at.
    frames_sent: u64,
    /// When all of its own must have left.
    until: Nanos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Allocation {
    Wanted,
    Running,
    Done,
    /// The final sync of a durable write.
    Syncing,
}

impl Serve {
    #[expect(clippy::too_many_arguments, reason = "a constructor called once")]
    pub(super) fn new(
        lane: LaneKey,
        link: LinkKey,
        class_of_lane: LaneClass,
        ask: Ask,
        op: ServeOp,
        (target, served): (Target, ServedKey),
        started: Nanos,
        deadline: Nanos,
    ) -> Self {
        let from = match op {
            ServeOp::Read { from } => from.min(ask.length),
            _ => 0,
        };
        Self {
            lane,
            link,
            class_of_lane,
            admission: Admission::Free,
            wire: ask.transfer,
            handle: ask.handle,
            op,
            target,
            served,
            offset: ask.offset,
            length: ask.length,
            flow: Flow {
                party: Party::Peer(link, ask.asker.client),
                class: ask.asker.class,
                weight: ask.asker.weight,
            },
            started,
            deadline,
            plan: None,
            syncing: Nanos::ZERO,
            table: None,
            read: ReadState::new(from),
            next: from,
            ready: 0,
            done: from,
            begun: 0,
            landed: Landed::new(from),
            frames: 0,
            lent: 0,
            unread: None,
            allocation: Allocation::Wanted,
            pins: Pins::default(),
            status: None,
            answered: false,
            hurried: false,
        }
    }

    /// Bytes of a write are in place. With more holes before them than can be told apart they are
    /// not counted, should it fail.
    pub(super) fn land(&mut self, beyond: &mut Extents, start: u64, bytes: u32) {
        self.done += u64::from(bytes);
        let _ = self.landed.insert(beyond, start, start + u64::from(bytes));
    }

    /// Bytes of it that have landed, or were passed over.
    pub(super) fn landed_to(&self) -> u64 {
        self.next
    }

    /// Bytes that it has moved: not those that the peer had before it asked again.
    pub(super) fn moved(&self) -> u64 {
        let had = match self.op {
            ServeOp::Read { from } => from.min(self.length),
            ServeOp::Write { .. } | ServeOp::Sync => 0,
        };
        self.done.saturating_sub(had)
    }

    /// Whether it changes something here.
    pub(super) fn writes(&self) -> bool {
        matches!(self.op, ServeOp::Write { .. })
    }

    pub(super) fn region(&self) -> Option<RegionTarget> {
        match self.target {
            Target::Region(region) => Some(region),
            Target::File(_) | Target::Channel(_) => None,
        }
    }

    /// Whether its bytes pass staging here.
    pub(super) fn is_staged(&self) -> bool {
        self.table.is_some() || file_of(self.target).is_some()
    }

    /// The client memory it touches.
    pub(super) fn region_segment(&self) -> Option<SegmentId> {
        self.region().map(|region| region.segment)
    }

    pub(super) fn operation(&self) -> Operation {
        match (self.op, self.target) {
            (ServeOp::Read { .. }, Target::File(_)) => Operation::Read,
            (ServeOp::Read { .. }, Target::Region(_)) => Operation::Get,
            (ServeOp::Write { .. }, Target::File(_)) => Operation::Write,
            (ServeOp::Write { .. }, Target::Region(_)) => Operation::Put,
            (ServeOp::Sync, _) => Operation::Sync,
            (_, Target::Channel(_)) => Operation::Receive,
        }
    }

    pub(super) fn route(&self) -> &'static str {
        match (self.op, self.target) {
            (ServeOp::Read { .. }, Target::File(_)) => "local file -> staging -> lane -> peer",
            (ServeOp::Read { .. }, Target::Region(_)) => "local region -> lane -> peer",
            (_, Target::File(_)) => "peer -> lane -> staging -> local file",
            (_, Target::Region(_)) => "peer -> lane -> local region",
            (_, Target::Channel(_)) => "peer -> lane -> local channel",
        }
    }
}

impl Shard {
    pub(super) fn drive_serve<I: Io>(&mut self, key: ServeKey, io: &mut I) {
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
            (ServeOp::Write { .. }, Target::File(file)) if self.is_behind_old(key, file) => {}
            (ServeOp::Write { durable, .. }, _) => self.serve_write(key, durable, io),
            (ServeOp::Sync, Target::File(file)) => self.serve_sync(key, file, io),
            // Nothing is served of a channel: its messages are taken in as they come.
            (_, Target::Channel(_)) => {
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
    pub(super) fn end_serve(&mut self, key: ServeKey, status: Status) {
        if let Some(serve) = self.serves.get_mut(key) {
            serve.status.get_or_insert(status);
        }
    }

    /// Answers the peer and forgets the serve, as far as that is possible now.
    pub(super) fn wind_up<I: Io>(&mut self, key: ServeKey, io: &mut I) {
        self.free_unsent(key);
        let Some(serve) = self.serves.get_mut(key) else { return };
        if serve.pins.any() {
            let (lane, writes) = (serve.lane, serve.writes());
            // One that went well waits for its last frames as long as a dial has them.
            let given_up = serve.status != Some(Status::Ok);
            if writes && !self.old_writes.contains(&key) {
                self.old_writes.push(key);
            }
            if given_up {
                self.drop_waiting(Work::Serve(key), io);
                self.hurry(Work::Serve(key), io);
            }
            return self.cancel_landing(lane, key, io);
        }
        let (lane_key, link, wire) = (serve.lane, serve.link, serve.wire);
        // Its credit comes before its end: behind that the peer may have a receive in a client's
        // memory.
        let now = io.now();
        let in_time = serve.status == Some(Status::Ok) && now < serve.deadline;
        if !serve.answered && serve.writes() && !self.give_owed(lane_key, now) {
            if in_time {
                return self.put_off(Work::Serve(key));
            }
            // What it holds is wanted by others: the peer has its credit, and pays for it later.
            self.give_all_owed(lane_key, now);
        }
        let Some(serve) = self.serves.get(key) else { return };
        if !serve.answered {
            let status = serve.status.unwrap_or(Status::Ok);
            let service = io.now().since(serve.started).0 / 1_000;
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
                return self.forget_serve(key, io);
            };
            if !lane.push(message) {
                return self.cx.sched.starve(Work::Serve(key));
            }
            if let Some(serving) = lane.serving_mut() {
                serving.note_end(status);
            }
            if let Some(serve) = self.serves.get_mut(key) {
                serve.answered = true;
            }
            self.cx.sched.make_ready(Work::Lane(lane_key));
        }
        if let Some(serving) = self.lanes.get_mut(lane_key).and_then(Lane::serving_mut) {
            serving.forget(key);
        }
        self.forget_serve(key, io);
        self.acknowledge_fenced(link);
    }

    /// The deadline of the serve in `slot` has passed.
    pub(super) fn expire_serve<I: Io>(&mut self, slot: u32, io: &mut I) {
        if let Some(key) = self.serves.next_from(slot, |_| true).filter(|key| key.index() == slot) {
            if self.is_unchoked(key, io.now()) {
                return;
            }
            self.end_serve(key, Status::DeadlineExceeded);
            self.cx.sched.make_ready(Work::Serve(key));
            self.watch_unread(key, io);
        }
    }

    /// A serve is over and its frames wait for the peer to read: a peer that reads nothing loses
    /// the lane, and so does one that reads too slowly.
    pub(super) fn watch_unread<I: Io>(&mut self, key: ServeKey, io: &mut I) {
        let Some(serve) = self.serves.get_mut(key).filter(|serve| serve.frames + serve.lent > 0)
        else {
            return;
        };
        let lane_key = serve.lane;
        let Some(lane) = self.lanes.get(lane_key) else { return };
        let (now, frames_sent) = (io.now(), lane.sender.frames_sent());
        let until = match serve.unread {
            None => now + limits::UNREAD_TIME_MAX,
            Some(unread) if unread.frames_sent < frames_sent && now < unread.until => unread.until,
            Some(_) => {
                let reason = String::from("the peer does not read what it asked for");
                return self.close_lane(lane_key, LaneLoss::Unread, reason, io);
            }
        };
        serve.unread = Some(Unread { frames_sent, until });
        self.serve_deadlines.set(key.index(), until.min(now + limits::UNREAD_TIME));
    }

    /// Whether a write of the same peer to the same device was given up (with its lane, at its
    /// deadline) and is still on its way there: what is written now must not be overtaken by it,
    /// whichever lane it came by.
    fn is_behind_old(&self, key: ServeKey, file: FileTarget) -> bool {
        let Some(link) = self.serves.get(key).map(|serve| serve.link) else { return false };
        self.old_writes.iter().any(|&old| {
            self.serves.get(old).is_some_and(|old| {
                old.link == link && file_of(old.target).is_some_and(|to| to.device == file.device)
            })
        })
    }

    /// The write was given up, and is over now: those behind it go on.
    fn forget_old(&mut self, key: ServeKey) {
        let Some(place) = self.old_writes.iter().position(|&old| old == key) else { return };
        self.old_writes.swap_remove(place);
        let mut from = 0;
        while let Some(next) = self.serves.next_from(from, |serve| serve.writes()) {
            from = next.index() + 1;
            self.cx.sched.make_ready(Work::Serve(next));
        }
    }

    fn forget_serve<I: Io>(&mut self, key: ServeKey, io: &mut I) {
        self.leave_serve(key);
        let Some(serve) = self.serves.remove(key) else { return };
        self.cx.sched.end(Work::Serve(key));
        self.forget_old(key);
        if let Some(table) = serve.table {
            self.free_table(serve.link, table.place);
        }
        self.serve_deadlines.clear(key.index());
        facts::end_serve(key, &serve, &mut self.cx, io.now());
        let status = serve.status.unwrap_or(Status::Ok);
        if let Some(receive) =
            self.served.get(serve.served).and_then(|served| served.receive.as_ref().map(Pin::key))
        {
            let whole = serve.writes() && serve.offset == 0;
            let bytes = if whole && status == Status::Ok { serve.length } else { 0 };
            self.handle_message_written(receive, serve.served, bytes, io);
        }
        self.leave_served(serve.served, io);
        if let Some(region) = serve.region() {
            self.drain_sessions(io);
            self.drain_region(region.region);
        }
    }

    /// Frees the staging of an ended serve that nothing touches.
    fn free_unsent(&mut self, key: ServeKey) {
        loop {
            let Some(serve) = self.serves.get_mut(key) else { return };
            let Some(block) = self.blocks.at_mut(key).take_idle() else { return };
            let (lane, link) = (serve.lane, serve.link);
            if !serve.writes() {
                self.free_read(link, block.run);
                continue;
            }
            // What has landed and will not be written has its credit still.
            let owed = serve.next.min(block.end).saturating_sub(serve.begun.max(block.start));
            if owed > 0 {
                self.return_credit(lane, owed as u32, true);
            }
            self.free_landed(key, block);
        }
    }

    /// The lane is gone: nobody waits for its serves; they end when the kernel is done.
    pub(super) fn end_serves_of(&mut self, lane: LaneKey) {
        let mut from = 0;
        while let Some(key) = self.serves.next_from(from, |serve| serve.lane == lane) {
            from = key.index() + 1;
            if let Some(serve) = self.serves.get_mut(key) {
                serve.status.get_or_insert(Status::Closed);
                serve.answered = true;
            }
            self.cx.sched.make_ready(Work::Serve(key));
        }
    }

    pub(super) fn end_region_serves<I: Io>(
        &mut self,
        wanted: impl Fn(RegionTarget) -> bool,
        io: &mut I,
    ) {
        let mut from = 0;
        while let Some(key) =
            self.serves.next_from(from, |serve| serve.region().is_some_and(&wanted))
        {
            from = key.index() + 1;
            self.end_serve(key, Status::Gone);
            self.cx.sched.make_ready(Work::Serve(key));
            // A region is revoked, and its session closed: its frames have their time only once.
            if self.serves.get(key).is_some_and(|serve| serve.unread.is_none()) {
                self.watch_unread(key, io);
            }
        }
    }
}

pub(super) fn micros(time: Nanos) -> u32 {
    u32::try_from(time.0 / 1_000).unwrap_or(u32::MAX)
}

// With what is seen of it; its staging and what has landed out of order are beside it.
const _: () = assert!(size_of::<Serve>() + OBSERVED_BYTES <= 1024);
