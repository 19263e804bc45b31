//! Where nodes look for each other, which they write, and others as well.

use std::collections::{BTreeMap, BTreeSet};

use piped_config::{Found, NodeCertificate, NodeKey, PublicKey, Revocations, UnixTime};
use piped_control::discovery::Source;
use piped_sim::Random;
use piped_world::controls::CALENDAR;

use super::{KEYS, NAMES, Scene, address_of, cluster};

/// Why a source is away.
const AWAY: &str = "nobody answers";

/// A source of discovery that all nodes have.
#[derive(Debug, Default)]
pub(super) struct Directory {
    /// What nodes of a cluster are told of keys that count no more, true or not.
    list: Option<Revocations>,
    revoked: Vec<PublicKey>,
    /// Certificates that were published so far.
    shown: Vec<NodeCertificate>,
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
            if let Some(certificate) = &setup.certificate {
                // Whoever overwrote it is overwritten.
                let number = self.revoked.len() as u64;
                let list = cluster::revocations(number, &self.revoked, false);
                self.list = Some(list).filter(|_| number > 0);
                debug_assert_eq!(Some(certificate.subject().key), key);
            }
            let certificate = setup.certificate.clone();
            self.shown.extend(certificate.clone());
            let found = Found { address, key, certificate, ..Found::default() };
            self.nodes.insert(NAMES[node].to_owned(), found);
        }
    }

    /// A node reads all of it, or hears that it is away.
    pub(super) fn look(&self, node: usize, scene: &mut Scene<'_>) {
        let said = match self.cut_off.contains(&node) {
            true => Err(AWAY.to_owned()),
            false => Ok(self.nodes.clone()),
        };
        if let Some(list) = self.list.clone().filter(|_| said.is_ok()) {
            scene.controls.hear_revocations(node, list, scene.kernel);
        }
        scene.controls.check_members(node, scene.kernel);
        scene.controls.hear(node, Source::Etcd, said, scene.kernel);
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
        let certificate = self.false_certificate(node, key, random);
        let key = random.chance(0.5).then(|| KEYS[key].public());
        let address = address.to_string().parse().expect("an address");
        self.nodes.insert(name, Found { address, key, certificate, ..Found::default() });
        if random.chance(0.3) {
            // Who writes it cannot sign for the cluster, and can take what was signed away.
            let foreign = cluster::revocations(1000, &[KEYS[0].public()], true);
            self.list = random.chance(0.5).then_some(foreign);
        }
    }

    /// A certificate that was shown before, of that node or another, or one that nobody signed who
    /// is trusted, or none.
    fn false_certificate(
        &self,
        node: usize,
        key: usize,
        random: &mut Random,
    ) -> Option<NodeCertificate> {
        match random.below(4) {
            0 => None,
            1 => Some(cluster::certificate(node, key, UnixTime(CALENDAR), true)),
            _ => (!self.shown.is_empty()).then(|| random.pick(&self.shown).clone()),
        }
    }

    /// Whether a key was revoked.
    pub(super) fn has_revoked(&self, key: &PublicKey) -> bool {
        self.revoked.contains(key)
    }

    /// The cluster revokes a key.
    pub(super) fn revoke(&mut self, key: PublicKey) {
        self.revoked.push(key);
    }
}
