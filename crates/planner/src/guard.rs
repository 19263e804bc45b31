//! The empirical guard: how long transfers with each candidate of a path and size class took in
//! practice.
//!
//! The model proposes fragment sizes and a depth; measurements decide. Some costs follow no
//! straight line (caches, socket buffers, a kernel's batching) and make a candidate slower or
//! faster than predicted. The guard keeps the latencies of each candidate's transfers, decayed. A
//! candidate that another one beats in practice is not chosen, whatever the model says. To beat
//! means by more than the errors of both means, or by a few percent. A candidate that may be faster
//! than the favourite takes turns with it until one is ahead.
//!
//! A candidate without measurements is *expected* to take its prediction times a ratio: what plans
//! of its kind (whole, fixed, serial, nested) took against the model so far. A proposal is thus
//! used as soon as there is reason to. A model that flatters one kind of plan is believed less the
//! next time. A candidate is tried only if it may be the best. A few transfers try the others all
//! the same, since things change.
//!
//! What is shown as a candidate's prediction is its *promise*: the prediction with what all
//! candidates took beyond the stages' costs ([`unseen`]). Choices do not follow it.
//!
//! When a stage's cost changes, a candidate's earlier measurements are scaled as its prediction is,
//! and count for little: the next few transfers decide.

mod mean;
mod measured;
mod similar;
mod trials;
mod unseen;

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::Arc;

use self::mean::Mean;
use self::measured::{MEMORY, Measured, moved};
use self::similar::{KINDS, SAME_SIZE, differ_at_most, is_near, kind};
use self::trials::{Race, Trials};
use self::unseen::Fit;
pub(super) use self::unseen::Unseen;
use super::planned::{Choice, Planned};

/// The most candidates: the proposal, variations of it, whole, powers of two, three serial plans
/// and nested plans.
pub(super) const ARMS_MAX: usize = 24;

/// Uses after which a candidate's plan is made anew, to include what is known of the others.
const REFRESH_EVERY: u32 = 250;

/// Outcomes after which a mean is believed.
const ENOUGH: u32 = 6;

/// An outcome above this many times a believed mean counts as that many: something else had the
/// CPU. Means of few outcomes are forgotten, or count less, by the same factor.
const CLIP: f64 = 3.0;

/// An outcome so many times above or below the mean is not caused by its candidate, but by a stall,
/// or a clock that does not run evenly; unless too many are.
const STALLED: f64 = 8.0;

/// Factors by which a candidate must be slower than another to be vetoed: the first if both are
/// known well enough, the second in any case.
const VETO: (f64, f64) = (1.015, 1.03);

/// The second factor where fragments are known to differ. There a few percent are luck, and the
/// model knows more of how much a candidate suffers from it than its few outcomes show.
const VETO_SPREAD: f64 = 1.25;

/// A candidate is tried again now and then if it seems at most this many times slower than the
/// favourite.
const WORTH_TRYING: f64 = 1.15;

/// Plans in company are equally good up to this factor.
const ALIKE: f64 = 1.01;

/// Weight of an outcome in the pace, over that in a believed mean: few transfers see one state of
/// the machine.
const PACE_DECAY: f64 = 3.0;

/// How much slower the favourite has to get, for what reason ever, until the others are asked; and
/// what the pace may be above its lowest by noise alone.
const SLOWER: f64 = 1.25;
const NOISY: f64 = 1.1;

/// The error that a believed mean shall have, as a part of it.
const ERROR: f64 = 0.01;

/// Paces at which means are kept. Beyond them, they are of another machine, or were never right.
const PACES: RangeInclusive<f64> = 1.0 / STALLED..=STALLED;

/// Weight of an outcome in the noise.
const SLOW_DECAY: f64 = 1.0 / 32.0;

/// Ratios of measurement to model beyond these come neither from the model nor from the pace.
const BIAS: (f64, f64) = (1.0 / STALLED, STALLED);

/// A candidate with its measurements.
#[derive(Debug, Clone)]
struct Arm {
    plan: Choice,
    /// A number that differs where the fragments or the depth do.
    number: u32,
    /// The plan in the form the engine executes; made when it is first used.
    planned: Option<Arc<Planned>>,
    /// The guard's `uses` when `planned` was last made anew.
    made_at: u32,
    measured: Measured,
    /// What is expected of the latency that the candidate is judged by ([`Choice::judged`]), in
    /// seconds at a pace of 1.
    expected: f64,
}

impl Arm {
    /// What outcomes are expected to take: without a tail, of which they say nothing.
    fn usual(&self) -> f64 {
        self.expected - self.plan.tail_seconds
    }

    /// The standard error of the difference of two candidates' means, as a part of a mean. `noise`:
    /// mean distance of an outcome from its mean, as a part of it.
    fn error_beside(&self, other: &Self, noise: f64) -> f64 {
        let errors = 1.0 / self.measured.weight() + 1.0 / other.measured.weight();
        // Mean absolute to standard deviation; infinite for one without outcomes.
        1.25 * noise.max(f64::MIN_POSITIVE) * errors.sqrt()
    }
}

/// A candidate as the planner shows it: predicted by the stages, and by what no stage sees.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) plan: Choice,
    /// Mean latency in practice, in seconds; absent until there are enough outcomes.
    pub(super) measured: Option<f64>,
    pub(super) vetoed: bool,
}

/// The candidates of a path and size class with what is measured of each.
#[derive(Debug, Default, Clone)]
pub(super) struct Guard {
    /// All candidates, the model's proposal first.
    arms: Vec<Arm>,
    /// Number of arms after the proposal that lie in its flat region.
    variations: usize,
    /// The candidate that most transfers get, as far as is known now.
    favourite: usize,
    uses: u32,
    trials: Trials,
    /// How many times slower than usual transfers are now, whatever their candidate. A machine that
    /// others use changes its speed within seconds, and candidates are tried at different times.
    /// Compared directly, the candidate with the better moments would win. Therefore outcomes are
    /// compared relative to this pace. Only the favourite's outcomes move it: an error of another
    /// candidate's mean says nothing of the machine.
    pace: f64,
    /// The pace at which the others were last asked how they are, or somewhat above a lower one
    /// since.
    asked_at: f64,
    /// For each kind of plan, the mean ratio of measured latencies to present predictions, with the
    /// number of outcomes.
    bias: [Mean; KINDS],
    /// What another length of the path has found that no stage sees of fragments.
    before: Unseen,
    /// Mean distance of a transfer from its candidate's mean, as a part of the mean. What all
    /// transfers have in common for a while is not part of it.
    noise: Mean,
}

impl Guard {
    /// An empty guard with room for all candidates, so that renewing allocates nothing.
    pub(super) fn new() -> Self {
        Self { arms: Vec::new(), pace: 1.0, asked_at: 1.0, ..Self::default() }
    }

    /// Whether enough candidates are known for [`Self::unseen`].
    pub(super) fn is_sure(&self) -> bool {
        Fit::is_sure(&self.arms)
    }

    /// What no stage sees of fragments.
    pub(super) fn unseen(&self) -> Unseen {
        self.fit().unseen()
    }

    /// Expects of fragments what another length of the path has found.
    pub(super) fn expect_unseen(&mut self, before: Unseen) {
        self.before = before;
    }

    /// Takes new predictions: the proposal, sizes nearly as good, and others to compare with.
    /// Measurements stay with their size. `changed`: the costs have changed. Returns the plans that
    /// are not needed any more.
    pub(super) fn renew(
        &mut self,
        changed: bool,
        proposal: Choice,
        variations: &[Choice],
        others: &[Choice],
    ) -> impl Iterator<Item = Arc<Planned>> + use<> {
        let mut known = [const { None }; ARMS_MAX];
        for (place, arm) in known.iter_mut().zip(&self.arms) {
            *place = Some((arm.plan, arm.measured)).filter(|(_, known)| known.outcomes() > 0);
        }
        let favourite = self.arms.get(self.favourite).map(|arm| arm.measured);
        let usual = favourite.map_or(1.0, Measured::over_predicted);
        let stays = Cell::new(false);
        let measured = |plan: &Choice| {
            let near = known.iter().flatten().filter(|(old, _)| is_near(old, plan));
            let distance = |(old, _): &&(Choice, Measured)| old.distance(plan);
            let (old, mut measured) = near.min_by_key(distance).copied()?;
            let learnt = plan.predicted_seconds / old.predicted_seconds;
            if changed {
                measured.follow(plan.predicted_seconds, usual);
            } else if learnt.is_finite() {
                // The model knows more of the same path, which took what it took.
                measured.learn(learnt);
            }
            // Of one with other frames, which may matter more than is thought.
            if !differ_at_most(&old, plan, |_, _| SAME_SIZE) {
                measured.doubt();
            }
            stays.set(stays.get() || measured.is_more_than_kept());
            Some(measured)
        };
        let mut retired: [Option<Arc<Planned>>; ARMS_MAX] = Default::default();
        for (place, arm) in retired.iter_mut().zip(self.arms.drain(..)) {
            *place = arm.planned;
        }
        let all = std::iter::once(&proposal).chain(variations).chain(others);
        for (place, &plan) in all.enumerate() {
            let number = plan.cut.number();
            let is_new =
                self.arms.len() < ARMS_MAX && self.arms.iter().all(|arm| arm.number != number);
            if is_new {
                let measured = measured(&plan).unwrap_or_default();
                let (made_at, planned, expected) = (self.uses, None, 0.0);
                self.arms.push(Arm { plan, number, planned, made_at, measured, expected });
            }
            if place == variations.len() {
                self.variations = self.arms.len() - 1;
            }
        }
        // What stays was measured at a pace.
        if changed && !stays.get() {
            (self.pace, self.asked_at) = (1.0, 1.0);
        }
        // Most paths have few candidates, and most plans wait for the next time that they are used.
        self.arms.shrink_to_fit();
        self.expect();
        retired.into_iter().flatten()
    }

    /// What all candidates say that no stage sees.
    fn fit(&self) -> Fit {
        Fit::of(&self.arms, self.before)
    }

    /// Computes the expected latency of each candidate.
    fn expect(&mut self) {
        self.bias = self.biases();
        let common = self.common_bias();
        let bias = self.bias.map(|mean| if is_known(mean) { mean.value() } else { common });
        for arm in &mut self.arms {
            let promised = arm.plan.predicted_seconds * bias[kind(&arm.plan)];
            arm.expected = arm.measured.beside(promised) + arm.plan.tail_seconds;
        }
        self.favourite = match self.fastest() {
            Some(fastest) if self.is_beaten(0, fastest) => fastest,
            _ => 0,
        };
    }

    /// Measured against predicted latency by kind of plan. Present predictions are used, because a
    /// comparison with a model that knew less says nothing.
    fn biases(&self) -> [Mean; KINDS] {
        let mut bias = [Mean::default(); KINDS];
        // A single outcome may be a stall: it tells only where no arm has more.
        let least = self.arms.iter().map(|arm| arm.measured.outcomes()).fold(1, u32::max).min(2);
        let used = self.arms.iter().filter(|arm| arm.measured.outcomes() >= least);
        for arm in used.filter(|arm| arm.plan.predicted_seconds > 0.0) {
            let ratio = arm.measured.seconds() / arm.plan.predicted_seconds;
            // One that was used ten times as often does not tell ten times as much of the others.
            let outcomes = arm.measured.outcomes().min(ENOUGH);
            bias[kind(&arm.plan)].add(ratio.clamp(BIAS.0, BIAS.1), outcomes);
        }
        bias
    }

    /// The mean bias over plans of all kinds, weighted by outcomes; 1 without any.
    fn common_bias(&self) -> f64 {
        let weight = |mean: &Mean| f64::from(mean.count().min(ENOUGH));
        let all: f64 = self.bias.iter().map(weight).sum();
        let sum: f64 = self.bias.iter().map(|mean| mean.value() * weight(mean)).sum();
        if all > 0.0 { sum / all } else { 1.0 }
    }

    /// Takes the latency of a transfer with the candidate of this number.
    pub(super) fn observe(&mut self, number: u32, seconds: f64) {
        let is_informed = self.bias.iter().any(|mean| mean.count() > 0);
        let Some(index) = self.arms.iter().position(|arm| arm.number == number) else { return };
        let memory = self.memory();
        let arm = &mut self.arms[index];
        if self.trials.hear(number) {
            return;
        }
        let before = arm.measured.known();
        let usual = seconds / self.pace;
        let mean = arm.measured.seconds();
        let is_its_own = match arm.measured.outcomes() {
            // It may well be slower than the model says, but not so much faster.
            0 if is_informed => usual * STALLED >= arm.usual(),
            0 | 1 => usual > 0.0,
            _ => (mean / STALLED..=mean * STALLED).contains(&usual),
        };
        // A single other one says nothing of the machine. If it counted, the means of candidates
        // that are used next would be those of a slower machine, and so too low, after each stall.
        let counts = arm.measured.note_nearness(is_its_own);
        if counts {
            if let Some(distance) = arm.measured.distance(usual, self.uses) {
                self.noise.observe(distance, SLOW_DECAY);
            }
            let (outcome, is_favourite) =
                ((usual, arm.plan.predicted_seconds), index == self.favourite);
            arm.measured.observe(outcome, self.uses, (self.noise.value(), memory), is_favourite);
            if let Some(mean) = before.filter(|&mean| is_favourite && mean > 0.0) {
                self.keep_pace(moved(usual, mean, PACE_DECAY / memory));
            }
        }
        self.expect();
    }

    /// Moves the pace by a factor.
    fn keep_pace(&mut self, by: f64) {
        self.pace *= by;
        if self.pace > self.asked_at * SLOWER {
            // It may be the machine, or the favourite alone: the others are asked.
            self.asked_at = self.pace;
            self.trials.ask(self.arms.len());
        }
        self.asked_at = self.asked_at.min(self.pace * NOISY);
        if !PACES.contains(&self.pace) {
            self.forget();
        }
    }

    /// Outcomes that a mean is of. The more they differ, the more of them tell a percent.
    fn memory(&self) -> f64 {
        (1.25 * self.noise.value() / ERROR).powi(2).clamp(MEMORY.0, MEMORY.1)
    }

    /// Begins anew. The means were not of what transfers take: a clock stood still, say.
    fn forget(&mut self) {
        self.arms.iter_mut().for_each(|arm| arm.measured = Measured::default());
        (self.pace, self.asked_at) = (1.0, 1.0);
    }

    /// The predicted latency, in seconds, of a transfer of so many bytes with the candidate of this
    /// number.
    pub(super) fn predicted(&self, number: u32, bytes: u64) -> Option<f64> {
        let arm = self.arms.iter().find(|arm| arm.number == number)?;
        Some(arm.plan.predicted_for(bytes))
    }

    /// Picks the candidate for the next transfer, beside so many others. `live`: its latency will
    /// be told.
    pub(super) fn pick(&mut self, live: bool, others: u32) -> usize {
        match others {
            0 if live => self.choose(),
            // Nobody learns from variety where nothing is learned.
            0 => self.favourite(),
            _ => self.beside(others),
        }
    }

    /// Picks the candidate for the next transfer, which is alone.
    pub(super) fn choose(&mut self) -> usize {
        self.uses = self.uses.wrapping_add(1);
        let Self { variations, favourite, uses, .. } = *self;
        let known = (self.noise.value(), self.bias.map(is_known));
        self.trials.choose(&Race::new(&self.arms, (variations, favourite), uses, known))
    }

    /// The candidate with which a transfer and so many `others` beside it end soonest in the mean
    /// (`evaluate::company`): each waits for the work of those before it, half of them in the mean.
    /// Of those that are equally good it is the one with the least work. Outcomes of transfers in
    /// company say little of their plans. So nothing is tried, and of what is not known only
    /// fragments that are no smaller than those known to be good are believed in. None that asks
    /// for fragments one by one is taken: the others are there anyway.
    fn beside(&self, others: u32) -> usize {
        let usual = self.fastest().unwrap_or(self.favourite());
        let most = self.arms[usual].plan.counts;
        let may_be = |arm: &Arm| {
            let mut levels = arm.plan.counts.iter().zip(most);
            arm.plan.cut.depth > 1
                && (arm.measured.known().is_some() || levels.all(|(&count, most)| count <= most))
        };
        // A plan that takes longer than the model says works longer, too; a tail is no work.
        let work = |arm: &Arm| arm.plan.part_of_work() * arm.usual();
        let before = f64::from(others) / 2.0;
        let cost = |arm: &Arm| arm.expected + before * work(arm);
        let arms = || self.arms.iter().enumerate().filter(|(_, arm)| may_be(arm));
        let least = arms().map(|(_, arm)| cost(arm)).fold(f64::INFINITY, f64::min);
        let near = arms().filter(|(_, arm)| cost(arm) <= least * ALIKE);
        let least = near.min_by(|a, b| work(a.1).total_cmp(&work(b.1)));
        least.map_or(usual, |(index, _)| index)
    }

    /// The candidate that most transfers get: the proposal, unless measurements object.
    pub(super) fn favourite(&self) -> usize {
        self.favourite
    }

    /// Whether the other candidate, which is known, is faster by more than the errors of both
    /// means.
    fn is_beaten(&self, index: usize, by: usize) -> bool {
        let (arm, other) = (&self.arms[index], &self.arms[by]);
        if arm.measured.known().is_none() && !arm.plan.is_spread() {
            // Of equal promise the one that keeps it.
            return arm.expected >= other.expected;
        }
        let most = if arm.plan.is_spread() { VETO_SPREAD } else { VETO.1 };
        let margin = 2.0 * arm.error_beside(other, self.noise.value());
        let margin = (1.0 + margin).clamp(VETO.0, most) - 1.0;
        arm.expected - other.expected > margin * other.usual()
    }

    fn is_vetoed(&self, index: usize) -> bool {
        let is_known = self.arms[index].measured.known().is_some();
        is_known && self.fastest().is_some_and(|fastest| self.is_beaten(index, fastest))
    }

    /// The fastest candidate of those with enough outcomes.
    fn fastest(&self) -> Option<usize> {
        let known = self.arms.iter().enumerate();
        let known = known.filter(|(_, arm)| arm.measured.known().is_some());
        known.min_by(|a, b| a.1.expected.total_cmp(&b.1.expected)).map(|(index, _)| index)
    }

    /// Whether a candidate's executable form has outdated figures of the others. Ask once after
    /// [`Guard::choose`]: the form then counts as renewed.
    pub(super) fn is_stale(&mut self, index: usize) -> bool {
        let uses = self.uses;
        let arm = &mut self.arms[index];
        let is_stale = uses.wrapping_sub(arm.made_at) >= REFRESH_EVERY;
        if is_stale {
            arm.made_at = uses;
        }
        is_stale
    }

    pub(super) fn plan(&self, index: usize) -> Choice {
        self.arms[index].plan
    }

    /// The executable form of a candidate, if it was made.
    pub(super) fn planned(&mut self, index: usize) -> &mut Option<Arc<Planned>> {
        &mut self.arms[index].planned
    }

    /// All candidates with what is known of them, the model's first before the others: the
    /// proposal, or what promises less of those that were used.
    pub(super) fn seen(&self) -> impl Iterator<Item = Seen> + '_ {
        let all = 0..self.arms.len();
        let is_used = |&index: &usize| index == 0 || self.arms[index].measured.known().is_some();
        let fit = self.fit();
        let judged = |index: usize| {
            let plan = &self.arms[index].plan;
            fit.promise(plan) + plan.tail_seconds
        };
        let used = all.clone().filter(is_used);
        let first = used.min_by(|&a, &b| judged(a).total_cmp(&judged(b)));
        let others = all.filter(move |&index| Some(index) != first);
        first.into_iter().chain(others).map(move |index| self.seen_by(&fit, index))
    }

    /// What is known of a candidate.
    pub(super) fn seen_at(&self, index: usize) -> Seen {
        self.seen_by(&self.fit(), index)
    }

    fn seen_by(&self, fit: &Fit, index: usize) -> Seen {
        let arm = &self.arms[index];
        Seen {
            plan: Choice { predicted_seconds: fit.promise(&arm.plan) * self.pace, ..arm.plan },
            measured: arm.measured.known().map(|seconds| seconds * self.pace),
            vetoed: self.is_vetoed(index),
        }
    }
}

/// Whether it is known how far the model is off about plans of a kind, from their mean bias.
fn is_known(bias: Mean) -> bool {
    bias.count() >= ENOUGH / 2
}

#[cfg(test)]
mod tests;
