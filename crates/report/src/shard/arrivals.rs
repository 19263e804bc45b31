//! Messages as they came to channels.

use piped_core::ids::{ChannelId, SessionId};
use piped_model::buffer::advise::Seen;

use super::Gauge;

/// The last messages of a channel, as [`piped_model::buffer::advise`] wants them.
#[derive(Debug, Clone, PartialEq)]
pub struct ChannelArrivals {
    /// Which.
    pub channel: ChannelId,
    /// Who receives on it.
    pub session: SessionId,
    /// Somebody still does.
    pub open: bool,
    /// Messages received that early-arrival memory is for: those that are announced because they
    /// are long are not.
    pub messages: u64,
    /// There were more than are in `seen`.
    pub is_cut: bool,
    /// Messages for which there was no memory.
    pub stalled: u64,
    /// Early-arrival memory that its messages have, in bytes; short ones that share some count with
    /// their part of it.
    pub memory: Gauge,
    /// Some of its messages are so short that they share memory.
    pub shares: bool,
    /// How fast memory is copied here, as measured on whatever was copied.
    pub copy_bytes_per_second: f64,
    /// Who sent them.
    pub senders: Vec<ArrivalSender>,
    /// The last ones that were received, and those that wait.
    pub seen: Vec<Seen>,
}

/// Who sent some of the messages in [`ChannelArrivals::seen`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrivalSender {
    /// The peer's name; none: clients of this node.
    pub peer: Option<String>,
    /// How many.
    pub messages: u32,
    /// The memory that the longest takes, in bytes.
    pub memory_bytes: u64,
}
