//! How long transfers take against their prediction, and so which prediction interval the next one
//! gets.
//!
//! The model knows the stages and the uncertainty of each. It does not know what else a request
//! takes (its own way to the peer, wake-ups at both ends), nor how much transfers differ. Both are
//! alike for all plans of a path and size class. Ratios of the last transfers to their predictions,
//! whatever their plan, therefore tell both. Their median is what the model leaves out. Their
//! distance from the median is the margin, which grows while too many lie beyond it. Plans are
//! compared without this, since it moves all of them alike.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use super::path::Path;
use super::stage::StageIndex;

/// Number of transfers that are remembered.
const KEPT: usize = 64;

/// Number of transfers from which on their median and spread are believed.
const ENOUGH: usize = 8;

/// Number of transfers from which on the model's own uncertainty is ignored. With fewer, that
/// uncertainty may be larger.
const PLENTY: usize = 32;

/// The part of the transfers that the margin should cover.
const COVERED: f64 = 0.95;

/// A transfer beyond the margin widens it by `MISSED_STEP`; each transfer within narrows it by
/// `COVERED_STEP`, but not below what covers that part. Quiet times end, and what was learnt in
/// them covers little of what follows. The steps balance where one transfer in eighteen is missed,
/// whatever the transfers do.
const MISSED_STEP: f64 = 1.4;
const COVERED_STEP: f64 = 1.02;
const WIDER_MAX: f64 = 16.0;

/// The least spread, however alike transfers were. Costs that move by less leave plans and
/// predictions as they are, and the time between this daemon and the waiting client is not
/// measured.
const SPREAD_MIN: f64 = 0.02;

/// A path counts as another one if its reference takes so many times longer or shorter, and a stage
/// was found to have changed.
const CHANGED: f64 = 1.1;

/// Ratios to the prediction beyond these do not come from small omissions of the model.
const BIAS: (f64, f64) = (0.5, 2.0);

/// Latencies of the last transfers of a path and size class.
#[derive(Debug, Clone)]
pub(super) struct Track {
    /// Latencies as multiples of what is predicted now for the same plan.
    taken: [f32; KEPT],
    /// The plan of each, with its present prediction in seconds.
    plans: [(u32, f32); KEPT],
    /// The present prediction of the *reference*, in seconds. A plan that is not known any more is
    /// taken to be predicted as differently as this.
    reference: f64,
    /// Number of transfers so far.
    outcomes: u32,
    /// The median of `taken` when it was last computed; `spread` is the distance from it, as a part
    /// of it, that covers [`COVERED`] of the transfers.
    median: f64,
    spread: Option<f64>,
    /// Factor of the margin over `spread`, because too many recent transfers were beyond it.
    wider: f64,
    /// Number of transfers that were beyond the margin.
    misses: u32,
}

/// The tracks of all paths and size classes, whatever mode their plans were made in.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    known: BTreeMap<(Path, u16), usize>,
    tracks: Vec<Track>,
    /// Indices of paths that are gone.
    free: Vec<usize>,
}

impl Tracks {
    /// The index of a path and size class, which is entered if it is new.
    pub(super) fn place(&mut self, path: Path, class: u16) -> usize {
        let Self { known, tracks, free } = self;
        *known.entry((path, class)).or_insert_with(|| {
            free.pop().inspect(|&place| tracks[place] = Track::default()).unwrap_or_else(|| {
                tracks.push(Track::default());
                tracks.len() - 1
            })
        })
    }

    /// The track of a path and size class, if there is one.
    pub(super) fn find(&self, path: Path, class: u16) -> Option<&Track> {
        self.known.get(&(path, class)).map(|&place| &self.tracks[place])
    }

    /// Drops the tracks of all paths with this stage.
    pub(super) fn forget(&mut self, stage: StageIndex) {
        let free = &mut self.free;
        self.known.retain(|(path, _), place| {
            let is_gone = path.contains(&stage);
            if is_gone {
                free.push(*place);
            }
            !is_gone
        });
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.known.len()
    }

    /// Drops the track of a path and size class for which nothing is planned any more.
    pub(super) fn remove(&mut self, path: Path, class: u16) {
        self.free.extend(self.known.remove(&(path, class)));
    }
}

impl Index<usize> for Tracks {
    type Output = Track;

    fn index(&self, place: usize) -> &Track {
        &self.tracks[place]
    }
}

impl IndexMut<usize> for Tracks {
    fn index_mut(&mut self, place: usize) -> &mut Track {
        &mut self.tracks[place]
    }
}

/// What to add to a prediction for one path and size class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outlook {
    /// Median latency of transfers as a multiple of their prediction.
    pub(super) bias: f64,
    /// The margin as a part of the corrected prediction; `None` while too little is known.
    spread: Option<f64>,
    /// Whether there were so many transfers that `spread` alone counts.
    plenty: bool,
    outcomes: u32,
    misses: u32,
}

impl Default for Outlook {
    fn default() -> Self {
        Self { bias: 1.0, spread: None, plenty: false, outcomes: 0, misses: 0 }
    }
}

impl Default for Track {
    fn default() -> Self {
        Self {
            taken: [0.0; KEPT],
            plans: [(0, 0.0); KEPT],
            reference: 0.0,
            outcomes: 0,
            median: 0.0,
            spread: None,
            wider: 1.0,
            misses: 0,
        }
    }
}

impl Track {
    /// Takes a transfer's latency `seconds` beside its `predicted` one. `plan`: its number, and the
    /// prediction that [`Track::learn`] will ask for. `reference`: present prediction of the
    /// reference.
    pub(super) fn observe(
        &mut self,
        plan: (u32, f64),
        seconds: f64,
        predicted: f64,
        reference: f64,
    ) {
        let taken = (seconds / predicted) as f32;
        if !(taken.is_finite() && taken > 0.0 && reference > 0.0) {
            return;
        }
        if self.outcomes == 0 {
            self.reference = reference;
        }
        if self.reference != reference {
            self.learn(false, |_| None, reference);
        }
        if let Some(spread) = self.spread {
            let is_covered = (f64::from(taken) / self.median - 1.0).abs() <= spread * self.wider;
            self.misses = self.misses.wrapping_add(u32::from(!is_covered));
            let step = if is_covered { 1.0 / COVERED_STEP } else { MISSED_STEP };
            self.wider = (self.wider * step).clamp(1.0, WIDER_MAX);
        }
        self.taken[self.outcomes as usize % KEPT] = taken;
        self.plans[self.outcomes as usize % KEPT] = (plan.0, plan.1 as f32);
        self.outcomes = self.outcomes.saturating_add(1);
        if self.outcomes.is_multiple_of(ENOUGH as u32) {
            self.sum_up();
        }
    }

    #[cfg(test)]
    pub(super) fn outcomes(&self) -> u32 {
        self.outcomes
    }

    /// Notes that a stage has changed, and the reference's present prediction. If that differs much
    /// from before, earlier latencies belong to another path and are dropped. (Scaling them would
    /// be wrong where the model was.)
    pub(super) fn change(&mut self, reference: f64) {
        let factor = reference / self.reference;
        if factor.is_finite() && !(1.0 / CHANGED..=CHANGED).contains(&factor) {
            *self = Self { reference, ..Self::default() };
        }
    }

    /// Takes present predictions of plans. If the model has only learnt more, latencies of before
    /// are held against these: the path took what it took. If a stage has `changed`, they are taken
    /// to have changed as predictions did.
    pub(super) fn learn(
        &mut self,
        changed: bool,
        now: impl Fn(u32) -> Option<f64>,
        reference: f64,
    ) {
        let others = self.reference / reference;
        let is_usable = |factor: f64| factor.is_finite() && factor > 0.0;
        let kept = (self.outcomes as usize).min(KEPT);
        for (taken, (plan, predicted)) in self.taken.iter_mut().zip(&mut self.plans).take(kept) {
            let now = now(*plan).filter(|&now| is_usable(f64::from(*predicted) / now));
            let factor = now.map_or(others, |now| f64::from(*predicted) / now);
            if is_usable(factor) {
                *predicted = (f64::from(*predicted) / factor) as f32;
                *taken *= if changed { 1.0 } else { factor as f32 };
            }
        }
        self.reference = reference;
        if self.spread.is_some() {
            self.sum_up();
        }
    }

    fn sum_up(&mut self) {
        let count = (self.outcomes as usize).min(KEPT);
        let mut sorted = self.taken;
        let sorted = &mut sorted[..count];
        sorted.sort_unstable_by(f32::total_cmp);
        self.median = f64::from(sorted[count / 2]);
        for taken in sorted.iter_mut() {
            *taken = (f64::from(*taken) / self.median - 1.0).abs() as f32;
        }
        sorted.sort_unstable_by(f32::total_cmp);
        // The next one is as likely to fall into each of the gaps between those that were.
        let place = (COVERED * (count + 1) as f64).ceil() as usize;
        self.spread = Some(f64::from(sorted[place.clamp(1, count) - 1]).max(SPREAD_MIN));
    }

    /// The present outlook. `reference`: the caller's prediction for the reference.
    pub(super) fn outlook(&self, reference: f64) -> Outlook {
        let Self { outcomes, misses, .. } = *self;
        let Some(spread) = self.spread.filter(|_| reference > 0.0) else {
            return Outlook { outcomes, misses, ..Outlook::default() };
        };
        let found = self.median * self.reference / reference;
        let bias = found.clamp(BIAS.0, BIAS.1);
        // What is not believed of the one is in the other.
        let spread = Some(((found - bias).abs() + found * spread * self.wider) / bias);
        Outlook { bias, spread, plenty: outcomes as usize >= PLENTY, outcomes, misses }
    }
}

impl Outlook {
    /// Half the width of the prediction interval, in seconds. `model`: how far the costs'
    /// uncertainty moves the prediction.
    pub(super) fn margin(&self, model: f64, predicted: f64) -> f64 {
        match self.spread {
            None => model,
            Some(spread) if self.plenty => spread * predicted,
            Some(spread) => model.max(spread * predicted),
        }
    }

    /// Whether enough has happened since for a new outlook: some transfers, or one beyond the
    /// margin.
    pub(super) fn is_outdated(&self, track: &Track) -> bool {
        let since = track.outcomes.wrapping_sub(self.outcomes);
        since >= ENOUGH as u32 || track.misses != self.misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piped_core::noise::Noise;

    const PLAN: (u32, f64) = (1, 1e-3);

    /// `count` transfers that take up to a fifth more or less than `bias` times what was predicted.
    fn after(count: u32, bias: f64, noise: &mut Noise) -> Track {
        let mut track = Track::default();
        for _ in 0..count {
            let around = 0.8 + 0.4 * noise.below(1000) as f64 / 1000.0;
            track.observe(PLAN, 1e-3 * bias * around, 1e-3, 1e-3);
        }
        track
    }

    #[test]
    fn the_margin_covers_what_comes_next_and_not_much_more() {
        let mut noise = Noise(7);
        let (mut covered, mut all, mut widths) = (0, 0, 0.0);
        for _ in 0..200 {
            let mut track = after(64, 1.3, &mut noise);
            for _ in 0..20 {
                let outlook = track.outlook(1e-3);
                let predicted = 1e-3 * outlook.bias;
                let margin = outlook.margin(1e-6, predicted);
                widths += margin / predicted;
                let took = 1e-3 * 1.3 * (0.8 + 0.4 * noise.below(1000) as f64 / 1000.0);
                covered += u32::from((took - predicted).abs() <= margin);
                all += 1;
                track.observe(PLAN, took, 1e-3, 1e-3);
            }
        }
        assert!(covered * 100 >= all * 90, "{covered} of {all}");
        assert!(widths < 0.23 * f64::from(all), "{widths}");
    }

    #[test]
    fn what_is_promised_is_what_it_took_whatever_the_model_said_then() {
        let mut track = Track::default();
        for model in [1e-3, 2e-3, 0.5e-3] {
            for _ in 0..16 {
                // Of a plan that is half as fast as the reference, and of that.
                track.observe(PLAN, 3e-3, 2.0 * model, model);
                track.observe(PLAN, 1.5e-3, model, model);
            }
        }
        track.learn(false, |_| None, 1.2e-3);
        let outlook = track.outlook(1.2e-3);
        assert!((outlook.bias * 1.2e-3 - 1.5e-3).abs() < 1e-8, "{outlook:?}");
        let margin = outlook.margin(0.0, 1.5e-3) / 1.5e-3;
        assert!(margin <= SPREAD_MIN * 1.01, "they were all alike: {outlook:?}");
    }

    #[test]
    fn a_margin_that_was_learnt_in_quiet_times_widens_soon() {
        let mut noise = Noise(11);
        let mut track = Track::default();
        // Moods of a hundred transfers, a few percent apart, each far quieter than that.
        let (mut covered, mut widths) = (0, 0.0);
        for number in 0..10_000 {
            let mood = 1e-3 * (1.0 + 0.03 * f64::from(number / 100 % 3));
            let took = mood * (0.998 + 0.004 * noise.below(1000) as f64 / 1000.0);
            let outlook = track.outlook(1e-3);
            let predicted = 1e-3 * outlook.bias;
            let margin = outlook.margin(1e-6, predicted);
            covered += u32::from((took - predicted).abs() <= margin);
            widths += margin / predicted;
            track.observe(PLAN, took, 1e-3, 1e-3);
        }
        assert!(covered > 9_000, "{covered}");
        assert!(widths < 0.1 * 10_000.0, "{widths}");
    }

    #[test]
    fn a_path_that_has_changed_is_promised_for_as_it_is() {
        let mut track = after(64, 1.3, &mut Noise(7));
        track.change(3e-3);
        assert_eq!(track.outlook(3e-3).bias, 1.0, "by the model alone");
        for _ in 0..ENOUGH {
            track.observe(PLAN, 3.6e-3, 3e-3, 3e-3);
        }
        // For the other plans of the path it is known.
        track.change(3e-3);
        let outlook = track.outlook(3e-3);
        assert!((1.15..1.25).contains(&outlook.bias), "{outlook:?}");
        // What was only learnt better leaves what was measured.
        track.change(3.1e-3);
        assert!(track.outlook(3.1e-3).bias < outlook.bias);
    }

    #[test]
    fn what_is_beyond_belief_is_within_the_margin() {
        let mut track = Track::default();
        (0..64).for_each(|_| track.observe(PLAN, 3e-3, 1e-3, 1e-3));
        let outlook = track.outlook(1e-3);
        let predicted = outlook.bias * 1e-3;
        assert!((3e-3 - predicted).abs() <= outlook.margin(0.0, predicted), "{outlook:?}");
    }

    #[test]
    fn few_transfers_do_not_take_the_models_doubts_away() {
        let mut noise = Noise(7);
        let none = after(ENOUGH as u32 - 1, 1.3, &mut noise).outlook(1e-3);
        assert_eq!((none.bias, none.margin(5e-4, 1e-3)), (1.0, 5e-4));
        let some = after(ENOUGH as u32, 1.3, &mut noise).outlook(1e-3);
        assert!(some.bias > 1.05 && some.margin(5e-4, 1e-3) == 5e-4);
        let plenty = after(PLENTY as u32, 1.3, &mut noise).outlook(1e-3);
        assert!(plenty.margin(5e-4, 1e-3) < 3e-4);
    }

    #[test]
    fn absurd_outcomes_make_no_absurd_promise() {
        let mut track = Track::default();
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            (0..100).for_each(|_| track.observe(PLAN, seconds, 1e-3, 1e-3));
        }
        track.observe(PLAN, 1e-3, 0.0, 1e-3);
        track.observe(PLAN, 1e-3, 1e-3, 0.0);
        assert_eq!(track.outcomes(), 0);
        (0..64).for_each(|_| track.observe(PLAN, 10.0, 1e-3, 1e-3));
        for reference in [1e-3, 0.0, 1e-12] {
            let outlook = track.outlook(reference);
            assert!(outlook.bias <= BIAS.1 && outlook.margin(0.0, 1.0).is_finite());
        }
    }

    #[test]
    fn promises_are_made_anew_every_few_transfers() {
        let mut track = Track::default();
        let mut outlook = track.outlook(1e-3);
        let mut asked = Vec::new();
        for outcome in 0..40 {
            if outlook.is_outdated(&track) {
                outlook = track.outlook(1e-3);
                asked.push(outcome);
            }
            let seconds = if outcome == 28 { 5e-3 } else { 1e-3 };
            track.observe(PLAN, seconds, 1e-3, 1e-3);
        }
        assert_eq!(asked, [8, 16, 24, 29, 37]);
    }

    /// The model learns that one of two plans takes twice as long as it said, and promises of both
    /// are right all the same.
    #[test]
    fn what_is_learnt_of_one_plan_is_not_held_against_another() {
        let mut track = Track::default();
        for _ in 0..32 {
            track.observe((1, 1e-3), 2e-3, 1e-3, 1e-3);
            track.observe((2, 4e-3), 4.4e-3, 4e-3, 1e-3);
        }
        // The reference is like neither.
        let now = |plan| Some(if plan == 1 { 2e-3 } else { 4e-3 });
        let mut changed = track.clone();
        track.learn(false, now, 5e-3);
        let outlook = track.outlook(5e-3);
        assert!((0.99..1.11).contains(&outlook.bias), "{outlook:?}");
        // A stage has changed: what the model leaves out is the same part as before.
        let before = changed.outlook(1e-3).bias;
        changed.learn(true, now, 5e-3);
        assert_eq!(changed.outlook(5e-3).bias, before);
    }
}
