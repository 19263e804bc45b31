//! Makes Prometheus' families of what shards and sockets counted.
//!
//! Labels are bounded: enums of the engine and the daemon, the shards, the devices below open
//! files, and names of peers in the configuration. A peer with another name, which it chose itself,
//! counts as `other`.

use std::collections::{BTreeMap, BTreeSet};

use piped_control::parties::node_of_shard;
use piped_core::status::Status;
use piped_report::histogram::{Histogram, RATIO_ONE};
use piped_report::shard::{Observation, PeerReport, StageReport, StageResource, device_name};
use piped_report::tally::{
    ALGORITHMS, BounceReason, CLASSES, Company, Ended, LaneLoss, MessageWay, Operation, PlanPath,
    RetryReason, Route, SendWay, Tally, class_name,
};
use piped_text::shown;
use prometheus::proto;

use super::define::{self, Definition};
use crate::admin::sent::{Door, Sent, SentAway};
use crate::client::reasons::{Eviction, Evictions, HandshakeRefusal, Refusals};
use crate::peer::greet::{Greeting, Greetings};
use crate::shard::message::ReactorReport;

/// All exposed values at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// Version of the daemon, and its start in seconds since 1970.
    pub(super) begun: (&'static str, f64),
    pub(super) shards: Vec<ShardObservation>,
    /// Evictions of all shards and sockets.
    pub(super) evictions: Evictions,
    pub(super) refusals: Refusals,
    pub(super) sent_away: SentAway,
    pub(super) greetings: Greetings,
    /// Sources of discovery, and whether each is away.
    pub(super) sources: Vec<(&'static str, bool)>,
    /// Share that is left of the time of this node's certificate, in a cluster.
    pub(super) certificate: Option<f64>,
    /// Memory shared with clients, made for them and lent by them, each with its limit.
    pub(super) memory: [(u64, u64); 2],
    /// Names of peers in the configuration.
    pub(super) known_peers: BTreeSet<String>,
}

/// Counts of one shard.
#[derive(Debug)]
pub struct ShardObservation {
    /// Counts of its engine.
    pub engine: Box<Observation>,
    /// Unexpected-message buffer that its messages need.
    pub early_required_bytes: u64,
    /// Counts of its thread.
    pub reactor: ReactorReport,
    /// Evictions of its clients.
    pub evictions: Evictions,
    /// Descriptors that were no requests, by the status they ended with.
    pub malformed: [u64; Status::ALL.len()],
}

impl Snapshot {
    pub(super) fn families(&self) -> Vec<proto::MetricFamily> {
        let mut table = Table::default();
        let (version, started) = self.begun;
        table.put(&define::BUILD, &[version], 1.0);
        table.put(&define::START, &[], started);
        let [(arena, arena_limit), (lent, lent_limit)] = self.memory;
        table.count(&define::ARENA, &[], arena);
        table.count(&define::ARENA_LIMIT, &[], arena_limit);
        table.count(&define::LENT, &[], lent);
        table.count(&define::LENT_LIMIT, &[], lent_limit);
        for (number, shard) in self.shards.iter().enumerate() {
            self.shard(&mut table, &number.to_string(), shard);
        }
        self.sums(&mut table);
        for why in Eviction::ALL {
            table.count(&define::EVICTIONS, &[why.name()], self.evictions[why as usize]);
        }
        for why in HandshakeRefusal::ALL {
            table.count(&define::REFUSED, &[why.name()], self.refusals[why as usize]);
        }
        for door in Door::ALL {
            for why in Sent::ALL {
                let count = self.sent_away[door as usize][why as usize];
                table.count(&define::SENT_AWAY, &[door.name(), why.name()], count);
            }
        }
        for how in Greeting::ALL {
            table.count(&define::GREETINGS, &[how.name()], self.greetings[how as usize]);
        }
        if let Some(left) = self.certificate {
            table.put(&define::CERTIFICATE_LEFT, &[], left);
        }
        for (source, is_away) in &self.sources {
            table.count(&define::DISCOVERY_AWAY, &[source], (*is_away).into());
        }
        table.families.into_values().collect()
    }

    /// Writes the families of one shard.
    fn shard(&self, table: &mut Table, number: &str, shard: &ShardObservation) {
        let (report, reactor) = (&shard.engine.report, &shard.reactor);
        for (definition, value) in [
            (&define::SESSIONS, report.sessions.into()),
            (&define::HANDLES, report.handles.into()),
            (&define::SERVED_HANDLES, report.served_handles.into()),
            (&define::TRANSFERS_RUNNING, report.transfers.into()),
            (&define::SERVES_RUNNING, report.serves.into()),
            (&define::DIALS, report.dials.into()),
            (&define::STAGING_USED, report.staging_used_bytes),
            (&define::STAGING_LANES, report.staging_lanes_bytes),
            (&define::STAGING_LIMIT, report.limits.staging_limit_bytes),
            (&define::STAGING_OWNED, report.staging_bytes),
            (&define::IN_FLIGHT, report.limits.in_flight.now),
            (&define::EARLY_ARRIVAL, report.limits.early_arrival.now),
            (&define::EARLY_ARRIVAL_LIMIT, report.limits.early_arrival_limit_bytes),
            (&define::EARLY_ARRIVAL_REQUIRED, shard.early_required_bytes),
            (&define::IN_FLIGHT_LIMIT, report.limits.in_flight_limit_bytes),
            (&define::REQUESTS_RUNNING, report.limits.requests.now),
            (&define::REQUESTS_LIMIT, report.limits.requests_limit.into()),
            (&define::LIMIT_WAITS, report.limits.waited),
            (&define::SHARD_FILES, reactor.files.into()),
            (&define::SHARD_FILES_LIMIT, reactor.files_limit.into()),
            (&define::REGISTERED, reactor.registered_bytes),
            (&define::TURNS, reactor.turns),
            (&define::SLEEPS, reactor.sleeps),
            (&define::STALLS, reactor.stalls),
            (&define::SYSCALLS, reactor.syscalls),
        ] {
            table.count(definition, &[number], value);
        }
        for (buffer, value) in [
            ("registered", reactor.buffers_registered),
            ("unregistered", reactor.buffers_unregistered),
        ] {
            table.count(&define::FILE_OPERATIONS, &[number, buffer], value);
        }
        self.lanes(table, number, &report.peers);
        for (what, stage) in &shard.engine.stages {
            self.stage(table, number, what, stage);
        }
    }

    fn lanes(&self, table: &mut Table, shard: &str, peers: &[PeerReport]) {
        let mut others = BTreeMap::new();
        // Several peers with one label are one: it is up if any of them is.
        let mut known = BTreeMap::new();
        for peer in peers {
            for lane in &peer.lanes {
                let (class, up) = (lane.class.name(), u64::from(lane.up));
                if peer.inbound && !self.knows(&peer.name) {
                    *others.entry(class).or_insert(0) += up;
                    continue;
                }
                let role = if peer.inbound { "served" } else { "asked" };
                let of_name = known.entry((&peer.name, role, class)).or_insert((0, 0));
                *of_name = (up.max(of_name.0), lane.epoch.max(of_name.1));
            }
        }
        for ((name, role, class), (up, epoch)) in known {
            let labels = [shard, name, role, class];
            table.count(&define::LANE_UP, &labels, up);
            table.count(&define::LANE_EPOCH, &labels, epoch.into());
        }
        for (class, up) in others {
            table.count(&define::LANE_UP, &[shard, "other", "served", class], up);
        }
    }

    /// Whether the configuration has the peer's name, or that of the node that the shard belongs
    /// to.
    fn knows(&self, peer: &str) -> bool {
        node_of_shard(peer).is_some_and(|node| self.known_peers.contains(node))
    }

    fn stage(&self, table: &mut Table, shard: &str, what: &StageResource, stage: &StageReport) {
        let device;
        let (name, of, lane, direction) = match what {
            StageResource::Copy => ("copy", "", "", ""),
            StageResource::Check => ("check", "", "", ""),
            StageResource::Disk { device: it, write } => {
                device = device_name(*it);
                ("disk", device.as_str(), "", if *write { "write" } else { "read" })
            }
            StageResource::Cache { device: it } => {
                device = device_name(*it);
                ("cache", device.as_str(), "", "read")
            }
            StageResource::Sync { device: it } => {
                device = device_name(*it);
                ("sync", device.as_str(), "", "write")
            }
            StageResource::PeerSync { peer } => ("sync_asked", peer.as_str(), "", "write"),
            StageResource::Peer { peer, outbound, .. } if !outbound && !self.knows(peer) => return,
            StageResource::Peer { peer, class, outbound, stage, handle } => {
                device = format!(
                    "{}_{}",
                    stage.name().replace(' ', "_"),
                    if *outbound { "asked" } else { "served" }
                );
                // Each handle has its own disk stage: a label for each would never end.
                if *handle > 0 {
                    return;
                }
                (device.as_str(), peer.as_str(), class.name(), "out")
            }
            StageResource::Dial { place, host } => {
                device = place.to_string();
                ("dial", device.as_str(), "", if *host { "host" } else { "" })
            }
            StageResource::Net { peer, outbound, .. } if !outbound && !self.knows(peer) => return,
            StageResource::Net { peer, class, outbound, incoming } => {
                let name = if *outbound { "net_asked" } else { "net_served" };
                let direction = if *incoming { "in" } else { "out" };
                (name, peer.as_str(), class.name(), direction)
            }
        };
        let labels = [shard, name, of, lane, direction];
        table.put(&define::STAGE_LATENCY, &labels, stage.latency_seconds);
        table.put(&define::STAGE_OVERHEAD, &labels, stage.overhead_seconds);
        table.put(&define::STAGE_PER_BYTE, &labels, stage.per_byte_seconds);
        table.put(&define::STAGE_CONFIDENCE, &labels, stage.confidence);
        if let Some(window) = stage.window {
            table.put(&define::STAGE_WINDOW, &labels, window.into());
        }
        for (kind, count) in
            [("alone", stage.samples_alone), ("backlogged", stage.samples_backlogged)]
        {
            let labels = [shard, name, of, lane, direction, kind];
            table.count(&define::STAGE_SAMPLES, &labels, count);
        }
    }

    /// Writes the sums over all shards.
    fn sums(&self, table: &mut Table) {
        let mut tally = Tally::default();
        let mut malformed = 0;
        for shard in &self.shards {
            tally.merge(&shard.engine.tally);
            for (count, more) in tally.at_once.iter_mut().zip(shard.malformed) {
                *count += more;
                malformed += more;
            }
        }
        let counters = self.shards.iter().map(|shard| &shard.engine.report.counters);
        let sum = |of: fn(&piped_report::shard::Counters) -> u64| counters.clone().map(of).sum();
        let requests: u64 = sum(|counters| counters.requests);
        for (definition, value) in [
            (&define::REQUESTS, requests + malformed),
            (&define::CORRUPT, sum(|counters| counters.corrupt_frames)),
            (&define::DISCARDED, sum(|counters| counters.discarded_bytes)),
            (&define::RATE_WAITS, sum(|counters| counters.rate_waits)),
            (&define::TURN_WAITS, sum(|counters| counters.turns_waited)),
            (&define::PEERS_FULL, sum(|counters| counters.peers_full)),
            (&define::HOLDS, sum(|counters| counters.held)),
            (&define::HELD, sum(|counters| counters.held.saturating_sub(counters.released))),
        ] {
            table.count(definition, &[], value);
        }
        for (definition, labels, value) in [
            (&define::FRAMES, "sent", sum(|counters| counters.frames_sent)),
            (&define::FRAMES, "received", sum(|counters| counters.frames_received)),
            (
                &define::BOUNCES,
                BounceReason::Unaligned.name(),
                sum(|counters| counters.bounced_unaligned),
            ),
            (
                &define::BOUNCES,
                BounceReason::Mispredicted.name(),
                sum(|counters| counters.bounced_mispredicted),
            ),
        ] {
            table.count(definition, &[labels], value);
        }
        requests_of(table, &tally);
        for why in RetryReason::ALL {
            table.count(&define::RETRIES, &[why.name()], tally.retries[why as usize]);
        }
        for why in LaneLoss::ALL {
            table.count(&define::LANES_LOST, &[why.name()], tally.lanes_lost[why as usize]);
        }
        for way in MessageWay::ALL {
            table.count(&define::MESSAGES, &[way.name()], tally.messages[way as usize]);
        }
        for way in SendWay::ALL {
            table.count(&define::SENDS, &[way.name()], tally.sends[way as usize]);
        }
        for (name, count) in ALGORITHMS.iter().zip(tally.plans).filter(|(_, count)| *count > 0) {
            table.count(&define::PLANS, &[name], count);
        }
        table.histogram(&define::PLAN_BYTES, &[], &tally.fragments, (4, 1.0));
        for path in PlanPath::ALL {
            let ratios = &tally.predictions[path as usize];
            table.histogram(&define::PREDICTION, &[path.name()], ratios, (2, RATIO_ONE as f64));
            for company in Company::ALL {
                let count = tally.predicted[path as usize][company as usize];
                table.count(&define::PREDICTIONS, &[path.name(), company.name()], count);
            }
        }
    }
}

/// Writes requests by kind, for kinds that have occurred.
fn requests_of(table: &mut Table, tally: &Tally) {
    for status in Status::ALL {
        let count = tally.at_once[status as usize];
        if count > 0 {
            table.count(&define::AT_ONCE, &[status.name()], count);
        }
    }
    for operation in Operation::ALL {
        for class in CLASSES {
            for route in Route::ALL {
                let labels = [operation.name(), route.name(), class_name(class)];
                let ended = tally.transfers(operation, route, class);
                let of = [&define::TRANSFERS, &define::TRANSFER_BYTES, &define::TRANSFER_SECONDS];
                ended_of(table, of, &labels, ended);
            }
            let of = [&define::SERVES, &define::SERVE_BYTES, &define::SERVE_SECONDS];
            let labels = [operation.name(), class_name(class)];
            ended_of(table, of, &labels, tally.serves(operation, class));
        }
    }
}

fn ended_of(
    table: &mut Table,
    [counts, bytes, seconds]: [&'static Definition; 3],
    labels: &[&str],
    ended: &Ended,
) {
    if ended.is_empty() {
        return;
    }
    for status in Status::ALL {
        let count = ended.by_status[status as usize];
        if count > 0 {
            table.count(counts, &[labels, &[status.name()]].concat(), count);
        }
    }
    table.count(bytes, labels, ended.bytes);
    table.histogram(seconds, labels, &ended.latencies, (4, 1e9));
}

/// Families by their names.
#[derive(Debug, Default)]
struct Table {
    families: BTreeMap<&'static str, proto::MetricFamily>,
}

impl Table {
    fn count(&mut self, definition: &'static Definition, labels: &[&str], value: u64) {
        self.put(definition, labels, value as f64);
    }

    fn put(&mut self, definition: &'static Definition, labels: &[&str], value: f64) {
        let mut metric = metric(definition, labels);
        if definition.kind == proto::MetricType::COUNTER {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.push(definition, metric);
    }

    /// Writes every `every`-th bound of the engine's buckets; `one` is the number for a value of 1.
    fn histogram<const FIRST: u32, const BUCKETS: usize>(
        &mut self,
        definition: &'static Definition,
        labels: &[&str],
        counts: &Histogram<FIRST, BUCKETS>,
        (every, one): (usize, f64),
    ) {
        let mut cumulative = 0;
        let mut buckets = Vec::new();
        for (place, (bound, count)) in counts.buckets().enumerate() {
            cumulative += count;
            if let Some(bound) = bound.filter(|_| place % every == 0) {
                let mut bucket = proto::Bucket::default();
                bucket.set_cumulative_count(cumulative);
                bucket.set_upper_bound(bound as f64 / one);
                buckets.push(bucket);
            }
        }
        let mut histogram = proto::Histogram::default();
        histogram.set_sample_count(cumulative);
        histogram.set_sample_sum(counts.sum() as f64 / one);
        histogram.set_bucket(buckets);
        let mut metric = metric(definition, labels);
        metric.set_histogram(histogram);
        self.push(definition, metric);
    }

    fn push(&mut self, definition: &'static Definition, metric: proto::Metric) {
        let family = self.families.entry(definition.name).or_insert_with(|| {
            let mut family = proto::MetricFamily::default();
            family.set_name(definition.name.to_owned());
            family.set_help(definition.help.to_owned());
            family.set_field_type(definition.kind);
            family
        });
        family.mut_metric().push(metric);
    }
}

fn metric(definition: &Definition, labels: &[&str]) -> proto::Metric {
    debug_assert_eq!(definition.labels.len(), labels.len(), "{}", definition.name);
    let pair = |(name, value): (&&str, &&str)| {
        let mut pair = proto::LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value(shown(value).into_owned());
        pair
    };
    proto::Metric::from_label(definition.labels.iter().zip(labels).map(pair).collect())
}
