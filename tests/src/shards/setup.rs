//! How a world begins: nodes, clients, and what they open.

use std::collections::BTreeMap;

use piped_config::NodeKey;
use piped_control::regions::RegionSource;
use piped_core::access::{Access, Creation, OpenKind};
use piped_core::ids::{HandleId, PeerId, SessionId};
use piped_core::modes::{CalibrationMode, PlannerMode, ZeroCopyMode};
use piped_core::names::shard_name;
use piped_core::units::Nanos;
use piped_engine::command::{ChannelTarget, Command, OpenRequest, RegionTarget, Target};
use piped_engine::shard::{Shard, ShardConfig};
use piped_report::dial::{DialCost, DialPlace};
use piped_sim::NodeId;
use piped_world::controls::Setup;
use zeroize::Zeroizing;

use super::{ARENA, BOARD, Client, NAMES, OPS_MAX, SLOTS, STAGING, TICKETS, World};

impl World {
    pub(super) fn add_node(&mut self, node: usize) {
        let kernel = &mut self.nodes.kernel;
        let ids: Vec<NodeId> =
            (0..self.options.shards[node]).map(|_| kernel.add_node(OPS_MAX as usize)).collect();
        ids[1..].iter().for_each(|&id| kernel.join(id, ids[0]));
        let peer = 1 - node;
        let mut setup =
            Setup::plain((node, NAMES[node]), [(peer, NAMES[peer])], "all", ids.clone());
        if self.options.keyed {
            let there = setup.config.peers.get_mut(NAMES[peer]).expect("its only peer");
            there.key = Some(key(peer).public());
            setup.own = Some(key(node));
        }
        let incarnation = self.random.bits();
        let made = |shard| {
            Shard::new(ShardConfig {
                node_name: shard_name(NAMES[node], shard),
                incarnation,
                seed: self.random.bits(),
                transfers_max: 128,
                ops_max: OPS_MAX,
                deadline_default: Nanos::from_millis(30_000),
                planner: PlannerMode::Fixed(64 << 10),
                calibration: CalibrationMode::Off,
                zero_copy: ZeroCopyMode::Off,
                eager: self.options.eager,
                serial_first: false,
            })
            .with_lane_rest_time(Nanos::from_millis(5))
        };
        let shards = (0..self.options.shards[node]).map(made).collect();
        self.nodes.add(setup, shards).expect("a sound configuration");
        for (shard, id) in ids.into_iter().enumerate() {
            let segment = self.nodes.kernel.add_segment(id, STAGING);
            self.nodes.command(node, shard, Command::AddStaging { segment, length: STAGING });
            let latency_ns = self.options.copies_take.0;
            if latency_ns > 0 {
                let cost = DialCost { latency_ns, ..DialCost::default() };
                let dial = Command::SetDial { place: DialPlace::Copy, cost };
                self.nodes.command(node, shard, dial);
            }
        }
    }

    pub(super) fn add_client(&mut self, node: usize) {
        let number = self.clients.len();
        let shard = number % self.options.shards[node];
        let session = SessionId(number as u32 + 1);
        let id = self.nodes.controls.nodes[node].setup.shards[shard];
        let segment = self.nodes.kernel.add_segment(id, ARENA);
        self.nodes.kernel.share(id, segment);
        let control = self.nodes.controls.control_mut(node).expect("it runs");
        let channel = control.offer_channel(&format!("c{number}"), session, shard);
        let channel = channel.expect("a new name").channel;
        let source = RegionSource {
            home: shard,
            ..piped_world::controls::region(session, 0..BOARD, Access::ALL)
        };
        let region = control.offer_region(&format!("r{number}"), source, ARENA);
        let region = region.expect("a new name").region;
        let (lives, slots, handles) = (true, vec![false; SLOTS], BTreeMap::new());
        let client =
            Client { node, shard, session, segment, channel, region, lives, slots, handles };
        self.clients.push(client);
        for (turn, shard) in self.served(number).into_iter().enumerate() {
            // Each driver has the memory under a name of its own.
            if turn > 0 {
                let id = self.nodes.controls.nodes[node].setup.shards[shard];
                self.nodes.kernel.hold(id, segment);
            }
            let home = self.clients[number].shard as u16;
            let open = Command::OpenSession { session, weight: 1, home, user: session.0 };
            self.nodes.command(node, shard, open);
            let add = Command::AddSegment { session, segment, length: ARENA };
            self.nodes.command(node, shard, add);
        }
    }

    /// What a channel or region of a client is to who opens it on its node.
    pub(super) fn target(&self, owner: usize, kind: OpenKind, receives: bool) -> Target {
        let it = &self.clients[owner];
        let home = it.shard as u16;
        match kind {
            OpenKind::Channel => {
                let (channel, owner) = (it.channel, it.session);
                Target::Channel(ChannelTarget { channel, receives, home, owner })
            }
            _ => {
                let (segment, access) = (it.segment, Access::ALL);
                let (region, offset, length) = (it.region, 0, BOARD);
                Target::Region(RegionTarget { region, segment, offset, length, access, home })
            }
        }
    }

    pub(super) fn open_all(&mut self, client: usize) {
        let (node, shard, session) =
            (self.clients[client].node, self.clients[client].shard, self.clients[client].session);
        let mut number = 0;
        for owner in 0..self.clients.len() {
            for kind in [OpenKind::Channel, OpenKind::Region] {
                number += 1;
                let handle = HandleId(number);
                let here = self.clients[owner].node == node;
                self.clients[client]
                    .handles
                    .insert((owner, kind == OpenKind::Channel), (handle, here));
                if here {
                    let target = self.target(owner, kind, owner == client);
                    for shard in self.served(client) {
                        let install = Command::InstallHandle { session, handle, target };
                        self.nodes.command(node, shard, install);
                    }
                    continue;
                }
                for shard in self.served(client).into_iter().skip(1) {
                    let point = Command::PointHandle { session, handle };
                    self.nodes.command(node, shard, point);
                }
                let (mark, access) = match kind {
                    OpenKind::Channel => ("c", Access::WRITE),
                    _ => ("r", Access::ALL),
                };
                let (name, path, create) = (format!("{mark}{owner}"), Vec::new(), Creation::No);
                let open = OpenRequest { kind, name, path, access, create };
                let (ticket, peer) = (client as u64 * TICKETS + u64::from(number), PeerId(0));
                let open = Command::OpenRemote { ticket, session, handle, peer, open };
                self.nodes.command(node, shard, open);
            }
        }
    }
}

/// The key of a node.
fn key(node: usize) -> NodeKey {
    NodeKey::of_private(Zeroizing::new([node as u8 + 1; 32]))
}
