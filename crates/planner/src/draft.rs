//! The plan for a transfer that nobody has asked for (`pipectl plan`).
//!
//! A shard makes a [`Draft`](crate::plan::Draft): a copy of what it knows of the path, so that its
//! own state does not change. Separate sizes for each level take longer to compute. The thread that
//! asked computes them from the copy ([`forecast`](crate::plan::Draft::forecast)), where no request
//! waits. The words are those of `explain`, so that both can be compared.

use piped_core::ids::{DeviceId, PeerId};
use piped_core::request::Class;
use piped_report::shard::{Candidate, StageReport};
use piped_report::trace::LevelSizes;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// A transfer for which a plan is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftAsk {
    /// The stages at both ends of the transfer.
    pub way: Way,
    /// Length of the transfer in bytes.
    pub bytes: u64,
    /// How urgent the transfer would be.
    pub class: Class,
}

/// The stages that the bytes pass, by what is at both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Between a file of this node and memory.
    Disk {
        /// The block device that the file lies on.
        device: DeviceId,
        /// Whether the file is written; otherwise it is read.
        write: bool,
    },
    /// To a peer, from memory or from a file of this node.
    ToPeer {
        /// The peer that receives the bytes.
        peer: PeerId,
        /// The device of the file; absent for memory.
        device: Option<DeviceId>,
    },
    /// From a peer into a file of this node; the peer itself plans how it sends.
    Landing {
        /// The peer that sends the bytes.
        peer: PeerId,
        /// The device of the file; absent for memory, for which nothing is planned.
        device: Option<DeviceId>,
    },
    /// To a peer that reads from this node.
    Served {
        /// The peer's name, as it said.
        peer: String,
        /// The device of the file; absent for memory.
        device: Option<DeviceId>,
    },
}

/// Why there is no plan to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DraftFault {
    /// No connected peer has that name.
    #[error("no peer of that name is connected to this node")]
    UnknownPeer,
    /// The peer's connection is down.
    #[error("the lane to the peer is down, and its stages are not known without it")]
    NoLane,
}

/// The plan that a transfer would get.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Forecast {
    /// Bytes of the transfer.
    pub bytes: u64,
    /// The algorithm of the plan; empty if nothing is planned.
    pub chosen: String,
    /// Fragment sizes at each level of the plan.
    pub levels: Vec<LevelSizes>,
    /// The first fragment's size in bytes.
    pub fragment_bytes: u64,
    /// By how much each fragment is shorter than the one before, in bytes; 0 if they are equal.
    pub shrink_bytes: u64,
    /// Number of fragments of the plan.
    pub fragments: u32,
    /// Fragments under way at the first stage.
    pub depth: u32,
    /// Predicted latency in seconds.
    pub predicted_seconds: f64,
    /// Half-width of the prediction interval, in seconds.
    pub margin_seconds: f64,
    /// The stages of the path as they are known now.
    pub stages: Vec<StageReport>,
    /// The plans that were compared.
    pub candidates: Vec<Candidate>,
    /// The candidate that the very next transfer would try instead, to measure it; absent if none.
    pub trial: Option<Candidate>,
}
