//! The stages with their meters: executions are timed, times are learned, and costs that moved are
//! published.

use piped_core::limits::REPORT_PAUSE;

use super::*;

/// A fragment has waited if its time in the stage is this many times that of a fragment alone; a
/// meter decides alike.
const WAITED: f64 = 1.25;

/// Samples between two looks at a stage's estimate.
const SAMPLES_PER_LOOK: u64 = 16;

/// Samples between two reports of the wire to the sending side.
const SAMPLES_PER_REPORT: u64 = 64;

/// Least time between two reports of a stage: twice the pause of the receiver, which is safe even
/// if the network delays one of them.
const REPORTS_APART: Nanos = Nanos(2 * REPORT_PAUSE.0);

/// Samples between two reports of another stage: `SAMPLES_PER_NEWS` if its published cost has
/// changed, `SAMPLES_PER_REMINDER` if not.
const SAMPLES_PER_NEWS: u64 = 4;
const SAMPLES_PER_REMINDER: u64 = 1024;

/// The most stages: four for each of more peers and devices than a node has. `STAGES_OURS_MAX` more
/// are only for stages of this node.
const STAGES_KEPT_MAX: usize = 8192;
const STAGES_OURS_MAX: usize = 1024;

/// Places by which the table of stages grows.
const STAGES_MORE: usize = 32;

impl Planner {
    pub(super) fn stage(
        &mut self,
        resource: StageResource,
        name: impl FnOnce() -> String,
        prior: Stage,
    ) -> StageIndex {
        if let Some(&index) = self.index.get(&resource) {
            return index;
        }
        let state = self.memory.begin(&resource, name(), prior);
        let index = match self.free.pop() {
            Some(index) => {
                self.stages[usize::from(index.0)] = state;
                index
            }
            // What has no stage is planned without. Peers never take the last places: those are for
            // what is ours.
            None if self.stages.len() >= STAGES_KEPT_MAX + places_kept(&resource) => {
                return StageIndex::NONE;
            }
            None => {
                // Thousands may come, and a table that doubles has room for as many that do not.
                if self.stages.len() == self.stages.capacity() {
                    self.stages.reserve_exact(STAGES_MORE);
                }
                self.stages.push(state);
                StageIndex(self.stages.len() as u16 - 1)
            }
        };
        self.servers.renew(index);
        self.index.insert(resource, index);
        index
    }

    /// Drops the stages of a peer that was asked (`outbound`), or served. Others get their places,
    /// so that nobody fills the table under ever new names.
    pub fn forget_peer(&mut self, peer: &str, outbound: bool) {
        let is_theirs = |resource: &StageResource| match resource {
            StageResource::Net { peer: of, outbound: way, .. }
            | StageResource::Peer { peer: of, outbound: way, .. } => of == peer && *way == outbound,
            StageResource::PeerSync { peer: of } => of == peer && outbound,
            _ => false,
        };
        self.forget(is_theirs);
    }

    /// Takes costs of an earlier run for stages that were not measured yet.
    pub fn take_kept(&mut self, kept: Vec<(StageResource, KeptStage)>) {
        for (what, cost) in kept {
            self.memory.take(what.clone(), cost);
            let there =
                self.index.get(&what).and_then(|index| self.stages.get_mut(usize::from(index.0)));
            if let Some(state) = there.filter(|state| state.estimator.samples() == [0, 0]) {
                self.memory.recall(&what, state);
                state.version += 1;
            }
        }
    }

    /// Costs to keep for a later run: of stages in use, and of stages that were.
    pub fn known_stages(&self) -> Vec<KnownStage> {
        if self.calibration != CalibrationMode::Live {
            return Vec::new();
        }
        let there = self
            .index
            .iter()
            .filter_map(|(what, index)| known(what, self.stages.get(usize::from(index.0))?));
        there.chain(self.memory.known()).collect()
    }

    /// The stage that a peer reports about.
    pub fn peer_stage(&mut self, what: StageResource) -> StageIndex {
        let name = what.to_string();
        let prior = match what {
            StageResource::Peer { stage: ReportedStage::DiskWrite, .. } => DISK_PRIOR,
            StageResource::Peer { stage: ReportedStage::Check, .. } => CHECK_PRIOR,
            _ => DIAL_PRIOR,
        };
        self.stage(what, || name, prior)
    }

    /// Drops a stage that is gone.
    pub fn forget_stage(&mut self, stage: StageIndex) {
        let found = self.index.iter().find(|(_, index)| **index == stage);
        if let Some(what) = found.map(|(what, _)| what.clone()) {
            self.forget(|resource| *resource == what);
        }
    }

    fn forget(&mut self, is_gone: impl Fn(&StageResource) -> bool) {
        let Self { index, free, plans, tracks, stages, memory, .. } = self;
        index.retain(|resource, stage| {
            let gone = is_gone(resource);
            if gone {
                if let Some(state) = stages.get(usize::from(stage.0)) {
                    memory.keep(resource, state);
                }
                free.push(*stage);
                plans.retain(|key, _| !key.path.contains(stage));
                tracks.forget(*stage);
            }
            !gone
        });
    }

    /// The stage of a delay injection that is set; `host`: of its time on the thread.
    pub fn dial_stage(&mut self, place: &DialPlace, host: bool) -> StageIndex {
        let resource = StageResource::Dial { place: place.clone(), host };
        let name = || format!("dial {place}{}", if host { " host" } else { "" });
        self.stage(resource, name, if host { HOST_PRIOR } else { DIAL_PRIOR })
    }

    /// Drops the stages of a delay injection that was cleared.
    pub fn forget_dial(&mut self, place: &DialPlace) {
        self.forget(
            |resource| matches!(resource, StageResource::Dial { place: it, .. } if it == place),
        );
    }

    /// Whether a device has been read (or, with `write`, written).
    pub fn has_disk(&self, device: DeviceId, write: bool) -> bool {
        self.index.contains_key(&StageResource::Disk { device, write })
    }

    pub(super) fn is_device(&self, index: StageIndex) -> bool {
        self.stages.get(usize::from(index.0)).is_some_and(|state| state.is_device)
    }

    fn state(&mut self, index: StageIndex) -> Option<&mut StageState> {
        self.stages.get_mut(usize::from(index.0))
    }

    /// The stage of a device's reads or writes.
    pub fn disk_stage(&mut self, device: DeviceId, write: bool) -> StageIndex {
        let name = || disk_name(device, write);
        self.stage(StageResource::Disk { device, write }, name, DISK_PRIOR)
    }

    /// The stage of a device's syncs after durable writes.
    pub fn sync_stage(&mut self, device: DeviceId) -> StageIndex {
        let name = || format!("sync {}", device_name(device));
        self.stage(StageResource::Sync { device }, name, SYNC_PRIOR)
    }

    /// The stage of a peer's syncs after durable writes.
    pub fn peer_sync_stage(&mut self, peer: &str) -> StageIndex {
        let name = || format!("sync at {peer}");
        self.stage(StageResource::PeerSync { peer: peer.to_owned() }, name, SYNC_PRIOR)
    }

    /// Time of so many bytes in a stage that has nothing else to do, if it was ever measured.
    pub fn alone_time(&self, stage: StageIndex, bytes: u64) -> Option<Nanos> {
        let state = self.stages.get(usize::from(stage.0)).filter(|state| state.samples > 0)?;
        let bytes = bytes as f64;
        let seconds = state.published.stage_at(bytes).alone(bytes);
        (self.calibration != CalibrationMode::Off).then(|| Nanos::from_seconds(seconds))
    }

    /// The two stages of a connection: what this node receives, and what the other side receives
    /// from here.
    pub fn net_stages(
        &mut self,
        peer: &str,
        class: LaneClass,
        outbound: bool,
    ) -> (StageIndex, StageIndex) {
        let mut stage = |incoming: bool| {
            let resource = StageResource::Net { peer: peer.to_owned(), class, outbound, incoming };
            let lane = class.name();
            let side = if outbound { "asked" } else { "served" };
            let way = if incoming { "in" } else { "out" };
            self.stage(resource, || format!("net {peer} {lane} {side} {way}"), NET_PRIOR)
        };
        (stage(true), stage(false))
    }

    /// Notes a fragment that reaches a stage; the ticket is for its departure.
    pub fn arrive(&mut self, stage: StageIndex, now: Nanos) -> Ticket {
        match self.state(stage) {
            Some(state) => state.meter.arrive(now),
            None => Meter::new().arrive(now),
        }
    }

    /// Notes the end of an execution of a stage. `counts`: false for an execution that failed or
    /// came back short, and so says nothing about cost.
    pub fn depart(
        &mut self,
        stage: StageIndex,
        ticket: Ticket,
        bytes: u32,
        counts: bool,
        now: Nanos,
    ) {
        let last = self.servers.last(stage);
        let Some(state) = self.state(stage) else { return };
        if !counts {
            state.meter.abandon(ticket, now);
            return self.servers.interrupt(stage);
        }
        let bytes = u64::from(bytes);
        let alone = state.estimator.alone_seconds(bytes);
        let sojourn = now.since(ticket.arrived()).seconds();
        let waited = last.is_some_and(|last| ticket.arrived() <= last)
            && alone.is_none_or(|alone| sojourn >= WAITED * alone);
        self.servers.depart(stage, bytes, waited, now);
        let Some(state) = self.state(stage) else { return };
        if let Some(sample) = state.meter.depart(ticket, bytes, now, alone) {
            self.observe(stage, sample);
        }
    }

    /// Notes the end of an execution of a delay injection, which knows what a fragment waited for.
    /// One that did not is like one alone, however many were there with it. A busy thread may
    /// release several fragments together and late; judged by their time in the stage, these would
    /// look as if the injection had been busy.
    pub fn depart_dial(
        &mut self,
        stage: StageIndex,
        ticket: Ticket,
        bytes: u32,
        passage: Passage,
        now: Nanos,
    ) {
        let Some(state) = self.state(stage) else { return };
        match passage {
            Passage::Alone => {
                let _ = state.meter.depart(ticket, bytes.into(), now, Some(f64::INFINITY));
                self.sample_alone(stage, bytes, now.since(ticket.arrived()));
            }
            Passage::Waited => {
                let gaps = state.meter.depart(ticket, bytes.into(), now, None);
                if let Some(sample @ Sample::Backlogged { .. }) = gaps {
                    self.observe(stage, sample);
                }
            }
            Passage::HeldBack => state.meter.abandon(ticket, now),
        }
    }

    /// Notes a frame that arrived. `backlogged`: the frame before it had not left when this one was
    /// ready.
    pub fn arrived(&mut self, stage: StageIndex, bytes: u32, backlogged: bool, now: Nanos) {
        self.servers.depart(stage, bytes.into(), backlogged, now);
    }

    /// Counts time that the thread spent on something that is timed by itself.
    pub fn note_work(&mut self, time: Nanos) {
        self.servers.work(time);
    }

    /// The stage of checksums on this node.
    pub fn check_stage(&self) -> StageIndex {
        self.check
    }

    /// Adds a sample of a copy within memory.
    pub fn sample_copy(&mut self, bytes: u32, time: Nanos) {
        self.servers.work(time);
        self.sample_backlogged(self.copy, bytes, time);
    }

    /// How long so many bytes occupy a stage, in seconds, as far as is known; 0 without a stage.
    pub fn seconds(&self, stage: StageIndex, bytes: u32) -> f64 {
        let bytes = f64::from(bytes);
        let state = self.stages.get(usize::from(stage.0));
        state.map_or(0.0, |state| state.published.stage_at(bytes).occupancy(bytes))
    }

    /// Adds a sample of a frame's checksum.
    pub fn sample_check(&mut self, bytes: u32, time: Nanos) {
        self.sample_backlogged(self.check, bytes, time);
    }

    /// Time of the checksum of so many bytes, as far as is known.
    pub fn check_time(&self, bytes: u32) -> Nanos {
        let state = &self.stages[usize::from(self.check.0)];
        let bytes = f64::from(bytes);
        Nanos::from_seconds(state.published.stage_at(bytes).occupancy(bytes))
    }

    /// Adds a sample of a fragment that met no other.
    pub fn sample_alone(&mut self, stage: StageIndex, bytes: u32, time: Nanos) {
        self.observe(stage, Sample::Alone { bytes: u64::from(bytes), seconds: time.seconds() });
    }

    /// Adds a sample of the time between a fragment's departure and the one before it, for which it
    /// had waited.
    pub fn sample_backlogged(&mut self, stage: StageIndex, bytes: u32, time: Nanos) {
        self.observe(
            stage,
            Sample::Backlogged { bytes: u64::from(bytes), seconds: time.seconds() },
        );
    }

    fn observe(&mut self, stage: StageIndex, sample: Sample) {
        let calibration = self.calibration;
        let Some(state) = self.state(stage) else { return };
        if calibration == CalibrationMode::Off {
            return;
        }
        state.estimator.own().observe(sample);
        state.samples += 1;
        (state.last_bytes, _) = sample.measured();
        let due = state.samples < SAMPLES_PER_LOOK
            || state.samples - state.looked_at >= SAMPLES_PER_LOOK
            || state.estimator.changes() != state.changes;
        if calibration == CalibrationMode::Live && due {
            (state.looked_at, state.changes) = (state.samples, state.estimator.changes());
            state.publish();
        }
    }

    /// Takes a peer's report of a stage. The figures are bounded, not believed. `last`: no more
    /// reports belong to this one.
    pub fn handle_report(&mut self, stage: StageIndex, claim: &Summary, last: bool) {
        if self.calibration != CalibrationMode::Live {
            return;
        }
        let Some(state) = self.state(stage) else { return };
        if let Some(claim) = claim.bounded(FRAGMENT_BYTES_MAX.into()) {
            state.estimator.own().adopt(&claim);
            state.samples += 1;
        }
        state.reported = true;
        if last {
            state.publish();
        }
    }

    /// Whether there is news of a stage of this node since the last report; it counts as reported
    /// then.
    pub fn is_news(
        &mut self,
        stage: StageIndex,
        told: &mut Told,
        kind: ReportedStage,
        now: Nanos,
    ) -> bool {
        let Some(state) = self.state(stage) else { return false };
        if state.samples < told.samples {
            // Another stage than the one that was told of.
            *told = Told::default();
        }
        let since = state.samples - told.samples;
        let due = match kind {
            _ if state.version != told.version => since >= SAMPLES_PER_NEWS,
            // It is nearly always the wire that a plan stands and falls with.
            ReportedStage::Net => since >= SAMPLES_PER_REPORT,
            _ => since >= SAMPLES_PER_REMINDER,
        };
        // What comes sooner does not count where it is heard.
        let is_soon = now < told.at + REPORTS_APART;
        if state.samples < 4 || told.samples > 0 && (!due || is_soon) {
            return false;
        }
        *told = Told { samples: state.samples, version: state.version, at: now };
        true
    }

    /// Summaries to report of a stage. `host`: the stage of its time on the thread, or none.
    pub fn news(&self, stage: StageIndex, host: StageIndex) -> impl Iterator<Item = Summary> + '_ {
        let state = |index: StageIndex| self.stages.get(usize::from(index.0));
        let host = state(host).map(|state| state.estimator.estimate());
        let known = state(stage).into_iter().flat_map(|state| state.estimator.summaries());
        let known = known.filter(|known| known.weight >= TOLD_WEIGHT_MIN);
        known.map(move |known| host.map_or(known, |host| behind(&host, known)))
    }

    /// Costs that plans were made from, with the stages' names.
    pub fn describe(&self, costs: &PathCosts) -> Vec<StageReport> {
        costs
            .iter()
            .filter_map(|(index, cost)| {
                self.stages.get(usize::from(index.0)).map(|state| StageReport {
                    with: self.served_with(index, state),
                    ..state.report(cost)
                })
            })
            .collect()
    }

    pub(super) fn served_with(&self, stage: StageIndex, state: &StageState) -> Vec<ServedWith> {
        self.servers.report(stage, state.on_thread)
    }

    /// The stage of copies within memory.
    pub fn copy_stage(&self) -> StageIndex {
        self.copy
    }

    /// A stage's name, and whether it is a device or a delay injection on one.
    pub fn stage_name(&self, stage: StageIndex) -> (&str, bool) {
        let state = self.stages.get(usize::from(stage.0));
        let other = if stage == StageIndex::PEER { "peer" } else { "?" };
        state.map_or((other, false), |state| (&state.name, state.at_device))
    }

    /// Reports of every stage in use.
    pub fn report(&self) -> Vec<StageReport> {
        let free: BTreeSet<u16> = self.free.iter().map(|index| index.0).collect();
        let used = self.stages.iter().enumerate();
        let used = used.filter(|&(at, _)| !free.contains(&(at as u16)));
        let live = self.calibration == CalibrationMode::Live;
        let report = |(at, state): (usize, &StageState)| {
            let report = match live {
                // Nearer than what plans see, which moves only when it is worth new plans.
                true => state.report(&state.estimator.estimate()),
                false => state.report_now(),
            };
            StageReport { with: self.served_with(StageIndex(at as u16), state), ..report }
        };
        used.map(report).collect()
    }

    /// Reports of at most `most` stages, with their resources.
    pub fn named_stages(&self, most: usize) -> Vec<(StageResource, StageReport)> {
        // Those of this node first, then those of peers that it calls.
        let is_of_some = |what: &StageResource| {
            let net = matches!(what, StageResource::Net { .. } | StageResource::Peer { .. });
            net || matches!(what, StageResource::PeerSync { .. })
        };
        let rank = |what: &StageResource| (is_of_peers(what), is_of_some(what));
        let mut named: Vec<_> = self.index.iter().collect();
        named.sort_by_key(|(what, _)| rank(what));
        let named = named.into_iter().take(most);
        let state = |index: &StageIndex| self.stages.get(usize::from(index.0));
        named.filter_map(|(what, index)| Some((what.clone(), state(index)?.report_now()))).collect()
    }
}

/// Places beyond the common limit that a stage may take.
fn places_kept(resource: &StageResource) -> usize {
    if is_of_peers(resource) { 0 } else { STAGES_OURS_MAX }
}

/// Whether the stage comes with peers that connect to this node, in any number.
fn is_of_peers(resource: &StageResource) -> bool {
    matches!(
        resource,
        StageResource::Net { outbound: false, .. } | StageResource::Peer { outbound: false, .. }
    )
}

pub(super) fn disk_name(device: DeviceId, write: bool) -> String {
    format!("disk {} {}", device_name(device), if write { "write" } else { "read" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_is_seen_is_news_also_where_it_costs_what_was_guessed() {
        let mut planner = Planner::new(PlannerMode::Auto, CalibrationMode::Live, false);
        let disk = planner.disk_stage(DeviceId(1), true);
        let mut told = Told::default();
        // Each beyond the first two lies on the line that those have shown.
        let is_news = |planner: &mut Planner, told: &mut Told, now| {
            planner.is_news(disk, told, ReportedStage::DiskWrite, now)
        };
        for (known, bytes) in [4096_u32, 1 << 20, 64 << 10, 16 << 10].into_iter().enumerate() {
            let now = Nanos::from_millis(10 * (1 + known as u64));
            for _ in 0..20 {
                let busy = Nanos(100_000 + 10 * u64::from(bytes));
                planner.sample_alone(disk, bytes, Nanos(busy.0 + 50_000));
                planner.sample_backlogged(disk, bytes, busy);
            }
            let soon = told.at;
            assert!(known == 0 || !is_news(&mut planner, &mut told, soon), "it would not count");
            assert!(is_news(&mut planner, &mut told, now), "{bytes}");
            assert_eq!(planner.news(disk, StageIndex::NONE).count(), 2 * (known + 1));
            assert!(!is_news(&mut planner, &mut told, now + Nanos::from_millis(5)));
        }
        // One sample among many others is one.
        planner.sample_alone(disk, 256 << 10, Nanos(2_771_440));
        (0..100).for_each(|_| planner.sample_alone(disk, 4096, Nanos(190_960)));
        assert_eq!(planner.news(disk, StageIndex::NONE).count(), 9);
    }

    /// What a delay injection holds back behind a stall is there as long as that stall.
    #[test]
    fn what_is_held_back_behind_another_is_no_sample() {
        let mut planner = Planner::new(PlannerMode::Auto, CalibrationMode::Live, false);
        let dial = planner.dial_stage(&DialPlace::Copy, false);
        let at = Nanos::from_micros;
        for begun in (0..100).map(|round| 10_000 * round) {
            let tickets = [0, 10, 20].map(|later| planner.arrive(dial, at(begun + later)));
            for (number, ticket) in tickets.into_iter().enumerate() {
                let passage = if number == 0 { Passage::Alone } else { Passage::HeldBack };
                planner.depart_dial(dial, ticket, 4096, passage, at(begun + 5_000));
            }
        }
        let samples = |planner: &Planner| planner.stages[usize::from(dial.0)].estimator.samples();
        assert_eq!(samples(&planner), [100, 0]);
        let tickets = [(); 40].map(|()| planner.arrive(dial, at(2_000_000)));
        for (ticket, number) in tickets.into_iter().zip(1..) {
            let now = at(2_000_000 + 20 * number);
            planner.depart_dial(dial, ticket, 4096, Passage::Waited, now);
        }
        assert!(samples(&planner)[1] > 0, "those that wait for their turn are samples");
    }

    #[test]
    fn peers_that_come_under_ever_new_names_share_places() {
        let mut planner = Planner::new(PlannerMode::Auto, CalibrationMode::Live, false);
        let kept = planner.net_stages("kept", LaneClass::Bulk, true);
        let before = planner.stages.len();
        for number in 0..10_000 {
            let name = format!("stranger {number}");
            let (_, out) = planner.net_stages(&name, LaneClass::Bulk, false);
            let path = planner.path_out(None, out);
            let _ = planner.plan(path, 1 << 20);
            planner.forget_peer(&name, false);
        }
        assert_eq!(planner.stages.len(), before + 2);
        assert_eq!(planner.net_stages("kept", LaneClass::Bulk, true), kept, "asked, not served");
        assert!(planner.plans.is_empty(), "plans over stages that are gone");
        // Without anybody forgotten there is an end, too.
        for number in 0..STAGES_KEPT_MAX {
            let _ = planner.net_stages(&format!("peer {number}"), LaneClass::Bulk, false);
        }
        assert_eq!(planner.stages.len(), STAGES_KEPT_MAX);
        // What is ours has a place all the same, and is told of first.
        let ours = planner.disk_stage(DeviceId(7), false);
        assert!(ours != StageIndex::NONE && ours != planner.disk_stage(DeviceId(8), false));
        let told = planner.named_stages(8);
        assert!(told.iter().any(|(_, report)| report.name == disk_name(DeviceId(7), false)));
        let (_, none) = planner.net_stages("one more", LaneClass::Bulk, false);
        let path = planner.path_out(None, none);
        assert!(planner.plan(path, 1 << 20).cut.source.first() > 0, "planned without");
    }
}
