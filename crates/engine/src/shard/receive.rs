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
//! A sender is done when its message is taken in: in early-arrival memory or with its receiver.
//! What there is no early-arrival memory for counts as announced: it stays with its sender and
//! nothing is lost. A receive that is given up gives its message back.

use piped_core::ids::{ChannelId, SessionId};
use piped_core::io::{Io, Span};
use piped_core::limits;
use piped_core::limits::COPY_PIECE_BYTES;
use piped_core::status::Status;
use piped_model::buffer::advise::Way;
use piped_report::tally::MessageWay;

use super::Shard;
use super::arena::Memory;
use super::arrivals::Came;
use super::channel::{Channel, Data, Envelope, Posted};
use super::delays::{Effect, Hop};
use super::early::Piece;
use super::keys::{LinkKey, ServedKey, Subject, TransferKey};
use super::memory::overlap;
use super::requests::Body;
use super::sched::Work;

/// A request to receive a message from a channel.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceiveBody {
    pub(super) channel: ChannelId,
    /// The tag it takes; any without.
    tag: Option<u64>,
    pub(super) memory: Memory,
    /// Its place among the channel's receives; 0 until it has one.
    order: u64,
    pub(super) from: From,
    /// Bytes that were copied.
    next: u32,
    /// The receive ends with `WouldBlock` if no message is there now.
    no_wait: bool,
}

/// What a receive gets.
#[derive(Debug, Clone, Copy)]
pub(super) enum From {
    Nothing,
    /// A frame is landing in its buffer.
    Frame,
    /// A message, and if it is to be written by its sender, what to.
    Message(Envelope, Option<Slot>),
}

/// A receive's buffer as a peer writes to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) link: LinkKey,
    pub(super) number: u32,
    pub(super) served: ServedKey,
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
    /// The send ends with `WouldBlock` if no receive takes the message now.
    no_wait: bool,
}

impl SendBody {
    pub(super) fn new(channel: ChannelId, tag: u64, memory: Memory, no_wait: bool) -> Self {
        Self { channel, tag, memory, order: 0, no_wait }
    }
}

impl Shard {
    pub(super) fn open_channel(&mut self, id: ChannelId, owner: SessionId) {
        self.channels.entry(id).or_insert_with(|| Channel::new(owner));
        self.arrivals.expect_channel();
    }

    /// Nobody receives any more: what waits ends, and whoever sends from now on is told.
    pub(super) fn close_channel<I: Io>(&mut self, id: ChannelId, io: &mut I) {
        let Some(channel) = self.channels.remove(&id) else { return };
        self.revoke_channel(id);
        self.arrivals.close(id);
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

    pub(super) fn drive_send<I: Io>(&mut self, key: TransferKey, body: SendBody, io: &mut I) {
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
        let mut came = None;
        if length <= self.eager_most(None) {
            let now = io.now();
            came = Some(Came::here(if asked_for { Way::Direct } else { Way::Stalled }, now));
            if !asked_for && let Some(piece) = self.allocate_early(body.channel, length) {
                io.copy(body.memory.span(0, length), piece.span);
                data = Data::Here(piece);
                came = Some(Came::here(Way::Kept, now));
                self.end_message(key, length, io);
            }
        }
        let envelope = Envelope { order, tag: body.tag, length, data, came };
        let went = self.offer(body.channel, envelope, io);
        if body.no_wait && !went && matches!(data, Data::Local(_)) {
            self.give_up(key, Status::WouldBlock, io);
        }
    }

    pub(super) fn drive_receive<I: Io>(&mut self, key: TransferKey, body: ReceiveBody, io: &mut I) {
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
    fn post<I: Io>(&mut self, key: TransferKey, mut body: ReceiveBody, io: &mut I) {
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

    /// A message goes to the receive that has waited longest for it, or waits for one. `true`: it
    /// went.
    pub(super) fn offer<I: Io>(&mut self, id: ChannelId, envelope: Envelope, io: &mut I) -> bool {
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
    fn pair<I: Io>(&mut self, key: TransferKey, mut envelope: Envelope, io: &mut I) -> bool {
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
                // A client that sends its own buffer to itself has the bytes where it wants them,
                // or gets what has no defined result.
                if from.is_none_or(|from| from != to && overlap(from, to)) {
                    self.decide(key, Status::Invalid, io);
                    return false;
                }
                self.transfers.keep_pinned(key, sender);
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
        if let Some(came) = &mut envelope.came {
            came.taken = io.now();
        }
        self.store_body(
            key,
            Body::Receive(ReceiveBody { from: From::Message(envelope, slot), ..body }),
        );
        if slot.is_some() {
            self.ask_for(key);
        }
        self.cx.sched.make_ready(Work::Transfer(key));
        true
    }

    /// Copies a message to its receive, a piece a turn.
    fn copy_message<I: Io>(
        &mut self,
        key: TransferKey,
        mut body: ReceiveBody,
        from: Span,
        io: &mut I,
    ) {
        if body.next == from.length {
            return;
        }
        if self.cx.dials.is_full() {
            return self.cx.sched.starve(Work::Transfer(key));
        }
        let start = body.next;
        let piece = from.part(start, COPY_PIECE_BYTES);
        let to = body.memory.span(start.into(), piece.length);
        let arrived = io.now();
        if piece != to {
            io.copy(piece, to);
        }
        let now = io.now();
        self.cx.planner.sample_copy(piece.length, now.since(arrived));
        let of = Subject::Transfer(key);
        let stage = self.cx.planner.copy_stage();
        self.cx.watch.pass_stage(of, stage, (start.into(), piece.length), (Some(arrived), now));
        body.next += piece.length;
        let (start, end) = (u64::from(start), u64::from(body.next));
        let over = body.next == from.length;
        self.store_body(key, Body::Receive(body));
        if !over {
            self.cx.sched.make_ready(Work::Transfer(key));
        }
        if self.cx.dials.any() {
            let effect = Effect::Copied { transfer: key, start, end };
            return self.pass(Hop::Copy, effect, piece.length, io);
        }
        self.handle_message_copied(key, start, end, io);
    }

    /// A piece of a message is with its receive, and has left the dial if there is one.
    pub(super) fn handle_message_copied<I: Io>(
        &mut self,
        key: TransferKey,
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
        let inserted = self.transfers.land(key, start, end);
        debug_assert!(inserted.is_ok(), "a copy goes forward");
        if end < envelope.length.into() {
            return self.tell_progress(key);
        }
        self.forget_message(key);
        if let Some(came) = envelope.came {
            self.note_received(body.channel, envelope.length, came, io.now());
        }
        match envelope.data {
            Data::Here(piece) => self.free_early(piece),
            Data::Local(sender) => {
                self.transfers.let_go(key, &mut self.cx.sched);
                self.end_message(sender, envelope.length, io);
            }
            Data::Peer(_) => debug_assert!(false, "a peer's message is not copied"),
        }
        self.decide(key, Status::Ok, io);
    }

    /// A message of this shard has been taken in.
    fn end_message<I: Io>(&mut self, sender: TransferKey, length: u32, io: &mut I) {
        let _ = self.transfers.land(sender, 0, length.into());
        self.decide(sender, Status::Ok, io);
    }

    /// A receive or a send is given up: it waits no longer, and its message is for others.
    pub(super) fn leave_channel<I: Io>(&mut self, key: TransferKey, io: &mut I) {
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
                self.transfers.let_go(key, &mut self.cx.sched);
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
    pub(super) fn forget_message(&mut self, key: TransferKey) {
        if let Some(Body::Receive(body)) = self.transfers.get_mut(key).map(|it| &mut it.body) {
            body.from = From::Nothing;
        }
    }

    /// Early-arrival memory for a message, charged to who receives on the channel.
    pub(super) fn allocate_early(&mut self, channel: ChannelId, length: u32) -> Option<Piece> {
        let owner = self.channels.get(&channel)?.owner;
        let needed = self.early.needed(owner, length);
        let most = self.early_limit();
        let holdings = self.clients.holdings(owner)?;
        let piece = if holdings.early.now + needed <= self.cx.limits.client.early_arrival {
            self.early.allocate((owner, length), most, &mut self.cx.buffers)
        } else {
            None
        };
        if piece.is_some() {
            holdings.early.add(needed);
        }
        let way = if piece.is_some() { MessageWay::Early } else { MessageWay::Stalled };
        self.cx.watch.tally.messages[way as usize] += 1;
        self.arrivals.note_early(channel, owner, length, piece.is_some());
        piece
    }

    /// The most early-arrival memory. Staging is for those as well who come and go: messages stay
    /// as long as nobody asks for them.
    pub(super) fn early_limit(&self) -> u64 {
        self.cx
            .limits
            .early_arrival
            .min(self.cx.buffers.staging().kept_bytes() / limits::EARLY_STAGING_DIVISOR)
    }

    pub(super) fn free_early(&mut self, piece: Piece) {
        let Some(run) = self.early.free(piece) else { return };
        if let Some(holdings) = self.clients.holdings(piece.owner) {
            holdings.early.sub(run.footprint());
        }
        self.cx.free_staging(run);
    }

    /// A message is in its receive's buffer.
    pub(super) fn end_received<I: Io>(&mut self, key: TransferKey, length: u32, io: &mut I) {
        if self.transfers.get(key).is_some_and(|it| it.status.is_none()) {
            let inserted = self.transfers.land(key, 0, length.into());
            debug_assert!(inserted.is_ok(), "a message lands once");
        }
        self.forget_message(key);
        self.decide(key, Status::Ok, io);
    }

    /// A receive whose message will not come after all waits for another, at its old place.
    pub(super) fn post_again<I: Io>(&mut self, key: TransferKey, io: &mut I) {
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
}
