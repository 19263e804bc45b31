//! A transfer between a file of this node and a client's memory: fragments as the plan cuts them,
//! as many at the device as it says.

use piped_core::io::Io;
use piped_core::limits;
use piped_core::status::Status;

use crate::shard::Shard;
use crate::shard::cx::{Cx, ReadWay};
use crate::shard::driver::{Ahead, Fragment, JobOwner, JobResult, On, status_of};
use crate::shard::keys::{Subject, TransferKey, kind};
use crate::shard::pins::Pin;
use crate::shard::requests::{Body, FileBody, Phase, VectorBody, Waiter};
use crate::shard::sched::Work;

impl Shard {
    pub(in crate::shard) fn drive_file<I: Io>(
        &mut self,
        key: TransferKey,
        mut body: FileBody,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let (length, available) = (transfer.length, transfer.available);
        let is_part = transfer.waiter.is_part();
        // The halves of a copy have its plan, and what is copied is seldom read twice.
        let is_new =
            transfer.plans.own().is_none() && !matches!(transfer.waiter, Waiter::Copy { .. });
        if body.phase() == Phase::Allocate {
            let (range, of) = ((body.offset(), length), (key, &mut transfer.pins));
            match self.cx.driver.allocate_ahead(of, &body.target(), range, io) {
                Ahead::NotNeeded => body.enter(Phase::Moving),
                Ahead::Started => body.enter(Phase::Allocating),
                Ahead::NoRoom(wanted) => self.cx.want(Work::Transfer(key), wanted),
            }
        }
        if body.phase() == Phase::Moving {
            if is_new && body.seeks_way() {
                let (file, range) = (body.target(), (body.offset(), length));
                let may_split = !is_part && self.transfers.room() > 1;
                match self.cx.way_of_read(file, range, may_split, io) {
                    ReadWay::One(file) => body.go_by(file),
                    ReadWay::Both(stripes) => {
                        let vector = VectorBody::striped(file, range, body.memory(), stripes);
                        let vector = self.bodies.keep_vector(vector);
                        self.store_body(key, Body::Vector(vector));
                        return self.drive_vector(key, io);
                    }
                }
            }
            let planned = self.plan_local(key, &body, length);
            loop {
                let now = io.now();
                // The halves of a copy wait for each other.
                let at = self.cx.driver.devices().line(On::from(&body.target()), now);
                let (at, left) = (at.filter(|_| !is_part), body.left(&planned, length));
                let together = self.cx.sched.stand_in_line(Work::Transfer(key), at, left);
                let Some(together) = together else { break };
                let next = body.next_fragment(&planned, (length, available), together);
                let Some((start, end)) = next else { break };
                if !self.may_move(Work::Transfer(key), now) {
                    break;
                }
                let fragment = Fragment {
                    owner: JobOwner::Transfer { transfer: key, start },
                    flow: self.flow_of(Work::Transfer(key)),
                    target: body.target(),
                    direction: body.direction(),
                    offset: body.offset() + start,
                    span: body.span((start, end)),
                };
                let Some(transfer) = self.transfers.get_mut(key) else { return };
                let (driver, mut lent) = self.cx.lend();
                let started = driver.start_job(fragment, &mut transfer.pins, &mut lent, io);
                if let Err(wanted) = started {
                    self.cx.want(Work::Transfer(key), wanted);
                    break;
                }
                self.charge(Work::Transfer(key), end - start, now);
                body.begin_fragment(end);
            }
            if body.is_moved(length) {
                self.store_body(key, Body::File(body));
                return self.file_moved(key, body, io);
            }
        }
        self.store_body(key, Body::File(body));
    }

    /// All bytes are moved: make them durable if that was asked.
    fn file_moved<I: Io>(&mut self, key: TransferKey, mut body: FileBody, io: &mut I) {
        if !body.is_durable() {
            return self.decide(key, Status::Ok, io);
        }
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let of = (key, &mut transfer.pins);
        match self.cx.driver.start_sync(of, body.target().buffered, io) {
            Ok(()) => {
                body.begin_sync(io.now());
                self.store_body(key, Body::File(body));
            }
            Err(wanted) => self.cx.want(Work::Transfer(key), wanted),
        }
    }

    /// The end of an allocation, a sync or a call.
    pub(in crate::shard) fn handle_transfer_step<I: Io>(
        &mut self,
        pin: Pin<kind::Transfer>,
        result: i32,
        io: &mut I,
    ) {
        let key = pin.key();
        self.transfers.unpin(pin, &mut self.cx.sched);
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        match &mut transfer.body {
            Body::File(body) if body.phase() == Phase::Allocating => {
                body.enter(Phase::Moving);
                let (file, end) = (body.target().buffered, body.offset() + transfer.length);
                if let Err(status) = self.cx.driver.allocated(file, end, result) {
                    self.decide(key, status, io);
                }
            }
            Body::Call(_) => self.end_local_call(key, result, io),
            _ => {
                let status = if result < 0 { status_of(result) } else { Status::Ok };
                if let (Status::Ok, Body::File(body)) = (status, &transfer.body) {
                    let of = (body.target().device, transfer.length);
                    let Cx { watch, planner, .. } = &mut self.cx;
                    let times = (body.sync_began(), io.now());
                    watch.pass_sync(Subject::Transfer(key), of, times, planner);
                }
                self.decide(key, status, io);
            }
        }
        self.cx.sched.make_ready(Work::Transfer(key));
    }

    /// A fragment of a local transfer ended.
    pub(in crate::shard) fn handle_fragment<I: Io>(
        &mut self,
        pin: Pin<kind::Transfer>,
        start: u64,
        result: JobResult,
        io: &mut I,
    ) {
        let key = pin.key();
        self.transfers.unpin(pin, &mut self.cx.sched);
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let length = transfer.length;
        let Body::File(body) = &mut transfer.body else { return };
        body.end_fragment(transfer.plans.own().map(AsRef::as_ref), (start, result.bytes), length);
        let moved = self.transfers.land(key, start, start + u64::from(result.bytes));
        if result.status != Status::Ok {
            return self.decide(key, result.status, io);
        }
        if moved == Ok(true) {
            self.tell_progress(key);
        }
    }
}

const _: () = assert!(limits::FRAGMENT_BYTES_MAX as u64 <= limits::REQUEST_BYTES_MAX);
