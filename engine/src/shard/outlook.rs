//! How long transfers take against their prediction, and so what to promise of the next.
//!
//! The model knows the stages and what is uncertain of each. It does not know what a request takes besides (its
//! own way to the peer, being woken at both ends), nor how much one transfer differs from the next. Both are
//! the same for all plans of a path and size class, so what the last transfers took, whatever their plan,
//! divided by what the model said, tells them: the median is what the model leaves out, and how far they lie
//! around it is the margin. Plans are compared without this: it moves all of them alike.

use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use super::plan::Path;
use super::stage::StageIndex;

/// Transfers remembered.
const KEPT: usize = 64;

/// Transfers from which on their median and spread are believed.
const ENOUGH: usize = 8;

/// And from which on they alone are: with fewer, the model's own uncertainty may be larger.
const PLENTY: usize = 32;

/// The part of the transfers that the margin is to cover.
const COVERED: f64 = 0.95;

/// Beyond these ratios to the prediction it is not that the model left out a little.
const BIAS: (f64, f64) = (0.5, 2.0);

/// The last transfers of a path and size class: what they took, as multiples of their predictions.
#[derive(Debug, Clone)]
pub(super) struct Track {
    ratios: [f32; KEPT],
    /// All there were.
    outcomes: u32,
    /// What the model says of some plan of that path and size, in seconds; 0 at first.
    model: f64,
}

/// The tracks of paths and size classes, whatever mode their plans were made in.
#[derive(Debug, Default)]
pub(super) struct Tracks {
    known: HashMap<(Path, u16), usize>,
    tracks: Vec<Track>,
    /// Places of paths that are gone.
    free: Vec<usize>,
}

impl Tracks {
    /// The place of a path and size class, from now on at least.
    pub(super) fn place(&mut self, path: Path, class: u16) -> usize {
        let Self { known, tracks, free } = self;
        *known.entry((path, class)).or_insert_with(|| {
            free.pop().inspect(|&place| tracks[place] = Track::default()).unwrap_or_else(|| {
                tracks.push(Track::default());
                tracks.len() - 1
            })
        })
    }

    /// What is known of a path and size class.
    pub(super) fn find(&self, path: Path, class: u16) -> Option<&Track> {
        self.known.get(&(path, class)).map(|&place| &self.tracks[place])
    }

    /// The paths with this stage are gone.
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

    /// Nothing is planned there any more.
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

/// What is to be promised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outlook {
    /// What transfers take at the median, as a multiple of their prediction.
    pub(super) bias: f64,
    /// The margin as a part of that; nothing while too little is known.
    spread: Option<f64>,
    /// So many transfers that it counts alone.
    plenty: bool,
    outcomes: u32,
}

impl Default for Outlook {
    fn default() -> Self {
        Self { bias: 1.0, spread: None, plenty: false, outcomes: 0 }
    }
}

impl Default for Track {
    fn default() -> Self {
        Self { ratios: [0.0; KEPT], outcomes: 0, model: 0.0 }
    }
}

impl Track {
    /// A transfer took `seconds` instead of `predicted`.
    pub(super) fn observe(&mut self, seconds: f64, predicted: f64) {
        let ratio = seconds / predicted;
        if ratio.is_finite() && ratio > 0.0 {
            self.ratios[self.outcomes as usize % KEPT] = ratio as f32;
            self.outcomes = self.outcomes.saturating_add(1);
        }
    }

    /// The model has learnt, and says `seconds` of the same plan now: so do those that were said before, and what
    /// transfers took is held against what would be said of them now.
    pub(super) fn follow(&mut self, seconds: f64) {
        let before = std::mem::replace(&mut self.model, seconds);
        let factor = before / seconds;
        if factor.is_finite() && factor > 0.0 {
            self.ratios.iter_mut().for_each(|ratio| *ratio *= factor as f32);
        }
    }

    pub(super) fn outcomes(&self) -> u32 {
        self.outcomes
    }

    pub(super) fn outlook(&self) -> Outlook {
        let count = (self.outcomes as usize).min(KEPT);
        if count < ENOUGH {
            return Outlook { outcomes: self.outcomes, ..Outlook::default() };
        }
        let mut sorted = self.ratios;
        let sorted = &mut sorted[..count];
        sorted.sort_unstable_by(f32::total_cmp);
        let bias = f64::from(sorted[count / 2]).clamp(BIAS.0, BIAS.1);
        for ratio in sorted.iter_mut() {
            *ratio = (f64::from(*ratio) / bias - 1.0).abs() as f32;
        }
        sorted.sort_unstable_by(f32::total_cmp);
        // The next one is as likely to fall into each of the gaps between those that were.
        let place = (COVERED * (count + 1) as f64).ceil() as usize;
        let spread = sorted[place.clamp(1, count) - 1].into();
        Outlook { bias, spread: Some(spread), plenty: count >= PLENTY, outcomes: self.outcomes }
    }
}

impl Outlook {
    /// Half the width of a prediction's interval, in seconds. `model`: how far the costs' uncertainty moves it.
    pub(super) fn margin(&self, model: f64, predicted: f64) -> f64 {
        match self.spread {
            None => model,
            Some(spread) if self.plenty => spread * predicted,
            Some(spread) => model.max(spread * predicted),
        }
    }

    /// Whether there was so much since that it is worth asking again.
    pub(super) fn is_outdated(&self, outcomes: u32) -> bool {
        let since = outcomes.wrapping_sub(self.outcomes);
        since >= KEPT as u32 / 2 || (outcomes < KEPT as u32 && since >= ENOUGH as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Noise;
    use super::*;

    /// `count` transfers that take up to a fifth more or less than `bias` times what was predicted.
    fn after(count: u32, bias: f64, noise: &mut Noise) -> Track {
        let mut track = Track::default();
        for _ in 0..count {
            let around = 0.8 + 0.4 * noise.below(1000) as f64 / 1000.0;
            track.observe(1e-3 * bias * around, 1e-3);
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
                let outlook = track.outlook();
                let predicted = 1e-3 * outlook.bias;
                let margin = outlook.margin(1e-6, predicted);
                widths += margin / predicted;
                let took = 1e-3 * 1.3 * (0.8 + 0.4 * noise.below(1000) as f64 / 1000.0);
                covered += u32::from((took - predicted).abs() <= margin);
                all += 1;
                track.observe(took, 1e-3);
            }
        }
        assert!(covered * 100 >= all * 90, "{covered} of {all}");
        assert!(widths < 0.23 * f64::from(all), "{widths}");
    }

    #[test]
    fn what_is_promised_is_what_it_took_whatever_the_model_said_then() {
        let mut track = Track::default();
        for model in [1e-3, 2e-3, 0.5e-3] {
            track.follow(model);
            for _ in 0..16 {
                track.observe(1.5e-3, model);
            }
        }
        track.follow(1.2e-3);
        let outlook = track.outlook();
        assert!((outlook.bias * 1.2e-3 - 1.5e-3).abs() < 1e-8, "{outlook:?}");
        assert!(outlook.margin(0.0, 1.5e-3) < 1e-8, "they were all alike: {outlook:?}");
        // A model that says nothing changes nothing.
        track.follow(0.0);
        track.follow(1.2e-3);
        assert_eq!(track.outlook(), outlook);
    }

    #[test]
    fn few_transfers_do_not_take_the_models_doubts_away() {
        let mut noise = Noise(7);
        let none = after(ENOUGH as u32 - 1, 1.3, &mut noise).outlook();
        assert_eq!((none.bias, none.margin(5e-4, 1e-3)), (1.0, 5e-4));
        let some = after(ENOUGH as u32, 1.3, &mut noise).outlook();
        assert!(some.bias > 1.05 && some.margin(5e-4, 1e-3) == 5e-4);
        let plenty = after(PLENTY as u32, 1.3, &mut noise).outlook();
        assert!(plenty.margin(5e-4, 1e-3) < 3e-4);
    }

    #[test]
    fn absurd_outcomes_make_no_absurd_promise() {
        let mut track = Track::default();
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            (0..100).for_each(|_| track.observe(seconds, 1e-3));
        }
        track.observe(1e-3, 0.0);
        assert_eq!(track.outcomes(), 0);
        (0..64).for_each(|_| track.observe(10.0, 1e-3));
        let outlook = track.outlook();
        assert!(outlook.bias <= BIAS.1 && outlook.margin(0.0, 1.0).is_finite());
    }

    #[test]
    fn promises_are_made_anew_often_at_first() {
        let asked: Vec<u32> = (0..200)
            .scan(Outlook::default(), |outlook, outcomes| {
                let due = outlook.is_outdated(outcomes);
                if due {
                    *outlook = Outlook { outcomes, ..*outlook };
                }
                Some(due.then_some(outcomes))
            })
            .flatten()
            .collect();
        assert_eq!(asked, [8, 16, 24, 32, 40, 48, 56, 88, 120, 152, 184]);
    }
}
