//! What sends of one size cost with a copy and without, of the last few that were timed.

use piped_core::units::Nanos;
use piped_report::shard::ZeroCopySize;

/// Samples that are kept of each way. A median of eight is not moved by three that something
/// disturbed.
const KEPT: usize = 8;

/// A send without a copy begins to pay below so many percent of a copy's cost, and stops above so
/// many more. The second completion is handled outside of the call that is timed, and memory is
/// held meanwhile: lending must be worth that.
const PAYS_PERCENT: u64 = 85;
const PAYS_NO_MORE_PERCENT: u64 = 95;

/// Memory that is held longer than this on the average is missed elsewhere.
const HELD_MAX: Nanos = Nanos::from_millis(100);

/// What is known of the cost of sends of one size, with a copy and without.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SizeCosts {
    plain: Last,
    lent: Last,
    /// How long the kernel held what it was lent, decaying.
    held: Option<Nanos>,
    pays: bool,
    /// Sends since one was timed.
    sends: u32,
    /// The next one that is timed lends.
    lends: bool,
}

/// The last samples, in femtoseconds a byte.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    costs: [u64; KEPT],
    count: u32,
}

impl Last {
    fn add(&mut self, bytes: u64, cost: Nanos) {
        self.costs[self.count as usize % KEPT] = cost.0.saturating_mul(1_000_000) / bytes.max(1);
        self.count = self.count.saturating_add(1);
    }

    /// The median, once there are enough.
    fn median(&self) -> Option<u64> {
        let mut costs = self.costs;
        costs.sort_unstable();
        (self.count as usize >= KEPT).then(|| (costs[KEPT / 2 - 1] + costs[KEPT / 2]) / 2)
    }
}

impl SizeCosts {
    pub(super) fn pays(&self) -> bool {
        self.pays
    }

    pub(super) fn is_known(&self) -> bool {
        self.plain.median().is_some() && self.lent.median().is_some()
    }

    /// Counts a send; whether it is one to be timed.
    pub(super) fn is_due(&mut self, each: u32) -> bool {
        self.sends += 1;
        let due = self.sends >= each;
        if due {
            self.sends = 0;
            self.lends = !self.lends;
        }
        due
    }

    /// Whether the one that is timed now lends.
    pub(super) fn next_lends(&self) -> bool {
        self.lends
    }

    pub(super) fn sample(&mut self, lent: bool, bytes: u64, cost: Nanos) {
        if lent {
            self.lent.add(bytes, cost)
        } else {
            self.plain.add(bytes, cost)
        }
        self.judge();
    }

    pub(super) fn held(&mut self, time: Nanos) {
        self.held = Some(self.held.map_or(time, |held| Nanos((held.0 * 7 + time.0) / 8)));
        self.judge();
    }

    fn judge(&mut self) {
        let (Some(plain), Some(lent)) = (self.plain.median(), self.lent.median()) else { return };
        let most = if self.pays { PAYS_NO_MORE_PERCENT } else { PAYS_PERCENT };
        let long = self.held.is_some_and(|held| held > HELD_MAX);
        self.pays = !long && lent.saturating_mul(100) <= plain.saturating_mul(most);
    }

    /// What is known, for sends from so many bytes on.
    pub(super) fn report(&self, bytes: u64) -> Option<ZeroCopySize> {
        let seconds = |femto: u64| femto as f64 * bytes as f64 / 1e15;
        (self.plain.count + self.lent.count > 0).then(|| ZeroCopySize {
            bytes,
            plain_seconds: self.plain.median().map(seconds),
            lent_seconds: self.lent.median().map(seconds),
            held_seconds: self.held.map(|held| held.0 as f64 / 1e9),
            samples: (self.plain.count, self.lent.count),
            pays: self.pays,
        })
    }
}
