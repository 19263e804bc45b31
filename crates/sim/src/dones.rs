//! Ended operations, from when they end until their node takes them.

use std::collections::{BTreeSet, VecDeque};

use piped_core::io::Done;

use super::net::NodeId;

/// Ended operations of all nodes that were not taken.
#[derive(Debug, Default)]
pub(super) struct Dones {
    /// Ended operations of each node, by its number.
    of: Vec<VecDeque<Done>>,
    stirred: BTreeSet<NodeId>,
}

impl Dones {
    /// There is one more node.
    pub(super) fn add_node(&mut self) {
        self.of.push(VecDeque::new());
    }

    /// An operation of a node has ended.
    pub(super) fn push(&mut self, node: NodeId, done: Done) {
        self.of[node.0 as usize].push_back(done);
        self.stir(node);
    }

    /// The next ended operation of a node.
    pub(super) fn pop(&mut self, node: NodeId) -> Option<Done> {
        self.of[node.0 as usize].pop_front()
    }

    /// Whether a node has one to take.
    pub(super) fn has(&self, node: NodeId) -> bool {
        !self.of[node.0 as usize].is_empty()
    }

    /// A node is gone, with what it had not taken.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.of[node.0 as usize].clear();
    }

    /// A node has to look again at what it waits for.
    pub(super) fn stir(&mut self, node: NodeId) {
        self.stirred.insert(node);
    }

    /// Nodes that have to look again since this was last asked.
    pub(super) fn take_stirred(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.stirred)
    }
}
