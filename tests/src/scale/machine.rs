//! What every node is made of, and how many of them there are.

use piped_core::access::Alignment;
use piped_core::spread::LatencySpread;
use piped_core::units::Nanos;
use piped_sim::{Cost, DeviceCosts};
use piped_world::controls::Surroundings;

/// A simulated machine: its link, its disk, and its memory for transfers.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// The narrow side of the node's link.
    pub link: Cost,
    /// Reads and writes of the node's disk.
    pub disk: Cost,
    /// Operations in the disk at once.
    pub window: u32,
    /// Bytes of a connection's buffer, each direction.
    pub socket_buffer: usize,
    /// Bytes of staging, as `limits.staging` has them.
    pub staging: u64,
    /// The longest that looking a host up, connecting, and each message of a handshake take.
    pub step_max: Nanos,
    /// The longest that a command of the control thread waits for its shard.
    pub mailbox_max: Nanos,
}

/// How large a world is, and what is asked for in it.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How many nodes there are; at least two.
    pub nodes: usize,
    /// How many others each node asks; at most all of them.
    pub peers: usize,
    /// Bytes of a block, which a request reads or writes.
    pub block: u64,
    /// Where all chance comes from.
    pub seed: u64,
    /// What every node is made of.
    pub machine: Machine,
    /// Bytes that the calling thread holds of the heap; nobody looks if it is always 0.
    pub heap: fn() -> i64,
}

impl Machine {
    /// A link of 10 Gbit/s, a disk of 2 GB/s, and the staging that a daemon has by default.
    pub const USUAL: Self = Self {
        link: Cost {
            latency: Nanos::from_micros(20),
            overhead: Nanos::from_micros(1),
            nanos_per_byte: 0.8,
        },
        disk: Cost {
            latency: Nanos::from_micros(80),
            overhead: Nanos::from_micros(5),
            nanos_per_byte: 0.5,
        },
        window: 32,
        socket_buffer: 256 << 10,
        staging: 64 << 20,
        step_max: Nanos::from_millis(1),
        mailbox_max: Nanos::from_micros(100),
    };

    /// How long a connection takes at most that nothing delays: its host is looked up, it is made,
    /// both sides prove themselves, and both shards are told.
    #[must_use]
    pub const fn connecting(&self) -> Nanos {
        Nanos(5 * self.step_max.0 + 2 * self.mailbox_max.0 + 4 * self.link.latency.0)
    }

    /// What is between the nodes.
    pub(super) const fn surroundings(&self) -> Surroundings {
        let prompt = Surroundings::prompt(self.link, self.socket_buffer);
        Surroundings { step_max: self.step_max, mailbox_max: self.mailbox_max, ..prompt }
    }

    /// What reading takes of a disk that is so many times slower.
    pub(super) fn reading(&self, slower: f64) -> Cost {
        Cost { nanos_per_byte: slower * self.disk.nanos_per_byte, ..self.disk }
    }

    /// The disk, as the kernel takes it; its reads may be slower.
    pub(super) fn device(&self, slower: f64) -> DeviceCosts {
        DeviceCosts {
            read: self.reading(slower),
            write: self.disk,
            sync: self.disk,
            window: Some(self.window),
            cached: None,
            capacity: 1 << 40,
            alignment: Alignment { offset: 512, memory: 4 },
            spread: LatencySpread::NONE,
            tells_at_the_end: false,
        }
    }
}

impl Options {
    /// So many nodes that all ask each other, on usual machines.
    #[must_use]
    pub const fn all(nodes: usize, seed: u64) -> Self {
        let machine = Machine::USUAL;
        Self { nodes, peers: nodes - 1, block: 64 << 10, seed, machine, heap: || 0 }
    }

    /// How many others each node asks.
    #[must_use]
    pub const fn asked(&self) -> usize {
        if self.peers < self.nodes { self.peers } else { self.nodes - 1 }
    }
}
