//! Means of what transfers took against something else.

/// An exponentially decaying mean that starts as the plain mean.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mean {
    value: f64,
    count: u32,
}

impl Mean {
    /// Adds an observation that weighs at least `decay`.
    pub(super) fn observe(&mut self, value: f64, decay: f64) {
        self.count = self.count.saturating_add(1);
        self.value += (value - self.value) * decay.max(1.0 / f64::from(self.count));
    }

    /// Adds the mean of so many observations.
    pub(super) fn add(&mut self, value: f64, count: u32) {
        self.count += count;
        self.value += (value - self.value) * f64::from(count) / f64::from(self.count.max(1));
    }

    /// The mean; 0 without observations.
    pub(super) fn value(self) -> f64 {
        self.value
    }

    /// The number of observations.
    pub(super) fn count(self) -> u32 {
        self.count
    }
}
