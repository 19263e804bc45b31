//! Messages from peers: those that come at once, and those that are announced and written when they
//! are asked for.
//!
//! A message that is announced is in the books until it is received or lost: by what it was sent by
//! (`Served::mails`), by the lane and the peer's name for it, and by when its sender gives it up.
//! Peers choose how many there are and what they say of them, so nothing is searched for, and there
//! are bounds for each handle, each peer, and all.

use std::collections::BTreeMap;

use piped_core::access::Access;
use piped_core::ids::{ChannelId, RegionId};
use piped_core::io::Io;
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_model::buffer::advise::Way;
use piped_wire::Message;

use super::Shard;
use super::arrivals::{Arriving, Came};
use super::channel::{Data, Envelope, Mail, MailPlace};
use super::connections::{Destination, Lane, LaneState, PeerLane, Target as Landing};
use super::crowd::Holding;
use super::faults::PeerFault;
use super::keys::{LaneKey, LinkKey, ServedKey, TransferKey};
use super::numbers::is_within;
use super::receive::{From, ReceiveBody, Slot};
use super::requests::Body;
use super::sched::Work;
use crate::command::{RegionTarget, Target};

/// A message that comes from a peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) transfer: u64,
    pub(super) handle: u32,
    pub(super) tag: u64,
    pub(super) length: u32,
    pub(super) sequence: u32,
    pub(super) oldest: u32,
    pub(super) deadline: Nanos,
}

/// A channel of ours, as a peer has it open.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServedChannel {
    served: ServedKey,
    channel: ChannelId,
}

/// What a peer calls a message that it has announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct MailName {
    lane: LaneKey,
    wire: u64,
}

/// When the sender of an announced message gives it up, and which message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct MailTime {
    deadline: Nanos,
    channel: ChannelId,
    order: u64,
}

impl Mail {
    fn name(&self) -> MailName {
        MailName { lane: self.lane, wire: self.wire }
    }

    fn time(&self, channel: ChannelId, order: u64) -> MailTime {
        MailTime { deadline: self.deadline, channel, order }
    }
}

/// Messages that peers have announced: what each was sent by, and its number there.
#[derive(Debug, Default)]
pub(super) struct Announced {
    times: BTreeMap<MailTime, ServedKey>,
    names: BTreeMap<MailName, (ServedKey, u32)>,
}

impl Announced {
    fn add(&mut self, channel: ChannelId, order: u64, mail: Mail) {
        self.times.insert(mail.time(channel, order), mail.served);
        self.names.insert(mail.name(), (mail.served, mail.sequence));
    }

    fn remove(&mut self, channel: ChannelId, order: u64, mail: Mail) {
        self.times.remove(&mail.time(channel, order));
        self.names.remove(&mail.name());
    }

    pub(super) fn len(&self) -> usize {
        self.times.len()
    }

    /// When the next one is given up by its sender.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.times.first_key_value().map(|(at, _)| at.deadline)
    }
}

impl Shard {
    /// The channel that a peer sends to, if it may.
    fn channel_of(&mut self, link: LinkKey, handle: u32) -> Result<ServedChannel, Status> {
        let number = self.inbound.get_mut(link).and_then(|state| state.place(handle)?.number);
        let served = number.ok_or(Status::BadHandle)?.served;
        match self.served.get(served).ok_or(Status::BadHandle)?.target {
            Some(Target::Channel(channel)) if !channel.receives => {
                Ok(ServedChannel { served, channel: channel.channel })
            }
            Some(_) => Err(Status::Invalid),
            None => Err(Status::Gone),
        }
    }

    /// Where the payload of a message goes: to the receive that waits for it, or into early-arrival
    /// memory.
    pub(super) fn destination_of_send(
        &mut self,
        link: LinkKey,
        sent: Sent,
        now: Nanos,
    ) -> Destination {
        let placed = self.place_message(link, sent);
        if let Some(link) = self.inbound.get_mut(link) {
            let (sequence, way) = (sent.sequence, placed.as_ref().map(|(_, way)| *way));
            link.arriving = way.map(|way| Arriving { sequence, way, first: now });
        }
        placed.map_or(Destination::Discard, |(destination, _)| destination)
    }

    /// `None`: nobody receives it, or it came before.
    fn place_message(&mut self, link: LinkKey, sent: Sent) -> Option<(Destination, Way)> {
        let ServedChannel { served, channel: id } = self.channel_of(link, sent.handle).ok()?;
        let known = self.served.get(served).is_none_or(|it| it.taken_in.has(sent.sequence))
            || self.mail_place(served, sent.sequence).is_some();
        if known || !self.channels.contains_key(&id) {
            return None;
        }
        let length = sent.length;
        if let Some(posted) = self.channels.get(&id).and_then(|it| it.receive_for(sent.tag))
            && let Some(transfer) = self.transfers.get_mut(posted.transfer)
            && transfer.length >= length.into()
            && let Body::Receive(body) = &mut transfer.body
        {
            body.from = From::Frame;
            transfer.value = sent.tag;
            let span = body.memory.span(0, length);
            let pin = transfer.pins.take(posted.transfer);
            if let Some(channel) = self.channels.get_mut(&id) {
                channel.unpost(posted.transfer);
            }
            let landing = Landing::Receive(pin);
            return Some((Destination::Land(landing, span), Way::Direct));
        }
        Some(match self.allocate_early(id, length) {
            Some(piece) => (Destination::Land(Landing::Early(id, piece), piece.span), Way::Kept),
            None => (Destination::Discard, Way::Stalled),
        })
    }

    /// A peer's message is here, or announced.
    pub(super) fn handle_send<I: Io>(
        &mut self,
        on: PeerLane,
        sent: Sent,
        (landed, intact): (Landing, bool),
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let PeerLane { lane, link } = on;
        let to @ ServedChannel { served, channel: id } = match self.channel_of(link, sent.handle) {
            Ok(found) => found,
            Err(status) => {
                self.drop_landed(landed, io);
                return self.answer_send(lane, sent, status);
            }
        };
        self.forget_before(served, sent.oldest, io);
        let arriving = self.inbound.get_mut(link).and_then(|state| state.arriving.take());
        let arriving = arriving.filter(|arriving| arriving.sequence == sent.sequence);
        let came = arriving.map(|arriving| arriving.landed(link, io.now()));
        match landed {
            // It keeps its place, and its sender has it still.
            Landing::Receive(_) | Landing::Early(..) if !intact => {
                self.drop_landed(landed, io);
                self.announce(on, to, sent, None, io)
            }
            // It was given up while this landed: the message is for another one.
            Landing::Receive(pin)
                if self.transfers.get(pin.key()).is_none_or(|it| it.status.is_some()) =>
            {
                self.transfers.unpin(pin, &mut self.cx.sched);
                self.announce(on, to, sent, None, io)
            }
            Landing::Receive(pin) => {
                let key = pin.key();
                self.take_in(served, sent.sequence);
                self.transfers.unpin(pin, &mut self.cx.sched);
                if let Some(came) = came {
                    self.note_received(id, sent.length, came, io.now());
                }
                self.end_received(key, sent.length, io);
                self.answer_send(lane, sent, Status::Ok)
            }
            Landing::Early(id, piece) => {
                self.take_in(served, sent.sequence);
                let answered = self.answer_send(lane, sent, Status::Ok);
                match self.channels.get_mut(&id) {
                    Some(channel) => {
                        let (order, data) = (channel.next_order(), Data::Here(piece));
                        let (tag, length) = (sent.tag, sent.length);
                        self.offer(id, Envelope { order, tag, length, data, came }, io);
                    }
                    None => self.free_early(piece),
                }
                answered
            }
            _ if self.served.get(served).is_none_or(|it| it.taken_in.has(sent.sequence)) => {
                self.answer_send(lane, sent, Status::Ok)
            }
            _ => self.announce(on, to, sent, came, io),
        }
    }

    /// A peer has a message that is not here.
    fn announce<I: Io>(
        &mut self,
        on: PeerLane,
        to: ServedChannel,
        sent: Sent,
        came: Option<Came>,
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let PeerLane { lane, link } = on;
        let ServedChannel { served, channel: id } = to;
        let Sent { transfer: wire, sequence, deadline, .. } = sent;
        let mail = Mail { served, link, lane, wire, sequence, deadline, waits: true };
        // It was announced before, on a lane that is no more, or its write found its receive given
        // up.
        if let Some(place) = self.mail_place(served, sequence) {
            self.set_mail(place, mail);
            return match place.receive {
                Some(key) => {
                    self.ask_for(key);
                    Ok(())
                }
                None => self.answer_queued(lane, wire),
            };
        }
        let mails = self.inbound.get(link).map_or(0, |link| link.mails);
        if !self.may_hold(link, Holding::Mails) || mails >= limits::MAIL_PER_LINK {
            return self.answer_send(lane, sent, Status::WouldBlock);
        }
        let Some(channel) = self.channels.get_mut(&id) else {
            return self.answer_send(lane, sent, Status::Gone);
        };
        let order = channel.next_order();
        self.book_mail(MailPlace { sequence, channel: id, order, receive: None }, mail);
        let (tag, length) = (sent.tag, sent.length);
        if self.offer(id, Envelope { order, tag, length, data: Data::Peer(mail), came }, io) {
            return Ok(());
        }
        self.answer_queued(lane, wire)
    }

    fn answer_queued(&mut self, lane: LaneKey, transfer: u64) -> Result<(), PeerFault> {
        let pushed =
            self.lanes.get_mut(lane).is_none_or(|it| it.push(Message::Queued { transfer }));
        self.cx.sched.make_ready(Work::Lane(lane));
        pushed.then_some(()).ok_or(PeerFault::UnreadAnswers)
    }

    fn answer_send(&mut self, lane: LaneKey, sent: Sent, status: Status) -> Result<(), PeerFault> {
        let bytes = if status == Status::Ok { sent.length.into() } else { 0 };
        self.answer_end(lane, sent.transfer, status, bytes)
    }

    fn book_mail(&mut self, place: MailPlace, mail: Mail) {
        self.announced.add(place.channel, place.order, mail);
        if let Some(served) = self.served.get_mut(mail.served) {
            served.mails.push(place);
        }
        if let Some(link) = self.inbound.get_mut(mail.link) {
            link.mails += 1;
        }
    }

    fn strike_mail(&mut self, id: ChannelId, order: u64, mail: Mail) {
        self.announced.remove(id, order, mail);
        if let Some(served) = self.served.get_mut(mail.served) {
            served.mails.retain(|place| place.order != order);
        }
        if let Some(link) = self.inbound.get_mut(mail.link) {
            link.mails -= 1;
        }
    }

    fn mail_place(&self, served: ServedKey, sequence: u32) -> Option<MailPlace> {
        let mut mails = self.served.get(served)?.mails.iter();
        mails.find(|place| place.sequence == sequence).copied()
    }

    pub(super) fn book_receive(
        &mut self,
        served: ServedKey,
        order: u64,
        receive: Option<TransferKey>,
    ) {
        let mails = self.served.get_mut(served).map(|served| &mut served.mails);
        if let Some(place) = mails.and_then(|it| it.iter_mut().find(|place| place.order == order)) {
            place.receive = receive;
        }
    }

    /// A message is announced anew.
    fn set_mail(&mut self, place: MailPlace, mail: Mail) {
        let data = match place.receive {
            Some(key) => match self.transfers.get_mut(key).map(|transfer| &mut transfer.body) {
                Some(Body::Receive(ReceiveBody { from: From::Message(envelope, _), .. })) => {
                    Some(&mut envelope.data)
                }
                _ => None,
            },
            None => {
                let channel = self.channels.get_mut(&place.channel);
                channel.and_then(|it| Some(&mut it.message_mut(place.order)?.data))
            }
        };
        let Some(Data::Peer(old)) = data.map(|data| std::mem::replace(data, Data::Peer(mail)))
        else {
            return;
        };
        self.announced.remove(place.channel, place.order, old);
        self.announced.add(place.channel, place.order, mail);
    }

    /// Tells a sender that its message is asked for, and where to write it. Without its lane now:
    /// when it says again that it has it.
    pub(super) fn ask_for(&mut self, key: TransferKey) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let Body::Receive(mut body) = transfer.body else { return };
        let From::Message(mut envelope, Some(slot)) = body.from else { return };
        let Data::Peer(mail) = envelope.data else { return };
        let up = |lane: &Lane| lane.state == LaneState::Up;
        if !mail.waits || !self.lanes.get(mail.lane).is_some_and(up) {
            return;
        }
        envelope.data = Data::Peer(Mail { waits: false, ..mail });
        body.from = From::Message(envelope, Some(slot));
        self.store_body(key, Body::Receive(body));
        let (transfer, status, handle) = (mail.wire, Status::Ok, slot.number);
        self.push_ready(mail.lane, Message::Ready { transfer, status, handle });
    }

    fn push_ready(&mut self, lane: LaneKey, message: Message) {
        let Some(state) = self.lanes.get_mut(lane) else { return };
        let pushed = state.push(message);
        if let Some(serving) = state.serving_mut() {
            // Nobody would say it again.
            serving.overrun |= !pushed;
        }
        self.cx.sched.make_ready(Work::Lane(lane));
    }

    /// A region that a peer can write a message to: the receive's buffer.
    pub(super) fn open_slot(
        &mut self,
        link: LinkKey,
        key: TransferKey,
        length: u32,
    ) -> Option<Slot> {
        let Some(Body::Receive(body)) = self.transfers.get(key).map(|it| &it.body) else {
            return None;
        };
        let target = Target::Region(RegionTarget {
            region: RegionId::MESSAGE,
            segment: body.memory.segment,
            offset: body.memory.offset,
            length: length.into(),
            access: Access::WRITE,
        });
        let (number, served) = self.inbound.get_mut(link)?.keep_slot(target, &mut self.served)?;
        let pin = self.transfers.pin(key);
        if let Some(served) = self.served.get_mut(served) {
            served.receive = pin;
        }
        Some(Slot { link, number, served })
    }

    /// Nobody writes to a receive's buffer any more, as soon as what does has ended.
    pub(super) fn close_slot<I: Io>(&mut self, slot: Slot, io: &mut I) {
        if let Some(link) = self.inbound.get_mut(slot.link) {
            link.forget_number(slot.served);
        }
        let mut from = 0;
        while let Some(serve) = self.serves.next_from(from, |it| it.served == slot.served) {
            from = serve.index() + 1;
            // Also one that is done and has not said so: the message is for another receive.
            if let Some(serve) = self.serves.get_mut(serve).filter(|serve| !serve.answered) {
                serve.status = Some(Status::Cancelled);
            }
            self.cx.sched.make_ready(Work::Serve(serve));
        }
        self.close_served(slot.served, io);
    }

    /// A peer's write to a receive's buffer is over.
    pub(super) fn handle_message_written<I: Io>(
        &mut self,
        key: TransferKey,
        served: ServedKey,
        bytes: u64,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get(key).filter(|it| it.status.is_none()) else {
            return;
        };
        let Body::Receive(body) = transfer.body else { return };
        let From::Message(envelope, Some(slot)) = body.from else { return };
        let Data::Peer(mail) = envelope.data else { return };
        if slot.served != served || bytes != envelope.length.into() {
            // It comes again, or its sender gives it up.
            return;
        }
        self.strike_mail(body.channel, envelope.order, mail);
        self.take_in(mail.served, mail.sequence);
        if let Some(came) = envelope.came {
            self.note_received(body.channel, envelope.length, came, io.now());
        }
        self.forget_message(key);
        self.close_slot(slot, io);
        self.end_received(key, envelope.length, io);
    }

    /// Records that a message was taken in, so that it is not received again if it comes once more.
    fn take_in(&mut self, served: ServedKey, sequence: u32) {
        if let Some(served) = self.served.get_mut(served) {
            served.taken_in.add(sequence, ());
        }
    }

    /// What landed is not to be used: it was damaged, or its lane is gone.
    pub(super) fn drop_landed<I: Io>(&mut self, landed: Landing, io: &mut I) {
        match landed {
            Landing::Receive(pin) => {
                let key = pin.key();
                self.transfers.unpin(pin, &mut self.cx.sched);
                self.post_again(key, io);
            }
            Landing::Early(id, piece) => {
                self.arrivals.forget_early(id, piece.span.length);
                self.free_early(piece);
            }
            _ => {}
        }
    }

    /// A peer gives up a message that it announced.
    pub(super) fn cancel_mail<I: Io>(&mut self, lane: LaneKey, wire: u64, io: &mut I) {
        let name = MailName { lane, wire };
        let Some(&(served, sequence)) = self.announced.names.get(&name) else { return };
        if let Some(place) = self.mail_place(served, sequence) {
            self.lose_mail(place, Status::Cancelled, io);
        }
    }

    /// What a peer will not send again: it is over there.
    fn forget_before<I: Io>(&mut self, served: ServedKey, oldest: u32, io: &mut I) {
        if let Some(served) = self.served.get_mut(served) {
            served.taken_in.forget_before(oldest);
        }
        let is_over = |place: &MailPlace| !is_within(place.sequence, oldest);
        while let Some(served) = self.served.get_mut(served)
            && let Some(at) = served.mails.iter().position(is_over)
        {
            let place = served.mails.swap_remove(at);
            self.lose_mail(place, Status::Cancelled, io);
        }
    }

    /// An announced message will not come.
    fn lose_mail<I: Io>(&mut self, place: MailPlace, status: Status, io: &mut I) {
        if let Some(key) = place.receive {
            return self.lose_message(key, status, io);
        }
        let channel = self.channels.get_mut(&place.channel);
        if let Some(envelope) = channel.and_then(|channel| channel.remove(place.order))
            && let Data::Peer(mail) = envelope.data
        {
            self.end_mail(place.channel, place.order, mail, status);
        }
    }

    /// The message that a receive waits for will not come.
    fn lose_message<I: Io>(&mut self, key: TransferKey, status: Status, io: &mut I) {
        let Some(Body::Receive(body)) = self.transfers.get(key).map(|it| &it.body) else { return };
        let (id, From::Message(envelope, slot)) = (body.channel, body.from) else { return };
        if let Data::Peer(mail) = envelope.data {
            self.end_mail(id, envelope.order, mail, status);
        }
        if let Some(slot) = slot {
            self.close_slot(slot, io);
        }
        self.post_again(key, io);
    }

    /// Nobody waits for a message any more; its sender is told if it waits for that.
    pub(super) fn end_mail(&mut self, id: ChannelId, order: u64, mail: Mail, status: Status) {
        self.strike_mail(id, order, mail);
        if mail.waits {
            let (transfer, handle) = (mail.wire, 0);
            self.push_ready(mail.lane, Message::Ready { transfer, status, handle });
        }
    }

    /// Messages whose senders have given them up, and could not say so.
    pub(super) fn expire_mail<I: Io>(&mut self, now: Nanos, io: &mut I) {
        for _ in 0..limits::MAIL_PER_TURN {
            let Some((&at, &served)) = self.announced.times.first_key_value() else { return };
            let MailTime { deadline, order, .. } = at;
            if deadline > now {
                return;
            }
            let mails = self.served.get(served).map(|served| &served.mails);
            let place = mails.and_then(|it| it.iter().find(|place| place.order == order).copied());
            match place {
                Some(place) => self.lose_mail(place, Status::DeadlineExceeded, io),
                None => debug_assert!(false, "a message is in one book and not in the other"),
            }
            // Whatever became of it, the next look finds another.
            self.announced.times.remove(&at);
        }
    }

    /// A peer has closed what it sent by, or is another one now: what it announced will not come.
    pub(super) fn forget_mail<I: Io>(&mut self, served: ServedKey, status: Status, io: &mut I) {
        while let Some(place) = self.served.get_mut(served).and_then(|it| it.mails.pop()) {
            self.lose_mail(place, status, io);
        }
    }

    /// Whether a message may come like this: on the lane that keeps their order, and no more of a
    /// handle than are remembered.
    pub(super) fn may_send(&self, lane: LaneKey, sent: Sent) -> bool {
        let fits = |lane: &Lane| lane.class == LaneClass::Latency && lane.state == LaneState::Up;
        self.lanes.get(lane).is_some_and(fits) && is_within(sent.sequence, sent.oldest)
    }
}
