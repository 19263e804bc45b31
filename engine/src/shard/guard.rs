//! The empirical guard: what the candidates of a path and size class took in practice.
//!
//! The model proposes fragment sizes and a depth, the measurement disposes. Costs that no straight line knows
//! (caches, socket buffers, a kernel's batching) make a candidate slower or faster than predicted; the
//! latencies that its transfers really had are kept here, decayed, and a candidate that another one beats
//! by more than [`VETO`] in practice is not chosen, whatever the model says. To know that, a few
//! transfers try the others: sizes nearly as good as the proposal (which the estimators need anyway to
//! tell `g` from `G`), and, as long as outcomes come in, fixed sizes from 64 KiB up and, where a device
//! has something behind it, plans that ask it for one fragment at a time (serial ones).

use std::sync::Arc;

use super::planned::{Choice, Planned};

/// The most candidates: the proposal, variations of it, whole, powers of two, three serial ones, nested ones.
pub(super) const ARMS_MAX: usize = 20;

/// One transfer in this many tries a candidate that is not the favourite.
const TRY_EVERY: u32 = 16;

/// The same as long as there is a candidate worth trying that nobody has.
const TRY_EVERY_AT_FIRST: u32 = 2;

/// One trial in this many is of a candidate that seemed not worth it: things change.
const LONG_SHOT_EVERY: u32 = 8;

/// And may look this many times worse than others that are tried.
const LONG_SHOT: f64 = 2.0;

/// Uses after which a candidate's plan is made anew, with what is known of the others then.
const REFRESH_EVERY: u32 = 250;

/// Outcomes that make a mean worth believing.
const ENOUGH: u32 = 6;

/// Weight of a new outcome in a believed mean.
const DECAY: f64 = 1.0 / 24.0;

/// Weight of an outcome after [`STALE_USES`] transfers without one: the old mean is of other times.
const REFRESH: f64 = 1.0 / 4.0;
const STALE_USES: u32 = 32;

/// An outcome above this many times the mean counts as that: somebody else had the CPU.
const CLIP: f64 = 3.0;

/// A candidate slower than another by this factor is vetoed.
const VETO: f64 = 1.05;

/// A candidate is tried again now and then if it seems at most this many times slower.
const WORTH_TRYING: f64 = 1.15;

/// A candidate is tried for the first time if it is predicted at most this many times slower.
const WORTH_A_FIRST_TRY: f64 = 2.0;

/// First sizes within this ratio at every level are the same candidate, a proposal that moved a little, if both
/// are serial, with as many fragments, or neither is.
const SAME_SIZE: f64 = 1.25;

/// Weight of an outcome in the pace: so few transfers see the same machine.
const PACE_DECAY: f64 = 1.0 / 8.0;

/// What transfers with a candidate took.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    /// At a pace of 1, see [`Guard::pace`].
    seconds: f64,
    outcomes: u32,
    /// The guard's uses at the last outcome.
    at: u32,
}

impl Measured {
    /// `seconds`: at a pace of 1.
    fn observe(&mut self, seconds: f64, uses: u32) {
        self.outcomes = self.outcomes.saturating_add(1);
        let age = uses.wrapping_sub(std::mem::replace(&mut self.at, uses));
        let weight = match self.outcomes {
            first if first <= ENOUGH => 1.0 / f64::from(first),
            _ if age > STALE_USES => REFRESH,
            _ => DECAY,
        };
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
    plan: Choice,
    /// Differs where the fragments or the depth do.
    number: u32,
    /// In the form the engine executes; made when it is first used.
    planned: Option<Arc<Planned>>,
    /// The guard's uses when that was last made anew.
    made_at: u32,
    measured: Measured,
}

/// A candidate as the planner sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    pub(super) plan: Choice,
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
    /// How many times slower than usual transfers are now, whatever their candidate. A machine that others use
    /// changes its speed within seconds, and candidates are tried at different times: compared as they
    /// are, the one that was tried in the better moments would win. So they are compared by what they took
    /// beside the others.
    pace: f64,
}

impl Guard {
    /// With room for all candidates, so that renewing takes no memory.
    pub(super) fn new() -> Self {
        Self { arms: Vec::with_capacity(ARMS_MAX), pace: 1.0, ..Self::default() }
    }

    /// New predictions: the proposal, sizes nearly as good, and the fixed sizes to compare with. What was
    /// measured stays with its size. Returns the plans that are not needed any more.
    pub(super) fn renew(
        &mut self,
        proposal: Choice,
        variations: &[Choice],
        others: &[Choice],
    ) -> impl Iterator<Item = Arc<Planned>> + use<> {
        let mut known = [const { None }; ARMS_MAX];
        for (place, arm) in known.iter_mut().zip(&self.arms) {
            *place = Some((arm.plan, arm.measured)).filter(|(_, known)| known.outcomes > 0);
        }
        let measured = |plan: &Choice| {
            let near = known.iter().flatten().filter(|(old, _)| is_near(old, plan));
            let distance = |(old, _): &&(Choice, Measured)| old.distance(plan);
            near.min_by_key(distance).map(|&(_, measured)| measured)
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
                let made_at = self.uses;
                self.arms.push(Arm { plan, number, planned: None, made_at, measured });
            }
            if place == variations.len() {
                self.variations = self.arms.len() - 1;
            }
        }
        retired.into_iter().flatten()
    }

    /// A transfer with the candidate of this number took so long.
    pub(super) fn observe(&mut self, number: u32, seconds: f64) {
        if let Some(arm) = self.arms.iter_mut().find(|arm| arm.number == number) {
            let before = arm.measured.known();
            arm.measured.observe(seconds / self.pace, self.uses);
            self.heard = true;
            if let Some(usual) = before {
                let slower = (seconds / usual).clamp(self.pace / CLIP, self.pace * CLIP);
                self.pace += PACE_DECAY * (slower - self.pace);
            }
        }
    }

    /// What a transfer of so many bytes was predicted to take with the candidate of this number.
    pub(super) fn predicted(&self, number: u32, bytes: u64) -> Option<f64> {
        let arm = self.arms.iter().find(|arm| arm.number == number)?;
        Some(arm.plan.predicted_for(bytes))
    }

    /// The candidate for the next transfer.
    pub(super) fn choose(&mut self) -> usize {
        self.uses = self.uses.wrapping_add(1);
        let fastest = self.fastest();
        let every = if self.is_learning(fastest) { TRY_EVERY_AT_FIRST } else { TRY_EVERY };
        if !self.uses.is_multiple_of(every) {
            return self.favourite_beside(fastest);
        }
        self.trials = self.trials.wrapping_add(1);
        // Without outcomes there is nothing to learn but the estimators' variety.
        let reach = if self.heard { self.arms.len() } else { 1 + self.variations };
        if self.heard && self.trials.is_multiple_of(LONG_SHOT_EVERY) {
            let shots = (0..reach).filter(|&index| self.is_worth_trying(index, LONG_SHOT, fastest));
            let longest_ago = shots.min_by_key(|&index| self.arms[index].measured.at);
            self.heard = false;
            return longest_ago.unwrap_or_else(|| self.favourite_beside(fastest));
        }
        for _ in 0..reach {
            self.next_trial = (self.next_trial + 1) % reach;
            if self.is_worth_trying(self.next_trial, 1.0, fastest) {
                self.heard &= self.next_trial <= self.variations;
                return self.next_trial;
            }
        }
        self.favourite_beside(fastest)
    }

    fn is_learning(&self, fastest: Option<(usize, f64)>) -> bool {
        let unknown = |index: usize| {
            self.arms[index].measured.known().is_none() && self.is_worth_trying(index, 1.0, fastest)
        };
        self.heard && (0..self.arms.len()).any(unknown)
    }

    /// `patience`: how much worse than usual it may look.
    fn is_worth_trying(&self, index: usize, patience: f64, fastest: Option<(usize, f64)>) -> bool {
        let arm = &self.arms[index];
        let best = self.arms[0].plan.predicted_seconds;
        match (arm.measured.known(), fastest) {
            (Some(measured), Some((_, fastest))) => measured <= fastest * WORTH_TRYING * patience,
            _ => arm.plan.predicted_seconds <= best * WORTH_A_FIRST_TRY * patience,
        }
    }

    /// The candidate that most transfers get: the proposal, unless measurement objects. A proposal nobody
    /// has measured has to prove itself in trials where there is something that has.
    pub(super) fn favourite(&self) -> usize {
        self.favourite_beside(self.fastest())
    }

    fn favourite_beside(&self, fastest: Option<(usize, f64)>) -> usize {
        let proposal = self.arms[0].measured.known();
        match (fastest, proposal) {
            (Some((index, _)), None) => index,
            (Some((index, seconds)), Some(measured)) if measured > seconds * VETO => index,
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
    /// [`Guard::choose`]; it is taken for renewed then.
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

    /// A candidate's executable form, if it was made.
    pub(super) fn planned(&mut self, index: usize) -> &mut Option<Arc<Planned>> {
        &mut self.arms[index].planned
    }

    /// All candidates with what is known of them.
    pub(super) fn seen(&self) -> impl Iterator<Item = Seen> + '_ {
        self.arms.iter().enumerate().map(|(index, arm)| Seen {
            plan: arm.plan,
            measured: arm.measured.known().map(|seconds| seconds * self.pace),
            vetoed: self.is_vetoed(index),
        })
    }
}

/// Whether what was measured of one says what the other takes.
fn is_near(a: &Choice, b: &Choice) -> bool {
    let is_serial = a.cut.depth == 1;
    // Where the latency of each fragment counts, so does their number.
    let few = if is_serial { 1.0 } else { f64::INFINITY };
    let counts = a.counts.iter().zip(b.counts);
    is_serial == (b.cut.depth == 1)
        && a.firsts().into_iter().zip(b.firsts()).all(|(a, b)| ratio(a, b) <= SAME_SIZE)
        && counts.into_iter().all(|(&a, b)| ratio(f64::from(a), f64::from(b)) <= few)
}

/// How many times the larger is the smaller.
fn ratio(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low > 0.0 { high / low } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use piped_model::plan::Algorithm;

    use super::super::Noise;
    use super::super::planned::Cut;
    use super::*;
    use crate::sizes::Sizes;

    fn plan(fragment_bytes: u64, predicted_us: f64) -> Choice {
        Choice {
            cut: Cut::same(Sizes::equal(fragment_bytes), 8),
            algorithm: Algorithm::Fixed,
            counts: [1; 3],
            ramp: None,
            length: 1 << 20,
            per_byte: 0.0,
            predicted_seconds: predicted_us * 1e-6,
            margin_seconds: 0.0,
        }
    }

    fn number_of(plan: Choice) -> u32 {
        plan.cut.number()
    }

    /// The model believes in 100 KB; what fragments really take says `truth`.
    fn guard() -> Guard {
        let mut guard = Guard::new();
        let others = [plan(1_000_448, 300.0), plan(65_536, 210.0), plan(262_144, 250.0)];
        drop(guard.renew(plan(102_400, 200.0), &[plan(81_920, 203.0)], &others));
        guard
    }

    /// `count` transfers, each told of; how many went to each size.
    fn serve(guard: &mut Guard, count: u32, truth: impl Fn(u64) -> f64) -> Vec<(u64, u32)> {
        let mut used = std::collections::BTreeMap::new();
        for _ in 0..count {
            let index = guard.choose();
            let bytes = guard.plan(index).cut.source.first();
            *used.entry(bytes).or_insert(0) += 1;
            guard.observe(number_of(guard.plan(index)), truth(bytes) * 1e-6);
        }
        used.into_iter().collect()
    }

    fn favourite(guard: &Guard) -> u64 {
        guard.plan(guard.favourite()).cut.source.first()
    }

    #[test]
    fn the_model_leads_where_nothing_is_measured() {
        let mut guard = guard();
        let mut others = 0;
        for _ in 0..800 {
            let index = guard.choose();
            let bytes = guard.plan(index).cut.source.first();
            assert!(bytes == 102_400 || bytes == 81_920, "nobody tells what {bytes} takes");
            others += u32::from(bytes == 81_920);
        }
        assert!((25..=100).contains(&others), "sizes vary, but rarely: {others} of 800");
    }

    #[test]
    fn a_candidate_that_is_beaten_in_practice_is_vetoed() {
        let mut guard = guard();
        // The model is wrong: 256 KiB is the best.
        let truth = |bytes| if bytes == 262_144 { 150.0 } else { 220.0 };
        serve(&mut guard, 200, truth);
        assert_eq!(favourite(&guard), 262_144);
        let seen: Vec<Seen> = guard.seen().collect();
        assert!(seen[0].vetoed && seen[0].measured.is_some());
        let used = serve(&mut guard, 800, truth);
        let best = used.iter().find(|(bytes, _)| *bytes == 262_144).expect("the favourite").1;
        assert!(best > 680, "{used:?}");
    }

    #[test]
    fn a_model_that_is_right_stays_in_charge() {
        let mut guard = guard();
        serve(&mut guard, 1000, |bytes| match bytes {
            102_400 => 200.0,
            81_920 => 198.0,
            _ => 260.0,
        });
        assert_eq!(favourite(&guard), 102_400, "2 % is no reason to overrule it");
    }

    #[test]
    fn what_was_good_once_is_found_out_when_it_is_not_any_more() {
        let mut guard = guard();
        serve(&mut guard, 400, |bytes| if bytes == 262_144 { 150.0 } else { 220.0 });
        serve(&mut guard, 400, |bytes| if bytes == 262_144 { 500.0 } else { 220.0 });
        assert_ne!(favourite(&guard), 262_144);
        serve(&mut guard, 2000, |bytes| if bytes == 262_144 { 150.0 } else { 220.0 });
        assert_eq!(favourite(&guard), 262_144, "and when it is again");
    }

    #[test]
    fn a_machine_that_changes_its_speed_is_no_reason_to_change_the_size() {
        for seed in 1..=20_u64 {
            let mut guard = guard();
            let mut random = Noise(seed);
            let (mut phase, mut speed, mut right) = (0, 1.0, 0);
            for number in 0..4000 {
                if phase == 0 {
                    phase = 20 + random.below(100);
                    speed = [1.0, 2.0][random.below(2) as usize];
                }
                phase -= 1;
                let truth = |bytes| if bytes == 262_144 { 185.0 } else { 220.0 };
                let index = guard.choose();
                let plan = guard.plan(index);
                right += u32::from(plan.cut.source.first() == 262_144 && number >= 400);
                guard.observe(number_of(plan), truth(plan.cut.source.first()) * speed * 1e-6);
            }
            // One in sixteen tries another.
            assert!(right > 3200, "seed {seed}: {right} of 3600");
        }
    }

    #[test]
    fn a_new_proposal_keeps_what_is_known_of_its_size_and_proves_itself_otherwise() {
        let mut guard = guard();
        serve(&mut guard, 200, |_| 220.0);
        let others = [plan(1_000_448, 300.0), plan(65_536, 210.0), plan(262_144, 250.0)];
        drop(guard.renew(plan(107_520, 190.0), &[plan(92_160, 191.0)], &others));
        assert_eq!(favourite(&guard), 107_520, "a little larger is the same candidate");
        drop(guard.renew(plan(20_480, 100.0), &[plan(16_384, 101.0)], &others));
        assert_ne!(favourite(&guard), 20_480, "a promise only");
        serve(&mut guard, 200, |bytes| if bytes <= 20_480 { 120.0 } else { 220.0 });
        assert!(favourite(&guard) <= 20_480, "kept");
    }

    #[test]
    fn a_stall_does_not_count_for_more_than_a_slow_transfer() {
        let mut measured = Measured::default();
        (0..32).for_each(|use_| measured.observe(100e-6, use_));
        measured.observe(5.0, 32);
        let mean = measured.known().expect("enough");
        assert!(mean < 115e-6, "{mean}");
    }

    #[test]
    fn outcomes_of_sizes_nobody_planned_are_ignored() {
        let mut guard = guard();
        (0..100).for_each(|_| guard.observe(number_of(plan(12_288, 1.0)), 1e-6));
        assert!(guard.seen().all(|seen| seen.measured.is_none()));
    }
}
