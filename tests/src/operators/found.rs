//! Where nodes look for each other, which they write, and others as well.

use std::collections::{BTreeMap, BTreeSet};

use piped_config::{Found, NodeKey};
use piped_control::discovery::Source;
use piped_sim::Random;

use super::{KEYS, NAMES, Scene, address_of};

/// Why a source is away.
const AWAY: &str = "nobody answers";

/// A source of discovery that all nodes have.
#[derive(Debug, Default)]
pub(super) struct Directory {
    nodes: BTreeMap<String, Found>,
    /// Nodes that cannot reach it.
    cut_off: BTreeSet<usize>,
}

impl Directory {
    /// A node says where it is, if it runs and reaches the source.
    pub(super) fn publish(&mut self, node: usize, scene: &Scene<'_>) {
        let setup = &scene.controls.nodes[node].setup;
        if scene.controls.runs(node) && !self.cut_off.contains(&node) {
            let address = setup.address.to_string().parse().expect("an address");
            let key = setup.own.as_ref().map(NodeKey::public);
            let found = Found { address, key, ..Found::default() };
            self.nodes.insert(NAMES[node].to_owned(), found);
        }
    }

    /// A node reads all of it, or hears that it is away.
    pub(super) fn look(&self, node: usize, scene: &mut Scene<'_>) {
        let said = match self.cut_off.contains(&node) {
            true => Err(AWAY.to_owned()),
            false => Ok(self.nodes.clone()),
        };
        scene.controls.hear(node, Source::Files, said, scene.kernel);
    }

    /// A node reaches it no more, or again.
    pub(super) fn cut_off(&mut self, node: usize, is_cut: bool) {
        match is_cut {
            true => self.cut_off.insert(node),
            false => self.cut_off.remove(&node),
        };
    }

    /// Somebody writes what is not true of a node, or takes it out.
    pub(super) fn lie(&mut self, node: usize, nodes: usize, random: &mut Random) {
        let name = NAMES[node].to_owned();
        if random.chance(0.2) {
            drop(self.nodes.remove(&name));
            return;
        }
        // At another node's place, or at one where nobody is.
        let place = random.below(nodes as u64) as usize;
        let address = address_of(place, false, random.below(3) as u16);
        let key = *random.pick(&[0, 1, 2, 3, 8]);
        let key = random.chance(0.5).then(|| KEYS[key].public());
        let address = address.to_string().parse().expect("an address");
        self.nodes.insert(name, Found { address, key, ..Found::default() });
    }
}
