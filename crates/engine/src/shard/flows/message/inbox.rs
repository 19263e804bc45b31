//! Messages from peers: those that come at once, and those that are announced and written when they
//! are asked for. There are bounds for each handle, each peer, and all.

use piped_core::ids::ChannelId;
use piped_core::io::Io;
use piped_core::limits;
use piped_core::link::LaneClass;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_model::buffer::advise::Way;
use piped_wire::Message;

use crate::command::Target;
use crate::shard::Shard;
use crate::shard::connections::{Destination, Lane, LaneState, PeerLane, Target as Landing};
use crate::shard::faults::PeerFault;
use crate::shard::keys::{LaneKey, LinkKey, ServedKey};
use crate::shard::links::Holding;
use crate::shard::messages::{Came, Data, Envelope, MailKey};
use crate::shard::numbers::is_within;
use crate::shard::sched::Work;

/// A message as its frame says it.
#[derive(Debug, Clone, Copy)]
struct Sent {
    transfer: u64,
    handle: u32,
    tag: u64,
    length: u32,
    sequence: u32,
    oldest: u32,
    deadline: Nanos,
}

impl Shard {
    /// The name of a message, and the channel that it goes to, if its sender may.
    fn channel_of(&mut self, link: LinkKey, sent: Sent) -> Result<(MailKey, ChannelId), Status> {
        let (served, it) = self.links.named(link, sent.handle).ok_or(Status::BadHandle)?;
        match it.target()? {
            Target::Channel(channel) if !channel.receives => {
                Ok((MailKey::new(served, sent.sequence), channel.channel))
            }
            _ => Err(Status::Invalid),
        }
    }

    /// A message that may come as its frame says: on the lane that keeps their order, and no more
    /// of a handle than are remembered.
    fn sent_of(&self, lane: LaneKey, message: Message, now: Nanos) -> Option<Sent> {
        let Message::Send { transfer, handle, tag, length, sequence, oldest, time_left_us } =
            message
        else {
            return None;
        };
        let fits = |lane: &Lane| lane.class == LaneClass::Latency && lane.state == LaneState::Up;
        if !self.lanes.get(lane).is_some_and(fits) || !is_within(sequence, oldest) {
            return None;
        }
        let deadline = now + Nanos::from_micros(time_left_us.into());
        Some(Sent { transfer, handle, tag, length, sequence, oldest, deadline })
    }

    /// Where the payload of a message goes: to the receive that waits for it, or into early-arrival
    /// memory.
    pub(in crate::shard) fn destination_of_send(
        &mut self,
        PeerLane { lane, link }: PeerLane,
        message: Message,
        now: Nanos,
    ) -> Destination {
        let Some(sent) = self.sent_of(lane, message, now) else {
            // Before anything is pinned or taken for it.
            return Destination::Fault(PeerFault::StrayMessage);
        };
        let Ok((key, id)) = self.channel_of(link, sent) else { return Destination::Discard };
        let placed = self.place_message(key, id, sent);
        let came = placed.as_ref().map(|&(_, way)| Came::new(Some(link), way, now));
        self.mails.note_arriving(key, came);
        placed.map_or(Destination::Discard, |(destination, _)| destination)
    }

    /// `None`: nobody receives it, or it came before.
    fn place_message(
        &mut self,
        key: MailKey,
        id: ChannelId,
        sent: Sent,
    ) -> Option<(Destination, Way)> {
        if self.mails.has_taken_in(key) || self.mails.get(key).is_some() {
            return None;
        }
        if let Some(receive) = self.messages.channel(id)?.receive_for(sent.tag)
            && let Some(landing) = self.take_frame(receive, (sent.tag, sent.length))
        {
            return Some((landing, Way::Direct));
        }
        Some(match self.messages.keep(id, sent.length, &mut self.cx) {
            Some(piece) => (Destination::Land(Landing::Early(id, piece), piece.span), Way::Kept),
            None => (Destination::Discard, Way::Stalled),
        })
    }

    /// A peer's message is here, or announced.
    pub(in crate::shard) fn handle_send<I: Io>(
        &mut self,
        on: PeerLane,
        message: Message,
        intact: bool,
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let PeerLane { lane, link } = on;
        let sent = self.sent_of(lane, message, io.now()).ok_or(PeerFault::StrayMessage)?;
        let landed = self.lanes.take_target(lane);
        let to @ (key, id) = match self.channel_of(link, sent) {
            Ok(found) => found,
            Err(status) => {
                self.drop_landed(landed, io);
                return self.answer_send(lane, sent, status);
            }
        };
        while let Some(over) = self.mails.forget_before(key, sent.oldest) {
            self.lose_mail(over, Status::Cancelled, io);
        }
        let mut came = self.mails.take_arriving(key);
        if let Some(came) = &mut came {
            came.landed = io.now();
        }
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
                let receive = pin.key();
                self.mails.take_in(key);
                self.transfers.unpin(pin, &mut self.cx.sched);
                self.messages.note_received((id, sent.length), came, io.now());
                self.end_message(receive, sent.length, io);
                self.answer_send(lane, sent, Status::Ok)
            }
            Landing::Early(id, piece) => {
                self.mails.take_in(key);
                let answered = self.answer_send(lane, sent, Status::Ok);
                match self.messages.channel(id) {
                    Some(channel) => {
                        let (order, data) = (channel.next_order(), Data::Here(piece));
                        let (tag, length) = (sent.tag, sent.length);
                        let place = 0;
                        self.offer(id, Envelope { order, tag, length, place, data, came }, io);
                    }
                    None => self.messages.free(piece, &mut self.cx),
                }
                answered
            }
            _ if self.mails.has_taken_in(key) => self.answer_send(lane, sent, Status::Ok),
            _ => self.announce(on, to, sent, came, io),
        }
    }

    /// A peer has a message that is not here.
    fn announce<I: Io>(
        &mut self,
        PeerLane { lane, link }: PeerLane,
        (key, id): (MailKey, ChannelId),
        sent: Sent,
        came: Option<Came>,
        io: &mut I,
    ) -> Result<(), PeerFault> {
        let said = (lane, sent.transfer, sent.deadline);
        let is_received = match self.mails.announce_again(key, said) {
            Some(is_received) => {
                self.ask_for(key);
                is_received
            }
            None => {
                let mails = self.mails.of_link(link);
                if !self.may_hold(link, Holding::Mails) || mails >= limits::MAIL_PER_LINK {
                    return self.answer_send(lane, sent, Status::WouldBlock);
                }
                let Some(channel) = self.messages.channel(id) else {
                    return self.answer_send(lane, sent, Status::Gone);
                };
                let (order, elsewhere) = (channel.next_order(), channel.home().is_some());
                self.mails.announce(key, (id, order), link, said);
                let (tag, length, data) = (sent.tag, sent.length, Data::Peer(key));
                let went =
                    self.offer(id, Envelope { order, tag, length, place: 0, data, came }, io);
                // Another shard says itself whether somebody has asked for it.
                went || elsewhere
            }
        };
        if is_received {
            return Ok(());
        }
        let Some((_, queued)) = self.mails.queue(key) else { return Ok(()) };
        let pushed = self.lanes.get_mut(lane).is_none_or(|it| it.push(queued));
        self.cx.sched.make_ready(Work::Lane(lane));
        pushed.then_some(()).ok_or(PeerFault::UnreadAnswers)
    }

    fn answer_send(&mut self, lane: LaneKey, sent: Sent, status: Status) -> Result<(), PeerFault> {
        let bytes = if status == Status::Ok { sent.length.into() } else { 0 };
        self.answer_end(lane, sent.transfer, status, bytes)
    }

    /// Tells a sender that its message is asked for, if a receive has it, and where to write it.
    pub(in crate::shard) fn ask_for(&mut self, key: MailKey) {
        let up = |lane: &Lane| lane.state == LaneState::Up;
        let ready = self.mails.ask_for(key, |lane| self.lanes.get(lane).is_some_and(up));
        self.push_ready(ready);
    }

    /// Tells a sender that nobody has asked for its message yet, unless it knows.
    pub(in crate::shard) fn tell_queued(&mut self, key: MailKey) {
        let queued = self.mails.queue(key);
        self.push_ready(queued);
    }

    fn push_ready(&mut self, ready: Option<(LaneKey, Message)>) {
        let Some((lane, message)) = ready else { return };
        let Some(state) = self.lanes.get_mut(lane) else { return };
        let pushed = state.push(message);
        if let Some(serving) = state.serving_mut() {
            // Nobody would say it again.
            serving.overrun |= !pushed;
        }
        self.cx.sched.make_ready(Work::Lane(lane));
    }

    /// What landed is not to be used: it was damaged, or its lane is gone.
    pub(in crate::shard) fn drop_landed<I: Io>(&mut self, landed: Landing, io: &mut I) {
        match landed {
            Landing::Receive(pin) => {
                let key = pin.key();
                self.transfers.unpin(pin, &mut self.cx.sched);
                self.post_again(key, io);
            }
            Landing::Early(id, piece) => self.messages.drop_early(id, piece, &mut self.cx),
            _ => {}
        }
    }

    /// A peer gives up a message that it announced.
    pub(in crate::shard) fn cancel_mail<I: Io>(&mut self, lane: LaneKey, wire: u64, io: &mut I) {
        if let Some(key) = self.mails.named(lane, wire) {
            self.lose_mail(key, Status::Cancelled, io);
        }
    }

    /// An announced message will not come: its sender is told if it waits for a word, and the
    /// receive that has it waits for another.
    pub(in crate::shard) fn lose_mail<I: Io>(&mut self, key: MailKey, status: Status, io: &mut I) {
        let Some(mail) = self.mails.strike(key) else { return };
        self.push_ready(mail.refusal(status));
        match (mail.receive, self.messages.channel(mail.channel)) {
            (Some((receive, _)), _) => self.post_again(receive, io),
            (None, Some(_)) => self.withdraw(mail.channel, mail.order),
            (None, None) => {}
        }
    }

    /// Messages whose senders have given them up, and could not say so.
    pub(in crate::shard) fn expire_mail<I: Io>(&mut self, now: Nanos, io: &mut I) {
        for _ in 0..limits::MAIL_PER_TURN {
            match self.mails.next_due() {
                Some((at, key)) if at <= now => self.lose_mail(key, Status::DeadlineExceeded, io),
                _ => return,
            }
        }
    }

    /// A peer has closed what it sent by, or is another one now: what it announced will not come.
    pub(in crate::shard) fn forget_mail<I: Io>(
        &mut self,
        served: ServedKey,
        status: Status,
        io: &mut I,
    ) {
        while let Some(key) = self.mails.first_of(served) {
            self.lose_mail(key, status, io);
        }
    }
}
