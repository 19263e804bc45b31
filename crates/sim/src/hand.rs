//! What the input of a fuzzer chooses: when operations begin, how they go, and where they meet.
//!
//! Elsewhere the costs of devices and links decide which operation ends first, and clients keep
//! their requests apart. An input has to be able to choose any order, and to break the rules.

use piped_core::ids::SegmentId;
use piped_core::io::Op;
use piped_core::units::Nanos;

use super::disk::is_misaligned;
use super::faults::Faults;
use super::kernel::SimKernel;
use super::memory::OpKey;
use super::net::NodeId;
use super::pending::InFlight;

/// How an operation goes that has waited for a hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// All of it is done, as far as there are bytes and room.
    Whole,
    /// A part of it is done, of a length by chance, if kernels do so with such operations.
    Part,
    /// Nothing is done, and it ends with this negative errno.
    Failed(i32),
}

/// The hand for which the operations of a node wait.
#[derive(Debug, Clone, Copy)]
pub struct Hand {
    node: NodeId,
}

impl Hand {
    /// Has all operations that the node pushes from now on wait for [`Self::begin`].
    pub fn new(node: NodeId, kernel: &mut SimKernel) -> Self {
        *kernel.holds(node) = true;
        Self { node }
    }

    /// Exposes a segment to a client that breaks the rules: operations may meet on its bytes in any
    /// way.
    pub fn expose(&self, segment: SegmentId, kernel: &mut SimKernel) {
        kernel.memory[self.node].expose(segment);
    }

    /// How many operations of the node wait.
    #[must_use]
    pub fn count(&self, kernel: &SimKernel) -> usize {
        self.waiting(kernel).count()
    }

    /// Begins one of the operations that wait: `which` in the order in which they were pushed.
    ///
    /// # Panics
    /// If fewer wait, or a file with O_DIRECT would refuse it.
    pub fn begin(&self, which: usize, way: Way, kernel: &mut SimKernel) {
        let key = self.waiting(kernel).nth(which).expect("so many operations wait");
        let op = kernel.ops.get_mut(&key).expect("it waits");
        op.start = kernel.now;
        if let Op::Read { file, offset, into: span } | Op::Write { file, offset, from: span } =
            op.op
        {
            let direct = kernel.nodes[self.node.0 as usize].files[&file].direct;
            let refused = is_misaligned(direct, offset, span.offset, span.length.into());
            assert!(!refused, "sim: {:?} at {offset} of {file:?}, {span:?}", self.node);
        }
        let faults = kernel.faults;
        match way {
            Way::Failed(errno) => return kernel.settle(key, errno, kernel.now),
            Way::Part => {
                let short = Faults { disk_short: 1.0, send_short: 1.0, ..faults };
                kernel.faults = Faults { receive_short: 1.0, ..short };
            }
            Way::Whole => {}
        }
        kernel.begin_late(key);
        kernel.faults = faults;
    }

    /// The operations that wait and were not cancelled, in the order in which they were pushed.
    fn waiting(&self, kernel: &SimKernel) -> impl Iterator<Item = OpKey> {
        let waits = |op: &InFlight| op.start == Nanos::MAX && op.result.is_none();
        let ops = kernel.ops.iter().filter(move |(_, op)| op.node == self.node && waits(op));
        ops.map(|(&key, _)| key)
    }
}
