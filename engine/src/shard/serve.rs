//! Work for a peer: its reads, writes and syncs of what we offer.
//!
//! A read of a file runs fragments through staging: read, send, free, with the plan's depth under way;
//! frames leave in order, so that the other side knows where the next one goes. A read of a region
//! needs no staging: frames name the exporter's memory. A write lands in staging (file) or in place
//! (region). What the kernel or the lane may still touch is pinned, as for a transfer.

use std::sync::Arc;

use piped_model::units::Nanos;

use super::admission::Admission;
use super::disk::{Direction, JobOwner, JobResult};
use super::inbound::Ask;
use super::landed::Landed;
use super::lane::{Destination, Target as Landing};
use super::ops::status_of;
use super::passed::Passed;
use super::planned::{Planned, boundary};
use super::slab::Key;
use super::staging::{Run, footprint_of};
use super::trace::Subject;
use super::transfer::{Ahead, file_of};
use super::{On, Shard, Wanted, Work};
use crate::command::{FileTarget, LaneClass, RegionTarget, Target};
use crate::ids::SegmentId;
use crate::io::{Io, Span};
use crate::limits::{self, DEPTH_MAX};
use crate::request::{Class, Status};
use crate::tally::{LaneLoss, Operation};
use crate::wire::{LastPart, Message, Owner};

/// What the peer asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServeOp {
    /// `from`: bytes it has already.
    Read {
        from: u64,
    },
    Write {
        durable: bool,
    },
    Sync,
}

/// A fragment of a read between its start and the last of its frames.
#[derive(Debug, Clone, Copy, Default)]
enum Fragment {
    #[default]
    Free,
    Reading(Run),
    Ready {
        run: Run,
        bytes: u32,
    },
    Sending {
        run: Run,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Serve {
    pub(super) lane: Key,
    pub(super) link: Key,
    pub(super) class_of_lane: LaneClass,
    pub(super) admission: Admission,
    wire: u64,
    pub(super) op: ServeOp,
    target: Target,
    served: Key,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) class: Class,
    pub(super) started: Nanos,
    pub(super) deadline: Nanos,
    pub(super) plan: Option<Arc<Planned>>,
    pub(super) passed: Passed,
    fragments: [Fragment; DEPTH_MAX as usize],
    /// Fragment numbers: all before `sent` are off the lane, before `queued_to` queued, before `read`
    /// started.
    read: u32,
    /// Fragments at the device.
    reading: u32,
    /// A turn ended early for its reads, and nothing was sent since.
    handed_over: bool,
    queued_to: u32,
    sent: u32,
    /// Bytes from the request's start for which a fragment was started (read) or landed (write).
    next: u64,
    /// Bytes queued on the lane (read) or on the device (write).
    pub(super) done: u64,
    /// Bytes of a write whose way to the device has begun.
    begun: u64,
    /// Those that are there (write).
    landed: Landed,
    /// The source ends here.
    end: u64,
    frames: u32,
    /// It is over and has frames queued.
    unread: Option<Unread>,
    allocation: Allocation,
    pub(super) pins: u32,
    pub(super) status: Option<Status>,
    /// The peer was told how it ended (or nobody is left to tell).
    answered: bool,
    pub(super) queued: bool,
    /// Its device wakes it.
    pub(super) parked: bool,
    /// It waits, or waited a moment ago, for its device to take something.
    hurried: bool,
}

/// What a peer has read of a serve that is over.
#[derive(Debug, Clone, Copy)]
struct Unread {
    /// Frames its lane had sent when that was last looked at.
    frames_sent: u64,
    /// When all of its own must have left.
    until: Nanos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Allocation {
    Wanted,
    Running,
    Done,
    /// The final sync of a durable write.
    Syncing,
}

impl Serve {
    #[expect(clippy::too_many_arguments, reason = "a constructor called once")]
    pub(super) fn new(
        lane: Key,
        link: Key,
        class_of_lane: LaneClass,
        ask: Ask,
        op: ServeOp,
        (target, served): (Target, Key),
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
            op,
            target,
            served,
            offset: ask.offset,
            length: ask.length,
            class: ask.class,
            started,
            deadline,
            plan: None,
            passed: Passed::default(),
            fragments: [Fragment::Free; DEPTH_MAX as usize],
            read: 0,
            reading: 0,
            handed_over: false,
            queued_to: 0,
            sent: 0,
            next: from,
            done: from,
            begun: 0,
            landed: Landed::new(0),
            end: u64::MAX,
            frames: 0,
            unread: None,
            allocation: Allocation::Wanted,
            pins: 0,
            status: None,
            answered: false,
            queued: false,
            parked: false,
            hurried: false,
        }
    }

    /// Bytes of a write are in place. With more holes before them than can be told apart they are not
    /// counted, should it fail.
    fn land(&mut self, start: u64, bytes: u32) {
        self.done += u64::from(bytes);
        let _ = self.landed.insert(start, start + u64::from(bytes));
    }

    /// Bytes of it that have landed, or were passed over.
    pub(super) fn landed_to(&self) -> u64 {
        self.next
    }

    /// Whether it changes something here.
    pub(super) fn writes(&self) -> bool {
        matches!(self.op, ServeOp::Write { .. })
    }

    pub(super) fn region(&self) -> Option<RegionTarget> {
        match self.target {
            Target::Region(region) => Some(region),
            Target::File(_) => None,
        }
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
        }
    }

    pub(super) fn route(&self) -> &'static str {
        match (self.op, self.target) {
            (ServeOp::Read { .. }, Target::File(_)) => "local file -> staging -> lane -> peer",
            (ServeOp::Read { .. }, Target::Region(_)) => "local region -> lane -> peer",
            (_, Target::File(_)) => "peer -> lane -> staging -> local file",
            (_, Target::Region(_)) => "peer -> lane -> local region",
        }
    }
}

impl Shard {
    pub(super) fn drive_serve<I: Io>(&mut self, key: Key, io: &mut I) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        serve.queued = false;
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
            (ServeOp::Read { .. }, Target::Region(region)) => self.serve_region(key, region, io),
            // It is looked at again when the old one is over.
            (ServeOp::Write { .. }, Target::File(file)) if self.is_behind_old(key, file) => {}
            (ServeOp::Write { durable }, _) => self.serve_write(key, durable, io),
            (ServeOp::Sync, Target::File(file)) => self.serve_sync(key, file, io),
            (ServeOp::Sync, Target::Region(_)) => {
                self.end_serve(key, Status::Ok);
                self.wind_up(key, io);
            }
        }
    }

    fn serve_file<I: Io>(&mut self, key: Key, file: FileTarget, io: &mut I) {
        let Some(planned) = self.plan_serve(key, Some(file.device)) else { return };
        if self.serves.get(key).is_some_and(|serve| serve.next >= serve.length && serve.read == 0) {
            // Resumed with everything in place: only the end was lost.
            self.end_serve(key, Status::Ok);
            return self.wind_up(key, io);
        }
        let read_before = self.serves.get(key).map_or(0, |serve| serve.read);
        let wanted = self.start_reads(key, file, &planned, io).err();
        let starved = wanted.is_some();
        let Some(serve) = self.serves.get_mut(key) else { return };
        // The device has nothing else to do: it gets its work before the checksum of what is to be sent.
        // Only once for each that is sent: a device that is faster than a turn must not have the whole
        // request read before any of it leaves.
        let may_wait =
            planned.is_serial() && serve.read > read_before && read_before > serve.queued_to;
        if may_wait && !std::mem::replace(&mut serve.handed_over, true) {
            self.hand_over_first = true;
            return self.make_ready(Work::Serve(key));
        }
        let all_read = serve.next >= serve.length.min(serve.end);
        let idle = serve.reading == 0;
        // `whole`: store, then forward. Short of staging it forwards what it stored, or two of them
        // would wait for each other for ever.
        if !planned.store_first || (idle && (all_read || starved)) {
            self.send_fragments(key, &planned, io);
        }
        if let Some(wanted) = wanted {
            self.want(Work::Serve(key), wanted);
        }
    }

    /// Starts reads up to the plan's depth, or says what they must wait for.
    fn start_reads<I: Io>(
        &mut self,
        key: Key,
        file: FileTarget,
        planned: &Planned,
        io: &mut I,
    ) -> Result<(), Wanted> {
        loop {
            let Some(serve) = self.serves.get(key) else { return Ok(()) };
            let (next, end) = (serve.next, serve.length.min(serve.end));
            if next >= end
                || serve.reading >= planned.cut.depth
                || serve.read - serve.sent >= planned.held_max().min(DEPTH_MAX)
            {
                return Ok(());
            }
            let (offset, fragment) = (serve.offset, serve.read);
            let boundary = boundary(&planned.cut.source, offset, next).min(end);
            let (link, bytes) = (serve.link, (boundary - next) as u32);
            let (on, left) = (On::from(&file), self.staging.free_bytes());
            if !self.devices.may_hold(on, bytes.into(), left) {
                return Err(Wanted::Device(on));
            }
            if !self.may_stage_read(link, footprint_of(bytes)) {
                return Err(Wanted::Anything);
            }
            let run = self.staging.allocate(bytes).ok_or(Wanted::Anything)?;
            let owner = JobOwner::ServeRead { serve: key, fragment };
            let started = self.start_job(owner, file, Direction::Read, offset + next, run.span, io);
            if let Err(wanted) = started {
                self.give_back(run);
                return Err(wanted);
            }
            if let Some(link) = self.inbound.get_mut(link) {
                link.read_staging.add(run.footprint());
            }
            let Some(serve) = self.serves.get_mut(key) else { return Ok(()) };
            // The job may be over already only in a driver that ends operations inside push; none does.
            serve.fragments[(fragment % DEPTH_MAX) as usize] = Fragment::Reading(run);
            serve.read += 1;
            serve.reading += 1;
            serve.next = boundary;
            serve.pins += 1;
        }
    }

    /// A fragment is in staging (or failed, or the file ended in it).
    pub(super) fn handle_fragment_read(&mut self, key: Key, fragment: u32, result: JobResult) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        serve.pins -= 1;
        serve.reading -= 1;
        let place = &mut serve.fragments[(fragment % DEPTH_MAX) as usize];
        let Fragment::Reading(run) = *place else { return };
        *place = Fragment::Ready { run, bytes: result.bytes };
        if result.status != Status::Ok {
            serve.status.get_or_insert(result.status);
        }
    }

    /// Queues finished fragments on the lane, in order.
    fn send_fragments<I: Io>(&mut self, key: Key, planned: &Planned, io: &mut I) {
        loop {
            let Some(serve) = self.serves.get_mut(key) else { return };
            if serve.queued_to == serve.read && serve.read > 0 || serve.status.is_some() {
                return;
            }
            let place = (serve.queued_to % DEPTH_MAX) as usize;
            let Fragment::Ready { run, bytes } = serve.fragments[place] else { return };
            let short = bytes < run.span.length;
            if short {
                serve.end = serve.done + u64::from(bytes);
            }
            let end = serve.done + u64::from(bytes);
            let last = short || end >= serve.length;
            let span = run.span.part(0, bytes);
            match self.push_data(key, span, planned, last, io.now()) {
                true => {
                    let Some(serve) = self.serves.get_mut(key) else { return };
                    serve.fragments[place] = Fragment::Sending { run };
                    serve.queued_to += 1;
                    serve.handed_over = false;
                    if last {
                        return self.end_serve(key, Status::Ok);
                    }
                }
                false => return self.starve(Work::Serve(key)),
            }
        }
    }

    fn serve_region<I: Io>(&mut self, key: Key, region: RegionTarget, io: &mut I) {
        let Some(planned) = self.plan_serve(key, None) else { return };
        loop {
            let Some(serve) = self.serves.get(key) else { return };
            if serve.frames >= limits::FRAMES_PER_OWNER {
                return;
            }
            let boundary = boundary(&planned.cut.lane, serve.offset, serve.done).min(serve.length);
            let length = (boundary - serve.done) as u32;
            let offset = region.offset + serve.offset + serve.done;
            let span = Span { segment: region.segment, offset, length };
            let last = boundary == serve.length;
            if !self.push_data(key, span, &planned, last, io.now()) {
                return self.starve(Work::Serve(key));
            }
            if last {
                self.end_serve(key, Status::Ok);
                return self.make_ready(Work::Serve(key));
            }
        }
    }

    /// Queues one frame of data; `false` if the lane is full.
    fn push_data(
        &mut self,
        key: Key,
        span: Span,
        planned: &Planned,
        last: bool,
        now: Nanos,
    ) -> bool {
        let Some(serve) = self.serves.get_mut(key) else { return true };
        let Some(lane) = self.lanes.get_mut(serve.lane) else { return false };
        if !lane.has_room_for_data() {
            return false;
        }
        // The checksum comes when the frame leaves, but is no part of the wire either.
        let check = self.planner.check_time(span.length);
        let service = (now.since(serve.started) + check).0 / 1_000;
        let bytes = serve.done + u64::from(span.length);
        let predicted_us = micros(planned.predicted);
        let plan = planned.cut.number();
        let last = last.then_some(LastPart { status: Status::Ok, bytes, predicted_us, plan });
        let message = Message::Data {
            transfer: serve.wire,
            offset: serve.done,
            fragment: planned.cut.lane.grid() as u32,
            backlogged: !lane.sender.is_empty(),
            service_us: u32::try_from(service).unwrap_or(u32::MAX),
            last,
        };
        let payload = (span.length > 0).then_some(span);
        if lane.sender.push(lane.epoch, message, payload, Owner(key.to_bits())).is_err() {
            return false;
        }
        if last.is_some() {
            // The peer may ask again as soon as this arrives.
            serve.answered = true;
            let wire = serve.wire;
            lane.serves.retain(|&(other, _)| other != wire);
        }
        serve.done = bytes;
        serve.frames += 1;
        serve.pins += 1;
        let lane = serve.lane;
        self.make_ready(Work::Lane(lane));
        true
    }

    /// A frame of a read is with the kernel (or never will be): its memory is free of it.
    pub(super) fn handle_read_frame_sent(&mut self, key: Key) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        serve.frames -= 1;
        serve.pins -= 1;
        let place = &mut serve.fragments[(serve.sent % DEPTH_MAX) as usize];
        if let Fragment::Sending { run } = std::mem::take(place) {
            serve.sent += 1;
            let link = serve.link;
            self.free_read(link, run);
        }
        self.make_ready(Work::Serve(key));
    }

    /// A fragment of a read needs its staging no longer.
    fn free_read(&mut self, link: Key, run: Run) {
        if let Some(link) = self.inbound.get_mut(link) {
            link.read_staging.sub(run.footprint());
        }
        self.free_staging(run);
    }

    fn serve_write<I: Io>(&mut self, key: Key, durable: bool, io: &mut I) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        let file = file_of(serve.target);
        if let Some(file) = file
            && serve.allocation == Allocation::Wanted
        {
            let (offset, length) = (serve.offset, serve.length);
            let ahead = self.allocate_ahead(file, offset, length, Work::Serve(key), io);
            let Some(serve) = self.serves.get_mut(key) else { return };
            match ahead {
                Ahead::NotNeeded => serve.allocation = Allocation::Done,
                Ahead::Started => {
                    serve.allocation = Allocation::Running;
                    serve.pins += 1;
                }
                Ahead::NoRoom(wanted) => return self.want(Work::Serve(key), wanted),
            }
        }
        if let Some(file) = file
            && let Err(wanted) = self.start_writes(key, file, io)
        {
            if matches!(wanted, Wanted::Device(_)) {
                self.watch_choked(key, io.now());
            }
            return self.want(Work::Serve(key), wanted);
        }
        let Some(serve) = self.serves.get_mut(key) else { return };
        if serve.done < serve.length || serve.pins > 0 {
            return;
        }
        match file {
            Some(file) if durable && serve.allocation == Allocation::Done => {
                if let Err(wanted) = self.start_sync(Work::Serve(key), file.buffered, io) {
                    return self.want(Work::Serve(key), wanted);
                }
                if let Some(serve) = self.serves.get_mut(key) {
                    serve.allocation = Allocation::Syncing;
                    serve.pins += 1;
                }
            }
            _ => {
                self.end_serve(key, Status::Ok);
                self.wind_up(key, io);
            }
        }
    }

    fn serve_sync<I: Io>(&mut self, key: Key, file: FileTarget, io: &mut I) {
        if self.serves.get(key).is_none_or(|serve| serve.pins > 0) {
            return;
        }
        match self.start_sync(Work::Serve(key), file.buffered, io) {
            Ok(_) => self.pin_serve(key),
            Err(wanted) => self.want(Work::Serve(key), wanted),
        }
    }

    /// The end of an allocation or a sync.
    pub(super) fn handle_serve_step(&mut self, key: Key, result: i32) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        serve.pins -= 1;
        let end = serve.offset + serve.length;
        let status = match (serve.allocation, file_of(serve.target)) {
            (Allocation::Running, Some(file)) => {
                serve.allocation = Allocation::Done;
                self.allocated(file.buffered, end, result).err()
            }
            _ if result < 0 => Some(status_of(result)),
            _ => Some(Status::Ok),
        };
        if let Some(status) = status {
            self.end_serve(key, status);
        }
        self.make_ready(Work::Serve(key));
    }

    /// Where the payload of a write goes.
    pub(super) fn place_write(&mut self, key: Key, offset: u64, payload: u32) -> Destination {
        let Some(serve) = self.serves.get(key) else { return Destination::Discard };
        let end = offset.saturating_add(u64::from(payload));
        let is_write = matches!(serve.op, ServeOp::Write { .. });
        // In order and without gaps: what the requester sends is what it planned.
        if !is_write || offset != serve.next || end > serve.length {
            return Destination::Fault("write data out of order or outside what was announced");
        }
        if serve.status.is_some() {
            return Destination::Discard;
        }
        match serve.target {
            Target::Region(region) => {
                let at = region.offset + serve.offset + offset;
                let span = Span { segment: region.segment, offset: at, length: payload };
                Destination::Land(Landing::ServeRegion(key), span)
            }
            Target::File(_) if serve.read - serve.sent >= DEPTH_MAX => Destination::Wait,
            Target::File(_) => match self.stage_landing(key, payload) {
                Some(run) => Destination::Land(Landing::ServeStaging(key, run), run.span),
                None => Destination::Wait,
            },
        }
    }

    /// What has landed of a write waits for room at its device, and has its lane's credit, which others need:
    /// not for long if the device does nothing at all.
    fn watch_choked(&mut self, key: Key, now: Nanos) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        if !std::mem::replace(&mut serve.hurried, true) {
            let until = serve.deadline.min(now + limits::CHOKED_TIME);
            self.serve_deadlines.set(key.index(), until);
        }
    }

    /// A while later. Whether it goes on.
    fn is_unchoked(&mut self, key: Key, now: Nanos) -> bool {
        let Some(serve) = self.serves.get_mut(key) else { return true };
        if !std::mem::take(&mut serve.hurried) || now >= serve.deadline {
            return false;
        }
        let stalled = serve.parked
            && file_of(serve.target)
                .is_some_and(|file| self.devices.is_stalled(On::from(&file), now));
        if stalled {
            self.end_serve(key, Status::WouldBlock);
        } else if serve.parked {
            self.watch_choked(key, now);
        } else {
            self.serve_deadlines.set(key.index(), serve.deadline);
        }
        !stalled
    }

    /// Staging for a piece of a write, out of its lane's share. A short piece takes a whole granule:
    /// credit alone, which counts bytes, would let a peer hold all staging with few of them.
    fn stage_landing(&mut self, key: Key, payload: u32) -> Option<Run> {
        let lane = self.lanes.get_mut(self.serves.get(key)?.lane)?;
        let run = self.staging.allocate(payload)?;
        if lane.staged > 0 && lane.staged + run.footprint() > lane.credit_window {
            self.give_back(run);
            return None;
        }
        lane.staged += run.footprint();
        let link = self.serves.get(key)?.link;
        if let Some(link) = self.inbound.get_mut(link) {
            link.write_staging.add(run.footprint());
        }
        Some(run)
    }

    /// A piece of a write needs its staging no longer.
    pub(super) fn free_landed(&mut self, key: Key, run: Run) {
        let serve = self.serves.get(key).map(|serve| (serve.lane, serve.link));
        if let Some(lane) = serve.and_then(|(lane, _)| self.lanes.get_mut(lane)) {
            lane.staged -= run.footprint();
        }
        if let Some(link) = serve.and_then(|(_, link)| self.inbound.get_mut(link)) {
            link.write_staging.sub(run.footprint());
        }
        self.free_staging(run);
    }

    /// The same of one that was taken from the device's share, and counts for its peer all the same.
    pub(super) fn free_paid(&mut self, key: Key, run: Run) {
        let link = self.serves.get(key).map(|serve| serve.link);
        if let Some(link) = link.and_then(|link| self.inbound.get_mut(link)) {
            link.write_staging.sub(run.footprint());
        }
        self.free_staging(run);
    }

    /// A piece of a write has arrived.
    pub(super) fn handle_write_data(
        &mut self,
        lane: Key,
        wire: u64,
        payload: u32,
        landing: Landing,
        intact: bool,
    ) {
        let key = match landing {
            Landing::ServeRegion(key) | Landing::ServeStaging(key, _) => Some(key),
            _ => self
                .lanes
                .get(lane)
                .and_then(|lane| lane.serves.iter().find(|(w, _)| *w == wire).map(|&(_, key)| key)),
        };
        if let Some(serve) = key.and_then(|key| self.serves.get_mut(key)) {
            serve.next += u64::from(payload);
        }
        match (key, landing) {
            (Some(key), Landing::ServeStaging(_, run)) => {
                self.write_landed(key, run, intact);
            }
            (Some(key), Landing::ServeRegion(_)) => {
                if let Some(serve) = self.serves.get_mut(key) {
                    serve.land(serve.done, payload);
                }
                if !intact {
                    self.end_serve(key, Status::Corrupt);
                }
                self.unpin_serve(key);
                self.return_credit(lane, payload, false);
            }
            _ => self.return_credit(lane, payload, true),
        }
        if let Some(key) = key {
            self.make_ready(Work::Serve(key));
        }
    }

    /// Keeps a landed piece until its write begins. The landing's pin becomes the write's.
    fn write_landed(&mut self, key: Key, run: Run, intact: bool) {
        let Some(serve) = self.serves.get_mut(key) else { return self.free_landed(key, run) };
        serve.fragments[(serve.read % DEPTH_MAX) as usize] =
            Fragment::Ready { run, bytes: run.span.length };
        serve.read += 1;
        if !intact {
            self.end_serve(key, Status::Corrupt);
        }
    }

    /// Begins the writes of what has landed, or says what they must wait for. A piece's credit goes
    /// back when the device has it.
    fn start_writes<I: Io>(
        &mut self,
        key: Key,
        file: FileTarget,
        io: &mut I,
    ) -> Result<(), Wanted> {
        loop {
            let Some(serve) = self.serves.get(key) else { return Ok(()) };
            let place = (serve.sent % DEPTH_MAX) as usize;
            let Fragment::Ready { run, bytes } = serve.fragments[place] else { return Ok(()) };
            let at = serve.offset + serve.begun;
            // A device of somebody else's may keep it for as long as it likes. Then it is the device's share
            // of staging that it takes, and not its lane's, which others need.
            let (on, left) = (On::from(&file), self.staging.free_bytes());
            let paid = file.foreign;
            if paid && !self.devices.may_hold(on, bytes.into(), left) {
                return Err(Wanted::Device(on));
            }
            let (start, lane) = (serve.begun, serve.lane);
            let owner = JobOwner::ServeWrite { serve: key, start, run, paid };
            self.start_job(owner, file, Direction::Write, at, run.span, io)?;
            if paid {
                if let Some(lane) = self.lanes.get_mut(lane) {
                    lane.staged -= run.footprint();
                }
                self.return_credit(lane, bytes, false);
            }
            let Some(serve) = self.serves.get_mut(key) else { return Ok(()) };
            serve.fragments[place] = Fragment::Free;
            serve.sent += 1;
            serve.begun += u64::from(bytes);
        }
    }

    /// A piece of a write is with the device; its staging was freed. So much credit goes back.
    pub(super) fn handle_fragment_written(
        &mut self,
        key: Key,
        start: u64,
        owed: u32,
        result: JobResult,
    ) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        serve.land(start, result.bytes);
        let lane = serve.lane;
        if result.status != Status::Ok {
            self.end_serve(key, result.status);
        }
        self.unpin_serve(key);
        if owed > 0 {
            self.return_credit(lane, owed, false);
        }
    }

    /// Says how a serve ends. The peer is told when nothing is under way any more.
    pub(super) fn end_serve(&mut self, key: Key, status: Status) {
        if let Some(serve) = self.serves.get_mut(key) {
            serve.status.get_or_insert(status);
        }
    }

    pub(super) fn pin_serve(&mut self, key: Key) {
        if let Some(serve) = self.serves.get_mut(key) {
            serve.pins += 1;
        }
    }

    pub(super) fn unpin_serve(&mut self, key: Key) {
        if let Some(serve) = self.serves.get_mut(key) {
            serve.pins -= 1;
            self.make_ready(Work::Serve(key));
        }
    }

    /// Answers the peer and forgets the serve, as far as that is possible now.
    fn wind_up<I: Io>(&mut self, key: Key, io: &mut I) {
        self.free_unsent(key);
        let Some(serve) = self.serves.get_mut(key) else { return };
        if serve.pins > 0 {
            let (lane, writes) = (serve.lane, serve.writes());
            // One that went well waits for its last frames as long as a dial has them.
            let given_up = serve.status != Some(Status::Ok);
            if writes && !self.old_writes.contains(&key) {
                self.old_writes.push(key);
            }
            if given_up {
                self.hurry(Work::Serve(key), io);
            }
            return self.cancel_landing(lane, key, io);
        }
        let (lane_key, link, wire) = (serve.lane, serve.link, serve.wire);
        if !serve.answered {
            let status = serve.status.unwrap_or(Status::Ok);
            let service = io.now().since(serve.started).0 / 1_000;
            let message = Message::End {
                transfer: wire,
                status,
                bytes: if status == Status::Ok { serve.done } else { serve.landed.watermark() },
                service_us: u32::try_from(service).unwrap_or(u32::MAX),
                fragment: serve.plan.as_ref().map_or(0, |planned| planned.cut.lane.grid() as u32),
                predicted_us: serve.plan.as_ref().map_or(0, |planned| micros(planned.predicted)),
            };
            let Some(lane) = self.lanes.get_mut(lane_key) else {
                return self.forget_serve(key, io);
            };
            if !lane.push(message) {
                return self.starve(Work::Serve(key));
            }
            if let Some(serve) = self.serves.get_mut(key) {
                serve.answered = true;
            }
            self.make_ready(Work::Lane(lane_key));
        }
        if let Some(lane) = self.lanes.get_mut(lane_key) {
            lane.serves.retain(|&(_, other)| other != key);
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
            self.make_ready(Work::Serve(key));
            self.watch_unread(key, io);
        }
    }

    /// A serve is over and its frames wait for the peer to read: a peer that reads nothing loses the
    /// lane, and so does one that reads too slowly.
    fn watch_unread<I: Io>(&mut self, key: Key, io: &mut I) {
        let Some(serve) = self.serves.get_mut(key).filter(|serve| serve.frames > 0) else { return };
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

    /// Whether a write of the same peer to the same device was given up (with its lane, at its deadline)
    /// and is still on its way there: what is written now must not be overtaken by it, whichever lane it
    /// came by.
    fn is_behind_old(&self, key: Key, file: FileTarget) -> bool {
        let Some(link) = self.serves.get(key).map(|serve| serve.link) else { return false };
        self.old_writes.iter().any(|&old| {
            self.serves.get(old).is_some_and(|old| {
                old.link == link && file_of(old.target).is_some_and(|to| to.device == file.device)
            })
        })
    }

    /// The write was given up, and is over now: those behind it go on.
    fn forget_old(&mut self, key: Key) {
        let Some(place) = self.old_writes.iter().position(|&old| old == key) else { return };
        self.old_writes.swap_remove(place);
        let mut from = 0;
        while let Some(next) = self.serves.next_from(from, |serve| serve.writes()) {
            from = next.index() + 1;
            self.make_ready(Work::Serve(next));
        }
    }

    fn forget_serve<I: Io>(&mut self, key: Key, io: &mut I) {
        self.leave_serve(key);
        let Some(serve) = self.serves.remove(key) else { return };
        self.forget_old(key);
        self.serve_deadlines.clear(key.index());
        self.remember_serve(&serve, io.now());
        let (id, status) = (self.transfers_started, serve.status.unwrap_or(Status::Ok));
        self.trace_end(Subject::Serve(key), id, status, (serve.plan.as_ref(), None), io.now());
        self.leave_served(serve.served, io);
        if let Some(region) = serve.region() {
            self.drain_sessions(io);
            self.drain_region(region.region);
        }
    }

    /// Frees fragments of an ended serve that are in staging and will not be sent or written.
    fn free_unsent(&mut self, key: Key) {
        for place in 0..DEPTH_MAX as usize {
            let Some(serve) = self.serves.get_mut(key) else { return };
            let Fragment::Ready { run, bytes } = serve.fragments[place] else { continue };
            serve.fragments[place] = Fragment::Free;
            let (lane, link) = (serve.lane, serve.link);
            if matches!(serve.op, ServeOp::Write { .. }) {
                serve.pins -= 1;
                self.return_credit(lane, bytes, true);
                self.free_landed(key, run);
            } else {
                self.free_read(link, run);
            }
        }
    }

    /// The lane is gone: nobody waits for its serves; they end when the kernel is done.
    pub(super) fn end_serves_of(&mut self, lane: Key) {
        let mut from = 0;
        while let Some(key) = self.serves.next_from(from, |serve| serve.lane == lane) {
            from = key.index() + 1;
            if let Some(serve) = self.serves.get_mut(key) {
                serve.status.get_or_insert(Status::Closed);
                serve.answered = true;
            }
            self.make_ready(Work::Serve(key));
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
            self.make_ready(Work::Serve(key));
            // A region is revoked, and its session closed: its frames have their time only once.
            if self.serves.get(key).is_some_and(|serve| serve.unread.is_none()) {
                self.watch_unread(key, io);
            }
        }
    }
}

fn micros(time: Nanos) -> u32 {
    u32::try_from(time.0 / 1_000).unwrap_or(u32::MAX)
}
