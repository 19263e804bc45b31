//! A peer's read: fragments from the device into blocks of staging, frames from there to the lane.
//!
//! Fragments come in any order, frames leave in the order of the file, so that the other side knows
//! where the next one goes. A frame leaves as soon as its bytes are there, whether its fragment is
//! the plan's next one or not. A region needs no staging: frames name the exporter's memory.

use std::ops::Range;
use std::sync::Arc;

use piped_core::io::{Io, Span};
use piped_core::limits::DEPTH_MAX;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::planned::Planned;
use piped_wire::{LastPart, Message};

use crate::command::{FileTarget, RegionTarget, Target};
use crate::shard::Shard;
use crate::shard::buffers::{Block, Blocks, Run, footprint_of, run_bytes};
use crate::shard::connections::{Lane, Lanes, PeerLane};
use crate::shard::cx::{Cx, ReadWay};
use crate::shard::driver::{Direction, Fragment, JobOwner, JobResult, On, Wanted};
use crate::shard::flows::plan::facts;
use crate::shard::flows::service::serve::micros;
use crate::shard::keys::{LinkKey, ServeKey, Subject, kind};
use crate::shard::links::Staged;
use crate::shard::pins::Pin;
use crate::shard::responder::Serve;
use crate::shard::sched::Work;

/// Where the bytes of a peer's read are taken from, which the first look decides.
fn way_of<I: Io>(
    (serve, blocks): (&mut Serve, &mut Blocks),
    file: FileTarget,
    lanes: &mut Lanes,
    cx: &mut Cx,
    io: &mut I,
) -> FileTarget {
    let file = match cx.way_of_read(file, (serve.ask.offset, serve.ask.length), true, io) {
        ReadWay::One(file) => file,
        ReadWay::Both(stripes) => {
            serve.read.stripe(blocks, stripes);
            file
        }
    };
    serve.target = Target::File(file);
    if let Some(serving) = lanes.get_mut(serve.lane).and_then(Lane::serving_mut) {
        serving.begin_read(file.cached);
    }
    file
}

/// The read of these bytes of a peer's read into its block.
fn fragment_of(
    (key, serve): (ServeKey, &Serve),
    target: FileTarget,
    block: &Block,
    bytes: Range<u64>,
) -> Fragment {
    Fragment {
        owner: JobOwner::ServeRead { serve: key, start: bytes.start },
        flow: serve.flow(),
        target,
        direction: Direction::Read,
        offset: serve.ask.offset + bytes.start,
        span: block.span(bytes.start, bytes.end),
    }
}

impl Shard {
    pub(in crate::shard) fn serve_file<I: Io>(
        &mut self,
        key: ServeKey,
        file: FileTarget,
        io: &mut I,
    ) {
        let Some(of) = self.serves.with_blocks(key) else { return };
        let file = match of.0.plan {
            Some(_) => file,
            None => way_of(of, file, &mut self.lanes, &mut self.cx, io),
        };
        let Some(planned) = self.plan_serve(key, Some(&file)) else { return };
        let Some(serve) = self.serves.get(key) else { return };
        if serve.next >= serve.ask.length && serve.read.held() == 0 && serve.done == serve.next {
            // Resumed with everything in place: only the end was lost.
            self.end_serve(key, Status::Ok);
            return self.wind_up(key, io);
        }
        let next_before = serve.next;
        // The device first: what is in the page cache is copied by this thread.
        let reads = self.start_reads(key, file, &planned, io);
        let copies = self.start_copies(key, file, &planned, io);
        let wanted = reads.and(copies).err();
        let Some(serve) = self.serves.get_mut(key) else { return };
        // The device has nothing else to do: it gets its work before the checksum of what is to be
        // sent. Only once for each that is sent: a device that is faster than a turn must not have
        // the whole request read before any of it leaves.
        let may_wait = planned.is_serial() && serve.next > next_before && next_before > serve.done;
        if may_wait && serve.read.hand_over() {
            self.cx.sched.hand_over_first();
            return self.cx.sched.make_ready(Work::Serve(key));
        }
        // `whole`: store, then forward. What cannot store more forwards what it stored: short of
        // staging two of them would wait for each other for ever, and one that comes both ways for
        // itself when it is as far ahead as it may be.
        if !planned.store_first || serve.read.reading() == 0 {
            self.send_frames_of(key, &planned, io);
        }
        if let Some(wanted) = wanted {
            self.cx.want(Work::Serve(key), wanted);
        }
    }

    /// Starts reads up to the plan's depth, or says what they must wait for.
    fn start_reads<I: Io>(
        &mut self,
        key: ServeKey,
        file: FileTarget,
        planned: &Planned,
        io: &mut I,
    ) -> Result<(), Wanted> {
        loop {
            let Some((serve, blocks)) = self.serves.with_blocks(key) else { return Ok(()) };
            let (next, end) = (serve.next, serve.ask.length.min(serve.read.end()));
            if next >= end {
                self.cx.sched.leave_line(Work::Serve(key));
                return Ok(());
            }
            // A block that was opened is filled: others may wait for its memory.
            let is_new = blocks.at(next).is_none();
            let at = self.cx.driver.devices().line(On::from(&file), io.now());
            let at = at.filter(|_| !planned.store_first).map(|at| at.by(serve.class_of_lane));
            let left = (end - next, serve.source_end(blocks, planned, next) >= end);
            let together = self.cx.sched.stand_in_line(Work::Serve(key), at, left);
            if is_new && together.is_none() {
                return Ok(());
            }
            // With others behind it the device is asked for as much as they would ask for.
            let depth = planned.cut.depth.saturating_mul(together.unwrap_or(1)).min(DEPTH_MAX);
            let ahead = serve.read.is_ahead(depth, (next, serve.done));
            // What the next frame waits for is never too much, however many fragments that are.
            let ahead = ahead && next >= serve.frame_end(blocks, planned, serve.done);
            let cached = serve.read.is_copied(blocks, next);
            if ahead || serve.read.is_scattered() || !cached && serve.read.is_deep(depth) {
                return Ok(());
            }
            if is_new {
                self.open_read_block(key, file, planned)?;
            }
            let Some((serve, blocks)) = self.serves.with_blocks(key) else { return Ok(()) };
            let boundary = serve.source_end(blocks, planned, next).min(end);
            let Some(block) = blocks.at(next) else { return Ok(()) };
            let boundary = boundary.min(block.end);
            if cached {
                serve.read.pass_fragment();
                serve.next = boundary;
                continue;
            }
            let fragment = fragment_of((key, serve), file, block, next..boundary);
            let (driver, mut lent) = self.cx.lend();
            if let Err(wanted) = driver.start_job(fragment, &mut serve.pins, &mut lent, io) {
                self.close_unused_block(key, next);
                return Err(wanted);
            }
            // The job may be over already only in a driver that ends operations inside push; none
            // does.
            if let Some(block) = blocks.at(next) {
                block.jobs += 1;
            }
            serve.read.begin_fragment();
            serve.next = boundary;
            self.cx.sched.give(Work::Serve(key));
        }
    }

    /// Starts copies from the page cache of what has staging, if the read comes both ways, or says
    /// what they must wait for.
    fn start_copies<I: Io>(
        &mut self,
        key: ServeKey,
        file: FileTarget,
        planned: &Planned,
        io: &mut I,
    ) -> Result<(), Wanted> {
        loop {
            let Some((serve, blocks)) = self.serves.with_blocks(key) else { return Ok(()) };
            if serve.read.is_scattered() {
                return Ok(());
            }
            let Some(start) = serve.read.next_copy(blocks, serve.next) else { return Ok(()) };
            let end = serve.source_end(blocks, planned, start).min(serve.next);
            let Some(block) = blocks.at(start) else { return Ok(()) };
            let end = end.min(block.end);
            let fragment = fragment_of((key, serve), file.by_cache(), block, start..end);
            let (driver, mut lent) = self.cx.lend();
            driver.start_job(fragment, &mut serve.pins, &mut lent, io)?;
            block.jobs += 1;
            serve.read.begin_copy(end);
        }
    }

    /// Takes staging for what comes next: whole fragments and whole frames.
    fn open_read_block(
        &mut self,
        key: ServeKey,
        file: FileTarget,
        planned: &Planned,
    ) -> Result<(), Wanted> {
        let Some(serve) = self.serves.get(key) else { return Ok(()) };
        let (next, link, lane) = (serve.next, serve.link, serve.lane);
        let end = planned.shared_end(serve.ask.offset, next, serve.ask.length);
        let (at, full) = (serve.ask.offset + next, self.serves.blocks(key).is_full());
        let bytes = run_bytes(at, end - next);
        let (on, left) = (On::from(&file), self.cx.buffers.staging().free_bytes());
        if full {
            return Err(Wanted::Anything);
        }
        if !self.cx.driver.devices().may_hold(on, bytes.into(), left) {
            return Err(Wanted::Device(on));
        }
        if !self.may_stage_read(PeerLane { lane, link }, footprint_of(bytes)) {
            return Err(Wanted::Anything);
        }
        let run = self.cx.buffers.take_run(bytes).ok_or(Wanted::Anything)?;
        self.links.stage(link, Staged::Reads, run.footprint());
        self.serves.blocks(key).push(Block::new(run, at, next, end));
        Ok(())
    }

    /// Gives back the block that was opened for a fragment that could not be started.
    fn close_unused_block(&mut self, key: ServeKey, start: u64) {
        let Some((serve, blocks)) = self.serves.with_blocks(key) else { return };
        if blocks.last_mut().is_some_and(|block| block.start == start)
            && let Some(block) = blocks.pop_last()
        {
            let link = serve.link;
            self.links.unstage(link, Staged::Reads, block.run.footprint());
            self.cx.buffers.give_back(block.run);
        }
    }

    /// A fragment is in staging (or failed, or the file ended in it).
    pub(in crate::shard) fn handle_fragment_read(
        &mut self,
        pin: Pin<kind::Serve>,
        start: u64,
        result: JobResult,
    ) {
        let key = pin.key();
        let Some((serve, blocks)) = self.serves.with_blocks(key) else { return };
        serve.pins.give_back(pin);
        let is_copy = serve.read.is_copied(blocks, start);
        serve.read.end_fragment(is_copy);
        if let Some(block) = blocks.at(start) {
            block.jobs -= 1;
        }
        let end = start + u64::from(result.bytes);
        if result.bytes < result.asked {
            serve.read.cut_off(end);
        }
        let inserted = serve.landed.insert(blocks.beyond(), start, end);
        debug_assert!(inserted.is_ok(), "each fragment is read once, and few are out of order");
        if result.status != Status::Ok {
            serve.status.get_or_insert(result.status);
        } else if inserted.is_err() {
            serve.status.get_or_insert(Status::WouldBlock);
        }
    }

    /// Queues the frames on the lane whose bytes are there, in order.
    pub(in crate::shard) fn send_frames_of<I: Io>(
        &mut self,
        key: ServeKey,
        planned: &Planned,
        io: &mut I,
    ) {
        loop {
            let Some((serve, blocks)) = self.serves.with_blocks(key) else { return };
            let (at, limit) = (serve.done, serve.ask.length.min(serve.read.end()));
            if serve.reply.is_given() || serve.status.is_some() {
                return;
            }
            let end = serve.frame_end(blocks, planned, at);
            // The source may end where a fragment does: that is known when the next one has no
            // bytes.
            let over = at >= limit && serve.read.end() <= at;
            if !over && serve.landed.watermark() < end {
                return;
            }
            if !self.may_move(Work::Serve(key), io.now()) {
                return;
            }
            let last = end >= limit;
            let Some(block) = self.serves.blocks(key).at(at) else { return };
            let span = block.span(at, end);
            if !self.push_data(key, span, planned, last, io.now()) {
                return self.cx.sched.starve(Work::Serve(key));
            }
            let Some((serve, blocks)) = self.serves.with_blocks(key) else { return };
            if let Some(block) = blocks.at(at) {
                block.frames += 1;
            }
            serve.read.note_queued();
            if last {
                return self.end_serve(key, Status::Ok);
            }
        }
    }

    pub(in crate::shard) fn serve_region<I: Io>(
        &mut self,
        key: ServeKey,
        region: RegionTarget,
        io: &mut I,
    ) {
        let Some(planned) = self.plan_serve(key, None) else { return };
        loop {
            let Some(serve) = self.serves.get(key) else { return };
            if serve.reply.is_full() {
                return;
            }
            let boundary = planned.lane_end(serve.ask.offset, serve.done, serve.ask.length);
            let now = io.now();
            if !self.may_move(Work::Serve(key), now) {
                return;
            }
            let Some(serve) = self.serves.get(key) else { return };
            let length = (boundary - serve.done) as u32;
            let offset = region.offset + serve.ask.offset + serve.done;
            let span = Span { segment: region.segment, offset, length };
            let last = boundary == serve.ask.length;
            if !self.push_data(key, span, &planned, last, now) {
                return self.cx.sched.starve(Work::Serve(key));
            }
            if last {
                self.end_serve(key, Status::Ok);
                return self.cx.sched.make_ready(Work::Serve(key));
            }
        }
    }

    /// Queues one frame of data; `false` if the lane is full.
    fn push_data(
        &mut self,
        key: ServeKey,
        span: Span,
        planned: &Planned,
        last: bool,
        now: Nanos,
    ) -> bool {
        let has_company = last && !self.cx.watch.is_alone(Subject::Serve(key));
        let Some(serve) = self.serves.get_mut(key) else { return true };
        // What comes both ways is no example of a plan for the device.
        let has_company = has_company || serve.read.is_striped();
        let Some(lane) = self.lanes.get_mut(serve.lane) else { return false };
        // The checksum comes when the frame leaves, but is no part of the wire either.
        let check = lane.check_time(&self.cx.planner, span.length);
        let service = (now.since(serve.started) + check).0 / 1_000;
        let bytes = serve.done + u64::from(span.length);
        let last = last.then(|| LastPart {
            status: Status::Ok,
            bytes,
            predicted_us: micros(planned.predicted),
            margin_percent: planned.margin_percent(),
            company: has_company,
            plan: planned.cut.number(),
        });
        let message = Message::Data {
            transfer: serve.ask.transfer,
            offset: serve.done,
            fragment: planned.grid(),
            backlogged: lane.has_data(),
            service_us: u32::try_from(service).unwrap_or(u32::MAX),
            last,
        };
        let payload = (span.length > 0).then_some(span);
        if !lane.push_data(serve.flow(), message, payload, Some(Subject::Serve(key))) {
            return false;
        }
        if last.is_some() {
            // The peer may ask again as soon as this arrives.
            serve.reply.give();
            if let Some(serving) = lane.serving_mut() {
                serving.forget(key);
            }
        }
        serve.done = bytes;
        serve.reply.queue_frame();
        serve.pins.take(key).into_frame();
        let (lane, caller) = (serve.lane, facts::caller_of(serve));
        self.cx.watch.moved(Subject::Serve(key), caller, span.length.into());
        self.charge(Work::Serve(key), span.length.into(), now);
        self.cx.sched.make_ready(Work::Lane(lane));
        true
    }

    /// A frame of a read is with the kernel (or never will be): the next one may follow.
    pub(in crate::shard) fn handle_read_frame_taken(&mut self, key: ServeKey) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        serve.reply.lend_frame();
        if serve.is_staged()
            && let Some(planned) = serve.plan.clone()
            && let Some((serve, blocks)) = self.serves.with_blocks(key)
        {
            serve.note_frame_sent(blocks, &planned);
        }
        self.cx.sched.make_ready(Work::Serve(key));
    }

    /// The kernel is done with a frame of a read: its memory is free of it.
    pub(in crate::shard) fn handle_read_frame_sent(&mut self, key: ServeKey) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        serve.reply.free_frame();
        serve.pins.give_back(Pin::of_frame(key));
        if serve.is_staged()
            && let Some(planned) = serve.plan.clone()
        {
            self.advance_free(key, &planned);
        }
        self.cx.sched.make_ready(Work::Serve(key));
    }

    /// Books the oldest frame that the kernel had as free, and frees what was the last of its
    /// block.
    fn advance_free(&mut self, key: ServeKey, planned: &Arc<Planned>) {
        let Some((serve, blocks)) = self.serves.with_blocks(key) else { return };
        let free = serve.note_frame_free(blocks, planned);
        let link = serve.link;
        if let Some(block) = blocks.pop_if(|block| block.is_idle() && block.end <= free) {
            self.free_read(link, block.run);
        }
    }

    /// A read needs so much staging no longer.
    pub(in crate::shard) fn free_read(&mut self, link: LinkKey, run: Run) {
        self.links.unstage(link, Staged::Reads, run.footprint());
        self.cx.free_staging(run);
    }
}
