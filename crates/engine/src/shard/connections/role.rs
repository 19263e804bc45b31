//! What a lane is for: the side that dialled asks, the side that accepted serves.

use piped_core::ids::PeerId;
use piped_core::status::Status;
use piped_wire::frame::Message;

use super::super::faults::PeerFault;
use super::super::keys::{LinkKey, ServeKey, TransferKey, kind};
use super::super::pins::Pin;
use super::credit::{GrantWindow, SendWindow};
use crate::command::Caller;

/// The role of this side, with what it alone needs.
#[derive(Debug)]
pub(in crate::shard) enum Role {
    /// This side dialled, and asks.
    Asking(Asking),
    /// The other side dialled; this one serves.
    Serving(Serving),
    /// The other side dialled and has not said who it is.
    Stranger(Caller),
}

/// A lane on which we ask.
#[derive(Debug)]
pub(in crate::shard) struct Asking {
    pub(in crate::shard) peer: PeerId,
    /// The peer was told that payloads must have checksums.
    insists: bool,
    /// Requests that are not answered, in the order they were sent.
    pub(in crate::shard) outstanding: Vec<TransferKey>,
    /// The most requests that may be outstanding.
    pub(in crate::shard) requests_max: u32,
    /// Requests given up here and not yet ended by the peer: they still count there.
    abandoned: u32,
    /// Messages that the peer knows of: of each it will say when it is asked for.
    pub(in crate::shard) queued_sends: u32,
    /// Opens that are not answered.
    pub(in crate::shard) opens: u32,
    /// The transfer whose buffer the receive under way may write, by prediction.
    pub(in crate::shard) predicted: Option<Pin<kind::Transfer>>,
    /// Requests of more than one session are outstanding: nothing is predicted until there are
    /// none.
    pub(in crate::shard) mixed: bool,
    /// Write data that may be sent.
    pub(in crate::shard) window: SendWindow,
    /// What the last read took, to be told with the next request.
    pub(in crate::shard) outcome: Option<Message>,
    /// Requests that ended other than well, as the peer told.
    pub(in crate::shard) ends_failed: u32,
}

/// A lane on which a peer asks.
#[derive(Debug)]
pub(in crate::shard) struct Serving {
    pub(in crate::shard) link: LinkKey,
    /// What is known of the other end.
    pub(in crate::shard) caller: Caller,
    /// Requests that are being served, and how many there may be.
    pub(in crate::shard) serves: Vec<PeerRequest>,
    requests_max: u32,
    /// Write data that may come.
    pub(in crate::shard) window: GrantWindow,
    /// Staging that its writes hold, in bytes.
    pub(in crate::shard) staged: u64,
    /// Whether its last read of a file went through the page cache.
    cached: bool,
    /// A word that the peer waits for found no room: it is said again on the next lane.
    pub(in crate::shard) overrun: bool,
    /// Requests that ended other than well, as the peer was told.
    pub(in crate::shard) ends_failed: u32,
}

/// A request under way on a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct PeerRequest {
    /// The peer's number for it.
    pub(in crate::shard) wire: u64,
    pub(in crate::shard) serve: ServeKey,
}

impl Role {
    /// `insists`: on checksums of payloads.
    pub(in crate::shard) fn asking(peer: PeerId, insists: bool) -> Self {
        Self::Asking(Asking {
            peer,
            insists,
            outstanding: Vec::new(),
            requests_max: 0,
            abandoned: 0,
            queued_sends: 0,
            opens: 0,
            predicted: None,
            mixed: false,
            window: SendWindow::default(),
            outcome: None,
            ends_failed: 0,
        })
    }

    /// `requests_max`: requests that it serves at once.
    pub(in crate::shard) fn serving(link: LinkKey, caller: Caller, requests_max: u32) -> Self {
        Self::Serving(Serving {
            link,
            caller,
            serves: Vec::new(),
            requests_max,
            window: GrantWindow::default(),
            staged: 0,
            cached: false,
            overrun: false,
            ends_failed: 0,
        })
    }

    /// What is known of the other end of a lane that we accepted.
    pub(in crate::shard) fn caller(&self) -> Option<&Caller> {
        match self {
            Self::Asking(_) => None,
            Self::Serving(serving) => Some(&serving.caller),
            Self::Stranger(caller) => Some(caller),
        }
    }
}

impl Asking {
    /// Whether the peer was told that payloads must have checksums.
    pub(in crate::shard) fn insists_on_sums(&self) -> bool {
        self.insists
    }

    /// A request is sent. Whether no other one was outstanding.
    pub(in crate::shard) fn ask(&mut self, transfer: TransferKey) -> bool {
        self.outstanding.push(transfer);
        self.outstanding.len() == 1
    }

    /// A request is not outstanding any more. Whether it was.
    pub(in crate::shard) fn forget(&mut self, transfer: TransferKey) -> bool {
        let asked = self.outstanding.len();
        self.outstanding.retain(|&other| other != transfer);
        // Without any, predictions are safe again.
        self.mixed &= !self.outstanding.is_empty();
        self.outstanding.len() < asked
    }

    /// A request is given up, for which the peer owes so many answers.
    pub(in crate::shard) fn abandon(&mut self, answers: u32) {
        self.abandoned += answers;
    }

    /// The peer answers a request, for the `last` time or not. One that was given up here counts no
    /// longer then; one that was not asked, or has been answered, is a fault.
    pub(in crate::shard) fn note_answer(
        &mut self,
        transfer: TransferKey,
        last: bool,
    ) -> Result<(), PeerFault> {
        if self.outstanding.contains(&transfer) {
            return Ok(());
        }
        if self.abandoned == 0 {
            return Err(PeerFault::UnaskedAnswer);
        }
        self.abandoned -= u32::from(last);
        Ok(())
    }

    /// The peer ends a request so.
    pub(in crate::shard) fn note_end(&mut self, status: Status) {
        self.ends_failed = self.ends_failed.wrapping_add(u32::from(status != Status::Ok));
    }

    /// Whether the peer takes one more request.
    pub(in crate::shard) fn has_room(&self) -> bool {
        self.outstanding.len() + (self.abandoned as usize) < self.requests_max as usize
    }

    /// The request whose answer comes next, if that is certain.
    pub(in crate::shard) fn next_answered(&self) -> Option<TransferKey> {
        let others = self.mixed || self.opens > 0 || self.abandoned > 0 || self.queued_sends > 0;
        match self.outstanding[..] {
            // Credit and reports come before the end of a write, but for one that failed.
            [transfer] if !others && !self.window.awaits_rest() => Some(transfer),
            _ => None,
        }
    }
}

impl Serving {
    /// Whether its last read of a file went through the page cache.
    pub(in crate::shard) fn reads_cache(&self) -> bool {
        self.cached
    }

    /// A read of a file goes through the page cache, or past it.
    pub(in crate::shard) fn begin_read(&mut self, cached: bool) {
        self.cached = cached;
    }

    /// Whether the peer may have one more request served.
    pub(in crate::shard) fn has_room(&self) -> bool {
        self.serves.len() < self.requests_max as usize
    }

    /// A request is answered and over.
    pub(in crate::shard) fn forget(&mut self, serve: ServeKey) {
        self.serves.retain(|request| request.serve != serve);
    }

    /// The request that the peer calls so.
    pub(in crate::shard) fn serve_of(&self, wire: u64) -> Option<ServeKey> {
        self.serves.iter().find(|request| request.wire == wire).map(|request| request.serve)
    }

    /// The peer is told that a request ended so.
    pub(in crate::shard) fn note_end(&mut self, status: Status) {
        self.ends_failed = self.ends_failed.wrapping_add(u32::from(status != Status::Ok));
    }
}
