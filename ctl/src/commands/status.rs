//! `pipectl status`: the daemon at a glance.

use piped_config::admin::{STATUS, Status};
use piped_report::shard::{Counters, PeerReport, ShardReport};
use serde_json::Value;

use super::config;
use crate::admin::Admin;
use crate::commands::words;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

pub(crate) fn run(admin: &Admin, output: &Output, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(admin.get_raw(STATUS)?);
    }
    let status: Status<ShardReport> = admin.get(STATUS)?;
    let line = format!(
        "{}: piped {}, pid {}, up {}, profile {}",
        status.node,
        status.version,
        status.pid,
        units::uptime(status.uptime_seconds),
        status.profile
    );
    output.prose(&line, 2)?;
    output.prose(&format!("io_uring: {}", words::list(&status.tier, "plain")), 2)?;
    let sandbox = match status.sandbox.landlock_abi {
        0 => "none".to_owned(),
        abi => format!("Landlock {abi} ({})", status.sandbox.landlock.join(", ")),
    };
    let syscalls = match status.sandbox.syscalls.as_str() {
        "own" => "; system calls filtered by itself",
        "given" => "; system calls filtered by the service manager or container",
        "none" => "; system calls not filtered",
        _ => "",
    };
    output.prose(&format!("sandbox: {sandbox}{syscalls}"), 2)?;
    if status.degraded.is_empty() {
        output.line("degraded: nothing")?;
    }
    for sentence in &status.degraded {
        output.prose(&format!("degraded: {sentence}"), 2)?;
    }
    let dials = status.shards.iter().map(|shard| shard.dials).max().unwrap_or(0);
    if dials > 0 {
        let line =
            format!("DIALS: {dials} stages are slower on purpose; `pipectl dial` shows which");
        output.prose(&line, 2)?;
    }
    config::state(output, &status.config)?;
    shards(output, &status.shards)?;
    totals(output, &status)?;
    peers(output, &status.shards)
}

fn shards(output: &Output, shards: &[ShardReport]) -> Result<(), Failure> {
    let columns = [
        Text("SHARD"),
        Text("PLANNER"),
        Text("COSTS"),
        Number("SESSIONS"),
        Number("TRANSFERS"),
        Number("SERVES"),
        Number("OPS"),
        Number("STAGING"),
    ];
    let row = |(number, shard): (usize, &ShardReport)| {
        vec![
            number.to_string(),
            word(&shard.planner),
            word(&shard.calibration),
            shard.sessions.to_string(),
            shard.transfers.to_string(),
            shard.serves.to_string(),
            shard.ops.to_string(),
            format!(
                "{}/{}",
                units::bytes(shard.staging_used_bytes),
                units::bytes(shard.staging_bytes)
            ),
        ]
    };
    output.heading("Now")?;
    output.table(&columns, shards.iter().enumerate().map(row).collect())
}

/// A mode in the words of the command line: `auto`, `fixed:65536`.
fn word(mode: &impl serde::Serialize) -> String {
    match serde_json::to_value(mode) {
        Ok(Value::String(word)) => word,
        Ok(Value::Object(fields)) => {
            fields.iter().map(|(name, value)| format!("{name}:{value}")).collect()
        }
        _ => "?".to_owned(),
    }
}

fn totals(output: &Output, status: &Status<ShardReport>) -> Result<(), Failure> {
    let shards = &status.shards;
    let sum =
        |of: fn(&Counters) -> u64| shards.iter().map(|shard| of(&shard.counters)).sum::<u64>();
    let always = [
        ("requests", sum(|c| c.requests)),
        ("completed", sum(|c| c.completed)),
        ("failed", sum(|c| c.failed)),
    ];
    let mut rows: Vec<Vec<String>> =
        always.map(|(what, number)| vec![what.to_owned(), units::count(number)]).to_vec();
    rows.push(vec!["moved".to_owned(), units::bytes(sum(|c| c.bytes))]);
    // Events that should not occur are shown if they have.
    for (what, number) in [
        ("sent again after a lost lane or a bad checksum", sum(|c| c.retries)),
        ("fragments copied, edge unaligned", sum(|c| c.bounced_unaligned)),
        ("fragments copied, receive mispredicted", sum(|c| c.bounced_mispredicted)),
        ("bytes received for nobody", sum(|c| c.discarded_bytes)),
        ("frames with a bad checksum", sum(|c| c.corrupt_frames)),
        ("buffers held past completion", sum(|c| c.held)),
        ("lanes lost", sum(|c| c.lanes_lost)),
        ("opens at peers that found no place", sum(|c| c.peers_full)),
    ] {
        if number > 0 {
            rows.push(vec![what.to_owned(), units::count(number)]);
        }
    }
    for (what, reasons) in [
        ("clients evicted", &status.evicted),
        ("clients refused at the handshake", &status.refused),
    ] {
        for (reason, &number) in reasons {
            rows.push(vec![format!("{what}: {}", reason.replace('_', " ")), units::count(number)]);
        }
    }
    output.heading("Since start")?;
    output.table(&[Text("WHAT"), Number("NUMBER")], rows)
}

fn peers(output: &Output, shards: &[ShardReport]) -> Result<(), Failure> {
    let lane = |peer: &PeerReport, lane: &piped_report::shard::LaneReport| {
        vec![
            peer.name.clone(),
            words::role(peer.inbound).to_owned(),
            lane.class.name().to_owned(),
            if lane.up { "up" } else { "DOWN" }.to_owned(),
            lane.epoch.to_string(),
            units::count(lane.frames_sent),
            units::count(lane.frames_received),
        ]
    };
    let rows: Vec<Vec<String>> = shards
        .iter()
        .flat_map(|shard| &shard.peers)
        .flat_map(|peer| peer.lanes.iter().map(move |of| lane(peer, of)))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let columns = [
        Text("PEER"),
        Text("ROLE"),
        Text("LANE"),
        Text("STATE"),
        Number("EPOCH"),
        Number("FRAMES OUT"),
        Number("FRAMES IN"),
    ];
    output.heading("Peers")?;
    output.table(&columns, rows)
}

#[cfg(test)]
mod tests {
    use piped_core::modes::PlannerMode;

    use super::*;

    #[test]
    fn modes_are_the_words_of_the_command_line() {
        assert_eq!(word(&PlannerMode::Auto), "auto");
        assert_eq!(word(&PlannerMode::Fixed(65536)), "fixed:65536");
    }
}
