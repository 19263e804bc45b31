//! A peer's request in execution.

use std::sync::Arc;

use piped_core::ids::SegmentId;
use piped_core::link::LaneClass;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_planner::planned::Planned;
use piped_report::tally::Operation;
use piped_wire::Asker;

use super::super::account::Admission;
use super::super::fair::{Flow, Party};
use super::super::keys::{CalledKey, LaneKey, LinkKey, ServedKey};
use super::super::landed::{Extents, Landed};
use super::super::pins::Pins;
use super::super::requests::file_of;
use super::super::watch::OBSERVED_BYTES;
use super::read::ReadState;
use super::reply::Reply;
use super::table::Table;
use super::write::{Sink, WriteState};
use crate::command::{RegionTarget, Target};

/// What the peer asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum ServeOp {
    /// `from`: bytes it has already.
    Read {
        from: u64,
    },
    Write {
        durable: bool,
        sink: Sink,
    },
    Sync,
    /// `changes`: whether it changes something here.
    Call {
        call: CalledKey,
        changes: bool,
    },
}

/// What a request asks for.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Ask {
    /// The peer's number of the request.
    pub(in crate::shard) transfer: u64,
    /// The peer's number of what it asks for.
    pub(in crate::shard) handle: u32,
    pub(in crate::shard) offset: u64,
    pub(in crate::shard) length: u64,
    /// For which of the peer's clients.
    pub(in crate::shard) asker: Asker,
    pub(in crate::shard) time_left_us: u32,
}

/// A peer's request in execution on this shard.
#[derive(Debug)]
pub(in crate::shard) struct Serve {
    pub(in crate::shard) lane: LaneKey,
    pub(in crate::shard) link: LinkKey,
    pub(in crate::shard) class_of_lane: LaneClass,
    pub(in crate::shard) admission: Admission,
    pub(in crate::shard) ask: Ask,
    pub(in crate::shard) op: ServeOp,
    pub(in crate::shard) target: Target,
    pub(in crate::shard) served: ServedKey,
    pub(in crate::shard) started: Nanos,
    pub(in crate::shard) deadline: Nanos,
    pub(in crate::shard) plan: Option<Arc<Planned>>,
    /// The pieces it is of, if it is no range.
    pub(in crate::shard) table: Option<Table>,
    /// How far a read is.
    pub(in crate::shard) read: ReadState,
    /// How far a write is.
    pub(in crate::shard) write: WriteState,
    /// Bytes from the request's start for which a fragment was started (read) or that arrived
    /// (write).
    pub(in crate::shard) next: u64,
    /// Bytes queued on the lane (read) or on the device (write).
    pub(in crate::shard) done: u64,
    /// The bytes that are in staging (read), or in place (write).
    pub(in crate::shard) landed: Landed,
    pub(in crate::shard) pins: Pins,
    /// How it ends, once that is decided. Nothing new is started after that.
    pub(in crate::shard) status: Option<Status>,
    /// What the peer is sent.
    pub(in crate::shard) reply: Reply,
}

impl Serve {
    #[expect(clippy::too_many_arguments, reason = "a constructor called once")]
    pub(in crate::shard) fn new(
        lane: LaneKey,
        link: LinkKey,
        class_of_lane: LaneClass,
        ask: Ask,
        op: ServeOp,
        (target, served): (Target, ServedKey),
        started: Nanos,
        deadline: Nanos,
    ) -> Self {
        let from = match op {
            ServeOp::Read { from } => from.min(ask.length),
            _ => 0,
        };
        Self {
            lane,
            link,
            class_of_lane,
            admission: Admission::Free,
            ask,
            op,
            target,
            served,
            started,
            deadline,
            plan: None,
            table: None,
            read: ReadState::new(from),
            write: WriteState::default(),
            next: from,
            done: from,
            landed: Landed::new(from),
            pins: Pins::default(),
            status: None,
            reply: Reply::default(),
        }
    }

    /// The turns it takes: those of the peer's client that asked.
    pub(in crate::shard) fn flow(&self) -> Flow {
        let Asker { class, client, weight } = self.ask.asker;
        Flow { party: Party::Peer(self.link, client), class, weight }
    }

    /// Bytes of a write are in place. With more holes before them than can be told apart they are
    /// not counted, should it fail.
    pub(in crate::shard) fn land(&mut self, beyond: &mut Extents, start: u64, bytes: u32) {
        self.done += u64::from(bytes);
        let _ = self.landed.insert(beyond, start, start + u64::from(bytes));
    }

    /// Bytes of it that have landed, or were passed over.
    pub(in crate::shard) fn landed_to(&self) -> u64 {
        self.next
    }

    /// Whether it writes bytes that come over its lane.
    pub(in crate::shard) fn writes(&self) -> bool {
        matches!(self.op, ServeOp::Write { .. })
    }

    /// Whether it changes something here, which must not be done after newer changes.
    pub(in crate::shard) fn changes(&self) -> bool {
        self.writes() || matches!(self.op, ServeOp::Call { changes: true, .. })
    }

    pub(in crate::shard) fn region(&self) -> Option<RegionTarget> {
        match self.target {
            Target::Region(region) => Some(region),
            Target::File(_) | Target::Channel(_) | Target::Directory(_) => None,
        }
    }

    /// Whether its bytes pass staging here.
    pub(in crate::shard) fn is_staged(&self) -> bool {
        self.table.is_some() || file_of(self.target).is_some()
    }

    /// Bytes that it has moved: not those that the peer had before it asked again.
    pub(in crate::shard) fn moved(&self) -> u64 {
        let had = match self.op {
            ServeOp::Read { from } => from.min(self.ask.length),
            ServeOp::Write { .. } | ServeOp::Sync | ServeOp::Call { .. } => 0,
        };
        self.done.saturating_sub(had)
    }

    /// The client memory it touches.
    pub(in crate::shard) fn region_segment(&self) -> Option<SegmentId> {
        self.region().map(|region| region.segment)
    }

    pub(in crate::shard) fn operation(&self) -> Operation {
        match (self.op, self.target) {
            (ServeOp::Read { .. }, Target::File(_)) => Operation::Read,
            (ServeOp::Read { .. }, Target::Region(_)) => Operation::Get,
            (ServeOp::Write { .. }, Target::File(_)) => Operation::Write,
            (ServeOp::Write { .. }, Target::Region(_)) => Operation::Put,
            (ServeOp::Sync, _) => Operation::Sync,
            (ServeOp::Call { .. }, _) => Operation::Call,
            (_, Target::Channel(_) | Target::Directory(_)) => Operation::Receive,
        }
    }

    pub(in crate::shard) fn route(&self) -> &'static str {
        match (self.op, self.target) {
            (ServeOp::Read { .. }, Target::File(_)) if self.read.is_striped() => {
                "page cache and local file -> staging -> lane -> peer"
            }
            (ServeOp::Read { .. }, Target::File(_)) => "local file -> staging -> lane -> peer",
            (ServeOp::Read { .. }, Target::Region(_)) => "local region -> lane -> peer",
            (ServeOp::Call { .. }, _) => "call here -> lane -> peer",
            (_, Target::File(_)) => "peer -> lane -> staging -> local file",
            (_, Target::Region(_)) => "peer -> lane -> local region",
            (_, Target::Channel(_)) => "peer -> lane -> local channel",
            (_, Target::Directory(_)) => "local directory -> lane -> peer",
        }
    }
}

// With what is seen of it; its staging and what has landed out of order are beside it.
const _: () = assert!(size_of::<Serve>() + OBSERVED_BYTES <= 1024);
