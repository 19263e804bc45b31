//! Access that is taken back: a handle of a client or of a peer ends, and with it what is in
//! execution by it.
//!
//! ```text
//!   requests by it ──► Gone, each once      later ones ──► Gone
//!   what it stands for ──► released when nothing uses it any more
//! ```
//!
//! The handle itself stays until whoever has it closes it: its number names nothing else meanwhile.

use piped_core::ids::{HandleId, SessionId};
use piped_core::io::Io;
use piped_core::names::node_of;
use piped_core::status::Status;
use piped_report::tally::LaneLoss;

use crate::command::Target;
use crate::shard::Shard;
use crate::shard::keys::LaneKey;
use crate::shard::requests::{Transfer, Waiter};
use crate::shard::sched::Work;

impl Shard {
    /// A client's handle, whatever it stands for.
    pub(in crate::shard) fn end_handle<I: Io>(
        &mut self,
        session: SessionId,
        id: HandleId,
        io: &mut I,
    ) {
        // Of parts, only those have a handle that one of several replicas was asked for.
        let runs = |transfer: &Transfer| {
            transfer.session == session
                && transfer.uses(id)
                && transfer.status.is_none()
                && (transfer.waiter.is_client() || matches!(transfer.waiter, Waiter::Vector { .. }))
        };
        let mut from = 0;
        while let Some(key) = self.transfers.next_from(&mut from, runs) {
            self.give_up(key, Status::Gone, io);
        }
        if let Some(kind) = self.handles.end(session, id) {
            self.release_kind(kind, io);
        }
    }

    /// What a peer was given for an open, by the ticket of the open.
    pub(in crate::shard) fn end_served<I: Io>(&mut self, ticket: u64, io: &mut I) {
        let Some((key, target)) = self.links.end_served(ticket) else { return };
        if matches!(target, Target::Channel(_)) {
            self.forget_mail(key, Status::Gone, io);
        }
        let mut from = 0;
        while let Some(serve) = self.serves.next_from(&mut from, |serve| serve.served == key) {
            self.end_serve(serve, Status::Gone);
            self.cx.sched.make_ready(Work::Serve(serve));
            // What its peer does not read must not keep the file.
            if self.serves.get(serve).is_some_and(|serve| !serve.reply.is_watched()) {
                self.watch_unread(serve, io);
            }
        }
        self.release_served(key, io);
    }

    /// Closes the lanes from and to a node. It may come back, and we dial it again.
    pub(in crate::shard) fn end_peer<I: Io>(&mut self, name: &str, io: &mut I) {
        let is_it = |lane: &LaneKey| self.peer_of(*lane).is_some_and(|it| node_of(it) == name);
        let lanes: Vec<LaneKey> = self.lanes.iter().map(|(key, _)| key).filter(is_it).collect();
        for lane in lanes {
            self.close_lane(lane, LaneLoss::Ended, "an operator ended it", io);
        }
    }
}
