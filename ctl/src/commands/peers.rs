//! `pipectl peers`: the peers with the lanes to and from them.

use piped_config::admin::watch::{PEERS, PeerEntry, Peers};
use piped_core::link::Protection;
use piped_report::shard::{LaneReport, ZeroCopyReport};

use crate::admin::Admin;
use crate::commands::words;
use crate::failure::Failure;
use crate::output::{self, Output};
use crate::table::Column::{Number, Text};
use crate::units;

pub(crate) fn run(admin: &Admin, output: &Output, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(admin.get_raw(PEERS)?);
    }
    let Peers::<LaneReport> { peers } = admin.get(PEERS)?;
    if peers.is_empty() {
        return output.prose(
            "No peers: none are configured in [peers], and none has connected (see [listen]).",
            0,
        );
    }
    let shards = peers.iter().any(|peer| peer.shard > 0);
    let lanes = || peers.iter().flat_map(|peer| peer.lanes.iter().map(move |lane| (peer, lane)));
    let unused = peers.iter().filter(|peer| peer.lanes.is_empty());
    let rows = lanes().map(|(peer, lane)| row(peer, lane, shards));
    let rows = rows.chain(unused.map(unused_row)).collect();
    let lending = lanes()
        .filter_map(|(peer, lane)| Some((name(peer, lane, shards), lane.zero_copy.as_ref()?)))
        .collect::<Vec<_>>();
    let messages: Vec<Vec<String>> = lanes()
        .filter_map(|(peer, lane)| {
            let it = lane.messages?;
            let [name, ..] = name(peer, lane, shards);
            Some(vec![
                name,
                units::bytes(it.eager_bytes.into()),
                units::seconds(it.handshake_seconds),
            ])
        })
        .collect();
    lanes_table(output, rows)?;
    if !messages.is_empty() {
        output.heading("Messages: sent at once up to a length, announced beyond it")?;
        let columns = [Text("PEER"), Number("AT ONCE UP TO"), Number("HAND-SHAKE")];
        output.table(&columns, messages)?;
    }
    let paced: Vec<Vec<String>> = lanes()
        .filter_map(|(peer, lane)| {
            let rate = units::rate(lane.pace? as f64);
            Some(name(peer, lane, shards).into_iter().chain([rate]).collect())
        })
        .collect();
    if !paced.is_empty() {
        output.heading("Paced to what the wire was seen to take")?;
        output.table(&[Text("PEER"), Text("ROLE"), Text("LANE"), Number("PACED AT")], paced)?;
    }
    zero_copy(output, &lending)
}

fn lanes_table(output: &Output, rows: Vec<Vec<String>>) -> Result<(), Failure> {
    output.table(
        &[
            Text("PEER"),
            Text("ROLE"),
            Text("LANE"),
            Text("STATE"),
            Text("SEALED"),
            Text("CHECKED"),
            Number("EPOCH"),
            Number("REQUESTS"),
            Number("FRAMES OUT"),
            Number("FRAMES IN"),
            Text("LAST LOST"),
            Text("ADDRESS"),
        ],
        rows,
    )
}

/// Names of peer, role and lane.
fn name(peer: &PeerEntry<LaneReport>, lane: &LaneReport, shards: bool) -> [String; 3] {
    let name = if shards { format!("{} ({})", peer.name, peer.shard) } else { peer.name.clone() };
    [name, words::role(peer.inbound).to_owned(), lane.class.name().to_owned()]
}

fn row(peer: &PeerEntry<LaneReport>, lane: &LaneReport, shards: bool) -> Vec<String> {
    let [name, role, class] = name(peer, lane, shards);
    vec![
        name,
        role,
        class,
        if lane.up { "up" } else { "DOWN" }.to_owned(),
        lane.protection.map_or("plain", Protection::name).to_owned(),
        checked(lane).to_owned(),
        lane.epoch.to_string(),
        units::count(lane.requests.into()),
        units::count(lane.frames_sent),
        units::count(lane.frames_received),
        lane.last_loss.map_or("-", |why| why.name()).to_owned(),
        peer.address.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

/// A peer that is connected to when something is opened there.
fn unused_row(peer: &PeerEntry<LaneReport>) -> Vec<String> {
    let [name, role, none] = [peer.name.as_str(), words::role(peer.inbound), "-"];
    let address = peer.address.as_deref().unwrap_or("-");
    let state = [name, role, none, "unused"];
    state.into_iter().chain([none; 7]).chain([address]).map(str::to_owned).collect()
}

/// By what a payload that changed on the way is noticed.
fn checked(lane: &LaneReport) -> &'static str {
    match (lane.protection, lane.sums) {
        (Some(_), _) => "tag",
        (None, Some(true)) => "payload",
        (None, Some(false)) => "header",
        (None, None) => "-",
    }
}

/// Prints lanes that tried to send without a copy, with the results and the measurements.
fn zero_copy(output: &Output, lanes: &[([String; 3], &ZeroCopyReport)]) -> Result<(), Failure> {
    if lanes.is_empty() {
        return Ok(());
    }
    let head = [Text("PEER"), Text("ROLE"), Text("LANE")];
    let rows = lanes.iter().map(|(name, it)| {
        let rest = [
            it.state.words().to_owned(),
            it.pays_from_bytes.map_or("-".to_owned(), units::bytes),
            units::count(it.in_place),
            units::count(it.copied),
            it.pause_seconds.map_or("-".to_owned(), units::seconds),
        ];
        name.iter().cloned().chain(rest).collect()
    });
    output.heading("Sends without a copy")?;
    let columns =
        [Text("STATE"), Number("FROM"), Number("IN PLACE"), Number("COPIED"), Number("PAUSE")];
    output.table(&head.into_iter().chain(columns).collect::<Vec<_>>(), rows.collect())?;
    let sizes = lanes.iter().flat_map(|(name, it)| it.sizes.iter().map(move |size| (name, size)));
    let rows: Vec<Vec<String>> = sizes
        .map(|(name, size)| {
            let time = |seconds: Option<f64>| seconds.map_or("-".to_owned(), units::seconds);
            let rest = [
                units::bytes(size.bytes),
                time(size.plain_seconds),
                time(size.lent_seconds),
                time(size.held_seconds),
                format!("{} + {}", size.samples.0, size.samples.1),
                if size.pays { "without" } else { "with" }.to_owned(),
            ];
            name.iter().cloned().chain(rest).collect()
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    output.heading("Time of the shard's thread for one send, with a copy and without")?;
    let columns = [
        Number("SIZE"),
        Number("WITH"),
        Number("WITHOUT"),
        Number("HELD"),
        Number("TIMED"),
        Text("USED"),
    ];
    let head = [Text("PEER"), Text("ROLE"), Text("LANE")];
    output.table(&head.into_iter().chain(columns).collect::<Vec<_>>(), rows)
}
