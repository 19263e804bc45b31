//! What a connection lets be under way at once, as plans over it know.

use core::num::NonZeroU32;
use core::ops::Range;

use piped_core::limits::{CREDIT_BATCH_DIVISOR, DEPTH_MAX, FRAGMENT_BYTES_MAX, GRANULE_BYTES};
use piped_model::room::Room;
use piped_model::stage::Buffers;
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// What a connection lets be under way at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize), serde(rename_all = "snake_case"))]
pub enum Held {
    /// Write data within a window of credit, in bytes: from where it enters the connection to where
    /// the other side is done with it. What is for a file lands in staging of that size.
    Credit(u64),
    /// Staging for reads of the other side, in bytes: from the device to the connection.
    Staging(u64),
}

/// A fragment takes whole granules of staging. A request has as many as a device may get at once.
const GRAIN: Option<(u64, NonZeroU32)> = match NonZeroU32::new(DEPTH_MAX) {
    Some(most) => Some((GRANULE_BYTES as u64, most)),
    None => None,
};

impl Held {
    /// What a node acts by, whatever a peer says: it never holds less than one fragment back.
    #[must_use]
    pub fn acted_by(self) -> Self {
        match self {
            Self::Credit(window) => Self::Credit(window.max(FRAGMENT_BYTES_MAX.into())),
            Self::Staging(bytes) => Self::Staging(bytes.max(GRANULE_BYTES.into())),
        }
    }

    /// The rooms on a path, from whether each stage is at a device. `wire`: the stages of the wire,
    /// one or none.
    ///
    /// `owed`: credit of earlier writes that the other side has not given back yet, in bytes.
    #[must_use]
    pub fn rooms(self, at_device: &[bool], wire: Range<usize>, owed: u64) -> Buffers {
        let stages = at_device.len();
        let open = Buffers::UNLIMITED;
        match self.acted_by() {
            Self::Credit(window) if stages > 0 && wire.end <= stages => {
                let first = at_device.iter().take_while(|&&at| at).count();
                let batch = window.div_ceil(CREDIT_BATCH_DIVISOR);
                let credit = Room::bytes(first, stages - 1, window);
                let credit = open.over(Room { batch, due: owed, ..credit });
                if wire.end == stages || !at_device[stages - 1] {
                    return credit;
                }
                credit.over(Room { grain: GRAIN, ..Room::bytes(wire.end, stages - 1, window) })
            }
            Self::Staging(bytes) if at_device.first() == Some(&true) && wire.start > 0 => {
                open.over(Room { grain: GRAIN, ..Room::bytes(0, wire.start - 1, bytes) })
            }
            Self::Credit(_) | Self::Staging(_) => open,
        }
    }
}
