//! A peer's call: checked as it comes, carried out once its turn has come, and answered in one
//! frame.
//!
//! Its bytes are in a cell of staging from the start, and a short answer is made behind them. What
//! changes something waits for older changes of the same peer that were given up and are still
//! under way, as its writes do: so one that comes again after a lost lane finds what has become of
//! it. What came of a call that must not be carried out twice is remembered by its number.

use piped_core::call::{CALL_BYTES_MAX, Locking};
use piped_core::ids::FileId;
use piped_core::io::{Io, Op, Span};
use piped_core::status::Status;
use piped_wire::{LastPart, Message};

use crate::command::Target;
use crate::shard::Shard;
use crate::shard::buffers::{CallOf, footprint_of};
use crate::shard::call::{check, told};
use crate::shard::clients::access_of;
use crate::shard::connections::{Arrived, Lane, PeerLane};
use crate::shard::driver::{ECANCELED, On, Wanted};
use crate::shard::faults::PeerFault;
use crate::shard::flows::plan::facts;
use crate::shard::keys::{LinkKey, ServeKey, Subject};
use crate::shard::links::Staged;
use crate::shard::responder::{Ask, Called, ServeOp};
use crate::shard::sched::Work;

/// What calls of a target are made of: the device, the open file, and whether it is a directory.
fn callee_of(target: Target) -> Option<(On, FileId, bool)> {
    match target {
        Target::File(file) => Some((On::from(&file), file.buffered, false)),
        Target::Directory(it) => Some((On::new(it.device, it.foreign), it.directory, true)),
        Target::Region(_) | Target::Channel(_) => None,
    }
}

impl Shard {
    /// A peer makes a call. An error is its fault.
    pub(in crate::shard) fn handle_call<I: Io>(
        &mut self,
        on: PeerLane,
        arrived: &Arrived,
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let Message::Call { transfer, handle, answer_max, asker, once, time_left_us } =
            arrived.frame.message
        else {
            return Ok(());
        };
        let mut bytes = [0; CALL_BYTES_MAX];
        let bytes = match arrived.landed.filter(|_| arrived.intact) {
            Some(landed) => bytes.get_mut(..landed.length as usize).map(|bytes| (landed, bytes)),
            None => None,
        };
        let (landed, bytes) = bytes.ok_or(PeerFault::DamagedCall)?;
        io.load(landed, bytes);
        let Some(serving) = self.lanes.get(on.lane).and_then(Lane::serving) else { return Ok(()) };
        if !serving.has_room() {
            return Err(PeerFault::TooManyRequests);
        }
        if serving.serve_of(transfer).is_some() {
            return Err(PeerFault::RequestTwice);
        }
        match self.take_called(on.link, handle, bytes, (once, answer_max), io) {
            Ok(op) => {
                let (offset, length) = (0, answer_max.into());
                let ask = Ask { transfer, handle, offset, length, asker, time_left_us };
                self.serve(on, (ask, None), op, io)
            }
            Err(status) => self.answer_end(on.lane, transfer, status, 0),
        }
    }

    /// Checks a peer's call, and has its bytes in a cell.
    fn take_called<I: Io>(
        &mut self,
        link: LinkKey,
        handle: u32,
        bytes: &[u8],
        (once, room): (Option<(u32, u8)>, u32),
        io: &mut I,
    ) -> Result<ServeOp, Status> {
        let (_, served) = self.links.named(link, handle).ok_or(Status::BadHandle)?;
        if let Some((number, behind)) = once {
            served.updates().forget_before(number.wrapping_sub(behind.into()));
        }
        let target = served.target()?;
        let (_, _, is_directory) = callee_of(target).ok_or(Status::Invalid)?;
        let facts = check(bytes, (access_of(target), is_directory), room)?;
        // Without a number it would be carried out each time that it comes, and with one that it
        // does not need it would be remembered.
        if facts.once() != once.is_some() {
            return Err(Status::Invalid);
        }
        if facts.locks() == Some(Locking::Some) {
            served.note_locked();
        }
        let own = self.links.get(link).map_or(0, |link| link.call_bytes());
        let cell = self.cx.buffers.take_cell(CallOf::Peer, own).ok_or(Status::WouldBlock)?;
        self.links.count_call(link, true);
        let length = bytes.len() as u32;
        io.store(bytes, cell.span().part(0, length));
        let called = Called::new((cell, length), facts, once.map(|(number, _)| number));
        // There is a place for each serve, and one that finds none does not begin.
        match self.serves.keep_call(called) {
            Some(call) => Ok(ServeOp::Call { call, changes: facts.in_turn() }),
            None => {
                self.give_back_called(link, called);
                Err(Status::WouldBlock)
            }
        }
    }

    pub(in crate::shard) fn serve_call<I: Io>(&mut self, key: ServeKey, io: &mut I) {
        let Some(serve) = self.serves.get(key).filter(|serve| !serve.pins.any()) else { return };
        let callee = callee_of(serve.target);
        let (Some(&mut called), Some((on, file, _))) = (self.serves.call_of(key), callee) else {
            self.end_serve(key, Status::Invalid);
            return self.wind_up(key, io);
        };
        if let Some(bytes) = called.answered() {
            return self.answer_call(key, bytes, io);
        }
        // It is looked at again when the old one is over.
        if called.facts().in_turn() && self.serves.is_behind_old(key, on.device()) {
            return;
        }
        if let Some(status) = self.outcome_of(key, called) {
            self.end_serve(key, status);
            return self.wind_up(key, io);
        }
        let started = self.start_called(key, (on, file), io);
        if let Err(wanted) = started {
            self.cx.want(Work::Serve(key), wanted);
        }
    }

    /// What came of a call that was carried out before.
    fn outcome_of(&mut self, key: ServeKey, called: Called) -> Option<Status> {
        let served = self.links.served_mut(self.serves.get(key)?.served)?;
        let known = served.updates().get(called.number()?)?;
        Some(Status::from_u16(known as u16).unwrap_or(Status::Io))
    }

    /// Hands a call to the driver, or says what it must wait for.
    fn start_called<I: Io>(
        &mut self,
        key: ServeKey,
        (on, file): (On, FileId),
        io: &mut I,
    ) -> Result<(), Wanted> {
        self.cx.driver.may_call(on)?;
        let Some(serve) = self.serves.get(key) else { return Ok(()) };
        let (link, lane, most) = (serve.link, serve.lane, serve.ask.length as u32);
        let lacks = self.serves.call_of(key).map_or(0, |called| called.lacks(most));
        if lacks > 0 {
            let (footprint, left) = (footprint_of(lacks), self.cx.buffers.staging().free_bytes());
            if !self.cx.driver.devices().may_hold(on, footprint, left) {
                return Err(Wanted::Device(on));
            }
            if !self.may_stage_read(PeerLane { lane, link }, footprint) {
                return Err(Wanted::Anything);
            }
            let run = self.cx.buffers.take_run(lacks).ok_or(Wanted::Anything)?;
            self.links.stage(link, Staged::Reads, run.footprint());
            if let Some(called) = self.serves.call_of(key) {
                called.answer_into(run);
            }
        }
        let Some(&mut called) = self.serves.call_of(key) else { return Ok(()) };
        let Some(serve) = self.serves.get_mut(key) else { return Ok(()) };
        let op = Op::Call { file, call: called.span(), answer: called.answer(most) };
        let (_, run) = called.places();
        let staging = run.map_or(0, |run| run.footprint());
        self.cx.driver.start_call((key, &mut serve.pins), on, (op, staging), io)
    }

    /// The driver has carried a call out.
    pub(in crate::shard) fn end_called(&mut self, key: ServeKey, result: i32) {
        let Some(serve) = self.serves.get(key) else { return };
        let (served, most) = (serve.served, serve.ask.length as u32);
        let status = told(access_of(serve.target), result);
        let Some(called) = self.serves.call_of(key) else { return };
        let (number, answer) = (called.number(), called.answer(most).length);
        match u32::try_from(result) {
            Ok(bytes @ 1..) => called.note_answer(bytes.min(answer)),
            Ok(0) | Err(_) => self.end_serve(key, status),
        }
        // What the driver never began may be carried out yet.
        if let Some(number) = number.filter(|_| result != ECANCELED)
            && let Some(served) = self.links.served_mut(served)
            && !served.updates().has(number)
        {
            served.updates().add(number, status as u64);
        }
    }

    /// Queues the answer, which is the end of the call for the peer.
    fn answer_call<I: Io>(&mut self, key: ServeKey, bytes: u32, io: &mut I) {
        let now = io.now();
        if !self.may_move(Work::Serve(key), now) {
            return;
        }
        let Some(&mut called) = self.serves.call_of(key) else { return };
        let Some(serve) = self.serves.get_mut(key) else { return };
        let Some(lane) = self.lanes.get_mut(serve.lane) else { return };
        let service = now.since(serve.started).0 / 1_000;
        let last = LastPart {
            status: Status::Ok,
            bytes: bytes.into(),
            predicted_us: 0,
            margin_percent: 0,
            company: true,
            plan: 0,
        };
        let message = Message::Data {
            transfer: serve.ask.transfer,
            offset: 0,
            fragment: 0,
            backlogged: lane.has_data(),
            service_us: u32::try_from(service).unwrap_or(u32::MAX),
            last: Some(last),
        };
        let answer: Span = called.answer(bytes);
        if !lane.push_data(serve.flow(), message, Some(answer), Some(Subject::Serve(key))) {
            return self.cx.sched.starve(Work::Serve(key));
        }
        // The peer may ask again as soon as this arrives.
        serve.reply.give();
        if let Some(serving) = lane.serving_mut() {
            serving.forget(key);
        }
        serve.done = bytes.into();
        serve.reply.queue_frame();
        serve.pins.take(key).into_frame();
        let (lane, caller) = (serve.lane, facts::caller_of(serve));
        self.cx.watch.moved(Subject::Serve(key), caller, bytes.into());
        self.charge(Work::Serve(key), bytes.into(), now);
        self.cx.sched.make_ready(Work::Lane(lane));
        self.end_serve(key, Status::Ok);
        self.cx.sched.make_ready(Work::Serve(key));
    }

    /// A call is over, and nothing touches its memory.
    pub(in crate::shard) fn free_called(&mut self, link: LinkKey, op: ServeOp) {
        if let Some(called) = self.serves.end_call(op) {
            self.give_back_called(link, called);
        }
    }

    fn give_back_called(&mut self, link: LinkKey, called: Called) {
        let (cell, run) = called.places();
        self.links.count_call(link, false);
        self.cx.buffers.free_cell(cell, CallOf::Peer, &mut self.cx.sched);
        if let Some(run) = run {
            self.free_read(link, run);
        }
    }
}
