//! What is known of a candidate: the mean latency of its transfers, decayed.

use super::{CLIP, ENOUGH, STALLED};

/// Outcomes that an expectation counts as.
const EXPECTED: f64 = 2.0;

/// Outcomes that count on after a change, if a candidate's prediction differs by more than the
/// factor `MOVED` from the one at measurement. The difference may come from one change or from
/// many: stages that hardly vary change by a few percent all the time.
const KEPT: u32 = 2;
const MOVED: f64 = 1.1;

/// Weight of a new outcome in a believed mean.
const DECAY: f64 = 1.0 / 24.0;

/// Weight of an outcome after [`STALE_USES`] transfers without one, because the old mean is
/// outdated.
const REFRESH: f64 = 1.0 / 4.0;
pub(super) const STALE_USES: u32 = 32;

/// Weight of an outcome in the part that is far from the mean, and the largest part that is not the
/// candidate's: three in a row, or one in five, are.
const STRANGE_DECAY: f32 = 1.0 / 8.0;
const STRANGE_MAX: f32 = 0.25;

/// Measured latencies of transfers with a candidate.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measured {
    /// The mean latency in seconds at a pace of 1, see [`Guard::pace`](super::Guard::pace).
    seconds: f64,
    /// The mean, with the same weights, of the predictions at the time of the measurements.
    predicted: f64,
    outcomes: u32,
    /// The part of the last outcomes that were far from the mean.
    strange: f32,
    /// The guard's `uses` at the last outcome.
    at: u32,
}

impl Measured {
    /// The number of outcomes so far.
    pub(super) fn outcomes(self) -> u32 {
        self.outcomes
    }

    /// The mean latency in seconds at a pace of 1, of however few outcomes.
    pub(super) fn seconds(self) -> f64 {
        self.seconds
    }

    /// The guard's `uses` at the last outcome.
    pub(super) fn last(self) -> u32 {
        self.at
    }

    /// Whether there are more outcomes than count on after a change.
    pub(super) fn is_more_than_kept(self) -> bool {
        self.outcomes > KEPT
    }

    /// Lets the measurements count for little: the next few decide.
    pub(super) fn doubt(&mut self) {
        self.outcomes = self.outcomes.min(KEPT);
    }

    /// Notes that the model, which knows more now, would have predicted `ratio` times as much.
    pub(super) fn learn(&mut self, ratio: f64) {
        self.predicted *= ratio;
    }

    /// Adds an outcome. `seconds`: the latency at a pace of 1. `predicted`: the model's present
    /// prediction.
    pub(super) fn observe(&mut self, seconds: f64, predicted: f64, uses: u32) {
        // Nothing runs much faster than it can: what came before met a stall, and would be held
        // against the candidate for ever, because what is known to be bad is not tried.
        if self.outcomes < ENOUGH && seconds * CLIP < self.seconds {
            self.outcomes = 0;
        }
        // This one met a stall, or the one before took no time: neither is believed.
        if self.outcomes == 1 && seconds > self.seconds * STALLED {
            self.outcomes = 0;
            return;
        }
        self.outcomes = self.outcomes.saturating_add(1);
        let age = uses.wrapping_sub(std::mem::replace(&mut self.at, uses));
        let weight = match self.outcomes {
            first if first <= ENOUGH => 1.0 / f64::from(first),
            _ if age > STALE_USES => REFRESH,
            _ => DECAY,
        };
        let clipped = if self.outcomes == 1 { seconds } else { seconds.min(CLIP * self.seconds) };
        self.seconds += weight * (clipped - self.seconds);
        self.predicted += weight * (predicted - self.predicted);
    }

    /// Notes whether an outcome is near the mean. Returns whether it counts: also others do where
    /// they are frequent.
    pub(super) fn note_nearness(&mut self, is_near: bool) -> bool {
        self.strange += (f32::from(!is_near) - self.strange) * STRANGE_DECAY;
        is_near || self.strange > STRANGE_MAX
    }

    /// Scales the measurements after a change of the path, if the prediction differs much from the
    /// one at measurement.
    pub(super) fn follow(&mut self, predicted: f64) {
        let ratio = predicted / self.predicted;
        let is_usable = ratio.is_finite() && ratio > 0.0;
        if is_usable && !(1.0 / MOVED..=MOVED).contains(&ratio) {
            self.seconds *= ratio;
            self.predicted = predicted;
            self.doubt();
        }
    }

    /// The mean, if there are enough outcomes to believe it.
    pub(super) fn known(self) -> Option<f64> {
        (self.outcomes >= ENOUGH).then_some(self.seconds)
    }

    /// The number of outcomes that the mean is worth.
    pub(super) fn weight(self) -> f64 {
        f64::from(self.outcomes).min(2.0 / DECAY - 1.0)
    }

    /// The mean. Until there are enough outcomes, the expectation counts as [`EXPECTED`] more, and
    /// a single outcome far above it as one that is still worth a trial: it may be a stall.
    pub(super) fn beside(self, expected: f64) -> f64 {
        self.known().unwrap_or_else(|| {
            let outcomes = f64::from(self.outcomes);
            let most = if self.outcomes == 1 { CLIP * expected } else { f64::INFINITY };
            let seconds = self.seconds.min(most);
            (seconds * outcomes + expected * EXPECTED) / (outcomes + EXPECTED)
        })
    }
}
