//! What others can do to shared memory.

use std::sync::atomic::{AtomicBool, Ordering};

/// How lent memory is kept from shrinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LentKind {
    /// By a seal: every byte stays there.
    Sealed,
    /// Not at all: anybody who has the file can cut it.
    Loose,
}

/// What others can do to memory, besides what they are asked for.
#[derive(Debug)]
pub(crate) enum Tenure {
    /// Nothing that an owner of it would have to fear.
    Sole,
    /// Others write it at any time.
    Open,
    /// Others also take its pages away.
    Loose {
        /// Some pages were gone at an access.
        torn: AtomicBool,
    },
}

impl Tenure {
    pub(crate) fn tear(&self) {
        if let Self::Loose { torn } = self {
            // Relaxed: the flag guards nothing but itself.
            torn.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_torn(&self) -> bool {
        matches!(self, Self::Loose { torn } if torn.load(Ordering::Relaxed))
    }
}
