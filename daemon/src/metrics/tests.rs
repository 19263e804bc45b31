//! Compares the table of definitions, docs/metrics.md and the exposed metrics; every count has its
//! place.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use piped_core::ids::DeviceId;
use piped_core::link::LaneClass;
use piped_core::modes::{CalibrationMode, PlannerMode};
use piped_core::request::Class;
use piped_core::status::Status;
use piped_model::plan::Algorithm;
use piped_report::shard::{
    Counters, Gauge, LaneReport, LimitUse, Observation, PeerReport, Reasons, ShardReport,
    StageReport, StageResource,
};
use piped_report::tally::{
    Company, LaneLoss, MessageWay, Operation, PlanPath, RetryReason, Route, SendWay, Tally,
};
use prometheus::proto::MetricType;

use super::families::{ShardObservation, Snapshot};
use super::*;
use crate::client::reasons::{Eviction, HandshakeRefusal};
use crate::peer::greet::Greeting;
use crate::shard::message::ReactorReport;

fn lane(class: LaneClass, epoch: u32) -> LaneReport {
    let (frames_sent, frames_received, requests, last_loss) = (0, 0, 0, None);
    LaneReport {
        class,
        up: true,
        epoch,
        frames_sent,
        frames_received,
        requests,
        last_loss,
        pace: None,
        zero_copy: None,
        messages: None,
        protection: None,
        sums: None,
    }
}

fn peer(name: &str, inbound: bool, epoch: u32) -> PeerReport {
    let lanes = vec![lane(LaneClass::Latency, epoch), lane(LaneClass::Bulk, epoch + 1)];
    PeerReport { name: name.to_owned(), inbound, lanes, heard: None }
}

fn stage() -> StageReport {
    StageReport {
        name: String::new(),
        latency_seconds: 1e-5,
        overhead_seconds: 2e-6,
        per_byte_seconds: 3e-9,
        window: Some(4),
        samples_alone: 5,
        samples_backlogged: 6,
        confidence: 0.5,
        reported: false,
        kept: false,
        note: String::new(),
        times: Vec::new(),
        relative_error: 0.0,
        with: Vec::new(),
        lines: Vec::new(),
        at_device: false,
        held: None,
    }
}

/// Everything happened, each thing another number of times.
fn snapshot() -> Snapshot {
    let mut tally = Tally::default();
    tally.at_once[Status::BadHandle as usize] = 31;
    tally.retries[RetryReason::Corrupt as usize] = 32;
    tally.lanes_lost[LaneLoss::Unread as usize] = 33;
    tally.sends[SendWay::Copied as usize] = 34;
    tally.messages[MessageWay::Stalled as usize] = 35;
    let kind = (Operation::Get, Route::Remote, Class::Bulk);
    tally.add_transfer(kind, Status::Ok, 1000, 3_000_000);
    tally.add_transfer(kind, Status::PeerLost, 24, 9);
    tally.add_serve((Operation::Write, Class::Latency), Status::Ok, 77, 1);
    tally.add_plan(Algorithm::Serial, 65_536);
    tally.add_prediction((PlanPath::PeerWrite, Company::Alone), 100, 150);
    tally.add_prediction((PlanPath::PeerWrite, Company::Queued), 100, 1500);
    tally.add_prediction((PlanPath::PeerWrite, Company::Queued), 100, 1500);
    let counters = Counters {
        requests: 40,
        completed: 0,
        failed: 0,
        bytes: 0,
        retries: 0,
        bounced_unaligned: 41,
        bounced_mispredicted: 42,
        peers_full: 51,
        turns_waited: 48,
        rate_waits: 49,
        discarded_bytes: 43,
        corrupt_frames: 44,
        held: 50,
        lanes_lost: 0,
        released: 45,
        frames_sent: 46,
        frames_received: 47,
        peer_faults: 0,
        sends_plain: 0,
        sends_zero_copy: 0,
        sends_copied: 0,
    };
    let report = ShardReport {
        planner: PlannerMode::Auto,
        calibration: CalibrationMode::Live,
        sessions: 11,
        transfers: 12,
        serves: 13,
        ops: 0,
        lent: 0,
        dials: 18,
        staging_bytes: 14,
        staging_used_bytes: 15,
        staging_lanes_bytes: 19,
        limits: LimitUse {
            staging_limit_bytes: 101,
            early_arrival: Gauge { now: 107, high: 0 },
            early_arrival_limit_bytes: 108,
            in_flight: Gauge { now: 102, high: 0 },
            in_flight_limit_bytes: 103,
            requests: Gauge { now: 104, high: 0 },
            requests_limit: 105,
            waited: 106,
            ..LimitUse::default()
        },
        handles: 16,
        served_handles: 17,
        counters,
        reasons: Reasons::default(),
        peers: vec![
            peer("beta", false, 61),
            peer("gamma", true, 63),
            peer("gamma#1", true, 65),
            peer("it says", true, 67),
            peer("gamma#x", true, 69),
        ],
    };
    let net = |peer: &str, outbound| StageResource::Net {
        peer: peer.to_owned(),
        class: LaneClass::Bulk,
        outbound,
        incoming: true,
    };
    let stages = vec![
        (StageResource::Disk { device: DeviceId(8 << 8 | 1), write: true }, stage()),
        (net("beta", true), stage()),
        (net("it says", false), stage()),
        (StageResource::Copy, stage()),
    ];
    let reactor = ReactorReport {
        turns: 21,
        sleeps: 22,
        stalls: 27,
        syscalls: 23,
        registered_bytes: 24,
        files: 28,
        files_limit: 29,
        buffers_registered: 25,
        buffers_unregistered: 26,
        ..ReactorReport::default()
    };
    let mut malformed = [0; Status::ALL.len()];
    malformed[Status::Unsupported as usize] = 2;
    let engine = Box::new(Observation { report, tally, stages });
    let mut evictions = [0; Eviction::ALL.len()];
    evictions[Eviction::Message as usize] = 71;
    let mut refusals = [0; HandshakeRefusal::ALL.len()];
    refusals[HandshakeRefusal::Limits as usize] = 72;
    let mut greetings = [0; Greeting::ALL.len()];
    greetings[Greeting::Untrusted as usize] = 73;
    Snapshot {
        begun: ("1.2.3", 1e9),
        shards: vec![ShardObservation {
            engine,
            early_required_bytes: 109,
            reactor,
            evictions,
            malformed,
        }],
        evictions,
        refusals,
        sent_away: [[0, 0, 74, 0, 0], [0, 0, 0, 75, 0]],
        greetings,
        sources: vec![("etcd", true)],
        certificate: Some(0.5),
        memory: [(74, 75), (76, 77)],
        known_peers: ["beta", "gamma"].map(str::to_owned).into(),
    }
}

#[test]
fn every_count_has_its_place_in_the_text() {
    let text = Exposition::new().render(&snapshot());
    for line in [
        r#"piped_build_info{version="1.2.3"} 1"#,
        "process_start_time_seconds 1000000000",
        r#"piped_sessions{shard="0"} 11"#,
        "piped_arena_bytes 74",
        "piped_arena_limit_bytes 75",
        "piped_lent_bytes 76",
        "piped_lent_limit_bytes 77",
        r#"piped_transfers_running{shard="0"} 12"#,
        r#"piped_serves_running{shard="0"} 13"#,
        r#"piped_staging_bytes{shard="0"} 14"#,
        r#"piped_staging_limit_bytes{shard="0"} 101"#,
        r#"piped_in_flight_bytes{shard="0"} 102"#,
        r#"piped_in_flight_limit_bytes{shard="0"} 103"#,
        r#"piped_requests_running{shard="0"} 104"#,
        r#"piped_requests_running_limit{shard="0"} 105"#,
        r#"piped_limit_waits_total{shard="0"} 106"#,
        r#"piped_early_arrival_used_bytes{shard="0"} 107"#,
        r#"piped_early_arrival_limit_bytes{shard="0"} 108"#,
        r#"piped_early_arrival_required_bytes{shard="0"} 109"#,
        r#"piped_staging_used_bytes{shard="0"} 15"#,
        r#"piped_staging_lanes_bytes{shard="0"} 19"#,
        r#"piped_handles{shard="0"} 16"#,
        r#"piped_served_handles{shard="0"} 17"#,
        r#"piped_dials{shard="0"} 18"#,
        r#"piped_shard_turns_total{shard="0"} 21"#,
        r#"piped_shard_sleeps_total{shard="0"} 22"#,
        r#"piped_client_stalls_total{shard="0"} 27"#,
        r#"piped_shard_syscalls_total{shard="0"} 23"#,
        r#"piped_registered_bytes{shard="0"} 24"#,
        r#"piped_shard_files{shard="0"} 28"#,
        r#"piped_shard_files_limit{shard="0"} 29"#,
        r#"piped_file_operations_total{shard="0",buffer="registered"} 25"#,
        r#"piped_file_operations_total{shard="0",buffer="unregistered"} 26"#,
        r#"piped_requests_ended_at_once_total{status="bad_handle"} 31"#,
        r#"piped_requests_ended_at_once_total{status="unsupported"} 2"#,
        r#"piped_retries_total{reason="corrupt"} 32"#,
        r#"piped_retries_total{reason="lane_lost"} 0"#,
        r#"piped_lanes_lost_total{reason="unread"} 33"#,
        "piped_requests_total 42",
        r#"piped_turn_waits_total 48"#,
        r#"piped_rate_waits_total 49"#,
        r#"piped_bounces_total{reason="unaligned"} 41"#,
        r#"piped_bounces_total{reason="mispredicted"} 42"#,
        "piped_discarded_bytes_total 43",
        r#"piped_lane_sends_total{way="copied"} 34"#,
        r#"piped_lane_sends_total{way="zero_copy"} 0"#,
        r#"piped_messages_total{way="stalled"} 35"#,
        r#"piped_messages_total{way="eager"} 0"#,
        "piped_corrupt_frames_total 44",
        "piped_buffer_holds_total 50",
        "piped_held_buffers 5",
        r#"piped_frames_total{direction="sent"} 46"#,
        r#"piped_frames_total{direction="received"} 47"#,
        r#"piped_transfers_total{operation="get",route="remote",class="bulk",status="ok"} 1"#,
        concat!(
            r#"piped_transfers_total{operation="get",route="remote",class="bulk","#,
            r#"status="peer_lost"} 1"#
        ),
        r#"piped_transfer_bytes_total{operation="get",route="remote",class="bulk"} 1024"#,
        r#"piped_transfer_duration_seconds_sum{operation="get",route="remote",class="bulk"} 0.003"#,
        r#"piped_transfer_duration_seconds_count{operation="get",route="remote",class="bulk"} 1"#,
        r#"piped_serves_total{operation="write",class="latency",status="ok"} 1"#,
        r#"piped_serve_bytes_total{operation="write",class="latency"} 77"#,
        r#"piped_serve_duration_seconds_count{operation="write",class="latency"} 1"#,
        r#"piped_plans_total{algorithm="serial"} 1"#,
        r#"piped_plan_fragment_bytes_bucket{le="32768"} 0"#,
        r#"piped_plan_fragment_bytes_bucket{le="65536"} 1"#,
        r#"piped_prediction_ratio_sum{path="peer_write"} 1.5"#,
        r#"piped_prediction_ratio_bucket{path="peer_write",le="1"} 0"#,
        r#"piped_prediction_ratio_bucket{path="peer_write",le="1.5"} 1"#,
        r#"piped_prediction_ratio_count{path="peer_write"} 1"#,
        r#"piped_predictions_total{path="peer_write",company="alone"} 1"#,
        r#"piped_predictions_total{path="peer_write",company="queued"} 2"#,
        r#"piped_lane_up{shard="0",peer="beta",role="asked",class="latency"} 1"#,
        r#"piped_lane_epoch{shard="0",peer="beta",role="asked",class="bulk"} 62"#,
        r#"piped_lane_epoch{shard="0",peer="gamma",role="served",class="latency"} 63"#,
        r#"piped_lane_epoch{shard="0",peer="gamma#1",role="served",class="latency"} 65"#,
        r#"piped_lane_up{shard="0",peer="other",role="served",class="bulk"} 2"#,
        concat!(
            r#"piped_stage_latency_seconds{shard="0",stage="disk",device="8:1",lane="","#,
            r#"direction="write"} 0.00001"#
        ),
        concat!(
            r#"piped_stage_overhead_seconds{shard="0",stage="net_asked",device="beta","#,
            r#"lane="bulk",direction="in"} 0.000002"#
        ),
        concat!(
            r#"piped_stage_per_byte_seconds{shard="0",stage="copy",device="",lane="","#,
            r#"direction=""} 0.000000003"#
        ),
        r#"piped_stage_window{shard="0",stage="copy",device="",lane="",direction=""} 4"#,
        concat!(
            r#"piped_stage_confidence_ratio{shard="0",stage="copy",device="",lane="","#,
            r#"direction=""} 0.5"#
        ),
        concat!(
            r#"piped_stage_samples_total{shard="0",stage="copy",device="",lane="",direction="","#,
            r#"kind="alone"} 5"#
        ),
        concat!(
            r#"piped_stage_samples_total{shard="0",stage="copy",device="",lane="",direction="","#,
            r#"kind="backlogged"} 6"#
        ),
        r#"piped_evictions_total{reason="message"} 71"#,
        r#"piped_evictions_total{reason="submission_ring"} 0"#,
        r#"piped_handshakes_refused_total{reason="limits"} 72"#,
        r#"piped_connections_sent_away_total{door="admin",reason="displaced"} 74"#,
        r#"piped_connections_sent_away_total{door="metrics",reason="silent"} 75"#,
        r#"piped_peer_handshakes_total{outcome="untrusted"} 73"#,
        r#"piped_discovery_away{source="etcd"} 1"#,
        "piped_certificate_left 0.5",
    ] {
        assert!(text.lines().any(|it| it == line), "no line {line} in\n{text}");
    }
    assert!(!text.contains("it says") && !text.contains("gamma#x"), "a peer's own words\n{text}");
}

/// A scraped family: its type, and its labels.
type Shape = (MetricType, BTreeSet<String>);

#[test]
fn what_is_exposed_is_what_is_defined() {
    let exposition = Exposition::new();
    *exposition.latest.0.lock() = snapshot().families();
    let gathered: BTreeMap<String, Shape> = exposition
        .registry
        .gather()
        .iter()
        .map(|family| {
            let labels = family.get_metric()[0].get_label().iter();
            let labels = labels.map(|pair| pair.name().to_owned()).collect();
            (family.name().to_owned(), (family.get_field_type(), labels))
        })
        .collect();
    let defined: BTreeMap<String, Shape> = define::ALL
        .iter()
        .map(|it| {
            let labels = it.labels.iter().map(|&label| label.to_owned()).collect();
            (it.name.to_owned(), (it.kind, labels))
        })
        .collect();
    assert_eq!(gathered, defined);
}

/// Name, type, labels of each row of the tables.
fn documented() -> BTreeMap<String, Shape> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let text = fs::read_to_string(path).expect("the list of metrics");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 5, "name, type, labels, meaning, what to look for: {row}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{row}");
        let kind = match cells[1] {
            "counter" => MetricType::COUNTER,
            "gauge" => MetricType::GAUGE,
            "histogram" => MetricType::HISTOGRAM,
            other => panic!("no type {other}: {row}"),
        };
        let labels = cells[2].split(',').map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| label != "-").collect();
        (cells[0].trim_matches('`').to_owned(), (kind, labels))
    })
    .collect()
}

#[test]
fn docs_metrics_lists_every_metric_and_no_other() {
    let defined: BTreeMap<String, Shape> = define::ALL
        .iter()
        .map(|it| {
            let labels = it.labels.iter().map(|&label| label.to_owned()).collect();
            (it.name.to_owned(), (it.kind, labels))
        })
        .collect();
    assert_eq!(documented(), defined);
}
