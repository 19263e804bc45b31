//! Messages between clients: what a channel's receiver asks for, and how it gets it.
//!
//! A message comes to its receive in one of four ways:
//!
//! ```text
//! eager, received first     lane ─► the receive's buffer
//! eager, not asked for yet  lane ─► early-arrival memory ─ copy ─► the receive's buffer
//! announced                 Ready ─► sender; its write ─► the receive's buffer, as a region's
//! of this shard             sender's buffer ─ copy ─► the receive's buffer
//! ```
//!
//! A sender is done when its message is taken in: in early-arrival memory or with its receiver. What there is no
//! early-arrival memory for counts as announced: it stays with its sender and nothing is lost. A receive that is given
//! up gives its message back.

use piped_model::units::Nanos;

use super::channel::{Channel, Data, Envelope, Mail, MailPlace, Posted, is_within};
use super::dial::{Effect, Hop};
use super::early::Piece;
use super::lane::{Destination, Lane, LaneState, Target as Landing};
use super::memory::overlap;
use super::slab::Key;
use super::trace::Subject;
use super::transfer::{Body, Memory};
use super::{Shard, Work};
use crate::command::{Access, LaneClass, RegionTarget, Target};
use crate::ids::{ChannelId, RegionId, SessionId};
use crate::io::{Io, Span};
use crate::limits::{self, MEMORY_BYTES_PER_TURN};
use crate::request::Status;
use crate::tally::MessageWay;
use crate::wire::Message;

/// A receive.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceiveBody {
    pub(super) channel: ChannelId,
    /// The tag it takes; any without.
    tag: Option<u64>,
    pub(super) memory: Memory,
    /// Its place among the channel's receives; 0 until it has one.
    order: u64,
    from: From,
    /// Bytes that were copied.
    next: u32,
    /// It ends if there is no message now.
    no_wait: bool,
}

/// What a receive gets.
#[derive(Debug, Clone, Copy)]
enum From {
    Nothing,
    /// A frame is landing in its buffer.
    Frame,
    /// A message, and if it is to be written by its sender, what to.
    Message(Envelope, Option<Slot>),
}

/// A receive's buffer as a peer writes to it.
#[derive(Debug, Clone, Copy)]
struct Slot {
    link: Key,
    number: u32,
    served: Key,
}

impl ReceiveBody {
    pub(super) fn new(channel: ChannelId, tag: Option<u64>, memory: Memory, no_wait: bool) -> Self {
        Self { channel, tag, memory, order: 0, from: From::Nothing, next: 0, no_wait }
    }
}

/// A send on this shard, until somebody has received it.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendBody {
    pub(super) channel: ChannelId,
    pub(super) tag: u64,
    pub(super) memory: Memory,
    /// Its place among the channel's messages; 0 until it has one.
    order: u64,
    /// It ends if it is not taken in now.
    no_wait: bool,
}

impl SendBody {
    pub(super) fn new(channel: ChannelId, tag: u64, memory: Memory, no_wait: bool) -> Self {
        Self { channel, tag, memory, order: 0, no_wait }
    }
}

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

impl Shard {
    pub(super) fn open_channel(&mut self, id: ChannelId, owner: SessionId) {
        self.channels.entry(id).or_insert_with(|| Channel::new(owner));
    }

    /// Nobody receives any more: what waits ends, and whoever sends from now on is told.
    pub(super) fn close_channel<I: Io>(&mut self, id: ChannelId, io: &mut I) {
        let Some(channel) = self.channels.remove(&id) else { return };
        self.revoke_channel(id);
        let (waiting, posted) = channel.into_parts();
        for envelope in waiting {
            match envelope.data {
                Data::Here(piece) => self.free_early(piece),
                Data::Local(sender) => self.decide(sender, Status::Gone, io),
                Data::Peer(mail) => self.end_mail(id, envelope.order, mail, Status::Gone),
            }
        }
        for posted in posted {
            self.decide(posted.transfer, Status::Gone, io);
        }
    }

    // ---- what is on this shard ----

    pub(super) fn drive_send<I: Io>(&mut self, key: Key, body: SendBody, io: &mut I) {
        if body.order > 0 {
            return;
        }
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let length = transfer.length as u32;
        let Some(channel) = self.channels.get_mut(&body.channel) else {
            return self.decide(key, Status::Gone, io);
        };
        let order = channel.next_order();
        let asked_for = channel.receive_for(body.tag).is_some();
        transfer.body = Body::Send(SendBody { order, ..body });
        let mut data = Data::Local(key);
        if !asked_for
            && length <= self.eager_most(None)
            && let Some(piece) = self.allocate_early(body.channel, length)
        {
            io.copy(body.memory.span(0, length), piece.span);
            data = Data::Here(piece);
            self.end_message(key, length, io);
        }
        let went = self.offer(body.channel, Envelope { order, tag: body.tag, length, data }, io);
        if body.no_wait && !went && matches!(data, Data::Local(_)) {
            self.give_up(key, Status::WouldBlock, io);
        }
    }

    pub(super) fn drive_receive<I: Io>(&mut self, key: Key, body: ReceiveBody, io: &mut I) {
        match body.from {
            From::Nothing if body.order == 0 => self.post(key, body, io),
            From::Message(envelope, _) => match envelope.data {
                Data::Here(piece) => self.copy_message(key, body, piece.span, io),
                Data::Local(sender) => {
                    let memory = match self.transfers.get(sender).map(|sender| &sender.body) {
                        Some(Body::Send(body)) => body.memory,
                        _ => return self.decide(key, Status::Gone, io),
                    };
                    self.copy_message(key, body, memory.span(0, envelope.length), io);
                }
                Data::Peer(_) => {}
            },
            From::Nothing | From::Frame => {}
        }
    }

    /// A receive takes the first message that fits, or waits for one.
    fn post<I: Io>(&mut self, key: Key, mut body: ReceiveBody, io: &mut I) {
        let Some(channel) = self.channels.get_mut(&body.channel) else {
            return self.decide(key, Status::Gone, io);
        };
        body.order = channel.next_order();
        let envelope = channel.take_message(body.tag);
        if envelope.is_none() && body.no_wait {
            return self.decide(key, Status::WouldBlock, io);
        }
        if envelope.is_none() {
            channel.post(Posted { order: body.order, transfer: key, tag: body.tag });
        }
        self.store_body(key, Body::Receive(body));
        if let Some(envelope) = envelope
            && !self.pair(key, envelope, io)
        {
            // It was too long for this one, and for those before it there was none of its tag.
            if let Some(channel) = self.channels.get_mut(&body.channel) {
                channel.wait(envelope);
            }
        }
    }

    /// A message goes to the receive that has waited longest for it, or waits for one. `true`: it went.
    fn offer<I: Io>(&mut self, id: ChannelId, envelope: Envelope, io: &mut I) -> bool {
        while let Some(channel) = self.channels.get_mut(&id)
            && let Some(posted) = channel.receive_for(envelope.tag)
        {
            channel.unpost(posted.transfer);
            if self.pair(posted.transfer, envelope, io) {
                return true;
            }
        }
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.wait(envelope);
        }
        false
    }

    /// Gives a receive its message. `false`: it has ended, and the message is for the next.
    fn pair<I: Io>(&mut self, key: Key, envelope: Envelope, io: &mut I) -> bool {
        let Some(transfer) = self.transfers.get_mut(key).filter(|it| it.status.is_none()) else {
            return false;
        };
        transfer.value = envelope.tag;
        if u64::from(envelope.length) > transfer.length {
            self.decide(key, Status::TooLong, io);
            return false;
        }
        let Body::Receive(body) = transfer.body else { return false };
        let mut slot = None;
        match envelope.data {
            Data::Here(_) => {}
            Data::Local(sender) => {
                let from = self.transfers.get(sender).and_then(|it| match it.body {
                    Body::Send(sent) => Some(sent.memory.span(0, envelope.length)),
                    _ => None,
                });
                let to = body.memory.span(0, envelope.length);
                // A client that sends its own buffer to itself has the bytes where it wants them, or gets what has
                // no defined result.
                if from.is_none_or(|from| from != to && overlap(from, to)) {
                    self.decide(key, Status::Invalid, io);
                    return false;
                }
                self.pin(sender);
            }
            Data::Peer(mail) => {
                slot = self.open_slot(mail.link, key, envelope.length);
                if slot.is_none() {
                    self.decide(key, Status::WouldBlock, io);
                    return false;
                }
                self.book_receive(mail.served, envelope.order, Some(key));
            }
        }
        self.store_body(
            key,
            Body::Receive(ReceiveBody { from: From::Message(envelope, slot), ..body }),
        );
        if slot.is_some() {
            self.ask_for(key);
        }
        self.make_ready(Work::Transfer(key));
        true
    }

    /// Copies a message to its receive, a piece a turn.
    fn copy_message<I: Io>(&mut self, key: Key, mut body: ReceiveBody, from: Span, io: &mut I) {
        if body.next == from.length {
            return;
        }
        if self.dials.is_full() {
            return self.starve(Work::Transfer(key));
        }
        let start = body.next;
        let piece = from.part(start, MEMORY_BYTES_PER_TURN);
        let to = body.memory.span(start.into(), piece.length);
        let arrived = io.now();
        if piece != to {
            io.copy(piece, to);
        }
        let now = io.now();
        self.planner.sample_copy(piece.length, now.since(arrived));
        let of = Subject::Transfer(key);
        let stage = self.planner.copy_stage();
        self.pass_stage(of, stage, (start.into(), piece.length), (Some(arrived), now));
        body.next += piece.length;
        let (start, end) = (u64::from(start), u64::from(body.next));
        let over = body.next == from.length;
        self.store_body(key, Body::Receive(body));
        if !over {
            self.make_ready(Work::Transfer(key));
        }
        if self.dials.any() {
            let effect = Effect::Copied { transfer: key, start, end };
            return self.pass(Hop::Copy, effect, piece.length, io);
        }
        self.handle_message_copied(key, start, end, io);
    }

    /// A piece of a message is with its receive, and has left the dial if there is one.
    pub(super) fn handle_message_copied<I: Io>(
        &mut self,
        key: Key,
        start: u64,
        end: u64,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let Body::Receive(body) = transfer.body else { return };
        let From::Message(envelope, _) = body.from else { return };
        if transfer.status.is_some() {
            return;
        }
        let inserted = transfer.landed.insert(start, end);
        debug_assert!(inserted.is_ok(), "a copy goes forward");
        if end < envelope.length.into() {
            return self.tell_progress(key);
        }
        self.forget_message(key);
        match envelope.data {
            Data::Here(piece) => self.free_early(piece),
            Data::Local(sender) => {
                self.unpin(sender);
                self.end_message(sender, envelope.length, io);
            }
            Data::Peer(_) => debug_assert!(false, "a peer's message is not copied"),
        }
        self.decide(key, Status::Ok, io);
    }

    /// A message of this shard has been taken in.
    fn end_message<I: Io>(&mut self, sender: Key, length: u32, io: &mut I) {
        if let Some(transfer) = self.transfers.get_mut(sender) {
            let inserted = transfer.landed.insert(0, length.into());
            debug_assert!(inserted.is_ok(), "a message is received once");
        }
        self.decide(sender, Status::Ok, io);
    }

    /// A receive or a send is given up: it waits no longer, and its message is for others.
    pub(super) fn leave_channel<I: Io>(&mut self, key: Key, io: &mut I) {
        match self.transfers.get(key).map(|transfer| &transfer.body) {
            Some(&Body::Send(SendBody { channel, order, .. })) => {
                let channel = self.channels.get_mut(&channel).filter(|_| order > 0);
                if let Some(channel) = channel {
                    channel.remove(order);
                }
            }
            Some(&Body::Receive(body)) => {
                if let Some(channel) = self.channels.get_mut(&body.channel) {
                    channel.unpost(key);
                }
                let From::Message(envelope, slot) = body.from else { return };
                self.forget_message(key);
                if let Data::Local(sender) = envelope.data {
                    self.unpin(sender);
                }
                if let Some(slot) = slot {
                    self.close_slot(slot, io);
                }
                if let Data::Peer(mail) = envelope.data {
                    self.book_receive(mail.served, envelope.order, None);
                }
                match envelope.data {
                    // It was given up itself, and only waited for this.
                    Data::Local(sender)
                        if self.transfers.get(sender).is_none_or(|it| it.status.is_some()) => {}
                    _ if self.channels.contains_key(&body.channel) => {
                        self.offer(body.channel, envelope, io);
                    }
                    Data::Here(piece) => self.free_early(piece),
                    Data::Local(sender) => self.decide(sender, Status::Gone, io),
                    Data::Peer(mail) => {
                        self.end_mail(body.channel, envelope.order, mail, Status::Gone);
                    }
                }
            }
            _ => {}
        }
    }

    /// A receive has nothing to do with its message any more.
    fn forget_message(&mut self, key: Key) {
        if let Some(Body::Receive(body)) = self.transfers.get_mut(key).map(|it| &mut it.body) {
            body.from = From::Nothing;
        }
    }

    // ---- early-arrival memory ----

    /// Early-arrival memory for a message, charged to who receives on the channel.
    fn allocate_early(&mut self, channel: ChannelId, length: u32) -> Option<Piece> {
        let owner = self.channels.get(&channel)?.owner;
        let session = self.sessions.get_mut(&owner)?;
        let needed = self.early.needed(owner, length);
        // Staging is for those as well who come and go: messages stay as long as nobody asks for them.
        let most = self.staging.kept_bytes() / limits::EARLY_STAGING_DIVISOR;
        let piece = if session.early.now + needed <= self.limits.client.early_arrival {
            self.early.allocate(
                (owner, length),
                self.limits.early_arrival.min(most),
                &mut self.staging,
            )
        } else {
            None
        };
        if piece.is_some() {
            session.early.add(needed);
        }
        let way = if piece.is_some() { MessageWay::Early } else { MessageWay::Stalled };
        self.tally.messages[way as usize] += 1;
        piece
    }

    fn free_early(&mut self, piece: Piece) {
        let Some(run) = self.early.free(piece) else { return };
        if let Some(session) = self.sessions.get_mut(&piece.owner) {
            session.early.sub(run.footprint());
        }
        self.free_staging(run);
    }

    // ---- what comes from peers ----

    /// The channel that a peer sends to, if it may.
    fn channel_of(&mut self, link: Key, handle: u32) -> Result<(Key, ChannelId), Status> {
        let number = self.inbound.get_mut(link).and_then(|state| state.place(handle)?.number);
        let served = number.ok_or(Status::BadHandle)?.served;
        match self.served.get(served).ok_or(Status::BadHandle)?.target {
            Some(Target::Channel(channel)) if !channel.receives => Ok((served, channel.channel)),
            Some(_) => Err(Status::Invalid),
            None => Err(Status::Gone),
        }
    }

    /// Where the payload of a message goes: to the receive that waits for it, or into early-arrival memory.
    pub(super) fn destination_of_send(&mut self, link: Key, sent: Sent) -> Destination {
        let Ok((served, id)) = self.channel_of(link, sent.handle) else {
            return Destination::Discard;
        };
        let known = self.served.get(served).is_none_or(|it| it.taken_in.has(sent.sequence))
            || self.mail_place(served, sent.sequence).is_some();
        if known || !self.channels.contains_key(&id) {
            return Destination::Discard;
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
            if let Some(channel) = self.channels.get_mut(&id) {
                channel.unpost(posted.transfer);
            }
            return Destination::Land(Landing::Receive(posted.transfer), span);
        }
        match self.allocate_early(id, length) {
            Some(piece) => Destination::Land(Landing::Early(id, piece), piece.span),
            None => Destination::Discard,
        }
    }

    /// A peer's message is here, or announced.
    pub(super) fn handle_send<I: Io>(
        &mut self,
        (lane, link): (Key, Key),
        sent: Sent,
        (landed, intact): (Landing, bool),
        io: &mut I,
    ) -> Result<(), &'static str> {
        let (served, id) = match self.channel_of(link, sent.handle) {
            Ok(found) => found,
            Err(status) => {
                self.drop_landed(landed, io);
                return self.answer_send(lane, sent, status);
            }
        };
        self.forget_before(served, sent.oldest, io);
        match landed {
            // It keeps its place, and its sender has it still.
            Landing::Receive(_) | Landing::Early(..) if !intact => {
                self.drop_landed(landed, io);
                self.announce(lane, link, (served, id), sent, io)
            }
            // It was given up while this landed: the message is for another one.
            Landing::Receive(key)
                if self.transfers.get(key).is_none_or(|it| it.status.is_some()) =>
            {
                self.unpin(key);
                self.announce(lane, link, (served, id), sent, io)
            }
            Landing::Receive(key) => {
                self.take_in(served, sent.sequence);
                self.unpin(key);
                self.end_received(key, sent.length, io);
                self.answer_send(lane, sent, Status::Ok)
            }
            Landing::Early(id, piece) => {
                self.take_in(served, sent.sequence);
                let answered = self.answer_send(lane, sent, Status::Ok);
                match self.channels.get_mut(&id) {
                    Some(channel) => {
                        let (order, data) = (channel.next_order(), Data::Here(piece));
                        let envelope = Envelope { order, tag: sent.tag, length: sent.length, data };
                        self.offer(id, envelope, io);
                    }
                    None => self.free_early(piece),
                }
                answered
            }
            _ if self.served.get(served).is_none_or(|it| it.taken_in.has(sent.sequence)) => {
                self.answer_send(lane, sent, Status::Ok)
            }
            _ => self.announce(lane, link, (served, id), sent, io),
        }
    }

    /// A peer has a message that is not here.
    fn announce<I: Io>(
        &mut self,
        lane: Key,
        link: Key,
        (served, id): (Key, ChannelId),
        sent: Sent,
        io: &mut I,
    ) -> Result<(), &'static str> {
        let Sent { transfer: wire, sequence, deadline, .. } = sent;
        let mail = Mail { served, link, lane, wire, sequence, deadline, waits: true };
        // It was announced before, on a lane that is no more, or its write found its receive given up.
        if let Some(place) = self.mail_place(served, sequence) {
            return match place.receive {
                Some(key) => {
                    self.set_mail(place, mail);
                    self.ask_for(key);
                    Ok(())
                }
                None => {
                    self.set_mail(place, mail);
                    self.answer_queued(lane, wire)
                }
            };
        }
        let mails = self.inbound.get(link).map_or(0, |link| link.mails);
        if self.mail_times.len() >= limits::MAIL_MAX || mails >= limits::MAIL_PER_LINK {
            return self.answer_send(lane, sent, Status::WouldBlock);
        }
        let Some(channel) = self.channels.get_mut(&id) else {
            return self.answer_send(lane, sent, Status::Gone);
        };
        let order = channel.next_order();
        self.book_mail(MailPlace { sequence, channel: id, order, receive: None }, mail);
        let (tag, length) = (sent.tag, sent.length);
        if self.offer(id, Envelope { order, tag, length, data: Data::Peer(mail) }, io) {
            return Ok(());
        }
        self.answer_queued(lane, wire)
    }

    fn answer_queued(&mut self, lane: Key, transfer: u64) -> Result<(), &'static str> {
        let pushed =
            self.lanes.get_mut(lane).is_none_or(|it| it.push(Message::Queued { transfer }));
        self.make_ready(Work::Lane(lane));
        pushed.then_some(()).ok_or("it does not read its answers")
    }

    fn answer_send(&mut self, lane: Key, sent: Sent, status: Status) -> Result<(), &'static str> {
        let bytes = if status == Status::Ok { sent.length.into() } else { 0 };
        self.answer_end(lane, sent.transfer, status, bytes)
    }

    // ---- the books of what peers have announced ----

    fn book_mail(&mut self, place: MailPlace, mail: Mail) {
        self.mail_times.insert((mail.deadline, place.channel, place.order), mail.served);
        self.mail_names.insert((mail.lane, mail.wire), (mail.served, mail.sequence));
        if let Some(served) = self.served.get_mut(mail.served) {
            served.mails.push(place);
        }
        if let Some(link) = self.inbound.get_mut(mail.link) {
            link.mails += 1;
        }
    }

    fn strike_mail(&mut self, id: ChannelId, order: u64, mail: Mail) {
        self.mail_times.remove(&(mail.deadline, id, order));
        self.mail_names.remove(&(mail.lane, mail.wire));
        if let Some(served) = self.served.get_mut(mail.served) {
            served.mails.retain(|place| place.order != order);
        }
        if let Some(link) = self.inbound.get_mut(mail.link) {
            link.mails -= 1;
        }
    }

    fn mail_place(&self, served: Key, sequence: u32) -> Option<MailPlace> {
        let mut mails = self.served.get(served)?.mails.iter();
        mails.find(|place| place.sequence == sequence).copied()
    }

    fn book_receive(&mut self, served: Key, order: u64, receive: Option<Key>) {
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
        self.mail_times.remove(&(old.deadline, place.channel, place.order));
        self.mail_times.insert((mail.deadline, place.channel, place.order), mail.served);
        self.mail_names.remove(&(old.lane, old.wire));
        self.mail_names.insert((mail.lane, mail.wire), (mail.served, mail.sequence));
    }

    /// Tells a sender that its message is asked for, and where to write it. Without its lane now: when it says
    /// again that it has it.
    fn ask_for(&mut self, key: Key) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let Body::Receive(mut body) = transfer.body else { return };
        let From::Message(mut envelope, slot) = body.from else { return };
        let Data::Peer(mail) = envelope.data else { return };
        let up = |lane: &Lane| lane.state == LaneState::Up;
        if !mail.waits || !self.lanes.get(mail.lane).is_some_and(up) {
            return;
        }
        let Some(slot) = slot else { return };
        envelope.data = Data::Peer(Mail { waits: false, ..mail });
        body.from = From::Message(envelope, Some(slot));
        self.store_body(key, Body::Receive(body));
        let (transfer, status, handle) = (mail.wire, Status::Ok, slot.number);
        self.push_ready(mail.lane, Message::Ready { transfer, status, handle });
    }

    fn push_ready(&mut self, lane: Key, message: Message) {
        if let Some(state) = self.lanes.get_mut(lane) {
            // Nobody would say it again.
            state.overrun |= !state.push(message);
            self.make_ready(Work::Lane(lane));
        }
    }

    /// A region that a peer can write a message to: the receive's buffer.
    fn open_slot(&mut self, link: Key, key: Key, length: u32) -> Option<Slot> {
        let Some(Body::Receive(body)) = self.transfers.get(key).map(|it| &it.body) else {
            return None;
        };
        let target = Target::Region(RegionTarget {
            region: RegionId::MESSAGE,
            segment: body.memory.segment,
            offset: body.memory.offset,
            length: length.into(),
            access: Access { read: false, write: true },
        });
        let (number, served) = self.inbound.get_mut(link)?.keep_slot(target, &mut self.served)?;
        if let Some(served) = self.served.get_mut(served) {
            served.receive = Some(key);
        }
        self.pin(key);
        Some(Slot { link, number, served })
    }

    /// Nobody writes to a receive's buffer any more, as soon as what does has ended.
    fn close_slot<I: Io>(&mut self, slot: Slot, io: &mut I) {
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
            self.make_ready(Work::Serve(serve));
        }
        self.close_served(slot.served, io);
    }

    /// A peer's write to a receive's buffer is over.
    pub(super) fn handle_message_written<I: Io>(
        &mut self,
        key: Key,
        served: Key,
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
        self.forget_message(key);
        self.close_slot(slot, io);
        self.end_received(key, envelope.length, io);
    }

    /// A message is in its receive's buffer.
    fn end_received<I: Io>(&mut self, key: Key, length: u32, io: &mut I) {
        if let Some(transfer) = self.transfers.get_mut(key).filter(|it| it.status.is_none()) {
            let inserted = transfer.landed.insert(0, length.into());
            debug_assert!(inserted.is_ok(), "a message lands once");
        }
        self.forget_message(key);
        self.decide(key, Status::Ok, io);
    }

    /// It is not to be received a second time, should it come again.
    fn take_in(&mut self, served: Key, sequence: u32) {
        if let Some(served) = self.served.get_mut(served) {
            served.taken_in.add(sequence);
        }
    }

    /// What landed is not to be used: it was damaged, or its lane is gone.
    pub(super) fn drop_landed<I: Io>(&mut self, landed: Landing, io: &mut I) {
        match landed {
            Landing::Receive(key) => {
                self.unpin(key);
                self.post_again(key, io);
            }
            Landing::Early(_, piece) => self.free_early(piece),
            _ => {}
        }
    }

    /// A receive whose message will not come after all waits for another, at its old place.
    fn post_again<I: Io>(&mut self, key: Key, io: &mut I) {
        let Some(transfer) = self.transfers.get_mut(key).filter(|it| it.status.is_none()) else {
            return;
        };
        let Body::Receive(body) = &mut transfer.body else { return };
        body.from = From::Nothing;
        let body = *body;
        let Some(channel) = self.channels.get_mut(&body.channel) else {
            return self.decide(key, Status::Gone, io);
        };
        match channel.take_message(body.tag) {
            Some(envelope) => {
                if !self.pair(key, envelope, io) {
                    self.offer(body.channel, envelope, io);
                }
            }
            None => channel.post(Posted { order: body.order, transfer: key, tag: body.tag }),
        }
    }

    // ---- messages that will not come ----

    /// A peer gives up a message that it announced.
    pub(super) fn cancel_mail<I: Io>(&mut self, lane: Key, wire: u64, io: &mut I) {
        let Some(&(served, sequence)) = self.mail_names.get(&(lane, wire)) else { return };
        if let Some(place) = self.mail_place(served, sequence) {
            self.lose_mail(place, Status::Cancelled, io);
        }
    }

    /// What a peer will not send again: it is over there.
    fn forget_before<I: Io>(&mut self, served: Key, oldest: u32, io: &mut I) {
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
    fn lose_message<I: Io>(&mut self, key: Key, status: Status, io: &mut I) {
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
    fn end_mail(&mut self, id: ChannelId, order: u64, mail: Mail, status: Status) {
        self.strike_mail(id, order, mail);
        if mail.waits {
            let (transfer, handle) = (mail.wire, 0);
            self.push_ready(mail.lane, Message::Ready { transfer, status, handle });
        }
    }

    /// Messages whose senders have given them up, and could not say so.
    pub(super) fn expire_mail<I: Io>(&mut self, now: Nanos, io: &mut I) {
        for _ in 0..limits::MAIL_PER_TURN {
            let Some((&at, &served)) = self.mail_times.first_key_value() else { return };
            let (deadline, _, order) = at;
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
            self.mail_times.remove(&at);
        }
    }

    /// A peer has closed what it sent by, or is another one now: what it announced will not come.
    pub(super) fn forget_mail<I: Io>(&mut self, served: Key, io: &mut I) {
        while let Some(place) = self.served.get_mut(served).and_then(|it| it.mails.pop()) {
            self.lose_mail(place, Status::Closed, io);
        }
    }

    /// Whether a message may come like this: on the lane that keeps their order, and no more of a handle than are
    /// remembered.
    pub(super) fn may_send(&self, lane: Key, sent: Sent) -> bool {
        let fits = |lane: &Lane| lane.class == LaneClass::Latency && lane.state == LaneState::Up;
        self.lanes.get(lane).is_some_and(fits) && is_within(sent.sequence, sent.oldest)
    }
}
