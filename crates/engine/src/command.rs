//! What the control thread tells a shard and what a shard tells it.

mod caller;
mod limit;
mod target;

use piped_core::ids::{HandleId, PeerId, RegionId, SegmentId, SessionId, SocketId};
use piped_core::link::{Checksum, Dialling, LaneClass};
use piped_core::modes::{CalibrationMode, EagerMode, ForcedPlan, PlannerMode, ZeroCopyMode};
use piped_core::request::{Completion, Progress};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::kept::KeptStage;
use piped_planner::solve::{PlanAnswer, PlanRequest};
use piped_report::dial::{DialCost, DialPlace};
use piped_report::shard::StageResource;
use piped_wire::LaneKeys;

pub use self::caller::{Caller, Crowded, Expelled, Origin, Standing};
pub use self::limit::{ClientLimits, Limits, PeerLimits};
pub use self::target::{
    ChannelTarget, DirectoryTarget, FileTarget, OpenRequest, RegionTarget, Target,
};

/// What the control thread asks of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A segment of the daemon's own staging memory.
    AddStaging {
        /// The segment that joins the staging.
        segment: SegmentId,
        /// The segment's length in bytes.
        length: u64,
    },
    /// So much staging memory at most, from now on. Segments that are too many get no new work and
    /// are given back after their last use, each with an [`Event::StagingDrained`]. What is missing
    /// ([`crate::shard::Shard::staging_missing`]) is to be added.
    SetStaging {
        /// The most staging to keep, in bytes.
        bytes: u64,
    },
    /// What may be in execution at once, from now on. What is, stays.
    SetLimits(Limits),
    /// A new client connected to the daemon.
    OpenSession {
        /// The session that later commands and events name.
        session: SessionId,
        /// The session's share of what it has to share with others of its class; at least 1.
        weight: u8,
        /// The shard that has what has one place only if several shards serve the session: its
        /// handles at peers, its receives and waits.
        home: u16,
        /// The client's user, by whom what other shards ask is bounded.
        user: u32,
    },
    /// One more segment of a client's arena, under the lowest segment number that is free.
    AddSegment {
        /// The session that the arena belongs to.
        session: SessionId,
        /// The segment that joins the arena.
        segment: SegmentId,
        /// The segment's length in bytes.
        length: u64,
    },
    /// A client lends a segment no longer. Requests that name it end with `BadBuffer`. It is
    /// released after its last use, and its number is free at once.
    TakeBack {
        /// The session that the arena belongs to.
        session: SessionId,
        /// The client's number of the segment.
        number: u32,
    },
    /// Some memory of a segment has vanished ([`piped_core::io::Io::is_torn`]): nobody is to read
    /// zeros from regions in it.
    SegmentTorn {
        /// The segment that somebody has cut.
        segment: SegmentId,
    },
    /// The client left or was evicted. Answered by [`Event::SessionDrained`].
    CloseSession {
        /// The session of the client that left or was evicted.
        session: SessionId,
    },
    /// A local handle is ready. The control thread chooses the id.
    InstallHandle {
        /// The session the handle belongs to.
        session: SessionId,
        /// The handle's id, which the control thread chose.
        handle: HandleId,
        /// What the handle stands for.
        target: Target,
    },
    /// Open something at a peer for a client. Answered by [`Event::RemoteOpened`] or
    /// [`Event::PeersFull`].
    OpenRemote {
        /// A number that comes back in the answer.
        ticket: u64,
        /// The session the handle will belong to.
        session: SessionId,
        /// The handle's id, if it succeeds.
        handle: HandleId,
        /// The peer that has the file, region or channel.
        peer: PeerId,
        /// What to open there, and for what access.
        open: OpenRequest,
    },
    /// Make one handle of those of a session that are replicas of a file, at most
    /// [`piped_core::limits::REPLICAS_MAX`]: what is read by it comes from those that have the
    /// length and may be read. They close with it.
    JoinHandles {
        /// The session that the handles belong to.
        session: SessionId,
        /// The new handle's id, which the control thread chose.
        handle: HandleId,
        /// The handles of the replicas.
        members: Vec<HandleId>,
        /// The length of the file in bytes.
        length: u64,
    },
    /// A handle of a session that its home has: what names it here is asked there.
    PointHandle {
        /// The session the handle belongs to.
        session: SessionId,
        /// The handle's id, which the control thread chose.
        handle: HandleId,
    },
    /// Close a handle of a client; running requests end first.
    CloseHandle {
        /// The session the handle belongs to.
        session: SessionId,
        /// The handle that is closed.
        handle: HandleId,
    },
    /// A client may not use a handle any more: it ends, and with it the requests by it, with
    /// `Gone`.
    EndHandle {
        /// The session the handle belongs to.
        session: SessionId,
        /// The handle that was taken back.
        handle: HandleId,
    },
    /// Something opened for a peer may not be used any more: it ends, and with it the peer's
    /// requests by it, with `Gone`.
    EndServed {
        /// The ticket of the [`Event::ServeOpen`] that asked for it.
        ticket: u64,
    },
    /// Lanes from and to a node close. Both sides may connect again.
    EndPeer {
        /// The node's name, without the mark of a shard.
        name: String,
    },
    /// The exporter of a region is gone: requests to it end with `Gone`. Answered by
    /// [`Event::RegionDrained`].
    RevokeRegion {
        /// The region whose exporter is gone.
        region: RegionId,
    },
    /// The answer to [`Event::ServeOpen`].
    ServeOpened {
        /// The ticket of the [`Event::ServeOpen`] that this answers.
        ticket: u64,
        /// What was opened, or why the open failed.
        result: Result<Target, Status>,
    },
    /// A peer of the configuration, new or with other settings.
    AddPeer {
        /// The peer's id on this node.
        peer: PeerId,
        /// The name of the peer in events and reports.
        name: String,
        /// What checksums of its connections cover; those that are up keep what was agreed on.
        checksum: Checksum,
        /// Whether it has a second address, and so a second way.
        second: bool,
        /// When there are connections to it.
        dialling: Dialling,
    },
    /// A peer that is not in the configuration any more: its lanes close, and what was asked of it
    /// or opened there ends with `PeerLost` or `Gone`.
    RemovePeer {
        /// The peer that was removed from the configuration.
        peer: PeerId,
    },
    /// A peer has another address, or is to prove itself anew: its lanes close and are connected
    /// anew.
    RedialPeer {
        /// The peer to connect to anew.
        peer: PeerId,
    },
    /// The answer to [`Event::Connect`].
    LaneConnected {
        /// The peer that was reached.
        peer: PeerId,
        /// The class of the connected lane.
        class: LaneClass,
        /// The connected socket that carries the lane.
        socket: SocketId,
        /// Whether the dialled address is of this machine. A peer there may still be a forwarder.
        near: bool,
        /// Keys from the lane's handshake; none for a plain lane.
        keys: Option<LaneKeys>,
    },
    /// The other answer to [`Event::Connect`].
    ConnectFailed {
        /// The peer that was not reached.
        peer: PeerId,
        /// The class of the lane that was asked for.
        class: LaneClass,
    },
    /// A peer connected to us. Its first frame names the peer and the class of the lane.
    LaneAccepted {
        /// The accepted socket that carries the lane.
        socket: SocketId,
        /// The names that the caller may give itself.
        caller: Caller,
        /// Keys from the lane's handshake; none for a plain lane.
        keys: Option<LaneKeys>,
    },
    /// Nodes that are not trusted as they were: the lanes that came from them close.
    ExpelPeers {
        /// Names of the nodes, without the mark of a shard.
        names: Vec<String>,
        /// Which lanes close that did not prove a node's name.
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
        /// The place whose costs change.
        place: DialPlace,
        /// The cost that the dial adds; within bounds ([`DialCost::check`]).
        cost: DialCost,
    },
    /// Clear dials: what they hold goes on at once.
    ClearDials {
        /// The place whose dial is cleared; none clears all dials.
        place: Option<DialPlace>,
    },
}

/// What a shard tells the control thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A segment of staging is in use no more, and was released.
    StagingDrained {
        /// The segment that the staging no longer has.
        segment: SegmentId,
    },
    /// A remote open ended.
    RemoteOpened {
        /// The ticket of the [`Command::OpenRemote`] that this answers.
        ticket: u64,
        /// The session the handle belongs to.
        session: SessionId,
        /// The handle; usable from now on if `result` is a length.
        handle: HandleId,
        /// The file's or region's length in bytes, or why not.
        result: Result<u64, Status>,
    },
    /// A remote open failed: as many peers are in use as may be, or this user leaves no more to
    /// others.
    PeersFull {
        /// The ticket of the [`Command::OpenRemote`] that this answers.
        ticket: u64,
        /// The peer that is not dialled.
        peer: PeerId,
        /// The user that the client is of.
        user: u32,
    },
    /// A connection got no lane, or an idle lane made room.
    LaneRefused {
        /// What stands behind the name of the lane that was refused or closed.
        standing: Standing,
        /// The reason that the place was refused or taken.
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
        /// What the peer wants to open, and for what access.
        open: OpenRequest,
    },
    /// Please connect a lane, not before `after`. Answered by `LaneConnected` or `ConnectFailed`.
    Connect {
        /// The peer to connect to.
        peer: PeerId,
        /// The class of the lane to connect.
        class: LaneClass,
        /// The earliest time to connect (back-off).
        after: Nanos,
    },
    /// A lane is usable.
    LaneUp {
        /// The name of the peer at the other end.
        peer: String,
        /// The class of the lane that is up.
        class: LaneClass,
        /// The lane's incarnation, by which older answers are told apart.
        epoch: u32,
    },
    /// A lane was lost or closed.
    LaneDown {
        /// The name of the peer at the other end.
        peer: String,
        /// The class of the lane that is down.
        class: LaneClass,
        /// Why the lane went down, for the log.
        reason: String,
    },
    /// What was opened for a peer is open no more: the peer closed it, or is gone. One for each
    /// [`Command::ServeOpened`] that was Ok.
    ServeClosed {
        /// The ticket of the [`Event::ServeOpen`] that asked for it.
        ticket: u64,
    },
    /// Nothing here uses the revoked region any more, neither the kernel nor a queued frame.
    RegionDrained {
        /// The region that was revoked.
        region: RegionId,
    },
    /// Nothing of the session is in use any more; its memory was released.
    SessionDrained {
        /// The session that was closed.
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
