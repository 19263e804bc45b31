//! What is left to do of a request, by where its other end is.

use super::super::arena::Memory;
use super::super::driver::Direction;
use super::super::keys::{CallKey, CopyKey, LaneKey, OnceKey, VectorKey};
use super::super::notifications::Wait;
use super::super::peers::Way;
use super::super::requests::Bodies;
use super::file::FileBody;
use super::memory::MemoryBody;
use super::message::{Outgoing, ReceiveBody, SendBody};
use crate::command::{FileTarget, RegionTarget, Target};

use piped_core::ids::{FileId, HandleId, PeerId, SegmentId};
use piped_core::io::Span;
use piped_core::request::Update;
use piped_core::units::Nanos;
use piped_report::tally::Route;

/// What is left to do, by where the other end is.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) enum Body {
    File(FileBody),
    Memory(MemoryBody),
    Remote(RemoteBody),
    Copy(CopyKey),
    /// A call of a file or directory of this node.
    Call(CallKey),
    Vector(VectorKey),
    /// A message to a channel of this shard.
    Send(SendBody),
    Receive(ReceiveBody),
    /// A request that waits for notifications.
    Wait(Wait),
    /// A change of a word of a region of this node.
    Update {
        region: RegionTarget,
        offset: u64,
        update: Update,
    },
    Sync {
        file: FileId,
        started: bool,
    },
    /// Nothing: it ends as soon as it is looked at.
    Settled,
}

/// What is asked of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum RemoteOp {
    Read,
    Write {
        durable: bool,
    },
    Sync,
    /// A message; once the peer has asked for it, a write.
    Send,
    /// What moves no bytes and is done once.
    Once,
    /// A call, whose answer comes as the bytes of a read do.
    Call,
}

impl RemoteOp {
    /// Whether its answer fills the client's memory.
    pub(in crate::shard) const fn fills(self) -> bool {
        matches!(self, Self::Read | Self::Call)
    }
}

/// What a notification behind a write says of the write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Vouched {
    Nothing,
    /// The notification was given up, and may have been done, or it was done and the write is a
    /// durable one: the bytes must not come again, and nobody will tell how the write ended.
    InDoubt,
    /// The notification was done, so the write has landed: its bytes must not come again.
    Landed,
}

/// Between a peer and memory.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct RemoteBody {
    pub(in crate::shard) peer: PeerId,
    pub(in crate::shard) handle: HandleId,
    pub(in crate::shard) op: RemoteOp,
    pub(in crate::shard) offset: u64,
    pub(in crate::shard) memory: Memory,
    /// The way that it goes, where the peer is reached on two.
    pub(in crate::shard) way: Option<Way>,
    /// The lane the request went out on; `None` while it waits for one.
    pub(in crate::shard) lane: Option<LaneKey>,
    pub(in crate::shard) sent_at: Nanos,
    /// Bytes of a read that its client has paid for.
    pub(in crate::shard) paid: u64,
    /// Bytes of a write queued on the lane.
    pub(in crate::shard) next: u64,
    /// Bytes of the write queued on the lane for which the peer has given credit back.
    pub(in crate::shard) taken: u64,
    /// Where the fragment at the peer's device ends that these belong to.
    pub(in crate::shard) fragment_end: u64,
    /// Frames of a write queued and not taken by the kernel.
    pub(in crate::shard) frames: u32,
    /// Nothing else was outstanding on the lane when it was sent: its first arrival times the wire.
    pub(in crate::shard) alone: bool,
    /// Bytes that a write had ready when it was sent.
    pub(in crate::shard) ready: u64,
    /// The peer's incarnation that took the first write a sync is to cover, of syncs and calls;
    /// none for other requests.
    pub(in crate::shard) unsynced: Option<u64>,
    /// What makes it a message.
    pub(in crate::shard) message: Option<Outgoing>,
    /// What is done once: after a write, or alone.
    pub(in crate::shard) once: Option<OnceKey>,
    /// What goes with the request: a call, or the table of the pieces that it reads or writes
    /// instead of a range.
    pub(in crate::shard) enclosed: Option<Span>,
    /// The call that it is.
    pub(in crate::shard) call: Option<CallKey>,
    /// What is known of a write before its own answer.
    pub(in crate::shard) vouched: Vouched,
}

impl RemoteBody {
    pub(in crate::shard) fn new(
        peer: PeerId,
        handle: HandleId,
        op: RemoteOp,
        offset: u64,
        memory: Memory,
    ) -> Self {
        Self {
            peer,
            handle,
            op,
            offset,
            memory,
            way: None,
            lane: None,
            paid: 0,
            sent_at: Nanos::ZERO,
            next: 0,
            taken: 0,
            fragment_end: 0,
            frames: 0,
            alone: false,
            ready: 0,
            unsynced: None,
            message: None,
            once: None,
            enclosed: None,
            call: None,
            vouched: Vouched::Nothing,
        }
    }
}

impl Body {
    /// The local regions it touches.
    pub(in crate::shard) fn regions(
        &self,
        bodies: &Bodies,
    ) -> impl Iterator<Item = RegionTarget> + use<> {
        let (memory, copy) = match self {
            Self::Memory(body) => (Some(body.region()), None),
            Self::Update { region, .. } => (Some(*region), None),
            Self::Copy(copy) => (None, Some(bodies[*copy].regions())),
            _ => (None, None),
        };
        let vector = match self {
            Self::Vector(vector) => bodies[*vector].region(),
            _ => None,
        };
        memory.into_iter().chain(copy.into_iter().flatten()).chain(vector)
    }

    /// Whether `is` holds for a segment of the client's own that it reads or fills: of a buffer, of
    /// a table of pieces, of a list of buffers.
    pub(in crate::shard) fn uses(
        &self,
        bodies: &Bodies,
        mut is: impl FnMut(SegmentId) -> bool,
    ) -> bool {
        match self {
            Self::File(body) => is(body.memory().segment),
            Self::Memory(body) => is(body.memory().segment),
            Self::Remote(body) => {
                is(body.memory.segment) || body.enclosed.is_some_and(|it| is(it.segment))
            }
            Self::Send(body) => is(body.memory.segment),
            Self::Receive(body) => is(body.memory.segment),
            Self::Call(call) => is(bodies[*call].memory().segment),
            Self::Vector(vector) => {
                let vector = &bodies[*vector];
                is(vector.table()) || vector.buffers().segments().any(is)
            }
            Self::Copy(_)
            | Self::Wait(_)
            | Self::Update { .. }
            | Self::Sync { .. }
            | Self::Settled => false,
        }
    }

    /// Where its bytes lie in the file or region that is not the client's; of a copy, in the
    /// source.
    pub(in crate::shard) fn offset(&self, bodies: &Bodies) -> u64 {
        match self {
            Self::File(body) => body.offset(),
            Self::Memory(body) => body.offset(),
            Self::Remote(body) => body.offset,
            Self::Copy(copy) => bodies[*copy].source().1,
            Self::Update { offset, .. } => *offset,
            Self::Vector(vector) => bodies[*vector].offset(),
            Self::Send(_)
            | Self::Receive(_)
            | Self::Wait(_)
            | Self::Call(_)
            | Self::Sync { .. }
            | Self::Settled => 0,
        }
    }

    /// Where the other end is.
    pub(in crate::shard) fn place(&self, bodies: &Bodies) -> Route {
        match self {
            Self::Remote(_) => Route::Remote,
            Self::Copy(copy) => bodies[*copy].place(),
            Self::Vector(vector) => bodies[*vector].route().0,
            Self::File(_)
            | Self::Memory(_)
            | Self::Send(_)
            | Self::Receive(_)
            | Self::Wait(_)
            | Self::Update { .. }
            | Self::Call(_)
            | Self::Sync { .. }
            | Self::Settled => Route::Local,
        }
    }

    /// A target's device and way, for `explain`.
    pub(in crate::shard) fn route(&self, bodies: &Bodies) -> &'static str {
        match self {
            Self::File(body) if body.direction() == Direction::Read => {
                "local file -> client memory"
            }
            Self::File(_) => "client memory -> local file",
            Self::Memory(body) if body.direction() == Direction::Read => {
                "local region -> client memory"
            }
            Self::Memory(_) => "client memory -> local region",
            Self::Remote(body) => match body.op {
                RemoteOp::Read => "peer -> lane -> client memory",
                RemoteOp::Write { .. } => "client memory -> lane -> peer",
                RemoteOp::Sync => "peer's file",
                RemoteOp::Send => "client memory -> lane -> channel of a peer",
                RemoteOp::Once => "lane -> peer",
                RemoteOp::Call => "call at the peer",
            },
            Self::Send(_) => "client memory -> local channel",
            Self::Receive(_) => "channel -> client memory",
            Self::Wait(_) => "notifications",
            Self::Update { .. } => "local region",
            Self::Copy(copy) => bodies[*copy].route(),
            Self::Vector(vector) => bodies[*vector].route().1,
            Self::Sync { .. } => "local file",
            Self::Call(_) => "call here",
            Self::Settled => "nothing to do",
        }
    }
}

/// Whether a target is a file, and which.
pub(in crate::shard) fn file_of(target: Target) -> Option<FileTarget> {
    match target {
        Target::File(file) => Some(file),
        Target::Region(_) | Target::Channel(_) | Target::Directory(_) => None,
    }
}
