//! Reports of a shard about itself: the JSON of the admin API, the tables of pipectl.
//!
//! Times are in seconds and sizes in bytes, as Prometheus wants them; pipectl turns them into units
//! for people.

mod arrivals;
mod held;
mod peer;
mod resource;
mod stage;
mod transfer;

use std::collections::BTreeMap;

use piped_core::ids::SessionId;
use piped_core::modes::{CalibrationMode, PlannerMode};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

pub use self::arrivals::{ArrivalSender, ChannelArrivals};
pub use self::held::Held;
pub use self::peer::{
    LaneReport, MessageReport, PeerReport, ZeroCopyReport, ZeroCopySize, ZeroCopyState,
};
pub use self::resource::StageResource;
pub use self::stage::{ServedWith, StageLine, StageReport, StageTime};
pub use self::transfer::{Candidate, Explanation, Passing, StagePassed, TransferReport, Waiting};
pub use crate::device::{device_name, device_of};
use crate::tally::Tally;

/// One shard at a glance.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct ShardReport {
    /// How fragment sizes are chosen.
    pub planner: PlannerMode,
    /// Whether costs follow the samples.
    pub calibration: CalibrationMode,
    /// Sessions that are open or draining.
    pub sessions: u32,
    /// Requests of clients in execution.
    pub transfers: u32,
    /// Requests of peers in execution.
    pub serves: u32,
    /// Operations that the driver has not finished.
    pub ops: u32,
    /// Sends that have ended while the kernel still uses their memory.
    #[cfg_attr(feature = "serde", serde(default))]
    pub lent: u32,
    /// Delay injections that are set.
    #[cfg_attr(feature = "serde", serde(default))]
    pub dials: u32,
    /// Staging memory owned, in bytes.
    pub staging_bytes: u64,
    /// Staging memory in use, in bytes.
    pub staging_used_bytes: u64,
    /// Part of `staging_used_bytes` that connections have for themselves; a working connection has
    /// more than a resting one.
    #[cfg_attr(feature = "serde", serde(default))]
    pub staging_lanes_bytes: u64,
    /// Handles that clients have open.
    #[cfg_attr(feature = "serde", serde(default))]
    pub handles: u32,
    /// Handles that peers have open.
    #[cfg_attr(feature = "serde", serde(default))]
    pub served_handles: u32,
    /// Use of everything that has a limit.
    #[cfg_attr(feature = "serde", serde(default))]
    pub limits: LimitUse,
    /// Counters since the shard's start.
    pub counters: Counters,
    /// Reasons for the events in `counters`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub reasons: Reasons,
    /// Peers of the shard and their connections.
    pub peers: Vec<PeerReport>,
}

/// An amount that goes up and down: its present value and its maximum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Gauge {
    /// The amount at present.
    pub now: u64,
    /// The largest amount since the shard's start.
    pub high: u64,
}

impl Gauge {
    /// Adds to the present amount.
    pub fn add(&mut self, amount: u64) {
        self.now += amount;
        self.high = self.high.max(self.now);
    }

    /// Takes from the present amount.
    pub fn sub(&mut self, amount: u64) {
        debug_assert!(amount <= self.now, "more goes than came");
        self.now = self.now.saturating_sub(amount);
    }
}

/// A shard's use of everything that has a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct LimitUse {
    /// Staging in use, in bytes.
    pub staging: Gauge,
    /// Part of `staging` that unexpected-message buffers use, in bytes.
    pub early_arrival: Gauge,
    /// The limit of `early_arrival`, in bytes.
    pub early_arrival_limit_bytes: u64,
    /// Messages since start that found no room in the unexpected-message buffer.
    pub stalled: u64,
    /// The limit of staging in bytes. The shard owns `staging_bytes`, which is less while memory is
    /// being allocated.
    pub staging_limit_bytes: u64,
    /// Part of `staging_bytes` that is given back after its last use.
    pub staging_draining_bytes: u64,
    /// The least staging that the shard works with now, in bytes.
    pub staging_least_bytes: u64,
    /// Segments of staging, including those that are to be given back.
    pub staging_segments: u32,
    /// Bytes of clients' requests in execution.
    pub in_flight: Gauge,
    /// The limit of `in_flight`, in bytes.
    pub in_flight_limit_bytes: u64,
    /// Clients' requests in execution.
    pub requests: Gauge,
    /// The limit of `requests`.
    pub requests_limit: u32,
    /// Requests of clients that wait for a limit now.
    pub waiting: u32,
    /// Requests of clients and peers that had to wait for a limit, since start.
    pub waited: u64,
    /// How often a connection's scratch memory was moved since start because its segment was to be
    /// given back.
    pub scratches_moved: u64,
}

/// Use of limits by each client and each peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct LimitParties {
    /// Use by each session of a client.
    pub clients: Vec<PartyUse>,
    /// Use by each peer that sends requests.
    pub peers: Vec<PartyUse>,
}

/// Use of limits by one client or one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct PartyUse {
    /// The session's number, or the peer's name.
    pub name: String,
    /// Memory of messages that the session has not asked for, in bytes of the unexpected-message
    /// buffer.
    pub early_arrival: Gauge,
    /// Bytes moved in a second.
    #[cfg_attr(feature = "serde", serde(default))]
    pub rate: Gauge,
    /// Staging in use, in bytes.
    pub staging: Gauge,
    /// Bytes of requests in execution.
    pub in_flight: Gauge,
    /// Number of requests in execution.
    pub requests: Gauge,
    /// Requests that wait for a limit now.
    pub waiting: u32,
    /// Handles of a peer; 0 for a session, whose handles the control thread counts.
    pub handles: u32,
}

/// Counters since start, which only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Counters {
    /// Requests taken from clients.
    pub requests: u64,
    /// Requests that ended with `Ok`.
    pub completed: u64,
    /// Requests that ended otherwise.
    pub failed: u64,
    /// Bytes moved for clients' requests, including requests that still run.
    pub bytes: u64,
    /// Requests sent again after a lost connection or a bad checksum.
    pub retries: u64,
    /// Fragments that were copied because an edge was unaligned.
    pub bounced_unaligned: u64,
    /// Fragments that were copied because the receive prediction was wrong.
    pub bounced_mispredicted: u64,
    /// Fragments that waited for their turn at a device.
    #[cfg_attr(feature = "serde", serde(default))]
    pub turns_waited: u64,
    /// How often a rate limit delayed work of a client or a peer.
    #[cfg_attr(feature = "serde", serde(default))]
    pub rate_waits: u64,
    /// Payload bytes that were received and discarded, because their request was over.
    pub discarded_bytes: u64,
    /// Frames whose payload checksum did not match.
    pub corrupt_frames: u64,
    /// Buffers that the kernel kept past their request's completion.
    pub held: u64,
    /// Connections with peers that were lost.
    pub lanes_lost: u64,
    /// Buffers counted in `held` that are free again.
    #[cfg_attr(feature = "serde", serde(default))]
    pub released: u64,
    /// Frames sent to all peers.
    #[cfg_attr(feature = "serde", serde(default))]
    pub frames_sent: u64,
    /// Frames received from all peers.
    #[cfg_attr(feature = "serde", serde(default))]
    pub frames_received: u64,
    /// Connections in `lanes_lost` that were closed for a fault of the peer.
    #[cfg_attr(feature = "serde", serde(default))]
    pub peer_faults: u64,
    /// Opens at peers that failed because as many peers were in use as may be.
    #[cfg_attr(feature = "serde", serde(default))]
    pub peers_full: u64,
    /// Sends to peers that the kernel copied into the socket.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sends_plain: u64,
    /// Sends to peers that the kernel made from the payload's own memory.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sends_zero_copy: u64,
    /// Sends to peers that were to avoid the copy, but that the kernel copied all the same.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sends_copied: u64,
}

/// Counts by reason since start; reasons with a count of zero are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Reasons {
    /// Requests that ended without a transfer, by status.
    pub at_once: BTreeMap<String, u64>,
    /// Requests sent again, by [`crate::tally::RetryReason`].
    pub retries: BTreeMap<String, u64>,
    /// Lost connections, by [`crate::tally::LaneLoss`].
    pub lanes_lost: BTreeMap<String, u64>,
}

/// Everything a shard contributes to metrics.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The shard at a glance.
    pub report: ShardReport,
    /// The shard's counters and histograms.
    pub tally: Tally,
    /// The shard's stages, as many as fit an answer.
    pub stages: Vec<(StageResource, StageReport)>,
}

/// Use by a client's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionUse {
    /// Which session of this daemon.
    pub session: SessionId,
    /// Transfers under way, including both halves of a copy's chunks.
    pub transfers: u32,
    /// Transfers that ended with `Ok`.
    pub completed: u64,
    /// Transfers that ended otherwise.
    pub failed: u64,
    /// Bytes that the session's transfers moved, including transfers that still run.
    pub bytes: u64,
}
