//! What a node has open here.

use piped_core::status::Status;

use super::super::keys::kind;
use super::super::numbers::Remembered;
use super::super::pins::Pin;
use crate::command::Target;

/// Something of ours that a peer has open.
#[derive(Debug)]
pub(in crate::shard) struct Served {
    /// `None`: the exporter of the region is gone, or it was ended.
    pub(super) target: Option<Target>,
    /// What was open before it was ended, as long as what ended with it still uses it.
    pub(super) ended: Option<Target>,
    /// Ours, of the open that it answered; none: it was told.
    pub(super) ticket: Option<u64>,
    /// Serves that use it; a closed one is released after the last.
    pub(super) uses: u32,
    pub(super) closed: bool,
    /// The receive that a told buffer belongs to: the pin keeps that buffer from being given back.
    pub(super) receive: Option<Pin<kind::Transfer>>,
    /// Results of changes to a region's words and of its notifications, and how calls of a file or
    /// directory ended; unused for channels.
    pub(in crate::shard) updates: Remembered<u64>,
}

impl Served {
    pub(super) fn new(target: Target, ticket: Option<u64>) -> Self {
        let (ended, receive, updates) = (None, None, Remembered::default());
        Self { target: Some(target), ended, ticket, uses: 0, closed: false, receive, updates }
    }

    /// What is open; [`Status::Gone`] if that is no more.
    pub(in crate::shard) fn target(&self) -> Result<Target, Status> {
        self.target.ok_or(Status::Gone)
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
