//! All metrics: name, type, labels, help. docs/metrics.md has the same with advice; a test compares
//! them.

use prometheus::proto::MetricType;

/// Definition of one metric.
#[derive(Debug)]
pub(super) struct Definition {
    pub(super) name: &'static str,
    pub(super) kind: MetricType,
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident $kind:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(pub(super) static $constant: Definition = Definition {
            name: $name,
            kind: MetricType::$kind,
            labels: &[$($label),*],
            help: $help,
        };)+

        /// Definitions of all metrics.
        pub(super) static ALL: &[&Definition] = &[$(&$constant),+];
    };
}

metrics! {
    BUILD GAUGE "piped_build_info" ["version"]
        "Always 1; the label says which piped this is.";
    START GAUGE "process_start_time_seconds" []
        "When the daemon started, in seconds since 1970.";

    SESSIONS GAUGE "piped_sessions" ["shard"]
        "Clients' sessions, those that drain among them.";
    ARENA GAUGE "piped_arena_bytes" []
        "Shared memory of clients that is not given back yet.";
    ARENA_LIMIT GAUGE "piped_arena_limit_bytes" []
        "What limits.global.arena allows.";
    LENT GAUGE "piped_lent_bytes" []
        "Memory that clients lend, until it is unmapped.";
    LENT_LIMIT GAUGE "piped_lent_limit_bytes" []
        "What limits.global.lent allows.";
    HANDLES GAUGE "piped_handles" ["shard"]
        "Files, regions and channels that clients have open.";
    SERVED_HANDLES GAUGE "piped_served_handles" ["shard"]
        "Files, regions and channels that peers have open here.";
    TRANSFERS_RUNNING GAUGE "piped_transfers_running" ["shard"]
        "Transfers in execution, the halves of copies' chunks among them.";
    DIALS GAUGE "piped_dials" ["shard"]
        "Stages that are made slower on purpose.";
    SERVES_RUNNING GAUGE "piped_serves_running" ["shard"]
        "Requests of peers in execution.";

    REQUESTS COUNTER "piped_requests_total" []
        "Requests taken from clients' rings.";
    AT_ONCE COUNTER "piped_requests_ended_at_once_total" ["status"]
        "Requests that ended without a transfer: ok for those that ask for none, else why they \
         were refused.";
    TRANSFERS COUNTER "piped_transfers_total" ["operation", "route", "class", "status"]
        "Clients' transfers that ended.";
    TRANSFER_BYTES COUNTER "piped_transfer_bytes_total" ["operation", "route", "class"]
        "Bytes that clients' transfers moved, also those that failed or still run.";
    TRANSFER_SECONDS HISTOGRAM "piped_transfer_duration_seconds" ["operation", "route", "class"]
        "From submission to the end, of clients' transfers that ended well.";
    SERVES COUNTER "piped_serves_total" ["operation", "class", "status"]
        "Requests of peers that ended.";
    SERVE_BYTES COUNTER "piped_serve_bytes_total" ["operation", "class"]
        "Bytes moved for peers, also by requests that still run.";
    SERVE_SECONDS HISTOGRAM "piped_serve_duration_seconds" ["operation", "class"]
        "From arrival to the last frame sent or byte written, of peers' requests that ended well.";

    PLANS COUNTER "piped_plans_total" ["algorithm"]
        "Plans used, by the algorithm that made them.";
    PLAN_BYTES HISTOGRAM "piped_plan_fragment_bytes" []
        "First fragment of each plan used.";
    PREDICTION HISTOGRAM "piped_prediction_ratio" ["path"]
        "Measured over predicted latency of transfers that went through whole and waited for \
         nobody.";
    PREDICTIONS COUNTER "piped_predictions_total" ["path", "company"]
        "Predicted transfers that went through whole, by whether they had their path for \
         themselves.";
    STAGE_LATENCY GAUGE "piped_stage_latency_seconds"
        ["shard", "stage", "device", "lane", "direction"]
        "L of a stage: latency that overlaps with other fragments, at 64 KiB.";
    STAGE_OVERHEAD GAUGE "piped_stage_overhead_seconds"
        ["shard", "stage", "device", "lane", "direction"]
        "g of a stage: overhead of each fragment that occupies it, at 64 KiB.";
    STAGE_PER_BYTE GAUGE "piped_stage_per_byte_seconds"
        ["shard", "stage", "device", "lane", "direction"]
        "G of a stage: inverse bandwidth, at 64 KiB.";
    STAGE_WINDOW GAUGE "piped_stage_window" ["shard", "stage", "device", "lane", "direction"]
        "The most fragments in a stage at once; absent where there is no bound.";
    STAGE_CONFIDENCE GAUGE "piped_stage_confidence_ratio"
        ["shard", "stage", "device", "lane", "direction"]
        "How well a stage is known: 0 is a guess, 1 the best there is.";
    STAGE_SAMPLES COUNTER "piped_stage_samples_total"
        ["shard", "stage", "device", "lane", "direction", "kind"]
        "Samples of a stage: of an empty one (alone) and of a busy one (backlogged).";

    STAGING_USED GAUGE "piped_staging_used_bytes" ["shard"]
        "Staging memory in use.";
    STAGING_LANES GAUGE "piped_staging_lanes_bytes" ["shard"]
        "Of that in use, what lanes have for themselves.";
    STAGING_LIMIT GAUGE "piped_staging_limit_bytes" ["shard"]
        "Staging memory there may be.";
    STAGING_OWNED GAUGE "piped_staging_bytes" ["shard"]
        "Staging memory there is: more than the limit only while some of it drains.";
    EARLY_ARRIVAL GAUGE "piped_early_arrival_used_bytes" ["shard"]
        "Staging that messages have which nobody has asked for.";
    EARLY_ARRIVAL_LIMIT GAUGE "piped_early_arrival_limit_bytes" ["shard"]
        "The most of them.";
    EARLY_ARRIVAL_REQUIRED GAUGE "piped_early_arrival_required_bytes" ["shard"]
        "What they need for 99 of 100 messages to find room, by what was seen.";
    IN_FLIGHT GAUGE "piped_in_flight_bytes" ["shard"]
        "Bytes of clients' requests in execution.";
    IN_FLIGHT_LIMIT GAUGE "piped_in_flight_limit_bytes" ["shard"]
        "The most of them.";
    REQUESTS_RUNNING GAUGE "piped_requests_running" ["shard"]
        "Clients' requests in execution.";
    REQUESTS_LIMIT GAUGE "piped_requests_running_limit" ["shard"]
        "The most of them.";
    LIMIT_WAITS COUNTER "piped_limit_waits_total" ["shard"]
        "Requests of clients and peers that had to wait for a limit.";
    SHARD_FILES GAUGE "piped_shard_files" ["shard"]
        "Files and sockets of a shard.";
    SHARD_FILES_LIMIT GAUGE "piped_shard_files_limit" ["shard"]
        "The most of them.";
    REGISTERED GAUGE "piped_registered_bytes" ["shard"]
        "Memory registered with io_uring: staging, clients' arenas and sealed memory that they \
         lend. It is pinned.";
    HELD GAUGE "piped_held_buffers" []
        "Buffers of requests that are over which the kernel or a lane may still touch.";
    HOLDS COUNTER "piped_buffer_holds_total" []
        "Requests that ended with their buffer held.";

    STALLS COUNTER "piped_client_stalls_total" ["shard"]
        "Times a client's requests waited because it did not reap its completions.";
    EVICTIONS COUNTER "piped_evictions_total" ["reason"]
        "Clients evicted for breaking the rules.";
    REFUSED COUNTER "piped_handshakes_refused_total" ["reason"]
        "Clients that connected and got no session.";
    SENT_AWAY COUNTER "piped_connections_sent_away_total" ["door", "reason"]
        "Connections to the admin socket and to [metrics] address that were ended without an \
         answer that was taken.";
    GREETINGS COUNTER "piped_peer_handshakes_total" ["outcome"]
        "Peers that connected: proven, or why they got no lane.";
    DISCOVERY_AWAY GAUGE "piped_discovery_away" ["source"]
        "1 if a source of discovery does not answer; what it said last stays.";
    CERTIFICATE_LEFT GAUGE "piped_certificate_left" []
        "Share that is left of the time of this node's certificate, in a cluster; 0 without one.";
    BOUNCES COUNTER "piped_bounces_total" ["reason"]
        "Fragments that took a copy.";
    RATE_WAITS COUNTER "piped_rate_waits_total" []
        "Times that work of a client or a peer was put off because it had moved what its rate \
         allows.";
    TURN_WAITS COUNTER "piped_turn_waits_total" []
        "Fragments that waited for their turn at a device, because others wanted it, too.";
    PEERS_FULL COUNTER "piped_peers_full_total" []
        "Opens at peers that failed, because as many peers were in use as may be.";
    RETRIES COUNTER "piped_retries_total" ["reason"]
        "Requests sent again to a peer.";

    LANE_UP GAUGE "piped_lane_up" ["shard", "peer", "role", "class"]
        "1 if a lane is usable; of peers under names that are not configured, how many are.";
    LANE_EPOCH GAUGE "piped_lane_epoch" ["shard", "peer", "role", "class"]
        "A lane's incarnation: it grows with each connection.";
    LANES_LOST COUNTER "piped_lanes_lost_total" ["reason"]
        "Lanes lost.";
    FRAMES COUNTER "piped_frames_total" ["direction"]
        "Frames sent to and received from peers.";
    SENDS COUNTER "piped_lane_sends_total" ["way"]
        "Sends of lanes: copied into the socket, without a copy, or copied although they were not \
         to be.";
    MESSAGES COUNTER "piped_messages_total" ["way"]
        "Messages sent to peers, eager or announced; and those that came early, or found no memory \
         for that.";
    CORRUPT COUNTER "piped_corrupt_frames_total" []
        "Frames with a payload that did not match its checksum.";
    DISCARDED COUNTER "piped_discarded_bytes_total" []
        "Payload received for nobody: its request had been given up.";

    TURNS COUNTER "piped_shard_turns_total" ["shard"]
        "Turns of a shard's loop.";
    SLEEPS COUNTER "piped_shard_sleeps_total" ["shard"]
        "Times a shard slept.";
    SYSCALLS COUNTER "piped_shard_syscalls_total" ["shard"]
        "System calls of a shard.";
    FILE_OPERATIONS COUNTER "piped_file_operations_total" ["shard", "buffer"]
        "Reads and writes of files, on registered memory and on memory the kernel pins for each.";
}
