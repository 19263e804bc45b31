//! The empirical guard: what the candidates of a path and size class took in practice.
//!
//! The model proposes a fragment size, the measurement disposes. Costs that no straight line knows
//! (caches, socket buffers, a kernel's batching) make a candidate slower or faster than predicted; the
//! latencies that its transfers really had are kept here, decayed, and a candidate that another one beats
//! by more than [`VETO`] in practice is not chosen, whatever the model says. To know that, a few
//! transfers try the others: sizes nearly as good as the proposal (which the estimators need anyway to
//! tell `g` from `G`), and, as long as outcomes come in, fixed sizes over the whole range.

use std::sync::Arc;

use piped_model::fixed::FixedBest;

use super::planned::Planned;

/// The most candidates: the proposal, two variations of it, powers of two, whole.
pub(super) const ARMS_MAX: usize = 16;

/// One transfer in this many tries a candidate that is not the favourite.
const TRY_EVERY: u32 = 8;

/// The same as long as there is a candidate worth trying that nobody has.
const TRY_EVERY_AT_FIRST: u32 = 2;

/// One trial in this many is of a candidate that seemed not worth it: things change.
const LONG_SHOT_EVERY: u32 = 8;

/// Uses after which the favourite's plan is made anew, with what is known of the candidates then.
const REFRESH_EVERY: u32 = 250;

/// Outcomes that make a mean worth believing.
const ENOUGH: u32 = 8;

/// Weight of a new outcome in a believed mean.
const DECAY: f64 = 1.0 / 16.0;

/// An outcome above this many times the mean counts as that: somebody else had the CPU.
const CLIP: f64 = 3.0;

/// A candidate slower than another by this factor is vetoed.
const VETO: f64 = 1.05;

/// A candidate is tried again now and then if it seems at most this many times slower.
const WORTH_TRYING: f64 = 1.25;

/// A candidate is tried for the first time if it is predicted at most this many times slower.
const WORTH_A_FIRST_TRY: f64 = 2.0;

/// Sizes within this ratio are the same candidate, a proposal that moved a little.
const SAME_SIZE: f64 = 1.25;

/// What transfers with a candidate took.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    seconds: f64,
    outcomes: u32,
}

impl Measured {
    fn observe(&mut self, seconds: f64) {
        self.outcomes = self.outcomes.saturating_add(1);
        let weight = if self.outcomes <= ENOUGH { 1.0 / f64::from(self.outcomes) } else { DECAY };
        let clipped = if self.outcomes == 1 { seconds } else { seconds.min(CLIP * self.seconds) };
        self.seconds += weight * (clipped - self.seconds);
    }

    fn known(self) -> Option<f64> {
        (self.outcomes >= ENOUGH).then_some(self.seconds)
    }
}

/// A candidate.
#[derive(Debug)]
struct Arm {
    plan: FixedBest,
    /// In the form the engine executes; made when it is first used.
    planned: Option<Arc<Planned>>,
    measured: Measured,
}

/// A candidate as the planner sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) plan: FixedBest,
    /// Mean latency in practice, in seconds, once there are enough outcomes.
    pub(super) measured: Option<f64>,
    pub(super) vetoed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Guard {
    /// The model's proposal first.
    arms: Vec<Arm>,
    /// Arms behind the proposal that lie in its flat region.
    variations: usize,
    uses: u32,
    next_trial: usize,
    trials: u32,
    /// An outcome came since the last trial beyond the flat region.
    heard: bool,
}

impl Guard {
    /// With room for all candidates, so that renewing takes no memory.
    pub(super) fn new() -> Self {
        Self { arms: Vec::with_capacity(ARMS_MAX), ..Self::default() }
    }

    /// New predictions: the proposal, sizes nearly as good, and the fixed sizes to compare with. What was
    /// measured stays with its size. Returns the plans that are not needed any more.
    pub(super) fn renew(
        &mut self,
        proposal: FixedBest,
        variations: &[FixedBest],
        others: &[FixedBest],
    ) -> impl Iterator<Item = Arc<Planned>> + use<> {
        let mut known = [(0, Measured::default()); ARMS_MAX];
        for (place, arm) in known.iter_mut().zip(&self.arms) {
            *place = (arm.plan.fragment_bytes, arm.measured);
        }
        let measured = |bytes: u64| {
            let near = |&&(size, measured): &&(u64, Measured)| {
                measured.outcomes > 0 && ratio(size as f64, bytes as f64) <= SAME_SIZE
            };
            let distance = |&&(size, _): &&(u64, Measured)| size.abs_diff(bytes);
            known.iter().filter(near).min_by_key(distance).map(|&(_, measured)| measured)
        };
        let mut retired: [Option<Arc<Planned>>; ARMS_MAX] = Default::default();
        for (place, arm) in retired.iter_mut().zip(self.arms.drain(..)) {
            *place = arm.planned;
        }
        let all = std::iter::once(&proposal).chain(variations).chain(others);
        self.arms.extend(all.take(ARMS_MAX).map(|&plan| Arm {
            plan,
            planned: None,
            measured: measured(plan.fragment_bytes).unwrap_or_default(),
        }));
        self.variations = variations.len();
        retired.into_iter().flatten()
    }

    /// A transfer with fragments of this size took so long.
    pub(super) fn observe(&mut self, fragment_bytes: u64, seconds: f64) {
        for arm in self.arms.iter_mut().filter(|arm| arm.plan.fragment_bytes == fragment_bytes) {
            arm.measured.observe(seconds);
            self.heard = true;
        }
    }

    /// The candidate for the next transfer.
    pub(super) fn choose(&mut self) -> usize {
        self.uses = self.uses.wrapping_add(1);
        let every = if self.is_learning() { TRY_EVERY_AT_FIRST } else { TRY_EVERY };
        if !self.uses.is_multiple_of(every) {
            return self.favourite();
        }
        self.trials = self.trials.wrapping_add(1);
        let long_shot = self.trials.is_multiple_of(LONG_SHOT_EVERY);
        // Without outcomes there is nothing to learn but the estimators' variety.
        let reach = if self.heard { self.arms.len() } else { 1 + self.variations };
        for _ in 0..reach {
            self.next_trial = (self.next_trial + 1) % reach;
            if self.next_trial <= self.variations
                || self.is_worth_trying(self.next_trial, long_shot)
            {
                self.heard &= self.next_trial <= self.variations;
                return self.next_trial;
            }
        }
        self.favourite()
    }

    fn is_learning(&self) -> bool {
        let unknown = |index: usize| {
            self.arms[index].measured.known().is_none() && self.is_worth_trying(index, false)
        };
        self.heard && (0..self.arms.len()).any(unknown)
    }

    fn is_worth_trying(&self, index: usize, long_shot: bool) -> bool {
        let arm = &self.arms[index];
        let best = self.arms[0].plan.predicted_seconds;
        let patience = if long_shot { 2.0 } else { 1.0 };
        match (arm.measured.known(), self.fastest()) {
            (Some(measured), Some((_, fastest))) => measured <= fastest * WORTH_TRYING * patience,
            _ => arm.plan.predicted_seconds <= best * WORTH_A_FIRST_TRY * patience,
        }
    }

    /// The candidate that most transfers get: the proposal, unless measurement objects. A proposal nobody
    /// has measured has to prove itself in trials where there is something that has.
    pub(super) fn favourite(&self) -> usize {
        match self.fastest() {
            Some((fastest, _)) if self.is_vetoed(0) || self.arms[0].measured.known().is_none() => {
                fastest
            }
            _ => 0,
        }
    }

    fn is_vetoed(&self, index: usize) -> bool {
        match (self.arms[index].measured.known(), self.fastest()) {
            (Some(measured), Some((_, fastest))) => measured > fastest * VETO,
            _ => false,
        }
    }

    fn fastest(&self) -> Option<(usize, f64)> {
        let known = self.arms.iter().enumerate();
        let known = known.filter_map(|(index, arm)| Some((index, arm.measured.known()?)));
        known.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Whether a candidate's executable form tells old news of the others. Ask once after
    /// [`Guard::choose`].
    pub(super) fn is_stale(&self, index: usize) -> bool {
        self.uses.is_multiple_of(REFRESH_EVERY) || index != self.favourite()
    }

    pub(super) fn plan(&self, index: usize) -> FixedBest {
        self.arms[index].plan
    }

    /// A candidate's executable form, if it was made.
    pub(super) fn planned(&mut self, index: usize) -> &mut Option<Arc<Planned>> {
        &mut self.arms[index].planned
    }

    /// All candidates with what is known of them.
    pub(super) fn seen(&self) -> impl Iterator<Item = Seen> + '_ {
        self.arms.iter().enumerate().map(|(index, arm)| Seen {
            plan: arm.plan,
            measured: arm.measured.known(),
            vetoed: self.is_vetoed(index),
        })
    }
}

/// How many times the larger is the smaller.
fn ratio(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low > 0.0 { high / low } else { f64::INFINITY }
}
