//! What a shard can say about itself: the JSON of the admin API, the tables of pipectl.
//!
//! Times are in seconds, sizes in bytes, as Prometheus wants them; people's units are pipectl's
//! work.

mod arrivals;
mod stage;

use core::fmt;
use std::collections::BTreeMap;

use piped_core::ids::{DeviceId, SessionId};
use piped_core::link::{LaneClass, Protection, ReportedStage};
use piped_core::modes::{CalibrationMode, PlannerMode};
use piped_core::request::Class;
use piped_core::status::Status;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

pub use self::arrivals::{ArrivalSender, ChannelArrivals};
pub use self::stage::{ServedWith, StageReport, StageTime};
use crate::dial::DialPlace;
use crate::tally::{LaneLoss, Operation, Tally};
use crate::trace::LevelSizes;

/// One shard at a glance.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct ShardReport {
    /// How sizes are chosen.
    pub planner: PlannerMode,
    /// Whether costs follow the samples.
    pub calibration: CalibrationMode,
    /// Sessions open or draining.
    pub sessions: u32,
    /// Requests in execution.
    pub transfers: u32,
    /// Work in execution for peers.
    pub serves: u32,
    /// Operations at the driver.
    pub ops: u32,
    /// Sends that have ended and whose memory the kernel still has.
    #[cfg_attr(feature = "serde", serde(default))]
    pub lent: u32,
    /// Stages that are made slower on purpose.
    #[cfg_attr(feature = "serde", serde(default))]
    pub dials: u32,
    /// Staging memory owned, in bytes.
    pub staging_bytes: u64,
    /// Staging memory in use, in bytes.
    pub staging_used_bytes: u64,
    /// Of that what lanes have for themselves, more or less as they work or rest.
    #[cfg_attr(feature = "serde", serde(default))]
    pub staging_lanes_bytes: u64,
    /// What clients have open.
    #[cfg_attr(feature = "serde", serde(default))]
    pub handles: u32,
    /// What peers have open.
    #[cfg_attr(feature = "serde", serde(default))]
    pub served_handles: u32,
    /// What is used of what is limited.
    #[cfg_attr(feature = "serde", serde(default))]
    pub limits: LimitUse,
    /// Counters since start.
    pub counters: Counters,
    /// Why what is counted in `counters` happened.
    #[cfg_attr(feature = "serde", serde(default))]
    pub reasons: Reasons,
    /// The peers and their lanes.
    pub peers: Vec<PeerReport>,
}

/// Something that comes and goes: how much now, and the most there was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Gauge {
    /// Now.
    pub now: u64,
    /// The most at once since start.
    pub high: u64,
}

impl Gauge {
    /// So much more is there now.
    pub fn add(&mut self, amount: u64) {
        self.now += amount;
        self.high = self.high.max(self.now);
    }

    /// So much of it is gone.
    pub fn sub(&mut self, amount: u64) {
        debug_assert!(amount <= self.now, "more goes than came");
        self.now = self.now.saturating_sub(amount);
    }
}

/// A shard's use of what is limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct LimitUse {
    /// Staging in use, in bytes.
    pub staging: Gauge,
    /// Of that, for messages that nobody has asked for.
    pub early_arrival: Gauge,
    /// The most of that.
    pub early_arrival_limit_bytes: u64,
    /// Messages for which there was no early-arrival memory, since start.
    pub stalled: u64,
    /// Staging it may have, in bytes; it has `staging_bytes`, less while memory is made.
    pub staging_limit_bytes: u64,
    /// Of `staging_bytes`, what is given back after its last use.
    pub staging_draining_bytes: u64,
    /// The least it works with now, in bytes.
    pub staging_least_bytes: u64,
    /// Segments of staging, draining ones included.
    pub staging_segments: u32,
    /// Bytes of clients' requests in execution.
    pub in_flight: Gauge,
    /// The most of them.
    pub in_flight_limit_bytes: u64,
    /// Clients' requests in execution.
    pub requests: Gauge,
    /// The most of them.
    pub requests_limit: u32,
    /// Requests of clients that wait for a limit.
    pub waiting: u32,
    /// Requests of clients and peers that had to wait for a limit, since start.
    pub waited: u64,
    /// Scratches of lanes that were moved because their segment was to go, since start.
    pub scratches_moved: u64,
}

/// Who uses what, party by party.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct LimitParties {
    /// The sessions.
    pub clients: Vec<PartyUse>,
    /// The peers that ask us.
    pub peers: Vec<PartyUse>,
}

/// What one party uses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct PartyUse {
    /// The session's number, or the peer's name.
    pub name: String,
    /// Messages for a session that it has not asked for, in bytes of early-arrival memory.
    pub early_arrival: Gauge,
    /// Bytes moved in a second.
    #[cfg_attr(feature = "serde", serde(default))]
    pub rate: Gauge,
    /// Staging in use, in bytes.
    pub staging: Gauge,
    /// Bytes in execution.
    pub in_flight: Gauge,
    /// Requests in execution.
    pub requests: Gauge,
    /// Requests that wait for a limit.
    pub waiting: u32,
    /// Handles of a peer; those of sessions are the control thread's.
    pub handles: u32,
}

/// Counters since start. They only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Counters {
    /// Requests taken from clients.
    pub requests: u64,
    /// Requests that ended with `Ok`.
    pub completed: u64,
    /// Requests that ended otherwise.
    pub failed: u64,
    /// Bytes moved for clients' requests, those that run among them.
    pub bytes: u64,
    /// Requests sent again after a lost lane or a bad checksum.
    pub retries: u64,
    /// Fragments that took a copy because an edge was unaligned.
    pub bounced_unaligned: u64,
    /// Fragments that took a copy because the receive prediction was wrong.
    pub bounced_mispredicted: u64,
    /// Fragments that waited for their turn at a device.
    #[cfg_attr(feature = "serde", serde(default))]
    pub turns_waited: u64,
    /// Times that work of a client or a peer was put off for its rate.
    #[cfg_attr(feature = "serde", serde(default))]
    pub rate_waits: u64,
    /// Payload bytes received for nobody.
    pub discarded_bytes: u64,
    /// Frames whose payload checksum did not match.
    pub corrupt_frames: u64,
    /// Buffers held past their request's completion.
    pub held: u64,
    /// Lanes lost.
    pub lanes_lost: u64,
    /// Of the buffers held, those that are free again.
    #[cfg_attr(feature = "serde", serde(default))]
    pub released: u64,
    /// Frames sent.
    #[cfg_attr(feature = "serde", serde(default))]
    pub frames_sent: u64,
    /// Frames received.
    #[cfg_attr(feature = "serde", serde(default))]
    pub frames_received: u64,
    /// Lanes closed for what the peer did, among those lost.
    #[cfg_attr(feature = "serde", serde(default))]
    pub peer_faults: u64,
    /// Sends of lanes that the kernel copied into the socket.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sends_plain: u64,
    /// Sends out of the memory itself.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sends_zero_copy: u64,
    /// Sends that were to be, and that the kernel copied all the same.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sends_copied: u64,
}

/// Counts by reason, since start; a reason that never was is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Reasons {
    /// Requests that ended without a transfer, by status.
    pub at_once: BTreeMap<String, u64>,
    /// Requests sent again.
    pub retries: BTreeMap<String, u64>,
    /// Lanes lost.
    pub lanes_lost: BTreeMap<String, u64>,
}

/// A peer and its lanes.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct PeerReport {
    /// Its name.
    pub name: String,
    /// True for a peer that connected to us and is served, false for one we ask.
    pub inbound: bool,
    /// Its lanes.
    pub lanes: Vec<LaneReport>,
}

/// What is done with messages to a peer.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct MessageReport {
    /// The longest that is sent without being announced, in bytes.
    pub eager_bytes: u32,
    /// What the hand-shake of an announced one takes, in seconds.
    pub handshake_seconds: f64,
}

/// A lane.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct LaneReport {
    /// Which of the two.
    pub class: LaneClass,
    /// Whether it is usable now.
    pub up: bool,
    /// Its incarnation.
    pub epoch: u32,
    /// Frames sent.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Requests asked (or, inbound, served) over it that have not ended.
    #[cfg_attr(feature = "serde", serde(default))]
    pub requests: u32,
    /// Why its last incarnation was lost.
    #[cfg_attr(feature = "serde", serde(default))]
    pub last_loss: Option<LaneLoss>,
    /// What it hands to the wire at most, in bytes per second, if that is bounded: so much it was
    /// seen to take.
    #[cfg_attr(feature = "serde", serde(default))]
    pub pace: Option<u64>,
    /// How its frames are protected; nothing: it is plain, or not up.
    #[cfg_attr(feature = "serde", serde(default))]
    pub protection: Option<Protection>,
    /// What is known of sends without a copy, if some were tried.
    #[cfg_attr(feature = "serde", serde(default))]
    pub zero_copy: Option<ZeroCopyReport>,
    /// What is done with messages that are sent over it, once some were.
    #[cfg_attr(feature = "serde", serde(default))]
    pub messages: Option<MessageReport>,
}

/// Whether a lane sends without a copy, and why.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct ZeroCopyReport {
    /// Why, in a word.
    pub state: ZeroCopyState,
    /// Memory is lent to the kernel now.
    pub lending: bool,
    /// Sends that were made out of the memory itself.
    pub in_place: u64,
    /// Sends that were to be, and that the kernel copied all the same.
    pub copied: u64,
    /// It is not tried for so long.
    pub pause_seconds: Option<f64>,
    /// From this size on it pays, as far as sizes were measured; none: it does not.
    pub pays_from_bytes: Option<u64>,
    /// What was measured, by size.
    pub sizes: Vec<ZeroCopySize>,
}

/// Why a lane sends without a copy or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "snake_case"))]
pub enum ZeroCopyState {
    /// Not by configuration.
    Off,
    /// By configuration.
    On,
    /// The first sends are tried.
    Trying,
    /// The kernel copies: not.
    Copied,
    /// The kernel, or a limit of the system, does not allow it: not.
    Refused,
    /// The kernel sends in place, and some sizes were measured to be cheaper so: those.
    Pays,
    /// The kernel sends in place, and no size was measured to be cheaper so: not.
    DoesNotPay,
}

impl ZeroCopyState {
    /// In words.
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

/// What sends of one size take on the shard's thread.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct ZeroCopySize {
    /// Sends from so many bytes to twice as many; the last has no end.
    pub bytes: u64,
    /// One of `bytes` with a copy, in the median.
    pub plain_seconds: Option<f64>,
    /// One without.
    pub lent_seconds: Option<f64>,
    /// How long the kernel holds what it is lent.
    pub held_seconds: Option<f64>,
    /// How many were timed, with a copy and without.
    pub samples: (u32, u32),
    /// This size goes without a copy.
    pub pays: bool,
}

/// What a stage stands for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StageResource {
    /// Reads or writes of a device.
    Disk {
        /// Which.
        device: DeviceId,
        /// Writes.
        write: bool,
    },
    /// One way of a lane.
    Net {
        /// The other node.
        peer: String,
        /// Which lane.
        class: LaneClass,
        /// We ask over it.
        outbound: bool,
        /// The data comes to us.
        incoming: bool,
    },
    /// Syncs of a device behind durable writes.
    Sync {
        /// Which.
        device: DeviceId,
    },
    /// Those at a peer: what a durable write takes there beyond one that is not.
    PeerSync {
        /// The other node.
        peer: String,
    },
    /// Memory to memory.
    Copy,
    /// Checksums.
    Check,
    /// What a peer reports of the way of our data there.
    Peer {
        /// The other node.
        peer: String,
        /// By which lane.
        class: LaneClass,
        /// We ask over it.
        outbound: bool,
        /// Which stage.
        stage: ReportedStage,
        /// Of a file's disk: the handle there.
        handle: u32,
    },
    /// A dial of ours.
    Dial {
        /// Where.
        place: DialPlace,
        /// What it takes of the shard's thread.
        host: bool,
    },
}

impl fmt::Display for StageResource {
    /// What a peer reports; the others have their names from the planner.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Peer { peer, class, outbound, stage, handle } = self else {
            return write!(f, "{self:?}");
        };
        let lane = match class {
            LaneClass::Latency => "latency",
            LaneClass::Bulk => "bulk",
        };
        let side = if *outbound { "asked" } else { "served" };
        write!(f, "{} {peer} {lane} {side} out", stage.name())?;
        match stage {
            ReportedStage::DiskWrite | ReportedStage::DialDiskWrite => write!(f, " {handle}"),
            _ => Ok(()),
        }
    }
}

/// A device as operators know it; its number is as the kernel packs it into 32 bits
/// (`new_encode_dev`).
#[must_use]
pub fn device_name(device: DeviceId) -> String {
    let (major, minor) = (device.0 >> 8 & 0xfff, device.0 & 0xff | device.0 >> 12 & 0xf_ff00);
    format!("{major}:{minor}")
}

/// The device of that name.
#[must_use]
pub fn device_of(major: u32, minor: u32) -> Option<DeviceId> {
    let packed = || DeviceId(minor & 0xff | major << 8 | (minor & 0xf_ff00) << 12);
    (major <= 0xfff && minor <= 0xf_ffff).then(packed)
}

/// All a shard has to say for metrics.
#[derive(Debug, Clone)]
pub struct Observation {
    /// Itself at a glance.
    pub report: ShardReport,
    /// What it counted.
    pub tally: Tally,
    /// Its stages, as many as there is room for in an answer.
    pub stages: Vec<(StageResource, StageReport)>,
}

/// What a client's session has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionUse {
    /// Which.
    pub session: SessionId,
    /// Transfers under way, the halves of copies' chunks among them.
    pub transfers: u32,
    /// Transfers that ended with `Ok`.
    pub completed: u64,
    /// Transfers that ended otherwise.
    pub failed: u64,
    /// Bytes they moved, those that run among them.
    pub bytes: u64,
}

/// A transfer, or a peer's request, that runs or has ended.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct TransferReport {
    /// Its number, for `explain`; 0 if it gets one only at its end.
    pub id: u64,
    /// What it does.
    pub operation: Operation,
    /// True if a peer asked for it.
    pub served: bool,
    /// Where the data comes from and goes to, in words.
    pub route: String,
    /// Its class.
    pub class: Class,
    /// Whose it is: a client's session.
    pub session: Option<u32>,
    /// Bytes asked for.
    pub bytes: u64,
    /// Bytes in place, of a write to a peer those that it has taken (served: handed to the lane or
    /// the device).
    pub bytes_done: u64,
    /// Since it began, in seconds; of one that ended, how long it took.
    pub age_seconds: f64,
    /// Until its deadline, in seconds; negative after it. Absent once it has ended.
    pub left_seconds: Option<f64>,
    /// Since it ended, in seconds; absent while it runs.
    pub ended_seconds_ago: Option<f64>,
    /// How it ended; absent while it runs. A transfer whose client was told and whose buffer is
    /// held runs with a status.
    pub status: Option<Status>,
    /// Times it was sent again.
    pub retries: u32,
}

/// One transfer explained: what was known, what was chosen, what came out.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Explanation {
    /// The transfer's number.
    pub id: u64,
    /// `read`, `write`, `copy` or `sync`.
    pub operation: String,
    /// Where the data came from and went to, in words.
    pub route: String,
    /// Bytes asked for.
    pub bytes: u64,
    /// Its class.
    pub class: Class,
    /// How it ended.
    pub status: Status,
    /// True if this node planned it; a remote read is planned by the side that holds the data.
    pub planned_here: bool,
    /// The stages as they were known when it was planned.
    pub stages: Vec<StageReport>,
    /// The candidates the planner compared.
    pub candidates: Vec<Candidate>,
    /// The algorithm chosen.
    pub chosen: String,
    /// The first fragment's size in bytes; 0, as the next three, if there is no plan or the peer
    /// that made it did not say.
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
    /// Measured latency in seconds.
    pub measured_seconds: f64,
    /// The sizes of its fragments, level by level; empty without a plan of this side's.
    #[cfg_attr(feature = "serde", serde(default))]
    pub levels: Vec<LevelSizes>,
    /// The stages it passed: predicted against measured.
    #[cfg_attr(feature = "serde", serde(default))]
    pub passed: Vec<StagePassed>,
    /// Copies it had to take, by reason.
    pub bounces: Vec<String>,
    /// Times it was sent again.
    pub retries: u32,
    /// Of a durable write, the part of the prediction that is for its sync, in seconds; absent if
    /// none was predicted.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sync_seconds: Option<f64>,
    /// What it waited for; absent in the answer of a daemon that does not say.
    #[cfg_attr(feature = "serde", serde(default))]
    pub waiting: Option<Waiting>,
    /// By how much its own time was longer than predicted, as a part of the prediction; absent if
    /// the two are not compared.
    #[cfg_attr(feature = "serde", serde(default))]
    pub deviation: Option<f64>,
    /// Why they are not; empty if they are.
    #[cfg_attr(feature = "serde", serde(default))]
    pub not_compared: String,
}

/// What a request waited for. What it took is the sum of the three times: before it began, for
/// others, and its own.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Waiting {
    /// It waited for nobody: from its submission to its end no other request was at its devices and
    /// peers, and nothing held it back.
    pub alone: bool,
    /// Before it began, in seconds, if something held it back.
    pub held_seconds: f64,
    /// What did, at its beginning or later.
    pub held_by: Vec<crate::tally::HeldBy>,
    /// Requests of the same client (or of the same peer) that were there when it came.
    pub ahead_own: u32,
    /// Requests of others.
    pub ahead_others: u32,
    /// Requests that came while it ran, of anybody.
    pub joined: u32,
    /// The peer that served it says that it had company there.
    pub at_peer: bool,
    /// Of the time it ran, what went to others, in seconds: their share of the bytes that were
    /// moved there meanwhile.
    pub shared_seconds: f64,
    /// Where that was: a device or a peer; empty if it shared nothing.
    pub at: String,
    /// The rest.
    pub own_seconds: f64,
}

/// A stage that a transfer passed. A stage is busy while it has a fragment of the transfer, or one
/// waits for it.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct StagePassed {
    /// Its name.
    pub name: String,
    /// What was measured; absent for stages of the other side.
    pub measured: Option<Passing>,
    /// What was predicted; absent for stages that the plan does not know, and without a plan.
    pub predicted: Option<Passing>,
    /// Confidence in its costs when it was planned, 0 (the prior) to 1; absent without a
    /// prediction.
    pub confidence: Option<f64>,
}

impl StagePassed {
    /// A stage of which nothing was measured or predicted yet.
    #[must_use]
    pub fn new(name: String) -> Self {
        Self { name, measured: None, predicted: None, confidence: None }
    }
}

/// What a transfer did in a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Passing {
    /// Fragments that passed it.
    pub fragments: u32,
    /// How long it was busy, in seconds.
    pub busy_seconds: f64,
    /// When the last fragment had left, in seconds from the start.
    pub last_seconds: f64,
}

/// A plan that was considered.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Candidate {
    /// Its algorithm.
    pub algorithm: String,
    /// Its first fragment's size in bytes.
    pub fragment_bytes: u64,
    /// Its first frame's payload in bytes, where bytes are cut anew for the lane.
    #[cfg_attr(feature = "serde", serde(default))]
    pub lane_bytes: u64,
    /// The first fragment that is written, in bytes.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sink_bytes: u64,
    /// By how much each fragment is shorter than the one before, in bytes; 0 if they are equal.
    pub shrink_bytes: u64,
    /// Fragments outstanding at the first stage.
    pub depth: u32,
    /// It is the plan of the transfer.
    #[cfg_attr(feature = "serde", serde(default))]
    pub chosen: bool,
    /// Its predicted latency in seconds.
    pub predicted_seconds: f64,
    /// Its mean latency in practice, in seconds, once enough transfers tried it.
    pub measured_seconds: Option<f64>,
    /// Whether another candidate beats it in practice, so that it is not chosen.
    pub vetoed: bool,
}
