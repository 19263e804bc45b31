//! Which parts of a read come from the page cache and which from the device, where the cache has
//! some of it.
//!
//! The kernel says how many pages of a range are there, not which. So the longest part of which it
//! has some is halved and asked for again, a bounded number of times. What is there only in part
//! after that comes from the device.
//!
//! Both ways work side by side, so the read ends when the later one does. What is in the cache may
//! come from the device all the same: as much of it as makes both end together.

use piped_core::io::Cached;
use piped_core::limits::{STRIPE_LOOKS_MAX, STRIPE_UNIT_BYTES, STRIPES_MAX, WAY_UNIT_BYTES};
use piped_model::ways;

/// Both ways together are to take less than this part of what the device takes alone: the second
/// one costs a request more.
const WORTH: f64 = 0.95;

/// The parts of a read, from the page cache and from the device by turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Stripes {
    /// Where each ends, in bytes of the read.
    ends: [u32; STRIPES_MAX],
    count: u8,
    /// Whether the first one comes from the page cache.
    first_cached: bool,
}

/// A part of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Stripe {
    start: u64,
    end: u64,
    cached: bool,
}

impl Stripe {
    /// From where to where it goes in the read.
    pub(in crate::shard) fn range(self) -> (u64, u64) {
        (self.start, self.end)
    }

    /// Whether it comes from the page cache.
    pub(in crate::shard) fn is_cached(self) -> bool {
        self.cached
    }

    fn bytes(self) -> u64 {
        self.end - self.start
    }
}

impl Stripes {
    /// No parts at all.
    pub(in crate::shard) const NONE: Self =
        Self { ends: [0; STRIPES_MAX], count: 0, first_cached: false };

    /// Appends a part, which ends there. Those of one way beside each other become one.
    fn push(&mut self, end: u64, cached: bool) {
        let count = usize::from(self.count);
        let start = count.checked_sub(1).map_or(0, |last| self.ends[last]);
        if end as u32 == start {
            return;
        }
        if count == 0 {
            self.first_cached = cached;
        } else if self.is_cached(count - 1) == cached {
            self.ends[count - 1] = end as u32;
            return;
        }
        self.ends[count] = end as u32;
        self.count += 1;
    }

    fn is_cached(&self, index: usize) -> bool {
        self.first_cached == index.is_multiple_of(2)
    }

    /// The parts, in order.
    pub(in crate::shard) fn iter(&self) -> impl DoubleEndedIterator<Item = Stripe> + Clone + '_ {
        (0..usize::from(self.count)).map(|index| Stripe {
            start: index.checked_sub(1).map_or(0, |before| self.ends[before].into()),
            end: self.ends[index].into(),
            cached: self.is_cached(index),
        })
    }

    /// The part with this byte of the read.
    pub(in crate::shard) fn at(&self, byte: u64) -> Option<Stripe> {
        self.iter().find(|stripe| byte < stripe.end)
    }

    /// Bytes that come from the page cache, or from the device.
    pub(in crate::shard) fn bytes(&self, cached: bool) -> u64 {
        self.iter().filter(|it| it.cached == cached).map(Stripe::bytes).sum()
    }

    /// With so many bytes fewer from the page cache, of its longest parts and beside the device's:
    /// whole parts, and whole units of the last one, so that all cuts stay where devices read at
    /// once. At most a unit of these bytes stays.
    fn less(mut self, mut bytes: u64) -> Self {
        while bytes > 0 && self.count > 1 {
            let cached = self.iter().enumerate().filter(|(_, it)| it.cached);
            let Some((longest, stripe)) = cached.max_by_key(|(_, it)| it.bytes()) else { break };
            let moved = match bytes >= stripe.bytes() {
                true => stripe.bytes(),
                false => bytes / WAY_UNIT_BYTES * WAY_UNIT_BYTES,
            };
            if moved == 0 {
                break;
            }
            match longest.checked_sub(1) {
                Some(before) => self.ends[before] += moved as u32,
                None => self.ends[longest] -= moved as u32,
            }
            bytes -= moved;
            let before = self;
            self = Self::NONE;
            before.iter().for_each(|it| self.push(it.end, it.cached));
        }
        self
    }

    /// The parts of a read of `length` bytes from `offset` in its file, of which the page cache has
    /// `known`. None, if no part is found that it has. `look` says what it has of a range.
    pub(in crate::shard) fn find(
        (offset, length): (u64, u64),
        known: Cached,
        mut look: impl FnMut(u64, u64) -> Cached,
    ) -> Option<Self> {
        let mut ranges = [(0, Cached::default()); STRIPES_MAX];
        ranges[0] = (length, known);
        let mut count = 1;
        for _ in 0..STRIPE_LOOKS_MAX {
            let start = |at: usize| at.checked_sub(1).map_or(0, |before: usize| ranges[before].0);
            let cut = |at: usize| {
                let (end, known) = ranges[at];
                let middle = offset + start(at).midpoint(end);
                let cut = (middle / STRIPE_UNIT_BYTES * STRIPE_UNIT_BYTES).saturating_sub(offset);
                let is_mixed = !known.is_none() && !known.is_all();
                (is_mixed && start(at) < cut).then_some((end - start(at), at, cut))
            };
            let Some((_, at, cut)) = (0..count).filter_map(cut).max() else { break };
            let (from, whole) = (start(at), ranges[at].1);
            let first = look(offset + from, cut - from);
            ranges.copy_within(at..count, at + 1);
            (ranges[at], ranges[at + 1].1) = ((cut, first), whole.without(first));
            count += 1;
        }
        let mut stripes = Self::NONE;
        ranges[..count].iter().for_each(|&(end, known)| stripes.push(end, known.is_all()));
        (stripes.bytes(true) > 0).then_some(stripes)
    }

    /// How the parts are taken so that the read ends soonest, and none if that is all from the
    /// device. `cache` and `device` say what so many bytes take there, in seconds.
    pub(in crate::shard) fn balanced(
        self,
        cache: impl Fn(u64) -> f64,
        device: impl Fn(u64) -> f64,
    ) -> Option<Self> {
        let [cached, others] = [true, false].map(|cached| self.bytes(cached));
        let (moved, _) =
            ways::between(cached, WAY_UNIT_BYTES, |bytes| device(others + bytes), &cache);
        let left = cached - moved;
        let seconds = device(others + moved).max(cache(left));
        (left > 0 && seconds < WORTH * device(cached + others)).then(|| self.less(moved))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UNIT: u64 = STRIPE_UNIT_BYTES;
    const PAGE: u64 = 4096;

    /// What a cache has that has these pages.
    fn pages(there: &[bool], offset: u64, length: u64) -> Cached {
        let range = (offset / PAGE) as usize..(offset + length).div_ceil(PAGE) as usize;
        let cached = there[range.clone()].iter().filter(|&&it| it).count() as u64;
        Cached { pages: range.len() as u64, cached }
    }

    /// The parts that are found, and the number of looks.
    fn find(there: &[bool], offset: u64, length: u64) -> (Option<Stripes>, usize) {
        let mut looks = 0;
        let stripes = Stripes::find((offset, length), pages(there, offset, length), |at, bytes| {
            looks += 1;
            pages(there, at, bytes)
        });
        (stripes, looks)
    }

    fn parts(stripes: Stripes) -> Vec<(u64, bool)> {
        stripes.iter().map(|it| (it.bytes(), it.cached)).collect()
    }

    fn with(units: &[bool]) -> Vec<bool> {
        units.iter().flat_map(|&it| [it; (UNIT / PAGE) as usize]).collect()
    }

    #[test]
    fn one_end_of_what_is_there_is_found_to_the_unit() {
        let units: Vec<bool> = (0..128).map(|unit| unit >= 37).collect();
        let (stripes, looks) = find(&with(&units), 0, 128 * UNIT);
        let stripes = stripes.expect("it has some");
        assert_eq!(parts(stripes), [(37 * UNIT, false), (91 * UNIT, true)]);
        assert_eq!(looks, STRIPE_LOOKS_MAX);
        // Where the halves tell, the first look is the last one.
        let units: Vec<bool> = (0..128).map(|unit| unit < 64).collect();
        let (stripes, looks) = find(&with(&units), 0, 128 * UNIT);
        assert_eq!(parts(stripes.expect("half")), [(64 * UNIT, true), (64 * UNIT, false)]);
        assert_eq!(looks, 1);
    }

    #[test]
    fn a_hole_is_found_and_a_unit_with_a_hole_comes_from_the_device() {
        let units: Vec<bool> = (0..16).map(|unit| !(5..7).contains(&unit)).collect();
        let (stripes, _) = find(&with(&units), 0, 16 * UNIT);
        let holed = [(5 * UNIT, true), (2 * UNIT, false), (9 * UNIT, true)];
        assert_eq!(parts(stripes.expect("most")), holed);
        let mut there = with(&[true; 4]);
        there[20] = false;
        let (stripes, _) = find(&there, 0, 4 * UNIT);
        let holed = [(UNIT, true), (UNIT, false), (2 * UNIT, true)];
        assert_eq!(parts(stripes.expect("most")), holed);
        let scattered: Vec<bool> = (0..1024).map(|page| page % 2 == 0).collect();
        assert_eq!(find(&scattered, 0, 1024 * PAGE).0, None);
    }

    #[test]
    fn pages_that_leave_between_looks_do_no_harm() {
        let known = Cached { pages: 64, cached: 63 };
        for first in [Cached { pages: 32, cached: 32 }, Cached { pages: 64, cached: 64 }] {
            let _ = Stripes::find((0, 4 * UNIT), known, |_, _| first);
        }
        let none = Stripes::find((0, 4 * UNIT), known, |_, _| Cached { pages: 32, cached: 0 });
        // What the first answer said and the later ones did not: 63 pages of 64 were there.
        assert_eq!(none.map(|it| it.bytes(true) <= 4 * UNIT), Some(true));
    }

    #[test]
    fn both_ways_end_together_or_the_device_has_all() {
        let units: Vec<bool> = (0..16).map(|unit| unit < 8).collect();
        let half = find(&with(&units), 0, 16 * UNIT).0.expect("half");
        let way = |per_byte: f64| move |bytes: u64| bytes as f64 * per_byte;
        assert_eq!(half.balanced(way(1.0), way(1.0)), Some(half), "as they lie");
        assert_eq!(half.balanced(way(1.0), way(5.0)), Some(half), "what is not there stays so");
        let slow = half.balanced(way(2.0), way(1.0)).expect("a third comes from there");
        let third = 16 * UNIT / 3 / PAGE * PAGE;
        assert!(slow.bytes(true).abs_diff(third) <= PAGE, "{:?}", parts(slow));
        assert_eq!(half.balanced(way(100.0), way(1.0)), None);
        assert_eq!(half.balanced(|_| 1e9, way(1.0)), None);
    }

    proptest! {
        /// Whatever is there: parts cover the read, come by turns, and those from the cache are
        /// there; also with any bytes moved to the device, of which less than a unit stays. Cuts
        /// are where devices read.
        #[test]
        fn parts_cover_a_read(
            runs in prop::collection::vec((1usize..40, any::<bool>()), 1..12),
            skip in 0u64..100_000,
            moved in 0u64..1_200_000,
        ) {
            let there: Vec<bool> = runs.iter().flat_map(|&(n, it)| vec![it; n]).collect();
            let all = there.len() as u64 * PAGE;
            let offset = skip.min(all - 1);
            let (stripes, looks) = find(&there, offset, all - offset);
            prop_assert!(looks <= STRIPE_LOOKS_MAX);
            let Some(stripes) = stripes else { return Ok(()) };
            let found = stripes.bytes(true);
            let moved = moved.min(found);
            for (stripes, expected) in [(stripes, found), (stripes.less(moved), found - moved)] {
                let mut next = 0;
                let mut last = None;
                for it in stripes.iter() {
                    prop_assert!(it.start == next && it.end > next && last != Some(it.cached));
                    prop_assert!(next == 0 || (offset + next).is_multiple_of(WAY_UNIT_BYTES));
                    if it.cached {
                        prop_assert!(pages(&there, offset + it.start, it.bytes()).is_all());
                    }
                    prop_assert_eq!(stripes.at(it.start), Some(it));
                    prop_assert_eq!(stripes.at(it.end - 1), Some(it));
                    (next, last) = (it.end, Some(it.cached));
                }
                prop_assert_eq!(next, all - offset);
                if stripes.bytes(false) > 0 {
                    let more = stripes.bytes(true) - expected;
                    prop_assert!(more < WAY_UNIT_BYTES, "{more} more than {expected}");
                }
            }
        }
    }
}
