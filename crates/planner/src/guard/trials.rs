//! Which candidate the next transfer gets: the favourite, one that takes turns with it, or one on
//! trial.
//!
//! A transfer whose plan is another one than its predecessor's is slower than the same plan is when
//! it stays: the receiver expects frames of other sizes, and both threads run other code. Of 64 KiB
//! over loopback that was a fifth, and sizes were vetoed for it that were the best by as much.
//! Where a transfer is that short, candidates are tried in runs, and the first of a run does not
//! count.

use super::similar::{KINDS, kind};
use super::{Arm, ENOUGH, VETO, WORTH_TRYING};

/// One transfer in this many tries a candidate that is not the favourite.
const TRY_EVERY: u32 = 16;

/// One transfer in this many tries a candidate while some candidate worth trying has never been
/// used.
const TRY_EVERY_AT_FIRST: u32 = 2;

/// One transfer in this many gets a candidate that looks faster than the favourite but is not known
/// well enough to replace it. The two take turns, so that both see the same machine.
const CONTEND_EVERY: u32 = 2;

/// Transfers that get a candidate one after the other when it is tried or has its turn, if they are
/// expected to take less than `BRIEF` seconds. To others a change of plan is nothing.
const RUN: u32 = 4;
const BRIEF: f64 = 500e-6;

/// The largest assumed bad luck of such a candidate, as a part of its mean, however much transfers
/// differ.
const LUCK_MAX: f64 = 0.02;

/// One trial in this many is of a candidate that seemed not worth it.
const LONG_SHOT_EVERY: u32 = 8;

/// One trial in this many where fragments are known to differ: transfers are planned for the latest
/// of a hundred, which no trials shall be.
const LONG_SHOT_EVERY_SPREAD: u32 = 32;

/// One turn in this many is a trial while the others are asked.
const ROUND_EVERY: u32 = 4;

/// How many times worse than other tried candidates such a long shot may look.
const LONG_SHOT: f64 = 2.0;

/// The least and the largest assumed error of an expectation, as a part of it.
const DOUBT: (f64, f64) = (0.1, 0.5);

/// The candidates for the next transfer, and what is known of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Race<'a> {
    /// All candidates, the model's proposal first.
    arms: &'a [Arm],
    /// Number of arms after the proposal that lie in its flat region.
    variations: usize,
    /// The candidate that most transfers get.
    favourite: usize,
    /// Number of transfers that were alone so far.
    uses: u32,
    /// Mean distance of an outcome from its mean, as a part of it.
    noise: f64,
    /// Kinds of plans about which it is known how far the model is off.
    known_kinds: [bool; KINDS],
}

/// What was tried, and what is.
#[derive(Debug, Default, Clone)]
pub(super) struct Trials {
    /// Number of trials so far.
    count: u32,
    /// The candidate after which the next one to be tried is looked for.
    next: usize,
    /// Whether an outcome came since the last trial outside the flat region.
    heard: bool,
    /// Number of the candidate whose run it is; 0 if it is the favourite's.
    run_of: u32,
    /// Number of the last outcome's candidate.
    last: u32,
    /// Whether transfers are so short that candidates have runs.
    in_runs: bool,
    /// Candidates that are still to be asked in a round through all.
    round: usize,
}

impl Trials {
    /// Begins a round of so many trials.
    pub(super) fn ask(&mut self, candidates: usize) {
        self.round = candidates;
    }

    /// Notes an outcome. Returns whether it is the first of a run, and so says little of its
    /// candidate.
    pub(super) fn hear(&mut self, number: u32) -> bool {
        self.heard = true;
        let is_first = std::mem::replace(&mut self.last, number) != number;
        is_first && self.in_runs
    }

    /// Picks the candidate for the next transfer, which is alone.
    pub(super) fn choose(&mut self, race: &Race<'_>) -> usize {
        let favourite = race.favourite;
        self.in_runs = race.arms[favourite].usual() < BRIEF;
        let run = if self.in_runs { RUN } else { 1 };
        if race.uses.is_multiple_of(run) {
            let next = self.turn(race, race.uses / run);
            self.run_of = if next == favourite { 0 } else { race.arms[next].number };
            return next;
        }
        let of_run = race.arms.iter().position(|arm| arm.number == self.run_of);
        of_run.unwrap_or(favourite)
    }

    /// Picks the candidate of the run with this number.
    fn turn(&mut self, race: &Race<'_>, turn: u32) -> usize {
        if self.heard && self.round > 0 && turn.is_multiple_of(ROUND_EVERY) {
            self.round -= 1;
            self.heard = false;
            return race.longest_ago(race.arms.len());
        }
        let untried = self.heard.then(|| race.untried()).flatten();
        let every = if untried.is_some() { TRY_EVERY_AT_FIRST } else { TRY_EVERY };
        if !turn.is_multiple_of(every) {
            let may_contend = self.heard && untried.is_none() && turn.is_multiple_of(CONTEND_EVERY);
            let contender = race.contender().filter(|_| may_contend);
            return contender.unwrap_or(race.favourite);
        }
        self.count = self.count.wrapping_add(1);
        // Without outcomes there is nothing to learn but the estimators' variety.
        let reach = if self.heard { race.arms.len() } else { 1 + race.variations };
        let is_spread = race.arms[race.favourite].plan.is_spread();
        let every = if is_spread { LONG_SHOT_EVERY_SPREAD } else { LONG_SHOT_EVERY };
        if self.heard && self.count.is_multiple_of(every) {
            self.heard = false;
            return race.longest_ago(reach);
        }
        if let Some(index) = untried {
            self.heard &= index <= race.variations;
            return index;
        }
        let limit = race.within(WORTH_TRYING);
        for _ in 0..reach {
            self.next = (self.next + 1) % reach;
            if race.arms[self.next].expected <= limit {
                self.heard &= self.next <= race.variations;
                return self.next;
            }
        }
        race.favourite
    }
}

impl<'a> Race<'a> {
    /// The race of these candidates, of which the first `variations` after the proposal lie in its
    /// flat region.
    pub(super) fn new(
        arms: &'a [Arm],
        (variations, favourite): (usize, usize),
        uses: u32,
        (noise, known_kinds): (f64, [bool; KINDS]),
    ) -> Self {
        Self { arms, variations, favourite, uses, noise, known_kinds }
    }

    /// What a candidate is expected to take that takes so many times as long as the favourite.
    fn within(&self, factor: f64) -> f64 {
        let best = &self.arms[self.favourite];
        best.expected + (factor - 1.0) * best.usual()
    }

    /// The candidate, among the first `reach` that are not out of the question, whose last outcome
    /// is the oldest. One of few outcomes is never out of it: these may be of a machine that had
    /// just begun, or scaled by a model that was wrong meanwhile.
    fn longest_ago(&self, reach: usize) -> usize {
        let limit = self.within(WORTH_TRYING * LONG_SHOT);
        let may_be = |arm: &Arm| {
            arm.expected <= limit || (1..=2 * ENOUGH).contains(&arm.measured.outcomes())
        };
        let shots = (0..reach).filter(|&index| may_be(&self.arms[index]));
        // Of equally old ones the first.
        let age = |&index: &usize| self.uses.wrapping_sub(self.arms[index].measured.last());
        shots.rev().max_by_key(age).unwrap_or(self.favourite)
    }

    /// The candidate with the least expected latency among those that may beat the favourite and
    /// have too few outcomes to tell.
    fn untried(&self) -> Option<usize> {
        let fastest = self.arms[self.favourite].expected;
        let may_win = |arm: &Arm| {
            let model = arm.plan.margin_seconds / arm.plan.predicted_seconds;
            // How far the model is off about plans of its kind is not known before some were used.
            let is_known = self.known_kinds[kind(&arm.plan)];
            let doubt = if is_known { model.max(DOUBT.0) } else { DOUBT.1 };
            // Each outcome leaves less of it.
            let doubt = doubt.min(DOUBT.1) / f64::from(arm.measured.outcomes() + 1);
            arm.expected - doubt * arm.usual() < fastest
        };
        let arms = self.arms.iter().enumerate();
        let untried = arms.filter(|&(index, arm)| {
            index != self.favourite && arm.measured.known().is_none() && may_win(arm)
        });
        untried.min_by(|a, b| a.1.expected.total_cmp(&b.1.expected)).map(|(index, _)| index)
    }

    /// The candidate that may be faster than the favourite by more than the threshold of a change,
    /// if its outcomes were bad luck.
    fn contender(&self) -> Option<usize> {
        let at_best = |arm: &Arm| {
            // Mean absolute to standard deviation.
            let error = (1.25 * self.noise / arm.measured.weight().sqrt()).min(LUCK_MAX);
            arm.expected - error * arm.usual()
        };
        let best = &self.arms[self.favourite];
        let limit = best.expected - (1.0 - 1.0 / VETO.0) * best.usual();
        // Where fragments differ no number of turns is enough for what is less than the error.
        let is_luck = |arm: &Arm| {
            let error = arm.error_beside(best, self.noise);
            best.plan.is_spread() && arm.expected + error * arm.usual() > best.expected
        };
        let known = self.arms.iter().enumerate();
        let known = known.filter(|&(index, arm)| {
            let may_win = arm.measured.known().is_some() && at_best(arm) < limit;
            index != self.favourite && may_win && !is_luck(arm)
        });
        known.min_by(|a, b| at_best(a.1).total_cmp(&at_best(b.1))).map(|(index, _)| index)
    }
}
