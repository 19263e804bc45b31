//! What a client's path costs now, from the published costs of its stages. See
//! [`piped_planner::cost`].

use piped_core::access::OpenKind;
use piped_core::ids::{HandleId, PeerId, SessionId};
use piped_core::link::LaneClass;
use piped_core::status::Status;
use piped_planner::cost::PathCost;
use piped_planner::plan::Part;

use crate::command::Target;
use crate::shard::Shard;
use crate::shard::clients::{HandleKind, Place};
use crate::shard::keys::LaneKey;

/// The requests that it is told for, the shortest and the longest.
const TOLD_BYTES: (f64, f64) = (4096.0, 262_144.0);

impl Shard {
    /// What moving bytes between memory of this node and a handle costs; `write`: to it. Nothing
    /// where a stage of the path has never been measured, or is not this side's to know: what a
    /// peer's device takes to read.
    ///
    /// # Errors
    /// As of a request that names the handle.
    pub fn path_costs(
        &self,
        session: SessionId,
        handle: HandleId,
        write: bool,
    ) -> Result<Option<PathCost>, Status> {
        let place = match self.handles.kind(session, handle).ok_or(Status::BadHandle)? {
            HandleKind::Local(target) => Place::Local(*target),
            HandleKind::Remote(remote) if remote.ticket.is_some() => return Err(Status::BadHandle),
            HandleKind::Remote(remote) => {
                if remote.open.kind == OpenKind::File && !write {
                    return Ok(None);
                }
                Place::Remote(remote.peer, handle)
            }
            // What peers' devices take to read is theirs to know.
            HandleKind::Replicas(_) => return Ok(None),
            // The home of its session knows.
            HandleKind::AtHome => return Ok(None),
            HandleKind::Ended(_) | HandleKind::Gone => return Err(Status::Gone),
        };
        let cost = match place {
            Place::Local(Target::File(file)) => {
                self.cx.planner.cost(&self.cx.disk_parts(file.device, write), TOLD_BYTES)
            }
            Place::Local(Target::Region(_)) => {
                self.cx.planner.cost(&[Part::There(self.cx.planner.copy_stage())], TOLD_BYTES)
            }
            // Messages have no place to be read or written, and calls no costs of their own.
            Place::Local(Target::Channel(_) | Target::Directory(_)) => {
                return Err(Status::BadHandle);
            }
            Place::Remote(peer, handle) => self.cost_by_lane(peer, (session, handle), write),
            Place::Replicas(_) => None,
        };
        Ok(cost)
    }

    /// By the lane that is known better: both have one wire.
    fn cost_by_lane(
        &self,
        peer: PeerId,
        (session, handle): (SessionId, HandleId),
        write: bool,
    ) -> Option<PathCost> {
        let link = self.peers.get(peer)?;
        let parts = |lane: LaneKey| -> Vec<Part> {
            if write {
                let disk = self.disk_there(session, handle, lane);
                self.way_out(lane).into_iter().chain(disk).map(Part::There).collect()
            } else {
                self.way_in(lane).map(Part::There).to_vec()
            }
        };
        let lanes = [LaneClass::Latency, LaneClass::Bulk].into_iter();
        let costs = lanes
            .filter_map(|class| link.lane(class))
            .filter_map(|lane| self.cx.planner.cost(&parts(lane), TOLD_BYTES));
        costs.max_by(|one, other| one.confidence.total_cmp(&other.confidence))
    }
}
