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

use piped_core::ids::{HandleId, RegionId};
use piped_core::io::{Io, Span};
use piped_core::link::LaneClass;
use piped_core::request::{Class, Update};
use piped_core::status::Status;
use piped_report::tally::{HeldBy, Operation};
use piped_wire::{After, Change, Message};

use super::Shard;
use super::clients::access_of;
use super::connections::{Lane, LaneState, PeerLane, PeerRequest};
use super::fair::{Flow, Party};
use super::faults::PeerFault;
use super::keys::{LaneKey, OnceKey, TransferKey};
use super::outbound::Ending;
use super::remote::lane_class;
use super::requests::{Bodies, Body, RemoteBody, RemoteOp, Transfer};
use super::sched::Work;
use crate::command::{RegionTarget, Target};

/// Something that is asked of a peer, and done once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Once {
    what: What,
    /// Its number among those of its handle, and the peer's incarnation that was told it first.
    pub(super) number: Option<(u32, u64)>,
    state: State,
    /// What was asked last, and on which lane it was; there it is asked again, because a lane that
    /// is lost has nothing under way any more when the next one of its class is up, and others tell
    /// nothing of it.
    last: Option<(After, LaneClass)>,
    /// How the write before it ended at the peer, until it has ended itself.
    pub(super) write: Option<Ending>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    Word { offset: u64, update: Update },
    Notify { id: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The frame is not under way at the peer.
    Idle,
    Sent,
    /// The frame has to wait until everything before it is over.
    Late,
    Done,
    Failed(Status),
}

impl Once {
    pub(super) const fn new(what: What) -> Self {
        Self { what, number: None, state: State::Idle, last: None, write: None }
    }

    /// Whether an answer will come.
    pub(super) fn is_sent(&self) -> bool {
        self.state == State::Sent
    }

    /// Whether the peer is asked if it was done.
    fn is_asked(&self) -> bool {
        self.is_sent() && matches!(self.last, Some((After::Known, _)))
    }

    /// Whether it is a notification that the peer may have done.
    fn may_have_notified(&self) -> bool {
        let open = matches!(self.state, State::Idle | State::Sent | State::Done);
        matches!(self.what, What::Notify { .. }) && self.number.is_some() && open
    }

    /// Its lane is gone.
    pub(super) fn forget_lane(&mut self) {
        self.write = None;
        self.state = match self.state {
            State::Failed(_) => self.state,
            State::Late => State::Late,
            _ => State::Idle,
        };
    }
}

impl RemoteBody {
    /// Answers of the peer that are still to come.
    pub(super) fn answers_due(&self, bodies: &Bodies) -> u32 {
        let once = self.once.map(|once| &bodies[once]);
        let second = once.is_some_and(Once::is_sent);
        let only = self.op == RemoteOp::Once || once.is_some_and(Once::is_asked);
        let first = !only && once.is_none_or(|it| it.write.is_none());
        u32::from(first) + u32::from(second)
    }
}

impl Shard {
    /// Sends what is to be done once, when its time has come.
    pub(super) fn ask_once<I: Io>(&mut self, key: TransferKey, body: RemoteBody, io: &mut I) {
        let Some(once @ Once { what, state, .. }) = body.once.map(|once| self.bodies[once]) else {
            return;
        };
        let Some(transfer) = self.transfers.get(key) else { return };
        let own = once.last.map_or(lane_class(transfer.class, 0), |(_, class)| class);
        let early = state == State::Idle && transfer.retries == 0;
        let behind_puts = self.puts_before(key).next().is_some();
        let (class, after) = match what {
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
    pub(super) fn send_behind_put<I: Io>(
        &mut self,
        key: TransferKey,
        lane_key: LaneKey,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let Body::Remote(body) = &transfer.body else { return };
        let idle = body.once.is_some_and(|once| self.bodies[once].state == State::Idle);
        if !idle || transfer.retries > 0 || body.next < transfer.length {
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
            let own = body.lane.filter(|_| sent && put.retries == 0 && put.class == class)?;
            if lane.replace(own).is_some_and(|other| other != own) {
                return None;
            }
        }
        lane
    }

    pub(super) fn send_once<I: Io>(
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
        if once.number.is_some_and(|(_, of)| of != incarnation) {
            return self.decide(key, Status::OutcomeUnknown, io);
        }
        let Some(remote) = self.remote_of(key, body.handle) else {
            return self.decide(key, Status::BadHandle, io);
        };
        // The peer restarted: the handle is being opened again.
        let Some((handle, _)) = remote.number.filter(|&(_, of)| of == incarnation) else { return };
        if once.number.is_none() && remote.updates.is_full() {
            return self.cx.sched.starve(Work::Transfer(key));
        }
        let sequence = once.number.map_or(remote.updates.next(), |(number, _)| number);
        let behind = sequence.wrapping_sub(remote.updates.oldest()) as u8;
        let change = match once.what {
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
        (once.state, once.last) = (State::Sent, Some((after, class)));
        if once.number.is_none()
            && let Some(remote) = self.remote_of(key, body.handle)
        {
            once.number = Some((remote.updates.begin(), incarnation));
        }
        self.bodies[place] = once;
        self.store_body(key, Body::Remote(body));
        self.cx.sched.make_ready(Work::Lane(lane_key));
    }

    /// The peer says what came of something that it does once.
    pub(super) fn handle_updated<I: Io>(
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
        let Some(once) = once.filter(|once| once.is_sent()) else {
            return Err(PeerFault::UnaskedUpdated);
        };
        let asked = once.is_asked();
        let after_puts = matches!(once.last, Some((After::Writes { .. }, _)));
        once.state = match status {
            Status::Ok => State::Done,
            // Of one that waits for nothing it means that there is no room for its number.
            Status::WouldBlock if after_puts => State::Late,
            status => State::Failed(status),
        };
        let late = once.state == State::Late;
        let notified = once.state == State::Done && matches!(once.what, What::Notify { .. });
        let write = once.write.take();
        if notified {
            self.note_landed_before(key);
        }
        self.clients.wake_order(key, &mut self.cx.sched);
        match op {
            // It was done, so the put before it was.
            _ if asked && status == Status::Ok => self.end_landed(key, io),
            _ if asked => self.begin_again(key, status, io),
            RemoteOp::Once if late => {
                self.leave_lane(key, false);
                self.cx.sched.make_ready(Work::Transfer(key));
            }
            RemoteOp::Once => {
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
        for at in 0.. {
            let Some(put) = self.clients.nth_in_order(key, at).filter(|&put| put != key) else {
                return;
            };
            let Some(transfer) = self.transfers.get_mut(put) else { continue };
            // What is durable has more to do than to land.
            if let Body::Remote(body) = &mut transfer.body
                && body.op == (RemoteOp::Write { durable: false })
            {
                body.is_landed = true;
                self.cx.sched.make_ready(Work::Transfer(put));
            }
        }
    }

    /// Whether a write that is to be sent again may have been notified of: it is not, before that
    /// is known.
    pub(super) fn may_be_notified_of(&self, key: TransferKey) -> bool {
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
            *once = Once::new(once.what);
        }
        self.cx.sched.make_ready(Work::Transfer(key));
        self.clients.wake_order(key, &mut self.cx.sched);
    }

    /// A write that notifies is at the peer. `true`: the notification is still to come.
    pub(super) fn notify_after_write<I: Io>(&mut self, key: TransferKey, io: &mut I) -> bool {
        let Some(body) = self.transfers.get_mut(key).and_then(Transfer::remote_mut) else {
            return false;
        };
        match body.once.map(|once| self.bodies[once].state) {
            None | Some(State::Done) => false,
            Some(State::Failed(status)) => {
                self.decide(key, status, io);
                true
            }
            Some(_) => {
                body.op = RemoteOp::Once;
                self.leave_lane(key, false);
                self.cx.sched.make_ready(Work::Transfer(key));
                true
            }
        }
    }

    /// Ends the number of a once-only request, which will not be asked again.
    pub(super) fn end_number(&mut self, key: TransferKey, handle: HandleId, once: OnceKey) {
        if let Some((number, _)) = self.bodies[once].number
            && let Some(remote) = self.remote_of(key, handle)
        {
            remote.updates.end(number);
        }
    }

    /// Has a request be looked at again when something happens to one before it.
    pub(super) fn wait_in_order(&mut self, key: TransferKey) {
        self.cx.watch.hold(Work::Transfer(key), HeldBy::Order);
        self.clients.wait_in_order(key);
    }

    /// The puts and writes before a request that are not over.
    pub(super) fn puts_before(&self, key: TransferKey) -> impl Iterator<Item = TransferKey> {
        self.clients.asked_before(key).filter(|&other| {
            let kind = self.transfers.get(other).map(|transfer| transfer.kind);
            matches!(kind, Some(Operation::Put | Operation::Write))
        })
    }

    /// A peer wants something done once. An error is its fault.
    pub(super) fn handle_update(
        &mut self,
        on: PeerLane,
        asked: Asked,
        io: &mut impl Io,
    ) -> Result<(), PeerFault> {
        let begun = io.now();
        let lane = on.lane;
        let result = self.update_once(on, asked, io);
        let (status, value) = match result {
            Ok(value) => (Status::Ok, value),
            Err(status) => (status, 0),
        };
        let operation = match asked.change {
            Change::Word { .. } => Operation::Atomic,
            Change::Notify { .. } => Operation::Notify,
        };
        let class = match self.lanes.get(lane).map(|lane| lane.class) {
            Some(LaneClass::Bulk) => Class::Bulk,
            _ => Class::Latency,
        };
        let nanos = io.now().since(begun).0;
        self.cx.watch.tally.add_serve((operation, class), status, 0, nanos);
        let message = Message::Updated { transfer: asked.transfer, status, value };
        let pushed = self.lanes.get_mut(lane).is_none_or(|lane| lane.push(message));
        self.cx.sched.make_ready(Work::Lane(lane));
        pushed.then_some(()).ok_or(PeerFault::UnreadAnswers)
    }

    fn update_once(&mut self, on: PeerLane, asked: Asked, io: &mut impl Io) -> Result<u64, Status> {
        let PeerLane { lane, link } = on;
        let Asked { handle, change, sequence, behind, .. } = asked;
        let (_, served) = self.links.named(link, handle).ok_or(Status::BadHandle)?;
        served.updates.forget_before(sequence.wrapping_sub(behind.into()));
        if let Some(value) = served.updates.get(sequence) {
            return Ok(value);
        }
        let region = match served.target()? {
            Target::Region(region) if region.region != RegionId::MESSAGE => region,
            _ => return Err(Status::Invalid),
        };
        let value = match change {
            Change::Word { offset, update } => update_word(region, offset, update, io)?,
            Change::Notify { id, after } => {
                let held_back = match after {
                    After::Nothing => false,
                    After::Writes { client, failed } => self.has_unlanded(lane, client, failed),
                    After::Known => true,
                };
                if !access_of(Target::Region(region)).write {
                    return Err(Status::Denied);
                }
                if held_back {
                    return Err(Status::WouldBlock);
                }
                let serve = self.transfers.serves_waits(&mut self.cx.sched);
                self.notifications.raise(region.region, id, serve)?;
                0
            }
        };
        if let Some((_, served)) = self.links.named(link, handle) {
            served.updates.add(sequence, value);
        }
        Ok(value)
    }

    /// Whether a write that a peer's client asked for on a lane has not landed, or has failed and
    /// the peer did not know.
    fn has_unlanded(&self, lane: LaneKey, client: u32, failed: u32) -> bool {
        let Some(serving) = self.lanes.get(lane).and_then(Lane::serving) else { return true };
        let unlanded = |request: &PeerRequest| {
            self.serves.get(request.serve).is_some_and(|serve| {
                let Flow { party, .. } = serve.flow;
                let own = matches!(party, Party::Peer(_, of) if of == client);
                let whole = serve.done == serve.length;
                let well = serve.status.is_none_or(|status| status == Status::Ok);
                own && serve.writes() && !(whole && well)
            })
        };
        serving.ends_failed != failed || serving.serves.iter().any(unlanded)
    }

    /// Changes a word of a region of this node.
    pub(super) fn drive_update<I: Io>(
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

/// A request for something that is done once, as it came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) transfer: u64,
    pub(super) handle: u32,
    pub(super) change: Change,
    pub(super) sequence: u32,
    pub(super) behind: u8,
}

fn update_word(
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
