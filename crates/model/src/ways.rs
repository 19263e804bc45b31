//! One transfer over several ways at once: how many bytes each takes.
//!
//! Ways work side by side, so the transfer ends when the last of them does. Where each takes longer
//! for more bytes, that is soonest when all that have bytes end together, and no way that is left
//! out could have brought its first bytes by then. It is the split of the linear program over all
//! sizes of all ways, up to one unit, whatever the sizes are made of: that only says what
//! `seconds(bytes)` is.

/// How many of `bytes` go the first of two ways, the others going the second one, and when the
/// last byte is there, in seconds.
///
/// `first` and `second` say what a way takes for so many bytes, in seconds; they never fall with
/// the bytes, and are not asked about none. The first way's bytes are a multiple of `unit`, or all.
/// Of cuts that are as good the first in order is taken. Asks each way about `log2(bytes / unit)`
/// times.
///
/// ```
/// use piped_model::ways::between;
/// // 100 us and 1 ns a byte; 300 us and 2 ns a byte.
/// let (fast, slow) = (|x: u64| 100e-6 + x as f64 * 1e-9, |x: u64| 300e-6 + x as f64 * 2e-9);
/// let (bytes, seconds) = between(1_000_000, 1, fast, slow);
/// assert_eq!(bytes, 733_333, "100 + 733.3 = 300 + 2 · 266.7");
/// assert!((seconds - 833.334e-6).abs() < 2e-9);
/// assert_eq!(between(100_000, 1, fast, slow).0, 100_000, "it is there before the other begins");
/// ```
pub fn between(
    bytes: u64,
    unit: u64,
    first: impl Fn(u64) -> f64,
    second: impl Fn(u64) -> f64,
) -> (u64, f64) {
    let cut = |units: u64| units.saturating_mul(unit.max(1)).min(bytes);
    let seconds = |way: &dyn Fn(u64) -> f64, bytes: u64| if bytes == 0 { 0.0 } else { way(bytes) };
    let end = |at: u64| {
        let at = cut(at);
        seconds(&first, at).max(seconds(&second, bytes - at))
    };
    // The fewest units with which the first way is the last.
    let (mut low, mut high) = (0, bytes.div_ceil(unit.max(1)));
    while low < high {
        let middle = low + (high - low) / 2;
        let at = cut(middle);
        if seconds(&first, at) >= seconds(&second, bytes - at) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let best = [low.saturating_sub(1), low].map(|at| (cut(at), end(at)));
    let [before, behind] = best;
    if before.1 <= behind.1 { before } else { behind }
}

/// How many of `bytes` go each of several ways, and when the last byte is there, in seconds.
///
/// As [`between`], which it asks for each way and all behind it: every way but the last gets a
/// multiple of `unit`, or all that is left. Its time is that of [`between`] to the power of the
/// ways but one, for two or three.
///
/// ```
/// use piped_model::ways::split;
/// let way = |per_byte: f64| move |bytes: u64| bytes as f64 * per_byte;
/// let (one, other, third) = (way(1e-9), way(2e-9), way(2e-9));
/// let (sizes, seconds) = split(1 << 20, 4096, &[&one, &other, &third]);
/// assert_eq!(sizes, [524_288, 262_144, 262_144]);
/// assert!((seconds - 524_288e-9).abs() < 1e-12);
/// ```
///
/// # Panics
/// If there is no way.
#[must_use]
pub fn split(bytes: u64, unit: u64, ways: &[&dyn Fn(u64) -> f64]) -> (Vec<u64>, f64) {
    let (first, others) = ways.split_first().expect("at least one way");
    if others.is_empty() {
        return (vec![bytes], if bytes == 0 { 0.0 } else { first(bytes) });
    }
    let rest = |bytes: u64| split(bytes, unit, others).1;
    let (taken, seconds) = between(bytes, unit, first, rest);
    let mut sizes = vec![taken];
    sizes.extend(split(bytes - taken, unit, others).0);
    (sizes, seconds)
}

/// One of several ways that are in use: what a byte takes there, and how long it has work already.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loaded {
    /// What a byte takes, in seconds; more than 0.
    pub per_byte: f64,
    /// How long the way is busy with what it has, in seconds.
    pub busy: f64,
}

/// How many of `bytes` go each of several ways that serve one transfer after the other, and when
/// the last byte is there, in seconds.
///
/// All ways that get bytes end together, and the others are busy for longer than that: bytes fill
/// the time up like water, to the level `t` with `sum((t - busy) / per_byte) = bytes` over the ways
/// with `busy < t`. It is the split of the linear program whose ways are lines through what they
/// have. A way gets `least` bytes or none; `sizes` are filled in, in the order of the ways.
///
/// ```
/// use piped_model::ways::{Loaded, level};
/// let way = |per_byte, busy| Loaded { per_byte, busy };
/// let mut sizes = [0; 3];
/// let ways = [way(1e-9, 0.0), way(2e-9, 0.0), way(1e-9, 1.0)];
/// assert!((level(3000, 1, &ways, &mut sizes) - 2e-6).abs() < 1e-12);
/// assert_eq!(sizes, [2000, 1000, 0], "the last one is busy for a second");
/// ```
///
/// # Panics
/// If there is no way, or not as many sizes as ways.
pub fn level(bytes: u64, least: u64, ways: &[Loaded], sizes: &mut [u64]) -> f64 {
    assert!(!ways.is_empty() && ways.len() == sizes.len(), "each way has a size");
    let share = |way: &Loaded, level: f64| ((level - way.busy) / way.per_byte).max(0.0);
    // Which ways get something is kept in `sizes`: 1 for those that do.
    sizes.fill(1);
    let level = loop {
        let taking = || ways.iter().zip(&*sizes).filter(|(_, size)| **size > 0).map(|(way, _)| way);
        let rate: f64 = taking().map(|way| 1.0 / way.per_byte).sum();
        let had: f64 = taking().map(|way| way.busy / way.per_byte).sum();
        let level = (bytes as f64 + had) / rate;
        // The one with the fewest bytes goes first: without it the level rises for the others.
        let all = ways.iter().zip(&*sizes).map(|(way, size)| (share(way, level), *size > 0));
        let fewest = all.enumerate().filter(|(_, (_, takes))| *takes);
        let fewest = fewest.min_by(|(_, (one, _)), (_, (other, _))| one.total_cmp(other));
        match fewest {
            Some((at, (share, _))) if share < least as f64 && taking().count() > 1 => sizes[at] = 0,
            _ => break level,
        }
    };
    let mut left = bytes;
    let mut last = 0;
    for (at, (way, size)) in ways.iter().zip(&mut *sizes).enumerate() {
        if *size > 0 {
            *size = (share(way, level) as u64).min(left);
            left -= *size;
            last = at;
        }
    }
    sizes[last] += left;
    level
}

/// The mean of the middle half of some figures, which it sorts: one that is far off does not
/// count. Not a number, if there are none.
///
/// ```
/// use piped_model::ways::middle;
/// assert_eq!(middle(&mut [2.0, 900.0, 4.0, 0.1]), 3.0);
/// ```
pub fn middle(figures: &mut [f64]) -> f64 {
    figures.sort_unstable_by(f64::total_cmp);
    let middle = &figures[figures.len() / 4..figures.len() - figures.len() / 4];
    middle.iter().sum::<f64>() / middle.len() as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn water_ends_no_later_than_any_other_split(
            bytes in 1_u64..1 << 24,
            ways in proptest::collection::vec((1e-10_f64..1e-7, 0.0_f64..0.01), 1..6),
            parts in proptest::collection::vec(1_u64..1000, 6),
        ) {
            let ways: Vec<Loaded> =
                ways.into_iter().map(|(per_byte, busy)| Loaded { per_byte, busy }).collect();
            let end = |sizes: &[u64]| {
                let used = ways.iter().zip(sizes).filter(|(_, size)| **size > 0);
                used.map(|(way, size)| way.busy + *size as f64 * way.per_byte).fold(0.0, f64::max)
            };
            let mut sizes = vec![0; ways.len()];
            let level = level(bytes, 1, &ways, &mut sizes);
            prop_assert_eq!(sizes.iter().sum::<u64>(), bytes);
            // Whole bytes: what is rounded goes to the last one.
            let slowest = ways.iter().map(|way| way.per_byte).fold(0.0, f64::max);
            let rounding = (ways.len() + 1) as f64 * slowest;
            prop_assert!(end(&sizes) <= level + rounding, "{sizes:?} {level}");
            let sum: u64 = parts[..ways.len()].iter().sum();
            let mut other: Vec<u64> =
                parts[..ways.len()].iter().map(|part| bytes * part / sum).collect();
            other[0] += bytes - other.iter().sum::<u64>();
            prop_assert!(level <= end(&other) + rounding, "{other:?} {level}");
        }

        #[test]
        fn a_way_gets_the_least_or_nothing(
            bytes in 1_u64..1 << 24,
            least in 1_u64..1 << 20,
            ways in proptest::collection::vec((1e-10_f64..1e-6, 0.0_f64..0.01), 1..9),
        ) {
            let ways: Vec<Loaded> =
                ways.into_iter().map(|(per_byte, busy)| Loaded { per_byte, busy }).collect();
            let mut sizes = vec![0; ways.len()];
            level(bytes, least, &ways, &mut sizes);
            prop_assert_eq!(sizes.iter().sum::<u64>(), bytes);
            let used = sizes.iter().filter(|size| **size > 0);
            let is_whole = used.clone().count() == 1;
            prop_assert!(is_whole || used.clone().all(|size| *size + 1 >= least), "{sizes:?}");
        }
    }

    /// Without other work it is the split of [`split`].
    #[test]
    fn idle_ways_are_split_as_by_their_functions() {
        let way = |per_byte: f64| move |bytes: u64| bytes as f64 * per_byte;
        let (one, other, third) = (way(1e-9), way(2e-9), way(5e-9));
        let (by_functions, _) = split(1 << 24, 1, &[&one, &other, &third]);
        let idle = [1e-9, 2e-9, 5e-9].map(|per_byte| Loaded { per_byte, busy: 0.0 });
        let mut sizes = [0; 3];
        level(1 << 24, 1, &idle, &mut sizes);
        let apart = by_functions.iter().zip(sizes).map(|(one, other)| one.abs_diff(other));
        assert!(apart.max() < Some(8), "{by_functions:?} {sizes:?}");
    }
}
