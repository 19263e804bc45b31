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
