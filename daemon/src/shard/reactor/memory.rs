//! Memory that comes and goes: staging, and segments of clients.

use std::sync::Arc;

use piped_core::ids::SessionId;
use piped_engine::command::Command;
use piped_ring::Segment;

use super::Reactor;
use crate::shard::message::{Notice, Refusal};

impl Reactor {
    /// Changes the size of staging. Surplus memory begins to leave before new memory comes, and the
    /// missing amount follows from that.
    pub(super) fn set_staging(
        &mut self,
        bytes: u64,
        memory: Vec<Arc<Segment>>,
    ) -> Result<(), Refusal> {
        let mut missing = self.shard.staging_missing(bytes);
        self.engine(Command::SetStaging { bytes });
        for piece in memory {
            let length = piece.len();
            if length > missing {
                // Less is missing than when the memory was made.
                self.tell(Notice::Retired(piece));
                continue;
            }
            let segment = self.io.add_segment(piece)?;
            self.engine(Command::AddStaging { segment, length });
            missing -= length;
        }
        Ok(())
    }

    pub(super) fn add_segment(
        &mut self,
        session: SessionId,
        memory: Arc<Segment>,
    ) -> Result<(), Refusal> {
        let length = memory.len();
        let segment = self.sessions.add_segment(session, memory, &mut self.io)?;
        self.engine(Command::AddSegment { session, segment, length });
        Ok(())
    }

    /// Removes a segment that its client lends no longer.
    pub(super) fn take_back(&mut self, session: SessionId, number: u32) {
        self.sessions.remove_segment(session, number);
        self.engine(Command::TakeBack { session, number });
    }

    /// Tells the engine of memory that has vanished. Returns whether there was any.
    pub(super) fn tell_torn(&mut self) -> bool {
        let mut some = false;
        while let Some(segment) = self.io.take_torn() {
            self.engine(Command::SegmentTorn { segment });
            some = true;
        }
        some
    }
}
