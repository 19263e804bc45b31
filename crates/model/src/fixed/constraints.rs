//! Which sizes, counts and depths a plan may use.

use core::num::NonZeroU32;

use crate::servers::Servers;
use crate::stage::Buffers;

/// What a plan may use. The defaults forbid nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Constraints {
    /// The smallest fragment in bytes (the last one of a transfer may be shorter); 0 is 1.
    pub smallest: u64,
    /// The largest fragment in bytes. Holds before all other limits, except that a fragment is
    /// never smaller than `alignment`.
    pub largest: u64,
    /// Fragment sizes are multiples of this many bytes (but for the last one); 0 is 1.
    pub alignment: u64,
    /// The most fragments outstanding at the first stage; 0 is 1.
    pub depth_max: u32,
    /// The most fragments of a transfer, where `largest` permits; 0 is 1.
    pub fragments_max: u32,
    /// The room between the stages. No fragment is larger than the buffers that it has to be put
    /// together in; where not even the smallest allowed one fits, there is no plan (of
    /// [`super::FixedBest`], one that takes forever).
    pub buffers: Buffers,
    /// Which stages have one server together.
    pub servers: Servers,
}

impl Default for Constraints {
    fn default() -> Self {
        Self {
            smallest: 1,
            largest: u64::MAX,
            alignment: 1,
            depth_max: u32::MAX,
            fragments_max: u32::MAX,
            buffers: Buffers::UNLIMITED,
            servers: Servers::APART,
        }
    }
}

impl Constraints {
    /// The nearest allowed fragment size that is not below `bytes` (or not above, where that would
    /// pass `largest`).
    ///
    /// ```
    /// use piped_model::fixed::Constraints;
    /// let limits = Constraints { alignment: 4096, largest: 10_000, ..Constraints::default() };
    /// assert_eq!(limits.fit(1), 4096);
    /// assert_eq!(limits.fit(5000), 8192);
    /// assert_eq!(limits.fit(9000), 8192);
    /// ```
    #[must_use]
    pub fn fit(&self, bytes: u64) -> u64 {
        let alignment = self.alignment.max(1);
        let (smallest, largest) = self.range();
        let up = bytes.div_ceil(alignment).saturating_mul(alignment);
        up.clamp(smallest, largest)
    }

    /// These constraints with fragments that fit the buffers before `stages`.
    #[must_use]
    pub fn fitting(&self, stages: core::ops::Range<usize>) -> Self {
        Self { largest: self.largest.min(self.buffers.least(stages)), ..*self }
    }

    /// The allowed sizes as multiples of the alignment, the first not above the second.
    pub(super) fn range(&self) -> (u64, u64) {
        let alignment = self.alignment.max(1);
        let largest = (self.largest / alignment).max(1) * alignment;
        let smallest = self.smallest.max(1).div_ceil(alignment).saturating_mul(alignment);
        (smallest.min(largest), largest)
    }

    /// The allowed numbers of fragments of a transfer.
    pub(super) fn counts(&self, bytes: u64) -> (u64, u64) {
        let (smallest, largest) = self.range();
        let fewest = bytes.div_ceil(largest).max(1);
        let most = (bytes / smallest).min(u64::from(self.fragments_max.max(1)));
        (fewest, most.max(fewest))
    }

    /// Whether a latency on a path of so many stages has no closed form: fragments wait for room,
    /// or for a server that works for several stages. Rooms over several stages have one.
    pub(crate) fn needs_walk(&self, stages: usize) -> bool {
        self.buffers.limits_boundaries() || self.servers.is_shared(stages)
    }

    pub(super) fn depth_limit(&self) -> NonZeroU32 {
        NonZeroU32::new(self.depth_max).unwrap_or(NonZeroU32::MIN)
    }
}
