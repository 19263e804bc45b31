//! The shard's own buffers: runs of granules out of registered segments.
//!
//! A run is contiguous, page-aligned and at most [`RUN_BYTES_MAX`] long. First fit over a bitmap is
//! enough: there are about a thousand granules in a segment, one word covers 64 of them, and runs
//! live for microseconds. A buddy allocator would round 320 KiB up to 512.

use piped_core::ids::SegmentId;
use piped_core::io::Span;
use piped_core::limits::{GRANULE_BYTES, RUN_BYTES_MAX};
use piped_report::shard::Gauge;

use super::super::arena::Memory;

#[derive(Debug)]
struct Area {
    segment: SegmentId,
    granules: u32,
    used: Vec<u64>,
    used_count: u32,
    /// Granules in use that are scratch: they stay as long as their lane.
    scratch: u32,
    /// The area gets no new runs and goes after the last.
    draining: bool,
}

/// A piece of staging in use. Give it back with [`Staging::free`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Run {
    area: u32,
    first: u32,
    granules: u32,
    scratch: bool,
    /// The memory, of the length asked for.
    pub(in crate::shard) span: Span,
}

impl Run {
    /// What it takes of staging, in bytes.
    pub(in crate::shard) const fn footprint(self) -> u64 {
        footprint(self.granules)
    }

    /// The run as the memory of a request.
    pub(in crate::shard) const fn memory(self) -> Memory {
        Memory { segment: self.span.segment, offset: self.span.offset }
    }
}

const fn footprint(granules: u32) -> u64 {
    granules as u64 * GRANULE_BYTES as u64
}

/// What a run of so many bytes takes of staging, in bytes.
pub(in crate::shard) const fn footprint_of(bytes: u32) -> u64 {
    footprint(granules_of(bytes))
}

const fn granules_of(bytes: u32) -> u32 {
    let granules = bytes.div_ceil(GRANULE_BYTES);
    if granules == 0 { 1 } else { granules }
}

/// Segments of staging, and which granules of them are in use.
#[derive(Debug, Default)]
pub(in crate::shard) struct Staging {
    /// Places of segments; a run names its place, so a free one is `None`.
    areas: Vec<Option<Area>>,
    /// Bytes of all that is in use.
    used: Gauge,
}

impl Staging {
    pub(super) fn add(&mut self, segment: SegmentId, length: u64) {
        let granules = u32::try_from(length / u64::from(GRANULE_BYTES)).unwrap_or(u32::MAX);
        let used = vec![0; granules.div_ceil(64) as usize];
        let area = Area { segment, granules, used, used_count: 0, scratch: 0, draining: false };
        match self.areas.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(area),
            None => self.areas.push(Some(area)),
        }
    }

    /// `None` when nothing fits now, or ever (`bytes` over [`RUN_BYTES_MAX`]).
    ///
    /// From the end of the last segment on, while scratch is taken from the start of the first on:
    /// what stays for long is together, neither keeps a segment that could go nor cuts the room for
    /// long runs.
    pub(super) fn allocate(&mut self, bytes: u32) -> Option<Run> {
        (0..self.areas.len()).rev().find_map(|index| self.allocate_in(index, bytes, false))
    }

    /// Memory that a lane has for as long as it lives.
    pub(super) fn allocate_scratch(&mut self, bytes: u32) -> Option<Run> {
        (0..self.areas.len()).find_map(|index| self.allocate_in(index, bytes, true))
    }

    fn allocate_in(&mut self, index: usize, bytes: u32, scratch: bool) -> Option<Run> {
        if bytes > RUN_BYTES_MAX {
            return None;
        }
        let granules = granules_of(bytes);
        let area = self.areas[index].as_mut().filter(|area| !area.draining)?;
        let first = if scratch { area.find(granules) } else { area.find_last(granules) }?;
        area.mark(first, granules, true);
        area.scratch += if scratch { granules } else { 0 };
        let span = Span { segment: area.segment, offset: footprint(first), length: bytes };
        self.used.add(footprint(granules));
        Some(Run { area: index as u32, first, granules, scratch, span })
    }

    /// Takes a run back. The segment that goes with it, if it was the last of one that drains.
    #[must_use]
    pub(super) fn free(&mut self, run: Run) -> Option<SegmentId> {
        let place = &mut self.areas[run.area as usize];
        let area = place.as_mut().expect("an area stays while runs of it are in use");
        area.mark(run.first, run.granules, false);
        self.used.sub(run.footprint());
        area.scratch -= if run.scratch { run.granules } else { 0 };
        let gone = area.draining && area.used_count == 0;
        if gone { place.take().map(|area| area.segment) } else { None }
    }

    /// Whether a run lies in a segment that is to go.
    pub(super) fn is_leaving(&self, run: Run) -> bool {
        self.areas[run.area as usize].as_ref().is_some_and(|area| area.draining)
    }

    /// Keeps at most so many bytes: large segments first, and of equal ones those in use. The
    /// others get no new runs; `gone` is told of those that go at once.
    pub(super) fn resize(&mut self, bytes: u64, mut gone: impl FnMut(SegmentId)) {
        let mut order: Vec<usize> =
            (0..self.areas.len()).filter(|&index| self.areas[index].is_some()).collect();
        order.sort_by_key(|&index| {
            let area = self.areas[index].as_ref().expect("filtered above");
            std::cmp::Reverse((area.granules, area.scratch, area.used_count))
        });
        let mut left = bytes;
        for index in order {
            let Some(area) = self.areas[index].as_mut() else { continue };
            area.draining = footprint(area.granules) > left;
            if !area.draining {
                left -= footprint(area.granules);
            } else if area.used_count == 0 {
                gone(area.segment);
                self.areas[index] = None;
            }
        }
    }

    /// What a size lacks of what is kept for it, in bytes.
    pub(super) fn missing(&self, bytes: u64) -> u64 {
        let mut sizes: Vec<u32> = self.areas.iter().flatten().map(|area| area.granules).collect();
        sizes.sort_unstable_by_key(|&granules| std::cmp::Reverse(granules));
        sizes
            .into_iter()
            .fold(bytes, |left, granules| left.checked_sub(footprint(granules)).unwrap_or(left))
    }

    fn sum(&self, of: impl Fn(&Area) -> u32) -> u64 {
        footprint(self.areas.iter().flatten().map(of).sum())
    }

    /// All of it, what drains included.
    pub(in crate::shard) fn bytes(&self) -> u64 {
        self.sum(|area| area.granules)
    }

    /// Bytes in segments that stay.
    pub(in crate::shard) fn kept_bytes(&self) -> u64 {
        self.bytes() - self.draining_bytes()
    }

    /// What runs may be taken from.
    pub(in crate::shard) fn free_bytes(&self) -> u64 {
        self.sum(|area| if area.draining { 0 } else { area.granules - area.used_count })
    }

    /// Bytes in segments that are to go.
    pub(super) fn draining_bytes(&self) -> u64 {
        self.sum(|area| if area.draining { area.granules } else { 0 })
    }

    /// In use, in bytes.
    pub(in crate::shard) fn used(&self) -> Gauge {
        self.used
    }

    /// Bytes in use that are scratch.
    pub(in crate::shard) fn scratch_bytes(&self) -> u64 {
        self.sum(|area| area.scratch)
    }

    pub(super) fn segments(&self) -> usize {
        self.areas.iter().flatten().count()
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

    /// The last place for so many granules.
    fn find_last(&self, granules: u32) -> Option<u32> {
        let mut end = self.granules;
        while end >= granules {
            match (end - granules..end).find(|&granule| self.is_used(granule)) {
                None => return Some(end - granules),
                Some(used) => end = used - self.full_words_before(used),
            }
        }
        None
    }

    fn full_words_before(&self, used: u32) -> u32 {
        if !used.is_multiple_of(64) {
            return 0;
        }
        let words = &self.used[..(used / 64) as usize];
        words.iter().rev().take_while(|&&word| word == u64::MAX).count() as u32 * 64
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
        assert_eq!(staging.used().now, staging.bytes());
        for run in whole {
            assert_eq!(staging.free(run), None);
        }
        assert_eq!(staging.used().now, 0);
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_segment_that_drains_gets_no_runs_and_goes_with_its_last() {
        let mut staging = Staging::default();
        staging.add(SegmentId(1), 4 * MIB);
        staging.add(SegmentId(2), 4 * MIB);
        let scratch = staging.allocate_scratch(1 << 20).expect("fits");
        let data = staging.allocate(1 << 20).expect("fits");
        assert_ne!(scratch.span.segment, data.span.segment, "what stays for long is apart");
        let mut gone = Vec::new();
        staging.resize(4 * MIB, |segment| gone.push(segment));
        assert!(gone.is_empty() && staging.is_leaving(data) && !staging.is_leaving(scratch));
        assert_eq!((staging.bytes(), staging.draining_bytes()), (8 * MIB, 4 * MIB));
        let others: Vec<Run> = std::iter::from_fn(|| staging.allocate(1 << 20)).collect();
        assert!(others.iter().all(|run| run.span.segment == scratch.span.segment));
        assert_eq!(others.len(), 3);
        assert_eq!(staging.free(data), Some(data.span.segment));
        assert_eq!((staging.bytes(), staging.segments()), (4 * MIB, 1));
        // The place is free for another; runs of the first are not mixed up with its.
        staging.add(SegmentId(3), 4 * MIB);
        assert!(others.into_iter().chain([scratch]).all(|run| staging.free(run).is_none()));
        assert_eq!(staging.used(), Gauge { now: 0, high: 5 * MIB });
    }

    #[test]
    fn a_size_is_met_by_what_there_is_and_the_rest_is_missing() {
        let mut staging = Staging::default();
        for (number, mib) in [16, 16, 4, 16].into_iter().enumerate() {
            staging.add(SegmentId(number as u32), mib * MIB);
        }
        let gone = |staging: &mut Staging, mib: u64| {
            let mut gone = Vec::new();
            let missing = staging.missing(mib * MIB);
            staging.resize(mib * MIB, |segment| gone.push(segment.0));
            (missing / MIB, gone.len())
        };
        assert_eq!(gone(&mut staging, 52), (0, 0));
        assert_eq!(gone(&mut staging, 100), (48, 0));
        let last = staging.allocate(1).expect("fits");
        assert_eq!(gone(&mut staging, 36), (0, 1));
        assert_eq!(gone(&mut staging, 24), (4, 1), "16 and 4 are kept, one of them in use");
        // One that still drains is taken back rather than replaced.
        assert_eq!(gone(&mut staging, 4), (0, 0));
        assert_eq!(staging.draining_bytes(), 16 * MIB);
        assert_eq!(gone(&mut staging, 20), (0, 0));
        assert_eq!(staging.draining_bytes(), 0);
        assert_eq!(staging.free(last), None);
    }

    proptest! {
        #[test]
        fn runs_never_overlap_and_all_comes_back(
            ops in prop::collection::vec(
                (any::<bool>(), 1u32..RUN_BYTES_MAX, any::<prop::sample::Index>()),
                1..100,
            ),
        ) {
            let mut staging = Staging::default();
            staging.add(SegmentId(1), 8 << 20);
            staging.add(SegmentId(2), 4 << 20);
            let mut live: Vec<Run> = Vec::new();
            for (take, bytes, pick) in ops {
                if take {
                    if let Some(run) = staging.allocate(bytes) {
                        for other in &live {
                            let (one, two) = (other.span, run.span);
                            let apart = one.segment != two.segment
                                || one.offset + u64::from(one.length) <= two.offset
                                || two.offset + u64::from(two.length) <= one.offset;
                            prop_assert!(apart);
                        }
                        live.push(run);
                    }
                } else if !live.is_empty() {
                    let _ = staging.free(live.swap_remove(pick.index(live.len())));
                }
            }
            for run in live {
                prop_assert_eq!(staging.free(run), None);
            }
            prop_assert_eq!(staging.used().now, 0);
        }
    }
}
