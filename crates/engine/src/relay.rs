//! What the shards of a node tell each other.
//!
//! A channel belongs to the shard that serves its receiver: what waits there, and in which order,
//! is decided nowhere else. A sender of another shard is served by its own, which keeps the message
//! (in the sender's memory, in early-arrival memory, or at the peer that announced it) and offers
//! it. To receive it, the channel's shard takes it: it lends the receive's buffer, and the message
//! comes there on the ways that it would take if the receive were of the sender's shard.
//!
//! ```text
//!   sender's shard                             channel's shard
//!   message ── Offer ──────────────────────►  its place in the channel's order
//!           ◄──────── Take (the buffer) ────  a receive that it fits
//!   copied, or written by a peer
//!           ── Took ───────────────────────►  the receive ends; the buffer is free
//! ```
//!
//! Whether a message was received is decided by the shard that has it. So a receive that is given
//! up while another shard has its buffer asks for it back ([`Relay::GiveUp`]), and ends as that
//! shard says: either the bytes are in the buffer and the message is gone, or the message waits
//! again, at its old place.
//!
//! A session may have queues on several shards. What has one place only is asked of its home:
//!
//! ```text
//!   a queue's shard                            the session's home
//!   request ── Ask ────────────────────────►  a transfer
//!   progress, end ◄──────────────── Answer ──
//! ```
//!
//! Each ordered pair of shards has one queue, first in, first out. The driver carries it.

use piped_core::ids::{ChannelId, QueueId, RegionId, SegmentId, SessionId};
use piped_core::io::Span;
use piped_core::request::{BufferState, Request};
use piped_core::status::Status;

/// Something that one shard of a node tells another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relay {
    /// A message for a channel of the other shard waits here.
    Offer {
        /// The channel that it was sent to.
        channel: ChannelId,
        /// Its number among those that this shard has for the channel.
        number: u64,
        /// Its place in the channel's order, if it had one already; 0 for a new message.
        place: u64,
        /// The tag that the message has.
        tag: u64,
        /// The message's length in bytes.
        length: u32,
        /// Whether to say with [`Relay::Waits`] that no receive takes it now: a short message is
        /// kept here then, so that its sender is done; one that does not wait ends with
        /// [`Status::WouldBlock`], and a peer is told that its message waits.
        asks: bool,
    },
    /// A message that was offered will not come: it was given up.
    Withdraw {
        /// The channel that it was offered for.
        channel: ChannelId,
        /// The number that it was offered under.
        number: u64,
    },
    /// A message is to come to a receive. Answered by [`Relay::Took`].
    Take {
        /// The channel that the message is for.
        channel: ChannelId,
        /// The number that it was offered under.
        number: u64,
        /// Its place in the channel's order.
        place: u64,
        /// The receive, by the number that goes back in the answer.
        receive: u64,
        /// The receive's buffer, as long as the message. Lent until the answer says otherwise.
        into: Span,
    },
    /// No receive takes a message now.
    Waits {
        /// The channel that the message was offered for.
        channel: ChannelId,
        /// The number that it was offered under.
        number: u64,
    },
    /// A receive is given up. Answered by [`Relay::Took`], if that is not under way already.
    GiveUp {
        /// The number of the receive.
        receive: u64,
    },
    /// What came of a take.
    Took {
        /// The number of the receive.
        receive: u64,
        /// How the receive ends, or goes on.
        how: Took,
        /// The buffer is still lent: [`Relay::LetGo`] follows.
        held: bool,
        /// The segment that was lent, as this shard's driver knows it.
        lent: SegmentId,
    },
    /// Nothing of this shard touches the buffer of a receive any more that it said was held.
    LetGo {
        /// The number of the receive.
        receive: u64,
        /// The segment that was lent, as this shard's driver knows it.
        lent: SegmentId,
    },
    /// Nobody receives on a channel any more.
    Closed {
        /// The channel that is no more.
        channel: ChannelId,
    },
    /// The exporter of a region is to be notified; answered by [`Relay::Notified`].
    Notify {
        /// Goes back in the answer.
        asker: NotifyAsker,
        /// The region whose exporter the other shard serves.
        region: RegionId,
        /// The number of the notification.
        id: u32,
    },
    /// What came of a notification.
    Notified {
        /// The asker, as the question named it.
        asker: NotifyAsker,
        /// Whether it was raised, or why not.
        status: Status,
    },
    /// A client's request is for the home of its session; answered by [`Relay::Answer`].
    Ask {
        /// Goes back in the answers.
        asked: u64,
        /// The session that asks, which both shards serve.
        session: SessionId,
        /// The queue that the request came by, as the asking shard numbers it.
        queue: QueueId,
        /// What the client asks for.
        request: Request,
    },
    /// The client gives up on what was asked for. The answer says how it ended.
    Recall {
        /// The number of the question.
        asked: u64,
    },
    /// What became of a request that was asked for.
    Answer {
        /// The number of the question.
        asked: u64,
        /// What its client is told.
        said: Said,
    },
}

/// What a client is told of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// The request is over: [`piped_core::request::Completion::Finished`].
    Finished {
        /// How the request ended.
        status: Status,
        /// Contiguous bytes done, from the request's start.
        bytes: u64,
        /// What the request brought beside its bytes.
        value: u64,
        /// Whether the buffer may be used again.
        buffer: BufferState,
    },
    /// The buffer of a request is free that was held when the request finished.
    Released,
    /// The watermark of the request moved: [`piped_core::request::Progress`].
    Moved {
        /// Contiguous bytes in place, from the request's start.
        bytes: u64,
        /// The first extent beyond them that is in place: its start and end.
        landed: (u64, u64),
    },
}

impl Said {
    /// The end of a request that has done nothing.
    #[must_use]
    pub const fn ended_at_once(status: Status) -> Self {
        Self::Finished { status, bytes: 0, value: 0, buffer: BufferState::Returned }
    }
}

/// What came of a take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took {
    /// The message is in the buffer, and nowhere else.
    Received {
        /// The tag that the message has.
        tag: u64,
        /// The message's length in bytes.
        bytes: u32,
    },
    /// No message came; one that still is there was offered again.
    Failed(Status),
    /// There is no such message any more: the receive waits for another one, at its old place.
    Again,
}

/// The request that waits for the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotifyAsker {
    /// A client's request, by its number.
    Request(u64),
    /// A peer's request, by its number.
    Peer(u64),
}

impl Relay {
    /// The memory that the sender of this lends with it: the driver gives it the name by which it
    /// knows it at the other end.
    pub fn lends(&mut self) -> Option<&mut SegmentId> {
        match self {
            Self::Take { into, .. } => Some(&mut into.segment),
            _ => None,
        }
    }

    /// The memory that goes back with this, by the name that [`Self::lends`] gave it.
    #[must_use]
    pub const fn gives_back(&self) -> Option<SegmentId> {
        match self {
            Self::Took { lent, held: false, .. } | Self::LetGo { lent, .. } => Some(*lent),
            _ => None,
        }
    }
}
