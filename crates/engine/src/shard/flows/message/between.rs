//! Messages between shards of a node: what is offered to a channel of another shard, and what comes
//! from there ([`crate::relay`] says how).
//!
//! The channel of another shard has a double here, which nobody receives from: messages wait in it
//! and are offered. A take is a receive that stands for one of the other shard, has its buffer, and
//! gets its message as any receive of this shard does. Of a short message in memory it is one copy,
//! without a receive.

use piped_core::ids::ChannelId;
use piped_core::io::{Io, Span};
use piped_core::limits::TAKEN_AT_ONCE_BYTES;
use piped_core::request::Class;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::tally::Operation;

use crate::command::ChannelTarget;
use crate::relay::{NotifyAsker, Relay, Took};
use crate::shard::arena::Memory;
use crate::shard::flows::request::memory::overlap;
use crate::shard::keys::{Subject, TransferKey, kind};
use crate::shard::messages::{Data, Envelope};
use crate::shard::pins::Pin;
use crate::shard::requests::{Body, Incoming, ReceiveBody, SendBody, Start, Transfer, Waiter};
use crate::shard::sched::Work;
use crate::shard::slab::Key;
use crate::shard::{Due, Shard};

impl Shard {
    /// Takes what another shard of the node tells this one.
    pub fn handle_relay<I: Io>(&mut self, from: u16, relay: Relay, io: &mut I) {
        self.due = Due::Now;
        match relay {
            Relay::Offer { channel, number, place, tag, length, asks } => {
                let data = Data::Shard(from, number);
                let offered = Envelope { order: place, tag, length, place: 0, data, came: None };
                self.handle_offer((channel, offered), (from, number, asks), io);
            }
            Relay::Withdraw { channel, number } => {
                if let Some(channel) = self.messages.channel(channel) {
                    channel.take_offered(from, number);
                }
            }
            Relay::Take { .. } => {
                self.takes.push(from, relay);
                self.begin_takes(io);
            }
            Relay::Waits { channel, number } => self.handle_waits(channel, number),
            Relay::GiveUp { receive } => self.give_back(from, receive, io),
            Relay::Took { receive, how, held, .. } => {
                self.handle_took(Key::from_bits(receive), (how, held), io);
            }
            Relay::LetGo { receive, .. } => {
                let pin = self.lent_pin(Key::from_bits(receive));
                self.transfers.unpin(pin, &mut self.cx.sched);
            }
            Relay::Closed { channel } => self.close_channel(channel, io),
            Relay::Notify { asker, region, id } => {
                let serve = self.transfers.serves_waits(&mut self.cx.sched);
                let raised = self.notifications.raise(region, id, serve);
                let status = match raised {
                    // Its exporter has taken it back.
                    Err(Status::Unsupported) => Status::Gone,
                    raised => raised.err().unwrap_or(Status::Ok),
                };
                self.cx.relays.tell(from, Relay::Notified { asker, status });
            }
            Relay::Notified { asker: NotifyAsker::Request(key), status } => {
                self.handle_notified(Key::from_bits(key), status, io);
            }
            Relay::Notified { asker: NotifyAsker::Peer(number), status } => {
                self.answer_notify(number, status, io);
            }
            Relay::Ask { asked, session, queue, request } => {
                self.handle_ask((from, asked), (session, queue), request, io);
            }
            Relay::Recall { asked } => self.handle_recall(from, asked, io),
            Relay::Answer { asked, said } => self.handle_said(Key::from_bits(asked), said),
        }
        self.cx.sched.wake_starved();
    }

    /// A handle of a channel is installed, at one end or the other.
    pub(in crate::shard) fn open_channel(&mut self, target: ChannelTarget) {
        let ChannelTarget { channel, receives, home, owner } = target;
        let is_here = home == self.cx.relays.own();
        if receives && is_here {
            self.messages.open(channel, owner, None);
        } else if !receives && !is_here {
            self.messages.open(channel, owner, Some(home));
        }
    }

    /// A message of another shard takes its place in a channel of this one.
    fn handle_offer<I: Io>(
        &mut self,
        (id, mut offered): (ChannelId, Envelope),
        (from, number, asks): (u16, u64, bool),
        io: &mut I,
    ) {
        let Some(channel) = self.messages.channel(id) else {
            // It did not know when it offered this, or opened its end later.
            return self.cx.relays.tell(from, Relay::Closed { channel: id });
        };
        if offered.order == 0 {
            offered.order = channel.next_order();
        }
        if !self.offer(id, offered, io) && asks {
            self.cx.relays.tell(from, Relay::Waits { channel: id, number });
        }
    }

    /// A message waits in the double of a channel: the channel's shard is told.
    pub(in crate::shard) fn offer_elsewhere(
        &mut self,
        home: u16,
        id: ChannelId,
        envelope: Envelope,
    ) {
        let Envelope { order: number, place, tag, length, data, came } = envelope;
        let asks = match data {
            // A short one is kept here then, if that was not tried.
            Data::Local(sender) => {
                came.is_some_and(|it| it.is_direct()) || self.sends_without_waiting(sender)
            }
            Data::Peer(_) => true,
            Data::Here(_) | Data::Shard(..) => false,
        };
        let offer = Relay::Offer { channel: id, number, place, tag, length, asks };
        self.cx.relays.tell(home, offer);
    }

    fn sends_without_waiting(&self, sender: TransferKey) -> bool {
        let body = self.transfers.get(sender).map(|it| it.body);
        matches!(body, Some(Body::Send(sent)) if sent.no_wait)
    }

    /// A message waits no longer in a channel, or in the double of one, whose shard is told.
    pub(in crate::shard) fn withdraw(&mut self, id: ChannelId, order: u64) {
        let Some(channel) = self.messages.channel(id) else { return };
        if channel.remove(order).is_some()
            && let Some(home) = channel.home()
        {
            self.cx.relays.tell(home, Relay::Withdraw { channel: id, number: order });
        }
    }

    /// The channel's shard has no receive for a message now.
    fn handle_waits(&mut self, id: ChannelId, number: u64) {
        let waiting = self.messages.channel(id).and_then(|channel| channel.at(number));
        match waiting.map(|envelope| envelope.data) {
            Some(Data::Local(sender)) => {
                if let Some(Body::Send(sent)) =
                    self.transfers.get_mut(sender).map(|it| &mut it.body)
                {
                    sent.note_unasked();
                    self.cx.sched.make_ready(Work::Transfer(sender));
                }
            }
            Some(Data::Peer(mail)) => self.tell_queued(mail),
            Some(Data::Here(_) | Data::Shard(..)) | None => {}
        }
    }

    /// The sender of a message that was offered has its turn: if the channel's shard has said that
    /// it waits, a short one is kept in early-arrival memory, unless it was taken meanwhile.
    pub(in crate::shard) fn keep_offered<I: Io>(
        &mut self,
        key: TransferKey,
        mut body: SendBody,
        io: &mut I,
    ) {
        if !body.take_unasked() {
            return;
        }
        self.store_body(key, Body::Send(body));
        let waiting = self.messages.channel(body.channel).and_then(|it| it.at(body.order));
        let Some(mut envelope) = waiting else { return };
        self.keep_early(body, &mut envelope, io);
        if let Some(channel) = self.messages.channel(body.channel) {
            channel.change(envelope);
        }
        if body.no_wait && envelope.data == Data::Local(key) {
            self.give_up(key, Status::WouldBlock, io);
        }
    }

    /// Begins takes for which there is a place among the transfers.
    pub(in crate::shard) fn begin_takes<I: Io>(&mut self, io: &mut I) {
        while !self.takes.is_empty() && self.transfers.room() > 0 {
            let Some((shard, take)) = self.takes.pop() else { return };
            self.begin_take(shard, take, io);
        }
    }

    fn begin_take<I: Io>(&mut self, shard: u16, take: Relay, io: &mut I) {
        let Relay::Take { receive, channel: id, number, place, into } = take else { return };
        let channel = self.messages.channel(id);
        let found = channel.and_then(|it| Some((it.owner(), it.remove(number)?)));
        let Some((owner, envelope)) = found else {
            // Its sender gave it up meanwhile.
            return self.tell_take_over(shard, (receive, into), Took::Again);
        };
        let envelope = Envelope { place, ..envelope };
        if let Some(from) = self.copied_at_once(&envelope, into) {
            let how = self.copy_take(id, envelope, (from, into), io);
            return self.tell_take_over(shard, (receive, into), how);
        }
        let memory = Memory { segment: into.segment, offset: into.offset };
        let start = Start {
            waiter: Waiter::Shard { shard, receive, again: false },
            session: owner,
            handles: [None, None],
            kind: Operation::Receive,
            class: Class::Latency,
            deadline: Nanos::MAX,
            length: into.length.into(),
            body: Body::Receive(ReceiveBody {
                order: 1,
                ..ReceiveBody::new(id, None, memory, false)
            }),
        };
        let Some(key) = self.start_transfer(start, io.now()) else {
            debug_assert!(false, "there is room");
            return;
        };
        // The receive that it stands for has one, and says when it is given up.
        self.transfers.stop_deadline(key);
        if !self.pair(key, envelope, io) {
            self.offer(id, envelope, io);
        }
    }

    /// Where a message lies that is copied as soon as its take comes, so that no transfer stands
    /// for the take: a short one in memory, while no dial slows copies down.
    fn copied_at_once(&mut self, envelope: &Envelope, into: Span) -> Option<Span> {
        let length = envelope.length;
        let from = match envelope.data {
            Data::Here(piece) => piece.span,
            Data::Local(sender) => self.memory_sent(sender, length)?,
            Data::Peer(_) | Data::Shard(..) => return None,
        };
        let short = (1..=TAKEN_AT_ONCE_BYTES).contains(&length) && length == into.length;
        let may = short && !self.cx.dials.any() && !overlap(from, into);
        (may && self.takes.may_copy(length)).then_some(from)
    }

    fn copy_take<I: Io>(
        &mut self,
        id: ChannelId,
        mut envelope: Envelope,
        (from, into): (Span, Span),
        io: &mut I,
    ) -> Took {
        let (tag, bytes) = (envelope.tag, envelope.length);
        let begun = io.now();
        io.copy(from, into);
        let now = io.now();
        self.cx.planner.sample_copy(bytes, now.since(begun));
        if let Data::Local(sender) = envelope.data {
            let (of, stage) = (Subject::Transfer(sender), self.cx.planner.copy_stage());
            self.cx.watch.pass_stage(of, stage, (0, bytes), (Some(begun), now));
        }
        if let Some(came) = &mut envelope.came {
            came.taken = begun;
        }
        self.leave_copied(id, envelope, io);
        match io.is_torn(into.segment) {
            true => Took::Failed(Status::BadBuffer),
            false => Took::Received { tag, bytes },
        }
    }

    /// A take is over, and no transfer stood for it.
    fn tell_take_over(&mut self, shard: u16, (receive, into): (u64, Span), how: Took) {
        let (held, lent) = (false, into.segment);
        self.cx.relays.tell(shard, Relay::Took { receive, how, held, lent });
    }

    /// A take is given up, and its pins are out.
    pub(in crate::shard) fn tell_held(&mut self, key: TransferKey, status: Status) {
        let Some(transfer) = self.transfers.get_mut(key) else { return };
        let Waiter::Shard { shard, receive, .. } = transfer.waiter else { return };
        let Body::Receive(body) = &transfer.body else { return };
        let lent = body.memory.segment;
        if !transfer.pins.any() || std::mem::replace(&mut transfer.told, true) {
            return;
        }
        let how = Took::Failed(status);
        self.cx.relays.tell(shard, Relay::Took { receive, how, held: true, lent });
    }

    /// A take is over, and nothing of this shard touches the lent buffer.
    pub(in crate::shard) fn tell_took(&mut self, transfer: &Transfer, status: Status, bytes: u64) {
        let Waiter::Shard { shard, receive, again } = transfer.waiter else { return };
        let Body::Receive(body) = &transfer.body else { return };
        let lent = body.memory.segment;
        let how = match status {
            Status::Ok => Took::Received { tag: transfer.value, bytes: bytes as u32 },
            _ if again => Took::Again,
            status => Took::Failed(status),
        };
        let relay = match transfer.told {
            true => Relay::LetGo { receive, lent },
            false => Relay::Took { receive, how, held: false, lent },
        };
        self.cx.relays.tell(shard, relay);
    }

    /// A receive gets a message of another shard: that one has its buffer until it says otherwise.
    pub(in crate::shard) fn take_elsewhere(
        &mut self,
        key: TransferKey,
        (channel, envelope): (ChannelId, Envelope),
        into: Span,
    ) {
        let (Data::Shard(shard, number), place) = (envelope.data, envelope.order) else { return };
        let Some(pin) = self.transfers.pin(key) else { return };
        // It comes back with the answer.
        pin.into_frame();
        let take = Relay::Take { channel, number, place, receive: key.to_bits(), into };
        self.cx.relays.tell(shard, take);
    }

    /// Whether a receive that is to be given up waits for another shard, which says how it ends.
    pub(in crate::shard) fn asks_back(&mut self, key: TransferKey, status: Status) -> bool {
        let Some(body) = self.lent_body(key) else { return false };
        let Incoming::Message(Envelope { data: Data::Shard(shard, _), .. }, _) = body.from else {
            return false;
        };
        if body.ending.replace(status).is_none() {
            self.cx.relays.tell(shard, Relay::GiveUp { receive: key.to_bits() });
        }
        true
    }

    /// A receive whose buffer another shard has.
    fn lent_body(&mut self, key: TransferKey) -> Option<&mut ReceiveBody> {
        match &mut self.transfers.get_mut(key)?.body {
            Body::Receive(body) => match body.from {
                Incoming::Message(Envelope { data: Data::Shard(..), .. }, _) => Some(body),
                _ => None,
            },
            _ => None,
        }
    }

    /// The pin that went with a buffer that was lent.
    fn lent_pin(&self, key: TransferKey) -> Option<Pin<kind::Transfer>> {
        self.transfers.get(key).map(|_| Pin::of_frame(key))
    }

    /// Another shard wants the buffer of a receive back.
    fn give_back<I: Io>(&mut self, shard: u16, receive: u64, io: &mut I) {
        if let Some(Relay::Take { channel: id, number, place, into, .. }) =
            self.takes.remove(shard, receive)
        {
            let how = Took::Failed(Status::Cancelled);
            self.tell_take_over(shard, (receive, into), how);
            let channel = self.messages.channel(id);
            let waiting = channel.and_then(|it| Some((it.home()?, it.at(number)?)));
            if let Some((home, envelope)) = waiting {
                self.offer_elsewhere(home, id, Envelope { place, ..envelope });
            }
            return;
        }
        let is_it = |it: &Transfer| {
            matches!(it.waiter, Waiter::Shard { shard: of, receive: its, .. }
                if (of, its) == (shard, receive))
                && it.status.is_none()
        };
        // If there is none, the answer is under way.
        if let Some(key) = self.transfers.next_from(&mut 0, is_it) {
            self.give_up(key, Status::Cancelled, io);
        }
    }

    /// Another shard says what came of a take.
    fn handle_took<I: Io>(&mut self, key: TransferKey, (how, held): (Took, bool), io: &mut I) {
        let Some(body) = self.lent_body(key) else { return };
        body.from = Incoming::Nothing;
        let (body, ending) = (*body, body.ending.take());
        if !held {
            let pin = self.lent_pin(key);
            self.transfers.unpin(pin, &mut self.cx.sched);
        }
        match (how, ending) {
            (Took::Received { tag, bytes }, _) => {
                if let Some(transfer) = self.transfers.get_mut(key) {
                    transfer.value = tag;
                }
                self.end_message(key, bytes, io);
            }
            (Took::Again, None) => {
                // One that does not wait looks once more, as if it were new.
                let order = if body.no_wait { 0 } else { body.order };
                self.post(key, ReceiveBody { order, ending: None, ..body }, io);
            }
            (Took::Again, Some(status)) => self.give_up(key, status, io),
            (Took::Failed(status), ending) => self.give_up(key, ending.unwrap_or(status), io),
        }
    }

    /// The message of a take will not come: the receive that it stands for waits for another.
    pub(in crate::shard) fn take_again<I: Io>(&mut self, key: TransferKey, io: &mut I) -> bool {
        let Some(transfer) = self.transfers.get_mut(key) else { return false };
        let Waiter::Shard { again, .. } = &mut transfer.waiter else { return false };
        *again = true;
        self.decide(key, Status::Gone, io);
        true
    }
}
