//! The shard's own buffers: runs of granules out of registered segments.
//!
//! A run is contiguous, page-aligned and at most [`RUN_BYTES_MAX`] long. First fit over a bitmap is
//! enough: there are about a thousand granules in a segment, one word covers 64 of them, and runs
//! live for microseconds. A buddy allocator would round 320 KiB up to 512.

use crate::ids::SegmentId;
use crate::io::Span;

/// The unit of staging, in bytes.
pub(crate) const GRANULE_BYTES: u32 = 64 * 1024;

/// The longest run: a fragment of 1 MiB with an unaligned edge on both sides.
pub(crate) const RUN_BYTES_MAX: u32 = 18 * GRANULE_BYTES;

#[derive(Debug)]
struct Area {
    segment: SegmentId,
    granules: u32,
    used: Vec<u64>,
    used_count: u32,
}

/// A piece of staging in use. Give it back with [`Staging::free`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    area: u32,
    first: u32,
    granules: u32,
    /// The memory, of the length asked for.
    pub(crate) span: Span,
}

impl Run {
    /// What it takes of staging, in bytes.
    pub(crate) const fn footprint(self) -> u64 {
        self.granules as u64 * GRANULE_BYTES as u64
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    areas: Vec<Area>,
}

impl Staging {
    pub(crate) fn add(&mut self, segment: SegmentId, length: u64) {
        let granules = u32::try_from(length / u64::from(GRANULE_BYTES)).unwrap_or(u32::MAX);
        let used = vec![0; granules.div_ceil(64) as usize];
        self.areas.push(Area { segment, granules, used, used_count: 0 });
    }

    /// `None` when nothing fits now, or ever (`bytes` over [`RUN_BYTES_MAX`]).
    pub(crate) fn allocate(&mut self, bytes: u32) -> Option<Run> {
        if bytes > RUN_BYTES_MAX {
            return None;
        }
        let granules = bytes.div_ceil(GRANULE_BYTES).max(1);
        for (index, area) in self.areas.iter_mut().enumerate() {
            if let Some(first) = area.find(granules) {
                area.mark(first, granules, true);
                let offset = u64::from(first) * u64::from(GRANULE_BYTES);
                let span = Span { segment: area.segment, offset, length: bytes };
                return Some(Run { area: index as u32, first, granules, span });
            }
        }
        None
    }

    pub(crate) fn free(&mut self, run: Run) {
        self.areas[run.area as usize].mark(run.first, run.granules, false);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.areas.iter().map(|area| u64::from(area.granules)).sum::<u64>()
            * u64::from(GRANULE_BYTES)
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        let granules: u64 = self.areas.iter().map(|area| u64::from(area.used_count)).sum();
        granules * u64::from(GRANULE_BYTES)
    }

    /// Granules of a segment in use.
    pub(crate) fn used_in(&self, segment: SegmentId) -> u32 {
        self.areas.iter().filter(|area| area.segment == segment).map(|area| area.used_count).sum()
    }
}

impl Area {
    fn find(&self, granules: u32) -> Option<u32> {
        let mut start = 0;
        while start + granules <= self.granules {
            match (start..start + granules).rev().find(|&granule| self.is_used(granule)) {
                None => return Some(start),
                // Everything up to the last used granule of the window is out.
                Some(used) => start = used + 1 + self.full_words_after(used),
            }
        }
        None
    }

    /// How many granules after `used` lie in words that are full: they need no look each.
    fn full_words_after(&self, used: u32) -> u32 {
        let next = used + 1;
        if !next.is_multiple_of(64) {
            return 0;
        }
        let full = self.used[(next / 64) as usize..].iter().take_while(|&&word| word == u64::MAX);
        full.count() as u32 * 64
    }

    fn is_used(&self, granule: u32) -> bool {
        self.used[(granule / 64) as usize] >> (granule % 64) & 1 == 1
    }

    fn mark(&mut self, first: u32, granules: u32, used: bool) {
        for granule in first..first + granules {
            debug_assert_ne!(self.is_used(granule), used, "a granule changes hands twice");
            self.used[(granule / 64) as usize] ^= 1 << (granule % 64);
        }
        if used {
            self.used_count += granules;
        } else {
            self.used_count -= granules;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn too_long_and_too_much_are_refused() {
        let mut staging = Staging::default();
        staging.add(SegmentId(7), 2 << 20);
        assert_eq!(staging.allocate(RUN_BYTES_MAX + 1), None);
        let whole: Vec<_> = (0..2).map(|_| staging.allocate(1 << 20).expect("fits")).collect();
        assert_eq!(staging.allocate(1), None);
        assert_eq!(staging.used_bytes(), staging.bytes());
        for run in whole {
            staging.free(run);
        }
        assert_eq!(staging.used_in(SegmentId(7)), 0);
    }

    proptest! {
        #[test]
        fn runs_never_overlap_and_all_comes_back(ops in prop::collection::vec((any::<bool>(), 1u32..RUN_BYTES_MAX, any::<prop::sample::Index>()), 1..100)) {
            let mut staging = Staging::default();
            staging.add(SegmentId(1), 8 << 20);
            staging.add(SegmentId(2), 4 << 20);
            let mut live: Vec<Run> = Vec::new();
            for (take, bytes, pick) in ops {
                if take {
                    if let Some(run) = staging.allocate(bytes) {
                        for other in &live {
                            let apart = other.span.segment != run.span.segment
                                || other.span.offset + u64::from(other.span.length) <= run.span.offset
                                || run.span.offset + u64::from(run.span.length) <= other.span.offset;
                            prop_assert!(apart);
                        }
                        live.push(run);
                    }
                } else if !live.is_empty() {
                    staging.free(live.swap_remove(pick.index(live.len())));
                }
            }
            for run in live {
                staging.free(run);
            }
            prop_assert_eq!(staging.used_bytes(), 0);
        }
    }
}
