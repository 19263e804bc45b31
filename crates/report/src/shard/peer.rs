//! Peers and the connections with them.

use piped_core::link::{LaneClass, Protection};
use piped_core::units::Nanos;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::tally::LaneLoss;

/// A peer and its connections.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct PeerReport {
    /// The peer's name, as it is configured or as it said.
    pub name: String,
    /// True for a peer that connected to this node and is served; false for a peer that this node
    /// asks.
    pub inbound: bool,
    /// Connections with the peer, at most one of each class; none if the peer is not used and is
    /// connected to when it is.
    pub lanes: Vec<LaneReport>,
    /// When something last came from the peer, by the daemon's clock; absent if nothing did since
    /// it was made known. Not part of JSON, whose readers have another clock.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub heard: Option<Nanos>,
}

/// How messages are sent to a peer.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct MessageReport {
    /// The longest message that is sent without being announced, in bytes.
    pub eager_bytes: u32,
    /// Duration of the rendezvous for an announced message, in seconds.
    pub handshake_seconds: f64,
}

/// One connection of a peer link.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct LaneReport {
    /// The connection's class: latency or bulk.
    pub class: LaneClass,
    /// Whether the connection is usable now.
    pub up: bool,
    /// Number of the connection's incarnation.
    pub epoch: u32,
    /// Frames sent over this connection.
    pub frames_sent: u64,
    /// Frames received over this connection.
    pub frames_received: u64,
    /// Unfinished requests that were sent (or, inbound, received) over the connection.
    #[cfg_attr(feature = "serde", serde(default))]
    pub requests: u32,
    /// Why the connection's last incarnation was lost; absent if none was.
    #[cfg_attr(feature = "serde", serde(default))]
    pub last_loss: Option<LaneLoss>,
    /// The most that the connection hands to the wire, in bytes per second, as measured; absent if
    /// nothing bounds it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub pace: Option<u64>,
    /// How frames are protected; absent if the connection is plain or not up.
    #[cfg_attr(feature = "serde", serde(default))]
    pub protection: Option<Protection>,
    /// Whether a payload that changed on the way is noticed: by a checksum, or by a tag if there is
    /// protection. Absent if the connection is not up.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sums: Option<bool>,
    /// What is known of sends without a copy; absent if none was tried.
    #[cfg_attr(feature = "serde", serde(default))]
    pub zero_copy: Option<ZeroCopyReport>,
    /// How messages are sent over the connection; absent until one was.
    #[cfg_attr(feature = "serde", serde(default))]
    pub messages: Option<MessageReport>,
}

/// Whether a connection sends without a copy, and why.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct ZeroCopyReport {
    /// The reason, in a word.
    pub state: ZeroCopyState,
    /// Whether memory is lent to the kernel now.
    pub lending: bool,
    /// Sends that the kernel made from the payload's own memory.
    pub in_place: u64,
    /// Sends that were to avoid the copy, but that the kernel copied all the same.
    pub copied: u64,
    /// Seconds until sends without a copy are tried again; absent if there is no pause.
    pub pause_seconds: Option<f64>,
    /// The smallest measured size, in bytes, from which sends without a copy pay; absent if they do
    /// not.
    pub pays_from_bytes: Option<u64>,
    /// Measurements of sends, by size.
    pub sizes: Vec<ZeroCopySize>,
}

/// Why a connection sends without a copy or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "snake_case"))]
pub enum ZeroCopyState {
    /// The configuration forbids it.
    Off,
    /// The configuration demands it.
    On,
    /// The first sends are being tried.
    Trying,
    /// The kernel copies all the same, so it is off.
    Copied,
    /// The kernel or a limit of the system refuses, so it is off.
    Refused,
    /// The kernel sends in place, and it is on for the sizes that were measured to be cheaper.
    Pays,
    /// The kernel sends in place, but no size was measured to be cheaper, so it is off.
    DoesNotPay,
}

impl ZeroCopyState {
    /// The reason in words for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Off => "off by configuration",
            Self::On => "on by configuration",
            Self::Trying => "being tried",
            Self::Copied => "off: the kernel copies",
            Self::Refused => "off: the kernel refuses",
            Self::Pays => "on: it pays",
            Self::DoesNotPay => "off: it does not pay",
        }
    }
}

/// How long sends of one size take on the shard's thread.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct ZeroCopySize {
    /// The smallest size in bytes; sizes go up to twice as many. The last entry has no upper end.
    pub bytes: u64,
    /// Median time of a send of `bytes` with a copy, in seconds; absent until measured.
    pub plain_seconds: Option<f64>,
    /// Median time of a send of `bytes` without a copy, in seconds; absent until measured.
    pub lent_seconds: Option<f64>,
    /// How long the kernel holds lent memory, in seconds; absent until measured.
    pub held_seconds: Option<f64>,
    /// How many sends were timed, with a copy and without.
    pub samples: (u32, u32),
    /// Whether sends of this size go without a copy.
    pub pays: bool,
}
