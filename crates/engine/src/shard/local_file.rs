//! A transfer between a file of this node and a client's memory: fragments as the plan cuts them,
//! as many at the device as it says.

use piped_core::io::Io;
use piped_core::limits;
use piped_core::status::Status;
use piped_planner::planned::boundary;

use super::Shard;
use super::cx::Cx;
use super::driver::{Ahead, Direction, Fragment, JobOwner, JobResult, status_of};
use super::keys::{Subject, TransferKey, kind};
use super::pins::Pin;
use super::requests::{Body, FileBody, Phase, Waiter};
use super::sched::Work;

/// The least that a write has at its device at once: what is not read yet bounds it anyway.
const WRITES_AT_ONCE: u32 = 8;

impl Shard {
    pub(super) fn drive_file<I: Io>(&mut self, key: TransferKey, mut body: FileBody, io: &mut I) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let (length, available) = (transfer.length, transfer.available);
        // The halves of a copy have its plan, and what is copied is seldom read twice.
        let is_new = transfer.plan.is_none() && !matches!(transfer.waiter, Waiter::Copy { .. });
        if body.phase == Phase::Allocate {
            let (range, of) = ((body.offset, length), (key, &mut transfer.pins));
            match self.cx.driver.allocate_ahead(of, &body.target, range, io) {
                Ahead::NotNeeded => body.phase = Phase::Moving,
                Ahead::Started => {
                    body.phase = Phase::Allocating;
                }
                Ahead::NoRoom(wanted) => self.cx.want(Work::Transfer(key), wanted),
            }
        }
        if body.phase == Phase::Moving {
            if is_new && body.direction == Direction::Read {
                let range = (body.offset, length);
                body.target = self.cx.way_of_read(body.target, range, io);
            }
            let planned = self.plan_local(key, &body, length);
            let cut = &planned.cut;
            // What a write finds in memory is as much as was read: the device decides.
            let (sizes, depth) = match body.direction {
                Direction::Read => (&cut.source, cut.depth),
                Direction::Write => (&cut.sink, cut.depth.max(WRITES_AT_ONCE)),
            };
            while body.next < length && !body.ended && body.in_flight < depth {
                let end = boundary(sizes, body.offset, body.next).min(length);
                if end > available {
                    break;
                }
                let now = io.now();
                if !self.may_move(Work::Transfer(key), now) {
                    break;
                }
                let span = body.memory.span(body.next, (end - body.next) as u32);
                let fragment = Fragment {
                    owner: JobOwner::Transfer { transfer: key, start: body.next },
                    flow: self.flow_of(Work::Transfer(key)),
                    target: body.target,
                    direction: body.direction,
                    offset: body.offset + body.next,
                    span,
                };
                let Some(transfer) = self.transfers.get_mut(key) else { return };
                let (driver, mut lent) = self.cx.lend();
                let started = driver.start_job(fragment, &mut transfer.pins, &mut lent, io);
                if let Err(wanted) = started {
                    self.cx.want(Work::Transfer(key), wanted);
                    break;
                }
                self.charge(Work::Transfer(key), end - body.next, now);
                body.next = end;
                body.in_flight += 1;
            }
            if body.in_flight == 0 && (body.next == length || body.ended) {
                self.store_body(key, Body::File(body));
                return self.file_moved(key, body, io);
            }
        }
        self.store_body(key, Body::File(body));
    }

    /// All bytes are moved: make them durable if that was asked.
    fn file_moved<I: Io>(&mut self, key: TransferKey, mut body: FileBody, io: &mut I) {
        if !body.durable {
            return self.decide(key, Status::Ok, io);
        }
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let of = (key, &mut transfer.pins);
        match self.cx.driver.start_sync(of, body.target.buffered, io) {
            Ok(()) => {
                (body.phase, body.syncing) = (Phase::Syncing, io.now());
                self.store_body(key, Body::File(body));
            }
            Err(wanted) => self.cx.want(Work::Transfer(key), wanted),
        }
    }

    /// The end of an allocation or a sync.
    pub(super) fn handle_transfer_step<I: Io>(
        &mut self,
        pin: Pin<kind::Transfer>,
        result: i32,
        io: &mut I,
    ) {
        let key = pin.key();
        self.transfers.unpin(pin, &mut self.cx.sched);
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        match &mut transfer.body {
            Body::File(body) if body.phase == Phase::Allocating => {
                body.phase = Phase::Moving;
                let (file, end) = (body.target.buffered, body.offset + transfer.length);
                if let Err(status) = self.cx.driver.allocated(file, end, result) {
                    self.decide(key, status, io);
                }
            }
            _ => {
                let status = if result < 0 { status_of(result) } else { Status::Ok };
                if let (Status::Ok, Body::File(body)) = (status, &transfer.body) {
                    let of = (body.target.device, transfer.length);
                    let Cx { watch, planner, .. } = &mut self.cx;
                    let times = (body.syncing, io.now());
                    watch.pass_sync(Subject::Transfer(key), of, times, planner);
                }
                self.decide(key, status, io);
            }
        }
        self.cx.sched.make_ready(Work::Transfer(key));
    }

    /// A fragment of a local transfer ended.
    pub(super) fn handle_fragment<I: Io>(
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
        body.in_flight -= 1;
        // The next boundary tells whether it was short; only the last fragment may be shorter.
        let wanted = transfer.plan.as_ref().map_or(length, |plan| {
            let cut = &plan.cut;
            let sizes = if body.direction == Direction::Read { &cut.source } else { &cut.sink };
            boundary(sizes, body.offset, start).min(length)
        }) - start;
        body.ended |= u64::from(result.bytes) < wanted;
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
