//! What would be planned for a transfer that nobody has asked for.
//!
//! A shard makes a [`Draft`](crate::plan::Draft): copies of what it knows of the path, and nothing
//! in it changes. What takes longer, sizes of their own for each level, is worked out of the copy
//! ([`forecast`](crate::plan::Draft::forecast)) by whoever asked, where nobody waits. The words are
//! those of `explain`, so that both can be compared.

use piped_core::ids::{DeviceId, PeerId};
use piped_core::request::Class;
use piped_report::shard::{Candidate, StageReport};
use piped_report::trace::LevelSizes;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// A transfer to be planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftAsk {
    /// Which way its bytes go.
    pub way: Way,
    /// How many.
    pub bytes: u64,
    /// How urgent.
    pub class: Class,
}

/// The stages that the bytes pass, by what is at both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Between a file of ours and memory.
    Disk {
        /// Where it lies.
        device: DeviceId,
        /// To the file.
        write: bool,
    },
    /// To a peer, from memory or from a file of ours.
    ToPeer {
        /// Which.
        peer: PeerId,
        /// The file's device.
        device: Option<DeviceId>,
    },
    /// What a peer sends, into a file of ours. How it sends is its own affair.
    Landing {
        /// Which.
        peer: PeerId,
        /// The file's device; none: into memory, which nothing is planned for.
        device: Option<DeviceId>,
    },
    /// To a peer that reads from us.
    Served {
        /// As it calls itself.
        peer: String,
        /// The file's device; none: of memory.
        device: Option<DeviceId>,
    },
}

/// Why there is no draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DraftFault {
    /// Nobody of that name.
    #[error("no peer of that name is connected to this node")]
    UnknownPeer,
    /// Its lane is down.
    #[error("the lane to the peer is down, and its stages are not known without it")]
    NoLane,
}

/// What would be done.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Forecast {
    /// Bytes of the transfer.
    pub bytes: u64,
    /// The algorithm; empty if there is nothing to be planned.
    pub chosen: String,
    /// The sizes of its fragments, level by level.
    pub levels: Vec<LevelSizes>,
    /// The first fragment's size in bytes.
    pub fragment_bytes: u64,
    /// By how much each fragment is shorter than the one before, in bytes; 0 if they are equal.
    pub shrink_bytes: u64,
    /// Number of fragments.
    pub fragments: u32,
    /// Fragments outstanding at the first stage.
    pub depth: u32,
    /// Predicted latency in seconds.
    pub predicted_seconds: f64,
    /// Half-width of the prediction's interval, in seconds.
    pub margin_seconds: f64,
    /// The stages of the path as they are known now.
    pub stages: Vec<StageReport>,
    /// The plans that were compared.
    pub candidates: Vec<Candidate>,
    /// The very next transfer is to try this one of them instead, to see what it takes.
    pub trial: Option<Candidate>,
}
