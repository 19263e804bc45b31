//! `pipectl peers`: the peers and the lanes to and from them.

use piped_config::admin::watch::{PEERS, PeerEntry, Peers};
use piped_engine::report::LaneReport;

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
    let rows = peers.iter().flat_map(|peer| peer.lanes.iter().map(move |lane| (peer, lane)));
    let rows = rows.map(|(peer, lane)| row(peer, lane, shards)).collect();
    output.table(
        &[
            Text("PEER"),
            Text("ROLE"),
            Text("LANE"),
            Text("STATE"),
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

fn row(peer: &PeerEntry<LaneReport>, lane: &LaneReport, shards: bool) -> Vec<String> {
    let name = if shards { format!("{} ({})", peer.name, peer.shard) } else { peer.name.clone() };
    vec![
        name,
        words::role(peer.inbound).to_owned(),
        words::lane(lane.class).to_owned(),
        if lane.up { "up" } else { "DOWN" }.to_owned(),
        lane.epoch.to_string(),
        units::count(lane.requests.into()),
        units::count(lane.frames_sent),
        units::count(lane.frames_received),
        lane.last_loss.map_or("-", |why| why.name()).to_owned(),
        peer.address.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}
