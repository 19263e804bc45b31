//! Memory that comes and goes: staging, and segments of clients.

use std::sync::Arc;

use piped_core::ids::SessionId;
use piped_engine::command::Command;
use piped_ring::Segment;

use super::Reactor;
use crate::shard::message::{Notice, Refusal};

/// Changes the size of staging. Surplus memory begins to leave before new memory comes, and the
/// missing amount follows from that.
pub(super) fn set_staging(
    reactor: &mut Reactor,
    bytes: u64,
    memory: Vec<Arc<Segment>>,
) -> Result<(), Refusal> {
    let mut missing = reactor.shard.staging_missing(bytes);
    reactor.engine(Command::SetStaging { bytes });
    for piece in memory {
        let length = piece.len();
        if length > missing {
            // Less is missing than when the memory was made.
            reactor.tell(Notice::Retired(piece));
            continue;
        }
        let segment = reactor.io.add_segment(piece)?;
        reactor.engine(Command::AddStaging { segment, length });
        missing -= length;
    }
    Ok(())
}

pub(super) fn add_segment(
    reactor: &mut Reactor,
    session: SessionId,
    memory: Arc<Segment>,
) -> Result<(), Refusal> {
    let length = memory.len();
    let segment = reactor.sessions.add_segment(session, memory, &mut reactor.io)?;
    reactor.engine(Command::AddSegment { session, segment, length });
    Ok(())
}

/// Removes a segment that its client lends no longer.
pub(super) fn take_back(reactor: &mut Reactor, session: SessionId, number: u32) {
    reactor.sessions.remove_segment(session, number);
    reactor.engine(Command::TakeBack { session, number });
}

/// Tells the engine of memory that has vanished. Returns whether there was any.
pub(super) fn tell_torn(reactor: &mut Reactor) -> bool {
    let mut some = false;
    while let Some(segment) = reactor.io.take_torn() {
        reactor.engine(Command::SegmentTorn { segment });
        some = true;
    }
    some
}
