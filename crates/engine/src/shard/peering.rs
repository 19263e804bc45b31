//! Which peers there are to ask: those of the configuration, which changes while running.
//!
//! A peer that is removed keeps its place and the counts of its lanes' epochs: should it come back,
//! the other side still knows the old ones, and takes only newer ones.

use piped_core::ids::PeerId;
use piped_core::io::Io;
use piped_core::link::LaneClass;
use piped_core::status::Status;
use piped_core::units::Nanos;
use piped_report::tally::LaneLoss;

use super::Shard;
use super::outbound::Outbound;
use crate::command::Event;

const CLASSES: [LaneClass; 2] = [LaneClass::Latency, LaneClass::Bulk];

impl Shard {
    pub(super) fn add_peer(&mut self, peer: PeerId, name: String) {
        let link = self.outbound.entry(peer).or_insert_with(|| Outbound::new(name));
        link.removed = false;
        for class in CLASSES {
            // A lane that is still closing is dialled again when it is over.
            if self.outbound.get(&peer).is_some_and(|link| link.is_idle(class)) {
                self.dial(peer, class, Nanos::ZERO);
            }
        }
    }

    pub(super) fn remove_peer<I: Io>(&mut self, peer: PeerId, io: &mut I) {
        let Some(link) = self.outbound.get_mut(&peer) else { return };
        link.removed = true;
        for (ticket, session, handle) in self.handles.lose_peer(peer) {
            let result = Err(Status::PeerLost);
            self.cx.event(Event::RemoteOpened { ticket, session, handle, result });
        }
        self.close_lanes_to(peer, "the peer was removed from the configuration", io);
        self.wake_waiting(peer);
    }

    pub(super) fn redial_peer<I: Io>(&mut self, peer: PeerId, io: &mut I) {
        self.close_lanes_to(
            peer,
            "the configuration has another address, key or mode for the peer, or other networks \
             for plain lanes",
            io,
        );
    }

    fn close_lanes_to<I: Io>(&mut self, peer: PeerId, reason: &str, io: &mut I) {
        for class in CLASSES {
            if let Some(lane) = self.outbound.get(&peer).and_then(|link| link.lane(class)) {
                self.close_lane(lane, LaneLoss::Reconfigured, reason.to_owned(), io);
            }
        }
    }

    /// Asks for a connection; one at a time for each lane.
    pub(super) fn dial(&mut self, peer: PeerId, class: LaneClass, after: Nanos) {
        if let Some(link) = self.outbound.get_mut(&peer) {
            link.dialled(class);
            self.cx.event(Event::Connect { peer, class, after });
        }
    }
}
