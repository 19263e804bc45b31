//! Numbers that look random and are the same every time, so that a measurement can be repeated.

/// SplitMix64: every counter gives another word, and no two pages are alike.
pub(crate) const fn mixed(counter: u64) -> u64 {
    let mut word = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Offset of piece `number` of `size` bytes in `length`: in no order, always a multiple of the
/// size, so aligned if the size is.
pub(crate) fn offset(number: u64, size: u64, length: u64) -> u64 {
    mixed(number) % (length / size).max(1) * size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_aligned_inside_and_spread() {
        let (size, length) = (1 << 20, 10 * (1 << 20) + 17);
        let offsets: std::collections::BTreeSet<u64> =
            (0..200).map(|number| offset(number, size, length)).collect();
        assert!(offsets.iter().all(|offset| offset % size == 0 && offset + size <= length));
        assert_eq!(offsets.len(), 10);
        assert_eq!(offset(7, 64, 64), 0);
    }
}
