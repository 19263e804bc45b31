//! What the control thread and a shard say to each other, and the mailbox between them.
//!
//! To the shard: a bounded channel and an eventfd that the shard's ring watches, so that a sleeping
//! shard hears and a spinning one pays nothing. A full channel makes the sender wait, which is the
//! back-pressure on clients that open and close without end.
//!
//! From the shard: an unbounded channel, because a shard must never wait for the control thread and
//! has nowhere to put what does not fit. What can be in it is bounded by what was asked: one answer
//! for each open, one drained for each session, one eviction for each session, one Connect for each
//! configured lane at a time with back-off between them; opens of peers are bounded by the engine for
//! each peer, and so is the number of peers; what is retired is bounded by the driver's
//! tables.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use piped_core::ids::{HandleId, PeerId, RegionId, SessionId};
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

/// To a shard.
#[derive(Debug)]
pub enum Message {
    /// A new client with its memory.
    OpenSession {
        /// Its name.
        session: SessionId,
        /// Its user.
        user: u32,
        /// The class of requests that name none.
        class: Class,
        /// Its share beside others of a class; at least 1.
        weight: u8,
        /// Its arena.
        segments: Vec<Arc<Segment>>,
        /// Its queues.
        queues: Vec<ServerQueue>,
        /// Told when the shard serves it.
        answer: Answer,
    },
    /// One more segment of an arena.
    AddSegment {
        /// Whose.
        session: SessionId,
        /// The memory.
        segment: Arc<Segment>,
        /// Told when it can be used.
        answer: Answer,
    },
    /// A handle is closed.
    CloseHandle {
        /// Whose.
        session: SessionId,
        /// The handle.
        handle: HandleId,
        /// Told when requests that name it are refused.
        answer: Answer,
    },
    /// One more queue of a session.
    AddQueue {
        /// Whose.
        session: SessionId,
        /// The queue.
        queue: Box<ServerQueue>,
        /// Told when it is served.
        answer: Answer,
    },
    /// A client left. Answered by [`Event::SessionDrained`].
    CloseSession {
        /// Whose.
        session: SessionId,
    },
    /// A handle of a client.
    Install {
        /// Whose.
        session: SessionId,
        /// The handle.
        handle: HandleId,
        /// What it stands for.
        source: Source,
        /// Told when it can be used.
        answer: Answer,
    },
    /// The answer to [`Event::ServeOpen`].
    Serve {
        /// From the event.
        ticket: u64,
        /// What was opened, or why not.
        result: Result<Source, Status>,
    },
    /// A region is withdrawn.
    Revoke {
        /// The region.
        region: RegionId,
    },
    /// The answer to [`Event::Connect`], if it went well.
    Connected {
        /// To which peer.
        peer: PeerId,
        /// Which lane.
        class: LaneClass,
        /// The socket.
        socket: OwnedFd,
        /// From its handshake.
        keys: Option<LaneKeys>,
    },
    /// A peer connected to us.
    Accepted {
        /// The socket.
        socket: OwnedFd,
        /// Who that can be.
        caller: Caller,
        /// From its handshake.
        keys: Option<LaneKeys>,
    },
    /// So much staging, from now on.
    SetStaging {
        /// In bytes.
        bytes: u64,
        /// Memory for what it lacks; what it does not lack comes back as [`Notice::Retired`].
        memory: Vec<Arc<Segment>>,
        /// Told when it has it.
        answer: Answer,
    },
    /// For the engine as it is.
    Engine(Command),
    /// Something somebody wants to know.
    Ask(Question),
    /// End all sessions and the thread, at this time at the latest.
    Stop {
        /// The latest time.
        until: Nanos,
    },
}

/// Where the outcome of a message goes.
pub type Answer = oneshot::Sender<Result<(), Refusal>>;

/// A shard cannot take something.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A table is full.
    #[error(transparent)]
    Full(#[from] UringError),
    /// The session (or the region's owner) is gone.
    #[error("the session is closed")]
    Gone,
}

impl Refusal {
    /// What a client is told.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Full(_) => Status::WouldBlock,
            Self::Gone => Status::Closed,
        }
    }
}

/// What the admin API, or a client's door, asks of a shard.
#[derive(Debug)]
pub enum Question {
    /// Whether it turns.
    Alive(oneshot::Sender<()>),
    /// The shard at a glance.
    Report(oneshot::Sender<ShardView>),
    /// Its stages.
    Stages(oneshot::Sender<Vec<StageReport>>),
    /// What is to be kept of them.
    Kept(oneshot::Sender<Vec<KnownStage>>),
    /// What it would plan for a transfer.
    Draft(DraftAsk, oneshot::Sender<Result<Box<Draft>, DraftFault>>),
    /// What a handle's path costs, if that is known.
    Costs {
        /// Whose.
        session: SessionId,
        /// The handle.
        handle: HandleId,
        /// To it; otherwise from it.
        write: bool,
        /// Told.
        answer: oneshot::Sender<Result<Option<PathCost>, Status>>,
    },
    /// Its dials.
    Dials(oneshot::Sender<Vec<DialReport>>),
    /// All there is for metrics.
    Observe(oneshot::Sender<ShardObservation>),
    /// What its sessions have under way and have used.
    Sessions(oneshot::Sender<Vec<ShardSession>>),
    /// What runs, or what ended last: how much, and a list.
    Transfers {
        /// What ended.
        ended: bool,
        /// When it was asked: one time for all shards, so that their lists have one order.
        now: Nanos,
        /// Told how many there are, and some of them.
        answer: oneshot::Sender<(u32, Vec<TransferReport>)>,
    },
    /// What is limited, and who uses it.
    Limits(oneshot::Sender<LimitView>),
    /// What was seen of messages, and how many more there were.
    Arrivals(oneshot::Sender<(Vec<ChannelArrivals>, u64)>),
    /// What it would lack of so many bytes of staging.
    StagingMissing(u64, oneshot::Sender<u64>),
    /// How far a recording is, and what it has once it is over.
    Trace(oneshot::Sender<(TraceState, Option<Arc<Recording>>)>),
    /// A transfer, or the last one.
    Explain(Option<u64>, oneshot::Sender<Option<Box<Explanation>>>),
}

/// A session as its shard has it.
#[derive(Debug, Clone, Copy)]
pub struct ShardSession {
    /// The engine's part.
    pub engine: SessionUse,
    /// The class of requests that name none.
    pub class: Class,
    /// Requests taken from its rings that have not ended.
    pub requests: u64,
}

/// A shard with its thread and its driver.
#[derive(Debug, Clone)]
pub struct ShardView {
    /// The engine's and the thread's part, as the admin API shows them.
    pub status: ShardStatus,
    /// Features of io_uring in use.
    pub tier: Vec<String>,
    /// What is missing, with its cause.
    pub degraded: Vec<String>,
    /// Clients evicted.
    pub evictions: Evictions,
}

/// A shard's use of what is limited.
#[derive(Debug, Clone)]
pub struct LimitView {
    /// Staging it has, in bytes.
    pub staging_bytes: u64,
    /// In all.
    pub limits: LimitUse,
    /// By session and by peer.
    pub parties: LimitParties,
}

/// A shard as `GET /v1/status` shows it: the engine's report, and what the thread and the driver
/// count, in one object.
#[derive(Debug, Clone, Serialize)]
pub struct ShardStatus {
    /// The engine's part.
    #[serde(flatten)]
    pub engine: ShardReport,
    /// The thread's part.
    pub reactor: ReactorReport,
}

/// What the thread and the driver count, since start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ReactorReport {
    /// The CPU it is pinned to.
    pub cpu: Option<u32>,
    /// Turns of the loop.
    pub turns: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Requests taken from rings.
    pub taken: u64,
    /// Clients evicted for breaking the rules of their queue.
    pub evictions: u64,
    /// Times a client's requests had to wait because it did not take the completions of others.
    pub stalls: u64,
    /// The longest it spins now before it sleeps, in nanoseconds.
    pub spin_nanoseconds: u64,
    /// System calls of the driver and the doorbells.
    pub syscalls: u64,
    /// Of these, waits in the kernel.
    pub waits: u64,
    /// Reads and writes with registered buffers.
    pub buffers_registered: u64,
    /// Reads and writes for which the kernel pinned pages.
    pub buffers_unregistered: u64,
    /// Gauge: files and sockets.
    pub files: u32,
    /// The most of them there are places for.
    pub files_limit: u32,
    /// Gauge: segments of clients and of staging.
    pub segments: u32,
    /// Gauge: bytes registered now.
    pub registered_bytes: u64,
    /// Heap allocations of the shard's thread; none without the feature `count-allocations`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocations: Option<u64>,
}

/// From a shard.
#[derive(Debug)]
pub enum Notice {
    /// Something the engine says.
    Event(Event),
    /// A client broke the rules of its queue; its session is being closed.
    Evicted {
        /// Whose.
        session: SessionId,
        /// What it did.
        reason: String,
    },
    /// Memory that nobody uses any more: unmapping it takes longer than a turn may.
    Retired(Arc<Segment>),
    /// The thread is over. An error is fatal for the daemon.
    Ended(Result<(), String>),
}

/// The control thread's end of a shard's mailbox.
#[derive(Debug, Clone)]
pub struct Mailbox {
    sender: mpsc::Sender<Message>,
    bell: Arc<OwnedFd>,
}

/// The same for a thread that does not keep the mailbox open.
#[derive(Debug, Clone)]
pub(super) struct FaintMailbox {
    sender: mpsc::WeakSender<Message>,
    bell: Arc<OwnedFd>,
}

impl FaintMailbox {
    /// Sends a message; blocks while the mailbox is full.
    ///
    /// # Errors
    /// [`ShardGone`], also if nobody else has the mailbox any more.
    pub(super) fn send(&self, message: Message) -> Result<(), ShardGone> {
        let sender = self.sender.upgrade().ok_or(ShardGone)?;
        sender.blocking_send(message).map_err(|_| ShardGone)?;
        let _ = rustix::io::write(self.bell.as_fd(), &1_u64.to_ne_bytes());
        Ok(())
    }
}

/// The shard's thread is over, or does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the shard does not answer; the daemon is stopping or broken")]
pub struct ShardGone;

impl Mailbox {
    /// A mailbox, and the shard's end of it.
    ///
    /// # Errors
    /// The process may not open more files.
    pub fn new() -> std::io::Result<(Self, Inbox)> {
        let (sender, receiver) = mpsc::channel(MAILBOX);
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let watched = bell.try_clone()?;
        Ok((Self { sender, bell: Arc::new(bell) }, Inbox { receiver, bell: watched }))
    }

    /// The same mailbox, not kept open.
    pub(super) fn faint(&self) -> FaintMailbox {
        FaintMailbox { sender: self.sender.downgrade(), bell: Arc::clone(&self.bell) }
    }

    /// Sends a message; waits while the mailbox is full.
    ///
    /// # Errors
    /// [`ShardGone`].
    pub async fn send(&self, message: Message) -> Result<(), ShardGone> {
        self.sender.send(message).await.map_err(|_| ShardGone)?;
        // A full counter is a bell that rings already.
        let _ = rustix::io::write(self.bell.as_fd(), &1_u64.to_ne_bytes());
        Ok(())
    }

    /// Sends a message and waits for its answer.
    ///
    /// # Errors
    /// [`ShardGone`], also if it does not come in time.
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

/// The shard's end of its mailbox.
#[derive(Debug)]
pub struct Inbox {
    /// Messages.
    pub receiver: mpsc::Receiver<Message>,
    /// Rung after each message.
    pub bell: OwnedFd,
}
