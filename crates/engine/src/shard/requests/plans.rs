//! By which plans a transfer is cut: this node's, or the peer's as it told of it.

use std::sync::Arc;

use piped_core::units::Nanos;
use piped_planner::planned::Planned;
use piped_wire::LastPart;

use super::super::watch::Told;

/// The plans of a transfer.
#[derive(Debug, Default)]
pub(in crate::shard) struct Plans {
    own: Option<Arc<Planned>>,
    /// What the side that planned said, when it was not this one.
    told: Option<Told>,
    /// Time that a durable write's sync was predicted to take; none for other transfers.
    sync: Option<Nanos>,
    /// Credit that the peer owed when it was planned, in bytes.
    owed: u64,
}

impl Plans {
    /// The plan that this node made.
    pub(in crate::shard) fn own(&self) -> Option<&Arc<Planned>> {
        self.own.as_ref()
    }

    /// Keeps the plan that this node made. `sync`: what the sync behind a durable write is
    /// predicted to take.
    pub(in crate::shard) fn keep(&mut self, planned: Arc<Planned>, sync: Option<Nanos>) {
        (self.own, self.sync) = (Some(planned), sync);
    }

    /// The peer has not given back all credit of earlier writes.
    pub(in crate::shard) fn note_owed(&mut self, bytes: u64) {
        self.owed = bytes;
    }

    /// Credit that the peer owed when the transfer was planned, in bytes.
    pub(in crate::shard) fn owed(&self) -> u64 {
        self.owed
    }

    /// What the sync behind a durable write is predicted to take.
    pub(in crate::shard) fn sync(&self) -> Option<Nanos> {
        self.sync
    }

    /// What the peer said of its plan.
    pub(in crate::shard) fn told(&self) -> Option<Told> {
        self.told
    }

    /// A piece came of a transfer that the peer cuts: `fragment` is what its pieces end at
    /// multiples of, `bytes` the length of this one.
    pub(in crate::shard) fn hear_piece(&mut self, fragment: u32, bytes: u32) {
        self.told = Some(Told::piece(self.told, fragment, bytes));
    }

    /// The peer told how it ended.
    pub(in crate::shard) fn hear_last(&mut self, last: LastPart) {
        self.told = Some(Told::last(self.told, last));
    }

    /// The peer plans anew for each attempt.
    pub(in crate::shard) fn forget_told(&mut self) {
        self.told = None;
    }
}
