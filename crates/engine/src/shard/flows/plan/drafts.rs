//! Which stages a transfer would pass that nobody has asked for. See [`piped_planner::draft`].

use piped_core::ids::{DeviceId, PeerId};
use piped_core::link::LaneClass;
use piped_planner::draft::{DraftAsk, DraftFault, Way};
use piped_planner::plan::{Draft, Part};

use crate::shard::Shard;
use crate::shard::connections::lane_class;
use crate::shard::keys::LaneKey;

impl Shard {
    /// A copy of what is known of a transfer's path, to be planned elsewhere.
    ///
    /// # Errors
    /// The path leads to nobody.
    pub fn draft(&self, ask: &DraftAsk) -> Result<Draft, DraftFault> {
        let class = lane_class(ask.class, ask.bytes);
        let (parts, is_planned) = match &ask.way {
            Way::Disk { device, write } => (self.cx.disk_parts(*device, *write), true),
            Way::ToPeer { peer, device } => {
                (self.parts_out(*device, self.lane_to(*peer, class)?), true)
            }
            Way::Landing { peer, device } => {
                let mut parts = self.way_in(self.lane_to(*peer, class)?).map(Part::There).to_vec();
                parts.extend(device.iter().flat_map(|it| self.cx.disk_parts(*it, true)));
                (parts, device.is_some())
            }
            Way::Served { peer, device } => {
                (self.parts_out(*device, self.lane_from(peer, class)?), true)
            }
        };
        Ok(self.cx.planner.draft(parts, ask.bytes, is_planned))
    }

    fn lane_to(&self, peer: PeerId, class: LaneClass) -> Result<LaneKey, DraftFault> {
        let link = self.peers.get(peer).ok_or(DraftFault::UnknownPeer)?;
        link.lane(class).ok_or(DraftFault::NoLane)
    }

    fn lane_from(&self, peer: &str, class: LaneClass) -> Result<LaneKey, DraftFault> {
        let mut links = self.links.iter().map(|(_, link)| link).filter(|link| link.name() == peer);
        let link = links.next().ok_or(DraftFault::UnknownPeer)?;
        link.lane(class).ok_or(DraftFault::NoLane)
    }

    fn parts_out(&self, device: Option<DeviceId>, lane: LaneKey) -> Vec<Part> {
        let mut parts = device.map_or_else(Vec::new, |device| self.cx.disk_parts(device, false));
        parts.extend(self.way_out(lane).map(Part::There));
        parts
    }
}
