//! Room over several stages: what may be between entering one stage and leaving a later one.
//!
//! A sender with a window of credit may have so many bytes under way, through all stages up to the
//! one behind which they count as delivered. Staging that a fragment takes when it is read and
//! gives back when it was sent is such a room, too. Bytes enter it when the first stage starts
//! their fragment. They leave it when the fragment that holds them has left the last stage, and
//! the first stage knows of it `back` later. Credit may come back in batches: all that has left,
//! once that is at least `batch`. Let `e_i` be the end of fragment `i` at the first stage `f`:
//!
//! ```text
//! start(i,f) >= depart(q,l) + back         q: the fragment of the last stage l that ends the first
//!                                          batch with which e_i - bytes or more have come back
//! ```
//!
//! What earlier transfers have left behind as less than a batch is `due`: it takes room until the
//! first batch comes back.
//!
//! Memory that is taken for a whole fragment of the last stage, when its first byte comes in, has a
//! `grain`. Such fragments count in whole grains, and there may be so many of them at once.
//!
//! A room that cannot hold what has to be put together in it waits forever, as a buffer does. Then
//! some fragment waits for bytes that are behind itself.

use core::num::NonZeroU32;

/// Room over a run of stages.
///
/// ```
/// use piped_model::evaluate::within;
/// use piped_model::room::Room;
/// use piped_model::stage::{Buffers, Stage};
/// let wire = Stage { latency: 10.0, overhead: 1.0, per_byte: 0.0, window: None };
/// let store = Stage { latency: 0.0, overhead: 1.0, per_byte: 0.0, window: None };
/// let sizes: [&[u64]; 2] = [&[8; 4]; 2];
/// let open = within(&[wire, store], &sizes, None, &Buffers::UNLIMITED)?;
/// assert_eq!(open, 15.0);
/// // Two under way: the third begins when the first is stored, and that is known 10 later.
/// let window = Room { back: 10.0, ..Room::bytes(0, 1, 16) };
/// let seconds = within(&[wire, store], &sizes, None, &Buffers::UNLIMITED.over(window))?;
/// assert_eq!(seconds, 22.0 + 13.0);
/// # Ok::<(), piped_model::evaluate::EvaluateFault>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Room {
    /// The stage that waits for room.
    pub first: usize,
    /// The stage behind which bytes take none.
    pub last: usize,
    /// How many bytes it holds.
    pub bytes: u64,
    /// Where memory is taken for whole fragments of the last stage: the unit in which, and how many
    /// fragments may have come in and not left. `None`: bytes count as they are.
    pub grain: Option<(u64, NonZeroU32)>,
    /// The least number of bytes that is worth being told of; 0 is 1. Without a grain.
    pub batch: u64,
    /// How many bytes of earlier transfers the first stage is not told of yet; less than a batch.
    pub due: u64,
    /// Seconds until the first stage knows of what has left.
    pub back: f64,
}

impl Room {
    /// Room for so many bytes between entering `first` and leaving `last`, known at once.
    #[must_use]
    pub const fn bytes(first: usize, last: usize, bytes: u64) -> Self {
        Self { first, last, bytes, grain: None, batch: 1, due: 0, back: 0.0 }
    }

    /// The largest fragment, in bytes, that is sure to find room while nothing else is in it.
    #[must_use]
    pub fn certain(&self) -> u64 {
        match self.grain {
            Some((grain, _)) => self.bytes / grain.max(1) * grain.max(1),
            None => self.bytes.saturating_sub(self.batch.max(1) - 1),
        }
    }

    /// Whether a path of so many stages has its stages.
    pub(crate) fn is_on(&self, stages: usize) -> bool {
        self.first <= self.last && self.last < stages
    }

    /// What a fragment takes of it.
    pub(crate) fn footprint(&self, size: u64) -> u64 {
        let grain = self.grain.map_or(1, |(grain, _)| grain.max(1));
        size.div_ceil(grain).saturating_mul(grain)
    }

    /// What is due, as a part of a batch.
    pub(crate) fn due(&self) -> u64 {
        self.due.min(self.batch.max(1) - 1)
    }
}
