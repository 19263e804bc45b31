//! Messages between the control thread and a shard, and the mailbox between them.
//!
//! To the shard: a bounded channel, and an eventfd that the shard's ring watches. So a sleeping
//! shard wakes up, and a spinning one pays nothing. A full channel makes the sender wait; that is
//! the back-pressure on clients that open and close without end.
//!
//! From the shard: an unbounded channel, because a shard must never wait for the control thread and
//! has no place for the rest. Its content is bounded by the requests: one answer for each open, one
//! drained and one eviction for each session, one Connect at a time for each configured lane, with
//! back-off between them. The engine bounds the opens of each peer, and the number of peers; the
//! driver's tables bound retired memory.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use piped_core::ids::{HandleId, PeerId, SessionId};
use piped_core::link::LaneClass;
use piped_core::request::Class;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_engine::command::{Caller, Command, Event};
use piped_engine::shard::Recording;
use piped_planner::cost::PathCost;
use piped_planner::draft::{DraftAsk, DraftFault};
use piped_planner::kept::KnownStage;
use piped_planner::plan::Draft;
use piped_report::dial::DialReport;
use piped_report::shard::{
    ChannelArrivals, Explanation, LimitParties, LimitUse, SessionUse, ShardReport, StageReport,
    TransferReport,
};
use piped_report::trace::TraceState;
use piped_ring::{Segment, ServerQueue};
use piped_wire::LaneKeys;
use rustix::event::EventfdFlags;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use crate::client::reasons::Evictions;
use crate::io::UringError;
use crate::limits::{MAILBOX, SHARD_TIMEOUT};
pub use crate::metrics::ShardObservation;
use crate::open::Source;

/// A message to a shard.
#[derive(Debug)]
pub enum Message {
    /// Adds a new client with its memory.
    OpenSession {
        /// Number of the session.
        session: SessionId,
        /// User of the client.
        user: u32,
        /// Class of requests that name none.
        class: Class,
        /// Share beside other sessions of a class; at least 1.
        weight: u8,
        /// Shard that has what of the session has one place only.
        home: usize,
        /// Segments of its arena.
        segments: Vec<Arc<Segment>>,
        /// Rings of its queues.
        queues: Vec<ServerQueue>,
        /// Told when the shard serves it.
        answer: Answer,
    },
    /// Adds a segment to an arena.
    AddSegment {
        /// Session with the arena.
        session: SessionId,
        /// Memory of the segment.
        segment: Arc<Segment>,
        /// Told when it can be used.
        answer: Answer,
    },
    /// Removes a segment that a client lends no longer.
    TakeBack {
        /// Session with the segment.
        session: SessionId,
        /// Number of the segment.
        number: u32,
        /// Told when requests that name it are refused.
        answer: Answer,
    },
    /// Makes one handle of those of the replicas of a file.
    Join {
        /// Session with the handles.
        session: SessionId,
        /// Number of the new handle.
        handle: HandleId,
        /// Handles of the replicas.
        members: Vec<HandleId>,
        /// Length of each of them in bytes.
        length: u64,
        /// Told when it can be used.
        answer: Answer,
    },
    /// Adds a handle of a client that the session's home has.
    Point {
        /// Session with the handle.
        session: SessionId,
        /// Number of the handle.
        handle: HandleId,
        /// Told when it can be used.
        answer: Answer,
    },
    /// Closes a handle of a client.
    CloseHandle {
        /// Session with the handle.
        session: SessionId,
        /// Number of the handle.
        handle: HandleId,
        /// Told when requests that name it are refused.
        answer: Answer,
    },
    /// Adds a queue to a session.
    AddQueue {
        /// Session with the queue.
        session: SessionId,
        /// Ring of the queue.
        queue: Box<ServerQueue>,
        /// Told when it is served.
        answer: Answer,
    },
    /// Closes a session, because its client left. Answered by [`Event::SessionDrained`].
    CloseSession {
        /// Number of the session.
        session: SessionId,
    },
    /// Installs a handle of a client.
    Install {
        /// Session with the handle.
        session: SessionId,
        /// Number of the handle.
        handle: HandleId,
        /// Thing that the handle stands for.
        source: Source,
        /// Told when it can be used.
        answer: Answer,
    },
    /// Answers an event [`Event::ServeOpen`].
    Serve {
        /// Ticket of the event.
        ticket: u64,
        /// Opened thing, or the reason why not.
        result: Result<Source, Status>,
    },
    /// The answer to [`Event::Connect`], if it went well.
    Connected {
        /// Peer that was dialled.
        peer: PeerId,
        /// Class of the lane.
        class: LaneClass,
        /// Socket of the connection.
        socket: OwnedFd,
        /// Whether the dialled address is of this machine.
        near: bool,
        /// Keys from its handshake.
        keys: Option<LaneKeys>,
    },
    /// Adds a connection that a peer made.
    Accepted {
        /// Socket of the connection.
        socket: OwnedFd,
        /// Peers that the caller can be.
        caller: Caller,
        /// Keys from its handshake.
        keys: Option<LaneKeys>,
    },
    /// Sets the size of staging.
    SetStaging {
        /// Size of staging in bytes.
        bytes: u64,
        /// Memory for the missing part; memory that is not missing comes back as
        /// [`Notice::Retired`].
        memory: Vec<Arc<Segment>>,
        /// Told when staging has that size.
        answer: Answer,
    },
    /// Passes a command to the engine.
    Engine(Command),
    /// Asks the shard a question.
    Ask(Question),
    /// Ends all sessions and the thread, at this time at the latest.
    Stop {
        /// Latest time of the end.
        until: Nanos,
    },
}

/// Receiver of a message's outcome.
pub type Answer = oneshot::Sender<Result<(), Refusal>>;

/// Reason why a shard does not take something.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A table of the driver is full.
    #[error(transparent)]
    Full(#[from] UringError),
    /// The session (or the region's owner) is gone.
    #[error("the session is closed")]
    Gone,
}

impl Refusal {
    /// Status for the client.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Full(_) => Status::WouldBlock,
            Self::Gone => Status::Closed,
        }
    }
}

/// A question of the admin API, or of a client's task, to a shard.
#[derive(Debug)]
pub enum Question {
    /// Whether the shard's loop runs.
    Alive(oneshot::Sender<()>),
    /// The shard at a glance.
    Report(oneshot::Sender<ShardView>),
    /// Reports of all stages.
    Stages(oneshot::Sender<Vec<StageReport>>),
    /// Costs of stages to be persisted.
    Kept(oneshot::Sender<Vec<KnownStage>>),
    /// Plan for a transfer that nobody has asked for.
    Draft(DraftAsk, oneshot::Sender<Result<Box<Draft>, DraftFault>>),
    /// Costs of a handle's path, if they are known.
    Costs {
        /// Session with the handle.
        session: SessionId,
        /// Number of the handle.
        handle: HandleId,
        /// Costs of writing; otherwise of reading.
        write: bool,
        /// Receiver of the costs.
        answer: oneshot::Sender<Result<Option<PathCost>, Status>>,
    },
    /// Dials that are set.
    Dials(oneshot::Sender<Vec<DialReport>>),
    /// All values for metrics.
    Observe(oneshot::Sender<ShardObservation>),
    /// Sessions with their present requests and totals.
    Sessions(oneshot::Sender<Vec<ShardSession>>),
    /// Transfers that run, or that ended last: their number, and a list.
    Transfers {
        /// Whether to list ended ones.
        ended: bool,
        /// Time of the question, equal for all shards, so that their lists have one order.
        now: Nanos,
        /// Receiver of the number, and of some transfers.
        answer: oneshot::Sender<(u32, Vec<TransferReport>)>,
    },
    /// Limits and their use by each party.
    Limits(oneshot::Sender<LimitView>),
    /// Messages seen on channels, and the number of those that were not remembered.
    Arrivals(oneshot::Sender<(Vec<ChannelArrivals>, u64)>),
    /// Staging that the shard would lack for this many bytes.
    StagingMissing(u64, oneshot::Sender<u64>),
    /// State of a recording, and its content once it is over.
    Trace(oneshot::Sender<(TraceState, Option<Arc<Recording>>)>),
    /// Explanation of a transfer, or of the last one.
    Explain(Option<u64>, oneshot::Sender<Option<Box<Explanation>>>),
}

/// A session as its shard has it.
#[derive(Debug, Clone, Copy)]
pub struct ShardSession {
    /// Counts of the engine.
    pub engine: SessionUse,
    /// Class of requests that name none.
    pub class: Class,
    /// Requests taken from its rings that have not ended.
    pub requests: u64,
}

/// A shard with its thread and its driver.
#[derive(Debug, Clone)]
pub struct ShardView {
    /// Reports of engine and thread, as the admin API shows them.
    pub status: ShardStatus,
    /// Features of io_uring in use.
    pub tier: Vec<String>,
    /// Missing features, each with its cause.
    pub degraded: Vec<String>,
    /// Evictions of its clients.
    pub evictions: Evictions,
}

/// Use of limits on one shard.
#[derive(Debug, Clone)]
pub struct LimitView {
    /// Staging of the shard, in bytes.
    pub staging_bytes: u64,
    /// Use by all parties together.
    pub limits: LimitUse,
    /// Use by each session and each peer.
    pub parties: LimitParties,
}

/// Status of a shard as in `GET /v1/status`: the engine's report and the counts of thread and
/// driver, in one object.
#[derive(Debug, Clone, Serialize)]
pub struct ShardStatus {
    /// Report of the engine.
    #[serde(flatten)]
    pub engine: ShardReport,
    /// Report of the thread.
    pub reactor: ReactorReport,
}

/// Counts of thread and driver, since start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ReactorReport {
    /// CPU that the thread is pinned to.
    pub cpu: Option<u32>,
    /// NUMA node of that CPU, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Turns of the loop.
    pub turns: u64,
    /// Number of times that it slept.
    pub sleeps: u64,
    /// Requests taken from rings.
    pub taken: u64,
    /// Clients evicted for breaking the rules of their queue.
    pub evictions: u64,
    /// Times that a client's requests had to wait because it did not take its completions.
    pub stalls: u64,
    /// Longest spin at present before it sleeps, in nanoseconds.
    pub spin_nanoseconds: u64,
    /// System calls of the driver and the doorbells.
    pub syscalls: u64,
    /// System calls that were waits in the kernel.
    pub waits: u64,
    /// Reads and writes with registered buffers.
    pub buffers_registered: u64,
    /// Reads and writes for which the kernel pinned pages.
    pub buffers_unregistered: u64,
    /// Gauge: files and sockets.
    pub files: u32,
    /// Number of places for files and sockets.
    pub files_limit: u32,
    /// Gauge: segments of clients and of staging.
    pub segments: u32,
    /// Gauge: bytes registered now.
    pub registered_bytes: u64,
    /// Heap allocations of the shard's thread; none without the feature `count-allocations`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocations: Option<u64>,
}

/// A message from a shard.
#[derive(Debug)]
pub enum Notice {
    /// Event of the engine.
    Event(Event),
    /// A client broke the rules of its queue; its session is being closed.
    Evicted {
        /// Session of that client.
        session: SessionId,
        /// Rule that it broke, in words.
        reason: String,
    },
    /// Memory without users: unmapping it takes longer than a turn may.
    Retired(Arc<Segment>),
    /// The thread has ended. An error is fatal for the daemon.
    Ended(Result<(), String>),
}

/// The control thread's end of a shard's mailbox.
#[derive(Debug, Clone)]
pub struct Mailbox {
    sender: mpsc::Sender<Message>,
    bell: Arc<OwnedFd>,
}

/// A mailbox for a thread that does not keep it open.
#[derive(Debug, Clone)]
pub(super) struct FaintMailbox {
    sender: mpsc::WeakSender<Message>,
    bell: Arc<OwnedFd>,
}

impl FaintMailbox {
    /// Sends a message; blocks while the mailbox is full.
    ///
    /// # Errors
    /// [`ShardGone`], also if no other owner of the mailbox is left.
    pub(super) fn send(&self, message: Message) -> Result<(), ShardGone> {
        let sender = self.sender.upgrade().ok_or(ShardGone)?;
        sender.blocking_send(message).map_err(|_| ShardGone)?;
        let _ = rustix::io::write(self.bell.as_fd(), &1_u64.to_ne_bytes());
        Ok(())
    }
}

/// The shard's thread has ended, or does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the shard does not answer; the daemon is stopping or broken")]
pub struct ShardGone;

impl Mailbox {
    /// Makes a mailbox, and the shard's end of it.
    ///
    /// # Errors
    /// The process may not open more files.
    pub fn new() -> std::io::Result<(Self, Inbox)> {
        let (sender, receiver) = mpsc::channel(MAILBOX);
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watched = bell.try_clone()?;
        Ok((Self { sender, bell: Arc::new(bell) }, Inbox { receiver, bell: watched }))
    }

    /// Returns the same mailbox, not kept open.
    pub(super) fn faint(&self) -> FaintMailbox {
        FaintMailbox { sender: self.sender.downgrade(), bell: Arc::clone(&self.bell) }
    }

    /// Sends a message; waits while the mailbox is full.
    ///
    /// # Errors
    /// [`ShardGone`].
    pub async fn send(&self, message: Message) -> Result<(), ShardGone> {
        self.room().await?.send(message);
        Ok(())
    }

    /// Waits for room for one message.
    ///
    /// # Errors
    /// [`ShardGone`].
    pub async fn room(&self) -> Result<Room<'_>, ShardGone> {
        let permit = self.sender.reserve().await.map_err(|_| ShardGone)?;
        Ok(Room { permit, bell: &self.bell })
    }

    /// Sends a message and waits for its answer.
    ///
    /// # Errors
    /// [`ShardGone`], also if the answer does not come in time.
    pub async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<T>) -> Message,
    ) -> Result<T, ShardGone> {
        let (answer, answered) = oneshot::channel();
        let exchange = async {
            self.send(message(answer)).await?;
            answered.await.map_err(|_| ShardGone)
        };
        tokio::time::timeout(SHARD_TIMEOUT, exchange).await.map_err(|_| ShardGone)?
    }
}

/// Room for one message.
#[derive(Debug)]
pub struct Room<'a> {
    permit: mpsc::Permit<'a, Message>,
    bell: &'a OwnedFd,
}

impl Room<'_> {
    /// Sends a message, which takes the room.
    pub fn send(self, message: Message) {
        self.permit.send(message);
        // A full counter is a bell that rings already.
        let _ = rustix::io::write(self.bell.as_fd(), &1_u64.to_ne_bytes());
    }
}

/// The shard's end of its mailbox.
#[derive(Debug)]
pub struct Inbox {
    /// Receiver of the messages.
    pub receiver: mpsc::Receiver<Message>,
    /// Bell that rings after each message.
    pub bell: OwnedFd,
}
