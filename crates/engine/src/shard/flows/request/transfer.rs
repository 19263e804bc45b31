//! A request in execution: how it starts, moves fragment by fragment, and ends exactly once.
//!
//! A transfer's buffer is *pinned* by everything that may still touch it: an operation at the
//! kernel, a frame queued on a lane, a child transfer. A transfer that ends by itself waits for its
//! pins; one that is given up (deadline, cancel, session gone) tells its client at once that the
//! buffer is `Held`, and says `Released` when the last pin is gone.

use piped_core::ids::SessionId;
use piped_core::io::Io;
use piped_core::request::{BufferState, Class};
use piped_core::status::Status;
use piped_core::units::Nanos;

use crate::command::{RegionTarget, Target};
use crate::relay::Said;
use crate::shard::Shard;
use crate::shard::clients::Used;
use crate::shard::cx::Cx;
use crate::shard::fair::{Flow, Party};
use crate::shard::flows::plan::facts;
use crate::shard::keys::{Subject, TransferKey};
use crate::shard::requests::{Body, RemoteBody, Start, Transfer, Waiter};
use crate::shard::sched::Work;

impl Shard {
    /// Makes a transfer; `None` when there are as many as there may be.
    pub(in crate::shard) fn start_transfer(
        &mut self,
        start: Start,
        now: Nanos,
    ) -> Option<TransferKey> {
        let transfer = Transfer::new(start, self.cx.watch.next_number(), now);
        let (session, class, handles) = (transfer.session, transfer.class, transfer.handles);
        let waits = transfer.waits_for_others();
        // Messages are in order whatever their class.
        let turns = if transfer.is_message() { Class::Latency } else { class };
        let key = self.transfers.begin(transfer)?;
        self.cx.sched.begin(Work::Transfer(key), Party::Client(session), turns);
        self.cx.watch.begin(Subject::Transfer(key), now, || {
            facts::head_of_transfer(self.transfers.get(key)?, &self.bodies)
        });
        self.clients.enter(key, session, waits);
        for handle in handles.into_iter().flatten() {
            self.handles.enter(session, handle);
        }
        Some(key)
    }

    pub(in crate::shard) fn drive_transfer<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        if transfer.status.is_some() {
            return self.settle(key, io);
        }
        if self.clients.waits_for_limit(key) {
            return;
        }
        if transfer.fence {
            transfer.fence = false;
            if !self.clients.is_first_in_order(key) {
                self.wait_in_order(key);
                if let Some(transfer) = self.transfers.get_mut(key) {
                    transfer.fence = true;
                }
                return;
            }
        }
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        if !matches!(transfer.body, Body::Remote(_)) && transfer.begun == Nanos::MAX {
            transfer.begun = io.now();
        }
        match transfer.body {
            Body::File(body) => self.drive_file(key, body, io),
            Body::Memory(body) => self.drive_memory(key, body, io),
            Body::Wait(wait) => {
                let serve = self.transfers.serves_waits(&mut self.cx.sched);
                if let Err(status) = self.notifications.wait(key, wait, serve) {
                    self.decide(key, status, io);
                }
            }
            Body::Update { region, offset, update } => {
                self.drive_update(key, (region, offset, update), io);
            }
            Body::Remote(body) => self.drive_remote(key, body, io),
            Body::Copy(_) => self.drive_copy(key, io),
            Body::Call(call) => self.drive_call(key, call, io),
            Body::Vector(_) => self.drive_vector(key, io),
            Body::Send(body) => self.drive_send(key, body, io),
            Body::Receive(body) => self.drive_receive(key, body, io),
            Body::Sync { file, started: false } => {
                match self.cx.driver.start_sync((key, &mut transfer.pins), file, io) {
                    Ok(()) => transfer.body = Body::Sync { file, started: true },
                    Err(wanted) => self.cx.want(Work::Transfer(key), wanted),
                }
            }
            Body::Sync { started: true, .. } => {}
            Body::Settled => self.decide(key, Status::Ok, io),
        }
    }

    pub(in crate::shard) fn tell_progress(&mut self, key: TransferKey) {
        let Some(transfer) = self.transfers.get(key) else { return };
        self.tell_progress_to(key, transfer.landed.watermark());
    }

    pub(in crate::shard) fn tell_progress_to(&mut self, key: TransferKey, bytes: u64) {
        let Some(transfer) = self.transfers.get(key) else { return };
        match transfer.waiter {
            waiter if waiter.is_client() => {
                let (told, length) = (transfer.told, transfer.length);
                if bytes < length && !told {
                    let landed = self.transfers.first_extent(key);
                    self.tell_client(waiter, Said::Moved { bytes, landed });
                }
            }
            Waiter::Copy { parent, chunk } if transfer.reads() => {
                self.note_chunk_read(parent, chunk, bytes);
            }
            Waiter::Copy { parent, chunk } => {
                self.transfers.note_moved(key, bytes, &mut self.bodies);
                self.note_chunk_written(parent, chunk, key, bytes);
            }
            Waiter::Vector { parent, part } if transfer.reads() => {
                self.note_part_read(parent, part, bytes);
                self.transfers.note_moved(key, bytes, &mut self.bodies);
            }
            Waiter::Vector { .. } => self.transfers.note_moved(key, bytes, &mut self.bodies),
            _ => {}
        }
    }

    /// The party, class and weight under which work on a transfer or serve is done.
    pub(in crate::shard) fn flow_of(&self, work: Work) -> Flow {
        match work {
            Work::Transfer(key) => {
                let (session, class) = self
                    .transfers
                    .get(key)
                    .map_or((SessionId(0), Class::Bulk), |it| (it.session, it.class));
                let weight = self.clients.weight(session);
                Flow { party: Party::Client(session), class, weight }
            }
            Work::Serve(key) => self.serves.get(key).map_or(Flow::NONE, |serve| serve.flow()),
            Work::Lane(_) => Flow::NONE,
        }
    }

    pub(in crate::shard) fn store_body(&mut self, key: TransferKey, body: Body) {
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.body = body;
        }
    }

    /// Says how a transfer ends; it does once nothing touches its buffer.
    pub(in crate::shard) fn decide<I: Io>(&mut self, key: TransferKey, status: Status, io: &mut I) {
        self.transfers.end_with(key, status);
        self.settle(key, io);
    }

    /// Ends a transfer now, whatever the kernel still does with its buffer.
    pub(in crate::shard) fn give_up<I: Io>(
        &mut self,
        key: TransferKey,
        status: Status,
        io: &mut I,
    ) {
        if self.asks_back(key, status) {
            return;
        }
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        // Ended already, it only waits for its buffer, and the peer owes it nothing.
        let ended = transfer.status.is_some();
        let status = *transfer.status.get_or_insert(status);
        let Self { lanes, cx, .. } = self;
        let lands_in = |lane| lanes.get(lane).is_some_and(|lane| lane.lands_in(key));
        for end in cx.driver.cancel_ops_of(key, lands_in, io) {
            self.handle_done(end, io);
        }
        self.drop_waiting(Work::Transfer(key), io);
        self.hurry(Work::Transfer(key), io);
        self.cancel_queued(key);
        if !ended && let Some(lane) = self.remote_lane(key).and_then(|lane| self.lanes.get(lane)) {
            self.note_way_unfinished(key, lane.class, io.now());
        }
        self.leave_lane(key, !ended);
        self.leave_channel(key, io);
        self.give_up_children(key, status, io);
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let (waiter, session, operation) = (transfer.waiter, transfer.session, transfer.kind);
        if transfer.pins.any() && waiter.is_client() && !std::mem::replace(&mut transfer.told, true)
        {
            let (bytes, value) = (transfer.landed.watermark(), transfer.value);
            self.transfers.stop_deadline(key);
            self.cx.watch.counters.held += 1;
            let buffer = BufferState::Held;
            self.tell_client(waiter, Said::Finished { status, bytes, value, buffer });
            let Cx { limits, sched, .. } = &mut self.cx;
            self.clients.leave_limits(key, limits, sched);
            self.leave_asks(waiter, session, operation);
        }
        self.tell_held(key, status);
        self.settle(key, io);
    }

    /// The deadline of a transfer has passed.
    pub(in crate::shard) fn expire<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        if self.is_waited_for(key, io.now()) {
            return;
        }
        let unreachable =
            self.is_unreachable(key) || self.parts_of(key).any(|part| self.is_unreachable(part));
        let status = if unreachable { Status::PeerLost } else { Status::DeadlineExceeded };
        self.give_up(key, status, io);
    }

    /// Whether it waits for a peer that is lost.
    fn is_unreachable(&self, key: TransferKey) -> bool {
        let remote = self.transfers.get(key).and_then(Transfer::remote);
        remote.is_some_and(|it| it.lane.is_none()) && self.peer_is_lost(key)
    }

    /// The parts of a vectored transfer that are under way; of others there are none to look for.
    fn parts_of(&self, whole: TransferKey) -> impl Iterator<Item = TransferKey> {
        let body = self.transfers.get(whole).map(|it| &it.body);
        let all = matches!(body, Some(Body::Vector(_))).then(|| self.transfers.iter());
        let is_part = move |it: &Transfer| match it.waiter {
            Waiter::Vector { parent, .. } => parent == whole,
            _ => false,
        };
        all.into_iter().flatten().filter(move |(_, it)| is_part(it)).map(|(key, _)| key)
    }

    /// Ends and forgets a transfer whose end is decided and whose buffer nothing touches.
    pub(in crate::shard) fn settle<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        let Some(transfer) = self.transfers.get(key) else { return };
        if transfer.status.is_none() {
            return;
        }
        self.cx.sched.leave_line(Work::Transfer(key));
        if transfer.pins.any() {
            return;
        }
        match transfer.body {
            Body::Remote(ref body) => {
                let RemoteBody { peer, handle, message, once, call, .. } = *body;
                self.leave_lane(key, false);
                if let Some(message) = message {
                    self.leave_outbox(key, peer, message);
                }
                if let Some(once) = once {
                    self.note_given_up(key, once);
                    self.end_number(key, handle, once);
                }
                if let Some(call) = call {
                    self.leave_call(key, call);
                }
            }
            Body::Call(call) => self.leave_call(key, call),
            Body::Wait(wait) => {
                let serve = self.transfers.serves_waits(&mut self.cx.sched);
                self.notifications.leave(key, wait, serve);
            }
            _ => {}
        }
        self.clients.leave_order(key, &mut self.cx.sched);
        let Cx { limits, sched, .. } = &mut self.cx;
        self.clients.leave_limits(key, limits, sched);
        let Some(transfer) = self.transfers.get(key) else { return };
        let paid = transfer.remote().map_or(0, |body| body.paid);
        let unused = paid.saturating_sub(transfer.landed.watermark());
        let moved = transfer.moved();
        self.refund(Work::Transfer(key), unused);
        self.transfers.note_moved(key, moved, &mut self.bodies);
        let Some(mut transfer) = self.transfers.end(key) else { return };
        self.cx.sched.end(Work::Transfer(key));
        if let Some(status) = self.torn(&transfer, io) {
            transfer.status = Some(status);
        }
        let status = transfer.status.unwrap_or(Status::Ok);
        let bytes = transfer.landed.watermark();
        match transfer.body {
            Body::Copy(copy) => self.free_chunks(transfer.session, copy),
            Body::Vector(vector) => self.free_parts(transfer.session, vector),
            _ => {}
        }
        self.cx.watch.tally.released += u64::from(transfer.told);
        facts::end_transfer(key, &transfer, &self.bodies, &mut self.cx, io.now());
        match transfer.waiter {
            Waiter::Client(_) | Waiter::Queue { .. } => {
                let (value, buffer) = (transfer.value, BufferState::Returned);
                let said = match transfer.told {
                    true => Said::Released,
                    false => Said::Finished { status, bytes, value, buffer },
                };
                self.tell_client(transfer.waiter, said);
            }
            Waiter::Copy { parent, chunk } => {
                let whole = (parent, transfer.holds.take());
                self.handle_child(key, whole, chunk, (status, bytes), io);
            }
            Waiter::Vector { parent, part } => {
                let whole = (parent, transfer.holds.take());
                self.handle_part(whole, part, (status, bytes), io);
            }
            Waiter::Shard { .. } => self.tell_took(&transfer, status, bytes),
            Waiter::Nobody => {}
        }
        self.leave(&transfer, io);
        self.bodies.forget(&transfer.body);
    }

    /// How a transfer ends that was believed to be done, but whose memory has vanished.
    fn torn<I: Io>(&self, transfer: &Transfer, io: &I) -> Option<Status> {
        // A checksum of zeros does not match either.
        if !matches!(transfer.status, Some(Status::Ok | Status::Corrupt)) {
            return None;
        }
        if transfer.body.uses(&self.bodies, |segment| io.is_torn(segment)) {
            return Some(Status::BadBuffer);
        }
        let mut regions = transfer.body.regions(&self.bodies);
        regions.any(|region| io.is_torn(region.segment)).then_some(Status::Gone)
    }

    fn leave<I: Io>(&mut self, transfer: &Transfer, io: &mut I) {
        for handle in transfer.handles.into_iter().flatten() {
            self.leave_handle(transfer.session, handle, io);
        }
        for region in transfer.body.regions(&self.bodies) {
            self.drain_region(region.region);
        }
        let ok = transfer.status == Some(Status::Ok);
        let used = (!transfer.waiter.is_part()).then(|| Used {
            completed: ok.into(),
            failed: (!ok).into(),
            bytes: transfer.moved(),
        });
        if !transfer.told {
            self.leave_asks(transfer.waiter, transfer.session, transfer.kind);
        }
        if self.clients.leave(transfer.session, transfer.waits_for_others(), used) {
            self.drain_session(transfer.session, io);
        }
        let (body, bodies) = (&transfer.body, &self.bodies);
        let left = self.clients.leaving_of(|each| {
            body.uses(bodies, |segment| {
                each(segment);
                false
            });
            body.regions(bodies).for_each(|region| each(region.segment));
        });
        for segment in left {
            self.end_use(segment, io);
        }
    }

    /// Ends every transfer and serve that uses a region.
    pub(in crate::shard) fn end_region_users<I: Io>(
        &mut self,
        wanted: impl Fn(RegionTarget) -> bool,
        io: &mut I,
    ) {
        let mut from = 0;
        while let Some(key) = self.transfers.next_from(&mut from, |it| {
            it.status.is_none() && it.body.regions(&self.bodies).any(&wanted)
        }) {
            if let Some(transfer) = self.transfers.get_mut(key) {
                transfer.status = Some(Status::Gone);
                self.cx.sched.make_ready(Work::Transfer(key));
            }
        }
        self.handles.revoke(|target| matches!(target, Target::Region(region) if wanted(region)));
        self.links.revoke(|target| matches!(target, Target::Region(region) if wanted(region)));
        self.end_region_serves(&wanted, io);
    }
}
