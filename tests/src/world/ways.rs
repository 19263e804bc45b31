//! What becomes of the two ways between nodes: lanes that are lost, addresses that are not reached,
//! and second addresses that are taken back or are those of somebody else.

use std::net::SocketAddr;

use piped_core::link::LaneClass;
use piped_core::units::Nanos;
use piped_sim::Notice;
use piped_world::controls::{address, second_address};

use super::setup::NODES;
use super::{Plan, World};
use crate::operators::NAMES;

impl World {
    /// Loses all lanes that a node has dialled.
    pub fn lose_lanes(&mut self, node: usize, notice: Notice) {
        self.disturbed = true;
        for class in LaneClass::ALL {
            if let Some(connection) = self.lane(node, class) {
                self.kernel.reset(connection, notice);
            }
        }
    }
}

/// Something becomes of the ways from a node to the other.
pub(super) fn change_way(world: &mut World, node: usize) {
    if world.ending {
        return;
    }
    world.disturbed = true;
    if world.clients.iter().any(|client| !client.calls.is_empty()) {
        world.tally("way changed with calls in flight", 1);
    }
    let other = (node + 1) % NODES;
    match world.random.below(8) {
        0 | 1 => {
            let class = *world.random.pick(&LaneClass::ALL);
            let notice = match world.random.below(3) {
                0 => Notice::Silent,
                _ => Notice::Within(Nanos(world.random.length(100_000_000))),
            };
            if let Some(connection) = world.lane(node, class) {
                world.kernel.reset(connection, notice);
            }
        }
        2 | 3 => {
            let address = *world.random.pick(&[address(other), second_address(other)]);
            world.controls.block(address, true, &mut world.kernel);
            let back = Nanos(world.random.length(2_000_000_000));
            world.plans.push(world.kernel.now() + back, Plan::Unblock { address });
        }
        4 => lead_second(world, node, None),
        5 => {
            // Nobody is there, or a daemon that is not the peer's: that of this node.
            let to = *world.random.pick(&[second_address(NODES), address(node)]);
            lead_second(world, node, Some(to));
        }
        _ => lead_second(world, node, Some(second_address(other))),
    }
}

/// All addresses are reached and are right.
pub(super) fn restore_ways(world: &mut World) {
    if world.options.way_changes == 0 {
        return;
    }
    for node in 0..NODES {
        for address in [address(node), second_address(node)] {
            world.controls.block(address, false, &mut world.kernel);
        }
        lead_second(world, (node + 1) % NODES, Some(second_address(node)));
    }
}

/// An operator writes another second address of the other node into a node's files.
fn lead_second(world: &mut World, node: usize, to: Option<SocketAddr>) {
    if !world.controls.runs(node) {
        return;
    }
    let setup = &world.controls.nodes[node].setup;
    let (mut config, own) = (setup.config.clone(), setup.own.clone());
    for (name, peer) in &mut config.peers {
        assert_eq!(*name, NAMES[(node + 1) % NODES], "a world of two nodes");
        let to = to.map(|to| to.to_string()).unwrap_or_default();
        peer.second_address = to.parse().expect("an address, or none");
    }
    let done = world.controls.reload(node, &config, own.as_ref(), &world.kernel);
    done.expect("a sound configuration");
    world.tally("second address changed", 1);
}
