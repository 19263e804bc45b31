//! What a peer does once, however often it is asked: changes of words, and notifications.
//!
//! The frame that asks has a number among those of its handle; the peer remembers what came of it
//! as long as it may come again, so that an answer that was lost with its lane is given again and
//! nothing is done twice.
//!
//! A notification comes after all puts before it. It need not wait for their answers where it can
//! follow their bytes: on the same lane, behind them. The peer looks whether they have landed; if
//! one has not, or has failed without our knowing (its bytes will come again), it is told to wait,
//! and is sent once more when all of them are over. A put that notifies is a write with such a
//! frame behind it; if their lane is lost in between, the peer is asked whether the notification
//! was done before any byte is written again, of its put or of those before it: who was notified
//! may have gone on. If it was done, all of them have landed.

use piped_core::ids::HandleId;
use piped_core::io::{Io, Span};
use piped_core::request::Update;
use piped_core::status::Status;
use piped_report::tally::{HeldBy, Operation};
use piped_wire::{After, Change, Message};

use crate::command::RegionTarget;
use crate::shard::Shard;
use crate::shard::connections::{Lane, LaneState, lane_class};
use crate::shard::faults::PeerFault;
use crate::shard::keys::{LaneKey, OnceKey, TransferKey};
use crate::shard::requests::{Answer, Body, Once, RemoteBody, RemoteOp, Transfer, Vouched, What};
use crate::shard::sched::Work;

impl Shard {
    /// Sends what is to be done once, when its time has come.
    pub(in crate::shard) fn ask_once<I: Io>(
        &mut self,
        key: TransferKey,
        body: RemoteBody,
        io: &mut I,
    ) {
        let Some(once) = body.once.map(|once| self.bodies[once]) else { return };
        let Some(transfer) = self.transfers.get(key) else { return };
        let own = once.last_class().unwrap_or(lane_class(transfer.class, 0));
        let early = once.is_idle() && !transfer.attempts.is_repeated();
        let behind_puts = self.puts_before(key).next().is_some();
        let (class, after) = match once.what() {
            // It was sent early, and its lane lost: the puts before it wait for what has become of
            // it.
            What::Notify { .. } if behind_puts && once.may_have_notified() => (own, After::Known),
            What::Notify { .. } if behind_puts => {
                let Some(lane) = self.follows(key).filter(|_| early) else {
                    return self.wait_in_order(key);
                };
                let Some(lane) = self.lanes.get(lane) else { return };
                let failed = lane.asking().map_or(0, |asking| asking.ends_failed);
                (lane.class, After::Writes { client: transfer.session.0, failed })
            }
            _ => (own, After::Nothing),
        };
        let Some(there) = self.peers.there(body.peer) else {
            return self.decide(key, Status::PeerLost, io);
        };
        let lane = there.lane(class);
        let up = lane
            .filter(|&lane| self.lanes.get(lane).is_some_and(|lane| lane.state == LaneState::Up));
        let Some(lane) = up else { return };
        let session = transfer.session;
        if !self.may_ask(lane, Some(session), io) {
            return self.cx.sched.starve(Work::Transfer(key));
        }
        if !self.lanes.get(lane).is_some_and(Lane::has_room_for_request) {
            return self.cx.sched.starve(Work::Transfer(key));
        }
        self.send_once(key, lane, after, io);
    }

    /// The bytes of a put are all on their way: the notification follows them, if it may.
    pub(in crate::shard) fn send_behind_put<I: Io>(
        &mut self,
        key: TransferKey,
        lane_key: LaneKey,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let Body::Remote(body) = &transfer.body else { return };
        let idle = body.once.is_some_and(|once| self.bodies[once].is_idle());
        if !idle || transfer.attempts.is_repeated() || body.next < transfer.length {
            return;
        }
        if self.puts_before(key).next().is_some() && self.follows(key) != Some(lane_key) {
            return self.wait_in_order(key);
        }
        let client = transfer.session.0;
        let Some(asking) = self.lanes.get(lane_key).and_then(Lane::asking) else { return };
        let failed = asking.ends_failed;
        self.send_once(key, lane_key, After::Writes { client, failed }, io);
    }

    /// The lane on which the bytes of all puts before a notification are under way, if it is one
    /// and they go in the same queue.
    fn follows(&self, key: TransferKey) -> Option<LaneKey> {
        let class = self.transfers.get(key)?.class;
        let mut lane = None;
        for put in self.puts_before(key) {
            let put = self.transfers.get(put)?;
            let Body::Remote(body) = &put.body else { return None };
            let sent = matches!(body.op, RemoteOp::Write { .. }) && body.next == put.length;
            let own =
                body.lane.filter(|_| sent && !put.attempts.is_repeated() && put.class == class)?;
            if lane.replace(own).is_some_and(|other| other != own) {
                return None;
            }
        }
        lane
    }

    pub(in crate::shard) fn send_once<I: Io>(
        &mut self,
        key: TransferKey,
        lane_key: LaneKey,
        after: After,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let Body::Remote(mut body) = transfer.body else { return };
        let Some(place) = body.once else { return };
        let mut once = self.bodies[place];
        let flow = self.flow_of(Work::Transfer(key));
        let Some(state) = self.peers.get(body.peer) else { return };
        let incarnation = state.incarnation();
        if once.number().is_some_and(|(_, of)| of != incarnation) {
            return self.decide(key, Status::OutcomeUnknown, io);
        }
        let Some(remote) = self.remote_of(key, body.handle) else {
            return self.decide(key, Status::BadHandle, io);
        };
        // The peer restarted: the handle is being opened again.
        let Some((handle, _)) = remote.number.filter(|&(_, of)| of == incarnation) else { return };
        if once.number().is_none() && remote.updates.is_full() {
            return self.cx.sched.starve(Work::Transfer(key));
        }
        let sequence = once.number().map_or(remote.updates.next(), |(number, _)| number);
        let behind = sequence.wrapping_sub(remote.updates.oldest()) as u8;
        let change = match once.what() {
            What::Word { offset, update } => Change::Word { offset, update },
            What::Notify { id } => Change::Notify { id, after },
        };
        let message = Message::Update { transfer: key.to_bits(), handle, change, sequence, behind };
        let now = io.now();
        let Some(lane) = self.lanes.get_mut(lane_key) else { return };
        let class = lane.class;
        // Behind the bytes it may have to follow, and in their queue.
        if !lane.push_data(flow, message, None, None) {
            return self.cx.sched.starve(Work::Transfer(key));
        }
        if let Some(asking) = lane.asking_mut().filter(|it| !it.outstanding.contains(&key)) {
            asking.ask(key);
            body.lane = Some(lane_key);
            body.sent_at = now;
        }
        once.note_sent((after, class), || {
            let remote = self.remote_of(key, body.handle)?;
            Some((remote.updates.begin(), incarnation))
        });
        self.bodies[place] = once;
        self.store_body(key, Body::Remote(body));
        self.cx.sched.make_ready(Work::Lane(lane_key));
    }

    /// The peer says what came of something that it does once.
    pub(in crate::shard) fn handle_updated<I: Io>(
        &mut self,
        key: TransferKey,
        lane: LaneKey,
        (status, value): (Status, u64),
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let Some(transfer) = self.transfers.get_mut(key) else { return Ok(()) };
        let Body::Remote(body) = &mut transfer.body else {
            return Err(PeerFault::AnswerToNoUpdate);
        };
        if body.lane != Some(lane) || transfer.status.is_some() {
            return Ok(());
        }
        let op = body.op;
        let once = body.once.map(|once| &mut self.bodies[once]);
        let Some((once, answer)) = once.and_then(|once| {
            let answer = once.note_answer(status)?;
            Some((once, answer))
        }) else {
            return Err(PeerFault::UnaskedUpdated);
        };
        let write = once.take_write();
        if once.has_notified() {
            self.note_landed_before(key);
        }
        self.clients.wake_order(key, &mut self.cx.sched);
        match (answer, op) {
            // It was done, so the put before it was.
            (Answer::Known, _) if status == Status::Ok => self.end_landed(key, io),
            (Answer::Known, _) => self.begin_again(key, status, io),
            (Answer::Late, RemoteOp::Once) => {
                self.leave_lane(key, false);
                self.cx.sched.make_ready(Work::Transfer(key));
            }
            (_, RemoteOp::Once) => {
                if let Some(transfer) = self.transfers.get_mut(key) {
                    transfer.value = value;
                }
                self.decide(key, status, io);
            }
            _ => {
                if let Some(ending) = write {
                    self.end_write(key, ending, io);
                }
            }
        }
        Ok(())
    }

    /// A notification was done, so all puts before it have landed: whose answer is lost with its
    /// lane ends well.
    fn note_landed_before(&mut self, key: TransferKey) {
        self.note_before(key, |body| {
            let lands = body.op == RemoteOp::Write { durable: false };
            if lands {
                body.vouched = Vouched::Landed;
            } else if let RemoteOp::Write { .. } = body.op {
                // It has landed, and whether it is durable nobody will tell.
                body.vouched = Vouched::InDoubt;
            }
            lands
        });
    }

    /// A notification is given up that the peer may have done. A put before it, whose answer is
    /// lost with its lane, is not sent again: who was notified may have gone on.
    pub(in crate::shard) fn note_given_up(&mut self, key: TransferKey, once: OnceKey) {
        let once = &self.bodies[once];
        if once.may_have_notified() && !once.has_notified() {
            self.note_before(key, |body| {
                if body.vouched == Vouched::Nothing && matches!(body.op, RemoteOp::Write { .. }) {
                    body.vouched = Vouched::InDoubt;
                }
                false
            });
        }
    }

    /// Notes something of the requests before one in its order. `note`: whether a request is to be
    /// looked at for it.
    fn note_before(&mut self, key: TransferKey, note: impl Fn(&mut RemoteBody) -> bool) {
        for at in 0.. {
            let Some(put) = self.clients.nth_in_order(key, at).filter(|&put| put != key) else {
                return;
            };
            let body = self.transfers.get_mut(put).and_then(Transfer::remote_mut);
            if body.is_some_and(&note) {
                self.cx.sched.make_ready(Work::Transfer(put));
            }
        }
    }

    /// Whether a write that is to be sent again may have been notified of: it is not, before that
    /// is known.
    pub(in crate::shard) fn may_be_notified_of(&self, key: TransferKey) -> bool {
        self.clients.asked_after(key).any(|other| {
            let once = self.transfers.get(other).and_then(|it| it.remote()?.once);
            once.is_some_and(|once| self.bodies[once].may_have_notified())
        })
    }

    /// A notification was not done: its put is sent again, under another number.
    fn begin_again<I: Io>(&mut self, key: TransferKey, status: Status, io: &mut I) {
        if !matches!(status, Status::WouldBlock) {
            return self.decide(key, status, io);
        }
        self.leave_lane(key, false);
        let Some(Body::Remote(body)) = self.transfers.get(key).map(|it| it.body) else { return };
        if let Some(once) = body.once {
            self.end_number(key, body.handle, once);
            let once = &mut self.bodies[once];
            *once = Once::new(once.what());
        }
        self.cx.sched.make_ready(Work::Transfer(key));
        self.clients.wake_order(key, &mut self.cx.sched);
    }

    /// A write that notifies is at the peer. `true`: the notification is still to come.
    pub(in crate::shard) fn notify_after_write<I: Io>(
        &mut self,
        key: TransferKey,
        io: &mut I,
    ) -> bool {
        let Some(body) = self.transfers.get_mut(key).and_then(Transfer::remote_mut) else {
            return false;
        };
        let Some(once) = body.once else { return false };
        match self.bodies[once].outcome() {
            Some(Status::Ok) => false,
            Some(status) => {
                self.decide(key, status, io);
                true
            }
            None => {
                body.op = RemoteOp::Once;
                self.leave_lane(key, false);
                self.cx.sched.make_ready(Work::Transfer(key));
                true
            }
        }
    }

    /// Ends the number of a once-only request, which will not be asked again.
    pub(in crate::shard) fn end_number(
        &mut self,
        key: TransferKey,
        handle: HandleId,
        once: OnceKey,
    ) {
        if let Some((number, _)) = self.bodies[once].number()
            && let Some(remote) = self.remote_of(key, handle)
        {
            remote.updates.end(number);
        }
    }

    /// Has a request be looked at again when something happens to one before it.
    pub(in crate::shard) fn wait_in_order(&mut self, key: TransferKey) {
        self.cx.watch.hold(Work::Transfer(key), HeldBy::Order);
        self.clients.wait_in_order(key);
    }

    /// The puts and writes before a request that are not over.
    pub(in crate::shard) fn puts_before(
        &self,
        key: TransferKey,
    ) -> impl Iterator<Item = TransferKey> {
        self.clients.asked_before(key).filter(|&other| {
            let kind = self.transfers.get(other).map(|transfer| transfer.kind);
            matches!(kind, Some(Operation::Put | Operation::Write))
        })
    }

    /// Changes a word of a region of this node.
    pub(in crate::shard) fn drive_update<I: Io>(
        &mut self,
        key: TransferKey,
        (region, offset, update): (RegionTarget, u64, Update),
        io: &mut I,
    ) {
        let result = update_word(region, offset, update, io);
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.value = result.unwrap_or(0);
        }
        self.decide(key, result.err().unwrap_or(Status::Ok), io);
    }
}

/// Changes a word of a region as far as its access allows. Returns the value it had.
pub(in crate::shard) fn update_word(
    region: RegionTarget,
    offset: u64,
    update: Update,
    io: &mut impl Io,
) -> Result<u64, Status> {
    if !region.access.atomic {
        return Err(Status::Denied);
    }
    let end = offset.checked_add(Update::BYTES).ok_or(Status::Invalid)?;
    if end > region.length {
        return Err(Status::Invalid);
    }
    let at = region.offset + offset;
    if !at.is_multiple_of(Update::BYTES) {
        return Err(Status::Invalid);
    }
    let length = Update::BYTES as u32;
    Ok(io.update(Span { segment: region.segment, offset: at, length }, update))
}
