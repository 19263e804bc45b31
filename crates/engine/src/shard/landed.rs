//! Which bytes of a request are in place: the watermark, and the extents beyond it.

use piped_core::limits::EXTENTS_MAX;

/// Bytes in place, from the start of a request. The extents beyond the watermark lie beside it: few
/// requests have any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Landed {
    watermark: u64,
    count: u8,
}

/// Disjoint, sorted, none touching the watermark or each other.
#[derive(Debug)]
pub(crate) struct Extents([(u64, u64); EXTENTS_MAX]);

impl Default for Extents {
    fn default() -> Self {
        Self([(0, 0); EXTENTS_MAX])
    }
}

/// The bytes were there already, in part, or there are too many holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotLandable;

impl Landed {
    pub(crate) const fn new(watermark: u64) -> Self {
        Self { watermark, count: 0 }
    }

    /// Contiguous bytes in place from the start; never falls.
    pub(crate) const fn watermark(&self) -> u64 {
        self.watermark
    }

    /// The first extent beyond the watermark; an empty one if there is none.
    pub(crate) fn first_extent(&self, beyond: &Extents) -> (u64, u64) {
        if self.count > 0 { beyond.0[0] } else { (self.watermark, self.watermark) }
    }

    /// Forgets what lies beyond the watermark: a retry fetches it again.
    pub(crate) fn forget_extents(&mut self) {
        self.count = 0;
    }

    /// Whether `[start, end)` may still be written: it lies above the watermark and touches no
    /// landed extent.
    pub(crate) fn is_open(&self, beyond: &Extents, start: u64, end: u64) -> bool {
        start >= self.watermark
            && beyond.0[..usize::from(self.count)].iter().all(|&(a, b)| end <= a || b <= start)
    }

    /// Marks `[start, end)` as in place. Returns whether the watermark moved.
    pub(crate) fn insert(
        &mut self,
        beyond: &mut Extents,
        start: u64,
        end: u64,
    ) -> Result<bool, NotLandable> {
        if start >= end {
            return Ok(false);
        }
        if !self.is_open(beyond, start, end) {
            return Err(NotLandable);
        }
        if start == self.watermark {
            self.watermark = end;
            self.absorb(beyond);
            return Ok(true);
        }
        let count = usize::from(self.count);
        let Extents(extents) = beyond;
        let at = extents[..count].partition_point(|&(a, _)| a < start);
        let joins_left = at > 0 && extents[at - 1].1 == start;
        let joins_right = at < count && extents[at].0 == end;
        match (joins_left, joins_right) {
            (true, true) => {
                extents[at - 1].1 = extents[at].1;
                self.remove(beyond, at);
            }
            (true, false) => extents[at - 1].1 = end,
            (false, true) => extents[at].0 = start,
            (false, false) => {
                if count == EXTENTS_MAX {
                    return Err(NotLandable);
                }
                extents.copy_within(at..count, at + 1);
                extents[at] = (start, end);
                self.count += 1;
            }
        }
        Ok(false)
    }

    fn absorb(&mut self, beyond: &mut Extents) {
        if self.count > 0 && beyond.0[0].0 == self.watermark {
            self.watermark = beyond.0[0].1;
            self.remove(beyond, 0);
        }
    }

    fn remove(&mut self, Extents(extents): &mut Extents, at: usize) {
        extents.copy_within(at + 1..usize::from(self.count), at);
        self.count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a bitmap of bytes.
        #[test]
        fn agrees_with_a_bitmap(pieces in prop::collection::vec((0u64..60, 1u64..12), 1..60)) {
            let (mut landed, mut beyond) = (Landed::new(0), Extents::default());
            let mut bitmap = [false; 80];
            for (start, length) in pieces {
                let (range, end) = ((start as usize)..((start + length) as usize), start + length);
                let open = !bitmap[range.clone()].iter().any(|&b| b);
                prop_assert_eq!(landed.is_open(&beyond, start, end), open);
                let before = landed.watermark();
                let result = landed.insert(&mut beyond, start, end);
                prop_assert_eq!(result.is_ok(), open);
                if open {
                    bitmap[range].fill(true);
                }
                let watermark = bitmap.iter().take_while(|&&b| b).count() as u64;
                prop_assert_eq!(landed.watermark(), watermark);
                let expected = if open { Ok(watermark > before) } else { Err(NotLandable) };
                prop_assert_eq!(result, expected);
            }
        }
    }
}
