//! What leaves here for the peer that asked: the frames of its read, and the end of its request.

use piped_core::limits;
use piped_core::units::Nanos;

/// How far the reply to a peer's request is.
#[derive(Debug, Default)]
pub(in crate::shard) struct Reply {
    /// Frames of a read that are queued on its lane.
    queued: u32,
    /// Frames of a read that the kernel has taken and not let go of.
    lent: u32,
    /// The request is over and the peer has not read all of its frames.
    unread: Option<Unread>,
    /// The peer was told how it ended (or nobody is left to tell).
    given: bool,
}

/// What a peer has read of a request that is over.
#[derive(Debug, Clone, Copy)]
struct Unread {
    /// Frames its lane had sent when that was last looked at.
    frames_sent: u64,
    /// When all of its own must have left.
    until: Nanos,
}

impl Reply {
    /// Whether the peer was told how it ended.
    pub(in crate::shard) fn is_given(&self) -> bool {
        self.given
    }

    /// The peer is told how it ended, or nobody is left to tell.
    pub(in crate::shard) fn give(&mut self) {
        self.given = true;
    }

    /// Whether frames are queued, or the kernel has some.
    pub(in crate::shard) fn has_frames(&self) -> bool {
        self.queued + self.lent > 0
    }

    /// Whether as many frames are queued as one request may have.
    pub(in crate::shard) fn is_full(&self) -> bool {
        self.queued >= limits::FRAMES_PER_OWNER
    }

    /// A frame is queued on the lane.
    pub(in crate::shard) fn queue_frame(&mut self) {
        self.queued += 1;
    }

    /// The kernel has the oldest frame that was queued, or never will.
    pub(in crate::shard) fn lend_frame(&mut self) {
        self.queued -= 1;
        self.lent += 1;
    }

    /// The kernel is done with a frame.
    pub(in crate::shard) fn free_frame(&mut self) {
        self.lent -= 1;
    }

    /// Whether the peer's time to read what is left runs.
    pub(in crate::shard) fn is_watched(&self) -> bool {
        self.unread.is_some()
    }

    /// Looks whether the peer reads what is left. `frames_sent`: of the lane. Returns the time of
    /// the next look; `None`: the peer reads nothing, or too slowly.
    pub(in crate::shard) fn watch(&mut self, frames_sent: u64, now: Nanos) -> Option<Nanos> {
        let until = match self.unread {
            None => now + limits::UNREAD_TIME_MAX,
            Some(unread) if unread.frames_sent < frames_sent && now < unread.until => unread.until,
            Some(_) => return None,
        };
        self.unread = Some(Unread { frames_sent, until });
        Some(until.min(now + limits::UNREAD_TIME))
    }
}
