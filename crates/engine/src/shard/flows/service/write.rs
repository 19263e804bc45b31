//! A peer's write: frames land in blocks of staging, and go to the device by the fragments the peer
//! planned.
//!
//! The peer knows what our device costs by our reports; what it planned came with its request.
//! Frames that belong to one fragment land side by side, and the fragment is written when it is
//! complete. Only if the lane could stand still for it (its credit or its staging is used up by
//! fragments that are not complete) what has landed is written as it is. A write to a region lands
//! in place.

use piped_core::io::{Io, Span};
use piped_core::limits;
use piped_core::status::Status;
use piped_core::units::Nanos;

use crate::command::{FileTarget, Target};
use crate::shard::Shard;
use crate::shard::buffers::{Block, footprint_of, run_bytes};
use crate::shard::connections::{Destination, Lane, PeerRequest, Target as Landing};
use crate::shard::cx::Cx;
use crate::shard::delays::{Effect, Hop};
use crate::shard::driver::{
    Ahead, Direction, Fragment, JobOwner, JobResult, On, Wanted, status_of,
};
use crate::shard::faults::PeerFault;
use crate::shard::keys::{LaneKey, ServeKey, Subject, kind};
use crate::shard::links::Staged;
use crate::shard::pins::Pin;
use crate::shard::requests::file_of;
use crate::shard::responder::{ServeOp, WriteStep};
use crate::shard::sched::Work;

impl Shard {
    pub(in crate::shard) fn serve_write<I: Io>(
        &mut self,
        key: ServeKey,
        durable: bool,
        io: &mut I,
    ) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        let file = file_of(serve.target);
        if let Some(file) = file
            && serve.write.wants_allocation()
        {
            let (range, of) = ((serve.ask.offset, serve.ask.length), (key, &mut serve.pins));
            match self.cx.driver.allocate_ahead(of, &file, range, io) {
                Ahead::NotNeeded => serve.write.allocate(false),
                Ahead::Started => serve.write.allocate(true),
                Ahead::NoRoom(wanted) => return self.cx.want(Work::Serve(key), wanted),
            }
        }
        if let Some(file) = file
            && let Err(wanted) = self.start_writes(key, file, io)
        {
            if matches!(wanted, Wanted::Device(_)) {
                self.watch_choked(key, io.now());
            }
            return self.cx.want(Work::Serve(key), wanted);
        }
        if let Some(Target::Region(region)) = self.serves.get(key).map(|serve| serve.target) {
            self.scatter(key, region, io);
        }
        let Some(serve) = self.serves.get_mut(key) else { return };
        if serve.done < serve.ask.length || serve.pins.any() {
            return;
        }
        match file {
            Some(file) if durable && serve.write.may_sync() => {
                let of = (key, &mut serve.pins);
                if let Err(wanted) = self.cx.driver.start_sync(of, file.buffered, io) {
                    return self.cx.want(Work::Serve(key), wanted);
                }
                serve.write.begin_sync(io.now());
            }
            _ => {
                let Some(serve) = self.serves.get(key) else { return };
                let (lane, handle) = (serve.lane, serve.ask.handle);
                // Not only where frames come in bursts: behind a slow stage each comes alone.
                let now = io.now();
                self.report_stages(lane, now);
                if let Some(file) = file {
                    self.report_disk(lane, handle, file.device, now);
                }
                self.end_serve(key, Status::Ok);
                self.wind_up(key, io);
            }
        }
    }

    /// The end of an allocation, a sync or a call.
    pub(in crate::shard) fn handle_serve_step(
        &mut self,
        pin: Pin<kind::Serve>,
        result: i32,
        now: Nanos,
    ) {
        let key = pin.key();
        let Some(serve) = self.serves.get_mut(key) else { return };
        serve.pins.give_back(pin);
        if let ServeOp::Call { .. } = serve.op {
            self.end_called(key, result);
            return self.cx.sched.make_ready(Work::Serve(key));
        }
        let (length, file) = (serve.ask.length, file_of(serve.target));
        let status = match (serve.write.end_step(), file) {
            (Some(WriteStep::Allocation), Some(file)) => {
                let end = serve.ask.offset + length;
                self.cx.driver.allocated(file.buffered, end, result).err()
            }
            _ if result < 0 => Some(status_of(result)),
            (Some(WriteStep::Sync(begun)), Some(file)) => {
                let Cx { watch, planner, .. } = &mut self.cx;
                watch.pass_sync(Subject::Serve(key), (file.device, length), (begun, now), planner);
                Some(Status::Ok)
            }
            _ => Some(Status::Ok),
        };
        if let Some(status) = status {
            self.end_serve(key, status);
        }
        self.cx.sched.make_ready(Work::Serve(key));
    }

    /// Where the payload of a write goes.
    pub(in crate::shard) fn place_write(
        &mut self,
        key: ServeKey,
        offset: u64,
        payload: u32,
    ) -> Destination {
        let Some(serve) = self.serves.get_mut(key) else { return Destination::Discard };
        let end = offset.saturating_add(u64::from(payload));
        let is_write = matches!(serve.op, ServeOp::Write { .. });
        // In order and without gaps: what the requester sends is what it planned.
        if !is_write || offset != serve.next || end > serve.ask.length {
            return Destination::Fault(PeerFault::WriteOutOfOrder);
        }
        if serve.status.is_some() {
            return Destination::Discard;
        }
        let lane = serve.lane;
        match serve.target {
            Target::Region(region) if !serve.is_staged() => {
                let at = region.offset + serve.ask.offset + offset;
                let span = Span { segment: region.segment, offset: at, length: payload };
                Destination::Land(Landing::ServeRegion(serve.pins.take(key)), span)
            }
            Target::Channel(_) | Target::Directory(_) => Destination::Discard,
            Target::File(_) | Target::Region(_) => match self.stage_landing(key, offset, end) {
                Some((pin, span)) => Destination::Land(Landing::ServeStaging(pin), span),
                None => {
                    // Behind this frame come those that complete the fragments which have the room
                    // it wants.
                    self.close_fragments_of(lane);
                    Destination::Wait
                }
            },
        }
    }

    /// What has landed of a write waits for room at its device, and has its lane's credit, which
    /// others need: not for long if the device does nothing at all.
    fn watch_choked(&mut self, key: ServeKey, now: Nanos) {
        let Some(serve) = self.serves.get_mut(key) else { return };
        if serve.write.choke() {
            let until = serve.deadline.min(now + limits::CHOKED_TIME);
            self.serves.look_at(key, until);
        }
    }

    /// A while later. Whether it goes on.
    pub(in crate::shard) fn is_unchoked(&mut self, key: ServeKey, now: Nanos) -> bool {
        let Some(serve) = self.serves.get_mut(key) else { return true };
        if !serve.write.take_choked() || now >= serve.deadline {
            return false;
        }
        let parked = self.cx.sched.is_parked(Work::Serve(key));
        let stalled = parked
            && file_of(serve.target)
                .is_some_and(|file| self.cx.driver.devices().is_stalled(On::from(&file), now));
        if stalled {
            self.end_serve(key, Status::WouldBlock);
        } else if parked {
            self.watch_choked(key, now);
        } else {
            let deadline = serve.deadline;
            self.serves.look_at(key, deadline);
        }
        !stalled
    }

    /// Memory for a piece of a write: behind the one before it, if they belong to one fragment.
    fn stage_landing(
        &mut self,
        key: ServeKey,
        start: u64,
        end: u64,
    ) -> Option<(Pin<kind::Serve>, Span)> {
        let (serve, blocks) = self.serves.with_blocks(key)?;
        let fits = blocks.at(start).is_some_and(|block| end <= block.end);
        if !fits {
            serve.close_fragment(blocks);
            let fragment = serve.sink_end(start).max(end);
            // A fragment that does not fit now is written in pieces.
            let opened = self.open_write_block(key, start, fragment)
                || fragment > end && self.open_write_block(key, start, end);
            if !opened {
                return None;
            }
        }
        let block = self.serves.blocks(key).at(start)?;
        block.frames += 1;
        let span = block.span(start, end);
        Some((self.serves.get_mut(key)?.pins.take(key), span))
    }

    /// Staging for a fragment of a write, out of its lane's share. A short one takes a whole
    /// granule: credit alone, which counts bytes, would let a peer hold all staging with few of
    /// them.
    fn open_write_block(&mut self, key: ServeKey, start: u64, end: u64) -> bool {
        let Some(serve) = self.serves.get(key) else { return false };
        let (at, link) = (serve.ask.offset + start, serve.link);
        let bytes = run_bytes(at, end - start);
        let may_stage = self.may_stage(link, footprint_of(bytes));
        let serving = self.lanes.get_mut(serve.lane).and_then(Lane::serving_mut);
        let Some(serving) = serving else { return false };
        let staged = serving.staged + footprint_of(bytes);
        let share = serving.staged == 0 || staged <= serving.window.window();
        if self.serves.blocks(key).is_full() || !share || !may_stage {
            return false;
        }
        let Some(run) = self.cx.buffers.take_run(bytes) else { return false };
        serving.staged += run.footprint();
        self.links.stage(link, Staged::Writes, run.footprint());
        self.serves.blocks(key).push(Block::new(run, at, start, end));
        true
    }

    /// Staging is not charged to a lane any more.
    fn unstage(&mut self, lane: LaneKey, bytes: u64) {
        if let Some(serving) = self.lanes.get_mut(lane).and_then(Lane::serving_mut) {
            serving.staged -= bytes;
        }
    }

    /// A block of a write is not needed any more.
    pub(in crate::shard) fn free_landed(&mut self, key: ServeKey, block: Block) {
        let footprint = block.run.footprint();
        let serve = self.serves.get(key).map(|serve| (serve.lane, serve.link));
        if let Some((lane, _)) = serve.filter(|_| !block.paid) {
            self.unstage(lane, footprint);
        }
        if let Some((_, link)) = serve {
            self.links.unstage(link, Staged::Writes, footprint);
        }
        self.cx.free_staging(block.run);
    }

    /// A piece of a write has arrived.
    pub(in crate::shard) fn handle_write_data<I: Io>(
        &mut self,
        lane: LaneKey,
        wire: u64,
        payload: u32,
        landing: Landing,
        intact: bool,
        io: &mut I,
    ) {
        let lands = !matches!(landing, Landing::Nothing);
        let key = match &landing {
            Landing::ServeRegion(pin) | Landing::ServeStaging(pin) => Some(pin.key()),
            _ => self.lanes.get(lane).and_then(|lane| lane.serving()?.serve_of(wire)),
        };
        let serve = key.and_then(|key| self.serves.get_mut(key));
        match (serve, landing) {
            (Some(serve), Landing::ServeStaging(pin)) => {
                let key = pin.key();
                let next = serve.next;
                serve.next += u64::from(payload);
                if let Some(block) = self.serves.blocks(key).at(next) {
                    block.frames -= 1;
                }
                self.serves.unpin(pin, &mut self.cx.sched);
                self.hurry_fragments(lane);
                self.take_effect(lane, key, payload, false, io);
            }
            (Some(serve), Landing::ServeRegion(pin)) => {
                let key = pin.key();
                serve.next += u64::from(payload);
                self.serves.unpin(pin, &mut self.cx.sched);
                self.take_effect(lane, key, payload, true, io);
            }
            (serve, _) => {
                if let Some(serve) = serve {
                    serve.next += u64::from(payload);
                }
                self.return_credit(lane, payload, true);
            }
        }
        if let Some(key) = key {
            if !intact && lands {
                self.end_serve(key, Status::Corrupt);
            }
            self.cx.sched.make_ready(Work::Serve(key));
        }
    }

    /// A piece of a write is here: what follows is for now, or for when dials let go of it.
    fn take_effect<I: Io>(
        &mut self,
        lane: LaneKey,
        serve: ServeKey,
        payload: u32,
        region: bool,
        io: &mut I,
    ) {
        if self.cx.dials.any() {
            let effect = Effect::Written { lane, serve, payload, region };
            return self.pass(Hop::Net, effect, payload, io);
        }
        self.handle_write_landed(lane, serve, payload, region);
    }

    /// The next piece of a write may go to the device, or is where it belongs.
    pub(in crate::shard) fn handle_write_landed(
        &mut self,
        lane: LaneKey,
        key: ServeKey,
        payload: u32,
        region: bool,
    ) {
        if let Some((serve, blocks)) = self.serves.with_blocks(key) {
            serve.write.arrive(payload);
            if region {
                serve.land(blocks.beyond(), serve.done, payload);
            }
            self.cx.sched.make_ready(Work::Serve(key));
        }
        if region {
            // It is the lane's, also if nobody waits for the write any more.
            self.return_credit(lane, payload, false);
        }
    }

    /// A payload that was to land will not: its lane is gone.
    pub(in crate::shard) fn drop_landing(&mut self, pin: Pin<kind::Serve>) {
        let key = pin.key();
        if let Some((serve, blocks)) = self.serves.with_blocks(key)
            && let Some(block) = blocks.at(serve.next)
        {
            block.frames -= 1;
        }
        self.serves.unpin(pin, &mut self.cx.sched);
    }

    /// The peer may soon have no credit for the next frame of any write: then no fragment waits to
    /// be complete, or all would wait for ever.
    fn hurry_fragments(&mut self, lane: LaneKey) {
        let Some(serving) = self.lanes.get(lane).and_then(Lane::serving) else { return };
        let granted = serving.window.granted();
        if granted >= limits::write_piece_max(serving.window.window()) {
            return;
        }
        let frame = |request: &PeerRequest| match self.serves.get(request.serve)?.op {
            ServeOp::Write { sink, .. } => Some(u64::from(sink.frame)),
            _ => None,
        };
        if granted < serving.serves.iter().filter_map(frame).max().unwrap_or(0) {
            self.close_fragments_of(lane);
        }
    }

    fn close_fragments_of(&mut self, lane: LaneKey) {
        let count = self.lanes.get(lane).map_or(0, |lane| lane.serves().len());
        for index in 0..count {
            let request = self.lanes.get(lane).and_then(|lane| lane.serves().get(index));
            let Some(&PeerRequest { serve: key, .. }) = request else { return };
            let found = self.serves.with_blocks(key);
            if found.is_some_and(|(serve, blocks)| serve.writes() && serve.close_fragment(blocks)) {
                self.cx.sched.make_ready(Work::Serve(key));
            }
        }
    }

    /// Begins the writes of the fragments that are complete, or says what they must wait for. A
    /// fragment's credit goes back when the device has it.
    fn start_writes<I: Io>(
        &mut self,
        key: ServeKey,
        file: FileTarget,
        io: &mut I,
    ) -> Result<(), Wanted> {
        loop {
            let Some((serve, blocks)) = self.serves.with_blocks(key) else { return Ok(()) };
            let (start, landed) = (serve.write.begun(), serve.write.ready());
            let fragment = serve.sink_end(start);
            let Some(block) = blocks.at(start) else { return Ok(()) };
            let end = fragment.min(block.end);
            if landed < end {
                return Ok(());
            }
            let (span, at, lane) = (block.span(start, end), serve.ask.offset + start, serve.lane);
            // A device of somebody else's may keep it for as long as it likes. Then it is the
            // device's share of staging that it takes, and not its lane's, which others need.
            let (on, left) = (On::from(&file), self.cx.buffers.staging().free_bytes());
            let paid = file.foreign;
            if paid && !self.cx.driver.devices().may_hold(on, span.length.into(), left) {
                return Err(Wanted::Device(on));
            }
            let fragment = Fragment {
                owner: JobOwner::ServeWrite { serve: key, start, paid },
                flow: serve.flow(),
                target: file,
                direction: Direction::Write,
                offset: at,
                span,
            };
            let (driver, mut lent) = self.cx.lend();
            driver.start_job(fragment, &mut serve.pins, &mut lent, io)?;
            serve.write.begin_to(end);
            let Some(block) = blocks.at(start) else { return Ok(()) };
            block.jobs += 1;
            if paid {
                let moved = !std::mem::replace(&mut block.paid, true);
                let footprint = block.run.footprint();
                if moved {
                    self.unstage(lane, footprint);
                }
                self.return_credit(lane, span.length, false);
            }
        }
    }

    /// A fragment of a write is with the device, or failed. `paid`: its credit went back already.
    pub(in crate::shard) fn handle_fragment_written(
        &mut self,
        pin: Pin<kind::Serve>,
        start: u64,
        paid: bool,
        result: JobResult,
    ) {
        let key = pin.key();
        let Some((serve, blocks)) = self.serves.with_blocks(key) else { return };
        if let Some(block) = blocks.at(start) {
            block.jobs -= 1;
        }
        let begun = serve.write.begun();
        while let Some(block) = self.serves.blocks(key).pop_if(|it| it.is_idle() && it.end <= begun)
        {
            self.free_landed(key, block);
        }
        let Some((serve, blocks)) = self.serves.with_blocks(key) else { return };
        serve.land(blocks.beyond(), start, result.bytes);
        let lane = serve.lane;
        if result.status != Status::Ok {
            self.end_serve(key, result.status);
        }
        self.serves.unpin(pin, &mut self.cx.sched);
        if !paid {
            self.return_credit(lane, result.asked, false);
        }
    }
}
