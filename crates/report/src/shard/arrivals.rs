//! Arrivals of messages at channels, for advice on memory.

use piped_core::ids::{ChannelId, SessionId};
use piped_model::buffer::advise::Seen;

use super::Gauge;

/// The last messages of a channel, in the form that [`piped_model::buffer::advise`] takes.
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelArrivals {
    /// Which channel of this daemon.
    pub channel: ChannelId,
    /// The session that receives on the channel.
    pub session: SessionId,
    /// Whether the session still receives on it.
    pub open: bool,
    /// Messages received that the unexpected-message buffer is for; messages announced for their
    /// length are not.
    pub messages: u64,
    /// Whether there were more messages than `seen` holds.
    pub is_cut: bool,
    /// Messages that found no room in the unexpected-message buffer.
    pub stalled: u64,
    /// Memory of the channel's messages in the unexpected-message buffer, in bytes. Short messages
    /// that share a unit count with their part of it.
    pub memory: Gauge,
    /// Whether some messages are so short that they share memory.
    pub shares: bool,
    /// How fast memory is copied on this node, measured on any copies.
    pub copy_bytes_per_second: f64,
    /// Senders of the messages in `seen`.
    pub senders: Vec<ArrivalSender>,
    /// The last messages that were received, and the messages that wait.
    pub seen: Vec<Seen>,
}

/// One sender of messages in [`ChannelArrivals::seen`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrivalSender {
    /// The peer's name; absent for clients of this node.
    pub peer: Option<String>,
    /// Number of messages from this sender.
    pub messages: u32,
    /// Memory of the sender's longest message, in bytes.
    pub memory_bytes: u64,
}
