//! Which stages a request passes, and its plan. The side that holds the data plans.

use std::sync::Arc;

use piped_model::units::Nanos;

use super::Shard;
use super::disk::Direction;
use super::lane::Lane;
use super::plan::{Outcome, Path, path_of};
use super::planned::Planned;
use super::session::{HandleKind, Place};
use super::slab::Key;
use super::stage::StageIndex;
use super::transfer::{Body, RemoteBody, Waiter};
use crate::command::{FileTarget, LaneClass, Target};
use crate::dial::DialPlace;
use crate::ids::{DeviceId, PeerId, RegionId};

impl Shard {
    /// The plan of a local file transfer: one stage, so only depth and the largest operation matter.
    pub(super) fn plan_local(
        &mut self,
        key: Key,
        target: FileTarget,
        direction: Direction,
        length: u64,
    ) -> Arc<Planned> {
        if let Some(planned) = self.transfers.get(key).and_then(|t| t.plan.clone()) {
            return planned;
        }
        if let Some(planned) = self.plan_half(key) {
            return planned;
        }
        let path = path_of(self.disk_stages(target.device, direction == Direction::Write));
        let planned = self.planner.plan(path, length);
        self.tally.add_plan(planned.chosen, planned.cut.lane.first() as u32);
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.plan = Some(Arc::clone(&planned));
        }
        planned
    }

    /// The plan of a write to a peer: this side holds the data.
    pub(super) fn plan_write(&mut self, key: Key, peer: PeerId) -> Arc<Planned> {
        let transfer = self.transfers.get(key);
        if let Some(planned) = transfer.and_then(|t| t.plan.clone()) {
            return planned;
        }
        if let Some(planned) = self.plan_half(key) {
            return planned;
        }
        let transfer = self.transfers.get(key);
        let length = transfer.map_or(0, |t| t.length);
        let class =
            transfer.map_or(LaneClass::Bulk, |t| super::remote::lane_class(t.class, t.length));
        let lane = self.outbound.get(&peer).and_then(|link| link.lane(class));
        let path = match lane {
            Some(lane) => self.path_written(key, lane),
            None => self.planner.path_out(None, StageIndex::NONE),
        };
        let planned = self.planner.plan(path, length);
        self.tally.add_plan(planned.chosen, planned.cut.lane.first() as u32);
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.plan = Some(Arc::clone(&planned));
        }
        planned
    }

    /// The plan of a chunk's half, if there is one for both: its bytes pass the stages of both.
    fn plan_half(&mut self, key: Key) -> Option<Arc<Planned>> {
        let half = self.transfers.get(key)?;
        let Waiter::Copy { parent, .. } = half.waiter else { return None };
        let (length, class) = (half.length, super::remote::lane_class(half.class, half.length));
        let copy = self.transfers.get(parent)?;
        let Body::Copy(body) = &copy.body else { return None };
        let planned = match (copy.plan.clone(), body.ends()) {
            (Some(planned), _) => planned,
            (None, (Place::Local(Target::File(file)), Place::Remote(peer, _))) => {
                let lane = self.outbound.get(&peer)?.lane(class)?;
                let path = self.path_out(Some(file.device), lane);
                self.planner.plan(path, length)
            }
            // How the peer cuts what it sends is its own affair; how it is written here is not.
            (None, (Place::Remote(peer, _), Place::Local(Target::File(file)))) => {
                let lane = self.outbound.get(&peer)?.lane(class)?;
                let net = self.lanes.get(lane)?.stage_in;
                let check = self.planner.check_stage();
                let path =
                    path_of([net, check].into_iter().chain(self.disk_stages(file.device, true)));
                self.planner.plan(path, length)
            }
            (None, _) => return None,
        };
        self.tally.add_plan(planned.chosen, planned.cut.lane.first() as u32);
        for key in [parent, key] {
            self.transfers.get_mut(key)?.plan = Some(Arc::clone(&planned));
        }
        Some(planned)
    }

    /// The plan of a peer's read: our disk (or nothing, for memory), then its lane.
    pub(super) fn plan_serve(
        &mut self,
        key: Key,
        device: Option<DeviceId>,
    ) -> Option<Arc<Planned>> {
        let serve = self.serves.get(key)?;
        if let Some(planned) = &serve.plan {
            return Some(Arc::clone(planned));
        }
        let (lane, length) = (serve.lane, serve.length);
        // What is read for a calibration is one fragment: it asks what those of a size cost.
        let echo = serve.region().is_some_and(|region| region.region == RegionId::ECHO);
        let path = self.path_served(lane, device)?;
        // Memory only: what files gain from other requests depends on their devices.
        let busy = device.is_none() && self.lanes.get(lane).is_some_and(Lane::serves_others);
        let busy = busy || echo;
        let planned = match busy {
            true => self.planner.plan_busy(path, length),
            false => self.planner.plan(path, length),
        };
        self.tally.add_plan(planned.chosen, planned.cut.lane.first() as u32);
        self.serves.get_mut(key)?.plan = Some(Arc::clone(&planned));
        Some(planned)
    }

    fn path_served(&mut self, lane: Key, device: Option<DeviceId>) -> Option<Path> {
        self.lanes.get(lane)?;
        Some(self.path_out(device, lane))
    }

    /// The path of a write: with the peer's disk at its end, as far as the peer reports it.
    fn path_written(&mut self, key: Key, lane: Key) -> Path {
        let path = self.path_out(None, lane);
        let disk = self
            .remote_number(key)
            .and_then(|handle| self.lanes.get(lane).map(|lane| lane.reports.disk_of(handle)));
        // What lies here between two peers is a level of its own.
        let middle = match self.transfers.get(key).map(|transfer| transfer.waiter) {
            Some(Waiter::Copy { parent, .. }) => self.middle_of(parent),
            _ => [StageIndex::NONE; 2],
        };
        path_of(middle.into_iter().chain(path).chain(disk.into_iter().flatten()))
    }

    /// The peer's number of what a transfer is about.
    fn remote_number(&self, key: Key) -> Option<u32> {
        let transfer = self.transfers.get(key)?;
        let Body::Remote(body) = &transfer.body else { return None };
        match &self.handles.get(&(transfer.session, body.handle))?.kind {
            HandleKind::Remote(remote) => remote.number.map(|(number, _)| number),
            _ => None,
        }
    }

    /// The path of what leaves by a lane, from a device of ours or from memory.
    fn path_out(&mut self, device: Option<DeviceId>, lane: Key) -> Path {
        let disk = match device {
            Some(device) => self.disk_stages(device, false),
            None => [StageIndex::NONE; 3],
        };
        path_of(disk.into_iter().chain(self.way_out(lane)))
    }

    /// Behind the device.
    pub(super) fn way_out(&self, lane: Key) -> [StageIndex; 9] {
        let known = self.lanes.get(lane);
        let net = known.map_or(StageIndex::NONE, |lane| lane.stage_out);
        let [net_dial, receive_dial, their_check] =
            known.map_or([StageIndex::NONE; 3], |lane| lane.reports.behind_wire());
        let check = self.planner.check_stage();
        // Until it says what it costs there, it is taken to cost what it costs here.
        let their_check = if their_check == StageIndex::NONE { check } else { their_check };
        let dials = match self.dials.any() {
            true => self.dials_out(lane),
            false => [[StageIndex::NONE; 2]; 2],
        };
        let [[check_host, check_dial], [send_host, send_dial]] = dials;
        [
            check,
            check_host,
            check_dial,
            send_host,
            send_dial,
            net,
            net_dial,
            receive_dial,
            their_check,
        ]
    }

    /// A device's stage, and that of its dial.
    fn disk_stages(&mut self, device: DeviceId, write: bool) -> [StageIndex; 3] {
        let dial = DialPlace::Disk { device, write };
        let [host, dial] = match self.dials.any() {
            true => self.dials.stages(|place| *place == dial),
            false => [StageIndex::NONE; 2],
        };
        [self.planner.disk_stage(device, write), host, dial]
    }

    /// A peer says what one of its reads took. A claim: it moves nothing but the choice between plans for
    /// that peer's own lane.
    pub(super) fn handle_outcome(&mut self, lane: Key, target: Target, outcome: Outcome) {
        let device = match target {
            Target::File(file) => Some(file.device),
            Target::Region(_) => None,
        };
        if let Some(path) = self.path_served(lane, device) {
            self.planner.observe_outcome(path, outcome);
        }
    }

    /// A write that was alone on its lane shows what its plan is good for; a short one times the wire,
    /// less what the peer took and the checksums.
    pub(super) fn time_write(&mut self, key: Key, body: RemoteBody, service_us: u32, now: Nanos) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let Some(lane) = body.lane.and_then(|lane| self.lanes.get(lane)) else { return };
        let Some(planned) = transfer.plan.clone() else { return };
        if !body.alone || transfer.retries > 0 {
            return;
        }
        let (length, stage) = (transfer.length, lane.stage_out);
        let time = now.since(body.sent_at);
        // What waits for the other half of a copy does not only take what its own stages do.
        let waited = body.ready < length;
        let shows = match self.read_with(transfer.waiter) {
            // Chunks of a longer copy wait for each other, too.
            Some(bytes) => body.ready == 0 && bytes == length,
            None => !waited,
        };
        if shows {
            // To those that it was chosen from: its path may be another one by now.
            let outcome = Outcome { length, plan: planned.cut.number(), time };
            self.planner.observe_outcome(planned.path.stages(), outcome);
        }
        if length <= planned.cut.lane.first() && !waited {
            let checks = self.planner.check_time(length as u32);
            let service = Nanos::from_micros(service_us.into());
            let wire = time.since(service).since(checks).since(checks);
            self.planner.sample_alone(stage, length as u32, wire);
        }
    }
}
