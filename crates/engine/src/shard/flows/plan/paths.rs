//! Which stages a request passes, and its plan. The side that holds the data plans.

use std::sync::Arc;

use piped_core::access::OpenKind;
use piped_core::ids::{HandleId, PeerId, RegionId, SessionId};
use piped_core::limits::FRAGMENT_BYTES_MAX;
use piped_core::link::LaneClass;
use piped_core::units::Nanos;
use piped_planner::plan::{Outcome, Path, path_of};
use piped_planner::planned::{Planned, STAGES_MAX};
use piped_planner::stage::StageIndex;

use crate::command::{FileTarget, Target};
use crate::shard::Shard;
use crate::shard::clients::Place;
use crate::shard::connections::{Lane, Serving, lane_class};
use crate::shard::delays::Hop;
use crate::shard::driver::Direction;
use crate::shard::keys::{LaneKey, ServeKey, Subject, TransferKey};
use crate::shard::peers::Peer;
use crate::shard::requests::{Body, FileBody, RemoteBody, RemoteOp, Waiter};

/// Stages of a device with its dial, of what leaves by a lane, and of a peer's device.
const DISK_STAGES: usize = 3;
const WAY_OUT_STAGES: usize = 9;
const PEER_DISK_STAGES: usize = 2;

/// What is left of a durable write to a peer is at least this, so that it is a time.
const SYNC_MIN: Nanos = Nanos(1_000);

// The longest path is that of a copy from our disk to a peer's.
const _: () = assert!(DISK_STAGES + WAY_OUT_STAGES + PEER_DISK_STAGES <= STAGES_MAX);

impl Shard {
    /// The plan of a local file transfer: one stage, so only depth and the largest operation
    /// matter.
    pub(in crate::shard) fn plan_local(
        &mut self,
        key: TransferKey,
        body: &FileBody,
        length: u64,
    ) -> Arc<Planned> {
        if let Some(planned) = self.transfers.get(key).and_then(|t| t.plans.own().cloned()) {
            return planned;
        }
        if let Some(planned) = self.plan_half(key) {
            return planned;
        }
        let (device, writes) = (body.target().device, body.direction() == Direction::Write);
        let path = path_of(match writes {
            true => self.cx.disk_stages(device, true),
            false => self.cx.read_stages(&body.target()),
        });
        let others = self.cx.watch.beside(Subject::Transfer(key));
        let planned = self.cx.planner.plan_beside(path, length, others);
        let sync = match writes && body.is_durable() {
            true => self.cx.planner.sync_stage(device),
            false => StageIndex::NONE,
        };
        self.keep_plan(key, &planned, sync);
        planned
    }

    /// A transfer has a plan. How its bytes are cut changes nothing of the `sync` behind a durable
    /// write, so that is in no path, and is added to the prediction once it was measured.
    fn keep_plan(&mut self, key: TransferKey, planned: &Arc<Planned>, sync: StageIndex) {
        self.cx.watch.note_plan(planned);
        if let Some(transfer) = self.transfers.get_mut(key) {
            let sync = self.cx.planner.alone_time(sync, transfer.length);
            transfer.plans.keep(Arc::clone(planned), sync);
        }
    }

    /// The plan of a write to a peer: this side holds the data.
    pub(in crate::shard) fn plan_write(&mut self, key: TransferKey, peer: PeerId) -> Arc<Planned> {
        let transfer = self.transfers.get(key);
        if let Some(planned) = transfer.and_then(|t| t.plans.own().cloned()) {
            return planned;
        }
        if let Some(planned) = self.plan_half(key) {
            return planned;
        }
        let transfer = self.transfers.get(key);
        let length = transfer.map_or(0, |t| t.length);
        let class = transfer.map_or(LaneClass::Bulk, |t| lane_class(t.class, t.length));
        let lane = self.peers.lane(peer, class);
        let path = match lane {
            Some(lane) => self.path_written(key, lane),
            None => self.cx.planner.path_out(None, StageIndex::NONE),
        };
        let others = self.cx.watch.beside(Subject::Transfer(key));
        let planned = self.cx.planner.plan_beside(path, length, others);
        let body = self.transfers.get(key).map(|transfer| &transfer.body);
        let sync = match (body, self.peers.get_mut(peer)) {
            (Some(Body::Remote(body)), Some(link))
                if body.op == RemoteOp::Write { durable: true } =>
            {
                link.sync_stage(&mut self.cx.planner)
            }
            _ => StageIndex::NONE,
        };
        self.keep_plan(key, &planned, sync);
        // What others have under way is theirs.
        let asking = lane.and_then(|lane| self.lanes.get(lane)).and_then(Lane::asking);
        let owed = asking.filter(|asking| asking.outstanding.is_empty());
        let owed = owed.map_or(0, |asking| asking.window.owed());
        if let Some(transfer) = self.transfers.get_mut(key) {
            transfer.plans.note_owed(owed);
        }
        planned
    }

    /// The plan of a chunk's half, if there is one for both: its bytes pass the stages of both.
    fn plan_half(&mut self, key: TransferKey) -> Option<Arc<Planned>> {
        let half = self.transfers.get(key)?;
        let Waiter::Copy { parent, chunk } = half.waiter else { return None };
        let (session, length) = (half.session, half.length);
        let class = lane_class(half.class, length);
        let Body::Copy(copy) = self.transfers.get(parent)?.body else { return None };
        let copy = &self.bodies[copy];
        let planned = match (copy.plan_of(chunk), (copy.source().0, copy.sink().0)) {
            (Some(planned), _) => planned,
            (None, ends) => {
                let path = self.path_copied(session, ends, class)?;
                self.cx.planner.plan(path, length)
            }
        };
        self.cx.watch.note_plan(&planned);
        self.transfers.get_mut(key)?.plans.keep(Arc::clone(&planned), None);
        let copy = self.transfers.get_mut(parent)?;
        // What is told of a copy is how it goes now; the rest at its end is no example of that.
        if copy.plans.own().is_none() || length == u64::from(FRAGMENT_BYTES_MAX) {
            copy.plans.keep(Arc::clone(&planned), None);
        }
        if let Body::Copy(body) = copy.body {
            self.bodies[body].set_plan(chunk, Arc::clone(&planned));
        }
        Some(planned)
    }

    /// The path of a copy between a file of ours and a peer. Of others each half has its own.
    fn path_copied(
        &mut self,
        session: SessionId,
        ends: (Place, Place),
        class: LaneClass,
    ) -> Option<Path> {
        match ends {
            (Place::Local(Target::File(file)), Place::Remote(peer, handle)) => {
                let lane = self.peers.lane(peer, class)?;
                let path = self.path_out(Some(&file), lane);
                let disk = self.expect_disk(session, handle, lane);
                Some(path_of(path.into_iter().chain(disk)))
            }
            // How the peer cuts what it sends is its own affair; how it is written here is not.
            (Place::Remote(peer, _), Place::Local(Target::File(file))) => {
                let lane = self.peers.lane(peer, class)?;
                let disk = self.cx.disk_stages(file.device, true);
                Some(path_of(self.way_in(lane).into_iter().chain(disk)))
            }
            _ => None,
        }
    }

    /// The plan of a peer's read: our file (or nothing, for memory), then its lane.
    pub(in crate::shard) fn plan_serve(
        &mut self,
        key: ServeKey,
        file: Option<&FileTarget>,
    ) -> Option<Arc<Planned>> {
        let serve = self.serves.get(key)?;
        if let Some(planned) = &serve.plan {
            return Some(Arc::clone(planned));
        }
        let (lane, length) = (serve.lane, serve.ask.length);
        // What is read for a calibration is one fragment: it asks what those of a size cost.
        let echo = serve.region().is_some_and(|region| region.region == RegionId::ECHO);
        let path = self.path_served(lane, file)?;
        // Of memory only the connection is wanted, and what is before it overlaps with others.
        let busy = file.is_none() && self.lanes.get(lane).is_some_and(Lane::serves_others);
        let planned = match busy || echo {
            true => self.cx.planner.plan_whole(path, length),
            false => {
                let others = self.cx.watch.beside(Subject::Serve(key));
                self.cx.planner.plan_beside(path, length, others)
            }
        };
        self.cx.watch.note_plan(&planned);
        self.serves.get_mut(key)?.plan = Some(Arc::clone(&planned));
        Some(planned)
    }

    fn path_served(&mut self, lane: LaneKey, file: Option<&FileTarget>) -> Option<Path> {
        self.lanes.get(lane)?;
        Some(self.path_out(file, lane))
    }

    /// The path of a write: with the peer's disk at its end, as far as the peer reports it.
    fn path_written(&mut self, key: TransferKey, lane: LaneKey) -> Path {
        let path = self.path_out(None, lane);
        let transfer = self.transfers.get(key);
        let disk = match transfer.map(|transfer| (transfer.session, transfer.body)) {
            Some((session, Body::Remote(body))) => self.expect_disk(session, body.handle, lane),
            _ => [StageIndex::NONE; PEER_DISK_STAGES],
        };
        // What lies here between two peers is a level of its own.
        let middle = match self.transfers.get(key).map(|transfer| transfer.waiter) {
            Some(Waiter::Copy { parent, .. }) => self.middle_of(parent),
            _ => [StageIndex::NONE; 2],
        };
        path_of(middle.into_iter().chain(path).chain(disk))
    }

    /// What the peer reports of the disk below a handle of ours, and of its dial.
    pub(in crate::shard) fn disk_there(
        &self,
        session: SessionId,
        handle: HandleId,
        lane: LaneKey,
    ) -> [StageIndex; PEER_DISK_STAGES] {
        let number = self.handles.remote(session, handle).and_then(|remote| remote.number);
        match (number, self.lanes.get(lane)) {
            (Some((number, _)), Some(lane)) => lane.reports.disk_of(number),
            _ => [StageIndex::NONE; PEER_DISK_STAGES],
        }
    }

    /// The stages of [`Self::disk_there`], for a plan: before its first report a file's disk is
    /// taken to cost what disks do.
    fn expect_disk(
        &mut self,
        session: SessionId,
        handle: HandleId,
        lane: LaneKey,
    ) -> [StageIndex; PEER_DISK_STAGES] {
        let remote = self.handles.remote(session, handle);
        if let Some(remote) = remote.filter(|remote| remote.open.kind == OpenKind::File)
            && let (Some((number, _)), Some(lane)) = (remote.number, self.lanes.get_mut(lane))
        {
            let of = lane.reported(self.peers.get(remote.peer).map(Peer::name));
            lane.reports.expect_disk(number, of, &mut self.cx.planner);
        }
        self.disk_there(session, handle, lane)
    }

    /// The path of what leaves by a lane, from a file of ours or from memory.
    fn path_out(&mut self, file: Option<&FileTarget>, lane: LaneKey) -> Path {
        let disk = match file {
            Some(file) => self.cx.read_stages(file),
            None => [StageIndex::NONE; DISK_STAGES],
        };
        path_of(disk.into_iter().chain(self.way_out(lane)))
    }

    /// The stages behind the device of what leaves by a lane.
    pub(in crate::shard) fn way_out(&self, lane: LaneKey) -> [StageIndex; WAY_OUT_STAGES] {
        let known = self.lanes.get(lane);
        let net = known.map_or(StageIndex::NONE, |lane| lane.stage_out);
        let [net_dial, receive_dial, their_check] =
            known.map_or([StageIndex::NONE; 3], |lane| lane.reports.behind_wire());
        let check = known.map_or(StageIndex::NONE, |lane| lane.check_stage(&self.cx.planner));
        // Until it says what it costs there, it is taken to cost what it costs here.
        let has_told = check != StageIndex::NONE && their_check != StageIndex::NONE;
        let their_check = if has_told { their_check } else { check };
        let dials = match self.cx.dials.any() {
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

    /// The stages of what comes by a lane, up to our memory.
    pub(in crate::shard) fn way_in(&self, lane: LaneKey) -> [StageIndex; 6] {
        let known = self.lanes.get(lane);
        let net = known.map_or(StageIndex::NONE, |lane| lane.stage_in);
        let check = known.map_or(StageIndex::NONE, |lane| lane.check_stage(&self.cx.planner));
        let [[net_host, net_dial], [receive_host, receive_dial]] =
            [Hop::Net, Hop::Receive].map(|hop| self.dial_stages(lane, hop));
        [net, net_host, net_dial, receive_host, receive_dial, check]
    }

    /// A peer says what one of its reads took. A claim: it moves nothing but the choice between
    /// plans for that peer's own lane.
    pub(in crate::shard) fn handle_outcome(
        &mut self,
        lane: LaneKey,
        target: Target,
        outcome: Outcome,
    ) {
        let cached = self.lanes.get(lane).and_then(Lane::serving).is_some_and(Serving::reads_cache);
        let file = match target {
            // By the way that this lane's last read of a file went.
            Target::File(file) => Some(FileTarget { cached, ..file }),
            Target::Region(_) | Target::Channel(_) | Target::Directory(_) => None,
        };
        if let Some(path) = self.path_served(lane, file.as_ref()) {
            self.cx.planner.observe_outcome(path, outcome);
        }
    }

    /// A durable write to a peer ended well. The peer does not say what its sync took: it is what
    /// the write took beyond what it was predicted to take without.
    pub(in crate::shard) fn time_durable(
        &mut self,
        key: TransferKey,
        body: RemoteBody,
        now: Nanos,
    ) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let (Some(planned), length) = (transfer.plans.own(), transfer.length) else { return };
        let Some(state) = self.peers.get_mut(body.peer) else { return };
        if transfer.attempts.is_repeated() || !self.cx.watch.is_alone(Subject::Transfer(key)) {
            return;
        }
        let predicted = planned.predicted_for(length) + planned.owed(length, transfer.plans.owed());
        let left = now.since(body.sent_at).since(predicted).max(SYNC_MIN);
        let stage = state.sync_stage(&mut self.cx.planner);
        let bytes = u32::try_from(length).unwrap_or(u32::MAX);
        self.cx.planner.sample_alone(stage, bytes, left);
    }

    /// A write that was alone on its lane shows what its plan is good for; a short one that nothing
    /// held times the wire, less what the peer took and the checksums.
    pub(in crate::shard) fn time_write(
        &mut self,
        key: TransferKey,
        body: RemoteBody,
        service_us: u32,
        now: Nanos,
    ) {
        let Some(transfer) = self.transfers.get(key) else { return };
        let Some(lane) = body.lane.and_then(|lane| self.lanes.get(lane)) else { return };
        let Some(planned) = transfer.plans.own().cloned() else { return };
        if !body.alone || transfer.attempts.is_repeated() {
            return;
        }
        let (length, stage) = (transfer.length, lane.stage_out);
        let is_alone = self.cx.watch.is_alone(Subject::Transfer(key));
        let time = now.since(body.sent_at);
        // What waits for the other half of a copy does not only take what its own stages do.
        let waited = body.ready < length;
        let shows = match self.read_with(transfer.waiter) {
            // Chunks of a longer copy wait for each other, too.
            Some(bytes) => body.ready == 0 && bytes == length,
            None => !waited,
        };
        let owed = planned.owed(length, transfer.plans.owed());
        if shows && owed < time {
            // To those that it was chosen from: its path may be another one by now.
            let (plan, alone) = (planned.cut.number(), is_alone);
            let outcome = Outcome { length, plan, time: time.since(owed), alone };
            self.cx.planner.observe_outcome(planned.path.stages(), outcome);
        }
        // What a dial, a rate or a limit held here was not on the wire meanwhile.
        let is_dialled = body.lane.is_some_and(|lane| self.is_dialled(lane));
        if length <= planned.cut.lane.first() && !waited && is_alone && !is_dialled {
            let checks = lane.check_time(&self.cx.planner, length as u32);
            let service = Nanos::from_micros(service_us.into());
            let wire = time.since(service).since(checks).since(checks);
            self.cx.planner.sample_alone(stage, length as u32, wire);
        }
    }
}
