//! Messages between clients: what a channel's receiver asks for, and how it gets it.
//!
//! A message comes to its receive in one of five ways:
//!
//! ```text
//! eager, received first     lane ─► the receive's buffer
//! eager, not asked for yet  lane ─► early-arrival memory ─ copy ─► the receive's buffer
//! announced                 Ready ─► sender; its write ─► the receive's buffer, as a region's
//! of this shard             sender's buffer ─ copy ─► the receive's buffer
//! of another shard          that one brings it, by one of these ways
//! ```
//!
//! A sender is done when its message is taken in: in early-arrival memory or with its receiver. A
//! message of a client here to a channel of another shard is kept once that shard has said that no
//! receive waits.
//! What there is no early-arrival memory for counts as announced: it stays with its sender and
//! nothing is lost. A receive that is given up gives its message back.

use piped_core::access::Access;
use piped_core::ids::{ChannelId, RegionId};
use piped_core::io::{Io, Span};
use piped_core::limits::COPY_PIECE_BYTES;
use piped_core::status::Status;
use piped_model::buffer::advise::Way;

use crate::command;
use crate::command::RegionTarget;
use crate::relay::Relay;
use crate::shard::Shard;
use crate::shard::connections::{Destination, Target};
use crate::shard::delays::{Effect, Hop};
use crate::shard::flows::request::memory::overlap;
use crate::shard::keys::{ServedKey, Subject, TransferKey};
use crate::shard::messages::{Came, Data, Envelope, MailKey};
use crate::shard::requests::{Body, Incoming, ReceiveBody, SendBody, Slot};
use crate::shard::sched::Work;

impl Shard {
    /// Nobody receives any more: what waits ends, and whoever sends from now on is told.
    pub(in crate::shard) fn close_channel<I: Io>(&mut self, id: ChannelId, io: &mut I) {
        let Some(channel) = self.messages.close(id) else { return };
        if channel.home().is_none() {
            self.cx.relays.tell_all(Relay::Closed { channel: id });
        }
        // Handles to send to it serve nothing.
        let is_it = |target| matches!(target, command::Target::Channel(it) if it.channel == id);
        self.handles.revoke(is_it);
        self.links.revoke(is_it);
        let (waiting, posted) = channel.into_parts();
        for envelope in waiting {
            self.refuse_message(envelope.data, io);
        }
        for receive in posted {
            self.decide(receive, Status::Gone, io);
        }
    }

    /// Nobody will receive a message: its channel is no more.
    fn refuse_message<I: Io>(&mut self, data: Data, io: &mut I) {
        match data {
            Data::Here(piece) => self.messages.free(piece, &mut self.cx),
            Data::Local(sender) => self.decide(sender, Status::Gone, io),
            Data::Peer(mail) => self.lose_mail(mail, Status::Gone, io),
            // It was told.
            Data::Shard(..) => {}
        }
    }

    pub(in crate::shard) fn drive_send<I: Io>(
        &mut self,
        key: TransferKey,
        body: SendBody,
        io: &mut I,
    ) {
        if body.order > 0 {
            return self.keep_offered(key, body, io);
        }
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let length = transfer.length as u32;
        let Some(channel) = self.messages.channel(body.channel) else {
            return self.decide(key, Status::Gone, io);
        };
        let (order, elsewhere) = (channel.next_order(), channel.home().is_some());
        // Another shard says itself if no receive waits there.
        let asked_for = elsewhere || channel.receive_for(body.tag).is_some();
        transfer.body = Body::Send(body.at(order));
        let is_eager = length <= self.eager_most(None);
        let came = is_eager.then(|| Came::new(None, Way::Direct, io.now()));
        let (tag, data) = (body.tag, Data::Local(key));
        let mut envelope = Envelope { order, tag, length, place: 0, data, came };
        if !asked_for {
            self.keep_early(body, &mut envelope, io);
        }
        let went = self.offer(body.channel, envelope, io);
        if body.no_wait && !went && !elsewhere && envelope.data == Data::Local(key) {
            self.give_up(key, Status::WouldBlock, io);
        }
    }

    /// A message of this shard that no receive waits for goes into early-arrival memory, if it is
    /// short enough and there is room: then its sender is done. It is tried once.
    pub(in crate::shard) fn keep_early<I: Io>(
        &mut self,
        body: SendBody,
        envelope: &mut Envelope,
        io: &mut I,
    ) {
        let Data::Local(sender) = envelope.data else { return };
        let Some(came) = envelope.came.as_mut().filter(|it| it.is_direct()) else { return };
        let length = envelope.length;
        let piece = self.messages.keep(body.channel, length, &mut self.cx);
        came.wait(piece.is_some());
        let Some(piece) = piece else { return };
        envelope.data = Data::Here(piece);
        io.copy(body.memory.span(0, length), piece.span);
        self.end_message(sender, length, io);
    }

    pub(in crate::shard) fn drive_receive<I: Io>(
        &mut self,
        key: TransferKey,
        body: ReceiveBody,
        io: &mut I,
    ) {
        match body.from {
            Incoming::Nothing if body.order == 0 => self.post(key, body, io),
            Incoming::Message(envelope, _) => match envelope.data {
                Data::Here(piece) => self.copy_message(key, body, piece.span, io),
                Data::Local(sender) => match self.memory_sent(sender, envelope.length) {
                    Some(span) => self.copy_message(key, body, span, io),
                    None => self.decide(key, Status::Gone, io),
                },
                Data::Peer(_) | Data::Shard(..) => {}
            },
            Incoming::Nothing | Incoming::Frame => {}
        }
    }

    /// The memory from which a transfer of this shard sends.
    pub(in crate::shard) fn memory_sent(&self, sender: TransferKey, length: u32) -> Option<Span> {
        match self.transfers.get(sender)?.body {
            Body::Send(sent) => Some(sent.memory.span(0, length)),
            _ => None,
        }
    }

    /// A receive takes the first message that fits, or waits for one: at its old place, if it has
    /// had another one.
    pub(in crate::shard) fn post<I: Io>(
        &mut self,
        key: TransferKey,
        mut body: ReceiveBody,
        io: &mut I,
    ) {
        let Some(channel) = self.messages.channel(body.channel) else {
            return self.decide(key, Status::Gone, io);
        };
        let first = body.order == 0;
        if first {
            body.order = channel.next_order();
        }
        let envelope = channel.take_message(body.tag);
        if envelope.is_none() {
            if first && body.no_wait {
                return self.decide(key, Status::WouldBlock, io);
            }
            channel.post(key, body.tag, body.order);
        }
        self.store_body(key, Body::Receive(body));
        if let Some(envelope) = envelope
            && !self.pair(key, envelope, io)
        {
            self.offer(body.channel, envelope, io);
        }
    }

    /// A message goes to the receive that has waited longest for it, or waits for one. `true`: it
    /// went.
    pub(in crate::shard) fn offer<I: Io>(
        &mut self,
        id: ChannelId,
        envelope: Envelope,
        io: &mut I,
    ) -> bool {
        while let Some(channel) = self.messages.channel(id) {
            let Some(receive) = channel.take_receive(envelope.tag) else {
                let home = channel.home();
                channel.wait(envelope);
                if let Some(home) = home {
                    self.offer_elsewhere(home, id, envelope);
                }
                break;
            };
            if self.pair(receive, envelope, io) {
                return true;
            }
        }
        false
    }

    /// Gives a receive its message. `false`: it has ended, and the message is for the next.
    pub(in crate::shard) fn pair<I: Io>(
        &mut self,
        key: TransferKey,
        mut envelope: Envelope,
        io: &mut I,
    ) -> bool {
        let Some(transfer) = self.transfers.get_mut(key).filter(|it| it.status.is_none()) else {
            return false;
        };
        transfer.value = envelope.tag;
        let Body::Receive(body) = transfer.body else { return false };
        let to = body.memory.span(0, envelope.length);
        let (mut slot, mut refused) = (None, None);
        if u64::from(envelope.length) > transfer.length {
            refused = Some(Status::TooLong);
        } else if let Data::Local(sender) = envelope.data {
            // A client that sends its own buffer to itself has the bytes where it wants them, or
            // gets what has no defined result.
            let from = self.memory_sent(sender, envelope.length);
            if from.is_none_or(|from| from != to && overlap(from, to)) {
                refused = Some(Status::Invalid);
            } else {
                self.transfers.keep_pinned(key, sender);
            }
        } else if let Data::Peer(mail) = envelope.data {
            slot = self.open_slot(mail, key, to);
            refused = slot.is_none().then_some(Status::WouldBlock);
        }
        if let Some(status) = refused {
            self.decide(key, status, io);
            return false;
        }
        if let Some(came) = &mut envelope.came {
            came.taken = io.now();
        }
        let from = Incoming::Message(envelope, slot);
        self.store_body(key, Body::Receive(ReceiveBody { from, ..body }));
        match envelope.data {
            Data::Peer(mail) => self.ask_for(mail),
            Data::Shard(..) => self.take_elsewhere(key, (body.channel, envelope), to),
            Data::Here(_) | Data::Local(_) => self.cx.sched.make_ready(Work::Transfer(key)),
        }
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
    pub(in crate::shard) fn handle_message_copied<I: Io>(
        &mut self,
        key: TransferKey,
        start: u64,
        end: u64,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let Body::Receive(body) = transfer.body else { return };
        let Incoming::Message(envelope, _) = body.from else { return };
        if transfer.status.is_some() {
            return;
        }
        let inserted = self.transfers.land(key, start, end);
        debug_assert!(inserted.is_ok(), "a copy goes forward");
        if end < envelope.length.into() {
            return self.tell_progress(key);
        }
        self.transfers.let_go(key, &mut self.cx.sched);
        self.leave_copied(body.channel, envelope, io);
        self.end_message(key, envelope.length, io);
    }

    /// A message was copied to its receive: its early-arrival memory is free, or its sender done.
    pub(in crate::shard) fn leave_copied<I: Io>(
        &mut self,
        id: ChannelId,
        Envelope { length, data, came, .. }: Envelope,
        io: &mut I,
    ) {
        self.messages.note_received((id, length), came, io.now());
        match data {
            Data::Here(piece) => self.messages.free(piece, &mut self.cx),
            Data::Local(sender) => self.end_message(sender, length, io),
            Data::Peer(_) | Data::Shard(..) => {
                debug_assert!(false, "what is not here is not copied");
            }
        }
    }

    /// A message is where it was to be: with its receive, or in early-arrival memory. Ends that
    /// receive, or its sender.
    pub(in crate::shard) fn end_message<I: Io>(
        &mut self,
        key: TransferKey,
        length: u32,
        io: &mut I,
    ) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let mut lands = true;
        if let Body::Receive(body) = &mut transfer.body {
            body.from = Incoming::Nothing;
            lands = transfer.status.is_none();
        }
        if lands {
            let landed = transfer.landed.watermark();
            let inserted = self.transfers.land(key, landed, length.into());
            debug_assert!(inserted.is_ok(), "a message lands once");
        }
        self.decide(key, Status::Ok, io);
    }

    /// A receive or a send is given up: it waits no longer, and its message is for others.
    pub(in crate::shard) fn leave_channel<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        match &mut transfer.body {
            Body::Send(body) if body.order > 0 => {
                let (channel, order) = (body.channel, body.order);
                self.withdraw(channel, order);
            }
            Body::Receive(body) => {
                let id = body.channel;
                if let Some(channel) = self.messages.channel(id) {
                    channel.unpost(key);
                }
                let Incoming::Message(envelope, slot) = body.from else { return };
                body.from = Incoming::Nothing;
                self.transfers.let_go(key, &mut self.cx.sched);
                if let Some(slot) = slot {
                    self.close_slot(slot, io);
                }
                match envelope.data {
                    // It was given up itself, and only waited for this.
                    Data::Local(sender)
                        if self.transfers.get(sender).is_none_or(|it| it.status.is_some()) =>
                    {
                        return;
                    }
                    Data::Peer(mail) => self.mails.give(mail, None),
                    _ => {}
                }
                if self.messages.channel(id).is_some() {
                    self.offer(id, envelope, io);
                } else {
                    self.refuse_message(envelope.data, io);
                }
            }
            _ => {}
        }
    }

    /// A receive whose message will not come after all waits for another, at its old place.
    pub(in crate::shard) fn post_again<I: Io>(&mut self, key: TransferKey, io: &mut I) {
        let Some(Body::Receive(body)) = self.transfers.get_mut(key).map(|it| &mut it.body) else {
            return;
        };
        let from = std::mem::replace(&mut body.from, Incoming::Nothing);
        let body = *body;
        if let Incoming::Message(_, Some(slot)) = from {
            self.close_slot(slot, io);
        }
        if self.transfers.get(key).is_some_and(|it| it.status.is_none())
            && !self.take_again(key, io)
        {
            self.post(key, body, io);
        }
    }

    /// Has the message of a frame land in the buffer of a receive, if it fits there.
    pub(in crate::shard) fn take_frame(
        &mut self,
        key: TransferKey,
        (tag, length): (u64, u32),
    ) -> Option<Destination> {
        let transfer = self.transfers.get_mut(key).filter(|it| it.length >= length.into())?;
        let Body::Receive(body) = &mut transfer.body else { return None };
        body.from = Incoming::Frame;
        transfer.value = tag;
        if let Some(channel) = self.messages.channel(body.channel) {
            channel.unpost(key);
        }
        let span = body.memory.span(0, length);
        Some(Destination::Land(Target::Receive(transfer.pins.take(key)), span))
    }

    /// A region that a peer can write a message to: the receive's buffer.
    fn open_slot(&mut self, mail: MailKey, key: TransferKey, to: Span) -> Option<Slot> {
        let target = command::Target::Region(RegionTarget {
            region: RegionId::MESSAGE,
            segment: to.segment,
            offset: to.offset,
            length: to.length.into(),
            access: Access::WRITE,
            home: self.cx.relays.own(),
        });
        let link = self.mails.get(mail)?.link;
        let pin = || self.transfers.pin(key);
        let (number, served) = self.links.keep_slot(link, target, pin)?;
        self.mails.give(mail, Some((key, number)));
        Some(Slot { link, served })
    }

    /// Nobody writes to a receive's buffer any more, as soon as what does has ended.
    fn close_slot<I: Io>(&mut self, slot: Slot, io: &mut I) {
        self.links.forget_number(slot.link, slot.served);
        let mut from = 0;
        while let Some(serve) = self.serves.next_from(&mut from, |it| it.served == slot.served) {
            // Also one that is done and has not said so: the message is for another receive.
            if let Some(serve) = self.serves.get_mut(serve).filter(|serve| !serve.reply.is_given())
            {
                serve.status = Some(Status::Cancelled);
            }
            self.cx.sched.make_ready(Work::Serve(serve));
        }
        self.close_served(slot.served, io);
    }

    /// A peer's write to a receive's buffer is over.
    pub(in crate::shard) fn handle_message_written<I: Io>(
        &mut self,
        key: TransferKey,
        served: ServedKey,
        bytes: u64,
        io: &mut I,
    ) {
        let transfer = self.transfers.get(key).filter(|it| it.status.is_none());
        if let Some(Body::Receive(body)) = transfer.map(|it| it.body)
            && let Incoming::Message(envelope, Some(slot)) = body.from
            && let Data::Peer(mail) = envelope.data
            // If not, it comes again, or its sender gives it up.
            && slot.served == served
            && bytes == u64::from(envelope.length)
        {
            self.mails.take_in(mail);
            let received = (body.channel, envelope.length);
            self.messages.note_received(received, envelope.came, io.now());
            self.close_slot(slot, io);
            self.end_message(key, envelope.length, io);
        }
    }
}
