//! Stages made slower by the daemons themselves: whose dial it is, and what it is called there.

use std::os::unix::fs::MetadataExt as _;

use super::Rig;
use crate::failure::{Doing as _, Failure};
use crate::load::Way;
use crate::nodes::{CALLER, Node, PEER};

/// What is made slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DialStage {
    /// B's disk.
    Disk,
    /// The node that the data leaves.
    Send,
    /// The wire: a server of its own at the node where the data arrives.
    Net,
    /// The node where the data arrives.
    Receive,
}

/// So much on top of what a stage takes: seconds for a fragment, seconds for a byte.
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
    /// These dials are set for what goes that way, and no others.
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

    /// Whose stage it is, and its name there.
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
                let directory = self.data.path();
                let device = directory.metadata().doing(directory.display())?.dev();
                let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
                let verb = match way {
                    Way::Read => "read",
                    Way::Write => "write",
                };
                (&self.pair.b, format!("disk:{major}:{minor}:{verb}"))
            }
        })
    }
}
