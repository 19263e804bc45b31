//! How often a file is looked for in the page cache.

/// Looks in vain after which only some reads look.
const IN_VAIN_MAX: u32 = 16;

/// Reads for each look at a file that was not in the cache for long.
const LOOK_EVERY: u32 = 64;

/// What looks for a file in the page cache have found. A look is a system call, and a file that is
/// read past the cache stays outside of it: so most of its reads do without.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Looks {
    /// Reads, or pieces of them, since the cache last had what one of them asked for.
    in_vain: u32,
}

impl Looks {
    /// Whether the next read looks.
    pub(super) fn is_due(&mut self) -> bool {
        let is_due = self.in_vain < IN_VAIN_MAX || self.in_vain.is_multiple_of(LOOK_EVERY);
        self.in_vain = self.in_vain.wrapping_add(1);
        is_due
    }

    /// The cache had what a read asked for.
    pub(super) fn note_found(&mut self) {
        self.in_vain = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_seldom_looked_for_and_one_that_comes_is_soon_found() {
        let mut looks = Looks::default();
        assert_eq!((0..16).filter(|_| looks.is_due()).count(), 16);
        assert_eq!((0..640).filter(|_| looks.is_due()).count(), 10);
        let waits = (1..).find(|_| looks.is_due()).expect("a look");
        assert!(waits <= LOOK_EVERY, "{waits}");
        looks.note_found();
        assert_eq!((0..16).filter(|_| looks.is_due()).count(), 16, "each read again");
    }
}
