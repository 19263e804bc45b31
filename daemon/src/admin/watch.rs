//! Requests that only look: `stat`, `peers`, `clients`, `transfers`, `exports`, `nodes`.

use piped_config::admin::nodes::{NodeReport, Nodes, SourceReport};
use piped_config::admin::watch::{
    ExportReport, Exports, OperationStat, PeerEntry, Peers, Stat, TransferEntry, Transfers,
};
use piped_config::admin::{ClientReport, Clients};
use piped_config::{Peer, Principal};
use piped_core::status::Status;
use piped_report::shard::{LaneReport, TransferReport};
use piped_report::tally::{CLASSES, Ended, Operation, Route, Tally, class_name};

use crate::control::Control;
use crate::io::clock;
use crate::limits::TRANSFERS_LISTED_MAX;
use crate::shard::message::{Message, Question, ShardGone};

pub(super) async fn stat(control: &Control) -> Result<Stat, ShardGone> {
    let mut tally = Tally::default();
    let (mut staging_bytes, mut staging_used_bytes) = (0, 0);
    for shard in &control.shards {
        let seen = shard.mailbox.ask(|answer| Message::Ask(Question::Observe(answer))).await?;
        tally.merge(&seen.engine.tally);
        staging_bytes += seen.engine.report.staging_bytes;
        staging_used_bytes += seen.engine.report.staging_used_bytes;
    }
    let kinds = Operation::ALL
        .into_iter()
        .flat_map(|operation| Route::ALL.map(|route| (operation, route)))
        .flat_map(|(operation, route)| CLASSES.map(|class| (operation, route, class)));
    let operations = kinds.filter_map(|(operation, route, class)| {
        let ended = tally.transfers(operation, route, class);
        (!ended.is_empty())
            .then(|| operation_stat((operation.name(), route.name(), class_name(class)), ended))
    });
    Ok(Stat {
        uptime_seconds: clock::now().since(control.started).seconds(),
        staging_bytes,
        staging_used_bytes,
        operations: operations.collect(),
    })
}

fn operation_stat((operation, route, class): (&str, &str, &str), ended: &Ended) -> OperationStat {
    let completed = ended.by_status[Status::Ok as usize];
    let seconds = |nanos: u64| nanos as f64 * 1e-9;
    let latency = ended.latencies.buckets().filter(|(_, count)| *count > 0);
    OperationStat {
        operation: operation.to_owned(),
        route: route.to_owned(),
        class: class.to_owned(),
        completed,
        failed: ended.count() - completed,
        bytes: ended.bytes,
        latency: latency.map(|(bound, count)| (bound.map(seconds), count)).collect(),
    }
}

pub(super) async fn peers(control: &Control) -> Result<Peers<LaneReport>, ShardGone> {
    let mut peers = Vec::new();
    let now = clock::now();
    for (number, shard) in control.shards.iter().enumerate() {
        let view = shard.mailbox.ask(|answer| Message::Ask(Question::Report(answer))).await?;
        peers.extend(view.status.engine.peers.into_iter().map(|peer| PeerEntry {
            shard: number as u32,
            address: control.address_of(&peer.name).filter(|_| !peer.inbound),
            heard_seconds_ago: peer.heard.map(|at| now.since(at).seconds()),
            name: peer.name,
            inbound: peer.inbound,
            lanes: peer.lanes,
        }));
    }
    Ok(Peers { peers })
}

pub(super) async fn clients(control: &Control) -> Result<Clients, ShardGone> {
    let mut clients = control.clients();
    for shard in &control.shards {
        let uses = shard.mailbox.ask(|answer| Message::Ask(Question::Sessions(answer))).await?;
        for used in uses {
            let of = |client: &&mut ClientReport| client.session == used.engine.session.0;
            if let Some(client) = clients.iter_mut().find(of) {
                client.class = class_name(used.class).to_owned();
                client.requests += used.requests;
                client.completed += used.engine.completed;
                client.failed += used.engine.failed;
                client.bytes += used.engine.bytes;
            }
        }
    }
    Ok(Clients { clients })
}

pub(super) async fn transfers(
    control: &Control,
    ended: bool,
) -> Result<Transfers<TransferReport>, ShardGone> {
    let (mut total, mut transfers) = (0, Vec::new());
    let now = clock::now();
    for (number, shard) in control.shards.iter().enumerate() {
        let question = |answer| Message::Ask(Question::Transfers { ended, now, answer });
        let (count, listed) = shard.mailbox.ask(question).await?;
        total += count;
        transfers.extend(listed.into_iter().map(|mut transfer| {
            if transfer.id > 0 {
                transfer.id = control.transfer_number(number, transfer.id);
            }
            TransferEntry { shard: number as u32, transfer }
        }));
    }
    let ago = |entry: &TransferEntry<TransferReport>| entry.transfer.ended_seconds_ago;
    // The latest come first, from whatever shard; running ones stay in the order of their shards.
    transfers.sort_by(|a, b| ago(a).unwrap_or(0.0).total_cmp(&ago(b).unwrap_or(0.0)));
    transfers.truncate(TRANSFERS_LISTED_MAX);
    Ok(Transfers { total, transfers })
}

pub(super) fn exports(control: &Control) -> Exports {
    let config = control.config();
    let exports = config.exports.iter().map(|(name, export)| ExportReport {
        name: name.clone(),
        path: export.path.display().to_string(),
        read: export.read,
        write: export.write,
        names: export.names,
        users: export.users.iter().map(word).collect(),
        groups: export.groups.iter().map(word).collect(),
        peers: export.peers.clone(),
    });
    let regions = control.core.borrow().regions().report();
    Exports {
        exports: exports.collect(),
        regions,
        channels: control.core.borrow().channels().report(),
    }
}

pub(super) fn sources(control: &Control) -> Vec<SourceReport> {
    let (core, now) = (control.core.borrow(), clock::now());
    let sources = core.discovery().sources().map(|(source, heard)| SourceReport {
        source: source.name().to_owned(),
        nodes: heard.nodes().len() as u64,
        left_out: heard.left_out() as u64,
        heard_seconds_ago: now.since(heard.at()).seconds(),
        away: heard.away().map(str::to_owned),
    });
    sources.collect()
}

pub(super) fn nodes(control: &Control) -> Nodes {
    let mut report = Nodes { sources: sources(control), nodes: Vec::new() };
    let core = control.core.borrow();
    let (discovery, peers) = (core.discovery(), &core.config().peers);
    let (members, unlisted) =
        (core.keyring().has_cluster().then(|| core.members()), Peer::default());
    for (source, heard) in discovery.sources() {
        report.nodes.extend(heard.nodes().iter().map(|(name, found)| NodeReport {
            node: name.clone(),
            source: source.name().to_owned(),
            address: found.address.to_string(),
            second_address: found.second_address.to_string(),
            dialled: peers.get(name).or(members.map(|_| &unlisted)).is_some_and(|peer| {
                let chosen = discovery.find(name, peer, members).map(|(chosen, _)| chosen);
                let is_known = core.peers().by_name(name).is_some();
                peer.address.is_empty() && chosen == Some(source) && is_known
            }),
            exports: found.exports.clone(),
            version: found.version.clone(),
            load_percent: found.load_percent,
        }));
    }
    report
}

fn word(who: &Principal) -> String {
    match who {
        Principal::Id(number) => number.to_string(),
        Principal::Name(name) => name.clone(),
    }
}
