//! Which node has which memory: shards of one node share theirs.

use std::ops::{Index, IndexMut};

use super::memory::Memory;
use super::net::NodeId;

/// The memory of each machine, by its nodes: shards of one node share theirs.
#[derive(Debug, Default)]
pub(super) struct Memories {
    all: Vec<Memory>,
    machines: Vec<usize>,
}

impl Memories {
    /// One more node is there, with memory of its own.
    pub(super) fn add(&mut self) {
        self.machines.push(self.all.len());
        self.all.push(Memory::default());
    }

    pub(super) fn join(&mut self, node: NodeId, other: NodeId) {
        self.machines[node.0 as usize] = self.machines[other.0 as usize];
    }
}

impl Index<NodeId> for Memories {
    type Output = Memory;

    fn index(&self, node: NodeId) -> &Memory {
        &self.all[self.machines[node.0 as usize]]
    }
}

impl IndexMut<NodeId> for Memories {
    fn index_mut(&mut self, node: NodeId) -> &mut Memory {
        &mut self.all[self.machines[node.0 as usize]]
    }
}
