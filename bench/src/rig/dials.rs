//! Stages made slower by the daemons themselves: the node with the dial, and the stage's name
//! there.

use super::Rig;
use crate::failure::Failure;
use crate::load::Way;
use crate::nodes::{CALLER, Node, PEER, disk_stage};

/// Stage to make slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DialStage {
    /// Disk of node B.
    Disk,
    /// Node that the data leaves.
    Send,
    /// Wire: a server of its own at the node where the data arrives.
    Net,
    /// Node where the data arrives.
    Receive,
}

/// Time on top of a stage's own: seconds for a fragment, seconds for a byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Dial {
    pub(super) stage: DialStage,
    pub(super) overhead: f64,
    pub(super) per_byte: f64,
}

impl Dial {
    pub(super) const fn of(stage: DialStage, overhead: f64, per_byte: f64) -> Self {
        Self { stage, overhead, per_byte }
    }
}

impl Rig {
    /// Sets these dials, and no others, for data that goes that way.
    pub(super) fn set_dials(&self, way: Way, dials: &[Dial]) -> Result<(), Failure> {
        if self.dialled.replace(!dials.is_empty()) {
            self.both().into_iter().try_for_each(|node| node.admin.clear_dials())?;
        }
        for dial in dials {
            let (node, place) = self.place(way, dial.stage)?;
            node.admin.set_dial(&place, dial.overhead, dial.per_byte)?;
        }
        Ok(())
    }

    /// Node that has the stage, and the stage's name there.
    fn place(&self, way: Way, stage: DialStage) -> Result<(&Node, String), Failure> {
        let ((from, sender), (to, receiver)) = match way {
            Way::Read => ((&self.pair.b, PEER), (&self.pair.a, CALLER)),
            Way::Write => ((&self.pair.a, CALLER), (&self.pair.b, PEER)),
        };
        Ok(match stage {
            DialStage::Send => (from, format!("send:{receiver}")),
            DialStage::Net => (to, format!("net:{sender}")),
            DialStage::Receive => (to, format!("receive:{sender}")),
            DialStage::Disk => {
                let verb = match way {
                    Way::Read => "read",
                    Way::Write => "write",
                };
                (&self.pair.b, disk_stage(self.data.path(), verb)?)
            }
        })
    }
}
