//! A lane's sends: whose frames come next, how each goes, and when the memory of its frames is
//! free.
//!
//! A send that copies is over when it ends. One that lends ends twice, and what comes between is a
//! [`Notice`], which owns the frames' memory: it is counted, it keeps the lane from being
//! forgotten, and nothing but the kernel's second word ends it.

use piped_core::io::Span;
use piped_core::limits;
use piped_core::units::Nanos;
use piped_wire::{BATCH_BYTES_MAX, Lent, Message, Owner};

use super::super::fair::Flow;
use super::super::keys::{LaneKey, NoticeKey, Subject};
use super::lane::Lane;

/// How a send under way goes.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::shard) struct Sending {
    /// The notice that ends the lending; none unless the send lends its memory.
    pub(in crate::shard) notice: Option<NoticeKey>,
    /// So long the thread was at it, if that was timed.
    pub(in crate::shard) cost: Option<Nanos>,
    pub(in crate::shard) bytes: u64,
}

/// Memory that is lent to the kernel.
#[derive(Debug)]
pub(in crate::shard) struct Notice {
    pub(in crate::shard) lane: LaneKey,
    pub(in crate::shard) lent: Lent,
    pub(in crate::shard) bytes: u64,
    pub(in crate::shard) since: Nanos,
    /// Nothing was taken: it says nothing of the path.
    pub(in crate::shard) void: bool,
}

impl Lane {
    /// Whether a frame of data finds room; the rest of the queue is for answers.
    pub(in crate::shard) fn has_room_for_data(&self) -> bool {
        self.sender.room() > limits::LANE_QUEUE - limits::LANE_QUEUE_DATA
    }

    /// Whether frames wait or are being sent.
    pub(in crate::shard) fn has_frames(&self) -> bool {
        !self.sender.is_empty() || !self.waiting.is_empty()
    }

    /// Whether there is more to send at once: frames, or requests whose next frames come in this
    /// turn.
    pub(in crate::shard) fn has_more(&self) -> bool {
        self.has_frames() || !self.serves().is_empty()
    }

    /// Queues a frame of data, which leaves when its flow's turn comes. `false`: there is no room
    /// for it.
    pub(in crate::shard) fn push_data(
        &mut self,
        flow: Flow,
        message: Message,
        payload: Option<Span>,
        owner: Option<Subject>,
    ) -> bool {
        // Each owner has few: what is refused here is more than all requests of a lane may have
        // together.
        let room = self.waiting.len() < limits::LANE_WAITING_MAX;
        if room {
            self.waiting.push(flow, (message, payload, owner));
        }
        room
    }

    /// Gives the sender a batch; a short one where several share the lane, so that their turns are
    /// short.
    pub(in crate::shard) fn feed(&mut self) {
        let most =
            if self.waiting.is_shared() { limits::SHARED_BATCH_BYTES } else { BATCH_BYTES_MAX };
        while self.sender.queued_bytes() < most
            && self.has_room_for_data()
            && let Some((message, payload, owner)) = self.waiting.pop()
        {
            let owner = owner.map_or(Owner::NONE, Subject::tag);
            let pushed = self.sender.push(self.epoch, message, payload, owner);
            debug_assert!(pushed.is_ok(), "there was room");
        }
    }

    /// The owner of the next frame that the kernel has taken; it may still read it.
    pub(in crate::shard) fn poll_taken(&mut self) -> Option<Subject> {
        Subject::of(self.sender.poll_taken()?)
    }

    /// Takes back what an owner has queued and the sender has not got, in bytes of each frame.
    pub(in crate::shard) fn take_back(
        &mut self,
        owner: Subject,
    ) -> impl Iterator<Item = u32> + use<> {
        self.waiting.take_back(owner)
    }
}
