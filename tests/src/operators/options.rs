//! What operators are up to.

use piped_core::units::Nanos;
use piped_sim::Random;

/// What operators do to some nodes.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Nodes, two or three.
    pub nodes: usize,
    /// Things that operators and the network do.
    pub acts: u32,
    /// The longest that they wait between two.
    pub pause_max: Nanos,
    /// Nodes begin with keys.
    pub keyed: bool,
    /// All nodes are on one machine.
    pub one_machine: bool,
    /// Only key changes, done as the documents say.
    pub careful: bool,
    /// Nodes trust each other by keys, move, and find each other by a source that others write too.
    pub moving: bool,
    /// Nodes trust each other by certificates, which end, and are told of each other by the source
    /// alone.
    pub cluster: bool,
    /// All nodes trust each other in the end.
    pub reconciled: bool,
    /// Payloads may go without checksums, because nothing changes them on the way.
    pub may_do_without_sums: bool,
}

impl Options {
    /// Operators that try everything.
    #[must_use]
    pub fn wild(random: &mut Random) -> Self {
        Self {
            nodes: random.between(2, 3) as usize,
            acts: random.between(1, 24) as u32,
            pause_max: Nanos(8_000_000_000),
            keyed: random.chance(0.7),
            one_machine: random.chance(0.3),
            careful: false,
            moving: false,
            cluster: false,
            reconciled: random.chance(0.6),
            may_do_without_sums: true,
        }
    }

    /// Operators of nodes that have keys, and change them as the documents say.
    #[must_use]
    pub fn careful(random: &mut Random) -> Self {
        Self { keyed: true, careful: true, reconciled: false, ..Self::wild(random) }
    }

    /// Operators of nodes that have keys, and of no address; the nodes move.
    #[must_use]
    pub fn moving(random: &mut Random) -> Self {
        let wild = Self::wild(random);
        let (keyed, moving, pause_max) = (true, true, Nanos(3_000_000_000));
        Self { keyed, moving, one_machine: false, reconciled: false, pause_max, ..wild }
    }

    /// Operators of a cluster: its nodes move, change their keys, and have calendars that jump.
    #[must_use]
    pub fn cluster(random: &mut Random) -> Self {
        Self { cluster: true, ..Self::moving(random) }
    }
}
