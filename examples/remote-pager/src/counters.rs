//! Counters of a pager since it was made.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counted by the pager's thread, read by any.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) faults: AtomicU64,
    pub(crate) write_faults: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) puts: AtomicU64,
    pub(crate) installed: AtomicU64,
    pub(crate) ahead: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) unused: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) saved: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) lost: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, count: usize) {
    // Relaxed: each counter says nothing of the others.
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

/// The counters at one moment: see [`crate::Pager::counts`].
///
/// ```
/// assert_eq!(remote_pager::Counts::default().hit_rate(), 0.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Times a thread waited for the pager, whatever for.
    pub faults: u64,
    /// Page faults that were first writes to pages that were there.
    pub write_faults: u64,
    /// Gets, of pages and of strips.
    pub gets: u64,
    /// Puts that were done.
    pub puts: u64,
    /// Pages that came into the mapping.
    pub installed: u64,
    /// Pages of strips that were fetched ahead.
    pub ahead: u64,
    /// Pages of strips that were touched before they had landed.
    pub late: u64,
    /// Pages that were fetched ahead and given up before anybody touched them.
    pub unused: u64,
    /// Pages that made room for others.
    pub evicted: u64,
    /// Pages that were written back.
    pub saved: u64,
    /// Gets and puts that were asked for again.
    pub retries: u64,
    /// Pages that could not be had.
    pub lost: u64,
}

impl Counts {
    /// The part of all installed pages nobody waited for the network for, 0 to 1.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.installed == 0 {
            return 0.0;
        }
        (self.ahead - self.late.min(self.ahead)) as f64 / self.installed as f64
    }
}

impl Counters {
    pub(crate) fn snapshot(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            faults: get(&self.faults),
            write_faults: get(&self.write_faults),
            gets: get(&self.gets),
            puts: get(&self.puts),
            installed: get(&self.installed),
            ahead: get(&self.ahead),
            late: get(&self.late),
            unused: get(&self.unused),
            evicted: get(&self.evicted),
            saved: get(&self.saved),
            retries: get(&self.retries),
            lost: get(&self.lost),
        }
    }
}
