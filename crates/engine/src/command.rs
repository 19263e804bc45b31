//! What the control thread tells a shard and what a shard tells it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use piped_core::access::Access;
use piped_core::access::Alignment;
use piped_core::access::OpenKind;
use piped_core::ids::{
    ChannelId, DeviceId, FileId, HandleId, PeerId, RegionId, SegmentId, SessionId, SocketId,
};
use piped_core::link::LaneClass;
use piped_core::modes::CalibrationMode;
use piped_core::modes::EagerMode;
use piped_core::modes::ForcedPlan;
use piped_core::modes::PlannerMode;
use piped_core::modes::ZeroCopyMode;
use piped_core::names::{is_shard_name, node_of};
use piped_core::request::{Completion, Progress};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::kept::KeptStage;
use piped_planner::solve::{PlanAnswer, PlanRequest};
use piped_report::dial::{DialCost, DialPlace};
use piped_report::shard::StageResource;
use piped_wire::LaneKeys;

/// A file the driver has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileTarget {
    /// Opened with O_DIRECT, if the file system can.
    pub direct: Option<(FileId, Alignment)>,
    /// Opened through the page cache.
    pub buffered: FileId,
    /// The device it lies on: the resource of the disk stage.
    pub device: DeviceId,
    /// Its length when it was opened, in bytes.
    pub length: u64,
    /// What the handle may do.
    pub access: Access,
    /// It lies on a file system whose answers are somebody else's affair (another program's,
    /// another machine's): operations may never end, and each keeps a thread of the driver busy.
    pub foreign: bool,
}

/// A memory region of a local client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionTarget {
    /// Its identity, for [`Command::RevokeRegion`].
    pub region: RegionId,
    /// The segment it lies in.
    pub segment: SegmentId,
    /// Where it starts in the segment.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// What the handle may do.
    pub access: Access,
}

/// A channel of a local client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelTarget {
    /// Its identity.
    pub channel: ChannelId,
    /// The end that receives. It is one handle, and the channel is no more when that is closed.
    pub receives: bool,
}

/// What a local handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A file.
    File(FileTarget),
    /// A memory region.
    Region(RegionTarget),
    /// An end of a channel.
    Channel(ChannelTarget),
}

/// What to open at a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRequest {
    /// A file below an export, or a region.
    pub kind: OpenKind,
    /// Export or region name.
    pub name: String,
    /// Path below the export, in whatever bytes; empty for a region.
    pub path: Vec<u8>,
    /// What the handle shall be able to do.
    pub access: Access,
    /// Create the file if it is not there (write access only).
    pub create: bool,
}

/// What may be used at once on a shard. At a limit work waits; what is larger than a limit is done
/// alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// All clients' requests in execution.
    pub requests: u32,
    /// Their bytes.
    pub in_flight: u64,
    /// Memory for messages that nobody has asked for, in bytes.
    pub early_arrival: u64,
    /// Of one session.
    pub client: ClientLimits,
    /// Of one peer that asks us.
    pub peer: PeerLimits,
}

/// What one session may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits {
    /// Staging for its copies, in bytes.
    pub staging: u64,
    /// Bytes of its requests in execution.
    pub in_flight: u64,
    /// Its requests in execution.
    pub requests: u32,
    /// Messages that it has not asked for, in bytes.
    pub early_arrival: u64,
    /// What it may have moved in a second, in bytes; 0 is no bound.
    pub rate: u64,
}

/// What one peer may use here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerLimits {
    /// Staging for its requests, in bytes: half for reads, a quarter for the writes of each lane.
    pub staging: u64,
    /// Bytes of its reads in execution. The credit for writes is a quarter of it at most.
    pub in_flight: u64,
    /// Its reads and syncs in execution. Writes have their credit.
    pub requests: u32,
    /// What it may have open.
    pub handles: u32,
    /// What it may have moved in a second, in bytes; 0 is no bound.
    pub rate: u64,
}

impl Limits {
    /// No limit but those of [`piped_core::limits`].
    pub const NONE: Self = Self {
        requests: u32::MAX,
        in_flight: u64::MAX,
        early_arrival: u64::MAX,
        client: ClientLimits {
            staging: u64::MAX,
            in_flight: u64::MAX,
            requests: u32::MAX,
            early_arrival: u64::MAX,
            rate: 0,
        },
        peer: PeerLimits {
            staging: u64::MAX,
            in_flight: u64::MAX,
            requests: u32::MAX,
            handles: u32::MAX,
            rate: 0,
        },
    };
}

/// What is known of a peer that connected, before it says anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Nothing: the lane is plain. It may give itself any name but those of nodes that have keys.
    Unproven {
        /// Those names.
        reserved: Arc<BTreeSet<String>>,
        /// Where it comes from.
        origin: Origin,
    },
    /// It is this node, by its key, and may give itself no other name.
    Proven {
        /// The node's name.
        node: String,
    },
}

impl Caller {
    /// Anybody, where no node has a key.
    #[must_use]
    pub fn anybody() -> Self {
        let origin = Origin::Site(Ipv4Addr::UNSPECIFIED.into());
        Self::Unproven { reserved: Arc::default(), origin }
    }

    /// What stands behind the name that it gives itself.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        match self {
            Self::Unproven { origin, .. } => Standing::Plain(*origin),
            Self::Proven { .. } => Standing::Proven,
        }
    }

    /// Whether there are nodes that have to prove who they are, and lanes and staging are kept for
    /// them.
    pub(crate) fn is_beside_keys(&self) -> bool {
        matches!(self, Self::Unproven { reserved, .. } if !reserved.is_empty())
    }

    /// Whether a lane may give itself this name, a node's or that of one of its shards.
    ///
    /// # Errors
    /// Why it may not.
    pub(crate) fn may_be(&self, name: &str) -> Result<(), &'static str> {
        let node = node_of(name);
        match self {
            Self::Unproven { reserved, .. } if reserved.contains(node) => {
                Err("it gives itself the name of a node that has a key, and did not prove it")
            }
            Self::Proven { node: proven } if proven != node => Err(
                "its key is that of another name; give node.name there and [peers] here the same",
            ),
            // A name is a link with lanes, handles and memory: a node has as many as it can have
            // shards.
            Self::Proven { .. } if !is_shard_name(name) => Err("no shard has that name"),
            Self::Unproven { .. } | Self::Proven { .. } => Ok(()),
        }
    }
}

/// Where a plain lane comes from, as the kernel says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A user of this machine, by number: whose socket is at the other end.
    User(u32),
    /// Another machine: its address, or of IPv6 the network that is one caller's.
    Site(IpAddr),
}

/// What stands behind a node's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Its key.
    Proven,
    /// Its word.
    Plain(Origin),
}

impl Standing {
    /// Whether two lanes under one name are of one node. What a user of this machine opened is for
    /// lanes of this user alone; on a plain network nobody can tell one machine from another.
    pub(crate) fn is_like(self, other: Self) -> bool {
        match (self, other) {
            (Self::Plain(Origin::Site(_)), Self::Plain(Origin::Site(_))) => true,
            (one, other) => one == other,
        }
    }
}

/// Why a connection got no lane, or a lane had to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Crowded {
    /// Its address or user has its share of plain lanes, and all of them work.
    Share,
    /// There are as many lanes or nodes as there may be, and all of them work.
    Full,
    /// There is no staging for it.
    Staging,
    /// Another one needed its place.
    Displaced,
}

/// Which plain lanes close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Expelled {
    /// None.
    Nobody,
    /// Those of users of this machine.
    Users,
    /// All.
    Everybody,
}

/// From the control thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A segment of the daemon's own staging memory.
    AddStaging {
        /// The segment.
        segment: SegmentId,
        /// Its length in bytes.
        length: u64,
    },
    /// So much staging memory at most, from now on. Segments that are too many get no new work and
    /// are given back after their last use, each with an [`Event::StagingDrained`]. What is missing
    /// ([`crate::shard::Shard::staging_missing`]) is to be added.
    SetStaging {
        /// In bytes.
        bytes: u64,
    },
    /// What may be in execution at once, from now on. What is, stays.
    SetLimits(Limits),
    /// A new client.
    OpenSession {
        /// Its name.
        session: SessionId,
        /// Its share of what it has to share with others of its class; at least 1.
        weight: u8,
    },
    /// One more segment of a client's arena, in the order of the client's segment numbers.
    AddSegment {
        /// Whose.
        session: SessionId,
        /// The segment.
        segment: SegmentId,
        /// Its length in bytes.
        length: u64,
    },
    /// The client left or was evicted. Answered by [`Event::SessionDrained`].
    CloseSession {
        /// Whose.
        session: SessionId,
    },
    /// A local handle is ready. The control thread chooses the id.
    InstallHandle {
        /// Whose.
        session: SessionId,
        /// The handle.
        handle: HandleId,
        /// What it stands for.
        target: Target,
    },
    /// Open something at a peer for a client. Answered by [`Event::RemoteOpened`].
    OpenRemote {
        /// Comes back in the answer.
        ticket: u64,
        /// Whose.
        session: SessionId,
        /// The handle's id, if it succeeds.
        handle: HandleId,
        /// Where.
        peer: PeerId,
        /// What.
        open: OpenRequest,
    },
    /// Close a handle of a client; running requests end first.
    CloseHandle {
        /// Whose.
        session: SessionId,
        /// The handle.
        handle: HandleId,
    },
    /// A client may not use a handle any more: it ends, and with it the requests by it, with
    /// `Gone`.
    EndHandle {
        /// Whose.
        session: SessionId,
        /// The handle.
        handle: HandleId,
    },
    /// The same of what was opened for a peer.
    EndServed {
        /// From [`Event::ServeOpen`].
        ticket: u64,
    },
    /// Lanes from and to a node close. Both sides may connect again.
    EndPeer {
        /// Its name, without the mark of a shard.
        name: String,
    },
    /// The exporter of a region is gone: requests to it end with `Gone`. Answered by
    /// [`Event::RegionDrained`].
    RevokeRegion {
        /// The region.
        region: RegionId,
    },
    /// The answer to [`Event::ServeOpen`].
    ServeOpened {
        /// From the event.
        ticket: u64,
        /// What was opened, or why not.
        result: Result<Target, Status>,
    },
    /// A peer from the configuration; one that was removed comes back under its id.
    AddPeer {
        /// Its id.
        peer: PeerId,
        /// Its name.
        name: String,
    },
    /// A peer that is not in the configuration any more: its lanes close, and what was asked of it
    /// or opened there ends with `PeerLost` or `Gone`.
    RemovePeer {
        /// Which.
        peer: PeerId,
    },
    /// A peer has another address, or is to prove itself anew: its lanes close and are connected
    /// anew.
    RedialPeer {
        /// Which.
        peer: PeerId,
    },
    /// The answer to [`Event::Connect`].
    LaneConnected {
        /// Which peer.
        peer: PeerId,
        /// Which lane.
        class: LaneClass,
        /// The connected socket.
        socket: SocketId,
        /// From its handshake; none: it is plain.
        keys: Option<LaneKeys>,
    },
    /// The other answer to [`Event::Connect`].
    ConnectFailed {
        /// Which peer.
        peer: PeerId,
        /// Which lane.
        class: LaneClass,
    },
    /// A peer connected to us. Its first frame says who and which lane.
    LaneAccepted {
        /// The connected socket.
        socket: SocketId,
        /// Who that can be.
        caller: Caller,
        /// From its handshake; none: it is plain.
        keys: Option<LaneKeys>,
    },
    /// Nodes that are not trusted as they were: the lanes that came from them close.
    ExpelPeers {
        /// Their names, without the mark of a shard.
        names: Vec<String>,
        /// Also those that did not prove who they are.
        plain: Expelled,
    },
    /// The answer to [`Output::Plan`].
    Planned(Box<PlanAnswer>),
    /// What was known of stages another time, to begin with where nothing is measured yet. What
    /// fails [`piped_planner::kept::KeptStage::check`] is left out.
    TakeKept(Vec<(StageResource, KeptStage)>),
    /// Change how sizes are chosen.
    SetPlanner(PlannerMode),
    /// Use this plan for everything, whatever the costs; none: plan again. For simulations.
    ForcePlan(Option<ForcedPlan>),
    /// Change whether costs follow the samples.
    SetCalibration(CalibrationMode),
    /// Change whether lanes send without a copy.
    SetZeroCopy(ZeroCopyMode),
    /// Record the fragments of the next transfers, instead of what is being recorded or was; none:
    /// stop.
    Trace {
        /// A number for it.
        recording: u64,
        /// How many; more than [`piped_core::limits::TRACE_TRANSFERS_MAX`] are as many.
        transfers: u32,
    },
    /// Change which messages are sent without being announced.
    SetEager(EagerMode),
    /// Change the deadline of requests that name none.
    SetDeadline(Nanos),
    /// Set a dial, anew if there is one: what that one holds goes on at once.
    SetDial {
        /// Where.
        place: DialPlace,
        /// What it adds; within bounds ([`DialCost::check`]).
        cost: DialCost,
    },
    /// Clear dials: what they hold goes on at once.
    ClearDials {
        /// The one there, or all.
        place: Option<DialPlace>,
    },
}

/// To the control thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A segment of staging is in use no more, and was released.
    StagingDrained {
        /// The segment.
        segment: SegmentId,
    },
    /// A remote open ended.
    RemoteOpened {
        /// From the command.
        ticket: u64,
        /// Whose.
        session: SessionId,
        /// The handle; usable from now on if `result` is a length.
        handle: HandleId,
        /// The file's or region's length in bytes, or why not.
        result: Result<u64, Status>,
    },
    /// A connection got no lane, or an idle lane made room.
    LaneRefused {
        /// Whose it was.
        standing: Standing,
        /// Why.
        why: Crowded,
    },
    /// A peer wants something of ours opened. Answered by [`Command::ServeOpened`].
    ServeOpen {
        /// Goes back in the answer.
        ticket: u64,
        /// The peer's name as it gave it.
        peer: String,
        /// What stands behind that name.
        standing: Standing,
        /// What it wants.
        open: OpenRequest,
    },
    /// Please connect a lane, not before `after`. Answered by `LaneConnected` or `ConnectFailed`.
    Connect {
        /// To which peer.
        peer: PeerId,
        /// Which lane.
        class: LaneClass,
        /// The earliest time (back-off).
        after: Nanos,
    },
    /// A lane is usable.
    LaneUp {
        /// Which peer, by name.
        peer: String,
        /// Which lane.
        class: LaneClass,
        /// Its incarnation.
        epoch: u32,
    },
    /// A lane was lost or closed.
    LaneDown {
        /// Which peer, by name.
        peer: String,
        /// Which lane.
        class: LaneClass,
        /// Why, for the log.
        reason: String,
    },
    /// What was opened for a peer is open no more: the peer closed it, or is gone. One for each
    /// [`Command::ServeOpened`] that was Ok.
    ServeClosed {
        /// From [`Event::ServeOpen`].
        ticket: u64,
    },
    /// Nothing here uses the revoked region any more, neither the kernel nor a queued frame.
    RegionDrained {
        /// The region.
        region: RegionId,
    },
    /// Nothing of the session is in use any more; its memory was released.
    SessionDrained {
        /// Whose.
        session: SessionId,
    },
}

/// Everything a shard puts out, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// For a client's completion ring.
    Completion(Completion),
    /// For a client's progress word.
    Progress(Progress),
    /// For the control thread.
    Event(Event),
    /// For [`piped_planner::solve::solve`], where nobody waits for it. Answered by
    /// [`Command::Planned`].
    Plan(Box<PlanRequest>),
}
