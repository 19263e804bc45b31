//! Locks of ranges, which open files have.

use std::ops::Range;

use piped_core::call;
use piped_core::call::Lock;

/// The locks that one open file has. Ranges do not overlap.
#[derive(Debug, Default)]
pub(super) struct Locks(Vec<(Range<u64>, Lock)>);

/// The bytes of a call's range: length 0 is all behind its start.
pub(super) fn bytes_of(range: call::Range) -> Range<u64> {
    let end = if range.length == 0 { u64::MAX } else { range.offset + range.length };
    range.offset..end
}

impl Locks {
    /// Whether they keep another open file from a lock.
    pub(super) fn refuse(&self, range: &Range<u64>, lock: Lock) -> bool {
        let meets = |its: &Range<u64>| its.start < range.end && range.start < its.end;
        self.0.iter().any(|(its, kind)| match (kind, lock) {
            (Lock::Shared, Lock::Shared) | (_, Lock::None) => false,
            _ => meets(its),
        })
    }

    /// Gives a range that lock, whatever it had.
    pub(super) fn set(&mut self, range: Range<u64>, lock: Lock) {
        let before = std::mem::take(&mut self.0);
        for (its, kind) in before {
            let rests = [its.start..its.end.min(range.start), its.start.max(range.end)..its.end];
            self.0.extend(rests.into_iter().filter(|it| !it.is_empty()).map(|it| (it, kind)));
        }
        if lock != Lock::None {
            self.0.push((range, lock));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_one_files_or_shared() {
        let mut locks = Locks::default();
        locks.set(10..20, Lock::Exclusive);
        assert!(locks.refuse(&(19..30), Lock::Shared) && !locks.refuse(&(20..30), Lock::Exclusive));
        locks.set(12..15, Lock::None);
        assert!(!locks.refuse(&(12..15), Lock::Exclusive));
        assert!(locks.refuse(&(11..12), Lock::Shared) && locks.refuse(&(15..16), Lock::Shared));
        locks.set(0..u64::MAX, Lock::Shared);
        assert!(
            !locks.refuse(&(11..12), Lock::Shared) && locks.refuse(&(99..100), Lock::Exclusive)
        );
        assert!(!locks.refuse(&(0..1), Lock::None));
    }
}
