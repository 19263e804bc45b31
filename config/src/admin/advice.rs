//! The body of `/v1/limits/advice`: what early-arrival memory messages need, by what was seen of them.

use serde::{Deserialize, Serialize};

/// `GET`: [`Advice`].
pub const ADVICE: &str = "/v1/limits/advice";

/// What early-arrival memory is needed. Sizes are in bytes, times in seconds, rates in bytes per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// `global.early_arrival` and `client.early_arrival`.
    pub limits: Vec<AdvisedLimit>,
    /// The most that `global.early_arrival` can be worth with the staging there is.
    pub most_bytes: u64,
    /// Messages for which there was no memory, since start.
    pub stalled: u64,
    /// Messages on channels beyond those that are remembered, since start.
    pub unseen: u64,
    /// The channels on which messages were seen.
    pub channels: Vec<ChannelAdvice>,
}

/// A limit and what it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvisedLimit {
    /// As in `pipectl limits`.
    pub name: String,
    /// What is needed; none if no messages were seen.
    pub required_bytes: Option<u64>,
    /// What it is.
    pub configured_bytes: u64,
    /// The most that was used since start, by what is there now.
    pub high_bytes: u64,
}

/// What the messages of a channel need.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChannelAdvice {
    /// Its name; none if it was closed.
    pub name: Option<String>,
    /// Its number.
    pub channel: u32,
    /// Who receives, or received.
    pub session: u32,
    /// Its shard.
    pub shard: u32,
    /// What is needed. The sum of the next four, or `fixed_bytes` if that is more.
    pub required_bytes: u64,
    /// Of the model: what has arrived and is not copied.
    pub model_bytes: u64,
    /// On top of that because messages have their memory whole, while they land and until they are copied.
    pub whole_bytes: u64,
    /// On top of that because memory is given out in granules.
    pub rounding_bytes: u64,
    /// On top of that for a granule that short messages share and that one of them keeps.
    pub sharing_bytes: u64,
    /// One message of each sender at once: what is needed however soon they are asked for.
    pub fixed_bytes: u64,
    /// The most its messages had at once.
    pub high_bytes: u64,
    /// Messages received that this memory is for, since it was offered.
    pub messages: u64,
    /// Messages for which there was none.
    pub stalled: u64,
    /// The burst that decides is longer than what is remembered: more may be needed.
    pub is_cut: bool,
    /// Who sent.
    pub senders: Vec<SenderAdvice>,
    /// Bursts seen in which memory was taken.
    pub bursts: u64,
    /// What was measured.
    pub measured: Measured,
    /// What would be needed if one thing were different.
    pub factors: Vec<FactorAdvice>,
}

/// Who sent messages to a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderAdvice {
    /// The peer; none: clients of this node, all together.
    pub peer: Option<String>,
    /// Messages of those that are remembered.
    pub messages: u32,
    /// Memory of the longest one of them.
    pub fixed_bytes: u64,
}

/// Means over the messages that are remembered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Messages in a burst.
    pub messages: f64,
    /// Bytes of one.
    pub bytes: f64,
    /// How fast one arrives; none: at once.
    pub arrival_rate: Option<f64>,
    /// How fast one is copied; none: none was.
    pub copy_rate: Option<f64>,
    /// What the receiver takes before each.
    pub startup_seconds: f64,
    /// From one to the next of a burst.
    pub delay_seconds: f64,
}

/// What one thing contributes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FactorAdvice {
    /// `bandwidth_doubled`, `delay_doubled`, `copy_rate_doubled`, `no_startup` or `half_more_messages`.
    pub factor: String,
    /// What the channel would need then.
    pub required_bytes: u64,
}
