//! A client's request in execution, or a part of one.

use super::super::driver::Direction;
use super::super::keys::{TransferKey, kind};
use super::super::landed::Landed;
use super::super::pins::{Pin, Pins};
use super::super::requests::{Body, RemoteBody};
use super::attempts::Attempts;
use super::plans::Plans;

use piped_core::ids::{HandleId, SessionId};
use piped_core::request::{Class, Origin};
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::tally::Operation;

/// The one to be told when a transfer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Waiter {
    Client(Origin),
    /// A copy, for one half of one of its chunks.
    Copy {
        parent: TransferKey,
        chunk: u8,
    },
    /// A vectored request, for one of its parts.
    Vector {
        parent: TransferKey,
        part: u8,
    },
    /// A receive of another shard, by its number there, to whose buffer a message of this one
    /// comes. `again`: there is no such message any more.
    Shard {
        shard: u16,
        receive: u64,
        again: bool,
    },
    /// A client whose queue another shard serves, by the number of the request there.
    Queue {
        shard: u16,
        asked: u64,
    },
    /// The session is gone.
    Nobody,
}

impl Waiter {
    /// Whether it is a part of another one, be it one of another shard.
    pub(in crate::shard) fn is_part(self) -> bool {
        matches!(self, Self::Copy { .. } | Self::Vector { .. } | Self::Shard { .. })
    }

    /// Whether a client is told of it, by whatever shard.
    pub(in crate::shard) fn is_client(self) -> bool {
        matches!(self, Self::Client(_) | Self::Queue { .. })
    }
}

/// What a new transfer is made of.
#[derive(Debug)]
pub(in crate::shard) struct Start {
    pub(in crate::shard) waiter: Waiter,
    pub(in crate::shard) session: SessionId,
    pub(in crate::shard) handles: [Option<HandleId>; 2],
    pub(in crate::shard) kind: Operation,
    pub(in crate::shard) class: Class,
    pub(in crate::shard) deadline: Nanos,
    pub(in crate::shard) length: u64,
    pub(in crate::shard) body: Body,
}

/// A request, from its start to the last byte that may still touch its buffer.
#[derive(Debug)]
pub(in crate::shard) struct Transfer {
    pub(in crate::shard) id: u64,
    pub(in crate::shard) waiter: Waiter,
    pub(in crate::shard) session: SessionId,
    pub(in crate::shard) handles: [Option<HandleId>; 2],
    pub(in crate::shard) kind: Operation,
    pub(in crate::shard) class: Class,
    pub(in crate::shard) started: Nanos,
    pub(in crate::shard) deadline: Nanos,
    pub(in crate::shard) length: u64,
    pub(in crate::shard) landed: Landed,
    /// Bytes that count as moved besides those below its watermark: of a write to a peer, what the
    /// peer has given credit back for; of a copy or a vectored request, what its parts have in
    /// place.
    pub(super) moved: u64,
    /// What its client is told: of a receive, the tag of its message; of an update, what the word
    /// was; of a wait, what is left.
    pub(in crate::shard) value: u64,
    /// The transfer begins only when all before it in its order are over.
    pub(in crate::shard) fence: bool,
    /// Bytes of a write that are there to be written: the rest is still being read.
    pub(in crate::shard) available: u64,
    /// How it ends, once that is decided. Nothing new is started after that.
    pub(in crate::shard) status: Option<Status>,
    /// Its client was told, with the buffer held.
    pub(in crate::shard) told: bool,
    pub(in crate::shard) pins: Pins,
    /// Another one that it is a part of, or copies from.
    pub(in crate::shard) holds: Option<Pin<kind::Transfer>>,
    pub(in crate::shard) attempts: Attempts,
    pub(in crate::shard) plans: Plans,
    /// When nothing held it back any more for the first time; [`Nanos::MAX`] before.
    pub(in crate::shard) begun: Nanos,
    pub(in crate::shard) body: Body,
}

impl Transfer {
    /// A transfer that begins now.
    pub(in crate::shard) fn new(start: Start, id: u64, now: Nanos) -> Self {
        let Start { waiter, session, handles, kind, class, deadline, length, body } = start;
        Self {
            id,
            waiter,
            session,
            handles,
            kind,
            class,
            started: now,
            deadline,
            length,
            landed: Landed::new(0),
            moved: 0,
            value: 0,
            fence: false,
            available: u64::MAX,
            status: None,
            told: false,
            pins: Pins::default(),
            holds: None,
            attempts: Attempts::default(),
            plans: Plans::default(),
            begun: Nanos::MAX,
            body,
        }
    }

    /// Whether it is by this handle of its session.
    pub(in crate::shard) fn uses(&self, handle: HandleId) -> bool {
        self.handles.contains(&Some(handle))
    }

    /// What it does with a peer, if it does something.
    pub(in crate::shard) fn remote(&self) -> Option<&RemoteBody> {
        if let Body::Remote(body) = &self.body { Some(body) } else { None }
    }

    pub(in crate::shard) fn remote_mut(&mut self) -> Option<&mut RemoteBody> {
        if let Body::Remote(body) = &mut self.body { Some(body) } else { None }
    }

    /// Whether it sends or receives a message.
    pub(in crate::shard) fn is_message(&self) -> bool {
        matches!(self.kind, Operation::Send | Operation::Receive)
    }

    /// Whether it waits for others and counts so.
    pub(in crate::shard) fn waits_for_others(&self) -> bool {
        matches!(self.kind, Operation::Receive | Operation::Wait) && !self.waiter.is_part()
    }

    /// Bytes that the transfer has moved.
    pub(in crate::shard) fn moved(&self) -> u64 {
        self.moved.max(self.landed.watermark()).min(self.length)
    }

    /// Whether it fills its memory.
    pub(in crate::shard) fn reads(&self) -> bool {
        match &self.body {
            Body::File(body) => body.direction() == Direction::Read,
            Body::Memory(body) => body.direction() == Direction::Read,
            Body::Remote(body) => body.op.fills(),
            Body::Vector(_) => matches!(self.kind, Operation::Get | Operation::Read),
            Body::Receive(_) | Body::Call(_) => true,
            Body::Send(_)
            | Body::Copy(_)
            | Body::Wait(_)
            | Body::Update { .. }
            | Body::Sync { .. }
            | Body::Settled => false,
        }
    }
}

// What a request takes while it runs; the rest of it is in [`Bodies`], or beside the slabs for
// those who look there.
const _: () = assert!(size_of::<Transfer>() <= 512);
