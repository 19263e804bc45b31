//! The body of `/v1/limits/advice`: how large the unexpected-message buffer should be, from the
//! messages seen.

use serde::{Deserialize, Serialize};

/// Path of [`Advice`], read with `GET`.
pub const ADVICE: &str = "/v1/limits/advice";

/// Advised size of the unexpected-message buffer (`early_arrival`). Sizes are in bytes, times in
/// seconds, rates in bytes per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// Advised values of `global.early_arrival` and `client.early_arrival`.
    pub limits: Vec<AdvisedLimit>,
    /// Largest useful value of `global.early_arrival` with the present staging.
    pub most_bytes: u64,
    /// Messages that found no free buffer, since start.
    pub stalled: u64,
    /// Messages on channels that are no longer remembered, since start.
    pub unseen: u64,
    /// Channels on which messages were seen.
    pub channels: Vec<ChannelAdvice>,
}

/// One limit with its advised value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvisedLimit {
    /// Name of the limit, as in `pipectl limits`.
    pub name: String,
    /// Size needed; none if no messages were seen.
    pub required_bytes: Option<u64>,
    /// Size that is configured.
    pub configured_bytes: u64,
    /// Highest use since start, by sessions that still exist.
    pub high_bytes: u64,
}

/// Size that the messages of a channel need.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChannelAdvice {
    /// Name of the channel; none if it was closed.
    pub name: Option<String>,
    /// Number of the channel.
    pub channel: u32,
    /// Session that receives, or received.
    pub session: u32,
    /// Shard of the receiving session.
    pub shard: u32,
    /// Size needed: the sum of the next four, or `fixed_bytes` if that is more.
    pub required_bytes: u64,
    /// Share of the model: bytes that have arrived and are not copied yet.
    pub model_bytes: u64,
    /// Extra because a message has its memory whole, while it lands and until it is copied.
    pub whole_bytes: u64,
    /// Extra because memory is given out in granules.
    pub rounding_bytes: u64,
    /// Extra for a granule that short messages share and that one of them keeps.
    pub sharing_bytes: u64,
    /// One message of each sender at once: needed however soon messages are asked for.
    pub fixed_bytes: u64,
    /// Highest use by its messages at once.
    pub high_bytes: u64,
    /// Messages received through the buffer since the channel was offered.
    pub messages: u64,
    /// Messages that found no free buffer.
    pub stalled: u64,
    /// Whether the deciding burst is longer than the memory of it: more may be needed.
    pub is_cut: bool,
    /// Senders of these messages.
    pub senders: Vec<SenderAdvice>,
    /// Bursts seen in which the buffer was used.
    pub bursts: u64,
    /// Means that the advice is computed from.
    pub measured: Measured,
    /// Size needed if one thing were different.
    pub factors: Vec<FactorAdvice>,
}

/// One sender of messages to a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderAdvice {
    /// Peer that sends; none for all clients of this node together.
    pub peer: Option<String>,
    /// Remembered messages of this sender.
    pub messages: u32,
    /// Memory of the longest one of them.
    pub fixed_bytes: u64,
}

/// Means over the remembered messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Messages in a burst.
    pub messages: f64,
    /// Bytes of one message.
    pub bytes: f64,
    /// Arrival rate of a message; none if it arrives at once.
    pub arrival_rate: Option<f64>,
    /// Copy rate of a message; none if no message was copied.
    pub copy_rate: Option<f64>,
    /// Time that the receiver takes before each message.
    pub startup_seconds: f64,
    /// Time between two messages of a burst.
    pub delay_seconds: f64,
}

/// Effect of one thing on the size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactorAdvice {
    /// Thing that differs: `bandwidth_doubled`, `delay_doubled`, `copy_rate_doubled`, `no_startup`
    /// or `half_more_messages`.
    pub factor: String,
    /// Size that the channel would need then.
    pub required_bytes: u64,
}
