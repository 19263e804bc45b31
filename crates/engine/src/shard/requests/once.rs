//! What of a request a peer does once, however often it is asked: its number, what was asked last,
//! and what is known of the answer.

use piped_core::link::LaneClass;
use piped_core::request::Update;
use piped_core::status::Status;
use piped_wire::{After, LastPart};

/// Something that is asked of a peer, and done once.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Once {
    what: What,
    /// Its number among those of its handle, and the peer's incarnation that was told it first.
    number: Option<(u32, u64)>,
    state: State,
    /// What was asked last, and on which lane it was; there it is asked again, because a lane that
    /// is lost has nothing under way any more when the next one of its class is up, and others tell
    /// nothing of it.
    last: Option<(After, LaneClass)>,
    /// How the write before it ended at the peer, until it has ended itself.
    write: Option<Ending>,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum What {
    Word { offset: u64, update: Update },
    Notify { id: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The frame is not under way at the peer.
    Idle,
    Sent,
    /// The frame has to wait until everything before it is over.
    Late,
    Done,
    Failed(Status),
}

/// What an answer means for the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) enum Answer {
    /// The peer was asked whether it was done, and this is what it says.
    Known,
    /// The frame has to wait for what is before it, and is asked again.
    Late,
    /// The work is done, or has failed.
    Over,
}

/// The end of a request at the peer, as it came.
#[derive(Debug, Clone, Copy)]
pub(in crate::shard) struct Ending {
    /// Where the bytes ended, and how.
    pub(in crate::shard) last: LastPart,
    /// What the peer took, of a write from its last piece on, in microseconds.
    pub(in crate::shard) service_us: u32,
}

impl Once {
    /// Something that nobody has been asked for.
    pub(in crate::shard) const fn new(what: What) -> Self {
        Self { what, number: None, state: State::Idle, last: None, write: None }
    }

    /// What is to be done.
    pub(in crate::shard) fn what(&self) -> What {
        self.what
    }

    /// The number that it has, and the peer's incarnation that was told it first.
    pub(in crate::shard) fn number(&self) -> Option<(u32, u64)> {
        self.number
    }

    /// The class of the lane on which it was asked last.
    pub(in crate::shard) fn last_class(&self) -> Option<LaneClass> {
        self.last.map(|(_, class)| class)
    }

    /// Whether the frame is not under way at the peer, and nothing is known of it.
    pub(in crate::shard) fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Whether an answer will come.
    pub(in crate::shard) fn is_sent(&self) -> bool {
        self.state == State::Sent
    }

    /// Whether it is a notification that was done.
    pub(in crate::shard) fn has_notified(&self) -> bool {
        self.state == State::Done && matches!(self.what, What::Notify { .. })
    }

    /// Whether it is a notification that the peer may have done.
    pub(in crate::shard) fn may_have_notified(&self) -> bool {
        let open = matches!(self.state, State::Idle | State::Sent | State::Done);
        matches!(self.what, What::Notify { .. }) && self.number.is_some() && open
    }

    /// How it ended; none if it has not.
    pub(in crate::shard) fn outcome(&self) -> Option<Status> {
        match self.state {
            State::Done => Some(Status::Ok),
            State::Failed(status) => Some(status),
            State::Idle | State::Sent | State::Late => None,
        }
    }

    /// The frame is on its way, with its number.
    pub(in crate::shard) fn note_sent(
        &mut self,
        (after, class): (After, LaneClass),
        number: impl FnOnce() -> Option<(u32, u64)>,
    ) {
        (self.state, self.last) = (State::Sent, Some((after, class)));
        if self.number.is_none() {
            self.number = number();
        }
    }

    /// The peer has answered. `None`: it was not asked.
    pub(in crate::shard) fn note_answer(&mut self, status: Status) -> Option<Answer> {
        if !self.is_sent() {
            return None;
        }
        let asked = self.is_asked();
        let after_puts = matches!(self.last, Some((After::Writes { .. }, _)));
        self.state = match status {
            Status::Ok => State::Done,
            // Of one that waits for nothing it means that there is no room for its number.
            Status::WouldBlock if after_puts => State::Late,
            status => State::Failed(status),
        };
        Some(match self.state {
            _ if asked => Answer::Known,
            State::Late => Answer::Late,
            _ => Answer::Over,
        })
    }

    /// The write before it has ended at the peer. `false`: it had.
    pub(in crate::shard) fn note_write(&mut self, ending: Ending) -> bool {
        self.write.replace(ending).is_none()
    }

    /// How the write before it ended at the peer.
    pub(in crate::shard) fn take_write(&mut self) -> Option<Ending> {
        self.write.take()
    }

    /// Answers of the peer that are still to come. `alone`: no write is before it.
    pub(in crate::shard) fn answers_due(&self, alone: bool) -> u32 {
        let first = !alone && !self.is_asked() && self.write.is_none();
        u32::from(first) + u32::from(self.is_sent())
    }

    /// Its lane is gone.
    pub(in crate::shard) fn forget_lane(&mut self) {
        self.write = None;
        self.state = match self.state {
            State::Failed(_) => self.state,
            State::Late => State::Late,
            _ => State::Idle,
        };
    }

    /// Whether the peer is asked if it was done.
    fn is_asked(&self) -> bool {
        self.is_sent() && matches!(self.last, Some((After::Known, _)))
    }
}
