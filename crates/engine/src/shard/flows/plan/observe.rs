//! What the shard answers when somebody looks: bounded work, and nothing changes.

use std::sync::Arc;

use piped_core::limits::STAGES_OBSERVED_MAX;
use piped_core::link::LaneClass;
use piped_core::units::Nanos;
use piped_planner::kept::KnownStage;
use piped_report::shard::{
    ChannelArrivals, Counters, Explanation, LaneReport, Observation, PeerReport, SessionUse,
    ShardReport, StageReport, TransferReport, device_name,
};
use piped_report::trace::TraceState;

use crate::shard::Shard;
use crate::shard::links::Link;
use crate::shard::peers::Peer;
use crate::shard::requests::Transfer;
use crate::shard::watch::{Recording, Spot};

impl Shard {
    /// The shard at a glance.
    #[must_use]
    pub fn report(&self) -> ShardReport {
        let report = |(name, inbound): (&str, bool), lanes: Vec<LaneReport>, heard| PeerReport {
            name: name.to_owned(),
            inbound,
            lanes,
            heard,
        };
        let asked = self.peers.all_there().map(|peer| {
            // One that is not used has no connections, and none is missing.
            let is_there = |class| peer.is_wanted() || peer.lane(class).is_some();
            let classes = LaneClass::ALL.into_iter();
            let classes = classes.filter(|&class| peer.uses(class) && is_there(class));
            let lanes = classes.map(|class| {
                let messages = self.report_messages(peer).filter(|_| class == LaneClass::Latency);
                LaneReport { messages, ..self.report_lane(class, peer.lane_state(class)) }
            });
            let now_there = LaneClass::ALL.into_iter().filter_map(|class| peer.lane(class));
            let heard = self.heard_by(now_there).max(peer.heard());
            report((peer.name(), false), lanes.collect(), heard)
        });
        let mut peers: Vec<PeerReport> = asked.collect();
        peers.sort_by(|a, b| a.name.cmp(&b.name));
        peers.extend(self.links.iter().map(|(_, link)| {
            let classes = LaneClass::ALL.into_iter().filter(|&class| link.uses(class));
            let lanes = classes.map(|class| self.report_lane(class, link.lane_state(class)));
            report((link.name(), true), lanes.collect(), self.heard_by(link.lanes()))
        }));
        ShardReport {
            planner: self.cx.planner.mode(),
            calibration: self.cx.planner.calibration(),
            sessions: self.clients.len() as u32,
            transfers: self.transfers.len(),
            serves: self.serves.len(),
            ops: self.cx.driver.len(),
            lent: self.lanes.lent(),
            dials: self.cx.dials.count(),
            staging_bytes: self.cx.buffers.staging().bytes(),
            staging_used_bytes: self.cx.buffers.staging().used().now,
            staging_lanes_bytes: self.cx.buffers.staging().scratch_bytes(),
            limits: self.limit_use(),
            handles: self.handles.len() as u32,
            served_handles: self.links.served(),
            counters: self.count(),
            reasons: self.cx.watch.reasons(),
            peers,
        }
    }

    fn count(&self) -> Counters {
        let mut frames = [0; 2];
        for (_, lane) in self.lanes.iter() {
            frames[0] += lane.sender.frames_sent();
            frames[1] += lane.receiving.frames();
        }
        self.cx.watch.count(self.transfers.wholes().map(Transfer::moved).sum(), frames)
    }

    /// All there is for metrics. Takes some microseconds: what it copies has a fixed size, but for
    /// the stages and the peers, which have a limit.
    #[must_use]
    pub fn observe(&self) -> Box<Observation> {
        let mut observation = Box::new(Observation {
            report: self.report(),
            tally: Clone::clone(&self.cx.watch.tally),
            stages: self.cx.planner.named_stages(STAGES_OBSERVED_MAX),
        });
        let tally = &mut observation.tally;
        for transfer in self.transfers.wholes() {
            let kind = (transfer.kind, transfer.body.place(&self.bodies), transfer.class);
            tally.add_transfer_bytes(kind, transfer.moved());
        }
        for (_, serve) in self.serves.iter() {
            tally.add_serve_bytes((serve.operation(), serve.ask.asker.class), serve.moved());
        }
        observation
    }

    /// The stages with their measured costs.
    #[must_use]
    pub fn stages(&self) -> Vec<StageReport> {
        self.cx.planner.report()
    }

    /// What is to be kept of the stages; nothing unless calibration is live.
    #[must_use]
    pub fn kept(&self) -> Vec<KnownStage> {
        self.cx.planner.known_stages()
    }

    /// A recent transfer by number, or the last one that moved bytes.
    #[must_use]
    pub fn explain(&self, id: Option<u64>) -> Option<Explanation> {
        let named = |name: Option<&str>| {
            name.map_or_else(|| String::from("a peer"), |name| format!("peer {name}"))
        };
        self.cx.watch.explain(id, &self.cx.planner, |spot| match spot {
            Spot::Device(device) => format!("disk {}", device_name(device)),
            Spot::Peer(peer) => named(self.peers.get(peer).map(Peer::name)),
            Spot::Caller(link) | Spot::Second(link) => named(self.links.get(link).map(Link::name)),
        })
    }

    /// What was seen of messages, for the model of the memory they need; and how many messages of
    /// other channels there were. Its size has a limit.
    #[must_use]
    pub fn arrivals(&self, now: Nanos) -> (Vec<ChannelArrivals>, u64) {
        let name = |link| self.links.get(link).map(|link| link.name().to_owned());
        self.messages.report(&self.cx, now, name)
    }

    /// What each session has used.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionUse> {
        self.clients.report(|session| {
            let its = self.transfers.wholes().filter(|it| it.session == session);
            its.map(Transfer::moved).sum()
        })
    }

    /// At most `most` of what runs, clients' transfers first, and how many run in all.
    #[must_use]
    pub fn running(&self, now: Nanos, most: usize) -> (u32, Vec<TransferReport>) {
        let transfers = self.transfers.wholes().map(|transfer| TransferReport {
            id: transfer.id,
            operation: transfer.kind,
            served: false,
            route: transfer.body.route(&self.bodies).to_owned(),
            class: transfer.class,
            session: Some(transfer.session.0),
            bytes: transfer.length,
            bytes_done: transfer.moved(),
            age_seconds: now.since(transfer.started).seconds(),
            left_seconds: Some(left(transfer.deadline, now)),
            ended_seconds_ago: None,
            status: transfer.status,
            retries: transfer.attempts.retries(),
        });
        let serves = self.serves.iter().map(|(_, serve)| TransferReport {
            id: 0,
            operation: serve.operation(),
            served: true,
            route: serve.route().to_owned(),
            class: serve.ask.asker.class,
            session: None,
            bytes: serve.ask.length,
            bytes_done: serve.done,
            age_seconds: now.since(serve.started).seconds(),
            left_seconds: Some(left(serve.deadline, now)),
            ended_seconds_ago: None,
            status: serve.status,
            retries: 0,
        });
        let listed = transfers.chain(serves).take(most).collect();
        (self.transfers.wholes().count() as u32 + self.serves.len(), listed)
    }

    /// The last `most` transfers that ended, the latest first.
    #[must_use]
    pub fn ended(&self, now: Nanos, most: usize) -> Vec<TransferReport> {
        self.cx.watch.ended(now, most)
    }

    /// How far a recording is.
    #[must_use]
    pub fn trace_state(&self) -> TraceState {
        self.cx.watch.trace_state()
    }

    /// What the last recording has, once it is over.
    #[must_use]
    pub fn recording(&self) -> Option<Arc<Recording>> {
        self.cx.watch.recording()
    }
}

fn left(deadline: Nanos, now: Nanos) -> f64 {
    deadline.since(now).seconds() - now.since(deadline).seconds()
}
