//! Access that is taken back: a handle of a client or of a peer ends, and with it what is in
//! execution by it.
//!
//! ```text
//!   requests by it ──► Gone, each once      later ones ──► Gone
//!   what it stands for ──► released when nothing uses it any more
//! ```
//!
//! The handle itself stays until whoever has it closes it: its number names nothing else meanwhile.

use piped_core::ids::{HandleId, PeerId, SessionId};
use piped_core::io::Io;
use piped_core::link::LaneClass;
use piped_core::names::node_of;
use piped_core::status::Status;
use piped_report::tally::LaneLoss;

use super::Shard;
use super::connections::Lane;
use super::keys::{LaneKey, ServedKey};
use super::requests::{Transfer, Waiter};
use super::sched::Work;
use crate::command::Target;

impl Shard {
    /// A client's handle, whatever it stands for.
    pub(super) fn end_handle<I: Io>(&mut self, session: SessionId, id: HandleId, io: &mut I) {
        let runs = |transfer: &Transfer| {
            transfer.session == session
                && transfer.uses(id)
                && transfer.status.is_none()
                && matches!(transfer.waiter, Waiter::Client(_))
        };
        let mut from = 0;
        while let Some(key) = self.transfers.next_from(from, runs) {
            from = key.index() + 1;
            self.give_up(key, Status::Gone, io);
        }
        if let Some(kind) = self.handles.end(session, id) {
            self.release_kind(kind, io);
        }
    }

    /// What a peer was given for an open, by the ticket of the open.
    pub(super) fn end_served<I: Io>(&mut self, ticket: u64, io: &mut I) {
        let Some((key, _)) = self.served.iter().find(|(_, served)| served.ticket == Some(ticket))
        else {
            return;
        };
        let Some(target) = self.served.get_mut(key).and_then(|served| served.target.take()) else {
            return;
        };
        match target {
            Target::File(_) => {
                if let Some(served) = self.served.get_mut(key) {
                    served.ended = Some(target);
                }
            }
            Target::Channel(_) => self.forget_mail(key, Status::Gone, io),
            Target::Region(_) => {}
        }
        let mut from = 0;
        while let Some(serve) = self.serves.next_from(from, |serve| serve.served == key) {
            from = serve.index() + 1;
            self.end_serve(serve, Status::Gone);
            self.cx.sched.make_ready(Work::Serve(serve));
            // What its peer does not read must not keep the file.
            if self.serves.get(serve).is_some_and(|serve| serve.unread.is_none()) {
                self.watch_unread(serve, io);
            }
        }
        self.release_ended_served(key, io);
    }

    /// Lets go of what ended with what a peer had open, if nothing uses it any more.
    pub(super) fn release_ended_served<I: Io>(&mut self, key: ServedKey, io: &mut I) {
        let Some(served) = self.served.get_mut(key) else { return };
        if served.uses == 0
            && let Some(target) = served.ended.take()
        {
            self.release_target(target, io);
        }
    }

    /// Closes the lanes from and to a node. It may come back, and we dial it again.
    pub(super) fn end_peer<I: Io>(&mut self, name: &str, io: &mut I) {
        let asked: Vec<PeerId> =
            self.outbound.iter().filter(|(_, it)| it.is_to(name)).map(|(&id, _)| id).collect();
        for peer in asked {
            for class in [LaneClass::Latency, LaneClass::Bulk] {
                if let Some(lane) = self.outbound.get(&peer).and_then(|link| link.lane(class)) {
                    self.close_lane(lane, LaneLoss::Ended, ENDED.to_owned(), io);
                }
            }
        }
        let is_it = |(_, lane): &(LaneKey, &Lane)| {
            let link = lane.inbound().and_then(|link| self.inbound.get(link));
            link.is_some_and(|link| node_of(&link.name) == name)
        };
        let lanes: Vec<LaneKey> = self.lanes.iter().filter(is_it).map(|(key, _)| key).collect();
        for lane in lanes {
            self.close_lane(lane, LaneLoss::Ended, ENDED.to_owned(), io);
        }
    }
}

const ENDED: &str = "an operator ended it";
