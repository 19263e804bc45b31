//! Where what the page cache has of a range ends, so that a read is cut there: the disk reads the
//! one part while the other is copied.

use piped_core::ids::FileId;
use piped_core::io::Io;
use piped_core::limits::WAY_UNIT_BYTES;

use super::looks::Looks;

/// The border is known to so many bytes, and each side has at least as many.
const BORDER_UNIT: u64 = 64 * 1024;

/// The longest range that is looked through: each look takes as long as its range is long, and all
/// of them about twice as long as one look at all.
const BORDER_BYTES_MAX: u64 = 16 << 20;

/// The border of what is cached in a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::shard) struct Border {
    /// Bytes of the range before the border.
    at: u64,
    /// Whether those are the ones that are cached, or those behind it.
    before: bool,
}

impl Border {
    /// Bytes of the range before the border, and whether those are the ones that are cached.
    pub(in crate::shard) fn place(self) -> (u64, bool) {
        (self.at, self.before)
    }
}

/// The border in a range of an open file of which the cache has one end and not the other.
pub(super) fn find<I: Io>(
    looks: &Looks,
    file: FileId,
    (offset, length): (u64, u64),
    io: &mut I,
) -> Option<Border> {
    if !(2 * BORDER_UNIT..=BORDER_BYTES_MAX).contains(&length) || !looks.may_be_due() {
        return None;
    }
    let end = offset + length;
    let before = io.is_cached(file, offset, WAY_UNIT_BYTES);
    if before == io.is_cached(file, end - WAY_UNIT_BYTES, WAY_UNIT_BYTES) {
        return None;
    }
    // Borders at multiples of the unit in the file; the first one is inside the range.
    let first = offset / BORDER_UNIT + 1;
    let border = |units: u64| (first + units) * BORDER_UNIT;
    let has = |units: u64, io: &mut I| match before {
        true => io.is_cached(file, offset, border(units) - offset),
        false => io.is_cached(file, border(units), end - border(units)),
    };
    // With more units there is more before the border, and less behind it.
    let (mut low, mut high) = (0, (end - 1) / BORDER_UNIT + 1 - first);
    while low < high {
        let middle = low + (high - low) / 2;
        if has(middle, io) == before {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    // The last one up to which all is cached, or the first one from which on all is.
    let at = border(if before { low.checked_sub(1)? } else { low }).checked_sub(offset)?;
    let sides = [at, length.checked_sub(at)?];
    sides.iter().all(|&side| side >= BORDER_UNIT).then_some(Border { at, before })
}
