//! Fragment sizes as they are executed: a short list, of which the last one repeats.
//!
//! Most plans are one size. In the other plans, only few fragments have sizes that matter (ramps,
//! groups along a release curve), and further fragments are equal. A list of at most [`SIZES_MAX`]
//! sizes therefore holds every plan, has a fixed size in memory, and fits a frame.

/// All sizes are multiples of this many bytes: the least alignment of any device, and a third of a
/// packet.
pub const UNIT_BYTES: u64 = 512;

/// The most sizes of a list.
pub const SIZES_MAX: usize = 32;

/// Sizes of the fragments of a transfer, in order; the last one repeats.
///
/// ```
/// use piped_core::sizes::Sizes;
/// let sizes = Sizes::list([4096, 8192]).unwrap();
/// assert_eq!((sizes.end(0), sizes.end(4096), sizes.end(12288)), (4096, 12288, 20480));
/// assert_eq!(sizes.count(20_000), 3);
/// assert_eq!(sizes.grid(), 4096);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Sizes in units of [`UNIT_BYTES`]; places that are not used hold 0.
    units: [u16; SIZES_MAX],
    count: u8,
}

impl Sizes {
    /// A list of one size, in bytes; rounded up to whole units, at least one.
    #[must_use]
    pub const fn equal(bytes: u64) -> Self {
        let mut units = [0; SIZES_MAX];
        units[0] = in_units(bytes);
        Self { units, count: 1 }
    }

    /// These sizes in this order, in bytes, each rounded up to whole units. Repetitions at the end
    /// are stored once. `None` without a size, or if more than [`SIZES_MAX`] sizes remain.
    #[must_use]
    pub fn list(bytes: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut sizes = Self { units: [0; SIZES_MAX], count: 0 };
        // How often the size at hand, which may be the last one, came so far.
        let mut pending = 0_usize;
        let mut current = 0;
        for size in bytes.into_iter().map(in_units) {
            if size == current {
                pending += 1;
                continue;
            }
            sizes.push(current, pending)?;
            (current, pending) = (size, 1);
        }
        sizes.push(current, pending.min(1))?;
        (sizes.count > 0).then_some(sizes)
    }

    fn push(&mut self, units: u16, times: usize) -> Option<()> {
        for _ in 0..times {
            *self.units.get_mut(usize::from(self.count))? = units;
            self.count += 1;
        }
        Some(())
    }

    fn sizes(&self) -> &[u16] {
        &self.units[..usize::from(self.count)]
    }

    /// Where the fragment with byte `at` ends, counted from the first fragment's start.
    #[must_use]
    pub fn end(&self, at: u64) -> u64 {
        let mut end = 0;
        for &units in self.sizes() {
            end += u64::from(units) * UNIT_BYTES;
            if at < end {
                return end;
            }
        }
        let last = self.last();
        end.saturating_add(((at - end) / last).saturating_add(1).saturating_mul(last))
    }

    /// The number of fragments for so many bytes; at least 1.
    #[must_use]
    pub fn count(&self, bytes: u64) -> u64 {
        let mut end = 0;
        for (place, &units) in (1..).zip(self.sizes()) {
            end += u64::from(units) * UNIT_BYTES;
            if bytes <= end {
                return place;
            }
        }
        u64::from(self.count) + (bytes - end).div_ceil(self.last())
    }

    /// The sizes of the fragments for so many bytes.
    pub fn of(self, bytes: u64) -> impl Iterator<Item = u64> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let end = self.end(start).min(bytes);
            let size = end.checked_sub(start).filter(|&size| size > 0)?;
            start = end;
            Some(size)
        })
    }

    /// The first size, in bytes.
    #[must_use]
    pub fn first(&self) -> u64 {
        u64::from(self.units[0]) * UNIT_BYTES
    }

    fn last(&self) -> u64 {
        u64::from(self.units[usize::from(self.count) - 1]) * UNIT_BYTES
    }

    /// The largest size, in bytes.
    #[must_use]
    pub fn largest(&self) -> u64 {
        u64::from(self.sizes().iter().copied().max().unwrap_or(1)) * UNIT_BYTES
    }

    /// What every fragment ends at a multiple of, in bytes: the greatest common divisor of the
    /// sizes.
    #[must_use]
    pub fn grid(&self) -> u64 {
        let divisor = |mut a: u16, mut b: u16| {
            while b != 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        u64::from(self.sizes().iter().copied().fold(0, divisor)) * UNIT_BYTES
    }

    /// Bytes of the list in a frame: two for each size, the lower first; and how many bytes are
    /// used.
    #[must_use]
    pub fn encode(&self) -> ([u8; 2 * SIZES_MAX], usize) {
        let mut bytes = [0; 2 * SIZES_MAX];
        for (place, units) in bytes.chunks_exact_mut(2).zip(self.sizes()) {
            place.copy_from_slice(&units.to_le_bytes());
        }
        (bytes, 2 * usize::from(self.count))
    }

    /// Reads what [`Sizes::encode`] wrote. A peer may have sent anything: `None` without a size,
    /// with half a size, with a size of 0, or with too many.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (pairs, rest) = bytes.as_chunks::<2>();
        if !rest.is_empty() || pairs.is_empty() || pairs.len() > SIZES_MAX {
            return None;
        }
        let mut units = [0; SIZES_MAX];
        for (place, &pair) in units.iter_mut().zip(pairs) {
            *place = u16::from_le_bytes(pair);
        }
        let count = pairs.len() as u8;
        units[..pairs.len()].iter().all(|&units| units > 0).then_some(Self { units, count })
    }
}

const fn in_units(bytes: u64) -> u16 {
    let units = bytes.div_ceil(UNIT_BYTES);
    if units == 0 {
        1
    } else if units > u16::MAX as u64 {
        u16::MAX
    } else {
        units as u16
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_sizes() -> impl Strategy<Value = (Sizes, Vec<u64>)> {
        prop::collection::vec(1u64..300, 1..SIZES_MAX).prop_map(|units| {
            let bytes: Vec<u64> = units.iter().map(|units| units * UNIT_BYTES).collect();
            (Sizes::list(bytes.iter().copied()).unwrap(), bytes)
        })
    }

    proptest! {
        /// Against the list with its last one repeated.
        #[test]
        fn ends_and_counts_agree_with_the_list(
            (sizes, list) in any_sizes(),
            bytes in 1u64..200_000,
        ) {
            let (mut end, mut count) = (0, 0);
            while end < bytes {
                let start = end;
                end += list[count.min(list.len() - 1)];
                count += 1;
                for at in [start, u64::midpoint(start, end), end - 1] {
                    prop_assert_eq!(sizes.end(at), end);
                }
                prop_assert_eq!(end % sizes.grid(), 0);
                prop_assert!(end - start <= sizes.largest());
            }
            prop_assert_eq!(sizes.count(bytes), count as u64);
            prop_assert_eq!(sizes.of(bytes).count(), count);
            prop_assert_eq!(sizes.of(bytes).sum::<u64>(), bytes);
        }

        #[test]
        fn a_list_survives_the_wire((sizes, _) in any_sizes()) {
            let (bytes, length) = sizes.encode();
            prop_assert_eq!(Sizes::decode(&bytes[..length]), Some(sizes));
        }

        #[test]
        fn what_a_peer_sends_is_refused_or_can_be_used(
            bytes in prop::collection::vec(any::<u8>(), 0..70),
            at: u64,
        ) {
            if let Some(sizes) = Sizes::decode(&bytes) {
                prop_assert!(sizes.end(at) > at || sizes.end(at) == u64::MAX);
                prop_assert!(sizes.count(at) >= 1 && sizes.grid() >= UNIT_BYTES);
            }
        }
    }

    #[test]
    fn what_repeats_at_the_end_is_said_once() {
        let sizes = Sizes::list([1024, 512, 512, 512]).unwrap();
        assert_eq!(sizes, Sizes::list([1024, 512]).unwrap());
        assert_eq!(Sizes::list([4096; 1000]), Some(Sizes::equal(4096)));
        assert_eq!(Sizes::list((1..=33).map(|k| k * 512)), None);
        assert_eq!(Sizes::list([]), None);
        let mut long = vec![512; 40];
        long.push(1024);
        assert_eq!(Sizes::list(long), None, "too many before the last");
    }
}
