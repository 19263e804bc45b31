//! Operations in flight, and the events that will change something.

use piped_core::io::{Op, Token};
use piped_core::units::Nanos;

use super::disk::Flush;
use super::memory::OpKey;
use super::net::NodeId;

#[derive(Debug)]
pub(super) enum KernelEvent {
    /// A thread that was ahead of the world's time starts an operation that it pushed.
    Begin { op: OpKey },
    /// An operation ends with the result it carries.
    Finish { op: OpKey },
    /// The kernel lets go of the memory that a send lent.
    LetGo { op: OpKey },
    /// A cancel reaches a stream operation.
    CancelStream { op: OpKey },
    /// Bytes come out of a link.
    Deliver { connection: usize, to: usize, bytes: Vec<u8> },
    /// The other end closed in an orderly way.
    Ended { connection: usize, at_side: usize },
    /// A reset is noticed.
    Broken { connection: usize, at_side: usize },
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) node: NodeId,
    pub(super) token: Token,
    pub(super) op: Op,
    /// When the device starts the operation, which can be revoked until then.
    pub(super) start: Nanos,
    /// The result, once it is certain and only its time is to come.
    pub(super) result: Option<i32>,
    /// Stream bytes done so far.
    pub(super) done_bytes: usize,
    pub(super) carry: Carry,
}

/// Data that an operation took along when it began.
#[derive(Debug)]
pub(super) enum Carry {
    Nothing,
    /// Content of the file or memory at that time.
    Bytes(Vec<u8>),
    Flush(Flush),
    /// The changes of names that there were then.
    Names(u64),
    /// A call whose effect will not be made stable, as it should.
    Unsynced(Vec<u8>),
}
