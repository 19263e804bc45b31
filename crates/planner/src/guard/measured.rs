//! What is known of a candidate: the mean latency of its transfers, decayed.

use std::f64::consts::SQRT_2;

use super::{CLIP, ENOUGH, STALLED};

/// Outcomes that an expectation counts as.
const EXPECTED: f64 = 2.0;

/// Outcomes that count on after a change, if a candidate's prediction differs by more than the
/// factor `MOVED` from the one at measurement. The difference may come from one change or from
/// many: stages that hardly vary change by a few percent all the time.
const KEPT: u32 = 2;
const MOVED: f64 = 1.1;

/// By how much more than about the favourite the model has to be wrong about a candidate to be
/// asked no more how that one changes.
const WRONG: f64 = 1.5;

/// Outcomes that a believed mean is of: the least, and the most where noise asks for more.
pub(super) const MEMORY: (f64, f64) = (24.0, 384.0);

/// The part of the memory that counts on after [`STALE_USES`] transfers without an outcome, because
/// the old mean may be outdated.
const FRESH_PART: f64 = 1.0 / 6.0;
pub(super) const STALE_USES: u32 = 32;

/// Transfers after which an outcome is not the next one any more.
const NEXT_USES: u32 = 2;

/// Outcomes on the same side of the mean, each further away than `FAR` times the mean distance,
/// which are the mean from then on: what was before is of another machine, or was never right.
const FAR_IN_A_ROW: i8 = 3;
const FAR: f64 = 3.0;
const NOISE_MIN: f64 = 0.02;

/// Weight of an outcome in the part that is far from the mean, and the largest part that is not the
/// candidate's: three in a row, or one in five, are.
const STRANGE_DECAY: f32 = 1.0 / 8.0;
const STRANGE_MAX: f32 = 0.25;

/// The factor by which a mean in seconds moves for an outcome with this weight.
///
/// A mean and the pace that its outcomes are divided by both move by such factors. With
/// exponentials one is then a power of the other. With sums the squares of noise would raise one
/// and lower the other, to twice and half within ten thousand outcomes, and what was measured
/// before would be out of all proportion.
pub(super) fn moved(seconds: f64, mean: f64, weight: f64) -> f64 {
    (weight * (seconds / mean - 1.0).min(CLIP - 1.0)).exp()
}

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
    /// The last outcome at a pace of 1, in seconds.
    latest: f64,
    /// Outcomes in a row that were far above the mean, or, if negative, far below.
    far: i8,
    /// The sum of these, in seconds.
    far_seconds: f64,
    /// Outcomes that the mean is of at most, see [`super::Guard::memory`].
    memory: f32,
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

    /// Measured over predicted latency.
    pub(super) fn over_predicted(self) -> f64 {
        self.seconds / self.predicted
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
        self.far = 0;
    }

    /// Notes that the model, which knows more now, would have predicted `ratio` times as much.
    pub(super) fn learn(&mut self, ratio: f64) {
        self.predicted *= ratio;
    }

    /// How far an outcome is from the one just before it, as a part of the mean; a pair differs by
    /// the square root of 2 times what one differs from the mean. Unlike a distance from the mean
    /// that says nothing of how fast the machine is now.
    pub(super) fn distance(&self, seconds: f64, uses: u32) -> Option<f64> {
        let is_next = self.outcomes > 0 && uses.wrapping_sub(self.at) <= NEXT_USES;
        is_next.then(|| ((seconds - self.latest) / self.seconds / SQRT_2).abs().min(1.0))
    }

    /// Adds an outcome. `seconds`: the latency at a pace of 1. `predicted`: the model's present
    /// prediction. `noise`: mean distance from a mean, as a part of it. `memory`: outcomes that the
    /// mean shall be of.
    pub(super) fn observe(
        &mut self,
        (seconds, predicted): (f64, f64),
        uses: u32,
        (noise, memory): (f64, f64),
        is_favourite: bool,
    ) {
        // Nothing runs much faster than it can: what came before met a stall, and would be held
        // against the candidate for ever, because what is known to be bad is not tried.
        if self.outcomes < ENOUGH && seconds * CLIP < self.seconds || self.seconds <= 0.0 {
            self.outcomes = 0;
        }
        // This one met a stall, or the one before took no time: neither is believed.
        if self.outcomes == 1 && seconds > self.seconds * STALLED {
            self.outcomes = 0;
            return;
        }
        self.latest = seconds;
        let age = uses.wrapping_sub(std::mem::replace(&mut self.at, uses));
        self.memory = memory as f32;
        if is_favourite && f64::from(self.outcomes) >= memory {
            self.far = 0;
            self.predicted += (predicted - self.predicted) / memory;
            return;
        }
        let most = if age > STALE_USES { memory * FRESH_PART } else { memory };
        self.outcomes = self.outcomes.min((most as u32).max(ENOUGH));
        if !is_favourite && self.is_news(seconds, noise) {
            self.seconds = self.far_seconds / f64::from(self.far.abs());
            (self.outcomes, self.far) = (ENOUGH / 2 - 1, 0);
        }
        self.outcomes += 1;
        let weight = 1.0 / f64::from(self.outcomes).min(most);
        self.seconds = match self.outcomes {
            1 => seconds,
            known if known > ENOUGH => self.seconds * moved(seconds, self.seconds, weight),
            _ => self.seconds + weight * (seconds.min(CLIP * self.seconds) - self.seconds),
        };
        self.predicted += weight * (predicted - self.predicted);
    }

    /// Whether an outcome is the third in a row that is far off on the same side.
    fn is_news(&mut self, seconds: f64, noise: f64) -> bool {
        let off = seconds / self.seconds - 1.0;
        let side = if off > 0.0 { 1 } else { -1 };
        if self.far * side <= 0 {
            (self.far, self.far_seconds) = (0, 0.0);
        }
        if self.outcomes > 0 && off.abs() > FAR * noise.max(NOISE_MIN) {
            self.far += side;
            self.far_seconds += seconds;
        } else {
            (self.far, self.far_seconds) = (0, 0.0);
        }
        self.far.abs() >= FAR_IN_A_ROW
    }

    /// Notes whether an outcome is near the mean. Returns whether it counts: also others do where
    /// they are frequent.
    pub(super) fn note_nearness(&mut self, is_near: bool) -> bool {
        self.strange += (f32::from(!is_near) - self.strange) * STRANGE_DECAY;
        is_near || self.strange > STRANGE_MAX
    }

    /// Scales the measurements after a change of the path, if the prediction differs much from the
    /// one at measurement. `usual`: the favourite's measured over predicted latency. What was
    /// never what the model says of it is not scaled as the model does.
    pub(super) fn follow(&mut self, predicted: f64, usual: f64) {
        let ratio = predicted / self.predicted;
        let is_usable = ratio.is_finite() && ratio > 0.0;
        if !is_usable || (1.0 / MOVED..=MOVED).contains(&ratio) {
            return;
        }
        let wrong = self.over_predicted() / usual;
        self.predicted = predicted;
        if wrong.is_finite() && !(1.0 / WRONG..=WRONG).contains(&wrong) {
            (self.outcomes, self.far) = (self.outcomes.min(ENOUGH), 0);
            return;
        }
        self.seconds *= ratio;
        self.doubt();
    }

    /// The mean, if there are enough outcomes to believe it.
    pub(super) fn known(self) -> Option<f64> {
        (self.outcomes >= ENOUGH).then_some(self.seconds)
    }

    /// The number of outcomes that the mean is worth.
    pub(super) fn weight(self) -> f64 {
        // A mean that forgets is worth twice its memory.
        f64::from(self.outcomes)
            * if f64::from(self.outcomes) < f64::from(self.memory) { 1.0 } else { 2.0 }
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
