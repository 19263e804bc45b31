//! What a byte takes on a way, from the last transfers there.
//!
//! It is the mean of the middle half of the last transfers, for planners try other plans now and
//! then, and some transfers are held up.

use piped_model::ways;

/// Transfers that a way is known by. After a change half of them tell of it.
const RECENT: usize = 8;

/// What a byte takes has changed if it differs by more than this part.
const CHANGE: f64 = 0.1;

/// The last transfers on a way.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PerByte {
    /// Seconds that a byte took in each; the oldest is the next to be overwritten.
    recent: [f64; RECENT],
    /// How many there were since it was forgotten.
    count: usize,
    /// The mean of the middle half; 0 before anything was measured.
    middle: f64,
}

impl PerByte {
    /// Transfers that a way is known by.
    #[cfg(test)]
    pub(super) const RECENT: usize = RECENT;

    /// Seconds that a byte takes; none if nothing was measured.
    pub(super) fn seconds(&self) -> Option<f64> {
        (self.middle > 0.0).then_some(self.middle)
    }

    /// The next transfer alone says what it takes now: those before are of long ago.
    pub(super) fn forget(&mut self) {
        self.count = 0;
    }

    /// A byte took so many seconds. Whether that is a change.
    pub(super) fn learn(&mut self, seconds: f64) -> bool {
        self.recent[self.count % RECENT] = seconds;
        self.count += 1;
        let known = self.count.min(RECENT);
        let mut recent = self.recent;
        let mean = ways::middle(&mut recent[..known]);
        let before = std::mem::replace(&mut self.middle, mean);
        before > 0.0 && (mean - before).abs() > CHANGE * before
    }
}
