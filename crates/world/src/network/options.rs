//! How large a network is and what goes wrong in it.

use piped_core::units::Nanos;
use piped_sim::{Cost, Faults, Random};

use crate::controls::Surroundings;

/// What a network is made of.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Nodes, two or three.
    pub nodes: usize,
    /// Shards of each node.
    pub shards: usize,
    /// Things that operators and the network do.
    pub acts: u32,
    /// Nodes begin with keys.
    pub keyed: bool,
    /// All nodes are on one machine.
    pub one_machine: bool,
    /// Only key changes, done as the documents say.
    pub careful: bool,
    /// All nodes trust each other in the end.
    pub reconciled: bool,
    /// Faults of the kernel.
    pub faults: Faults,
    /// Delays and faults of dials.
    pub surroundings: Surroundings,
}

impl Options {
    /// Networks in which everything is tried.
    #[must_use]
    pub fn wild(random: &mut Random) -> Self {
        let mut rate = |most: f64| {
            if random.chance(0.5) { most * random.below(100) as f64 / 100.0 } else { 0.0 }
        };
        let (resolve_fails, connect_fails) = (rate(0.3), rate(0.3));
        let (handshake_hangs, reset) = (rate(0.2), rate(0.02));
        let delays = [random.length(500_000_000), random.length(200_000_000)];
        Self {
            nodes: random.between(2, 3) as usize,
            shards: random.between(1, 2) as usize,
            acts: random.between(1, 24) as u32,
            keyed: random.chance(0.7),
            one_machine: random.chance(0.3),
            careful: false,
            reconciled: random.chance(0.6),
            faults: Faults { reset, reset_notice_max: Nanos::from_millis(50), ..Faults::none() },
            surroundings: Surroundings {
                step_max: Nanos(delays[0]),
                mailbox_max: Nanos(delays[1]),
                resolve_fails,
                connect_fails,
                handshake_hangs,
                socket_buffer: 1 << random.between(14, 20),
                link: Cost {
                    latency: Nanos(random.between(1_000, 2_000_000)),
                    overhead: Nanos(random.between(500, 20_000)),
                    nanos_per_byte: random.between(1, 100) as f64 / 10.0,
                },
            },
        }
    }

    /// Networks of nodes that have keys, and change them as the documents say.
    #[must_use]
    pub fn careful(random: &mut Random) -> Self {
        let wild = Self::wild(random);
        let calm = Surroundings {
            resolve_fails: 0.0,
            connect_fails: 0.0,
            handshake_hangs: 0.0,
            ..wild.surroundings
        };
        Self {
            keyed: true,
            careful: true,
            reconciled: false,
            faults: Faults::none(),
            surroundings: calm,
            ..wild
        }
    }
}
