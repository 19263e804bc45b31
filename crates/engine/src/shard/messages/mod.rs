//! Messages of this node's channels: those that wait for a receive, receives that wait for one, and
//! the memory of messages that came before anybody asked for them.

mod arrivals;
mod channel;
mod early;
mod mails;
mod outbox;
mod takes;

use std::collections::BTreeMap;

use piped_core::ids::{ChannelId, SessionId};
use piped_core::limits;
use piped_core::units::Nanos;
use piped_report::shard::{ChannelArrivals, Gauge};
use piped_report::tally::MessageWay;

use self::arrivals::Arrivals;
use self::early::Early;
use super::cx::Cx;
use super::keys::LinkKey;

pub(super) use self::arrivals::Came;
pub(super) use self::channel::{Channel, Data, Envelope};
pub(super) use self::early::Piece;
pub(super) use self::mails::{MailKey, Mails};
pub(super) use self::outbox::Outbox;
pub(super) use self::takes::Takes;

/// The channels that clients of this shard receive from.
#[derive(Debug, Default)]
pub(super) struct Messages {
    channels: BTreeMap<ChannelId, Channel>,
    early: Early,
    /// What was seen of messages.
    arrivals: Arrivals,
}

impl Messages {
    /// `home`: the shard that the channel belongs to, if that is another one.
    pub(super) fn open(&mut self, id: ChannelId, owner: SessionId, home: Option<u16>) {
        if self.channels.contains_key(&id) {
            return;
        }
        self.channels.insert(id, Channel::new(owner, home));
        self.arrivals.expect_channel();
        self.early.expect(owner);
    }

    /// Nobody receives from a channel any more: the messages that waited, and the receives.
    pub(super) fn close(&mut self, id: ChannelId) -> Option<Channel> {
        let channel = self.channels.remove(&id)?;
        self.arrivals.close(id);
        let owner = channel.owner();
        let receives_more = self.channels.values().any(|it| it.owner() == owner);
        // Of a receiver of another shard nobody says here when it is gone.
        if channel.home().is_some() && !receives_more {
            self.early.forget_unused(owner);
        }
        Some(channel)
    }

    pub(super) fn channel(&mut self, id: ChannelId) -> Option<&mut Channel> {
        self.channels.get_mut(&id)
    }

    /// Early-arrival memory for a message, charged to who receives on the channel.
    pub(super) fn keep(&mut self, id: ChannelId, length: u32, cx: &mut Cx) -> Option<Piece> {
        let owner = self.channels.get(&id)?.owner();
        let limits = (Self::early_limit(cx), cx.limits.client.early_arrival);
        let piece = self.early.allocate((owner, length), limits, &mut cx.buffers);
        let way = if piece.is_some() { MessageWay::Early } else { MessageWay::Stalled };
        cx.watch.tally.messages[way as usize] += 1;
        self.arrivals.note_early(id, owner, length, piece.is_some());
        piece
    }

    /// Takes a message's early-arrival memory back.
    pub(super) fn free(&mut self, piece: Piece, cx: &mut Cx) {
        if let Some(run) = self.early.free(piece) {
            cx.free_staging(run);
        }
    }

    /// Takes the memory back of a message that came in and is not to be used after all.
    pub(super) fn drop_early(&mut self, id: ChannelId, piece: Piece, cx: &mut Cx) {
        self.arrivals.forget_early(id, piece.span.length);
        self.free(piece, cx);
    }

    /// The most early-arrival memory, in bytes. Staging is for those as well who come and go:
    /// messages stay as long as nobody asks for them.
    pub(super) fn early_limit(cx: &Cx) -> u64 {
        let kept = cx.buffers.staging().kept_bytes();
        cx.limits.early_arrival.min(kept / limits::EARLY_STAGING_DIVISOR)
    }

    /// What of staging messages have, in bytes: all, or those for one receiver.
    pub(super) fn early_used(&self, owner: Option<SessionId>) -> Gauge {
        self.early.used(owner)
    }

    pub(super) fn forget(&mut self, owner: SessionId) {
        self.early.forget(owner);
    }

    /// A message is with its receive.
    pub(super) fn note_received(
        &mut self,
        (id, length): (ChannelId, u32),
        came: Option<Came>,
        now: Nanos,
    ) {
        if let (Some(came), Some(channel)) = (came, self.channels.get(&id)) {
            self.arrivals.note_received((id, channel.owner()), length, came, now);
        }
    }

    /// What was seen of messages, with the names of those who sent them; and how many messages of
    /// other channels there were.
    pub(super) fn report(
        &self,
        cx: &Cx,
        now: Nanos,
        name: impl Fn(LinkKey) -> Option<String>,
    ) -> (Vec<ChannelArrivals>, u64) {
        let waits = |it: &Envelope| Some((it.came?, it.length));
        let waiting = |id| self.channels.get(&id).map(|it| it.waiting().filter_map(waits));
        let waiting = |id| waiting(id).into_iter().flatten();
        self.arrivals.report(waiting, cx, now, name)
    }
}
