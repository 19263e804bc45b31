//! What a node has open here.

use piped_core::status::Status;

use super::super::keys::{TransferKey, kind};
use super::super::numbers::Remembered;
use super::super::pins::Pin;
use crate::command::Target;

/// Something of ours that a peer has open.
#[derive(Debug)]
pub(in crate::shard) struct Served {
    /// `None`: the exporter of the region is gone, or it was ended.
    target: Option<Target>,
    /// What was open before it was ended, as long as what ended with it still uses it.
    ended: Option<Target>,
    /// Ours, of the open that it answered; none: it was told.
    ticket: Option<u64>,
    /// Serves that use it; a closed one is released after the last.
    uses: u32,
    closed: bool,
    /// The receive that a told buffer belongs to: the pin keeps that buffer from being given back.
    receive: Option<Pin<kind::Transfer>>,
    updates: Remembered<u64>,
    /// A range of it was locked: the node that has it open loses that if it stays away.
    locked: bool,
}

impl Served {
    pub(super) fn new(target: Target, ticket: Option<u64>) -> Self {
        let (ended, receive, updates) = (None, None, Remembered::default());
        let (uses, closed, locked) = (0, false, false);
        Self { target: Some(target), ended, ticket, uses, closed, receive, updates, locked }
    }

    /// What is open; [`Status::Gone`] if that is no more.
    pub(in crate::shard) fn target(&self) -> Result<Target, Status> {
        self.target.ok_or(Status::Gone)
    }

    /// Results of changes to a region's words and of its notifications, and how calls of a file or
    /// directory ended; unused for channels.
    pub(in crate::shard) const fn updates(&mut self) -> &mut Remembered<u64> {
        &mut self.updates
    }

    /// A range of it may be locked from now on, until it is closed.
    pub(in crate::shard) fn note_locked(&mut self) {
        self.locked = true;
    }

    /// Whether a range of it may be locked.
    pub(super) fn is_locked(&self) -> bool {
        self.locked
    }

    /// Whether our ticket of the open is this one.
    pub(super) fn is_of(&self, ticket: u64) -> bool {
        self.ticket == Some(ticket)
    }

    /// A serve uses it from now on, or (`false`) no more.
    pub(super) fn note_use(&mut self, begins: bool) {
        self.uses = self.uses + u32::from(begins) - u32::from(!begins);
    }

    /// The receive that it belongs to, if it is the buffer of one.
    pub(super) fn receive(&self) -> Option<TransferKey> {
        self.receive.as_ref().map(Pin::key)
    }

    /// Holds the receive that it belongs to.
    pub(super) fn hold(&mut self, receive: Option<Pin<kind::Transfer>>) {
        self.receive = receive;
    }

    /// Nobody names it any more.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Access to it ends: what it was. What the driver has open stays until nothing uses it.
    pub(super) fn end(&mut self) -> Option<Target> {
        let target = self.target.take()?;
        self.ended = Some(target).filter(|it| is_open(*it));
        Some(target)
    }

    /// Access to it ends if it is wanted.
    pub(super) fn revoke(&mut self, wanted: impl Fn(Target) -> bool) {
        self.target = self.target.filter(|target| !wanted(*target));
    }

    /// What goes if nothing uses it, and whether that is all of it.
    pub(super) fn release(&mut self) -> Option<(Released, bool)> {
        match (self.uses, self.closed) {
            (0, false) => Some(((self.ended.take(), None, None), false)),
            (0, true) => {
                let (target, receive) = (self.target.take(), self.receive.take());
                Some(((target.or(self.ended.take()), self.ticket, receive), true))
            }
            _ => None,
        }
    }
}

/// What goes with what a node had open: what that was, our ticket of the open, a receive's pin.
pub(in crate::shard) type Released = (Option<Target>, Option<u64>, Option<Pin<kind::Transfer>>);

/// Whether it is something that the driver has open.
pub(in crate::shard) fn is_open(target: Target) -> bool {
    matches!(target, Target::File(_) | Target::Directory(_))
}

/// How long something is, as it is told to who opens it.
pub(in crate::shard) fn length_of(target: Target) -> u64 {
    match target {
        Target::File(file) => file.length,
        Target::Region(region) => region.length,
        Target::Channel(_) | Target::Directory(_) => 0,
    }
}
